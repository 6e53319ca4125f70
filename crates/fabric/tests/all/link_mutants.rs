//! Planted bugs of the link. Each breaks one of its duties, and the property that every message arrives
//! exactly once and in order must detect it within a few seeds.

use std::collections::{BTreeMap, BTreeSet};

use hiroba_base::{Instant, NodeId, RngExt, seeded};
use hiroba_fabric::link::HEADER_BYTES;
use hiroba_fabric::link::header::{Frames, Header};
use hiroba_fabric::{LinkConfig, LinkSet, SimConditions, SimNetwork};

/// Number of seeds within which each bug must be detected.
const SEEDS: u64 = 40;
/// Number of messages that each node sends.
const MESSAGES: u32 = 120;
/// Maximum number of datagrams and timers in a run; only an endless run exceeds it.
const STEPS_MAX: u32 = 200_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// Acknowledges one datagram more than has arrived in order.
    AcknowledgeUnreceived,
    /// Acknowledges a missing datagram among those that arrived ahead of it.
    AcknowledgeGap,
    /// Transmits nothing a second time.
    ForgetRetransmission,
    /// Takes a datagram that arrives twice for a new one.
    AcceptDuplicate,
    /// Delivers messages in the order of arrival.
    DeliverAsItComes,
    /// Gives retransmissions new numbers.
    RenumberRetransmission,
}

const ALL: [Mutant; 6] = [
    Mutant::AcknowledgeUnreceived,
    Mutant::AcknowledgeGap,
    Mutant::ForgetRetransmission,
    Mutant::AcceptDuplicate,
    Mutant::DeliverAsItComes,
    Mutant::RenumberRetransmission,
];

/// One end of the link, with the bug between it and the network.
struct End {
    links: LinkSet,
    peer: NodeId,
    mutant: Option<Mutant>,
    /// Sequence numbers that were transmitted, and that have arrived.
    transmitted: BTreeSet<u64>,
    come: BTreeSet<u64>,
    received: Vec<Vec<u8>>,
}

impl End {
    fn new(me: NodeId, peer: NodeId, mutant: Option<Mutant>) -> End {
        let links = LinkSet::new(me, 2, LinkConfig::default());
        End { links, peer, mutant, transmitted: BTreeSet::new(), come: BTreeSet::new(), received: Vec::new() }
    }

    /// Returns the datagram that is really sent.
    fn on_transmit(&mut self, datagram: &[u8]) -> Option<Vec<u8>> {
        let (mut header, payload) = Header::parse(datagram).expect("the link's own datagram");
        let again = header.data && !self.transmitted.insert(header.sequence);
        match self.mutant {
            Some(Mutant::AcknowledgeUnreceived) if header.acknowledged > 0 => header.acknowledged += 1,
            Some(Mutant::AcknowledgeGap) if header.selective != 0 => {
                header.selective |= header.selective >> 1 | 1
            }
            Some(Mutant::ForgetRetransmission) if again => return None,
            Some(Mutant::RenumberRetransmission) if again => header.sequence += 1,
            _ => {}
        }
        let mut bytes = [0; HEADER_BYTES];
        header.emit(&mut bytes);
        Some([&bytes[..], payload].concat())
    }

    /// Handles a datagram.
    fn take(&mut self, datagram: &[u8], now: Instant) {
        let handled = self.links.handle_datagram(self.peer, datagram, now);
        if let (Ok(()), Ok((header, payload))) = (handled, Header::parse(datagram))
            && header.data
        {
            let is_new = self.come.insert(header.sequence);
            let hands_out = match self.mutant {
                Some(Mutant::AcceptDuplicate) => !is_new,
                Some(Mutant::DeliverAsItComes) => is_new,
                _ => false,
            };
            let whole = Frames::new(payload).filter(|frame| hands_out && frame.first && frame.last);
            self.received.extend(whole.map(|frame| frame.bytes.to_vec()));
        }
        while let Some((_, message)) = self.links.poll_message() {
            if self.mutant != Some(Mutant::DeliverAsItComes) {
                self.received.push(message);
            }
        }
    }
}

/// Sends messages both ways over a bad network. Returns what is wrong with the received ones.
fn run(mutant: Option<Mutant>, seed: u64) -> Result<(), String> {
    let mut random = seeded(seed);
    let conditions = SimConditions { loss: 0.2, duplicate: 0.2, reorder: 0.3, ..SimConditions::default() };
    let mut network = SimNetwork::new(2, random.random(), conditions);
    let ids = [NodeId(0), NodeId(1)];
    let mut ends = [End::new(ids[0], ids[1], mutant), End::new(ids[1], ids[0], mutant)];
    let mut sent: BTreeMap<usize, Vec<Vec<u8>>> = BTreeMap::new();
    let mut now = Instant::ORIGIN;
    for _ in 0..STEPS_MAX {
        for side in 0..2 {
            let messages = sent.entry(side).or_default();
            if messages.len() < MESSAGES as usize && random.random_range(0..3) == 0 {
                let mut message = (messages.len() as u32).to_le_bytes().to_vec();
                message.resize(random.random_range(4..300), side as u8);
                ends[side].links.send(ids[1 - side], &[&message]);
                messages.push(message);
            }
            while let Some((to, datagram)) =
                ends[side].links.transmit(now).map(|(to, bytes)| (to, bytes.to_vec()))
            {
                if let Some(datagram) = ends[side].on_transmit(&datagram) {
                    network.send(ids[side], to, &datagram, now);
                }
            }
        }
        let all_sent = sent.values().all(|messages| messages.len() == MESSAGES as usize);
        let timers = ends.iter().filter_map(|end| end.links.poll_timeout());
        let Some(next) = timers.chain(network.next_event_at()).min() else {
            if all_sent {
                break;
            }
            continue;
        };
        now = next.max(now);
        if let Some((to, _, datagram)) = network.deliver(now) {
            ends[to.index()].take(&datagram, now);
        }
        ends.iter_mut().for_each(|end| end.links.handle_timeout(now));
    }
    for side in 0..2 {
        let (came, expected) = (&ends[1 - side].received, &sent[&side]);
        if came != expected {
            let same = came.iter().zip(expected).take_while(|(came, expected)| came == expected).count();
            return Err(format!(
                "{} of {} messages came, the first {same} as they were sent",
                came.len(),
                expected.len()
            ));
        }
    }
    if ends.iter().all(|end| end.links.is_idle()) {
        Ok(())
    } else {
        Err("the links never come to rest".to_owned())
    }
}

#[test]
fn the_faithful_link_passes_all_seeds() {
    for seed in 0..SEEDS {
        assert_eq!(run(None, seed), Ok(()), "seed {seed}");
    }
}

#[test]
fn every_planted_bug_is_noticed() {
    for mutant in ALL {
        let noticed = (0..SEEDS).find_map(|seed| run(Some(mutant), seed).err().map(|wrong| (seed, wrong)));
        let (seed, wrong) = noticed.unwrap_or_else(|| panic!("nothing notices {mutant:?}"));
        println!("{mutant:?}, seed {seed}: {wrong}");
    }
}
