//! The program's threads, as the runtime knows them. Each has a place where it waits.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use hiroba_protocol::{Outcome, Waiter};
use rustix::event::{EventfdFlags, eventfd};

use crate::stalls::StallClock;

/// Maximum number of threads of one process that may use the runtime at a time.
pub(crate) const THREADS_MAX: usize = 1024;

/// What a thread waits for. A signal handler of the program may run while its thread waits in a call, and may
/// touch shared memory. That fault's answer must not be taken for the call's. Handlers do not nest deeper,
/// because signals are blocked while a fault is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Call,
    Fault,
}

/// The answer to a waiting thread.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// From the engine.
    Engine(Outcome),
    /// From the allocator of another node: a block's length.
    Size(Option<u64>),
    /// From the engine of ports.
    Port(PortAnswer),
}

/// How a call to the engine of ports has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PortAnswer {
    pub(crate) result: Result<hiroba_ports::Outcome, hiroba_ports::PortError>,
    /// The regions of a message that was not taken.
    pub(crate) regions: Vec<hiroba_ports::Region>,
}

/// The end of a thread's latest activity, which is not in the file yet.
#[derive(Debug, Default)]
pub(crate) struct PendingEnd(AtomicU64);

impl PendingEnd {
    /// Replaces the pending end. Returns the previous one.
    pub(crate) fn replace(&self, at_ns: Option<u64>) -> Option<u64> {
        // Zero means none.
        self.0.swap(at_ns.map_or(0, |at_ns| at_ns + 1), Ordering::Relaxed).checked_sub(1)
    }
}

/// The place where one thread waits.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    ready: AtomicBool,
    /// True if the thread sleeps, or is about to: an answer must then ring its bell.
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

    /// Returns true if the answer has arrived.
    pub(crate) fn is_answered(&self) -> bool {
        self.ready.load(Ordering::SeqCst)
    }

    /// Takes the answer, if it has arrived.
    pub(crate) fn take(&self) -> Option<Answer> {
        if !self.ready.load(Ordering::SeqCst) {
            return None;
        }
        self.ready.store(false, Ordering::SeqCst);
        self.answer.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Announces that the thread will sleep on its bell. Returns false if the answer has arrived meanwhile.
    pub(crate) fn sleeps(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst); // SYNC POINT: pairs with `answer`
        !self.ready.load(Ordering::SeqCst)
    }

    /// Records that the thread is awake again.
    pub(crate) fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
        if let Some(bell) = self.bell.get() {
            let _ = rustix::io::read(bell, &mut [0u8; 8][..]);
        }
    }

    /// Returns the descriptor that the thread sleeps on.
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

/// A call that other threads must end, for reports of endless waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its relevant arguments.
    pub(crate) arguments: [Option<u32>; 2],
    /// The lock that it waits for, if any.
    pub(crate) lock: Option<u32>,
    /// Where the program called (a return address), 0 if unknown.
    pub(crate) site: usize,
}

/// A call in which a thread sleeps, and since when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sleep {
    pub(crate) call: Call,
    pub(crate) since: Instant,
}

/// How a thread's entry into the runtime counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A thread of a program whose threads all count.
    OfSome,
    /// A thread of an executable's.
    OfCrew,
    /// The same, which had entered before.
    Nested,
    /// A thread that does not count.
    OfStranger,
}

impl Entry {
    /// Returns true if the thread was outside before, and counts.
    pub(crate) fn counts(self) -> bool {
        matches!(self, Entry::OfSome | Entry::OfCrew)
    }
}

/// One thread.
#[derive(Debug, Default)]
pub(crate) struct Place {
    for_calls: Slot,
    for_faults: Slot,
    /// The kernel's number of the thread; 0 when the place is free.
    tid: AtomicU32,
    sleep: Mutex<Option<Sleep>>,
    stalls: Mutex<Option<StallClock>>,
    /// Of a thread that the account of an executable counts: one more than the number of its entries into
    /// the runtime that have not ended. Of others 0.
    entries: AtomicU32,
    /// The thread's number in the trace. Unlike places, trace numbers are not reused.
    trace_number: AtomicU32,
    pending_end: PendingEnd,
}

impl Place {
    pub(crate) fn stalls(&self) -> MutexGuard<'_, Option<StallClock>> {
        self.stalls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn trace_number(&self) -> u32 {
        self.trace_number.load(Ordering::Relaxed)
    }

