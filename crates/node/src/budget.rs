//! A node's memory budget for shared pages (`--memory-limit`): chooses which pages leave when it is exceeded.
//!
//! Frames and twins count. Pages that can leave are copies of other nodes' pages and, where there is another
//! place for them (`--lend`, `--swap`), pages homed here. Each kind has a replacement policy. The policy is
//! informed when a page arrives, and of its use when it arrives again, when it is given to the program, or
//! when the kernel has noted a store to it. Releases query those stores anyway, so the policy's information
//! costs nothing.
//!
//! Copies leave first: they can be fetched again without a disk, and nothing is written for them. But they
//! keep a part of the budget as long as home pages can leave. Otherwise a node with room for only a few
//! copies would fetch them over and over.
//!
//! What the runtime knows of pages takes memory, too, also of pages that have left, as does room that is kept
//! for twins. Beyond a few MiB that counts as well, up to half of the budget: less for pages would not do.
//!
//! Once pages have left, some are chosen ahead, so that those homed here are saved before they must leave,
//! and a thread of its own has them leave a little before the budget is exceeded. So a fault mostly finds
//! room.
//!
//! Every run has a budget, most far more than it needs. So nothing is recorded before half of it is used.
//! Then the policies are informed of the pages that are resident, in the order of their addresses.

mod kind;

use std::collections::VecDeque;

use hiroba_base::PageId;
use hiroba_paging::PolicyKind;

use self::kind::Kind;
use crate::own_memory;

/// Number of latest pages that stay: a thread that waited for one may not have returned from its fault yet.
const LATEST_STAY: usize = 32;

/// Number of pages that leave in one round; then resident memory is measured again.
pub(crate) const LEAVERS_MAX: u64 = 64;

/// The number in one round of the paging thread, which does not keep others from the core for longer.
pub(crate) const LEAVERS_AHEAD_MAX: u64 = 16;

/// Once exceeded, the budget is undercut by this fraction, so that not every arriving page evicts one.
const SLACK_PART: u64 = 64;

/// The user is warned of an excess of this fraction of the budget.
const TOLD_FROM_PART: u64 = 8;

/// After this many rounds in which no page left, eviction of home pages stops. Until then, regions under
/// other protocols may have pages that can leave.
const VAIN_ROUNDS_MAX: u32 = 8;

/// Pages homed here that take this fraction of the budget are saved before they must leave, but no more than
/// [`SAVED_AHEAD_BYTES_MAX`].
const SAVED_AHEAD_PART: u64 = 16;
const SAVED_AHEAD_BYTES_MAX: u64 = 8 << 20;

/// After pages could not be saved ahead, that is not tried this many times.
const SAVES_OMITTED: u32 = 64;

/// Memory of other nodes is asked for when less than this fraction of the budget is left.
const LENDERS_NEEDED_PART: u64 = 8;

/// Pages are recorded once resident memory exceeds this fraction of the budget.
const RECORDED_FROM_PART: u64 = 2;

/// So much of the runtime's own memory does not count.
const OWN_BYTES_FREE: u64 = 4 << 20;

/// The runtime's own memory counts up to this fraction of the budget.
const OWN_PART_MAX: u64 = 2;

/// Copies that take less than this fraction of the budget stay as long as home pages can leave.
const COPIES_KEEP_PART: u64 = 8;

/// The budget, and the pages that count against it.
pub(crate) struct Budget {
    pub(crate) limit_bytes: u64,
    /// The limit for now, which is lower while the machine is short of memory.
    present_bytes: u64,
    /// The runtime's own memory before any pages came.
    own_bytes_before: u64,
    /// True if the user has not chosen the limit.
    pub(crate) is_default: bool,
    /// True once pages are recorded.
    records: bool,
    /// The size of most pages. With their twins they take up to twice as much.
    page_bytes: u64,
    copies: Kind,
    /// Pages homed here, if they may leave.
    homes: Option<Kind>,
    latest: VecDeque<PageId>,
    /// Resident bytes when no more pages could leave. Eviction is not tried again below this.
    stuck_bytes: u64,
    /// Number of successive rounds in which no chosen page left.
    vain_rounds: u32,
    /// True until memory is measured again: no more home pages leave.
    homes_stay: bool,
    /// True once the budget was exceeded.
    was_exceeded: bool,
    /// How many times pages will not be saved ahead.
    omitted_saves: u32,
}

