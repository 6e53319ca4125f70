//! `PAGEMAP_SCAN`: asks the kernel which watched granules were written, and resets their records in the same
//! call. Also asks which were not written, when their entries are gone.
//!
//! Read first: "PAGEMAP_SCAN" in the kernel's admin guide (mm/pagemap.rst) and `UFFD_FEATURE_WP_ASYNC` in
//! mm/userfaultfd.rst. A granule counts as written if its entry is not write-protected; the scan
//! write-protects the entries that it reports.

use core::{ffi::c_ulong, mem::MaybeUninit};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};

use super::kernel::{Addresses, last_errno};
use crate::MemoryError;

// <linux/fs.h>
const PM_SCAN_WP_MATCHING: u64 = 1 << 0;
const PM_SCAN_CHECK_WPASYNC: u64 = 1 << 1;
const PAGE_IS_WRITTEN: u64 = 1 << 1;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: c_ulong = (3 << 30) | ((size_of::<ScanArgument>() as c_ulong) << 16) | (0x66 << 8) | 16;

#[repr(C)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ScannedRange {
    start: u64,
    end: u64,
    categories: u64,
}

/// The entries to report: those that have all categories of the mask and none of the inverted ones.
struct Question {
    flags: u64,
    category_inverted: u64,
    category_mask: u64,
}

/// Number of ranges returned by one call; they are on the stack, because collecting may happen in signal
/// context.
const RANGES_PER_CALL: usize = 64;

/// This process's page tables.
pub(super) struct Pagemap {
    descriptor: OwnedFd,
}

impl Pagemap {
    pub(super) fn open() -> Result<Pagemap, MemoryError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        match rustix::fs::open("/proc/self/pagemap", flags, Mode::empty()) {
            Ok(descriptor) => Ok(Pagemap { descriptor }),
            Err(errno @ (Errno::MFILE | Errno::NFILE)) => {
                Err(MemoryError::descriptor("/proc/self/pagemap", errno))
            }
            Err(errno) => Err(MemoryError::PagemapRefused { errno }),
        }
    }

    /// Calls `visit` with each range of addresses that was written since it was last protected, and protects
    /// it again. Addresses without an entry may or may not be among them.
    pub(super) fn take_written(
        &self,
        addresses: Addresses,
        visit: impl FnMut(Addresses),
    ) -> Result<(), Errno> {
        let question = Question {
            flags: PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC,
            category_inverted: 0,
            category_mask: PAGE_IS_WRITTEN,
        };
        self.each_range(addresses, question, visit)
    }

    /// Calls `visit` with each range of addresses that was written since it was last protected, or was never
    /// protected. Changes nothing.
    pub(super) fn find_written(
        &self,
        addresses: Addresses,
        visit: impl FnMut(Addresses),
    ) -> Result<(), Errno> {
        let question = Question { flags: 0, category_inverted: 0, category_mask: PAGE_IS_WRITTEN };
        self.each_range(addresses, question, visit)
    }

    /// Calls `visit` with each range of addresses whose entries were removed while write-protected: they were
    /// not written since they were protected. Where the kernel keeps no such record, it finds none.
    ///
    /// When an entry of shared memory that a userfaultfd protected is removed, a marker stays behind, so that
    /// the protection outlives the entry (`pte_install_uffd_wp_if_needed`, Linux 5.19). The scan reports only
    /// such markers of shared memory as swapped-out entries.
    pub(super) fn find_unwritten(
        &self,
        addresses: Addresses,
        visit: impl FnMut(Addresses),
    ) -> Result<(), Errno> {
        let question = Question {
            flags: 0,
            category_inverted: PAGE_IS_WRITTEN,
            category_mask: PAGE_IS_WRITTEN | PAGE_IS_SWAPPED,
        };
        self.each_range(addresses, question, visit)
    }

    fn each_range(
        &self,
        addresses: Addresses,
        question: Question,
        mut visit: impl FnMut(Addresses),
    ) -> Result<(), Errno> {
        let mut ranges = [const { MaybeUninit::<ScannedRange>::uninit() }; RANGES_PER_CALL];
        let end = (addresses.start + addresses.bytes) as u64;
        let mut start = addresses.start as u64;
        while start < end {
            let mut argument = ScanArgument {
                size: size_of::<ScanArgument>() as u64,
                flags: question.flags,
                start,
                end,
                walk_end: 0,
                vec: (&raw mut ranges).addr() as u64,
                vec_len: RANGES_PER_CALL as u64,
                max_pages: 0,
                category_inverted: question.category_inverted,
                category_mask: question.category_mask,
                category_anyof_mask: 0,
                return_mask: question.category_mask,
            };
            let found = self.scan(&mut argument)?;
            for range in &ranges[..found] {
                // SAFETY: the kernel has filled in the first `found`; they are plain numbers.
                let range = unsafe { range.assume_init() };
                visit(Addresses { start: range.start as usize, bytes: (range.end - range.start) as usize });
            }
            // A call that makes no progress would be repeated forever.
            if argument.walk_end <= start {
                return Err(Errno::IO);
            }
            start = argument.walk_end;
        }
        Ok(())
    }

    fn scan(&self, argument: &mut ScanArgument) -> Result<usize, Errno> {
        loop {
            // SAFETY: the structure is <linux/fs.h>'s for this request. The kernel writes to it and to at
            // most as many ranges as the vector, alive in the caller, has. Page tables change only where a
            // userfaultfd of ours records writes.
            let found = unsafe {
                libc::syscall(libc::SYS_ioctl, self.descriptor.as_raw_fd(), PAGEMAP_SCAN, &raw mut *argument)
            };
            match last_errno_if(found < 0) {
                None => return Ok(found as usize),
                Some(Errno::INTR | Errno::AGAIN) => continue,
                Some(errno) => return Err(errno),
            }
        }
    }
}

fn last_errno_if(failed: bool) -> Option<Errno> {
    failed.then(last_errno)
}
