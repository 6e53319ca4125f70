//! The channel between the launcher and its agent on another host: the standard input and output of `hiroba
//! agent`.
//!
//! ```text
//! launcher                                   agent
//!    | <---------- a line of text: Greeting - |   version and build, before all messages
//!    | -- ToAgent::Bind --------------------> |
//!    | <------------------ FromAgent::Bound - |   where its nodes' sockets are
//!    | -- ToAgent::Prepare -----------------> |   the job, with the sockets of all hosts and the key
//!    | <------------------ FromAgent::Ready - |   its nodes wait at the gate
//!    | -- ToAgent::Open --------------------> |   and execute the program
//!    | <------------------- FromAgent::Node - |   events of each node …
//!    | -- ToAgent::Finish ------------------> |   all nodes of the job have ended
//! ```
//!
//! All messages except the greeting travel in frames: the length (32 bits, little-endian), then a message of
//! that length. End of file means that the other side is gone: an agent whose launcher has died ends its
//! nodes.

use core::net::{IpAddr, SocketAddr};

use hiroba_base::NodeId;
use serde::{Deserialize, Serialize};
pub use serde_bytes::ByteBuf;

use crate::FabricKind;
use crate::control::{JobDescription, ToLauncher, ToNode};

/// The maximum length of a frame to an agent, in bytes: it may contain all arguments of an `execve`.
pub const TO_AGENT_BYTES_MAX: usize = 8 << 20;

/// The maximum length of a frame from an agent, in bytes: it may contain the longest control message of a
/// node.
pub const FROM_AGENT_BYTES_MAX: usize = 256 << 10;

/// How much of its nodes' output an agent may have sent before the launcher has taken it
/// ([`ToAgent::Taken`]), in bytes.
pub const OUTPUT_BYTES_MAX: usize = 256 << 10;

/// The maximum length of a piece of a node's trace, in bytes.
pub const TRACE_PIECE_BYTES_MAX: usize = 64 << 10;

/// The first word of an agent's first line.
const GREETING_WORD: &str = "hiroba-agent";

/// An agent's first line: text, so that every version understands those of all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The agent's version.
    pub version: String,
    /// The agent's build.
    pub build: String,
    /// How many processors the agent may use on its host.
    pub cores: u16,
}

impl core::fmt::Display for Greeting {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(formatter, "{GREETING_WORD} {} {} {}", self.version, self.build, self.cores)
    }
}

impl Greeting {
    /// Parses a line; `None` if it is not a greeting (such as the output of a login shell).
    pub fn parse(line: &str) -> Option<Greeting> {
        let mut words = line.trim_end().split(' ');
        if words.next() != Some(GREETING_WORD) {
            return None;
        }
        let (version, build) = (words.next()?.to_owned(), words.next()?.to_owned());
        Some(Greeting { version, build, cores: words.next()?.parse().ok()? })
    }
}

/// What an agent runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Errand {
    /// The job's description for the agent's first node; the agent fills in what differs from node to node.
    pub job: JobDescription,
    /// How many nodes run here, numbered from the first.
    pub nodes: u16,
    /// The program as the user named it.
    #[serde(with = "serde_bytes")]
    pub program: Vec<u8>,
    /// Its arguments.
    pub arguments: Vec<ByteBuf>,
    /// Variables to set in the nodes' environment.
    pub variables: Vec<(ByteBuf, ByteBuf)>,
    /// The directory to run in.
    #[serde(with = "serde_bytes")]
    pub directory: Vec<u8>,
    /// Whether each node gets processors of its own, if there are enough.
    pub bind: bool,
    /// Whether to keep the processors out of deep sleep; `None` does so if it is allowed.
    pub low_latency: Option<bool>,
    /// Whether the nodes record traces, which the agent sends when it is told to finish.
    pub traced: bool,
}

/// From the launcher to an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToAgent {
    /// Make the endpoints of this many nodes.
    Bind {
        /// The fabric of the job.
        fabric: FabricKind,
        /// The host's address.
        address: IpAddr,
        /// How many nodes.
        nodes: u16,
    },
    /// Start the nodes, up to the gate.
    Prepare(Box<Errand>),
    /// Let the nodes execute the program.
    Open,
    /// Send this message to all nodes.
    Tell(ToNode),
    /// Send this signal to all processes of the nodes.
    Signal(i32),
    /// Requests a sign of life.
    Ping {
        /// Returned in the answer.
        number: u64,
    },
    /// The launcher has taken this much of the nodes' output.
    Taken {
        /// The number of bytes.
        bytes: u32,
    },
    /// Another node no longer hears this one: report what its threads do.
    Examine {
        /// The node.
        node: NodeId,
    },
    /// All nodes of the job have ended: end the processes that they left behind, send the rest of the output,
    /// then the traces, and end.
    Finish,
}

/// From an agent to the launcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromAgent {
    /// The endpoints exist.
    Bound {
        /// The address of each node's socket.
        addresses: Vec<SocketAddr>,
    },
    /// All nodes wait at the gate.
    Ready {
        /// Their processes.
        pids: Vec<i32>,
    },
    /// The agent cannot do what it was asked to.
    Refused {
        /// The exit status of the job.
        status: u8,
        /// What was expected, what came, what to do.
        sentence: String,
    },
    /// The program could not be executed.
    NotExecuted {
        /// The error number of `execve`.
        errno: i32,
    },
    /// An event of a node.
    Node {
        /// The node.
        node: NodeId,
        /// The event.
        event: NodeEvent,
    },
    /// The next piece of a node's trace, after the node has ended.
    Trace {
        /// The node.
        node: NodeId,
        /// At most [`TRACE_PIECE_BYTES_MAX`].
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// The answer to a ping. Everything that the nodes had sent before the ping arrived has been passed on.
    Pong {
        /// The ping's number.
        number: u64,
    },
}

/// What happens to a node, as seen by the process that started it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum NodeEvent {
    /// It sends a message.
    Said(ToLauncher),
    /// It has sent bytes that are not a message.
    Garbled {
        /// The number of bytes.
        bytes: u64,
    },
    /// The process that joined the job has ended; the node's own process, a wrapper, still runs.
    JoinedProcessEnded {
        /// The process.
        pid: i32,
    },
    /// It answers no pings.
    Silent {
        /// Whether its process is stopped (SIGSTOP).
        stopped: bool,
        /// Where each of its threads is, and what it got of the processors meanwhile: lines for the user.
        evidence: Vec<String>,
    },
    /// What its threads do, as the launcher requested: lines for the user.
    Examined {
        /// As for a silent node; empty if the node has ended.
        evidence: Vec<String>,
    },
    /// It has exited.
    Exited {
        /// Its status.
        status: u8,
    },
    /// The kernel has probably killed it for lack of memory; the death itself is reported next.
    OutOfMemory {
        /// The evidence, and what to do.
        sentence: String,
    },
    /// A signal has killed it.
    Killed {
        /// The signal.
        signal: i32,
    },
    /// It has written output.
    Output {
        /// Whether it is standard error instead of standard output.
        to_error: bool,
        /// The output.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// It has closed one of its streams.
    OutputEnded {
        /// Whether it is standard error instead of standard output.
        to_error: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_are_told_from_what_shells_print() {
        let greeting = Greeting { version: "0.1.0".to_owned(), build: "00ff".to_owned(), cores: 8 };
        assert_eq!(Greeting::parse(&format!("{greeting}\n")), Some(greeting));
        for line in ["", "Welcome to h1", "hiroba-agent", "hiroba-agent 1 2", "hiroba-agent 1 2 x"] {
            assert_eq!(Greeting::parse(line), None, "{line}");
        }
    }
}
