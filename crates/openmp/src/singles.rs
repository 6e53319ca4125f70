//! `single`: the first thread to come runs it.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use hiroba_schedule::Loop;

use crate::context::{self, Context, TeamKind};
use crate::job;
use crate::loop_calls::Extras;
use crate::teams;

/// Returns true if the calling thread is the first of its team to reach its next `single`.
pub(crate) fn is_first(context: &Context) -> bool {
    if context.team.get() == TeamKind::Alone {
        return true;
    }
    let number = context.singles.get();
    context.singles.set(number + 1);
    let single = &job::begun().team.single;
    // Looking first leaves the page where it is when another thread has come before.
    single.load(Acquire) == number && single.compare_exchange(number, number + 1, AcqRel, Acquire).is_ok()
}

/// Returns true if the calling thread must run the code of a `single`.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_single_start() -> bool {
    is_first(context::current())
}

/// The same of one whose data are passed on: NULL for the thread that runs it, for others the data, once they
/// are there.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_single_copy_start() -> *mut c_void {
    let context = context::current();
    if is_first(context) {
        return ptr::null_mut();
    }
    teams::barrier(context);
    job::begun().team.copied.load(Acquire)
}

/// Passes the data of such a `single` on.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_single_copy_end(data: *mut c_void) {
    let context = context::current();
    if context.team.get() == TeamKind::OfJob {
        job::begun().team.copied.store(data, Release);
    }
    teams::barrier(context);
}

/// `scope` with reductions over tasks.
///
/// # Safety
/// `reductions` is a list as compilers pass it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn GOMP_scope_start(reductions: *mut usize) {
    let extras = Extras { reductions, memory: ptr::null_mut() };
    // SAFETY: the caller's.
    unsafe { extras.begin(context::current(), Loop::sections(0), |_| {}) };
}
