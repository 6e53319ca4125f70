//! Decides how long a waiting thread polls before it sleeps.
//!
//! Waking a halted core costs ten times a message exchange with a peer that is awake. So a waiting thread
//! polls while its core has nothing better to do: as long as messages keep coming, and for a while after. It
//! sleeps at once where there are more threads than cores, and soon when it finds that other threads want its
//! core.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// A thread with a core of its own sleeps after this time without a message: long enough for a peer that
/// computes between its requests, too short for a program to notice.
const QUIET: Duration = Duration::from_millis(2);

/// The same limit where other threads want the core: longer than an exchange with a peer that is awake, about
/// as long as waking a halted core.
const QUIET_IN_A_CROWD: Duration = Duration::from_micros(60);

/// A polling thread reads the clock once per this many polls, because reading it costs about as much as a
/// poll.
const POLLS_A_READING: u32 = 8;

/// Interval at which a polling thread yields its core.
const OFFER_EVERY: Duration = Duration::from_micros(50);

/// A yield that takes longer than this let another thread run.
const OFFER_TAKEN: Duration = Duration::from_micros(20);

/// A core counts as wanted for this time after such a yield.
const CROWD_LASTS: Duration = Duration::from_millis(50);

/// The knowledge of a node's threads about its cores.
#[derive(Debug)]
pub(crate) struct Patience {
    /// Number of threads of this node that may stay awake, one per core. Zero where the machine has fewer
    /// cores than the job's threads on it.
    awake_max: u32,
    crowded_until: Mutex<Option<Instant>>,
}

impl Patience {
    /// Makes the state of a node with `threads` threads. `cores_suffice` says that each has a core of its
    /// own. A program may start more threads.
    pub(crate) fn new(cores_suffice: bool, threads: u32) -> Patience {
        let awake_max = if cores_suffice { threads } else { 0 };
        Patience { awake_max, crowded_until: Mutex::new(None) }
    }

    /// Returns true if staying awake can pay at all.
    pub(crate) fn stays_awake(&self) -> bool {
        self.awake_max > 0
    }

    /// Returns true if a thread polls when `waiting` threads of the node wait, itself included.
    pub(crate) fn keeps_awake(&self, waiting: u32) -> bool {
        waiting <= self.awake_max
    }

    /// Begins a wait when `waiting` threads of the node wait, itself included.
    pub(crate) fn begin(&self, waiting: u32) -> Vigil<'_> {
        let stays_awake = self.keeps_awake(waiting);
        let now = Instant::now();
        let quiet = if stays_awake && self.is_crowded(now) { QUIET_IN_A_CROWD } else { QUIET };
        Vigil { patience: self, stays_awake, heard: now, offered: now, quiet, polls: 0, is_brief: false }
    }

    /// Begins a wait that another thread of this node may end soon if it is awake. If the node has cores to
    /// spare, a core is likely to be free for both during the short wait. Returns `None` where polling does
    /// not pay.
    pub(crate) fn begin_briefly(&self) -> Option<Vigil<'_>> {
        let now = Instant::now();
        let pays = self.stays_awake() && !self.is_crowded(now);
        let quiet = QUIET_IN_A_CROWD;
        let is_brief = true;
        pays.then_some(Vigil {
            patience: self,
            stays_awake: true,
            heard: now,
            offered: now,
            quiet,
            polls: 0,
            is_brief,
        })
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
    /// True if the thread has a core to stay awake on.
    stays_awake: bool,
    /// When the last message arrived.
    heard: Instant,
    /// When the thread last yielded.
    offered: Instant,
    quiet: Duration,
    /// Number of polls.
    polls: u32,
    /// The awaited thread may be without a core, so this one yields at every clock reading.
    is_brief: bool,
}

impl Vigil<'_> {
    /// Records that a message arrived.
    pub(crate) fn hear(&mut self) {
        self.heard = Instant::now();
    }

    /// Returns true if the thread should poll again, false if it should sleep.
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
        if self.is_brief {
            rustix::thread::sched_yield();
            return true;
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
    fn a_thread_beyond_the_cores_waits_awake_for_its_sibling_alone_and_not_in_a_crowd() {
        assert!(Patience::new(false, 2).begin_briefly().is_none());
        let patience = Patience::new(true, 1);
        let mut vigil = patience.begin_briefly().expect("it may wait awake");
        assert!(vigil.goes_on());
        vigil.heard =
            Instant::now().checked_sub(QUIET_IN_A_CROWD).expect("the clock has run for milliseconds");
        assert!(!(0..POLLS_A_READING).all(|_| vigil.goes_on()));
        patience.note_crowd(Instant::now());
        assert!(patience.begin_briefly().is_none());
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
