//! Loops as compiled programs call them.

use std::ffi::{c_long, c_uint, c_void};
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Release};

use hiroba_schedule::{Kind, Loop, Range};

use crate::call_sites::with_call_site;
use crate::context::{self, Context};
use crate::literal_calls;
use crate::loops;
use crate::memory;
use crate::ordered;
use crate::reduction_calls;
use crate::shares;
use crate::teams;
use crate::work::Share;

/// Takes a chunk and writes its bounds. Returns true if there was one.
///
/// # Safety
/// Both places are the caller's, as of every function of this file.
unsafe fn give(start: *mut u64, end: *mut u64) -> bool {
    let context = context::current();
    let Some((first, behind)) = loops::next(context) else { return false };
    let range = context.of_loop.borrow().range;
    // SAFETY: the caller's.
    unsafe { start.write(range.at(first)) };
    // SAFETY: the caller's.
    unsafe { end.write(range.at(behind)) };
    true
}

fn chunk_of(chunk: i64) -> u64 {
    chunk.max(0) as u64
}

/// The loop with the schedule that is set. `site` is its name.
fn as_set(range: Range, site: u64) -> Loop {
    context::current().settings.get().schedule.of(range, site)
}

/// What `omp_sched_t` adds to the number of a schedule whose threads do not go back.
const MONOTONIC: c_long = 0x8000_0000;

/// The loop with a schedule by its number among `omp_sched_t`'s, 0 for the one that is set.
fn by_number(range: Range, schedule: c_long, chunk: u64, site: u64) -> Loop {
    let of_loop = match schedule & (MONOTONIC - 1) {
        0 => as_set(range, site),
        2 => literal_calls::dynamic(range, chunk),
        3 => Loop::new(range, Kind::Guided, chunk),
        1 => Loop::new(range, Kind::Static, chunk),
        _ => Loop::new(range, Kind::Static, 0),
    };
    of_loop.monotonic(schedule & MONOTONIC != 0)
}

/// Defines how loops begin: with the given arguments, and the places for the first chunk's bounds.
macro_rules! starts {
    ($($name:ident($($argument:ident: $type:ty),*) => $of_loop:expr;)*) => { $(
        /// Enters a loop and takes its first chunk. Returns true if there was one.
        ///
        /// # Safety
        /// The last two arguments are places for the chunk's bounds.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $type,)* start: *mut u64, end: *mut u64) -> bool {
            loops::begin(context::current(), $of_loop);
            // SAFETY: the caller's.
            unsafe { give(start, end) }
        }
    )* };
}

