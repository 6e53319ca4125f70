//! The region: two views of one sparse memfd.

use core::{
    ptr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};
use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use hiroba_base::{PageId, PageRange, PageSize};
use rustix::{
    fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create},
    io::Errno,
    mm::{Advice, MprotectFlags, ProtFlags},
};

use crate::{
    FaultSourceKind, MemoryError,
    frames::{ResidentAccount, SparsePageSet},
    mapping::{Mapping, Placement, address_bits, check_address_space_limit, check_file_size_limit},
};

/// Where the region begins unless a job says otherwise: clear of position-independent executables, heaps, stacks and
/// libraries, and of the shadow memory of the address and thread sanitizers, on x86-64 and 48-bit aarch64.
pub const REGION_START: usize = 0x4000_0000_0000;

/// The largest region, and the default: two views of it fit a 47-bit address space, two of 64 TiB would not.
pub const REGION_BYTES_MAX: u64 = 16 << 40;

/// Where the region lies and in what units it is kept coherent; the same on every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// The address of the first byte, a multiple of the page size.
    pub region_start: usize,
    /// The length in bytes, a multiple of the page size, at most [`REGION_BYTES_MAX`].
    pub region_bytes: u64,
    /// The coherence unit, at least the kernel's page size.
    pub page_size: PageSize,
}

impl Default for MemoryConfig {
    fn default() -> MemoryConfig {
        MemoryConfig {
            region_start: REGION_START,
            region_bytes: REGION_BYTES_MAX,
            page_size: PageSize::KIB_4,
        }
    }
}

/// The shared region of one node.
///
/// Memory that nobody touched costs nothing: pages get a *frame* when they are first written or made
/// accessible ([`populate`](SharedMemory::populate)); reads of others give zeros and leave them without one.
///
/// A forked child has neither view; using a `SharedMemory` there ends the child with SIGSEGV.
#[derive(Debug)]
pub struct SharedMemory {
    config: MemoryConfig,
    memfd: OwnedFd,
    application: Mapping,
    runtime: Mapping,
    allocated: SparsePageSet,
    populated: SparsePageSet,
    account: ResidentAccount,
    claimed: AtomicBool,
}

