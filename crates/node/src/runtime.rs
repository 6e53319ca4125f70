//! The node: joins the job, serves its threads' requests, waits, and leaves.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hiroba_base::legs::Hold;
use hiroba_base::{Access, NodeId, PageId, PageRange, PageSize};
use hiroba_fabric::Fabric;
use hiroba_memory::fault::{self, Fault, FaultHandler, FaultOutcome, FaultSource};
use hiroba_memory::{ForkGuard, MemoryError, SharedMemory};
use hiroba_protocol::lease::Leases;
use hiroba_protocol::{Outcome, Protocol, Synchronisation, Waiter};
use hiroba_trace::NodeStatistics;
use hiroba_wire::control::{ToLauncher, ToNode};
use hiroba_wire::{Collective, Limits};

use crate::NodeError;
use crate::account::Account;
use crate::control::ControlChannel;
use crate::headroom::Headroom;
use crate::layout::Layout;
use crate::patience::Patience;
use crate::regions::Regions;
use crate::runtime::deferred::Deferred;
use crate::runtime::follow::ProgramImage;
use crate::runtime::heap::Heap;
use crate::runtime::host::{Core, CoreHeld};
use crate::runtime::lending::LentMemory;
use crate::runtime::liveness::Peers;
use crate::runtime::lulls::Lulls;
use crate::runtime::mapping::Unmapped;
use crate::runtime::on_demand::OnDemand;
use crate::runtime::paging::Pager;
use crate::runtime::ports::Ports;
use crate::runtime::service::Service;
use crate::runtime::space::CollectiveSpace;
use crate::runtime::tracing::Recorder;
use crate::signals::SignalsDeferred;
use crate::threads::{Purpose, Threads};
use crate::time_class::OutsideWait;
use crate::time_class::TimeClass;

pub(crate) mod asking;
pub(crate) mod attention;
mod barriers;
pub(crate) mod deferred;
pub(crate) mod fabrics;
pub(crate) mod follow;
pub(crate) mod heap;
pub(crate) mod host;
pub(crate) mod last_words;
pub(crate) mod leased;
pub(crate) mod lending;
pub(crate) mod liveness;
pub(crate) mod local;
pub(crate) mod lulls;
pub(crate) mod making;
pub(crate) mod mapping;
pub(crate) mod on_demand;
pub(crate) mod one_sided;
pub(crate) mod paging;
pub(crate) mod panics;
pub(crate) mod ports;
pub(crate) mod program_calls;
pub(crate) mod run;
pub(crate) mod service;
pub(crate) mod space;
pub(crate) mod tracing;
pub(crate) mod waits;

pub use self::making::preflight;
use self::making::{has_more_rights_than_its_user, has_thread_sanitizer, has_valgrind};

/// A node of a job. A process has at most one.
pub struct Runtime {
    pub(crate) me: NodeId,
    pub(crate) job: Job,
    pub(crate) memory: Arc<SharedMemory>,
    /// The memory that the machine has left, in a job of several nodes.
    pub(crate) headroom: Option<Headroom>,
    /// `None` in a job of one node: no other node can change its pages, so no access needs to fault.
    pub(crate) faults: Option<Arc<dyn FaultSource>>,
    pub(crate) unmapped: Unmapped,
    fabric: Option<Arc<dyn Fabric>>,
    /// Memory that nodes lend each other, if they do.
    pub(crate) lending: Option<Arc<LentMemory>>,
    /// The work of the paging thread, if pages homed here may leave.
    pub(crate) pager: Option<Pager>,
    pub(crate) on_demand: OnDemand,
    core: Mutex<Core>,
    /// Locks that threads take without the engine.
    leases: Arc<Leases>,
    pub(crate) serving: Serving,
    pub(crate) allocations: Allocations,
    pub(crate) ports: Ports,
    pub(crate) image: ProgramImage,
    pub(crate) threads: Threads,
    /// Number of threads that make the node's collective calls.
    team: AtomicU32,
    pub(crate) patience: Arc<Patience>,
    pub(crate) account: Account,
    /// Waiting time by region, if it is wanted.
    regions: Option<Regions>,
    pub(crate) control: Option<ControlChannel>,
    /// The recorder of a traced run.
    pub(crate) recorder: Option<Recorder>,
    pub(crate) life: Life,
}

/// The job as described by the launcher. It does not change.
pub(crate) struct Job {
    nodes: u16,
    threads_per_node: u32,
    /// The coherence unit of regions that do not choose their own.
    page_size: PageSize,
    protocol: Protocol,
    /// The protocol of the program's own data and of small blocks, if it differs.
    pub(crate) program_protocol: Option<Protocol>,
    /// True if pages under its protocol can be put under sequential consistency.
    converts_pages: bool,
    looks_for_races: bool,
    /// The memory that shared pages may take on this node; 0 for no limit.
    memory_limit_bytes: u64,
    pub(crate) limits: Limits,
    pub(crate) layout: Layout,
    /// The addresses of this node's own data.
    pub(crate) local: PageRange,
}

