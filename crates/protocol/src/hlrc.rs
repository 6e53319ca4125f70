//! Home-based lazy release consistency.
//!
//! Read first: Zhou, Iftode, Li, *Performance Evaluation of Two Home-Based Lazy Release Consistency Protocols for
//! Shared Virtual Memory Systems*, OSDI 1996, its section on protocols; for intervals, vector timestamps and write
//! notices Keleher, Cox, Zwaenepoel, *Lazy Release Consistency for Software Distributed Shared Memory*, ISCA 1992.
//!
//! A node's execution is divided into **intervals** that end at releases. When one ends, each page written in
//! it is compared with its **twin** and the **diff** goes to the page's **home**, whose copy is thus always up to
//! date. An acquirer is told, in **write notices**, which pages changed in intervals it has not seen, and
//! invalidates them; a later fault fetches the whole page from the home, which waits until every interval that
//! the faulting node's notices name has reached it. Nobody ever asks a writer for a diff, and diffs live no longer
//! than the message that carries them.
//!
//! A page on one node:
//!
//! | state | `valid` | access | twin | load faults | store faults |
//! |---|---|---|---|---|---|
//! | absent | no | None | no | fetch → clean | fetch, twin → dirty |
//! | clean copy | yes | Read | no | – | twin → dirty |
//! | marker | yes | None | no | → clean; fetch ahead | twin → dirty; fetch ahead |
//! | dirty copy | yes | Write | yes | – | – |
//! | dirty, invalidated | no | None | yes | fetch, **merge** → dirty | the same |
//! | home, exclusive | – | Write | no | – | – |
//! | home, shared, clean | – | Read | no | – | note the write → home, written |
//! | home, written | – | Write | no | – | – |
//! | home, diffs missing | – | None | no | wait for the diffs | the same |
//!
//! A release takes *dirty* to *clean* (diff) and *home, written* to *home, shared, clean* (notice only); a notice takes
//! a copy to *absent* or *dirty, invalidated*, and a home page to *diffs missing* until they come.
//!
//! Where the host tracks writes asynchronously ([`WriteTracking::Async`]) stores never fault on a page that is here, and fewer
//! states remain. The host notes stores to *watched* pages, and a release asks which pages those are:
//!
//! | state | `valid` | access | twin | load faults | store faults |
//! |---|---|---|---|---|---|
//! | absent | no | None | no | fetch, twin → copy | the same |
//! | copy | yes | watched | yes | – | – |
//! | resting copy | yes | None | no | twin → copy | the same |
//! | marker | yes | None | no | twin → copy; fetch ahead | the same |
//! | copy, invalidated, perhaps dirty | no | None | yes | fetch, **merge** → copy | the same |
//! | home, exclusive | – | Write (watched until it is written) | no | – | – |
//! | home, shared | – | watched | no | – | – |
//! | home, resting | – | None | no | → home, shared | the same |
//! | home, diffs missing | – | None | no | wait for the diffs | the same |
//!
//! The twin is kept from the fetch on; at a release it becomes twin + diff, never the page, which siblings may be writing. A copy
//! that nobody has written for [`RESTING_AFTER_RELEASES`] gives its twin and its place in the scan up, a home page likewise.
//!
//! Several threads a node: they share the node's pages, so only what crosses nodes is the engine's business. A node arrives at a
//! collective when all threads of its team have come. Other threads may go on and synchronise meanwhile, so a grant may
//! reach a node before the departure that its sender has seen: it waits for that; and knowledge that is later than an arrival
//! is passed on with the next one (`beyond`).
//!
//! Copies come one by one as they are touched, or many in a message where the program reads on and on: `streams.rs` sees that and
//! fetches ahead, `copies.rs` asks, sends and installs. The nodes meet along a tree ([`crate::barrier`]).
//!
//! Deviations from the paper:
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
mod copies;
mod first_touch;
mod habits;
mod meetings;
mod one_sided;
mod streams;
mod telling;
mod tracking;

use std::collections::{BTreeMap, VecDeque};

use hiroba_base::{
    Access, IntervalSeq, LockId, NodeId, PageId, PageRange, PageSet, PageSize, VectorTimestamp, VersionVector,
};
use hiroba_wire::{AtomicOperation, Collective, Knowledge, Limits, Message, PageDiff, Placement, Ticket};
use rustc_hash::FxHashMap;

