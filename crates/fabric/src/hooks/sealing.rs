//! Seals every datagram that leaves and drops every one that a peer has not sealed for this node, just now.
//!
//! Read first: [`crate::seal`], and RFC 4303 §3.4.3 (anti-replay) for the order of the checks on arrival.
//!
//! ```text
//! offset bytes
//!  0     8      count (little-endian): how many datagrams this sender has sent to this receiver before
//!  8     …      what the hook above gave, encrypted
//!  end-16 16    tag over count and content
//! ```
//!
//! Who sent a datagram follows from the address that it came from, which names the key; that the address is true follows from the tag.
//! A direction's key depends on job, sender and receiver, so a datagram that is reflected to its sender or passed to a third node does not
//! open. Every transmission has a new count, retransmissions too, so no count is used twice.
//!
//! # Keys and how long they last
//!
//! AES-GCM's assurance wears off with the amount of data under one key. A key therefore seals [`COUNTS_PER_KEY`] datagrams, an *epoch*, and
//! the next is derived from the job's secret, whose number is the count's upper part: nothing is negotiated. The receiver keeps the keys of
//! the last epoch, this one and the next; a count outside these is refused unread.
//!
//! # The order of checks on arrival
//!
//! Address (by whoever calls), length, replay window, epoch, tag, and only then is the count noted: the cheaper first, and nothing that is
//! not genuine changes anything here.

use core::ops::Range;

use hiroba_base::NodeId;
use hiroba_wire::control::JobKey;

use super::replay::ReplayWindow;
use super::{Hook, Incoming, Outgoing};
use crate::link::DATAGRAM_BYTES_MAX;
use crate::seal::{DirectionKey, TAG_BYTES};
use crate::traits::FabricConfig;

/// Bytes of the count, which stays readable.
pub const HEAD_BYTES: usize = 8;

/// By how much a seal lengthens a datagram, in bytes.
pub const OVERHEAD_BYTES: usize = HEAD_BYTES + TAG_BYTES;

/// Datagrams sealed under one key. At 64 KiB each they make 2³⁷ bytes, below the 2³⁸ that RFC 8446 §5.5 allows AES-GCM.
pub const COUNTS_PER_KEY: u64 = 1 << 21;

/// Keeps these keys apart from those of other fabrics.
const FABRIC: &[u8] = b"udp";

/// Derives the keys of a job's directions.
#[derive(Clone)]
struct KeySource {
    job: JobKey,
}

impl KeySource {
    fn key(&self, from: NodeId, to: NodeId, epoch: u64) -> EpochKey {
        let context = [FABRIC, &from.0.to_be_bytes(), &to.0.to_be_bytes(), &epoch.to_be_bytes()];
        EpochKey { epoch, key: DirectionKey::derive(&self.job, &context) }
    }
}

/// A direction's key while its epoch lasts.
struct EpochKey {
    epoch: u64,
    key: DirectionKey,
}

/// One node's seals. All keys are made when it is, so that no datagram causes an allocation: less than 3 KiB and
/// some microseconds a peer.
pub struct Sealing;

impl Sealing {
    /// The hook of a node.
    pub fn hook(config: &FabricConfig) -> Hook {
        let source = KeySource { job: config.key.clone() };
        let peers = || (0..config.addresses.len() as u16).map(NodeId);
        let outgoing = peers().map(|peer| Sealed { key: source.key(config.local, peer, 0), count: 0 });
        let incoming = peers().map(|peer| Opened {
            key: source.key(peer, config.local, 0),
            next: None,
            last: None,
            window: ReplayWindow::default(),
        });
        Hook {
            outgoing: Some(Box::new(Seals {
                local: config.local,
                peers: outgoing.collect(),
                room: vec![0; DATAGRAM_BYTES_MAX],
                source: source.clone(),
            })),
            incoming: Some(Box::new(Opens { local: config.local, peers: incoming.collect(), source })),
            overhead_bytes: OVERHEAD_BYTES,
        }
    }
}

/// A direction that leaves this node.
struct Sealed {
    key: EpochKey,
    /// Of the next datagram.
    count: u64,
}

