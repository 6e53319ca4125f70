//! Loops whose iterations are dealt out once: each thread computes its own part by itself. Sections
//! are such loops, too.

use std::ffi::c_int;

use super::{Place, Thread};
use crate::context;
use crate::runtime;

/// What `schedule` says beside the kind.
const MODIFIERS: c_int = 1 << 29 | 1 << 30;
const STATIC_CHUNKED: c_int = 33;
const STATIC: c_int = 34;
const STATIC_GREEDY: c_int = 40;
const STATIC_BALANCED: c_int = 41;
const STATIC_BALANCED_CHUNKED: c_int = 45;
const DISTRIBUTE_CHUNKED: c_int = 91;
const DISTRIBUTE: c_int = 92;

/// Iterations of a loop whose variable goes from `first` to `last`, which is one of its values or behind
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    first: i128,
    last: i128,
    step: i128,
}

impl Part {
    /// The iterations between two bounds.
    ///
    /// # Safety
    /// Both can be read.
    unsafe fn read<T: Copy + Into<i128>>(first: *const T, last: *const T, step: i128) -> Part {
        // SAFETY: the caller's.
        let first = unsafe { first.read() };
        // SAFETY: the caller's.
        let last = unsafe { last.read() };
        Part { first: first.into(), last: last.into(), step }
    }

    fn count(self) -> i128 {
        ((self.last - self.first) / self.step + 1).max(0)
    }

    fn is_empty(self) -> bool {
        if self.step > 0 { self.last < self.first } else { self.first < self.last }
    }
}

/// What one of `among` gets, who is number `number`: its first part, how far the next one is away, and
/// whether it has the last iteration.
fn deal(whole: Part, kind: c_int, chunk: i128, (number, among): (i128, i128)) -> (Part, i128, bool) {
    let Part { first, step, .. } = whole;
    let count = whole.count();
    if among == 1 {
        return (whole, count * step, true);
    }
    let from_to =
        |from: i128, to: i128| Part { first: first + from * step, last: first + (to - 1) * step, step };
    match kind {
        STATIC_CHUNKED | DISTRIBUTE_CHUNKED => {
            let chunk = chunk.clamp(1, count);
            let part = from_to(number * chunk, (number + 1) * chunk);
            (part, chunk * step * among, number == (count - 1) / chunk % among)
        }
        STATIC_BALANCED_CHUNKED => {
            let chunk = chunk.max(1);
            let span = ((count + among - 1) / among + chunk - 1) / chunk * chunk;
            let part = from_to((number * span).min(count), ((number + 1) * span).min(count));
            (part, span * step * among, number == (count - 1) / span)
        }
        STATIC | STATIC_GREEDY | STATIC_BALANCED | DISTRIBUTE => {
            let (least, rest) = (count / among, count % among);
            let from = number * least + number.min(rest);
            let to = from + least + i128::from(number < rest);
            (from_to(from, to), count * step, to == count && from < to)
        }
        other => runtime::fatal(&format!("OpenMP: expected a static schedule of a loop, got number {other}")),
    }
}

fn in_team() -> (i128, i128) {
    let context = context::current();
    (i128::from(context.number.get()), i128::from(context.threads.get()))
}

fn in_league() -> (i128, i128) {
    let context = context::current();
    (i128::from(context.team_number.get()), i128::from(context.teams.get()))
}

/// What the calling thread gets of a loop, or of its team's part of a loop that a league shares.
fn deal_by(schedule: c_int, whole: Part, chunk: i128) -> (Part, i128, bool) {
    let kind = schedule & !MODIFIERS;
    let who = if matches!(kind, DISTRIBUTE | DISTRIBUTE_CHUNKED) { in_league() } else { in_team() };
    deal(whole, kind, chunk, who)
}

/// What the calling thread gets of a loop that all threads of all teams share: that, and the last value of
/// its team's part.
fn deal_twice(schedule: c_int, whole: Part, chunk: i128) -> (Part, i128, bool, i128) {
    let (of_team, _, is_last_team) = deal(whole, DISTRIBUTE, 0, in_league());
    if of_team.is_empty() {
        return (of_team, whole.step, false, of_team.last);
    }
    let (part, stride, is_last) = deal(of_team, schedule & !MODIFIERS, chunk, in_team());
    (part, stride, is_last && is_last_team, of_team.last)
}

