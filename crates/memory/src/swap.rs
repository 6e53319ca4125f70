//! The swap store: sealed granules that were swapped out of memory.
//!
//! Their content is sealed. The key exists only in this process's memory. Each granule is sealed with a count
//! that is never used twice and bound to its place in the region, and the count and the tag of the latest
//! version stay in memory. So a granule that was damaged, exchanged with another or reset to an earlier
//! version is detected.
//!
//! A granule that has come back keeps its slot. If it leaves again unchanged, nothing is written. That it is
//! unchanged is seen by its tag: it is sealed again with the count of the version in the slot. What that
//! yields is never stored, since two contents that were sealed with one count would betray each other. A
//! compressed granule has a second tag for that, of what it was before, under a place of its own. So it need
//! not be compressed again.
//! Slots of granules that are in memory are given to others when no slot is free.
//!
//! Granules in memory may be saved ahead: they get a place as if they left, and stay. If they leave later as
//! they were, nothing is written, by the same comparison.
//!
//! No lock is held while bytes are sealed, read, written, lent or fetched. Granules that a thread works on
//! are *in transit* meanwhile: other threads that need them wait, and all others go on.
//!
//! Granules go to memory that other nodes lend, as long as there is any, and otherwise to the file. Those
//! that a lender returns and no other one takes go to the file, too. Where there is such memory they are
//! compressed first, if that pays (`packing.rs`). The seal shows damage before anything is decompressed.
//!
//! Memory use: about 80 bytes for each granule that has a slot, and as much as a `BTreeSet` takes for slots
//! that were used and are free.

mod book;
mod file;
mod lent;

#[cfg(test)]
mod lent_tests;
mod packing;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod transit_tests;

