//! The messages of lending, and their bytes: a kind, then big-endian numbers, then the content of a page.

use core::fmt;

use hiroba_base::PageId;

/// A version of a page, sealed by its owner.
#[derive(Clone, PartialEq, Eq)]
pub struct Page {
    /// Its place in its owner's region.
    pub granule: PageId,
    /// Which version it is.
    pub stamp: u64,
    /// The content.
    pub bytes: Vec<u8>,
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Page { granule, stamp, bytes } = self;
        write!(f, "Page({granule} in version {stamp}, {} bytes)", bytes.len())
    }
}

/// A message between a borrower and a lender.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Returns the message without the content of its page, and that content. The message is their
    /// concatenation.
    pub fn encode(&self) -> (Vec<u8>, &[u8]) {
        let numbers = |kind: u8, numbers: &[u64]| {
            let mut bytes = Vec::with_capacity(1 + 8 * numbers.len());
            bytes.push(kind);
            numbers.iter().for_each(|number| bytes.extend(number.to_be_bytes()));
            bytes
        };
        let page = |kind: u8, page: &Page| numbers(kind, &[page.granule.0, page.stamp]);
        match self {
            Message::Ask { count } => (numbers(1, &[u64::from(*count)]), &[]),
            Message::Grant { count, left, is_answer } => {
                (numbers(2, &[u64::from(*count), *left, u64::from(*is_answer)]), &[])
            }
            Message::Revoke { count } => (numbers(3, &[u64::from(*count)]), &[]),
            Message::GiveBack { count } => (numbers(4, &[u64::from(*count)]), &[]),
            Message::Store(stored) => (page(5, stored), &stored.bytes),
            Message::Fetch { ticket, granule, stamp } => (numbers(6, &[*ticket, granule.0, *stamp]), &[]),
            Message::Page { ticket, page } => {
                (numbers(7, &[*ticket, page.granule.0, page.stamp]), &page.bytes)
            }
            Message::Missing { ticket } => (numbers(8, &[*ticket]), &[]),
            Message::Drop { granule, stamp } => (numbers(9, &[granule.0, *stamp]), &[]),
            Message::Return(returned) => (page(10, returned), &returned.bytes),
        }
    }

    /// Reads a message whose pages have `granule_bytes` bytes.
    ///
    /// # Errors
    /// Fails if the bytes are no message.
    pub fn decode(bytes: &[u8], granule_bytes: usize) -> Result<Message, BadMessage> {
        let bad = BadMessage { kind: bytes.first().copied(), got_bytes: bytes.len() };
        let (&kind, mut rest) = bytes.split_first().ok_or(bad)?;
        let mut number = || {
            let (first, behind) = rest.split_first_chunk().ok_or(bad)?;
            rest = behind;
            Ok(u64::from_be_bytes(*first))
        };
        let narrow = |number: u64| u32::try_from(number).map_err(|_| bad);
        let (message, has_page) = match kind {
            1 => (Message::Ask { count: narrow(number()?)? }, false),
            2 => {
                let (count, left) = (narrow(number()?)?, number()?);
                let is_answer = match number()? {
                    0 => false,
                    1 => true,
                    _ => return Err(bad),
                };
                (Message::Grant { count, left, is_answer }, false)
            }
            3 => (Message::Revoke { count: narrow(number()?)? }, false),
            4 => (Message::GiveBack { count: narrow(number()?)? }, false),
            6 => (Message::Fetch { ticket: number()?, granule: PageId(number()?), stamp: number()? }, false),
            8 => (Message::Missing { ticket: number()? }, false),
            9 => (Message::Drop { granule: PageId(number()?), stamp: number()? }, false),
            5 | 7 | 10 => {
                let ticket = if kind == 7 { number()? } else { 0 };
                let (granule, stamp) = (PageId(number()?), number()?);
                let page = Page { granule, stamp, bytes: rest.to_vec() };
                let message = match kind {
                    5 => Message::Store(page),
                    7 => Message::Page { ticket, page },
                    _ => Message::Return(page),
                };
                (message, true)
            }
            _ => return Err(bad),
        };
        let expected = if has_page { granule_bytes } else { 0 };
        if rest.len() == expected { Ok(message) } else { Err(bad) }
    }
}
