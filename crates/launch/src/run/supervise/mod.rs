//! One event loop over all nodes of a job: which nodes join, leave and die, and what the user wants.
//!
//! A node is *launched*, then *joined* when its program has called `hiroba_init`, then *left* when it has
//! called `hiroba_finalize`. Events of nodes come from [`LocalNodes`], or in the same form from the agent of
//! a host. The rules for each way to end are in `nodes.rs`, those for hosts in `hosts.rs`.

mod hosts;
mod nodes;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use hiroba_trace::NodeStatistics;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use super::guardian::{self, Front};
use super::liveness::Looks;
use super::local::{LocalNodes, NotRun};
use super::output::{Labeller, Sink};
use super::races::RaceLog;
use super::remote::RemoteHost;
use super::signals::{self, Arrived, SignalDescriptor};
use super::spawn::Job;
use super::status::{End, job_status, name_nodes};
use super::waiting::WaitWatch;
use crate::failure::{Failure, say, say_with_details, system_words};
use crate::progress::{NodeCounts, Progress};
use crate::silence::Silence;
use crate::symbols::Symboliser;

/// How long nodes may take to end themselves when the job ends, before they are killed.
const END_GRACE: Duration = Duration::from_millis(500);
/// The same when the user ends the job: programs may want to save something.
const SIGNAL_GRACE: Duration = Duration::from_secs(2);
/// How long readers may take for the output of nodes that had to be killed.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);
/// How long agents may take to report the deaths of their nodes before they are killed.
const AGENT_GRACE: Duration = Duration::from_secs(2);
/// A second signal within this time counts as the same request (one to the group and one to the process,
/// say).
const SAME_WISH: Duration = Duration::from_millis(250);
/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 256;

/// What a supervisor watches for beside the ends of nodes.
#[derive(Clone, Copy, Debug)]
pub struct Watched {
    /// Nodes report data races.
    pub races: bool,
    /// The program is an executable that was not built for Hiroba, and runs as one on several nodes.
    pub is_executable: bool,
    /// A node runs under a debugger.
    pub debugging: bool,
    /// The silence after which a node or a host is considered dead.
    pub dead_after: Option<Duration>,
    /// Lines of remote nodes get labels, too.
    pub label: bool,
    /// Live rates are shown on the terminal.
    pub progress: bool,
    /// The program creates threads and does not use Hiroba.
    pub has_own_threads: bool,
    /// How long nothing has been printed about the start.
    pub silence: Silence,
}

/// The part of a job on other hosts.
pub struct Elsewhere {
    /// The hosts.
    pub hosts: Vec<RemoteHost>,
    /// The trace files of their nodes, by node, if the run is traced.
    pub traces: BTreeMap<usize, File>,
}

/// The result of a job.
#[derive(Debug)]
pub struct Outcome {
    /// The job's exit status.
    pub status: u8,
    /// The accounts of the nodes that left the job, by node.
    pub accounts: BTreeMap<usize, NodeStatistics>,
    /// The time from the opening of the gate to the last node's end.
    pub wall: Duration,
    /// Whether all nodes joined the job.
    pub started: bool,
}

/// The reason why a job has no outcome.
#[derive(Debug)]
pub enum Stop {
    /// The program could not be executed: an error number from `execve`.
    NotExecuted(i32),
    /// Something else failed before the program ran, or the launcher itself cannot continue.
    Failed(Failure),
    /// The front was killed.
    FrontGone,
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Stop {
        Stop::Failed(Failure::new(format!("the launcher cannot continue: {}", system_words(&error))))
    }
}

impl From<rustix::io::Errno> for Stop {
    fn from(error: rustix::io::Errno) -> Stop {
        std::io::Error::from(error).into()
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Failed(failure)
    }
}

