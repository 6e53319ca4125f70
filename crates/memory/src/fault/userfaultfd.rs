//! userfaultfd on a shmem view: the common part of the event and the sigbus source.
//!
//! Read first: userfaultfd(2), ioctl_userfaultfd(2), and "Userfaultfd" in the kernel's admin guide. The view
//! is registered for missing, minor and write-protect faults. A page's access is the state of its page-table
//! entry:
//!
//! | access | entry | reached by |
//! |---|---|---|
//! | `None` | none | `MADV_DONTNEED` (the frame stays in the memfd) |
//! | `Read` | present, write-protected | `UFFDIO_CONTINUE` with `MODE_WP`, or `UFFDIO_WRITEPROTECT` if present |
//! | `Write` | present | `UFFDIO_CONTINUE`, after `MADV_DONTNEED` for a long page that is protected; for one granule `UFFDIO_WRITEPROTECT` to clear if present |
//!
//! The kernel may drop entries at any time (reclaim, migration), which lowers access to `None`.
//!
//! With asynchronous write tracking (`UFFD_FEATURE_WP_ASYNC`) a store to a write-protected entry does not
//! fault: the kernel clears the protection, and `PAGEMAP_SCAN` (`pagemap.rs`) finds the entries that have
//! lost it. So there is no access `Read`, and a *watched* granule is one whose entry we protected and query
//! later:
//!
//! | state | entry |
//! |---|---|
//! | watched, not written | present, write-protected; or a marker that keeps the protection |
//! | watched, written | present; or none, if the kernel dropped it: then it is mapped again unprotected, and counts as written |
//! | access `Write`, not watched | present, protected or not: it does not matter |

use core::ffi::{c_int, c_ulong};
use std::{
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use hiroba_base::{Access, PageId, PageRange, PageSet};
use rustix::{
    fs::{MemfdFlags, Mode, OFlags, ftruncate, memfd_create},
    io::Errno,
    mm::{Advice, MprotectFlags, ProtFlags},
};

use super::kernel::{Addresses, last_errno};
use super::{WriteTracking, pagemap::Pagemap};
use crate::{
    FaultSourceKind, MemoryError, SharedMemory,
    frames::{SparsePageSet, WatchedSet},
    mapping::{Mapping, Placement},
    memory::Claim,
};

// <linux/userfaultfd.h>; the layouts and numbers are part of the kernel's stable interface.
const UFFD_API: u64 = 0xAA;
const UFFD_USER_MODE_ONLY: c_int = 1;
const UFFD_FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const UFFD_FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const UFFD_FEATURE_SIGBUS: u64 = 1 << 7;
const UFFD_FEATURE_THREAD_ID: u64 = 1 << 8;
const UFFD_FEATURE_MINOR_SHMEM: u64 = 1 << 10;
const UFFD_FEATURE_EXACT_ADDRESS: u64 = 1 << 11;
const UFFD_FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
const UFFD_FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const UFFD_FEATURE_WP_ASYNC: u64 = 1 << 15;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1 << 0;
const UFFDIO_REGISTER_MODE_WP: u64 = 1 << 1;
const UFFDIO_REGISTER_MODE_MINOR: u64 = 1 << 2;
const UFFDIO_WRITEPROTECT_MODE_WP: u64 = 1 << 0;
const UFFDIO_CONTINUE_MODE_WP: u64 = 1 << 1;

#[repr(C)]
#[derive(Clone, Copy)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct UffdioRange {
    start: u64,
    len: u64,
}

