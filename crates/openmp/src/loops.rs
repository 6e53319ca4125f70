//! Loops that a team shares: iterations are numbered from 0, and threads take chunks of these numbers, as the
//! crate `hiroba-schedule` gives them out.

use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use hiroba_schedule::{Loop, Shared, Team};

use crate::context::{Context, TeamKind};
use crate::job;
use crate::runtime::wait_until;
use crate::shares;
use crate::work::Share;

/// The calling thread comes to a loop.
pub(crate) fn begin(context: &Context, of_loop: Loop) {
    begin_with(context, of_loop, |_| {});
}

/// The same; the first thread to come prepares more than the loop itself.
pub(crate) fn begin_with(context: &Context, of_loop: Loop, prepare: impl FnOnce(&Share)) {
    let threads = context.threads.get();
    shares::begin(context, |share| {
        let kept = of_loop.keeps_speeds(threads);
        if let Some((kind, site)) =
            kept.and_then(|(kind, name)| Some((kind, job::begun().sites.make(name, threads)?)))
        {
            let (plan, first) = site.prepare(kind);
            share.plan.store(plan, Release);
            share.next.store(first, Release);
        }
        prepare(share);
    });
    context.of_loop.replace(of_loop);
    context.chunk.set((0, 0));
}

/// The calling thread takes the next chunk of the loop that it is at: first iteration and end.
pub(crate) fn next(context: &Context) -> Option<(u64, u64)> {
    let share = context.share.get()?;
    give_turn(context, share);
    let mut of_loop = context.of_loop.borrow_mut();
    let chunk = if share.is_cancelled() {
        None
    } else {
        let threads = context.threads.get();
        let team = Team { number: context.number.get(), threads, per_node: job::block(threads) };
        let kept = of_loop.keeps_speeds(threads).and_then(|(_, name)| job::begun().sites.find(name, threads));
        let is_of_job = context.team.get() == TeamKind::OfJob;
        let shared = Shared {
            next: &share.next,
            slots: is_of_job.then(|| job::slots(shares::place(context))).flatten(),
            plan: kept.map(|site| (site, share.plan.load(Relaxed))),
        };
        of_loop.next(team, shared, own_time_ns)
    };
    context.chunk.set(chunk.unwrap_or_default());
    chunk
}

/// How long the calling thread has run, in nanoseconds. Time in which others had its processor does not
/// count.
fn own_time_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes a local.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The calling thread is done with its chunk of an ordered loop, and the next chunk may go.
fn give_turn(context: &Context, share: &Share) {
    let (first, end) = context.chunk.get();
    if context.of_loop.borrow().is_ordered() && first < end {
        wait_until(|| share.turn.load(Acquire) == first || share.is_cancelled());
        share.turn.store(end, Release);
        context.chunk.set((0, 0));
    }
}

/// The calling thread waits for its turn in an ordered loop.
pub(crate) fn await_turn(context: &Context) {
    let ((first, end), is_ordered) = (context.chunk.get(), context.of_loop.borrow().is_ordered());
    if let Some(share) = context.share.get().filter(|_| is_ordered && first < end) {
        wait_until(|| share.turn.load(Acquire) == first || share.is_cancelled());
    }
}

/// The calling thread leaves the loop that it is at.
pub(crate) fn leave(context: &Context) {
    if let Some(share) = context.share.get() {
        give_turn(context, share);
    }
}