use self::first_touch::FirstTouches;
use self::habits::{Due, Habit};
use self::one_sided::Reach;
use self::streams::Streams;
use self::telling::Telling;
pub use self::tracking::RESTING_AFTER_RELEASES;
use self::tracking::Watch;
use crate::barrier::{Arrival, Meeting, Tree};
use crate::cond::{CondAction, Conds};
use crate::engine::wanted_beyond;
use crate::home::{HomeMap, Located};
use crate::interval::IntervalLog;
use crate::lock::{LockAction, Locks};
use crate::outbox::Outbox;
use crate::team::Team;
use crate::{Done, Effect, Engine, Fact, Misuse, Outcome, ProtocolError, Sync, Waiter, WriteTracking, diff};

/// Diffs for one home are sent when they reach this many bytes, so that a long release overlaps with the network and no
/// message grows with the number of dirty pages.
const FLUSH_BATCH_BYTES: usize = 48 << 10;

/// The HLRC engine of one node.
#[derive(Debug)]
pub struct Hlrc {
    me: NodeId,
    limits: Limits,
    tracking: WriteTracking,
    /// Data races are looked for: see [`Hlrc::looking_for_races`].
    looks_for_races: bool,
    /// Whose frames this node reads itself, and who reads its own.
    reach: Reach,
    homes: HomeMap,
    pages: FxHashMap<PageId, Page>,
    /// Pages written in the open interval: copies with a twin, and shared home pages. With asynchronous tracking only those
    /// that are known to be (or must be taken to be) before the host is asked.
    written: PageSet,
    watch: Watch,
    /// Pages homed elsewhere on whose atomic words this node operated in the open interval.
    operated_on: PageSet,
    timestamp: VectorTimestamp,
    log: IntervalLog,
    locks: Locks,
    conds: Conds,
    collectives_done: u64,
    team: Team,
    /// Notices of other nodes that are later than a node's arrival at the collective where this node has yet to arrive.
    beyond: IntervalLog,
    /// Grants and publications whose senders have left a collective from which the departure is still on its way
    /// here: its notices must be absorbed first. No more than a grant for each lock asked for and a publication of each node.
    early: Vec<(NodeId, Vec<u8>)>,
    /// Requests and diffs for regions that this node's own threads have yet to hear of: their senders have left the
    /// collective that allocated them.
    ahead: Vec<(NodeId, Vec<u8>)>,
    meeting: Meeting,
    release: Option<OpenRelease>,
    /// `Effect::Atomic`s that the host has not answered yet, in order: who wants the result, and of which word (page and offset).
    atomics: VecDeque<(AtomicClient, PageId, u32)>,
    /// Atomic operations under way at other homes, by waiting thread.
    atomic_targets: FxHashMap<Ticket, AtomicTarget>,
    streams: Streams,
    first_touches: FirstTouches,
    due: Due,
    telling: Telling,
    /// How many publications this node has sent to each other one.
    publications: FxHashMap<NodeId, u64>,
    /// Bytes of pages that were asked for before anybody touched them, and are on their way.
    prefetching_bytes: u64,
    out: Outbox,
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
    /// In which period it was last written or begun to be watched.
    busy_in: u32,
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
    /// A request is under way (copy), or diffs are awaited (home): who waits, and for which access.
    fetch: Option<Fetch>,
    /// Whether it is read after barriers. Unused on the home.
    habit: Habit,
    /// Home: requests that wait for diffs.
    pending: Vec<PendingRequest>,
}

#[derive(Debug, Default)]
struct Fetch {
    waiters: Vec<Waiter>,
    wants_write: bool,
    /// A prefetch began it.
    hinted: bool,
    /// A thread waits, or has waited, for it.
    demanded: bool,
    /// It shows how far a stream has come, see [`streams`].
    marks: bool,
}

#[derive(Debug)]
struct PendingRequest {
    needed: VersionVector,
    request: HomeRequest,
}

#[derive(Debug)]
enum HomeRequest {
    Page(NodeId),
    Atomic { client: AtomicClient, offset: u32, operation: AtomicOperation },
}

/// Of an atomic operation under way at another home.
#[derive(Debug)]
struct AtomicTarget {
    page: PageId,
    offset: u32,
    /// The page has been read from the home's frame meanwhile: nobody knows whether before or after the operation, or after later ones.
    overtaken: bool,
}

#[derive(Clone, Copy, Debug)]
enum AtomicClient {
    Here(Waiter),
    There(NodeId, Ticket),
}

