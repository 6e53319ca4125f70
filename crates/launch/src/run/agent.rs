//! `hiroba agent`: represents the launcher on another host. It does for the nodes there what the launcher
//! does for its own: starts them, reports what happens to them, and makes sure that nothing of them remains,
//! however it ends itself.
//!
//! Its standard input and output are the channel to the launcher (`wire/src/agent.rs`).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hiroba_base::NodeId;
use hiroba_wire::agent::{
    ByteBuf, Errand, FromAgent, Greeting, NodeEvent, OUTPUT_BYTES_MAX, TO_AGENT_BYTES_MAX, ToAgent,
};
use hiroba_wire::control::ToLauncher;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::channel::{Channel, Closed};
use super::endpoints::Endpoints;
use super::guardian::{self, Front};
use super::homecoming::Homecoming;
use super::lacks;
use super::limits;
use super::liveness::Looks;
use super::local::{Happening, LocalNodes, NotRun};
use super::output::Piped;
use super::processors::Wakefulness;
use super::resolve;
use super::signals::SignalDescriptor;
use super::spawn::{self, Launch};
use crate::failure::{Failure, STATUS_HIROBA, say, system_words};

/// Bytes that are read from a node's stream at once.
const READ_BYTES: usize = 32 << 10;
/// Multiplies the tolerated silence of the launcher, which its user may have stopped. Does not apply when
/// other hosts are silent too.
const PATIENCE_WITH_LAUNCHER: u32 = 3;
/// How long the launcher may take to receive the last of the nodes' output.
const FINISH_LIMIT: Duration = Duration::from_secs(5);
/// How long the launcher may take to send the job: longer than it waits for all agents together.
const ORDERS_LIMIT: Duration = Duration::from_secs(120);

/// Serves a launcher until the job is over.
pub fn serve() -> Result<u8, Failure> {
    let channel = take_over_standard_streams().map_err(|error| {
        Failure::new(format!(
            "cannot talk to a launcher over standard input and output: {}; this command is for hiroba's own use",
            system_words(&error)
        ))
    })?;
    let line = channel.0.try_clone().map_err(|error| lacks::no_descriptor(&error))?;
    guardian::run_guarded(Some(line.as_fd()), |front| match Agent::greet(front, channel) {
        Ok(agent) => agent.run(),
        Err(failure) => {
            say(&failure.sentence);
            failure.status
        }
    })
}

/// Takes over standard input and output, which nothing else must use: nodes inherit `/dev/null` for them.
fn take_over_standard_streams() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let input = std::io::stdin().as_fd().try_clone_to_owned()?;
    let output = std::io::stdout().as_fd().try_clone_to_owned()?;
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok((input, output))
}

/// The reason why an agent ends.
enum Stop {
    /// The job is over.
    Finished,
    /// The launcher is gone, or unreachable.
    Alone(&'static str),
    /// The agent's own front is gone.
    FrontGone,
    /// The agent cannot do what it was asked to, and has told the launcher.
    Refused,
}

impl From<Closed> for Stop {
    fn from(_: Closed) -> Stop {
        Stop::Alone("the connection to the launcher was lost")
    }
}

/// The open streams of one node.
type Streams = [Option<OwnedFd>; 2];

struct Agent {
    front: Front,
    arrivals: SignalDescriptor,
    channel: Channel,
    endpoints: Option<Endpoints>,
    gate: Option<OwnedFd>,
    first: usize,
    local: Option<LocalNodes>,
    outputs: BTreeMap<usize, Streams>,
    /// How much more output the launcher takes.
    output_credit: usize,
    looks: Option<Looks>,
    silent_looks: u32,
    /// Whether a node of this host no longer hears one of another.
    others_silent: bool,
    finish_by: Option<Instant>,
    /// Set until the job has arrived.
    orders_by: Option<Instant>,
    traces: Homecoming,
    /// Kept while the nodes run.
    wakefulness: Option<Wakefulness>,
}

impl Agent {
    fn greet(front: Front, (input, output): (OwnedFd, OwnedFd)) -> Result<Agent, Failure> {
        let failed = |error: std::io::Error| {
            Failure::new(format!("cannot serve a launcher: {}", system_words(&error)))
        };
        let mut channel =
            Channel::new(input, output, TO_AGENT_BYTES_MAX).map_err(|errno| failed(errno.into()))?;
        let greeting = Greeting {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            build: hiroba_node::BUILD.to_owned(),
            cores: super::cores(),
        };
        // A launcher that is gone is noticed when the channel is read.
        let _ = channel.send_text(&format!("{greeting}\n"));
        Ok(Agent {
            front,
            arrivals: SignalDescriptor::open().map_err(failed)?,
            channel,
            endpoints: None,
            gate: None,
            first: 0,
            local: None,
            outputs: BTreeMap::new(),
            output_credit: OUTPUT_BYTES_MAX,
            looks: None,
            silent_looks: 0,
            others_silent: false,
            finish_by: None,
            orders_by: Some(Instant::now() + ORDERS_LIMIT),
            traces: Homecoming::default(),
            wakefulness: None,
        })
    }