starts! {
    GOMP_loop_static_start(from: i64, to: i64, step: i64, chunk: i64) =>
        Loop::new(Range::signed(from, to, step), Kind::Static, chunk_of(chunk));
    GOMP_loop_dynamic_start(from: i64, to: i64, step: i64, chunk: i64) =>
        literal_calls::dynamic(Range::signed(from, to, step), chunk_of(chunk)).monotonic(true);
    GOMP_loop_guided_start(from: i64, to: i64, step: i64, chunk: i64) =>
        Loop::new(Range::signed(from, to, step), Kind::Guided, chunk_of(chunk)).monotonic(true);
    GOMP_loop_nonmonotonic_dynamic_start(from: i64, to: i64, step: i64, chunk: i64) =>
        literal_calls::dynamic(Range::signed(from, to, step), chunk_of(chunk));
    GOMP_loop_nonmonotonic_guided_start(from: i64, to: i64, step: i64, chunk: i64) =>
        Loop::new(Range::signed(from, to, step), Kind::Guided, chunk_of(chunk));
    GOMP_loop_ordered_static_start(from: i64, to: i64, step: i64, chunk: i64) =>
        Loop::new(Range::signed(from, to, step), Kind::Static, chunk_of(chunk)).ordered();
    GOMP_loop_ordered_dynamic_start(from: i64, to: i64, step: i64, chunk: i64) =>
        literal_calls::dynamic(Range::signed(from, to, step), chunk_of(chunk)).ordered();
    GOMP_loop_ordered_guided_start(from: i64, to: i64, step: i64, chunk: i64) =>
        Loop::new(Range::signed(from, to, step), Kind::Guided, chunk_of(chunk)).ordered();
    GOMP_loop_ordered_runtime_start(from: i64, to: i64, step: i64) =>
        as_set(Range::signed(from, to, step), 0).ordered();
    GOMP_loop_ull_static_start(up: bool, from: u64, to: u64, step: u64, chunk: u64) =>
        Loop::new(Range::unsigned(up, from, to, step), Kind::Static, chunk);
    GOMP_loop_ull_dynamic_start(up: bool, from: u64, to: u64, step: u64, chunk: u64) =>
        literal_calls::dynamic(Range::unsigned(up, from, to, step), chunk).monotonic(true);
    GOMP_loop_ull_guided_start(up: bool, from: u64, to: u64, step: u64, chunk: u64) =>
        Loop::new(Range::unsigned(up, from, to, step), Kind::Guided, chunk).monotonic(true);
    GOMP_loop_ull_nonmonotonic_dynamic_start(up: bool, from: u64, to: u64, step: u64, chunk: u64) =>
        literal_calls::dynamic(Range::unsigned(up, from, to, step), chunk);
    GOMP_loop_ull_nonmonotonic_guided_start(up: bool, from: u64, to: u64, step: u64, chunk: u64) =>
        Loop::new(Range::unsigned(up, from, to, step), Kind::Guided, chunk);
    GOMP_loop_ull_ordered_static_start(up: bool, from: u64, to: u64, step: u64, chunk: u64) =>
        Loop::new(Range::unsigned(up, from, to, step), Kind::Static, chunk).ordered();
    GOMP_loop_ull_ordered_dynamic_start(up: bool, from: u64, to: u64, step: u64, chunk: u64) =>
        literal_calls::dynamic(Range::unsigned(up, from, to, step), chunk).ordered();
    GOMP_loop_ull_ordered_guided_start(up: bool, from: u64, to: u64, step: u64, chunk: u64) =>
        Loop::new(Range::unsigned(up, from, to, step), Kind::Guided, chunk).ordered();
    GOMP_loop_ull_ordered_runtime_start(up: bool, from: u64, to: u64, step: u64) =>
        as_set(Range::unsigned(up, from, to, step), 0).ordered();
}

with_call_site! {
    GOMP_loop_runtime_start => start_monotonic, 0;
    GOMP_loop_nonmonotonic_runtime_start => start_as_set, 0;
    GOMP_loop_maybe_nonmonotonic_runtime_start => start_as_set, 0;
    GOMP_loop_ull_runtime_start => start_unsigned_monotonic, 0;
    GOMP_loop_ull_nonmonotonic_runtime_start => start_unsigned_as_set, 0;
    GOMP_loop_ull_maybe_nonmonotonic_runtime_start => start_unsigned_as_set, 0;
    GOMP_loop_start => start, 3;
    GOMP_loop_ull_start => start_unsigned, 4;
}

/// Defines how loops begin whose schedule is set elsewhere: functions that are called with the address of the
/// call as the last argument, which is the seventh.
macro_rules! starts_as_set {
    ($($name:ident($($argument:ident: $type:ty),*; $($unused:ident)?) $range:expr, $is_monotonic:literal;)*) => { $(
        /// Enters a loop and takes its first chunk. Returns true if there was one.
        ///
        /// # Safety
        /// The two places are for the chunk's bounds.
        unsafe extern "C-unwind" fn $name(
            $($argument: $type,)* start: *mut u64, end: *mut u64, $($unused: u64,)? site: u64,
        ) -> bool {
            loops::begin(context::current(), as_set($range, site).monotonic($is_monotonic));
            // SAFETY: the caller's.
            unsafe { give(start, end) }
        }
    )* };
}

starts_as_set! {
    start_monotonic(from: i64, to: i64, step: i64; _sixth) Range::signed(from, to, step), true;
    start_as_set(from: i64, to: i64, step: i64; _sixth) Range::signed(from, to, step), false;
    start_unsigned_monotonic(up: bool, from: u64, to: u64, step: u64;) Range::unsigned(up, from, to, step), true;
    start_unsigned_as_set(up: bool, from: u64, to: u64, step: u64;) Range::unsigned(up, from, to, step), false;
}

/// Defines how the next chunk is taken.
macro_rules! nexts {
    ($($name:ident)*) => { $(
        /// Takes another chunk of the current loop. Returns true if there was one.
        ///
        /// # Safety
        /// The arguments are places for the chunk's bounds.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(start: *mut u64, end: *mut u64) -> bool {
            // SAFETY: the caller's.
            unsafe { give(start, end) }
        }
    )* };
}

