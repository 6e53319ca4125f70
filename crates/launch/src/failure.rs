//! Errors of the command: one sentence and an exit status.

use std::io::Write;

use hiroba_base::printable;

use crate::progress;

/// An error in Hiroba or in its arguments (contract, "Exit status").
pub const STATUS_HIROBA: u8 = 125;
/// Invalid arguments of a command that runs no program of the user.
pub const STATUS_BAD_INPUT: u8 = 2;
/// The program cannot be executed.
pub const STATUS_NOT_EXECUTABLE: u8 = 126;
/// The program was not found.
pub const STATUS_NOT_FOUND: u8 = 127;

/// The reason why the command ends early.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit status.
    pub status: u8,
    /// One sentence: what was expected, what came, what to do.
    pub sentence: String,
}

impl Failure {
    /// Returns an error in Hiroba or in its arguments.
    pub fn new(sentence: impl Into<String>) -> Failure {
        Failure { status: STATUS_HIROBA, sentence: sentence.into() }
    }

    /// Returns the error of a program that cannot be executed.
    pub fn not_executable(sentence: impl Into<String>) -> Failure {
        Failure { status: STATUS_NOT_EXECUTABLE, sentence: sentence.into() }
    }

    /// Returns the error of a program that was not found.
    pub fn not_found(sentence: impl Into<String>) -> Failure {
        Failure { status: STATUS_NOT_FOUND, sentence: sentence.into() }
    }
}

/// Writes one line of Hiroba's own messages to standard error.
///
/// Names of files and hosts, and the output of ssh and of programs, may contain newlines and terminal escape
/// sequences. They are escaped here, for all messages, so that a message stays one line. Write errors are
/// ignored, since a closed standard error must not keep a job from being ended.
pub fn say(sentence: &str) {
    let line = format!("hiroba: {}\n", printable(sentence));
    progress::give_way(|| drop(std::io::stderr().write_all(line.as_bytes())));
}

/// Writes a sentence and its indented details in one piece, so that lines of nodes do not get between.
pub fn say_with_details(sentence: &str, details: &[String]) {
    let mut text = format!("hiroba: {}\n", printable(sentence));
    for detail in details {
        text.push_str("  ");
        text.push_str(&printable(detail));
        text.push('\n');
    }
    progress::give_way(|| drop(std::io::stderr().write_all(text.as_bytes())));
}

/// Returns the system's description of an error without Rust's "(os error N)".
pub fn system_words(error: &std::io::Error) -> String {
    let words = error.to_string();
    let end = words.find(" (os error").unwrap_or(words.len());
    words[..end].to_lowercase()
}
