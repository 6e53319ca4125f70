//! Nests of loops whose iterations wait for each other (`ordered(n)` with `depend`): a bit for each
//! iteration, in memory that goes with a piece of work of the team.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};

use super::{Place, Thread};
use crate::context::{self, Context, TeamKind};
use crate::memory;
use crate::nest::{BITS, Nest};
use crate::runtime::{self, wait_until};
use crate::shares;

/// The bounds of one loop of a nest.
#[repr(C)]
#[derive(Clone, Copy)]
struct Bounds {
    first: i64,
    last: i64,
    step: i64,
}

/// The most iterations of a nest.
const ITERATIONS_MAX: u64 = 1 << 33;

impl Bounds {
    /// How many iterations there are. Compilers count from 0 to the number itself.
    fn count(self) -> u64 {
        let Bounds { first, last, step } = self;
        if first == 0 && step == 1 {
            return last.max(0) as u64;
        }
        ((i128::from(last) - i128::from(first)) / i128::from(step) + 1).max(0) as u64
    }
}

/// The calling thread comes to a nest.
///
/// # Safety
/// `bounds` has `count` elements.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_doacross_init(
    _place: Place,
    _thread: Thread,
    count: c_int,
    bounds: *const Bounds,
) {
    let context = context::current();
    if context.team.get() == TeamKind::Alone {
        return;
    }
    // SAFETY: the caller's.
    let bounds = unsafe { std::slice::from_raw_parts(bounds, count.max(0) as usize) };
    let total = bounds.iter().fold(1u64, |total, one| total.saturating_mul(one.count()));
    if total > ITERATIONS_MAX {
        runtime::fatal(&format!(
            "OpenMP: expected at most {ITERATIONS_MAX} iterations of loops with depend clauses, got {total}"
        ));
    }
    let share = shares::begin(context, |share| {
        let words = total.div_ceil(BITS) as usize;
        share.memory.store(memory::shared_zeroed(64, words * size_of::<AtomicU64>()), Release);
    });
    context.share.set(None);
    let bits = share.memory.load(Acquire).cast_const().cast();
    let loops = bounds.iter().map(|one| (one.first, one.step, one.count())).collect();
    context.waiting_nest.replace(Some(Nest { loops, bits, share }));
}

/// Says that an iteration is done.
///
/// # Safety
/// `at` has a number for each loop of the nest.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_doacross_post(_place: Place, _thread: Thread, at: *const i64) {
    let nest = context::current().waiting_nest.borrow();
    // SAFETY: the caller's.
    if let Some((word, bit)) = nest.as_ref().and_then(|nest| unsafe { nest.bit_of(at) }) {
        word.fetch_or(bit, AcqRel);
    }
}

/// Waits until an iteration is done, unless it lies outside the nest.
///
/// # Safety
/// `at` has a number for each loop of the nest.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_doacross_wait(_place: Place, _thread: Thread, at: *const i64) {
    let nest = context::current().waiting_nest.borrow();
    // SAFETY: the caller's.
    if let Some((word, bit)) = nest.as_ref().and_then(|nest| unsafe { nest.bit_of(at) }) {
        wait_until(|| word.load(Acquire) & bit != 0);
    }
}

/// The calling thread leaves the nest.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_doacross_fini(_place: Place, _thread: Thread) {
    let context = context::current();
    if let Some(nest) = context.waiting_nest.take() {
        leave(context, &nest);
    }
}

fn leave(context: &Context, nest: &Nest) {
    if context.team.get() == TeamKind::OfJob {
        nest.share.passed.fetch_add(1, AcqRel);
    }
}
