//! Sentences for what this machine has no more of.

use std::io;

use crate::failure::{Failure, system_words};

/// The sentence for a fork that failed.
pub fn too_many_processes(error: &io::Error) -> Failure {
    Failure::new(format!(
        "cannot start another process ({}); use fewer nodes (-n), or raise the limit on processes ('ulimit -u', or \
         the container's)",
        system_words(error)
    ))
}

/// The sentence for a descriptor that could not be had.
pub fn no_descriptor(error: &io::Error) -> Failure {
    Failure::new(format!(
        "cannot open another file or socket ({}); use fewer nodes (-n), or raise 'ulimit -n'",
        system_words(error)
    ))
}
