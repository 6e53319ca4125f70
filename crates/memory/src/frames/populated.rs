//! Sets of pages for a region of possibly billions of pages.
//!
//! The set is a table of chunks of 32,768 pages each. No chunk means that none of the pages is in the set;
//! one shared chunk means that all are; any other chunk is a bitmap of 4 KiB, made on demand. Lookups and
//! changes take no lock and no memory from the allocator, so a fault handler may make them in signal context.

use core::{
    fmt, ptr,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering},
};

use hiroba_base::{PageId, PageRange};
use rustix::io::Errno;

use crate::mapping::Mapping;

const WORD_BITS: u64 = u64::BITS as u64;
const CHUNK_WORDS: usize = 512;
/// Number of pages per slot of the table.
pub(crate) const CHUNK_PAGES: u64 = CHUNK_WORDS as u64 * WORD_BITS;

struct Chunk {
    words: [AtomicU64; CHUNK_WORDS],
}

/// The shared chunk whose pages are all in the set; never written.
static FULL: Chunk = Chunk { words: [const { AtomicU64::new(u64::MAX) }; CHUNK_WORDS] };

/// The state of a chunk's slot in the table.
#[derive(Clone, Copy)]
enum ChunkState<'a> {
    Empty,
    Full,
    Mixed(&'a Chunk),
}

/// A set of the pages `0..pages`. Changes to different pages, and reads, may happen at once in any threads.
pub(crate) struct SparsePageSet {
    /// `AtomicPtr<Chunk>` for each chunk of the region; all null at first.
    table: Mapping,
    pages: u64,
}

impl fmt::Debug for SparsePageSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SparsePageSet").field("pages", &self.pages).finish_non_exhaustive()
    }
}

impl SparsePageSet {
    /// Makes the empty set of a region of `pages` pages.
    pub(crate) fn new(pages: u64) -> Result<SparsePageSet, Errno> {
        let chunks = usize::try_from(pages.div_ceil(CHUNK_PAGES)).map_err(|_| Errno::NOMEM)?;
        let table = Mapping::of_zeros(chunks.max(1) * size_of::<AtomicPtr<Chunk>>())?;
        Ok(SparsePageSet { table, pages })
    }

