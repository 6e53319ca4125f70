//! The region: two views of one sparse memfd.

mod frames_elsewhere;
mod out_of_memory;
mod private;
mod program_calls;
mod windows;

use core::{
    ptr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};
use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, OnceLock},
};

use hiroba_base::{BLOCK_BYTES, PageId, PageRange, PageSize};
use rustix::{
    fs::{FallocateFlags, MemfdFlags, SeekFrom, fallocate, ftruncate, memfd_create},
    io::Errno,
    mm::{Advice, MprotectFlags, ProtFlags},
};

use self::out_of_memory::Swap;
pub use self::out_of_memory::{SwapOptions, SwapTallies};
use crate::{
    FaultSourceKind, MemoryError,
    frames::{ResidentAccount, SparsePageSet, WatchedSet},
    mapping::{Mapping, Placement, address_bits, check_address_space_limit, check_file_size_limit},
    region::{REGION_BYTES_MAX, REGION_START},
    view::View,
};

/// Maximum number of bytes of frames made in one call: a signal that interrupts a longer call would undo them
/// all.
const FRAMES_PER_CALL_BYTES_MAX: usize = 4 << 20;

/// A load from a frame that a view does not map yet maps its neighbours, too, within this many aligned bytes:
/// the kernel's default (`fault_around_bytes`). A store maps only the one frame.
const FAULT_AROUND_BYTES: usize = 64 << 10;

/// The place and unit of the region; the same on every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// The address of the first byte, a multiple of the granule.
    pub region_start: usize,
    /// The length in bytes, a multiple of the granule, at most [`REGION_BYTES_MAX`].
    pub region_bytes: u64,
    /// The unit in which places are counted and access changes: this kernel's page size. Pages, the coherence
    /// units, are one or more granules; this crate does not know how many.
    pub granule: PageSize,
}

impl Default for MemoryConfig {
    fn default() -> MemoryConfig {
        MemoryConfig {
            region_start: REGION_START,
            region_bytes: REGION_BYTES_MAX,
            // `reserve` refuses a kernel whose pages are larger than supported, and then names both sizes.
            granule: PageSize::new(rustix::param::page_size() as u64).unwrap_or(PageSize::MIB_2),
        }
    }
}

/// The shared region of one node.
///
/// Untouched memory costs nothing. Granules get a *frame* when they are first written or made accessible
/// ([`populate`](SharedMemory::populate)); reads of others return zeros and make no frame.
///
/// A forked child has neither view; using a `SharedMemory` there ends the child with SIGSEGV.
#[derive(Debug)]
pub struct SharedMemory {
    config: MemoryConfig,
    memfd: OwnedFd,
    application: View,
    runtime: Mapping,
    allocated: SparsePageSet,
    populated: SparsePageSet,
    /// Pages in which the program may execute code.
    executable: SparsePageSet,
    /// True if there have ever been any.
    is_any_executable: AtomicBool,
    account: ResidentAccount,
    /// Pages whose frames other nodes have mapped from this node's file.
    shared_frames: Mutex<Vec<PageRange>>,
    claimed: AtomicBool,
    /// Swapped-out pages, if pages may be swapped.
    swap: OnceLock<Swap>,
}

/// One fault source's exclusive claim on a region: two would undo each other's work.
pub(crate) struct Claim {
    memory: Arc<SharedMemory>,
}

impl Claim {
    pub(crate) fn new(memory: Arc<SharedMemory>, kind: FaultSourceKind) -> Result<Claim, MemoryError> {
        if memory.claimed.swap(true, Ordering::AcqRel) {
            return Err(MemoryError::AlreadyOpen { kind });
        }
        Ok(Claim { memory })
    }

    pub(crate) fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Takes the program's access to the whole region away. A fault source does this last, before it stops
    /// watching.
    pub(crate) fn close_application(&self) {
        self.memory.close();
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.memory.claimed.store(false, Ordering::Release);
    }
}

impl SharedMemory {
    /// Reserves the region's addresses and an equal amount for the runtime's view, but no memory yet.
    ///
    /// # Errors
    /// Fails if the configuration is invalid, if a limit of the process (`RLIMIT_AS`, `RLIMIT_FSIZE`,
    /// descriptors) is too low, or if the addresses are in use or do not exist on this kernel.
    pub fn reserve(config: MemoryConfig) -> Result<SharedMemory, MemoryError> {
        let memfd = memfd_create("hiroba", MemfdFlags::CLOEXEC)
            .map_err(|errno| MemoryError::descriptor("the shared region's memfd", errno))?;
        SharedMemory::reserve_in(config, memfd)
    }

