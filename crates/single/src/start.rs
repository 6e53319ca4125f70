//! The program's start: the process joins the job before the executable's constructors run.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use crate::end;
use crate::face;
use crate::next::next;
use crate::stacks;

type Main = unsafe extern "C-unwind" fn(c_int, *mut *mut c_char, *mut *mut c_char) -> c_int;
type Hook = *mut c_void;

/// The environment variable that the launcher sets in nodes of such a job.
const VARIABLE: &CStr = c"HIROBA_SINGLE";
/// The exit status of the runtime's own errors.
const STATUS_HIROBA: c_int = 125;

/// Replaces the function that the loader's start code calls to run `main`.
///
/// # Safety
/// Called by that code, once.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __libc_start_main(
    main: Main,
    count: c_int,
    arguments: *mut *mut c_char,
    init: Hook,
    fini: Hook,
    loader_fini: Hook,
    stack_end: Hook,
) -> c_int {
    let real = next!(fn __libc_start_main(Main, c_int, *mut *mut c_char, Hook, Hook, Hook, Hook) -> c_int);
    // SAFETY: the name is a C string, and no other thread changes the environment yet.
    if !unsafe { libc::getenv(VARIABLE.as_ptr()) }.is_null() {
        join();
    }
    // SAFETY: the caller's.
    unsafe { real(main, count, arguments, init, fini, loader_fini, stack_end) }
}

fn join() {
    if face::hiroba_init(ptr::null_mut(), ptr::null_mut()) != 0 {
        // SAFETY: the thread's own C string.
        let why = unsafe { CStr::from_ptr(face::hiroba_error_string()) };
        eprintln!("hiroba: {}", why.to_string_lossy());
        end::at_once(STATUS_HIROBA);
    }
    // Before any handler of the program, so that it is called after them.
    end::prepare();
    stacks::begin();
}
