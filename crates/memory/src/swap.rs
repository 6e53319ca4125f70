//! The swap file: sealed granules that were swapped out of memory.
//!
//! The file has no name, so it disappears with the process however that ends, and no other process can open
//! it. Its content is sealed. The key exists only in this process's memory. Each granule is sealed with a
//! count that is never used twice and bound to its place in the region, and the count and the tag of the
//! latest version stay in memory. So a granule that was damaged, exchanged with another or reset to an
//! earlier version is detected.
//!
//! Memory use: about 60 bytes for each granule that is out, and as much as a `BTreeSet` takes for slots that
//! were used and are free.

use std::{
    collections::BTreeSet,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use hiroba_base::{PageId, PageRange};
use rustc_hash::FxHashMap;
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, open, openat, unlinkat},
    io::Errno,
    process::{Resource, getrlimit},
};

use crate::MemoryError;

/// The number of bytes that authentication adds to a granule. They stay in memory.
pub const SWAP_TAG_BYTES: usize = 16;

/// Number of bytes that are sealed at a time and written with one call per run of slots.
const BATCH_BYTES: usize = 256 << 10;

/// Seals granules that leave memory, and opens them when they come back.
pub trait SwapSeal: Send + Sync {
    /// Seals `bytes` in place, together with `place`, which is not encrypted. No count is used twice.
    fn seal(&self, count: u64, place: &[u8], bytes: &mut [u8]) -> [u8; SWAP_TAG_BYTES];

    /// Opens in place what [`seal`](Self::seal) sealed with this count and place. Returns false if the bytes
    /// are anything else; `bytes` are worthless then.
    fn open(&self, count: u64, place: &[u8], bytes: &mut [u8], tag: &[u8; SWAP_TAG_BYTES]) -> bool;
}

/// The storage of sealed bytes.
trait Store: Send + Sync {
    /// Writes some of the bytes. Returns how many.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize, Errno>;

    /// Reads some of the bytes. Returns how many.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize, Errno>;
}

impl Store for OwnedFd {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
        rustix::io::pwrite(self, bytes, offset)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize, Errno> {
        rustix::io::pread(self, bytes, offset)
    }
}

/// A granule that is out.
#[derive(Clone, Copy, Debug)]
struct Sealed {
    slot: u32,
    count: u64,
    tag: [u8; SWAP_TAG_BYTES],
}

/// The file, and the use of its slots.
pub(crate) struct SwapFile {
    store: Box<dyn Store>,
    seal: Box<dyn SwapSeal>,
    /// As the user named it.
    directory: PathBuf,
    granule_bytes: usize,
    slots_max: u32,
    /// The first slot that was never used.
    fresh: u32,
    free: BTreeSet<u32>,
    out: FxHashMap<PageId, Sealed>,
    /// The count of the next granule that is sealed.
    count: u64,
    buffer: Vec<u8>,
}

impl core::fmt::Debug for SwapFile {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let out = self.out.len();
        f.debug_struct("SwapFile")
            .field("directory", &self.directory)
            .field("out", &out)
            .finish_non_exhaustive()
    }
}

impl SwapFile {
    /// Makes a nameless file in `directory` with a maximum length of `bytes_max`.
    pub(crate) fn open(
        directory: &Path,
        bytes_max: Option<u64>,
        granule_bytes: usize,
        seal: Box<dyn SwapSeal>,
    ) -> Result<SwapFile, MemoryError> {
        let store = Box::new(nameless_file(directory)?);
        // The kernel ends a process that writes beyond this.
        let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        let bytes_max = bytes_max.unwrap_or(u64::MAX).min(limit);
        Ok(SwapFile::over(store, directory, bytes_max, granule_bytes, seal))
    }

    fn over(
        store: Box<dyn Store>,
        directory: &Path,
        bytes_max: u64,
        granule_bytes: usize,
        seal: Box<dyn SwapSeal>,
    ) -> SwapFile {
        SwapFile {
            store,
            seal,
            directory: directory.to_owned(),
            granule_bytes,
            slots_max: u32::try_from(bytes_max / granule_bytes as u64).unwrap_or(u32::MAX),
            fresh: 0,
            free: BTreeSet::new(),
            out: FxHashMap::default(),
            count: 0,
            buffer: Vec::new(),
        }
    }

