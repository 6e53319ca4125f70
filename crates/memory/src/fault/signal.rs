//! Handles SIGBUS and SIGSEGV: first our handler, then the one that was installed before.
//!
//! The handler serves faults in the application's view and passes every other one on as if it did not exist.
//! So the program's own handlers, a language runtime's stack checks, and death by the right signal keep
//! working.

use core::{
    cell::UnsafeCell,
    ffi::{c_int, c_void},
    mem::{MaybeUninit, transmute},
    ptr,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering},
    time::Duration,
};
use std::sync::{Arc, Mutex, PoisonError};

use hiroba_base::legs::{self, Leg};

use super::{FaultKind, FaultOutcome, FaultSourceKind};
use crate::MemoryError;

/// The signals that report faults.
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

/// The information from a signal.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawFault {
    pub(super) address: usize,
    /// `si_code` of sigaction(2); positive when the kernel raised it.
    pub(super) code: i32,
    pub(super) kind: FaultKind,
    /// True if the page-table entry was present (and did not allow the access), if the processor says so.
    pub(super) entry_present: Option<bool>,
    /// The interrupted instruction, if the processor's context is known.
    pub(super) program_counter: Option<usize>,
    /// True if the instruction itself could not be loaded.
    pub(super) is_fetch: bool,
}

/// Receives the faults of a signal, in signal context.
pub(super) trait SignalReceiver: Send + Sync {
    fn receive(&self, raw: RawFault) -> FaultOutcome;
}

/// One signal's state, which is static because the handler gets no argument of ours.
struct Slot {
    /// A boxed receiver, null if there is none.
    active: AtomicPtr<Arc<dyn SignalReceiver>>,
    /// Number of threads that may be using `active`.
    inside: AtomicUsize,
    chained: Guarded<Chained>,
}

/// The handler that ours replaced.
struct Chained {
    /// The action that the kernel would have without us: the one from before, or the one that the program has
    /// installed since.
    action: libc::sigaction,
    /// True if our handler is installed in the kernel.
    governs: bool,
    /// True if the last receiver was removed while another handler, which may still call ours, covered ours.
    buried: bool,
}

static BUS: Slot = Slot::new();
static SEGMENTATION: Slot = Slot::new();

/// Held while handlers are installed or removed; never in signal context.
static CHANGING: Mutex<()> = Mutex::new(());

/// Milliseconds for which removal waits for threads inside the handler. After that their receiver is never
/// freed.
const REMOVAL_PATIENCE_MS: u32 = 1000;

/// An installed receiver; dropping it restores the previous action.
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
        slot.chained.with(|chained| {
            let current = exchange_action(signal.number(), None)?;
            let on_top = is_ours(&current);
            if !on_top && chained.buried {
                // The covering handler calls ours; installed over it, ours would call it in turn, endlessly.
                return Err(MemoryError::HandlerBuried { signal: signal.name() });
            }
            slot.active.store(Box::into_raw(Box::new(receiver)), Ordering::SeqCst);
            chained.buried = false;
            put_ours(signal.number(), chained, current)
        })?;
        let installed = Installed { signal };
        program::strip(signal.number());
        Ok(installed)
    }
}

