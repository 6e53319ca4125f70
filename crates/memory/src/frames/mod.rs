//! Frames: the sets of pages that have one or are watched, and the memory that frames and twins take
//! together.

mod populated;
mod watched;

use core::sync::atomic::{AtomicU64, Ordering};

pub(crate) use populated::SparsePageSet;
pub(crate) use watched::WatchedSet;

/// The account of memory with page contents: frames and twins.
#[derive(Debug, Default)]
pub(crate) struct ResidentAccount {
    frames: AtomicU64,
    twins: AtomicU64,
    bytes: AtomicU64,
    bytes_max: AtomicU64,
}

// Relaxed throughout: the counters are read by people, and order nothing.
impl ResidentAccount {
    pub(crate) fn add_frames(&self, count: u64, granule_bytes: usize) {
        self.frames.fetch_add(count, Ordering::Relaxed);
        self.add(count * granule_bytes as u64);
    }

    pub(crate) fn remove_frames(&self, count: u64, granule_bytes: usize) {
        self.frames.fetch_sub(count, Ordering::Relaxed);
        self.bytes.fetch_sub(count * granule_bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_twin(&self, page_bytes: usize) {
        self.twins.fetch_add(1, Ordering::Relaxed);
        self.add(page_bytes as u64);
    }

    pub(crate) fn remove_twin(&self, page_bytes: usize) {
        self.twins.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(page_bytes as u64, Ordering::Relaxed);
    }

    /// Counts other memory with page contents, which was `before` bytes and is `after` bytes.
    pub(crate) fn change(&self, before: u64, after: u64) {
        if after >= before {
            self.add(after - before);
        } else {
            self.bytes.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    fn add(&self, bytes: u64) {
        let now = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.bytes_max.fetch_max(now, Ordering::Relaxed);
    }

    pub(crate) fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }

    pub(crate) fn twins(&self) -> u64 {
        self.twins.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max.load(Ordering::Relaxed)
    }
}