/// Defines how loops over one type begin.
macro_rules! static_loops {
    ($($begin:ident $begin_in_league:ident $number:ty, $step:ty;)*) => { $(
        /// Tells the calling thread which iterations it has.
        ///
        /// # Safety
        /// The places are the caller's; the bounds are there before.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $begin(
            _place: Place, _thread: Thread, schedule: c_int, is_last: *mut c_int, first: *mut $number,
            last: *mut $number, stride: *mut $step, step: $step, chunk: $step,
        ) {
            // SAFETY: the caller's, as of both functions here.
            let whole = unsafe { Part::read(first, last, step.into()) };
            if whole.is_empty() {
                // SAFETY: as above.
                unsafe { give(is_last, c_int::from(false)) };
                // SAFETY: as above.
                return unsafe { give(stride, step) };
            }
            let (part, by, has_last) = deal_by(schedule, whole, chunk.into());
            let (from, to) = fit!(part, $number);
            // SAFETY: as above.
            unsafe { first.write(from) };
            // SAFETY: as above.
            unsafe { last.write(to) };
            // SAFETY: as above.
            unsafe { give(stride, by as $step) };
            // SAFETY: as above.
            unsafe { give(is_last, c_int::from(has_last)) };
        }

        /// The same of a loop that all threads of a league share.
        ///
        /// # Safety
        /// As above.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $begin_in_league(
            _place: Place, _thread: Thread, schedule: c_int, is_last: *mut c_int, first: *mut $number,
            last: *mut $number, last_of_team: *mut $number, stride: *mut $step, step: $step, chunk: $step,
        ) {
            // SAFETY: as above.
            let whole = unsafe { Part::read(first, last, step.into()) };
            if whole.is_empty() {
                // SAFETY: as above.
                unsafe { give(is_last, c_int::from(false)) };
                // SAFETY: as above.
                unsafe { last_of_team.write(whole.last as $number) };
                // SAFETY: as above.
                return unsafe { give(stride, step) };
            }
            let (part, by, has_last, team_last) = deal_twice(schedule, whole, chunk.into());
            let (from, to) = fit!(part, $number);
            // SAFETY: as above.
            unsafe { first.write(from) };
            // SAFETY: as above.
            unsafe { last.write(to) };
            // SAFETY: as above.
            unsafe { last_of_team.write(team_last.clamp(<$number>::MIN.into(), <$number>::MAX.into()) as $number) };
            // SAFETY: as above.
            unsafe { give(stride, by as $step) };
            // SAFETY: as above.
            unsafe { give(is_last, c_int::from(has_last)) };
        }
    )* };
}

/// A part's bounds in the loop's own type: nothing where the part begins behind all values of the type.
macro_rules! fit {
    ($part:expr, $number:ty) => {{
        let Part { first, last, step } = $part;
        let values = i128::from(<$number>::MIN)..=i128::from(<$number>::MAX);
        let clamp = |value: i128| value.clamp(*values.start(), *values.end()) as $number;
        match (values.contains(&first) && !$part.is_empty(), step > 0) {
            (true, _) => (first as $number, clamp(last)),
            (false, true) => (<$number>::MAX, <$number>::MIN),
            (false, false) => (<$number>::MIN, <$number>::MAX),
        }
    }};
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

static_loops! {
    __kmpc_for_static_init_4 __kmpc_dist_for_static_init_4 i32, i32;
    __kmpc_for_static_init_4u __kmpc_dist_for_static_init_4u u32, i32;
    __kmpc_for_static_init_8 __kmpc_dist_for_static_init_8 i64, i64;
    __kmpc_for_static_init_8u __kmpc_dist_for_static_init_8u u64, i64;
}

/// Ends such a loop.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_for_static_fini(_place: Place, _thread: Thread) {}
