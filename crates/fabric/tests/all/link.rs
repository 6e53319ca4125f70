//! Tests the reliable link over the simulated network: properties for all seeds, and exact counts.

use std::collections::HashMap;
use std::time::Duration;

use hiroba_base::{Instant, NodeId, RngExt, seeded};
use hiroba_fabric::link::HEADER_BYTES;
use hiroba_fabric::link::header::{Header, frame_header};
use hiroba_fabric::link::receiver::Arrived;
use hiroba_fabric::{
    Delivered, LinkConfig, LinkSet, LinkStatistics, Rejected, SimCluster, SimConditions, SimNetwork,
};
use proptest::prelude::*;

const ONE: NodeId = NodeId(0);
const OTHER: NodeId = NodeId(1);

fn message(number: u32, length: usize) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend((4..length).map(|at| (at as u32 ^ number) as u8));
    bytes
}

fn conditions() -> impl Strategy<Value = SimConditions> {
    (0.0..0.3, 0.0..0.2, 0.0..0.3, 1u64..200).prop_map(|(loss, duplicate, reorder, spread_us)| {
        SimConditions {
            latency_max: Duration::from_micros(20 + spread_us),
            loss,
            duplicate,
            reorder,
            ..SimConditions::default()
        }
    })
}

fn config() -> impl Strategy<Value = LinkConfig> {
    (128usize..9000, 1usize..=64, 1usize..200_000).prop_map(
        |(datagram_bytes_max, window_datagrams, window_bytes)| LinkConfig {
            datagram_bytes_max,
            window_datagrams,
            window_bytes,
        },
    )
}

/// Sends `sends` (from, to, length) at once and steps to the end; checks order and contents.
fn run(cluster: &mut SimCluster, sends: &[(u16, u16, usize)]) -> Vec<Delivered> {
    let mut sent: HashMap<(NodeId, NodeId), Vec<Vec<u8>>> = HashMap::new();
    for (number, &(from, to, length)) in (0..).zip(sends) {
        if from != to {
            let bytes = message(number, length);
            cluster.send(NodeId(from), NodeId(to), &bytes);
            sent.entry((NodeId(from), NodeId(to))).or_default().push(bytes);
        }
    }
    let mut all = Vec::new();
    let mut received: HashMap<(NodeId, NodeId), Vec<Vec<u8>>> = HashMap::new();
    while let Some(delivered) = cluster.step() {
        received.entry((delivered.from, delivered.to)).or_default().push(delivered.message.clone());
        all.push(delivered);
    }
    assert!(received == sent, "not every message came exactly once, whole and in order");
    assert!(cluster.is_idle());
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_message_arrives_exactly_once_in_order(
        seed: u64,
        conditions in conditions(),
        config in config(),
        sends in prop::collection::vec((0u16..4, 0u16..4, prop_oneof![4 => 4usize..300, 1 => 300usize..40_000]), 1..300),
    ) {
        let mut cluster = SimCluster::with_config(4, seed, conditions, config);
        run(&mut cluster, &sends);
        prop_assert_eq!(cluster.statistics().datagrams_rejected, 0);
    }

    #[test]
    fn one_seed_is_one_run(seed: u64, conditions in conditions()) {
        let sends: Vec<_> = (0..200).map(|number| (number % 3, (number / 3) % 3, 4 + usize::from(number) * 13)).collect();
        let go = || {
            let mut cluster = SimCluster::new(3, seed, conditions);
            (run(&mut cluster, &sends), cluster.now(), cluster.statistics())
        };
        prop_assert!(go() == go());
    }

    #[test]
    fn no_bytes_make_the_link_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut links = LinkSet::new(ONE, 2, LinkConfig::default());
        prop_assert!(links.handle_datagram(OTHER, &bytes, Instant::ORIGIN).is_err());
        prop_assert_eq!(links.statistics().datagrams_rejected, 1);
    }

    /// A well-formed header with arbitrary fields, followed by arbitrary frames.
    #[test]
    fn no_fields_make_the_link_panic(
        fields in prop::collection::vec(any::<(bool, bool, u64, u64, u64)>(), 1..20),
        frames in prop::collection::vec((0usize..50, any::<bool>(), any::<bool>()), 0..5),
        near: bool,
    ) {
        let mut links = LinkSet::new(ONE, 2, LinkConfig::default());
        let mut out = Vec::new();
        for (data, acknowledge_now, sequence, acknowledged, selective) in fields {
            links.send(OTHER, &[b"something to acknowledge"]);
            let reduce = |value: u64, limit: u64| if near { value % limit } else { value };
            let header = Header {
                data,
                acknowledge_now,
                sequence: reduce(sequence, 70),
                acknowledged: reduce(acknowledged, 20),
                selective: if near { selective & 3 } else { selective },
            };
            let mut datagram = emit(&header);
            for &(length, first, last) in frames.iter().filter(|_| data) {
                datagram.extend(frame_header(length, first, last));
                datagram.extend(vec![1; length]);
            }
            let _ = links.handle_datagram(OTHER, &datagram, Instant::ORIGIN);
            while links.poll_transmit(Instant::ORIGIN, &mut out).is_some() {}
            links.handle_timeout(Instant::from_nanos(1 << 30));
        }
    }

    /// Flips bits in real traffic: what is not rejected may forge messages, but nothing breaks.
    #[test]
    fn mutated_traffic_does_not_panic(seed: u64) {
        let mut rng = seeded(seed);
        let mut links: Vec<LinkSet> =
            [ONE, OTHER].map(|node| LinkSet::new(node, 2, LinkConfig::default())).into();
        let mut now = Instant::ORIGIN;
        let mut datagram = Vec::new();
        for round in 0..200 {
            links[round % 2].send(NodeId(1 - (round % 2) as u16), &[&vec![0; rng.random_range(0..4000)]]);
            now = now + Duration::from_millis(rng.random_range(0..30));
            for node in 0..2 {
                links[node].handle_timeout(now);
                while links[node].poll_transmit(now, &mut datagram).is_some() {
                    if rng.random_bool(0.5) {
                        let at = rng.random_range(0..datagram.len());
                        datagram[at] ^= 1 << rng.random_range(0..8u32);
                    }
                    if rng.random_bool(0.1) {
                        datagram.truncate(rng.random_range(0..datagram.len()));
                    }
                    let _ = links[1 - node].handle_datagram(NodeId(node as u16), &datagram, now);
                }
                while links[node].poll_message().is_some() {}
            }
        }
    }
}

