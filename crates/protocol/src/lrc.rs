//! Lazy release consistency without homes: diffs stay with their writers until a node asks for them.
//!
//! Read first: Keleher, Cox, Zwaenepoel, *Lazy Release Consistency for Software Distributed Shared Memory*,
//! ISCA 1992, for intervals, vector timestamps, write notices and why all of these may be lazy; Keleher,
//! Dwarkadas, Cox, Zwaenepoel, *TreadMarks: Distributed Shared Memory on Standard Workstations and Operating
//! Systems*, USENIX Winter 1994, its section on data structures and the one on lazy diff creation.
//!
//! Tests: `check/tests/all/lrc.rs`, and there `explore.rs`, `golden.rs` and `endurance.rs`.
//!
//! A node's execution is divided into **intervals** that end at releases. **Write notices** inform an
//! acquirer which pages changed in intervals that it has not seen, and it invalidates them. A later fault
//! asks each writer that the notices name for the **diffs** of its intervals, one message for each writer,
//! and applies them to its copy in an order that agrees with happens-before. A diff is made when it is
//! requested, or when the page's next change would mix with it: a page that no other node reads is never
//! compared.
//!
//! ```text
//!   reader ──DiffsRequest (after, through)──▶ each writer ──DiffsReply──▶ reader
//!   reader without a copy ──PageRequest──▶ home ──PagesReply──▶ reader, then as above
//!   writer that keeps too much ──CatchUpRequest──▶ home (fetches diffs like any reader) ──Held──▶ writer, which forgets them
//! ```
//!
//! The states of a page on one node. *Held* intervals are those that the frame contains; *needed* intervals
//! are those that notices name beyond them.
//!
//! | state | copy | needed | twin | access | load faults | store faults |
//! |---|---|---|---|---|---|---|
//! | absent | no | – | none | None | fetch from the home, then from writers → clean | the same, twin → dirty |
//! | clean | yes | – | none | Read | – | twin → dirty |
//! | dirty | yes | – | open | Write | – | – |
//! | closed | yes | – | closed | Read | – | make the diff, twin → dirty |
//! | clean, invalidated | yes | some | none | None | ask the writers → clean | the same, twin → dirty |
//! | dirty, invalidated | yes | some | open | None | ask the writers → dirty | the same |
//! | closed, invalidated | yes | some | closed | None | ask the writers, make the diff → clean | the same, twin → dirty |
//! | home, exclusive | yes | – | none | Write (None before the first touch) | → Write | → Write |
//!
//! A release takes *dirty* to *closed* (write access is removed, the twin stays, acquirers will get a
//! notice); a request for its diff takes *closed* to *clean*. A notice takes each to its *invalidated*
//! counterpart. The page's **home** differs from other nodes in three ways: it always has a copy, though not
//! always the latest; until another node first requests the page, it writes the page without twins and
//! notices; and it operates on the page's atomic words.
//!
//! **Why the order is correct.** Each diff carries the page's **version** at its interval's end: the
//! interval's vector timestamp, without the nodes that never wrote the page. If a write happens before
//! another write of the same byte elsewhere, the second writer's copy contained the first interval when it
//! wrote, so the second version covers the first one and has more in it. Sorted by the sum of their versions'
//! entries, diffs are in an order that agrees with happens-before; concurrent diffs change different bytes. A
//! node that takes a diff first takes all intervals that its version names, so the content of a frame is
//! always closed under happens-before, and no diff arrives that would belong before one that is applied
//! already.
//!
//! **Merge, never overwrite.** Threads of a node may write the page while diffs of other nodes arrive: their
//! runs go into frame and twin, and nothing else changes. A *closed* page's own diff is made first, because
//! it would otherwise lack those runs. A node that requests a copy gets the twin of a *dirty* page: a store
//! that the interval itself undoes is in no diff.
//!
//! **Collection.** Kept diffs grow with every hand-over of a lock. When a node keeps more than
//! [`KEPT_BYTES_MAX`], it asks the homes of those pages to bring their copies up to date, and discards each
//! diff when its home reports that its copy contains it. A node that requests a discarded diff gives up its
//! copy, takes the home's, and regains the intervals that this lacks from other writers and from its own
//! diffs. This needs no barrier, so it also bounds a program without barriers. Notices are discarded at
//! barriers, as in home-based protocols.
//!
//! Deviations from the papers:
//! - An unlock that no other node waits for does not end the interval (see [`crate::lock`]).
//! - An acquire does not end the interval, and a page may be dirty while others' diffs are applied to it.
//! - Diffs are requested from their own writers; a writer whose interval dominates others is not asked for
//!   the others' diffs.
//! - The papers collect at barriers, where every node validates or drops every page; here homes validate, one
//!   page at a time, when memory requires it.
//! - The log of intervals keeps only each writer's latest notice for a page (see [`crate::interval`]):
//!   requests are for all up to it.
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
use crate::page_table::PageTable;
use crate::thread::wanted_beyond;
use crate::words::Turns;
use crate::{Done, Effect, Expected, Outcome, ProtocolError, Waiter, unexpected};

