//! The threads of C11, which the C library implements by its own pthreads without calling them by name.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use crate::keys;
use crate::locks;
use crate::next::next;
use crate::stacks::{in_program, is_programs};
use crate::threads;
use crate::waits;

// <threads.h> of glibc.
const SUCCESS: c_int = 0;
const BUSY: c_int = 1;
const ERROR: c_int = 2;
const NO_MEMORY: c_int = 3;
const TIMED_OUT: c_int = 4;

/// Converts an error of pthreads to one of C11.
fn result(error: c_int) -> c_int {
    match error {
        0 => SUCCESS,
        libc::EBUSY => BUSY,
        libc::ENOMEM | libc::EAGAIN => NO_MEMORY,
        libc::ETIMEDOUT => TIMED_OUT,
        _ => ERROR,
    }
}

/// thrd_create(3).
///
/// # Safety
/// `place` is a place for the thread; `routine` may be called with `argument`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn thrd_create(place: *mut u64, routine: usize, argument: *mut c_void) -> c_int {
    if in_program() {
        return result(threads::create(place, ptr::null(), routine as u64, argument, true));
    }
    // SAFETY: the caller's.
    unsafe { next!(fn thrd_create(*mut u64, usize, *mut c_void) -> c_int)(place, routine, argument) }
}

/// thrd_join(3).
///
/// # Safety
/// `place` is NULL or a place for the result.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn thrd_join(thread: u64, place: *mut c_int) -> c_int {
    if !in_program() {
        // SAFETY: the caller's.
        return unsafe { next!(fn thrd_join(u64, *mut c_int) -> c_int)(thread, place) };
    }
    let mut value = ptr::null_mut();
    let error = threads::join(thread, Some(&mut value), threads::for_ever);
    if error == 0 && !place.is_null() {
        // SAFETY: the caller's.
        unsafe { place.write(value.addr() as c_int) };
    }
    result(error)
}

/// thrd_detach(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn thrd_detach(thread: u64) -> c_int {
    if in_program() {
        return result(threads::detach(thread));
    }
    // SAFETY: any number may be passed.
    unsafe { next!(fn thrd_detach(u64) -> c_int)(thread) }
}

/// thrd_current(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn thrd_current() -> u64 {
    if in_program() {
        return crate::record::this_thread();
    }
    // SAFETY: it has no arguments.
    unsafe { next!(fn thrd_current() -> u64)() }
}

/// thrd_exit(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn thrd_exit(value: c_int) -> ! {
    // SAFETY: a thread may end with any value.
    unsafe { threads::pthread_exit(ptr::without_provenance_mut(value as u32 as usize)) }
}

/// mtx_init(3): kinds 0 and 1 are those of pthreads; 2, for deadlines, makes no difference.
///
/// # Safety
/// `mutex` is room for a mutex.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn mtx_init(mutex: *mut c_void, kind: c_int) -> c_int {
    if !is_programs(mutex) {
        // SAFETY: the caller's.
        return unsafe { next!(fn mtx_init(*mut c_void, c_int) -> c_int)(mutex, kind) };
    }
    // SAFETY: the caller's; no attributes are the usual ones.
    let error = unsafe { locks::pthread_mutex_init(mutex, ptr::null()) };
    // SAFETY: the caller's, and it is initialised.
    let word = unsafe { mutex.cast::<c_int>().add(KIND_WORD) };
    // SAFETY: as above.
    unsafe { word.write(kind & 1) };
    result(error)
}

/// The offset of a mutex's kind, in words (`locks::Mutex`).
const KIND_WORD: usize = 4;

/// Defines functions of C11 by the corresponding ones of pthreads.
macro_rules! same {
    ($($name:ident($($argument:ident: $type:ty),*) => $act:expr;)*) => { $(
        /// See the manual.
        ///
        /// # Safety
        /// The objects are initialised, and pointers are valid.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the caller's.
            result(unsafe { $act })
        }
    )* };
}

same! {
    mtx_lock(mutex: *mut c_void) => locks::pthread_mutex_lock(mutex);
    mtx_trylock(mutex: *mut c_void) => locks::pthread_mutex_trylock(mutex);
    mtx_timedlock(mutex: *mut c_void, time: *const libc::timespec) => locks::pthread_mutex_timedlock(mutex, time);
    mtx_unlock(mutex: *mut c_void) => locks::pthread_mutex_unlock(mutex);
    cnd_init(cond: *mut c_void) => waits::pthread_cond_init(cond, ptr::null());
    cnd_signal(cond: *mut c_void) => waits::pthread_cond_signal(cond);
    cnd_broadcast(cond: *mut c_void) => waits::pthread_cond_broadcast(cond);
    cnd_wait(cond: *mut c_void, mutex: *mut c_void) => waits::pthread_cond_wait(cond, mutex);
    cnd_timedwait(cond: *mut c_void, mutex: *mut c_void, time: *const libc::timespec) =>
        waits::pthread_cond_timedwait(cond, mutex, time);
    tss_create(place: *mut c_uint, destructor: usize) => keys::pthread_key_create(place, destructor);
    tss_set(key: c_uint, value: *mut c_void) => keys::pthread_setspecific(key, value);
}

/// tss_get(3).
///
/// # Safety
/// The key exists.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn tss_get(key: c_uint) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { keys::pthread_getspecific(key) }
}

/// tss_delete(3).
///
/// # Safety
/// The key exists.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn tss_delete(key: c_uint) {
    // SAFETY: the caller's.
    unsafe { keys::pthread_key_delete(key) };
}

/// mtx_destroy(3).
///
/// # Safety
/// The mutex is initialised.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn mtx_destroy(mutex: *mut c_void) {
    // SAFETY: the caller's.
    unsafe { locks::pthread_mutex_destroy(mutex) };
}

/// cnd_destroy(3).
///
/// # Safety
/// The condition variable is initialised.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn cnd_destroy(cond: *mut c_void) {
    // SAFETY: the caller's.
    unsafe { waits::pthread_cond_destroy(cond) };
}

/// call_once(3).
///
/// # Safety
/// The flag is initialised.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn call_once(flag: *mut c_void, function: extern "C-unwind" fn()) {
    // SAFETY: the caller's.
    unsafe { waits::pthread_once(flag, function) };
}
