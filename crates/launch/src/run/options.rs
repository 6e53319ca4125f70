//! The options of a run.

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

/// What is reported of a run, beside the output of its program.
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

/// The options of `hiroba run`, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct RunOptions {
    /// Nodes of the job; for a job on several hosts, valid only when the hosts have answered.
    pub nodes: u16,
    /// The number after -n, if it was given.
    pub nodes_asked: Option<u16>,
    /// Program threads on each node.
    pub threads_per_node: u16,
    /// How memory is kept coherent.
    pub coherence: CoherenceChoices,
    /// How messages travel. A command line cannot turn encryption off; only the command's own measurements
    /// do.
    pub transport: TransportChoices,
    /// The node that runs under a debugger.
    pub debug: Option<u16>,
    /// The reports on the run.
    pub reports: ReportOptions,
    /// Whether the program is an executable that was not built for Hiroba.
    pub pthread: bool,
    /// Whether it is one of OpenMP, too.
    pub openmp: bool,
    /// Variables to set in the nodes' environment.
    pub variables: Vec<(OsString, OsString)>,
    /// Whether to keep the processors awake while the job runs; `None` does so if it is allowed.
    pub low_latency: Option<bool>,
    /// Whether each node gets processors of its own, if there are enough.
    pub bind: bool,
    /// How long a node or a host may be silent before it is considered dead; zero disables this, `None` is
    /// the default.
    pub dead_after: Option<Duration>,
    /// The machines to run on, if not only this one.
    pub hosts: Option<HostsGiven>,
    /// The command that starts a program on another machine, instead of ssh.
    pub launcher: Option<String>,
    /// The program as the user named it.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}
