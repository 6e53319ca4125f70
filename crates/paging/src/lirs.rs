//! LIRS: keeps pages whose uses are close together.
//!
//! S. Jiang, X. Zhang: *LIRS: an efficient low inter-reference recency set replacement policy to improve
//! A page's *inter-reference recency* is the number of other pages used between its last two uses. Pages with
//! a low recency (LIR) fill nearly all of memory and do not leave. The others (HIR) share one hundredth of
//! it, and leave in the order of their arrival. In a loop over more pages than fit, LRU, CLOCK and FIFO miss
//! at each step; LIRS keeps as many pages as fit.
//!
//! The *stack* contains pages in the order of their last uses: all LIR pages, and those HIR pages, resident
//! or not, that were used after the LIR page at its bottom. A HIR page that is used while it is in the stack
//! has a lower recency than that page: it becomes LIR, and the page at the bottom becomes HIR. The stack is
//! then *pruned*: HIR pages below the last LIR page can no longer win, and are removed.
//!
//! # Deviations
//!
//! - The size of memory is only known at the first eviction. Until then all pages are LIR; then a hundredth
//!   of them, from the bottom, become HIR.
//! - The stack contains at most as many pages that have left as are in memory; the one that left first is
//!   dropped.

use hiroba_base::PageId;

use crate::Policy;
use crate::queues::Queues;

/// The fraction of memory for HIR pages, which is at least one page.
const HIR_PART: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Lir,
    HirHere,
    HirGone,
}

/// The LIRS policy.
#[derive(Debug, Default)]
pub struct Lirs {
    /// The back was used last: the top of the paper's stack S.
    stack: Queues<1, Kind>,
    /// HIR pages in memory, the paper's list Q: the front leaves first.
    here: Queues<1, ()>,
    /// HIR pages of the stack that have left, in that order.
    gone: Queues<1, ()>,
    lir: usize,
    /// The intended number of LIR pages; `None` until a page has to leave.
    lir_wanted: Option<usize>,
}

impl Lirs {
    fn push(&mut self, page: PageId, kind: Kind) {
        self.stack.requeue(0, page, kind);
    }

    /// Removes HIR pages below the last LIR page.
    fn prune(&mut self) {
        while let Some(bottom) = self.stack.front(0) {
            if self.stack.note_mut(bottom).is_some_and(|kind| *kind == Kind::Lir) {
                break;
            }
            self.stack.remove(bottom);
            self.gone.remove(bottom);
        }
    }

    /// Turns the LIR page at the bottom into a HIR page.
    fn demote(&mut self) {
        self.prune();
        let Some(bottom) = self.stack.front(0) else { return };
        self.stack.remove(bottom);
        self.lir -= 1;
        self.here.push(0, bottom, ());
        self.prune();
    }

    /// Turns a HIR page of the stack into a LIR page.
    fn promote(&mut self, page: PageId) {
        self.here.remove(page);
        self.gone.remove(page);
        self.push(page, Kind::Lir);
        self.lir += 1;
        if self.lir_wanted.is_some_and(|wanted| self.lir > wanted) {
            self.demote();
        }
    }

    fn shorten_gone(&mut self) {
        while self.gone.total() > self.resident() {
            let Some(oldest) = self.gone.front(0) else { break };
            self.gone.remove(oldest);
            self.stack.remove(oldest);
        }
    }

    /// Removes a HIR page from memory. Its entry in the stack, if any, stays.
    fn leave(&mut self, page: PageId) {
        self.here.remove(page);
        if let Some(kind) = self.stack.note_mut(page) {
            *kind = Kind::HirGone;
            self.gone.push(0, page, ());
        }
    }

    fn first_here(&self, may_leave: &mut dyn FnMut(PageId) -> bool) -> Option<PageId> {
        let mut at = self.here.front(0);
        while let Some(page) = at {
            if may_leave(page) {
                return Some(page);
            }
            at = self.here.behind(page);
        }
        None
    }
}

impl Policy for Lirs {
    fn name(&self) -> &'static str {
        "lirs"
    }

    fn admit(&mut self, page: PageId) {
        if self.stack.queue_of(page).is_some() {
            // It left while its recency was still lower than that of the LIR page at the bottom.
            self.promote(page);
        } else if self.lir_wanted.is_none_or(|wanted| self.lir < wanted) {
            self.push(page, Kind::Lir);
            self.lir += 1;
        } else {
            self.push(page, Kind::HirHere);
            self.here.push(0, page, ());
        }
    }

    fn reference(&mut self, page: PageId) {
        match self.stack.note_mut(page) {
            Some(Kind::Lir) => {
                self.push(page, Kind::Lir);
                self.prune();
            }
            Some(Kind::HirHere) => self.promote(page),
            Some(Kind::HirGone) => {}
            None => {
                if self.here.queue_of(page).is_some() {
                    self.push(page, Kind::HirHere);
                    self.here.requeue(0, page, ());
                }
            }
        }
    }

    fn evict(&mut self, may_leave: &mut dyn FnMut(PageId) -> bool) -> Option<PageId> {
        let resident = self.resident();
        let hir_wanted = (resident / HIR_PART).max(1);
        self.lir_wanted = Some(resident.saturating_sub(hir_wanted));
        while self.lir > resident.saturating_sub(hir_wanted) {
            self.demote();
        }
        let page = loop {
            if let Some(page) = self.first_here(may_leave) {
                break page;
            }
            if self.lir == 0 {
                return None;
            }
            // No HIR page may leave: the page at the bottom is next.
            self.demote();
        };
        self.leave(page);
        self.shorten_gone();
        Some(page)
    }

    fn forget(&mut self, page: PageId) {
        if self.stack.note_mut(page).is_some_and(|kind| *kind == Kind::Lir) {
            self.lir -= 1;
        }
        self.stack.remove(page);
        self.here.remove(page);
        self.gone.remove(page);
        self.prune();
        self.shorten_gone();
    }

    fn resident(&self) -> usize {
        self.lir + self.here.total()
    }

    fn remembered(&self) -> usize {
        self.resident() + self.gone.total()
    }
}
