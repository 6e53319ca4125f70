//! Memory for variables with an `allocate` clause, and allocators of `target`.

use std::ffi::{c_int, c_void};

use super::Thread;
use crate::allocators::{self, Trait};

/// Memory by an allocator.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_alloc(_thread: Thread, bytes: usize, allocator: usize) -> *mut c_void {
    allocators::omp_alloc(bytes, allocator)
}

/// Memory by an allocator, at a multiple of `align`.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_aligned_alloc(
    _thread: Thread,
    align: usize,
    bytes: usize,
    allocator: usize,
) -> *mut c_void {
    allocators::omp_aligned_alloc(align, bytes, allocator)
}

/// Zeroed memory by an allocator.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_calloc(
    _thread: Thread,
    count: usize,
    bytes: usize,
    allocator: usize,
) -> *mut c_void {
    allocators::omp_calloc(count, bytes, allocator)
}

/// Makes such memory longer or shorter.
///
/// # Safety
/// The block is NULL or one of these functions'.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_realloc(
    _thread: Thread,
    block: *mut c_void,
    bytes: usize,
    allocator: usize,
    old_allocator: usize,
) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { allocators::omp_realloc(block, bytes, allocator, old_allocator) }
}

/// Gives such memory back.
///
/// # Safety
/// The block is NULL or one of these functions'.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_free(_thread: Thread, block: *mut c_void, allocator: usize) {
    // SAFETY: the caller's.
    unsafe { allocators::omp_free(block, allocator) };
}

/// Makes an allocator.
///
/// # Safety
/// `traits` has `count` elements.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_init_allocator(
    _thread: Thread,
    space: usize,
    count: c_int,
    traits: *const Trait,
) -> usize {
    // SAFETY: the caller's.
    unsafe { allocators::omp_init_allocator(space, count, traits) }
}

/// Ends an allocator.
///
/// # Safety
/// As of `omp_destroy_allocator`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_destroy_allocator(_thread: Thread, allocator: usize) {
    // SAFETY: the caller's.
    unsafe { allocators::omp_destroy_allocator(allocator) };
}

/// Sets the allocator that is used where none is given.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_set_default_allocator(_thread: Thread, allocator: usize) {
    allocators::omp_set_default_allocator(allocator);
}

/// Returns it.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_get_default_allocator(_thread: Thread) -> usize {
    allocators::omp_get_default_allocator()
}
