//! `taskloop`: the iterations of a loop, dealt out to tasks.

use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};

use super::calls::{Code, Copy, FINAL, GOMP_taskgroup_end, GOMP_taskgroup_start, enqueue, is_cancelled};
use super::{is_full, may_defer};
use hiroba_schedule::Range;

use crate::context::{self, Context};
use crate::reductions;
use crate::work::Function;

const UP: c_uint = 1 << 8;
const GRAIN: c_uint = 1 << 9;
const MAY_WAIT: c_uint = 1 << 10;
const NO_GROUP: c_uint = 1 << 11;
const REDUCTION: c_uint = 1 << 12;
const STRICT: c_uint = 1 << 14;

/// How many tasks there are, each of which has `part` iterations or one more; or `grain` each, but for the
/// last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deal {
    pub(crate) tasks: u64,
    grain: Option<u64>,
}

impl Deal {
    /// For `count` iterations; `asked` is 0 if the program does not say how many tasks or iterations it
    /// wants.
    pub(crate) fn new(context: &Context, count: u64, asked: u64, by_grain: bool, is_strict: bool) -> Deal {
        if !by_grain {
            let asked = if asked == 0 { u64::from(context.threads.get()) } else { asked };
            return Deal { tasks: asked.min(count), grain: None };
        }
        let grain = asked.max(1);
        if is_strict {
            Deal { tasks: count.div_ceil(grain), grain: Some(grain) }
        } else {
            Deal { tasks: (count / grain).max(1), grain: None }
        }
    }

    /// The iterations of a task: first and end.
    pub(crate) fn part(self, count: u64, task: u64) -> (u64, u64) {
        if let Some(grain) = self.grain {
            return (task * grain, ((task + 1) * grain).min(count));
        }
        let (part, rest) = (count / self.tasks, count % self.tasks);
        let first = part * task + task.min(rest);
        (first, first + part + u64::from(task < rest))
    }
}

/// The list of reductions that lies behind the bounds at the beginning of the data.
fn reductions_of(data: *mut c_void) -> *mut *mut usize {
    data.cast::<*mut usize>().wrapping_add(2)
}

fn run(code: &Code, flags: c_uint, asked: u64, range: Range) {
    let context = context::current();
    let reduces = flags & (NO_GROUP | REDUCTION) == REDUCTION;
    if range.count == 0 || is_cancelled(context) {
        if reduces {
            // SAFETY: the compiler passes a list there.
            let list = unsafe { reductions_of(code.data).read() };
            // SAFETY: its third word says that nothing was made.
            unsafe { list.wrapping_add(2).write(0) };
        }
        return;
    }
    if flags & NO_GROUP == 0 {
        GOMP_taskgroup_start();
        if reduces {
            // SAFETY: the compiler passes a list there.
            let list = unsafe { reductions_of(code.data).read() };
            // SAFETY: as above.
            unsafe { reductions::GOMP_taskgroup_reduction_register(list) };
        }
    }
    let deal = Deal::new(context, range.count, asked, flags & GRAIN != 0, flags & STRICT != 0);
    let puts_off = flags & MAY_WAIT != 0 && may_defer(context);
    for task in 0..deal.tasks {
        let (first, end) = deal.part(range.count, task);
        let set_bounds = |data: *mut c_void| {
            let bounds = data.cast::<[u64; 2]>();
            // SAFETY: the data begin with the bounds of the task's iterations.
            unsafe { bounds.write([range.at(first), range.at(end)]) };
        };
        if puts_off && !is_full(context) {
            enqueue(context, &[code.put_off(set_bounds)], &[]);
        } else {
            code.run(context, set_bounds);
        }
    }
    if flags & NO_GROUP == 0 {
        GOMP_taskgroup_end();
    }
}

/// Defines both kinds of loops.
macro_rules! task_loops {
    ($($name:ident $type:ty: $range:expr;)*) => { $(
        /// Runs the iterations of a loop in tasks.
        ///
        /// # Safety
        /// `function` may be called with copies of the data, which begin with the bounds of its iterations.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            function: Function, data: *mut c_void, copy: Option<Copy>, bytes: c_long, align: c_long,
            flags: c_uint, asked: c_ulong, _priority: c_int, start: $type, end: $type, step: $type,
        ) {
            let range: fn(bool, $type, $type, $type) -> Range = $range;
            let (bytes, align) = (bytes as usize, (align as usize).max(1));
            let code = Code { function, data, copy, bytes, align, is_final: flags & FINAL != 0 };
            run(&code, flags, asked, range(flags & UP != 0, start, end, step));
        }
    )* };
}

task_loops! {
    GOMP_taskloop i64: |_, start, end, step| Range::signed(start, end, step);
    GOMP_taskloop_ull u64: Range::unsigned;
}