    /// Reserves like [`reserve`](Self::reserve), with the frames in `memfd`, an empty memory file that other
    /// processes may have, too. The byte at an offset of the region is the byte at that offset of the file.
    /// Other processes must only read it, except for pages that all nodes have agreed to share
    /// ([`map_onto`](Self::map_onto)).
    ///
    /// # Errors
    /// Fails as [`reserve`](Self::reserve), and if the file cannot be made as long as the region.
    pub fn reserve_in(config: MemoryConfig, memfd: OwnedFd) -> Result<SharedMemory, MemoryError> {
        let bytes = check_config(&config)?;
        check_file_size_limit(config.region_bytes)?;
        check_address_space_limit(2 * config.region_bytes)?;
        ftruncate(&memfd, config.region_bytes)
            .map_err(MemoryError::system("ftruncate of the shared region"))?;
        let why = |errno| why_not_mapped(&config, errno);
        let place = Placement::Exactly(config.region_start);
        let application = Mapping::of_file(memfd.as_fd(), place, bytes, ProtFlags::empty()).map_err(why)?;
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        let runtime = Mapping::of_file(memfd.as_fd(), Placement::Anywhere, bytes, writable).map_err(why)?;
        for view in [&application, &runtime] {
            advise_view(view, config.granule, 0, bytes)?;
        }
        let granules = config.region_bytes / config.granule.bytes() as u64;
        let page_set = || SparsePageSet::new(granules).map_err(MemoryError::system("mmap of a page table"));
        Ok(SharedMemory {
            config,
            memfd,
            application: View::new(application),
            runtime,
            allocated: page_set()?,
            populated: page_set()?,
            executable: page_set()?,
            is_any_executable: AtomicBool::new(false),
            account: ResidentAccount::default(),
            shared_frames: Mutex::default(),
            claimed: AtomicBool::new(false),
            swap: OnceLock::new(),
        })
    }

    fn advise_view(&self, view: &impl Advised, offset: usize, bytes: usize) -> Result<(), MemoryError> {
        advise_view(view, self.granule(), offset, bytes)
    }

    /// Returns the address of the first byte.
    pub fn region_start(&self) -> usize {
        self.config.region_start
    }

    /// Returns the length in bytes.
    pub fn region_bytes(&self) -> u64 {
        self.config.region_bytes
    }

    /// Returns the unit in which [`PageId`] and [`PageRange`] count: this kernel's page size.
    pub fn granule(&self) -> PageSize {
        self.config.granule
    }

    /// Returns the number of granules in the region.
    pub fn granules(&self) -> u64 {
        self.config.region_bytes / self.config.granule.bytes() as u64
    }

    /// Returns the granule that contains `address`, if it lies in the region.
    pub fn page_of(&self, address: usize) -> Option<PageId> {
        let offset = self.application.offset_at(address)? as u64;
        Some(PageId(offset / self.config.granule.bytes() as u64))
    }

    /// Returns the program's address of `page`. The runtime itself never reads or writes there.
    ///
    /// # Panics
    /// Panics if the region has no such page.
    pub fn address_of(&self, page: PageId) -> *mut u8 {
        self.application.at(self.offset_of(page, 0, 0))
    }

    /// Allocates pages to the program: from now on a fault source may control them. Allocating them again
    /// changes nothing. Their access stays `None`.
    ///
    /// # Errors
    /// Fails if they lie outside the region, or if the kernel has no memory for the record.
    pub fn allocate(&self, range: PageRange) -> Result<(), MemoryError> {
        self.span(range)?;
        self.allocated.insert_range(range).map_err(MemoryError::system("mmap of a page table"))?;
        Ok(())
    }

    /// Allows the program's loads and stores on allocated pages without a fault source. For a job of one
    /// node, whose pages no other node can change. The kernel makes frames on access, and they are not
    /// counted.
    ///
    /// # Errors
    /// Fails if the pages are not allocated, or if the kernel refuses.
    pub fn open(&self, range: PageRange) -> Result<(), MemoryError> {
        let (offset, bytes) = self.allocated_span(range)?;
        let writable = MprotectFlags::READ | MprotectFlags::WRITE;
        let opened = self.application.protect(offset, bytes, writable);
        opened.map_err(MemoryError::of_view("mprotect"))
    }

    /// Takes the program's access to the whole region away permanently: from now on any access is a
    /// segmentation fault, whatever controlled the region before. The runtime's view stays.
    pub fn close(&self) {
        let view = &self.application;
        if !view.is_here() {
            return;
        }
        let close = |offset, bytes| {
            let dropped = view.advise(offset, bytes, Advice::LinuxDontNeed);
            dropped.and(view.protect(offset, bytes, MprotectFlags::empty()))
        };
        // Pages that are not allocated have no access already, and private pages stay the program's.
        let whole = PageRange { first: PageId(0), count: self.granules() };
        for (pages, allocated) in self.allocated.runs(whole) {
            let unit = self.granule().bytes();
            let closed = if allocated {
                close(pages.first.0 as usize * unit, pages.count as usize * unit)
            } else {
                Ok(())
            };
            debug_assert_eq!(closed, Ok(()), "the application's view could not be closed");
        }
    }

    /// Returns true if `page` is allocated. Safe in signal context.
    pub fn is_allocated(&self, page: PageId) -> bool {
        self.allocated.contains(page)
    }

    /// Returns true if all of `range` is allocated. Safe in signal context.
    pub fn are_allocated(&self, range: PageRange) -> bool {
        self.allocated.contains_range(range)
    }

    /// Returns true if any granule of `range` has a frame or is swapped out. All others are zeros that were
    /// never written.
    pub fn is_populated(&self, range: PageRange) -> bool {
        // In this order: what another thread brings in meanwhile is not out any more, but has a frame.
        self.is_any_out_of(range) || self.populated.contains_any(range)
    }

