//! What stubs call for an atomic instruction on a long block, and for a fence.
//!
//! The calling code is in the middle of a function of the program and expects that an instruction changes
//! nothing but its operands. So all registers are kept, the vector registers with `xsave`.

use std::cell::Cell;

use super::{READY, order, spins};
use crate::control::ATOMICS;
use crate::face;
use crate::heap;
use crate::stacks::privately;

/// The length of the area for `xsave` of x87, SSE, AVX and AVX-512, rounded up.
macro_rules! area_bytes {
    () => {
        "2816"
    };
}

/// Defines a function that calls another one and preserves all registers and flags.
macro_rules! preserving_all {
    ($(#[$doc:meta])* $name:ident, $called:ident) => {
        $(#[$doc])*
        #[unsafe(naked)]
        pub(super) unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "pushfq",
                "push rax",
                "push rcx",
                "push rdx",
                "push rsi",
                "push rdi",
                "push r8",
                "push r9",
                "push r10",
                "push r11",
                "push rbp",
                "mov rbp, rsp",
                "cld",
                concat!("sub rsp, ", area_bytes!()),
                "and rsp, -64",
                "mov rdi, rcx",
                "xor eax, eax",
                "mov [rsp + 512], rax",
                "mov [rsp + 520], rax",
                "mov [rsp + 528], rax",
                "mov [rsp + 536], rax",
                "mov [rsp + 544], rax",
                "mov [rsp + 552], rax",
                "mov [rsp + 560], rax",
                "mov [rsp + 568], rax",
                "xor edx, edx",
                "mov eax, 0xe7",
                "xsave64 [rsp]",
                "call {called}",
                "xor edx, edx",
                "mov eax, 0xe7",
                "xrstor64 [rsp]",
                "mov rsp, rbp",
                "pop rbp",
                "pop r11",
                "pop r10",
                "pop r9",
                "pop r8",
                "pop rdi",
                "pop rsi",
                "pop rdx",
                "pop rcx",
                "pop rax",
                "popfq",
                "ret",
                called = sym $called,
            );
        }
    };
}

preserving_all! {
    /// Has the page of the operand of an atomic instruction, whose address `rcx` contains, put under
    /// sequential consistency. Begins a fence if that is 0.
    prepare, prepare_operation
}

preserving_all! {
    /// Begins an exclusive operation of the calling thread. `rcx` contains the address of its operand.
    begin, begin_operation
}

preserving_all! {
    /// Ends it.
    end, end_operation
}

/// A fence of the calling thread.
pub(super) fn fence() {
    // SAFETY: both are called in pairs, and take no address for a fence.
    unsafe { begin_operation(0) };
    // SAFETY: as above.
    unsafe { end_operation() };
}

/// The length of a granule of the shared memory.
const GRANULE_BYTES: usize = 4096;

unsafe extern "C" fn prepare_operation(operand: usize) {
    if operand == 0 {
        // SAFETY: the stub of a fence ends it.
        return unsafe { begin_operation(0) };
    }
    let errno = heap::errno();
    if super::is_long(operand) {
        order::order_everywhere();
        privately(|| face::hiroba_convert_page(operand));
    }
    note_ready(operand);
    heap::set_errno(errno);
}

/// Lets stubs know that instructions on the page at an address are atomic as they are.
fn note_ready(operand: usize) {
    let granule = operand & !(GRANULE_BYTES - 1);
    READY.note(granule as u64..(granule + GRANULE_BYTES) as u64);
}

thread_local! {
    /// A bit for each operation that the thread is in, the last one lowest: 1 if it operates on short memory,
    /// where an instruction is atomic as it is. A handler of a signal may begin and end some in between.
    static ON_SHORT: Cell<u64> = const { Cell::new(0) };
}

/// `operand` is the address that the instruction operates on, 0 for a fence.
unsafe extern "C" fn begin_operation(operand: usize) {
    let is_short = operand != 0 && !super::is_long(operand);
    ON_SHORT.set(ON_SHORT.get() << 1 | u64::from(is_short));
    if is_short {
        note_ready(operand);
    } else if spins::change_depth(1) == 0 {
        let errno = heap::errno();
        order::order_everywhere();
        privately(|| face::hiroba_lock(ATOMICS.number()));
        face::hiroba_count_atomic();
        spins::note_operation(operand);
        heap::set_errno(errno);
    }
}

unsafe extern "C" fn end_operation() {
    let on_short = ON_SHORT.get();
    ON_SHORT.set(on_short >> 1);
    if on_short & 1 == 0 && spins::change_depth(-1) == 1 {
        let errno = heap::errno();
        privately(|| face::hiroba_unlock(ATOMICS.number()));
        if spins::repeats_operation() {
            spins::exchange();
        }
        heap::set_errno(errno);
    }
}
