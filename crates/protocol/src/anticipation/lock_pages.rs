//! Lock pages: pages that go from node to node with a lock are fetched as soon as the lock comes.
//!
//! The data that a lock protects is read and written by one holder after the other (the *migratory* pattern
//! of Bennett, Carter and Zwaenepoel). Each holder faults on the same pages, one after the other, right after
//! it has got the lock, whose notices have just voided them. So a page on which a thread faults after that is
//! assumed to belong to the lock. The next time that a grant of the same lock voids it, it is requested at
//! once, with all others of the lock, in one message to each home.
//!
//! As with [`habits`](super::habits), the node cannot see whether a page that came unrequested is still read.
//! Such a page is trusted only a few times, and the program must fault once more to renew that.
//!
//! If that has proved right, the node orders the page from its home, which then sends it ahead of the lock
//! whenever it hands the lock over itself: see [`supplies`](super::supplies).

use hiroba_base::{LockId, PageId, PageSet};
use hiroba_wire::Message;

use super::habits::{BELIEVED_MAX, BELIEVED_MIN};
use super::supplies::ENDS_MAX;
use super::{Anticipation, Copies, Fetches};
use crate::coherence::Site;

/// The observed use of a page after a lock's grant.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LockPage {
    /// The lock whose grant last voided the page; `None` if something else has voided it since.
    lost_with: Option<LockId>,
    /// The number of times that it will still be fetched unrequested with that lock.
    believed: u8,
    /// The value of `believed` when the program last faulted on it.
    trust: u8,
    /// The lock with which its home has an order to send the page, if it hands that lock over.
    ordered_with: Option<LockId>,
    /// The number of such orders that have ended.
    ends: u8,
}

impl LockPage {
    /// Returns true if its home is to send it ahead of this lock.
    pub(super) fn is_ordered_with(&self, lock: LockId) -> bool {
        self.ordered_with == Some(lock)
    }

    /// Returns true if it is given to the program without a fault this time.
    pub(super) fn believe(&mut self) -> bool {
        let left = self.believed.checked_sub(1);
        self.believed = left.unwrap_or_default();
        left.is_some()
    }
}

impl Anticipation {
    /// Notes that a thread has faulted on the page, which was absent or on trial.
    pub(super) fn note_lock_page(&mut self, site: &mut Site, copies: &impl Copies, page: PageId) {
        let home = site.locate(page).home;
        let may_order = self.supplies.is_on && site.prefetches && !copies.reads_itself(home);
        let lock_page = &mut self.guesses.or_default(page).lock_page;
        let Some(lock) = lock_page.lost_with else { return };
        let has_proved_right = lock_page.trust > 0;
        lock_page.trust = (lock_page.trust * 2).clamp(BELIEVED_MIN, BELIEVED_MAX);
        lock_page.believed = lock_page.trust;
        let is_due = has_proved_right || self.supplies.is_hasty;
        let may_order = may_order && is_due && lock_page.ordered_with.is_none() && lock_page.ends < ENDS_MAX;
        if may_order && self.supplies.charge(home, site.page_bytes(page)) {
            assert_ne!(home, site.me, "{page}: a home orders nothing from itself");
            lock_page.ordered_with = Some(lock);
            let pages = [page].into_iter().collect();
            site.out.send(home, &Message::StandingOrder { lock: Some(lock), pages, stands: true });
        }
    }

    /// Ends the order of the page with its lock, because its supplies are not used.
    pub(super) fn end_lock_order(&mut self, site: &mut Site, page: PageId) {
        let lock_page = &mut self.guesses.or_default(page).lock_page;
        (lock_page.believed, lock_page.trust) = (0, 0);
        if let Some(lock) = lock_page.ordered_with.take() {
            assert!(lock_page.ends < ENDS_MAX, "{page}: what has ended too often is not ordered again");
            lock_page.ends += 1;
            let (home, pages) = (site.locate(page).home, [page].into_iter().collect());
            self.supplies.discharge(home, site.page_bytes(page));
            site.out.send(home, &Message::StandingOrder { lock: Some(lock), pages, stands: false });
        }
    }

    /// Forgets the order of the page, whose home is about to change.
    pub(super) fn forget_lock_order(&mut self, site: &Site, page: PageId) {
        let guess = self.guesses.get_mut(&page);
        if guess.and_then(|guess| guess.lock_page.ordered_with.take()).is_some() {
            self.supplies.discharge(site.locate(page).home, site.page_bytes(page));
        }
    }

    /// Handles that a grant of the lock has voided these pages: proposes those that the program used after
    /// its last grant.
    pub(super) fn follow_lock(
        &mut self,
        site: &mut Site,
        copies: &impl Copies,
        lock: LockId,
        voided: &PageSet,
    ) -> Fetches {
        let mut wanted = Vec::new();
        for page in voided.iter() {
            let lock_page = &mut self.guesses.or_default(page).lock_page;
            if lock_page.lost_with != Some(lock) {
                lock_page.lost_with = Some(lock);
                self.end_lock_order(site, page);
            } else if !self.supplies.expects(page) && lock_page.believe() {
                wanted.push(page);
            }
        }
        wanted.retain(|page| {
            let located = site.locate(*page);
            self.under_way.has_room() && self.under_way.begin(site, copies, located)
        });
        Fetches { pages: wanted, is_descending: false }
    }

    /// Notes that a barrier has voided these pages, so that they belong to no lock.
    pub(super) fn forget_lock(&mut self, voided: &PageSet) {
        for page in voided.iter() {
            if let Some(guess) = self.guesses.get_mut(&page) {
                guess.lock_page.lost_with = None;
            }
        }
    }
}
