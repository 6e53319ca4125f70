//! What a node needs of a coherence protocol: the part of an engine that differs between protocols.
//!
//! A node's engine is [`Consistency`](crate::Consistency). It handles locks, condition variables and
//! collectives, divides the node's execution into intervals, and informs acquirers of the changes they have
//! not seen. It leaves pages to a [`Coherence`], or to several: each serves the regions that were allocated
//! under it. All of them share one [`Site`]: where pages live, what the node has seen, and its queue of
//! effects.
//!
//! A release ends an interval in steps. Each step begins when the answers that the step before awaits have
//! arrived:
//!
//! 1. if other nodes read frames of this node, the host is asked which pages they have announced
//!    ([`Effect::TakeAnnouncements`]);
//! 2. with asynchronous tracking, the host is asked which pages were written ([`Effect::CollectWritten`]);
//! 3. each protocol has the written pages compared ([`Coherence::close`]);
//! 4. each protocol sends its changes to other nodes ([`Coherence::flush`]), and waits for their answers if
//!    it must;
//! 5. the interval counts as seen, and the purpose of the release is carried out: the lock is handed over,
//!    the node arrives at a collective, …
//!
//! Releases of several threads run one after another. If all protocols of a node are lazy
//! ([`Coherence::leaves_intervals_open`]), an unlock is a release only when another node waits for the lock.

use core::fmt::Debug;
use core::ops::Range;
use std::collections::{BTreeSet, VecDeque};

use hiroba_base::{
    Access, IntervalSeq, LockId, NodeId, PageId, PageRange, PageSet, VectorTimestamp, VersionVector,
};
use hiroba_wire::{AtomicOperation, Collective, HomeMoves, Limits, Message, MoveKind, PageCopy};

use crate::home::{HomeMap, HomePolicy, Located};
use crate::interval::IntervalLog;
use crate::outbox::Outbox;
use crate::{
    Done, Effect, Expected, FAULTING_FROM_GRANULES, Fact, Outcome, ProtocolError, Synchronisation, Waiter,
    WriteTracking, unexpected,
};

/// The maximum number of pages without access between two invalidated pages that one call covers. Checking
/// that many pages costs less than another call, which interrupts every running sibling thread.
const JOINED_GAP_PAGES_MAX: usize = 32;

/// The maximum number of pages that one hint requests where pages are fetched one by one.
const HINTED_PAGES_MAX: usize = 256;

/// The maximum length of a page ([`PageSize`](hiroba_base::PageSize)).
const PAGE_BYTES_MAX: u64 = 2 << 20;

/// An operation on an atomic word that has not been carried out yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordOperation {
    /// The page.
    pub page: PageId,
    /// The word's byte offset in it.
    pub offset: u32,
    /// The operation.
    pub operation: AtomicOperation,
    /// The thread that waits for the result.
    pub waiter: Waiter,
}

/// A move of one page that all nodes have agreed on ([`HomeMoves`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageMove {
    /// The page.
    pub page: PageId,
    /// Its home from now on.
    pub to: NodeId,
    /// The reason for the move.
    pub kind: MoveKind,
}

