//! Fault sources: how the kernel tells us that the program touched a page it may not, and how access changes.
//!
//! | kind | the fault comes as | served by | system calls on absent pages | needs |
//! |---|---|---|---|---|
//! | event | a message on a descriptor | another thread | wait and succeed | `/dev/userfaultfd`, or leave for userfaultfd(2) |
//! | sigbus | SIGBUS | the faulting thread | fail with `EFAULT` | userfaultfd in user mode, Linux 6.4 |
//! | sigsegv | SIGSEGV | the faulting thread | fail with `EFAULT` | nothing |
//!
//! Writes are found in one of two ways ([`WriteTracking`]): the first store to a page with access `Read` faults, or, with the
//! two sources over userfaultfd on Linux 6.7, stores run free and the kernel notes them ([`FaultSource::watch`]).
//!
//! All three keep the same contract ([`FaultSource`]), and one suite (`tests/all/conformance.rs`) holds them to it. To add
//! one, implement the trait, name it in [`FaultSourceKind`], give [`open`] an arm and the suite a line.

mod event;
mod kernel;
mod pagemap;
mod sigbus;
mod signal;
mod sigsegv;
mod stack;
mod userfaultfd;

use core::fmt;
use std::{os::fd::BorrowedFd, sync::Arc};

use hiroba_base::{Access, PageId, PageRange, PageSet};

pub use signal::{
    believed_blocked, exchange_program_action, fault_signals, is_fetch, set_believed_blocked, set_last_words,
};
pub use stack::{ALTERNATE_STACK_BYTES, exchange_program_stack, install_alternate_stack};

pub use crate::fault_source_kind::FaultSourceKind;
use crate::{MemoryError, SharedMemory};

/// How writes of the program are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteTracking {
    /// The kernel notes which watched granules are written ([`FaultSource::watch`]), and no store faults on them. There is no
    /// access `Read` then.
    Async,
    /// Stores to pages with access `Read` fault.
    Fault,
}

impl WriteTracking {
    /// Both, in the order in which [`open_best`] tries them.
    pub const ALL: [WriteTracking; 2] = [WriteTracking::Async, WriteTracking::Fault];
}

impl fmt::Display for WriteTracking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WriteTracking::Async => "async",
            WriteTracking::Fault => "fault",
        })
    }
}

/// What the program tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// A load.
    Read,
    /// A store, or an atomic read-modify-write.
    Write,
    /// This processor's signals do not say: grant `Read` first, and `Write` when the fault comes again.
    Unknown,
}

/// A touch that the page's access does not allow, or did not when it was made: sources may report a fault
/// that is over by now, and whoever handles it then only asks for the page's access again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The granule that was touched; its page may be longer.
    pub page: PageId,
    /// The address touched, to the byte.
    pub address: usize,
    /// What was tried.
    pub kind: FaultKind,
    /// The instruction that touched it, from the sources that raise faults in the faulting thread.
    pub program_counter: Option<usize>,
    /// The kernel's id of the thread that waits, from the source that reports faults to another.
    pub thread: Option<u32>,
}

impl signal::RawFault {
    fn at(&self, page: PageId) -> Fault {
        let signal::RawFault { address, kind, program_counter, .. } = *self;
        Fault { page, address, kind, program_counter, thread: None }
    }
}

/// What became of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultOutcome {
    /// Access was given: try again.
    Resolved,
    /// Nothing to do with shared memory: whoever handled the signal before us shall have it.
    NotOurs,
}

/// Handles faults of the sources that raise them in the faulting thread.
pub trait FaultHandler: Send + Sync {
    /// Called **in signal context**, on the faulting thread, on its alternate stack if it has one, with all signals
    /// blocked but those that the processor raises. The thread was interrupted at a touch of shared memory, so
    /// no lock of the runtime is held by it. Faults of several threads come at once.
    fn handle_fault(&self, fault: Fault) -> FaultOutcome;
}

