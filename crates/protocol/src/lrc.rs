//! Lazy release consistency without homes: diffs stay with their writers until somebody asks.
//!
//! Read first: Keleher, Cox, Zwaenepoel, *Lazy Release Consistency for Software Distributed Shared Memory*, ISCA 1992, for intervals, vector
//! timestamps, write notices and why all that may be lazy; Keleher, Dwarkadas, Cox, Zwaenepoel, *TreadMarks: Distributed Shared Memory on
//! Standard Workstations and Operating Systems*, USENIX Winter 1994, its section on data structures and the one on lazy diff creation.
//!
//! Tests: `check/tests/all/lrc.rs`, and there `explore.rs`, `golden.rs` and `endurance.rs`.
//!
//! A node's execution is divided into **intervals** that end at releases. An acquirer is told, in **write notices**, which pages changed in
//! intervals that it has not seen, and invalidates them. A later fault asks each writer that the notices name for the **diffs** of its
//! intervals, one message a writer, and applies them to what it has of the page, in an order that agrees with happens-before. A diff is
//! made when it is asked for, or when the page's next change would blur it: a page that nobody else reads is never compared.
//!
//! ```text
//!   reader ──DiffsRequest (after, through)──▶ each writer ──DiffsReply──▶ reader
//!   reader without a copy ──PageRequest──▶ home ──PagesReply──▶ reader, then as above
//!   writer that keeps too much ──CatchUpRequest──▶ home (fetches diffs like any reader) ──Held──▶ writer, which forgets them
//! ```
//!
//! A page on one node. *Held* are the intervals that the frame holds, *needed* those that notices name beyond them.
//!
//! | state | copy | needed | twin | access | load faults | store faults |
//! |---|---|---|---|---|---|---|
//! | absent | no | – | none | None | ask the home, then writers → clean | the same, twin → dirty |
//! | clean | yes | – | none | Read | – | twin → dirty |
//! | dirty | yes | – | open | Write | – | – |
//! | closed | yes | – | closed | Read | – | make the diff, twin → dirty |
//! | clean, invalidated | yes | some | none | None | ask the writers → clean | the same, twin → dirty |
//! | dirty, invalidated | yes | some | open | None | ask the writers → dirty | the same |
//! | closed, invalidated | yes | some | closed | None | ask the writers, make the diff → clean | the same, twin → dirty |
//! | home, exclusive | yes | – | none | Write (None before the first touch) | → Write | → Write |
//!
//! A release takes *dirty* to *closed* (write access goes, the twin stays, acquirers will be told); a request for its diff takes
//! *closed* to *clean*. A notice takes each to its *invalidated* twin. The page's **home** differs from others in three things: it always has a
//! copy, though not always the latest; until another node first asks for the page it writes without twins and notices; and it operates
//! on the page's atomic words.
//!
//! **Why the order is right.** Each diff carries the page's **version** at its interval's end: the interval's vector timestamp, without the
//! nodes that never wrote the page. If a write happens before another one of the same byte elsewhere, the second writer's copy held the first
//! interval when it wrote, so the second version covers the first one and has more in it. Ordered by the sum of
//! their versions' entries, diffs are in an order that agrees with happens-before; those that are concurrent change different bytes. Whoever takes a
//! diff takes whatever its version names first, so what a frame holds is always closed under happens-before, and no
//! diff comes that belongs below one that is applied already.
//!
//! **Merge, never overwrite.** Threads of a node may write the page while others' diffs come in: their runs go into frame and twin, and
//! nothing else changes. A *closed* page's own diff is made first, since those runs would be lost from it. Whoever asks for a copy gets
//! the twin of a *dirty* page: a store that the interval itself undoes is in no diff.
//!
//! **Collection.** Kept diffs grow with every hand-over of a lock. When a node keeps more than [`KEPT_BYTES_MAX`], it asks the homes of those
//! pages to bring their copies up to date, and forgets each diff when its home says that it holds it. A node that asks for a diff
//! that was forgotten gives its copy up, takes the home's, and regains from other writers (and its own diffs) what that lacks. This needs
//! no barrier, so a program that never meets is bounded too. Notices are forgotten at barriers, as with homes.
//!
//! Deviations from the papers:
//! - An unlock that no other node waits for does not end the interval (see [`crate::lock`]).
//! - An acquire does not end the interval, and a page may be dirty while others' diffs are applied to it.
//! - Each writer is asked for its own diffs; one that dominates others is not asked for theirs.
//! - The papers collect at barriers, where everybody validates or drops every page; here homes do, one page at a time, when it must be.
//! - The log of intervals keeps only each writer's latest notice for a page (see [`crate::interval`]): requests are for all up to it.
//! - Atomic words are operated on at the page's home: see `words.rs`.

