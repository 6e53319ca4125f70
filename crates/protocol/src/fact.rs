//! Facts that an engine reports about itself, for a record of the run.

use hiroba_base::{IntervalSeq, LockId, NodeId, PageId, PageSet, VectorTimestamp, VersionVector};
use hiroba_wire::AtomicOutcome;

use crate::Waiter;

/// A fact that has taken effect. Facts are among the effects in the order in which they become true: after
/// the effects before them have been carried out, and before the threads that they concern are woken.
///
/// A fact about a thread concerns that thread alone; the others concern the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// The thread has the lock. (Waiting for a signal ends with this.)
    Acquired {
        /// The thread.
        waiter: Waiter,
        /// The lock.
        lock: LockId,
        /// The number of holds, by any thread, before this one.
        turn: u64,
    },
    /// The thread has given up the lock. (Waiting for a signal begins with this.)
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
        /// The number of earlier collectives.
        epoch: u64,
    },
    /// All that the node has written and seen is on its way to another node.
    Published {
        /// The thread that requested it, or `None` if it precedes a page.
        waiter: Option<Waiter>,
        /// The receiver.
        to: NodeId,
        /// The number of publications that this node had sent there before.
        count: u64,
    },
    /// A publication has been absorbed, and with it all earlier ones of that node.
    PublicationSeen {
        /// The sender.
        from: NodeId,
        /// The number of publications that this node had received from it before.
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
        /// The number of operations that the word's home had carried out on it before.
        turn: u64,
        /// The old and new value of the word.
        outcome: AtomicOutcome,
    },
    /// A copy has come: its frame contains at least these intervals of other nodes.
    Holds {
        /// The page.
        page: PageId,
        /// The intervals.
        version: VersionVector,
    },
    /// A frame of a page homed here contains the changes of another node's interval. An interval of the node
    /// itself: a copy that came without its changes, and is about to be installed, contains them.
    Applied {
        /// The page.
        page: PageId,
        /// The node whose interval it is.
        writer: NodeId,
        /// The number of the interval.
        seq: IntervalSeq,
        /// The length of the diff; 0 when only the version advances.
        bytes: u32,
    },
    /// From now on the node takes `to` for the home of these pages, instead of the earlier home or that of
    /// their region's rule.
    Moved {
        /// The pages.
        pages: PageSet,
        /// Their new home.
        to: NodeId,
    },
    /// From now on the page is under sequential consistency on this node, which has given up its copy.
    Converted {
        /// The page.
        page: PageId,
    },
    /// The node has ended an interval.
    Closed {
        /// Its number.
        seq: IntervalSeq,
        /// The pages that it changed.
        pages: PageSet,
    },
    /// Later actions of the node's threads are ordered after these intervals of other nodes, and those before
    /// them.
    Seen {
        /// The entries that grew, by ascending node.
        grown: Vec<(NodeId, IntervalSeq)>,
    },
}

impl Fact {
    /// Returns the [`Fact::Seen`] for two timestamps of the node `me`, or `None` if nothing grew.
    pub fn seen(me: NodeId, before: &VectorTimestamp, now: &VectorTimestamp) -> Option<Fact> {
        let others = NodeId::all(now.nodes() as u16).filter(|node| *node != me);
        let grown = others.filter(|node| now.get(*node) > before.get(*node));
        let grown: Vec<_> = grown.map(|node| (node, now.get(node))).collect();
        (!grown.is_empty()).then_some(Fact::Seen { grown })
    }
}
