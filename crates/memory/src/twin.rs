//! Twins: pristine copies of pages, against which diffs are made.

mod applying;
mod arena;
mod filled;

use core::fmt;
use std::sync::Arc;

use hiroba_base::{BLOCK_BYTES, BlockChanges, ChangedBytes, PageId, PageRange};
use rustc_hash::FxHashMap;

pub use self::applying::Applying;
use self::{
    arena::{Room, SLAB_BYTES},
    filled::Filled,
};
use crate::{
    MemoryError, SharedMemory,
    compare::{Variant, ZERO_BLOCK},
    packing::{Packed, TwinBlock},
};

/// Number of bytes by which frames are filled at a time, small enough to stay in the caches between two
/// copies; a multiple of any granule.
const FILLED_BYTES: usize = 128 << 10;

/// The twins of some pages, each as long as its page. Threads that share it must synchronise.
pub struct Twins {
    memory: Arc<SharedMemory>,
    twins: FxHashMap<PageId, Room>,
    filled: Filled,
    variant: Variant,
    found: Box<Found>,
}

/// The differences in the block that is being compared.
struct Found {
    changed: ChangedBytes,
    packed: Packed,
}

impl fmt::Debug for Twins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Twins").field("len", &self.twins.len()).finish_non_exhaustive()
    }
}

impl Twins {
    /// Makes an empty set of twins for pages of `memory`.
    pub fn new(memory: Arc<SharedMemory>) -> Twins {
        let filled = Filled::new(memory.granule().bytes());
        let found = Box::new(Found { changed: ChangedBytes::NONE, packed: Packed::new() });
        Twins { memory, twins: FxHashMap::default(), filled, variant: Variant::best(), found }
    }

    /// Fills the frames of some granules by calling `fill` piece by piece, in order, with the first granule
    /// of each piece and a buffer of undefined content. With `for_twins`, twins of these pages that are made
    /// before [`forget_received`](Self::forget_received) take over that buffer instead of copying. Without
    /// it, one buffer that stays in the caches serves all pieces.
    ///
    /// The program has no access to the granules until their twins are made.
    ///
    /// # Errors
    /// Fails if there is no memory for frames.
    pub fn fill_frames(
        &mut self,
        granules: PageRange,
        for_twins: bool,
        mut fill: impl FnMut(PageId, &mut [u8]),
    ) -> Result<(), MemoryError> {
        let granule_bytes = self.memory.granule().bytes();
        let room_bytes = if for_twins { SLAB_BYTES } else { FILLED_BYTES };
        self.filled.forget_overlapping(granules);
        let mut first = granules.first;
        while first < granules.end() {
            let count = (granules.end().0 - first.0).min((room_bytes / granule_bytes) as u64);
            let mut room = self.filled.arena.take(count as usize);
            let mut written = Ok(());
            for (index, piece) in room.bytes_mut().chunks_mut(FILLED_BYTES).enumerate() {
                let at = PageId(first.0 + (index * FILLED_BYTES / granule_bytes) as u64);
                fill(at, piece);
                written = written.and_then(|()| self.memory.write(at, 0, piece));
            }
            if for_twins {
                self.filled.keep(PageRange { first, count }, room);
            } else {
                self.filled.arena.give_back(room);
            }
            written?;
            first.0 += count;
        }
        Ok(())
    }

    /// Releases the buffers with which frames were filled: no more twins will be made of them.
    pub fn forget_received(&mut self) {
        self.filled.forget_all();
    }

    /// Copies the present `page_bytes` bytes of `page`. Returns false, without effect, if it has a twin
    /// already.
    ///
    /// The copy is a snapshot only if no thread writes to the page meanwhile: make the twin before giving
    /// write access.
    ///
    /// # Panics
    /// Panics if the page does not consist of whole granules within the region.
    pub fn make(&mut self, page: PageId, page_bytes: usize) -> bool {
        let granule_bytes = self.memory.granule().bytes();
        assert!(
            page_bytes > 0 && page_bytes.is_multiple_of(granule_bytes),
            "a page has whole granules of {granule_bytes} bytes, got {page_bytes} bytes"
        );
        if self.twins.contains_key(&page) {
            return false;
        }
        let granules = page_bytes / granule_bytes;
        let room =
            self.filled.claim(PageRange { first: page, count: granules as u64 }).unwrap_or_else(|| {
                let mut room = self.filled.arena.take(granules);
                self.memory.read(page, 0, room.bytes_mut());
                room
            });
        self.twins.insert(page, room);
        self.memory.account().add_twin(page_bytes);
        true
    }

