//! How a runtime is made: of a job that a launcher describes, or of a job of its own.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

use hiroba_base::{NodeId, PageSize};
use hiroba_fabric::Fabric;
use hiroba_memory::fault::{self, FaultHandler, FaultSource, FaultSourceKind};
use hiroba_memory::{ForkGuard, MemoryConfig, MemoryError, SharedMemory, Twins};
use hiroba_paging::PolicyKind;
use hiroba_protocol::aurc::mapped::MappingRule;
use hiroba_protocol::{Consistency, Engine, HomePolicy, Protocol, WriteTracking};
use hiroba_wire::control::{FaultSourceChoice, JobDescription, WriteTrackingChoice};
use hiroba_wire::{Limits, Placement};

use super::{Allocations, Handler, Job, Life, Runtime, Serving};
use crate::NodeError;
use crate::account::Account;
use crate::budget::Budget;
use crate::control::ControlChannel;
use crate::layout::Layout;
use crate::patience::Patience;
use crate::regions::Regions;
use crate::runtime::fabrics::Ends;
use crate::runtime::follow::ProgramImage;
use crate::runtime::heap::Heap;
use crate::runtime::host::Core;
use crate::runtime::host::races::Races;
use crate::runtime::liveness::Peers;
use crate::runtime::lulls::Lulls;
use crate::runtime::mapping::Unmapped;
use crate::runtime::ports::Ports;
use crate::runtime::service::Service;
use crate::runtime::space::{CollectiveSpace, RegionOptions};
use crate::runtime::tracing::Recorder;
use crate::threads::Threads;

impl Runtime {
    pub(super) fn alone() -> Result<Runtime, NodeError> {
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
            budget: None,
            explains: false,
        })
    }

    pub(super) fn of_job(control: ControlChannel, may_lack_seals: bool) -> Result<Runtime, NodeError> {
        let (job, passed) = control.receive_job()?;
        let mut ends = Ends::of(&job, passed);
        if job.randomised {
            randomise_what_is_executed_later();
        }
        let (protocol, home_policy) = check_job(&job)?;
        if job.transport.without_seal && !may_lack_seals {
            return Err(NodeError::WithoutSeal);
        }
        let nodes = job.addresses.len() as u16;
        let memory = Arc::new(ends.reserve_memory(&job)?);
        let page_size = default_page_size(&memory, job.coherence.page_size)?;
        let write_tracking = if protocol.needs_write_faults() {
            WriteTrackingChoice::Fault
        } else {
            job.coherence.write_tracking
        };
        let mut faults = None;
        let mut fabric = None;
        if nodes > 1 {
            faults = Some(if job.coherence.races {
                open_faults_for_races(job.coherence.fault_source, &memory)?
            } else {
                open_faults(job.coherence.fault_source, write_tracking, &memory)?
            });
            fabric = Some(ends.open_fabric(&job)?);
        }
        let fabric_name = job.transport.fabric.name().to_owned();
        let granule_bytes = memory.granule().bytes() as u32;
        let recorder = ends.open_trace(&job, granule_bytes)?;
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
            looks_for_races: job.coherence.races,
            recorder,
            cores_suffice: do_cores_suffice(&job),
            low_latency: job.low_latency,
            protocol,
            home_policy,
            prefetch: job.coherence.prefetch,
            budget: budget_of(&job, page_size)?,
            explains: job.explains && nodes > 1,
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
            budget,
            explains,
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
            Consistency::looking_for_races(me, limits)
        } else {
            let one_sided = fabric.as_deref().and_then(|fabric| fabric.one_sided());
            let reached = NodeId::all(nodes)
                .filter(|node| *node != me && one_sided.is_some_and(|one_sided| one_sided.reaches(*node)));
            Consistency::under(protocol, me, limits, tracking, reached).moving_homes(home_policy)
        };
        engine = engine.prefetching(prefetch);
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
        let core = Core::new(Box::new(engine), Twins::new(memory.clone()), races, budget);
        let regions = explains.then(Regions::default);
        let heap = Heap::new(me, &memory, layout.arena(me), page_size);
        let lulls = Lulls::new()?;
        let job = Job { nodes, threads_per_node, page_size, protocol, looks_for_races, limits, layout };
        let service = Service::new(fabric.as_deref(), control.as_ref(), low_latency, &lulls)?;
        let space = Mutex::new(CollectiveSpace::default());
        let runtime = Runtime {
            me,
            job,
            memory,
            faults,
            unmapped: Unmapped::over(fabric_name),
            fabric,
            core: Mutex::new(core),
            serving: Serving { service, lulls, messages_received: AtomicU64::new(0), peers },
            allocations: Allocations { heap, space, regions_made: Mutex::new(()) },
            ports: Ports::new(me, nodes),
            image: ProgramImage::default(),
            threads: Threads::new(),
            team: AtomicU32::new(1),
            patience: Patience::new(cores_suffice, threads_per_node),
            account: Account::new(threads_per_node),
            regions,
            control,
            recorder,
            life: Life {
                forks: ForkGuard::new()?,
                left: AtomicBool::new(false),
                closed: AtomicBool::new(false),
            },
        };
        for node in NodeId::all(nodes) {
            let options = RegionOptions { placement: Placement::On(node), page_size, protocol: None };
            let arena = runtime.job.layout.arena(node);
            runtime.trace_region(arena, options);
            runtime.explain(|regions| regions.add_arena(arena, u64::from(granule_bytes), node));
        }
        Ok(runtime)
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
    budget: Option<Budget>,
    /// The account tells what is waited for, region by region.
    explains: bool,
}