/// One fault source's hold on a region: two would undo each other's work.
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

    /// Takes the program's access to the whole region away: what a fault source does last, before it
    /// stops watching.
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
    /// Reserves the region's addresses and an equal amount for the runtime's view; no memory yet.
    ///
    /// # Errors
    /// When the configuration is bad, when a limit of the process (`RLIMIT_AS`, `RLIMIT_FSIZE`,
    /// descriptors) is too low, when the addresses are taken or do not exist on this kernel.
    pub fn reserve(config: MemoryConfig) -> Result<SharedMemory, MemoryError> {
        let bytes = check_config(&config)?;
        check_file_size_limit(config.region_bytes)?;
        check_address_space_limit(2 * config.region_bytes)?;
        let memfd = memfd_create("hiroba", MemfdFlags::CLOEXEC)
            .map_err(|errno| MemoryError::descriptor("the shared region's memfd", errno))?;
        ftruncate(&memfd, config.region_bytes)
            .map_err(MemoryError::system("ftruncate of the shared region"))?;
        let why = |errno| why_not_mapped(&config, errno);
        let place = Placement::Exactly(config.region_start);
        let application = Mapping::of_file(memfd.as_fd(), place, bytes, ProtFlags::empty()).map_err(why)?;
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        let runtime = Mapping::of_file(memfd.as_fd(), Placement::Anywhere, bytes, writable).map_err(why)?;
        for view in [&application, &runtime] {
            // A child would read stale pages and write into its parent's frames.
            view.advise(0, bytes, Advice::LinuxDontFork)
                .map_err(MemoryError::system("madvise(MADV_DONTFORK)"))?;
            // A dump would write the untouched memfd whole.
            view.advise(0, bytes, Advice::LinuxDontDump)
                .map_err(MemoryError::system("madvise(MADV_DONTDUMP)"))?;
            if config.page_size < PageSize::MIB_2 {
                // Huge frames would make untouched memory resident; kernels without them say EINVAL, which is as good.
                let _ = view.advise(0, bytes, Advice::LinuxNoHugepage);
            }
        }
        let pages = config.region_bytes / config.page_size.bytes() as u64;
        let page_set = || SparsePageSet::new(pages).map_err(MemoryError::system("mmap of a page table"));
        Ok(SharedMemory {
            config,
            memfd,
            application,
            runtime,
            allocated: page_set()?,
            populated: page_set()?,
            account: ResidentAccount::default(),
            claimed: AtomicBool::new(false),
        })
    }

    /// The address of the first byte.
    pub fn region_start(&self) -> usize {
        self.config.region_start
    }

    /// The length in bytes.
    pub fn region_bytes(&self) -> u64 {
        self.config.region_bytes
    }

    /// The coherence unit.
    pub fn page_size(&self) -> PageSize {
        self.config.page_size
    }

    /// How many pages the region has.
    pub fn pages(&self) -> u64 {
        self.config.region_bytes / self.config.page_size.bytes() as u64
    }

    /// The page that holds `address`, when it lies in the region.
    pub fn page_of(&self, address: usize) -> Option<PageId> {
        let offset = address.checked_sub(self.config.region_start)? as u64;
        (offset < self.config.region_bytes).then(|| PageId(offset / self.config.page_size.bytes() as u64))
    }

    /// Where the program finds `page`. The runtime itself never reads or writes there.
    ///
    /// # Panics
    /// When the region has no such page.
    pub fn address_of(&self, page: PageId) -> *mut u8 {
        self.application.at(self.offset_of(page, 0, 0))
    }

    /// Gives pages to the program: from now on a fault source may govern them, and core dumps hold them.
    /// Allocating them again changes nothing. Access stays `None`.
    ///
    /// # Errors
    /// When they lie outside the region, or the kernel has no memory for the record.
    pub fn allocate(&self, range: PageRange) -> Result<(), MemoryError> {
        let (offset, bytes) = self.span(range)?;
        if bytes == 0 {
            return Ok(());
        }
        // Only dumps depend on it, so a refusal (too many mappings) is no reason to refuse memory.
        let _ = self.application.advise(offset, bytes, Advice::LinuxDoDump);
        self.allocated.insert_range(range).map_err(MemoryError::system("mmap of a page table"))?;
        Ok(())
    }

    /// Lets the program's loads and stores on allocated pages run free without any fault source: for a job of one node, whose
    /// pages nobody else can change. The kernel gives frames as they are touched, and they are not counted.
    ///
    /// # Errors
    /// When the pages are not allocated, or the kernel refuses.
    pub fn open(&self, range: PageRange) -> Result<(), MemoryError> {
        let (offset, bytes) = self.allocated_span(range)?;
        let writable = MprotectFlags::READ | MprotectFlags::WRITE;
        let opened = self.application.protect(offset, bytes, writable);
        opened.map_err(MemoryError::system("mprotect of the application's view"))
    }

    /// Takes the program's access to the whole region away for good: any touch is a segmentation fault from now on, whatever
    /// watched over the region before. The runtime's view stays.
    pub fn close(&self) {
        let view = &self.application;
        if !view.is_here() {
            return;
        }
        let dropped = view.advise(0, view.bytes(), Advice::LinuxDontNeed);
        let closed = view.protect(0, view.bytes(), MprotectFlags::empty());
        debug_assert_eq!((dropped, closed), (Ok(()), Ok(())), "the application's view could not be closed");
    }

    /// Whether the program was given `page`. Safe to ask in signal context.
    pub fn is_allocated(&self, page: PageId) -> bool {
        self.allocated.contains(page)
    }

    /// Whether `page` has a frame.
    pub fn is_populated(&self, page: PageId) -> bool {
        self.populated.contains(page)
    }

    /// Gives a zeroed frame to each page of `range` that has none.
    ///
    /// # Errors
    /// When the pages lie outside the region, or the machine or control group has no memory left.
    pub fn populate(&self, range: PageRange) -> Result<(), MemoryError> {
        if range.count == 1 && self.populated.contains(range.first) {
            return Ok(());
        }
        self.span(range)?;
        for (run, has_frames) in self.populated.runs(range) {
            if has_frames {
                continue;
            }
            self.make_frames(run)?;
            let added =
                self.populated.insert_range(run).map_err(MemoryError::system("mmap of a page table"))?;
            self.account.add_frames(added, self.page_size().bytes());
        }
        Ok(())
    }

    /// Frames for the whole run, by a call that reports want of memory instead of raising SIGBUS as a store would.
    fn make_frames(&self, run: PageRange) -> Result<(), MemoryError> {
        let (offset, bytes) = self.span(run)?;
        let result = loop {
            match self.runtime.advise(offset, bytes, Advice::LinuxPopulateWrite) {
                Err(Errno::INTR | Errno::AGAIN) => continue,
                // Kernels before 5.14; the runtime's view then maps the frame when it first looks.
                Err(Errno::INVAL) => {
                    break fallocate(&self.memfd, FallocateFlags::empty(), offset as u64, bytes as u64);
                }
                other => break other,
            }
        };
        result.map_err(|errno| MemoryError::OutOfFrames { range: run, errno })
    }

    /// Copies the page out through the runtime's view; zeros when it has no frame, which it does not get by this.
    ///
    /// Other threads may write meanwhile: each byte is then old or new.
    ///
    /// # Panics
    /// When the region has no such page or `out` is not of the page's size.
    pub fn read_page(&self, page: PageId, out: &mut [u8]) {
        assert_eq!(out.len(), self.page_size().bytes(), "read_page needs a buffer of the page's size");
        self.read(page, 0, out);
    }

    /// Copies bytes of the page from `offset` out through the runtime's view, like [`read_page`](Self::read_page).
    ///
    /// # Panics
    /// When the region has no such page or the bytes are not within it.
    pub fn read(&self, page: PageId, offset: usize, out: &mut [u8]) {
        let start = self.offset_of(page, offset, out.len());
        if !self.populated.contains(page) {
            // A load from a hole of the memfd would give it a frame.
            out.fill(0);
            return;
        }
        // SAFETY: `offset_of` checked the bounds within the runtime's view, which is always readable; `out` is not
        // part of it because no reference to shared memory is ever made. A racing store of the program's gives torn
        // bytes, which every caller must expect.
        unsafe { ptr::copy_nonoverlapping(self.runtime.at(start), out.as_mut_ptr(), out.len()) }
    }

    /// Copies bytes into the page from `offset` through the runtime's view, whatever the program's access.
    ///
    /// # Errors
    /// When there is no memory for the page's frame.
    ///
    /// # Panics
    /// When the region has no such page or the bytes are not within it.
    pub fn write(&self, page: PageId, offset: usize, bytes: &[u8]) -> Result<(), MemoryError> {
        let start = self.offset_of(page, offset, bytes.len());
        self.populate(PageRange::single(page))?;
        // SAFETY: as in `read`, the other way round: the view is always writable.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.runtime.at(start), bytes.len()) }
        Ok(())
    }

    /// The eight bytes at `offset` of the page as an atomic, in the runtime's view.
    ///
    /// # Errors
    /// When there is no memory for the page's frame.
    ///
    /// # Panics
    /// When the region has no such page, or `offset` is not a multiple of 8 within it.
    pub fn atomic_u64(&self, page: PageId, offset: usize) -> Result<&AtomicU64, MemoryError> {
        assert!(
            offset.is_multiple_of(align_of::<AtomicU64>()),
            "an atomic must be aligned, got offset {offset}"
        );
        let start = self.offset_of(page, offset, size_of::<AtomicU64>());
        self.populate(PageRange::single(page))?;
        // SAFETY: in bounds, aligned (views begin on system pages) and mapped readable and writable as long as `self`;
        // all bit patterns are valid, and the program's own accesses are those of another process to us.
        Ok(unsafe { AtomicU64::from_ptr(self.runtime.at(start).cast::<u64>()) })
    }

    /// How many pages have a frame.
    pub fn frames(&self) -> u64 {
        self.account.frames()
    }

    /// How many twins there are.
    pub fn twins(&self) -> u64 {
        self.account.twins()
    }

    /// What frames and twins take now, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.account.bytes()
    }

    /// The most that frames and twins took at once, in bytes.
    pub fn resident_bytes_max(&self) -> u64 {
        self.account.bytes_max()
    }

    pub(crate) fn account(&self) -> &ResidentAccount {
        &self.account
    }

    /// The allocated page that holds `address`: the question every fault begins with.
    pub(crate) fn allocated_page_of(&self, address: usize) -> Option<PageId> {
        self.page_of(address).filter(|page| self.allocated.contains(*page))
    }

    /// Fails unless all of `range` is allocated; else its offset and length in bytes.
    pub(crate) fn allocated_span(&self, range: PageRange) -> Result<(usize, usize), MemoryError> {
        let span = self.span(range)?;
        if self.allocated.contains_range(range) { Ok(span) } else { Err(MemoryError::NotAllocated { range }) }
    }

    /// A new set of this region's pages.
    pub(crate) fn page_set(&self) -> Result<SparsePageSet, MemoryError> {
        SparsePageSet::new(self.pages()).map_err(MemoryError::system("mmap of a page table"))
    }

    /// The application's view, for fault sources alone.
    pub(crate) fn application(&self) -> &Mapping {
        &self.application
    }

    /// Offset and length of `range` in bytes.
    fn span(&self, range: PageRange) -> Result<(usize, usize), MemoryError> {
        match range.first.0.checked_add(range.count) {
            Some(end) if end <= self.pages() => {
                let unit = self.page_size().bytes();
                Ok((range.first.0 as usize * unit, range.count as usize * unit))
            }
            _ => Err(MemoryError::OutsideRegion { range, pages: self.pages() }),
        }
    }

    /// The offset in a view of `bytes` bytes from `offset` of `page`.
    fn offset_of(&self, page: PageId, offset: usize, bytes: usize) -> usize {
        let unit = self.page_size().bytes();
        assert!(page.0 < self.pages(), "the region has {} pages, got {page}", self.pages());
        assert!(
            bytes <= unit && offset <= unit - bytes,
            "a page has {unit} bytes, got {bytes} bytes from offset {offset}"
        );
        page.0 as usize * unit + offset
    }
}

