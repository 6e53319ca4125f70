//! The schedule `profiled` of Sakae, Matsuoka, Sato and Harada (2003): threads time some iterations, exchange
//! their speeds, and get parts of the rest in proportion.
//!
//! Differences from the paper: threads do not wait for each other's speeds. They take iterations to be timed,
//! and more while others still time theirs, from one word, and the last one to post its speed fixes the parts
//! of what is left: it sets [`FIXED`] in the word, which is then behind all iterations. Speeds are kept for
//! the next execution of the loop, which is where they are looked at again, and not between the rounds of one
//! execution. Without an `eval_size`, a thread times iterations until its clock can tell.

use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire};

use crate::shared::{Team, take};
use crate::site::{FIXED, Site};
use crate::weights::Parts;

/// How long a thread times iterations where the user does not say how many, in nanoseconds.
const TIMED_NS: u64 = 50_000;

/// Numbers of iterations, as the user gives them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Numbers {
    pub(crate) count: u64,
    /// 0 for one block each.
    pub(crate) chunk: u64,
    /// 0 where the user does not say.
    pub(crate) evaluated: u64,
    pub(crate) skipped: u64,
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
            Progress::Done => return None,
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
