//! The swap store: sealed granules that were swapped out of memory.
//!
//! Their content is sealed. The key exists only in this process's memory. Each granule is sealed with a count
//! that is never used twice and bound to its place in the region, and the count and the tag of the latest
//! version stay in memory. So a granule that was damaged, exchanged with another or reset to an earlier
//! version is detected.
//!
//! A granule that has come back keeps its slot. If it leaves again unchanged, nothing is written. That it is
//! unchanged is seen by its tag: it is sealed again with the count of the version in the slot. What that
//! yields is never stored, since two contents that were sealed with one count would betray each other.
//! Slots of granules that are in memory are given to others when no slot is free.
//!
//! Granules go to memory that other nodes lend, as long as there is any, and otherwise to the file. Those
//! that a lender returns and no other one takes go to the file, too.
//!
//! Memory use: about 60 bytes for each granule that has a slot, and as much as a `BTreeSet` takes for slots
//! that were used and are free.

mod file;
mod lent;

#[cfg(test)]
pub(crate) mod tests;

use std::{collections::BTreeMap, path::Path, sync::Arc};

use hiroba_base::{PageId, PageRange};
use rustc_hash::FxHashMap;

use self::file::SlotFile;
pub use self::file::check_swap_directory;
pub use self::lent::{LenderLost, Lenders};
use crate::MemoryError;

/// The number of bytes that authentication adds to a granule. They stay in memory.
pub const SWAP_TAG_BYTES: usize = 16;

/// Number of bytes that are sealed at a time and written with one call per run of slots.
const BATCH_BYTES: usize = 256 << 10;

/// Seals granules that leave memory, and opens them when they come back.
pub trait SwapSeal: Send + Sync {
    /// Seals `bytes` in place, together with `place`, which is not encrypted. What is sealed with one count
    /// and stored somewhere is the only thing that is ever stored with that count.
    fn seal(&self, count: u64, place: &[u8], bytes: &mut [u8]) -> [u8; SWAP_TAG_BYTES];

    /// Opens in place what [`seal`](Self::seal) sealed with this count and place. Returns false if the bytes
    /// are anything else; `bytes` are worthless then.
    fn open(&self, count: u64, place: &[u8], bytes: &mut [u8], tag: &[u8; SWAP_TAG_BYTES]) -> bool;
}

/// Where a granule is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In this slot of the file.
    File(u32),
    /// With a lender.
    Lent,
}

impl Place {
    /// Returns true if both can be read together if their granules are neighbours.
    fn is_followed_by(self, next: Place) -> bool {
        match (self, next) {
            (Place::File(slot), Place::File(other)) => slot + 1 == other,
            (Place::Lent, Place::Lent) => true,
            _ => false,
        }
    }
}

/// A granule that has a place.
#[derive(Clone, Copy, Debug)]
struct Sealed {
    place: Place,
    count: u64,
    tag: [u8; SWAP_TAG_BYTES],
}

/// A granule that is leaving.
#[derive(Clone, Copy, Debug)]
struct Leaver {
    granule: PageId,
    sealed: Sealed,
    /// True if this version is in its place already.
    is_unchanged: bool,
}

/// The granules that are out, and where they are.
pub(crate) struct SwapStore {
    file: Option<SlotFile>,
    lenders: Option<Arc<dyn Lenders>>,
    seal: Box<dyn SwapSeal>,
    granule_bytes: usize,
    out: FxHashMap<PageId, Sealed>,
    /// Granules that have come back, with the version in their places. They may have been changed since.
    back: BTreeMap<PageId, Sealed>,
    /// The count of the next granule that is sealed.
    count: u64,
    buffer: Vec<u8>,
}

impl core::fmt::Debug for SwapStore {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (out, back) = (self.out.len(), self.back.len());
        f.debug_struct("SwapStore")
            .field("directory", &self.file.as_ref().map(|file| &file.directory))
            .field("out", &out)
            .field("back", &back)
            .finish_non_exhaustive()
    }
}

