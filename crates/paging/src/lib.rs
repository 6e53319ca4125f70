//! Page replacement: which page leaves when memory is short.
//!
//! A [`Policy`] knows which pages are in memory, is informed of their uses, and chooses the page that leaves
//! when room is needed. It moves nothing itself and queries nothing: its user passes it all information. So
//! the same policy runs in a node, over a recorded trace, and in the model of an old machine.
//!
//! Read `policy.rs` first, then the policies by year: `fifo.rs`, `clock.rs` (1968), `lru_scan.rs` (1981),
//! `lirs.rs` (2002), `s3_fifo.rs` (2023), `sieve.rs` (2024). `opt.rs` (1966) knows the future and is the
//! reference for comparison. [`replay`](fn@replay) runs a trace against a policy. `attempt0` is the machine
//! of Hattori, Yamamoto and Amano, on which FIFO and CLOCK were compared.
//!
//! `lending` is where pages go: into memory that other nodes lend. `streams.rs` finds the pages that will be
//! needed next, so that they come back before they are.

#![forbid(unsafe_code)]

pub mod attempt0;
mod clock;
mod fifo;
pub mod lending;
mod lirs;
mod lru_scan;
mod opt;
mod policy;
mod policy_kind;
mod queues;
mod replay;
mod s3_fifo;
mod sieve;
mod streams;

pub use clock::Clock;
pub use fifo::Fifo;
pub use lirs::Lirs;
pub use lru_scan::LruScan;
pub use opt::Opt;
pub use policy::Policy;
pub use policy_kind::{PolicyKind, UnknownPolicy};
pub use replay::{Reference, Traffic, replay};
pub use s3_fifo::S3Fifo;
pub use sieve::Sieve;
pub use streams::{Needs, Streams};