#[repr(C)]
struct UffdioRegister {
    range: UffdioRange,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdioWriteprotect {
    range: UffdioRange,
    mode: u64,
}

#[repr(C)]
struct UffdioContinue {
    range: UffdioRange,
    mode: u64,
    /// Bytes mapped, or a negative error.
    mapped: i64,
}

/// `_IOC` of <asm-generic/ioctl.h>, as used by x86-64, aarch64 and riscv64.
const fn request(direction: c_ulong, number: c_ulong, bytes: usize) -> c_ulong {
    (direction << 30) | ((bytes as c_ulong) << 16) | (0xAA << 8) | number
}

const IOC_NONE: c_ulong = 0;
const IOC_READ: c_ulong = 2;
const IOC_READ_WRITE: c_ulong = 3;
const USERFAULTFD_IOC_NEW: c_ulong = request(IOC_NONE, 0x00, 0);
const UFFDIO_API: c_ulong = request(IOC_READ_WRITE, 0x3F, size_of::<UffdioApi>());
const UFFDIO_REGISTER: c_ulong = request(IOC_READ_WRITE, 0x00, size_of::<UffdioRegister>());
const UFFDIO_WAKE: c_ulong = request(IOC_READ, 0x02, size_of::<UffdioRange>());
const UFFDIO_WRITEPROTECT: c_ulong = request(IOC_READ_WRITE, 0x06, size_of::<UffdioWriteprotect>());
const UFFDIO_CONTINUE: c_ulong = request(IOC_READ_WRITE, 0x07, size_of::<UffdioContinue>());

/// The required features, with their names in messages.
const FEATURES_NEEDED: [(u64, &str); 5] = [
    (UFFD_FEATURE_PAGEFAULT_FLAG_WP, "write-protect faults"),
    (UFFD_FEATURE_MISSING_SHMEM, "missing faults on shared memory"),
    (UFFD_FEATURE_MINOR_SHMEM, "minor faults on shared memory"),
    (UFFD_FEATURE_EXACT_ADDRESS, "exact fault addresses"),
    (UFFD_FEATURE_WP_HUGETLBFS_SHMEM, "write protection of shared memory"),
];

/// Features that are required for one use only.
const FEATURES_BY_USE: [(u64, &str); 4] = [
    (UFFD_FEATURE_SIGBUS, "faults as SIGBUS"),
    (UFFD_FEATURE_THREAD_ID, "thread ids in faults"),
    (UFFD_FEATURE_WP_UNPOPULATED, "write protection of absent pages"),
    (UFFD_FEATURE_WP_ASYNC, ASYNC_IN_WORDS),
];

const ASYNC_IN_WORDS: &str = "a userfaultfd that notes writes (UFFD_FEATURE_WP_ASYNC)";

/// How faults are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// As messages on the descriptor, also for faults inside system calls.
    Messages,
    /// As SIGBUS; a system call fails with `EFAULT`.
    Sigbus,
}

impl Delivery {
    fn features(self, tracking: WriteTracking) -> u64 {
        let needed = FEATURES_NEEDED.iter().fold(0, |all, feature| all | feature.0);
        let by_delivery = match self {
            Delivery::Messages => UFFD_FEATURE_THREAD_ID,
            Delivery::Sigbus => UFFD_FEATURE_SIGBUS,
        };
        let by_tracking = match tracking {
            WriteTracking::Fault => 0,
            WriteTracking::Async => UFFD_FEATURE_WP_ASYNC | UFFD_FEATURE_WP_UNPOPULATED,
        };
        needed | by_delivery | by_tracking
    }

    fn kind(self) -> FaultSourceKind {
        match self {
            Delivery::Messages => FaultSourceKind::Event,
            Delivery::Sigbus => FaultSourceKind::Sigbus,
        }
    }

    fn purpose(self) -> &'static str {
        match self {
            Delivery::Messages => "reports faults inside system calls too",
            Delivery::Sigbus => "reports faults of user code",
        }
    }
}

/// An open, probed userfaultfd.
pub(super) struct Userfaultfd {
    descriptor: OwnedFd,
}

impl From<Addresses> for UffdioRange {
    fn from(range: Addresses) -> UffdioRange {
        UffdioRange { start: range.start as u64, len: range.bytes as u64 }
    }
}

impl Userfaultfd {
    /// Opens a userfaultfd and tries all required operations on a scratch page. Kernel versions are not
    /// sufficient evidence, because distributions backport features.
    pub(super) fn open(delivery: Delivery, pagemap: Option<&Pagemap>) -> Result<Userfaultfd, MemoryError> {
        let tracking = if pagemap.is_some() { WriteTracking::Async } else { WriteTracking::Fault };
        let opened = Userfaultfd { descriptor: open_descriptor(delivery)? };
        let mut api = UffdioApi { api: UFFD_API, features: delivery.features(tracking), ioctls: 0 };
        match opened.ioctl(UFFDIO_API, &mut api) {
            Ok(()) => {}
            Err(Errno::INVAL) => return Err(why_too_old(delivery, tracking)),
            Err(errno) => return Err(MemoryError::System { operation: "ioctl(UFFDIO_API)", errno }),
        }
        opened.probe(pagemap)?;
        Ok(opened)
    }

