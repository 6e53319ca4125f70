//! Signal handlers, which belong to the job.
//!
//! A handler that the program sets is set on all nodes. On node 0 it is called as in any process. On other
//! nodes it is called for signals to one thread: a fault, or a signal that `pthread_kill` has sent. Node 0
//! handles signals to the process, such as those that the launcher sends to all nodes.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::atomics;
use crate::control::{SIGNALS, THREADS, control};
use crate::face;
use crate::masks;
use crate::next::next;
use crate::record::this_record;
use crate::stacks::{in_program, privately};

/// The version of the job's actions that this node has applied.
static APPLIED: AtomicU32 = AtomicU32::new(0);

type Real = unsafe extern "C-unwind" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;

fn real() -> Real {
    next!(fn sigaction(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int)
}

/// sigaction(2).
///
/// # Safety
/// As of sigaction(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if !in_program() || !(0..SIGNALS as c_int).contains(&signal) {
        // SAFETY: the caller's.
        return unsafe { real()(signal, new, old) };
    }
    if face::hiroba_node() != 0 && !old.is_null() {
        // SAFETY: the caller passes NULL or a place for an action.
        unsafe { old.write(of_job(signal)) };
    }
    // SAFETY: the caller passes NULL or an action.
    let Some(action) = (unsafe { new.as_ref() }) else {
        let place = if face::hiroba_node() == 0 { old } else { ptr::null_mut() };
        // SAFETY: as above.
        return unsafe { real()(signal, ptr::null(), place) };
    };
    let mut possible = *action;
    atomics::keep_unblocked(&mut possible.sa_mask);
    let action = &possible;
    let error = if face::hiroba_node() == 0 {
        if atomics::takes_over(signal, action) {
            0
        } else {
            // SAFETY: as above.
            unsafe { real()(signal, action, old) }
        }
    } else {
        apply(signal, action)
    };
    if error == 0 {
        publish(signal, action);
    }
    error
}

/// signal(2): the handler remains set, and interrupted calls are restarted.
#[unsafe(no_mangle)]
extern "C-unwind" fn signal(number: c_int, handler: usize) -> usize {
    if !in_program() {
        // SAFETY: the kernel checks the number.
        return unsafe { next!(fn signal(c_int, usize) -> usize)(number, handler) };
    }
    let mut new = blank();
    new.sa_sigaction = handler;
    new.sa_flags = libc::SA_RESTART;
    // SAFETY: fills a local.
    unsafe { libc::sigaddset(&raw mut new.sa_mask, number) };
    let mut old = blank();
    // SAFETY: both are locals.
    let error = unsafe { sigaction(number, &raw const new, &raw mut old) };
    if error == 0 { old.sa_sigaction } else { libc::SIG_ERR }
}

fn blank() -> libc::sigaction {
    // SAFETY: zeros are a valid action: the default one.
    unsafe { std::mem::zeroed() }
}

/// Returns the action that the program has set for a signal.
fn of_job(signal: c_int) -> libc::sigaction {
    let known = &control().actions[signal as usize];
    let mut action = blank();
    action.sa_sigaction = known.handler.load(Relaxed) as usize;
    action.sa_flags = known.flags.load(Relaxed);
    // SAFETY: a set of signals begins with a word for the first 64, and the local is that long.
    unsafe { (&raw mut action.sa_mask).cast::<u64>().write(known.mask.load(Relaxed)) };
    action
}

/// Notes an action for all nodes, and has them set it.
fn publish(signal: c_int, action: &libc::sigaction) {
    let known = &control().actions[signal as usize];
    // SAFETY: a set of signals begins with a word for the first 64.
    let mask = unsafe { (&raw const action.sa_mask).cast::<u64>().read() };
    THREADS.hold(|held| {
        known.handler.store(action.sa_sigaction as u64, Relaxed);
        known.mask.store(mask, Relaxed);
        known.flags.store(action.sa_flags, Relaxed);
        known.is_set.store(1, Relaxed);
        let version = &control().actions_version;
        version.store(version.load(Relaxed) + 1, Relaxed);
        (1..face::hiroba_nodes() as usize).for_each(|node| held.tell_starter(node));
    });
}

/// Returns true if this node lacks actions that the program has set.
pub(crate) fn are_stale() -> bool {
    face::hiroba_node() != 0 && control().actions_version.load(Relaxed) != APPLIED.load(Relaxed)
}

/// Sets all of the program's actions on this node, which is not node 0.
pub(crate) fn apply_all() {
    privately(|| {
        let version = control().actions_version.load(Relaxed);
        for signal in 1..SIGNALS as c_int {
            if control().actions[signal as usize].is_set.load(Relaxed) != 0 {
                apply(signal, &of_job(signal));
            }
        }
        APPLIED.store(version, Relaxed);
    });
}

/// Sets one of the program's actions on this node, which is not node 0.
fn apply(signal: c_int, action: &libc::sigaction) -> c_int {
    if atomics::takes_over(signal, action) {
        return 0;
    }
    let mut own = *action;
    if own.sa_sigaction != libc::SIG_DFL && own.sa_sigaction != libc::SIG_IGN {
        own.sa_sigaction = on_signal as *const () as usize;
        own.sa_flags |= libc::SA_SIGINFO;
    }
    // SAFETY: the action is a local copy of one that the program has made.
    unsafe { real()(signal, &raw const own, ptr::null_mut()) }
}

/// Handles signals on nodes other than 0.
extern "C-unwind" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a description of the signal.
    let code = unsafe { (*info).si_code };
    let concerns_thread = code > 0 || code == libc::SI_TKILL;
    if !concerns_thread || this_record().is_none() {
        return;
    }
    let action = of_job(signal);
    match action.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {}
        handler => {
            type Handler = unsafe extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut c_void);
            // SAFETY: the program has set this address as a handler; a handler that takes only the number
            // finds it in the same register.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
            // SAFETY: the kernel's arguments.
            unsafe { handler(signal, info, context) };
        }
    }
}

/// pthread_sigmask(3).
///
/// # Safety
/// As of pthread_sigmask(3).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_sigmask(
    how: c_int,
    new: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    type Set = *const libc::sigset_t;
    let real = next!(fn pthread_sigmask(c_int, Set, *mut libc::sigset_t) -> c_int);
    // SAFETY: the caller passes NULL or a set.
    let Some(set) = (unsafe { new.as_ref() }).filter(|_| how != libc::SIG_UNBLOCK && in_program()) else {
        // SAFETY: the caller's.
        return unsafe { real(how, new, old) };
    };
    let mut possible = *set;
    atomics::keep_unblocked(&mut possible);
    for own in masks::own_signals() {
        // SAFETY: changes a local.
        unsafe { libc::sigdelset(&raw mut possible, own) };
    }
    // SAFETY: the set is a local; the rest is the caller's.
    unsafe { real(how, &raw const possible, old) }
}

/// sigprocmask(2).
///
/// # Safety
/// As of sigprocmask(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigprocmask(
    how: c_int,
    new: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: the caller's.
    match unsafe { pthread_sigmask(how, new, old) } {
        0 => 0,
        errno => {
            crate::heap::set_errno(errno);
            -1
        }
    }
}
