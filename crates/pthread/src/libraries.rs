//! The division of libraries into those of the program and those whose state is private to each node.

use std::ffi::{CStr, c_char};

/// The prefix of the path from which the library that fills the pages is loaded.
pub(crate) const FILLER_PREFIX: &str = "/proc/self/fd/";

/// Libraries whose state is private to each node: the C library, the loader, the runtime.
const PRIVATE_LIBRARIES: [&str; 14] = [
    "libc.so",
    "libc-",
    "libm.so",
    "libm-",
    "libmvec",
    "ld-linux",
    "ld-",
    "libpthread",
    "libdl",
    "librt",
    "libresolv",
    "libhiroba",
    "linux-vdso",
    "linux-gate",
];

/// Returns true if the object is not part of the program. The executable has no name.
pub(crate) fn is_private(name: *const c_char) -> bool {
    if name.is_null() {
        return false;
    }
    // SAFETY: the loader's C string.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let file = name.rsplit('/').next().unwrap_or_default();
    // The library that fills thread-local storage (`tls.rs`) has no data.
    name.starts_with(FILLER_PREFIX) || PRIVATE_LIBRARIES.iter().any(|library| file.starts_with(library))
}
