//! Starts the nodes: sockets, control channels, fork, exec.
//!
//! Every node is forked before any program is executed: the children wait at a gate (a pipe whose write
//! end the launcher holds), so a job for which there is no room ends before the program starts.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use hiroba_base::NodeId;
use hiroba_wire::control::{self, CONTROL_FD_VARIABLE, JobDescription, JobKey, ToNode};
use rustix::io::FdFlags;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Resource, Rlimit, Signal, getpid, getppid, setrlimit};
use rustix::thread::CpuSet;

use super::debug::Debugger;
use super::endpoints::Endpoints;
use super::guardian;
use super::limits::NodeLimit;
use super::preload::{self, PRELOAD_VARIABLE};
use super::processors;
use super::signals::{self, Inherited};
use crate::arguments::RunOptions;
use crate::failure::{Failure, STATUS_HIROBA, system_words};

/// Tells a wrapper script which node it is.
const NODE_VARIABLE: &str = "HIROBA_NODE";
/// Tells a wrapper script how many nodes there are.
const NODES_VARIABLE: &str = "HIROBA_NODES";

/// A node that was started.
pub struct Spawned {
    /// The process.
    pub pid: Pid,
    /// The launcher's end of the control channel, non-blocking.
    pub control: OwnedFd,
    /// Standard output and standard error, when they are labelled; non-blocking.
    pub output: Option<[OwnedFd; 2]>,
}

/// All nodes, waiting at the gate.
pub struct Job {
    /// The nodes, by number.
    pub nodes: Vec<Spawned>,
    /// Dropping it lets the nodes execute the program.
    pub gate: OwnedFd,
    /// Carries an [`ExecReport`] from each node whose program could not be executed; ends when all others were.
    pub reports: OwnedFd,
}

/// Why a node did not get as far as its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecReport {
    /// Whether `execve` failed, or something before it.
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

    /// Decodes what [`encode`](Self::encode) made.
    pub fn decode([in_exec, a, b, c, d]: [u8; Self::BYTES]) -> ExecReport {
        ExecReport { in_exec: in_exec == 1, errno: i32::from_ne_bytes([a, b, c, d]) }
    }
}

/// The sentence for a fork that failed.
pub fn too_many_processes(error: &io::Error) -> Failure {
    Failure::new(format!(
        "cannot start another process ({}); use fewer nodes (-n), or raise the limit on processes ('ulimit -u', or \
         the container's)",
        system_words(error)
    ))
}

/// The sentence for a descriptor that could not be had.
pub fn no_descriptor(error: &io::Error) -> Failure {
    Failure::new(format!(
        "cannot open another file or socket ({}); use fewer nodes (-n), or raise 'ulimit -n'",
        system_words(error)
    ))
}

/// Starts all nodes of the job, up to the gate.
pub fn spawn(
    options: &RunOptions,
    path: &Path,
    debugger: Option<&Debugger>,
    limit: NodeLimit,
    inherited: &Inherited,
    low_latency: bool,
) -> Result<Job, Failure> {
    let endpoints = Endpoints::open(&options.fabric, IpAddr::V4(Ipv4Addr::LOCALHOST), options.nodes)?;
    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|error| no_descriptor(&error.into()));
    let (gate_in, gate_out) = pipe()?;
    let (reports, reports_out) = pipe()?;
    rustix::io::ioctl_fionbio(&reports, true).map_err(|error| no_descriptor(&error.into()))?;
    let null = std::fs::File::open("/dev/null").map_err(|error| no_descriptor(&error))?;
    let common = Common {
        options,
        supervisor: getpid(),
        inherited,
        limit,
        gate_out: gate_out.as_fd(),
        gate_in: gate_in.as_fd(),
        reports: reports_out.as_fd(),
        null: null.as_fd(),
        debugger: debugger.map(|debugger| debugger.node),
        program: Program::new(options, path, debugger),
        processors: options
            .bind
            .then(|| processors::partition(options.nodes, options.threads_per_node))
            .flatten(),
        low_latency,
    };
    // The gate must not open before those who wait there are dead: no program starts in a job that cannot.
    let nodes = fork_all(&common, &endpoints).inspect_err(|_| guardian::kill_descendants())?;
    Ok(Job { nodes, gate: gate_out, reports })
}

