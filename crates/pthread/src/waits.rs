//! Condition variables, barriers, semaphores, and one-time initialisation.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::Relaxed};

use crate::cancel::{self, CANCELLED};
use crate::control::{Deadline, Held, Monitor, ONCE, Waiting, object};
use crate::heap::set_errno;
use crate::locks::{Mutex, of_object};
use crate::next::next;
use crate::stacks::is_programs;

/// `pthread_cond_t`. Threads that wait draw tickets. A signal releases the oldest ticket that still waits, so
/// that no later one can take its place.
#[repr(C)]
struct Cond {
    number: AtomicU32,
    clock: AtomicI32,
    /// The next ticket to draw.
    next: AtomicU32,
    /// The first ticket that still waits; those before it are released.
    first: AtomicU32,
    /// A bit for each of the tickets from `first` on: set if its thread does not wait any more.
    given_up_low: AtomicU32,
    given_up_high: AtomicU32,
    /// Not 0 when a ticket without a bit was given up. Then a signal releases all, which the manual allows.
    lets_all_go: AtomicU32,
}

impl Cond {
    fn monitor(&self) -> Monitor {
        Monitor::of(&self.number)
    }

    fn waiting(&self) -> u32 {
        self.next.load(Relaxed).wrapping_sub(self.first.load(Relaxed))
    }

    fn given_up(&self) -> u64 {
        u64::from(self.given_up_low.load(Relaxed)) | u64::from(self.given_up_high.load(Relaxed)) << 32
    }

    fn set_given_up(&self, bits: u64) {
        self.given_up_low.store(bits as u32, Relaxed);
        self.given_up_high.store((bits >> 32) as u32, Relaxed);
    }

    fn may_go(&self, ticket: u32) -> bool {
        (ticket.wrapping_sub(self.first.load(Relaxed)) as i32) < 0
    }

    fn let_all_go(&self) {
        self.first.store(self.next.load(Relaxed), Relaxed);
        self.set_given_up(0);
        self.lets_all_go.store(0, Relaxed);
    }

    fn let_oldest_go(&self) {
        let mut bits = self.given_up();
        // Skips tickets that were given up, then releases one that waits.
        while self.waiting() > 0 {
            let was_given_up = bits & 1 == 1;
            bits >>= 1;
            self.first.store(self.first.load(Relaxed).wrapping_add(1), Relaxed);
            if !was_given_up {
                break;
            }
        }
        self.set_given_up(bits);
    }

    /// Gives up a ticket of a thread that does not wait any more. If a signal has released it meanwhile,
    /// another thread gets the signal.
    fn give_up(&self, held: Held, ticket: u32) {
        if self.may_go(ticket) {
            self.signal_in(held);
            return;
        }
        let place = ticket.wrapping_sub(self.first.load(Relaxed));
        if place < u64::BITS {
            self.set_given_up(self.given_up() | 1 << place);
        } else {
            self.lets_all_go.store(1, Relaxed);
        }
    }

    fn signal_in(&self, held: Held) {
        if self.waiting() > 0 {
            if self.lets_all_go.load(Relaxed) == 0 {
                self.let_oldest_go();
            } else {
                self.let_all_go();
            }
            held.tell_all();
        }
    }

    fn signal(&self) -> c_int {
        self.monitor().hold(|held| {
            self.signal_in(held);
            0
        })
    }

    fn broadcast(&self) -> c_int {
        self.monitor().hold(|held| {
            if self.waiting() > 0 {
                self.let_all_go();
                held.tell_all();
            }
            0
        })
    }

    fn wait(&self, mutex: &Mutex, deadline: Option<Deadline>) -> c_int {
        let waited = self.monitor().hold(|held| {
            let ticket = self.next.load(Relaxed);
            // The mutex is unlocked while this monitor is held, so a thread that signals later finds the
            // ticket drawn.
            let unlocked = mutex.unlock();
            if unlocked != 0 {
                return unlocked;
            }
            self.next.store(ticket.wrapping_add(1), Relaxed);
            while !self.may_go(ticket) {
                let error = cancel::wait(held, held.number(), deadline);
                if error != 0 {
                    self.give_up(held, ticket);
                    return error;
                }
            }
            0
        });
        if waited == libc::EPERM {
            return waited;
        }
        mutex.lock();
        if waited == CANCELLED {
            cancel::point();
        }
        waited
    }
}

