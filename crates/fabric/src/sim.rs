//! A simulated datagram network under virtual time, and a cluster of links over it.
//!
//! Everything happens in one thread and follows from one seed: the same calls always give the same run. Loss,
//! duplication and reordering act on datagrams, beneath the reliable link. The layers above see delay, and
//! messages of different peers in any order.

use core::cmp::{Ordering, Reverse};
use core::time::Duration;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};

use hiroba_base::{Instant, NodeId, Prng, RngExt, seeded};

use crate::link::{LinkConfig, LinkSet, LinkStatistics};

/// Maximum number of datagrams that wait for a paused node. As with a socket's buffer, further ones are lost.
pub const PAUSED_DATAGRAMS_MAX: usize = 1024;

/// Maximum number of buffers kept for reuse.
const SPARE_BUFFERS_MAX: usize = 64;

/// How the network treats datagrams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimConditions {
    /// The minimum travel time of a datagram.
    pub latency_min: Duration,
    /// The maximum; times are uniform between. Datagrams of one pair keep their order unless `reorder`
    /// strikes.
    pub latency_max: Duration,
    /// The probability that a datagram is lost.
    pub loss: f64,
    /// The probability that a datagram arrives twice.
    pub duplicate: f64,
    /// The probability that a datagram is delayed further, so that others overtake it.
    pub reorder: f64,
    /// The maximum further delay of such a datagram.
    pub reorder_delay_max: Duration,
}

impl Default for SimConditions {
    /// A quiet local network.
    fn default() -> SimConditions {
        SimConditions {
            latency_min: Duration::from_micros(20),
            latency_max: Duration::from_micros(60),
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_delay_max: Duration::from_micros(500),
        }
    }
}

struct Event {
    at: Instant,
    /// Breaks ties by the order of sending.
    number: u64,
    to: NodeId,
    from: NodeId,
    datagram: Vec<u8>,
}

impl Ord for Event {
    fn cmp(&self, other: &Event) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

/// A network of datagrams between `nodes` endpoints.
pub struct SimNetwork {
    conditions: SimConditions,
    rng: Prng,
    events: BinaryHeap<Reverse<Event>>,
    events_made: u64,
    /// When the latest datagram of a pair arrives. Never iterated: its order would not be reproducible.
    latest_arrival: HashMap<(NodeId, NodeId), Instant>,
    paused: Vec<Option<VecDeque<Event>>>,
    cut: BTreeSet<(NodeId, NodeId)>,
    spare: Vec<Vec<u8>>,
}

impl SimNetwork {
    /// Makes a network whose random choices follow from `seed`.
    pub fn new(nodes: u16, seed: u64, conditions: SimConditions) -> SimNetwork {
        SimNetwork {
            conditions,
            rng: seeded(seed),
            events: BinaryHeap::new(),
            events_made: 0,
            latest_arrival: HashMap::new(),
            paused: (0..nodes).map(|_| None).collect(),
            cut: BTreeSet::new(),
            spare: Vec::new(),
        }
    }

    /// Changes how datagrams sent from now on are treated.
    pub fn set_conditions(&mut self, conditions: SimConditions) {
        self.conditions = conditions;
    }

    /// Sends a datagram.
    pub fn send(&mut self, from: NodeId, to: NodeId, datagram: &[u8], now: Instant) {
        if self.rng.random_bool(self.conditions.loss) || self.cut.contains(&(from, to)) {
            return;
        }
        let copies = if self.rng.random_bool(self.conditions.duplicate) { 2 } else { 1 };
        for _ in 0..copies {
            let at = self.arrival(from, to, now);
            let mut buffer = self.spare.pop().unwrap_or_default();
            buffer.extend_from_slice(datagram);
            let number = self.events_made;
            self.events_made += 1;
            self.events.push(Reverse(Event { at, number, to, from, datagram: buffer }));
        }
    }

