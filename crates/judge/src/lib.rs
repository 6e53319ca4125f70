//! Litmus programs, and the judges of runs: of what the threads of a program saw of memory, and of what nodes
//! did to pages. A run is that of real nodes or of simulated ones.
//!
//! * [`program`] is the language of litmus programs, [`litmus`] the catalogue, [`random_program`] a generator
//!   of data-race-free programs with much false sharing.
//! * [`execution`] is the input of the judges: [`axioms`] checks accesses byte by byte, [`sequential`] checks
//!   sequential consistency, [`page_axioms`] checks what nodes did to pages. [`reading`] reads traces of real
//!   runs.
//! * [`promise`] states what each protocol promises.
//!
//! The crate `hiroba-check` contains the simulator, and tests the judges with runs of it. See
//! `docs/CHECKER.md`.

#![forbid(unsafe_code)]

pub mod axioms;
pub mod execution;
pub mod litmus;
pub mod page_axioms;
pub mod program;
pub mod promise;
pub mod random_program;
pub mod reading;
pub mod sequential;
