//! What every protocol engine takes in and gives out.

use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::Arc;

use hiroba_base::{
    Access, CondId, IntervalSeq, LockId, NodeId, PageId, PageRange, PageSet, PageSize, VectorTimestamp,
    VersionVector,
};
use hiroba_wire::{Ahead, AtomicOperation, AtomicOutcome, Collective, Message, Placement, WireError};
use thiserror::Error;

use crate::{Fact, Protocol};

/// A thread of this node that waits for an [`Effect::Wake`]. The host numbers its threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Waiter(pub u32);

/// How the host finds out which pages the program writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteTracking {
    /// The first store to a page faults: [`Effect::Protect`] with `Access::Read` is obeyed.
    #[default]
    Fault,
    /// Stores run free and are noted ([`Effect::Watch`]); the engine asks at releases ([`Effect::CollectWritten`]).
    Async,
}

/// Stores to pages of so many granules or more fault even where those to others are noted: a fault costs no more than noting each granule that
/// is written, at 0.7 microseconds, and a page that is only read needs no twin.
pub const FAULTING_FROM_GRANULES: u64 = 16;

/// What a program thread asks of the protocol besides loads and stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synchronisation {
    /// Take a lock, waiting for it.
    Acquire(LockId),
    /// Take a lock if it is free.
    TryAcquire(LockId),
    /// Give a lock up.
    Release(LockId),
    /// Give the lock up, wait for a signal, take the lock again (Mesa semantics: the condition may have changed).
    Wait(CondId, LockId),
    /// Wake one waiter.
    Signal(CondId),
    /// Wake all waiters.
    Broadcast(CondId),
    /// Meet all nodes.
    Collective(Collective),
    /// Make everything written so far known to one node: what `free` owes to the node that will give the block out again.
    Publish(NodeId),
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As asked.
    Done,
    /// `TryAcquire` found the lock taken.
    Refused,
    /// This collective is complete (a follower learns here which one it was).
    Collective(Collective),
    /// The atomic operation's result.
    Atomic(AtomicOutcome),
    /// The program broke the rules of the call; nothing was done.
    Misuse(Misuse),
}

/// Mistakes of the program that an engine sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Misuse {
    /// Released or waited with a lock that the thread does not hold.
    #[error("lock {} is not held by this thread; only the thread that took a lock may release it", .0.0)]
    NotHeld(LockId),
    /// Took a lock twice.
    #[error("lock {} is already held by this thread; locks are not recursive", .0.0)]
    AlreadyHeld(LockId),
    /// Left the job with a lock in hand.
    #[error("lock {} is still held by a thread of this node; unlock it before leaving the job", .0.0)]
    StillHeld(LockId),
    /// A thread came to a collective call while another of the same node waits in one.
    #[error(
        "another thread of this node waits in {0} already; outside hiroba_run one thread a node makes the collective calls"
    )]
    CollectiveTwice(&'static str),
    /// Touched a page that no region holds.
    #[error("page {} is not allocated", .0.0)]
    NotAllocated(PageId),
}

/// New bytes for pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewContent {
    /// All zero.
    Zero,
    /// These bytes of the content ([`Message::content`]) of the message that is being handled.
    Received(Range<usize>),
    /// These bytes of the content of a message that came earlier.
    Kept(Arc<[u8]>, Range<usize>),
}

/// A page that the host sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageToSend {
    /// The page, homed here.
    pub page: PageId,
    /// The page's length.
    pub page_bytes: u32,
    /// The version that its bytes hold.
    pub version: VersionVector,
}

