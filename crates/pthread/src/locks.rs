//! Mutexes, reader–writer locks and spin locks.
//!
//! A mutex is a lock of Hiroba. Its number is where the C library would keep its futex word, which every
//! initialiser sets to 0: no number yet. The holder is noted only for the kinds that check it.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::control::{Deadline, Held, LOOK_INTERVAL, Monitor, Waiting, object};
use crate::face;
use crate::next::next;
use crate::record::this_thread;
use crate::stacks::{is_programs, privately};

/// `pthread_mutex_t`: the kind is at the C library's offset, for static initialisers.
#[repr(C)]
pub(crate) struct Mutex {
    number: AtomicU32,
    depth: AtomicU32,
    owner: AtomicU64,
    kind: AtomicI32,
}

const KIND_MASK: i32 = 3;
const RECURSIVE: i32 = 1;
const ERROR_CHECKING: i32 = 2;
/// Robust mutexes, and those that inherit or bound a priority (`pthreadP.h` of glibc).
const KINDS_REFUSED: i32 = 16 | 32 | 64;

impl Mutex {
    fn notes_owner(&self) -> bool {
        matches!(self.kind.load(Relaxed) & KIND_MASK, RECURSIVE | ERROR_CHECKING)
    }

    fn lock_number(&self) -> u32 {
        Monitor::of(&self.number).number()
    }

    /// Locks the mutex once more if the calling thread holds it already and its kind notes the holder.
    /// Returns the result of the call, or `None` if the thread must wait for the lock.
    fn again(&self) -> Option<c_int> {
        if !self.notes_owner() || self.owner.load(Relaxed) != this_thread() {
            return None;
        }
        if self.kind.load(Relaxed) & KIND_MASK == ERROR_CHECKING {
            return Some(libc::EDEADLK);
        }
        let depth = self.depth.load(Relaxed);
        if depth == u32::MAX {
            return Some(libc::EAGAIN);
        }
        self.depth.store(depth + 1, Relaxed);
        Some(0)
    }

    fn note_owner(&self) {
        if self.notes_owner() {
            self.owner.store(this_thread(), Relaxed);
            self.depth.store(1, Relaxed);
        }
    }

    pub(crate) fn lock(&self) -> c_int {
        if let Some(said) = self.again() {
            return said;
        }
        lock(self.lock_number());
        self.note_owner();
        0
    }

    fn try_lock(&self) -> c_int {
        if let Some(said) = self.again() {
            return if said == libc::EDEADLK { libc::EBUSY } else { said };
        }
        if !try_lock(self.lock_number()) {
            return libc::EBUSY;
        }
        self.note_owner();
        0
    }

    fn lock_until(&self, deadline: Option<Deadline>) -> c_int {
        let Some(deadline) = deadline else { return libc::EINVAL };
        loop {
            match self.try_lock() {
                libc::EBUSY => {}
                other => return other,
            }
            if self.again_is_deadlock() {
                return libc::EDEADLK;
            }
            let Some(left) = deadline.left() else { return libc::ETIMEDOUT };
            privately(|| std::thread::sleep(left.min(LOOK_INTERVAL)));
        }
    }

    fn again_is_deadlock(&self) -> bool {
        self.kind.load(Relaxed) & KIND_MASK == ERROR_CHECKING && self.owner.load(Relaxed) == this_thread()
    }

    pub(crate) fn unlock(&self) -> c_int {
        if self.notes_owner() {
            if self.owner.load(Relaxed) != this_thread() {
                return libc::EPERM;
            }
            let depth = self.depth.load(Relaxed) - 1;
            self.depth.store(depth, Relaxed);
            if depth > 0 {
                return 0;
            }
            self.owner.store(0, Relaxed);
        }
        unlock(self.lock_number());
        0
    }
}

/// Takes a lock, without the private stack if no other node wants it.
fn lock(number: u32) {
    if face::hiroba_take_leased(number) <= 0 {
        privately(|| face::hiroba_lock(number));
    }
}

fn try_lock(number: u32) -> bool {
    match face::hiroba_take_leased(number) {
        -1 => privately(|| face::hiroba_trylock(number)) == 0,
        taken => taken != 0,
    }
}