    /// Returns the maximal runs of `range` that have frames (`true`) or none, in order. Swapped-out pages are
    /// brought in.
    pub(crate) fn populated_runs(&self, range: PageRange) -> impl Iterator<Item = (PageRange, bool)> + '_ {
        self.bring_in_or_fail(range);
        self.populated.runs(range)
    }

    /// Returns the address of the byte at `offset` of `page` in the runtime's view.
    pub(crate) fn runtime_at(&self, page: PageId, offset: usize) -> *mut u8 {
        self.runtime.at(self.offset_of(page, offset, 0))
    }

    /// Gives a frame to each granule of `range` that has none: a zeroed one, or one with its swapped-out
    /// content.
    ///
    /// # Errors
    /// Fails if the pages lie outside the region, if the machine or control group has no memory left, or if
    /// swapped-out content cannot be read.
    pub fn populate(&self, range: PageRange) -> Result<(), MemoryError> {
        if range.count == 1 && self.populated.contains(range.first) {
            return Ok(());
        }
        self.span(range)?;
        self.bring_in(range)?;
        for (run, has_frames) in self.populated.runs(range) {
            if has_frames {
                continue;
            }
            self.make_frames(run)?;
            self.note_frames(run)?;
        }
        Ok(())
    }

    /// Populates a range like [`populate`](Self::populate), while pages may leave. A page that left before it
    /// got a frame of zeros would be taken for those zeros, since what has a frame is not looked for
    /// elsewhere.
    ///
    /// # Errors
    /// As [`populate`](Self::populate).
    pub fn populate_apart(&self, range: PageRange) -> Result<(), MemoryError> {
        self.span(range)?;
        loop {
            self.bring_in(range)?;
            let mut have_all = true;
            for (run, _) in self.populated.runs(range).filter(|(_, has_frames)| !has_frames) {
                have_all &= self.unless_out(run, || {
                    self.make_frames(run)?;
                    self.note_frames(run)
                })?;
            }
            if have_all {
                return Ok(());
            }
        }
    }

    /// Makes frames for the whole run, by a call that reports lack of memory instead of raising SIGBUS as a
    /// store would. The runtime's view maps them on first access, which few of them see.
    fn make_frames(&self, run: PageRange) -> Result<(), MemoryError> {
        let (mut offset, bytes) = self.span(run)?;
        let end = offset + bytes;
        while offset < end {
            let piece = (end - offset).min(FRAMES_PER_CALL_BYTES_MAX);
            match fallocate(&self.memfd, FallocateFlags::empty(), offset as u64, piece as u64) {
                Ok(()) => offset += piece,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(MemoryError::OutOfFrames { range: run, errno }),
            }
        }
        Ok(())
    }

    /// Makes frames that begin with these bytes. It saves the kernel from zeroing them, and the runtime's
    /// view from mapping them.
    fn make_frames_with(&self, run: PageRange, start: usize, bytes: &[u8]) -> Result<(), MemoryError> {
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pwrite(&self.memfd, &bytes[done..], (start + done) as u64) {
                Ok(written) if written > 0 => done += written,
                Err(Errno::INTR) => {}
                Ok(_) => return Err(MemoryError::OutOfFrames { range: run, errno: Errno::NOSPC }),
                Err(errno) => return Err(MemoryError::OutOfFrames { range: run, errno }),
            }
        }
        self.note_frames(run)
    }

    /// Returns the frames of `range` to the system, with their content: the granules read as zeros until they
    /// are written again.
    ///
    /// No one may have access to the pages meanwhile, neither the program, whose access must have been taken
    /// away, nor another node.
    ///
    /// # Errors
    /// Fails if the pages lie outside the region, or if the kernel refuses.
    pub fn give_up(&self, range: PageRange) -> Result<(), MemoryError> {
        self.span(range)?;
        self.discard(range);
        self.runs_with_frames(range).into_iter().try_for_each(|run| self.give_up_run(run))
    }

    /// Returns all granules that have a frame, as maximal ranges in order.
    pub fn ranges_with_frames(&self) -> Vec<PageRange> {
        self.runs_with_frames(PageRange { first: PageId(0), count: self.granules() })
    }

    fn runs_with_frames(&self, range: PageRange) -> Vec<PageRange> {
        self.populated.runs(range).filter_map(|(run, has_frames)| has_frames.then_some(run)).collect()
    }

    /// Gives up the frames of granules that all have one.
    fn give_up_run(&self, run: PageRange) -> Result<(), MemoryError> {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (offset, bytes) = self.span(run)?;
        while let Err(errno) = fallocate(&self.memfd, punch, offset as u64, bytes as u64) {
            if errno != Errno::INTR {
                return Err(MemoryError::system("giving up frames of the shared region")(errno));
            }
        }
        let removed =
            self.populated.remove_range(run).map_err(MemoryError::system("mmap of a page table"))?;
        self.account.remove_frames(removed, self.granule().bytes());
        Ok(())
    }

    fn note_frames(&self, run: PageRange) -> Result<(), MemoryError> {
        let added = self.populated.insert_range(run).map_err(MemoryError::system("mmap of a page table"))?;
        self.account.add_frames(added, self.granule().bytes());
        self.note_came(run);
        Ok(())
    }

    /// Copies `out.len()` bytes from `offset` of the page through the runtime's view; they may extend into
    /// the granules that follow. Bytes without a frame are zeros, and no frame is made.
    ///
    /// Other threads may write meanwhile: each byte is then old or new.
    ///
    /// # Panics
    /// Panics if the bytes are not within the region.
    pub fn read(&self, page: PageId, offset: usize, out: &mut [u8]) {
        let start = self.offset_of(page, offset, out.len());
        let covered = self.granules_of(start, out.len());
        if covered.count == 1 && self.populated.contains(covered.first) {
            self.copy_out(start, out);
            return;
        }
        let unit = self.granule().bytes();
        for (run, has_frames) in self.populated_runs(covered) {
            let from = (run.first.0 as usize * unit).max(start);
            let to = (run.end().0 as usize * unit).min(start + out.len());
            let piece = &mut out[from - start..to - start];
            if has_frames {
                self.copy_out(from, piece);
            } else {
                // A load from a hole of the memfd would give it a frame.
                piece.fill(0);
            }
        }
    }

    /// Appends `bytes` bytes from `offset` of the page to `room`, as [`read`](Self::read) returns them.
    ///
    /// # Panics
    /// Panics if the bytes are not within the region.
    pub fn append(&self, page: PageId, offset: usize, bytes: usize, room: &mut Vec<u8>) {
        let start = self.offset_of(page, offset, bytes);
        let unit = self.granule().bytes();
        room.reserve(bytes);
        for (run, has_frames) in self.populated_runs(self.granules_of(start, bytes)) {
            let from = (run.first.0 as usize * unit).max(start);
            let piece_bytes = (run.end().0 as usize * unit).min(start + bytes) - from;
            let end = room.len() + piece_bytes;
            if !has_frames {
                room.resize(end, 0);
                continue;
            }
            let spare = room.spare_capacity_mut()[..piece_bytes].as_mut_ptr();
            // SAFETY: as in `copy_out`; the spare room of a vector is not part of the view either, and it is
            // long enough.
            unsafe { ptr::copy_nonoverlapping(self.runtime.at(from), spare.cast(), piece_bytes) };
            // SAFETY: these bytes have just been written.
            unsafe { room.set_len(end) };
        }
    }

    fn copy_out(&self, start: usize, out: &mut [u8]) {
        self.debug_assert_is_in(start, out.len());
        // SAFETY: callers checked the bounds within the runtime's view, which is always readable. `out` is
        // not part of it, because no reference to shared memory is ever made. A racing store of the program
        // gives torn bytes, which every caller must expect.
        unsafe { ptr::copy_nonoverlapping(self.runtime.at(start), out.as_mut_ptr(), out.len()) }
    }

    /// Copies bytes into the page from `offset` through the runtime's view, whatever the program's access;
    /// they may extend into the granules that follow.
    ///
    /// # Errors
    /// Fails if there is no memory for frames.
    ///
    /// # Panics
    /// Panics if the bytes are not within the region.
    pub fn write(&self, page: PageId, offset: usize, bytes: &[u8]) -> Result<(), MemoryError> {
        let start = self.offset_of(page, offset, bytes.len());
        let covered = self.granules_of(start, bytes.len());
        if covered.count == 1 && self.populated.contains(covered.first) {
            self.copy_in(start, bytes);
            return Ok(());
        }
        self.bring_in(covered)?;
        let unit = self.granule().bytes();
        for (run, has_frames) in self.populated.runs(covered) {
            let from = (run.first.0 as usize * unit).max(start);
            let to = (run.end().0 as usize * unit).min(start + bytes.len());
            let piece = &bytes[from - start..to - start];
            if has_frames {
                self.copy_in(from, piece);
            } else {
                self.make_frames_with(run, from, piece)?;
            }
        }
        Ok(())
    }

    fn copy_in(&self, start: usize, bytes: &[u8]) {
        self.debug_assert_is_in(start, bytes.len());
        // Where the view maps none of the frames yet, a few loads save a fault for each; elsewhere they cost
        // next to nothing.
        let mut offset = start;
        while offset < start + bytes.len() {
            let place = self.runtime.at(offset);
            // SAFETY: one of the bytes that are about to be written, in a view that is always readable; its
            // value does not matter.
            let _ = unsafe { place.read_volatile() };
            offset += FAULT_AROUND_BYTES - place.addr() % FAULT_AROUND_BYTES;
        }
        // SAFETY: as in `copy_out`, in the other direction: the view is always writable.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.runtime.at(start), bytes.len()) }
    }

    /// Returns the address of the block at `offset` of the page in the runtime's view, with a frame behind
    /// it, for writing some of its bytes.
    ///
    /// # Errors
    /// Fails if there is no memory for the frame.
    ///
    /// # Panics
    /// Panics if the block is not within the region.
    pub(crate) fn block_to_write(&self, page: PageId, offset: usize) -> Result<*mut u8, MemoryError> {
        let start = self.offset_of(page, offset, BLOCK_BYTES);
        self.populate(self.granules_of(start, BLOCK_BYTES))?;
        let place = self.runtime.at(start);
        // As in `copy_in`: where the view does not map the frame yet, this saves a fault for each neighbour.
        // SAFETY: a byte of the view, which is always readable; its value does not matter.
        let _ = unsafe { place.read_volatile() };
        Ok(place)
    }

    /// Returns the eight bytes at `offset` of the page, which may lie in a later granule, as an atomic in the
    /// runtime's view.
    ///
    /// # Errors
    /// Fails if there is no memory for the frame.
    ///
    /// # Panics
    /// Panics if the bytes are not within the region, or if `offset` is not a multiple of 8.
    pub fn atomic_u64(&self, page: PageId, offset: usize) -> Result<&AtomicU64, MemoryError> {
        assert!(
            offset.is_multiple_of(align_of::<AtomicU64>()),
            "an atomic must be aligned, got offset {offset}"
        );
        let start = self.offset_of(page, offset, size_of::<AtomicU64>());
        self.populate(self.granules_of(start, size_of::<AtomicU64>()))?;
        // SAFETY: in bounds, aligned (views begin on system pages) and mapped readable and writable as long
        // as `self`; all bit patterns are valid, and the program's own accesses count as those of another
        // process.
        Ok(unsafe { AtomicU64::from_ptr(self.runtime.at(start).cast::<u64>()) })
    }

    /// Selects the content of a core dump of this process: the memory of the program's view that has frames,
    /// in at most `runs_max` runs. Returns false if that was not enough; the dump will then lack the memory
    /// with the highest addresses.
    ///
    /// For a process that is about to die; safe in signal context. A granule that a fault source keeps from
    /// the program (access `None` under userfaultfd), or that is swapped out, reads as zeros in the dump.
    pub fn prepare_dump(&self, runs_max: usize) -> bool {
        // Dumping small holes as zeros is better than omitting memory.
        let widest_hole_bytes = 512 * self.granule().bytes();
        let mut hole_bytes = 0;
        while hole_bytes < widest_hole_bytes
            && self.each_data_run(hole_bytes, runs_max, |_, _| true) > runs_max
        {
            hole_bytes = (2 * hole_bytes).max(self.granule().bytes());
        }
        let mut all_marked = true;
        let runs = self.each_data_run(hole_bytes, runs_max, |offset, bytes| {
            all_marked = self.application.advise(offset, bytes, Advice::LinuxDoDump).is_ok();
            all_marked
        });
        all_marked && runs <= runs_max
    }

    /// Calls `visit` with offset and length of the first `runs_max` runs of the memfd that have frames, until
    /// it returns false. Holes of up to `hole_bytes` do not end a run. Returns the number of runs found, at
    /// most one beyond the last that may be visited.
    fn each_data_run(
        &self,
        hole_bytes: usize,
        runs_max: usize,
        mut visit: impl FnMut(usize, usize) -> bool,
    ) -> usize {
        let mut runs = 0;
        let mut next = self.data_run(0);
        while let Some((start, mut end)) = next {
            next = self.data_run(end);
            while let Some((_, its_end)) = next.filter(|(following, _)| following - end <= hole_bytes) {
                end = its_end;
                next = self.data_run(end);
            }
            runs += 1;
            if runs > runs_max || !visit(start, end - start) {
                break;
            }
        }
        runs
    }

    /// Returns start and end of the first run of the memfd at or behind `from` that has frames. Asks the
    /// kernel, because in a job of one node it makes frames without telling us.
    fn data_run(&self, from: usize) -> Option<(usize, usize)> {
        let start = rustix::fs::seek(&self.memfd, SeekFrom::Data(from as u64)).ok()?;
        let end = rustix::fs::seek(&self.memfd, SeekFrom::Hole(start)).ok()?;
        Some((start as usize, end as usize))
    }

    /// Returns the number of granules that have a frame.
    pub fn frames(&self) -> u64 {
        self.account.frames()
    }

    /// Returns the number of twins.
    pub fn twins(&self) -> u64 {
        self.account.twins()
    }

    /// Returns the memory of frames and twins now, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.account.bytes()
    }

    /// Returns the maximum memory of frames and twins, in bytes, including the frames that this node keeps
    /// for all nodes ([`map_onto`](Self::map_onto)), which stay.
    pub fn resident_bytes_max(&self) -> u64 {
        self.account.bytes_max() + self.shared_frames_bytes()
    }

    pub(crate) fn account(&self) -> &ResidentAccount {
        &self.account
    }

    /// Returns the allocated granule that contains `address`: the first question about every fault.
    pub(crate) fn allocated_page_of(&self, address: usize) -> Option<PageId> {
        self.page_of(address).filter(|page| self.allocated.contains(*page))
    }

    /// Returns offset and length of `range` in bytes; fails unless all of it is allocated.
    pub(crate) fn allocated_span(&self, range: PageRange) -> Result<(usize, usize), MemoryError> {
        let span = self.span(range)?;
        if self.allocated.contains_range(range) { Ok(span) } else { Err(MemoryError::NotAllocated { range }) }
    }

    /// Makes an empty set of this region's pages.
    pub(crate) fn page_set(&self) -> Result<SparsePageSet, MemoryError> {
        SparsePageSet::new(self.granules()).map_err(MemoryError::system("mmap of a page table"))
    }

    /// Makes an empty set of granules to watch.
    pub(crate) fn watched_set(&self) -> Result<WatchedSet, MemoryError> {
        WatchedSet::new(self.granules()).map_err(MemoryError::system("mmap of a page table"))
    }

    /// Returns the application's view, for fault sources only.
    pub(crate) fn application(&self) -> &View {
        &self.application
    }

    /// Returns offset and length of `range` in bytes.
    pub(crate) fn span(&self, range: PageRange) -> Result<(usize, usize), MemoryError> {
        match range.first.0.checked_add(range.count) {
            Some(end) if end <= self.granules() => {
                let unit = self.granule().bytes();
                Ok((range.first.0 as usize * unit, range.count as usize * unit))
            }
            _ => Err(MemoryError::OutsideRegion { range, granules: self.granules() }),
        }
    }

    /// Returns the offset in a view of `bytes` bytes from `offset` of `page`.
    fn offset_of(&self, page: PageId, offset: usize, bytes: usize) -> usize {
        let region_bytes = self.application.bytes();
        assert!(page.0 < self.granules(), "the region has {} granules, got {page}", self.granules());
        let start = page.0 as usize * self.granule().bytes();
        assert!(
            bytes <= region_bytes - start && offset <= region_bytes - start - bytes,
            "the region has {region_bytes} bytes, got {bytes} bytes from offset {offset} of {page}"
        );
        start + offset
    }

    /// Returns the granules that `bytes` bytes from `start` of a view cover.
    fn granules_of(&self, start: usize, bytes: usize) -> PageRange {
        let unit = self.granule().bytes();
        let first = start / unit;
        PageRange { first: PageId(first as u64), count: ((start + bytes).div_ceil(unit) - first) as u64 }
    }
}