/// What the host must do for the engine, in the order polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Hand these bytes (an encoded [`Message`]) to `to`, reliably and in order.
    Send {
        /// The receiver, never this node.
        to: NodeId,
        /// The encoded message.
        message: Vec<u8>,
    },
    /// Send `to` one `PagesReply` with the pages' present bytes.
    SendPages {
        /// The receiver, never this node.
        to: NodeId,
        /// The pages, one at least and in ascending order, no more than a message may carry.
        pages: Vec<PageToSend>,
        /// Nobody has asked for them: as `PagesSupplied`, ahead of this.
        ahead_of: Option<Ahead>,
    },
    /// Send `to` one `PagesReply` with the page as its twin has it: without what the program has written since.
    SendTwin {
        /// The receiver, never this node.
        to: NodeId,
        /// The page, which has a twin.
        page: PageId,
        /// The version that the twin holds.
        version: VersionVector,
    },
    /// Let the program's loads and stores on these pages run free or fault.
    Protect {
        /// The pages.
        pages: PageRange,
        /// What may run free.
        access: Access,
    },
    /// Take the program's access to pages away. Pages that had none may lie between them: one call is cheaper than two that leave
    /// them out.
    Invalidate {
        /// From the first to the last page.
        span: PageRange,
        /// How many pages lose access.
        pages: u64,
    },
    /// Map the pages onto their home's frames, for good: loads and stores of the program's go there, and whatever this node does to the frames
    /// of these pages it does to the home's. They run free from now on, and nobody watches them. Nobody has touched the pages on this node.
    MapHome {
        /// The pages, all of one home.
        pages: PageRange,
        /// Their home, which may be this node.
        home: NodeId,
    },
    /// With asynchronous tracking: let loads and stores on these pages run free, and note from now on which of them are written.
    /// Ends faults like `Protect`.
    Watch {
        /// The pages.
        pages: PageRange,
    },
    /// With asynchronous tracking: nobody will ask any more whether these pages were written. Their access stays `Write`.
    Unwatch {
        /// The pages.
        pages: PageRange,
    },
    /// With asynchronous tracking: answer with [`Done::Written`] before any other call, and begin to note anew.
    CollectWritten,
    /// With asynchronous tracking, right behind the effect that took the access to these pages, all of which were watched: answer with
    /// [`Done::Unwritten`] before any other call.
    FindUnwritten {
        /// The pages, one at least, in ascending order.
        spans: Vec<PageRange>,
    },
    /// Keep a pristine copy of the page as it is now.
    Twin {
        /// The page.
        page: PageId,
        /// The page's length.
        page_bytes: u32,
    },
    /// Give the twin up, from which the page does not differ.
    DropTwin {
        /// The page.
        page: PageId,
    },
    /// Encode where the page differs from its twin and answer with [`Done::Diff`] before any other call.
    Diff {
        /// The page.
        page: PageId,
        /// Keep the twin, with the diff applied to it (not a copy of the page, which threads may be writing); else drop it.
        keep_twin: bool,
    },
    /// In the middle of an interval: encode where the page differs from its twin, which stays, with the diff applied to it, and answer with
    /// [`Done::DiffedEarly`] before any other call.
    DiffEarly {
        /// The page.
        page: PageId,
    },
    /// Apply another node's diff to the page, and to its twin if it has one.
    Apply {
        /// The page.
        page: PageId,
        /// Checked runs.
        runs: Vec<u8>,
    },
    /// Fill frames.
    Install {
        /// One page, or pages that follow each other. The program has no access to them.
        pages: PageRange,
        /// What came from the home, as long as the pages.
        content: NewContent,
        /// It is one page. Its frame has a twin and may hold unsent writes: change frame and twin only where `content` differs from
        /// the twin ("merge, never overwrite"), and answer with [`Done::Merged`] before any other call.
        merge: bool,
        /// How many pages somebody waited for.
        fetched: u32,
        /// How many pages came before anybody asked for them.
        prefetched: u32,
    },
    /// Read pages from the frames of their home, without its help, and answer with [`Done::Read`] before any other call. In this
    /// order: see that the home has published at least `needed`; announce each page to the home, by its first granule; copy each
    /// byte once, into the frames (whose twins are made of that copy). The program has no access to the pages.
    Read {
        /// The pages, one after the other; more than one only without `merge`.
        pages: PageRange,
        /// The length of each page.
        page_bytes: u32,
        /// Their home, within reach.
        home: NodeId,
        /// What the home must have published (see [`Effect::Publish`]), never of its own intervals.
        needed: VersionVector,
        /// As in [`Effect::Install`].
        merge: bool,
        /// Nobody waits for them.
        prefetched: bool,
    },
    /// Let the nodes within reach know that this node has applied all diffs that the intervals of `writer` through `seq` hold for
    /// pages that are homed here. What was applied before must be seen by whoever sees this.
    Publish {
        /// Whose intervals.
        writer: NodeId,
        /// The latest of them.
        seq: IntervalSeq,
    },
    /// Answer with [`Done::Announced`] before any other call. Who announces a page later than that reads, after it, all that the program's
    /// threads had written to the page before.
    TakeAnnouncements,
    /// Write one word into the frame and, if there is one, the twin.
    Patch {
        /// The page.
        page: PageId,
        /// The word's byte offset.
        offset: u32,
        /// Its new value.
        value: u64,
    },
    /// Carry out an atomic operation on the frame, put the word into the twin too if there is one, and answer with [`Done::Atomic`] before any
    /// other call.
    Atomic {
        /// The page, homed here.
        page: PageId,
        /// The word's byte offset.
        offset: u32,
        /// What to do.
        operation: AtomicOperation,
    },
    /// Call [`Engine::handle_held`] for the page when its threads have had time to use it: a fraction of a millisecond after this.
    Hold {
        /// The page.
        page: PageId,
    },
    /// Nothing need be done: this node has become the page's home, which the account counts.
    CountMove {
        /// The page.
        page: PageId,
    },
    /// Let a waiting thread go on.
    Wake {
        /// The thread.
        waiter: Waiter,
        /// What it waited for.
        outcome: Outcome,
    },
    /// An interval has ended, and everything that it changed has been compared ([`Effect::Diff`]). Only where the engine was asked to make
    /// every interval known ([`Consistency::ending_intervals_at_acquires`](crate::Consistency::ending_intervals_at_acquires)).
    IntervalEnded {
        /// Its number.
        seq: IntervalSeq,
        /// What this node had seen then, that interval included.
        timestamp: VectorTimestamp,
        /// How many collectives it had completed.
        epoch: u64,
    },
    /// Nothing need be done: this is so from now on. Only where the engine was asked to tell.
    Tell(Fact),
    /// The job cannot go on; the sentence is for the user.
    Fatal {
        /// What was expected, what came, what to do.
        sentence: String,
    },
}