    /// Returns the number of granules in the file.
    pub(crate) fn len(&self) -> usize {
        self.out.len()
    }

    /// Returns the granules of `range` that are in the file, in order.
    pub(crate) fn granules_in(&self, range: PageRange) -> Vec<PageId> {
        if range.count <= self.out.len() as u64 {
            return range.iter().filter(|granule| self.out.contains_key(granule)).collect();
        }
        let mut found: Vec<PageId> = self.out.keys().copied().filter(|at| range.contains(*at)).collect();
        found.sort_unstable();
        found
    }

    /// Returns true if any granule of `range` is in the file.
    pub(crate) fn has_any_of(&self, range: PageRange) -> bool {
        if range.count <= self.out.len() as u64 {
            return range.iter().any(|granule| self.out.contains_key(&granule));
        }
        self.out.keys().any(|granule| range.contains(*granule))
    }

    /// Takes in a range of granules, whose contents `read` returns. Granules of zeros need no slot. Returns
    /// the number of bytes written.
    ///
    /// # Errors
    /// Fails if there is no room for all of them, or if they cannot be written; none has been taken in then.
    pub(crate) fn take_in(
        &mut self,
        range: PageRange,
        mut read: impl FnMut(PageId, &mut [u8]),
    ) -> Result<u64, MemoryError> {
        let per_batch = (BATCH_BYTES / self.granule_bytes).max(1) as u64;
        let mut taken: Vec<(PageId, Sealed)> = Vec::new();
        let mut written = 0;
        let mut first = range.first;
        while first < range.end() {
            let count = per_batch.min(range.end().0 - first.0);
            match self.write_batch(PageRange { first, count }, &mut read, &mut taken) {
                Ok(bytes) => written += bytes,
                Err(error) => {
                    taken.iter().for_each(|(_, sealed)| _ = self.free.insert(sealed.slot));
                    return Err(error);
                }
            }
            first.0 += count;
        }
        self.out.extend(taken);
        Ok(written)
    }

    fn write_batch(
        &mut self,
        batch: PageRange,
        read: &mut impl FnMut(PageId, &mut [u8]),
        taken: &mut Vec<(PageId, Sealed)>,
    ) -> Result<u64, MemoryError> {
        let unit = self.granule_bytes;
        let mut buffer = core::mem::take(&mut self.buffer);
        buffer.resize(batch.count as usize * unit, 0);
        let before = taken.len();
        let mut end = 0;
        for granule in batch.iter() {
            let room = &mut buffer[end..end + unit];
            read(granule, room);
            if room.iter().all(|byte| *byte == 0) {
                continue;
            }
            let Some(slot) = self.take_slot() else {
                self.buffer = buffer;
                return Err(MemoryError::SwapFull {
                    directory: self.directory.clone(),
                    bytes: u64::from(self.slots_max) * unit as u64,
                });
            };
            let count = self.count;
            self.count += 1;
            let tag = self.seal.seal(count, &granule.0.to_be_bytes(), room);
            taken.push((granule, Sealed { slot, count, tag }));
            end += unit;
        }
        let written = self.write_runs(&taken[before..], &buffer[..end]);
        self.buffer = buffer;
        written.map(|()| end as u64)
    }

    /// Writes sealed granules, with one call for each run of consecutive slots.
    fn write_runs(&self, sealed: &[(PageId, Sealed)], bytes: &[u8]) -> Result<(), MemoryError> {
        let mut rest = bytes;
        for run in sealed.chunk_by(|before, after| before.1.slot + 1 == after.1.slot) {
            let (piece, behind) = rest.split_at(run.len() * self.granule_bytes);
            self.write_all(piece, self.offset_of(run[0].1.slot))
                .map_err(|errno| MemoryError::SwapWrite { directory: self.directory.clone(), errno })?;
            rest = behind;
        }
        Ok(())
    }

