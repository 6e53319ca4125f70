//! The nodes that run on this machine, for the process that started them: the launcher or an agent.

use std::collections::{BTreeMap, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use hiroba_wire::agent::NodeEvent;
use hiroba_wire::control::{self, CONTROL_MESSAGE_BYTES_MAX, ToLauncher, ToNode};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};
use rustix::process::{Pid, PidfdFlags, WaitOptions, WaitStatus, pidfd_open, wait};

use super::deaths::MemoryKills;
use super::evidence::{self, Shares};
use super::handover::{self, Given, Handover};
use super::liveness::{Doing, Looks, doing};
use super::spawn::{ExecReport, Spawned};
use super::status::End;
use crate::failure::{Failure, system_words};

/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 256;
/// The interval at which giving a node its descriptors is retried after the system refused.
const GIVE_INTERVAL: Duration = Duration::from_millis(2);

/// Something that happened to a node, or that became known about it.
#[derive(Debug)]
pub enum Happening {
    /// An event of the node with this number.
    Node(usize, NodeEvent),
    /// Everything that the node had sent so far has been read.
    Drained(usize),
}

/// The reason why the program did not begin.
#[derive(Debug)]
pub enum NotRun {
    /// An error number from `execve`.
    NotExecuted(i32),
    /// Something failed before it.
    Failed(Failure),
}

#[derive(Debug)]
struct LocalNode {
    pid: Pid,
    /// Receives the hello of the process that joins. It is closed after the first hello, so that no second
    /// process can join.
    door: Option<OwnedFd>,
    /// The channel that the hello brought.
    control: Option<OwnedFd>,
    /// The process that joined, and a descriptor of it, if it is not `pid`, because the node's own process is
    /// a wrapper.
    joined_process: Option<(i32, OwnedFd)>,
    ended: bool,
    /// The number of successive pings that it did not answer.
    silent_looks: u32,
    told_silent: bool,
    /// What its threads had got of the processors when it first left a ping unanswered.
    shares: Option<Shares>,
}

/// The value of `silent_looks` at which the first ping has had no answer: the look before sent it.
const FIRST_SILENT_LOOK: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Reports,
    Control(usize),
    JoinedProcess(usize),
    Door(usize),
}

impl Source {
    fn token(self) -> u64 {
        let with = |kind: u64, place: usize| (kind << 32) | place as u64;
        match self {
            Source::Reports => with(0, 0),
            Source::Control(place) => with(1, place),
            Source::JoinedProcess(place) => with(2, place),
            Source::Door(place) => with(3, place),
        }
    }

    fn from_token(token: u64) -> Source {
        let place = (token & u64::from(u32::MAX)) as usize;
        match token >> 32 {
            0 => Source::Reports,
            1 => Source::Control(place),
            2 => Source::JoinedProcess(place),
            _ => Source::Door(place),
        }
    }
}

/// The nodes of this machine.
#[derive(Debug)]
pub struct LocalNodes {
    /// The number of the first node.
    first: usize,
    events: OwnedFd,
    reports: Option<OwnedFd>,
    nodes: Vec<LocalNode>,
    by_pid: BTreeMap<i32, usize>,
    looks: Option<Looks>,
    memory_kills: MemoryKills,
    /// Whether nodes answer pings: they do between `Start` and `Close`.
    answers_expected: bool,
    message: Vec<u8>,
    /// Present until all nodes have been given what they need to join.
    handover: Option<Handover>,
    /// Nodes that have said hello, and how much each has been given.
    guests: VecDeque<(usize, Given)>,
    /// When to retry giving, after the system refused.
    give_again: Option<Instant>,
}

impl LocalNode {
    /// Returns the process that joined the job, if it is known.
    fn process(&self) -> i32 {
        self.joined_process.as_ref().map_or(self.pid.as_raw_nonzero().get(), |(pid, _)| *pid)
    }
}

