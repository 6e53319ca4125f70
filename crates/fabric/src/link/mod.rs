//! The reliable link over datagrams: one per peer of a node, sans-IO.
//!
//! Read first: RFC 5681 (windows, when to acknowledge), RFC 6298 (the retransmission timer), and RFC 2018
//! (selective acknowledgement). The link uses them like TCP, with four differences: it carries messages, not
//! bytes; it numbers datagrams, which are retransmitted unchanged; acknowledgements wait to be carried by an
//! answer unless the sender asks for them; and there is no connection. The job's key, which seals datagrams
//! beneath the link, takes the connection's place, and a node lives as long as its job.
//!
//! # A datagram at its sender
//!
//! ```text
//! state     event                                              next      cited
//! (none)    queue: a message, or a fragment of one             Unsent
//! Unsent    queue: another message fits                        Unsent    RFC 896's gain without its delay
//! Unsent    transmit: window open                              InFlight  RFC 5681 §3.1
//! InFlight  cumulative acknowledgement                         (gone)
//! InFlight  selective acknowledgement                          Arrived   RFC 2018; bytes given up at once
//! InFlight  one sent 3 or more transmissions later arrived     Lost      RFC 6675 §4, RFC 9002 §6.1.1
//! InFlight  timer expired                                      Lost      RFC 6298 §5.4
//! Lost      transmit: window open, before anything Unsent      InFlight  RFC 6675 §5
//! Lost      either acknowledgement (it was only late)          as InFlight
//! Arrived   cumulative acknowledgement                         (gone)
//! ```
//!
//! # An acknowledgement at its receiver
//!
//! An acknowledgement is carried by any data to the peer. Without data it is sent alone: at once after a
//! duplicate, at a gap or when one is filled (RFC 5681 §4.2), when the sender asks, or after 32 datagrams;
//! otherwise after 1 ms. A request answered within 1 ms therefore costs two datagrams in all.
//!
//! # Deviations
//!
//! - The timeout is at least 5 ms, at most 1 s, and 100 ms before the first sample. RFC 6298 has 1 s, at
//!   least 60 s, and 1 s.
//! - A round-trip sample counts for at most the present timeout (see [`rtt`]).
//! - The window begins at its maximum and never falls below eight datagrams (see [`congestion`]).
//! - The receiver advertises no window. It keeps 64 datagrams out of order and delivers every message as soon
//!   as it is complete; the sender's window is sized for the peer's socket buffer.
//! - Selective acknowledgements are never taken back, so the sender frees the bytes at once.
//! - Retransmissions to a silent peer never end; they happen once a second. Other code decides that a peer is
//!   dead.
//! - The link does not detect forgeries, nor distinguish a replayed datagram from a late one. The caller has
//!   opened the seals and refused replays ([`crate::hooks::sealing`]). The link still checks every field.

pub mod congestion;
pub mod header;
mod pool;
pub mod receiver;
pub mod rtt;
mod sender;

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BinaryHeap, VecDeque};

use hiroba_base::{Instant, NodeId};

use header::{FRAME_HEADER_BYTES, Header};
pub use header::{HEADER_BYTES, Rejected};
use pool::Buffers;
use receiver::{Accepted, Arrived, REORDER_DATAGRAMS_MAX, Receiver};
use sender::{Sender, SenderLimits};

use crate::unsent::Unsent;

/// The smallest maximum length of datagrams that a link accepts, in bytes.
pub const DATAGRAM_BYTES_MIN: usize = 128;

/// The longest datagram that UDP over IPv4 carries, in bytes.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;

/// A timer that is handled later than its deadline by more than this shows that this node was stopped
/// meanwhile. While something is unacknowledged, a timer is due at least once a second.
const OWN_PAUSE: Duration = Duration::from_millis(500);

/// Limits of a node's links. Values out of bounds are set to the nearest bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// The longest datagram, header included, in bytes.
    pub datagram_bytes_max: usize,
    /// Maximum number of datagrams in flight to one peer, at most 64.
    pub window_datagrams: usize,
    /// Maximum number of bytes in flight to one peer: its share of the receiver's socket buffer.
    pub window_bytes: usize,
}

impl Default for LinkConfig {
    /// Limits for Ethernet.
    fn default() -> LinkConfig {
        LinkConfig { datagram_bytes_max: 1400, window_datagrams: 64, window_bytes: 1 << 20 }
    }
}

