//! Seals every outgoing datagram, and drops every incoming one that is not a fresh one sealed for this node.
//!
//! Read first: [`crate::seal`], and RFC 4303 §3.4.3 (anti-replay) for the order of the checks on arrival.
//!
//! ```text
//! offset bytes
//!  0     8      count (little-endian): number of earlier datagrams from this sender to this receiver
//!  8     …      datagram of the hook above, encrypted
//!  end-16 16    tag over count and content
//! ```
//!
//! The source address of a datagram determines the sender, whose key is then tried; the tag proves that the
//! address is true. A direction's key depends on job, sender and receiver, so a datagram that is reflected to
//! its sender or passed to a third node does not open. Every transmission has a new count, retransmissions
//! too, so no count is used twice.
//!
//! # The order of checks on arrival
//!
//! Address (by the caller), length, replay window, tag. Only then is the count recorded. The cheaper checks
//! come first, and a datagram that is not genuine changes no state.

use core::ops::Range;

use hiroba_base::NodeId;
use hiroba_wire::control::JobKey;

use super::replay::ReplayWindow;
use super::{Hook, Incoming, Outgoing};
use crate::link::DATAGRAM_BYTES_MAX;
use crate::seal::{DirectionKey, TAG_BYTES};
use crate::traits::FabricConfig;

/// Bytes of the count, which is not encrypted.
pub const HEAD_BYTES: usize = 8;

/// The number of bytes that a seal adds to a datagram.
pub const OVERHEAD_BYTES: usize = HEAD_BYTES + TAG_BYTES;

/// Separates these keys from those of other fabrics.
const FABRIC: &[u8] = b"udp";

fn direction_key(job: &JobKey, from: NodeId, to: NodeId) -> DirectionKey {
    DirectionKey::derive(job, &[FABRIC, &from.0.to_be_bytes(), &to.0.to_be_bytes()])
}

/// Makes one node's seals. All keys are derived at the start, so that no datagram causes an allocation: about
/// 300 bytes and a few microseconds per peer.
pub struct Sealing;

impl Sealing {
    /// Makes the hook of a node.
    pub fn hook(config: &FabricConfig) -> Hook {
        let key = |from, to| direction_key(&config.key, from, to);
        let peers = || (0..config.addresses.len() as u16).map(NodeId);
        let outgoing = peers().map(|peer| Sealed { key: key(config.local, peer), count: 0 });
        let incoming =
            peers().map(|peer| Opened { key: key(peer, config.local), window: ReplayWindow::default() });
        Hook {
            outgoing: Some(Box::new(Seals { peers: outgoing.collect(), room: vec![0; DATAGRAM_BYTES_MAX] })),
            incoming: Some(Box::new(Opens { local: config.local, peers: incoming.collect() })),
            overhead_bytes: OVERHEAD_BYTES,
        }
    }
}

/// A direction that leaves this node.
struct Sealed {
    key: DirectionKey,
    /// The count of the next datagram.
    count: u64,
}

struct Seals {
    peers: Vec<Sealed>,
    /// Buffer in which datagrams are sealed: the link keeps its own unencrypted until they are acknowledged.
    room: Vec<u8>,
}

impl Outgoing for Seals {
    fn pass(&mut self, to: NodeId, datagram: &[u8], next: &mut dyn FnMut(NodeId, &[u8])) {
        let Sealed { key, count } = &mut self.peers[to.index()];
        let end = HEAD_BYTES + datagram.len();
        let (sealed, rest) = self.room.split_at_mut(end);
        let (head, content) = sealed.split_at_mut(HEAD_BYTES);
        head.copy_from_slice(&count.to_le_bytes());
        rest[..TAG_BYTES].copy_from_slice(&key.seal_into(*count, head, datagram, content));
        *count += 1;
        next(to, &self.room[..end + TAG_BYTES]);
    }
}

/// A direction that ends at this node.
struct Opened {
    key: DirectionKey,
    window: ReplayWindow,
}

struct Opens {
    local: NodeId,
    peers: Vec<Opened>,
}

