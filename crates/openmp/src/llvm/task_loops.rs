//! `taskloop`: each task is a copy of the one that the program has made, with bounds of its own.

use std::ffi::{c_int, c_void};

use super::tasks::{Made, copy};
use super::{Place, Thread};
use crate::context;
use crate::tasks::calls::{self, GOMP_taskgroup_end, GOMP_taskgroup_start};
use crate::tasks::task_loops::Deal;

/// Copies what needs more than bytes from one record to another; the last argument says that the task has the
/// last iteration.
type Duplicate = unsafe extern "C-unwind" fn(*mut Made, *mut Made, c_int);

/// How the number of tasks is given.
const BY_GRAIN: c_int = 1;

/// What is asked of a loop.
#[derive(Clone, Copy)]
struct Asked {
    may_wait: bool,
    by_grain: bool,
    is_strict: bool,
    number: u64,
    duplicate: Option<Duplicate>,
}

/// # Safety
/// `pattern` is a record, which has the bounds at `first` and `last`.
unsafe fn run(pattern: *mut Made, first: *mut u64, last: *mut u64, step: i64, asked: Asked) {
    let context = context::current();
    // SAFETY: the caller's.
    let from = unsafe { first.read() };
    // SAFETY: the caller's.
    let to = unsafe { last.read() };
    let distance = if step < 0 { from.wrapping_sub(to) } else { to.wrapping_sub(from) };
    let count = (distance / step.unsigned_abs().max(1)).wrapping_add(1);
    let (first_at, last_at) = (first.addr() - pattern.addr(), last.addr() - pattern.addr());
    let deal = Deal::new(context, count, asked.number, asked.by_grain, asked.is_strict);
    let tasks = if count == 0 || calls::is_cancelled(context) { 0 } else { deal.tasks };
    for number in 0..tasks {
        let (begin, end) = deal.part(count, number);
        let at = |iteration: u64| from.wrapping_add(iteration.wrapping_mul(step as u64));
        // SAFETY: the caller's.
        let made = unsafe { copy(pattern) };
        // SAFETY: the copy has its bounds at the same places.
        unsafe { made.wrapping_byte_add(first_at).cast::<u64>().write(at(begin)) };
        // SAFETY: as above.
        unsafe { made.wrapping_byte_add(last_at).cast::<u64>().write(at(end - 1)) };
        if let Some(duplicate) = asked.duplicate {
            // SAFETY: the program's code with its records.
            unsafe { duplicate(made, pattern, c_int::from(end == count)) };
        }
        // SAFETY: the record stays until the task is done.
        let task = unsafe { Made::task(made) };
        calls::submit_if(context, task, asked.may_wait);
    }
    // SAFETY: the pattern does not run itself.
    unsafe { Made::end_lives(pattern) };
    // SAFETY: the caller's.
    unsafe { Made::task(pattern) }.free();
}

/// Runs the iterations of a loop in tasks.
///
/// # Safety
/// `made` is a record, which has the bounds at `first` and `last`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_taskloop(
    place: Place,
    thread: Thread,
    made: *mut Made,
    condition: c_int,
    first: *mut u64,
    last: *mut u64,
    step: i64,
    has_no_group: c_int,
    how: c_int,
    number: u64,
    duplicate: *const c_void,
) {
    // SAFETY: the caller's.
    unsafe {
        __kmpc_taskloop_5(
            place,
            thread,
            made,
            condition,
            first,
            last,
            step,
            has_no_group,
            how,
            number,
            0,
            duplicate,
        );
    }
}

/// The same, of which the number of tasks or of iterations may be strict.
///
/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_taskloop_5(
    _place: Place,
    _thread: Thread,
    made: *mut Made,
    condition: c_int,
    first: *mut u64,
    last: *mut u64,
    step: i64,
    has_no_group: c_int,
    how: c_int,
    number: u64,
    is_strict: c_int,
    duplicate: *const c_void,
) {
    // SAFETY: NULL, or a function of this type.
    let duplicate = unsafe { std::mem::transmute::<*const c_void, Option<Duplicate>>(duplicate) };
    let asked = Asked {
        may_wait: condition != 0,
        by_grain: how == BY_GRAIN,
        is_strict: is_strict != 0,
        number: if how == 0 { 0 } else { number },
        duplicate,
    };
    if has_no_group == 0 {
        GOMP_taskgroup_start();
    }
    // SAFETY: the caller's.
    unsafe { run(made, first, last, step, asked) };
    if has_no_group == 0 {
        GOMP_taskgroup_end();
    }
}
