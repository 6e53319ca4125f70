//! Pages that the program writes again and again: they are opened at the departure from a collective, before
//! a thread stores to them.
//!
//! Where stores fault, the first store to a page faults in each interval, although a loop that writes an
//! array does so in each of its phases. So the distances between a page's writes are noted, in numbers of
//! collectives, and the next one is expected by their [rhythm](crate::anticipation::rhythm); behind a new
//! distance, the same again, unless that failed twice. At the departure before the expected write the page is
//! opened like one that follows a run of stores ([`Hlrc::open_ahead`]): it gets a twin, and is compared when
//! the interval ends, so that one that was not written has no notice. An expected page that is absent is
//! opened when it comes.
//!
//! Bounds: an expectation that fails is dropped, so that it costs one twin and one comparison. A home page
//! that no other node has fetched lately is not shared any more (`reclaiming.rs`), and is left to fault:
//! after that it is exclusive, and costs nothing.

use std::collections::BTreeMap;

use hiroba_base::{Access, PageId, PageSet};
use rustc_hash::FxHashMap;

use super::{Hlrc, Page};
use crate::anticipation::rhythm::Rhythm;
use crate::coherence::Site;

/// How often a page that was expected may stay unwritten until new distances are not expected again.
const FAILURES_MAX: u8 = 2;

/// The pages that the program has written, and those that it is expected to write.
#[derive(Debug, Default)]
pub(super) struct Rewriting {
    /// Pages written since the last collective.
    written: PageSet,
    writes: FxHashMap<PageId, Writes>,
    /// The pages that are expected to be written, by the number of collectives before that.
    due: BTreeMap<u64, PageSet>,
    /// Those that are expected in this phase.
    expected: PageSet,
}

/// When a page was written.
#[derive(Clone, Debug, Default)]
struct Writes {
    /// The number of collectives before the last write; 0 before the first one.
    last: u64,
    rhythm: Rhythm,
    /// How often the page was expected and not written, since it was last written as expected.
    failures: u8,
}

impl Writes {
    /// Notes a write. Returns the distance to the next one, if it can be expected.
    fn note(&mut self, now: u64) -> Option<u64> {
        let last = std::mem::replace(&mut self.last, now);
        if last == 0 {
            return None;
        }
        self.rhythm.note(now - last);
        self.rhythm.next().or_else(|| self.rhythm.latest().filter(|_| self.failures < FAILURES_MAX))
    }
}

impl Rewriting {
    fn note_written(&mut self, page: PageId) {
        self.written.insert(page);
    }

    /// Returns true if the page is expected to be written before the next collective.
    pub(super) fn expects(&self, page: PageId) -> bool {
        self.expected.contains(page)
    }

    /// Begins what follows collective number `now`. Returns the pages that are expected to be written.
    fn begin_phase(&mut self, now: u64) -> PageSet {
        for page in self.expected.iter() {
            let writes = self.writes.entry(page).or_default();
            writes.failures = if self.written.contains(page) { 0 } else { writes.failures.saturating_add(1) };
        }
        for page in std::mem::take(&mut self.written).iter() {
            if let Some(distance) = self.writes.entry(page).or_default().note(now) {
                // Written before this collective, and that far from it again.
                self.due.entry(now + distance - 1).or_default().insert(page);
            }
        }
        let later = self.due.split_off(&(now + 1));
        self.expected = std::mem::replace(&mut self.due, later).remove(&now).unwrap_or_default();
        self.expected.clone()
    }
}

impl Hlrc {
    /// Notes that the program has written the page in the interval that is being closed.
    pub(super) fn note_rewriting(&mut self, page: PageId) {
        if self.ordered.is_on() {
            self.rewriting.note_written(page);
        }
    }

    /// Opens the pages that the program is expected to write before the next collective.
    pub(super) fn open_expected(&mut self, site: &mut Site) {
        if !self.ordered.is_on() || !site.prefetches {
            return;
        }
        let due = self.rewriting.begin_phase(site.collectives_done);
        let (mut homes, mut copies) = (PageSet::new(), Vec::new());
        for page_id in due.iter() {
            let is_home = site.is_home(page_id);
            let is_free = !self.moves.keeps_away(page_id) && !site.is_async(page_id);
            let Some(page) = self.pages.get(&page_id).filter(|_| is_free) else { continue };
            if !page.may_be_opened() {
                // A thread has been faster, or it is under another protocol by now.
            } else if !is_home && page.valid {
                copies.push((page_id, Access::Write));
            } else if is_home && page.shared && !page.unnoticed && !page.has_words {
                homes.insert(page_id);
            }
        }
        self.give_copies(site, copies);
        self.open_home_pages(site, &homes);
    }
}

impl Page {
    /// Returns true if nothing about the page is under way, and stores to it fault.
    fn may_be_opened(&self) -> bool {
        !self.twin && self.access < Access::Write && self.fetch.is_none() && self.needed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(phases: &[&[u64]]) -> Vec<Vec<u64>> {
        let mut rewriting = Rewriting::default();
        let phases = phases.iter().zip(1..);
        let expected = phases.map(|(written, now)| {
            written.iter().for_each(|page| rewriting.note_written(PageId(*page)));
            rewriting.begin_phase(now).iter().map(|page| page.0).collect()
        });
        expected.collect()
    }

    #[test]
    fn a_page_is_expected_after_the_distance_before() {
        assert_eq!(expected(&[&[7], &[7], &[7], &[]]), [vec![], vec![7], vec![7], vec![]]);
        let alternating: [&[u64]; 6] = [&[7], &[8], &[7], &[8], &[7], &[8]];
        let from_the_second: Vec<Vec<u64>> = [vec![], vec![], vec![], vec![7], vec![8], vec![7]].into();
        assert_eq!(expected(&alternating), from_the_second);
    }

    #[test]
    fn a_page_is_expected_after_two_distances_in_turn() {
        let mut writes = Writes::default();
        let noted: Vec<Option<u64>> = [3, 5, 10, 12, 17, 19].map(|now| writes.note(now)).into();
        assert_eq!(noted, [None, Some(2), Some(5), Some(5), Some(2), Some(5)]);
        assert_eq!(writes.note(19 + (1 << 16)), None);
    }

    #[test]
    fn a_page_that_was_expected_in_vain_must_be_written_regularly() {
        let found = expected(&[&[7], &[7], &[], &[7], &[], &[], &[7], &[], &[], &[7], &[], &[]]);
        let when = found.iter().zip(1..).filter_map(|(pages, now)| (!pages.is_empty()).then_some(now));
        assert_eq!(when.collect::<Vec<u64>>(), [2, 5, 12]);
    }

    #[test]
    fn a_page_that_is_written_again_and_again_stays_expected() {
        let phases: Vec<&[u64]> = (1..=24).map(|now| if now % 5 == 0 { &[7, 8][..] } else { &[] }).collect();
        let found = expected(&phases);
        let when = found.iter().zip(1..).filter_map(|(pages, now)| (!pages.is_empty()).then_some(now));
        assert_eq!(when.collect::<Vec<u64>>(), [14, 19, 24]);
    }
}
