//! The protocol of the paper's section 5, packet by packet.

use core::time::Duration;
use std::cell::RefCell;
use std::collections::BTreeMap;

use hiroba_base::{Instant, NodeId, RngExt};
use hiroba_ports::wire::{Envelope, FlowKey, Head, Load, Packet, Word};
use hiroba_ports::{
    Call, Config, Disposition, Message, Name, Outcome, Patience, Region, RightToSend, Ticket,
};

use crate::simulator::{Cluster, bytes_message, copy_send, send};

fn pair(config: Config) -> (Cluster, Name, Name) {
    let mut cluster = Cluster::new(2, config, 1);
    let (port, names) = cluster.share(1, &[0]);
    cluster.packets.clear();
    (cluster, port, names[0])
}

fn packets(cluster: &Cluster, kind: &str) -> usize {
    cluster.packets.get(kind).copied().unwrap_or(0)
}

/// Section 5.2: a small message takes two messages, (A) and (I). The second one also reports that it was
/// taken.
#[test]
fn a_small_message_rides_on_its_request() {
    let (mut cluster, port, name) = pair(Config::default());
    cluster.now(0, send(name, bytes_message(b"four"), Patience::None)).expect("there is room");
    cluster.settle();
    assert_eq!(cluster.receive(1, port).inline, b"four");
    assert_eq!((packets(&cluster, "request"), packets(&cluster, "word alone")), (1, 1));
    assert_eq!((packets(&cluster, "permit"), packets(&cluster, "data")), (0, 0));
}

/// Section 5.2: a long one takes request, permission, head, pieces and (I), whatever its length: there are no
/// rounds of eight pages.
#[test]
fn a_long_message_is_permitted_once() {
    for pages in [1, 8, 9, 16, 17, 24, 25, 100] {
        let config = Config { piece_bytes: 4096, ride_bytes: 1024, ..Config::default() };
        let (mut cluster, port, name) = pair(config);
        let message = Message { regions: vec![vec![7; pages * 4096].into()], ..Message::default() };
        cluster.now(0, send(name, message, Patience::None)).expect("there is room");
        cluster.settle();
        assert_eq!(cluster.receive(1, port).regions, [vec![7; pages * 4096]]);
        assert_eq!((packets(&cluster, "request"), packets(&cluster, "permit")), (1, 1));
        assert_eq!((packets(&cluster, "data"), packets(&cluster, "word alone")), (pages, 1), "{pages} pages");
    }
}

/// Messages of lengths around each threshold come whole: around what rides on requests, a piece, and a window
/// of one to three pieces; as one region and as several, with inline data before them.
#[test]
fn long_messages_of_all_lengths_come_whole() {
    const PIECE: usize = 64;
    for window_pieces in 1..=3 {
        let config = Config { piece_bytes: PIECE, window_pieces, ride_bytes: 40, ..Config::default() };
        let (mut cluster, port, name) = pair(config);
        let edges = [0, 40, PIECE, 2 * PIECE, PIECE * window_pieces, 3 * PIECE * window_pieces];
        for (edge, more) in edges.into_iter().flat_map(|edge| (0..3).map(move |more| (edge, more))) {
            let bytes: Vec<u8> = (0..(edge + more).saturating_sub(1)).map(|at| at as u8 ^ 0x5a).collect();
            let (first, second) = bytes.split_at(bytes.len() / 3);
            let regions = vec![first.to_vec().into(), Region::default(), second.to_vec().into()];
            for message in [
                Message { regions: vec![bytes.clone().into()], ..Message::default() },
                Message { regions, ..bytes_message(&bytes) },
            ] {
                cluster.now(0, send(name, message.clone(), Patience::None)).expect("there is room");
                cluster.settle();
                let received = cluster.receive(1, port);
                assert_eq!((received.inline, received.regions), (message.inline, message.regions));
                cluster.settle();
            }
        }
        assert_eq!(cluster.engines[1].memory_used_bytes(), 0);
        cluster.check_at_rest().expect("nothing is left over");
    }
}

