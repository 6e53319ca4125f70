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

use std::collections::{BTreeMap, VecDeque};

use hiroba_base::{
    Access, IntervalSeq, LockId, NodeId, PageId, PageRange, PageSet, VectorTimestamp, VersionVector,
};
use hiroba_wire::{
    AtomicOperation, AtomicOutcome, Collective, Knowledge, Limits, Message, PageContent, PageDiff, Placement,
    Ticket,
};
use rustc_hash::FxHashMap;

use crate::barrier::BarrierManager;
use crate::cond::Conds;
use crate::home::HomeMap;
use crate::interval::IntervalLog;
use crate::lock::{LockAction, Locks};
use crate::{Done, Effect, Engine, Misuse, NewContent, Outcome, ProtocolError, Sync, Waiter, diff};

/// Diffs for one home are sent when they reach this many bytes, so that a long release overlaps with the network and no
/// message grows with the number of dirty pages.
const FLUSH_BATCH_BYTES: usize = 48 << 10;

/// Prefetches that may be under way at once; hints beyond are dropped.
const PREFETCHES_MAX: usize = 256;

/// The HLRC engine of one node.
#[derive(Debug)]
pub struct Hlrc {
    me: NodeId,
    limits: Limits,
    homes: HomeMap,
    pages: FxHashMap<PageId, Page>,
    /// Pages written in the open interval: copies with a twin, and shared home pages.
    written: PageSet,
    /// Pages homed elsewhere on whose atomic words this node operated in the open interval.
    operated_on: PageSet,
    timestamp: VectorTimestamp,
    log: IntervalLog,
    locks: Locks,
    conds: Conds,
    collectives_done: u64,
    collective_waiter: Option<Waiter>,
    /// Publications that came while this node waits in a collective, the latest of each sender. They may be later than
    /// the departure that is still on its way, whose notices must be absorbed first.
    publications: BTreeMap<NodeId, Knowledge>,
    barrier_manager: Option<BarrierManager>,
    release: Option<OpenRelease>,
    /// `Effect::Atomic`s that the host has not answered yet, in order: who wants the result, and of which page.
    atomics: VecDeque<(AtomicClient, PageId)>,
    /// Atomic operations under way at other homes: page and offset, by waiting thread.
    atomic_targets: FxHashMap<Ticket, (PageId, u32)>,
    prefetches: usize,
    effects: VecDeque<Effect>,
    /// Messages to this node itself, as encoded bytes so that they take the same path as others.
    loopback: VecDeque<Vec<u8>>,
}