/// The region's length as a `usize`, when the configuration makes sense.
fn check_config(config: &MemoryConfig) -> Result<usize, MemoryError> {
    let page_bytes = config.page_size.bytes();
    let system_bytes = rustix::param::page_size();
    if page_bytes < system_bytes {
        return Err(MemoryError::PageSizeBelowSystem { page_bytes, system_bytes });
    }
    let bad = MemoryError::BadRegion {
        region_start: config.region_start,
        region_bytes: config.region_bytes,
        page_bytes,
    };
    let aligned = config.region_start.is_multiple_of(page_bytes)
        && config.region_bytes.is_multiple_of(page_bytes as u64)
        && (1..=REGION_BYTES_MAX).contains(&config.region_bytes)
        && config.region_start > 0;
    match usize::try_from(config.region_bytes) {
        Ok(bytes) if aligned && config.region_start.checked_add(bytes).is_some() => Ok(bytes),
        _ => Err(bad),
    }
}

/// What a refused mapping means to the user.
fn why_not_mapped(config: &MemoryConfig, errno: Errno) -> MemoryError {
    let region_end = config.region_start + config.region_bytes as usize;
    match errno {
        Errno::EXIST => MemoryError::AddressTaken { region_start: config.region_start, region_end },
        Errno::NOMEM => MemoryError::AddressSpaceNarrow {
            region_end,
            region_bytes: config.region_bytes,
            address_bits: address_bits(),
        },
        _ => MemoryError::System { operation: "mmap of the shared region", errno },
    }
}

