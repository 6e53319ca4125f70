//! Asynchronous write tracking: the pages that the host watches, its answers, and the pages that may rest.
//! Also home pages that stay writable between a fetch and the next barrier, under either tracking.

use hiroba_base::{Access, PageId, PageRange, PageSet};
use rustc_hash::FxHashSet;

use super::Hlrc;
use crate::coherence::Site;
use crate::home::Located;
use crate::{Effect, WriteTracking};

/// The number of unwritten releases after which a page in a long run rests. With asynchronous tracking each
/// release scans all watched pages: about a nanosecond each in long runs, and about 60 for a page that is
/// watched alone. A resting page that is touched again costs a fault of some microseconds. So a page rests
/// after about as many releases as scans cost a fault: the total cost is at most twice that of the better
/// choice.
pub const RESTING_AFTER_RELEASES: u32 = 4096;

/// The same number for a page that is watched alone; a page of a run waits as many times longer as the run
/// has pages.
const RESTING_ALONE_AFTER_RELEASES: u32 = 64;

/// The number of watched pages that one release examines, on average, to find some that may rest.
const LOOKED_THROUGH_A_RELEASE: u32 = 64;

/// The number of fetches for which a page that was written between two fetches is not watched; then it is
/// examined again.
const UNGUARDED_FETCHES_MIN: u8 = 7;

/// The maximum of that number.
const UNGUARDED_FETCHES_MAX: u8 = 63;

/// The number of fetches at which a home page need not be watched, since it has lately been written after
/// each one.
///
/// Watching a page costs a system call and a kernel fault; making its stores fault costs one of ours, which
/// waits until the thread that serves other nodes has time for it; assuming a write that did not happen costs
/// its readers a fetch. So each leave that proves right is followed by one twice as long.
#[derive(Debug, Default)]
pub(super) struct Leave {
    left: u8,
    /// The length of the last one.
    granted: u8,
    /// The number of fetches since it ran out.
    fetches: u8,
}

impl Leave {
    /// Grants a longer leave: the page has been fetched, watched, and written after that.
    pub(super) fn renew(&mut self) {
        let longer = if self.fetches == 1 { 2 * self.granted + 1 } else { 0 };
        self.granted = longer.clamp(UNGUARDED_FETCHES_MIN, UNGUARDED_FETCHES_MAX);
        (self.left, self.fetches) = (self.granted, 0);
    }

    /// Counts a fetch of the page. Returns true if it is on leave.
    fn take(&mut self) -> bool {
        let Some(left) = self.left.checked_sub(1) else {
            self.note_fetch();
            return false;
        };
        self.left = left;
        true
    }

    /// Returns true if the page need not be watched at the next fetch.
    pub(super) fn is_left(&self) -> bool {
        self.left > 0
    }

    /// Notes that the page is fetched while it is watched.
    pub(super) fn note_fetch(&mut self) {
        self.fetches = self.fetches.saturating_add(1);
    }
}

/// The pages whose writes the host notes.
#[derive(Debug)]
pub(super) struct Watch {
    /// Copies, and home pages that are shared or were so lately.
    pub(super) pages: FxHashSet<PageId>,
    /// The numbers of unwritten releases after which pages rest: for one that is watched alone, and for any.
    rest_after: (u32, u32),
    /// The number of releases until pages are next sent to rest.
    until_rest: u32,
    /// The number of releases so far.
    releases: u32,
    /// In a release that sends pages to rest: the pages that will rest unless the host reports them as
    /// written.
    pub(super) candidates: PageSet,
    /// Home pages that are shared and not watched, so that they count as written.
    pub(super) unguarded: PageSet,
    /// Pages that notices have just voided, and that count as written only because they may have been.
    pub(super) voided: PageSet,
}

impl Default for Watch {
    fn default() -> Watch {
        Watch {
            pages: FxHashSet::default(),
            rest_after: (RESTING_ALONE_AFTER_RELEASES, RESTING_AFTER_RELEASES),
            until_rest: RESTING_ALONE_AFTER_RELEASES,
            releases: 0,
            candidates: PageSet::new(),
            unguarded: PageSet::new(),
            voided: PageSet::new(),
        }
    }
}

impl Watch {
    /// Stops watching a page, and does not leave it unguarded any more.
    pub(super) fn forget(&mut self, page: PageId) {
        self.pages.remove(&page);
        self.candidates.remove(page);
        self.unguarded.remove(page);
    }
}

