//! Mappings of memory that other processes change at any time.
//!
//! No `&` or `&mut` to its bytes is ever made: words are atomics, and all else is copied in or out through
//! raw pointers. Only copies are validated, so that no process can change a value between the check and the
//! use.

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

// SAFETY: the mapping is a range of addresses, valid in every thread until the owner drops it. Its content is
// accessed as atomics or copied, and other processes may store to it at any time.
unsafe impl Send for SharedMapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps the first `bytes` of `file`, which is sealed against shrinking, without reserving memory for it.
    pub fn of_file(file: impl AsFd, bytes: usize) -> io::Result<SharedMapping> {
        SharedMapping::of_part(file, 0, bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps `bytes` zero bytes private to this process, which cost nothing until they are written.
    pub fn of_zeros(bytes: usize) -> io::Result<SharedMapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: without MAP_FIXED the kernel never replaces an existing mapping.
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
        // SAFETY: without MAP_FIXED the kernel never replaces an existing mapping.
        let start = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, protection, flags, file, offset) }?;
        Ok(SharedMapping::advised(start, bytes))
    }

    fn advised(start: *mut c_void, bytes: usize) -> SharedMapping {
        // Huge frames would make untouched memory resident; a child and a core dump have no use for the
        // mapping. Kernels without one of these go on without it.
        for advice in [Advice::LinuxNoHugepage, Advice::LinuxDontFork, Advice::LinuxDontDump] {
            // SAFETY: the range is the mapping just made; none of these changes what a load of this process
            // returns.
            let _ = unsafe { rustix::mm::madvise(start, bytes, advice) };
        }
        SharedMapping { start: start.cast(), bytes, mapped_by: getpid() }
    }

    /// Returns the byte at `offset`.
    ///
    /// # Panics
    /// Panics if it is out of bounds.
    pub fn byte(&self, offset: usize) -> &AtomicU8 {
        assert!(offset < self.bytes, "expected an offset below {}, got {offset}", self.bytes);
        // SAFETY: in bounds and mapped as long as `self`; all bit patterns are valid.
        unsafe { AtomicU8::from_ptr(self.start.wrapping_add(offset)) }
    }

    /// Returns the word at `offset`.
    ///
    /// # Panics
    /// Panics if it is not aligned or out of bounds. Offsets are our own, never read from another process.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(size_of::<u64>()) && offset < self.bytes,
            "expected an aligned offset below {}, got {offset}",
            self.bytes
        );
        // SAFETY: aligned, in bounds and mapped as long as `self`; every process reaches it as an atomic or
        // by whole-word stores, and all bit patterns are valid.
        unsafe { AtomicU64::from_ptr(self.start.wrapping_add(offset).cast()) }
    }

    /// Returns the address of `bytes` bytes at `offset`.
    fn span(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(
            offset <= self.bytes && bytes <= self.bytes - offset,
            "expected a span inside {} bytes, got {bytes} bytes at {offset}",
            self.bytes
        );
        self.start.wrapping_add(offset)
    }

    /// Returns the address of the byte at `offset`, for code that accesses it as the owner of the memory.
    ///
    /// # Panics
    /// Panics if it is out of bounds.
    pub fn address(&self, offset: usize) -> *mut u8 {
        self.span(offset, 1)
    }

    /// Gives frames to the pages of a range, and maps them for writing. Where the kernel cannot (before Linux
    /// 5.14), they fault one by one.
    ///
    /// # Panics
    /// Panics if the range, which consists of whole pages, does not lie inside.
    pub fn populate(&self, offset: usize, bytes: usize) {
        let start = self.span(offset, bytes);
        // SAFETY: `span` has checked that the range is part of the mapping; no byte changes.
        let _ = unsafe { rustix::mm::madvise(start.cast(), bytes, Advice::LinuxPopulateWrite) };
    }

    /// Copies bytes from another mapping, or from elsewhere in this one.
    ///
    /// # Panics
    /// Panics if they do not lie inside, here or there.
    pub fn copy_from(&self, offset: usize, other: &SharedMapping, from: usize, bytes: usize) {
        let (into, from) = (self.span(offset, bytes), other.span(from, bytes));
        // SAFETY: `span` has checked both; the copy may overlap itself, and racing stores give mixed bytes.
        unsafe { ptr::copy(from, into, bytes) }
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// Panics if they would not lie inside.
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        let into = self.span(offset, from.len());
        // SAFETY: `span` has checked the bounds, and no reference to shared memory exists that `from` could
        // be. Another process's racing store gives mixed bytes, which its reader checks for.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) }
    }

    /// Copies bytes out, reading each once.
    ///
    /// # Panics
    /// Panics if they do not lie inside.
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        let from = self.span(offset, into.len());
        // SAFETY: as in `copy_in`, in the other direction.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
    }

    /// Appends a copy of `bytes` bytes to `into`, reading each once.
    ///
    /// # Panics
    /// Panics if they do not lie inside.
    pub fn append_to(&self, offset: usize, bytes: usize, into: &mut Vec<u8>) {
        let from = self.span(offset, bytes);
        into.reserve(bytes);
        let spare = into.spare_capacity_mut().as_mut_ptr().cast();
        // SAFETY: `span` has checked the source; `reserve` has made room for as many bytes at `spare`.
        unsafe { ptr::copy_nonoverlapping(from, spare, bytes) };
        // SAFETY: that many bytes after the old length were just written.
        unsafe { into.set_len(into.len() + bytes) }
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        if getpid() == self.mapped_by {
            // SAFETY: the range is this mapping's own, and cannot be reached through `self` any more.
            let _ = unsafe { rustix::mm::munmap(self.start.cast(), self.bytes) };
        }
    }
}

/// A part of a file, mapped read-only.
#[derive(Debug)]
pub struct ReadOnlyMapping(SharedMapping);

impl ReadOnlyMapping {
    /// Maps `bytes` of `file` from `offset`, a multiple of the system's page. The file is sealed against
    /// shrinking.
    pub fn new(file: impl AsFd, offset: u64, bytes: usize) -> io::Result<ReadOnlyMapping> {
        SharedMapping::of_part(file, offset, bytes, ProtFlags::READ).map(ReadOnlyMapping)
    }

    /// Returns the length in bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Copies bytes out, reading each once.
    ///
    /// # Panics
    /// Panics if they do not lie inside.
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        self.0.copy_out(offset, into);
    }
}
