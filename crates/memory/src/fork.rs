//! Detects a forked child without a system call.

use core::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::Advice;

use crate::{MemoryError, mapping::Mapping};

/// A word that shows in which process it is read: the kernel wipes its page in a child (`MADV_WIPEONFORK`,
/// Linux 4.14).
///
/// Fault handlers and every call of the program test it, so the test must cost a load, not a system call.
#[derive(Debug)]
pub struct ForkGuard {
    page: Mapping,
}

impl ForkGuard {
    /// Makes a guard that considers this process the original.
    ///
    /// # Errors
    /// Fails if there is no memory for it, or if the kernel is older than Linux 4.14.
    pub fn new() -> Result<ForkGuard, MemoryError> {
        let bytes = rustix::param::page_size();
        let page = Mapping::of_zeros(bytes).map_err(MemoryError::system("mmap of the fork guard"))?;
        page.advise(0, bytes, Advice::LinuxWipeOnFork)
            .map_err(MemoryError::system("madvise(MADV_WIPEONFORK)"))?;
        let guard = ForkGuard { page };
        guard.word().store(1, Ordering::Relaxed);
        Ok(guard)
    }

    /// Returns true if this process was forked from the one that made the guard.
    #[inline]
    pub fn is_forked(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 0
    }

    #[inline]
    fn word(&self) -> &AtomicU32 {
        // SAFETY: the mapping is readable, writable, aligned to a page and lives as long as `self`; no other
        // code knows it.
        unsafe { AtomicU32::from_ptr(self.page.at(0).cast::<u32>()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_knows_that_it_is_one() {
        let guard = ForkGuard::new().unwrap();
        assert!(!guard.is_forked());
        // SAFETY: the child only reads the guard and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = i32::from(!guard.is_forked());
            // SAFETY: _exit has no memory operands and does not return.
            unsafe { libc::_exit(status) };
        }
        let mut status = -1;
        // SAFETY: waits for the child made above, `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child took itself for the original");
        assert!(!guard.is_forked());
    }
}
