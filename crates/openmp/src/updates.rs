//! Reductions of programs that gcc has built, which travel with the barrier behind them.
//!
//! Each thread updates the variables itself: by an atomic instruction, a loop around one, or some code
//! between two calls. Nothing says that this is a reduction. But where the code comes to a barrier of the
//! team next, or to the region's end, and does not use the result before, the thread may leave the update
//! out, if it is done before the barrier ends. `hiroba_patch::Update` finds such code, and the library of
//! pthreads calls [`take`] there. The updates of a node's threads travel with its arrival, and when all have
//! arrived the thread of node 0 that has come to the barrier executes them, in the order of the nodes and of
//! their threads. So the result of a sum of floating-point numbers is the same in each run with as many nodes
//! and threads, unless a barrier lasts for long.
//!
//! Such an update may also be another thread's signal to come to the barrier. So a thread of each node
//! watches: it executes updates whose barrier has not ended after [`PATIENCE`]. Those that have left the node
//! it must claim first, in memory that all nodes share, as node 0 does. A place in the program where that
//! happens several times in a row is left alone from then on.

use std::ffi::c_int;
use std::sync::atomic::{
    AtomicU8, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::context;
use crate::face;
use crate::job;
use crate::runtime;

/// How long a barrier may take before a node executes its threads' updates itself.
const PATIENCE: Duration = Duration::from_millis(250);
/// How often in a row that may happen at one place.
const LATE_MAX: u8 = 2;
/// How long the watching thread looks after the last update.
const IDLE_TIME: Duration = Duration::from_millis(200);

/// An update as the library of pthreads describes it: its address comes first.
type Words = Vec<u64>;

/// The updates of this node.
struct Updates {
    /// Those that wait for the node's other threads, with the threads' numbers.
    waiting: Vec<(u32, Words)>,
    /// Since when the first of them waits.
    since: Option<Instant>,
    /// Those that have left with the node's arrival.
    sent: Option<Sent>,
    /// The number of the last barrier with updates.
    turn: u64,
    /// True while the watching thread executes some of `waiting`.
    is_watcher_at_work: bool,
    has_watcher: bool,
    is_watcher_idle: bool,
}

/// Updates that have left.
struct Sent {
    since: Instant,
    all: Vec<Words>,
    /// True once the watching thread has looked after them.
    was_late: bool,
}

static UPDATES: Mutex<Updates> = Mutex::new(Updates {
    waiting: Vec::new(),
    since: None,
    sent: None,
    turn: 0,
    is_watcher_at_work: false,
    has_watcher: false,
    is_watcher_idle: false,
});
static CHANGED: Condvar = Condvar::new();

/// How often in a row updates were late, by places in the program.
static LATE: [AtomicU8; 256] = [const { AtomicU8::new(0) }; 256];

fn late(words: &[u64]) -> &'static AtomicU8 {
    let place = words[0] as usize;
    &LATE[(place ^ place >> 8) % LATE.len()]
}

fn updates() -> MutexGuard<'static, Updates> {
    UPDATES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address of the function by which a thread comes to a barrier.
static BARRIER: AtomicUsize = AtomicUsize::new(0);

/// Has updates come here from now on that threads leave out before they call `barrier`, or return from a
/// region. `section_end` ends code that `hiroba_leave_section` begins.
pub(crate) fn prepare(barrier: usize, section_end: usize) {
    BARRIER.store(barrier, Relaxed);
    // SAFETY: `take` looks only at the calling thread's own context.
    unsafe { face::hiroba_take_updates(take, section_end) };
}

/// Takes an update of the calling thread, which runs on its private stack. Returns 1 if the thread is to
/// leave it out.
///
/// # Safety
/// As many words are readable.
unsafe extern "C-unwind" fn take(words: *const u64, count: usize, called: usize, from: usize) -> c_int {
    let context = context::current();
    let is_barrier = called != 0 && called == BARRIER.load(Relaxed);
    let is_end = from != 0 && from == context.code.get();
    if !(is_barrier || is_end) || !context::may_reduce_together(context) {
        return 0;
    }
    // SAFETY: the caller's.
    let words = unsafe { std::slice::from_raw_parts(words, count) };
    if late(words).load(Relaxed) >= LATE_MAX {
        return 0;
    }
    let mut updates = updates();
    if !updates.has_watcher {
        let started = std::thread::Builder::new().name("updates".to_owned()).spawn(watch);
        if started.is_err() {
            return 0;
        }
        updates.has_watcher = true;
    }
    if updates.is_watcher_idle {
        updates.is_watcher_idle = false;
        CHANGED.notify_all();
    }
    updates.since.get_or_insert_with(Instant::now);
    updates.waiting.push((context.number.get(), words.to_vec()));
    1
}

