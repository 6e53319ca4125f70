//! Regions: how the job's threads learn of them, take part and meet at barriers.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use hiroba_schedule::Loop;

use crate::along;
use crate::context::{self, Context, Settings, TeamKind};
use crate::face;
use crate::gathering;
use crate::job::{self, LIST, RECORDS, Region, put};
use crate::loops;
use crate::meeting::Gate;
use crate::offers::Offer;
use crate::places;
use crate::records::{Group, Running};
use crate::runtime::{self, Wait};
use crate::settings::settings;
use crate::shares::GAP;
use crate::single_numbers;
use crate::tasks;
use crate::work::Function;

/// A region as its first thread comes to it.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) function: Function,
    pub(crate) data: *mut c_void,
    /// How many words there are, if this is known: then each thread has them with the region's record.
    pub(crate) data_words: usize,
    /// How many threads the program asks for; 0: as many as are set.
    pub(crate) threads: u32,
    /// The loop that each thread begins with.
    pub(crate) of_loop: Option<Loop>,
    /// The group of tasks that all threads are in, or NULL.
    pub(crate) group: *mut Group,
}

/// Opened when there is another region for the threads of this node.
static REGIONS: Gate = Gate::new();
/// The region's number and how many threads it has, in one word.
static NOTICE: AtomicU64 = AtomicU64::new(0);
const THREADS_BITS: u32 = 24;
/// How many regions all nodes have met for, and the record of the region that the node's threads learn of.
static MET: AtomicU64 = AtomicU64::new(0);
static RECORD: AtomicPtr<Region> = AtomicPtr::new(ptr::null_mut());
/// How many threads this node has for teams, `main` among them, and which notice the latest must not heed.
static WORKERS: AtomicU32 = AtomicU32::new(0);
static STALE_NOTICE: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Where the numbers of shared work and of barriers go on in the next region.
    static NEXT: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Starts threads on this node until it has as many as it needs for a team of `threads`.
pub(crate) fn grow(threads: u32) {
    let (have, need) = (WORKERS.load(Acquire), job::block(threads));
    if have >= need {
        return;
    }
    STALE_NOTICE.store(NOTICE.load(Relaxed), Release);
    // Before they start: the first one may have to start more.
    WORKERS.store(need, Release);
    runtime::privately(|| {
        // On node 0 the first one runs `main`.
        let first = have.max(u32::from(job::node() == 0));
        for local in first..need {
            let local = std::ptr::without_provenance_mut(local as usize);
            // SAFETY: the function takes the thread's number on its node.
            unsafe { face::hiroba_start_worker(work, local, settings().stack_bytes) };
        }
    });
}

/// What a thread of the team does for as long as the process lives, but for the one that runs `main`. It is
/// thread `local` of its node.
unsafe extern "C-unwind" fn work(local: *mut c_void) -> *mut c_void {
    let local = local.addr() as u32;
    places::bind(local);
    if local == 0 {
        let offer = Offer::default();
        gathering::offer_at(&offer);
        loop {
            runtime::meet_for_region();
            let region = record_of(MET.fetch_add(1, Relaxed) + 1);
            let threads = region.threads.load(Acquire);
            grow(threads);
            announce(region, threads);
            take_part_if_in(threads, local);
        }
    }
    let mut seen = STALE_NOTICE.load(Acquire);
    loop {
        let generation = REGIONS.generation();
        let notice = NOTICE.load(Acquire);
        if notice == seen {
            REGIONS.wait(generation, Wait::Region);
            continue;
        }
        seen = notice;
        take_part_if_in((notice & ((1 << THREADS_BITS) - 1)) as u32, local);
    }
}

/// The record of a region, by how many regions all nodes have met for, with it.
fn record_of(met: u64) -> &'static Region {
    &job::begun().regions[met as usize % RECORDS]
}

/// Tells this node's threads of a region.
fn announce(region: &'static Region, threads: u32) {
    RECORD.store(ptr::from_ref(region).cast_mut(), Release);
    let number = (NOTICE.load(Relaxed) >> THREADS_BITS) + 1;
    NOTICE.store(number << THREADS_BITS | u64::from(threads), Release);
    REGIONS.open();
}

fn take_part_if_in(threads: u32, local: u32) {
    let number = job::node() * job::block(threads) + local;
    if local < job::block(threads) && number < threads {
        take_part(number);
    }
}

/// Runs the job's region as one of its threads.
fn take_part(number: u32) {
    // SAFETY: `announce` stored a record of the job, before this thread learned of the region.
    let region = unsafe { &*RECORD.load(Acquire) };
    let context = Box::new(Context::in_region(region, number, ptr::null()));
    let function = region.function.load(Relaxed) as usize;
    context.code.set(function);
    // SAFETY: the region's first thread was given a function of this type.
    let function = unsafe { std::mem::transmute::<usize, Function>(function) };
    context::run_in(&context, || {
        if region.has_loop.load(Relaxed) != 0 {
            loops::begin(&context, Loop::read(&region.of_loop));
        }
        // SAFETY: the region's code with its data, which all nodes share.
        unsafe { function(region.data.load(Relaxed)) };
        end(&context);
    });
}

/// How many threads a region gets that the calling thread comes to.
pub(crate) fn threads_for(outer: &Context, asked: u32) -> u32 {
    if !context::may_fork(outer) {
        return 1;
    }
    let Settings { threads, thread_limit, .. } = outer.settings.get();
    let asked = if asked == 0 { threads } else { asked };
    asked.min(thread_limit).clamp(1, job::threads_max())
}

