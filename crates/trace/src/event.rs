//! The records of a traced run: which thread did what, and when.
//!
//! A node writes its records in one order. The records of each thread are in program order, and the node's
//! actions on pages are in the order in which they took effect. Records of different nodes are ordered only
//! by their content: the k-th message that node a sent to b is the k-th that b received from a, a lock's
//! holds are numbered, meetings have epochs. Times are for people and cost models; no check uses them.
//!
//! Three kinds of records answer three questions. **Activities** (`Enter`, `Leave`) and **messages** show
//! where time went. **Ordering facts** and **accesses** are the input for checking consistency, byte by byte.
//! **Page facts** are what the protocol did to each page, so that runs whose single accesses were not
//! recorded can still be checked, page by page.

use hiroba_base::{
    Access, CondId, IntervalSeq, LockId, NodeId, PageId, PageRange, PageSet, PageSize, VectorTimestamp,
    VersionVector,
};

/// A thread of a node, numbered in the order in which the node first saw them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadNumber(pub u32);

impl ThreadNumber {
    /// Not a thread of the program: work of the node for other nodes, or for no particular thread.
    pub const RUNTIME: ThreadNumber = ThreadNumber(u32::MAX);
}

/// A record of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The thread.
    pub thread: ThreadNumber,
    /// Nanoseconds since the trace's start by this node's clock.
    pub at_ns: u64,
    /// The event.
    pub event: Event,
}

/// The kind of a message, an index into the trace's table of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageKind(pub u8);

