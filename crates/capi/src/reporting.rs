//! Reports errors to C.

use std::cell::RefCell;
use std::ffi::{CString, c_char};

use hiroba_node::Runtime;

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Records why the calling thread's call failed.
pub(crate) fn note(sentence: &str) {
    let sentence = CString::new(sentence.replace('\0', " ")).unwrap_or_default();
    LAST.set(sentence);
}

/// Records the reason, sets `errno`, and returns NULL, as such calls do.
pub(crate) fn null<T>(errno: i32, sentence: &str) -> *mut T {
    note(sentence);
    set_errno(errno);
    std::ptr::null_mut()
}

pub(crate) fn set_errno(errno: i32) {
    // SAFETY: __errno_location has no preconditions.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: it points to the calling thread's errno.
    unsafe { *location = errno };
}

/// Stops a thread of a program that ends, and whose threads were halted at arbitrary points, if it comes to
/// the runtime once more: the process is about to end, with a status that this thread must not change.
pub(crate) fn halt_if_over() {
    while Runtime::is_halted() && Runtime::get().is_none() {
        std::thread::park();
    }
}

/// Returns the runtime, or ends the process with a message: for calls that cannot fail.
pub(crate) fn runtime_for(call: &str) -> &'static Runtime {
    Runtime::get().unwrap_or_else(|| {
        halt_if_over();
        eprintln!("hiroba: {call}: expected a call between hiroba_init and hiroba_finalize, got one outside");
        // SAFETY: _exit has no memory operands and does not return.
        unsafe { libc::_exit(125) }
    })
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_error_string() -> *const c_char {
    // The buffer lives until the thread's next failing call replaces it, as the header says.
    LAST.with_borrow(|sentence| sentence.as_ptr())
}
