//! Waiting time by memory region, so that `--stats` can suggest improvements.
//!
//! The host reports page events, whatever the protocol: pages fetched, pages whose changes this node has
//! sent, and pages it has lost. A page that is lost at the synchronising call that sent its changes was
//! changed by another node in the same phase: it is *falsely shared* (or there is a data race). A page that
//! is lost later, after this node changed it, passes from node to node. A page whose changes are sent and
//! that is not lost is homed at the wrong node.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use hiroba_base::{NodeId, PageId, PageRange};
use hiroba_trace::RegionStatistics;
use rustc_hash::FxHashMap;

use crate::call_site;
use crate::time_class::TimeClass;

/// Maximum number of regions reported: those with the most waiting time.
const TOLD_MAX: usize = 8;

/// Maximum number of regions distinguished. Pages of further regions count as the last one's.
const REGIONS_MAX: usize = 4096;

/// Page events by region. Signals are deferred during each call: a handler that faulted meanwhile would wait
/// for the lock that its own thread has taken.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    /// By ascending address.
    all: RwLock<Vec<Region>>,
    /// Number of synchronising calls that threads of this node have begun.
    calls: AtomicU64,
    /// True if the last of them acquires or releases a lock.
    is_at_lock: AtomicBool,
    /// Pages whose changes were sent, with the latest call that sent them. There are no more than this node
    /// has copies of.
    changed: Mutex<FxHashMap<PageId, u64>>,
}

#[derive(Debug)]
struct Region {
    granules: PageRange,
    bytes: u64,
    /// The return address of the allocating call, 0 if unknown.
    allocated_at: usize,
    arena_of: Option<NodeId>,
    tally: Tally,
}

#[derive(Debug, Default)]
struct Tally {
    fault_ns: AtomicU64,
    release_ns: AtomicU64,
    /// Number of diffs made since the last release time was distributed.
    new_diffs: AtomicU64,
    fetched_singly: AtomicU64,
    fetched_together: AtomicU64,
    diffs: AtomicU64,
    falsely_shared: AtomicU64,
    lost_with_locks: AtomicU64,
    lost_after_stores: AtomicU64,
}

impl Regions {
    /// Adds a collective allocation.
    pub(crate) fn add(&self, granules: PageRange, bytes: u64) {
        let allocated_at = call_site::noted();
        self.insert(Region { granules, bytes, allocated_at, arena_of: None, tally: Tally::default() });
    }

    /// Adds the memory of a node's `hiroba_malloc`.
    pub(crate) fn add_arena(&self, granules: PageRange, granule_bytes: u64, owner: NodeId) {
        let bytes = granules.count * granule_bytes;
        let arena_of = Some(owner);
        self.insert(Region { granules, bytes, allocated_at: 0, arena_of, tally: Tally::default() });
    }

    fn insert(&self, region: Region) {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        if all.len() < REGIONS_MAX {
            let before = all.partition_point(|other| other.granules.first < region.granules.first);
            all.insert(before, region);
        }
    }

    fn with_tally(&self, page: PageId, note: impl FnOnce(&Tally)) {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let behind = all.partition_point(|region| region.granules.first <= page);
        if let Some(region) = behind.checked_sub(1).and_then(|index| all.get(index)) {
            note(&region.tally);
        }
    }

    fn changed(&self) -> MutexGuard<'_, FxHashMap<PageId, u64>> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a thread begins a synchronising call.
    pub(crate) fn note_call(&self, class: TimeClass) {
        self.calls.fetch_add(1, Relaxed);
        self.is_at_lock.store(class == TimeClass::Lock, Relaxed);
    }

    /// Records that a thread has waited for a page.
    pub(crate) fn note_wait(&self, page: PageId, waited: Duration) {
        self.with_tally(page, |tally| _ = tally.fault_ns.fetch_add(waited.as_nanos() as u64, Relaxed));
    }

    /// Records fetched pages: `singly` of them for a thread that waited for that page alone, `together` in
    /// bulk.
    pub(crate) fn note_came(&self, first: PageId, singly: u64, together: u64) {
        self.with_tally(first, |tally| {
            tally.fetched_singly.fetch_add(singly, Relaxed);
            tally.fetched_together.fetch_add(together, Relaxed);
        });
    }

    /// Records that this node has made a diff of the page for its home.
    pub(crate) fn note_diff(&self, page: PageId, is_empty: bool) {
        self.with_tally(page, |tally| {
            tally.new_diffs.fetch_add(1, Relaxed);
            tally.diffs.fetch_add(u64::from(!is_empty), Relaxed);
        });
        if !is_empty {
            self.changed().insert(page, self.calls.load(Relaxed));
        }
    }

