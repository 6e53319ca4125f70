//! `error`: sentences of the program's own.

use std::ffi::c_char;

use crate::runtime;

/// The sentence that a program has, NULL for none; `usize::MAX` bytes: up to its final zero.
///
/// # Safety
/// As many bytes can be read.
unsafe fn sentence(text: *const c_char, bytes: usize) -> String {
    if text.is_null() {
        return "error directive encountered".to_owned();
    }
    let bytes = if bytes == usize::MAX {
        // SAFETY: the caller's.
        unsafe { libc::strlen(text) }
    } else {
        bytes
    };
    // SAFETY: the caller's.
    let text = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), bytes) };
    format!("error directive encountered: {}", String::from_utf8_lossy(text))
}

/// Says a sentence of the program's.
///
/// # Safety
/// As many bytes can be read.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn GOMP_warning(text: *const c_char, bytes: usize) {
    // SAFETY: the caller's.
    runtime::say(&unsafe { sentence(text, bytes) });
}

/// Says a sentence of the program's and ends it.
///
/// # Safety
/// As many bytes can be read.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn GOMP_error(text: *const c_char, bytes: usize) -> ! {
    // SAFETY: the caller's.
    runtime::say(&unsafe { sentence(text, bytes) });
    // SAFETY: any status may be passed.
    unsafe { libc::exit(1) }
}
