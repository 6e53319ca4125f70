//! The supervisor's part for other hosts: reports of their agents, and the end of a job that loses a host.

use std::io::Write;
use std::time::{Duration, Instant};

use hiroba_wire::agent::{FromAgent, NodeEvent, ToAgent};
use hiroba_wire::control::ToNode;

use super::{AGENT_GRACE, Node, Phase, Source, Stop, Supervisor};
use crate::failure::{STATUS_HIROBA, say, system_words};
use crate::run::channel::Closed;
use crate::run::liveness::in_words;
use crate::run::local::Happening;
use crate::run::output::Sink;
use crate::run::status::End;

/// How long an agent may take, once all nodes have ended, to pass on the last of their output and to end.
const FINISH_LIMIT: Duration = Duration::from_secs(5);

impl Supervisor {
    /// Indexes all nodes by their numbers, those of this machine from `first` on.
    pub(super) fn number_nodes(&mut self, first: usize) {
        let node =
            |pid, host| Node { pid, host, phase: Phase::Launched, end: None, ended_by_launcher: false };
        let mut numbered: Vec<(usize, Node)> =
            self.local.pids().enumerate().map(|(place, pid)| (first + place, node(pid, None))).collect();
        for (place, host) in self.hosts.iter().enumerate() {
            let pids = host.answers.pids.iter().flatten();
            numbered.extend(pids.enumerate().map(|(at, pid)| (host.first + at, node(*pid, Some(place)))));
        }
        numbered.sort_by_key(|(number, _)| *number);
        self.nodes.extend(numbered.into_iter().map(|(_, node)| node));
    }

    pub(super) fn listen_to_hosts(&mut self) -> Result<(), Stop> {
        for (place, host) in self.hosts.iter().enumerate() {
            if let Some((channel, _)) = host.channel.as_ref().and_then(|channel| channel.interests().next()) {
                self.listen(channel, Source::Agent(place))?;
            }
            if let Some(errors) = host.errors() {
                self.listen(errors, Source::AgentErrors(place))?;
            }
            for number in host.first..host.first + host.nodes {
                self.output.labeller.add_remote(number, self.watched.label);
            }
        }
        Ok(())
    }

    pub(super) fn open_gates_of_hosts(&mut self) {
        self.hosts.iter_mut().for_each(|host| host.send(&ToAgent::Open));
    }

    pub(super) fn tell_hosts(&mut self, message: &ToNode) {
        self.hosts.iter_mut().for_each(|host| host.send(&ToAgent::Tell(message.clone())));
    }

    pub(super) fn signal_hosts(&mut self, signal: i32) {
        self.hosts.iter_mut().for_each(|host| host.send(&ToAgent::Signal(signal)));
    }

    /// Formats a node as "node 1 (pid 77)" or "node 1 (pid 77 on host h2)".
    pub(super) fn name_node(&self, number: usize) -> String {
        let node = &self.nodes[number];
        match node.host {
            None => format!("node {number} (pid {})", node.pid),
            Some(host) => format!("node {number} (pid {} on host {})", node.pid, self.hosts[host].name),
        }
    }

