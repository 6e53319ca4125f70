//! Sites that are too short for a jump: a trap leads from them to their stubs.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

unsafe extern "C" {
    /// sigaction(2) under a name that this library does not override.
    fn __sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
}

/// Sites and their stubs, by ascending address of the site.
static TRAPS: OnceLock<Vec<(u64, u64)>> = OnceLock::new();

/// The action that the program has set for the signal of traps.
static PROGRAMS: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// Sets the handler of traps. `traps` are sites and their stubs.
pub(super) fn prepare(mut traps: Vec<(u64, u64)>) {
    if traps.is_empty() {
        return;
    }
    traps.sort_unstable();
    let _ = TRAPS.set(traps);
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: zeros are a valid action, and its fields are set below.
    let action = unsafe { action.assume_init_mut() };
    action.sa_sigaction = on_trap as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART;
    // SAFETY: the handler only looks the site up.
    unsafe { __sigaction(libc::SIGILL, action, ptr::null_mut()) };
}

extern "C" fn on_trap(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the thread's context, which nothing else uses.
    let context_of_thread = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let at = &mut context_of_thread.uc_mcontext.gregs[libc::REG_RIP as usize];
    let traps = TRAPS.get().map_or(&[][..], Vec::as_slice);
    if let Ok(index) = traps.binary_search_by_key(&(*at as u64), |(site, _)| *site) {
        *at = traps[index].1.cast_signed();
        return;
    }
    // SAFETY: an action that `takes_over` has kept permanently, or NULL.
    let programs = unsafe { PROGRAMS.load(Relaxed).as_ref() };
    match programs.map_or(libc::SIG_DFL, |action| action.sa_sigaction) {
        libc::SIG_DFL | libc::SIG_IGN => {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed();
            // The instruction traps again and ends the process.
            // SAFETY: zeros are the default action.
            unsafe { __sigaction(signal, action.as_mut_ptr(), ptr::null_mut()) };
        }
        handler => {
            type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
            // SAFETY: the program has set this address as a handler; one that takes only the number finds it
            // in the same register.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
            handler(signal, info, context);
        }
    }
}

/// Keeps the program's action for the signal of traps instead of setting it. Returns false if the signal is
/// another one, or there are no traps.
pub(crate) fn takes_over(signal: c_int, action: &libc::sigaction) -> bool {
    if signal != libc::SIGILL || TRAPS.get().is_none() {
        return false;
    }
    // Handlers may be reading the one before, so that is never freed.
    PROGRAMS.store(Box::leak(Box::new(*action)), Relaxed);
    true
}

/// Takes the signal of traps out of a set of signals to be blocked: a blocked trap would end the process.
pub(crate) fn keep_unblocked(set: &mut libc::sigset_t) {
    if TRAPS.get().is_some() {
        // SAFETY: changes the caller's set.
        unsafe { libc::sigdelset(set, libc::SIGILL) };
    }
}
