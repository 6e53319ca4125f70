//! Messages between nodes.

mod content;

use hiroba_base::{
    CodeSite, CondId, IntervalSeq, LockId, NodeId, PageId, PageSet, VectorTimestamp, VersionVector,
};
use serde::{Deserialize, Serialize};

use crate::WireError;
use crate::collective::{Collective, Contribution};
use crate::intervals::{IntervalDiff, Knowledge, PageDiff, TouchedPage};
use crate::limits::Limits;
use crate::moves::{HomeMoves, PageHandedOver, PagesHeld};
use crate::pages::{PageCopy, PageOwned, PagesWanted};

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

/// The result of an atomic operation.
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

/// A message from one node to another. The link knows the sender, so no message states it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message<'a> {
    /// To the home: send the page with at least these intervals.
    PageRequest {
        /// The page.
        page: PageId,
        /// The version that write notices require.
        needed: VersionVector,
    },
    /// To a home: send these pages, each as soon as it contains the required intervals.
    PagesRequest {
        /// The pages, at most [`PAGES_PER_MESSAGE_MAX`](crate::PAGES_PER_MESSAGE_MAX) in total, grouped by
        /// the required version.
        wanted: Vec<PagesWanted>,
        /// Whether those with the highest numbers are wanted first.
        descending: bool,
    },
    /// From a home: pages that were requested, in one message or in several.
    PagesReply {
        /// The pages, at most [`PAGES_PER_MESSAGE_MAX`](crate::PAGES_PER_MESSAGE_MAX).
        copies: Vec<PageCopy>,
        /// Their bytes in order, without pages that are all zero.
        #[serde(borrow, with = "serde_bytes")]
        content: &'a [u8],
    },
    /// To a home: what interval `seq` of the sender changed there.
    Diffs {
        /// The interval.
        seq: IntervalSeq,
        /// Whether these are the last diffs of the interval for this home.
        last: bool,
        /// One diff per page.
        #[serde(borrow)]
        diffs: Vec<PageDiff<'a>>,
    },
    /// To the lock's manager: request the lock.
    LockRequest {
        /// The lock.
        lock: LockId,
        /// What the requester has seen.
        timestamp: VectorTimestamp,
    },
    /// From the manager to the lock's tail: hand the lock to `requester` next.
    LockForward {
        /// The lock.
        lock: LockId,
        /// The next holder.
        requester: NodeId,
        /// What it has seen.
        timestamp: VectorTimestamp,
    },
    /// From holder to holder: the lock.
    LockGrant {
        /// The lock.
        lock: LockId,
        /// How many times the lock has been held, on all nodes.
        turn: u64,
        /// What the release makes visible.
        knowledge: Knowledge,
    },
    /// To the lock's manager: request the lock only if it is free.
    LockTry {
        /// The lock.
        lock: LockId,
        /// What the requester has seen.
        timestamp: VectorTimestamp,
    },
    /// From the manager to the lock's tail: grant the lock to `requester` if it is free.
    LockTryForward {
        /// The lock.
        lock: LockId,
        /// The node that tries.
        requester: NodeId,
        /// What it has seen.
        timestamp: VectorTimestamp,
    },
    /// From the tail to the manager: the result of a try.
    LockTryOutcome {
        /// The lock.
        lock: LockId,
        /// The node that tried.
        requester: NodeId,
        /// Whether it got the lock and is the new tail.
        granted: bool,
    },
    /// To the node that tried: the lock is taken.
    LockTryRefused {
        /// The lock.
        lock: LockId,
    },
    /// To the condition variable's manager: a thread is about to wait.
    CondWait {
        /// The condition variable.
        cond: CondId,
        /// The waiting thread.
        ticket: Ticket,
    },
    /// From the manager: the thread is queued; release the lock now.
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
    /// From the manager: the thread was signalled.
    CondWake {
        /// The waiting thread.
        ticket: Ticket,
    },
    /// To the parent in the tree of nodes: the sender and its subtree have arrived.
    Arrive {
        /// How many collectives the sender has completed.
        epoch: u64,
        /// The collective; that of a follower only if all of the subtree follow.
        collective: Collective,
        /// The node of the subtree that called it.
        caller: NodeId,
        /// The latest timestamp that all of the subtree have reached, if it is not that of `knowledge`.
        least: Option<VectorTimestamp>,
        /// The subtree's own intervals since the last collective.
        knowledge: Knowledge,
        /// Pages that the subtree gives to other homes.
        moves: Vec<HomeMoves>,
        /// What nodes of the subtree contribute to the collective.
        #[serde(borrow)]
        contributions: Vec<Contribution<'a>>,
    },
    /// From the parent: all have arrived.
    Depart {
        /// The completed collective's number.
        epoch: u64,
        /// The collective, which followers learn here.
        collective: Collective,
        /// The intervals since the last collective of all nodes except the receiver and its subtree, as far
        /// as these lack them.
        knowledge: Knowledge,
        /// Pages that have other homes from now on; the same on all nodes.
        moves: Vec<HomeMoves>,
    },
    /// To the home of an atomic word: operate on it.
    AtomicRequest {
        /// The waiting thread.
        ticket: Ticket,
        /// The word's page.
        page: PageId,
        /// The word's byte offset in it.
        offset: u32,
        /// The operation.
        operation: AtomicOperation,
        /// The version that write notices require first.
        needed: VersionVector,
    },
    /// From the home of an atomic word: the result.
    AtomicReply {
        /// The waiting thread.
        ticket: Ticket,
        /// The word's page.
        page: PageId,
        /// The result.
        outcome: AtomicOutcome,
        /// How many operations the word had seen; only when the run is traced.
        turn: u64,
    },
    /// To a home, during a search for data races: what an interval of the sender did to pages there.
    TouchedPages {
        /// The interval.
        seq: IntervalSeq,
        /// What the sender had seen at its end.
        timestamp: VectorTimestamp,
        /// How many collectives the sender had completed.
        epoch: u64,
        /// The call that ended the interval.
        interval_end: Option<CodeSite>,
        /// The pages.
        pages: Vec<TouchedPage>,
    },
    /// What the sender has written and seen. It precedes `Free`, so that the thread that gets the block next
    /// sees it.
    Publish {
        /// The sender's knowledge.
        knowledge: Knowledge,
        /// How many publications the sender had sent to the receiver before.
        count: u64,
    },
    /// To the node whose arena contains a block: free it.
    Free {
        /// The block's address.
        address: u64,
    },
    /// To the node whose arena contains a block: report its length.
    SizeRequest {
        /// The waiting thread.
        ticket: Ticket,
        /// The block's address.
        address: u64,
    },
    /// From the arena's node: the length of a block.
    SizeReply {
        /// The waiting thread.
        ticket: Ticket,
        /// The block's usable length; `None` if there is no such block.
        bytes: Option<u64>,
    },
    /// From node 0 before `RunWorker`: a piece of the program's private data, of at most
    /// [`PROGRAM_DATA_BYTES_MAX`](crate::PROGRAM_DATA_BYTES_MAX) bytes.
    ProgramData {
        /// Distinguishes programs and libraries at other addresses.
        identity: u64,
        /// Its distance from the program's load address.
        offset: u64,
        /// Its bytes, at least one.
        #[serde(borrow, with = "serde_bytes")]
        bytes: &'a [u8],
    },
    /// Eager release: to the page's home: send `requester` a copy.
    CopyRequest {
        /// The page.
        page: PageId,
        /// The node that wants the copy: the sender, unless it forwards the request.
        requester: NodeId,
    },
    /// Single writer: to the pages' manager: make the sender the owner.
    OwnershipRequest {
        /// The pages, at most [`PAGES_PER_MESSAGE_MAX`](crate::PAGES_PER_MESSAGE_MAX), as in the other
        /// messages of the single writer.
        pages: PageSet,
    },
    /// Single writer: from the manager to the owner, or to the next owner: hand the pages to `requester`
    /// next.
    OwnershipForward {
        /// The pages.
        pages: PageSet,
        /// The next owner.
        requester: NodeId,
    },
    /// Single writer: from the owner to the next one; follows the content of those pages of which the
    /// receiver has no copy.
    Ownership {
        /// The pages.
        pages: Vec<PageOwned>,
    },
    /// Single writer: from the owner to the holder of copies: give them up and acknowledge.
    InvalidateCopy {
        /// The pages.
        pages: PageSet,
        /// Whether the copies were lent until the next collective, and not requested.
        are_lent: bool,
    },
    /// Single writer: to the owner: the copies are given up.
    CopyInvalidated {
        /// The pages.
        pages: PageSet,
    },
    /// Eager release: to the home of pages: what a release of `writer` changed in them.
    EagerDiffs {
        /// The node that made the changes: the sender, unless it forwards them.
        writer: NodeId,
        /// One diff per page.
        #[serde(borrow)]
        diffs: Vec<PageDiff<'a>>,
    },
    /// Eager release: from a home to a writer: no node reads any more what these diffs replaced.
    DiffsPerformed {
        /// One of the pages.
        page: PageId,
        /// The number of diffs.
        count: u32,
    },
    /// Eager release: from a home: give up the copies of these pages and acknowledge.
    InvalidateCopies {
        /// Identifies what the sender waits for; the answer repeats it.
        transaction: u64,
        /// The pages.
        pages: PageSet,
    },
    /// Eager release: from a home: changes of pages of which the receiver has copies. It acknowledges.
    UpdateCopies {
        /// Identifies what the sender waits for; the answer repeats it.
        transaction: u64,
        /// One diff per page.
        #[serde(borrow)]
        diffs: Vec<PageDiff<'a>>,
    },
    /// Eager release: to a home: its `InvalidateCopies` or `UpdateCopies` has taken effect here.
    CopiesSettled {
        /// One of the pages.
        page: PageId,
        /// The home's identification.
        transaction: u64,
        /// Pages of an update whose copies the sender has given up because nothing reads them.
        left: PageSet,
    },
    /// To the home of an atomic word, from a former home or a node that knows the home: operate on it.
    AtomicForward {
        /// The node that requested it.
        requester: NodeId,
        /// The thread that waits there.
        ticket: Ticket,
        /// The word's page.
        page: PageId,
        /// The word's byte offset in it.
        offset: u32,
        /// The operation.
        operation: AtomicOperation,
    },
    /// From a page's home to the next one, which has a copy: be its home.
    HomeTransfer {
        /// The page.
        page: PageId,
        /// How many times it has moved, including this move.
        moves: u32,
        /// The nodes with copies of it, except the receiver.
        copyset: Vec<NodeId>,
        /// The number of operations on each atomic word, by its byte offset; only while the run is traced.
        turns: Vec<(u32, u64)>,
    },
    /// To a page's base: the sender is its home now.
    HomeMoved {
        /// The page.
        page: PageId,
        /// How many times it has moved.
        moves: u32,
    },
    /// To the home of pages that a departure gives to others: the sender has received it, and sends nothing
    /// more about them there.
    HomeMovesHeard {
        /// One of the pages.
        page: PageId,
        /// Which of the pages that move to the sender it holds. They stay unchanged until it gets more.
        held: Vec<PagesHeld>,
    },
    /// From a home to the next one, before the content of those pages that it lacks: be their home.
    HomeHandedOver {
        /// The pages.
        pages: Vec<PageHandedOver>,
    },
    /// Homeless: to a writer of the page: send what these intervals changed in it.
    DiffsRequest {
        /// The page.
        page: PageId,
        /// The requester has the writer's intervals through this one; 0 if none.
        after: IntervalSeq,
        /// The last requested interval.
        through: IntervalSeq,
    },
    /// Homeless: from a writer: diffs that were requested.
    DiffsReply {
        /// The page.
        page: PageId,
        /// Whether these are the last of them.
        last: bool,
        /// In ascending order of intervals.
        #[serde(borrow)]
        diffs: Vec<IntervalDiff<'a>>,
    },
    /// Homeless: from a writer that no longer keeps those diffs: the home's copy contains their changes.
    DiffsCollected {
        /// The page.
        page: PageId,
    },
    /// Homeless: to the page's home: apply these intervals to your copy and acknowledge.
    CatchUpRequest {
        /// The page.
        page: PageId,
        /// The intervals.
        version: VersionVector,
    },
    /// Homeless: from the home: its copy contains these intervals.
    CaughtUp {
        /// The page.
        page: PageId,
        /// The requested ones.
        version: VersionVector,
    },
    /// Homeless: from the home of an atomic word: the result.
    WordReply {
        /// The waiting thread.
        ticket: Ticket,
        /// The word's page.
        page: PageId,
        /// The result.
        outcome: AtomicOutcome,
        /// How many operations the word had seen; only when the run is traced.
        turn: u64,
        /// The intervals that the home's copy contains, including the operation's own if it wrote.
        version: VersionVector,
    },
    /// Automatic update: to a home: what the sender has changed there so far in an interval that is not over.
    /// More may come, and the interval's [`Message::Diffs`] follow in any case.
    EarlyDiffs {
        /// The interval.
        seq: IntervalSeq,
        /// One diff per page, none of them empty.
        #[serde(borrow)]
        diffs: Vec<PageDiff<'a>>,
    },
    /// To a node of another host: a mere sign of life, so that a network that is cut is noticed even if no
    /// node needs it.
    Alive,
    /// During a search for data races, when the sender has left the job: it has sent all of its intervals.
    TouchedAll,
    /// The answer: everything that was sent before has been compared, and the launcher knows the result.
    TouchedHeard,
    /// A packet of ports, which their engine checks.
    Ports {
        /// The packet.
        #[serde(borrow, with = "serde_bytes")]
        bytes: &'a [u8],
    },
    /// The sender needs memory of others, or has heard of a node that does: where it listens for messages
    /// about that.
    LentMemory {
        /// The port at its address; 0 if it has none.
        port: u16,
    },
    /// To the home: put the page under sequential consistency.
    ConversionRequest {
        /// The page.
        page: PageId,
    },
    /// From the home: give these pages up, as they are under release consistency.
    Convert {
        /// The pages.
        pages: PageSet,
    },
    /// To the home, behind the last diffs of these pages, which were given up together: the sender takes them
    /// for pages under sequential consistency.
    Converted {
        /// The pages.
        pages: PageSet,
    },
    /// To the root of the tree, from a node that has arrived at the collective of this number: no page that
    /// is homed there may get another home by it.
    KeepHomes {
        /// The number of the collective.
        epoch: u64,
    },
    /// The answer: none will. If the nodes have agreed already, there is no answer; the departure shows it.
    HomesKept {
        /// The number of the collective.
        epoch: u64,
    },
    /// From a node that has allocated these pages, which no node has touched: they are homed in blocks on all
    /// nodes from now on.
    Place {
        /// The first page.
        first: PageId,
        /// Their number.
        count: u64,
    },
    /// The answer.
    Placed {
        /// The first page.
        first: PageId,
    },
    /// Single writer: to the pages' manager, or to their presumed owner: send `requester` copies.
    CopiesRequest {
        /// The pages.
        pages: PageSet,
        /// The node that wants the copies: the sender, unless it forwards the request.
        requester: NodeId,
    },
}

