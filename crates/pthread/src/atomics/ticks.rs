//! Interrupts of the program's threads by their processor time.
//!
//! Each thread has an event of the kernel that counts its processor time and sends it a signal after each
//! [`TICK`] (perf_event_open(2), `PERF_COUNT_SW_TASK_CLOCK`). The event has a high-resolution timer of its
//! own. Where the kernel refuses it, for example because `perf_event_paranoid` or a filter of system calls
//! forbids it, the thread has a timer on its processor time (timer_create(2)). That one expires only at the
//! kernel's own ticks, which are 4 ms apart at 250 Hz; it tells how many periods have passed.

use std::cell::Cell;
use std::ffi::{c_int, c_ulong, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

use crate::face;
use crate::masks::tick_signal;

/// The processor time between two interrupts of a thread.
pub(super) const TICK: Duration = Duration::from_micros(500);

/// The first version of `struct perf_event_attr` (<linux/perf_event.h>), which every kernel accepts.
#[repr(C)]
struct Attributes {
    kind: u32,
    bytes: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint: u32,
    more: u64,
}

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_TASK_CLOCK: u64 = 1;
/// A thread that is in the kernel is not in a loop of the program. An ordinary user may not count the
/// kernel's time.
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const PERF_FLAG_FD_CLOEXEC: c_ulong = 1 << 3;
/// Descriptors below this number are left to the program, if the limit permits.
const FIRST_DESCRIPTOR: c_int = 512;

// <asm-generic/fcntl.h>.
const F_SETSIG: c_int = 10;
const F_SETOWN_EX: c_int = 15;
const F_OWNER_TID: c_int = 0;

#[repr(C)]
struct Owner {
    kind: c_int,
    number: c_int,
}

/// The beginning of `siginfo_t` where the signal is that of a timer (<asm-generic/siginfo.h>).
#[repr(C)]
struct OfTimer {
    signal: c_int,
    errno: c_int,
    code: c_int,
    padding: c_int,
    timer: c_int,
    overrun: c_int,
}

/// What interrupts a thread. Dropped when the thread ends.
enum Source {
    Nothing,
    /// The descriptor of its event.
    Event(c_int),
    /// The kernel's number of its timer.
    Timer(c_int),
}

impl Drop for Source {
    fn drop(&mut self) {
        match *self {
            Source::Nothing => {}
            // SAFETY: the descriptor is this thread's own. The C library's `close` would be the program's.
            Source::Event(descriptor) => _ = unsafe { libc::syscall(libc::SYS_close, descriptor) },
            // SAFETY: the timer is this thread's own.
            Source::Timer(timer) => _ = unsafe { libc::syscall(libc::SYS_timer_delete, timer) },
        }
    }
}

thread_local! {
    static SOURCE: Cell<Source> = const { Cell::new(Source::Nothing) };
}

/// Sets the handler of all threads' interrupts.
pub(super) fn handle_with(handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void)) {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: zeros are a valid action, and its fields are set below.
    let action = unsafe { action.assume_init_mut() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the handler does nothing in threads that the runtime runs.
    unsafe { face::hiroba_handle_anywhere(tick_signal(), action) };
}

/// Interrupts the calling thread from now on, until it ends.
pub(super) fn begin() {
    SOURCE.set(event().or_else(timer).unwrap_or(Source::Nothing));
}

/// Counts an interrupt, and returns for how many ticks it stands.
pub(super) fn count(info: &libc::siginfo_t) -> u32 {
    face::hiroba_count_interrupt();
    if info.si_code != libc::SI_TIMER {
        return 1;
    }
    // SAFETY: the kernel's structure, which is longer, has these fields where the signal is that of a timer.
    let of_timer = unsafe { ptr::from_ref(info).cast::<OfTimer>().as_ref() };
    1 + of_timer.map_or(0, |of_timer| of_timer.overrun.max(0).cast_unsigned())
}

fn event() -> Option<Source> {
    let attributes = Attributes {
        kind: PERF_TYPE_SOFTWARE,
        bytes: size_of::<Attributes>() as u32,
        config: PERF_COUNT_SW_TASK_CLOCK,
        sample_period: TICK.as_nanos() as u64,
        sample_type: 0,
        read_format: 0,
        flags: EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR,
        wakeup_events: 1,
        breakpoint: 0,
        more: 0,
    };
    let (this_thread, any_processor, no_group): (c_int, c_int, c_int) = (0, -1, -1);
    // SAFETY: the attributes are a local of the length that they name.
    let descriptor = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            this_thread,
            any_processor,
            no_group,
            PERF_FLAG_FD_CLOEXEC,
        )
    } as c_int;
    if descriptor < 0 {
        return None;
    }
    let moved = control(descriptor, libc::F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR as usize);
    let event = if moved < 0 {
        Source::Event(descriptor)
    } else {
        drop(Source::Event(descriptor));
        Source::Event(moved)
    };
    let Source::Event(descriptor) = event else { return None };
    // SAFETY: it has no arguments and cannot fail.
    let owner = Owner { kind: F_OWNER_TID, number: unsafe { libc::gettid() } };
    let settings = [
        (F_SETSIG, tick_signal() as usize),
        (F_SETOWN_EX, (&raw const owner).addr()),
        (libc::F_SETFL, libc::O_ASYNC as usize),
    ];
    let works = settings.iter().all(|(setting, value)| control(descriptor, *setting, *value) >= 0);
    works.then_some(event)
}

/// fcntl(2) itself: the C library's is the program's. `argument` is a number, or the address of a local.
fn control(descriptor: c_int, setting: c_int, argument: usize) -> c_int {
    // SAFETY: the settings of this file concern descriptors that it has opened.
    unsafe { libc::syscall(libc::SYS_fcntl, descriptor, setting, argument) as c_int }
}

fn timer() -> Option<Source> {
    let mut event = MaybeUninit::<libc::sigevent>::zeroed();
    // SAFETY: zeros are a valid event, and its fields are set below.
    let event = unsafe { event.assume_init_mut() };
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_signo = tick_signal();
    // SAFETY: it has no arguments and cannot fail.
    event.sigev_notify_thread_id = unsafe { libc::gettid() };
    let mut timer: c_int = -1;
    let clock = libc::CLOCK_THREAD_CPUTIME_ID;
    // SAFETY: both places are locals.
    let error = unsafe { libc::syscall(libc::SYS_timer_create, clock, ptr::from_mut(event), &raw mut timer) };
    if error != 0 {
        return None;
    }
    let tick = libc::timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
    let every = libc::itimerspec { it_interval: tick, it_value: tick };
    let none = ptr::null_mut::<libc::itimerspec>();
    // SAFETY: the times are a local.
    unsafe { libc::syscall(libc::SYS_timer_settime, timer, 0, &raw const every, none) };
    Some(Source::Timer(timer))
}
