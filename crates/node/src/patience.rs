//! Decides how long a waiting thread polls before it sleeps.
//!
//! Waking a halted core costs ten times a message exchange with a peer that is awake. So a waiting thread
//! polls while its core has nothing better to do: as long as messages keep coming, and for a while after. It
//! sleeps at once where there are more threads than cores, and soon when it finds that other threads want its
//! core.

use std::sync::atomic::{AtomicU64, Ordering};
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

/// A yield that takes longer than this let another thread compute. A thread that polls yields sooner.
const OFFER_USED: Duration = Duration::from_micros(150);

/// Threads that wait yield at every clock reading for this time after one of them has answered another.
const EXCHANGE_LASTS: Duration = Duration::from_millis(1);

/// The knowledge of a node's threads about its cores.
#[derive(Debug)]
pub(crate) struct Patience {
    /// Number of threads of this node that may stay awake, one per core. Zero where the machine has fewer
    /// cores than the job's threads on it.
    awake_max: u32,
    /// Other threads want the cores.
    crowded: Recent,
    /// Other threads compute on the cores.
    computing: Recent,
    /// Threads of this node answer each other.
    exchanging: Recent,
}

/// A state that lasts for some time after it was noted.
#[derive(Debug)]
struct Recent {
    began: Instant,
    lasts: Duration,
    /// When the state ends, in nanoseconds since `began`.
    until_ns: AtomicU64,
}

impl Recent {
    fn new(lasts: Duration) -> Recent {
        Recent { began: Instant::now(), lasts, until_ns: AtomicU64::new(0) }
    }

    fn note(&self, now: Instant) {
        let until = now.saturating_duration_since(self.began) + self.lasts;
        self.until_ns.store(until.as_nanos() as u64, Ordering::Relaxed);
    }

    fn holds(&self, now: Instant) -> bool {
        let until = Duration::from_nanos(self.until_ns.load(Ordering::Relaxed));
        now.saturating_duration_since(self.began) < until
    }
}

impl Patience {
    /// Makes the state of a node with `threads` threads. `cores_suffice` says that each has a core of its
    /// own. A program may start more threads.
    pub(crate) fn new(cores_suffice: bool, threads: u32) -> Patience {
        let awake_max = if cores_suffice { threads } else { 0 };
        Patience {
            awake_max,
            crowded: Recent::new(CROWD_LASTS),
            computing: Recent::new(CROWD_LASTS),
            exchanging: Recent::new(EXCHANGE_LASTS),
        }
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
        let quiet = if stays_awake && self.crowded.holds(now) { QUIET_IN_A_CROWD } else { QUIET };
        self.vigil(stays_awake, now, quiet, self.exchanging.holds(now))
    }

    /// Begins a wait that another thread of this node may end soon if it is awake. If the node has cores to
    /// spare, a core is likely to be free for both during the short wait. Threads that poll leave it again
    /// soon; where others compute, returns `None`, because polling does not pay.
    pub(crate) fn begin_briefly(&self) -> Option<Vigil<'_>> {
        let now = Instant::now();
        let pays = self.stays_awake() && !self.computing.holds(now);
        pays.then(|| self.vigil(true, now, QUIET_IN_A_CROWD, true))
    }

    fn vigil(&self, stays_awake: bool, now: Instant, quiet: Duration, yields_often: bool) -> Vigil<'_> {
        Vigil { patience: self, stays_awake, heard: now, offered: now, quiet, polls: 0, yields_often }
    }

    /// Records that a thread of this node has ended the wait of another one. The next waits yield often,
    /// because the thread that was answered may have no core to answer from.
    pub(crate) fn note_exchange(&self) {
        self.exchanging.note(Instant::now());
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
    yields_often: bool,
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
        if !self.yields_often && now - self.offered < OFFER_EVERY {
            std::hint::spin_loop();
            return true;
        }
        rustix::thread::sched_yield();
        self.offered = Instant::now();
        self.note_offer(self.offered - now);
        true
    }

    /// Records that a yield took this long.
    fn note_offer(&mut self, took: Duration) {
        if took >= OFFER_USED {
            self.patience.computing.note(self.offered);
        }
        // A thread that answers this one takes the core for a moment, and is no crowd.
        let taken = if self.yields_often { OFFER_USED } else { OFFER_TAKEN };
        if took >= taken {
            self.patience.crowded.note(self.offered);
            self.quiet = QUIET_IN_A_CROWD;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn earlier(by: Duration) -> Instant {
        Instant::now().checked_sub(by).expect("the clock has run for milliseconds")
    }

    fn goes_on(vigil: &mut Vigil<'_>) -> bool {
        (0..POLLS_A_READING).all(|_| vigil.goes_on())
    }

    #[test]
    fn who_shares_a_core_sleeps_at_once() {
        assert!(!Patience::new(false, 2).begin(1).goes_on());
        let patience = Patience::new(true, 2);
        assert!(patience.begin(1).goes_on() && patience.begin(2).goes_on());
        assert!(!patience.begin(3).goes_on(), "a thread more than there are cores for");
    }

    #[test]
    fn a_thread_beyond_the_cores_waits_awake_for_its_sibling_unless_others_compute() {
        assert!(Patience::new(false, 2).begin_briefly().is_none());
        let patience = Patience::new(true, 1);
        let mut vigil = patience.begin_briefly().expect("it may wait awake");
        assert!(vigil.goes_on());
        vigil.note_offer(OFFER_TAKEN);
        assert!(patience.begin_briefly().is_some(), "its sibling has polled, or answered it");
        vigil.heard = earlier(QUIET_IN_A_CROWD);
        assert!(!goes_on(&mut vigil));
        vigil.note_offer(OFFER_USED);
        assert!(patience.begin_briefly().is_none());
    }

    #[test]
    fn silence_ends_a_vigil_and_a_crowd_makes_it_short() {
        let patience = Patience::new(true, 1);
        let mut vigil = patience.begin(1);
        vigil.heard = earlier(QUIET);
        assert!(!goes_on(&mut vigil));
        vigil.hear();
        assert!(goes_on(&mut vigil));
        assert_eq!(patience.begin(1).quiet, QUIET);
        vigil.note_offer(OFFER_TAKEN);
        assert_eq!(patience.begin(1).quiet, QUIET_IN_A_CROWD);
    }

    #[test]
    fn threads_that_answer_each_other_yield_often_and_are_no_crowd() {
        let patience = Patience::new(true, 1);
        assert!(!patience.begin(1).yields_often);
        patience.note_exchange();
        let mut vigil = patience.begin(1);
        assert!(vigil.yields_often);
        vigil.note_offer(OFFER_TAKEN);
        assert_eq!(patience.begin(1).quiet, QUIET);
        vigil.heard = earlier(QUIET);
        assert!(!goes_on(&mut vigil), "silence ends it all the same");
    }

    #[test]
    fn a_state_lasts_for_its_time() {
        let recent = Recent::new(CROWD_LASTS);
        let now = Instant::now();
        assert!(!recent.holds(now));
        recent.note(now);
        assert!(recent.holds(now) && !recent.holds(now + CROWD_LASTS));
    }
}
