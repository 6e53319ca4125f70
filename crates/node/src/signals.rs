//! Signals are held back while a thread is inside the runtime with a lock in hand: a handler of the program's that
//! touched shared memory there would wait for the lock its own thread holds.

use std::mem::MaybeUninit;
use std::ptr;

/// All signals but those that the processor raises are blocked for the calling thread until this is dropped.
#[derive(Debug)]
pub(crate) struct SignalsHeld {
    before: libc::sigset_t,
}

impl SignalsHeld {
    pub(crate) fn hold() -> SignalsHeld {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `all` is writable memory for one signal set, which the call fills in.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        // SAFETY: the call above has filled it in.
        let mut all = unsafe { all.assume_init() };
        for raised_by_processor in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP] {
            // SAFETY: `all` is an initialised signal set.
            unsafe { libc::sigdelset(&mut all, raised_by_processor) };
        }
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: both sets are valid for the call, which fills in `before`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &all, before.as_mut_ptr()) };
        // SAFETY: pthread_sigmask cannot fail with SIG_SETMASK and valid sets, so it has filled `before` in.
        SignalsHeld { before: unsafe { before.assume_init() } }
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        // SAFETY: `before` is the set that pthread_sigmask gave us.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut()) };
    }
}
