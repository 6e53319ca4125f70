//! Tests fault sources and write tracking from outside. All tests are in one program, which is linked once;
//! `cargo test -p hiroba-memory --test all limits::` runs one file of it.

mod common;
mod conformance;
mod limits;
mod write_tracking;
