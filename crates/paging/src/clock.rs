//! CLOCK: FIFO with a second chance for pages that were used.
//!
//! F. J. Corbató: *A paging experiment with the Multics system*, MIT Project MAC memo MAC-M-384, 1968.
//! Pages form a circle, each with a bit that is set when the page is used. A hand goes round. Where the bit
//! is set, it clears it and moves on; where it is clear, the page leaves, and the new page takes its place,
//! just behind the hand. So a page leaves if it was not used for a whole turn. That approximates *least
//! recently used* with one bit per page, which is why Hattori, Yamamoto and Amano call it pseudo-LRU.
//!
//! The circle is a queue here: the hand is at its front, and pages that it passes go to the back.

use hiroba_base::PageId;

use crate::Policy;
use crate::queues::Queues;

/// The CLOCK policy.
#[derive(Debug, Default)]
pub struct Clock {
    /// The note is the bit.
    pages: Queues<1, bool>,
}

impl Policy for Clock {
    fn name(&self) -> &'static str {
        "clock"
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
            let page = self.pages.front(0)?;
            let used = self.pages.note_mut(page).is_some_and(core::mem::take);
            if !used && may_leave(page) {
                self.pages.remove(page);
                return Some(page);
            }
            self.pages.requeue(0, page, false);
        }
        None
    }

    fn forget(&mut self, page: PageId) {
        self.pages.remove(page);
    }

    fn resident(&self) -> usize {
        self.pages.total()
    }
}
