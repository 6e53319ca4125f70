//! What starts jobs and watches them, for the `hiroba` command and for its measurements.
//!
//! * [`run`] starts a program on the nodes of a job, watches them, passes their output on and leaves nothing
//!   behind; [`compiler`] compiles programs for it.
//! * While a job runs, [`progress`] shows rates, and [`silence`] says that a command still works. At its end
//!   [`statistics_table`], [`explanation`] and [`core_share`] say how it went; [`symbols`] names places in
//!   programs.
//! * [`failure`], [`columns`], [`quantities`], [`lines`] and [`output_file`] are how commands speak, read and
//!   write.

pub mod columns;
pub mod compiler;
pub mod core_share;
pub mod explanation;
pub mod failure;
pub mod lines;
pub mod output_file;
pub mod progress;
pub mod quantities;
pub mod run;
pub mod silence;
pub mod statistics_table;
pub mod symbols;