/// Installs our handler over `current`.
fn put_ours(number: c_int, chained: &mut Chained, current: libc::sigaction) -> Result<(), MemoryError> {
    if !is_ours(&current) {
        chained.action = current;
    }
    chained.governs = true;
    exchange_action(number, Some(&our_action())).map(drop)
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = self.signal.slot();
        let number = self.signal.number();
        program::restore(number);
        slot.chained.with(|chained| match exchange_action(number, None) {
            Ok(current) if is_ours(&current) && last_words().is_some() => {}
            Ok(current) if is_ours(&current) => {
                chained.governs = false;
                // The signals are accepted by sigaction, and the action came from it.
                let _ = exchange_action(number, Some(&chained.action));
            }
            _ => {
                chained.governs = false;
                chained.buried = true;
            }
        });
        // SYNC POINT: with `Slot::dispatch`. Threads counted inside before this swap are waited for; later
        // ones see null.
        let receiver = slot.active.swap(ptr::null_mut(), Ordering::SeqCst);
        for _ in 0..REMOVAL_PATIENCE_MS {
            if slot.inside.load(Ordering::SeqCst) == 0 {
                // SAFETY: `install` made the box, the swap took it out of reach, and no thread is inside.
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
            chained: Guarded::new(Chained { action: DEFAULT_ACTION, governs: false, buried: false }),
        }
    }

    fn dispatch(&self, raw: RawFault) -> FaultOutcome {
        // SYNC POINT: with `Installed::drop`; counting precedes the load.
        self.inside.fetch_add(1, Ordering::SeqCst);
        // SAFETY: null or a box that is not freed while any thread is counted inside.
        let outcome = match unsafe { self.active.load(Ordering::SeqCst).as_ref() } {
            Some(receiver) => receiver.receive(raw),
            None => FaultOutcome::NotOurs,
        };
        self.inside.fetch_sub(1, Ordering::SeqCst);
        outcome
    }

    /// Does what would have been done without us.
    fn chain(&self, number: c_int, raw: RawFault, info: *mut libc::siginfo_t, context: *mut c_void) {
        let action = self.chained.with(|chained| {
            let action = chained.action;
            if has_handler(&action) && action.sa_flags & libc::SA_RESETHAND != 0 {
                chained.action = DEFAULT_ACTION;
            }
            action
        });
        if has_handler(&action) {
            adopt_mask(&action, number, context);
            call(&action, number, info, context);
        } else if action.sa_sigaction != libc::SIG_IGN || raw.code > 0 {
            // A fault cannot be ignored: the kernel then takes the default action.
            die(number, raw);
        }
    }
}

fn has_handler(action: &libc::sigaction) -> bool {
    action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN
}

/// A function that may report a fatal `signal` in signal context, before the process dies.
type LastWords = fn(signal: i32, address: Option<usize>, program_counter: Option<usize>);

/// `si_code` of a fault whose address the processor does not report (`SI_KERNEL`).
const FROM_KERNEL: i32 = 0x80;

static LAST_WORDS: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

fn last_words() -> Option<LastWords> {
    let function = LAST_WORDS.load(Ordering::Acquire);
    // SAFETY: `set_last_words` stored such a function; null means none.
    unsafe { transmute::<*mut (), Option<LastWords>>(function) }
}

/// Registers a function to be called, in signal context, when a memory access is about to kill the process:
/// one that is not a fault of ours, and for which the program has no handler. It may only do what a signal
/// handler may.
///
/// From then on our handler precedes the default action of both signals, whether or not a source uses them.
pub fn set_last_words(function: LastWords) {
    let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    LAST_WORDS.store(function as *mut (), Ordering::Release);
    for signal in [Signal::Bus, Signal::Segmentation] {
        signal.slot().chained.with(|chained| {
            // Without it the process dies by the same signal, but without a report.
            if let Ok(current) = exchange_action(signal.number(), None)
                && !chained.buried
            {
                let _ = put_ours(signal.number(), chained, current);
            }
        });
    }
}

/// True once a thread has begun its last words. A [`Reminder`](super::Reminder) ends them.
static HAS_SPOKEN: AtomicBool = AtomicBool::new(false);

/// Restores the default action: the fault repeats when the handler returns, and kills with this signal.
fn die(number: c_int, raw: RawFault) {
    let is_reminder = raw.code == libc::SI_TIMER && HAS_SPOKEN.load(Ordering::Relaxed);
    if (raw.code > 0 || is_reminder)
        && let Some(speak) = last_words()
    {
        HAS_SPOKEN.store(true, Ordering::Relaxed);
        speak(number, (raw.code != FROM_KERNEL).then_some(raw.address), raw.program_counter);
    }
    let _ = exchange_action(number, Some(&DEFAULT_ACTION));
    if raw.code <= 0 {
        // A signal that was sent does not repeat by itself.
        // SAFETY: raise touches no memory.
        unsafe { libc::raise(number) };
    }
}

