//! Loops that a team shares: iterations are numbered from 0, and threads take chunks of these numbers.

use std::sync::atomic::{Ordering::Acquire, Ordering::Release};

use crate::context::Context;
use crate::runtime::wait_until;
use crate::shares;
use crate::work::{Loop, Share};

/// The calling thread comes to a loop.
pub(crate) fn begin(context: &Context, of_loop: Loop) {
    begin_with(context, of_loop, |_| {});
}

/// The same; the first thread to come prepares more than the loop itself.
pub(crate) fn begin_with(context: &Context, of_loop: Loop, prepare: impl FnOnce(&Share)) {
    shares::begin(context, prepare);
    context.of_loop.set(of_loop);
}

/// The calling thread takes the next chunk of the loop that it is at: first iteration and end.
pub(crate) fn next(context: &Context) -> Option<(u64, u64)> {
    let share = context.share.get()?;
    let mut of_loop = context.of_loop.get();
    give_turn(&mut of_loop, share);
    let chunk = if share.is_cancelled() {
        None
    } else {
        of_loop.next((context.number.get(), context.threads.get()), share)
    };
    of_loop.has = chunk.unwrap_or_default();
    context.of_loop.set(of_loop);
    chunk
}

/// The calling thread is done with its chunk of an ordered loop, and the next chunk may go.
fn give_turn(of_loop: &mut Loop, share: &Share) {
    let (first, end) = of_loop.has;
    if of_loop.is_ordered && first < end {
        wait_until(|| share.turn.load(Acquire) == first || share.is_cancelled());
        share.turn.store(end, Release);
        of_loop.has = (0, 0);
    }
}

/// The calling thread waits for its turn in an ordered loop.
pub(crate) fn await_turn(context: &Context) {
    let (of_loop, share) = (context.of_loop.get(), context.share.get());
    if let Some(share) = share.filter(|_| of_loop.is_ordered && of_loop.has.0 < of_loop.has.1) {
        wait_until(|| share.turn.load(Acquire) == of_loop.has.0 || share.is_cancelled());
    }
}

/// The calling thread leaves the loop that it is at.
pub(crate) fn leave(context: &Context) {
    if let Some(share) = context.share.get() {
        let mut of_loop = context.of_loop.get();
        give_turn(&mut of_loop, share);
        context.of_loop.set(of_loop);
    }
}
