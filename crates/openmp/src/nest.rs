//! A nest of loops whose iterations wait for each other, as a thread of a program for LLVM's library knows
//! it.

use std::sync::atomic::AtomicU64;

use crate::work::Share;

/// The number of iterations of a nest in one word.
pub(crate) const BITS: u64 = 64;

/// What a thread knows of the nest that it is in.
#[derive(Debug)]
pub(crate) struct Nest {
    /// For each loop: its first value, its step, and how many iterations it has.
    pub(crate) loops: Vec<(i64, i64, u64)>,
    pub(crate) bits: *const AtomicU64,
    pub(crate) share: &'static Share,
}

impl Nest {
    /// The number of an iteration; `None` if it is none of the nest's.
    ///
    /// # Safety
    /// `at` has a number for each loop.
    unsafe fn number_of(&self, at: *const i64) -> Option<u64> {
        self.loops.iter().enumerate().try_fold(0, |number, (place, (first, step, count))| {
            // SAFETY: the caller's.
            let at = unsafe { at.wrapping_add(place).read() };
            let distance = if *step > 0 { at.wrapping_sub(*first) } else { first.wrapping_sub(at) };
            let iteration = u64::try_from(distance).ok()? / step.unsigned_abs();
            let iteration = Some(iteration).filter(|iteration| iteration < count)?;
            Some(number * count + iteration)
        })
    }

    /// The word and the bit of an iteration.
    ///
    /// # Safety
    /// As above.
    pub(crate) unsafe fn bit_of(&self, at: *const i64) -> Option<(&AtomicU64, u64)> {
        // SAFETY: the caller's.
        let number = unsafe { self.number_of(at) }?;
        let word = self.bits.wrapping_add((number / BITS) as usize);
        // SAFETY: `begin` made a bit for each iteration; they stay until all threads are past the nest.
        Some((unsafe { &*word }, 1 << (number % BITS)))
    }
}
