//! Sections: the iterations 1, 2 … of a loop.

use std::ffi::{c_uint, c_void};

use hiroba_schedule::Loop;

use crate::context;
use crate::loop_calls::Extras;
use crate::loops;
use crate::shares;
use crate::teams;

/// The calling thread comes to `count` sections and takes one: its number, or 0 when none is left.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_sections_start(count: c_uint) -> c_uint {
    loops::begin(context::current(), Loop::sections(count));
    GOMP_sections_next()
}

/// The same with what newer compilers pass on.
///
/// # Safety
/// Both pointers are NULL or as the compiler passes them.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn GOMP_sections2_start(
    count: c_uint,
    reductions: *mut usize,
    memory: *mut *mut c_void,
) -> c_uint {
    // SAFETY: the caller's.
    unsafe { Extras { reductions, memory }.begin(context::current(), Loop::sections(count), |_| {}) };
    GOMP_sections_next()
}

/// The calling thread takes another section: its number, or 0 when none is left.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_sections_next() -> c_uint {
    loops::next(context::current()).map_or(0, |(first, _)| first as c_uint + 1)
}

/// The end of sections, with a barrier.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_sections_end() {
    let context = context::current();
    shares::leave(context);
    teams::barrier(context);
}

/// The end of sections that no barrier follows.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_sections_end_nowait() {
    shares::pass(context::current());
}

/// Ends sections in a region that may be cancelled. Returns true if it was cancelled.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_sections_end_cancel() -> bool {
    GOMP_sections_end();
    context::is_cancelled(context::current())
}
