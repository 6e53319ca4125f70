//! Habits: pages that a program reads in every phase are fetched at the barrier before it.
//!
//! Iterative programs fault on the same pages in every phase, one after the other, with a round trip each. A
//! page that a thread requests after a barrier has voided it is taken for a habit. The next time that a
//! barrier voids it, it is requested as many barriers later as the [rhythm](super::rhythm) of its reads makes
//! likely, together with all others of that barrier, in one message to each home. Most pages are read in the
//! phase that follows. A page that no other node reads is voided one barrier after it was fetched, since the
//! fetch makes it shared, and is read when it has been written again. One that a loop reads in several of
//! its phases is voided and read at several distances, in turn. Where fetches are ordered, notices may come
//! before the barrier, which then counts as the one that has voided the page.
//!
//! The threads that leave the barrier wait for these pages, if they are few ([`AWAITED_PAGES_MAX`]).
//!
//! A page that has come unrequested does not fault, so the node cannot see whether it is still read. A habit
//! that has been seen twice in a row is first put to a **trial**: the page is fetched, but left without
//! access, and the fault of its first touch, which needs no message, proves the habit right. Then the habit
//! is trusted a few times, and put to a trial again. Each time that it proves right it is trusted twice as
//! many times, up to a bound. While its distances change, it stays on trial: if one of them were not seen,
//! those that follow would be expected at the wrong barriers.
//!
//! | state | when the page is voided by a barrier | when the program faults on it at the expected distance |
//! |---|---|---|
//! | none | – | → seen |
//! | seen (`trust` > 0) | fetched in time, closed → on trial | → trusted if it came unrequested; else seen |
//! | on trial | a mistake → none | → trusted |
//! | trusted | fetched in time, open; one time less | – |
//!
//! A page on trial that is lost again was fetched in vain: a mistake. The distance from its loss to its use
//! is then counted from the first loss, as if it had not been fetched. After [`MISTAKES_MAX`] mistakes in a
//! row a page has no habits. It may have habits again after it has been read at expected distances as many
//! times as the maximum that a habit can be trusted.

use std::collections::BTreeMap;

use hiroba_base::{PageId, PageSet};

use super::rhythm::Rhythm;
use super::{Anticipation, Copies, Fetches};
use crate::coherence::Site;

/// The maximum number of pages, fetched by habit at a barrier or with a lock, that the threads wait for which
/// leave the barrier or get the lock.
///
/// A thread that waits receives the reply itself, and answers other nodes' requests, which come at the same
/// time. If it computed meanwhile, both would have to wake a thread that serves them, which takes longer than
/// the exchange. Larger numbers of pages come while the program computes.
pub(crate) const AWAITED_PAGES_MAX: usize = 64;

/// How many times a new habit is trusted before a trial, and the maximum.
pub(super) const BELIEVED_MIN: u8 = 2;
pub(super) const BELIEVED_MAX: u8 = 16;

/// The number of mistakes in a row that end a page's habits.
const MISTAKES_MAX: u8 = 3;

/// The distance in barriers between loss and read from which on a page has no habit.
const PHASES_MAX: u64 = 1 << 10;

/// The observed use of a page between barriers.
#[derive(Clone, Debug, Default)]
pub(super) struct Habit {
    /// The barrier epoch at whose beginning the page was last voided; 0 before.
    pub(super) lost_in: u64,
    /// The numbers of epochs after which it was read.
    rhythm: Rhythm,
    /// The number of times that it will still be fetched and opened unrequested.
    believed: u8,
    /// The value of `believed` when it last proved right; 0 if the last use was not the expected one.
    trust: u8,
    /// True if it is being fetched or is here, and has not been touched.
    pub(super) is_on_trial: bool,
    /// The number of trials in a row that ended without a touch.
    mistakes: u8,
}

/// A page that will be read.
#[derive(Debug)]
pub(super) struct Expected {
    page: PageId,
    /// The loss of the page that this is about. If it has been lost again since, it has been read.
    lost_in: u64,
    is_trial: bool,
}

impl Habit {
    /// Returns true if the page, which comes unrequested this time, is opened at once.
    pub(super) fn believe(&mut self) -> bool {
        let left = self.believed.checked_sub(1);
        self.believed = left.unwrap_or_default();
        left.is_some()
    }

