//! The memory of twins: slabs of granules, in which the twins of a run of pages can be adjacent, and which
//! are reused without being zeroed.
//!
//! Fresh memory costs several times as much as copying into present memory, mostly because of faults. All
//! slabs but the first, which is all that many programs need, therefore request the kernel's huge pages: one
//! fault then maps 2 MiB. The first slab is mapped in steps, by one call each.

use core::ptr::NonNull;

use rustix::{io::Errno, mm::Advice};

use crate::mapping::Mapping;

/// The length of a slab: the longest page, and the kernel's huge page where granules have 4 KiB.
pub(super) const SLAB_BYTES: usize = 2 << 20;

/// Maximum length of empty slabs kept for the next twins, in bytes, unless memory is short: zeroing a new
/// slab costs as much as copying into it.
pub(super) const SPARE_BYTES_MAX: usize = 32 << 20;

/// The first slab is mapped in steps of this many bytes.
const STEP_BYTES: usize = 128 << 10;

/// Number of slabs searched for a free run before a new one is made.
const SLABS_SEARCHED: usize = 8;

const WORD_BITS: usize = u64::BITS as usize;

/// A range of bytes taken from the arena.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Room {
    start: NonNull<u8>,
    slab: u32,
    first: u32,
    granules: u32,
    granule_bytes: u32,
}

// SAFETY: a room is a range of a slab that nothing else uses; code that moves it to another thread moves its
// arena with it.
unsafe impl Send for Room {}

impl Room {
    /// The length in bytes.
    pub(super) fn len(&self) -> usize {
        self.granules as usize * self.granule_bytes as usize
    }

    /// Returns its bytes; their content is undefined until it is written.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the arena gave this range of a mapped, initialised slab to this room only and keeps the
        // slab mapped until the room is given back.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.len()) }
    }

    /// Returns its bytes for writing.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `self` is borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.len()) }
    }

    /// Splits the room at `granules` granules from its beginning.
    pub(super) fn split(self, granules: usize) -> (Room, Room) {
        assert!(granules <= self.granules as usize, "a room of {} granules, got {granules}", self.granules);
        let Room { start, slab, first, granule_bytes, .. } = self;
        let count = granules as u32;
        // SAFETY: the assertion keeps the address within the room or at its end.
        let behind = unsafe { start.add(granules * granule_bytes as usize) };
        let head = Room { start, slab, first, granules: count, granule_bytes };
        let rest = self.granules - count;
        (head, Room { start: behind, slab, first: first + count, granules: rest, granule_bytes })
    }
}

/// One slab, with a bitmap of its used granules.
#[derive(Debug)]
struct Slab {
    mapping: Mapping,
    taken: Vec<u64>,
    free: usize,
    /// Number of bytes from its beginning that have memory; the rest gets memory when first written.
    mapped_bytes: usize,
}

/// The slabs.
#[derive(Debug)]
pub(super) struct Arena {
    granule_bytes: usize,
    /// By number; `None` where one was returned to the kernel.
    slabs: Vec<Option<Slab>>,
    /// Number of empty slabs.
    empty: usize,
    /// Maximum length of empty slabs, in bytes.
    spare_bytes_max: usize,
    /// Number of bytes of all slabs that have memory.
    mapped_bytes: usize,
    /// Number of granules of all rooms.
    taken: usize,
    /// The slab of the last room.
    latest: usize,
}

impl Arena {
    /// Makes an empty arena.
    pub(super) fn new(granule_bytes: usize) -> Arena {
        let (slabs, spare_bytes_max) = (Vec::new(), SPARE_BYTES_MAX);
        Arena { granule_bytes, slabs, empty: 0, spare_bytes_max, mapped_bytes: 0, taken: 0, latest: 0 }
    }

    /// Returns the memory of slabs that is of no room.
    pub(super) fn unused_bytes(&self) -> usize {
        self.mapped_bytes.saturating_sub(self.taken * self.granule_bytes)
    }

    /// Keeps empty slabs of at most this many bytes from now on, or one.
    pub(super) fn keep_spare(&mut self, bytes: usize) {
        self.spare_bytes_max = bytes.clamp(SLAB_BYTES, SPARE_BYTES_MAX);
        let most = self.granules_per_slab();
        for place in &mut self.slabs {
            if self.empty * SLAB_BYTES > self.spare_bytes_max
                && let Some(slab) = place.take_if(|slab| slab.free == most)
            {
                self.empty -= 1;
                self.mapped_bytes -= slab.mapped_bytes;
            }
        }
    }