    fn arrival(&mut self, from: NodeId, to: NodeId, now: Instant) -> Instant {
        let SimConditions { latency_min, latency_max, reorder, reorder_delay_max, .. } = self.conditions;
        let at = now + self.between(latency_min, latency_max);
        if self.rng.random_bool(reorder) {
            return at + self.between(Duration::ZERO, reorder_delay_max);
        }
        let latest = self.latest_arrival.entry((from, to)).or_default();
        *latest = at.max(*latest);
        *latest
    }

    fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let (least, most) = (least.as_nanos() as u64, most.as_nanos() as u64);
        Duration::from_nanos(self.rng.random_range(least..=most.max(least)))
    }

    /// Returns when the next datagram arrives.
    pub fn next_event_at(&self) -> Option<Instant> {
        self.events.peek().map(|event| event.0.at)
    }

    /// Returns the next datagram that has arrived by `now`: its receiver, its sender and its bytes.
    pub fn deliver(&mut self, now: Instant) -> Option<(NodeId, NodeId, Vec<u8>)> {
        while self.next_event_at().is_some_and(|at| at <= now) {
            let Reverse(event) = self.events.pop()?;
            match &mut self.paused[event.to.index()] {
                None => return Some((event.to, event.from, event.datagram)),
                Some(waiting) if waiting.len() < PAUSED_DATAGRAMS_MAX => waiting.push_back(event),
                Some(_) => self.recycle(event.datagram),
            }
        }
        None
    }

    /// Takes back the buffer of a datagram for reuse.
    pub fn recycle(&mut self, mut datagram: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS_MAX {
            datagram.clear();
            self.spare.push(datagram);
        }
    }

    /// Keeps the datagrams that arrive for `node`, which stops reading until it resumes.
    pub fn pause(&mut self, node: NodeId) {
        self.paused[node.index()].get_or_insert_default();
    }

    /// Lets `node` read again. What waited for it arrives at `now`.
    pub fn resume(&mut self, node: NodeId, now: Instant) {
        for event in self.paused[node.index()].take().unwrap_or_default() {
            self.events.push(Reverse(Event { at: now, ..event }));
        }
    }

    /// Returns true if `node` is paused.
    pub fn is_paused(&self, node: NodeId) -> bool {
        self.paused[node.index()].is_some()
    }

    /// Cuts or restores the connection between two nodes: datagrams sent while it is cut are lost.
    pub fn set_partitioned(&mut self, one: NodeId, other: NodeId, partitioned: bool) {
        for pair in [(one, other), (other, one)] {
            if partitioned {
                self.cut.insert(pair);
            } else {
                self.cut.remove(&pair);
            }
        }
    }
}

/// A message that reached its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// The receiver.
    pub to: NodeId,
    /// The sender.
    pub from: NodeId,
    /// The message.
    pub message: Vec<u8>,
}

/// The reliable links of all nodes over a [`SimNetwork`], under one virtual clock.
///
/// ```
/// use hiroba_base::NodeId;
/// use hiroba_fabric::{SimCluster, SimConditions};
///
/// let mut cluster = SimCluster::new(2, 7, SimConditions { loss: 0.3, ..SimConditions::default() });
/// cluster.send(NodeId(0), NodeId(1), b"fetch");
/// let delivered = cluster.step().unwrap();
/// assert_eq!((delivered.to, delivered.message.as_slice()), (NodeId(1), &b"fetch"[..]));
/// ```
pub struct SimCluster {
    network: SimNetwork,
    links: Vec<LinkSet>,
    now: Instant,
    delivered: VecDeque<Delivered>,
    timers: BinaryHeap<Reverse<(Instant, NodeId)>>,
    /// Each node's valid entry among the timers.
    timer_of: Vec<Option<Instant>>,
}

impl SimCluster {
    /// Makes a cluster with the default link configuration.
    pub fn new(nodes: u16, seed: u64, conditions: SimConditions) -> SimCluster {
        SimCluster::with_config(nodes, seed, conditions, LinkConfig::default())
    }

