//! A node's budget of memory for shared pages (`--memory-limit`): which copies leave when it is exceeded.
//!
//! Frames and twins count. What leaves are copies of other nodes' pages; a replacement policy chooses among
//! them. It hears of a copy when it comes, and that it was used when it comes again or when the kernel has
//! noted a store to it, which releases ask for anyway: so its knowledge costs nothing.

use std::collections::VecDeque;

use hiroba_base::PageId;
use hiroba_paging::{Policy, PolicyKind};
use rustc_hash::FxHashSet;

/// The latest copies stay: a thread may have waited for one of them, and is yet to come back from its fault.
const LATEST_STAY: usize = 32;

/// Copies that leave in one go: then memory is looked at again.
const LEAVERS_MAX: u64 = 64;

/// Once exceeded, the budget is kept by this part of it more, so that not every copy that comes makes one
/// leave.
const SLACK_PART: u64 = 64;

/// The user is told of an excess of this part of the budget.
const TOLD_FROM_PART: u64 = 8;

/// The budget, and what is known of the copies that it is spent on.
pub(crate) struct Budget {
    pub(crate) limit_bytes: u64,
    /// Of most pages; with their twins they take up to twice as much.
    page_bytes: u64,
    policy: Box<dyn Policy>,
    /// All copies, those that are leaving included.
    copies: FxHashSet<PageId>,
    /// Copies that the policy has let go, and that are still here.
    leaving: FxHashSet<PageId>,
    latest: VecDeque<PageId>,
    /// So much was left when nothing more would leave: until there is more, nobody tries again.
    stuck_bytes: u64,
}

impl Budget {
    pub(crate) fn new(limit_bytes: u64, page_bytes: u64, kind: PolicyKind) -> Budget {
        Budget {
            limit_bytes,
            page_bytes,
            policy: kind.make(),
            copies: FxHashSet::default(),
            leaving: FxHashSet::default(),
            latest: VecDeque::with_capacity(LATEST_STAY),
            stuck_bytes: 0,
        }
    }

    /// A copy has come.
    pub(crate) fn note_copy(&mut self, page: PageId) {
        if self.latest.len() == LATEST_STAY {
            self.latest.pop_front();
        }
        self.latest.push_back(page);
        if self.copies.insert(page) {
            self.policy.admit(page);
        } else {
            self.policy.reference(page);
        }
    }

    /// The program has stored to a page, which may be a copy.
    pub(crate) fn note_store(&mut self, page: PageId) {
        self.policy.reference(page);
    }

    /// The copy has left.
    pub(crate) fn note_left(&mut self, page: PageId) {
        self.copies.remove(&page);
        if !self.leaving.remove(&page) {
            self.policy.forget(page);
        }
    }

    /// Whether copies should leave. Where this node's own pages take more than the budget, or all copies
    /// are in use, it is exceeded without end, and this is not.
    pub(crate) fn is_exceeded(&self, resident_bytes: u64) -> bool {
        resident_bytes > self.limit_bytes.max(self.stuck_bytes)
    }

    /// The next copies to leave; none when there is room enough, or no copy that may leave.
    pub(crate) fn choose(&mut self, resident_bytes: u64) -> Vec<PageId> {
        let wanted = self.limit_bytes - self.limit_bytes / SLACK_PART;
        let excess = resident_bytes.saturating_sub(wanted).div_ceil(self.page_bytes).min(LEAVERS_MAX);
        let Budget { policy, latest, leaving, .. } = self;
        let mut leavers = Vec::new();
        for _ in 0..excess {
            let Some(page) = policy.evict(&mut |page| !latest.contains(&page)) else { break };
            leaving.insert(page);
            leavers.push(page);
        }
        leavers
    }

    /// Those that were chosen have left as far as they could; whether any has.
    pub(crate) fn end_round(&mut self, chosen: usize) -> bool {
        let stay: Vec<PageId> = self.leaving.drain().collect();
        let have_left = stay.len() < chosen;
        stay.into_iter().for_each(|page| self.policy.admit(page));
        have_left
    }

    /// Notes that no more copies will leave now. Returns whether the node exceeds its budget by so much that
    /// the user should know. Pages on their way exceed it a little for a moment.
    pub(crate) fn end(&mut self, resident_bytes: u64) -> bool {
        let is_above = resident_bytes > self.limit_bytes;
        self.stuck_bytes = if is_above { resident_bytes } else { 0 };
        resident_bytes > self.limit_bytes + self.limit_bytes / TOLD_FROM_PART
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget_of(pages: u64) -> Budget {
        Budget::new(pages * 4096, 4096, PolicyKind::Fifo)
    }

    #[test]
    fn the_oldest_leave_and_the_latest_stay() {
        let mut budget = budget_of(64);
        (0..70).for_each(|page| budget.note_copy(PageId(page)));
        assert!(budget.is_exceeded(70 * 4096) && !budget.is_exceeded(64 * 4096));
        let leavers = budget.choose(70 * 4096);
        assert_eq!(leavers, (0..7).map(PageId).collect::<Vec<_>>(), "and a little more than the excess");
        leavers.iter().for_each(|page| budget.note_left(*page));
        assert!(budget.end_round(7) && !budget.end(63 * 4096));
        assert_eq!(budget.choose(1000 * 4096).len(), 63 - LATEST_STAY);
    }

    #[test]
    fn what_cannot_leave_is_not_tried_again_until_there_is_more() {
        let mut budget = budget_of(64);
        (0..100).for_each(|page| budget.note_copy(PageId(page)));
        let leavers = budget.choose(100 * 4096);
        budget.note_left(leavers[0]);
        assert!(budget.end_round(leavers.len()), "one has left");
        let again = budget.choose(99 * 4096);
        assert!(!again.is_empty() && !budget.end_round(again.len()));
        assert!(budget.end(99 * 4096));
        assert!(!budget.is_exceeded(99 * 4096) && budget.is_exceeded(100 * 4096));
        assert!(!budget.end(10 * 4096) && budget.is_exceeded(65 * 4096));
    }
}
