//! What a traced run consists of: records of who did what when.
//!
//! A node writes its records in one order, in which each thread's are in program order and the node's dealings with pages are in the
//! order in which they took effect. Nothing orders records of different nodes but what they say: the k-th message that
//! node a sent to b is the k-th that b received from a, a lock's holds are numbered, meetings have epochs.
//! Times are for people and cost models; no judgement rests on them.
//!
//! Three kinds of record answer three questions. **Activities** (`Enter`, `Leave`) and **messages** say where time went. **Ordering
//! facts** and **accesses** are what consistency is judged by, byte by byte. **Page facts** are what the protocol did to each
//! page, so that runs whose single accesses nobody has recorded can still be judged, page by page.

use hiroba_base::{
    Access, CondId, IntervalSeq, LockId, NodeId, PageId, PageRange, PageSet, PageSize, VectorTimestamp,
    VersionVector,
};

/// A thread of a node, by the order in which the node got to know them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadNumber(pub u32);

impl ThreadNumber {
    /// Not a thread of the program's: what the node did for others, or for nobody in particular.
    pub const RUNTIME: ThreadNumber = ThreadNumber(u32::MAX);
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Who.
    pub thread: ThreadNumber,
    /// When, in nanoseconds since the trace's start as this node's clock tells it.
    pub at_ns: u64,
    /// What.
    pub event: Event,
}

/// What a message is, as an index into the trace's table of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageKind(pub u8);

/// What a thread does from `Enter` to `Leave`. Activities nest (a fault while a handler waits in a call).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// In a fault.
    Fault {
        /// The granule that was touched.
        page: PageId,
        /// `None` when the machine does not say whether it was a load or a store.
        wanted: Access,
    },
    /// Takes a lock, or tries to.
    Acquire(LockId),
    /// Gives a lock up.
    Release(LockId),
    /// Waits for a signal.
    Wait(CondId, LockId),
    /// Wakes waiters: one, or all.
    Signal(CondId),
    /// Meets all nodes in a barrier.
    Barrier,
    /// Meets them for something else: allocation, begin and end of `hiroba_run`, leaving.
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
    /// In the allocator, or giving a hint.
    Other,
    /// The node handles a message from another.
    Serve {
        /// The sender.
        from: NodeId,
        /// The message.
        kind: MessageKind,
    },
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The thread begins something that is not computing.
    Enter(Activity),
    /// It ends what it began last.
    Leave,

    /// A message was handed to the fabric.
    Sent {
        /// The receiver.
        to: NodeId,
        /// What it is.
        kind: MessageKind,
        /// Its length.
        bytes: u32,
    },
    /// A message came, and is handled next.
    Received {
        /// The sender.
        from: NodeId,
        /// What it is.
        kind: MessageKind,
        /// Its length.
        bytes: u32,
    },

    /// The thread got a lock. (Waiting for a signal ends in one, and begins with a release.)
    Acquired {
        /// The lock.
        lock: LockId,
        /// How often it had been acquired before, by anybody.
        turn: u64,
    },
    /// The thread gave a lock up.
    Released {
        /// The lock.
        lock: LockId,
        /// The turn of the hold that ends.
        turn: u64,
    },
    /// The thread has met all others of all teams.
    Met {
        /// How many meetings there were before.
        epoch: u64,
    },
    /// What the thread's node knew by now is made known to another.
    Published {
        /// To whom.
        to: NodeId,
        /// How many publications this node had sent there before.
        count: u64,
    },
    /// Such a publication took effect here.
    PublicationSeen {
        /// From whom.
        from: NodeId,
        /// How many had come from there before.
        count: u64,
    },
    /// The thread's atomic operation on a word.
    Atomic {
        /// The word's granule.
        page: PageId,
        /// Its byte in the granule.
        offset: u32,
        /// How many operations the word had seen.
        turn: u64,
        /// What it held.
        previous: u64,
        /// What it holds now.
        current: u64,
    },

    /// A load of 1 to 8 bytes that lie in one granule.
    Load {
        /// The granule.
        page: PageId,
        /// The first byte in it.
        offset: u32,
        /// How many bytes.
        bytes: u8,
        /// What it returned, little-endian.
        value: u64,
    },
    /// A store likewise.
    Store {
        /// The granule.
        page: PageId,
        /// The first byte in it.
        offset: u32,
        /// How many bytes.
        bytes: u8,
        /// What it wrote.
        value: u64,
    },

    /// Pages exist from now on, the same on every node.
    Region {
        /// Their granules.
        granules: PageRange,
        /// The coherence unit.
        page_size: PageSize,
        /// The homes in turn, and how many pages in a row each has; from the beginning again when the list is at its end. No count is 0.
        homes: Vec<(NodeId, u64)>,
        /// The protocol that keeps them coherent, where it is not the run's; else empty.
        protocol: String,
    },
    /// What the program may do on these granules without a fault.
    Access {
        /// The granules.
        granules: PageRange,
        /// What runs free. Where stores are tracked without faults it is `Write` at once.
        access: Access,
    },
    /// A page's frame here holds the intervals of other nodes through `version`, or more.
    Holds {
        /// The page.
        page: PageId,
        /// Which intervals.
        version: VersionVector,
    },
    /// The changes that an interval of another node made to a page homed here are in its frame.
    Applied {
        /// The page.
        page: PageId,
        /// Whose interval.
        writer: NodeId,
        /// Which.
        seq: IntervalSeq,
        /// Length of the diff.
        bytes: u32,
    },
    /// A diff was made for the interval that is being closed.
    Diffed {
        /// The page.
        page: PageId,
        /// Its length; 0 when nothing differed.
        bytes: u32,
    },
    /// A pristine copy of the page was made.
    Twinned {
        /// The page.
        page: PageId,
    },
    /// The node ended an interval in which it wrote these pages. Very many are several records in a row with the same number.
    Closed {
        /// Its number.
        seq: IntervalSeq,
        /// The pages, each by its first granule.
        pages: PageSet,
    },
    /// Everything that the node's threads do from now on is ordered after these intervals: what it knew before, and these.
    Seen {
        /// The entries that grew, by ascending node.
        grown: Vec<(NodeId, IntervalSeq)>,
    },
    /// From now on the node takes these pages for homed there.
    Moved {
        /// The pages, each by its first granule.
        pages: PageSet,
        /// Their home.
        to: NodeId,
    },
}

impl Event {
    /// The page that holds a granule of an [`Event::Region`], by its first granule, and the page's home; `None` when the region does not
    /// hold it, or names no home.
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

    /// What [`Event::Seen`] says of two timestamps of one node, if anything grew.
    pub fn seen(before: &VectorTimestamp, now: &VectorTimestamp) -> Option<Event> {
        let nodes = now.nodes() as u16;
        let grown = NodeId::all(nodes).filter(|node| now.get(*node) > before.get(*node));
        let grown: Vec<_> = grown.map(|node| (node, now.get(node))).collect();
        (!grown.is_empty()).then_some(Event::Seen { grown })
    }
}
