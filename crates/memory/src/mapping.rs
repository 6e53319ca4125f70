//! Mappings that unmap themselves, and the limits that prevent them.

use core::{ffi::c_void, ptr};
use std::os::fd::BorrowedFd;

use rustix::{
    io::Errno,
    mm::{Advice, MapFlags, MlockFlags, MprotectFlags, ProtFlags},
    process::{Pid, Resource, getpid, getrlimit},
};

use crate::MemoryError;

/// The requested place of a mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Placement {
    /// Exactly there, or fail.
    Exactly(usize),
    /// Anywhere.
    Anywhere,
}

/// How memory is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Locking {
    /// All of it at once.
    Now,
    /// Present memory now, and the rest on first access.
    OnFault,
}

/// A range of addresses that this process mapped, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: *mut u8,
    bytes: usize,
    /// The process that made it. A forked child does not have mappings marked `MADV_DONTFORK`; their
    /// addresses may belong to others there.
    mapped_by: Pid,
}

// SAFETY: the mapping is a range of addresses, valid in every thread until the owner drops it. Its memory is
// only accessed through raw pointers, whose users are responsible for races.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`; the methods only return addresses and make system calls, which the kernel orders.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` of `file` from its beginning, shared and without reserving memory for it.
    pub(crate) fn of_file(
        file: BorrowedFd<'_>,
        placement: Placement,
        bytes: usize,
        protection: ProtFlags,
    ) -> Result<Mapping, Errno> {
        let (wanted, fixed) = match placement {
            Placement::Exactly(address) => (address, MapFlags::FIXED_NOREPLACE),
            Placement::Anywhere => (0, MapFlags::empty()),
        };
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | fixed;
        // SAFETY: without MAP_FIXED the kernel never replaces an existing mapping.
        let start = unsafe {
            rustix::mm::mmap(ptr::without_provenance_mut(wanted), bytes, ProtFlags::empty(), flags, file, 0)
        }?;
        let mapping = Mapping { start: start.cast(), bytes, mapped_by: getpid() };
        // Kernels before 4.17 treat MAP_FIXED_NOREPLACE as a hint.
        if let Placement::Exactly(address) = placement
            && start.addr() != address
        {
            return Err(Errno::EXIST);
        }
        // If the program has called mlockall(MCL_FUTURE), the mapping is locked. It must be unlocked before
        // it becomes accessible, otherwise the kernel would make frames for all of it.
        let _ = mapping.unlock(0, bytes);
        mapping.protect(0, bytes, MprotectFlags::from_bits_retain(protection.bits()))?;
        Ok(mapping)
    }

    /// Maps `bytes` zero bytes that cost nothing until they are written.
    pub(crate) fn of_zeros(bytes: usize) -> Result<Mapping, Errno> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without MAP_FIXED the kernel never replaces an existing mapping.
        let start = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection, flags) }?;
        Ok(Mapping { start: start.cast(), bytes, mapped_by: getpid() })
    }

    /// Maps `bytes` of `file` from offset `in_file` at `address`, without access, in place of the existing
    /// mapping.
    ///
    /// # Safety
    /// Nothing reads or writes the range until the caller gives access to it, and no reference to its bytes
    /// exists.
    pub(crate) unsafe fn replacing(
        address: usize,
        bytes: usize,
        file: BorrowedFd<'_>,
        in_file: u64,
    ) -> Result<Mapping, Errno> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
        let wanted = ptr::without_provenance_mut(address);
        // SAFETY: the caller's contract.
        let start = unsafe { rustix::mm::mmap(wanted, bytes, ProtFlags::empty(), flags, file, in_file) }?;
        let mapping = Mapping { start: start.cast(), bytes, mapped_by: getpid() };
        // If the program has called mlockall(MCL_FUTURE), the mapping is locked.
        let _ = mapping.unlock(0, bytes);
        Ok(mapping)
    }

    /// Maps `bytes` of another `file` from offset `in_file` at `offset`, readable and writable, in place of
    /// the present content.
    pub(crate) fn show(
        &self,
        offset: usize,
        bytes: usize,
        file: BorrowedFd<'_>,
        in_file: u64,
    ) -> Result<(), Errno> {
        assert!(bytes <= self.bytes && offset <= self.bytes - bytes, "the file must stay inside the mapping");
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
        let start = self.at(offset).cast::<c_void>();
        // SAFETY: the range lies inside this mapping, which only drop unmaps. No reference to its bytes
        // exists, and content accessed through raw pointers may change at any time.
        let shown = unsafe { rustix::mm::mmap(start, bytes, protection, flags, file, in_file) }?;
        debug_assert_eq!(shown, start, "MAP_FIXED maps there or not at all");
        // If the program has called mlockall(MCL_FUTURE), the mapping is locked.
        let _ = self.unlock(offset, bytes);
        Ok(())
    }

    /// Replaces `bytes` from `offset` on by private zeros of this process, readable and writable.
    pub(crate) fn make_private(&self, offset: usize, bytes: usize) -> Result<(), Errno> {
        assert!(
            bytes <= self.bytes && offset <= self.bytes - bytes,
            "the zeros must stay inside the mapping"
        );
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let start = self.at(offset).cast::<c_void>();
        // SAFETY: as in `show`.
        let made = unsafe { rustix::mm::mmap_anonymous(start, bytes, protection, flags) }?;
        debug_assert_eq!(made, start, "MAP_FIXED maps there or not at all");
        Ok(())
    }

    /// Returns the address of the first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    /// Returns the address of the byte at `offset`, which lies inside.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.bytes, "offset {offset} lies behind a mapping of {} bytes", self.bytes);
        self.start.wrapping_add(offset)
    }

    /// Returns true if this process made the mapping: a forked child has none of those marked
    /// `MADV_DONTFORK`.
    pub(crate) fn is_here(&self) -> bool {
        getpid() == self.mapped_by
    }

    /// Returns the length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Calls `madvise(2)` on `bytes` from `offset`.
    pub(crate) fn advise(&self, offset: usize, bytes: usize, advice: Advice) -> Result<(), Errno> {
        assert!(
            bytes <= self.bytes && offset <= self.bytes - bytes,
            "the advice must stay inside the mapping"
        );
        // SAFETY: the range lies inside this mapping, which only drop unmaps. The advice given here (fork,
        // dump, huge pages, populate, and DONTNEED on a shared file) never changes what a load returns.
        let advised = unsafe { rustix::mm::madvise(self.at(offset).cast::<c_void>(), bytes, advice) };
        match advised {
            // The kernel keeps the entries of locked memory. A raw system call of the program, or `mlockall`,
            // has locked this view. All of it is unlocked, because each part would become a mapping of its
            // own.
            Err(Errno::INVAL) if advice == Advice::LinuxDontNeed && self.unlock(0, self.bytes).is_ok() => {
                // SAFETY: as above.
                unsafe { rustix::mm::madvise(self.at(offset).cast::<c_void>(), bytes, advice) }
            }
            other => other,
        }
    }

    /// Keeps the memory of `bytes` from `offset` from being swapped out: all of it, allocating it if need be,
    /// or only what is accessed later.
    pub(crate) fn lock(&self, offset: usize, bytes: usize, how: Locking) -> Result<(), Errno> {
        assert!(bytes <= self.bytes && offset <= self.bytes - bytes, "the lock must stay inside the mapping");
        let start = self.at(offset).cast::<c_void>();
        match how {
            // SAFETY: the range lies inside this mapping; locking changes no byte.
            Locking::Now => unsafe { rustix::mm::mlock(start, bytes) },
            // SAFETY: as above.
            Locking::OnFault => unsafe { rustix::mm::mlock_with(start, bytes, MlockFlags::ONFAULT) },
        }
    }

    /// Undoes [`lock`](Self::lock).
    pub(crate) fn unlock(&self, offset: usize, bytes: usize) -> Result<(), Errno> {
        assert!(bytes <= self.bytes && offset <= self.bytes - bytes, "the lock must stay inside the mapping");
        // SAFETY: the range lies inside this mapping; unlocking changes no byte.
        unsafe { rustix::mm::munlock(self.at(offset).cast::<c_void>(), bytes) }
    }

    /// Calls `mprotect(2)` on `bytes` from `offset`.
    pub(crate) fn protect(
        &self,
        offset: usize,
        bytes: usize,
        protection: MprotectFlags,
    ) -> Result<(), Errno> {
        assert!(
            bytes <= self.bytes && offset <= self.bytes - bytes,
            "the change must stay inside the mapping"
        );
        // SAFETY: the range lies inside this mapping: the application's view, to which the runtime has no
        // reference and where the program is meant to fault, or the guard page of a stack not in use yet.
        unsafe { rustix::mm::mprotect(self.at(offset).cast::<c_void>(), bytes, protection) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: the range is this mapping's own and cannot be reached through `self` any more; an error
            // would leave it mapped, which is safe.
            let _ = unsafe { rustix::mm::munmap(self.start.cast::<c_void>(), self.bytes) };
        }
    }
}