/// Sets the signal mask that the kernel would have set for `action`, except that the signals of faults stay
/// unblocked: the program's handler may access shared memory, which is plain memory to it.
fn adopt_mask(action: &libc::sigaction, number: c_int, context: *mut c_void) {
    // SAFETY: the kernel passes a ucontext_t to SA_SIGINFO handlers, valid until they return.
    let interrupted = unsafe { &*context.cast::<libc::ucontext_t>() };
    let wanted = bits(&interrupted.uc_sigmask) | bits(&action.sa_mask);
    exchange_kernel_mask(libc::SIG_SETMASK, wanted & !(bit(number) | program::fault_signals()));
}

fn call(action: &libc::sigaction, number: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    if action.sa_flags & libc::SA_SIGINFO != 0 {
        type WithInfo = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
        // SAFETY: with SA_SIGINFO, and neither SIG_DFL nor SIG_IGN, the field contains such a function.
        let handler = unsafe { transmute::<libc::sighandler_t, WithInfo>(action.sa_sigaction) };
        handler(number, info, context);
    } else {
        // SAFETY: without SA_SIGINFO, and neither SIG_DFL nor SIG_IGN, the field contains such a function.
        let handler = unsafe { transmute::<libc::sighandler_t, extern "C" fn(c_int)>(action.sa_sigaction) };
        handler(number);
    }
}

/// The handler of both signals.
extern "C" fn on_signal(number: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // The interrupted code may be between a system call and reading errno.
    // SAFETY: returns the address of this thread's errno, always valid.
    let errno_place = unsafe { libc::__errno_location() };
    // SAFETY: as above, and only this thread uses it.
    let errno = unsafe { errno_place.read() };
    legs::end(Leg::Trap);
    let slot = if number == libc::SIGBUS { &BUS } else { &SEGMENTATION };
    let raw = decode(info, context);
    if slot.dispatch(raw) == FaultOutcome::NotOurs {
        slot.chain(number, raw, info, context);
    }
    legs::end(Leg::Leave);
    // SAFETY: as above.
    unsafe { errno_place.write(errno) };
}

fn decode(info: *mut libc::siginfo_t, context: *mut c_void) -> RawFault {
    // SAFETY: the kernel passes a siginfo_t to SA_SIGINFO handlers, valid until they return.
    let info = unsafe { &*info };
    // SAFETY: reads the field in which SIGBUS and SIGSEGV have their address. For a sent signal it has
    // another meaning, which `code` distinguishes.
    let address = unsafe { info.si_addr() };
    let (kind, entry_present) = decode_error(context);
    let address = address.addr();
    let program_counter = program_counter(context);
    let is_fetch = is_fetch(address, program_counter);
    RawFault { address, code: info.si_code, kind, entry_present, program_counter, is_fetch }
}

/// Returns true if an access to `address` fetched an instruction: an instruction that runs has been loaded,
/// so only a fault within its own bytes can be a fetch.
pub fn is_fetch(address: usize, program_counter: Option<usize>) -> bool {
    /// x86 has the longest instructions.
    const INSTRUCTION_BYTES_MAX: usize = 15;
    let page = |address: usize| address / rustix::param::page_size();
    program_counter.is_some_and(|at| {
        let crosses = page(at) != page(address) && (at..at + INSTRUCTION_BYTES_MAX).contains(&address);
        at == address || crosses
    })
}

#[cfg(target_arch = "x86_64")]
fn program_counter(context: *mut c_void) -> Option<usize> {
    // SAFETY: the kernel passes a ucontext_t to SA_SIGINFO handlers, valid until they return.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    Some(context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize)
}

#[cfg(target_arch = "aarch64")]
fn program_counter(context: *mut c_void) -> Option<usize> {
    // SAFETY: the kernel passes a ucontext_t to SA_SIGINFO handlers, valid until they return.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    Some(context.uc_mcontext.pc as usize)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn program_counter(_context: *mut c_void) -> Option<usize> {
    None
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
    // SA_NODEFER: a handler of the program that we call may itself access shared memory.
    // SA_RESTART: faults do not interrupt system calls, but other processes may send these signals.
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
    libc::sigaction { sa_sigaction: handler, sa_flags: flags, ..DEFAULT_ACTION }
}

