//! Coherence protocols as sans-IO engines.
//!
//! An [`Engine`] is a state machine. The host — a real node, or a simulator — tells it what happened
//! (`handle_*`) and carries out what it wants done ([`Engine::poll_effect`]). Engines do no IO, start no threads,
//! read no clock and touch no page: the same engine runs in a process per node and in a simulated cluster inside
//! one thread.
//!
//! Each protocol is one file that can be read beside its paper: start with [`hlrc`], or with [`sc`], the oldest.

#![forbid(unsafe_code)]

pub mod adaptive;
pub mod anticipation;
pub mod aurc;
pub mod barrier;
pub mod coherence;
pub mod cond;
mod consistency;
pub mod diff;
mod engine;
pub mod erc;
mod exclusive_runs;
mod fact;
pub mod hlrc;
pub mod home;
pub mod interval;
pub mod lock;
pub mod lrc;
pub mod outbox;
mod protocols;
pub mod races;
pub mod sc;
pub mod team;

pub use consistency::Consistency;
pub use engine::{
    Done, Effect, Engine, FAULTING_FROM_GRANULES, Misfit, Misuse, NewContent, Outcome, PageToSend,
    ProtocolError, ReadOutcome, Synchronisation, Waiter, WriteTracking,
};
pub use fact::Fact;
pub use home::HomePolicy;
pub use protocols::{Homes, Protocol};

fn unexpected(expected: &'static str, got: String) -> ProtocolError {
    ProtocolError::Unexpected { expected, got }
}
