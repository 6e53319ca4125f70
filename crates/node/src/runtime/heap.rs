//! The `malloc` family: any node allocates without asking others, and any node or thread frees.
//!
//! Blocks belong to the arena of the node that allocated them, which is also their pages' home. A block freed
//! on another node goes back by message. `free` is a release and the next `malloc` of the block an acquire,
//! as in C11: the freeing node first publishes what it has written and seen to the arena's node
//! (`Synchronisation::Publish`). Otherwise its unsent writes could reach the home after the block has a new
//! owner.
//!
//! Within a node, threads allocate from caches without a lock or a system call (`heap/pool.rs`). A signal
//! handler of the program may interrupt that and fault, and the faulting thread may serve other nodes while
//! it waits. Code that serves other nodes therefore does not use the thread's cache.

mod classes;
mod nearest;
mod pool;
mod span;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ops::Range;

use hiroba_base::{NodeId, PageRange, PageSize};
use hiroba_memory::SharedMemory;
use hiroba_protocol::Synchronisation;
use hiroba_wire::{Message, Ticket};

use crate::arena::{Block, NotABlock};
use crate::runtime::Runtime;
use crate::signals::SignalsDeferred;
use crate::threads::{Answer, Purpose};
use crate::time_class::TimeClass;
use pool::{Pool, ThreadCache};

/// The memory behind each block that is homed on all nodes: more than the pages that are opened or fetched
/// ahead of a touch of the block before.
const GUARD_BYTES: u64 = 4 << 20;

/// The maximum length of such a block. Each node keeps an entry for each page.
const PLACED_BYTES_MAX: u64 = 16 << 30;

/// This node's allocator, with a cache for each thread.
#[derive(Debug)]
pub(crate) struct Heap {
    pool: Pool,
    /// Pools for long blocks of executables, if those have another protocol: for blocks that are homed on
    /// this node, and for blocks that are homed on all nodes.
    long: Option<[Pool; 2]>,
}

/// The calling thread's cache. A process has one heap; tests, which have several, use each in threads of its
/// own.
#[derive(Debug)]
enum Cached {
    NotYet,
    Active(Box<ThreadCache>),
    /// The thread is ending: allocations and frees of its last destructors bypass the cache.
    Finished,
}

struct Mine(RefCell<Cached>);

thread_local! {
    static MINE: Mine = const { Mine(RefCell::new(Cached::NotYet)) };
}

impl Drop for Mine {
    /// Empties the cache of a thread whose end was not announced.
    fn drop(&mut self) {
        // A forked process must not wait for locks: threads that it does not have may hold them.
        if let Cached::Active(cache) = self.0.get_mut()
            && let Some(runtime) = Runtime::get()
        {
            let _signals = SignalsDeferred::defer();
            runtime.allocations.heap.pool.finish(cache);
        }
    }
}

fn pool_of(node: NodeId, memory: &SharedMemory, part: PageRange, page_size: PageSize) -> Pool {
    let start = memory.address_of(part.first) as u64;
    let end = start + part.count * memory.granule().bytes() as u64;
    Pool::new(node, start..end, page_size.bytes() as u64)
}

impl Heap {
    /// Makes the heap of `node`, in a part of the region from which no other node allocates. The job's pages
    /// have `page_size`.
    pub(crate) fn new(node: NodeId, memory: &SharedMemory, part: PageRange, page_size: PageSize) -> Heap {
        Heap { pool: pool_of(node, memory, part, page_size), long: None }
    }

    /// Makes a heap with two parts, of which the second is for long blocks.
    pub(crate) fn divided(
        node: NodeId,
        memory: &SharedMemory,
        [small, long]: [PageRange; 2],
        page_size: PageSize,
    ) -> Heap {
        let granules_per_unit = 512;
        let count = long.count / 2 / granules_per_unit * granules_per_unit;
        let here = PageRange { first: long.first, count };
        let placed = PageRange { first: here.end(), count: long.count - count };
        let [pool, here, placed] = [small, here, placed].map(|part| pool_of(node, memory, part, page_size));
        Heap { pool, long: Some([here, placed]) }
    }

    /// Returns the pool of long blocks if it contains the address.
    fn long_at(&self, address: u64) -> Option<&Pool> {
        self.long.iter().flatten().find(|long| long.contains(address))
    }

    /// Returns true if this node allocates the address.
    fn contains(&self, address: u64) -> bool {
        self.pool.contains(address) || self.long_at(address).is_some()
    }

    fn length_of(&self, address: u64) -> Result<u64, NotABlock> {
        self.long_at(address).unwrap_or(&self.pool).length_of(address)
    }

    /// Runs an action on the calling thread's cache alone, without a lock.
    #[inline]
    fn quickly<R>(act: impl FnOnce(&mut ThreadCache) -> R) -> Option<R> {
        let act = |mine: &Mine| match &mut *mine.0.try_borrow_mut().ok()? {
            Cached::Active(cache) => Some(act(cache)),
            Cached::NotYet | Cached::Finished => None,
        };
        MINE.try_with(act).ok().flatten()
    }

