//! Memory that the host of a virtual machine has backed.
//!
//! A guest's page that the host has not backed yet (or took back, since the guest had reported it free) costs
//! several times as much at its first touch as one that it has. What that costs is the host's affair and
//! differs from minute to minute, so what is measured in fresh memory, ours and raw, is measured in memory
//! that was touched and given back a moment before.

use std::ptr::null_mut;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Touches so many bytes of fresh memory in small pages and gives them back to the kernel.
pub fn have_backed(bytes: usize) {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a mapping at an address of the system's choice touches nothing that is there.
    let Ok(start) = (unsafe { mmap_anonymous(null_mut(), bytes, protection, flags) }) else { return };
    for advice in [Advice::LinuxNoHugepage, Advice::LinuxPopulateWrite] {
        // Where the kernel does not know one of them, measurements are less even, not wrong.
        // SAFETY: the range was just mapped and is unknown elsewhere; neither advice changes its content.
        let _ = unsafe { madvise(start, bytes, advice) };
    }
    // SAFETY: it was mapped above with this length, and nothing refers to it.
    let _ = unsafe { munmap(start, bytes) };
}
