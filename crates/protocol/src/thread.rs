//! Requests of program threads to a node's engine, and the results of their waits.

use hiroba_base::{Access, CondId, LockId, NodeId, PageId, PageRange};
use hiroba_wire::{AtomicOutcome, Collective};
use thiserror::Error;

/// A thread of this node that waits for an [`Effect::Wake`](crate::Effect::Wake). The host numbers its
/// threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Waiter(pub u32);

/// A request of a program thread to the protocol, other than loads and stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synchronisation {
    /// Take a lock, waiting for it.
    Acquire(LockId),
    /// Take a lock if it is free.
    TryAcquire(LockId),
    /// Give up a lock.
    Release(LockId),
    /// Give up the lock, wait for a signal, take the lock again (Mesa semantics: the condition may have
    /// changed).
    Wait(CondId, LockId),
    /// Wake one waiter.
    Signal(CondId),
    /// Wake all waiters.
    Broadcast(CondId),
    /// Meet all nodes.
    Collective(Collective),
    /// Wait, on node 0, until all other nodes have arrived at the next collective, where they wait for this
    /// one.
    AwaitOthers,
    /// Let all nodes depart from the barrier at which they have arrived: this thread, which has been woken
    /// with [`Outcome::Contributions`], has used what they have contributed, and waits for the departure.
    Conclude,
    /// Send all writes so far to one node: required before `free` returns a block to the node that will
    /// allocate it again.
    Publish(NodeId),
    /// Send a node all writes that it has not received yet: required before a message to that node.
    Inform(NodeId),
    /// Put the page of a granule under sequential consistency, on all nodes and permanently. Refused if the
    /// page's protocol cannot give it up.
    Convert(PageId),
    /// Home fresh pages of this node in blocks on all nodes. Refused if they are not fresh
    /// (`consistency/placing.rs`).
    Place(PageRange),
}

/// The result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request was carried out.
    Done,
    /// `TryAcquire` failed, because the lock is held; or `Convert`, because the page's protocol keeps it; or
    /// `Place`, because the pages are not fresh.
    Refused,
    /// This collective is complete (a follower learns here which one it was).
    Collective(Collective),
    /// The other nodes have arrived at the next collective. `have_news` if that must be over before this node
    /// knows all that they have written, or if it has not been able to wait for them.
    Others {
        /// False if this node knows everything already.
        have_news: bool,
    },
    /// All nodes have arrived at the barrier, and some have contributed
    /// ([`Engine::take_contributions`](crate::Engine::take_contributions)). They depart when the thread, one
    /// of node 0's, asks for that ([`Synchronisation::Conclude`]).
    Contributions,
    /// The atomic operation's result.
    Atomic(AtomicOutcome),
    /// The program broke the rules of the call, which had no effect.
    Misuse(Misuse),
}

/// Mistakes of the program that an engine detects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Misuse {
    /// Released or waited with a lock that the thread does not hold.
    #[error("lock {} is not held by this thread; only the thread that took a lock may release it", .0.0)]
    NotHeld(LockId),
    /// Took a lock twice.
    #[error("lock {} is already held by this thread; locks are not recursive", .0.0)]
    AlreadyHeld(LockId),
    /// Left the job with a lock in hand.
    #[error("lock {} is still held by a thread of this node; unlock it before leaving the job", .0.0)]
    StillHeld(LockId),
    /// A thread came to a collective call while another of the same node waits in one.
    #[error(
        "another thread of this node waits in {0} already; outside hiroba_run one thread a node makes the collective calls"
    )]
    CollectiveTwice(&'static str),
    /// Touched a page that is in no region.
    #[error("page {} is not allocated", .0.0)]
    NotAllocated(PageId),
}

/// Returns the access that a thread wants that has faulted on a page with this access. If the machine does
/// not say (`Access::None`), it follows from the accesses that fault.
pub(crate) fn wanted_beyond(access: Access, wanted: Access) -> Access {
    match (wanted, access) {
        (Access::None, Access::None) => Access::Read,
        (Access::None, _) => Access::Write,
        (known, _) => known,
    }
}
