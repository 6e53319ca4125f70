//! Automatic update release consistency.
//!
//! Read first: Iftode, Dubnicki, Felten, Li, *Improving Release-Consistent Shared Virtual Memory using
//! Automatic Update*, HPCA 1996, its section on AURC; then [`crate::hlrc`], which the same authors derived
//! from it (Zhou, Iftode, Li, OSDI 1996) and which this file builds on: homes, intervals, write notices and
//! fetches are the same.
//!
//! Barli, Watanabe, Sakai, Tanaka, *Performance Analysis on Software DSM System Connected with High Speed
//! Network* (`reproduce 000`) compares it with SC, LRC and HLRC in section 2.3.
//!
//! Tests: `check/tests/all/aurc.rs`, and there `mapping.rs` for mapped pages, `moves.rs`, `explore.rs` and
//! `golden.rs`.
//!
//! In the paper the network interface snoops the memory bus: each store to a copy that is mapped to its home
//! travels there at once, without twin or diff, and at a release little is left to wait for.
//!
//! **The deviation**: no hardware snoops here. If nodes share memory, long runs of pages are **mapped**
//! directly onto their home's frames ([`mapped`]): every store is at the home at once, without twin or diff,
//! as in the paper; but there is no local copy, so loads go there too. For all other pages, twins and diffs
//! stay, and their time is automatic: while the program computes, its changes leave for the home **in the
//! background**, as diffs of pages that an interval has changed *so far*. The host reports moments in which
//! it has nothing else to do, **lulls** ([`Engine::handle_lull`](crate::Engine::handle_lull)). The release
//! sends the rest, as in home-based LRC.
//!
//! The states of a copy beyond those of home-based LRC (the home has no further ones):
//!
//! | state | in a lull | load, store | release | notice of another's |
//! |---|---|---|---|---|
//! | mapped (no copy; [`mapped`]) | – | at the home's frame | – | – : none is sent |
//! | clean | – | as there; the first store → dirty | – | → absent |
//! | dirty | when it is due: early diff, twin := twin + diff → partly sent | – | diff, notice | → dirty, invalidated |
//! | dirty, invalidated | the same, stays invalidated | fetch by message | diff, notice | – |
//! | dirty, on its way here | – : the page would come without the diff | wait | as there | – |
//! | coming, to be homed here | – : it has no twin | wait | – | as there |
//! | partly sent | when it is due again: the same | – | what differs still, perhaps nothing; **notice anyway** | → dirty, invalidated; its notice stays owed |
//!
//! Why this is correct:
//! - *An early diff names no interval.* The home changes its frame and leaves the page's version, and the
//!   intervals that it publishes, unchanged: they follow from the release's [`Message::Diffs`], which arrive
//!   after all early ones on the same link and name every page that was sent early, if necessary with an
//!   empty diff. A node that needs the interval waits for these, so a thread that may rely on its stores
//!   finds them all.
//! - *Other nodes may see stores of an open interval.* A home, a request or a one-sided reader that meets
//!   them is not ordered after them; a program without data races does not look at those bytes. In a copy
//!   that is merged they are not among the copy's own writes, as they go into frame and twin.
//! - *No older value follows.* A later store by another node to a byte that was sent is ordered after the
//!   interval's end. That node's copy lost its access by the notice and has been fetched from the home after
//!   the last diff, so its own diff comes later than all of them.
//! - *Sibling threads continue to write while a page is compared.* Each byte is read once. The twin takes the
//!   bytes that were sent, not those that the page contains by then: later stores still differ from it, and
//!   go with the next diff.
//! - *A writer that fetches a page again finds its own early diffs in it*, because its request follows them
//!   on the link; otherwise the merge would undo them. So a page on its way is not sent early, since it may
//!   have left the home before; and a page that was sent early is not read from the home's frame, where no
//!   node could tell whether the diff is applied yet, until the interval has ended and counts as needed.
//! - *Atomic words* are patched into the twin too, so no diff undoes them; a release orders plain stores to
//!   them before an operation, as in home-based LRC.
//! - *Homes may move in the middle of an interval* (`moves.rs`). An early diff goes to the node that its
//!   writer takes for the page's home when it sends it. It reaches the last home before the writer's
//!   `HomeMovesHeard`, so the content that is handed over contains it. But it is in no version: a next home
//!   whose copy has all intervals of the version may lack it. So the home notes of which open intervals its
//!   pages contain *parts*, and always sends the content of such a page. Diffs for the next home wait there
//!   while the page is coming, in one queue with whole diffs and before requests. If the first parts of an
//!   interval went to the last home, the rest, even if it is empty, goes to the next one with the notice. It
//!   is applied there, and advances the version and the published intervals, only after the content with
//!   those parts has arrived. When the page moves again, its writer has arrived at a collective meanwhile,
//!   which ends an interval: then the version includes it.
//! - *The next home* may have sent parts of its own copy early. The release that lets the page rest sends the
//!   remaining changes, or an empty diff, to the last home, before its `HomeMovesHeard`. From then on the
//!   page has no twin here that could be compared, and a page that is homed here never has one.
//!
//! Cost: a page that the program writes again is sent again. So it goes early only after it has been quiet,
//! as far as is known: if writes are noted, when they show none since the previous lull; otherwise one lull
//! after its first store. After each look at the page, the wait for the next one in the same interval is four
//! times as many lulls, and a page that changed again after it had been sent waits longer in later intervals.

