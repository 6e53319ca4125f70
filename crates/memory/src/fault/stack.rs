//! The stack that fault handlers run on.

use core::{cell::RefCell, ffi::c_void, ptr};

use rustix::mm::MprotectFlags;

use crate::{MemoryError, mapping::Mapping};

/// The size of a thread's alternate stack: a fault handler runs whole protocol code, above a signal frame
/// that itself takes some ten thousand bytes on processors with wide registers.
pub const ALTERNATE_STACK_BYTES: usize = 256 << 10;

struct AlternateStack {
    mapping: Mapping,
    guard_bytes: usize,
}

thread_local! {
    static STACK: RefCell<Option<AlternateStack>> = const { RefCell::new(None) };
}

/// Gives the calling thread an alternate signal stack with a guard page beneath it, in place of any that it has, until
/// the thread ends. Calling it again changes nothing.
///
/// Every thread that may fault calls it first, or its faults are handled on its own stack: which works until one comes
/// at the stack's end.
///
/// # Errors
/// When there is no memory for it, inside a signal handler, or while the thread ends.
pub fn install_alternate_stack() -> Result<(), MemoryError> {
    let ending = MemoryError::NoAlternateStack { state: "is ending" };
    STACK.try_with(install).unwrap_or(Err(ending))
}

fn install(slot: &RefCell<Option<AlternateStack>>) -> Result<(), MemoryError> {
    // A borrow in place means that a handler interrupted this very function.
    let inside = || MemoryError::NoAlternateStack { state: "is in one" };
    let mut slot = slot.try_borrow_mut().map_err(|_| inside())?;
    if slot.is_some() {
        return Ok(());
    }
    let guard_bytes = rustix::param::page_size();
    let mapping = Mapping::of_zeros(guard_bytes + ALTERNATE_STACK_BYTES)
        .map_err(MemoryError::system("mmap of an alternate stack"))?;
    mapping
        .protect(0, guard_bytes, MprotectFlags::empty())
        .map_err(MemoryError::system("mprotect of an alternate stack's guard page"))?;
    let stack = AlternateStack { mapping, guard_bytes };
    let description =
        libc::stack_t { ss_sp: stack.first_byte(), ss_flags: 0, ss_size: ALTERNATE_STACK_BYTES };
    // SAFETY: the stack stays mapped until this thread's end, where drop takes it out of use first; the
    // description is read during the call only.
    if unsafe { libc::sigaltstack(&raw const description, ptr::null_mut()) } != 0 {
        return Err(inside());
    }
    *slot = Some(stack);
    Ok(())
}

impl AlternateStack {
    fn first_byte(&self) -> *mut c_void {
        self.mapping.at(self.guard_bytes).cast::<c_void>()
    }
}

impl Drop for AlternateStack {
    fn drop(&mut self) {
        let mut now = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: 0, ss_size: 0 };
        // SAFETY: asks only; the kernel writes to a local.
        unsafe { libc::sigaltstack(ptr::null(), &raw mut now) };
        // Others may have put a stack of theirs in its place.
        if now.ss_sp == self.first_byte() {
            let none = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
            // SAFETY: the description is read during the call only; this runs at the thread's end, not on the stack.
            unsafe { libc::sigaltstack(&raw const none, ptr::null_mut()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn current() -> libc::stack_t {
        let mut now = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: 0, ss_size: 0 };
        // SAFETY: asks only; the kernel writes to a local.
        unsafe { libc::sigaltstack(ptr::null(), &raw mut now) };
        now
    }

    #[test]
    fn a_thread_gets_one_stack_of_its_own() {
        let of_thread = || {
            std::thread::spawn(|| {
                install_alternate_stack().unwrap();
                let first = current();
                install_alternate_stack().unwrap();
                assert_eq!((first.ss_sp, first.ss_size), (current().ss_sp, ALTERNATE_STACK_BYTES));
            })
        };
        of_thread().join().unwrap();
        of_thread().join().unwrap();
    }
}
