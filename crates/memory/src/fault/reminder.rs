//! A bound for what a dying thread does before its last words: it may wait for another thread, or for a page,
//! that does not come any more.

use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

use libc::{c_int, c_void};

/// A timer that sends the calling thread a signal once more, which ends it with the report that it has.
/// Dropping it stops the timer.
pub struct Reminder(c_int);

impl Reminder {
    /// Sends `signal`, by which the process dies, to the calling thread after a time. Returns `None` if the
    /// kernel has no timers left. Safe in signal handlers.
    pub fn after(signal: c_int, time: Duration) -> Option<Reminder> {
        // SAFETY: zeros are a valid event; its fields are set below.
        let mut event: libc::sigevent = unsafe { MaybeUninit::zeroed().assume_init() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_nonzero().get();
        let mut timer: c_int = 0;
        let clock = libc::CLOCK_MONOTONIC;
        // Not by the C library's names, which are intercepted in some programs.
        // SAFETY: reads the event and writes the timer's number, both locals.
        let made = unsafe { libc::syscall(libc::SYS_timer_create, clock, &raw mut event, &raw mut timer) };
        let reminder = (made == 0).then_some(Reminder(timer))?;
        let value = libc::timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        let once =
            libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        let none = ptr::null_mut::<c_void>();
        // SAFETY: the timer was made above; the call reads a local.
        let set = unsafe { libc::syscall(libc::SYS_timer_settime, timer, 0, &raw const once, none) };
        (set == 0).then_some(reminder)
    }
}

impl Drop for Reminder {
    fn drop(&mut self) {
        // SAFETY: the timer is this thread's own.
        unsafe { libc::syscall(libc::SYS_timer_delete, self.0) };
    }
}