pub mod mapped;

use std::collections::BTreeMap;

use hiroba_base::{Access, IntervalSeq, NodeId, PageId, PageRange, PageSet, VectorTimestamp};
use hiroba_wire::{HomeMoves, Message};
use rustc_hash::FxHashMap;

use crate::batches::batches;
use crate::coherence::{Coherence, PageMove, Site, WordOperation};
use crate::hlrc::Hlrc;
use crate::home::{HomePolicy, Located};
use crate::{Done, Effect, ProtocolError, Waiter, WriteTracking};

/// The maximum number of pages that are compared in one lull, and of their bytes: some tens of microseconds,
/// for which faults wait.
const PAGES_PER_LULL_MAX: usize = 32;
const BYTES_PER_LULL_MAX: u64 = 128 << 10;

/// The binary logarithm of the maximum number of lulls that a page waits.
const PATIENCE_MAX: u8 = 8;

/// The binary logarithm of the factor by which each look at a page multiplies the lulls before the next one
/// in the same interval.
const LOOK_COSTS: u8 = 2;

/// Automatic update release consistency on one node.
#[derive(Debug, Default)]
pub struct Aurc {
    hlrc: Hlrc,
    /// The number of lulls so far.
    lulls: u64,
    /// True if the host is asked in this lull which pages were written.
    asks: bool,
    /// Pages that may be dirty, by the lull in which they are due: at most as many as the node has copies.
    due: BTreeMap<u64, PageSet>,
    candidates: FxHashMap<PageId, Candidate>,
    /// The number of early diffs that the host has not made yet.
    awaited: usize,
    /// The early diffs that it has made in this lull.
    made: Vec<(PageId, Vec<u8>)>,
}

/// The state of a copy that has been dirty.
#[derive(Clone, Copy, Debug, Default)]
struct Candidate {
    /// The lull in which it is due, in this interval.
    due: Option<u64>,
    /// The number of looks at it, and their interval.
    looks: u8,
    looked_in: IntervalSeq,
    /// The additional wait of a page that is written again and again.
    patience: u8,
}

impl Candidate {
    fn note_look(&mut self, open: IntervalSeq) {
        self.looks = if self.looked_in == open { self.looks.saturating_add(1) } else { 1 };
        self.looked_in = open;
    }

    fn wait_lulls(self, open: IntervalSeq) -> u64 {
        let looks = if self.looked_in == open { self.looks } else { 0 };
        1 << looks.saturating_mul(LOOK_COSTS).saturating_add(self.patience).min(PATIENCE_MAX)
    }
}

/// Returns the number that the open interval will have.
fn open_interval(site: &Site) -> IntervalSeq {
    site.timestamp.get(site.me) + 1
}

impl Aurc {
    /// Returns the protocol with no pages allocated, on top of `hlrc`.
    pub fn new(hlrc: Hlrc) -> Aurc {
        Aurc { hlrc, ..Aurc::default() }
    }

    /// Queues the page, which may be dirty, for a later lull.
    fn queue(&mut self, site: &Site, page: PageId) {
        assert!(!site.is_home(page), "{page}: a home has nothing to send");
        let candidate = self.candidates.entry(page).or_default();
        if candidate.due.is_none() {
            let due = self.lulls + candidate.wait_lulls(open_interval(site));
            candidate.due = Some(due);
            self.due.entry(due).or_default().insert(page);
        }
    }

    /// Queues the pages that have become writable for the program, which are dirty.
    fn queue_written(&mut self, site: &Site, pages: impl IntoIterator<Item = PageId>) {
        for page in pages {
            if !site.is_async(page) && self.hlrc.written.contains(page) && !site.is_home(page) {
                self.queue(site, page);
            }
        }
    }

