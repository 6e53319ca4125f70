//! The control channel: a `SOCK_SEQPACKET` socket pair between the launcher and each node.
//!
//! ```text
//! launcher                              node
//!    | <----- ToLauncher::Hello, at the door - |   inside hiroba_init
//!    | -- ToNode::Job, descriptors ----------> |
//!    | <------------------- ToLauncher::Join - |
//!    | -- ToNode::Start (all have joined) ---> |   hiroba_init returns
//!    | <------------------ ToLauncher::Leave - |   hiroba_finalize: serves …
//!    | -- ToNode::Close (all have left) -----> |   … until no node needs it, and returns
//! ```
//!
//! All processes of a node inherit the *door*, a socket pair that the environment names: also the shell that
//! wraps the program, and the shell's children. So nothing secret goes through it. The process that joins
//! makes the channel itself and sends one end of it through the door, with its hello. The launcher takes the
//! first hello and then closes the door. If the process is of its own build, the launcher gives it the key
//! and the descriptors of memory and sockets over the channel, whose other end no other process has;
//! otherwise it only tells it which build it is (`ToNode::Refused`).
//!
//! End of file on the channel means that the other side is gone: a node whose launcher has died ends.

use core::net::SocketAddr;

use hiroba_base::{CodeSite, NodeId, PageSize};
use serde::de::{DeserializeOwned, Error, SeqAccess, Visitor};
use serde::ser::SerializeTuple;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

use crate::{FabricKind, Secret, WireError};

/// The environment variable that names the door's descriptor to a node.
pub const CONTROL_FD_VARIABLE: &str = "HIROBA_CONTROL_FD";

/// The maximum length of a control message in bytes; a longer one is an error of the sender.
pub const CONTROL_MESSAGE_BYTES_MAX: usize = 192 << 10;

/// The maximum number of descriptors in a control message; the kernel's own limit is 253 (`SCM_MAX_FD`).
pub const DESCRIPTORS_A_MESSAGE_MAX: usize = 250;

/// How many times a process that waits for signs of life looks for them during the silence that counts as
/// death. It counts looks instead of time, since a process that has been stopped itself must not consider all
/// others dead.
pub const LOOKS_UNTIL_DEAD: u32 = 4;

/// How faults are caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FaultSourceChoice {
    /// The best that this machine allows this user.
    Automatic,
    /// userfaultfd events, handled by a thread of the runtime.
    Event,
    /// userfaultfd with SIGBUS, handled in the faulting thread.
    Sigbus,
    /// SIGSEGV and mprotect.
    Sigsegv,
}

/// How writes are detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WriteTrackingChoice {
    /// `Async` if the kernel supports it, else `Fault`.
    Automatic,
    /// The kernel records written pages and the runtime scans for them (`UFFD_FEATURE_WP_ASYNC`,
    /// `PAGEMAP_SCAN`).
    Async,
    /// The first store to a page faults.
    Fault,
}

/// How a job keeps its memory coherent: equal on all nodes, except the fault source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoherenceChoices {
    /// The coherence protocol, as on the command line.
    pub protocol: String,
    /// The protocol of the program's own data, of stacks and of small blocks, if it differs: in jobs of
    /// executables that were not built for Hiroba.
    pub program_protocol: Option<String>,
    /// How homes move, as on the command line.
    pub home_migration: String,
    /// Whether pages may be fetched before a thread has faulted on them.
    pub prefetch: bool,
    /// The coherence unit of regions that do not choose their own.
    pub page_size: PageSize,
    /// How faults are caught.
    pub fault_source: FaultSourceChoice,
    /// How writes are detected.
    pub write_tracking: WriteTrackingChoice,
    /// Whether to look for data races between nodes.
    pub races: bool,
    /// How much memory each node lends to others at most; `None` for nothing.
    pub lend: Option<LendLimit>,
    /// How much memory shared pages may take on a node; `None` for no limit, also if pages cannot leave.
    pub memory_limit: Option<MemoryLimit>,
}

/// How much memory shared pages may take on a node, and which of them are evicted above it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLimit {
    /// The limit for frames and twins together; `None` for the node's share of its machine's memory.
    pub bytes: Option<u64>,
    /// The replacement policy, as on the command line.
    pub replacement: String,
    /// Where evicted pages go that are homed on the node; without it they stay.
    pub swap: Option<SwapPlace>,
}

