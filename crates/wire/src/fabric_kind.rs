//! The fabrics by name, and what they can do.

use serde::{Deserialize, Serialize};

/// What carries the messages of a job.
///
/// Whoever must treat fabrics differently asks for a capability, or decides for each kind: a new one does not
/// compile until it is decided everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FabricKind {
    /// Datagrams, over a reliable link of Hiroba's own.
    #[serde(rename = "udp")]
    Udp,
    /// A connection between each two nodes.
    #[serde(rename = "tcp")]
    Tcp,
    /// Rings and frames in memory that all nodes share.
    #[serde(rename = "shm")]
    SharedMemory,
}

impl FabricKind {
    /// All of them, the default first.
    pub const ALL: [FabricKind; 3] = [FabricKind::Udp, FabricKind::Tcp, FabricKind::SharedMemory];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            FabricKind::Udp => "udp",
            FabricKind::Tcp => "tcp",
            FabricKind::SharedMemory => "shm",
        }
    }

    /// The fabric of this name.
    pub fn named(name: &str) -> Option<FabricKind> {
        FabricKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether it joins processes of several hosts.
    pub fn crosses_hosts(self) -> bool {
        match self {
            FabricKind::Udp | FabricKind::Tcp => true,
            FabricKind::SharedMemory => false,
        }
    }

    /// Whether nodes can read each other's frames without a message.
    pub fn shares_memory(self) -> bool {
        match self {
            FabricKind::Udp | FabricKind::Tcp => false,
            FabricKind::SharedMemory => true,
        }
    }

    /// Whether what travels is encrypted and authenticated. Where nodes share memory nothing travels.
    pub fn is_sealed(self) -> bool {
        match self {
            FabricKind::Udp | FabricKind::Tcp => true,
            FabricKind::SharedMemory => false,
        }
    }

    /// Whether messages can be lost, doubled and reordered beneath it, so that such faults can be injected.
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
