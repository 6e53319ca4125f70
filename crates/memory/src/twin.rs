//! Twins: pristine copies of pages, against which diffs are made.

mod arena;

use core::fmt;
use std::sync::Arc;

use hiroba_base::{PageId, PageRange};
use rustc_hash::FxHashMap;

use self::arena::{Arena, Room, SLAB_BYTES};
use crate::{
    MemoryError, SharedMemory,
    compare::{BLOCK_BYTES, Variant, ZERO_BLOCK},
};

/// Frames are filled in pieces of so many bytes, which stay in the caches between their two copies; a multiple of any granule.
const FILLED_BYTES: usize = 128 << 10;

/// The twins of some pages, each as long as its page. Who shares it between threads guards it.
pub struct Twins {
    memory: Arc<SharedMemory>,
    twins: FxHashMap<PageId, Room>,
    /// What frames were filled with last, until it is forgotten: twins that are made meanwhile need no copy.
    received: Vec<Received>,
    arena: Arena,
    variant: Variant,
}

/// The bytes that some granules have.
struct Received {
    granules: PageRange,
    room: Room,
}

impl fmt::Debug for Twins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Twins").field("len", &self.twins.len()).finish_non_exhaustive()
    }
}

impl Twins {
    /// No twins yet, of pages of `memory`.
    pub fn new(memory: Arc<SharedMemory>) -> Twins {
        let arena = Arena::new(memory.granule().bytes());
        Twins { memory, twins: FxHashMap::default(), received: Vec::new(), arena, variant: Variant::best() }
    }

    /// Fills the frames of some granules with what `fill` writes, piece by piece and in order: it is told of each piece the first granule and
    /// gets room with anything in it. With `for_twins`, twins of these pages that are made before [`forget_received`](Self::forget_received) keep that
    /// room for their own and copy nothing; without, one room that stays in the caches does for all pieces.
    ///
    /// The program has no access to the granules until their twins are made.
    ///
    /// # Errors
    /// When there is no memory for frames.
    pub fn fill_frames(
        &mut self,
        granules: PageRange,
        for_twins: bool,
        mut fill: impl FnMut(PageId, &mut [u8]),
    ) -> Result<(), MemoryError> {
        let granule_bytes = self.memory.granule().bytes();
        let room_bytes = if for_twins { SLAB_BYTES } else { FILLED_BYTES };
        self.forget_overlapping(granules);
        let mut first = granules.first;
        while first < granules.end() {
            let count = (granules.end().0 - first.0).min((room_bytes / granule_bytes) as u64);
            let mut room = self.arena.take(count as usize);
            let mut written = Ok(());
            for (index, piece) in room.bytes_mut().chunks_mut(FILLED_BYTES).enumerate() {
                let at = PageId(first.0 + (index * FILLED_BYTES / granule_bytes) as u64);
                fill(at, piece);
                written = written.and_then(|()| self.memory.write(at, 0, piece));
            }
            if for_twins {
                self.received.push(Received { granules: PageRange { first, count }, room });
            } else {
                self.arena.give_back(room);
            }
            written?;
            first.0 += count;
        }
        Ok(())
    }

    /// No twin will be made any more of what frames were filled with.
    pub fn forget_received(&mut self) {
        self.received.drain(..).for_each(|received| self.arena.give_back(received.room));
    }

    fn forget_overlapping(&mut self, granules: PageRange) {
        let apart = |of: &PageRange| of.end() <= granules.first || granules.end() <= of.first;
        for received in self.received.extract_if(.., |received| !apart(&received.granules)) {
            self.arena.give_back(received.room);
        }
    }

    /// The room with what the granules were filled with, if they were.
    fn claim(&mut self, granules: PageRange) -> Option<Room> {
        let within = |of: &PageRange| of.first <= granules.first && granules.end() <= of.end();
        let index = self.received.iter().rposition(|received| within(&received.granules))?;
        let Received { granules: all, room } = self.received.swap_remove(index);
        let (before, room) = room.split((granules.first.0 - all.first.0) as usize);
        let (room, behind) = room.split(granules.count as usize);
        let rest = [(all.first, granules.first, before), (granules.end(), all.end(), behind)];
        for (first, end, room) in rest.into_iter().filter(|(first, end, _)| first < end) {
            self.received.push(Received { granules: PageRange { first, count: end.0 - first.0 }, room });
        }
        Some(room)
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
        if self.twins.contains_key(&page) {
            return false;
        }
        let granules = page_bytes / granule_bytes;
        let room = self.claim(PageRange { first: page, count: granules as u64 }).unwrap_or_else(|| {
            let mut room = self.arena.take(granules);
            self.memory.read(page, 0, room.bytes_mut());
            room
        });
        self.twins.insert(page, room);
        self.memory.account().add_twin(page_bytes);
        true
    }

    /// The twin of `page`, if it has one.
    pub fn get(&self, page: PageId) -> Option<&[u8]> {
        self.twins.get(&page).map(Room::bytes)
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
        let Some(twin) = self.twins.get_mut(&page) else {
            let granule_bytes = self.memory.granule().bytes();
            let first = offset / granule_bytes;
            let count = ((offset + bytes.len()).div_ceil(granule_bytes) - first) as u64;
            self.forget_overlapping(PageRange { first: PageId(page.0 + first as u64), count });
            return false;
        };
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
        let Some(room) = self.twins.remove(&page) else { return false };
        self.memory.account().remove_twin(room.len());
        self.arena.give_back(room);
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
            self.memory.account().remove_twin(twin.len());
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
        // Some get a twin, in any order; what is written to a frame in between shows in its twin.
        for page in [7, 9, 8, 300, 604] {
            assert!(twins.make(PageId(page), BYTES));
            assert_eq!(twins.get(PageId(page)), Some(&[number(PageId(page)); BYTES][..]));
        }
        memory.write(PageId(11), 5, &[77]).unwrap();
        assert!(!twins.patch(PageId(11), 5, &[77]) && twins.make(PageId(11), BYTES));
        assert_eq!(twins.get(PageId(11)).unwrap()[4..7], [11, 77, 11]);
        // Filled anew: nothing is left of what came before.
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
