//! Copies that no thread has faulted on: shows this protocol's copies to
//! [`anticipation`](crate::anticipation), and fetches what that proposes.

use hiroba_base::{Access, NodeId, PageId};

use super::one_sided::Reach;
use super::{Fetch, Hlrc, Page};
use crate::anticipation::habits::AWAITED_PAGES_MAX;
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

    fn reads_itself(&self, home: NodeId) -> bool {
        self.reach.includes(home)
    }
}

impl Hlrc {
    /// Has pages that go with locks fetched as soon as the locks come.
    pub fn following_locks(mut self) -> Hlrc {
        self.anticipation.follow_locks();
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

    /// Begins to fetch pages that threads will use which leave a barrier, or have got a lock. They wait for
    /// them if they are few.
    pub(super) fn fetch_for_leavers(&mut self, site: &mut Site, fetches: Fetches) {
        if fetches.pages.len() <= AWAITED_PAGES_MAX {
            site.awaited.extend(&fetches.pages.iter().copied().collect());
        }
        self.fetch_ahead(site, fetches);
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
}
