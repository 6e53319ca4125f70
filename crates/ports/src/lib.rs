//! Ports in the manner of Mach between the threads of a job's nodes.
//!
//! A *port* is a queue of messages that one node receives from. A *right* to it has a name in one node's
//! table, and is moved and copied only by messages. The semantics are those of the GNU Mach reference manual;
//! the protocol between nodes is that of NORMA IPC/DE (Sugawara et al., 1996): memory is reserved before data
//! are sent, so no message is ever dropped, a request can always be received, and carries small messages.
//!
//! [`Engine`] is one node's part, without IO, threads or clock. Read `engine/sending.rs` beside section 5.2
//! of the paper, then `engine/admitting.rs`, which is the other side. `engine/rights.rs` tracks which nodes
//! have which rights, `engine/moving.rs` moves receive rights between nodes, `engine/circles.rs` finds those
//! that are in each other's queues, and `engine/deaths.rs` handles nodes that die.
//!
//! # Deviations from the paper
//!
//! - A request whose port's queue is full is answered at once (`Wait`), and only its flow is noted, so
//!   requests for other ports never wait behind it. Small messages are sent again when there is room.
//! - Long messages move in a sliding window, and the receiver has reserved memory for the whole message:
//!   there are no rounds of eight pages.
//! - Reports that messages were taken are carried by other packets, or sent alone after a short delay (the
//!   paper's section 7).
//!
//! # Deviations from the manual
//!
//! - A node has one name space. `insert` and `extract` work within it.
//! - While a call waits for room, the message's rights stay with the caller's names, and are checked again
//!   when there is room: a call that fails has taken nothing.
//! - A message longer than the receiver allows always stays in the queue.
//! - Messages by a send right and by a send-once right of one port are not ordered with each other.
//! - Receive rights in each other's queues are destroyed soon after the last of them was sent, not by that
//!   call.

#![forbid(unsafe_code)]

mod agenda;
mod audit;
mod body;
mod effect;
mod engine;
mod error;
pub mod fuzzing;
mod id;
mod known;
mod landing;
mod message;
mod names;
mod region;
pub mod service;
pub mod wire;

pub use audit::{Audit, PortAudit};
pub use effect::{Call, Effect, Landing, Notification, Outcome, Patience, Status, Tail, right};
pub use engine::{Config, Engine};
pub use error::{PeerError, PortError};
pub use id::{Name, Once, PortId, Ticket};
pub use landing::{Ground, PLACE_BYTES, UNIT_BYTES};
pub use message::{
    DataType, Disposition, Message, Received, RightKind, RightReceived, RightToSend, notification,
};
pub use region::{Bytes, Region};
pub use service::NAME_BYTES_MAX;
