//! State of many pages, kept so that pages close together lie close together in memory.
//!
//! Engines mostly work on runs of pages. In a hash table of pages each of them is a cache miss; here a chunk
//! of neighbours is found with one look-up in a small table.

use core::ops::Index;

use hiroba_base::PageId;
use rustc_hash::FxHashMap;

/// The number of granules of a chunk: enough for a run of pages, little where pages are touched far apart.
const CHUNK_GRANULES: u64 = 16;

/// A map from pages to their state.
#[derive(Debug)]
pub(crate) struct PageTable<T> {
    chunks: FxHashMap<u64, Box<[Option<T>]>>,
}

impl<T> Default for PageTable<T> {
    fn default() -> PageTable<T> {
        PageTable { chunks: FxHashMap::default() }
    }
}

fn place_of(page: PageId) -> (u64, usize) {
    (page.0 / CHUNK_GRANULES, (page.0 % CHUNK_GRANULES) as usize)
}

impl<T> PageTable<T> {
    pub(crate) fn get(&self, page: &PageId) -> Option<&T> {
        let (chunk, at) = place_of(*page);
        self.chunks.get(&chunk)?[at].as_ref()
    }

    pub(crate) fn get_mut(&mut self, page: &PageId) -> Option<&mut T> {
        let (chunk, at) = place_of(*page);
        self.chunks.get_mut(&chunk)?[at].as_mut()
    }

    pub(crate) fn contains_key(&self, page: &PageId) -> bool {
        self.get(page).is_some()
    }

    /// Returns the state of a page, which is the default one if there was none.
    pub(crate) fn or_default(&mut self, page: PageId) -> &mut T
    where
        T: Default,
    {
        self.or_insert_with(page, T::default)
    }

    /// Returns the state of a page, which `make` makes if there was none.
    pub(crate) fn or_insert_with(&mut self, page: PageId, make: impl FnOnce() -> T) -> &mut T {
        let (chunk, at) = place_of(page);
        let empty = || (0..CHUNK_GRANULES).map(|_| None).collect();
        self.chunks.entry(chunk).or_insert_with(empty)[at].get_or_insert_with(make)
    }

    /// Returns all pages that have state, in no particular order.
    pub(crate) fn pages(&self) -> impl Iterator<Item = PageId> + '_ {
        self.chunks.iter().flat_map(|(chunk, entries)| {
            let present = entries.iter().zip(0..).filter(|(entry, _)| entry.is_some());
            present.map(|(_, at)| PageId(*chunk * CHUNK_GRANULES + at))
        })
    }
}

impl<T> Index<&PageId> for PageTable<T> {
    type Output = T;

    fn index(&self, page: &PageId) -> &T {
        self.get(page).expect("the page has state")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_one_chunk_and_of_others_are_kept_apart() {
        let mut table = PageTable::default();
        for page in [0, 15, 16, 1 << 40] {
            *table.or_default(PageId(page)) = page + 1;
        }
        assert_eq!(table.get(&PageId(15)), Some(&16));
        assert_eq!((table.get(&PageId(14)), table.get(&PageId(17))), (None, None));
        assert!(!table.contains_key(&PageId(1 << 41)));
        *table.get_mut(&PageId(16)).expect("it has state") += 1;
        assert_eq!(table[&PageId(16)], 18);
        let mut pages: Vec<_> = table.pages().collect();
        pages.sort_unstable();
        assert_eq!(pages, [0, 15, 16, 1 << 40].map(PageId));
    }
}
