//! The iterations of a loop, numbered from 0.

/// The iterations of a loop: its variable begins with `start` and grows by `step`, both modulo 2^64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The variable's first value.
    pub start: u64,
    /// By how much it grows.
    pub step: u64,
    /// How many iterations there are.
    pub count: u64,
    /// The loop's own bound, at or behind which the last iteration's successor lies.
    pub end: u64,
}

impl Range {
    /// `for (i = start; step > 0 ? i < end : i > end; i += step)`.
    pub fn signed(start: i64, end: i64, step: i64) -> Range {
        let (is_some, distance) = if step > 0 {
            (start < end, end.wrapping_sub(start))
        } else {
            (start > end, start.wrapping_sub(end))
        };
        let count = if is_some { (distance as u64 - 1) / step.unsigned_abs() + 1 } else { 0 };
        Range { start: start as u64, step: step as u64, count, end: end as u64 }
    }

    /// The same of unsigned numbers, upwards or downwards.
    pub fn unsigned(up: bool, start: u64, end: u64, step: u64) -> Range {
        let (is_some, distance, by) = if up {
            (start < end, end.wrapping_sub(start), step)
        } else {
            (start > end, start.wrapping_sub(end), step.wrapping_neg())
        };
        let count = if is_some { (distance - 1) / by + 1 } else { 0 };
        Range { start, step, count, end }
    }

    /// A loop by its first and last value, of which the last may be no value of it.
    pub fn inclusive(first: i128, last: i128, step: i128) -> Range {
        let is_some = if step > 0 { first <= last } else { step < 0 && first >= last };
        let count = if is_some { ((last - first) / step + 1) as u64 } else { 0 };
        Range {
            start: first as u64,
            step: step as u64,
            count,
            end: (first + i128::from(count) * step) as u64,
        }
    }

    /// What the variable is in an iteration, or behind the last one.
    pub fn at(self, iteration: u64) -> u64 {
        if iteration == self.count && iteration > 0 {
            return self.end;
        }
        self.start.wrapping_add(iteration.wrapping_mul(self.step))
    }
}
