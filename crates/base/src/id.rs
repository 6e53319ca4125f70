//! Identifiers as newtypes.

use core::fmt;

use serde::{Deserialize, Serialize};

/// The maximum number of nodes in a job. Ids and message formats are sized for it.
pub const MAX_NODES: u16 = 4096;

/// A node of the job, `0..nodes`. Node 0 owns standard input and the job's exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u16);

impl NodeId {
    /// Node 0, the barrier manager and owner of standard input.
    pub const ZERO: NodeId = NodeId(0);

    /// Returns the id as an index into per-node tables.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns all nodes of a job of `nodes` nodes, in order.
    pub fn all(nodes: u16) -> impl DoubleEndedIterator<Item = NodeId> + ExactSizeIterator {
        (0..nodes).map(NodeId)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A lock, by the number that the program gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LockId(pub u32);

impl LockId {
    /// Returns the node that knows this lock's tail. It is fixed, so that no node has to ask for it.
    pub fn manager(self, nodes: u16) -> NodeId {
        NodeId((self.0 % u32::from(nodes)) as u16)
    }
}

/// A condition variable, by the number that the program gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CondId(pub u32);

impl CondId {
    /// Returns the node that keeps this condition variable's queue of waiters.
    pub fn manager(self, nodes: u16) -> NodeId {
        NodeId((self.0 % u32::from(nodes)) as u16)
    }
}

/// The sequence number of a node's intervals: 0 before its first, then 1, 2, 3, …
///
/// 64 bits: at one interval per microsecond it lasts half a million years.
pub type IntervalSeq = u64;
