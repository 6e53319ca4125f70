//! Handling of a peer's bytes: packets of every kind, and seeded mutations of them.

use hiroba_base::{NodeId, RngExt, seeded};
use hiroba_ports::wire::{
    Acceptance, Answered, BodyOnWire, Envelope, FlowKey, Head, HolderOnWire, Journey, Load, OnceOnWire,
    Packet, RightOnWire, Word,
};
use hiroba_ports::{DataType, Once, PortId, fuzzing};

fn head() -> Head {
    let port = PortId { birth: NodeId(0), serial: 1 };
    let once = OnceOnWire { once: Once { port, serial: 3, hop: 1 }, at: NodeId(0), granted: true };
    let holder =
        HolderOnWire { node: NodeId(1), holds: true, version: 2, seen: 1, grants: 1, next: 4, taken: 2 };
    let body = BodyOnWire {
        port: PortId { birth: NodeId(2), serial: 5 },
        limit: 16,
        make_send: 2,
        next_once: 4,
        journey: 3,
        moves: 1,
        holders: vec![holder],
        lost: vec![(NodeId(1), 5, 6)],
        onces: vec![(1, 2, NodeId(1))],
        former: vec![NodeId(2)],
        no_senders: Some((1, once)),
        port_destroyed: Some(once),
    };
    Head {
        id: 7,
        types: vec![DataType { name: 8, element_bytes: 1, count: 4 }],
        inline_bytes: 4,
        region_bytes: vec![3, 0],
        has_reply: true,
        rights: vec![
            RightOnWire::SendOnce(once),
            RightOnWire::Send { port, at: NodeId(2), granted: false },
            RightOnWire::Receive(Box::new(body)),
            RightOnWire::Dead,
        ],
        sender: NodeId(2),
    }
}

pub fn examples() -> Vec<Vec<u8>> {
    let port = PortId { birth: NodeId(1), serial: 0 };
    let service = PortId::NAME_SERVICE;
    let (flow, number) = (FlowKey::Own(service), 0);
    let mut small = head();
    small.rights.retain(|right| !matches!(right, RightOnWire::Receive(_)));
    let once = Once { port, serial: 0, hop: 1 };
    let whole = Load::Whole { head: small, released: b"seen", data: b"fourabc" };
    let packets = vec![
        Packet::WordAlone,
        Packet::Request { flow, number, hop: 0, load: whole },
        Packet::Request { flow, number, hop: 0, load: Load::Bytes { bytes: 7, landing_bytes: 64 } },
        Packet::Begin { flow, number, landed: true, head: head(), released: b"seen" },
        Packet::Data { flow, number, offset: 0, bytes: b"four" },
        Packet::Wait { flow: FlowKey::Relay(port, NodeId(2)), number, moves: 1 },
        Packet::Ready { flow: FlowKey::Once(port, 1) },
        Packet::Ready { flow: FlowKey::RelayOnce(port) },
        Packet::Permit { flow, number, landing: None },
        Packet::Permit { flow, number, landing: Some(4096) },
        Packet::GaveUp { flow, number },
        Packet::More { flow, number, through: 4 },
        Packet::Denied { flow, number },
        Packet::Moved { port, to: NodeId(2), moves: 1 },
        Packet::Relocated { port, to: NodeId(2), moves: 1 },
        Packet::Dead { port },
        Packet::Taken { port, moves: 1 },
        Packet::Report { port, holds: true, seen: 1, version: 1 },
        Packet::Reported { port, version: 1 },
        Packet::Unpin { port },
        Packet::Claim { once, holder: NodeId(2) },
        Packet::Claimed { once },
        Packet::UnpinOnce { once },
        Packet::Skip { port, first: 2, last: 3 },
        Packet::Relayed { port, number: 0, at: NodeId(2), moves: 1 },
        Packet::Survives { port, origin: NodeId(2), number: 3 },
        Packet::Told { node: NodeId(0) },
        Packet::Mourned { node: NodeId(0) },
        Packet::Circle { port, path: vec![Journey { port: service, number: 2 }], again: 0 },
    ];
    let (queued, accepted) =
        (vec![Answered { flow, number, moves: 1 }], vec![Acceptance { port, through: 5 }]);
    let word = Word { queued, accepted };
    packets.into_iter().map(|packet| Envelope { word: word.clone(), packet }.encode()).collect()
}

#[test]
fn any_bytes_are_taken_without_a_panic() {
    let examples = examples();
    let mut random = seeded(4);
    for example in &examples {
        assert!(Envelope::decode(example, 3).is_ok());
        fuzzing::packet(example);
        for _ in 0..4_000 {
            let mut bytes = example.clone();
            for _ in 0..random.random_range(1..4) {
                let at = random.random_range(0..bytes.len());
                match random.random_range(0..4) {
                    0 => bytes[at] ^= 1 << random.random_range(0..8),
                    1 => bytes[at] = [0, 1, 2, 0x7f, 0x80, 0xff][random.random_range(0..6)],
                    2 => bytes.truncate(at.max(1)),
                    _ => bytes.insert(at, random.random()),
                }
            }
            fuzzing::packet(&bytes);
        }
    }
}

/// Writes the examples to the fuzz target's corpus: `HIROBA_PORTS_CORPUS=DIRECTORY`.
#[test]
fn the_corpus_can_be_written() {
    let Some(directory) = std::env::var_os("HIROBA_PORTS_CORPUS") else { return };
    for (at, bytes) in examples().into_iter().enumerate() {
        std::fs::write(std::path::Path::new(&directory).join(format!("{at:03}")), bytes)
            .expect("a file of the corpus");
    }
}
