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
    /// The rows are printed as Markdown.
    pub markdown: bool,
    /// Where to write the rows as JSON.
    pub json: Option<PathBuf>,
}

/// What the hidden subcommand `bench-job` is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnsealedJob {
    /// Options of `hiroba run`.
    pub arguments: Vec<String>,
    /// What the nodes measure.
    pub plan: BenchPlan,
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
    /// Messages bear no seal.
    #[serde(default)]
    pub without_seal: bool,
}

impl BenchPlan {
    /// Returns true if the job's messages bear seals.
    pub fn is_sealed(&self) -> bool {
        self.fabric.is_sealed() && !self.without_seal
    }

    /// Returns `full`, or a quarter of it where the measurement is to be quick.
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
    /// Messages to ports.
    Ports,
    /// Pages written while a node computes, and what of them is left to send at the release.
    Updates,
    /// Barriers, faults and locks of a C program.
    Program,
    /// A page against its twin.
    Diff,
    /// What one node costs a program.
    Compute,
    /// Where the time of one message goes.
    #[cfg(feature = "legs")]
    Legs,
}

impl Group {
    /// All, in the order in which they are measured.
    pub const ALL: &[Group] = &[
        Group::Fault,
        Group::Barrier,
        Group::Lock,
        Group::Atomic,
        Group::Stream,
        Group::Release,
        Group::Ports,
        Group::Updates,
        Group::Program,
        Group::Diff,
        Group::Compute,
        #[cfg(feature = "legs")]
        Group::Legs,
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
            Group::Ports => "ports",
            Group::Updates => "updates",
            Group::Program => "program",
            Group::Diff => "diff",
            Group::Compute => "compute",
            #[cfg(feature = "legs")]
            Group::Legs => "legs",
        }
    }
}
