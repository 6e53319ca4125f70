//! Words of shared memory, accessed as a program does.

use hiroba_base::PageSize;
use hiroba_node::Runtime;
use hiroba_wire::Placement;

/// The size of the kernel's pages on most machines: the step from one page to the next unless a region says
/// otherwise.
pub const PAGE_BYTES: usize = 4096;

/// A region that was allocated collectively and stays until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    start: usize,
    bytes: usize,
}

impl Region {
    /// Allocates a region; every node makes the same call.
    pub fn allocate(runtime: &Runtime, bytes: usize, placement: Placement, page: Option<PageSize>) -> Region {
        match runtime.allocate(bytes as u64, placement, page, None) {
            Ok(start) => Region { start, bytes },
            Err(error) => runtime.fatal(&format!("cannot allocate memory to measure with: {error}")),
        }
    }

    /// Returns its size in bytes.
    pub fn bytes(self) -> usize {
        self.bytes
    }

    /// Returns the address of the word at `offset`.
    pub fn address(self, offset: usize) -> usize {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.bytes, "a word of the region");
        self.start + offset
    }

    /// Loads the word at `offset`.
    pub fn load(self, offset: usize) -> u64 {
        let word = self.address(offset) as *const u64;
        // SAFETY: the word is aligned and lies in a region of the runtime's, which stays until the process
        // ends; nodes do not touch a word at the same time without synchronisation.
        unsafe { word.read_volatile() }
    }

    /// Stores a word at `offset`.
    pub fn store(self, offset: usize, value: u64) {
        let word = self.address(offset) as *mut u64;
        // SAFETY: as in `load`.
        unsafe { word.write_volatile(value) }
    }

    /// Returns the words as a slice for one thread's loop. Nothing else may access the region while it lives.
    pub fn words(self) -> &'static mut [u64] {
        // SAFETY: the region is aligned, zeroed at first and stays until the process ends; the only caller is
        // the one thread of a job of one node, which takes it once.
        unsafe { std::slice::from_raw_parts_mut(self.start as *mut u64, self.bytes / 8) }
    }
}
