//! Spans: runs of blocks of one size, the state of each block, and the table that finds a block's span.

use std::fmt;
use std::ops::Range;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use hiroba_base::NodeId;

use super::classes::{SPAN_BYTES, SizeClass};

/// The state of a small block in one word: its holder, and how many of its bytes were not requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark(u32);

/// The holder of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Never allocated since the span was made.
    New,
    /// Allocated to the program.
    Live,
    /// Freed by this node.
    Freed(NodeId),
}

const LIVE: u32 = 1 << 16;
const FREED_FIRST: u32 = 2;
const IDLE_MASK: u32 = LIVE - 1;

impl Mark {
    const NEW: Mark = Mark(0);

    /// The program has the block and did not request `idle` bytes at its end.
    fn live(idle: u64) -> Mark {
        Mark(LIVE | idle as u32 & IDLE_MASK)
    }

    fn freed(self, by: NodeId) -> Mark {
        Mark((u32::from(by.0) + FREED_FIRST) << 16 | self.0 & IDLE_MASK)
    }

    pub(super) fn state(self) -> State {
        match self.0 >> 16 {
            0 => State::New,
            1 => State::Live,
            node => State::Freed(NodeId((node - FREED_FIRST) as u16)),
        }
    }

    /// Returns the number of bytes at the block's end that were not requested.
    pub(super) fn idle_bytes(self) -> u64 {
        u64::from(self.0 & IDLE_MASK)
    }
}

/// A span's bookkeeping. It is made for one class and keeps it, but may serve one address range after
/// another.
///
/// The holder of a block changes its mark: the thread in whose cache it is makes it live, and the thread that
/// frees it marks it free. All other fields change under the lock of the class's central list. They are
/// atomic because every thread can reach them through the table.
#[repr(align(64))]
pub(super) struct Span {
    pub(super) class: u8,
    marks: Box<[AtomicU32]>,
    start: AtomicU64,
    /// True if the memory was unused when the span began there.
    zeroed: AtomicBool,
    /// True if a thread's cache takes new blocks from it. No other thread does, so the cache lines are its
    /// own.
    taken: AtomicBool,
    /// Bitmap of the blocks that are in no cache and not allocated.
    pooled: Box<[AtomicU64]>,
    pooled_count: AtomicU32,
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, pooled) = (self.start(), self.pooled_count());
        write!(
            f,
            "Span {{ class: {}, start: {start:#x}, pooled: {pooled} of {} }}",
            self.class,
            self.marks.len()
        )
    }
}

impl Span {
    /// Makes bookkeeping for spans of a class. It lives as long as the process: threads may look at it at any
    /// time.
    pub(super) fn leak(class: usize, size: &SizeClass) -> &'static Span {
        Box::leak(Box::new(Span {
            class: class as u8,
            marks: (0..size.blocks).map(|_| AtomicU32::new(Mark::NEW.0)).collect(),
            start: AtomicU64::new(0),
            zeroed: AtomicBool::new(false),
            taken: AtomicBool::new(false),
            pooled: (0..size.blocks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            pooled_count: AtomicU32::new(0),
        }))
    }

    /// Moves the span to `start`, with all its blocks new.
    pub(super) fn begin(&self, start: u64, zeroed: bool) {
        for mark in &self.marks {
            mark.store(Mark::NEW.0, Ordering::Relaxed);
        }
        let mut left = self.marks.len();
        for word in &self.pooled {
            word.store(if left >= 64 { u64::MAX } else { (1 << left) - 1 }, Ordering::Relaxed);
            left = left.saturating_sub(64);
        }
        self.pooled_count.store(self.marks.len() as u32, Ordering::Relaxed);
        self.start.store(start, Ordering::Relaxed);
        self.zeroed.store(zeroed, Ordering::Relaxed);
        self.taken.store(false, Ordering::Relaxed);
    }

    pub(super) fn start(&self) -> u64 {
        self.start.load(Ordering::Relaxed)
    }

    pub(super) fn blocks(&self) -> usize {
        self.marks.len()
    }

    pub(super) fn pooled_count(&self) -> usize {
        self.pooled_count.load(Ordering::Relaxed) as usize
    }

