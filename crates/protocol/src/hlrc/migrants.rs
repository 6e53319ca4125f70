//! Migrants: pages that go from node to node with a lock are fetched as soon as the lock comes.
//!
//! What a lock protects is read and written by one holder after the other (Bennett, Carter and Zwaenepoel's *migratory* pattern). Each holder
//! faults on the same pages, one after the other, right after it has got the lock, whose notices have just invalidated them. So a page
//! on which a thread faults after that is taken for the lock's: the next time that a grant of the same lock invalidates it, it is
//! asked for at once, with all others of the lock, in one message to each home.
//!
//! As with [`habits`](super::habits), nobody sees whether a page that came unasked is still read, so it is believed a few times only, and the
//! program must fault once more to renew that.
//!
//! Where that has proved right, the node orders the page from its home, which sends it ahead of the lock whenever it hands that over itself: see
//! [`supplies`](super::supplies).

use hiroba_base::{LockId, PageId, PageSet};
use hiroba_wire::Message;

use super::Hlrc;
use super::habits::{BELIEVED_MAX, BELIEVED_MIN};
use super::supplies::ENDS_MAX;
use crate::coherence::Site;

/// What is known of a page's use behind a lock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Migrant {
    /// The lock whose grant invalidated the page last; none when something else did since.
    lost_with: Option<LockId>,
    /// How many more times it is fetched unasked with that lock.
    believed: u8,
    /// How many times it was when the program last faulted on it.
    trust: u8,
    /// Its home has an order to send it ahead of this lock, if it hands that over.
    ordered_with: Option<LockId>,
    /// So many such orders have ended.
    ends: u8,
}

impl Migrant {
    /// Whether its home is to send it ahead of this lock.
    pub(super) fn is_ordered_with(&self, lock: LockId) -> bool {
        self.ordered_with == Some(lock)
    }

    /// Whether it is given to the program without a fault this time.
    pub(super) fn believe(&mut self) -> bool {
        let left = self.believed.checked_sub(1);
        self.believed = left.unwrap_or_default();
        left.is_some()
    }
}

impl Hlrc {
    /// Has pages that go with locks fetched as soon as the locks come.
    pub fn following_migrants(mut self) -> Hlrc {
        self.follows_migrants = true;
        self
    }

    /// A thread has faulted on the page, which was absent.
    pub(super) fn note_migrant(&mut self, site: &mut Site, page_id: PageId) {
        let home = site.locate(page_id).home;
        let may_order = self.supplies.is_on && site.fetches_ahead && !self.reach.includes(home);
        let migrant = &mut self.pages.entry(page_id).or_default().migrant;
        let Some(lock) = migrant.lost_with else { return };
        let has_proved_right = migrant.trust > 0;
        migrant.trust = (migrant.trust * 2).clamp(BELIEVED_MIN, BELIEVED_MAX);
        migrant.believed = migrant.trust;
        let is_due = has_proved_right || self.supplies.is_hasty;
        let may_order = may_order && is_due && migrant.ordered_with.is_none() && migrant.ends < ENDS_MAX;
        if may_order && self.supplies.charge(home, site.page_bytes(page_id)) {
            migrant.ordered_with = Some(lock);
            let pages = [page_id].into_iter().collect();
            site.out.send(home, &Message::StandingOrder { lock: Some(lock), pages, stands: true });
        }
    }

    /// Supplies of the page with its lock are of no use.
    pub(super) fn end_lock_order(&mut self, site: &mut Site, page_id: PageId) {
        let migrant = &mut self.pages.entry(page_id).or_default().migrant;
        (migrant.believed, migrant.trust) = (0, 0);
        if let Some(lock) = migrant.ordered_with.take() {
            migrant.ends += 1;
            let (home, pages) = (site.locate(page_id).home, [page_id].into_iter().collect());
            self.supplies.discharge(home, site.page_bytes(page_id));
            site.out.send(home, &Message::StandingOrder { lock: Some(lock), pages, stands: false });
        }
    }

    /// The page's home, which may have an order, will not know it any more: it moves.
    pub(super) fn forget_lock_order(&mut self, site: &Site, page_id: PageId) {
        let ordered = self.pages.get_mut(&page_id).and_then(|page| page.migrant.ordered_with.take());
        if ordered.is_some() {
            self.supplies.discharge(site.locate(page_id).home, site.page_bytes(page_id));
        }
    }

    /// A grant of the lock has invalidated these pages.
    pub(super) fn fetch_migrants(&mut self, site: &mut Site, lock: LockId, invalidated: &PageSet) {
        if !self.follows_migrants || !site.fetches_ahead {
            return;
        }
        let mut wanted = Vec::new();
        for page_id in invalidated.iter() {
            let migrant = &mut self.pages.entry(page_id).or_default().migrant;
            if migrant.lost_with != Some(lock) {
                migrant.lost_with = Some(lock);
                self.end_lock_order(site, page_id);
            } else if !self.supplies.expects(page_id) && migrant.believe() {
                wanted.push(page_id);
            }
        }
        wanted.retain(|page_id| {
            let located = site.locate(*page_id);
            self.may_prefetch() && self.begin_prefetch(site, located)
        });
        self.request_pages(site, &wanted, false);
    }

    /// A barrier has invalidated these pages: they go with no lock.
    pub(super) fn forget_migrants(&mut self, invalidated: &PageSet) {
        if self.follows_migrants {
            for page_id in invalidated.iter() {
                self.pages.entry(page_id).or_default().migrant.lost_with = None;
            }
        }
    }
}
