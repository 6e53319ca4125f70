//! Processors, which are those of the job: nodes times threads. The library for jobs of one node
//! (`crates/single`) has this file, too.

use std::ffi::{c_int, c_long, c_void};
use std::ptr;

use crate::face;
use crate::next::next;
use crate::stacks::{in_program, privately};

/// Returns the number of processors of the job: one for each thread that it was started for.
fn processors() -> usize {
    face::hiroba_nodes() as usize * threads_per_node()
}

fn threads_per_node() -> usize {
    std::env::var("HIROBA_THREADS_PER_NODE").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// sysconf(3): returns the job's numbers of processors.
#[unsafe(no_mangle)]
extern "C-unwind" fn sysconf(name: c_int) -> c_long {
    if in_program() && matches!(name, libc::_SC_NPROCESSORS_CONF | libc::_SC_NPROCESSORS_ONLN) {
        return privately(processors) as c_long;
    }
    // SAFETY: any number is valid.
    unsafe { next!(fn sysconf(c_int) -> c_long)(name) }
}

/// Defines functions that return the number of processors.
macro_rules! processors {
    ($($name:ident)*) => { $(
        /// Returns the number of processors of the job.
        #[unsafe(no_mangle)]
        extern "C-unwind" fn $name() -> c_int {
            if in_program() {
                return privately(processors) as c_int;
            }
            // SAFETY: it has no arguments.
            unsafe { next!(fn $name() -> c_int)() }
        }
    )* };
}

processors! { get_nprocs get_nprocs_conf }

/// Fills a set of processors with as many as the job has.
fn fill_set(bytes: usize, set: *mut u8) {
    // SAFETY: the caller passes room for `bytes` bytes.
    unsafe { ptr::write_bytes(set, 0, bytes) };
    for number in 0..privately(processors).min(8 * bytes) {
        // SAFETY: the byte is inside the set.
        let byte = unsafe { set.add(number / 8) };
        // SAFETY: as above.
        unsafe { *byte |= 1 << (number % 8) };
    }
}

/// sched_getaffinity(2): returns the job's processors.
///
/// # Safety
/// `set` has room for `bytes` bytes.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sched_getaffinity(process: c_int, bytes: usize, set: *mut u8) -> c_int {
    if !in_program() {
        // SAFETY: the caller's.
        return unsafe { next!(fn sched_getaffinity(c_int, usize, *mut u8) -> c_int)(process, bytes, set) };
    }
    fill_set(bytes, set);
    0
}

/// pthread_getaffinity_np(3): returns the job's processors.
///
/// # Safety
/// `set` has room for `bytes` bytes.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_getaffinity_np(thread: u64, bytes: usize, set: *mut u8) -> c_int {
    if !in_program() {
        // SAFETY: the caller's.
        return unsafe { next!(fn pthread_getaffinity_np(u64, usize, *mut u8) -> c_int)(thread, bytes, set) };
    }
    fill_set(bytes, set);
    0
}

/// sched_setaffinity(2): does nothing, because the runtime places threads.
#[unsafe(no_mangle)]
extern "C-unwind" fn sched_setaffinity(process: c_int, bytes: usize, set: *const c_void) -> c_int {
    if in_program() {
        return 0;
    }
    // SAFETY: the kernel checks the pointer.
    unsafe { next!(fn sched_setaffinity(c_int, usize, *const c_void) -> c_int)(process, bytes, set) }
}