fn emit(header: &Header) -> Vec<u8> {
    let mut bytes = [0; HEADER_BYTES];
    header.emit(&mut bytes);
    bytes.to_vec()
}

#[test]
fn the_hardest_conditions_of_the_contract() {
    let conditions = SimConditions { loss: 0.3, reorder: 0.3, duplicate: 0.2, ..SimConditions::default() };
    for seed in 0..10 {
        let mut cluster = SimCluster::new(3, seed, conditions);
        let mut sends: Vec<_> = (0..1000).map(|number| (number % 3, (number / 3) % 3, 100)).collect();
        sends.push((0, 1, 1 << 20));
        run(&mut cluster, &sends);
        assert!(cluster.statistics().retransmits > 0);
        assert!(cluster.statistics().duplicates > 0);
    }
}

#[test]
fn a_round_trip_costs_two_datagrams() {
    const ROUNDS: u64 = 1000;
    let mut cluster = SimCluster::new(2, 1, SimConditions::default());
    cluster.send(ONE, OTHER, b"ping");
    for _ in 1..2 * ROUNDS {
        let Delivered { to, from, message } = cluster.step().unwrap();
        cluster.send(to, from, &message);
    }
    assert!(cluster.step().is_some());
    assert!(cluster.step().is_none());
    let statistics = cluster.statistics();
    assert_eq!(statistics.acknowledgements_sent, 1, "the last message has no answer to ride on");
    assert_eq!(statistics.datagrams_sent, 2 * ROUNDS + 1);
    assert_eq!(statistics.retransmits, 0);
}

#[test]
fn small_messages_behind_a_full_window_share_datagrams() {
    let mut links = LinkSet::new(ONE, 2, LinkConfig::default());
    let mut datagram = Vec::new();
    let mut transmitted = 0;
    for _ in 0..10_000 {
        links.send(OTHER, &[&[1; 60]]);
        while links.poll_transmit(Instant::ORIGIN, &mut datagram).is_some() {
            transmitted += 1;
        }
    }
    assert_eq!(transmitted, 64, "the window, each of one message");
    // 64 bytes framed, 21 of them in a datagram of 1,400.
    assert_eq!(links.queue_sizes().datagrams_kept, 64 + (10_000usize - 64).div_ceil(21));
    assert_eq!(links.backlog_bytes(OTHER), 640_000);
}

