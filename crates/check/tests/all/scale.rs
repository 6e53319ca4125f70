//! How messages and bytes grow with the nodes of a cluster.

use hiroba_check::scale::{Operation, Traffic, cost};
use hiroba_protocol::{Protocol, WriteTracking};

const SIZES: [u16; 3] = [2, 16, 64];

fn costs(protocol: Protocol, operation: Operation) -> Vec<(u16, Traffic)> {
    let of = |nodes| cost(protocol, WriteTracking::Fault, operation, nodes);
    SIZES
        .map(|nodes| (nodes, of(nodes).unwrap_or_else(|failure| panic!("{nodes} nodes: {failure}"))))
        .to_vec()
}

#[test]
fn a_barrier_takes_two_messages_for_each_node_but_one() {
    for protocol in Protocol::ALL {
        for (nodes, Traffic { messages, bytes }) in costs(protocol, Operation::IdleBarrier) {
            let links = f64::from(nodes - 1);
            assert_eq!(messages, 2.0 * links, "{}, {nodes} nodes", protocol.name());
            // A timestamp each way, and another one for nodes with children.
            assert!(
                bytes <= links * (24.0 + 6.0 * f64::from(nodes)),
                "{}, {nodes} nodes: {bytes}",
                protocol.name()
            );
        }
    }
}

#[test]
fn a_lock_is_handed_over_by_three_messages_at_most() {
    for protocol in Protocol::ALL {
        for operation in [Operation::HandOver, Operation::ContendedHandOver] {
            for (nodes, Traffic { messages, .. }) in costs(protocol, operation) {
                assert!(
                    (1.0..=3.0).contains(&messages),
                    "{}, {operation:?}, {nodes} nodes: {messages}",
                    protocol.name()
                );
            }
        }
    }
}

#[test]
fn faults_and_atomics_cost_the_same_however_many_nodes_there_are() {
    let expected = [
        (Protocol::Sc, Operation::ReadFault, 2.0),
        // Request, content, ownership: the manager is the owner.
        (Protocol::Sc, Operation::WriteFault, 3.0),
        (Protocol::Sc, Operation::Atomic, 0.0),
        (Protocol::Hlrc, Operation::ReadFault, 2.0),
        (Protocol::Hlrc, Operation::Atomic, 2.0),
    ];
    for (protocol, operation, expected) in expected {
        for (nodes, Traffic { messages, bytes }) in costs(protocol, operation) {
            assert_eq!(messages, expected, "{protocol:?}, {operation:?}, {nodes} nodes");
            let page_bytes = if operation == Operation::Atomic { 0.0 } else { 4096.0 };
            assert!(
                (page_bytes..=page_bytes + 40.0).contains(&bytes),
                "{protocol:?}, {operation:?}: {bytes} bytes"
            );
        }
    }
    // A written page has a request and a copy of its own; its changes travel with those of other pages to
    // their home.
    for (nodes, Traffic { messages, .. }) in costs(Protocol::Hlrc, Operation::WriteFault) {
        assert!((2.0..2.5).contains(&messages), "{nodes} nodes: {messages}");
    }
}

/// Each node writes a page before the barrier: one diff per node, and notices that grow linearly with the
/// pages written.
#[test]
fn a_barrier_with_dirty_pages_takes_one_more_message_a_node() {
    for (nodes, Traffic { messages, bytes }) in costs(Protocol::Hlrc, Operation::Barrier) {
        let nodes = f64::from(nodes);
        assert_eq!(messages, 2.0 * (nodes - 1.0) + nodes);
        assert!(bytes <= nodes * (40.0 + 12.0 * nodes), "{nodes} nodes: {bytes} bytes");
    }
    for (nodes, Traffic { messages, .. }) in costs(Protocol::Sc, Operation::Barrier) {
        assert_eq!(messages, 2.0 * f64::from(nodes - 1), "pages that nobody else touches cost nothing");
    }
}
