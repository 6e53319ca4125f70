//! Tests of the paging room.

mod conformance;
mod lending;
mod models;
mod traces;