#[derive(Debug, Default)]
struct Page {
    access: Access,
    /// A copy that satisfies all notices seen. Unused on the home.
    valid: bool,
    /// The intervals that the copy holds; on the home, those whose diffs have come.
    held: VersionVector,
    /// What notices demand beyond `held`.
    needed: VersionVector,
    /// Home: another node may hold a copy.
    shared: bool,
    /// Home: another node has fetched the page since the last notice of a write here.
    served: bool,
    /// A request is under way (copy), or diffs are awaited (home): who waits, and for which access.
    fetch: Option<Fetch>,
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

#[derive(Clone, Copy, Debug)]
enum AtomicClient {
    Here(Waiter),
    There(NodeId, Ticket),
}

/// An interval that is being closed: the host is making its diffs.
#[derive(Debug)]
struct OpenRelease {
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
    Unlock(LockId, Option<Waiter>),
    Arrive(Collective),
    Publish(NodeId, Waiter),
    Atomic { home: NodeId, page_id: PageId, offset: u32, operation: AtomicOperation, waiter: Waiter },
}

impl Hlrc {
    /// The engine of node `me`, with nothing allocated.
    pub fn new(me: NodeId, limits: Limits) -> Hlrc {
        let nodes = limits.nodes;
        Hlrc {
            me,
            limits,
            homes: HomeMap::new(nodes),
            pages: FxHashMap::default(),
            written: PageSet::new(),
            operated_on: PageSet::new(),
            timestamp: VectorTimestamp::new(nodes),
            log: IntervalLog::new(nodes),
            locks: Locks::new(me, nodes),
            conds: Conds::default(),
            collectives_done: 0,
            collective_waiter: None,
            publications: BTreeMap::new(),
            barrier_manager: (me == NodeId::ZERO).then(|| BarrierManager::new(nodes)),
            release: None,
            atomics: VecDeque::new(),
            atomic_targets: FxHashMap::default(),
            prefetches: 0,
            effects: VecDeque::new(),
            loopback: VecDeque::new(),
        }
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

    fn is_home(&self, page: PageId) -> bool {
        self.homes.home_of(page) == Some(self.me)
    }

    fn send(&mut self, to: NodeId, message: &Message<'_>) {
        let message = message.encode();
        if to == self.me {
            self.loopback.push_back(message);
        } else {
            self.effects.push_back(Effect::Send { to, message });
        }
    }

    fn wake(&mut self, waiter: Waiter, outcome: Outcome) {
        self.effects.push_back(Effect::Wake { waiter, outcome });
    }

    fn protect(&mut self, page: PageId, access: Access) {
        self.pages.entry(page).or_default().access = access;
        self.effects.push_back(Effect::Protect { pages: PageRange::single(page), access });
    }

    /// One effect a run of pages: taking access away costs a system call and a TLB shootdown whatever its length.
    fn protect_all(&mut self, pages: &PageSet, access: Access) {
        let ranges = pages.ranges().iter();
        self.effects.extend(ranges.map(|range| Effect::Protect { pages: *range, access }));
    }

    /// One message at a time: what it starts (a release, say) is finished before the next.
    fn deliver_loopback(&mut self) {
        while self.effects.is_empty()
            && let Some(bytes) = self.loopback.pop_front()
        {
            let message =
                Message::decode(&bytes, &self.limits).expect("this node's own messages are well-formed");
            self.dispatch(self.me, &message).expect("this node's own messages fit its state");
        }
    }
}

/// Faults: a copy is fetched whole from its home (Zhou, Iftode, Li).
impl Hlrc {
    fn fault(&mut self, page_id: PageId, wanted: Access, waiter: Option<Waiter>) {
        let Some(home) = self.homes.home_of(page_id) else {
            if let Some(waiter) = waiter {
                self.wake(waiter, Outcome::Misuse(Misuse::NotAllocated(page_id)));
            }
            return;
        };
        let page = self.pages.entry(page_id).or_default();
        let wanted = match (wanted, page.access) {
            (Access::None, Access::None) => Access::Read,
            (Access::None, _) => Access::Write,
            (known, _) => known,
        };
        if page.access >= wanted {
            // Two threads faulted on one page, or the host had to lower access for its own reasons.
            let access = page.access;
            self.protect(page_id, access);
        } else if home == self.me {
            if !page.needed.is_empty() {
                page.wait(wanted, waiter);
                return;
            }
            self.grant_home_access(page_id, wanted);
        } else if page.valid {
            self.begin_writing_copy(page_id);
        } else {
            let in_flight = page.fetch.is_some();
            page.wait(wanted, waiter);
            if !in_flight {
                self.request_page(home, page_id);
            }
            return;
        }
        if let Some(waiter) = waiter {
            self.wake(waiter, Outcome::Done);
        }
    }

    fn grant_home_access(&mut self, page_id: PageId, wanted: Access) {
        let page = self.pages.entry(page_id).or_default();
        if !page.shared {
            self.protect(page_id, Access::Write);
        } else if wanted == Access::Write || self.written.contains(page_id) {
            self.written.insert(page_id);
            self.protect(page_id, Access::Write);
        } else {
            self.protect(page_id, Access::Read);
        }
    }

    fn begin_writing_copy(&mut self, page_id: PageId) {
        if self.written.insert(page_id) {
            self.effects.push_back(Effect::Twin { page: page_id });
        }
        self.protect(page_id, Access::Write);
    }