/// Returns the region's length as a `usize`, if the configuration is valid.
fn check_config(config: &MemoryConfig) -> Result<usize, MemoryError> {
    let granule_bytes = config.granule.bytes();
    let system_bytes = rustix::param::page_size();
    if granule_bytes != system_bytes {
        return Err(MemoryError::NotTheSystemsPageSize { granule_bytes, system_bytes });
    }
    let bad = MemoryError::BadRegion {
        region_start: config.region_start,
        region_bytes: config.region_bytes,
        granule_bytes,
    };
    let aligned = config.region_start.is_multiple_of(granule_bytes)
        && config.region_bytes.is_multiple_of(granule_bytes as u64)
        && (1..=REGION_BYTES_MAX).contains(&config.region_bytes)
        && config.region_start > 0;
    match usize::try_from(config.region_bytes) {
        Ok(bytes) if aligned && config.region_start.checked_add(bytes).is_some() => Ok(bytes),
        _ => Err(bad),
    }
}

/// Gives the kernel advice about a newly mapped part of a view.
fn advise_view(
    view: &impl Advised,
    granule: PageSize,
    offset: usize,
    bytes: usize,
) -> Result<(), MemoryError> {
    // A child would read stale pages and write into its parent's frames.
    view.advise(offset, bytes, Advice::LinuxDontFork)
        .map_err(MemoryError::system("madvise(MADV_DONTFORK)"))?;
    // A dump would write the untouched memfd whole.
    view.advise(offset, bytes, Advice::LinuxDontDump)
        .map_err(MemoryError::system("madvise(MADV_DONTDUMP)"))?;
    if granule < PageSize::MIB_2 {
        // Huge frames would make untouched memory resident. Kernels without them return EINVAL, which is as
        // good.
        let _ = view.advise(offset, bytes, Advice::LinuxNoHugepage);
    }
    Ok(())
}

