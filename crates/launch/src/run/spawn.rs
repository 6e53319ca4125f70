//! Starts the nodes: sockets, control channels, fork, exec.
//!
//! Every node is forked before any program is executed: the children wait at a gate (a pipe whose write end
//! the launcher holds), so a job for which there is no room ends before the program starts.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hiroba_base::NodeId;
use hiroba_wire::control::{CONTROL_FD_VARIABLE, Descriptors, JobDescription, JobKey};
use rustix::io::FdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Resource, Rlimit, Signal, getpid, getppid, setrlimit};
use rustix::thread::CpuSet;

use super::debug::Debugger;
use super::endpoints::Endpoints;
use super::executables::{self, First, NAMES_VARIABLE};
use super::guardian;
use super::handover::Handover;
use super::lacks::{no_descriptor, too_many_processes};
use super::limits::NodeLimit;
use super::liveness;
use super::output::{OutputPipe, Piped, Sink};
use super::preload::{self, PRELOAD_VARIABLE};
use super::processors;
use super::signals::{self, Inherited};
use super::small_library::SmallLibrary;
use crate::compiler;
use crate::failure::{Failure, STATUS_HIROBA, system_words};
use crate::run::options::RunOptions;

/// Tells a wrapper script which node it is.
const NODE_VARIABLE: &str = "HIROBA_NODE";
/// Tells a wrapper script how many nodes there are.
const NODES_VARIABLE: &str = "HIROBA_NODES";

/// Makes languages that do not write through the C library pass on each line at once, as `hiroba_init` makes
/// that library do: a node that dies has no time to write its buffers. They do so on a terminal anyway.
const LINES_AT_ONCE: [(&str, &str); 2] =
    [("PYTHONUNBUFFERED", "1"), ("GFORTRAN_UNBUFFERED_PRECONNECTED", "y")];

/// A node that was started.
pub struct Spawned {
    /// The process.
    pub pid: Pid,
    /// The launcher's end of the door, non-blocking.
    pub door: OwnedFd,
    /// The pipes of its output, if it has any.
    pub output: Vec<OutputPipe>,
}

/// What the nodes of one machine run.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    /// The job's description for the first node of this machine; what differs from node to node is filled in.
    pub job: &'a JobDescription,
    /// How many nodes run here, numbered from the first.
    pub nodes: u16,
    /// The program as the user named it.
    pub program: &'a OsString,
    /// The file to execute.
    pub path: &'a Path,
    /// Its arguments.
    pub arguments: &'a [OsString],
    /// Variables to set in the environment.
    pub variables: &'a [(OsString, OsString)],
    /// Which of the nodes' output goes through pipes instead of to this process's own streams.
    pub piped_output: Piped,
    /// The debugger, if any node runs under one.
    pub debugger: Option<&'a Debugger>,
    /// Whether each node gets processors of its own, if there are enough.
    pub bind: bool,
    /// Whether the processors are kept out of deep sleep.
    pub low_latency: bool,
    /// The limits on open descriptors.
    pub limit: NodeLimit,
    /// How this process found its signals.
    pub inherited: &'a Inherited,
    /// Called with the number of nodes that have been started so far.
    pub started: &'a dyn Fn(usize),
}

/// Nodes that wait at the gate.
pub struct Job {
    /// The nodes, by number.
    pub nodes: Vec<Spawned>,
    /// Dropping it lets the nodes execute the program.
    pub gate: OwnedFd,
    /// Carries an [`ExecReport`] from each node whose program could not be executed. It ends when all others
    /// were executed.
    pub reports: OwnedFd,
    /// What they get when they join.
    pub handover: Handover,
}

/// The reason why a node did not start its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecReport {
    /// Whether `execve` failed, rather than something before it.
    pub in_exec: bool,
    /// The error number.
    pub errno: i32,
}

impl ExecReport {
    /// The encoded length.
    pub const BYTES: usize = 5;

    fn encode(self) -> [u8; Self::BYTES] {
        let [a, b, c, d] = self.errno.to_ne_bytes();
        [u8::from(self.in_exec), a, b, c, d]
    }

    /// Decodes the result of [`encode`](Self::encode).
    pub fn decode([in_exec, a, b, c, d]: [u8; Self::BYTES]) -> ExecReport {
        ExecReport { in_exec: in_exec == 1, errno: i32::from_ne_bytes([a, b, c, d]) }
    }
}

