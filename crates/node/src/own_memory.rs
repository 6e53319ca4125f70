//! The memory that the runtime has allocated for itself: the states of pages, notices, queues.
//!
//! The face that provides the allocator counts it ([`note_allocated`], [`note_freed`]); without one it is 0.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

// Relaxed: a sum that orders nothing.
static BYTES: AtomicU64 = AtomicU64::new(0);

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

/// Returns the bytes of all blocks.
pub(crate) fn allocated_bytes() -> u64 {
    BYTES.load(Relaxed)
}
