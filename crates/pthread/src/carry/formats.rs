//! Formatted output and input. The thread itself formats output, since its arguments may point to private
//! memory of its node; the deputy reads and converts input.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use super::{Lent, call, is_wanted};
use crate::heap;
use crate::next::{Next, next};

unsafe extern "C" {
    static stdout: usize;
    static stdin: usize;
}

fn standard_output() -> usize {
    // SAFETY: the C library's stream, set before the program runs.
    unsafe { (&raw const stdout).read() }
}

fn standard_input() -> usize {
    // SAFETY: as above.
    unsafe { (&raw const stdin).read() }
}

/// The destination of formatted text.
enum To {
    Stream(usize),
    Descriptor(usize),
}

/// Formats the text, and has node 0 write it.
///
/// # Safety
/// As of vasprintf(3).
unsafe fn put(to: To, format: usize, arguments: usize) -> c_int {
    static FWRITE: Next = Next::new(c"fwrite");
    static WRITE: Next = Next::new(c"write");
    let mut text: *mut c_char = ptr::null_mut();
    let vasprintf = next!(fn vasprintf(*mut *mut c_char, usize, usize) -> c_int);
    // SAFETY: the caller's; the place is a local.
    let length = unsafe { vasprintf(&raw mut text, format, arguments) };
    if length < 0 {
        return length;
    }
    let bytes = length as usize;
    // The text came from `malloc`, which gives the program shared memory.
    let went = match to {
        To::Stream(stream) => call(FWRITE.address(), &[text.addr(), 1, bytes, stream]),
        To::Descriptor(fd) => call(WRITE.address(), &[fd, text.addr(), bytes]),
    };
    // SAFETY: `vasprintf` has allocated it.
    unsafe { heap::free(text.cast::<c_void>()) };
    if went == length as isize { length } else { -1 }
}

/// Defines functions that take a `va_list`: their fixed arguments, and the destination of their text.
macro_rules! lists {
    ($($name:ident($($fixed:ident),*; $format:ident) => $to:expr;)*) => { $(
        /// See vprintf(3).
        ///
        /// # Safety
        /// As of the C library's function.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($fixed: usize,)* $format: usize, arguments: usize) -> c_int {
            if is_wanted() {
                // SAFETY: the caller's.
                return unsafe { put($to, $format, arguments) };
            }
            static NEXT: Next = Next::new(
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no zeros"),
                },
            );
            type Real = unsafe extern "C-unwind" fn($(lists!(@word $fixed),)* usize, usize) -> c_int;
            // SAFETY: the C library's function takes these arguments.
            let real = unsafe { std::mem::transmute::<usize, Real>(NEXT.address()) };
            // SAFETY: the caller's.
            unsafe { real($($fixed,)* $format, arguments) }
        }
    )* };
    (@word $fixed:ident) => { usize };
}

lists! {
    vprintf(; format) => To::Stream(standard_output());
    __vprintf_chk(_flag; format) => To::Stream(standard_output());
    vfprintf(stream; format) => To::Stream(stream);
    __vfprintf_chk(stream, _flag; format) => To::Stream(stream);
    vdprintf(fd; format) => To::Descriptor(fd);
    __vdprintf_chk(fd, _flag; format) => To::Descriptor(fd);
}

/// Reads and converts, on node 0 if necessary.
///
/// # Safety
/// As of vfscanf(3).
unsafe fn scan(next: &'static Next, stream: usize, format: usize, arguments: usize) -> c_int {
    if is_wanted() {
        let mut lent = Lent::default();
        let format = lent.text(format);
        return call(next.address(), &[stream, format, arguments]) as c_int;
    }
    type Real = unsafe extern "C-unwind" fn(usize, usize, usize) -> c_int;
    // SAFETY: the functions named below take a stream, a format and a list.
    let real = unsafe { std::mem::transmute::<usize, Real>(next.address()) };
    // SAFETY: the caller's.
    unsafe { real(stream, format, arguments) }
}

/// Defines functions that read by a format from a stream, and from the standard input stream.
macro_rules! scanners {
    ($($of_stream:ident, $of_input:ident: $name:literal;)*) => { $(
        /// See vscanf(3).
        ///
        /// # Safety
        /// As of the C library's function.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $of_stream(stream: usize, format: usize, arguments: usize) -> c_int {
            static NEXT: Next = Next::new($name);
            // SAFETY: the caller's.
            unsafe { scan(&NEXT, stream, format, arguments) }
        }

        /// See vscanf(3).
        ///
        /// # Safety
        /// As of the C library's function.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $of_input(format: usize, arguments: usize) -> c_int {
            // SAFETY: the caller's.
            unsafe { $of_stream(standard_input(), format, arguments) }
        }
    )* };
}

scanners! {
    vfscanf, vscanf: c"vfscanf";
    __isoc99_vfscanf, __isoc99_vscanf: c"__isoc99_vfscanf";
    __isoc23_vfscanf, __isoc23_vscanf: c"__isoc23_vfscanf";
}

/// Defines a variadic function. It saves the argument registers, builds a `va_list` for the arguments after
/// the fixed ones, and calls `$target` with the fixed ones and the list (System V ABI 3.5.7). From the stack
/// pointer on there are 24 bytes of `va_list`, 8 unused ones, and the register save area of 176.
macro_rules! variadic {
    ($($name:ident: $fixed:literal, $register:literal => $target:ident;)*) => { $(
        /// See the manual.
        ///
        /// # Safety
        /// As of the C library's function.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name() -> c_int {
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
    )* };
}

variadic! {
    printf: 1, "rsi" => vprintf;
    __printf_chk: 2, "rdx" => __vprintf_chk;
    fprintf: 2, "rdx" => vfprintf;
    __fprintf_chk: 3, "rcx" => __vfprintf_chk;
    dprintf: 2, "rdx" => vdprintf;
    __dprintf_chk: 3, "rcx" => __vdprintf_chk;
    scanf: 1, "rsi" => vscanf;
    fscanf: 2, "rdx" => vfscanf;
    __isoc99_scanf: 1, "rsi" => __isoc99_vscanf;
    __isoc99_fscanf: 2, "rdx" => __isoc99_vfscanf;
    __isoc23_scanf: 1, "rsi" => __isoc23_vscanf;
    __isoc23_fscanf: 2, "rdx" => __isoc23_vfscanf;
}
