//! What the command says when something is wrong: one sentence and an exit status.

use std::io::Write;

use hiroba_base::printable;

use crate::progress;

/// A fault of Hiroba's or of its arguments (contract, "Exit status").
pub const STATUS_HIROBA: u8 = 125;
/// Arguments of a command that runs no program of the user's make no sense.
pub const STATUS_BAD_INPUT: u8 = 2;
/// The program cannot be executed.
pub const STATUS_NOT_EXECUTABLE: u8 = 126;
/// The program was not found.
pub const STATUS_NOT_FOUND: u8 = 127;

/// Why the command ends early.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit status.
    pub status: u8,
    /// One sentence: what was expected, what came, what to do.
    pub sentence: String,
}

impl Failure {
    /// A fault of Hiroba's or of its arguments.
    pub fn new(sentence: impl Into<String>) -> Failure {
        Failure { status: STATUS_HIROBA, sentence: sentence.into() }
    }

    /// The program cannot be executed.
    pub fn not_executable(sentence: impl Into<String>) -> Failure {
        Failure { status: STATUS_NOT_EXECUTABLE, sentence: sentence.into() }
    }

    /// The program was not found.
    pub fn not_found(sentence: impl Into<String>) -> Failure {
        Failure { status: STATUS_NOT_FOUND, sentence: sentence.into() }
    }
}

/// Writes one line of Hiroba's own words to standard error.
///
/// Names of files and hosts, and what ssh and programs say, may hold newlines and sequences that a terminal obeys: they are
/// escaped here, for all sentences, and one sentence stays one line. A closed standard error must not keep a job from being
/// ended, so write errors are ignored.
pub fn say(sentence: &str) {
    let line = format!("hiroba: {}\n", printable(sentence));
    progress::give_way(|| drop(std::io::stderr().write_all(line.as_bytes())));
}

/// Writes a sentence and what belongs to it, indented, in one piece: lines of nodes do not get between.
pub fn say_with_details(sentence: &str, details: &[String]) {
    let mut text = format!("hiroba: {}\n", printable(sentence));
    for detail in details {
        text.push_str("  ");
        text.push_str(&printable(detail));
        text.push('\n');
    }
    progress::give_way(|| drop(std::io::stderr().write_all(text.as_bytes())));
}

/// The system's words for an error without Rust's "(os error N)".
pub fn system_words(error: &std::io::Error) -> String {
    let words = error.to_string();
    let end = words.find(" (os error").unwrap_or(words.len());
    words[..end].to_lowercase()
}
