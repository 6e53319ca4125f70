//! Copies that no thread has faulted on: shows this protocol's copies to
//! [`anticipation`](crate::anticipation), and fetches what that proposes.

use hiroba_base::{Access, IntervalSeq, LockId, NodeId, PageId, PageSet, VectorTimestamp, VersionVector};
use hiroba_wire::{Ahead, PageCopy};

use super::copies::{Came, Taken, check_all_found};
use super::one_sided::Reach;
use super::{Fetch, Hlrc, Page};
use crate::ProtocolError;
use crate::anticipation::supplies::Unasked;
use crate::anticipation::{Anticipation, Copies, Fetches, Touch};
use crate::coherence::Site;
use crate::home::Located;
use crate::moves::Moves;
use crate::page_table::PageTable;

/// A view of this node's copies.
pub(super) struct View<'a> {
    pages: &'a PageTable<Page>,
    moves: &'a Moves,
    reach: &'a Reach,
}

impl View<'_> {
    fn page(&self, page: PageId) -> Option<&Page> {
        self.pages.get(&page)
    }
}

impl Copies for View<'_> {
    fn is_absent(&self, page: PageId) -> bool {
        self.page(page).is_none_or(|page| !page.valid && page.fetch.is_none())
    }

    /// Excludes pages that are coming here as their home: intervals that this node knows of by now may have
    /// been sent here and not to the last home, and the intervals that the last home publishes do not show
    /// that.
    fn may_ask_for(&self, site: &Site, page: Located) -> bool {
        page.home != site.me && !self.moves.keeps_away(page.page) && self.is_absent(page.page)
    }

    fn is_under_way(&self, page: PageId) -> bool {
        self.page(page).is_some_and(|page| page.fetch.is_some())
    }

    fn is_good(&self, page: PageId) -> bool {
        self.page(page).is_some_and(|page| page.valid)
    }

    fn access(&self, page: PageId) -> Access {
        self.page(page).map_or(Access::None, |page| page.access)
    }

    fn has_twin(&self, page: PageId) -> bool {
        self.page(page).is_some_and(|page| page.twin)
    }

    fn would_do(&self, page: PageId, version: &VersionVector) -> bool {
        let has_all = |page: &Page| version.covers(&page.needed) && version.covers(&page.version);
        self.page(page).is_none_or(has_all)
    }

    fn own_interval(&self, site: &Site, page: PageId) -> IntervalSeq {
        self.page(page).map_or(0, |page| page.version.get(site.me))
    }

    fn reads_itself(&self, home: NodeId) -> bool {
        self.reach.includes(home)
    }

    fn may_send(&self, site: &Site, page: PageId) -> bool {
        let is_whole = |page: &Page| page.needed.is_empty() && !page.has_words;
        site.is_home(page) && self.page(page).is_some_and(is_whole) && !self.moves.keeps_away(page)
    }
}

impl Hlrc {
    /// Has pages that go with locks fetched as soon as the locks come.
    pub fn following_locks(mut self) -> Hlrc {
        self.anticipation.follow_locks();
        self
    }

    /// Has homes send the pages that readers read after every barrier.
    pub fn supplying_readers(mut self) -> Hlrc {
        self.anticipation.place_orders(false);
        self
    }

    /// Has readers place orders as soon as a page has a habit. For tests with few barriers.
    pub fn ordering_hastily(mut self) -> Hlrc {
        self.anticipation.place_orders(true);
        self
    }

    /// Returns the anticipation, and the copies to show to it.
    pub(super) fn anticipate(&mut self) -> (&mut Anticipation, View<'_>) {
        let Hlrc { anticipation, pages, moves, reach, .. } = self;
        (anticipation, View { pages, moves, reach })
    }

    /// Reports that a thread has touched a page of another home. Returns the pages to fetch with it.
    pub(super) fn tell_touch(&mut self, site: &mut Site, page: Located, touch: Touch) -> Fetches {
        let (anticipation, copies) = self.anticipate();
        anticipation.touched(site, &copies, page, touch)
    }

    /// Begins to fetch the proposed pages.
    pub(super) fn fetch_ahead(&mut self, site: &mut Site, fetches: Fetches) {
        let Fetches { pages, is_descending } = fetches;
        for page_id in &pages {
            let before = self.pages.or_default(*page_id).fetch.replace(Fetch::default());
            assert!(before.is_none(), "{page_id}: a page is fetched once at a time");
        }
        self.request_pages(site, &pages, is_descending);
    }

    /// Handles pages that have come unrequested.
    pub(super) fn keep_unasked(
        &mut self,
        site: &mut Site,
        from: NodeId,
        ahead_of: Ahead,
        copies: &[PageCopy],
        content: &[u8],
    ) -> Result<(), ProtocolError> {
        let mut offset = 0;
        let mut pages = Vec::with_capacity(copies.len());
        for copy in copies {
            let (located, found) = site.find_content(copy, &mut offset, content)?;
            site.check_ended(&copy.version)?;
            pages.push(Unasked { page: located.page, version: copy.version.clone(), content: found });
        }
        check_all_found(offset, content)?;
        self.anticipation.keep_unasked(site, from, ahead_of, pages, content);
        Ok(())
    }

    /// Takes the supplies that came ahead of a collective, which the node leaves, or of a lock, which it has
    /// got.
    pub(super) fn expect_supplies(&mut self, site: &mut Site, ahead_of: Ahead) {
        let (anticipation, copies) = self.anticipate();
        anticipation.expect_supplies(&copies, ahead_of);
        // The host is about to report which of the voided pages were written.
        if self.watch.voided.is_empty() {
            self.take_expected(site);
        }
    }

    /// Installs the supplies before the program's threads go on.
    pub(super) fn take_expected(&mut self, site: &mut Site) {
        let (anticipation, copies) = self.anticipate();
        let accepted = anticipation.take_expected(site, &copies);
        let mut taken = Taken::default();
        for supply in accepted {
            let fetch = Fetch::default();
            let version = &supply.version;
            let came = Came { page: supply.page, version, content: supply.content, fetch };
            self.take_in(site, &mut taken, came);
        }
        let fetched = taken.finish(site);
        self.end_fetches(site, fetched);
    }

    /// Handles a message in which a reader places or ends orders.
    pub(super) fn handle_order(
        &mut self,
        site: &mut Site,
        from: NodeId,
        lock: Option<LockId>,
        pages: &PageSet,
        stands: bool,
    ) {
        let begun = self.anticipation.note_orders(from, lock, pages, stands);
        begun.iter().for_each(|page_id| self.guard_page(site, page_id));
    }

    /// Sends changed pages to the nodes that read them. The node arrives at a barrier.
    pub(super) fn send_supplies(&mut self, site: &mut Site) {
        let (anticipation, copies) = self.anticipate();
        for (to, pages) in anticipation.to_send_ahead(site, &copies) {
            self.send_all(site, to, &pages, Some(Ahead::Collective(site.collectives_done)));
        }
    }

    /// Sends the pages ordered with a lock, which goes to another node.
    pub(super) fn send_with_lock(
        &mut self,
        site: &mut Site,
        lock: LockId,
        to: NodeId,
        seen: &VectorTimestamp,
    ) {
        let (anticipation, copies) = self.anticipate();
        let pages = anticipation.to_send_with_lock(site, &copies, lock, to, seen);
        self.send_all(site, to, &pages, Some(Ahead::Grant(lock)));
    }
}
