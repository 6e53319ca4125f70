//! Requests of an engine to its host, and the host's answers.

use core::ops::Range;
use std::sync::Arc;

use hiroba_base::{Access, IntervalSeq, NodeId, PageId, PageRange, PageSet, VectorTimestamp, VersionVector};
use hiroba_wire::{AtomicOperation, AtomicOutcome};

use crate::fact::Fact;
use crate::thread::{Outcome, Waiter};

/// How the host detects which pages the program writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteTracking {
    /// The first store to a page faults: the host obeys [`Effect::Protect`] with `Access::Read`.
    #[default]
    Fault,
    /// Stores do not fault and are noted ([`Effect::Watch`]); the engine asks for the written pages at
    /// releases ([`Effect::CollectWritten`]).
    Async,
}

/// The number of granules from which on stores to a page fault even under asynchronous tracking. A fault
/// costs no more than noting each written granule, at 0.7 microseconds, and a page that is only read needs no
/// twin.
pub const FAULTING_FROM_GRANULES: u64 = 16;

/// New content for pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewContent {
    /// All zero.
    Zero,
    /// These bytes of the content ([`Message::content`](hiroba_wire::Message::content)) of the message that
    /// is being handled.
    Received(Range<usize>),
    /// These bytes of the content of a message that came earlier.
    Kept(Arc<[u8]>, Range<usize>),
}

/// A page that the host sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageToSend {
    /// The page, which is homed here.
    pub page: PageId,
    /// The page's length.
    pub page_bytes: u32,
    /// The version of its content.
    pub version: VersionVector,
    /// True if the content is that of the page's twin, which lacks what the program has written since.
    pub from_twin: bool,
}

