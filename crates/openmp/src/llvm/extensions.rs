//! Functions of LLVM's library that programs call themselves.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use super::Place;
use crate::affinity;
use crate::messages;
use crate::settings::settings;

/// `omp_set_affinity_format`, as LLVM's header renames it.
///
/// # Safety
/// A C string.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ompc_set_affinity_format(format: *const c_char) {
    // SAFETY: the caller's.
    unsafe { affinity::omp_set_affinity_format(format) };
}

/// `omp_get_affinity_format`, as LLVM's header renames it.
///
/// # Safety
/// `place` has room for `bytes` bytes.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ompc_get_affinity_format(place: *mut c_char, bytes: usize) -> usize {
    // SAFETY: the caller's.
    unsafe { affinity::omp_get_affinity_format(place, bytes) }
}

/// `omp_display_affinity`, as LLVM's header renames it.
///
/// # Safety
/// NULL or a C string.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ompc_display_affinity(format: *const c_char) {
    // SAFETY: the caller's.
    unsafe { affinity::omp_display_affinity(format) };
}

/// `omp_capture_affinity`, as LLVM's header renames it.
///
/// # Safety
/// `place` has room for `bytes` bytes; the format is NULL or a C string.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ompc_capture_affinity(
    place: *mut c_char,
    bytes: usize,
    format: *const c_char,
) -> usize {
    // SAFETY: the caller's.
    unsafe { affinity::omp_capture_affinity(place, bytes, format) }
}

/// Memory of the heap.
#[unsafe(no_mangle)]
extern "C-unwind" fn kmp_malloc(bytes: usize) -> *mut c_void {
    // SAFETY: any length may be asked for.
    unsafe { libc::malloc(bytes) }
}

/// Zeroed memory of the heap.
#[unsafe(no_mangle)]
extern "C-unwind" fn kmp_calloc(count: usize, bytes: usize) -> *mut c_void {
    // SAFETY: any length may be asked for.
    unsafe { libc::calloc(count, bytes) }
}

/// Memory of the heap at a multiple of `align`.
#[unsafe(no_mangle)]
extern "C-unwind" fn kmp_aligned_malloc(bytes: usize, align: usize) -> *mut c_void {
    let mut block = std::ptr::null_mut();
    // SAFETY: writes a local.
    unsafe { libc::posix_memalign(&raw mut block, align.max(size_of::<usize>()), bytes) };
    block
}

/// Makes such memory longer or shorter.
///
/// # Safety
/// The block is NULL or one of these functions'.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn kmp_realloc(block: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { libc::realloc(block, bytes) }
}

/// Gives such memory back.
///
/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn kmp_free(block: *mut c_void) {
    // SAFETY: the caller's.
    unsafe { libc::free(block) };
}

/// How long waiting threads look before they sleep, in milliseconds, as the program has set it: changes
/// nothing.
static BLOCK_TIME_MS: AtomicI32 = AtomicI32::new(200);

/// Sets how long waiting threads look before they sleep, which changes nothing.
#[unsafe(no_mangle)]
extern "C-unwind" fn kmp_set_blocktime(time_ms: c_int) {
    BLOCK_TIME_MS.store(time_ms.max(0), Relaxed);
}

/// Returns what [`kmp_set_blocktime`] has set on this node.
#[unsafe(no_mangle)]
extern "C-unwind" fn kmp_get_blocktime() -> c_int {
    BLOCK_TIME_MS.load(Relaxed)
}

/// Does nothing: threads have their stacks before the program begins.
#[unsafe(no_mangle)]
extern "C-unwind" fn kmp_set_stacksize_s(_bytes: usize) {}

/// Does nothing: threads have their stacks before the program begins.
#[unsafe(no_mangle)]
extern "C-unwind" fn kmp_set_stacksize(_bytes: c_int) {}

/// Returns the length of a thread's stack.
#[unsafe(no_mangle)]
extern "C-unwind" fn kmp_get_stacksize_s() -> usize {
    settings().stack_bytes
}

/// Returns the length of a thread's stack.
#[unsafe(no_mangle)]
extern "C-unwind" fn kmp_get_stacksize() -> c_int {
    c_int::try_from(settings().stack_bytes).unwrap_or(c_int::MAX)
}

/// Defines functions that change nothing.
macro_rules! without_effect {
    ($($name:ident($($argument:ident: $type:ty),*))*) => { $(
        /// Changes nothing: waiting threads wait as the runtime has them, and there are no warnings.
        #[unsafe(no_mangle)]
        extern "C-unwind" fn $name($($argument: $type),*) {}
    )* };
}

without_effect! {
    kmp_set_library(_mode: c_int) kmp_set_library_serial() kmp_set_library_turnaround()
    kmp_set_library_throughput() kmp_set_warnings_on() kmp_set_warnings_off()
    kmp_set_defaults(_settings: *const c_char)
}

/// Says a sentence of the program's, and ends it if it is about an error.
///
/// # Safety
/// NULL or a C string.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_error(_place: Place, severity: c_int, text: *const c_char) {
    const WARNING: c_int = 1;
    if severity == WARNING {
        // SAFETY: the caller's.
        unsafe { messages::GOMP_warning(text, usize::MAX) }
    } else {
        // SAFETY: the caller's.
        unsafe { messages::GOMP_error(text, usize::MAX) }
    }
}

/// Returns 0: code for devices runs on the host.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_get_target_offload() -> c_int {
    0
}
