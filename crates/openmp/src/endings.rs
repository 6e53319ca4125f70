//! How many threads have come to the end of a region that may be cancelled.
//!
//! Threads that have left a cancelled region meet those that wait at a barrier in it; then these come to the
//! end, too. So each thread asks behind the barrier whether it was that of the region's end. It may ask late:
//! threads that later regions leave out hinder nobody from beginning them.

use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};

/// The latest barriers, each in its place, by their numbers.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Endings {
    /// The barrier's number, and how many threads came there by the region's end.
    counts: [AtomicU64; PLACES],
}

/// Threads of a team come to one barrier while others are at the one before, and thread 0 prepares the next.
const PLACES: usize = 3;
const THREADS_BITS: u32 = 24;

impl Endings {
    fn of(&self, barrier: u64) -> &AtomicU64 {
        &self.counts[barrier as usize % PLACES]
    }

    /// Thread 0 comes to the barrier before `barrier`.
    pub(crate) fn prepare(&self, barrier: u64) {
        self.of(barrier).store(barrier << THREADS_BITS, Release);
    }

    /// A thread comes to the barrier by the region's end.
    pub(crate) fn come(&self, barrier: u64) {
        self.of(barrier).fetch_add(1, AcqRel);
    }

    /// Returns true if the region of `threads` threads has ended with this barrier, which all have passed.
    pub(crate) fn is_end(&self, barrier: u64, threads: u32) -> bool {
        let count = self.of(barrier).load(Acquire);
        // Another barrier's count is a later region's: this one's threads get no further without the caller.
        let is_barriers = count >> THREADS_BITS == barrier;
        !is_barriers || count & ((1 << THREADS_BITS) - 1) == u64::from(threads)
    }
}
