//! One running node: a fault becomes an engine's business, its effects become messages, frames and protection, and the
//! thread goes on.
//!
//! [`Runtime::join`] puts the process into its job; the faces (the C library) call its methods. Inside:
//!
//! | file | what |
//! |---|---|
//! | `runtime.rs` | the node and what its threads ask of it; what extends it stands below it: |
//! | `runtime/host.rs` | carries out the engine's effects; `host/races.rs`: its part in looking for data races |
//! | `runtime/service.rs` | the thread that serves other nodes while the program computes |
//! | `runtime/lulls.rs` | moments in which that thread has nothing to do, for engines that use them |
//! | `runtime/run.rs` | `hiroba_run` |
//! | `runtime/{waits,last_words}.rs`, `call_site.rs`, `callers.rs` | what is said when a program has gone wrong |
//! | `runtime/liveness.rs`, `control.rs` | signs of life; the channel to the launcher |
//! | `runtime/heap.rs`, `arena.rs` | the `malloc` family |
//! | `runtime/program_calls.rs` | what the program's own system calls may do to how shared memory is mapped |
//! | `runtime/space.rs`, `layout.rs` | collective allocation; what lies where in the shared region |
//! | `runtime/follow.rs` | programs whose node 0 leads and whose other nodes follow (`tsm.h`) |
//! | `runtime/tracing.rs` | the record of a traced run |
//! | `threads.rs` | the program's threads, and where they wait |
//! | `account.rs`, `stalls.rs`, `time_class.rs` | time and counts |

mod account;
mod arena;
mod budget;
pub mod call_site;
mod callers;
mod control;
mod core_share;
mod error;
mod layout;
mod patience;
/// The program's signal handlers, masks and stacks, which the faces stand before.
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
mod threads;
mod time_class;
mod timers;

/// Tells builds of one version apart: nodes of a job must be of one build.
pub const BUILD: &str = env!("HIROBA_BUILD");

pub use core_share::{CoreShare, core_share_of};
pub use error::NodeError;
pub use hiroba_ports as ports;
pub use hiroba_protocol::{HomePolicy, Homes, Protocol};
pub use runtime::follow::Command;
pub use runtime::last_words::before_last_words;
pub use runtime::program_calls::{Extent, Locking, SharedPages};
pub use runtime::service::may_run_first;
pub use runtime::space::AllocateError;
pub use runtime::{Runtime, preflight};
pub use signals::{
    SignalsHeld, expect_handler_of, hold_signals_across_fork, release_signals_after_fork,
    release_signals_in_child,
};
