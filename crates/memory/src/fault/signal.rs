//! SIGBUS and SIGSEGV: ours first, then whoever handled them before.
//!
//! The handler claims faults of the application's view and hands every other one on, as if it were not there: the
//! program's own handlers, a language runtime's stack checks and the default death by the right signal keep working.

use core::{
    ffi::{c_int, c_void},
    mem::{MaybeUninit, transmute},
    ptr,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering},
    time::Duration,
};
use std::sync::{Arc, Mutex, PoisonError};

use super::{FaultKind, FaultOutcome, FaultSourceKind};
use crate::MemoryError;

/// The signals by which faults come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    Bus,
    Segmentation,
}

impl Signal {
    fn number(self) -> c_int {
        match self {
            Signal::Bus => libc::SIGBUS,
            Signal::Segmentation => libc::SIGSEGV,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Signal::Bus => "SIGBUS",
            Signal::Segmentation => "SIGSEGV",
        }
    }

    fn slot(self) -> &'static Slot {
        match self {
            Signal::Bus => &BUS,
            Signal::Segmentation => &SEGMENTATION,
        }
    }
}

/// What the signal says.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawFault {
    pub(super) address: usize,
    /// `si_code` of sigaction(2); positive when the kernel raised it.
    pub(super) code: i32,
    pub(super) kind: FaultKind,
    /// Whether the page-table entry was there (and did not allow the access), when the processor says.
    pub(super) entry_present: Option<bool>,
}

/// Who gets the faults of a signal, in signal context.
pub(super) trait SignalReceiver: Send + Sync {
    fn receive(&self, raw: RawFault) -> FaultOutcome;
}

/// One signal's state: what the handler, which gets no argument of ours, finds its way by.
struct Slot {
    /// A boxed receiver, null when there is none.
    active: AtomicPtr<Arc<dyn SignalReceiver>>,
    /// How many threads may be using `active`.
    inside: AtomicUsize,
    /// What was installed before us; null for the default action. Never freed: a thread may be about to look.
    previous: AtomicPtr<libc::sigaction>,
    /// The last receiver went while another handler lay over ours, which may still call it.
    buried: AtomicBool,
}

static BUS: Slot = Slot::new();
static SEGMENTATION: Slot = Slot::new();

/// Held while handlers are installed or removed; never in signal context.
static CHANGING: Mutex<()> = Mutex::new(());

/// How long removal waits for threads inside the handler, by so many milliseconds; then their receiver
/// is left to them for ever.
const REMOVAL_PATIENCE_MS: u32 = 1000;

/// A receiver in place; dropping it restores what was there before.
pub(super) struct Installed {
    signal: Signal,
}

