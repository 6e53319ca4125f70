//! The node: joining the job, what program threads ask for, waiting, leaving.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hiroba_base::legs::Hold;
use hiroba_base::{Access, NodeId, PageId, PageRange, PageSize};
use hiroba_fabric::Fabric;
use hiroba_memory::fault::{self, Fault, FaultHandler, FaultOutcome, FaultSource};
use hiroba_memory::{ForkGuard, MemoryError, SharedMemory};
use hiroba_protocol::{Protocol, Synchronisation, Waiter};
use hiroba_trace::NodeStatistics;
use hiroba_wire::control::{ToLauncher, ToNode};
use hiroba_wire::{Collective, Limits};

use crate::NodeError;
use crate::account::Account;
use crate::control::ControlChannel;
use crate::layout::Layout;
use crate::patience::Patience;
use crate::regions::Regions;
use crate::runtime::follow::ProgramImage;
use crate::runtime::heap::Heap;
use crate::runtime::host::{Core, CoreHeld};
use crate::runtime::liveness::Peers;
use crate::runtime::lulls::Lulls;
use crate::runtime::mapping::Unmapped;
use crate::runtime::ports::Ports;
use crate::runtime::service::Service;
use crate::runtime::space::CollectiveSpace;
use crate::runtime::tracing::Recorder;
use crate::signals::SignalsHeld;
use crate::threads::{Purpose, Threads};
use crate::time_class::TimeClass;

pub(crate) mod asking;
pub(crate) mod fabrics;
pub(crate) mod follow;
pub(crate) mod heap;
pub(crate) mod host;
pub(crate) mod last_words;
pub(crate) mod liveness;
pub(crate) mod lulls;
pub(crate) mod making;
pub(crate) mod mapping;
pub(crate) mod one_sided;
pub(crate) mod ports;
pub(crate) mod program_calls;
pub(crate) mod run;
pub(crate) mod service;
pub(crate) mod space;
pub(crate) mod tracing;
pub(crate) mod waits;

pub use self::making::preflight;
use self::making::{has_more_rights_than_its_user, has_thread_sanitizer, has_valgrind};

/// A node of a job. There is one in a process.
pub struct Runtime {
    pub(crate) me: NodeId,
    pub(crate) job: Job,
    pub(crate) memory: Arc<SharedMemory>,
    /// None in a job of one node: nobody else can change its pages, so nothing need fault.
    pub(crate) faults: Option<Arc<dyn FaultSource>>,
    pub(crate) unmapped: Unmapped,
    fabric: Option<Arc<dyn Fabric>>,
    core: Mutex<Core>,
    pub(crate) serving: Serving,
    pub(crate) allocations: Allocations,
    pub(crate) ports: Ports,
    pub(crate) image: ProgramImage,
    pub(crate) threads: Threads,
    /// How many threads make the node's collective calls.
    team: AtomicU32,
    pub(crate) patience: Patience,
    pub(crate) account: Account,
    /// What is waited for, where somebody wants to know.
    regions: Option<Regions>,
    pub(crate) control: Option<ControlChannel>,
    /// Of a traced run.
    pub(crate) recorder: Option<Recorder>,
    pub(crate) life: Life,
}

/// What the node was told when it joined. It does not change.
pub(crate) struct Job {
    nodes: u16,
    threads_per_node: u32,
    /// The coherence unit of regions that do not choose their own.
    page_size: PageSize,
    protocol: Protocol,
    looks_for_races: bool,
    pub(crate) limits: Limits,
    pub(crate) layout: Layout,
}

/// What serves other nodes while the program computes.
pub(crate) struct Serving {
    service: Service,
    pub(crate) lulls: Lulls,
    pub(crate) messages_received: AtomicU64,
    pub(crate) peers: Peers,
}

/// What the program has allocated.
pub(crate) struct Allocations {
    pub(crate) heap: Heap,
    pub(crate) space: Mutex<CollectiveSpace>,
    /// Collective regions are made one at a time.
    pub(crate) regions_made: Mutex<()>,
}