impl SwapStore {
    /// Makes a store over a nameless file in a directory, with a maximum length, and over lenders.
    pub(crate) fn open(
        file: Option<(&Path, Option<u64>)>,
        lenders: Option<Arc<dyn Lenders>>,
        granule_bytes: usize,
        seal: Box<dyn SwapSeal>,
    ) -> Result<SwapStore, MemoryError> {
        let file = file.map(|(directory, bytes_max)| SlotFile::open(directory, bytes_max, granule_bytes));
        Ok(SwapStore::over(file.transpose()?, lenders, granule_bytes, seal))
    }

    fn over(
        file: Option<SlotFile>,
        lenders: Option<Arc<dyn Lenders>>,
        granule_bytes: usize,
        seal: Box<dyn SwapSeal>,
    ) -> SwapStore {
        SwapStore {
            file,
            lenders,
            seal,
            granule_bytes,
            out: FxHashMap::default(),
            back: BTreeMap::new(),
            count: 0,
            buffer: Vec::new(),
        }
    }

    /// Returns the number of granules that are out.
    pub(crate) fn len(&self) -> usize {
        self.out.len()
    }

    /// Returns the granules of `range` that are out, in order.
    pub(crate) fn granules_in(&self, range: PageRange) -> Vec<PageId> {
        if range.count <= self.out.len() as u64 {
            return range.iter().filter(|granule| self.out.contains_key(granule)).collect();
        }
        let mut found: Vec<PageId> = self.out.keys().copied().filter(|at| range.contains(*at)).collect();
        found.sort_unstable();
        found
    }

    /// Returns true if any granule of `range` is out.
    pub(crate) fn has_any_of(&self, range: PageRange) -> bool {
        if range.count <= self.out.len() as u64 {
            return range.iter().any(|granule| self.out.contains_key(&granule));
        }
        self.out.keys().any(|granule| range.contains(*granule))
    }

    /// Takes in a range of granules, whose contents `read` returns, the same whenever it is asked. Granules
    /// of zeros need no place. Returns the number of bytes written to the file.
    ///
    /// # Errors
    /// Fails if there is no room for all of them, or if they cannot be written; none has been taken in then.
    pub(crate) fn take_in(
        &mut self,
        range: PageRange,
        mut read: impl FnMut(PageId, &mut [u8]),
    ) -> Result<u64, MemoryError> {
        self.house_returned();
        // Sealing costs more than asking.
        if self.file.is_none() && !self.lenders.as_ref().is_some_and(|lenders| lenders.may_lend()) {
            return Err(MemoryError::NoLender);
        }
        let per_batch = (BATCH_BYTES / self.granule_bytes).max(1) as u64;
        let mut leavers: Vec<Leaver> = Vec::new();
        let mut written = 0;
        let mut first = range.first;
        while first < range.end() {
            let count = per_batch.min(range.end().0 - first.0);
            match self.take_in_batch(PageRange { first, count }, &mut read, &mut leavers) {
                Ok(bytes) => written += bytes,
                Err(error) => {
                    for Leaver { granule, sealed, is_unchanged } in leavers {
                        if is_unchanged {
                            self.note_back(granule, sealed);
                        } else {
                            self.leave_place(granule, sealed.place);
                        }
                    }
                    return Err(error);
                }
            }
            first.0 += count;
        }
        self.out.extend(leavers.into_iter().map(|leaver| (leaver.granule, leaver.sealed)));
        Ok(written)
    }

    fn take_in_batch(
        &mut self,
        batch: PageRange,
        read: &mut impl FnMut(PageId, &mut [u8]),
        leavers: &mut Vec<Leaver>,
    ) -> Result<u64, MemoryError> {
        let unit = self.granule_bytes;
        let mut buffer = core::mem::take(&mut self.buffer);
        buffer.resize(batch.count as usize * unit, 0);
        // Granules that must be written, with the places of their earlier versions.
        let mut changed: Vec<(PageId, Sealed, Option<Place>)> = Vec::new();
        for granule in batch.iter() {
            let room = &mut buffer[changed.len() * unit..][..unit];
            read(granule, room);
            let before = self.back.remove(&granule);
            if room.iter().all(|byte| *byte == 0) {
                if let Some(sealed) = before {
                    self.leave_place(granule, sealed.place);
                }
                continue;
            }
            if let Some(sealed) = before {
                let is_same = self.seal.seal(sealed.count, &granule.0.to_be_bytes(), room) == sealed.tag;
                if is_same && self.is_in_place(granule, sealed) {
                    leavers.push(Leaver { granule, sealed, is_unchanged: true });
                    continue;
                }
                read(granule, room);
            }
            let count = self.count;
            self.count += 1;
            let tag = self.seal.seal(count, &granule.0.to_be_bytes(), room);
            let before = before.map(|sealed| sealed.place);
            changed.push((granule, Sealed { place: Place::Lent, count, tag }, before));
        }
        let lent = self.lend(&changed, &buffer, leavers);
        let written = self.write(&changed[lent..], &buffer[lent * unit..changed.len() * unit], leavers);
        self.buffer = buffer;
        written
    }

