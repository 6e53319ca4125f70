//! Twins: pristine copies of pages, against which diffs are made.

use core::fmt;
use std::{collections::hash_map::Entry, sync::Arc};

use hiroba_base::{PageId, PageRange};
use rustc_hash::FxHashMap;

use crate::{
    SharedMemory,
    compare::{BLOCK_BYTES, LINE_BYTES, Variant, ZERO_BLOCK},
};

/// Buffers of dropped twins that wait for the next one take no more than this, in bytes: fresh memory costs
/// several times the copy into memory already there.
const SPARE_BYTES_MAX: usize = 4 << 20;

/// A cache line: twins begin on one, or each wide load of a comparison would touch two.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; LINE_BYTES]);

/// One twin's bytes.
struct Buffer(Box<[Line]>);

impl Buffer {
    fn zeroed(bytes: usize) -> Buffer {
        Buffer(vec![Line([0; LINE_BYTES]); bytes / LINE_BYTES].into_boxed_slice())
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: lines are plain bytes without padding, one after the other, borrowed as long as `self`.
        unsafe { core::slice::from_raw_parts(self.0.as_ptr().cast(), size_of_val(&*self.0)) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `self` is borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), size_of_val(&*self.0)) }
    }
}

/// The twins of some pages, each as long as its page. Who shares it between threads guards it.
pub struct Twins {
    memory: Arc<SharedMemory>,
    twins: FxHashMap<PageId, Buffer>,
    /// By length in bytes.
    spare: FxHashMap<usize, Vec<Buffer>>,
    spare_bytes: usize,
    variant: Variant,
}

impl fmt::Debug for Twins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Twins").field("len", &self.twins.len()).finish_non_exhaustive()
    }
}

impl Twins {
    /// No twins yet, of pages of `memory`.
    pub fn new(memory: Arc<SharedMemory>) -> Twins {
        let variant = Variant::best();
        Twins { memory, twins: FxHashMap::default(), spare: FxHashMap::default(), spare_bytes: 0, variant }
    }

    /// Copies the `page_bytes` bytes of `page` as they are now; false (and nothing changes) when it has a twin already.
    ///
    /// The copy is a snapshot only if no thread writes to the page meanwhile: make the twin before giving
    /// write access.
    ///
    /// # Panics
    /// When the page is not of whole granules within the region.
    pub fn make(&mut self, page: PageId, page_bytes: usize) -> bool {
        let granule_bytes = self.memory.granule().bytes();
        assert!(
            page_bytes > 0 && page_bytes.is_multiple_of(granule_bytes),
            "a page has whole granules of {granule_bytes} bytes, got {page_bytes} bytes"
        );
        let Entry::Vacant(entry) = self.twins.entry(page) else { return false };
        let spare = self.spare.get_mut(&page_bytes).and_then(Vec::pop);
        self.spare_bytes -= if spare.is_some() { page_bytes } else { 0 };
        let mut buffer = spare.unwrap_or_else(|| Buffer::zeroed(page_bytes));
        self.memory.read(page, 0, buffer.bytes_mut());
        entry.insert(buffer);
        self.memory.account().add_twin(page_bytes);
        true
    }

    /// The twin of `page`, if it has one.
    pub fn get(&self, page: PageId) -> Option<&[u8]> {
        self.twins.get(&page).map(Buffer::bytes)
    }

    /// Whether `page` has a twin.
    pub fn contains(&self, page: PageId) -> bool {
        self.twins.contains_key(&page)
    }

    /// Finds the 64-byte lines in which the page, as the runtime's view has it now, differs from its twin: bit `i % 64` of
    /// `out[i / 64]` for line `i`. False, and `out` empty, when none does. A page without frames equals a twin of zeros.
    ///
    /// Other threads may write meanwhile: what they wrote before the call is found, what they write during it may be.
    ///
    /// # Panics
    /// When the page has no twin.
    pub fn changed_lines(&self, page: PageId, out: &mut Vec<u64>) -> bool {
        out.clear();
        let twin = self.get(page).expect("a page that is compared has a twin");
        let granule_bytes = self.memory.granule().bytes();
        let granules = PageRange { first: page, count: (twin.len() / granule_bytes) as u64 };
        for (run, has_frames) in self.memory.populated_runs(granules) {
            let from = (run.first.0 - page.0) as usize * granule_bytes;
            let to = from + run.count as usize * granule_bytes;
            let frames = self.memory.runtime_at(page, from).cast_const();
            for (index, block) in twin[from..to].chunks_exact(BLOCK_BYTES).enumerate() {
                // A load from a hole would give it a frame.
                let frame =
                    if has_frames { frames.wrapping_add(index * BLOCK_BYTES) } else { ZERO_BLOCK.as_ptr() };
                // SAFETY: both blocks are mapped and readable: the run lies in the page, the page in the runtime's view
                // (else it would have no twin); blocks begin on lines.
                let changed = unsafe { self.variant.changed_lines_of_block(frame, block.as_ptr()) };
                if changed != 0 {
                    out.resize(twin.len() / BLOCK_BYTES, 0);
                    out[from / BLOCK_BYTES + index] = changed;
                }
            }
        }
        !out.is_empty()
    }

