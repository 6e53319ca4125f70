//! Errors for exhausted resources of this machine.

use std::io;

use crate::failure::{Failure, system_words};

/// Returns the error for a fork that failed.
pub fn too_many_processes(error: &io::Error) -> Failure {
    Failure::new(format!(
        "cannot start another process ({}); use fewer nodes (-n), or raise the limit on processes ('ulimit -u', or \
         the container's)",
        system_words(error)
    ))
}

/// Returns the error for a descriptor that could not be opened.
pub fn no_descriptor(error: &io::Error) -> Failure {
    Failure::new(format!(
        "cannot open another file or socket ({}); use fewer nodes (-n), or raise 'ulimit -n'",
        system_words(error)
    ))
}
