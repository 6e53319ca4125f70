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

/// How often a thread that polls offers its core to others.
const OFFER_EVERY: Duration = Duration::from_micros(50);

/// An offer that takes longer was taken: somebody else ran.
const OFFER_TAKEN: Duration = Duration::from_micros(20);

/// For how long a core is thought to be wanted after an offer was taken.
const CROWD_LASTS: Duration = Duration::from_millis(50);

/// What the threads of a node know of its cores.
#[derive(Debug)]
pub(crate) struct Patience {
    /// Every program thread of this machine's part of the job has a core of its own.
    cores_suffice: bool,
    crowded_until: Mutex<Option<Instant>>,
}

impl Patience {
    pub(crate) fn new(cores_suffice: bool) -> Patience {
        Patience { cores_suffice, crowded_until: Mutex::new(None) }
    }

    /// Whether it pays to stay awake at all.
    pub(crate) fn stays_awake(&self) -> bool {
        self.cores_suffice
    }

    /// A wait begins.
    pub(crate) fn begin(&self) -> Vigil<'_> {
        let now = Instant::now();
        let quiet = if self.is_crowded(now) { QUIET_IN_A_CROWD } else { QUIET };
        Vigil { patience: self, heard: now, offered: now, quiet }
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
    /// When the last message came.
    heard: Instant,
    /// When the core was last offered to others.
    offered: Instant,
    quiet: Duration,
}

impl Vigil<'_> {
    /// A message came.
    pub(crate) fn hear(&mut self) {
        self.heard = Instant::now();
    }

    /// Whether to poll again; if not, it is time to sleep.
    pub(crate) fn goes_on(&mut self) -> bool {
        if !self.patience.cores_suffice {
            return false;
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
        assert!(!Patience::new(false).begin().goes_on());
        assert!(Patience::new(true).begin().goes_on());
    }

    #[test]
    fn silence_ends_a_vigil_and_a_crowd_makes_it_short() {
        let patience = Patience::new(true);
        let mut vigil = patience.begin();
        vigil.heard = Instant::now().checked_sub(QUIET).expect("the clock has run for milliseconds");
        assert!(!vigil.goes_on());
        vigil.hear();
        assert!(vigil.goes_on());
        patience.note_crowd(Instant::now());
        assert_eq!(patience.begin().quiet, QUIET_IN_A_CROWD);
        *patience.crowded_until.lock().unwrap() = Some(Instant::now());
        assert_eq!(patience.begin().quiet, QUIET);
    }
}