    /// Returns the twin of `page`, if it has one.
    pub fn get(&self, page: PageId) -> Option<&[u8]> {
        self.twins.get(&page).map(Room::bytes)
    }

    /// Returns true if `page` has a twin.
    pub fn contains(&self, page: PageId) -> bool {
        self.twins.contains_key(&page)
    }

    /// Returns true if the page, as it is now in the runtime's view, differs from its twin. A page without
    /// frames equals a twin of zeros.
    ///
    /// Other threads may write meanwhile: writes before the call are found, writes during it may be.
    ///
    /// # Panics
    /// Panics if the page has no twin.
    pub fn differs(&self, page: PageId) -> bool {
        let twin = self.get(page).expect("a page that is compared has a twin");
        let (blocks, _) = twin.as_chunks();
        frame_blocks(&self.memory, page, twin.len()).zip(blocks).any(|(frame, twin): (_, &TwinBlock)| {
            // SAFETY: both blocks are mapped and readable: the page lies in the runtime's view (otherwise it
            // would have no twin), and blocks begin on lines. The variant was chosen from those that this
            // processor has.
            unsafe { self.variant.changed_lines_of_block(frame, twin.as_ptr()) != 0 }
        })
    }

    /// Calls `visit` for each block in which the page differs from its twin, as [`differs`](Self::differs)
    /// would find, in order. With `settle` these changes are applied to the twin. It does not become the
    /// page, which may have changed further by then; the next comparison must find those changes.
    ///
    /// # Panics
    /// Panics if the page has no twin.
    pub fn collect(&mut self, page: PageId, settle: bool, mut visit: impl FnMut(BlockChanges<'_>)) {
        let twin = self.twins.get_mut(&page).expect("a page that is compared has a twin").bytes_mut();
        let Found { changed, packed } = &mut *self.found;
        let frames = frame_blocks(&self.memory, page, twin.len());
        for (block, (frame, twin)) in frames.zip(twin.as_chunks_mut().0).enumerate() {
            // SAFETY: as in `differs`.
            let lines = unsafe { self.variant.changed_lines_of_block(frame, twin.as_ptr()) };
            if lines == 0 {
                continue;
            }
            // SAFETY: as above.
            let count = unsafe { self.variant.pack(frame, twin, settle, lines, changed, packed) };
            if count > 0 {
                visit(BlockChanges { block, changed, bytes: packed.bytes(count) });
            }
        }
    }

    /// Returns a writer for incoming changes of `page`, into its frame and into its twin, if it has one.
    pub fn applying(&mut self, page: PageId) -> Applying<'_> {
        let Twins { memory, twins, filled, variant, .. } = self;
        let twin = twins.get_mut(&page).map(Room::bytes_mut);
        Applying { memory, variant: *variant, page, twin, filled }
    }

    /// Writes to the frame the bytes in which `content` differs from the page's twin, and no others. The twin
    /// becomes the content.
    ///
    /// # Errors
    /// Fails if there is no memory for frames.
    ///
    /// # Panics
    /// Panics if the page has no twin, or one of another length than the content.
    pub fn merge(&mut self, page: PageId, content: &[u8]) -> Result<(), MemoryError> {
        let twin = self.twins.get_mut(&page).expect("a page that is merged has a twin").bytes_mut();
        assert_eq!(content.len(), twin.len(), "new content is as long as the page");
        let blocks = content.as_chunks().0.iter().zip(twin.as_chunks_mut().0);
        for (block, (content, twin)) in blocks.enumerate() {
            // SAFETY: both are blocks; the variant was chosen from those that this processor has.
            let lines = unsafe { self.variant.changed_lines_of_block(content.as_ptr(), twin.as_ptr()) };
            if lines != 0 {
                let frame = self.memory.block_to_write(page, block * BLOCK_BYTES)?;
                // SAFETY: the block is mapped and writable; the variant as above.
                unsafe { self.variant.merge(content, twin, lines, frame) };
            }
        }
        Ok(())
    }