/// A piece that comes apart from its head is taken only if its length is the one that the head says, and no
/// greater than the rest of the message.
#[test]
fn pieces_whose_lengths_lie_are_refused_and_take_no_memory() {
    let config = Config { ride_bytes: 4, ..Config::default() };
    let (mut cluster, port, _) = pair(config);
    let flow = FlowKey::Own(cluster.engines[1].port_behind(port).expect("a port"));
    let number = 0;
    let encode = |packet| Envelope { word: Word::default(), packet }.encode();
    let head = Head {
        id: 1,
        types: Vec::new(),
        inline_bytes: 0,
        region_bytes: vec![10],
        has_reply: false,
        rights: Vec::new(),
        sender: NodeId(0),
    };
    let request =
        encode(Packet::Request { flow, number, hop: 0, load: Load::Bytes { bytes: 10, landing_bytes: 0 } });
    let begin = encode(Packet::Begin { flow, number, landed: false, head, released: &[] });
    let engine = &mut cluster.engines[1];
    for packet in [request, begin] {
        engine.handle_message(NodeId(0), &packet, Instant::ORIGIN).expect("a message may come");
    }
    let mut refuse = |said: usize, offset: u64, came: usize| {
        let data = Packet::Data { flow, number, offset, bytes: &[] };
        let head = Envelope { word: Word::default(), packet: data }.encode_before_data(said, 0);
        let (bytes, engine) = (vec![7; came], &mut cluster.engines[1]);
        let mut piece = bytes.as_slice();
        let refused = engine.handle_piece(NodeId(0), &head, &mut piece, Instant::ORIGIN);
        assert!(refused.is_err(), "{said} bytes said, {came} came at {offset}: {refused:?}");
        assert_eq!(piece.len(), came, "what is refused is not copied");
    };
    for (said, offset, came) in [(5, 0, 6), (5, 0, 4), (300, 0, 5), (11, 0, 11), (5, 1, 5), (0, 0, 0)] {
        refuse(said, offset, came);
    }
    // Heads of other packets have no piece behind them.
    let other = encode(Packet::More { flow, number, through: 3 });
    let mut piece = &[7; 3][..];
    assert!(cluster.engines[1].handle_piece(NodeId(0), &other, &mut piece, Instant::ORIGIN).is_err());
    let data = Packet::Data { flow, number, offset: 0, bytes: &[] };
    let head = Envelope { word: Word::default(), packet: data }.encode_before_data(10, 0);
    let mut piece = &[7; 10][..];
    let good = cluster.engines[1].handle_piece(NodeId(0), &head, &mut piece, Instant::ORIGIN);
    good.expect("an honest piece is taken after all");
    assert_eq!(cluster.receive(1, port).regions, [[7; 10]]);
}