    /// Returns the number of pages in the region.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    fn slots(&self) -> &[AtomicPtr<Chunk>] {
        let count = self.table.bytes() / size_of::<AtomicPtr<Chunk>>();
        // SAFETY: the mapping is aligned to a system page, lives as long as `self` and contains `count`
        // slots, and zeros are null pointers; it is only accessed as atomics.
        unsafe { core::slice::from_raw_parts(self.table.start().cast::<AtomicPtr<Chunk>>(), count) }
    }

    fn state(&self, chunk: u64) -> ChunkState<'_> {
        // SYNC POINT: pairs with the release in `chunk_for_change` and `fill`, so that a new chunk's words
        // are visible.
        let found = self.slots()[chunk as usize].load(Ordering::Acquire);
        if ptr::eq(found, &raw const FULL) {
            return ChunkState::Full;
        }
        // SAFETY: a slot contains null, FULL or a chunk that this set mapped and unmaps only in `drop`.
        match unsafe { found.as_ref() } {
            None => ChunkState::Empty,
            Some(chunk) => ChunkState::Mixed(chunk),
        }
    }

    /// Returns a chunk that can be changed, made with the slot's present value if need be.
    fn chunk_for_change(&self, chunk: u64) -> Result<&Chunk, Errno> {
        let (expected, word) = match self.state(chunk) {
            ChunkState::Mixed(chunk) => return Ok(chunk),
            ChunkState::Empty => (ptr::null_mut(), 0),
            ChunkState::Full => ((&raw const FULL).cast_mut(), u64::MAX),
        };
        let made = Mapping::of_zeros(size_of::<Chunk>())?;
        let made_chunk = made.start().cast::<Chunk>();
        if word != 0 {
            // SAFETY: the mapping is as large as a chunk, aligned to a system page, zeros are a valid chunk,
            // and no other code knows of it yet.
            let fresh = unsafe { &*made_chunk };
            fresh.words.iter().for_each(|target| target.store(word, Ordering::Relaxed));
        }
        // SYNC POINT: pairs with the acquire in `state`.
        let slot = &self.slots()[chunk as usize];
        match slot.compare_exchange(expected, made_chunk, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                core::mem::forget(made);
                // SAFETY: the chunk is in the table now, from which only `drop` removes it.
                Ok(unsafe { &*made_chunk })
            }
            // Another thread was first; our mapping unmaps itself.
            Err(_) => self.chunk_for_change(chunk),
        }
    }

    /// Returns true if `page` is in the set.
    pub(crate) fn contains(&self, page: PageId) -> bool {
        if page.0 >= self.pages {
            return false;
        }
        match self.state(page.0 / CHUNK_PAGES) {
            ChunkState::Empty => false,
            ChunkState::Full => true,
            ChunkState::Mixed(chunk) => {
                // SYNC POINT: pairs with the release in `insert_range`: a thread that sees the bit sees what
                // was done before it was set.
                let word = chunk.words[word_of(page.0)].load(Ordering::Acquire);
                word & (1 << (page.0 % WORD_BITS)) != 0
            }
        }
    }

    /// Returns true if all pages of `range` are in the set.
    pub(crate) fn contains_range(&self, range: PageRange) -> bool {
        let end = range.end().0;
        end <= self.pages && (range.count == 0 || self.run_at(range.first.0, end) == (true, end))
    }

    /// Adds pages. Returns how many were not in the set before.
    pub(crate) fn insert_range(&self, range: PageRange) -> Result<u64, Errno> {
        let mut added = 0;
        for piece in self.chunk_pieces(range) {
            let slot = piece.first.0 / CHUNK_PAGES;
            if piece.count == CHUNK_PAGES && self.fill(slot) {
                added += CHUNK_PAGES;
                continue;
            }
            if let ChunkState::Full = self.state(slot) {
                continue;
            }
            let chunk = self.chunk_for_change(slot)?;
            for (word, mask) in word_masks(piece) {
                // SYNC POINT: pairs with the acquire in `contains` and `run_at`.
                let before = chunk.words[word].fetch_or(mask, Ordering::AcqRel);
                added += u64::from((mask & !before).count_ones());
            }
        }
        Ok(added)
    }

    /// Removes pages. Returns how many were in the set before.
    pub(crate) fn remove_range(&self, range: PageRange) -> Result<u64, Errno> {
        let mut removed = 0;
        for piece in self.chunk_pieces(range) {
            let slot = piece.first.0 / CHUNK_PAGES;
            if let ChunkState::Empty = self.state(slot) {
                continue;
            }
            if piece.count == CHUNK_PAGES && self.empty(slot) {
                removed += CHUNK_PAGES;
                continue;
            }
            let chunk = self.chunk_for_change(slot)?;
            for (word, mask) in word_masks(piece) {
                let before = chunk.words[word].fetch_and(!mask, Ordering::AcqRel);
                removed += u64::from((mask & before).count_ones());
            }
        }
        Ok(removed)
    }

    /// Returns true if any page of `range` is in the set.
    pub(crate) fn contains_any(&self, range: PageRange) -> bool {
        self.runs(range).any(|(_, inside)| inside)
    }

    /// Returns the maximal runs of `range` whose pages are all in the set (`true`) or all outside it, in
    /// order.
    pub(crate) fn runs(&self, range: PageRange) -> impl Iterator<Item = (PageRange, bool)> + '_ {
        let end = range.end().0.min(self.pages);
        let mut next = range.first.0;
        core::iter::from_fn(move || {
            if next >= end {
                return None;
            }
            let first = next;
            let (inside, run_end) = self.run_at(first, end);
            next = run_end;
            Some((PageRange { first: PageId(first), count: run_end - first }, inside))
        })
    }

    /// Turns an empty chunk into a full one. Returns false if it is not empty.
    fn fill(&self, chunk: u64) -> bool {
        let full = (&raw const FULL).cast_mut();
        let slot = &self.slots()[chunk as usize];
        slot.compare_exchange(ptr::null_mut(), full, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Turns a full chunk into an empty one. Returns false if it is not full.
    fn empty(&self, chunk: u64) -> bool {
        let full = (&raw const FULL).cast_mut();
        let slot = &self.slots()[chunk as usize];
        slot.compare_exchange(full, ptr::null_mut(), Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Returns whether `first` is in the set, and the end (at most `end`) of the run of pages like it.
    ///
    /// The run contains `first` whatever other threads change meanwhile, because the bit of `first` is read
    /// only once.
    fn run_at(&self, first: u64, end: u64) -> (bool, u64) {
        let mut inside = None;
        let mut at = first;
        while at < end {
            let chunk_start = at / CHUNK_PAGES * CHUNK_PAGES;
            let all_alike = match self.state(at / CHUNK_PAGES) {
                ChunkState::Empty => false,
                ChunkState::Full => true,
                ChunkState::Mixed(chunk) => {
                    let (first, last) = (word_of(at), word_of(end.min(chunk_start + CHUNK_PAGES) - 1));
                    // Bits before `at` in its word are ignored.
                    let mut mask = u64::MAX << (at % WORD_BITS);
                    let differing = |(word, bits): (usize, &AtomicU64)| {
                        // SYNC POINT: as in `contains`.
                        let bits = bits.load(Ordering::Acquire);
                        let inside = *inside.get_or_insert(bits & (1 << (at % WORD_BITS)) != 0);
                        let bits =
                            if inside { !bits } else { bits } & core::mem::replace(&mut mask, u64::MAX);
                        (bits != 0).then(|| word as u64 * WORD_BITS + u64::from(bits.trailing_zeros()))
                    };
                    let differs = (first..).zip(&chunk.words[first..=last]).find_map(differing);
                    if let (Some(inside), Some(differs)) = (inside, differs) {
                        return (inside, (chunk_start + differs).min(end));
                    }
                    at = chunk_start + CHUNK_PAGES;
                    continue;
                }
            };
            if *inside.get_or_insert(all_alike) != all_alike {
                return (!all_alike, at);
            }
            at = chunk_start + CHUNK_PAGES;
        }
        (inside == Some(true), end)
    }

    /// Splits `range` by chunk.
    fn chunk_pieces(&self, range: PageRange) -> impl Iterator<Item = PageRange> + use<> {
        pieces(range.first.0, range.end().0.min(self.pages), CHUNK_PAGES)
    }
}

impl Drop for SparsePageSet {
    fn drop(&mut self) {
        for slot in self.slots() {
            let chunk = slot.load(Ordering::Acquire);
            if !chunk.is_null() && !ptr::eq(chunk, &raw const FULL) {
                // SAFETY: the chunk was mapped by `chunk_for_change`, and `&mut self` shows that no other
                // thread uses it.
                let _ = unsafe { rustix::mm::munmap(chunk.cast(), size_of::<Chunk>()) };
            }
        }
    }
}

fn word_of(page: u64) -> usize {
    (page % CHUNK_PAGES / WORD_BITS) as usize
}

/// Cuts `first..end` at the multiples of `unit`.
fn pieces(first: u64, end: u64, unit: u64) -> impl Iterator<Item = PageRange> {
    let mut next = first;
    core::iter::from_fn(move || {
        let start = next;
        next = ((start / unit + 1) * unit).min(end);
        (start < end).then(|| PageRange { first: PageId(start), count: next - start })
    })
}

/// Returns the words of a chunk that `piece`, which lies in one chunk, covers, each with the covered bits.
fn word_masks(piece: PageRange) -> impl Iterator<Item = (usize, u64)> {
    pieces(piece.first.0, piece.end().0, WORD_BITS).map(|bits| {
        let ones = if bits.count == WORD_BITS { u64::MAX } else { (1 << bits.count) - 1 };
        (word_of(bits.first.0), ones << (bits.first.0 % WORD_BITS))
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, thread};

    use proptest::prelude::*;

    use super::*;

    fn range(first: u64, count: u64) -> PageRange {
        PageRange { first: PageId(first), count }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(PageRange),
        Remove(PageRange),
    }

    const PAGES: u64 = 3 * CHUNK_PAGES + 77;

    fn step() -> impl Strategy<Value = Step> {
        let near_an_edge =
            (0..4u64, 0..130u64).prop_map(|(chunk, off)| (chunk * CHUNK_PAGES).saturating_sub(65) + off);
        let length = prop_oneof![0..200u64, Just(CHUNK_PAGES), Just(2 * CHUNK_PAGES + 3)];
        (any::<bool>(), near_an_edge, length).prop_map(|(insert, first, count)| {
            let pages = range(first, count.min(PAGES.saturating_sub(first)));
            if insert { Step::Insert(pages) } else { Step::Remove(pages) }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn agrees_with_a_plain_set(steps in proptest::collection::vec(step(), 1..12)) {
            let set = SparsePageSet::new(PAGES).unwrap();
            let mut model = BTreeSet::new();
            for step in steps {
                match step {
                    Step::Insert(pages) => {
                        let added = pages.iter().filter(|page| model.insert(*page)).count() as u64;
                        prop_assert_eq!(set.insert_range(pages).unwrap(), added);
                        prop_assert!(set.contains_range(pages));
                    }
                    Step::Remove(pages) => {
                        prop_assert_eq!(set.contains_any(pages), pages.iter().any(|page| model.contains(&page)));
                        let removed = pages.iter().filter(|page| model.remove(page)).count() as u64;
                        prop_assert_eq!(set.remove_range(pages).unwrap(), removed);
                    }
                }
                let whole = range(0, PAGES);
                let members: Vec<PageId> =
                    set.runs(whole).filter(|run| run.1).flat_map(|run| run.0.iter().collect::<Vec<_>>()).collect();
                prop_assert_eq!(members, model.iter().copied().collect::<Vec<_>>());
                let runs: Vec<_> = set.runs(whole).collect();
                prop_assert!(runs.windows(2).all(|pair| pair[0].1 != pair[1].1 && pair[0].0.end() == pair[1].0.first));
                prop_assert_eq!(runs.iter().map(|run| run.0.count).sum::<u64>(), PAGES);
                prop_assert!((0..200).all(|page| set.contains(PageId(page)) == model.contains(&PageId(page))));
            }
        }
    }

    #[test]
    fn a_terabyte_of_pages_takes_no_bitmaps() {
        let set = SparsePageSet::new(1 << 32).unwrap();
        assert_eq!(set.insert_range(range(5 * CHUNK_PAGES, 1 << 28)).unwrap(), 1 << 28);
        let mixed = (0..1 << 17).filter(|chunk| matches!(set.state(*chunk), ChunkState::Mixed(_))).count();
        assert_eq!(mixed, 0);
        assert!(set.contains(PageId(5 * CHUNK_PAGES)) && !set.contains(PageId(5 * CHUNK_PAGES - 1)));
        assert!(!set.contains(PageId(u64::MAX)) && !set.contains_range(range(u64::MAX, 2)));
    }

    #[test]
    fn each_page_is_added_by_exactly_one_of_many_threads() {
        let set = SparsePageSet::new(1 << 20).unwrap();
        let added: u64 = thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        (0..3000).map(|page| set.insert_range(range(page * 31, 7)).unwrap()).sum::<u64>()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(added, 3000 * 7);
    }

    /// A fault handler removes a page while another thread walks the set.
    #[test]
    fn no_run_is_empty_while_other_threads_change_its_pages() {
        let set = SparsePageSet::new(CHUNK_PAGES).unwrap();
        let page = range(CHUNK_PAGES / 2, 1);
        let walks_are_over = core::sync::atomic::AtomicBool::new(false);
        let empty_runs = thread::scope(|scope| {
            scope.spawn(|| {
                while !walks_are_over.load(Ordering::Relaxed) {
                    set.insert_range(page).unwrap();
                    set.remove_range(page).unwrap();
                }
            });
            let empty_runs = (0..300_000).filter(|_| set.runs(page).any(|(run, _)| run.count == 0)).count();
            walks_are_over.store(true, Ordering::Relaxed);
            empty_runs
        });
        assert_eq!(empty_runs, 0);
    }
}
