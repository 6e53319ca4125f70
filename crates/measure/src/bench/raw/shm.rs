//! Messages written to memory that both processes have mapped, and a plain copy of such memory.
//!
//! Each node other than the home has a slot with room for one request and one answer, each with a count that
//! shows when it is new. A side that sleeps does so on the count (futex(2)), and announces it, since a
//! needless wake would cost as much as a needed one.

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::thread::futex;

use super::{Address, LOST_AFTER, Wire};
use crate::bench::shared::PAGE_BYTES;

/// The room for an answer, in bytes.
const ANSWER_BYTES: usize = 64 << 10;
/// The first page is shared by all.
const SLOTS_AT: usize = PAGE_BYTES;
/// A slot: a page of counts and the request, then the answer.
const SLOT_BYTES: usize = PAGE_BYTES + ANSWER_BYTES;
/// The size of the memory that streams are copied from.
const SOURCE_BYTES: usize = 16 << 20;

/// Words of the first page: the number of requests, and whether the home sleeps.
const REQUESTS: usize = 0;
const HOME_SLEEPS: usize = 64;
/// Words of a slot, one per cache line: counts of messages sent and read, lengths, and whether the asking
/// side sleeps.
const REQUEST_SENT: usize = 0;
const REQUEST_READ: usize = 64;
const REQUEST_BYTES_AT: usize = 128;
const ANSWER_SENT: usize = 192;
const ANSWER_READ: usize = 256;
const ANSWER_BYTES_AT: usize = 320;
const OTHER_SLEEPS: usize = 384;
const REQUEST_AT: usize = 1024;
const ANSWER_AT: usize = PAGE_BYTES;

/// A mapping that is removed when its last user is gone.
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is accessed only through atomic words and copies, whose order the counts keep.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(file: Option<&OwnedFd>, bytes: usize) -> io::Result<Mapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let start = match file {
            // SAFETY: a mapping at an address of the system's choice touches nothing that is there.
            Some(file) => unsafe { mmap(null_mut(), bytes, protection, MapFlags::SHARED, file, 0) },
            // SAFETY: as above.
            None => unsafe { mmap_anonymous(null_mut(), bytes, protection, MapFlags::PRIVATE) },
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, bytes })
    }

    fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(offset + bytes <= self.bytes, "a place in the mapping");
        self.start.as_ptr().wrapping_add(offset)
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        let word = self.at(offset, 4).cast();
        // SAFETY: the word is aligned, mapped as long as `self` lives, and only accessed as an atomic.
        unsafe { AtomicU32::from_ptr(word) }
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: both have the same length; the other side does not read there before the count allows
        // it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.at(offset, into.len());
        // SAFETY: both have the same length; the other side does not write there before it has been
        // answered.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and every reference into it borrows `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast::<c_void>(), self.bytes) };
    }
}

/// One node's view of the memory.
pub struct ShmWire {
    mapping: Arc<Mapping>,
    slots: usize,
    /// The slot of a node that is not the home.
    mine: Option<usize>,
    /// Kept open for the others.
    _file: Arc<OwnedFd>,
    /// The destination of streams, which is reused.
    reused: Vec<u8>,
}

impl ShmWire {
    /// Opens the home's view, with a slot for each of the others. The address is its process and descriptor.
    pub fn at_home(others: usize) -> io::Result<(ShmWire, Address)> {
        let file = memfd_create("hiroba-bench", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, (SLOTS_AT + others * SLOT_BYTES + SOURCE_BYTES) as u64)?;
        let address = u64::from(std::process::id()) << 32 | file.as_raw_fd() as u64;
        let wire = ShmWire::map(file, None)?;
        let page = [1; PAGE_BYTES];
        (0..SOURCE_BYTES).step_by(PAGE_BYTES).for_each(|at| wire.mapping.write(wire.source_at() + at, &page));
        Ok((wire, address))
    }

    /// Opens the view of another node.
    pub fn to(home: Address, number: usize) -> io::Result<ShmWire> {
        let path = format!("/proc/{}/fd/{}", home >> 32, home as u32);
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        ShmWire::map(file.into(), Some(number))
    }

    fn map(file: OwnedFd, mine: Option<usize>) -> io::Result<ShmWire> {
        let file = File::from(file);
        let bytes = file.metadata()?.len() as usize;
        let file = OwnedFd::from(file);
        let mapping = Arc::new(Mapping::of(Some(&file), bytes)?);
        let slots = (bytes - SLOTS_AT - SOURCE_BYTES) / SLOT_BYTES;
        Ok(ShmWire { mapping, slots, mine, _file: Arc::new(file), reused: Vec::new() })
    }

    fn source_at(&self) -> usize {
        SLOTS_AT + self.slots * SLOT_BYTES
    }

    /// Writes a message: its bytes, its length, its count.
    fn lay(&self, [bytes_at, length_at, sent_at]: [usize; 3], message: &[u8]) {
        self.mapping.write(bytes_at, message);
        self.mapping.word(length_at).store(message.len() as u32, Ordering::Relaxed);
        self.mapping.word(sent_at).fetch_add(1, Ordering::SeqCst);
    }