/// A single mapping, or a view of several.
trait Advised {
    fn advise(&self, offset: usize, bytes: usize, advice: Advice) -> Result<(), Errno>;
}

impl Advised for Mapping {
    fn advise(&self, offset: usize, bytes: usize, advice: Advice) -> Result<(), Errno> {
        Mapping::advise(self, offset, bytes, advice)
    }
}

impl Advised for View {
    fn advise(&self, offset: usize, bytes: usize, advice: Advice) -> Result<(), Errno> {
        View::advise(self, offset, bytes, advice)
    }
}

/// Returns the error for a refused mapping.
fn why_not_mapped(config: &MemoryConfig, errno: Errno) -> MemoryError {
    let region_end = config.region_start + config.region_bytes as usize;
    match errno {
        Errno::EXIST => MemoryError::AddressTaken { region_start: config.region_start, region_end },
        // The kernel returns this for no other reason when it maps memory.
        Errno::AGAIN => MemoryError::LockedMemoryLimit { region_bytes: config.region_bytes },
        Errno::NOMEM => MemoryError::AddressSpaceNarrow {
            region_end,
            region_bytes: config.region_bytes,
            address_bits: address_bits(),
        },
        _ => MemoryError::System { operation: "mmap of the shared region", errno },
    }
}

/// Threads share the memory through `Arc`.
const _: fn() = || {
    fn shareable<T: Send + Sync>() {}
    shareable::<Arc<SharedMemory>>();
};

