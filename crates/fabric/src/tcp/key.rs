//! The key of one direction of a connection, or no key, to measure the cost of sealing.

use hiroba_base::NodeId;
use hiroba_wire::control::JobKey;

use crate::seal::{DirectionKey, Forged, TAG_BYTES};

/// Length of the nonce that makes each connection unique.
pub const NONCE_BYTES: usize = 32;

/// A random number that is used once.
pub type Nonce = [u8; NONCE_BYTES];

/// Seals or opens the records of one direction by their numbers.
pub struct RecordKey(Option<DirectionKey>);

impl RecordKey {
    /// Derives the key of the connection that began with `nonces`.
    pub fn new(job: &JobKey, [a, b]: [Nonce; 2], from: NodeId, to: NodeId) -> RecordKey {
        let (from, to) = (from.0.to_be_bytes(), to.0.to_be_bytes());
        RecordKey(Some(DirectionKey::derive(job, &[b"tcp records", &a, &b, &from, &to])))
    }

    /// Makes the key of a connection whose records bear empty tags, to measure the cost of sealing.
    pub fn none() -> RecordKey {
        RecordKey(None)
    }

    /// Seals as [`DirectionKey::seal`].
    pub fn seal(&self, count: u64, bytes: &mut [u8], clear_bytes: usize) -> [u8; TAG_BYTES] {
        self.0.as_ref().map_or([0; TAG_BYTES], |key| key.seal(count, bytes, clear_bytes))
    }

    /// Opens as [`DirectionKey::open`].
    ///
    /// # Errors
    ///
    /// Fails if the bytes are not record `count` as the other side sealed it.
    pub fn open(
        &self,
        count: u64,
        bytes: &mut [u8],
        clear_bytes: usize,
        tag: &[u8; TAG_BYTES],
    ) -> Result<(), Forged> {
        match &self.0 {
            Some(key) => key.open(count, bytes, clear_bytes, tag),
            None if *tag == [0; TAG_BYTES] => Ok(()),
            None => Err(Forged),
        }
    }
}

impl core::fmt::Debug for RecordKey {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str("RecordKey(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(from: u16, to: u16, first_nonce: u8) -> RecordKey {
        RecordKey::new(&JobKey::new(&[3; 32]), [[first_nonce; 32], [2; 32]], NodeId(from), NodeId(to))
    }

    #[test]
    fn a_record_opens_on_its_connection_in_its_direction() {
        let mut bytes = *b"frames";
        let tag = key(0, 1, 1).seal(9, &mut bytes, 0);
        for (stranger, count) in [(key(1, 0, 1), 9), (key(0, 1, 2), 9), (key(0, 1, 1), 8)] {
            assert_eq!(stranger.open(count, &mut bytes.clone(), 0, &tag), Err(Forged));
        }
        assert_eq!(key(0, 1, 1).open(9, &mut bytes, 0, &tag), Ok(()));
        assert_eq!(&bytes, b"frames");
    }

    #[test]
    fn keys_are_not_printed() {
        assert_eq!(format!("{:?}", key(0, 1, 1)), "RecordKey(secret)");
    }
}
