//! Ordered fetches, for programs that pass data through plain loads and stores.
//!
//! A page that comes from its home may contain stores of intervals that the reader has no notices of.
//! Data-race free programs do not see the difference. But a thread that finds a flag set in such a page, and
//! then reads a stale copy of the data that the flag announces, does. Once fetches are *ordered*
//! ([`Engine::order_fetches`](crate::Engine::order_fetches)), whoever sees a store has the notices of all
//! that happened before it:
//!
//! - **The home's own stores.** A page is sent as it was when the home's last interval ended, behind all that
//!   the home knows. The first store of an interval to a shared home page makes a twin, the page's
//!   *snapshot*: diffs of other nodes change page and snapshot, stores of the home's threads only the page,
//!   and readers get the snapshot. It is dropped when the interval ends.
//! - **Stores without notices.** An exclusive page has no snapshot. Before it serves one, the home takes its
//!   own access away and closes the interval. This is what the owner of a page does under sequential
//!   consistency ([`crate::sc`], `order.rs`). Pages whose stores are noted instead of faulting have no
//!   snapshots either.
//! - **Diffs.** A writer that has sent diffs informs each home that got some, directly behind them. The home
//!   applies them only after that, so its own threads and its readers have the notices first. Until then
//!   later messages of that writer for homes here wait, too ([`Site::deferred`]).
//! - **Runs of stores.** Where a thread stores to page after page, a fault also opens the pages that follow,
//!   and a departure those that are expected to be written (`rewriting.rs`).
//!   A home page among them is compared with its snapshot when the interval ends, because a notice of a page
//!   that nobody has written would void its copies.
//! - **Stores during a release.** Stores must fault ([`WriteTracking::Fault`](crate::WriteTracking::Fault)).
//!   Then a page loses its write access before it is compared, and a store that comes later waits for the
//!   next interval, as do all later stores of its thread. Where stores are noted instead, one that comes
//!   while the interval is being closed may be in the diff of its page, while the page of an earlier store
//!   has no notice.
//! - **Publications that wait.** One of a node that has left a collective waits until this node leaves it,
//!   too ([`Site::keeps_back`]). Pages that follow it wait with it.
//! - **Homes that move.** A last home informs the next one before it hands pages over, and waits until what
//!   it has been asked for is served. A node that has arrived at a collective and withholds diffs
//!   (`moves/claims.rs`) informs nobody of their interval. Homes that got other diffs of it, without notices,
//!   get these by the departure; or before, when the node must inform anyone, or sends such a home a message
//!   that would wait behind the diffs.
//! - **One-sided reads** come without notices, so pages are requested by message.
//!
//! The order begins at different times on the nodes. A node whose fetches are not ordered yet sends diffs
//! without informing their home; so each node informs all others of everything just after it has begun.

use std::sync::Arc;

use hiroba_base::{Access, NodeId, PageId, PageSet};
use hiroba_wire::{Message, PageCopy, PageHandedOver};

use super::copies::Content;
use super::{Hlrc, Page};
use crate::coherence::{AfterRelease, Coherence, Site};
use crate::exclusive_runs::ExclusiveRuns;
use crate::home::Located;
use crate::{Effect, ProtocolError};

/// The maximum number of bytes that one store fault opens.
const OPENED_BYTES_MAX: u64 = 64 << 10;

/// The state of ordered fetches.
#[derive(Debug, Default)]
pub(super) struct Ordered {
    is_on: bool,
    /// Requests that wait for a release: the reader, and the pages that it gets. The first page identifies
    /// the release.
    waiting: Vec<(NodeId, Vec<PageId>)>,
    /// Messages with pages that followed a publication that is kept back: at most one for each fetch under
    /// way, and those of one round of moves.
    early: Vec<(NodeId, Early)>,
    /// The pages that threads store to one after the other.
    stores: ExclusiveRuns,
    /// Home pages that were opened before a thread stored to them. Each has a snapshot.
    opened: PageSet,
}

impl Ordered {
    /// Returns true if fetches are ordered.
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }
}