impl LocalNodes {
    /// Takes over nodes that wait at the gate, the first of which has the number `first`.
    pub fn new(
        first: usize,
        spawned: &mut Vec<Spawned>,
        reports: OwnedFd,
        handover: Handover,
        dead_after: Option<Duration>,
    ) -> rustix::io::Result<LocalNodes> {
        let mut local = LocalNodes {
            first,
            events: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            reports: None,
            nodes: Vec::with_capacity(spawned.len()),
            by_pid: BTreeMap::new(),
            looks: dead_after.map(|silence| Looks::new(Some(silence))),
            memory_kills: MemoryKills::watch(),
            answers_expected: false,
            message: vec![0; CONTROL_MESSAGE_BYTES_MAX],
            handover: Some(handover).filter(|_| !spawned.is_empty()),
            guests: VecDeque::new(),
            give_again: None,
        };
        local.listen(&reports, Source::Reports)?;
        local.reports = Some(reports);
        for (place, node) in spawned.drain(..).enumerate() {
            local.by_pid.insert(node.pid.as_raw_nonzero().get(), place);
            local.listen(&node.door, Source::Door(place))?;
            local.nodes.push(LocalNode {
                pid: node.pid,
                door: Some(node.door),
                control: None,
                joined_process: None,
                ended: false,
                silent_looks: 0,
                told_silent: false,
                shares: None,
            });
        }
        Ok(local)
    }

    fn listen(&self, fd: impl AsFd, source: Source) -> rustix::io::Result<()> {
        let data = epoll::EventData::new_u64(source.token());
        epoll::add(&self.events, fd, data, epoll::EventFlags::IN)
    }

    /// Returns a descriptor that is readable when [`take`](Self::take) has something to do.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Returns the nodes' processes, by node.
    pub fn pids(&self) -> impl Iterator<Item = i32> {
        self.nodes.iter().map(|node| node.pid.as_raw_nonzero().get())
    }

    /// Reads what the nodes have sent, and which processes have ended.
    pub fn take(&mut self, happenings: &mut Vec<Happening>) -> Result<(), NotRun> {
        let mut buffer = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
        let Ok((events, _)) = epoll::wait(&self.events, &mut buffer, Some(&Timespec::default())) else {
            return Ok(());
        };
        let sources: Vec<Source> = events.iter().map(|event| Source::from_token(event.data.u64())).collect();
        for source in sources {
            match source {
                Source::Reports => self.read_reports()?,
                Source::Control(place) => self.read_control(place, happenings),
                Source::JoinedProcess(place) => self.joined_process_ended(place, happenings),
                Source::Door(place) => self.read_door(place, happenings),
            }
        }
        self.give();
        Ok(())
    }

    fn read_reports(&mut self) -> Result<(), NotRun> {
        let Some(reports) = &self.reports else { return Ok(()) };
        let mut bytes = [0u8; ExecReport::BYTES];
        match rustix::io::read(reports, &mut bytes) {
            Ok(ExecReport::BYTES) => {
                let report = ExecReport::decode(bytes);
                if report.in_exec {
                    return Err(NotRun::NotExecuted(report.errno));
                }
                let error = std::io::Error::from_raw_os_error(report.errno);
                let words = system_words(&error);
                Err(NotRun::Failed(Failure::new(format!("cannot prepare a node's process: {words}"))))
            }
            Ok(_) => {
                self.reports = None;
                Ok(())
            }
            Err(_) => Ok(()),
        }
    }

