//! What `processors.rs` asks: whether the program runs. There is one stack for each thread here.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// Notes that the process has joined the job: the runtime's questions about processors have been answered.
pub(crate) fn begin() {
    HAS_BEGUN.store(true, Relaxed);
}

/// Returns true once the process has joined the job.
pub(crate) fn in_program() -> bool {
    HAS_BEGUN.load(Relaxed)
}

/// Runs the runtime's work.
pub(crate) fn privately<R>(work: impl FnOnce() -> R) -> R {
    work()
}