/// Lazy release consistency on one node.
#[derive(Debug, Default)]
pub struct Lrc {
    pages: PageTable<Page>,
    /// Pages that the program has written in the open interval.
    written: PageSet,
    /// Pages homed elsewhere on whose atomic words this node operated in the open interval.
    operated_on: PageSet,
    /// The purposes of the host's next answers to `Diff`, in order.
    comparing: VecDeque<(PageId, Purpose)>,
    keeping: Keeping,
    /// Operations that the host is carrying out, in order.
    operating: VecDeque<(PageId, Operation)>,
    /// Operations that were carried out while a release was open. Their intervals are closed after it.
    performed: VecDeque<Performed>,
    /// The words of the operations under way at other homes, by waiting thread.
    operations_elsewhere: FxHashMap<Ticket, (PageId, u32)>,
    /// The numbers of operations on words that are homed here.
    turns: Turns,
}

#[derive(Debug, Default)]
struct Page {
    access: Access,
    /// True if there is a copy, of whatever age, that contains all intervals of `version`.
    has_copy: bool,
    /// Home: true if another node has requested the page.
    shared: bool,
    /// The intervals that the copy contains.
    version: VersionVector,
    /// The intervals that notices (and atomic operations) demand beyond `version`.
    needed: VersionVector,
    /// Further intervals that the copy must contain: those that others request from the home, or that this
    /// node had before it gave up its copy.
    owed: VersionVector,
    twin: Twin,
    /// Diffs of own writes of the open interval that the twin contains too. The interval's diff begins with
    /// them.
    set_aside: Vec<Vec<u8>>,
    /// This node's own diffs, by ascending interval.
    kept: VecDeque<KeptDiff>,
    /// The last interval whose own diff was discarded, with all before it, because the home's copy contains
    /// it.
    collected: IntervalSeq,
    fetch: Option<Fetch>,
    /// Home: operations on the page's words that wait for diffs: at most one for each thread of the job.
    operations: Vec<Operation>,
    /// Home: nodes that wait until the copy has a version: at most one entry for each node.
    catch_up_requests: Vec<(NodeId, VersionVector)>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Twin {
    #[default]
    None,
    /// The page before the open interval's writes.
    Open,
    /// The page before the writes of an interval that has ended, whose diff has not been needed yet.
    Closed { seq: IntervalSeq, version: VersionVector },
}

/// The progress of bringing a copy up to date.
#[derive(Debug, Default)]
struct Fetch {
    waiters: Vec<Waiter>,
    /// True if a thread waits, or has waited, for it.
    demanded: bool,
    wants_write: bool,
    /// True if only a hint requested it.
    hinted: bool,
    /// True if the home has been asked for its copy.
    awaits_copy: bool,
    /// True if that copy has come. It may lack intervals of this node itself.
    copy_came: bool,
    /// Writers that must still send the last requested diff, and the upper bound of its interval.
    writers: BTreeMap<NodeId, IntervalSeq>,
    /// Diffs that came and are not applied yet.
    received: Vec<ReceivedDiff>,
    /// The intervals whose diffs have all come.
    gained: VersionVector,
    /// The intervals that `gained` depends on.
    required: VersionVector,
    /// True if a writer has discarded a requested diff.
    is_too_late: bool,
    /// True if the copy replaces an earlier one.
    began_anew: bool,
}

/// Raises every entry to at least that of `other`.
fn raise(version: &mut VersionVector, other: &VersionVector) {
    other.entries().iter().for_each(|(node, seq)| version.advance(*node, *seq));
}

impl Page {
    /// Returns true if there is a copy that contains all intervals that this node's threads must see.
    fn is_current(&self) -> bool {
        self.has_copy && self.needed.is_empty()
    }

    /// Returns all intervals of the page that this node knows of.
    fn known(&self) -> VersionVector {
        let mut known = self.version.clone();
        raise(&mut known, &self.needed);
        if !self.has_copy {
            raise(&mut known, &self.owed);
        }
        known
    }

