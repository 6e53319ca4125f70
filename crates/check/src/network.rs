//! Simulated networks: every message arrives once, and one sender's messages to one receiver arrive in order.
//!
//! The first two begin above the link, where only delay and the order of different peers' messages vary; they
//! are fast and explore much. The third runs the real reliable link over datagrams that are lost, doubled and
//! reordered.

use core::time::Duration;
use std::collections::VecDeque;

use hiroba_base::{NodeId, Prng, RngExt};
use hiroba_fabric::{SimCluster, SimConditions};

/// A message in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parcel {
    /// The sender.
    pub from: NodeId,
    /// The receiver.
    pub to: NodeId,
    /// The encoded message.
    pub bytes: Vec<u8>,
}

/// Carries messages between simulated nodes.
pub trait Network {
    /// Takes a message. An `astray` message leaves the order of its link and arrives later; only planted bugs
    /// send such messages.
    fn send(&mut self, parcel: Parcel, astray: bool);

    /// Returns the next message to arrive; `None` if none is in flight.
    fn deliver(&mut self, random: &mut Prng) -> Option<Parcel>;

    /// Returns the links, by sender and receiver, with messages on them, if the network lets others choose.
    fn links(&self) -> Vec<(NodeId, NodeId)> {
        Vec::new()
    }

    /// Returns the next message of a link.
    fn deliver_from(&mut self, _link: (NodeId, NodeId)) -> Option<Parcel> {
        None
    }

    /// Returns a reference to that message.
    fn first_of(&self, _link: (NodeId, NodeId)) -> Option<&Parcel> {
        None
    }

    /// Returns the messages on those links.
    fn under_way(&self) -> Vec<&Parcel> {
        Vec::new()
    }

    /// Returns the number of messages in flight.
    fn len(&self) -> usize;

    /// Returns true if no message is in flight.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One queue for all messages, for runs that count instead of explore.
#[derive(Debug, Default)]
pub struct DirectNetwork {
    queue: VecDeque<Parcel>,
}

impl Network for DirectNetwork {
    fn send(&mut self, parcel: Parcel, _: bool) {
        self.queue.push_back(parcel);
    }

    fn deliver(&mut self, _: &mut Prng) -> Option<Parcel> {
        self.queue.pop_front()
    }

    fn len(&self) -> usize {
        self.queue.len()
    }
}

/// A queue for each pair of nodes. Which one delivers next is drawn, and some links are much slower than
/// others, so that messages of different senders overtake each other in every way.
#[derive(Debug)]
pub struct ShuffledNetwork {
    nodes: u16,
    /// By sender and receiver; after these, the same again for messages that have gone astray.
    queues: Vec<(u32, VecDeque<Parcel>)>,
    under_way: usize,
}

impl ShuffledNetwork {
    /// Makes a network whose links' speeds are drawn.
    pub fn new(nodes: u16, random: &mut Prng) -> ShuffledNetwork {
        let links = usize::from(nodes).pow(2);
        let orderly = (0..links).map(|_| ([1, 16, 256][random.random_range(0..3)], VecDeque::new()));
        let mut queues: Vec<_> = orderly.collect();
        queues.extend((0..links).map(|_| (2, VecDeque::new())));
        ShuffledNetwork { nodes, queues, under_way: 0 }
    }
}

impl Network for ShuffledNetwork {
    fn send(&mut self, parcel: Parcel, astray: bool) {
        let nodes = usize::from(self.nodes);
        let link = parcel.from.index() * nodes + parcel.to.index();
        self.queues[link + usize::from(astray) * nodes * nodes].1.push_back(parcel);
        self.under_way += 1;
    }

    fn deliver(&mut self, random: &mut Prng) -> Option<Parcel> {
        let total: u32 =
            self.queues.iter().filter(|(_, queue)| !queue.is_empty()).map(|(weight, _)| weight).sum();
        if total == 0 {
            return None;
        }
        let mut drawn = random.random_range(0..total);
        let mut busy = self.queues.iter_mut().filter(|(_, queue)| !queue.is_empty());
        let (_, queue) = busy.find(|(weight, _)| {
            let chosen = drawn < *weight;
            drawn = drawn.saturating_sub(*weight);
            chosen
        })?;
        self.under_way -= 1;
        queue.pop_front()
    }

    fn len(&self) -> usize {
        self.under_way
    }
}

/// The reliable link over a simulated network of datagrams, under virtual time.
pub struct LossyNetwork {
    cluster: SimCluster,
    under_way: usize,
}

impl LossyNetwork {
    /// Makes a network whose faults (loss, duplication, reordering, each absent, rare or frequent) are drawn.
    pub fn new(nodes: u16, random: &mut Prng) -> LossyNetwork {
        let mut vice = || [0.0, 0.05, 0.25][random.random_range(0..3)];
        let (loss, duplicate, reorder) = (vice(), vice(), vice());
        let latency_max = Duration::from_micros([50, 5000][random.random_range(0..2)]);
        let conditions = SimConditions { loss, duplicate, reorder, latency_max, ..SimConditions::default() };
        LossyNetwork { cluster: SimCluster::new(nodes, random.random(), conditions), under_way: 0 }
    }
}

impl Network for LossyNetwork {
    /// The link restores the order, so no message can go astray here.
    fn send(&mut self, parcel: Parcel, _: bool) {
        self.under_way += 1;
        self.cluster.send(parcel.from, parcel.to, &parcel.bytes);
    }

    fn deliver(&mut self, _: &mut Prng) -> Option<Parcel> {
        let delivered = self.cluster.step()?;
        self.under_way -= 1;
        Some(Parcel { from: delivered.from, to: delivered.to, bytes: delivered.message })
    }

    fn len(&self) -> usize {
        self.under_way
    }
}

#[cfg(test)]
mod tests {
    use hiroba_base::seeded;

    use super::*;

    /// Sends numbered messages over every link and checks that each arrives once, in the order of its link.
    fn keeps_order(mut network: impl Network, random: &mut Prng) -> Vec<Parcel> {
        let nodes = || NodeId::all(3);
        for number in 0..20u8 {
            for (from, to) in nodes().flat_map(|from| nodes().map(move |to| (from, to))) {
                if from != to {
                    network.send(Parcel { from, to, bytes: vec![number] }, false);
                }
            }
        }
        let mut arrived = Vec::new();
        while !network.is_empty() {
            arrived.extend(network.deliver(random));
        }
        for (from, to) in nodes().flat_map(|from| nodes().map(move |to| (from, to))) {
            let link = arrived.iter().filter(|parcel| (parcel.from, parcel.to) == (from, to));
            let numbers: Vec<u8> = link.map(|parcel| parcel.bytes[0]).collect();
            assert_eq!(numbers, (0..if from == to { 0 } else { 20 }).collect::<Vec<u8>>());
        }
        arrived
    }

    #[test]
    fn links_keep_their_order_and_peers_overtake_each_other() {
        for seed in 0..20 {
            let random = &mut seeded(seed);
            let direct = keeps_order(DirectNetwork::default(), random);
            let shuffled = keeps_order(ShuffledNetwork::new(3, random), random);
            assert_ne!(direct, shuffled);
            keeps_order(LossyNetwork::new(3, random), random);
        }
    }
}
