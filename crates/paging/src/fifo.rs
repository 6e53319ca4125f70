//! First in, first out: the oldest page leaves first, used or not.
//!
//! L. A. Belady, R. A. Nelson, G. S. Shedler: *An anomaly in space-time characteristics of certain programs
//! running in a paging machine*, CACM 12(6), 1969: with FIFO, more memory may mean more faults. The
//! references 1 2 3 4 1 2 5 1 2 3 4 5 need nine page-ins with three frames and ten with four.
//!
//! It ignores references, so it costs nothing while pages are used. It is one of the two policies that
//! Hattori, Yamamoto and Amano compare.

use hiroba_base::PageId;

use crate::Policy;
use crate::queues::Queues;

/// The FIFO policy.
#[derive(Debug, Default)]
pub struct Fifo {
    pages: Queues<1, ()>,
}

impl Policy for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn admit(&mut self, page: PageId) {
        self.pages.push(0, page, ());
    }

    fn reference(&mut self, _page: PageId) {}

    fn evict(&mut self, may_leave: &mut dyn FnMut(PageId) -> bool) -> Option<PageId> {
        // A page that may not leave keeps its place, and is asked about first the next time.
        let mut at = self.pages.front(0);
        while let Some(page) = at {
            if may_leave(page) {
                self.pages.remove(page);
                return Some(page);
            }
            at = self.pages.behind(page);
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
