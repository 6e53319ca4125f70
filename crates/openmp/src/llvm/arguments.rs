//! The arguments of a region's code, of which there may be any number.

use std::ffi::c_int;

/// Arguments of a function: those that came in registers, and those on the caller's stack.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Arguments {
    count: usize,
    in_registers: *const usize,
    on_stack: *const usize,
}

/// The number of arguments behind the first three that come in registers.
const IN_REGISTERS: usize = 3;
/// The number of arguments that a call always reads: those that go into registers.
const LEAST: usize = 4;

impl Arguments {
    pub(super) fn new(count: c_int, in_registers: *const usize, on_stack: *const usize) -> Arguments {
        Arguments { count: count.max(0) as usize, in_registers, on_stack }
    }

    fn get(&self, number: usize) -> usize {
        let place = if number < IN_REGISTERS {
            self.in_registers.wrapping_add(number)
        } else {
            self.on_stack.wrapping_add(number - IN_REGISTERS)
        };
        // SAFETY: the caller of a function below has passed that many arguments, and waits.
        unsafe { place.read() }
    }

    /// All that a call of `code` needs, in words that any thread can read: see [`call`].
    pub(super) fn list(&self, code: usize) -> Vec<usize> {
        let mut list = vec![0; BEFORE + self.count.max(LEAST)];
        list[..BEFORE].copy_from_slice(&[code, self.count]);
        (0..self.count).for_each(|number| list[BEFORE + number] = self.get(number));
        list
    }
}

/// The words of a list before the arguments: the code and their number.
const BEFORE: usize = 2;

/// Calls the code of a list with two numbers of the thread and the list's arguments.
///
/// # Safety
/// [`Arguments::list`] made the list, and the code takes the numbers' addresses and as many arguments.
pub(super) unsafe fn call(list: *const usize, numbers: [c_int; 2]) {
    // SAFETY: the caller's.
    let code = unsafe { list.read() };
    // SAFETY: as above.
    let count = unsafe { list.wrapping_add(1).read() };
    let (mut global, mut bound) = (numbers[0], numbers[1]);
    let first = list.wrapping_add(BEFORE);
    // SAFETY: the caller's; the list has a word for each argument, and four at least.
    unsafe { call_region(code, &raw mut global, &raw mut bound, count, first) };
}

/// Calls `code(global, bound, arguments…)`, of which `list` has `count`, and four at least.
#[unsafe(naked)]
unsafe extern "C-unwind" fn call_region(
    code: usize,
    global: *mut c_int,
    bound: *mut c_int,
    count: usize,
    list: *const usize,
) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rax, rdi",
        "mov r10, rcx",
        "mov r11, r8",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "cmp r10, 4",
        "jle 3f",
        // An even number of words goes onto the stack.
        "mov rcx, r10",
        "and rcx, 1",
        "shl rcx, 3",
        "sub rsp, rcx",
        "2:",
        "push qword ptr [r11 + r10 * 8 - 8]",
        "dec r10",
        "cmp r10, 4",
        "jg 2b",
        "3:",
        "mov rdx, [r11]",
        "mov rcx, [r11 + 8]",
        "mov r8, [r11 + 16]",
        "mov r9, [r11 + 24]",
        "call rax",
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    );
}
