//! Reductions. Where a barrier or the region's end follows, the threads' values travel there
//! (`gathering.rs`). Otherwise each thread adds its values to the variables, by the atomic operations of the
//! program if the compiler has made any, and if not under a lock. Operations take the page of the variables
//! to each node once; a lock would have to be moved there, too.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::synchronisation::{__kmpc_barrier, __kmpc_critical, __kmpc_end_critical};
use super::{Place, Thread};
use crate::call_sites::with_call_site;
use crate::context::{self, Context};
use crate::face;
use crate::gathering::{self, Combine, Values};
use crate::runtime;

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

/// What all threads do behind a reduction, where the code decides it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Unknown,
    /// They come to a barrier.
    Barrier,
    /// They come to the region's end.
    End,
}

/// What is known of the calls of reductions, by their addresses: what follows in the lowest bits.
static KNOWN: [AtomicUsize; 512] = [const { AtomicUsize::new(0) }; 512];
const BITS: u32 = 2;

/// Returns what follows a call whose address is `at`, in the calling thread's region.
fn next_of(context: &Context, at: usize) -> Next {
    let entry = &KNOWN[(at ^ at >> 9) % KNOWN.len()];
    let mut known = entry.load(Relaxed);
    if known >> BITS != at {
        let (barrier, code) = (__kmpc_barrier as *const () as usize, context.code.get());
        let follows = runtime::privately(|| face::hiroba_follows(at, barrier, code));
        known = at << BITS | follows as usize;
        entry.store(known, Relaxed);
    }
    match known & ((1 << BITS) - 1) {
        1 => Next::Barrier,
        2 => Next::End,
        _ => Next::Unknown,
    }
}

with_call_site! {
    __kmpc_reduce => reduce, 1;
    __kmpc_reduce_nowait => reduce_nowait, 1;
}

/// Begins a reduction that no barrier follows. Where threads add atomically, nothing ends it. If all threads
/// come to the region's end next, they combine their values there.
///
/// # Safety
/// `place` describes a place, and `lock` is a word for this reduction; `data` is an array of `bytes` bytes of
/// addresses, and `combine` combines such data.
unsafe extern "C-unwind" fn reduce_nowait(
    place: Place,
    thread: Thread,
    _count: c_int,
    bytes: usize,
    data: *mut c_void,
    combine: Combine,
    lock: *mut *mut c_void,
    at: usize,
) -> c_int {
    let context = context::current();
    if context::may_reduce_together(context) && next_of(context, at) == Next::End {
        let values = Values { list: data, words: bytes / size_of::<usize>(), combine, place: at };
        // SAFETY: the caller's.
        return c_int::from(unsafe { gathering::gather(context, &values, true) });
    }
    // SAFETY: the caller's.
    unsafe { add_in_turn(place, thread, lock) }
}

/// Begins a reduction by which each thread adds its values to the variables.
///
/// # Safety
/// As above.
unsafe fn add_in_turn(place: Place, thread: Thread, lock: *mut *mut c_void) -> c_int {
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
    let context = context::current();
    if context.threads.get() > 1 && !gathering::end(context) {
        // SAFETY: the caller's.
        unsafe { __kmpc_end_critical(place, thread, lock) };
    }
}

/// Begins a reduction that a barrier follows.
///
/// # Safety
/// As above.
unsafe extern "C-unwind" fn reduce(
    place: Place,
    thread: Thread,
    _count: c_int,
    bytes: usize,
    data: *mut c_void,
    combine: Combine,
    lock: *mut *mut c_void,
    at: usize,
) -> c_int {
    let context = context::current();
    if context::may_reduce_together(context) {
        // Clang has another barrier follow.
        let is_barrier = next_of(context, at) == Next::Barrier;
        let values = Values { list: data, words: bytes / size_of::<usize>(), combine, place: at };
        // SAFETY: the caller's.
        return c_int::from(unsafe { gathering::gather(context, &values, is_barrier) });
    }
    // SAFETY: the caller's.
    unsafe { add_in_turn(place, thread, lock) }
}

/// Ends it, with the barrier.
///
/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_end_reduce(place: Place, thread: Thread, lock: *mut *mut c_void) {
    let context = context::current();
    if gathering::end(context) {
        return;
    }
    // SAFETY: the caller's.
    if context.threads.get() > 1 && !unsafe { adds_atomically(place) } {
        // SAFETY: the caller's.
        unsafe { __kmpc_end_critical(place, thread, lock) };
    }
    __kmpc_barrier(place, thread);
}
