//! What a loop keeps of its threads' speeds from one execution to the next.
//!
//! A *row* holds a number for each thread. A loop that measures for the first time posts speeds in one; other
//! loops read weights from one that stays as it is. The first thread to come to an execution prepares it: it
//! reads the speeds that were measured in the latest one, and decides whether other weights would gain
//! enough. If not, the loop is left alone for one, two, four … executions before it is measured again.

use std::sync::atomic::{
    AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use crate::kind::Kind;
use crate::weights::{self, THRESHOLD};

/// How many executions may be under way at once: a row is not used for another purpose before.
pub const RING: u64 = 64;
/// The longest time between measurements, in executions.
const INTERVAL_MAX: u64 = 64;

/// Words before those for each thread.
const CHANGES: usize = 0;
const INTERVAL: usize = 1;
const COUNTDOWN: usize = 2;
const KNOWN: usize = 3;
const HEADER: usize = 4;

/// What is known of the threads' speeds: the values of a loop's word.
const NOTHING: u64 = 0;
const EQUAL: u64 = 1;
const SPEEDS: u64 = 2;

/// Set in `next` where the parts of what follows are fixed.
pub(crate) const FIXED: u64 = 1 << 63;

/// How a loop is executed, in one word beside the number of its row.
const ROW_MASK: u64 = 0xff;
const EVALUATES: u64 = 1 << 8;
const MEASURES: u64 = 1 << 9;

/// The numbers, if each thread has one.
fn all_of(numbers: impl Iterator<Item = f64>) -> Option<Vec<f64>> {
    let numbers: Vec<f64> = numbers.collect();
    numbers.iter().all(|number| *number > 0.0).then_some(numbers)
}

/// The numbers of a row, if each thread has one.
fn all(numbers: &[AtomicU64]) -> Option<Vec<f64>> {
    all_of(numbers.iter().map(|word| f64::from_bits(word.load(Acquire))))
}

/// The words of a loop, zeros at first. All threads of the team share them.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    words: &'a [AtomicU64],
    threads: usize,
}

impl<'a> Site<'a> {
    /// How many words a loop of a team has.
    pub const fn words(threads: u32) -> usize {
        HEADER + threads as usize * (1 + RING as usize) + RING as usize + threads as usize + 1
    }

    /// The loop of a team that has these words.
    pub fn new(words: &'a [AtomicU64], threads: u32) -> Site<'a> {
        assert!(words.len() >= Site::words(threads), "expected as many words as the team needs");
        Site { words, threads: threads as usize }
    }

    /// Where each thread says how fast it was.
    fn measured(self) -> &'a [AtomicU64] {
        &self.words[HEADER..][..self.threads]
    }

