//! Makes a runtime, for a job that a launcher describes or for a job of its own.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

use hiroba_base::{NodeId, PageSize};
use hiroba_fabric::Fabric;
use hiroba_memory::fault::{self, FaultHandler, FaultSource, FaultSourceKind};
use hiroba_memory::{ForkGuard, Lenders, MemoryConfig, MemoryError, SharedMemory, Twins};
use hiroba_paging::PolicyKind;
use hiroba_protocol::aurc::mapped::MappingRule;
use hiroba_protocol::lease::Leases;
use hiroba_protocol::{Consistency, Engine, HomePolicy, Protocol, WriteTracking};
use hiroba_wire::control::{FaultSourceChoice, JobDescription, WriteTrackingChoice};
use hiroba_wire::{Limits, Placement};

use super::{Allocations, Handler, Job, Life, Runtime, Serving};
use crate::NodeError;
use crate::account::Account;
use crate::budget::Budget;
use crate::control::ControlChannel;
use crate::headroom::Headroom;
use crate::layout::Layout;
use crate::local_space::LocalSpace;
use crate::patience::Patience;
use crate::regions::Regions;
use crate::runtime::deferred::Deferred;
use crate::runtime::fabrics::Ends;
use crate::runtime::follow::ProgramImage;
use crate::runtime::heap::Heap;
use crate::runtime::host::Core;
use crate::runtime::host::races::Races;
use crate::runtime::lending::LentMemory;
use crate::runtime::liveness::Peers;
use crate::runtime::lulls::Lulls;
use crate::runtime::mapping::Unmapped;
use crate::runtime::on_demand::OnDemand;
use crate::runtime::paging::Pager;
use crate::runtime::ports::Ports;
use crate::runtime::service::Service;
use crate::runtime::space::{CollectiveSpace, RegionOptions};
use crate::runtime::tracing::Recorder;
use crate::swap;
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
            patience: Arc::new(Patience::new(true, 1)),
            low_latency: false,
            protocol: Protocol::Hlrc,
            program_protocol: None,
            home_policy: HomePolicy::Fixed,
            prefetch: true,
            budget: None,
            headroom: None,
            lending: None,
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
        let program_protocol = program_protocol_of(&job, protocol)?;
        let nodes = job.addresses.len() as u16;
        let memory = Arc::new(ends.reserve_memory(&job)?);
        let page_size = default_page_size(&memory, job.coherence.page_size)?;
        let headroom = (nodes > 1).then(|| Headroom::find(nodes_here(&job)));
        let budget = budget_of(&job, page_size, headroom.as_ref())?;
        let patience = Arc::new(Patience::new(do_cores_suffice(&job), u32::from(job.threads_per_node)));
        let lending = job.coherence.lend.filter(|_| nodes > 1).map(|lend| {
            let limit_bytes = budget.as_ref().map_or(0, |budget| budget.limit_bytes);
            let (lent_bytes_max, memory) = (lend.bytes_of(limit_bytes), Arc::clone(&memory));
            Arc::new(LentMemory::new(&job, lent_bytes_max, limit_bytes, memory, Arc::clone(&patience)))
        });
        let lenders = lending.clone().map(|lending| lending as Arc<dyn Lenders>);
        swap::open(&job, &memory, lenders, |error| Runtime::end_for(&error.to_string()))?;
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
            patience,
            low_latency: job.low_latency,
            protocol,
            program_protocol,
            home_policy,
            prefetch: job.coherence.prefetch,
            budget,
            headroom,
            lending,
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
            patience,
            low_latency,
            protocol,
            program_protocol,
            home_policy,
            prefetch,
            budget,
            headroom,
            lending,
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
            // Pages that are out are in no frame that others could read.
            let is_readable = !budget.as_ref().is_some_and(Budget::has_swap);
            let one_sided = fabric.as_deref().filter(|_| is_readable).and_then(|fabric| fabric.one_sided());
            let reached = NodeId::all(nodes)
                .filter(|node| *node != me && one_sided.is_some_and(|one_sided| one_sided.reaches(*node)));
            Consistency::under(protocol, me, limits, tracking, reached).moving_homes(home_policy)
        };
        engine = engine.prefetching(prefetch);
        let leases = Arc::new(Leases::default());
        if recorder.is_some() {
            engine = engine.telling();
        } else {
            engine = engine.leasing(leases.clone());
        }
        for node in NodeId::all(nodes) {
            let home = Placement::On(node);
            if let Some(protocol) = program_protocol {
                let [small, long] = layout.divided_arena(node);
                engine.add_region_under(protocol, small, page_size, home);
                engine.add_region(long, page_size, home);
            } else {
                engine.add_region(layout.arena(node), page_size, home);
            }
        }
        // From here on the addresses belong to the heaps, whose blocks are mostly small and used by their
        // owners.
        if fabric.as_deref().is_some_and(|fabric| fabric.capabilities().shared_frames) {
            engine = engine.mapping_homes(MappingRule::default());
        }
        let races = looks_for_races.then(Races::default);
        let memory_limit_bytes = budget.as_ref().map_or(0, |budget| budget.limit_bytes);
        let local = layout.local(me);
        let twins = Twins::new(memory.clone());
        let pager = budget.as_ref().filter(|budget| budget.has_swap()).map(|budget| {
            let page_bytes = page_size.bytes() as u64;
            Pager::new(budget.limit_bytes, page_bytes, page_bytes / u64::from(granule_bytes), prefetch)
        });
        let core = Core::new(Box::new(engine), twins, races, budget, LocalSpace::new(local));
        let regions = explains.then(Regions::default);
        let heap = if program_protocol.is_some() {
            Heap::divided(me, &memory, layout.divided_arena(me), page_size)
        } else {
            Heap::new(me, &memory, layout.arena(me), page_size)
        };
        let lulls = Lulls::new()?;
        let job = Job {
            nodes,
            threads_per_node,
            page_size,
            protocol,
            program_protocol,
            converts_pages: protocol.converts_pages() && !looks_for_races,
            looks_for_races,
            memory_limit_bytes,
            limits,
            layout,
            local,
        };
        let service = Service::new(fabric.as_deref(), control.as_ref(), low_latency, &lulls)?;
        // A node that pages out has no memory to keep for messages.
        let is_ample = pager.is_none();
        let one_sided = fabric.as_deref().filter(|_| is_ample).and_then(|fabric| fabric.one_sided());
        let landing = one_sided.and_then(|one_sided| one_sided.landing());
        let space = Mutex::new(CollectiveSpace::default());
        let runtime = Runtime {
            me,
            job,
            memory,
            headroom,
            faults,
            unmapped: Unmapped::over(fabric_name),
            fabric,
            lending,
            pager,
            on_demand: OnDemand::default(),
            core: Mutex::new(core),
            leases,
            serving: Serving {
                service,
                lulls,
                messages_received: AtomicU64::new(0),
                peers,
                deferred: Deferred::default(),
            },
            allocations: Allocations { heap, space, regions_made: Mutex::new(()) },
            ports: Ports::new(me, nodes, landing),
            image: ProgramImage::default(),
            threads: Threads::new(),
            team: AtomicU32::new(1),
            patience,
            account: Account::new(threads_per_node),
            regions,
            control,
            recorder,
            life: Life {
                forks: ForkGuard::new()?,
                left: AtomicBool::new(false),
                halted: AtomicBool::new(false),
                closed: AtomicBool::new(false),
            },
        };
        for node in NodeId::all(nodes) {
            let options = RegionOptions { placement: Placement::On(node), page_size, protocol: None };
            let arena = runtime.job.layout.arena(node);
            if program_protocol.is_some() {
                let [small, long] = runtime.job.layout.divided_arena(node);
                runtime.trace_region(small, RegionOptions { protocol: program_protocol, ..options });
                runtime.trace_region(long, options);
            } else {
                runtime.trace_region(arena, options);
            }
            runtime.explain(|regions| regions.add_arena(arena, u64::from(granule_bytes), node));
        }
        Ok(runtime)
    }
}

