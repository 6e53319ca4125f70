//! The alternate signal stacks on which fault handlers run.

use core::{cell::RefCell, ffi::c_void, ptr};

use rustix::mm::MprotectFlags;

use crate::{MemoryError, REGION_BYTES_MAX, REGION_START, mapping::Mapping};

/// The size of a thread's alternate stack. A fault handler runs whole protocol code, above a signal frame
/// that itself takes about ten thousand bytes on processors with wide registers.
pub const ALTERNATE_STACK_BYTES: usize = 256 << 10;

struct AlternateStack {
    mapping: Mapping,
    guard_bytes: usize,
    /// The stack that the program has set, as it believes.
    programs: libc::stack_t,
}

thread_local! {
    static STACK: RefCell<Option<AlternateStack>> = const { RefCell::new(None) };
}

/// Gives the calling thread an alternate signal stack with a guard page beneath it, in place of any that it
/// has, until the thread ends. Calling it again changes nothing.
///
/// Every thread that may fault should call it first. Otherwise its faults are handled on its own stack, which
/// works until a fault occurs at the stack's end.
///
/// # Errors
/// Fails if there is no memory for it, inside a signal handler, or while the thread ends.
pub fn install_alternate_stack() -> Result<(), MemoryError> {
    let ending = MemoryError::NoAlternateStack { state: "is ending" };
    STACK.try_with(install).unwrap_or(Err(ending))
}

fn install(slot: &RefCell<Option<AlternateStack>>) -> Result<(), MemoryError> {
    // A borrow means that a handler interrupted this very function.
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
    let mut stack = AlternateStack { mapping, guard_bytes, programs: NO_STACK };
    stack.programs = exchange(Some(&stack.description())).map_err(|_| inside())?;
    *slot = Some(stack);
    Ok(())
}

/// Implements sigaltstack(2) for the program. Faults keep the stack they need, and the program sees the stack
/// that it has set. Its handlers run on the larger of both; and on the runtime's if its own lies in shared
/// memory, where the kernel cannot write a signal frame.
///
/// # Errors
/// The errno of sigaltstack(2).
pub fn exchange_program_stack(new: Option<&libc::stack_t>) -> Result<libc::stack_t, i32> {
    let own = STACK.try_with(|slot| {
        let mut slot = slot.try_borrow_mut().ok()?;
        slot.as_mut().map(|stack| stack.exchange_programs(new))
    });
    own.ok().flatten().unwrap_or_else(|| exchange(new))
}

const NO_STACK: libc::stack_t =
    libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };

/// Calls sigaltstack(2) itself, because the C face may intercept the C library's name.
fn exchange(new: Option<&libc::stack_t>) -> Result<libc::stack_t, i32> {
    let mut old = NO_STACK;
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the caller keeps the stack mapped while it is in use; the descriptions are read and written
    // during the call only.
    let result = unsafe { libc::syscall(libc::SYS_sigaltstack, new, &raw mut old) };
    if result == 0 {
        return Ok(old);
    }
    Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL))
}

fn in_shared_region(stack: &libc::stack_t) -> bool {
    (REGION_START..REGION_START + REGION_BYTES_MAX as usize).contains(&stack.ss_sp.addr())
}

impl AlternateStack {
    fn first_byte(&self) -> *mut c_void {
        self.mapping.at(self.guard_bytes).cast::<c_void>()
    }

    fn description(&self) -> libc::stack_t {
        libc::stack_t { ss_sp: self.first_byte(), ss_flags: 0, ss_size: ALTERNATE_STACK_BYTES }
    }

    fn exchange_programs(&mut self, new: Option<&libc::stack_t>) -> Result<libc::stack_t, i32> {
        let mut old = self.programs;
        old.ss_flags |= exchange(None)?.ss_flags & libc::SS_ONSTACK;
        let Some(new) = new else { return Ok(old) };
        if old.ss_flags & libc::SS_ONSTACK != 0 {
            return Err(libc::EPERM);
        }
        let disabled = new.ss_flags & libc::SS_DISABLE != 0;
        if !disabled && new.ss_size < libc::MINSIGSTKSZ {
            return Err(libc::ENOMEM);
        }
        let serves = !disabled && new.ss_size >= ALTERNATE_STACK_BYTES && !in_shared_region(new);
        let own = self.description();
        exchange(Some(if serves { new } else { &own }))?;
        self.programs = if disabled { NO_STACK } else { *new };
        Ok(old)
    }
}

impl Drop for AlternateStack {
    fn drop(&mut self) {
        // Other code may have installed its own stack since.
        if exchange(None).is_ok_and(|now| now.ss_sp == self.first_byte()) {
            let programs =
                libc::stack_t { ss_flags: self.programs.ss_flags & !libc::SS_ONSTACK, ..self.programs };
            let _ = exchange(Some(&programs));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn current() -> libc::stack_t {
        exchange(None).unwrap()
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
    #[test]
    fn the_program_is_told_of_its_own_stack() {
        let thread = std::thread::spawn(|| {
            let mut memory = vec![0_u8; 2 * ALTERNATE_STACK_BYTES];
            let small =
                libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: libc::SIGSTKSZ };
            let large = libc::stack_t { ss_size: memory.len(), ..small };
            exchange_program_stack(Some(&small)).unwrap();
            install_alternate_stack().unwrap();
            let ours = current().ss_sp;
            assert_ne!(ours, small.ss_sp);
            let told = exchange_program_stack(Some(&large)).unwrap();
            assert_eq!((told.ss_sp, told.ss_size), (small.ss_sp, small.ss_size));
            assert_eq!(current().ss_sp, large.ss_sp);
            let told = exchange_program_stack(Some(&small)).unwrap();
            assert_eq!((told.ss_sp, told.ss_size, current().ss_sp), (large.ss_sp, large.ss_size, ours));
            let tiny = libc::stack_t { ss_size: 100, ..small };
            assert_eq!(exchange_program_stack(Some(&tiny)).err(), Some(libc::ENOMEM));
            exchange_program_stack(Some(&NO_STACK)).unwrap();
            assert_eq!(exchange_program_stack(None).unwrap().ss_flags, libc::SS_DISABLE);
            assert_eq!(current().ss_sp, ours);
        });
        thread.join().unwrap();
    }
}
