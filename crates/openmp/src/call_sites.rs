//! Functions that know where they were called, which is the name of a loop in the program.

/// Defines functions without code of their own. Each calls another one with its arguments, of which `$stack`
/// lie on the stack because there are more than six, and with the address behind its own call as the last
/// one.
macro_rules! with_call_site {
    ($($name:ident => $function:ident, $stack:literal;)*) => { $(
        /// Calls the function below with the address of the call.
        ///
        /// # Safety
        /// As of that function.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "endbr64",
                // So that the stack is aligned at the call.
                "sub rsp, {pad}",
                ".cfi_adjust_cfa_offset {pad}",
                "push qword ptr [rsp + {pad}]",
                ".cfi_adjust_cfa_offset 8",
                // The last argument first; each push moves the stack's top by as much as the next one is
                // away.
                ".rept {stack}",
                "push qword ptr [rsp + {last}]",
                ".cfi_adjust_cfa_offset 8",
                ".endr",
                "call {function}",
                "add rsp, {all}",
                ".cfi_adjust_cfa_offset -{all}",
                "ret",
                ".cfi_endproc",
                stack = const $stack,
                pad = const ($stack % 2) * 8,
                last = const ($stack % 2) * 8 + 8 + $stack * 8,
                all = const ($stack % 2) * 8 + 8 + $stack * 8,
                function = sym $function,
            );
        }
    )* };
}
pub(crate) use with_call_site;
