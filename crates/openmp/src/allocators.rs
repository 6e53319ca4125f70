//! Memory by allocators with traits. All memory is alike: traits of alignment, size and what is done when
//! there is none are kept.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::memory;
use crate::runtime;

/// `omp_alloctrait_t`.
#[repr(C)]
pub(crate) struct Trait {
    key: u32,
    value: usize,
}

const KEY_ALIGNMENT: u32 = 2;
const KEY_POOL_BYTES: u32 = 4;
const KEY_FALLBACK: u32 = 5;
const KEY_FALLBACK_ALLOCATOR: u32 = 6;
const DEFAULT: usize = usize::MAX;
const FALLBACK_DEFAULT_MEMORY: usize = 11;
const FALLBACK_NULL: usize = 12;
const FALLBACK_ABORT: usize = 13;
const FALLBACK_ALLOCATOR: usize = 14;

/// The predefined allocators have the numbers 1 to this one.
const PREDEFINED_MAX: usize = 8;
const DEFAULT_ALLOCATOR: usize = 1;

/// An allocator of the program's, in shared memory; its handle is the address.
#[repr(C)]
struct Allocator {
    align: AtomicUsize,
    pool_bytes: AtomicUsize,
    used_bytes: AtomicUsize,
    fallback: AtomicUsize,
    fallback_allocator: AtomicUsize,
}

/// What lies before a block.
#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    block: *mut c_void,
    bytes: usize,
    allocator: usize,
}

const ALIGN: usize = 16;

thread_local! {
    static CHOSEN: Cell<usize> = const { Cell::new(DEFAULT_ALLOCATOR) };
}

/// The program's allocator behind a handle; `None` for predefined ones.
fn known(handle: usize) -> Option<&'static Allocator> {
    // SAFETY: handles are predefined or made by `omp_init_allocator`.
    (handle > PREDEFINED_MAX).then(|| unsafe { &*ptr::with_exposed_provenance(handle) })
}

/// Takes memory of an allocator, 0 for the thread's default one.
fn allocate(align: usize, bytes: usize, handle: usize, is_zero: bool) -> *mut c_void {
    let handle = if handle == 0 { CHOSEN.get() } else { handle };
    if bytes == 0 {
        return ptr::null_mut();
    }
    let Some(allocator) = known(handle) else { return take(align.max(ALIGN), bytes, handle, is_zero) };
    let align = align.max(ALIGN).max(allocator.align.load(Relaxed));
    let pool = allocator.pool_bytes.load(Relaxed);
    let used = allocator.used_bytes.fetch_add(bytes, Relaxed);
    if used.checked_add(bytes).is_some_and(|all| all <= pool) {
        return take(align, bytes, handle, is_zero);
    }
    allocator.used_bytes.fetch_sub(bytes, Relaxed);
    match allocator.fallback.load(Relaxed) {
        FALLBACK_NULL => ptr::null_mut(),
        FALLBACK_ABORT => {
            runtime::fatal(&format!("OpenMP: out of memory of an allocator, {bytes} bytes asked for"))
        }
        FALLBACK_ALLOCATOR => allocate(align, bytes, allocator.fallback_allocator.load(Relaxed), is_zero),
        _ => take(align, bytes, DEFAULT_ALLOCATOR, is_zero),
    }
}

fn take(align: usize, bytes: usize, allocator: usize, is_zero: bool) -> *mut c_void {
    let offset = size_of::<Header>().next_multiple_of(align);
    let Some(all) = bytes.checked_add(offset).and_then(|all| all.checked_next_multiple_of(align)) else {
        return ptr::null_mut();
    };
    // SAFETY: any length and any power of two may be asked for.
    let block = unsafe { libc::aligned_alloc(align, all) };
    if block.is_null() {
        return block;
    }
    let start = block.wrapping_byte_add(offset);
    if is_zero {
        // SAFETY: the block is new and as long.
        unsafe { ptr::write_bytes(start.cast::<u8>(), 0, bytes) };
    }
    // SAFETY: the block has room for the header before the start.
    unsafe { start.cast::<Header>().wrapping_sub(1).write(Header { block, bytes, allocator }) };
    start
}

/// What lies before a block that was given.
///
/// # Safety
/// `start` was given by `take`.
unsafe fn header(start: *mut c_void) -> Header {
    // SAFETY: the caller's.
    let place = unsafe { start.cast::<Header>().sub(1) };
    // SAFETY: the caller's.
    unsafe { place.read() }
}

/// Gives memory back.
///
/// # Safety
/// The block is NULL or one of these functions'.
unsafe fn give_back(start: *mut c_void) {
    if start.is_null() {
        return;
    }
    // SAFETY: the caller's.
    let Header { block, bytes, allocator } = unsafe { header(start) };
    if let Some(allocator) = known(allocator) {
        allocator.used_bytes.fetch_sub(bytes, Relaxed);
    }
    // SAFETY: the caller's.
    unsafe { libc::free(block) };
}

/// See OpenMP.
#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn omp_alloc(bytes: usize, allocator: usize) -> *mut c_void {
    allocate(1, bytes, allocator, false)
}

/// See OpenMP.
#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn omp_aligned_alloc(
    align: usize,
    bytes: usize,
    allocator: usize,
) -> *mut c_void {
    allocate(align, bytes, allocator, false)
}

/// See OpenMP.
#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn omp_calloc(count: usize, bytes: usize, allocator: usize) -> *mut c_void {
    omp_aligned_calloc(1, count, bytes, allocator)
}