impl Budget {
    pub(crate) fn new(limit_bytes: u64, page_bytes: u64, kind: PolicyKind) -> Budget {
        Budget {
            limit_bytes,
            present_bytes: limit_bytes,
            own_bytes_before: own_memory::allocated_bytes(),
            is_default: false,
            records: false,
            page_bytes,
            copies: Kind::new(kind),
            homes: None,
            latest: VecDeque::with_capacity(LATEST_STAY),
            stuck_bytes: 0,
            vain_rounds: 0,
            homes_stay: false,
            was_exceeded: false,
            omitted_saves: 0,
        }
    }

    /// Notes that the user has not chosen the limit.
    pub(crate) fn by_default(self) -> Budget {
        Budget { is_default: true, ..self }
    }

    /// Returns what counts against the budget when frames and twins take `shared_bytes`, and another
    /// `spare_bytes` are kept for twins.
    pub(crate) fn held_bytes(&self, shared_bytes: u64, spare_bytes: u64) -> u64 {
        let own_bytes = own_memory::allocated_bytes().saturating_sub(self.own_bytes_before);
        shared_bytes + self.counted_bytes(own_bytes + spare_bytes)
    }

    /// Returns how much memory may be kept for further twins once pages are recorded.
    pub(crate) fn spare_bytes_max(&self) -> usize {
        (self.limit_bytes / SLACK_PART) as usize
    }

    fn counted_bytes(&self, own_bytes: u64) -> u64 {
        own_bytes.saturating_sub(OWN_BYTES_FREE).min(self.limit_bytes / OWN_PART_MAX)
    }

    /// Lowers the limit, because the machine is short of memory.
    pub(crate) fn lower(&mut self, bytes: u64) {
        self.present_bytes = bytes.min(self.limit_bytes);
        self.stuck_bytes = 0;
    }

    /// Returns the limit for now.
    pub(crate) fn present_bytes(&self) -> u64 {
        self.present_bytes
    }

    /// Raises a lowered limit, as far as it may be.
    pub(crate) fn raise(&mut self, bytes: u64) {
        self.present_bytes = self.present_bytes.max(bytes.min(self.limit_bytes));
    }

    /// Returns true if recording should begin, and begins it. The caller then records the resident pages.
    pub(crate) fn begins_to_record(&mut self, resident_bytes: u64) -> bool {
        let begins = !self.records && resident_bytes > self.present_bytes / RECORDED_FROM_PART;
        self.records |= begins;
        begins
    }

    /// Returns true if pages are recorded.
    pub(crate) fn records(&self) -> bool {
        self.records
    }

    /// Lets pages homed here leave, too.
    pub(crate) fn with_swap(self, kind: PolicyKind) -> Budget {
        Budget { homes: Some(Kind::new(kind)), ..self }
    }

    /// Returns true if pages homed here may leave.
    pub(crate) fn has_swap(&self) -> bool {
        self.homes.is_some()
    }

    /// Records that a copy has arrived.
    pub(crate) fn note_copy(&mut self, page: PageId) {
        self.note_latest(page);
        self.copies.note_come(page);
    }

    /// Returns the pages homed here, if this page may be one of them: it is no copy.
    fn homes_with(&mut self, page: PageId) -> Option<&mut Kind> {
        self.homes.as_mut().filter(|_| !self.copies.contains(page))
    }

    /// Records that a page has a frame. A page that is not a copy is homed here.
    pub(crate) fn note_frame(&mut self, page: PageId) {
        self.homes_with(page).into_iter().for_each(|homes| _ = homes.note_there(page));
    }

    /// Records that a page got a frame before the program needed it.
    pub(crate) fn note_ahead(&mut self, page: PageId) {
        self.homes_with(page).into_iter().for_each(|homes| homes.note_ahead(page));
    }

    /// Records that a page was given to the program.
    pub(crate) fn note_given(&mut self, page: PageId) {
        self.homes_with(page).into_iter().for_each(|homes| homes.note_come(page));
    }

    /// Records that a thread waits for a page, or has just waited.
    pub(crate) fn note_latest(&mut self, page: PageId) {
        if self.latest.len() == LATEST_STAY {
            self.latest.pop_front();
        }
        self.latest.push_back(page);
    }

