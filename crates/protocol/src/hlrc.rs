//! Home-based lazy release consistency.
//!
//! Read first: Zhou, Iftode, Li, *Performance Evaluation of Two Home-Based Lazy Release Consistency Protocols for
//! Shared Virtual Memory Systems*, OSDI 1996, its section on protocols; for intervals, vector timestamps and write
//! notices Keleher, Cox, Zwaenepoel, *Lazy Release Consistency for Software Distributed Shared Memory*, ISCA 1992.
//!
//! Tests: `check/tests/all/hlrc.rs`, and there `page_axioms.rs`, `moves.rs`, `supplies.rs`, `explore.rs`,
//! `golden.rs` and `endurance.rs`.
//!
//! A node's execution is divided into **intervals** that end at releases. When one ends, each page written in
//! it is compared with its **twin** and the **diff** goes to the page's **home**, whose copy is thus always up to
//! date. An acquirer is told, in **write notices**, which pages changed in intervals it has not seen, and
//! invalidates them; a later fault fetches the whole page from the home, which waits until every interval that
//! the faulting node's notices name has reached it. Nobody ever asks a writer for a diff, and diffs live no longer
//! than the message that carries them.
//!
//! A page on one node, with the names of [`State`]. *Valid*: the copy has all that notices name.
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
//! | home, written | – | Write | no | – | – |
//! | home, shared, unguarded | – | Write | no | – | – |
//! | home, diffs missing | – | None | no | wait for the diffs | the same |
//! | coming (see `moves.rs`) | – | None | no | wait for the page | the same |
//!
//! A release takes *dirty* to *clean* (diff) and *home, written* to *home, shared, clean* (notice only). A
//! notice takes a copy to *absent* or *invalidated*, and a home page to *diffs missing* until they come. A
//! home page that has been written after each fetch is left writable at the next ones, *unguarded*: it counts
//! as written, up to the barrier that makes it exclusive (`tracking.rs`).
//!
//! Where the host tracks writes asynchronously ([`WriteTracking::Async`](crate::WriteTracking)) stores to all but long pages
//! ([`FAULTING_FROM_GRANULES`](crate::FAULTING_FROM_GRANULES)) never fault on a page that is here. The host
//! notes stores to *watched* pages, and a release asks which pages those are. The rows that differ:
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
//! The twin is kept from the fetch on. At a release it becomes twin + diff, never the page, which siblings
//! may be writing. A copy that no thread has written for [`RESTING_AFTER_RELEASES`] gives its twin and its
//! place in the scan up, and is *closed*; a home page likewise, and is *resting*.
//!
//! Where the host is short of memory copies become absent, dirty ones when a release has sent their diffs
//! (`leaving.rs`).
//!
//! Several threads a node: they share the node's pages, so only what crosses nodes is the engine's business. A node arrives at a
//! collective when all threads of its team have come. Other threads may go on and synchronise meanwhile, so a grant may
//! reach a node before the departure that its sender has seen: it waits for that; and knowledge that is later than an arrival
//! is passed on with the next one (`beyond`).
//!
//! Copies come one by one as they are touched, or many in a message: `copies.rs` asks, sends and installs.
//! What comes before it is touched is chosen elsewhere ([`crate::anticipation`]): this protocol tells what
//! happens to its copies, and fetches what is proposed. The nodes meet along a tree ([`crate::barrier`]).
//!
//! Deviations from the paper:
//! - An unlock that no other node waits for does not end the interval; the release takes place when another
//!   node asks for the lock (see [`crate::lock`]).
//! - An acquire does not end the interval. A dirty page that it invalidates keeps its twin, and the page that is
//!   fetched later is merged: bytes in which it differs from the twin go into frame and twin.
//! - The log of intervals keeps only each writer's latest notice for a page (see [`crate::interval`]).
//! - A home page of which no other node holds a copy is *exclusive*: it is written without faults or notices. The first
//!   fetch makes it shared, and counts it as written in the open interval. A barrier that carries a notice of it, after
//!   which all copies are void, makes it exclusive again unless it was fetched after the interval had ended.
//! - Atomic words are operated on at the home. The operating node's next interval carries a notice for the page and an
//!   empty diff advances its version, so plain loads elsewhere see the word after the next acquire. That holds for
//!   loads too: who has seen another node's change passes it on.
//! - Where the fabric can read other nodes' memory, the faulting thread copies the page out of the home's frame itself, and the home does
//!   nothing. So that this is a fetch like any other, the home publishes which intervals its frames hold (the page's version, but
//!   for all its pages at once), and learns its readers from what they announce before they copy: at its next release it treats a newly
//!   announced page as written. Any doubt is settled by a request. See `one_sided.rs`, which argues why this is right.

