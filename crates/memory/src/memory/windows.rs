//! Parts of the region that the program accesses at other addresses: the writable data of an executable and
//! of its libraries, where their loader has put them.

use std::os::fd::AsFd;

use hiroba_base::PageRange;
use rustix::io::Errno;

use super::{SharedMemory, why_not_mapped};
use crate::{MemoryError, mapping::Mapping};

impl SharedMemory {
    /// Maps pages, which are not allocated yet, at `address` in place of the process's existing mapping. With
    /// `keep`, the bytes there become the pages' first content; otherwise the pages are zeros.
    ///
    /// The pages have no access until they are allocated and a fault source controls them.
    ///
    /// # Errors
    /// Fails if the pages lie outside the region or are allocated, if the address is not that of a granule,
    /// if the kernel has no memory or no more mappings, or if the region has too many windows.
    ///
    /// # Safety
    /// As many bytes of the process as the pages have are readable at `address`. No other thread reads or
    /// writes them during the call, this thread does not until a fault source controls the pages, and no
    /// reference to them exists.
    pub unsafe fn show_at(&self, pages: PageRange, address: usize, keep: bool) -> Result<(), MemoryError> {
        let (offset, bytes) = self.span(pages)?;
        if self.allocated.contains_any(pages) || !address.is_multiple_of(self.granule().bytes()) {
            return Err(MemoryError::System {
                operation: "showing shared memory at an address",
                errno: Errno::INVAL,
            });
        }
        if keep {
            self.fill_from(pages, address)?;
        }
        let why = |errno| why_not_mapped(&self.config, errno);
        // SAFETY: the caller's contract.
        let mapping =
            unsafe { Mapping::replacing(address, bytes, self.memfd.as_fd(), offset as u64) }.map_err(why)?;
        if !self.application.add_window(offset, mapping) {
            return Err(MemoryError::System {
                operation: "showing shared memory at an address",
                errno: Errno::MFILE,
            });
        }
        self.advise_view(&self.application, offset, bytes)
    }

    /// Writes the bytes at `address` into frames of the pages. Granules of zeros get no frame.
    fn fill_from(&self, pages: PageRange, address: usize) -> Result<(), MemoryError> {
        let unit = self.granule().bytes();
        let mut granule = vec![0u8; unit];
        for (place, page) in pages.iter().enumerate() {
            let from = (address + place * unit) as *const u8;
            // SAFETY: the caller of `show_at` promises readable bytes that no other thread writes; the vector
            // is elsewhere and as long.
            unsafe { std::ptr::copy_nonoverlapping(from, granule.as_mut_ptr(), unit) };
            if granule.iter().any(|byte| *byte != 0) {
                self.write(page, 0, &granule)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hiroba_base::{Access, PageId};

    use super::*;
    use crate::fault::{Fault, FaultHandler, FaultOutcome, FaultSourceKind};
    use crate::memory::tests::small_memory;

    fn range(first: u64, count: u64) -> PageRange {
        PageRange { first: PageId(first), count }
    }

    /// Maps two granules of private memory that begin with `first`, to be replaced by a window.
    fn private(first: u8) -> usize {
        let mapping = Mapping::of_zeros(3 * 4096).unwrap();
        let start = mapping.start().addr();
        // SAFETY: the mapping's first byte, to which no other pointer exists.
        unsafe { (start as *mut u8).write(first) };
        std::mem::forget(mapping);
        start
    }

    #[test]
    fn a_window_moves_addresses_and_keeps_contents() {
        let memory = small_memory(64);
        let address = private(7);
        // SAFETY: the bytes are the test's own.
        unsafe { memory.show_at(range(10, 3), address, true) }.unwrap();
        let start = memory.region_start();
        assert_eq!(memory.address_of(PageId(9)).addr(), start + 9 * 4096);
        assert_eq!(memory.address_of(PageId(11)).addr(), address + 4096);
        assert_eq!(memory.address_of(PageId(13)).addr(), start + 13 * 4096);
        assert_eq!(memory.page_of(address + 3 * 4096 - 1), Some(PageId(12)));
        assert_eq!((memory.page_of(address - 1), memory.page_of(address + 3 * 4096)), (None, None));
        assert_eq!(memory.page_of(start + 10 * 4096), None, "a page has one address");
        let mut byte = [0];
        memory.read(PageId(10), 0, &mut byte);
        assert_eq!((byte, memory.frames()), ([7], 1), "zeros need no frame");
        // SAFETY: never dereferenced, because both calls are refused.
        let refused = |pages, address| unsafe { memory.show_at(pages, address, false) }.is_err();
        assert!(refused(range(20, 1), address + 8) && refused(range(63, 2), address));
        memory.allocate(range(30, 1)).unwrap();
        assert!(refused(range(30, 1), address));
    }

    #[test]
    fn faults_at_a_window_are_those_of_its_pages() {
        struct Refuse;
        impl FaultHandler for Refuse {
            fn handle_fault(&self, _: Fault) -> FaultOutcome {
                FaultOutcome::NotOurs
            }
        }
        let memory = small_memory(64);
        let address = private(9);
        // SAFETY: the bytes are the test's own.
        unsafe { memory.show_at(range(10, 3), address, true) }.unwrap();
        memory.allocate(range(10, 3)).unwrap();
        let handler: Arc<dyn FaultHandler> = Arc::new(Refuse);
        for kind in [FaultSourceKind::Event, FaultSourceKind::Sigbus, FaultSourceKind::Sigsegv] {
            let tracking = crate::WriteTracking::Fault;
            let Ok((source, _)) = crate::open_best(Some(kind), Some(tracking), &memory, &handler) else {
                continue;
            };
            source.register(range(10, 3), tracking).unwrap();
            source.protect(range(10, 3), Access::Write).unwrap();
            let place = (address + 4096) as *mut u8;
            // SAFETY: the window is accessible, and only this test knows its address.
            let before = unsafe { place.read() };
            // SAFETY: as above.
            unsafe { place.write(before + 1) };
            let mut byte = [0];
            memory.read(PageId(11), 0, &mut byte);
            assert!(byte[0] > 0, "{kind:?}: a store at the window must reach the frame");
        }
    }
}