/// The calling thread begins a region: its context there, which is current from now on.
pub(crate) fn begin(wanted: &Wanted) -> *mut Context {
    let outer = context::current();
    let threads = threads_for(outer, wanted.threads);
    let context = if threads == 1 {
        let level = outer.level.get() + 1;
        let inner = Context::alone(level, outer.settings.get().at_level(level), outer);
        inner.active_level.set(outer.active_level.get());
        inner.team_number.set(outer.team_number.get());
        inner.teams.set(outer.teams.get());
        inner.running.set(Running { group: wanted.group, ..Running::default() });
        Box::new(inner)
    } else {
        fork(outer, wanted, threads)
    };
    let context = Box::into_raw(context);
    context::set_current(context);
    if let Some(of_loop) = wanted.of_loop {
        // SAFETY: made above.
        loops::begin(unsafe { &*context }, of_loop);
    }
    context
}

fn fork(outer: &Context, wanted: &Wanted, threads: u32) -> Box<Context> {
    let meets = threads > job::block(threads);
    // Nodes that the latest team has left out may not have looked at its record yet.
    let met = MET.load(Relaxed) + 1;
    let region = record_of(met);
    let before = along::fingerprint(region);
    write(region, outer, wanted, threads);
    let team = &job::begun().team;
    if settings().cancellation {
        put!(team.cancelled, 0);
    }
    single_numbers::begin_region();
    face::hiroba_note_team(1);
    grow(threads);
    if meets {
        MET.store(met, Relaxed);
        let has_changed = along::fingerprint(region) != before;
        let data = match wanted.data_words {
            0 => along::pages_at(wanted.data.addr()),
            // SAFETY: the caller has as many words of data.
            words => unsafe { along::pages_of_list(wanted.data.cast(), words) },
        };
        along::send(&along::pages(data, region, met as usize % RECORDS, has_changed));
        runtime::meet_nodes();
    }
    // Behind the meeting: a page that a thread here touches before that does not travel.
    announce(region, threads);
    let context = Context::in_region(region, 0, outer);
    context.code.set(wanted.function as usize);
    Box::new(context)
}

/// Writes a region's record. A region that is like the one in the record changes nothing, so that the nodes
/// keep their copies.
fn write(region: &Region, outer: &Context, wanted: &Wanted, threads: u32) {
    let (first_share, first_barrier) = NEXT.get();
    let level = outer.level.get() + 1;
    let has_list = (1..=LIST).contains(&wanted.data_words);
    for (number, word) in region.list.iter().enumerate().take(if has_list { wanted.data_words } else { 0 }) {
        // SAFETY: the caller has as many words of data.
        put!(word, unsafe { wanted.data.cast::<u64>().wrapping_add(number).read() });
    }
    let data = if has_list { ptr::from_ref(&region.list).cast_mut().cast() } else { wanted.data };
    put!(region.function, wanted.function as usize as u64);
    put!(region.data, data);
    put!(region.threads, threads);
    put!(region.level, level);
    put!(region.team_number, outer.team_number.get());
    put!(region.teams, outer.teams.get());
    outer.settings.get().at_level(level).write(&region.settings);
    put!(region.first_share, first_share);
    // Only what can be cancelled has a name by its number.
    put!(region.first_barrier, if settings().cancellation { first_barrier } else { 0 });
    put!(region.group, wanted.group);
    put!(region.has_loop, u32::from(wanted.of_loop.is_some()));
    if let Some(of_loop) = wanted.of_loop {
        of_loop.write(&region.of_loop);
    }
}

/// The calling thread ends the region that [`begin`] began.
///
/// # Safety
/// It is the current context, and what `begin` returned.
pub(crate) unsafe fn finish(context: *mut Context) {
    // SAFETY: the caller's.
    let context = unsafe { Box::from_raw(context) };
    end(&context);
    if context.team.get() == TeamKind::OfJob {
        // Threads of a cancelled region have come to different numbers.
        let gap = if settings().cancellation { GAP } else { 0 };
        NEXT.set((context.shares.get() + gap, context.barriers.get()));
        face::hiroba_note_team(0);
    }
    context::set_current(context.outer.get());
}

/// The calling thread comes to the region's end and waits for the others.
fn end(context: &Context) {
    meet_at_end(context);
    tasks::end_implicit(context);
}

fn meet_at_end(context: &Context) {
    if !settings().cancellation || context.team.get() == TeamKind::Alone {
        return barrier(context);
    }
    // Threads that have left a cancelled region meet those that wait at a barrier in it; these come here
    // then.
    let endings = &job::begun().team.endings;
    loop {
        let turn = context.barriers.get();
        endings.come(turn);
        barrier(context);
        if endings.is_end(turn, context.threads.get()) {
            return;
        }
    }
}

/// The calling thread waits for all of its team.
pub(crate) fn barrier(context: &Context) {
    if !context.has_met.take() {
        meet(context);
    }
    context.left.set(None);
    context.barriers.set(context.barriers.get() + 1);
    context.shares_settled.set(context.shares.get());
}

/// The calling thread, which has nothing to do up to its next barrier, waits there now.
pub(crate) fn meet_early(context: &Context) {
    meet(context);
    context.has_met.set(true);
}

fn meet(context: &Context) {
    if context.team.get() == TeamKind::OfJob {
        if settings().cancellation && context.number.get() == 0 {
            job::begun().team.endings.prepare(context.barriers.get() + 1);
        }
        tasks::barrier(context);
    }
}