mod atomics;
mod claims;
mod comparing;
mod copies;
mod early;
mod leaving;
mod moves;
mod one_sided;
mod state;
mod tracking;
mod unasked;

use std::collections::{BTreeMap, VecDeque};

use hiroba_base::{
    Access, IntervalSeq, LockId, NodeId, PageId, PageRange, PageSet, VectorTimestamp, VersionVector,
};
use hiroba_wire::{Ahead, AtomicOperation, HomeMoves, Message, PageDiff, Ticket};
use rustc_hash::FxHashMap;

use self::comparing::Comparisons;
use self::leaving::Leaving;
use self::moves::Moves;
use self::one_sided::Reach;
pub use self::state::State;
use self::state::{Circumstances, Homed};
pub use self::tracking::RESTING_AFTER_RELEASES;
use self::tracking::{Leave, Watch};
use crate::anticipation::{Anticipation, Touch};
use crate::coherence::{Coherence, PageMove, Site, WordOperation};
use crate::exclusive_runs::ExclusiveRuns;
use crate::home::{HomePolicy, Located};
use crate::thread::wanted_beyond;
use crate::words::{Client, Turns};
use crate::{Done, Effect, Expected, Fact, Outcome, ProtocolError, Waiter, diff, unexpected};

/// Diffs for one home are sent when they reach this many bytes, so that a long release overlaps with the network and no
/// message grows with the number of dirty pages.
pub(crate) const FLUSH_BATCH_BYTES: usize = 48 << 10;

/// Home-based lazy release consistency on one node.
#[derive(Debug, Default)]
pub struct Hlrc {
    /// Data races are looked for: see [`Hlrc::looking_for_races`].
    looks_for_races: bool,
    /// While data races are looked for: pages to which the program was given access in the open interval.
    given: PageSet,
    /// Whose frames this node reads itself, and who reads its own.
    reach: Reach,
    pages: FxHashMap<PageId, Page>,
    /// Pages written in the open interval: copies with a twin, and shared home pages. With asynchronous tracking only those
    /// that are known to be (or must be taken to be) before the host is asked.
    pub(crate) written: PageSet,
    watch: Watch,
    /// Pages homed elsewhere on whose atomic words this node operated in the open interval.
    operated_on: PageSet,
    /// Copies of which the home has been sent some of what the open interval changed, before its end: see [`crate::aurc`].
    pub(crate) sent_early: PageSet,
    comparisons: Comparisons,
    /// What the interval that is being closed owes to each home.
    flushes: BTreeMap<NodeId, Flush>,
    /// `Effect::Atomic`s that the host has not answered yet, in order: who wants the result, and of which word (page and offset).
    atomics: VecDeque<(Client, PageId, u32)>,
    /// Atomic operations under way at other homes, by waiting thread.
    atomic_targets: FxHashMap<Ticket, AtomicTarget>,
    /// Of the words homed here.
    turns: Turns,
    exclusive_runs: ExclusiveRuns,
    moves: Moves,
    anticipation: Anticipation,
    leaving: Leaving,
}

