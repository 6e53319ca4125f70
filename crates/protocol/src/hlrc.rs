//! Home-based lazy release consistency.
//!
//! Read first: Zhou, Iftode, Li, *Performance Evaluation of Two Home-Based Lazy Release Consistency Protocols
//! for Shared Virtual Memory Systems*, OSDI 1996, its section on protocols; for intervals, vector timestamps
//! and write notices Keleher, Cox, Zwaenepoel, *Lazy Release Consistency for Software Distributed Shared
//! Memory*, ISCA 1992.
//!
//! Tests: `check/tests/all/hlrc.rs`, and there `page_axioms.rs`, `ordered.rs`, `moves.rs`,
//! `explore.rs`, `golden.rs` and `endurance.rs`.
//!
//! A node's execution is divided into **intervals** that end at releases. When one ends, each page written in
//! it is compared with its **twin**, and the **diff** goes to the page's **home**, whose copy is therefore
//! always up to date. **Write notices** inform an acquirer which pages changed in intervals that it has not
//! seen, and it invalidates them. A later fault fetches the whole page from the home, which waits until every
//! interval that the faulting node's notices name has reached it. No node ever asks a writer for a diff, and
//! a diff lives no longer than the message that carries it.
//!
//! The states of a page on one node, with the names of [`State`]. *Valid*: the copy has all changes that
//! notices name.
//!
//! | state | valid | access | twin | load faults | store faults |
//! |---|---|---|---|---|---|
//! | absent | no | None | no | fetch → clean | fetch, twin → dirty |
//! | clean copy | yes | Read | no | – | twin → dirty |
//! | closed copy | yes | None | no | → clean | twin → dirty |
//! | dirty copy | yes | Write | yes | – | – |
//! | invalidated, with a twin | no | None | yes | fetch, **merge** → dirty | the same |
//! | home, exclusive | – | Write (None before the first touch) | no | – | – |
//! | home, reclaimed | – | Read | no | – | → home, exclusive |
//! | home, shared, clean | – | Read | no | – | note the write → home, written |
//! | home, resting | – | None | no | → home, shared, clean | note the write → home, written |
//! | home, written | – | Write | no (yes where fetches are ordered: `ordered.rs`) | – | – |
//! | home, shared, unguarded | – | Write | no | – | – |
//! | home, diffs missing | – | None | no | wait for the diffs | the same |
//! | coming (see `protocol/src/moves.rs`) | – | None | no | wait for the page | the same |
//!
//! A release takes *dirty* to *clean* (diff) and *home, written* to *home, shared, clean* (notice only). A
//! notice takes a copy to *absent* or *invalidated*, and a home page to *diffs missing* until they come. A
//! home page that was written after each fetch stays writable at the next fetches, *unguarded*: it counts as
//! written up to the barrier that makes it exclusive (`tracking.rs`).
//!
//! If the host tracks writes asynchronously ([`WriteTracking::Async`](crate::WriteTracking)), stores to a
//! present page never fault, except on long pages
//! ([`FAULTING_FROM_GRANULES`](crate::FAULTING_FROM_GRANULES)). The host notes stores to *watched* pages, and
//! a release asks which pages were written. The rows that differ:
//!
//! | state | valid | access | twin | load faults | store faults |
//! |---|---|---|---|---|---|
//! | absent | no | None | no | fetch, twin → watched | the same |
//! | closed copy | yes | None | no | twin → watched | the same |
//! | watched copy | yes | watched | yes | – | – |
//! | invalidated, with a twin | no | None | yes | fetch, **merge** → watched | the same |
//! | home, reclaimed | – | watched | no | – | – (a store that the host has noted → home, exclusive) |
//! | home, shared, watched | – | watched | no | – | – |
//! | home, resting | – | None | no | → home, shared, watched | the same |
//!
//! The twin is kept from the fetch on. At a release it becomes twin + diff, never the page, because sibling
//! threads may be writing the page. A copy that no thread has written for [`RESTING_AFTER_RELEASES`] releases
//! gives up its twin and its place in the scan, and is *closed*; a home page in the same situation is
//! *resting*.
//!
//! If the host is short of memory, copies become absent, dirty ones after a release has sent their diffs.
//! Home pages lose their access before their frames go to a disk (`leaving.rs`).
//!
//! A page can be given up to sequential consistency (`converting.rs`).
//!
//! Copies are fetched one by one as they are touched, or many in a message: `copies.rs` requests, sends and
//! installs them. [`crate::anticipation`] chooses the pages that are fetched before they are touched; this
//! protocol reports what happens to its copies, and fetches what is proposed. Moves of homes are also
//! separate (`protocol/src/moves.rs`); of them this protocol contains only `moving.rs`, which lets pages rest
//! and leave. The nodes meet along a tree ([`crate::barrier`]).
//!
//! Deviations from the paper:
//! - An unlock that no other node waits for does not end the interval; the release takes place when another
//!   node asks for the lock (see [`crate::lock`]).
//! - An acquire does not end the interval. A dirty page that it invalidates keeps its twin, and the page that
//!   is fetched later is merged: bytes in which it differs from the twin go into frame and twin.
//! - The log of intervals keeps only each writer's latest notice for a page (see [`crate::interval`]).
//! - A home page of which no other node holds a copy is *exclusive*: it is written without faults or notices.
//!   The first fetch makes it shared, and counts it as written in the open interval. A barrier that carries a
//!   notice of it, after which all copies are void, makes it exclusive again unless it was fetched after the
//!   interval had ended.
//! - Atomic words are operated on at the home. The operating node's next interval carries a notice for the
//!   page and an empty diff advances its version, so plain loads elsewhere see the word after the next
//!   acquire. That holds for loads too: a thread that has seen another node's change passes it to later
//!   acquirers.
//! - Where the fabric can read other nodes' memory, the faulting thread copies the page out of the home's
//!   frame itself, and the home does nothing. So that this is a fetch like any other, the home publishes
//!   which intervals its frames hold (like the page's version, but for all its pages at once), and learns its
//!   readers from what they announce before they copy: at its next release it treats a newly announced page
//!   as written. In any doubt the reader sends a request. `one_sided.rs` argues why this is correct.

