//! The memory that the runtime has allocated for itself: the states of pages, notices, queues.
//!
//! The face that provides the allocator counts it ([`note_allocated`], [`note_freed`]); without one it is 0.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

// Relaxed: a sum that orders nothing.
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Bytes of these blocks that are counted elsewhere.
static ELSEWHERE_BYTES: AtomicU64 = AtomicU64::new(0);

/// Counts an allocated block.
#[inline]
pub fn note_allocated(bytes: usize) {
    BYTES.fetch_add(bytes as u64, Relaxed);
}

/// Counts a freed block.
#[inline]
pub fn note_freed(bytes: usize) {
    BYTES.fetch_sub(bytes as u64, Relaxed);
}

/// Records that blocks with pages are counted with the frames: `bytes` of them, which were `before`.
pub(crate) fn note_elsewhere(before: u64, bytes: u64) {
    ELSEWHERE_BYTES.fetch_add(bytes.wrapping_sub(before), Relaxed);
}

/// Returns the bytes of all blocks that are not counted elsewhere.
pub(crate) fn allocated_bytes() -> u64 {
    BYTES.load(Relaxed).saturating_sub(ELSEWHERE_BYTES.load(Relaxed))
}
