//! What a coherence protocol is to a node: the part of an engine that differs from protocol to protocol.
//!
//! A node's engine is [`Consistency`](crate::Consistency): it carries locks, condition variables and collectives, divides the node's execution
//! into intervals, and tells acquirers what they have not seen. What becomes of pages it leaves to a [`Coherence`], or to several, each
//! for the regions that were allocated under it. All of them share one [`Site`]: where pages live, what the node has seen, and
//! what it has to say.
//!
//! A release ends an interval, step by step, and each step begins when the answers that the one before it waits for are there:
//!
//! 1. the host is asked which pages others have announced ([`Effect::TakeAnnouncements`]), where anybody reads frames of this node;
//! 2. with asynchronous tracking, the host is asked which pages were written ([`Effect::CollectWritten`]);
//! 3. each protocol has what was written compared ([`Coherence::close`]);
//! 4. each protocol sends what it owes to others ([`Coherence::flush`]), and waits for their answers if it must;
//! 5. the interval counts as seen, and what the release is for takes place: the lock goes on, the node arrives, …
//!
//! Releases of several threads take place one after the other. Where all protocols of a node are lazy
//! ([`Coherence::leaves_intervals_open`]) an unlock is a release only when another node waits for the lock.

use core::fmt::Debug;
use core::ops::Range;
use std::collections::VecDeque;

use hiroba_base::{Access, IntervalSeq, LockId, NodeId, PageId, PageRange, PageSet, VectorTimestamp};
use hiroba_wire::{AtomicOperation, Collective, HomeMoves, Limits, Message, MoveKind, PageCopy};

use crate::home::{HomeMap, HomePolicy, Located};
use crate::interval::IntervalLog;
use crate::outbox::Outbox;
use crate::{
    Done, Effect, Expected, FAULTING_FROM_GRANULES, Fact, ProtocolError, Synchronisation, Waiter,
    WriteTracking, unexpected,
};

/// Pages without access between two that are invalidated, at most, for both to be one call: looking at so many costs
/// less than another call, which interrupts every running sibling thread.
const JOINED_GAP_PAGES_MAX: usize = 32;

/// Pages that one hint asks for, at most, where pages come one by one.
const HINTED_PAGES_MAX: usize = 256;

/// No page is longer ([`PageSize`](hiroba_base::PageSize)).
const PAGE_BYTES_MAX: u64 = 2 << 20;

/// An operation on an atomic word, not carried out yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordOperation {
    /// The page.
    pub page: PageId,
    /// The word's byte offset in it.
    pub offset: u32,
    /// What to do.
    pub operation: AtomicOperation,
    /// The thread that waits for the result.
    pub waiter: Waiter,
}

/// What all nodes have agreed on of one page ([`HomeMoves`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageMove {
    /// The page.
    pub page: PageId,
    /// Its home from now on.
    pub to: NodeId,
    /// Who has wanted that.
    pub kind: MoveKind,
}

/// What a release is for.
#[derive(Clone, Copy, Debug)]
pub enum AfterRelease {
    /// The thread goes on to take a lock: only where acquires end intervals.
    Acquire(Synchronisation, Waiter),
    /// The lock is given up by the thread that waits for that.
    Unlock(LockId, Waiter),
    /// The lock is given up by a thread that then waits for a signal.
    Wait(LockId, Waiter),
    /// The lock, which was given up while the interval was open, goes to the node that waits for it.
    HandOver(LockId),
    /// The node arrives at a collective.
    Arrive(Collective),
    /// What was written is told to a node.
    Publish(NodeId, Waiter),
    /// The same, as far as it was not told before.
    Inform(NodeId, Waiter),
    /// Pages that this node is to be the home of, or not any more, are at rest ([`Coherence::move_after_release`]).
    Move,
    /// Copies that are to leave are at rest ([`Coherence::give_up_after_release`]).
    GiveUp,
    /// An operation on an atomic word finds the thread's own stores ([`Coherence::operate_after_release`]).
    Operate(WordOperation),
    /// What the protocol could not do to this page while the release before this one was open ([`Coherence::go_on_after_release`]).
    Continue(PageId),
}

/// How far a release has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseStep {
    Announcing,
    Collecting,
    Comparing,
    Flushing,
}

/// An interval that is being closed.
#[derive(Debug)]
pub struct OpenRelease {
    /// The interval's number.
    pub seq: IntervalSeq,
    pub(crate) step: ReleaseStep,
    /// Answers that the present step waits for.
    pub(crate) awaited: usize,
    /// Pages that changed: the interval's notices.
    pub(crate) noticed: PageSet,
    pub(crate) then: AfterRelease,
}