    fn row(self, row: u64) -> &'a [AtomicU64] {
        let (first, length) = (HEADER + self.threads, self.threads + 1);
        &self.words[first + (row % RING) as usize * length..][..length]
    }

    /// What the threads have taken of the parts in the first execution, and of the last iteration: no other
    /// execution has such words, so they are zeros when it begins.
    fn taken_words(self) -> &'a [AtomicU64] {
        let (length, rows) = (self.threads + 1, self.threads * (1 + RING as usize) + RING as usize);
        &self.words[HEADER + rows..][..length]
    }

    /// A word for each thread: see `revised.rs`.
    pub(crate) fn taken(self) -> &'a [AtomicU64] {
        &self.taken_words()[..self.threads]
    }

    /// Takes the last iteration. Returns true if nobody has it.
    pub(crate) fn take_last(self) -> bool {
        self.taken_words()[self.threads].swap(1, AcqRel) == 0
    }

    /// Prepares an execution: how it is done, and the first value of the loop's word `next`. One thread at a
    /// time, before any other one of the team comes to the loop.
    pub fn prepare(self, kind: Kind) -> (u64, u64) {
        let word = |index: usize| self.words[index].load(Relaxed);
        let set = |index: usize, value: u64| self.words[index].store(value, Relaxed);
        let (changes, countdown, measured) = (word(CHANGES), word(COUNTDOWN), all(self.measured()));
        let latest = all(&self.row(changes)[1..]);
        let mut plan = 0;
        let weights = if word(KNOWN) == NOTHING && changes == 0 && kind == Kind::Profiled {
            plan = EVALUATES | MEASURES;
            Some(vec![0.0; self.threads])
        } else if word(KNOWN) == NOTHING {
            // Where some thread came too late to time any iterations, equal parts will tell.
            plan = MEASURES;
            let speeds = if changes > 0 { all_of(self.latest(changes)) } else { None };
            set(KNOWN, if speeds.is_some() { SPEEDS } else { EQUAL });
            Some(speeds.map_or_else(|| vec![1.0; self.threads], |speeds| weights::first(&speeds)))
        } else if countdown > 0 {
            set(COUNTDOWN, countdown - 1);
            plan = if countdown == 1 { MEASURES } else { 0 };
            None
        } else {
            let better =
                measured.zip(latest).filter(|(speeds, latest)| weights::gain(latest, speeds) > THRESHOLD);
            if better.is_some() {
                plan = MEASURES;
            } else {
                let interval = (word(INTERVAL) * 2).clamp(1, INTERVAL_MAX);
                set(INTERVAL, interval);
                set(COUNTDOWN, interval);
            }
            let was_equal = word(KNOWN) == EQUAL;
            better.map(|(speeds, latest)| {
                set(KNOWN, SPEEDS);
                if was_equal { speeds } else { weights::between(&latest, &speeds) }
            })
        };
        if let Some(weights) = &weights {
            set(CHANGES, changes + 1);
            set(INTERVAL, 0);
            self.write(changes + 1, weights);
        }
        if plan & MEASURES != 0 {
            self.measured().iter().for_each(|word| word.store(0, Release));
        }
        plan |= word(CHANGES) % RING;
        let is_fixed = kind == Kind::Profiled && plan & EVALUATES == 0;
        (plan, if is_fixed { FIXED } else { 0 })
    }

    fn write(self, row: u64, numbers: &[f64]) {
        let row = self.row(row);
        row[0].store(0, Release);
        row[1..].iter().zip(numbers).for_each(|(word, number)| word.store(number.to_bits(), Release));
    }

    /// The weights of an execution.
    pub(crate) fn weights(self, plan: u64) -> Vec<f64> {
        match (all(&self.row(plan & ROW_MASK)[1..]), plan & EVALUATES != 0) {
            (Some(speeds), true) => weights::first(&speeds),
            (Some(weights), false) => weights,
            (None, _) => vec![1.0; self.threads],
        }
    }

    /// How fast each thread was: in its part, or, as long as it has not said so, in the iterations that were
    /// timed while the loop ran, which say less.
    fn latest(self, row: u64) -> impl Iterator<Item = f64> {
        let of = |word: &AtomicU64| f64::from_bits(word.load(Acquire));
        let both = self.measured().iter().zip(&self.row(row)[1..]);
        both.map(move |(measured, posted)| Some(of(measured)).filter(|own| *own > 0.0).unwrap_or(of(posted)))
    }

    /// The latest speeds in an execution whose threads have posted theirs.
    pub(crate) fn speeds(self, plan: u64) -> Vec<f64> {
        self.latest(plan & ROW_MASK).collect()
    }

    /// Says how fast a thread was in the iterations that the execution times. Returns true if all threads
    /// have said so.
    pub(crate) fn post(self, plan: u64, thread: usize, speed: f64) -> bool {
        let row = self.row(plan & ROW_MASK);
        row[1 + thread].store(speed.to_bits(), Release);
        row[0].fetch_add(1, AcqRel) + 1 == self.threads as u64
    }

    /// Says how fast a thread was in all that it has had of its part.
    pub(crate) fn say(self, thread: usize, speed: f64) {
        self.measured()[thread].store(speed.to_bits(), Release);
    }

    /// Returns true if threads time iterations while the loop runs, to have parts at all.
    pub(crate) fn evaluates(plan: u64) -> bool {
        plan & EVALUATES != 0
    }

    /// Returns true if threads measure how fast they are in all of their parts.
    pub(crate) fn measures(plan: u64) -> bool {
        plan & MEASURES != 0
    }
}