/// Fails if `RLIMIT_FSIZE` would make `ftruncate(2)` raise SIGXFSZ.
pub(crate) fn check_file_size_limit(needed_bytes: u64) -> Result<(), MemoryError> {
    match getrlimit(Resource::Fsize).current {
        Some(limit_bytes) if limit_bytes < needed_bytes => {
            Err(MemoryError::FileSizeLimit { needed_bytes, limit_bytes })
        }
        _ => Ok(()),
    }
}

/// Fails if `RLIMIT_AS` does not permit `more_bytes` beside the present mappings.
pub(crate) fn check_address_space_limit(more_bytes: u64) -> Result<(), MemoryError> {
    let needed_bytes = mapped_bytes().saturating_add(more_bytes);
    match getrlimit(Resource::As).current {
        Some(limit_bytes) if limit_bytes < needed_bytes => {
            Err(MemoryError::AddressSpaceLimit { needed_bytes, limit_bytes })
        }
        _ => Ok(()),
    }
}

/// Returns the bytes that this process has mapped; 0 where /proc is not mounted.
fn mapped_bytes() -> u64 {
    let Ok(statm) = std::fs::read_to_string("/proc/self/statm") else { return 0 };
    let pages: u64 = statm.split_ascii_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0);
    pages.saturating_mul(rustix::param::page_size() as u64)
}

/// Returns about how many bits a user's address has here: stacks lie at the top of the address space.
pub(crate) fn address_bits() -> u32 {
    let on_the_stack = 0u8;
    usize::BITS - (&raw const on_the_stack).addr().leading_zeros()
}
