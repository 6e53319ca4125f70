//! Checks protocols: a seeded simulator of clusters, which runs the programs of `hiroba-judge` on real
//! engines for its judges, and mutants, which are planted bugs that the judges must catch.
//!
//! * [`cluster`] runs a [`program`] on real engines over simulated memories and a [`network`], with either
//!   way of tracking writes, several threads per node and pages of several sizes; one seed reproduces a run.
//! * [`engines`] makes each protocol's engines. [`explore`] covers every interleaving of small programs,
//!   [`golden`] prints runs in a fixed order in the words of [`narration`], [`scale`] counts the messages of
//!   clusters of many nodes.
//! * [`swarm`] chooses program and conditions by one seed, [`shrink`] makes a failing case small.
//! * [`mutant`] contains planted bugs, each of which the suite must catch; [`fuzzing`] the targets that
//!   decode strangers' bytes.
//!
//! Run many seeds, or one again: `cargo run --release -p hiroba-check --example swarm -- 0..100000` and `… --
//! SEED`. See `docs/CHECKER.md`.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod engines;
pub mod explore;
pub mod fuzzing;
pub mod golden;
pub mod memory;
pub mod mutant;
pub mod narration;
pub mod network;
pub mod scale;
pub mod shrink;
pub mod swarm;

// The programs that the simulator runs, and the judges of its runs, under the names that they have there.
pub use hiroba_judge::{
    axioms, execution, litmus, page_axioms, program, random_program, reading, sequential,
};