    /// Makes a cluster whose links are limited by `config`.
    pub fn with_config(nodes: u16, seed: u64, conditions: SimConditions, config: LinkConfig) -> SimCluster {
        SimCluster {
            network: SimNetwork::new(nodes, seed, conditions),
            links: NodeId::all(nodes).map(|node| LinkSet::new(node, nodes, config)).collect(),
            now: Instant::ORIGIN,
            delivered: VecDeque::new(),
            timers: BinaryHeap::new(),
            timer_of: vec![None; usize::from(nodes)],
        }
    }

    /// Returns the virtual time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns the network, to change its conditions or partition it.
    pub fn network(&mut self) -> &mut SimNetwork {
        &mut self.network
    }

    /// Returns a node's links, for inspection.
    pub fn links(&self, node: NodeId) -> &LinkSet {
        &self.links[node.index()]
    }

    /// Sends a message.
    ///
    /// # Panics
    ///
    /// Panics as [`LinkSet::send`].
    pub fn send(&mut self, from: NodeId, to: NodeId, message: &[u8]) {
        self.links[from.index()].send(to, &[message]);
        self.flush(from);
    }

    /// Stops a node: it reads nothing, and its timers do not run.
    pub fn pause(&mut self, node: NodeId) {
        self.network.pause(node);
    }

    /// Resumes a stopped node.
    pub fn resume(&mut self, node: NodeId) {
        self.network.resume(node, self.now);
        self.flush(node);
    }

    /// Advances to the next message that reaches its node. Returns `None` when nothing more will happen.
    ///
    /// While a node is paused or cut off, messages to it are retransmitted forever: use
    /// [`step_until`](SimCluster::step_until) then.
    pub fn step(&mut self) -> Option<Delivered> {
        self.step_until(Instant::from_nanos(u64::MAX))
    }

    /// Advances like [`step`](SimCluster::step), but not beyond `limit`, which becomes the time if later
    /// events remain.
    pub fn step_until(&mut self, limit: Instant) -> Option<Delivered> {
        loop {
            if let Some(delivered) = self.delivered.pop_front() {
                return Some(delivered);
            }
            let timer = self.timers.peek().map(|timer| timer.0.0);
            let next = match (self.network.next_event_at(), timer) {
                (Some(event), Some(timer)) => event.min(timer),
                (event, timer) => event.or(timer)?,
            };
            if next > limit {
                self.now = self.now.max(limit);
                return None;
            }
            self.now = self.now.max(next);
            if let Some((to, from, datagram)) = self.network.deliver(self.now) {
                // The link counts rejections; they have no other use here.
                let _ = self.links[to.index()].handle_datagram(from, &datagram, self.now);
                self.network.recycle(datagram);
                self.flush(to);
            }
            self.run_timers();
        }
    }

    fn run_timers(&mut self) {
        while let Some(Reverse((deadline, node))) = self.timers.peek().copied() {
            if deadline > self.now {
                return;
            }
            self.timers.pop();
            if self.timer_of[node.index()] != Some(deadline) {
                continue;
            }
            self.timer_of[node.index()] = None;
            if !self.network.is_paused(node) {
                self.links[node.index()].handle_timeout(self.now);
                self.flush(node);
            }
        }
    }

    /// Sends what a node has to transmit and delivers what it has received.
    fn flush(&mut self, node: NodeId) {
        let links = &mut self.links[node.index()];
        while let Some((to, datagram)) = links.transmit(self.now) {
            self.network.send(node, to, datagram, self.now);
        }
        while let Some((from, message)) = links.poll_message() {
            self.delivered.push_back(Delivered { to: node, from, message });
        }
        let timer = &mut self.timer_of[node.index()];
        if let Some(deadline) = links.poll_timeout()
            && timer.is_none_or(|earlier| deadline < earlier)
        {
            *timer = Some(deadline);
            self.timers.push(Reverse((deadline, node)));
        }
    }

    /// Returns true if every message sent has been acknowledged.
    pub fn is_idle(&self) -> bool {
        self.links.iter().all(LinkSet::is_idle)
    }

    /// Returns the sums of all links' counters.
    pub fn statistics(&self) -> LinkStatistics {
        let mut sum = LinkStatistics::default();
        for links in &self.links {
            sum += links.statistics();
        }
        sum
    }
}
