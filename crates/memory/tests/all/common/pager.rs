//! The simplest user of a fault source: grants what each fault requests, and records it.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use hiroba_base::{Access, PageId, PageRange, PageSet};
use hiroba_memory::{
    Fault, FaultHandler, FaultKind, FaultOutcome, FaultSource, FaultSourceKind, MemoryConfig, MemoryError,
    SharedMemory, WriteTracking, install_alternate_stack, open,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{getuid, setrlimit},
};

use super::{Ending, isolated, skip};

/// The user "nobody" on every system.
const ORDINARY_USER: u32 = 65534;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// The user who runs the tests.
    Caller,
    Ordinary,
}

/// The parameters of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    pub kind: FaultSourceKind,
    pub tracking: WriteTracking,
}

pub fn mode(kind: FaultSourceKind, tracking: WriteTracking) -> Mode {
    Mode { kind, tracking }
}

/// Runs a case in a process of its own.
pub fn run_case(test: &str, user: User, mode: Mode, ending: Ending, case: fn(Mode)) {
    isolated(test, ending, || {
        let no_dump = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
        setrlimit(rustix::process::Resource::Core, no_dump).unwrap();
        if user == User::Ordinary {
            if !getuid().is_root() {
                skip("the caller is an ordinary user already, and ran this case as such");
            }
            become_ordinary();
        }
        case(mode);
    });
}

pub fn become_ordinary() {
    // SAFETY: takes numbers, touches no memory.
    let status = unsafe { libc::setresuid(ORDINARY_USER, ORDINARY_USER, ORDINARY_USER) };
    assert_eq!(status, 0);
    // Like a program that an ordinary user starts: a process that changes users may no longer read its own
    // page tables.
    // SAFETY: takes numbers, touches no memory.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) }, 0);
}

/// A fault as cases compare it, without parts that differ from run to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub page: PageId,
    pub address: usize,
    pub kind: FaultKind,
}

#[derive(Default)]
pub struct Pager {
    source: OnceLock<Weak<dyn FaultSource>>,
    faults: Mutex<Vec<Fault>>,
    granted: Mutex<HashMap<PageId, Access>>,
    /// While set, faults are recorded but not answered.
    pub hold: AtomicBool,
    /// Number of faults that are answered with at most `Read`.
    pub stingy_answers: AtomicU64,
    /// Pages from this number on are registered so that stores to them fault.
    pub stores_fault_from: OnceLock<u64>,
    /// An address on the stack on which the last fault was handled.
    pub stack_address: AtomicU64,
}

impl FaultHandler for Pager {
    fn handle_fault(&self, fault: Fault) -> FaultOutcome {
        let on_the_stack = 0u8;
        self.stack_address.store((&raw const on_the_stack).addr() as u64, Ordering::Relaxed);
        self.faults.lock().unwrap().push(fault);
        let source = self.source.get().and_then(Weak::upgrade).expect("a fault before the source is open");
        loop {
            // Held over `protect`, because the caller must order changes of one page.
            let mut granted = self.granted.lock().unwrap();
            if !self.hold.load(Ordering::Acquire) {
                let page = PageRange::single(fault.page);
                let stores_fault = self.stores_fault_from.get().is_some_and(|first| fault.page.0 >= *first);
                if source.tracking() == WriteTracking::Async && !stores_fault {
                    source.watch(page).unwrap();
                    break;
                }
                let known = granted.entry(fault.page).or_default();
                *known = self.answer(fault.kind, *known);
                source.protect(page, *known).unwrap();
                break;
            }
            drop(granted);
            thread::sleep(Duration::from_micros(20));
        }
        FaultOutcome::Resolved
    }
}

impl Pager {
    fn answer(&self, asked: FaultKind, known: Access) -> Access {
        if self.stingy_answers.load(Ordering::Acquire) > 0 {
            self.stingy_answers.fetch_sub(1, Ordering::AcqRel);
            return known.max(Access::Read);
        }
        match (asked, known) {
            (FaultKind::Read, _) | (FaultKind::Unknown, Access::None) => Access::Read,
            (FaultKind::Write | FaultKind::Unknown, _) => Access::Write,
        }
    }
}

/// A region under a fault source, with a handler.
pub struct Paged {
    pub memory: Arc<SharedMemory>,
    pub source: Arc<dyn FaultSource>,
    pub pager: Arc<Pager>,
    service: Option<(Arc<AtomicBool>, thread::JoinHandle<()>)>,
}

pub fn range(first: u64, count: u64) -> PageRange {
    PageRange { first: PageId(first), count }
}

/// Returns true if the reason is this kernel or this user, not a bug.
pub fn excuses(error: &MemoryError) -> bool {
    matches!(
        error,
        MemoryError::NoUserfaultfd
            | MemoryError::UserfaultfdRefused { .. }
            | MemoryError::UserfaultfdTooOld { .. }
            | MemoryError::NoAsyncTracking { .. }
            | MemoryError::PagemapRefused { .. }
    )
}

impl Paged {
    /// Makes a region of 2 GiB with the first `allocated` granules allocated and registered.
    pub fn new(mode: Mode, allocated: u64) -> Paged {
        let config = MemoryConfig { region_bytes: 2 << 30, ..MemoryConfig::default() };
        Paged::with_config(mode, config, allocated)
    }

