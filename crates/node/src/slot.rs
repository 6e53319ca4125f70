//! Threads that wait for the engine.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use hiroba_protocol::{Outcome, Waiter};
use rustix::event::{EventfdFlags, eventfd};

/// The most threads of one process that may use the runtime.
pub(crate) const THREADS_MAX: usize = 1024;

/// What a thread waits for. A signal handler of the program's may run while its thread waits in a call, and may touch
/// shared memory: that fault's answer must not be taken for the call's. Handlers do not nest deeper, for signals are
/// blocked while a fault is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Call,
    Fault,
}

/// What a waiting thread gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// From the engine.
    Engine(Outcome),
    /// From the allocator of another node: a block's length.
    Size(Option<u64>),
}

/// One thread's place to wait.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    ready: AtomicBool,
    /// The thread sleeps, or is about to: whoever answers must ring its bell.
    asleep: AtomicBool,
    answer: Mutex<Option<Answer>>,
    bell: OnceLock<OwnedFd>,
}

impl Slot {
    /// Answers the thread.
    pub(crate) fn answer(&self, answer: Answer) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        self.ready.store(true, Ordering::SeqCst); // SYNC POINT: pairs with `sleeps`, which stores `asleep` and then loads `ready`
        if self.asleep.load(Ordering::SeqCst)
            && let Some(bell) = self.bell.get()
        {
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    /// The answer, if it is there.
    pub(crate) fn take(&self) -> Option<Answer> {
        if !self.ready.swap(false, Ordering::SeqCst) {
            return None;
        }
        self.answer.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Announces that the thread will sleep on its bell; false when the answer has come meanwhile.
    pub(crate) fn sleeps(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst); // SYNC POINT: pairs with `answer`
        !self.ready.load(Ordering::SeqCst)
    }

    /// The thread is up again.
    pub(crate) fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
        if let Some(bell) = self.bell.get() {
            let _ = rustix::io::read(bell, &mut [0u8; 8][..]);
        }
    }

    /// What the thread sleeps on.
    pub(crate) fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.bell.get().map(|bell| bell.as_fd())
    }

    fn prepare(&self) -> rustix::io::Result<()> {
        if self.bell.get().is_none() {
            let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let _ = self.bell.set(bell);
        }
        Ok(())
    }
}

/// All slots of the process. A thread gets one for each purpose when it first needs it, and keeps it.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Box<[Slot]>,
    given: AtomicU32,
}

thread_local! {
    static FOR_CALLS: Cell<Option<u32>> = const { Cell::new(None) };
    static FOR_FAULTS: Cell<Option<u32>> = const { Cell::new(None) };
}

impl Slots {
    pub(crate) fn new() -> Slots {
        Slots { slots: (0..2 * THREADS_MAX).map(|_| Slot::default()).collect(), given: AtomicU32::new(0) }
    }

    /// The calling thread's; `None` when there are no more threads or descriptors to be had.
    pub(crate) fn mine(&self, purpose: Purpose) -> Option<Waiter> {
        let mine = match purpose {
            Purpose::Call => &FOR_CALLS,
            Purpose::Fault => &FOR_FAULTS,
        };
        if let Some(index) = mine.get() {
            return Some(Waiter(index));
        }
        let index = self.given.fetch_add(1, Ordering::Relaxed);
        self.slots.get(index as usize)?.prepare().ok()?;
        mine.set(Some(index));
        Some(Waiter(index))
    }

    pub(crate) fn get(&self, waiter: Waiter) -> &Slot {
        &self.slots[waiter.0 as usize]
    }

    /// The slot that a peer's message names, if it is one that was given out.
    pub(crate) fn checked(&self, ticket: u32) -> Option<&Slot> {
        (ticket < self.given.load(Ordering::Relaxed)).then(|| self.slots.get(ticket as usize))?
    }
}
