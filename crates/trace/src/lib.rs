//! The account of a run: where each node's time went and what it counted.
//!
//! The breakdown is that of Barli, Watanabe, Sakai and Tanaka: computing, read faults, write faults, barriers,
//! locks, and serving others. The JSON form is part of the contract with users; fields are only ever added.

mod statistics;

pub use statistics::{Counters, NodeStatistics, RunStatistics, TimeBreakdown, Totals};
