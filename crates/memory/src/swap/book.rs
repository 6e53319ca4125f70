//! The book of a swap store: which granules are out, where they are, and which are on their way.

use std::{collections::BTreeMap, sync::Arc};

use hiroba_base::{PageId, PageRange};
use rustc_hash::FxHashMap;

use super::file::Slots;
use super::{Lenders, SWAP_TAG_BYTES};

/// Number of buffers that are kept for further batches.
const BUFFERS_MAX: usize = 2;

/// Where a granule is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In this slot of the file.
    File(u32),
    /// With a lender.
    Lent,
}

impl Place {
    /// Returns true if both can be read together if their granules are neighbours.
    pub(super) fn is_followed_by(self, next: Place) -> bool {
        match (self, next) {
            (Place::File(slot), Place::File(other)) => slot + 1 == other,
            (Place::Lent, Place::Lent) => true,
            _ => false,
        }
    }
}

/// A granule that has a place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sealed {
    pub(super) place: Place,
    pub(super) count: u64,
    pub(super) tag: [u8; SWAP_TAG_BYTES],
    /// The tag of what it was before it was compressed, if it is.
    pub(super) unpacked_tag: Option<[u8; SWAP_TAG_BYTES]>,
    /// The length of what is sealed, which is less than a granule's if it is compressed.
    pub(super) bytes: u32,
}

/// Granules whose places one thread reads or writes, without the book's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transit {
    pub(super) range: PageRange,
    /// True if they stay in memory: their content is only saved.
    pub(super) stay: bool,
}

/// What is where. All of it changes under one lock.
pub(super) struct Book {
    pub(super) slots: Option<Slots>,
    lenders: Option<Arc<dyn Lenders>>,
    pub(super) out: FxHashMap<PageId, Sealed>,
    /// Granules in memory that have a place, with the version there. They may have been changed since.
    pub(super) back: BTreeMap<PageId, Sealed>,
    /// They do not overlap. There is at most one per thread.
    pub(super) transits: Vec<Transit>,
    /// The count of the next granule that is sealed.
    count: u64,
    buffers: Vec<Vec<u8>>,
}

impl Book {
    pub(super) fn new(slots: Option<Slots>, lenders: Option<Arc<dyn Lenders>>) -> Book {
        Book {
            slots,
            lenders,
            out: FxHashMap::default(),
            back: BTreeMap::new(),
            transits: Vec::new(),
            count: 0,
            buffers: Vec::new(),
        }
    }

    /// Returns the first of as many counts, none of which was given before.
    pub(super) fn take_counts(&mut self, granules: u64) -> u64 {
        self.count += granules;
        self.count - granules
    }

    pub(super) fn take_buffer(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_default()
    }

    pub(super) fn keep_buffer(&mut self, buffer: Vec<u8>) {
        if self.buffers.len() < BUFFERS_MAX {
            self.buffers.push(buffer);
        }
    }

    /// Returns true if a granule is on its way out, in, or to its place.
    pub(super) fn is_in_transit(&self, granule: PageId) -> bool {
        self.transits.iter().any(|transit| transit.range.contains(granule))
    }

    /// Returns the granules of `range` that are out, in order.
    pub(super) fn granules_in(&self, range: PageRange) -> Vec<PageId> {
        if range.count <= self.out.len() as u64 {
            return range.iter().filter(|granule| self.out.contains_key(granule)).collect();
        }
        let mut found: Vec<PageId> = self.out.keys().copied().filter(|at| range.contains(*at)).collect();
        found.sort_unstable();
        found
    }

    /// Returns true if any granule of `range` is out.
    pub(super) fn has_any_of(&self, range: PageRange) -> bool {
        if range.count <= self.out.len() as u64 {
            return range.iter().any(|granule| self.out.contains_key(&granule));
        }
        self.out.keys().any(|granule| range.contains(*granule))
    }

    /// Takes a free slot of the file, or, if `may_displace`, that of a granule that is in memory. Granules
    /// mostly leave in the order of their places, so the last one keeps its slot the longest without need.
    pub(super) fn take_slot(&mut self, may_displace: bool) -> Option<u32> {
        let slot = self.slots.as_mut()?.take();
        if slot.is_some() || !may_displace {
            return slot;
        }
        let (granule, slot) = self.back.iter().rev().find_map(|(granule, sealed)| match sealed.place {
            Place::File(slot) => Some((*granule, slot)),
            Place::Lent => None,
        })?;
        self.back.remove(&granule);
        Some(slot)
    }

    pub(super) fn leave_place(&mut self, granule: PageId, place: Place) {
        match (place, &mut self.slots, &self.lenders) {
            (Place::File(slot), Some(slots), _) => slots.free(slot),
            (Place::Lent, _, Some(lenders)) => lenders.discard(&[granule]),
            _ => {}
        }
    }

    /// Records that a granule is in memory, and that this version of it is in its place.
    pub(super) fn note_back(&mut self, granule: PageId, sealed: Sealed) {
        if let (Place::Lent, Some(lenders)) = (sealed.place, &self.lenders) {
            lenders.note_back(&[granule]);
        }
        self.back.insert(granule, sealed);
    }

    /// Forgets the granules of `range` and gives their places up.
    pub(super) fn discard(&mut self, range: PageRange) {
        for granule in self.granules_in(range) {
            if let Some(sealed) = self.out.remove(&granule) {
                self.leave_place(granule, sealed.place);
            }
        }
        let back: Vec<PageId> =
            self.back.range(range.first..range.end()).map(|(granule, _)| *granule).collect();
        for granule in back {
            if let Some(sealed) = self.back.remove(&granule) {
                self.leave_place(granule, sealed.place);
            }
        }
    }
}