    fn write_all(&self, mut bytes: &[u8], mut offset: u64) -> Result<(), Errno> {
        while !bytes.is_empty() {
            match self.store.write_at(bytes, offset) {
                Ok(0) => return Err(Errno::NOSPC),
                Ok(written) => (bytes, offset) = (&bytes[written..], offset + written as u64),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Returns granules that are in the file, given in order. Passes `place` runs of them; those that it has
    /// accepted are removed from the file. Returns the number of bytes read.
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
            self.discard(run.iter().copied());
            bytes += buffer.len() as u64;
        }
        self.buffer = buffer;
        outcome.map(|()| bytes)
    }

    /// Reads and opens granules in consecutive slots.
    fn read_run(&self, run: &[PageId], buffer: &mut [u8]) -> Result<(), MemoryError> {
        let directory = || self.directory.clone();
        let first = self.out[&run[0]];
        self.read_all(buffer, self.offset_of(first.slot)).map_err(|errno| MemoryError::SwapRead {
            directory: directory(),
            page: run[0],
            errno,
        })?;
        for (granule, bytes) in run.iter().zip(buffer.chunks_mut(self.granule_bytes)) {
            let Sealed { count, tag, .. } = &self.out[granule];
            if !self.seal.open(*count, &granule.0.to_be_bytes(), bytes, tag) {
                return Err(MemoryError::SwapCorrupted { directory: directory(), page: *granule });
            }
        }
        Ok(())
    }

    fn read_all(&self, mut bytes: &mut [u8], mut offset: u64) -> Result<(), Errno> {
        while !bytes.is_empty() {
            match self.store.read_at(bytes, offset) {
                // The file was shortened.
                Ok(0) => return Err(Errno::IO),
                Ok(read) => (bytes, offset) = (&mut bytes[read..], offset + read as u64),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Forgets granules and frees their slots.
    pub(crate) fn discard(&mut self, granules: impl IntoIterator<Item = PageId>) {
        for granule in granules {
            if let Some(Sealed { slot, .. }) = self.out.remove(&granule) {
                self.free.insert(slot);
            }
        }
    }

    /// Takes the lowest free slot, so that granules that leave together have consecutive slots.
    fn take_slot(&mut self) -> Option<u32> {
        if let Some(slot) = self.free.pop_first() {
            return Some(slot);
        }
        let slot = self.fresh;
        (slot < self.slots_max).then(|| {
            self.fresh += 1;
            slot
        })
    }

    fn offset_of(&self, slot: u32) -> u64 {
        u64::from(slot) * self.granule_bytes as u64
    }
}

/// Makes a file in `directory` that has no name, and that only this user could have opened.
fn nameless_file(directory: &Path) -> Result<OwnedFd, MemoryError> {
    let refused = |errno| MemoryError::SwapDirectory { directory: directory.to_owned(), errno };
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    match openat(CWD, directory, flags | OFlags::TMPFILE | OFlags::EXCL, mode) {
        Ok(file) => return Ok(file),
        // The errors of file systems and kernels that do not support such files.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
        Err(errno) => return Err(refused(errno)),
    }
    let place = open(directory, OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY, Mode::empty())
        .map_err(refused)?;
    let process = rustix::process::getpid().as_raw_nonzero();
    for attempt in 0..100 {
        let name = format!(".hiroba-swap-{process}-{attempt}");
        match openat(&place, &name, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, mode) {
            Ok(file) => {
                unlinkat(&place, &name, AtFlags::empty()).map_err(refused)?;
                return Ok(file);
            }
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(refused(errno)),
        }
    }
    Err(refused(Errno::EXIST))
}

/// Checks that a swap file can be made in `directory`; leaves nothing there.
///
/// # Errors
/// Fails if it cannot be made.
pub fn check_swap_directory(directory: &Path) -> Result<(), MemoryError> {
    nameless_file(directory).map(drop)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    const UNIT: usize = 4096;

    /// A seal that encrypts poorly but detects every change: enough to test the file.
    pub(crate) struct Toy;

    impl Toy {
        fn mask(count: u64, place: &[u8]) -> u8 {
            place.iter().fold(count as u8 | 1, |mask, byte| mask.wrapping_mul(31) ^ byte)
        }

        fn tag(count: u64, place: &[u8], bytes: &[u8]) -> [u8; SWAP_TAG_BYTES] {
            let mut sum = u128::from(count) ^ (1 << 127);
            for byte in place.iter().chain(bytes) {
                sum = sum.wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b) ^ u128::from(*byte);
            }
            sum.to_be_bytes()
        }
    }

    impl SwapSeal for Toy {
        fn seal(&self, count: u64, place: &[u8], bytes: &mut [u8]) -> [u8; SWAP_TAG_BYTES] {
            bytes.iter_mut().for_each(|byte| *byte ^= Toy::mask(count, place));
            Toy::tag(count, place, bytes)
        }

        fn open(&self, count: u64, place: &[u8], bytes: &mut [u8], tag: &[u8; SWAP_TAG_BYTES]) -> bool {
            let is_whole = Toy::tag(count, place, bytes) == *tag;
            bytes.iter_mut().for_each(|byte| *byte ^= Toy::mask(count, place));
            is_whole
        }
    }

    /// A disk with faults.
    #[derive(Clone, Default)]
    pub(crate) struct Disk(pub(crate) Arc<Mutex<DiskState>>);

    #[derive(Default)]
    pub(crate) struct DiskState {
        pub(crate) bytes: Vec<u8>,
        /// Maximum number of bytes that a call moves.
        pub(crate) short: Option<usize>,
        /// The length beyond which writes fail, and the error.
        pub(crate) refuses: Option<(u64, Option<Errno>)>,
        pub(crate) refuses_reads: Option<Errno>,
        pub(crate) calls: usize,
    }

    impl Store for Disk {
        fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
            let mut disk = self.0.lock().unwrap();
            disk.calls += 1;
            if disk.short.is_some() && disk.calls.is_multiple_of(3) {
                return Err(Errno::INTR);
            }
            let mut count = bytes.len().min(disk.short.unwrap_or(usize::MAX));
            if let Some((end, errno)) = disk.refuses {
                count = count.min(end.saturating_sub(offset) as usize);
                if count == 0 {
                    return errno.map_or(Ok(0), Err);
                }
            }
            let end = offset as usize + count;
            if disk.bytes.len() < end {
                disk.bytes.resize(end, 0);
            }
            disk.bytes[offset as usize..end].copy_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize, Errno> {
            let mut disk = self.0.lock().unwrap();
            disk.calls += 1;
            if let Some(errno) = disk.refuses_reads {
                return Err(errno);
            }
            let here = disk.bytes.len().saturating_sub(offset as usize);
            let count = bytes.len().min(disk.short.unwrap_or(usize::MAX)).min(here);
            bytes[..count].copy_from_slice(&disk.bytes[offset as usize..][..count]);
            Ok(count)
        }
    }

    pub(crate) fn file_on(disk: &Disk, slots: u64) -> SwapFile {
        SwapFile::over(Box::new(disk.clone()), Path::new("/swap"), slots * UNIT as u64, UNIT, Box::new(Toy))
    }

    fn range(first: u64, count: u64) -> PageRange {
        PageRange { first: PageId(first), count }
    }

    fn content(granule: PageId, room: &mut [u8]) {
        room.iter_mut()
            .enumerate()
            .for_each(|(at, byte)| *byte = (granule.0 * 7 + at as u64 % 251) as u8 | 1);
    }

    fn come_back(file: &mut SwapFile, asked: PageRange) -> Result<u64, MemoryError> {
        let granules = file.granules_in(asked);
        file.hand_back(&granules, |run, bytes| {
            for (granule, bytes) in run.iter().zip(bytes.chunks(UNIT)) {
                let mut expected = [0; UNIT];
                content(granule, &mut expected);
                assert!(bytes == expected, "{granule} came back as something else");
            }
            Ok(())
        })
    }

    #[test]
    fn what_leaves_comes_back_and_its_slots_are_used_again() {
        let disk = Disk::default();
        let mut file = file_on(&disk, 200);
        assert_eq!(file.take_in(range(10, 200), content), Ok(200 * UNIT as u64));
        assert_eq!(file.len(), 200);
        let plain = |granule: u64| {
            let mut bytes = [0; UNIT];
            content(PageId(granule), &mut bytes);
            bytes
        };
        let disk_bytes = || disk.0.lock().unwrap().bytes.clone();
        assert!(disk_bytes().chunks(UNIT).all(|slot| (10..210).all(|granule| slot != plain(granule))));
        assert_eq!(come_back(&mut file, range(0, 60)), Ok(50 * UNIT as u64));
        assert_eq!(come_back(&mut file, range(0, 60)), Ok(0), "it is here no more");
        assert!(!file.has_any_of(range(0, 60)) && file.has_any_of(range(0, 61)) && file.len() == 150);
        // The range has more granules than are out.
        assert_eq!(file.granules_in(range(0, 1 << 40)).len(), 150);
        assert_eq!(file.take_in(range(1000, 50), content), Ok(50 * UNIT as u64));
        assert_eq!(disk_bytes().len(), 200 * UNIT, "free slots are taken first");
        file.discard(range(1000, 10).iter());
        assert_eq!(file.take_in(range(3000, 10), content), Ok(10 * UNIT as u64));
        assert_eq!(come_back(&mut file, range(0, 1 << 40)), Ok(200 * UNIT as u64));
        assert_eq!((file.len(), file.free.len()), (0, 200));
    }

    #[test]
    fn zeros_need_no_slot_and_neighbours_one_call() {
        let disk = Disk::default();
        let mut file = file_on(&disk, 64);
        let half = |granule: PageId, room: &mut [u8]| match granule.0 % 2 {
            0 => room.fill(0),
            _ => content(granule, room),
        };
        assert_eq!(file.take_in(range(0, 40), half), Ok(20 * UNIT as u64));
        assert_eq!((file.len(), disk.0.lock().unwrap().calls), (20, 1));
        assert_eq!(come_back(&mut file, range(0, 40)), Ok(20 * UNIT as u64));
    }

    #[test]
    fn a_full_file_takes_in_nothing_of_what_it_has_no_room_for() {
        let disk = Disk::default();
        let mut file = file_on(&disk, 100);
        file.take_in(range(0, 30), content).unwrap();
        let full = MemoryError::SwapFull { directory: "/swap".into(), bytes: 100 * UNIT as u64 };
        assert_eq!(file.take_in(range(100, 71), content), Err(full.clone()));
        assert!(full.to_string().contains("'/swap' is full (400 KiB): pages stay in memory"), "{full}");
        assert_eq!((file.len(), file.granules_in(range(100, 71)).len()), (30, 0));
        assert_eq!(file.take_in(range(100, 70), content), Ok(70 * UNIT as u64), "all slots are there still");
        assert_eq!(come_back(&mut file, range(0, 200)), Ok(100 * UNIT as u64));
    }

    #[test]
    fn a_disk_that_takes_bytes_in_pieces_or_none_loses_nothing() {
        let disk = Disk::default();
        let mut file = file_on(&disk, 1000);
        disk.0.lock().unwrap().short = Some(1000);
        file.take_in(range(0, 20), content).unwrap();
        for errno in [Some(Errno::NOSPC), Some(Errno::IO), None] {
            disk.0.lock().unwrap().refuses = Some((50 * UNIT as u64 + 100, errno));
            let errno = errno.unwrap_or(Errno::NOSPC);
            let refused = Err(MemoryError::SwapWrite { directory: "/swap".into(), errno });
            assert_eq!(file.take_in(range(100, 100), content), refused);
            assert_eq!((file.len(), file.granules_in(range(100, 100)).len()), (20, 0));
        }
        disk.0.lock().unwrap().refuses = None;
        file.take_in(range(100, 100), content).unwrap();
        assert_eq!(come_back(&mut file, range(0, 200)), Ok(120 * UNIT as u64));
        assert!(disk.0.lock().unwrap().bytes.len() <= 120 * UNIT, "slots of failures are free again");
    }

    #[test]
    fn what_is_not_what_was_written_is_noticed() {
        let corrupted =
            |page| Err(MemoryError::SwapCorrupted { directory: "/swap".into(), page: PageId(page) });
        let with = |spoil: &dyn Fn(&mut Vec<u8>)| {
            let disk = Disk::default();
            let mut file = file_on(&disk, 100);
            // Slot 0 contains granule 5 of an earlier version, then a later one.
            file.take_in(range(5, 3), content).unwrap();
            let earlier = disk.0.lock().unwrap().bytes[..UNIT].to_vec();
            come_back(&mut file, range(5, 1)).unwrap();
            file.take_in(range(5, 1), content).unwrap();
            let mut state = disk.0.lock().unwrap();
            state.bytes.splice(3 * UNIT.., earlier);
            spoil(&mut state.bytes);
            drop(state);
            (come_back(&mut file, range(0, 100)), file.len())
        };
        assert_eq!(with(&|_| {}).0, Ok(3 * UNIT as u64));
        assert_eq!(with(&|bytes| bytes[100] ^= 1), (corrupted(5), 3));
        assert_eq!(with(&|bytes| bytes[2 * UNIT + 9] ^= 128).0, corrupted(7));
        // Two exchanged pages, and one of an earlier version.
        assert_eq!(with(&|bytes| bytes[..2 * UNIT].rotate_left(UNIT)).0, corrupted(5));
        assert_eq!(with(&|bytes| bytes.copy_within(3 * UNIT.., 0)).0, corrupted(5));
        let lost = |errno| Err(MemoryError::SwapRead { directory: "/swap".into(), page: PageId(5), errno });
        assert_eq!(with(&|bytes| bytes.truncate(UNIT)).0, lost(Errno::IO));
        let disk = Disk::default();
        let mut file = file_on(&disk, 100);
        file.take_in(range(5, 1), content).unwrap();
        disk.0.lock().unwrap().refuses_reads = Some(Errno::NXIO);
        assert_eq!(come_back(&mut file, range(5, 1)), lost(Errno::NXIO));
    }

    #[test]
    fn a_frame_that_cannot_be_had_keeps_what_is_out() {
        let disk = Disk::default();
        let mut file = file_on(&disk, 100);
        file.take_in(range(0, 10), content).unwrap();
        let out_of_frames = MemoryError::OutOfFrames { range: range(0, 10), errno: Errno::NOMEM };
        let granules = file.granules_in(range(0, 10));
        assert_eq!(file.hand_back(&granules, |_, _| Err(out_of_frames.clone())), Err(out_of_frames.clone()));
        assert_eq!(come_back(&mut file, range(0, 10)), Ok(10 * UNIT as u64));
    }

    #[test]
    fn a_real_file_has_no_name_and_only_its_owner_may_read_it() {
        let directory = std::env::temp_dir().join(format!("hiroba-swap-test-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let names = || std::fs::read_dir(&directory).unwrap().count();
        let mut file = SwapFile::open(&directory, Some(100 * UNIT as u64), UNIT, Box::new(Toy)).unwrap();
        file.take_in(range(0, 100), content).unwrap();
        assert_eq!(names(), 0);
        let full = file.take_in(range(200, 1), content);
        assert!(matches!(full, Err(MemoryError::SwapFull { .. })), "{full:?}");
        assert_eq!(come_back(&mut file, range(0, 100)), Ok(100 * UNIT as u64));
        let stat = rustix::fs::fstat(nameless_file(&directory).unwrap()).unwrap();
        assert_eq!((stat.st_mode & 0o777, stat.st_nlink), (0o600, 0));
        assert_eq!((check_swap_directory(&directory), names()), (Ok(()), 0));
        std::fs::remove_dir(&directory).unwrap();
        let refused = check_swap_directory(&directory).unwrap_err();
        assert_eq!(refused, MemoryError::SwapDirectory { directory, errno: Errno::NOENT });
        let no_directory = check_swap_directory(Path::new("/dev/null")).unwrap_err();
        assert!(
            matches!(no_directory, MemoryError::SwapDirectory { errno: Errno::NOTDIR, .. }),
            "{no_directory:?}"
        );
    }
}