    /// Uses the system call itself, because the C face intercepts the C library's `ioctl`.
    fn ioctl<T>(&self, request: c_ulong, argument: &mut T) -> Result<(), Errno> {
        // SAFETY: each request of this file comes with the structure that <linux/userfaultfd.h> defines for
        // it, which the kernel reads and writes only during the call. Its effects on page tables are confined
        // to registered ranges of the application's view, to which the runtime has no references.
        let status = unsafe {
            libc::syscall(libc::SYS_ioctl, self.descriptor.as_raw_fd(), request, &raw mut *argument)
        };
        if status == 0 { Ok(()) } else { Err(last_errno()) }
    }

    fn register(&self, range: Addresses) -> Result<(), Errno> {
        let mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR | UFFDIO_REGISTER_MODE_WP;
        self.ioctl(UFFDIO_REGISTER, &mut UffdioRegister { range: range.into(), mode, ioctls: 0 })
    }

    /// Maps the frames of `range` that are not mapped yet. Calls `met_mapped` for each granule that was
    /// mapped already: its write protection is unchanged, and threads that wait for it still wait.
    fn map(
        &self,
        range: Addresses,
        write_protected: bool,
        mut met_mapped: impl FnMut(Addresses) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mode = if write_protected { UFFDIO_CONTINUE_MODE_WP } else { 0 };
        let granule_bytes = rustix::param::page_size();
        let end = range.start + range.bytes;
        let mut start = range.start;
        let mut bytes_max = range.bytes;
        while start < end {
            let piece = Addresses { start, bytes: bytes_max.min(end - start) };
            let mut argument = UffdioContinue { range: piece.into(), mode, mapped: 0 };
            match self.ioctl(UFFDIO_CONTINUE, &mut argument) {
                Ok(()) => {
                    start += piece.bytes;
                    bytes_max = end - start;
                }
                // The piece spans several of the kernel's mappings, which the call does not accept: the
                // program may execute a part of it, or has given advice on it.
                Err(Errno::NOENT) if piece.bytes > granule_bytes => {
                    bytes_max = (piece.bytes / 2).next_multiple_of(granule_bytes);
                }
                // A part was mapped; continuing from there shows what stopped the kernel.
                Err(Errno::AGAIN) => start += usize::try_from(argument.mapped).unwrap_or(0),
                Err(Errno::EXIST) => {
                    met_mapped(Addresses { start, bytes: granule_bytes })?;
                    start += granule_bytes;
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Sets or clears the write protection of mapped pages in `range`; clearing wakes threads that wait
    /// there.
    fn write_protect(&self, range: Addresses, on: bool) -> Result<(), Errno> {
        let mode = if on { UFFDIO_WRITEPROTECT_MODE_WP } else { 0 };
        loop {
            match self.ioctl(UFFDIO_WRITEPROTECT, &mut UffdioWriteprotect { range: range.into(), mode }) {
                Err(Errno::AGAIN) => continue,
                other => return other,
            }
        }
    }

    fn wake(&self, range: Addresses) -> Result<(), Errno> {
        self.ioctl(UFFDIO_WAKE, &mut UffdioRange::from(range))
    }

    /// Tries the operations on registered pages with a page of its own.
    fn probe(&self, pagemap: Option<&Pagemap>) -> Result<(), MemoryError> {
        let bytes = rustix::param::page_size();
        let memfd = memfd_create("hiroba-probe", MemfdFlags::CLOEXEC)
            .map_err(|errno| MemoryError::descriptor("a probe's memfd", errno))?;
        ftruncate(&memfd, bytes as u64).map_err(MemoryError::system("ftruncate of a probe"))?;
        rustix::io::pwrite(&memfd, &[1], 0).map_err(MemoryError::system("write to a probe"))?;
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        let scratch =
            Mapping::of_file(std::os::fd::AsFd::as_fd(&memfd), Placement::Anywhere, bytes, writable)
                .map_err(MemoryError::system("mmap of a probe"))?;
        let range = Addresses { start: scratch.start().addr(), bytes };
        let lacks = |what: &'static str| {
            move |errno: Errno| MemoryError::UserfaultfdTooOld { missing: format!("{what} ({errno})") }
        };
        self.register(range).map_err(lacks("minor and write-protect faults on shared memory together"))?;
        self.map(range, true, |_| Ok(())).map_err(lacks("UFFDIO_CONTINUE_MODE_WP"))?;
        if let Some(pagemap) = pagemap {
            probe_tracking(pagemap, &scratch)?;
        }
        self.write_protect(range, false).map_err(lacks("UFFDIO_WRITEPROTECT on shared memory"))
        // Unmapping the scratch page unregisters it.
    }
}

/// Tries on a mapped, write-protected page whether a store succeeds and is found exactly once, also when the
/// kernel drops the entry before the scan.
fn probe_tracking(pagemap: &Pagemap, scratch: &Mapping) -> Result<(), MemoryError> {
    let range = Addresses { start: scratch.start().addr(), bytes: scratch.bytes() };
    let lacks = |missing: String| MemoryError::NoAsyncTracking { missing };
    let written = || {
        let mut written_bytes = 0;
        pagemap
            .take_written(range, |found| written_bytes += found.bytes)
            .map_err(|errno| lacks(format!("PAGEMAP_SCAN ({errno})")))?;
        Ok(written_bytes)
    };
    let store = |value: u8| {
        // SAFETY: the probe's own page, mapped with a frame behind it, whose write protection the kernel
        // clears by itself.
        unsafe { scratch.start().write_volatile(value) };
    };
    let before = written()?;
    store(2);
    let (stored, again) = (written()?, written()?);
    store(3);
    scratch
        .advise(0, scratch.bytes(), Advice::LinuxDontNeed)
        .map_err(MemoryError::system("madvise(MADV_DONTNEED) of a probe"))?;
    let found = [before, stored, again, written()?];
    if found == [0, scratch.bytes(), 0, scratch.bytes()] {
        return Ok(());
    }
    Err(lacks(format!("PAGEMAP_SCAN that finds each write once (not {found:?} bytes in four scans)")))
}

/// Opens a descriptor: from the device, whose file permissions decide, otherwise by the system call.
fn open_descriptor(delivery: Delivery) -> Result<OwnedFd, MemoryError> {
    const PURPOSE: &str = "a userfaultfd";
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    match rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(device) => {
            // SAFETY: the request takes flags by value and touches no memory.
            let fd = unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW as _, flags) };
            if fd >= 0 {
                // SAFETY: the kernel just made this descriptor, and no other code knows of it.
                return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
            }
            if let errno @ (Errno::MFILE | Errno::NFILE) = last_errno() {
                return Err(MemoryError::descriptor(PURPOSE, errno));
            }
        }
        Err(errno @ (Errno::MFILE | Errno::NFILE)) => return Err(MemoryError::descriptor(PURPOSE, errno)),
        // The system call may still be allowed.
        Err(_) => {}
    }
    let user_mode = match delivery {
        Delivery::Messages => None,
        Delivery::Sigbus => Some(flags | UFFD_USER_MODE_ONLY),
    };
    let mut errno = Errno::PERM;
    for flags in [Some(flags), user_mode].into_iter().flatten() {
        // SAFETY: the call takes flags by value and touches no memory.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if fd >= 0 {
            // SAFETY: the kernel just made this descriptor, and no other code knows of it.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd as c_int) });
        }
        errno = last_errno();
    }
    Err(match errno {
        Errno::NOSYS => MemoryError::NoUserfaultfd,
        Errno::MFILE | Errno::NFILE => MemoryError::descriptor(PURPOSE, errno),
        _ => MemoryError::UserfaultfdRefused { purpose: delivery.purpose(), errno },
    })
}