mod fetching;
mod keeping;
mod state;
mod words;

use std::collections::{BTreeMap, VecDeque};

use hiroba_base::{Access, IntervalSeq, NodeId, PageId, PageRange, PageSet, VersionVector};
use hiroba_wire::{Message, Ticket};
use rustc_hash::FxHashMap;

use self::fetching::ReceivedDiff;
pub use self::keeping::KEPT_BYTES_MAX;
use self::keeping::{Keeping, KeptDiff, Purpose};
pub use self::state::State;
use self::words::{HomeWord, Operation, Performed};
use crate::coherence::{Coherence, Site, WordOperation};
use crate::home::Located;
use crate::thread::wanted_beyond;
use crate::words::Turns;
use crate::{Done, Effect, Expected, Outcome, ProtocolError, Waiter, unexpected};

/// Lazy release consistency on one node.
#[derive(Debug, Default)]
pub struct Lrc {
    pages: FxHashMap<PageId, Page>,
    /// Pages that the program has written in the open interval.
    written: PageSet,
    /// Pages homed elsewhere on whose atomic words this node operated in the open interval.
    operated_on: PageSet,
    /// What the host's next answers to `Diff` are for, in order.
    comparing: VecDeque<(PageId, Purpose)>,
    keeping: Keeping,
    /// Operations that the host is carrying out, in order.
    operating: VecDeque<(PageId, Operation)>,
    /// Operations that were carried out while a release was open: their intervals are closed after it.
    performed: VecDeque<Performed>,
    /// The words of the operations under way at other homes, by waiting thread.
    operations_elsewhere: FxHashMap<Ticket, (PageId, u32)>,
    /// Of the words homed here.
    turns: Turns,
}

#[derive(Debug, Default)]
struct Page {
    access: Access,
    /// There is a copy, of whatever age, with all that `held` says in it.
    has_copy: bool,
    /// Home: another node has asked for the page.
    shared: bool,
    /// The intervals that the copy holds.
    held: VersionVector,
    /// What notices (and atomic operations) demand beyond `held`.
    needed: VersionVector,
    /// What else the copy must come to hold: what others ask of the home, or what this node held before it gave its copy up.
    owed: VersionVector,
    twin: Twin,
    /// Own writes of the open interval that are in the twin too, as diffs: the interval's diff begins with
    /// them.
    set_aside: Vec<Vec<u8>>,
    /// This node's own diffs, by ascending interval.
    kept: VecDeque<KeptDiff>,
    /// Own diffs up to this interval are kept no more; the home's copy holds them.
    collected: IntervalSeq,
    fetch: Option<Fetch>,
    /// Home: operations on the page's words that wait for diffs: no more than the job has threads.
    operations: Vec<Operation>,
    /// Home: who waits for the copy to hold what: no more than one entry a node.
    hold_requests: Vec<(NodeId, VersionVector)>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Twin {
    #[default]
    None,
    /// The page as it was before the open interval's writes.
    Open,
    /// As it was before the writes of an interval that has ended, whose diff nobody has needed yet.
    Closed { seq: IntervalSeq, version: VersionVector },
}

/// How a copy is brought up to date.
#[derive(Debug, Default)]
struct Fetch {
    waiters: Vec<Waiter>,
    /// A thread waits, or has waited, for it.
    demanded: bool,
    wants_write: bool,
    /// Only a hint asked for it.
    hinted: bool,
    /// The home has been asked for its copy.
    awaits_copy: bool,
    /// It has come. It may lack intervals of this node itself.
    copy_came: bool,
    /// Writers that have yet to send the last diff that they were asked for, and of which interval it is at most.
    writers: BTreeMap<NodeId, IntervalSeq>,
    /// What came and is not applied yet.
    received: Vec<ReceivedDiff>,
    /// The intervals of which everything has come.
    gained: VersionVector,
    /// What they build on.
    required: VersionVector,
    /// A writer has forgotten what it was asked for.
    is_too_late: bool,
    /// The copy is not the one that there was.
    began_anew: bool,
}

/// Raises every entry to at least the other's.
fn raise(version: &mut VersionVector, other: &VersionVector) {
    other.entries().iter().for_each(|(node, seq)| version.advance(*node, *seq));
}

impl Page {
    /// The copy is there and holds all that it must for this node's threads.
    fn is_current(&self) -> bool {
        self.has_copy && self.needed.is_empty()
    }