    /// Overwrites bytes of the twin from `offset`. Returns false if the page has no twin.
    ///
    /// # Panics
    /// Panics if the bytes do not fit the page.
    pub fn patch(&mut self, page: PageId, offset: usize, bytes: &[u8]) -> bool {
        let Some(twin) = self.twins.get_mut(&page) else {
            let granule_bytes = self.memory.granule().bytes();
            let first = offset / granule_bytes;
            let count = ((offset + bytes.len()).div_ceil(granule_bytes) - first) as u64;
            self.filled.forget_overlapping(PageRange { first: PageId(page.0 + first as u64), count });
            return false;
        };
        twin.bytes_mut()[offset..][..bytes.len()].copy_from_slice(bytes);
        true
    }

    /// Overwrites the twin with the page as it is now. Returns false if the page has no twin.
    pub fn replace(&mut self, page: PageId) -> bool {
        let Some(twin) = self.twins.get_mut(&page) else { return false };
        self.memory.read(page, 0, twin.bytes_mut());
        true
    }

    /// Removes the twin. Returns false if the page had none.
    pub fn remove(&mut self, page: PageId) -> bool {
        let Some(room) = self.twins.remove(&page) else { return false };
        self.memory.account().remove_twin(room.len());
        self.filled.arena.give_back(room);
        true
    }

    /// Returns the memory that is kept for further twins, in bytes.
    pub fn unused_bytes(&self) -> u64 {
        self.filled.arena.unused_bytes() as u64
    }

    /// Keeps little memory for further twins from now on: about this many bytes.
    pub fn keep_spare(&mut self, bytes: usize) {
        self.filled.arena.keep_spare(bytes);
    }

    /// Returns the number of pages that have a twin.
    pub fn len(&self) -> usize {
        self.twins.len()
    }

    /// Returns true if no page has a twin.
    pub fn is_empty(&self) -> bool {
        self.twins.is_empty()
    }
}

/// Returns the addresses at which the blocks of a page are read: in the runtime's view, except for blocks
/// without a frame, to which a load would give one.
fn frame_blocks(
    memory: &SharedMemory,
    page: PageId,
    page_bytes: usize,
) -> impl Iterator<Item = *const u8> + '_ {
    let granule_bytes = memory.granule().bytes();
    let granules = PageRange { first: page, count: (page_bytes / granule_bytes) as u64 };
    let start = memory.runtime_at(page, 0).cast_const();
    memory.populated_runs(granules).flat_map(move |(run, has_frames)| {
        let from = (run.first.0 - page.0) as usize * granule_bytes;
        let to = from + run.count as usize * granule_bytes;
        (from..to)
            .step_by(BLOCK_BYTES)
            .map(move |offset| if has_frames { start.wrapping_add(offset) } else { ZERO_BLOCK.as_ptr() })
    })
}

