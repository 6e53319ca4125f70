//! Interrupts calls of the kernel that threads of this node make, for cancelled threads (`cancel/calls.rs`).

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::face;
use crate::masks::{self, interrupting_signal};
use crate::next::next;
use crate::record::{Thread, record_of};
use crate::saying;
use crate::stacks::privately;

/// The time between two signals.
const INTERVAL: Duration = Duration::from_millis(1);

/// Prepares the process for interrupting calls.
pub(crate) fn prepare() {
    extern "C" fn interrupt(_: c_int) {}
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: zeros are a valid action, and a field is set below. Without SA_RESTART calls end.
    let action = unsafe { action.assume_init_mut() };
    action.sa_sigaction = interrupt as *const () as usize;
    // SAFETY: the handler does nothing.
    unsafe { face::hiroba_handle_anywhere(interrupting_signal(), action) };
}

/// Interrupts a call that a thread of this node makes, until the cancelled thread has noticed.
pub(crate) fn interrupt_here(by: &Thread) {
    let (real, handle, cancelled) = (by.real_when_begun(), by.handle(), by.interrupts_for.load(Relaxed));
    // The record may be another thread's by now, which is not cancelled.
    let still_waits = move |thread: &Thread| {
        thread.is_cancelled.load(Relaxed) != 0 && thread.calls_by.load(Relaxed) == handle
    };
    let work = move || {
        masks::block(masks::all_signals());
        // Calls that the runtime makes itself must not end early.
        face::hiroba_block_inside(interrupting_signal());
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
