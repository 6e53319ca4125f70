//! The control channel: one inherited `SOCK_SEQPACKET` socket pair between the launcher and each node.
//!
//! ```text
//! launcher                              node
//!    | -- ToNode::Job (queued before exec) --> |   read inside hiroba_init
//!    | <------------------- ToLauncher::Join - |
//!    | -- ToNode::Start (all have joined) ---> |   hiroba_init returns
//!    | <------------------ ToLauncher::Leave - |   hiroba_finalize: serves on …
//!    | -- ToNode::Close (all have left) -----> |   … until nobody needs it, and returns
//! ```
//!
//! End of file on the channel means that the other side is gone: a node whose launcher has died ends.

use core::net::SocketAddr;

use hiroba_base::{NodeId, PageSize};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::WireError;

/// The environment variable that names the control channel's descriptor to a node.
pub const CONTROL_FD_VARIABLE: &str = "HIROBA_CONTROL_FD";

/// No control message is longer, in bytes; a longer one is a fault of the sender.
pub const CONTROL_MESSAGE_BYTES_MAX: usize = 192 << 10;

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

/// All a node must know to join: the launcher's first message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobDescription {
    /// The launcher's version; a node built from another one refuses to join.
    pub version: String,
    /// A random number that keeps other jobs' datagrams apart from this one's.
    pub job: u64,
    /// Who the receiver is.
    pub node: NodeId,
    /// The bound UDP socket that the node inherits.
    pub socket_fd: i32,
    /// Where each node's socket is bound; the length is the number of nodes.
    pub addresses: Vec<SocketAddr>,
    /// Program threads a node.
    pub threads_per_node: u16,
    /// The coherence protocol, as on the command line.
    pub protocol: String,
    /// The fabric, as on the command line.
    pub fabric: String,
    /// The coherence unit.
    pub page_size: PageSize,
    /// Where faults come from.
    pub fault_source: FaultSourceChoice,
    /// Faults to inflict, if any.
    pub inject: Option<InjectedFaults>,
}

/// From the launcher to a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToNode {
    /// What the node needs to join.
    Job(Box<JobDescription>),
    /// Every node has joined.
    Start,
    /// Every node has left: nobody needs an answer any more.
    Close,
}

/// From a node to the launcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToLauncher {
    /// The program has called `hiroba_init`.
    Join {
        /// The version the program's library was built as.
        version: String,
    },
    /// The node has left the job in good order; its account as JSON (`NodeStatistics`).
    Leave {
        /// The account.
        statistics_json: String,
    },
    /// The node cannot go on: one sentence for the user. It exits with status 125 next.
    Fatal {
        /// What was expected, what came, what to do.
        sentence: String,
    },
}

/// Encodes a control message.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_allocvec(message).expect("control messages hold nothing that cannot be encoded")
}

/// Decodes a control message.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    postcard::from_bytes(bytes).map_err(|reason| WireError::Malformed {
        expected: "control message",
        got_bytes: bytes.len(),
        reason,
    })
}
