//! System calls of the program that change how shared memory is mapped: classifies their address ranges, and
//! applies the permitted calls to allocated shared memory. The faces intercept the calls and report refusals.

use std::io;
use std::ops::Range;

use hiroba_base::{PageId, PageRange};
use hiroba_memory::MemoryError;
use rustix::io::Errno;

use crate::runtime::Runtime;

/// The relation of an address range to shared memory, in whole pages, as the kernel counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Disjoint from shared memory, or empty, or a range that the kernel refuses itself.
    Outside,
    /// All allocated shared memory.
    Allocated(SharedPages),
    /// All within the shared addresses, but not all allocated; or the node has left the job.
    Unallocated,
    /// Begins or ends outside the shared addresses.
    Straddling,
}

/// Allocated pages of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedPages(PageRange);

/// How [`Runtime::lock_pages`] locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locking {
    /// Fetches missing pages: all are resident when it returns.
    Now,
    /// Locks only resident pages.
    Resident,
}

/// Returns the relation of the range's whole pages to a region at these addresses.
fn extent(
    region: Range<usize>,
    granule_bytes: usize,
    address: usize,
    bytes: usize,
    is_allocated: impl FnOnce(PageRange) -> bool,
) -> Extent {
    let end = address.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(granule_bytes));
    let start = address / granule_bytes * granule_bytes;
    let Some(end) = end.filter(|_| bytes > 0) else { return Extent::Outside };
    if end <= region.start || start >= region.end {
        return Extent::Outside;
    }
    if start < region.start || end > region.end {
        return Extent::Straddling;
    }
    let first = PageId(((start - region.start) / granule_bytes) as u64);
    let pages = PageRange { first, count: ((end - start) / granule_bytes) as u64 };
    if is_allocated(pages) { Extent::Allocated(SharedPages(pages)) } else { Extent::Unallocated }
}

impl Runtime {
    /// Returns the relation of the bytes to shared memory. A forked child has no shared memory.
    #[inline]
    pub fn extent(&self, address: usize, bytes: usize) -> Extent {
        if !self.is_shared(address, bytes.saturating_add(1)) || self.is_forked() {
            return Extent::Outside;
        }
        let start = self.memory.region_start();
        let region = start..start + self.memory.region_bytes() as usize;
        let is_allocated = |pages| !self.has_left() && self.memory.are_allocated(pages);
        extent(region, self.memory.granule().bytes(), address, bytes, is_allocated)
    }

    /// Returns true if this process has the shared region, whose views are far larger than the machine's
    /// memory. A forked child does not have it.
    pub fn has_region(&self) -> bool {
        !self.is_forked()
    }

    /// Keeps the pages' frames on this node from being swapped out. With [`Locking::Now`] it also fetches
    /// missing pages. Writes of other nodes still invalidate pages.
    ///
    /// # Errors
    /// The errno of mlock(2).
    pub fn lock_pages(&self, SharedPages(pages): SharedPages, how: Locking) -> io::Result<()> {
        // First the call that costs nothing and finds out whether locking is allowed.
        self.memory.lock_on_fault(pages)?;
        if how == Locking::Resident {
            // Frames that the runtime has not recorded are not locked yet.
            return Ok(self.memory.lock_resident(pages)?);
        }
        self.bring(SharedPages(pages));
        let locked = self.make_frames(pages).and_then(|()| self.memory.lock(pages));
        if locked.is_err() {
            let _ = self.memory.unlock(pages);
        }
        Ok(locked?)
    }

    fn make_frames(&self, pages: PageRange) -> Result<(), Errno> {
        // In a job of one node the kernel gives frames uncounted.
        if self.faults.is_none() {
            return Ok(());
        }
        let _signals = crate::signals::SignalsDeferred::defer();
        self.memory.populate_apart(pages).map_err(|_| Errno::NOMEM)
    }

    /// Undoes [`lock_pages`](Self::lock_pages).
    ///
    /// # Errors
    /// The errno of munlock(2).
    pub fn unlock_pages(&self, SharedPages(pages): SharedPages) -> io::Result<()> {
        Ok(self.memory.unlock(pages)?)
    }

    /// Fetches the pages that this node lacks, and maps them for the program to read. The caller holds no
    /// lock of the runtime.
    pub fn bring(&self, SharedPages(pages): SharedPages) {
        let bytes = pages.count as usize * self.memory.granule().bytes();
        let start = self.memory.address_of(pages.first);
        let _ = self.prefetch(&[(start.addr(), bytes)]);
        if self.faults.is_none() {
            return;
        }
        for page in pages.iter() {
            // SAFETY: the page is allocated and stays so, and faults on it are served.
            let _ = unsafe { self.memory.address_of(page).read_volatile() };
        }
    }

    /// Allows or forbids executing code in the pages on this node. Loads and stores are not affected.
    ///
    /// # Errors
    /// The errno of mprotect(2).
    pub fn set_executable(&self, SharedPages(pages): SharedPages, on: bool) -> io::Result<()> {
        let _signals = crate::signals::SignalsDeferred::defer();
        let done = match &self.faults {
            Some(faults) => faults.execute(pages, on),
            None => self.memory.open_for_executing(pages, on),
        };
        done.map_err(|error| match error {
            MemoryError::View { errno, .. } => errno.into(),
            _ => Errno::NOMEM.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: Range<usize> = 0x10_000..0x20_000;

    /// The first four pages are allocated.
    fn of(address: usize, bytes: usize) -> Extent {
        extent(REGION, 4096, address, bytes, |pages| pages.end().0 <= 4)
    }

    fn allocated(first: u64, count: u64) -> Extent {
        Extent::Allocated(SharedPages(PageRange { first: PageId(first), count }))
    }

    #[test]
    fn whole_pages_count() {
        assert_eq!(of(0x10_000, 1), allocated(0, 1));
        assert_eq!(of(0x10_fff, 2), allocated(0, 2));
        assert_eq!(of(0x10_001, 0x3_fff), allocated(0, 4));
        assert_eq!(of(0x10_001, 0x4_000), Extent::Unallocated);
        assert_eq!(of(0x1f_fff, 1), Extent::Unallocated);
    }

    #[test]
    fn neighbours_are_outside_until_a_page_is_shared() {
        assert_eq!(of(0xf_000, 0x1_000), Extent::Outside);
        assert_eq!(of(0xf_fff, 2), Extent::Straddling);
        assert_eq!(of(0x20_000, 1), Extent::Outside);
        assert_eq!(of(0x1f_fff, 2), Extent::Straddling);
        assert_eq!(of(0, usize::MAX / 2), Extent::Straddling);
    }

    #[test]
    fn of_no_bytes_and_of_too_many_the_kernel_knows() {
        assert_eq!(of(0x10_000, 0), Extent::Outside);
        assert_eq!(of(0x10_000, usize::MAX), Extent::Outside);
        assert_eq!(of(0x10_000, usize::MAX - 0x10_000), Extent::Outside);
    }
}
