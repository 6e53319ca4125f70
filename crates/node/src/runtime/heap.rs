//! The `malloc` family: any node allocates without asking, any node and any thread frees.
//!
//! Blocks belong to the arena of the node that gave them out, and so do their pages (it is their home). A
//! block freed elsewhere goes back by message. `free` is a release and the next `malloc` of the block an
//! acquire, as in C11: the freeing node first makes what it has written and seen known to the arena's node
//! (`Synchronisation::Publish`), else its unsent writes could come home after the block has a new owner.
//!
//! Inside a node threads serve themselves from caches, without a lock and without a system call (`heap/pool.rs`). A
//! signal handler of the program's that comes in between may fault, and the faulting thread may serve other nodes while it
//! waits; so whatever serves others leaves the thread's cache alone.

mod classes;
mod nearest;
mod pool;
mod span;
#[cfg(test)]
mod tests;

use std::cell::RefCell;

use hiroba_base::{NodeId, PageRange, PageSize};
use hiroba_memory::SharedMemory;
use hiroba_protocol::Synchronisation;
use hiroba_wire::{Message, Ticket};

use crate::arena::{Block, NotABlock};
use crate::runtime::Runtime;
use crate::signals::SignalsHeld;
use crate::threads::{Answer, Purpose};
use crate::time_class::TimeClass;
use pool::{Pool, ThreadCache};

/// This node's allocator, with a cache for each thread.
#[derive(Debug)]
pub(crate) struct Heap {
    pool: Pool,
}

/// What the calling thread has of its heap. There is one heap in a process; tests, which have several, use each in
/// threads of its own.
#[derive(Debug)]
enum Cached {
    NotYet,
    Active(Box<ThreadCache>),
    /// The thread is ending: what its last destructors allocate and free goes past any cache.
    Finished,
}

struct Mine(RefCell<Cached>);

thread_local! {
    static MINE: Mine = const { Mine(RefCell::new(Cached::NotYet)) };
}

impl Drop for Mine {
    /// For threads whose end nobody announced.
    fn drop(&mut self) {
        // A process forked from the job's must not wait for locks: threads that it has not may hold them.
        if let Cached::Active(cache) = self.0.get_mut()
            && let Some(runtime) = Runtime::get()
        {
            let _signals = SignalsHeld::hold();
            runtime.allocations.heap.pool.finish(cache);
        }
    }
}

impl Heap {
    /// The heap of `node`, in a part of the region that no other node gives out. The job's pages are of `page_size`.
    pub(crate) fn new(node: NodeId, memory: &SharedMemory, part: PageRange, page_size: PageSize) -> Heap {
        let start = memory.address_of(part.first) as u64;
        let end = start + part.count * memory.granule().bytes() as u64;
        Heap { pool: Pool::new(node, start..end, page_size.bytes() as u64) }
    }

    /// Does what the calling thread's cache can do alone, without a lock.
    #[inline]
    fn quickly<R>(act: impl FnOnce(&mut ThreadCache) -> R) -> Option<R> {
        let act = |mine: &Mine| match &mut *mine.0.try_borrow_mut().ok()? {
            Cached::Active(cache) => Some(act(cache)),
            Cached::NotYet | Cached::Finished => None,
        };
        MINE.try_with(act).ok().flatten()
    }

    /// Does what may take locks, with the calling thread's cache if it can have one.
    fn thoroughly<R>(&self, act: impl FnOnce(&Pool, Option<&mut ThreadCache>) -> R) -> R {
        let _signals = SignalsHeld::hold();
        let mut act = Some(act);
        let mut run = |cache: Option<&mut ThreadCache>| act.take().map(|act| act(&self.pool, cache));
        let with_mine = |mine: &Mine| {
            // Borrowed already: a handler interrupted the thread amid its own call.
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
        self.thoroughly(|pool, cache| pool.free(cache, address, by))
    }

    /// Whether a block of this node's begins there that is not free.
    pub(crate) fn is_block(&self, address: u64) -> bool {
        self.pool.length_of(address).is_ok()
    }

    /// The calling thread ends: what its cache holds is everybody's again.
    pub(crate) fn finish_thread(&self) {
        let _signals = SignalsHeld::hold();
        let finish = |mine: &Mine| {
            let cached =
                mine.0.try_borrow_mut().map(|mut cached| std::mem::replace(&mut *cached, Cached::Finished));
            if let Ok(Cached::Active(mut cache)) = cached {
                self.pool.finish(&mut cache);
            }
        };
        let _ = MINE.try_with(finish); // its destructor has done it
    }

    /// What lies at an address of this node's, or nearest to it. It waits for nothing, so that a dying process can ask.
    pub(crate) fn nearest_allocation(&self, address: usize) -> Option<String> {
        self.pool.describe(address as u64)
    }
}

impl Runtime {
    /// A block of at least `bytes` bytes at a multiple of `align` (a power of two): its address, and whether it is known
    /// to be all zero. `None` when the arena is full.
    #[inline]
    pub fn malloc(&self, bytes: u64, align: u64) -> Option<(usize, bool)> {
        let block = self.allocations.heap.allocate_quickly(bytes, align).or_else(|| {
            let _inside = (self.trace_other(), self.account.enter(&self.threads, TimeClass::Other));
            self.allocations.heap.allocate(bytes, align)
        });
        block.map(|block| (block.address as usize, block.zeroed))
    }

