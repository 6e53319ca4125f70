//! Bounce buffers: private memory that a system call uses instead of shared memory.
//!
//! Shared memory is read and written here by ordinary loads and stores, which fault and are served like the
//! program's own. Everything works in signal handlers and on any stack: it uses no allocator, no lock, and no
//! large objects on the stack.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use hiroba_node::Runtime;

/// The maximum number of pieces of one call: one for each argument, and one for the buffers of a vector.
const PIECES_MAX: usize = 8;

/// Buffers of one length that are kept for the next call.
struct Spares<const COUNT: usize> {
    bytes: usize,
    starts: [AtomicPtr<u8>; COUNT],
}

/// Buffers for most calls.
static SHORT: Spares<16> = Spares::of(256 << 10);
/// Buffers for transfers of megabytes; the kernel needs three quarters of a millisecond to find and clear
/// their pages. Even longer buffers are mapped for one call.
static LONG: Spares<2> = Spares::of(4 << 20);

/// Pieces have the same offset as the memory that they replace within this many bytes, since O_DIRECT needs
/// alignment.
const ALIGNMENT_BYTES: usize = 4096;

/// Private memory for one call. Its changes are written back by [`Bounce::write_back`].
pub(crate) struct Bounce {
    runtime: &'static Runtime,
    buffers: [Buffer; PIECES_MAX],
    snapshots: [Snapshot; PIECES_MAX],
    snapshot_count: usize,
    /// Whether the kernel may keep the pages beyond the call, so that no other call may write to them.
    is_for_one_call: bool,
}

#[derive(Clone, Copy)]
struct Buffer {
    start: *mut u8,
    bytes: usize,
    used: usize,
}

const NO_BUFFER: Buffer = Buffer { start: ptr::null_mut(), bytes: 0, used: 0 };

/// A copy of memory whose changes are written back.
#[derive(Clone, Copy)]
struct Snapshot {
    shared: usize,
    before: *const u8,
    after: *const u8,
    bytes: usize,
}

const NO_SNAPSHOT: Snapshot = Snapshot { shared: 0, before: ptr::null(), after: ptr::null(), bytes: 0 };

impl Bounce {
    pub(crate) fn new(runtime: &'static Runtime) -> Bounce {
        Bounce {
            runtime,
            buffers: [NO_BUFFER; PIECES_MAX],
            snapshots: [NO_SNAPSHOT; PIECES_MAX],
            snapshot_count: 0,
            is_for_one_call: false,
        }
    }

    /// Makes a bounce whose buffers are mapped for this call and unmapped after it.
    pub(crate) fn for_one_call(runtime: &'static Runtime) -> Bounce {
        Bounce { is_for_one_call: true, ..Bounce::new(runtime) }
    }

    /// Returns true if the bytes are shared and allocated, so that a call must not access them directly.
    /// Shared bytes that are not allocated are left to the kernel, whose error is right.
    pub(crate) fn must_shield(&self, address: usize, bytes: usize) -> bool {
        bytes > 0 && self.runtime.is_shared(address, bytes) && self.runtime.is_allocated(address, bytes)
    }

    /// Returns how many of the bytes are allocated without a gap, if the first is; all of them if they are
    /// private.
    pub(crate) fn allocated_prefix(&self, address: usize, bytes: usize) -> usize {
        if bytes == 0 || !self.runtime.is_shared(address, 1) || self.runtime.is_allocated(address, bytes) {
            return bytes;
        }
        let (mut good, mut bad) = (0, bytes);
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            if self.runtime.is_allocated(address, middle) {
                good = middle;
            } else {
                bad = middle;
            }
        }
        good
    }

    /// Makes sure that pieces of `bytes` bytes in total come from one buffer; `None` if there is no memory.
    pub(crate) fn reserve(&mut self, pieces: usize, bytes: usize) -> Option<()> {
        let fresh = self.is_for_one_call;
        let free = self.buffers.iter_mut().find(|buffer| buffer.start.is_null())?;
        *free = Buffer::take(pieces.checked_mul(ALIGNMENT_BYTES)?.checked_add(bytes)?, fresh)?;
        Some(())
    }

    /// Returns private memory of `bytes` bytes with the same offset in a page as `like`; `None` if there is
    /// none.
    pub(crate) fn piece(&mut self, like: usize, bytes: usize) -> Option<*mut u8> {
        let skip = |buffer: &Buffer| {
            let next = buffer.start.addr() + buffer.used;
            (like % ALIGNMENT_BYTES + ALIGNMENT_BYTES - next % ALIGNMENT_BYTES) % ALIGNMENT_BYTES
        };
        let fits = |buffer: &&mut Buffer| {
            !buffer.start.is_null() && buffer.used + skip(buffer) + bytes <= buffer.bytes
        };
        let fresh = self.is_for_one_call;
        let buffer = match self.buffers.iter_mut().find(fits) {
            Some(buffer) => buffer,
            None => {
                let free = self.buffers.iter_mut().find(|buffer| buffer.start.is_null())?;
                *free = Buffer::take(bytes.checked_add(ALIGNMENT_BYTES)?, fresh)?;
                free
            }
        };
        buffer.used += skip(buffer);
        // SAFETY: the buffer has room for the piece after `used`, as checked above.
        let piece = unsafe { buffer.start.add(buffer.used) };
        buffer.used += bytes;
        Some(piece)
    }

    /// Copies shared memory to private memory.
    pub(crate) fn copy(&mut self, address: usize, bytes: usize) -> Option<*mut u8> {
        let piece = self.piece(address, bytes)?;
        load(piece, address, bytes);
        Some(piece)
    }

    /// Copies shared memory to private memory whose changes [`Bounce::write_back`] writes back.
    pub(crate) fn exchange(&mut self, address: usize, bytes: usize) -> Option<*mut u8> {
        if self.snapshot_count == PIECES_MAX {
            return None;
        }
        let before = self.copy(address, bytes)?;
        let after = self.piece(address, bytes)?;
        // SAFETY: both pieces are private, distinct and of this length.
        unsafe { ptr::copy_nonoverlapping(before, after, bytes) };
        self.snapshots[self.snapshot_count] = Snapshot { shared: address, before, after, bytes };
        self.snapshot_count += 1;
        Some(after)
    }

    /// Copies a C string to private memory, if all of it is allocated. Of one longer than `bytes_max` only
    /// that much is copied, which is still too long for the kernel.
    pub(crate) fn string(&mut self, address: usize, bytes_max: usize) -> Option<*mut u8> {
        let bound = self.allocated_prefix(address, bytes_max);
        // SAFETY: the program passes a string of which `bound` bytes may be read; strnlen reads no further.
        let length = unsafe { libc::strnlen(address as *const libc::c_char, bound) };
        if length == bound && bound < bytes_max {
            return None;
        }
        let piece = self.piece(address, length + 1)?;
        load(piece, address, length);
        // SAFETY: the piece is one byte longer than the copied text.
        unsafe { piece.wrapping_add(length).write(0) };
        Some(piece)
    }

    /// Writes what the call has changed back to shared memory, byte by byte, since neighbouring bytes may
    /// belong to another thread.
    pub(crate) fn write_back(&mut self) {
        for snapshot in &self.snapshots[..self.snapshot_count] {
            let mut at = 0;
            while at < snapshot.bytes {
                let run = snapshot.changed_run(at);
                if run > 0 {
                    // SAFETY: `after` is `bytes` long, and `at` is within it.
                    store(snapshot.shared + at, unsafe { snapshot.after.add(at) }, run);
                }
                at += run.max(1);
            }
        }
        self.snapshot_count = 0;
    }
}