/// Starts all nodes of this machine, up to the gate. `traces` has one file per node if the run is traced.
pub fn spawn(launch: &Launch, endpoints: Endpoints, traces: Vec<OwnedFd>) -> Result<Job, Failure> {
    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|error| no_descriptor(&error.into()));
    let (gate_in, gate_out) = pipe()?;
    let (reports, reports_out) = pipe()?;
    rustix::io::ioctl_fionbio(&reports, true).map_err(|error| no_descriptor(&error.into()))?;
    let null = std::fs::File::open("/dev/null").map_err(|error| no_descriptor(&error))?;
    let common = Common {
        launch,
        supervisor: getpid(),
        gate_out: gate_out.as_fd(),
        gate_in: gate_in.as_fd(),
        reports: reports_out.as_fd(),
        null: null.as_fd(),
        debugger: launch.debugger.map(|debugger| debugger.node),
        program: Program::new(launch)?,
        processors: launch
            .bind
            .then(|| processors::partition(launch.nodes, launch.job.threads_per_node))
            .flatten(),
        persona: persona(),
    };
    // The children must be dead before the gate opens, so that no program starts in a job that cannot run.
    let nodes = fork_all(&common).inspect_err(|_| _ = guardian::kill_descendants())?;
    let description = JobDescription {
        bound: common.processors.is_some(),
        low_latency: launch.low_latency,
        randomised: common.persona & libc::ADDR_NO_RANDOMIZE == 0,
        ..launch.job.clone()
    };
    let handover = Handover::new(description, endpoints, traces);
    Ok(Job { nodes, gate: gate_out, reports, handover })
}

fn fork_all(common: &Common) -> Result<Vec<Spawned>, Failure> {
    let launch = common.launch;
    let nodes_of_job = launch.job.addresses.len() as u16;
    let mut nodes = Vec::with_capacity(usize::from(launch.nodes));
    for place in 0..usize::from(launch.nodes) {
        let node = NodeId(launch.job.node.0 + place as u16);
        let (door, node_door) = open_door()?;
        let (output, node_output) = output_pipes(launch.piped_output)?;
        let environment = common.program.environment(node, nodes_of_job, node_door.as_raw_fd());
        // SAFETY: there is one thread, so the child is a whole copy of the process and may run any code.
        match unsafe { libc::fork() } {
            -1 => return Err(too_many_processes(&io::Error::last_os_error())),
            0 => {
                let door = node_door.as_fd();
                Child { node, place, common, door, output: &node_output, environment: &environment }.run()
            }
            pid => {
                let pid = Pid::from_raw(pid).expect("fork returns a positive pid");
                nodes.push(Spawned { pid, door, output });
                (launch.started)(nodes.len());
            }
        }
    }
    Ok(nodes)
}

/// Describes a new job for its first node. `hosts` gives the machine of each node, and `addresses` where its
/// socket is bound.
pub fn describe_job(
    options: &RunOptions,
    hosts: Vec<u16>,
    addresses: Vec<SocketAddr>,
    dead_after: Option<Duration>,
) -> Result<JobDescription, Failure> {
    Ok(JobDescription {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        build: hiroba_node::BUILD.to_owned(),
        job: random_number(),
        key: random_key()?,
        node: NodeId::ZERO,
        descriptors: Descriptors::default(),
        randomised: true,
        bound: false,
        low_latency: false,
        explains: options.reports.statistics_table || options.reports.statistics_json.is_some(),
        hosts,
        dead_after_ms: liveness::in_milliseconds(dead_after),
        addresses,
        threads_per_node: options.threads_per_node,
        coherence: options.coherence.clone(),
        transport: options.transport,
    })
}

/// Makes the job's key. Unlike the job's number it must come from the kernel's randomness.
fn random_key() -> Result<JobKey, Failure> {
    JobKey::made_by(|key| {
        match rustix::rand::getrandom(&mut key[..], rustix::rand::GetRandomFlags::empty()) {
            Ok(got) if got == key.len() => Ok(()),
            other => Err(Failure::new(format!(
                "cannot make the job's key: the kernel gave no random numbers ({})",
                other.map_or_else(
                    |errno| system_words(&errno.into()),
                    |got| format!("{got} bytes of {}", key.len())
                )
            ))),
        }
    })
}

fn random_number() -> u64 {
    let mut bytes = [0u8; 8];
    // The number only distinguishes jobs: without the kernel's randomness the clock and the pid suffice.
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) != Ok(bytes.len()) {
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        return clock.as_nanos() as u64 ^ (u64::from(std::process::id()) << 40);
    }
    u64::from_ne_bytes(bytes)
}

/// Makes a door: the launcher's end, and the one that all processes of the node inherit.
fn open_door() -> Result<(OwnedFd, OwnedFd), Failure> {
    let failed = |error: rustix::io::Errno| no_descriptor(&error.into());
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(failed)?;
    // The credentials tell which process joins when the node's own process is only a wrapper.
    rustix::net::sockopt::set_socket_passcred(&ours, true).map_err(failed)?;
    rustix::io::ioctl_fionbio(&ours, true).map_err(failed)?;
    Ok((ours, theirs))
}

/// The node's end of a pipe.
struct NodeOutput {
    fd: OwnedFd,
    /// Whether it is the node's standard output.
    out: bool,
    /// Whether it is the node's standard error.
    error: bool,
}

