//! Refuses repeated counts with the window of RFC 4303 §3.4.3, implemented as in RFC 6479.

/// Words of the bitmap. One of them is always being cleared, so the window is a word shorter.
const WORDS: usize = 32;

/// The distance below the latest count up to which older counts are still distinguished. A link has at most
/// 64 datagrams in flight, each with a new count when retransmitted. A datagram that the network delays for
/// longer is taken for lost and sent again with a new count.
pub const WINDOW_COUNTS: u64 = (WORDS as u64 - 1) * 64;

/// The counts of one direction that have been used.
#[derive(Debug, Default)]
pub struct ReplayWindow {
    /// The latest count accepted, plus one; 0 before the first.
    next: u64,
    /// Bit `count % 64` of word `count / 64 % WORDS`.
    seen: [u64; WORDS],
}

impl ReplayWindow {
    /// Returns true if `count` was not accepted before and is not too old to tell.
    pub fn is_new(&self, count: u64) -> bool {
        if count >= self.next {
            // The last count has no successor to record it by.
            return count < u64::MAX;
        }
        self.next - count <= WINDOW_COUNTS && self.seen[word(count)] & bit(count) == 0
    }

    /// Accepts a count that [`is_new`](Self::is_new). Call it only when the datagram has proved genuine.
    pub fn accept(&mut self, count: u64) {
        if count >= self.next {
            let (last, this) = (self.next.saturating_sub(1) / 64, count / 64);
            // The words between contain counts of a window ago.
            for number in last + 1..=this.min(last + WORDS as u64) {
                self.seen[(number % WORDS as u64) as usize] = 0;
            }
            self.next = count + 1;
        }
        self.seen[word(count)] |= bit(count);
    }
}

fn word(count: u64) -> usize {
    (count / 64 % WORDS as u64) as usize
}

fn bit(count: u64) -> u64 {
    1 << (count % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hiroba_base::{RngExt, seeded};
    use std::collections::BTreeSet;

    fn offer(window: &mut ReplayWindow, count: u64) -> bool {
        let new = window.is_new(count);
        if new {
            window.accept(count);
        }
        new
    }

    #[test]
    fn each_count_is_accepted_once() {
        let mut window = ReplayWindow::default();
        for count in [0, 2, 1, 63, 64, 500] {
            assert!(offer(&mut window, count), "{count}");
            assert!(!offer(&mut window, count), "{count} again");
        }
        let latest = 500 + WINDOW_COUNTS;
        assert!(offer(&mut window, latest));
        assert!(!offer(&mut window, 500), "seen, and at the edge");
        assert!(offer(&mut window, 501), "the oldest of the window");
        assert!(!offer(&mut window, 499), "before the window");
        assert!(offer(&mut window, u64::MAX - 1));
        assert!(!offer(&mut window, u64::MAX));
        assert!(!offer(&mut window, latest));
    }

    /// Compares with a set of all counts, over steps of every size.
    #[test]
    fn agrees_with_a_set_of_all_counts() {
        for seed in 0..20 {
            let mut rng = seeded(seed);
            let (mut window, mut seen, mut next) = (ReplayWindow::default(), BTreeSet::new(), 0u64);
            for _ in 0..20_000 {
                let count = match rng.random_range(0..100u32) {
                    0 => next + rng.random_range(0..3 * WINDOW_COUNTS),
                    1..50 => next + rng.random_range(0..3u64),
                    _ => next.saturating_sub(rng.random_range(0..WINDOW_COUNTS * 5 / 4)),
                };
                let expected = count + WINDOW_COUNTS >= next && !seen.contains(&count);
                assert_eq!(offer(&mut window, count), expected, "seed {seed}: {count} when next is {next}");
                if expected {
                    seen.insert(count);
                    next = next.max(count + 1);
                }
            }
        }
    }
}
