//! Runs of pages homed here that the program may use without any message.
//!
//! A program that fills an array faults once for each page, although no other node has any of them: no
//! message, no notice, no twin. If its touches continue upwards or downwards, each fault gives it access to
//! twice as many pages as the one before, up to a bound. Pages that no other node has requested are
//! *exclusive* like a page that was touched: when another node requests one, it counts as written. So the
//! program gets access to at most about twice the pages that it touches. If many touches of a block of pages
//! come in no order, each gives access to the pages around it ([`Blocks`]).

use hiroba_base::{PageId, PageSet};

use crate::anticipation::blocks::Blocks;
use crate::coherence::Site;
use crate::home::Located;

/// The maximum number of runs, of several arrays or threads, that are followed at once. A new one replaces
/// the one that was quiet for the longest time.
const RUNS_MAX: usize = 16;

/// The maximum number of bytes to which one fault gives access.
const GIVEN_BYTES_MAX: u64 = 1 << 20;

/// The observed first touches.
#[derive(Debug, Default)]
pub(crate) struct ExclusiveRuns {
    runs: Vec<Run>,
    /// The number of first touches so far.
    clock: u64,
    blocks: Blocks,
}

#[derive(Debug)]
struct Run {
    /// The lowest and the highest page of the run.
    first: PageId,
    last: PageId,
    /// The number of pages to which the next fault gives access.
    pages: u64,
    last_used: u64,
}

impl ExclusiveRuns {
    /// Notes that a page of `granules` granules is touched. Returns the number of pages to give access to, at
    /// most `pages_max`, and true if they lie upwards.
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

    /// Notes how far access has been given.
    fn note(&mut self, touched: PageId, end: PageId, upwards: bool, granules: u64) {
        let joins = |run: &&mut Run| {
            if upwards { touched.0 == run.last.0 + granules } else { touched.0 + granules == run.first.0 }
        };
        if let Some(run) = self.runs.iter_mut().find(joins) {
            if upwards { run.last = end } else { run.first = end }
        }
    }

    /// Notes that pages leave because memory is short. Where touches come in no order, the pages around them
    /// would only push others out.
    pub(crate) fn note_shortage(&mut self) {
        self.blocks.forget();
    }

    /// Gives the program access to a page homed here that it has touched, and to pages that follow.
    /// `is_in_the_way` returns true for pages that must be excluded.
    pub(crate) fn give(
        &mut self,
        site: &Site,
        touched: Located,
        is_in_the_way: impl Fn(PageId) -> bool,
    ) -> PageSet {
        assert_eq!(touched.home, site.me, "{}: only home pages are exclusive", touched.page);
        // If a page goes to the first node that touches it, an untouched page has no home yet.
        let given_bytes_max = if site.homes.is_by_first_touch(touched.page) { 0 } else { GIVEN_BYTES_MAX };
        let is_here = |other: Located| other.home == site.me && !is_in_the_way(other.page);
        let (mut given, continues) = self.follow(site, touched, given_bytes_max, is_here);
        let pages_max = given_bytes_max / u64::from(site.page_bytes(touched.page));
        if site.prefetches && !continues && pages_max > 1 {
            // It continues no run. If many pages of a block are touched, each touch gives access to the pages
            // around it.
            let around = self.blocks.around(site, touched);
            around.filter(|other| is_here(*other)).for_each(|other| {
                given.insert(other.page);
            });
        }
        given
    }

    /// Returns a page that was touched and pages that follow, as far as its run makes likely, and true if it
    /// continues a run. At most `bytes_max` are given at once, and the first page that may not be given ends
    /// them.
    pub(crate) fn follow(
        &mut self,
        site: &Site,
        touched: Located,
        bytes_max: u64,
        may_be_given: impl Fn(Located) -> bool,
    ) -> (PageSet, bool) {
        if !site.prefetches {
            return (PageSet::from_iter([touched.page]), false);
        }
        let pages_max = (bytes_max / u64::from(site.page_bytes(touched.page))).max(1);
        let (pages, upwards) = self.touch(touched.page, touched.granules, pages_max);
        let region = site.homes.region_around(touched.page).expect("a page that faults is allocated");
        let mut given = PageSet::new();
        let mut end = touched.page;
        let mut next = touched.page;
        while given.len() < pages && region.contains(next) {
            let located = site.locate(next);
            if located.page != touched.page && !may_be_given(located) {
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
        (given, pages > 1)
    }
}