nexts! {
    GOMP_loop_static_next GOMP_loop_dynamic_next GOMP_loop_guided_next GOMP_loop_runtime_next
    GOMP_loop_nonmonotonic_dynamic_next GOMP_loop_nonmonotonic_guided_next
    GOMP_loop_nonmonotonic_runtime_next GOMP_loop_maybe_nonmonotonic_runtime_next
    GOMP_loop_ordered_static_next GOMP_loop_ordered_dynamic_next GOMP_loop_ordered_guided_next
    GOMP_loop_ordered_runtime_next
    GOMP_loop_ull_static_next GOMP_loop_ull_dynamic_next GOMP_loop_ull_guided_next
    GOMP_loop_ull_runtime_next
    GOMP_loop_ull_nonmonotonic_dynamic_next GOMP_loop_ull_nonmonotonic_guided_next
    GOMP_loop_ull_nonmonotonic_runtime_next GOMP_loop_ull_maybe_nonmonotonic_runtime_next
    GOMP_loop_ull_ordered_static_next GOMP_loop_ull_ordered_dynamic_next
    GOMP_loop_ull_ordered_guided_next GOMP_loop_ull_ordered_runtime_next
}

/// What newer compilers pass on beside the loop itself.
#[derive(Clone, Copy)]
pub(crate) struct Extras {
    /// A list of reductions over tasks, or NULL.
    pub(crate) reductions: *mut usize,
    /// How many bytes of memory the threads want to share, and where its address goes; or NULL.
    pub(crate) memory: *mut *mut c_void,
}

impl Extras {
    /// Comes to a piece of work with these extras.
    ///
    /// # Safety
    /// Both pointers are NULL or as the compiler passes them.
    pub(crate) unsafe fn begin(self, context: &Context, of_loop: Loop, prepare: impl FnOnce(&Share)) {
        let bytes = if self.memory.is_null() {
            0
        } else {
            // SAFETY: the caller's.
            unsafe { self.memory.read() }.addr()
        };
        // SAFETY: the caller's.
        let register = unsafe { reduction_calls::of_share(context, self.reductions) };
        loops::begin_with(context, of_loop, |share| {
            if let Some(register) = register {
                register(share);
            }
            if bytes > 0 {
                share.memory.store(memory::shared_zeroed(MEMORY_ALIGN, bytes), Release);
            }
            prepare(share);
        });
        if bytes > 0 {
            let memory = context.share.get().map_or(ptr::null_mut(), |share| share.memory.load(Acquire));
            // SAFETY: the caller's.
            unsafe { self.memory.write(memory) };
        }
        // SAFETY: the caller's.
        unsafe { reduction_calls::join_share(context, self.reductions) };
    }
}

const MEMORY_ALIGN: usize = 64;

/// Comes to a loop and takes its first chunk, if there are places for its bounds.
///
/// # Safety
/// The places are NULL or the caller's, and the extras as compilers pass them.
unsafe fn begin_general(of_loop: Loop, (start, end): (*mut u64, *mut u64), extras: Extras) -> bool {
    // SAFETY: the caller's.
    unsafe { extras.begin(context::current(), of_loop, |_| {}) };
    if start.is_null() {
        return true;
    }
    // SAFETY: the caller's.
    unsafe { give(start, end) }
}

