//! Signals are held back while a thread is inside the runtime with a lock in hand: a handler of the program's that
//! touched shared memory there would wait for the lock its own thread holds. Where faults come as events it is the service
//! thread that would wait for it, and this node would answer nobody.
//!
//! That holds for every lock that serving a fault may need, the allocator's among them (`capi/src/allocator.rs`).

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;

thread_local! {
    /// How many guards of this thread are alive: only the outermost costs system calls.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// What to restore when a fork that the calling thread has begun is over.
    static BEFORE_FORK: Cell<Option<libc::sigset_t>> = const { Cell::new(None) };
}

/// All signals but those that the processor raises are blocked for the calling thread until this is dropped. Guards may nest;
/// they are dropped in the reverse order of their making.
#[derive(Debug)]
pub struct SignalsHeld {
    /// What to restore, if this is the outermost guard.
    before: Option<libc::sigset_t>,
}

impl SignalsHeld {
    /// Holds the calling thread's signals back. Costs no system call inside another guard.
    pub fn hold() -> SignalsHeld {
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

/// Holds signals back from now on until [`release_signals_after_fork`], in the parent and in the child: for what is locked
/// across a fork.
pub fn hold_signals_across_fork() {
    let mut held = SignalsHeld::hold();
    BEFORE_FORK.set(held.before.take());
    std::mem::forget(held); // it counts until the fork is over
}

/// The end of what [`hold_signals_across_fork`] began.
pub fn release_signals_after_fork() {
    drop(SignalsHeld { before: BEFORE_FORK.take() });
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
