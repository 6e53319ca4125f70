//! One event loop over all nodes of a job: who joins, who leaves, who dies, what the user wants.
//!
//! A node is *launched*, then *joined* when its program has called `hiroba_init`, then *left* when it has
//! called `hiroba_finalize`. The rules for each way to end are in [`Supervisor::judge`].

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use hiroba_base::NodeId;
use hiroba_trace::NodeStatistics;
use hiroba_wire::control::{self, CONTROL_MESSAGE_BYTES_MAX, ToLauncher, ToNode};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags};
use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, wait};

use super::guardian::{self, Front};
use super::output::{Labeller, Sink};
use super::races::RaceLog;
use super::signals::{self, Arrived, SignalDescriptor};
use super::spawn::{ExecReport, Job};
use super::status::{End, all_nodes, job_status, name_nodes};
use super::waiting::WaitWatch;
use crate::failure::{Failure, STATUS_HIROBA, say, say_with_details, system_words};
use crate::symbols::Symboliser;

/// From the end of the job to the death of nodes that have not ended themselves.
const END_GRACE: Duration = Duration::from_millis(500);
/// The same when the user ends the job: programs may want to save something.
const SIGNAL_GRACE: Duration = Duration::from_secs(2);
/// A second signal within this time is the same wish once more (a group's and a process's signal, say).
const SAME_WISH: Duration = Duration::from_millis(250);
/// How long the others may run on after a node exited with status 0 without leaving.
const SILENT_EXIT_GRACE: Duration = Duration::from_millis(500);
/// How long the others may run on after a node failed before it joined: a usage error fails on all nodes alike.
const EARLY_FAILURE_GRACE: Duration = Duration::from_secs(1);
/// How long a wrapper may outlive the process that joined the job and died.
const WRAPPER_GRACE: Duration = Duration::from_millis(500);
/// Remarks of nodes that are passed on; more are dropped.
const REMARKS_MAX: usize = 100;
/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 256;

/// What a supervisor looks out for beside how nodes end.
#[derive(Clone, Copy, Debug)]
pub struct Watched {
    /// Nodes report data races.
    pub races: bool,
    /// A node runs under a debugger.
    pub debugging: bool,
}

/// What a job came to.
#[derive(Debug)]
pub struct Outcome {
    /// The job's exit status.
    pub status: u8,
    /// The accounts of the nodes that left the job, by node.
    pub accounts: BTreeMap<usize, NodeStatistics>,
    /// From the opening of the gate to the last node's end.
    pub wall: Duration,
    /// Whether all nodes joined the job.
    pub started: bool,
}

/// How a job stopped short of an outcome.
#[derive(Debug)]
pub enum Stop {
    /// The program could not be executed: an error number from `execve`.
    NotExecuted(i32),
    /// Something else failed before the program ran, or the launcher itself cannot go on.
    Failed(Failure),
    /// The front was killed.
    FrontGone,
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Stop {
        Stop::Failed(Failure::new(format!("the launcher cannot go on: {}", system_words(&error))))
    }
}

impl From<rustix::io::Errno> for Stop {
    fn from(error: rustix::io::Errno) -> Stop {
        std::io::Error::from(error).into()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Launched,
    Joined,
    Left,
}

struct Node {
    pid: Pid,
    control: Option<OwnedFd>,
    phase: Phase,
    /// Watches the process that joined when it is not `pid`: the node's own process is a wrapper.
    joined_process: Option<(i32, OwnedFd)>,
    end: Option<End>,
    /// The launcher ended it, so that its status does not count.
    ended_by_launcher: bool,
}

/// Why and how the job is being ended.
struct Ending {
    since: Instant,
    kill_at: Instant,
    killed: bool,
    /// The signal the user sent; `None` when something went wrong.
    wish: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Front,
    Signals,
    Reports,
    Control(usize),
    JoinedProcess(usize),
    Output(Sink, usize),
}

impl Source {
    fn token(self) -> u64 {
        let with = |kind: u64, node: usize| (kind << 32) | node as u64;
        match self {
            Source::Front => with(0, 0),
            Source::Signals => with(1, 0),
            Source::Reports => with(2, 0),
            Source::Control(node) => with(3, node),
            Source::JoinedProcess(node) => with(4, node),
            Source::Output(Sink::Out, node) => with(5, node),
            Source::Output(Sink::Error, node) => with(6, node),
        }
    }

