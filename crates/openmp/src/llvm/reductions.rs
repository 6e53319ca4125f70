//! Reductions: each thread adds its values to the variables, by the atomic operations of the program if the
//! compiler has made any, and otherwise under a lock. Operations take the page of the variables to each node
//! once; a lock would have to be moved there, too.

use std::ffi::{c_int, c_void};

use super::synchronisation::{__kmpc_barrier, __kmpc_critical, __kmpc_end_critical};
use super::{Place, Thread};
use crate::context;

/// Combines two lists of variables into the first.
type Combine = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void);

/// The calling thread must add its values under the lock, where others do the same.
const ADD_IN_TURN: c_int = 1;

/// It must add them by atomic operations.
const ADD_ATOMICALLY: c_int = 2;

/// The bit of a place's flags that says that the program has such operations.
const HAS_OPERATIONS: u32 = 0x10;

/// Returns true if the threads of a team add the values of this reduction by atomic operations.
///
/// # Safety
/// `place` is NULL, or where the compiler describes a place: a word, and then its flags.
unsafe fn adds_atomically(place: Place) -> bool {
    if place.is_null() {
        return false;
    }
    // SAFETY: the flags follow a word, as the caller says.
    let flags = unsafe { place.cast::<u32>().add(1) };
    // SAFETY: as above.
    unsafe { flags.read() & HAS_OPERATIONS != 0 }
}

/// Begins a reduction that no barrier follows. Where threads add atomically, nothing ends it.
///
/// # Safety
/// `place` describes a place, and `lock` is a word for this reduction.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_reduce_nowait(
    place: Place,
    thread: Thread,
    _count: c_int,
    _bytes: usize,
    _data: *mut c_void,
    _combine: Combine,
    lock: *mut *mut c_void,
) -> c_int {
    if context::current().threads.get() > 1 {
        // SAFETY: the caller's.
        if unsafe { adds_atomically(place) } {
            return ADD_ATOMICALLY;
        }
        // SAFETY: the caller's.
        unsafe { __kmpc_critical(place, thread, lock) };
    }
    ADD_IN_TURN
}

/// Ends it.
///
/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_end_reduce_nowait(place: Place, thread: Thread, lock: *mut *mut c_void) {
    if context::current().threads.get() > 1 {
        // SAFETY: the caller's.
        unsafe { __kmpc_end_critical(place, thread, lock) };
    }
}

/// Begins a reduction that a barrier follows.
///
/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_reduce(
    place: Place,
    thread: Thread,
    count: c_int,
    bytes: usize,
    data: *mut c_void,
    combine: Combine,
    lock: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { __kmpc_reduce_nowait(place, thread, count, bytes, data, combine, lock) }
}

/// Ends it, with the barrier.
///
/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_end_reduce(place: Place, thread: Thread, lock: *mut *mut c_void) {
    // SAFETY: the caller's.
    if !unsafe { adds_atomically(place) } {
        // SAFETY: the caller's.
        unsafe { __kmpc_end_reduce_nowait(place, thread, lock) };
    }
    __kmpc_barrier(place, thread);
}
