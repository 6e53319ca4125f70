//! `single`: the first thread of node 0 to come runs it.
//!
//! OpenMP leaves open which thread runs it. The threads of one node find out without a message, and what they
//! change stays on one node from one `single` to the next. A `single nowait` is also over early, and programs
//! exist that rely on that (`d = 0` in a `single nowait`, before a reduction into `d`).

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use hiroba_schedule::Loop;

use crate::along;
use crate::context::{self, Context, TeamKind};
use crate::job::{self, put};
use crate::loop_calls::Extras;
use crate::settings::settings;
use crate::single_numbers;
use crate::teams;

/// Returns true if the calling thread is to run its next `single`.
pub(crate) fn is_first(context: &Context) -> bool {
    if context.team.get() == TeamKind::Alone {
        return true;
    }
    let number = context.singles.get();
    context.singles.set(number + 1);
    job::node() == 0 && single_numbers::take(number)
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

/// Passes the data of such a `single` on. They are on the calling thread's stack, and the others read them up
/// to the barrier that follows. A call of it would store there, and take the pages away from them. So the
/// thread waits for that barrier here, further down.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_single_copy_end(data: *mut c_void) {
    let context = context::current();
    if context.team.get() != TeamKind::OfJob {
        return;
    }
    along::below_page(&mut || {
        put!(job::begun().team.copied, data);
        along::send(&along::pages_at(data.addr()));
        teams::barrier(context);
        // That barrier may be the end of the region, where the threads of a cancelled one do more than wait.
        if !settings().cancellation {
            teams::meet_early(context);
        }
    });
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