    /// Records that the program has stored to a page.
    pub(crate) fn note_store(&mut self, page: PageId) {
        match &mut self.homes {
            Some(homes) if homes.contains(page) => homes.note_used(page),
            _ => self.copies.note_used(page),
        }
    }

    /// Records that a page has left.
    pub(crate) fn note_left(&mut self, page: PageId) {
        self.copies.note_left(page);
        if let Some(homes) = &mut self.homes {
            homes.note_left(page);
        }
    }

    /// Returns true if pages should leave. Returns false while the budget is exceeded only by pages that must
    /// stay.
    pub(crate) fn is_exceeded(&self, resident_bytes: u64) -> bool {
        resident_bytes > self.present_bytes.max(self.stuck_bytes)
    }

    /// Returns true if memory of other nodes may be needed soon.
    pub(crate) fn needs_lenders(&self, resident_bytes: u64) -> bool {
        resident_bytes > self.present_bytes - self.present_bytes / LENDERS_NEEDED_PART
    }

    /// Returns true if the budget was exceeded before and soon will be again, so that pages should leave now.
    pub(crate) fn is_soon_exceeded(&self, resident_bytes: u64) -> bool {
        let soon = self.present_bytes - self.present_bytes / SLACK_PART / 2;
        self.has_swap() && self.was_exceeded && self.stuck_bytes == 0 && resident_bytes > soon
    }

    /// Returns the pages homed here that leave next and should be saved now, if they are many enough.
    pub(crate) fn choose_to_save(&mut self) -> Vec<PageId> {
        if self.omitted_saves > 0 {
            self.omitted_saves -= 1;
            return Vec::new();
        }
        let bytes = (self.present_bytes / SAVED_AHEAD_PART).min(SAVED_AHEAD_BYTES_MAX);
        match &mut self.homes {
            Some(homes) if self.was_exceeded => {
                let most = (bytes / self.page_bytes).min(homes.count() / 2);
                let is_enough = homes.next_count() > most / 2;
                if is_enough { Vec::new() } else { homes.choose_next(most, &self.latest) }
            }
            _ => Vec::new(),
        }
    }

    /// Records that pages could not be saved ahead.
    pub(crate) fn note_save_failure(&mut self) {
        self.omitted_saves = SAVES_OMITTED;
    }

    /// Returns the next pages to evict, at most `count`; none when there is room enough, or when no page may
    /// leave.
    pub(crate) fn choose(&mut self, resident_bytes: u64, count: u64) -> Vec<PageId> {
        let wanted = self.present_bytes - self.present_bytes / SLACK_PART;
        let excess = resident_bytes.saturating_sub(wanted).div_ceil(self.page_bytes).min(count);
        self.was_exceeded |= excess > 0;
        let Budget { copies, homes, latest, .. } = self;
        let mut leavers = Vec::new();
        let Some(homes) = homes else {
            copies.choose(excess, latest, &mut leavers);
            return leavers;
        };
        let kept = self.present_bytes / self.page_bytes / COPIES_KEEP_PART;
        let spare = (copies.count()).saturating_sub(kept);
        copies.choose(excess.min(spare), latest, &mut leavers);
        if !self.homes_stay {
            homes.choose(excess - leavers.len() as u64, latest, &mut leavers);
        }
        let rest = excess - leavers.len() as u64;
        copies.choose(rest, latest, &mut leavers);
        leavers
    }

    /// Ends a round after the chosen pages have left as far as possible. Returns true if another round may
    /// help.
    pub(crate) fn end_round(&mut self, chosen: usize) -> bool {
        let homes = self.homes.as_mut().map_or(0, Kind::end_round);
        let stay = self.copies.end_round() + homes;
        let have_left = stay < chosen;
        self.vain_rounds = if have_left { 0 } else { self.vain_rounds + 1 };
        self.homes_stay |= self.vain_rounds == VAIN_ROUNDS_MAX;
        have_left || homes > 0
    }

    /// Records that nothing can be written to the disk at the moment.
    pub(crate) fn note_swap_failure(&mut self) {
        self.homes_stay = true;
    }

