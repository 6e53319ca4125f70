//! Signals are deferred while a thread is inside the runtime with a lock. A handler of the program that
//! touched shared memory there would wait for the lock that its own thread has. Where faults come as events,
//! the service thread would wait for it, and this node would answer no other.
//!
//! That applies to every lock that serving a fault may need, including the allocator's
//! (`capi/src/allocator.rs`).
//!
//! Blocking signals costs two system calls, and a program without handlers has nothing to defer. So its
//! threads only count themselves while they are inside. A thread that installs the first handler announces it
//! ([`expect_handler_of`]) and waits until all threads that are inside have left, or have blocked their
//! signals after all. From then on every thread blocks them.
//!
//! A library that builds on this one may have handlers that are not announced. Such a handler touches shared
//! memory and calls the runtime only where it has interrupted a thread outside
//! ([`SignalsDeferred::is_live`]). What it has to do elsewhere, the thread does when it leaves
//! ([`when_outside`]).

use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// True if the program has, or is about to have, a handler for a signal that can be deferred.
static HAS_HANDLERS: AtomicBool = AtomicBool::new(false);

/// Number of threads that are inside without having blocked signals.
static UNBLOCKED_INSIDE: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static DEFERRAL: Deferral = const {
        Deferral {
            depth: Cell::new(0),
            how: Cell::new(How::NotAtAll),
            is_crossing: Cell::new(false),
            when_outside: Cell::new(None),
        }
    };
    /// How the calling thread deferred signals when it began a fork.
    static BEFORE_FORK: Cell<How> = const { Cell::new(How::NotAtAll) };
}

/// How the calling thread defers signals.
struct Deferral {
    /// Number of live guards: only the outermost has an effect.
    depth: Cell<u32>,
    how: Cell<How>,
    /// True while the thread begins or ends its deferral.
    is_crossing: Cell<bool>,
    /// What the thread does when it leaves.
    when_outside: Cell<Option<extern "C" fn()>>,
}

/// How a thread defers signals.
#[derive(Clone, Copy, Debug)]
enum How {
    /// Not at all, or the kernel does it for a handler.
    NotAtAll,
    /// By having counted itself, because there are no handlers.
    Counted,
    /// By its mask; contains the mask to restore.
    Blocked(u64),
}

/// Defers all signals of the calling thread, except those that the processor raises, until it is dropped.
/// Guards may nest. They are dropped in the reverse order of their making, by the thread that made them.
#[derive(Debug)]
pub struct SignalsDeferred {
    _of_this_thread: PhantomData<*const ()>,
}

impl SignalsDeferred {
    const GUARD: SignalsDeferred = SignalsDeferred { _of_this_thread: PhantomData };

    /// Defers the calling thread's signals. Costs system calls only where the program handles signals, and
    /// only as the outermost guard.
    pub fn defer() -> SignalsDeferred {
        DEFERRAL.with(|deferral| {
            if deferral.depth.get() > 0 {
                return deferral.depth.set(deferral.depth.get() + 1);
            }
            deferral.is_crossing.set(true);
            deferral.how.set(count_or_block());
            // From here on no handler that would defer signals itself can run.
            deferral.depth.set(1);
            deferral.is_crossing.set(false);
        });
        SignalsDeferred::GUARD
    }

    /// Returns true if the calling thread defers signals.
    pub fn is_live() -> bool {
        DEFERRAL.with(|deferral| deferral.depth.get() > 0 || deferral.is_crossing.get())
    }

    /// Defers signals with the thread's mask, which threads that it starts inherit.
    pub(crate) fn block() -> SignalsDeferred {
        let deferred = SignalsDeferred::defer();
        deferred.block_now();
        deferred
    }

    /// Makes the guard of a fault handler, which the kernel calls with signals blocked.
    pub(crate) fn by_the_kernel() -> SignalsDeferred {
        DEFERRAL.with(|deferral| deferral.depth.set(deferral.depth.get() + 1));
        SignalsDeferred::GUARD
    }