fn unlock(number: u32) {
    if face::hiroba_give_back_leased(number) != 0 {
        privately(|| face::hiroba_unlock(number));
    }
}

/// pthread_mutex_init(3).
///
/// # Safety
/// As of pthread_mutex_init(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn pthread_mutex_init(
    mutex: *mut c_void,
    attributes: *const c_void,
) -> c_int {
    // SAFETY: the caller's.
    let error =
        unsafe { next!(fn pthread_mutex_init(*mut c_void, *const c_void) -> c_int)(mutex, attributes) };
    if error != 0 || !is_programs(mutex) {
        return error;
    }
    // SAFETY: the caller's, and the C library has just initialised it.
    let mutex = unsafe { object::<Mutex>(mutex) };
    if mutex.kind.load(Relaxed) & KINDS_REFUSED != 0 {
        return libc::ENOTSUP;
    }
    0
}

/// Defines functions of one mutex. Threads of the program use these, others those of the C library.
macro_rules! of_mutex {
    ($($(#[$meta:meta])* $name:ident => $act:ident;)*) => { $(
        $(#[$meta])*
        /// See the manual.
        ///
        /// # Safety
        /// The mutex is initialised.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name(mutex: *mut c_void) -> c_int {
            if !is_programs(mutex) {
                // SAFETY: the caller's.
                return unsafe { next!(fn $name(*mut c_void) -> c_int)(mutex) };
            }
            // SAFETY: the caller's.
            unsafe { object::<Mutex>(mutex) }.$act()
        }
    )* };
}

of_mutex! {
    pthread_mutex_lock => lock;
    pthread_mutex_trylock => try_lock;
    pthread_mutex_unlock => unlock;
}

/// pthread_mutex_destroy(3).
///
/// # Safety
/// As of pthread_mutex_destroy(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn pthread_mutex_destroy(mutex: *mut c_void) -> c_int {
    if !is_programs(mutex) {
        // SAFETY: the caller's.
        return unsafe { next!(fn pthread_mutex_destroy(*mut c_void) -> c_int)(mutex) };
    }
    // SAFETY: the caller's.
    unsafe { object::<Mutex>(mutex) }.number.store(0, Relaxed);
    0
}

/// pthread_mutex_timedlock(3).
///
/// # Safety
/// As of pthread_mutex_timedlock(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn pthread_mutex_timedlock(
    mutex: *mut c_void,
    time: *const libc::timespec,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { pthread_mutex_clocklock(mutex, libc::CLOCK_REALTIME, time) }
}

/// pthread_mutex_clocklock(3).
///
/// # Safety
/// As of pthread_mutex_clocklock(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn pthread_mutex_clocklock(
    mutex: *mut c_void,
    clock: libc::clockid_t,
    time: *const libc::timespec,
) -> c_int {
    if !is_programs(mutex) {
        type Time = *const libc::timespec;
        // SAFETY: the caller's.
        return unsafe {
            next!(fn pthread_mutex_clocklock(*mut c_void, libc::clockid_t, Time) -> c_int)(mutex, clock, time)
        };
    }
    // SAFETY: the caller's.
    unsafe { object::<Mutex>(mutex) }.lock_until(Deadline::new(clock, time))
}

/// `pthread_rwlock_t`. Readers overtake waiting writers, because a thread may read-lock twice.
#[repr(C)]
struct ReadWriteLock {
    number: AtomicU32,
    readers: AtomicU32,
    writer: AtomicU64,
    waiting: Waiting,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    Read,
    Write,
}

impl ReadWriteLock {
    fn is_free_for(&self, wish: Wish) -> bool {
        self.writer.load(Relaxed) == 0 && (wish == Wish::Read || self.readers.load(Relaxed) == 0)
    }

    fn take(&self, wish: Wish) {
        match wish {
            Wish::Read => self.readers.store(self.readers.load(Relaxed) + 1, Relaxed),
            Wish::Write => self.writer.store(this_thread(), Relaxed),
        }
    }

