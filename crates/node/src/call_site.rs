//! The place in the program that called the library. The faces note it; reports of waits and races name it.

use std::cell::Cell;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::time::Duration;

use hiroba_base::CodeSite;
use object::{Object, ObjectSegment};

use crate::callers;

thread_local! {
    static SITE: Cell<usize> = const { Cell::new(0) };
}

/// Notes the return address of the call that the calling thread has just made.
pub fn note(site: usize) {
    SITE.set(site);
}

/// Returns the last site noted on this thread, 0 if there is none.
pub(crate) fn noted() -> usize {
    SITE.get()
}

/// Returns the site as an offset that the module's debug information uses. A return address points after the
/// call, so the byte before it is looked up.
pub(crate) fn of_return_address(address: usize) -> Option<CodeSite> {
    of_instruction(address.checked_sub(1)?)
}

/// Returns the site of an instruction.
pub(crate) fn of_instruction(address: usize) -> Option<CodeSite> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let piece = pieces(&maps).find(|piece| piece.range.contains(&address))?;
    let bias = piece.module_start.wrapping_sub(link_address(piece.module)?);
    Some(CodeSite { module: piece.module.to_owned(), offset: address.wrapping_sub(bias) as u64 })
}

/// How many times a thread that is about to wait is looked at.
const LOOKS_MAX: usize = 200;
const BETWEEN_LOOKS: Duration = Duration::from_micros(50);

/// Returns the instruction at which a thread of this process waits for a page (`/proc/PID/syscall`,
/// proc_pid_syscall(5)). Returns `None` if it waits in a system call, or if the kernel does not tell.
pub(crate) fn of_waiting_thread(thread: u32) -> Option<usize> {
    let path = format!("/proc/self/task/{thread}/syscall");
    let mut text = std::fs::read_to_string(&path).ok()?;
    // Its fault is told before it sleeps. It may need the processor for that, and this thread may have
    // priority.
    for _ in 0..LOOKS_MAX {
        if text.trim_end() != "running" {
            break;
        }
        std::thread::sleep(BETWEEN_LOOKS);
        text = std::fs::read_to_string(&path).ok()?;
    }
    let mut words = text.split_whitespace();
    // Not in a system call; then come the stack pointer and the program counter.
    let counter = words.next().filter(|number| *number == "-1").and_then(|_| words.nth(1))?;
    usize::from_str_radix(counter.strip_prefix("0x")?, 16).ok()
}

/// Returns the innermost call in the program's executable that leads to an instruction which a signal has
/// interrupted. Call it from the signal's handler. Returns `None` where the instruction is in the executable
/// itself.
pub(crate) fn of_caller_in_program(interrupted: usize) -> Option<CodeSite> {
    let executable = std::fs::read_link("/proc/self/exe").ok()?;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let is_in_program = |address: usize| {
        pieces(&maps)
            .find(|piece| piece.range.contains(&address))
            .is_some_and(|piece| Path::new(piece.module) == executable)
    };
    if is_in_program(interrupted) {
        return None;
    }
    let mut caller = None;
    callers::walk(interrupted, |address| {
        caller = is_in_program(address).then_some(address);
        if caller.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    of_instruction(caller?)
}

/// An address range that maps a piece of a module's file.
struct Piece<'a> {
    range: Range<usize>,
    module: &'a str,
    /// The start of the module's first piece.
    module_start: usize,
}

/// Iterates over the pieces of modules in `/proc/self/maps`.
fn pieces(maps: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut first_of_module: Option<(usize, &str)> = None;
    maps.lines().filter_map(move |line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let start = usize::from_str_radix(start, 16).ok()?;
        let end = usize::from_str_radix(end, 16).ok()?;
        let module = &rest[rest.find('/')?..];
        let first = first_of_module.filter(|(_, first)| *first == module).unwrap_or((start, module));
        first_of_module = Some(first);
        Some(Piece { range: start..end, module, module_start: first.0 })
    })
}

/// Returns the link-time address of the module's first segment.
fn link_address(module: &str) -> Option<usize> {
    let bytes = std::fs::read(module).ok()?;
    let file = object::File::parse(&*bytes).ok()?;
    let system_page_bytes = rustix::param::page_size() as u64;
    file.segments()
        .map(|segment| segment.address() / system_page_bytes * system_page_bytes)
        .min()
        .map(|start| start as usize)
}
