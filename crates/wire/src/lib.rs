//! Messages between nodes, and between nodes and the launcher.
//!
//! Every message is an enum variant encoded by [postcard](https://postcard.jamesmunns.com/wire-format.html)
//! (a variant number, then fields as varints and length-prefixed bytes). Decoding invalid bytes returns a
//! [`WireError`], never panics, and never allocates more than the bytes that arrived.

pub mod agent;
mod collective;
pub mod control;
mod error;
mod fabric_kind;
mod intervals;
mod limits;
mod message;
mod moves;
mod pages;
mod payload;
mod secret;

pub use collective::{CONTRIBUTION_BYTES_MAX, Collective, Contribution, Placement, ProtocolNumber};
pub use error::WireError;
pub use fabric_kind::{Descriptors, FabricKind};
pub use intervals::{IntervalDiff, IntervalNotice, Knowledge, PageDiff, TouchedPage};
pub use limits::{Limits, PROGRAM_DATA_BYTES_MAX};
pub use message::{AtomicOperation, AtomicOutcome, Message, Ticket};
pub use moves::{HomeMoves, MOVES_PER_HOME_MAX, MoveKind, PageHandedOver, PagesHeld};
pub use pages::{PAGES_PER_MESSAGE_MAX, PageCopy, PageOwned, PagesWanted};
pub use payload::{Payload, joined};
pub use secret::Secret;