#[derive(Debug)]
enum Early {
    Reply { copies: Vec<PageCopy>, content: Arc<[u8]> },
    HandedOver(Vec<PageHandedOver>),
}

impl Hlrc {
    /// Orders fetches from now on.
    pub(super) fn begin_order(&mut self) {
        self.ordered.is_on = true;
        self.reach.stop_reading();
    }

    /// Sends pages that contain the needed intervals; where fetches are ordered, behind all that this node
    /// knows, and as they were when the last interval ended.
    pub(super) fn send_in_order(&mut self, site: &mut Site, to: NodeId, pages: &[PageId]) {
        if !self.ordered.is_on || pages.is_empty() {
            return self.send_pages(site, to, pages);
        }
        self.make_room_for_announcements(site, to);
        let open: Vec<PageId> =
            pages.iter().copied().filter(|page_id| self.may_have_open_stores(site, *page_id)).collect();
        // They are about to get readers. Stores without notices end here.
        let _ = self.share(site, pages.iter().copied());
        if !open.is_empty() {
            self.take_own_access(site, &open);
        }
        self.ordered.waiting.push((to, pages.to_vec()));
        site.release_for(AfterRelease::Order { page: pages[0], to, closes: !open.is_empty() });
    }

    /// Returns true if a page homed here may contain stores of the open interval, and has no snapshot from
    /// before them.
    fn may_have_open_stores(&self, site: &Site, page_id: PageId) -> bool {
        let may_be_written = |page: &Page| page.unnoticed || page.access == Access::Write;
        !self.sends_snapshot(site, page_id)
            && (self.written.contains(page_id) || self.pages.get(&page_id).is_some_and(may_be_written))
    }

    /// Handles a store fault on a page: opens pages that a thread will store to next, if it stores to page
    /// after page. Those that are shared get twins. One that is not written has no diff and no notice, and
    /// costs a comparison.
    pub(super) fn open_ahead(&mut self, site: &mut Site, touched: Located) {
        if !self.ordered.is_on || site.is_async(touched.page) {
            return;
        }
        let Hlrc { ordered, pages, written, .. } = self;
        let may_be_opened = |other: Located| {
            pages.get(&other.page).is_some_and(|page| {
                let is_quiet = !page.twin && page.fetch.is_none() && page.needed.is_empty();
                let is_clean = page.access == Access::Read && !written.contains(other.page);
                let is_noticed_home = !page.unnoticed && !page.has_words;
                is_quiet && is_clean && if other.home == site.me { is_noticed_home } else { page.valid }
            })
        };
        let (mut next, _) = ordered.stores.follow(site, touched, OPENED_BYTES_MAX, may_be_opened);
        next.remove(touched.page);
        let (mut copies, mut shared, mut exclusive) = (Vec::new(), PageSet::new(), PageSet::new());
        for page_id in next.iter() {
            let page = self.pages.or_default(page_id);
            if !site.is_home(page_id) {
                copies.push((page_id, Access::Write));
            } else if page.shared {
                shared.insert(page_id);
            } else {
                // Nobody has a copy: until it is asked for, it needs neither a snapshot nor a notice.
                page.unnoticed = true;
                exclusive.insert(page_id);
            }
        }
        self.give_copies(site, copies);
        self.open_home_pages(site, &shared);
        self.protect_set(site, &exclusive, Access::Write);
    }

    /// Opens shared home pages for stores.
    pub(super) fn open_home_pages(&mut self, site: &mut Site, homes: &PageSet) {
        homes.iter().for_each(|page| self.make_twin(site, page));
        self.written.extend(homes);
        self.ordered.opened.extend(homes);
        self.protect_set(site, homes, Access::Write);
    }

    /// Returns the home pages that were opened before a thread stored to them. The interval ends.
    pub(super) fn take_opened(&mut self) -> PageSet {
        std::mem::take(&mut self.ordered.opened)
    }

    /// Returns true if the page is homed here and has a snapshot.
    pub(super) fn keeps_snapshot(&self, site: &Site, page_id: PageId) -> bool {
        self.ordered.is_on
            && !self.looks_for_races
            && !site.is_async(page_id)
            && self.pages.get(&page_id).is_some_and(|page| page.twin)
    }

