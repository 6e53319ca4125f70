//! The control channel: a `SOCK_SEQPACKET` socket pair between the launcher and each node.
//!
//! ```text
//! launcher                              node
//!    | <----- ToLauncher::Hello, at the door - |   inside hiroba_init
//!    | -- ToNode::Job, descriptors ----------> |
//!    | <------------------- ToLauncher::Join - |
//!    | -- ToNode::Start (all have joined) ---> |   hiroba_init returns
//!    | <------------------ ToLauncher::Leave - |   hiroba_finalize: serves on …
//!    | -- ToNode::Close (all have left) -----> |   … until nobody needs it, and returns
//! ```
//!
//! All processes of a node inherit the *door*, a socket pair that the environment names: also the shell that
//! wraps the program, and the shell's children. So nothing secret ever lies there. The process that joins
//! makes the channel itself and sends one end of it through the door, with its hello. The launcher takes the
//! first hello and closes the door behind it. When that is of its own build, it gives the key and the
//! descriptors of memory and sockets over the channel, whose other end no other process has; else it says of
//! which build it is, and no more (`ToNode::Refused`).
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

/// No control message is longer, in bytes; a longer one is a fault of the sender.
pub const CONTROL_MESSAGE_BYTES_MAX: usize = 192 << 10;

/// No control message bears more descriptors: the kernel's own bound is 253 (`SCM_MAX_FD`).
pub const DESCRIPTORS_A_MESSAGE_MAX: usize = 250;

/// Whoever waits for signs of life looks for them so many times in the time after which silence means death, and counts his looks,
/// not the clock's time: a process that has been stopped for a while itself must not take all others for dead.
pub const LOOKS_UNTIL_DEAD: u32 = 4;

/// Where faults come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FaultSourceChoice {
    /// The best this machine and user may have.
    Automatic,
    /// userfaultfd events, handled by a thread of the runtime.
    Event,
    /// userfaultfd with SIGBUS, handled in the faulting thread.
    Sigbus,
    /// SIGSEGV and mprotect.
    Sigsegv,
}

/// How writes are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WriteTrackingChoice {
    /// `Async` where the kernel has it, else `Fault`.
    Automatic,
    /// The kernel notes written pages and the runtime scans for them (`UFFD_FEATURE_WP_ASYNC`, `PAGEMAP_SCAN`).
    Async,
    /// The first store to a page faults.
    Fault,
}

/// How a job keeps its memory coherent: equal on all nodes, but for the fault source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoherenceChoices {
    /// The coherence protocol, as on the command line.
    pub protocol: String,
    /// How homes move, as on the command line.
    pub home_migration: String,
    /// Whether pages may come before a thread has faulted on them.
    pub prefetch: bool,
    /// The coherence unit of regions that do not choose their own.
    pub page_size: PageSize,
    /// Where faults come from.
    pub fault_source: FaultSourceChoice,
    /// How writes are found.
    pub write_tracking: WriteTrackingChoice,
    /// Whether to look for data races between nodes.
    pub races: bool,
    /// How much memory shared pages may take on a node; all that there is if there is no limit.
    pub memory_limit: Option<MemoryLimit>,
}

/// How much memory shared pages may take on a node, and which of them leave when they take more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLimit {
    /// Frames and twins together.
    pub bytes: u64,
    /// The replacement policy, as on the command line.
    pub replacement: String,
}

/// What carries a job's messages between nodes: equal on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransportChoices {
    /// The fabric.
    pub fabric: FabricKind,
    /// Faults to inflict on its datagrams, if any.
    pub inject: Option<InjectedFaults>,
    /// Messages bear no seal: only in a job in which `hiroba bench` measures what the seal costs, and which
    /// no program of a user's can join.
    pub without_seal: bool,
}

/// Datagram faults that the node's fabric inflicts on itself (`--inject`), for tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InjectedFaults {
    /// Probability that a datagram is lost, 0 to 1.
    pub loss: f64,
    /// Probability that a datagram is held back behind later ones.
    pub reorder: f64,
    /// Probability that a datagram comes twice.
    pub duplicate: f64,
    /// The seed that reproduces the sequence.
    pub seed: u64,
}

