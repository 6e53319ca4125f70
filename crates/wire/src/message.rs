//! What nodes say to each other.

use hiroba_base::{
    CondId, IntervalSeq, LockId, NodeId, PageId, PageSet, PageSize, VectorTimestamp, VersionVector,
};
use serde::{Deserialize, Serialize};

use crate::WireError;
use crate::control::CodeSite;
use crate::moves::{HomeMoves, PageHandedOver, PagesHeld};
use crate::pages::{PageCopy, PagesWanted};

/// What bounds every field that a message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Nodes of the job.
    pub nodes: u16,
    /// Granules of the shared region.
    pub region_granules: u64,
    /// Bytes of a granule, in which pages are counted.
    pub granule_bytes: u32,
}

/// Write notices of one interval: "these pages changed in interval `seq` of `node`".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntervalNotice {
    /// Whose interval.
    pub node: NodeId,
    /// Which of its intervals.
    pub seq: IntervalSeq,
    /// What changed.
    pub pages: PageSet,
}

/// What a release hands to the acquirer: how far the releaser has seen, and the notices that the acquirer lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Knowledge {
    /// The releaser's vector timestamp.
    pub timestamp: VectorTimestamp,
    /// Notices of intervals that the acquirer has not seen.
    pub notices: Vec<IntervalNotice>,
    /// How many collectives the releaser has completed.
    pub epoch: u64,
    /// Some of it is later than the arrival of a node (the releaser or another) at the present collective: threads may
    /// synchronise while another thread of their node waits there.
    pub beyond_arrival: bool,
}

/// The changes that an interval made to one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageDiff<'a> {
    /// The page.
    pub page: PageId,
    /// Encoded runs (`hiroba_protocol::diff`); empty when only the version advances.
    pub runs: &'a [u8],
}

/// What an interval changed in a page, as its writer keeps it until somebody asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntervalDiff<'a> {
    /// The interval.
    pub seq: IntervalSeq,
    /// The page's version at the interval's end: what the change builds on, and the interval itself.
    pub version: VersionVector,
    /// Encoded runs (`hiroba_protocol::diff`); empty when only the version advances.
    pub runs: &'a [u8],
}

/// Which bytes of a page an interval changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenPage {
    /// The page.
    pub page: PageId,
    /// The changed bytes, ascending and disjoint.
    pub ranges: Vec<core::ops::Range<u32>>,
    /// The interval's first store to the page.
    pub first_store: Option<CodeSite>,
}

/// How a collectively allocated region's pages are spread over homes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Placement {
    /// Consecutive blocks of pages, one a node.
    Block,
    /// Page by page in turn.
    Cyclic,
    /// All on one node.
    On(NodeId),
    /// Each page on the node that is the first to touch it, and until then in consecutive blocks.
    FirstTouch,
}

/// A coherence protocol, by the number that all nodes of one build know it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProtocolNumber(pub u8);

/// What the nodes of a job do together. All must name the same, but for followers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Collective {
    /// Wait for everybody.
    Barrier,
    /// Wait for everybody, then leave the job.
    Leave,
    /// Allocate the next region of the shared address space.
    Allocate {
        /// Its length.
        bytes: u64,
        /// Its homes.
        placement: Placement,
        /// Its coherence unit.
        page_size: PageSize,
        /// The protocol that keeps it coherent, where it is not the job's.
        protocol: Option<ProtocolNumber>,
    },
    /// Begin to run a function on all threads of all nodes (`hiroba_run`).
    BeginRun,
    /// All threads have returned from it.
    EndRun,
    /// Run the worker whose code lies at this distance from the program's load address (`tsm_create_procs`).
    RunWorker {
        /// The distance in bytes.
        offset: u64,
    },
    /// Do what node 0 does: the nodes that wait inside `tsm_startup`.
    Follow,
}

/// An operation on one naturally aligned 64-bit word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AtomicOperation {
    /// Read.
    Load,
    /// Write.
    Store(u64),
    /// Add, wrapping.
    FetchAdd(u64),
    /// Write `desired` if the word is `expected`.
    CompareExchange {
        /// What the word must be.
        expected: u64,
        /// What it becomes.
        desired: u64,
    },
}

/// What an atomic operation found and left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AtomicOutcome {
    /// The word before.
    pub previous: u64,
    /// The word after.
    pub current: u64,
    /// Whether the word was written (a failed compare-exchange and a load write nothing).
    pub written: bool,
}

/// Names a waiting thread of the sender; the answer carries it back.
pub type Ticket = u32;

