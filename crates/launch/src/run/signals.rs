//! Signals as events: blocked, read from a descriptor, and described by name.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};

/// The signals that end a job when the launcher gets them.
pub const FORWARDED: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// The signals that were ignored when this process began (`nohup`, or a shell's background job).
#[derive(Clone, Copy, Debug)]
pub struct Inherited {
    mask: libc::sigset_t,
    ignored: [bool; FORWARDED.len()],
}

impl Inherited {
    /// Returns true if `signal` was ignored.
    pub fn ignores(&self, signal: i32) -> bool {
        FORWARDED.iter().zip(self.ignored).any(|(number, ignored)| *number == signal && ignored)
    }
}

fn empty_set() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `set` is valid for writing one sigset_t.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: sigemptyset has initialised it.
    unsafe { set.assume_init() }
}

fn own_signals() -> libc::sigset_t {
    let mut set = empty_set();
    for signal in FORWARDED.into_iter().chain([libc::SIGCHLD]) {
        // SAFETY: `set` is an initialised set that is not shared.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    set
}

/// Blocks the signals that this process reads as events, and returns how it found them.
///
/// Must be called while there is one thread, since the mask belongs to a thread.
pub fn block() -> io::Result<Inherited> {
    let mut ignored = [false; FORWARDED.len()];
    for (slot, signal) in ignored.iter_mut().zip(FORWARDED) {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the new action is null, so this only writes the current one to `action`.
        let asked = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
        // SAFETY: all zeroes is a valid sigaction, whether or not the call filled it in.
        let action = unsafe { action.assume_init() };
        *slot = asked == 0 && action.sa_sigaction == libc::SIG_IGN;
    }
    // If the parent ignored SIGCHLD, the kernel would discard the nodes' statuses.
    // SAFETY: the default action runs no code of ours.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    let mut mask = empty_set();
    // SAFETY: both sets are initialised and outlive the call.
    let result = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &own_signals(), &mut mask) };
    if result == 0 { Ok(Inherited { mask, ignored }) } else { Err(io::Error::from_raw_os_error(result)) }
}

/// Restores in a child what this process inherited, except SIGPIPE: Rust ignores it, programs expect its
/// default.
pub fn restore(inherited: &Inherited) {
    // SAFETY: the default action runs no code of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    // SAFETY: the set is initialised; a null old set is allowed.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &inherited.mask, std::ptr::null_mut()) };
}

/// A signal that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    /// Its number.
    pub signal: i32,
    /// Whether the kernel sent it (Ctrl-C, hangup), in which case the whole process group got it.
    pub from_terminal: bool,
}

/// The descriptor that blocked signals are read from.
#[derive(Debug)]
pub struct SignalDescriptor(pub OwnedFd);

impl SignalDescriptor {
    /// Opens a descriptor for the signals that [`block`] blocked.
    pub fn open() -> io::Result<SignalDescriptor> {
        // SAFETY: the set is initialised; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &own_signals(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: signalfd has just returned this descriptor; nobody else owns it.
        Ok(SignalDescriptor(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Returns the next signal, if one is pending. Lower numbers come first, so a Ctrl-C is seen before the
    /// deaths that it caused.
    pub fn next(&self) -> Option<Arrived> {
        let mut record = [0u8; size_of::<libc::signalfd_siginfo>()];
        let got = rustix::io::read(&self.0, &mut record).ok()?;
        if got < record.len() {
            return None;
        }
        // The record begins with signo: u32, errno: i32, code: i32 (man 2 signalfd).
        let word =
            |at: usize| i32::from_ne_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
        Some(Arrived { signal: word(0), from_terminal: word(8) == libc::SI_KERNEL })
    }
}

/// Formats a signal's number and name, as in `signal 11 (SIGSEGV)`.
pub fn describe(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGSYS => "SIGSYS",
        _ => return format!("signal {signal}"),
    };
    format!("signal {signal} ({name})")
}