impl Drop for Twins {
    fn drop(&mut self) {
        for twin in self.twins.values() {
            self.memory.account().remove_twin(twin.len());
        }
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "runs of bytes are ranges, and a block may have one")]
mod tests {
    use core::ops::Range;

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
        // The reused buffer contains old bytes.
        assert!(twins.make(PageId(0), BYTES) && twins.remove(PageId(0)) && twins.make(PageId(1), BYTES));
        assert_eq!(twins.get(PageId(1)), Some(&[0; BYTES][..]));
        assert!(!memory.is_populated(PageRange::single(PageId(1))));
    }

    #[test]
    fn twins_count_as_resident() {
        let pages = 3000;
        let memory = small_memory(pages);
        let mut twins = Twins::new(memory.clone());
        let range = PageRange { first: PageId(0), count: pages };
        range.iter().for_each(|page| assert!(twins.make(page, BYTES)));
        assert_eq!((memory.resident_bytes(), twins.len() as u64), (pages * BYTES as u64, pages));
        range.iter().take(pages as usize - 1).for_each(|page| assert!(twins.remove(page)));
        assert_eq!((memory.twins(), memory.resident_bytes()), (1, BYTES as u64));
        drop(twins);
        assert_eq!((memory.twins(), memory.resident_bytes()), (0, 0));
        assert_eq!(memory.resident_bytes_max(), pages * BYTES as u64);
    }

    #[test]
    fn frames_and_twins_are_filled_with_the_same_bytes() {
        let memory = small_memory(2048);
        let mut twins = Twins::new(memory.clone());
        let number = |page: PageId| page.0 as u8 | 1;
        let granules = PageRange { first: PageId(7), count: 600 };
        let fill = |first: PageId, room: &mut [u8]| {
            let pages = room.chunks_mut(BYTES).enumerate();
            pages.for_each(|(index, page)| page.fill(number(PageId(first.0 + index as u64))));
        };
        twins.fill_frames(granules, true, fill).unwrap();
        let seen = |page: PageId| {
            let mut content = [0; BYTES];
            memory.read(page, 0, &mut content);
            (content[0], content[BYTES - 1])
        };
        assert!(granules.iter().all(|page| seen(page) == (number(page), number(page))));
        assert_eq!((memory.frames(), memory.twins()), (600, 0));
        // Some get a twin, in any order; writes to a frame in between appear in its twin.
        for page in [7, 9, 8, 300, 604] {
            assert!(twins.make(PageId(page), BYTES));
            assert_eq!(twins.get(PageId(page)), Some(&[number(PageId(page)); BYTES][..]));
        }
        memory.write(PageId(11), 5, &[77]).unwrap();
        assert!(!twins.patch(PageId(11), 5, &[77]) && twins.make(PageId(11), BYTES));
        assert_eq!(twins.get(PageId(11)).unwrap()[4..7], [11, 77, 11]);
        // Filled again: nothing is left of the earlier content.
        let two = PageRange { first: PageId(13), count: 2 };
        twins.fill_frames(two, true, |_, room| room.fill(200)).unwrap();
        twins.forget_received();
        memory.write(PageId(14), 0, &[201]).unwrap();
        assert!(
            twins.make(PageId(13), BYTES) && twins.make(PageId(14), BYTES) && twins.make(PageId(15), BYTES)
        );
        assert_eq!([13, 14, 15].map(|page| twins.get(PageId(page)).unwrap()[0]), [200, 201, 15]);
    }

    #[test]
    fn what_is_filled_for_no_twin_leaves_nothing_behind() {
        let memory = small_memory(2048);
        let mut twins = Twins::new(memory.clone());
        let all = PageRange { first: PageId(7), count: 600 };
        let some = PageRange { first: PageId(20), count: 2 };
        twins.fill_frames(all, true, |_, room| room.fill(1)).unwrap();
        twins.fill_frames(some, false, |_, room| room.fill(2)).unwrap();
        twins.fill_frames(all, false, |first, room| room.fill(first.0 as u8)).unwrap();
        memory.write(PageId(21), 0, &[99]).unwrap();
        for page in all.iter() {
            assert!(twins.make(page, BYTES));
            let mut content = [0; BYTES];
            memory.read(page, 0, &mut content);
            assert_eq!(twins.get(page), Some(&content[..]), "{page}");
        }
        assert_eq!(twins.get(PageId(21)).unwrap()[..2], [99, 7]);
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
        assert!(twins.is_empty());
        assert_eq!((memory.twins(), memory.resident_bytes()), (0, memory.frames() * BYTES as u64));
        assert!(twins.make(PageId(512), 512 * BYTES) && twins.make(PageId(0), BYTES));
    }

    /// Returns the blocks in which a page differs from its twin, with the bytes.
    fn collected(twins: &mut Twins, page: PageId, settle: bool) -> Vec<(usize, Vec<Range<usize>>, Vec<u8>)> {
        let mut blocks = Vec::new();
        twins.collect(page, settle, |BlockChanges { block, changed, bytes }| {
            blocks.push((block, changed.runs().collect(), bytes.to_vec()));
        });
        assert!(!settle || !twins.differs(page), "a settled twin holds what was found");
        blocks
    }

    #[test]
    fn changes_are_found_and_holes_equal_zeros() {
        let memory = small_memory(64);
        let mut twins = Twins::new(memory.clone());
        let page = PageId(8);
        assert!(twins.make(page, 4 * BYTES));
        assert!(!twins.differs(page) && collected(&mut twins, page, false).is_empty());
        memory.write(page, BYTES + 65, &[1]).unwrap();
        memory.write(page, 4 * BYTES - 1, &[2]).unwrap();
        let last = (3, vec![BYTES - 1..BYTES], vec![2]);
        assert_eq!(collected(&mut twins, page, false), [(1, vec![65..66], vec![1]), last.clone()]);
        assert_eq!(memory.frames(), 2, "comparing made frames");
        assert!(twins.patch(page, 2 * BYTES, &[4]) && twins.patch(page, BYTES + 65, &[1]));
        let hole = (2, vec![0..1], vec![0]);
        assert_eq!(
            collected(&mut twins, page, true),
            [hole, last],
            "a hole differs from a twin that is not zero"
        );
        assert!(!twins.differs(page) && collected(&mut twins, page, false).is_empty());
        assert_eq!(memory.frames(), 2, "settling made frames");
    }

    #[test]
    fn changes_from_elsewhere_go_into_frame_and_twin() {
        let memory = small_memory(64);
        let mut twins = Twins::new(memory.clone());
        let mut changed = ChangedBytes::NONE;
        changed.insert(60..70);
        changed.insert(BYTES - 1..BYTES);
        let bytes: Vec<u8> = (1..12).collect();
        let mut expected = vec![0; 2 * BYTES];
        expected[BYTES + 60..BYTES + 70].copy_from_slice(&bytes[..10]);
        expected[2 * BYTES - 1] = 11;
        let written = |page: PageId| {
            let mut all = vec![9; 2 * BYTES];
            memory.read(page, 0, &mut all);
            all == expected
        };
        let changes = BlockChanges { block: 1, changed: &changed, bytes: &bytes };
        // With a twin, and without one, over content with which the page was filled.
        assert!(twins.make(PageId(2), 2 * BYTES));
        twins.applying(PageId(2)).write(changes).unwrap();
        assert!(written(PageId(2)) && !twins.differs(PageId(2)));
        assert_eq!(memory.frames(), 1, "a frame was made where nothing changed");
        let range = PageRange { first: PageId(4), count: 2 };
        twins.fill_frames(range, true, |_, room| room.fill(0)).unwrap();
        twins.applying(PageId(4)).write(changes).unwrap();
        assert!(written(PageId(4)) && twins.make(PageId(4), 2 * BYTES) && !twins.differs(PageId(4)));
    }

    #[test]
    fn a_merge_keeps_what_was_stored_since_the_twin_was_made() {
        let memory = small_memory(64);
        let mut twins = Twins::new(memory.clone());
        let page = PageId(8);
        memory.write(page, 0, &[1; 3 * BYTES]).unwrap();
        assert!(twins.make(page, 4 * BYTES));
        memory.write(page, 100, &[7]).unwrap();
        let mut content = vec![1; 3 * BYTES];
        content.resize(4 * BYTES, 0);
        content[BYTES + 5] = 9;
        twins.merge(page, &content).unwrap();
        assert_eq!(twins.get(page), Some(&content[..]));
        assert_eq!(collected(&mut twins, page, false), [(0, vec![100..101], vec![7])]);
        assert_eq!(memory.frames(), 3, "a frame was made where nothing is new");
        content[4 * BYTES - 1] = 3;
        twins.merge(page, &content).unwrap();
        assert_eq!((memory.frames(), collected(&mut twins, page, true).len()), (4, 1));
    }
}