/// The first byte of an encoded [`Message::Diffs`].
const DIFFS: u8 = 3;
/// The first byte of an encoded [`Message::Ports`].
const PORTS: u8 = 51;

impl Message<'_> {
    /// Returns true if an encoded message with this first byte may wait for the receiver's next poll. Diffs
    /// may: a node that needs them asks their home afterwards, behind them, or waits there and polls.
    pub fn is_unhurried(kind: u8) -> bool {
        kind == DIFFS
    }

    /// The names of all kinds of messages. The first byte of an encoded message is an index into this.
    pub const KINDS: [&'static str; 61] = [
        "PageRequest",
        "PagesRequest",
        "PagesReply",
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
        "TouchedPages",
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
        "CatchUpRequest",
        "CaughtUp",
        "WordReply",
        "EarlyDiffs",
        "Alive",
        "TouchedAll",
        "TouchedHeard",
        "Ports",
        "LentMemory",
        "ConversionRequest",
        "Convert",
        "Converted",
        "KeepHomes",
        "HomesKept",
        "Place",
        "Placed",
        "CopiesRequest",
    ];

    /// Returns the bytes that precede a packet of this length in an encoded [`Message::Ports`], so that the
    /// packet need not be copied, and their number.
    pub fn ports_head(bytes: usize) -> ([u8; PORTS_HEAD_ROOM], usize) {
        let mut head = [PORTS; PORTS_HEAD_ROOM];
        let length = postcard::to_slice(&bytes, &mut head[1..]).expect("a number fits");
        let head_bytes = 1 + length.len();
        (head, head_bytes)
    }

    /// Returns the beginning of the packet in the beginning of an encoded [`Message::Ports`], whose last
    /// `payload_bytes` bytes follow.
    ///
    /// # Errors
    ///
    /// A message of another kind, or one that does not say that it is that long.
    pub fn beginning_of_ports(head: &[u8], payload_bytes: usize) -> Result<&[u8], WireError> {
        let (kind, rest) = head.split_first().unwrap_or((&u8::MAX, &[]));
        let got = u64::from(*kind);
        if *kind != PORTS {
            return Err(WireError::OutOfBounds { field: "kind", expected: "a packet of ports", got });
        }
        let (bytes, packet) = postcard::take_from_bytes::<usize>(rest).map_err(|reason| {
            WireError::Malformed { expected: "length of a packet", got_bytes: rest.len(), reason }
        })?;
        if packet.len().checked_add(payload_bytes) != Some(bytes) {
            let expected = "as many bytes as came";
            return Err(WireError::OutOfBounds { field: "length", expected, got: bytes as u64 });
        }
        Ok(packet)
    }
}

