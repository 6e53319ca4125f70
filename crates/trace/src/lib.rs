//! What a run leaves behind: the account (where each node's time went, and its counters), and the trace
//! (which thread did what, and when).
//!
//! The breakdown of time is that of Barli, Watanabe, Sakai and Tanaka: computing, read faults, write faults,
//! barriers, locks, and serving others. The JSON form is part of the contract with users; fields are only
//! ever added.

#![forbid(unsafe_code)]

mod codec;
mod directory;
mod event;
mod file;
mod statistics;

pub use directory::{Job, Trace, create, node_file, node_file_name, open};
pub use event::{Activity, Event, MessageKind, Record, ThreadNumber};
pub use file::{CHUNK_BYTES_MAX, Ending, FORMAT_VERSION, Header, TraceError, TraceReader, TraceWriter};
pub use statistics::{Counters, NodeStatistics, RegionStatistics, RunStatistics, TimeBreakdown, Totals};