/// Returns the error that names the features this kernel lacks. A descriptor that requests none learns all of
/// them.
fn why_too_old(delivery: Delivery, tracking: WriteTracking) -> MemoryError {
    let mut api = UffdioApi { api: UFFD_API, features: 0, ioctls: 0 };
    if let Ok(descriptor) = open_descriptor(delivery) {
        let asked = Userfaultfd { descriptor };
        // A refusal leaves no feature offered; then all are named.
        let _ = asked.ioctl(UFFDIO_API, &mut api);
    }
    let names = |missing: u64| {
        let all = FEATURES_NEEDED.iter().chain(&FEATURES_BY_USE);
        let named: Vec<&str> = all.filter(|(bit, _)| missing & bit != 0).map(|(_, name)| *name).collect();
        named.join(", ")
    };
    match delivery.features(WriteTracking::Fault) & !api.features {
        0 => MemoryError::NoAsyncTracking { missing: names(delivery.features(tracking) & !api.features) },
        missing => MemoryError::UserfaultfdTooOld { missing: names(missing) },
    }
}

/// Two watched ranges are scanned together when at most this many granules lie between them: scanning that
/// many costs about as much as another call.
const JOINED_GAP_GRANULES_MAX: u64 = 512;

/// Joins ranges that come in ascending order.
#[derive(Default)]
struct Joining {
    pending: Option<PageRange>,
}

