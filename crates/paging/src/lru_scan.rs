//! Least recently used, as far as scans of reference bits tell.
//!
//! Ö. Babaoglu, W. Joy: *Converting a swap-based system to do paging in an architecture lacking
//! page-referenced bits*, SOSP 1981. True LRU would need a hook on each load. What can be had is, now and
//! then, whether a page was used since somebody looked; where the machine keeps no such bit, pages are
//! closed and the fault of the next use tells. So pages are kept in the order of the scan that last found
//! them used, and within one scan in the order that they had.
//!
//! A scan looks at all pages, so it is made once in a while: when an eighth of memory has come in since the
//! last one, or when the page that would leave was used since then.

use hiroba_base::PageId;

use crate::Policy;
use crate::queues::Queues;

/// A scan is made when this part of the pages has come in.
const SCAN_EVERY: usize = 8;

/// LRU by scans.
#[derive(Debug, Default)]
pub struct LruScan {
    /// The front was not used for longest. The note tells whether a page was used since the last scan.
    pages: Queues<1, bool>,
    admitted_since_scan: usize,
}

impl LruScan {
    /// Moves what was used to the back, in the order that it stands in.
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
                    // Once: a scan leaves no bit set.
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