/// The maximum number of bytes that precede a packet of ports: its kind, and a length.
const PORTS_HEAD_ROOM: usize = 11;

/// A capacity that suffices for most messages without pages and diffs.
const SHORT_MESSAGE_BYTES: usize = 128;

impl<'a> Message<'a> {
    /// Appends the encoded message to `out`.
    pub fn encode_into(&self, out: Vec<u8>) -> Vec<u8> {
        postcard::to_extend(self, out).expect("messages hold nothing that cannot be encoded")
    }

    /// Returns the encoded message.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_into(Vec::with_capacity(SHORT_MESSAGE_BYTES))
    }

    /// Decodes and checks bytes that came from another node. The runs of diffs are checked where they are
    /// read.
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
            Message::PagesReply { copies, content } => limits.copies(copies, content),
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
            Message::CopyRequest { page, requester } => {
                limits.page(*page)?;
                limits.node(*requester)
            }
            Message::CopiesRequest { pages, requester } | Message::OwnershipForward { pages, requester } => {
                limits.run(pages)?;
                limits.node(*requester)
            }
            Message::OwnershipRequest { pages }
            | Message::InvalidateCopy { pages, .. }
            | Message::CopyInvalidated { pages } => limits.run(pages),
            Message::Ownership { pages } => limits.owned(pages),
            Message::DiffsPerformed { page, .. }
            | Message::ConversionRequest { page }
            | Message::HomeMoved { page, .. } => limits.page(*page),
            Message::Place { first, count } => limits.consecutive(*first, *count),
            Message::Placed { first } => limits.page(*first),
            Message::EagerDiffs { writer, diffs } => {
                limits.node(*writer)?;
                diffs.iter().try_for_each(|diff| limits.page(diff.page))
            }
            Message::UpdateCopies { diffs, .. } => diffs.iter().try_for_each(|diff| limits.page(diff.page)),
            Message::InvalidateCopies { pages, .. } => limits.pages("page ranges of an invalidation", pages),
            Message::Convert { pages } | Message::Converted { pages } => {
                limits.pages("page ranges of a conversion", pages)
            }
            Message::CopiesSettled { page, left, .. } => {
                limits.page(*page)?;
                limits.pages("page ranges of copies given up", left)
            }
            Message::AtomicForward { requester, page, offset, .. } => {
                limits.node(*requester)?;
                limits.page(*page)?;
                limits.word(*offset)
            }
            Message::HomeTransfer { page, copyset, .. } => {
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
            Message::CatchUpRequest { page, version }
            | Message::CaughtUp { page, version }
            | Message::WordReply { page, version, .. } => {
                limits.page(*page)?;
                limits.version(version)
            }
            Message::TouchedPages { seq, timestamp, pages, .. } => {
                limits.seq(*seq)?;
                limits.timestamp(timestamp)?;
                pages.iter().try_for_each(|touched| limits.page(touched.page))
            }
            Message::LockGrant { knowledge, .. } | Message::Publish { knowledge, .. } => {
                limits.knowledge(knowledge)
            }
            Message::HomeMovesHeard { page, held } => {
                limits.page(*page)?;
                limits.held(held)
            }
            Message::HomeHandedOver { pages } => limits.handed_over(pages),
            Message::Arrive { collective, caller, least, knowledge, moves, contributions, .. } => {
                limits.node(*caller)?;
                limits.moves(moves)?;
                limits.contributions(contributions)?;
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
            Message::ProgramData { bytes, .. } => limits.program_data(bytes),
            Message::LockTryRefused { .. }
            | Message::CondWait { .. }
            | Message::CondNoted { .. }
            | Message::CondSignal { .. }
            | Message::CondWake { .. }
            | Message::AtomicReply { .. }
            | Message::Free { .. }
            | Message::SizeRequest { .. }
            | Message::SizeReply { .. }
            | Message::TouchedAll
            | Message::TouchedHeard
            | Message::Ports { .. }
            | Message::LentMemory { .. }
            | Message::KeepHomes { .. }
            | Message::HomesKept { .. }
            | Message::Alive => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
