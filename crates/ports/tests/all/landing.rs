//! Messages whose regions go directly to their places at the receiver, packet by packet.

use hiroba_base::{Instant, NodeId};
use hiroba_ports::wire::{Envelope, FlowKey, Head, Load, Packet, Word};
use hiroba_ports::{Bytes, Call, Config, Effect, Message, Name, Outcome, Patience, Region, UNIT_BYTES};

use crate::simulator::{Cluster, bytes_message, send};

const NODE: NodeId = NodeId(0);
const UNITS: u64 = 8;

fn config() -> Config {
    Config { ride_bytes: 64, landing_bytes_min: 100, landing_bytes_max: 5 * UNIT_BYTES, ..Config::default() }
}

/// Returns nodes with landing pools, a port of node 1, and node 0's name for it.
fn pair() -> (Cluster, Name, Name) {
    let mut cluster = Cluster::new(3, config(), 1);
    let (port, names) = cluster.share(1, &[0]);
    cluster.open_pools(UNITS);
    cluster.packets.clear();
    (cluster, port, names[0])
}

fn count(cluster: &Cluster, kind: &str) -> usize {
    cluster.packets.get(kind).copied().unwrap_or(0)
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 % 251) as u8).collect()
}

/// Sends regions from node 0 and returns those that node 1 receives. They are not copies.
fn exchange(cluster: &mut Cluster, port: Name, to: Name, message: Message) -> (Vec<u8>, Vec<Region>) {
    cluster.now(0, send(to, message, Patience::None)).expect("there is room");
    cluster.settle();
    cluster.results.clear();
    cluster.completed.clear();
    let ticket = cluster.call(1, Call::Receive { from: port, bytes_max: None, patience: Patience::None });
    cluster.completed.clear();
    match cluster.results.remove(&ticket) {
        Some(Ok(Outcome::Received(received))) => (received.inline, received.regions),
        other => panic!("expected a message, got {other:?}"),
    }
}

fn has_landed(region: &Region) -> bool {
    matches!(region.bytes(), Bytes::Landed { .. })
}

#[test]
fn regions_go_to_their_places_and_only_inline_data_in_pieces() {
    let (mut cluster, port, name) = pair();
    let regions: Vec<Region> = [500, 0, 1, 64, 4096].map(|bytes| Region::from(pattern(bytes))).into();
    let message = Message { regions: regions.clone(), ..bytes_message(&pattern(300)) };
    let (inline, received) = exchange(&mut cluster, port, name, message);
    assert_eq!((&inline, &received), (&pattern(300), &regions));
    assert_eq!(received.iter().map(has_landed).collect::<Vec<_>>(), [true, false, true, true, true]);
    assert_eq!((count(&cluster, "landed region"), count(&cluster, "data")), (4, 1));
    assert_eq!(cluster.engines[1].landing_used_bytes(), 2 * UNIT_BYTES);
    let first = received.into_iter().next();
    assert_eq!(cluster.engines[1].landing_used_bytes(), 2 * UNIT_BYTES, "one region keeps the place");
    drop(first);
    assert_eq!(cluster.engines[1].landing_used_bytes(), 0);
    assert_eq!(cluster.engines[1].memory_used_bytes(), 0);
    cluster.check_at_rest().expect("nothing is left over");
}

#[test]
fn regions_that_a_program_keeps_leave_the_others_to_pieces() {
    let (mut cluster, port, name) = pair();
    let mut kept = Vec::new();
    for number in 0..6 {
        let bytes = pattern(3 * UNIT_BYTES as usize - 90 + number);
        let message = Message { regions: vec![bytes.clone().into()], ..Message::default() };
        let (_, regions) = exchange(&mut cluster, port, name, message);
        assert_eq!(regions, [bytes]);
        kept.push(regions);
    }
    let landed = kept.iter().map(|regions| has_landed(&regions[0]));
    assert_eq!(landed.collect::<Vec<_>>(), [true, true, false, false, false, false]);
    drop(kept);
    assert_eq!(cluster.engines[1].landing_used_bytes(), 0);
    // Too short, just long enough; just short enough, too long.
    let long = (5 * UNIT_BYTES) as usize;
    for (bytes, lands) in [(99, false), (100, true), (long, true), (long + 1, false)] {
        let message = Message { regions: vec![pattern(bytes).into()], ..Message::default() };
        let (_, regions) = exchange(&mut cluster, port, name, message);
        assert_eq!((regions[0] == pattern(bytes), has_landed(&regions[0])), (true, lands), "{bytes} bytes");
    }
}