    /// Lends granules. Returns how many were lent, from the first on.
    fn lend(
        &mut self,
        changed: &[(PageId, Sealed, Option<Place>)],
        bytes: &[u8],
        leavers: &mut Vec<Leaver>,
    ) -> usize {
        let Some(lenders) = self.lenders.as_ref().filter(|_| !changed.is_empty()) else { return 0 };
        let names: Vec<(PageId, u64)> =
            changed.iter().map(|(granule, sealed, _)| (*granule, sealed.count)).collect();
        let lent = lenders.lend(&names, &bytes[..changed.len() * self.granule_bytes]);
        for (granule, sealed, before) in &changed[..lent] {
            if let Some(place @ Place::File(_)) = before {
                self.leave_place(*granule, *place);
            }
            leavers.push(Leaver { granule: *granule, sealed: *sealed, is_unchanged: false });
        }
        lent
    }

    /// Writes granules to the file, to the slots of their earlier versions if they have any. Returns the
    /// number of bytes.
    fn write(
        &mut self,
        changed: &[(PageId, Sealed, Option<Place>)],
        bytes: &[u8],
        leavers: &mut Vec<Leaver>,
    ) -> Result<u64, MemoryError> {
        if changed.is_empty() {
            return Ok(0);
        }
        let mut slots = Vec::with_capacity(changed.len());
        for (at, (granule, sealed, before)) in changed.iter().enumerate() {
            if let Some(Place::Lent) = before {
                self.leave_place(*granule, Place::Lent);
            }
            let slot = match before {
                Some(Place::File(slot)) => Some(*slot),
                _ => self.take_slot(),
            };
            let Some(slot) = slot else {
                for (granule, _, before) in &changed[at + 1..] {
                    before.iter().for_each(|place| self.leave_place(*granule, *place));
                }
                return Err(self.file.as_ref().map_or(MemoryError::NoLender, SlotFile::full));
            };
            let sealed = Sealed { place: Place::File(slot), ..*sealed };
            leavers.push(Leaver { granule: *granule, sealed, is_unchanged: false });
            slots.push(slot);
        }
        let file = self.file.as_ref().ok_or(MemoryError::NoLender)?;
        file.write(&slots, bytes).map(|()| bytes.len() as u64)
    }

    /// Writes granules that were returned, and have found no other lender, to the file. What has no room
    /// there stays as it is.
    fn house_returned(&mut self) {
        while let Some((granule, count, bytes)) = self.lenders.as_ref().and_then(|lenders| lenders.homeless())
        {
            let is_known = |sealed: &&mut Sealed| (sealed.place, sealed.count) == (Place::Lent, count);
            if self.out.get_mut(&granule).filter(is_known).is_some() {
                let Some(slot) = self.take_slot() else { return };
                let file = self.file.as_mut().expect("it has given a slot");
                if file.write(&[slot], &bytes).is_err() {
                    file.free_slot(slot);
                    return;
                }
                let sealed = self.out.get_mut(&granule).expect("it is out");
                sealed.place = Place::File(slot);
            }
            self.leave_place(granule, Place::Lent);
        }
    }

    /// Takes a free slot of the file, or that of a granule that has come back. Granules mostly leave in the
    /// order of their places, so the last one keeps its slot the longest without need.
    fn take_slot(&mut self) -> Option<u32> {
        let file = self.file.as_mut()?;
        if let Some(slot) = file.take_slot() {
            return Some(slot);
        }
        let (granule, slot) = self.back.iter().rev().find_map(|(granule, sealed)| match sealed.place {
            Place::File(slot) => Some((*granule, slot)),
            Place::Lent => None,
        })?;
        self.back.remove(&granule);
        Some(slot)
    }