/// Counters of a node's links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStatistics {
    /// Messages passed to `send`.
    pub messages_sent: u64,
    /// Messages delivered.
    pub messages_received: u64,
    /// Datagrams of any kind passed to the network.
    pub datagrams_sent: u64,
    /// Datagrams among them that carried only an acknowledgement.
    pub acknowledgements_sent: u64,
    /// Their bytes, headers included.
    pub bytes_sent: u64,
    /// Datagrams retransmitted because no acknowledgement arrived.
    pub retransmits: u64,
    /// Datagrams dropped because they were not of this job, were replays, or were malformed.
    pub datagrams_rejected: u64,
    /// Datagrams received more than once.
    pub duplicates: u64,
}

impl core::ops::AddAssign for LinkStatistics {
    fn add_assign(&mut self, other: LinkStatistics) {
        self.messages_sent += other.messages_sent;
        self.messages_received += other.messages_received;
        self.datagrams_sent += other.datagrams_sent;
        self.acknowledgements_sent += other.acknowledgements_sent;
        self.bytes_sent += other.bytes_sent;
        self.retransmits += other.retransmits;
        self.datagrams_rejected += other.datagrams_rejected;
        self.duplicates += other.duplicates;
    }
}

/// The sizes of a node's queues, for tests and inspection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueSizes {
    /// Datagrams kept because they are unsent or unacknowledged.
    pub datagrams_kept: usize,
    /// Datagrams kept out of order.
    pub datagrams_out_of_order: usize,
    /// Bytes of incomplete messages.
    pub partial_bytes: usize,
    /// Messages that wait for `poll_message`.
    pub messages_waiting: usize,
    /// Timers, including outdated ones.
    pub timers: usize,
    /// Peers that may have something to transmit.
    pub peers_ready: usize,
    /// Buffers kept for reuse.
    pub buffers: usize,
}

struct Link {
    sender: Sender,
    receiver: Receiver,
    /// True if the link is in the queue of peers that may have something to transmit.
    is_ready: bool,
    /// The link's valid entry among the timers.
    timer: Option<Instant>,
    /// The link's share in `backlog_bytes` of the set.
    backlog_counted: usize,
    /// Since when something sent to the peer is unacknowledged and nothing has arrived from it.
    awaiting_since: Option<Instant>,
}

impl Link {
    fn wants_transmit(&self) -> bool {
        self.receiver.must_acknowledge() || self.sender.wants_transmit()
    }

    fn deadline(&self) -> Option<Instant> {
        match (self.sender.deadline(), self.receiver.deadline()) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }
}

/// The links of one node to all its peers.
///
/// After each call that may cause transmissions (`send`, `handle_datagram`, `handle_timeout`) the caller
/// drains [`poll_transmit`](LinkSet::poll_transmit). After `handle_datagram` it also drains
/// [`poll_message`](LinkSet::poll_message), whose queue has no other bound.
pub struct LinkSet {
    local: NodeId,
    config: LinkConfig,
    /// Per peer: the maximum datagram length, and the link once it is used. 4,096 idle peers cost 64 KiB.
    peers: Vec<(u16, Option<Box<Link>>)>,
    ready: VecDeque<NodeId>,
    timers: BinaryHeap<Reverse<(Instant, NodeId)>>,
    inbox: VecDeque<(NodeId, Vec<u8>)>,
    /// Separate pools for datagrams and for returned messages, so that a small message that a caller keeps
    /// does not pin a large buffer.
    buffers: Buffers,
    acknowledgement: [u8; HEADER_BYTES],
    backlog_bytes: usize,
    statistics: LinkStatistics,
}

impl LinkSet {
    /// Makes the links of node `local` in a job of `nodes` nodes.
    ///
    /// # Panics
    ///
    /// Panics if `local` is not one of the nodes.
    pub fn new(local: NodeId, nodes: u16, config: LinkConfig) -> LinkSet {
        assert!(local.0 < nodes, "expected a node of 0..{nodes}, got {local}");
        let datagram_bytes_max = config.datagram_bytes_max.clamp(DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_MAX);
        let config = LinkConfig {
            datagram_bytes_max,
            window_datagrams: config.window_datagrams.clamp(1, REORDER_DATAGRAMS_MAX as usize),
            window_bytes: config.window_bytes.max(2 * datagram_bytes_max),
        };
        LinkSet {
            local,
            config,
            peers: (0..nodes).map(|_| (datagram_bytes_max as u16, None)).collect(),
            ready: VecDeque::new(),
            timers: BinaryHeap::new(),
            inbox: VecDeque::new(),
            buffers: Buffers::default(),
            acknowledgement: [0; HEADER_BYTES],
            backlog_bytes: 0,
            statistics: LinkStatistics::default(),
        }
    }