    /// Records that write notices have invalidated this node's copies of pages in a span.
    pub(crate) fn note_lost(&self, span: PageRange) {
        let mut changed = self.changed();
        if changed.is_empty() {
            return;
        }
        let (call, is_at_lock) = (self.calls.load(Relaxed), self.is_at_lock.load(Relaxed));
        for page in span.iter() {
            let Some(changed_at) = changed.remove(&page) else { continue };
            self.with_tally(page, |tally| {
                let count = match (is_at_lock, changed_at == call) {
                    (true, _) => &tally.lost_with_locks,
                    (false, true) => &tally.falsely_shared,
                    (false, false) => &tally.lost_after_stores,
                };
                count.fetch_add(1, Relaxed);
            });
        }
    }

    /// Records the time of a release. It is distributed over the regions in proportion to their diffs.
    pub(crate) fn note_release(&self, took: Duration) {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let diffs: Vec<(&Region, u64)> = all
            .iter()
            .map(|region| (region, region.tally.new_diffs.swap(0, Relaxed)))
            .filter(|(_, diffs)| *diffs > 0)
            .collect();
        let sum: u64 = diffs.iter().map(|(_, diffs)| diffs).sum();
        for (region, diffs) in diffs {
            let share = took.as_nanos() as u64 * diffs / sum;
            region.tally.release_ns.fetch_add(share, Relaxed);
        }
    }

    /// Returns the regions with the most waiting time. `address_of` returns the address of a granule.
    pub(crate) fn statistics(&self, address_of: impl Fn(PageId) -> u64) -> Vec<RegionStatistics> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let waited =
            |region: &&Region| region.tally.fault_ns.load(Relaxed) + region.tally.release_ns.load(Relaxed);
        let mut most: Vec<&Region> = all.iter().filter(|region| waited(region) > 0).collect();
        most.sort_by_key(|region| std::cmp::Reverse(waited(region)));
        most.truncate(TOLD_MAX);
        most.into_iter().map(|region| region.statistics(&address_of)).collect()
    }
}

impl Region {
    fn statistics(&self, address_of: impl Fn(PageId) -> u64) -> RegionStatistics {
        let Tally { fault_ns, release_ns, fetched_singly, fetched_together, diffs, .. } = &self.tally;
        let seconds = |nanos: &AtomicU64| nanos.load(Relaxed) as f64 / 1e9;
        let known = Some(self.allocated_at).filter(|address| *address != 0);
        RegionStatistics {
            address: address_of(self.granules.first),
            bytes: self.bytes,
            site: known.and_then(call_site::of_return_address),
            arena_of: self.arena_of,
            fault_s: seconds(fault_ns),
            release_s: seconds(release_ns),
            fetched_singly: fetched_singly.load(Relaxed),
            fetched_together: fetched_together.load(Relaxed),
            diffs: diffs.load(Relaxed),
            falsely_shared: self.tally.falsely_shared.load(Relaxed),
            lost_with_locks: self.tally.lost_with_locks.load(Relaxed),
            lost_after_stores: self.tally.lost_after_stores.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(first: u64, count: u64) -> PageRange {
        PageRange { first: PageId(first), count }
    }

    fn regions() -> Regions {
        let regions = Regions::default();
        regions.add(pages(100, 10), 40_000);
        regions.add(pages(0, 50), 200_000);
        regions
    }

    #[test]
    fn what_is_lost_at_the_call_that_sent_it_is_falsely_shared() {
        let regions = regions();
        regions.note_call(TimeClass::Barrier);
        (0..3).for_each(|page| regions.note_diff(PageId(page), false));
        regions.note_diff(PageId(3), true);
        regions.note_lost(pages(0, 2));
        regions.note_call(TimeClass::Barrier);
        regions.note_lost(pages(0, 5));
        regions.note_call(TimeClass::Lock);
        regions.note_diff(PageId(104), false);
        regions.note_lost(pages(90, 20));
        regions.note_release(Duration::from_nanos(500));
        let told = regions.statistics(|page| page.0);
        assert_eq!(
            (told[0].address, told[1].address),
            (0, 100),
            "most was waited for the one with most diffs"
        );
        assert_eq!((told[0].falsely_shared, told[0].lost_after_stores, told[0].diffs), (2, 1, 3));
        assert_eq!((told[1].lost_with_locks, told[1].falsely_shared), (1, 0));
        assert_eq!((told[0].release_s, told[1].release_s), (400e-9, 100e-9));
    }

    #[test]
    fn regions_that_nobody_waited_for_are_not_told() {
        let regions = regions();
        regions.note_came(PageId(109), 1, 4);
        assert!(regions.statistics(|page| page.0).is_empty());
        regions.note_wait(PageId(109), Duration::from_millis(2));
        let told = regions.statistics(|page| page.0);
        assert_eq!(told.len(), 1);
        assert_eq!((told[0].fetched_singly, told[0].fetched_together, told[0].fault_s), (1, 4, 0.002));
        assert_eq!(told[0].bytes, 40_000);
    }
}