    /// Returns the number of epochs from a loss of the page to its next use, if it can be expected.
    fn later(&self) -> Option<u64> {
        self.rhythm.next().or_else(|| self.rhythm.latest())
    }

    /// Notes that the page is lost. Returns after how many epochs to fetch it, and whether on trial, or
    /// `None` if it should not be fetched.
    fn expect(&mut self) -> Option<(u64, bool)> {
        let later = self.later()?;
        if self.rhythm.is_steady() && self.believe() {
            return Some((later, false));
        }
        (self.trust > 0 && self.mistakes < MISTAKES_MAX).then_some((later, true))
    }

    /// Notes that the page is lost again before it was touched.
    pub(super) fn note_loss_untouched(&mut self) {
        if self.is_on_trial {
            self.mistakes = self.mistakes.saturating_add(1);
            (self.is_on_trial, self.trust, self.believed) = (false, 0, 0);
        }
    }

    /// Notes that the page is used in this epoch.
    fn note_use(&mut self, epoch: u64, comes_unasked: bool) {
        self.is_on_trial = false;
        assert!(epoch >= self.lost_in, "a page is lost before it is used");
        let later = epoch - self.lost_in;
        if self.lost_in == 0 || later >= PHASES_MAX {
            (self.trust, self.believed) = (0, 0);
            return;
        }
        // Most pages are read in the phase that follows, so this is expected first.
        let is_expected = self.later().unwrap_or_default() == later;
        self.trust = if is_expected { (self.trust * 2).clamp(BELIEVED_MIN, BELIEVED_MAX) } else { 0 };
        self.rhythm.note(later);
        self.believed = if is_expected && comes_unasked { self.trust } else { 0 };
        if self.believed > 0 || self.trust == BELIEVED_MAX {
            self.mistakes = 0;
        }
        assert!(self.trust <= BELIEVED_MAX && self.believed <= self.trust, "belief is bounded by trust");
    }
}

/// The pages to fetch at later barriers, by the epochs that these begin: for each page, at most
/// [`PHASES_MAX`].
pub(super) type Due = BTreeMap<u64, Vec<Expected>>;

impl Anticipation {
    /// Notes that a thread has faulted on the page, which was absent, on its way unrequested, or on trial.
    pub(super) fn note_use(&mut self, site: &Site, page: PageId, comes_unasked: bool) {
        let habit = &mut self.guesses.or_default(page).habit;
        if self.lost.remove(&page) {
            // It was lost and used in one phase, to which no barrier leads.
            habit.is_on_trial = false;
            return;
        }
        habit.note_use(site.collectives_done, comes_unasked);
    }

    /// Handles that a barrier has voided these pages: proposes the pages that are read after it.
    pub(super) fn follow_habits(
        &mut self,
        site: &mut Site,
        copies: &impl Copies,
        voided: &PageSet,
    ) -> Fetches {
        let epoch = site.collectives_done;
        assert!(epoch > 0, "a barrier is over, which counts");
        let mut lost: Vec<PageId> = self.lost.drain().chain(voided.iter()).collect();
        lost.sort_unstable();
        lost.dedup();
        for page in lost {
            let habit = &mut self.guesses.or_default(page).habit;
            habit.lost_in = epoch;
            if !copies.is_good(page)
                && let Some((later, is_trial)) = habit.expect()
            {
                self.due.entry(epoch + later).or_default().push(Expected { page, lost_in: epoch, is_trial });
            }
        }
        let mut fetches = Fetches::default();
        let after = self.due.split_off(&(epoch + 1));
        for expected in std::mem::replace(&mut self.due, after).remove(&epoch).unwrap_or_default() {
            if self.begin_expected(site, copies, &expected) {
                fetches.pages.push(expected.page);
            }
        }
        fetches
    }

    /// Notes that the page is fetched. Returns false if it has been read already, or cannot be fetched now.
    fn begin_expected(&mut self, site: &Site, copies: &impl Copies, expected: &Expected) -> bool {
        let located = site.locate(expected.page);
        let habit = &mut self.guesses.or_default(expected.page).habit;
        let is_as_lost = habit.lost_in == expected.lost_in;
        if !is_as_lost || !self.under_way.has_room() || !self.under_way.begin(site, copies, located) {
            return false;
        }
        habit.is_on_trial = expected.is_trial;
        if expected.is_trial {
            self.under_way.closed.insert(expected.page);
        }
        true
    }
}