/// The purpose of a release: what follows it.
#[derive(Clone, Copy, Debug)]
pub enum AfterRelease {
    /// The thread goes on to take a lock. Used only where acquires end intervals.
    Acquire(Synchronisation, Waiter),
    /// The thread gives up the lock, and waits for that.
    Unlock(LockId, Waiter),
    /// The thread gives up the lock, and then waits for a signal.
    Wait(LockId, Waiter),
    /// The lock, which was given up while the interval was open, goes to the node that waits for it.
    HandOver(LockId),
    /// The node arrives at a collective.
    Arrive(Collective),
    /// All nodes depart from the barrier at which they have arrived (`consistency/contributions.rs`).
    Conclude,
    /// The node learns what was written.
    Publish(NodeId, Waiter),
    /// The node learns what was written and not reported to it before.
    Inform(NodeId, Waiter),
    /// Pages that come to or leave this node as their home are at rest ([`Coherence::move_after_release`]).
    Move,
    /// Copies that are to be given up are at rest ([`Coherence::give_up_after_release`]).
    GiveUp,
    /// An operation on an atomic word must find the thread's own stores
    /// ([`Coherence::operate_after_release`]).
    Operate(WordOperation),
    /// Homes that got diffs without notices are informed.
    Tell,
    /// The page is sent to the node after the changes that this node knows of
    /// ([`Coherence::go_on_after_release`]).
    Order {
        /// The page, which identifies the request.
        page: PageId,
        /// The node.
        to: NodeId,
        /// False if no interval is closed for that: the page only waits for the end of an open release.
        closes: bool,
    },
    /// The protocol resumes what it could not do to this page while the previous release was open
    /// ([`Coherence::go_on_after_release`]).
    Continue(PageId),
    /// Pages whose access the program has lost for this release get another protocol
    /// (`consistency/converting.rs`).
    Convert(u64),
}

/// The step that a release has reached.
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
    /// The number of answers that the present step waits for.
    pub(crate) awaited: usize,
    /// Pages that changed, which are the interval's notices.
    pub(crate) noticed: PageSet,
    pub(crate) then: AfterRelease,
}

/// State that the protocols of a node share.
#[derive(Debug)]
pub struct Site {
    /// This node.
    pub me: NodeId,
    /// The job's bounds.
    pub limits: Limits,
    /// How the host detects writes.
    pub tracking: WriteTracking,
    /// The homes of pages.
    pub homes: HomeMap,
    /// The latest intervals that this node has seen.
    pub timestamp: VectorTimestamp,
    /// The notices that this node can pass on.
    pub log: IntervalLog,
    /// The number of collectives that this node has completed.
    pub collectives_done: u64,
    /// Grants and publications whose senders have left a collective whose departure has not reached this node
    /// yet; the notices of that departure must be absorbed first. At most one grant for each requested lock
    /// and one publication of each node.
    pub(crate) of_later_epochs: Vec<(NodeId, Vec<u8>)>,
    /// True if every acquire ends the interval, so that each interval lies between two synchronisations. Used
    /// to look for data races.
    pub acquires_end_intervals: bool,
    /// Effects for the host.
    pub out: Outbox,
    /// True if a record of the run is kept.
    pub(crate) tells: bool,
    /// True if all pages that can be lent travel with each departure. For tests.
    pub(crate) carries_all: bool,
    /// True if nodes arrive at this one at collectives.
    pub(crate) has_below: bool,
    /// True if pages may be fetched before a thread faults on them; otherwise each costs its own fault, as in
    /// the systems of the literature.
    pub(crate) prefetches: bool,
    /// Requests and diffs for regions that this node's own threads do not know yet, or for pages whose home
    /// this node will be. Their senders have left the collective that allocated the regions, or gave the
    /// pages to this node.
    pub(crate) deferred: Vec<(NodeId, Vec<u8>)>,
    /// Regions whose pages are requested one by one, as threads touch them.
    pub(crate) used_singly: Vec<PageRange>,
    /// True if fetches are ordered with the changes before them.
    pub(crate) orders_fetches: bool,
    /// Threads that leave a collective, or have got a lock, and go on as soon as all of `awaited` have come.
    pub(crate) leavers: Vec<(Waiter, Outcome)>,
    /// Pages that are being fetched, and that these threads will use at once.
    pub(crate) awaited: PageSet,
    /// Homes that diffs of the open release were sent to.
    pub(crate) flushed_to: BTreeSet<NodeId>,
    pub(crate) release: Option<OpenRelease>,
    /// Releases that have not begun: at most one for each thread of the node, one for pages that move and one
    /// for each protocol whose copies leave.
    pub(crate) releases: VecDeque<AfterRelease>,
}

