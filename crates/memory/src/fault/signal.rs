//! SIGBUS and SIGSEGV: ours first, then whoever handled them before.
//!
//! The handler claims faults of the application's view and hands every other one on, as if it were not there: the
//! program's own handlers, a language runtime's stack checks and the default death by the right signal keep working.

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
    /// Where the program was, when the processor's context is known.
    pub(super) program_counter: Option<usize>,
    /// Whether it was the instruction itself that could not be loaded.
    pub(super) is_fetch: bool,
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
    chained: Guarded<Chained>,
}

/// What stands behind our handler.
struct Chained {
    /// What would be in the kernel without us: what was there before, or what the program has installed since.
    action: libc::sigaction,
    /// Ours is in the kernel.
    governs: bool,
    /// The last receiver went while another handler lay over ours, which may still call it.
    buried: bool,
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
        slot.chained.with(|chained| {
            let current = exchange_action(signal.number(), None)?;
            let on_top = is_ours(&current);
            if !on_top && chained.buried {
                // Over a handler that calls ours, ours would call it, without end.
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

/// Puts our handler over `current`.
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
                // The signals are ones that sigaction accepts, and the action is one that it gave us.
                let _ = exchange_action(number, Some(&chained.action));
            }
            _ => {
                chained.governs = false;
                chained.buried = true;
            }
        });
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
            chained: Guarded::new(Chained { action: DEFAULT_ACTION, governs: false, buried: false }),
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
            // A fault cannot be ignored: the kernel takes the default action then.
            die(number, raw);
        }
    }
}

fn has_handler(action: &libc::sigaction) -> bool {
    action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN
}

/// A function that may say something before the process dies of `signal`, in signal context.
type LastWords = fn(signal: i32, address: Option<usize>, program_counter: Option<usize>);

/// `si_code` of a fault whose address the processor does not tell (`SI_KERNEL`).
const FROM_KERNEL: i32 = 0x80;

static LAST_WORDS: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

fn last_words() -> Option<LastWords> {
    let function = LAST_WORDS.load(Ordering::Acquire);
    // SAFETY: `set_last_words` stored such a function; null is none.
    unsafe { transmute::<*mut (), Option<LastWords>>(function) }
}

/// Has `function` called, in signal context, when a touch of memory is about to kill the process: one that is no fault
/// of ours, and for which the program has no handler. It may only do what a signal handler may.
///
/// From then on our handler stands before the default action of both signals, whether a source uses them or not.
pub fn set_last_words(function: LastWords) {
    let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    LAST_WORDS.store(function as *mut (), Ordering::Release);
    for signal in [Signal::Bus, Signal::Segmentation] {
        signal.slot().chained.with(|chained| {
            // Without it the process dies by the same signal, only silently.
            if let Ok(current) = exchange_action(signal.number(), None)
                && !chained.buried
            {
                let _ = put_ours(signal.number(), chained, current);
            }
        });
    }
}

/// Restores the default action: the fault comes again when the handler returns, and kills with this signal.
fn die(number: c_int, raw: RawFault) {
    if raw.code > 0
        && let Some(speak) = last_words()
    {
        speak(number, (raw.code != FROM_KERNEL).then_some(raw.address), raw.program_counter);
    }
    let _ = exchange_action(number, Some(&DEFAULT_ACTION));
    if raw.code <= 0 {
        // Sent by someone, so it does not come again by itself.
        // SAFETY: raise touches no memory.
        unsafe { libc::raise(number) };
    }
}

/// Sets the signal mask that the kernel would have set for `action`, except that the signals by which faults come
/// stay deliverable: the program's handler may touch shared memory, which to it is plain memory.
fn adopt_mask(action: &libc::sigaction, number: c_int, context: *mut c_void) {
    // SAFETY: the kernel passes a ucontext_t to SA_SIGINFO handlers, valid until they return.
    let interrupted = unsafe { &*context.cast::<libc::ucontext_t>() };
    let wanted = bits(&interrupted.uc_sigmask) | bits(&action.sa_mask);
    exchange_kernel_mask(libc::SIG_SETMASK, wanted & !(bit(number) | program::fault_signals()));
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
    // SAFETY: reads the place where SIGBUS and SIGSEGV have their address; of a sent signal it has another meaning,
    // and `code` tells.
    let address = unsafe { info.si_addr() };
    let (kind, entry_present) = decode_error(context);
    let address = address.addr();
    let program_counter = program_counter(context);
    let is_fetch = is_fetch(address, program_counter);
    RawFault { address, code: info.si_code, kind, entry_present, program_counter, is_fetch }
}

/// Whether a touch of `address` was for an instruction: one that runs cannot lie where it cannot be loaded, so only its own bytes can.
pub fn is_fetch(address: usize, program_counter: Option<usize>) -> bool {
    /// x86 has the longest.
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
    libc::sigaction { sa_sigaction: handler, sa_flags: flags, ..DEFAULT_ACTION }
}

// SAFETY: a plain C structure, of which zeros are a valid value: SIG_DFL, an empty mask, no restorer.
const DEFAULT_ACTION: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };

type Sigaction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;

/// sigaction(2) of the C library itself: the C face stands before it, and gives the program [`exchange_program_action`].
fn system_sigaction() -> Sigaction {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut found = FOUND.load(Ordering::Acquire);
    if found.is_null() {
        // SAFETY: looks a name up; the name is a C string.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"sigaction".as_ptr()) };
        FOUND.store(found, Ordering::Release);
    }
    if found.is_null() {
        // Nothing comes after us: the program is linked statically, so nobody stands before it either.
        return libc::sigaction;
    }
    // SAFETY: the C library's sigaction has this signature.
    unsafe { transmute::<*mut c_void, Sigaction>(found) }
}

