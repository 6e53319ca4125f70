use std::ops::AddAssign;

use hiroba_base::{CodeSite, NodeId};
use serde::{Deserialize, Serialize};

/// Seconds of a node's threads, by what the threads were doing.
///
/// Between joining and leaving the job every instant of every program thread belongs to exactly one
/// class, so the classes sum to threads × wall time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeBreakdown {
    /// The program's own code (descheduled time included: a crowded machine shows here).
    pub compute: f64,
    /// Waiting for a page that was loaded from.
    pub read_fault: f64,
    /// Waiting for a page that was stored to: fetch, twin and the change of protection.
    pub write_fault: f64,
    /// In barriers, from arrival (making and sending diffs included) to departure.
    pub barrier: f64,
    /// In locks and condition variables: waiting, and making and sending diffs at release.
    pub lock: f64,
    /// Serving other nodes while the program's threads would have computed.
    pub serve: f64,
    /// Start-up, allocation, atomics, shutdown.
    pub other: f64,
}

impl TimeBreakdown {
    /// The classes with the names users see, in the order they are shown.
    pub fn classes(&self) -> [(&'static str, f64); 7] {
        [
            ("compute", self.compute),
            ("read_fault", self.read_fault),
            ("write_fault", self.write_fault),
            ("barrier", self.barrier),
            ("lock", self.lock),
            ("serve", self.serve),
            ("other", self.other),
        ]
    }

    /// Multiplies all classes by `factor`.
    pub fn scale(&mut self, factor: f64) {
        for class in [
            &mut self.compute,
            &mut self.read_fault,
            &mut self.write_fault,
            &mut self.barrier,
            &mut self.lock,
            &mut self.serve,
            &mut self.other,
        ] {
            *class *= factor;
        }
    }

    /// The sum over all classes, in seconds.
    pub fn sum(&self) -> f64 {
        self.classes().iter().map(|class| class.1).sum()
    }
}

impl AddAssign for TimeBreakdown {
    fn add_assign(&mut self, other: TimeBreakdown) {
        self.compute += other.compute;
        self.read_fault += other.read_fault;
        self.write_fault += other.write_fault;
        self.barrier += other.barrier;
        self.lock += other.lock;
        self.serve += other.serve;
        self.other += other.other;
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a node counted between joining and leaving the job.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl AddAssign for Counters {
            fn add_assign(&mut self, other: Counters) {
                $(self.$name += other.$name;)*
            }
        }

        impl Counters {
            /// The counters with the names users see, in the order they are shown.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

counters! {
    /// Faults taken by loads.
    read_faults,
    /// Faults taken by stores.
    write_faults,
    /// Whole pages brought in because a thread waited for them.
    pages_fetched,
    /// Whole pages brought in ahead of use.
    pages_prefetched,
    /// Pristine copies made.
    twins_made,
    /// Diffs made, those that turned out empty included.
    diffs_made,
    /// Encoded bytes of the diffs that were sent to homes.
    diff_bytes,
    /// Of the diffs made, those that were sent before their interval ended (AURC).
    early_diffs,
    /// Of the bytes of diffs, theirs.
    early_diff_bytes,
    /// Nanoseconds that twins took to make.
    twin_ns,
    /// Nanoseconds that diffs took to make.
    diff_ns,
    /// Nanoseconds that diffs took to apply.
    apply_ns,
    /// Cached pages whose access was taken away by a write notice.
    invalidations,
    /// Diffs of other nodes applied to pages homed here.
    updates_applied,
    /// Pages whose home moved here.
    home_migrations,
    /// Barriers crossed.
    barriers,
    /// Locks acquired, by `trylock` and on return from a condition variable too.
    lock_acquires,
    /// How often a thread that slept, waiting for others, was woken.
    wakeups,
    /// Frames given up for want of memory.
    evictions,
    /// Bytes written to and read from swap.
    swap_bytes,
    /// Protocol messages handed to the fabric (a batch of diffs is one message).
    messages_sent,
    /// Bytes handed to the network: datagram payloads with headers, acknowledgements and retransmissions.
    bytes_sent,
    /// Datagrams sent again because an acknowledgement was missing.
    retransmits,
    /// Datagrams dropped because they were not of this job or not well-formed.
    datagrams_rejected,
    /// The most bytes that frames and twins took at once.
    resident_bytes_max,
}

/// One node's account.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStatistics {
    /// Whose account it is.
    pub node: NodeId,
    /// Seconds from joining to leaving the job.
    pub wall_s: f64,
    /// The share that its threads got of the processor time which they could have used: time running over
    /// time running or waiting for a processor. `None` where the kernel does not count it.
    #[serde(default)]
    pub core_share: Option<f64>,
    /// The job has more threads on the node's machine than that has cores for them, so that they take turns.
    #[serde(default)]
    pub shares_cores: bool,
    /// The part of its processors' time that others than this node had. `None` where the kernel does not
    /// tell.
    #[serde(default)]
    pub others_share: Option<f64>,
    /// Where they went; sums to threads × `wall_s`.
    pub time_s: TimeBreakdown,
    /// What was counted.
    #[serde(flatten)]
    pub counters: Counters,
    /// The regions that the node waited for most, the first ones first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<RegionStatistics>,
}

/// What a node waited for in one region: a collective allocation, or the arena of a node's `hiroba_malloc`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RegionStatistics {
    /// Where it begins.
    pub address: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// The call that allocated it, if that is known.
    pub site: Option<CodeSite>,
    /// Whose arena it is.
    pub arena_of: Option<NodeId>,
    /// Seconds that threads waited for its pages.
    pub fault_s: f64,
    /// Seconds that threads made and sent diffs of its pages.
    pub release_s: f64,
    /// Pages fetched one by one.
    pub fetched_singly: u64,
    /// Pages that came with others, or before they were touched.
    pub fetched_together: u64,
    /// Diffs sent to homes elsewhere.
    pub diffs: u64,
    /// Pages lost at the very synchronisation at which this node told of its own stores to them.
    pub falsely_shared: u64,
    /// Pages lost with a lock's grant after this node had stored to them.
    pub lost_with_locks: u64,
    /// Pages lost otherwise after this node had stored to them.
    pub lost_after_stores: u64,
}

/// The sums over all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Seconds of all threads of all nodes.
    pub time_s: TimeBreakdown,
    /// Sums of the counters (`resident_bytes_max`: the sum of the nodes' maxima).
    #[serde(flatten)]
    pub counters: Counters,
}

/// The account of a whole run: the file that `--stats=json:FILE` writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunStatistics {
    /// The program as it was named on the command line.
    pub program: String,
    /// Nodes of the job.
    pub nodes: u16,
    /// Program threads a node.
    pub threads_per_node: u16,
    /// The coherence protocol.
    pub protocol: String,
    /// The fabric.
    pub fabric: String,
    /// The coherence unit in bytes.
    pub page_bytes: u32,
    /// Seconds from the first node's start to the last node's end, as the launcher saw them.
    pub wall_s: f64,
    /// One account a node, by ascending node.
    pub per_node: Vec<NodeStatistics>,
    /// Their sums.
    pub total: Totals,
}

impl RunStatistics {
    /// Sums `per_node` into `total`.
    pub fn with_totals(mut self) -> RunStatistics {
        self.total = Totals::default();
        for node in &self.per_node {
            self.total.time_s += node.time_s;
            self.total.counters += node.counters;
        }
        self
    }
}
