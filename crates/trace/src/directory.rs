//! A traced run as a directory: `job.json`, and a file a node.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use hiroba_base::{MAX_NODES, NodeId};
use serde::{Deserialize, Serialize};

use crate::file::{FORMAT_VERSION, TraceError, TraceReader};

/// What `job.json` says: how the run came about, and how it ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The version of the traces' format.
    pub format: u32,
    /// The program as it was named on the command line.
    pub program: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Nodes of the job.
    pub nodes: u16,
    /// Program threads a node.
    pub threads_per_node: u16,
    /// The coherence protocol.
    pub protocol: String,
    /// The fabric.
    pub fabric: String,
    /// The coherence unit of regions that do not choose their own, in bytes.
    pub page_bytes: u32,
    /// The run's exit status; none while it runs, and for ever if the launcher was killed.
    pub exit_status: Option<u8>,
}

/// The name of the file that describes the job.
const JOB_FILE: &str = "job.json";

/// `job.json` is no longer than this.
const JOB_BYTES_MAX: u64 = 4 << 20;

impl Job {
    /// Writes `job.json`, in place of an earlier one.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, directory: &Path) -> Result<(), TraceError> {
        let path = directory.join(JOB_FILE);
        let mut json =
            serde_json::to_vec_pretty(self).map_err(|error| system("write", &path, error.into()))?;
        json.push(b'\n');
        // Whoever reads it meanwhile finds the earlier one or this one, whole.
        let draft = directory.join(format!("{JOB_FILE}.new"));
        let written = fs::write(&draft, json).and_then(|()| fs::rename(&draft, &path));
        written.map_err(|error| {
            let _ = fs::remove_file(&draft);
            system("write", &path, error)
        })
    }
}

fn system(action: &str, path: &Path, source: std::io::Error) -> TraceError {
    TraceError::System { action: format!("{action} '{}'", path.display()), source }
}

/// Where the trace of a node stands.
pub fn node_file(directory: &Path, node: NodeId) -> PathBuf {
    directory.join(format!("node-{node}.trace"))
}

/// A traced run.
#[derive(Debug)]
pub struct Trace {
    directory: PathBuf,
    job: Job,
}

impl Trace {
    /// Opens the directory of a run. The nodes' traces are opened one by one, by [`node`](Trace::node).
    ///
    /// # Errors
    /// When it holds no description of a job that this version can read.
    pub fn open(directory: &Path) -> Result<Trace, TraceError> {
        let path = directory.join(JOB_FILE);
        let unfit = |expected: &str, got: String| TraceError::Directory {
            directory: directory.display().to_string(),
            expected: expected.to_owned(),
            got,
        };
        let length = fs::metadata(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                unfit("a traced run (`hiroba run --trace DIR` writes one)", format!("no file {JOB_FILE}"))
            }
            _ => system("read", &path, error),
        })?;
        if length.len() > JOB_BYTES_MAX {
            return Err(unfit("a short file job.json", format!("one of {} bytes", length.len())));
        }
        let json = fs::read(&path).map_err(|error| system("read", &path, error))?;
        let job: Job = serde_json::from_slice(&json)
            .map_err(|error| unfit("a description of a job in job.json", error.to_string()))?;
        if job.format != FORMAT_VERSION {
            return Err(TraceError::Version { got: job.format });
        }
        if !(1..=MAX_NODES).contains(&job.nodes) {
            return Err(unfit("1 to 4096 nodes in job.json", job.nodes.to_string()));
        }
        Ok(Trace { directory: directory.to_owned(), job })
    }

    /// How the run came about, and how it ended.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The trace of a node of the job.
    ///
    /// # Errors
    /// When there is none that this version can read, or it is another node's or another job's.
    pub fn node(&self, node: NodeId) -> Result<TraceReader<BufReader<File>>, TraceError> {
        let path = node_file(&self.directory, node);
        let reader = open(&path)?;
        let header = reader.header();
        if (header.node, header.nodes) != (node, self.job.nodes) {
            return Err(TraceError::Directory {
                directory: self.directory.display().to_string(),
                expected: format!("the trace of node {node} of {} nodes", self.job.nodes),
                got: format!("that of node {} of {}", header.node, header.nodes),
            });
        }
        Ok(reader)
    }
}

/// Opens one node's trace.
///
/// # Errors
/// When it is none that this version can read.
pub fn open(path: &Path) -> Result<TraceReader<BufReader<File>>, TraceError> {
    let file = File::open(path).map_err(|error| system("open", path, error))?;
    TraceReader::new(BufReader::with_capacity(64 << 10, file))
}