/// How much memory a node lends at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LendLimit {
    /// A number of bytes.
    Bytes(u64),
    /// A percentage of its memory limit.
    Percent(u8),
}

impl LendLimit {
    /// Returns the number of bytes on a node with this memory limit.
    pub fn bytes_of(self, limit_bytes: u64) -> u64 {
        match self {
            LendLimit::Bytes(bytes) => bytes,
            LendLimit::Percent(percent) => limit_bytes / 100 * u64::from(percent),
        }
    }
}

/// A directory on each node's disk, for a swap file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapPlace {
    /// The absolute path of the directory.
    pub directory: String,
    /// The maximum length of a node's file; `None` for all free space.
    pub bytes_max: Option<u64>,
}

/// How messages travel between a job's nodes: equal on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransportChoices {
    /// The fabric.
    pub fabric: FabricKind,
    /// Faults to inject into its datagrams, if any.
    pub inject: Option<InjectedFaults>,
    /// Messages are not encrypted: only in a job in which `hiroba bench` measures the cost of encryption, and
    /// which no user's program can join.
    pub without_seal: bool,
}

/// Datagram faults that the node's fabric injects (`--inject`), for tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InjectedFaults {
    /// Probability that a datagram is lost, 0 to 1.
    pub loss: f64,
    /// Probability that a datagram is delayed behind later ones.
    pub reorder: f64,
    /// Probability that a datagram is delivered twice.
    pub duplicate: f64,
    /// The seed that reproduces the sequence.
    pub seed: u64,
}

/// A job's secret: a process that has it may speak for any node. The launcher makes it at random; it travels
/// only on control channels, never on a command line, in the environment or in a file.
#[derive(Clone, PartialEq, Eq)]
pub struct JobKey(Secret<JOB_KEY_BYTES>);

/// The length of a job's key.
pub const JOB_KEY_BYTES: usize = 32;

impl JobKey {
    /// Makes a key of these bytes, which the caller has to wipe.
    pub fn new(bytes: &[u8; JOB_KEY_BYTES]) -> JobKey {
        let copy = |place: &mut [u8; JOB_KEY_BYTES]| {
            place.copy_from_slice(bytes);
            Ok::<(), core::convert::Infallible>(())
        };
        let Ok(key) = JobKey::made_by(copy);
        key
    }

    /// Makes a key that `fill` writes in its final place.
    ///
    /// # Errors
    /// Those of `fill`.
    pub fn made_by<E>(fill: impl FnOnce(&mut [u8; JOB_KEY_BYTES]) -> Result<(), E>) -> Result<JobKey, E> {
        Secret::made_by(fill).map(JobKey)
    }

    /// Returns its bytes, which should not be copied elsewhere.
    pub fn expose(&self) -> &[u8; JOB_KEY_BYTES] {
        self.0.expose()
    }
}

impl core::fmt::Debug for JobKey {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str("JobKey(secret)")
    }
}

impl Serialize for JobKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = serializer.serialize_tuple(JOB_KEY_BYTES)?;
        self.expose().iter().try_for_each(|byte| bytes.serialize_element(byte))?;
        bytes.end()
    }
}

impl<'de> Deserialize<'de> for JobKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<JobKey, D::Error> {
        deserializer.deserialize_tuple(JOB_KEY_BYTES, KeyVisitor)
    }
}

/// Reads a key byte by byte into its final place.
struct KeyVisitor;

impl<'de> Visitor<'de> for KeyVisitor {
    type Value = JobKey;

    fn expecting(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(formatter, "{JOB_KEY_BYTES} bytes of a key")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut bytes: A) -> Result<JobKey, A::Error> {
        JobKey::made_by(|place| {
            for (at, byte) in place.iter_mut().enumerate() {
                *byte = bytes.next_element()?.ok_or_else(|| Error::invalid_length(at, &KeyVisitor))?;
            }
            Ok(())
        })
    }
}