#[test]
fn a_region_that_has_landed_is_sent_on() {
    let (mut cluster, port, name) = pair();
    let (next, names) = cluster.share(2, &[1]);
    let bytes = pattern(5000);
    let message = Message { regions: vec![bytes.clone().into()], ..Message::default() };
    let mut kept = Vec::new();
    // In the end the next node has no room for it, so that it goes in pieces.
    for lands in [true, true, true, true, false, false] {
        let (_, regions) = exchange(&mut cluster, port, name, message.clone());
        assert!(has_landed(&regions[0]));
        let passed = Message { regions, ..Message::default() };
        cluster.now(1, send(names[0], passed, Patience::None)).expect("there is room");
        cluster.settle();
        let ticket = cluster.call(2, Call::Receive { from: next, bytes_max: None, patience: Patience::None });
        let Some(Ok(Outcome::Received(received))) = cluster.results.remove(&ticket) else {
            panic!("expected a message");
        };
        assert_eq!((received.regions[0] == bytes, has_landed(&received.regions[0])), (true, lands));
        cluster.completed.clear();
        assert_eq!(cluster.engines[1].landing_used_bytes(), 0, "it has gone");
        kept.push(received);
    }
    assert_eq!(cluster.engines[2].landing_used_bytes(), UNITS * UNIT_BYTES);
    drop(kept);
    assert_eq!(cluster.engines[2].landing_used_bytes(), 0);
}

fn encode(packet: Packet<'_>) -> Vec<u8> {
    Envelope { word: Word::default(), packet }.encode()
}

fn head(region_bytes: Vec<u64>) -> Head {
    let (types, rights) = (Vec::new(), Vec::new());
    Head { id: 1, types, inline_bytes: 0, region_bytes, has_reply: false, rights, sender: NODE }
}

/// Lets node 0 ask node 1 for memory, and returns the place that it is given.
fn ask(cluster: &mut Cluster, flow: FlowKey, number: u64, bytes: u64, landing_bytes: u64) -> Option<u64> {
    let load = Load::Bytes { bytes, landing_bytes };
    let request = encode(Packet::Request { flow, number, hop: 0, load });
    let engine = &mut cluster.engines[1];
    engine.handle_message(NODE, &request, Instant::ORIGIN).expect("a request may come");
    let sent = core::iter::from_fn(|| engine.poll_effect()).filter_map(|effect| match effect {
        Effect::Send { bytes, .. } => Some(bytes),
        _ => None,
    });
    let permit = |bytes: Vec<u8>| match Envelope::decode(&bytes, 3).map(|envelope| envelope.packet) {
        Ok(Packet::Permit { landing, .. }) => Some(landing),
        _ => None,
    };
    sent.filter_map(permit).next().expect("a permit")
}

fn used(cluster: &Cluster) -> u64 {
    cluster.engines[1].landing_used_bytes() / UNIT_BYTES
}

#[test]
fn a_place_comes_back_only_after_word_of_its_sender() {
    let (mut cluster, port, _) = pair();
    let flow = FlowKey::Own(cluster.engines[1].port_behind(port).expect("a port"));
    for number in 0..3 {
        assert_eq!(ask(&mut cluster, flow, number, 300, 320), Some(number * UNIT_BYTES));
    }
    cluster.engines[1].call(1_000_000, Call::Destroy(port), Instant::ORIGIN);
    assert_eq!((used(&cluster), cluster.engines[1].memory_used_bytes()), (3, 0), "senders may write there");
    let begin = encode(Packet::Begin { flow, number: 0, landed: true, head: head(vec![300]), released: &[] });
    let gave_up = encode(Packet::GaveUp { flow, number: 1 });
    for (packet, left) in [(begin, 2), (gave_up, 1)] {
        cluster.engines[1].handle_message(NODE, &packet, Instant::ORIGIN).expect("it may say so");
        assert_eq!(used(&cluster), left);
    }
    cluster.engines[1].handle_death(NODE, Instant::ORIGIN);
    assert_eq!(used(&cluster), 0, "who is dead does not write");
}

/// The port died between word of its sender's death and the time when that took effect.
#[test]
fn the_place_of_a_dead_sender_comes_back_when_its_port_dies_too() {
    let (mut cluster, port, _) = pair();
    let flow = FlowKey::Own(cluster.engines[1].port_behind(port).expect("a port"));
    assert!(ask(&mut cluster, flow, 0, 300, 320).is_some());
    cluster.engines[1].handle_death(NODE, Instant::ORIGIN);
    assert_eq!(used(&cluster), 1, "the message may still count");
    cluster.engines[1].call(1_000_000, Call::Destroy(port), Instant::ORIGIN);
    assert_eq!(used(&cluster), 0);
}

