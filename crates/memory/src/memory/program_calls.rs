//! Effects of the program's own system calls on shared memory: locking and executing.

use std::sync::atomic::Ordering;

use hiroba_base::{PageId, PageRange};
use rustix::{io::Errno, mm::MprotectFlags};

use super::SharedMemory;
use crate::{MemoryError, mapping::Locking};

impl SharedMemory {
    /// Keeps the frames of allocated pages from being swapped out. They are locked in the runtime's view,
    /// because locked entries of the program's view could not be removed.
    ///
    /// # Errors
    /// Fails with the errno of mlock(2).
    pub fn lock(&self, pages: PageRange) -> Result<(), Errno> {
        let (offset, bytes) = self.allocated_span(pages).map_err(|_| Errno::NOMEM)?;
        self.runtime.lock(offset, bytes, Locking::Now)
    }

    /// Locks frames when the runtime's view maps them; makes none. Fails as [`lock`](Self::lock) would for
    /// lack of permission or room.
    ///
    /// # Errors
    /// Fails with the errno of mlock2(2).
    pub fn lock_on_fault(&self, pages: PageRange) -> Result<(), Errno> {
        let (offset, bytes) = self.allocated_span(pages).map_err(|_| Errno::NOMEM)?;
        self.runtime.lock(offset, bytes, Locking::OnFault)
    }

    /// Undoes both.
    ///
    /// # Errors
    /// Fails with the errno of munlock(2).
    pub fn unlock(&self, pages: PageRange) -> Result<(), Errno> {
        let (offset, bytes) = self.allocated_span(pages).map_err(|_| Errno::NOMEM)?;
        self.runtime.unlock(offset, bytes)
    }

    /// Locks the pages that have frames according to the kernel: in a job of one node it makes frames without
    /// telling us.
    ///
    /// # Errors
    /// Fails with the errno of mlock(2).
    pub fn lock_resident(&self, pages: PageRange) -> Result<(), Errno> {
        let (offset, bytes) = self.allocated_span(pages).map_err(|_| Errno::NOMEM)?;
        let end = offset + bytes;
        let mut next = self.data_run(offset);
        while let Some((start, its_end)) = next.filter(|(start, _)| *start < end) {
            // The last run of frames may extend beyond the range.
            let its_end = its_end.min(end);
            self.runtime.lock(start, its_end - start, Locking::Now)?;
            next = self.data_run(its_end);
        }
        Ok(())
    }

    /// Returns true if the program may execute code in `page`.
    pub fn is_executable(&self, page: PageId) -> bool {
        self.is_any_executable.load(Ordering::Relaxed) && self.executable.contains(page)
    }

    /// Records whether the program may execute code in allocated pages. This is only the record;
    /// [`FaultSource::execute`](crate::FaultSource::execute) applies it, since the fault source controls
    /// loads and stores.
    pub(crate) fn note_executable(&self, pages: PageRange, on: bool) -> Result<(), MemoryError> {
        let changed = if on {
            self.is_any_executable.store(true, Ordering::Relaxed);
            self.executable.insert_range(pages)
        } else if self.is_any_executable.load(Ordering::Relaxed) {
            self.executable.remove_range(pages)
        } else {
            Ok(0)
        };
        changed.map(drop).map_err(MemoryError::system("mmap of a page table"))
    }