/// See OpenMP.
#[unsafe(no_mangle)]
extern "C-unwind" fn omp_aligned_calloc(
    align: usize,
    count: usize,
    bytes: usize,
    allocator: usize,
) -> *mut c_void {
    count.checked_mul(bytes).map_or(ptr::null_mut(), |bytes| allocate(align, bytes, allocator, true))
}

/// See OpenMP.
///
/// # Safety
/// The block is NULL or one of these functions'.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn omp_realloc(
    start: *mut c_void,
    bytes: usize,
    allocator: usize,
    _old_allocator: usize,
) -> *mut c_void {
    if start.is_null() {
        return omp_alloc(bytes, allocator);
    }
    // SAFETY: the caller's.
    let before = unsafe { header(start) };
    let moved = allocate(1, bytes, if allocator == 0 { before.allocator } else { allocator }, false);
    if !moved.is_null() {
        // SAFETY: both blocks are as long, and no other code uses the new one.
        unsafe { ptr::copy_nonoverlapping(start.cast::<u8>(), moved.cast(), before.bytes.min(bytes)) };
    }
    if !moved.is_null() || bytes == 0 {
        // SAFETY: the caller's.
        unsafe { give_back(start) };
    }
    moved
}

/// See OpenMP.
///
/// # Safety
/// The block is NULL or one of these functions'.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn omp_free(start: *mut c_void, _allocator: usize) {
    // SAFETY: the caller's.
    unsafe { give_back(start) };
}

/// Memory for variables with an `allocate` clause.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_alloc(align: usize, bytes: usize, allocator: usize) -> *mut c_void {
    let block = allocate(align, bytes.max(1), allocator, false);
    if block.is_null() {
        runtime::fatal(&format!("OpenMP: expected {bytes} bytes of memory for a variable, got none"));
    }
    block
}

/// Gives it back.
///
/// # Safety
/// It was given by `GOMP_alloc`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn GOMP_free(start: *mut c_void, _allocator: usize) {
    // SAFETY: the caller's.
    unsafe { give_back(start) };
}

/// Makes an allocator.
///
/// # Safety
/// `traits` has `count` elements.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn omp_init_allocator(
    _space: usize,
    count: c_int,
    traits: *const Trait,
) -> usize {
    let place = memory::shared_zeroed(align_of::<Allocator>(), size_of::<Allocator>());
    // SAFETY: zeros are valid, and no other thread knows it yet.
    let allocator = unsafe { &*place.cast::<Allocator>() };
    allocator.pool_bytes.store(usize::MAX, Relaxed);
    allocator.fallback.store(FALLBACK_DEFAULT_MEMORY, Relaxed);
    for number in 0..count.max(0) as usize {
        let given = traits.wrapping_add(number);
        // SAFETY: the caller's.
        let Trait { key, value } = unsafe { given.read() };
        match key {
            _ if value == DEFAULT => {}
            KEY_ALIGNMENT => allocator.align.store(value, Relaxed),
            KEY_POOL_BYTES => allocator.pool_bytes.store(value, Relaxed),
            KEY_FALLBACK => allocator.fallback.store(value, Relaxed),
            KEY_FALLBACK_ALLOCATOR => allocator.fallback_allocator.store(value, Relaxed),
            _ => {}
        }
    }
    place.expose_provenance()
}

/// The same for Fortran.
///
/// # Safety
/// The numbers can be read, and `traits` has that many elements.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_init_allocator_(
    space: *const usize,
    count: *const c_int,
    traits: *const Trait,
) -> usize {
    // SAFETY: the caller's.
    let space = unsafe { space.read() };
    // SAFETY: the caller's.
    let count = unsafe { count.read() };
    // SAFETY: the caller's.
    unsafe { omp_init_allocator(space, count, traits) }
}

/// The same with a count of 8 bytes.
///
/// # Safety
/// The numbers can be read, and `traits` has that many elements.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_init_allocator_8_(
    space: *const usize,
    count: *const i64,
    traits: *const Trait,
) -> usize {
    // SAFETY: the caller's.
    let space = unsafe { space.read() };
    // SAFETY: the caller's.
    let count = unsafe { count.read() };
    // SAFETY: the caller's.
    unsafe { omp_init_allocator(space, count as c_int, traits) }
}

/// Ends an allocator.
///
/// # Safety
/// It is a predefined one, or made by `omp_init_allocator` and not used any more.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn omp_destroy_allocator(handle: usize) {
    if known(handle).is_some() {
        // SAFETY: the caller's.
        unsafe { memory::free_shared(ptr::with_exposed_provenance_mut(handle)) };
    }
}

/// The same for Fortran.
///
/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_destroy_allocator_(handle: *const usize) {
    // SAFETY: the caller's.
    let handle = unsafe { handle.read() };
    // SAFETY: the caller's.
    unsafe { omp_destroy_allocator(handle) };
}

/// See OpenMP.
#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn omp_set_default_allocator(handle: usize) {
    CHOSEN.set(if handle == 0 { DEFAULT_ALLOCATOR } else { handle });
}

/// The same for Fortran.
///
/// # Safety
/// The handle can be read.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_set_default_allocator_(handle: *const usize) {
    // SAFETY: the caller's.
    omp_set_default_allocator(unsafe { handle.read() });
}

/// See OpenMP.
#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn omp_get_default_allocator() -> usize {
    CHOSEN.get()
}

/// The same for Fortran.
#[unsafe(no_mangle)]
extern "C-unwind" fn omp_get_default_allocator_() -> usize {
    omp_get_default_allocator()
}
