//! The allocator of one node. Small blocks come from spans by size class, through the caches of threads;
//! large blocks come from the arena.
//!
//! ```text
//! thread's cache ──batches──▶ central list of a class ──spans──▶ arena ◀── large blocks
//!   no lock                     one lock a class                  one lock
//! ```
//!
//! Locks are taken from left to right. A caller that signal handlers which use shared memory may interrupt
//! must defer signals while it is in a method that takes locks. Two methods take none:
//! [`Pool::allocate_cached`] and [`Pool::free_cached`].

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use hiroba_base::NodeId;

use super::classes::{SPAN_BYTES, SizeClass, SizeClasses};
use super::nearest;
use super::span::{Mark, Span, SpanTable, State};
use crate::arena::{Arena, Block, GRAIN_BYTES, Known, NotABlock};

/// Large blocks are aligned to this, because different threads may use them.
const LINE_BYTES: u64 = 64;

/// Free blocks reserved for one thread. Its owner must return them by [`Pool::finish`].
#[derive(Debug)]
pub(crate) struct ThreadCache {
    bins: Vec<Bin>,
}

#[derive(Debug, Default)]
struct Bin {
    /// Never grows: the capacity bounds it.
    blocks: Vec<u64>,
    /// The span that new blocks come from.
    span: Option<&'static Span>,
}

impl Bin {
    fn is_full(&self) -> bool {
        self.blocks.len() == self.blocks.capacity()
    }
}

/// Spans of one class that have free blocks and are not reserved by a thread, by address. Low ones are used
/// first, which keeps a program's blocks on few pages.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Central {
    partial: BTreeMap<u64, &'static Span>,
}

#[derive(Debug)]
struct Ground {
    arena: Arena,
    /// Spans whose memory went back to the arena and was not reused: they still know which node freed each
    /// block.
    retired: BTreeMap<u64, &'static Span>,
    /// Bookkeeping for reuse, by class.
    spare: Vec<Vec<&'static Span>>,
}

/// One node's allocator.
#[derive(Debug)]
pub(crate) struct Pool {
    node: NodeId,
    addresses: Range<u64>,
    page_bytes: u64,
    classes: SizeClasses,
    table: SpanTable,
    central: Vec<Mutex<Central>>,
    ground: Mutex<Ground>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A small block, found by an address in it.
struct Found<'a> {
    span: &'static Span,
    size: &'a SizeClass,
    index: usize,
    start: u64,
}

impl Pool {
    /// Makes the allocator for the addresses of `node`. Pages that lie in the range only in part are not
    /// used: blocks of different nodes share no page.
    pub(crate) fn new(node: NodeId, addresses: Range<u64>, page_bytes: u64) -> Pool {
        let start = addresses.start.next_multiple_of(page_bytes);
        let end = (addresses.end - addresses.end % page_bytes).max(start);
        let classes = SizeClasses::new(page_bytes);
        Pool {
            node,
            addresses: start..end,
            page_bytes,
            table: SpanTable::new(start, end),
            central: (0..classes.len()).map(|_| Mutex::default()).collect(),
            ground: Mutex::new(Ground {
                arena: Arena::new(start, end),
                retired: BTreeMap::new(),
                spare: vec![Vec::new(); classes.len()],
            }),
            classes,
        }
    }

    /// Returns true if the address belongs to this node.
    #[inline]
    pub(crate) fn contains(&self, address: u64) -> bool {
        self.addresses.contains(&address)
    }

    pub(crate) fn new_cache(&self) -> ThreadCache {
        ThreadCache { bins: (0..self.classes.len()).map(|_| Bin::default()).collect() }
    }

    /// Takes a block from the cache. Returns `None` when the cache has none, or the block is not small.
    #[inline]
    pub(crate) fn allocate_cached(&self, cache: &mut ThreadCache, bytes: u64, align: u64) -> Option<Block> {
        let class = self.classes.find(bytes, align)?;
        let address = cache.bins[class].blocks.pop()?;
        Some(self.hand_out(address, class, bytes))
    }

