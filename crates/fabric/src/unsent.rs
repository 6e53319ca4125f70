//! A message on its way out, which a fabric consumes piece by piece, as it has room.

/// The longest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 1 << 30;

/// Bytes that are copied to their destination when there is room for them, and not before. Memory that other
/// threads write cannot be borrowed as a slice, and copying it first would cost as much as sending it.
pub trait Content {
    /// Returns the number of bytes.
    fn bytes(&self) -> usize;

    /// Appends `bytes` bytes, from `offset` on, to `room`.
    fn append(&self, offset: usize, bytes: usize, room: &mut Vec<u8>);
}

/// The unsent rest of a message: the concatenation of some parts, followed by content, if there is any.
pub struct Unsent<'a> {
    parts: &'a [&'a [u8]],
    /// Number of bytes of the first part that were taken.
    gone: usize,
    content: Option<&'a dyn Content>,
    /// Buffer for content whose destination is not a vector.
    staged: Vec<u8>,
    bytes: usize,
    rest: usize,
    payload_bytes: usize,
}

impl<'a> Unsent<'a> {
    /// Makes a whole message.
    ///
    /// # Panics
    ///
    /// Panics if it is longer than a message may be.
    pub fn new(parts: &'a [&'a [u8]]) -> Unsent<'a> {
        Unsent::of(parts, None)
    }

    /// Makes a whole message that ends with this content.
    ///
    /// # Panics
    ///
    /// Panics if it is longer than a message may be.
    pub fn with_content(parts: &'a [&'a [u8]], content: &'a dyn Content) -> Unsent<'a> {
        Unsent::of(parts, Some(content))
    }

    fn of(parts: &'a [&'a [u8]], content: Option<&'a dyn Content>) -> Unsent<'a> {
        let bytes = parts.iter().map(|part| part.len()).sum::<usize>() + content.map_or(0, Content::bytes);
        assert!(
            bytes <= MESSAGE_BYTES_MAX,
            "expected a message of at most {MESSAGE_BYTES_MAX} bytes, got {bytes}"
        );
        Unsent { parts, gone: 0, content, staged: Vec::new(), bytes, rest: bytes, payload_bytes: 0 }
    }

    /// Marks the last `bytes` bytes as a payload: the receiver may handle what precedes them before they are
    /// copied ([`Receiver`](crate::Receiver)). A fabric that cannot do that ignores the mark.
    ///
    /// # Panics
    ///
    /// Panics if the message is shorter.
    pub fn ending_in_payload(self, bytes: usize) -> Unsent<'a> {
        assert!(bytes <= self.bytes, "expected a payload of at most {} bytes, got {bytes}", self.bytes);
        Unsent { payload_bytes: bytes, ..self }
    }

    /// Returns the number of bytes at its end that are marked as a payload.
    pub fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    /// Returns the number of bytes left.
    pub fn rest(&self) -> usize {
        self.rest
    }

    /// Returns true if nothing has been taken.
    pub fn is_whole(&self) -> bool {
        self.rest == self.bytes
    }

    /// Takes `bytes` bytes off the front and appends them to `room`.
    ///
    /// # Panics
    ///
    /// Panics if fewer are left.
    pub fn move_into(&mut self, room: &mut Vec<u8>, bytes: usize) {
        let from_parts = self.take(bytes, &mut |piece| room.extend_from_slice(piece));
        self.take_content(bytes - from_parts, room);
    }

    /// Takes `bytes` bytes off the front and passes them to `put`, one piece after the other.
    ///
    /// # Panics
    ///
    /// Panics if fewer are left.
    pub fn take_pieces(&mut self, bytes: usize, put: &mut dyn FnMut(&[u8])) {
        let from_parts = self.take(bytes, put);
        if from_parts < bytes {
            let mut staged = std::mem::take(&mut self.staged);
            staged.clear();
            staged.reserve(bytes - from_parts);
            self.take_content(bytes - from_parts, &mut staged);
            put(&staged);
            self.staged = staged;
        }
    }

    /// Takes up to `bytes` bytes off the parts. Returns the number taken.
    fn take(&mut self, bytes: usize, put: &mut dyn FnMut(&[u8])) -> usize {
        let mut taken = 0;
        while taken < bytes
            && let Some((first, others)) = self.parts.split_first()
        {
            let left = &first[self.gone..];
            let piece = &left[..left.len().min(bytes - taken)];
            put(piece);
            taken += piece.len();
            self.gone += piece.len();
            if self.gone == first.len() {
                (self.parts, self.gone) = (others, 0);
            }
        }
        self.rest -= taken;
        taken
    }

    fn take_content(&mut self, bytes: usize, room: &mut Vec<u8>) {
        if bytes == 0 {
            return;
        }
        let content = self.content.expect("no more is taken off a message than it has");
        content.append(content.bytes() - self.rest, bytes, room);
        self.rest -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bytes(&'static [u8]);

    impl Content for Bytes {
        fn bytes(&self) -> usize {
            self.0.len()
        }

        fn append(&self, offset: usize, bytes: usize, room: &mut Vec<u8>) {
            room.extend_from_slice(&self.0[offset..offset + bytes]);
        }
    }

    #[test]
    fn pieces_of_any_length_make_up_the_message() {
        let parts: [&[u8]; 4] = [b"one", b"", b"seven", b"2"];
        for content in [&b""[..], b"and its content"] {
            let expected = [b"oneseven2", content].concat();
            for length in 1..=expected.len() {
                let content = Bytes(content);
                let mut message = Unsent::with_content(&parts, &content);
                assert!(message.is_whole());
                let (mut moved, mut piece_by_piece) = (Vec::new(), Vec::new());
                while message.rest() > 0 {
                    message.move_into(&mut moved, length.min(message.rest()));
                    assert!(!message.is_whole());
                }
                let mut message = Unsent::with_content(&parts, &content);
                while message.rest() > 0 {
                    let wanted = length.min(message.rest());
                    message.take_pieces(wanted, &mut |piece| piece_by_piece.extend_from_slice(piece));
                }
                assert_eq!((moved, piece_by_piece), (expected.clone(), expected.clone()), "by {length}");
            }
        }
        assert_eq!(Unsent::new(&[]).rest(), 0);
    }
}