fn fork_all(common: &Common, endpoints: &Endpoints) -> Result<Vec<Spawned>, Failure> {
    let options = common.options;
    let mut description = describe_job(options, endpoints)?;
    description.bound = common.processors.is_some();
    description.low_latency = common.low_latency;
    let mut nodes = Vec::with_capacity(usize::from(options.nodes));
    for node in NodeId::all(options.nodes) {
        description.node = node;
        description.socket_fd = endpoints.socket_number(node.index());
        let (control, node_control) = control_channel(&description)?;
        let (output, node_output) = if options.label { label_pipes()? } else { (None, None) };
        let environment = common.program.environment(node, options.nodes, node_control.as_raw_fd());
        // SAFETY: there is one thread, so the child is a whole copy of the process and may run any code.
        match unsafe { libc::fork() } {
            -1 => return Err(too_many_processes(&io::Error::last_os_error())),
            0 => {
                let kept = endpoints.inherited_by(node.index()).chain([node_control.as_fd()]).collect();
                Child { node, common, kept, output: node_output.as_ref(), environment: &environment }.run()
            }
            pid => {
                let pid = Pid::from_raw(pid).expect("fork returns a positive pid");
                nodes.push(Spawned { pid, control, output });
            }
        }
    }
    Ok(nodes)
}

fn describe_job(options: &RunOptions, endpoints: &Endpoints) -> Result<JobDescription, Failure> {
    Ok(JobDescription {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        job: random_number(),
        key: random_key()?,
        node: NodeId::ZERO,
        socket_fd: -1,
        shared_files: endpoints.shared_files(),
        bound: false,
        low_latency: false,
        hosts: vec![0; usize::from(options.nodes)],
        dead_after_ms: 0,
        addresses: endpoints.addresses().to_vec(),
        threads_per_node: options.threads_per_node,
        protocol: options.protocol.clone(),
        fabric: options.fabric.clone(),
        page_size: options.page_size,
        fault_source: options.fault_source,
        write_tracking: options.write_tracking,
        races: options.races,
        inject: options.inject,
    })
}

/// Unlike the job's number this must be the kernel's own randomness.
fn random_key() -> Result<JobKey, Failure> {
    let mut key = [0u8; 32];
    match rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty()) {
        Ok(got) if got == key.len() => Ok(JobKey(key)),
        other => Err(Failure::new(format!(
            "cannot make the job's key: the kernel gave no random numbers ({})",
            other.map_or_else(
                |errno| system_words(&errno.into()),
                |got| format!("{got} bytes of {}", key.len())
            )
        ))),
    }
}

fn random_number() -> u64 {
    let mut bytes = [0u8; 8];
    // It only keeps jobs apart: without the kernel's randomness the clock and the pid do that well enough.
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) != Ok(bytes.len()) {
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        return clock.as_nanos() as u64 ^ (u64::from(std::process::id()) << 40);
    }
    u64::from_ne_bytes(bytes)
}

/// Makes a control channel with the job's description queued on it: the launcher's end and the node's.
fn control_channel(description: &JobDescription) -> Result<(OwnedFd, OwnedFd), Failure> {
    let failed = |error: rustix::io::Errno| no_descriptor(&error.into());
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(failed)?;
    // The credentials tell which process joined when the node's own is only a wrapper.
    rustix::net::sockopt::set_socket_passcred(&ours, true).map_err(failed)?;
    rustix::io::ioctl_fionbio(&ours, true).map_err(failed)?;
    let message = control::encode(&ToNode::Job(Box::new(description.clone())));
    rustix::net::send(&ours, &message, SendFlags::NOSIGNAL).map_err(|error| {
        Failure::new(format!(
            "cannot queue the job's description of {} bytes for a node ({}); use fewer nodes (-n)",
            message.len(),
            system_words(&error.into())
        ))
    })?;
    Ok((ours, theirs))
}

type LabelPipes = (Option<[OwnedFd; 2]>, Option<[OwnedFd; 2]>);