    /// Overwrites bytes of the twin from `offset`; false when the page has none.
    ///
    /// # Panics
    /// When the bytes do not fit the page.
    pub fn patch(&mut self, page: PageId, offset: usize, bytes: &[u8]) -> bool {
        let Some(twin) = self.twins.get_mut(&page) else { return false };
        twin.bytes_mut()[offset..][..bytes.len()].copy_from_slice(bytes);
        true
    }

    /// Overwrites the twin with the page as it is now; false when the page has none.
    pub fn replace(&mut self, page: PageId) -> bool {
        let Some(twin) = self.twins.get_mut(&page) else { return false };
        self.memory.read(page, 0, twin.bytes_mut());
        true
    }

    /// Gives the twin up; false when the page had none.
    pub fn remove(&mut self, page: PageId) -> bool {
        let Some(buffer) = self.twins.remove(&page) else { return false };
        let bytes = buffer.bytes().len();
        self.memory.account().remove_twin(bytes);
        if self.spare_bytes + bytes <= SPARE_BYTES_MAX {
            self.spare_bytes += bytes;
            self.spare.entry(bytes).or_default().push(buffer);
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
        for twin in self.twins.values() {
            self.memory.account().remove_twin(twin.bytes().len());
        }
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
        assert!(twins.make(page, BYTES));
        memory.write(page, 100, &[9; 10]).unwrap();
        assert!(!twins.make(page, BYTES), "a second twin would lose what the first remembers");
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
        assert!(twins.make(PageId(0), BYTES) && twins.remove(PageId(0)) && twins.make(PageId(1), BYTES));
        assert_eq!(twins.get(PageId(1)), Some(&[0; BYTES][..]));
        assert!(!memory.is_populated(PageRange::single(PageId(1))));
    }

    #[test]
    fn twins_count_as_resident_and_spare_buffers_are_bounded() {
        let pages = SPARE_BYTES_MAX / BYTES + 10;
        let memory = small_memory(pages as u64);
        let mut twins = Twins::new(memory.clone());
        let range = PageRange { first: PageId(0), count: pages as u64 };
        range.iter().for_each(|page| assert!(twins.make(page, BYTES)));
        assert_eq!(memory.resident_bytes(), (pages * BYTES) as u64);
        assert_eq!(twins.len(), pages);
        range.iter().take(pages - 1).for_each(|page| assert!(twins.remove(page)));
        assert_eq!(
            (twins.spare_bytes, twins.spare[&BYTES].len() * BYTES),
            (SPARE_BYTES_MAX, SPARE_BYTES_MAX)
        );
        assert_eq!((memory.twins(), memory.resident_bytes()), (1, BYTES as u64));
        drop(twins);
        assert_eq!((memory.twins(), memory.resident_bytes()), (0, 0));
        assert_eq!(memory.resident_bytes_max(), (pages * BYTES) as u64);
    }

    #[test]
    fn twins_of_different_lengths_live_side_by_side() {
        let memory = small_memory(4096);
        let mut twins = Twins::new(memory.clone());
        let pages = [(0, 1), (16, 16), (512, 512), (1, 1), (1024, 512), (1536, 512)];
        for (first, granules) in pages {
            memory.write(PageId(first + granules - 1), BYTES - 1, &[7]).unwrap();
            assert!(twins.make(PageId(first), granules as usize * BYTES));
            let twin = twins.get(PageId(first)).unwrap();
            assert_eq!((twin.len(), twin[twin.len() - 1]), (granules as usize * BYTES, 7));
            assert!(twin[..twin.len() - 1].iter().all(|byte| *byte == 0));
        }
        assert_eq!(memory.twins(), pages.len() as u64);
        pages.iter().for_each(|(first, _)| assert!(twins.remove(PageId(*first))));
        assert!(twins.spare_bytes <= SPARE_BYTES_MAX && twins.is_empty());
        assert_eq!((memory.twins(), memory.resident_bytes()), (0, memory.frames() * BYTES as u64));
        assert!(twins.make(PageId(512), 512 * BYTES) && twins.make(PageId(0), BYTES));
    }

    #[test]
    fn changed_lines_are_found_and_holes_equal_zeros() {
        let memory = small_memory(64);
        let mut twins = Twins::new(memory.clone());
        let mut out = vec![1, 2, 3];
        let page = PageId(8);
        assert!(twins.make(page, 4 * BYTES));
        assert!(!twins.changed_lines(page, &mut out) && out.is_empty());
        memory.write(page, BYTES + 65, &[1]).unwrap();
        memory.write(page, 4 * BYTES - 1, &[1]).unwrap();
        assert!(twins.changed_lines(page, &mut out));
        assert_eq!(out, [0, 2, 0, 1 << 63]);
        assert_eq!(memory.frames(), 2, "comparing made frames");
        assert!(twins.patch(page, 2 * BYTES, &[4]) && twins.patch(page, BYTES + 65, &[1]));
        assert!(twins.changed_lines(page, &mut out));
        assert_eq!(out, [0, 0, 1, 1 << 63], "a hole differs from a twin that is not zero");
        assert!(twins.replace(page) && !twins.changed_lines(page, &mut out) && out.is_empty());
    }
}
