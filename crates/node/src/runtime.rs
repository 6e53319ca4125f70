//! The node: joining the job, what program threads ask for, waiting, leaving.

use std::net::SocketAddr;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hiroba_base::{Access, CondId, LockId, NodeId, PageId, PageRange, PageSize};
use hiroba_fabric::{Fabric, UdpFabric};
use hiroba_memory::fault::{
    self, Fault, FaultHandler, FaultKind, FaultOutcome, FaultSource, FaultSourceKind,
};
use hiroba_memory::{MemoryConfig, MemoryError, SharedMemory, Twins};
use hiroba_protocol::hlrc::Hlrc;
use hiroba_protocol::{Engine, Misuse, Outcome, Sync, Waiter};
use hiroba_trace::NodeStatistics;
use hiroba_wire::control::{FaultSourceChoice, JobDescription, ToLauncher, ToNode};
use hiroba_wire::{AtomicOperation, AtomicOutcome, Collective, Limits, Placement};
use rustix::event::{PollFd, PollFlags, poll};
use thiserror::Error;

use crate::NodeError;
use crate::account::{Account, TimeClass};
use crate::control::ControlChannel;
use crate::follow::ProgramImage;
use crate::heap::Heap;
use crate::host::Core;
use crate::layout::Layout;
use crate::service::Service;
use crate::signals::SignalsHeld;
use crate::slot::{Answer, Purpose, Slots};

/// How long a waiting thread polls before it sleeps, when every node of this machine has a core of its own: longer than
/// an exchange with a peer that is awake, about as long as waking a halted core takes.
const SPIN: Duration = Duration::from_micros(60);

/// What a program thread may leave queued for other nodes when it goes on computing; the diffs of one release come on top.
const BACKLOG_BYTES_MAX: usize = 64 << 20;

/// A sleeping thread looks up this often, to drive the fabric's timers.
const NAP: Duration = Duration::from_millis(10);

/// A node of a job. There is one in a process.
pub struct Runtime {
    pub(crate) me: NodeId,
    nodes: u16,
    pub(crate) limits: Limits,
    process: u32,
    pub(crate) layout: Layout,
    pub(crate) memory: Arc<SharedMemory>,
    /// None in a job of one node: nobody else can change its pages, so nothing need fault.
    pub(crate) faults: Option<Arc<dyn FaultSource>>,
    fabric: Option<Arc<dyn Fabric>>,
    core: Mutex<Core>,
    pub(crate) heap: Mutex<Heap>,
    pub(crate) image: ProgramImage,
    pub(crate) slots: Slots,
    pub(crate) account: Account,
    pub(crate) control: Option<ControlChannel>,
    service: Service,
    allocated: Mutex<CollectiveSpace>,
    spins: bool,
    left: AtomicBool,
    /// The launcher has closed the job: nobody needs this node any more.
    pub(crate) closed: AtomicBool,
}

static RUNTIME: OnceLock<&'static Runtime> = OnceLock::new();

/// How far collective allocation has come; the same on every node.
#[derive(Debug, Default)]
struct CollectiveSpace {
    next_page: u64,
    regions: u64,
}

/// So many regions have an unallocated page behind them, where running over the end is caught. Each costs two of
/// the process's mappings, of which the kernel allows 65,530; regions beyond lie side by side.
const GUARDED_REGIONS_MAX: u64 = 8192;

impl CollectiveSpace {
    fn take(&mut self, count: u64) -> PageRange {
        let pages = PageRange { first: PageId(self.next_page), count };
        self.regions += 1;
        self.next_page += count + u64::from(self.regions <= GUARDED_REGIONS_MAX);
        pages
    }
}

/// Why an allocation failed. No node got anything.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AllocateError {
    /// The size or placement makes no sense.
    #[error("expected {expected}, got {got}")]
    Invalid {
        /// What would do.
        expected: &'static str,
        /// What was asked for.
        got: u64,
    },
    /// The shared address space is used up.
    #[error(
        "expected at most {free_bytes} bytes, which is what is left of the shared address space, got {got_bytes}"
    )]
    NoAddresses {
        /// What is left.
        free_bytes: u64,
        /// What was asked for.
        got_bytes: u64,
    },
}

struct Handler;

impl FaultHandler for Handler {
    fn handle_fault(&self, fault: Fault) -> FaultOutcome {
        match RUNTIME.get() {
            Some(runtime) => runtime.fault(fault),
            None => FaultOutcome::NotOurs,
        }
    }
}