/// An interval that is being closed: the host is making its diffs.
#[derive(Debug)]
struct OpenRelease {
    /// The host has not said yet which pages others have announced.
    announcing: bool,
    /// The host has not said yet which pages were written.
    collecting: bool,
    seq: IntervalSeq,
    /// `Effect::Diff`s not answered yet.
    diffs_missing: usize,
    /// Pages that changed: the interval's notices.
    noticed: PageSet,
    flushes: BTreeMap<NodeId, Flush>,
    then: AfterRelease,
}

#[derive(Debug, Default)]
struct Flush {
    diffs: Vec<(PageId, Vec<u8>)>,
    bytes: usize,
}

#[derive(Clone, Copy, Debug)]
enum AfterRelease {
    /// When races are looked for.
    Acquire(Sync, Waiter),
    Unlock(LockId, Option<Waiter>),
    Arrive(Collective),
    Publish(NodeId, Waiter),
    Atomic {
        home: NodeId,
        page_id: PageId,
        offset: u32,
        operation: AtomicOperation,
        waiter: Waiter,
    },
}

impl Hlrc {
    /// The engine of node `me`, with nothing allocated.
    pub fn new(me: NodeId, limits: Limits, tracking: WriteTracking) -> Hlrc {
        let nodes = limits.nodes;
        Hlrc {
            me,
            limits,
            tracking,
            looks_for_races: false,
            reach: Reach::default(),
            homes: HomeMap::new(nodes),
            pages: FxHashMap::default(),
            written: PageSet::new(),
            watch: Watch::default(),
            operated_on: PageSet::new(),
            timestamp: VectorTimestamp::new(nodes),
            log: IntervalLog::new(nodes),
            locks: Locks::new(me, nodes),
            conds: Conds::default(),
            collectives_done: 0,
            team: Team::of_one(),
            beyond: IntervalLog::new(nodes),
            early: Vec::new(),
            ahead: Vec::new(),
            meeting: Meeting::new(me, Tree::of(nodes)),
            release: None,
            atomics: VecDeque::new(),
            atomic_targets: FxHashMap::default(),
            streams: Streams::default(),
            first_touches: FirstTouches::default(),
            due: Due::new(),
            telling: Telling::default(),
            publications: FxHashMap::default(),
            prefetching_bytes: 0,
            out: Outbox::new(me),
        }
    }

    /// Makes every write of every interval show as a diff, so that the host can hold concurrent ones against each other (see
    /// [`crate::races`]): home pages have twins too, none is exclusive, and acquires end the interval. Slower by far.
    pub fn looking_for_races(self) -> Hlrc {
        assert_eq!(self.tracking, WriteTracking::Fault, "the first store of an interval must fault");
        Hlrc { looks_for_races: true, ..self }
    }

    /// How many entries the engine keeps for the past: the interval log's pairs of writer and page. For tests that
    /// show that history is collected.
    pub fn history_len(&self) -> usize {
        self.log.len()
    }

    /// What this node may do with a page without a fault.
    pub fn access(&self, page: PageId) -> Access {
        self.pages.get(&page).map_or(Access::None, |page| page.access)
    }

    fn is_async(&self) -> bool {
        self.tracking == WriteTracking::Async
    }

    fn locate(&self, page: PageId) -> Located {
        self.homes.locate(page).expect("a page that the engine knows is allocated")
    }

    fn page_bytes(&self, page: PageId) -> u32 {
        self.locate(page).granules as u32 * self.limits.granule_bytes
    }

    fn is_home(&self, page: PageId) -> bool {
        self.homes.home_of(page) == Some(self.me)
    }

    fn protect(&mut self, page_id: PageId, access: Access) {
        let page = self.pages.entry(page_id).or_default();
        page.access = access;
        if std::mem::take(&mut page.watched) {
            self.watch.pages.remove(&page_id);
        }
        let pages = self.locate(page_id).span();
        self.out.push(Effect::Protect { pages, access });
    }

    fn make_twin(&mut self, page_id: PageId) {
        self.pages.entry(page_id).or_default().twin = true;
        let page_bytes = self.page_bytes(page_id);
        self.out.push(Effect::Twin { page: page_id, page_bytes });
    }

    /// Sets the access of pages, in as few effects as they have runs.
    fn protect_set(&mut self, pages: &PageSet, access: Access) {
        for page_id in pages.iter() {
            let page = self.pages.entry(page_id).or_default();
            page.access = access;
            if std::mem::take(&mut page.watched) {
                self.watch.pages.remove(&page_id);
            }
        }
        self.protect_all(pages, access);
    }

    /// One effect a run of pages: taking access away costs a system call and a TLB shootdown whatever its length.
    fn protect_all(&mut self, pages: &PageSet, access: Access) {
        let spans = self.homes.spans(pages).into_iter();
        self.out.extend(spans.map(|pages| Effect::Protect { pages, access }));
    }

