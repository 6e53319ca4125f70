//! The messages of lending, and their bytes: the message, then the content of its page.

use core::fmt;

use hiroba_base::PageId;
use serde::{Deserialize, Serialize};

/// A version of a page, sealed by its owner, who may have compressed it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// Its place in its owner's region.
    pub granule: PageId,
    /// Which version it is.
    pub stamp: u64,
    /// The content. It follows the message, so that it is sent without a copy.
    #[serde(skip)]
    pub bytes: Vec<u8>,
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Page { granule, stamp, bytes } = self;
        write!(f, "Page({granule} in version {stamp}, {} bytes)", bytes.len())
    }
}

/// A message between a borrower and a lender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// To a lender: asks for room for up to `count` pages.
    Ask {
        /// The number of pages.
        count: u32,
    },
    /// To a borrower: grants room for `count` pages.
    Grant {
        /// The number of pages.
        count: u32,
        /// The room that the lender could grant beyond that.
        left: u64,
        /// True for the answer to `Ask`, false for what was given back twice.
        is_answer: bool,
    },
    /// To a borrower: takes granted room back.
    Revoke {
        /// The number of pages.
        count: u32,
    },
    /// To a lender: gives granted room back.
    GiveBack {
        /// The number of pages.
        count: u32,
    },
    /// To a lender: stores a page, in the place of an earlier version if there is one.
    Store(Page),
    /// To a lender: requests a copy of a page.
    Fetch {
        /// Names the request in its answer.
        ticket: u64,
        /// The page.
        granule: PageId,
        /// The version.
        stamp: u64,
    },
    /// To a borrower: the copy.
    Page {
        /// The request.
        ticket: u64,
        /// The page.
        page: Page,
    },
    /// To a borrower: there is no such page.
    Missing {
        /// The request.
        ticket: u64,
    },
    /// To a lender: forget a page.
    Drop {
        /// The page.
        granule: PageId,
        /// The version.
        stamp: u64,
    },
    /// To a borrower: the lender keeps this page no longer.
    Return(Page),
}

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadMessage {
    /// The first byte, if there is one.
    pub kind: Option<u8>,
    /// The number of bytes.
    pub got_bytes: usize,
}

impl fmt::Display for BadMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Some(kind) => write!(
                f,
                "expected a message about lent memory, got {} bytes of kind {kind}; all nodes must run one build",
                self.got_bytes
            ),
            None => f.write_str("expected a message about lent memory, got no bytes"),
        }
    }
}

impl core::error::Error for BadMessage {}

impl Message {
    /// Returns the message without the content of its page, and that content. The encoded message is their
    /// concatenation.
    pub fn encode(&self) -> (Vec<u8>, &[u8]) {
        let head = postcard::to_allocvec(self).expect("a message of a few numbers can be encoded");
        (head, self.page().map_or(&[], |page| &page.bytes))
    }

    /// Decodes a message whose pages have at most `granule_bytes` bytes.
    ///
    /// # Errors
    /// Fails if the bytes are no message.
    pub fn decode(bytes: &[u8], granule_bytes: usize) -> Result<Message, BadMessage> {
        let bad = BadMessage { kind: bytes.first().copied(), got_bytes: bytes.len() };
        let (mut message, content) = postcard::take_from_bytes::<Message>(bytes).map_err(|_| bad)?;
        let page = match &mut message {
            Message::Store(page) | Message::Page { page, .. } | Message::Return(page) => Some(page),
            _ => None,
        };
        let is_expected =
            if page.is_some() { (1..=granule_bytes).contains(&content.len()) } else { content.is_empty() };
        if !is_expected {
            return Err(bad);
        }
        page.into_iter().for_each(|page| page.bytes = content.to_vec());
        Ok(message)
    }

    fn page(&self) -> Option<&Page> {
        match self {
            Message::Store(page) | Message::Page { page, .. } | Message::Return(page) => Some(page),
            _ => None,
        }
    }
}
