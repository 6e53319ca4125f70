//! Signals are held back while a thread is inside the runtime with a lock in hand: a handler of the program's that
//! touched shared memory there would wait for the lock its own thread holds.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;

thread_local! {
    /// How many guards of this thread are alive: only the outermost costs system calls.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// All signals but those that the processor raises are blocked for the calling thread until this is dropped. Guards may nest;
/// they are dropped in the reverse order of their making.
#[derive(Debug)]
pub(crate) struct SignalsHeld {
    /// What to restore, if this is the outermost guard.
    before: Option<libc::sigset_t>,
}

impl SignalsHeld {
    pub(crate) fn hold() -> SignalsHeld {
        let depth = DEPTH.get();
        let before = (depth == 0).then(block_all);
        // From here on no handler comes in between that would look at the depth.
        DEPTH.set(depth + 1);
        SignalsHeld { before }
    }

    /// For a fault handler, which the kernel calls with signals blocked.
    pub(crate) fn by_the_kernel() -> SignalsHeld {
        DEPTH.set(DEPTH.get() + 1);
        SignalsHeld { before: None }
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        if let Some(before) = &self.before {
            // SAFETY: `before` is the set that pthread_sigmask gave us.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, ptr::null_mut()) };
        }
    }
}

fn block_all() -> libc::sigset_t {
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
    unsafe { before.assume_init() }
}
