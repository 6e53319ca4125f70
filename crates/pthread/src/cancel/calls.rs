//! Cancellation of threads that wait in a call of the kernel.
//!
//! A thread notes which thread makes the call, itself or its deputy. A thread that cancels it has that thread
//! interrupted by a signal whose handler does nothing: the call ends with `EINTR`. The signal may arrive just
//! before the call begins, so it is sent again and again until the thread has noticed.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst, fence};
use std::time::Duration;

use super::{is_asked, point};
use crate::next::next;
use crate::queues;
use crate::record::{Thread, record_of, this_record};
use crate::saying;
use crate::sigwait;
use crate::stacks::{in_program, privately};

unsafe extern "C" {
    /// sigaction(2) under a name that this library does not override.
    fn __sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
}

/// The time between two signals.
const INTERVAL: Duration = Duration::from_millis(1);

/// The signal that interrupts calls.
pub(crate) fn interrupting_signal() -> c_int {
    libc::SIGRTMAX() - 3
}

/// Prepares the process for interrupting calls.
pub(crate) fn prepare() {
    extern "C" fn interrupt(_: c_int) {}
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: zeros are a valid action, and a field is set below. Without SA_RESTART calls end.
    let action = unsafe { action.assume_init_mut() };
    action.sa_sigaction = interrupt as *const () as usize;
    // SAFETY: the handler does nothing.
    unsafe { __sigaction(interrupting_signal(), action, ptr::null_mut()) };
}

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

/// Interrupts a call that a thread of this node makes, until the cancelled thread has noticed.
pub(crate) fn interrupt_here(by: &Thread) {
    let (real, handle, cancelled) = (by.real_when_begun(), by.handle(), by.interrupts_for.load(Relaxed));
    // The record may be another thread's by now, which is not cancelled.
    let still_waits = move |thread: &Thread| {
        thread.is_cancelled.load(Relaxed) != 0 && thread.calls_by.load(Relaxed) == handle
    };
    let work = move || {
        sigwait::block(sigwait::all_signals());
        while record_of(cancelled).is_some_and(still_waits) {
            // SAFETY: the thread makes a call for the cancelled one, which has not noticed that it ended.
            unsafe { next!(fn pthread_kill(u64, c_int) -> c_int)(real, interrupting_signal()) };
            std::thread::sleep(INTERVAL);
        }
    };
    let spawn = || std::thread::Builder::new().name("canceller".to_owned()).spawn(work);
    // Otherwise it would be a thread of the program, on any node.
    if let Err(error) = privately(spawn) {
        saying::say(&format!(
            "pthread_cancel: expected to start a thread that interrupts a call, got: {error}"
        ));
    }
}