impl Snapshot {
    /// Returns how many bytes from `at` on have all changed.
    fn changed_run(&self, at: usize) -> usize {
        let changed = |offset: &usize| {
            // SAFETY: both pieces are `bytes` long, and the offset is within them.
            let before = unsafe { self.before.wrapping_add(*offset).read() };
            // SAFETY: as above.
            let after = unsafe { self.after.wrapping_add(*offset).read() };
            before != after
        };
        (at..self.bytes).take_while(changed).count()
    }
}

/// Copies from shared to private memory.
pub(crate) fn load(private: *mut u8, shared: usize, bytes: usize) {
    // SAFETY: the caller may use both ranges; the shared one is allocated, and faults on it are served.
    unsafe { ptr::copy_nonoverlapping(shared as *const u8, private, bytes) };
}

/// Copies from private to shared memory.
pub(crate) fn store(shared: usize, private: *const u8, bytes: usize) {
    // SAFETY: the caller may use both ranges; the shared one is allocated, and faults on it are served.
    unsafe { ptr::copy_nonoverlapping(private, shared as *mut u8, bytes) };
}

impl<const COUNT: usize> Spares<COUNT> {
    const fn of(bytes: usize) -> Spares<COUNT> {
        Spares { bytes, starts: [const { AtomicPtr::new(ptr::null_mut()) }; COUNT] }
    }

    fn take(&self) -> Option<Buffer> {
        let mut starts = self.starts.iter().map(|start| start.swap(ptr::null_mut(), Ordering::Acquire));
        match starts.find(|start| !start.is_null()) {
            Some(start) => Some(Buffer { start, bytes: self.bytes, used: 0 }),
            None => Buffer::map(self.bytes),
        }
    }

    /// Returns true if the buffer was kept: it has the right length, and there is room.
    fn keep(&self, buffer: Buffer) -> bool {
        let keep = |place: &AtomicPtr<u8>| {
            let free = ptr::null_mut();
            place.compare_exchange(free, buffer.start, Ordering::Release, Ordering::Relaxed).is_ok()
        };
        buffer.bytes == self.bytes && self.starts.iter().any(keep)
    }
}

impl Buffer {
    fn take(bytes: usize, fresh: bool) -> Option<Buffer> {
        match bytes {
            _ if fresh => Buffer::map(bytes),
            _ if bytes <= SHORT.bytes => SHORT.take(),
            _ if bytes <= LONG.bytes => LONG.take(),
            _ => Buffer::map(bytes),
        }
    }

    fn map(bytes: usize) -> Option<Buffer> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        (start != libc::MAP_FAILED).then_some(Buffer { start: start.cast(), bytes, used: 0 })
    }

    fn give_back(self, fresh: bool) {
        if fresh || !(SHORT.keep(self) || LONG.keep(self)) {
            // SAFETY: `map` made the mapping, and the call it was for is over.
            unsafe { libc::munmap(self.start.cast(), self.bytes) };
        }
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        for buffer in self.buffers.iter().filter(|buffer| !buffer.start.is_null()) {
            buffer.give_back(self.is_for_one_call);
        }
    }
}
