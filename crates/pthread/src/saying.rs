//! This library's messages on the standard error stream.

use std::ffi::{CStr, c_int};
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;

use crate::face;
use crate::heap;
use crate::stacks::{leave_program, privately};

/// Writes a sentence to the standard error stream.
pub(crate) fn say(sentence: &str) {
    privately(|| {
        // SAFETY: descriptor 2 is the standard error stream, and is not closed here.
        let mut stream = ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(2) });
        let _ = writeln!(stream, "hiroba: {sentence}");
    });
}

/// Ends the process and prints the reason for the user.
pub(crate) fn fatal(sentence: &str) -> ! {
    say(sentence);
    leave_program();
    end_process(STATUS_HIROBA)
}

/// Returns why a call of the runtime has failed with this negative errno value.
pub(crate) fn why(error: c_int) -> String {
    let errno = std::io::Error::from_raw_os_error(-error);
    // SAFETY: the thread's own C string.
    let reason = unsafe { CStr::from_ptr(face::hiroba_error_string()) }.to_string_lossy();
    if reason.is_empty() { errno.to_string() } else { format!("{reason} ({errno})") }
}

/// Has panics of this library end the process at once. The default is to unwind, which reads data of the
/// compiler's support library. They are shared with other nodes, so a thread that holds locks of the runtime
/// could wait forever.
pub(crate) fn end_at_panics() {
    std::panic::set_hook(Box::new(|info| {
        fatal(&format!("a fault of Hiroba's: a thread {info}").replace('\n', " "));
    }));
}

/// The exit status of the runtime's own errors.
const STATUS_HIROBA: c_int = 125;

/// Refuses a call of the program.
pub(crate) fn refuse(errno: c_int, sentence: &str) -> c_int {
    say(sentence);
    heap::set_errno(errno);
    -1
}

/// Ends the process at once.
pub(crate) fn end_process(status: c_int) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::syscall(libc::SYS_exit_group, status) };
    unreachable!("the process has ended")
}