// SAFETY: a plain C structure, of which zeros are a valid value: SIG_DFL, an empty mask, no restorer.
const DEFAULT_ACTION: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };

type Sigaction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;

/// Returns the C library's own sigaction(2). The C face intercepts that name, and gives the program
/// [`exchange_program_action`].
fn system_sigaction() -> Sigaction {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut found = FOUND.load(Ordering::Acquire);
    if found.is_null() {
        // SAFETY: looks a name up; the name is a C string.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"sigaction".as_ptr()) };
        FOUND.store(found, Ordering::Release);
    }
    if found.is_null() {
        // No later library has it: the program is linked statically, so no other library intercepts it
        // either.
        return libc::sigaction;
    }
    // SAFETY: the C library's sigaction has this signature.
    unsafe { transmute::<*mut c_void, Sigaction>(found) }
}

/// Calls sigaction(2): sets `new` if given, returns the previous action.
fn exchange_action(number: c_int, new: Option<&libc::sigaction>) -> Result<libc::sigaction, MemoryError> {
    let mut old = DEFAULT_ACTION;
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `new` is null or a valid action whose handler has the kind that its flags say; `old` is ours.
    if unsafe { system_sigaction()(number, new, &raw mut old) } == 0 {
        return Ok(old);
    }
    let errno = rustix::io::Errno::from_io_error(&std::io::Error::last_os_error());
    Err(MemoryError::System { operation: "sigaction", errno: errno.unwrap_or(rustix::io::Errno::INVAL) })
}

/// Number of signals that the kernel knows, one bit each in its masks.
const SIGNALS: c_int = 64;

fn bit(number: c_int) -> u64 {
    if (1..=SIGNALS).contains(&number) { 1 << (number - 1) } else { 0 }
}

/// Returns the kernel's part of a signal set.
fn bits(set: &libc::sigset_t) -> u64 {
    // SAFETY: the first word of a sigset_t is the kernel's set, and every bit pattern is valid.
    unsafe { ptr::from_ref(set).cast::<u64>().read() }
}

fn set_bits(set: &mut libc::sigset_t, bits: u64) {
    // SAFETY: as in `bits`.
    unsafe { ptr::from_mut(set).cast::<u64>().write(bits) };
}

/// Calls rt_sigprocmask(2) without the C library's part in it; returns the previous mask.
fn exchange_kernel_mask(how: c_int, mask: u64) -> u64 {
    let mut old = 0_u64;
    let (number, new, old_place) = (libc::SYS_rt_sigprocmask, &raw const mask, &raw mut old);
    // SAFETY: both masks are locals of the given size.
    unsafe { libc::syscall(number, how, new, old_place, size_of::<u64>()) };
    old
}

/// A value that is changed in signal context too. A thread that changes it is never interrupted.
struct Guarded<T> {
    busy: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `with` lets one thread at a time access the value, which is plain data.
unsafe impl<T> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    const fn new(value: T) -> Guarded<T> {
        Guarded { busy: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Runs `act` on the value. It must not fault, nor call this function.
    fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        let before = exchange_kernel_mask(libc::SIG_SETMASK, u64::MAX);
        while self.busy.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        // SAFETY: `busy` was free and is ours now: no other code refers to the value.
        let result = act(unsafe { &mut *self.value.get() });
        self.busy.store(false, Ordering::Release);
        exchange_kernel_mask(libc::SIG_SETMASK, before);
        result
    }
}

/// The program's view of signals.
mod program {
    use core::{cell::Cell, ffi::c_int, sync::atomic::AtomicU64, sync::atomic::Ordering};

    use super::{
        SIGNALS, Signal, bit, bits, exchange_action, exchange_kernel_mask, has_handler, is_ours, set_bits,
    };

    /// The signals of faults: these are never blocked, whatever the program requests.
    static FAULT_SIGNALS: AtomicU64 = AtomicU64::new(0);

    /// By signal: the signals that its handler's mask would also block without us.
    static STRIPPED: [AtomicU64; SIGNALS as usize + 1] = [const { AtomicU64::new(0) }; SIGNALS as usize + 1];

    thread_local! {
        static BELIEVED_BLOCKED: Cell<u64> = const { Cell::new(0) };
    }

