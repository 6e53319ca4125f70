//! The resident pages of one kind, and the order in which they leave.

use std::collections::{BTreeMap, VecDeque};

use hiroba_base::PageId;
use hiroba_paging::{Policy, PolicyKind};
use rustc_hash::{FxHashMap, FxHashSet};

/// Pages of one kind.
///
/// The policy may choose some of them in advance, so that their content can be saved before they must leave.
/// Such a page is *next*. One that is used meanwhile goes back to the policy.
pub(super) struct Kind {
    policy: Box<dyn Policy>,
    /// All of them, including those that are next or leaving.
    pages: FxHashSet<PageId>,
    /// Pages that the policy has chosen in advance, in the order of the choice.
    next: BTreeMap<u64, PageId>,
    /// The place of each in that order.
    place: FxHashMap<PageId, u64>,
    places: u64,
    /// Pages that were chosen to leave and are still resident.
    leaving: FxHashSet<PageId>,
}

impl Kind {
    pub(super) fn new(kind: PolicyKind) -> Kind {
        Kind {
            policy: kind.make(),
            pages: FxHashSet::default(),
            next: BTreeMap::new(),
            place: FxHashMap::default(),
            places: 0,
            leaving: FxHashSet::default(),
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.pages.len() as u64
    }

    pub(super) fn contains(&self, page: PageId) -> bool {
        self.pages.contains(&page)
    }

    pub(super) fn note_come(&mut self, page: PageId) {
        if self.pages.insert(page) {
            self.policy.admit(page);
        } else {
            self.note_used(page);
        }
    }

    pub(super) fn note_used(&mut self, page: PageId) {
        if self.is_next_no_more(page) {
            self.policy.admit(page);
        } else {
            self.policy.reference(page);
        }
    }

    pub(super) fn note_left(&mut self, page: PageId) {
        if self.pages.remove(&page) && !self.leaving.remove(&page) && !self.is_next_no_more(page) {
            self.policy.forget(page);
        }
    }

    fn is_next_no_more(&mut self, page: PageId) -> bool {
        let Some(place) = self.place.remove(&page) else { return false };
        self.next.remove(&place);
        true
    }

    /// Adds up to `count` pages to evict to `leavers`: first those that are next.
    pub(super) fn choose(&mut self, count: u64, latest: &VecDeque<PageId>, leavers: &mut Vec<PageId>) {
        for _ in 0..count {
            let next = self.next.values().find(|page| !latest.contains(page)).copied();
            if let Some(page) = next {
                self.is_next_no_more(page);
            }
            let Some(page) = next.or_else(|| self.policy.evict(&mut |page| !latest.contains(&page))) else {
                break;
            };
            self.leaving.insert(page);
            leavers.push(page);
        }
    }

    /// Chooses pages in advance until `count` are next. Returns those that it has chosen now.
    pub(super) fn choose_next(&mut self, count: u64, latest: &VecDeque<PageId>) -> Vec<PageId> {
        let mut chosen = Vec::new();
        while (self.next.len() as u64) < count
            && let Some(page) = self.policy.evict(&mut |page| !latest.contains(&page))
        {
            self.next.insert(self.places, page);
            self.place.insert(page, self.places);
            self.places += 1;
            chosen.push(page);
        }
        chosen
    }

    /// Returns the number of pages that are next.
    pub(super) fn next_count(&self) -> u64 {
        self.next.len() as u64
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
        assert_eq!(leavers, ids([0, 4, 5, 6, 7, 8, 9, 1, 2]));
        leavers.iter().for_each(|page| kind.note_left(*page));
        assert_eq!((kind.count(), kind.end_round(), kind.next_count()), (0, 0, 0));
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
