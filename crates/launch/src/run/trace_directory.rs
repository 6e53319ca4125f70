//! The directory of `--trace DIR`: prepared before the job starts, so that an hour's run is not lost to a
//! typing error.
//!
//! The directory is opened once, and every later operation is relative to that descriptor, so that changes of
//! the path do not matter. The directory must belong to the user and be writable for no other user, so that
//! all its content is the user's.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use hiroba_base::NodeId;
use hiroba_trace::{FORMAT_VERSION, Job, create, node_file_name};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, fstat, mkdirat, openat, unlinkat};
use rustix::io::Errno;

use crate::failure::{Failure, system_words};
use crate::run::options::RunOptions;

/// The directory that the trace of the coming run goes to.
#[derive(Debug)]
pub struct TraceDirectory {
    path: PathBuf,
    directory: OwnedFd,
    job: Job,
    created: bool,
}

impl TraceDirectory {
    /// Prepares the directory for a run. It must be new or empty, since other files would be taken for the
    /// run's.
    pub fn open(path: &Path, options: &RunOptions) -> Result<TraceDirectory, Failure> {
        let created = match mkdirat(CWD, path, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(unusable(path, errno)),
        };
        let directory = open_own(path)?;
        if names(&directory).map_err(|errno| unusable(path, errno))?.next().is_some() {
            return Err(Failure::new(format!(
                "expected a new or an empty directory after --trace, got '{}', which contains files; remove them, or name another",
                path.display()
            )));
        }
        let job = Job {
            format: FORMAT_VERSION,
            program: options.program.to_string_lossy().into_owned(),
            arguments: options.arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            nodes: options.nodes,
            threads_per_node: options.threads_per_node,
            protocol: options.coherence.protocol.clone(),
            fabric: options.transport.fabric.name().to_owned(),
            page_bytes: u32::from(options.coherence.page_size),
            exit_status: None,
        };
        let directory = TraceDirectory { path: path.to_owned(), directory, job, created };
        match directory.write_job() {
            Ok(()) => Ok(directory),
            Err(failure) => {
                directory.discard();
                Err(failure)
            }
        }
    }

    /// Creates the trace files of `nodes` nodes, from `first` on.
    pub fn open_files(&self, first: usize, nodes: u16) -> Result<Vec<OwnedFd>, Failure> {
        let open = |place: u16| {
            let made = create(&self.directory, &node_file_name(NodeId(first as u16 + place)));
            made.map(File::into).map_err(|error| cannot_write(&self.path, &system_words(&error)))
        };
        (0..nodes).map(open).collect()
    }

    fn write_job(&self) -> Result<(), Failure> {
        self.job.write(&self.directory).map_err(|error| {
            let path = self.path.display();
            Failure::new(format!(
                "{error} in '{path}'; the trace needs room there, or another directory after --trace"
            ))
        })
    }

    /// Records how the run ended.
    pub fn conclude(mut self, nodes: u16, status: u8) -> Result<(), Failure> {
        (self.job.nodes, self.job.exit_status) = (nodes, Some(status));
        self.write_job()
    }

    /// Removes everything, because the job never started.
    pub fn discard(self) {
        let Ok(names) = names(&self.directory) else { return };
        for name in names {
            // The directory was empty, so every file is this run's.
            let _ = unlinkat(&self.directory, &name, AtFlags::empty());
        }
        if self.created {
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

/// Opens a directory that belongs to the user and that no other user may write to.
fn open_own(path: &Path) -> Result<OwnedFd, Failure> {
    let shown = path.display();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(CWD, path, flags, Mode::empty()).map_err(|errno| match errno {
        // Which of the two errors a link gives depends on the kernel.
        Errno::LOOP | Errno::NOTDIR if path.is_symlink() => {
            cannot_write(path, "it is a symbolic link, whose target another user may change")
        }
        errno => unusable(path, errno),
    })?;
    let status = fstat(&directory).map_err(|errno| unusable(path, errno))?;
    let (owner, user) = (status.st_uid, rustix::process::geteuid().as_raw());
    if owner != user {
        return Err(Failure::new(format!(
            "expected a directory of your own (user {user}) after --trace, got '{shown}' of user {owner}, who could change the trace; \
             name another"
        )));
    }
    if Mode::from_raw_mode(status.st_mode).intersects(Mode::WGRP | Mode::WOTH) {
        return Err(Failure::new(format!(
            "expected a directory after --trace that no other user may write to, got '{shown}', which others may; \
             use 'chmod go-w' on it, or name a new one"
        )));
    }
    Ok(directory)
}

/// Returns the names in a directory, except `.` and `..`.
fn names(directory: impl AsFd) -> rustix::io::Result<impl Iterator<Item = std::ffi::CString>> {
    let entries = Dir::read_from(directory)?.flatten().map(|entry| entry.file_name().to_owned());
    Ok(entries.filter(|name| ![c".", c".."].contains(&name.as_c_str())))
}

fn unusable(path: &Path, errno: Errno) -> Failure {
    cannot_write(path, &system_words(&errno.into()))
}

fn cannot_write(path: &Path, why: &str) -> Failure {
    let path = path.display();
    Failure::new(format!("cannot write the trace to '{path}': {why}; name another directory after --trace"))
}
