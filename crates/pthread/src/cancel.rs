//! Cancellation, which is deferred: a thread that is cancelled ends at its next cancellation point.
//!
//! The C library's own cancellation would end a thread inside the runtime, while it holds locks, and does not
//! know threads of other nodes. So the program's threads are cancelled by a mark in their records. A thread
//! that waits has noted the number on which it waits, and is woken. Cancellation points are waits for
//! conditions, semaphores, threads and signals, sleeping, `pthread_testcancel`, and calls on descriptors that
//! may wait (`cancel/calls.rs`).

mod calls;

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst, fence};
use std::time::Duration;

use crate::atomics;
use crate::control::{Deadline, Held, Monitor};
use crate::heap::set_errno;
use crate::next::next;
use crate::record::{CANCELED, Thread, this_record};
use crate::stacks::in_program;

pub(crate) use calls::cancellable;

unsafe extern "C-unwind" {
    /// The function of `threads.rs`, which overrides the C library's.
    fn pthread_exit(result: *mut c_void) -> !;
}

thread_local! {
    static IS_ENABLED: Cell<bool> = const { Cell::new(true) };
    static IS_ASYNCHRONOUS: Cell<bool> = const { Cell::new(false) };
}

/// The result of a wait that was left because the thread must end. No error number is negative.
pub(crate) const CANCELLED: c_int = -1;

/// `PTHREAD_CANCEL_DISABLE` and `PTHREAD_CANCEL_ASYNCHRONOUS`.
const SECOND_CHOICE: c_int = 1;

/// Returns true if the calling thread must end at this cancellation point.
fn is_asked() -> bool {
    IS_ENABLED.get() && this_record().is_some_and(|record| record.is_cancelled.load(Relaxed) != 0)
}

/// Ends the calling thread if it must end at this cancellation point.
pub(crate) fn point() {
    if in_program() && is_asked() {
        // Handlers that run while the thread ends must not be cut short.
        IS_ENABLED.set(false);
        // SAFETY: a thread of the program may end with any result.
        unsafe { pthread_exit(CANCELED) };
    }
}

/// Marks a thread, and wakes it if it waits.
pub(crate) fn cancel(record: &Thread) -> c_int {
    record.is_cancelled.store(1, Relaxed);
    // Either this function sees the number on which the thread waits, or the thread sees the mark before it
    // waits.
    fence(SeqCst);
    let number = record.waits_for.load(Relaxed);
    if number != 0 {
        Monitor::known(record.waits_in.load(Relaxed)).hold(|held| held.tell_of(number));
    }
    calls::interrupt(record);
    0
}

/// Waits, in the monitor, for an announcement on `number`. Returns 0, `ETIMEDOUT`, or [`CANCELLED`].
pub(crate) fn wait(held: Held, number: u32, deadline: Option<Deadline>) -> c_int {
    let note = |number| {
        if let Some(record) = this_record() {
            record.waits_in.store(held.number(), Relaxed);
            record.waits_for.store(number, Relaxed);
        }
    };
    note(number);
    fence(SeqCst);
    let result = if is_asked() {
        CANCELLED
    } else if held.wait_until(number, deadline) {
        0
    } else {
        libc::ETIMEDOUT
    };
    note(0);
    if is_asked() { CANCELLED } else { result }
}

/// pthread_testcancel(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn pthread_testcancel() {
    if in_program() {
        return point();
    }
    // SAFETY: it has no arguments.
    unsafe { next!(fn pthread_testcancel() -> ())() }
}

/// Sets one of the calling thread's two cancellation settings.
fn choose(
    choice: &'static std::thread::LocalKey<Cell<bool>>,
    second_means: bool,
    new: c_int,
    old: *mut c_int,
) -> c_int {
    if new != 0 && new != SECOND_CHOICE {
        return libc::EINVAL;
    }
    let before = choice.replace((new == SECOND_CHOICE) == second_means);
    if !old.is_null() {
        // SAFETY: the caller passes NULL or a place for the old choice.
        unsafe { old.write(c_int::from(before == second_means)) };
    }
    0
}

/// pthread_setcancelstate(3).
///
/// # Safety
/// `old` is NULL or a place for an `int`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_setcancelstate(new: c_int, old: *mut c_int) -> c_int {
    if in_program() {
        return choose(&IS_ENABLED, false, new, old);
    }
    // SAFETY: the caller's.
    unsafe { next!(fn pthread_setcancelstate(c_int, *mut c_int) -> c_int)(new, old) }
}

