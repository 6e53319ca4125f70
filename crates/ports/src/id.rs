//! The identities of ports and rights, within a node and between nodes.

use core::fmt;

use hiroba_base::NodeId;
use serde::{Deserialize, Serialize};

/// A port's identity among nodes. Programs never see it, only [`Name`]s. It is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortId {
    /// The node that allocated the port.
    pub birth: NodeId,
    /// Its number among the ports of that node.
    pub serial: u64,
}

impl PortId {
    /// The port of the name service, which node 0 has from the start.
    pub const NAME_SERVICE: PortId = PortId { birth: NodeId::ZERO, serial: 0 };
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {}.{}", self.birth, self.serial)
    }
}

/// A send-once right as it travels. `hop` counts the nodes that have held it, so that reports about it that
/// take different ways can be ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Once {
    /// The port that receives the one message.
    pub port: PortId,
    /// Its number among the send-once rights of that port.
    pub serial: u64,
    /// The number of nodes that have passed it on.
    pub hop: u32,
}

/// A program's name for a right, or for a set of ports, on one node.
///
/// It means nothing on any other node, and nothing on this one after the right is gone. The upper half counts
/// the uses of the place in the table, so an outdated name never denotes a newer right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(u64);

impl Name {
    /// The null name, which no right ever has.
    pub const NULL: Name = Name(0);

    /// Returns the name of a place in the table in its present use.
    pub(crate) fn new(place: u32, generation: u32) -> Name {
        Name(u64::from(generation) << 32 | u64::from(place))
    }

    pub(crate) fn place(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }

    /// Returns the name as a number, for a foreign language.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns the name of a number from a foreign language. Any number is permitted.
    pub fn from_bits(bits: u64) -> Name {
        Name(bits)
    }
}

/// A call that has begun. The host chooses the number; no two calls under way have the same.
pub type Ticket = u64;