    /// Returns the node that owns these links.
    pub fn local(&self) -> NodeId {
        self.local
    }

    /// Returns the number of nodes in the job.
    pub fn nodes(&self) -> u16 {
        self.peers.len() as u16
    }

    /// Limits datagrams to `to` below the configured length. Call it before anything is sent to that node.
    pub fn limit_datagram_bytes(&mut self, to: NodeId, datagram_bytes_max: usize) {
        let limit = datagram_bytes_max.clamp(DATAGRAM_BYTES_MIN, self.config.datagram_bytes_max);
        self.peers[to.index()].0 = limit as u16;
    }

    /// Queues the concatenation of `parts` as one message.
    ///
    /// # Panics
    ///
    /// Panics if `to` is this node or not in the job, or if the message is longer than
    /// [`MESSAGE_BYTES_MAX`](crate::MESSAGE_BYTES_MAX).
    pub fn send(&mut self, to: NodeId, parts: &[&[u8]]) {
        let mut message = Unsent::new(parts);
        while self.queue(to, &mut message, usize::MAX) {}
    }

    /// Queues the beginning of a message: at least `bytes` bytes, in whole datagrams. Returns true if some of
    /// the message is left, which must be queued before anything else for this peer.
    ///
    /// # Panics
    ///
    /// Panics if `to` is this node or not in the job.
    pub fn queue(&mut self, to: NodeId, message: &mut Unsent<'_>, bytes: usize) -> bool {
        assert!(to != self.local, "expected a peer to send to, got the node itself");
        self.link(to);
        self.statistics.messages_sent += u64::from(message.is_whole());
        let buffers = &mut self.buffers.datagrams;
        if let Some(link) = &mut self.peers[to.index()].1 {
            let mut queued = link.sender.queue(message, buffers);
            while message.rest() > 0 && queued < bytes {
                queued += link.sender.queue(message, buffers);
            }
        }
        self.refresh(to);
        message.rest() > 0
    }

    /// Handles a datagram from `source`; the caller has verified the source.
    ///
    /// # Errors
    ///
    /// Returns why it was dropped. A dropped datagram is counted and has no other effect. No input makes this
    /// panic.
    pub fn handle_datagram(&mut self, source: NodeId, bytes: &[u8], now: Instant) -> Result<(), Rejected> {
        let mut inbox = std::mem::take(&mut self.inbox);
        let mut keep = |arrived: Arrived| inbox.push_back((source, arrived.into_bytes(bytes)));
        let result = self.handle_datagram_in_place(source, bytes, now, &mut keep);
        self.inbox = inbox;
        result
    }

    /// Handles a datagram like [`handle_datagram`](LinkSet::handle_datagram), but passes the messages that
    /// are next in order to `deliver`. Those that lie whole in the datagram are not copied.
    ///
    /// # Errors
    ///
    /// As [`handle_datagram`](LinkSet::handle_datagram).
    pub fn handle_datagram_in_place(
        &mut self,
        source: NodeId,
        bytes: &[u8],
        now: Instant,
        deliver: &mut dyn FnMut(Arrived),
    ) -> Result<(), Rejected> {
        let result = self.take_in(source, bytes, now, deliver);
        if result.is_err() {
            self.statistics.datagrams_rejected += 1;
        }
        result
    }

    /// Counts datagrams that the caller has dropped itself, for their address, length or seal.
    pub fn count_rejected(&mut self, datagrams: u64) {
        self.statistics.datagrams_rejected += datagrams;
    }

