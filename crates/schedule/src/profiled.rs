//! The schedule `profiled` of Sakae, Matsuoka, Sato and Harada (2003): threads time some iterations, exchange
//! their speeds, and get parts of the rest in proportion.
//!
//! Differences from the paper: threads do not wait for each other's speeds. They take iterations to be timed,
//! and more while others still time theirs, from one word, and the last one to post its speed fixes the parts
//! of what is left: it sets [`FIXED`] in the word, which is then behind all iterations. In the loop's first
//! execution threads take these parts in pieces, and look at all speeds again with each (`revised.rs`), if
//! they may go back in the loop. The speeds are kept for the next execution, in which a thread has its part
//! at once. Without an `eval_size`, a thread times iterations until its clock can tell.

use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire};

use crate::revised::{Held, Lanes};
use crate::shared::{Team, take};
use crate::site::{FIXED, Site};
use crate::weights::{Parts, TIMED_NS};

/// Numbers of iterations, as the user gives them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Numbers {
    pub(crate) count: u64,
    /// 0 for one block each.
    pub(crate) chunk: u64,
    /// 0 where the user does not say.
    pub(crate) evaluated: u64,
    pub(crate) skipped: u64,
    /// Threads may go back in the loop, so that they may take over parts of others.
    pub(crate) may_go_back: bool,
}

/// How far a thread has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Progress {
    #[default]
    Begun,
    /// It has run the iterations that are not timed.
    Skipped,
    /// It times iterations: how many, since when, and how many it took last.
    Times { iterations: u64, since_ns: u64, size: u64 },
    /// It has posted its speed, and took so many iterations at a time.
    Posted { size: u64 },
    /// It has its part of what lay behind `fixed`, and has had so many rounds of it.
    Parted { fixed: u64, rounds: u64, iterations: u64, since_ns: u64 },
    /// It has pieces of what lay behind `fixed`, in the loop's first execution: the one that it is at, and
    /// how many iterations it has had of all, since when.
    Pieces { fixed: u64, held: Held, iterations: u64, since_ns: u64 },
    /// It has had all.
    Done,
}

/// Iterations in a nanosecond; above 0.
pub(crate) fn speed(iterations: u64, since_ns: u64, now_ns: u64) -> f64 {
    iterations as f64 / now_ns.saturating_sub(since_ns).max(1) as f64
}