/// How far the node's life has come.
pub(crate) struct Life {
    /// Tells this process from its forked children.
    forks: ForkGuard,
    left: AtomicBool,
    /// The launcher has closed the job: nobody needs this node any more.
    pub(crate) closed: AtomicBool,
}

static RUNTIME: OnceLock<&'static Runtime> = OnceLock::new();

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
        Runtime::join_job(false)
    }

    /// The same for the code of `hiroba bench`, which also joins jobs without seals, to measure what they cost.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn join_measurement() -> Result<&'static Runtime, NodeError> {
        Runtime::join_job(true)
    }

    fn join_job(may_lack_seals: bool) -> Result<&'static Runtime, NodeError> {
        if let Some(runtime) = RUNTIME.get() {
            return Err(if runtime.is_forked() { NodeError::Forked } else { NodeError::AlreadyJoined });
        }
        if has_thread_sanitizer() {
            return Err(NodeError::ThreadSanitizer);
        }
        if has_valgrind() {
            return Err(NodeError::Valgrind);
        }
        if has_more_rights_than_its_user() {
            return Err(NodeError::Privileged);
        }
        crate::signals::look_for_handlers();
        let control = ControlChannel::open()?;
        let runtime = match control {
            Some(control) => Runtime::of_job(control, may_lack_seals)?,
            None => Runtime::alone()?,
        };
        let runtime: &'static Runtime = Box::leak(Box::new(runtime));
        if RUNTIME.set(runtime).is_err() {
            return Err(NodeError::AlreadyJoined);
        }
        if let Some(control) = &runtime.control {
            let (version, build) = (env!("CARGO_PKG_VERSION").to_owned(), crate::BUILD.to_owned());
            control.send(&ToLauncher::Join { version, build });
            match control.receive()? {
                Some(ToNode::Start) => {}
                _ => std::process::exit(125), // the launcher is gone, or has ended the job: it has said why
            }
        }
        let stores_fault = runtime.do_stores_fault(runtime.job.page_size);
        runtime.register(runtime.job.layout.arenas(), stores_fault).map_err(NodeError::Memory)?;
        if runtime.faults.as_ref().is_some_and(|faults| faults.events().is_some()) {
            runtime.account.expect_fault_events();
        }
        runtime.start_service()?;
        runtime.say_if_unmapped(runtime.job.protocol);
        // This thread faults here for the first time; Rust's own alternate stack is too small for that.
        fault::install_alternate_stack().map_err(NodeError::Memory)?;
        runtime.calibrate();
        runtime.trace_program();
        crate::runtime::last_words::prepare();
        Ok(runtime)
    }

    /// The runtime of this process, once it has joined and until it leaves.
    pub fn get() -> Option<&'static Runtime> {
        RUNTIME
            .get()
            .copied()
            .filter(|runtime| !runtime.life.left.load(Ordering::Relaxed) && !runtime.is_forked())
    }

    /// The runtime of this process once it has joined, even after it has left.
    pub fn known() -> Option<&'static Runtime> {
        RUNTIME.get().copied()
    }

    /// Whether a launcher started this process as a node.
    pub fn has_launcher(&self) -> bool {
        self.control.is_some()
    }

    /// Whether there is a launcher, which has been told this.
    pub(crate) fn tell_launcher(&self, message: &ToLauncher) -> bool {
        if let Some(control) = &self.control {
            control.send(message);
        }
        self.control.is_some()
    }

    pub(crate) fn has_left(&self) -> bool {
        self.life.left.load(Ordering::Relaxed)
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.life.forks.is_forked()
    }

    fn start_service(&'static self) -> Result<(), NodeError> {
        if self.fabric.is_none() && self.control.is_none() {
            return Ok(());
        }
        let signals = SignalsHeld::block(); // the thread inherits them, so no handler of the program's runs on it
        let thread = std::thread::Builder::new().name("hiroba-service".to_owned());
        let serve = move || {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.serve_others()));
            if ended.is_err() {
                // Others would wait for ever for a node that is silent.
                self.fatal("the service thread of a node met a state that cannot be (see above): a fault of Hiroba's");
            }
        };
        let started = thread.spawn(serve);
        drop(signals);
        started.map(drop).map_err(|source| NodeError::System { what: "starting the service thread", source })
    }

    /// Measures what a fault costs outside the runtime, on the last page of this node's own arena.
    fn calibrate(&self) {
        let Some(faults) = &self.faults else {
            return self.account.begin();
        };
        let page = PageId(self.job.layout.arena(self.me).end().0 - 1);
        let word = self.memory.address_of(page);
        let touch = || {
            // SAFETY: the address lies in this node's registered arena, and no lock is held: it may fault like the program.
            unsafe { word.read_volatile() };
        };
        touch(); // the engine's business with the page is done here, what follows is only the fault's way in and out
        let forbid = || self.or_fatal(faults.protect(PageRange::single(page), Access::None));
        self.account.calibrate(&self.threads, forbid, touch);
    }

    /// Lets the program use pages: under the fault source's eyes, or freely in a job of one node.
    /// `stores_fault` where the engine must see the first store to each.
    pub(crate) fn register(&self, pages: PageRange, stores_fault: bool) -> Result<(), MemoryError> {
        self.memory.allocate(pages)?;
        match &self.faults {
            Some(faults) => {
                let stores =
                    if stores_fault { hiroba_memory::WriteTracking::Fault } else { faults.tracking() };
                faults.register(pages, stores)
            }
            None => self.memory.open(pages),
        }
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.me
    }

    /// Nodes of the job.
    pub fn nodes(&self) -> u16 {
        self.job.nodes
    }

    /// Threads that `hiroba_run` uses on each node.
    pub fn threads_per_node(&self) -> u32 {
        self.job.threads_per_node
    }

    /// The job's protocol, as on the command line.
    pub fn protocol(&self) -> Protocol {
        self.job.protocol
    }

    pub(crate) fn looks_for_races(&self) -> bool {
        self.job.looks_for_races
    }

    /// The coherence unit of regions that do not choose their own.
    pub fn page_size(&self) -> PageSize {
        self.job.page_size
    }

    /// Whether every program thread of this machine's part of the job has a core of its own, so that waiting threads stay awake.
    pub fn has_cores_to_spare(&self) -> bool {
        self.patience.stays_awake()
    }

    /// Whether system calls on pages that are not here fail, so that they must be kept off shared memory: where faults come as
    /// signals, which the kernel does not raise on its own behalf.
    pub fn shields_system_calls(&self) -> bool {
        self.faults.as_ref().is_some_and(|faults| faults.events().is_none())
    }

    /// Whether any of the bytes lies in the shared address space.
    pub fn is_shared(&self, address: usize, bytes: usize) -> bool {
        let start = self.memory.region_start();
        let end = start + self.memory.region_bytes() as usize;
        address < end && address.saturating_add(bytes) > start
    }

    /// Whether all of the bytes are allocated shared memory.
    pub fn is_allocated(&self, address: usize, bytes: usize) -> bool {
        let last = address.checked_add(bytes.saturating_sub(1)).and_then(|last| self.memory.page_of(last));
        let (Some(first), Some(last)) = (self.memory.page_of(address), last) else { return false };
        (first.0..=last.0).all(|granule| self.memory.is_allocated(PageId(granule)))
    }

    /// How many threads of this node make its collective calls now.
    pub(crate) fn team(&self) -> u32 {
        self.team.load(Ordering::Relaxed)
    }

    pub(crate) fn set_team(&self, threads: u32) {
        self.team.store(threads, Ordering::Relaxed);
        self.tell(|core| core.engine.set_team(threads));
    }

    pub(crate) fn fabric(&self) -> &dyn Fabric {
        self.fabric.as_deref().expect("a job of one node sends nothing")
    }

    pub(crate) fn has_fabric(&self) -> bool {
        self.fabric.is_some()
    }

    pub(crate) fn service(&self) -> &Service {
        &self.serving.service
    }

    pub(crate) fn core(&self) -> CoreHeld<'_> {
        let core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        CoreHeld { hold: Hold::begin(), core }
    }

    /// Ends the job: this node cannot go on.
    pub fn fatal(&self, sentence: &str) -> ! {
        self.flush_trace();
        match &self.control {
            Some(control) => control.send(&ToLauncher::Fatal { sentence: sentence.to_owned() }),
            None => eprintln!("hiroba: {}", hiroba_base::printable(sentence)),
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
        if self.threads.my_place().is_none() {
            self.introduce_thread();
        }
        self.threads.mine(purpose).unwrap_or_else(|| {
            let most = crate::threads::THREADS_MAX;
            self.fatal(&format!(
                "expected at most {most} threads a node that use shared memory, and a free descriptor for each"
            ))
        })
    }
}

