//! Waits for signals, and timers.
//!
//! A thread begins with its creator's mask, on whichever node it runs (`Thread::mask`). Signals to the
//! process arrive at node 0, so a thread of another node that waits for signals has its deputy wait there. A
//! signal that is sent to such a thread goes to its deputy meanwhile.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use crate::cancel;
use crate::carry;
use crate::heap;
use crate::next::{Next, next};
use crate::record::{this_record, this_thread};
use crate::saying::refuse;
use crate::stacks::in_program;

/// Takes a signal of the set that has been sent to the calling thread of this node already.
fn take_sent(set: *const libc::sigset_t, info: *mut libc::siginfo_t) -> c_int {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the program passes a set; the time is a local; the information is a local or the program's.
    unsafe { timed()(set, info, &raw const now) }
}

type Timed =
    unsafe extern "C-unwind" fn(*const libc::sigset_t, *mut libc::siginfo_t, *const libc::timespec) -> c_int;

fn timed() -> Timed {
    next!(fn sigtimedwait(*const libc::sigset_t, *mut libc::siginfo_t, *const libc::timespec) -> c_int)
}

/// Waits for a signal of the set. Returns its number, or -1 with `errno`.
fn wait(set: *const libc::sigset_t, info: *mut libc::siginfo_t, time: *const libc::timespec) -> c_int {
    static WAIT: Next = Next::new(c"sigtimedwait");
    let Some(thread) = this_record().filter(|_| carry::is_wanted()) else {
        // SAFETY: the caller's.
        return cancel::cancellable(carry::maker, || unsafe { timed()(set, info, time) });
    };
    cancel::cancellable(carry::maker, || {
        thread.waits_for_signals.store(carry::maker(), Relaxed);
        let mut signal = take_sent(set, info);
        if signal < 0 {
            signal = carry::call(WAIT.address(), &[set.addr(), info.addr(), time.addr()]) as c_int;
        }
        thread.waits_for_signals.store(0, Relaxed);
        signal
    })
}

/// sigwait(3).
///
/// # Safety
/// `set` is a set, and `place` a place for a number.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigwait(set: *const libc::sigset_t, place: *mut c_int) -> c_int {
    loop {
        match wait(set, ptr::null_mut(), ptr::null()) {
            -1 if heap::errno() == libc::EINTR => {}
            -1 => return heap::errno(),
            signal => {
                // SAFETY: the caller's.
                unsafe { place.write(signal) };
                return 0;
            }
        }
    }
}

/// sigwaitinfo(2).
///
/// # Safety
/// `set` is a set, and `info` NULL or a place for information.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigwaitinfo(set: *const libc::sigset_t, info: *mut libc::siginfo_t) -> c_int {
    wait(set, info, ptr::null())
}

/// sigtimedwait(2).
///
/// # Safety
/// `set` is a set, `info` NULL or a place for information, and `time` NULL or a time.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigtimedwait(
    set: *const libc::sigset_t,
    info: *mut libc::siginfo_t,
    time: *const libc::timespec,
) -> c_int {
    wait(set, info, time)
}

/// timer_create(2): node 0 has the timers, whose signals are those of the process.
///
/// # Safety
/// `event` is NULL or an event, and `place` a place for a timer.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn timer_create(
    clock: libc::clockid_t,
    event: *mut libc::sigevent,
    place: *mut libc::timer_t,
) -> c_int {
    static CREATE: Next = Next::new(c"timer_create");
    // SAFETY: the caller passes NULL or an event.
    let notify = unsafe { event.as_ref() }.map_or(libc::SIGEV_SIGNAL, |event| event.sigev_notify);
    if in_program() && notify == libc::SIGEV_THREAD {
        return refuse(
            libc::ENOTSUP,
            "timer_create: the C library would run a function of the program (SIGEV_THREAD) in a thread that is \
             not the job's; use SIGEV_SIGNAL",
        );
    }
    if !carry::is_wanted() {
        // SAFETY: the caller's.
        return unsafe {
            next!(fn timer_create(libc::clockid_t, *mut libc::sigevent, *mut libc::timer_t) -> c_int)(
                clock, event, place,
            )
        };
    }
    if notify == libc::SIGEV_THREAD_ID || clock == libc::CLOCK_THREAD_CPUTIME_ID {
        return refuse(
            libc::ENOTSUP,
            "timer_create: timers of single threads are made on node 0 only; use SIGEV_SIGNAL and another clock",
        );
    }
    carry::call(CREATE.address(), &[clock as usize, event.addr(), place.addr()]) as c_int
}

/// pause(2).
#[unsafe(no_mangle)]
extern "C-unwind" fn pause() -> c_int {
    // SAFETY: it has no arguments.
    cancel::cancellable(this_thread, || unsafe { next!(fn pause() -> c_int)() })
}