    /// One message at a time: what it starts (a release, say) is finished before the next.
    fn deliver_loopback(&mut self) {
        while let Some((from, bytes)) = self.out.next_kept() {
            let message =
                Message::decode(&bytes, &self.limits).expect("it was encoded here or decoded before");
            if let Err(error) = self.dispatch(from, &message) {
                self.out.refuse(from, &error);
            }
        }
    }
}

/// Faults: a copy is fetched whole from its home (Zhou, Iftode, Li).
impl Hlrc {
    fn fault(&mut self, granule: PageId, wanted: Access, waiter: Option<Waiter>) {
        let Some(located) = self.homes.locate(granule) else {
            if let Some(waiter) = waiter {
                self.out.wake(waiter, Outcome::Misuse(Misuse::NotAllocated(granule)));
            }
            return;
        };
        let Located { page: page_id, home, .. } = located;
        let page = self.pages.entry(page_id).or_default();
        let wanted = wanted_beyond(page.access, wanted);
        if page.access >= wanted {
            // Two threads faulted on one page, or the host had to lower access for its own reasons.
            if page.watched {
                // It may have forgotten with the access whether the page was written.
                self.written.insert(page_id);
                self.watch(page_id);
            } else {
                let access = page.access;
                self.protect(page_id, access);
            }
        } else if home == self.me {
            if !page.needed.is_empty() {
                page.wait(wanted, waiter);
                return;
            }
            self.grant_home_access(located, wanted);
        } else if page.valid {
            let rested = page.access == Access::None;
            self.give_copies([(page_id, wanted)]);
            if rested {
                self.follow_streams(located, false);
            }
        } else {
            let in_flight = page.fetch.is_some();
            page.wait(wanted, waiter);
            self.note_use(page_id);
            if !in_flight {
                self.request_page(home, page_id);
            }
            self.follow_streams(located, !in_flight);
            return;
        }
        if let Some(waiter) = waiter {
            self.out.wake(waiter, Outcome::Done);
        }
    }