    pub(crate) fn pending_end(&self) -> &PendingEnd {
        &self.pending_end
    }

    /// The calling thread, whose place this is, joins the crew. Returns false if it belongs to it.
    pub(crate) fn join_crew(&self) -> bool {
        self.entries.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// It leaves the crew. Returns false if it does not belong to it.
    pub(crate) fn leave_crew(&self) -> bool {
        self.entries.swap(0, Ordering::Relaxed) > 0
    }

    /// Returns true if the thread belongs to the crew.
    pub(crate) fn is_of_crew(&self) -> bool {
        self.entries.load(Ordering::Relaxed) > 0
    }

    /// The calling thread, whose place this is, enters the runtime, or waits.
    pub(crate) fn enter(&self) -> Entry {
        let entries = self.entries.load(Ordering::Relaxed);
        match entries {
            0 => return Entry::OfStranger,
            _ => self.entries.store(entries + 1, Ordering::Relaxed),
        }
        if entries == 1 { Entry::OfCrew } else { Entry::Nested }
    }

    /// It leaves.
    pub(crate) fn leave(&self) -> Entry {
        let entries = self.entries.load(Ordering::Relaxed);
        match entries {
            0 | 1 => return Entry::OfStranger,
            _ => self.entries.store(entries - 1, Ordering::Relaxed),
        }
        if entries == 2 { Entry::OfCrew } else { Entry::Nested }
    }

    fn sleep(&self) -> MutexGuard<'_, Option<Sleep>> {
        self.sleep.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All threads of the process. A thread gets its place when it first needs it. It returns the place when it
/// ends, if the runtime saw it start.
#[derive(Debug)]
pub(crate) struct Threads {
    places: Box<[Place]>,
    /// Number of places assigned so far.
    given: AtomicU32,
    /// Places that were returned.
    free: Mutex<Vec<u32>>,
    /// Number of threads so far.
    known: AtomicU32,
    /// Number of sleeps begun or ended.
    generation: AtomicU64,
}

thread_local! {
    static MINE: Cell<Option<u32>> = const { Cell::new(None) };
    static CALL: Cell<Option<Call>> = const { Cell::new(None) };
}

fn waiter_of(number: u32, purpose: Purpose) -> Waiter {
    Waiter(2 * number + u32::from(purpose == Purpose::Fault))
}

impl Threads {
    pub(crate) fn new() -> Threads {
        Threads {
            places: (0..THREADS_MAX).map(|_| Place::default()).collect(),
            given: AtomicU32::new(0),
            free: Mutex::new(Vec::new()),
            known: AtomicU32::new(0),
            generation: AtomicU64::new(0),
        }
    }

    /// Returns the calling thread's number; `None` when no more threads or descriptors are available. Signals
    /// are held.
    fn my_number(&self) -> Option<u32> {
        if let Some(number) = MINE.get() {
            return Some(number);
        }
        let given_back = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let number = given_back.unwrap_or_else(|| self.given.fetch_add(1, Ordering::Relaxed));
        let place = self.places.get(number as usize)?;
        place.for_calls.prepare().ok()?;
        place.for_faults.prepare().ok()?;
        *place.stalls() = None;
        place.trace_number.store(self.next_trace_number(), Ordering::Relaxed);
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        place.tid.store(tid as u32, Ordering::Release);
        MINE.set(Some(number));
        Some(number)
    }

    /// Returns the calling thread's waiter.
    pub(crate) fn mine(&self, purpose: Purpose) -> Option<Waiter> {
        Some(waiter_of(self.my_number()?, purpose))
    }

    /// Returns the calling thread's waiter, if it has a place already.
    pub(crate) fn known(purpose: Purpose) -> Option<Waiter> {
        MINE.get().map(|number| waiter_of(number, purpose))
    }

    /// Returns the calling thread's place, once it has one.
    pub(crate) fn my_place(&self) -> Option<&Place> {
        MINE.get().map(|number| &self.places[number as usize])
    }

    /// Returns a trace number that no thread has had.
    pub(crate) fn next_trace_number(&self) -> u32 {
        self.known.fetch_add(1, Ordering::Relaxed)
    }

    /// Iterates over all places that have a thread.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Place> {
        self.in_use().map(|(_, place)| place)
    }

    /// Returns the place of the thread that a waiter belongs to.
    pub(crate) fn place_of(&self, waiter: Waiter) -> &Place {
        &self.places[Self::number_of(waiter) as usize]
    }

    /// Returns the place of the thread with this kernel number.
    pub(crate) fn by_tid(&self, tid: u32) -> Option<&Place> {
        self.in_use().find(|(_, place)| place.tid.load(Ordering::Relaxed) == tid).map(|(_, place)| place)
    }

    fn in_use(&self) -> impl Iterator<Item = (u32, &Place)> {
        let given = (self.given.load(Ordering::Relaxed) as usize).min(THREADS_MAX);
        let places = self.places[..given].iter().enumerate();
        places
            .filter(|(_, place)| place.tid.load(Ordering::Acquire) != 0)
            .map(|(number, place)| (number as u32, place))
    }

    /// Returns the number of the thread that a waiter belongs to.
    pub(crate) fn number_of(waiter: Waiter) -> u32 {
        waiter.0 / 2
    }

    /// Ends the calling thread. Its place can be reused, unless it `holds` locks, which would then seem to
    /// belong to the next thread.
    pub(crate) fn finish_mine(&self, holds: impl FnOnce(u32) -> bool) {
        let Some(number) = MINE.take() else { return };
        let place = &self.places[number as usize];
        *place.stalls() = None;
        place.entries.store(0, Ordering::Relaxed);
        place.tid.store(0, Ordering::Release);
        if !holds(number) {
            self.free.lock().unwrap_or_else(PoisonError::into_inner).push(number);
        }
    }

    pub(crate) fn get(&self, waiter: Waiter) -> &Slot {
        let place = &self.places[Self::number_of(waiter) as usize];
        if waiter.0.is_multiple_of(2) { &place.for_calls } else { &place.for_faults }
    }

    /// Returns the slot that a peer's message names, if it was assigned.
    pub(crate) fn checked(&self, ticket: u32) -> Option<&Slot> {
        let given = (self.given.load(Ordering::Relaxed) as usize).min(THREADS_MAX);
        ((ticket / 2) < given as u32).then(|| self.get(Waiter(ticket)))
    }
}

/// The calls in which threads sleep.
impl Threads {
    /// Runs `act`, in which the calling thread may sleep in `call`.
    pub(crate) fn in_call<R>(&self, call: Call, act: impl FnOnce() -> R) -> R {
        let outer = CALL.replace(Some(call));
        let result = act();
        CALL.set(outer);
        result
    }

