//! `parallel`, `barrier` and cancellation as compiled programs call them.

use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Release};

use hiroba_schedule::{Kind, Loop, Range};

use crate::along;
use crate::context::{self, Context, TeamKind};
use crate::job;
use crate::literal_calls;
use crate::records::Group;
use crate::settings::settings;
use crate::teams::{self, Wanted};
use crate::work::Function;

/// Runs a region.
pub(crate) fn run(wanted: &Wanted) {
    if teams::threads_for(context::current(), wanted.threads) > 1 && job::nodes() > 1 {
        along::below_page(&mut || run_here(wanted));
    } else {
        run_here(wanted);
    }
}

fn run_here(wanted: &Wanted) {
    let context = teams::begin(wanted);
    // SAFETY: the program's code with its data.
    unsafe { (wanted.function)(wanted.data) };
    // SAFETY: what `begin` returned.
    unsafe { teams::finish(context) };
}

/// A parallel region.
///
/// # Safety
/// `function` may be called with `data`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn GOMP_parallel(
    function: Function,
    data: *mut c_void,
    threads: c_uint,
    _flags: c_uint,
) {
    run(&Wanted { function, data, data_words: 0, threads, of_loop: None, group: ptr::null_mut() });
}

thread_local! {
    /// Regions that older compilers begin and end by two calls.
    static BEGUN: RefCell<Vec<*mut Context>> = const { RefCell::new(Vec::new()) };
}

/// Begins a region whose first thread runs the code itself, until [`GOMP_parallel_end`].
pub(crate) fn start(wanted: &Wanted) {
    let context = teams::begin(wanted);
    BEGUN.with_borrow_mut(|begun| begun.push(context));
}

/// Begins a parallel region; its first thread runs the code itself.
///
/// # Safety
/// `function` may be called with `data`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn GOMP_parallel_start(function: Function, data: *mut c_void, threads: c_uint) {
    start(&Wanted { function, data, data_words: 0, threads, of_loop: None, group: ptr::null_mut() });
}

/// Ends what the latest `_start` has begun.
#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn GOMP_parallel_end() {
    if let Some(context) = BEGUN.with_borrow_mut(Vec::pop) {
        // SAFETY: `start` has put it there.
        unsafe { teams::finish(context) };
    }
}

/// A region that begins with a loop.
fn looped(function: Function, data: *mut c_void, threads: c_uint, of_loop: Loop) -> Wanted {
    Wanted { function, data, data_words: 0, threads, of_loop: Some(of_loop), group: ptr::null_mut() }
}

/// Defines regions that begin with a loop or with sections.
macro_rules! with_loop {
    ($($name:ident $old:ident $function:ident ($($argument:ident: $type:ty),*) => $of_loop:expr;)*) => { $(
        /// A parallel region that begins with a loop.
        ///
        /// # Safety
        /// The function may be called with `data`.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            $function: Function, data: *mut c_void, threads: c_uint, $($argument: $type,)* _flags: c_uint,
        ) {
            run(&looped($function, data, threads, $of_loop));
        }

        /// Begins such a region; its first thread runs the code itself.
        ///
        /// # Safety
        /// The function may be called with `data`.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $old(
            $function: Function, data: *mut c_void, threads: c_uint, $($argument: $type),*
        ) {
            start(&looped($function, data, threads, $of_loop));
        }
    )* };
}

fn ranged(start: i64, end: i64, step: i64, kind: Kind, chunk: i64) -> Loop {
    let (range, chunk) = (Range::signed(start, end, step), chunk.max(0) as u64);
    if kind == Kind::Dynamic { literal_calls::dynamic(range, chunk) } else { Loop::new(range, kind, chunk) }
}

/// A loop whose schedule is set elsewhere. The region's function is its name.
fn as_set(function: Function, start: i64, end: i64, step: i64) -> Loop {
    let schedule = context::current().settings.get().schedule;
    schedule.of(Range::signed(start, end, step), function as usize as u64)
}

with_loop! {
    GOMP_parallel_loop_static GOMP_parallel_loop_static_start function
        (begin: i64, end: i64, step: i64, chunk: i64) => ranged(begin, end, step, Kind::Static, chunk);
    GOMP_parallel_loop_dynamic GOMP_parallel_loop_dynamic_start function
        (begin: i64, end: i64, step: i64, chunk: i64) => ranged(begin, end, step, Kind::Dynamic, chunk).monotonic(true);
    GOMP_parallel_loop_guided GOMP_parallel_loop_guided_start function
        (begin: i64, end: i64, step: i64, chunk: i64) => ranged(begin, end, step, Kind::Guided, chunk).monotonic(true);
    GOMP_parallel_loop_runtime GOMP_parallel_loop_runtime_start function
        (begin: i64, end: i64, step: i64) => as_set(function, begin, end, step).monotonic(true);
    GOMP_parallel_sections GOMP_parallel_sections_start function
        (count: c_uint) => Loop::sections(count);
}