    /// Records that no more pages will leave now. Returns true if the node exceeds its budget so much that
    /// the user should know; pages in transit exceed it a little for a moment.
    pub(crate) fn end(&mut self, resident_bytes: u64) -> bool {
        let is_above = resident_bytes > self.present_bytes;
        self.stuck_bytes = if is_above { resident_bytes } else { 0 };
        (self.vain_rounds, self.homes_stay) = (0, false);
        resident_bytes > self.limit_bytes + self.limit_bytes / TOLD_FROM_PART
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget_of(pages: u64) -> Budget {
        let mut budget = Budget::new(pages * 4096, 4096, PolicyKind::Fifo);
        assert!(!budget.begins_to_record(pages * 2048) && !budget.records());
        assert!(budget.begins_to_record(pages * 2048 + 1) && budget.records());
        assert!(!budget.begins_to_record(pages * 4096), "it begins once");
        budget
    }

    #[test]
    fn the_oldest_leave_and_the_latest_stay() {
        let mut budget = budget_of(64);
        (0..70).for_each(|page| budget.note_copy(PageId(page)));
        assert!(budget.is_exceeded(70 * 4096) && !budget.is_exceeded(64 * 4096));
        let leavers = budget.choose(70 * 4096, LEAVERS_MAX);
        assert_eq!(leavers, (0..7).map(PageId).collect::<Vec<_>>(), "and a little more than the excess");
        leavers.iter().for_each(|page| budget.note_left(*page));
        assert!(budget.end_round(7) && !budget.end(63 * 4096));
        assert_eq!(budget.choose(1000 * 4096, LEAVERS_MAX).len(), 63 - LATEST_STAY);
    }

    #[test]
    fn what_cannot_leave_is_not_tried_again_until_there_is_more() {
        let mut budget = budget_of(64);
        (0..100).for_each(|page| budget.note_copy(PageId(page)));
        let leavers = budget.choose(100 * 4096, LEAVERS_MAX);
        budget.note_left(leavers[0]);
        assert!(budget.end_round(leavers.len()), "one has left");
        let again = budget.choose(99 * 4096, LEAVERS_MAX);
        assert!(!again.is_empty() && !budget.end_round(again.len()));
        assert!(budget.end(99 * 4096));
        assert!(!budget.is_exceeded(99 * 4096) && budget.is_exceeded(100 * 4096));
        assert!(!budget.end(10 * 4096) && budget.is_exceeded(65 * 4096));
    }

    #[test]
    fn the_runtimes_own_memory_counts_when_it_is_much() {
        let budget = budget_of(8192);
        let counted = [0, 4, 5, 15, 20, 25].map(|mib: u64| budget.counted_bytes(mib << 20) >> 20);
        assert_eq!(counted, [0, 0, 1, 11, 16, 16], "of 32 MiB");
    }

    #[test]
    fn a_lowered_limit_holds_until_it_is_raised() {
        let mut budget = budget_of(640);
        (0..600).for_each(|page| budget.note_copy(PageId(page)));
        assert!(!budget.end(700 * 4096) && !budget.is_exceeded(700 * 4096), "no more could leave");
        budget.lower(320 * 4096);
        assert!(budget.is_exceeded(321 * 4096) && !budget.is_exceeded(320 * 4096));
        assert_eq!(budget.choose(321 * 4096, LEAVERS_MAX).len(), 6);
        assert!(!budget.end(640 * 4096), "the user's own limit is kept");
        budget.raise(100 * 4096);
        budget.lower(320 * 4096);
        assert!(budget.is_exceeded(321 * 4096));
        budget.raise(1000 * 4096);
        assert!(budget.is_exceeded(641 * 4096) && !budget.is_exceeded(640 * 4096));
    }

    fn budget_with_swap(pages: u64) -> Budget {
        budget_of(pages).with_swap(PolicyKind::Fifo)
    }

    #[test]
    fn home_pages_leave_when_copies_do_not_suffice() {
        let mut budget = budget_with_swap(640);
        (0..100).for_each(|page| budget.note_copy(PageId(page)));
        (1000..1600).for_each(|page| budget.note_frame(PageId(page)));
        // A copy does not become a home page by getting a frame.
        budget.note_frame(PageId(0));
        let leavers = budget.choose(700 * 4096, LEAVERS_MAX);
        let copies: Vec<PageId> = (0..20).map(PageId).collect();
        assert_eq!(leavers[..20], copies, "copies leave first, but an eighth of the budget stays theirs");
        assert_eq!(leavers[20..], (1000..1044).map(PageId).collect::<Vec<_>>());
        leavers.iter().for_each(|page| budget.note_left(*page));
        assert!(budget.end_round(leavers.len()));
        budget.note_latest(PageId(1044));
        assert_eq!(
            budget.choose(700 * 4096, LEAVERS_MAX)[..2],
            [PageId(1045), PageId(1046)],
            "a thread waits for the oldest"
        );
    }

    #[test]
    fn pages_are_saved_and_leave_ahead_once_the_budget_was_exceeded() {
        let mut budget = budget_with_swap(640);
        (1000..1640).for_each(|page| budget.note_frame(PageId(page)));
        assert_eq!((budget.choose_to_save(), budget.is_soon_exceeded(640 * 4096)), (vec![], false));
        let leavers = budget.choose(641 * 4096, LEAVERS_MAX);
        leavers.iter().for_each(|page| budget.note_left(*page));
        budget.end(630 * 4096);
        assert!(!budget.is_soon_exceeded(635 * 4096) && budget.is_soon_exceeded(636 * 4096));
        let next: Vec<PageId> = (1011..1051).map(PageId).collect();
        assert_eq!(budget.choose_to_save(), next, "a sixteenth");
        assert_eq!(budget.choose_to_save(), []);
        assert_eq!(budget.choose(636 * 4096, LEAVERS_AHEAD_MAX), next[..6]);
        next[..20].iter().for_each(|page| budget.note_left(*page));
        assert_eq!(budget.choose_to_save().len(), 20, "half of them have left");
        budget.note_save_failure();
        next[20..].iter().for_each(|page| budget.note_left(*page));
        let tries = (1..).find(|_| !budget.choose_to_save().is_empty());
        assert_eq!(tries, Some(SAVES_OMITTED + 1));
        assert!(!budget.end(650 * 4096) && !budget.is_soon_exceeded(650 * 4096), "nothing can leave");
    }

    #[test]
    fn copies_leave_when_the_disk_takes_nothing() {
        let mut budget = budget_with_swap(640);
        (0..100).for_each(|page| budget.note_copy(PageId(page)));
        (1000..1600).for_each(|page| budget.note_frame(PageId(page)));
        let leavers = budget.choose(700 * 4096, LEAVERS_MAX);
        budget.note_swap_failure();
        leavers.iter().filter(|page| page.0 < 1000).for_each(|page| budget.note_left(*page));
        assert!(budget.end_round(leavers.len()));
        let mut rounds = 0;
        loop {
            let leavers = budget.choose(700 * 4096, LEAVERS_MAX);
            assert!(leavers.iter().all(|page| page.0 < 1000), "{leavers:?}");
            leavers.iter().for_each(|page| budget.note_left(*page));
            rounds += 1;
            if leavers.is_empty() || !budget.end_round(leavers.len()) {
                break;
            }
        }
        assert_eq!((rounds, budget.copies.count()), (2, LATEST_STAY as u64));
        assert!(!budget.end(650 * 4096));
        assert!(
            budget.choose(700 * 4096, LEAVERS_MAX).iter().any(|page| page.0 >= 1000),
            "it may take something later"
        );
    }

    #[test]
    fn home_pages_that_must_stay_are_not_tried_for_ever() {
        let mut budget = budget_with_swap(640);
        (1000..9000).for_each(|page| budget.note_frame(PageId(page)));
        let mut rounds = 0;
        loop {
            let leavers = budget.choose(9000 * 4096, LEAVERS_MAX);
            if leavers.is_empty() || !budget.end_round(leavers.len()) {
                break;
            }
            rounds += 1;
        }
        assert_eq!(rounds, VAIN_ROUNDS_MAX);
        assert!(budget.end(9000 * 4096) && !budget.is_exceeded(9000 * 4096));
        // The next ones chosen are different pages.
        assert!(
            budget
                .choose(9001 * 4096, LEAVERS_MAX)
                .iter()
                .all(|page| page.0 >= 1000 + 64 * u64::from(VAIN_ROUNDS_MAX))
        );
    }
}