    fn request_page(&mut self, home: NodeId, page_id: PageId) {
        let needed = self.pages.entry(page_id).or_default().needed.clone();
        self.send(home, &Message::PageRequest { page: page_id, needed });
    }

    fn handle_page_reply(
        &mut self,
        page_id: PageId,
        version: &VersionVector,
        content: PageContent<'_>,
    ) -> Result<(), ProtocolError> {
        let home = self.homes.home_of(page_id);
        let page = self.pages.entry(page_id).or_default();
        let (Some(fetch), Some(home)) = (page.fetch.take(), home) else {
            return Err(unexpected("a page only after a request", format!("{page_id}")));
        };
        if !version.covers(&page.needed) {
            // A sibling thread acquired, or this node released the page, while the reply was under way.
            page.fetch = Some(fetch);
            self.request_page(home, page_id);
            return Ok(());
        }
        page.held = version.clone();
        page.needed = VersionVector::new();
        page.valid = true;
        self.prefetches -= usize::from(fetch.hinted);
        let content = match content {
            PageContent::Zero => NewContent::Zero,
            PageContent::Bytes(bytes) => NewContent::Bytes(bytes.to_vec()),
        };
        let merge = self.written.contains(page_id);
        let prefetched = !fetch.demanded;
        self.effects.push_back(Effect::Install { page: page_id, content, merge, prefetched });
        if merge || fetch.wants_write {
            self.begin_writing_copy(page_id);
        } else {
            self.protect(page_id, Access::Read);
        }
        fetch.waiters.into_iter().for_each(|waiter| self.wake(waiter, Outcome::Done));
        Ok(())
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
            HomeRequest::Page(to) => {
                let page = self.pages.entry(page_id).or_default();
                page.served = true;
                if !page.shared {
                    page.shared = true;
                    if page.access == Access::Write {
                        // It was written without notice until now; from now on its reader must hear of writes.
                        self.written.insert(page_id);
                    }
                }
                let version = page.held.clone();
                self.effects.push_back(Effect::SendPage { to, page: page_id, version });
            }
            HomeRequest::Atomic { client, offset, operation } => {
                self.atomics.push_back((client, page_id));
                self.effects.push_back(Effect::Atomic { page: page_id, offset, operation });
            }
        }
    }

    fn handle_diffs(
        &mut self,
        writer: NodeId,
        seq: IntervalSeq,
        diffs: &[PageDiff<'_>],
    ) -> Result<(), ProtocolError> {
        for PageDiff { page: page_id, runs } in diffs {
            diff::check(runs, self.limits.page_bytes as usize)?;
            if !runs.is_empty() {
                self.effects.push_back(Effect::Apply { page: *page_id, runs: runs.to_vec() });
            }
            let page = self.pages.entry(*page_id).or_default();
            page.held.advance(writer, seq);
            page.needed.retain_beyond(&page.held);
            self.serve_pending(*page_id);
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
            self.grant_home_access(page_id, wanted);
            fetch.waiters.into_iter().for_each(|waiter| self.wake(waiter, Outcome::Done));
        }
    }
}

/// Atomic words.
impl Hlrc {
    fn begin_atomic(&mut self, page_id: PageId, offset: u32, operation: AtomicOperation, waiter: Waiter) {
        let Some(home) = self.homes.home_of(page_id) else {
            self.wake(waiter, Outcome::Misuse(Misuse::NotAllocated(page_id)));
            return;
        };
        if home == self.me {
            let needed = self.needed(page_id);
            let client = AtomicClient::Here(waiter);
            self.handle_home_request(page_id, &needed, HomeRequest::Atomic { client, offset, operation });
            return;
        }
        self.atomic_targets.insert(waiter.0, (page_id, offset));
        let then = AfterRelease::Atomic { home, page_id, offset, operation, waiter };
        if self.written.contains(page_id) {
            // The operation must find this thread's own plain stores at the home: their diff goes first.
            self.begin_release(then);
        } else {
            self.after_release(then);
        }
    }

