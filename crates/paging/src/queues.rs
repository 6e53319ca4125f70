//! Queues of pages: the data structure of all policies.
//!
//! Slots are in one vector and linked by their indices; a map finds the slot of a page. So a page is removed
//! from the middle of a queue in constant time, and its slot is reused.

use hiroba_base::PageId;
use rustc_hash::FxHashMap;

/// No slot.
const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Slot<T> {
    page: PageId,
    queue: usize,
    before: u32,
    behind: u32,
    note: T,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    front: u32,
    back: u32,
    length: usize,
}

/// `N` queues, with each page in at most one of them, and a note on each page. The front has the pages that
/// have been there longest.
#[derive(Clone, Debug)]
pub struct Queues<const N: usize, T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    places: FxHashMap<PageId, u32>,
    ends: [Ends; N],
}

impl<const N: usize, T> Default for Queues<N, T> {
    fn default() -> Self {
        let empty = Ends { front: NONE, back: NONE, length: 0 };
        Queues { slots: Vec::new(), free: Vec::new(), places: FxHashMap::default(), ends: [empty; N] }
    }
}

impl<const N: usize, T> Queues<N, T> {
    /// Returns the number of pages in a queue.
    pub fn length(&self, queue: usize) -> usize {
        self.ends[queue].length
    }

    /// Returns the number of pages in all queues.
    pub fn total(&self) -> usize {
        self.places.len()
    }

    /// Returns the queue that a page is in.
    pub fn queue_of(&self, page: PageId) -> Option<usize> {
        self.places.get(&page).map(|slot| self.slots[*slot as usize].queue)
    }

    /// Returns the note on a page.
    pub fn note_mut(&mut self, page: PageId) -> Option<&mut T> {
        let slot = *self.places.get(&page)?;
        Some(&mut self.slots[slot as usize].note)
    }

    /// Returns the page at the front of a queue.
    pub fn front(&self, queue: usize) -> Option<PageId> {
        self.page_at(self.ends[queue].front)
    }

    /// Returns the page behind this one, in its queue.
    pub fn behind(&self, page: PageId) -> Option<PageId> {
        let slot = *self.places.get(&page)?;
        self.page_at(self.slots[slot as usize].behind)
    }

    fn page_at(&self, slot: u32) -> Option<PageId> {
        (slot != NONE).then(|| self.slots[slot as usize].page)
    }

    /// Appends a page that is in no queue to the back of one.
    pub fn push(&mut self, queue: usize, page: PageId, note: T) {
        let back = self.ends[queue].back;
        let slot = Slot { page, queue, before: back, behind: NONE, note };
        let index = match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = slot;
                index
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        let replaced = self.places.insert(page, index);
        debug_assert!(replaced.is_none(), "{page} is in a queue already");
        match back {
            NONE => self.ends[queue].front = index,
            back => self.slots[back as usize].behind = index,
        }
        self.ends[queue].back = index;
        self.ends[queue].length += 1;
    }

    /// Removes a page from its queue. Returns false if it is in none.
    pub fn remove(&mut self, page: PageId) -> bool {
        let Some(index) = self.places.remove(&page) else { return false };
        let Slot { queue, before, behind, .. } = self.slots[index as usize];
        match before {
            NONE => self.ends[queue].front = behind,
            before => self.slots[before as usize].behind = behind,
        }
        match behind {
            NONE => self.ends[queue].back = before,
            behind => self.slots[behind as usize].before = before,
        }
        self.ends[queue].length -= 1;
        self.free.push(index);
        true
    }

    /// Moves a page to the back of a queue, its own or another.
    pub fn requeue(&mut self, queue: usize, page: PageId, note: T) {
        self.remove(page);
        self.push(queue, page, note);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages<T>(queues: &Queues<2, T>, queue: usize) -> Vec<u64> {
        let mut found = Vec::new();
        let mut at = queues.front(queue);
        while let Some(page) = at {
            found.push(page.0);
            at = queues.behind(page);
        }
        found
    }

    #[test]
    fn pages_keep_their_order_and_slots_are_reused() {
        let mut queues = Queues::<2, u8>::default();
        for page in 0..5 {
            queues.push(usize::from(page == 4), PageId(page), 0);
        }
        assert!(queues.remove(PageId(2)) && !queues.remove(PageId(2)));
        queues.requeue(0, PageId(0), 7);
        queues.requeue(0, PageId(4), 8);
        assert_eq!((pages(&queues, 0), pages(&queues, 1)), (vec![1, 3, 0, 4], vec![]));
        assert_eq!((queues.queue_of(PageId(4)), queues.queue_of(PageId(2))), (Some(0), None));
        assert_eq!(queues.note_mut(PageId(4)).copied(), Some(8));
        for page in 10..1000 {
            queues.push(1, PageId(page), 0);
            assert!(queues.remove(PageId(page)));
        }
        assert_eq!((queues.total(), queues.slots.len()), (4, 5));
    }
}
