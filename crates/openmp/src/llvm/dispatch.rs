//! Loops whose chunks threads take one after the other, and ordered ones.

use std::ffi::c_int;

use super::{Place, Thread};
use crate::context;
use crate::loops;
use crate::runtime;
use crate::shares;
use crate::work::{Kind, Loop, Range};

const MODIFIERS: c_int = 1 << 29 | 1 << 30;
/// Where the kinds of ordered loops begin, and those of loops whose threads may take chunks in any order.
const ORDERED: c_int = 64;
const UNMERGEABLE: c_int = 160;
const PLAIN: c_int = 32;

/// A loop with a schedule by its number, which may be the one that is set.
fn scheduled(range: Range, schedule: c_int, chunk: u64) -> Loop {
    let kind = schedule & !MODIFIERS;
    let kind = if kind >= UNMERGEABLE { kind - UNMERGEABLE + PLAIN } else { kind };
    let (kind, is_ordered) = if kind >= ORDERED { (kind - ORDERED + PLAIN, true) } else { (kind, false) };
    let of_loop = match kind {
        33 => Loop::new(range, Kind::Static, chunk.max(1)),
        34 | 38 | 40 | 41 | 45 => Loop::new(range, Kind::Static, 0),
        35 | 44 => Loop::new(range, Kind::Dynamic, chunk),
        36 | 39 | 42 | 43 | 46 => Loop::new(range, Kind::Guided, chunk),
        37 | 47 => {
            let (kind, chunk) = context::current().settings.get().schedule.kind_and_chunk();
            Loop::new(range, kind, chunk)
        }
        _ => runtime::fatal(&format!("OpenMP: expected a schedule of a loop, got number {schedule}")),
    };
    if is_ordered { of_loop.ordered() } else { of_loop }
}

/// A loop's iterations by its first and last value, of which the last may be no value of it.
fn range(first: i128, last: i128, step: i128) -> Range {
    let count = if step == 0 { 0 } else { ((last - first) / step + 1).max(0) };
    let is_empty = if step > 0 { last < first } else { first < last };
    let count = if is_empty { 0 } else { count as u64 };
    Range { start: first as u64, step: step as u64, count, end: (first + i128::from(count) * step) as u64 }
}

/// Defines loops over one type.
macro_rules! dispatched {
    ($($begin:ident $next:ident $end_iteration:ident $number:ty, $step:ty;)*) => { $(
        /// The calling thread comes to a loop.
        #[unsafe(no_mangle)]
        extern "C-unwind" fn $begin(
            _place: Place, _thread: Thread, schedule: c_int, first: $number, last: $number, step: $step,
            chunk: $step,
        ) {
            let range = range(first.into(), last.into(), step.into());
            loops::begin(context::current(), scheduled(range, schedule, chunk.max(0) as u64));
        }

        /// The calling thread takes a chunk of it. Returns 1 if there was one. With none the thread leaves.
        ///
        /// # Safety
        /// The places are the caller's, or NULL.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $next(
            _place: Place, _thread: Thread, is_last: *mut c_int, first: *mut $number, last: *mut $number,
            step: *mut $step,
        ) -> c_int {
            let context = context::current();
            let Some((from, behind)) = loops::next(context) else {
                shares::leave_silently(context);
                return 0;
            };
            let range = context.of_loop.get().range;
            let at = |iteration: u64| range.start.wrapping_add(iteration.wrapping_mul(range.step)) as $number;
            // SAFETY: the caller's.
            unsafe { give(is_last, c_int::from(behind == range.count)) };
            // SAFETY: the caller's.
            unsafe { give(first, at(from)) };
            // SAFETY: the caller's.
            unsafe { give(last, at(behind - 1)) };
            // SAFETY: the caller's.
            unsafe { give(step, range.step as $step) };
            1
        }

        /// The calling thread is done with an iteration of an ordered loop. The turn passes on with the
        /// chunk.
        #[unsafe(no_mangle)]
        extern "C-unwind" fn $end_iteration(_place: Place, _thread: Thread) {}
    )* };
}

/// Writes to a place that may be NULL.
///
/// # Safety
/// It is NULL or the caller's.
unsafe fn give<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the caller's.
        unsafe { place.write(value) };
    }
}

dispatched! {
    __kmpc_dispatch_init_4 __kmpc_dispatch_next_4 __kmpc_dispatch_fini_4 i32, i32;
    __kmpc_dispatch_init_4u __kmpc_dispatch_next_4u __kmpc_dispatch_fini_4u u32, i32;
    __kmpc_dispatch_init_8 __kmpc_dispatch_next_8 __kmpc_dispatch_fini_8 i64, i64;
    __kmpc_dispatch_init_8u __kmpc_dispatch_next_8u __kmpc_dispatch_fini_8u u64, i64;
}

/// The calling thread has left a loop, as newer compilers say.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_dispatch_deinit(_place: Place, _thread: Thread) {
    shares::leave_silently(context::current());
}