/// pthread_setcanceltype(3). A thread that chooses the asynchronous type is also cancelled only at points.
///
/// # Safety
/// `old` is NULL or a place for an `int`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_setcanceltype(new: c_int, old: *mut c_int) -> c_int {
    if in_program() {
        let error = choose(&IS_ASYNCHRONOUS, true, new, old);
        point();
        return error;
    }
    // SAFETY: the caller's.
    unsafe { next!(fn pthread_setcanceltype(c_int, *mut c_int) -> c_int)(new, old) }
}

/// The interval at which a sleeping thread checks whether it must end.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Sleeps until the deadline. Returns 0, or `EINTR` if a signal handler has run.
fn sleep_until(deadline: Deadline) -> c_int {
    loop {
        point();
        let Some(left) = deadline.left() else {
            atomics::exchange_while_waiting();
            return 0;
        };
        let part = left.min(LOOK_INTERVAL);
        let part = libc::timespec { tv_sec: part.as_secs() as i64, tv_nsec: i64::from(part.subsec_nanos()) };
        let sleep = next!(fn nanosleep(*const libc::timespec, *mut libc::timespec) -> c_int);
        // SAFETY: the time is a local.
        if unsafe { sleep(&raw const part, ptr::null_mut()) } != 0 && !atomics::take_tick() {
            return libc::EINTR;
        }
    }
}

/// Writes the time left until the deadline, if there is a place for it.
fn write_left(deadline: Deadline, place: *mut libc::timespec) {
    if !place.is_null() {
        let left = deadline.left().unwrap_or_default();
        let left = libc::timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        // SAFETY: the caller passes NULL or a place for a time.
        unsafe { place.write(left) };
    }
}

/// Sleeps for a time. Returns 0 or an error number.
///
/// # Safety
/// `time` is readable; `left` is NULL or a place for a time.
unsafe fn sleep_for(time: *const libc::timespec, left: *mut libc::timespec) -> c_int {
    // SAFETY: the caller's.
    let asked = unsafe { time.read() };
    let Some(deadline) = Deadline::after(time).filter(|_| (0..1_000_000_000).contains(&asked.tv_nsec)) else {
        return libc::EINVAL;
    };
    let error = sleep_until(deadline);
    if error != 0 {
        write_left(deadline, left);
    }
    error
}

/// sched_yield(2).
#[unsafe(no_mangle)]
extern "C-unwind" fn sched_yield() -> c_int {
    atomics::exchange_while_waiting();
    // SAFETY: it has no arguments.
    unsafe { next!(fn sched_yield() -> c_int)() }
}

/// nanosleep(2).
///
/// # Safety
/// As of nanosleep(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn nanosleep(time: *const libc::timespec, left: *mut libc::timespec) -> c_int {
    if !in_program() {
        // SAFETY: the caller's.
        return unsafe {
            next!(fn nanosleep(*const libc::timespec, *mut libc::timespec) -> c_int)(time, left)
        };
    }
    // SAFETY: the caller's.
    match unsafe { sleep_for(time, left) } {
        0 => 0,
        error => {
            set_errno(error);
            -1
        }
    }
}

/// clock_nanosleep(2).
///
/// # Safety
/// As of clock_nanosleep(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn clock_nanosleep(
    clock: libc::clockid_t,
    flags: c_int,
    time: *const libc::timespec,
    left: *mut libc::timespec,
) -> c_int {
    let is_known = clock == libc::CLOCK_REALTIME || clock == libc::CLOCK_MONOTONIC;
    if !in_program() || !is_known {
        type Sleep = *const libc::timespec;
        // SAFETY: the caller's.
        return unsafe {
            next!(fn clock_nanosleep(libc::clockid_t, c_int, Sleep, *mut libc::timespec) -> c_int)(
                clock, flags, time, left,
            )
        };
    }
    if flags & libc::TIMER_ABSTIME == 0 {
        // SAFETY: the caller's.
        return unsafe { sleep_for(time, left) };
    }
    Deadline::new(clock, time).map_or(libc::EINVAL, sleep_until)
}

/// sleep(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn sleep(seconds: c_uint) -> c_uint {
    if !in_program() {
        // SAFETY: any number may be passed.
        return unsafe { next!(fn sleep(c_uint) -> c_uint)(seconds) };
    }
    let time = libc::timespec { tv_sec: i64::from(seconds), tv_nsec: 0 };
    let Some(deadline) = Deadline::after(&raw const time) else { return 0 };
    sleep_until(deadline);
    deadline.left().unwrap_or_default().as_secs() as c_uint
}

/// usleep(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn usleep(microseconds: c_uint) -> c_int {
    let time = libc::timespec {
        tv_sec: i64::from(microseconds / 1_000_000),
        tv_nsec: i64::from(microseconds % 1_000_000) * 1000,
    };
    // SAFETY: the time is a local.
    unsafe { nanosleep(&raw const time, ptr::null_mut()) }
}
