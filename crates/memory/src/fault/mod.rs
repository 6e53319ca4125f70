//! Fault sources: how the kernel reports that the program accessed a page without permission, and how access
//! changes.
//!
//! | kind | the fault arrives as | served by | system calls on absent pages | needs |
//! |---|---|---|---|---|
//! | event | a message on a descriptor | another thread | wait and succeed | `/dev/userfaultfd`, or permission for userfaultfd(2) |
//! | sigbus | SIGBUS | the faulting thread | fail with `EFAULT` | userfaultfd in user mode, Linux 6.4 |
//! | sigsegv | SIGSEGV | the faulting thread | fail with `EFAULT` | nothing |
//!
//! Writes are detected in one of two ways ([`WriteTracking`]). Either the first store to a page with access
//! `Read` faults. Or, with the two userfaultfd sources on Linux 6.7, stores do not fault and the kernel
//! records them ([`FaultSource::watch`]).
//!
//! All three sources keep the same contract ([`FaultSource`]), which one suite (`tests/all/conformance.rs`)
//! checks. To add one, implement the trait, name it in [`FaultSourceKind`], and add an arm to [`open`] and a
//! line to the suite.

mod event;
mod kernel;
mod pagemap;
mod reminder;
mod sigbus;
mod signal;
mod sigsegv;
mod stack;
mod userfaultfd;

use core::fmt;
use std::{os::fd::BorrowedFd, sync::Arc};

use hiroba_base::{Access, PageId, PageRange, PageSet};

pub use reminder::Reminder;
pub use signal::{
    believed_blocked, exchange_program_action, fault_signals, is_fetch, set_believed_blocked, set_last_words,
};
pub use stack::{ALTERNATE_STACK_BYTES, exchange_program_stack, install_alternate_stack};

pub use crate::fault_source_kind::FaultSourceKind;
use crate::{MemoryError, SharedMemory};

/// How the program's writes are detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteTracking {
    /// The kernel records which watched granules are written ([`FaultSource::watch`]), and no store to them
    /// faults. There is no access `Read` then.
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

/// The attempted access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// A load.
    Read,
    /// A store, or an atomic read-modify-write.
    Write,
    /// Unknown, because this processor's signals do not say. Grant `Read` first, and `Write` if the fault
    /// repeats.
    Unknown,
}

/// An access that the page's permission does not allow, or did not when it was made. Sources may report a
/// fault that is over by now; its handler then only requests the page's access again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The granule that was accessed; its page may be longer.
    pub page: PageId,
    /// The exact address.
    pub address: usize,
    /// The kind of access.
    pub kind: FaultKind,
    /// The accessing instruction, from sources that raise faults in the faulting thread.
    pub program_counter: Option<usize>,
    /// The kernel's id of the waiting thread, from the source that reports faults to another thread.
    pub thread: Option<u32>,
}

impl signal::RawFault {
    fn at(&self, page: PageId) -> Fault {
        let signal::RawFault { address, kind, program_counter, .. } = *self;
        Fault { page, address, kind, program_counter, thread: None }
    }
}

/// The result of handling a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultOutcome {
    /// Access was granted: retry.
    Resolved,
    /// The fault does not concern shared memory: it is passed to the previously installed handler.
    NotOurs,
}

/// Handles faults from sources that raise them in the faulting thread.
pub trait FaultHandler: Send + Sync {
    /// Handles a fault. Called **in signal context**, on the faulting thread, on its alternate stack if it
    /// has one, with all signals blocked except those that the processor raises. The thread was interrupted
    /// at an access to shared memory, so it holds no lock of the runtime. Several threads may fault at once.
    fn handle_fault(&self, fault: Fault) -> FaultOutcome;
}

/// Controls the program's access in the application's view.
///
/// Access is set for allocated, registered pages. The caller orders changes of *one* page; calls for
/// different pages may run in any threads at once. A change applies to all threads when the call returns.
///
/// A source may lower access by itself (the kernel reclaims a mapping; a limit on mappings is reached), but
/// never raises it. The program then faults although access was granted, and requesting the access again is
/// enough. None of this changes a page's content.
///
/// When a source is dropped, the program has no access to any page.
pub trait FaultSource: Send + Sync {
    /// Returns its kind.
    fn kind(&self) -> FaultSourceKind;

    /// Returns how it detects writes.
    fn tracking(&self) -> WriteTracking;

    /// Takes charge of allocated pages; their access is `None`. If `stores` is [`WriteTracking::Fault`],
    /// stores to them fault even where the source otherwise records stores: these pages are never watched,
    /// and access `Read` has its usual meaning.
    ///
    /// # Errors
    /// Fails if pages are not allocated, or if the kernel refuses.
    fn register(&self, pages: PageRange, stores: WriteTracking) -> Result<(), MemoryError>;

