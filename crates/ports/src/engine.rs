//! The engine: the ports of one node.

mod admitting;
mod answers;
mod calls;
mod circles;
mod deaths;
mod moving;
mod name_service;
mod notifying;
mod receiving;
mod rights;
mod sending;
mod word;

use core::mem::MaybeUninit;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use hiroba_base::{Instant, NodeId};
use hiroba_wire::Payload;
use rustc_hash::FxHashMap;

use crate::agenda::Agenda;
use crate::body::{Body, Parcel};
use crate::effect::{Call, Effect, Outcome, Tail};
use crate::error::{PeerError, PortError};
use crate::id::{Name, Once, PortId, Ticket};
use crate::known::{Flow, Known, Orphan, Place};
use crate::landing::{Ground, Pool};
use crate::message::Message;
use crate::names::{Entry, Names};
use crate::wire::{Acceptance, Envelope, FlowKey, Packet, Word, head_before_data};

use self::admitting::LongMessages;
use self::deaths::Deaths;
pub(crate) use self::name_service::NameService;
use self::receiving::Receivers;
use self::word::Words;

/// The maximum number of bytes of a message's out-of-line data that land.
const LANDED_BYTES_MAX: u64 = 8 << 20;

/// The bounds of an engine. Equal on all nodes, except the memory.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The maximum number of names in use; rights that messages bring may exceed it.
    pub names_max: u32,
    /// The maximum number of bytes of data that a request carries. Longer messages first request memory.
    pub ride_bytes: usize,
    /// The length of the pieces of longer messages, in bytes.
    pub piece_bytes: usize,
    /// The maximum number of pieces on their way before the first of them has arrived.
    pub window_pieces: usize,
    /// The maximum number of bytes of data in a message.
    pub message_bytes_max: u64,
    /// The bytes of memory for long messages of other nodes, on their way and in queues; at least
    /// `message_bytes_max`.
    pub memory_bytes: u64,
    /// The least number of bytes of out-of-line data that go to a landing pool, where nodes have one.
    pub landing_bytes_min: u64,
    /// The maximum number of bytes of the landing pool that one message takes. The host copies them at once.
    pub landing_bytes_max: u64,
    /// The limit of a new port's queue.
    pub queue_limit: u32,
    /// The maximum number of unanswered requests of a flow.
    pub requests_max: usize,
    /// The maximum time that reports of messages queued and taken wait for a packet to carry them.
    pub word_delay: Duration,
    /// Called with memory that the next pieces of a long message will fill, at most a window of them. The
    /// host may make it ready while they are on their way.
    pub make_ready: fn(&mut [MaybeUninit<u8>]),
}

impl Default for Config {
    fn default() -> Config {
        Config {
            names_max: 1 << 20,
            ride_bytes: 8 << 10,
            // With its heads, one record or datagram of the fabrics, and whole pages.
            piece_bytes: 60 << 10,
            window_pieces: 8,
            message_bytes_max: 256 << 20,
            memory_bytes: 1 << 30,
            landing_bytes_min: 4 << 10,
            landing_bytes_max: LANDED_BYTES_MAX,
            queue_limit: 16,
            requests_max: 16,
            word_delay: Duration::from_micros(200),
            make_ready: |_| {},
        }
    }
}