impl From<NotRun> for Stop {
    fn from(not_run: NotRun) -> Stop {
        match not_run {
            NotRun::NotExecuted(errno) => Stop::NotExecuted(errno),
            NotRun::Failed(failure) => Stop::Failed(failure),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Launched,
    Joined,
    Left,
}

struct Node {
    pid: i32,
    /// The index of its host among the others, unless it runs on this machine.
    host: Option<usize>,
    phase: Phase,
    end: Option<End>,
    /// The launcher ended it, so its status does not count.
    ended_by_launcher: bool,
}

/// Why and how the job is being ended.
struct Ending {
    since: Instant,
    kill_at: Instant,
    killed: bool,
    /// The signal that the user sent; `None` when something went wrong.
    wish: Option<i32>,
}

/// A delayed end of the job: a better reason may be reported within a moment.
struct EndLater {
    at: Instant,
    why: String,
    /// Lines beneath the reason.
    evidence: Vec<String>,
    forced_status: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Front,
    Signals,
    Nodes,
    Agent(usize),
    AgentErrors(usize),
    Output(Sink, usize),
}

impl Source {
    fn token(self) -> u64 {
        let with = |kind: u64, number: usize| (kind << 32) | number as u64;
        match self {
            Source::Front => with(0, 0),
            Source::Signals => with(1, 0),
            Source::Nodes => with(2, 0),
            Source::Agent(host) => with(3, host),
            Source::AgentErrors(host) => with(4, host),
            Source::Output(Sink::Out, node) => with(5, node),
            Source::Output(Sink::Error, node) => with(6, node),
        }
    }

    fn from_token(token: u64) -> Source {
        let number = (token & u64::from(u32::MAX)) as usize;
        match token >> 32 {
            0 => Source::Front,
            1 => Source::Signals,
            2 => Source::Nodes,
            3 => Source::Agent(number),
            4 => Source::AgentErrors(number),
            5 => Source::Output(Sink::Out, number),
            _ => Source::Output(Sink::Error, number),
        }
    }
}

/// The output of nodes, on its way to the launcher's own streams.
struct Output {
    labeller: Labeller,
    /// Whether each sink's streams are not watched because its queue is full.
    paused: [bool; 2],
    /// Until when the output of nodes that were killed is passed on.
    until: Option<Instant>,
}

/// How the job will end, as far as that is decided.
#[derive(Default)]
struct Conclusion {
    ending: Option<Ending>,
    /// When to end the job, and what to print then, unless it has ended by itself.
    later: Option<EndLater>,
    /// A status that takes precedence over those of the nodes.
    forced_status: Option<u8>,
}

/// What is known of the program's errors, and of why nodes die.
struct Findings {
    waits: WaitWatch,
    races: RaceLog,
    symbols: Symboliser,
    /// A node that the kernel probably killed for lack of memory, and the evidence.
    out_of_memory: Option<(usize, String)>,
    /// Nodes whose own last messages have said why they die.
    explained: BTreeSet<usize>,
    /// The program creates threads and does not use Hiroba.
    has_own_threads: bool,
}

/// Watches the agents of other hosts.
struct AgentWatch {
    looks: Looks,
    pings: u64,
    /// Set when all nodes have ended: agents may then end, and must do so by this time.
    finish_by: Option<Instant>,
}

/// Watches over a job from the opening of its gate to its end.
pub struct Supervisor {
    front: Front,
    arrivals: SignalDescriptor,
    events: OwnedFd,
    local: LocalNodes,
    hosts: Vec<RemoteHost>,
    /// The trace files of their nodes.
    traces: BTreeMap<usize, File>,
    nodes: Vec<Node>,
    output: Output,
    conclusion: Conclusion,
    accounts: BTreeMap<usize, NodeStatistics>,
    watched: Watched,
    findings: Findings,
    agents: AgentWatch,
    progress: Option<Progress>,
    /// The launcher's silence while nodes join.
    starting: Silence,
    remarks: usize,
    counts: NodeCounts,
}

impl Supervisor {
    /// Takes over nodes that wait at the gate: those of this machine, the first of which has the number
    /// `first`, and those `elsewhere`.
    pub fn new(
        front: Front,
        arrivals: SignalDescriptor,
        (first, mut job): (usize, Job),
        elsewhere: Elsewhere,
        watched: Watched,
    ) -> Result<(Supervisor, OwnedFd), Stop> {
        let Elsewhere { hosts, traces } = elsewhere;
        let outputs: Vec<_> = job.nodes.iter_mut().map(|node| std::mem::take(&mut node.output)).collect();
        let total = outputs.len() + hosts.iter().map(|host| host.nodes).sum::<usize>();
        let mut supervisor = Supervisor {
            front,
            arrivals,
            events: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            local: LocalNodes::new(first, &mut job.nodes, job.reports, job.handover, watched.dead_after)?,
            hosts,
            traces,
            nodes: Vec::with_capacity(total),
            output: Output { labeller: Labeller::default(), paused: [false; 2], until: None },
            conclusion: Conclusion::default(),
            accounts: BTreeMap::new(),
            watched,
            findings: Findings {
                waits: WaitWatch::new(total),
                races: RaceLog::default(),
                symbols: Symboliser::default(),
                out_of_memory: None,
                explained: BTreeSet::new(),
                has_own_threads: watched.has_own_threads,
            },
            agents: AgentWatch { looks: Looks::new(watched.dead_after), pings: 0, finish_by: None },
            starting: watched.silence,
            progress: watched.progress.then(|| Progress::on_terminal(total)).flatten(),
            remarks: 0,
            counts: NodeCounts { all: total, joined: 0, alive: total },
        };
        for (place, output) in outputs.into_iter().enumerate() {
            for pipe in &output {
                supervisor.listen(&pipe.fd, Source::Output(pipe.sink, first + place))?;
            }
            supervisor.output.labeller.add(first + place, output, watched.label);
        }
        supervisor.number_nodes(first);
        supervisor.listen_to_hosts()?;
        supervisor.listen(&supervisor.front.signals, Source::Front)?;
        supervisor.listen(&supervisor.arrivals.0, Source::Signals)?;
        supervisor.listen(supervisor.local.descriptor(), Source::Nodes)?;
        Ok((supervisor, job.gate))
    }

    fn listen(&self, fd: impl AsFd, source: Source) -> rustix::io::Result<()> {
        let data = epoll::EventData::new_u64(source.token());
        epoll::add(&self.events, fd, data, epoll::EventFlags::IN)
    }

    /// Opens the gates and watches until every node has ended.
    pub fn run(mut self, gate: OwnedFd) -> Result<Outcome, Stop> {
        let start = Instant::now();
        drop(gate);
        self.open_gates_of_hosts();
        // While waiting for other hosts, signals were read and dropped, those of nodes' deaths among them.
        self.reap()?;
        while self.counts.alive > 0 {
            self.turn()?;
        }
        let wall = start.elapsed();
        self.progress = None;
        self.dismiss_hosts()?;
        // Processes that nodes left running may keep the pipes of their output open.
        guardian::kill_descendants();
        self.output.labeller.catch_up();
        while self.output.labeller.is_busy() {
            if self.conclusion.ending.as_ref().is_some_and(|ending| ending.killed) {
                // A reader that has stopped reading must not delay the end of the job.
                let now = Instant::now();
                if now >= *self.output.until.get_or_insert(now + OUTPUT_GRACE) {
                    break;
                }
            }
            self.turn()?;
        }
        self.report_end();
        if self.watched.races && self.counts.joined > 0 {
            let (head, details) = self.findings.races.summary(self.nodes.len(), self.watched.is_executable);
            say_with_details(&head, &details);
        }
        let counted = |node: &Node| node.end.filter(|_| !node.ended_by_launcher);
        let status =
            self.conclusion.forced_status.unwrap_or_else(|| job_status(self.nodes.iter().map(counted)));
        let started = self.counts.joined == self.nodes.len();
        Ok(Outcome { status, accounts: self.accounts, wall, started })
    }

    /// Waits for events and handles them, then everything that is due.
    fn turn(&mut self) -> Result<(), Stop> {
        self.wait()?;
        let mut buffer = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
        let (events, _) = epoll::wait(&self.events, &mut buffer, Some(&Timespec::default()))?;
        let mut sources: Vec<Source> =
            events.iter().map(|event| Source::from_token(event.data.u64())).collect();
        // A node's last messages are read before its death is judged.
        sources.sort_by_key(|source| *source == Source::Signals);
        let mut happenings = Vec::new();
        for source in sources {
            match source {
                Source::Front => self.read_front()?,
                Source::Signals => self.read_signals()?,
                Source::Nodes => {
                    let taken = self.local.take(&mut happenings);
                    self.handle_all(std::mem::take(&mut happenings));
                    taken?;
                }
                Source::Agent(host) => self.read_agent(host)?,
                Source::AgentErrors(host) => self.hosts[host].read_errors(),
                Source::Output(sink, node) => drop(self.output.labeller.read(sink, node)),
            }
        }
        self.output.labeller.write();
        self.pause_or_resume()?;
        self.local.look(&mut happenings);
        self.handle_all(happenings);
        self.look_after_hosts();
        self.show_progress();
        self.tell_of_start();
        self.do_what_is_due();
        Ok(())
    }

    /// Sleeps until there is an event, a reader can take waiting bytes, or something is due.
    fn wait(&self) -> Result<(), Stop> {
        let due =
            [self.conclusion.ending.as_ref().filter(|ending| !ending.killed).map(|ending| ending.kill_at)]
                .into_iter()
                .chain([
                    self.conclusion.later.as_ref().map(|later| later.at),
                    self.local.next_look(),
                    self.next_look_after_hosts(),
                    self.progress.as_ref().map(Progress::next),
                    self.next_word_of_start(),
                    self.output.labeller.due(),
                    self.output.until,
                ])
                .flatten()
                .min();
        let left = due.map(|due| due.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
        let timeout =
            left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        let (stdout, stderr) = (rustix::stdio::stdout(), rustix::stdio::stderr());
        let mut fds = vec![PollFd::new(&self.events, PollFlags::IN)];
        if self.output.labeller.has_output(Sink::Out) {
            fds.push(PollFd::new(&stdout, PollFlags::OUT));
        }
        if self.output.labeller.has_output(Sink::Error) {
            fds.push(PollFd::new(&stderr, PollFlags::OUT));
        }
        let channels = self.hosts.iter().filter_map(|host| host.channel.as_ref());
        let waiting: Vec<_> = channels.flat_map(|channel| channel.interests().skip(1)).collect();
        fds.extend(waiting.iter().map(|(fd, flags)| PollFd::new(fd, *flags)));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn pause_or_resume(&mut self) -> Result<(), Stop> {
        for sink in Sink::ALL {
            let full = self.output.labeller.is_full(sink);
            if std::mem::replace(&mut self.output.paused[sink as usize], full) == full {
                continue;
            }
            let interest = if full { epoll::EventFlags::empty() } else { epoll::EventFlags::IN };
            for node in 0..self.nodes.len() {
                if let Some(fd) = self.output.labeller.stream(sink, node) {
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

    /// Takes the statuses of all processes that have ended: nodes, commands that reach hosts, and orphans
    /// that became this process's children.
    fn reap(&mut self) -> Result<(), Stop> {
        let mut happenings = Vec::new();
        let others = self.local.reap(&mut happenings)?;
        for (pid, status) in others {
            let pid = pid.as_raw_nonzero().get();
            if let Some(host) = self.hosts.iter_mut().find(|host| host.pid() == pid) {
                host.exited(status);
            }
        }
        self.handle_all(happenings);
        Ok(())
    }

    /// Handles the user's request to end the job: passes the signal on, and sees that the job ends.
    fn handle_signal(&mut self, arrived: Arrived) {
        // A shell's background job ignores the terminal's Ctrl-C, and `nohup` every hangup; a signal that is
        // sent to the launcher itself counts.
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
        if let Some(ending) = &mut self.conclusion.ending {
            if now >= ending.since + SAME_WISH {
                ending.kill_at = now;
            }
            return;
        }
        self.conclusion.ending = Some(Ending {
            since: now,
            kill_at: now + SIGNAL_GRACE,
            killed: false,
            wish: Some(arrived.signal),
        });
        // The terminal has sent its own signal to the whole process group.
        if !arrived.from_terminal {
            self.signal_local_nodes(arrived.signal);
        }
        self.signal_hosts(arrived.signal);
    }

    /// Sends a signal to all processes of the nodes of this machine. The commands that reach other hosts are
    /// still needed.
    fn signal_local_nodes(&self, signal: i32) {
        let commands: Vec<i32> = self.hosts.iter().map(RemoteHost::pid).collect();
        guardian::signal_descendants(signal, &commands);
    }

    fn do_what_is_due(&mut self) {
        let now = Instant::now();
        if let Some(later) = self.conclusion.later.take_if(|later| later.at <= now && self.counts.alive > 0) {
            self.end_now(later);
        }
        let Some(ending) = &mut self.conclusion.ending else { return };
        if ending.killed || ending.kill_at > now {
            return;
        }
        ending.killed = true;
        if let (Some(signal), true) = (ending.wish, self.counts.alive > 0) {
            let slow = self.numbers(|node| node.end.is_none());
            let who = name_nodes(&slow, self.nodes.len());
            let signal = signals::describe(signal);
            say(&format!("{who} did not end after {signal} and had to be killed"));
        }
        self.signal_local_nodes(libc::SIGKILL);
        self.signal_hosts(libc::SIGKILL);
    }

    fn numbers(&self, choose: impl Fn(&Node) -> bool) -> Vec<usize> {
        (0..self.nodes.len()).filter(|number| choose(&self.nodes[*number])).collect()
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
            Source::Nodes,
            Source::Agent(0),
            Source::AgentErrors(4095),
            Source::Output(Sink::Out, 1),
            Source::Output(Sink::Error, 4095),
        ];
        for source in sources {
            assert_eq!(Source::from_token(source.token()), source);
        }
    }
}
