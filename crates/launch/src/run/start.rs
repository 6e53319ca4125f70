//! Brings a job to its gates, on this machine only or on several hosts.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hiroba_base::NodeId;
use hiroba_wire::agent::{ByteBuf, Errand, ToAgent};
use hiroba_wire::control::{FaultSourceChoice, JobDescription};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::debug::Debugger;
use super::endpoints::Endpoints;
use super::executables;
use super::guardian::Front;
use super::hosts::{self, Host, PlacedHost};
use super::limits;
use super::liveness;
use super::output::Piped;
use super::processors::Wakefulness;
use super::remote::{AGENT_VARIABLE, Answers, Launcher, RemoteHost};
use super::resolve;
use super::signals::{self, SignalDescriptor};
use super::spawn::{self, Launch};
use super::status::killed_status;
use super::supervise::{Elsewhere, Stop, Supervisor, Watched};
use super::trace_directory::TraceDirectory;
use crate::failure::{Failure, say};
use crate::run::options::RunOptions;
use crate::silence::Silence;

/// How long a host may take to greet: longer than ssh tries to connect.
const GREETING_LIMIT: Duration = Duration::from_secs(20);
/// How long a host may take to start its nodes.
const PREPARING_LIMIT: Duration = Duration::from_secs(60);

/// Prefixes of variables that are passed to nodes of other hosts, beside those of -x.
const PASSED_PREFIXES: [&[u8]; 2] = [b"HIROBA_", b"OMP_"];

/// The input for starting a job.
pub struct Plan<'a> {
    /// The user's options. For a job on several hosts, the number of nodes is settled when all hosts have
    /// answered.
    pub options: &'a RunOptions,
    /// The hosts; none for a job on this machine alone.
    pub hosts: &'a [PlacedHost],
    /// The debugger, if a node runs under one.
    pub debugger: Option<&'a Debugger>,
}

/// A job whose nodes wait at the gates.
pub struct Started {
    /// The supervisor of the job.
    pub supervisor: Supervisor,
    /// Dropping it lets the nodes of this machine execute the program; the supervisor releases the others.
    pub gate: OwnedFd,
    /// How many nodes it has.
    pub nodes: u16,
    /// Must be kept while the job runs.
    pub wakefulness: Option<Wakefulness>,
}

/// Starts all nodes, up to the gates.
pub fn start(plan: &Plan, trace: Option<&TraceDirectory>, front: Front) -> Result<Started, Stop> {
    let arrivals = SignalDescriptor::open()?;
    let mut remote = Remote { front: &front, arrivals: &arrivals, hosts: Vec::new() };
    let options = &remote.reach(plan)?;
    let share = Share::of(plan, options, &remote)?;
    if plan.hosts.len() > 1 && !options.transport.fabric.crosses_hosts() {
        return Err(Failure::new(format!(
            "the fabric {} connects processes of one machine only; use --fabric udp or tcp with --hosts",
            options.transport.fabric.name()
        ))
        .into());
    }
    check_debugged(plan, &share)?;
    let ground = Ground::prepare(plan, options, &share)?;
    remote.bind(plan, options, &share)?;
    let endpoints = Endpoints::open(options.transport.fabric, share.address, share.nodes_here)?;
    let traces = trace.map(|trace| trace.open_files(share.first_here, share.nodes_here)).transpose()?;
    let addresses = remote.all_addresses(plan, endpoints.addresses(), |answers| answers.addresses.as_ref());
    let dead_after = liveness::dead_after(options, plan.hosts.len() > 1);
    let mut job = spawn::describe_job(options, share.host_of_each(), addresses, dead_after)?;
    remote.prepare(options, &job)?;
    (job.node, job.coherence.fault_source) = (NodeId(share.first_here as u16), ground.fault_source);
    let wakefulness = Wakefulness::ask_for(options.low_latency);
    let silence = Cell::new(Silence::begin());
    let started = |nodes: usize| {
        let mut now = silence.get();
        if now.is_too_long() {
            say(&format!("starting: {nodes} of {} nodes have a process", share.nodes_here));
        }
        silence.set(now);
    };
    let launch = Launch {
        job: &job,
        nodes: share.nodes_here,
        program: &options.program,
        path: &ground.path,
        arguments: &options.arguments,
        variables: &options.variables,
        piped_output: ground.piped,
        debugger: plan.debugger,
        bind: options.bind,
        low_latency: wakefulness.is_some(),
        limit: ground.limit,
        inherited: &front.inherited,
        started: &started,
    };
    let spawned = spawn::spawn(&launch, endpoints, traces.unwrap_or_default())?;
    remote.await_all("have started their nodes", PREPARING_LIMIT, |host| host.answers.pids.is_some())?;
    let hosts = remote.hosts;
    let mut traces = BTreeMap::new();
    if let Some(trace) = trace {
        for host in &hosts {
            let files = trace.open_files(host.first, host.nodes as u16)?.into_iter().map(File::from);
            traces.extend((host.first..).zip(files));
        }
    }
    let watched = Watched {
        has_own_threads: executables::has_own_threads(&options.program),
        races: options.coherence.races,
        is_executable: options.pthread,
        debugging: plan.debugger.is_some(),
        dead_after,
        label: options.reports.label,
        progress: options.reports.progress,
        silence: silence.get(),
    };
    let shares = Elsewhere { hosts, traces };
    let (supervisor, gate) = Supervisor::new(front, arrivals, (share.first_here, spawned), shares, watched)?;
    Ok(Started { supervisor, gate, nodes: options.nodes, wakefulness })
}