    pub fn with_config(mode: Mode, config: MemoryConfig, allocated: u64) -> Paged {
        let memory = Arc::new(SharedMemory::reserve(config).unwrap());
        memory.allocate(range(0, allocated)).unwrap();
        let paged = Paged::over(mode, memory);
        paged.source.register(range(0, allocated), mode.tracking).unwrap();
        paged
    }

    /// Opens a new source over existing memory.
    pub fn over(mode: Mode, memory: Arc<SharedMemory>) -> Paged {
        install_alternate_stack().unwrap();
        let pager = Arc::new(Pager::default());
        let source = match open(mode.kind, mode.tracking, memory.clone(), pager.clone()) {
            Err(error) if excuses(&error) => skip(&error.to_string()),
            other => other.unwrap(),
        };
        assert_eq!((source.kind(), source.tracking()), (mode.kind, mode.tracking));
        pager.source.set(Arc::downgrade(&source)).ok().unwrap();
        let service = source.events().is_some().then(|| serve(source.clone(), pager.clone()));
        Paged { memory, source, pager, service }
    }

    pub fn load(&self, page: u64, offset: usize) -> u8 {
        // SAFETY: the page is allocated (each test ensures it), so the load faults into the pager and
        // returns; offset is below the page size.
        unsafe { self.at(page, offset).read_volatile() }
    }

    pub fn store(&self, page: u64, offset: usize, value: u8) {
        // SAFETY: as for `load`.
        unsafe { self.at(page, offset).write_volatile(value) }
    }

    pub fn at(&self, page: u64, offset: usize) -> *mut u8 {
        self.memory.address_of(PageId(page)).wrapping_add(offset)
    }

    pub fn protect(&self, pages: PageRange, access: Access) {
        let mut granted = self.pager.granted.lock().unwrap();
        pages.iter().for_each(|page| {
            granted.insert(page, access);
        });
        self.source.protect(pages, access).unwrap();
    }

    /// Returns the faults since the last call, once all changes of access that they caused are complete. A
    /// waiting thread resumes when its own page is there, a little before `protect` returns in the service
    /// thread.
    pub fn take_faults(&self) -> Vec<Seen> {
        let seen = |fault: &Fault| Seen { page: fault.page, address: fault.address, kind: fault.kind };
        self.take_faults_whole().iter().map(seen).collect()
    }

    pub fn take_faults_whole(&self) -> Vec<Fault> {
        drop(self.pager.granted.lock().unwrap());
        std::mem::take(&mut self.pager.faults.lock().unwrap())
    }

    /// Watches pages.
    pub fn watch(&self, pages: PageRange) {
        self.source.watch(pages).unwrap();
    }

    /// Returns the numbers of the granules written since the last call.
    pub fn collect(&self) -> Vec<u64> {
        let mut written = PageSet::new();
        self.source.collect_written(&mut written).unwrap();
        written.iter().map(|granule| granule.0).collect()
    }

    /// Returns the numbers of the granules that were unwritten when their access was taken away.
    pub fn unwritten(&self, pages: PageRange) -> Vec<u64> {
        let mut unwritten = PageSet::new();
        self.source.find_unwritten(pages, &mut unwritten).unwrap();
        unwritten.iter().map(|granule| granule.0).collect()
    }

    /// Drops entries like the kernel's reclaim, unseen by the source.
    pub fn drop_entries(&self, pages: PageRange) {
        let bytes = pages.count as usize * 4096;
        // SAFETY: the range is mapped; its frames stay in the memfd.
        let status = unsafe { libc::madvise(self.at(pages.first.0, 0).cast(), bytes, libc::MADV_DONTNEED) };
        assert_eq!(status, 0);
    }

    /// Returns the fault of a load, as this machine reports it.
    pub fn read_fault(&self, page: u64, offset: usize) -> Seen {
        self.fault(page, offset, FaultKind::Read)
    }

    /// Returns the fault of a store, as this machine reports it.
    pub fn write_fault(&self, page: u64, offset: usize) -> Seen {
        self.fault(page, offset, FaultKind::Write)
    }

    fn fault(&self, page: u64, offset: usize, kind: FaultKind) -> Seen {
        let told = cfg!(target_arch = "x86_64") || self.source.kind() == FaultSourceKind::Event;
        let kind = if told { kind } else { FaultKind::Unknown };
        Seen { page: PageId(page), address: self.at(page, offset).addr(), kind }
    }

    pub fn runtime_byte(&self, page: u64, offset: usize) -> u8 {
        let mut byte = [0];
        self.memory.read(PageId(page), offset, &mut byte);
        byte[0]
    }
}

impl Drop for Paged {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.service.take() {
            stop.store(true, Ordering::Release);
            thread.join().unwrap();
        }
    }
}

/// Runs a thread like the runtime's service thread.
fn serve(source: Arc<dyn FaultSource>, pager: Arc<Pager>) -> (Arc<AtomicBool>, thread::JoinHandle<()>) {
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    let thread = thread::spawn(move || {
        let events = source.events().unwrap();
        let mut faults = Vec::new();
        let timeout = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        while !told.load(Ordering::Acquire) {
            let mut poll_fds: Vec<PollFd<'_>> = (events.descriptors().into_iter())
                .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
                .collect();
            let _ = poll(&mut poll_fds, Some(&timeout));
            events.read(&mut faults).unwrap();
            for fault in faults.drain(..) {
                pager.handle_fault(fault);
            }
        }
    });
    (stop, thread)
}
