//! Makes the host of a virtual machine back memory.
//!
//! The first touch of a guest's page that the host has not backed yet (or took back because the guest had
//! reported it free) costs several times as much as that of a backed page. That cost belongs to the host and
//! varies from minute to minute, so fresh memory, ours and raw, is measured in memory that was touched and
//! freed a moment before.

use std::ptr::null_mut;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Touches `bytes` bytes of fresh memory in small pages and returns them to the kernel.
pub fn have_backed(bytes: usize) {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a mapping at an address of the system's choice touches nothing that is there.
    let Ok(start) = (unsafe { mmap_anonymous(null_mut(), bytes, protection, flags) }) else { return };
    for advice in [Advice::LinuxNoHugepage, Advice::LinuxPopulateWrite] {
        // If the kernel does not support one of them, measurements vary more, but are not wrong.
        // SAFETY: the range was just mapped and is unknown elsewhere; neither advice changes its content.
        let _ = unsafe { madvise(start, bytes, advice) };
    }
    // SAFETY: it was mapped above with this length, and nothing refers to it.
    let _ = unsafe { munmap(start, bytes) };
}