    /// Gives up pages that were registered and never accessed, because they are about to be mapped elsewhere
    /// ([`SharedMemory::map_onto`]). A source that lowers access by itself may still do so, and restores it
    /// on request.
    ///
    /// # Errors
    /// Fails if there is no memory for the record.
    fn let_go(&self, pages: PageRange) -> Result<(), MemoryError>;

    /// Sets the access of pages, whatever it was, and resumes threads that wait for them if it is `Read` or
    /// `Write`. Pages made accessible get a frame, and none of them is watched any more. Safe to call in
    /// signal context.
    ///
    /// With [`WriteTracking::Async`] requesting `Read` is a mistake of the caller, unless stores to these
    /// pages fault; such pages are watched instead.
    ///
    /// # Errors
    /// Fails if pages are not allocated or there is no memory for frames. The access of each page is then
    /// either the old or the new one.
    fn protect(&self, pages: PageRange, access: Access) -> Result<(), MemoryError>;

    /// Allows or forbids executing code in allocated, registered pages. The permissions of loads and stores
    /// do not change. Fetching an instruction counts as a load: where the page's access does not allow it, a
    /// fault of kind `Read` occurs.
    ///
    /// # Errors
    /// Fails if pages are not allocated, or if the kernel refuses. Some of the pages may have changed then.
    fn execute(&self, pages: PageRange, on: bool) -> Result<(), MemoryError>;

    /// Allows loads and stores on pages, whatever their access was, records from now on which of their
    /// granules are written, and resumes threads that wait for them. Pages get a frame. Safe to call in
    /// signal context.
    ///
    /// The records of granules that are already watched are kept. Stores of running threads *during* the call
    /// to granules that were writable and not watched may go unrecorded: a caller that begins to watch such a
    /// page must take it for written.
    ///
    /// # Errors
    /// Fails as [`protect`](Self::protect), and if the source was not opened with [`WriteTracking::Async`].
    fn watch(&self, pages: PageRange) -> Result<(), MemoryError>;

    /// Stops reporting pages. The program's access does not change; no system call is made.
    ///
    /// # Errors
    /// Fails if there is no memory for the record.
    fn unwatch(&self, pages: PageRange) -> Result<(), MemoryError>;

    /// Adds to `out` the watched granules that may have been written since they were first watched or last
    /// collected, and resets their records. No store is missed: a store made before the call, or by a thread
    /// that [`watch`](Self::watch) resumed, is reported by this call or was reported by an earlier one; a
    /// store during the call is reported by this call or the next. A granule whose page-table entry the
    /// kernel dropped may be reported although it was not written.
    ///
    /// Without [`WriteTracking::Async`] nothing is watched, and no system call is made. May be called while
    /// other threads change other pages; if two threads collect at once, each written granule is reported to
    /// one of them. Safe in signal context as far as the allocator by which `out` grows is.
    ///
    /// # Errors
    /// Fails if the kernel cannot scan; granules scanned before that are in `out`.
    fn collect_written(&self, out: &mut PageSet) -> Result<(), MemoryError>;

    /// Adds to `out`, behind its present content, granules of `pages` that were watched when
    /// [`protect`](Self::protect) took all access away and that had not been written since they were first
    /// watched or last collected. It may return fewer of them, or none, because the kernel may have lost its
    /// record. Valid until the granules get access again or are watched. `pages` may include unallocated
    /// ones.
    ///
    /// # Errors
    /// Fails if the pages are not in the region, without [`WriteTracking::Async`], or if the kernel cannot
    /// scan.
    fn find_unwritten(&self, pages: PageRange, out: &mut PageSet) -> Result<(), MemoryError>;

    /// Returns the interface for reading faults, if the source does not raise them in the faulting thread.
    fn events(&self) -> Option<&dyn FaultEvents>;
}

/// Faults of threads that wait until [`FaultSource::protect`] gives them access.
pub trait FaultEvents {
    /// Returns the descriptors. One of them is readable when there are faults to read.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// Appends pending faults without waiting: at most [`FAULTS_PER_READ_MAX`] from each descriptor, which
    /// stays readable if there are more.
    ///
    /// # Errors
    /// Fails if the descriptor cannot be read.
    fn read(&self, out: &mut Vec<Fault>) -> Result<(), MemoryError>;
}

/// Maximum number of faults that one [`FaultEvents::read`] appends per descriptor.
pub const FAULTS_PER_READ_MAX: usize = 64;

/// Why a better fault source, or better write tracking, was not chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The source.
    pub kind: FaultSourceKind,
    /// The write tracking.
    pub tracking: WriteTracking,
    /// Why it is not available.
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
/// Fails if the kernel or the user's privileges do not permit it.
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

/// Opens the best source that this kernel and user permit, and returns why better ones were refused. Tries
/// the given kind, or all in the order of [`FaultSourceKind::ALL`]; with the given tracking, or each in the
/// order of [`WriteTracking::ALL`].
///
/// # Errors
/// Returns the last refusal if none can be opened.
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
