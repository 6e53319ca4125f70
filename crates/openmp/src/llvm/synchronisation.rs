//! Barriers, code that one thread runs at a time or alone, and cancellation.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::{Place, Thread};
use crate::along;
use crate::context::{self, TeamKind};
use crate::criticals::named;
use crate::face;
use crate::job::{self, put};
use crate::loops;
use crate::parallel;
use crate::runtime::{self, in_program};
use crate::singles;
use crate::teams;

/// `barrier`.
#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn __kmpc_barrier(_place: Place, _thread: Thread) {
    teams::barrier(context::current());
}

/// `barrier` in a region that may be cancelled. Returns 1 if it was cancelled.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_cancel_barrier(_place: Place, _thread: Thread) -> c_int {
    let context = context::current();
    // A cancelled loop may have iterations left.
    context.share.set(None);
    teams::barrier(context);
    c_int::from(context::is_cancelled(context))
}

/// `cancel`. Returns 1 if the construct is cancelled.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_cancel(_place: Place, _thread: Thread, which: c_int) -> c_int {
    c_int::from(parallel::cancel(construct(which)))
}

/// `cancellation point`. Returns 1 if the construct is cancelled.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_cancellationpoint(_place: Place, _thread: Thread, which: c_int) -> c_int {
    c_int::from(parallel::is_cancelled(construct(which)))
}

/// The construct that a number from 1 stands for: a region, a loop, sections, or a group of tasks.
fn construct(which: c_int) -> c_int {
    if !(1..=4).contains(&which) {
        runtime::fatal(&format!("OpenMP: expected a construct to cancel from 1 to 4, got {which}"));
    }
    1 << (which - 1)
}

/// Begins code that thread 0 runs. Returns 1 in it.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_master(_place: Place, _thread: Thread) -> c_int {
    c_int::from(context::current().number.get() == 0)
}

/// Ends it.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_end_master(_place: Place, _thread: Thread) {}

/// Begins code that thread `number` runs. Returns 1 in it.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_masked(_place: Place, _thread: Thread, number: c_int) -> c_int {
    c_int::from(i64::from(context::current().number.get()) == i64::from(number))
}

/// Ends it.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_end_masked(_place: Place, _thread: Thread) {}

/// Returns 1 in the thread that must run the code of a `single`.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_single(_place: Place, _thread: Thread) -> c_int {
    c_int::from(singles::is_first(context::current()))
}

/// Ends it.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_end_single(_place: Place, _thread: Thread) {}

/// Copies a list of variables to the same list of another thread.
type Copy = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void);

/// Passes the data of a `single` on from the thread that ran it.
///
/// # Safety
/// `copy` copies such data.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_copyprivate(
    _place: Place,
    _thread: Thread,
    bytes: usize,
    data: *mut c_void,
    copy: Copy,
    ran_it: c_int,
) {
    let context = context::current();
    if context.team.get() == TeamKind::Alone {
        return;
    }
    let copied = &job::begun().team.copied;
    if ran_it != 0 {
        return along::below_page(&mut || {
            put!(*copied, data);
            // SAFETY: the data are a list of as many bytes of addresses.
            along::send(&unsafe { along::pages_of_list(data.cast(), bytes / size_of::<usize>()) });
            teams::barrier(context);
            teams::barrier(context);
        });
    }
    teams::barrier(context);
    // SAFETY: the caller's; the other thread waits at the second barrier.
    unsafe { copy(data, copied.load(Acquire)) };
    teams::barrier(context);
}

/// Begins code that one thread runs at a time, among all code of the same name.
///
/// # Safety
/// `name` is the name's own word.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn __kmpc_critical(
    _place: Place,
    _thread: Thread,
    name: *mut *mut c_void,
) {
    if in_program() {
        // SAFETY: the caller's.
        unsafe { named(name) }.lock();
    }
}

/// The same with advice, which changes nothing.
///
/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_critical_with_hint(
    place: Place,
    thread: Thread,
    name: *mut *mut c_void,
    _hint: c_uint,
) {
    // SAFETY: the caller's.
    unsafe { __kmpc_critical(place, thread, name) };
}

/// Ends such code.
///
/// # Safety
/// As above.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn __kmpc_end_critical(
    _place: Place,
    _thread: Thread,
    name: *mut *mut c_void,
) {
    if in_program() {
        // SAFETY: the caller's.
        unsafe { named(name) }.unlock();
    }
}

/// Begins code of a loop that runs in the order of its iterations.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_ordered(_place: Place, _thread: Thread) {
    loops::await_turn(context::current());
}

/// Ends it. The turn passes on with the chunk.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_end_ordered(_place: Place, _thread: Thread) {}

/// `flush`.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_flush(_place: Place) {
    if in_program() {
        face::hiroba_fence();
    }
}

/// Begins a `scope`.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_scope(_place: Place, _thread: Thread, _unused: *mut c_void) {}

/// Ends it.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_end_scope(_place: Place, _thread: Thread, _unused: *mut c_void) {}

/// Begins an atomic operation that no instruction does.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_atomic_start() {
    crate::criticals::lock_atomic();
}

/// Ends it.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_atomic_end() {
    crate::criticals::GOMP_atomic_end();
}