    /// Runs an action that may take locks, with the calling thread's cache if it can have one.
    fn thoroughly<R>(&self, act: impl FnOnce(&Pool, Option<&mut ThreadCache>) -> R) -> R {
        let _signals = SignalsDeferred::defer();
        let mut act = Some(act);
        let mut run = |cache: Option<&mut ThreadCache>| act.take().map(|act| act(&self.pool, cache));
        let with_mine = |mine: &Mine| {
            // Borrowed already: a handler interrupted the thread during its own call.
            let Ok(mut cached) = mine.0.try_borrow_mut() else { return run(None) };
            if matches!(*cached, Cached::NotYet) {
                *cached = Cached::Active(Box::new(self.pool.new_cache()));
            }
            match &mut *cached {
                Cached::Active(cache) => run(Some(cache)),
                _ => run(None),
            }
        };
        let done = MINE.try_with(with_mine).ok().flatten().or_else(|| run(None));
        done.expect("it ran with the cache or without")
    }

    #[inline]
    fn allocate_quickly(&self, bytes: u64, align: u64) -> Option<Block> {
        Self::quickly(|cache| self.pool.allocate_cached(cache, bytes, align)).flatten()
    }

    fn allocate(&self, bytes: u64, align: u64) -> Option<Block> {
        self.thoroughly(|pool, cache| pool.allocate(cache, bytes, align))
    }

    #[inline]
    fn free_quickly(&self, address: u64) -> bool {
        Self::quickly(|cache| self.pool.free_cached(cache, address)) == Some(true)
    }

    fn free(&self, address: u64, by: NodeId) -> Result<(), NotABlock> {
        if let Some(long) = self.long_at(address) {
            let _signals = SignalsDeferred::defer();
            return long.free(None, address, by);
        }
        self.thoroughly(|pool, cache| pool.free(cache, address, by))
    }

    /// Returns the addresses of this node's block that contains an address.
    pub(crate) fn extent(&self, address: u64) -> Option<Range<u64>> {
        let _signals = SignalsDeferred::defer();
        self.contains(address).then(|| self.long_at(address).unwrap_or(&self.pool).extent(address)).flatten()
    }

    /// Returns true if a live block of this node begins at the address.
    pub(crate) fn is_block(&self, address: u64) -> bool {
        self.length_of(address).is_ok()
    }

    /// Records that the calling thread ends. Returns its cached blocks to the pool.
    pub(crate) fn finish_thread(&self) {
        let _signals = SignalsDeferred::defer();
        let finish = |mine: &Mine| {
            let cached =
                mine.0.try_borrow_mut().map(|mut cached| std::mem::replace(&mut *cached, Cached::Finished));
            if let Ok(Cached::Active(mut cache)) = cached {
                self.pool.finish(&mut cache);
            }
        };
        let _ = MINE.try_with(finish); // fails only if its destructor has done it
    }

    /// Describes the nearest block to an address of this node's arena. Waits for no lock, so a dying process
    /// can call it.
    pub(crate) fn nearest_allocation(&self, address: usize) -> Option<String> {
        self.long_at(address as u64).unwrap_or(&self.pool).describe(address as u64)
    }
}

impl Runtime {
    /// Allocates at least `bytes` bytes aligned to `align` (a power of two). Returns the address, and whether
    /// the block is known to be all zero; `None` when the arena is full.
    #[inline]
    pub fn malloc(&self, bytes: u64, align: u64) -> Option<(usize, bool)> {
        let block = self.allocations.heap.allocate_quickly(bytes, align).or_else(|| {
            let _inside = (self.trace_other(), self.account.enter(&self.threads, TimeClass::Other));
            self.allocations.heap.allocate(bytes, align)
        });
        block.map(|block| (block.address as usize, block.zeroed))
    }

    /// Allocates a long block of an executable. Where those have another protocol than the program's data, it
    /// lies among them.
    pub fn malloc_long(&self, bytes: u64, align: u64) -> Option<(usize, bool)> {
        let Some([long, _]) = &self.allocations.heap.long else { return self.malloc(bytes, align) };
        let _inside = (self.trace_other(), self.account.enter(&self.threads, TimeClass::Other));
        let _signals = SignalsDeferred::defer();
        let block = long.allocate(None, bytes, align)?;
        Some((block.address as usize, block.zeroed))
    }

    /// Allocates a long block that threads of all nodes will use. If its memory is fresh, its pages are homed
    /// in blocks on all nodes; else they stay where they have moved.
    pub fn malloc_placed(&self, bytes: u64, align: u64) -> Option<(usize, bool)> {
        let granule_bytes = self.memory.granule().bytes() as u64;
        let placed = self.allocations.heap.long.as_ref().map(|[_, placed]| placed);
        let may_be_placed = self.job.nodes > 1 && self.job.page_size.bytes() as u64 == granule_bytes;
        let Some(pool) = placed.filter(|_| may_be_placed && bytes <= PLACED_BYTES_MAX) else {
            return self.malloc_long(bytes, align);
        };
        let block = {
            let _inside = (self.trace_other(), self.account.enter(&self.threads, TimeClass::Other));
            let _signals = SignalsDeferred::defer();
            pool.allocate(None, bytes + GUARD_BYTES, align.max(granule_bytes))?
        };
        if block.zeroed
            && let Some(first) = self.memory.page_of(block.address as usize)
        {
            let pages = PageRange { first, count: bytes.div_ceil(granule_bytes) };
            // Refused if something has touched them: then they stay here.
            self.synchronise("malloc", TimeClass::Other, Synchronisation::Place(pages));
        }
        Some((block.address as usize, block.zeroed))
    }

