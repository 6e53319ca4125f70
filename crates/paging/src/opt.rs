//! OPT: the page leaves whose next use is furthest away.
//!
//! L. A. Belady: *A study of replacement algorithms for a virtual-storage computer*, IBM Systems Journal
//! 5(2), 1966. No policy brings in fewer pages, whatever it knows. It needs the future, so it runs over a
//! recorded trace only and is the yardstick of the others. It counts pages that come in; that dirty pages
//! also cost a way out is not its concern.

use std::collections::BTreeSet;

use core::cmp::Reverse;

use hiroba_base::PageId;
use rustc_hash::FxHashMap;

use crate::Policy;

/// A use that never comes.
const NEVER: usize = usize::MAX;

/// OPT over one trace: it must be told of each use in the trace's order, of hits by [`Policy::reference`], of
/// misses by [`Policy::admit`].
#[derive(Debug)]
pub struct Opt {
    trace: Vec<PageId>,
    /// For each use of the trace the place of the same page's next one.
    next: Vec<usize>,
    at: usize,
    /// The next use of each page in memory.
    uses: FxHashMap<PageId, usize>,
    /// The same, the furthest first.
    order: BTreeSet<(Reverse<usize>, PageId)>,
}

impl Opt {
    /// Looks through the trace.
    pub fn over(trace: Vec<PageId>) -> Opt {
        let mut next = vec![NEVER; trace.len()];
        let mut seen = FxHashMap::default();
        for (at, page) in trace.iter().enumerate().rev() {
            next[at] = seen.insert(*page, at).unwrap_or(NEVER);
        }
        Opt { trace, next, at: 0, uses: FxHashMap::default(), order: BTreeSet::new() }
    }

    /// Steps over a use of the trace.
    fn step(&mut self, page: PageId) {
        assert_eq!(self.trace.get(self.at), Some(&page), "uses are told in the trace's order");
        let next = self.next[self.at];
        self.at += 1;
        if let Some(before) = self.uses.insert(page, next) {
            self.order.remove(&(Reverse(before), page));
        }
        self.order.insert((Reverse(next), page));
    }
}

impl Policy for Opt {
    fn name(&self) -> &'static str {
        "opt"
    }

    fn admit(&mut self, page: PageId) {
        self.step(page);
    }

    fn reference(&mut self, page: PageId) {
        if self.uses.contains_key(&page) {
            self.step(page);
        }
    }

    fn evict(&mut self, may_leave: &mut dyn FnMut(PageId) -> bool) -> Option<PageId> {
        let found = self.order.iter().find(|(_, page)| may_leave(*page)).copied()?;
        self.order.remove(&found);
        self.uses.remove(&found.1);
        Some(found.1)
    }

    fn forget(&mut self, page: PageId) {
        if let Some(next) = self.uses.remove(&page) {
            self.order.remove(&(Reverse(next), page));
        }
    }

    fn resident(&self) -> usize {
        self.uses.len()
    }

    fn remembered(&self) -> usize {
        self.uses.len()
    }
}
