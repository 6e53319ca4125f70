//! What nodes say to each other and to the launcher.
//!
//! Every message is an enum variant encoded by [postcard](https://postcard.jamesmunns.com/wire-format.html)
//! (a variant number, then fields as varints and length-prefixed bytes). Decoding bad bytes gives a
//! [`WireError`], never a panic, and never allocates more than the bytes that came.

pub mod agent;
pub mod control;
mod error;
mod message;
mod moves;
mod pages;

pub use error::WireError;
pub use message::{
    AtomicOperation, AtomicOutcome, Collective, IntervalDiff, IntervalNotice, Knowledge, Limits, Message,
    PageDiff, Placement, ProtocolNumber, Ticket, WrittenPage,
};
pub use moves::{HomeMoves, MOVES_PER_HOME_MAX, PageHandedOver, PagesHeld};
pub use pages::{PAGES_PER_MESSAGE_MAX, PageCopy, PagesWanted};
