//! Lock pages: pages that go from node to node with a lock are fetched as soon as the lock comes.
//!
//! The data that a lock protects is read and written by one holder after the other (the *migratory* pattern
//! of Bennett, Carter and Zwaenepoel). Each holder faults on the same pages, one after the other, right after
//! it has got the lock, whose notices have just voided them. So a page on which a thread faults after that is
//! assumed to belong to the lock. The next time that a grant of the same lock voids it, it is requested at
//! once, with all others of the lock, in one message to each home. The thread that gets the lock waits for
//! them, if they are few, as threads that leave a barrier do for [`habits`](super::habits).
//!
//! As with [`habits`](super::habits), the node cannot see whether a page that came unrequested is still read.
//! Such a page is trusted only a few times, and the program must fault once more to renew that.

use hiroba_base::{LockId, PageId, PageSet};

use super::habits::{BELIEVED_MAX, BELIEVED_MIN};
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
}

impl LockPage {
    /// Returns true if it is given to the program without a fault this time.
    pub(super) fn believe(&mut self) -> bool {
        let left = self.believed.checked_sub(1);
        self.believed = left.unwrap_or_default();
        left.is_some()
    }
}

impl Anticipation {
    /// Notes that a thread has faulted on the page, which was absent or on trial.
    pub(super) fn note_lock_page(&mut self, page: PageId) {
        let lock_page = &mut self.guesses.or_default(page).lock_page;
        if lock_page.lost_with.is_some() {
            lock_page.trust = (lock_page.trust * 2).clamp(BELIEVED_MIN, BELIEVED_MAX);
            lock_page.believed = lock_page.trust;
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
                *lock_page = LockPage { lost_with: Some(lock), ..LockPage::default() };
            } else if lock_page.believe() {
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