/// A request that the host must carry out for the engine, in the order polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send these bytes (an encoded [`Message`](hiroba_wire::Message)) to `to`, reliably and in order.
    Send {
        /// The receiver, never this node.
        to: NodeId,
        /// The encoded message.
        message: Vec<u8>,
    },
    /// Send `to` one `PagesReply` with the present content of the pages, or of their twins.
    SendPages {
        /// The receiver, never this node.
        to: NodeId,
        /// The pages in ascending order: at least one, at most as many as a message may carry.
        pages: Vec<PageToSend>,
    },
    /// Send `to` one `PagesReply` with the content of the page's twin, which lacks what the program has
    /// written since.
    SendTwin {
        /// The receiver, never this node.
        to: NodeId,
        /// The page, which has a twin.
        page: PageId,
        /// The version of the twin's content.
        version: VersionVector,
    },
    /// Set which of the program's accesses to these pages do not fault.
    Protect {
        /// The pages.
        pages: PageRange,
        /// The accesses that do not fault.
        access: Access,
    },
    /// Take the program's access to pages away. Pages without access may lie between them: one call is
    /// cheaper than two that omit them.
    Invalidate {
        /// The range from the first to the last page.
        span: PageRange,
        /// The number of pages that lose access.
        pages: u64,
    },
    /// Prepare frames for pages that have no content yet and that diffs are about to fill. Preparing many at
    /// once costs less than preparing each.
    MakeRoom {
        /// The pages.
        pages: PageRange,
    },
    /// Map the pages permanently onto their home's frames. The program's loads and stores go there, and so do
    /// all changes that this node makes to the frames of these pages. From now on accesses do not fault and
    /// are not watched. The pages have not been touched on this node.
    MapHome {
        /// The pages, all of one home.
        pages: PageRange,
        /// Their home, which may be this node.
        home: NodeId,
    },
    /// Stop faults on these pages, and note from now on which of them are written. Ends faults like
    /// `Protect`. For asynchronous tracking.
    Watch {
        /// The pages.
        pages: PageRange,
    },
    /// Stop watching these pages: the engine will not ask again whether they were written. Their access stays
    /// `Write`. For asynchronous tracking.
    Unwatch {
        /// The pages.
        pages: PageRange,
    },
    /// Free the frames of these pages, whose content is not needed. The program has no access to the pages,
    /// and they have no twins. Later the frames read as zero.
    GiveUp {
        /// The pages.
        pages: PageRange,
    },
    /// Allow the frames of these pages, which are homed here, to leave memory for a disk; their content is
    /// needed. The program has no access to the pages, and they have no twins. Each use of such a frame
    /// brings it back first, without the engine's knowledge.
    PageOut {
        /// The pages.
        pages: PageRange,
    },
    /// Answer with [`Done::Written`] before any other call, and restart the collection of written pages. For
    /// asynchronous tracking.
    CollectWritten,
    /// Answer with [`Done::Unwritten`] before any other call. Follows directly after the effect that took the
    /// access to these pages, all of which were watched. For asynchronous tracking.
    FindUnwritten {
        /// The pages in ascending order, at least one.
        spans: Vec<PageRange>,
    },
    /// Make a twin: a copy of the page as it is now.
    Twin {
        /// The page.
        page: PageId,
        /// The page's length.
        page_bytes: u32,
    },
    /// Discard the twin, which equals the page.
    DropTwin {
        /// The page.
        page: PageId,
    },
    /// Discard the twin of a page that is homed here, whatever the program has stored since: it was for other
    /// nodes only.
    DropSnapshot {
        /// The page.
        page: PageId,
    },
    /// Encode the differences between the page and its twin, and answer with [`Done::Diff`] before any other
    /// call.
    Diff {
        /// The page.
        page: PageId,
        /// True: keep the twin and apply the diff to it (not copy the page, which threads may be writing).
        /// False: discard it.
        keep_twin: bool,
    },
    /// Encode, in the middle of an interval, the differences between the page and its twin. Apply the diff to
    /// the twin, which stays, and answer with [`Done::DiffedEarly`] before any other call.
    DiffEarly {
        /// The page.
        page: PageId,
    },
    /// Apply another node's diff to the page, and to its twin if it has one.
    Apply {
        /// The page.
        page: PageId,
        /// The diff, which has been checked.
        runs: Vec<u8>,
    },
    /// Fill frames.
    Install {
        /// One page, or consecutive pages. The program has no access to them.
        pages: PageRange,
        /// Content from the home, as long as the pages.
        content: NewContent,
        /// True for one page whose frame has a twin and may have unsent writes: change frame and twin only
        /// where `content` differs from the twin ("merge, never overwrite"), and answer with [`Done::Merged`]
        /// before any other call.
        merge: bool,
        /// The number of pages that a thread waited for.
        fetched: u32,
        /// The number of pages that no thread had requested.
        prefetched: u32,
    },
    /// Read pages from the frames of their home without its help, and answer with [`Done::Read`] before any
    /// other call. In this order: check that the home has published at least `needed`; announce each page to
    /// the home by its first granule; copy each byte once into the frames (twins are made of that copy). The
    /// program has no access to the pages.
    Read {
        /// Consecutive pages; exactly one with `merge`.
        pages: PageRange,
        /// The length of each page.
        page_bytes: u32,
        /// Their home, whose memory this node can read.
        home: NodeId,
        /// The intervals that the home must have published (see [`Effect::Publish`]), never its own.
        needed: VersionVector,
        /// As in [`Effect::Install`].
        merge: bool,
        /// True if no thread waits for the pages.
        prefetched: bool,
    },
    /// Publish to the nodes that can read this node's memory that it has applied all diffs of the intervals
    /// of `writer` through `seq` for pages homed here. A node that sees this must also see the diffs.
    Publish {
        /// The node whose intervals these are.
        writer: NodeId,
        /// The latest of them.
        seq: IntervalSeq,
    },
    /// Answer with [`Done::Announced`] before any other call. A node that announces a page after this must
    /// then read all that the program's threads had written to the page before this.
    TakeAnnouncements,
    /// Write one word into the frame and, if there is one, into the twin.
    Patch {
        /// The page.
        page: PageId,
        /// The word's byte offset.
        offset: u32,
        /// Its new value.
        value: u64,
    },
    /// Carry out an atomic operation on the frame, copy the word into the twin if there is one, and answer
    /// with [`Done::Atomic`] before any other call.
    Atomic {
        /// The page, which is homed here.
        page: PageId,
        /// The word's byte offset.
        offset: u32,
        /// The operation.
        operation: AtomicOperation,
    },
    /// Call [`Engine::handle_retained`](crate::Engine::handle_retained) for the page a fraction of a
    /// millisecond later, when its threads have had time to use it.
    Retain {
        /// The page.
        page: PageId,
    },
    /// Count that this node has become the page's home. The host need do nothing else.
    CountMove {
        /// The page.
        page: PageId,
    },
    /// Count that the page, which is homed here, has been put under sequential consistency. The host need do
    /// nothing else.
    CountConversion {
        /// The page.
        page: PageId,
    },
    /// Resume a waiting thread.
    Wake {
        /// The thread.
        waiter: Waiter,
        /// The result that it waited for.
        outcome: Outcome,
    },
    /// Report that an interval has ended and that everything that it changed has been compared
    /// ([`Effect::Diff`]). Emitted only if the engine reports every interval
    /// ([`Consistency::ending_intervals_at_acquires`](crate::Consistency::ending_intervals_at_acquires)).
    IntervalEnded {
        /// Its number.
        seq: IntervalSeq,
        /// The intervals that this node had seen then, including this one.
        timestamp: VectorTimestamp,
        /// The number of collectives that it had completed.
        epoch: u64,
    },
    /// Record a fact that is true from now on. Emitted only if a record is kept.
    Tell(Fact),
    /// Stop the job, which cannot continue.
    Fatal {
        /// A sentence for the user: what was expected, what came, what to do.
        sentence: String,
    },
}

