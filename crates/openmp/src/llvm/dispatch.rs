//! Loops whose chunks threads take one after the other, and ordered ones.

use std::ffi::c_int;

use hiroba_schedule::{Kind, Loop, Range};

use super::{Place, Thread};
use crate::call_sites::with_call_site;
use crate::context;
use crate::literal_calls;
use crate::loops;
use crate::runtime;
use crate::shares;

const MONOTONIC: c_int = 1 << 29;
const MODIFIERS: c_int = MONOTONIC | 1 << 30;
/// Where the kinds of ordered loops begin, and those of loops whose threads may take chunks in any order.
const ORDERED: c_int = 64;
const UNMERGEABLE: c_int = 160;
const PLAIN: c_int = 32;

/// A loop with a schedule by its number, which may be the one that is set. `site` is its name.
fn scheduled(range: Range, schedule: c_int, chunk: u64, site: u64) -> Loop {
    let context = context::current();
    let kind = schedule & !MODIFIERS;
    let kind = if kind >= UNMERGEABLE { kind - UNMERGEABLE + PLAIN } else { kind };
    let (kind, is_ordered) = if kind >= ORDERED { (kind - ORDERED + PLAIN, true) } else { (kind, false) };
    let of_loop = match kind {
        33 => Loop::new(range, Kind::Static, chunk.max(1)),
        34 | 38 | 40 | 41 | 45 => Loop::new(range, Kind::Static, 0),
        35 | 44 => literal_calls::dynamic(range, chunk),
        36 | 39 | 42 | 43 | 46 => Loop::new(range, Kind::Guided, chunk),
        37 | 47 => context.settings.get().schedule.of(range, site),
        _ => runtime::fatal(&format!("OpenMP: expected a schedule of a loop, got number {schedule}")),
    };
    let of_loop = of_loop.monotonic(schedule & MONOTONIC != 0);
    match is_ordered {
        true => of_loop.ordered(),
        // Iterations of a nest wait for earlier ones.
        false if context.waiting_nest.borrow().is_some() => of_loop.in_order(),
        false => of_loop,
    }
}

/// Defines loops over one type.
macro_rules! dispatched {
    ($($begin:ident $begun:ident $next:ident $end_iteration:ident $number:ty, $step:ty;)*) => { $(
        with_call_site! { $begin => $begun, 1; }

        /// The calling thread comes to a loop.
        extern "C-unwind" fn $begun(
            _place: Place, _thread: Thread, schedule: c_int, first: $number, last: $number, step: $step,
            chunk: $step, site: u64,
        ) {
            let range = Range::inclusive(first.into(), last.into(), step.into());
            loops::begin(context::current(), scheduled(range, schedule, chunk.max(0) as u64, site));
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
            let range = context.of_loop.borrow().range;
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
    __kmpc_dispatch_init_4 begin_4 __kmpc_dispatch_next_4 __kmpc_dispatch_fini_4 i32, i32;
    __kmpc_dispatch_init_4u begin_4u __kmpc_dispatch_next_4u __kmpc_dispatch_fini_4u u32, i32;
    __kmpc_dispatch_init_8 begin_8 __kmpc_dispatch_next_8 __kmpc_dispatch_fini_8 i64, i64;
    __kmpc_dispatch_init_8u begin_8u __kmpc_dispatch_next_8u __kmpc_dispatch_fini_8u u64, i64;
}

/// The calling thread has left a loop, as newer compilers say.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_dispatch_deinit(_place: Place, _thread: Thread) {
    shares::leave_silently(context::current());
}