    /// Takes a block back. `call` names the caller's call in the sentence that ends the job when it is no block.
    #[inline]
    pub fn free(&self, call: &str, address: usize) {
        if !self.allocations.heap.free_quickly(address as u64) {
            self.free_thoroughly(call, address);
        }
    }

    fn free_thoroughly(&self, call: &str, address: usize) {
        let owner = self.owner(call, address);
        if owner == self.me {
            let _inside = (self.trace_other(), self.account.enter(&self.threads, TimeClass::Other));
            let freed = self.allocations.heap.free(address as u64, self.me);
            return freed.unwrap_or_else(|error| self.not_a_block(call, error));
        }
        self.synchronise("hiroba_free", TimeClass::Other, Synchronisation::Publish(owner));
        self.send_aside(owner, &Message::Free { address: address as u64 });
    }

    /// The usable length of a block.
    pub fn block_length(&self, call: &str, address: usize) -> u64 {
        let owner = self.owner(call, address);
        let _inside = (self.trace_other(), self.account.enter(&self.threads, TimeClass::Other));
        if owner == self.me {
            let length = self.allocations.heap.thoroughly(|pool, _| pool.length_of(address as u64));
            return length.unwrap_or_else(|error| self.not_a_block(call, error));
        }
        let waiter = self.waiter(Purpose::Call);
        let address = address as u64;
        self.send_aside(owner, &Message::SizeRequest { ticket: waiter.0, address });
        match self.wait(waiter) {
            Answer::Size(length) => {
                length.unwrap_or_else(|| self.not_a_block(call, NotABlock::Unknown { address }))
            }
            Answer::Engine(_) | Answer::Port => {
                self.fatal("expected an answer from the allocator, got another one")
            }
        }
    }

    /// Has a block used for `bytes` bytes from now on, where it is; false when it must move for that.
    pub fn resize_in_place(&self, call: &str, address: usize, bytes: u64) -> bool {
        if self.owner(call, address) != self.me {
            let length = self.block_length(call, address);
            return (length / 2..=length).contains(&bytes);
        }
        let _inside = (self.trace_other(), self.account.enter(&self.threads, TimeClass::Other));
        let resized = self.allocations.heap.thoroughly(|pool, _| pool.resize(address as u64, bytes));
        resized.unwrap_or_else(|error| self.not_a_block(call, error))
    }

    /// Whose arena holds the address.
    fn owner(&self, call: &str, address: usize) -> NodeId {
        if self.allocations.heap.pool.contains(address as u64) {
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
        let _signals = SignalsHeld::hold();
        self.send_to(to, &[&message.encode()]);
    }

    /// The thread that serves others may be amid a call of its own, so this leaves its cache alone.
    pub(crate) fn free_for_peer(&self, from: NodeId, address: u64) {
        let _signals = SignalsHeld::hold();
        if let Err(error) = self.allocations.heap.pool.free(None, address, from) {
            self.not_a_block(&format!("hiroba_free on node {from}"), error);
        }
    }

    pub(crate) fn tell_size(&self, to: NodeId, ticket: Ticket, address: u64) {
        let signals = SignalsHeld::hold();
        let bytes = self.allocations.heap.pool.length_of(address).ok();
        drop(signals);
        self.send_aside(to, &Message::SizeReply { ticket, bytes });
    }

    pub(crate) fn hear_size(&self, ticket: Ticket, bytes: Option<u64>) {
        if let Some(slot) = self.threads.checked(ticket) {
            slot.answer(Answer::Size(bytes));
        }
    }
}
