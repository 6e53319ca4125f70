//! Pages that are *out*: their content is in the swap store, and they have no frame.
//!
//! Every access to a page's content first calls [`SharedMemory::bring_in`]. A page that has a frame is never
//! out, so code that has found a frame need not call it.

use core::sync::atomic::{AtomicU64, Ordering};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use hiroba_base::{PageId, PageRange};
use rustix::io::Errno;

use super::SharedMemory;
use crate::{
    MemoryError,
    swap::{Lenders, SwapSeal, SwapStore},
};

/// Parameters of the swap file.
pub struct SwapOptions<'a> {
    /// The directory on this node's disk for a swap file, and the maximum length of the file; without that
    /// the space on the disk is the limit.
    pub file: Option<(&'a Path, Option<u64>)>,
    /// Other nodes whose memory is used before the file.
    pub lenders: Option<Arc<dyn Lenders>>,
    /// Seals the pages.
    pub seal: Box<dyn SwapSeal>,
    /// Ends the process when a swapped-out page cannot be read.
    pub lost: fn(&MemoryError) -> !,
}

impl core::fmt::Debug for SwapOptions<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SwapOptions").field("file", &self.file).finish_non_exhaustive()
    }
}

/// Traffic between memory and the swap file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapTallies {
    /// Granules written to the file. Granules of zeros, and those that the file contains as they are, leave
    /// without being written.
    pub outs: u64,
    /// Granules read from the file.
    pub ins: u64,
    /// The bytes of both.
    pub bytes: u64,
    /// Granules that were brought in, from the file or from lenders, while other threads went on.
    pub apart: u64,
}

/// The swap file of a region.
pub(super) struct Swap {
    store: SwapStore,
    lost: fn(&MemoryError) -> !,
    /// Granules that got a frame since the last query.
    came: Mutex<Vec<PageRange>>,
    /// Number of granules that came without the core's lock.
    apart: AtomicU64,
    written_bytes: AtomicU64,
    read_bytes: AtomicU64,
}

impl core::fmt::Debug for Swap {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Swap").field("store", &self.store).finish_non_exhaustive()
    }
}

impl SharedMemory {
    /// Lets pages be swapped to a file in a directory, and to memory of other nodes
    /// ([`page_out`](Self::page_out)). From now on [`take_came`](Self::take_came) returns granules that got
    /// frames.
    ///
    /// # Errors
    /// Fails if no file can be made there.
    ///
    /// # Panics
    /// Panics if there is a swap file already.
    pub fn open_swap(&self, options: SwapOptions<'_>) -> Result<(), MemoryError> {
        let SwapOptions { file, lenders, seal, lost } = options;
        let store = SwapStore::open(file, lenders, self.granule().bytes(), seal)?;
        self.set_swap(store, lost);
        Ok(())
    }

    fn set_swap(&self, store: SwapStore, lost: fn(&MemoryError) -> !) {
        let swap = Swap {
            store,
            lost,
            came: Mutex::default(),
            apart: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
        };
        assert!(self.swap.set(swap).is_ok(), "a region has one swap file");
    }

