//! A message on its way out, which a fabric takes off piece by piece, as it has room.

/// The longest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 1 << 30;

/// Bytes that are copied where they go when there is room for them, and not before: of memory that other threads write there is no slice to be had, and to
/// copy it first, only to have one, costs as much as to send it.
pub trait Content {
    /// How many.
    fn bytes(&self) -> usize;

    /// Appends so many of them, from `offset` on, to `room`.
    fn append(&self, offset: usize, bytes: usize, room: &mut Vec<u8>);
}

/// What is still to be sent of a message: the concatenation of some parts, and the content behind them, if there is any.
pub struct Unsent<'a> {
    parts: &'a [&'a [u8]],
    /// Bytes of the first part that are gone.
    gone: usize,
    content: Option<&'a dyn Content>,
    /// Where the content passes through on its way to a place that is no vector.
    staged: Vec<u8>,
    bytes: usize,
    rest: usize,
}

impl<'a> Unsent<'a> {
    /// A whole message.
    ///
    /// # Panics
    ///
    /// When it is longer than a message may be.
    pub fn new(parts: &'a [&'a [u8]]) -> Unsent<'a> {
        Unsent::of(parts, None)
    }

    /// A whole message that ends with this content.
    ///
    /// # Panics
    ///
    /// When it is longer than a message may be.
    pub fn with_content(parts: &'a [&'a [u8]], content: &'a dyn Content) -> Unsent<'a> {
        Unsent::of(parts, Some(content))
    }

    fn of(parts: &'a [&'a [u8]], content: Option<&'a dyn Content>) -> Unsent<'a> {
        let bytes = parts.iter().map(|part| part.len()).sum::<usize>() + content.map_or(0, Content::bytes);
        assert!(
            bytes <= MESSAGE_BYTES_MAX,
            "expected a message of at most {MESSAGE_BYTES_MAX} bytes, got {bytes}"
        );
        Unsent { parts, gone: 0, content, staged: Vec::new(), bytes, rest: bytes }
    }

    /// Bytes that are left.
    pub fn rest(&self) -> usize {
        self.rest
    }

    /// Whether nothing has been taken off.
    pub fn is_whole(&self) -> bool {
        self.rest == self.bytes
    }

    /// Takes so many bytes off the front and appends them to `room`.
    ///
    /// # Panics
    ///
    /// When fewer are left.
    pub fn move_into(&mut self, room: &mut Vec<u8>, bytes: usize) {
        let from_parts = self.take(bytes, &mut |piece| room.extend_from_slice(piece));
        self.take_content(bytes - from_parts, room);
    }

    /// Takes so many bytes off the front and gives them to `put`, one piece after the other.
    ///
    /// # Panics
    ///
    /// When fewer are left.
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

    /// Takes up to so many bytes off the parts; how many.
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
