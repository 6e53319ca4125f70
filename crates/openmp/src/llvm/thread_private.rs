//! `threadprivate` variables of programs that keep them elsewhere than in thread-local storage
//! (`-fnoopenmp-use-tls`). The first thread has the variable itself, each other one a copy in shared memory.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::{Place, Thread, number_of};
use crate::context;
use crate::job::{self, Construct, Registered};
use crate::memory;
use crate::runtime::in_program;

type ConstructFrom = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void) -> *mut c_void;
type Destroy = unsafe extern "C-unwind" fn(*mut c_void);

/// Says how copies of a variable begin. The copies live as long as the process.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_threadprivate_register(
    _place: Place,
    variable: *mut c_void,
    construct: Option<Construct>,
    _construct_from: Option<ConstructFrom>,
    _destroy: Option<Destroy>,
) {
    let Some(job) = job::job().filter(|_| in_program()) else { return };
    let block = memory::shared_zeroed(align_of::<Registered>(), size_of::<Registered>()).cast::<Registered>();
    job.team.atomic.hold(|_| {
        let next = job.thread_private.load(Relaxed);
        // SAFETY: the block is new and as long.
        unsafe { block.write(Registered { next, variable, construct }) };
        job.thread_private.store(block, Release);
    });
}

/// How copies of a variable begin, if the program has said so.
fn constructor(job: &job::Job, variable: *mut c_void) -> Option<Construct> {
    let mut place = job.thread_private.load(Acquire);
    // SAFETY: records stay.
    while let Some(registered) = unsafe { place.as_ref() } {
        if registered.variable == variable {
            return registered.construct;
        }
        place = registered.next;
    }
    None
}

/// What the threads know of a variable: what it was at first, and each thread's own.
#[repr(C)]
struct Known {
    at_first: *mut c_void,
    places: *const AtomicPtr<c_void>,
}

/// The calling thread's own of a variable. `known` is a word of the program's, 0 at first.
///
/// # Safety
/// The variable has that many bytes.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_threadprivate_cached(
    _place: Place,
    _thread: Thread,
    variable: *mut c_void,
    bytes: usize,
    known: *const AtomicPtr<c_void>,
) -> *mut c_void {
    let Some(job) = job::job().filter(|_| in_program()) else { return variable };
    // SAFETY: the caller's.
    let known = unsafe { &*known };
    if known.load(Acquire).is_null() {
        job.team.atomic.hold(|_| {
            if known.load(Acquire).is_null() {
                // SAFETY: the caller's.
                known.store(unsafe { get_to_know(variable, bytes) }, Release);
            }
        });
    }
    let number = number_of(context::current());
    if number == 0 {
        return variable;
    }
    // SAFETY: made above, and it stays.
    let known = unsafe { &*known.load(Acquire).cast::<Known>() };
    // SAFETY: there is a place for each thread of the job.
    let place = unsafe { &*known.places.wrapping_add(number as usize) };
    let own = place.load(Acquire);
    if !own.is_null() {
        return own;
    }
    let own = memory::shared_zeroed(64, bytes);
    match constructor(job, variable) {
        // SAFETY: the program's code with a new variable.
        Some(construct) => unsafe {
            construct(own);
        },
        // SAFETY: both are as long.
        None => unsafe { ptr::copy_nonoverlapping(known.at_first.cast::<u8>(), own.cast(), bytes) },
    }
    place.store(own, Release);
    own
}

/// Notes what a variable is at first, before any thread has used it.
///
/// # Safety
/// The variable has that many bytes.
unsafe fn get_to_know(variable: *mut c_void, bytes: usize) -> *mut c_void {
    let at_first = memory::shared_zeroed(64, bytes);
    // SAFETY: the caller's; the block is new and as long.
    unsafe { ptr::copy_nonoverlapping(variable.cast::<u8>(), at_first.cast(), bytes) };
    let places = memory::shared_zeroed(64, job::threads_max() as usize * size_of::<usize>());
    let known = memory::shared_zeroed(align_of::<Known>(), size_of::<Known>()).cast::<Known>();
    // SAFETY: the block is new and as long.
    unsafe { known.write(Known { at_first, places: places.cast_const().cast() }) };
    known.cast()
}
