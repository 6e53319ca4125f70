//! The printf family. The C library writes long `%s` arguments directly from the program's memory, so with
//! shielding text is formatted into private memory first.
//!
//! The variadic functions build the `va_list` of their processor's calling convention and call those that
//! take one.

use std::ffi::{c_char, c_int};

use crate::reporting::set_errno;
use crate::stdio::{calls, write_private};
use crate::system_calls::{Bounce, shielding};

/// Text up to this length is formatted once; longer text twice, the first time to learn its length.
const TEXT_BYTES: usize = 4000;

/// The state of a `va_list`: 24 bytes on x86-64 (System V ABI 3.5.7), 32 on aarch64 (AAPCS64, appendix B).
/// Both are passed by address.
#[cfg(target_arch = "x86_64")]
type Arguments = [u64; 3];
#[cfg(target_arch = "aarch64")]
type Arguments = [u64; 4];

unsafe extern "C" {
    fn vsnprintf(text: *mut c_char, room: usize, format: usize, arguments: *mut Arguments) -> c_int;
    fn __vsnprintf_chk(
        text: *mut c_char,
        room: usize,
        flag: c_int,
        object_bytes: usize,
        format: usize,
        arguments: *mut Arguments,
    ) -> c_int;
}

/// How `%n` and the like are checked: the flag of the `_chk` functions, `None` in the others.
type Flag = Option<c_int>;

/// # Safety
/// The format and the arguments must match, and `text` must have `room` bytes.
unsafe fn format_into(
    text: *mut u8,
    room: usize,
    flag: Flag,
    format: usize,
    arguments: *mut Arguments,
) -> c_int {
    // SAFETY: a va_list is plain data; formatting consumes a copy, so that it can be repeated.
    let mut copy = unsafe { *arguments };
    match flag {
        // SAFETY: the caller's.
        None => unsafe { vsnprintf(text.cast(), room, format, &raw mut copy) },
        // SAFETY: the caller's.
        Some(flag) => unsafe { __vsnprintf_chk(text.cast(), room, flag, usize::MAX, format, &raw mut copy) },
    }
}

/// Formats into private memory and passes the text to `put`, which returns true if all of it was written.
///
/// # Safety
/// The format and the arguments must match.
unsafe fn formatted(
    bounce: &mut Bounce,
    flag: Flag,
    format: usize,
    arguments: *mut Arguments,
    put: impl Fn(*const u8, usize) -> bool,
) -> isize {
    let no_memory = || {
        set_errno(libc::ENOMEM);
        -1
    };
    let Some(mut text) = bounce.piece(0, TEXT_BYTES) else { return no_memory() };
    // SAFETY: the caller's; the piece has this room.
    let mut length = unsafe { format_into(text, TEXT_BYTES, flag, format, arguments) };
    if length >= TEXT_BYTES as c_int {
        let room = length as usize + 1;
        let Some(longer) = bounce.piece(0, room) else { return no_memory() };
        text = longer;
        // SAFETY: the caller's; the piece has this room.
        length = unsafe { format_into(text, room, flag, format, arguments) };
        // Another thread may have lengthened the text meanwhile.
        length = length.min(room as c_int - 1);
    }
    if length < 0 || !put(text, length as usize) {
        return -1;
    }
    length as isize
}

/// # Safety
/// The requirements are those of vfprintf(3).
unsafe fn to_stream(
    bounce: &mut Bounce,
    stream: usize,
    flag: Flag,
    format: usize,
    arguments: *mut Arguments,
) -> isize {
    let put = |text: *const u8, length: usize| write_private(stream, text, length) == length;
    // SAFETY: the caller's.
    unsafe { formatted(bounce, flag, format, arguments, put) }
}

unsafe extern "C" {
    /// The C library's stream.
    static stdout: usize;
}