/// Governs what the program may do in the application's view.
///
/// Access is set for allocated, registered pages; it is the caller who orders changes of *one* page, calls for
/// different pages may be made at once in any threads. A change holds for all threads when the call returns.
///
/// A source may lower access on its own accord (the kernel reclaims a mapping; a limit on mappings is met), never
/// raise it: the program then faults though the page's access was given, and asking for the access again is all that
/// is needed. A page's contents never change by any of this.
///
/// When a source is dropped, the program has no access to any page.
pub trait FaultSource: Send + Sync {
    /// Which one it is.
    fn kind(&self) -> FaultSourceKind;

    /// How it finds writes.
    fn tracking(&self) -> WriteTracking;

    /// Takes charge of allocated pages; their access is `None`. With [`WriteTracking::Fault`] the first `stores` to them fault even where
    /// the source notes those to others: they are never to be watched, and access `Read` means what it says.
    ///
    /// # Errors
    /// When pages are not allocated, or the kernel refuses.
    fn register(&self, pages: PageRange, stores: WriteTracking) -> Result<(), MemoryError>;

    /// Has nothing to do with pages any more, which have been registered and never been touched: they are about to be mapped elsewhere
    /// ([`SharedMemory::map_onto`]). A source that takes access away on its own accord may still do so, and gives it again when it is asked to.
    ///
    /// # Errors
    /// When there is no memory for the record.
    fn let_go(&self, pages: PageRange) -> Result<(), MemoryError>;

    /// Sets the access of pages, whatever it was, and lets those who wait on them go on if it is `Read` or `Write`.
    /// Pages made accessible get a frame, and none of them is watched any more. Safe to call in signal context.
    ///
    /// With [`WriteTracking::Async`] asking for `Read` is a mistake of the caller's, unless stores to these pages fault; the pages are watched instead.
    ///
    /// # Errors
    /// When pages are not allocated or there is no memory for frames; the access of each page is then
    /// either the old or the new.
    fn protect(&self, pages: PageRange, access: Access) -> Result<(), MemoryError>;

    /// Lets the program execute code in allocated, registered pages, or no more; what its loads and stores may do stays as it is. To fetch an
    /// instruction is to load: where the page's access does not allow that, a fault of kind `Read` comes.
    ///
    /// # Errors
    /// When pages are not allocated, or the kernel refuses; the pages may be as before then, or some of them changed.
    fn execute(&self, pages: PageRange, on: bool) -> Result<(), MemoryError>;

    /// Lets loads and stores on pages run free, whatever their access was, notes from now on which of their granules are written,
    /// and lets those who wait on them go on. Pages get a frame. Safe to call in signal context.
    ///
    /// Of granules that are watched already nothing is forgotten. Stores that running threads make *during* the call, to granules
    /// that were writable before and not watched, may go unnoted: whoever begins to watch such a page takes it for written.
    ///
    /// # Errors
    /// As for [`protect`](Self::protect), and when the source was not opened with [`WriteTracking::Async`].
    fn watch(&self, pages: PageRange) -> Result<(), MemoryError>;

    /// Reports pages no more. What the program may do with them stays as it is; no system call is made.
    ///
    /// # Errors
    /// When there is no memory for the record.
    fn unwatch(&self, pages: PageRange) -> Result<(), MemoryError>;

    /// Adds to `out` the watched granules that may have been written since they were first watched or last collected, and begins anew
    /// for them. Never misses one: a store that was made before the call, or by a thread that [`watch`](Self::watch) let go on, is
    /// reported by this call or was by an earlier one; a store during the call by this or the next. A granule
    /// whose entry the kernel dropped may be reported without having been written.
    ///
    /// Nothing is watched, and no system call made, without [`WriteTracking::Async`]. May be called while other threads change
    /// other pages; if two threads collect at once, each written granule is reported to one of them. Safe in signal context as
    /// far as the allocator is that `out` grows by.
    ///
    /// # Errors
    /// When the kernel cannot scan; what was scanned before that is in `out`.
    fn collect_written(&self, out: &mut PageSet) -> Result<(), MemoryError>;