thread_local! {
    static MADE_READY: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The host is shown the memory of each window before its pieces fill it, and no more than the message needs.
#[test]
fn memory_of_long_messages_is_made_ready_a_window_at_a_time() {
    let config = Config {
        piece_bytes: 100,
        window_pieces: 4,
        ride_bytes: 10,
        make_ready: |memory| MADE_READY.with_borrow_mut(|bytes| bytes.push(memory.len())),
        ..Config::default()
    };
    let (mut cluster, port, name) = pair(config);
    let regions: Vec<Region> = vec![vec![7; 1050].into(), vec![8; 50].into()];
    let message = Message { regions: regions.clone(), ..bytes_message(&[1; 401]) };
    cluster.now(0, send(name, message, Patience::None)).expect("there is room");
    cluster.settle();
    let received = cluster.receive(1, port);
    assert_eq!((received.inline, received.regions), (vec![1; 401], regions));
    assert_eq!(MADE_READY.take(), [400, 1, 400, 400, 250, 50]);
}

/// Section 7: returning packets carry message-accepted lists, and no list delays an answer.
#[test]
fn word_of_messages_taken_rides_on_answers() {
    // A delay that does not end within a round.
    let (mut cluster, port, name) = pair(Config { word_delay: Duration::from_secs(1), ..Config::default() });
    let reply_port = cluster.name(0, Call::AllocatePort);
    for round in 0..50u32 {
        let message = bytes_message(&round.to_le_bytes());
        let (to, patience) = (copy_send(name), Patience::Endless);
        let rpc = cluster.call(0, Call::Rpc { to, message, reply_port, bytes_max: None, patience });
        let served =
            cluster.call(1, Call::Receive { from: port, bytes_max: None, patience: Patience::Endless });
        while !cluster.results.contains_key(&served) {
            assert!(cluster.step());
        }
        let Some(Ok(Outcome::Received(request))) = cluster.results.remove(&served) else {
            panic!("no request")
        };
        let reply = request.reply.expect("a way back").name;
        let to = RightToSend { name: reply, disposition: Disposition::MoveSendOnce };
        let answer = Call::Send {
            to,
            message: bytes_message(&request.inline),
            patience: Patience::None,
            notify: None,
        };
        cluster.now(1, answer).expect("a send-once right needs no room");
        while !cluster.results.contains_key(&rpc) {
            assert!(cluster.step());
        }
        let Some(Ok(Outcome::Received(answer))) = cluster.results.remove(&rpc) else { panic!("no answer") };
        assert_eq!(answer.inline, round.to_le_bytes());
    }
    assert_eq!(packets(&cluster, "request"), 100, "a request and an answer each");
    assert_eq!(packets(&cluster, "word alone"), 0, "requests and answers carry it: {:?}", cluster.packets);
}

/// Section 4: reserve first. Without memory for it a message waits at its sender, and nothing is lost; other
/// ports are not affected.
#[test]
fn without_memory_long_messages_wait_and_other_ports_go_on() {
    let config = Config { ride_bytes: 100, message_bytes_max: 1000, memory_bytes: 1000, ..Config::default() };
    let (mut cluster, port, name) = pair(config);
    let (other, others) = cluster.share(1, &[0]);
    for _ in 0..3 {
        let message = Message { regions: vec![vec![1; 900].into()], ..Message::default() };
        cluster.now(0, send(name, message, Patience::None)).expect("the sender's copy of the queue has room");
    }
    cluster.settle();
    assert_eq!(cluster.engines[1].memory_used_bytes(), 900, "one has come, two wait");
    cluster.now(0, send(others[0], bytes_message(b"small"), Patience::None)).expect("there is room");
    cluster.settle();
    assert_eq!(cluster.receive(1, other).inline, b"small");
    for _ in 0..3 {
        assert_eq!(cluster.receive(1, port).regions, [vec![1; 900]]);
        cluster.settle();
    }
    assert_eq!(cluster.engines[1].memory_used_bytes(), 0);
    cluster.check_at_rest().expect("nothing is left over");
}

/// A full queue delays only those that send to it.
#[test]
fn a_full_queue_does_not_hold_up_other_ports() {
    let (mut cluster, _port, name) = pair(Config { queue_limit: 2, ..Config::default() });
    let (other, others) = cluster.share(1, &[0]);
    let tickets: Vec<_> =
        (0..20).map(|_| cluster.call(0, send(name, bytes_message(b"stuck"), Patience::Endless))).collect();
    cluster.settle();
    assert!(tickets.iter().any(|ticket| !cluster.results.contains_key(ticket)), "some must wait");
    for round in 0..10u8 {
        cluster.now(0, send(others[0], bytes_message(&[round]), Patience::None)).expect("there is room");
        cluster.settle();
        assert_eq!(cluster.receive(1, other).inline, [round]);
        cluster.settle();
    }
}

/// A forged packet of a peer is refused, and changes nothing for others.
#[test]
fn a_forged_right_is_refused() {
    let (mut cluster, port, name) = pair(Config::default());
    let id = cluster.engines[1].port_behind(name).or(cluster.engines[1].port_behind(port)).expect("a port");
    let mut third = Cluster::new(3, Config::default(), 1);
    let (port, _) = third.share(1, &[0]);
    let id = third.engines[1].port_behind(port).unwrap_or(id);
    for flow in
        [FlowKey::Own(id), FlowKey::Relay(id, NodeId(2)), FlowKey::RelayOnce(id), FlowKey::Once(id, 99)]
    {
        let request =
            Packet::Request { flow, number: 0, hop: 9, load: Load::Bytes { bytes: 10, landing_bytes: 0 } };
        let bytes = Envelope { word: Word::default(), packet: request }.encode();
        let refused = third.engines[1].handle_message(NodeId(2), &bytes, Instant::ORIGIN);
        assert!(refused.is_err(), "node 2 has no right to {id}");
    }
    assert_eq!(third.engines[1].memory_used_bytes(), 0);
    cluster.settle();
}

/// The port goes round all nodes while each of them sends to it, and some links are much slower than others.
/// Each message comes once, and in its sender's order.
#[test]
fn messages_to_a_port_that_goes_round_come_once() {
    let rounds = std::env::var("HIROBA_PORTS_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    for seed in 0..1000 * rounds {
        go_round(seed);
    }
}

fn go_round(seed: u64) {
    const NODES: u16 = 4;
    const MESSAGES: u8 = 3;
    const PORT_ID: u32 = 1;
    let mut cluster = Cluster::new(NODES, Config::default(), seed);
    let (port, names) = cluster.share(0, &[1, 2, 3]);
    // A port on each node, by which the receive right goes on to the next node.
    let inboxes: Vec<_> = (0..NODES).map(|node| cluster.name(node, Call::AllocatePort)).collect();
    let ways: Vec<_> = (0..NODES)
        .map(|node| {
            let next = (node + 1) % NODES;
            cluster.pass(next, inboxes[usize::from(next)], Disposition::MakeSend, node)
        })
        .collect();
    let pairs = NodeId::all(NODES).flat_map(|from| NodeId::all(NODES).map(move |to| (from, to)));
    for pair in pairs.filter(|(from, to)| from != to) {
        if cluster.random.random_range(0..3) == 0 {
            cluster.slow.insert(pair);
        }
    }
    for number in 0..MESSAGES {
        for (node, name) in (1..NODES).zip(&names) {
            let message = bytes_message(&[node as u8, number]);
            cluster.now(node, send(*name, message, Patience::None)).expect("the sender's queue has room");
        }
    }
    let mut came: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
    let mut holder = Some((0, port));
    let mut arrivals: BTreeMap<Ticket, u16> = BTreeMap::new();
    for _ in 0..NODES * 2 {
        let Some((node, name)) = holder.take() else { break };
        for _ in 0..cluster.random.random_range(0..20) {
            cluster.step();
        }
        let receive = Call::Receive { from: name, bytes_max: None, patience: Patience::None };
        if let Ok(Outcome::Received(received)) = cluster.now(node, receive) {
            came.entry(received.inline[0]).or_default().push(received.inline[1]);
        }
        let next = (node + 1) % NODES;
        let from = inboxes[usize::from(next)];
        let arrival =
            cluster.call(next, Call::Receive { from, bytes_max: None, patience: Patience::Endless });
        arrivals.insert(arrival, next);
        let rights = vec![RightToSend { name, disposition: Disposition::MoveReceive }];
        let message = Message { id: PORT_ID, rights, ..Message::default() };
        cluster.now(node, send(ways[usize::from(node)], message, Patience::None)).expect("there is room");
        while !cluster.results.contains_key(&arrival) {
            assert!(cluster.step(), "seed {seed}: the port does not come to node {next}");
        }
        let Some(Ok(Outcome::Received(received))) = cluster.results.remove(&arrival) else {
            panic!("seed {seed}: expected the port")
        };
        holder = Some((next, received.rights[0].name));
    }
    let (node, name) = holder.expect("the port is somewhere");
    loop {
        cluster.settle();
        let receive = Call::Receive { from: name, bytes_max: None, patience: Patience::None };
        let Ok(Outcome::Received(received)) = cluster.now(node, receive) else { break };
        came.entry(received.inline[0]).or_default().push(received.inline[1]);
    }
    let all: BTreeMap<u8, Vec<u8>> = (1..NODES as u8).map(|node| (node, (0..MESSAGES).collect())).collect();
    assert_eq!(came, all, "seed {seed}");
    cluster.check_at_rest().unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
}