/// What the protocols of a node share.
#[derive(Debug)]
pub struct Site {
    /// This node.
    pub me: NodeId,
    /// The job's bounds.
    pub limits: Limits,
    /// How the host finds out what is written.
    pub tracking: WriteTracking,
    /// Where pages live.
    pub homes: HomeMap,
    /// The latest intervals that this node has seen.
    pub timestamp: VectorTimestamp,
    /// The notices that it can pass on.
    pub log: IntervalLog,
    /// How many collectives it has completed.
    pub collectives_done: u64,
    /// Every acquire ends the interval, so that each interval lies between two synchronisations: when data races are looked for.
    pub acquires_end_intervals: bool,
    /// What it has to say.
    pub out: Outbox,
    /// Somebody keeps a record of the run.
    pub(crate) tells: bool,
    /// Pages may come before anybody has faulted on them; else each costs its own fault, as in the systems of the literature.
    pub(crate) prefetches: bool,
    /// Requests and diffs for regions that this node's own threads have yet to hear of, or for pages whose home it will be: their senders have
    /// left the collective that allocated them, or gave them to this node.
    pub(crate) deferred: Vec<(NodeId, Vec<u8>)>,
    pub(crate) release: Option<OpenRelease>,
    /// Releases that have yet to begin: no more than the node has threads, one for pages that move and one
    /// for each protocol's that leave.
    pub(crate) releases: VecDeque<AfterRelease>,
}

impl Site {
    /// The site of node `me`, with nothing allocated.
    pub fn new(me: NodeId, limits: Limits, tracking: WriteTracking) -> Site {
        let nodes = limits.nodes;
        assert!(me.0 < nodes, "node {me} is one of the job's {nodes}");
        Site {
            me,
            limits,
            tracking,
            homes: HomeMap::new(nodes),
            timestamp: VectorTimestamp::new(nodes),
            log: IntervalLog::new(nodes),
            collectives_done: 0,
            acquires_end_intervals: false,
            out: Outbox::new(me),
            tells: false,
            prefetches: true,
            deferred: Vec::new(),
            release: None,
            releases: VecDeque::new(),
        }
    }

    /// The pages that the program says it will read, as many of them as one hint asks for.
    pub(crate) fn hinted(&self, ranges: &[PageRange]) -> Vec<PageId> {
        let located = ranges.iter().flat_map(|pages| self.homes.pages_in(*pages));
        located.take(HINTED_PAGES_MAX).map(|located| located.page).collect()
    }

    /// Whether stores to the page run free and are noted.
    pub fn is_async(&self, page: PageId) -> bool {
        self.tracking == WriteTracking::Async && self.locate(page).granules < FAULTING_FROM_GRANULES
    }

    /// Where a page lives.
    ///
    /// # Panics
    /// When it is not allocated.
    pub fn locate(&self, page: PageId) -> Located {
        self.homes.locate(page).expect("a page that the engine knows is allocated")
    }

    /// The page's length.
    pub fn page_bytes(&self, page: PageId) -> u32 {
        let bytes = self.locate(page).granules * u64::from(self.limits.granule_bytes);
        assert!(bytes <= PAGE_BYTES_MAX, "{page}: expected {PAGE_BYTES_MAX} bytes or less, got {bytes}");
        bytes as u32
    }

    /// Whether the page is homed here.
    pub fn is_home(&self, page: PageId) -> bool {
        self.homes.home_of(page) == Some(self.me)
    }

    /// Tells a fact, when somebody keeps a record.
    pub fn tell(&mut self, fact: impl FnOnce() -> Option<Fact>) {
        if self.tells {
            self.out.extend(fact().map(Effect::Tell));
        }
    }

    /// Whether somebody keeps a record.
    pub fn tells(&self) -> bool {
        self.tells
    }

    /// Ends the interval, now or when the releases before it are done, and then does this.
    pub fn release_for(&mut self, then: AfterRelease) {
        self.releases.push_back(then);
    }

    /// Whether the interval is being closed for pages that change their homes.
    pub fn closes_for_move(&self) -> bool {
        self.release.as_ref().is_some_and(|release| matches!(release.then, AfterRelease::Move))
    }

