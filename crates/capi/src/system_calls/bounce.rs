//! Bounce buffers: private memory that a system call works on in place of shared memory.
//!
//! Shared memory is read and written here by ordinary loads and stores, which fault and are served like the program's
//! own. Everything works in signal handlers and on any stack: no allocator, no lock, no memory of the thread's stack.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use hiroba_node::Runtime;

/// The most pieces that one call needs: one for each argument, and one for the buffers of a vector.
const PIECES_MAX: usize = 8;

/// Buffers of one length that are kept for the next call.
struct Spares<const COUNT: usize> {
    bytes: usize,
    starts: [AtomicPtr<u8>; COUNT],
}

/// For most calls.
static SHORT: Spares<16> = Spares::of(256 << 10);
/// For transfers of megabytes, which take three quarters of a millisecond each in pages that the kernel has
/// to find and to clear. Buffers that are longer still are mapped for one call.
static LONG: Spares<2> = Spares::of(4 << 20);

/// Pieces lie like the memory they stand for within this many bytes: O_DIRECT asks for alignment.
const ALIGNMENT_BYTES: usize = 4096;

/// Private memory for one call; what it holds goes back when it is dropped.
pub(crate) struct Bounce {
    runtime: &'static Runtime,
    buffers: [Buffer; PIECES_MAX],
    snapshots: [Snapshot; PIECES_MAX],
    snapshot_count: usize,
    /// The kernel may keep the pages beyond the call: no other call may write to them.
    is_for_one_call: bool,
}

#[derive(Clone, Copy)]
struct Buffer {
    start: *mut u8,
    bytes: usize,
    used: usize,
}

const NO_BUFFER: Buffer = Buffer { start: ptr::null_mut(), bytes: 0, used: 0 };

/// Memory whose changes go back.
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

    /// Its buffers are nobody's before and after.
    pub(crate) fn for_one_call(runtime: &'static Runtime) -> Bounce {
        Bounce { is_for_one_call: true, ..Bounce::new(runtime) }
    }

    /// Whether the bytes are shared and allocated, so that a call must not get them as they are. What is shared and
    /// not allocated goes to the kernel, whose answer is the right one.
    pub(crate) fn must_shield(&self, address: usize, bytes: usize) -> bool {
        bytes > 0 && self.runtime.is_shared(address, bytes) && self.runtime.is_allocated(address, bytes)
    }

    /// How many of the bytes are allocated without a gap, if the first is; all when they are private.
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

    /// Sees to it that pieces of so many bytes together come from one buffer; None when there is no memory for them.
    pub(crate) fn reserve(&mut self, pieces: usize, bytes: usize) -> Option<()> {
        let fresh = self.is_for_one_call;
        let free = self.buffers.iter_mut().find(|buffer| buffer.start.is_null())?;
        *free = Buffer::take(pieces.checked_mul(ALIGNMENT_BYTES)?.checked_add(bytes)?, fresh)?;
        Some(())
    }

    /// Private memory of `bytes` bytes that lies within pages like `like`; None when there is none.
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
        // SAFETY: the buffer has room behind `used` for the piece, as was just seen to.
        let piece = unsafe { buffer.start.add(buffer.used) };
        buffer.used += bytes;
        Some(piece)
    }

    /// A private copy of shared memory.
    pub(crate) fn copy(&mut self, address: usize, bytes: usize) -> Option<*mut u8> {
        let piece = self.piece(address, bytes)?;
        load(piece, address, bytes);
        Some(piece)
    }

    /// A private copy of shared memory, whose changes [`Bounce::write_back`] carries over.
    pub(crate) fn exchange(&mut self, address: usize, bytes: usize) -> Option<*mut u8> {
        if self.snapshot_count == PIECES_MAX {
            return None;
        }
        let before = self.copy(address, bytes)?;
        let after = self.piece(address, bytes)?;
        // SAFETY: both pieces are private, distinct and so long.
        unsafe { ptr::copy_nonoverlapping(before, after, bytes) };
        self.snapshots[self.snapshot_count] = Snapshot { shared: address, before, after, bytes };
        self.snapshot_count += 1;
        Some(after)
    }

    /// A private copy of a C string, if all of it is allocated. Of one that is longer than `bytes_max` only so much is
    /// copied, which is too long still.
    pub(crate) fn string(&mut self, address: usize, bytes_max: usize) -> Option<*mut u8> {
        let bound = self.allocated_prefix(address, bytes_max);
        // SAFETY: the program passes a string of which `bound` bytes may be read; strnlen reads no further.
        let length = unsafe { libc::strnlen(address as *const libc::c_char, bound) };
        if length == bound && bound < bytes_max {
            return None;
        }
        let piece = self.piece(address, length + 1)?;
        load(piece, address, length);
        // SAFETY: the piece is one byte longer than what was copied.
        unsafe { piece.wrapping_add(length).write(0) };
        Some(piece)
    }

    /// Carries over to shared memory what the call has changed, byte by byte: the bytes beside may be another thread's.
    pub(crate) fn write_back(&mut self) {
        for snapshot in &self.snapshots[..self.snapshot_count] {
            let mut at = 0;
            while at < snapshot.bytes {
                let run = snapshot.changed_run(at);
                if run > 0 {
                    // SAFETY: `after` is `bytes` long, and `at` within.
                    store(snapshot.shared + at, unsafe { snapshot.after.add(at) }, run);
                }
                at += run.max(1);
            }
        }
        self.snapshot_count = 0;
    }
}

impl Snapshot {
    /// How many bytes from `at` on have all changed.
    fn changed_run(&self, at: usize) -> usize {
        let changed = |offset: &usize| {
            // SAFETY: both pieces are `bytes` long, and the offset within.
            let before = unsafe { self.before.wrapping_add(*offset).read() };
            // SAFETY: as above.
            let after = unsafe { self.after.wrapping_add(*offset).read() };
            before != after
        };
        (at..self.bytes).take_while(changed).count()
    }
}

/// Copies from shared into private memory.
pub(crate) fn load(private: *mut u8, shared: usize, bytes: usize) {
    // SAFETY: both ranges are the caller's to use; the shared one is allocated, and faults on it are served.
    unsafe { ptr::copy_nonoverlapping(shared as *const u8, private, bytes) };
}

/// Copies from private into shared memory.
pub(crate) fn store(shared: usize, private: *const u8, bytes: usize) {
    // SAFETY: both ranges are the caller's to use; the shared one is allocated, and faults on it are served.
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

    /// Whether the buffer is kept: it is one of these, and there is room.
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
        // SAFETY: a fresh anonymous mapping wherever the kernel likes disturbs nothing.
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