impl Hlrc {
    /// Sends pages to rest after at most `releases` unwritten releases, instead of
    /// [`RESTING_AFTER_RELEASES`]. For tests.
    pub fn resting_after(mut self, releases: u32) -> Hlrc {
        let alone = releases.min(RESTING_ALONE_AFTER_RELEASES);
        (self.watch.rest_after, self.watch.until_rest) = ((alone, releases), alone);
        self
    }

    pub(super) fn watch(&mut self, site: &mut Site, page_id: PageId) {
        self.begin_watching(page_id);
        let pages = site.locate(page_id).span();
        site.out.push(Effect::Watch { pages });
    }

    /// Watches pages, with one effect for each run.
    pub(super) fn watch_set(&mut self, site: &mut Site, pages: &PageSet) {
        debug_assert!(pages.iter().all(|page| site.is_async(page)), "stores to other pages fault");
        pages.iter().for_each(|page_id| self.begin_watching(page_id));
        let spans = site.homes.spans(pages).into_iter();
        site.out.extend(spans.map(|pages| Effect::Watch { pages }));
    }

    fn begin_watching(&mut self, page_id: PageId) {
        let page = self.pages.or_default(page_id);
        page.access = Access::Write;
        page.watched = true;
        page.busy_at = self.watch.releases;
        self.watch.pages.insert(page_id);
    }

    /// Handles the host's answer which watched granules were written.
    pub(super) fn handle_written(&mut self, site: &mut Site, granules: &PageSet) {
        let mut exclusive = PageSet::new();
        for granule in granules.iter() {
            let Some(Located { page: page_id, home, .. }) = site.homes.locate(granule) else { continue };
            let Some(page) = self.pages.get_mut(&page_id).filter(|page| page.watched) else { continue };
            page.busy_at = self.watch.releases;
            if home == site.me && !page.shared {
                // No other node has a copy any more, and the page is in use: from now on its writes cost
                // nothing.
                page.leave.renew();
                exclusive.insert(page_id);
            } else {
                self.written.insert(page_id);
            }
        }
        self.stop_watching(site, &exclusive);
    }

    /// Handles a fetch of a writable home page. Returns true if the page may stay writable, because it will
    /// be written before the next fetch.
    ///
    /// It counts as written in every interval that ends before it is exclusive again, so that a node that
    /// gets a notice of one fetches it again. A barrier makes it exclusive; [`guard`](Self::guard) handles
    /// other ends of intervals.
    pub(super) fn let_unguarded(&mut self, page_id: PageId) -> bool {
        let page = self.pages.or_default(page_id);
        page.unguarded = page.leave.take();
        if page.unguarded {
            self.watch.unguarded.insert(page_id);
        }
        page.unguarded
    }

    /// Watches the unguarded pages, or makes their stores fault. An interval ends without a barrier that
    /// would void the copies; each later interval would void them again.
    pub(super) fn guard(&mut self, site: &mut Site) {
        let mut watched = PageSet::new();
        for page_id in std::mem::take(&mut self.watch.unguarded).iter() {
            self.pages.or_default(page_id).unguarded = false;
            if site.is_async(page_id) {
                watched.insert(page_id);
            }
        }
        self.watch_set(site, &watched);
    }

    /// Asks the host which of the voided pages, which have lost their access, were not written: most have not
    /// been since the last release, because notices usually follow one.
    pub(super) fn ask_for_unwritten(&mut self, site: &mut Site) {
        if !self.watch.voided.is_empty() {
            let spans = site.homes.spans(&self.watch.voided);
            site.out.push(Effect::FindUnwritten { spans });
        }
    }

    /// Handles the answer which pages the program has not written. They need no comparison at the next
    /// release; and since such a copy equals its twin, which is not needed any more, later content need not
    /// be merged.
    pub(super) fn handle_unwritten(&mut self, site: &mut Site, granules: &PageSet) {
        let mut equal_twins = Vec::new();
        for page_id in std::mem::take(&mut self.watch.voided).iter() {
            let Located { granules: count, home, .. } = site.locate(page_id);
            let span = PageRange { first: page_id, count };
            if !span.iter().all(|granule| granules.contains(granule)) {
                continue;
            }
            self.written.remove(page_id);
            let page = self.pages.or_default(page_id);
            if home != site.me && std::mem::take(&mut page.twin) {
                equal_twins.push(page_id);
            }
        }
        site.out.extend(equal_twins.into_iter().map(|page| Effect::DropTwin { page }));
    }