    #[inline]
    fn hand_out(&self, address: u64, class: usize, bytes: u64) -> Block {
        let size = self.classes.get(class);
        let zeroed = self
            .table
            .find(address)
            .is_some_and(|span| span.make_live(size.index_of(address - span.start()), size.bytes - bytes));
        Block { address, zeroed }
    }

    /// Frees a small block into the cache. Returns false, without effect, if the cache alone cannot do it.
    #[inline]
    pub(crate) fn free_cached(&self, cache: &mut ThreadCache, address: u64) -> bool {
        let Some(found) = self.find(address) else { return false };
        let bin = &mut cache.bins[usize::from(found.span.class)];
        if found.start != address || bin.is_full() || found.span.make_freed(found.index, self.node).is_err() {
            return false;
        }
        bin.blocks.push(address);
        true
    }

    #[inline]
    fn find(&self, address: u64) -> Option<Found<'_>> {
        let span = self.table.find(address)?;
        let size = self.classes.get(usize::from(span.class));
        // Fails only where a block is freed for the second time while its span moves elsewhere.
        let offset = address.checked_sub(span.start()).filter(|offset| *offset < size.span_bytes)?;
        let index = size.index_of(offset);
        Some(Found { span, size, index, start: address - offset + index as u64 * size.bytes })
    }

    /// Allocates at least `bytes` bytes aligned to `align` (a power of two). Returns `None` when there is no
    /// room.
    pub(crate) fn allocate(
        &self,
        mut cache: Option<&mut ThreadCache>,
        bytes: u64,
        align: u64,
    ) -> Option<Block> {
        let block = self.try_allocate(cache.as_deref_mut(), bytes, align);
        if block.is_some() {
            return block;
        }
        // Retry with the thread's reserved blocks returned to the pool.
        let cache = cache?;
        self.finish(cache);
        self.try_allocate(Some(cache), bytes, align)
    }

    fn try_allocate(&self, cache: Option<&mut ThreadCache>, bytes: u64, align: u64) -> Option<Block> {
        let small = self.classes.find(bytes, align).and_then(|class| {
            let address = match cache {
                Some(cache) => self.refill(&mut cache.bins[class], class),
                None => self.take_one(class),
            };
            address.map(|address| self.hand_out(address, class, bytes))
        });
        small.or_else(|| self.allocate_large(bytes, align))
    }

    /// Allocates a block from the arena; also a small one when no whole span is left.
    fn allocate_large(&self, bytes: u64, align: u64) -> Option<Block> {
        let multiple = match bytes {
            bytes if bytes >= self.page_bytes => self.page_bytes,
            bytes if bytes >= LINE_BYTES => LINE_BYTES,
            _ => GRAIN_BYTES,
        };
        let (usable, align) = (bytes.max(1).checked_next_multiple_of(multiple)?, align.max(multiple));
        let mut ground = lock(&self.ground);
        let block = ground.arena.allocate(bytes, usable, align)?;
        self.forget_spans(&mut ground, block.address..block.address + usable);
        Some(block)
    }

    /// Fills an empty bin and takes a block out of it.
    fn refill(&self, bin: &mut Bin, class: usize) -> Option<u64> {
        let size = self.classes.get(class);
        if bin.blocks.is_empty() {
            bin.blocks.reserve_exact(size.held_max);
            let mut central = lock(&self.central[class]);
            if let Some(span) = bin.span.take_if(|span| span.pooled_count() == 0) {
                span.set_taken(false);
            }
            let span = match bin.span {
                Some(span) => span,
                None => self.span_with_blocks(&mut central, class)?,
            };
            span.set_taken(true);
            bin.span = Some(span);
            span.take(size, size.held_max / 2, &mut bin.blocks);
        }
        bin.blocks.pop()
    }

    /// Takes one block for a thread without a cache.
    fn take_one(&self, class: usize) -> Option<u64> {
        let mut central = lock(&self.central[class]);
        let span = self.span_with_blocks(&mut central, class)?;
        let mut block = Vec::with_capacity(1);
        span.take(self.classes.get(class), 1, &mut block);
        if span.pooled_count() > 0 {
            central.partial.insert(span.start(), span);
        }
        block.pop()
    }

    fn span_with_blocks(&self, central: &mut Central, class: usize) -> Option<&'static Span> {
        if let Some((_, span)) = central.partial.pop_first() {
            return Some(span);
        }
        let size = self.classes.get(class);
        let mut ground = lock(&self.ground);
        let Block { address, zeroed } = ground.arena.take(size.span_bytes, SPAN_BYTES)?;
        self.forget_spans(&mut ground, address..address + size.span_bytes);
        let span = ground.spare[class].pop().unwrap_or_else(|| Span::leak(class, size));
        span.begin(address, zeroed);
        self.table.set(address..address + size.span_bytes, Some(span));
        Some(span)
    }

    /// Forgets retired spans whose memory is about to be reused.
    fn forget_spans(&self, ground: &mut Ground, addresses: Range<u64>) {
        while let Some((&start, &span)) = ground.retired.range(..addresses.end).next_back() {
            let end = start + self.classes.get(usize::from(span.class)).span_bytes;
            if end <= addresses.start {
                return;
            }
            ground.retired.remove(&start);
            self.table.set(start..end, None);
            ground.spare[usize::from(span.class)].push(span);
        }
    }

    /// Frees a block on behalf of node `by`.
    pub(crate) fn free(
        &self,
        cache: Option<&mut ThreadCache>,
        address: u64,
        by: NodeId,
    ) -> Result<(), NotABlock> {
        let Some(found) = self.find(address) else { return lock(&self.ground).arena.free(address, by) };
        if found.start != address {
            return Err(self.why_not(&found, address, found.span.mark(found.index)));
        }
        let freed = found.span.make_freed(found.index, by);
        freed.map_err(|mark| self.why_not(&found, address, mark))?;
        let class = usize::from(found.span.class);
        let Some(cache) = cache else {
            self.put_back(&mut lock(&self.central[class]), found.span, found.index);
            return Ok(());
        };
        let bin = &mut cache.bins[class];
        bin.blocks.reserve_exact(found.size.held_max.saturating_sub(bin.blocks.len()));
        if bin.is_full() {
            let oldest = bin.blocks.len() / 2;
            self.put_all_back(&mut lock(&self.central[class]), bin.blocks.drain(..oldest));
        }
        bin.blocks.push(address);
        Ok(())
    }

    fn put_all_back(&self, central: &mut Central, blocks: impl Iterator<Item = u64>) {
        for found in blocks.filter_map(|address| self.find(address)) {
            self.put_back(central, found.span, found.index);
        }
    }

    fn put_back(&self, central: &mut Central, span: &'static Span, index: usize) {
        span.put_back(index);
        if !span.is_taken() {
            self.shelve(central, span);
        }
    }

    /// Moves a span to the list that its number of free blocks requires.
    fn shelve(&self, central: &mut Central, span: &'static Span) {
        let start = span.start();
        if span.pooled_count() == span.blocks() {
            central.partial.remove(&start);
            let end = start + self.classes.get(usize::from(span.class)).span_bytes;
            let mut ground = lock(&self.ground);
            ground.arena.give(start, end);
            ground.retired.insert(start, span);
        } else if span.pooled_count() > 0 {
            central.partial.insert(start, span);
        }
    }

    /// Empties a cache.
    pub(crate) fn finish(&self, cache: &mut ThreadCache) {
        for (bin, central) in cache.bins.iter_mut().zip(&self.central) {
            if bin.blocks.is_empty() && bin.span.is_none() {
                continue;
            }
            let central = &mut lock(central);
            self.put_all_back(central, bin.blocks.drain(..));
            if let Some(span) = bin.span.take() {
                span.set_taken(false);
                self.shelve(central, span);
            }
        }
    }

    /// Returns the usable length of a block.
    pub(crate) fn length_of(&self, address: u64) -> Result<u64, NotABlock> {
        let Some(found) = self.find(address) else { return lock(&self.ground).arena.length_of(address) };
        match found.span.mark(found.index) {
            Some(mark) if found.start == address && mark.state() == State::Live => Ok(found.size.bytes),
            mark => Err(self.why_not(&found, address, mark)),
        }
    }

    /// Returns the addresses of the live block that contains an address.
    pub(crate) fn extent(&self, address: u64) -> Option<Range<u64>> {
        let mut known = Vec::new();
        match self.find(address) {
            Some(found) => self.known_in(&found, address, &mut known),
            None => known.extend(lock(&self.ground).arena.around(address)),
        }
        let live = known.iter().filter(|block| block.freed_by.is_none());
        live.map(|block| block.start..block.start + block.bytes).find(|extent| extent.contains(&address))
    }

    /// Changes the used length of a block in place. Returns false if the bytes do not fit, or would leave
    /// most of the block unused.
    pub(crate) fn resize(&self, address: u64, bytes: u64) -> Result<bool, NotABlock> {
        let Some(found) = self.find(address) else {
            return lock(&self.ground).arena.resize(address, bytes);
        };
        if found.start != address {
            return Err(self.why_not(&found, address, found.span.mark(found.index)));
        }
        let length = self.length_of(address)?;
        if !(length / 2..=length).contains(&bytes) {
            return Ok(false);
        }
        let resized = found.span.resize(found.index, length - bytes);
        resized.map(|()| true).map_err(|mark| self.why_not(&found, address, mark))
    }

    fn why_not(&self, found: &Found<'_>, address: u64, mark: Option<Mark>) -> NotABlock {
        let Some(mark) = mark else { return NotABlock::Unknown { address } };
        let bytes = found.size.bytes - mark.idle_bytes();
        match mark.state() {
            State::Freed(by) if address == found.start => NotABlock::Freed { address, bytes, by },
            State::Live if address != found.start => {
                NotABlock::Inside { address, start: found.start, offset: address - found.start, bytes }
            }
            _ => NotABlock::Unknown { address },
        }
    }

    /// Describes the nearest block to an address. Waits for no lock: a dying process may hold one.
    pub(crate) fn describe(&self, address: u64) -> Option<String> {
        let mut known = Vec::new();
        for near in [address.checked_sub(SPAN_BYTES), Some(address), address.checked_add(SPAN_BYTES)] {
            if let Some(found) = near.and_then(|near| self.find(near)) {
                self.known_in(&found, address, &mut known);
            }
        }
        match self.ground.try_lock() {
            Ok(ground) => known.extend(ground.arena.around(address)),
            Err(TryLockError::Poisoned(ground)) => known.extend(ground.into_inner().arena.around(address)),
            Err(TryLockError::WouldBlock) => {}
        }
        nearest::describe(address, &known, self.node)
    }

    /// Collects what a span knows around an address: the block that contains it, and the nearest live ones on
    /// both sides.
    fn known_in(&self, found: &Found<'_>, address: u64, known: &mut Vec<Known>) {
        let start_of_span = found.span.start();
        let block = |index: usize| {
            let mark = found.span.mark(index)?;
            let start = start_of_span + index as u64 * found.size.bytes;
            let freed_by = match mark.state() {
                State::New => return None,
                State::Live => None,
                State::Freed(by) => Some(by),
            };
            Some(Known { start, bytes: found.size.bytes - mark.idle_bytes(), freed_by })
        };
        let live = |index: &usize| found.span.mark(*index).is_some_and(|mark| mark.state() == State::Live);
        let below = address.saturating_sub(start_of_span).div_ceil(found.size.bytes) as usize;
        let below = below.min(found.span.blocks());
        let left = (0..below).rev().find(live);
        let right = (below..found.span.blocks()).find(live);
        let holder = address.checked_sub(start_of_span).map(|offset| (offset / found.size.bytes) as usize);
        known.extend([holder, left, right].into_iter().flatten().filter_map(block));
    }

    /// Returns the arena's free ranges, for tests.
    #[cfg(test)]
    pub(super) fn free_ranges(&self) -> Vec<(u64, u64)> {
        lock(&self.ground).arena.free_ranges()
    }
}
