//! Coherence protocols as sans-IO engines.
//!
//! An [`Engine`] is a state machine. The host — a real node, or a simulator — reports events to it
//! (`handle_*`) and carries out its effects ([`Engine::poll_effect`]). Engines do no IO, start no threads,
//! read no clock and touch no page: the same engine runs in a process per node and in a simulated cluster
//! inside one thread.
//!
//! Each protocol is one file that can be read beside its paper: start with [`hlrc`], or with [`sc`], the
//! oldest.

#![forbid(unsafe_code)]

pub mod adaptive;
pub mod anticipation;
pub mod aurc;
pub mod barrier;
mod batches;
pub mod coherence;
mod coherences;
pub mod cond;
mod consistency;
pub mod diff;
mod effect;
mod engine;
pub mod erc;
mod error;
mod exclusive_runs;
mod fact;
pub mod hlrc;
pub mod home;
pub mod interval;
pub mod lease;
pub mod lock;
pub mod lrc;
mod moves;
pub mod outbox;
mod page_table;
mod protocols;
pub mod races;
pub mod sc;
mod subject;
pub mod team;
mod thread;
mod words;

pub use consistency::Consistency;
pub use effect::{Done, Effect, FAULTING_FROM_GRANULES, NewContent, PageToSend, ReadOutcome, WriteTracking};
pub use engine::Engine;
use error::unexpected;
pub use error::{Expected, Misfit, ProtocolError};
pub use fact::Fact;
pub use home::HomePolicy;
pub use protocols::{Homes, Protocol};
pub use thread::{Misuse, Outcome, Synchronisation, Waiter};
