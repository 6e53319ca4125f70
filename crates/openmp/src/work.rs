//! Pieces of work that a team shares, as data: the iterations of a loop, how chunks of them are given out,
//! and what threads tell each other of it.

use std::ffi::c_void;
use std::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
};

/// The code of a region or of a task.
pub(crate) type Function = unsafe extern "C-unwind" fn(*mut c_void);

/// How many pieces of work may be under way at once.
pub(crate) const RING: usize = 64;

/// A piece of work.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct Share {
    /// One more than the number of the last piece that a thread prepares or has prepared.
    pub(crate) claimed: AtomicU64,
    /// The same once it is prepared.
    pub(crate) ready: AtomicU64,
    /// The next iteration or section that no thread has taken.
    pub(crate) next: AtomicU64,
    /// The first iteration of the chunk whose turn it is in ordered regions.
    pub(crate) turn: AtomicU64,
    /// Not 0 once the work is cancelled.
    pub(crate) cancelled: AtomicU32,
    /// How many threads are past it without a barrier.
    pub(crate) passed: AtomicU32,
    /// Memory that goes with it, freed when the place is used again.
    pub(crate) memory: AtomicPtr<c_void>,
    /// Reductions over tasks in it.
    pub(crate) reductions: AtomicPtr<usize>,
}

impl Share {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Acquire) != 0
    }
}

/// How chunks are given out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Static,
    Dynamic,
    Guided,
}

impl Kind {
    fn number(self) -> u64 {
        self as u64
    }

    fn from_number(number: u64) -> Kind {
        match number {
            0 => Kind::Static,
            1 => Kind::Dynamic,
            _ => Kind::Guided,
        }
    }
}

/// The iterations of a loop: its variable begins with `start` and grows by `step`, both modulo 2^64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) step: u64,
    pub(crate) count: u64,
    /// The loop's own bound, at or behind which the last iteration's successor lies.
    pub(crate) end: u64,
}

impl Range {
    /// `for (i = start; step > 0 ? i < end : i > end; i += step)`.
    pub(crate) fn signed(start: i64, end: i64, step: i64) -> Range {
        let (is_some, distance) = if step > 0 {
            (start < end, end.wrapping_sub(start))
        } else {
            (start > end, start.wrapping_sub(end))
        };
        let count = if is_some { (distance as u64 - 1) / step.unsigned_abs() + 1 } else { 0 };
        Range { start: start as u64, step: step as u64, count, end: end as u64 }
    }

    /// The same of unsigned numbers, upwards or downwards.
    pub(crate) fn unsigned(up: bool, start: u64, end: u64, step: u64) -> Range {
        let (is_some, distance, by) = if up {
            (start < end, end.wrapping_sub(start), step)
        } else {
            (start > end, start.wrapping_sub(end), step.wrapping_neg())
        };
        let count = if is_some { (distance - 1) / by + 1 } else { 0 };
        Range { start, step, count, end }
    }

    /// What the variable is in an iteration, or behind the last one.
    pub(crate) fn at(self, iteration: u64) -> u64 {
        if iteration == self.count && iteration > 0 {
            return self.end;
        }
        self.start.wrapping_add(iteration.wrapping_mul(self.step))
    }
}

/// How many words a loop takes in the record of a region.
pub(crate) const WORDS: usize = 6;

/// A loop as one thread sees it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loop {
    pub(crate) range: Range,
    kind: Kind,
    /// 0 for a static loop whose iterations are dealt out once.
    chunk: u64,
    pub(crate) is_ordered: bool,
    /// How many chunks of a static loop the thread has had.
    trip: u64,
    /// The chunk that it has, in iterations: first and end.
    pub(crate) has: (u64, u64),
}

impl Loop {
    pub(crate) fn new(range: Range, kind: Kind, chunk: u64) -> Loop {
        let least = u64::from(kind != Kind::Static);
        // A larger chunk than the loop is all of it, and cannot overflow.
        Loop { range, kind, chunk: chunk.max(least).min(range.count.max(1)), ..Loop::default() }
    }

    /// Sections are the iterations 1, 2 … of a dynamic loop.
    pub(crate) fn sections(count: u32) -> Loop {
        Loop::new(Range::unsigned(true, 1, u64::from(count) + 1, 1), Kind::Dynamic, 1)
    }

    pub(crate) fn ordered(self) -> Loop {
        Loop { is_ordered: true, ..self }
    }

    pub(crate) fn write(self, words: &[AtomicU64; WORDS]) {
        let kind = self.kind.number() | u64::from(self.is_ordered) << 8;
        let Range { start, step, count, end } = self.range;
        let values = [start, step, count, end, self.chunk, kind];
        words.iter().zip(values).for_each(|(word, value)| word.store(value, Relaxed));
    }

    pub(crate) fn read(words: &[AtomicU64; WORDS]) -> Loop {
        let [start, step, count, end, chunk, kind] = [0, 1, 2, 3, 4, 5].map(|word| words[word].load(Relaxed));
        Loop {
            range: Range { start, step, count, end },
            kind: Kind::from_number(kind & 0xff),
            chunk,
            is_ordered: kind >> 8 != 0,
            ..Loop::default()
        }
    }

    /// The next chunk of a thread: first iteration and end.
    pub(crate) fn next(&mut self, (number, threads): (u32, u32), share: &Share) -> Option<(u64, u64)> {
        let count = self.range.count;
        match self.kind {
            Kind::Static => self.next_static(u64::from(number), u64::from(threads)),
            Kind::Dynamic => {
                // Reading first spares the write when nothing is left.
                if share.next.load(Acquire) >= count {
                    return None;
                }
                let first = share.next.fetch_add(self.chunk, AcqRel);
                (first < count).then(|| (first, (first + self.chunk).min(count)))
            }
            Kind::Guided => {
                let mut first = share.next.load(Acquire);
                loop {
                    if first >= count {
                        return None;
                    }
                    let part = (count - first).div_ceil(u64::from(threads));
                    let end = (first + part.max(self.chunk)).min(count);
                    match share.next.compare_exchange(first, end, AcqRel, Acquire) {
                        Ok(_) => return Some((first, end)),
                        Err(now) => first = now,
                    }
                }
            }
        }
    }

    fn next_static(&mut self, number: u64, threads: u64) -> Option<(u64, u64)> {
        let count = self.range.count;
        let trip = self.trip;
        self.trip += 1;
        if self.chunk == 0 {
            // As compilers deal out iterations themselves: the first threads get one more.
            let (part, rest) = (count / threads, count % threads);
            let first = part * number + number.min(rest);
            let end = first + part + u64::from(number < rest);
            return (trip == 0 && first < end).then_some((first, end));
        }
        let first = (trip * threads + number).checked_mul(self.chunk).filter(|first| *first < count)?;
        Some((first, (first + self.chunk).min(count)))
    }
}
