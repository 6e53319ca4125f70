//! The tasks of each node's starter: to start threads, to send signals, to end.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering::Relaxed};

use crate::control::{Held, THREADS, control, object};
use crate::face;
use crate::heap;
use crate::interrupts;
use crate::locale;
use crate::masks;
use crate::next::next;
use crate::record::{Routine, STACK_BYTES, Thread, new_record, record_of, this_node};
use crate::saying;
use crate::signals;

/// Returns the node on which the next thread runs.
pub(crate) fn place() -> usize {
    let nodes = face::hiroba_nodes() as usize;
    let last = control().placed_last.load(Relaxed) as usize;
    let in_turn = (1..=nodes).map(|step| (last + step) % nodes);
    let chosen = in_turn.min_by_key(|node| control().running[*node].load(Relaxed)).unwrap_or(0);
    control().placed_last.store(chosen as u32, Relaxed);
    let running = &control().running[chosen];
    running.store(running.load(Relaxed) + 1, Relaxed);
    chosen
}

/// Appends a thread to those that a node must start.
pub(crate) fn append(list: &AtomicPtr<c_void>, record: &'static Thread) {
    let mut last = list;
    // SAFETY: threads on a list have not been started, so their records exist.
    while let Some(thread) = unsafe { last.load(Relaxed).cast::<Thread>().as_ref() } {
        last = &thread.next;
    }
    last.store(ptr::from_ref(record).cast_mut().cast(), Relaxed);
}

/// True if this node orders fetches of long blocks.
static ORDERS: AtomicBool = AtomicBool::new(false);

/// A task of a starter.
pub(crate) enum Told {
    Start(&'static Thread),
    Send(*mut c_void),
    Actions,
    Order,
    Locale,
    Exit(c_int, u32),
    End,
}

/// Waits for the next task on this node.
pub(crate) fn next_told() -> Told {
    let node = this_node() as usize;
    THREADS.hold(|held: Held| {
        loop {
            if control().ending.load(Relaxed) != 0 {
                return Told::End;
            }
            if node == 0 {
                let how = control().exit_wanted.swap(0, Relaxed);
                if how != 0 {
                    return Told::Exit(control().exit_status.load(Relaxed), how);
                }
            }
            if control().order_wanted.load(Relaxed) != 0 && !ORDERS.swap(true, Relaxed) {
                return Told::Order;
            }
            if locale::is_stale() {
                return Told::Locale;
            }
            if signals::are_stale() {
                return Told::Actions;
            }
            let list = &control().to_start[node];
            // SAFETY: as in `append`.
            if let Some(thread) = unsafe { list.load(Relaxed).cast::<Thread>().as_ref() } {
                list.store(thread.next.load(Relaxed), Relaxed);
                return Told::Start(thread);
            }
            // A thread that gets a signal has been started.
            let signals = &control().to_send[node];
            let first = signals.load(Relaxed);
            // SAFETY: blocks on the list stay until they have been sent.
            if let Some(sent) = unsafe { first.cast::<Sent>().as_ref() } {
                signals.store(sent.next.load(Relaxed), Relaxed);
                return Told::Send(first);
            }
            held.wait_as_starter(node);
        }
    })
}

/// Has node 0 start a thread that works for the calling one and is not counted among the program's.
/// Returns its `pthread_t`.
pub(crate) fn start_deputy(routine: Routine, argument: *mut c_void) -> u64 {
    let Some(record) = new_record() else { saying::fatal("expected shared memory for a thread, got none") };
    record.detached.store(1, Relaxed);
    record.is_deputy.store(1, Relaxed);
    record.mask.store(masks::all_signals(), Relaxed);
    record.stack_bytes.store(STACK_BYTES as u64, Relaxed);
    record.routine.store(routine as *const () as u64, Relaxed);
    record.argument.store(argument, Relaxed);
    THREADS.hold(|held| {
        append(&control().to_start[0], record);
        held.tell_starter(0);
    });
    record.handle()
}

/// A signal for a thread of another node.
#[repr(C)]
struct Sent {
    next: AtomicPtr<c_void>,
    thread: AtomicU64,
    signal: AtomicI32,
}

/// Sends a signal to a thread, through its node.
pub(crate) fn send(thread: u64, signal: c_int) -> c_int {
    let Some(record) = record_of(thread) else { return libc::ESRCH };
    let (thread, record) = match record_of(record.waits_for_signals.load(Relaxed)) {
        Some(deputy) => (deputy.handle(), deputy),
        None => (thread, record),
    };
    if !(0..=libc::SIGRTMAX()).contains(&signal) {
        return libc::EINVAL;
    }
    if record.finished.load(Relaxed) != 0 || signal == 0 {
        return 0;
    }
    if record.is_here() {
        return send_here(record, signal);
    }
    let block = heap::allocate(align_of::<Sent>(), size_of::<Sent>(), true);
    if block.is_null() {
        return libc::EAGAIN;
    }
    // SAFETY: the block is long enough, and zeros are valid.
    let sent: &Sent = unsafe { object(block) };
    sent.thread.store(thread, Relaxed);
    sent.signal.store(signal, Relaxed);
    let node = record.node.load(Relaxed) as usize;
    THREADS.hold(|held| {
        let list = &control().to_send[node];
        sent.next.store(list.load(Relaxed), Relaxed);
        list.store(block, Relaxed);
        held.tell_starter(node);
    });
    0
}

fn send_here(record: &Thread, signal: c_int) -> c_int {
    if signal == masks::interrupting_signal() {
        interrupts::interrupt_here(record);
        return 0;
    }
    // SAFETY: a thread of this node that has not finished.
    unsafe { next!(fn pthread_kill(u64, c_int) -> c_int)(record.real_when_begun(), signal) }
}

/// Sends, on this node, a signal that a thread of another node has requested.
pub(crate) fn send_asked(block: *mut c_void) {
    // SAFETY: the starter passes a block of the list, which no other thread uses any more.
    let sent: &Sent = unsafe { object(block) };
    let record = record_of(sent.thread.load(Relaxed)).filter(|record| record.finished.load(Relaxed) == 0);
    if let Some(record) = record {
        send_here(record, sent.signal.load(Relaxed));
    }
    // SAFETY: as above.
    unsafe { heap::free(block) };
}