    /// Adds to `out`, behind all that it holds, granules of `pages` that were watched when [`protect`](Self::protect) took all access away, and that nobody had written since
    /// they were first watched or last collected. It may name fewer of them, or none: what a granule was goes with the kernel's record of it.
    /// Good until the granules are given access again, or are watched. Among `pages` may be some that are not allocated.
    ///
    /// # Errors
    /// When the pages are not in the region, without [`WriteTracking::Async`], or when the kernel cannot scan.
    fn find_unwritten(&self, pages: PageRange, out: &mut PageSet) -> Result<(), MemoryError>;

    /// Where faults are read, for the source that does not raise them in the faulting thread.
    fn events(&self) -> Option<&dyn FaultEvents>;
}

/// Faults of threads that wait until [`FaultSource::protect`] gives them access.
pub trait FaultEvents {
    /// One of these is readable when there are faults to read.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// Appends what faults there are, without waiting. No more than [`FAULTS_PER_READ_MAX`] at once of each descriptor, which
    /// stays readable when there are more.
    ///
    /// # Errors
    /// When the descriptor cannot be read.
    fn read(&self, out: &mut Vec<Fault>) -> Result<(), MemoryError>;
}

/// The most faults that one [`FaultEvents::read`] appends.
pub const FAULTS_PER_READ_MAX: usize = 64;

/// Why a better fault source, or the same with better write tracking, was passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The source.
    pub kind: FaultSourceKind,
    /// How it was to find writes.
    pub tracking: WriteTracking,
    /// Why it cannot be had.
    pub reason: MemoryError,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no {} fault source with {} write tracking: {}", self.kind, self.tracking, self.reason)
    }
}

/// Opens the fault source `kind` for `memory`. The event source never calls `handler`.
///
/// A process has at most one source of a signal at a time, and a region one source.
///
/// # Errors
/// When the kernel or the user's privileges do not allow it.
pub fn open(
    kind: FaultSourceKind,
    tracking: WriteTracking,
    memory: Arc<SharedMemory>,
    handler: Arc<dyn FaultHandler>,
) -> Result<Arc<dyn FaultSource>, MemoryError> {
    Ok(match kind {
        FaultSourceKind::Event => Arc::new(event::EventSource::open(memory, tracking)?),
        FaultSourceKind::Sigbus => Arc::new(sigbus::SigbusSource::open(memory, tracking, handler)?),
        FaultSourceKind::Sigsegv => Arc::new(sigsegv::SigsegvSource::open(memory, tracking, handler)?),
    })
}

/// Opens the best source that this kernel and user may have, and says why better ones were refused: of the given kind, or
/// in the order of [`FaultSourceKind::ALL`]; with the given tracking, or each in the order of [`WriteTracking::ALL`].
///
/// # Errors
/// When not even the last can be opened: its reason.
pub fn open_best(
    kind: Option<FaultSourceKind>,
    tracking: Option<WriteTracking>,
    memory: &Arc<SharedMemory>,
    handler: &Arc<dyn FaultHandler>,
) -> Result<(Arc<dyn FaultSource>, Vec<Refusal>), MemoryError> {
    let mut refusals: Vec<Refusal> = Vec::new();
    for source in FaultSourceKind::ALL.into_iter().filter(|each| kind.is_none_or(|kind| kind == *each)) {
        for way in WriteTracking::ALL.into_iter().filter(|each| tracking.is_none_or(|way| way == *each)) {
            match open(source, way, memory.clone(), handler.clone()) {
                Ok(opened) => return Ok((opened, refusals)),
                Err(reason) => refusals.push(Refusal { kind: source, tracking: way, reason }),
            }
        }
    }
    Err(refusals.pop().expect("one combination at least was tried").reason)
}
