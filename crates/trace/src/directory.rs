//! A traced run as a directory: `job.json`, and a file for each node.
//!
//! Files are made relative to the directory's descriptor, newly and for their owner only: existing files and
//! links under their names are neither followed nor overwritten. Readers accept only regular files of limited
//! length.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use hiroba_base::{MAX_NODES, NodeId};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, renameat, unlinkat};
use serde::{Deserialize, Serialize};

use crate::file::{FORMAT_VERSION, TraceError, TraceReader};

/// The content of `job.json`: how the run was started, and how it ended.
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
    /// Program threads on each node.
    pub threads_per_node: u16,
    /// The coherence protocol.
    pub protocol: String,
    /// The fabric.
    pub fabric: String,
    /// The coherence unit of regions that do not choose their own, in bytes.
    pub page_bytes: u32,
    /// The run's exit status; `None` while it runs, and for good if the launcher was killed.
    pub exit_status: Option<u8>,
}

/// The name of the file that describes the job.
const JOB_FILE: &str = "job.json";

/// The maximum length of `job.json`.
const JOB_BYTES_MAX: u64 = 4 << 20;

/// The name of `job.json` until it is complete.
const JOB_DRAFT: &str = "job.json.new";

impl Job {
    /// Writes `job.json` into an open directory, in place of an earlier one.
    ///
    /// # Errors
    /// Those of the system, for example if a file or a link exists under the name of the draft.
    pub fn write(&self, directory: impl AsFd) -> Result<(), TraceError> {
        let failed = |source| TraceError::System { action: format!("write '{JOB_FILE}'"), source };
        let mut json = serde_json::to_vec_pretty(self).map_err(|error| failed(error.into()))?;
        json.push(b'\n');
        let mut draft = create(&directory, JOB_DRAFT).map_err(failed)?;
        // A reader finds either the earlier file or this one, complete.
        let renamed = || renameat(&directory, JOB_DRAFT, &directory, JOB_FILE).map_err(io::Error::from);
        draft.write_all(&json).and_then(|()| renamed()).map_err(|error| {
            let _ = unlinkat(&directory, JOB_DRAFT, AtFlags::empty());
            failed(error)
        })
    }
}

/// Makes a new file in an open directory, which only its owner may read and write.
///
/// # Errors
/// Those of the system. Anything that exists under that name is an error, including a symbolic link.
pub fn create(directory: impl AsFd, name: &str) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(directory, name, flags, Mode::RUSR | Mode::WUSR).map(File::from)?)
}

fn system(action: &str, path: &Path, source: io::Error) -> TraceError {
    TraceError::System { action: format!("{action} '{}'", path.display()), source }
}

/// Returns the name of a node's trace in its directory.
pub fn node_file_name(node: NodeId) -> String {
    format!("node-{node}.trace")
}

/// Returns the path of a node's trace.
pub fn node_file(directory: &Path, node: NodeId) -> PathBuf {
    directory.join(node_file_name(node))
}

/// Opens a regular file for reading. Refuses everything else that a directory may contain (a pipe without a
/// writer, a device without an end) without waiting for it.
fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(openat(CWD, path, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "expected a regular file, got something else under that name",
    ))
}

/// A traced run.
#[derive(Debug)]
pub struct Trace {
    directory: PathBuf,
    job: Job,
}

impl Trace {
    /// Opens the directory of a run. [`node`](Trace::node) opens the nodes' traces one by one.
    ///
    /// # Errors
    /// Fails if it contains no description of a job that this version can read.
    pub fn open(directory: &Path) -> Result<Trace, TraceError> {
        let path = directory.join(JOB_FILE);
        let unfit = |expected: &str, got: String| TraceError::Directory {
            directory: directory.display().to_string(),
            expected: expected.to_owned(),
            got,
        };
        let file = open_regular(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                unfit("a traced run (`hiroba run --trace DIR` writes one)", format!("no file {JOB_FILE}"))
            }
            _ => system("read", &path, error),
        })?;
        let mut json = Vec::new();
        file.take(JOB_BYTES_MAX + 1).read_to_end(&mut json).map_err(|error| system("read", &path, error))?;
        if json.len() as u64 > JOB_BYTES_MAX {
            return Err(unfit("a short file job.json", format!("one of more than {JOB_BYTES_MAX} bytes")));
        }
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

    /// Returns how the run was started, and how it ended.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Opens the trace of a node of the job.
    ///
    /// # Errors
    /// Fails if there is none that this version can read, or if it belongs to another node or job.
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
/// Fails if it is not a trace that this version can read.
pub fn open(path: &Path) -> Result<TraceReader<BufReader<File>>, TraceError> {
    let file = open_regular(path).map_err(|error| system("open", path, error))?;
    TraceReader::new(BufReader::with_capacity(64 << 10, file))
}