/// Defines loops whose schedule is given by a number.
macro_rules! general {
    ($($(#[$attribute:meta])? $name:ident($($argument:ident: $type:ty),*; $($site:ident)?) => $of_loop:expr;)*) => { $(
        /// The calling thread comes to a loop and takes its first chunk, if it has places for the bounds.
        ///
        /// # Safety
        /// The places for the chunk's bounds are NULL or the caller's, and the extras as compilers pass them.
        $(#[$attribute])?
        unsafe extern "C-unwind" fn $name(
            $($argument: $type,)* start: *mut u64, end: *mut u64, reductions: *mut usize,
            memory: *mut *mut c_void, $($site: u64)?
        ) -> bool {
            // SAFETY: the caller's.
            unsafe { begin_general($of_loop, (start, end), Extras { reductions, memory }) }
        }
    )* };
}

general! {
    start(from: i64, to: i64, step: i64, schedule: c_long, chunk: i64; site) =>
        by_number(Range::signed(from, to, step), schedule, chunk_of(chunk), site);
    #[unsafe(no_mangle)]
    GOMP_loop_ordered_start(from: i64, to: i64, step: i64, schedule: c_long, chunk: i64;) =>
        by_number(Range::signed(from, to, step), schedule, chunk_of(chunk), 0).ordered();
    start_unsigned(up: bool, from: u64, to: u64, step: u64, schedule: c_long, chunk: u64; site) =>
        by_number(Range::unsigned(up, from, to, step), schedule, chunk, site);
    #[unsafe(no_mangle)]
    GOMP_loop_ull_ordered_start(up: bool, from: u64, to: u64, step: u64, schedule: c_long, chunk: u64;) =>
        by_number(Range::unsigned(up, from, to, step), schedule, chunk, 0).ordered();
}

/// Comes to a nest of loops whose iterations depend on each other.
///
/// # Safety
/// `counts` has `loops` numbers; the rest as of [`Extras::begin`].
unsafe fn begin_nest(
    loops: c_uint,
    counts: *const u64,
    of_loop: impl FnOnce(Range) -> Loop,
    extras: Extras,
    (start, end): (*mut u64, *mut u64),
) -> bool {
    let context = context::current();
    // SAFETY: the caller's.
    let counts = unsafe { std::slice::from_raw_parts(counts, loops as usize) };
    context.nest.replace(counts.to_vec());
    let range = Range::unsigned(true, 0, counts[0], 1);
    // SAFETY: the caller's.
    unsafe { extras.begin(context, of_loop(range).in_order(), |share| ordered::prepare_nest(counts, share)) };
    if start.is_null() {
        return true;
    }
    // SAFETY: the caller's.
    unsafe { give(start, end) }
}

/// Defines nests of loops whose iterations depend on each other.
macro_rules! nests {
    ($($name:ident($($argument:ident: $type:ty),*) => $of_loop:expr;)*) => { $(
        /// The calling thread comes to a nest of loops with `depend` clauses and takes its first chunk.
        ///
        /// # Safety
        /// `counts` has a number for each loop; the last arguments are places for the chunk's bounds.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            loops: c_uint, counts: *const u64, $($argument: $type,)* start: *mut u64, end: *mut u64,
        ) -> bool {
            let extras = Extras { reductions: ptr::null_mut(), memory: ptr::null_mut() };
            // SAFETY: the caller's.
            unsafe { begin_nest(loops, counts, $of_loop, extras, (start, end)) }
        }
    )* };
}

nests! {
    GOMP_loop_doacross_static_start(chunk: u64) => |range| Loop::new(range, Kind::Static, chunk);
    GOMP_loop_doacross_dynamic_start(chunk: u64) => |range| literal_calls::dynamic(range, chunk);
    GOMP_loop_doacross_guided_start(chunk: u64) => |range| Loop::new(range, Kind::Guided, chunk);
    GOMP_loop_doacross_runtime_start() => |range| as_set(range, 0);
    GOMP_loop_ull_doacross_static_start(chunk: u64) => |range| Loop::new(range, Kind::Static, chunk);
    GOMP_loop_ull_doacross_dynamic_start(chunk: u64) => |range| literal_calls::dynamic(range, chunk);
    GOMP_loop_ull_doacross_guided_start(chunk: u64) => |range| Loop::new(range, Kind::Guided, chunk);
    GOMP_loop_ull_doacross_runtime_start() => |range| as_set(range, 0);
}

/// Defines the newer names of such nests.
macro_rules! general_nests {
    ($($name:ident)*) => { $(
        /// The calling thread comes to a nest of loops with `depend` clauses and takes its first chunk.
        ///
        /// # Safety
        /// As of the older names.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            loops: c_uint, counts: *const u64, schedule: c_long, chunk: u64, start: *mut u64, end: *mut u64,
            reductions: *mut usize, memory: *mut *mut c_void,
        ) -> bool {
            let of_loop = |range| by_number(range, schedule, chunk, 0);
            // SAFETY: the caller's.
            unsafe { begin_nest(loops, counts, of_loop, Extras { reductions, memory }, (start, end)) }
        }
    )* };
}

general_nests! { GOMP_loop_doacross_start GOMP_loop_ull_doacross_start }

/// The end of a loop, with a barrier.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_loop_end() {
    let context = context::current();
    loops::leave(context);
    shares::leave(context);
    teams::barrier(context);
}

/// The end of a loop that no barrier follows.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_loop_end_nowait() {
    let context = context::current();
    loops::leave(context);
    shares::pass(context);
}

/// Ends a loop in a region that may be cancelled. Returns true if it was cancelled.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_loop_end_cancel() -> bool {
    GOMP_loop_end();
    context::is_cancelled(context::current())
}
