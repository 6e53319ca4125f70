//! Errors as C sees them.

use std::cell::RefCell;
use std::ffi::{CString, c_char};

use hiroba_node::Runtime;

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Notes why the calling thread's call failed.
pub(crate) fn note(sentence: &str) {
    let sentence = CString::new(sentence.replace('\0', " ")).unwrap_or_default();
    LAST.set(sentence);
}

/// Notes the reason, sets `errno`, and gives the null pointer that such calls return.
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

/// The runtime, or the end of the process with a sentence: for calls that have no way to fail.
pub(crate) fn runtime_for(call: &str) -> &'static Runtime {
    Runtime::get().unwrap_or_else(|| {
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