    fn lock_by(&self, wish: Wish, mut wait: impl FnMut(Held) -> c_int) -> c_int {
        Monitor::of(&self.number).hold(|held| {
            if self.writer.load(Relaxed) == this_thread() {
                return libc::EDEADLK;
            }
            while !self.is_free_for(wish) {
                match self.waiting.during(|| wait(held)) {
                    0 => {}
                    error => return error,
                }
            }
            self.take(wish);
            0
        })
    }

    fn lock(&self, wish: Wish) -> c_int {
        self.lock_by(wish, |held| {
            held.wait();
            0
        })
    }

    fn try_lock(&self, wish: Wish) -> c_int {
        match self.lock_by(wish, |_| libc::EBUSY) {
            libc::EDEADLK => libc::EBUSY,
            other => other,
        }
    }

    fn lock_until(&self, wish: Wish, clock: libc::clockid_t, time: *const libc::timespec) -> c_int {
        let Some(deadline) = Deadline::new(clock, time) else { return libc::EINVAL };
        self.lock_by(
            wish,
            |held| if held.wait_until(held.number(), Some(deadline)) { 0 } else { libc::ETIMEDOUT },
        )
    }

    fn unlock(&self) -> c_int {
        Monitor::of(&self.number).hold(|held| {
            if self.writer.load(Relaxed) != 0 {
                self.writer.store(0, Relaxed);
            } else {
                self.readers.store(self.readers.load(Relaxed).saturating_sub(1), Relaxed);
            }
            self.waiting.tell_all(held);
            0
        })
    }
}

/// Defines functions of one object of a kind. Threads of the program use these, others those of the C
/// library.
macro_rules! of_object {
    ($kind:ty: $($name:ident($object:ident $(, $argument:ident: $type:ty)*) => $act:expr;)*) => { $(
        /// See the manual.
        ///
        /// # Safety
        /// The object is initialised, and pointers are valid, as the manual says.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name($object: *mut c_void $(, $argument: $type)*) -> c_int {
            if !is_programs($object) {
                // SAFETY: the caller's.
                return unsafe { next!(fn $name(*mut c_void $(, $type)*) -> c_int)($object $(, $argument)*) };
            }
            // SAFETY: the caller's.
            let $object = unsafe { object::<$kind>($object) };
            $act
        }
    )* };
}

pub(crate) use of_object;

of_object! { ReadWriteLock:
    pthread_rwlock_rdlock(lock) => lock.lock(Wish::Read);
    pthread_rwlock_wrlock(lock) => lock.lock(Wish::Write);
    pthread_rwlock_tryrdlock(lock) => lock.try_lock(Wish::Read);
    pthread_rwlock_trywrlock(lock) => lock.try_lock(Wish::Write);
    pthread_rwlock_timedrdlock(lock, time: *const libc::timespec) =>
        lock.lock_until(Wish::Read, libc::CLOCK_REALTIME, time);
    pthread_rwlock_timedwrlock(lock, time: *const libc::timespec) =>
        lock.lock_until(Wish::Write, libc::CLOCK_REALTIME, time);
    pthread_rwlock_clockrdlock(lock, clock: libc::clockid_t, time: *const libc::timespec) =>
        lock.lock_until(Wish::Read, clock, time);
    pthread_rwlock_clockwrlock(lock, clock: libc::clockid_t, time: *const libc::timespec) =>
        lock.lock_until(Wish::Write, clock, time);
    pthread_rwlock_unlock(lock) => lock.unlock();
    pthread_rwlock_destroy(lock) => { lock.number.store(0, Relaxed); 0 };
}

/// `pthread_spinlock_t`: the number of a lock.
#[repr(C)]
struct Spin {
    number: AtomicU32,
}

impl Spin {
    fn lock_number(&self) -> u32 {
        Monitor::of(&self.number).number()
    }
}

of_object! { Spin:
    pthread_spin_init(spin, _shared: c_int) => { spin.number.store(0, Relaxed); 0 };
    pthread_spin_destroy(spin) => { spin.number.store(0, Relaxed); 0 };
    pthread_spin_lock(spin) => { lock(spin.lock_number()); 0 };
    pthread_spin_trylock(spin) => if try_lock(spin.lock_number()) { 0 } else { libc::EBUSY };
    pthread_spin_unlock(spin) => { unlock(spin.lock_number()); 0 };
}
