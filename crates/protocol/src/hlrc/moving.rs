//! Moving pages in home-based LRC: what the protocol shows of them to [`moves`](crate::moves), and how it
//! carries the answers out.

use hiroba_base::{Access, NodeId, PageId, PageSet, VersionVector};
use hiroba_wire::{Message, PageCopy, PageHandedOver, PagesHeld};
use rustc_hash::FxHashMap;

use super::one_sided::Reach;
use super::{AtomicTargets, Hlrc, HomeRequest, Page};
use crate::coherence::{AfterRelease, PageMove, Site};
use crate::home::{HomePolicy, MoveThreshold};
use crate::moves::{Agreed, Arrival, HandedOver, Moves, Pages, QueuedDiff, Settled};
use crate::page_table::PageTable;
use crate::words::{Client, Turns};
use crate::{Effect, Expected, Fact, NewContent, ProtocolError, unexpected};

/// This node's pages as moves see them.
pub(super) struct MovedPages<'a> {
    pages: &'a PageTable<Page>,
    operated_on: &'a PageSet,
    reach: &'a Reach,
    turns: &'a mut Turns,
    atomic_targets: &'a mut AtomicTargets,
}

impl Pages for MovedPages<'_> {
    fn has_words(&self, page: PageId) -> Option<bool> {
        self.pages.get(&page).map(|page| page.has_words)
    }

    fn version(&self, page: PageId) -> Option<&VersionVector> {
        self.pages.get(&page).map(|page| &page.version)
    }

    fn good_version(&self, page: PageId) -> Option<&VersionVector> {
        self.pages.get(&page).filter(|page| page.valid).map(|page| &page.version)
    }

    fn may_be_claimed(&self, page: PageId) -> bool {
        // A page without any notice so far is being initialised.
        let is_good = |page: &Page| page.valid && page.fetch.is_none() && !page.version.is_empty();
        !self.operated_on.contains(page) && self.pages.get(&page).is_some_and(is_good)
    }

    fn reads_itself(&self, home: NodeId) -> bool {
        self.reach.includes(home)
    }

    fn take_turns(&mut self, leaves: &dyn Fn(PageId) -> bool) -> FxHashMap<PageId, Vec<(u32, u64)>> {
        self.turns.take_of(leaves)
    }

    fn overtake(&mut self, page: PageId) {
        self.atomic_targets.overtake(page);
    }
}

impl Hlrc {
    /// Sets the policy by which homes move.
    ///
    /// # Panics
    /// If data races are looked for, which needs homes that stay.
    pub fn moving_homes(mut self, policy: HomePolicy) -> Hlrc {
        self.choose_policy(policy);
        self
    }

    pub(super) fn choose_policy(&mut self, policy: HomePolicy) {
        assert!(
            !self.looks_for_races || policy == HomePolicy::Fixed,
            "homes stay when data races are looked for"
        );
        self.moves.set_policy(policy);
    }

    /// Sets the threshold above which a home moves.
    pub fn moving_after(mut self, threshold: MoveThreshold) -> Hlrc {
        self.moves.set_threshold(threshold);
        self
    }

    /// Has a node claim the pages that it alone writes.
    ///
    /// # Panics
    /// If data races are looked for, which needs homes that stay.
    pub fn claiming_homes(mut self) -> Hlrc {
        assert!(!self.looks_for_races, "homes stay when data races are looked for");
        self.moves.claim_pages();
        self
    }

    /// Returns the moves, and the pages to show to them.
    pub(super) fn moving(&mut self) -> (&mut Moves, MovedPages<'_>) {
        let Hlrc { moves, pages, operated_on, reach, turns, atomic_targets, .. } = self;
        (moves, MovedPages { pages, operated_on, reach, turns, atomic_targets })
    }
}

/// Letting pages rest.
impl Hlrc {
    /// Begins these moves, on which all nodes have agreed.
    pub(super) fn begin_moves(&mut self, site: &mut Site, moves: &[PageMove]) -> Result<(), ProtocolError> {
        let (own, mut pages) = self.moving();
        let Agreed { closed, must_rest, leaving } = own.agreed(site, &mut pages, moves)?;
        self.close_what_comes(site, &closed);
        if must_rest {
            site.release_for(AfterRelease::Move);
        }
        self.let_rest(site, leaving);
        Ok(())
    }

