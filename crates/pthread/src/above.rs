//! The functions that this library offers to `libhiroba_gomp.so`, which builds on it. No header declares
//! them.

use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicU32;

use crate::atomics;
use crate::control::Monitor;
use crate::record::Routine;
use crate::saying;
use crate::stacks::{in_program, privately};
use crate::threads;

/// Calls `work(argument)` on the calling thread's private stack, where the runtime may be called.
///
/// # Safety
/// `work` may be called with `argument`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn hiroba_privately(
    work: unsafe extern "C-unwind" fn(*mut c_void),
    argument: *mut c_void,
) {
    // SAFETY: the caller's.
    privately(|| unsafe { work(argument) });
}

/// Returns the number of an object's lock, kept in `place`, which is shared. The object gets one if it has
/// none.
///
/// # Safety
/// `place` exists for as long as the lock is used, and was 0 at first.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn hiroba_lock_number(place: *const AtomicU32) -> u32 {
    // SAFETY: the caller's.
    Monitor::of(unsafe { &*place }).number()
}

/// A fence of the calling thread, as where the program has an instruction for it.
#[unsafe(no_mangle)]
extern "C-unwind" fn hiroba_fence() {
    atomics::fence();
}

/// Starts a thread of the program on this node that runs `routine(argument)` and never ends, on a shared
/// stack of `stack_bytes`.
///
/// # Safety
/// `routine` may be called with `argument`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn hiroba_start_worker(routine: Routine, argument: *mut c_void, stack_bytes: usize) {
    threads::start_worker(routine, argument, stack_bytes);
}

/// Returns what all threads do next for which a call has returned 0 that ends at `at`, before anything that
/// others could notice: 1 if they call `function`; 2 if they return from the code that begins at `region`;
/// 0 if something else, or if that is unknown.
#[unsafe(no_mangle)]
extern "C-unwind" fn hiroba_follows(at: usize, function: usize, region: usize) -> c_int {
    atomics::follows(at, function, region)
}

/// Has `take` decide from now on which updates of shared variables threads leave out (`atomics/updates.rs`):
/// it is called with an update's words, how many there are, the function that the thread calls next, or the
/// code that it returns from next, and returns 1 if [`hiroba_execute_update`] will be called with the words.
/// `section_end` ends code that begins with a call of [`hiroba_leave_section`].
///
/// # Safety
/// `take` may be called so in any thread of the program.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn hiroba_take_updates(
    take: unsafe extern "C-unwind" fn(*const u64, usize, usize, usize) -> c_int,
    section_end: usize,
) {
    atomics::take_updates_with(take, section_end);
}

/// Returns where the calling thread goes on if it leaves the update at `at` out, or 0 if it must execute it.
/// `general` are its registers there that calls preserve, by their numbers.
///
/// # Safety
/// These are 16 words, and the stack pointer among them is the thread's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn hiroba_leave_section(at: usize, general: *const [u64; 16]) -> usize {
    // SAFETY: the caller's.
    let general = unsafe { &*general };
    // SAFETY: the caller's.
    unsafe { atomics::leave_section(at, general) }
}

/// Executes an update of the program that a thread of some node has left out.
///
/// # Safety
/// As many words are readable, and are those of an update.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn hiroba_execute_update(words: *const u64, count: usize) {
    // SAFETY: the caller's.
    atomics::execute_update(unsafe { std::slice::from_raw_parts(words, count) });
}

/// Returns 1 if the calling thread is one of the program's and runs the program now, else 0.
#[unsafe(no_mangle)]
extern "C-unwind" fn hiroba_in_program() -> c_int {
    c_int::from(in_program())
}

/// Ends the process as for the runtime's own errors, and writes a sentence, of `bytes` bytes of UTF-8, to the
/// standard error stream.
///
/// # Safety
/// The bytes are readable.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn hiroba_fatal(sentence: *const u8, bytes: usize) -> ! {
    // SAFETY: the caller's.
    let sentence = unsafe { std::slice::from_raw_parts(sentence, bytes) };
    saying::fatal(&String::from_utf8_lossy(sentence))
}

/// Writes a sentence, of `bytes` bytes of UTF-8, to the standard error stream.
///
/// # Safety
/// The bytes are readable.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn hiroba_say(sentence: *const u8, bytes: usize) {
    // SAFETY: the caller's.
    let sentence = unsafe { std::slice::from_raw_parts(sentence, bytes) };
    saying::say(&String::from_utf8_lossy(sentence));
}
