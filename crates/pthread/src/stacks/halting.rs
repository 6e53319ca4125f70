//! Halts threads permanently, and chooses the thread that ends the process.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::in_program;
use crate::face;
use crate::masks::halting_signal;

/// The maximum number of threads of one process that can be halted.
const THREADS_MAX: usize = 1024;

/// The kernel's numbers of the program's threads in this process; 0 in unused places.
static LIVING: [AtomicI32; THREADS_MAX] = [const { AtomicI32::new(0) }; THREADS_MAX];
/// The number of threads that have received the order to halt.
static TOLD: AtomicU32 = AtomicU32::new(0);
/// The time that threads get to receive the order.
const HALT_PATIENCE: Duration = Duration::from_millis(50);

/// Returns the kernel's number of the calling thread.
fn thread_number() -> c_int {
    // SAFETY: it has no arguments and cannot fail.
    unsafe { libc::gettid() }
}

/// Notes that the calling thread is one of the program's.
pub(crate) fn know_thread() {
    let free = |place: &&AtomicI32| place.compare_exchange(0, thread_number(), Relaxed, Relaxed).is_ok();
    let _ = LIVING.iter().find(free);
}

/// Notes that the calling thread ends.
pub(crate) fn forget_thread() {
    let number = thread_number();
    for place in &LIVING {
        let _ = place.compare_exchange(number, 0, Relaxed, Relaxed);
    }
}

thread_local! {
    /// True if the thread must halt when it returns from the runtime.
    static MUST_HALT: Cell<bool> = const { Cell::new(false) };
}

/// Halts a thread permanently. A thread in the runtime may hold locks that the job's end needs, so it
/// continues until it returns to the program, and does not touch the program's memory until then.
extern "C" fn halt(_: c_int) {
    TOLD.fetch_add(1, Relaxed);
    halt_or_note();
}

extern "C" fn halt_or_note() {
    MUST_HALT.set(true);
    if !in_program() {
        return; // halts when it returns to the program
    }
    if face::hiroba_is_inside() != 0 {
        return face::hiroba_when_outside(halt_or_note);
    }
    halt_here();
}

fn halt_here() -> ! {
    loop {
        // SAFETY: waits for a signal; only signals that end the process have an effect.
        unsafe { libc::pause() };
    }
}

/// Halts the calling thread, which has returned from the runtime to the program, if it was told to.
pub(crate) fn halt_if_told() {
    if MUST_HALT.get() {
        halt_here();
    }
}

/// Prepares the process for halting threads.
pub(crate) fn prepare() {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: zeros are a valid action, and its fields are set below.
    let action = unsafe { action.assume_init_mut() };
    action.sa_sigaction = halt as *const () as usize;
    // SAFETY: fills a local.
    unsafe { libc::sigfillset(&raw mut action.sa_mask) };
    // SAFETY: the handler counts, and waits where the thread is outside the runtime.
    unsafe { face::hiroba_handle_anywhere(halting_signal(), action) };
}

/// Halts the program's other threads of this process.
pub(crate) fn halt_others() {
    let own = thread_number();
    let others =
        || LIVING.iter().map(|place| place.load(Relaxed)).filter(|number| *number != 0 && *number != own);
    let process = std::process::id();
    let mut asked = 0;
    for number in others() {
        // SAFETY: sends a signal to a thread of this process, or to none.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, number, halting_signal()) };
        asked += u32::from(sent == 0);
    }
    let since = Instant::now();
    while TOLD.load(Relaxed) < asked && since.elapsed() < HALT_PATIENCE {
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// The kernel's number of the thread of node 0 that is in `exit`, the first one to call it; 0 if there is
/// none.
static EXITING: AtomicI32 = AtomicI32::new(0);

/// Returns true if the calling thread is in `exit`.
pub(crate) fn is_exiting() -> bool {
    EXITING.load(Relaxed) == thread_number()
}

/// Lets one thread end the process. Others wait and are halted. A handler may call `exit` again.
pub(crate) fn begin_exit() {
    let own = thread_number();
    let first = EXITING.compare_exchange(0, own, Relaxed, Relaxed);
    if first.is_err_and(|other| other != own) {
        wait_to_be_halted();
    }
}

/// Waits until the job's end halts the calling thread.
pub(crate) fn wait_to_be_halted() -> ! {
    loop {
        // SAFETY: waits for a signal; the job's end halts this thread.
        unsafe { libc::pause() };
    }
}