    fn granules_per_slab(&self) -> usize {
        SLAB_BYTES / self.granule_bytes
    }

    /// Takes `granules` consecutive granules with undefined content.
    ///
    /// # Panics
    /// Panics if a slab has fewer, or if the kernel has no memory left to map.
    pub(super) fn take(&mut self, granules: usize) -> Room {
        let most = self.granules_per_slab();
        assert!((1..=most).contains(&granules), "a room has 1 to {most} granules, got {granules}");
        let slabs = self.slabs.len();
        let mut candidates = (0..slabs)
            .map(|turn| (self.latest + slabs - turn) % slabs)
            .filter(|number| self.slabs[*number].as_ref().is_some_and(|slab| slab.free >= granules))
            .take(SLABS_SEARCHED);
        let found = candidates.find_map(|number| Some((number, self.slabs[number].as_ref()?.run(granules)?)));
        let (number, first) = found.unwrap_or_else(|| (self.add_slab(), 0));
        self.latest = number;
        let slab = self.slabs[number].as_mut().expect("a slab that was found exists");
        self.empty -= usize::from(slab.free == most);
        slab.free -= granules;
        slab.mark(first, granules, true);
        let before = slab.mapped_bytes;
        slab.map_up_to((first + granules) * self.granule_bytes);
        self.mapped_bytes += slab.mapped_bytes - before;
        self.taken += granules;
        let start =
            NonNull::new(slab.mapping.at(first * self.granule_bytes)).expect("a mapping begins somewhere");
        let (slab, first) = (number as u32, first as u32);
        Room { start, slab, first, granules: granules as u32, granule_bytes: self.granule_bytes as u32 }
    }

    /// Takes a room back.
    pub(super) fn give_back(&mut self, room: Room) {
        let most = self.granules_per_slab();
        let place = &mut self.slabs[room.slab as usize];
        let slab = place.as_mut().expect("a slab that has rooms exists");
        slab.mark(room.first as usize, room.granules as usize, false);
        slab.free += room.granules as usize;
        self.taken -= room.granules as usize;
        if slab.free == most && room.granules > 0 {
            if (self.empty + 1) * SLAB_BYTES > self.spare_bytes_max {
                self.mapped_bytes -= slab.mapped_bytes;
                *place = None;
            } else {
                self.empty += 1;
            }
        }
    }

    fn add_slab(&mut self) -> usize {
        let number = self.slabs.iter().position(Option::is_none).unwrap_or(self.slabs.len());
        let slab = Slab::map(self.granules_per_slab(), number > 0);
        let slab = slab.unwrap_or_else(|errno| panic!("expected {SLAB_BYTES} bytes for twins, got: {errno}"));
        self.mapped_bytes += slab.mapped_bytes;
        match self.slabs.get_mut(number) {
            Some(place) => *place = Some(slab),
            None => self.slabs.push(Some(slab)),
        }
        self.empty += 1;
        number
    }
}

impl Slab {
    fn map(granules: usize, huge: bool) -> Result<Slab, Errno> {
        let mapping = Mapping::of_zeros(SLAB_BYTES)?;
        if huge {
            // Kernels without huge pages return an error and use small ones.
            let _ = mapping.advise(0, SLAB_BYTES, Advice::LinuxHugepage);
        }
        let mut taken = vec![0; granules.div_ceil(WORD_BITS)];
        if let (Some(last), excess @ 1..) = (taken.last_mut(), granules % WORD_BITS) {
            // Bits of the last word beyond the slab are never free.
            *last = u64::MAX << excess;
        }
        Ok(Slab { mapping, taken, free: granules, mapped_bytes: if huge { SLAB_BYTES } else { 0 } })
    }

    /// Maps the bytes before `end`, which are about to be written.
    fn map_up_to(&mut self, end: usize) {
        if end > self.mapped_bytes {
            let (from, to) = (self.mapped_bytes, end.next_multiple_of(STEP_BYTES).min(SLAB_BYTES));
            // Where the kernel cannot (before Linux 5.14), each page faults when it is written.
            let _ = self.mapping.advise(from, to - from, Advice::LinuxPopulateWrite);
            self.mapped_bytes = to;
        }
    }

