//! What to measure.

use hiroba_wire::FabricKind;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `hiroba bench`, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchOptions {
    /// What to measure.
    pub groups: Vec<Group>,
    /// Nodes of the measured job.
    pub nodes: u16,
    /// What carries the messages.
    pub fabric: FabricKind,
    /// As on the command line.
    pub fault_source: Option<String>,
    /// As on the command line.
    pub write_tracking: Option<String>,
    /// Fewer repetitions.
    pub quick: bool,
    /// Messages bear no seal.
    pub without_seal: bool,
    /// Where to write the rows as JSON.
    pub json: Option<PathBuf>,
}

/// What a node of the measured job does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BenchPlan {
    /// What to measure, in this order.
    pub groups: Vec<Group>,
    /// Fewer repetitions.
    pub quick: bool,
    /// What carries the messages.
    pub fabric: FabricKind,
    /// Fault source and write tracking, in words.
    pub setting: String,
}

impl BenchPlan {
    /// So many repetitions, or fewer when it shall be quick.
    pub fn times(&self, full: usize) -> usize {
        if self.quick { full.div_ceil(4) } else { full }
    }
}

/// Things that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// Read and write faults.
    Fault,
    /// Barriers.
    Barrier,
    /// Locks.
    Lock,
    /// Atomic operations.
    Atomic,
    /// Remote pages in a row.
    Stream,
    /// Releases with pages written before.
    Release,
    /// Pages written while a node computes, and what of them is left to send at the release.
    Updates,
    /// A page against its twin.
    Diff,
    /// What one node costs a program.
    Compute,
}

impl Group {
    /// All, in the order in which they are measured.
    pub const ALL: [Group; 9] = [
        Group::Fault,
        Group::Barrier,
        Group::Lock,
        Group::Atomic,
        Group::Stream,
        Group::Release,
        Group::Updates,
        Group::Diff,
        Group::Compute,
    ];

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Group::Fault => "fault",
            Group::Barrier => "barrier",
            Group::Lock => "lock",
            Group::Atomic => "atomic",
            Group::Stream => "stream",
            Group::Release => "release",
            Group::Updates => "updates",
            Group::Diff => "diff",
            Group::Compute => "compute",
        }
    }
}
