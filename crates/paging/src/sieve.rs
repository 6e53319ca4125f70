//! SIEVE: used pages stay where they are, and the hand passes them by.
//!
//! Y. Zhang, J. Yang, Y. Yue, Y. Vigfusson, K. V. Rashmi: *SIEVE is simpler than LRU: an efficient turn-key
//! eviction algorithm for web caches*, NSDI 2024. As with CLOCK the hand clears the bits of used pages and
//! takes the first page that was not used. But pages stand in the order in which they came, new ones at the
//! back, and the hand, when it has taken one, goes on from there. So what is new is looked at soon and, if
//! it was not used, leaves soon (*quick demotion*), while what was used sinks to the front, where the hand
//! comes once a turn (*lazy promotion*: nothing moves on a hit).

use hiroba_base::PageId;

use crate::Policy;
use crate::queues::Queues;

/// SIEVE.
#[derive(Debug, Default)]
pub struct Sieve {
    /// The front came first. The note tells whether a page was used.
    pages: Queues<1, bool>,
    /// Where the hand goes on: at the front, if nowhere.
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
        // The first turn clears every bit, so in the second one each page is asked about.
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