/// The end.
impl Runtime {
    /// Leaves the job, with everybody else. Shared memory is gone afterwards.
    pub fn leave(&self) {
        self.leave_by("hiroba_finalize", Collective::Leave);
    }

    /// The same where the program ends without having left: reports name what it did.
    pub fn leave_at_exit(&self) {
        self.leave_by("exit", Collective::LeaveByExit);
    }

    fn leave_by(&self, call: &'static str, collective: Collective) {
        if self.life.left.load(Ordering::Relaxed) || self.is_forked() {
            return;
        }
        self.synchronise(call, TimeClass::Other, Synchronisation::Collective(collective));
        self.closed_out();
    }

    /// After the last collective: accounts, and waits until nobody needs this node.
    pub(crate) fn closed_out(&self) {
        self.settle_races();
        self.life.left.store(true, Ordering::Relaxed);
        if let Some(control) = &self.control {
            let statistics_json = serde_json::to_string(&self.last_statistics()).unwrap_or_default();
            control.send(&ToLauncher::Leave { statistics_json });
            while !self.life.closed.load(Ordering::Acquire) {
                self.serving.service.wait_until_closed(&self.life.closed);
            }
            self.tell_looked();
        }
        self.end_trace();
        // Nobody serves faults any more: a late touch must end the program, not hang it.
        self.memory.close();
    }

