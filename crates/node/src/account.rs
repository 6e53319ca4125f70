//! The node's account: time by class, and counters.

mod crew;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hiroba_base::NodeId;
use hiroba_trace::{Counters, NodeStatistics, TimeBreakdown};

use self::crew::{Change, Crew};
use crate::core_share::CoreShare;
use crate::signals::SignalsDeferred;
use crate::stalls::StallClock;
use crate::threads::{Entry, Place, Threads};
use crate::time_class::TimeClass;

const CLASSES: usize = TimeClass::ALL.len();

macro_rules! tallies {
    (raised here { $($name:ident,)* } known elsewhere { $($elsewhere:ident,)* }) => {
        /// Running counts; any thread may add to them.
        #[derive(Debug, Default)]
        pub(crate) struct Tallies {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Tallies {
            fn reset(&self) {
                $(self.$name.store(0, Relaxed);)*
            }

            fn counters(&self) -> Counters {
                Counters { $($name: self.$name.load(Relaxed),)* $($elsewhere: 0,)* }
            }
        }
    };
}

tallies! {
    raised here {
        read_faults,
        write_faults,
        pages_fetched,
        pages_prefetched,
        twins_made,
        diffs_made,
        diff_bytes,
        early_diffs,
        early_diff_bytes,
        twin_ns,
        diff_ns,
        apply_ns,
        invalidations,
        updates_applied,
        home_migrations,
        evictions,
        pages_saved_ahead,
        pages_brought_ahead,
        pages_brought_in_vain,
        barriers,
        lock_acquires,
        wakeups,
        atomic_sites,
        exclusive_atomics,
        pages_converted,
        exchanges,
        interrupts,
    }
    known elsewhere {
        swap_outs,
        swap_ins,
        swap_bytes,
        pages_in_apart,
        pages_lent,
        pages_borrowed,
        borrowed_bytes,
        pages_fetched_back,
        pages_taken_back,
        messages_sent,
        bytes_sent,
        retransmits,
        datagrams_rejected,
        resident_bytes_max,
        memory_limit_bytes,
    }
}

/// One node's running account.
#[derive(Debug)]
pub(crate) struct Account {
    joined: Mutex<Instant>,
    nanos: [AtomicU64; CLASSES],
    /// Number of the program's working threads: those of `hiroba_run`, otherwise one.
    threads: u32,
    /// In executables: the threads that have said that they are the program's. No other thread counts.
    crew: OnceLock<Crew>,
    /// Number of threads that compute if none is inside the runtime.
    known: AtomicU32,
    /// Idle time of these threads: outside `hiroba_run` all but one are idle.
    idle: Mutex<Idle>,
    /// Number of program threads that are inside the runtime now.
    inside: AtomicU32,
    /// In event mode each thread has a clock that measures the time it loses to faults it does not see.
    uses_stall_clocks: AtomicBool,
    /// Time that a fault costs the thread before and after the runtime sees it, in nanoseconds.
    unseen_per_fault: AtomicU64,
    pub(crate) core_share: CoreShare,
    pub(crate) tallies: Tallies,
}

/// Since when the other threads of the team are idle.
#[derive(Debug)]
struct Idle {
    /// `None` while `hiroba_run` keeps them busy.
    since: Option<Instant>,
}

impl Account {
    pub(crate) fn new(threads: u32) -> Account {
        Account {
            joined: Mutex::new(Instant::now()),
            nanos: Default::default(),
            threads,
            crew: OnceLock::new(),
            known: AtomicU32::new(threads),
            idle: Mutex::new(Idle { since: Some(Instant::now()) }),
            inside: AtomicU32::new(0),
            uses_stall_clocks: AtomicBool::new(false),
            unseen_per_fault: AtomicU64::new(0),
            core_share: CoreShare::default(),
            tallies: Tallies::default(),
        }
    }

    /// Records that a thread enters the runtime. If it counts, the time until the guard is dropped counts as
    /// `class`.
    pub(crate) fn enter<'a>(&'a self, threads: &'a Threads, class: TimeClass) -> Inside<'a> {
        let entry = match self.crew.get() {
            None => Entry::OfSome,
            Some(_) => threads.my_place().map_or(Entry::OfStranger, Place::enter),
        };
        match entry {
            Entry::OfStranger | Entry::Nested => {}
            Entry::OfSome => _ = self.inside.fetch_add(1, Relaxed),
            Entry::OfCrew => {
                self.inside.fetch_add(1, Relaxed);
                self.note(Some(Change::Waits(class)));
            }
        }
        if entry.counts() {
            threads.my_place().into_iter().for_each(|place| self.end_stretch(place));
        }
        Inside { account: self, threads, class, entry, since: Instant::now() }
    }

    /// From now on only threads count that say so ([`begin_thread`](Self::begin_thread)).
    pub(crate) fn expect_crew(&self) {
        self.team_works(true);
        if self.crew.set(Crew::new()).is_ok() {
            self.known.store(0, Relaxed);
        }
    }

    /// The calling thread, whose place this is, counts from now on.
    pub(crate) fn begin_thread(&self, place: &Place) {
        if self.crew.get().is_some() && place.join_crew() {
            self.known.fetch_add(1, Relaxed);
            self.note(Some(Change::Begins));
        }
    }

    /// It counts no longer.
    pub(crate) fn end_thread(&self, place: &Place) {
        if self.crew.get().is_some() && place.leave_crew() {
            self.known.fetch_sub(1, Relaxed);
            self.note(Some(Change::Ends));
        }
    }

    /// The calling thread, whose place this is, waits outside the runtime. A call that it makes meanwhile
    /// counts as the same wait.
    pub(crate) fn begin_wait(&self, place: &Place, class: TimeClass) {
        if self.crew.get().is_some() && place.enter() == Entry::OfCrew {
            self.inside.fetch_add(1, Relaxed);
            self.note(Some(Change::Waits(class)));
            self.end_stretch(place);
        }
    }

    /// It goes on.
    pub(crate) fn end_wait(&self, place: &Place, class: TimeClass) {
        if self.crew.get().is_some() && place.leave() == Entry::OfCrew {
            self.note(Some(Change::GoesOn(class)));
            self.begin_stretch(place);
            self.inside.fetch_sub(1, Relaxed);
        }
    }

    /// The calling thread, whose place this is, has run the program's own code until now.
    fn end_stretch(&self, place: &Place) {
        if self.uses_stall_clocks.load(Relaxed) {
            self.settle_stalls(place, None);
        }
    }

    /// It runs the program's own code from now on.
    fn begin_stretch(&self, place: &Place) {
        if self.uses_stall_clocks.load(Relaxed) {
            let _signals = SignalsDeferred::defer();
            if let Some(clock) = place.stalls().as_mut() {
                clock.restart();
            }
        }
    }

    fn note(&self, change: Option<Change>) {
        if let Some(crew) = self.crew.get() {
            crew.note(change, self.threads, |class, time| self.add(class, time));
        }
    }

    /// Records whether all threads of the team work, or only one of them.
    pub(crate) fn team_works(&self, works: bool) {
        let _signals = SignalsDeferred::defer();
        self.settle_idle();
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).since = (!works).then(Instant::now);
    }

    fn settle_idle(&self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(since) = &mut idle.since {
            self.add(TimeClass::Other, since.elapsed() * (self.threads - 1));
            *since = Instant::now();
        }
    }

    pub(crate) fn add(&self, class: TimeClass, time: Duration) {
        self.nanos[class as usize].fetch_add(time.as_nanos() as u64, Relaxed);
    }

    /// Counts a fault and charges the part of its cost that the runtime does not see.
    pub(crate) fn count_fault(&self, class: TimeClass) {
        let writes = class == TimeClass::WriteFault;
        let count = if writes { &self.tallies.write_faults } else { &self.tallies.read_faults };
        count.fetch_add(1, Relaxed);
        self.add(class, Duration::from_nanos(self.unseen_per_fault.load(Relaxed)));
    }

    /// Measures the cost of entering and leaving a fault in the kernel: calls `forbid`, then `touch`, a
    /// number of times. From then on each fault is charged the median of the time that was not accounted for.
    /// Restarts the account.
    pub(crate) fn calibrate(&self, threads: &Threads, mut forbid: impl FnMut(), mut touch: impl FnMut()) {
        const TOUCHES: usize = 15;
        let mut unseen: Vec<Duration> = (0..TOUCHES)
            .map(|_| {
                forbid();
                drop(self.enter(threads, TimeClass::Other));
                let charged_before = self.charged(TimeClass::ReadFault);
                let began = Instant::now();
                touch();
                let elapsed = began.elapsed();
                drop(self.enter(threads, TimeClass::Other));
                elapsed.saturating_sub(self.charged(TimeClass::ReadFault) - charged_before)
            })
            .collect();
        unseen.sort_unstable();
        self.unseen_per_fault.store(unseen[TOUCHES / 2].as_nanos() as u64, Relaxed);
        self.begin();
    }

    /// Starts the account; called when the node has joined.
    pub(crate) fn begin(&self) {
        self.nanos.iter().for_each(|nanos| nanos.store(0, Relaxed));
        self.tallies.reset();
        self.core_share.begin();
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).since = Some(Instant::now());
        *self.joined.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn charged(&self, class: TimeClass) -> Duration {
        Duration::from_nanos(self.nanos[class as usize].load(Relaxed))
    }

    /// Records that faults arrive as events from now on.
    pub(crate) fn expect_fault_events(&self) {
        self.uses_stall_clocks.store(true, Relaxed);
    }

    /// Gives the calling thread a stall clock at its new place, in event mode.
    pub(crate) fn begin_stalls(&self, place: &Place) {
        if self.uses_stall_clocks.load(Relaxed) {
            let _signals = SignalsDeferred::defer();
            *place.stalls() = StallClock::of_this_thread();
        }
    }

    /// Records that a fault of this thread was reported by an event. `None` if the thread is unknown.
    pub(crate) fn fault_began(&self, thread: Option<&Place>, class: TimeClass) {
        if let Some(place) = thread.filter(|place| self.counts(place)) {
            self.settle_stalls(place, Some(class));
        }
    }

    /// Records that the page of that fault has arrived, `served` after the event was read.
    pub(crate) fn fault_served(&self, thread: Option<&Place>, class: TimeClass, served: Duration) {
        let _signals = SignalsDeferred::defer();
        if thread.is_some_and(|place| !self.counts(place)) {
            return;
        }
        match thread.map(Place::stalls).as_deref_mut() {
            Some(Some(clock)) => clock.note_served(served),
            _ => self.add(class, served),
        }
    }

    /// Returns true if the time of a thread is in the account.
    fn counts(&self, place: &Place) -> bool {
        self.crew.get().is_none() || place.is_of_crew()
    }

    fn settle_stalls(&self, place: &Place, begun: Option<TimeClass>) {
        // A signal handler of the program that faulted here would try to lock the clock that its thread has
        // locked.
        let _signals = SignalsDeferred::defer();
        if let Some(clock) = place.stalls().as_mut()
            && let Some((class, stalled)) = clock.settle(begun)
        {
            self.add(class, stalled);
        }
    }

    /// Returns true if the program's own code uses a processor, so that serving others takes time from it.
    pub(crate) fn is_computing(&self) -> bool {
        self.inside.load(Relaxed) < self.known.load(Relaxed)
    }

    /// Returns the current account without the parts that are only reported at the end.
    pub(crate) fn statistics(&self, node: NodeId) -> NodeStatistics {
        let joined = *self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        let wall_s = joined.elapsed().as_secs_f64();
        self.settle_idle();
        self.note(None);
        let threads_s = wall_s * f64::from(self.threads);
        let seconds = |class: TimeClass| self.nanos[class as usize].load(Relaxed) as f64 / 1e9;
        let mut time_s = TimeBreakdown {
            compute: 0.0,
            read_fault: seconds(TimeClass::ReadFault),
            write_fault: seconds(TimeClass::WriteFault),
            barrier: seconds(TimeClass::Barrier),
            lock: seconds(TimeClass::Lock),
            serve: seconds(TimeClass::Serve),
            other: seconds(TimeClass::Other),
        };
        // Serving may run beside the program on another processor, and the cost of a fault outside the
        // runtime is an estimate. Their sum must not exceed the time that passed.
        let excess = (time_s.sum() - threads_s).max(0.0);
        time_s.serve = (time_s.serve - excess).max(0.0);
        let claimed = time_s.sum();
        if claimed > threads_s {
            time_s.scale(threads_s / claimed);
        }
        time_s.compute = (threads_s - time_s.sum()).max(0.0); // a rounding error could make it negative
        let counters = self.tallies.counters();
        NodeStatistics {
            node,
            wall_s,
            core_share: None,
            shares_cores: false,
            others_share: None,
            time_s,
            counters,
            regions: Vec::new(),
        }
    }
}