/// One node's ports, rights and messages.
///
/// The host calls [`call`](Engine::call), [`handle_message`](Engine::handle_message),
/// [`handle_death`](Engine::handle_death) and [`handle_time`](Engine::handle_time), polls effects after each
/// until there are none, and calls again at [`next_timeout`](Engine::next_timeout).
#[derive(Debug)]
pub struct Engine {
    pub(crate) me: NodeId,
    nodes: u16,
    config: Config,
    now: Instant,
    pub(crate) names: Names,
    /// Searched for every message, so it is hashed, like `flows`. Where the order matters, see
    /// `ports_in_order` and `flows_in_order`.
    pub(crate) known: FxHashMap<PortId, Known>,
    /// The numbers of send rights, to ports that have died, in messages that this node holds.
    pub(crate) strays: BTreeMap<PortId, u32>,
    pub(crate) flows: FxHashMap<FlowKey, Flow>,
    pub(crate) orphans: Vec<Orphan>,
    next_serial: u64,
    pub(crate) long: LongMessages,
    pub(crate) pool: Option<Arc<Pool>>,
    receivers: Receivers,
    next_relay: u64,
    deadlines: BTreeSet<(Instant, Ticket)>,
    words: Words,
    pub(crate) deaths: Deaths,
    pub(crate) services: Option<NameService>,
    effects: VecDeque<Effect>,
    to_self: VecDeque<Vec<u8>>,
    todo: Todo,
}

/// Checks that remain before a call returns.
#[derive(Debug, Default)]
struct Todo {
    /// Ports to which this node, or any other, may have no send rights left.
    holdings: Agenda<PortId>,
    /// Flows that may be able to send.
    flows: Agenda<FlowKey>,
    /// Ports that may be able to admit requests.
    rooms: Agenda<PortId>,
    /// Messages that cannot be received any more.
    parcels: Vec<Parcel>,
    /// Ports whose receive right is gone.
    receives: Vec<PortId>,
    /// Ports whose receive rights may close a circle.
    circles: Agenda<PortId>,
    /// True if memory has become free.
    memory: bool,
    /// True if node 0's name service has messages.
    services: bool,
    /// True if a death may take effect now.
    deaths: bool,
}

impl Engine {
    /// Returns a node's engine. All nodes of the job start with a send right to the name service, which node
    /// 0 has.
    ///
    /// # Panics
    ///
    /// If the node is not one of the job's, or the limits contradict each other.
    pub fn new(me: NodeId, nodes: u16, config: Config) -> Engine {
        assert!(me.0 < nodes, "expected one of the job's {nodes} nodes, got node {me}");
        assert!(config.memory_bytes >= config.message_bytes_max, "expected memory for one message at least");
        assert!(config.piece_bytes > 0 && config.window_pieces > 0 && config.requests_max > 0);
        let mut engine = Engine {
            me,
            nodes,
            config,
            now: Instant::ORIGIN,
            names: Names::new(config.names_max),
            known: FxHashMap::default(),
            strays: BTreeMap::new(),
            flows: FxHashMap::default(),
            orphans: Vec::new(),
            next_serial: 0,
            long: LongMessages::default(),
            pool: None,
            receivers: Receivers::default(),
            next_relay: 0,
            deadlines: BTreeSet::new(),
            words: Words::new(nodes),
            deaths: Deaths::default(),
            services: None,
            effects: VecDeque::new(),
            to_self: VecDeque::new(),
            todo: Todo::default(),
        };
        engine.join_name_service();
        engine
    }

    /// Gives the node a landing pool. Other nodes that have one put their regions there, if the host carries
    /// [`Effect::Land`] out.
    pub fn land_on(&mut self, ground: Arc<dyn Ground>) {
        self.pool = Some(Arc::new(Pool::new(ground)));
    }

    /// Begins a call of a thread of this node. [`Effect::Complete`] with the ticket ends the call, now or
    /// later.
    pub fn call(&mut self, ticket: Ticket, call: Call, now: Instant) {
        self.now = self.now.max(now);
        if let Some(result) = self.carry_out(ticket, call) {
            self.complete(ticket, result);
        }
        self.settle();
    }

    /// Ends a call if it still waits.
    pub fn cancel(&mut self, ticket: Ticket) {
        self.give_up(ticket, Some(PortError::Interrupted));
        self.settle();
    }