    /// Reads and handles the messages of an agent.
    pub(super) fn read_agent(&mut self, place: usize) -> Result<(), Stop> {
        let Some(channel) = &mut self.hosts[place].channel else { return Ok(()) };
        let received = channel.receive();
        let (mut messages, mut nonsense) = (Vec::new(), None);
        loop {
            match channel.next::<FromAgent>() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => {
                    nonsense = Some(error);
                    break;
                }
            }
        }
        if !messages.is_empty() {
            self.hosts[place].silent_looks = 0;
        }
        let mut happenings = Vec::new();
        for message in messages {
            self.take_agent_message(place, message, &mut happenings)?;
        }
        self.handle_all(happenings);
        let name = self.hosts[place].name.clone();
        if let Some(error) = nonsense {
            self.lose_host(place, &format!("the agent of host {name} sent an invalid message: {error}"));
        } else if received == Err(Closed) {
            if self.agents.finish_by.is_some() {
                self.hosts[place].channel = None;
                return Ok(());
            }
            let last_words = self.hosts[place].last_words();
            self.lose_host(place, &format!("the connection to host {name} was lost: {last_words}"));
        }
        Ok(())
    }

    fn take_agent_message(
        &mut self,
        place: usize,
        message: FromAgent,
        happenings: &mut Vec<Happening>,
    ) -> Result<(), Stop> {
        let host = &mut self.hosts[place];
        let here = host.first..host.first + host.nodes;
        match message {
            FromAgent::Node { node, event } if here.contains(&node.index()) => {
                if let NodeEvent::Output { bytes, .. } = &event {
                    host.taken_bytes = host.taken_bytes.saturating_add(bytes.len() as u32);
                }
                happenings.push(Happening::Node(node.index(), event));
                Ok(())
            }
            FromAgent::Trace { node, bytes } if here.contains(&node.index()) => {
                self.keep_trace(node.index(), &bytes);
                Ok(())
            }
            FromAgent::Pong { number } => {
                if host.asked_in_round == (number, self.findings.waits.round()) {
                    happenings.extend(here.map(Happening::Drained));
                }
                Ok(())
            }
            FromAgent::NotExecuted { errno } => Err(Stop::NotExecuted(errno)),
            FromAgent::Refused { sentence, .. } => {
                let why = format!("host {}: {sentence}; ending the job", host.name);
                self.end_job(&why, Some(STATUS_HIROBA));
                Ok(())
            }
            FromAgent::Node { .. }
            | FromAgent::Trace { .. }
            | FromAgent::Bound { .. }
            | FromAgent::Ready { .. } => {
                let name = host.name.clone();
                self.lose_host(
                    place,
                    &format!("the agent of host {name} sent a message that it must not send now"),
                );
                Ok(())
            }
        }
    }

    /// Writes the next piece of a node's trace. Sending it counts as a sign of life of the agent.
    fn keep_trace(&mut self, node: usize, bytes: &[u8]) {
        self.agents.finish_by = self.agents.finish_by.map(|_| Instant::now() + FINISH_LIMIT);
        let Some(file) = self.traces.get_mut(&node) else { return };
        if let Err(error) = file.write_all(bytes) {
            let why = system_words(&error);
            say(&format!("cannot write the trace of node {node}, which is cut off here: {why}"));
            self.traces.remove(&node);
        }
    }

    /// Gives up a host that cannot be reached any more, and ends the job.
    pub(super) fn lose_host(&mut self, place: usize, why: &str) {
        let host = &mut self.hosts[place];
        host.kill();
        for number in host.first..host.first + host.nodes {
            for sink in Sink::ALL {
                self.output.labeller.end(sink, number);
            }
            let node = &mut self.nodes[number];
            if node.end.is_none() {
                node.end = Some(End::Killed(libc::SIGKILL));
                node.ended_by_launcher = true;
                self.counts.alive -= 1;
            }
        }
        let ending = if self.counts.alive > 0 { "; ending the job" } else { "" };
        self.end_job(&format!("{why}{ending}"), Some(STATUS_HIROBA));
    }

    /// Returns when to call [`look_after_hosts`](Self::look_after_hosts) next.
    pub(super) fn next_look_after_hosts(&self) -> Option<Instant> {
        let connected = self.hosts.iter().any(|host| host.channel.is_some());
        if self.agents.finish_by.is_some() || !connected {
            return self.agents.finish_by;
        }
        let give_up = self.conclusion.ending.as_ref().filter(|ending| ending.killed);
        let give_up = give_up.map(|ending| ending.kill_at + AGENT_GRACE);
        [self.agents.looks.next()].into_iter().chain(give_up).min()
    }

    /// Writes what waits, lets agents send more, and pings them when it is time.
    pub(super) fn look_after_hosts(&mut self) {
        let room = Sink::ALL.iter().all(|sink| !self.output.labeller.is_full(*sink));
        for host in &mut self.hosts {
            if room && host.taken_bytes > 0 {
                let bytes = std::mem::take(&mut host.taken_bytes);
                host.send(&ToAgent::Taken { bytes });
            }
            // A lost connection is noticed when it is read.
            let _ = host.channel.as_mut().map(|channel| channel.flush());
        }
        let overdue = self
            .conclusion
            .ending
            .as_ref()
            .is_some_and(|ending| ending.killed && Instant::now() >= ending.kill_at + AGENT_GRACE);
        for place in 0..self.hosts.len() {
            if overdue && self.agents.finish_by.is_none() && self.hosts[place].channel.is_some() {
                self.lose_host(place, "");
            }
        }
        if self.agents.finish_by.is_none() && !self.hosts.is_empty() && self.agents.looks.is_due() {
            self.ask_hosts();
        }
    }

    fn ask_hosts(&mut self) {
        self.agents.pings += 1;
        let round = (self.agents.pings, self.findings.waits.round());
        let mut silent = Vec::new();
        for (place, host) in self.hosts.iter_mut().enumerate() {
            if host.channel.is_none() {
                continue;
            }
            if self.agents.looks.is_last(&mut host.silent_looks, 1) {
                silent.push(place);
            }
            host.asked_in_round = round;
            if host.channel.as_ref().is_some_and(|channel| !channel.is_full()) {
                host.send(&ToAgent::Ping { number: self.agents.pings });
            }
        }
        let silence = in_words(self.watched.dead_after.unwrap_or_default());
        for place in silent {
            let name = self.hosts[place].name.clone();
            self.lose_host(
                place,
                &format!(
                    "nothing has been heard of host {name} for {silence}: it is down, cut off or stopped (see --dead-after)"
                ),
            );
        }
    }

    /// Lets the agents end what nodes left behind and pass on the last of the output, and waits for them to
    /// end.
    pub(super) fn dismiss_hosts(&mut self) -> Result<(), Stop> {
        self.agents.finish_by = Some(Instant::now() + FINISH_LIMIT);
        self.hosts.iter_mut().for_each(|host| host.send(&ToAgent::Finish));
        while self.hosts.iter().any(|host| host.channel.is_some())
            && self.agents.finish_by.is_some_and(|give_up| Instant::now() < give_up)
        {
            self.turn()?;
        }
        for place in 0..self.hosts.len() {
            self.hosts[place].kill();
            for number in self.hosts[place].first..self.hosts[place].first + self.hosts[place].nodes {
                Sink::ALL.into_iter().for_each(|sink| self.output.labeller.end(sink, number));
            }
        }
        Ok(())
    }
}
