//! Memory that other processes change while we look at it.
//!
//! No `&` or `&mut` to its bytes is ever made: words are atomics, everything else is copied in or out through raw pointers. What has
//! been copied out is judged afterwards, never before, so that nobody can change it between the look and the use.

use std::ffi::c_void;
use std::io;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU64};

use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::{Pid, getpid};

/// The beginning of a file, mapped shared; unmapped on drop. A forked child does not have it.
#[derive(Debug)]
pub struct SharedMapping {
    start: *mut u8,
    bytes: usize,
    mapped_by: Pid,
}

// SAFETY: the mapping is a range of addresses, valid in every thread until the owner drops it; what lies behind it is reached
// as atomics or copied, with other processes' stores expected at any time.
unsafe impl Send for SharedMapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps the first `bytes` of `file`, which is sealed against getting shorter, without reserving memory for it.
    pub fn of_file(file: impl AsFd, bytes: usize) -> io::Result<SharedMapping> {
        SharedMapping::of_part(file, 0, bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps `bytes` of zeros of this process alone, which cost nothing until they are written.
    pub fn of_zeros(bytes: usize) -> io::Result<SharedMapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: without MAP_FIXED the kernel never replaces a mapping that anyone may use.
        let start = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection, flags) }?;
        Ok(SharedMapping::advised(start, bytes))
    }

    fn of_part(
        file: impl AsFd,
        offset: u64,
        bytes: usize,
        protection: ProtFlags,
    ) -> io::Result<SharedMapping> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: without MAP_FIXED the kernel never replaces a mapping that anyone may use.
        let start = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, protection, flags, file, offset) }?;
        Ok(SharedMapping::advised(start, bytes))
    }

    fn advised(start: *mut c_void, bytes: usize) -> SharedMapping {
        // Huge frames would make untouched memory resident; a child and a core dump have no use for it. Kernels that lack one of
        // these go on without.
        for advice in [Advice::LinuxNoHugepage, Advice::LinuxDontFork, Advice::LinuxDontDump] {
            // SAFETY: the range is the mapping just made; none of these changes what a load of this process returns.
            let _ = unsafe { rustix::mm::madvise(start, bytes, advice) };
        }
        SharedMapping { start: start.cast(), bytes, mapped_by: getpid() }
    }

    /// The byte at `offset`.
    ///
    /// # Panics
    /// When it is not inside.
    pub fn byte(&self, offset: usize) -> &AtomicU8 {
        assert!(offset < self.bytes, "expected an offset below {}, got {offset}", self.bytes);
        // SAFETY: in bounds and mapped as long as `self`; all bit patterns are valid.
        unsafe { AtomicU8::from_ptr(self.start.wrapping_add(offset)) }
    }

    /// The word at `offset`.
    ///
    /// # Panics
    /// When it is not aligned or not inside: offsets are ours, never another process's.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(size_of::<u64>()) && offset < self.bytes,
            "expected an aligned offset below {}, got {offset}",
            self.bytes
        );
        // SAFETY: aligned, in bounds and mapped as long as `self`; every process reaches it as an atomic or by whole-word
        // stores, and all bit patterns are valid.
        unsafe { AtomicU64::from_ptr(self.start.wrapping_add(offset).cast()) }
    }

    /// Where `bytes` bytes at `offset` lie.
    fn span(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(
            offset <= self.bytes && bytes <= self.bytes - offset,
            "expected a span inside {} bytes, got {bytes} bytes at {offset}",
            self.bytes
        );
        self.start.wrapping_add(offset)
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// When they would not lie inside.
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        let into = self.span(offset, from.len());
        // SAFETY: `span` has checked the bounds, no reference to shared memory exists that `from` could be. Another process's
        // racing store gives mixed bytes, which its reader checks for.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) }
    }

    /// Copies bytes out, once.
    ///
    /// # Panics
    /// When they do not lie inside.
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        let from = self.span(offset, into.len());
        // SAFETY: as in `copy_in`, the other way round.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
    }

    /// Copies `bytes` bytes out to the end of `into`, once.
    ///
    /// # Panics
    /// When they do not lie inside.
    pub fn append_to(&self, offset: usize, bytes: usize, into: &mut Vec<u8>) {
        let from = self.span(offset, bytes);
        into.reserve(bytes);
        let spare = into.spare_capacity_mut().as_mut_ptr().cast();
        // SAFETY: `span` has checked the source; `reserve` has made room for as many bytes at `spare`.
        unsafe { ptr::copy_nonoverlapping(from, spare, bytes) };
        // SAFETY: that many bytes behind the old length were written just now.
        unsafe { into.set_len(into.len() + bytes) }
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        if getpid() == self.mapped_by {
            // SAFETY: the range is this mapping's own, and nobody can reach it any more through `self`.
            let _ = unsafe { rustix::mm::munmap(self.start.cast(), self.bytes) };
        }
    }
}

/// A part of a file that is only looked at.
#[derive(Debug)]
pub struct ReadOnlyMapping(SharedMapping);

impl ReadOnlyMapping {
    /// Maps `bytes` of `file` from `offset`, a multiple of the system's page; the file is sealed against getting shorter.
    pub fn new(file: impl AsFd, offset: u64, bytes: usize) -> io::Result<ReadOnlyMapping> {
        SharedMapping::of_part(file, offset, bytes, ProtFlags::READ).map(ReadOnlyMapping)
    }

    /// The length in bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Copies bytes out, once.
    ///
    /// # Panics
    /// When they do not lie inside.
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        self.0.copy_out(offset, into);
    }
}
