//! The interface of every engine.

use std::collections::BTreeMap;

use hiroba_base::{Access, LockId, NodeId, PageId, PageRange, PageSize, VectorTimestamp};
use hiroba_wire::{AtomicOperation, Message, Placement};

use crate::effect::{Done, Effect};
use crate::error::{Misfit, ProtocolError};
use crate::lease::Leases;
use crate::protocols::Protocol;
use crate::thread::{Synchronisation, Waiter};

/// A coherence protocol on one node.
///
/// After every `handle_*` call the host polls effects until there are none, before it makes the next call. It
/// answers at once those effects that require it.
///
/// # Panics
/// A call panics if effects of the call before have not been polled.
pub trait Engine: Send {
    /// Declares a region of whole pages of `page_size` and their homes. Every node declares the same regions.
    fn add_region(&mut self, pages: PageRange, page_size: PageSize, placement: Placement);

    /// Declares a region that another protocol than the engine's first keeps coherent.
    fn add_region_under(
        &mut self,
        protocol: Protocol,
        pages: PageRange,
        page_size: PageSize,
        placement: Placement,
    );

    /// Orders fetches, from now on, with the changes before them: whoever sees a store has the notices of all
    /// that happened before it, without synchronisation. The caller then informs all other nodes
    /// ([`Synchronisation::Inform`]).
    fn order_fetches(&mut self);

    /// Has pages of these granules requested one by one, as threads touch them: memory among them is no part
    /// of the shared memory on some node. They are whole regions.
    fn use_singly(&mut self, granules: PageRange);

    /// Sets the number of threads of this node that must come to a collective before the node arrives there.
    fn set_team(&mut self, threads: u32);

    /// Returns the home of a page, or `None` if it is not allocated.
    fn home_of(&self, page: PageId) -> Option<NodeId>;

    /// Returns the page that contains a granule, or `None` if it is not allocated.
    fn page_of(&self, granule: PageId) -> Option<PageId>;

    /// Returns true if stores to an allocated page do not fault and are noted, so that a copy of it gets its
    /// twin when it comes.
    fn notes_stores(&self, page: PageId) -> bool;

    /// Returns the intervals that this node has seen, and the number of collectives that it has completed.
    fn seen(&self) -> (&VectorTimestamp, u64);

    /// Returns the row of its protocol's state table for each page of which this node has state.
    ///
    /// # Errors
    /// A page that fits no row, which is an error of the protocol.
    fn page_states(&self) -> Result<BTreeMap<PageId, &'static str>, Misfit>;

    /// Returns true if knowledge from this node waits to be absorbed. Messages to the host itself from that
    /// node, and actions that must follow that knowledge (such as freeing a block), must then wait as well.
    fn keeps_back(&self, from: NodeId) -> bool;

    /// Returns the locks that threads of this node hold.
    fn locks_held(&self) -> Vec<(LockId, Waiter)>;

    /// Returns the leases of locks, through which threads take locks without the engine, if it leases any.
    fn leases(&self) -> Option<&Leases> {
        None
    }

    /// Handles that a thread touched a granule of a page beyond the page's access. `wanted` is `Access::None`
    /// if the machine does not say whether it was a load or a store. Without a waiter, the `Protect` that
    /// ends the fault lets the thread go on.
    fn handle_fault(&mut self, page: PageId, wanted: Access, waiter: Option<Waiter>);

    /// Handles a thread's synchronisation. The thread waits until its `Wake`, which may already be among the
    /// next effects.
    fn handle_sync(&mut self, sync: Synchronisation, waiter: Waiter);

    /// Notes the block of the program that the next request to convert a page is about, if this node is the
    /// page's home. Neighbours in it may be converted with the page.
    fn note_converted_block(&mut self, block: PageRange);

    /// Handles a thread's operation on an atomic word, `offset` bytes (a multiple of 8) into a granule.
    fn handle_atomic(&mut self, page: PageId, offset: u32, operation: AtomicOperation, waiter: Waiter);

    /// Handles the hint that a thread will soon read these pages, of any regions. The work is bounded, and no
    /// thread waits for it.
    fn handle_prefetch(&mut self, ranges: &[PageRange]);

    /// Handles the hint that threads of other nodes will read these pages when they depart from the next
    /// collective, which this node's threads are about to come to. The work is bounded.
    fn carry_along(&mut self, _ranges: &[PageRange]) {}

    /// Handles the hint that a thread of node 0 will read these pages when all other nodes have arrived at
    /// the next collective ([`Synchronisation::AwaitOthers`]), which this node's threads are about to come to
    /// and touch no such page before they leave it. The work is bounded.
    fn carry_up(&mut self, _ranges: &[PageRange]) {}

    /// Has these bytes travel with this node's arrival at the next collective, which must be a barrier and
    /// which this node's threads are about to come to. They replace those of an earlier call. At most
    /// [`CONTRIBUTION_BYTES_MAX`](hiroba_wire::CONTRIBUTION_BYTES_MAX).
    fn contribute(&mut self, _bytes: Vec<u8>) {}

    /// Returns what the nodes have contributed to the barrier at which all have arrived. A thread of node 0
    /// that was woken with [`Outcome::Contributions`](crate::Outcome::Contributions) takes this.
    fn take_contributions(&mut self) -> BTreeMap<NodeId, Vec<u8>> {
        BTreeMap::new()
    }

    /// Lets these pages leave, as far as they may, the first ones first, because the host is short of memory.
    /// Writes in copies are sent home before; pages homed here go to a disk, so the host names them only if
    /// it has one. For each page that leaves the host gets an effect ([`Effect::GiveUp`],
    /// [`Effect::PageOut`]).
    fn handle_shortage(&mut self, pages: &[PageId]);

    /// Handles a message.
    fn handle_message(&mut self, from: NodeId, message: &Message<'_>) -> Result<(), ProtocolError>;

    /// Handles the host's answer to an effect.
    fn handle_done(&mut self, done: Done);

    /// Returns true if a request waits for a page that the host retains ([`Effect::Retain`]). If not, the
    /// host need not report the end of the time promptly.
    fn waits_for_retained(&self) -> bool {
        false
    }

    /// Handles that the time is over for which the host was asked to retain a page ([`Effect::Retain`]).
    /// Called only if the engine has asked.
    fn handle_retained(&mut self, page: PageId) {
        unreachable!("nobody asked to hold {page}");
    }

    /// Returns true if the engine uses moments in which the host has nothing to do.
    fn wants_lull(&self) -> bool {
        false
    }

    /// Uses a moment in which the host has nothing to do, some time after the last one. Called only if
    /// [`wants_lull`](Self::wants_lull).
    fn handle_lull(&mut self) {}

    /// Returns the next effect.
    fn poll_effect(&mut self) -> Option<Effect>;
}