    fn needed(&self, page_id: PageId) -> VersionVector {
        self.pages.get(&page_id).map_or_else(VersionVector::new, |page| page.needed.clone())
    }

    fn finish_atomic_at_home(&mut self, outcome: AtomicOutcome) {
        let (client, page_id) = self.atomics.pop_front().expect("every atomic answer has its effect");
        match client {
            AtomicClient::Here(waiter) => {
                if self.pages.entry(page_id).or_default().shared {
                    self.written.insert(page_id);
                }
                self.wake(waiter, Outcome::Atomic(outcome));
            }
            AtomicClient::There(node, ticket) => self.send(node, &Message::AtomicReply { ticket, outcome }),
        }
    }

    fn handle_atomic_reply(&mut self, ticket: Ticket, outcome: AtomicOutcome) -> Result<(), ProtocolError> {
        let Some((page_id, offset)) = self.atomic_targets.remove(&ticket) else {
            return Err(unexpected(
                "an atomic's result only after a request",
                format!("one for thread {ticket}"),
            ));
        };
        if self.pages.get(&page_id).is_some_and(|page| page.valid) {
            // Our own copy would stay stale: notices of our own intervals do not invalidate it.
            self.effects.push_back(Effect::Patch { page: page_id, offset, value: outcome.current });
        }
        self.operated_on.insert(page_id);
        self.wake(Waiter(ticket), Outcome::Atomic(outcome));
        Ok(())
    }
}

/// Releases: closing an interval, diffs to the homes.
impl Hlrc {
    fn begin_release(&mut self, then: AfterRelease) {
        assert!(self.release.is_none(), "the host answers diffs before it calls again");
        let seq = self.timestamp.get(self.me) + 1;
        let written = std::mem::take(&mut self.written);
        let mut noticed = PageSet::new();
        let mut lowered = PageSet::new();
        let mut copies = Vec::new();
        for page_id in written.iter() {
            let home_here = self.is_home(page_id);
            let page = self.pages.entry(page_id).or_default();
            if page.access == Access::Write {
                page.access = Access::Read;
                lowered.insert(page_id);
            }
            if home_here {
                page.held.advance(self.me, seq);
                page.served = false;
                noticed.insert(page_id);
            } else {
                copies.push(page_id);
            }
        }
        // Stores must fault again before the page is compared, or a sibling's store could miss both diffs.
        self.protect_all(&lowered, Access::Read);
        let diffs_missing = copies.len();
        self.effects.extend(copies.into_iter().map(|page| Effect::Diff { page }));
        self.release = Some(OpenRelease { seq, diffs_missing, noticed, flushes: BTreeMap::new(), then });
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
        let flush = release.flushes.entry(home).or_default();
        flush.bytes += runs.len();
        flush.diffs.push((page_id, runs));
        let full = flush.bytes >= FLUSH_BATCH_BYTES;
        let batch = full.then(|| std::mem::take(flush));
        let page = self.pages.entry(page_id).or_default();
        page.held.advance(self.me, seq);
        if page.fetch.is_some() {
            // The reply on its way may have left the home before this diff reaches it.
            page.needed.advance(self.me, seq);
        }
        if let Some(batch) = batch {
            self.send_flush(home, seq, &batch);
        }
    }

    fn send_flush(&mut self, home: NodeId, seq: IntervalSeq, flush: &Flush) {
        let diffs = flush.diffs.iter().map(|(page, runs)| PageDiff { page: *page, runs }).collect();
        self.send(home, &Message::Diffs { seq, diffs });
    }