/// The host's answer to an effect that has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// To [`Effect::Diff`]: the encoded runs, empty when nothing differs.
    Diff {
        /// The page.
        page: PageId,
        /// The runs.
        runs: Vec<u8>,
    },
    /// To [`Effect::DiffEarly`]: the encoded runs, empty when nothing differs.
    DiffedEarly {
        /// The page.
        page: PageId,
        /// The runs.
        runs: Vec<u8>,
    },
    /// To [`Effect::CollectWritten`]: granules of watched pages that may have been written since they were watched or the
    /// last answer, whichever is later.
    Written {
        /// The granules.
        granules: PageSet,
    },
    /// To [`Effect::FindUnwritten`]: granules that the program had not written since they were watched or collected, whichever is later, when they
    /// lost their access. Perhaps not all of them, and perhaps others.
    Unwritten {
        /// The first page that was asked about.
        first: PageId,
        /// The granules.
        granules: PageSet,
    },
    /// To [`Effect::Install`] with `merge`.
    Merged {
        /// The page.
        page: PageId,
        /// Whether the frame differed from its twin before.
        dirty: bool,
    },
    /// To [`Effect::Read`].
    Read {
        /// The pages that were to be read.
        pages: PageRange,
        /// What came of it.
        outcome: ReadOutcome,
    },
    /// To [`Effect::TakeAnnouncements`]: pages that others have announced since the last answer, as often as they did.
    Announced {
        /// The pages, as others named them.
        pages: Vec<PageId>,
    },
    /// To [`Effect::Atomic`].
    Atomic {
        /// The page.
        page: PageId,
        /// What was found and left.
        outcome: AtomicOutcome,
    },
}

/// What came of an [`Effect::Read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// The frames hold what the home's held.
    Installed {
        /// With `merge`: whether the frame differed from its twin before.
        dirty: bool,
    },
    /// The frames are as they were: the home has not published what is needed, or there was no room for an announcement.
    Behind,
}

/// A peer said something that the protocol does not allow: a fault of Hiroba's, never of the program.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// The bytes are no message.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// A diff's runs do not fit the page.
    #[error(transparent)]
    Diff(#[from] crate::diff::DiffError),
    /// The message does not fit the state.
    #[error("expected {expected}, got {got}")]
    Unexpected {
        /// What the state allows.
        expected: &'static str,
        /// What came.
        got: String,
    },
}