/// A message from one node to another. The sender is known to the link, never claimed in the message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message<'a> {
    /// To the home: send the page, with at least these intervals in it.
    PageRequest {
        /// The page.
        page: PageId,
        /// The version that write notices demand.
        needed: VersionVector,
    },
    /// To a home: send these pages, each as soon as it holds what is needed.
    PagesRequest {
        /// The pages, no more than [`PAGES_PER_MESSAGE_MAX`](crate::PAGES_PER_MESSAGE_MAX) in all, grouped by what is needed of them.
        wanted: Vec<PagesWanted>,
        /// Those with the highest numbers are wanted first.
        descending: bool,
    },
    /// From a home: pages that were asked for, in one request or in several.
    PagesReply {
        /// The pages, no more than [`PAGES_PER_MESSAGE_MAX`](crate::PAGES_PER_MESSAGE_MAX).
        copies: Vec<PageCopy>,
        /// Their bytes, one after the other, without those that are all zero.
        content: &'a [u8],
    },
    /// To a home: a standing order, or the end of one.
    StandingOrder {
        /// Pages that the sender reads after every barrier at which it hears that they have changed.
        pages: PageSet,
        /// They are to be sent unasked from now on; else not any more.
        stands: bool,
    },
    /// From a home that arrives at a barrier: pages that it has changed since the last one, for which there are standing orders.
    PagesSupplied {
        /// How many collectives were over before.
        epoch: u64,
        /// The pages, no more than [`PAGES_PER_MESSAGE_MAX`](crate::PAGES_PER_MESSAGE_MAX).
        copies: Vec<PageCopy>,
        /// Their bytes, one after the other, without those that are all zero.
        content: &'a [u8],
    },
    /// To a home: what interval `seq` of the sender changed there.
    Diffs {
        /// The interval.
        seq: IntervalSeq,
        /// Whether this is all that the interval, or what is left of it, changed there: no more diffs of it come to this home.
        last: bool,
        /// One diff a page.
        #[serde(borrow)]
        diffs: Vec<PageDiff<'a>>,
    },
    /// To the lock's manager.
    LockRequest {
        /// The lock.
        lock: LockId,
        /// What the requester has seen.
        timestamp: VectorTimestamp,
    },
    /// From the manager to the lock's tail: hand it to `requester` next.
    LockForward {
        /// The lock.
        lock: LockId,
        /// Who comes next.
        requester: NodeId,
        /// What it has seen.
        timestamp: VectorTimestamp,
    },
    /// From holder to holder.
    LockGrant {
        /// The lock.
        lock: LockId,
        /// How many holds there have been, by whomever.
        turn: u64,
        /// What the release makes visible.
        knowledge: Knowledge,
    },
    /// To the lock's manager: only if it is free.
    LockTry {
        /// The lock.
        lock: LockId,
        /// What the requester has seen.
        timestamp: VectorTimestamp,
    },
    /// From the manager to the lock's tail: grant to `requester` if the lock is free.
    LockTryForward {
        /// The lock.
        lock: LockId,
        /// Who tries.
        requester: NodeId,
        /// What it has seen.
        timestamp: VectorTimestamp,
    },
    /// From the tail to the manager: whether the lock went to `requester`.
    LockTryOutcome {
        /// The lock.
        lock: LockId,
        /// Who tried.
        requester: NodeId,
        /// Whether it is the new tail.
        granted: bool,
    },
    /// To the node that tried: the lock is taken.
    LockTryRefused {
        /// The lock.
        lock: LockId,
    },
    /// To the condition variable's manager: I am about to wait.
    CondWait {
        /// The condition variable.
        cond: CondId,
        /// The waiting thread.
        ticket: Ticket,
    },
    /// From the manager: you are in the queue, release the lock now.
    CondNoted {
        /// The waiting thread.
        ticket: Ticket,
    },
    /// To the manager: wake the first waiter, or all.
    CondSignal {
        /// The condition variable.
        cond: CondId,
        /// Whether to wake all.
        all: bool,
    },
    /// From the manager: you were signalled.
    CondWake {
        /// The waiting thread.
        ticket: Ticket,
    },
    /// To the node above in the tree of nodes: the sender has arrived, and everybody below it.
    Arrive {
        /// How many collectives the sender has completed.
        epoch: u64,
        /// Which one this is: a follower's only when all of them follow.
        collective: Collective,
        /// Who of them called it.
        caller: NodeId,
        /// The latest timestamp that every one of them has reached, where that is not the one of `knowledge`.
        least: Option<VectorTimestamp>,
        /// Their own intervals since the last one.
        knowledge: Knowledge,
        /// Pages that they give to other homes.
        moves: Vec<HomeMoves>,
    },
    /// From the node above: all have arrived.
    Depart {
        /// The completed collective's number.
        epoch: u64,
        /// Which one it was (followers learn it here).
        collective: Collective,
        /// The intervals since the last one of all but the receiver and the nodes below it, as far as these lack them.
        knowledge: Knowledge,
        /// Pages that have other homes from now on: the same for everybody.
        moves: Vec<HomeMoves>,
    },
    /// To the home of an atomic word.
    AtomicRequest {
        /// The waiting thread.
        ticket: Ticket,
        /// The word's page.
        page: PageId,
        /// The word's byte offset in it.
        offset: u32,
        /// What to do.
        operation: AtomicOperation,
        /// The version that write notices demand first.
        needed: VersionVector,
    },
    /// From the home.
    AtomicReply {
        /// The waiting thread.
        ticket: Ticket,
        /// The word's page.
        page: PageId,
        /// What was found and left.
        outcome: AtomicOutcome,
        /// When the run is traced: how many operations the word had seen.
        turn: u64,
    },
    /// To a home, while data races are looked for: what an interval of the sender changed there.
    WrittenPages {
        /// The interval.
        seq: IntervalSeq,
        /// What the sender had seen at its end.
        timestamp: VectorTimestamp,
        /// How many collectives the sender had completed.
        epoch: u64,
        /// The call that ended the interval.
        interval_end: Option<CodeSite>,
        /// The pages.
        pages: Vec<WrittenPage>,
    },
    /// What the sender has written and seen: it precedes `Free`, so that whoever gets the block next builds on it.
    Publish {
        /// The sender's knowledge.
        knowledge: Knowledge,
        /// How many publications the sender had sent to the receiver before.
        count: u64,
    },
    /// To the node whose arena holds a block: free it.
    Free {
        /// The block's address.
        address: u64,
    },
    /// To the node whose arena holds a block: how long is it?
    SizeRequest {
        /// The waiting thread.
        ticket: Ticket,
        /// The block's address.
        address: u64,
    },
    /// From the arena's node.
    SizeReply {
        /// The waiting thread.
        ticket: Ticket,
        /// The block's usable length, if it is one.
        bytes: Option<u64>,
    },
    /// From node 0 before `RunWorker`: a piece of the program's private data.
    ProgramData {
        /// Tells programs and libraries at other addresses apart.
        identity: u64,
        /// Its distance from the program's load address.
        offset: u64,
        /// Its bytes.
        bytes: &'a [u8],
    },
    /// Single writer: to the page's manager, or to whom the sender takes for its owner: send `requester` a copy.
    CopyRequest {
        /// The page.
        page: PageId,
        /// Who wants the copy: the sender, unless it passes the request on.
        requester: NodeId,
    },
    /// Single writer: to the page's manager: make the sender the owner.
    OwnershipRequest {
        /// The page.
        page: PageId,
    },
    /// Single writer: from the manager to the owner, or to who will be it next: hand the page to `requester` next.
    OwnershipForward {
        /// The page.
        page: PageId,
        /// The next owner.
        requester: NodeId,
    },
    /// Single writer: from the owner to the next one, behind the page's content if the receiver has no copy of it.
    Ownership {
        /// The page.
        page: PageId,
        /// Who has copies of it besides the receiver.
        copyset: Vec<NodeId>,
        /// How many operations there were on each atomic word, by its byte offset: while a record is kept of the run.
        turns: Vec<(u32, u64)>,
    },
    /// Single writer: from the owner to the holder of a copy: give it up, and say so.
    InvalidateCopy {
        /// The page.
        page: PageId,
    },
    /// Single writer: to the owner: the copy is given up.
    CopyInvalidated {
        /// The page.
        page: PageId,
    },
    /// Eager release: to the home of pages: what a release of `writer` changed in them.
    EagerDiffs {
        /// Whose changes: the sender's, unless it passes them on.
        writer: NodeId,
        /// One diff a page.
        #[serde(borrow)]
        diffs: Vec<PageDiff<'a>>,
    },
    /// Eager release: from a home to a writer: nobody reads any more what was there before these diffs.
    DiffsPerformed {
        /// One of the pages.
        page: PageId,
        /// How many diffs.
        count: u32,
    },
    /// Eager release: from a home: give up the copies of these pages, and say so.
    InvalidateCopies {
        /// Names what the sender waits for; the answer carries it back.
        transaction: u64,
        /// The pages.
        pages: PageSet,
    },
    /// Eager release: from a home: what has changed in pages of which the receiver has copies. It answers.
    UpdateCopies {
        /// Names what the sender waits for; the answer carries it back.
        transaction: u64,
        /// One diff a page.
        #[serde(borrow)]
        diffs: Vec<PageDiff<'a>>,
    },
    /// Eager release: to a home: its `InvalidateCopies` or `UpdateCopies` has taken effect here.
    CopiesSettled {
        /// One of the pages.
        page: PageId,
        /// As the home named it.
        transaction: u64,
        /// Pages of an update whose copies the sender has given up: nothing reads them.
        left: PageSet,
    },
    /// To the home of an atomic word, from a node that is not the page's home any more, or knows who is.
    AtomicForward {
        /// Who asked.
        requester: NodeId,
        /// The thread that waits there.
        ticket: Ticket,
        /// The word's page.
        page: PageId,
        /// The word's byte offset in it.
        offset: u32,
        /// What to do.
        operation: AtomicOperation,
    },
    /// From a page's home to the next one, which has a copy.
    HomeTransfer {
        /// The page.
        page: PageId,
        /// How often it has moved, this time included.
        moves: u32,
        /// Who has copies of it besides the receiver.
        copyset: Vec<NodeId>,
        /// How many operations there were on each atomic word, by its byte offset: while a record is kept of the run.
        turns: Vec<(u32, u64)>,
    },
    /// To a page's base: the sender is its home now.
    HomeMoved {
        /// The page.
        page: PageId,
        /// How often it has moved.
        moves: u32,
    },
    /// To the home of pages that a departure gives to others: the sender, who has heard of it, sends nothing more about them there.
    HomeMovesHeard {
        /// One of the pages.
        page: PageId,
        /// Which of the pages that it is to be the home of the sender holds: they stay as they are until it is told more.
        held: Vec<PagesHeld>,
    },
    /// From a home to the next one, before the content of those pages that it lacks: be their home.
    HomeHandedOver {
        /// The pages.
        pages: Vec<PageHandedOver>,
    },
    /// Homeless: to a writer of the page: what have your intervals changed in it?
    DiffsRequest {
        /// The page.
        page: PageId,
        /// The requester holds that writer's intervals through this one; 0 when none.
        after: IntervalSeq,
        /// The last interval that is asked for.
        through: IntervalSeq,
    },
    /// Homeless: from a writer: diffs that were asked for.
    DiffsReply {
        /// The page.
        page: PageId,
        /// Whether these are the last of them.
        last: bool,
        /// By ascending interval.
        #[serde(borrow)]
        diffs: Vec<IntervalDiff<'a>>,
    },
    /// Homeless: from a writer that does not keep those diffs any more: the home's copy holds what they changed.
    DiffsCollected {
        /// The page.
        page: PageId,
    },
    /// Homeless: to the page's home: bring your copy up to these intervals, and say so.
    HoldRequest {
        /// The page.
        page: PageId,
        /// The intervals.
        version: VersionVector,
    },
    /// Homeless: from the home: its copy holds these intervals.
    Held {
        /// The page.
        page: PageId,
        /// Those that were asked for.
        version: VersionVector,
    },
    /// Homeless: from the home of an atomic word.
    WordReply {
        /// The waiting thread.
        ticket: Ticket,
        /// The word's page.
        page: PageId,
        /// What was found and left.
        outcome: AtomicOutcome,
        /// When the run is traced: how many operations the word had seen.
        turn: u64,
        /// The intervals that the home's copy holds, the operation's own among them if it wrote.
        version: VersionVector,
    },
    /// Automatic update: to a home: what the sender has changed there so far in an interval that is not over. More may come, and the interval's
    /// [`Message::Diffs`] come in any case.
    EarlyDiffs {
        /// The interval.
        seq: IntervalSeq,
        /// One diff a page, none of them empty.
        #[serde(borrow)]
        diffs: Vec<PageDiff<'a>>,
    },
    /// Nothing but a sign of life, to a node of another host: a network that is cut is noticed though nobody needs it.
    Alive,
}