fn output_pipes(piped: Piped) -> Result<(Vec<OutputPipe>, Vec<NodeOutput>), Failure> {
    let failed = |error: rustix::io::Errno| no_descriptor(&error.into());
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for (wanted, sink) in [(piped.out, Sink::Out), (piped.error, Sink::Error)] {
        if !wanted {
            continue;
        }
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
        rustix::io::ioctl_fionbio(&read, true).map_err(failed)?;
        ours.push(OutputPipe { sink, fd: read });
        let (out, error) = (sink == Sink::Out, sink == Sink::Error || piped.together);
        theirs.push(NodeOutput { fd: write, out, error });
    }
    Ok((ours, theirs))
}

/// The arguments of `execve`, except those that differ from node to node.
struct Program {
    command: CommandLine,
    environment: Vec<CString>,
    preload: Option<CString>,
    /// Open until all nodes have it.
    _libraries: Vec<SmallLibrary>,
    /// The node under the debugger, what is executed for it, and whether the debugger arranges preloading
    /// itself.
    debugged: Option<(NodeId, CommandLine, bool)>,
}

struct CommandLine {
    path: CString,
    arguments: Vec<CString>,
}

impl CommandLine {
    fn new<'a>(path: &Path, arguments: impl Iterator<Item = &'a OsString>) -> CommandLine {
        CommandLine {
            path: c_string(path.as_os_str()),
            arguments: arguments.map(|argument| c_string(argument)).collect(),
        }
    }
}

/// Makes a C string. Arguments and environment come from the kernel or the command line, which contain no
/// NUL.
fn c_string(text: &OsStr) -> CString {
    CString::new(text.as_bytes()).unwrap_or_default()
}

impl Program {
    fn new(launch: &Launch) -> Result<Program, Failure> {
        let Launch { program, path, arguments, variables, .. } = *launch;
        let is_ours = |name: &OsStr| {
            [CONTROL_FD_VARIABLE, NODE_VARIABLE, NODES_VARIABLE, PRELOAD_VARIABLE]
                .iter()
                .any(|ours| name == *ours)
        };
        let given = |name: &str| {
            let set = variables.iter().rev().find(|(variable, _)| variable == name);
            let inherited = || std::env::var_os(name).filter(|_| !executables::is_set_for_job(name.as_ref()));
            set.map(|(_, value)| value.clone()).or_else(inherited)
        };
        let before = executables::preloaded(given);
        let shares = before.contains(&compiler::PTHREAD_LIBRARY);
        let first = if shares {
            let names = given(NAMES_VARIABLE);
            executables::loaded_first(path, names.as_deref(), variables)
                .map_err(|error| no_descriptor(&error))?
        } else {
            First::default()
        };
        let small = first.small.iter().map(SmallLibrary::path);
        let library_paths: Vec<PathBuf> = first.of_program.into_iter().chain(small).collect();
        let preload = preload::value(path, given(PRELOAD_VARIABLE).as_deref(), &before, &library_paths);
        let defaults = LINES_AT_ONCE.into_iter().filter(|(name, _)| given(name).is_none());
        let defaults = defaults.map(|(name, value)| variable(OsString::from(name), OsStr::new(value)));
        let defaults: Vec<CString> =
            if rustix::termios::isatty(rustix::stdio::stdout()) { Vec::new() } else { defaults.collect() };
        let replaced = |name: &OsStr| variables.iter().any(|(variable, _)| variable == name);
        let kept =
            std::env::vars_os().filter(|(name, _)| !replaced(name) && !executables::is_set_for_job(name));
        let environment = kept
            .chain(variables.iter().cloned())
            .filter(|(name, _)| !is_ours(name))
            .map(|(name, value)| variable(name, &value))
            .chain(defaults);
        let debugged = launch.debugger.map(|debugger| {
            let command =
                debugger.command(path, arguments, launch.job.coherence.fault_source, preload.as_deref());
            (debugger.node, CommandLine::new(debugger.path(), command.iter()), debugger.preloads())
        });
        Ok(Program {
            command: CommandLine::new(path, std::iter::once(program).chain(arguments)),
            environment: environment.collect(),
            preload: preload.map(|value| variable(OsString::from(PRELOAD_VARIABLE), &value)),
            _libraries: first.small,
            debugged,
        })
    }

    fn environment(&self, node: NodeId, nodes: u16, control: RawFd) -> Vec<CString> {
        let ours = [
            variable(OsString::from(CONTROL_FD_VARIABLE), OsStr::new(&control.to_string())),
            variable(OsString::from(NODE_VARIABLE), OsStr::new(&node.to_string())),
            variable(OsString::from(NODES_VARIABLE), OsStr::new(&nodes.to_string())),
        ];
        let elsewhere =
            self.debugged.as_ref().is_some_and(|(debugged, _, preloads)| *debugged == node && *preloads);
        let preload = self.preload.clone().filter(|_| !elsewhere);
        self.environment.iter().cloned().chain(ours).chain(preload).collect()
    }

