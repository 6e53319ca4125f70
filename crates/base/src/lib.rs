//! Nouns that every room of Hiroba shares.
//!
//! This crate knows nothing of networks, threads, clocks or operating systems: the
//! protocol engines are built from these types alone, so that one engine runs in a real
//! node, in the litmus simulator and in a virtual cluster.

#![forbid(unsafe_code)]

mod changes;
mod code_site;
mod id;
pub mod legs;
mod page;
mod printable;
mod random;
mod time;
mod timestamp;

pub use changes::{BLOCK_BYTES, BLOCK_LINES, BlockChanges, ChangedBytes, LINE_BYTES};
pub use code_site::CodeSite;
pub use id::{CondId, IntervalSeq, LockId, MAX_NODES, NodeId};
pub use page::{Access, PageId, PageRange, PageSet, PageSize, PageSizeError};
pub use printable::printable;
pub use random::{Prng, RngExt, seeded};
pub use time::Instant;
pub use timestamp::{VectorTimestamp, VersionVector};