fn label_pipes() -> Result<LabelPipes, Failure> {
    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|error| no_descriptor(&error.into()));
    let ((out_read, out_write), (error_read, error_write)) = (pipe()?, pipe()?);
    for end in [&out_read, &error_read] {
        rustix::io::ioctl_fionbio(end, true).map_err(|error| no_descriptor(&error.into()))?;
    }
    Ok((Some([out_read, error_read]), Some([out_write, error_write])))
}

/// What `execve` takes, but for what differs from node to node.
struct Program {
    command: CommandLine,
    environment: Vec<CString>,
    preload: Option<CString>,
    /// The node under the debugger, what is executed for it, and whether that sees to preloading itself.
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

/// Arguments and environment come from the kernel or the command line, where no NUL can be.
fn c_string(text: &OsStr) -> CString {
    CString::new(text.as_bytes()).unwrap_or_default()
}

impl Program {
    fn new(options: &RunOptions, path: &Path, debugger: Option<&Debugger>) -> Program {
        let is_ours = |name: &OsStr| {
            [CONTROL_FD_VARIABLE, NODE_VARIABLE, NODES_VARIABLE, PRELOAD_VARIABLE]
                .iter()
                .any(|ours| name == *ours)
        };
        let given = |name: &str| {
            let set = options.variables.iter().rev().find(|(variable, _)| variable == name);
            set.map(|(_, value)| value.clone()).or_else(|| std::env::var_os(name))
        };
        let preload = preload::value(path, given(PRELOAD_VARIABLE).as_deref());
        let replaced = |name: &OsStr| options.variables.iter().any(|(variable, _)| variable == name);
        let kept = std::env::vars_os().filter(|(name, _)| !replaced(name));
        let environment = kept
            .chain(options.variables.iter().cloned())
            .filter(|(name, _)| !is_ours(name))
            .map(|(name, value)| variable(name, &value));
        let debugged = debugger.map(|debugger| {
            let command =
                debugger.command(path, &options.arguments, options.fault_source, preload.as_deref());
            (debugger.node, CommandLine::new(debugger.path(), command.iter()), debugger.preloads())
        });
        Program {
            command: CommandLine::new(path, std::iter::once(&options.program).chain(&options.arguments)),
            environment: environment.collect(),
            preload: preload.map(|value| variable(OsString::from(PRELOAD_VARIABLE), &value)),
            debugged,
        }
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
    options: &'a RunOptions,
    supervisor: Pid,
    inherited: &'a Inherited,
    limit: NodeLimit,
    gate_out: BorrowedFd<'a>,
    gate_in: BorrowedFd<'a>,
    reports: BorrowedFd<'a>,
    null: BorrowedFd<'a>,
    /// The node under the debugger.
    debugger: Option<NodeId>,
    program: Program,
    /// Each node's processors, where it gets its own.
    processors: Option<Vec<CpuSet>>,
    low_latency: bool,
}

/// A forked child.
struct Child<'a> {
    node: NodeId,
    common: &'a Common<'a>,
    kept: Vec<BorrowedFd<'a>>,
    output: Option<&'a [OwnedFd; 2]>,
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
            // The supervisor died before it could take this process with it.
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(STATUS_HIROBA)) };
        }
        // Where everything lies at fixed addresses, a program's own mappings should too; nice to have only.
        // SAFETY: changes how this process's next execve lays out memory, nothing now.
        unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) };
        if let Some(processors) = &self.common.processors {
            rustix::thread::sched_setaffinity(None, &processors[self.node.index()])?;
        }
        setrlimit(
            Resource::Nofile,
            Rlimit { current: self.common.limit.soft, maximum: self.common.limit.hard },
        )?;
        if self.node != self.common.debugger.unwrap_or(NodeId::ZERO) {
            rustix::stdio::dup2_stdin(self.common.null)?;
        }
        if self.common.debugger.is_some_and(|debugged| debugged != self.node) {
            // The terminal's Ctrl-C is for the debugger, at whose prompt the launcher's group has the terminal.
            rustix::process::setpgid(None, None)?;
        }
        if let Some([out, error]) = self.output {
            rustix::stdio::dup2_stdout(out)?;
            rustix::stdio::dup2_stderr(error)?;
        }
        for descriptor in &self.kept {
            rustix::io::fcntl_setfd(descriptor, FdFlags::empty())?;
        }
        signals::restore(self.common.inherited);
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
