//! The engine: one node's ports.

mod admitting;
mod calls;
mod circles;
mod deaths;
mod moving;
mod name_service;
mod notifying;
mod receiving;
mod rights;
mod sending;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hiroba_base::{Instant, NodeId};

use crate::body::{Body, Parcel};
use crate::effect::{Call, Effect, Outcome};
use crate::error::{PeerError, PortError};
use crate::id::{Name, Once, PortId, Ticket};
use crate::known::{Flow, Known, Place};
use crate::names::{Entry, Names};
use crate::wire::{ACCEPTANCES_MAX, Acceptance, Envelope, FlowKey, Packet};

use self::admitting::Incoming;
use self::deaths::Dying;
pub(crate) use self::name_service::NameService;
use self::receiving::Receiver;

/// What bounds an engine. Equal on all nodes, but for the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Names in use at a time; rights that messages bring may go beyond it.
    pub names_max: u32,
    /// Data of a message up to this ride on the request; longer ones are asked memory for first.
    pub ride_bytes: usize,
    /// The length of the pieces of longer messages, in bytes.
    pub piece_bytes: usize,
    /// Pieces that may be on their way before the first of them has come.
    pub window_pieces: usize,
    /// The most bytes of data in a message.
    pub message_bytes_max: u64,
    /// Memory for long messages of other nodes, on their way and in queues; at least `message_bytes_max`.
    pub memory_bytes: u64,
    /// The limit of a new port's queue.
    pub queue_limit: u32,
    /// Requests of a flow that may be out at a time.
    pub requests_max: usize,
    /// How long word of messages taken may wait for a packet to ride on.
    pub acceptance_delay: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            names_max: 1 << 20,
            ride_bytes: 8 << 10,
            piece_bytes: 64 << 10,
            window_pieces: 8,
            message_bytes_max: 256 << 20,
            memory_bytes: 1 << 30,
            queue_limit: 16,
            requests_max: 16,
            acceptance_delay: Duration::from_micros(200),
        }
    }
}

/// One node's ports, rights and messages.
///
/// The host calls [`call`](Engine::call), [`handle_message`](Engine::handle_message),
/// [`handle_death`](Engine::handle_death) and [`handle_time`](Engine::handle_time), polls effects after each
/// until there are none, and comes back at [`next_timeout`](Engine::next_timeout).
#[derive(Debug)]
pub struct Engine {
    pub(crate) me: NodeId,
    nodes: u16,
    config: Config,
    now: Instant,
    pub(crate) names: Names,
    pub(crate) known: BTreeMap<PortId, Known>,
    /// Send rights in messages in the keeping of this node whose port has died.
    strays: BTreeMap<PortId, u32>,
    pub(crate) flows: BTreeMap<FlowKey, Flow>,
    next_serial: u64,
    pub(crate) incoming: BTreeMap<(NodeId, FlowKey, u64), Incoming>,
    memory_used: u64,
    /// Ports at which a message waits for memory, in the order in which they began to.
    hungry: VecDeque<PortId>,
    receivers: BTreeMap<u64, Receiver>,
    next_receiver: u64,
    /// Messages taken.
    served: u64,
    next_relay: u64,
    deadlines: BTreeSet<(Instant, Ticket)>,
    accepted: BTreeMap<NodeId, BTreeMap<PortId, u64>>,
    acceptances_due: Option<Instant>,
    pub(crate) dying: BTreeMap<NodeId, Dying>,
    dead: BTreeSet<NodeId>,
    relocated: BTreeMap<PortId, NodeId>,
    pub(crate) services: Option<NameService>,
    effects: VecDeque<Effect>,
    to_self: VecDeque<Vec<u8>>,
    todo: Todo,
}

/// What must be looked at before a call returns.
#[derive(Debug, Default)]
struct Todo {
    /// Whether this node still holds send rights to them, or anybody does.
    holdings: BTreeSet<PortId>,
    /// What can be sent.
    flows: BTreeSet<FlowKey>,
    /// Who can be let in.
    rooms: BTreeSet<PortId>,
    /// Messages that cannot be received any more.
    parcels: Vec<Parcel>,
    /// Ports whose receive right is gone.
    receives: Vec<PortId>,
    /// Ports whose receive rights may close a circle.
    circles: BTreeSet<PortId>,
    /// Memory has become free.
    memory: bool,
    /// Messages of node 0's name service.
    services: bool,
    /// Whether a death may take effect now.
    deaths: bool,
}

