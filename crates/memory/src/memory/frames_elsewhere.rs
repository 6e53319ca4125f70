//! Pages whose frames are another node's: both views show that node's file.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::PoisonError;

use hiroba_base::PageRange;
use rustix::{
    fs::{SeekFrom, seek},
    io::Errno,
};

use super::SharedMemory;
use crate::{MemoryError, mapping::Mapping};

impl SharedMemory {
    /// Maps allocated pages onto frames that several nodes share, for good, in both views: those at the same offset of `frames`, another node's
    /// file of the same length, or with `None` this node's own. The program's loads and stores run free from now on, and give frames as they
    /// touch them.
    ///
    /// The fault source has let go of the pages ([`FaultSource::let_go`](crate::FaultSource::let_go)), nothing has been written to them on this node, and no
    /// thread knows their addresses yet.
    ///
    /// # Errors
    /// When the pages are not allocated, or the kernel has no more mappings for this process.
    pub fn map_onto(&self, pages: PageRange, frames: Option<BorrowedFd<'_>>) -> Result<(), MemoryError> {
        let (offset, bytes) = self.allocated_span(pages)?;
        let file = frames.unwrap_or(self.memfd.as_fd());
        let show = |view: &Mapping| {
            view.show(offset, bytes, file).map_err(|errno| match errno {
                Errno::NOMEM => MemoryError::TooManyMappingsOfPeers,
                errno => MemoryError::System { operation: "mmap of a home's frames", errno },
            })?;
            self.advise_view(view, offset, bytes)
        };
        if frames.is_some() {
            show(&self.runtime)?;
        } else {
            let mut own = self.shared_frames.lock().unwrap_or_else(PoisonError::into_inner);
            own.push(pages);
        }
        show(&self.application)?;
        // Whoever asks finds frames there, which need not be made in this node's file and are not counted as its own.
        self.populated.insert_range(pages).map_err(MemoryError::system("mmap of a page table"))?;
        Ok(())
    }

    /// What the frames take that this node keeps for all nodes, which come and go unseen, in bytes.
    pub(super) fn shared_frames_bytes(&self) -> u64 {
        let own = self.shared_frames.lock().unwrap_or_else(PoisonError::into_inner);
        let unit = self.granule().bytes() as u64;
        own.iter().map(|pages| self.frames_bytes(pages.first.0 * unit, pages.end().0 * unit)).sum()
    }

    /// What the kernel knows of frames between two offsets of the memfd.
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
        // SAFETY: callers have mapped or opened the page, so that it may be written.
        unsafe { at(memory, page).write_volatile(value) };
    }

    fn load(memory: &SharedMemory, page: u64) -> u64 {
        // SAFETY: callers have mapped or opened the page, so that it may be read.
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
        // A node may be there before the home has mapped anything.
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
        // The home has the frames, whoever touched them first; the node has none of them.
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