use core::sync::atomic::{AtomicU64, Ordering};
use std::{
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use hiroba_base::{PageId, PageRange};

use self::book::{Book, Place, Sealed, Transit};
pub use self::file::check_swap_directory;
use self::file::{SlotFile, Slots};
pub use self::lent::{LenderLost, Lenders, SealedGranule};
use self::packing::Packing;
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

/// A granule whose content is in its place.
#[derive(Clone, Copy, Debug)]
struct Saved {
    granule: PageId,
    sealed: Sealed,
    /// True if this version was there already.
    is_unchanged: bool,
}

/// A granule that must be written, with its tag and the place of its earlier version.
#[derive(Clone, Copy, Debug)]
struct Changed {
    granule: PageId,
    count: u64,
    tag: [u8; SWAP_TAG_BYTES],
    unpacked_tag: Option<[u8; SWAP_TAG_BYTES]>,
    /// Its length, which is less than a granule's if it is compressed.
    bytes: u32,
    before: Option<Place>,
}

impl Changed {
    fn saved_at(&self, place: Place) -> Saved {
        let Changed { granule, count, tag, unpacked_tag, bytes, .. } = *self;
        let sealed = Sealed { place, count, tag, unpacked_tag, bytes };
        Saved { granule, sealed, is_unchanged: false }
    }
}

/// The granules that are out, and where they are.
pub(crate) struct SwapStore {
    file: Option<SlotFile>,
    lenders: Option<Arc<dyn Lenders>>,
    seal: Box<dyn SwapSeal>,
    granule_bytes: usize,
    book: Mutex<Book>,
    /// Signalled when a transit has ended.
    arrivals: Condvar,
    /// Number of granules that are out; changes under the book's lock.
    out_count: AtomicU64,
}

impl core::fmt::Debug for SwapStore {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SwapStore")
            .field("directory", &self.file.as_ref().map(|file| &file.directory))
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
        let book = Book::new(file.as_ref().map(Slots::of), lenders.clone());
        let (book, arrivals, out_count) = (Mutex::new(book), Condvar::new(), AtomicU64::new(0));
        SwapStore { file, lenders, seal, granule_bytes, book, arrivals, out_count }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no granule of `range` is in transit.
    fn book_without_transit(&self, range: PageRange) -> MutexGuard<'_, Book> {
        let is_awaited = |book: &mut Book| book.transits.iter().any(|transit| overlap(transit.range, range));
        self.arrivals.wait_while(self.book(), is_awaited).unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the transit of a range. All threads that wait look again, because it is rare that any does.
    fn end_transit(&self, book: &mut Book, range: PageRange) {
        book.transits.retain(|transit| transit.range != range);
        self.arrivals.notify_all();
    }

    /// Returns true if no granule is out. A thread that takes it for granted has the lock under which
    /// granules leave.
    pub(crate) fn is_empty(&self) -> bool {
        // SYNC POINT: pairs with the release in `count_out`, for threads without that lock.
        self.out_count.load(Ordering::Acquire) == 0
    }

    fn count_out(&self, book: &Book) {
        self.out_count.store(book.out.len() as u64, Ordering::Release);
    }

    /// Returns true if any granule of `range` is out.
    pub(crate) fn has_any_of(&self, range: PageRange) -> bool {
        self.book().has_any_of(range)
    }

    /// Calls `action` under the lock under which granules go out, and returns true; if any granule of `range`
    /// is out, returns false instead.
    pub(crate) fn unless_out(
        &self,
        range: PageRange,
        action: impl FnOnce() -> Result<(), MemoryError>,
    ) -> Result<bool, MemoryError> {
        let book = self.book();
        if book.has_any_of(range) { Ok(false) } else { action().map(|()| true) }
    }

    /// Takes in a range of granules, whose contents `read` returns, the same whenever it is asked. Granules
    /// of zeros need no place. Once all are in their places, `leave` gives their frames up; only then are
    /// they out. Returns the number of bytes written to the file.
    ///
    /// # Errors
    /// Fails if there is no room for all of them, if they cannot be written, or if `leave` fails; none has
    /// been taken in then.
    pub(crate) fn take_in(
        &self,
        range: PageRange,
        mut read: impl FnMut(PageId, &mut [u8]),
        leave: impl FnOnce() -> Result<(), MemoryError>,
    ) -> Result<u64, MemoryError> {
        let mut book = self.book_without_transit(range);
        self.house_returned(&mut book);
        // Sealing costs more than asking.
        if !self.may_save() {
            return Err(MemoryError::NoLender);
        }
        book.transits.push(Transit { range, stay: false });
        let mut buffer = book.take_buffer();
        drop(book);
        let mut saved: Vec<Saved> = Vec::new();
        let outcome = self.batches(range).try_fold(0, |written, batch| {
            self.save(batch, &mut read, &mut buffer, &mut saved, true).map(|bytes| written + bytes)
        });
        let mut book = self.book();
        book.keep_buffer(buffer);
        if outcome.is_ok() {
            // First: a granule without a frame that is not out is zeros.
            book.out.extend(saved.iter().map(|saved| (saved.granule, saved.sealed)));
            self.count_out(&book);
        }
        let outcome = outcome.and_then(|written| leave().map(|()| written));
        if outcome.is_err() {
            saved.iter().for_each(|saved| _ = book.out.remove(&saved.granule));
            self.count_out(&book);
            undo(&mut book, saved);
        }
        self.end_transit(&mut book, range);
        outcome
    }

    /// Saves granules that stay in memory, so that nothing need be written when they leave. `read` fills its
    /// buffer with the contents of adjacent ones; the program may change them meanwhile. Granules on which
    /// another thread works are left out. Returns how many were written or lent, and the number of bytes
    /// written to the file.
    ///
    /// # Errors
    /// Fails if they cannot be written. Some may have been saved, and none has changed.
    pub(crate) fn save_ahead(
        &self,
        range: PageRange,
        mut read: impl FnMut(PageRange, &mut [u8]) -> bool,
    ) -> Result<(u64, u64), MemoryError> {
        let (mut count, mut bytes) = (0, 0);
        for batch in self.batches(range) {
            let mut book = self.book();
            let is_free = |granule: &PageId| !book.out.contains_key(granule) && !book.is_in_transit(*granule);
            let free: Vec<PageId> = batch.iter().filter(is_free).collect();
            let runs: Vec<PageRange> = free.chunk_by(|a, b| a.0 + 1 == b.0).map(range_of).collect();
            book.transits.extend(runs.iter().map(|range| Transit { range: *range, stay: true }));
            let mut buffer = book.take_buffer();
            drop(book);
            let mut outcome = Ok(());
            for run in runs {
                let mut saved = Vec::new();
                let written = if outcome.is_ok() && self.may_save() {
                    self.save_run(run, &mut read, &mut buffer, &mut saved)
                } else {
                    Ok(0)
                };
                let mut book = self.book();
                match written {
                    Ok(written) => {
                        bytes += written;
                        count += saved.iter().filter(|saved| !saved.is_unchanged).count() as u64;
                        saved.into_iter().for_each(|saved| book.note_back(saved.granule, saved.sealed));
                    }
                    Err(error) => {
                        undo(&mut book, saved);
                        outcome = Err(error);
                    }
                }
                self.end_transit(&mut book, run);
            }
            self.book().keep_buffer(buffer);
            outcome?;
        }
        Ok((count, bytes))
    }

    fn save_run(
        &self,
        run: PageRange,
        read: &mut impl FnMut(PageRange, &mut [u8]) -> bool,
        buffer: &mut Vec<u8>,
        saved: &mut Vec<Saved>,
    ) -> Result<u64, MemoryError> {
        let unit = self.granule_bytes;
        // A copy, because the program may change what is sealed and compared more than once.
        let mut plain = vec![0; run.count as usize * unit];
        if !read(run, &mut plain) {
            return Ok(0);
        }
        let mut copy = |granule: PageId, room: &mut [u8]| {
            room.copy_from_slice(&plain[(granule.0 - run.first.0) as usize * unit..][..unit]);
        };
        self.save(run, &mut copy, buffer, saved, false)
    }

    /// Returns true if granules may leave for a file.
    pub(crate) fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Returns false if no granule can be taken in at the moment.
    pub(crate) fn may_save(&self) -> bool {
        self.file.is_some() || self.may_lend()
    }

    fn may_lend(&self) -> bool {
        self.lenders.as_ref().is_some_and(|lenders| lenders.may_lend())
    }

    /// Iterates over parts of a range that are saved together.
    fn batches(&self, range: PageRange) -> impl Iterator<Item = PageRange> + use<> {
        let per_batch = (BATCH_BYTES / self.granule_bytes).max(1) as u64;
        let starts = (range.first.0..range.end().0).step_by(per_batch as usize);
        starts
            .map(move |first| PageRange { first: PageId(first), count: per_batch.min(range.end().0 - first) })
    }

    /// Puts the contents of granules in transit into their places. Returns the number of bytes written.
    fn save(
        &self,
        batch: PageRange,
        read: &mut impl FnMut(PageId, &mut [u8]),
        buffer: &mut Vec<u8>,
        saved: &mut Vec<Saved>,
        may_displace: bool,
    ) -> Result<u64, MemoryError> {
        let unit = self.granule_bytes;
        buffer.resize(batch.count as usize * unit, 0);
        let (mut count, befores) = {
            let mut book = self.book();
            let befores: Vec<_> = batch.iter().map(|granule| book.back.remove(&granule)).collect();
            (book.take_counts(batch.count), befores)
        };
        let (packs, mut packing) = (self.may_lend(), Packing::default());
        let mut changed: Vec<Changed> = Vec::new();
        for (granule, before) in batch.iter().zip(befores) {
            let room = &mut buffer[changed.len() * unit..][..unit];
            read(granule, room);
            if room.iter().all(|byte| *byte == 0) {
                before.iter().for_each(|sealed| self.book().leave_place(granule, sealed.place));
                continue;
            }
            let name = granule.0.to_be_bytes();
            if let Some(sealed) = before {
                let is_same = match sealed.unpacked_tag {
                    None => self.seal.seal(sealed.count, &name, room) == sealed.tag,
                    Some(tag) => self.seal.seal(sealed.count, &unpacked(granule), room) == tag,
                };
                if is_same && self.is_in_place(granule, sealed) {
                    saved.push(Saved { granule, sealed, is_unchanged: true });
                    continue;
                }
                read(granule, room);
            }
            let (mut bytes, mut unpacked_tag) = (unit, None);
            if packs && let Some(packed) = packing.pack(room) {
                bytes = packed.len();
                unpacked_tag = Some(self.seal.seal(count, &unpacked(granule), room));
                room[..bytes].copy_from_slice(packed);
                room[bytes..].fill(0);
            }
            let tag = self.seal.seal(count, &name, &mut room[..bytes]);
            let before = before.map(|sealed| sealed.place);
            changed.push(Changed { granule, count, tag, unpacked_tag, bytes: bytes as u32, before });
            count += 1;
        }
        let lent = self.lend(&changed, buffer, saved);
        let rest = &buffer[lent * unit..changed.len() * unit];
        self.write(&changed[lent..], rest, saved, may_displace)
    }

    /// Lends granules. Returns how many were lent, from the first on.
    fn lend(&self, changed: &[Changed], bytes: &[u8], saved: &mut Vec<Saved>) -> usize {
        let Some(lenders) = self.lenders.as_ref().filter(|_| !changed.is_empty()) else { return 0 };
        let sealed: Vec<SealedGranule<'_>> = changed
            .iter()
            .zip(bytes.chunks(self.granule_bytes))
            .map(|(Changed { granule, count, bytes, .. }, room)| SealedGranule {
                granule: *granule,
                stamp: *count,
                bytes: &room[..*bytes as usize],
            })
            .collect();
        let lent = lenders.lend(&sealed);
        for changed in &changed[..lent] {
            if let Some(place @ Place::File(_)) = changed.before {
                self.book().leave_place(changed.granule, place);
            }
            saved.push(changed.saved_at(Place::Lent));
        }
        lent
    }

    /// Writes granules to the file, to the slots of their earlier versions if they have any. Returns the
    /// number of bytes.
    fn write(
        &self,
        changed: &[Changed],
        bytes: &[u8],
        saved: &mut Vec<Saved>,
        may_displace: bool,
    ) -> Result<u64, MemoryError> {
        if changed.is_empty() {
            return Ok(0);
        }
        let mut slots = Vec::with_capacity(changed.len());
        let mut book = self.book();
        for (at, version) in changed.iter().enumerate() {
            if let Some(Place::Lent) = version.before {
                book.leave_place(version.granule, Place::Lent);
            }
            let slot = match version.before {
                Some(Place::File(slot)) => Some(slot),
                _ => book.take_slot(may_displace),
            };
            let Some(slot) = slot else {
                for Changed { granule, before, .. } in &changed[at + 1..] {
                    before.iter().for_each(|place| book.leave_place(*granule, *place));
                }
                return Err(self.file.as_ref().map_or(MemoryError::NoLender, SlotFile::full));
            };
            saved.push(version.saved_at(Place::File(slot)));
            slots.push(slot);
        }
        drop(book);
        let file = self.file.as_ref().ok_or(MemoryError::NoLender)?;
        file.write(&slots, bytes).map(|()| bytes.len() as u64)
    }

    /// Writes granules that were returned, and have found no other lender, to the file. What has no room
    /// there, or is being fetched, stays as it is.
    fn house_returned(&self, book: &mut Book) {
        while let Some((granule, count, mut bytes)) =
            self.lenders.as_ref().and_then(|lenders| lenders.homeless())
        {
            if book.is_in_transit(granule) {
                return;
            }
            let is_known = |sealed: &&mut Sealed| (sealed.place, sealed.count) == (Place::Lent, count);
            if book.out.get_mut(&granule).filter(is_known).is_some() {
                let Some(slot) = book.take_slot(true) else { return };
                let file = self.file.as_ref().expect("it has given a slot");
                bytes.resize(self.granule_bytes, 0);
                if file.write(&[slot], &bytes).is_err() {
                    book.leave_place(granule, Place::File(slot));
                    return;
                }
                let sealed = book.out.get_mut(&granule).expect("it is out");
                sealed.place = Place::File(slot);
            }
            book.leave_place(granule, Place::Lent);
        }
    }

    /// Returns true if the version of a granule that is in memory is still in its place. From then on it
    /// stays there.
    fn is_in_place(&self, granule: PageId, sealed: Sealed) -> bool {
        match sealed.place {
            Place::File(_) => true,
            Place::Lent => self.lenders.as_ref().is_some_and(|lenders| lenders.keep(granule, sealed.count)),
        }
    }

    /// Returns the granules of `range` that are out. Passes `place` runs of them; those that it has accepted
    /// are not out any more, also those that another thread was bringing in. Returns the number of bytes read
    /// from the file.
    ///
    /// # Errors
    /// Fails if they cannot be read, if they are not what was written, or if `place` fails.
    pub(crate) fn hand_back(
        &self,
        range: PageRange,
        mut place: impl FnMut(PageRange, &[u8]) -> Result<(), MemoryError>,
    ) -> Result<u64, MemoryError> {
        let mut bytes = 0;
        let mut book = self.book();
        loop {
            let Some((run, versions)) = self.next_run(&book, range) else {
                let is_awaited = |transit: &Transit| !transit.stay && overlap(transit.range, range);
                if !book.transits.iter().any(is_awaited) {
                    return Ok(bytes);
                }
                book = self.arrivals.wait(book).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            book.transits.push(Transit { range: run, stay: false });
            let mut buffer = book.take_buffer();
            let next =
                self.next_run(&book, PageRange { first: run.end(), count: range.end().0 - run.end().0 });
            drop(book);
            next.into_iter().for_each(|(run, versions)| self.request_run(run, &versions));
            buffer.resize(versions.len() * self.granule_bytes, 0);
            let outcome = self.read_run(run, &versions, &mut buffer);
            book = self.book();
            // Under the lock: who sees that they are not out finds their frames.
            let outcome = outcome.and_then(|()| place(run, &buffer));
            if outcome.is_ok() {
                for (granule, sealed) in run.iter().zip(versions) {
                    book.out.remove(&granule);
                    bytes += if sealed.place == Place::Lent { 0 } else { self.granule_bytes as u64 };
                    book.note_back(granule, sealed);
                }
                self.count_out(&book);
            }
            book.keep_buffer(buffer);
            self.end_transit(&mut book, run);
            outcome?;
        }
    }

    /// Requests from lenders what of `range` will be handed back first. For a thread that will soon need it,
    /// and has something else to do until then.
    pub(crate) fn request(&self, range: PageRange) {
        let first = self.next_run(&self.book(), range);
        first.into_iter().for_each(|(run, versions)| self.request_run(run, &versions));
    }

    fn request_run(&self, run: PageRange, versions: &[Sealed]) {
        if let (Place::Lent, Some(lenders)) = (versions[0].place, &self.lenders) {
            lenders.request(&names(run, versions));
        }
    }

    /// Returns the first granules of `range` that are out, that no other thread is bringing in, and that can
    /// be read together, with the versions that are out.
    fn next_run(&self, book: &Book, range: PageRange) -> Option<(PageRange, Vec<Sealed>)> {
        let granules = book.granules_in(range);
        let mut rest = granules.iter().skip_while(|granule| book.is_in_transit(**granule));
        let first = *rest.next()?;
        let mut versions = vec![book.out[&first]];
        for granule in rest.take((BATCH_BYTES / self.granule_bytes).max(1) - 1) {
            let (before, version) = (versions[versions.len() - 1], book.out[granule]);
            let follows = granule.0 == first.0 + versions.len() as u64
                && before.place.is_followed_by(version.place)
                && !book.is_in_transit(*granule);
            if !follows {
                break;
            }
            versions.push(version);
        }
        Some((PageRange { first, count: versions.len() as u64 }, versions))
    }

    /// Reads and opens granules whose places follow each other.
    fn read_run(&self, run: PageRange, versions: &[Sealed], buffer: &mut [u8]) -> Result<(), MemoryError> {
        let place = versions[0].place;
        match (place, &self.file, &self.lenders) {
            (Place::File(slot), Some(file), _) => file.read(slot, buffer, run.first)?,
            (Place::Lent, _, Some(lenders)) => {
                lenders
                    .fetch(&names(run, versions), buffer)
                    .map_err(|lost| MemoryError::LenderLost { page: lost.granule, lender: lost.lender })?;
            }
            _ => unreachable!("granules are where there was a place for them"),
        }
        let pieces = buffer.chunks_mut(self.granule_bytes);
        let mut packing = Packing::default();
        for ((granule, sealed), room) in run.iter().zip(versions).zip(pieces) {
            let (bytes, name) = (sealed.bytes as usize, granule.0.to_be_bytes());
            let is_whole = self.seal.open(sealed.count, &name, &mut room[..bytes], &sealed.tag)
                && packing.unpack(room, bytes);
            if !is_whole {
                return Err(match (place, &self.file) {
                    (Place::File(_), Some(file)) => {
                        MemoryError::SwapCorrupted { directory: file.directory.clone(), page: granule }
                    }
                    _ => MemoryError::LentCorrupted { page: granule },
                });
            }
        }
        Ok(())
    }

    /// Forgets the granules of `range` and gives their places up.
    pub(crate) fn discard(&self, range: PageRange) {
        let mut book = self.book_without_transit(range);
        book.discard(range);
        self.count_out(&book);
    }
}

/// Takes back what was saved of granules that do not leave.
fn undo(book: &mut Book, saved: Vec<Saved>) {
    for Saved { granule, sealed, is_unchanged } in saved {
        if is_unchanged {
            book.note_back(granule, sealed);
        } else {
            book.leave_place(granule, sealed.place);
        }
    }
}

/// Returns the place with which a granule is sealed that is compressed in its true place. Nothing that is
/// sealed so is stored.
fn unpacked(granule: PageId) -> [u8; 9] {
    let mut place = [1; 9];
    place[..8].copy_from_slice(&granule.0.to_be_bytes());
    place
}

/// Returns the names of versions that lenders have.
fn names(run: PageRange, versions: &[Sealed]) -> Vec<(PageId, u64)> {
    run.iter().zip(versions).map(|(granule, sealed)| (granule, sealed.count)).collect()
}

fn overlap(one: PageRange, other: PageRange) -> bool {
    one.first < other.end() && other.first < one.end()
}

fn range_of(run: &[PageId]) -> PageRange {
    PageRange { first: run[0], count: run.len() as u64 }
}