impl Runtime {
    /// Makes this process a node: of the job that started it, or of a job of its own.
    ///
    /// Returns when all nodes have joined.
    pub fn join() -> Result<&'static Runtime, NodeError> {
        if let Some(runtime) = RUNTIME.get() {
            let forked = runtime.process != std::process::id();
            return Err(if forked { NodeError::Forked } else { NodeError::AlreadyJoined });
        }
        let control = ControlChannel::inherit()?;
        let runtime = match control {
            Some(control) => Runtime::of_job(control)?,
            None => Runtime::alone()?,
        };
        let runtime: &'static Runtime = Box::leak(Box::new(runtime));
        if RUNTIME.set(runtime).is_err() {
            return Err(NodeError::AlreadyJoined);
        }
        if let Some(control) = &runtime.control {
            control.send(&ToLauncher::Join { version: env!("CARGO_PKG_VERSION").to_owned() });
            match control.receive()? {
                Some(ToNode::Start) => {}
                _ => std::process::exit(125), // the launcher is gone, or has ended the job: it has said why
            }
        }
        runtime.register(runtime.layout.arenas()).map_err(NodeError::Memory)?;
        if runtime.faults.as_ref().is_some_and(|faults| faults.events().is_some()) {
            runtime.account.expect_fault_events();
        }
        runtime.start_service()?;
        runtime.calibrate();
        Ok(runtime)
    }

    /// The runtime of this process, once it has joined and until it leaves.
    pub fn get() -> Option<&'static Runtime> {
        RUNTIME.get().copied().filter(|runtime| !runtime.left.load(Ordering::Relaxed) && !runtime.is_forked())
    }

    /// The runtime of this process once it has joined, even after it has left.
    pub fn known() -> Option<&'static Runtime> {
        RUNTIME.get().copied()
    }

    fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    fn alone() -> Result<Runtime, NodeError> {
        let memory = Arc::new(SharedMemory::reserve(MemoryConfig::default())?);
        Runtime::assemble(NodeId::ZERO, 1, memory, None, None, None)
    }

    fn of_job(control: ControlChannel) -> Result<Runtime, NodeError> {
        let job = match control.receive_job()? {
            Some(ToNode::Job(job)) => job,
            _ => std::process::exit(125), // the launcher is gone
        };
        check_job(&job)?;
        let nodes = job.addresses.len() as u16;
        let config = MemoryConfig { page_size: job.page_size, ..MemoryConfig::default() };
        let memory = Arc::new(SharedMemory::reserve(config)?);
        if nodes == 1 {
            return Runtime::assemble(job.node, nodes, memory, None, None, Some(control));
        }
        let faults = open_faults(job.fault_source, &memory)?;
        let fabric: Arc<dyn Fabric> = Arc::new(open_fabric(&job)?);
        Runtime::assemble(job.node, nodes, memory, Some(faults), Some(fabric), Some(control))
    }

    fn assemble(
        me: NodeId,
        nodes: u16,
        memory: Arc<SharedMemory>,
        faults: Option<Arc<dyn FaultSource>>,
        fabric: Option<Arc<dyn Fabric>>,
        control: Option<ControlChannel>,
    ) -> Result<Runtime, NodeError> {
        let page_bytes = memory.page_size().bytes();
        let limits = Limits { nodes, region_pages: memory.pages(), page_bytes: page_bytes as u32 };
        let layout = Layout::new(memory.pages(), nodes);
        let mut engine = Hlrc::new(me, limits);
        for node in NodeId::all(nodes) {
            engine.add_region(layout.arena(node), Placement::On(node));
        }
        let core = Core::new(Box::new(engine), Twins::new(memory.clone()), page_bytes);
        let heap = Heap::new(&memory, layout.arena(me));
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Ok(Runtime {
            me,
            nodes,
            limits,
            process: std::process::id(),
            layout,
            memory,
            faults,
            core: Mutex::new(core),
            heap: Mutex::new(heap),
            image: ProgramImage::default(),
            slots: Slots::new(),
            account: Account::new(),
            service: Service::new(fabric.as_deref(), control.as_ref())?,
            fabric,
            control,
            allocated: Mutex::new(CollectiveSpace::default()),
            spins: usize::from(nodes) <= cores,
            left: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        })
    }

    fn start_service(&'static self) -> Result<(), NodeError> {
        if self.fabric.is_none() && self.control.is_none() {
            return Ok(());
        }
        let signals = SignalsHeld::hold(); // the thread inherits them, so no handler of the program's runs on it
        let thread = std::thread::Builder::new().name("hiroba-service".to_owned());
        let started = thread.spawn(move || self.serve_others());
        drop(signals);
        started.map(drop).map_err(|source| NodeError::System { what: "starting the service thread", source })
    }

    /// Measures what a fault costs outside the runtime, on the last page of this node's own arena.
    fn calibrate(&self) {
        let Some(faults) = &self.faults else {
            return self.account.begin();
        };
        let page = PageId(self.layout.arena(self.me).end().0 - 1);
        let word = self.memory.address_of(page);
        let touch = || {
            // SAFETY: the address lies in this node's registered arena, and no lock is held: it may fault like the program.
            unsafe { word.read_volatile() };
        };
        touch(); // the engine's business with the page is done here, what follows is only the fault's way in and out
        let forbid = || self.or_fatal(faults.protect(PageRange::single(page), Access::None));
        self.account.calibrate(forbid, touch);
    }

    /// Lets the program use pages: under the fault source's eyes, or freely in a job of one node.
    fn register(&self, pages: PageRange) -> Result<(), MemoryError> {
        self.memory.allocate(pages)?;
        match &self.faults {
            Some(faults) => faults.register(pages),
            None => self.memory.open(pages),
        }
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.me
    }

    /// Nodes of the job.
    pub fn nodes(&self) -> u16 {
        self.nodes
    }

    /// The coherence unit.
    pub fn page_size(&self) -> PageSize {
        self.memory.page_size()
    }

    pub(crate) fn fabric(&self) -> &dyn Fabric {
        self.fabric.as_deref().expect("a job of one node sends nothing")
    }

    pub(crate) fn has_fabric(&self) -> bool {
        self.fabric.is_some()
    }

    pub(crate) fn spins(&self) -> bool {
        self.spins
    }

    pub(crate) fn service(&self) -> &Service {
        &self.service
    }

    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the job: this node cannot go on.
    pub fn fatal(&self, sentence: &str) -> ! {
        match &self.control {
            Some(control) => control.send(&ToLauncher::Fatal { sentence: sentence.to_owned() }),
            None => eprintln!("hiroba: {sentence}"),
        }
        // Not `exit`: handlers of the program's would run with shared memory half torn down.
        // SAFETY: _exit has no memory operands and does not return.
        unsafe { libc::_exit(125) }
    }

    pub(crate) fn or_fatal<T>(&self, result: Result<T, MemoryError>) -> T {
        result.unwrap_or_else(|error| self.fatal(&error.to_string()))
    }

    /// The calling thread's place to wait.
    pub(crate) fn waiter(&self, purpose: Purpose) -> Waiter {
        self.slots.mine(purpose).unwrap_or_else(|| {
            let most = crate::slot::THREADS_MAX;
            self.fatal(&format!(
                "expected at most {most} threads a node that use shared memory, and a free descriptor for each"
            ))
        })
    }
}

