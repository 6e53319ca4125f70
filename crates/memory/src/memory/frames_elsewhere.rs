//! Pages whose frames belong to another node: both views map that node's file.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::PoisonError;

use hiroba_base::PageRange;
use rustix::{
    fs::{SeekFrom, seek},
    io::Errno,
};

use super::SharedMemory;
use crate::MemoryError;

impl SharedMemory {
    /// Maps allocated pages permanently, in both views, onto frames that several nodes share: those at the
    /// same offset of `frames`, another node's file of the same length, or with `None` of this node's own
    /// file. From now on the program's loads and stores do not fault, and make frames on access.
    ///
    /// The fault source has given up the pages ([`FaultSource::let_go`](crate::FaultSource::let_go)), nothing
    /// was written to them on this node, and no thread knows their addresses yet.
    /// # Errors
    /// Fails if the pages are not allocated, or if the kernel has no more mappings for this process.
    pub fn map_onto(&self, pages: PageRange, frames: Option<BorrowedFd<'_>>) -> Result<(), MemoryError> {
        let (offset, bytes) = self.allocated_span(pages)?;
        let file = frames.unwrap_or(self.memfd.as_fd());
        let why = |errno| match errno {
            Errno::NOMEM => MemoryError::TooManyMappingsOfPeers,
            errno => MemoryError::System { operation: "mmap of a home's frames", errno },
        };
        if frames.is_some() {
            self.runtime.show(offset, bytes, file, offset as u64).map_err(why)?;
            self.advise_view(&self.runtime, offset, bytes)?;
        } else {
            let mut own = self.shared_frames.lock().unwrap_or_else(PoisonError::into_inner);
            own.push(pages);
        }
        self.application.show(offset, bytes, file).map_err(why)?;
        self.advise_view(&self.application, offset, bytes)?;
        // Queries find frames there, which need not be made in this node's file and do not count as its own.
        self.populated.insert_range(pages).map_err(MemoryError::system("mmap of a page table"))?;
        Ok(())
    }

    /// Returns the bytes of frames that this node keeps for all nodes, which are made without notice.
    pub(super) fn shared_frames_bytes(&self) -> u64 {
        let own = self.shared_frames.lock().unwrap_or_else(PoisonError::into_inner);
        let unit = self.granule().bytes() as u64;
        own.iter().map(|pages| self.frames_bytes(pages.first.0 * unit, pages.end().0 * unit)).sum()
    }

    /// Returns the bytes of frames between two offsets of the memfd, from the kernel.
    fn frames_bytes(&self, start: u64, end: u64) -> u64 {
        let mut bytes = 0;
        let mut next = start;
        while let Ok(data) = seek(&self.memfd, SeekFrom::Data(next))
            && data < end
        {
            let hole = seek(&self.memfd, SeekFrom::Hole(data)).unwrap_or(end).min(end);
            bytes += hole - data;
            next = hole;
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    use hiroba_base::PageId;

    use super::*;
    use crate::memory::tests::small_memory;

    fn range(first: u64, count: u64) -> PageRange {
        PageRange { first: PageId(first), count }
    }

    fn at(memory: &SharedMemory, page: u64) -> *mut u64 {
        memory.address_of(PageId(page)).cast()
    }

    fn store(memory: &SharedMemory, page: u64, value: u64) {
        // SAFETY: callers have mapped or opened the page for writing.
        unsafe { at(memory, page).write_volatile(value) };
    }

    fn load(memory: &SharedMemory, page: u64) -> u64 {
        // SAFETY: callers have mapped or opened the page for reading.
        unsafe { at(memory, page).read_volatile() }
    }

    #[test]
    fn both_views_of_a_node_show_its_homes_frames() {
        let [home, node] = [small_memory(64), small_memory(64)];
        for memory in [&home, &node] {
            memory.allocate(range(0, 64)).unwrap();
        }
        node.open(range(0, 8)).unwrap();
        node.open(range(24, 8)).unwrap();
        store(&node, 7, 70);
        // A node may map before the home has mapped anything.
        node.map_onto(range(8, 16), Some(home.memfd.as_fd())).unwrap();
        store(&node, 8, 80);
        home.map_onto(range(8, 16), None).unwrap();
        assert_eq!(load(&home, 8), 80);
        store(&home, 23, 230);
        assert_eq!((load(&node, 23), load(&node, 7), load(&node, 24)), (230, 70, 0));
        let mut word = [0; 8];
        home.read(PageId(8), 0, &mut word);
        assert_eq!(u64::from_ne_bytes(word), 80);
        node.write(PageId(9), 0, &90u64.to_ne_bytes()).unwrap();
        assert_eq!(node.atomic_u64(PageId(9), 0).unwrap().fetch_add(1, Ordering::AcqRel), 90);
        assert_eq!((load(&home, 9), load(&node, 9)), (91, 91));
        // The home has the frames, whichever node touched them first; the other node has none of them.
        assert_eq!((home.resident_bytes(), node.resident_bytes()), (0, 0));
        assert_eq!((home.resident_bytes_max(), node.resident_bytes_max()), (3 * 4096, 0));
        node.close();
        home.close();
    }

    #[test]
    fn only_allocated_pages_are_mapped() {
        let memory = small_memory(8);
        memory.allocate(range(0, 4)).unwrap();
        let refused = memory.map_onto(range(2, 4), None);
        assert_eq!(refused, Err(MemoryError::NotAllocated { range: range(2, 4) }));
    }
}
