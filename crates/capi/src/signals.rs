//! The program's signal handlers and masks. Faults arrive as signals, so the program's handlers for those
//! signals run after ours, and no mask blocks them. The program reads back what it has set itself.
//!
//! In jobs whose faults are not signals everything goes straight to the C library, except handlers of SIGSEGV
//! and SIGBUS while the runtime reports a death before the default action.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

use hiroba_node::expect_handler_of;
use hiroba_node::program_signals::{
    believed_blocked, exchange_program_action, exchange_program_stack, fault_signals, set_believed_blocked,
};

use crate::reporting::set_errno;
use crate::system_calls::{Call, Returns};

static SIGMASK: Call = Call::new(c"pthread_sigmask", &[], Returns::Number);
static SIGSET: Call = Call::new(c"sigset", &[], Returns::Number);

pub(crate) static ALL: &[&Call] = &[&SIGMASK, &SIGSET];

/// Internal signals of the C library, for which it allows no handler.
const INTERNAL: [c_int; 2] = [32, 33];

fn failed(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// sigaction(2).
///
/// # Safety
/// `new` must be NULL or an action, `old` NULL or writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(
    number: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if INTERNAL.contains(&number) {
        return failed(libc::EINVAL);
    }
    // SAFETY: the caller's. It may lie in shared memory, so it is read before anything else.
    let new = unsafe { new.as_ref() }.copied();
    if new.is_some_and(|new| is_handler(new.sa_sigaction)) {
        expect_handler_of(number);
    }
    match exchange_program_action(number, new.as_ref()) {
        Err(errno) => failed(errno),
        Ok(before) => {
            if !old.is_null() {
                // SAFETY: the caller's.
                unsafe { old.write(before) };
            }
            0
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __sigaction(
    number: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { sigaction(number, new, old) }
}

fn is_handler(disposition: libc::sighandler_t) -> bool {
    disposition != libc::SIG_DFL && disposition != libc::SIG_IGN
}

fn handle(
    number: c_int,
    handler: libc::sighandler_t,
    flags: c_int,
    masks_itself: bool,
) -> libc::sighandler_t {
    if INTERNAL.contains(&number) || handler == libc::SIG_ERR {
        failed(libc::EINVAL);
        return libc::SIG_ERR;
    }
    // SAFETY: a plain C structure, of which zeros are a valid value.
    let mut new: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    if masks_itself {
        // SAFETY: writes only to a local set; an invalid number changes nothing.
        unsafe { libc::sigaddset(&raw mut new.sa_mask, number) };
    }
    if is_handler(handler) {
        expect_handler_of(number);
    }
    match exchange_program_action(number, Some(&new)) {
        Ok(before) => before.sa_sigaction,
        Err(errno) => {
            failed(errno);
            libc::SIG_ERR
        }
    }
}

/// signal(2) with BSD semantics.
#[unsafe(no_mangle)]
extern "C" fn signal(number: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    handle(number, handler, libc::SA_RESTART, true)
}

#[unsafe(no_mangle)]
extern "C" fn bsd_signal(number: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    signal(number, handler)
}

#[unsafe(no_mangle)]
extern "C" fn ssignal(number: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    signal(number, handler)
}

/// signal(2) with System V semantics: the handler is called once.
#[unsafe(no_mangle)]
extern "C" fn __sysv_signal(number: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    handle(number, handler, libc::SA_RESETHAND | libc::SA_NODEFER, false)
}

#[unsafe(no_mangle)]
extern "C" fn sysv_signal(number: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    __sysv_signal(number, handler)
}

/// sigset(3). Its effect on masks does not matter for signals that are never blocked.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigset(number: c_int, disposition: libc::sighandler_t) -> libc::sighandler_t {
    const SIG_HOLD: libc::sighandler_t = 2;
    let is_fault = number == libc::SIGBUS || number == libc::SIGSEGV;
    if is_fault && disposition != SIG_HOLD {
        return handle(number, disposition, 0, false);
    }
    if disposition != SIG_HOLD && is_handler(disposition) {
        expect_handler_of(number);
    }
    // SAFETY: the caller's.
    unsafe { SIGSET.call([number as usize, disposition]) as libc::sighandler_t }
}

fn kernel_part(set: &libc::sigset_t) -> u64 {
    // SAFETY: the first word of a sigset_t is the kernel's set, and every bit pattern is a value of it.
    unsafe { ptr::from_ref(set).cast::<u64>().read() }
}

fn set_kernel_part(set: &mut libc::sigset_t, bits: u64) {
    // SAFETY: as in `kernel_part`.
    unsafe { ptr::from_mut(set).cast::<u64>().write(bits) };
}

/// pthread_sigmask(3): 0 or an errno.
///
/// # Safety
/// `new` must be NULL or a set, `old` NULL or writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    new: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    let faults = fault_signals();
    if faults == 0 {
        // SAFETY: the caller's.
        return unsafe { SIGMASK.call([how as usize, new.addr(), old.addr()]) as c_int };
    }
    // SAFETY: the caller's. Sets may lie in shared memory, so the call gets copies. Only the kernel's part is
    // read: the program may have no more.
    let wanted = unsafe { new.as_ref() }.map(kernel_part);
    let mut set = empty_set();
    let place = match wanted {
        Some(wanted) => {
            let bits = if how == libc::SIG_UNBLOCK { wanted } else { wanted & !faults };
            set_kernel_part(&mut set, bits);
            &raw const set
        }
        None => ptr::null(),
    };
    let mut before = empty_set();
    // SAFETY: both sets are locals.
    let error = unsafe { SIGMASK.call([how as usize, place.addr(), (&raw mut before).addr()]) as c_int };
    if error != 0 {
        return error;
    }
    let believed = believed_blocked();
    if let Some(wanted) = wanted {
        set_believed_blocked(match how {
            libc::SIG_BLOCK => believed | (wanted & faults),
            libc::SIG_UNBLOCK => believed & !wanted,
            _ => wanted & faults,
        });
    }
    if !old.is_null() {
        let told = kernel_part(&before) | believed;
        set_kernel_part(&mut before, told);
        // SAFETY: the caller's.
        unsafe { old.write(before) };
    }
    0
}

fn empty_set() -> libc::sigset_t {
    // SAFETY: a plain C structure, of which zeros are a valid value.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// sigprocmask(2).
///
/// # Safety
/// As of [`pthread_sigmask`].
#[unsafe(no_mangle)]
unsafe extern "C" fn sigprocmask(how: c_int, new: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    // SAFETY: the caller's.
    match unsafe { pthread_sigmask(how, new, old) } {
        0 => 0,
        errno => failed(errno),
    }
}

/// sigaltstack(2).
///
/// # Safety
/// `new` must be NULL or a stack, `old` NULL or writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigaltstack(new: *const libc::stack_t, old: *mut libc::stack_t) -> c_int {
    // SAFETY: the caller's. It may lie in shared memory, so it is read before anything else.
    let new = unsafe { new.as_ref() }.copied();
    match exchange_program_stack(new.as_ref()) {
        Err(errno) => failed(errno),
        Ok(before) => {
            if !old.is_null() {
                // SAFETY: the caller's.
                unsafe { old.write(before) };
            }
            0
        }
    }
}