    /// Lets a thread that installs a handler continue. Called by threads that stay inside for long.
    pub(crate) fn heed_handlers(&self) {
        if HAS_HANDLERS.load(Ordering::Relaxed) {
            self.block_now();
        }
    }

    fn block_now(&self) {
        DEFERRAL.with(|deferral| {
            if let How::Counted = deferral.how.get() {
                deferral.how.set(How::Blocked(block_all()));
                UNBLOCKED_INSIDE.fetch_sub(1, Ordering::SeqCst);
            }
        });
    }
}

impl Drop for SignalsDeferred {
    fn drop(&mut self) {
        DEFERRAL.with(|deferral| {
            if deferral.depth.get() > 1 {
                return deferral.depth.set(deferral.depth.get() - 1);
            }
            deferral.is_crossing.set(true);
            deferral.depth.set(0);
            release(deferral.how.replace(How::NotAtAll));
            deferral.is_crossing.set(false);
            if let Some(act) = deferral.when_outside.take() {
                act();
            }
        });
    }
}

/// Has the calling thread, which is inside, call a function when it leaves. For handlers that are not
/// announced.
pub fn when_outside(act: extern "C" fn()) {
    DEFERRAL.with(|deferral| deferral.when_outside.set(Some(act)));
}

fn count_or_block() -> How {
    if !HAS_HANDLERS.load(Ordering::Relaxed) {
        // SYNC POINT: pairs with `expect_handler_of`, which announces handlers and then reads the count.
        // Either it sees this thread, or this thread sees the announcement.
        UNBLOCKED_INSIDE.fetch_add(1, Ordering::SeqCst);
        if !HAS_HANDLERS.load(Ordering::SeqCst) {
            return How::Counted;
        }
        UNBLOCKED_INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
    How::Blocked(block_all())
}

fn release(how: How) {
    match how {
        How::NotAtAll => {}
        How::Counted => _ = UNBLOCKED_INSIDE.fetch_sub(1, Ordering::SeqCst),
        How::Blocked(before) => set_mask(&before, ptr::null_mut()),
    }
}

/// Announces that the program is about to install a handler for a signal. Returns when no thread is inside
/// the runtime with that signal unblocked. Must not be called from inside.
pub fn expect_handler_of(number: libc::c_int) {
    if can_be_deferred(number) && !HAS_HANDLERS.swap(true, Ordering::SeqCst) {
        // SYNC POINT: with `count_or_block`. Threads that are inside leave within microseconds, or heed the
        // announcement.
        while UNBLOCKED_INSIDE.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
    }
}

/// Looks for handlers that were installed before the runtime could see it.
pub(crate) fn look_for_handlers() {
    for number in 1..=libc::SIGRTMAX() {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the kernel's own structure is shorter and also starts with the handler; it writes at most
        // this one.
        let asked = unsafe {
            let (mask_bytes, none) = (size_of::<u64>(), ptr::null::<libc::sigaction>());
            libc::syscall(libc::SYS_rt_sigaction, number, none, action.as_mut_ptr(), mask_bytes)
        };
        // SAFETY: all zeroes is a valid action, whether or not the call has filled it in.
        let handler = unsafe { action.assume_init() }.sa_sigaction;
        if asked == 0 && ![libc::SIG_DFL, libc::SIG_IGN].contains(&handler) {
            expect_handler_of(number);
        }
    }
}

/// Holds signals from now on until [`release_signals_after_fork`], in the parent and in the child. Protects
/// locks that are held across a fork.
pub fn defer_signals_across_fork() {
    let deferred = SignalsDeferred::block();
    DEFERRAL.with(|deferral| BEFORE_FORK.set(deferral.how.replace(How::NotAtAll)));
    std::mem::forget(deferred); // it counts until the fork is over
}

/// Ends what [`defer_signals_across_fork`] began.
pub fn release_signals_after_fork() {
    DEFERRAL.with(|deferral| deferral.how.set(BEFORE_FORK.replace(How::NotAtAll)));
    drop(SignalsDeferred::GUARD);
}

/// Does the same in the child, which has none of the parent's other threads.
pub fn release_signals_in_child() {
    UNBLOCKED_INSIDE.store(0, Ordering::SeqCst);
    release_signals_after_fork();
}

fn can_be_deferred(number: libc::c_int) -> bool {
    (1..=64).contains(&number) && HELD & (1 << (number - 1)) != 0
}

/// Signals that are never deferred: those that the processor raises, and the C library's two internal ones
/// (cancellation, and changes of user in all threads), whose handlers touch no shared memory and which the
/// library's own calls never block.
const NEVER_HELD: [libc::c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, 32, 33];

/// The kernel's mask of the signals that are deferred.
const HELD: u64 = {
    let (mut mask, mut index) = (u64::MAX, 0);
    while index < NEVER_HELD.len() {
        mask &= !(1 << (NEVER_HELD[index] - 1));
        index += 1;
    }
    mask
};

fn block_all() -> u64 {
    let mut before = 0;
    set_mask(&HELD, &raw mut before);
    before
}

/// Sets the calling thread's mask by the system call itself, because the C face intercepts the C library's
/// function.
fn set_mask(mask: &u64, before: *mut u64) {
    let (set, new, bytes) = (libc::SIG_SETMASK, ptr::from_ref(mask), size_of::<u64>());
    // SAFETY: the kernel reads one mask of the given size and writes the other, which is null or the caller's
    // local. It cannot fail.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, set, new, before, bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The deferred signals, except the two that the kernel never blocks.
    const ALL: u64 = HELD & !(1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1));

    fn blocked() -> u64 {
        let mut mask = 0;
        // SAFETY: only queries the mask, into a local of the given size.
        unsafe {
            let (nothing, size) = (ptr::null::<u64>(), size_of::<u64>());
            libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, nothing, &raw mut mask, size)
        };
        mask & HELD
    }

    /// One test, because an announcement is permanent for the process.
    #[test]
    fn signals_are_blocked_once_the_program_handles_one_and_whoever_is_inside_is_waited_for() {
        assert!(
            can_be_deferred(libc::SIGINT)
                && can_be_deferred(64)
                && !can_be_deferred(65)
                && !can_be_deferred(0)
        );
        assert!(!can_be_deferred(libc::SIGSEGV) && !can_be_deferred(33));
        let before = blocked();
        expect_handler_of(libc::SIGBUS);
        let (inside, announced) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let deferred = SignalsDeferred::defer();
                let nested = SignalsDeferred::defer();
                assert_eq!(blocked(), before, "there is no handler yet");
                inside.store(true, Ordering::SeqCst);
                while !HAS_HANDLERS.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                assert!(!announced.load(Ordering::SeqCst), "a thread is inside");
                nested.heed_handlers();
                assert_eq!(blocked(), ALL);
                drop(nested);
                assert_eq!(blocked(), ALL);
                drop(deferred);
                assert_eq!(blocked(), before);
            });
            while !inside.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            expect_handler_of(libc::SIGUSR1);
            announced.store(true, Ordering::SeqCst);
        });
        let deferred = SignalsDeferred::defer();
        assert_eq!(blocked(), ALL);
        drop(deferred);
        let deferred = SignalsDeferred::by_the_kernel();
        drop(SignalsDeferred::defer());
        assert_eq!(blocked(), before, "the guard leaves the mask to the kernel");
        drop(deferred);
    }

    #[test]
    fn a_handler_that_is_not_announced_acts_when_its_thread_leaves() {
        thread_local! {
            static SEEN: Cell<Option<bool>> = const { Cell::new(None) };
        }
        extern "C" fn act() {
            SEEN.set(Some(SignalsDeferred::is_live()));
        }
        let deferred = SignalsDeferred::defer();
        let nested = SignalsDeferred::defer();
        when_outside(act);
        drop(nested);
        assert_eq!(SEEN.get(), None);
        drop(deferred);
        assert_eq!(SEEN.take(), Some(false), "it runs once the thread is outside");
        drop(SignalsDeferred::defer());
        assert_eq!(SEEN.get(), None, "it runs once");
    }
}