    /// All that this node knows of.
    fn known(&self) -> VersionVector {
        let mut known = self.held.clone();
        raise(&mut known, &self.needed);
        if !self.has_copy {
            raise(&mut known, &self.owed);
        }
        known
    }

    /// An interval of this node has ended that changed the page: its version, which is now held, or else must be.
    fn count_own(&mut self, me: NodeId, seq: IntervalSeq) -> VersionVector {
        if self.has_copy {
            self.held.advance(me, seq);
        } else {
            self.owed.advance(me, seq);
        }
        self.known()
    }

    /// The copy holds more: what of it was wanted is not wanted any more.
    fn hold(&mut self, version: &VersionVector) {
        raise(&mut self.held, version);
        self.needed.retain_beyond(&self.held);
        self.owed.retain_beyond(&self.held);
    }

    fn wait(&mut self, wanted: Access, waiter: Option<Waiter>) {
        let fetch = self.fetch.get_or_insert_default();
        fetch.waiters.extend(waiter);
        fetch.wants_write |= wanted == Access::Write;
        fetch.demanded = true;
    }
}

impl Lrc {
    /// Nothing is allocated yet.
    pub fn new() -> Lrc {
        Lrc::default()
    }

    /// Collects beyond so many bytes of diffs and twins instead of [`KEPT_BYTES_MAX`]: for tests.
    pub fn collecting_beyond(mut self, kept_bytes_max: u64) -> Lrc {
        self.keeping.bytes_max = kept_bytes_max;
        self
    }

    fn page(&mut self, site: &Site, page_id: PageId) -> &mut Page {
        let page = self.pages.entry(page_id).or_default();
        // A notice may be the first thing that is heard of a page, before its region.
        page.has_copy |= site.is_home(page_id);
        page
    }

    fn protect(&mut self, site: &mut Site, page_id: PageId, access: Access) {
        self.page(site, page_id).access = access;
        site.protect(page_id, access);
    }

    /// Takes the program's access to a page away whose copy does not hold what it must.
    fn void(&mut self, site: &mut Site, page_id: PageId) {
        let page = self.page(site, page_id);
        if !page.needed.is_empty() && std::mem::take(&mut page.access) > Access::None {
            let voided = [page_id].into_iter().collect();
            site.invalidate(&voided, |page| self.access(page));
        }
    }
}

/// Faults on pages whose copy is good, and the end of the others'.
impl Lrc {
    /// Lets the program at a copy that holds all that it must. Clean, closed → dirty by a store; home,
    /// exclusive by any first touch.
    fn give(&mut self, site: &mut Site, page_id: PageId, wanted: Access) {
        let page = self.page(site, page_id);
        assert!(page.is_current(), "{page_id}: a copy that is given lacks nothing");
        let is_exclusive = site.is_home(page_id) && !page.shared;
        if is_exclusive {
            self.protect(site, page_id, Access::Write);
        } else if wanted == Access::Write || page.twin == Twin::Open {
            self.begin_writing(site, page_id);
        } else {
            self.protect(site, page_id, Access::Read);
        }
    }

