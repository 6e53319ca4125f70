//! What nodes report and how they end, and what both mean for the job.

use std::time::{Duration, Instant};

use hiroba_base::NodeId;
use hiroba_trace::NodeStatistics;
use hiroba_wire::agent::{NodeEvent, ToAgent};
use hiroba_wire::control::{ToLauncher, ToNode};

use super::{END_GRACE, EndLater, Ending, Phase, Supervisor};
use crate::failure::{STATUS_HIROBA, say, say_with_details};
use crate::run::deaths;
use crate::run::liveness::in_words;
use crate::run::local::Happening;
use crate::run::output::Sink;
use crate::run::signals;
use crate::run::status::{End, all_nodes, name_nodes};

/// How long the others may run on after a node exited with status 0 without leaving.
const SILENT_EXIT_GRACE: Duration = Duration::from_millis(500);
/// How long the others may run on after a node failed before it joined: a usage error fails on all nodes
/// alike.
const EARLY_FAILURE_GRACE: Duration = Duration::from_secs(1);
/// How long a wrapper may outlive the process that joined the job and died.
const WRAPPER_GRACE: Duration = Duration::from_millis(500);
/// How long the agent of a host may take to report what the threads of a node do that another host no longer
/// hears.
const EXAMINATION_GRACE: Duration = Duration::from_secs(1);
/// How long another reason may take to arrive after a node has reported that it no longer hears another.
const CUT_GRACE: Duration = Duration::from_millis(300);
/// Lines of evidence about a silent node that are shown; an agent sends no more.
const EVIDENCE_LINES_MAX: usize = 20;
/// Jobs with fewer nodes start within a moment; if they do not, they wait for the program.
const NODES_THAT_TAKE_LONG: usize = 9;
/// Remarks of nodes that are printed; more are dropped.
const REMARKS_MAX: usize = 100;

impl Supervisor {
    /// Handles what happened to nodes. Their ends are judged together, when all simultaneous events are
    /// known.
    pub(super) fn handle_all(&mut self, happenings: Vec<Happening>) {
        let mut ended = Vec::new();
        for happening in happenings {
            let (number, event) = match happening {
                Happening::Drained(number) => {
                    self.findings.waits.drained(number);
                    continue;
                }
                Happening::Node(number, event) => (number, event),
            };
            match event {
                NodeEvent::Said(message) => self.handle_message(number, message),
                NodeEvent::Garbled { bytes } => self.handle_garbled(number, bytes),
                NodeEvent::JoinedProcessEnded { pid } => self.joined_process_ended(number, pid),
                NodeEvent::Silent { stopped, evidence } => self.handle_silence(number, stopped, &evidence),
                NodeEvent::Examined { evidence } => self.handle_examined(evidence),
                NodeEvent::OutOfMemory { sentence } => self.findings.out_of_memory = Some((number, sentence)),
                NodeEvent::Exited { status } => ended.extend(self.note_end(number, End::Exited(status))),
                NodeEvent::Killed { signal } => ended.extend(self.note_end(number, End::Killed(signal))),
                NodeEvent::Output { to_error, bytes } => {
                    self.output.labeller.take(Sink::of(to_error), number, &bytes)
                }
                NodeEvent::OutputEnded { to_error } => self.output.labeller.end(Sink::of(to_error), number),
            }
        }
        if !ended.is_empty() {
            self.output.labeller.catch_up();
        }
        for number in ended {
            self.judge(number);
        }
    }

    /// Records how a node has ended, unless it was given up before.
    fn note_end(&mut self, number: usize, mut end: End) -> Option<usize> {
        if self.nodes[number].end.is_some() {
            return None;
        }
        if let Some(Ending { wish: Some(signal), killed: true, .. }) = self.conclusion.ending {
            // It had to be killed because it did not end after the signal that the user sent.
            end = if end == End::Killed(libc::SIGKILL) { End::Killed(signal) } else { end };
        }
        let faulted = self.conclusion.ending.as_ref().is_some_and(|ending| ending.wish.is_none());
        self.nodes[number].end = Some(end);
        self.nodes[number].ended_by_launcher = faulted;
        self.counts.alive -= 1;
        Some(number)
    }

