//! Reductions whose values travel with a barrier.
//!
//! LLVM's library may combine the values of a team's threads itself: the compiler passes a function for that,
//! and a list of the addresses of each thread's values, on the thread's stack. The threads of a node combine
//! theirs, in the order of their numbers, into those of the node's first thread. That one comes to the
//! barrier, and the pages of its values travel with the node's arrival (`sc/lending.rs` of
//! `hiroba-protocol`). Thread 0 waits for the arrivals of all nodes, combines their values, in order, and
//! adds them to the variables. When it comes to the barrier, too, the others go on.
//!
//! Values may lead to long memory, which is under release consistency: the others' stores there are known
//! only after the barrier. If an arrival reports such stores, thread 0 has the nodes meet once more: it comes
//! to the barrier, and the others wait in the next one for it to read the values. From then on all threads
//! come to an extra barrier first wherever they reduce at that place of the program. That a reduction takes
//! this way is a matter of messages only.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};

use crate::along;
use crate::context::Context;
use crate::face;
use crate::job::{self, put};
use crate::meeting::Gate;
use crate::offers::{Offer, PLACES, Reductions};
use crate::runtime::{self, Wait};

/// Combines two lists of values into the first.
pub(crate) type Combine = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void);

/// Where the first thread of this node makes its offers; how many such reductions it has seen.
static OFFER: AtomicPtr<Offer> = AtomicPtr::new(ptr::null_mut());
static TURN: AtomicU64 = AtomicU64::new(0);

/// How many of the node's other threads have come, and their lists.
static COME: AtomicU32 = AtomicU32::new(0);
static LISTS: [AtomicPtr<c_void>; job::BLOCK_MAX as usize] =
    [const { AtomicPtr::new(ptr::null_mut()) }; job::BLOCK_MAX as usize];
/// Opened when all of them have come, and when the reduction is done.
static ALL_HERE: Gate = Gate::new();
static DONE: Gate = Gate::new();

/// The values of a thread.
pub(crate) struct Values {
    /// An array of addresses.
    pub(crate) list: *mut c_void,
    pub(crate) words: usize,
    pub(crate) combine: Combine,
    /// The place in the program.
    pub(crate) place: usize,
}

/// The first thread of this node, whose stack it is on, makes its offers there.
pub(crate) fn offer_at(offer: &Offer) {
    OFFER.store(ptr::from_ref(offer).cast_mut(), Release);
}

/// The calling thread gives its values. Returns true in the thread that must add them to the variables and
/// then call [`end`]; in the others when that was done. After that no thread waits at the team's next
/// barrier if `is_barrier`: it was this.
///
/// # Safety
/// The values are as the compiler describes them, and stay until the function returns in this thread, or
/// until it calls [`end`].
pub(crate) unsafe fn gather(context: &Context, values: &Values, is_barrier: bool) -> bool {
    let threads = context.threads.get();
    let per_node = job::block(threads);
    let first = job::node() * per_node;
    let (local, here) = (context.number.get() - first, (threads - first).min(per_node));
    if local > 0 {
        LISTS[local as usize].store(values.list, Relaxed);
        let generation = DONE.generation();
        if COME.fetch_add(1, AcqRel) + 1 == here - 1 {
            ALL_HERE.open();
        }
        DONE.wait(generation, Wait::Team);
        context.has_met.set(is_barrier);
        return false;
    }
    loop {
        let generation = ALL_HERE.generation();
        if COME.load(Acquire) == here - 1 {
            break;
        }
        ALL_HERE.wait(generation, Wait::Team);
    }
    COME.store(0, Relaxed);
    for list in &LISTS[1..here as usize] {
        // SAFETY: the caller's; those threads wait.
        unsafe { (values.combine)(values.list, list.load(Relaxed)) };
    }
    let turn = TURN.fetch_add(1, Relaxed) + 1;
    if job::node() == 0 {
        // SAFETY: the caller's.
        unsafe { take_offers(values, turn) };
        context.gathered.set(Some(is_barrier));
        return true;
    }
    offer(values, turn);
    DONE.open();
    context.has_met.set(is_barrier);
    false
}

/// The thread in which [`gather`] returned true has added the values. Returns false if the calling thread is
/// not in such a reduction.
pub(crate) fn end(context: &Context) -> bool {
    let Some(is_barrier) = context.gathered.take() else { return false };
    runtime::meet_nodes();
    DONE.open();
    context.has_met.set(is_barrier);
    true
}

fn reductions() -> &'static Reductions {
    &job::begun().reductions
}

fn has_extra(values: &Values) -> &'static AtomicU8 {
    &reductions().has_extra[(values.place ^ values.place >> 10) % PLACES]
}

/// The first thread of another node than 0 passes the node's values on, and waits until they are taken.
fn offer(values: &Values, turn: u64) {
    let offer = OFFER.load(Acquire);
    put!(reductions().offers[job::node() as usize], offer);
    // SAFETY: the thread is the node's first, on whose stack it lies.
    let offer = unsafe { &*offer };
    offer.turn.store(turn, Relaxed);
    offer.list.store(values.list, Relaxed);
    // SAFETY: the caller of `gather` promises such a list.
    let pages = unsafe { along::pages_up(values.list.cast(), values.words, ptr::from_ref(offer).addr()) };
    let has_extra = has_extra(values).load(Relaxed) != 0;
    // Up to the end this thread touches no page of its stack.
    runtime::privately(|| {
        if has_extra {
            face::hiroba_barrier();
        }
        let repeated = reductions().repeated.load(Relaxed);
        along::send_up(&pages);
        face::hiroba_barrier();
        if reductions().repeated.load(Relaxed) != repeated {
            along::send_up(&pages);
            face::hiroba_barrier();
        }
    });
}

/// Thread 0 combines the other nodes' values with its own.
///
/// # Safety
/// As of [`gather`].
unsafe fn take_offers(values: &Values, turn: u64) {
    let has_extra = has_extra(values);
    let knows_all = has_extra.load(Relaxed) == 0 && runtime::await_nodes();
    if !knows_all {
        if has_extra.load(Relaxed) == 0 {
            has_extra.store(1, Relaxed);
            reductions().repeated.fetch_add(1, Relaxed);
        }
        runtime::meet_nodes();
        // All is known now; this lets their pages come with their arrivals.
        runtime::await_nodes();
    }
    for offer in &reductions().offers[1..job::nodes() as usize] {
        // SAFETY: NULL, or what that node's first thread has put there, for good.
        let offer = unsafe { offer.load(Relaxed).as_ref() };
        // A node whose program ends makes none.
        if let Some(offer) = offer.filter(|offer| offer.turn.load(Relaxed) == turn) {
            // SAFETY: the caller's; that node's threads wait.
            unsafe { (values.combine)(values.list, offer.list.load(Relaxed)) };
        }
    }
}