/// Waits for all nodes, after all threads of the team on this node have come. Their updates travel with that.
pub(crate) fn meet_nodes() {
    runtime::privately(|| {
        let mut updates = updates();
        while updates.is_watcher_at_work {
            updates = CHANGED.wait(updates).unwrap_or_else(PoisonError::into_inner);
        }
        let mut waiting = std::mem::take(&mut updates.waiting);
        updates.since = None;
        if waiting.is_empty() {
            drop(updates);
            return meet();
        }
        waiting.sort_by_key(|(number, _)| *number);
        let turn = updates.turn + 1;
        let mut message = vec![turn];
        let mut sent = Vec::new();
        let mut rest = Vec::new();
        for (_, words) in waiting {
            if size_of_val(&message[..]) + (1 + words.len()) * size_of::<u64>() > bytes_max() {
                rest.push(words);
                continue;
            }
            message.push(words.len() as u64);
            message.extend(&words);
            sent.push(words);
        }
        updates.turn = turn;
        updates.sent = Some(Sent { since: Instant::now(), all: sent, was_late: false });
        drop(updates);
        rest.iter().for_each(|words| execute(words));
        // SAFETY: as many bytes are readable.
        unsafe { face::hiroba_contribute(message.as_ptr().cast(), size_of_val(&message[..])) };
        meet();
        let sent = self::updates().sent.take().filter(|sent| !sent.was_late);
        sent.iter().flat_map(|sent| &sent.all).for_each(|words| late(words).store(0, Relaxed));
    });
}

fn bytes_max() -> usize {
    face::hiroba_contribution_bytes_max()
}

/// Waits for all nodes, and on node 0 executes the updates that have come.
fn meet() {
    // SAFETY: the function may be called with what nodes contribute.
    unsafe { face::hiroba_barrier_combining(execute_all) };
}

fn execute(words: &[u64]) {
    // SAFETY: the words are readable, and those of an update.
    unsafe { face::hiroba_execute_update(words.as_ptr(), words.len()) };
}

/// Executes a node's updates on node 0, unless the node does that itself.
///
/// # Safety
/// As many bytes are readable, and are what `meet_nodes` has made on that node.
unsafe extern "C-unwind" fn execute_all(node: c_int, bytes: *const u8, count: usize) {
    // SAFETY: the caller's.
    let bytes = unsafe { std::slice::from_raw_parts(bytes, count) };
    let (words, _) = bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let Some((turn, mut rest)) = words.split_first() else { return };
    if !claim(node as usize, *turn) {
        let done = &job::begun().claims.done[node as usize];
        return runtime::wait_until(|| done.load(Acquire) == *turn);
    }
    while let Some((count, words)) = rest.split_first() {
        let (words, others) = words.split_at((*count as usize).min(words.len()));
        execute(words);
        rest = others;
    }
}

/// Returns true if the caller is the one that executes the updates of this turn of a node.
fn claim(node: usize, turn: u64) -> bool {
    job::begun().claims.claimed[node].swap(turn, AcqRel) != turn
}

/// What the watching thread does for as long as the process lives.
fn watch() {
    block_signals();
    let mut updates = updates();
    let mut last = Instant::now();
    loop {
        if updates.waiting.is_empty() && updates.sent.is_none() {
            if last.elapsed() < IDLE_TIME {
                updates = CHANGED.wait_timeout(updates, PATIENCE).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            updates.is_watcher_idle = true;
            while updates.is_watcher_idle {
                updates = CHANGED.wait(updates).unwrap_or_else(PoisonError::into_inner);
            }
        }
        last = Instant::now();
        updates = CHANGED.wait_timeout(updates, PATIENCE / 2).unwrap_or_else(PoisonError::into_inner).0;
        if updates.since.is_some_and(|since| since.elapsed() > PATIENCE) {
            let waiting = std::mem::take(&mut updates.waiting);
            updates.since = None;
            updates.is_watcher_at_work = true;
            drop(updates);
            for (_, words) in &waiting {
                note_late(words);
                execute(words);
            }
            updates = self::updates();
            updates.is_watcher_at_work = false;
            CHANGED.notify_all();
        }
        let turn = updates.turn;
        let is_late = |sent: &&mut Sent| !sent.was_late && sent.since.elapsed() > PATIENCE;
        if let Some(sent) = updates.sent.as_mut().filter(is_late) {
            sent.was_late = true;
            let all = sent.all.clone();
            drop(updates);
            execute_own(turn, &all);
            updates = self::updates();
        }
    }
}

/// Executes updates that have left with the node's arrival, unless node 0 does.
fn execute_own(turn: u64, sent: &[Words]) {
    let node = job::node() as usize;
    if claim(node, turn) {
        for words in sent {
            note_late(words);
            execute(words);
        }
        job::begun().claims.done[node].store(turn, Release);
    }
}

fn note_late(words: &[u64]) {
    let late = late(words);
    late.store(late.load(Relaxed).saturating_add(1), Relaxed);
}

/// The program's signals are for its own threads. Those of faults stay.
fn block_signals() {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: initialises the local.
    unsafe { libc::sigfillset(set.as_mut_ptr()) };
    // SAFETY: initialised above.
    let mut set = unsafe { set.assume_init() };
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP] {
        // SAFETY: changes the local.
        unsafe { libc::sigdelset(&raw mut set, signal) };
    }
    // SAFETY: only this thread's own mask changes.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
}
