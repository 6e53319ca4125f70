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
//! | `slot.rs` | threads that wait |
//! | `control.rs` | the channel to the launcher |
//! | `arena.rs`, `heap.rs` | the `malloc` family |
//! | `layout.rs` | what lies where in the shared region |
//! | `follow.rs` | programs whose node 0 leads and whose other nodes follow (`tsm.h`) |
//! | `account.rs` | time and counts |

mod account;
mod arena;
mod control;
mod error;
mod follow;
mod heap;
mod host;
mod layout;
mod runtime;
mod service;
mod signals;
mod slot;

pub use error::NodeError;
pub use follow::Command;
pub use runtime::{AllocateError, Runtime, preflight};
