//! `ordered`: regions of a loop in the order of its iterations, and iterations that wait for each other.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};

use crate::context::{self, Context};
use crate::loops;
use crate::memory;
use crate::runtime::{self, wait_until};
use crate::work::Share;

/// Begins a region of code whose turn it is to run when all earlier iterations' have run.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_ordered_start() {
    loops::await_turn(context::current());
}

/// Ends it. The turn passes on with the chunk.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_ordered_end() {}

/// The most iterations of the outermost loop of a nest: each has a word that says how far it has come.
const OUTER_MAX: u64 = 1 << 27;

/// Makes what the threads of a nest tell each other: for each iteration of the outermost loop, one more than
/// the number of the latest inner iteration that is done.
pub(crate) fn prepare_nest(counts: &[u64], share: &Share) {
    let outer = counts[0];
    if outer > OUTER_MAX {
        runtime::fatal(&format!(
            "OpenMP: expected at most {OUTER_MAX} iterations of a loop with depend clauses, got {outer}"
        ));
    }
    // Memory of the loop itself, if any, stays where it is: a nest has none.
    let before =
        share.memory.swap(memory::shared_zeroed(64, outer as usize * 8), std::sync::atomic::Ordering::AcqRel);
    // SAFETY: no other thread knows it yet.
    unsafe { memory::free_shared(before) };
}

/// The word of an outermost iteration, and the number of the inner one; `None` if it is none of the nest's.
///
/// # Safety
/// `at` reads a number for each loop of the nest.
unsafe fn place<'a>(context: &Context, at: *const u64) -> Option<(&'a AtomicU64, u64)> {
    let counts = context.nest.borrow();
    let share = context.share.get()?;
    // SAFETY: the caller's.
    let at = unsafe { std::slice::from_raw_parts(at, counts.len()) };
    if at.iter().zip(counts.iter()).any(|(at, count)| at >= count) {
        return None;
    }
    let inner = at[1..].iter().zip(&counts[1..]).fold(0, |inner, (at, count)| inner * count + at);
    let words = share.memory.load(Acquire).cast::<AtomicU64>();
    // SAFETY: `prepare_nest` made a word for each outermost iteration.
    let word = unsafe { words.add(at[0] as usize) };
    // SAFETY: as above; the words stay until all threads are past the loop.
    Some((unsafe { &*word }, inner))
}

/// Says that an iteration is done.
///
/// # Safety
/// `at` has a number for each loop of the nest.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn GOMP_doacross_post(at: *const u64) {
    // SAFETY: the caller's.
    if let Some((word, inner)) = unsafe { place(context::current(), at) } {
        word.store(inner + 1, Release);
    }
}

/// The same of unsigned loops.
///
/// # Safety
/// `at` has a number for each loop of the nest.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn GOMP_doacross_ull_post(at: *const u64) {
    // SAFETY: the caller's.
    unsafe { GOMP_doacross_post(at) };
}

/// Waits until an iteration is done. The numbers are the first ones of `registers`, then those on the stack.
unsafe extern "C-unwind" fn wait_for(registers: *const [u64; 6], stack: *const u64) {
    let context = context::current();
    let loops = context.nest.borrow().len();
    let at: Vec<u64> = (0..loops)
        .map(|number| {
            let place = if number < 6 {
                registers.cast::<u64>().wrapping_add(number)
            } else {
                stack.wrapping_add(number - 6)
            };
            // SAFETY: the caller of the function below has passed that many numbers.
            unsafe { place.read() }
        })
        .collect();
    // SAFETY: one number for each loop.
    if let Some((word, inner)) = unsafe { place(context, at.as_ptr()) } {
        wait_until(|| word.load(Acquire) > inner);
    }
}

/// Defines functions that take as many numbers as the nest has loops.
macro_rules! with_numbers {
    ($($name:ident)*) => { $(
        /// Waits until an iteration is done, of which each loop's number is an argument.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(first: u64) {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "endbr64",
                "lea rax, [rsp + 8]",
                "push rbp",
                ".cfi_def_cfa_offset 16",
                ".cfi_offset rbp, -16",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "push rdi",
                "mov rdi, rsp",
                "mov rsi, rax",
                "call {wait_for}",
                "mov rsp, rbp",
                "pop rbp",
                ".cfi_def_cfa rsp, 8",
                "ret",
                ".cfi_endproc",
                wait_for = sym wait_for,
            );
        }
    )* };
}

with_numbers! { GOMP_doacross_wait GOMP_doacross_ull_wait }
