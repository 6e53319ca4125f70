//! One running node: a fault becomes an engine's business, its effects become messages, frames and protection, and the
//! thread goes on.
//!
//! [`Runtime::join`] puts the process into its job; the faces (the C library) call its methods. Inside:
//!
//! | file | what |
//! |---|---|
//! | `runtime.rs` | the node and what its threads ask of it |
//! | `host.rs` | carries out the engine's effects |
//! | `service.rs` | the thread that serves other nodes while the program computes |
//! | `lulls.rs` | moments in which that thread has nothing to do, for engines that use them |
//! | `threads.rs` | the program's threads, and where they wait |
//! | `run.rs` | `hiroba_run` |
//! | `races.rs` | the host's part in looking for data races |
//! | `waits.rs`, `last_words.rs`, `call_site.rs`, `callers.rs` | what is said when a program has gone wrong |
//! | `control.rs`, `liveness.rs` | the channel to the launcher; signs of life |
//! | `arena.rs`, `heap.rs` | the `malloc` family |
//! | `program_calls.rs` | what the program's own system calls may do to how shared memory is mapped |
//! | `space.rs`, `layout.rs` | collective allocation; what lies where in the shared region |
//! | `follow.rs` | programs whose node 0 leads and whose other nodes follow (`tsm.h`) |
//! | `account.rs` | time and counts |
//! | `tracing.rs` | the record of a traced run |

mod account;
mod arena;
pub mod call_site;
mod callers;
mod control;
mod core_share;
mod error;
mod fabrics;
mod follow;
mod heap;
mod host;
mod last_words;
mod layout;
mod liveness;
mod lulls;
mod mapping;
mod one_sided;
mod patience;
mod program_calls;
/// The program's signal handlers, masks and stacks, which the faces stand before.
pub mod program_signals {
    pub use hiroba_memory::fault::{
        believed_blocked, exchange_program_action, exchange_program_stack, fault_signals,
        set_believed_blocked,
    };
}
mod races;
mod run;
mod runtime;
mod service;
mod signals;
mod space;
mod threads;
mod tracing;
mod waits;

/// Tells builds of one version apart: nodes of a job must be of one build.
pub const BUILD: &str = env!("HIROBA_BUILD");

pub use core_share::{CoreShare, core_share_of};
pub use error::NodeError;
pub use follow::Command;
pub use hiroba_protocol::{HomePolicy, Homes, Protocol};
pub use last_words::before_last_words;
pub use program_calls::{Extent, Locking, SharedPages};
pub use runtime::{Runtime, preflight};
pub use service::may_run_first;
pub use signals::{SignalsHeld, hold_signals_across_fork, release_signals_after_fork};
pub use space::AllocateError;