/// Defines the newer names of regions that begin with a loop.
macro_rules! newer {
    ($($name:ident $function:ident ($($argument:ident: $type:ty),*) => $of_loop:expr;)*) => { $(
        /// A parallel region that begins with a loop.
        ///
        /// # Safety
        /// The function may be called with `data`.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            $function: Function, data: *mut c_void, threads: c_uint, $($argument: $type,)* _flags: c_uint,
        ) {
            run(&looped($function, data, threads, $of_loop));
        }
    )* };
}

newer! {
    GOMP_parallel_loop_nonmonotonic_dynamic function (begin: i64, end: i64, step: i64, chunk: i64) =>
        ranged(begin, end, step, Kind::Dynamic, chunk);
    GOMP_parallel_loop_nonmonotonic_guided function (begin: i64, end: i64, step: i64, chunk: i64) =>
        ranged(begin, end, step, Kind::Guided, chunk);
    GOMP_parallel_loop_nonmonotonic_runtime function (begin: i64, end: i64, step: i64) => as_set(function, begin, end, step);
    GOMP_parallel_loop_maybe_nonmonotonic_runtime function (begin: i64, end: i64, step: i64) => as_set(function, begin, end, step);
}

/// `barrier`.
#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn GOMP_barrier() {
    teams::barrier(context::current());
}

/// `barrier` in a region that may be cancelled. Returns true if it was cancelled.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_barrier_cancel() -> bool {
    let context = context::current();
    teams::barrier(context);
    context::is_cancelled(context)
}

/// What `cancel` names.
const PARALLEL: c_int = 1;
const LOOP: c_int = 2;
const SECTIONS: c_int = 4;
const GROUP: c_int = 8;

/// `cancel`, if `really`, or a cancellation point. Returns true if the construct is cancelled.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_cancel(which: c_int, really: bool) -> bool {
    if really { cancel(which) } else { is_cancelled(which) }
}

/// `cancellation point`. Returns true if the construct is cancelled.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_cancellation_point(which: c_int) -> bool {
    is_cancelled(which)
}

/// Cancels a construct of the calling thread, if the user wants that. Returns true if it is cancelled.
pub(crate) fn cancel(which: c_int) -> bool {
    if !settings().cancellation {
        return false;
    }
    let context = context::current();
    if which & (LOOP | SECTIONS) != 0 {
        match context.share.get() {
            Some(share) => share.cancelled.store(1, Release),
            None if context.team.get() == TeamKind::OfJob => {
                job::begun().team.cancelled_loop.store(loop_name(context), Release);
            }
            None => {}
        }
        return true;
    }
    // SAFETY: a group stays until the calling thread's task has left it.
    let group = unsafe { context.running.get().group.as_ref() };
    if which & GROUP != 0 {
        group.into_iter().for_each(Group::cancel);
        return true;
    }
    if which & PARALLEL != 0 && context.team.get() == TeamKind::OfJob {
        job::begun().team.cancelled.store(1, Release);
    }
    true
}

/// What threads call a loop or sections that are no shared piece of work: each of them knows its iterations.
/// A barrier follows what may be cancelled, so that the number of barriers before is a name; 0 is none.
fn loop_name(context: &Context) -> u64 {
    context.barriers.get() + 1
}

/// Returns true if a construct of the calling thread is cancelled.
pub(crate) fn is_cancelled(which: c_int) -> bool {
    let context = context::current();
    if !settings().cancellation {
        return false;
    }
    if which & (LOOP | SECTIONS) != 0 {
        let is_cancelled = match context.share.get() {
            Some(share) => share.is_cancelled(),
            None if context.team.get() == TeamKind::OfJob => {
                job::begun().team.cancelled_loop.load(Acquire) == loop_name(context)
            }
            None => false,
        };
        if is_cancelled {
            return true;
        }
    }
    // SAFETY: as above.
    let group = unsafe { context.running.get().group.as_ref() };
    if which & GROUP != 0 && group.is_some_and(Group::is_cancelled) {
        return true;
    }
    context::is_cancelled(context)
}