impl Joining {
    /// Adds a range. Returns the joined ranges before it, if it may not be joined to them across the gap.
    fn add(&mut self, range: PageRange, may_join: impl Fn(PageRange) -> bool) -> Option<PageRange> {
        let gap_behind =
            |before: PageRange| PageRange { first: before.end(), count: range.first.0 - before.end().0 };
        match &mut self.pending {
            Some(before) if may_join(gap_behind(*before)) => {
                before.count = range.end().0 - before.first.0;
                None
            }
            pending => pending.replace(range),
        }
    }
}

/// One collection in this many removes chunks of the watched set that have become empty.
const COLLECTIONS_PER_TIDYING: u64 = 64;

/// State of asynchronous tracking beside the userfaultfd.
struct Tracker {
    pagemap: Pagemap,
    watched: WatchedSet,
    /// Pages that the userfaultfd covers: a scan must not touch any others.
    registered: SparsePageSet,
    collections: AtomicU64,
    faulting: Faulting,
}

/// Pages on which stores fault although stores to other pages are recorded. The kernel records writes for a
/// whole userfaultfd, so these pages have their own.
struct Faulting {
    uffd: Userfaultfd,
    pages: SparsePageSet,
    /// True if there are any.
    is_used: AtomicBool,
}

/// The application's view under a userfaultfd.
pub(super) struct Supervised {
    uffd: Userfaultfd,
    /// Granules whose entries are probably present. The set only decides which call is tried first: the
    /// kernel drops entries unseen. A fault on an absent entry removes the granule (`forget`), and the next
    /// `protect` maps it.
    mapped: SparsePageSet,
    /// Granules of long pages whose entries are probably write-protected.
    protected: SparsePageSet,
    tracker: Option<Tracker>,
    delivery: Delivery,
    // Last, so that the descriptor is closed when the region becomes free for another source.
    claim: Claim,
}

const PAGE_TABLE: &str = "mmap of a page table";
const WRITEPROTECT: &str = "ioctl(UFFDIO_WRITEPROTECT)";
const CONTINUE: &str = "ioctl(UFFDIO_CONTINUE)";
const PAGEMAP_SCAN: &str = "ioctl(PAGEMAP_SCAN)";

impl Supervised {
    pub(super) fn open(
        memory: Arc<SharedMemory>,
        delivery: Delivery,
        tracking: WriteTracking,
    ) -> Result<Supervised, MemoryError> {
        let claim = Claim::new(memory, delivery.kind())?;
        let pagemap = match tracking {
            WriteTracking::Fault => None,
            WriteTracking::Async => Some(Pagemap::open()?),
        };
        let uffd = Userfaultfd::open(delivery, pagemap.as_ref())?;
        let mapped = claim.memory().page_set()?;
        let protected = claim.memory().page_set()?;
        let tracker = match pagemap {
            None => None,
            Some(pagemap) => Some(Tracker {
                pagemap,
                watched: claim.memory().watched_set()?,
                registered: claim.memory().page_set()?,
                collections: AtomicU64::new(0),
                faulting: Faulting {
                    uffd: Userfaultfd::open(delivery, None)?,
                    pages: claim.memory().page_set()?,
                    is_used: AtomicBool::new(false),
                },
            }),
        };
        Ok(Supervised { uffd, mapped, protected, tracker, delivery, claim })
    }

    pub(super) fn memory(&self) -> &SharedMemory {
        self.claim.memory()
    }

    /// Returns all descriptors on which faults are reported.
    pub(super) fn descriptors(&self) -> Vec<&OwnedFd> {
        let faulting = self.tracker.as_ref().map(|tracker| &tracker.faulting.uffd);
        [Some(&self.uffd), faulting].into_iter().flatten().map(|uffd| &uffd.descriptor).collect()
    }

    /// Returns the descriptors on which there can be faults now.
    pub(super) fn descriptors_in_use(&self) -> impl Iterator<Item = &OwnedFd> {
        // Relaxed: the pages are registered before any thread can fault on them.
        let in_use = |faulting: &&Faulting| faulting.is_used.load(Ordering::Relaxed);
        let faulting = self.tracker.as_ref().map(|tracker| &tracker.faulting).filter(in_use);
        [Some(&self.uffd), faulting.map(|faulting| &faulting.uffd)]
            .into_iter()
            .flatten()
            .map(|uffd| &uffd.descriptor)
    }

