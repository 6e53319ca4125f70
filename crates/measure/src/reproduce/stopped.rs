//! The reason why the command ends before it has printed its tables.

use hiroba_launch::failure::{Failure, system_words};

/// The reason.
#[derive(Debug)]
pub enum Stopped {
    /// An error.
    Failed(Failure),
    /// A command could not be started.
    NotStarted(std::io::Error),
    /// A signal ended it.
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
