//! State that the nodes of a job share: one block of shared memory, and monitors.

use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::alarms;
use crate::face;
use crate::stacks::privately;

/// The maximum number of nodes of a job.
pub(crate) const NODES_MAX: usize = 1024;
/// The maximum number of keys of thread-specific data, as in the C library.
pub(crate) const KEYS_MAX: usize = 1024;

/// The shared state of all nodes. Fields change while the monitor [`THREADS`] is held, unless they say
/// otherwise.
pub(crate) struct Control {
    /// The number of the last object that got one. Changes under [`NUMBERS`].
    numbers: AtomicU32,
    /// Not 0 once the job ends.
    pub(crate) ending: AtomicU32,
    /// Not 0 when a thread of another node has called `exit` or `_exit` (`ending.rs` defines the values),
    /// with this status.
    pub(crate) exit_wanted: AtomicU32,
    pub(crate) exit_status: AtomicI32,
    /// The node on which the last thread was placed.
    pub(crate) placed_last: AtomicU32,
    /// The address of the executable's thread-local variables in `main`'s thread. Written by node 0 at the
    /// start.
    pub(crate) variables_start: AtomicU64,
    /// The number of threads that run on each node.
    pub(crate) running: [AtomicU32; NODES_MAX],
    /// The first thread that each node must start.
    pub(crate) to_start: [AtomicPtr<c_void>; NODES_MAX],
    /// The first signal that each node must send to threads of its own.
    pub(crate) to_send: [AtomicPtr<c_void>; NODES_MAX],
    /// The actions that the program has set for signals, and the number of changes. Change under [`THREADS`].
    pub(crate) actions: [Action; SIGNALS],
    pub(crate) actions_version: AtomicU32,
    /// The state of `rand` and its relatives. Changes under [`RANDOM`].
    pub(crate) random: Random,
    /// Not 0 once fetches of long blocks must be ordered, and on which nodes they are.
    pub(crate) order_wanted: AtomicU32,
    pub(crate) is_in_order: [AtomicU32; NODES_MAX],
    /// Not 0 once the program has a long block. Changes at any time, once.
    pub(crate) has_long_blocks: AtomicU32,
    /// The first thread that waits at a futex of each bucket. Changes in the bucket's monitor.
    pub(crate) futexes: [AtomicPtr<c_void>; BUCKETS],
    /// The locale of all nodes.
    pub(crate) locale: Locale,
    /// The program's locale objects.
    pub(crate) locale_objects: [LocaleObject; LOCALE_OBJECTS],
    /// Keys of thread-specific data. Change under [`KEYS`].
    pub(crate) keys: [Key; KEYS_MAX],
}

/// The number of buckets of futexes (`futexes.rs`).
pub(crate) const BUCKETS: usize = 64;
/// All signals have numbers below this one.
pub(crate) const SIGNALS: usize = 65;

/// The action that the program has set for a signal. Changes in [`THREADS`].
#[repr(C)]
pub(crate) struct Action {
    pub(crate) handler: AtomicU64,
    /// The signals that are blocked meanwhile: all existing ones fit a word.
    pub(crate) mask: AtomicU64,
    pub(crate) flags: AtomicI32,
    pub(crate) is_set: AtomicU32,
}

/// The names of all categories, as setlocale(3) returns and takes them.
#[repr(C)]
pub(crate) struct Locale {
    pub(crate) words: [AtomicU64; LOCALE_WORDS],
    /// How many times they were set.
    pub(crate) set: AtomicU32,
    /// One more than the node that could not set them; 0 if all could.
    pub(crate) failed: AtomicU32,
    /// The number of changes, also of objects, and how many of them each node has made.
    pub(crate) version: AtomicU32,
    pub(crate) made: [AtomicU32; NODES_MAX],
}

/// A locale object of the program. Changes in [`THREADS`].
#[repr(C)]
pub(crate) struct LocaleObject {
    /// The names of its categories, as newlocale(3) takes them.
    pub(crate) words: [AtomicU64; LOCALE_WORDS],
    /// The number of changes.
    pub(crate) version: AtomicU32,
    pub(crate) is_used: AtomicU32,
    /// One more than the node that could not make the object; 0 if all could.
    pub(crate) failed: AtomicU32,
}

/// The maximum number of locale objects at a time.
pub(crate) const LOCALE_OBJECTS: usize = 128;

/// The number of words that hold the names of a locale.
pub(crate) const LOCALE_WORDS: usize = 64;

/// Room for the state that the C library's random functions keep between calls.
#[repr(C, align(16))]
pub(crate) struct Random {
    /// `struct random_data`.
    pub(crate) data: [AtomicU64; 8],
    /// The words that `data` points to.
    pub(crate) words: [AtomicU64; 16],
    /// `struct drand48_data`.
    pub(crate) of_48_bits: [AtomicU64; 4],
}

