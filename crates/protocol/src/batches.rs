//! The size of messages: diffs to a home, and pages to a reader.

use hiroba_base::{IntervalSeq, NodeId, PageId};
use hiroba_wire::{Message, PageDiff};

use crate::PageToSend;
use crate::coherence::Site;

/// The number of bytes at which diffs for one home are sent, so that a long release overlaps with the network
/// and no message grows with the number of dirty pages.
const FLUSH_BATCH_BYTES: usize = 48 << 10;

/// The maximum length of a reply with several pages: the first of them can be used while the next ones
/// travel, the message stays in the caches between its copies, and with its head it fits the longest
/// datagram.
const REPLY_BYTES_MAX: u64 = 60 << 10;

/// The number of its latest groups that a message searches for the version of a page. Nearly all pages of a
/// message have the same version.
pub(crate) const GROUPS_SEARCHED: usize = 8;

/// Diffs of one interval for one home.
#[derive(Debug, Default)]
pub(crate) struct Flush {
    diffs: Vec<(PageId, Vec<u8>)>,
    bytes: usize,
}

impl Flush {
    /// Adds the diff of a page. An empty one shows that the home has all changes of the interval to the page.
    pub(crate) fn add(&mut self, page: PageId, runs: Vec<u8>) {
        self.bytes += runs.len();
        self.diffs.push((page, runs));
    }

    /// Returns true if it should be sent before more diffs are added.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes >= FLUSH_BATCH_BYTES
    }

    /// Returns a page of which it has the diff.
    pub(crate) fn first_page(&self) -> PageId {
        self.diffs.first().expect("a home is told what has changed").0
    }

    /// Sends it. `is_last` marks the interval's last message to the home.
    pub(crate) fn send(&self, site: &mut Site, home: NodeId, seq: IntervalSeq, is_last: bool) {
        assert_ne!(home, site.me, "a home makes no diffs for itself");
        assert!(!self.diffs.is_empty(), "a home is told what has changed");
        let diffs = self.diffs.iter().map(|(page, runs)| PageDiff { page: *page, runs }).collect();
        site.out.send(home, &Message::Diffs { seq, last: is_last, diffs });
        if site.orders_fetches {
            site.owe(home);
        }
    }
}

/// Divides diffs into messages by their bytes.
pub(crate) fn batches(diffs: &[(PageId, Vec<u8>)]) -> Vec<Vec<PageDiff<'_>>> {
    let mut batches = vec![Vec::new()];
    let mut bytes = 0;
    for (page, runs) in diffs {
        if bytes >= FLUSH_BATCH_BYTES {
            batches.push(Vec::new());
            bytes = 0;
        }
        bytes += runs.len();
        batches.last_mut().expect("there is one").push(PageDiff { page: *page, runs });
    }
    batches
}

/// Divides pages into replies of bounded length, the first pages first.
pub(crate) fn replies(pages: impl IntoIterator<Item = PageToSend>) -> Vec<Vec<PageToSend>> {
    let mut replies: Vec<Vec<PageToSend>> = Vec::new();
    let mut room = 0;
    for page in pages {
        let bytes = u64::from(page.page_bytes);
        match replies.last_mut().filter(|_| bytes <= room) {
            Some(reply) => {
                room -= bytes;
                reply.push(page);
            }
            None => {
                room = REPLY_BYTES_MAX.saturating_sub(bytes);
                replies.push(vec![page]);
            }
        }
    }
    replies
}