    pub(super) fn handle_moves_heard(
        &mut self,
        site: &mut Site,
        from: NodeId,
        page: PageId,
        held: &[PagesHeld],
    ) -> Result<(), ProtocolError> {
        let leaving = self.moves.heard(from, page, held)?;
        self.let_rest(site, leaving);
        Ok(())
    }

    fn close_what_comes(&mut self, site: &mut Site, coming: &PageSet) {
        let mut closed = PageSet::new();
        for page_id in coming.iter() {
            let page = self.pages.or_default(page_id);
            if std::mem::take(&mut page.access) != Access::None {
                closed.insert(page_id);
            }
            if std::mem::take(&mut page.watched) {
                self.watch.pages.remove(&page_id);
            }
        }
        self.moves.were_open(&closed);
        site.protect_all(&closed, Access::None);
    }

    /// Requests a release that lets leaving home pages rest.
    fn let_rest(&mut self, site: &mut Site, leaving: Vec<PageId>) {
        if !leaving.is_empty() {
            // Writes without notice are in no version.
            let watched = self.share(site, leaving);
            self.watch_set(site, &watched);
            site.release_for(AfterRelease::Move);
        }
    }

    /// Prepares a release with asynchronous tracking, before the host is asked what was written. A home page
    /// gets a temporary twin, so that a store that is too late for the answer makes the page differ from it.
    pub(super) fn prepare_rest(&mut self, site: &mut Site) {
        for page_id in self.moves.to_rest().iter() {
            let page = self.pages.or_default(page_id);
            if page.watched && !page.twin {
                self.make_twin(site, page_id);
            }
        }
    }

    /// Begins the rest of pages whose present roles end with the interval that is being closed: no thread may
    /// touch them. Returns those that must be compared with their twins, which they lose.
    pub(super) fn rest_for_move(&mut self, site: &mut Site) -> PageSet {
        let mut compared = PageSet::new();
        let mut voided = PageSet::new();
        for page_id in self.moves.begin_rest().iter() {
            self.watch.forget(page_id);
            let page = self.pages.or_default(page_id);
            (page.watched, page.unguarded) = (false, false);
            if std::mem::take(&mut page.access) != Access::None {
                voided.insert(page_id);
            }
            if page.twin && !self.keeps_snapshot(site, page_id) {
                compared.insert(page_id);
            }
        }
        self.moves.were_open(&voided);
        site.protect_all(&voided, Access::None);
        compared
    }

    /// Informs the last homes of resting pages, or hands the pages over to their next homes.
    pub(super) fn end_rest(&mut self, site: &mut Site) {
        if self.serves_what_leaves() {
            return site.release_for(AfterRelease::Move);
        }
        let (moves, mut pages) = self.moving();
        let HandedOver { next_homes, open } = moves.rested(site, &mut pages);
        for (page_id, to) in next_homes {
            self.become_copy(site, page_id, to);
        }
        // Each would fault once more otherwise.
        let is_good = |page: &Page| page.valid && page.fetch.is_none();
        let reopened: Vec<PageId> =
            open.iter().filter(|page_id| self.pages.get(page_id).is_some_and(is_good)).collect();
        self.give_copies(site, reopened.into_iter().map(|page_id| (page_id, Access::Read)));
    }
}

/// The last home's part.
impl Hlrc {
    /// Makes a copy of a page that was handed over.
    fn become_copy(&mut self, site: &mut Site, page_id: PageId, to: NodeId) {
        let (moves, mut pages) = self.moving();
        moves.became_copy(site, &mut pages, page_id, to);
        let page = self.pages.or_default(page_id);
        assert_eq!(page.access, Access::None, "{page_id}: no thread here touches what leaves");
        assert!(!page.twin && !page.watched, "{page_id}: what was written here is in its version");
        page.valid = page.needed.is_empty();
        (page.shared, page.served, page.unnoticed, page.has_words) = (false, false, false, false);
        let pending = std::mem::take(&mut page.pending);
        let waits = page.fetch.is_some();
        if waits {
            self.request_page(site, to, page_id);
        }
        for pending in pending {
            match pending.request {
                // That node has the answer itself.
                HomeRequest::Page(from) if from == to => {}
                HomeRequest::Atomic { client: Client::Here(waiter), offset, operation } => {
                    let ticket = waiter.0;
                    self.atomic_targets.begin(ticket, page_id, offset);
                    let needed = pending.needed;
                    site.out.send(
                        to,
                        &Message::AtomicRequest { ticket, page: page_id, offset, operation, needed },
                    );
                }
                HomeRequest::Page(from) | HomeRequest::Atomic { client: Client::There(from, _), .. } => {
                    let got = format!("one for {page_id}");
                    site.out.refuse(from, &unexpected(Expected::RequestForWritten, got));
                }
            }
        }
    }
}

