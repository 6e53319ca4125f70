//! Who called the code that a signal has interrupted.

use std::ffi::{c_int, c_void};
use std::ops::ControlFlow;

/// Frames that are walked through. A stack that is deeper without the program's own code is broken, or holds
/// a recursion.
const FRAMES_MAX: usize = 64;

/// A frame as the unwinder knows it.
#[repr(C)]
struct Frame([u8; 0]);

/// What the unwinder calls for each frame returns 0 to go on (`_URC_NO_REASON`).
const GO_ON: c_int = 0;
const STOP: c_int = 4;

// The unwinder that every program with Rust in it has (Itanium C++ ABI, "Exception Handling", 1.3).
unsafe extern "C" {
    fn _Unwind_Backtrace(each: extern "C" fn(*mut Frame, *mut c_void) -> c_int, walk: *mut c_void) -> c_int;
    fn _Unwind_GetIPInfo(frame: *mut Frame, is_instruction: *mut c_int) -> usize;
}

/// A walk from the handler of a signal outwards.
struct Walk<'a> {
    /// Frames further in are the handler's.
    interrupted: usize,
    reached: bool,
    frames: usize,
    visit: &'a mut dyn FnMut(usize) -> ControlFlow<()>,
}

/// From the handler of a signal that has interrupted the instruction at `interrupted`: shows `visit` an
/// instruction of each call that the thread is in, the innermost first, until it breaks. Nothing is shown
/// where the stack does not lead there.
///
/// A stack that a program has overwritten may lead the unwinder to where no memory is.
pub(crate) fn walk(interrupted: usize, mut visit: impl FnMut(usize) -> ControlFlow<()>) {
    let mut walk = Walk { interrupted, reached: false, frames: 0, visit: &mut visit };
    // SAFETY: `step` gets the walk, which outlives the call.
    unsafe { _Unwind_Backtrace(step, (&raw mut walk).cast()) };
}

extern "C" fn step(frame: *mut Frame, walk: *mut c_void) -> c_int {
    // SAFETY: `walk` passes its own local, to which nobody else refers meanwhile.
    let walk = unsafe { &mut *walk.cast::<Walk>() };
    let mut is_instruction = 0;
    // SAFETY: the unwinder's own frame, and a local.
    let address = unsafe { _Unwind_GetIPInfo(frame, &raw mut is_instruction) };
    walk.reached |= address == walk.interrupted;
    walk.frames += 1;
    if address == 0 || walk.frames > FRAMES_MAX {
        return STOP;
    }
    if !walk.reached {
        return GO_ON;
    }
    // A return address is behind its call.
    let instruction = if is_instruction == 0 { address - 1 } else { address };
    if (walk.visit)(instruction).is_break() { STOP } else { GO_ON }
}