impl Site {
    /// Returns the site of node `me`, with no page allocated.
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
            of_later_epochs: Vec::new(),
            acquires_end_intervals: false,
            out: Outbox::new(me),
            tells: false,
            carries_all: false,
            has_below: false,
            prefetches: true,
            deferred: Vec::new(),
            used_singly: Vec::new(),
            orders_fetches: false,
            leavers: Vec::new(),
            awaited: PageSet::new(),
            flushed_to: BTreeSet::new(),
            release: None,
            releases: VecDeque::new(),
        }
    }

    /// Notes that the home has got diffs, and must get the notices of their interval: that of the open
    /// release, or one that has ended.
    pub(crate) fn owe(&mut self, home: NodeId) {
        if self.release.is_some() {
            self.flushed_to.insert(home);
        } else {
            self.out.owe(home);
        }
    }

    /// Returns the pages that the program says it will read, at most as many as one hint may request.
    pub(crate) fn hinted(&self, ranges: &[PageRange]) -> Vec<PageId> {
        let located = ranges.iter().flat_map(|pages| self.homes.pages_in(*pages));
        located.take(HINTED_PAGES_MAX).map(|located| located.page).collect()
    }

    /// Returns true if stores to the page run free and are noted.
    pub fn is_async(&self, page: PageId) -> bool {
        self.tracking == WriteTracking::Async && self.locate(page).granules < FAULTING_FROM_GRANULES
    }

    /// Returns where a page lives.
    ///
    /// # Panics
    /// If the page is not allocated.
    pub fn locate(&self, page: PageId) -> Located {
        self.homes.locate(page).expect("a page that the engine knows is allocated")
    }

    /// Returns the page's length.
    pub fn page_bytes(&self, page: PageId) -> u32 {
        let bytes = self.locate(page).granules * u64::from(self.limits.granule_bytes);
        assert!(bytes <= PAGE_BYTES_MAX, "{page}: expected {PAGE_BYTES_MAX} bytes or less, got {bytes}");
        bytes as u32
    }

    /// Returns true if this node is the page's home.
    pub fn is_home(&self, page: PageId) -> bool {
        self.homes.home_of(page) == Some(self.me)
    }

    /// Records a fact, if a record is kept.
    pub fn tell(&mut self, fact: impl FnOnce() -> Option<Fact>) {
        if self.tells {
            self.out.extend(fact().map(Effect::Tell));
        }
    }

    /// Returns true if a publication of that node waits for a departure, so that later messages must wait,
    /// too.
    pub fn keeps_back(&self, from: NodeId) -> bool {
        self.of_later_epochs.iter().any(|(sender, _)| *sender == from)
    }

    /// Lets a thread go on that has got a lock, as soon as no page is awaited.
    pub(crate) fn go_on(&mut self, waiter: Waiter, outcome: Outcome) {
        if self.awaited.is_empty() {
            self.out.wake(waiter, outcome);
        } else {
            self.leavers.push((waiter, outcome));
        }
    }

    /// Lets threads leave the collective that is over, and those with a lock go on, if no page is awaited.
    pub(crate) fn let_leave(&mut self) {
        if self.awaited.is_empty() {
            for (waiter, outcome) in std::mem::take(&mut self.leavers) {
                self.out.wake(waiter, outcome);
            }
        }
    }

    /// Returns true if a record is kept.
    pub fn tells(&self) -> bool {
        self.tells
    }

    /// Ends the interval, now or after the releases before it, and then does `then`.
    pub fn release_for(&mut self, then: AfterRelease) {
        self.releases.push_back(then);
    }

    /// Returns true if the interval is being closed for pages that change their homes.
    pub fn closes_for_move(&self) -> bool {
        self.release.as_ref().is_some_and(|release| matches!(release.then, AfterRelease::Move))
    }

    /// Returns true if the interval is being closed because the node arrives at a collective.
    pub fn closes_for_meeting(&self) -> bool {
        self.release.as_ref().is_some_and(|release| matches!(release.then, AfterRelease::Arrive(_)))
    }

    /// Returns the number of the interval that is being closed.
    pub fn closing(&self) -> IntervalSeq {
        self.release.as_ref().expect("a release is open").seq
    }

    /// Returns the number of this node's latest interval that other nodes may know: that of the open release,
    /// once it is being flushed.
    pub fn latest_closed(&self) -> IntervalSeq {
        let flushed = self.release.as_ref().filter(|release| release.step == ReleaseStep::Flushing);
        flushed.map_or(self.timestamp.get(self.me), |release| release.seq)
    }

    /// Makes the open release wait for `count` more answers.
    pub fn await_answers(&mut self, count: usize) {
        let release = self.release.as_mut().expect("a release is open");
        assert_ne!(release.step, ReleaseStep::Announcing, "nobody but the host is asked for announcements");
        release.awaited += count;
    }

    /// Counts one awaited answer.
    pub fn answered(&mut self) {
        let awaited = &mut self.release.as_mut().expect("an answer is to an open release").awaited;
        *awaited = awaited.checked_sub(1).expect("no more answers than were awaited");
    }

    /// Returns true if an interval is being closed, so that no other can be.
    pub fn is_closing(&self) -> bool {
        self.release.is_some()
    }

    /// Closes an interval that changed only this page, for a change by the runtime itself. The program's
    /// writes meanwhile belong to later intervals.
    ///
    /// # Panics
    /// Panics while a release is open.
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

    /// Notes that the interval that is being closed has changed the page, so that acquirers get a notice.
    pub fn note_changed(&mut self, page: PageId) {
        assert!(self.homes.is_allocated(page), "{page}: only allocated pages change");
        let release = self.release.as_mut().expect("a release is open");
        assert!(
            matches!(release.step, ReleaseStep::Comparing | ReleaseStep::Flushing),
            "{page}: what an interval has changed is known when it is compared"
        );
        release.noticed.insert(page);
    }

    /// Returns true if the interval that is being closed is known to have changed the page.
    pub fn has_changed(&self, page: PageId) -> bool {
        self.release.as_ref().expect("a release is open").noticed.contains(page)
    }

    /// Sets the access of a page.
    pub(crate) fn protect(&mut self, page: PageId, access: Access) {
        let pages = self.locate(page).span();
        self.out.push(Effect::Protect { pages, access });
    }

    /// Sets the access of pages with one effect for each run: taking access away costs a system call and a
    /// TLB shootdown, however long the run.
    pub fn protect_all(&mut self, pages: &PageSet, access: Access) {
        let spans = self.homes.spans(pages).into_iter();
        self.out.extend(spans.map(|pages| Effect::Protect { pages, access }));
    }

    /// Takes the program's access to pages away in as few calls as possible. `access_of` returns the access
    /// to other pages.
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

    /// Returns the page's location and the range of its bytes in the received content, or no range if they
    /// are all zero. The range begins at `offset`, which is advanced past it.
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

    /// Checks that a version that another node sent names no interval of this node that has not ended.
    pub(crate) fn check_ended(&self, version: &VersionVector) -> Result<(), ProtocolError> {
        let (named, closed) = (version.get(self.me), self.latest_closed());
        if named > closed {
            let got = format!("interval {named} of this node, which has ended {closed}");
            return Err(unexpected(Expected::EndedIntervals, got));
        }
        Ok(())
    }

    /// Returns true if the pages `first .. end` are few, belong to the region of `end`, and have no access.
    fn nothing_runs_free(&self, first: PageId, end: PageId, access_of: impl Fn(PageId) -> Access) -> bool {
        assert!(first <= end, "spans of pages ascend, and do not overlap: {first} before {end}");
        let same_region = self.homes.region_around(end).is_some_and(|region| region.contains(first));
        let gap = PageRange { first, count: end.0 - first.0 };
        let mut pages = self.homes.pages_in(gap).take(JOINED_GAP_PAGES_MAX + 1).enumerate();
        same_region
            && pages.all(|(index, page)| index < JOINED_GAP_PAGES_MAX && access_of(page.page) == Access::None)
    }
}

