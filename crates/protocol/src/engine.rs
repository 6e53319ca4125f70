//! What every engine takes in and gives out.

use std::collections::BTreeMap;

use hiroba_base::{Access, LockId, NodeId, PageId, PageRange, PageSize, VectorTimestamp};
use hiroba_wire::{AtomicOperation, Message, Placement};

use crate::effect::{Done, Effect};
use crate::error::{Misfit, ProtocolError};
use crate::protocols::Protocol;
use crate::thread::{Synchronisation, Waiter};

/// A coherence protocol on one node.
///
/// The host polls effects until there are none after every `handle_*` call, and answers the effects that
/// say so on the spot.
pub trait Engine: Send {
    /// Declares a region of whole pages of `page_size` and their homes. Every node declares the same regions.
    fn add_region(&mut self, pages: PageRange, page_size: PageSize, placement: Placement);

    /// The same for a region that another protocol than the engine's first keeps coherent.
    fn add_region_under(
        &mut self,
        protocol: Protocol,
        pages: PageRange,
        page_size: PageSize,
        placement: Placement,
    );

    /// How many threads of this node must come to a collective before the node arrives there.
    fn set_team(&mut self, threads: u32);

    /// The home of a page; `None` when it is not allocated.
    fn home_of(&self, page: PageId) -> Option<NodeId>;

    /// The page that holds a granule; `None` when it is not allocated.
    fn page_of(&self, granule: PageId) -> Option<PageId>;

    /// Whether stores to an allocated page run free and are noted, so that a copy of it gets its twin as it comes.
    fn notes_stores(&self, page: PageId) -> bool;

    /// What this node has seen, and how many collectives it has completed.
    fn seen(&self) -> (&VectorTimestamp, u64);

    /// Which row of its protocol's state table each page is in of which this node knows anything.
    ///
    /// # Errors
    /// A page that fits no row. That is a mistake of the protocol's.
    fn page_states(&self) -> Result<BTreeMap<PageId, &'static str>, Misfit>;

    /// Whether knowledge from this node waits to be absorbed. What the host itself has from it, and what must come after that
    /// knowledge (a block that it frees), must wait as long.
    fn keeps_back(&self, from: NodeId) -> bool;

    /// The locks that threads of this node hold.
    fn locks_held(&self) -> Vec<(LockId, Waiter)>;

    /// A thread touched a granule of a page beyond the page's access. `wanted` is `Access::None` when the machine does not say whether
    /// it was a load or a store. With no waiter, the `Protect` that ends the fault is what lets the thread go on.
    fn handle_fault(&mut self, page: PageId, wanted: Access, waiter: Option<Waiter>);

    /// A thread synchronises; it waits until its `Wake` (which may already be among the next effects).
    fn handle_sync(&mut self, sync: Synchronisation, waiter: Waiter);

    /// A thread operates on an atomic word, `offset` bytes (a multiple of 8) into a granule.
    fn handle_atomic(&mut self, page: PageId, offset: u32, operation: AtomicOperation, waiter: Waiter);

    /// A thread will soon read these pages, in whatever regions. A hint: bounded, never waited for.
    fn handle_prefetch(&mut self, ranges: &[PageRange]);

    /// The host is short of memory: copies of these pages leave, as far as they may, the first ones first.
    /// Those of which something was written are sent home beforehand. The host hears of each that leaves
    /// ([`Effect::GiveUp`]).
    fn handle_shortage(&mut self, pages: &[PageId]);

    /// A message came.
    fn handle_message(&mut self, from: NodeId, message: &Message<'_>) -> Result<(), ProtocolError>;

    /// The host's answer to an effect.
    fn handle_done(&mut self, done: Done);

    /// Whether anything waits for a page that the host holds ([`Effect::Retain`]): if not, the host need not hurry to say that the time
    /// is over.
    fn waits_for_retained(&self) -> bool {
        false
    }

    /// The time for which the host was asked to hold a page ([`Effect::Retain`]) is over. Only engines that ask are told.
    fn handle_retained(&mut self, page: PageId) {
        unreachable!("nobody asked to hold {page}");
    }

    /// Whether the engine has a use for moments in which the host has nothing to do.
    fn wants_lull(&self) -> bool {
        false
    }

    /// The host has nothing to do, and some time has gone by since it said so last. Only engines that want to hear of it are told.
    fn handle_lull(&mut self) {}

    /// The next thing to do.
    fn poll_effect(&mut self) -> Option<Effect>;
}
