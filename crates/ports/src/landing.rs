//! The landing pool: memory of a node in which other nodes put out-of-line data directly.
//!
//! The pool is divided into units. An extent is a run of them. The engine takes an extent when it permits a
//! message, and names it in the permit. The extent comes back to the pool when its last owner drops it: the
//! engine, if the message is given up, otherwise the region that the program has received. Any thread may do
//! that, also one that a signal has interrupted, so the pool has no lock: a bit says whether a unit is in
//! use. Only the engine takes.
//!
//! The first run that is long enough is taken. So units are used again soon, while their pages are in memory
//! and mapped on both sides.

use core::fmt::Debug;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// The length of a unit, in bytes. Extents begin at multiples of it.
pub const UNIT_BYTES: u64 = 4096;

/// The alignment of regions in an extent, in bytes: a cache line, which suffices for every type of data.
pub const PLACE_BYTES: u64 = 64;

/// The number of units of a word.
const WORD_UNITS: u64 = u64::BITS as u64;

/// Memory that other nodes write to, as the host provides it. Nothing refers to its bytes, because other
/// processes may change them: they are copied, or the program reads them.
pub trait Ground: Debug + Send + Sync {
    /// Returns its length in bytes: the same on all nodes of the job.
    fn bytes(&self) -> u64;

    /// Returns the address of the byte at `offset`, which is less than the length.
    fn address(&self, offset: u64) -> *mut u8;

    /// Appends a copy of `bytes` bytes at `offset`, which lie inside.
    fn append_to(&self, offset: u64, bytes: usize, into: &mut Vec<u8>);
}

/// A node's landing pool.
#[derive(Debug)]
pub(crate) struct Pool {
    ground: Arc<dyn Ground>,
    units: u64,
    /// One bit for each unit: 1 while it belongs to an extent.
    used: Box<[AtomicU64]>,
}

impl Pool {
    pub(crate) fn new(ground: Arc<dyn Ground>) -> Pool {
        let units = ground.bytes() / UNIT_BYTES;
        let used = (0..units.div_ceil(WORD_UNITS)).map(|_| AtomicU64::new(0)).collect();
        Pool { ground, units, used }
    }

    /// Returns its length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.units * UNIT_BYTES
    }

    /// Returns the number of bytes of its extents.
    pub(crate) fn used_bytes(&self) -> u64 {
        let units = |word: &AtomicU64| u64::from(word.load(Ordering::Relaxed).count_ones());
        self.used.iter().map(units).sum::<u64>() * UNIT_BYTES
    }

    /// Takes an extent of at least `bytes` bytes, if there is one. One thread at a time may take.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Option<Extent> {
        let wanted = bytes.div_ceil(UNIT_BYTES).max(1);
        let mut at = 0;
        while at < self.units && wanted <= self.units - at {
            let free = self.run_from(at, false, wanted);
            if free >= wanted {
                // Other threads only make units free.
                self.mark(at, wanted, |word, bits| _ = word.fetch_or(bits, Ordering::Relaxed));
                return Some(Extent { pool: self.clone(), at, units: wanted });
            }
            at += free;
            at += self.run_from(at, true, self.units);
        }
        None
    }

    /// Returns the number of units from `at` on that are all in use, or all free. Stops at `enough`.
    fn run_from(&self, at: u64, used: bool, enough: u64) -> u64 {
        let mut end = at;
        while end < self.units && end - at < enough {
            let skipped = end % WORD_UNITS;
            // SYNC POINT: pairs with the release in `Extent::drop`: who has used the units is done with them.
            let word = self.used[(end / WORD_UNITS) as usize].load(Ordering::Acquire);
            let others = (if used { !word } else { word }) >> skipped;
            let run = u64::from(others.trailing_zeros()).min(WORD_UNITS - skipped);
            end += run;
            if run < WORD_UNITS - skipped {
                break;
            }
        }
        end.min(self.units) - at
    }

    /// Changes the bits of `units` units from `at` on.
    fn mark(&self, at: u64, units: u64, change: impl Fn(&AtomicU64, u64)) {
        let mut next = at;
        while next < at + units {
            let skipped = next % WORD_UNITS;
            let count = (WORD_UNITS - skipped).min(at + units - next);
            change(&self.used[(next / WORD_UNITS) as usize], (u64::MAX >> (WORD_UNITS - count)) << skipped);
            next += count;
        }
    }
}

/// A part of a landing pool, which comes back to it on drop.
#[derive(Debug)]
pub(crate) struct Extent {
    pool: Arc<Pool>,
    at: u64,
    units: u64,
}

impl Extent {
    /// Returns its offset in the pool, in bytes.
    pub(crate) fn start(&self) -> u64 {
        self.at * UNIT_BYTES
    }

    /// Returns its length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.units * UNIT_BYTES
    }

    pub(crate) fn ground(&self) -> &dyn Ground {
        &*self.pool.ground
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        // SYNC POINT: pairs with the acquire in `run_from`.
        let clear = |word: &AtomicU64, bits: u64| _ = word.fetch_and(!bits, Ordering::Release);
        self.pool.mark(self.at, self.units, clear);
    }
}

/// Returns the offsets at which regions of these lengths lie in an extent, and the bytes that they take in
/// all. Sender and receiver compute the same.
pub(crate) fn places(region_bytes: impl Iterator<Item = u64>) -> (Vec<u64>, u64) {
    let mut end = 0u64;
    let place = |bytes: u64| {
        let start = end;
        end = end.saturating_add(bytes).checked_next_multiple_of(PLACE_BYTES).unwrap_or(u64::MAX);
        start
    };
    (region_bytes.map(place).collect(), end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Nothing(u64);

    impl Ground for Nothing {
        fn bytes(&self) -> u64 {
            self.0
        }

        fn address(&self, _: u64) -> *mut u8 {
            core::ptr::null_mut()
        }

        fn append_to(&self, _: u64, _: usize, _: &mut Vec<u8>) {}
    }

    fn pool(units: u64) -> Arc<Pool> {
        Arc::new(Pool::new(Arc::new(Nothing(units * UNIT_BYTES))))
    }

    #[test]
    fn extents_do_not_overlap_and_come_back() {
        for units in [1, 63, 64, 65, 200] {
            let pool = pool(units);
            // A model with a flag for each unit.
            let mut model = vec![false; units as usize];
            let mut held: Vec<Extent> = Vec::new();
            for step in 0..2000u64 {
                let random = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
                let wanted = random % 70 + 1;
                let fits = model.windows(wanted as usize).position(|units| units.iter().all(|used| !used));
                let taken = pool.take(wanted * UNIT_BYTES - random % UNIT_BYTES);
                assert_eq!(taken.as_ref().map(|extent| extent.at as usize), fits, "step {step}");
                if let Some(extent) = taken {
                    let units = extent.at as usize..(extent.at + extent.units) as usize;
                    model[units].fill(true);
                    held.push(extent);
                }
                while held.len() > (random / 70 % 5) as usize {
                    let extent = held.swap_remove(random as usize % held.len());
                    model[extent.at as usize..(extent.at + extent.units) as usize].fill(false);
                }
                let used = model.iter().filter(|used| **used).count() as u64;
                assert_eq!(pool.used_bytes(), used * UNIT_BYTES);
            }
        }
    }

    #[test]
    fn regions_lie_behind_each_other() {
        assert_eq!(places([1, 0, 64, 65, 3].into_iter()), (vec![0, 64, 64, 128, 256], 320));
        assert_eq!(places([].into_iter()), (vec![], 0));
        assert_eq!(places([u64::MAX, 1].into_iter()).1, u64::MAX);
    }
}