#[test]
fn flight_stays_within_the_window_and_queues_within_their_bounds() {
    let config = LinkConfig { datagram_bytes_max: 1400, window_datagrams: 20, window_bytes: 14_000 };
    let conditions = SimConditions { loss: 0.1, reorder: 0.1, duplicate: 0.1, ..SimConditions::default() };
    let mut cluster = SimCluster::with_config(2, 5, conditions, config);
    let mut received = 0;
    for number in 0..3000 {
        cluster.send(ONE, OTHER, &message(number, 700));
    }
    while cluster.step().is_some() {
        received += 1;
        let (datagrams, bytes) = cluster.links(ONE).in_flight(OTHER);
        assert!(datagrams <= 20 && bytes <= 14_000, "{datagrams} datagrams, {bytes} bytes in flight");
        assert!(cluster.links(OTHER).queue_sizes().datagrams_out_of_order <= 64);
    }
    assert_eq!(received, 3000);
}

#[test]
fn a_paused_peer_comes_back() {
    let mut cluster = SimCluster::new(2, 3, SimConditions::default());
    cluster.send(ONE, OTHER, b"before");
    assert_eq!(cluster.step().unwrap().message, b"before");
    cluster.pause(OTHER);
    for number in 0..1000 {
        cluster.send(ONE, OTHER, &message(number, 100));
    }
    let minute = cluster.now() + Duration::from_secs(60);
    assert_eq!(cluster.step_until(minute), None);
    assert_eq!(cluster.now(), minute);
    let retransmits = cluster.statistics().retransmits;
    assert!((60..1000).contains(&retransmits), "{retransmits} in a minute: about a window a second");
    cluster.resume(OTHER);
    for number in 0..1000 {
        assert_eq!(cluster.step().unwrap().message, message(number, 100));
    }
    assert_eq!(cluster.step(), None);
    assert!(cluster.is_idle());
}

#[test]
fn silence_is_counted_for_who_owes_an_acknowledgement() {
    let at = |ms: u64| Instant::ORIGIN + Duration::from_millis(ms);
    let mut links = LinkSet::new(ONE, 3, LinkConfig::default());
    let mut other = LinkSet::new(OTHER, 3, LinkConfig::default());
    let mut datagram = Vec::new();
    // As a node that is never stopped does: every timer is on time.
    fn run(links: &mut LinkSet, until: Instant, datagram: &mut Vec<u8>) {
        while let Some(due) = links.poll_timeout().filter(|due| *due <= until) {
            links.handle_timeout(due);
            while links.poll_transmit(due, datagram).is_some() {}
        }
    }
    assert_eq!(links.longest_silence(at(5000)), None, "nothing was sent");
    links.send(OTHER, &[b"heard"]);
    links.poll_transmit(at(0), &mut datagram).unwrap();
    other.handle_datagram(ONE, &datagram, at(0)).unwrap();
    links.send(NodeId(2), &[b"anyone?"]);
    links.poll_transmit(at(100), &mut datagram).unwrap();
    run(&mut links, at(300), &mut datagram);
    assert_eq!(links.longest_silence(at(300)), Some((OTHER, Duration::from_millis(300))));
    other.handle_timeout(at(300));
    other.poll_transmit(at(300), &mut datagram).unwrap();
    links.handle_datagram(OTHER, &datagram, at(300)).unwrap();
    run(&mut links, at(4000), &mut datagram);
    assert_eq!(links.longest_silence(at(4000)), Some((NodeId(2), Duration::from_millis(3900))));
    // Stopped for a minute: the timers are late, and no peer is to blame for that.
    assert_eq!(links.longest_silence(at(64_000)), None);
    links.handle_timeout(at(64_000));
    while links.poll_transmit(at(64_000), &mut datagram).is_some() {}
    assert_eq!(links.longest_silence(at(64_000)), Some((NodeId(2), Duration::ZERO)));
}