    /// Handles bytes from another node.
    ///
    /// # Errors
    ///
    /// A message that the peer may not send. The engine is unchanged, except for the parts that were valid.
    pub fn handle_message(&mut self, from: NodeId, bytes: &[u8], now: Instant) -> Result<(), PeerError> {
        self.now = self.now.max(now);
        if self.is_gone(from) {
            return Ok(());
        }
        let result = self.take_envelope(from, bytes);
        self.settle();
        result
    }

    /// Handles bytes from another node whose end, a piece of a long message ([`Effect::Send`]'s tail), was
    /// not copied yet. Copies the piece to its place, once its length was checked against what was reserved.
    ///
    /// # Errors
    ///
    /// As [`handle_message`](Engine::handle_message).
    pub fn handle_piece(
        &mut self,
        from: NodeId,
        head: &[u8],
        piece: &mut dyn Payload,
        now: Instant,
    ) -> Result<(), PeerError> {
        self.now = self.now.max(now);
        if self.is_gone(from) {
            return Ok(());
        }
        let result = self.take_headed_piece(from, head, piece);
        self.settle();
        result
    }

    /// Handles the death of another node, from which no more messages come.
    pub fn handle_death(&mut self, node: NodeId, now: Instant) {
        self.now = self.now.max(now);
        self.hear_of_death(node);
        self.settle();
    }

    /// Handles that time has passed.
    pub fn handle_time(&mut self, now: Instant) {
        self.now = self.now.max(now);
        while let Some((deadline, ticket)) = self.deadlines.first().copied()
            && deadline <= self.now
        {
            self.deadlines.remove(&(deadline, ticket));
            self.give_up(ticket, None);
        }
        self.send_due_word();
        self.settle();
    }

    /// Returns the time at which to call [`handle_time`](Engine::handle_time).
    pub fn next_timeout(&self) -> Option<Instant> {
        let deadline = self.deadlines.first().map(|(deadline, _)| *deadline);
        [deadline, self.words.due()].into_iter().flatten().min()
    }

    /// Returns the next effect.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns the node that has the receive right, as far as this node knows, of the port that a name's send
    /// right is for.
    pub fn destination(&self, name: Name) -> Option<NodeId> {
        match self.names.get(name).ok()? {
            Entry::Port { port, .. } | Entry::Once { once: Once { port, .. }, .. } => self.place_of(*port),
            Entry::Dead { .. } | Entry::Set { .. } => None,
        }
    }

    /// Returns the number of bytes of memory reserved for long messages of other nodes.
    pub fn memory_used_bytes(&self) -> u64 {
        self.long.memory_used
    }

    /// Returns the number of bytes of the landing pool that are in use: by messages on their way and in
    /// queues, and by regions that the program has received and not given back.
    pub fn landing_used_bytes(&self) -> u64 {
        self.pool.as_ref().map_or(0, |pool| pool.used_bytes())
    }

    /// Returns the maximum number of bytes of other nodes' small messages and requests that a node's engine
    /// keeps for one port: the paper's formula (section 5.3), with a fixed number of bytes for each node, and
    /// a queue. While a port that has moved waits for relayed messages, it keeps one more request for each
    /// former node and sender.
    pub fn port_bytes_max(nodes: u16, queue_limit: u32, config: &Config) -> u64 {
        let per_node =
            size_of::<crate::body::Holder>() + size_of::<crate::body::Parked>() + size_of::<FlowKey>();
        u64::from(nodes) * per_node as u64 + u64::from(queue_limit) * config.ride_bytes as u64
    }

    /// Returns the number of bytes of other nodes' small messages and requests that are kept for a port that
    /// is here.
    pub fn port_bytes(&self, name: Name) -> Option<u64> {
        let Ok(Entry::Port { port, .. }) = self.names.get(name) else { return None };
        let body = self.known.get(port)?.body()?;
        let per_node = body.holders.len() * size_of::<crate::body::Holder>()
            + body.parked.len() * size_of::<crate::body::Parked>()
            + body.promised.len() * size_of::<FlowKey>();
        let small = body.queue.iter().filter(|queued| queued.reserved_bytes == 0);
        Some(per_node as u64 + small.map(|queued| queued.parcel.data_bytes()).sum::<u64>())
    }

