//! Steps: where faults continue at equal distances, upwards or downwards, the next pages are requested with
//! the one that faulted, twice as many each time. A step of one page upwards is trusted at once, any other
//! after it has been made twice. For protocols that push changes to copies, so that fetching one page too
//! many costs messages later: simpler than [`streams`](super::streams), and never ahead of a fault.

use hiroba_base::PageId;

use crate::coherence::Site;
use crate::home::Located;

/// The maximum number of rows of faults, of several arrays or threads, that are followed at once. A new one
/// replaces the one that was quiet for the longest time.
const ROWS_MAX: usize = 16;

/// The maximum number of pages between two faults of one row.
const STEP_PAGES_MAX: u64 = 64;

/// The bounds of the pages that one fault requests ahead.
const AHEAD_PAGES_MAX: u64 = 64;
const AHEAD_BYTES_MAX: u64 = 1 << 20;

/// The observed rows of faults in equal steps.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    rows: Vec<Row>,
    /// The number of faults so far.
    clock: u64,
}

#[derive(Debug)]
struct Row {
    /// The latest fault.
    at: PageId,
    /// The number of granules from one page to the next.
    step: i64,
    /// The place of the next fault if the row goes on.
    next: PageId,
    /// The number of pages to request with it.
    pages: u64,
    last_used: u64,
}

/// Returns the page that lies `count` steps from another one.
fn onward(from: PageId, step: i64, count: u64) -> PageId {
    PageId(from.0.wrapping_add_signed(step.wrapping_mul(count as i64)))
}

impl Steps {
    /// Notes a fault on an absent page. Returns the step, and the maximum number of pages in that step to
    /// fetch with it.
    fn note_fault(&mut self, located: Located, pages_max: u64) -> (i64, u64) {
        self.clock += 1;
        let (at, length, clock) = (located.page, located.granules as i64, self.clock);
        // With longer pages the steps may not lead from page to page.
        assert!(length > 0, "{at}: a page has granules");
        if let Some(row) = self.rows.iter_mut().find(|row| row.next == at && row.step % length == 0) {
            assert_ne!(row.step, 0, "{at}: a row leads somewhere");
            let pages = row.pages.min(pages_max);
            let next = onward(at, row.step, pages + 1);
            *row = Row { at, next, pages: pages.max(1) * 2, last_used: clock, ..*row };
            return (row.step, pages);
        }
        let step_from = |row: &Row| {
            let step = at.0.wrapping_sub(row.at.0) as i64;
            let is_step = step % length == 0 && step.unsigned_abs() / located.granules <= STEP_PAGES_MAX;
            (is_step && step != 0).then_some(step)
        };
        // A row that goes on does not begin elsewhere.
        let beginning = self.rows.iter_mut().filter(|row| row.pages == 1);
        let nearest = beginning.filter_map(|row| Some((step_from(row)?, row)));
        if let Some((step, row)) = nearest.min_by_key(|(step, _)| step.unsigned_abs()) {
            *row = Row { at, step, next: onward(at, step, 1), pages: 1, last_used: clock };
            return (step, 0);
        }
        let row = Row { at, step: length, next: onward(at, length, 1), pages: 1, last_used: clock };
        if self.rows.len() < ROWS_MAX {
            self.rows.push(row);
        } else if let Some(oldest) = self.rows.iter_mut().min_by_key(|row| row.last_used) {
            *oldest = row;
        }
        assert!(self.rows.len() <= ROWS_MAX, "no more rows are followed than may be");
        (length, 0)
    }
}

impl Steps {
    /// Returns the pages to request with an absent page that a thread waits for. The protocol omits those
    /// that are present.
    pub(crate) fn follow(&mut self, site: &Site, absent: Located) -> Vec<PageId> {
        if !site.prefetches {
            return Vec::new();
        }
        let bytes = u64::from(site.page_bytes(absent.page));
        let (step, pages) = self.note_fault(absent, AHEAD_PAGES_MAX.min(AHEAD_BYTES_MAX / bytes));
        let region = site.homes.region_around(absent.page).expect("a page that faults is allocated");
        let ahead = (1..=pages).map(|count| onward(absent.page, step, count));
        ahead.take_while(|page| region.contains(*page)).collect()
    }
}

#[cfg(test)]
mod tests {
    use hiroba_base::NodeId;

    use super::*;

    /// Returns the pages requested ahead as a program goes through pages of two granules.
    fn asked(steps: &mut Steps, pages: impl IntoIterator<Item = u64>) -> Vec<(i64, u64)> {
        let located = |page| Located { page: PageId(page * 2), granules: 2, home: NodeId(1) };
        pages
            .into_iter()
            .map(|page| steps.note_fault(located(page), 8))
            .filter(|(_, pages)| *pages > 0)
            .collect()
    }

    #[test]
    fn page_after_page_more_and_more_are_asked_for() {
        let mut steps = Steps::default();
        assert_eq!(asked(&mut steps, [10, 11, 13, 16, 21]), [(2, 1), (2, 2), (2, 4), (2, 8)]);
        assert_eq!(asked(&mut steps, [30]), [(2, 8)], "no more than the bound");
    }

    #[test]
    fn other_steps_are_believed_when_they_have_been_made_twice() {
        assert_eq!(asked(&mut Steps::default(), [10, 13, 16, 22]), [(6, 1), (6, 2)]);
        assert_eq!(asked(&mut Steps::default(), [100, 99, 98, 96, 93]), [(-2, 1), (-2, 2), (-2, 4)]);
        assert_eq!(asked(&mut Steps::default(), [10, 13, 17, 22, 28]), [], "no two alike");
    }

    #[test]
    fn rows_go_on_beside_each_other() {
        let both = [10, 1000, 11, 997, 13, 994, 16, 988];
        assert_eq!(asked(&mut Steps::default(), both), [(2, 1), (2, 2), (-6, 1), (2, 4), (-6, 2)]);
    }
}