    fn grant_home_access(&mut self, located: Located, wanted: Access) {
        let page_id = located.page;
        let page = self.pages.entry(page_id).or_default();
        let has_twin = page.twin;
        if !page.shared && !self.looks_for_races {
            if !page.unnoticed && page.held.is_empty() {
                return self.give_untouched(located);
            }
            page.unnoticed = true;
            self.protect(page_id, Access::Write);
        } else if self.is_async() {
            self.watch(page_id);
        } else if wanted == Access::Write || self.written.contains(page_id) {
            if self.looks_for_races && !has_twin {
                self.make_twin(page_id);
            }
            self.written.insert(page_id);
            self.protect(page_id, Access::Write);
        } else {
            self.protect(page_id, Access::Read);
        }
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
    fn handle_home_request(&mut self, page_id: PageId, needed: &VersionVector, request: HomeRequest) {
        let page = self.pages.entry(page_id).or_default();
        if page.held.covers(needed) {
            self.serve(page_id, request);
        } else {
            page.pending.push(PendingRequest { needed: needed.clone(), request });
        }
    }

    fn serve(&mut self, page_id: PageId, request: HomeRequest) {
        match request {
            HomeRequest::Page(to) => self.send_pages(to, &[page_id]),
            HomeRequest::Atomic { client, offset, operation } => {
                self.atomics.push_back((client, page_id, offset));
                self.out.push(Effect::Atomic { page: page_id, offset, operation });
            }
        }
    }

    fn handle_diffs(
        &mut self,
        writer: NodeId,
        seq: IntervalSeq,
        last: bool,
        diffs: &[PageDiff<'_>],
    ) -> Result<(), ProtocolError> {
        for PageDiff { page: page_id, runs } in diffs {
            if self
                .homes
                .locate(*page_id)
                .is_none_or(|located| located.page != *page_id || located.home != self.me)
            {
                return Err(unexpected("diffs of pages that are homed here", format!("one of {page_id}")));
            }
            diff::check(runs, self.page_bytes(*page_id) as usize)?;
            if !runs.is_empty() {
                self.out.push(Effect::Apply { page: *page_id, runs: runs.to_vec() });
            }
            self.tell(|_| Some(Fact::Applied { page: *page_id, writer, seq, bytes: runs.len() as u32 }));
            let page = self.pages.entry(*page_id).or_default();
            page.held.advance(writer, seq);
            page.needed.retain_beyond(&page.held);
            self.serve_pending(*page_id);
        }
        if last {
            self.publish(writer, seq);
        }
        Ok(())
    }

    fn serve_pending(&mut self, page_id: PageId) {
        let page = self.pages.entry(page_id).or_default();
        if !page.pending.is_empty() {
            let held = &page.held;
            let ready: Vec<_> = page.pending.extract_if(.., |pending| held.covers(&pending.needed)).collect();
            ready.into_iter().for_each(|pending| self.serve(page_id, pending.request));
        }
        let page = self.pages.entry(page_id).or_default();
        if page.needed.is_empty()
            && let Some(fetch) = page.fetch.take()
        {
            let wanted = if fetch.wants_write { Access::Write } else { Access::Read };
            self.grant_home_access(self.locate(page_id), wanted);
            fetch.waiters.into_iter().for_each(|waiter| self.out.wake(waiter, Outcome::Done));
        }
    }
}

/// Releases: closing an interval, diffs to the homes.
impl Hlrc {
    fn begin_release(&mut self, then: AfterRelease) {
        assert!(self.release.is_none(), "the host answers on the spot before it calls again");
        let seq = self.timestamp.get(self.me) + 1;
        let (announcing, collecting) = (self.reach.is_some(), self.is_async());
        let noticed = PageSet::new();
        let flushes = BTreeMap::new();
        let diffs_missing = 0;
        self.release =
            Some(OpenRelease { announcing, collecting, seq, diffs_missing, noticed, flushes, then });
        if announcing {
            self.out.push(Effect::TakeAnnouncements);
        } else {
            self.collect_written();
        }
    }

    fn collect_written(&mut self) {
        if self.is_async() {
            self.choose_resting();
            self.out.push(Effect::CollectWritten);
        } else {
            self.close_interval();
        }
    }

    fn close_interval(&mut self) {
        let release = self.release.as_mut().expect("a release is open");
        let seq = release.seq;
        let written = std::mem::take(&mut self.written);
        let mut noticed = PageSet::new();
        let mut lowered = PageSet::new();
        let mut copies = Vec::new();
        for page_id in written.iter() {
            let home_here = self.is_home(page_id);
            let page = self.pages.entry(page_id).or_default();
            if self.tracking == WriteTracking::Fault && page.access == Access::Write {
                page.access = Access::Read;
                lowered.insert(page_id);
            }
            if home_here {
                page.held.advance(self.me, seq);
                page.served = false;
                noticed.insert(page_id);
            }
            if !home_here || (page.twin && self.looks_for_races) {
                copies.push(page_id);
            }
        }
        // Stores must fault, or be noted, again before the page is compared, or a sibling's store could miss both diffs.
        self.protect_all(&lowered, Access::Read);
        copies.extend(self.send_to_rest(&written).iter());
        let diffs_missing = copies.len();
        for page_id in copies {
            let page = self.pages.entry(page_id).or_default();
            // What a home page had a twin for is over.
            let keep_twin = page.watched && self.homes.home_of(page_id) != Some(self.me);
            page.twin = keep_twin;
            self.out.push(Effect::Diff { page: page_id, keep_twin });
        }
        let release = self.release.as_mut().expect("a release is open");
        (release.diffs_missing, release.noticed) = (diffs_missing, noticed);
        if diffs_missing == 0 {
            self.finish_release();
        }
    }

    fn handle_diff(&mut self, page_id: PageId, runs: Vec<u8>) {
        let release = self.release.as_mut().expect("diffs are made for a release");
        release.diffs_missing -= 1;
        let last = release.diffs_missing == 0;
        if !runs.is_empty() {
            self.flush(page_id, runs);
        }
        if last {
            self.finish_release();
        }
    }

    fn flush(&mut self, page_id: PageId, runs: Vec<u8>) {
        let home = self.homes.home_of(page_id).expect("a written page is allocated");
        let release = self.release.as_mut().expect("diffs are made for a release");
        let seq = release.seq;
        release.noticed.insert(page_id);
        if home == self.me {
            let page = self.pages.entry(page_id).or_default();
            page.held.advance(self.me, seq);
            page.served = false;
            return;
        }
        let flush = release.flushes.entry(home).or_default();
        // Not before there is more to send, since the last message must say that it is the last.
        let full = flush.bytes >= FLUSH_BATCH_BYTES;
        let batch = full.then(|| std::mem::take(flush));
        flush.bytes += runs.len();
        flush.diffs.push((page_id, runs));
        let page = self.pages.entry(page_id).or_default();
        page.held.advance(self.me, seq);
        if page.fetch.is_some() {
            // The reply on its way may have left the home before this diff reaches it.
            page.needed.advance(self.me, seq);
        }
        if let Some(batch) = batch {
            self.send_flush(home, seq, false, &batch);
        }
    }

    fn send_flush(&mut self, home: NodeId, seq: IntervalSeq, last: bool, flush: &Flush) {
        let diffs = flush.diffs.iter().map(|(page, runs)| PageDiff { page: *page, runs }).collect();
        self.out.send(home, &Message::Diffs { seq, last, diffs });
    }

    fn finish_release(&mut self) {
        for page_id in std::mem::take(&mut self.operated_on).iter() {
            let noticed = &self.release.as_ref().expect("a release is open").noticed;
            if !noticed.contains(page_id) {
                self.flush(page_id, Vec::new());
            }
        }
        let release = self.release.take().expect("a release is open");
        if !release.noticed.is_empty() {
            self.tell(|_| Some(Fact::Closed { seq: release.seq, pages: release.noticed.clone() }));
        }
        for (home, flush) in &release.flushes {
            self.send_flush(*home, release.seq, true, flush);
        }
        if !release.noticed.is_empty() {
            self.timestamp.advance(self.me, release.seq);
            self.log.record(self.me, release.seq, &release.noticed);
        }
        self.after_release(release.then);
    }

    fn after_release(&mut self, then: AfterRelease) {
        match then {
            AfterRelease::Unlock(lock, waiter) => {
                self.tell(|engine| {
                    let (waiter, turn) = engine.locks.hold_of(lock)?;
                    Some(Fact::Released { waiter, lock, turn })
                });
                let actions = self.locks.release(lock, &self.timestamp);
                self.carry_out(actions);
                if let Some(waiter) = waiter {
                    self.out.wake(waiter, Outcome::Done);
                }
            }
            AfterRelease::Acquire(sync, waiter) => self.begin_acquire(sync, waiter),
            AfterRelease::Arrive(collective) => self.arrive(collective),
            AfterRelease::Publish(to, waiter) => {
                // What `to` has seen is not known here: it gets all since the last barrier.
                let knowledge = self.knowledge_beyond(&VectorTimestamp::new(self.limits.nodes));
                let next = self.publications.entry(to).or_default();
                let count = *next;
                *next += 1;
                self.tell(|_| Some(Fact::Published { waiter, to, count }));
                self.out.send(to, &Message::Publish { knowledge, count });
                self.out.wake(waiter, Outcome::Done);
            }
            AfterRelease::Atomic { home, page_id, offset, operation, waiter } => {
                let needed = self.needed(page_id);
                let ticket = waiter.0;
                self.out
                    .send(home, &Message::AtomicRequest { ticket, page: page_id, offset, operation, needed });
            }
        }
    }
}

/// Acquires: learning what changed from write notices (Keleher, Cox, Zwaenepoel).
impl Hlrc {
    /// What someone who has seen `timestamp` must be told.
    fn knowledge_beyond(&self, timestamp: &VectorTimestamp) -> Knowledge {
        Knowledge {
            timestamp: self.timestamp.clone(),
            notices: self.log.beyond(timestamp),
            epoch: self.collectives_done,
            beyond_arrival: self.team.has_arrived() || !self.beyond.is_empty(),
        }
    }

    /// The pages that lost their access by it.
    fn absorb(&mut self, knowledge: &Knowledge, keep_for_others: bool) -> PageSet {
        let mut invalidated = PageSet::new();
        // The manager will count us as having seen what we tell with our arrival, so we must be able to tell it.
        let for_arrival =
            knowledge.beyond_arrival && knowledge.epoch == self.collectives_done && !self.team.has_arrived();
        for notice in &knowledge.notices {
            if notice.node == self.me || notice.seq <= self.timestamp.get(notice.node) {
                continue;
            }
            if keep_for_others {
                self.log.record(notice.node, notice.seq, &notice.pages);
            }
            if for_arrival {
                self.beyond.record(notice.node, notice.seq, &notice.pages);
            }
            for page_id in notice.pages.iter() {
                let page = self.pages.entry(page_id).or_default();
                if page.held.get(notice.node) >= notice.seq {
                    continue;
                }
                page.needed.advance(notice.node, notice.seq);
                self.void(page_id, &mut invalidated);
            }
        }
        let before = self.tells().then(|| self.timestamp.clone());
        self.timestamp.merge(&knowledge.timestamp);
        self.invalidate(&invalidated);
        self.tell(|engine| Fact::seen(engine.me, &before?, &engine.timestamp));
        invalidated
    }

    /// What this node has of the page is not good any more; a page that it had access to is added to what is to be `invalidated`.
    fn void(&mut self, page_id: PageId, invalidated: &mut PageSet) {
        let page = self.pages.entry(page_id).or_default();
        page.valid = false;
        if page.access == Access::None {
            return;
        }
        page.access = Access::None;
        invalidated.insert(page_id);
        if std::mem::take(&mut page.watched) {
            // It may have been written: whether it was shows when it is compared with its twin. A home page has
            // none and must be taken to be written; its diffs seldom come later than their notices.
            self.written.insert(page_id);
            self.watch.pages.remove(&page_id);
        }
    }
}

/// Locks, condition variables and collectives.
impl Hlrc {
    fn carry_out(&mut self, actions: impl IntoIterator<Item = LockAction>) {
        for action in actions {
            match action {
                LockAction::Send { to, message } => self.out.send(to, &message),
                LockAction::Grant { to, lock, timestamp, turn } => {
                    let knowledge = self.knowledge_beyond(&timestamp);
                    self.out.send(to, &Message::LockGrant { lock, turn, knowledge });
                }
                LockAction::Acquired { waiter, lock, turn } => {
                    self.tell(|_| Some(Fact::Acquired { waiter, lock, turn }));
                    self.out.wake(waiter, Outcome::Done);
                }
                LockAction::Refused(waiter) => self.out.wake(waiter, Outcome::Refused),
            }
        }
    }

    fn acquire_lock(&mut self, lock: LockId, waiter: Waiter) {
        match self.locks.acquire(lock, waiter, &self.timestamp) {
            Ok(actions) => self.carry_out(actions),
            Err(misuse) => self.out.wake(waiter, Outcome::Misuse(misuse)),
        }
    }

    fn begin_acquire(&mut self, sync: Sync, waiter: Waiter) {
        match sync {
            Sync::TryAcquire(lock) => {
                let action = self.locks.try_acquire(lock, waiter, &self.timestamp);
                self.carry_out([action]);
            }
            Sync::Acquire(lock) => self.acquire_lock(lock, waiter),
            other => unreachable!("{other:?} acquires nothing"),
        }
    }

    fn synchronise(&mut self, sync: Sync, waiter: Waiter) {
        match sync {
            Sync::Acquire(_) | Sync::TryAcquire(_) if self.looks_for_races => {
                self.begin_release(AfterRelease::Acquire(sync, waiter));
            }
            Sync::Acquire(_) | Sync::TryAcquire(_) => self.begin_acquire(sync, waiter),
            Sync::Release(lock) | Sync::Wait(_, lock) if !self.locks.is_held_by(lock, waiter) => {
                self.out.wake(waiter, Outcome::Misuse(Misuse::NotHeld(lock)));
            }
            Sync::Release(lock) => self.begin_release(AfterRelease::Unlock(lock, Some(waiter))),
            Sync::Wait(cond, lock) => {
                self.conds.begin_wait(waiter, lock);
                self.out.send(cond.manager(self.limits.nodes), &Message::CondWait { cond, ticket: waiter.0 });
            }
            Sync::Signal(cond) | Sync::Broadcast(cond) => {
                let all = matches!(sync, Sync::Broadcast(_));
                self.out.send(cond.manager(self.limits.nodes), &Message::CondSignal { cond, all });
                self.out.wake(waiter, Outcome::Done);
            }
            Sync::Collective(collective) => self.gather(collective, waiter),
            Sync::Publish(to) => self.begin_release(AfterRelease::Publish(to, waiter)),
        }
    }
}

impl Hlrc {
    fn dispatch(&mut self, from: NodeId, message: &Message<'_>) -> Result<(), ProtocolError> {
        if self.comes_ahead(message) {
            self.ahead.push((from, message.encode()));
            return Ok(());
        }
        if let Some(actions) = self.locks.handle_message(from, message, &self.timestamp)? {
            self.carry_out(actions);
            return Ok(());
        }
        if let Some(action) = self.conds.handle_message(from, message, &mut self.out)? {
            match action {
                CondAction::Nothing => {}
                CondAction::Release(lock) => self.begin_release(AfterRelease::Unlock(lock, None)),
                CondAction::Acquire(lock, waiter) => self.acquire_lock(lock, waiter),
            }
            return Ok(());
        }
        match message {
            Message::PageRequest { page, needed } => {
                self.handle_home_request(*page, needed, HomeRequest::Page(from));
            }
            Message::PagesRequest { wanted, descending } => {
                self.handle_pages_request(from, wanted, *descending)?;
            }
            Message::PagesReply { copies, content } => self.handle_pages_reply(copies, content)?,
            Message::Diffs { seq, last, diffs } => self.handle_diffs(from, *seq, *last, diffs)?,
            Message::LockGrant { knowledge, .. } | Message::Publish { knowledge, .. }
                if self.comes_early(knowledge) =>
            {
                self.keep_early(from, message);
            }
            Message::LockGrant { lock, turn, knowledge } => {
                self.absorb(knowledge, true);
                let action = self.locks.handle_grant(*lock, *turn)?;
                self.carry_out([action]);
            }
            Message::Publish { knowledge, count } => {
                self.absorb(knowledge, true);
                self.tell(|_| Some(Fact::PublicationSeen { from, count: *count }));
            }
            Message::Arrive { epoch, collective, caller, least, knowledge } => {
                let (least, knowledge) = (least.clone(), knowledge.clone());
                let arrival = Arrival { collective: *collective, caller: *caller, least, knowledge };
                self.handle_arrival(from, *epoch, arrival)?;
            }
            Message::Depart { epoch, collective, knowledge } => {
                self.handle_departure(from, *epoch, *collective, knowledge)?;
            }
            Message::AtomicRequest { ticket, page, offset, operation, needed } => {
                let client = AtomicClient::There(from, *ticket);
                let request = HomeRequest::Atomic { client, offset: *offset, operation: *operation };
                self.handle_home_request(*page, needed, request);
            }
            Message::AtomicReply { ticket, outcome, turn } => {
                self.handle_atomic_reply(*ticket, *outcome, *turn)?;
            }
            Message::Free { .. }
            | Message::SizeRequest { .. }
            | Message::SizeReply { .. }
            | Message::WrittenPages { .. }
            | Message::ProgramData { .. }
            | Message::Alive => {
                return Err(unexpected("a message of the protocol", "one for the host".to_owned()));
            }
            _ => return Err(unexpected("a message of home-based LRC", "another".to_owned())),
        }
        Ok(())
    }
}

impl Engine for Hlrc {
    fn add_region(&mut self, pages: PageRange, page_size: PageSize, placement: Placement) {
        let granules_per_page = page_size.bytes() as u64 / u64::from(self.limits.granule_bytes);
        self.homes.add(pages, granules_per_page, placement);
        self.out.keep(std::mem::take(&mut self.ahead));
    }

    fn set_team(&mut self, threads: u32) {
        self.team.set_size(threads);
    }

    fn home_of(&self, page: PageId) -> Option<NodeId> {
        self.homes.home_of(page)
    }

    fn seen(&self) -> (&VectorTimestamp, u64) {
        (&self.timestamp, self.collectives_done)
    }

    fn keeps_back(&self, from: NodeId) -> bool {
        self.early.iter().any(|(sender, _)| *sender == from)
    }

    fn locks_held(&self) -> Vec<(LockId, Waiter)> {
        self.locks.held().collect()
    }

    fn handle_fault(&mut self, page: PageId, wanted: Access, waiter: Option<Waiter>) {
        self.fault(page, wanted, waiter);
    }

    fn handle_sync(&mut self, sync: Sync, waiter: Waiter) {
        self.synchronise(sync, waiter);
    }

    fn handle_atomic(&mut self, page: PageId, offset: u32, operation: AtomicOperation, waiter: Waiter) {
        self.begin_atomic(page, offset, operation, waiter);
    }

    fn handle_prefetch(&mut self, pages: PageRange) {
        self.prefetch(pages);
    }

    fn handle_message(&mut self, from: NodeId, message: &Message<'_>) -> Result<(), ProtocolError> {
        if self.comes_behind_kept(from, message) {
            return Ok(());
        }
        self.dispatch(from, message)
    }

    fn handle_done(&mut self, done: Done) {
        match done {
            Done::Diff { page, runs } => self.handle_diff(page, runs),
            Done::Announced { pages } => self.handle_announced(&pages),
            Done::Read { pages, outcome } => self.handle_read(pages, outcome),
            Done::Written { granules } => self.handle_written(&granules),
            Done::Merged { page, dirty } => {
                if !dirty && self.is_async() {
                    self.written.remove(page);
                }
            }
            Done::Atomic { outcome } => self.finish_atomic_at_home(outcome),
        }
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        self.deliver_loopback();
        self.out.poll()
    }
}

fn unexpected(expected: &'static str, got: String) -> ProtocolError {
    ProtocolError::Unexpected { expected, got }
}