impl Incoming for Opens {
    fn pass(&mut self, from: NodeId, datagram: &mut [u8]) -> Option<Range<usize>> {
        let content_end = datagram.len().checked_sub(TAG_BYTES)?;
        let (sealed, tag) = datagram.split_at_mut_checked(content_end)?;
        let count = u64::from_le_bytes(*sealed.first_chunk::<HEAD_BYTES>()?);
        let tag: &[u8; TAG_BYTES] = tag.first_chunk()?;
        if from == self.local {
            return None;
        }
        let Opened { key, window } = self.peers.get_mut(from.index())?;
        if !window.is_new(count) {
            return None;
        }
        key.open(count, sealed, HEAD_BYTES, tag).ok()?;
        window.accept(count);
        Some(HEAD_BYTES..content_end)
    }
}

#[cfg(test)]
mod tests {
    use super::super::replay::WINDOW_COUNTS;
    use super::*;
    use std::net::SocketAddr;

    fn hook(local: u16, key: u8) -> Hook {
        let addresses = vec![SocketAddr::from(([127, 0, 0, 1], 1)); 3];
        let (job, key) = (0, JobKey::new(&[key; 32]));
        Sealing::hook(&FabricConfig { local: NodeId(local), addresses, job, key, inject: None })
    }

    fn seal(from: &mut Hook, to: u16, content: &[u8]) -> Vec<u8> {
        let mut sealed = Vec::new();
        from.outgoing.as_mut().unwrap().pass(NodeId(to), content, &mut |_, bytes| sealed = bytes.to_vec());
        assert_eq!(sealed.len(), content.len() + from.overhead_bytes);
        sealed
    }

    fn open(at: &mut Hook, from: u16, datagram: &[u8]) -> Option<Vec<u8>> {
        let mut bytes = datagram.to_vec();
        let content = at.incoming.as_mut().unwrap().pass(NodeId(from), &mut bytes)?;
        Some(bytes[content].to_vec())
    }

    #[test]
    fn what_a_peer_sealed_opens_once_for_its_receiver_alone() {
        let (mut zero, mut one, mut two) = (hook(0, 1), hook(1, 1), hook(2, 1));
        let first = seal(&mut zero, 1, b"secret page");
        assert!(!first.windows(6).any(|bytes| bytes == b"secret"));
        assert_ne!(first, seal(&mut zero, 1, b"secret page"), "a retransmission bears a new count");
        assert_eq!(open(&mut two, 0, &first), None, "sealed for another node");
        assert_eq!(open(&mut one, 2, &first), None, "sealed by another node");
        assert_eq!(open(&mut zero, 1, &first), None, "reflected to its sender");
        assert_eq!(open(&mut hook(1, 2), 0, &first), None, "sealed with another job's key");
        assert_eq!(open(&mut one, 0, &first).as_deref(), Some(&b"secret page"[..]));
        assert_eq!(open(&mut one, 0, &first), None, "replayed");
        assert_eq!(open(&mut one, 1, &first), None, "from the node itself");
        assert_eq!(open(&mut one, 9, &first), None, "from an unknown node");
    }

    #[test]
    fn a_forgery_changes_nothing() {
        let (mut zero, mut one) = (hook(0, 1), hook(1, 1));
        let genuine = seal(&mut zero, 1, b"");
        for length in 0..genuine.len() {
            assert_eq!(open(&mut one, 0, &genuine[..length]), None);
        }
        for bit in 0..genuine.len() * 8 {
            let mut forged = genuine.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(&mut one, 0, &forged), None, "bit {bit}");
        }
        // If one of the large counts among these had been recorded, this one would lie below the window.
        assert_eq!(open(&mut one, 0, &genuine).as_deref(), Some(&b""[..]));
    }

    #[test]
    fn late_datagrams_open_within_the_window() {
        let (mut zero, mut one) = (hook(0, 1), hook(1, 1));
        let late = seal(&mut zero, 1, b"late");
        let too_late = seal(&mut zero, 1, b"too late");
        for _ in 0..WINDOW_COUNTS - 2 {
            let datagram = seal(&mut zero, 1, b"page");
            assert!(open(&mut one, 0, &datagram).is_some());
        }
        assert!(open(&mut one, 0, &late).is_some());
        for _ in 0..2 {
            let datagram = seal(&mut zero, 1, b"page");
            assert!(open(&mut one, 0, &datagram).is_some());
        }
        assert_eq!(open(&mut one, 0, &too_late), None);
    }
}
