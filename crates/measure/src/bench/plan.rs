//! Describes what to measure.

use hiroba_wire::FabricKind;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The options of `hiroba bench`, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchOptions {
    /// What to measure.
    pub groups: Vec<Group>,
    /// Nodes of the measured job.
    pub nodes: u16,
    /// The fabric that carries the messages.
    pub fabric: FabricKind,
    /// The value on the command line.
    pub fault_source: Option<String>,
    /// The value on the command line.
    pub write_tracking: Option<String>,
    /// Whether to repeat fewer times.
    pub quick: bool,
    /// Whether messages are not encrypted.
    pub without_seal: bool,
    /// Whether the rows are printed as Markdown.
    pub markdown: bool,
    /// Where to write the rows as JSON.
    pub json: Option<PathBuf>,
}

/// The arguments of the hidden subcommand `bench-job`.
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
    /// Whether to repeat fewer times.
    pub quick: bool,
    /// The fabric that carries the messages.
    pub fabric: FabricKind,
    /// Fault source and write tracking, as text.
    pub setting: String,
    /// Whether messages are not encrypted.
    #[serde(default)]
    pub without_seal: bool,
}

impl BenchPlan {
    /// Returns true if the job's messages are encrypted.
    pub fn is_sealed(&self) -> bool {
        self.fabric.is_sealed() && !self.without_seal
    }

    /// Returns `full`, or a quarter of it if the measurement is to be quick.
    pub fn times(&self, full: usize) -> usize {
        if self.quick { full.div_ceil(4) } else { full }
    }
}

/// A group of measurements.
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
    /// Remote pages read one after another.
    Stream,
    /// Releases after writing pages.
    Release,
    /// Messages to ports.
    Ports,
    /// Where the time of a message to a port goes.
    Stages,
    /// Pages written while a node computes, and what remains to be sent at the release.
    Updates,
    /// Barriers, faults and locks of a C program.
    Program,
    /// Comparison of a page with its twin.
    Diff,
    /// The cost of one node for a program.
    Compute,
    /// Where the time of one message goes.
    #[cfg(feature = "legs")]
    Legs,
}

impl Group {
    /// All groups, in the order in which they are measured.
    pub const ALL: &[Group] = &[
        Group::Fault,
        Group::Barrier,
        Group::Lock,
        Group::Atomic,
        Group::Stream,
        Group::Release,
        Group::Ports,
        Group::Stages,
        Group::Updates,
        Group::Program,
        Group::Diff,
        Group::Compute,
        #[cfg(feature = "legs")]
        Group::Legs,
    ];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Group::Fault => "fault",
            Group::Barrier => "barrier",
            Group::Lock => "lock",
            Group::Atomic => "atomic",
            Group::Stream => "stream",
            Group::Release => "release",
            Group::Ports => "ports",
            Group::Stages => "stages",
            Group::Updates => "updates",
            Group::Program => "program",
            Group::Diff => "diff",
            Group::Compute => "compute",
            #[cfg(feature = "legs")]
            Group::Legs => "legs",
        }
    }
}
