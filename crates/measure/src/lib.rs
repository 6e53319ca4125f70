//! Measurements on this machine: [`mod@bench`] measures what Hiroba's primitives cost, [`reproduce`] prints a
//! paper's tables. Both run jobs of the `hiroba` command.

pub mod bench;
pub mod reproduce;
