//! The first execution of a `profiled` loop, behind the iterations that threads have timed. Each thread has a
//! *lane*, its part by the speeds that were posted, but takes it in pieces, and its speed is measured again
//! with each. A thread whose lane is empty takes from the end of the lane that would last longest. So one bad
//! measurement costs some pieces, not the balance of the execution; with good ones the parts stay in one
//! block each.
//!
//! A piece is most of what the thread would have of all that is left, by the latest speeds, so pieces shrink
//! towards the end. The first one is short, because nothing confirms the speed yet.

use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire};

use crate::weights::{Parts, TIMED_NS};

/// A thread's first piece is at most this part of an equal share: the speed may be far too high.
const FIRST_PART: f64 = 0.25;

/// A piece is this part of the thread's share of what is left. The rest makes up for speeds that change.
const PART: f64 = 0.75;

/// Units of a lane: first and end.
type Units = (u64, u64);

/// What lies behind the iterations that threads have timed, in lanes: a lane is what a thread has of all
/// rounds, one after the other. All threads compute the same.
#[derive(Debug)]
pub(crate) struct Lanes<'a> {
    fixed: u64,
    parts: &'a Parts,
    /// How many units were taken of each lane, from its front in the upper half and from its end in the
    /// lower. Both only grow, so that a word never has the same value again.
    taken: &'a [AtomicU64],
    /// How many iterations a round has, how many rounds are whole, and how many the last one has.
    round: u64,
    whole: u64,
    last: u64,
    /// How many iterations a unit has, so that 32 bits count them.
    unit: u64,
}

/// A piece that a thread has taken: whose lane it lies in, and which iterations of the lane are left of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    lane: usize,
    left: (u64, u64),
}

impl<'a> Lanes<'a> {
    /// The lanes of `count` iterations, of which those before `fixed` were given out, in blocks or, with a
    /// length of chunks, cyclically.
    pub(crate) fn new(
        (count, chunk): (u64, u64),
        fixed: u64,
        parts: &'a Parts,
        taken: &'a [AtomicU64],
    ) -> Lanes<'a> {
        let rest = count.saturating_sub(fixed);
        let round = if chunk == 0 { rest } else { parts.round(chunk).min(rest) };
        let (whole, last) = (rest / round.max(1), rest % round.max(1));
        let unit = rest.div_ceil(u64::from(u32::MAX)).max(1);
        Lanes { fixed, parts, taken, round, whole, last, unit }
    }

    /// How many iterations a lane has.
    fn length(&self, lane: usize) -> u64 {
        let of = |round: u64| {
            let (first, end) = self.parts.block(lane, round);
            end - first
        };
        self.whole * of(self.round) + of(self.last)
    }

    /// The units of a lane that nobody has taken.
    fn left(&self, lane: usize) -> Units {
        let word = self.taken[lane].load(Acquire);
        (word >> 32, self.length(lane).div_ceil(self.unit) - (word & u64::from(u32::MAX)))
    }

    /// Takes a piece for a thread. `speeds` are the latest of all threads. `None` where nothing is left.
    pub(crate) fn take(&self, thread: usize, speeds: &[f64], is_first: bool) -> Option<Held> {
        loop {
            let left = |lane| {
                let (first, end) = self.left(lane);
                ((end - first) * self.unit) as f64
            };
            let left: Vec<f64> = (0..speeds.len()).map(left).collect();
            let all: f64 = left.iter().sum();
            if all == 0.0 {
                return None;
            }
            let speed = speeds[thread];
            let share = all * speed / speeds.iter().sum::<f64>();
            // A shorter piece than a clock can tell is not worth a claim.
            let mut wanted = (share * PART).max(speed * TIMED_NS as f64);
            if is_first {
                wanted = wanted.min(all / speeds.len() as f64 * FIRST_PART);
            }
            let lane = if left[thread] > 0.0 {
                thread
            } else {
                let lasts = |lane: &usize| left[*lane] / speeds[*lane];
                let longest = (0..speeds.len()).max_by(|one, other| lasts(one).total_cmp(&lasts(other)))?;
                // Both would be done at the same time.
                wanted = wanted.min(left[longest] * speed / (speed + speeds[longest]));
                longest
            };
            let units = (wanted / self.unit as f64).ceil().max(1.0) as u64;
            if let Some(held) = self.claim(lane, units, lane == thread) {
                return Some(held);
            }
        }
    }

    /// Takes units of a lane; `None` if others have taken some meanwhile.
    fn claim(&self, lane: usize, units: u64, is_own: bool) -> Option<Held> {
        let word = self.taken[lane].load(Acquire);
        let (front, back, length) = (word >> 32, word & u64::from(u32::MAX), self.length(lane));
        let all = length.div_ceil(self.unit);
        let units = units.min(all - front - back);
        let (first, new) = if is_own {
            (front, (front + units) << 32 | back)
        } else {
            (all - back - units, front << 32 | (back + units))
        };
        let is_taken = units > 0 && self.taken[lane].compare_exchange(word, new, AcqRel, Acquire).is_ok();
        let left = (first * self.unit, ((first + units) * self.unit).min(length));
        is_taken.then_some(Held { lane, left })
    }

    /// The next chunk of a piece; `None` where the piece is done.
    pub(crate) fn chunk(&self, held: &mut Held) -> Option<(u64, u64)> {
        let Held { lane, left: (first, end) } = *held;
        if first == end {
            return None;
        }
        let (in_round, in_round_end) = self.parts.block(lane, self.round);
        let of_whole = self.whole * (in_round_end - in_round);
        let (begin, offset, length) = if first < of_whole {
            let length = in_round_end - in_round;
            (self.round * (first / length) + in_round, first % length, length)
        } else {
            let (in_last, in_last_end) = self.parts.block(lane, self.last);
            (self.round * self.whole + in_last, first - of_whole, in_last_end - in_last)
        };
        let taken = (end - first).min(length - offset);
        held.left.0 = first + taken;
        let chunk = self.fixed + begin + offset;
        Some((chunk, chunk + taken))
    }
}
