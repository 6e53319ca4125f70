//! Memory of this library's own, and memory that all nodes share.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;

use crate::face;
use crate::runtime;

unsafe extern "C" {
    // The C library's own allocator, under names that no other library replaces.
    fn __libc_memalign(align: usize, bytes: usize) -> *mut c_void;
    fn __libc_free(block: *mut c_void);
}

/// Memory of one process, for this library itself.
pub(crate) struct Private;

/// What `malloc` promises for any object.
const ALIGN: usize = 16;

// SAFETY: passes everything on to the C library's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Private {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: any length and any power of two may be asked for.
        unsafe { __libc_memalign(layout.align().max(ALIGN), layout.size()) }.cast()
    }

    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: the block is one that `alloc` gave.
        unsafe { __libc_free(block.cast()) }
    }
}

/// Zeroed memory that all nodes share, for a thread of the program. Ends the job where there is none. However
/// long it is, atomic words in it work, which those of the program's long blocks may not.
pub(crate) fn shared_zeroed(align: usize, bytes: usize) -> *mut c_void {
    let bytes = bytes.max(1);
    let block = runtime::privately(|| face::hiroba_aligned_alloc(align.max(ALIGN), bytes));
    if block.is_null() {
        runtime::fatal(&format!("OpenMP: expected {bytes} bytes of shared memory, got none"));
    }
    // SAFETY: the block is new and as long.
    unsafe { std::ptr::write_bytes(block.cast::<u8>(), 0, bytes) };
    block
}

/// Gives back what [`shared_zeroed`] gave, or does nothing with NULL.
///
/// # Safety
/// Nobody uses the block any more.
pub(crate) unsafe fn free_shared(block: *mut c_void) {
    // SAFETY: the caller's.
    unsafe { libc::free(block) };
}
