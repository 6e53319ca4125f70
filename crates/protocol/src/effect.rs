//! What an engine has its host do, and what the host answers.

use core::ops::Range;
use std::sync::Arc;

use hiroba_base::{Access, IntervalSeq, NodeId, PageId, PageRange, PageSet, VectorTimestamp, VersionVector};
use hiroba_wire::{Ahead, AtomicOperation, AtomicOutcome};

use crate::fact::Fact;
use crate::thread::{Outcome, Waiter};

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

/// New bytes for pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewContent {
    /// All zero.
    Zero,
    /// These bytes of the content ([`Message::content`](hiroba_wire::Message::content)) of the message that is being handled.
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
    /// Hand these bytes (an encoded [`Message`](hiroba_wire::Message)) to `to`, reliably and in order.
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
    /// Diffs are about to fill these pages, which hold nothing so far. Room for many of them at once costs less
    /// than room for each.
    MakeRoom {
        /// The pages.
        pages: PageRange,
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
    /// Give the frames of these pages up: nobody needs what they hold. The program has no access to the
    /// pages, which have no twins. A page that comes later finds zeros.
    GiveUp {
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
        /// A diff that was checked.
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
    /// Call [`Engine::handle_retained`](crate::Engine::handle_retained) for the page when its threads have had time to use it: a fraction of a millisecond after this.
    Retain {
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

impl Effect {
    /// The pages whose content, access, twin or home it changes, or which it sends: the first of those in a
    /// message.
    pub(crate) fn touches(&self) -> Option<PageRange> {
        match self {
            Effect::Protect { pages, .. }
            | Effect::Invalidate { span: pages, .. }
            | Effect::Watch { pages }
            | Effect::Unwatch { pages }
            | Effect::GiveUp { pages }
            | Effect::MakeRoom { pages }
            | Effect::Install { pages, .. }
            | Effect::Read { pages, .. } => Some(*pages),
            Effect::SendTwin { page, .. }
            | Effect::Twin { page, .. }
            | Effect::DropTwin { page }
            | Effect::Diff { page, .. }
            | Effect::DiffEarly { page }
            | Effect::Apply { page, .. }
            | Effect::Patch { page, .. }
            | Effect::Atomic { page, .. }
            | Effect::Retain { page }
            | Effect::CountMove { page } => Some(PageRange::single(*page)),
            Effect::SendPages { pages, .. } => pages.first().map(|sent| PageRange::single(sent.page)),
            Effect::FindUnwritten { spans } => spans.first().copied(),
            // All pages that are mapped are alike.
            Effect::MapHome { .. }
            | Effect::Send { .. }
            | Effect::CollectWritten
            | Effect::Publish { .. }
            | Effect::TakeAnnouncements
            | Effect::Wake { .. }
            | Effect::IntervalEnded { .. }
            | Effect::Tell(_)
            | Effect::Fatal { .. } => None,
        }
    }
}

/// The host's answer to an effect that has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// To [`Effect::Diff`]: the diff, empty when nothing differs.
    Diff {
        /// The page.
        page: PageId,
        /// The diff.
        runs: Vec<u8>,
    },
    /// To [`Effect::DiffEarly`]: the diff, empty when nothing differs.
    DiffedEarly {
        /// The page.
        page: PageId,
        /// The diff.
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
