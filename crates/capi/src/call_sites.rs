//! Records where the program called: functions of `hiroba.h` that wait or change something pass their
//! caller's return address on, which reports of waits and races name.

/// Defines functions of the C interface that pass their caller's return address on as an additional last
/// argument.
///
/// ```text
/// noting_caller! { hiroba_lock(1) => lock; }
/// ```
/// Here `hiroba_lock` takes one argument, and `lock` is `extern "C" fn(c_uint, site: usize)`. A function may
/// have at most five arguments, all in general registers.
macro_rules! noting_caller {
    ($($(#[$meta:meta])* $name:ident($count:tt) => $target:path;)*) => { $(
        $(#[$meta])*
        /// See `hiroba.h`.
        ///
        /// # Safety
        /// The requirements are those of the declaration there.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                "endbr64",
                concat!("mov ", $crate::call_sites::register!($count), ", [rsp]"),
                "jmp {target}",
                ".cfi_endproc",
                target = sym $target,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                "hint #34", // bti c
                concat!("mov x", stringify!($count), ", x30"),
                "b {target}",
                ".cfi_endproc",
                target = sym $target,
            );
        }
    )* };
}

/// Returns the register of the argument after the given number of others (System V ABI 3.2.3).
#[cfg(target_arch = "x86_64")]
macro_rules! register {
    (0) => {
        "rdi"
    };
    (1) => {
        "rsi"
    };
    (2) => {
        "rdx"
    };
    (3) => {
        "rcx"
    };
    (4) => {
        "r8"
    };
    (5) => {
        "r9"
    };
}

pub(crate) use noting_caller;
#[cfg(target_arch = "x86_64")]
pub(crate) use register;
