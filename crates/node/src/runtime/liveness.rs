//! Heartbeats between the nodes of a job. A node that can no longer be reached is reported to the launcher.
//!
//! Time is counted in the service thread's own checks of the fabric, of which there are a few in the time
//! after which a peer counts as dead. So if this process was stopped for a while, its peers do not count as
//! silent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hiroba_base::NodeId;
use hiroba_fabric::Fabric;
use hiroba_wire::Message;
use hiroba_wire::control::{JobDescription, LOOKS_UNTIL_DEAD, ToLauncher};

use crate::runtime::Runtime;

/// The peers that this node expects heartbeats from.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    /// Interval between two checks; `None` where silence means nothing.
    look_every: Option<Duration>,
    /// One node of each other host.
    on_other_hosts: Vec<NodeId>,
    suspicion: Mutex<Suspicion>,
    /// Number of messages sent that were only heartbeats.
    pub(crate) signs_sent: AtomicU64,
    pub(crate) signs_received: AtomicU64,
}

/// The silent peer, and for how many checks in a row.
#[derive(Debug, Default)]
struct Suspicion {
    peer: Option<NodeId>,
    looks: u32,
}

impl Suspicion {
    /// Records the result of one check. Returns the peer once it was silent for the maximum number of checks.
    fn note(&mut self, silent: Option<NodeId>) -> Option<NodeId> {
        self.looks = if silent.is_some() && silent == self.peer { self.looks + 1 } else { 0 };
        self.peer = silent;
        silent.filter(|_| self.looks == LOOKS_UNTIL_DEAD)
    }
}

impl Peers {
    pub(crate) fn new(job: &JobDescription) -> Peers {
        let dead_after = Duration::from_millis(job.dead_after_ms);
        let look_every = (job.dead_after_ms > 0).then(|| dead_after / LOOKS_UNTIL_DEAD);
        Peers { look_every, on_other_hosts: one_of_each_other_host(job), ..Peers::default() }
    }

    /// Returns true if the next check is due. In that case, sets `last` to now.
    pub(crate) fn is_due(&self, last: &mut Instant) -> bool {
        let due = self.look_every.is_some_and(|every| last.elapsed() >= every);
        if due {
            *last = Instant::now();
        }
        due
    }

    fn look(&self, fabric: &dyn Fabric, send: impl Fn(NodeId, &[u8])) -> Option<NodeId> {
        let sign = Message::Alive.encode();
        for peer in &self.on_other_hosts {
            self.signs_sent.fetch_add(1, Ordering::Relaxed);
            send(*peer, &sign);
        }
        let since_last = self.look_every.unwrap_or(Duration::MAX);
        let silent = fabric.longest_silence().filter(|(_, silence)| *silence >= since_last);
        let mut suspicion = self.suspicion.lock().unwrap_or_else(PoisonError::into_inner);
        suspicion.note(silent.map(|(peer, _)| peer))
    }
}

/// Chooses a node of each other host. Nodes of one host choose different nodes, as far as there are enough.
fn one_of_each_other_host(job: &JobDescription) -> Vec<NodeId> {
    let host_of = |node: NodeId| job.hosts.get(node.index()).copied().unwrap_or(0);
    let nodes = || NodeId::all(job.addresses.len() as u16);
    let here = host_of(job.node);
    let mine = nodes().take_while(|node| *node != job.node).filter(|node| host_of(*node) == here).count();
    let mut others: Vec<u16> = nodes().map(host_of).filter(|host| *host != here).collect();
    others.sort_unstable();
    others.dedup();
    let of = |host: u16| {
        let there: Vec<NodeId> = nodes().filter(|node| host_of(*node) == host).collect();
        there[mine % there.len()]
    };
    others.into_iter().map(of).collect()
}

impl Runtime {
    /// Sends a heartbeat to other hosts, and reports a peer that has been silent for too long. Called by the
    /// service thread.
    pub(crate) fn look_after_peers(&self) {
        if !self.has_fabric() {
            return;
        }
        if let (Some(peer), Some(control)) =
            (self.serving.peers.look(self.fabric(), |peer, sign| self.send_to(peer, &[sign])), &self.control)
        {
            control.send(&ToLauncher::Silent { peer, why: self.fabric().why_unconnected(peer) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_silence_in_a_row_counts() {
        let mut suspicion = Suspicion::default();
        let (one, two) = (Some(NodeId(1)), Some(NodeId(2)));
        let mut looks = |silent: Option<NodeId>, times: u32| {
            (0..times).map(|_| suspicion.note(silent)).collect::<Vec<_>>().into_iter().flatten().last()
        };
        assert_eq!(looks(one, LOOKS_UNTIL_DEAD), None);
        assert_eq!(looks(None, 1), None);
        assert_eq!(looks(one, LOOKS_UNTIL_DEAD), None);
        assert_eq!(looks(two, LOOKS_UNTIL_DEAD), None);
        assert_eq!(looks(two, 1), two);
        assert_eq!(looks(two, 100), None, "it is said once");
    }
}
