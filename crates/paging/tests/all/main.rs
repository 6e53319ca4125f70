//! Tests of the paging room.

mod conformance;
mod models;
mod traces;