    /// Returns true if stores to these pages fault; all of them were registered alike.
    fn do_stores_fault(&self, pages: PageRange) -> bool {
        match &self.tracker {
            // Relaxed: as above.
            Some(Tracker { faulting, .. }) => {
                faulting.is_used.load(Ordering::Relaxed) && faulting.pages.contains(pages.first)
            }
            None => true,
        }
    }

    fn uffd_of(&self, pages: PageRange) -> &Userfaultfd {
        match &self.tracker {
            Some(tracker) if self.do_stores_fault(pages) => &tracker.faulting.uffd,
            _ => &self.uffd,
        }
    }

    pub(super) fn tracking(&self) -> WriteTracking {
        if self.tracker.is_some() { WriteTracking::Async } else { WriteTracking::Fault }
    }

    pub(super) fn register(&self, pages: PageRange, stores: WriteTracking) -> Result<(), MemoryError> {
        let (offset, bytes) = self.memory().allocated_span(pages)?;
        if bytes == 0 {
            return Ok(());
        }
        let view = self.memory().application();
        let faulting = self.tracker.as_ref().map(|tracker| &tracker.faulting);
        if let Some(faulting) = faulting.filter(|_| stores == WriteTracking::Fault) {
            faulting.pages.insert_range(pages).map_err(MemoryError::system(PAGE_TABLE))?;
            faulting.is_used.store(true, Ordering::Relaxed);
        }
        // In this order no thread ever finds the pages accessible and unwatched.
        self.uffd_of(pages)
            .register(self.addresses(pages))
            .map_err(MemoryError::of_view("ioctl(UFFDIO_REGISTER)"))?;
        view.protect(offset, bytes, MprotectFlags::READ | MprotectFlags::WRITE)
            .map_err(MemoryError::of_view("mprotect"))?;
        if let Some(tracker) = self.tracker.as_ref().filter(|_| stores == WriteTracking::Async) {
            tracker.registered.insert_range(pages).map_err(MemoryError::system(PAGE_TABLE))?;
        }
        self.protect(pages, Access::None)
    }

    /// Removes pages from the record; the kernel forgets them with the mapping that it replaces.
    pub(super) fn let_go(&self, pages: PageRange) -> Result<(), MemoryError> {
        if let Some(tracker) = &self.tracker {
            for set in [&tracker.registered, &tracker.faulting.pages] {
                set.remove_range(pages).map_err(MemoryError::system(PAGE_TABLE))?;
            }
        }
        Ok(())
    }

    pub(super) fn protect(&self, pages: PageRange, access: Access) -> Result<(), MemoryError> {
        if access == Access::Read && !self.do_stores_fault(pages) {
            debug_assert!(false, "with asynchronous write tracking no store can be made to fault");
            return self.watch(pages);
        }
        let (offset, bytes) = self.memory().allocated_span(pages)?;
        if bytes == 0 {
            return Ok(());
        }
        // First: otherwise a collection in another thread would take the changed entries for written ones.
        self.unwatch(pages)?;
        if access == Access::None {
            self.unmap(offset, bytes)?;
            self.protected.remove_range(pages).map_err(MemoryError::system(PAGE_TABLE))?;
            self.mapped.remove_range(pages).map_err(MemoryError::system(PAGE_TABLE))?;
            return Ok(());
        }
        self.memory().populate(pages)?;
        let write_protected = access == Access::Read;
        let uffd = self.uffd_of(pages);
        if !write_protected {
            self.unmap_protected(pages)?;
        }
        let mut some_sleep_on = false;
        for (run, probably_mapped) in self.mapped.runs(pages) {
            let addresses = self.addresses(run);
            if probably_mapped {
                let changed = uffd.write_protect(addresses, write_protected);
                changed.map_err(MemoryError::of_view(WRITEPROTECT))?;
                some_sleep_on |= write_protected;
                continue;
            }
            let mut met_mapped = false;
            let note = |_| {
                met_mapped = true;
                Ok(())
            };
            uffd.map(addresses, write_protected, note).map_err(MemoryError::of_view(CONTINUE))?;
            if met_mapped {
                let changed = uffd.write_protect(addresses, write_protected);
                changed.map_err(MemoryError::of_view(WRITEPROTECT))?;
                some_sleep_on |= write_protected;
            }
            self.mapped.insert_range(run).map_err(MemoryError::system(PAGE_TABLE))?;
        }
        if write_protected && pages.count > 1 {
            self.protected.insert_range(pages).map_err(MemoryError::system(PAGE_TABLE))?;
        }
        // Mapping and clearing wake threads; setting the protection of mapped pages does not.
        if some_sleep_on { self.wake(pages) } else { Ok(()) }
    }

