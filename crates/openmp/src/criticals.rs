//! `critical`, and `atomic` where no instruction will do.

use std::ffi::c_void;

use crate::job;
use crate::runtime::{Lock, in_program};

/// Takes a lock of the job's block; there is none where Hiroba does not run the program.
fn of_job(choose: impl FnOnce(&'static job::Job) -> &'static Lock) -> Option<&'static Lock> {
    job::job().filter(|_| in_program()).map(choose)
}

/// The lock of a name: compilers make a word for each, shared and 0 at first.
///
/// # Safety
/// `place` is such a word.
pub(crate) unsafe fn named<'a>(place: *mut *mut c_void) -> &'a Lock {
    // SAFETY: the caller's; a lock is one word of 4 bytes.
    unsafe { &*place.cast::<Lock>() }
}

/// Defines pairs of functions that take and give up a lock.
macro_rules! pairs {
    ($($start:ident $end:ident $lock:ident;)*) => { $(
        /// Begins code that one thread runs at a time.
        #[unsafe(no_mangle)]
        pub(crate) extern "C-unwind" fn $start() {
            of_job(|job| &job.team.$lock).into_iter().for_each(Lock::lock);
        }

        /// Ends it.
        #[unsafe(no_mangle)]
        pub(crate) extern "C-unwind" fn $end() {
            of_job(|job| &job.team.$lock).into_iter().for_each(Lock::unlock);
        }
    )* };
}

pairs! {
    GOMP_critical_start GOMP_critical_end critical;
    GOMP_atomic_start GOMP_atomic_end atomic;
}

/// Begins code that one thread runs at a time, among all code of the same name.
///
/// # Safety
/// `place` is the name's own word.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn GOMP_critical_name_start(place: *mut *mut c_void) {
    if in_program() {
        // SAFETY: the caller's.
        unsafe { named(place) }.lock();
    }
}

/// Ends it.
///
/// # Safety
/// `place` is the name's own word.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn GOMP_critical_name_end(place: *mut *mut c_void) {
    if in_program() {
        // SAFETY: the caller's.
        unsafe { named(place) }.unlock();
    }
}