fn standard_output() -> usize {
    // SAFETY: the C library sets the stream before the program runs; the program may change it, as in C.
    unsafe { (&raw const stdout).read() }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn vfprintf(stream: usize, format: usize, arguments: *mut Arguments) -> isize {
    match shielding() {
        // SAFETY: the caller's.
        None => unsafe { calls::vfprintf.call([stream, format, arguments.addr()]) },
        // SAFETY: the caller's.
        Some(runtime) => unsafe { to_stream(&mut Bounce::new(runtime), stream, None, format, arguments) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn vprintf(format: usize, arguments: *mut Arguments) -> isize {
    match shielding() {
        // SAFETY: the caller's.
        None => unsafe { calls::vprintf.call([format, arguments.addr()]) },
        // SAFETY: the caller's.
        Some(runtime) => unsafe {
            to_stream(&mut Bounce::new(runtime), standard_output(), None, format, arguments)
        },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __vfprintf_chk(
    stream: usize,
    flag: usize,
    format: usize,
    arguments: *mut Arguments,
) -> isize {
    match shielding() {
        // SAFETY: the caller's.
        None => unsafe { calls::__vfprintf_chk.call([stream, flag, format, arguments.addr()]) },
        // SAFETY: the caller's.
        Some(runtime) => unsafe {
            to_stream(&mut Bounce::new(runtime), stream, Some(flag as c_int), format, arguments)
        },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __vprintf_chk(flag: usize, format: usize, arguments: *mut Arguments) -> isize {
    match shielding() {
        // SAFETY: the caller's.
        None => unsafe { calls::__vprintf_chk.call([flag, format, arguments.addr()]) },
        // SAFETY: the caller's.
        Some(runtime) => unsafe {
            let bounce = &mut Bounce::new(runtime);
            to_stream(bounce, standard_output(), Some(flag as c_int), format, arguments)
        },
    }
}

/// # Safety
/// The requirements are those of vdprintf(3).
unsafe fn to_descriptor(
    bounce: &mut Bounce,
    fd: usize,
    flag: Flag,
    format: usize,
    arguments: *mut Arguments,
) -> isize {
    let put = |text: *const u8, length: usize| {
        let mut done = 0;
        while done < length {
            // SAFETY: `done` is less than the text's length.
            let rest = unsafe { text.add(done) };
            // SAFETY: the text is private and of this length.
            let went = unsafe { libc::write(fd as c_int, rest.cast(), length - done) };
            if went <= 0 {
                return false;
            }
            done += went as usize;
        }
        true
    };
    // SAFETY: the caller's.
    unsafe { formatted(bounce, flag, format, arguments, put) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn vdprintf(fd: usize, format: usize, arguments: *mut Arguments) -> isize {
    match shielding() {
        // SAFETY: the caller's.
        None => unsafe { calls::vdprintf.call([fd, format, arguments.addr()]) },
        // SAFETY: the caller's.
        Some(runtime) => unsafe { to_descriptor(&mut Bounce::new(runtime), fd, None, format, arguments) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __vdprintf_chk(
    fd: usize,
    flag: usize,
    format: usize,
    arguments: *mut Arguments,
) -> isize {
    match shielding() {
        // SAFETY: the caller's.
        None => unsafe { calls::__vdprintf_chk.call([fd, flag, format, arguments.addr()]) },
        // SAFETY: the caller's.
        Some(runtime) => unsafe {
            to_descriptor(&mut Bounce::new(runtime), fd, Some(flag as c_int), format, arguments)
        },
    }
}

/// Defines a variadic function, which saves the argument registers, builds a `va_list` after its fixed
/// arguments, and calls `$target` with the fixed ones and the list.
///
/// x86-64 (System V ABI 3.5.7), from the stack pointer: 24 bytes of `va_list`, 8 unused, the register save
/// area of 176. aarch64 (AAPCS64, appendix B): 32 bytes of `va_list`, general registers at 32, vector
/// registers at 96, frame record at 224.
macro_rules! variadic {
    ($($name:ident: $fixed:literal, $register:literal, $arm_register:literal => $target:ident;)*) => { $(
        #[cfg(target_arch = "x86_64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name() -> isize {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "endbr64",
                "sub rsp, 216",
                ".cfi_adjust_cfa_offset 216",
                "mov [rsp + 32], rdi",
                "mov [rsp + 40], rsi",
                "mov [rsp + 48], rdx",
                "mov [rsp + 56], rcx",
                "mov [rsp + 64], r8",
                "mov [rsp + 72], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 80], xmm0",
                "movaps [rsp + 96], xmm1",
                "movaps [rsp + 112], xmm2",
                "movaps [rsp + 128], xmm3",
                "movaps [rsp + 144], xmm4",
                "movaps [rsp + 160], xmm5",
                "movaps [rsp + 176], xmm6",
                "movaps [rsp + 192], xmm7",
                "2:",
                "mov dword ptr [rsp], {general}",
                "mov dword ptr [rsp + 4], 48",
                "lea rax, [rsp + 224]",
                "mov [rsp + 8], rax",
                "lea rax, [rsp + 32]",
                "mov [rsp + 16], rax",
                concat!("mov ", $register, ", rsp"),
                "call {target}",
                "add rsp, 216",
                ".cfi_adjust_cfa_offset -216",
                "ret",
                ".cfi_endproc",
                general = const 8 * $fixed,
                target = sym $target,
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name() -> isize {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "sub sp, sp, #240",
                ".cfi_def_cfa_offset 240",
                "stp x29, x30, [sp, #224]",
                ".cfi_offset x29, -16",
                ".cfi_offset x30, -8",
                "add x29, sp, #224",
                "stp x0, x1, [sp, #32]",
                "stp x2, x3, [sp, #48]",
                "stp x4, x5, [sp, #64]",
                "stp x6, x7, [sp, #80]",
                "stp q0, q1, [sp, #96]",
                "stp q2, q3, [sp, #128]",
                "stp q4, q5, [sp, #160]",
                "stp q6, q7, [sp, #192]",
                "add x9, sp, #240",
                "str x9, [sp]",
                "add x9, sp, #96",
                "str x9, [sp, #8]",
                "add x9, sp, #224",
                "str x9, [sp, #16]",
                "mov w9, #{general}",
                "str w9, [sp, #24]",
                "mov w9, #-128",
                "str w9, [sp, #28]",
                concat!("mov ", $arm_register, ", sp"),
                "bl {target}",
                "ldp x29, x30, [sp, #224]",
                "add sp, sp, #240",
                ".cfi_def_cfa_offset 0",
                "ret",
                ".cfi_endproc",
                general = const 8 * ($fixed - 8),
                target = sym $target,
            )
        }
    )* };
}

variadic! {
    printf: 1, "rsi", "x1" => vprintf;
    fprintf: 2, "rdx", "x2" => vfprintf;
    dprintf: 2, "rdx", "x2" => vdprintf;
    __printf_chk: 2, "rdx", "x2" => __vprintf_chk;
    __fprintf_chk: 3, "rcx", "x3" => __vfprintf_chk;
    __dprintf_chk: 3, "rcx", "x3" => __vdprintf_chk;
}
