//! Fetching ahead: where faults go on in equal steps, upwards or downwards, the pages behind are asked for with the one that faulted, twice as
//! many each time. A step of one page upwards is believed at once, any other when it has been made twice.

use hiroba_base::PageId;

use super::Erc;
use crate::coherence::Site;
use crate::home::Located;

/// Rows of faults that are followed at once: of several arrays, by several threads. A new one takes the place of the one that was quiet for
/// the longest time.
const ROWS_MAX: usize = 16;

/// Pages between two faults of one row, at most.
const STEP_PAGES_MAX: u64 = 64;

/// Bounds of what one fault asks for ahead.
const AHEAD_PAGES_MAX: u64 = 64;
const AHEAD_BYTES_MAX: u64 = 1 << 20;

/// What is known of faults in equal steps.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    rows: Vec<Row>,
    /// Counts faults.
    clock: u64,
}

#[derive(Debug)]
struct Row {
    /// The latest fault.
    at: PageId,
    /// Granules from one page to the next.
    step: i64,
    /// Where the next fault of the row is, if it goes on.
    next: PageId,
    /// Pages to ask for ahead of it.
    pages: u64,
    last_used: u64,
}

/// So many steps from a page.
fn onward(from: PageId, step: i64, count: u64) -> PageId {
    PageId(from.0.wrapping_add_signed(step.wrapping_mul(count as i64)))
}

impl Ahead {
    /// A page is absent: in which steps from it, and how many pages at most, should come too.
    fn note_fault(&mut self, located: Located, pages_max: u64) -> (i64, u64) {
        self.clock += 1;
        let (at, length, clock) = (located.page, located.granules as i64, self.clock);
        // Where pages are longer the steps may not lead from page to page.
        if let Some(row) = self.rows.iter_mut().find(|row| row.next == at && row.step % length == 0) {
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
        // A row that goes on is none that begins elsewhere.
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
        (length, 0)
    }
}

impl Erc {
    /// Asks for what lies ahead of an absent page, where that is worth while.
    pub(super) fn fetch_ahead(&mut self, site: &mut Site, absent: Located) {
        if !site.fetches_ahead {
            return;
        }
        let bytes = u64::from(site.page_bytes(absent.page));
        let (step, pages) = self.ahead.note_fault(absent, AHEAD_PAGES_MAX.min(AHEAD_BYTES_MAX / bytes));
        if pages == 0 {
            return;
        }
        let region = site.homes.region_around(absent.page).expect("a page that faults is allocated");
        let ahead = (1..=pages).map(|count| onward(absent.page, step, count));
        let ahead: Vec<PageId> = ahead.take_while(|page| region.contains(*page)).collect();
        self.ask_ahead(site, ahead);
    }
}

#[cfg(test)]
mod tests {
    use hiroba_base::NodeId;

    use super::*;

    /// What is asked for ahead as a program goes through pages of two granules.
    fn asked(ahead: &mut Ahead, pages: impl IntoIterator<Item = u64>) -> Vec<(i64, u64)> {
        let located = |page| Located { page: PageId(page * 2), granules: 2, home: NodeId(1) };
        pages
            .into_iter()
            .map(|page| ahead.note_fault(located(page), 8))
            .filter(|(_, pages)| *pages > 0)
            .collect()
    }

    #[test]
    fn page_after_page_more_and_more_are_asked_for() {
        let mut ahead = Ahead::default();
        assert_eq!(asked(&mut ahead, [10, 11, 13, 16, 21]), [(2, 1), (2, 2), (2, 4), (2, 8)]);
        assert_eq!(asked(&mut ahead, [30]), [(2, 8)], "no more than the bound");
    }

    #[test]
    fn other_steps_are_believed_when_they_have_been_made_twice() {
        assert_eq!(asked(&mut Ahead::default(), [10, 13, 16, 22]), [(6, 1), (6, 2)]);
        assert_eq!(asked(&mut Ahead::default(), [100, 99, 98, 96, 93]), [(-2, 1), (-2, 2), (-2, 4)]);
        assert_eq!(asked(&mut Ahead::default(), [10, 13, 17, 22, 28]), [], "no two alike");
    }

    #[test]
    fn rows_go_on_beside_each_other() {
        let both = [10, 1000, 11, 997, 13, 994, 16, 988];
        assert_eq!(asked(&mut Ahead::default(), both), [(2, 1), (2, 2), (-6, 1), (2, 4), (-6, 2)]);
    }
}