    fn from_token(token: u64) -> Source {
        let node = (token & u64::from(u32::MAX)) as usize;
        match token >> 32 {
            0 => Source::Front,
            1 => Source::Signals,
            2 => Source::Reports,
            3 => Source::Control(node),
            4 => Source::JoinedProcess(node),
            5 => Source::Output(Sink::Out, node),
            _ => Source::Output(Sink::Error, node),
        }
    }
}

/// Watches over a job from the opening of its gate to its end.
pub struct Supervisor {
    front: Front,
    arrivals: SignalDescriptor,
    events: OwnedFd,
    reports: Option<OwnedFd>,
    nodes: Vec<Node>,
    by_pid: BTreeMap<i32, usize>,
    labeller: Labeller,
    /// Streams that are not watched because their sink's queue is full.
    paused: [bool; 2],
    ending: Option<Ending>,
    /// A status that stands before those of the nodes.
    forced_status: Option<u8>,
    /// When to end the job, and what to say then, unless it has ended by itself.
    end_later: Option<(Instant, String, Option<u8>)>,
    accounts: BTreeMap<usize, NodeStatistics>,
    watched: Watched,
    waits: WaitWatch,
    races: RaceLog,
    symbols: Symboliser,
    remarks: usize,
    joined: usize,
    alive: usize,
    message: Vec<u8>,
}

impl Supervisor {
    /// Takes over the nodes that wait at the gate.
    pub fn new(front: Front, job: Job, watched: Watched) -> Result<(Supervisor, OwnedFd), Stop> {
        let mut supervisor = Supervisor {
            front,
            arrivals: SignalDescriptor::open()?,
            events: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            reports: Some(job.reports),
            alive: job.nodes.len(),
            nodes: Vec::with_capacity(job.nodes.len()),
            by_pid: BTreeMap::new(),
            labeller: Labeller::default(),
            paused: [false; 2],
            ending: None,
            forced_status: None,
            end_later: None,
            accounts: BTreeMap::new(),
            watched,
            waits: WaitWatch::new(job.nodes.len()),
            races: RaceLog::default(),
            symbols: Symboliser::default(),
            remarks: 0,
            joined: 0,
            message: vec![0; CONTROL_MESSAGE_BYTES_MAX],
        };
        for (number, node) in job.nodes.into_iter().enumerate() {
            supervisor.by_pid.insert(node.pid.as_raw_nonzero().get(), number);
            supervisor.listen(&node.control, Source::Control(number))?;
            if let Some(output) = node.output {
                supervisor.listen(&output[0], Source::Output(Sink::Out, number))?;
                supervisor.listen(&output[1], Source::Output(Sink::Error, number))?;
                supervisor.labeller.add(number, output);
            }
            supervisor.nodes.push(Node {
                pid: node.pid,
                control: Some(node.control),
                phase: Phase::Launched,
                joined_process: None,
                end: None,
                ended_by_launcher: false,
            });
        }
        supervisor.listen(&supervisor.front.signals, Source::Front)?;
        supervisor.listen(&supervisor.arrivals.0, Source::Signals)?;
        if let Some(reports) = &supervisor.reports {
            supervisor.listen(reports, Source::Reports)?;
        }
        Ok((supervisor, job.gate))
    }

    fn listen(&self, fd: impl AsFd, source: Source) -> rustix::io::Result<()> {
        let data = epoll::EventData::new_u64(source.token());
        epoll::add(&self.events, fd, data, epoll::EventFlags::IN)
    }

    /// Opens the gate and watches until every node has ended.
    pub fn run(mut self, gate: OwnedFd) -> Result<Outcome, Stop> {
        let start = Instant::now();
        drop(gate);
        while self.alive > 0 {
            self.turn()?;
        }
        let wall = start.elapsed();
        // What nodes left running may hold the pipes of labelled output open.
        guardian::kill_descendants();
        while self.labeller.is_busy() && !self.ending.as_ref().is_some_and(|ending| ending.killed) {
            self.turn()?;
        }
        self.labeller.write();
        self.report_end();
        if self.watched.races && self.joined > 0 {
            say(&self.races.summary());
        }
        let counted = |node: &Node| node.end.filter(|_| !node.ended_by_launcher);
        let status = self.forced_status.unwrap_or_else(|| job_status(self.nodes.iter().map(counted)));
        let started = self.joined == self.nodes.len();
        Ok(Outcome { status, accounts: self.accounts, wall, started })
    }

