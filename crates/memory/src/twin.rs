//! Twins: pristine copies of pages, against which diffs are made.

use core::fmt;
use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use hiroba_base::PageId;

use crate::SharedMemory;

/// Buffers of dropped twins that wait for the next one take no more than this, in bytes: fresh memory costs
/// several times the copy into memory already there.
const SPARE_BYTES_MAX: usize = 4 << 20;

/// The twins of some pages. Who shares it between threads guards it.
pub struct Twins {
    memory: Arc<SharedMemory>,
    twins: HashMap<PageId, Box<[u8]>>,
    spare: Vec<Box<[u8]>>,
}

impl fmt::Debug for Twins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Twins").field("len", &self.twins.len()).finish_non_exhaustive()
    }
}

impl Twins {
    /// No twins yet, of pages of `memory`.
    pub fn new(memory: Arc<SharedMemory>) -> Twins {
        Twins { memory, twins: HashMap::new(), spare: Vec::new() }
    }

    /// Copies `page` as it is now; false (and nothing changes) when it has a twin already.
    ///
    /// The copy is a snapshot only if no thread writes to the page meanwhile: make the twin before giving
    /// write access.
    pub fn make(&mut self, page: PageId) -> bool {
        let Entry::Vacant(entry) = self.twins.entry(page) else { return false };
        let bytes = self.memory.page_size().bytes();
        let mut buffer = self.spare.pop().unwrap_or_else(|| vec![0; bytes].into_boxed_slice());
        self.memory.read_page(page, &mut buffer);
        entry.insert(buffer);
        self.memory.account().add_twin(bytes);
        true
    }

    /// The twin of `page`, if it has one.
    pub fn get(&self, page: PageId) -> Option<&[u8]> {
        self.twins.get(&page).map(|twin| &**twin)
    }

    /// Whether `page` has a twin.
    pub fn contains(&self, page: PageId) -> bool {
        self.twins.contains_key(&page)
    }

    /// Overwrites bytes of the twin from `offset`; false when the page has none.
    ///
    /// # Panics
    /// When the bytes do not fit the page.
    pub fn patch(&mut self, page: PageId, offset: usize, bytes: &[u8]) -> bool {
        let Some(twin) = self.twins.get_mut(&page) else { return false };
        twin[offset..][..bytes.len()].copy_from_slice(bytes);
        true
    }

    /// Overwrites the twin with the page as it is now; false when the page has none.
    pub fn replace(&mut self, page: PageId) -> bool {
        let Some(twin) = self.twins.get_mut(&page) else { return false };
        self.memory.read_page(page, twin);
        true
    }

    /// Gives the twin up; false when the page had none.
    pub fn remove(&mut self, page: PageId) -> bool {
        let Some(buffer) = self.twins.remove(&page) else { return false };
        let bytes = buffer.len();
        self.memory.account().remove_twins(1, bytes);
        if (self.spare.len() + 1) * bytes <= SPARE_BYTES_MAX {
            self.spare.push(buffer);
        }
        true
    }

    /// How many pages have a twin.
    pub fn len(&self) -> usize {
        self.twins.len()
    }

    /// Whether no page has a twin.
    pub fn is_empty(&self) -> bool {
        self.twins.is_empty()
    }
}

impl Drop for Twins {
    fn drop(&mut self) {
        self.memory.account().remove_twins(self.twins.len() as u64, self.memory.page_size().bytes());
    }
}

#[cfg(test)]
mod tests {
    use hiroba_base::PageRange;

    use super::*;
    use crate::memory::tests::small_memory;

    const BYTES: usize = 4096;

    #[test]
    fn a_twin_keeps_what_the_page_was() {
        let memory = small_memory(16);
        let mut twins = Twins::new(memory.clone());
        let page = PageId(3);
        memory.write(page, 0, &[7; BYTES]).unwrap();
        assert!(twins.make(page));
        memory.write(page, 100, &[9; 10]).unwrap();
        assert!(!twins.make(page), "a second twin would lose what the first remembers");
        assert_eq!(twins.get(page), Some(&[7; BYTES][..]));
        assert!(twins.patch(page, BYTES - 2, &[1, 2]));
        assert_eq!(&twins.get(page).unwrap()[BYTES - 3..], [7, 1, 2]);
        assert!(twins.replace(page));
        assert_eq!(twins.get(page).unwrap()[99..111], [7, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 7]);
        assert!(twins.remove(page) && !twins.remove(page));
        assert!(!twins.patch(page, 0, &[1]) && !twins.replace(page) && twins.get(page).is_none());
    }

    #[test]
    fn a_twin_of_an_untouched_page_is_zero_and_makes_no_frame() {
        let memory = small_memory(16);
        let mut twins = Twins::new(memory.clone());
        memory.write(PageId(0), 0, &[5; BYTES]).unwrap();
        // The buffer comes back dirty from the spare ones.
        assert!(twins.make(PageId(0)) && twins.remove(PageId(0)) && twins.make(PageId(1)));
        assert_eq!(twins.get(PageId(1)), Some(&[0; BYTES][..]));
        assert!(!memory.is_populated(PageId(1)));
    }

    #[test]
    fn twins_count_as_resident_and_spare_buffers_are_bounded() {
        let pages = SPARE_BYTES_MAX / BYTES + 10;
        let memory = small_memory(pages as u64);
        let mut twins = Twins::new(memory.clone());
        let range = PageRange { first: PageId(0), count: pages as u64 };
        range.iter().for_each(|page| assert!(twins.make(page)));
        assert_eq!(memory.resident_bytes(), (pages * BYTES) as u64);
        assert_eq!(twins.len(), pages);
        range.iter().take(pages - 1).for_each(|page| assert!(twins.remove(page)));
        assert_eq!(twins.spare.len() * BYTES, SPARE_BYTES_MAX);
        assert_eq!((memory.twins(), memory.resident_bytes()), (1, BYTES as u64));
        drop(twins);
        assert_eq!((memory.twins(), memory.resident_bytes()), (0, 0));
        assert_eq!(memory.resident_bytes_max(), (pages * BYTES) as u64);
    }
}
