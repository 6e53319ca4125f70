//! The swap file: slots of one granule each.
//!
//! The file has no name, so it disappears with the process however that ends, and no other process can open
//! it.

use std::{
    collections::BTreeSet,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use hiroba_base::PageId;
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, open, openat, unlinkat},
    io::Errno,
    process::{Resource, getrlimit},
};

use crate::MemoryError;

/// The storage of sealed bytes.
pub(super) trait Store: Send + Sync {
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

/// The file. Several threads may read and write different slots at once.
pub(super) struct SlotFile {
    store: Box<dyn Store>,
    /// As the user named it.
    pub(super) directory: PathBuf,
    granule_bytes: usize,
    slots_max: u32,
}

/// The use of a file's slots.
pub(super) struct Slots {
    slots_max: u32,
    /// The first slot that was never used.
    fresh: u32,
    free: BTreeSet<u32>,
}

impl Slots {
    pub(super) fn of(file: &SlotFile) -> Slots {
        Slots { slots_max: file.slots_max, fresh: 0, free: BTreeSet::new() }
    }

    /// Takes the lowest free slot, so that granules that leave together have consecutive slots.
    pub(super) fn take(&mut self) -> Option<u32> {
        if let Some(slot) = self.free.pop_first() {
            return Some(slot);
        }
        let slot = self.fresh;
        (slot < self.slots_max).then(|| {
            self.fresh += 1;
            slot
        })
    }

    /// Frees a slot that was taken.
    pub(super) fn free(&mut self, slot: u32) {
        self.free.insert(slot);
    }

    #[cfg(test)]
    pub(super) fn free_slots(&self) -> usize {
        self.free.len()
    }
}

impl SlotFile {
    /// Makes a nameless file in `directory` with a maximum length of `bytes_max`.
    pub(super) fn open(
        directory: &Path,
        bytes_max: Option<u64>,
        granule_bytes: usize,
    ) -> Result<SlotFile, MemoryError> {
        let store = Box::new(nameless_file(directory)?);
        // The kernel ends a process that writes beyond this.
        let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        let bytes_max = bytes_max.unwrap_or(u64::MAX).min(limit);
        Ok(SlotFile::over(store, directory, bytes_max, granule_bytes))
    }

    pub(super) fn over(
        store: Box<dyn Store>,
        directory: &Path,
        bytes_max: u64,
        granule_bytes: usize,
    ) -> SlotFile {
        SlotFile {
            store,
            directory: directory.to_owned(),
            granule_bytes,
            slots_max: u32::try_from(bytes_max / granule_bytes as u64).unwrap_or(u32::MAX),
        }
    }

    /// Returns the error for a file without a free slot.
    pub(super) fn full(&self) -> MemoryError {
        MemoryError::SwapFull {
            directory: self.directory.clone(),
            bytes: u64::from(self.slots_max) * self.granule_bytes as u64,
        }
    }

    /// Writes one granule after the other to these slots, with one call for each run of consecutive slots.
    ///
    /// # Errors
    /// Fails if they cannot be written; some may have been.
    pub(super) fn write(&self, slots: &[u32], bytes: &[u8]) -> Result<(), MemoryError> {
        let mut rest = bytes;
        for run in slots.chunk_by(|before, after| before + 1 == *after) {
            let (piece, behind) = rest.split_at(run.len() * self.granule_bytes);
            self.write_all(piece, self.offset_of(run[0]))
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

    /// Fills `bytes` from consecutive slots. `page` is the first granule there, for the error.
    ///
    /// # Errors
    /// Fails if they cannot be read.
    pub(super) fn read(&self, first: u32, bytes: &mut [u8], page: PageId) -> Result<(), MemoryError> {
        self.read_all(bytes, self.offset_of(first)).map_err(|errno| MemoryError::SwapRead {
            directory: self.directory.clone(),
            page,
            errno,
        })
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

    fn offset_of(&self, slot: u32) -> u64 {
        u64::from(slot) * self.granule_bytes as u64
    }
}

/// Makes a file in `directory` that has no name, and that only this user could have opened.
pub(super) fn nameless_file(directory: &Path) -> Result<OwnedFd, MemoryError> {
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