    /// Returns true if the version of a granule that has come back is still in its place. From then on it
    /// stays there.
    fn is_in_place(&self, granule: PageId, sealed: Sealed) -> bool {
        match sealed.place {
            Place::File(_) => true,
            Place::Lent => self.lenders.as_ref().is_some_and(|lenders| lenders.keep(granule, sealed.count)),
        }
    }

    fn leave_place(&mut self, granule: PageId, place: Place) {
        match (place, &mut self.file, &self.lenders) {
            (Place::File(slot), Some(file), _) => file.free_slot(slot),
            (Place::Lent, _, Some(lenders)) => lenders.discard(&[granule]),
            _ => {}
        }
    }

    fn note_back(&mut self, granule: PageId, sealed: Sealed) {
        if let (Place::Lent, Some(lenders)) = (sealed.place, &self.lenders) {
            lenders.note_back(&[granule]);
        }
        self.back.insert(granule, sealed);
    }

    /// Returns granules that are out, given in order. Passes `place` runs of them; those that it has accepted
    /// are not out any more. Returns the number of bytes read from the file.
    ///
    /// # Errors
    /// Fails if they cannot be read, if they are not what was written, or if `place` fails.
    pub(crate) fn hand_back(
        &mut self,
        granules: &[PageId],
        mut place: impl FnMut(PageRange, &[u8]) -> Result<(), MemoryError>,
    ) -> Result<u64, MemoryError> {
        let unit = self.granule_bytes;
        let per_batch = (BATCH_BYTES / unit).max(1);
        let follows = |before: &PageId, after: &PageId| {
            before.0 + 1 == after.0 && self.out[before].place.is_followed_by(self.out[after].place)
        };
        let runs: Vec<&[PageId]> = granules.chunk_by(follows).flat_map(|run| run.chunks(per_batch)).collect();
        let mut buffer = core::mem::take(&mut self.buffer);
        let mut bytes = 0;
        let mut outcome = Ok(());
        for run in runs {
            let range = PageRange { first: run[0], count: run.len() as u64 };
            buffer.resize(run.len() * unit, 0);
            outcome = self.read_run(run, &mut buffer).and_then(|()| place(range, &buffer));
            if outcome.is_err() {
                break;
            }
            for granule in run {
                if let Some(sealed) = self.out.remove(granule) {
                    bytes += if sealed.place == Place::Lent { 0 } else { unit as u64 };
                    self.note_back(*granule, sealed);
                }
            }
        }
        self.buffer = buffer;
        outcome.map(|()| bytes)
    }

    /// Reads and opens granules whose places follow each other.
    fn read_run(&self, run: &[PageId], buffer: &mut [u8]) -> Result<(), MemoryError> {
        let place = self.out[&run[0]].place;
        match (place, &self.file, &self.lenders) {
            (Place::File(slot), Some(file), _) => file.read(slot, buffer, run[0])?,
            (Place::Lent, _, Some(lenders)) => {
                let names: Vec<(PageId, u64)> =
                    run.iter().map(|granule| (*granule, self.out[granule].count)).collect();
                lenders
                    .fetch(&names, buffer)
                    .map_err(|lost| MemoryError::LenderLost { page: lost.granule, lender: lost.lender })?;
            }
            _ => unreachable!("granules are where there was a place for them"),
        }
        for (granule, bytes) in run.iter().zip(buffer.chunks_mut(self.granule_bytes)) {
            let Sealed { count, tag, .. } = &self.out[granule];
            if !self.seal.open(*count, &granule.0.to_be_bytes(), bytes, tag) {
                return Err(match (place, &self.file) {
                    (Place::File(_), Some(file)) => {
                        MemoryError::SwapCorrupted { directory: file.directory.clone(), page: *granule }
                    }
                    _ => MemoryError::LentCorrupted { page: *granule },
                });
            }
        }
        Ok(())
    }

    /// Forgets the granules of `range` and gives their places up.
    pub(crate) fn discard(&mut self, range: PageRange) {
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