/// A protocol that can give pages up to sequential consistency (`consistency/converting.rs`).
pub trait GivesUp {
    /// Returns true if the page's home is changing, and this node is its last or next home.
    fn is_moving(&self, page: PageId) -> bool;

    /// Returns true if nothing that concerns the page is under way on this node, except unsent stores.
    fn is_at_rest(&self, site: &Site, page: PageId) -> bool;

    /// Takes the program's access to a page away that is at rest. A release follows.
    fn let_go(&mut self, site: &mut Site, page: PageId);

    /// Forgets a page that is at rest and whose stores have been sent.
    fn forget(&mut self, page: PageId);
}

/// A protocol that keeps pages coherent. Every method may push effects to the site's outbox.
pub trait Coherence: Debug + Send {
    /// Returns true if other nodes read pages from this node's frames without its help, so that releases
    /// collect their announcements.
    fn is_read_from(&self) -> bool {
        false
    }

    /// Returns true if an unlock may leave the interval open until another node asks for the lock, because no
    /// other node needs to know earlier what was written. True for lazy protocols.
    fn leaves_intervals_open(&self) -> bool {
        false
    }

    /// Handles that the job has pages of other protocols, too, from now on. A protocol that orders the
    /// accesses to its own pages sequentially must then order them with the changes of the others.
    fn keep_order_with_others(&mut self) {}