impl Message<'_> {
    /// The names of all kinds of messages. The first byte of an encoded message is the index of its own.
    pub const KINDS: [&'static str; 51] = [
        "PageRequest",
        "PagesRequest",
        "PagesReply",
        "StandingOrder",
        "PagesSupplied",
        "Diffs",
        "LockRequest",
        "LockForward",
        "LockGrant",
        "LockTry",
        "LockTryForward",
        "LockTryOutcome",
        "LockTryRefused",
        "CondWait",
        "CondNoted",
        "CondSignal",
        "CondWake",
        "Arrive",
        "Depart",
        "AtomicRequest",
        "AtomicReply",
        "WrittenPages",
        "Publish",
        "Free",
        "SizeRequest",
        "SizeReply",
        "ProgramData",
        "CopyRequest",
        "OwnershipRequest",
        "OwnershipForward",
        "Ownership",
        "InvalidateCopy",
        "CopyInvalidated",
        "EagerDiffs",
        "DiffsPerformed",
        "InvalidateCopies",
        "UpdateCopies",
        "CopiesSettled",
        "AtomicForward",
        "HomeTransfer",
        "HomeMoved",
        "HomeMovesHeard",
        "HomeHandedOver",
        "DiffsRequest",
        "DiffsReply",
        "DiffsCollected",
        "HoldRequest",
        "Held",
        "WordReply",
        "EarlyDiffs",
        "Alive",
    ];
}