#[derive(Debug, Default)]
struct Page {
    access: Access,
    /// A copy that satisfies all notices seen. Unused on the home.
    valid: bool,
    /// The host keeps a twin.
    twin: bool,
    /// The host notes writes (asynchronous tracking).
    watched: bool,
    /// In which release it was last written or begun to be watched.
    busy_at: u32,
    /// The intervals that the copy holds; on the home, those whose diffs have come.
    held: VersionVector,
    /// What notices demand beyond `held`.
    needed: VersionVector,
    /// Home: another node may hold a copy.
    shared: bool,
    /// Home: another node has fetched the page since the last notice of a write here.
    served: bool,
    /// Home: it is exclusive, or was until a notice came, and may have been written without notice.
    unnoticed: bool,
    /// Home, shared: it runs free and nobody watches it, so it counts as written in every interval (asynchronous tracking).
    unguarded: bool,
    /// Home: at how many fetches it need not be watched.
    leave: Leave,
    /// Home: threads have operated on atomic words in it.
    has_words: bool,
    /// A request is under way (copy), or diffs are awaited (home): who waits, and for which access.
    fetch: Option<Fetch>,
    /// Home: requests that wait for diffs.
    pending: Vec<PendingRequest>,
}

#[derive(Debug, Default)]
struct Fetch {
    waiters: Vec<Waiter>,
    wants_write: bool,
    /// A thread waits, or has waited, for it.
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

/// Of an atomic operation under way at another home.
#[derive(Debug)]
struct AtomicTarget {
    page: PageId,
    offset: u32,
    /// The page has been read from the home's frame meanwhile, or has moved: nobody knows whether what is here now is from before or after the
    /// operation, or after later ones.
    overtaken: bool,
}

#[derive(Debug, Default)]
struct Flush {
    diffs: Vec<(PageId, Vec<u8>)>,
    bytes: usize,
}

impl Hlrc {
    /// Nothing is allocated yet.
    pub fn new() -> Hlrc {
        Hlrc::default()
    }

    /// Makes every write of every interval show as a diff, and the first load from each page as a fault, so that the host can
    /// hold concurrent ones against each other (see [`crate::races`]): home pages have twins too, none is exclusive, an
    /// acquire takes all access away, and pages that no thread has touched yet have none. Much slower.
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

    /// What the program may do with the page without a fault is set by an effect that follows.
    fn set_access(&mut self, page_id: PageId, access: Access) {
        let page = self.pages.entry(page_id).or_default();
        page.access = access;
        if std::mem::take(&mut page.watched) {
            let was_watched = self.watch.pages.remove(&page_id);
            assert!(was_watched, "{page_id}: what is watched is among the watched pages");
        }
    }

    /// Whether the host notes writes to any page.
    pub(crate) fn watches_any(&self) -> bool {
        !self.watch.pages.is_empty()
    }

    fn make_twin(&mut self, site: &mut Site, page_id: PageId) {
        let page = self.pages.entry(page_id).or_default();
        assert!(!page.twin, "{page_id}: it has a twin already");
        page.twin = true;
        let page_bytes = site.page_bytes(page_id);
        site.out.push(Effect::Twin { page: page_id, page_bytes });
    }

    /// Sets the access of pages, in as few effects as they have runs.
    fn protect_set(&mut self, site: &mut Site, pages: &PageSet, access: Access) {
        pages.iter().for_each(|page_id| self.set_access(page_id, access));
        if self.looks_for_races && access > Access::None {
            self.given.extend(pages);
        }
        site.protect_all(pages, access);
    }

    /// The row that a page is in of which this node knows something; none if it fits no row.
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
        };
        State::of(known, around)
    }

    /// While data races are looked for: what the program had access to in the interval that is being closed, and has not any more. The first
    /// touch of each page in the next one faults.
    fn take_given(&mut self) -> PageSet {
        assert!(self.looks_for_races, "else pages stay accessible beyond a release");
        let mut taken = PageSet::new();
        for page_id in std::mem::take(&mut self.given).iter() {
            let page = self.pages.entry(page_id).or_default();
            if std::mem::take(&mut page.access) > Access::None {
                taken.insert(page_id);
            }
        }
        taken
    }
}

