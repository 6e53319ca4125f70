//! Many nodes that all send to one: no loss, no deadlock, bounded memory, fairness.

use std::collections::BTreeMap;

use hiroba_base::NodeId;
use hiroba_ports::{Call, Config, Engine, Outcome, Patience};

use crate::simulator::{Cluster, bytes_message, send};

const NODES: u16 = 256;
const MESSAGES: u32 = 40;

/// Every other node has several threads that send to one port of node 0, which receives one message after
/// another.
fn all_to_one(bytes: usize, config: Config) {
    let mut cluster = Cluster::new(NODES, config, 7);
    let port = cluster.name(0, Call::AllocatePort);
    cluster.register(0, port, b"sink");
    let senders: Vec<_> = (1..NODES).map(|node| (node, cluster.look_up(node, b"sink"))).collect();
    let mut tickets = Vec::new();
    for number in 0..MESSAGES {
        for (node, name) in &senders {
            let mut message = bytes_message(&vec![number as u8; bytes]);
            message.id = number;
            tickets.push(cluster.call(*node, send(*name, message, Patience::Endless)));
        }
    }
    let bound = Engine::port_bytes_max(NODES, config.queue_limit, &config);
    let mut received: BTreeMap<NodeId, u32> = BTreeMap::new();
    let total = u32::from(NODES - 1) * MESSAGES;
    let (mut taken, mut checked) = (0, false);
    while taken < total {
        let call = Call::Receive { from: port, bytes_max: None, patience: Patience::None };
        if let Ok(Outcome::Received(message)) = cluster.now(0, call) {
            let count = received.entry(message.sender).or_default();
            assert_eq!(message.id, *count, "messages of one node come in order");
            assert_eq!(message.inline, vec![message.id as u8; bytes]);
            *count += 1;
            taken += 1;
        } else {
            // At most one step for each node.
            let ran = (0..NODES).take_while(|_| cluster.step()).count();
            assert!(ran > 0, "{taken} of {total} messages came, and nothing happens any more");
        }
        let port_bytes = cluster.engines[0].port_bytes(port).expect("the port is here");
        assert!(port_bytes <= bound, "{port_bytes} bytes are kept, the formula allows {bound}");
        assert!(cluster.engines[0].memory_used_bytes() <= config.memory_bytes);
        if taken == total / 2 && !checked {
            checked = true;
            let (least, most) = (received.values().min().copied(), received.values().max().copied());
            let (least, most) = (least.unwrap_or(0), most.unwrap_or(0));
            let mean = f64::from(taken) / f64::from(NODES - 1);
            println!("after {taken} messages: {least} to {most} a node, mean {mean:.2}");
            assert_eq!(received.len(), usize::from(NODES - 1), "every node has been heard");
            // One message is the finest possible difference.
            let allowed = (mean * 0.1).max(1.0);
            assert!(f64::from(most) - mean <= allowed && mean - f64::from(least) <= allowed);
        }
    }
    cluster.settle();
    assert!(tickets.iter().all(|ticket| cluster.results.get(ticket) == Some(&Ok(Outcome::Done))));
    assert_eq!(cluster.engines[0].memory_used_bytes(), 0);
    cluster.check_at_rest().expect("nothing is left over");
    let requests = cluster.packets.get("request").copied().unwrap_or(0);
    println!("{total} messages of {bytes} bytes took {requests} requests; {:?}", cluster.packets);
}

#[test]
fn small_messages_of_256_nodes_all_come() {
    all_to_one(64, Config { queue_limit: 16, ..Config::default() });
}

#[test]
fn long_messages_of_256_nodes_all_come_through_little_memory() {
    let config = Config {
        ride_bytes: 1 << 10,
        piece_bytes: 1 << 10,
        message_bytes_max: 4 << 10,
        memory_bytes: 10 << 10,
        queue_limit: 16,
        ..Config::default()
    };
    all_to_one(3 << 10, config);
}
