//! Checks protocols and runs: litmus programs, a seeded cluster simulator, an axiomatic checker, and mutants,
//! which are planted bugs that the checkers must catch.
//!
//! * [`program`] is the language of litmus programs, [`litmus`] the catalogue, [`random_program`] a generator
//!   of data-race-free programs with much false sharing.
//! * [`cluster`] runs a program on real engines over simulated memories and a [`network`], with either way of
//!   tracking writes, several threads per node and pages of several sizes; one seed reproduces a run.
//! * [`execution`] is the input of the checkers: [`axioms`] checks accesses byte by byte, [`sequential`]
//!   checks sequential consistency, [`page_axioms`] checks what nodes did to pages. [`reading`] reads traces
//!   of real runs.
//! * [`engines`] states what each protocol promises. [`explore`] covers every interleaving of small programs,
//!   [`golden`] prints runs in a fixed order in the words of [`narration`], [`scale`] counts the messages of
//!   clusters of many nodes.
//! * [`swarm`] chooses program and conditions by one seed, [`shrink`] makes a failing case small.
//! * [`mutant`] contains planted bugs, each of which the suite must catch; [`fuzzing`] the targets that
//!   decode strangers' bytes.
//!   strangers' bytes.
//!
//! Run many seeds, or one again: `cargo run --release -p hiroba-check --example swarm -- 0..100000` and `… --
//! SEED`. See `docs/CHECKER.md`.

#![forbid(unsafe_code)]

pub mod axioms;
pub mod cluster;
pub mod engines;
pub mod execution;
pub mod explore;
pub mod fuzzing;
pub mod golden;
pub mod litmus;
pub mod memory;
pub mod mutant;
pub mod narration;
pub mod network;
pub mod page_axioms;
pub mod program;
pub mod random_program;
pub mod reading;
pub mod scale;
pub mod sequential;
pub mod shrink;
pub mod swarm;