    /// Sends pages, from now on, after the changes that this node knows of. See
    /// [`Engine::order_fetches`](crate::Engine::order_fetches).
    fn order_fetches(&mut self) {}

    /// Returns true if pages may get other homes.
    fn moves_pages(&self, _site: &Site) -> bool {
        false
    }

    /// Returns the nodes that [`move_after_release`](Self::move_after_release) hands pages over to.
    fn hands_over_to(&self) -> BTreeSet<NodeId> {
        BTreeSet::new()
    }

    /// Returns true if diffs of ended intervals have not been sent, because other nodes will agree that they
    /// need not be.
    fn withholds(&self) -> bool {
        false
    }

    /// Handles that publications that were kept back ([`Site::keeps_back`]) have been absorbed.
    fn handle_caught_up(&mut self, _site: &mut Site) -> Result<(), ProtocolError> {
        Ok(())
    }

    /// Returns true if pages are to be mapped onto their homes' frames where nodes share memory and the runs
    /// are long enough ([`crate::aurc::mapped`]). This protocol keeps the other pages coherent.
    fn maps_homes(&self) -> bool {
        false
    }

    /// Lets homes move by this policy, if the protocol supports that. Called before any other method.
    fn move_homes(&mut self, _policy: HomePolicy) {}

    /// Returns true if pages can get other homes than those where their region places them.
    fn can_move_homes(&self) -> bool {
        false
    }

    /// Returns what the program may do with a page without a fault.
    fn access(&self, page: PageId) -> Access;

    /// Returns the pages that this node has any state of.
    fn known_pages(&self) -> Vec<PageId>;

    /// Returns the row of the protocol's state table that such a page is in, or `None` if this node has no
    /// state of it.
    ///
    /// # Errors
    /// A description of the page if it fits no row.
    fn state(&self, site: &Site, page: Located) -> Option<Result<&'static str, String>>;

    /// Handles that a thread touched the page beyond its access, as
    /// [`Engine::handle_fault`](crate::Engine::handle_fault) does.
    fn fault(&mut self, site: &mut Site, page: Located, wanted: Access, waiter: Option<Waiter>);