/// The next home's part.
impl Hlrc {
    pub(super) fn handle_handed_over(
        &mut self,
        site: &mut Site,
        from: NodeId,
        pages: &[PageHandedOver],
    ) -> Result<(), ProtocolError> {
        for handed in pages {
            site.check_ended(&handed.version)?;
            let (moves, pages) = self.moving();
            if let Some(arrival) = moves.handed_over(&pages, from, handed)? {
                self.become_home(site, arrival);
            }
        }
        self.go_on_with_moved(site);
        Ok(())
    }

    /// Installs received content of a page that is coming.
    pub(super) fn take_in_coming(&mut self, site: &mut Site, copy: &PageCopy, content: NewContent) {
        let Some(arrival) = self.moves.content_came(copy.page, &copy.version) else { return };
        let pages = site.locate(copy.page).span();
        site.out.push(Effect::Install { pages, content, merge: false, fetched: 0, prefetched: 1 });
        self.become_home(site, arrival);
        self.go_on_with_moved(site);
    }

    /// Makes this node the home. Coming → home, shared; or home, exclusive, if no other node has seen the
    /// latest interval.
    fn become_home(&mut self, site: &mut Site, arrival: Arrival) {
        let Arrival { page: page_id, version, was_sent, has_words, turns, own, diffs } = arrival;
        assert!(site.is_home(page_id), "{page_id}: this node takes itself for its home");
        let page = self.pages.or_default(page_id);
        assert_eq!(page.access, Access::None, "{page_id}: no thread touches what is coming");
        assert!(!page.twin && !page.watched, "{page_id}: what was written here was sent before it came");
        version.entries().iter().for_each(|(writer, seq)| page.version.advance(*writer, *seq));
        page.needed.retain_beyond(&page.version);
        let is_unseen = own.is_some() && !has_words;
        (page.valid, page.has_words) = (false, has_words);
        (page.shared, page.served, page.unnoticed) = (!is_unseen, !is_unseen, false);
        let version = page.version.clone();
        if let Some(runs) = own.filter(|_| was_sent) {
            site.out.push(Effect::Apply { page: page_id, runs });
        }
        self.anticipation.is_homed_here(site, page_id);
        self.turns.go_on(page_id, turns);
        site.tell(|| Some(Fact::Holds { page: page_id, version }));
        site.out.push(Effect::CountMove { page: page_id });
        for QueuedDiff { writer, seq, runs, is_early } in diffs {
            if is_early {
                self.apply_early(site, page_id, writer, seq, &runs);
            } else if !self.is_mark(page_id, writer, seq, &runs) {
                self.apply_diff(site, page_id, writer, seq, &runs);
            }
        }
        self.serve_pending(site, page_id);
    }

    /// Continues the work that has waited for pages to come.
    fn go_on_with_moved(&mut self, site: &mut Site) {
        let Settled { reopened, published } = self.moves.take_settled();
        self.reopen(site, &reopened);
        site.let_leave();
        for (writer, seq) in published {
            self.publish(site, writer, seq);
        }
    }

    /// Restores the program's access to pages that they had before they rested, with one effect for each run.
    fn reopen(&mut self, site: &mut Site, pages: &PageSet) {
        let (mut watched, mut readable) = (PageSet::new(), PageSet::new());
        for page_id in pages.iter() {
            let is_open = |page: &Page| page.access != Access::None || !page.needed.is_empty();
            if !self.pages.get(&page_id).is_some_and(is_open) {
                let pages = if site.is_async(page_id) { &mut watched } else { &mut readable };
                pages.insert(page_id);
            }
        }
        self.watch_set(site, &watched);
        self.protect_set(site, &readable, Access::Read);
    }
}