/// A job's secret: whoever has it may speak for any node. Made at random by the launcher; it travels on control channels
/// alone, never on a command line, in the environment or in a file.
#[derive(Clone, PartialEq, Eq)]
pub struct JobKey(Secret<JOB_KEY_BYTES>);

/// The length of a job's key.
pub const JOB_KEY_BYTES: usize = 32;

impl JobKey {
    /// A key of these bytes, which the caller has to wipe.
    pub fn new(bytes: &[u8; JOB_KEY_BYTES]) -> JobKey {
        let copy = |place: &mut [u8; JOB_KEY_BYTES]| {
            place.copy_from_slice(bytes);
            Ok::<(), core::convert::Infallible>(())
        };
        let Ok(key) = JobKey::made_by(copy);
        key
    }

    /// A key that `fill` writes where it will stay.
    ///
    /// # Errors
    /// Those of `fill`.
    pub fn made_by<E>(fill: impl FnOnce(&mut [u8; JOB_KEY_BYTES]) -> Result<(), E>) -> Result<JobKey, E> {
        Secret::made_by(fill).map(JobKey)
    }

    /// Its bytes, which should not be copied elsewhere.
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

/// Reads a key byte by byte to where it will stay.
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

/// Which descriptors come with a job's description: the node's socket, the file for its trace, then every node's frames,
/// every node's board and every node's doorbell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptors {
    /// A bound UDP socket, or a TCP socket that listens, where the fabric needs one.
    pub socket: bool,
    /// The file for the node's trace, when the run is traced.
    pub trace: bool,
    /// How many nodes share memory, where the fabric is `shm`: each has frames; a board, of which others read without its
    /// help, and on which they leave things for it; and a doorbell, an eventfd that wakes it.
    pub shared_by: u16,
}

impl Descriptors {
    /// How many they are.
    pub fn count(&self) -> usize {
        usize::from(self.socket) + usize::from(self.trace) + 3 * usize::from(self.shared_by)
    }
}

/// All a node must know to join: the launcher's first message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobDescription {
    /// The launcher's version; a node built from another one refuses to join.
    pub version: String,
    /// The launcher's build, which tells sources of one version apart; the same holds for it.
    pub build: String,
    /// A random number that keeps other jobs' datagrams apart from this one's.
    pub job: u64,
    /// Who the receiver is.
    pub node: NodeId,
    /// The secret that proves that a message is of this job.
    pub key: JobKey,
    /// What comes with this message, and with [`ToNode::Descriptors`] behind it.
    pub descriptors: Descriptors,
    /// Whether addresses are random for processes that the launcher starts for others. Those of nodes are not: they must be
    /// equal. What a node executes after it has joined gets random ones again.
    pub randomised: bool,
    /// Whether the launcher has given this node processors of its own.
    pub bound: bool,
    /// Whether to do what shortens waits at the expense of others: the service thread may run before ordinary threads.
    pub low_latency: bool,
    /// Whether the node's account is to tell of each region what its pages are waited for.
    pub explains: bool,
    /// The machine on which each node runs, by node; equal numbers are one machine.
    pub hosts: Vec<u16>,
    /// How long a peer may be silent before it is taken for dead, in milliseconds; 0 for ever.
    pub dead_after_ms: u64,
    /// Where each node's socket is bound; the length is the number of nodes.
    pub addresses: Vec<SocketAddr>,
    /// Program threads a node.
    pub threads_per_node: u16,
    /// How memory is kept coherent.
    pub coherence: CoherenceChoices,
    /// What carries messages between nodes.
    pub transport: TransportChoices,
}

/// From the launcher to a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToNode {
    /// The node's library is of another build than the launcher, which gives it nothing. It stands first so
    /// that all builds know it by the same number.
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
    /// Every node has left: nobody needs an answer any more.
    Close,
    /// Are you there? Sent between `Start` and `Close`.
    Ping,
    /// How does the account stand? Sent between `Start` and `Close`, where the user wants to watch.
    Sample,
    /// More of the job's descriptors, as many as one message can bear.
    Descriptors,
}