/// Shared memory is used through `Arc` wherever two threads meet.
const _: fn() = || {
    fn shareable<T: Send + Sync>() {}
    shareable::<Arc<SharedMemory>>();
};

#[cfg(test)]
pub(crate) mod tests {
    use core::sync::atomic::AtomicUsize;

    use super::*;

    /// Tests run side by side in one process: each takes other addresses.
    pub(crate) fn small_config(pages: u64) -> MemoryConfig {
        static NEXT_START: AtomicUsize = AtomicUsize::new(REGION_START);
        let region_bytes = pages * PageSize::KIB_4.bytes() as u64;
        let region_start =
            NEXT_START.fetch_add(region_bytes.next_multiple_of(1 << 30) as usize, Ordering::Relaxed);
        MemoryConfig { region_start, region_bytes, page_size: PageSize::KIB_4 }
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
        assert_eq!(memory.pages(), 8);
    }

    #[test]
    fn reads_of_holes_cost_nothing_and_writes_make_frames() {
        let memory = small_memory(8);
        let mut page = [1; 4096];
        memory.read_page(PageId(2), &mut page);
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
    fn a_large_region_costs_nothing_until_touched() {
        let config = MemoryConfig { region_start: REGION_START + (32 << 40), ..MemoryConfig::default() };
        let memory = SharedMemory::reserve(config).unwrap();
        memory.allocate(PageRange { first: PageId(0), count: memory.pages() }).unwrap();
        let last = PageId(memory.pages() - 1);
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
            let refused = Err(MemoryError::OutsideRegion { range, pages: 8 });
            assert_eq!((memory.allocate(range), memory.populate(range)), (refused.clone(), refused));
        }
    }

    #[test]
    #[should_panic(expected = "must be aligned")]
    fn an_unaligned_atomic_is_a_fault_of_the_caller() {
        let _ = small_memory(8).atomic_u64(PageId(0), 4);
    }

    #[test]
    #[should_panic(expected = "a page has 4096 bytes")]
    fn bytes_beyond_the_page_are_a_fault_of_the_caller() {
        let _ = small_memory(8).write(PageId(0), 4095, &[1, 2]);
    }
}