/// Which nodes run where.
struct Share {
    /// How many nodes each host of the file has, in its order; one entry for a job on this machine only.
    nodes: Vec<u16>,
    /// The number of this machine's first node, if it has any.
    first_here: usize,
    nodes_here: u16,
    /// The address at which the nodes of this machine are reached.
    address: IpAddr,
}

impl Share {
    fn of(plan: &Plan, options: &RunOptions, remote: &Remote) -> Result<Share, Failure> {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        if plan.hosts.is_empty() {
            return Ok(Share {
                nodes: vec![options.nodes],
                first_here: 0,
                nodes_here: options.nodes,
                address,
            });
        }
        let nodes = remote.share(plan)?;
        let here = plan.hosts.iter().position(|host| host.is_here);
        Ok(Share {
            first_here: here.map_or(0, |here| first_of(&nodes, here)),
            nodes_here: here.map_or(0, |here| nodes[here]),
            address: here.map_or(address, |here| plan.hosts[here].address),
            nodes,
        })
    }

    fn host_of_each(&self) -> Vec<u16> {
        let of_host = |(host, nodes): (usize, &u16)| std::iter::repeat_n(host as u16, usize::from(*nodes));
        self.nodes.iter().enumerate().flat_map(of_host).collect()
    }
}

fn first_of(nodes: &[u16], host: usize) -> usize {
    nodes[..host].iter().map(|nodes| usize::from(*nodes)).sum()
}

/// Checks that the debugged node runs on this machine, since a debugger needs the terminal.
fn check_debugged(plan: &Plan, share: &Share) -> Result<(), Failure> {
    let Some(debugger) = plan.debugger else { return Ok(()) };
    let here = share.first_here..share.first_here + usize::from(share.nodes_here);
    if here.contains(&debugger.node.index()) {
        return Ok(());
    }
    let hint =
        if here.is_empty() { "none".to_owned() } else { format!("{} to {}", here.start, here.end - 1) };
    Err(Failure::new(format!(
        "expected a node of this machine after --debug ({hint}), got {}; the debugger needs this terminal",
        debugger.node
    )))
}

/// What this machine must have for its nodes.
struct Ground {
    path: PathBuf,
    limit: limits::NodeLimit,
    piped: Piped,
    fault_source: FaultSourceChoice,
}

impl Ground {
    fn prepare(plan: &Plan, options: &RunOptions, share: &Share) -> Result<Ground, Failure> {
        limits::check_working_directory()?;
        let channels = plan.hosts.len() as u16;
        let traces = if options.reports.trace.is_some() { share.nodes_here } else { 0 };
        let descriptors = share.nodes_here.saturating_add(channels).saturating_add(traces);
        let prepare = |piped| {
            let (nodes, threads) = (options.nodes, options.threads_per_node);
            let (fabric, lends) = (options.transport.fabric, options.coherence.lend.is_some());
            limits::prepare_descriptors(descriptors, nodes, threads, piped, fabric, lends)
        };
        let mut piped = piped_output(options, plan.debugger.is_some());
        let mut limit = prepare(piped);
        if limit.is_err() && !options.reports.label && piped != Piped::NONE {
            piped = Piped::NONE;
            limit = prepare(piped);
            if limit.is_ok() {
                say("the limit on open files leaves no pipes for the nodes' output, so lines \
                     longer than 4096 bytes may be mixed; raise 'ulimit -n', or use fewer nodes (-n)");
            }
        }
        let limit = limit?;
        if share.nodes_here == 0 {
            // Each host looks for the program itself.
            let path = PathBuf::from(&options.program);
            return Ok(Ground { path, limit, piped, fault_source: options.coherence.fault_source });
        }
        let path = resolve::resolve(&options.program)?;
        limits::check_memory_files()?;
        let fault_source = super::check_nodes_needs(options, plan.debugger.is_some())?;
        Ok(Ground { path, limit, piped, fault_source })
    }
}