impl<'a> Message<'a> {
    /// Appends the encoded message to `out`.
    pub fn encode_into(&self, out: Vec<u8>) -> Vec<u8> {
        postcard::to_extend(self, out).expect("messages hold nothing that cannot be encoded")
    }

    /// The encoded message.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_into(Vec::new())
    }

    /// Decodes and checks bytes that came from another node. Diffs' runs are checked where they are read.
    pub fn decode(bytes: &'a [u8], limits: &Limits) -> Result<Message<'a>, WireError> {
        let (message, rest) = postcard::take_from_bytes::<Message<'a>>(bytes).map_err(|reason| {
            WireError::Malformed { expected: "message between nodes", got_bytes: bytes.len(), reason }
        })?;
        if !rest.is_empty() {
            return Err(WireError::OutOfBounds {
                field: "trailing bytes",
                expected: "0",
                got: rest.len() as u64,
            });
        }
        message.check(limits)?;
        Ok(message)
    }

    fn check(&self, limits: &Limits) -> Result<(), WireError> {
        match self {
            Message::PageRequest { page, needed } => {
                limits.page(*page)?;
                limits.version(needed)
            }
            Message::PagesRequest { wanted, .. } => limits.wanted(wanted),
            Message::PagesReply { copies, content } | Message::PagesSupplied { copies, content, .. } => {
                limits.copies(copies, content)
            }
            Message::Diffs { seq, last: _, diffs } | Message::EarlyDiffs { seq, diffs } => {
                limits.seq(*seq)?;
                diffs.iter().try_for_each(|diff| limits.page(diff.page))
            }
            Message::LockRequest { timestamp, .. } | Message::LockTry { timestamp, .. } => {
                limits.timestamp(timestamp)
            }
            Message::LockForward { requester, timestamp, .. }
            | Message::LockTryForward { requester, timestamp, .. } => {
                limits.node(*requester)?;
                limits.timestamp(timestamp)
            }
            Message::LockTryOutcome { requester, .. } => limits.node(*requester),
            Message::CopyRequest { page, requester } | Message::OwnershipForward { page, requester } => {
                limits.page(*page)?;
                limits.node(*requester)
            }
            Message::OwnershipRequest { page }
            | Message::InvalidateCopy { page }
            | Message::CopyInvalidated { page }
            | Message::DiffsPerformed { page, .. }
            | Message::HomeMoved { page, .. } => limits.page(*page),
            Message::EagerDiffs { writer, diffs } => {
                limits.node(*writer)?;
                diffs.iter().try_for_each(|diff| limits.page(diff.page))
            }
            Message::UpdateCopies { diffs, .. } => diffs.iter().try_for_each(|diff| limits.page(diff.page)),
            Message::StandingOrder { pages, .. } => limits.pages("page ranges of an order", pages),
            Message::InvalidateCopies { pages, .. } => limits.pages("page ranges of an invalidation", pages),
            Message::CopiesSettled { page, left, .. } => {
                limits.page(*page)?;
                limits.pages("page ranges of copies given up", left)
            }
            Message::AtomicForward { requester, page, offset, .. } => {
                limits.node(*requester)?;
                limits.page(*page)?;
                limits.word(*offset)
            }
            Message::Ownership { page, copyset, .. } | Message::HomeTransfer { page, copyset, .. } => {
                limits.page(*page)?;
                copyset.iter().try_for_each(|node| limits.node(*node))
            }
            Message::DiffsRequest { page, after: _, through } => {
                limits.page(*page)?;
                limits.seq(*through)
            }
            Message::DiffsReply { page, last: _, diffs } => {
                limits.page(*page)?;
                diffs.iter().try_for_each(|diff| {
                    limits.seq(diff.seq)?;
                    limits.version(&diff.version)
                })
            }
            Message::DiffsCollected { page } => limits.page(*page),
            Message::HoldRequest { page, version }
            | Message::Held { page, version }
            | Message::WordReply { page, version, .. } => {
                limits.page(*page)?;
                limits.version(version)
            }
            Message::WrittenPages { seq, timestamp, pages, .. } => {
                limits.seq(*seq)?;
                limits.timestamp(timestamp)?;
                pages.iter().try_for_each(|written| limits.page(written.page))
            }
            Message::LockGrant { knowledge, .. } | Message::Publish { knowledge, .. } => {
                limits.knowledge(knowledge)
            }
            Message::HomeMovesHeard { page, held } => {
                limits.page(*page)?;
                limits.held(held)
            }
            Message::HomeHandedOver { pages } => limits.handed_over(pages),
            Message::Arrive { collective, caller, least, knowledge, moves, .. } => {
                limits.node(*caller)?;
                limits.moves(moves)?;
                least.as_ref().map_or(Ok(()), |least| limits.timestamp(least))?;
                limits.collective(*collective, knowledge)
            }
            Message::Depart { collective, knowledge, moves, .. } => {
                limits.moves(moves)?;
                limits.collective(*collective, knowledge)
            }
            Message::AtomicRequest { page, offset, needed, .. } => {
                limits.page(*page)?;
                limits.version(needed)?;
                limits.word(*offset)
            }
            Message::LockTryRefused { .. }
            | Message::CondWait { .. }
            | Message::CondNoted { .. }
            | Message::CondSignal { .. }
            | Message::CondWake { .. }
            | Message::AtomicReply { .. }
            | Message::Free { .. }
            | Message::SizeRequest { .. }
            | Message::SizeReply { .. }
            | Message::ProgramData { .. }
            | Message::Alive => Ok(()),
        }
    }
}