/// Faults: a copy is fetched whole from its home (Zhou, Iftode, Li).
impl Hlrc {
    /// Absent → clean or dirty by one round trip to the home (Zhou, Iftode, Li); clean, closed → dirty by a
    /// twin (Keleher, Cox, Zwaenepoel: multiple writers); home, shared, clean → home, written without one.
    fn handle_fault(&mut self, site: &mut Site, located: Located, wanted: Access, waiter: Option<Waiter>) {
        let Located { page: page_id, home, .. } = located;
        let page = self.pages.entry(page_id).or_default();
        let wanted = wanted_beyond(page.access, wanted);
        if page.access >= wanted {
            // Two threads faulted on one page, or the host had to lower access for its own reasons.
            if page.watched {
                // It may have forgotten with the access whether the page was written.
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
            self.moves.choice.note_touch(&site.homes, site.me, site.me, page_id);
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
        let page = self.pages.entry(page_id).or_default();
        assert!(page.needed.is_empty(), "{page_id}: no diff that notices name is missing");
        let has_twin = page.twin;
        let is_closed = page.access == Access::None;
        if is_closed && !has_twin && site.is_async(page_id) && !self.looks_for_races {
            return self.give_own(site, located);
        }
        if !page.shared && !self.looks_for_races {
            if !page.unnoticed && page.held.is_empty() {
                return self.give_own(site, located);
            }
            if page.access == Access::Read {
                // Its readers have dropped what they had, and it is written again.
                page.leave.renew();
            }
            page.unnoticed = true;
            self.protect(site, page_id, Access::Write);
        } else if site.is_async(page_id) {
            self.watch(site, page_id);
        } else if wanted == Access::Write || self.written.contains(page_id) {
            if self.looks_for_races && !has_twin {
                self.make_twin(site, page_id);
            }
            self.written.insert(page_id);
            self.protect(site, page_id, Access::Write);
        } else {
            self.protect(site, page_id, Access::Read);
        }
    }

    /// The program has touched a page homed here to which it has no access: it may use the page, and those of
    /// its run.
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
            let page = self.pages.entry(page_id).or_default();
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

/// The home's side: it applies diffs as they come, and serves a page when it holds what the request names.
impl Hlrc {
    /// A request names the intervals that the page must hold; where some are missing it waits for their diffs
    /// (Zhou, Iftode, Li: the home compares versions).
    fn handle_home_request(
        &mut self,
        site: &mut Site,
        page_id: PageId,
        needed: &VersionVector,
        request: HomeRequest,
    ) {
        let is_coming = self.moves.is_coming(page_id);
        let page = self.pages.entry(page_id).or_default();
        if page.held.covers(needed) && !is_coming {
            self.serve(site, page_id, request);
        } else {
            page.pending.push(PendingRequest { needed: needed.clone(), request });
        }
    }

    fn serve(&mut self, site: &mut Site, page_id: PageId, request: HomeRequest) {
        match request {
            HomeRequest::Page(to) => {
                self.moves.choice.note_touch(&site.homes, site.me, to, page_id);
                self.send_pages(site, to, &[page_id]);
            }
            HomeRequest::Atomic { client, offset, operation } => {
                self.pages.entry(page_id).or_default().has_words = true;
                self.moves.claims.note_words(page_id);
                self.atomics.push_back((client, page_id, offset));
                site.out.push(Effect::Atomic { page: page_id, offset, operation });
            }
        }
    }

    /// Diffs are applied when they come, and kept no longer (Zhou, Iftode, Li). Home, diffs missing → home,
    /// shared, clean with the last of them.
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
            let held = self.pages.get(&page_id).map_or(0, |page| page.held.get(writer));
            if held > seq {
                let got = format!("one of interval {seq} behind interval {held}");
                return Err(unexpected(Expected::DiffsInOrder, got));
            }
            // Its writer names a page again only to say that the interval's last diff has come.
            let says_nothing = held == seq && runs.is_empty();
            if !says_nothing && !self.moves.keep_diff(diff, writer, seq, false) {
                self.apply_diff(site, page_id, writer, seq, runs);
                self.serve_pending(site, page_id);
            }
        }
        if last {
            self.publish(site, writer, seq);
        }
        Ok(())
    }

    /// Has the host make room for what these diffs fill for the first time.
    fn make_room(&self, site: &mut Site, diffs: &[PageDiff<'_>]) {
        let is_empty = |page: &Located| {
            let known = self.pages.get(&page.page);
            page.home == site.me
                && known.is_none_or(|known| known.held.is_empty() && known.access == Access::None)
        };
        let filled = diffs.iter().filter(|diff| !diff.runs.is_empty());
        let located = filled.filter_map(|diff| site.homes.locate(diff.page)).filter(is_empty);
        let pages: PageSet = located.flat_map(|page| page.span().iter()).collect();
        let runs = pages.ranges().iter().filter(|run| run.count > 1);
        site.out.extend(runs.map(|pages| Effect::MakeRoom { pages: *pages }));
    }

    /// Whether a diff fits a page that is homed here.
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
        let page = self.pages.entry(page_id).or_default();
        page.held.advance(writer, seq);
        page.needed.retain_beyond(&page.held);
        self.moves.note_whole(page_id, &page.held);
    }

    /// Changes the frame of a page that is homed here, and notes by whom, but not its version.
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
                // What the program has stored there is looked at before it is overwritten: nothing may be stored in between.
                self.protect(site, page_id, Access::None);
            }
            site.out.push(Effect::Apply { page: page_id, runs: runs.to_vec() });
        }
        site.tell(|| Some(Fact::Applied { page: page_id, writer, seq, bytes: runs.len() as u32 }));
        self.moves.choice.note_modified(page_id, writer, runs.len());
        // It may have come there with others before anybody touched it.
        self.moves.choice.note_touch(&site.homes, site.me, writer, page_id);
    }

    fn serve_pending(&mut self, site: &mut Site, page_id: PageId) {
        let page = self.pages.entry(page_id).or_default();
        if !page.pending.is_empty() {
            let held = &page.held;
            let ready: Vec<_> = page.pending.extract_if(.., |pending| held.covers(&pending.needed)).collect();
            ready.into_iter().for_each(|pending| self.serve(site, page_id, pending.request));
        }
        let page = self.pages.entry(page_id).or_default();
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
    /// The interval ends. Dirty → clean; home, written → home, shared, clean.
    fn close_interval(&mut self, site: &mut Site) {
        let seq = site.closing();
        assert!(self.flushes.is_empty(), "what the interval before owed to homes is sent");
        if !site.closes_for_move() {
            self.send_withheld(site);
        }
        let mut written = std::mem::take(&mut self.written);
        written.extend(&self.watch.unguarded);
        let resting = if site.closes_for_move() { self.rest_for_move(site) } else { PageSet::new() };
        if !site.closes_for_meeting() {
            self.guard(site);
        }
        let mut lowered = PageSet::new();
        let mut copies = Vec::new();
        for page_id in written.iter() {
            let home_here = site.is_home(page_id);
            if home_here && self.moves.are_on(site) {
                self.moves.choice.note_written_here(page_id, site.me, site.page_bytes(page_id));
            }
            let page = self.pages.entry(page_id).or_default();
            // One that is unguarded still counts as written until the barrier that follows makes it exclusive.
            if page.access == Access::Write && !page.unguarded && !site.is_async(page_id) {
                page.access = Access::Read;
                lowered.insert(page_id);
            }
            assert!(page.held.get(site.me) <= seq, "{page_id}: versions only grow");
            if home_here {
                page.held.advance(site.me, seq);
                page.served = false;
                site.note_changed(page_id);
            }
            if (!home_here || (page.twin && self.looks_for_races)) && !resting.contains(page_id) {
                copies.push(page_id);
            }
        }
        // Stores must fault, or be noted, again before the page is compared, or a sibling's store could miss both diffs.
        if self.looks_for_races {
            site.protect_all(&self.take_given(), Access::None);
        } else {
            site.protect_all(&lowered, Access::Read);
        }
        copies.extend(self.send_to_rest(site, &written).iter());
        copies.extend(resting.iter());
        let Hlrc { pages, comparisons, .. } = self;
        let compared: Vec<(PageId, bool)> = copies
            .into_iter()
            .map(|page_id| {
                let page = pages.entry(page_id).or_default();
                assert!(page.twin, "{page_id}: only what has a twin is compared");
                // What a home page had a twin for is over.
                page.twin = page.watched && !site.is_home(page_id);
                (page_id, page.twin)
            })
            .collect();
        comparisons.begin(site, compared);
    }

    /// The page has changed in the interval that is being closed.
    fn handle_diff(&mut self, site: &mut Site, page_id: PageId, runs: Vec<u8>) {
        let home = site.locate(page_id).home;
        let seq = site.closing();
        site.note_changed(page_id);
        let before = self.pages.get(&page_id).map_or(0, |page| page.held.get(site.me));
        assert!(before <= seq, "{page_id}: a copy holds no interval of this node that has yet to end");
        if home == site.me {
            let page = self.pages.entry(page_id).or_default();
            page.held.advance(site.me, seq);
            page.served = false;
            return;
        }
        self.send_withheld_of(site, page_id);
        let Some(runs) = self.withhold(site, page_id, runs) else { return };
        let flush = self.flushes.entry(home).or_default();
        // Not before there is more to send, since the last message must say that it is the last.
        let full = flush.bytes >= FLUSH_BATCH_BYTES;
        let batch = full.then(|| std::mem::take(flush));
        flush.bytes += runs.len();
        flush.diffs.push((page_id, runs));
        let page = self.pages.entry(page_id).or_default();
        page.held.advance(site.me, seq);
        if page.fetch.is_some() {
            // The reply on its way may have left the home before this diff reaches it.
            page.needed.advance(site.me, seq);
        }
        if let Some(batch) = batch {
            send_flush(site, home, seq, false, &batch);
        }
    }

    fn finish_flush(&mut self, site: &mut Site) {
        // Changed at their homes already, which no diff need show.
        let mut owed = std::mem::take(&mut self.operated_on);
        owed.extend(&std::mem::take(&mut self.sent_early));
        for page_id in owed.iter() {
            if !site.has_changed(page_id) {
                self.handle_diff(site, page_id, Vec::new());
            }
        }
        let seq = site.closing();
        for (home, flush) in std::mem::take(&mut self.flushes) {
            let is_all = !self.moves.claims.withholds_from(home, seq);
            if !is_all {
                self.moves.claims.leave_unfinished(home, flush.diffs[0].0, seq);
            }
            send_flush(site, home, seq, is_all, &flush);
        }
    }
}

