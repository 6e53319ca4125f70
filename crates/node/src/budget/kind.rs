//! The resident pages of one kind, and the order in which they leave.

use std::collections::{BTreeMap, VecDeque};

use hiroba_base::PageId;
use hiroba_paging::{Policy, PolicyKind};
use rustc_hash::{FxHashMap, FxHashSet};

/// A page stays until this fraction of all pages has come after it, or [`YOUNG_MAX`] pages.
const YOUNG_PART: u64 = 8;
const YOUNG_MAX: u64 = 2048;

/// No pages.
const NONE: VecDeque<PageId> = VecDeque::new();

/// Pages of one kind.
///
/// The policy may choose some of them in advance, so that their content can be saved before they must leave.
/// Such a page is *next*. One that is used meanwhile goes back to the policy.
///
/// A page that has just come is *young*, and the policy does not know it yet. One fault gives the program up
/// to a MiB, and it has not come to the end of that when others must leave for it. Uses of a young page, such
/// as the first store to it, belong to its arrival.
///
/// A page that came *ahead* of its use is young from its first use on. It leaves when as many pages have come
/// after it as are in memory: it probably has no use.
pub(super) struct Kind {
    policy: Box<dyn Policy>,
    /// All of them, including those that are young, ahead, next or leaving.
    pages: FxHashSet<PageId>,
    young: Line,
    ahead: Line,
    next: Line,
    /// Pages that were chosen to leave and are still resident.
    leaving: FxHashSet<PageId>,
    /// The number of pages that have come.
    came: u64,
}

/// Pages in the order of their numbers, and then of their entry.
#[derive(Default)]
struct Line {
    pages: BTreeMap<(u64, u64), PageId>,
    places: FxHashMap<PageId, (u64, u64)>,
    entries: u64,
}

impl Line {
    fn push(&mut self, page: PageId, number: u64) {
        let place = (number, self.entries);
        self.entries += 1;
        self.pages.insert(place, page);
        let before = self.places.insert(page, place);
        assert!(before.is_none(), "{page}: a page stands in a line once");
    }

    fn remove(&mut self, page: PageId) -> bool {
        let Some(place) = self.places.remove(&page) else { return false };
        self.pages.remove(&place);
        true
    }

    fn len(&self) -> u64 {
        self.pages.len() as u64
    }

    /// Takes the first page whose number is at most this, except for those that stay.
    fn take(&mut self, number_max: u64, stay: &VecDeque<PageId>) -> Option<PageId> {
        let mut old = self.pages.range(..=(number_max, u64::MAX));
        let page = old.find(|(_, page)| !stay.contains(page)).map(|(_, page)| *page)?;
        self.remove(page);
        Some(page)
    }
}

