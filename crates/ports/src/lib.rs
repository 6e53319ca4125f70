//! Ports in the manner of Mach between the threads of a job's nodes.
//!
//! A *port* is a queue of messages that one node receives from; a *right* to it is held by name in one node's
//! table, and moves and multiplies by messages alone. The semantics are those of the GNU Mach reference
//! manual; the protocol between nodes is that of NORMA IPC/DE (Sugawara et al., 1996): memory is reserved
//! before anything is sent, so nothing is ever dropped, a request can always be received, and small messages
//! ride on it.
//!
//! [`Engine`] is one node's part, without IO, threads or clock. Read `engine/sending.rs` beside section 5.2
//! of the paper, then `engine/admitting.rs`, which is the other side; `engine/rights.rs` is about who holds
//! what, `engine/moving.rs` about receive rights that change nodes, `engine/circles.rs` about those that are
//! in each other's queues, and `engine/deaths.rs` about nodes that die.
//!
//! # Deviations from the paper
//!
//! - A request whose port's queue is full is answered at once (`Wait`), and only who asked is kept, so
//!   requests of other ports never stand behind it. Small messages travel again when there is room.
//! - Long messages move in a sliding window, and the receiver has reserved memory for all of it: no turn of
//!   eight pages.
//! - Word of messages taken rides on other packets, or goes by itself after a moment (the paper's section 7).
//!
//! # Deviations from the manual
//!
//! - A node has one name space. `insert` and `extract` work within it.
//! - While a call waits for room, the message's rights stay with the caller's names, and are looked at again
//!   when there is some: a call that fails has taken nothing.
//! - A message longer than the receiver allows stays in the queue, always.
//! - Messages by a send right and by a send-once right of one port are not ordered among each other.
//! - Receive rights in each other's queues are destroyed soon after the last of them was sent, not by that
//!   call.

#![forbid(unsafe_code)]

mod audit;
mod body;
mod effect;
mod engine;
mod error;
pub mod fuzzing;
mod id;
mod known;
mod message;
mod names;
pub mod service;
pub mod wire;

pub use audit::{Audit, PortAudit};
pub use effect::{Call, Effect, Notification, Outcome, Patience, Status, right};
pub use engine::{Config, Engine};
pub use error::{PeerError, PortError};
pub use id::{Name, Once, PortId, Ticket};
pub use message::{
    DataType, Disposition, Message, Received, RightKind, RightReceived, RightToSend, notification,
};
pub use service::NAME_BYTES_MAX;
