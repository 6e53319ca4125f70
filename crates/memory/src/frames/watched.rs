//! The granules whose writes the kernel records, and which releases query.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hiroba_base::{PageId, PageRange};
use rustix::io::Errno;

use super::SparsePageSet;

/// Number of granules in a group: a word of the set of granules.
const GROUP_GRANULES: u64 = u64::BITS as u64;

/// A set of granules that is walked often. A walk costs in proportion to the watched granules, not to the
/// region.
///
/// Changes to different granules, and walks, may happen at once in any threads and in signal context.
#[derive(Debug)]
pub(crate) struct WatchedSet {
    granules: SparsePageSet,
    /// The groups that may contain watched granules, as "pages" of their own.
    groups: SparsePageSet,
    /// No group before the first of these, and none from the second on, has ever contained any.
    first_group: AtomicU64,
    end_group: AtomicU64,
    /// Number of watched granules. With none, walks must cost nothing.
    count: AtomicU64,
    /// Number of walks under way.
    walks: AtomicU64,
    /// True while `groups` may lack some.
    tidying: AtomicBool,
}

/// A walk under way.
struct Walk<'a> {
    set: &'a WatchedSet,
}

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        self.set.walks.fetch_sub(1, Ordering::SeqCst);
    }
}

impl WatchedSet {
    /// Makes the empty set of a region of `granules` granules.
    pub(crate) fn new(granules: u64) -> Result<WatchedSet, Errno> {
        Ok(WatchedSet {
            granules: SparsePageSet::new(granules)?,
            groups: SparsePageSet::new(granules.div_ceil(GROUP_GRANULES))?,
            first_group: AtomicU64::new(u64::MAX),
            end_group: AtomicU64::new(0),
            count: AtomicU64::new(0),
            walks: AtomicU64::new(0),
            tidying: AtomicBool::new(false),
        })
    }

    /// Adds granules.
    pub(crate) fn insert_range(&self, range: PageRange) -> Result<(), Errno> {
        if range.count == 0 {
            return Ok(());
        }
        let added = self.granules.insert_range(range)?;
        self.count.fetch_add(added, Ordering::AcqRel);
        let (first, end) = (range.first.0 / GROUP_GRANULES, range.end().0.div_ceil(GROUP_GRANULES));
        self.first_group.fetch_min(first, Ordering::AcqRel);
        self.end_group.fetch_max(end, Ordering::AcqRel);
        for group in first..end {
            // SYNC POINT: with `tidy_alone`, which removes first and reads the granules afterwards. This is
            // always a read-modify-write (a single page of a set never takes the shortcut of whole chunks),
            // so one of the two sees the other.
            self.groups.insert_range(PageRange::single(PageId(group)))?;
        }
        Ok(())
    }

    /// Removes granules.
    pub(crate) fn remove_range(&self, range: PageRange) -> Result<(), Errno> {
        if self.is_empty() {
            return Ok(());
        }
        let removed = self.granules.remove_range(range)?;
        self.count.fetch_sub(removed, Ordering::AcqRel);
        Ok(())
    }