/// Tries what every node of a job will need of this machine and user, and gives it back: so that a launcher can say
/// what is lacking before any program starts.
pub fn preflight(nodes: u16, page_size: PageSize, choice: FaultSourceChoice) -> Result<(), NodeError> {
    let memory = Arc::new(SharedMemory::reserve(MemoryConfig { page_size, ..MemoryConfig::default() })?);
    if nodes > 1 {
        open_faults(choice, &memory)?;
    }
    Ok(())
}

fn check_job(job: &JobDescription) -> Result<(), NodeError> {
    let ours = env!("CARGO_PKG_VERSION");
    let unknown = |what, known, got: &str| NodeError::Unknown { what, known, got: got.to_owned() };
    if job.version != ours {
        return Err(NodeError::Version { ours: ours.to_owned(), theirs: job.version.clone() });
    }
    match (job.protocol.as_str(), job.fabric.as_str(), job.threads_per_node) {
        ("hlrc", "udp", 1) => Ok(()),
        ("hlrc", "udp", threads) => Err(unknown("threads a node", "1", &threads.to_string())),
        ("hlrc", fabric, _) => Err(unknown("fabric", "udp", fabric)),
        (protocol, ..) => Err(unknown("protocol", "hlrc", protocol)),
    }
}

fn open_faults(
    choice: FaultSourceChoice,
    memory: &Arc<SharedMemory>,
) -> Result<Arc<dyn FaultSource>, MemoryError> {
    let handler: Arc<dyn FaultHandler> = Arc::new(Handler);
    let kind = match choice {
        FaultSourceChoice::Automatic => return fault::open_best(memory, &handler).map(|(source, _)| source),
        FaultSourceChoice::Event => FaultSourceKind::Event,
        FaultSourceChoice::Sigbus => FaultSourceKind::Sigbus,
        FaultSourceChoice::Sigsegv => FaultSourceKind::Sigsegv,
    };
    fault::open(kind, memory.clone(), handler)
}