    fn complete(&mut self, ticket: Ticket, result: Result<Outcome, PortError>) {
        self.effects.push_back(Effect::Complete { ticket, result });
    }

    /// Returns a message that was not taken to its sender, as Mach does.
    fn return_message(&mut self, ticket: Ticket, Message { regions, .. }: Message) {
        if !regions.is_empty() {
            self.effects.push_back(Effect::Returned { ticket, regions });
        }
    }

    /// Returns the known ports in ascending order, so that what follows from them does not depend on hashes.
    pub(crate) fn ports_in_order(&self) -> Vec<PortId> {
        let mut ports: Vec<_> = self.known.keys().copied().collect();
        ports.sort_unstable();
        ports
    }

    /// Returns the keys of the flows in ascending order, like [`ports_in_order`](Self::ports_in_order).
    pub(crate) fn flows_in_order(&self) -> Vec<FlowKey> {
        let mut flows: Vec<_> = self.flows.keys().copied().collect();
        flows.sort_unstable();
        flows
    }

    fn body(&mut self, port: PortId) -> Option<&mut Body> {
        self.known.get_mut(&port)?.body_mut()
    }

    /// Returns true if the host has reported the node's death.
    fn is_gone(&self, node: NodeId) -> bool {
        self.deaths.dead.contains(&node) || self.deaths.dying.get(&node).is_some_and(|dying| dying.heard)
    }

    /// Returns the node to which requests for a port go: this one, or one that knows more.
    fn place_of(&self, port: PortId) -> Option<NodeId> {
        Some(match &self.known.get(&port)?.place {
            Place::Here(_) | Place::Leaving { .. } => self.me,
            Place::At(node) => *node,
        })
    }

    fn send(&mut self, to: NodeId, packet: Packet<'_>) {
        self.send_encoded(to, packet, None, false, |envelope| envelope.encode());
    }

    /// Sends a packet that ends in a piece of a region.
    fn send_with_tail(&mut self, to: NodeId, packet: Packet<'_>, tail: Tail) {
        let bytes = tail.bytes().len();
        self.send_encoded(to, packet, Some(tail), false, |envelope| envelope.encode_before_data(bytes, 0));
    }

