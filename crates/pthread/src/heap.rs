//! The `malloc` family: shared memory for the program, the C library's own for all other callers.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{c_int, c_void};
use std::ptr;

use crate::alone;
use crate::control;
use crate::face;
use crate::library_above::has_library_above;
use crate::shared::is_shared;
use crate::stacks::{in_program, privately};

unsafe extern "C" {
    // The C library's own allocator, under names that no library overrides.
    fn __libc_malloc(bytes: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, bytes: usize) -> *mut c_void;
    fn __libc_realloc(block: *mut c_void, bytes: usize) -> *mut c_void;
    fn __libc_memalign(align: usize, bytes: usize) -> *mut c_void;
    fn __libc_free(block: *mut c_void);
}

/// The alignment that `malloc` guarantees for any object.
const ALIGN: usize = 16;

/// Memory for this library itself.
pub(crate) struct Private;

// SAFETY: passes everything on to the C library's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Private {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: any length and any power of two are valid.
        unsafe { __libc_memalign(layout.align().max(ALIGN), layout.size()) }.cast()
    }

    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: the block is one that `alloc` gave.
        unsafe { __libc_free(block.cast()) }
    }
}

fn no_memory() -> *mut c_void {
    set_errno(libc::ENOMEM);
    ptr::null_mut()
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the address is the calling thread's own.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { place.read() }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the address is the calling thread's own.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { place.write(errno) };
}

/// The length from which on a block is long: it has pages of its own, which under `--protocol hlrc` that
/// protocol keeps coherent. The C library also begins at this length to give blocks pages of their own.
const LONG_BYTES: usize = 128 << 10;

/// The same in programs of OpenMP: there threads share arrays rather than small objects.
const LONG_BYTES_OF_TEAMS: usize = 32 << 10;

/// Returns the length from which on a block or a static variable is long.
pub(crate) fn long_bytes() -> usize {
    if has_library_above() { LONG_BYTES_OF_TEAMS } else { LONG_BYTES }
}

/// The length from which on a block that `main` allocates while it runs alone is homed on all nodes, because
/// threads of all nodes will use it.
const PLACED_BYTES: usize = 512 << 10;

/// Returns a block of shared memory, or NULL with `errno`.
pub(crate) fn allocate(align: usize, bytes: usize, is_zero: bool) -> *mut c_void {
    let (align, bytes) = (align.max(ALIGN), bytes.max(1));
    let block = privately(|| match bytes {
        _ if bytes >= long_bytes() => {
            control::note_long_block();
            let for_all = c_int::from(bytes >= PLACED_BYTES && alone::is_main_alone());
            face::hiroba_long_alloc(align, bytes, c_int::from(is_zero), for_all)
        }
        _ if is_zero => zeroed(face::hiroba_aligned_alloc(align, bytes), bytes),
        _ if align > ALIGN => face::hiroba_aligned_alloc(align, bytes),
        _ => face::hiroba_malloc(bytes),
    });
    if block.is_null() { no_memory() } else { block }
}

fn zeroed(block: *mut c_void, bytes: usize) -> *mut c_void {
    if !block.is_null() {
        // SAFETY: the block is new and that long.
        unsafe { ptr::write_bytes(block.cast::<u8>(), 0, bytes) };
    }
    block
}

/// malloc(3).
#[unsafe(no_mangle)]
extern "C" fn malloc(bytes: usize) -> *mut c_void {
    if in_program() {
        return allocate(ALIGN, bytes, false);
    }
    // SAFETY: any length is valid.
    unsafe { __libc_malloc(bytes) }
}

/// calloc(3).
#[unsafe(no_mangle)]
extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    if in_program() {
        return count.checked_mul(bytes).map_or_else(no_memory, |bytes| allocate(ALIGN, bytes, true));
    }
    // SAFETY: any length is valid.
    unsafe { __libc_calloc(count, bytes) }
}

/// free(3). The block may come from either allocator, whichever thread frees it.
///
/// # Safety
/// As of free(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn free(block: *mut c_void) {
    if block.is_null() {
        return;
    }
    if is_shared(block.addr()) {
        // SAFETY: the caller's.
        return privately(|| unsafe { face::hiroba_free(block) });
    }
    // SAFETY: the caller's.
    unsafe { __libc_free(block) }
}

/// realloc(3). A block stays with the allocator that it came from.
///
/// # Safety
/// As of realloc(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(block: *mut c_void, bytes: usize) -> *mut c_void {
    if block.is_null() {
        return malloc(bytes);
    }
    if !is_shared(block.addr()) {
        // SAFETY: the caller's.
        return unsafe { __libc_realloc(block, bytes) };
    }
    if bytes == 0 {
        // SAFETY: the caller's.
        unsafe { free(block) };
        return ptr::null_mut();
    }
    // SAFETY: the caller's.
    let before = privately(|| unsafe { face::hiroba_block_bytes(block) });
    if (before / 2..=before).contains(&bytes) {
        return block;
    }
    let moved = allocate(ALIGN, bytes, false);
    if !moved.is_null() {
        // SAFETY: both blocks are that long, and the new one has no other user.
        unsafe { ptr::copy_nonoverlapping(block.cast::<u8>(), moved.cast::<u8>(), before.min(bytes)) };
        // SAFETY: the caller's.
        unsafe { free(block) };
    }
    moved
}

/// reallocarray(3).
///
/// # Safety
/// As of reallocarray(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn reallocarray(block: *mut c_void, count: usize, bytes: usize) -> *mut c_void {
    match count.checked_mul(bytes) {
        // SAFETY: the caller's.
        Some(bytes) => unsafe { realloc(block, bytes) },
        None => no_memory(),
    }
}

fn aligned(align: usize, bytes: usize) -> *mut c_void {
    if in_program() {
        return allocate(align, bytes, false);
    }
    // SAFETY: any length and any alignment are valid.
    unsafe { __libc_memalign(align, bytes) }
}

/// memalign(3).
#[unsafe(no_mangle)]
extern "C" fn memalign(align: usize, bytes: usize) -> *mut c_void {
    aligned(align, bytes)
}

/// aligned_alloc(3).
#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(align: usize, bytes: usize) -> *mut c_void {
    if !align.is_power_of_two() {
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    }
    aligned(align, bytes)
}

/// valloc(3).
#[unsafe(no_mangle)]
extern "C" fn valloc(bytes: usize) -> *mut c_void {
    aligned(4096, bytes)
}

/// pvalloc(3).
#[unsafe(no_mangle)]
extern "C" fn pvalloc(bytes: usize) -> *mut c_void {
    bytes.checked_next_multiple_of(4096).map_or_else(no_memory, |bytes| aligned(4096, bytes))
}

/// posix_memalign(3).
///
/// # Safety
/// As of posix_memalign(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(place: *mut *mut c_void, align: usize, bytes: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    let block = aligned(align, bytes);
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller passes a place for a pointer.
    unsafe { place.write(block) };
    0
}

/// malloc_usable_size(3).
///
/// # Safety
/// As of malloc_usable_size(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    if is_shared(block.addr()) {
        // SAFETY: the caller's.
        return privately(|| unsafe { face::hiroba_block_bytes(block) });
    }
    // SAFETY: the caller's.
    unsafe { crate::next::next!(fn malloc_usable_size(*mut c_void) -> usize)(block) }
}