    fn finish_release(&mut self) {
        for page_id in std::mem::take(&mut self.operated_on).iter() {
            let noticed = &self.release.as_ref().expect("a release is open").noticed;
            if !noticed.contains(page_id) {
                self.flush(page_id, Vec::new());
            }
        }
        let release = self.release.take().expect("a release is open");
        for (home, flush) in release.flushes.iter().filter(|(_, flush)| !flush.diffs.is_empty()) {
            self.send_flush(*home, release.seq, flush);
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
                let actions = self.locks.release(lock, &self.timestamp);
                self.carry_out(actions);
                if let Some(waiter) = waiter {
                    self.wake(waiter, Outcome::Done);
                }
            }
            AfterRelease::Arrive(collective) => self.send_arrival(collective),
            AfterRelease::Publish(to, waiter) => {
                // What `to` has seen is not known here: it gets all since the last barrier.
                let notices = self.log.beyond(&VectorTimestamp::new(self.limits.nodes));
                let knowledge = Knowledge { timestamp: self.timestamp.clone(), notices };
                self.send(to, &Message::Publish { knowledge });
                self.wake(waiter, Outcome::Done);
            }
            AfterRelease::Atomic { home, page_id, offset, operation, waiter } => {
                let needed = self.needed(page_id);
                let ticket = waiter.0;
                self.send(home, &Message::AtomicRequest { ticket, page: page_id, offset, operation, needed });
            }
        }
    }
}

/// Acquires: learning what changed from write notices (Keleher, Cox, Zwaenepoel).
impl Hlrc {
    fn absorb(&mut self, knowledge: &Knowledge, keep_for_others: bool) {
        let mut invalidated = PageSet::new();
        for notice in &knowledge.notices {
            if notice.node == self.me || notice.seq <= self.timestamp.get(notice.node) {
                continue;
            }
            if keep_for_others {
                self.log.record(notice.node, notice.seq, &notice.pages);
            }
            for page_id in notice.pages.iter() {
                let page = self.pages.entry(page_id).or_default();
                if page.held.get(notice.node) >= notice.seq {
                    continue;
                }
                page.needed.advance(notice.node, notice.seq);
                page.valid = false;
                if page.access != Access::None {
                    page.access = Access::None;
                    invalidated.insert(page_id);
                }
            }
        }
        self.timestamp.merge(&knowledge.timestamp);
        self.protect_all(&invalidated, Access::None);
    }
}

/// Locks, condition variables and collectives.
impl Hlrc {
    fn carry_out(&mut self, actions: impl IntoIterator<Item = LockAction>) {
        for action in actions {
            match action {
                LockAction::Send { to, message } => self.send(to, &message),
                LockAction::Grant { to, lock, timestamp } => {
                    let notices = self.log.beyond(&timestamp);
                    let knowledge = Knowledge { timestamp: self.timestamp.clone(), notices };
                    self.send(to, &Message::LockGrant { lock, knowledge });
                }
                LockAction::Acquired(waiter) => self.wake(waiter, Outcome::Done),
                LockAction::Refused(waiter) => self.wake(waiter, Outcome::Refused),
            }
        }
    }

    fn acquire_lock(&mut self, lock: LockId, waiter: Waiter) {
        match self.locks.acquire(lock, waiter, &self.timestamp) {
            Ok(actions) => self.carry_out(actions),
            Err(misuse) => self.wake(waiter, Outcome::Misuse(misuse)),
        }
    }

    fn synchronise(&mut self, sync: Sync, waiter: Waiter) {
        match sync {
            Sync::Acquire(lock) => self.acquire_lock(lock, waiter),
            Sync::TryAcquire(lock) => {
                let action = self.locks.try_acquire(lock, waiter, &self.timestamp);
                self.carry_out([action]);
            }
            Sync::Release(lock) | Sync::Wait(_, lock) if !self.locks.is_held_by(lock, waiter) => {
                self.wake(waiter, Outcome::Misuse(Misuse::NotHeld(lock)));
            }
            Sync::Release(lock) => self.begin_release(AfterRelease::Unlock(lock, Some(waiter))),
            Sync::Wait(cond, lock) => {
                self.conds.begin_wait(waiter, lock);
                self.send(cond.manager(self.limits.nodes), &Message::CondWait { cond, ticket: waiter.0 });
            }
            Sync::Signal(cond) | Sync::Broadcast(cond) => {
                let all = matches!(sync, Sync::Broadcast(_));
                self.send(cond.manager(self.limits.nodes), &Message::CondSignal { cond, all });
                self.wake(waiter, Outcome::Done);
            }
            Sync::Collective(collective) => {
                assert!(self.collective_waiter.is_none(), "one thread a node meets the other nodes");
                self.collective_waiter = Some(waiter);
                self.begin_release(AfterRelease::Arrive(collective));
            }
            Sync::Publish(to) => self.begin_release(AfterRelease::Publish(to, waiter)),
        }
    }