impl Installed {
    pub(super) fn install(
        signal: Signal,
        kind: FaultSourceKind,
        receiver: Arc<dyn SignalReceiver>,
    ) -> Result<Installed, MemoryError> {
        let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = signal.slot();
        if !slot.active.load(Ordering::SeqCst).is_null() {
            return Err(MemoryError::AlreadyOpen { kind });
        }
        let current = exchange_action(signal.number(), None)?;
        let on_top = is_ours(&current);
        if !on_top && slot.buried.load(Ordering::SeqCst) {
            // Over a handler that calls ours, ours would call it, without end.
            return Err(MemoryError::HandlerBuried { signal: signal.name() });
        }
        if !on_top {
            slot.previous.store(Box::into_raw(Box::new(current)), Ordering::SeqCst);
        }
        slot.active.store(Box::into_raw(Box::new(receiver)), Ordering::SeqCst);
        slot.buried.store(false, Ordering::SeqCst);
        let installed = Installed { signal };
        exchange_action(signal.number(), Some(&our_action()))?;
        Ok(installed)
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = self.signal.slot();
        let number = self.signal.number();
        match exchange_action(number, None) {
            Ok(current) if is_ours(&current) => {
                let default = action(libc::SIG_DFL, 0);
                // SAFETY: what `previous` points to is never freed.
                let previous = unsafe { slot.previous.load(Ordering::SeqCst).as_ref() };
                // The signals are ones that sigaction accepts, and the action is one that it gave us.
                let _ = exchange_action(number, Some(previous.unwrap_or(&default)));
            }
            _ => slot.buried.store(true, Ordering::SeqCst),
        }
        // SYNC POINT: with `Slot::dispatch`; who counted itself in before this swap is waited for, who comes after sees null.
        let receiver = slot.active.swap(ptr::null_mut(), Ordering::SeqCst);
        for _ in 0..REMOVAL_PATIENCE_MS {
            if slot.inside.load(Ordering::SeqCst) == 0 {
                // SAFETY: `install` made the box, the swap took it out of reach, and nobody is inside.
                drop(unsafe { Box::from_raw(receiver) });
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Slot {
    const fn new() -> Slot {
        Slot {
            active: AtomicPtr::new(ptr::null_mut()),
            inside: AtomicUsize::new(0),
            previous: AtomicPtr::new(ptr::null_mut()),
            buried: AtomicBool::new(false),
        }
    }

    fn dispatch(&self, raw: RawFault) -> FaultOutcome {
        // SYNC POINT: with `Installed::drop`; counting comes before looking.
        self.inside.fetch_add(1, Ordering::SeqCst);
        // SAFETY: null or a box that is not freed while anyone is counted inside.
        let outcome = match unsafe { self.active.load(Ordering::SeqCst).as_ref() } {
            Some(receiver) => receiver.receive(raw),
            None => FaultOutcome::NotOurs,
        };
        self.inside.fetch_sub(1, Ordering::SeqCst);
        outcome
    }

    /// Does what would have been done without us.
    fn chain(&self, number: c_int, code: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: what `previous` points to is never freed.
        let previous = unsafe { self.previous.load(Ordering::SeqCst).as_ref() };
        match previous {
            // A fault cannot be ignored: the kernel takes the default action then.
            Some(action) if action.sa_sigaction == libc::SIG_IGN && code <= 0 => {}
            Some(action) if action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN => {
                if action.sa_flags & libc::SA_RESETHAND != 0 {
                    self.previous.store(ptr::null_mut(), Ordering::SeqCst);
                }
                adopt_mask(action, number, context);
                call(action, number, info, context);
            }
            _ => die(number, code),
        }
    }
}

/// Restores the default action: the fault comes again when the handler returns, and kills with this signal.
fn die(number: c_int, code: i32) {
    let _ = exchange_action(number, Some(&action(libc::SIG_DFL, 0)));
    if code <= 0 {
        // Sent by someone, so it does not come again by itself.
        // SAFETY: raise touches no memory.
        unsafe { libc::raise(number) };
    }
}

/// Sets the signal mask that the kernel would have set for `action`, except that the signal itself stays
/// deliverable: the program's handler may touch shared memory, which to it is plain memory.
fn adopt_mask(action: &libc::sigaction, number: c_int, context: *mut c_void) {
    // SAFETY: the kernel passes a ucontext_t to SA_SIGINFO handlers, valid until they return.
    let interrupted = unsafe { &*context.cast::<libc::ucontext_t>() };
    let mut mask = interrupted.uc_sigmask;
    for other in 1..=libc::SIGRTMAX() {
        // SAFETY: reads the set only.
        let member = unsafe { libc::sigismember(&raw const action.sa_mask, other) } == 1;
        if member && other != number {
            // SAFETY: writes to a local set only.
            unsafe { libc::sigaddset(&raw mut mask, other) };
        }
    }
    // SAFETY: reads a local set only.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, ptr::null_mut()) };
}

fn call(action: &libc::sigaction, number: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    if action.sa_flags & libc::SA_SIGINFO != 0 {
        type WithInfo = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
        // SAFETY: with SA_SIGINFO, and neither SIG_DFL nor SIG_IGN, the field holds such a function.
        let handler = unsafe { transmute::<libc::sighandler_t, WithInfo>(action.sa_sigaction) };
        handler(number, info, context);
    } else {
        // SAFETY: without SA_SIGINFO, and neither SIG_DFL nor SIG_IGN, the field holds such a function.
        let handler = unsafe { transmute::<libc::sighandler_t, extern "C" fn(c_int)>(action.sa_sigaction) };
        handler(number);
    }
}

/// The handler of both signals.
extern "C" fn on_signal(number: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // The interrupted code may be between a system call and its look at errno.
    // SAFETY: returns the address of this thread's errno, always valid.
    let errno_place = unsafe { libc::__errno_location() };
    // SAFETY: as above, and only this thread uses it.
    let errno = unsafe { errno_place.read() };
    let slot = if number == libc::SIGBUS { &BUS } else { &SEGMENTATION };
    let raw = decode(info, context);
    if slot.dispatch(raw) == FaultOutcome::NotOurs {
        slot.chain(number, raw.code, info, context);
    }
    // SAFETY: as above.
    unsafe { errno_place.write(errno) };
}

fn decode(info: *mut libc::siginfo_t, context: *mut c_void) -> RawFault {
    // SAFETY: the kernel passes a siginfo_t to SA_SIGINFO handlers, valid until they return.
    let info = unsafe { &*info };
    // SAFETY: reads the place where SIGBUS and SIGSEGV have their address; of a sent signal it has another meaning,
    // and `code` tells.
    let address = unsafe { info.si_addr() };
    let (kind, entry_present) = decode_error(context);
    RawFault { address: address.addr(), code: info.si_code, kind, entry_present }
}

/// The page-fault error code (Intel SDM volume 3, "Page-Fault Exceptions"): bit 0 present, bit 1 write.
#[cfg(target_arch = "x86_64")]
fn decode_error(context: *mut c_void) -> (FaultKind, Option<bool>) {
    // SAFETY: the kernel passes a ucontext_t to SA_SIGINFO handlers, valid until they return.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    let error = context.uc_mcontext.gregs[libc::REG_ERR as usize];
    let kind = if error & 2 != 0 { FaultKind::Write } else { FaultKind::Read };
    (kind, Some(error & 1 != 0))
}

#[cfg(not(target_arch = "x86_64"))]
fn decode_error(_context: *mut c_void) -> (FaultKind, Option<bool>) {
    (FaultKind::Unknown, None)
}

fn is_ours(action: &libc::sigaction) -> bool {
    action.sa_sigaction == on_signal as *const () as libc::sighandler_t
}

fn our_action() -> libc::sigaction {
    // SA_NODEFER: a handler of the program that we call may itself touch shared memory.
    // SA_RESTART: what raises these signals is no system call, but others may send them.
    let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
    let mut ours = action(on_signal as *const () as libc::sighandler_t, flags);
    // The program's other handlers must not run above protocol code, where they might fault again.
    // SAFETY: writes to a local set only.
    unsafe { libc::sigfillset(&raw mut ours.sa_mask) };
    let raised_by_the_processor =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT, libc::SIGSYS];
    for number in raised_by_the_processor {
        // SAFETY: writes to a local set only.
        unsafe { libc::sigdelset(&raw mut ours.sa_mask, number) };
    }
    ours
}

fn action(handler: libc::sighandler_t, flags: c_int) -> libc::sigaction {
    // SAFETY: a plain C structure, of which zeros are a valid value (an empty mask, no restorer).
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    action
}

/// sigaction(2): sets `new` if given, returns what was there.
fn exchange_action(number: c_int, new: Option<&libc::sigaction>) -> Result<libc::sigaction, MemoryError> {
    let mut old = action(libc::SIG_DFL, 0);
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `new` is null or a valid action whose handler is a function of the kind its flags say; `old` is ours.
    if unsafe { libc::sigaction(number, new, &raw mut old) } == 0 {
        return Ok(old);
    }
    let errno = rustix::io::Errno::from_io_error(&std::io::Error::last_os_error());
    Err(MemoryError::System { operation: "sigaction", errno: errno.unwrap_or(rustix::io::Errno::INVAL) })
}