impl Kind {
    pub(super) fn new(kind: PolicyKind) -> Kind {
        Kind {
            policy: kind.make(),
            pages: FxHashSet::default(),
            young: Line::default(),
            ahead: Line::default(),
            next: Line::default(),
            leaving: FxHashSet::default(),
            came: 0,
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.pages.len() as u64
    }

    pub(super) fn contains(&self, page: PageId) -> bool {
        self.pages.contains(&page)
    }

    /// Notes that a page is in memory. Returns true if it has just come.
    pub(super) fn note_there(&mut self, page: PageId) -> bool {
        let is_new = self.pages.insert(page);
        if is_new {
            self.came += 1;
            self.young.push(page, self.came);
        }
        is_new
    }

    /// Notes that a page has come before its use.
    pub(super) fn note_ahead(&mut self, page: PageId) {
        if self.pages.insert(page) {
            self.came += 1;
            self.ahead.push(page, self.came);
        }
    }

    /// Notes that a page has come, or is used.
    pub(super) fn note_come(&mut self, page: PageId) {
        if !self.note_there(page) {
            self.note_used(page);
        }
    }

    /// Notes that a page is used.
    pub(super) fn note_used(&mut self, page: PageId) {
        if self.ahead.remove(page) {
            self.young.push(page, self.came);
        } else if self.next.remove(page) {
            self.policy.admit(page);
        } else {
            // It ignores uses of pages that it does not know.
            self.policy.reference(page);
        }
    }

    pub(super) fn note_left(&mut self, page: PageId) {
        if !self.pages.remove(&page) || self.leaving.remove(&page) {
            return;
        }
        let Kind { young, ahead, next, policy, .. } = self;
        if ![young, ahead, next].into_iter().any(|line| line.remove(page)) {
            policy.forget(page);
        }
    }

    /// Chooses a page to evict, except for the `latest` ones: one that came ahead in vain, then the policy's,
    /// then a young one.
    fn evict(&mut self, latest: &VecDeque<PageId>) -> Option<PageId> {
        let before = |part: u64| self.came.saturating_sub(part);
        let (vain, grown) = (before(self.count()), before((self.count() / YOUNG_PART).min(YOUNG_MAX)));
        while let Some(page) = self.young.take(grown, &NONE) {
            self.policy.admit(page);
        }
        let page = self.ahead.take(vain, latest);
        let page = page.or_else(|| self.policy.evict(&mut |page| !latest.contains(&page)));
        page.or_else(|| self.young.take(u64::MAX, latest)).or_else(|| self.ahead.take(u64::MAX, latest))
    }

    /// Adds up to `count` pages to evict to `leavers`: first those that are next.
    pub(super) fn choose(&mut self, count: u64, latest: &VecDeque<PageId>, leavers: &mut Vec<PageId>) {
        for _ in 0..count {
            let next = self.next.take(u64::MAX, latest);
            let Some(page) = next.or_else(|| self.evict(latest)) else { break };
            self.leaving.insert(page);
            leavers.push(page);
        }
    }

    /// Chooses pages in advance until `count` are next. Returns those that it has chosen now.
    pub(super) fn choose_next(&mut self, count: u64, latest: &VecDeque<PageId>) -> Vec<PageId> {
        let mut chosen = Vec::new();
        while self.next.len() < count
            && let Some(page) = self.evict(latest)
        {
            self.next.push(page, 0);
            chosen.push(page);
        }
        chosen
    }

    /// Returns the number of pages that are next.
    pub(super) fn next_count(&self) -> u64 {
        self.next.len()
    }

    /// Readmits the pages that were to leave and did not. Returns their number.
    pub(super) fn end_round(&mut self) -> usize {
        let stay: Vec<PageId> = self.leaving.drain().collect();
        let count = stay.len();
        stay.into_iter().for_each(|page| self.policy.admit(page));
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(pages: u64) -> Kind {
        let mut kind = Kind::new(PolicyKind::Fifo);
        (0..pages).for_each(|page| kind.note_come(PageId(page)));
        kind
    }

    fn ids(pages: impl IntoIterator<Item = u64>) -> Vec<PageId> {
        pages.into_iter().map(PageId).collect()
    }

    #[test]
    fn what_is_next_leaves_first_and_what_was_used_meanwhile_last() {
        let (mut kind, none) = (kind_of(10), VecDeque::new());
        assert_eq!(kind.choose_next(4, &none), ids(0..4));
        assert_eq!(kind.choose_next(4, &none), [], "they are chosen already");
        kind.note_used(PageId(1));
        kind.note_come(PageId(2));
        kind.note_left(PageId(3));
        assert_eq!((kind.next_count(), kind.count()), (1, 9));
        let mut leavers = Vec::new();
        kind.choose(9, &none, &mut leavers);
        assert_eq!(leavers, ids([0, 4, 5, 6, 7, 8, 1, 2, 9]), "the last one is young");
        leavers.iter().for_each(|page| kind.note_left(*page));
        assert_eq!((kind.count(), kind.end_round(), kind.next_count()), (0, 0, 0));
    }

    fn leavers_of(kind: &mut Kind, count: u64) -> Vec<PageId> {
        let mut leavers = Vec::new();
        kind.choose(count, &VecDeque::new(), &mut leavers);
        leavers.iter().for_each(|page| kind.note_left(*page));
        leavers
    }

    #[test]
    fn what_has_just_come_stays_though_its_policy_would_have_it_leave() {
        let mut kind = Kind::new(PolicyKind::Lirs);
        (0..80).for_each(|page| kind.note_come(PageId(page)));
        assert_eq!(leavers_of(&mut kind, 1).len(), 1);
        (100..110).for_each(|page| kind.note_come(PageId(page)));
        let leavers = leavers_of(&mut kind, 10);
        assert!(leavers.iter().all(|page| page.0 < 100), "an eighth is young: {leavers:?}");
        assert!(leavers_of(&mut kind, 79).len() == 79 && kind.count() == 0, "if nothing else is there");
    }

    /// Otherwise a policy that spares pages with several uses would spare each that is written at once.
    #[test]
    fn uses_of_a_page_that_has_just_come_do_not_count() {
        let order = |uses_when_young: usize, uses_later: usize| {
            let mut kind = Kind::new(PolicyKind::S3Fifo);
            (0..80).for_each(|page| kind.note_come(PageId(page)));
            (0..uses_when_young).for_each(|_| kind.note_come(PageId(0)));
            assert_eq!(leavers_of(&mut kind, 2).len(), 2);
            (0..80).for_each(|page| kind.note_come(PageId(page)));
            (0..uses_later).for_each(|_| kind.note_used(PageId(5)));
            leavers_of(&mut kind, 40)
        };
        assert!(order(0, 0).contains(&PageId(5)) && order(3, 0)[0] == order(0, 0)[0]);
        assert!(!order(0, 2).contains(&PageId(5)), "later ones do");
    }

    #[test]
    fn what_came_ahead_stays_until_it_is_used_or_long_in_vain() {
        for policy in PolicyKind::ALL {
            let mut kind = Kind::new(policy);
            (0..80).for_each(|page| kind.note_come(PageId(page)));
            (200..204).for_each(|page| kind.note_ahead(PageId(page)));
            kind.note_there(PageId(200));
            assert!(leavers_of(&mut kind, 4).iter().all(|page| page.0 < 200), "{policy}");
            kind.note_come(PageId(200));
            let mut gone = Vec::new();
            for page in 300..400 {
                kind.note_come(PageId(page));
                gone.extend(leavers_of(&mut kind, 1));
            }
            let place_of = |page| gone.iter().position(|gone| *gone == PageId(page));
            for vain in 201..204 {
                let place = place_of(vain);
                assert!(
                    place.is_some_and(|place| (70..90).contains(&place)),
                    "{policy}: {vain} at {place:?}"
                );
            }
            assert!(place_of(200).is_none_or(|place| place >= 9), "{policy}: it is young from its use on");
        }
    }

    #[test]
    fn what_is_next_stays_while_a_thread_waits_for_it() {
        let mut kind = kind_of(4);
        let latest = VecDeque::from(ids([0]));
        assert_eq!(kind.choose_next(2, &VecDeque::new()), ids([0, 1]));
        let mut leavers = Vec::new();
        kind.choose(4, &latest, &mut leavers);
        assert_eq!(leavers, ids([1, 2, 3]));
        assert_eq!(kind.end_round(), 3);
        assert_eq!(kind.next_count(), 1);
    }
}