    /// Whether the interval is being closed because the node arrives at a collective.
    pub fn closes_for_meeting(&self) -> bool {
        self.release.as_ref().is_some_and(|release| matches!(release.then, AfterRelease::Arrive(_)))
    }

    /// The number of the interval that is being closed.
    pub fn closing(&self) -> IntervalSeq {
        self.release.as_ref().expect("a release is open").seq
    }

    /// This node's latest interval of which others may have heard: that of the open release, as soon as it is being flushed.
    pub fn latest_closed(&self) -> IntervalSeq {
        let flushed = self.release.as_ref().filter(|release| release.step == ReleaseStep::Flushing);
        flushed.map_or(self.timestamp.get(self.me), |release| release.seq)
    }

    /// The open release goes on when so many more answers have come.
    pub fn await_answers(&mut self, count: usize) {
        let release = self.release.as_mut().expect("a release is open");
        assert_ne!(release.step, ReleaseStep::Announcing, "nobody but the host is asked for announcements");
        release.awaited += count;
    }

    /// One of them has come.
    pub fn answered(&mut self) {
        let awaited = &mut self.release.as_mut().expect("an answer is to an open release").awaited;
        *awaited = awaited.checked_sub(1).expect("no more answers than were awaited");
    }

    /// Whether an interval is being closed, so that no other one can be.
    pub fn is_closing(&self) -> bool {
        self.release.is_some()
    }

    /// Closes an interval that changed this page alone: what the runtime itself has done to it. What the program has written meanwhile belongs
    /// to later intervals.
    ///
    /// # Panics
    /// While a release is open.
    pub fn close_apart(&mut self, page: PageId) -> IntervalSeq {
        assert!(self.release.is_none(), "the interval that is being closed has this number");
        assert!(self.homes.is_allocated(page), "{page}: only allocated pages change");
        let seq = self.timestamp.get(self.me) + 1;
        let latest = self.log.latest(self.me, page);
        assert!(latest.is_none_or(|latest| latest < seq), "{page}: intervals are noted in their order");
        let pages: PageSet = [page].into_iter().collect();
        self.tell(|| Some(Fact::Closed { seq, pages: pages.clone() }));
        self.timestamp.advance(self.me, seq);
        self.log.record(self.me, seq, &pages);
        seq
    }

    /// The interval that is being closed has changed the page: acquirers will be told.
    pub fn note_changed(&mut self, page: PageId) {
        assert!(self.homes.is_allocated(page), "{page}: only allocated pages change");
        let release = self.release.as_mut().expect("a release is open");
        assert!(
            matches!(release.step, ReleaseStep::Comparing | ReleaseStep::Flushing),
            "{page}: what an interval has changed is known when it is compared"
        );
        release.noticed.insert(page);
    }

    /// Whether the interval that is being closed is known to have changed the page.
    pub fn has_changed(&self, page: PageId) -> bool {
        self.release.as_ref().expect("a release is open").noticed.contains(page)
    }

    /// Sets the access of a page.
    pub(crate) fn protect(&mut self, page: PageId, access: Access) {
        let pages = self.locate(page).span();
        self.out.push(Effect::Protect { pages, access });
    }

    /// Sets the access of pages: one effect a run, since taking access away costs a system call and a TLB shootdown whatever its length.
    pub fn protect_all(&mut self, pages: &PageSet, access: Access) {
        let spans = self.homes.spans(pages).into_iter();
        self.out.extend(spans.map(|pages| Effect::Protect { pages, access }));
    }

    /// Takes the program's access to pages away, in as few calls as possible. `access_of` says what it may do with others.
    pub fn invalidate(&mut self, pages: &PageSet, access_of: impl Fn(PageId) -> Access) {
        let mut joined: Option<(PageRange, u64)> = None;
        for span in self.homes.spans(pages) {
            let pages = self.homes.pages_in(span).count() as u64;
            joined = Some(match joined {
                Some((before, count)) if self.nothing_runs_free(before.end(), span.first, &access_of) => {
                    let whole = PageRange { first: before.first, count: span.end().0 - before.first.0 };
                    (whole, count + pages)
                }
                before => {
                    self.out.extend(before.map(|(span, pages)| Effect::Invalidate { span, pages }));
                    (span, pages)
                }
            });
        }
        self.out.extend(joined.map(|(span, pages)| Effect::Invalidate { span, pages }));
    }