#[test]
fn a_sender_that_gives_up_before_word_of_the_death_may_not_say_that_it_has_landed() {
    let (mut cluster, port, _) = pair();
    let flow = FlowKey::Own(cluster.engines[1].port_behind(port).expect("a port"));
    assert!(ask(&mut cluster, flow, 0, 300, 320).is_some());
    let gave_up = encode(Packet::GaveUp { flow, number: 0 });
    cluster.engines[1].handle_message(NODE, &gave_up, Instant::ORIGIN).expect("it may say so");
    assert_eq!(used(&cluster), 0);
    let begin = encode(Packet::Begin { flow, number: 0, landed: true, head: head(vec![300]), released: &[] });
    assert!(cluster.engines[1].handle_message(NODE, &begin, Instant::ORIGIN).is_err());
}

/// The receiver believes nothing: neither how much room is wanted, nor that it suffices for the regions.
#[test]
fn places_and_lengths_that_lie_are_refused() {
    let (mut cluster, port, _) = pair();
    let flow = FlowKey::Own(cluster.engines[1].port_behind(port).expect("a port"));
    assert_eq!(ask(&mut cluster, flow, 0, 300, 0), None, "it wants none");
    let most = config().landing_bytes_max;
    assert_eq!(ask(&mut cluster, flow, 1, 300, 300 + most), None, "it wants too much");
    let engine = &mut cluster.engines[1];
    let load = Load::Bytes { bytes: 300, landing_bytes: 1 << 30 };
    let request = encode(Packet::Request { flow, number: 2, hop: 0, load });
    assert!(engine.handle_message(NODE, &request, Instant::ORIGIN).is_err(), "more than 300 bytes can take");
    assert_eq!(ask(&mut cluster, flow, 2, 2 * UNIT_BYTES, 1), Some(0));
    let engine = &mut cluster.engines[1];
    for (number, regions) in [(0, vec![300]), (2, vec![2 * UNIT_BYTES]), (2, vec![1; 8192]), (2, vec![5])] {
        let head = head(regions);
        let begin = encode(Packet::Begin { flow, number, landed: true, head, released: &[] });
        let refused = engine.handle_message(NODE, &begin, Instant::ORIGIN);
        assert!(refused.is_err(), "{number}: {refused:?}");
    }
    let head = head(vec![2 * UNIT_BYTES]);
    let begin = encode(Packet::Begin { flow, number: 2, landed: false, head, released: &[] });
    engine.handle_message(NODE, &begin, Instant::ORIGIN).expect("it may send pieces after all");
    assert_eq!(used(&cluster), 0);
}

/// Whoever asks again after the permit does not get memory twice.
#[test]
fn a_message_is_permitted_once() {
    let (mut cluster, port, _) = pair();
    let flow = FlowKey::Own(cluster.engines[1].port_behind(port).expect("a port"));
    assert!(ask(&mut cluster, flow, 0, 300, 320).is_some());
    let engine = &mut cluster.engines[1];
    let load = Load::Bytes { bytes: 300, landing_bytes: 320 };
    let request = encode(Packet::Request { flow, number: 0, hop: 0, load });
    assert!(engine.handle_message(NODE, &request, Instant::ORIGIN).is_err());
    assert_eq!((engine.memory_used_bytes(), engine.landing_used_bytes()), (300, UNIT_BYTES));
}

/// A sender puts nothing outside the pool, and says so if it has nothing to put.
#[test]
fn a_permit_that_lies_is_refused() {
    let (mut cluster, _, name) = pair();
    let port = cluster.engines[0].port_behind(name).expect("a port");
    let flow = FlowKey::Own(port);
    let message = Message { regions: vec![pattern(300).into()], ..Message::default() };
    cluster.engines[0].call(1_000_000, send(name, message, Patience::None), Instant::ORIGIN);
    let engine = &mut cluster.engines[0];
    while engine.poll_effect().is_some() {}
    let refused = [UNITS * UNIT_BYTES, 1 << 60, u64::MAX - UNIT_BYTES + 1, 17];
    for start in refused {
        let permit = encode(Packet::Permit { flow, number: 0, landing: Some(start) });
        assert!(engine.handle_message(NodeId(1), &permit, Instant::ORIGIN).is_err(), "{start}");
        assert_eq!(engine.poll_effect(), None);
    }
    let permit = encode(Packet::Permit { flow, number: 7, landing: Some(0) });
    engine.handle_message(NodeId(1), &permit, Instant::ORIGIN).expect("the message may be gone");
    let sent = core::iter::from_fn(|| engine.poll_effect()).find_map(|effect| match effect {
        Effect::Send { bytes, .. } => Some(bytes),
        _ => None,
    });
    let packet = sent.map(|bytes| bytes == encode(Packet::GaveUp { flow, number: 7 }));
    assert_eq!(packet, Some(true), "nothing will be written there");
}
