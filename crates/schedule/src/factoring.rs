//! Chunks that halve from round to round (Hummel, Schonberg and Flynn, 1992): in each round as many equal
//! chunks as there are threads take half of what is left. Weighted, a thread's chunk is in proportion to its
//! speed (Banicescu, Velusamy and Devaprasad, 2003).

use std::sync::atomic::AtomicU64;

use crate::shared::take;

/// Returns the length of a chunk in the round in which an iteration lies, and where the round ends.
fn round_of(first: u64, count: u64, threads: u64, least: u64) -> (u64, u64) {
    let mut begin = 0;
    loop {
        let left = count - begin;
        let chunk = left.div_ceil(2 * threads);
        if chunk <= least {
            return (least, count);
        }
        let end = begin + (chunk * threads).min(left);
        if first < end {
            return (chunk, end);
        }
        begin = end;
    }
}

/// Takes a chunk of at least `least` iterations if there are as many: first and end. `weighted` changes the
/// length of an equal chunk to that of the calling thread's.
pub(crate) fn next(
    next: &AtomicU64,
    (count, threads, least): (u64, u64, u64),
    weighted: impl Fn(u64) -> u64,
) -> Option<(u64, u64)> {
    take(next, count, |first| {
        let (equal, round_end) = round_of(first, count, threads, least);
        let left = round_end - first;
        let own = weighted(equal).max(least).min(left);
        // A rest that is much shorter than a chunk is not worth another claim.
        if left - own < equal / 2 { left } else { own }
    })
}