    /// Where the bytes of a page are in what has come, unless they are all zero: at `offset`, which goes on
    /// behind them.
    pub(crate) fn find_content(
        &self,
        copy: &PageCopy,
        offset: &mut usize,
        content: &[u8],
    ) -> Result<(Located, Option<Range<usize>>), ProtocolError> {
        let PageCopy { page: page_id, is_zero, .. } = copy;
        let located = self.homes.locate(*page_id).filter(|located| located.page == *page_id);
        let Some(located) = located else {
            return Err(unexpected(Expected::AllocatedPage, format!("{page_id}")));
        };
        if *is_zero {
            return Ok((located, None));
        }
        let found = *offset..*offset + self.page_bytes(*page_id) as usize;
        *offset = found.end;
        if *offset > content.len() {
            let got = format!("{} bytes up to {page_id}", content.len());
            return Err(unexpected(Expected::AllBytesOfPages, got));
        }
        Ok((located, Some(found)))
    }

    /// Whether `first .. end` holds a few pages of the region of `end`, and no access to any.
    fn nothing_runs_free(&self, first: PageId, end: PageId, access_of: impl Fn(PageId) -> Access) -> bool {
        assert!(first <= end, "spans of pages ascend, and do not overlap: {first} before {end}");
        let same_region = self.homes.region_around(end).is_some_and(|region| region.contains(first));
        let gap = PageRange { first, count: end.0 - first.0 };
        let mut pages = self.homes.pages_in(gap).take(JOINED_GAP_PAGES_MAX + 1).enumerate();
        same_region
            && pages.all(|(index, page)| index < JOINED_GAP_PAGES_MAX && access_of(page.page) == Access::None)
    }
}

/// A protocol that keeps pages coherent. Every call may push effects to the site's outbox.
pub trait Coherence: Debug + Send {
    /// Whether other nodes read pages from this node's frames without its help, so that releases take their announcements.
    fn is_read_from(&self) -> bool {
        false
    }

    /// Whether an unlock may leave the interval open until another node asks for the lock: no other
    /// node need know before that what was written. True for lazy protocols.
    fn leaves_intervals_open(&self) -> bool {
        false
    }

    /// Whether pages are to be mapped onto their homes' frames, as far as their runs are long enough, where nodes share memory
    /// ([`crate::aurc::mapped`]). This protocol keeps the others coherent.
    fn maps_homes(&self) -> bool {
        false
    }

    /// Before anything else: lets homes move by this policy, where the protocol can do that.
    fn move_homes(&mut self, _policy: HomePolicy) {}

    /// Whether pages can get other homes than those where their region places them.
    fn can_move_homes(&self) -> bool {
        false
    }

    /// What the program may do with a page without a fault.
    fn access(&self, page: PageId) -> Access;

    /// The pages of which this node knows anything.
    fn known_pages(&self) -> Vec<PageId>;

    /// Which row of the protocol's state table such a page is in; `None` if this node knows nothing of it.
    ///
    /// # Errors
    /// The page fits no row: what it is.
    fn state(&self, site: &Site, page: Located) -> Option<Result<&'static str, String>>;

    /// A thread touched the page beyond its access, as [`Engine::handle_fault`](crate::Engine::handle_fault) says.
    fn fault(&mut self, site: &mut Site, page: Located, wanted: Access, waiter: Option<Waiter>);

    /// A thread operates on an atomic word.
    fn operate(&mut self, site: &mut Site, operation: WordOperation);

    /// The release that the protocol asked for ([`AfterRelease::Operate`]) is done.
    fn operate_after_release(&mut self, _site: &mut Site, operation: WordOperation) {
        unreachable!("nobody released for {operation:?}");
    }

    /// A release that the protocol asked for ([`AfterRelease::Continue`]) is done, and none is open.
    fn go_on_after_release(&mut self, _site: &mut Site, page: PageId) {
        unreachable!("nothing of {page} waited for a release");
    }

    /// Whether the host's answers to `Diff` are what releases wait for ([`close`](Self::close)).
    fn compares_at_releases(&self) -> bool {
        true
    }

    /// A thread will soon read these pages, all of regions with this protocol. A hint: bounded, never waited for.
    fn prefetch(&mut self, site: &mut Site, ranges: &[PageRange]);

    /// A message about pages has come.
    fn handle_message(
        &mut self,
        site: &mut Site,
        from: NodeId,
        message: &Message<'_>,
    ) -> Result<(), ProtocolError>;

    /// The host's answer to an effect of this protocol's: to `Diff`, `DiffEarly`, `Install` (merged), `Read` or `Atomic`.
    fn handle_done(&mut self, site: &mut Site, done: Done);