/// The parts of a runtime.
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
    /// True if every program thread of the job on this machine has a core of its own.
    patience: Arc<Patience>,
    low_latency: bool,
    protocol: Protocol,
    /// The protocol of the program's own data and of small blocks, if it differs.
    program_protocol: Option<Protocol>,
    home_policy: HomePolicy,
    prefetch: bool,
    budget: Option<Budget>,
    headroom: Option<Headroom>,
    lending: Option<Arc<LentMemory>>,
    /// True if the account reports waiting time by region.
    explains: bool,
}

/// Turns address randomisation on again for programs that this process executes. The launcher turned it off
/// for this process, because addresses must be equal on all nodes. Programs executed from this thread, or
/// from threads that it starts, are not nodes.
fn randomise_what_is_executed_later() {
    const ASK: libc::c_ulong = 0xffff_ffff;
    // SAFETY: this argument queries and changes nothing.
    let persona = unsafe { libc::personality(ASK) };
    if persona >= 0 {
        let random = (persona & !libc::ADDR_NO_RANDOMIZE) as libc::c_ulong;
        // SAFETY: concerns the layout of later programs, not this process's memory.
        unsafe { libc::personality(random) };
    }
}

/// Returns true if there is a core for each program thread of the nodes that share this machine's cores.
fn do_cores_suffice(job: &JobDescription) -> bool {
    let nodes_here = if job.bound { 1 } else { nodes_here(job) };
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    nodes_here * u64::from(job.threads_per_node) <= cores as u64
}