    /// Removes the entries of long pages that are about to become writable again. The kernel does not make an
    /// entry writable when it clears the protection: the first store to each would fault, which costs several
    /// times as much as mapping all of them anew. A thread that meets the gap faults, and resumes when they
    /// are mapped.
    fn unmap_protected(&self, pages: PageRange) -> Result<(), MemoryError> {
        for (run, is_protected) in self.protected.runs(pages) {
            if is_protected && run.count > 1 {
                let (offset, bytes) = self.memory().allocated_span(run)?;
                self.unmap(offset, bytes)?;
                self.mapped.remove_range(run).map_err(MemoryError::system(PAGE_TABLE))?;
            }
        }
        self.protected.remove_range(pages).map(drop).map_err(MemoryError::system(PAGE_TABLE))
    }

    fn unmap(&self, offset: usize, bytes: usize) -> Result<(), MemoryError> {
        let view = self.memory().application();
        view.advise(offset, bytes, Advice::LinuxDontNeed)
            .map_err(MemoryError::of_view("madvise(MADV_DONTNEED)"))
    }

    pub(super) fn watch(&self, pages: PageRange) -> Result<(), MemoryError> {
        let tracker = self.tracker.as_ref().ok_or(MemoryError::NotTracking)?;
        let (_, bytes) = self.memory().allocated_span(pages)?;
        if bytes == 0 {
            return Ok(());
        }
        self.memory().populate(pages)?;
        let mut some_sleep_on = false;
        for (run, was_watched) in tracker.watched.runs_of(pages) {
            // Before the entry can be written without a fault: otherwise a collection in another thread might
            // take the record of a write for that of an unwatched granule.
            tracker.watched.insert_range(run).map_err(MemoryError::system(PAGE_TABLE))?;
            for (part, probably_mapped) in self.mapped.runs(run) {
                some_sleep_on |= match (was_watched, probably_mapped) {
                    // Recorded writes stay recorded.
                    (true, true) => true,
                    (true, false) => self.map_again(part)?,
                    (false, true) => self.protect_mapped(part)?,
                    (false, false) => self.map_protected(part)?,
                };
            }
        }
        if some_sleep_on { self.wake(pages) } else { Ok(()) }
    }

    /// Maps watched granules whose entries the kernel dropped together with its record of writes. They are
    /// mapped unprotected, so that the next collection reports them as written. Returns true if some were
    /// mapped already, and sleeping threads must be woken.
    fn map_again(&self, run: PageRange) -> Result<bool, MemoryError> {
        let mut met_mapped = false;
        let note = |_| {
            met_mapped = true;
            Ok(())
        };
        self.uffd.map(self.addresses(run), false, note).map_err(MemoryError::of_view(CONTINUE))?;
        self.mapped.insert_range(run).map_err(MemoryError::system(PAGE_TABLE))?;
        Ok(met_mapped)
    }

    /// Begins to record writes to mapped granules.
    fn protect_mapped(&self, run: PageRange) -> Result<bool, MemoryError> {
        self.uffd.write_protect(self.addresses(run), true).map_err(MemoryError::of_view(WRITEPROTECT))?;
        Ok(true)
    }

    /// Maps granules so that writes to them are recorded. Granules that were mapped already are protected one
    /// by one, because a waiting thread may have written to those that this call has mapped.
    fn map_protected(&self, run: PageRange) -> Result<bool, MemoryError> {
        let mut met_mapped = false;
        let protect = |granule| {
            met_mapped = true;
            self.uffd.write_protect(granule, true)
        };
        self.uffd.map(self.addresses(run), true, protect).map_err(MemoryError::of_view(CONTINUE))?;
        self.mapped.insert_range(run).map_err(MemoryError::system(PAGE_TABLE))?;
        Ok(met_mapped)
    }

    pub(super) fn unwatch(&self, pages: PageRange) -> Result<(), MemoryError> {
        match &self.tracker {
            None => Ok(()),
            Some(tracker) => tracker.watched.remove_range(pages).map_err(MemoryError::system(PAGE_TABLE)),
        }
    }

