//! Compares pages at a release, a few at a time, so that the first diffs leave, and are applied at their
//! homes, while the last ones are made. The host carries effects out in order: if it got all comparisons of a
//! release at once, no diff would leave before the last page was compared, and all diffs would be in memory.

use std::collections::VecDeque;

use hiroba_base::PageId;

use crate::Effect;
use crate::coherence::Site;

/// The number of pages that the host is asked to compare before their diffs may be sent.
const COMPARED_AT_ONCE: usize = 16;

/// The comparisons of the release that is under way.
#[derive(Debug, Default)]
pub(super) struct Comparisons {
    /// Pages to compare, each with true if it keeps its twin.
    waiting: VecDeque<(PageId, bool)>,
    /// The number of pages that the host compares.
    under_way: usize,
}

impl Comparisons {
    /// Begins to compare these pages for a release.
    pub(super) fn begin(&mut self, site: &mut Site, pages: impl IntoIterator<Item = (PageId, bool)>) {
        assert!(self.waiting.is_empty() && self.under_way == 0, "a release begins when the last one is over");
        self.waiting.extend(pages);
        site.await_answers(self.waiting.len());
        self.ask(site);
    }

    /// Notes that the host has compared one of them, and that its diff has been processed.
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
