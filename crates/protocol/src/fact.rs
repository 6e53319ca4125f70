//! What an engine tells of itself, for whoever keeps a record of the run.

use hiroba_base::{IntervalSeq, LockId, NodeId, PageId, PageSet, VectorTimestamp, VersionVector};
use hiroba_wire::AtomicOutcome;

use crate::Waiter;

/// Something that has taken effect. Facts come among the effects, in the order in which they become true: when those before them
/// have been carried out, and before the threads that they concern are woken.
///
/// A fact about a thread concerns that thread alone; the others concern the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// The thread has the lock. (Waiting for a signal ends in this.)
    Acquired {
        /// The thread.
        waiter: Waiter,
        /// The lock.
        lock: LockId,
        /// How many holds, by anybody, there were before this one.
        turn: u64,
    },
    /// The thread has given the lock up. (Waiting for a signal begins with this.)
    Released {
        /// The thread.
        waiter: Waiter,
        /// The lock.
        lock: LockId,
        /// The number of the hold that ends.
        turn: u64,
    },
    /// The thread has met all others in a collective.
    Met {
        /// The thread.
        waiter: Waiter,
        /// How many collectives there were before.
        epoch: u64,
    },
    /// What the node has written and seen is on its way to another node.
    Published {
        /// The thread that asked for it.
        waiter: Waiter,
        /// To whom.
        to: NodeId,
        /// How many publications this node had sent there before.
        count: u64,
    },
    /// A publication has been absorbed, and with it all earlier ones of that node.
    PublicationSeen {
        /// From whom.
        from: NodeId,
        /// How many that node had sent here before it.
        count: u64,
    },
    /// The thread's operation on an atomic word is done.
    Atomic {
        /// The thread.
        waiter: Waiter,
        /// The page.
        page: PageId,
        /// The word's byte offset in it.
        offset: u32,
        /// How many operations the word's home had carried out on it before.
        turn: u64,
        /// What was found and left.
        outcome: AtomicOutcome,
    },
    /// A copy has come: its frame holds these intervals of other nodes, or more.
    Holds {
        /// The page.
        page: PageId,
        /// Which intervals.
        version: VersionVector,
    },
    /// What an interval of another node changed in a page homed here is in the page's frame.
    Applied {
        /// The page.
        page: PageId,
        /// Whose interval.
        writer: NodeId,
        /// Which.
        seq: IntervalSeq,
        /// The length of the diff; 0 when only the version advances.
        bytes: u32,
    },
    /// From now on the node takes these pages for homed on another node than before, or than their region says.
    Moved {
        /// The pages.
        pages: PageSet,
        /// Their home.
        to: NodeId,
    },
    /// The node has ended an interval.
    Closed {
        /// Its number.
        seq: IntervalSeq,
        /// The pages that it changed.
        pages: PageSet,
    },
    /// What the node's threads do from now on is ordered after these intervals of other nodes, and those before them.
    Seen {
        /// The entries that grew, by ascending node.
        grown: Vec<(NodeId, IntervalSeq)>,
    },
}

impl Fact {
    /// What [`Fact::Seen`] says of two timestamps of the node `me`, if anything grew.
    pub fn seen(me: NodeId, before: &VectorTimestamp, now: &VectorTimestamp) -> Option<Fact> {
        let others = NodeId::all(now.nodes() as u16).filter(|node| *node != me);
        let grown = others.filter(|node| now.get(*node) > before.get(*node));
        let grown: Vec<_> = grown.map(|node| (node, now.get(node))).collect();
        (!grown.is_empty()).then_some(Fact::Seen { grown })
    }
}