    fn stop_watching(&mut self, site: &mut Site, exclusive: &PageSet) {
        for page_id in exclusive.iter() {
            let page = self.pages.or_default(page_id);
            assert!(!page.shared && !page.twin, "{page_id}: nobody else has a copy of what is exclusive");
            (page.watched, page.unnoticed) = (false, true);
            let was_watched = self.watch.pages.remove(&page_id);
            assert!(was_watched, "{page_id}: only what is watched can be let go");
        }
        let spans = site.homes.spans(exclusive).into_iter();
        site.out.extend(spans.map(|pages| Effect::Unwatch { pages }));
    }

    /// Chooses, in some releases before the host is asked, pages that have long been unwritten.
    ///
    /// A home page gets a temporary twin before the question: a store that comes before the answer is in the
    /// answer, and a later one, up to the loss of access, makes the page differ from its twin.
    pub(super) fn choose_resting(&mut self, site: &mut Site) {
        self.watch.releases = self.watch.releases.wrapping_add(1);
        assert!(self.watch.until_rest > 0, "a round of resting begins with some releases to wait for");
        self.watch.until_rest -= 1;
        if self.watch.until_rest > 0 {
            return;
        }
        let (alone, any) = self.watch.rest_after;
        let watched = u32::try_from(self.watch.pages.len()).unwrap_or(u32::MAX);
        self.watch.until_rest = (watched / LOOKED_THROUGH_A_RELEASE).clamp(alone, any);
        let mut watched: Vec<PageId> = self.watch.pages.iter().copied().collect();
        watched.sort_unstable();
        let (mut idle, mut exclusive): (Vec<PageId>, PageSet) = (Vec::new(), PageSet::new());
        let follows = |before: &PageId, page: &PageId| site.locate(*before).span().end() == *page;
        for run in watched.chunk_by(follows) {
            let bound = alone.saturating_mul(run.len().try_into().unwrap_or(u32::MAX)).min(any);
            for page_id in run {
                let page = &self.pages[page_id];
                if self.watch.releases.wrapping_sub(page.busy_at) < bound {
                    continue;
                }
                if page.twin || page.shared {
                    idle.push(*page_id);
                } else {
                    exclusive.insert(*page_id);
                }
            }
        }
        self.stop_watching(site, &exclusive);
        for page_id in idle {
            if !self.pages[&page_id].twin {
                self.make_twin(site, page_id);
            }
            self.watch.candidates.insert(page_id);
        }
    }

    /// Takes the access from candidates that were not `written`, after the answer. Returns the pages that
    /// must be compared for the last time and lose their twins: those, and home pages that had a temporary
    /// one.
    pub(super) fn send_to_rest(&mut self, site: &mut Site, written: &PageSet) -> PageSet {
        let mut resting = std::mem::take(&mut self.watch.candidates);
        if resting.is_empty() {
            return resting;
        }
        assert_eq!(site.tracking, WriteTracking::Async, "pages rest where stores are noted");
        let mut compared = PageSet::new();
        for page_id in written.iter() {
            if resting.remove(page_id) && site.is_home(page_id) {
                compared.insert(page_id);
            }
        }
        for page_id in resting.iter() {
            self.watch.pages.remove(&page_id);
            let page = self.pages.or_default(page_id);
            (page.access, page.watched) = (Access::None, false);
        }
        site.protect_all(&resting, Access::None);
        resting.iter().for_each(|page_id| {
            compared.insert(page_id);
        });
        compared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fetches_on_leave(leave: &mut Leave) -> u32 {
        let mut count = 0;
        while leave.take() {
            count += 1;
        }
        count
    }

    #[test]
    fn a_leave_that_was_right_is_followed_by_a_longer_one() {
        let mut leave = Leave::default();
        assert_eq!(fetches_on_leave(&mut leave), 0, "who has never been written is watched");
        for expected in [7, 15, 31, 63, 63] {
            leave.renew();
            assert_eq!(fetches_on_leave(&mut leave), expected);
        }
        leave.note_fetch();
        leave.renew();
        assert_eq!(fetches_on_leave(&mut leave), 7, "it was fetched twice before it was written");
        leave.renew();
        assert_eq!(fetches_on_leave(&mut leave), 15);
    }
}