    fn take_in(
        &mut self,
        source: NodeId,
        bytes: &[u8],
        now: Instant,
        deliver: &mut dyn FnMut(Arrived),
    ) -> Result<(), Rejected> {
        let (header, payload) = Header::parse(bytes)?;
        if source == self.local || source.index() >= self.peers.len() {
            return Err(Rejected::Source { nodes: self.nodes(), got: source });
        }
        let link = self.link(source);
        link.sender.check_acknowledgement(header.acknowledged, header.selective)?;
        if header.data {
            link.receiver.check_sequence(header.sequence)?;
        }
        let LinkSet { peers, buffers, statistics, .. } = self;
        let Some(link) = &mut peers[source.index()].1 else { return Ok(()) };
        link.sender.handle_acknowledgement(
            header.acknowledged,
            header.selective,
            now,
            &mut buffers.datagrams,
        );
        if header.data {
            let mut deliver = |message: Arrived| {
                statistics.messages_received += 1;
                deliver(message);
            };
            let receiver = &mut link.receiver;
            let accepted = receiver.handle_data(&header, payload, now, buffers, &mut deliver);
            if accepted == Accepted::Duplicate {
                statistics.duplicates += 1;
            }
        }
        link.awaiting_since = link.sender.awaits_acknowledgement().then_some(now);
        self.refresh(source);
        Ok(())
    }

    /// Returns the link to `peer`, which is made on first use.
    fn link(&mut self, peer: NodeId) -> &mut Link {
        let (datagram_bytes_max, link) = &mut self.peers[peer.index()];
        link.get_or_insert_with(|| {
            Box::new(Link {
                sender: Sender::new(SenderLimits {
                    datagram_bytes_max: usize::from(*datagram_bytes_max),
                    window_datagrams: self.config.window_datagrams,
                    window_bytes: self.config.window_bytes,
                }),
                receiver: Receiver::default(),
                is_ready: false,
                timer: None,
                backlog_counted: 0,
                awaiting_since: None,
            })
        })
    }

    /// Updates the node's queues after a link has changed.
    fn refresh(&mut self, peer: NodeId) {
        let Some(link) = &mut self.peers[peer.index()].1 else { return };
        let backlog = link.sender.backlog_bytes();
        self.backlog_bytes = self.backlog_bytes - link.backlog_counted + backlog;
        link.backlog_counted = backlog;
        if !link.is_ready && link.wants_transmit() {
            link.is_ready = true;
            self.ready.push_back(peer);
        }
        // A timer that moved later keeps its entry, which is corrected when it comes up. Every
        // acknowledgement moves the deadline, so that must cost nothing.
        if let Some(deadline) = link.deadline()
            && link.timer.is_none_or(|timer| deadline < timer)
        {
            link.timer = Some(deadline);
            self.timers.push(Reverse((deadline, peer)));
        }
    }

