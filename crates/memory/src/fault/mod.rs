//! Fault sources: how the kernel tells us that the program touched a page it may not, and how access changes.
//!
//! | kind | the fault comes as | served by | system calls on absent pages | needs |
//! |---|---|---|---|---|
//! | event | a message on a descriptor | another thread | wait and succeed | `/dev/userfaultfd`, or leave for userfaultfd(2) |
//! | sigbus | SIGBUS | the faulting thread | fail with `EFAULT` | userfaultfd in user mode, Linux 6.4 |
//! | sigsegv | SIGSEGV | the faulting thread | fail with `EFAULT` | nothing |
//!
//! All three keep the same contract ([`FaultSource`]), and one suite (`tests/conformance.rs`) holds them to it. To add
//! one, implement the trait, name it in [`FaultSourceKind`], give [`open`] an arm and the suite a line.

mod event;
mod sigbus;
mod signal;
mod sigsegv;
mod stack;
mod userfaultfd;

use core::fmt;
use std::{os::fd::BorrowedFd, sync::Arc};

use hiroba_base::{Access, PageId, PageRange};

pub use stack::{ALTERNATE_STACK_BYTES, install_alternate_stack};

use crate::{MemoryError, SharedMemory};

/// The kinds of fault sources, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultSourceKind {
    /// userfaultfd, faults read from its descriptor.
    Event,
    /// userfaultfd, faults raised as SIGBUS in the faulting thread.
    Sigbus,
    /// mprotect, faults raised as SIGSEGV in the faulting thread.
    Sigsegv,
}

impl FaultSourceKind {
    /// Every kind, in the order in which [`open_best`] tries them.
    pub const ALL: [FaultSourceKind; 3] =
        [FaultSourceKind::Event, FaultSourceKind::Sigbus, FaultSourceKind::Sigsegv];
}

impl fmt::Display for FaultSourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FaultSourceKind::Event => "event",
            FaultSourceKind::Sigbus => "sigbus",
            FaultSourceKind::Sigsegv => "sigsegv",
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
    /// The page.
    pub page: PageId,
    /// The address touched, to the byte.
    pub address: usize,
    /// What was tried.
    pub kind: FaultKind,
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

    /// Takes charge of allocated pages; their access is `None`.
    ///
    /// # Errors
    /// When pages are not allocated, or the kernel refuses.
    fn register(&self, pages: PageRange) -> Result<(), MemoryError>;

    /// Sets the access of pages, whatever it was, and lets those who wait on them go on if it is `Read` or `Write`.
    /// Pages made accessible get a frame. Safe to call in signal context.
    ///
    /// # Errors
    /// When pages are not allocated or there is no memory for frames; the access of each page is then
    /// either the old or the new.
    fn protect(&self, pages: PageRange, access: Access) -> Result<(), MemoryError>;

    /// Where faults are read, for the source that does not raise them in the faulting thread.
    fn events(&self) -> Option<&dyn FaultEvents>;
}

/// Faults of threads that wait until [`FaultSource::protect`] gives them access.
pub trait FaultEvents {
    /// Readable when there are faults to read.
    fn as_fd(&self) -> BorrowedFd<'_>;

    /// Appends what faults there are, without waiting. No more than [`FAULTS_PER_READ_MAX`] at once; the descriptor
    /// stays readable when there are more.
    ///
    /// # Errors
    /// When the descriptor cannot be read.
    fn read(&self, out: &mut Vec<Fault>) -> Result<(), MemoryError>;
}

/// The most faults that one [`FaultEvents::read`] appends.
pub const FAULTS_PER_READ_MAX: usize = 64;

/// Why a better fault source was passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The source.
    pub kind: FaultSourceKind,
    /// Why it cannot be had.
    pub reason: MemoryError,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no {} fault source: {}", self.kind, self.reason)
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
    memory: Arc<SharedMemory>,
    handler: Arc<dyn FaultHandler>,
) -> Result<Arc<dyn FaultSource>, MemoryError> {
    Ok(match kind {
        FaultSourceKind::Event => Arc::new(event::EventSource::open(memory)?),
        FaultSourceKind::Sigbus => Arc::new(sigbus::SigbusSource::open(memory, handler)?),
        FaultSourceKind::Sigsegv => Arc::new(sigsegv::SigsegvSource::open(memory, handler)?),
    })
}

/// Opens the best source that this kernel and user may have, and says why better ones were refused.
///
/// # Errors
/// When not even the last can be opened.
pub fn open_best(
    memory: &Arc<SharedMemory>,
    handler: &Arc<dyn FaultHandler>,
) -> Result<(Arc<dyn FaultSource>, Vec<Refusal>), MemoryError> {
    let mut refusals = Vec::new();
    for kind in FaultSourceKind::ALL {
        match open(kind, memory.clone(), handler.clone()) {
            Ok(source) => return Ok((source, refusals)),
            Err(reason) if kind == FaultSourceKind::Sigsegv => return Err(reason),
            Err(reason) => refusals.push(Refusal { kind, reason }),
        }
    }
    unreachable!("the last kind returns either way")
}