impl Effect {
    /// Returns the pages whose content, access, twin or home the effect changes, or which it sends. Of the
    /// pages in a message, returns the first ones.
    pub(crate) fn touches(&self) -> Option<PageRange> {
        match self {
            Effect::Protect { pages, .. }
            | Effect::Invalidate { span: pages, .. }
            | Effect::Watch { pages }
            | Effect::Unwatch { pages }
            | Effect::GiveUp { pages }
            | Effect::PageOut { pages }
            | Effect::MakeRoom { pages }
            | Effect::Install { pages, .. }
            | Effect::Read { pages, .. } => Some(*pages),
            Effect::SendTwin { page, .. }
            | Effect::Twin { page, .. }
            | Effect::DropTwin { page }
            | Effect::DropSnapshot { page }
            | Effect::Diff { page, .. }
            | Effect::DiffEarly { page }
            | Effect::Apply { page, .. }
            | Effect::Patch { page, .. }
            | Effect::Atomic { page, .. }
            | Effect::Retain { page }
            | Effect::CountMove { page }
            | Effect::CountConversion { page } => Some(PageRange::single(*page)),
            Effect::SendPages { pages, .. } => pages.first().map(|sent| PageRange::single(sent.page)),
            Effect::FindUnwritten { spans } => spans.first().copied(),
            // Mapped pages are all in the same state.
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
    /// The answer to [`Effect::Diff`]: the diff, empty if nothing differs.
    Diff {
        /// The page.
        page: PageId,
        /// The diff.
        runs: Vec<u8>,
    },
    /// The answer to [`Effect::DiffEarly`]: the diff, empty if nothing differs.
    DiffedEarly {
        /// The page.
        page: PageId,
        /// The diff.
        runs: Vec<u8>,
    },
    /// The answer to [`Effect::CollectWritten`]: granules of watched pages that may have been written since
    /// they were watched or since the last answer, whichever is later.
    Written {
        /// The granules.
        granules: PageSet,
    },
    /// The answer to [`Effect::FindUnwritten`]: granules that the program had not written, before they lost
    /// their access, since they were watched or collected, whichever is later. Some may be missing, and
    /// others may be included.
    Unwritten {
        /// The first page of the request.
        first: PageId,
        /// The granules.
        granules: PageSet,
    },
    /// The answer to [`Effect::Install`] with `merge`.
    Merged {
        /// The page.
        page: PageId,
        /// True if the frame differed from its twin before.
        dirty: bool,
    },
    /// The answer to [`Effect::Read`].
    Read {
        /// The requested pages.
        pages: PageRange,
        /// The result.
        outcome: ReadOutcome,
    },
    /// The answer to [`Effect::TakeAnnouncements`]: pages that others have announced since the last answer,
    /// with repetitions.
    Announced {
        /// The pages, as others named them.
        pages: Vec<PageId>,
    },
    /// The answer to [`Effect::Atomic`].
    Atomic {
        /// The page.
        page: PageId,
        /// The old and new value of the word.
        outcome: AtomicOutcome,
    },
}

/// The result of an [`Effect::Read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// The frames have the content of the home's frames.
    Installed {
        /// With `merge`: true if the frame differed from its twin before.
        dirty: bool,
    },
    /// The frames are unchanged: the home has not published what is needed, or its queue of announcements was
    /// full.
    Behind,
}