    /// The node's account up to now.
    pub fn statistics(&self) -> NodeStatistics {
        // The account and the fabric have locks that serving a fault may need.
        let _signals = SignalsHeld::hold();
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

    /// The same with the share of the processors, which takes longer to find out.
    pub fn last_statistics(&self) -> NodeStatistics {
        let _signals = SignalsHeld::hold();
        NodeStatistics {
            core_share: self.account.core_share.share(),
            shares_cores: !self.has_cores_to_spare(),
            others_share: self.account.core_share.of_others(),
            regions: self.regions.as_ref().map_or_else(Vec::new, |regions| {
                regions.statistics(|page| self.memory.address_of(page) as u64)
            }),
            ..self.statistics()
        }
    }

    /// Notes what happens to regions, if that is wanted. Signals are held.
    pub(crate) fn explain(&self, note: impl FnOnce(&Regions)) {
        if let Some(regions) = &self.regions {
            note(regions);
        }
    }

    /// Prepares the calling thread, which is about to run the program's code: a stack for fault handlers, a place to wait.
    pub fn prepare_thread(&self) -> Result<(), NodeError> {
        fault::install_alternate_stack().map_err(NodeError::Memory)?;
        self.introduce_thread();
        Ok(())
    }

    pub(crate) fn introduce_thread(&self) {
        let _signals = SignalsHeld::hold();
        let _ = self.threads.mine(Purpose::Call);
        if let Some(place) = self.threads.my_place() {
            self.account.begin_stalls(place);
        }
    }

    /// The calling thread ends, or will use shared memory no more.
    pub fn finish_thread(&self) {
        let _signals = SignalsHeld::hold();
        self.allocations.heap.finish_thread();
        self.account.core_share.note_end_of_mine();
        if let Some(place) = self.threads.my_place() {
            self.trace_pending_end(place);
        }
        let held = self.core().engine.locks_held();
        self.threads
            .finish_mine(|number| held.iter().any(|(_, holder)| Threads::number_of(*holder) == number));
    }
}
