//! Functions that take any number of arguments.

use std::ffi::{c_int, c_void};

/// Defines functions that take a place, a number of arguments, code, and these arguments, and pass the
/// code, the number, and where the arguments lie to another function.
macro_rules! with_arguments {
    ($($(#[$doc:meta])* $name:ident => $called:path;)*) => { $(
        $(#[$doc])*
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(place: $crate::llvm::Place, count: c_int, code: *const c_void) {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "endbr64",
                "lea rax, [rsp + 8]",
                "push rbp",
                ".cfi_def_cfa_offset 16",
                ".cfi_offset rbp, -16",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "push r9",
                "push r8",
                "push rcx",
                "sub rsp, 8",
                "mov rdi, rdx",
                "lea rdx, [rsp + 8]",
                "mov rcx, rax",
                "call {called}",
                "mov rsp, rbp",
                "pop rbp",
                ".cfi_def_cfa rsp, 8",
                "ret",
                ".cfi_endproc",
                called = sym $called,
            );
        }
    )* };
}

with_arguments! {
    /// A parallel region, whose code gets two numbers of the thread and the arguments.
    __kmpc_fork_call => super::regions::fork;
    /// A league of teams, whose code gets the same.
    __kmpc_fork_teams => super::leagues::fork_teams;
}