    fn run(mut self) -> u8 {
        let stop = loop {
            if let Err(stop) = self.turn() {
                break stop;
            }
        };
        guardian::kill_descendants();
        match stop {
            Stop::Finished => 0,
            Stop::FrontGone => STATUS_HIROBA,
            Stop::Alone(why) => {
                say(&format!("{why}; the nodes of this host were ended"));
                STATUS_HIROBA
            }
            Stop::Refused => {
                self.say_goodbye();
                STATUS_HIROBA
            }
        }
    }

    /// Waits until the launcher has taken the last message and closed the connection.
    fn say_goodbye(&mut self) {
        let give_up = Instant::now() + FINISH_LIMIT;
        while Instant::now() < give_up && self.channel.flush().is_ok() && self.channel.receive().is_ok() {
            let interests: Vec<(BorrowedFd<'_>, PollFlags)> = self.channel.interests().collect();
            let mut sources: Vec<PollFd<'_>> =
                interests.iter().map(|(fd, flags)| PollFd::new(fd, *flags)).collect();
            let _ = poll(&mut sources, Some(&timespec(give_up.saturating_duration_since(Instant::now()))));
        }
    }

    fn turn(&mut self) -> Result<(), Stop> {
        self.wait();
        self.read_front()?;
        self.channel.flush()?;
        let received = self.channel.receive();
        let mut happenings = Vec::new();
        while let Some(message) = self.next_message()? {
            self.silent_looks = 0;
            self.obey(message, &mut happenings)?;
        }
        received?;
        if !self.channel.is_full() {
            self.attend(&mut happenings)?;
            self.read_outputs();
        }
        self.pass_on(happenings)?;
        if let Some(by) = self.finish_by {
            let mut taken = self.outputs.is_empty() && !self.channel.has_output();
            if taken && !self.traces.is_done() {
                self.traces.send(&mut self.channel)?;
                // There is no limit while the launcher keeps taking output.
                self.finish_by = Some(Instant::now() + FINISH_LIMIT);
                taken = self.traces.is_done() && !self.channel.has_output();
            }
            if taken || Instant::now() >= by {
                return Err(Stop::Finished);
            }
        }
        self.look_for_launcher()
    }

    fn next_message(&mut self) -> Result<Option<ToAgent>, Stop> {
        self.channel.next::<ToAgent>().map_err(|error| {
            say(&format!("the launcher sent an invalid message: {error}"));
            Stop::Alone("the connection to the launcher is unusable")
        })
    }

    /// Sleeps until there is something to do.
    fn wait(&self) {
        let mut interests: Vec<(BorrowedFd<'_>, PollFlags)> = self.channel.interests().collect();
        interests
            .extend([(self.front.signals.as_fd(), PollFlags::IN), (self.arrivals.0.as_fd(), PollFlags::IN)]);
        if !self.channel.is_full() {
            interests.extend(self.local.iter().map(|local| (local.descriptor(), PollFlags::IN)));
            if self.output_credit > 0 {
                let streams = self.outputs.values().flatten().flatten();
                interests.extend(streams.map(|stream| (stream.as_fd(), PollFlags::IN)));
            }
        }
        let looks = self.looks.iter().map(Looks::next);
        let dates = [self.finish_by, self.orders_by].into_iter().flatten();
        let due = looks.chain(self.local.iter().filter_map(LocalNodes::next_look)).chain(dates).min();
        let left =
            due.map(|due| timespec(due.saturating_duration_since(Instant::now()) + Duration::from_millis(1)));
        let mut sources: Vec<PollFd<'_>> =
            interests.iter().map(|(fd, flags)| PollFd::new(fd, *flags)).collect();
        let _ = poll(&mut sources, left.as_ref());
    }

    /// Handles a signal: a user who signals an agent wants it to end.
    fn read_front(&mut self) -> Result<(), Stop> {
        let mut bytes = [0u8; 16];
        let mut ready = [PollFd::new(&self.front.signals, PollFlags::IN)];
        if poll(&mut ready, Some(&Timespec::default())) == Ok(1) {
            return match rustix::io::read(&self.front.signals, &mut bytes) {
                Ok(0) => Err(Stop::FrontGone),
                Ok(_) => Err(Stop::Alone("the agent was sent a signal")),
                Err(_) => Ok(()),
            };
        }
        Ok(())
    }

    fn obey(&mut self, message: ToAgent, happenings: &mut Vec<Happening>) -> Result<(), Stop> {
        match message {
            ToAgent::Bind { fabric, address, nodes } => {
                let bound = limits::prepare_descriptors(nodes, nodes, 1, Piped::EACH, fabric, false)
                    .and_then(|_| Endpoints::open(fabric, address, nodes));
                let endpoints = self.or_refuse(bound)?;
                self.channel.send(&FromAgent::Bound { addresses: endpoints.addresses().to_vec() })?;
                self.endpoints = Some(endpoints);
            }
            ToAgent::Prepare(errand) => {
                self.channel.wipe_taken();
                self.orders_by = None;
                let prepared = self.prepare(*errand);
                let pids = self.or_refuse(prepared)?;
                self.channel.send(&FromAgent::Ready { pids })?;
            }
            ToAgent::Open => drop(self.gate.take()),
            ToAgent::Tell(message) => {
                if let Some(local) = &mut self.local {
                    local.tell(&message);
                }
            }
            ToAgent::Signal(signal) => guardian::signal_descendants(signal, &[]),
            ToAgent::Ping { number } => {
                if let Some(local) = &mut self.local {
                    local.read_all(happenings);
                }
                self.pass_on(std::mem::take(happenings))?;
                self.channel.send(&FromAgent::Pong { number })?;
            }
            ToAgent::Taken { bytes } => {
                self.output_credit = (self.output_credit + bytes as usize).min(OUTPUT_BYTES_MAX);
            }
            ToAgent::Examine { node } => {
                let local = self.local.as_ref();
                let evidence = local.map_or_else(Vec::new, |local| local.evidence(node.index()));
                self.channel.send(&FromAgent::Node { node, event: NodeEvent::Examined { evidence } })?;
            }
            ToAgent::Finish => {
                // Processes that nodes left running may keep their streams open.
                guardian::kill_descendants();
                self.finish_by = Some(Instant::now() + FINISH_LIMIT);
            }
        }
        Ok(())
    }

    fn or_refuse<T>(&mut self, result: Result<T, Failure>) -> Result<T, Stop> {
        result.map_err(|failure| {
            let _ =
                self.channel.send(&FromAgent::Refused { status: failure.status, sentence: failure.sentence });
            Stop::Refused
        })
    }

    /// Starts the nodes, up to the gate.
    fn prepare(&mut self, errand: Errand) -> Result<Vec<i32>, Failure> {
        let endpoints = self.endpoints.take().ok_or_else(|| {
            Failure::new("expected the launcher to ask for endpoints before nodes, got the nodes first")
        })?;
        let directory = PathBuf::from(OsString::from_vec(errand.directory));
        std::env::set_current_dir(&directory).map_err(|error| {
            Failure::new(format!(
                "the working directory '{}' cannot be used there ({}); start from one that all hosts have",
                directory.display(),
                system_words(&error)
            ))
        })?;
        let program = OsString::from_vec(errand.program);
        let path = resolve::resolve(&program)?;
        limits::check_memory_files()?;
        let (nodes_of_job, threads) = (errand.job.addresses.len() as u16, errand.job.threads_per_node);
        let traces = if errand.traced { errand.nodes.saturating_mul(2) } else { 0 };
        let descriptors = errand.nodes.saturating_add(traces);
        let limit = limits::prepare_descriptors(
            descriptors,
            nodes_of_job,
            threads,
            Piped::EACH,
            errand.job.transport.fabric,
            errand.job.coherence.lend.is_some(),
        )?;
        hiroba_node::preflight(
            nodes_of_job,
            errand.job.coherence.fault_source,
            errand.job.coherence.write_tracking,
        )
        .and_then(|()| hiroba_node::check_swap(&errand.job.coherence))
        .map_err(|error| Failure::new(error.to_string()))?;
        let dead_after =
            Some(Duration::from_millis(errand.job.dead_after_ms)).filter(|silence| !silence.is_zero());
        self.wakefulness = Wakefulness::ask_for(errand.low_latency);
        let text = |bytes: ByteBuf| OsString::from_vec(bytes.into_vec());
        let arguments: Vec<OsString> = errand.arguments.into_iter().map(text).collect();
        let variables = errand.variables.into_iter();
        let variables: Vec<(OsString, OsString)> =
            variables.map(|(name, value)| (text(name), text(value))).collect();
        let first = errand.job.node.index();
        let traces = if errand.traced { self.traces.open(first, errand.nodes)? } else { Vec::new() };
        let launch = Launch {
            job: &errand.job,
            nodes: errand.nodes,
            program: &program,
            path: &path,
            arguments: &arguments,
            variables: &variables,
            piped_output: Piped::EACH,
            debugger: None,
            bind: errand.bind,
            low_latency: self.wakefulness.is_some(),
            limit,
            inherited: &self.front.inherited,
            started: &|_| (),
        };
        let mut spawned = spawn::spawn(&launch, endpoints, traces)?;
        self.first = first;
        for (place, node) in spawned.nodes.iter_mut().enumerate() {
            let mut streams: Streams = [None, None];
            for pipe in std::mem::take(&mut node.output) {
                streams[pipe.sink as usize] = Some(pipe.fd);
            }
            self.outputs.insert(self.first + place, streams);
        }
        let local =
            LocalNodes::new(self.first, &mut spawned.nodes, spawned.reports, spawned.handover, dead_after)
                .map_err(|errno| lacks::no_descriptor(&errno.into()))?;
        let pids = local.pids().collect();
        self.local = Some(local);
        self.gate = Some(spawned.gate);
        self.looks = dead_after.map(|silence| Looks::new(Some(silence)));
        Ok(pids)
    }

    /// Reads and reports what happened to the nodes.
    fn attend(&mut self, happenings: &mut Vec<Happening>) -> Result<(), Stop> {
        let mut children = false;
        while let Some(arrived) = self.arrivals.next() {
            if arrived.signal != libc::SIGCHLD {
                return Err(Stop::Alone("the agent was sent a signal"));
            }
            children = true;
        }
        let Some(local) = &mut self.local else { return Ok(()) };
        local.look(happenings);
        let taken = local.take(happenings);
        let reaped = if children { local.reap(happenings).map(drop) } else { Ok(()) };
        match taken.and(reaped) {
            Ok(()) => Ok(()),
            Err(NotRun::NotExecuted(errno)) => Ok(self.channel.send(&FromAgent::NotExecuted { errno })?),
            Err(NotRun::Failed(failure)) => self.or_refuse(Err(failure)),
        }
    }

    fn pass_on(&mut self, happenings: Vec<Happening>) -> Result<(), Stop> {
        for happening in happenings {
            let Happening::Node(number, event) = happening else { continue };
            if let NodeEvent::Said(ToLauncher::Silent { .. }) = event {
                self.others_silent = true;
            }
            self.channel.send(&FromAgent::Node { node: NodeId(number as u16), event })?;
        }
        Ok(())
    }

    /// Reads the output of the nodes, as much as the launcher takes.
    fn read_outputs(&mut self) {
        let mut events = Vec::new();
        for (number, streams) in &mut self.outputs {
            for (stream, to_error) in streams.iter_mut().zip([false, true]) {
                let Some(fd) = stream else { continue };
                let most = self.output_credit.min(READ_BYTES);
                if most == 0 {
                    break;
                }
                let mut bytes = vec![0; most];
                match rustix::io::read(fd, &mut bytes[..]) {
                    Ok(got) if got > 0 => {
                        bytes.truncate(got);
                        self.output_credit -= got;
                        events.push((*number, NodeEvent::Output { to_error, bytes }));
                    }
                    Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                    Ok(_) | Err(_) => {
                        *stream = None;
                        events.push((*number, NodeEvent::OutputEnded { to_error }));
                    }
                }
            }
        }
        self.outputs.retain(|_, streams| streams.iter().any(Option::is_some));
        for (number, event) in events {
            // A lost connection is noticed when it is read.
            let _ = self.channel.send(&FromAgent::Node { node: NodeId(number as u16), event });
        }
    }

    fn look_for_launcher(&mut self) -> Result<(), Stop> {
        if self.orders_by.is_some_and(|by| Instant::now() >= by) {
            return Err(Stop::Alone("the launcher has sent no job"));
        }
        let Some(looks) = self.looks.as_mut().filter(|_| self.finish_by.is_none()) else { return Ok(()) };
        let patience = if self.others_silent { 1 } else { PATIENCE_WITH_LAUNCHER };
        if looks.is_due() && looks.is_last(&mut self.silent_looks, patience) {
            return Err(Stop::Alone(
                "nothing has been heard of the launcher for too long (see --dead-after)",
            ));
        }
        Ok(())
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}