    /// Waits for events and handles them, then whatever is due.
    fn turn(&mut self) -> Result<(), Stop> {
        self.wait()?;
        let mut buffer = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
        let (events, _) = epoll::wait(&self.events, &mut buffer, Some(&Timespec::default()))?;
        let mut sources: Vec<Source> =
            events.iter().map(|event| Source::from_token(event.data.u64())).collect();
        // A node's last words are read before its death is judged.
        sources.sort_by_key(|source| *source == Source::Signals);
        for source in sources {
            match source {
                Source::Front => self.read_front()?,
                Source::Signals => self.read_signals()?,
                Source::Reports => self.read_reports()?,
                Source::Control(node) => self.read_control(node),
                Source::JoinedProcess(node) => self.joined_process_ended(node),
                Source::Output(sink, node) => self.labeller.read(sink, node),
            }
        }
        self.labeller.write();
        self.pause_or_resume()?;
        self.do_what_is_due();
        Ok(())
    }

    /// Sleeps until there is an event, a sink that waits for output can take it, or something is due.
    fn wait(&self) -> Result<(), Stop> {
        let due = [self.ending.as_ref().filter(|ending| !ending.killed).map(|ending| ending.kill_at)]
            .into_iter()
            .chain([self.end_later.as_ref().map(|later| later.0)])
            .flatten()
            .min();
        let left = due.map(|due| due.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
        let timeout =
            left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        let (stdout, stderr) = (rustix::stdio::stdout(), rustix::stdio::stderr());
        let mut fds = vec![PollFd::new(&self.events, PollFlags::IN)];
        if self.labeller.has_output(Sink::Out) {
            fds.push(PollFd::new(&stdout, PollFlags::OUT));
        }
        if self.labeller.has_output(Sink::Error) {
            fds.push(PollFd::new(&stderr, PollFlags::OUT));
        }
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn pause_or_resume(&mut self) -> Result<(), Stop> {
        for sink in Sink::ALL {
            let full = self.labeller.is_full(sink);
            if std::mem::replace(&mut self.paused[sink as usize], full) == full {
                continue;
            }
            let interest = if full { epoll::EventFlags::empty() } else { epoll::EventFlags::IN };
            for node in 0..self.nodes.len() {
                if let Some(fd) = self.labeller.stream(sink, node) {
                    let data = epoll::EventData::new_u64(Source::Output(sink, node).token());
                    epoll::modify(&self.events, fd, data, interest)?;
                }
            }
        }
        Ok(())
    }

    fn read_front(&mut self) -> Result<(), Stop> {
        let mut bytes = [0u8; 16];
        match rustix::io::read(&self.front.signals, &mut bytes) {
            Ok(0) => Err(Stop::FrontGone),
            Ok(got) => {
                for signal in &bytes[..got] {
                    self.handle_signal(Arrived { signal: i32::from(*signal), from_terminal: false });
                }
                Ok(())
            }
            Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn read_signals(&mut self) -> Result<(), Stop> {
        let mut children = false;
        while let Some(arrived) = self.arrivals.next() {
            if arrived.signal == libc::SIGCHLD {
                children = true;
            } else {
                self.handle_signal(arrived);
            }
        }
        if children { self.reap() } else { Ok(()) }
    }

    /// The user wants the job to end: pass it on, and see that it does.
    fn handle_signal(&mut self, arrived: Arrived) {
        // A shell's background job ignores the terminal's Ctrl-C, and `nohup` every hangup; a signal that is
        // sent to the launcher by name is meant.
        let ignored = self.front.inherited.ignores(arrived.signal);
        if ignored && (arrived.from_terminal || arrived.signal == libc::SIGHUP) {
            return;
        }
        // At a debugger's prompt the keyboard is the debugger's, although this process gets its signals, too.
        let keyboard = matches!(arrived.signal, libc::SIGINT | libc::SIGQUIT);
        if self.watched.debugging && keyboard && arrived.from_terminal {
            return;
        }
        let now = Instant::now();
        if let Some(ending) = &mut self.ending {
            if now >= ending.since + SAME_WISH {
                ending.kill_at = now;
            }
            return;
        }
        self.ending = Some(Ending {
            since: now,
            kill_at: now + SIGNAL_GRACE,
            killed: false,
            wish: Some(arrived.signal),
        });
        // The terminal has sent its own to the whole process group.
        if !arrived.from_terminal {
            guardian::signal_descendants(arrived.signal);
        }
    }

    fn read_reports(&mut self) -> Result<(), Stop> {
        let Some(reports) = &self.reports else { return Ok(()) };
        let mut bytes = [0u8; ExecReport::BYTES];
        match rustix::io::read(reports, &mut bytes) {
            Ok(ExecReport::BYTES) => {
                let report = ExecReport::decode(bytes);
                if report.in_exec {
                    return Err(Stop::NotExecuted(report.errno));
                }
                let error = std::io::Error::from_raw_os_error(report.errno);
                let words = system_words(&error);
                Err(Stop::Failed(Failure::new(format!("cannot prepare a node's process: {words}"))))
            }
            Ok(_) => {
                self.reports = None;
                Ok(())
            }
            Err(_) => Ok(()),
        }
    }

    /// Takes the statuses of all processes that have ended, then judges the nodes among them together.
    fn reap(&mut self) -> Result<(), Stop> {
        let mut ended = Vec::new();
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let pid = pid.as_raw_nonzero().get();
            let Some(mut end) = End::from_wait(status) else { continue };
            if let Some(Ending { wish: Some(signal), killed: true, .. }) = self.ending {
                // It had to be killed because it did not end of the signal that the user sent.
                end = if end == End::Killed(libc::SIGKILL) { End::Killed(signal) } else { end };
            }
            // Others are orphans that became this process's children.
            if let Some(number) = self.by_pid.remove(&pid) {
                ended.push(number);
                let faulted = self.ending.as_ref().is_some_and(|ending| ending.wish.is_none());
                self.nodes[number].end = Some(end);
                self.nodes[number].ended_by_launcher = faulted;
                self.alive -= 1;
            }
        }
        if !ended.is_empty() {
            self.read_reports()?;
        }
        ended.sort_unstable();
        for number in &ended {
            self.read_control(*number);
            self.nodes[*number].joined_process = None;
        }
        for number in ended {
            self.judge(number);
        }
        Ok(())
    }

    /// What a node's end means for the job.
    fn judge(&mut self, number: usize) {
        let node = &self.nodes[number];
        let (Some(end), pid) = (node.end, node.pid) else { return };
        if self.ending.is_some() {
            return;
        }
        let told = format!("node {number} (pid {pid}) {}", end.describe());
        let others = self.alive > 0;
        let ending = if others { "; ending the job" } else { "" };
        match (node.phase, end) {
            (Phase::Left, End::Exited(_)) => {}
            (Phase::Left, End::Killed(_)) => say(&format!("{told} after it had left the job")),
            (_, End::Killed(_)) => self.end_job(&format!("{told}{ending}"), None),
            (Phase::Joined, End::Exited(0)) => {
                let told =
                    format!("{told} without leaving the job (call hiroba_finalize, or return from main)");
                self.end_later(SILENT_EXIT_GRACE, told, Some(STATUS_HIROBA));
            }
            (Phase::Joined, End::Exited(_)) => {
                self.end_job(&format!("{told} before it had left the job{ending}"), None);
            }
            (Phase::Launched, End::Exited(status)) => {
                let early = format!(
                    "{told} without having joined the job (its program did not call hiroba_init, or it failed)"
                );
                if self.joined > 0 {
                    let forced = if status == 0 { Some(STATUS_HIROBA) } else { None };
                    self.end_job(&format!("{early}, so that the job cannot start; ending it"), forced);
                } else if status != 0 {
                    self.end_later(EARLY_FAILURE_GRACE, early, None);
                }
            }
        }
    }

    /// Ends the job: says why, asks the nodes to end, kills them a little later.
    fn end_job(&mut self, why: &str, forced_status: Option<u8>) {
        if self.ending.is_some() {
            return;
        }
        say(why);
        self.end_quietly(forced_status);
    }

    /// The same when the reason has been said.
    fn end_quietly(&mut self, forced_status: Option<u8>) {
        self.end_later = None;
        self.forced_status = forced_status;
        let now = Instant::now();
        self.ending = Some(Ending { since: now, kill_at: now + END_GRACE, killed: false, wish: None });
        guardian::signal_descendants(libc::SIGTERM);
    }

    /// Ends the job after `grace` unless it has ended by itself; the first reason stays.
    fn end_later(&mut self, grace: Duration, why: String, forced_status: Option<u8>) {
        if self.ending.is_none() && self.end_later.is_none() {
            self.end_later = Some((Instant::now() + grace, why, forced_status));
        }
    }

    fn do_what_is_due(&mut self) {
        let now = Instant::now();
        if let Some((_, why, forced_status)) = self.end_later.take_if(|later| later.0 <= now) {
            self.end_job(&format!("{why}; ending the job"), forced_status);
        }
        let Some(ending) = &mut self.ending else { return };
        if ending.killed || ending.kill_at > now {
            return;
        }
        ending.killed = true;
        if let (Some(signal), true) = (ending.wish, self.alive > 0) {
            let slow = self.numbers(|node| node.end.is_none());
            let who = name_nodes(&slow, self.nodes.len());
            let signal = signals::describe(signal);
            say(&format!("{who} did not end after {signal} and had to be killed"));
        }
        guardian::signal_descendants(libc::SIGKILL);
    }

    fn numbers(&self, choose: impl Fn(&Node) -> bool) -> Vec<usize> {
        (0..self.nodes.len()).filter(|number| choose(&self.nodes[*number])).collect()
    }

    /// The sentence for a job that ended without a word so far.
    fn report_end(&mut self) {
        if let Some((_, why, _)) = self.end_later.take().filter(|_| self.joined > 0) {
            return say(&why);
        }
        if let Some(ending) = &self.ending {
            let Some(signal) = ending.wish.filter(|_| !ending.killed) else { return };
            let killed = self.numbers(|node| node.end == Some(End::Killed(signal)));
            let odd = self.numbers(|node| matches!(node.end, Some(End::Killed(other)) if other != signal));
            if let Some(first) = odd.first() {
                let told = self.nodes[*first].end.map(End::describe).unwrap_or_default();
                say(&format!("node {first} {told} while the job was being ended"));
            } else if !killed.is_empty() {
                let who = name_nodes(&killed, self.nodes.len());
                let verb = if killed.len() == 1 { "was" } else { "were" };
                say(&format!(
                    "{who} {verb} killed by {}, which was sent to the job",
                    signals::describe(signal)
                ));
            }
            return;
        }
        if self.joined == 0 {
            let on = match self.nodes.len() {
                1 => String::new(),
                nodes => format!(" on {}", all_nodes(nodes)),
            };
            say(&format!(
                "the program ended{on} without having joined the job (it did not call hiroba_init, or that failed); \
                 build it with 'hiroba cc' and call hiroba_init, or run it without Hiroba"
            ));
        }
    }

    /// Reads all messages of a node.
    fn read_control(&mut self, number: usize) {
        while let Some(control) = &self.nodes[number].control {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut slices = [std::io::IoSliceMut::new(&mut self.message)];
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let received = match rustix::net::recvmsg(control, &mut slices, &mut ancillary, flags) {
                Ok(received) => received,
                Err(rustix::io::Errno::AGAIN) => return self.waits.drained(number),
                Err(rustix::io::Errno::INTR) => continue,
                // The other side is gone (perhaps with messages of ours unread); its process's end says the rest.
                Err(_) => {
                    self.nodes[number].control = None;
                    return;
                }
            };
            if received.bytes == 0 {
                self.nodes[number].control = None;
                return;
            }
            let sender = ancillary.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmCredentials(credentials) => Some(credentials.pid),
                _ => None,
            });
            let whole = !received.flags.contains(ReturnFlags::TRUNC);
            let bytes = received.bytes.min(self.message.len());
            match control::decode::<ToLauncher>(&self.message[..bytes]) {
                Ok(message) if whole => self.handle_message(number, sender, message),
                _ => {
                    let why = format!(
                        "node {number} sent {bytes} bytes on its control channel that are not a message; was its program \
                         built with another version of Hiroba? ending the job"
                    );
                    self.end_job(&why, Some(STATUS_HIROBA));
                    self.nodes[number].control = None;
                }
            }
        }
    }

    fn handle_message(&mut self, number: usize, sender: Option<Pid>, message: ToLauncher) {
        let node = &mut self.nodes[number];
        match message {
            ToLauncher::Join { version } => self.handle_join(number, sender, &version),
            ToLauncher::Leave { statistics_json } => {
                node.phase = Phase::Left;
                if let Some((_, process)) = node.joined_process.take() {
                    let _ = epoll::delete(&self.events, process);
                }
                match serde_json::from_str::<NodeStatistics>(&statistics_json) {
                    Ok(mut account) => {
                        account.node = NodeId(number as u16);
                        self.accounts.insert(number, account);
                    }
                    Err(error) => say(&format!("cannot read the account of node {number}: {error}")),
                }
                if self.nodes.iter().all(|node| node.phase == Phase::Left) {
                    self.tell_all(&ToNode::Close);
                }
            }
            ToLauncher::Waiting(report) => {
                if self.waits.report(number, report) {
                    self.handle_endless_wait();
                }
            }
            ToLauncher::Race(report) => {
                if let Some(told) = self.races.note(&report, &self.symbols)
                    && let Some((head, details)) = told.split_first()
                {
                    say_with_details(head, details);
                }
            }
            ToLauncher::Remark { sentence } => {
                self.remarks += 1;
                if self.remarks <= REMARKS_MAX {
                    say(&format!("node {number}: {sentence}"));
                }
            }
            ToLauncher::Fatal { sentence } => {
                self.end_job(&format!("node {number}: {sentence}"), Some(STATUS_HIROBA));
            }
        }
    }

    /// Every thread of every node waits for another.
    fn handle_endless_wait(&mut self) {
        // Whoever waits for a node that is gone has been told so, or is about to be.
        let whole = self.nodes.iter().all(|node| node.phase == Phase::Joined && node.end.is_none());
        if !whole || self.ending.is_some() || self.end_later.is_some() {
            return;
        }
        let nodes = self.nodes.len();
        let of = if nodes == 1 { String::new() } else { format!(" of {}", all_nodes(nodes)) };
        let why = format!("nobody can go on: every thread{of} waits for another; ending the job");
        say_with_details(&why, &self.waits.describe(&self.symbols));
        self.end_quietly(Some(STATUS_HIROBA));
    }

    fn handle_join(&mut self, number: usize, sender: Option<Pid>, version: &str) {
        const OURS: &str = env!("CARGO_PKG_VERSION");
        if version != OURS {
            let why = format!(
                "node {number}'s program was built with Hiroba {version}, this is {OURS}; build it again with 'hiroba cc'"
            );
            return self.end_job(&why, Some(STATUS_HIROBA));
        }
        let node = &mut self.nodes[number];
        if node.phase != Phase::Launched {
            return self.end_job(
                &format!("node {number} joined the job twice; ending the job"),
                Some(STATUS_HIROBA),
            );
        }
        node.phase = Phase::Joined;
        let wrapped = sender.filter(|process| *process != node.pid);
        if let Some((process, Ok(watch))) = wrapped.map(|it| (it, pidfd_open(it, PidfdFlags::empty()))) {
            let data = epoll::EventData::new_u64(Source::JoinedProcess(number).token());
            let _ = epoll::add(&self.events, &watch, data, epoll::EventFlags::IN);
            node.joined_process = Some((process.as_raw_nonzero().get(), watch));
        }
        self.joined += 1;
        if self.joined == self.nodes.len() {
            self.tell_all(&ToNode::Start);
        }
        if let Some(gone) = self.numbers(|node| node.phase == Phase::Launched && node.end.is_some()).first() {
            self.judge(*gone);
        }
    }

    fn tell_all(&self, message: &ToNode) {
        let bytes = control::encode(message);
        for node in &self.nodes {
            // A node that is gone is judged by its end.
            if let Some(control) = &node.control {
                let _ = rustix::net::send(control, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            }
        }
    }

    /// The process that joined has ended; its wrapper (a shell, `time`) should soon follow.
    fn joined_process_ended(&mut self, number: usize) {
        let Some((pid, watch)) = self.nodes[number].joined_process.take() else { return };
        let _ = epoll::delete(&self.events, &watch);
        self.read_control(number);
        if self.nodes[number].phase == Phase::Joined && self.nodes[number].end.is_none() {
            let why =
                format!("process {pid} of node {number} ended without leaving the job that it had joined");
            self.end_later(WRAPPER_GRACE, why, Some(STATUS_HIROBA));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_name_their_sources() {
        let sources = [
            Source::Front,
            Source::Signals,
            Source::Reports,
            Source::Control(0),
            Source::Control(4095),
            Source::JoinedProcess(7),
            Source::Output(Sink::Out, 1),
            Source::Output(Sink::Error, 4095),
        ];
        for source in sources {
            assert_eq!(Source::from_token(source.token()), source);
        }
    }
}