mod atomics;
mod comparing;
mod converting;
mod copies;
mod early;
mod leaving;
mod moving;
mod one_sided;
mod ordered;
mod reclaiming;
mod rewriting;
mod state;
mod tracking;
mod unasked;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hiroba_base::{
    Access, IntervalSeq, LockId, NodeId, PageId, PageRange, PageSet, VectorTimestamp, VersionVector,
};
use hiroba_wire::{AtomicOperation, HomeMoves, Message, PageDiff};

use self::atomics::AtomicTargets;
use self::comparing::Comparisons;
use self::leaving::Leaving;
use self::one_sided::Reach;
use self::ordered::Ordered;
use self::rewriting::Rewriting;
pub use self::state::State;
use self::state::{Circumstances, Homed};
pub use self::tracking::RESTING_AFTER_RELEASES;
use self::tracking::{Leave, Watch};
use crate::anticipation::{Anticipation, Touch};
use crate::batches::Flush;
use crate::coherence::{Coherence, GivesUp, PageMove, Site, WordOperation};
use crate::exclusive_runs::ExclusiveRuns;
use crate::home::{HomePolicy, Located};
use crate::moves::Moves;
use crate::page_table::PageTable;
use crate::thread::wanted_beyond;
use crate::words::{Client, Turns};
use crate::{Done, Effect, Expected, Fact, Outcome, ProtocolError, Waiter, diff, unexpected};

/// Home-based lazy release consistency on one node.
#[derive(Debug, Default)]
pub struct Hlrc {
    /// True while data races are looked for: see [`Hlrc::looking_for_races`].
    looks_for_races: bool,
    /// Pages that the program got access to in the open interval. Used while data races are looked for.
    given: PageSet,
    /// The nodes whose frames this node reads itself, and those that read this node's frames.
    reach: Reach,
    /// Fetches that are ordered with the changes before them.
    ordered: Ordered,
    rewriting: Rewriting,
    pages: PageTable<Page>,
    /// Pages written in the open interval: copies with a twin, and shared home pages. With asynchronous
    /// tracking, only those that are known to be written, or must be assumed to be, before the host is asked.
    pub(crate) written: PageSet,
    watch: Watch,
    /// Pages homed elsewhere on whose atomic words this node operated in the open interval.
    operated_on: PageSet,
    /// Copies of which the home has already received a part of the open interval's changes: see
    /// [`crate::aurc`].
    pub(crate) sent_early: PageSet,
    comparisons: Comparisons,
    /// The diffs that the interval that is being closed must send to each home.
    flushes: BTreeMap<NodeId, Flush>,
    /// `Effect::Atomic`s that the host has not answered yet, in order: the client that wants the result, and
    /// the word (page and offset).
    atomics: VecDeque<(Client, PageId, u32)>,
    /// Atomic operations under way at other homes.
    atomic_targets: AtomicTargets,
    /// The numbers of operations on words that are homed here.
    turns: Turns,
    exclusive_runs: ExclusiveRuns,
    moves: Moves,
    anticipation: Anticipation,
    leaving: Leaving,
}