/// The descriptors that come with a job's description: the node's socket, the file for its trace, then every
/// node's frames, every node's board and every node's doorbell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptors {
    /// A bound UDP socket, or a listening TCP socket, if the fabric needs one.
    pub socket: bool,
    /// The file for the node's trace, if the run is traced.
    pub trace: bool,
    /// How many nodes share memory, if the fabric is `shm`: each has frames; a board, which others read
    /// without its help and on which they leave entries for it; and a doorbell, an eventfd that wakes it.
    pub shared_by: u16,
}

impl Descriptors {
    /// Returns the number of descriptors.
    pub fn count(&self) -> usize {
        [self.socket, self.trace].into_iter().map(usize::from).sum::<usize>()
            + 3 * usize::from(self.shared_by)
    }
}

/// Everything that a node must know to join: the launcher's first message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobDescription {
    /// The launcher's version; a node of another version refuses to join.
    pub version: String,
    /// The launcher's build, which distinguishes sources of one version; a node of another build refuses to
    /// join.
    pub build: String,
    /// A random number that distinguishes this job's datagrams from those of other jobs.
    pub job: u64,
    /// The receiver.
    pub node: NodeId,
    /// The secret that proves that a message is of this job.
    pub key: JobKey,
    /// The descriptors that come with this message, and with the [`ToNode::Descriptors`] after it.
    pub descriptors: Descriptors,
    /// Whether other processes that the launcher starts have random addresses. Nodes do not, since their
    /// addresses must be equal. A program that a node executes after joining gets random ones again.
    pub randomised: bool,
    /// Whether the launcher has given this node processors of its own.
    pub bound: bool,
    /// Whether to shorten waits at the expense of others: the service thread may run before ordinary threads.
    pub low_latency: bool,
    /// Whether the node's account includes, for each region, what its pages are waited for.
    pub explains: bool,
    /// The machine on which each node runs, by node; equal numbers mean the same machine.
    pub hosts: Vec<u16>,
    /// How long a peer may be silent before it is considered dead, in milliseconds; 0 for any time.
    pub dead_after_ms: u64,
    /// The address of each node's socket; the length is the number of nodes.
    pub addresses: Vec<SocketAddr>,
    /// Program threads on each node.
    pub threads_per_node: u16,
    /// How memory is kept coherent.
    pub coherence: CoherenceChoices,
    /// How messages travel between nodes.
    pub transport: TransportChoices,
}

/// From the launcher to a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToNode {
    /// The node's library is of another build than the launcher, which gives it nothing. This is the first
    /// variant, so that it has the same number in all builds.
    Refused {
        /// The launcher's version.
        version: String,
        /// Its build.
        build: String,
    },
    /// What the node needs to join.
    Job(Box<JobDescription>),
    /// Every node has joined.
    Start,
    /// Every node has left, so none needs an answer any more.
    Close,
    /// Requests a sign of life. Sent between `Start` and `Close`.
    Ping,
    /// Requests the present account. Sent between `Start` and `Close` if the user wants to watch.
    Sample,
    /// More of the job's descriptors, up to the limit of one message.
    Descriptors,
}

/// From a node to the launcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToLauncher {
    /// The program calls `hiroba_init`; comes through the door, with the launcher's end of a new channel.
    /// This is the first variant, so that it has the same number in all builds.
    Hello {
        /// The version of the program's library.
        version: String,
        /// Its build.
        build: String,
    },
    /// The program has called `hiroba_init`.
    Join {
        /// The version of the program's library.
        version: String,
        /// Its build.
        build: String,
    },
    /// The node has left the job properly; carries its account as JSON (`NodeStatistics`).
    Leave {
        /// The account.
        statistics_json: String,
    },
    /// All threads of the node have waited for others for a while. Repeated each second while this lasts.
    Waiting(WaitReport),
    /// Two nodes have touched the same bytes without synchronisation, at least one of them by writing.
    Race(RaceReport),
    /// The last message of a node that has searched for data races: what it has searched.
    LookedForRaces(RaceAccount),
    /// A message for the user; the node continues.
    Remark {
        /// What the user should know.
        sentence: String,
    },
    /// A thread of the node has made an invalid access, and the program handles no such fault: the node is
    /// about to die of the signal.
    BadAccess(BadAccess),
    /// The node cannot continue: one sentence for the user. It then exits with status 125.
    Fatal {
        /// What was expected, what came, what to do.
        sentence: String,
    },
    /// The answer to a ping: the node's service thread works.
    Pong,
    /// The answer to a request for a sample: the node's account so far as JSON (`NodeStatistics`).
    Sample {
        /// The account.
        statistics_json: String,
    },
    /// Another node gives this one no sign of life over the fabric.
    Silent {
        /// The silent one.
        peer: NodeId,
        /// The result of attempts to connect to it, if there is no connection yet.
        why: Option<String>,
    },
}

