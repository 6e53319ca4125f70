//! The `malloc` family: any node allocates without asking, any node frees.
//!
//! Blocks belong to the arena of the node that gave them out, and so do their pages (it is their home). A block freed
//! elsewhere goes back by message. `free` is a release and the next `malloc` of the block an acquire, as in C11: the
//! freeing node first makes what it has written and seen known to the arena's node (`Sync::Publish`), else its unsent
//! writes could come home after the block has a new owner.

use std::sync::PoisonError;

use hiroba_base::{NodeId, PageRange};
use hiroba_memory::SharedMemory;
use hiroba_protocol::Sync;
use hiroba_wire::{Message, Ticket};

use crate::account::TimeClass;
use crate::arena::{Arena, NotABlock};
use crate::runtime::Runtime;
use crate::slot::{Answer, Purpose};

/// This node's arena.
#[derive(Debug)]
pub(crate) struct Heap {
    arena: Arena,
}

impl Heap {
    pub(crate) fn new(memory: &SharedMemory, pages: PageRange) -> Heap {
        let page_bytes = memory.page_size().bytes() as u64;
        let start = memory.address_of(pages.first) as u64;
        Heap { arena: Arena::new(start, start + pages.count * page_bytes) }
    }
}

impl Runtime {
    fn arena<R>(&self, act: impl FnOnce(&mut Arena) -> R) -> R {
        let _signals = crate::signals::SignalsHeld::hold();
        act(&mut self.heap.lock().unwrap_or_else(PoisonError::into_inner).arena)
    }

    /// A block of at least `bytes` bytes at a multiple of `align` (a power of two): its address, and whether it is known
    /// to be all zero. `None` when the arena is full.
    pub fn malloc(&self, bytes: u64, align: u64) -> Option<(usize, bool)> {
        let _inside = self.account.enter(TimeClass::Other);
        self.arena(|arena| arena.allocate(bytes, align)).map(|block| (block.address as usize, block.zeroed))
    }

    /// Takes a block back. `call` names the caller's call in the sentence that ends the job when it is no block.
    pub fn free(&self, call: &str, address: usize) {
        let owner = self.owner(call, address);
        if owner == self.me {
            let _inside = self.account.enter(TimeClass::Other);
            return self.free_here(call, address as u64);
        }
        self.synchronise(call, TimeClass::Other, Sync::Publish(owner));
        self.send_aside(owner, &Message::Free { address: address as u64 });
    }

    /// The usable length of a block.
    pub fn block_length(&self, call: &str, address: usize) -> u64 {
        let owner = self.owner(call, address);
        let _inside = self.account.enter(TimeClass::Other);
        let length = if owner == self.me {
            self.arena(|arena| arena.length_of(address as u64))
        } else {
            let waiter = self.waiter(Purpose::Call);
            let address = address as u64;
            self.send_aside(owner, &Message::SizeRequest { ticket: waiter.0, address });
            match self.wait(waiter) {
                Answer::Size(length) => length,
                Answer::Engine(_) => {
                    self.fatal("expected an answer from the allocator, got one from the protocol")
                }
            }
        };
        length.unwrap_or_else(|| self.not_a_block(call, address as u64))
    }

    /// Whose arena holds the address.
    fn owner(&self, call: &str, address: usize) -> NodeId {
        let page = self.memory.page_of(address);
        page.and_then(|page| self.layout.arena_owner(page))
            .unwrap_or_else(|| self.not_a_block(call, address as u64))
    }

    fn not_a_block(&self, call: &str, address: u64) -> ! {
        self.fatal(&format!("{call}: {}", NotABlock { address }))
    }

    fn free_here(&self, call: &str, address: u64) {
        if let Err(error) = self.arena(|arena| arena.free(address)) {
            self.fatal(&format!("{call}: {error}"));
        }
    }

    fn send_aside(&self, to: NodeId, message: &Message<'_>) {
        let _signals = crate::signals::SignalsHeld::hold();
        self.fabric().send(to, &[&message.encode()]);
    }

    pub(crate) fn free_for_peer(&self, from: NodeId, address: u64) {
        self.free_here(&format!("hiroba_free on node {from}"), address);
    }

    pub(crate) fn tell_size(&self, to: NodeId, ticket: Ticket, address: u64) {
        let bytes = self.arena(|arena| arena.length_of(address));
        self.send_aside(to, &Message::SizeReply { ticket, bytes });
    }

    pub(crate) fn hear_size(&self, ticket: Ticket, bytes: Option<u64>) {
        if let Some(slot) = self.slots.checked(ticket) {
            slot.answer(Answer::Size(bytes));
        }
    }
}