    pub(super) fn collect_written(&self, out: &mut PageSet) -> Result<(), MemoryError> {
        let Some(tracker) = self.tracker.as_ref().filter(|tracker| !tracker.watched.is_empty()) else {
            return Ok(());
        };
        let is_near = |gap: PageRange| gap.count <= JOINED_GAP_GRANULES_MAX;
        let mut joining = Joining::default();
        tracker
            .watched
            .each_run(|run| joining.add(run, is_near).map_or(Ok(()), |span| self.scan(tracker, span, out)))?;
        joining.pending.map_or(Ok(()), |span| self.scan(tracker, span, out))?;
        // Relaxed: the exact count does not matter.
        if tracker.collections.fetch_add(1, Ordering::Relaxed) % COLLECTIONS_PER_TIDYING == 0 {
            tracker.watched.tidy().map_err(MemoryError::system(PAGE_TABLE))?;
        }
        Ok(())
    }

    /// Adds the watched and written granules of a span to `out`, and resets their records.
    ///
    /// The kernel takes mapped granules that are not watched for written, and a scan that resets would
    /// protect them, at the cost of a shootdown and of a trap at the next write. It refuses to reset records
    /// where no userfaultfd of ours keeps any. Where such granules lie between watched ones, a scan without
    /// changes first finds the written ones, which are mostly few.
    fn scan(&self, tracker: &Tracker, span: PageRange, out: &mut PageSet) -> Result<(), MemoryError> {
        let is_other =
            |run: PageRange| self.mapped.contains_any(run) || !tracker.registered.contains_range(run);
        let has_others = |pages: PageRange| {
            let mut unwatched = tracker.watched.runs_of(pages).filter(|(_, watched)| !watched);
            unwatched.any(|(run, _)| is_other(run))
        };
        if !has_others(span) {
            return self.take_written(tracker, span, out);
        }
        let mut taken = Ok(());
        let mut joining = Joining::default();
        let visit = |found: Addresses| {
            for (run, watched) in tracker.watched.runs_of(self.granules_at(found)) {
                if watched
                    && let Some(span) = joining.add(run, |gap| !has_others(gap))
                    && taken.is_ok()
                {
                    taken = self.take_written(tracker, span, out);
                }
            }
        };
        let found = tracker.pagemap.find_written(self.addresses(span), visit);
        found.map_err(MemoryError::system(PAGEMAP_SCAN))?;
        taken?;
        joining.pending.map_or(Ok(()), |span| self.take_written(tracker, span, out))
    }

    fn take_written(
        &self,
        tracker: &Tracker,
        pages: PageRange,
        out: &mut PageSet,
    ) -> Result<(), MemoryError> {
        let visit = |found: Addresses| {
            let written = self.granules_at(found);
            // The present state: the scan may have met granules that another thread has just begun to watch.
            for (run, watched) in tracker.watched.runs_of(written) {
                if watched {
                    run.iter().for_each(|granule| {
                        out.insert(granule);
                    });
                }
            }
        };
        let scanned = tracker.pagemap.take_written(self.addresses(pages), visit);
        scanned.map_err(MemoryError::system(PAGEMAP_SCAN))
    }

    pub(super) fn find_unwritten(&self, pages: PageRange, out: &mut PageSet) -> Result<(), MemoryError> {
        let tracker = self.tracker.as_ref().ok_or(MemoryError::NotTracking)?;
        self.memory().span(pages)?;
        let visit = |found: Addresses| out.push(self.granules_at(found));
        let scanned = tracker.pagemap.find_unwritten(self.addresses(pages), visit);
        scanned.map_err(MemoryError::system(PAGEMAP_SCAN))
    }

    /// Records that a fault found no entry for `granule`.
    pub(super) fn forget(&self, granule: PageId) {
        // Without memory for the record, the next `protect` tries the slower way in vain, and the fault
        // repeats.
        let _ = self.mapped.remove_range(PageRange::single(granule));
    }

    fn wake(&self, pages: PageRange) -> Result<(), MemoryError> {
        match self.delivery {
            Delivery::Sigbus => Ok(()),
            Delivery::Messages => self
                .uffd_of(pages)
                .wake(self.addresses(pages))
                .map_err(MemoryError::system("ioctl(UFFDIO_WAKE)")),
        }
    }

    fn granules_at(&self, addresses: Addresses) -> PageRange {
        let unit = self.memory().granule().bytes();
        let first = self.memory().page_of(addresses.start).expect("only addresses of the view are scanned");
        PageRange { first, count: (addresses.bytes / unit) as u64 }
    }

    fn addresses(&self, pages: PageRange) -> Addresses {
        let unit = self.memory().granule().bytes();
        Addresses { start: self.memory().address_of(pages.first).addr(), bytes: pages.count as usize * unit }
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        // Before the descriptor closes: pages that it no longer watches must not be accessible.
        self.claim.close_application();
    }
}
