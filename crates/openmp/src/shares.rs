//! Work that a team shares: the first thread to come prepares it, and all take from it.
//!
//! The pieces of work of a region are numbered; all threads of a team come to the same ones in the same
//! order. Each has a place in a ring, which is free for another one when all threads are past it: because a
//! barrier lies between, or because all have said so.

use std::sync::atomic::{Ordering::AcqRel, Ordering::Acquire, Ordering::Release};

use hiroba_schedule::Slots;

use crate::context::{Context, TeamKind};
use crate::job;
use crate::runtime::wait_until;
use crate::work::{RING, Share};

/// What a region adds to the number of its next piece when threads left it at different ones.
pub(crate) const GAP: u64 = 1 << 20;

/// The calling thread comes to the next piece of work of its team. `prepare` is called by the first to come.
pub(crate) fn begin(context: &Context, prepare: impl FnOnce(&Share)) -> &'static Share {
    say_left(context);
    let number = context.shares.get();
    context.shares.set(number + 1);
    let share: &'static Share = match context.team.get() {
        TeamKind::Alone => context.own_share(),
        TeamKind::OfJob => &job::begun().shares[place_of(number)],
    };
    context.share.set(Some(share));
    let mine = number + 1;
    loop {
        let claimed = share.claimed.load(Acquire);
        if claimed == mine {
            wait_until(|| share.ready.load(Acquire) == mine);
            break;
        }
        if !is_free(context, share, claimed) {
            wait_until(|| share.claimed.load(Acquire) != claimed || is_free(context, share, claimed));
        } else if share.claimed.compare_exchange(claimed, mine, AcqRel, Acquire).is_ok() {
            share.next.store(0, Release);
            share.turn.store(0, Release);
            if share.is_cancelled() {
                // Chunks that nodes had claimed are still there.
                job::slots(place_of(number)).into_iter().for_each(Slots::clear);
                share.cancelled.store(0, Release);
            }
            share.passed.store(0, Release);
            let memory = share.memory.swap(std::ptr::null_mut(), AcqRel);
            // SAFETY: all threads are past the piece that it went with.
            unsafe { crate::memory::free_shared(memory) };
            share.reductions.store(std::ptr::null_mut(), Release);
            prepare(share);
            share.ready.store(mine, Release);
            break;
        }
    }
    share
}

fn place_of(number: u64) -> usize {
    number as usize % RING
}

/// The place of the piece of work that the calling thread is at, in a team of the job.
pub(crate) fn place(context: &Context) -> usize {
    place_of(context.shares.get() - 1)
}

/// Returns true if all threads are past the piece that has the place now.
fn is_free(context: &Context, share: &Share, claimed: u64) -> bool {
    let is_alone = context.team.get() == TeamKind::Alone;
    is_alone || claimed <= context.shares_settled.get() || share.passed.load(Acquire) >= context.threads.get()
}

/// The calling thread is past its piece of work, and no barrier follows.
pub(crate) fn pass(context: &Context) {
    if let Some(share) = context.share.take()
        && context.team.get() == TeamKind::OfJob
    {
        share.passed.fetch_add(1, AcqRel);
    }
}

/// The calling thread is past its piece of work, and may come to a barrier or not. A barrier spares it a word
/// to the others, so it says nothing before it comes to another piece.
pub(crate) fn leave_silently(context: &Context) {
    if let Some(share) = context.share.take() {
        say_left(context);
        context.left.set(Some(share));
    }
}

/// Says what [`leave_silently`] has not said.
fn say_left(context: &Context) {
    if let Some(share) = context.left.take()
        && context.team.get() == TeamKind::OfJob
    {
        share.passed.fetch_add(1, AcqRel);
    }
}

/// The calling thread is past its piece of work, and at a barrier.
pub(crate) fn leave(context: &Context) {
    context.share.set(None);
}
