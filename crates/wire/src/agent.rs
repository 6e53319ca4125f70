//! The channel between the launcher and its agent on another host: the standard input and output of `hiroba agent`.
//!
//! ```text
//! launcher                                   agent
//!    | <---------- a line of text: Greeting - |   version and build, before anything else is said
//!    | -- ToAgent::Bind --------------------> |
//!    | <------------------ FromAgent::Bound - |   where its nodes' sockets are
//!    | -- ToAgent::Prepare -----------------> |   the job, with the sockets of all hosts and the key
//!    | <------------------ FromAgent::Ready - |   its nodes wait at the gate
//!    | -- ToAgent::Open --------------------> |   and execute the program
//!    | <------------------- FromAgent::Node - |   what becomes of each …
//!    | -- ToAgent::Finish ------------------> |   all nodes of the job have ended
//! ```
//!
//! All but the greeting travels in frames: the length (32 bits, little-endian), then so many bytes of a message. End of file means that the
//! other side is gone: an agent whose launcher has died ends its nodes.

use core::net::{IpAddr, SocketAddr};

use hiroba_base::NodeId;
use serde::{Deserialize, Serialize};
pub use serde_bytes::ByteBuf;

use crate::FabricKind;
use crate::control::{JobDescription, ToLauncher, ToNode};

/// No frame to an agent is longer, in bytes: it may hold all that an `execve` takes.
pub const TO_AGENT_BYTES_MAX: usize = 8 << 20;

/// No frame from an agent is longer, in bytes: it may hold the longest control message of a node.
pub const FROM_AGENT_BYTES_MAX: usize = 256 << 10;

/// What an agent may have sent of its nodes' output before the launcher has taken it ([`ToAgent::Taken`]), in bytes.
pub const OUTPUT_BYTES_MAX: usize = 256 << 10;

/// A piece of a node's trace is no longer, in bytes.
pub const TRACE_PIECE_BYTES_MAX: usize = 64 << 10;

/// Begins an agent's first line.
const GREETING_WORD: &str = "hiroba-agent";

/// An agent's first line: text, so that every version understands those of all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The agent's version.
    pub version: String,
    /// The agent's build.
    pub build: String,
    /// How many processors its host has for it.
    pub cores: u16,
}

impl core::fmt::Display for Greeting {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(formatter, "{GREETING_WORD} {} {} {}", self.version, self.build, self.cores)
    }
}

impl Greeting {
    /// Reads a line; `None` when it is no greeting (what a login shell prints, say).
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
    /// The job as the agent's first node sees it; the agent fills in what differs from node to node.
    pub job: JobDescription,
    /// How many nodes run here, numbered on from the first.
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
    /// Whether each node gets processors of its own, where there are enough.
    pub bind: bool,
    /// Whether to keep the processors from sleeping deeply; `None`: where it is allowed.
    pub low_latency: Option<bool>,
    /// Whether the nodes record traces, which the agent sends home when it is told to finish.
    pub traced: bool,
}

/// From the launcher to an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToAgent {
    /// Make the endpoints of so many nodes.
    Bind {
        /// What will carry the messages of the job.
        fabric: FabricKind,
        /// The host's address.
        address: IpAddr,
        /// How many nodes.
        nodes: u16,
    },
    /// Start the nodes as far as the gate.
    Prepare(Box<Errand>),
    /// Let the nodes execute the program.
    Open,
    /// Tell all nodes this.
    Tell(ToNode),
    /// Send this signal to all processes of the nodes.
    Signal(i32),
    /// Are you there?
    Ping {
        /// Comes back with the answer.
        number: u64,
    },
    /// So much of the nodes' output has been taken.
    Taken {
        /// How much.
        bytes: u32,
    },
    /// Another node misses this one: tell what its threads do.
    Examine {
        /// Which one.
        node: NodeId,
    },
    /// All nodes of the job have ended: end what they left behind, send the rest of the output, then the traces, and end.
    Finish,
}

/// From an agent to the launcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromAgent {
    /// The endpoints are made.
    Bound {
        /// Where each node's socket is bound.
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
    /// Something has become of a node.
    Node {
        /// Which one.
        node: NodeId,
        /// What.
        event: NodeEvent,
    },
    /// The next piece of a node's trace, once the node has ended.
    Trace {
        /// Which one.
        node: NodeId,
        /// No more than [`TRACE_PIECE_BYTES_MAX`].
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// The answer to a ping. All that the nodes had said before the ping came has been passed on.
    Pong {
        /// The ping's.
        number: u64,
    },
}

/// What becomes of a node, as those see it who started it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum NodeEvent {
    /// It says something.
    Said(ToLauncher),
    /// It has sent bytes that are no message.
    Garbled {
        /// How many.
        bytes: u64,
    },
    /// The process that joined the job has ended; the node's own process, a wrapper, still runs.
    JoinedProcessEnded {
        /// Which process.
        pid: i32,
    },
    /// It answers no pings.
    Silent {
        /// Its process is stopped (SIGSTOP), not merely silent.
        stopped: bool,
        /// Where each of its threads stands, and what it got of the processors meanwhile: lines for the user.
        evidence: Vec<String>,
    },
    /// What its threads do, since the launcher asked: lines for the user.
    Examined {
        /// As for a node that is silent; none where it has ended.
        evidence: Vec<String>,
    },
    /// It has exited.
    Exited {
        /// Its status.
        status: u8,
    },
    /// The kernel has probably killed it for want of memory; that it was killed is told next.
    OutOfMemory {
        /// What tells so, and what to do.
        sentence: String,
    },
    /// A signal has killed it.
    Killed {
        /// Which one.
        signal: i32,
    },
    /// It has written something.
    Output {
        /// To standard error, not standard output.
        to_error: bool,
        /// What.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// It has closed one of its streams.
    OutputEnded {
        /// Standard error, not standard output.
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
