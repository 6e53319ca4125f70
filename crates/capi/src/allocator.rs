//! The runtime's own allocator: fault handlers run protocol code that allocates, in threads that may have
//! been interrupted inside the program's `malloc`.
//!
//! It has one lock, which the service thread takes too. So the program's signal handlers are blocked while a
//! thread is inside: a handler that touched shared memory there would wait for a page that cannot arrive,
//! since the thread that serves its fault needs memory.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::Once;

use dlmalloc::GlobalDlmalloc;
use hiroba_node::{
    SignalsDeferred, defer_signals_across_fork, note_allocated, note_freed, release_signals_after_fork,
    release_signals_in_child,
};

/// An allocator during which the program's signal handlers do not run.
pub(crate) struct Allocator;

// SAFETY: every call is passed on. The guard beside it only changes the thread's signal mask, and blocks are
// only counted.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _signals = SignalsDeferred::defer();
        // SAFETY: the caller keeps the requirements.
        counted(unsafe { GlobalDlmalloc.alloc(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let _signals = SignalsDeferred::defer();
        note_freed(layout.size());
        // SAFETY: as in `alloc`.
        unsafe { GlobalDlmalloc.dealloc(block, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let _signals = SignalsDeferred::defer();
        // SAFETY: as in `alloc`.
        counted(unsafe { GlobalDlmalloc.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let _signals = SignalsDeferred::defer();
        // SAFETY: as in `alloc`.
        let moved = counted(unsafe { GlobalDlmalloc.realloc(block, layout, bytes) }, bytes);
        if !moved.is_null() {
            note_freed(layout.size());
        }
        moved
    }
}

/// Counts a block, unless there was no memory for it.
fn counted(block: *mut u8, bytes: usize) -> *mut u8 {
    if !block.is_null() {
        note_allocated(bytes);
    }
    block
}

/// Keeps the allocator usable in forked children, which must not find it locked by another thread, since they
/// may print a last message. The thread that forks holds the lock meanwhile, with its signals blocked.
pub(crate) fn survive_forks() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: it only waits for the allocator's lock, which this thread does not hold.
        unsafe { dlmalloc::enable_alloc_after_fork() };
        // Registered after the allocator's handlers, so called before them, and after them in parent and
        // child.
        let before: unsafe extern "C" fn() = hold_across_fork;
        let after: unsafe extern "C" fn() = release_after_fork;
        let in_child: unsafe extern "C" fn() = release_in_child;
        // SAFETY: the handlers are plain functions that stay loaded until the process ends.
        unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_child)) };
    });
}

unsafe extern "C" fn hold_across_fork() {
    defer_signals_across_fork();
}

unsafe extern "C" fn release_after_fork() {
    release_signals_after_fork();
}

unsafe extern "C" fn release_in_child() {
    release_signals_in_child();
}
