//! S3-FIFO: a small queue for new pages, a main queue, and a queue of pages that left.
//!
//! J. Yang, Y. Zhang, Z. Qiu, Y. Yue, K. V. Rashmi: *FIFO queues are all you need for cache eviction*, SOSP
//! Most pages of most traces are used once and not again for long. They enter the *small* queue, a tenth of
//! memory, and leave from there without displacing any page of the *main* queue. A page that was used more
//! than once meanwhile moves to the main queue, in which it has as many second chances as it was used, at
//! most three. The *ghost* queue contains the names of pages that left the small queue: a page that comes
//! back while its name is kept there goes to the main queue at once.
//!
//! # Deviations
//!
//! - The paper's ghost queue has as many entries as the main queue has room for. Here it has at most as many
//!   as there are pages in memory.
//! - A page that may not leave goes to the back of its queue.

use hiroba_base::PageId;

use crate::Policy;
use crate::queues::Queues;

const SMALL: usize = 0;
const MAIN: usize = 1;
const GHOST: usize = 2;

/// The fraction of memory for the small queue.
const SMALL_PART: usize = 10;
/// Uses are counted up to this number.
const USES_MAX: u8 = 3;

/// The S3-FIFO policy.
#[derive(Debug, Default)]
pub struct S3Fifo {
    /// The note counts the uses.
    pages: Queues<3, u8>,
}

impl S3Fifo {
    fn evict_small(&mut self, may_leave: &mut dyn FnMut(PageId) -> bool) -> Option<PageId> {
        for _ in 0..self.pages.length(SMALL) {
            let page = self.pages.front(SMALL)?;
            let uses = self.pages.note_mut(page).map_or(0, |uses| *uses);
            if uses > 1 {
                self.pages.requeue(MAIN, page, 0);
            } else if may_leave(page) {
                self.pages.requeue(GHOST, page, 0);
                return Some(page);
            } else {
                self.pages.requeue(SMALL, page, uses);
            }
        }
        None
    }

    fn evict_main(&mut self, may_leave: &mut dyn FnMut(PageId) -> bool) -> Option<PageId> {
        // After this many turns no page has a chance left.
        for _ in 0..(usize::from(USES_MAX) + 1) * self.pages.length(MAIN) {
            let page = self.pages.front(MAIN)?;
            let uses = self.pages.note_mut(page).map_or(0, |uses| *uses);
            if uses == 0 && may_leave(page) {
                self.pages.remove(page);
                return Some(page);
            }
            self.pages.requeue(MAIN, page, uses.saturating_sub(1));
        }
        None
    }

    fn shorten_ghosts(&mut self) {
        while self.pages.length(GHOST) > self.resident() {
            let Some(oldest) = self.pages.front(GHOST) else { break };
            self.pages.remove(oldest);
        }
    }
}

impl Policy for S3Fifo {
    fn name(&self) -> &'static str {
        "s3-fifo"
    }

    fn admit(&mut self, page: PageId) {
        let queue = if self.pages.queue_of(page) == Some(GHOST) { MAIN } else { SMALL };
        self.pages.requeue(queue, page, 0);
    }

    fn reference(&mut self, page: PageId) {
        if let Some(uses) = self.pages.note_mut(page) {
            *uses = (*uses + 1).min(USES_MAX);
        }
    }

    fn evict(&mut self, may_leave: &mut dyn FnMut(PageId) -> bool) -> Option<PageId> {
        let small_first = self.pages.length(SMALL) * SMALL_PART >= self.resident();
        let page = if small_first {
            self.evict_small(may_leave).or_else(|| self.evict_main(may_leave))
        } else {
            // If no page of the main queue may leave: the small one, and the pages that it moves on.
            self.evict_main(may_leave)
                .or_else(|| self.evict_small(may_leave))
                .or_else(|| self.evict_main(may_leave))
        };
        self.shorten_ghosts();
        page
    }

    fn forget(&mut self, page: PageId) {
        self.pages.remove(page);
        self.shorten_ghosts();
    }

    fn resident(&self) -> usize {
        self.pages.length(SMALL) + self.pages.length(MAIN)
    }

    fn remembered(&self) -> usize {
        self.pages.total()
    }
}