    /// Other nodes have announced that they read these pages, which may not be allocated here yet, or belong to another protocol.
    fn handle_announced(&mut self, _site: &mut Site, _pages: &[PageId]) {}

    /// With asynchronous tracking: the host is about to be asked what was written.
    fn prepare_release(&mut self, _site: &mut Site) {}

    /// With asynchronous tracking: these granules, among others' perhaps, may have been written since the last answer. At a release, or in a lull
    /// ([`handle_lull`](Self::handle_lull)): nobody will hear of them again.
    fn note_written(&mut self, _site: &mut Site, _granules: &PageSet) {}

    /// The interval ends: has what was written in it compared. The release awaits the host's answers.
    fn close(&mut self, _site: &mut Site) {}

    /// All is compared: sends what others must have. The release awaits no answers unless it is told to.
    fn flush(&mut self, _site: &mut Site) {}

    /// A notice, not seen here before, says that interval `seq` of another node changed the page. Pages that lose their access by it are
    /// added to `voided`; the caller takes it from them.
    fn handle_notice(
        &mut self,
        _site: &mut Site,
        _writer: NodeId,
        _seq: IntervalSeq,
        _page: PageId,
        _voided: &mut PageSet,
    ) {
    }

    /// All nodes have met, and seen each other's intervals through `all_have_seen`; their notices are still in the log.
    fn handle_meeting(&mut self, _site: &mut Site, _all_have_seen: &VectorTimestamp) {}

    /// The program's access to what notices have voided is gone.
    fn end_invalidation(&mut self, _site: &mut Site) {}

    /// The node is about to hand a lock over to another one, which has seen the intervals of `seen`: sends ahead what goes with the lock.
    fn hand_over(&mut self, _site: &mut Site, _lock: LockId, _to: NodeId, _seen: &VectorTimestamp) {}

    /// The node has got a lock, whose notices have taken the program's access to the pages in `voided`.
    fn begin_hold(&mut self, _site: &mut Site, _lock: LockId, _voided: &PageSet) {}

    /// The node arrives at a collective, and has closed its interval: sends ahead what others are known to read after it.
    fn supply(&mut self, _site: &mut Site) {}

    /// The node arrives at a collective: pages homed here that get another home there.
    fn give_away(&mut self, _site: &mut Site) -> Vec<HomeMoves> {
        Vec::new()
    }

    /// All nodes have met, and agreed at the same time that these pages have new homes, or keep theirs.
    /// Perhaps none.
    fn handle_moves(&mut self, _site: &mut Site, moves: &[PageMove]) -> Result<(), ProtocolError> {
        match moves.first() {
            Some(PageMove { page, to, .. }) => {
                Err(unexpected(Expected::HomesThatStay, format!("a move of {page} to node {to}")))
            }
            None => Ok(()),
        }
    }

    /// The release that the protocol asked for ([`AfterRelease::Move`]) is done.
    fn move_after_release(&mut self, _site: &mut Site) {}

    /// The host is short of memory, and no interval is being closed: copies of these pages leave, as far
    /// as the protocol lets them ([`Effect::GiveUp`]). Perhaps none of them does.
    fn give_up(&mut self, _site: &mut Site, _pages: &[PageId]) {}

    /// The release that the protocol asked for ([`AfterRelease::GiveUp`]) is done.
    fn give_up_after_release(&mut self, _site: &mut Site) {}

    /// The node has left a collective, and its threads are about to go on: takes what was sent ahead of that ([`supply`](Self::supply)).
    fn take_supplies(&mut self, _site: &mut Site) {}

    /// The program goes on after a barrier, which has taken its access to the pages in `voided`.
    fn begin_phase(&mut self, _site: &mut Site, _voided: &PageSet) {}

    /// Whether the protocol has a use for moments in which the host has nothing to do.
    fn wants_lull(&self) -> bool {
        false
    }

    /// The host has nothing to do, and no interval is being closed. The protocol may ask what was written ([`Effect::CollectWritten`]);
    /// [`note_written`](Self::note_written) tells the answer to all.
    fn handle_lull(&mut self, _site: &mut Site) {}

    /// Whether anything waits for a page that the host holds ([`Effect::Retain`]).
    fn waits_for_retained(&self) -> bool {
        false
    }

    /// The time for which the host was asked to hold a page is over.
    fn handle_retained(&mut self, _site: &mut Site, page: PageId) {
        unreachable!("nobody asked to hold {page}");
    }
}