/// What a thread wants that has faulted on a page with this access: where the machine does not say (`Access::None`), it follows from what
/// faults.
pub(crate) fn wanted_beyond(access: Access, wanted: Access) -> Access {
    match (wanted, access) {
        (Access::None, Access::None) => Access::Read,
        (Access::None, _) => Access::Write,
        (known, _) => known,
    }
}

/// A page that fits no row of its protocol's state table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {page} in a row of its protocol's state table, got {is}")]
pub struct Misfit {
    /// The page.
    pub page: PageId,
    /// What the protocol knows of it.
    pub is: String,
}

/// A coherence protocol on one node.
///
/// The host polls effects until there are none after every `handle_*` call, and answers the effects that
/// say so on the spot.
pub trait Engine: Send {
    /// Declares a region of whole pages of `page_size` and their homes. Every node declares the same regions.
    fn add_region(&mut self, pages: PageRange, page_size: PageSize, placement: Placement);

    /// The same for a region that another protocol than the engine's first keeps coherent.
    fn add_region_under(
        &mut self,
        protocol: Protocol,
        pages: PageRange,
        page_size: PageSize,
        placement: Placement,
    );

    /// How many threads of this node must come to a collective before the node arrives there.
    fn set_team(&mut self, threads: u32);

    /// The home of a page; `None` when it is not allocated.
    fn home_of(&self, page: PageId) -> Option<NodeId>;

    /// The page that holds a granule; `None` when it is not allocated.
    fn page_of(&self, granule: PageId) -> Option<PageId>;

    /// Whether stores to an allocated page run free and are noted, so that a copy of it gets its twin as it comes.
    fn notes_stores(&self, page: PageId) -> bool;

    /// What this node has seen, and how many collectives it has completed.
    fn seen(&self) -> (&VectorTimestamp, u64);

    /// Which row of its protocol's state table each page is in of which this node knows anything.
    ///
    /// # Errors
    /// A page that fits no row. That is a mistake of the protocol's.
    fn page_states(&self) -> Result<BTreeMap<PageId, &'static str>, Misfit>;

    /// Whether knowledge from this node waits to be absorbed. What the host itself has from it, and what must come after that
    /// knowledge (a block that it frees), must wait as long.
    fn keeps_back(&self, from: NodeId) -> bool;

    /// The locks that threads of this node hold.
    fn locks_held(&self) -> Vec<(LockId, Waiter)>;

    /// A thread touched a granule of a page beyond the page's access. `wanted` is `Access::None` when the machine does not say whether
    /// it was a load or a store. With no waiter, the `Protect` that ends the fault is what lets the thread go on.
    fn handle_fault(&mut self, page: PageId, wanted: Access, waiter: Option<Waiter>);

    /// A thread synchronises; it waits until its `Wake` (which may already be among the next effects).
    fn handle_sync(&mut self, sync: Synchronisation, waiter: Waiter);

    /// A thread operates on an atomic word, `offset` bytes (a multiple of 8) into a granule.
    fn handle_atomic(&mut self, page: PageId, offset: u32, operation: AtomicOperation, waiter: Waiter);

    /// A thread will soon read these pages, in whatever regions. A hint: bounded, never waited for.
    fn handle_prefetch(&mut self, ranges: &[PageRange]);

    /// A message came.
    fn handle_message(&mut self, from: NodeId, message: &Message<'_>) -> Result<(), ProtocolError>;

    /// The host's answer to an effect.
    fn handle_done(&mut self, done: Done);

    /// Whether anything waits for a page that the host holds ([`Effect::Hold`]): if not, the host need not hurry to say that the time
    /// is over.
    fn waits_for_holds(&self) -> bool {
        false
    }

    /// The time for which the host was asked to hold a page ([`Effect::Hold`]) is over. Only engines that ask are told.
    fn handle_held(&mut self, page: PageId) {
        unreachable!("nobody asked to hold {page}");
    }

    /// Whether the engine has a use for moments in which the host has nothing to do.
    fn wants_lull(&self) -> bool {
        false
    }

    /// The host has nothing to do, and some time has gone by since it said so last. Only engines that want to hear of it are told.
    fn handle_lull(&mut self) {}

    /// The next thing to do.
    fn poll_effect(&mut self) -> Option<Effect>;
}