of_object! { Cond:
    pthread_cond_signal(cond) => cond.signal();
    pthread_cond_broadcast(cond) => cond.broadcast();
    pthread_cond_destroy(cond) => { cond.number.store(0, Relaxed); 0 };
    // SAFETY: the caller's.
    pthread_cond_wait(cond, mutex: *mut c_void) => cond.wait(unsafe { object::<Mutex>(mutex) }, None);
    pthread_cond_timedwait(cond, mutex: *mut c_void, time: *const libc::timespec) =>
        match Deadline::new(cond.clock.load(Relaxed), time) {
            None => libc::EINVAL,
            // SAFETY: the caller's.
            deadline => cond.wait(unsafe { object::<Mutex>(mutex) }, deadline),
        };
    pthread_cond_clockwait(cond, mutex: *mut c_void, clock: libc::clockid_t, time: *const libc::timespec) =>
        match Deadline::new(clock, time) {
            None => libc::EINVAL,
            // SAFETY: the caller's.
            deadline => cond.wait(unsafe { object::<Mutex>(mutex) }, deadline),
        };
}

/// pthread_cond_init(3).
///
/// # Safety
/// As of pthread_cond_init(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn pthread_cond_init(
    cond: *mut c_void,
    attributes: *const c_void,
) -> c_int {
    // SAFETY: the caller's.
    let error = unsafe { next!(fn pthread_cond_init(*mut c_void, *const c_void) -> c_int)(cond, attributes) };
    if error != 0 || !is_programs(cond) {
        return error;
    }
    let mut clock = libc::CLOCK_REALTIME;
    if !attributes.is_null() {
        // SAFETY: the caller passes initialised attributes; the result is a local.
        unsafe { libc::pthread_condattr_getclock(attributes.cast(), &raw mut clock) };
    }
    // SAFETY: the caller passes room for a condition variable; zeros are the initial state of every field.
    unsafe { std::ptr::write_bytes(cond.cast::<u8>(), 0, size_of::<libc::pthread_cond_t>()) };
    // SAFETY: the caller's.
    unsafe { object::<Cond>(cond) }.clock.store(clock, Relaxed);
    0
}

/// `pthread_barrier_t`.
#[repr(C)]
struct Barrier {
    number: AtomicU32,
    count: AtomicU32,
    arrived: AtomicU32,
    generation: AtomicU32,
}

impl Barrier {
    fn wait(&self) -> c_int {
        Monitor::of(&self.number).hold(|held| {
            let generation = self.generation.load(Relaxed);
            let arrived = self.arrived.load(Relaxed) + 1;
            if arrived == self.count.load(Relaxed) {
                self.arrived.store(0, Relaxed);
                self.generation.store(generation.wrapping_add(1), Relaxed);
                held.tell_all();
                return libc::PTHREAD_BARRIER_SERIAL_THREAD;
            }
            self.arrived.store(arrived, Relaxed);
            while self.generation.load(Relaxed) == generation {
                held.wait();
            }
            0
        })
    }
}

of_object! { Barrier:
    pthread_barrier_init(barrier, _attributes: *const c_void, count: c_uint) => {
        if count == 0 {
            return libc::EINVAL;
        }
        barrier.number.store(0, Relaxed);
        barrier.arrived.store(0, Relaxed);
        barrier.generation.store(0, Relaxed);
        barrier.count.store(count, Relaxed);
        0
    };
    pthread_barrier_wait(barrier) => barrier.wait();
    pthread_barrier_destroy(barrier) => { barrier.number.store(0, Relaxed); 0 };
}

/// `sem_t`.
#[repr(C)]
struct Semaphore {
    number: AtomicU32,
    value: AtomicU32,
    waiting: Waiting,
}

