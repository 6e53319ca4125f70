use std::ops::AddAssign;

use hiroba_base::{CodeSite, NodeId};
use serde::{Deserialize, Serialize};

/// Seconds of a node's threads, by their activity.
///
/// Between joining and leaving the job every instant of every program thread belongs to exactly one
/// class, so the classes sum to threads × wall time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeBreakdown {
    /// The program's own code (including descheduled time, so a crowded machine shows here).
    pub compute: f64,
    /// Waiting for a page after a load.
    pub read_fault: f64,
    /// Waiting for a page after a store: fetch, twin and the change of protection.
    pub write_fault: f64,
    /// In barriers, from arrival to departure, including diffs.
    pub barrier: f64,
    /// In locks and condition variables: waiting, and diffs at the release.
    pub lock: f64,
    /// Serving other nodes at times when the program's threads would have computed.
    pub serve: f64,
    /// Start-up, allocation, atomics, shutdown.
    pub other: f64,
}

impl TimeBreakdown {
    /// Returns the classes with the names that users see, in the order in which they are shown.
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

    /// Returns the sum of all classes in seconds.
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
        /// The counts of a node between joining and leaving the job.
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
            /// Returns the counters with the names that users see, in the order in which they are shown.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

counters! {
    /// Faults caused by loads.
    read_faults,
    /// Faults caused by stores.
    write_faults,
    /// Whole pages fetched because a thread waited for them.
    pages_fetched,
    /// Whole pages fetched before use.
    pages_prefetched,
    /// Twins made.
    twins_made,
    /// Diffs made, including empty ones.
    diffs_made,
    /// Encoded bytes of the diffs that were sent to homes.
    diff_bytes,
    /// Diffs that were sent before their interval ended (AURC), a part of the diffs made.
    early_diffs,
    /// Bytes of these, a part of the bytes of diffs.
    early_diff_bytes,
    /// Nanoseconds for making twins.
    twin_ns,
    /// Nanoseconds for making diffs.
    diff_ns,
    /// Nanoseconds for applying diffs.
    apply_ns,
    /// Cached pages that a write notice voided.
    invalidations,
    /// Diffs of other nodes applied to pages homed here.
    updates_applied,
    /// Pages whose home moved here.
    home_migrations,
    /// Barriers passed.
    barriers,
    /// Locks acquired, including those by `trylock` and on return from a condition variable.
    lock_acquires,
    /// How many times a thread that slept while waiting for others was woken.
    wakeups,
    /// Atomic instructions of an executable that were replaced at its start.
    atomic_sites,
    /// Atomic instructions, and fences, that were made exclusive in the job.
    exclusive_atomics,
    /// Pages homed here that were put under sequential consistency because of atomic instructions.
    pages_converted,
    /// How many times a thread that waited for a plain store had all nodes publish theirs.
    exchanges,
    /// How many times threads of an executable were interrupted by their processor time.
    interrupts,
    /// Frames given up for lack of memory.
    evictions,
    /// Granules (the kernel's pages) that were written or lent before they had to leave.
    pages_saved_ahead,
    /// Granules that came back from swap or from lenders ahead of a stream.
    pages_brought_ahead,
    /// Those of them that left again before the program could use them.
    pages_brought_in_vain,
    /// Granules that were written to the swap file.
    swap_outs,
    /// Granules that were read back from the swap file.
    swap_ins,
    /// Bytes written to and read from swap.
    swap_bytes,
    /// Granules that came back from swap or from lenders while other threads of the node went on.
    pages_in_apart,
    /// Granules of other nodes that were stored in memory of this one (`--lend`).
    pages_lent,
    /// Granules of this node that were stored in memory of others.
    pages_borrowed,
    /// The length of these, which is less where they are compressed.
    borrowed_bytes,
    /// Granules of this node of which a copy was fetched from there.
    pages_fetched_back,
    /// Granules of other nodes that this node returned because it needed the memory itself.
    pages_taken_back,
    /// Protocol messages passed to the fabric (a batch of diffs is one message).
    messages_sent,
    /// Bytes passed to the network: datagram payloads with headers, acknowledgements and retransmissions.
    bytes_sent,
    /// Datagrams that were sent again because an acknowledgement was missing.
    retransmits,
    /// Datagrams that were dropped because they did not belong to this job or were malformed.
    datagrams_rejected,
    /// The maximum number of bytes that frames and twins took at one time.
    resident_bytes_max,
    /// The memory that frames and twins may take; 0 if there is no limit.
    memory_limit_bytes,
}

/// One node's account.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStatistics {
    /// The node.
    pub node: NodeId,
    /// Seconds from joining to leaving the job.
    pub wall_s: f64,
    /// The share that its threads got of the processor time that they could have used: time running divided
    /// by time running or waiting for a processor. `None` if the kernel does not count it.
    #[serde(default)]
    pub core_share: Option<f64>,
    /// Whether the job has more threads on the node's machine than there are cores, so that they take turns.
    #[serde(default)]
    pub shares_cores: bool,
    /// The part of its processors' time that other processes had. `None` if the kernel does not report it.
    #[serde(default)]
    pub others_share: Option<f64>,
    /// Seconds by activity; their sum is threads × `wall_s`.
    pub time_s: TimeBreakdown,
    /// The counters.
    #[serde(flatten)]
    pub counters: Counters,
    /// The regions that the node waited for most, in descending order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<RegionStatistics>,
}

/// What a node waited for in one region: a collective allocation, or the arena of a node's `hiroba_malloc`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RegionStatistics {
    /// Its address.
    pub address: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// The call that allocated it, if it is known.
    pub site: Option<CodeSite>,
    /// The node whose arena it is.
    pub arena_of: Option<NodeId>,
    /// Seconds that threads waited for its pages.
    pub fault_s: f64,
    /// Seconds that threads took to make and send diffs of its pages.
    pub release_s: f64,
    /// Pages fetched one by one.
    pub fetched_singly: u64,
    /// Pages that came with others, or before they were touched.
    pub fetched_together: u64,
    /// Diffs sent to other homes.
    pub diffs: u64,
    /// Pages lost at the same synchronisation at which this node announced its own stores to them.
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
    /// Program threads on each node.
    pub threads_per_node: u16,
    /// The coherence protocol.
    pub protocol: String,
    /// The fabric.
    pub fabric: String,
    /// The coherence unit in bytes.
    pub page_bytes: u32,
    /// Seconds from the first node's start to the last node's end, measured by the launcher.
    pub wall_s: f64,
    /// One account per node, by ascending node.
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
