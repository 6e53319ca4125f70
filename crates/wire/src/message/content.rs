//! Messages that end with the bytes of pages.

use super::Message;

impl<'a> Message<'a> {
    /// Appends to `out` the encoding of a message with content, up to the place where `content_bytes` bytes
    /// of content must follow; the message itself has none. So the content need not be copied into one buffer
    /// first.
    pub fn encode_before_content(&self, content_bytes: usize, out: Vec<u8>) -> Vec<u8> {
        debug_assert!(self.content().is_empty());
        let mut out = self.encode_into(out);
        // The content comes last, as its length and its bytes; here it is the one byte of a zero length.
        let length = out.pop();
        debug_assert_eq!(length, Some(0));
        postcard::to_extend(&content_bytes, out).expect("a number can be encoded")
    }

    /// Returns the bytes of pages that the message carries.
    pub fn content(&self) -> &'a [u8] {
        match self {
            Message::PagesReply { content, .. } => content,
            _ => &[],
        }
    }
}
