//! Habits: what a program reads in every phase is fetched at the barrier before it.
//!
//! Iterative programs fault on the same pages in every phase, one after the other, a round trip each. So a page that a thread asks for soon after
//! a barrier has invalidated it is taken for a habit: the next time that it is invalidated it is asked for as many barriers later as the
//! thread came then, with all others of that barrier, in one message to each home. (Most are read in the phase that follows. The page of a home
//! that nobody else holds is invalidated one barrier after it was fetched, since the fetch makes it shared, and read when it has been written again.)
//!
//! A page that has come unasked does not fault, so nobody sees whether it is still read. So a habit that has been seen twice in a row is first
//! put to a **trial**: the page is fetched, but left without access, and the fault of its first touch, which needs no message, proves the habit
//! right. Then it is believed a few times, and put to a trial again; each time that it proves right it is believed twice as often, up to a bound.
//!
//! A page on trial that is lost again was fetched in vain: a mistake. The way from its loss to its use is counted from the first loss then, as if it
//! had not been fetched. After [`MISTAKES_MAX`] of them in a row a page has no habits: where distances alternate, as with two arrays that change
//! places, none is right for long. It may have them again when it has been read at one distance so often that an old habit would be believed for
//! as long as any.
//!
//! Where a habit has proved right, the reader may order the page: [`supplies`](super::supplies).

use std::collections::VecDeque;

use hiroba_base::{PageId, PageSet};

use super::Hlrc;
use crate::coherence::Site;

/// So often a new habit is believed, and an old one at most.
pub(super) const BELIEVED_MIN: u8 = 2;
pub(super) const BELIEVED_MAX: u8 = 16;

/// So many mistakes in a row end a page's habits.
const MISTAKES_MAX: u8 = 3;

/// A page that is read so many barriers after it was lost, or later, has no habit.
const PHASES_MAX: u64 = 4;

/// What is known of a page's use between barriers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Habit {
    /// The barrier epoch at the beginning of which the page was invalidated last; 0 before.
    pub(super) lost_in: u64,
    /// It is read so many epochs later.
    later: u8,
    /// How many more times it is fetched and opened unasked.
    believed: u8,
    /// How many times it was when it last proved right; 0: the last use was not like the one before.
    trust: u8,
    /// It is fetched, or here, and nobody has touched it.
    pub(super) is_on_trial: bool,
    /// Trials in a row that ended without a touch.
    mistakes: u8,
}

/// A page that will be read.
#[derive(Debug)]
pub(super) struct Expected {
    page: PageId,
    /// As it was lost then; if it has been lost again since, it has been read.
    lost_in: u64,
    is_trial: bool,
}

impl Habit {
    /// Whether the page, which comes unasked this time, is opened at once.
    pub(super) fn believe(&mut self) -> bool {
        let left = self.believed.checked_sub(1);
        self.believed = left.unwrap_or_default();
        left.is_some()
    }

    /// The page is lost. Whether to fetch it in time, and if so, whether on trial.
    fn expect(&mut self) -> Option<bool> {
        if self.believe() {
            return Some(false);
        }
        (self.trust > 0 && self.mistakes < MISTAKES_MAX).then_some(true)
    }

    /// The page is lost again, and was on trial until now.
    pub(super) fn note_mistake(&mut self) {
        self.mistakes = self.mistakes.saturating_add(1);
        (self.is_on_trial, self.trust, self.believed) = (false, 0, 0);
    }
}

/// The pages to be fetched at the next barriers, the next one first: no more than have been invalidated at [`PHASES_MAX`] barriers.
pub(super) type Due = VecDeque<Vec<Expected>>;

impl Hlrc {
    /// A thread has faulted on the page, which was absent, or came unasked: it is on its way here, or on trial.
    pub(super) fn note_use(&mut self, site: &mut Site, page_id: PageId, comes_unasked: bool) {
        let epoch = site.collectives_done;
        let habit = &mut self.pages.entry(page_id).or_default().habit;
        habit.is_on_trial = false;
        let later = epoch - habit.lost_in;
        if habit.lost_in == 0 || later >= PHASES_MAX {
            (habit.trust, habit.believed) = (0, 0);
            return;
        }
        let is_as_before = u64::from(habit.later) == later;
        let has_proved_right = is_as_before && habit.trust > 0;
        habit.trust = if is_as_before { (habit.trust * 2).clamp(BELIEVED_MIN, BELIEVED_MAX) } else { 0 };
        habit.later = later as u8;
        habit.believed = if is_as_before && comes_unasked { habit.trust } else { 0 };
        if habit.believed > 0 || habit.trust == BELIEVED_MAX {
            habit.mistakes = 0;
        }
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
            if !page.valid
                && !self.supplies.expects(page_id)
                && let Some(is_trial) = page.habit.expect()
                && !(is_trial && page.standing.is_ordered())
            {
                let expected = Expected { page: page_id, lost_in: epoch, is_trial };
                self.due[usize::from(page.habit.later)].push(expected);
            }
        }
        let mut wanted = Vec::new();
        for expected in self.due.pop_front().unwrap_or_default() {
            if self.fetch_expected(site, &expected) {
                wanted.push(expected.page);
            }
        }
        self.request_pages(site, &wanted, false);
    }

    /// Begins to fetch the page, unless it has been read already, or cannot be fetched now: whether it is to be asked for.
    fn fetch_expected(&mut self, site: &mut Site, expected: &Expected) -> bool {
        let located = site.locate(expected.page);
        let is_as_lost = self.pages[&expected.page].habit.lost_in == expected.lost_in;
        if !is_as_lost || !self.may_prefetch() || !self.begin_prefetch(site, located) {
            return false;
        }
        let page = self.pages.entry(expected.page).or_default();
        page.habit.is_on_trial = expected.is_trial;
        page.fetch.as_mut().expect("it has just begun").marks = expected.is_trial;
        true
    }
}
