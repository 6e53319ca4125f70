//! The oracle: litmus programs, a seeded cluster simulator, an axiomatic checker, and mutants that prove it awake.
//!
//! * [`program`] is the language of litmus programs, [`litmus`] the catalogue, [`random_program`] a generator of
//!   data-race-free programs with much false sharing.
//! * [`cluster`] runs a program on real engines over simulated memories and a [`network`], with either way of tracking
//!   writes, several threads a node and pages of several sizes; one seed reproduces a run.
//! * [`axioms`] judges a recorded execution, simulated or real.
//! * [`mutant`] holds planted bugs, each of which the suite must notice.
//!
//! More seeds than the tests' default: `HIROBA_CHECK_SEEDS=100000 cargo test --release -p hiroba-check --test
//! random_programs`. A failure names its seed; `HIROBA_CHECK_FIRST_SEED=SEED HIROBA_CHECK_SEEDS=1` with the same command
//! runs it again.

pub mod axioms;
pub mod cluster;
pub mod execution;
pub mod fuzzing;
pub mod litmus;
pub mod memory;
pub mod mutant;
pub mod network;
pub mod page_axioms;
pub mod program;
pub mod random_program;
pub mod reading;
pub mod sequential;
pub mod shrink;
pub mod swarm;
