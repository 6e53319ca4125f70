//! How the iterations of a loop are given out to the threads of a team, and threads to processors. Only
//! computes: words that threads share are atomics of the caller's, and so is the clock.
//!
//! - `range.rs`: a loop's iterations, numbered from 0, and the values of its variable.
//! - `kind.rs`: the schedules, and how the environment names them.
//! - `a_loop.rs`: a loop as one thread sees it, and the next chunk of each schedule.
//! - `batches.rs`: `dynamic` and `guided` without a queue of the team: nodes claim batches of chunks.
//! - `factoring.rs`: chunks that halve from round to round, weighted or not.
//! - `weights.rs`: parts in proportion to the threads' speeds, and what other parts would gain.
//! - `profiled.rs`, `site.rs`: the schedule that measures speeds, and what a loop keeps of them.
//! - `revised.rs`: its first execution, which looks at speeds again.
//! - `places.rs`: sets of processors, and the threads that are bound to them.

#![forbid(unsafe_code)]

mod a_loop;
mod batches;
mod factoring;
mod kind;
mod places;
mod profiled;
mod range;
mod revised;
mod shared;
mod site;
mod weights;

pub use a_loop::{Loop, WORDS};
pub use kind::{Given, Kind, parse};
pub use places::{Binding, Processor, places};
pub use range::Range;
pub use shared::{Shared, Slots, Team};
pub use site::{RING, Site};
pub use weights::gain;
