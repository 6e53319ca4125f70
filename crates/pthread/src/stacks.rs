//! The two stacks of a thread: the program runs on one in shared memory, the runtime on a private one.
//!
//! Another thread of the process serves a fault on shared memory, and needs the runtime's locks for that. So
//! code that may hold them never runs on a stack whose pages may be absent.

pub(crate) mod halting;

use std::cell::Cell;
use std::ffi::c_void;

use crate::shared;

thread_local! {
    /// The top of the private stack while the thread runs on its shared one; 0 in threads without one and
    /// while the runtime runs.
    static PRIVATE_TOP: Cell<usize> = const { Cell::new(0) };
}

/// The number of bytes below the stack pointer that a function may use without moving it (System V ABI
/// 3.2.2).
const RED_ZONE_BYTES: usize = 128;

/// Calls `function(argument)` on the stack that ends at `top`, and returns on this one. Exceptions can unwind
/// through it.
#[unsafe(naked)]
unsafe extern "C-unwind" fn call_on(
    top: usize,
    function: unsafe extern "C-unwind" fn(*mut c_void),
    argument: *mut c_void,
) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rsp, rdi",
        "and rsp, -16",
        "mov rdi, rdx",
        "call rsi",
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    );
}

/// A closure that is called once through a pointer, and its result.
struct Errand<F, R> {
    work: Option<F>,
    result: Option<R>,
}

unsafe extern "C-unwind" fn run_errand<F: FnOnce() -> R, R>(errand: *mut c_void) {
    // SAFETY: `call` passes its own local, to which there is no other pointer.
    let errand = unsafe { &mut *errand.cast::<Errand<F, R>>() };
    if let Some(work) = errand.work.take() {
        errand.result = Some(work());
    }
}

fn call<F: FnOnce() -> R, R>(top: usize, work: F) -> R {
    let mut errand = Errand { work: Some(work), result: None };
    // SAFETY: each caller passes the end of a stack that nothing else runs on; the errand outlives the call.
    unsafe { call_on(top, run_errand::<F, R>, (&raw mut errand).cast()) };
    errand.result.expect("the errand was run")
}

/// Returns true if the calling thread is one of the program's and runs the program now.
pub(crate) fn in_program() -> bool {
    PRIVATE_TOP.get() != 0
}

/// Returns true if the program uses an object at this address now and shares it with the other nodes. Objects
/// of the runtime and of the C library are private, whichever thread runs their code: their destructors run
/// at the end of a thread.
pub(crate) fn is_programs(object: *const c_void) -> bool {
    in_program() && (shared::is_shared(object.addr()) || shared::is_shared_data(object.addr()))
}

/// Runs the runtime's work on the private stack.
pub(crate) fn privately<R>(work: impl FnOnce() -> R) -> R {
    let top = PRIVATE_TOP.replace(0);
    if top == 0 {
        return work();
    }
    let result = call(top, work);
    PRIVATE_TOP.set(top);
    halting::halt_if_told();
    result
}

/// Runs a part of the program on the stack that ends at `shared_top`, with the rest of this stack as its
/// private one. Code that the thread runs afterwards, such as destructors, still belongs to the program,
/// until [`leave_program`].
pub(crate) fn run_program<R>(shared_top: usize, work: impl FnOnce() -> R) -> R {
    let here = 0u8;
    // The frames of this function and of `call` lie above.
    let private_top = ((&raw const here).addr() - FRAMES_BYTES - RED_ZONE_BYTES) & !15;
    PRIVATE_TOP.set(private_top);
    call(shared_top, work)
}

/// Makes the calling thread one of the runtime's from now on.
pub(crate) fn leave_program() {
    PRIVATE_TOP.set(0);
}

/// The bytes that the end of a thread takes of its private stack, above the part that the runtime uses.
/// Destructors of thread-local variables run there.
const FRAMES_BYTES: usize = 128 << 10;