#[derive(Debug, Default)]
struct Page {
    access: Access,
    /// True for a copy that satisfies all notices seen. Unused on the home.
    valid: bool,
    /// True if the host keeps a twin.
    twin: bool,
    /// True if the host notes writes (asynchronous tracking).
    watched: bool,
    /// The release at which it was last written or began to be watched.
    busy_at: u32,
    /// The intervals that the frame contains; on the home, those whose diffs have come.
    version: VersionVector,
    /// The intervals that notices demand beyond `version`.
    needed: VersionVector,
    /// Home: true if another node may hold a copy.
    shared: bool,
    /// Home: true if another node has fetched the page since the last notice of a write here.
    served: bool,
    /// Home: the number of collectives that were over when another node last fetched it.
    served_at: u64,
    /// Home: true if it is exclusive, or was until a notice came, and may have been written without notice.
    unnoticed: bool,
    /// Home, shared: true if accesses do not fault and are not watched, so that it counts as written in every
    /// interval (asynchronous tracking).
    unguarded: bool,
    /// Home: the fetches at which it need not be watched.
    leave: Leave,
    /// Home: true if threads have operated on its atomic words.
    has_words: bool,
    /// A request under way (copy), or awaited diffs (home): the waiting threads, and the access that they
    /// want.
    fetch: Option<Fetch>,
    /// Home: requests that wait for diffs.
    pending: Vec<PendingRequest>,
}

#[derive(Debug, Default)]
struct Fetch {
    waiters: Vec<Waiter>,
    wants_write: bool,
    /// True if a thread waits, or has waited, for it.
    demanded: bool,
}

#[derive(Debug)]
struct PendingRequest {
    needed: VersionVector,
    request: HomeRequest,
}

#[derive(Debug)]
enum HomeRequest {
    Page(NodeId),
    Atomic { client: Client, offset: u32, operation: AtomicOperation },
}

impl Hlrc {
    /// Returns the protocol with no pages allocated.
    pub fn new() -> Hlrc {
        Hlrc::default()
    }

    /// Makes each write of each interval show as a diff, and the first load from each page as a fault, so
    /// that the host can compare concurrent intervals (see [`crate::races`]). Home pages have twins too, no
    /// page is exclusive, an acquire takes all access away, and a page that no thread has touched has no
    /// access. Much slower.
    pub fn looking_for_races() -> Hlrc {
        Hlrc { looks_for_races: true, ..Hlrc::new() }
    }

    fn protect(&mut self, site: &mut Site, page_id: PageId, access: Access) {
        self.set_access(page_id, access);
        if self.looks_for_races && access > Access::None {
            self.given.insert(page_id);
        }
        site.protect(page_id, access);
    }

    /// Notes the program's access to the page. An effect that sets it follows.
    fn set_access(&mut self, page_id: PageId, access: Access) {
        let page = self.pages.or_default(page_id);
        page.access = access;
        if std::mem::take(&mut page.watched) {
            let was_watched = self.watch.pages.remove(&page_id);
            assert!(was_watched, "{page_id}: what is watched is among the watched pages");
        }
    }

    /// Returns true if the host notes writes to any page.
    pub(crate) fn watches_any(&self) -> bool {
        !self.watch.pages.is_empty()
    }

    fn make_twin(&mut self, site: &mut Site, page_id: PageId) {
        let page = self.pages.or_default(page_id);
        assert!(!page.twin, "{page_id}: it has a twin already");
        page.twin = true;
        let page_bytes = site.page_bytes(page_id);
        site.out.push(Effect::Twin { page: page_id, page_bytes });
    }

    /// Sets the access of pages with one effect for each run.
    fn protect_set(&mut self, site: &mut Site, pages: &PageSet, access: Access) {
        pages.iter().for_each(|page_id| self.set_access(page_id, access));
        if self.looks_for_races && access > Access::None {
            self.given.extend(pages);
        }
        site.protect_all(pages, access);
    }

    /// Returns the row of a page that this node has state of, or `None` if it fits no row.
    fn state_of(&self, site: &Site, page: Located, known: &Page) -> Option<State> {
        let Located { page: page_id, home, .. } = page;
        let homed = match home == site.me {
            _ if self.moves.is_coming(page_id) => Homed::HereSoon,
            true => Homed::Here,
            false => Homed::Elsewhere,
        };
        let around = Circumstances {
            homed,
            is_async: site.is_async(page_id),
            is_written: self.written.contains(page_id),
            is_closing: site.is_closing(),
            looks_for_races: self.looks_for_races,
            keeps_snapshots: self.ordered.is_on(),
        };
        State::of(known, around)
    }

    /// Returns the pages that the program could access in the interval that is being closed and cannot any
    /// more, while data races are looked for. The first touch of each page in the next interval faults.
    fn take_given(&mut self) -> PageSet {
        assert!(self.looks_for_races, "else pages stay accessible beyond a release");
        let mut taken = PageSet::new();
        for page_id in std::mem::take(&mut self.given).iter() {
            let page = self.pages.or_default(page_id);
            if std::mem::take(&mut page.access) > Access::None {
                taken.insert(page_id);
            }
        }
        taken
    }
}

