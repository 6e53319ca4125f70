//! Migrants: pages that go from node to node with a lock are fetched as soon as the lock comes.
//!
//! What a lock protects is read and written by one holder after the other (Bennett, Carter and Zwaenepoel's *migratory* pattern). Each holder
//! faults on the same pages, one after the other, right after it has got the lock, whose notices have just invalidated them. So a page
//! on which a thread faults after that is taken for the lock's: the next time that a grant of the same lock invalidates it, it is
//! asked for at once, with all others of the lock, in one message to each home.
//!
//! As with [`habits`](super::habits), nobody sees whether a page that came unasked is still read, so it is believed a few times only, and the
//! program must fault once more to renew that.

use hiroba_base::{LockId, PageId, PageSet};

use super::Hlrc;
use super::habits::{BELIEVED_MAX, BELIEVED_MIN};
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
}

impl Hlrc {
    /// Has pages that go with locks fetched as soon as the locks come.
    pub fn following_migrants(mut self) -> Hlrc {
        self.follows_migrants = true;
        self
    }

    /// A thread has faulted on the page, which was absent.
    pub(super) fn note_migrant(&mut self, page_id: PageId) {
        let migrant = &mut self.pages.entry(page_id).or_default().migrant;
        if migrant.lost_with.is_some() {
            migrant.trust = (migrant.trust * 2).clamp(BELIEVED_MIN, BELIEVED_MAX);
            migrant.believed = migrant.trust;
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
                *migrant = Migrant { lost_with: Some(lock), ..Migrant::default() };
            } else if migrant.believed > 0 {
                migrant.believed -= 1;
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