    /// Sends a packet as `encode` encodes it. Returns the packet.
    fn send_encoded<'a>(
        &mut self,
        to: NodeId,
        packet: Packet<'a>,
        tail: Option<Tail>,
        owes: bool,
        encode: impl FnOnce(&Envelope<'a>) -> Vec<u8>,
    ) -> Packet<'a> {
        if self.is_gone(to) {
            return packet;
        }
        let word = self.words.take(to);
        let envelope = Envelope { word, packet };
        let mut bytes = encode(&envelope);
        let Envelope { word, packet } = envelope;
        self.words.give_back(to, word);
        if to == self.me {
            tail.iter().for_each(|tail| bytes.extend_from_slice(tail.bytes()));
            self.to_self.push_back(bytes);
        } else {
            self.effects.push_back(Effect::Send { to, bytes, tail, owes });
        }
        packet
    }

    fn take_envelope(&mut self, from: NodeId, bytes: &[u8]) -> Result<(), PeerError> {
        let Envelope { word, packet } = Envelope::decode(bytes, self.nodes)?;
        self.take_word(from, word);
        self.take_packet(from, packet)
    }

    fn take_headed_piece(
        &mut self,
        from: NodeId,
        head: &[u8],
        piece: &mut dyn Payload,
    ) -> Result<(), PeerError> {
        let head = head_before_data(head, piece.bytes())?;
        let Envelope { word, packet } = Envelope::decode(&head, self.nodes)?;
        let Packet::Data { flow, number, offset, .. } = packet else {
            return Err(PeerError::Unexpected { expected: "a piece of a message", from: from.0 });
        };
        self.take_word(from, word);
        self.take_piece(from, flow, number, offset, piece)
    }

    fn take_word(&mut self, from: NodeId, Word { queued, accepted }: Word) {
        for answered in queued {
            self.message_queued(from, answered);
        }
        for Acceptance { port, through } in accepted {
            self.messages_accepted(port, through);
        }
    }

    fn take_packet(&mut self, from: NodeId, packet: Packet<'_>) -> Result<(), PeerError> {
        match packet {
            Packet::WordAlone => {}
            Packet::Request { flow, number, hop, load } => {
                let asked = admitting::Asked { from, flow, number, hop };
                return self.take_request(asked, load);
            }
            Packet::Begin { flow, number, landed, head, released } => {
                return self.begin_long((from, flow, number), landed, head, released);
            }
            Packet::Data { flow, number, offset, mut bytes } => {
                return self.take_piece(from, flow, number, offset, &mut bytes);
            }
            Packet::Wait { flow, number, moves } => self.told_to_wait(from, flow, number, moves),
            Packet::Ready { flow } => self.told_to_go_on(flow),
            Packet::Permit { flow, number, landing } => return self.permitted(from, flow, number, landing),
            Packet::GaveUp { flow, number } => self.gave_up((from, flow, number)),
            Packet::More { flow, number, through } => self.more(from, flow, number, through),
            Packet::Denied { flow, number } => self.denied(from, flow, number),
            Packet::Moved { port, to, moves } => self.port_moved(from, port, to, moves),
            Packet::Relocated { port, to, moves } => self.port_relocated(port, to, moves),
            Packet::Dead { port } => self.port_died(from, port),
            Packet::Taken { port, moves } => self.port_taken(from, port, moves),
            Packet::Report { port, holds, seen, version } => {
                self.take_report(from, port, holds, seen, version)
            }
            Packet::Reported { port, version } => self.report_heard(port, version),
            Packet::Unpin { port } => self.unpin(from, port),
            Packet::Claim { once, holder } => self.take_claim(from, once, holder),
            Packet::Claimed { once } => self.claim_heard(once),
            Packet::UnpinOnce { once } => self.unpin_once(from, once),
            Packet::Skip { port, first, last } => return self.skip(from, port, first, last),
            Packet::Relayed { port, number, at, moves } => self.relayed(port, number, at, moves),
            Packet::Survives { port, origin, number } => return self.survives(from, (port, origin, number)),
            Packet::Told { node } => self.others_told(from, node),
            Packet::Circle { port, path, again } => self.search_circle(port, path, again),
            Packet::Mourned { node } => self.others_mourn(from, node),
        }
        Ok(())
    }

    /// Handles the consequences of all changes, until none are left.
    fn settle(&mut self) {
        loop {
            if let Some(bytes) = self.to_self.pop_front() {
                let taken = self.take_envelope(self.me, &bytes);
                assert!(taken.is_ok(), "what this node says to itself is right: {taken:?}");
            } else if let Some(port) = self.todo.receives.pop() {
                self.destroy_receive(port);
            } else if let Some(parcel) = self.todo.parcels.pop() {
                self.destroy_parcel(parcel);
            } else if let Some(port) = self.todo.holdings.pop_first() {
                self.look_at_holdings(port);
            } else if core::mem::take(&mut self.todo.memory) {
                self.share_out_memory();
            } else if let Some(port) = self.todo.rooms.pop_first() {
                self.let_in(port);
            } else if let Some(flow) = self.todo.flows.pop_first() {
                self.pump(flow);
            } else if let Some(port) = self.todo.circles.pop_first() {
                self.search_circle(port, Vec::new(), 0);
            } else if core::mem::take(&mut self.todo.services) {
                self.serve_names();
            } else if core::mem::take(&mut self.todo.deaths) {
                self.look_at_deaths();
            } else {
                return;
            }
        }
    }
}
