//! The node: joining the job, what program threads ask for, waiting, leaving.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::space::RegionOptions;
use hiroba_base::{Access, CondId, LockId, NodeId, PageId, PageRange, PageSize};
use hiroba_fabric::Fabric;
use hiroba_memory::fault::{
    self, Fault, FaultHandler, FaultKind, FaultOutcome, FaultSource, FaultSourceKind,
};
use hiroba_memory::{ForkGuard, MemoryConfig, MemoryError, SharedMemory, Twins};
use hiroba_protocol::aurc::mapped::MappingRule;
use hiroba_protocol::hlrc::Hlrc;
use hiroba_protocol::{
    Consistency, Engine, HomePolicy, Misuse, Outcome, Protocol, Sync, Waiter, WriteTracking,
};
use hiroba_trace::{Activity, NodeStatistics};
use hiroba_wire::control::{FaultSourceChoice, JobDescription, ToLauncher, ToNode, WriteTrackingChoice};
use hiroba_wire::{AtomicOperation, AtomicOutcome, Collective, Limits, Placement};
use rustix::event::{PollFd, PollFlags, poll};

use crate::NodeError;
use crate::account::{Account, TimeClass};
use crate::call_site;
use crate::control::ControlChannel;
use crate::fabrics;
use crate::follow::ProgramImage;
use crate::heap::Heap;
use crate::host::Core;
use crate::layout::Layout;
use crate::liveness::Peers;
use crate::lulls::Lulls;
use crate::mapping::Unmapped;
use crate::patience::Patience;
use crate::races::Races;
use crate::service::Service;
use crate::signals::SignalsHeld;
use crate::space::CollectiveSpace;
use crate::threads::{Answer, Call, Purpose, Threads};
use crate::tracing::{Recorder, activity_of};

/// What a program thread may leave queued for other nodes when it goes on computing; the diffs of one release come on top.
const BACKLOG_BYTES_MAX: usize = 64 << 20;

/// A sleeping thread looks up this often, to drive the fabric's timers.
const NAP: Duration = Duration::from_millis(10);