fn open_fabric(job: &JobDescription) -> Result<UdpFabric, NodeError> {
    // SAFETY: the launcher bound this socket for this process and passed it for this use alone.
    let socket = unsafe { OwnedFd::from_raw_fd(job.socket_fd) };
    crate::control::close_on_exec(socket.as_fd()).map_err(NodeError::system("the inherited socket"))?;
    let addresses: Vec<SocketAddr> = job.addresses.clone();
    Ok(UdpFabric::new(socket, job.node, addresses, job.job, job.inject)?)
}

/// What program threads ask for. Each call returns when it is done.
impl Runtime {
    /// Has the engine do something for the calling thread, and waits for its answer.
    pub(crate) fn ask(&self, class: TimeClass, request: impl FnOnce(&mut dyn Engine, Waiter)) -> Outcome {
        self.ask_as(Purpose::Call, class, request)
    }

    fn ask_as(
        &self,
        purpose: Purpose,
        class: TimeClass,
        request: impl FnOnce(&mut dyn Engine, Waiter),
    ) -> Outcome {
        let _inside = self.account.enter(class);
        let waiter = self.waiter(purpose);
        self.tell(|core| request(&mut *core.engine, waiter));
        match self.wait(waiter) {
            Answer::Engine(outcome) => outcome,
            Answer::Size(_) => self.fatal("expected an answer from the protocol, got one from the allocator"),
        }
    }

    /// Has the core do something, with signals held back.
    pub(crate) fn tell(&self, act: impl FnOnce(&mut Core)) {
        let _signals = SignalsHeld::hold();
        let mut core = self.core();
        act(&mut core);
        self.carry_out_all(&mut core);
    }

    /// Waits for an answer; serves whatever comes meanwhile ("waiting means serving").
    pub(crate) fn wait(&self, waiter: Waiter) -> Answer {
        let signals = SignalsHeld::hold();
        if let Some(answer) = self.slots.get(waiter).take() {
            return answer;
        }
        if !self.has_fabric() {
            drop(signals);
            return self.wait_alone(waiter);
        }
        self.poll_until(waiter, signals, || self.slots.get(waiter).take())
    }

    /// Polls the fabric, first awake and then asleep, until `done`.
    fn poll_until<T>(&self, waiter: Waiter, mut signals: SignalsHeld, done: impl Fn() -> Option<T>) -> T {
        let slot = self.slots.get(waiter);
        self.service.stand_aside(self.fabric());
        let began = Instant::now();
        let result = loop {
            self.receive();
            if let Some(result) = done() {
                break result;
            }
            if self.spins && began.elapsed() < SPIN {
                std::hint::spin_loop();
                continue;
            }
            let nap = self.fabric().next_timeout().unwrap_or(NAP).min(NAP);
            // The program's signal handlers run while the thread sleeps, and only then: nothing is locked.
            drop(signals);
            if slot.sleeps() {
                let bell = slot.bell().expect("the thread's slot has a bell");
                let fabric = self.fabric().descriptor();
                let mut sources = [PollFd::new(&fabric, PollFlags::IN), PollFd::new(&bell, PollFlags::IN)];
                let _ = poll(&mut sources, Some(&crate::service::timespec(nap)));
            }
            slot.awake();
            signals = SignalsHeld::hold();
        };
        self.service.resume(self.fabric());
        self.service.stay_near_caller();
        result
    }

    /// Waits while more is queued for other nodes than [`BACKLOG_BYTES_MAX`]: after calls that send much and wait for nothing.
    fn hold_back(&self, class: TimeClass) {
        if !self.has_fabric() {
            return;
        }
        let signals = SignalsHeld::hold();
        let room = || (self.fabric().backlog_bytes_all() <= BACKLOG_BYTES_MAX).then_some(());
        if room().is_none() {
            let _inside = self.account.enter(class);
            self.poll_until(self.waiter(Purpose::Call), signals, room);
        }
    }

