//! How long a waiting thread stays awake.
//!
//! Waking a halted core costs ten times an exchange of messages with a peer that is awake, so a thread that waits polls while its core
//! has nothing better to do: as long as messages keep coming, and for a while after. It sleeps at once where there are more threads than
//! cores, and soon when it finds that others want its core.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// A thread with a core to spare sleeps after so long without a message: long enough for a peer that computes between its requests, short
/// against what a program notices.
const QUIET: Duration = Duration::from_millis(2);

/// The same where others have been found to want the core: longer than an exchange with a peer that is awake, about as long as waking
/// a halted core takes.
const QUIET_IN_A_CROWD: Duration = Duration::from_micros(60);

/// A thread that polls reads the clock once in as many polls: reading it takes a good part of one.
const POLLS_A_READING: u32 = 8;

/// How often a thread that polls offers its core to others.
const OFFER_EVERY: Duration = Duration::from_micros(50);

/// An offer that takes longer was taken: somebody else ran.
const OFFER_TAKEN: Duration = Duration::from_micros(20);

/// For how long a core is thought to be wanted after an offer was taken.
const CROWD_LASTS: Duration = Duration::from_millis(50);

/// What the threads of a node know of its cores.
#[derive(Debug)]
pub(crate) struct Patience {
    /// So many threads of this node may stay awake, having a core each; none, where the cores of this machine do not suffice for
    /// all that the job has there.
    awake_max: u32,
    crowded_until: Mutex<Option<Instant>>,
}

impl Patience {
    /// Of a node with so many threads of the job's, each of which has a core of its own, or not. A program may start more threads.
    pub(crate) fn new(cores_suffice: bool, threads: u32) -> Patience {
        let awake_max = if cores_suffice { threads } else { 0 };
        Patience { awake_max, crowded_until: Mutex::new(None) }
    }

    /// Whether it pays to stay awake at all.
    pub(crate) fn stays_awake(&self) -> bool {
        self.awake_max > 0
    }

    /// A wait begins, with which so many threads of the node wait.
    pub(crate) fn begin(&self, waiting: u32) -> Vigil<'_> {
        let stays_awake = waiting <= self.awake_max;
        let now = Instant::now();
        let quiet = if stays_awake && self.is_crowded(now) { QUIET_IN_A_CROWD } else { QUIET };
        Vigil { patience: self, stays_awake, heard: now, offered: now, quiet, polls: 0 }
    }

    fn is_crowded(&self, now: Instant) -> bool {
        let mut until = self.crowded_until.lock().unwrap_or_else(PoisonError::into_inner);
        if until.is_some_and(|until| until <= now) {
            *until = None;
        }
        until.is_some()
    }

    fn note_crowd(&self, now: Instant) {
        *self.crowded_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(now + CROWD_LASTS);
    }
}

/// One wait.
#[derive(Debug)]
pub(crate) struct Vigil<'a> {
    patience: &'a Patience,
    /// The thread has a core to stay awake on.
    stays_awake: bool,
    /// When the last message came.
    heard: Instant,
    /// When the core was last offered to others.
    offered: Instant,
    quiet: Duration,
    /// How many polls there have been.
    polls: u32,
}

impl Vigil<'_> {
    /// A message came.
    pub(crate) fn hear(&mut self) {
        self.heard = Instant::now();
    }

    /// Whether to poll again; if not, it is time to sleep.
    pub(crate) fn goes_on(&mut self) -> bool {
        if !self.stays_awake {
            return false;
        }
        self.polls = self.polls.wrapping_add(1);
        if !self.polls.is_multiple_of(POLLS_A_READING) {
            std::hint::spin_loop();
            return true;
        }
        let now = Instant::now();
        if now - self.heard >= self.quiet {
            return false;
        }
        if now - self.offered < OFFER_EVERY {
            std::hint::spin_loop();
            return true;
        }
        rustix::thread::sched_yield();
        self.offered = Instant::now();
        if self.offered - now >= OFFER_TAKEN {
            self.patience.note_crowd(now);
            self.quiet = QUIET_IN_A_CROWD;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_shares_a_core_sleeps_at_once() {
        assert!(!Patience::new(false, 2).begin(1).goes_on());
        let patience = Patience::new(true, 2);
        assert!(patience.begin(1).goes_on() && patience.begin(2).goes_on());
        assert!(!patience.begin(3).goes_on(), "a thread more than there are cores for");
    }

    #[test]
    fn silence_ends_a_vigil_and_a_crowd_makes_it_short() {
        let patience = Patience::new(true, 1);
        let mut vigil = patience.begin(1);
        vigil.heard = Instant::now().checked_sub(QUIET).expect("the clock has run for milliseconds");
        let mut goes_on = || (0..POLLS_A_READING).all(|_| vigil.goes_on());
        assert!(!goes_on());
        vigil.hear();
        assert!((0..POLLS_A_READING).all(|_| vigil.goes_on()));
        patience.note_crowd(Instant::now());
        assert_eq!(patience.begin(1).quiet, QUIET_IN_A_CROWD);
        *patience.crowded_until.lock().unwrap() = Some(Instant::now());
        assert_eq!(patience.begin(1).quiet, QUIET);
    }
}