    /// Returns the first granule of the first free run of this length.
    fn run(&self, granules: usize) -> Option<usize> {
        let (mut first, mut at) = (0, 0);
        let end = self.taken.len() * WORD_BITS;
        while at < end {
            let word = self.taken[at / WORD_BITS] >> (at % WORD_BITS);
            let left = WORD_BITS - at % WORD_BITS;
            if word & 1 == 1 {
                at += (word.trailing_ones() as usize).min(left);
                first = at;
                continue;
            }
            at += (word.trailing_zeros() as usize).min(left);
            if at - first >= granules {
                return Some(first);
            }
        }
        None
    }

    fn mark(&mut self, first: usize, granules: usize, taken: bool) {
        let mut at = first;
        while at < first + granules {
            let bits = (WORD_BITS - at % WORD_BITS).min(first + granules - at);
            let ones = if bits == WORD_BITS { u64::MAX } else { ((1 << bits) - 1) << (at % WORD_BITS) };
            let word = &mut self.taken[at / WORD_BITS];
            debug_assert_eq!(
                *word & ones,
                if taken { 0 } else { ones },
                "a granule is taken once and given back once"
            );
            *word ^= ones;
            at += bits;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn empty_slabs_go_when_memory_is_short() {
        const GRANULE: usize = 4096;
        let mut arena = Arena::new(GRANULE);
        let most = arena.granules_per_slab();
        let rooms: Vec<Room> = (0..10).map(|_| arena.take(most)).collect();
        assert_eq!((arena.mapped_bytes, arena.unused_bytes()), (10 * SLAB_BYTES, 0));
        let one = arena.take(1);
        let slab_of_one = arena.slabs[one.slab as usize].as_ref().unwrap().mapped_bytes;
        assert_eq!(arena.unused_bytes(), slab_of_one - GRANULE);
        rooms.into_iter().for_each(|room| arena.give_back(room));
        assert_eq!((arena.empty, arena.unused_bytes()), (10, 10 * SLAB_BYTES + slab_of_one - GRANULE));
        arena.keep_spare(0);
        assert_eq!((arena.empty, arena.unused_bytes()), (1, SLAB_BYTES + slab_of_one - GRANULE));
        let room = arena.take(most);
        assert_eq!(arena.empty, 0);
        let other = arena.take(most);
        arena.give_back(room);
        arena.give_back(other);
        arena.give_back(one);
        assert_eq!((arena.empty, arena.taken), (1, 0), "no more are kept");
        assert!(arena.mapped_bytes <= SLAB_BYTES);
    }

    const GRANULE_BYTES: usize = 4096;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn rooms_never_overlap_and_slabs_come_and_go(
            steps in proptest::collection::vec((any::<bool>(), 1..=512usize, any::<prop::sample::Index>()), 1..80),
        ) {
            let mut arena = Arena::new(GRANULE_BYTES);
            let mut rooms: Vec<(Room, u8)> = Vec::new();
            for (number, (takes, granules, which)) in steps.into_iter().enumerate() {
                if takes || rooms.is_empty() {
                    let mut room = arena.take(if number % 3 == 0 { granules } else { granules % 4 + 1 });
                    room.bytes_mut().fill(number as u8);
                    let half = room.granules as usize / 2;
                    if half > 0 && number % 2 == 0 {
                        let (head, rest) = room.split(half);
                        rooms.push((head, number as u8));
                        room = rest;
                    }
                    rooms.push((room, number as u8));
                } else {
                    let (room, mark) = rooms.swap_remove(which.index(rooms.len()));
                    prop_assert!(room.bytes().iter().all(|byte| *byte == mark));
                    arena.give_back(room);
                }
                prop_assert!(rooms.iter().all(|(room, mark)| room.bytes()[0] == *mark && room.bytes()[room.len() - 1] == *mark));
            }
            rooms.drain(..).for_each(|(room, _)| arena.give_back(room));
            let left = arena.slabs.iter().flatten().count();
            prop_assert_eq!(left, arena.empty);
            prop_assert!(left * SLAB_BYTES <= SPARE_BYTES_MAX);
        }
    }
}