    /// Records that the calling thread is about to sleep. A thread in a fault does not wait for another
    /// thread, whatever call the fault interrupted.
    pub(crate) fn falls_asleep(&self, waiter: Waiter) {
        if !waiter.0.is_multiple_of(2) {
            return;
        }
        if let (Some(call), Some(place)) = (CALL.get(), self.my_place()) {
            let mut sleep = place.sleep();
            if sleep.is_none() {
                *sleep = Some(Sleep { call, since: Instant::now() });
                self.generation.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Records that its wait is over.
    pub(crate) fn wakes_up(&self, waiter: Waiter) {
        if waiter.0.is_multiple_of(2)
            && let Some(place) = self.my_place()
            && place.sleep().take().is_some()
        {
            self.generation.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of waits begun or ended.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Returns every thread that has a place, and the call in which it sleeps. A thread that has been
    /// answered does not sleep, although it may get no processor for a long time.
    pub(crate) fn sleeps(&self) -> Vec<(u32, Option<Sleep>)> {
        let of = |place: &Place| place.sleep().filter(|_| !place.for_calls.is_answered());
        self.in_use().map(|(number, place)| (number, of(place))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a crowded machine threads that had been answered two seconds before counted as waiting, and the
    /// launcher ended a job for a deadlock that was none.
    #[test]
    fn a_thread_that_has_been_answered_does_not_sleep() {
        let threads = Threads::new();
        let waiter = threads.mine(Purpose::Call).unwrap();
        let call = Call { name: "hiroba_barrier", arguments: [None; 2], lock: None, site: 0 };
        let sleeping = || threads.sleeps().iter().filter(|(_, sleep)| sleep.is_some()).count();
        threads.in_call(call, || {
            threads.falls_asleep(waiter);
            assert_eq!(sleeping(), 1);
            threads.get(waiter).answer(Answer::Size(None));
            assert_eq!(sleeping(), 0);
        });
    }
}