struct Seals {
    local: NodeId,
    source: KeySource,
    peers: Vec<Sealed>,
    /// Where datagrams are sealed: the link keeps its own readable until they are acknowledged.
    room: Vec<u8>,
}

impl Outgoing for Seals {
    fn pass(&mut self, to: NodeId, datagram: &[u8], next: &mut dyn FnMut(NodeId, &[u8])) {
        let direction = &mut self.peers[to.index()];
        let count = direction.count;
        direction.count += 1;
        if count / COUNTS_PER_KEY != direction.key.epoch {
            direction.key = self.source.key(self.local, to, count / COUNTS_PER_KEY);
        }
        let end = HEAD_BYTES + datagram.len();
        self.room[..HEAD_BYTES].copy_from_slice(&count.to_le_bytes());
        self.room[HEAD_BYTES..end].copy_from_slice(datagram);
        let tag = direction.key.key.seal(count, &mut self.room[..end], HEAD_BYTES);
        self.room[end..end + TAG_BYTES].copy_from_slice(&tag);
        next(to, &self.room[..end + TAG_BYTES]);
    }
}

/// A direction that ends at this node.
struct Opened {
    /// Of the epoch of the latest datagram.
    key: EpochKey,
    /// Of the epoch after, once a datagram has claimed to be of it.
    next: Option<EpochKey>,
    /// Of the epoch before: some of its datagrams may be late.
    last: Option<EpochKey>,
    window: ReplayWindow,
}

struct Opens {
    local: NodeId,
    source: KeySource,
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
        let direction = self.peers.get_mut(from.index())?;
        if !direction.window.is_new(count) {
            return None;
        }
        let epoch = count / COUNTS_PER_KEY;
        let key = if epoch == direction.key.epoch {
            &direction.key
        } else if epoch == direction.key.epoch + 1 {
            direction.next.get_or_insert_with(|| self.source.key(from, self.local, epoch))
        } else {
            direction.last.as_ref().filter(|last| last.epoch == epoch)?
        };
        key.key.open(count, sealed, HEAD_BYTES, tag).ok()?;
        direction.window.accept(count);
        if epoch > direction.key.epoch
            && let Some(next) = direction.next.take()
        {
            direction.last = Some(core::mem::replace(&mut direction.key, next));
        }
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
        let (job, key) = (0, JobKey([key; 32]));
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
        assert_eq!(open(&mut one, 9, &first), None, "from nobody");
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
        // Had one of the great counts among these been noted, this would lie behind the window.
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

    #[test]
    fn keys_follow_one_another_and_the_last_one_serves_what_is_late() {
        let sealed = |count: u64, content: &[u8]| {
            let source = KeySource { job: JobKey([1; 32]) };
            let mut peers = vec![Sealed { key: source.key(NodeId(0), NodeId(0), 0), count: 0 }];
            peers.push(Sealed { key: source.key(NodeId(0), NodeId(1), 0), count });
            let mut seals = Seals { local: NodeId(0), source, peers, room: vec![0; 100] };
            let mut sealed = Vec::new();
            seals.pass(NodeId(1), content, &mut |_, bytes| sealed = bytes.to_vec());
            sealed
        };
        let mut one = hook(1, 1);
        for epoch in 0..4 {
            let last = (epoch + 1) * COUNTS_PER_KEY - 1;
            assert!(open(&mut one, 0, &sealed(last - 1, b"")).is_some());
            assert_eq!(open(&mut one, 0, &sealed(last + 1 + COUNTS_PER_KEY, b"")), None, "two epochs on");
            let mut forged = sealed(last + 1, b"");
            forged[20] ^= 1;
            assert_eq!(open(&mut one, 0, &forged), None);
            assert!(open(&mut one, 0, &sealed(last + 1, b"")).is_some());
            assert!(open(&mut one, 0, &sealed(last, b"")).is_some(), "late, of the epoch before");
            assert_eq!(open(&mut one, 0, &sealed(last, b"")), None);
        }
    }
}