    /// Takes the statuses of all processes that have ended, and returns those that are no nodes.
    pub fn reap(&mut self, happenings: &mut Vec<Happening>) -> Result<Vec<(Pid, WaitStatus)>, NotRun> {
        let (mut ended, mut others) = (Vec::new(), Vec::new());
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let Some(end) = End::from_wait(status) else { continue };
            match self.by_pid.remove(&pid.as_raw_nonzero().get()) {
                Some(place) => ended.push((place, end)),
                None => others.push((pid, status)),
            }
        }
        if !ended.is_empty() {
            self.read_reports()?;
        }
        ended.sort_unstable_by_key(|(place, _)| *place);
        for (place, _) in &ended {
            // A node's last messages are handled before its death.
            self.read_door(*place, happenings);
            self.read_control(*place, happenings);
            self.nodes[*place].joined_process = None;
            self.nodes[*place].ended = true;
        }
        // Nodes that lack memory die one by one, but for the same reason.
        let killed = |(_, end): &&(usize, End)| *end == End::Killed(libc::SIGKILL);
        if let Some((place, _)) = ended.iter().find(killed)
            && let Some(sentence) = self.memory_kills.explain()
        {
            happenings.push(Happening::Node(self.first + place, NodeEvent::OutOfMemory { sentence }));
        }
        happenings.extend(ended.into_iter().map(|(place, end)| {
            Happening::Node(
                self.first + place,
                match end {
                    End::Exited(status) => NodeEvent::Exited { status },
                    End::Killed(signal) => NodeEvent::Killed { signal },
                },
            )
        }));
        Ok(others)
    }

    /// Reads everything that the nodes have sent.
    pub fn read_all(&mut self, happenings: &mut Vec<Happening>) {
        for place in 0..self.nodes.len() {
            self.read_control(place, happenings);
        }
    }

    /// Reads a node's door. The first hello of this build is accepted; everything after it is ignored.
    fn read_door(&mut self, place: usize, happenings: &mut Vec<Happening>) {
        let Some(door) = &self.nodes[place].door else { return };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1), ScmCredentials(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [std::io::IoSliceMut::new(&mut self.message)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let bytes = match rustix::net::recvmsg(door, &mut slices, &mut ancillary, flags) {
            Err(Errno::AGAIN | Errno::INTR) => return,
            Ok(received) if received.bytes > 0 => received.bytes.min(self.message.len()),
            // All processes of the node have closed it; the node's exit status tells the rest.
            Ok(_) | Err(_) => return self.nodes[place].door = None,
        };
        let (mut process, mut channel) = (None, None);
        for message in ancillary.drain() {
            match message {
                RecvAncillaryMessage::ScmCredentials(credentials) => process = Some(credentials.pid),
                RecvAncillaryMessage::ScmRights(mut passed) => channel = passed.next(),
                _ => {}
            }
        }
        self.nodes[place].door = None;
        let node = self.first + place;
        let is_ours =
            |version: &str, build: &str| (version, build) == (env!("CARGO_PKG_VERSION"), hiroba_node::BUILD);
        let garbled = Happening::Node(node, NodeEvent::Garbled { bytes: bytes as u64 });
        match (control::decode::<ToLauncher>(&self.message[..bytes]), channel) {
            (Ok(ToLauncher::Hello { version, build }), Some(channel)) if is_ours(&version, &build) => {
                self.let_in(place, process, channel);
            }
            (Ok(ToLauncher::Hello { version, build }), Some(channel)) => {
                // The node learns what this build is and gets nothing else. The receiver of the event ends
                // the job.
                handover::refuse(channel.as_fd());
                happenings.push(Happening::Node(node, NodeEvent::Said(ToLauncher::Join { version, build })));
            }
            _ => happenings.push(garbled),
        }
    }

    /// Keeps the node's channel, and schedules giving it what it needs to join.
    fn let_in(&mut self, place: usize, process: Option<Pid>, channel: OwnedFd) {
        if self.listen(&channel, Source::Control(place)).is_err() {
            return;
        }
        self.nodes[place].control = Some(channel);
        self.guests.push_back((place, Given::default()));
        let Some(process) = process.filter(|process| *process != self.nodes[place].pid) else { return };
        if let Ok(watch) = pidfd_open(process, PidfdFlags::empty()) {
            let _ = self.listen(&watch, Source::JoinedProcess(place));
            self.nodes[place].joined_process = Some((process.as_raw_nonzero().get(), watch));
        }
    }

    /// Gives nodes that have said hello what they need, as far as the system accepts it.
    fn give(&mut self) {
        while let (Some(handover), Some((place, given))) = (&mut self.handover, self.guests.front_mut()) {
            let Some(channel) = &self.nodes[*place].control else {
                self.guests.pop_front();
                continue;
            };
            match handover.give(*place, channel.as_fd(), given) {
                // Descriptors in flight count against a limit (unix(7), ETOOMANYREFS) until they are
                // received.
                Err(Errno::AGAIN | Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM) => {
                    return self.give_again = Some(Instant::now() + GIVE_INTERVAL);
                }
                // The end of a node that is gone is handled elsewhere.
                Ok(()) | Err(_) => drop(self.guests.pop_front()),
            }
        }
        self.give_again = None;
        if self.guests.is_empty() && self.nodes.iter().all(|node| node.door.is_none()) {
            self.handover = None;
        }
    }

    /// Reads all messages of a node.
    fn read_control(&mut self, place: usize, happenings: &mut Vec<Happening>) {
        let number = self.first + place;
        while let Some(control) = &self.nodes[place].control {
            let received = match rustix::net::recv(
                control,
                &mut self.message[..],
                RecvFlags::DONTWAIT | RecvFlags::TRUNC,
            ) {
                Ok((bytes, received)) if received > 0 => (bytes, received),
                Err(Errno::AGAIN) => return happenings.push(Happening::Drained(number)),
                // The other side closed the channel without reading messages of ours (a ping, say). The error
                // is reported once, before its own last messages.
                Err(Errno::INTR | Errno::CONNRESET) => continue,
                // The other side is gone; its process's exit status tells the rest.
                Ok(_) | Err(_) => {
                    self.nodes[place].control = None;
                    return;
                }
            };
            let (bytes, sent) = received;
            self.nodes[place].silent_looks = 0;
            match control::decode::<ToLauncher>(&self.message[..bytes]) {
                Ok(ToLauncher::Pong) if bytes == sent => {}
                Ok(message) if bytes == sent => {
                    self.note(place, &message);
                    happenings.push(Happening::Node(number, NodeEvent::Said(message)));
                }
                _ => {
                    happenings.push(Happening::Node(number, NodeEvent::Garbled { bytes: bytes as u64 }));
                    self.nodes[place].control = None;
                }
            }
        }
    }

    /// Notes what a message changes about the processes to watch.
    fn note(&mut self, place: usize, message: &ToLauncher) {
        if matches!(message, ToLauncher::Leave { .. })
            && let Some((_, process)) = self.nodes[place].joined_process.take()
        {
            let _ = epoll::delete(&self.events, process);
        }
    }

    /// Handles the end of the process that joined; its wrapper (a shell, `time`) should end soon.
    fn joined_process_ended(&mut self, place: usize, happenings: &mut Vec<Happening>) {
        self.read_control(place, happenings);
        let Some((pid, watch)) = self.nodes[place].joined_process.take() else { return };
        let _ = epoll::delete(&self.events, &watch);
        happenings.push(Happening::Node(self.first + place, NodeEvent::JoinedProcessEnded { pid }));
    }

    /// Sends a message to all nodes.
    pub fn tell(&mut self, message: &ToNode) {
        match message {
            ToNode::Start => self.answers_expected = true,
            ToNode::Close => self.answers_expected = false,
            ToNode::Refused { .. } | ToNode::Job(_) | ToNode::Descriptors | ToNode::Ping | ToNode::Sample => {
            }
        }
        let bytes = control::encode(message);
        for node in &self.nodes {
            // The end of a node that is gone is handled elsewhere.
            if let Some(control) = &node.control {
                let _ = rustix::net::send(control, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            }
        }
    }

    /// Returns what the threads of a node of this machine do, when other nodes no longer hear it.
    pub fn evidence(&self, number: usize) -> Vec<String> {
        let node = number.checked_sub(self.first).and_then(|place| self.nodes.get(place));
        let node = node.filter(|node| !node.ended);
        node.map_or_else(Vec::new, |node| evidence::gather(node.process(), node.shares.as_ref()))
    }

    /// Returns true if a node of this machine has called, which shows that the program will join.
    pub fn has_been_called(&self) -> bool {
        self.nodes.iter().any(|node| node.control.is_some())
    }

    /// Returns when to call [`look`](Self::look) next.
    pub fn next_look(&self) -> Option<Instant> {
        let looks = self.looks.as_ref().filter(|_| self.answers_expected).map(Looks::next);
        looks.into_iter().chain(self.give_again).min()
    }

    /// Retries giving, pings all nodes if it is time, and finds those that have been silent for too long.
    pub fn look(&mut self, happenings: &mut Vec<Happening>) {
        if self.give_again.is_some_and(|due| due <= Instant::now()) {
            self.give();
        }
        if !self.answers_expected || !self.looks.as_mut().is_some_and(Looks::is_due) {
            return;
        }
        for (place, node) in self.nodes.iter_mut().enumerate() {
            let Some(looks) = self.looks.as_ref().filter(|_| !node.ended && !node.told_silent) else {
                continue;
            };
            if node.control.is_none() {
                continue;
            }
            let is_last = looks.is_last(&mut node.silent_looks, 1);
            let pid = node.process();
            if node.silent_looks == FIRST_SILENT_LOOK {
                node.shares = Some(Shares::of(pid));
            }
            if !is_last {
                continue;
            }
            let doing = doing(pid);
            if doing != Doing::Excused {
                node.told_silent = true;
                let evidence = evidence::gather(pid, node.shares.as_ref());
                let event = NodeEvent::Silent { stopped: doing == Doing::Stopped, evidence };
                happenings.push(Happening::Node(self.first + place, event));
            }
        }
        self.tell(&ToNode::Ping);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_name_their_sources() {
        for source in [
            Source::Reports,
            Source::Control(0),
            Source::Control(4095),
            Source::JoinedProcess(7),
            Source::Door(3),
        ] {
            assert_eq!(Source::from_token(source.token()), source);
        }
    }
}