/// The parts that serve other nodes while the program computes.
pub(crate) struct Serving {
    service: Service,
    pub(crate) lulls: Lulls,
    pub(crate) messages_received: AtomicU64,
    pub(crate) peers: Peers,
    pub(crate) deferred: Deferred,
}

/// The program's allocations.
pub(crate) struct Allocations {
    pub(crate) heap: Heap,
    pub(crate) space: Mutex<CollectiveSpace>,
    /// Serialises the making of collective regions.
    pub(crate) regions_made: Mutex<()>,
}

/// The stage of the node's life.
pub(crate) struct Life {
    /// Distinguishes this process from its forked children.
    forks: ForkGuard,
    left: AtomicBool,
    /// True once the program ends whose threads were halted at arbitrary points.
    halted: AtomicBool,
    /// True once the launcher has closed the job: no other node needs this one any more.
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
    /// Makes this process a node of the job that started it, or of a job of its own.
    ///
    /// Returns when all nodes have joined.
    pub fn join() -> Result<&'static Runtime, NodeError> {
        Runtime::join_job(false)
    }

    /// Joins like [`join`](Self::join), and also joins jobs without seals. `hiroba bench` uses it to measure
    /// the cost of sealing.
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
        panics::end_the_job();
        if let Some(control) = &runtime.control {
            let (version, build) = (env!("CARGO_PKG_VERSION").to_owned(), crate::BUILD.to_owned());
            control.send(&ToLauncher::Join { version, build });
            match control.receive()? {
                Some(ToNode::Start) => {}
                _ => std::process::exit(125), // the launcher is gone or has ended the job, and has reported why
            }
        }
        let stores_fault = runtime.do_stores_fault(runtime.job.page_size);
        runtime.register_arenas(stores_fault).map_err(NodeError::Memory)?;
        if runtime.faults.as_ref().is_some_and(|faults| faults.events().is_some()) {
            runtime.account.expect_fault_events();
        }
        runtime.start_service()?;
        runtime.say_if_unmapped(runtime.job.protocol);
        // This thread faults here for the first time, and Rust's own alternate stack is too small for that.
        fault::install_alternate_stack().map_err(NodeError::Memory)?;
        runtime.calibrate();
        runtime.trace_program();
        crate::runtime::last_words::prepare();
        Ok(runtime)
    }

    /// Returns the runtime of this process, from joining until leaving.
    pub fn get() -> Option<&'static Runtime> {
        RUNTIME
            .get()
            .copied()
            .filter(|runtime| !runtime.life.left.load(Ordering::Relaxed) && !runtime.is_forked())
    }

    /// Returns the runtime of this process once it has joined, even after it has left.
    pub fn known() -> Option<&'static Runtime> {
        RUNTIME.get().copied()
    }

    /// Returns true if the program ends and its threads were halted at arbitrary points: one that was inside
    /// the runtime may still call it.
    pub fn is_halted() -> bool {
        RUNTIME.get().is_some_and(|runtime| runtime.life.halted.load(Ordering::Relaxed))
    }

    /// Returns true if a launcher started this process as a node.
    pub fn has_launcher(&self) -> bool {
        self.control.is_some()
    }

    /// Sends the launcher a message. Returns true if there is a launcher.
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
        let signals = SignalsDeferred::block(); // the thread inherits the mask, so the program's handlers do not run on it
        let thread = std::thread::Builder::new().name("hiroba-service".to_owned());
        let started = thread.spawn(|| self.serve_others()).map(drop);
        drop(signals);
        started.map_err(|source| NodeError::System { what: "starting the service thread", source })
    }

    /// Measures the cost of a fault outside the runtime, on the last page of this node's own arena.
    fn calibrate(&self) {
        let Some(faults) = &self.faults else {
            return self.account.begin();
        };
        let page = PageId(self.job.layout.arena(self.me).end().0 - 1);
        let word = self.memory.address_of(page);
        let touch = || {
            // SAFETY: the address lies in this node's registered arena, and no lock is held: it may fault
            // like the program.
            unsafe { word.read_volatile() };
        };
        touch(); // completes the engine's work on the page; what follows measures only entering and leaving the fault
        let forbid = || self.or_fatal(faults.protect(PageRange::single(page), Access::None));
        self.account.calibrate(&self.threads, forbid, touch);
    }

    /// Registers the memory of `malloc` for the program's use.
    fn register_arenas(&self, stores_fault: bool) -> Result<(), MemoryError> {
        let Some(protocol) = self.job.program_protocol else {
            return self.register(self.job.layout.arenas(), stores_fault);
        };
        for node in NodeId::all(self.job.nodes) {
            let [small, long] = self.job.layout.divided_arena(node);
            self.register(small, stores_fault || protocol.needs_write_faults())?;
            self.register(long, stores_fault)?;
        }
        Ok(())
    }

    /// Registers pages for the program's use: with the fault source, or directly in a job of one node.
    /// `stores_fault` says that the engine must see the first store to each page.
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

    /// Returns this node's number.
    pub fn node(&self) -> NodeId {
        self.me
    }

    /// Returns the number of nodes in the job.
    pub fn nodes(&self) -> u16 {
        self.job.nodes
    }

    /// Returns the number of threads that `hiroba_run` uses on each node.
    pub fn threads_per_node(&self) -> u32 {
        self.job.threads_per_node
    }

    /// Returns the job's protocol, as on the command line.
    pub fn protocol(&self) -> Protocol {
        self.job.protocol
    }

    pub(crate) fn looks_for_races(&self) -> bool {
        self.job.looks_for_races
    }

    /// Returns the coherence unit of regions that do not choose their own.
    pub fn page_size(&self) -> PageSize {
        self.job.page_size
    }

    /// Returns true if every program thread of the job on this machine has a core of its own, so that waiting
    /// threads stay awake.
    pub fn has_cores_to_spare(&self) -> bool {
        self.patience.stays_awake()
    }

    /// Returns true if system calls fail on pages that are not mapped, so that they must be kept off shared
    /// memory. This is so where faults arrive as signals, which the kernel does not raise for its own
    /// accesses.
    pub fn shields_system_calls(&self) -> bool {
        self.faults.as_ref().is_some_and(|faults| faults.events().is_none())
    }

    /// Returns true if any of the bytes lies in the shared address space.
    pub fn is_shared(&self, address: usize, bytes: usize) -> bool {
        let start = self.memory.region_start();
        let end = start + self.memory.region_bytes() as usize;
        address < end && address.saturating_add(bytes) > start
    }

    /// Returns true if all of the bytes are allocated shared memory.
    pub fn is_allocated(&self, address: usize, bytes: usize) -> bool {
        let last = address.checked_add(bytes.saturating_sub(1)).and_then(|last| self.memory.page_of(last));
        let (Some(first), Some(last)) = (self.memory.page_of(address), last) else { return false };
        (first.0..=last.0).all(|granule| self.memory.is_allocated(PageId(granule)))
    }

    /// Returns the number of threads of this node that make its collective calls now.
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
        self.say_and_end(sentence)
    }

    /// Ends the job like [`fatal`](Self::fatal), for a thread that may hold locks.
    pub(crate) fn end_without_locks(&self, sentence: &str) -> ! {
        self.flush_trace_if_free();
        self.say_and_end(sentence)
    }

    fn say_and_end(&self, sentence: &str) -> ! {
        let Some(control) = &self.control else { Runtime::print_and_end(sentence) };
        control.send(&ToLauncher::Fatal { sentence: sentence.to_owned() });
        // Not `exit`: the program's exit handlers would run with shared memory half torn down.
        // SAFETY: _exit has no memory operands and does not return.
        unsafe { libc::_exit(125) }
    }

    pub(crate) fn print_and_end(sentence: &str) -> ! {
        eprintln!("hiroba: {}", hiroba_base::printable(sentence));
        // SAFETY: as in `say_and_end`.
        unsafe { libc::_exit(125) }
    }

    /// Ends the job like [`fatal`](Self::fatal), for callers that have no reference to the runtime.
    pub(crate) fn end_for(sentence: &str) -> ! {
        if let Some(runtime) = RUNTIME.get() {
            runtime.fatal(sentence);
        }
        Runtime::print_and_end(sentence)
    }

    pub(crate) fn or_fatal<T>(&self, result: Result<T, MemoryError>) -> T {
        result.unwrap_or_else(|error| self.fatal(&error.to_string()))
    }

    /// Returns the calling thread's waiter.
    pub(crate) fn waiter(&self, purpose: Purpose) -> Waiter {
        if self.threads.my_place().is_none() {
            self.introduce_thread();
        }
        self.threads.mine(purpose).unwrap_or_else(|| {
            let most = crate::threads::THREADS_MAX;
            self.fatal(&format!(
                "expected at most {most} threads per node that use shared memory, and a free descriptor for each"
            ))
        })
    }
}

