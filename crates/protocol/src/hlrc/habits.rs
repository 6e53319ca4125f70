//! Habits: what a program reads in every phase is fetched at the barrier before it.
//!
//! Iterative programs fault on the same pages in every phase, one after the other, a round trip each. So a page that a thread asks for soon after
//! a barrier has invalidated it is taken for a habit: the next time that it is invalidated it is asked for as many barriers later as the
//! thread came then, with all others of that barrier, in one message to each home. (Most are read in the phase that follows. The page of a home
//! that nobody else holds is invalidated one barrier after it was fetched, since the fetch makes it shared, and read when it has been written again.)
//!
//! A page that has come unasked does not fault, so nobody sees whether it is still read. A habit is therefore believed a few times only; then the
//! program must fault once more to renew it, and each time that it does it is believed twice as often, up to a bound. A
//! page that was fetched in vain is in vain no more often than that.
//!
//! Where a habit has proved right, the reader may order the page: [`supplies`](super::supplies).

use std::collections::VecDeque;

use hiroba_base::{PageId, PageSet};

use super::Hlrc;
use crate::coherence::Site;

/// So often a new habit is believed, and an old one at most.
pub(super) const BELIEVED_MIN: u8 = 2;
pub(super) const BELIEVED_MAX: u8 = 16;

/// A page that is read so many barriers after it was lost, or later, has no habit.
const PHASES_MAX: u64 = 4;

/// What is known of a page's use between barriers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Habit {
    /// The barrier epoch at the beginning of which the page was invalidated last; 0 before.
    pub(super) lost_in: u64,
    /// It is read so many epochs later.
    later: u8,
    /// How many more times it is fetched unasked.
    believed: u8,
    /// How many times it was when the program last faulted on it.
    trust: u8,
}

impl Habit {
    /// Whether the page is fetched without a fault this time.
    pub(super) fn believe(&mut self) -> bool {
        let left = self.believed.checked_sub(1);
        self.believed = left.unwrap_or_default();
        left.is_some()
    }
}

/// The pages to be fetched at the next barriers, the next one first: no more than have been invalidated at [`PHASES_MAX`] barriers.
pub(super) type Due = VecDeque<Vec<PageId>>;

impl Hlrc {
    /// A thread has faulted on the page, which was absent, perhaps on its way here already.
    pub(super) fn note_use(&mut self, site: &mut Site, page_id: PageId) {
        let epoch = site.collectives_done;
        let habit = &mut self.pages.entry(page_id).or_default().habit;
        let later = epoch - habit.lost_in;
        if habit.lost_in == 0 || later >= PHASES_MAX {
            (habit.trust, habit.believed) = (0, 0);
            return;
        }
        let is_as_before = u64::from(habit.later) == later;
        let has_proved_right = is_as_before && habit.trust > 0;
        habit.trust = if is_as_before { habit.trust * 2 } else { 0 }.clamp(BELIEVED_MIN, BELIEVED_MAX);
        (habit.later, habit.believed) = (later as u8, habit.trust);
        self.consider_order(site, page_id, has_proved_right);
    }

    /// A barrier has invalidated these pages: fetches what is read after it, but for what was supplied.
    pub(super) fn follow_habits(&mut self, site: &mut Site, invalidated: &PageSet) {
        if !site.fetches_ahead {
            return;
        }
        let epoch = site.collectives_done;
        self.due.resize_with(PHASES_MAX as usize, Vec::new);
        for page_id in invalidated.iter() {
            let page = self.pages.entry(page_id).or_default();
            page.habit.lost_in = epoch;
            if !page.valid && !self.supplies.expects(page_id) && page.habit.believe() {
                self.due[usize::from(page.habit.later)].push(page_id);
            }
        }
        let mut wanted = self.due.pop_front().unwrap_or_default();
        wanted.retain(|page_id| {
            let located = site.locate(*page_id);
            self.may_prefetch() && self.begin_prefetch(site, located)
        });
        self.request_pages(site, &wanted, false);
    }
}