/// Faults: a copy is fetched whole from its home (Zhou, Iftode, Li).
impl Hlrc {
    /// Handles a fault. Absent → clean or dirty by one round trip to the home (Zhou, Iftode, Li); clean,
    /// closed → dirty by a twin (Keleher, Cox, Zwaenepoel: multiple writers); home, shared, clean → home,
    /// written without a twin.
    fn handle_fault(&mut self, site: &mut Site, located: Located, wanted: Access, waiter: Option<Waiter>) {
        let Located { page: page_id, home, .. } = located;
        let page = self.pages.or_default(page_id);
        let wanted = wanted_beyond(page.access, wanted);
        if wanted == Access::Write && page.access < wanted {
            self.open_ahead(site, located);
        }
        let page = self.pages.or_default(page_id);
        if page.access >= wanted {
            // Two threads faulted on one page, or the host had to lower access for its own reasons.
            if page.watched {
                // With the access the host may have lost the information whether the page was written.
                self.written.insert(page_id);
                self.watch(site, page_id);
            } else {
                let access = page.access;
                self.protect(site, page_id, access);
            }
        } else if self.moves.keeps_away(page_id) || home == site.me && !page.needed.is_empty() {
            page.wait(wanted, waiter);
            return;
        } else if home == site.me {
            self.moves.touched(site, page_id, site.me);
            self.grant_home_access(site, located, wanted);
        } else if page.valid {
            let touch = if page.access == Access::None { Touch::Opened } else { Touch::Written };
            self.give_copies(site, [(page_id, wanted)]);
            let ahead = self.tell_touch(site, located, touch);
            self.fetch_ahead(site, ahead);
        } else {
            let touch = if page.fetch.is_some() { Touch::UnderWay } else { Touch::Missed };
            page.wait(wanted, waiter);
            let ahead = self.tell_touch(site, located, touch);
            if touch == Touch::Missed {
                self.request_page(site, home, page_id);
            }
            self.fetch_ahead(site, ahead);
            return;
        }
        if let Some(waiter) = waiter {
            site.out.wake(waiter, Outcome::Done);
        }
    }

    fn grant_home_access(&mut self, site: &mut Site, located: Located, wanted: Access) {
        let page_id = located.page;
        assert_eq!(located.home, site.me, "{page_id}: its home is here");
        let page = self.pages.or_default(page_id);
        assert!(page.needed.is_empty(), "{page_id}: no diff that notices name is missing");
        let has_twin = page.twin;
        let is_closed = page.access == Access::None;
        if is_closed && !has_twin && site.is_async(page_id) && !self.looks_for_races {
            return self.give_own(site, located);
        }
        if !page.shared && !self.looks_for_races {
            if !page.unnoticed && page.version.is_empty() {
                return self.give_own(site, located);
            }
            if page.access == Access::Read {
                // Its readers have dropped their copies, and it is written again.
                page.leave.renew();
            }
            page.unnoticed = true;
            self.protect(site, page_id, Access::Write);
        } else if site.is_async(page_id) {
            self.watch(site, page_id);
        } else if wanted == Access::Write || self.written.contains(page_id) {
            let has_words = self.pages[&page_id].has_words;
            let needs_snapshot = self.ordered.is_on() && !self.written.contains(page_id) && !has_words;
            if (self.looks_for_races || needs_snapshot) && !has_twin {
                self.make_twin(site, page_id);
            }
            self.written.insert(page_id);
            self.protect(site, page_id, Access::Write);
        } else {
            self.protect(site, page_id, Access::Read);
        }
    }

    /// Gives the program access to a page homed here that it has touched, and to the pages of its run.
    fn give_own(&mut self, site: &mut Site, touched: Located) {
        let Hlrc { exclusive_runs, pages, moves, .. } = self;
        let is_in_the_way = |page_id: PageId| {
            pages.get(&page_id).is_some_and(|page| {
                let is_untouched = page.access == Access::None && !page.twin && page.fetch.is_none();
                !(is_untouched && page.needed.is_empty()) || moves.keeps_away(page_id)
            })
        };
        let given = exclusive_runs.give(site, touched, is_in_the_way);
        let (mut watched, mut free) = (PageSet::new(), PageSet::new());
        for page_id in given.iter() {
            let page = self.pages.or_default(page_id);
            if page.shared && site.is_async(page_id) {
                watched.insert(page_id);
            } else if !page.shared {
                page.unnoticed = true;
                free.insert(page_id);
            }
        }
        self.watch_set(site, &watched);
        self.protect_set(site, &free, Access::Write);
    }
}

impl Page {
    fn wait(&mut self, wanted: Access, waiter: Option<Waiter>) {
        let fetch = self.fetch.get_or_insert_default();
        fetch.waiters.extend(waiter);
        fetch.wants_write |= wanted == Access::Write;
        fetch.demanded = true;
    }
}

/// The home's side: applies diffs as they come, and serves a page once it has the intervals that the request
/// names.
impl Hlrc {
    /// Handles a request, which names the intervals that the page must hold. If some are missing, the request
    /// waits for their diffs (Zhou, Iftode, Li: the home compares versions).
    fn handle_home_request(
        &mut self,
        site: &mut Site,
        page_id: PageId,
        needed: &VersionVector,
        request: HomeRequest,
    ) {
        let is_coming = self.moves.is_coming(page_id);
        let page = self.pages.or_default(page_id);
        if page.version.covers(needed) && !is_coming {
            self.serve(site, page_id, request);
        } else {
            page.pending.push(PendingRequest { needed: needed.clone(), request });
        }
    }

