//! LRU approximated by scans of reference bits.
//!
//! Ö. Babaoglu, W. Joy: *Converting a swap-based system to do paging in an architecture lacking
//! True LRU would need a hook on each load. A machine can only report from time to time whether a page was
//! used since the last query; where it has no such bit, pages are closed and the next use faults. So pages
//! are kept in the order of the scan that last found them used, and within one scan in their previous order.
//!
//! A scan examines all pages, so it is made seldom: when an eighth of memory has arrived since the last one,
//! or when the page that would leave was used since then.

use hiroba_base::PageId;

use crate::Policy;
use crate::queues::Queues;

/// A scan is made when this fraction of the pages has arrived.
const SCAN_EVERY: usize = 8;

/// The policy: LRU by scans.
#[derive(Debug, Default)]
pub struct LruScan {
    /// The front was unused for longest. The note says whether a page was used since the last scan.
    pages: Queues<1, bool>,
    admitted_since_scan: usize,
}

impl LruScan {
    /// Moves used pages to the back, in their present order.
    fn scan(&mut self) {
        self.admitted_since_scan = 0;
        let mut at = self.pages.front(0);
        for _ in 0..self.pages.total() {
            let Some(page) = at else { break };
            at = self.pages.behind(page);
            if self.pages.note_mut(page).is_some_and(|used| *used) {
                self.pages.requeue(0, page, false);
            }
        }
    }
}

impl Policy for LruScan {
    fn name(&self) -> &'static str {
        "lru-scan"
    }

    fn admit(&mut self, page: PageId) {
        self.pages.push(0, page, false);
        self.admitted_since_scan += 1;
        if self.admitted_since_scan > self.pages.total() / SCAN_EVERY {
            self.scan();
        }
    }

    fn reference(&mut self, page: PageId) {
        if let Some(used) = self.pages.note_mut(page) {
            *used = true;
        }
    }

    fn evict(&mut self, may_leave: &mut dyn FnMut(PageId) -> bool) -> Option<PageId> {
        let mut at = self.pages.front(0);
        while let Some(page) = at {
            if may_leave(page) {
                if self.pages.note_mut(page).is_some_and(|used| *used) {
                    // At most once: a scan leaves no bit set.
                    self.scan();
                    return self.evict(may_leave);
                }
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
