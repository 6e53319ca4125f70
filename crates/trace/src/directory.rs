//! A traced run as a directory: `job.json`, and a file a node.
//!
//! Files are made relative to the directory's descriptor, anew and for their owner alone: what somebody else has put there under
//! their names is neither followed nor overwritten. Readers take nothing but regular files, and no more of them than their bounds.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use hiroba_base::{MAX_NODES, NodeId};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, renameat, unlinkat};
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

/// `job.json` until it is whole.
const JOB_DRAFT: &str = "job.json.new";

impl Job {
    /// Writes `job.json` into an open directory, in place of an earlier one.
    ///
    /// # Errors
    /// The system's; among them that somebody else has put a file or a link under the name of the draft.
    pub fn write(&self, directory: impl AsFd) -> Result<(), TraceError> {
        let failed = |source| TraceError::System { action: format!("write '{JOB_FILE}'"), source };
        let mut json = serde_json::to_vec_pretty(self).map_err(|error| failed(error.into()))?;
        json.push(b'\n');
        let mut draft = create(&directory, JOB_DRAFT).map_err(failed)?;
        // Whoever reads it meanwhile finds the earlier one or this one, whole.
        let renamed = || renameat(&directory, JOB_DRAFT, &directory, JOB_FILE).map_err(io::Error::from);
        draft.write_all(&json).and_then(|()| renamed()).map_err(|error| {
            let _ = unlinkat(&directory, JOB_DRAFT, AtFlags::empty());
            failed(error)
        })
    }
}

/// Makes a file in an open directory: one that was not there, and that its owner alone may read and write.
///
/// # Errors
/// The system's. Anything under that name is an error, a symbolic link too.
pub fn create(directory: impl AsFd, name: &str) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(directory, name, flags, Mode::RUSR | Mode::WUSR).map(File::from)?)
}

fn system(action: &str, path: &Path, source: io::Error) -> TraceError {
    TraceError::System { action: format!("{action} '{}'", path.display()), source }
}

/// The name of a node's trace in its directory.
pub fn node_file_name(node: NodeId) -> String {
    format!("node-{node}.trace")
}

/// Where the trace of a node stands.
pub fn node_file(directory: &Path, node: NodeId) -> PathBuf {
    directory.join(node_file_name(node))
}

/// Opens a regular file to read. What a directory of somebody else's may hold besides (a pipe without a writer, a device
/// without an end) is refused without waiting for it.
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
    let file = open_regular(path).map_err(|error| system("open", path, error))?;
    TraceReader::new(BufReader::with_capacity(64 << 10, file))
}