    /// Returns the part of the protocol that gives pages up to sequential consistency, if it can.
    fn as_giver(&mut self) -> Option<&mut dyn GivesUp> {
        None
    }

    /// Takes a page over that another protocol has given up. Its home has the content, and no thread of this
    /// node has access.
    fn take_over(&mut self, _site: &mut Site, page: PageId) {
        unreachable!("{page} stays with the protocol of its region");
    }

    /// Begins a thread's operation on an atomic word.
    fn operate(&mut self, site: &mut Site, operation: WordOperation);

    /// Continues after a release that the protocol requested ([`AfterRelease::Operate`]).
    fn operate_after_release(&mut self, _site: &mut Site, operation: WordOperation) {
        unreachable!("nobody released for {operation:?}");
    }

    /// Continues after a release that the protocol requested ([`AfterRelease::Continue`]). No release is
    /// open.
    fn go_on_after_release(&mut self, _site: &mut Site, page: PageId) {
        unreachable!("nothing of {page} waited for a release");
    }

    /// Returns true if releases wait for the host's answers to `Diff` ([`close`](Self::close)).
    fn compares_at_releases(&self) -> bool {
        true
    }

    /// Handles the hint that a thread will soon read these pages, all in regions of this protocol. The work
    /// is bounded, and no thread waits for it.
    fn prefetch(&mut self, site: &mut Site, ranges: &[PageRange]);

    /// Handles a message about pages.
    fn handle_message(
        &mut self,
        site: &mut Site,
        from: NodeId,
        message: &Message<'_>,
    ) -> Result<(), ProtocolError>;

    /// Handles the host's answer to an effect of this protocol: to `Diff`, `DiffEarly`, `Install` (with
    /// `merge`), `Read` or `Atomic`.
    fn handle_done(&mut self, site: &mut Site, done: Done);

    /// Handles announcements of other nodes that they read these pages. The pages may not be allocated here
    /// yet, or may belong to another protocol.
    fn handle_announced(&mut self, _site: &mut Site, _pages: &[PageId]) {}

    /// Prepares for a release: the host is about to be asked what was written. For asynchronous tracking.
    fn prepare_release(&mut self, _site: &mut Site) {}

    /// Notes granules that may have been written since the last answer; some may belong to other protocols.
    /// Called at a release, or in a lull ([`handle_lull`](Self::handle_lull)). The host reports each write
    /// only once. For asynchronous tracking.
    fn note_written(&mut self, _site: &mut Site, _granules: &PageSet) {}

    /// Ends the interval: has the pages written in it compared. The release awaits the host's answers.
    fn close(&mut self, _site: &mut Site) {}

    /// Sends what other nodes must have, after all pages are compared. The release awaits answers only if the
    /// protocol asks for that ([`Site::await_answers`]).
    fn flush(&mut self, _site: &mut Site) {}

    /// Handles a new notice: interval `seq` of another node changed the page. Pages that lose their access
    /// are added to `voided`; the caller takes the access away.
    fn handle_notice(
        &mut self,
        _site: &mut Site,
        _writer: NodeId,
        _seq: IntervalSeq,
        _page: PageId,
        _voided: &mut PageSet,
    ) {
    }

    /// Handles that all nodes have met and seen each other's intervals through `all_have_seen`, whose notices
    /// are still in the log.
    fn handle_meeting(&mut self, _site: &mut Site, _all_have_seen: &VectorTimestamp) {}

    /// Continues after the program has lost its access to the pages that notices have voided.
    fn end_invalidation(&mut self, _site: &mut Site) {}

    /// Sends what must precede a lock: the node is about to hand one over to another node.
    fn hand_over(&mut self, _site: &mut Site) {}

    /// Handles that the node has got a lock, whose notices have taken the program's access to `voided`.
    fn begin_hold(&mut self, _site: &mut Site, _lock: LockId, _voided: &PageSet) {}