    /// Takes the page that has been due for the longest time.
    fn next_due(&mut self) -> Option<PageId> {
        let mut first = self.due.first_entry().filter(|pages| *pages.key() <= self.lulls)?;
        let page = first.get().iter().next().expect("no set is left empty");
        first.get_mut().remove(page);
        if first.get().is_empty() {
            first.remove();
        }
        self.candidate(page).due = None;
        Some(page)
    }

    /// Has due pages compared. Those in `fresh` have been written since the previous lull.
    fn send_due(&mut self, site: &mut Site, fresh: &PageSet) {
        let mut bytes = 0;
        for _ in 0..PAGES_PER_LULL_MAX {
            let Some(page) = self.next_due() else { break };
            if !self.hlrc.written.contains(page) {
                continue;
            }
            if fresh.contains(page) || !self.hlrc.may_send_early(site, page) {
                self.look_again(site, page);
                continue;
            }
            self.awaited += 1;
            site.out.push(Effect::DiffEarly { page });
            bytes += u64::from(site.page_bytes(page));
            if bytes >= BYTES_PER_LULL_MAX {
                break;
            }
        }
    }

    fn look_again(&mut self, site: &Site, page: PageId) {
        self.candidate(page).note_look(open_interval(site));
        self.queue(site, page);
    }

    fn candidate(&mut self, page: PageId) -> &mut Candidate {
        self.candidates.get_mut(&page).expect("what was due is known")
    }

    /// Handles the early diff of a page. It replaces the network interface's snooping in the paper (Barli and
    /// others, section 2.2 and figure 2), page by page instead of store by store.
    fn handle_early_diff(&mut self, site: &mut Site, page: PageId, runs: Vec<u8>) {
        assert!(self.awaited > 0, "{page}: the host makes the early diffs that it was asked for");
        self.awaited -= 1;
        if !runs.is_empty() {
            self.hlrc.sent_early.insert(page);
            self.made.push((page, runs));
        }
        if site.is_async(page) {
            // Stores from now on are noted, and earlier ones are sent.
            self.hlrc.written.remove(page);
            self.candidate(page).note_look(open_interval(site));
        } else {
            self.look_again(site, page);
        }
        if self.awaited == 0 {
            self.send_made(site);
        }
    }

    /// Sends the early diffs, so that the home has the writes before the release (Barli, Watanabe, Sakai,
    /// Tanaka, section 2.3, of AURC; Iftode, Dubnicki, Felten, Li). Dirty → partly sent.
    fn send_made(&mut self, site: &mut Site) {
        assert_eq!(self.awaited, 0, "what was asked for in a lull is sent together");
        let seq = open_interval(site);
        let mut of_each: BTreeMap<NodeId, Vec<(PageId, Vec<u8>)>> = BTreeMap::new();
        for (page, runs) in std::mem::take(&mut self.made) {
            of_each.entry(site.locate(page).home).or_default().push((page, runs));
        }
        for (home, made) in of_each {
            assert_ne!(home, site.me, "a home sends itself nothing");
            for diffs in batches(&made) {
                site.out.send(home, &Message::EarlyDiffs { seq, diffs });
            }
        }
    }

    /// Learns, after all changes of the interval are compared, for which pages sending early was worth while.
    fn learn(&mut self, site: &Site) {
        for page in self.hlrc.sent_early.iter() {
            let candidate = self.candidates.get_mut(&page).expect("what was sent early is known");
            candidate.patience = if site.has_changed(page) {
                (candidate.patience + 1).min(PATIENCE_MAX)
            } else {
                candidate.patience.saturating_sub(1)
            };
        }
    }
}

impl Coherence for Aurc {
    fn maps_homes(&self) -> bool {
        true
    }

    fn is_read_from(&self) -> bool {
        self.hlrc.is_read_from()
    }

    fn leaves_intervals_open(&self) -> bool {
        self.hlrc.leaves_intervals_open()
    }

    fn move_homes(&mut self, policy: HomePolicy) {
        self.hlrc.move_homes(policy);
    }

    fn can_move_homes(&self) -> bool {
        self.hlrc.can_move_homes()
    }

    fn access(&self, page: PageId) -> Access {
        self.hlrc.access(page)
    }

    fn known_pages(&self) -> Vec<PageId> {
        self.hlrc.known_pages()
    }

