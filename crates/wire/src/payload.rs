//! The end of a message that has not been copied yet.

/// The end of a message, still where it arrived. Whoever handles the message's beginning copies it to its
/// place. Another process may be able to change the bytes, so each is read once, and only copies are checked.
pub trait Payload {
    /// Returns the number of bytes that were not taken yet.
    fn bytes(&self) -> usize;

    /// Takes the next `bytes` bytes and appends them to `room`.
    ///
    /// # Panics
    ///
    /// Panics if fewer are left.
    fn append_to(&mut self, bytes: usize, room: &mut Vec<u8>);
}

/// A payload that was copied already.
impl Payload for &[u8] {
    fn bytes(&self) -> usize {
        self.len()
    }

    fn append_to(&mut self, bytes: usize, room: &mut Vec<u8>) {
        let (taken, rest) = self.split_at(bytes);
        room.extend_from_slice(taken);
        *self = rest;
    }
}

/// Returns a whole message: its beginning, and what is left of its payload.
pub fn joined(head: &[u8], payload: &mut dyn Payload) -> Vec<u8> {
    let bytes = payload.bytes();
    let mut whole = Vec::with_capacity(head.len() + bytes);
    whole.extend_from_slice(head);
    payload.append_to(bytes, &mut whole);
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_taken_piece_by_piece_once() {
        let mut payload = &b"payload"[..];
        let mut room = b"-".to_vec();
        payload.append_to(3, &mut room);
        payload.append_to(0, &mut room);
        assert_eq!((room.as_slice(), Payload::bytes(&payload)), (&b"-pay"[..], 4));
        assert_eq!(joined(b"head ", &mut payload), b"head load");
        assert_eq!(Payload::bytes(&payload), 0);
    }
}