    /// Writes the next datagram to transmit to `out` (which is overwritten). Returns its destination.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<NodeId> {
        let (to, datagram) = self.transmit(now)?;
        out.clear();
        out.extend_from_slice(datagram);
        Some(to)
    }

    /// Returns the next datagram like [`poll_transmit`](LinkSet::poll_transmit), without a copy. Peers take
    /// turns.
    pub fn transmit(&mut self, now: Instant) -> Option<(NodeId, &[u8])> {
        loop {
            let peer = self.ready.pop_front()?;
            let Some(link) = &mut self.peers[peer.index()].1 else { continue };
            link.is_ready = false;
            let transmission = link.sender.transmit(now);
            if transmission.is_none() && !link.receiver.must_acknowledge() {
                continue;
            }
            let header = Header {
                data: transmission.is_some(),
                acknowledge_now: transmission.is_some_and(|datagram| datagram.acknowledge_now),
                sequence: transmission.map_or(link.sender.unsent(), |datagram| datagram.sequence),
                acknowledged: link.receiver.acknowledged(),
                selective: link.receiver.selective(),
            };
            link.receiver.acknowledgement_sent();
            match transmission {
                Some(datagram) => {
                    link.awaiting_since.get_or_insert(now);
                    if let Some(place) = link.sender.header_mut(datagram.index) {
                        header.emit(place);
                    }
                    self.statistics.retransmits += u64::from(datagram.again);
                }
                None => {
                    header.emit(&mut self.acknowledgement);
                    self.statistics.acknowledgements_sent += 1;
                }
            }
            self.refresh(peer);
            let datagram = match (transmission, &self.peers[peer.index()].1) {
                (Some(datagram), Some(link)) => link.sender.datagram(datagram.index),
                _ => &self.acknowledgement,
            };
            self.statistics.datagrams_sent += 1;
            self.statistics.bytes_sent += datagram.len() as u64;
            return Some((peer, datagram));
        }
    }

    /// Returns the next complete message in order, and its sender.
    pub fn poll_message(&mut self) -> Option<(NodeId, Vec<u8>)> {
        self.inbox.pop_front()
    }

    /// Takes back the buffer of a message for reuse.
    pub fn recycle(&mut self, message: Vec<u8>) {
        self.buffers.messages.give(message);
    }

    /// Returns when to call [`handle_timeout`](LinkSet::handle_timeout); may be earlier than necessary.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((deadline, _))| *deadline)
    }

    /// Handles the timers that are due. Transmissions may follow.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(Reverse((deadline, peer))) = self.timers.peek().copied() {
            if deadline > now {
                return;
            }
            self.timers.pop();
            let Some(link) = &mut self.peers[peer.index()].1 else { continue };
            if link.timer != Some(deadline) {
                // An earlier entry has taken this one's place.
                continue;
            }
            link.timer = None;
            if now.saturating_since(deadline) > OWN_PAUSE {
                // This node was stopped: the peer's answers may still be unread.
                link.awaiting_since = link.awaiting_since.map(|_| now);
            }
            link.sender.handle_timeout(now);
            link.receiver.handle_timeout(now);
            self.refresh(peer);
        }
    }

    /// Sends all waiting acknowledgements with the next transmissions. For a node that is about to fall
    /// silent. Examines every peer.
    pub fn hasten_acknowledgements(&mut self) {
        for peer in NodeId::all(self.nodes()) {
            if let Some(link) = &mut self.peers[peer.index()].1 {
                link.receiver.hasten_acknowledgement();
                self.refresh(peer);
            }
        }
    }

    /// Returns the peer that has been silent for the longest time, and for how long: it has not acknowledged
    /// what was sent, and nothing has arrived from it since. Time in which this node itself did not run does
    /// not count. Examines every peer.
    pub fn longest_silence(&self, now: Instant) -> Option<(NodeId, Duration)> {
        let overdue = self.poll_timeout().is_some_and(|timer| now.saturating_since(timer) > OWN_PAUSE);
        if overdue {
            return None;
        }
        let silence = |node: NodeId| {
            let since = self.peers[node.index()].1.as_ref()?.awaiting_since?;
            Some((node, now.saturating_since(since)))
        };
        NodeId::all(self.nodes()).filter_map(silence).max_by_key(|&(_, silence)| silence)
    }

    /// Returns the bytes queued for `to` that it has not acknowledged, framing included.
    pub fn backlog_bytes(&self, to: NodeId) -> usize {
        self.peers[to.index()].1.as_ref().map_or(0, |link| link.sender.backlog_bytes())
    }

    /// Returns the same over all peers.
    pub fn backlog_bytes_all(&self) -> usize {
        self.backlog_bytes
    }

    /// Returns true if everything sent has been acknowledged.
    pub fn is_idle(&self) -> bool {
        self.backlog_bytes == 0
    }

    /// Returns the numbers of datagrams and bytes in flight to `to`.
    pub fn in_flight(&self, to: NodeId) -> (usize, usize) {
        self.peers[to.index()].1.as_ref().map_or((0, 0), |link| link.sender.in_flight())
    }

    /// Returns the counters.
    pub fn statistics(&self) -> LinkStatistics {
        self.statistics
    }

    /// Returns the longest message to `to` that fits into one datagram, in bytes.
    pub fn inline_bytes_max(&self, to: NodeId) -> usize {
        usize::from(self.peers[to.index()].0) - HEADER_BYTES - FRAME_HEADER_BYTES
    }

    /// Returns the sizes of the queues. Examines every peer.
    pub fn queue_sizes(&self) -> QueueSizes {
        let mut sizes = QueueSizes {
            messages_waiting: self.inbox.len(),
            timers: self.timers.len(),
            peers_ready: self.ready.len(),
            buffers: self.buffers.datagrams.len() + self.buffers.messages.len(),
            ..QueueSizes::default()
        };
        for link in self.peers.iter().filter_map(|peer| peer.1.as_ref()) {
            let (out_of_order, partial_bytes) = link.receiver.kept();
            sizes.datagrams_kept += link.sender.kept();
            sizes.datagrams_out_of_order += out_of_order;
            sizes.partial_bytes += partial_bytes;
        }
        sizes
    }
}