impl Limits {
    pub(crate) fn within(
        field: &'static str,
        expected: &'static str,
        got: u64,
        good: bool,
    ) -> Result<(), WireError> {
        if good { Ok(()) } else { Err(WireError::OutOfBounds { field, expected, got }) }
    }

    pub(crate) fn node(&self, node: NodeId) -> Result<(), WireError> {
        Self::within("node", "a node of the job", u64::from(node.0), node.0 < self.nodes)
    }

    pub(crate) fn page(&self, page: PageId) -> Result<(), WireError> {
        Self::within("page", "a page of the shared region", page.0, page.0 < self.region_granules)
    }

    pub(crate) fn pages(&self, field: &'static str, pages: &PageSet) -> Result<(), WireError> {
        let ranges = pages.ranges().len() as u64;
        let good = pages.is_well_formed(self.region_granules);
        Self::within(field, "ascending, within the region", ranges, good)
    }

    pub(crate) fn word(&self, offset: u32) -> Result<(), WireError> {
        let good = offset.is_multiple_of(8) && (offset as usize) < PageSize::MIB_2.bytes();
        Self::within("offset of an atomic word", "a multiple of 8 within the page", u64::from(offset), good)
    }

    fn seq(&self, seq: IntervalSeq) -> Result<(), WireError> {
        Self::within("interval", "1 or more", seq, seq > 0)
    }