impl Engine {
    /// A node's engine. All nodes of the job begin with a send right to the name service, which node 0 has.
    ///
    /// # Panics
    ///
    /// When the node is none of the job's, or the limits contradict each other.
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
            known: BTreeMap::new(),
            strays: BTreeMap::new(),
            flows: BTreeMap::new(),
            next_serial: 0,
            incoming: BTreeMap::new(),
            memory_used: 0,
            hungry: VecDeque::new(),
            receivers: BTreeMap::new(),
            next_receiver: 0,
            served: 0,
            next_relay: 0,
            deadlines: BTreeSet::new(),
            accepted: BTreeMap::new(),
            acceptances_due: None,
            dying: BTreeMap::new(),
            dead: BTreeSet::new(),
            relocated: BTreeMap::new(),
            services: None,
            effects: VecDeque::new(),
            to_self: VecDeque::new(),
            todo: Todo::default(),
        };
        engine.join_name_service();
        engine
    }

    /// A thread of this node calls; [`Effect::Complete`] with the ticket ends the call, now or later.
    pub fn call(&mut self, ticket: Ticket, call: Call, now: Instant) {
        self.now = self.now.max(now);
        if let Some(result) = self.carry_out(ticket, call) {
            self.complete(ticket, result);
        }
        self.settle();
    }

    /// Ends a call that waits, if it still does.
    pub fn cancel(&mut self, ticket: Ticket) {
        self.give_up(ticket, Some(PortError::Interrupted));
        self.settle();
    }

    /// Bytes of another node came.
    ///
    /// # Errors
    ///
    /// What the peer may not say. The engine is as it was, but for what could be understood.
    pub fn handle_message(&mut self, from: NodeId, bytes: &[u8], now: Instant) -> Result<(), PeerError> {
        self.now = self.now.max(now);
        if self.is_gone(from) {
            return Ok(());
        }
        let result = self.take_envelope(from, bytes);
        self.settle();
        result
    }

    /// Another node has died: no message of it comes any more.
    pub fn handle_death(&mut self, node: NodeId, now: Instant) {
        self.now = self.now.max(now);
        self.hear_of_death(node);
        self.settle();
    }

    /// Time has gone by.
    pub fn handle_time(&mut self, now: Instant) {
        self.now = self.now.max(now);
        while let Some((deadline, ticket)) = self.deadlines.first().copied()
            && deadline <= self.now
        {
            self.deadlines.remove(&(deadline, ticket));
            self.give_up(ticket, None);
        }
        if self.acceptances_due.is_some_and(|due| due <= self.now) {
            self.send_acceptances();
        }
        self.settle();
    }

    /// When [`handle_time`](Engine::handle_time) has something to do.
    pub fn next_timeout(&self) -> Option<Instant> {
        let deadline = self.deadlines.first().map(|(deadline, _)| *deadline);
        [deadline, self.acceptances_due].into_iter().flatten().min()
    }

    /// The next thing to do.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Where the receive right is, as far as is known here, of the port that a name's send right is to.
    pub fn destination(&self, name: Name) -> Option<NodeId> {
        match self.names.get(name).ok()? {
            Entry::Port { port, .. } | Entry::Once { once: Once { port, .. }, .. } => self.place_of(*port),
            Entry::Dead { .. } | Entry::Set { .. } => None,
        }
    }

    /// Bytes of memory set aside for long messages of other nodes.
    pub fn memory_used_bytes(&self) -> u64 {
        self.memory_used
    }

    /// The most bytes that a node's engine keeps of other nodes' small messages and requests at one port: the
    /// paper's formula (section 5.3), whose buffers are a fixed number of bytes for each node, and a queue.
    pub fn port_bytes_max(nodes: u16, queue_limit: u32, config: &Config) -> u64 {
        let per_node =
            size_of::<crate::body::Holder>() + size_of::<crate::body::Parked>() + size_of::<FlowKey>();
        u64::from(nodes) * per_node as u64 + u64::from(queue_limit) * config.ride_bytes as u64
    }

    /// Bytes that are kept of other nodes' small messages and requests at a port that is here.
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

    fn body(&mut self, port: PortId) -> Option<&mut Body> {
        self.known.get_mut(&port)?.body_mut()
    }

    /// Whether the host has said that the node is dead.
    fn is_gone(&self, node: NodeId) -> bool {
        self.dead.contains(&node) || self.dying.get(&node).is_some_and(|dying| dying.heard)
    }

    /// Where to ask for a port: here, or at a node that knows more.
    fn place_of(&self, port: PortId) -> Option<NodeId> {
        Some(match &self.known.get(&port)?.place {
            Place::Here(_) | Place::Leaving { .. } => self.me,
            Place::At(node) => *node,
        })
    }

    fn send(&mut self, to: NodeId, packet: Packet<'_>) {
        self.send_owing(to, packet, false);
    }

    fn send_owing(&mut self, to: NodeId, packet: Packet<'_>, owes: bool) {
        if self.is_gone(to) {
            return;
        }
        let accepted = self.take_acceptances(to);
        let bytes = Envelope { accepted, packet }.encode();
        if to == self.me {
            self.to_self.push_back(bytes);
        } else {
            self.effects.push_back(Effect::Send { to, bytes, owes });
        }
    }

    /// Section 5.4: the list for one node; it rides on whatever goes there (section 7).
    fn take_acceptances(&mut self, to: NodeId) -> Vec<Acceptance> {
        let Some(list) = self.accepted.get_mut(&to) else { return Vec::new() };
        let mut taken = Vec::new();
        while taken.len() < ACCEPTANCES_MAX
            && let Some((port, through)) = list.pop_first()
        {
            taken.push(Acceptance { port, through });
        }
        if list.is_empty() {
            self.accepted.remove(&to);
        }
        if self.accepted.is_empty() {
            self.acceptances_due = None;
        }
        taken
    }

    fn send_acceptances(&mut self) {
        while let Some(to) = self.accepted.keys().next().copied() {
            if self.is_gone(to) {
                self.accepted.remove(&to);
            } else {
                self.send(to, Packet::Acceptances);
            }
        }
        self.acceptances_due = None;
    }

    /// A message of `origin` was taken off the queue, or lost.
    fn accept(&mut self, origin: NodeId, port: PortId, sequence: u64, is_urgent: bool) {
        if self.is_gone(origin) {
            return;
        }
        let through = self.accepted.entry(origin).or_default().entry(port).or_insert(sequence);
        *through = (*through).max(sequence);
        if is_urgent || origin == self.me {
            self.send(origin, Packet::Acceptances);
        } else if self.acceptances_due.is_none() {
            self.acceptances_due = Some(self.now + self.config.acceptance_delay);
        }
    }

    fn take_envelope(&mut self, from: NodeId, bytes: &[u8]) -> Result<(), PeerError> {
        let Envelope { accepted, packet } = Envelope::decode(bytes, self.nodes)?;
        for Acceptance { port, through } in accepted {
            self.messages_accepted(port, through);
        }
        self.take_packet(from, packet)
    }

    fn take_packet(&mut self, from: NodeId, packet: Packet<'_>) -> Result<(), PeerError> {
        match packet {
            Packet::Acceptances => {}
            Packet::Request { flow, number, origin, sequence, hop, load } => {
                let asked = admitting::Asked { from, flow, number, origin, sequence, hop };
                return self.take_request(asked, load);
            }
            Packet::Begin { flow, number, head, released } => {
                return self.begin_long(from, flow, number, head, released);
            }
            Packet::Data { flow, number, offset, bytes } => {
                return self.take_piece(from, flow, number, offset, bytes);
            }
            Packet::Queued { flow, number } => self.message_queued(from, flow, number),
            Packet::Wait { flow, number } => self.told_to_wait(from, flow, number),
            Packet::Ready { flow } => self.told_to_go_on(flow),
            Packet::Permit { flow, number } => self.permitted(from, flow, number),
            Packet::More { flow, number, through } => self.more(from, flow, number, through),
            Packet::Denied { flow, number } => self.denied(from, flow, number),
            Packet::Moved { port, to } => self.port_moved(from, port, to),
            Packet::Relocated { port, to } => self.port_relocated(port, to),
            Packet::Dead { port } => self.port_died(port),
            Packet::Taken { port } => self.port_taken(from, port),
            Packet::Report { port, holds, seen, version } => {
                self.take_report(from, port, holds, seen, version)
            }
            Packet::Reported { port, version } => self.report_heard(port, version),
            Packet::Unpin { port } => self.unpin(from, port),
            Packet::Claim { once, holder } => self.take_claim(from, once, holder),
            Packet::Claimed { once } => self.claim_heard(once),
            Packet::UnpinOnce { once } => self.unpin_once(from, once),
            Packet::Skip { port, through } => self.skip(from, port, through),
            Packet::Relayed { port, sequence, at } => self.relayed(port, sequence, at),
            Packet::Circle { port, path, again } => self.search_circle(port, path, again),
            Packet::Mourned { node } => self.others_mourn(from, node),
        }
        Ok(())
    }

    /// Follows up on everything that has changed, until nothing is left.
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