    /// The first store of an interval makes a twin, so that several nodes may write the page at once
    /// (Keleher, Cox, Zwaenepoel: multiple writers). The diff of a closed page is made now at the latest
    /// (Keleher and others 1994: lazy diff creation). Clean, closed → dirty.
    fn begin_writing(&mut self, site: &mut Site, page_id: PageId) {
        let page_bytes = site.page_bytes(page_id);
        assert!(self.page(site, page_id).is_current(), "{page_id}: who writes a copy has all of it");
        match std::mem::replace(&mut self.page(site, page_id).twin, Twin::Open) {
            Twin::Open => {}
            Twin::None => site.out.push(Effect::Twin { page: page_id, page_bytes }),
            Twin::Closed { seq, version } => {
                // The twin, with that diff in it, is the page as it is now.
                self.compare(site, page_id, true, Purpose::Keep { seq, version, for_request: None });
                self.keeping.remove(page_id, u64::from(page_bytes));
            }
        }
        self.written.insert(page_id);
        self.protect(site, page_id, Access::Write);
    }

    /// Home: another node asks for the page. From now on writes are noticed; what was written before is in whatever copy
    /// anybody can get.
    fn share(&mut self, site: &mut Site, page_id: PageId) -> Result<(), ProtocolError> {
        if !site.is_home(page_id) {
            return Err(unexpected(Expected::RequestToHome, format!("one for {page_id}")));
        }
        let page = self.page(site, page_id);
        if !std::mem::replace(&mut page.shared, true) && page.access == Access::Write {
            self.protect(site, page_id, Access::Read);
        }
        Ok(())
    }

    fn hint(&mut self, site: &mut Site, ranges: &[PageRange]) {
        for page_id in site.hinted(ranges) {
            let page = self.page(site, page_id);
            if !page.is_current() && page.fetch.is_none() {
                page.fetch = Some(Fetch { hinted: true, ..Fetch::default() });
                self.go_on_fetching(site, page_id);
            }
        }
    }
}

impl Coherence for Lrc {
    fn access(&self, page: PageId) -> Access {
        self.pages.get(&page).map_or(Access::None, |page| page.access)
    }

    fn known_pages(&self) -> Vec<PageId> {
        self.pages.keys().copied().collect()
    }

    fn state(&self, site: &Site, page: Located) -> Option<Result<&'static str, String>> {
        let is_home = page.home == site.me;
        let page = self.pages.get(&page.page)?;
        Some(State::of(page, is_home).map(State::name).ok_or_else(|| format!("{page:?}")))
    }

    fn fault(&mut self, site: &mut Site, located: Located, wanted: Access, waiter: Option<Waiter>) {
        let page_id = located.page;
        let page = self.page(site, page_id);
        let access = page.access;
        let wanted = wanted_beyond(access, wanted);
        if access >= wanted {
            // Two threads faulted on one page, or the host had to lower access for its own reasons.
            self.protect(site, page_id, access);
        } else if page.is_current() {
            self.give(site, page_id, wanted);
        } else {
            page.wait(wanted, waiter);
            return self.go_on_fetching(site, page_id);
        }
        waiter.into_iter().for_each(|waiter| site.out.wake(waiter, Outcome::Done));
    }

    fn operate(&mut self, site: &mut Site, operation: WordOperation) {
        self.begin_operation(site, operation);
    }

    fn operate_after_release(&mut self, site: &mut Site, operation: WordOperation) {
        self.request_operation(site, operation);
    }

    fn go_on_after_release(&mut self, site: &mut Site, _page: PageId) {
        self.finish_performed(site);
    }

    fn compares_at_releases(&self) -> bool {
        false
    }

    fn leaves_intervals_open(&self) -> bool {
        true
    }

    fn prefetch(&mut self, site: &mut Site, ranges: &[PageRange]) {
        self.hint(site, ranges);
    }

