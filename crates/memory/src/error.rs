//! The errors of the shared region. Each says what was expected, what came, and what to do.

use std::path::PathBuf;

use hiroba_base::{NodeId, PageId, PageRange};
use rustix::io::Errno;

use crate::fault_source_kind::FaultSourceKind;
use crate::region::REGION_BYTES_MAX;

/// A failure to reserve, allocate, fill or protect shared memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// The granule is not the unit in which the processor maps memory.
    #[error(
        "expected granules of {system_bytes} bytes, this kernel's page size, got {granule_bytes}; run all nodes on \
         kernels with one page size of 4 KiB to 2 MiB"
    )]
    NotTheSystemsPageSize {
        /// The requested granule.
        granule_bytes: usize,
        /// The kernel's page size.
        system_bytes: usize,
    },
    /// The region is empty, too large, not in whole granules, or passes the end of the address space.
    #[error(
        "expected a region of 1 granule to {REGION_BYTES_MAX} bytes that starts and ends on multiples of \
         {granule_bytes} bytes, got {region_bytes} bytes at {region_start:#x}; correct the region's start and size"
    )]
    BadRegion {
        /// The requested start.
        region_start: usize,
        /// The requested length.
        region_bytes: u64,
        /// The granule.
        granule_bytes: usize,
    },
    /// `RLIMIT_AS` leaves no room for two views of the region.
    #[error(
        "expected room for {needed_bytes} bytes of address space (two views of the shared region), got a limit of \
         {limit_bytes}; raise it with `ulimit -v unlimited`"
    )]
    AddressSpaceLimit {
        /// The process's address space with the region.
        needed_bytes: u64,
        /// `RLIMIT_AS`.
        limit_bytes: u64,
    },
    /// `RLIMIT_FSIZE` is below the size of the region's (sparse) memfd.
    #[error(
        "expected a file size limit of at least {needed_bytes} bytes (the shared region is a sparse file in memory), \
         got {limit_bytes}; raise it with `ulimit -f unlimited`"
    )]
    FileSizeLimit {
        /// The region's size.
        needed_bytes: u64,
        /// `RLIMIT_FSIZE`.
        limit_bytes: u64,
    },
    /// No file descriptor was left.
    #[error(
        "expected a free file descriptor for {purpose}, got none ({errno}); close files or raise `ulimit -n`"
    )]
    NoDescriptor {
        /// The purpose of the descriptor.
        purpose: &'static str,
        /// `EMFILE` (the process) or `ENFILE` (the system).
        errno: Errno,
    },
    /// The region's addresses are in use.
    #[error(
        "expected addresses {region_start:#x} to {region_end:#x} to be free for the shared region, got a mapping \
         that the program made there before; let it map elsewhere or join the job first (see /proc/self/maps)"
    )]
    AddressTaken {
        /// The requested start.
        region_start: usize,
        /// The requested end.
        region_end: usize,
    },
    /// The region, or its second view, does not fit the address space of this kernel.
    #[error(
        "expected an address space that reaches {region_end:#x} with room for a second view of {region_bytes} bytes, \
         got one of about {address_bits} bits; use a kernel built for wider virtual addresses (47 bits or more)"
    )]
    AddressSpaceNarrow {
        /// The requested end.
        region_end: usize,
        /// The requested length.
        region_bytes: u64,
        /// The number of bits of a virtual address that this process seems to have.
        address_bits: u32,
    },
    /// Pages beyond the region's end.
    #[error("expected granules below {granules} (the region's size), got {} from {}", range.count, range.first)]
    OutsideRegion {
        /// The requested pages.
        range: PageRange,
        /// The number of granules in the region.
        granules: u64,
    },
    /// Pages that were never allocated.
    #[error("expected allocated granules, got {} from {}; call allocate first", range.count, range.first)]
    NotAllocated {
        /// The requested pages.
        range: PageRange,
    },
    /// The machine, or the control group, has no memory left for frames.
    #[error(
        "expected memory for {} frame(s) from {}, got {errno}; run on more nodes, or raise the memory limit of the \
         control group or container", range.count, range.first
    )]
    OutOfFrames {
        /// The pages that were to get frames.
        range: PageRange,
        /// The kernel's error.
        errno: Errno,
    },
    /// This kernel has no userfaultfd.
    #[error(
        "expected a kernel with userfaultfd, got none; use --fault-source sigsegv or a kernel built with it"
    )]
    NoUserfaultfd,
    /// This user may not open a userfaultfd of the requested kind.
    #[error(
        "expected permission to open a userfaultfd that {purpose}, got {errno}; let the user open /dev/userfaultfd, set \
         sysctl vm.unprivileged_userfaultfd=1 or, in a container, allow the system call"
    )]
    UserfaultfdRefused {
        /// The purpose of the userfaultfd.
        purpose: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// This kernel's userfaultfd lacks required features.
    #[error(
        "expected a userfaultfd that offers {missing}, got one without; use Linux 6.4 or newer, or \
         --fault-source sigsegv"
    )]
    UserfaultfdTooOld {
        /// The missing features.
        missing: String,
    },
    /// The kernel does not record written pages, or not under this fault source.
    #[error(
        "expected {missing} for asynchronous write tracking, got none; use Linux 6.7 or newer with the event or sigbus \
         fault source, or --write-tracking fault"
    )]
    NoAsyncTracking {
        /// The missing feature.
        missing: String,
    },
    /// The process may not read its own page tables.
    #[error(
        "expected to open /proc/self/pagemap for asynchronous write tracking, got {errno}; mount /proc, let the process \
         be dumpable, or use --write-tracking fault"
    )]
    PagemapRefused {
        /// The kernel's error.
        errno: Errno,
    },
    /// Pages were to be watched by a source that detects writes by faults.
    #[error(
        "expected a fault source opened with asynchronous write tracking to watch pages, got one without; open it with WriteTracking::Async"
    )]
    NotTracking,
    /// A region has one fault source, and a process one of each signal.
    #[error(
        "expected no fault source in use for this region or signal when opening the {kind} source, got one; drop it first"
    )]
    AlreadyOpen {
        /// The kind that was to be opened.
        kind: FaultSourceKind,
    },
    /// A handler of the program covers ours, so that ours can neither be removed nor installed again.
    #[error(
        "expected no handler over the fault source's handler of {signal}, got one of the program's from an earlier \
         use; restore the earlier handler before opening a fault source again"
    )]
    HandlerBuried {
        /// The signal's name.
        signal: &'static str,
    },
    /// The kernel's limit on mappings is reached, and not because of the region.
    #[error(
        "expected room for one more memory mapping, got none although the shared region was merged into one; raise \
         sysctl vm.max_map_count"
    )]
    TooManyMappings,
    /// No more mappings are available for pages of other nodes' frames.
    #[error(
        "expected room for more memory mappings, to show pages of other nodes' memory, got none; raise sysctl vm.max_map_count, or choose \
         another protocol than aurc for large regions"
    )]
    TooManyMappingsOfPeers,
    /// The thread is on an alternate signal stack already, or is ending.
    #[error(
        "expected a running thread that is not in a signal handler, got one that {state}; call it at thread start"
    )]
    NoAlternateStack {
        /// The thread's state.
        state: &'static str,
    },
    /// All mapped memory gets locked, which exceeds a limit.
    #[error(
        "expected to map {region_bytes} bytes of addresses, but mlockall(MCL_FUTURE) was called before, and RLIMIT_MEMLOCK is lower; call \
         mlockall after hiroba_init, or raise ulimit -l"
    )]
    LockedMemoryLimit {
        /// The region's length.
        region_bytes: u64,
    },
    /// A system call on the program's view failed that fails only when the view's mapping was changed.
    #[error(
        "expected {operation} on shared memory to succeed, got {errno}: the program may have changed how it is mapped by a system call \
         that libhiroba.so does not see (hiroba.h lists what may be done); else this is a fault of the machine or of Hiroba"
    )]
    View {
        /// The attempted operation.
        operation: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// The swap file cannot be made.
    #[error(
        "expected a directory after --swap in which this user can make files on every node's machine, got '{}': {errno}",
        directory.display()
    )]
    SwapDirectory {
        /// The directory as the user named it.
        directory: PathBuf,
        /// The kernel's error.
        errno: Errno,
    },
    /// The swap file has its maximum length, and all of it is in use.
    #[error(
        "the swap file in '{}' is full ({} KiB): pages stay in memory; give --swap DIR:BYTES more bytes, raise --memory-limit, or use more \
         nodes",
        directory.display(),
        bytes >> 10
    )]
    SwapFull {
        /// The directory as the user named it.
        directory: PathBuf,
        /// The maximum length of the file.
        bytes: u64,
    },
    /// The swap file cannot be written.
    #[error(
        "the swap file in '{}' cannot be written ({errno}): pages stay in memory; make room there, or name another directory after --swap",
        directory.display()
    )]
    SwapWrite {
        /// The directory as the user named it.
        directory: PathBuf,
        /// The kernel's error.
        errno: Errno,
    },
    /// A page cannot be read from the swap file.
    #[error(
        "expected {page} from the swap file in '{}', got {errno}; the page's contents are lost: check the disk, or name another directory \
         after --swap",
        directory.display()
    )]
    SwapRead {
        /// The directory as the user named it.
        directory: PathBuf,
        /// The granule.
        page: PageId,
        /// The kernel's error.
        errno: Errno,
    },
    /// The swap file's content of a page differs from what was written.
    #[error(
        "expected {page} in the swap file in '{}' as it was written, got other bytes (corrupted, or older ones); the page's \
         contents are lost: check the disk, and which other programs write to it",
        directory.display()
    )]
    SwapCorrupted {
        /// The directory as the user named it.
        directory: PathBuf,
        /// The granule.
        page: PageId,
    },
    /// No other node has memory to lend, and there is no swap file.
    #[error(
        "no other node has memory to spare: pages stay in memory; use more nodes, raise --memory-limit or --lend, or give a disk by --swap DIR"
    )]
    NoLender,
    /// A page that was lent is lost with its lender.
    #[error(
        "expected {page} from the memory that node {lender} lends, got nothing: node {lender} is dead or cannot be reached; the page's \
         contents are lost: see why that node ended, or keep pages on this node's disk by --lend 0 --swap DIR"
    )]
    LenderLost {
        /// The granule.
        page: PageId,
        /// The node that had it.
        lender: NodeId,
    },
    /// A page that was lent comes back as something else.
    #[error(
        "expected {page} from another node's memory as it was lent, got other bytes (corrupted, or older ones); the page's contents \
         are lost: this is a fault of a machine's memory or of Hiroba"
    )]
    LentCorrupted {
        /// The granule.
        page: PageId,
    },
    /// A system call that is not expected to fail.
    #[error("expected {operation} to succeed, got {errno}; this is a fault of the machine or of Hiroba")]
    System {
        /// The attempted operation.
        operation: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
}

impl MemoryError {
    pub(crate) fn system(operation: &'static str) -> impl FnOnce(Errno) -> MemoryError {
        move |errno| MemoryError::System { operation, errno }
    }

    pub(crate) fn of_view(operation: &'static str) -> impl FnOnce(Errno) -> MemoryError {
        move |errno| MemoryError::View { operation, errno }
    }

    /// Returns the error for a descriptor that could not be opened.
    pub(crate) fn descriptor(purpose: &'static str, errno: Errno) -> MemoryError {
        match errno {
            Errno::MFILE | Errno::NFILE => MemoryError::NoDescriptor { purpose, errno },
            _ => MemoryError::System { operation: purpose, errno },
        }
    }
}
