//! Habits: what was invalidated at a barrier and read soon after it is fetched at the barrier the next time.
//!
//! Iterative programs fault on the same pages in every phase, one after the other, a round trip each. So a page that a thread
//! asked for in the same barrier epoch in which it had lost it is taken for a habit: when the next barrier invalidates it again, it is asked
//! for at once, with all others of its kind, in one message to each home.
//!
//! A page that has come unasked does not fault, so nobody sees whether it is still read. A habit is therefore believed for a few barriers only; then the
//! program must fault once more to renew it, and each time that it does it is believed for twice as long, up to a bound. A
//! page that was fetched in vain is in vain no more often than that.

use hiroba_base::{PageId, PageSet};

use super::Hlrc;

/// For so many barriers a new habit is believed, and an old one at most.
const BARRIERS_MIN: u8 = 2;
const BARRIERS_MAX: u8 = 16;

/// What is known of a page's use between barriers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Habit {
    /// The barrier epoch at the beginning of which the page was invalidated last.
    lost_in: u64,
    /// For how many more such barriers it is fetched unasked.
    believed: u8,
    /// For how many it was when the program last faulted on it.
    trust: u8,
}

impl Hlrc {
    /// A thread has faulted on the page, which was absent, perhaps on its way here already.
    pub(super) fn note_use(&mut self, page_id: PageId) {
        let epoch = self.collectives_done;
        let habit = &mut self.pages.entry(page_id).or_default().habit;
        if habit.lost_in == epoch && epoch > 0 {
            habit.trust = (habit.trust * 2).clamp(BARRIERS_MIN, BARRIERS_MAX);
            habit.believed = habit.trust;
        } else {
            (habit.trust, habit.believed) = (0, 0);
        }
    }

    /// A barrier has invalidated these pages.
    pub(super) fn follow_habits(&mut self, invalidated: &PageSet) {
        let epoch = self.collectives_done;
        let mut wanted = Vec::new();
        for page_id in invalidated.iter() {
            let habit = &mut self.pages.entry(page_id).or_default().habit;
            habit.lost_in = epoch;
            if habit.believed == 0 {
                continue;
            }
            habit.believed -= 1;
            let located = self.locate(page_id);
            if self.may_prefetch() && self.begin_prefetch(located) {
                wanted.push(page_id);
            }
        }
        self.request_pages(&wanted, false);
    }
}