    fn handle_message(
        &mut self,
        site: &mut Site,
        from: NodeId,
        message: &Message<'_>,
    ) -> Result<(), ProtocolError> {
        match message {
            Message::PageRequest { page, needed: _ } => self.handle_page_request(site, from, *page),
            Message::PagesReply { copies, content } => self.handle_copy(site, from, copies, content),
            Message::DiffsRequest { page, after, through } => {
                self.handle_diffs_request(site, from, *page, *after, *through)
            }
            Message::DiffsReply { page, last, diffs } => self.handle_diffs(site, from, *page, *last, diffs),
            Message::DiffsCollected { page } => self.handle_too_late(site, from, *page),
            Message::CatchUpRequest { page, version } => {
                self.handle_catch_up_request(site, from, *page, version)
            }
            Message::CaughtUp { page, version } => self.handle_caught_up(site, from, *page, version),
            Message::AtomicRequest { ticket, page, offset, operation, needed } => {
                let operation = Operation::from(from, *ticket, *offset, *operation, needed.clone());
                self.handle_operation_request(site, *page, operation)
            }
            Message::WordReply { ticket, page, outcome, turn, version } => self.handle_word_reply(
                site,
                *ticket,
                *page,
                HomeWord { outcome: *outcome, turn: *turn, version },
            ),
            _ => Err(unexpected(Expected::LazyMessage, "another".to_owned())),
        }
    }

    fn handle_done(&mut self, site: &mut Site, done: Done) {
        match done {
            Done::Diff { page, runs } => self.handle_compared(site, page, runs),
            Done::Atomic { outcome, .. } => self.handle_operated(site, outcome),
            other => unreachable!("nobody asked for {other:?}"),
        }
    }

    /// The interval ends with a write notice of each page that it changed, and without a diff (Keleher, Cox,
    /// Zwaenepoel for notices, Keleher and others 1994 for lazy diffs). Dirty → closed.
    fn close(&mut self, site: &mut Site) {
        let (me, seq) = (site.me, site.closing());
        let written = std::mem::take(&mut self.written);
        let operated_on = std::mem::take(&mut self.operated_on);
        let mut lowered = PageSet::new();
        for page_id in written.iter() {
            let page_bytes = u64::from(site.page_bytes(page_id));
            let page = self.page(site, page_id);
            if page.access == Access::Write {
                page.access = Access::Read;
                lowered.insert(page_id);
            }
            assert!(
                !matches!(page.twin, Twin::Closed { .. }),
                "{page_id}: what the open interval writes has a twin of its own"
            );
            let version = page.count_own(me, seq);
            let set_aside = std::mem::take(&mut page.set_aside);
            if page.twin == Twin::Open {
                page.twin = Twin::Closed { seq, version: version.clone() };
                self.keeping.add(page_id, page_bytes);
            }
            for runs in set_aside {
                self.keep(page_id, KeptDiff { seq, version: version.clone(), runs });
            }
            site.note_changed(page_id);
        }
        // Who has seen another node's operation passes it on: this interval's version names it.
        for page_id in operated_on.iter().filter(|page_id| !written.contains(*page_id)) {
            let version = self.page(site, page_id).count_own(me, seq);
            self.keep(page_id, KeptDiff { seq, version, runs: Vec::new() });
            site.note_changed(page_id);
        }
        // Stores must fault again before the twin is compared, or a later one would be in two intervals' diffs.
        site.protect_all(&lowered, Access::Read);
    }

    fn flush(&mut self, site: &mut Site) {
        self.collect(site);
    }

    /// A write notice invalidates what it names (Keleher, Cox, Zwaenepoel: the lazy invalidate protocol).
    /// Clean, dirty, closed → the same, invalidated.
    fn handle_notice(
        &mut self,
        site: &mut Site,
        writer: NodeId,
        seq: IntervalSeq,
        page_id: PageId,
        voided: &mut PageSet,
    ) {
        let page = self.page(site, page_id);
        debug_assert_ne!(writer, site.me, "{page_id}: a node is not told of its own intervals");
        if page.held.get(writer) >= seq {
            return;
        }
        page.needed.advance(writer, seq);
        if std::mem::take(&mut page.access) > Access::None {
            voided.insert(page_id);
        }
    }
}
