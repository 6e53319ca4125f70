//! Tests of schedules: a simulated team whose clocks the tests set, and teams of real threads.

mod kinds;
mod measured;
mod once;
mod places;
mod ranges;
mod team;
