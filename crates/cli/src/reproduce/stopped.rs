//! Why the command ends before it has told anything.

use crate::failure::{Failure, system_words};

/// Why.
#[derive(Debug)]
pub enum Stopped {
    /// Something is wrong.
    Failed(Failure),
    /// A command could not be started.
    NotStarted(std::io::Error),
    /// By this signal.
    Interrupted(i32),
}

impl From<std::io::Error> for Stopped {
    fn from(error: std::io::Error) -> Stopped {
        Stopped::Failed(Failure::new(format!("cannot reproduce the paper: {}", system_words(&error))))
    }
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Stopped {
        Stopped::Failed(failure)
    }
}