/// The chunk that the calling thread takes next: first iteration and end.
pub(crate) fn next(
    numbers: Numbers,
    progress: &mut Progress,
    team: Team,
    next: &AtomicU64,
    (site, plan): (Site, u64),
    now_ns: &impl Fn() -> u64,
) -> Option<(u64, u64)> {
    let thread = team.number as usize;
    loop {
        match *progress {
            Progress::Begun => {
                *progress = Progress::Skipped;
                if numbers.skipped > 0
                    && let Some(chunk) = take(next, numbers.count, |_| numbers.skipped)
                {
                    return Some(chunk);
                }
            }
            Progress::Skipped => {
                let size = numbers.evaluated.max(1);
                match take(next, numbers.count, |_| size) {
                    Some(chunk) => {
                        let (iterations, since_ns) = (chunk.1 - chunk.0, now_ns());
                        *progress = Progress::Times { iterations, since_ns, size };
                        return Some(chunk);
                    }
                    None => *progress = Progress::Posted { size },
                }
            }
            Progress::Times { iterations, since_ns, size } => {
                let now = now_ns();
                if numbers.evaluated == 0
                    && now.saturating_sub(since_ns) < TIMED_NS
                    && let Some(chunk) = take(next, numbers.count, |_| size * 2)
                {
                    let iterations = iterations + chunk.1 - chunk.0;
                    *progress = Progress::Times { iterations, since_ns, size: size * 2 };
                    return Some(chunk);
                }
                if site.post(plan, thread, speed(iterations, since_ns, now)) {
                    next.fetch_or(FIXED, AcqRel);
                }
                *progress = Progress::Posted { size };
            }
            Progress::Posted { size } => {
                let chunk = take(next, numbers.count, |_| size);
                if chunk.is_some() {
                    return chunk;
                }
                let word = next.load(Acquire);
                if word & FIXED == 0 {
                    *progress = Progress::Done;
                } else if Site::evaluates(plan) && numbers.may_go_back {
                    let fixed = word & !FIXED;
                    let (held, since_ns) = (Held::default(), now_ns());
                    *progress = Progress::Pieces { fixed, held, iterations: 0, since_ns };
                } else {
                    let fixed = word & !FIXED;
                    let since_ns = if Site::measures(plan) { now_ns() } else { 0 };
                    *progress = Progress::Parted { fixed, rounds: 0, iterations: 0, since_ns };
                }
            }
            Progress::Parted { fixed, rounds, iterations, since_ns } => {
                let parts = Parts::new(&site.weights(plan));
                let part = part(numbers, &parts, thread, fixed, rounds);
                if let Some((first, end)) = part {
                    let iterations = iterations + end - first;
                    *progress = Progress::Parted { fixed, rounds: rounds + 1, iterations, since_ns };
                    if first < end {
                        return part;
                    }
                } else {
                    if Site::measures(plan) && iterations > 0 {
                        site.say(thread, speed(iterations, since_ns, now_ns()));
                    }
                    *progress = Progress::Done;
                }
            }
            Progress::Pieces { fixed, held, iterations, since_ns } => {
                let own = Own { thread, held, iterations, since_ns };
                match own.next(numbers, fixed, (site, plan), now_ns) {
                    (Some(Own { held, iterations, .. }), chunk) => {
                        *progress = Progress::Pieces { fixed, held, iterations, since_ns };
                        return chunk;
                    }
                    (None, chunk) => {
                        *progress = Progress::Done;
                        return chunk;
                    }
                }
            }
            Progress::Done => return None,
        }
    }
}

/// What a thread has of a loop whose parts are taken in pieces.
struct Own {
    thread: usize,
    held: Held,
    iterations: u64,
    since_ns: u64,
}

impl Own {
    /// The next chunk, and what the thread has then; `None` if nothing may follow.
    fn next(
        mut self,
        numbers: Numbers,
        fixed: u64,
        (site, plan): (Site, u64),
        now_ns: &impl Fn() -> u64,
    ) -> (Option<Own>, Option<(u64, u64)>) {
        let parts = Parts::new(&site.weights(plan));
        // Compilers copy the values of `lastprivate` variables from what the thread with the last iteration
        // has at the end. So this iteration is given out when no others are left, and nothing after it.
        let lanes = Lanes::new((numbers.count - 1, numbers.chunk), fixed, &parts, site.taken());
        loop {
            if let Some((first, end)) = lanes.chunk(&mut self.held) {
                self.iterations += end - first;
                return (Some(self), Some((first, end)));
            }
            if self.iterations > 0 {
                site.say(self.thread, speed(self.iterations, self.since_ns, now_ns()));
            }
            match lanes.take(self.thread, &site.speeds(plan), self.iterations == 0) {
                Some(held) => self.held = held,
                None => {
                    let is_mine = fixed < numbers.count && site.take_last();
                    return (None, is_mine.then_some((numbers.count - 1, numbers.count)));
                }
            }
        }
    }
}

/// A thread's part of a round, which may be empty; `None` behind the last one.
fn part(numbers: Numbers, parts: &Parts, thread: usize, fixed: u64, rounds: u64) -> Option<(u64, u64)> {
    let rest = numbers.count.saturating_sub(fixed);
    let round = if numbers.chunk == 0 { rest } else { parts.round(numbers.chunk).min(rest) };
    let begin = round.checked_mul(rounds).filter(|begin| *begin < rest)?;
    let length = round.min(rest - begin);
    let (first, end) = parts.block(thread, length);
    Some((fixed + begin + first, fixed + begin + end))
}
