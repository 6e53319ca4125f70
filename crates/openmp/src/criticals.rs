//! `critical`, and `atomic` where no instruction will do.

use std::cell::Cell;
use std::ffi::c_void;

use crate::face;
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
}

thread_local! {
    /// True while the calling thread leaves out what such code updates: another one will execute it.
    static LEAVES_OUT: Cell<bool> = const { Cell::new(false) };
}

/// Begins code that one thread runs at a time, for long atomic operations and for reductions of several
/// variables. Passes on the registers that calls preserve, and the stack pointer, behind the call. Returns
/// behind the code if the thread leaves it out (`updates.rs`).
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn GOMP_atomic_start() {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "sub rsp, 136",
        ".cfi_adjust_cfa_offset 136",
        "mov [rsp + 24], rbx",
        "lea rax, [rsp + 144]",
        "mov [rsp + 32], rax",
        "mov [rsp + 40], rbp",
        "mov [rsp + 96], r12",
        "mov [rsp + 104], r13",
        "mov [rsp + 112], r14",
        "mov [rsp + 120], r15",
        "mov rdi, [rsp + 136]",
        "mov rsi, rsp",
        "call {start}",
        "test rax, rax",
        "je 2f",
        "mov [rsp + 136], rax",
        "2:",
        "add rsp, 136",
        ".cfi_adjust_cfa_offset -136",
        "ret",
        ".cfi_endproc",
        start = sym start_atomic,
    );
}

/// Returns where the thread goes on, 0 if there is nothing to leave out.
///
/// # Safety
/// `general` are the thread's registers at `at`.
unsafe extern "C-unwind" fn start_atomic(at: usize, general: *const [u64; 16]) -> usize {
    // SAFETY: the caller's.
    let resume = unsafe { face::hiroba_leave_section(at, general) };
    LEAVES_OUT.set(resume != 0);
    if resume == 0 {
        lock_atomic();
    }
    resume
}

/// Begins such code without leaving it out.
pub(crate) fn lock_atomic() {
    of_job(|job| &job.team.atomic).into_iter().for_each(Lock::lock);
}

/// Ends it.
#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn GOMP_atomic_end() {
    if !LEAVES_OUT.take() {
        of_job(|job| &job.team.atomic).into_iter().for_each(Lock::unlock);
    }
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