/// From a node to the launcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToLauncher {
    /// The program calls `hiroba_init`; comes through the door, with the launcher's end of a new channel. It
    /// stands first so that all builds know it by the same number.
    Hello {
        /// The version the program's library was built as.
        version: String,
        /// Its build.
        build: String,
    },
    /// The program has called `hiroba_init`.
    Join {
        /// The version the program's library was built as.
        version: String,
        /// Its build.
        build: String,
    },
    /// The node has left the job in good order; its account as JSON (`NodeStatistics`).
    Leave {
        /// The account.
        statistics_json: String,
    },
    /// All threads of the node wait for others, and have done so for a while. Sent again each second while it lasts.
    Waiting(WaitReport),
    /// Two nodes have touched the same bytes without synchronisation, one of them at least by writing.
    Race(RaceReport),
    /// The last word of a node, where data races are looked for: what it has looked at.
    LookedForRaces(RaceAccount),
    /// A sentence for the user; the node goes on.
    Remark {
        /// What the user should know.
        sentence: String,
    },
    /// A thread of the node has touched what it may not, and nobody handles that: the node is about to die of the signal.
    BadAccess(BadAccess),
    /// The node cannot go on: one sentence for the user. It exits with status 125 next.
    Fatal {
        /// What was expected, what came, what to do.
        sentence: String,
    },
    /// The answer to a ping: the node's service thread is at work.
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
        /// What has become of attempts to connect to it, where there is no connection yet.
        why: Option<String>,
    },
}

/// A touch of memory that kills a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadAccess {
    /// SIGBUS, not SIGSEGV.
    pub is_bus_error: bool,
    /// What was touched; `None` where the processor does not say, since no address can be like that.
    pub address: Option<u64>,
    /// The instruction.
    pub site: Option<CodeSite>,
    /// Where that is not in the program's executable: the innermost call from there that led to it.
    pub caller: Option<CodeSite>,
    /// The program went to `address` to execute what is there.
    pub is_jump: bool,
    /// Of shared memory: why it may not be touched.
    pub shared: Option<String>,
}

/// That and for what the threads of a node wait.
///
/// When every node of a job reports twice in a row that nothing has changed, and no message is on its way
/// between them (all that were sent have been received), nobody will ever wake anybody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitReport {
    /// How many waits have begun or ended on this node: two equal numbers mean that nothing has happened in between.
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
    /// Its number in the node, by order of first use of the runtime.
    pub thread: u32,
    /// The call it waits in, as the program would write it: `hiroba_lock(3)`.
    pub call: String,
    /// The lock it waits for, if it is one.
    pub lock: Option<u32>,
    /// Where the program called.
    pub site: Option<CodeSite>,
}

/// Two nodes wrote the same bytes, or one wrote what the other read, in intervals of which neither happened before the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaceReport {
    /// The first of the bytes.
    pub address: u64,
    /// How many bytes in a row both touched.
    pub bytes: u64,
    /// The allocation that holds them, in words.
    pub allocation: String,
    /// Who.
    pub sides: [RaceSide; 2],
}

/// One of the two nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaceSide {
    /// The node.
    pub node: NodeId,
    /// It has read the bytes, not written them.
    pub has_read: bool,
    /// Where it has read them; else the first store of the interval to the page that holds them. Where the processor said.
    pub site: Option<CodeSite>,
    /// The call that ended the interval.
    pub interval_end: Option<CodeSite>,
}

/// What a node has looked at for data races, of the pages that are homed there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaceAccount {
    /// How often an interval of some node changed a page.
    pub writes: u64,
    /// How many loads it was told of, one byte of each.
    pub loads: u64,
    /// How many of both were forgotten, or came too late, before they had been held against all that they may race with.
    pub forgotten: u64,
}

/// Encodes a control message.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_allocvec(message).expect("control messages hold nothing that cannot be encoded")
}

/// The same for a message that holds a key: where it is encoded is wiped in the end, and never grows, which would leave
/// copies behind.
///
/// # Panics
/// When it is longer than a control message may be.
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