/// The launcher has this process's own addresses fixed, for they must be equal on all nodes. What the process executes from
/// now on, from this thread and those that it will start, is no node: it gets random addresses again.
fn randomise_what_is_executed_later() {
    const ASK: libc::c_ulong = 0xffff_ffff;
    // SAFETY: this argument asks and changes nothing.
    let persona = unsafe { libc::personality(ASK) };
    if persona >= 0 {
        let random = (persona & !libc::ADDR_NO_RANDOMIZE) as libc::c_ulong;
        // SAFETY: concerns the layout of later programs, not this one's memory.
        unsafe { libc::personality(random) };
    }
}

/// Whether there is a core for each program thread of the nodes that share these.
fn do_cores_suffice(job: &JobDescription) -> bool {
    let here = job.hosts.get(job.node.index());
    let nodes_here = if job.bound { 1 } else { job.hosts.iter().filter(|host| Some(*host) == here).count() };
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    nodes_here * usize::from(job.threads_per_node) <= cores
}

/// Whether the program was executed with more rights than its user has: set-user-ID, set-group-ID or with capabilities.
pub(super) fn has_more_rights_than_its_user() -> bool {
    // SAFETY: looks up a word that the kernel gave the process; no memory operands.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

pub(super) fn has_thread_sanitizer() -> bool {
    // SAFETY: the name is a C string; the call looks it up in what is loaded and changes nothing.
    !unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__tsan_init".as_ptr()) }.is_null()
}

/// Whether the process runs under valgrind, which preloads a library of its own.
pub(super) fn has_valgrind() -> bool {
    std::env::var_os("LD_PRELOAD").is_some_and(|preloaded| preloaded.to_string_lossy().contains("vgpreload_"))
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
    if (job.version.as_str(), job.build.as_str()) != (env!("CARGO_PKG_VERSION"), crate::BUILD) {
        return Err(NodeError::other_build(job.version.clone(), job.build.clone()));
    }
    let unknown = |what, known, got: &str| NodeError::Unknown { what, known, got: got.to_owned() };
    let protocol = Protocol::named(&job.coherence.protocol)
        .ok_or_else(|| unknown("protocol", Protocol::names(), &job.coherence.protocol))?;
    let policy = HomePolicy::named(&job.coherence.home_migration).ok_or_else(|| {
        unknown(
            "home migration",
            HomePolicy::ALL.map(HomePolicy::name).join(" or "),
            &job.coherence.home_migration,
        )
    })?;
    Ok((protocol, policy))
}

fn budget_of(job: &JobDescription, page_size: PageSize) -> Result<Option<Budget>, NodeError> {
    let Some(limit) = &job.coherence.memory_limit else { return Ok(None) };
    let kind: PolicyKind = limit.replacement.parse().map_err(|_| NodeError::Unknown {
        what: "replacement policy",
        known: PolicyKind::ALL.map(PolicyKind::name).join(", "),
        got: limit.replacement.clone(),
    })?;
    Ok(Some(Budget::new(limit.bytes, page_size.bytes() as u64, kind)))
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
