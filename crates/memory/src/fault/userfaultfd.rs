//! userfaultfd on a shmem view: what the event and the sigbus source share.
//!
//! Read first: userfaultfd(2), ioctl_userfaultfd(2), and "Userfaultfd" in the kernel's admin guide. The view is registered
//! for missing, minor and write-protect faults; a page's access is the state of its page-table entry:
//!
//! | access | entry | reached by |
//! |---|---|---|
//! | `None` | none | `MADV_DONTNEED` (the frame stays in the memfd) |
//! | `Read` | present, write-protected | `UFFDIO_CONTINUE` with `MODE_WP`, or `UFFDIO_WRITEPROTECT` if present |
//! | `Write` | present | `UFFDIO_CONTINUE`, or `UFFDIO_WRITEPROTECT` to clear if present |
//!
//! The kernel may drop entries at any time (reclaim, migration), which lowers access to `None`.

use core::ffi::{c_int, c_ulong};
use std::{
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::Arc,
};

use hiroba_base::{Access, PageId, PageRange};
use rustix::{
    fs::{MemfdFlags, Mode, OFlags, ftruncate, memfd_create},
    io::Errno,
    mm::{Advice, MprotectFlags, ProtFlags},
};

use crate::{
    FaultSourceKind, MemoryError, SharedMemory,
    frames::SparsePageSet,
    mapping::{Mapping, Placement},
    memory::Claim,
};

// <linux/userfaultfd.h>; the layouts and numbers are part of the kernel's stable interface.
const UFFD_API: u64 = 0xAA;
const UFFD_USER_MODE_ONLY: c_int = 1;
const UFFD_FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const UFFD_FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const UFFD_FEATURE_SIGBUS: u64 = 1 << 7;
const UFFD_FEATURE_MINOR_SHMEM: u64 = 1 << 10;
const UFFD_FEATURE_EXACT_ADDRESS: u64 = 1 << 11;
const UFFD_FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
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

/// `_IOC` of <asm-generic/ioctl.h>: what x86-64, aarch64 and riscv64 use.
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

/// What each feature we need is called in words.
const FEATURES_NEEDED: [(u64, &str); 5] = [
    (UFFD_FEATURE_PAGEFAULT_FLAG_WP, "write-protect faults"),
    (UFFD_FEATURE_MISSING_SHMEM, "missing faults on shared memory"),
    (UFFD_FEATURE_MINOR_SHMEM, "minor faults on shared memory"),
    (UFFD_FEATURE_EXACT_ADDRESS, "exact fault addresses"),
    (UFFD_FEATURE_WP_HUGETLBFS_SHMEM, "write protection of shared memory"),
];

/// How faults are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// As messages on the descriptor; faults made inside system calls too.
    Messages,
    /// As SIGBUS; a system call fails with `EFAULT`.
    Sigbus,
}

