//! Where a node's time goes, and what it counts.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hiroba_base::NodeId;
use hiroba_trace::{Counters, NodeStatistics, TimeBreakdown};

/// A class of time that is measured; what is left over is computing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeClass {
    ReadFault,
    WriteFault,
    Barrier,
    Lock,
    Serve,
    Other,
}

const CLASSES: usize = 6;

macro_rules! tallies {
    ($($name:ident,)*) => {
        /// Running counts, raised by any thread.
        #[derive(Debug, Default)]
        pub(crate) struct Tallies {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Tallies {
            fn counters(&self) -> Counters {
                Counters { $($name: self.$name.load(Relaxed),)* ..Counters::default() }
            }
        }
    };
}

tallies! {
    read_faults,
    write_faults,
    pages_fetched,
    pages_prefetched,
    twins_made,
    diffs_made,
    diff_bytes,
    invalidations,
    updates_applied,
    barriers,
    lock_acquires,
}

/// One node's running account.
#[derive(Debug)]
pub(crate) struct Account {
    joined: Instant,
    nanos: [AtomicU64; CLASSES],
    /// Program threads that are inside the runtime now.
    inside: AtomicU32,
    pub(crate) tallies: Tallies,
}

impl Account {
    pub(crate) fn new() -> Account {
        Account {
            joined: Instant::now(),
            nanos: Default::default(),
            inside: AtomicU32::new(0),
            tallies: Tallies::default(),
        }
    }

    /// A program thread enters the runtime; the time until the guard is dropped belongs to `class`.
    pub(crate) fn enter(&self, class: TimeClass) -> Inside<'_> {
        self.inside.fetch_add(1, Relaxed);
        Inside { account: self, class, since: Instant::now() }
    }

    pub(crate) fn add(&self, class: TimeClass, time: Duration) {
        self.nanos[class as usize].fetch_add(time.as_nanos() as u64, Relaxed);
    }

    /// Whether the program's own code has the processor, so that serving takes time from it.
    pub(crate) fn is_computing(&self) -> bool {
        self.inside.load(Relaxed) == 0
    }

    /// The account as it stands.
    pub(crate) fn statistics(&self, node: NodeId) -> NodeStatistics {
        let wall_s = self.joined.elapsed().as_secs_f64();
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
        time_s.compute = (wall_s - time_s.sum()).max(0.0);
        NodeStatistics { node, wall_s, time_s, counters: self.tallies.counters() }
    }
}

/// A program thread is inside the runtime until this is dropped.
#[derive(Debug)]
pub(crate) struct Inside<'a> {
    account: &'a Account,
    class: TimeClass,
    since: Instant,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.account.add(self.class, self.since.elapsed());
        self.account.inside.fetch_sub(1, Relaxed);
    }
}
