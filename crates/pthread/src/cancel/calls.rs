//! Cancellation of threads that wait in a call of the kernel.
//!
//! A thread notes which thread makes the call, itself or its deputy. A thread that cancels it has that thread
//! interrupted by a signal whose handler does nothing: the call ends with `EINTR`. The signal may arrive just
//! before the call begins, so it is sent again and again until the thread has noticed.

use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst, fence};

use super::{is_asked, point};
use crate::masks::interrupting_signal;
use crate::queues;
use crate::record::{Thread, record_of, this_record};
use crate::stacks::in_program;

/// Makes a call that is a cancellation point and may wait. `by` returns the thread that makes it: the calling
/// one or its deputy.
pub(crate) fn cancellable<R: PartialEq + From<i8>>(by: impl FnOnce() -> u64, call: impl FnOnce() -> R) -> R {
    let Some(thread) = this_record().filter(|_| in_program() && super::IS_ENABLED.get()) else {
        return call();
    };
    point();
    thread.calls_by.store(by(), Relaxed);
    fence(SeqCst);
    let result = if is_asked() { R::from(-1) } else { call() };
    thread.calls_by.store(0, Relaxed);
    // A call that has done something is not undone.
    if result == R::from(-1) && is_asked() {
        point();
    }
    result
}

/// Has the call interrupted in which a cancelled thread waits, if there is one.
pub(super) fn interrupt(cancelled: &Thread) {
    if let Some(by) = record_of(cancelled.calls_by.load(Relaxed)) {
        by.interrupts_for.store(cancelled.handle(), Relaxed);
        queues::send(by.handle(), interrupting_signal());
    }
}
