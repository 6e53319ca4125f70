//! Whether the program is one of OpenMP: `libhiroba_gomp.so` then builds on this library.

use std::sync::OnceLock;

/// Returns true if that library is there.
pub(crate) fn has_library_above() -> bool {
    static IS_THERE: OnceLock<bool> = OnceLock::new();
    // SAFETY: the name is a C string; the call only looks it up.
    let look = || !unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"hiroba_prepare_above".as_ptr()) }.is_null();
    *IS_THERE.get_or_init(look)
}
