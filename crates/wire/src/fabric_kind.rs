//! The fabrics by name, and their capabilities.

use serde::{Deserialize, Serialize};

/// The fabric that carries the messages of a job.
///
/// Code that must treat fabrics differently asks for a capability, or matches every kind, so that a new one
/// does not compile until each place has decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FabricKind {
    /// Datagrams, over a reliable link of Hiroba's own.
    #[serde(rename = "udp")]
    Udp,
    /// A connection between every two nodes.
    #[serde(rename = "tcp")]
    Tcp,
    /// Rings and frames in memory that all nodes share.
    #[serde(rename = "shm")]
    SharedMemory,
}

/// Files that each node has for its peers if nodes share memory: frames, board, doorbell.
const SHARED_FILES_PER_NODE: u64 = 3;

/// The maximum number of unauthenticated connections that a node on `tcp` has open before it refuses more.
const STRANGERS_DESCRIPTORS: u64 = 64;

/// Open descriptors that a fabric needs, beside one socket per node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// Those that the launcher opens and every node gets.
    pub shared: u64,
    /// Those that each node opens for itself.
    pub own: u64,
}

impl FabricKind {
    /// All fabrics, the default first.
    pub const ALL: [FabricKind; 3] = [FabricKind::Udp, FabricKind::Tcp, FabricKind::SharedMemory];

    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            FabricKind::Udp => "udp",
            FabricKind::Tcp => "tcp",
            FabricKind::SharedMemory => "shm",
        }
    }

    /// Returns the fabric of this name.
    pub fn named(name: &str) -> Option<FabricKind> {
        FabricKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns true if it connects processes of several hosts.
    pub fn crosses_hosts(self) -> bool {
        match self {
            FabricKind::Udp | FabricKind::Tcp => true,
            FabricKind::SharedMemory => false,
        }
    }

    /// Returns true if nodes can read each other's frames without a message.
    pub fn shares_memory(self) -> bool {
        match self {
            FabricKind::Udp | FabricKind::Tcp => false,
            FabricKind::SharedMemory => true,
        }
    }

    /// Returns true if messages are encrypted and authenticated. If nodes share memory, no message leaves the
    /// machine.
    pub fn is_sealed(self) -> bool {
        match self {
            FabricKind::Udp | FabricKind::Tcp => true,
            FabricKind::SharedMemory => false,
        }
    }

    /// Returns the descriptors that a job of `nodes` nodes needs.
    pub fn descriptors(self, nodes: u16) -> Descriptors {
        let nodes = u64::from(nodes);
        match self {
            FabricKind::Udp => Descriptors { shared: 0, own: 0 },
            FabricKind::Tcp => Descriptors { shared: 0, own: nodes + STRANGERS_DESCRIPTORS },
            FabricKind::SharedMemory => Descriptors { shared: SHARED_FILES_PER_NODE * nodes, own: 0 },
        }
    }

    /// Returns true if it uses datagrams, which can be lost, doubled and reordered, so that such faults can
    /// be injected.
    pub fn carries_datagrams(self) -> bool {
        match self {
            FabricKind::Udp => true,
            FabricKind::Tcp | FabricKind::SharedMemory => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fabrics_have_the_names_of_the_command_line() {
        for kind in FabricKind::ALL {
            assert_eq!(FabricKind::named(kind.name()), Some(kind));
        }
        assert_eq!(FabricKind::named("ucx"), None);
    }
}
