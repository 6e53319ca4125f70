//! Lock pages: pages that go from node to node with a lock are fetched as soon as the lock comes.
//!
//! What a lock protects is read and written by one holder after the other (the *migratory* pattern of
//! Bennett, Carter and Zwaenepoel). Each holder faults on the same pages, one after the other, right after it
//! has got the lock, whose notices have just voided them. So a page on which a thread faults after that is
//! taken for the lock's. The next time that a grant of the same lock voids it, it is asked for at once, with
//! all others of the lock, in one message to each home.
//!
//! As with [`habits`](super::habits), nobody sees whether a page that came unasked is still read. It is
//! believed a few times only, and the program must fault once more to renew that.
//!
//! Where that has proved right, the node orders the page from its home, which sends it ahead of the lock
//! whenever it hands that over itself: see [`supplies`](super::supplies).

use hiroba_base::{LockId, PageId, PageSet};
use hiroba_wire::Message;

use super::habits::{BELIEVED_MAX, BELIEVED_MIN};
use super::supplies::ENDS_MAX;
use super::{Anticipation, Copies, Fetches};
use crate::coherence::Site;

/// What is known of a page's use behind a lock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LockPage {
    /// The lock whose grant voided the page last; none when something else did since.
    lost_with: Option<LockId>,
    /// How many more times it is fetched unasked with that lock.
    believed: u8,
    /// How many times it was when the program last faulted on it.
    trust: u8,
    /// Its home has an order to send it ahead of this lock, if it hands that over.
    ordered_with: Option<LockId>,
    /// How many such orders have ended.
    ends: u8,
}

impl LockPage {
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

impl Anticipation {
    /// A thread has faulted on the page, which was absent or on trial.
    pub(super) fn note_lock_page(&mut self, site: &mut Site, copies: &impl Copies, page: PageId) {
        let home = site.locate(page).home;
        let may_order = self.supplies.is_on && site.prefetches && !copies.reads_itself(home);
        let lock_page = &mut self.guesses.entry(page).or_default().lock_page;
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

    /// Supplies of the page with its lock are of no use.
    pub(super) fn end_lock_order(&mut self, site: &mut Site, page: PageId) {
        let lock_page = &mut self.guesses.entry(page).or_default().lock_page;
        (lock_page.believed, lock_page.trust) = (0, 0);
        if let Some(lock) = lock_page.ordered_with.take() {
            assert!(lock_page.ends < ENDS_MAX, "{page}: what has ended too often is not ordered again");
            lock_page.ends += 1;
            let (home, pages) = (site.locate(page).home, [page].into_iter().collect());
            self.supplies.discharge(home, site.page_bytes(page));
            site.out.send(home, &Message::StandingOrder { lock: Some(lock), pages, stands: false });
        }
    }

    /// The page's home, which may have an order, is about to change.
    pub(super) fn forget_lock_order(&mut self, site: &Site, page: PageId) {
        let guess = self.guesses.get_mut(&page);
        if guess.and_then(|guess| guess.lock_page.ordered_with.take()).is_some() {
            self.supplies.discharge(site.locate(page).home, site.page_bytes(page));
        }
    }

    /// A grant of the lock has voided these pages: proposes those that the program used behind its last
    /// grant.
    pub(super) fn follow_lock(
        &mut self,
        site: &mut Site,
        copies: &impl Copies,
        lock: LockId,
        voided: &PageSet,
    ) -> Fetches {
        let mut wanted = Vec::new();
        for page in voided.iter() {
            let lock_page = &mut self.guesses.entry(page).or_default().lock_page;
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

    /// A barrier has voided these pages: they go with no lock.
    pub(super) fn forget_lock(&mut self, voided: &PageSet) {
        for page in voided.iter() {
            if let Some(guess) = self.guesses.get_mut(&page) {
                guess.lock_page.lost_with = None;
            }
        }
    }
}