    fn state(&self, site: &Site, page: Located) -> Option<Result<&'static str, String>> {
        let state = self.hlrc.state(site, page)?;
        let is_partly_sent = self.hlrc.sent_early.contains(page.page);
        Some(state.map(|state| if is_partly_sent { "partly sent" } else { state }))
    }

    fn fault(&mut self, site: &mut Site, page: Located, wanted: Access, waiter: Option<Waiter>) {
        self.hlrc.fault(site, page, wanted, waiter);
        self.queue_written(site, [page.page]);
    }

    fn operate(&mut self, site: &mut Site, operation: WordOperation) {
        self.hlrc.operate(site, operation);
    }

    fn operate_after_release(&mut self, site: &mut Site, operation: WordOperation) {
        self.hlrc.operate_after_release(site, operation);
    }

    fn prefetch(&mut self, site: &mut Site, ranges: &[PageRange]) {
        self.hlrc.prefetch(site, ranges);
    }

    fn handle_message(
        &mut self,
        site: &mut Site,
        from: NodeId,
        message: &Message<'_>,
    ) -> Result<(), ProtocolError> {
        match message {
            Message::EarlyDiffs { seq, diffs } => {
                self.hlrc.handle_early_diffs(site, from, message, *seq, diffs)
            }
            Message::PagesReply { copies, .. } => {
                self.hlrc.handle_message(site, from, message)?;
                self.queue_written(site, copies.iter().map(|copy| copy.page));
                Ok(())
            }
            _ => self.hlrc.handle_message(site, from, message),
        }
    }

    fn handle_done(&mut self, site: &mut Site, done: Done) {
        match done {
            Done::DiffedEarly { page, runs } => self.handle_early_diff(site, page, runs),
            Done::Read { pages, .. } => {
                let granules = site.locate(pages.first).granules;
                self.hlrc.handle_done(site, done);
                self.queue_written(site, pages.iter().step_by(granules as usize));
            }
            _ => self.hlrc.handle_done(site, done),
        }
    }

    fn handle_announced(&mut self, site: &mut Site, pages: &[PageId]) {
        self.hlrc.handle_announced(site, pages);
    }

    fn prepare_release(&mut self, site: &mut Site) {
        self.hlrc.prepare_release(site);
    }

    fn note_written(&mut self, site: &mut Site, granules: &PageSet) {
        self.hlrc.note_written(site, granules);
        if !std::mem::take(&mut self.asks) {
            return;
        }
        let located = granules.iter().filter_map(|granule| site.homes.locate(granule));
        let copies = located.filter(|located| located.home != site.me).map(|located| located.page);
        let fresh: PageSet = copies.filter(|page| self.hlrc.written.contains(*page)).collect();
        fresh.iter().for_each(|page| self.queue(site, page));
        self.send_due(site, &fresh);
    }

    fn close(&mut self, site: &mut Site) {
        assert!(self.awaited == 0 && self.made.is_empty(), "early diffs leave before their interval ends");
        self.hlrc.close(site);
        for page in std::mem::take(&mut self.due).values().flat_map(PageSet::iter) {
            self.candidate(page).due = None;
        }
    }

    fn flush(&mut self, site: &mut Site) {
        self.learn(site);
        self.hlrc.flush(site);
    }

    fn handle_notice(
        &mut self,
        site: &mut Site,
        writer: NodeId,
        seq: IntervalSeq,
        page: PageId,
        voided: &mut PageSet,
    ) {
        self.hlrc.handle_notice(site, writer, seq, page, voided);
    }

    fn handle_meeting(&mut self, site: &mut Site, all_have_seen: &VectorTimestamp) {
        self.hlrc.handle_meeting(site, all_have_seen);
    }

    fn end_invalidation(&mut self, site: &mut Site) {
        self.hlrc.end_invalidation(site);
    }

    fn give_away(&mut self, site: &mut Site) -> Vec<HomeMoves> {
        self.hlrc.give_away(site)
    }

    fn handle_moves(&mut self, site: &mut Site, moves: &[PageMove]) -> Result<(), ProtocolError> {
        self.hlrc.handle_moves(site, moves)
    }

    fn move_after_release(&mut self, site: &mut Site) {
        self.hlrc.move_after_release(site);
    }

    fn begin_phase(&mut self, site: &mut Site, voided: &PageSet) {
        self.hlrc.begin_phase(site, voided);
    }

    fn wants_lull(&self) -> bool {
        !self.due.is_empty() || self.hlrc.watches_any()
    }

    fn handle_lull(&mut self, site: &mut Site) {
        assert!(!site.is_closing(), "early diffs are of open intervals");
        self.lulls += 1;
        if site.tracking == WriteTracking::Async {
            self.asks = true;
            site.out.push(Effect::CollectWritten);
        } else {
            self.send_due(site, &PageSet::new());
        }
    }
}