fn send_flush(site: &mut Site, home: NodeId, seq: IntervalSeq, last: bool, flush: &Flush) {
    assert_ne!(home, site.me, "a home makes no diffs for itself");
    assert!(!flush.diffs.is_empty(), "a home is told what has changed");
    debug_assert_eq!(
        flush.bytes,
        flush.diffs.iter().map(|(_, runs)| runs.len()).sum(),
        "all runs are counted"
    );
    let diffs = flush.diffs.iter().map(|(page, runs)| PageDiff { page: *page, runs }).collect();
    site.out.send(home, &Message::Diffs { seq, last, diffs });
}

/// Acquires: learning what changed from write notices (Keleher, Cox, Zwaenepoel).
impl Hlrc {
    /// Clean, dirty → absent, invalidated; a home page → home, diffs missing, until they come.
    fn note_needed(&mut self, writer: NodeId, seq: IntervalSeq, page_id: PageId, voided: &mut PageSet) {
        let page = self.pages.entry(page_id).or_default();
        if page.held.get(writer) < seq {
            page.needed.advance(writer, seq);
            self.moves.claims.note_other_writer(page_id);
            self.void(page_id, voided);
        }
    }

    /// What this node has of the page is not good any more; a page that it had access to is added to `voided`.
    fn void(&mut self, page_id: PageId, voided: &mut PageSet) {
        let page = self.pages.entry(page_id).or_default();
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
            // It may have been written: that shows when it is compared with its twin. A home page has none and must be taken to be
            // written. Unless the host knows better, see `end_invalidation`.
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

/// After a barrier.
impl Hlrc {
    /// After a collective everybody has heard of this node's writes and dropped older copies: home pages that nobody has
    /// fetched since are exclusive again.
    ///
    /// A page that was written again since the node's arrival is not: the copies that hold what it was then are good.
    fn reclaim_exclusive_pages(&mut self, site: &mut Site, all_have_seen: &VectorTimestamp) {
        let seen = all_have_seen.get(site.me);
        for notice in site.log.of(site.me).into_iter().filter(|notice| notice.seq <= seen) {
            for page_id in notice.pages.iter() {
                if site.is_home(page_id)
                    && let Some(page) = self.pages.get_mut(&page_id)
                {
                    page.shared &=
                        page.served || self.looks_for_races || self.anticipation.is_ordered(page_id);
                    if !page.shared && std::mem::take(&mut page.unguarded) {
                        page.unnoticed = true;
                        self.watch.unguarded.remove(page_id);
                    }
                }
            }
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
        self.pages.keys().copied().collect()
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
        if self.defers(site, from, message) {
            return Ok(());
        }
        match message {
            Message::HomeMovesHeard { page, held } => self.handle_moves_heard(site, from, *page, held),
            Message::HomeHandedOver { pages } => self.handle_handed_over(site, from, pages),
            Message::PageRequest { page, needed } => {
                self.handle_home_request(site, *page, needed, HomeRequest::Page(from));
                Ok(())
            }
            Message::PagesRequest { wanted, descending } => {
                self.handle_pages_request(site, from, wanted, *descending)
            }
            Message::PagesReply { copies, content } => self.handle_pages_reply(site, from, copies, content),
            Message::StandingOrder { lock, pages, stands } => {
                self.handle_order(site, from, *lock, pages, *stands);
                Ok(())
            }
            Message::PagesSupplied { ahead_of, copies, content } => {
                self.keep_unasked(site, from, *ahead_of, copies, content)
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
        _site: &mut Site,
        writer: NodeId,
        seq: IntervalSeq,
        page: PageId,
        voided: &mut PageSet,
    ) {
        self.note_needed(writer, seq, page, voided);
    }

    fn end_invalidation(&mut self, site: &mut Site) {
        self.ask_for_unwritten(site);
    }

    fn handle_meeting(&mut self, site: &mut Site, all_have_seen: &VectorTimestamp) {
        self.reclaim_exclusive_pages(site, all_have_seen);
    }

    fn move_homes(&mut self, policy: HomePolicy) {
        if policy != HomePolicy::Fixed {
            self.choose_policy(policy);
        }
    }

    fn supply(&mut self, site: &mut Site) {
        self.anticipation.tell_orders(site);
        self.send_supplies(site);
    }

    fn give_away(&mut self, site: &mut Site) -> Vec<HomeMoves> {
        self.choose_moves(site)
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

    fn hand_over(&mut self, site: &mut Site, lock: LockId, to: NodeId, seen: &VectorTimestamp) {
        self.send_withheld(site);
        self.send_with_lock(site, lock, to, seen);
    }

    fn begin_hold(&mut self, site: &mut Site, lock: LockId, voided: &PageSet) {
        self.expect_supplies(site, Ahead::Grant(lock));
        let (anticipation, copies) = self.anticipate();
        let fetches = anticipation.granted(site, &copies, lock, voided);
        self.fetch_ahead(site, fetches);
    }

    fn take_supplies(&mut self, site: &mut Site) {
        self.expect_supplies(site, Ahead::Collective(site.collectives_done));
    }

    fn begin_phase(&mut self, site: &mut Site, voided: &PageSet) {
        let (anticipation, copies) = self.anticipate();
        let fetches = anticipation.met(site, &copies, voided);
        self.fetch_ahead(site, fetches);
    }
}
