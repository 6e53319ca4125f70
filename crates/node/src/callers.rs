//! Unwinds the callers of code that a signal has interrupted.

use std::ffi::{c_int, c_void};
use std::ops::ControlFlow;

/// Maximum number of frames to walk. A deeper stack without the program's own code is broken or contains a
/// recursion.
const FRAMES_MAX: usize = 64;

/// A frame; opaque, owned by the unwinder.
#[repr(C)]
struct Frame([u8; 0]);

/// The unwinder's callback returns 0 to continue (`_URC_NO_REASON`).
const GO_ON: c_int = 0;
const STOP: c_int = 4;

// The unwinder that is part of every program with Rust in it (Itanium C++ ABI, "Exception Handling", 1.3).
unsafe extern "C" {
    fn _Unwind_Backtrace(each: extern "C" fn(*mut Frame, *mut c_void) -> c_int, walk: *mut c_void) -> c_int;
    fn _Unwind_GetIPInfo(frame: *mut Frame, is_instruction: *mut c_int) -> usize;
}

/// A walk outwards from a signal handler.
struct Walk<'a> {
    /// The interrupted instruction. Frames inside it belong to the handler.
    interrupted: usize,
    reached: bool,
    frames: usize,
    visit: &'a mut dyn FnMut(usize) -> ControlFlow<()>,
}

/// Walks the stack from the handler of a signal that interrupted the instruction at `interrupted`. Passes
/// `visit` one instruction of each active call, the innermost first, until it breaks. Visits nothing if the
/// stack does not lead to `interrupted`.
///
/// A stack that the program has overwritten may lead the unwinder to unmapped memory.
pub(crate) fn walk(interrupted: usize, mut visit: impl FnMut(usize) -> ControlFlow<()>) {
    let mut walk = Walk { interrupted, reached: false, frames: 0, visit: &mut visit };
    // SAFETY: `step` gets the walk, which outlives the call.
    unsafe { _Unwind_Backtrace(step, (&raw mut walk).cast()) };
}

extern "C" fn step(frame: *mut Frame, walk: *mut c_void) -> c_int {
    // SAFETY: `walk` passes its own local, and no other reference to it is used during the call.
    let walk = unsafe { &mut *walk.cast::<Walk>() };
    let mut is_instruction = 0;
    // SAFETY: the frame is the unwinder's own, the other pointer is to a local.
    let address = unsafe { _Unwind_GetIPInfo(frame, &raw mut is_instruction) };
    walk.reached |= address == walk.interrupted;
    walk.frames += 1;
    if address == 0 || walk.frames > FRAMES_MAX {
        return STOP;
    }
    if !walk.reached {
        return GO_ON;
    }
    // A return address points after its call.
    let instruction = if is_instruction == 0 { address - 1 } else { address };
    if (walk.visit)(instruction).is_break() { STOP } else { GO_ON }
}
