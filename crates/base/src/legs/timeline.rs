//! The legs of single messages, with the time at which each ended.
//!
//! Means of legs do not show the order of a message's way through two nodes. This log does: while it is on,
//! each stamp is kept with its absolute time. The logs of nodes on one machine have the same clock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::Leg;

/// The stamps that are kept between two calls of [`take`].
const STAMPS_MAX: usize = 1024;

/// The low bits of a stamp's number, which hold the leg.
const LEG_BITS: u32 = 5;

/// How many stamps [`own_cost_ns`] takes.
const OWN_STAMPS: usize = 1000;

static IS_ON: AtomicBool = AtomicBool::new(false);
static CLOCK: OnceLock<fn() -> u64> = OnceLock::new();
static TAKEN: AtomicUsize = AtomicUsize::new(0);
static STAMPS: [AtomicU64; STAMPS_MAX] = [const { AtomicU64::new(0) }; STAMPS_MAX];

/// The end of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// When it ended, in nanoseconds of the clock that [`begin`] was given.
    pub at_ns: u64,
    /// The leg.
    pub leg: Leg,
}

impl Stamp {
    /// Returns the stamp as one number.
    pub fn to_bits(self) -> u64 {
        self.at_ns << LEG_BITS | self.leg as u64
    }

    /// Reads such a number; `None` if it names no leg.
    pub fn from_bits(bits: u64) -> Option<Stamp> {
        let leg = *Leg::ALL.get((bits & ((1 << LEG_BITS) - 1)) as usize)?;
        Some(Stamp { at_ns: bits >> LEG_BITS, leg })
    }
}

/// Begins to log stamps of all threads by a clock, which counts nanoseconds. The first call decides which
/// clock it is.
pub fn begin(clock: fn() -> u64) {
    let _ = CLOCK.set(clock);
    TAKEN.store(0, Relaxed);
    IS_ON.store(true, Relaxed);
}

/// Ends the log.
pub fn end() {
    IS_ON.store(false, Relaxed);
}

#[inline(always)]
pub(super) fn is_on() -> bool {
    IS_ON.load(Relaxed)
}

/// Logs a stamp. Polling in vain belongs to no message and would fill the log.
#[cold]
pub(super) fn note(leg: Leg) {
    let Some(clock) = CLOCK.get() else { return };
    if leg == Leg::Wait {
        return;
    }
    let place = TAKEN.fetch_add(1, Relaxed);
    if let Some(stamp) = STAMPS.get(place) {
        stamp.store(Stamp { at_ns: clock(), leg }.to_bits(), Relaxed);
    }
}

/// Returns the stamps since the last call, in the order of their times; `None` if there were too many. To be
/// called while no other thread takes stamps.
pub fn take() -> Option<Vec<Stamp>> {
    let taken = TAKEN.swap(0, Relaxed);
    let mut stamps: Vec<Stamp> =
        STAMPS.get(..taken)?.iter().filter_map(|stamp| Stamp::from_bits(stamp.load(Relaxed))).collect();
    stamps.sort_by_key(|stamp| stamp.at_ns);
    Some(stamps)
}

/// Returns how long an empty leg seems to last, in nanoseconds: the cost of a stamp. Discards what was
/// logged.
pub fn own_cost_ns() -> u64 {
    let mut apart: Vec<u64> = Vec::with_capacity(OWN_STAMPS);
    while apart.len() < OWN_STAMPS {
        let _ = take();
        (0..STAMPS_MAX.min(100)).for_each(|_| note(Leg::Host));
        let stamps = take().unwrap_or_default();
        apart.extend(stamps.windows(2).map(|pair| pair[1].at_ns - pair[0].at_ns));
    }
    apart.sort_unstable();
    apart[apart.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    static NEXT_NS: AtomicU64 = AtomicU64::new(7_000_000_000_000_000);

    #[test]
    fn stamps_keep_their_order_and_too_many_are_no_log() {
        assert!(Leg::ALL.len() <= 1 << LEG_BITS);
        begin(|| NEXT_NS.fetch_add(25, Relaxed));
        super::super::end(Leg::Seal);
        super::super::end(Leg::Wait);
        super::super::end(Leg::Send);
        let stamps = take().expect("two stamps fit");
        assert_eq!(stamps.iter().map(|stamp| stamp.leg).collect::<Vec<_>>(), [Leg::Seal, Leg::Send]);
        assert_eq!(stamps[1].at_ns - stamps[0].at_ns, 25);
        for stamp in stamps {
            assert_eq!(Stamp::from_bits(stamp.to_bits()), Some(stamp));
        }
        (0..=STAMPS_MAX).for_each(|_| super::super::end(Leg::Link));
        assert_eq!(take(), None);
        assert_eq!(own_cost_ns(), 25);
        end();
        super::super::end(Leg::Seal);
        assert_eq!(take(), Some(Vec::new()));
        assert_eq!(Stamp::from_bits(31), None);
    }
}
