//! OpenMP executables: `hiroba run` has the loader put this library before all others, under the name of
//! GNU's OpenMP library, whose functions compiled programs call; it has those of LLVM's library, too. It
//! stands on `libhiroba_pthread.so`, which shares the program's memory and runs `main` on node 0.
//!
//! - **Start** (`start.rs`): every node creates its threads of the job's team, once, and more when a region
//!   asks for more; a thread keeps its node and its number from region to region.
//! - **Teams** (`teams.rs`, `meeting.rs`): a region is a record in shared memory and a barrier of all nodes;
//!   its threads meet among themselves on each node first, and one of them for all in a barrier of Hiroba.
//! - **Work** (`work.rs`, `shares.rs`, `loops.rs`): each piece of work that a team shares has a place in a
//!   ring in shared memory, which its first thread prepares; threads take chunks with atomic instructions, as
//!   the crate `hiroba-schedule` says. `sites.rs` keeps threads' speeds for loops by their places in the
//!   program (`call_sites.rs`), and `literals.rs` numbers the schedules that programs name themselves.
//! - **Reductions** (`gathering.rs`, `updates.rs`): their values travel with a barrier, in programs for
//!   LLVM's library; in those for GNU's the code that adds them to the variables does.
//! - **Tasks** (`tasks/`, `records.rs`, `reductions.rs`): records in shared memory, in a queue of the team.
//! - **LLVM** (`llvm/`): what clang calls, by its names, over all of this.
//! - **Settings** (`settings.rs`, `context.rs`, `queries.rs`): each thread has a context of its own.
//! - **Places** (`places.rs`, `place_calls.rs`): the processors that a node's threads are bound to.
//!
//! The code of this library runs on the program's stack, and faults on shared memory as the program does.
//! Only calls of Hiroba run on the private stack (`runtime.rs`).
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod affinity;
mod allocators;
mod along;
mod call_sites;
mod context;
mod criticals;
mod endings;
mod face;
mod gathering;
mod job;
mod leagues;
mod library;
mod literal_calls;
mod literals;
mod llvm;
mod locks;
mod loop_calls;
mod loop_schedule;
mod loops;
mod meeting;
mod memory;
mod messages;
mod nest;
mod offers;
mod ordered;
mod parallel;
mod place_calls;
mod places;
mod queries;
mod records;
mod reduction_calls;
mod reductions;
mod runtime;
mod sections;
mod settings;
mod shares;
mod single_numbers;
mod singles;
mod sites;
mod start;
mod targets;
mod task_copies;
mod tasks;
mod teams;
mod updates;
mod work;

#[global_allocator]
static ALLOCATOR: memory::Private = memory::Private;