#[cfg(test)]
pub(crate) mod tests {
    use core::sync::atomic::AtomicUsize;

    use super::*;

    /// Tests run concurrently in one process: each uses other addresses.
    pub(crate) fn small_config(pages: u64) -> MemoryConfig {
        static NEXT_START: AtomicUsize = AtomicUsize::new(REGION_START);
        let region_bytes = pages * PageSize::KIB_4.bytes() as u64;
        let region_start =
            NEXT_START.fetch_add(region_bytes.next_multiple_of(1 << 30) as usize, Ordering::Relaxed);
        MemoryConfig { region_start, region_bytes, ..MemoryConfig::default() }
    }

    pub(crate) fn small_memory(pages: u64) -> Arc<SharedMemory> {
        Arc::new(SharedMemory::reserve(small_config(pages)).unwrap())
    }

    #[test]
    fn addresses_and_pages_agree() {
        let memory = small_memory(8);
        let start = memory.region_start();
        assert_eq!(memory.page_of(start), Some(PageId(0)));
        assert_eq!(memory.page_of(start + 8 * 4096 - 1), Some(PageId(7)));
        assert_eq!((memory.page_of(start - 1), memory.page_of(start + 8 * 4096)), (None, None));
        assert_eq!(memory.address_of(PageId(5)).addr(), start + 5 * 4096);
        assert_eq!(memory.granules(), 8);
    }