impl Delivery {
    fn features(self) -> u64 {
        let needed = FEATURES_NEEDED.iter().fold(0, |all, feature| all | feature.0);
        match self {
            Delivery::Messages => needed,
            Delivery::Sigbus => needed | UFFD_FEATURE_SIGBUS,
        }
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

/// A range of addresses.
#[derive(Clone, Copy)]
struct Addresses {
    start: usize,
    bytes: usize,
}

impl Addresses {
    fn for_kernel(self) -> UffdioRange {
        UffdioRange { start: self.start as u64, len: self.bytes as u64 }
    }
}

impl Userfaultfd {
    /// Opens one and tries out, on a scratch page, all that will be needed of it: versions do not tell, since
    /// distributions carry features back.
    pub(super) fn open(delivery: Delivery) -> Result<Userfaultfd, MemoryError> {
        let opened = Userfaultfd { descriptor: open_descriptor(delivery)? };
        let mut api = UffdioApi { api: UFFD_API, features: delivery.features(), ioctls: 0 };
        match opened.ioctl(UFFDIO_API, &mut api) {
            Ok(()) => {}
            Err(Errno::INVAL) => {
                return Err(MemoryError::UserfaultfdTooOld { missing: missing_features(delivery) });
            }
            Err(errno) => return Err(MemoryError::System { operation: "ioctl(UFFDIO_API)", errno }),
        }
        opened.probe()?;
        Ok(opened)
    }

    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.descriptor
    }

    fn ioctl<T>(&self, request: c_ulong, argument: &mut T) -> Result<(), Errno> {
        // SAFETY: each request of this file comes with the structure that <linux/userfaultfd.h> defines for it,
        // which the kernel reads and writes only during the call; what it does to page tables is confined to
        // registered ranges of the application's view, where the runtime holds no references.
        let status = unsafe { libc::ioctl(self.descriptor.as_raw_fd(), request as _, &raw mut *argument) };
        if status == 0 { Ok(()) } else { Err(last_errno()) }
    }

    fn register(&self, range: Addresses) -> Result<(), Errno> {
        let mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR | UFFDIO_REGISTER_MODE_WP;
        self.ioctl(UFFDIO_REGISTER, &mut UffdioRegister { range: range.for_kernel(), mode, ioctls: 0 })
    }

    /// Maps the frames of `range` that are not mapped yet. True when some were mapped already: their
    /// write protection is as before, and who waits on them still waits.
    fn map(&self, range: Addresses, write_protected: bool) -> Result<bool, Errno> {
        let mode = if write_protected { UFFDIO_CONTINUE_MODE_WP } else { 0 };
        let end = range.start + range.bytes;
        let mut start = range.start;
        let mut met_mapped = false;
        while start < end {
            let rest = Addresses { start, bytes: end - start };
            let mut argument = UffdioContinue { range: rest.for_kernel(), mode, mapped: 0 };
            match self.ioctl(UFFDIO_CONTINUE, &mut argument) {
                Ok(()) => break,
                // A part was mapped; what stopped the kernel shows when we go on from there.
                Err(Errno::AGAIN) => start += usize::try_from(argument.mapped).unwrap_or(0),
                Err(Errno::EXIST) => {
                    met_mapped = true;
                    start += rustix::param::page_size();
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(met_mapped)
    }

    /// Sets or clears the write protection of what is mapped in `range`; clearing wakes who waits there.
    fn write_protect(&self, range: Addresses, on: bool) -> Result<(), Errno> {
        let mode = if on { UFFDIO_WRITEPROTECT_MODE_WP } else { 0 };
        loop {
            match self.ioctl(UFFDIO_WRITEPROTECT, &mut UffdioWriteprotect { range: range.for_kernel(), mode })
            {
                Err(Errno::AGAIN) => continue,
                other => return other,
            }
        }
    }

    fn wake(&self, range: Addresses) -> Result<(), Errno> {
        self.ioctl(UFFDIO_WAKE, &mut range.for_kernel())
    }

    /// Tries what registered pages will need on a page of its own.
    fn probe(&self) -> Result<(), MemoryError> {
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
        self.map(range, true).map_err(lacks("UFFDIO_CONTINUE_MODE_WP"))?;
        self.write_protect(range, false).map_err(lacks("UFFDIO_WRITEPROTECT on shared memory"))
        // Unmapping the scratch page unregisters it.
    }
}

/// A bare descriptor: from the device whose file permissions say who may, else from the system call.
fn open_descriptor(delivery: Delivery) -> Result<OwnedFd, MemoryError> {
    const PURPOSE: &str = "a userfaultfd";
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    match rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(device) => {
            // SAFETY: the request takes flags by value and touches no memory.
            let fd = unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW as _, flags) };
            if fd >= 0 {
                // SAFETY: the kernel just made this descriptor, and nobody else knows of it.
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
            // SAFETY: the kernel just made this descriptor, and nobody else knows of it.
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

/// Which features this kernel lacks; a descriptor that asks for none is told of all.
fn missing_features(delivery: Delivery) -> String {
    let mut api = UffdioApi { api: UFFD_API, features: 0, ioctls: 0 };
    if let Ok(descriptor) = open_descriptor(delivery) {
        let asked = Userfaultfd { descriptor };
        // A refusal leaves no feature offered, and all are named.
        let _ = asked.ioctl(UFFDIO_API, &mut api);
    }
    let names = FEATURES_NEEDED.iter().chain(match delivery {
        Delivery::Messages => &[][..],
        Delivery::Sigbus => &[(UFFD_FEATURE_SIGBUS, "faults as SIGBUS")][..],
    });
    let missing: Vec<&str> =
        names.filter(|(bit, _)| api.features & bit == 0).map(|(_, name)| *name).collect();
    missing.join(", ")
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// The application's view under a userfaultfd.
pub(super) struct Supervised {
    uffd: Userfaultfd,
    /// Pages whose entries are probably present: it only chooses which call is tried first. The kernel drops
    /// entries unseen, so a fault on an absent entry takes the page out (`forget`), and the next `protect` maps it.
    mapped: SparsePageSet,
    delivery: Delivery,
    // Last, so that the descriptor is closed when the region is free for another source.
    claim: Claim,
}

impl Supervised {
    pub(super) fn open(memory: Arc<SharedMemory>, delivery: Delivery) -> Result<Supervised, MemoryError> {
        let claim = Claim::new(memory, delivery.kind())?;
        let uffd = Userfaultfd::open(delivery)?;
        let mapped = claim.memory().page_set()?;
        Ok(Supervised { uffd, mapped, delivery, claim })
    }

    pub(super) fn memory(&self) -> &SharedMemory {
        self.claim.memory()
    }

    pub(super) fn uffd(&self) -> &Userfaultfd {
        &self.uffd
    }

    pub(super) fn register(&self, pages: PageRange) -> Result<(), MemoryError> {
        let (offset, bytes) = self.memory().allocated_span(pages)?;
        if bytes == 0 {
            return Ok(());
        }
        let view = self.memory().application();
        // In this order no thread ever finds the pages accessible and unwatched.
        self.uffd.register(self.addresses(pages)).map_err(MemoryError::system("ioctl(UFFDIO_REGISTER)"))?;
        view.protect(offset, bytes, MprotectFlags::READ | MprotectFlags::WRITE)
            .map_err(MemoryError::system("mprotect of the application's view"))?;
        self.protect(pages, Access::None)
    }

    pub(super) fn protect(&self, pages: PageRange, access: Access) -> Result<(), MemoryError> {
        let (offset, bytes) = self.memory().allocated_span(pages)?;
        if bytes == 0 {
            return Ok(());
        }
        if access == Access::None {
            let view = self.memory().application();
            view.advise(offset, bytes, Advice::LinuxDontNeed)
                .map_err(MemoryError::system("madvise(MADV_DONTNEED)"))?;
            return self.mapped.remove_range(pages).map_err(MemoryError::system("mmap of a page table"));
        }
        self.memory().populate(pages)?;
        let write_protected = access == Access::Read;
        let protect_mapped = |run| {
            self.uffd
                .write_protect(self.addresses(run), write_protected)
                .map_err(MemoryError::system("ioctl(UFFDIO_WRITEPROTECT)"))
        };
        let mut some_sleep_on = false;
        for (run, probably_mapped) in self.mapped.runs(pages) {
            if probably_mapped {
                protect_mapped(run)?;
                some_sleep_on |= write_protected;
                continue;
            }
            let map = self.uffd.map(self.addresses(run), write_protected);
            if map.map_err(MemoryError::system("ioctl(UFFDIO_CONTINUE)"))? {
                protect_mapped(run)?;
                some_sleep_on |= write_protected;
            }
            self.mapped.insert_range(run).map_err(MemoryError::system("mmap of a page table"))?;
        }
        // Mapping and clearing wake; setting the protection of what was mapped does not.
        if some_sleep_on && self.delivery == Delivery::Messages {
            self.uffd.wake(self.addresses(pages)).map_err(MemoryError::system("ioctl(UFFDIO_WAKE)"))?;
        }
        Ok(())
    }

    /// Notes that a fault found no entry for `page`.
    pub(super) fn forget(&self, page: PageId) {
        // Without memory for the note, the next `protect` tries the slower way in vain, and the fault comes again.
        let _ = self.mapped.remove_range(PageRange::single(page));
    }

    fn addresses(&self, pages: PageRange) -> Addresses {
        let unit = self.memory().page_size().bytes();
        Addresses {
            start: self.memory().region_start() + pages.first.0 as usize * unit,
            bytes: pages.count as usize * unit,
        }
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        // Before the descriptor closes: pages it no longer watches must not be accessible.
        self.claim.close_application();
    }
}