/// A node of a job. There is one in a process.
pub struct Runtime {
    pub(crate) me: NodeId,
    nodes: u16,
    pub(crate) limits: Limits,
    protocol: Protocol,
    looks_for_races: bool,
    /// Tells this process from its forked children.
    forks: ForkGuard,
    pub(crate) layout: Layout,
    /// The coherence unit of regions that do not choose their own.
    page_size: PageSize,
    pub(crate) memory: Arc<SharedMemory>,
    /// None in a job of one node: nobody else can change its pages, so nothing need fault.
    pub(crate) faults: Option<Arc<dyn FaultSource>>,
    fabric: Option<Arc<dyn Fabric>>,
    pub(crate) unmapped: Unmapped,
    core: Mutex<Core>,
    pub(crate) heap: Heap,
    pub(crate) image: ProgramImage,
    pub(crate) threads: Threads,
    threads_per_node: u32,
    pub(crate) account: Account,
    pub(crate) control: Option<ControlChannel>,
    service: Service,
    pub(crate) lulls: Lulls,
    pub(crate) messages_received: AtomicU64,
    pub(crate) peers: Peers,
    pub(crate) space: Mutex<CollectiveSpace>,
    pub(crate) regions_made: Mutex<()>,
    team: AtomicU32,
    pub(crate) patience: Patience,
    /// Of a traced run.
    pub(crate) recorder: Option<Recorder>,
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
        let control = ControlChannel::inherit()?;
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
        runtime.register(runtime.layout.arenas(), false).map_err(NodeError::Memory)?;
        if runtime.faults.as_ref().is_some_and(|faults| faults.events().is_some()) {
            runtime.account.expect_fault_events();
        }
        runtime.start_service()?;
        runtime.say_if_unmapped(runtime.protocol);
        runtime.calibrate();
        runtime.trace_program();
        crate::last_words::prepare();
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

    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.forks.is_forked()
    }

    fn alone() -> Result<Runtime, NodeError> {
        let memory = Arc::new(SharedMemory::reserve(MemoryConfig::default())?);
        let page_size = default_page_size(&memory, PageSize::KIB_4)?;
        Runtime::assemble(Parts {
            me: NodeId::ZERO,
            nodes: 1,
            threads_per_node: 1,
            page_size,
            memory,
            faults: None,
            fabric: None,
            fabric_name: String::new(),
            control: None,
            peers: Peers::default(),
            looks_for_races: false,
            recorder: None,
            cores_suffice: true,
            low_latency: false,
            protocol: Protocol::Hlrc,
            home_policy: HomePolicy::Fixed,
            prefetch: true,
        })
    }

    fn of_job(control: ControlChannel, may_lack_seals: bool) -> Result<Runtime, NodeError> {
        let job = match control.receive_job()? {
            Some(ToNode::Job(job)) => job,
            _ => std::process::exit(125), // the launcher is gone
        };
        let (protocol, home_policy) = check_job(&job)?;
        if job.without_seal && !may_lack_seals {
            return Err(NodeError::WithoutSeal);
        }
        let nodes = job.addresses.len() as u16;
        let memory = Arc::new(fabrics::reserve_memory(&job)?);
        let page_size = default_page_size(&memory, job.page_size)?;
        let write_tracking =
            if protocol.needs_write_faults() { WriteTrackingChoice::Fault } else { job.write_tracking };
        let mut faults = None;
        let mut fabric = None;
        if nodes > 1 {
            faults = Some(if job.races {
                open_faults_for_races(job.fault_source, &memory)?
            } else {
                open_faults(job.fault_source, write_tracking, &memory)?
            });
            fabric = Some(fabrics::open(&job)?);
        }
        let fabric_name = job.fabric.clone();
        let granule_bytes = memory.granule().bytes() as u32;
        let recorder = fabrics::open_trace(&job, granule_bytes)?;
        let threads_per_node = u32::from(job.threads_per_node);
        let control = Some(control);
        Runtime::assemble(Parts {
            me: job.node,
            nodes,
            threads_per_node,
            page_size,
            memory,
            faults,
            fabric,
            fabric_name,
            control,
            peers: Peers::new(&job),
            looks_for_races: job.races,
            recorder,
            cores_suffice: do_cores_suffice(&job),
            low_latency: job.low_latency,
            protocol,
            home_policy,
            prefetch: job.prefetch,
        })
    }

    fn assemble(parts: Parts) -> Result<Runtime, NodeError> {
        let Parts {
            me,
            nodes,
            threads_per_node,
            page_size,
            memory,
            faults,
            fabric,
            fabric_name,
            control,
            peers,
            looks_for_races,
            recorder,
            cores_suffice,
            low_latency,
            protocol,
            home_policy,
            prefetch,
        } = parts;
        let granule_bytes = memory.granule().bytes() as u32;
        let limits = Limits { nodes, region_granules: memory.granules(), granule_bytes };
        let layout = Layout::new(memory.granules(), granule_bytes, nodes);
        let tracking = match faults.as_ref().map(|faults| faults.tracking()) {
            Some(hiroba_memory::WriteTracking::Async) => WriteTracking::Async,
            _ => WriteTracking::Fault,
        };
        let looks_for_races = looks_for_races && nodes > 1;
        let mut engine = if looks_for_races {
            Hlrc::looking_for_races(me, limits)
        } else {
            let one_sided = fabric.as_deref().and_then(|fabric| fabric.one_sided());
            let reached = NodeId::all(nodes)
                .filter(|node| *node != me && one_sided.is_some_and(|one_sided| one_sided.reaches(*node)));
            Consistency::under(protocol, me, limits, tracking, reached).moving_homes(home_policy)
        };
        engine = engine.fetching_ahead(prefetch);
        if recorder.is_some() {
            engine = engine.telling();
        }
        for node in NodeId::all(nodes) {
            engine.add_region(layout.arena(node), page_size, Placement::On(node));
        }
        // From here on: the heaps' blocks are mostly small, and their owners' own.
        if fabric.as_deref().is_some_and(|fabric| fabric.capabilities().shared_frames) {
            engine = engine.mapping_homes(MappingRule::default());
        }
        let races = looks_for_races.then(Races::default);
        let core = Core::new(Box::new(engine), Twins::new(memory.clone()), races);
        let heap = Heap::new(me, &memory, layout.arena(me), page_size);
        let lulls = Lulls::new()?;
        let runtime = Runtime {
            me,
            nodes,
            limits,
            protocol,
            looks_for_races,
            forks: ForkGuard::new()?,
            layout,
            memory,
            faults,
            core: Mutex::new(core),
            heap,
            image: ProgramImage::default(),
            threads: Threads::new(),
            threads_per_node,
            page_size,
            account: Account::new(threads_per_node),
            messages_received: AtomicU64::new(0),
            peers,
            service: Service::new(fabric.as_deref(), control.as_ref(), low_latency, &lulls)?,
            lulls,
            fabric,
            unmapped: Unmapped::over(fabric_name),
            control,
            space: Mutex::new(CollectiveSpace::default()),
            regions_made: Mutex::new(()),
            team: AtomicU32::new(1),
            patience: Patience::new(cores_suffice),
            recorder,
            left: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        };
        for node in NodeId::all(nodes) {
            let options = RegionOptions { placement: Placement::On(node), page_size, protocol: None };
            runtime.trace_region(runtime.layout.arena(node), options);
        }
        Ok(runtime)
    }

    fn start_service(&'static self) -> Result<(), NodeError> {
        if self.fabric.is_none() && self.control.is_none() {
            return Ok(());
        }
        let signals = SignalsHeld::hold(); // the thread inherits them, so no handler of the program's runs on it
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
        let page = PageId(self.layout.arena(self.me).end().0 - 1);
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
    /// `stores_fault` where the protocol must see the first store to each.
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
        self.nodes
    }

    /// Threads that `hiroba_run` uses on each node.
    pub fn threads_per_node(&self) -> u32 {
        self.threads_per_node
    }

    /// The job's protocol, as on the command line.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    pub(crate) fn looks_for_races(&self) -> bool {
        self.looks_for_races
    }

    /// The coherence unit of regions that do not choose their own.
    pub fn page_size(&self) -> PageSize {
        self.page_size
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
        &self.service
    }

    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the job: this node cannot go on.
    pub fn fatal(&self, sentence: &str) -> ! {
        self.flush_trace();
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

/// What a runtime is made of.
struct Parts {
    me: NodeId,
    nodes: u16,
    threads_per_node: u32,
    page_size: PageSize,
    memory: Arc<SharedMemory>,
    faults: Option<Arc<dyn FaultSource>>,
    fabric: Option<Arc<dyn Fabric>>,
    /// As the user chose it.
    fabric_name: String,
    control: Option<ControlChannel>,
    peers: Peers,
    looks_for_races: bool,
    recorder: Option<Recorder>,
    /// Every program thread of this machine's part of the job has a core of its own.
    cores_suffice: bool,
    low_latency: bool,
    protocol: Protocol,
    home_policy: HomePolicy,
    prefetch: bool,
}

/// The protocols that a node can run.
/// Whether there is a core for each program thread of the nodes that share these.
fn do_cores_suffice(job: &JobDescription) -> bool {
    let here = job.hosts.get(job.node.index());
    let nodes_here = if job.bound { 1 } else { job.hosts.iter().filter(|host| Some(*host) == here).count() };
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    nodes_here * usize::from(job.threads_per_node) <= cores
}

fn has_thread_sanitizer() -> bool {
    // SAFETY: the name is a C string; the call looks it up in what is loaded and changes nothing.
    !unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__tsan_init".as_ptr()) }.is_null()
}

/// A page is no smaller than the kernel's own.
fn default_page_size(memory: &SharedMemory, asked: PageSize) -> Result<PageSize, NodeError> {
    let granule_bytes = memory.granule().bytes();
    if asked == PageSize::KIB_4 {
        return Ok(asked.max(memory.granule()));
    }
    if asked < memory.granule() {
        return Err(NodeError::PageSize { asked_bytes: asked.bytes(), granule_bytes });
    }
    Ok(asked)
}

/// Tries what every node of a job will need of this machine and user, and gives it back: so that a launcher can say
/// what is lacking before any program starts.
pub fn preflight(
    nodes: u16,
    source: FaultSourceChoice,
    tracking: WriteTrackingChoice,
) -> Result<(), NodeError> {
    let memory = Arc::new(SharedMemory::reserve(MemoryConfig::default())?);
    if nodes > 1 {
        open_faults(source, tracking, &memory)?;
    }
    Ok(())
}

fn check_job(job: &JobDescription) -> Result<(Protocol, HomePolicy), NodeError> {
    let ours = env!("CARGO_PKG_VERSION");
    if job.version != ours {
        return Err(NodeError::Version { ours: ours.to_owned(), theirs: job.version.clone() });
    }
    if job.build != crate::BUILD {
        return Err(NodeError::Build { ours: crate::BUILD, theirs: job.build.clone() });
    }
    let unknown = |what, known, got: &str| NodeError::Unknown { what, known, got: got.to_owned() };
    let protocol = Protocol::named(&job.protocol)
        .ok_or_else(|| unknown("protocol", Protocol::names(), &job.protocol))?;
    let policy = HomePolicy::named(&job.home_migration).ok_or_else(|| {
        unknown("home migration", HomePolicy::ALL.map(HomePolicy::name).join(" or "), &job.home_migration)
    })?;
    Ok((protocol, policy))
}

fn open_faults(
    source: FaultSourceChoice,
    tracking: WriteTrackingChoice,
    memory: &Arc<SharedMemory>,
) -> Result<Arc<dyn FaultSource>, MemoryError> {
    let handler: Arc<dyn FaultHandler> = Arc::new(Handler);
    let source = match source {
        FaultSourceChoice::Automatic => None,
        FaultSourceChoice::Event => Some(FaultSourceKind::Event),
        FaultSourceChoice::Sigbus => Some(FaultSourceKind::Sigbus),
        FaultSourceChoice::Sigsegv => Some(FaultSourceKind::Sigsegv),
    };
    let tracking = match tracking {
        WriteTrackingChoice::Automatic => None,
        WriteTrackingChoice::Async => Some(hiroba_memory::WriteTracking::Async),
        WriteTrackingChoice::Fault => Some(hiroba_memory::WriteTracking::Fault),
    };
    fault::open_best(source, tracking, memory, &handler).map(|(source, _)| source)
}

/// The first store of each interval must fault, and best in the storing thread, where it can be seen which instruction it was.
fn open_faults_for_races(
    source: FaultSourceChoice,
    memory: &Arc<SharedMemory>,
) -> Result<Arc<dyn FaultSource>, MemoryError> {
    let tracking = WriteTrackingChoice::Fault;
    if source != FaultSourceChoice::Automatic {
        return open_faults(source, tracking, memory);
    }
    open_faults(FaultSourceChoice::Sigbus, tracking, memory)
        .or_else(|_| open_faults(FaultSourceChoice::Sigsegv, tracking, memory))
}

/// What program threads ask for. Each call returns when it is done.
impl Runtime {
    /// Has the engine do something for the calling thread, and waits for its answer.
    fn ask(
        &self,
        class: TimeClass,
        activity: Activity,
        request: impl FnOnce(&mut dyn Engine, Waiter),
    ) -> Outcome {
        self.ask_as(Purpose::Call, class, activity, |core, waiter| request(&mut *core.engine, waiter))
    }

    fn ask_as(
        &self,
        purpose: Purpose,
        class: TimeClass,
        activity: Activity,
        request: impl FnOnce(&mut Core, Waiter),
    ) -> Outcome {
        let waiter = self.waiter(purpose);
        let inside = self.account.enter(&self.threads, class);
        let quiet = self.begin_spinning();
        let mut is_traced = false;
        self.tell(|core| {
            is_traced = self.trace_begin(inside.since(), || activity);
            request(core, waiter);
        });
        let answer = self.wait_spinning(waiter, quiet);
        if is_traced {
            self.trace_end();
        }
        match answer {
            Answer::Engine(outcome) => outcome,
            Answer::Size(_) => self.fatal("expected an answer from the protocol, got one from the allocator"),
        }
    }

    /// Has the core do something, with signals held back.
    pub(crate) fn tell(&self, act: impl FnOnce(&mut Core)) {
        let _signals = SignalsHeld::hold();
        let mut core = self.core();
        core.end_holds();
        act(&mut core);
        self.carry_out_all(&mut core);
    }

    /// What [`Fabric::begin_spinning`] says; said before a thread asks what it will wait for.
    fn begin_spinning(&self) -> bool {
        self.has_fabric() && self.fabric().begin_spinning()
    }

    /// Waits for an answer; serves whatever comes meanwhile ("waiting means serving").
    pub(crate) fn wait(&self, waiter: Waiter) -> Answer {
        let quiet = self.begin_spinning();
        self.wait_spinning(waiter, quiet)
    }

    /// The same after [`begin_spinning`](Self::begin_spinning), which it ends.
    fn wait_spinning(&self, waiter: Waiter, quiet: bool) -> Answer {
        // Most answers are there at once. No handler of the program's uses this slot, so signals need not be held to look.
        if let Some(answer) = self.threads.get(waiter).take() {
            if quiet {
                self.fabric().end_spinning();
            }
            return answer;
        }
        let signals = SignalsHeld::hold();
        if !self.has_fabric() {
            drop(signals);
            return self.wait_alone(waiter);
        }
        self.poll_until(waiter, signals, quiet, || self.threads.get(waiter).take())
    }

    /// Polls the fabric, first awake and then asleep, until `done`. Spinning has begun.
    fn poll_until<T>(
        &self,
        waiter: Waiter,
        mut signals: SignalsHeld,
        quiet: bool,
        done: impl Fn() -> Option<T>,
    ) -> T {
        let slot = self.threads.get(waiter);
        // Where nobody else is woken while this thread spins, the service thread need stand aside only while it sleeps.
        let mut aside = !quiet;
        if aside {
            self.service.stand_aside(self.fabric());
        }
        let mut vigil = self.patience.begin();
        let result = loop {
            if self.receive().is_some_and(|count| count > 0) {
                vigil.hear();
            }
            if let Some(result) = done() {
                break result;
            }
            if vigil.goes_on() {
                continue;
            }
            let nap = self.fabric().next_timeout().unwrap_or(NAP).min(NAP);
            // The program's signal handlers run while the thread sleeps, and only then: nothing is locked.
            self.threads.falls_asleep(waiter);
            if !aside {
                self.service.stand_aside(self.fabric());
                aside = true;
            }
            self.fabric().end_spinning();
            drop(signals);
            if slot.sleeps() {
                let bell = slot.bell().expect("the thread's slot has a bell");
                let fabric = self.fabric().descriptor();
                let mut sources = [PollFd::new(&fabric, PollFlags::IN), PollFd::new(&bell, PollFlags::IN)];
                let _ = poll(&mut sources, Some(&crate::service::timespec(nap)));
            }
            slot.awake();
            signals = SignalsHeld::hold();
            self.fabric().begin_spinning();
        };
        self.threads.wakes_up(waiter);
        self.fabric().end_spinning();
        if aside {
            self.service.resume(self.fabric());
        }
        if self.threads_per_node == 1 {
            self.service.stay_near_caller();
        }
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
            let waiter = self.waiter(Purpose::Call);
            let _inside = self.account.enter(&self.threads, class);
            let quiet = self.begin_spinning();
            self.poll_until(waiter, signals, quiet, room);
        }
    }

    /// In a job of one node only another thread of this process can end the wait.
    fn wait_alone(&self, waiter: Waiter) -> Answer {
        let slot = self.threads.get(waiter);
        loop {
            self.threads.falls_asleep(waiter);
            if slot.sleeps() {
                let bell = slot.bell().expect("the thread's slot has a bell");
                let _ = poll(&mut [PollFd::new(&bell, PollFlags::IN)], None);
            }
            slot.awake();
            if let Some(answer) = slot.take() {
                self.threads.wakes_up(waiter);
                return answer;
            }
        }
    }

    /// A touch beyond access, in signal context on the faulting thread.
    fn fault(&self, fault: Fault) -> FaultOutcome {
        if self.left.load(Ordering::Relaxed) || self.is_forked() {
            return FaultOutcome::NotOurs;
        }
        let _signals = SignalsHeld::by_the_kernel();
        let (class, wanted) = classify(fault.kind);
        self.account.count_fault(class);
        let request = |core: &mut Core, waiter| {
            if wanted == Access::Write
                && let Some(races) = &mut core.races
            {
                races.note_store(fault.page, fault.program_counter);
            }
            core.engine.handle_fault(fault.page, wanted, Some(waiter));
        };
        let activity = Activity::Fault { page: fault.page, wanted };
        match self.ask_as(Purpose::Fault, class, activity, request) {
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

    pub(crate) fn synchronise(&self, name: &'static str, class: TimeClass, sync: Sync) -> Outcome {
        let call = describe(name, sync);
        let request = |engine: &mut dyn Engine, waiter| engine.handle_sync(sync, waiter);
        let outcome = self.threads.in_call(call, || self.ask(class, activity_of(sync), request));
        if matches!(sync, Sync::Release(_) | Sync::Publish(_)) {
            self.hold_back(class);
        }
        if let Outcome::Misuse(misuse) = outcome {
            self.fatal(&format!("{name}: {misuse}"));
        }
        outcome
    }

    /// Operates on an atomic word. `address` must be a multiple of 8 in allocated shared memory.
    pub fn atomic(&self, call: &str, address: usize, operation: AtomicOperation) -> AtomicOutcome {
        let page = self.memory.page_of(address).filter(|_| address.is_multiple_of(8));
        let outcome = page.map(|page| {
            let offset = (address % self.memory.granule().bytes()) as u32;
            self.ask(TimeClass::Other, Activity::Atomic { page, offset }, |engine, waiter| {
                engine.handle_atomic(page, offset, operation, waiter);
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
            let _inside = (self.trace_other(), self.account.enter(&self.threads, TimeClass::Other));
            let pages = PageRange { first, count: last.0 - first.0 + 1 };
            self.tell(|core| core.engine.handle_prefetch(pages));
        }
        true
    }
}

/// What the calling thread is about to wait in, for reports.
fn describe(name: &'static str, sync: Sync) -> Call {
    let (arguments, lock) = match sync {
        Sync::Acquire(lock) | Sync::TryAcquire(lock) | Sync::Release(lock) => {
            ([Some(lock.0), None], Some(lock.0))
        }
        Sync::Wait(cond, lock) => ([Some(cond.0), Some(lock.0)], None),
        Sync::Signal(cond) | Sync::Broadcast(cond) => ([Some(cond.0), None], None),
        Sync::Collective(_) | Sync::Publish(_) => ([None, None], None),
    };
    Call { name, arguments, lock, site: call_site::noted() }
}

pub(crate) fn classify(kind: FaultKind) -> (TimeClass, Access) {
    match kind {
        FaultKind::Read => (TimeClass::ReadFault, Access::Read),
        FaultKind::Write => (TimeClass::WriteFault, Access::Write),
        FaultKind::Unknown => (TimeClass::ReadFault, Access::None),
    }
}

/// The end.
impl Runtime {
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
        self.end_trace();
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
        self.heap.finish_thread();
        if let Some(place) = self.threads.my_place() {
            self.trace_pending_end(place);
        }
        let held = self.core().engine.locks_held();
        self.threads
            .finish_mine(|number| held.iter().any(|(_, holder)| Threads::number_of(*holder) == number));
    }
}