    /// Frees a block. `call` names the caller's call in the sentence that ends the job if the address is no
    /// block.
    #[inline]
    pub fn free(&self, call: &str, address: usize) {
        if !self.allocations.heap.free_quickly(address as u64) {
            self.free_thoroughly(call, address);
        }
    }

    fn free_thoroughly(&self, call: &str, address: usize) {
        if self.free_local(call, address) {
            return;
        }
        let owner = self.owner(call, address);
        if owner == self.me {
            let _inside = (self.trace_other(), self.account.enter(&self.threads, TimeClass::Other));
            let freed = self.allocations.heap.free(address as u64, self.me);
            return freed.unwrap_or_else(|error| self.not_a_block(call, error));
        }
        self.synchronise("hiroba_free", TimeClass::Other, Synchronisation::Publish(owner));
        self.send_aside(owner, &Message::Free { address: address as u64 });
    }

    /// Returns true if a live block of this node begins at the address.
    pub fn is_own_block(&self, address: usize) -> bool {
        self.allocations.heap.contains(address as u64) && self.allocations.heap.is_block(address as u64)
    }

    /// Returns the usable length of a block.
    pub fn block_length(&self, call: &str, address: usize) -> u64 {
        let owner = self.owner(call, address);
        let _inside = (self.trace_other(), self.account.enter(&self.threads, TimeClass::Other));
        if owner == self.me {
            let _signals = SignalsDeferred::defer();
            let length = self.allocations.heap.length_of(address as u64);
            return length.unwrap_or_else(|error| self.not_a_block(call, error));
        }
        let waiter = self.waiter(Purpose::Call);
        let address = address as u64;
        self.send_aside(owner, &Message::SizeRequest { ticket: waiter.0, address });
        match self.wait(waiter) {
            Answer::Size(length) => {
                length.unwrap_or_else(|| self.not_a_block(call, NotABlock::Unknown { address }))
            }
            Answer::Engine(_) | Answer::Port(_) => {
                self.fatal("expected an answer from the allocator, got another one")
            }
        }
    }

    /// Changes the used length of a block in place. Returns false if the block must move for that.
    pub fn resize_in_place(&self, call: &str, address: usize, bytes: u64) -> bool {
        if self.owner(call, address) != self.me {
            let length = self.block_length(call, address);
            return (length / 2..=length).contains(&bytes);
        }
        let _inside = (self.trace_other(), self.account.enter(&self.threads, TimeClass::Other));
        let heap = &self.allocations.heap;
        let signals = SignalsDeferred::defer();
        let resized = heap.long_at(address as u64).unwrap_or(&heap.pool).resize(address as u64, bytes);
        drop(signals);
        resized.unwrap_or_else(|error| self.not_a_block(call, error))
    }

    /// Returns the node whose arena contains the address.
    fn owner(&self, call: &str, address: usize) -> NodeId {
        if self.allocations.heap.contains(address as u64) {
            return self.me;
        }
        let page = self.memory.page_of(address);
        page.and_then(|page| self.job.layout.arena_owner(page))
            .unwrap_or_else(|| self.not_a_block(call, NotABlock::Unknown { address: address as u64 }))
    }

    fn not_a_block(&self, call: &str, error: NotABlock) -> ! {
        self.fatal(&format!("{call}: {error}"))
    }

    fn send_aside(&self, to: NodeId, message: &Message<'_>) {
        let _signals = SignalsDeferred::defer();
        self.send_to(to, &[&message.encode()]);
    }

    /// Frees a block for another node. The serving thread may be in an allocator call of its own, so its
    /// cache is not used.
    pub(crate) fn free_for_peer(&self, from: NodeId, address: u64) {
        let _signals = SignalsDeferred::defer();
        let heap = &self.allocations.heap;
        if let Err(error) = heap.long_at(address).unwrap_or(&heap.pool).free(None, address, from) {
            self.not_a_block(&format!("hiroba_free on node {from}"), error);
        }
    }

    pub(crate) fn tell_size(&self, to: NodeId, ticket: Ticket, address: u64) {
        let signals = SignalsDeferred::defer();
        let bytes = self.allocations.heap.length_of(address).ok();
        drop(signals);
        self.send_aside(to, &Message::SizeReply { ticket, bytes });
    }

    pub(crate) fn hear_size(&self, ticket: Ticket, bytes: Option<u64>) {
        if let Some(slot) = self.threads.checked(ticket) {
            slot.answer(Answer::Size(bytes));
        }
    }
}
