//! Entry points for fuzzing with bytes that strangers may have made.

use std::sync::Arc;

use hiroba_base::{Instant, NodeId};

use crate::effect::{Call, Outcome};
use crate::engine::{Config, Engine};
use crate::id::PortId;
use crate::landing::{Ground, PLACE_BYTES, UNIT_BYTES};
use crate::wire::{Envelope, FlowKey, Load, Packet, Word};
use crate::{Effect, Patience};

/// A landing pool in which nothing has ever landed.
#[derive(Debug)]
struct Fallow;

impl Ground for Fallow {
    fn bytes(&self) -> u64 {
        2 * UNIT_BYTES
    }

    fn address(&self, _offset: u64) -> *mut u8 {
        core::ptr::null_mut()
    }

    fn append_to(&self, _offset: u64, bytes: usize, into: &mut Vec<u8>) {
        into.resize(into.len() + bytes, 0);
    }
}

/// Lets a node ask the name service for memory for a message of 7 bytes.
fn ask(engine: &mut Engine, from: NodeId) {
    let load = Load::Bytes { bytes: 7, landing_bytes: PLACE_BYTES };
    let packet = Packet::Request { flow: FlowKey::Own(PortId::NAME_SERVICE), number: 0, hop: 0, load };
    let request = Envelope { word: Word::default(), packet }.encode();
    let _ = engine.handle_message(from, &request, Instant::ORIGIN);
    while engine.poll_effect().is_some() {}
}

/// Handles any bytes as a packet of another node: decodes them, passes them to an engine that has a port,
/// holders, a waiting receiver and a landing pool, and lets time pass. Must neither panic nor hang, nor take
/// memory beyond a bound.
pub fn packet(bytes: &[u8]) {
    let nodes = 3;
    if let Ok(envelope) = Envelope::decode(bytes, nodes) {
        let again = envelope.encode();
        assert_eq!(Envelope::decode(&again, nodes).as_ref(), Ok(&envelope), "a packet means what it meant");
    }
    let config = Config { message_bytes_max: 1 << 16, memory_bytes: 1 << 17, ..Config::default() };
    // Node 0 has the name service. The second time it has permitted a message.
    for (me, has_asked) in [(NodeId(0), false), (NodeId(0), true), (NodeId(1), false)] {
        let mut engine = Engine::new(me, nodes, config);
        engine.land_on(Arc::new(Fallow));
        engine.call(1, Call::AllocatePort, Instant::ORIGIN);
        let name = core::iter::from_fn(|| engine.poll_effect()).find_map(|effect| match effect {
            Effect::Complete { result: Ok(Outcome::Name(name)), .. } => Some(name),
            _ => None,
        });
        if let Some(from) = name {
            engine.call(
                2,
                Call::Receive { from, bytes_max: None, patience: Patience::Endless },
                Instant::ORIGIN,
            );
        }
        let peer = NodeId(2);
        if has_asked {
            ask(&mut engine, peer);
            assert_eq!(engine.landing_used_bytes(), UNIT_BYTES, "it was given a place");
        }
        let _ = engine.handle_message(peer, bytes, Instant::ORIGIN);
        while engine.poll_effect().is_some() {}
        // Its end may come as a piece that was not copied yet.
        for piece_bytes in [1, bytes.len() / 2, bytes.len()] {
            let (head, mut piece) = bytes.split_at(bytes.len().saturating_sub(piece_bytes));
            let _ = engine.handle_piece(peer, head, &mut piece, Instant::ORIGIN);
            while engine.poll_effect().is_some() {}
        }
        // A packet that came once may come again.
        let _ = engine.handle_message(peer, bytes, Instant::ORIGIN);
        engine.handle_time(Instant::from_nanos(1 << 40));
        while engine.poll_effect().is_some() {}
        assert!(engine.memory_used_bytes() <= config.memory_bytes, "memory is bounded");
    }
}