/// A key of thread-specific data.
pub(crate) struct Key {
    /// Odd while the key exists; each newly created key has another value.
    pub(crate) generation: AtomicU32,
    /// The address of its destructor, or 0.
    pub(crate) destructor: AtomicU64,
}

/// Guards threads and where they run.
pub(crate) const THREADS: Monitor = Monitor(u32::MAX);
/// Guards the numbers of objects.
const NUMBERS: Monitor = Monitor(u32::MAX - 1);
/// Guards `pthread_once`.
pub(crate) const ONCE: Monitor = Monitor(u32::MAX - 2);
/// Guards keys.
pub(crate) const KEYS: Monitor = Monitor(u32::MAX - 3);
/// Guards the state of random functions.
pub(crate) const RANDOM: Monitor = Monitor(u32::MAX - 4);
/// Condition variables of the starters, one for each node.
const STARTERS: u32 = u32::MAX - 4 - NODES_MAX as u32;

/// Orders fences, and atomic instructions on long blocks whose pages stay under release consistency.
pub(crate) const ATOMICS: Monitor = Monitor(STARTERS - 1);
/// Monitors of the buckets of futexes.
const FUTEXES: u32 = ATOMICS.0 - BUCKETS as u32;
/// Announces, in [`THREADS`], that a node has made a change of the locale.
pub(crate) const LOCALE_MADE: u32 = FUTEXES - 1;
/// Announces, in [`THREADS`], that a node orders its fetches. Smaller numbers are those of objects.
pub(crate) const IN_ORDER: u32 = LOCALE_MADE - 1;

static CONTROL: AtomicPtr<Control> = AtomicPtr::new(std::ptr::null_mut());

/// Makes the block. Collective.
pub(crate) fn make() -> bool {
    let block = face::hiroba_alloc_for_program(size_of::<Control>(), 0).cast::<Control>();
    CONTROL.store(block, Relaxed);
    !block.is_null()
}

/// Returns the block.
///
/// # Panics
/// If it has not been made.
pub(crate) fn control() -> &'static Control {
    let block = CONTROL.load(Relaxed);
    assert!(!block.is_null(), "expected a process that has joined its job");
    // SAFETY: `make` allocated it for as long as the process lives, zeros are valid, and its fields are
    // atomics, which other threads and nodes may change.
    unsafe { &*block }
}

/// Notes that the program has long blocks from now on.
pub(crate) fn note_long_block() {
    let has = &control().has_long_blocks;
    if has.load(Relaxed) == 0 {
        has.store(1, Relaxed);
    }
}

/// A lock with a condition variable, identified by a number.
#[derive(Clone, Copy)]
pub(crate) struct Monitor(u32);

impl Monitor {
    /// Returns the monitor of an object that keeps its number in `place`. The object gets a number if it has
    /// none.
    pub(crate) fn of(place: &AtomicU32) -> Monitor {
        let known = place.load(Relaxed);
        if known != 0 {
            return Monitor(known);
        }
        NUMBERS.hold(|_| {
            // Another thread may have been first.
            if place.load(Relaxed) == 0 {
                let number = control().numbers.load(Relaxed) + 1;
                assert!(
                    number < IN_ORDER,
                    "the program has made {number} locks, more than there are numbers"
                );
                control().numbers.store(number, Relaxed);
                place.store(number, Relaxed);
            }
            Monitor(place.load(Relaxed))
        })
    }

    /// Returns the monitor of a number that an object has.
    pub(crate) fn known(number: u32) -> Monitor {
        Monitor(number)
    }

    /// Returns the monitor of a bucket of futexes.
    pub(crate) fn of_bucket(number: usize) -> Monitor {
        Monitor(FUTEXES + number as u32)
    }

    /// Returns the number of its lock.
    pub(crate) fn number(self) -> u32 {
        self.0
    }

    /// Runs `work` while the calling thread holds the lock. It runs on the private stack.
    pub(crate) fn hold<R>(self, work: impl FnOnce(Held) -> R) -> R {
        privately(|| {
            face::hiroba_lock(self.0);
            let result = work(Held(self));
            face::hiroba_unlock(self.0);
            result
        })
    }
}

/// A monitor that the calling thread holds.
#[derive(Clone, Copy)]
pub(crate) struct Held(Monitor);

impl Held {
    /// Returns the monitor's number.
    pub(crate) fn number(self) -> u32 {
        self.0.0
    }

    /// Leaves the monitor until another thread has changed something. May return spuriously.
    pub(crate) fn wait(self) {
        face::hiroba_cond_wait(self.0.0, self.0.0);
    }

