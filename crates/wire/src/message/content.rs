//! Messages that end in the pages' bytes.

use super::Message;

impl<'a> Message<'a> {
    /// Appends to `out` the encoding of a message with content, which has none so far, up to where its content of `content_bytes` bytes
    /// must follow: who has the bytes elsewhere need not bring them together first.
    pub fn encode_before_content(&self, content_bytes: usize, out: Vec<u8>) -> Vec<u8> {
        debug_assert!(self.content().is_empty());
        let mut out = self.encode_into(out);
        // The content comes last, as its length and then its bytes: here as the one byte of a length of 0.
        let length = out.pop();
        debug_assert_eq!(length, Some(0));
        postcard::to_extend(&content_bytes, out).expect("a number can be encoded")
    }

    /// The pages' bytes that the message carries.
    pub fn content(&self) -> &'a [u8] {
        match self {
            Message::PagesReply { content, .. } | Message::PagesSupplied { content, .. } => content,
            _ => &[],
        }
    }
}
