//! Where a node's time goes, and what it counts.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hiroba_base::NodeId;
use hiroba_trace::{Counters, NodeStatistics, TimeBreakdown};

use crate::core_share::CoreShare;
use crate::signals::SignalsHeld;
use crate::stalls::StallClock;
use crate::threads::{Place, Threads};
use crate::time_class::TimeClass;

const CLASSES: usize = 6;

macro_rules! tallies {
    (raised here { $($name:ident,)* } known elsewhere { $($elsewhere:ident,)* }) => {
        /// Running counts, raised by any thread.
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
        barriers,
        lock_acquires,
        wakeups,
    }
    known elsewhere {
        swap_bytes,
        messages_sent,
        bytes_sent,
        retransmits,
        datagrams_rejected,
        resident_bytes_max,
    }
}

/// One node's running account.
#[derive(Debug)]
pub(crate) struct Account {
    joined: Mutex<Instant>,
    nanos: [AtomicU64; CLASSES],
    /// Threads that the program has for its work: by `hiroba_run`, else one.
    threads: u32,
    /// Those of them that have nothing to do, since outside `hiroba_run` there is one.
    idle: Mutex<Idle>,
    /// Program threads that are inside the runtime now.
    inside: AtomicU32,
    /// In event mode each thread has a clock for what it loses to faults that it does not see.
    uses_stall_clocks: AtomicBool,
    /// What a fault costs the thread before and after the runtime sees it, in nanoseconds.
    unseen_per_fault: AtomicU64,
    pub(crate) core_share: CoreShare,
    pub(crate) tallies: Tallies,
}

/// When the threads of the team last had nothing to do.
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
            idle: Mutex::new(Idle { since: Some(Instant::now()) }),
            inside: AtomicU32::new(0),
            uses_stall_clocks: AtomicBool::new(false),
            unseen_per_fault: AtomicU64::new(0),
            core_share: CoreShare::default(),
            tallies: Tallies::default(),
        }
    }

    /// A program thread enters the runtime; the time until the guard is dropped belongs to `class`.
    pub(crate) fn enter<'a>(&'a self, threads: &'a Threads, class: TimeClass) -> Inside<'a> {
        self.inside.fetch_add(1, Relaxed);
        if self.uses_stall_clocks.load(Relaxed)
            && let Some(place) = threads.my_place()
        {
            self.settle_stalls(place, None);
        }
        Inside { account: self, threads, class, since: Instant::now() }
    }

    /// All threads of the team work from now on, or all but one have nothing to do.
    pub(crate) fn team_works(&self, works: bool) {
        let _signals = SignalsHeld::hold();
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

    /// Counts a fault, and charges what the runtime does not see of it.
    pub(crate) fn count_fault(&self, class: TimeClass) {
        let writes = class == TimeClass::WriteFault;
        let count = if writes { &self.tallies.write_faults } else { &self.tallies.read_faults };
        count.fetch_add(1, Relaxed);
        self.add(class, Duration::from_nanos(self.unseen_per_fault.load(Relaxed)));
    }

    /// Learns what the kernel's way into and out of a fault costs: `touch` faults after `forbid`, and the median of what its time
    /// exceeds the time charged for it is charged for every fault from now on. Begins the account anew.
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

    /// The node has joined: the account begins.
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

    /// Faults come as events from now on.
    pub(crate) fn expect_fault_events(&self) {
        self.uses_stall_clocks.store(true, Relaxed);
    }

    /// The calling thread has a place now; in event mode it gets a clock there.
    pub(crate) fn begin_stalls(&self, place: &Place) {
        if self.uses_stall_clocks.load(Relaxed) {
            let _signals = SignalsHeld::hold();
            *place.stalls() = StallClock::of_this_thread();
        }
    }

    /// An event says that a thread of the program, if it is known, has faulted.
    pub(crate) fn fault_began(&self, thread: Option<&Place>, class: TimeClass) {
        if let Some(place) = thread {
            self.settle_stalls(place, Some(class));
        }
    }

    /// Its page is there, `served` after the event was read.
    pub(crate) fn fault_served(&self, thread: Option<&Place>, class: TimeClass, served: Duration) {
        let _signals = SignalsHeld::hold();
        match thread.map(Place::stalls).as_deref_mut() {
            Some(Some(clock)) => clock.note_served(served),
            _ => self.add(class, served),
        }
    }

    fn settle_stalls(&self, place: &Place, begun: Option<TimeClass>) {
        // A handler of the program's that faulted here would come back to the clock that this thread has locked.
        let _signals = SignalsHeld::hold();
        if let Some(clock) = place.stalls().as_mut()
            && let Some((class, stalled)) = clock.settle(begun)
        {
            self.add(class, stalled);
        }
    }

    /// Whether the program's own code has a processor, so that serving takes time from it.
    pub(crate) fn is_computing(&self) -> bool {
        self.inside.load(Relaxed) < self.threads
    }

    /// The account as it stands, without what only the launcher is told.
    pub(crate) fn statistics(&self, node: NodeId) -> NodeStatistics {
        let joined = *self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        let wall_s = joined.elapsed().as_secs_f64();
        self.settle_idle();
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
        // Serving may run beside the program on another processor, and what a fault costs outside the runtime is an
        // estimate: together they must not claim more than there was.
        let excess = (time_s.sum() - threads_s).max(0.0);
        time_s.serve = (time_s.serve - excess).max(0.0);
        let claimed = time_s.sum();
        if claimed > threads_s {
            time_s.scale(threads_s / claimed);
        }
        time_s.compute = (threads_s - time_s.sum()).max(0.0); // else a rounding error may show
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

/// A program thread is inside the runtime until this is dropped.
#[derive(Debug)]
pub(crate) struct Inside<'a> {
    account: &'a Account,
    threads: &'a Threads,
    class: TimeClass,
    since: Instant,
}

impl Inside<'_> {
    /// Since when.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.account.add(self.class, self.since.elapsed());
        if self.account.uses_stall_clocks.load(Relaxed)
            && let Some(place) = self.threads.my_place()
        {
            let _signals = SignalsHeld::hold();
            if let Some(clock) = place.stalls().as_mut() {
                clock.restart();
            }
        }
        self.account.inside.fetch_sub(1, Relaxed);
    }
}