    /// Waits for an announcement on `number`, at most until the deadline. Returns false if that has passed.
    /// May return spuriously.
    pub(crate) fn wait_until(self, number: u32, deadline: Option<Deadline>) -> bool {
        let Some(deadline) = deadline else {
            self.wait_for(number);
            return true;
        };
        let Some(left) = deadline.left() else { return false };
        // The system's clock may be set while the thread waits.
        let Some(alarm) = alarms::set(left.min(CLOCK_CHECK), self.number(), number) else {
            face::hiroba_unlock(self.number());
            std::thread::sleep(left.min(LOOK_INTERVAL));
            face::hiroba_lock(self.number());
            return true;
        };
        self.wait_for(number);
        drop(alarm);
        true
    }

    /// Wakes all threads that wait.
    pub(crate) fn tell_all(self) {
        face::hiroba_cond_broadcast(self.0.0);
    }

    /// Waits, in [`THREADS`], for threads to start on `node`.
    pub(crate) fn wait_as_starter(self, node: usize) {
        face::hiroba_cond_wait(STARTERS + node as u32, self.0.0);
    }

    /// Wakes the starter of `node`.
    pub(crate) fn tell_starter(self, node: usize) {
        face::hiroba_cond_broadcast(STARTERS + node as u32);
    }

    /// Waits for an announcement on `number`.
    pub(crate) fn wait_for(self, number: u32) {
        face::hiroba_cond_wait(number, self.0.0);
    }

    /// Wakes all threads that wait for an announcement on `number`.
    pub(crate) fn tell_of(self, number: u32) {
        face::hiroba_cond_broadcast(number);
    }
}

/// The number of threads that wait for an object. Changes in its monitor. Who changes an object for which
/// nobody waits need not tell anyone.
#[repr(transparent)]
pub(crate) struct Waiting(AtomicU32);

impl Waiting {
    /// Runs `wait`, in which the calling thread waits.
    pub(crate) fn during<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.0.store(self.0.load(Relaxed) + 1, Relaxed);
        let result = wait();
        self.0.store(self.0.load(Relaxed) - 1, Relaxed);
        result
    }

    /// Wakes all of them.
    pub(crate) fn tell_all(&self, held: Held) {
        if self.0.load(Relaxed) > 0 {
            held.tell_all();
        }
    }

    /// Sets their number to 0 for a new object.
    pub(crate) fn reset(&self) {
        self.0.store(0, Relaxed);
    }
}

/// The interval at which a thread that waits with a deadline reads the clock.
const CLOCK_CHECK: Duration = Duration::from_secs(1);
/// The interval at which a thread that waits for a mutex with a deadline polls.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_micros(200);

/// A time on one of the system's clocks.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    clock: libc::clockid_t,
    time: libc::timespec,
}

impl Deadline {
    /// Returns the deadline that a call was given, or `None` if clock or time is invalid.
    pub(crate) fn new(clock: libc::clockid_t, time: *const libc::timespec) -> Option<Deadline> {
        // SAFETY: the caller of a timed function passes a readable time.
        let time = unsafe { time.read() };
        let known = clock == libc::CLOCK_REALTIME || clock == libc::CLOCK_MONOTONIC;
        (known && (0..1_000_000_000).contains(&time.tv_nsec)).then_some(Deadline { clock, time })
    }

    /// Returns the deadline after a time from now, or `None` without a time.
    pub(crate) fn after(time: *const libc::timespec) -> Option<Deadline> {
        if time.is_null() {
            return None;
        }
        // SAFETY: the caller passes NULL or a readable time.
        let time = unsafe { time.read() };
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes a local.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        let ns = now.tv_nsec + time.tv_nsec;
        let time = libc::timespec {
            tv_sec: now.tv_sec.saturating_add(time.tv_sec).saturating_add(ns / 1_000_000_000),
            tv_nsec: ns % 1_000_000_000,
        };
        Some(Deadline { clock: libc::CLOCK_MONOTONIC, time })
    }

    /// Returns the time left, or `None` if the deadline has passed.
    pub(crate) fn left(self) -> Option<Duration> {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes a local.
        unsafe { libc::clock_gettime(self.clock, &raw mut now) };
        let ns = |time: libc::timespec| i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
        let left = ns(self.time) - ns(now);
        (left > 0).then(|| Duration::from_nanos(left.min(i128::from(u64::MAX)) as u64))
    }
}

/// Returns the program's object at an address, as this library sees it.
///
/// # Safety
/// The address is that of an initialised object of pthreads with room and alignment for a `T`, all of whose
/// fields are atomics; it stays for as long as any call uses it.
pub(crate) unsafe fn object<'a, T>(address: *mut std::ffi::c_void) -> &'a T {
    // SAFETY: the caller's.
    unsafe { &*address.cast::<T>() }
}
