//! The recent changes that a reader has made itself to pages that it has ordered.
//!
//! A home sends an ordered page when it arrives at a barrier. A reader that writes the page, too, makes its
//! diff when it arrives itself, so the diff and the supply cross. The supply then lacks the reader's last
//! intervals. The reader keeps their diffs for a while, and writes them into the supply.
//!
//! ```text
//!   interval 3   interval 5   interval 8          the reader's diffs of the page that are kept
//!      └──────── each names the one before ───┘
//!   a supply that contains interval 3: write 5 and 8
//!   a supply that contains interval 2, where 3 is the oldest kept and follows 2: write 3, 5 and 8
//!   a supply that contains interval 1: it lacks interval 2, which is not kept, and is of no use
//! ```
//!
//! Why this is correct. The home applies a writer's diffs in order, so a supply lacks the last ones or none.
//! Another node can have changed the same bytes after the reader only if it had seen the reader's interval,
//! so it had the interval's bytes from the home, and a supply with its change contains the interval. The
//! diffs that a supply lacks therefore override nothing later.

use std::collections::VecDeque;

use hiroba_base::{IntervalSeq, PageId};
use rustc_hash::FxHashMap;

use crate::diff;

/// The maximum number of bytes of diffs that a node keeps. Further ones are not kept, and the supplies that
/// lack them are of no use.
const BYTES_MAX: usize = 4 << 20;

/// A diff that was sent to the page's home.
#[derive(Debug)]
struct Change {
    /// The latest interval before in which this node changed the page.
    before: IntervalSeq,
    seq: IntervalSeq,
    runs: Vec<u8>,
}

/// The kept diffs of this node, by page, the oldest first.
#[derive(Debug, Default)]
pub(super) struct OwnChanges {
    pages: FxHashMap<PageId, VecDeque<Change>>,
    bytes: usize,
    /// The latest interval of this node that all nodes had seen at the last collective.
    seen_by_all: IntervalSeq,
}

impl OwnChanges {
    /// Keeps the diff of interval `seq`. `before` is the latest interval before that has one.
    pub(super) fn keep(&mut self, page: PageId, before: IntervalSeq, seq: IntervalSeq, runs: &[u8]) {
        assert!(before < seq, "{page}: interval {seq} has one diff of a page");
        let changes = self.pages.entry(page).or_default();
        // A diff that was not kept breaks the chain. Older ones are of no use then.
        if changes.back().is_some_and(|last| last.seq != before) {
            self.bytes -= changes.drain(..).map(|change| change.runs.len()).sum::<usize>();
        }
        if self.bytes + runs.len() <= BYTES_MAX {
            self.bytes += runs.len();
            changes.push_back(Change { before, seq, runs: runs.to_vec() });
        }
    }

    /// Drops the diffs of a page that is not ordered any more.
    pub(super) fn forget(&mut self, page: PageId) {
        let changes = self.pages.remove(&page).unwrap_or_default();
        self.bytes -= changes.iter().map(|change| change.runs.len()).sum::<usize>();
    }

    /// Drops the diffs that no further supply can lack. The node leaves a collective at which all nodes have
    /// seen its intervals through `seen_by_all`.
    ///
    /// A home sends a page only if it has the diffs that notices name. So the supplies ahead of this
    /// collective contain what all had seen at the one before; they are taken after this call.
    pub(super) fn meet(&mut self, seen_by_all: IntervalSeq) {
        let contained = std::mem::replace(&mut self.seen_by_all, seen_by_all);
        let bytes = &mut self.bytes;
        self.pages.retain(|_, changes| {
            let end = changes.partition_point(|change| change.seq <= contained);
            *bytes -= changes.drain(..end).map(|change| change.runs.len()).sum::<usize>();
            !changes.is_empty()
        });
    }

    /// Returns the intervals and diffs that a copy lacks which contains this node's changes through `held`,
    /// in order. Returns `None` if some of those through `own` are not kept.
    pub(super) fn lacking(
        &self,
        page: PageId,
        held: IntervalSeq,
        own: IntervalSeq,
    ) -> Option<impl Iterator<Item = (IntervalSeq, &[u8])>> {
        let changes = self.pages.get(&page)?;
        let first = changes.partition_point(|change| change.seq <= held);
        let is_whole = changes.get(first)?.before <= held && changes.back()?.seq == own;
        is_whole.then(|| changes.range(first..).map(|change| (change.seq, change.runs.as_slice())))
    }
}

/// Writes the changed bytes of a diff that was made here into a page.
pub(super) fn write(page: &mut [u8], runs: &[u8]) {
    let page_bytes = page.len();
    let put = |offset: usize, bytes: &[u8]| page[offset..][..bytes.len()].copy_from_slice(bytes);
    diff::apply(runs, page_bytes, put).expect("a diff that was made here fits its page");
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageId = PageId(3);

    fn lacking(own: &OwnChanges, held: IntervalSeq, through: IntervalSeq) -> Option<Vec<IntervalSeq>> {
        let changes = own.lacking(PAGE, held, through)?;
        Some(changes.map(|(seq, _)| seq).collect())
    }

    #[test]
    fn what_a_copy_lacks_follows_what_it_holds() {
        let mut own = OwnChanges::default();
        for (before, seq) in [(2, 3), (3, 5), (5, 8)] {
            own.keep(PAGE, before, seq, b"runs");
        }
        assert_eq!(lacking(&own, 3, 8), Some(vec![5, 8]));
        assert_eq!(lacking(&own, 2, 8), Some(vec![3, 5, 8]));
        assert_eq!(lacking(&own, 1, 8), None, "interval 2 is not kept");
        assert_eq!(lacking(&own, 3, 9), None, "neither is interval 9");
        own.keep(PAGE, 9, 10, b"runs");
        assert_eq!(lacking(&own, 8, 10), None, "the chain is broken");
        assert_eq!(lacking(&own, 9, 10), Some(vec![10]));
        own.forget(PAGE);
        assert_eq!((lacking(&own, 9, 10), own.bytes), (None, 0));
    }

    #[test]
    fn diffs_are_kept_for_two_collectives_and_within_a_bound() {
        let mut own = OwnChanges::default();
        own.keep(PAGE, 0, 1, b"runs");
        own.meet(1);
        assert_eq!(lacking(&own, 0, 1), Some(vec![1]), "a supply ahead of this collective may lack it");
        own.meet(1);
        assert_eq!((lacking(&own, 0, 1), own.bytes), (None, 0));
        own.keep(PAGE, 1, 2, &vec![0; BYTES_MAX]);
        own.keep(PAGE, 2, 3, b"runs");
        assert_eq!((lacking(&own, 1, 3), own.bytes), (None, BYTES_MAX));
    }
}
