//! What ports and rights are called: within a node, and between nodes.

use core::fmt;

use hiroba_base::NodeId;
use serde::{Deserialize, Serialize};

/// A port's identity among nodes. Programs never see it: they hold [`Name`]s. It is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortId {
    /// The node that allocated the port.
    pub birth: NodeId,
    /// Its number among the ports of that node.
    pub serial: u64,
}

impl PortId {
    /// The port of the name service, which node 0 has from the beginning.
    pub const NAME_SERVICE: PortId = PortId { birth: NodeId::ZERO, serial: 0 };
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {}.{}", self.birth, self.serial)
    }
}

/// A send-once right as it travels. `hop` counts the nodes that have held it, so that news of it that come by
/// different ways are put in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Once {
    /// The port that the one message goes to.
    pub port: PortId,
    /// Its number among the send-once rights of that port.
    pub serial: u64,
    /// How many nodes have passed it on.
    pub hop: u32,
}

/// What a program of one node calls its right, or its set of ports.
///
/// It means nothing on any other node, and nothing on this one once the right is gone: the upper half counts
/// how often the place in the table was used, so that a stale name never denotes a newer right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(u64);

impl Name {
    /// No name; no right is ever called so.
    pub const NULL: Name = Name(0);

    /// The name of a place in the table in its present use.
    pub(crate) fn new(place: u32, generation: u32) -> Name {
        Name(u64::from(generation) << 32 | u64::from(place))
    }

    pub(crate) fn place(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }

    /// As a number for a foreign language.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// What a foreign language hands back; any number may come.
    pub fn from_bits(bits: u64) -> Name {
        Name(bits)
    }
}

/// A call that has begun; the host chooses the number, and no two calls under way have the same.
pub type Ticket = u64;