/// A memory access that kills a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadAccess {
    /// Whether it is SIGBUS instead of SIGSEGV.
    pub is_bus_error: bool,
    /// The address; `None` if the processor does not report it, since it is not canonical.
    pub address: Option<u64>,
    /// The instruction.
    pub site: Option<CodeSite>,
    /// If the instruction is not in the program's executable: the innermost call from there that led to it.
    pub caller: Option<CodeSite>,
    /// Whether the program jumped to `address` to execute it.
    pub is_jump: bool,
    /// For shared memory, the reason why it may not be touched.
    pub shared: Option<String>,
}

/// That the threads of a node wait, and what for.
///
/// When every node of a job reports twice in a row that nothing has changed, and no message is in flight
/// between them (all that were sent have been received), no thread will ever be woken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitReport {
    /// How many waits have begun or ended on this node. Two equal numbers mean that nothing has happened in
    /// between.
    pub generation: u64,
    /// Messages that the node has sent to other nodes since it joined.
    pub messages_sent: u64,
    /// Messages from other nodes that it has handled.
    pub messages_received: u64,
    /// Its threads.
    pub threads: Vec<ThreadWait>,
    /// Locks held by threads of this node: lock and thread number.
    pub locks_held: Vec<(u32, u32)>,
}

/// One waiting thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadWait {
    /// Its number on the node, by order of first use of the runtime.
    pub thread: u32,
    /// The call in which it waits, as in a program: `hiroba_lock(3)`.
    pub call: String,
    /// The lock that it waits for, if it is a lock.
    pub lock: Option<u32>,
    /// The place of the call.
    pub site: Option<CodeSite>,
}

/// A data race: two nodes wrote the same bytes, or one wrote what the other read, in concurrent intervals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaceReport {
    /// The first of the bytes.
    pub address: u64,
    /// How many consecutive bytes both touched.
    pub bytes: u64,
    /// A description of the allocation that contains them.
    pub allocation: String,
    /// The two nodes.
    pub sides: [RaceSide; 2],
}

/// One of the two nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaceSide {
    /// The node.
    pub node: NodeId,
    /// Whether it has read the bytes instead of writing them.
    pub has_read: bool,
    /// The place of the read; of a write, the interval's first store to the page, if the processor reported
    /// it.
    pub site: Option<CodeSite>,
    /// The call that ended the interval.
    pub interval_end: Option<CodeSite>,
}

/// What a node has searched for data races in the pages that are homed there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaceAccount {
    /// How many times an interval of some node changed a page.
    pub writes: u64,
    /// How many loads were reported to it, one byte of each.
    pub loads: u64,
    /// How many of both were forgotten, or arrived too late, before they had been compared with everything
    /// that may race with them.
    pub forgotten: u64,
}

/// Encodes a control message.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_allocvec(message).expect("control messages hold nothing that cannot be encoded")
}

/// Encodes a message with a key: the buffer is wiped in the end, and never grows, which would leave copies
/// behind.
///
/// # Panics
/// If the message is longer than a control message may be.
pub fn encode_secret<T: Serialize>(message: &T) -> Zeroizing<Vec<u8>> {
    let mut room = Zeroizing::new(vec![0; CONTROL_MESSAGE_BYTES_MAX]);
    let length = postcard::to_slice(message, &mut room).expect("a control message within its bound").len();
    room.truncate(length);
    room
}

/// Decodes a control message.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    postcard::from_bytes(bytes).map_err(|reason| WireError::Malformed {
        expected: "control message",
        got_bytes: bytes.len(),
        reason,
    })
}
