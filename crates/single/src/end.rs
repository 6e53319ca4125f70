//! The program's end: the process leaves the job after the program's last exit handler, or at `_exit`.

use std::ffi::{c_int, c_void};
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::face;

unsafe extern "C" {
    /// on_exit(3): like `atexit`, but the handler receives the exit status.
    fn on_exit(handler: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    /// at_quick_exit(3).
    fn at_quick_exit(handler: extern "C" fn()) -> c_int;
}

/// The process that has joined the job; 0 before.
static JOINED: AtomicU32 = AtomicU32::new(0);

/// Prepares the process, which has joined the job, for its end.
pub(crate) fn prepare() {
    JOINED.store(process::id(), Relaxed);
    // SAFETY: the handler is a plain function that stays loaded until the process ends.
    unsafe { on_exit(conclude, ptr::null_mut()) };
    // SAFETY: as above.
    unsafe { at_quick_exit(leave) };
}

extern "C" fn conclude(_: c_int, _: *mut c_void) {
    leave();
}

/// Leaves the job, in the process that has joined it. A child that `vfork` made runs in its parent's memory.
extern "C" fn leave() {
    if JOINED.load(Relaxed) == process::id() {
        face::hiroba_leave_halted();
    }
}

/// Ends the process at once.
pub(crate) fn at_once(status: c_int) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::syscall(libc::SYS_exit_group, status) };
    unreachable!("the process has ended")
}

/// Defines the functions that end the process at once, without handlers.
macro_rules! at_once {
    ($($name:ident)*) => { $(
        /// See the manual.
        #[unsafe(no_mangle)]
        extern "C-unwind" fn $name(status: c_int) -> ! {
            leave();
            at_once(status)
        }
    )* };
}

at_once! { _exit _Exit }
