//! Which thread of node 0 runs the next `single`: the first one to come.

use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};

/// The number of the next `single` that no thread of node 0 has taken. Private to the process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Numbers the `single`s of a new region. Called on node 0 before other threads learn of the region.
pub(crate) fn begin_region() {
    NEXT.store(0, Release);
}

/// Takes a `single` for the calling thread. Returns false if another one has come before.
pub(crate) fn take(number: u64) -> bool {
    NEXT.compare_exchange(number, number + 1, AcqRel, Acquire).is_ok()
}