    /// Waits until the last request has been read, since there is room for one.
    fn wait_until_read(&self, slot: usize) {
        let word = |at| self.mapping.word(slot + at).load(Ordering::SeqCst);
        let began = Instant::now();
        while word(REQUEST_SENT) != word(REQUEST_READ) && began.elapsed() < LOST_AFTER {
            std::thread::yield_now();
        }
    }

    /// Reads a message, if there is a new one. Returns its length.
    fn take(&self, [bytes_at, length_at, sent_at, read_at]: [usize; 4], into: &mut [u8]) -> Option<usize> {
        let sent = self.mapping.word(sent_at).load(Ordering::Acquire);
        if sent == self.mapping.word(read_at).load(Ordering::Relaxed) {
            return None;
        }
        let bytes = (self.mapping.word(length_at).load(Ordering::Relaxed) as usize).min(into.len());
        self.mapping.read(bytes_at, &mut into[..bytes]);
        self.mapping.word(read_at).store(sent, Ordering::Relaxed);
        Some(bytes)
    }
}

/// Returns the offset of a slot.
fn slot(number: usize) -> usize {
    SLOTS_AT + number * SLOT_BYTES
}

impl Wire for ShmWire {
    fn message_bytes_max(&self) -> usize {
        ANSWER_BYTES
    }

    fn window(&self) -> usize {
        1
    }

    fn send(&mut self, to: usize, message: &[u8]) {
        let slot = slot(self.mine.unwrap_or(to));
        let (bell, sleeps) = if self.mine.is_some() {
            self.wait_until_read(slot);
            self.lay([REQUEST_AT, REQUEST_BYTES_AT, REQUEST_SENT].map(|at| slot + at), message);
            self.mapping.word(REQUESTS).fetch_add(1, Ordering::SeqCst);
            (REQUESTS, HOME_SLEEPS)
        } else {
            self.lay([ANSWER_AT, ANSWER_BYTES_AT, ANSWER_SENT].map(|at| slot + at), message);
            (slot + ANSWER_SENT, slot + OTHER_SLEEPS)
        };
        if self.mapping.word(sleeps).load(Ordering::SeqCst) != 0 {
            let _ = futex::wake(self.mapping.word(bell), futex::Flags::empty(), 1);
        }
    }

    fn try_receive(&mut self, buffer: &mut [u8]) -> Option<(usize, usize)> {
        if let Some(mine) = self.mine {
            let places = [ANSWER_AT, ANSWER_BYTES_AT, ANSWER_SENT, ANSWER_READ].map(|at| slot(mine) + at);
            return self.take(places, buffer).map(|bytes| (0, bytes));
        }
        (0..self.slots).find_map(|number| {
            let places =
                [REQUEST_AT, REQUEST_BYTES_AT, REQUEST_SENT, REQUEST_READ].map(|at| slot(number) + at);
            self.take(places, buffer).map(|bytes| (number, bytes))
        })
    }

    fn sleep(&self, limit: Duration) {
        let word = |at| self.mapping.word(at);
        let is_new = |number, sent, read| {
            word(slot(number) + sent).load(Ordering::SeqCst)
                != word(slot(number) + read).load(Ordering::SeqCst)
        };
        let (bell, sleeps) = match self.mine {
            Some(mine) => (slot(mine) + ANSWER_SENT, slot(mine) + OTHER_SLEEPS),
            None => (REQUESTS, HOME_SLEEPS),
        };
        word(sleeps).store(1, Ordering::SeqCst);
        let rung = word(bell).load(Ordering::SeqCst);
        let something = match self.mine {
            Some(mine) => is_new(mine, ANSWER_SENT, ANSWER_READ),
            None => (0..self.slots).any(|number| is_new(number, REQUEST_SENT, REQUEST_READ)),
        };
        if !something {
            let _ = futex::wait(word(bell), futex::Flags::empty(), rung, limit.try_into().ok().as_ref());
        }
        word(sleeps).store(0, Ordering::SeqCst);
    }

    fn duplicate(&self) -> io::Result<Box<dyn Wire>> {
        let (mapping, _file) = (self.mapping.clone(), self._file.clone());
        Ok(Box::new(ShmWire { mapping, slots: self.slots, mine: self.mine, _file, reused: Vec::new() }))
    }

    fn copy(&mut self, bytes: usize) -> Option<usize> {
        let bytes = bytes.min(SOURCE_BYTES);
        let source = self.source_at();
        self.reused.resize(bytes, 1);
        let pages = self.reused.chunks_mut(PAGE_BYTES).enumerate();
        pages.for_each(|(page, into)| self.mapping.read(source + page * PAGE_BYTES, into));
        Some(bytes)
    }

    fn copy_into(&self, buffer: &mut [u8]) -> Option<usize> {
        let bytes = buffer.len().min(SOURCE_BYTES);
        self.mapping.read(self.source_at(), &mut buffer[..bytes]);
        Some(bytes)
    }
}

/// Copies `source` page by page into memory that was just mapped, and unmaps it. Returns how many bytes.
pub fn copy_into_fresh_memory(source: &[u8]) -> io::Result<usize> {
    let fresh = Mapping::of(None, source.len())?;
    let pages = source.chunks(PAGE_BYTES).enumerate();
    pages.for_each(|(page, from)| fresh.write(page * PAGE_BYTES, from));
    Ok(source.len())
}
