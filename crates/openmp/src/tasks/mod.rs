//! Tasks. Those that are put off are records in shared memory, in a queue of the team, which any thread of
//! the team takes from: at barriers, `taskwait` and the end of `taskgroup`. Others run at once, in the thread
//! that creates them.
//!
//! A task that waits for its children runs children only, and one that waits for a group tasks of that group:
//! so no task waits for one that lies below it on the same stack. Records change under the team's lock.

pub(crate) mod calls;
pub(crate) mod dependences;
pub(crate) mod task_loops;

use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::context::{Context, TeamKind};
use crate::job;
use crate::meeting::meet_team;
use crate::records::{self, Family, Group, Running, Task};
use crate::runtime::{Held, wait_until};

pub(crate) use self::calls::{GOMP_taskgroup_end, GOMP_taskwait_depend, begin_group};

/// The number of tasks for each thread that wait in the queue before further ones are run at once.
const QUEUED_PER_THREAD: u32 = 4;

/// Returns true if the team's threads run tasks for each other. They do not if several share a processor,
/// since nothing would be gained.
fn share_tasks(context: &Context) -> bool {
    context.team.get() == TeamKind::OfJob && job::has_tasks() && context.threads.get() <= job::places()
}

/// Returns true if tasks that the calling thread creates may be deferred.
fn may_defer(context: &Context) -> bool {
    share_tasks(context) && !context.running.get().is_final
}

/// Tasks that lie in no more others than this are put off without regard to time.
const SHALLOW: u32 = 2;
/// How many ticks of the processor's clock lie between two deeper tasks that a thread puts off: a few hundred
/// microseconds, several times what another node needs to take one. Tasks that are created faster are too
/// small to travel.
const TICKS_BETWEEN: u64 = 600_000;

/// Returns true if deferring another task does not help: the queue has enough, or the program creates tasks
/// so fast that running them is cheaper than passing them on.
fn is_full(context: &Context) -> bool {
    let is_deep = context.running.get().depth >= SHALLOW;
    if is_deep && ticks().wrapping_sub(context.put_off_at.get()) < TICKS_BETWEEN {
        return true;
    }
    job::begun().tasks.queued.load(Relaxed) >= QUEUED_PER_THREAD * context.threads.get()
}

/// The processor's clock.
fn ticks() -> u64 {
    // SAFETY: the instruction has no operands.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// What a task is that the calling thread runs at once.
pub(crate) fn task_within(context: &Context, is_final: bool) -> Running {
    let parent = context.running.get();
    Running {
        family: ptr::null_mut(),
        is_final: is_final || parent.is_final,
        is_explicit: true,
        depth: parent.depth + 1,
        ..parent
    }
}

/// Runs a part of the program as a task of its own in the calling thread.
fn run_as(context: &Context, running: Running, work: impl FnOnce()) {
    let (before, settings) = (context.running.replace(running), context.settings.get());
    work();
    let after = context.running.replace(before);
    context.settings.set(settings);
    release_family(after.family);
}

/// The task that has this family has ended.
pub(crate) fn release_family(family: *mut Family) {
    if !family.is_null() {
        job::begun().team.lock.hold(|_| records::release(family));
    }
}

/// Ends what a thread's part in a region has been as a task.
pub(crate) fn end_implicit(context: &Context) {
    let running = context.running.take();
    release_family(running.family);
}

/// Runs a task that was taken from the queue, in the calling thread.
fn run(context: &Context, task: &'static Task) {
    // SAFETY: the group stays until all of its tasks are done.
    let is_cancelled = unsafe { task.group.load(Relaxed).as_ref() }.is_some_and(Group::is_cancelled);
    if !is_cancelled {
        context.put_off_at.set(ticks());
        let running = Running {
            family: ptr::null_mut(),
            group: task.group.load(Relaxed),
            is_final: task.is_final.load(Relaxed) != 0,
            is_explicit: true,
            depth: task.depth.load(Relaxed),
        };
        run_as(context, running, || task.call());
    }
    job::begun().team.lock.hold(|held| {
        if !task.awaits_event() {
            complete(task, held);
        }
    });
}

/// A task is done: those that depend on it may run, and those who wait for it go on. Under the lock.
fn complete(task: &'static Task, held: Held) {
    let queue = &job::begun().tasks;
    // Somebody may wait for what it depends on alone.
    let has_entries = !task.entries.load(Relaxed).is_null();
    dependences::resolve(task, queue, held);
    let family = task.family.load(Relaxed);
    // SAFETY: a family stays while it has children.
    let mut is_last = unsafe { &*family }.children.fetch_sub(1, AcqRel) == 1;
    records::release(family);
    // SAFETY: a group stays until all of its tasks are done.
    if let Some(group) = unsafe { task.group.load(Relaxed).as_ref() } {
        is_last |= group.tasks.fetch_sub(1, AcqRel) == 1;
    }
    is_last |= queue.pending.fetch_sub(1, AcqRel) == 1;
    if is_last || has_entries {
        queue.tell(held);
    }
    task.free();
}

/// The calling thread runs tasks that `takes` agrees to, until `is_done`; waits while there is none.
fn work_until(context: &Context, takes: impl Fn(&Task) -> bool, is_done: impl Fn() -> bool) {
    let job = job::begun();
    loop {
        let task = job.team.lock.hold(|held| {
            loop {
                if is_done() {
                    return None;
                }
                if let Some(task) = job.tasks.take(&takes) {
                    return Some(task);
                }
                job.tasks.sleep(held);
            }
        });
        match task {
            Some(task) => run(context, task),
            None => return,
        }
    }
}

/// The calling thread waits for all of its team and for all tasks, and runs tasks meanwhile.
pub(crate) fn barrier(context: &Context) {
    let job::Job { team, tasks, .. } = job::begun();
    if !share_tasks(context) {
        // Of tasks, only those may be left that wait for an event.
        wait_until(|| tasks.pending.load(Acquire) == 0);
        return meet_team(context.threads.get());
    }
    let threads = context.threads.get();
    let mut generation = None;
    loop {
        let task = team.lock.hold(|held| {
            let mine = *generation.get_or_insert_with(|| {
                team.arrived.fetch_add(1, AcqRel);
                team.generation.load(Acquire)
            });
            loop {
                if team.generation.load(Acquire) != mine {
                    return None;
                }
                if let Some(task) = tasks.take(&|_| true) {
                    return Some(task);
                }
                if team.arrived.load(Acquire) == threads && tasks.pending.load(Acquire) == 0 {
                    team.arrived.store(0, Relaxed);
                    team.generation.store(mine.wrapping_add(1), Relaxed);
                    tasks.tell(held);
                    return None;
                }
                tasks.sleep(held);
            }
        });
        match task {
            Some(task) => run(context, task),
            None => return,
        }
    }
}