    fn send_arrival(&mut self, collective: Collective) {
        let knowledge = Knowledge { timestamp: self.timestamp.clone(), notices: self.log.of(self.me) };
        let epoch = self.collectives_done;
        self.send(NodeId::ZERO, &Message::Arrive { epoch, collective, knowledge });
    }

    fn handle_arrival(
        &mut self,
        from: NodeId,
        epoch: u64,
        collective: Collective,
        knowledge: &Knowledge,
    ) -> Result<(), ProtocolError> {
        let Some(manager) = self.barrier_manager.as_mut() else {
            return Err(unexpected("arrivals only on node 0", format!("one from node {from}")));
        };
        match manager.arrive(from, epoch, collective, knowledge.clone())? {
            Ok(None) => {}
            Ok(Some(completed)) => {
                for (node, knowledge) in NodeId::all(self.limits.nodes).zip(completed.departures) {
                    let (epoch, collective) = (completed.epoch, completed.collective);
                    self.send(node, &Message::Depart { epoch, collective, knowledge });
                }
            }
            Err(mismatch) => self.effects.push_back(Effect::Fatal { sentence: mismatch.sentence() }),
        }
        Ok(())
    }

    fn handle_departure(
        &mut self,
        epoch: u64,
        collective: Collective,
        knowledge: &Knowledge,
    ) -> Result<(), ProtocolError> {
        let Some(waiter) = self.collective_waiter.take().filter(|_| epoch == self.collectives_done) else {
            return Err(unexpected(
                "a departure from the present collective",
                format!("one from collective {epoch}"),
            ));
        };
        self.collectives_done += 1;
        self.absorb(knowledge, false);
        self.reclaim_exclusive_pages();
        // Everybody has seen every interval up to here: nobody will ask for these notices again.
        self.log.clear();
        for publication in std::mem::take(&mut self.publications).values() {
            self.absorb(publication, true);
        }
        self.wake(waiter, Outcome::Collective(collective));
        Ok(())
    }
}

impl Hlrc {
    /// After a collective everybody has heard of this node's writes and dropped older copies: home pages that nobody has
    /// fetched since are exclusive again.
    fn reclaim_exclusive_pages(&mut self) {
        for notice in self.log.of(self.me) {
            for page_id in notice.pages.iter() {
                if self.is_home(page_id)
                    && let Some(page) = self.pages.get_mut(&page_id)
                {
                    page.shared &= page.served;
                }
            }
        }
    }

