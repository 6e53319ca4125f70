use thiserror::Error;

/// Bytes that are not a message of this job.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// The bytes do not decode.
    #[error("expected a {expected}, got {got_bytes} bytes that do not decode ({reason})")]
    Malformed {
        /// What was expected.
        expected: &'static str,
        /// How many bytes arrived.
        got_bytes: usize,
        /// The decoder's reason.
        reason: postcard::Error,
    },
    /// The bytes decode, but a field is out of its bounds.
    #[error("expected {field} {expected}, got {got}")]
    OutOfBounds {
        /// The field's name.
        field: &'static str,
        /// The allowed values.
        expected: &'static str,
        /// The actual value.
        got: u64,
    },
}