    /// Returns true if others get the page's snapshot. Operations on words change only the page.
    pub(super) fn sends_snapshot(&self, site: &Site, page_id: PageId) -> bool {
        self.keeps_snapshot(site, page_id) && !self.pages[&page_id].has_words
    }

    /// Drops the snapshot of a page that is about to leave memory. Until the interval ends the page counts as
    /// one with open stores.
    pub(super) fn drop_snapshot(&mut self, site: &mut Site, page_id: PageId) {
        if self.keeps_snapshot(site, page_id) {
            self.pages.or_default(page_id).twin = false;
            site.out.push(Effect::DropSnapshot { page: page_id });
        }
    }

    /// Takes the access of this node's threads to pages homed here away. What they have written counts for
    /// the open interval.
    fn take_own_access(&mut self, site: &mut Site, pages: &[PageId]) {
        let mut voided = PageSet::new();
        pages.iter().for_each(|page_id| self.void(*page_id, &mut voided));
        site.invalidate(&voided, |page| self.access(page));
        self.ask_for_unwritten(site);
    }

    /// Serves the request whose first page this is. No release is open.
    pub(super) fn send_after_release(&mut self, site: &mut Site, first: PageId) {
        let place = self.ordered.waiting.iter().position(|(_, pages)| pages[0] == first);
        let (to, pages) = self.ordered.waiting.remove(place.expect("the release was for a request"));
        if pages.iter().any(|page_id| self.may_have_open_stores(site, *page_id)) {
            // A thread of this node was faster.
            return self.send_in_order(site, to, &pages);
        }
        self.send_pages(site, to, &pages);
    }

    /// Keeps diffs whose notices have not come. Returns true if it does.
    pub(super) fn come_before_notices(&self, site: &mut Site, from: NodeId, message: &Message<'_>) -> bool {
        let Message::Diffs { seq, .. } = message else { return false };
        let waits = self.ordered.is_on && site.timestamp.get(from) < *seq;
        if waits {
            site.deferred.push((from, message.encode()));
        }
        waits
    }

    /// Takes the pages of a reply: now, or after a publication before it has been absorbed.
    pub(super) fn handle_reply_in_order(
        &mut self,
        site: &mut Site,
        from: NodeId,
        copies: &[PageCopy],
        content: &[u8],
    ) -> Result<(), ProtocolError> {
        if self.ordered.is_on && site.keeps_back(from) {
            let (copies, content) = (copies.to_vec(), content.into());
            self.ordered.early.push((from, Early::Reply { copies, content }));
            return Ok(());
        }
        self.handle_pages_reply(site, from, copies, &Content::Here(content))
    }

    /// Takes pages that are homed here from now on: now, or after a publication before them has been
    /// absorbed.
    pub(super) fn handle_handed_over_in_order(
        &mut self,
        site: &mut Site,
        from: NodeId,
        pages: &[PageHandedOver],
    ) -> Result<(), ProtocolError> {
        if self.ordered.is_on && site.keeps_back(from) {
            self.ordered.early.push((from, Early::HandedOver(pages.to_vec())));
            return Ok(());
        }
        self.handle_handed_over(site, from, pages)
    }

    /// Takes the pages that waited for publications, which have been absorbed.
    pub(super) fn take_waiting_pages(&mut self, site: &mut Site) -> Result<(), ProtocolError> {
        for (from, early) in std::mem::take(&mut self.ordered.early) {
            if site.keeps_back(from) {
                self.ordered.early.push((from, early));
                continue;
            }
            match early {
                Early::Reply { copies, content } => {
                    self.handle_pages_reply(site, from, &copies, &Content::Kept(content))?;
                }
                Early::HandedOver(pages) => self.handle_handed_over(site, from, &pages)?,
            }
        }
        Ok(())
    }

    /// Returns true if a request waits for pages that rest because they leave: it is served before they do.
    pub(super) fn serves_what_leaves(&self) -> bool {
        let waiting = self.ordered.waiting.iter().flat_map(|(_, pages)| pages);
        waiting.into_iter().any(|page_id| self.moves.keeps_away(*page_id))
    }
}
