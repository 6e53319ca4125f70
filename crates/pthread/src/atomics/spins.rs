//! Threads that wait for plain loads to return something new.
//!
//! A copy of a page is as old as the node's last acquire, and a plain store leaves its node at the next
//! release. A thread that only loads, in a loop, would never see the store. So each thread of the program is
//! interrupted after each half millisecond of processor time (`ticks.rs`). If the interrupted loop only waits
//! (`hiroba_patch::loop_around`), and did so at the interrupt before, the thread has all nodes *exchange*
//! what they have written: it wakes their starters, each of which takes the lock of all threads and gives it
//! back. Taking it is an acquire there, and giving it to the next node closes the interval of all threads of
//! that node. Finally the waiting thread takes the lock itself. Where nobody waits, an interrupt costs about
//! a microsecond, and no message.
//!
//! A loop may also wait by calls (`sched_yield`, `nanosleep`) or by atomic instructions that change nothing.
//! These come here at most once in a millisecond, too. Of a loop that is not recognised, for example since it
//! calls a function, the state is compared: the thread's registers, and its stack near the stack pointer. A
//! thread that is in the same state as at one of its last interrupts waits, too (`states.rs`). Any other loop
//! leads to an exchange after 16 ms of processor time, then after 32, and so on up to 64.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hiroba_patch::{Image, Loop, loop_around};

use super::states::{self, States};
use super::{objects, order, ticks};
use crate::control::{THREADS, control};
use crate::face;
use crate::heap;
use crate::stacks::in_program;

/// The least time between the beginnings of two exchanges of a thread: a little less than two ticks, which
/// may come early.
const APART: Duration = Duration::from_micros(900);
/// The number of ticks in one loop, of unknown kind, that lead to the first exchange.
const PATIENT_TICKS: u32 = 32;
/// The greatest such number.
const PATIENT_TICKS_MAX: u32 = 128;
/// The time that the other nodes get to publish.
const ANSWER_TIME: Duration = Duration::from_micros(50);
/// The number of operations that find the same value before the thread counts as waiting for another one.
const REPEATS: u32 = 8;

/// The code of the program. Set if threads are watched.
static CODE: OnceLock<Vec<Range<usize>>> = OnceLock::new();

/// What is known of a thread.
#[derive(Clone, Copy)]
struct Watched {
    /// The beginning of the waiting loop at the last tick.
    waiting_at: u64,
    /// Ticks since the last exchange.
    ticks: u32,
    /// The number of ticks that lead to the next exchange.
    patience: u32,
    /// The thread's states at the last ticks.
    states: States,
    /// Address and value of the last exclusive operation, and how many in a row had the same.
    operand: usize,
    value: u64,
    repeats: u32,
}

thread_local! {
    static WATCHED: Cell<Watched> = const {
        Cell::new(Watched {
            waiting_at: 0,
            ticks: 0,
            patience: PATIENT_TICKS,
            states: States::NONE,
            operand: 0,
            value: 0,
            repeats: 0,
        })
    };
    /// The number of exclusive operations that the thread is in, which `exclusive.rs` counts.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// True if the thread's timer has interrupted it lately.
    static TICKED: Cell<bool> = const { Cell::new(false) };
    static LAST_EXCHANGE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Changes the number of exclusive operations that the thread is in, and returns the one before.
pub(super) fn change_depth(by: i32) -> u32 {
    DEPTH.replace(DEPTH.get().wrapping_add_signed(by))
}

fn is_exclusive() -> bool {
    DEPTH.get() > 0
}

/// Watches threads from now on.
pub(super) fn begin() {
    let _ = CODE.set(objects::of_program().iter().flat_map(objects::Object::code).collect());
    ticks::handle_with(on_tick);
}

/// Watches the calling thread, which is one of the program's, until it ends.
pub(crate) fn watch_caller() {
    if CODE.get().is_some() {
        ticks::begin();
    }
}

extern "C" fn on_tick(_: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    TICKED.set(true);
    // SAFETY: the kernel passes what it knows of the signal.
    let passed = ticks::count(unsafe { &*info });
    if !in_program() || is_exclusive() {
        return;
    }
    // SAFETY: the kernel passes the thread's context, which nothing else uses.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    let at = context.uc_mcontext.gregs[libc::REG_RIP as usize].cast_unsigned();
    let mut watched = WATCHED.get();
    watched.ticks += passed;
    WATCHED.set(watched);
    let code = CODE.get().map_or(&[][..], Vec::as_slice);
    // Elsewhere the thread may hold locks of the C library.
    let Some(code) = code.iter().find(|code| code.contains(&(at as usize))) else { return };
    let start = ptr::with_exposed_provenance::<u8>(code.start);
    // SAFETY: the loader has mapped the code, which does not change any more.
    let bytes = unsafe { std::slice::from_raw_parts(start, code.len()) };
    let around = loop_around(&Image::new(vec![(code.start as u64, bytes)]), at);
    if control().has_long_blocks.load(Relaxed) == 0 {
        return;
    }
    let waits = match around {
        Loop::Waits(start) => start == watched.waiting_at,
        Loop::Works | Loop::Unknown => watched.states.note(states::of(&context.uc_mcontext)),
    };
    watched.waiting_at = if let Loop::Waits(start) = around { start } else { 0 };
    let is_overdue = watched.ticks >= watched.patience;
    if is_overdue {
        watched.ticks = 0;
        watched.patience = (watched.patience * 2).min(PATIENT_TICKS_MAX);
    }
    WATCHED.set(watched);
    if waits || is_overdue {
        let errno = heap::errno();
        if waits {
            order::order_everywhere();
        }
        exchange();
        heap::set_errno(errno);
    }
}

/// Notes an exclusive operation, or a fence if the address is 0. A thread that finds the same value again and
/// again waits for another one.
pub(super) fn note_operation(operand: usize) {
    let word = ptr::with_exposed_provenance::<u64>(operand & !7);
    // SAFETY: the program is about to operate on this word, whose page is readable at the latest then.
    let value = if operand == 0 { 0 } else { unsafe { word.read_volatile() } };
    let mut watched = WATCHED.get();
    let is_same = (operand, value) == (watched.operand, watched.value);
    watched.repeats = if is_same { watched.repeats + 1 } else { 0 };
    (watched.operand, watched.value) = (operand, value);
    WATCHED.set(watched);
}

/// Returns true if the thread's operations find the same value again and again.
pub(super) fn repeats_operation() -> bool {
    WATCHED.get().repeats >= REPEATS
}

/// Lets a thread that waits by calls see what other nodes have stored.
pub(crate) fn exchange_while_waiting() {
    if CODE.get().is_some() && in_program() && control().has_long_blocks.load(Relaxed) != 0 {
        order::order_everywhere();
        exchange();
    }
}

/// Returns true if the thread has been interrupted by its timer since the last call.
pub(crate) fn take_tick() -> bool {
    TICKED.take()
}

/// Has all nodes publish what they have written, and learns it; at most once in a tick.
pub(super) fn exchange() {
    if LAST_EXCHANGE.get().is_some_and(|last| last.elapsed() < APART) {
        return;
    }
    LAST_EXCHANGE.set(Some(Instant::now()));
    crate::stacks::privately(|| {
        THREADS.hold(|held| (0..face::hiroba_nodes() as usize).for_each(|node| held.tell_starter(node)));
        std::thread::sleep(ANSWER_TIME);
        THREADS.hold(|_| {});
        face::hiroba_count_exchange();
    });
    WATCHED.set(Watched { ticks: 0, repeats: 0, ..WATCHED.get() });
}