    /// Swaps pages out: their content goes to the swap file, and their frames to the system. A later access
    /// brings them in.
    ///
    /// The program has no access to the pages, and no other thread accesses them meanwhile or has pages
    /// leave. Other threads may bring in others.
    ///
    /// # Errors
    /// Fails if the swap file is full or cannot be written; the pages that have not left are unchanged then.
    /// Also fails if the pages lie outside the region.
    ///
    /// # Panics
    /// Panics if there is no swap file.
    pub fn page_out(&self, range: PageRange) -> Result<(), MemoryError> {
        self.span(range)?;
        let swap = self.swap.get().expect("pages leave where there is a swap file");
        let unit = self.granule().bytes();
        for run in self.runs_with_frames(range) {
            let read = |granule: PageId, room: &mut [u8]| self.copy_out(granule.0 as usize * unit, room);
            let written = swap.store.take_in(run, read, || self.give_up_run(run))?;
            swap.written_bytes.fetch_add(written, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Saves the content of pages in memory, so that nothing need be written when they leave unchanged. Does
    /// nothing to them; the program may use them meanwhile. Returns the number of granules saved.
    ///
    /// # Errors
    /// Fails if the swap file is full or cannot be written, or if the pages lie outside the region.
    pub fn save_ahead(&self, range: PageRange) -> Result<u64, MemoryError> {
        self.span(range)?;
        let Some(swap) = self.swap.get() else { return Ok(0) };
        let mut saved = 0;
        for run in self.runs_with_frames(range) {
            let (count, written) = swap.store.save_ahead(run, |run, room| self.read_frames(run, room))?;
            swap.written_bytes.fetch_add(written, Ordering::Relaxed);
            saved += count;
        }
        Ok(saved)
    }

    /// Reads frames that may be given up meanwhile; they read as zeros then. A load through the view would
    /// make a new one. Returns false if they cannot be read.
    fn read_frames(&self, run: PageRange, room: &mut [u8]) -> bool {
        let start = run.first.0 as usize * self.granule().bytes();
        let mut done = 0;
        while done < room.len() {
            match rustix::io::pread(&self.memfd, &mut room[done..], (start + done) as u64) {
                Ok(0) => return false,
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Gives frames and content back to those granules of `range` that are out. For a thread that is about to
    /// need them, and does not have the lock under which pages leave, so that others need not wait for the
    /// disk. Calls `came` with what it has brought in.
    ///
    /// # Errors
    /// Fails if their content cannot be read or is not what was written, or if the machine has no memory
    /// left.
    pub fn bring_in_apart(
        &self,
        range: PageRange,
        mut came: impl FnMut(PageRange),
    ) -> Result<(), MemoryError> {
        self.bring_in_and(range, |run| {
            came(run);
            if let Some(swap) = self.swap.get() {
                swap.apart.fetch_add(run.count, Ordering::Relaxed);
            }
        })
    }

    /// Requests the first of those granules of `range` that other nodes keep, for a thread that will bring
    /// them in soon.
    pub fn request_ahead(&self, range: PageRange) {
        if let Some(swap) = self.swap_with_any() {
            swap.store.request(range);
        }
    }

    pub(super) fn bring_in(&self, range: PageRange) -> Result<(), MemoryError> {
        self.bring_in_and(range, |_| {})
    }

    fn bring_in_and(&self, range: PageRange, mut came: impl FnMut(PageRange)) -> Result<(), MemoryError> {
        let Some(swap) = self.swap_with_any() else { return Ok(()) };
        let unit = self.granule().bytes();
        let place = |run: PageRange, bytes: &[u8]| {
            came(run);
            self.make_frames_with(run, run.first.0 as usize * unit, bytes)
        };
        let read = swap.store.hand_back(range, place)?;
        swap.read_bytes.fetch_add(read, Ordering::Relaxed);
        Ok(())
    }

    /// Brings pages in where a failure cannot be reported to the caller: it ends the process.
    pub(super) fn bring_in_or_fail(&self, range: PageRange) {
        if let Err(error) = self.bring_in(range)
            && let Some(swap) = self.swap.get()
        {
            (swap.lost)(&error);
        }
    }

    /// Discards the swapped-out content of `range`.
    pub(super) fn discard(&self, range: PageRange) {
        // Granules that are in memory may have slots, too.
        let Some(swap) = self.swap.get() else { return };
        swap.store.discard(range);
    }

    /// Returns false if no page can leave at the moment: there is no swap file, and no other node has memory
    /// to spare.
    pub fn may_page_out(&self) -> bool {
        self.swap.get().is_some_and(|swap| swap.store.may_save())
    }

    /// Returns true if pages may leave for a file.
    pub fn has_swap_file(&self) -> bool {
        self.swap.get().is_some_and(|swap| swap.store.has_file())
    }

    /// Returns true if any page is out.
    pub fn is_any_out(&self) -> bool {
        self.swap_with_any().is_some()
    }

    /// Returns true if any granule of `range` is out.
    pub fn is_any_out_of(&self, range: PageRange) -> bool {
        self.swap_with_any().is_some_and(|swap| swap.store.has_any_of(range))
    }

    /// Calls `action` while no page can leave, and returns true; if any granule of `range` is out, returns
    /// false instead.
    pub(super) fn unless_out(
        &self,
        range: PageRange,
        action: impl FnOnce() -> Result<(), MemoryError>,
    ) -> Result<bool, MemoryError> {
        match self.swap.get() {
            Some(swap) => swap.store.unless_out(range, action),
            None => action().map(|()| true),
        }
    }

    /// Returns the swap file, unless it is empty.
    fn swap_with_any(&self) -> Option<&Swap> {
        self.swap.get().filter(|swap| !swap.store.is_empty())
    }

    /// Asserts that pages with a frame are not out.
    pub(super) fn debug_assert_is_in(&self, start: usize, bytes: usize) {
        if cfg!(debug_assertions) {
            let covered = self.granules_of(start, bytes);
            debug_assert!(
                !self.is_any_out_of(covered),
                "{covered:?}: what is out has no frame to be looked at"
            );
        }
    }

    /// Records that granules have got frames.
    pub(super) fn note_came(&self, run: PageRange) {
        let Some(swap) = self.swap.get() else { return };
        swap.came.lock().unwrap_or_else(PoisonError::into_inner).push(run);
    }

    /// Returns the granules that have got frames since the last call, if there is a swap file.
    pub fn take_came(&self) -> Vec<PageRange> {
        let Some(swap) = self.swap.get() else { return Vec::new() };
        core::mem::take(&mut *swap.came.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts memory that this node keeps for others, or for itself outside of frames: `bytes` is the new
    /// amount, `before` the old one.
    pub fn note_kept_bytes(&self, before: u64, bytes: u64) {
        self.account().change(before, bytes);
    }

    /// Returns the traffic between memory and the swap file.
    pub fn swap_tallies(&self) -> SwapTallies {
        let Some(swap) = self.swap.get() else { return SwapTallies::default() };
        // Relaxed: read by people.
        let written_bytes = swap.written_bytes.load(Ordering::Relaxed);
        let read_bytes = swap.read_bytes.load(Ordering::Relaxed);
        let granule_bytes = self.granule().bytes() as u64;
        SwapTallies {
            outs: written_bytes / granule_bytes,
            ins: read_bytes / granule_bytes,
            bytes: written_bytes + read_bytes,
            apart: swap.apart.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use hiroba_base::PageId;

    use super::*;
    use crate::Twins;
    use crate::memory::tests::small_memory;
    use crate::swap::tests::{Disk, file_on};

    const BYTES: usize = 4096;

    fn range(first: u64, count: u64) -> PageRange {
        PageRange { first: PageId(first), count }
    }

    fn lost(error: &MemoryError) -> ! {
        panic!("lost: {error}")
    }

    /// Makes a region of 64 granules, the first 32 of which contain their number, and a disk with `slots`
    /// slots.
    fn memory_on(disk: &Disk, slots: u64) -> Arc<SharedMemory> {
        let memory = small_memory(64);
        memory.set_swap(file_on(disk, slots), lost);
        memory.allocate(range(0, 64)).unwrap();
        (0..32).for_each(|page| memory.write(PageId(page), 0, &[page as u8 + 1; BYTES]).unwrap());
        memory.take_came();
        memory
    }

    fn blocks(memory: &SharedMemory) -> u64 {
        rustix::fs::fstat(&memory.memfd).unwrap().st_blocks as u64 * 512
    }

    #[test]
    fn pages_go_out_and_every_way_to_them_brings_them_in() {
        let disk = Disk::default();
        let memory = memory_on(&disk, 64);
        let mut twins = Twins::new(memory.clone());
        let read = |page: u64| {
            let mut bytes = [0; BYTES];
            memory.read(PageId(page), 0, &mut bytes);
            bytes
        };
        let all = [1, 2, 3, 4, 5, 6, 7, 8].map(|page: u64| [page as u8 + 1; BYTES]);
        type Touch<'a> = (&'a str, &'a dyn Fn(&mut Twins));
        let ways: &[Touch<'_>] = &[
            ("read", &|_| assert_eq!(read(1), [2; BYTES])),
            ("read of a part", &|_| {
                let mut bytes = [0; 8];
                memory.read(PageId(0), BYTES * 2 - 4, &mut bytes);
                assert_eq!(bytes, [2, 2, 2, 2, 3, 3, 3, 3]);
            }),
            ("append", &|_| {
                let mut room = Vec::new();
                memory.append(PageId(1), 0, 8 * BYTES, &mut room);
                assert!(room == all.concat());
            }),
            ("write of a part", &|_| memory.write(PageId(1), 0, &[2; 100]).unwrap()),
            ("write over several", &|_| memory.write(PageId(0), BYTES - 4, &[1, 1, 1, 1, 2, 2]).unwrap()),
            ("populate", &|_| memory.populate(range(0, 32)).unwrap()),
            ("atomic", &|_| {
                let word = memory.atomic_u64(PageId(1), 8).unwrap();
                assert_eq!(word.load(Ordering::Relaxed).to_ne_bytes(), [2; 8]);
            }),
            ("block", &|_| _ = memory.block_to_write(PageId(1), 0).unwrap()),
            ("twin", &|twins| {
                assert!(twins.make(PageId(1), BYTES));
                assert_eq!(twins.get(PageId(1)), Some(&[2; BYTES][..]));
            }),
            ("comparison", &|twins| assert!(!twins.differs(PageId(1)))),
            ("diff", &|twins| twins.collect(PageId(1), true, |_| panic!("nothing was changed"))),
            ("merge", &|twins| twins.merge(PageId(1), &[2; BYTES]).unwrap()),
        ];
        for (name, touch) in ways {
            memory.page_out(range(1, 8)).unwrap();
            assert_eq!((memory.frames(), blocks(&memory)), (24, 24 * 4096), "{name}: frames went back");
            assert!(memory.is_any_out_of(range(1, 1)) && memory.is_populated(range(1, 8)), "{name}");
            assert!(!memory.is_populated(range(40, 8)));
            touch(&mut twins);
            let still_out = memory.is_any_out_of(range(1, 1));
            // A merge does not access granules for which it has no change.
            assert_eq!(still_out, *name == "merge", "{name}");
            for page in 0..32 {
                assert_eq!(read(page), [page as u8 + 1; BYTES], "{name}: page {page}");
            }
            assert_eq!((memory.frames(), blocks(&memory)), (32, 32 * 4096), "{name}");
        }
        let tallies = memory.swap_tallies();
        // Nothing has changed them after they left for the first time.
        assert_eq!((tallies.outs, tallies.ins), (8, 8 * 12));
        assert_eq!(tallies.bytes, (8 + 8 * 12) * 4096);
    }

    #[test]
    fn a_page_that_another_thread_brings_in_is_used_when_its_bytes_are_there() {
        type Use = fn(&SharedMemory) -> bool;
        let reads = |memory: &SharedMemory| {
            let mut bytes = [0; BYTES];
            memory.read(PageId(1), 0, &mut bytes);
            bytes == [2; BYTES]
        };
        let uses: [Use; 5] = [
            reads,
            |memory| memory.is_populated(range(1, 1)),
            |memory| memory.populate(range(0, 4)) == Ok(()) && memory.frames() == 32,
            |memory| memory.atomic_u64(PageId(1), 8).unwrap().load(Ordering::Relaxed) != 0,
            |memory| memory.write(PageId(1), 0, &[2; 10]) == Ok(()) && memory.frames() == 32,
        ];
        for (at, is_right) in uses.into_iter().enumerate() {
            let disk = Disk::default();
            let memory = memory_on(&disk, 64);
            memory.page_out(range(0, 4)).unwrap();
            disk.hold(0);
            std::thread::scope(|scope| {
                let coming = scope.spawn(|| memory.bring_in_apart(range(0, 4), |_| {}));
                disk.await_held();
                scope.spawn(|| disk.let_go());
                assert!(is_right(&memory), "use {at}");
                assert_eq!(coming.join().unwrap(), Ok(()));
            });
            assert!(reads(&memory), "use {at}");
            assert_eq!((memory.swap_tallies().ins, memory.swap_tallies().apart), (4, 4));
        }
    }

    #[test]
    fn a_page_that_leaves_while_all_get_frames_does_not_become_zeros() {
        let disk = Disk::default();
        let memory = memory_on(&disk, 64);
        // Rounds in which both threads do one thing each, at slightly different times.
        const ROUNDS: u64 = 4000;
        let [begun, ended] = [AtomicU64::new(0), AtomicU64::new(0)];
        let wait_for = |count: &AtomicU64, round: u64| {
            while count.load(Ordering::Acquire) < round {
                std::thread::yield_now();
            }
        };
        let wrong = std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    wait_for(&begun, round);
                    (0..round % 400 * 10).for_each(|_| std::hint::spin_loop());
                    memory.populate_apart(range(0, 32)).unwrap();
                    ended.store(round, Ordering::Release);
                }
            });
            let mut wrong = None;
            for round in 1..=ROUNDS {
                // Before it comes to the page, the other thread has frames to make.
                memory.give_up(range(0, 16)).unwrap();
                let page = 16 + round % 16;
                begun.store(round, Ordering::Release);
                memory.page_out(range(page, 1)).unwrap();
                wait_for(&ended, round);
                // What has a frame is taken as it is.
                let word = memory.atomic_u64(PageId(page), 8).unwrap().load(Ordering::Relaxed);
                if word.to_ne_bytes() != [page as u8 + 1; 8] {
                    wrong = wrong.or(Some((round, page, word)));
                }
            }
            wrong
        });
        assert_eq!(wrong, None);
    }

    #[test]
    fn a_frame_that_is_given_up_while_it_is_saved_is_not_made_again() {
        let memory = memory_on(&Disk::default(), 64);
        memory.give_up(range(0, 8)).unwrap();
        let mut room = vec![1; 10 * BYTES];
        assert!(memory.read_frames(range(0, 10), &mut room));
        assert!(room[..8 * BYTES].iter().all(|byte| *byte == 0) && room[8 * BYTES] == 9);
        assert_eq!(blocks(&memory), 24 * 4096);
    }

    #[test]
    fn a_page_that_is_saved_ahead_leaves_without_being_written() {
        let disk = Disk::default();
        let memory = memory_on(&disk, 64);
        assert_eq!(memory.save_ahead(range(0, 64)), Ok(32));
        assert_eq!((memory.frames(), blocks(&memory)), (32, 32 * 4096), "no frame was made");
        memory.write(PageId(3), 7, &[9]).unwrap();
        memory.page_out(range(0, 8)).unwrap();
        assert_eq!(memory.swap_tallies().outs, 33, "the one that has changed");
        let mut bytes = [0; BYTES];
        memory.read(PageId(3), 0, &mut bytes);
        assert_eq!((bytes[6], bytes[7], bytes[8]), (4, 9, 4));
    }

    #[test]
    fn what_comes_is_told_and_zeros_leave_without_a_trace() {
        let disk = Disk::default();
        let memory = memory_on(&disk, 64);
        memory.page_out(range(0, 4)).unwrap();
        assert_eq!(memory.take_came(), []);
        memory.populate(range(2, 1)).unwrap();
        memory.populate(range(40, 2)).unwrap();
        assert_eq!(memory.take_came(), [range(2, 1), range(40, 2)]);
        memory.page_out(range(40, 2)).unwrap();
        assert_eq!(memory.swap_tallies().outs, 4);
        assert!(!memory.is_populated(range(40, 2)));
        let mut bytes = [1; BYTES];
        memory.read(PageId(41), 0, &mut bytes);
        assert_eq!(bytes, [0; BYTES]);
    }

    #[test]
    fn what_is_given_up_is_gone_from_the_disk_too() {
        let disk = Disk::default();
        let memory = memory_on(&disk, 4);
        memory.page_out(range(0, 4)).unwrap();
        memory.give_up(range(0, 8)).unwrap();
        assert!(!memory.is_populated(range(0, 8)));
        let mut bytes = [1; BYTES];
        memory.read(PageId(0), 0, &mut bytes);
        assert_eq!(bytes, [0; BYTES]);
        memory.page_out(range(8, 4)).unwrap();
    }

    #[test]
    fn a_page_that_was_given_up_leaves_no_earlier_version_behind() {
        let disk = Disk::default();
        let memory = memory_on(&disk, 4);
        memory.page_out(range(0, 4)).unwrap();
        memory.populate(range(0, 4)).unwrap();
        memory.give_up(range(0, 4)).unwrap();
        memory.page_out(range(8, 4)).unwrap();
        assert_eq!(memory.swap_tallies().outs, 8, "its slots are free again");
        memory.write(PageId(0), 0, &[1; BYTES]).unwrap();
        let mut bytes = [0; BYTES];
        memory.read(PageId(0), 0, &mut bytes);
        assert_eq!(bytes, [1; BYTES]);
    }

    #[test]
    fn what_has_no_room_on_the_disk_stays_as_it_is() {
        let disk = Disk::default();
        let memory = memory_on(&disk, 10);
        memory.page_out(range(0, 8)).unwrap();
        let full = memory.page_out(range(8, 8)).unwrap_err();
        assert!(matches!(full, MemoryError::SwapFull { .. }), "{full}");
        assert_eq!((memory.frames(), memory.resident_bytes()), (24, 24 * 4096));
        assert!(!memory.is_any_out_of(range(8, 8)));
        for page in 0..32 {
            let mut bytes = [0; BYTES];
            memory.read(PageId(page), 0, &mut bytes);
            assert_eq!(bytes, [page as u8 + 1; BYTES]);
        }
    }

    #[test]
    #[should_panic(expected = "lost: expected page 3 in the swap file in '/swap' as it was written")]
    fn a_spoiled_page_ends_whoever_reads_it() {
        let disk = Disk::default();
        let memory = memory_on(&disk, 10);
        memory.page_out(range(0, 8)).unwrap();
        disk.0.lock().unwrap().bytes[3 * BYTES + 17] ^= 1;
        let refused = memory.populate(range(3, 1)).unwrap_err();
        assert_eq!(refused, MemoryError::SwapCorrupted { directory: "/swap".into(), page: PageId(3) });
        let mut bytes = [0; BYTES];
        memory.read(PageId(3), 0, &mut bytes);
    }
}
