//! One running node. It turns page faults into engine events, carries out the engine's effects (messages,
//! frames, page protection), and resumes the faulting thread.
//!
//! [`Runtime::join`] makes the process a node of its job; the faces (the C library) call its methods.
//! Modules:
//!
//! | file | what |
//! |---|---|
//! | `runtime.rs` | the node and the calls of its threads; its submodules: |
//! | `runtime/host.rs` | carries out the engine's effects; `host/races.rs`: data race detection |
//! | `runtime/service.rs` | the thread that serves other nodes while the program computes |
//! | `runtime/lulls.rs` | idle moments of that thread, offered to engines that use them |
//! | `runtime/run.rs` | `hiroba_run` |
//! | `runtime/{waits,last_words}.rs`, `call_site.rs`, `callers.rs` | reports about programs that went wrong |
//! | `runtime/liveness.rs`, `control.rs` | heartbeats; the channel to the launcher |
//! | `runtime/heap.rs`, `arena.rs` | the `malloc` family |
//! | `runtime/program_calls.rs` | the program's own system calls that change how shared memory is mapped |
//! | `runtime/space.rs`, `layout.rs` | collective allocation; the layout of the shared region |
//! | `runtime/local.rs`, `local_space.rs` | a node's own data, which is paged, too |
//! | `runtime/follow.rs` | programs whose node 0 leads and whose other nodes follow (`tsm.h`) |
//! | `runtime/tracing.rs` | the record of a traced run |
//! | `threads.rs` | the program's threads, and how they wait |
//! | `account.rs`, `stalls.rs`, `time_class.rs` | time and counts |
//! | `runtime/lending.rs` | memory that nodes lend each other, and the thread that serves it |
//! | `runtime/deferred.rs` | messages that wait for pages that are out |
//! | `runtime/on_demand.rs` | the threads of lending and paging, started when they are needed first |
//! | `runtime/paging.rs` | pages that leave, are saved and come back before a thread must wait for that |
//! | `budget.rs`, `headroom.rs`, `own_memory.rs`, `swap.rs` | the memory of shared pages: which leave, how much there may be, where they go |

mod account;
mod arena;
mod budget;
pub mod call_site;
mod callers;
mod control;
mod core_share;
mod error;
mod headroom;
mod layout;
mod local_space;
mod own_memory;
mod patience;
/// The program's signal handlers, masks and stacks, which the faces intercept.
pub mod program_signals {
    pub use hiroba_memory::fault::{
        believed_blocked, exchange_program_action, exchange_program_stack, fault_signals,
        set_believed_blocked,
    };
}
mod regions;
mod runtime;
mod signals;
mod stalls;
mod swap;
mod threads;
mod time_class;
mod timers;

/// Identifies the build: the nodes of a job must be of one build.
pub const BUILD: &str = env!("HIROBA_BUILD");

pub use core_share::{CoreShare, core_share_of};
pub use error::NodeError;
pub use hiroba_ports as ports;
pub use hiroba_protocol::lease::Taken;
pub use hiroba_protocol::{HomePolicy, Homes, Protocol};
pub use own_memory::{note_allocated, note_freed};
pub use runtime::follow::Command;
pub use runtime::last_words::{before_last_words, is_dying};
pub use runtime::program_calls::{Extent, Locking, SharedPages};
pub use runtime::service::may_run_first;
pub use runtime::space::{AllocateError, PartInPlace};
pub use runtime::{Runtime, preflight};
pub use signals::{
    SignalsDeferred, defer_signals_across_fork, expect_handler_of, release_signals_after_fork,
    release_signals_in_child, when_outside,
};
pub use swap::check_swap;
pub use time_class::OutsideWait;
