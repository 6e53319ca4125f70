//! What nodes say to each other.

mod content;

use hiroba_base::{
    CodeSite, CondId, IntervalSeq, LockId, NodeId, PageId, PageSet, VectorTimestamp, VersionVector,
};
use serde::{Deserialize, Serialize};

use crate::WireError;
use crate::collective::Collective;
use crate::intervals::{IntervalDiff, Knowledge, PageDiff, TouchedPage};
use crate::limits::Limits;
use crate::moves::{HomeMoves, PageHandedOver, PagesHeld};
use crate::pages::{Ahead, PageCopy, PagesWanted};

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
        #[serde(borrow, with = "serde_bytes")]
        content: &'a [u8],
    },
    /// To a home: a standing order, or the end of one.
    StandingOrder {
        /// The lock with which they are to come; else ahead of barriers.
        lock: Option<LockId>,
        /// Pages that the sender reads whenever it hears, with that lock or at a barrier, that they have changed.
        pages: PageSet,
        /// They are to be sent unasked from now on; else not any more.
        stands: bool,
    },
    /// Pages that nobody has asked for: from a home that arrives at a barrier, those that it has changed since the last one and for which there
    /// are standing orders; from who hands a lock over, those that go with it.
    PagesSupplied {
        /// What they go ahead of, on its way or soon.
        ahead_of: Ahead,
        /// The pages, no more than [`PAGES_PER_MESSAGE_MAX`](crate::PAGES_PER_MESSAGE_MAX).
        copies: Vec<PageCopy>,
        /// Their bytes, one after the other, without those that are all zero.
        #[serde(borrow, with = "serde_bytes")]
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
    /// To a home, while data races are looked for: what an interval of the sender did to pages there.
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
    /// From node 0 before `RunWorker`: a piece of the program's private data, at most
    /// [`PROGRAM_DATA_BYTES_MAX`](crate::PROGRAM_DATA_BYTES_MAX) long.
    ProgramData {
        /// Tells programs and libraries at other addresses apart.
        identity: u64,
        /// Its distance from the program's load address.
        offset: u64,
        /// Its bytes, one at least.
        #[serde(borrow, with = "serde_bytes")]
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
    CatchUpRequest {
        /// The page.
        page: PageId,
        /// The intervals.
        version: VersionVector,
    },
    /// Homeless: from the home: its copy holds these intervals.
    CaughtUp {
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
    /// While data races are looked for, and the sender has left the job: it has told all of its intervals that it has to tell.
    TouchedAll,
    /// The answer: all that was told before has been held against what else was told, and the launcher knows what came of it.
    TouchedHeard,
    /// A packet of ports. Their engine checks it.
    Ports {
        /// The packet.
        #[serde(borrow, with = "serde_bytes")]
        bytes: &'a [u8],
    },
}

/// The first byte of encoded [`Message::Diffs`].
const DIFFS: u8 = 5;
/// The first byte of encoded [`Message::Ports`].
const PORTS: u8 = 53;

impl Message<'_> {
    /// Returns whether an encoded message with this first byte may wait for the receiver's next poll. Diffs
    /// may: a node that needs them asks their home afterwards, behind them, or waits there and polls.
    pub fn is_unhurried(kind: u8) -> bool {
        kind == DIFFS
    }

    /// The names of all kinds of messages. The first byte of an encoded message is the index of its own.
    pub const KINDS: [&'static str; 54] = [
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
    ];

    /// What stands before a packet of this many bytes in the encoded [`Message::Ports`], so that the packet
    /// need not be copied.
    pub fn ports_head(bytes: usize) -> Vec<u8> {
        let head = vec![PORTS];
        postcard::to_extend(&bytes, head).expect("a number can be encoded")
    }
}

/// Room for most messages: pages and diffs aside they take less.
const SHORT_MESSAGE_BYTES: usize = 128;

impl<'a> Message<'a> {
    /// Appends the encoded message to `out`.
    pub fn encode_into(&self, out: Vec<u8>) -> Vec<u8> {
        postcard::to_extend(self, out).expect("messages hold nothing that cannot be encoded")
    }

    /// The encoded message.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_into(Vec::with_capacity(SHORT_MESSAGE_BYTES))
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
            | Message::Alive => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
