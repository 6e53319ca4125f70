//! Comparing pages at a release: a few at a time, so that the first diffs leave, and are applied at their
//! homes, while the last ones are made. The host carries effects out in order: had it all comparisons of a
//! release at once, no diff would leave before the last page was compared, and all diffs would be in memory.

use std::collections::VecDeque;

use hiroba_base::PageId;

use crate::Effect;
use crate::coherence::Site;

/// Pages that the host is asked to compare before what has come of it may be sent.
const COMPARED_AT_ONCE: usize = 16;

/// The comparisons of the release that is under way.
#[derive(Debug, Default)]
pub(super) struct Comparisons {
    /// Pages to be compared, and whether they keep their twins.
    waiting: VecDeque<(PageId, bool)>,
    /// Pages that the host compares.
    under_way: usize,
}

impl Comparisons {
    /// A release compares these pages.
    pub(super) fn begin(&mut self, site: &mut Site, pages: impl IntoIterator<Item = (PageId, bool)>) {
        assert!(self.waiting.is_empty() && self.under_way == 0, "a release begins when the last one is over");
        self.waiting.extend(pages);
        site.await_answers(self.waiting.len());
        self.ask(site);
    }

    /// The host has compared one of them, and what follows from that is said.
    pub(super) fn note_answer(&mut self, site: &mut Site) {
        self.under_way = self.under_way.checked_sub(1).expect("the host compares what it was asked to");
        if self.under_way == 0 {
            self.ask(site);
        }
    }

    fn ask(&mut self, site: &mut Site) {
        let next = self.waiting.len().min(COMPARED_AT_ONCE);
        self.under_way = next;
        let effects = self.waiting.drain(..next).map(|(page, keep_twin)| Effect::Diff { page, keep_twin });
        site.out.extend(effects);
    }
}
