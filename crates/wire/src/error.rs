use thiserror::Error;

/// Bytes that are not a message of this job.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// The bytes do not decode.
    #[error("expected a {expected}, got {got_bytes} bytes that do not decode ({reason})")]
    Malformed {
        /// What should have come.
        expected: &'static str,
        /// How many bytes came.
        got_bytes: usize,
        /// The decoder's words.
        reason: postcard::Error,
    },
    /// The bytes decode, but a field is out of its bounds.
    #[error("expected {field} {expected}, got {got}")]
    OutOfBounds {
        /// The field's name.
        field: &'static str,
        /// What it may be.
        expected: &'static str,
        /// What it was.
        got: u64,
    },
}
