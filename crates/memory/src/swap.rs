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
//! Memory use: about 60 bytes for each granule that has a slot, and as much as a `BTreeSet` takes for slots
//! that were used and are free.

mod file;

#[cfg(test)]
pub(crate) mod tests;

use std::{collections::BTreeMap, path::Path};

use hiroba_base::{PageId, PageRange};
use rustc_hash::FxHashMap;

use self::file::SlotFile;
pub use self::file::check_swap_directory;
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

/// A granule that has a slot.
#[derive(Clone, Copy, Debug)]
struct Sealed {
    slot: u32,
    count: u64,
    tag: [u8; SWAP_TAG_BYTES],
}

/// A granule that is leaving.
#[derive(Clone, Copy, Debug)]
struct Leaver {
    granule: PageId,
    sealed: Sealed,
    /// True if its slot contains this version already.
    is_unchanged: bool,
}

/// The granules that are out, and where they are.
pub(crate) struct SwapStore {
    file: SlotFile,
    seal: Box<dyn SwapSeal>,
    granule_bytes: usize,
    out: FxHashMap<PageId, Sealed>,
    /// Granules that have come back, with the version in their slots. They may have been changed since.
    back: BTreeMap<PageId, Sealed>,
    /// The count of the next granule that is sealed.
    count: u64,
    buffer: Vec<u8>,
}

impl core::fmt::Debug for SwapStore {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (out, back) = (self.out.len(), self.back.len());
        f.debug_struct("SwapStore")
            .field("directory", &self.file.directory)
            .field("out", &out)
            .field("back", &back)
            .finish_non_exhaustive()
    }
}

impl SwapStore {
    /// Makes a store with a nameless file in `directory` that has a maximum length of `bytes_max`.
    pub(crate) fn open(
        directory: &Path,
        bytes_max: Option<u64>,
        granule_bytes: usize,
        seal: Box<dyn SwapSeal>,
    ) -> Result<SwapStore, MemoryError> {
        Ok(SwapStore::over(SlotFile::open(directory, bytes_max, granule_bytes)?, granule_bytes, seal))
    }

    fn over(file: SlotFile, granule_bytes: usize, seal: Box<dyn SwapSeal>) -> SwapStore {
        SwapStore {
            file,
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
    /// of zeros need no slot. Returns the number of bytes written.
    ///
    /// # Errors
    /// Fails if there is no room for all of them, or if they cannot be written; none has been taken in then.
    pub(crate) fn take_in(
        &mut self,
        range: PageRange,
        mut read: impl FnMut(PageId, &mut [u8]),
    ) -> Result<u64, MemoryError> {
        let per_batch = (BATCH_BYTES / self.granule_bytes).max(1) as u64;
        let mut leavers: Vec<Leaver> = Vec::new();
        let mut written = 0;
        let mut first = range.first;
        while first < range.end() {
            let count = per_batch.min(range.end().0 - first.0);
            match self.write_batch(PageRange { first, count }, &mut read, &mut leavers) {
                Ok(bytes) => written += bytes,
                Err(error) => {
                    for Leaver { granule, sealed, is_unchanged } in leavers {
                        if is_unchanged {
                            self.back.insert(granule, sealed);
                        } else {
                            self.file.free_slot(sealed.slot);
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

    fn write_batch(
        &mut self,
        batch: PageRange,
        read: &mut impl FnMut(PageId, &mut [u8]),
        leavers: &mut Vec<Leaver>,
    ) -> Result<u64, MemoryError> {
        let unit = self.granule_bytes;
        let mut buffer = core::mem::take(&mut self.buffer);
        buffer.resize(batch.count as usize * unit, 0);
        let mut slots = Vec::new();
        for granule in batch.iter() {
            let room = &mut buffer[slots.len() * unit..][..unit];
            read(granule, room);
            let before = self.back.remove(&granule);
            if room.iter().all(|byte| *byte == 0) {
                self.free_slot_of(before);
                continue;
            }
            if let Some(sealed) = before {
                if self.seal.seal(sealed.count, &granule.0.to_be_bytes(), room) == sealed.tag {
                    leavers.push(Leaver { granule, sealed, is_unchanged: true });
                    continue;
                }
                read(granule, room);
            }
            let Some(slot) = before.map(|sealed| sealed.slot).or_else(|| self.take_slot()) else {
                self.buffer = buffer;
                return Err(self.file.full());
            };
            let count = self.count;
            self.count += 1;
            let tag = self.seal.seal(count, &granule.0.to_be_bytes(), room);
            leavers.push(Leaver { granule, sealed: Sealed { slot, count, tag }, is_unchanged: false });
            slots.push(slot);
        }
        let bytes = slots.len() * unit;
        let written = self.file.write(&slots, &buffer[..bytes]);
        self.buffer = buffer;
        written.map(|()| bytes as u64)
    }

    /// Takes a free slot, or that of a granule that has come back. Granules mostly leave in the order of
    /// their places, so the last one keeps its slot the longest without need.
    fn take_slot(&mut self) -> Option<u32> {
        self.file.take_slot().or_else(|| Some(self.back.pop_last()?.1.slot))
    }

    fn free_slot_of(&mut self, granule: Option<Sealed>) {
        if let Some(sealed) = granule {
            self.file.free_slot(sealed.slot);
        }
    }

    /// Returns granules that are out, given in order. Passes `place` runs of them; those that it has accepted
    /// are not out any more. Returns the number of bytes read.
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
            before.0 + 1 == after.0 && self.out[before].slot + 1 == self.out[after].slot
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
            let out = &mut self.out;
            self.back.extend(run.iter().filter_map(|granule| Some((*granule, out.remove(granule)?))));
            bytes += buffer.len() as u64;
        }
        self.buffer = buffer;
        outcome.map(|()| bytes)
    }

    /// Reads and opens granules in consecutive slots.
    fn read_run(&self, run: &[PageId], buffer: &mut [u8]) -> Result<(), MemoryError> {
        self.file.read(self.out[&run[0]].slot, buffer, run[0])?;
        for (granule, bytes) in run.iter().zip(buffer.chunks_mut(self.granule_bytes)) {
            let Sealed { count, tag, .. } = &self.out[granule];
            if !self.seal.open(*count, &granule.0.to_be_bytes(), bytes, tag) {
                let directory = self.file.directory.clone();
                return Err(MemoryError::SwapCorrupted { directory, page: *granule });
            }
        }
        Ok(())
    }

    /// Forgets the granules of `range` and frees their slots.
    pub(crate) fn discard(&mut self, range: PageRange) {
        for granule in self.granules_in(range) {
            let sealed = self.out.remove(&granule);
            self.free_slot_of(sealed);
        }
        let back: Vec<PageId> =
            self.back.range(range.first..range.end()).map(|(granule, _)| *granule).collect();
        for granule in back {
            let sealed = self.back.remove(&granule);
            self.free_slot_of(sealed);
        }
    }
}