    fn command(&self, node: NodeId) -> &CommandLine {
        match &self.debugged {
            Some((debugged, command, _)) if *debugged == node => command,
            _ => &self.command,
        }
    }
}

fn variable(mut name: OsString, value: &OsStr) -> CString {
    name.push("=");
    name.push(value);
    c_string(&name)
}

/// What all children need on their way to the program.
struct Common<'a> {
    launch: &'a Launch<'a>,
    supervisor: Pid,
    gate_out: BorrowedFd<'a>,
    gate_in: BorrowedFd<'a>,
    reports: BorrowedFd<'a>,
    null: BorrowedFd<'a>,
    /// The node under the debugger.
    debugger: Option<NodeId>,
    program: Program,
    /// Each node's processors, if it gets its own.
    processors: Option<Vec<CpuSet>>,
    /// This process's execution domain (personality(2)).
    persona: libc::c_int,
}

/// Returns this process's execution domain; 0, the ordinary one, if a sandbox forbids asking.
fn persona() -> libc::c_int {
    const ASK: libc::c_ulong = 0xffff_ffff;
    // SAFETY: this argument asks and changes nothing.
    unsafe { libc::personality(ASK) }.max(0)
}

/// A forked child.
struct Child<'a> {
    node: NodeId,
    /// Its index among the nodes of this machine.
    place: usize,
    common: &'a Common<'a>,
    /// Its end of the door.
    door: BorrowedFd<'a>,
    output: &'a [NodeOutput],
    environment: &'a [CString],
}

impl Child<'_> {
    fn run(&self) -> ! {
        let (in_exec, error) = match self.prepare() {
            Err(error) => (false, error),
            Ok(()) => (true, self.execute()),
        };
        let report = ExecReport { in_exec, errno: error.raw_os_error().unwrap_or(0) };
        let _ = rustix::io::write(self.common.reports, &report.encode());
        // SAFETY: ends this process without running what the launcher registered to run at its exit.
        unsafe { libc::_exit(i32::from(STATUS_HIROBA)) }
    }

    fn prepare(&self) -> io::Result<()> {
        // SAFETY: the parent's handle is not used in this process, which is a copy of the parent.
        unsafe { libc::close(self.common.gate_out.as_raw_fd()) };
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != Some(self.common.supervisor) {
            // The supervisor died before it could end this process.
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(STATUS_HIROBA)) };
        }
        // Functions and tables must have the same addresses on all nodes, since shared memory contains
        // pointers to them. A node that has joined resets this for what it executes later (`Runtime::join`).
        let fixed = self.common.persona | libc::ADDR_NO_RANDOMIZE;
        // SAFETY: changes how this process's next execve lays out memory, nothing now.
        unsafe { libc::personality(fixed as libc::c_ulong) };
        if let Some(processors) = &self.common.processors {
            rustix::thread::sched_setaffinity(None, &processors[self.place])?;
        }
        setrlimit(
            Resource::Nofile,
            Rlimit { current: self.common.launch.limit.soft, maximum: self.common.launch.limit.hard },
        )?;
        if self.node != self.common.debugger.unwrap_or(NodeId::ZERO) {
            rustix::stdio::dup2_stdin(self.common.null)?;
        }
        if self.common.debugger.is_some_and(|debugged| debugged != self.node) {
            // The terminal's Ctrl-C is for the debugger; at its prompt the launcher's group owns the
            // terminal.
            rustix::process::setpgid(None, None)?;
        }
        for NodeOutput { fd, out, error } in self.output {
            if *out {
                rustix::stdio::dup2_stdout(fd)?;
            }
            if *error {
                rustix::stdio::dup2_stderr(fd)?;
            }
        }
        rustix::io::fcntl_setfd(self.door, FdFlags::empty())?;
        signals::restore(self.common.launch.inherited);
        while rustix::io::read(self.common.gate_in, &mut [0u8; 1]) == Err(rustix::io::Errno::INTR) {}
        Ok(())
    }

    fn execute(&self) -> io::Error {
        let pointers = |strings: &[CString]| {
            strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>()
        };
        let CommandLine { path, arguments } = self.common.program.command(self.node);
        let (arguments, environment) = (pointers(arguments), pointers(self.environment));
        // SAFETY: the path and all strings end in NUL, both lists in a null pointer; all outlive the call.
        unsafe { libc::execve(path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
        io::Error::last_os_error()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_the_pipe() {
        let report = ExecReport { in_exec: true, errno: libc::ENOEXEC };
        assert_eq!(ExecReport::decode(report.encode()), report);
    }
}