    /// Returns true if nothing is watched.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Returns the maximal runs of `range` that are watched (`true`) or not, in order.
    pub(crate) fn runs_of(&self, range: PageRange) -> impl Iterator<Item = (PageRange, bool)> + '_ {
        self.granules.runs(range)
    }

    /// Calls `visit` for watched granules, in order and in maximal runs, until it fails.
    pub(crate) fn each_run<E>(&self, mut visit: impl FnMut(PageRange) -> Result<(), E>) -> Result<(), E> {
        // SYNC POINT: with `tidy`, which announces itself before it looks for walks: one of the two sees the
        // other.
        self.walks.fetch_add(1, Ordering::SeqCst);
        let _walk = Walk { set: self };
        if self.tidying.load(Ordering::SeqCst) {
            let all = PageRange { first: PageId(0), count: self.granules.pages() };
            return self.visit_runs(all, &mut visit);
        }
        for (groups, _) in self.groups.runs(self.all_groups()).filter(|(_, inside)| *inside) {
            self.visit_runs(granules_of(groups), &mut visit)?;
        }
        Ok(())
    }

    fn visit_runs<E>(
        &self,
        granules: PageRange,
        visit: &mut impl FnMut(PageRange) -> Result<(), E>,
    ) -> Result<(), E> {
        self.granules.runs(granules).filter(|(_, inside)| *inside).try_for_each(|(run, _)| visit(run))
    }

    /// Forgets groups without granules, so that later walks skip them. Does nothing while walks are under
    /// way.
    pub(crate) fn tidy(&self) -> Result<(), Errno> {
        if self.tidying.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let alone = self.walks.load(Ordering::SeqCst) == 0;
        let result = if alone { self.tidy_alone() } else { Ok(()) };
        self.tidying.store(false, Ordering::SeqCst);
        result
    }

    fn tidy_alone(&self) -> Result<(), Errno> {
        for (groups, _) in self.groups.runs(self.all_groups()).filter(|(_, inside)| *inside) {
            for group in groups.iter().map(PageRange::single) {
                if self.granules.contains_any(granules_of(group)) {
                    continue;
                }
                self.groups.remove_range(group)?;
                if self.granules.contains_any(granules_of(group)) {
                    self.groups.insert_range(group)?;
                }
            }
        }
        Ok(())
    }

    fn all_groups(&self) -> PageRange {
        let first = self.first_group.load(Ordering::Acquire);
        let count = self.end_group.load(Ordering::Acquire).saturating_sub(first);
        PageRange { first: PageId(first), count }
    }
}

/// Returns the granules of groups; the last group of a region may have fewer.
fn granules_of(groups: PageRange) -> PageRange {
    PageRange { first: PageId(groups.first.0 * GROUP_GRANULES), count: groups.count * GROUP_GRANULES }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, thread};

    use proptest::prelude::*;

    use super::{super::populated::CHUNK_PAGES, *};

    fn runs(set: &WatchedSet) -> Vec<PageRange> {
        let mut runs = Vec::new();
        let walked: Result<(), ()> = set.each_run(|run| {
            runs.push(run);
            Ok(())
        });
        assert_eq!(walked, Ok(()));
        runs
    }

    const GRANULES: u64 = 5 * CHUNK_PAGES + 77;

    fn range(first: u64, count: u64) -> PageRange {
        PageRange { first: PageId(first), count }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn agrees_with_a_plain_set(
            steps in proptest::collection::vec((0..3u8, 0..6u64, 0..130u64, 0..2 * CHUNK_PAGES), 1..12),
        ) {
            let set = WatchedSet::new(GRANULES).unwrap();
            let mut model = BTreeSet::new();
            for (what, chunk, offset, count) in steps {
                let first = (chunk * CHUNK_PAGES).saturating_sub(65) + offset;
                let granules = range(first, count.min(GRANULES.saturating_sub(first)));
                match what {
                    0 => {
                        set.insert_range(granules).unwrap();
                        model.extend(granules.iter());
                    }
                    1 => {
                        set.remove_range(granules).unwrap();
                        granules.iter().for_each(|granule| { model.remove(&granule); });
                    }
                    _ => set.tidy().unwrap(),
                }
                prop_assert_eq!(set.is_empty(), model.is_empty());
                let runs = runs(&set);
                let members: Vec<_> = runs.iter().flat_map(|run| run.iter()).collect();
                prop_assert_eq!(members, model.iter().copied().collect::<Vec<_>>());
                prop_assert!(runs.windows(2).all(|pair| pair[0].end() < pair[1].first));
            }
        }
    }

    #[test]
    fn tidying_beside_insertions_loses_none() {
        let set = WatchedSet::new(1 << 32).unwrap();
        thread::scope(|scope| {
            let inserter = scope.spawn(|| {
                for round in 0..20_000 {
                    let granule = range(round % 7 * CHUNK_PAGES + round % 100, 1);
                    set.insert_range(granule).unwrap();
                    assert!(runs(&set).iter().any(|run| run.contains(granule.first)), "round {round}");
                    set.remove_range(granule).unwrap();
                }
            });
            while !inserter.is_finished() {
                set.tidy().unwrap();
            }
        });
        assert!(set.is_empty());
        set.tidy().unwrap();
        assert!(!set.groups.contains_any(set.all_groups()));
    }
}