    #[test]
    fn reads_of_holes_cost_nothing_and_writes_make_frames() {
        let memory = small_memory(8);
        let mut page = [1; 4096];
        memory.read(PageId(2), 0, &mut page);
        assert_eq!((page, memory.frames()), ([0; 4096], 0));
        let blocks = || rustix::fs::fstat(&memory.memfd).unwrap().st_blocks;
        assert_eq!(blocks(), 0, "the kernel must agree that the read made no frame");
        memory.write(PageId(2), 4094, &[3, 4]).unwrap();
        let mut tail = [0; 3];
        memory.read(PageId(2), 4093, &mut tail);
        assert_eq!((tail, memory.frames(), memory.resident_bytes()), ([0, 3, 4], 1, 4096));
        assert_eq!(memory.atomic_u64(PageId(3), 4088).unwrap().fetch_add(9, Ordering::AcqRel), 0);
        memory.read(PageId(3), 4088, &mut tail);
        assert_eq!((tail, memory.frames()), ([9, 0, 0], 2));
        memory.populate(PageRange { first: PageId(0), count: 8 }).unwrap();
        assert_eq!((memory.frames(), memory.resident_bytes_max()), (8, 8 * 4096));
        assert_eq!(blocks() * 512, 8 * 4096, "the account must be the kernel's own");
    }

    #[test]
    fn frames_that_are_given_up_are_free_and_read_as_zeros() {
        let memory = small_memory(8);
        (0..4).for_each(|page| memory.write(PageId(page), 0, &[7; 4096]).unwrap());
        memory.give_up(PageRange { first: PageId(1), count: 5 }).unwrap();
        assert_eq!((memory.frames(), memory.resident_bytes()), (1, 4096));
        assert!(!memory.is_populated(PageRange { first: PageId(1), count: 5 }));
        let mut bytes = [1; 4096];
        memory.read(PageId(2), 0, &mut bytes);
        assert_eq!(bytes, [0; 4096]);
        memory.read(PageId(0), 0, &mut bytes);
        assert_eq!(bytes, [7; 4096]);
        // The unwritten part of a page is zero, without earlier content.
        memory.write(PageId(2), 100, &[9; 10]).unwrap();
        memory.read(PageId(2), 0, &mut bytes);
        assert_eq!((bytes[99], bytes[100], bytes[110]), (0, 9, 0));
        let blocks = rustix::fs::fstat(&memory.memfd).unwrap().st_blocks;
        assert_eq!(blocks * 512, 2 * 4096, "the kernel has the others again");
        assert!(memory.give_up(PageRange { first: PageId(7), count: 2 }).is_err());
    }

    #[test]
    fn a_large_region_costs_nothing_until_touched() {
        let config = MemoryConfig { region_start: REGION_START + (32 << 40), ..MemoryConfig::default() };
        let memory = SharedMemory::reserve(config).unwrap();
        memory.allocate(PageRange { first: PageId(0), count: memory.granules() }).unwrap();
        let last = PageId(memory.granules() - 1);
        assert!(memory.is_allocated(last));
        memory.write(last, 0, &[1]).unwrap();
        assert_eq!(rustix::fs::fstat(&memory.memfd).unwrap().st_blocks, 8);
        assert_eq!(memory.resident_bytes(), 4096);
    }

    #[test]
    fn bad_configurations_are_refused_in_words() {
        let good = small_config(8);
        for bad in [
            MemoryConfig { region_bytes: 0, ..good },
            MemoryConfig { region_bytes: 4097, ..good },
            MemoryConfig { region_bytes: REGION_BYTES_MAX + 4096, ..good },
            MemoryConfig { region_start: good.region_start + 8, ..good },
            MemoryConfig { region_start: usize::MAX - 4095, ..good },
        ] {
            let error = SharedMemory::reserve(bad).unwrap_err();
            assert!(matches!(error, MemoryError::BadRegion { .. }), "{bad:?}: {error}");
        }
        let beyond = MemoryConfig { region_start: 1 << 60, ..good };
        let error = SharedMemory::reserve(beyond).unwrap_err();
        assert!(matches!(error, MemoryError::AddressSpaceNarrow { address_bits: 32..=57, .. }), "{error}");
    }

    #[test]
    fn taken_addresses_are_refused_and_free_again_after_drop() {
        let config = small_config(8);
        let memory = SharedMemory::reserve(config).unwrap();
        let error = SharedMemory::reserve(config).unwrap_err();
        let region_end = config.region_start + 8 * 4096;
        assert_eq!(error, MemoryError::AddressTaken { region_start: config.region_start, region_end });
        drop(memory);
        SharedMemory::reserve(config).unwrap();
    }