    /// Returns the signals of faults, bit n-1 for signal n: they must not be blocked in any thread.
    pub fn fault_signals() -> u64 {
        FAULT_SIGNALS.load(Ordering::Acquire)
    }

    /// Returns which of [`fault_signals`] the program believes to be blocked in the calling thread.
    pub fn believed_blocked() -> u64 {
        BELIEVED_BLOCKED.try_with(Cell::get).unwrap_or(0)
    }

    /// Sets the value that [`believed_blocked`] returns.
    pub fn set_believed_blocked(signals: u64) {
        let _ = BELIEVED_BLOCKED.try_with(|blocked| blocked.set(signals));
    }

    /// Implements sigaction(2) for the program: an action that it installs for a signal of ours comes after
    /// our handler, and the returned action is the program's own.
    ///
    /// # Errors
    /// The errno of sigaction(2).
    pub fn exchange_program_action(
        number: c_int,
        new: Option<&libc::sigaction>,
    ) -> Result<libc::sigaction, i32> {
        for signal in [Signal::Bus, Signal::Segmentation] {
            if signal.number() != number {
                continue;
            }
            return signal.slot().chained.with(|chained| {
                if !chained.governs {
                    return exchange(number, new);
                }
                let old = chained.action;
                chained.action = new.copied().unwrap_or(old);
                Ok(old)
            });
        }
        let Some(stripped) = usize::try_from(number).ok().and_then(|number| STRIPPED.get(number)) else {
            return exchange(number, new);
        };
        let before = stripped.load(Ordering::Relaxed);
        let new = new.map(|new| {
            let withheld = bits(&new.sa_mask) & fault_signals();
            stripped.store(withheld, Ordering::Relaxed);
            let mut new = *new;
            let mask = bits(&new.sa_mask) & !withheld;
            set_bits(&mut new.sa_mask, mask);
            new
        });
        let result = exchange(number, new.as_ref());
        result.inspect_err(|_| stripped.store(before, Ordering::Relaxed)).map(|mut old| {
            let mask = bits(&old.sa_mask) | before;
            set_bits(&mut old.sa_mask, mask);
            old
        })
    }

    fn exchange(number: c_int, new: Option<&libc::sigaction>) -> Result<libc::sigaction, i32> {
        exchange_action(number, new)
            .map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL))
    }

    /// Removes the signal from the calling thread's mask and from every handler's.
    pub(super) fn strip(number: c_int) {
        FAULT_SIGNALS.fetch_or(bit(number), Ordering::AcqRel);
        let before = exchange_kernel_mask(libc::SIG_UNBLOCK, bit(number));
        set_believed_blocked(believed_blocked() | (before & bit(number)));
        each_mask(|other, action| {
            if bits(&action.sa_mask) & bit(number) != 0 {
                STRIPPED[other].fetch_or(bit(number), Ordering::Relaxed);
                let mask = bits(&action.sa_mask) & !bit(number);
                set_bits(&mut action.sa_mask, mask);
                return true;
            }
            false
        });
    }

    /// Puts the signal back into every handler's mask; threads keep theirs until they set it again.
    pub(super) fn restore(number: c_int) {
        FAULT_SIGNALS.fetch_and(!bit(number), Ordering::AcqRel);
        each_mask(|other, action| {
            let withheld = STRIPPED[other].fetch_and(!bit(number), Ordering::Relaxed) & bit(number);
            let mask = bits(&action.sa_mask) | withheld;
            set_bits(&mut action.sa_mask, mask);
            withheld != 0
        });
    }

    /// Passes `change` every handler of the program except those of faults, and sets it again if that returns
    /// true.
    fn each_mask(change: impl Fn(usize, &mut libc::sigaction) -> bool) {
        for number in 1..=SIGNALS {
            if let Ok(mut action) = exchange_action(number, None)
                && has_handler(&action)
                && !is_ours(&action)
                && change(number as usize, &mut action)
            {
                // The kernel accepts what it returned.
                let _ = exchange_action(number, Some(&action));
            }
        }
    }
}

pub use program::{believed_blocked, exchange_program_action, fault_signals, set_believed_blocked};