    pub(crate) fn version(&self, version: &VersionVector) -> Result<(), WireError> {
        let entries = version.entries().len() as u64;
        Self::within(
            "version vector entries",
            "ascending nodes of the job",
            entries,
            version.is_well_formed(self.nodes),
        )
    }

    fn timestamp(&self, timestamp: &VectorTimestamp) -> Result<(), WireError> {
        let entries = timestamp.nodes();
        let good = entries == usize::from(self.nodes);
        Self::within("vector timestamp entries", "one a node", entries as u64, good)
    }

    fn collective(&self, collective: Collective, knowledge: &Knowledge) -> Result<(), WireError> {
        if let Collective::Allocate { placement: Placement::On(node), .. } = collective {
            self.node(node)?;
        }
        self.knowledge(knowledge)
    }

    fn knowledge(&self, knowledge: &Knowledge) -> Result<(), WireError> {
        self.timestamp(&knowledge.timestamp)?;
        for notice in &knowledge.notices {
            self.node(notice.node)?;
            self.seq(notice.seq)?;
            self.pages("page ranges of a write notice", &notice.pages)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pages::PAGES_PER_MESSAGE_MAX;

    const LIMITS: Limits = Limits { nodes: 4, region_granules: 100, granule_bytes: 4096 };

    fn samples() -> Vec<Message<'static>> {
        let mut version = VersionVector::new();
        version.advance(NodeId(2), 7);
        let timestamp = VectorTimestamp::new(4);
        let pages: PageSet = [3, 4, 9].into_iter().map(PageId).collect();
        let moved = PageHandedOver {
            page: PageId(3),
            version: version.clone(),
            moves: 2,
            is_sent: true,
            has_words: true,
            turns: vec![(8, 3)],
        };
        let knowledge = Knowledge {
            timestamp: timestamp.clone(),
            notices: vec![IntervalNotice { node: NodeId(1), seq: 2, pages: pages.clone() }],
            epoch: 3,
            beyond_arrival: true,
        };
        vec![
            Message::PageRequest { page: PageId(99), needed: version.clone() },
            Message::PagesReply {
                copies: vec![PageCopy { page: PageId(0), version: version.clone(), is_zero: false }],
                content: &[7; 4096],
            },
            Message::PagesRequest {
                wanted: vec![PagesWanted { needed: version.clone(), pages: pages.clone() }],
                descending: true,
            },
            Message::StandingOrder { pages: pages.clone(), stands: true },
            Message::PagesSupplied {
                epoch: 7,
                copies: vec![PageCopy { page: PageId(1), version: version.clone(), is_zero: false }],
                content: &[9; 4096],
            },
            Message::Diffs {
                seq: 1,
                last: true,
                diffs: vec![PageDiff { page: PageId(5), runs: &[1, 2, 3] }],
            },
            Message::LockRequest { lock: LockId(u32::MAX), timestamp: timestamp.clone() },
            Message::LockForward { lock: LockId(1), requester: NodeId(3), timestamp: timestamp.clone() },
            Message::LockGrant { lock: LockId(1), turn: 5, knowledge: knowledge.clone() },
            Message::Arrive {
                epoch: 1,
                collective: Collective::Barrier,
                caller: NodeId(3),
                least: Some(VectorTimestamp::new(4)),
                knowledge: knowledge.clone(),
                moves: vec![HomeMoves { to: NodeId(2), pages: pages.clone() }],
            },
            Message::AtomicRequest {
                ticket: 1,
                page: PageId(1),
                offset: 4088,
                operation: AtomicOperation::FetchAdd(1),
                needed: version.clone(),
            },
            Message::ProgramData { identity: 9, offset: 1, bytes: &[1, 2, 3] },
            Message::Ownership { page: PageId(3), copyset: vec![NodeId(0), NodeId(3)], turns: vec![(8, 3)] },
            Message::CopyRequest { page: PageId(3), requester: NodeId(1) },
            Message::OwnershipRequest { page: PageId(3) },
            Message::OwnershipForward { page: PageId(3), requester: NodeId(2) },
            Message::InvalidateCopy { page: PageId(3) },
            Message::CopyInvalidated { page: PageId(3) },
            Message::EarlyDiffs { seq: 1, diffs: vec![PageDiff { page: PageId(5), runs: &[1, 2, 3] }] },
            Message::LockTry { lock: LockId(2), timestamp: timestamp.clone() },
            Message::LockTryForward { lock: LockId(2), requester: NodeId(0), timestamp: timestamp.clone() },
            Message::LockTryOutcome { lock: LockId(2), requester: NodeId(0), granted: true },
            Message::LockTryRefused { lock: LockId(2) },
            Message::CondWait { cond: CondId(1), ticket: 4 },
            Message::CondNoted { ticket: 4 },
            Message::CondSignal { cond: CondId(1), all: true },
            Message::CondWake { ticket: 4 },
            Message::Depart {
                epoch: 1,
                collective: Collective::Barrier,
                knowledge: knowledge.clone(),
                moves: vec![HomeMoves { to: NodeId(2), pages: pages.clone() }],
            },
            Message::AtomicReply {
                ticket: 1,
                page: PageId(3),
                outcome: AtomicOutcome { previous: 1, current: 2, written: true },
                turn: 9,
            },
            Message::WrittenPages { seq: 1, timestamp, epoch: 0, interval_end: None, pages: Vec::new() },
            Message::Publish { knowledge, count: 3 },
            Message::Free { address: 4096 },
            Message::SizeRequest { ticket: 1, address: 4096 },
            Message::SizeReply { ticket: 1, bytes: Some(64) },
            Message::EagerDiffs {
                writer: NodeId(2),
                diffs: vec![PageDiff { page: PageId(5), runs: &[1, 2, 3] }],
            },
            Message::DiffsPerformed { page: PageId(5), count: 3 },
            Message::InvalidateCopies { transaction: 7, pages: pages.clone() },
            Message::UpdateCopies {
                transaction: 7,
                diffs: vec![PageDiff { page: PageId(5), runs: &[1, 2, 3] }],
            },
            Message::CopiesSettled { page: PageId(3), transaction: 7, left: pages.clone() },
            Message::AtomicForward {
                requester: NodeId(3),
                ticket: 1,
                page: PageId(1),
                offset: 4088,
                operation: AtomicOperation::Load,
            },
            Message::HomeTransfer {
                page: PageId(3),
                moves: 2,
                copyset: vec![NodeId(0)],
                turns: vec![(8, 3)],
            },
            Message::HomeMoved { page: PageId(3), moves: 2 },
            Message::HomeMovesHeard {
                page: PageId(3),
                held: vec![PagesHeld { version: moved.version.clone(), pages: pages.clone() }],
            },
            Message::HomeHandedOver { pages: vec![moved] },
            Message::DiffsRequest { page: PageId(3), after: 0, through: 4 },
            Message::DiffsReply {
                page: PageId(3),
                last: true,
                diffs: vec![IntervalDiff { seq: 4, version: version.clone(), runs: &[0, 1, 9] }],
            },
            Message::DiffsCollected { page: PageId(3) },
            Message::HoldRequest { page: PageId(3), version: version.clone() },
            Message::Held { page: PageId(3), version: version.clone() },
            Message::WordReply {
                ticket: 1,
                page: PageId(3),
                outcome: AtomicOutcome { previous: 1, current: 2, written: true },
                turn: 9,
                version,
            },
            Message::Alive,
        ]
    }

    #[test]
    fn messages_survive_the_wire() {
        assert_eq!(samples().len(), Message::KINDS.len(), "one of each kind");
        for message in samples() {
            let bytes = message.encode();
            let name = Message::KINDS[usize::from(bytes[0])];
            let said = format!("{message:?}");
            assert_eq!(said.split_whitespace().next(), Some(name), "{said}");
            assert_eq!(Message::decode(&bytes, &LIMITS).as_ref(), Ok(&message));
        }
    }

    #[test]
    fn fields_out_of_bounds_are_refused() {
        let mut version = VersionVector::new();
        version.advance(NodeId(4), 1);
        let knowledge = Knowledge {
            timestamp: VectorTimestamp::new(4),
            notices: Vec::new(),
            epoch: 0,
            beyond_arrival: false,
        };
        // Each alone is within the region, all together are more pages than a message may name.
        let all = PagesWanted { needed: VersionVector::new(), pages: (0..100).map(PageId).collect() };
        let too_many = vec![all; PAGES_PER_MESSAGE_MAX as usize / 100 + 1];
        let bad = [
            Message::PageRequest { page: PageId(100), needed: VersionVector::new() },
            Message::PageRequest { page: PageId(1), needed: version },
            Message::PagesReply {
                copies: vec![PageCopy { page: PageId(1), version: VersionVector::new(), is_zero: false }],
                content: &[0; 4095],
            },
            Message::PagesReply { copies: Vec::new(), content: &[0; 4096] },
            Message::PagesReply {
                copies: vec![PageCopy { page: PageId(100), version: VersionVector::new(), is_zero: true }],
                content: &[],
            },
            Message::PagesRequest { wanted: too_many, descending: false },
            Message::StandingOrder { pages: [PageId(100)].into_iter().collect(), stands: true },
            Message::PagesSupplied { epoch: 0, copies: Vec::new(), content: &[] },
            Message::Arrive {
                epoch: 0,
                collective: Collective::Barrier,
                caller: NodeId(4),
                least: None,
                knowledge: knowledge.clone(),
                moves: Vec::new(),
            },
            Message::Depart {
                epoch: 0,
                collective: Collective::Barrier,
                knowledge: knowledge.clone(),
                moves: vec![HomeMoves { to: NodeId(4), pages: PageSet::new() }],
            },
            Message::Arrive {
                epoch: 0,
                collective: Collective::Barrier,
                caller: NodeId(3),
                least: Some(VectorTimestamp::new(5)),
                knowledge,
                moves: Vec::new(),
            },
            Message::Diffs { seq: 0, last: false, diffs: vec![] },
            Message::EarlyDiffs { seq: 1, diffs: vec![PageDiff { page: PageId(100), runs: &[] }] },
            Message::LockRequest { lock: LockId(0), timestamp: VectorTimestamp::new(5) },
            Message::LockTryOutcome { lock: LockId(0), requester: NodeId(9), granted: true },
            Message::Ownership { page: PageId(3), copyset: vec![NodeId(4)], turns: Vec::new() },
            Message::OwnershipForward { page: PageId(100), requester: NodeId(1) },
            Message::EagerDiffs { writer: NodeId(4), diffs: Vec::new() },
            Message::EagerDiffs { writer: NodeId(3), diffs: vec![PageDiff { page: PageId(100), runs: &[] }] },
            Message::UpdateCopies { transaction: 0, diffs: vec![PageDiff { page: PageId(100), runs: &[] }] },
            Message::InvalidateCopies { transaction: 0, pages: (99..101).map(PageId).collect() },
            Message::CopiesSettled { page: PageId(0), transaction: 0, left: (99..101).map(PageId).collect() },
            Message::HomeTransfer { page: PageId(0), moves: 1, copyset: vec![NodeId(4)], turns: Vec::new() },
            Message::HomeMoved { page: PageId(100), moves: 1 },
            Message::AtomicRequest {
                ticket: 0,
                page: PageId(1),
                offset: 4,
                operation: AtomicOperation::Load,
                needed: VersionVector::new(),
            },
        ];
        for message in bad {
            let bytes = message.encode();
            assert!(
                matches!(Message::decode(&bytes, &LIMITS), Err(WireError::OutOfBounds { .. })),
                "{message:?}"
            );
        }
        let mut trailing = samples()[0].encode();
        trailing.push(0);
        assert!(Message::decode(&trailing, &LIMITS).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Message::decode(&bytes, &LIMITS);
        }

        #[test]
        fn mutated_messages_never_panic(which in 0usize..Message::KINDS.len(), at in any::<prop::sample::Index>(), value in any::<u8>(), cut in any::<prop::sample::Index>()) {
            let mut bytes = samples()[which].encode();
            let position = at.index(bytes.len());
            bytes[position] = value;
            let _ = Message::decode(&bytes, &LIMITS);
            bytes.truncate(cut.index(bytes.len()));
            let _ = Message::decode(&bytes, &LIMITS);
        }
    }
}
