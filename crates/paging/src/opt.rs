//! OPT: the page whose next use is furthest away leaves.
//!
//! L. A. Belady: *A study of replacement algorithms for a virtual-storage computer*, IBM Systems Journal
//! No policy brings in fewer pages. It needs the future, so it only runs over a recorded trace and is the
//! reference for the others. It minimises the pages brought in; it ignores that writing dirty pages out also
//! costs.

use std::collections::BTreeSet;

use core::cmp::Reverse;

use hiroba_base::PageId;
use rustc_hash::FxHashMap;

use crate::Policy;

/// The next use of a page that is not used again.
const NEVER: usize = usize::MAX;

/// OPT over one trace. It must be informed of each use in the trace's order: of hits by
/// [`Policy::reference`], of misses by [`Policy::admit`].
#[derive(Debug)]
pub struct Opt {
    trace: Vec<PageId>,
    /// For each use in the trace, the place of the same page's next use.
    next: Vec<usize>,
    at: usize,
    /// The next use of each page in memory.
    uses: FxHashMap<PageId, usize>,
    /// The same, the furthest first.
    order: BTreeSet<(Reverse<usize>, PageId)>,
}

impl Opt {
    /// Makes the policy for a trace.
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
