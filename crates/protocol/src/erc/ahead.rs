//! Fetching ahead: where faults go on page after page, the pages behind are asked for with the one that faulted, twice as many each time.

use hiroba_base::{PageId, PageRange};

use super::Erc;
use crate::coherence::{Coherence, Site};
use crate::home::Located;

/// Rows of faults that are followed at once: of several arrays, by several threads. A new one takes the place of the one that was quiet for
/// the longest time.
const ROWS_MAX: usize = 16;

/// Bounds of what one fault asks for ahead.
const AHEAD_PAGES_MAX: u64 = 64;
const AHEAD_BYTES_MAX: u64 = 1 << 20;

/// What is known of faults page after page.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    rows: Vec<Row>,
    /// Counts faults.
    clock: u64,
}

#[derive(Debug)]
struct Row {
    /// Where the next fault of the row is.
    next: PageId,
    /// Pages to ask for ahead of it.
    pages: u64,
    last_used: u64,
}

impl Ahead {
    /// A page is absent: how many pages behind it, at most, should come too.
    fn note_fault(&mut self, located: Located, pages_max: u64) -> u64 {
        self.clock += 1;
        let behind = located.span().end().0;
        if let Some(row) = self.rows.iter_mut().find(|row| row.next == located.page) {
            let pages = row.pages.min(pages_max);
            let next = PageId(behind + pages * located.granules);
            *row = Row { next, pages: pages.max(1) * 2, last_used: self.clock };
            return pages;
        }
        let row = Row { next: PageId(behind), pages: 1, last_used: self.clock };
        if self.rows.len() < ROWS_MAX {
            self.rows.push(row);
        } else if let Some(oldest) = self.rows.iter_mut().min_by_key(|row| row.last_used) {
            *oldest = row;
        }
        0
    }
}

impl Erc {
    /// Asks for what lies behind an absent page, where that is worth while.
    pub(super) fn fetch_ahead(&mut self, site: &mut Site, absent: Located) {
        let bytes = u64::from(site.page_bytes(absent.page));
        let pages = self.ahead.note_fault(absent, AHEAD_PAGES_MAX.min(AHEAD_BYTES_MAX / bytes));
        let region = site.homes.region_around(absent.page).expect("a page that faults is allocated");
        let first = absent.span().end();
        let count = (pages * absent.granules).min(region.end().0 - first.0);
        if count > 0 {
            self.prefetch(site, PageRange { first, count });
        }
    }
}