/// Leaving the job.
impl Runtime {
    /// Leaves the job together with all other nodes. Shared memory is gone afterwards.
    pub fn leave(&self) {
        self.leave_by("hiroba_finalize", Collective::Leave);
    }

    /// Leaves when the program ends without having left. Reports name the exit.
    pub fn leave_at_exit(&self) {
        self.leave_by("exit", Collective::LeaveByExit);
    }

    /// Leaves on behalf of a program whose threads were halted at arbitrary points.
    pub fn leave_halted(&self) {
        self.life.halted.store(true, Ordering::Relaxed);
        self.leave_by("exit", Collective::LeaveHalted);
    }

    fn leave_by(&self, call: &'static str, collective: Collective) {
        if self.life.left.load(Ordering::Relaxed) || self.is_forked() {
            return;
        }
        let arrive = || self.synchronise(call, TimeClass::Other, Synchronisation::Collective(collective));
        // Where threads were halted in another collective, all nodes may meet in that first.
        while !matches!(arrive(), Outcome::Collective(met) if met.ends_the_job()) {}
        self.closed_out();
    }

    /// Sends the account after the last collective call, and waits until no other node needs this one.
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
        // Faults are no longer served: a late access must end the program, not hang it. A program whose
        // threads were halted is about to end, with a status that a late access must not change.
        if !self.life.halted.load(Ordering::Relaxed) {
            self.memory.close();
        }
    }

    /// Returns the node's current account.
    pub fn statistics(&self) -> NodeStatistics {
        // The account and the fabric have locks that serving a fault may need.
        let _signals = SignalsDeferred::defer();
        let mut statistics = self.account.statistics(self.me);
        let counters = &mut statistics.counters;
        counters.lock_acquires += self.leases.holds();
        counters.resident_bytes_max = self.memory.resident_bytes_max();
        counters.memory_limit_bytes = self.job.memory_limit_bytes;
        if let Some(lending) = &self.lending {
            let tallies = lending.tallies();
            counters.pages_lent = tallies.lent;
            counters.pages_borrowed = tallies.borrowed;
            counters.borrowed_bytes = tallies.borrowed_bytes;
            counters.pages_fetched_back = tallies.fetched;
            counters.pages_taken_back = tallies.taken_back;
        }
        let swap = self.memory.swap_tallies();
        (counters.swap_outs, counters.swap_ins, counters.swap_bytes) = (swap.outs, swap.ins, swap.bytes);
        counters.pages_in_apart = swap.apart;
        if let Some(fabric) = &self.fabric {
            let link = fabric.statistics();
            counters.messages_sent = link.messages_sent;
            counters.bytes_sent = link.bytes_sent;
            counters.retransmits = link.retransmits;
            counters.datagrams_rejected = link.datagrams_rejected;
        }
        statistics
    }

    /// Returns the account with the share of the processors, which takes longer to determine.
    pub fn last_statistics(&self) -> NodeStatistics {
        let _signals = SignalsDeferred::defer();
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

    /// Records an event of regions, if they are wanted. Signals are deferred.
    pub(crate) fn explain(&self, note: impl FnOnce(&Regions)) {
        if let Some(regions) = &self.regions {
            note(regions);
        }
    }

    /// Prepares the calling thread, which is about to run the program's code: gives it a stack for fault
    /// handlers and a place to wait.
    pub fn prepare_thread(&self) -> Result<(), NodeError> {
        fault::install_alternate_stack().map_err(NodeError::Memory)?;
        self.introduce_thread();
        Ok(())
    }

    pub(crate) fn introduce_thread(&self) {
        let _signals = SignalsDeferred::defer();
        let _ = self.threads.mine(Purpose::Call);
        if let Some(place) = self.threads.my_place() {
            self.account.begin_stalls(place);
        }
    }

    /// Says that the process runs an executable: of its threads only those count in the account that are
    /// counted by [`count_thread`](Self::count_thread).
    pub fn expect_crew(&self) {
        let _signals = SignalsDeferred::defer();
        self.account.expect_crew();
    }

    /// Counts the calling thread as one of the program's, or no longer.
    pub fn count_thread(&self, counts: bool) {
        let _signals = SignalsDeferred::defer();
        let _ = self.threads.mine(Purpose::Call);
        match self.threads.my_place() {
            Some(place) if counts => self.account.begin_thread(place),
            Some(place) => self.account.end_thread(place),
            None => {}
        }
    }

    /// Records how the calling thread waits outside the runtime, until [`end_wait`](Self::end_wait).
    pub fn begin_wait(&self, wait: OutsideWait) {
        if let Some(place) = self.threads.my_place() {
            self.account.begin_wait(place, wait.class());
        }
    }

    /// Records that this wait is over.
    pub fn end_wait(&self, wait: OutsideWait) {
        if let Some(place) = self.threads.my_place() {
            self.account.end_wait(place, wait.class());
        }
    }

    /// Records that the calling thread ends, or will use shared memory no more.
    pub fn finish_thread(&self) {
        let _signals = SignalsDeferred::defer();
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