#[test]
fn a_slow_network_is_learnt() {
    const ROUNDS: u64 = 200;
    let latency = Duration::from_millis(80);
    let mut cluster = SimCluster::new(
        2,
        3,
        SimConditions { latency_min: latency, latency_max: latency, ..SimConditions::default() },
    );
    cluster.send(ONE, OTHER, b"ping");
    for _ in 0..2 * ROUNDS {
        let Delivered { to, from, message } = cluster.step().unwrap();
        cluster.send(to, from, &message);
    }
    let retransmits = cluster.statistics().retransmits;
    assert!(retransmits < ROUNDS / 10, "{retransmits} retransmissions without a loss");
}

#[test]
fn a_partition_heals() {
    let mut cluster = SimCluster::new(3, 3, SimConditions::default());
    cluster.network().set_partitioned(ONE, OTHER, true);
    cluster.send(ONE, OTHER, b"cut off");
    cluster.send(ONE, NodeId(2), b"not cut off");
    assert_eq!(cluster.step().unwrap().to, NodeId(2));
    assert_eq!(cluster.step_until(Instant::from_nanos(10_000_000_000)), None);
    cluster.network().set_partitioned(ONE, OTHER, false);
    assert_eq!(cluster.step().unwrap().message, b"cut off");
}

#[test]
fn a_lost_datagram_is_sent_again_before_the_timer() {
    let mut sender = LinkSet::new(ONE, 2, LinkConfig::default());
    let mut receiver = LinkSet::new(OTHER, 2, LinkConfig::default());
    let now = Instant::from_nanos(1000);
    let mut datagram = Vec::new();
    for number in 0..5 {
        sender.send(OTHER, &[&message(number, 10)]);
        assert!(sender.poll_transmit(now, &mut datagram).is_some());
        if number != 1 {
            receiver.handle_datagram(ONE, &datagram, now).unwrap();
        }
    }
    assert!(receiver.poll_transmit(now, &mut datagram).is_some(), "a gap is reported at once");
    sender.handle_datagram(OTHER, &datagram, now).unwrap();
    assert!(sender.poll_transmit(now, &mut datagram).is_some(), "three later ones have come");
    assert_eq!(sender.statistics().retransmits, 1);
    receiver.handle_datagram(ONE, &datagram, now).unwrap();
    for number in 0..5 {
        assert_eq!(receiver.poll_message(), Some((ONE, message(number, 10))));
    }
    assert!(receiver.poll_transmit(now, &mut datagram).is_some(), "and so is its filling");
    sender.handle_datagram(OTHER, &datagram, now).unwrap();
    assert!(sender.is_idle());
}

/// Only messages that are split, or that came too early, are copied.
#[test]
fn a_message_in_order_stays_in_its_datagram() {
    let mut sender = LinkSet::new(ONE, 2, LinkConfig::default());
    let mut receiver = LinkSet::new(OTHER, 2, LinkConfig::default());
    let lengths = [[300, 0].as_slice(), &[700, 200, 100], &[2000], &[1300]];
    let mut datagrams = Vec::new();
    for (number, lengths) in (0u32..).zip(lengths) {
        lengths.iter().for_each(|length| sender.send(OTHER, &[&message(number, *length)[..*length]]));
        let mut datagram = Vec::new();
        while sender.poll_transmit(Instant::ORIGIN, &mut datagram).is_some() {
            datagrams.push(datagram.clone());
        }
    }
    // The second of the split message's datagrams comes before the first.
    datagrams.swap(2, 3);
    let (mut in_place, mut copied) = (Vec::new(), Vec::new());
    for datagram in &datagrams {
        let mut deliver = |arrived: Arrived| match arrived {
            Arrived::Within(place) => in_place.push(datagram[place].to_vec()),
            Arrived::Copied(bytes) => copied.push(bytes),
        };
        receiver.handle_datagram_in_place(ONE, datagram, Instant::ORIGIN, &mut deliver).unwrap();
    }
    let expected = [(0, 300), (0, 0), (1, 700), (1, 200), (1, 100), (3, 1300)];
    assert_eq!(in_place, expected.map(|(number, length)| message(number, length)[..length].to_vec()));
    assert_eq!(copied, [message(2, 2000)]);
    assert_eq!(receiver.statistics().messages_received, 7);
}