    #[test]
    fn pages_outside_the_region_are_refused() {
        let memory = small_memory(8);
        for (first, count) in [(8, 1), (0, 9), (u64::MAX, 1), (1, u64::MAX)] {
            let range = PageRange { first: PageId(first), count };
            let refused = Err(MemoryError::OutsideRegion { range, granules: 8 });
            assert_eq!((memory.allocate(range), memory.populate(range)), (refused.clone(), refused));
        }
    }

    #[test]
    #[should_panic(expected = "must be aligned")]
    fn an_unaligned_atomic_is_a_fault_of_the_caller() {
        let _ = small_memory(8).atomic_u64(PageId(0), 4);
    }

    #[test]
    #[should_panic(expected = "the region has 32768 bytes")]
    fn bytes_beyond_the_region_are_a_fault_of_the_caller() {
        let _ = small_memory(8).write(PageId(7), 4095, &[1, 2]);
    }

    #[test]
    fn bytes_may_span_granules_with_and_without_frames() {
        let memory = small_memory(2048);
        memory.write(PageId(3), 4090, &[1; 12]).unwrap();
        memory.write(PageId(6), 0, &[2]).unwrap();
        assert_eq!(memory.frames(), 3);
        let mut out = vec![9; 6 * 4096];
        memory.read(PageId(2), 100, &mut out);
        let expected = |at: usize| match at + 2 * 4096 + 100 {
            at if (4 * 4096 - 6..4 * 4096 + 6).contains(&at) => 1,
            at if at == 6 * 4096 => 2,
            _ => 0,
        };
        assert!(out.iter().enumerate().all(|(at, byte)| *byte == expected(at)));
        for (first, bytes) in [(0, 6 * 4096), (4000, 9000), (7000, 1), (5000, 0)] {
            let mut room = vec![5; 3];
            memory.append(PageId(2), 100 + first, bytes, &mut room);
            assert!(room[..3] == [5; 3] && room[3..] == out[first..first + bytes], "{bytes} from {first}");
        }
        assert_eq!(memory.frames(), 3, "reading made frames");
        let range = |first, count| PageRange { first: PageId(first), count };
        assert!(memory.is_populated(range(0, 4)) && memory.is_populated(range(3, 2)));
        assert!(!memory.is_populated(range(0, 3)) && !memory.is_populated(range(5, 1)));
        let large: Vec<u8> = (0..2 << 20).map(|at| (at / 4096 * 7 + at) as u8).collect();
        memory.write(PageId(1024), 0, &large).unwrap();
        let mut back = vec![0; 2 << 20];
        memory.read(PageId(1024), 0, &mut back);
        assert!(back == large);
        let word = memory.atomic_u64(PageId(1024), 4096 * 5 + 8).unwrap();
        assert_eq!(word.load(Ordering::Relaxed).to_ne_bytes(), large[4096 * 5 + 8..][..8]);
        let mut nothing = [];
        memory.read(PageId(7), 4096, &mut nothing);
        memory.write(PageId(7), 0, &nothing).unwrap();
    }

    /// Returns the parts of the application's view that a core dump would contain, as granules.
    fn dumped(memory: &SharedMemory) -> Vec<PageRange> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let view = memory.region_start()..memory.region_start() + memory.region_bytes() as usize;
        let mut dumped = Vec::new();
        let mut inside = None;
        for line in smaps.lines() {
            let bounds = line.split(' ').next().and_then(|word| word.split_once('-'));
            let address = |word: &str| usize::from_str_radix(word, 16).ok();
            if let Some((Some(start), Some(end))) = bounds.map(|(start, end)| (address(start), address(end)))
            {
                inside = view.contains(&start).then(|| PageRange {
                    first: PageId(((start - view.start) / 4096) as u64),
                    count: ((end - start) / 4096) as u64,
                });
            }
            let flags = line.strip_prefix("VmFlags:");
            if flags.is_some_and(|flags| !flags.split(' ').any(|flag| flag == "dd")) {
                dumped.extend(inside);
            }
        }
        dumped
    }

    #[test]
    fn a_core_dump_holds_what_has_frames() {
        let range = |first, count| PageRange { first: PageId(first), count };
        let memory = small_memory(10_000);
        memory.allocate(range(0, 10_000)).unwrap();
        assert_eq!(dumped(&memory), []);
        memory.write(PageId(5), 0, &[1]).unwrap();
        memory.write(PageId(100), 0, &[1; 50 * 4096]).unwrap();
        memory.write(PageId(9_000), 0, &[1; 10 * 4096]).unwrap();
        // Frames that were never read are zeros.
        memory.populate(range(5_000, 10)).unwrap();
        assert!(memory.prepare_dump(3));
        assert_eq!(dumped(&memory), [range(5, 1), range(100, 50), range(9_000, 10)]);
        for (runs_max, all, expected) in [
            (0, false, vec![]),
            (1, false, vec![range(5, 145)]),
            (2, true, vec![range(5, 145), range(9_000, 10)]),
        ] {
            let bytes = memory.application.bytes();
            memory.application.advise(0, bytes, Advice::LinuxDontDump).unwrap();
            assert_eq!(memory.prepare_dump(runs_max), all);
            assert_eq!(dumped(&memory), expected, "at most {runs_max} runs");
        }
    }
}