    fn dispatch(&mut self, from: NodeId, message: &Message<'_>) -> Result<(), ProtocolError> {
        match message {
            Message::PageRequest { page, needed } => {
                self.handle_home_request(*page, needed, HomeRequest::Page(from));
            }
            Message::PageReply { page, version, content } => {
                self.handle_page_reply(*page, version, *content)?
            }
            Message::Diffs { seq, diffs } => self.handle_diffs(from, *seq, diffs)?,
            Message::LockRequest { lock, timestamp } => {
                let action = self.locks.handle_request(*lock, from, timestamp.clone(), false);
                self.carry_out(action);
            }
            Message::LockTry { lock, timestamp } => {
                let action = self.locks.handle_request(*lock, from, timestamp.clone(), true);
                self.carry_out(action);
            }
            Message::LockForward { lock, requester, timestamp } => {
                let action = self.locks.handle_forward(*lock, *requester, timestamp.clone())?;
                self.carry_out(action);
            }
            Message::LockTryForward { lock, requester, timestamp } => {
                let actions = self.locks.handle_try_forward(*lock, *requester, timestamp.clone());
                self.carry_out(actions);
            }
            Message::LockTryOutcome { lock, requester, granted } => {
                let actions = self.locks.handle_try_outcome(*lock, *requester, *granted);
                self.carry_out(actions);
            }
            Message::LockTryRefused { lock } => {
                let actions = self.locks.handle_try_refused(*lock, &self.timestamp)?;
                self.carry_out(actions);
            }
            Message::LockGrant { lock, knowledge } => {
                self.absorb(knowledge, true);
                let action = self.locks.handle_grant(*lock)?;
                self.carry_out([action]);
            }
            Message::Publish { knowledge } if self.collective_waiter.is_some() => {
                self.publications.insert(from, knowledge.clone());
            }
            Message::Publish { knowledge } => self.absorb(knowledge, true),
            Message::CondWait { cond, ticket } => {
                self.conds.enqueue(*cond, from, *ticket);
                self.send(from, &Message::CondNoted { ticket: *ticket });
            }
            Message::CondNoted { ticket } => {
                let lock = self.conds.handle_noted(*ticket)?;
                self.begin_release(AfterRelease::Unlock(lock, None));
            }
            Message::CondSignal { cond, all } => {
                for (node, ticket) in self.conds.signal(*cond, *all) {
                    self.send(node, &Message::CondWake { ticket });
                }
            }
            Message::CondWake { ticket } => {
                let lock = self.conds.handle_wake(*ticket)?;
                self.acquire_lock(lock, Waiter(*ticket));
            }
            Message::Arrive { epoch, collective, knowledge } => {
                self.handle_arrival(from, *epoch, *collective, knowledge)?;
            }
            Message::Depart { epoch, collective, knowledge } => {
                self.handle_departure(*epoch, *collective, knowledge)?;
            }
            Message::AtomicRequest { ticket, page, offset, operation, needed } => {
                let client = AtomicClient::There(from, *ticket);
                let request = HomeRequest::Atomic { client, offset: *offset, operation: *operation };
                self.handle_home_request(*page, needed, request);
            }
            Message::AtomicReply { ticket, outcome } => self.handle_atomic_reply(*ticket, *outcome)?,
            Message::Free { .. }
            | Message::SizeRequest { .. }
            | Message::SizeReply { .. }
            | Message::ProgramData { .. } => {
                return Err(unexpected(
                    "a message of the protocol",
                    "one for the allocator or the loader".to_owned(),
                ));
            }
        }
        Ok(())
    }
}

impl Engine for Hlrc {
    fn add_region(&mut self, pages: PageRange, placement: Placement) {
        self.homes.add(pages, placement);
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
        for page_id in pages.iter() {
            if self.prefetches >= PREFETCHES_MAX {
                return;
            }
            let Some(home) = self.homes.home_of(page_id).filter(|home| *home != self.me) else { continue };
            let page = self.pages.entry(page_id).or_default();
            if page.valid || page.fetch.is_some() {
                continue;
            }
            page.fetch = Some(Fetch { hinted: true, ..Fetch::default() });
            self.prefetches += 1;
            self.request_page(home, page_id);
        }
    }

    fn handle_message(&mut self, from: NodeId, message: &Message<'_>) -> Result<(), ProtocolError> {
        self.dispatch(from, message)
    }

    fn handle_done(&mut self, done: Done) {
        match done {
            Done::Diff { page, runs } => self.handle_diff(page, runs),
            Done::Atomic { outcome } => self.finish_atomic_at_home(outcome),
        }
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        self.deliver_loopback();
        self.effects.pop_front()
    }
}

fn unexpected(expected: &'static str, got: String) -> ProtocolError {
    ProtocolError::Unexpected { expected, got }
}