/// sigaction(2): sets `new` if given, returns what was there.
fn exchange_action(number: c_int, new: Option<&libc::sigaction>) -> Result<libc::sigaction, MemoryError> {
    let mut old = DEFAULT_ACTION;
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `new` is null or a valid action whose handler is a function of the kind its flags say; `old` is ours.
    if unsafe { system_sigaction()(number, new, &raw mut old) } == 0 {
        return Ok(old);
    }
    let errno = rustix::io::Errno::from_io_error(&std::io::Error::last_os_error());
    Err(MemoryError::System { operation: "sigaction", errno: errno.unwrap_or(rustix::io::Errno::INVAL) })
}

/// How many signals the kernel knows, one bit each in its masks.
const SIGNALS: c_int = 64;

fn bit(number: c_int) -> u64 {
    if (1..=SIGNALS).contains(&number) { 1 << (number - 1) } else { 0 }
}

/// The kernel's part of a signal set.
fn bits(set: &libc::sigset_t) -> u64 {
    // SAFETY: the first word of a sigset_t is the kernel's set, and every bit pattern is a value of it.
    unsafe { ptr::from_ref(set).cast::<u64>().read() }
}

fn set_bits(set: &mut libc::sigset_t, bits: u64) {
    // SAFETY: as in `bits`.
    unsafe { ptr::from_mut(set).cast::<u64>().write(bits) };
}

/// rt_sigprocmask(2) without the C library's part in it; gives the mask there was.
fn exchange_kernel_mask(how: c_int, mask: u64) -> u64 {
    let mut old = 0_u64;
    let (number, new, old_place) = (libc::SYS_rt_sigprocmask, &raw const mask, &raw mut old);
    // SAFETY: both masks are locals of the size told.
    unsafe { libc::syscall(number, how, new, old_place, size_of::<u64>()) };
    old
}

/// A value that is changed in signal context too: whoever is inside is never interrupted.
struct Guarded<T> {
    busy: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `with` lets one thread at a time to the value, which is plain data.
unsafe impl<T> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    const fn new(value: T) -> Guarded<T> {
        Guarded { busy: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// `act` must not fault, nor come back here.
    fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        let before = exchange_kernel_mask(libc::SIG_SETMASK, u64::MAX);
        while self.busy.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        // SAFETY: `busy` was free, and now is ours: nobody else refers to the value.
        let result = act(unsafe { &mut *self.value.get() });
        self.busy.store(false, Ordering::Release);
        exchange_kernel_mask(libc::SIG_SETMASK, before);
        result
    }
}

/// What the program asks about signals, and what it is told.
mod program {
    use core::{cell::Cell, ffi::c_int, sync::atomic::AtomicU64, sync::atomic::Ordering};

    use super::{
        SIGNALS, Signal, bit, bits, exchange_action, exchange_kernel_mask, has_handler, is_ours, set_bits,
    };

    /// The signals by which faults come: these are never blocked, whatever the program says.
    static FAULT_SIGNALS: AtomicU64 = AtomicU64::new(0);

    /// By signal: what its handler's mask would block too, but for us.
    static STRIPPED: [AtomicU64; SIGNALS as usize + 1] = [const { AtomicU64::new(0) }; SIGNALS as usize + 1];

    thread_local! {
        static BELIEVED_BLOCKED: Cell<u64> = const { Cell::new(0) };
    }

    /// The signals by which faults come now, bit n-1 for signal n: they must not be blocked in any thread.
    pub fn fault_signals() -> u64 {
        FAULT_SIGNALS.load(Ordering::Acquire)
    }

    /// Which of [`fault_signals`] the program has blocked in the calling thread, as it believes.
    pub fn believed_blocked() -> u64 {
        BELIEVED_BLOCKED.try_with(Cell::get).unwrap_or(0)
    }

    /// Notes what [`believed_blocked`] shall give.
    pub fn set_believed_blocked(signals: u64) {
        let _ = BELIEVED_BLOCKED.try_with(|blocked| blocked.set(signals));
    }

    /// sigaction(2) for the program: what it installs for a signal of ours comes after our handler, and what it is
    /// told of is what it has installed.
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

    /// Takes the signal out of the calling thread's mask and of every handler's.
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

    /// Puts the signal back into every handler's mask; threads keep theirs until they set it anew.
    pub(super) fn restore(number: c_int) {
        FAULT_SIGNALS.fetch_and(!bit(number), Ordering::AcqRel);
        each_mask(|other, action| {
            let withheld = STRIPPED[other].fetch_and(!bit(number), Ordering::Relaxed) & bit(number);
            let mask = bits(&action.sa_mask) | withheld;
            set_bits(&mut action.sa_mask, mask);
            withheld != 0
        });
    }

    /// Shows `change` every handler of the program's but those of faults; sets it again where it says so.
    fn each_mask(change: impl Fn(usize, &mut libc::sigaction) -> bool) {
        for number in 1..=SIGNALS {
            if let Ok(mut action) = exchange_action(number, None)
                && has_handler(&action)
                && !is_ours(&action)
                && change(number as usize, &mut action)
            {
                // What the kernel gave it takes.
                let _ = exchange_action(number, Some(&action));
            }
        }
    }
}

pub use program::{believed_blocked, exchange_program_action, fault_signals, set_believed_blocked};
