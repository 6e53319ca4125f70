//! Calls of Hiroba, made on the calling thread's private stack.

use std::ffi::c_void;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::face;

/// A closure that is called once through a pointer, and its result.
struct Errand<F, R> {
    work: Option<F>,
    result: Option<R>,
}

unsafe extern "C-unwind" fn run_errand<F: FnOnce() -> R, R>(errand: *mut c_void) {
    // SAFETY: `privately` passes its own local, to which no other code has a pointer.
    let errand = unsafe { &mut *errand.cast::<Errand<F, R>>() };
    if let Some(work) = errand.work.take() {
        errand.result = Some(work());
    }
}

/// Runs the runtime's work on the private stack.
pub(crate) fn privately<R>(work: impl FnOnce() -> R) -> R {
    fn call<F: FnOnce() -> R, R>(work: F) -> R {
        let mut errand = Errand { work: Some(work), result: None };
        // SAFETY: the errand outlives the call.
        unsafe { face::hiroba_privately(run_errand::<F, R>, (&raw mut errand).cast()) };
        errand.result.expect("the errand was run")
    }
    call(work)
}

/// Ends the job with an error message.
pub(crate) fn fatal(sentence: &str) -> ! {
    // SAFETY: the sentence is readable.
    unsafe { face::hiroba_fatal(sentence.as_ptr(), sentence.len()) }
}

/// Has panics of this library end the job at once, as those of the libraries below do.
pub(crate) fn end_at_panics() {
    std::panic::set_hook(Box::new(|info| {
        fatal(&format!("a fault of Hiroba's: a thread {info}").replace('\n', " "));
    }));
}

/// Writes a message to the standard error stream.
pub(crate) fn say(sentence: &str) {
    // SAFETY: the sentence is readable.
    unsafe { face::hiroba_say(sentence.as_ptr(), sentence.len()) }
}

/// Returns true if the calling thread belongs to a program that Hiroba runs.
pub(crate) fn in_program() -> bool {
    face::hiroba_in_program() != 0
}

/// What a thread waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The next region.
    Region,
    /// The others of its team.
    Team,
}

/// Runs `wait`, in which the calling thread waits, and counts its time as that. On the private stack.
pub(crate) fn waiting<R>(what: Wait, wait: impl FnOnce() -> R) -> R {
    let is_idle = i32::from(what == Wait::Region);
    face::hiroba_begin_wait(is_idle);
    let result = wait();
    face::hiroba_end_wait(is_idle);
    result
}

/// Waits for all nodes at a barrier.
pub(crate) fn meet_nodes() {
    privately(|| face::hiroba_barrier());
}

/// Waits, on node 0, until the other nodes have come to the next barrier. Returns true if this node knows all
/// that they have written.
pub(crate) fn await_nodes() -> bool {
    privately(|| face::hiroba_await_others()) != 0
}

/// Waits for all nodes to meet for the next region.
pub(crate) fn meet_for_region() {
    privately(|| waiting(Wait::Region, || face::hiroba_barrier()));
}

/// A lock of the job, with a condition variable. Its number lies in shared memory, 0 at first.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Lock {
    number: AtomicU32,
}

impl Lock {
    fn number(&self) -> u32 {
        // SAFETY: the place is shared and stays for as long as the lock.
        unsafe { face::hiroba_lock_number(&raw const self.number) }
    }

    /// Acquires the lock.
    pub(crate) fn lock(&self) {
        let number = self.number();
        privately(|| face::hiroba_lock(number));
    }

    /// Acquires the lock if it is free. Returns true if it was.
    pub(crate) fn try_lock(&self) -> bool {
        let number = self.number();
        privately(|| face::hiroba_trylock(number)) == 0
    }

    /// Releases the lock.
    pub(crate) fn unlock(&self) {
        let number = self.number();
        privately(|| face::hiroba_unlock(number));
    }

    /// Drops its number, so that the memory may hold another lock.
    pub(crate) fn forget(&self) {
        self.number.store(0, std::sync::atomic::Ordering::Relaxed);
    }

    /// Runs `work` while the calling thread holds the lock.
    pub(crate) fn hold<R>(&self, work: impl FnOnce(Held) -> R) -> R {
        let number = self.number();
        privately(|| face::hiroba_lock(number));
        let result = work(Held(number));
        privately(|| face::hiroba_unlock(number));
        result
    }
}

/// A lock that the calling thread holds.
#[derive(Clone, Copy)]
pub(crate) struct Held(u32);

impl Held {
    /// Releases the lock until another thread signals a change. May also return without one.
    pub(crate) fn wait(self) {
        privately(|| face::hiroba_cond_wait(self.0, self.0));
    }

    /// Wakes all waiting threads.
    pub(crate) fn tell_all(self) {
        privately(|| face::hiroba_cond_broadcast(self.0));
    }
}

/// How often a thread looks before it gives its processor to others, and before it sleeps.
const LOOKS: u32 = 200;
const YIELDS: u32 = 300;
const NAP: Duration = Duration::from_micros(50);

/// Waits until `is_done` returns true. Another thread makes it true by a store to shared memory, which no
/// event announces, so the thread polls.
pub(crate) fn wait_until(is_done: impl Fn() -> bool) {
    for look in 0u32.. {
        if is_done() {
            return;
        }
        match look {
            ..LOOKS => std::hint::spin_loop(),
            LOOKS..YIELDS => std::thread::yield_now(),
            _ => privately(|| std::thread::sleep(NAP)),
        }
    }
}