    /// In a job of one node only another thread of this process can end the wait.
    fn wait_alone(&self, waiter: Waiter) -> Answer {
        let slot = self.slots.get(waiter);
        loop {
            if slot.sleeps() {
                let bell = slot.bell().expect("the thread's slot has a bell");
                let _ = poll(&mut [PollFd::new(&bell, PollFlags::IN)], None);
            }
            slot.awake();
            if let Some(answer) = slot.take() {
                return answer;
            }
        }
    }

    /// A touch beyond access, in signal context on the faulting thread.
    fn fault(&self, fault: Fault) -> FaultOutcome {
        if self.left.load(Ordering::Relaxed) || self.is_forked() {
            return FaultOutcome::NotOurs;
        }
        let (class, wanted) = classify(fault.kind);
        self.account.count_fault(class);
        let request = |engine: &mut dyn Engine, waiter| engine.handle_fault(fault.page, wanted, Some(waiter));
        match self.ask_as(Purpose::Fault, class, request) {
            Outcome::Misuse(Misuse::NotAllocated(_)) => FaultOutcome::NotOurs,
            _ => FaultOutcome::Resolved,
        }
    }

    /// Takes a lock.
    pub fn lock(&self, lock: LockId) {
        self.synchronise("hiroba_lock", TimeClass::Lock, Sync::Acquire(lock));
        self.account.tallies.lock_acquires.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a lock if it is free; whether it was.
    pub fn try_lock(&self, lock: LockId) -> bool {
        let outcome = self.synchronise("hiroba_trylock", TimeClass::Lock, Sync::TryAcquire(lock));
        let taken = outcome != Outcome::Refused;
        self.account.tallies.lock_acquires.fetch_add(u64::from(taken), Ordering::Relaxed);
        taken
    }

    /// Gives a lock up.
    pub fn unlock(&self, lock: LockId) {
        self.synchronise("hiroba_unlock", TimeClass::Lock, Sync::Release(lock));
    }

    /// Gives the lock up, waits for a signal, takes the lock again.
    pub fn cond_wait(&self, cond: CondId, lock: LockId) {
        self.synchronise("hiroba_cond_wait", TimeClass::Lock, Sync::Wait(cond, lock));
        self.account.tallies.lock_acquires.fetch_add(1, Ordering::Relaxed);
    }

    /// Wakes one waiter.
    pub fn cond_signal(&self, cond: CondId) {
        self.synchronise("hiroba_cond_signal", TimeClass::Lock, Sync::Signal(cond));
    }

    /// Wakes all waiters.
    pub fn cond_broadcast(&self, cond: CondId) {
        self.synchronise("hiroba_cond_broadcast", TimeClass::Lock, Sync::Broadcast(cond));
    }

    /// Meets all nodes.
    pub fn barrier(&self) {
        self.synchronise("hiroba_barrier", TimeClass::Barrier, Sync::Collective(Collective::Barrier));
        self.account.tallies.barriers.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn synchronise(&self, call: &str, class: TimeClass, sync: Sync) -> Outcome {
        let outcome = self.ask(class, |engine, waiter| engine.handle_sync(sync, waiter));
        if matches!(sync, Sync::Release(_) | Sync::Publish(_)) {
            self.hold_back(class);
        }
        if let Outcome::Misuse(misuse) = outcome {
            self.fatal(&format!("{call}: {misuse}"));
        }
        outcome
    }

    /// Operates on an atomic word. `address` must be a multiple of 8 in allocated shared memory.
    pub fn atomic(&self, call: &str, address: usize, operation: AtomicOperation) -> AtomicOutcome {
        let page = self.memory.page_of(address).filter(|_| address.is_multiple_of(8));
        let outcome = page.map(|page| {
            let offset = address % self.page_size().bytes();
            self.ask(TimeClass::Other, |engine, waiter| {
                engine.handle_atomic(page, offset as u32, operation, waiter);
            })
        });
        match outcome {
            Some(Outcome::Atomic(outcome)) => outcome,
            _ => self.fatal(&format!(
                "{call}: expected the address of an 8-byte-aligned word in allocated shared memory, got 0x{address:x}"
            )),
        }
    }

    /// Hints that the bytes will be read soon.
    pub fn prefetch(&self, address: usize, bytes: usize) -> bool {
        let last = address.checked_add(bytes.saturating_sub(1)).and_then(|last| self.memory.page_of(last));
        let (Some(first), Some(last)) = (self.memory.page_of(address), last) else { return false };
        if bytes > 0 && self.has_fabric() {
            let _inside = self.account.enter(TimeClass::Other);
            let pages = PageRange { first, count: last.0 - first.0 + 1 };
            self.tell(|core| core.engine.handle_prefetch(pages));
        }
        true
    }
}

pub(crate) fn classify(kind: FaultKind) -> (TimeClass, Access) {
    match kind {
        FaultKind::Read => (TimeClass::ReadFault, Access::Read),
        FaultKind::Write => (TimeClass::WriteFault, Access::Write),
        FaultKind::Unknown => (TimeClass::ReadFault, Access::None),
    }
}

/// Collective allocation and the end.
impl Runtime {
    /// Allocates `bytes` zeroed bytes at the same address on every node. All nodes call it alike.
    pub fn allocate(&self, bytes: u64, placement: Placement) -> Result<usize, AllocateError> {
        let placement = self.check_allocation(bytes, placement)?;
        let collective = Collective::Allocate { bytes, placement };
        self.synchronise("hiroba_alloc", TimeClass::Other, Sync::Collective(collective));
        Ok(self.add_region(bytes, placement))
    }

    fn check_allocation(&self, bytes: u64, placement: Placement) -> Result<Placement, AllocateError> {
        if bytes == 0 {
            return Err(AllocateError::Invalid { expected: "at least 1 byte", got: 0 });
        }
        if let Placement::On(home) = placement
            && home.0 >= self.nodes
        {
            return Err(AllocateError::Invalid {
                expected: "a node of the job as home",
                got: u64::from(home.0),
            });
        }
        let next_page = self.allocated.lock().unwrap_or_else(PoisonError::into_inner).next_page;
        let free = self.layout.collective_end() - next_page;
        let page_bytes = self.page_size().bytes() as u64;
        if self.page_size().pages_for(bytes) >= free {
            let free_bytes = free.saturating_sub(1) * page_bytes;
            return Err(AllocateError::NoAddresses { free_bytes, got_bytes: bytes });
        }
        Ok(placement)
    }

    /// What every node does alike when a collective allocation is complete.
    pub(crate) fn add_region(&self, bytes: u64, placement: Placement) -> usize {
        let count = self.page_size().pages_for(bytes);
        let pages = self.allocated.lock().unwrap_or_else(PoisonError::into_inner).take(count);
        self.or_fatal(self.register(pages));
        self.tell(|core| core.engine.add_region(pages, placement));
        self.memory.address_of(pages.first) as usize
    }

    /// Leaves the job, with everybody else. Shared memory is gone afterwards.
    pub fn leave(&self) {
        if self.left.load(Ordering::Relaxed) || self.is_forked() {
            return;
        }
        self.synchronise("hiroba_finalize", TimeClass::Other, Sync::Collective(Collective::Leave));
        self.closed_out();
    }

    /// After the last collective: accounts, and waits until nobody needs this node.
    pub(crate) fn closed_out(&self) {
        self.left.store(true, Ordering::Relaxed);
        if let Some(control) = &self.control {
            let statistics_json = serde_json::to_string(&self.statistics()).unwrap_or_default();
            control.send(&ToLauncher::Leave { statistics_json });
            while !self.closed.load(Ordering::Acquire) {
                self.service.wait_until_closed(&self.closed);
            }
        }
        // Nobody serves faults any more: a late touch must end the program, not hang it.
        self.memory.close();
    }

    /// The node's account up to now.
    pub fn statistics(&self) -> NodeStatistics {
        let mut statistics = self.account.statistics(self.me);
        let counters = &mut statistics.counters;
        counters.resident_bytes_max = self.memory.resident_bytes_max();
        if let Some(fabric) = &self.fabric {
            let link = fabric.statistics();
            counters.messages_sent = link.messages_sent;
            counters.bytes_sent = link.bytes_sent;
            counters.retransmits = link.retransmits;
            counters.datagrams_rejected = link.datagrams_rejected;
        }
        statistics
    }

    /// Gives the calling thread a stack for fault handlers.
    pub fn prepare_thread(&self) -> Result<(), NodeError> {
        fault::install_alternate_stack().map_err(NodeError::Memory)
    }
}