#[test]
fn each_rejection_names_what_is_wrong() {
    let mut sender = LinkSet::new(OTHER, 2, LinkConfig::default());
    let mut datagram = Vec::new();
    sender.send(ONE, &[b"x"]);
    sender.poll_transmit(Instant::ORIGIN, &mut datagram).unwrap();
    let mut links = LinkSet::new(ONE, 2, LinkConfig::default());
    let (good, payload) = Header::parse(&datagram).unwrap();
    let mut handle = |source: NodeId, header: Header| {
        let bytes = [&emit(&header)[..], payload].concat();
        links.handle_datagram(source, &bytes, Instant::ORIGIN)
    };
    assert_eq!(handle(ONE, good), Err(Rejected::Source { nodes: 2, got: ONE }));
    let stranger = NodeId(2);
    assert_eq!(handle(stranger, good), Err(Rejected::Source { nodes: 2, got: stranger }));
    assert_eq!(
        handle(OTHER, Header { acknowledged: 1, ..good }),
        Err(Rejected::Acknowledgement { sent: 0, got: 1 })
    );
    assert_eq!(
        handle(OTHER, Header { selective: 1 << 63, ..good }),
        Err(Rejected::Acknowledgement { sent: 0, got: 65 })
    );
    assert_eq!(
        handle(OTHER, Header { sequence: 65, ..good }),
        Err(Rejected::Sequence { limit: 64, got: 65 })
    );
    assert_eq!(handle(OTHER, good), Ok(()));
    assert_eq!(links.statistics().datagrams_rejected, 5);
    assert_eq!(links.poll_message(), Some((OTHER, b"x".to_vec())));
}

#[test]
fn two_hundred_thousand_messages_leave_nothing_behind() {
    let conditions = SimConditions { loss: 0.01, reorder: 0.01, duplicate: 0.01, ..SimConditions::default() };
    let mut cluster = SimCluster::new(4, 9, conditions);
    // Each message is answered, and each node keeps two conversations going.
    for node in 0..4 {
        cluster.send(NodeId(node), NodeId((node + 1) % 4), &0u32.to_le_bytes());
        cluster.send(NodeId(node), NodeId((node + 2) % 4), &0u32.to_le_bytes());
    }
    let mut sizes_max = 0;
    for _ in 0..200_000 {
        let Delivered { to, from, message } = cluster.step().unwrap();
        cluster.send(to, from, &message);
        let sizes = cluster.links(to).queue_sizes();
        sizes_max = sizes_max.max(sizes.timers + sizes.datagrams_kept + sizes.peers_ready);
    }
    while cluster.step().is_some() {}
    assert!(sizes_max < 200, "{sizes_max} entries");
    assert!(cluster.is_idle());
    for node in NodeId::all(4) {
        let sizes = cluster.links(node).queue_sizes();
        assert_eq!(sizes.datagrams_kept + sizes.datagrams_out_of_order + sizes.messages_waiting, 0);
        assert_eq!((sizes.partial_bytes, sizes.timers, sizes.peers_ready), (0, 0, 0));
        assert!(sizes.buffers <= 128);
    }
}

#[test]
fn an_idle_cluster_of_the_largest_size_is_cheap() {
    let mut cluster = SimCluster::new(64, 1, SimConditions::default());
    for node in 1..64 {
        cluster.send(NodeId(node), ONE, b"arrived");
    }
    let mut arrived = 0;
    while let Some(delivered) = cluster.step() {
        arrived += 1;
        assert_eq!(delivered.to, ONE);
    }
    assert_eq!(arrived, 63);
    let links = LinkSet::new(ONE, 4096, LinkConfig::default());
    assert_eq!(links.poll_timeout(), None);
    assert_eq!(links.statistics(), LinkStatistics::default());
}

#[test]
fn the_network_keeps_the_order_of_a_pair_unless_told_otherwise() {
    let order = |reorder: f64| {
        let mut network = SimNetwork::new(2, 4, SimConditions { reorder, ..SimConditions::default() });
        for number in 0..100 {
            network.send(ONE, OTHER, &[number], Instant::ORIGIN);
        }
        let mut order = Vec::new();
        while let Some(at) = network.next_event_at() {
            order.push(network.deliver(at).unwrap().2[0]);
        }
        order
    };
    assert!(order(0.0).is_sorted());
    assert!(!order(0.3).is_sorted());
}