    /// Counts an interval of this node that has ended and changed the page. Returns the page's version, which
    /// the copy contains now, or must come to contain.
    fn count_own(&mut self, me: NodeId, seq: IntervalSeq) -> VersionVector {
        if self.has_copy {
            self.version.advance(me, seq);
        } else {
            self.owed.advance(me, seq);
        }
        self.known()
    }

    /// Notes that the copy contains more intervals, which are not needed any more.
    fn hold(&mut self, version: &VersionVector) {
        raise(&mut self.version, version);
        self.needed.retain_beyond(&self.version);
        self.owed.retain_beyond(&self.version);
    }

    fn wait(&mut self, wanted: Access, waiter: Option<Waiter>) {
        let fetch = self.fetch.get_or_insert_default();
        fetch.waiters.extend(waiter);
        fetch.wants_write |= wanted == Access::Write;
        fetch.demanded = true;
    }
}

impl Lrc {
    /// Returns the protocol with no pages allocated.
    pub fn new() -> Lrc {
        Lrc::default()
    }

    /// Sets the number of bytes of diffs and twins beyond which to collect, instead of [`KEPT_BYTES_MAX`].
    /// For tests.
    pub fn collecting_beyond(mut self, kept_bytes_max: u64) -> Lrc {
        self.keeping.bytes_max = kept_bytes_max;
        self
    }

    fn page(&mut self, site: &Site, page_id: PageId) -> &mut Page {
        let page = self.pages.or_default(page_id);
        // A notice may be the first message about a page, before its region is known.
        page.has_copy |= site.is_home(page_id);
        page
    }

    fn protect(&mut self, site: &mut Site, page_id: PageId, access: Access) {
        self.page(site, page_id).access = access;
        site.protect(page_id, access);
    }

    /// Takes away the program's access to a page whose copy lacks intervals that it must contain.
    fn void(&mut self, site: &mut Site, page_id: PageId) {
        let page = self.page(site, page_id);
        if !page.needed.is_empty() && std::mem::take(&mut page.access) > Access::None {
            let voided = [page_id].into_iter().collect();
            site.invalidate(&voided, |page| self.access(page));
        }
    }
}

/// Faults on pages whose copy is valid, and the completion of other faults.
impl Lrc {
    /// Gives the program access to a copy that contains all that it must. Clean, closed → dirty by a store;
    /// home, exclusive by any first touch.
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

    /// Makes a twin at the first store of an interval, so that several nodes may write the page at once
    /// (Keleher, Cox, Zwaenepoel: multiple writers). The diff of a closed page is made now at the latest
    /// (Keleher and others 1994: lazy diff creation). Clean, closed → dirty.
    fn begin_writing(&mut self, site: &mut Site, page_id: PageId) {
        let page_bytes = site.page_bytes(page_id);
        assert!(self.page(site, page_id).is_current(), "{page_id}: who writes a copy has all of it");
        match std::mem::replace(&mut self.page(site, page_id).twin, Twin::Open) {
            Twin::Open => {}
            Twin::None => site.out.push(Effect::Twin { page: page_id, page_bytes }),
            Twin::Closed { seq, version } => {
                // The twin, with that diff in it, equals the page as it is now.
                self.compare(site, page_id, true, Purpose::Keep { seq, version, for_request: None });
                self.keeping.remove(page_id, u64::from(page_bytes));
            }
        }
        self.written.insert(page_id);
        self.protect(site, page_id, Access::Write);
    }

    /// Marks a page homed here as shared, because another node requests it. From now on writes get notices;
    /// what was written before is in every copy that a node can get.
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
        self.pages.pages().collect()
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

    /// Ends the interval with a write notice of each page that it changed, and without a diff (Keleher, Cox,
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
        // A node that has seen another node's operation passes it on: this interval's version names it.
        for page_id in operated_on.iter().filter(|page_id| !written.contains(*page_id)) {
            let version = self.page(site, page_id).count_own(me, seq);
            self.keep(page_id, KeptDiff { seq, version, runs: Vec::new() });
            site.note_changed(page_id);
        }
        // Stores must fault again before the twin is compared. Otherwise a later store would be in the diffs
        // of two intervals.
        site.protect_all(&lowered, Access::Read);
    }

    fn flush(&mut self, site: &mut Site) {
        self.collect(site);
    }

    /// Handles a write notice, which invalidates the pages that it names (Keleher, Cox, Zwaenepoel: the lazy
    /// invalidate protocol). Clean, dirty, closed → the same, invalidated.
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
        if page.version.get(writer) >= seq {
            return;
        }
        page.needed.advance(writer, seq);
        if std::mem::take(&mut page.access) > Access::None {
            voided.insert(page_id);
        }
    }
}