/// Returns the number of the job's nodes on this machine.
fn nodes_here(job: &JobDescription) -> u64 {
    let here = job.hosts.get(job.node.index());
    job.hosts.iter().filter(|host| Some(*host) == here).count() as u64
}

/// Returns true if the program was executed with more rights than its user has: set-user-ID, set-group-ID or
/// with file capabilities.
pub(super) fn has_more_rights_than_its_user() -> bool {
    // SAFETY: looks up a word that the kernel gave the process; no memory operands.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

pub(super) fn has_thread_sanitizer() -> bool {
    // SAFETY: the name is a C string; the call looks it up in what is loaded and changes nothing.
    !unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__tsan_init".as_ptr()) }.is_null()
}

/// Returns true if the process runs under valgrind, which preloads a library of its own.
pub(super) fn has_valgrind() -> bool {
    std::env::var_os("LD_PRELOAD").is_some_and(|preloaded| preloaded.to_string_lossy().contains("vgpreload_"))
}

/// Returns the job's page size, raised to the kernel's where the default is smaller.
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

/// Tries what every node of a job will need from this machine and user, and releases it again. So a launcher
/// can report what is missing before any program starts.
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

/// Returns the protocol of the program's own data if it is not the job's. A job of one node keeps nothing
/// coherent.
fn program_protocol_of(job: &JobDescription, protocol: Protocol) -> Result<Option<Protocol>, NodeError> {
    let Some(name) = job.coherence.program_protocol.as_deref() else { return Ok(None) };
    let named = Protocol::named(name).ok_or_else(|| NodeError::Unknown {
        what: "protocol",
        known: Protocol::names(),
        got: name.to_owned(),
    })?;
    Ok(Some(named).filter(|named| *named != protocol && job.addresses.len() > 1))
}

/// The lowest budget by default, in pages: as much as `--memory-limit` must be at least.
const DEFAULT_PAGES_MIN: u64 = 256;

/// Returns the budget of this node's shared pages, if pages may leave. A job of one node has no place where
/// they could go.
fn budget_of(
    job: &JobDescription,
    page_size: PageSize,
    headroom: Option<&Headroom>,
) -> Result<Option<Budget>, NodeError> {
    let (Some(limit), Some(headroom)) = (&job.coherence.memory_limit, headroom) else { return Ok(None) };
    let kind: PolicyKind = limit.replacement.parse().map_err(|_| NodeError::Unknown {
        what: "replacement policy",
        known: PolicyKind::ALL.map(PolicyKind::name).join(", "),
        got: limit.replacement.clone(),
    })?;
    let page_bytes = page_size.bytes() as u64;
    let share = || headroom.default_share_bytes().map(|bytes| bytes.max(DEFAULT_PAGES_MIN * page_bytes));
    let Some(bytes) = limit.bytes.or_else(share) else { return Ok(None) };
    let budget = Budget::new(bytes, page_bytes, kind);
    let budget = if limit.bytes.is_none() { budget.by_default() } else { budget };
    Ok(Some(if limit.swap.is_some() || job.coherence.lend.is_some() {
        budget.with_swap(kind)
    } else {
        budget
    }))
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

/// Opens a fault source under which the first store of each interval faults, preferably in the storing
/// thread, where the instruction can be seen.
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
