//! Entry points for fuzzing with bytes that strangers may have made.

use hiroba_base::{Instant, NodeId};

use crate::effect::{Call, Outcome};
use crate::engine::{Config, Engine};
use crate::wire::Envelope;
use crate::{Effect, Patience};

/// Handles any bytes as a packet of another node: decodes them, passes them to an engine that has a port,
/// holders and a waiting receiver, and lets time pass. Must neither panic nor hang, nor take memory beyond a
/// bound.
pub fn packet(bytes: &[u8]) {
    let nodes = 3;
    if let Ok(envelope) = Envelope::decode(bytes, nodes) {
        let again = envelope.encode();
        assert_eq!(Envelope::decode(&again, nodes).as_ref(), Ok(&envelope), "a packet means what it meant");
    }
    let config = Config { message_bytes_max: 1 << 16, memory_bytes: 1 << 17, ..Config::default() };
    for me in [NodeId(0), NodeId(1)] {
        let mut engine = Engine::new(me, nodes, config);
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