    /// Returns the maximal runs of `pages` in which code may be executed (`true`), or may not, in order.
    pub(crate) fn executable_runs(&self, pages: PageRange) -> impl Iterator<Item = (PageRange, bool)> + '_ {
        self.executable.runs(pages)
    }

    /// Returns true if any of the pages may contain code.
    pub(crate) fn is_any_executable(&self, pages: PageRange) -> bool {
        self.is_any_executable.load(Ordering::Relaxed) && self.executable.contains_any(pages)
    }

    /// Allows or forbids executing code in pages whose loads and stores the kernel permits, without a fault
    /// source.
    ///
    /// # Errors
    /// Fails if the pages are not allocated, or if the kernel refuses: too many mappings, or a security
    /// module.
    pub fn open_for_executing(&self, pages: PageRange, on: bool) -> Result<(), MemoryError> {
        let (offset, bytes) = self.allocated_span(pages)?;
        if !on && !self.is_any_executable(pages) {
            return Ok(());
        }
        let execute = if on { MprotectFlags::EXEC } else { MprotectFlags::empty() };
        let access = MprotectFlags::READ | MprotectFlags::WRITE | execute;
        self.application.protect(offset, bytes, access).map_err(MemoryError::of_view("mprotect"))?;
        self.note_executable(pages, on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::tests::small_memory;

    fn range(first: u64, count: u64) -> PageRange {
        PageRange { first: PageId(first), count }
    }

    /// Returns the kernel's information about the mapping at an address: its line in smaps that begins with
    /// `key`.
    fn told(address: usize, key: &str) -> String {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in smaps.lines() {
            let bounds = line.split(' ').next().and_then(|word| word.split_once('-'));
            let number = |word: &str| usize::from_str_radix(word, 16).ok();
            if let Some((Some(start), Some(end))) = bounds.map(|(start, end)| (number(start), number(end))) {
                inside = (start..end).contains(&address);
            }
            if inside && line.starts_with(key) {
                return line[key.len()..].trim().to_owned();
            }
        }
        panic!("nothing is mapped at 0x{address:x}");
    }

    #[test]
    fn locked_are_the_frames_and_not_the_programs_view() {
        let memory = small_memory(64);
        assert_eq!(memory.lock(range(0, 4)), Err(Errno::NOMEM), "not allocated");
        memory.allocate(range(0, 32)).unwrap();
        memory.populate(range(0, 4)).unwrap();
        memory.lock(range(0, 4)).unwrap();
        let locked = |page: u64| told(memory.runtime_at(PageId(page), 0).addr(), "Locked:");
        let has_lock = |address: usize| told(address, "VmFlags:").split(' ').any(|flag| flag == "lo");
        assert_eq!(locked(0), "16 kB");
        assert!(
            !has_lock(memory.address_of(PageId(0)).addr())
                && !has_lock(memory.runtime_at(PageId(4), 0).addr())
        );
        memory.lock_on_fault(range(8, 8)).unwrap();
        memory.write(PageId(9), 0, &[1]).unwrap();
        memory.write(PageId(20), 0, &[1]).unwrap();
        memory.lock_resident(range(8, 8)).unwrap();
        assert_eq!(memory.frames(), 6, "locking existing pages has made frames");
        assert!(
            has_lock(memory.runtime_at(PageId(9), 0).addr())
                && !has_lock(memory.runtime_at(PageId(20), 0).addr())
        );
        memory.unlock(range(0, 32)).unwrap();
        assert!(!has_lock(memory.runtime_at(PageId(0), 0).addr()));
    }

    #[test]
    fn a_view_that_something_else_has_locked_is_closed_all_the_same() {
        let memory = small_memory(64);
        memory.allocate(range(0, 64)).unwrap();
        memory.open(range(0, 64)).unwrap();
        memory.application.lock(4096, 8 * 4096, Locking::Now).unwrap();
        let advised = memory.application.advise(0, 64 * 4096, rustix::mm::Advice::LinuxDontNeed);
        assert_eq!(advised, Ok(()));
        memory.close();
    }

    #[test]
    fn executable_pages_are_known() {
        let memory = small_memory(64);
        memory.allocate(range(0, 32)).unwrap();
        memory.open(range(0, 32)).unwrap();
        let rights = |page: u64| {
            let address = memory.address_of(PageId(page)).addr();
            told(address, "VmFlags:").split(' ').any(|flag| flag == "ex")
        };
        memory.open_for_executing(range(4, 4), true).unwrap();
        assert!(memory.is_executable(PageId(7)) && !memory.is_executable(PageId(8)));
        assert_eq!([3, 4, 7, 8].map(rights), [false, true, true, false]);
        memory.open_for_executing(range(0, 6), false).unwrap();
        assert_eq!([4, 5, 6, 7].map(rights), [false, false, true, true]);
        assert!(matches!(
            memory.open_for_executing(range(30, 4), true),
            Err(MemoryError::NotAllocated { .. })
        ));
    }
}