/// Returns which output of the nodes this process must collect into whole lines.
fn piped_output(options: &RunOptions, debugging: bool) -> Piped {
    match options.nodes {
        _ if options.reports.label => Piped::EACH,
        // One node writes alone; a debugger needs the terminal.
        1 => Piped::NONE,
        _ if debugging => Piped::NONE,
        _ => Piped::for_several(),
    }
}

/// The other hosts, while the job is brought to its gates.
struct Remote<'a> {
    front: &'a Front,
    arrivals: &'a SignalDescriptor,
    hosts: Vec<RemoteHost>,
}

impl Remote<'_> {
    /// Waits until all hosts have greeted, and settles how many nodes the job has.
    fn reach(&mut self, plan: &Plan) -> Result<RunOptions, Stop> {
        let mut options = plan.options.clone();
        if plan.hosts.is_empty() {
            return Ok(options);
        }
        let launcher = Launcher::parse(options.launcher.as_deref())?;
        for host in plan.hosts.iter().filter(|host| !host.is_here) {
            self.hosts.push(RemoteHost::reach(&launcher, host, &self.front.inherited)?);
        }
        self.await_all("have answered", GREETING_LIMIT, |host| host.answers.greeting.is_some())?;
        options.nodes = self.share(plan)?.iter().sum();
        Ok(options)
    }

    fn share(&self, plan: &Plan) -> Result<Vec<u16>, Failure> {
        let mut greetings = self.hosts.iter().filter_map(|host| host.answers.greeting.as_ref());
        let mut cores_of = |host: &PlacedHost| {
            if host.is_here { super::cores() } else { greetings.next().map_or(1, |greeting| greeting.cores) }
        };
        let cores: Vec<u16> = plan.hosts.iter().map(&mut cores_of).collect();
        let hosts: Vec<Host> = plan.hosts.iter().map(|placed| placed.host.clone()).collect();
        hosts::share(&hosts, &cores, plan.options.nodes_asked, plan.options.threads_per_node)
    }

    /// Makes all hosts create the endpoints of their nodes.
    fn bind(&mut self, plan: &Plan, options: &RunOptions, share: &Share) -> Result<(), Stop> {
        let elsewhere = plan.hosts.iter().enumerate().filter(|(_, host)| !host.is_here);
        for (host, (place, placed)) in self.hosts.iter_mut().zip(elsewhere) {
            (host.first, host.nodes) = (first_of(&share.nodes, place), usize::from(share.nodes[place]));
            host.send(&ToAgent::Bind {
                fabric: options.transport.fabric,
                address: placed.address,
                nodes: share.nodes[place],
            });
        }
        self.await_all("have made their endpoints", PREPARING_LIMIT, |host| host.answers.addresses.is_some())
    }

    /// Returns the addresses of sockets of all nodes, by node: those `here`, and `of` other hosts' answers.
    fn all_addresses(
        &self,
        plan: &Plan,
        here: &[SocketAddr],
        of: fn(&Answers) -> Option<&Vec<SocketAddr>>,
    ) -> Vec<SocketAddr> {
        let mut others = self.hosts.iter().filter_map(|host| of(&host.answers));
        let of_hosts = plan.hosts.iter().map(|host| host.is_here);
        let in_order = of_hosts.chain(plan.hosts.is_empty().then_some(true));
        in_order
            .flat_map(|is_here| if is_here { here } else { others.next().map_or(&[][..], Vec::as_slice) })
            .copied()
            .collect()
    }

    /// Makes all hosts start their nodes, up to the gates.
    fn prepare(&mut self, options: &RunOptions, job: &JobDescription) -> Result<(), Failure> {
        if self.hosts.is_empty() {
            return Ok(());
        }
        let directory = std::env::current_dir().map_err(|error| limits::no_working_directory(&error))?;
        let variables = passed_variables(options);
        for host in &mut self.hosts {
            let mut job = job.clone();
            job.node = NodeId(host.first as u16);
            let errand = Errand {
                job,
                nodes: host.nodes as u16,
                program: bytes_of(&options.program),
                arguments: options.arguments.iter().map(|argument| bytes_of(argument).into()).collect(),
                variables: variables.clone(),
                directory: bytes_of(directory.as_os_str()),
                bind: options.bind,
                low_latency: options.low_latency,
                traced: options.reports.trace.is_some(),
            };
            host.send_secret(&ToAgent::Prepare(Box::new(errand)));
        }
        Ok(())
    }

    /// Waits until all hosts have answered. `have` describes the answer in messages.
    fn await_all(
        &mut self,
        have: &str,
        limit: Duration,
        answered: impl Fn(&RemoteHost) -> bool,
    ) -> Result<(), Stop> {
        let give_up = Instant::now() + limit;
        let mut silence = Silence::begin();
        while let Some(late) = self.hosts.iter().position(|host| !answered(host)) {
            let left = give_up.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.hosts[late].too_slow(limit).into());
            }
            self.sleep(left.min(silence.due().saturating_duration_since(Instant::now())));
            if silence.is_too_long() {
                let ready = self.hosts.iter().filter(|host| answered(host)).count();
                let (all, name) = (self.hosts.len(), &self.hosts[late].name);
                say(&format!("starting: {ready} of {all} other hosts {have}; waiting for {name}"));
            }
            self.look_for_front()?;
            for host in &mut self.hosts {
                host.read_errors();
                let _ = host.channel.as_mut().map(|channel| channel.flush());
                host.hear_answers()?;
            }
        }
        Ok(())
    }

    fn sleep(&self, limit: Duration) {
        let mut interests: Vec<(BorrowedFd<'_>, PollFlags)> =
            vec![(self.front.signals.as_fd(), PollFlags::IN), (self.arrivals.0.as_fd(), PollFlags::IN)];
        for host in &self.hosts {
            interests.extend(host.channel.iter().flat_map(|channel| channel.interests()));
            interests.extend(host.errors().map(|errors| (errors, PollFlags::IN)));
        }
        let mut sources: Vec<PollFd<'_>> =
            interests.iter().map(|(fd, flags)| PollFd::new(fd, *flags)).collect();
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        let _ = poll(&mut sources, Some(&limit));
    }

    /// Checks whether the user has cancelled the job.
    fn look_for_front(&self) -> Result<(), Stop> {
        let mut wish = None;
        while let Some(arrived) = self.arrivals.next() {
            // Commands that reach hosts end early only on errors, which are read from their channels.
            wish = wish.or(Some(arrived.signal).filter(|signal| *signal != libc::SIGCHLD));
        }
        let mut ready = [PollFd::new(&self.front.signals, PollFlags::IN)];
        if poll(&mut ready, Some(&Timespec::default())) == Ok(1) {
            let mut signal = [0u8; 1];
            match rustix::io::read(&self.front.signals, &mut signal) {
                Ok(0) => return Err(Stop::FrontGone),
                Ok(_) => wish = wish.or(Some(i32::from(signal[0]))),
                Err(_) => {}
            }
        }
        match wish.filter(|signal| !self.front.inherited.ignores(*signal)) {
            Some(signal) => Err(Stop::Failed(Failure {
                status: killed_status(signal),
                sentence: format!(
                    "{} came before the job had begun; no program was started",
                    signals::describe(signal)
                ),
            })),
            None => Ok(()),
        }
    }
}

fn bytes_of(text: &OsStr) -> Vec<u8> {
    text.as_bytes().to_vec()
}

/// Returns the variables that nodes on other hosts get beside those of a login there.
fn passed_variables(options: &RunOptions) -> Vec<(ByteBuf, ByteBuf)> {
    let passes = |name: &OsString| {
        PASSED_PREFIXES.iter().any(|prefix| name.as_bytes().starts_with(prefix)) && name != AGENT_VARIABLE
    };
    let own = std::env::vars_os().filter(|(name, _)| passes(name) && !executables::is_set_for_job(name));
    own.chain(options.variables.iter().cloned())
        .map(|(name, value)| (bytes_of(&name).into(), bytes_of(&value).into()))
        .collect()
}
