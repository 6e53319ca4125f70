//! The keys of one direction of a connection, one after another: the assurance of GCM wears off with the amount of data.

use hiroba_base::NodeId;
use hiroba_wire::control::JobKey;

use super::handshake::Nonce;
use crate::seal::{DirectionKey, Forged, TAG_BYTES};

/// Records sealed with one key: at most 2³⁷ bytes, where RFC 8446 §5.5 allows 2³⁸. Both sides count, so they change keys without a word.
const RECORDS_PER_KEY: u64 = 1 << 21;

/// What the keys are derived from, besides their number.
struct Origin {
    job: JobKey,
    nonces: [Nonce; 2],
    from: NodeId,
    to: NodeId,
}

impl Origin {
    fn key(&self, number: u64) -> DirectionKey {
        let [a, b] = &self.nonces;
        let (from, to) = (self.from.0.to_be_bytes(), self.to.0.to_be_bytes());
        DirectionKey::derive(&self.job, &[b"tcp records", a, b, &from, &to, &number.to_be_bytes()])
    }
}

/// Seals, or opens, the records of one direction by their numbers.
pub struct RecordKeys(Option<Box<(Origin, u64, DirectionKey)>>);

impl RecordKeys {
    /// Those of the connection that began with `nonces`.
    pub fn new(job: &JobKey, nonces: [Nonce; 2], from: NodeId, to: NodeId) -> RecordKeys {
        let origin = Origin { job: job.clone(), nonces, from, to };
        let first = origin.key(0);
        RecordKeys(Some(Box::new((origin, 0, first))))
    }

    /// Those of a connection whose records bear empty tags, to measure what the others cost.
    pub fn none() -> RecordKeys {
        RecordKeys(None)
    }

    /// The key of record `count`; records go forward.
    fn key(&mut self, count: u64) -> Option<&DirectionKey> {
        let (origin, number, key) = &mut **self.0.as_mut()?;
        let wanted = count / RECORDS_PER_KEY;
        if *number != wanted {
            (*number, *key) = (wanted, origin.key(wanted));
        }
        Some(key)
    }

    /// As [`DirectionKey::seal`].
    pub fn seal(&mut self, count: u64, bytes: &mut [u8], clear_bytes: usize) -> [u8; TAG_BYTES] {
        self.key(count).map_or([0; TAG_BYTES], |key| key.seal(count, bytes, clear_bytes))
    }

    /// As [`DirectionKey::open`].
    ///
    /// # Errors
    ///
    /// When it is not what the other side has sealed as record `count`.
    pub fn open(
        &mut self,
        count: u64,
        bytes: &mut [u8],
        clear_bytes: usize,
        tag: &[u8; TAG_BYTES],
    ) -> Result<(), Forged> {
        match self.key(count) {
            Some(key) => key.open(count, bytes, clear_bytes, tag),
            None if *tag == [0; TAG_BYTES] => Ok(()),
            None => Err(Forged),
        }
    }
}

impl core::fmt::Debug for RecordKeys {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str("RecordKeys(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> RecordKeys {
        RecordKeys::new(&JobKey([3; 32]), [[1; 32], [2; 32]], NodeId(0), NodeId(1))
    }

    #[test]
    fn both_sides_change_keys_at_the_same_record() {
        let (mut sender, mut receiver) = (keys(), keys());
        for count in [0, 1, RECORDS_PER_KEY - 1, RECORDS_PER_KEY, RECORDS_PER_KEY + 1, 5 * RECORDS_PER_KEY] {
            let mut bytes = *b"frames";
            let tag = sender.seal(count, &mut bytes, 0);
            let before = sender.0.as_ref().unwrap().1;
            assert_eq!(before, count / RECORDS_PER_KEY);
            assert_eq!(receiver.open(count, &mut bytes, 0, &tag), Ok(()), "record {count}");
            assert_eq!(&bytes, b"frames");
        }
    }

    #[test]
    fn the_next_key_is_another_one() {
        let origin = |number| keys().0.unwrap().0.key(number);
        let mut bytes = *b"frames";
        let tag = origin(0).seal(9, &mut bytes, 0);
        assert_eq!(origin(1).open(9, &mut bytes, 0, &tag), Err(Forged));
    }

    #[test]
    fn keys_are_not_printed() {
        assert_eq!(format!("{:?}", keys()), "RecordKeys(secret)");
    }
}
