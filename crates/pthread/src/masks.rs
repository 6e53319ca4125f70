//! The signals that threads block, and those of this library itself.

use std::ffi::c_int;
use std::ptr;

use crate::next::next;

/// The signal that halts threads when the job ends.
pub(crate) fn halting_signal() -> c_int {
    libc::SIGRTMAX() - 1
}

/// The signal by which threads that may wait for plain stores are interrupted. No kernel sends it, and unlike
/// a signal for real time it is pending once at most, however long a thread blocks it.
pub(crate) fn tick_signal() -> c_int {
    libc::SIGSTKFLT
}

/// The signal that interrupts calls of the kernel.
pub(crate) fn interrupting_signal() -> c_int {
    libc::SIGRTMAX() - 3
}

/// This library's own signals, which no thread of the program blocks.
pub(crate) fn own_signals() -> [c_int; 3] {
    [halting_signal(), tick_signal(), interrupting_signal()]
}

fn real() -> unsafe extern "C-unwind" fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int {
    next!(fn pthread_sigmask(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int)
}

fn set_of(mask: u64) -> libc::sigset_t {
    // SAFETY: zeros are an empty set.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: a set of signals begins with a word for the first 64, and the local is that long.
    unsafe { (&raw mut set).cast::<u64>().write(mask) };
    set
}

/// Returns the signals that the calling thread blocks.
pub(crate) fn mask() -> u64 {
    let mut set = set_of(0);
    // SAFETY: writes a local.
    unsafe { real()(libc::SIG_BLOCK, ptr::null(), &raw mut set) };
    // SAFETY: as in `set_of`.
    unsafe { (&raw const set).cast::<u64>().read() }
}

/// Has the calling thread block these signals and no others.
pub(crate) fn set_mask(mask: u64) {
    let set = set_of(mask);
    // SAFETY: the set is a local.
    unsafe { real()(libc::SIG_SETMASK, &raw const set, ptr::null_mut()) };
}

/// Has the calling thread block these signals, too.
pub(crate) fn block(mask: u64) {
    let set = set_of(mask);
    // SAFETY: the set is a local.
    unsafe { real()(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) };
}

/// Returns all signals but those that must not be blocked: those that faults raise, and this library's own.
pub(crate) fn all_signals() -> u64 {
    let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
    faults.iter().chain(&own_signals()).fold(u64::MAX, |mask, signal| mask & !(1 << (signal - 1)))
}
