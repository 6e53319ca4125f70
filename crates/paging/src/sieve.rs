//! SIEVE: used pages keep their places, and the hand passes them.
//!
//! Y. Zhang, J. Yang, Y. Yue, Y. Vigfusson, K. V. Rashmi: *SIEVE is simpler than LRU: an efficient turn-key
//! As in CLOCK, the hand clears the bits of used pages and takes the first unused page. But pages are in the
//! order of their arrival, new ones at the back, and after taking one the hand continues from there. So a new
//! page is examined soon and, if unused, leaves soon (*quick demotion*), while used pages move to the front,
//! where the hand arrives once per turn (*lazy promotion*: nothing moves on a hit).

use hiroba_base::PageId;

use crate::Policy;
use crate::queues::Queues;

/// The SIEVE policy.
#[derive(Debug, Default)]
pub struct Sieve {
    /// The front came first. The note says whether a page was used.
    pages: Queues<1, bool>,
    /// Where the hand continues; `None` means at the front.
    hand: Option<PageId>,
}

impl Policy for Sieve {
    fn name(&self) -> &'static str {
        "sieve"
    }

    fn admit(&mut self, page: PageId) {
        self.pages.push(0, page, false);
    }

    fn reference(&mut self, page: PageId) {
        if let Some(used) = self.pages.note_mut(page) {
            *used = true;
        }
    }

    fn evict(&mut self, may_leave: &mut dyn FnMut(PageId) -> bool) -> Option<PageId> {
        // The first turn clears every bit, so the second one asks about each page.
        for _ in 0..2 * self.pages.total() {
            let page = self.hand.or_else(|| self.pages.front(0))?;
            self.hand = self.pages.behind(page);
            let used = self.pages.note_mut(page).is_some_and(core::mem::take);
            if !used && may_leave(page) {
                self.pages.remove(page);
                return Some(page);
            }
        }
        None
    }

    fn forget(&mut self, page: PageId) {
        if self.hand == Some(page) {
            self.hand = self.pages.behind(page);
        }
        self.pages.remove(page);
    }

    fn resident(&self) -> usize {
        self.pages.total()
    }
}