/// What a thread does from `Enter` to `Leave`. Activities nest (a fault while a handler waits in a call).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Handles a fault.
    Fault {
        /// The granule that was touched.
        page: PageId,
        /// `None` if the machine does not report whether it was a load or a store.
        wanted: Access,
    },
    /// Takes a lock, or tries to.
    Acquire(LockId),
    /// Releases a lock.
    Release(LockId),
    /// Waits for a signal.
    Wait(CondId, LockId),
    /// Wakes waiters: one, or all.
    Signal(CondId),
    /// Meets all nodes in a barrier.
    Barrier,
    /// Meets all nodes for something else: allocation, begin and end of `hiroba_run`, leaving.
    Collective,
    /// Operates on an atomic word.
    Atomic {
        /// Its granule.
        page: PageId,
        /// Its byte in the granule.
        offset: u32,
    },
    /// Makes its writes known to a node.
    Publish(NodeId),
    /// In the allocator, or in a hint.
    Other,
    /// Handles a message from another node.
    Serve {
        /// The sender.
        from: NodeId,
        /// The message.
        kind: MessageKind,
    },
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The thread begins an activity other than computing.
    Enter(Activity),
    /// The thread ends the activity that it began last.
    Leave,

    /// A message was passed to the fabric.
    Sent {
        /// The receiver.
        to: NodeId,
        /// Its kind.
        kind: MessageKind,
        /// Its length.
        bytes: u32,
    },
    /// A message arrived, and is handled next.
    Received {
        /// The sender.
        from: NodeId,
        /// Its kind.
        kind: MessageKind,
        /// Its length.
        bytes: u32,
    },

    /// The thread got a lock. (Waiting for a signal ends in one, and begins with a release.)
    Acquired {
        /// The lock.
        lock: LockId,
        /// How many times it had been acquired before, by any thread.
        turn: u64,
    },
    /// The thread released a lock.
    Released {
        /// The lock.
        lock: LockId,
        /// The turn of the hold that ends.
        turn: u64,
    },
    /// The thread has met all others of all teams.
    Met {
        /// The number of meetings before.
        epoch: u64,
    },
    /// Everything that the thread's node knows now is made known to another node.
    Published {
        /// The other node.
        to: NodeId,
        /// How many publications this node had sent there before.
        count: u64,
    },
    /// Such a publication took effect here.
    PublicationSeen {
        /// The node that sent it.
        from: NodeId,
        /// How many had arrived from there before.
        count: u64,
    },
    /// The thread passes a message to a port: it is about to queue it.
    Posted {
        /// How many messages threads of this node had posted before.
        number: u64,
    },
    /// The thread took such a message off its port.
    Taken {
        /// The node that sent it.
        from: NodeId,
        /// Its number there.
        number: u64,
    },
    /// The thread operated on an atomic word.
    Atomic {
        /// The word's granule.
        page: PageId,
        /// Its byte in the granule.
        offset: u32,
        /// How many operations the word had seen.
        turn: u64,
        /// Its value before.
        previous: u64,
        /// Its value after.
        current: u64,
    },

    /// A load of 1 to 8 bytes within one granule.
    Load {
        /// The granule.
        page: PageId,
        /// The first byte in it.
        offset: u32,
        /// The number of bytes.
        bytes: u8,
        /// The value, little-endian.
        value: u64,
    },
    /// A store of 1 to 8 bytes within one granule.
    Store {
        /// The granule.
        page: PageId,
        /// The first byte in it.
        offset: u32,
        /// The number of bytes.
        bytes: u8,
        /// The value, little-endian.
        value: u64,
    },

    /// Pages exist from now on, the same on every node.
    Region {
        /// Their granules.
        granules: PageRange,
        /// The coherence unit.
        page_size: PageSize,
        /// The homes in turn, each with its number of consecutive pages; the list is repeated when it ends.
        /// No count is 0.
        homes: Vec<(NodeId, u64)>,
        /// The protocol that keeps them coherent, if it is not the run's; else empty.
        protocol: String,
    },
    /// What the program may do on these granules without a fault.
    Access {
        /// The granules.
        granules: PageRange,
        /// The access. If stores are tracked without faults it is `Write` at once.
        access: Access,
    },
    /// A page's frame here contains the intervals of other nodes through `version`, or more.
    Holds {
        /// The page.
        page: PageId,
        /// The intervals.
        version: VersionVector,
    },
    /// The changes that an interval of another node made to a page homed here are in its frame. An interval
    /// of the node itself: its changes are in a copy that came without them.
    Applied {
        /// The page.
        page: PageId,
        /// The node of the interval.
        writer: NodeId,
        /// The interval.
        seq: IntervalSeq,
        /// The length of the diff.
        bytes: u32,
    },
    /// A diff was made for the interval that is being closed.
    Diffed {
        /// The page.
        page: PageId,
        /// Its length; 0 if nothing differed.
        bytes: u32,
    },
    /// A twin of the page was made.
    Twinned {
        /// The page.
        page: PageId,
    },
    /// The node ended an interval in which it wrote these pages. A very large set takes several consecutive
    /// records with the same number.
    Closed {
        /// Its number.
        seq: IntervalSeq,
        /// The pages, each by its first granule.
        pages: PageSet,
    },
    /// Everything that the node's threads do from now on is ordered after these intervals: what it knew
    /// before, and these.
    Seen {
        /// The entries that grew, by ascending node.
        grown: Vec<(NodeId, IntervalSeq)>,
    },
    /// From now on the page is under sequential consistency on this node, which has given up its copy.
    Converted {
        /// The page, by its first granule.
        page: PageId,
    },
    /// From now on the node considers these pages homed on `to`.
    Moved {
        /// The pages, each by its first granule.
        pages: PageSet,
        /// Their home.
        to: NodeId,
    },
}

impl Event {
    /// Returns the page that contains a granule of an [`Event::Region`], by its first granule, and the page's
    /// home; `None` if the region does not contain it, or names no home.
    pub fn home_of(&self, granule: PageId, granule_bytes: u32) -> Option<(PageId, NodeId)> {
        let Event::Region { granules, page_size, homes, .. } = self else { return None };
        let granules_per_page = page_size.bytes() as u64 / u64::from(granule_bytes.max(1));
        let index = granules
            .contains(granule)
            .then(|| granule.0 - granules.first.0)?
            .checked_div(granules_per_page)?;
        let turn = homes.iter().fold(0u64, |sum, (_, pages)| sum.saturating_add(*pages));
        let mut place = index.checked_rem(turn)?;
        let home = homes.iter().find(|(_, pages)| {
            let found = place < *pages;
            place = place.saturating_sub(*pages);
            found
        });
        Some((PageId(granules.first.0 + index * granules_per_page), home?.0))
    }

    /// Returns the [`Event::Seen`] for two timestamps of one node, if anything grew.
    pub fn seen(before: &VectorTimestamp, now: &VectorTimestamp) -> Option<Event> {
        let nodes = now.nodes() as u16;
        let grown = NodeId::all(nodes).filter(|node| now.get(*node) > before.get(*node));
        let grown: Vec<_> = grown.map(|node| (node, now.get(node))).collect();
        (!grown.is_empty()).then_some(Event::Seen { grown })
    }
}