    fn serve(&mut self, site: &mut Site, page_id: PageId, request: HomeRequest) {
        match request {
            HomeRequest::Page(to) => {
                self.moves.touched(site, page_id, to);
                self.send_in_order(site, to, &[page_id]);
            }
            HomeRequest::Atomic { client, offset, operation } => {
                self.pages.or_default(page_id).has_words = true;
                self.moves.operated_on(page_id);
                self.atomics.push_back((client, page_id, offset));
                site.out.push(Effect::Atomic { page: page_id, offset, operation });
            }
        }
    }

    /// Applies diffs when they come and keeps none (Zhou, Iftode, Li). The last missing one takes the page
    /// from home, diffs missing → home, shared, clean.
    fn handle_diffs(
        &mut self,
        site: &mut Site,
        writer: NodeId,
        seq: IntervalSeq,
        last: bool,
        diffs: &[PageDiff<'_>],
    ) -> Result<(), ProtocolError> {
        self.make_room(site, diffs);
        for diff in diffs {
            self.check_diff(site, diff)?;
            let PageDiff { page: page_id, runs } = *diff;
            let held = self.pages.get(&page_id).map_or(0, |page| page.version.get(writer));
            if held > seq {
                let got = format!("one of interval {seq} behind interval {held}");
                return Err(unexpected(Expected::DiffsInOrder, got));
            }
            if !self.is_mark(page_id, writer, seq, runs) && !self.moves.keeps_diff(diff, writer, seq, false) {
                self.apply_diff(site, page_id, writer, seq, runs);
                self.serve_pending(site, page_id);
            }
        }
        if last {
            self.publish(site, writer, seq);
        }
        Ok(())
    }

    /// Returns true if a diff only marks the last one of its interval: its writer names a page again.
    fn is_mark(&self, page_id: PageId, writer: NodeId, seq: IntervalSeq, runs: &[u8]) -> bool {
        runs.is_empty() && self.pages.get(&page_id).is_some_and(|page| page.version.get(writer) == seq)
    }

    /// Has the host prepare frames for pages that these diffs fill for the first time.
    fn make_room(&self, site: &mut Site, diffs: &[PageDiff<'_>]) {
        let is_empty = |page: &Located| {
            let known = self.pages.get(&page.page);
            page.home == site.me
                && known.is_none_or(|known| known.version.is_empty() && known.access == Access::None)
        };
        let filled = diffs.iter().filter(|diff| !diff.runs.is_empty());
        let located = filled.filter_map(|diff| site.homes.locate(diff.page)).filter(is_empty);
        let pages: PageSet = located.flat_map(|page| page.span().iter()).collect();
        let runs = pages.ranges().iter().filter(|run| run.count > 1);
        site.out.extend(runs.map(|pages| Effect::MakeRoom { pages: *pages }));
    }

    /// Checks that a diff fits a page that is homed here.
    fn check_diff(&self, site: &Site, diff: &PageDiff<'_>) -> Result<(), ProtocolError> {
        let PageDiff { page: page_id, runs } = *diff;
        let located = site.homes.locate(page_id);
        if located.is_none_or(|located| located.page != page_id || located.home != site.me) {
            return Err(unexpected(Expected::DiffsToHome, format!("one of {page_id}")));
        }
        Ok(diff::check(runs, site.page_bytes(page_id) as usize)?)
    }

    fn apply_diff(
        &mut self,
        site: &mut Site,
        page_id: PageId,
        writer: NodeId,
        seq: IntervalSeq,
        runs: &[u8],
    ) {
        assert!(site.is_home(page_id), "{page_id}: diffs are applied at its home");
        self.change_frame(site, page_id, writer, seq, runs);
        let page = self.pages.or_default(page_id);
        page.version.advance(writer, seq);
        page.needed.retain_beyond(&page.version);
        self.moves.applied(page_id, &page.version);
    }

    /// Changes the frame of a page that is homed here and notes the writer, but leaves the version unchanged.
    fn change_frame(
        &mut self,
        site: &mut Site,
        page_id: PageId,
        writer: NodeId,
        seq: IntervalSeq,
        runs: &[u8],
    ) {
        if !runs.is_empty() {
            if self.looks_for_races && self.pages.get(&page_id).is_some_and(|page| page.access > Access::None)
            {
                // The host compares the program's stores to the page before they are overwritten. No store
                // may happen in between.
                self.protect(site, page_id, Access::None);
            }
            site.out.push(Effect::Apply { page: page_id, runs: runs.to_vec() });
        }
        site.tell(|| Some(Fact::Applied { page: page_id, writer, seq, bytes: runs.len() as u32 }));
        let own = self.pages.or_default(page_id).version.get(site.me);
        self.moves.modified(site, page_id, writer, runs.len(), own);
    }

    fn serve_pending(&mut self, site: &mut Site, page_id: PageId) {
        let page = self.pages.or_default(page_id);
        if !page.pending.is_empty() {
            let held = &page.version;
            let ready: Vec<_> = page.pending.extract_if(.., |pending| held.covers(&pending.needed)).collect();
            ready.into_iter().for_each(|pending| self.serve(site, page_id, pending.request));
        }
        let page = self.pages.or_default(page_id);
        if page.needed.is_empty()
            && let Some(fetch) = page.fetch.take()
        {
            let wanted = if fetch.wants_write { Access::Write } else { Access::Read };
            self.grant_home_access(site, site.locate(page_id), wanted);
            fetch.waiters.into_iter().for_each(|waiter| site.out.wake(waiter, Outcome::Done));
        }
    }
}

/// Releases: closing an interval, diffs to the homes (Zhou, Iftode, Li; Barli, Watanabe, Sakai, Tanaka,
/// section 2.3, of HLRC).
impl Hlrc {
    /// Ends the interval. Dirty → clean; home, written → home, shared, clean.
    fn close_interval(&mut self, site: &mut Site) {
        let seq = site.closing();
        assert!(self.flushes.is_empty(), "what the interval before owed to homes is sent");
        if !site.closes_for_move() {
            self.moves.send_withheld(site);
        }
        let mut written = std::mem::take(&mut self.written);
        written.extend(&self.watch.unguarded);
        let resting = if site.closes_for_move() { self.rest_for_move(site) } else { PageSet::new() };
        if !site.closes_for_meeting() {
            self.guard(site);
        }
        let (mut lowered, mut snapshots, opened) = (PageSet::new(), Vec::new(), self.take_opened());
        let (mut copies, mut rewritten) = (Vec::new(), Vec::new());
        for page_id in written.iter() {
            let home_here = site.is_home(page_id);
            if home_here {
                self.moves.written_here(site, page_id);
            }
            let has_snapshot = home_here && self.keeps_snapshot(site, page_id);
            let may_be_unwritten = has_snapshot && opened.contains(page_id);
            let page = self.pages.or_default(page_id);
            // An unguarded page still counts as written until the barrier that follows makes it exclusive.
            if page.access == Access::Write && !page.unguarded && !site.is_async(page_id) {
                page.access = Access::Read;
                lowered.insert(page_id);
            }
            assert!(page.version.get(site.me) <= seq, "{page_id}: versions only grow");
            if home_here && !may_be_unwritten {
                page.version.advance(site.me, seq);
                page.served = false;
                site.note_changed(page_id);
                rewritten.push(page_id);
            }
            if may_be_unwritten {
                copies.push(page_id);
            } else if has_snapshot {
                page.twin = false;
                snapshots.push(page_id);
            } else if (!home_here || (page.twin && self.looks_for_races)) && !resting.contains(page_id) {
                copies.push(page_id);
            }
        }
        // Stores must fault, or be noted, again before the page is compared. Otherwise a sibling's store
        // could be missing in both diffs.
        if self.looks_for_races {
            site.protect_all(&self.take_given(), Access::None);
        } else {
            site.protect_all(&lowered, Access::Read);
        }
        rewritten.into_iter().for_each(|page| self.note_rewriting(page));
        site.out.extend(snapshots.into_iter().map(|page| Effect::DropSnapshot { page }));
        copies.extend(self.send_to_rest(site, &written).iter());
        copies.extend(resting.iter());
        let Hlrc { pages, comparisons, .. } = self;
        let compared: Vec<(PageId, bool)> = copies
            .into_iter()
            .map(|page_id| {
                let page = pages.or_default(page_id);
                assert!(page.twin, "{page_id}: only what has a twin is compared");
                // The use of a home page's twin is over.
                page.twin = page.watched && !site.is_home(page_id);
                (page_id, page.twin)
            })
            .collect();
        comparisons.begin(site, compared);
    }

    /// Handles the page's diff, which shows that it changed in the interval that is being closed.
    fn handle_diff(&mut self, site: &mut Site, page_id: PageId, runs: Vec<u8>) {
        let home = site.locate(page_id).home;
        let seq = site.closing();
        site.note_changed(page_id);
        self.note_rewriting(page_id);
        let before = self.pages.get(&page_id).map_or(0, |page| page.version.get(site.me));
        assert!(before <= seq, "{page_id}: a copy holds no interval of this node that has yet to end");
        if home == site.me {
            let page = self.pages.or_default(page_id);
            page.version.advance(site.me, seq);
            page.served = false;
            return;
        }
        let (moves, pages) = self.moving();
        let Some(runs) = moves.withhold(site, &pages, page_id, runs) else {
            self.pages.or_default(page_id).version.advance(site.me, seq);
            return;
        };
        let flush = self.flushes.entry(home).or_default();
        // Send a batch only when there is more to send, since the last message must say that it is the last.
        let batch = flush.is_full().then(|| std::mem::take(flush));
        flush.add(page_id, runs);
        let page = self.pages.or_default(page_id);
        page.version.advance(site.me, seq);
        if page.fetch.is_some() {
            // The reply on its way may have left the home before this diff reaches it.
            page.needed.advance(site.me, seq);
        }
        if let Some(batch) = batch {
            batch.send(site, home, seq, false);
        }
    }

    fn finish_flush(&mut self, site: &mut Site) {
        // These pages have changed at their homes already, without a diff.
        let mut owed = std::mem::take(&mut self.operated_on);
        owed.extend(&std::mem::take(&mut self.sent_early));
        for page_id in owed.iter() {
            if !site.has_changed(page_id) {
                self.handle_diff(site, page_id, Vec::new());
            }
        }
        let seq = site.closing();
        for (home, flush) in std::mem::take(&mut self.flushes) {
            let is_all = self.moves.sends_all(home, flush.first_page(), seq);
            flush.send(site, home, seq, is_all);
        }
    }
}

/// Acquires: learning what changed from write notices (Keleher, Cox, Zwaenepoel).
impl Hlrc {
    /// Handles a notice. Clean, dirty → absent, invalidated; a home page → home, diffs missing, until they
    /// come.
    fn note_needed(
        &mut self,
        site: &Site,
        writer: NodeId,
        seq: IntervalSeq,
        page_id: PageId,
        voided: &mut PageSet,
    ) {
        let page = self.pages.or_default(page_id);
        if page.version.get(writer) < seq {
            page.needed.advance(writer, seq);
            self.moves.noticed(page_id, page.version.get(site.me));
            self.void(page_id, voided);
        }
    }

    /// Makes this node's copy of the page invalid. A page that the program could access is added to `voided`.
    fn void(&mut self, page_id: PageId, voided: &mut PageSet) {
        let page = self.pages.or_default(page_id);
        let was_valid = std::mem::take(&mut page.valid);
        if page.access == Access::None {
            if was_valid {
                self.anticipation.lost_untouched(page_id);
            }
            return;
        }
        page.access = Access::None;
        voided.insert(page_id);
        if std::mem::take(&mut page.watched) {
            // The page may have been written. A copy shows that when it is compared with its twin. A home
            // page has no twin and must be assumed to be written, unless the host knows better: see
            // `end_invalidation`.
            if self.written.insert(page_id) {
                self.watch.voided.insert(page_id);
            }
            self.watch.pages.remove(&page_id);
        } else if std::mem::take(&mut page.unguarded) {
            self.watch.unguarded.remove(page_id);
            self.written.insert(page_id);
        }
    }
}

impl Coherence for Hlrc {
    fn is_read_from(&self) -> bool {
        self.reach.is_some()
    }

    fn leaves_intervals_open(&self) -> bool {
        !self.looks_for_races
    }

    fn can_move_homes(&self) -> bool {
        !self.looks_for_races
    }

    fn access(&self, page: PageId) -> Access {
        self.pages.get(&page).map_or(Access::None, |page| page.access)
    }

    fn known_pages(&self) -> Vec<PageId> {
        self.pages.pages().collect()
    }

    fn state(&self, site: &Site, page: Located) -> Option<Result<&'static str, String>> {
        let known = self.pages.get(&page.page)?;
        let state = self.state_of(site, page, known);
        Some(state.map(State::name).ok_or_else(|| format!("{known:?}")))
    }

    fn fault(&mut self, site: &mut Site, page: Located, wanted: Access, waiter: Option<Waiter>) {
        self.handle_fault(site, page, wanted, waiter);
    }

    fn operate(&mut self, site: &mut Site, operation: WordOperation) {
        self.begin_atomic(site, operation);
    }

    fn operate_after_release(&mut self, site: &mut Site, operation: WordOperation) {
        self.ask_to_operate(site, operation);
    }

    fn go_on_after_release(&mut self, site: &mut Site, page: PageId) {
        self.send_after_release(site, page);
    }

    fn as_giver(&mut self) -> Option<&mut dyn GivesUp> {
        (!self.looks_for_races).then_some(self)
    }

    fn order_fetches(&mut self) {
        self.begin_order();
    }

    fn moves_pages(&self, site: &Site) -> bool {
        self.moves.are_on(site)
    }

    fn hands_over_to(&self) -> BTreeSet<NodeId> {
        self.moves.next_homes()
    }

    fn withholds(&self) -> bool {
        self.moves.withholds()
    }

    fn handle_caught_up(&mut self, site: &mut Site) -> Result<(), ProtocolError> {
        self.take_waiting_pages(site)
    }

    fn prefetch(&mut self, site: &mut Site, ranges: &[PageRange]) {
        let (anticipation, copies) = self.anticipate();
        let fetches = anticipation.hinted(site, &copies, ranges);
        self.fetch_ahead(site, fetches);
    }

    fn handle_message(
        &mut self,
        site: &mut Site,
        from: NodeId,
        message: &Message<'_>,
    ) -> Result<(), ProtocolError> {
        if self.moves.defers(site, from, message) {
            return Ok(());
        }
        if self.come_before_notices(site, from, message) {
            return Ok(());
        }
        match message {
            Message::HomeMovesHeard { page, held } => self.handle_moves_heard(site, from, *page, held),
            Message::HomeHandedOver { pages } => self.handle_handed_over_in_order(site, from, pages),
            Message::PageRequest { page, needed } => {
                self.handle_home_request(site, *page, needed, HomeRequest::Page(from));
                Ok(())
            }
            Message::PagesRequest { wanted, descending } => {
                self.handle_pages_request(site, from, wanted, *descending)
            }
            Message::PagesReply { copies, content } => {
                self.handle_reply_in_order(site, from, copies, content)
            }
            Message::Diffs { seq, last, diffs } => self.handle_diffs(site, from, *seq, *last, diffs),
            Message::AtomicRequest { ticket, page, offset, operation, needed } => {
                let client = Client::There(from, *ticket);
                let request = HomeRequest::Atomic { client, offset: *offset, operation: *operation };
                self.handle_home_request(site, *page, needed, request);
                Ok(())
            }
            Message::AtomicReply { ticket, outcome, turn, .. } => {
                self.handle_atomic_reply(site, *ticket, *outcome, *turn)
            }
            _ => Err(unexpected(Expected::HomeBasedMessage, "another".to_owned())),
        }
    }

    fn handle_done(&mut self, site: &mut Site, done: Done) {
        match done {
            Done::Diff { page, runs } => {
                if !runs.is_empty() {
                    self.handle_diff(site, page, runs);
                }
                self.comparisons.note_answer(site);
            }
            Done::Read { pages, outcome } => self.handle_read(site, pages, outcome),
            Done::Unwritten { granules, .. } => {
                self.handle_unwritten(site, &granules);
                self.give_up_frames(site);
            }
            Done::Merged { page, dirty } => {
                if !dirty && site.is_async(page) {
                    self.written.remove(page);
                }
            }
            Done::Atomic { outcome, .. } => self.finish_atomic_at_home(site, outcome),
            Done::DiffedEarly { .. } => unreachable!("nobody asked for an early diff"),
            Done::Written { .. } | Done::Announced { .. } => {
                unreachable!("an answer for all protocols of the node")
            }
        }
    }

    fn handle_announced(&mut self, site: &mut Site, pages: &[PageId]) {
        self.note_readers(site, pages);
    }

    fn prepare_release(&mut self, site: &mut Site) {
        self.choose_resting(site);
        if site.closes_for_move() {
            self.prepare_rest(site);
        }
    }

    fn note_written(&mut self, site: &mut Site, granules: &PageSet) {
        self.handle_written(site, granules);
    }

    fn close(&mut self, site: &mut Site) {
        self.close_interval(site);
    }

    fn flush(&mut self, site: &mut Site) {
        self.finish_flush(site);
    }

    fn handle_notice(
        &mut self,
        site: &mut Site,
        writer: NodeId,
        seq: IntervalSeq,
        page: PageId,
        voided: &mut PageSet,
    ) {
        self.note_needed(site, writer, seq, page, voided);
    }

    fn end_invalidation(&mut self, site: &mut Site) {
        self.ask_for_unwritten(site);
    }

    fn handle_meeting(&mut self, site: &mut Site, all_have_seen: &VectorTimestamp) {
        self.moves.meet(all_have_seen.get(site.me));
        self.reclaim_exclusive_pages(site, all_have_seen);
    }

    fn move_homes(&mut self, policy: HomePolicy) {
        if policy != HomePolicy::Fixed {
            self.choose_policy(policy);
        }
    }

    fn give_away(&mut self, site: &mut Site) -> Vec<HomeMoves> {
        let (moves, pages) = self.moving();
        moves.arrives(site, &pages)
    }

    fn handle_moves(&mut self, site: &mut Site, moves: &[PageMove]) -> Result<(), ProtocolError> {
        self.begin_moves(site, moves)
    }

    fn move_after_release(&mut self, site: &mut Site) {
        self.end_rest(site);
    }

    fn give_up(&mut self, site: &mut Site, pages: &[PageId]) {
        self.let_leave(site, pages);
    }

    fn give_up_after_release(&mut self, site: &mut Site) {
        self.end_leaving(site);
    }

    fn hand_over(&mut self, site: &mut Site) {
        self.moves.send_withheld(site);
    }

    fn begin_hold(&mut self, site: &mut Site, lock: LockId, voided: &PageSet) {
        let (anticipation, copies) = self.anticipate();
        let fetches = anticipation.granted(site, &copies, lock, voided);
        self.fetch_for_leavers(site, fetches);
    }

    fn note_lost(&mut self, _site: &mut Site, voided: &PageSet) {
        self.anticipation.note_lost(voided);
    }

    fn begin_phase(&mut self, site: &mut Site, voided: &PageSet) {
        let (anticipation, copies) = self.anticipate();
        let fetches = anticipation.met(site, &copies, voided);
        self.fetch_for_leavers(site, fetches);
        self.open_expected(site);
    }
}