/// Marks a thread as inside the runtime until it is dropped.
#[derive(Debug)]
pub(crate) struct Inside<'a> {
    account: &'a Account,
    threads: &'a Threads,
    class: TimeClass,
    entry: Entry,
    since: Instant,
}

impl Inside<'_> {
    /// Returns when the thread entered.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        match self.entry {
            Entry::OfStranger => return,
            Entry::OfSome => self.account.add(self.class, self.since.elapsed()),
            Entry::OfCrew | Entry::Nested => {
                self.threads.my_place().map(Place::leave);
                if self.entry == Entry::Nested {
                    return;
                }
                self.account.note(Some(Change::GoesOn(self.class)));
            }
        }
        self.threads.my_place().into_iter().for_each(|place| self.account.begin_stretch(place));
        self.account.inside.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::Purpose;

    #[test]
    fn in_executables_only_threads_of_the_program_count() {
        let (account, threads) = (Account::new(2), Threads::new());
        assert!(account.is_computing(), "any thread counts");
        account.expect_crew();
        threads.mine(Purpose::Call).expect("a place");
        let place = threads.my_place().expect("a place");
        drop(account.enter(&threads, TimeClass::Lock));
        assert!(!account.is_computing(), "no thread counts yet");
        account.begin_thread(place);
        account.begin_thread(place);
        assert!(account.is_computing());
        let outer = account.enter(&threads, TimeClass::Barrier);
        assert!(!account.is_computing());
        drop(account.enter(&threads, TimeClass::Lock));
        account.begin_wait(place, TimeClass::Lock);
        account.end_wait(place, TimeClass::Lock);
        assert!(!account.is_computing(), "it is still inside");
        drop(outer);
        assert!(account.is_computing());
        account.begin_wait(place, TimeClass::Other);
        drop(account.enter(&threads, TimeClass::Barrier));
        assert!(!account.is_computing(), "it waits outside");
        account.end_wait(place, TimeClass::Other);
        assert!(account.is_computing());
        account.end_thread(place);
        account.end_thread(place);
        assert!(!account.is_computing());
        let time_s = account.statistics(NodeId(0)).time_s;
        assert_eq!(time_s.lock, 0.0, "a stranger, or within another wait: {time_s:?}");
    }
}