    /// Returns the pages homed here that get another home at a collective. The node arrives there.
    fn give_away(&mut self, _site: &mut Site) -> Vec<HomeMoves> {
        Vec::new()
    }

    /// Handles the agreement of all nodes, which have met, that these pages have new homes or keep theirs.
    /// There may be none.
    fn handle_moves(&mut self, _site: &mut Site, moves: &[PageMove]) -> Result<(), ProtocolError> {
        match moves.first() {
            Some(PageMove { page, to, .. }) => {
                Err(unexpected(Expected::HomesThatStay, format!("a move of {page} to node {to}")))
            }
            None => Ok(()),
        }
    }

    /// Continues after the release that the protocol requested ([`AfterRelease::Move`]).
    fn move_after_release(&mut self, _site: &mut Site) {}

    /// Frees memory for the host; no interval is being closed. As far as the protocol permits, copies among
    /// these pages are discarded ([`Effect::GiveUp`]) and home pages go to a disk ([`Effect::PageOut`]). It
    /// may permit none.
    fn give_up(&mut self, _site: &mut Site, _pages: &[PageId]) {}

    /// Continues after the release that the protocol requested ([`AfterRelease::GiveUp`]).
    fn give_up_after_release(&mut self, _site: &mut Site) {}

    /// Prepares for a collective, at which the node is about to arrive: the interval is closed next. Of the
    /// pages `along`, all of this protocol, copies may travel with the departure, and of the pages `up` with
    /// the arrival.
    fn prepare_meeting(&mut self, _site: &mut Site, _along: &PageSet, _up: &PageSet) {}

    /// Sends the node above what is to precede this node's arrival at a collective, which is sent next.
    fn lend_up(&mut self, _site: &mut Site, _above: NodeId) {}

    /// Handles that all other nodes have arrived at the next collective, of whose tree this node is the root.
    fn handle_others_here(&mut self, _site: &mut Site) {}

    /// Prepares again for the departure that this node's thread has delayed: it may have touched pages whose
    /// copies were to travel with it. Returns true if copies of pages that threads have touched since the
    /// arrival are to travel behind a release, which is requested next.
    fn prepare_departure(&mut self, _site: &mut Site) -> bool {
        false
    }

    /// Handles that this release has made changes known that other nodes do not learn of by the departure: no
    /// copies of the pages that have been prepared for it again may travel.
    fn withdraw_departure(&mut self, _site: &mut Site) {}

    /// Handles that a thread of this node goes on now that all others have arrived. It knows all that they
    /// have written.
    fn begin_alone(&mut self, _site: &mut Site) {}

    /// Sends nodes what is to precede their departure from a collective, which is sent next. All nodes have
    /// arrived.
    fn lend(&mut self, _site: &mut Site, _to: &[NodeId]) {}

    /// Handles that a publication has taken the program's access to `voided`.
    fn note_lost(&mut self, _site: &mut Site, _voided: &PageSet) {}

    /// Handles that the program goes on after a barrier, which has taken its access to `voided`.
    fn begin_phase(&mut self, _site: &mut Site, _voided: &PageSet) {}

    /// Returns true if the protocol uses moments in which the host has nothing to do.
    fn wants_lull(&self) -> bool {
        false
    }

    /// Uses a moment in which the host has nothing to do and no interval is being closed. The protocol may
    /// ask what was written ([`Effect::CollectWritten`]); all protocols get the answer by
    /// [`note_written`](Self::note_written).
    fn handle_lull(&mut self, _site: &mut Site) {}

    /// Returns true if a request waits for a page that the host retains ([`Effect::Retain`]).
    fn waits_for_retained(&self) -> bool {
        false
    }

    /// Continues when the time has passed for which the host was asked to retain a page.
    fn handle_retained(&mut self, _site: &mut Site, page: PageId) {
        unreachable!("nobody asked to hold {page}");
    }
}
