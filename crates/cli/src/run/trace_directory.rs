//! The directory of `--trace DIR`: made ready before the job starts, so that an hour's run is not lost to a typing error.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use hiroba_base::NodeId;
use hiroba_trace::{FORMAT_VERSION, Job, node_file};

use crate::arguments::RunOptions;
use crate::failure::{Failure, system_words};

/// Where the trace of the run that is about to begin goes.
#[derive(Debug)]
pub struct TraceDirectory {
    path: PathBuf,
    job: Job,
    created: bool,
}

impl TraceDirectory {
    /// Makes the directory ready for a run. What is in it already would be taken for the run's, so it must be new or empty.
    pub fn open(path: &Path, options: &RunOptions) -> Result<TraceDirectory, Failure> {
        let created = match fs::create_dir(path) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => {
                check_empty(path)?;
                false
            }
            Err(error) => return Err(unusable(path, &error)),
        };
        let job = Job {
            format: FORMAT_VERSION,
            program: options.program.to_string_lossy().into_owned(),
            arguments: options.arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            nodes: options.nodes,
            threads_per_node: options.threads_per_node,
            protocol: options.protocol.clone(),
            fabric: options.fabric.clone(),
            page_bytes: u32::from(options.page_size),
            exit_status: None,
        };
        let directory = TraceDirectory { path: path.to_owned(), job, created };
        match directory.write_job() {
            Ok(()) => Ok(directory),
            Err(failure) => {
                directory.discard();
                Err(failure)
            }
        }
    }

    /// Files for the traces of `nodes` nodes, from `first` on.
    pub fn open_files(&self, first: usize, nodes: u16) -> Result<Vec<OwnedFd>, Failure> {
        let open = |place: u16| {
            let path = node_file(&self.path, NodeId(first as u16 + place));
            self.create(&path).map(OwnedFd::from)
        };
        (0..nodes).map(open).collect()
    }

    fn create(&self, path: &Path) -> Result<File, Failure> {
        OpenOptions::new().write(true).create_new(true).open(path).map_err(|error| unusable(path, &error))
    }

    fn write_job(&self) -> Result<(), Failure> {
        self.job.write(&self.path).map_err(|error| {
            Failure::new(format!("{error}; the trace needs room there, or another directory after --trace"))
        })
    }

    /// Notes how the run ended.
    pub fn conclude(mut self, nodes: u16, status: u8) -> Result<(), Failure> {
        (self.job.nodes, self.job.exit_status) = (nodes, Some(status));
        self.write_job()
    }

    /// The job never started: leaves nothing behind.
    pub fn discard(self) {
        let Ok(entries) = fs::read_dir(&self.path) else { return };
        for entry in entries.flatten() {
            // The directory was empty: all of it is this run's.
            let _ = fs::remove_file(entry.path());
        }
        if self.created {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

fn check_empty(path: &Path) -> Result<(), Failure> {
    let mut entries = fs::read_dir(path).map_err(|error| unusable(path, &error))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(Failure::new(format!(
            "expected a new or an empty directory after --trace, got '{}', which holds files; remove them, or name another",
            path.display()
        ))),
    }
}

fn unusable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!(
        "cannot write the trace to '{}': {}; name another directory after --trace",
        path.display(),
        system_words(error)
    ))
}
