//! The runtime's own allocator: fault handlers run protocol code that allocates, in threads that may have been
//! interrupted inside the program's `malloc`.
//!
//! It has one lock, which the service thread takes too. So no handler of the program's runs while a thread is inside: a
//! handler that touched shared memory there would wait for a page that nobody can bring, since whoever serves its fault
//! needs memory.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::Once;

use dlmalloc::GlobalDlmalloc;
use hiroba_node::{
    SignalsHeld, hold_signals_across_fork, release_signals_after_fork, release_signals_in_child,
};

/// An allocator in which the program's signal handlers interrupt nobody.
pub(crate) struct Allocator;

// SAFETY: every call is passed on, and the guard beside it changes nothing but the thread's signal mask.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _signals = SignalsHeld::hold();
        // SAFETY: the caller's.
        unsafe { GlobalDlmalloc.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let _signals = SignalsHeld::hold();
        // SAFETY: the caller's.
        unsafe { GlobalDlmalloc.dealloc(block, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let _signals = SignalsHeld::hold();
        // SAFETY: the caller's.
        unsafe { GlobalDlmalloc.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let _signals = SignalsHeld::hold();
        // SAFETY: the caller's.
        unsafe { GlobalDlmalloc.realloc(block, layout, bytes) }
    }
}

/// A child forked while another thread allocates must not find the allocator locked: it has last words to say. The thread
/// that forks has the lock meanwhile, so its signals are held, too.
pub(crate) fn survive_forks() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: it only waits for the allocator's lock, which this thread does not hold.
        unsafe { dlmalloc::enable_alloc_after_fork() };
        // Registered after the allocator's, so called before them, and behind them once the child is there.
        let before: unsafe extern "C" fn() = hold_across_fork;
        let after: unsafe extern "C" fn() = release_after_fork;
        let in_child: unsafe extern "C" fn() = release_in_child;
        // SAFETY: the handlers are plain functions that stay loaded until the process ends.
        unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_child)) };
    });
}

unsafe extern "C" fn hold_across_fork() {
    hold_signals_across_fork();
}

unsafe extern "C" fn release_after_fork() {
    release_signals_after_fork();
}

unsafe extern "C" fn release_in_child() {
    release_signals_in_child();
}
