//! Signals are held back while a thread is inside the runtime with a lock in hand: a handler of the program's that
//! touched shared memory there would wait for the lock its own thread holds. Where faults come as events it is the service
//! thread that would wait for it, and this node would answer nobody.
//!
//! That holds for every lock that serving a fault may need, the allocator's among them (`capi/src/allocator.rs`).
//!
//! To block signals costs two system calls, and a program that handles none has nothing to hold back. So its
//! threads only count themselves while they are inside. Whoever installs the first handler announces it
//! ([`expect_handler_of`]) and waits until all threads that are inside have left, or have blocked their
//! signals after all. From then on every thread blocks them.

use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The program has a handler for a signal that can be held, or is about to have one.
static HAS_HANDLERS: AtomicBool = AtomicBool::new(false);

/// Threads that are inside with nothing blocked.
static UNBLOCKED_INSIDE: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static HOLD: Hold = const { Hold { depth: Cell::new(0), how: Cell::new(How::NotAtAll) } };
    /// How the calling thread held signals when it began a fork.
    static BEFORE_FORK: Cell<How> = const { Cell::new(How::NotAtAll) };
}

/// What the calling thread holds back.
struct Hold {
    /// How many guards are alive: only the outermost does anything.
    depth: Cell<u32>,
    how: Cell<How>,
}

/// How a thread holds signals back.
#[derive(Clone, Copy, Debug)]
enum How {
    /// It does not, or the kernel does it for a handler.
    NotAtAll,
    /// By having counted itself, as there are no handlers.
    Counted,
    /// By its mask; what to restore.
    Blocked(u64),
}

/// All signals but those that the processor raises are held back from the calling thread until this is
/// dropped. Guards may nest; they are dropped in the reverse order of their making, by the thread that made
/// them.
#[derive(Debug)]
pub struct SignalsHeld {
    _of_this_thread: PhantomData<*const ()>,
}

impl SignalsHeld {
    const GUARD: SignalsHeld = SignalsHeld { _of_this_thread: PhantomData };

    /// Holds the calling thread's signals back. Costs system calls only where the program handles signals,
    /// and only as the outermost guard.
    pub fn hold() -> SignalsHeld {
        HOLD.with(|hold| {
            if hold.depth.get() == 0 {
                hold.how.set(count_or_block());
            }
            // From here on no handler comes in between that would look at the depth.
            hold.depth.set(hold.depth.get() + 1);
        });
        SignalsHeld::GUARD
    }

    /// The same with the thread's mask, which threads that it starts inherit.
    pub(crate) fn block() -> SignalsHeld {
        let held = SignalsHeld::hold();
        held.block_now();
        held
    }

    /// For a fault handler, which the kernel calls with signals blocked.
    pub(crate) fn by_the_kernel() -> SignalsHeld {
        HOLD.with(|hold| hold.depth.set(hold.depth.get() + 1));
        SignalsHeld::GUARD
    }

    /// For a thread that stays inside for long: lets whoever installs a handler go on.
    pub(crate) fn heed_handlers(&self) {
        if HAS_HANDLERS.load(Ordering::Relaxed) {
            self.block_now();
        }
    }

    fn block_now(&self) {
        HOLD.with(|hold| {
            if let How::Counted = hold.how.get() {
                hold.how.set(How::Blocked(block_all()));
                UNBLOCKED_INSIDE.fetch_sub(1, Ordering::SeqCst);
            }
        });
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        HOLD.with(|hold| {
            hold.depth.set(hold.depth.get() - 1);
            if hold.depth.get() == 0 {
                release(hold.how.replace(How::NotAtAll));
            }
        });
    }
}