    pub(super) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Relaxed)
    }

    pub(super) fn set_taken(&self, taken: bool) {
        self.taken.store(taken, Ordering::Relaxed);
    }

    /// Returns the state of a block.
    pub(super) fn mark(&self, index: usize) -> Option<Mark> {
        self.marks.get(index).map(|mark| Mark(mark.load(Ordering::Relaxed)))
    }

    /// Marks a block live that the caller took from the pool. Returns true if it is known to be all zero.
    #[inline]
    pub(super) fn make_live(&self, index: usize, idle_bytes: u64) -> bool {
        let mark = &self.marks[index];
        let new = mark.load(Ordering::Relaxed) == Mark::NEW.0;
        mark.store(Mark::live(idle_bytes).0, Ordering::Relaxed);
        new && self.zeroed.load(Ordering::Relaxed)
    }

    /// Frees a live block, which the caller then holds. If two threads free the same block, one succeeds.
    #[inline]
    pub(super) fn make_freed(&self, index: usize, by: NodeId) -> Result<(), Option<Mark>> {
        let word = self.marks.get(index).ok_or(None)?;
        let mark = Mark(word.load(Ordering::Relaxed));
        if mark.state() != State::Live {
            return Err(Some(mark));
        }
        word.compare_exchange(mark.0, mark.freed(by).0, Ordering::Relaxed, Ordering::Relaxed)
            .map(drop)
            .map_err(|now| Some(Mark(now)))
    }

    /// Changes the number of unrequested bytes of a live block.
    pub(super) fn resize(&self, index: usize, idle_bytes: u64) -> Result<(), Option<Mark>> {
        let word = self.marks.get(index).ok_or(None)?;
        let mark = Mark(word.load(Ordering::Relaxed));
        if mark.state() != State::Live {
            return Err(Some(mark));
        }
        let resized = Mark::live(idle_bytes).0;
        word.compare_exchange(mark.0, resized, Ordering::Relaxed, Ordering::Relaxed)
            .map(drop)
            .map_err(|now| Some(Mark(now)))
    }

    /// Takes up to `count` blocks from the pool, in descending order of address, so that a stack yields the
    /// lowest first. Needs the lock of the central list.
    pub(super) fn take(&self, size: &SizeClass, count: usize, into: &mut Vec<u64>) {
        let (before, start) = (into.len(), self.start());
        'words: for (index, word) in self.pooled.iter().enumerate() {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                if into.len() - before == count {
                    word.store(bits, Ordering::Relaxed);
                    break 'words;
                }
                let block = index as u64 * 64 + u64::from(bits.trailing_zeros());
                into.push(start + block * size.bytes);
                bits &= bits - 1;
            }
            word.store(0, Ordering::Relaxed);
        }
        let taken = into.len() - before;
        self.pooled_count.store((self.pooled_count() - taken) as u32, Ordering::Relaxed);
        into[before..].reverse();
    }

    /// Returns a block to the pool. Needs the lock of the central list.
    pub(super) fn put_back(&self, index: usize) {
        let word = &self.pooled[index / 64];
        let bits = word.load(Ordering::Relaxed);
        debug_assert_eq!(bits & 1 << (index % 64), 0, "a block is in the pool once");
        word.store(bits | 1 << (index % 64), Ordering::Relaxed);
        self.pooled_count.store(self.pooled_count() as u32 + 1, Ordering::Relaxed);
    }
}

/// Slots in a leaf of the table: 1 GiB of addresses.
const LEAF_SLOTS: usize = 1 << 14;

type Leaf = [AtomicPtr<Span>];

/// Finds the span of an address without a lock.
pub(super) struct SpanTable {
    start: u64,
    leaves: Box<[OnceLock<Box<Leaf>>]>,
}

impl fmt::Debug for SpanTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SpanTable {{ start: {:#x}, leaves: {} }}", self.start, self.leaves.len())
    }
}

impl SpanTable {
    pub(super) fn new(start: u64, end: u64) -> SpanTable {
        let start = start - start % SPAN_BYTES;
        let leaves = (end - start).div_ceil(SPAN_BYTES).div_ceil(LEAF_SLOTS as u64);
        SpanTable { start, leaves: (0..leaves).map(|_| OnceLock::new()).collect() }
    }

    #[inline]
    fn place(&self, address: u64) -> Option<(usize, usize)> {
        let slot = (address.checked_sub(self.start)? / SPAN_BYTES) as usize;
        Some((slot / LEAF_SLOTS, slot % LEAF_SLOTS))
    }

    /// Returns the span that contains an address, or contained it until its memory went back to the arena.
    #[inline]
    pub(super) fn find(&self, address: u64) -> Option<&'static Span> {
        let (leaf, slot) = self.place(address)?;
        let span = self.leaves.get(leaf)?.get()?[slot].load(Ordering::Acquire); // SYNC POINT: pairs with `set`
        // SAFETY: it is null or a span that `set` was given, which lives as long as the process.
        unsafe { span.as_ref() }
    }

    /// Sets the span for these addresses, which are multiples of [`SPAN_BYTES`].
    pub(super) fn set(&self, addresses: Range<u64>, span: Option<&'static Span>) {
        let span = span.map_or(ptr::null_mut(), |span| ptr::from_ref(span).cast_mut());
        let fresh = || (0..LEAF_SLOTS).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
        for address in addresses.step_by(SPAN_BYTES as usize) {
            let Some((leaf, slot)) = self.place(address) else { return };
            let Some(leaf) = self.leaves.get(leaf) else { return };
            leaf.get_or_init(fresh)[slot].store(span, Ordering::Release); // SYNC POINT: pairs with `find`
        }
    }
}
