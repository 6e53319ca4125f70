//! The functions of `libhiroba.so` that this library calls. That library is loaded after this one.

use std::ffi::{c_char, c_int, c_void};

unsafe extern "C" {
    /// See `hiroba.h`.
    pub safe fn hiroba_init(argc: *mut c_int, argv: *mut c_void) -> c_int;
    /// See `hiroba.h`.
    pub safe fn hiroba_error_string() -> *const c_char;
    /// See `hiroba.h`.
    pub safe fn hiroba_nodes() -> c_int;
    /// Leaves the job while threads of the program may still run; see `executables.rs` of the C face.
    pub safe fn hiroba_leave_halted();
}
