//! What a run is started with.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use hiroba_wire::control::{CoherenceChoices, TransportChoices};

/// How the user names the machines to run on.
#[derive(Debug, Clone, PartialEq)]
pub enum HostsGiven {
    /// In a file.
    File(PathBuf),
    /// On the command line, with commas between them.
    List(String),
}

/// What the user is told of a run, beside what its program writes.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportOptions {
    /// Whether to print the table of statistics.
    pub statistics_table: bool,
    /// Where to write the statistics as JSON.
    pub statistics_json: Option<PathBuf>,
    /// The directory for the run's trace.
    pub trace: Option<PathBuf>,
    /// Whether to show live rates on the terminal.
    pub progress: bool,
    /// Whether to put the node in front of each line of output.
    pub label: bool,
}

/// `hiroba run`, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct RunOptions {
    /// Nodes of the job; of one on several hosts, only when they are known.
    pub nodes: u16,
    /// The same if it was given.
    pub nodes_asked: Option<u16>,
    /// Program threads a node.
    pub threads_per_node: u16,
    /// How memory is kept coherent.
    pub coherence: CoherenceChoices,
    /// What carries messages; never without seals by a command line, see
    /// [`UnsealedJob`](crate::bench::UnsealedJob).
    pub transport: TransportChoices,
    /// The node that runs under a debugger.
    pub debug: Option<u16>,
    /// What is told of the run.
    pub reports: ReportOptions,
    /// Variables to set in the nodes' environment.
    pub variables: Vec<(OsString, OsString)>,
    /// Whether to keep the processors awake while the job runs; `None`: where it is allowed.
    pub low_latency: Option<bool>,
    /// Whether each node gets processors of its own, where there are enough.
    pub bind: bool,
    /// How long a node or a host may be silent before it is taken for dead, zero for ever; `None`: the default.
    pub dead_after: Option<Duration>,
    /// The machines to run on, if not this one alone.
    pub hosts: Option<HostsGiven>,
    /// The command that starts a program on another machine, instead of ssh.
    pub launcher: Option<String>,
    /// The program as the user named it.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}