    fn handle_garbled(&mut self, number: usize, bytes: u64) {
        let why = format!(
            "node {number} sent {bytes} bytes on its control channel that are not a message; was its program \
             built with another version of Hiroba? ending the job"
        );
        self.end_job(&why, Some(STATUS_HIROBA));
    }

    /// Decides what a node's end means for the job.
    fn judge(&mut self, number: usize) {
        let node = &self.nodes[number];
        let Some(end) = node.end else { return };
        if self.conclusion.ending.is_some() {
            return;
        }
        let mut told = format!("{} {}", self.name_node(number), end.describe());
        if let Some((_, sentence)) = self.findings.out_of_memory.take_if(|(node, _)| *node == number) {
            told = format!("{told}, {sentence}");
        } else if node.phase == Phase::Joined
            && end.is_of_the_programs_making()
            && !self.findings.explained.contains(&number)
        {
            told = format!("{told}; {}", deaths::look_closer(number));
        }
        let others = self.counts.alive > 0;
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
                if self.counts.joined > 0 {
                    let forced = if status == 0 { Some(STATUS_HIROBA) } else { None };
                    self.end_job(&format!("{early}, so that the job cannot start; ending it"), forced);
                } else if status != 0 {
                    self.end_later(EARLY_FAILURE_GRACE, early, None);
                }
            }
        }
    }

    /// Ends the job: says why, asks the nodes to end, and kills them a little later.
    pub(super) fn end_job(&mut self, why: &str, forced_status: Option<u8>) {
        if self.conclusion.ending.is_some() {
            return;
        }
        self.output.labeller.catch_up();
        say(why);
        self.end_quietly(forced_status);
    }

    /// Ends the job when the reason has been printed.
    fn end_quietly(&mut self, forced_status: Option<u8>) {
        self.conclusion.later = None;
        self.conclusion.forced_status = forced_status;
        let now = Instant::now();
        self.conclusion.ending =
            Some(Ending { since: now, kill_at: now + END_GRACE, killed: false, wish: None });
        self.signal_local_nodes(libc::SIGTERM);
        self.signal_hosts(libc::SIGTERM);
    }

    /// Ends the job after `grace` unless it has ended by itself. The first reason stays.
    fn end_later(&mut self, grace: Duration, why: String, forced_status: Option<u8>) {
        self.end_later_with(grace, why, Vec::new(), forced_status);
    }

    /// Does the same with lines of evidence, which may no longer be available then.
    fn end_later_with(
        &mut self,
        grace: Duration,
        why: String,
        evidence: Vec<String>,
        forced_status: Option<u8>,
    ) {
        if self.conclusion.ending.is_none() && self.conclusion.later.is_none() {
            let at = Instant::now() + grace;
            self.conclusion.later = Some(EndLater { at, why, evidence, forced_status });
        }
    }

    /// Ends the job for a reason that has waited long enough.
    pub(super) fn end_now(&mut self, later: EndLater) {
        let EndLater { why, evidence, forced_status, .. } = later;
        if self.conclusion.ending.is_none() {
            self.output.labeller.catch_up();
            say_with_details(&format!("{why}; ending the job"), shown(&evidence));
            self.end_quietly(forced_status);
        }
    }

    /// Prints the reason for a job that ended without a message so far.
    pub(super) fn report_end(&mut self) {
        if let Some(EndLater { why, evidence, .. }) =
            self.conclusion.later.take().filter(|_| self.counts.joined > 0)
        {
            return say_with_details(&why, shown(&evidence));
        }
        if let Some(ending) = &self.conclusion.ending {
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
        if self.counts.joined == 0 {
            let on = match self.nodes.len() {
                1 => String::new(),
                nodes => format!(" on {}", all_nodes(nodes)),
            };
            say(&format!(
                "the program ended{on} without having joined the job (it did not call hiroba_init, or that failed); \
                 build it with 'hiroba cc' and call hiroba_init, {}or run it without Hiroba",
                if self.findings.has_own_threads {
                    "or run its threads on all nodes with --pthread, "
                } else {
                    ""
                }
            ));
        }
    }

    fn handle_message(&mut self, number: usize, message: ToLauncher) {
        match message {
            ToLauncher::Join { version, build } => self.handle_join(number, &version, &build),
            ToLauncher::Leave { statistics_json } => {
                self.nodes[number].phase = Phase::Left;
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
                if self.findings.waits.report(number, report) {
                    self.handle_endless_wait();
                }
            }
            ToLauncher::Race(report) => {
                if let Some(told) = self.findings.races.note(&report, &self.findings.symbols)
                    && let Some((head, details)) = told.split_first()
                {
                    say_with_details(head, details);
                }
            }
            ToLauncher::LookedForRaces(account) => self.findings.races.note_looked(number, account),
            ToLauncher::Remark { sentence } => {
                self.remarks += 1;
                if self.remarks <= REMARKS_MAX {
                    say(&format!("node {number}: {sentence}"));
                }
            }
            ToLauncher::BadAccess(access) => {
                self.output.labeller.catch_up();
                say(&deaths::bad_access(number, &access, &self.findings.symbols));
                self.findings.explained.insert(number);
            }
            ToLauncher::Fatal { sentence } => {
                self.end_job(&format!("node {number}: {sentence}"), Some(STATUS_HIROBA));
            }
            ToLauncher::Silent { peer, why } => self.handle_cut(number, peer, why),
            ToLauncher::Sample { statistics_json } => {
                // A missing sample of the line on the terminal deserves no message.
                if let (Some(progress), Ok(account)) =
                    (&mut self.progress, serde_json::from_str(&statistics_json))
                {
                    progress.take(number, account);
                }
            }
            // Handled by the code that sent the ping, and by the code that lets nodes in.
            ToLauncher::Pong | ToLauncher::Hello { .. } => {}
        }
    }

    /// Handles a deadlock: every thread of every node waits for another.
    fn handle_endless_wait(&mut self) {
        // A thread that waits for a node that is gone has been told so, or is about to be.
        let whole = self.nodes.iter().all(|node| node.phase == Phase::Joined && node.end.is_none());
        if !whole || self.conclusion.ending.is_some() || self.conclusion.later.is_some() {
            return;
        }
        let nodes = self.nodes.len();
        let of = if nodes == 1 { String::new() } else { format!(" of {}", all_nodes(nodes)) };
        let why = format!("deadlock: every thread{of} waits for another; ending the job");
        say_with_details(&why, &self.findings.waits.describe(&self.findings.symbols));
        self.end_quietly(Some(STATUS_HIROBA));
    }

    fn handle_join(&mut self, number: usize, version: &str, build: &str) {
        const OURS: &str = env!("CARGO_PKG_VERSION");
        if (version, build) != (OURS, hiroba_node::BUILD) {
            let (theirs, ours) = if version == OURS {
                (format!("build {build} of Hiroba {version}"), format!("build {}", hiroba_node::BUILD))
            } else {
                (format!("Hiroba {version}"), OURS.to_owned())
            };
            let why = format!(
                "node {number}'s program was built with {theirs}, this is {ours}; build it again with 'hiroba cc'"
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
        self.counts.joined += 1;
        if self.counts.joined == self.nodes.len() {
            self.tell_all(&ToNode::Start);
        }
        if let Some(gone) = self.numbers(|node| node.phase == Phase::Launched && node.end.is_some()).first() {
            self.judge(*gone);
        }
    }

    /// Asks the nodes for their accounts and draws the line, if it is time.
    pub(super) fn show_progress(&mut self) {
        let Some(progress) = &mut self.progress else { return };
        if !progress.is_due() {
            return;
        }
        progress.show(self.counts);
        if self.counts.joined == self.nodes.len() && self.counts.alive > 0 {
            self.tell_all(&ToNode::Sample);
        }
    }

    /// Says how far the start has come, if it takes long because there are many nodes.
    pub(super) fn tell_of_start(&mut self) {
        let (all, joined) = (self.nodes.len(), self.counts.joined);
        let is_known = joined > 0 || self.local.has_been_called();
        let is_starting =
            is_known && joined < all && self.counts.alive == all && self.conclusion.ending.is_none();
        let is_shown = self.progress.is_some() || all < NODES_THAT_TAKE_LONG;
        if self.starting.is_too_long() && is_starting && !is_shown {
            say(&format!("starting: {joined} of {all} nodes have joined"));
        }
    }

    /// Returns when that may be due.
    pub(super) fn next_word_of_start(&self) -> Option<Instant> {
        let starts = self.counts.joined < self.nodes.len() && self.nodes.len() >= NODES_THAT_TAKE_LONG;
        starts.then(|| self.starting.due())
    }

    fn tell_all(&mut self, message: &ToNode) {
        self.local.tell(message);
        self.tell_hosts(message);
    }

    /// Handles the end of the process that joined; its wrapper (a shell, `time`) should end soon.
    fn joined_process_ended(&mut self, number: usize, pid: i32) {
        if self.nodes[number].phase == Phase::Joined && self.nodes[number].end.is_none() {
            let why =
                format!("process {pid} of node {number} ended without leaving the job that it had joined");
            self.end_later(WRAPPER_GRACE, why, Some(STATUS_HIROBA));
        }
    }

    /// Handles a node that answers no pings.
    fn handle_silence(&mut self, number: usize, stopped: bool, evidence: &[String]) {
        let who = self.name_node(number);
        let silence = in_words(self.watched.dead_after.unwrap_or_default());
        let why = if stopped {
            format!("{who} is stopped and has answered nothing for {silence}")
        } else {
            format!("{who} has answered nothing for {silence}: its runtime hangs, or gets no processor")
        };
        self.give_up(&format!("{why}; ending the job (see --dead-after)"), evidence);
    }

    /// Ends the job because of a silent node, with the evidence about it, which will not be available later.
    fn give_up(&mut self, why: &str, evidence: &[String]) {
        if self.conclusion.ending.is_none() {
            say_with_details(why, shown(evidence));
            self.end_quietly(Some(STATUS_HIROBA));
        }
    }

    /// Handles a report that a node no longer hears another. Whether that one was cut off, or is gone for a
    /// reason that its own side is about to report, shows in the next moment.
    fn handle_cut(&mut self, number: usize, peer: NodeId, unconnected: Option<String>) {
        if peer.index() >= self.nodes.len() {
            return;
        }
        let (who, whom) = (self.name_node(number), self.name_node(peer.index()));
        let silence = in_words(self.watched.dead_after.unwrap_or_default());
        let cause = match unconnected {
            Some(unconnected) => format!("{unconnected}; is there a firewall between them?"),
            None => "the network between them is cut, or the latter hangs".to_owned(),
        };
        let why = format!("{who} has heard nothing of {whom} for {silence}: {cause} (see --dead-after)");
        let host = self.nodes[peer.index()].host;
        if let Some(host) =
            host.filter(|_| self.conclusion.ending.is_none() && self.conclusion.later.is_none())
        {
            self.hosts[host].send(&ToAgent::Examine { node: peer });
        }
        let (grace, evidence) = match host {
            None => (CUT_GRACE, self.local.evidence(peer.index())),
            Some(_) => (EXAMINATION_GRACE, Vec::new()),
        };
        self.end_later_with(grace, why, evidence, Some(STATUS_HIROBA));
    }

    /// Handles the report of a host's agent on the threads of a node that another node no longer hears.
    fn handle_examined(&mut self, evidence: Vec<String>) {
        if let Some(later) = &mut self.conclusion.later {
            later.evidence = evidence;
            later.at = later.at.min(Instant::now() + CUT_GRACE);
        }
    }
}

/// Returns as many lines of evidence as are shown.
fn shown(evidence: &[String]) -> &[String] {
    evidence.get(..EVIDENCE_LINES_MAX).unwrap_or(evidence)
}
