//! Runs of pages that are homed here and that the program may use without any message.
//!
//! A program that fills an array faults once a page, although no other node has any of them: no message, no
//! notice, no twin. Where its touches go on and on, upwards or downwards, each fault gives it twice as many
//! pages as the one before, up to a bound. Pages that no other node has asked for are *exclusive* like a page
//! that was touched: when another node comes for one, it counts as written. So a program touches no more
//! pages than it would, and is given no more than twice those. Where many touches of a block of pages come in
//! no order, each gives out the pages around it ([`Blocks`]).

use hiroba_base::{PageId, PageSet};

use crate::anticipation::blocks::Blocks;
use crate::coherence::Site;
use crate::home::Located;

/// Runs that are followed at once: of several arrays, by several threads. A new one takes the place of the one that was quiet for
/// the longest time.
const RUNS_MAX: usize = 16;

/// Bytes that one fault gives out at most.
const GIVEN_BYTES_MAX: u64 = 1 << 20;

/// What is known of first touches.
#[derive(Debug, Default)]
pub(crate) struct ExclusiveRuns {
    runs: Vec<Run>,
    /// Counts first touches.
    clock: u64,
    blocks: Blocks,
}

#[derive(Debug)]
struct Run {
    /// The lowest and the highest page given out.
    first: PageId,
    last: PageId,
    /// How many pages the next fault gives out.
    pages: u64,
    last_used: u64,
}

impl ExclusiveRuns {
    /// A page of `granules` granules is touched: how many pages, at most `pages_max`, are to be given out, and whether upwards.
    fn touch(&mut self, page: PageId, granules: u64, pages_max: u64) -> (u64, bool) {
        assert!(granules > 0 && pages_max > 0, "{page}: a page has granules, and is given out");
        self.clock += 1;
        let clock = self.clock;
        let continues = |run: &Run| {
            let upwards = page.0 == run.last.0 + granules;
            let downwards = page.0 + granules == run.first.0;
            (upwards || downwards).then_some(upwards)
        };
        let found = self.runs.iter().enumerate().find_map(|(index, run)| Some((index, continues(run)?)));
        let Some((index, upwards)) = found else {
            let run = Run { first: page, last: page, pages: 2, last_used: clock };
            if self.runs.len() < RUNS_MAX {
                self.runs.push(run);
            } else if let Some(oldest) = self.runs.iter_mut().min_by_key(|run| run.last_used) {
                *oldest = run;
            }
            return (1, true);
        };
        let run = &mut self.runs[index];
        let pages = run.pages.min(pages_max);
        (run.pages, run.last_used) = (pages * 2, clock);
        (pages, upwards)
    }

    /// So far pages have been given out.
    fn note(&mut self, touched: PageId, end: PageId, upwards: bool, granules: u64) {
        let joins = |run: &&mut Run| {
            if upwards { touched.0 == run.last.0 + granules } else { touched.0 + granules == run.first.0 }
        };
        if let Some(run) = self.runs.iter_mut().find(joins) {
            if upwards { run.last = end } else { run.first = end }
        }
    }

    /// The program has touched a page homed here: it may use the page, and those that follow. `is_in_the_way`
    /// tells of pages that go their own way.
    pub(crate) fn give(
        &mut self,
        site: &Site,
        touched: Located,
        is_in_the_way: impl Fn(PageId) -> bool,
    ) -> PageSet {
        let page_bytes = u64::from(site.page_bytes(touched.page));
        assert_eq!(touched.home, site.me, "{}: only home pages are exclusive", touched.page);
        if !site.prefetches {
            return PageSet::from_iter([touched.page]);
        }
        // Where a page goes to whoever is the first to touch it, what nobody has touched yet is nobody's.
        let given_bytes_max = if site.homes.is_by_first_touch(touched.page) { 0 } else { GIVEN_BYTES_MAX };
        let pages_max = (given_bytes_max / page_bytes).max(1);
        let (pages, upwards) = self.touch(touched.page, touched.granules, pages_max);
        let region = site.homes.region_around(touched.page).expect("a page that faults is allocated");
        let mut given = PageSet::new();
        let mut end = touched.page;
        let mut next = touched.page;
        while given.len() < pages && region.contains(next) {
            let located = site.locate(next);
            if located.page != touched.page && (located.home != site.me || is_in_the_way(located.page)) {
                break;
            }
            given.insert(located.page);
            end = located.page;
            let below = located.page.0.checked_sub(touched.granules).map(PageId);
            let Some(after) = (if upwards { Some(located.span().end()) } else { below }) else { break };
            next = after;
        }
        assert!(given.contains(touched.page), "{}: what was touched is given out", touched.page);
        self.note(touched.page, end, upwards, touched.granules);
        if pages == 1 && pages_max > 1 {
            // It follows no other: where many of a block are touched, each gives out what lies around it.
            let around = self.blocks.around(site, touched);
            around.filter(|other| other.home == site.me && !is_in_the_way(other.page)).for_each(|other| {
                given.insert(other.page);
            });
        }
        given
    }
}
