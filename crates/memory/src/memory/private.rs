//! Addresses of the region that each process uses privately, and pages that are allocated no more.

use hiroba_base::PageRange;

use rustix::mm::MprotectFlags;

use super::SharedMemory;
use crate::MemoryError;

impl SharedMemory {
    /// Takes pages back: their content is gone, and touching them is a segmentation fault until they are
    /// allocated again. A fault source must have let go of them.
    ///
    /// # Errors
    /// Fails if the pages are not allocated, or if the kernel refuses.
    pub fn deallocate(&self, pages: PageRange) -> Result<(), MemoryError> {
        let (offset, bytes) = self.allocated_span(pages)?;
        self.allocated.remove_range(pages).map_err(MemoryError::system("mmap of a page table"))?;
        let closed = self.application.protect(offset, bytes, MprotectFlags::empty());
        closed.map_err(MemoryError::of_view("mprotect"))?;
        self.discard(pages);
        // All of them: in a job of one node the kernel has made frames without telling us.
        self.give_up_run(pages)
    }

    /// Replaces allocated pages of the program's view permanently by private memory, filled with zeros. From
    /// then on they count as not allocated on this node.
    ///
    /// A thread that starts on this node may use these addresses as its stack, because other nodes never
    /// access the pages.
    ///
    /// # Errors
    /// When the pages are not allocated, or the kernel has no more mappings for this process.
    pub fn make_private(&self, pages: PageRange) -> Result<(), MemoryError> {
        let (offset, bytes) = self.allocated_span(pages)?;
        // First, so that an access cannot be taken for a fault on a shared page.
        self.allocated.remove_range(pages).map_err(MemoryError::system("mmap of a page table"))?;
        let made = self.application.make_private(offset, bytes);
        made.map_err(MemoryError::system("mmap of private memory"))
    }
}

#[cfg(test)]
mod tests {
    use hiroba_base::PageId;

    use super::*;
    use crate::memory::tests::small_memory;

    #[test]
    fn pages_that_are_allocated_again_are_zeroed() {
        let memory = small_memory(4);
        let (first, second) = (PageRange::single(PageId(1)), PageRange::single(PageId(2)));
        for (range, is_open) in [(first, true), (second, false)] {
            assert!(memory.deallocate(range).is_err(), "it is not allocated");
            memory.allocate(range).unwrap();
            if is_open {
                memory.open(range).unwrap();
                let word = memory.address_of(range.first).cast::<u64>();
                // SAFETY: the page was just made readable and writable.
                unsafe { word.write_volatile(7) };
            } else {
                memory.write(range.first, 0, &[7; 100]).unwrap();
            }
            memory.deallocate(range).unwrap();
            assert!(!memory.is_allocated(range.first) && memory.resident_bytes() == 0);
            memory.allocate(range).unwrap();
            let word = memory.atomic_u64(range.first, 0).unwrap();
            assert_eq!(word.load(core::sync::atomic::Ordering::Relaxed), 0);
            memory.give_up(range).unwrap();
        }
    }

    #[test]
    fn private_pages_outlive_the_regions_end() {
        let memory = small_memory(4);
        let all = PageRange { first: PageId(0), count: 4 };
        memory.allocate(all).unwrap();
        let (private, shared) = (PageId(1), PageId(2));
        memory.make_private(PageRange::single(private)).unwrap();
        assert!(!memory.is_allocated(private) && memory.is_allocated(shared));
        let word = memory.address_of(private).cast::<u64>();
        // SAFETY: the page was just made readable and writable.
        unsafe { word.write_volatile(7) };
        memory.close();
        // SAFETY: as above.
        assert_eq!(unsafe { word.read_volatile() }, 7);
        assert!(memory.make_private(PageRange::single(private)).is_err(), "it is not allocated any more");
    }
}