fn count_or_block() -> How {
    if !HAS_HANDLERS.load(Ordering::Relaxed) {
        // SYNC POINT: pairs with `expect_handler_of`, which announces handlers and then looks at the count:
        // it sees this thread, or this thread sees the announcement.
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

/// The program is about to install a handler for a signal. Returns when no thread is inside the runtime with
/// that signal let through. Not to be called from inside.
pub fn expect_handler_of(number: libc::c_int) {
    if can_be_held(number) && !HAS_HANDLERS.swap(true, Ordering::SeqCst) {
        // SYNC POINT: with `count_or_block`. Who is inside leaves within microseconds, or heeds the
        // announcement.
        while UNBLOCKED_INSIDE.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
    }
}

/// Looks for handlers that were installed before anybody could see it.
pub(crate) fn look_for_handlers() {
    for number in 1..=libc::SIGRTMAX() {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the kernel's own structure is shorter; it writes at most this one, and starts with the
        // handler like it.
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

/// Holds signals back from now on until [`release_signals_after_fork`], in the parent and in the child: for what is locked
/// across a fork.
pub fn hold_signals_across_fork() {
    let held = SignalsHeld::block();
    HOLD.with(|hold| BEFORE_FORK.set(hold.how.replace(How::NotAtAll)));
    std::mem::forget(held); // it counts until the fork is over
}

/// The end of what [`hold_signals_across_fork`] began.
pub fn release_signals_after_fork() {
    HOLD.with(|hold| hold.how.set(BEFORE_FORK.replace(How::NotAtAll)));
    drop(SignalsHeld::GUARD);
}

/// The same in the child, which has none of the parent's other threads.
pub fn release_signals_in_child() {
    UNBLOCKED_INSIDE.store(0, Ordering::SeqCst);
    release_signals_after_fork();
}

fn can_be_held(number: libc::c_int) -> bool {
    (1..=64).contains(&number) && HELD & (1 << (number - 1)) != 0
}

/// Signals that are not held: those that the processor raises, and the two of the C library's own (cancellation, and changes of user
/// that all threads make together), whose handlers touch no shared memory and which its own calls never block.
const NEVER_HELD: [libc::c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, 32, 33];

/// The kernel's mask of the signals that are held.
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

/// Sets the calling thread's mask by the system call itself: the C library's function would be the one that the C face puts before it.
fn set_mask(mask: &u64, before: *mut u64) {
    let (set, new, bytes) = (libc::SIG_SETMASK, ptr::from_ref(mask), size_of::<u64>());
    // SAFETY: the kernel reads one mask of the size told and writes the other, which is null or the caller's local. It cannot fail.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, set, new, before, bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is held, but for the two that the kernel blocks for nobody.
    const ALL: u64 = HELD & !(1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1));

    fn blocked() -> u64 {
        let mut mask = 0;
        // SAFETY: asks for the mask only, into a local of the size told.
        unsafe {
            let (nothing, size) = (ptr::null::<u64>(), size_of::<u64>());
            libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, nothing, &raw mut mask, size)
        };
        mask & HELD
    }

    /// One test, since what is announced stays so for the process.
    #[test]
    fn signals_are_blocked_once_the_program_handles_one_and_whoever_is_inside_is_waited_for() {
        assert!(can_be_held(libc::SIGINT) && can_be_held(64) && !can_be_held(65) && !can_be_held(0));
        assert!(!can_be_held(libc::SIGSEGV) && !can_be_held(33));
        let before = blocked();
        expect_handler_of(libc::SIGBUS);
        let (inside, announced) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let held = SignalsHeld::hold();
                let nested = SignalsHeld::hold();
                assert_eq!(blocked(), before, "nobody handles anything yet");
                inside.store(true, Ordering::SeqCst);
                while !HAS_HANDLERS.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                assert!(!announced.load(Ordering::SeqCst), "a thread is inside");
                nested.heed_handlers();
                assert_eq!(blocked(), ALL);
                drop(nested);
                assert_eq!(blocked(), ALL);
                drop(held);
                assert_eq!(blocked(), before);
            });
            while !inside.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            expect_handler_of(libc::SIGUSR1);
            announced.store(true, Ordering::SeqCst);
        });
        let held = SignalsHeld::hold();
        assert_eq!(blocked(), ALL);
        drop(held);
        let held = SignalsHeld::by_the_kernel();
        drop(SignalsHeld::hold());
        assert_eq!(blocked(), before, "the kernel has blocked what there is to block");
        drop(held);
    }
}