impl Semaphore {
    fn wait_by(&self, mut wait: impl FnMut(Held) -> c_int) -> c_int {
        let error = Monitor::of(&self.number).hold(|held| {
            loop {
                let value = self.value.load(Relaxed);
                if value > 0 {
                    self.value.store(value - 1, Relaxed);
                    return 0;
                }
                match self.waiting.during(|| wait(held)) {
                    0 => {}
                    error => return error,
                }
            }
        });
        failed(error)
    }

    fn post(&self) -> c_int {
        let error = Monitor::of(&self.number).hold(|held| {
            let value = self.value.load(Relaxed);
            if value >= i32::MAX as u32 {
                return libc::EOVERFLOW;
            }
            self.value.store(value + 1, Relaxed);
            self.waiting.tell_all(held);
            0
        });
        failed(error)
    }
}

/// Sets `errno` and returns -1, like all functions of semaphores.
fn failed(error: c_int) -> c_int {
    if error == 0 {
        return 0;
    }
    if error == CANCELLED {
        cancel::point();
    }
    set_errno(error);
    -1
}

of_object! { Semaphore:
    sem_init(semaphore, _shared: c_int, value: c_uint) => {
        if value > i32::MAX as c_uint {
            return failed(libc::EINVAL);
        }
        semaphore.number.store(0, Relaxed);
        semaphore.value.store(value, Relaxed);
        semaphore.waiting.reset();
        0
    };
    sem_destroy(semaphore) => { semaphore.number.store(0, Relaxed); 0 };
    sem_post(semaphore) => semaphore.post();
    sem_wait(semaphore) => semaphore.wait_by(|held| cancel::wait(held, held.number(), None));
    sem_trywait(semaphore) => semaphore.wait_by(|_| libc::EAGAIN);
    sem_timedwait(semaphore, time: *const libc::timespec) => match Deadline::new(libc::CLOCK_REALTIME, time) {
        None => failed(libc::EINVAL),
        deadline => semaphore.wait_by(|held| cancel::wait(held, held.number(), deadline)),
    };
    sem_clockwait(semaphore, clock: libc::clockid_t, time: *const libc::timespec) => match Deadline::new(clock, time) {
        None => failed(libc::EINVAL),
        deadline => semaphore.wait_by(|held| cancel::wait(held, held.number(), deadline)),
    };
    sem_getvalue(semaphore, place: *mut c_int) => {
        let value = semaphore.value.load(Relaxed) as c_int;
        // SAFETY: the caller passes a place for the value.
        unsafe { place.write(value) };
        0
    };
}

/// `pthread_once_t`.
#[repr(C)]
struct Once {
    state: AtomicI32,
}

const ONCE_BEGUN: i32 = 1;
const ONCE_DONE: i32 = 2;

/// Resets the state when an exception leaves the function, so that another thread may try.
struct Attempt<'a> {
    once: &'a Once,
    becomes: i32,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        ONCE.hold(|held| {
            self.once.state.store(self.becomes, Relaxed);
            held.tell_all();
        });
    }
}

/// pthread_once(3).
///
/// # Safety
/// As of pthread_once(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn pthread_once(
    once: *mut c_void,
    function: extern "C-unwind" fn(),
) -> c_int {
    if !is_programs(once) {
        // SAFETY: the caller's.
        return unsafe {
            next!(fn pthread_once(*mut c_void, extern "C-unwind" fn()) -> c_int)(once, function)
        };
    }
    // SAFETY: the caller's.
    let once = unsafe { object::<Once>(once) };
    if once.state.load(Relaxed) == ONCE_DONE {
        return 0;
    }
    let is_mine = ONCE.hold(|held| {
        while once.state.load(Relaxed) == ONCE_BEGUN {
            held.wait();
        }
        let is_mine = once.state.load(Relaxed) == 0;
        if is_mine {
            once.state.store(ONCE_BEGUN, Relaxed);
        }
        is_mine
    });
    if is_mine {
        let mut attempt = Attempt { once, becomes: 0 };
        function();
        attempt.becomes = ONCE_DONE;
    }
    0
}
