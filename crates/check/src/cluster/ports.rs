//! Messages to ports: the real engines of ports, and the host's part in it, which orders memory by messages.
//!
//! A send is a release and a receive is an acquire, as in the real host (`crates/node/src/runtime/ports.rs`):
//! before a thread sends, its node informs the port's node; packets that follow a publication wait as long as
//! the engine of pages defers that.

use std::collections::{BTreeMap, VecDeque};

use hiroba_base::{Instant, NodeId};
use hiroba_ports::{
    Call, Config, DataType, Disposition, Effect, Engine as PortsEngine, Message, Name, Outcome, Patience,
    PortError, RightToSend, Tail, Ticket, service,
};
use hiroba_protocol::{Engine, Synchronisation, Waiter};
use hiroba_trace::{Activity, Event};
use rustc_hash::FxHashMap;

use super::recording::activity_of;
use super::{Cluster, Failure, State, Wait};
use crate::program::{Program, Register};

/// Data of this length do not ride on a request.
const LONG_BYTES: usize = 9 << 10;

/// A node's ports, and its threads that wait for them.
pub(super) struct Desk {
    engine: PortsEngine,
    /// Its names for the program's ports.
    names: Vec<Name>,
    next_ticket: Ticket,
    waiting: FxHashMap<Ticket, usize>,
    /// The number of messages that its threads have posted.
    posted: u64,
    /// True if one of its threads has posted a receive right.
    has_passed: bool,
    /// Packets that came after publications that the engine of pages defers.
    kept: VecDeque<(NodeId, Vec<u8>)>,
    /// Packets to nodes that must be informed first, and those behind them.
    outbox: BTreeMap<NodeId, VecDeque<Outgoing>>,
    /// The node that the service thread informs now, and the number of packets that wait for that.
    informing: Option<(NodeId, usize)>,
}

/// A packet that waits until its receiver has been informed.
struct Outgoing {
    bytes: Vec<u8>,
    owes: bool,
}

/// A message that a thread is about to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Post {
    pub(super) port: u8,
    pub(super) value: u64,
    pub(super) long: bool,
    /// The port whose receive right is in the message.
    pub(super) passed: Option<u8>,
}

/// Makes the nodes' engines, and gives each node a send right to each of the program's ports.
pub(super) fn open(program: &Program) -> Vec<Desk> {
    if program.ports.is_empty() {
        return Vec::new();
    }
    let desk = |node| Desk {
        engine: PortsEngine::new(node, program.nodes, Config::default()),
        names: Vec::new(),
        next_ticket: 0,
        waiting: FxHashMap::default(),
        posted: 0,
        has_passed: false,
        kept: VecDeque::new(),
        outbox: BTreeMap::new(),
        informing: None,
    };
    let mut desks: Vec<Desk> = NodeId::all(program.nodes).map(desk).collect();
    for (number, home) in program.ports.iter().enumerate() {
        let port = named(answer(&mut desks, *home, Call::AllocatePort));
        let right = RightToSend { name: port, disposition: Disposition::MakeSend };
        ask_names(&mut desks, *home, service::REGISTER, number, vec![right]);
        for node in NodeId::all(program.nodes) {
            let name = ask_names(&mut desks, node, service::LOOK_UP, number, Vec::new());
            desks[node.index()].names.push(name.expect("it is registered"));
        }
    }
    desks
}

fn named(outcome: Outcome) -> Name {
    match outcome {
        Outcome::Name(name) => name,
        other => unreachable!("expected a name, got {other:?}"),
    }
}

/// Asks the name service about the port of a number. Returns the right in the answer.
fn ask_names(
    desks: &mut [Desk],
    node: NodeId,
    id: u32,
    number: usize,
    rights: Vec<RightToSend>,
) -> Option<Name> {
    let inline = number.to_string().into_bytes();
    let types = vec![DataType { name: 0, element_bytes: 1, count: inline.len() as u32 }];
    let message = Message { id, types, inline, rights, ..Message::default() };
    let reply_port = named(answer(desks, node, Call::AllocatePort));
    let to = named(answer(desks, node, Call::NameService));
    let to = RightToSend { name: to, disposition: Disposition::MoveSend };
    let patience = Patience::Endless;
    match answer(desks, node, Call::Rpc { to, message, reply_port, bytes_max: None, patience }) {
        Outcome::Received(received) => received.rights.first().map(|right| right.name),
        other => unreachable!("expected an answer of the name service, got {other:?}"),
    }
}

/// Carries a call out, while nothing else happens.
fn answer(desks: &mut [Desk], node: NodeId, call: Call) -> Outcome {
    let ticket = desks[node.index()].next_ticket;
    desks[node.index()].next_ticket += 1;
    desks[node.index()].engine.call(ticket, call, Instant::ORIGIN);
    let mut outcome = None;
    let next = |desks: &mut [Desk]| {
        let mut effects = desks.iter_mut().enumerate();
        effects.find_map(|(node, desk)| Some((NodeId(node as u16), desk.engine.poll_effect()?)))
    };
    while let Some((from, effect)) = next(desks) {
        match effect {
            Effect::Send { to, bytes, tail, .. } => {
                let taken =
                    desks[to.index()].engine.handle_message(from, &whole(bytes, tail), Instant::ORIGIN);
                taken.expect("engines understand each other");
            }
            Effect::Complete { result, .. } => outcome = Some(result.expect("nothing is refused")),
            Effect::Returned { .. } => unreachable!("no call fails"),
            Effect::Land(_) => unreachable!("no node has a landing pool"),
        }
    }
    outcome.expect("the call has ended")
}

fn whole(mut bytes: Vec<u8>, tail: Option<Tail>) -> Vec<u8> {
    tail.iter().for_each(|tail| bytes.extend_from_slice(tail.bytes()));
    bytes
}

impl<E: Engine> Cluster<E> {
    fn ports_now(&self) -> Instant {
        Instant::from_nanos(self.progress.steps)
    }

    /// Begins to post a message: first informs the port's node of what this node has seen.
    pub(super) fn post(&mut self, number: usize, post: Post) -> Result<(), Failure> {
        let (node, waiter) = (self.threads[number].node, self.threads[number].waiter);
        let desk = &self.desks[node.index()];
        let to = desk.engine.destination(desk.names[usize::from(post.port)]);
        match to.filter(|to| *to != node && self.mutation.releases_before_post()) {
            None => self.queue_post(number, post),
            Some(to) => {
                let sync = Synchronisation::Inform(to);
                self.enter(number, activity_of(sync));
                self.threads[number].state = State::Waiting(Wait::Inform(post));
                self.nodes[node.index()].engine.handle_sync(sync, waiter);
                self.pump(node)
            }
        }
    }

    /// Posts a message whose receiver's node has been informed.
    pub(super) fn queue_post(&mut self, number: usize, post: Post) -> Result<(), Failure> {
        let Post { port, value, long, passed } = post;
        let node = self.threads[number].node;
        let desk = &mut self.desks[node.index()];
        let serial = desk.posted;
        desk.posted += 1;
        desk.has_passed |= passed.is_some();
        let name = desk.names[usize::from(port)];
        let told = desk.engine.destination(name);
        let mut inline = value.to_le_bytes().to_vec();
        inline.resize(if long { LONG_BYTES } else { inline.len() }, 0);
        let types = vec![DataType { name: 0, element_bytes: 1, count: inline.len() as u32 }];
        let released = serial.to_le_bytes().to_vec();
        let moved = |port: u8| desk.names[usize::from(port)];
        let moved = |port| RightToSend { name: moved(port), disposition: Disposition::MoveReceive };
        let rights = passed.into_iter().map(moved).collect();
        let message = Message { types, inline, rights, released, told, ..Message::default() };
        let to = RightToSend { name, disposition: Disposition::CopySend };
        self.note(number, Event::Posted { number: serial });
        self.call_ports(
            number,
            Wait::Post,
            Call::Send { to, message, patience: Patience::Endless, notify: None },
        )
    }

    /// Begins to take a message.
    pub(super) fn take(&mut self, number: usize, port: u8, into: Register) -> Result<(), Failure> {
        let from = self.desks[self.threads[number].node.index()].names[usize::from(port)];
        let call = Call::Receive { from, bytes_max: None, patience: Patience::Endless };
        self.call_ports(number, Wait::Take { into }, call)
    }

    fn call_ports(&mut self, number: usize, wait: Wait, call: Call) -> Result<(), Failure> {
        self.enter(number, Activity::Other);
        self.threads[number].state = State::Waiting(wait);
        let (node, now) = (self.threads[number].node, self.ports_now());
        let desk = &mut self.desks[node.index()];
        let ticket = desk.next_ticket;
        desk.next_ticket += 1;
        desk.waiting.insert(ticket, number);
        desk.engine.call(ticket, call, now);
        self.pump_ports(node)
    }

    fn pump_ports(&mut self, id: NodeId) -> Result<(), Failure> {
        while let Some(effect) = self.desks[id.index()].engine.poll_effect() {
            match effect {
                Effect::Send { to, bytes, tail, owes } => {
                    let bytes = whole(bytes, tail);
                    let outbox = &mut self.desks[id.index()].outbox;
                    let waits = owes && self.mutation.releases_before_forward()
                        || outbox.contains_key(&to) && self.mutation.keeps_order_behind_forward();
                    if waits {
                        outbox.entry(to).or_default().push_back(Outgoing { bytes, owes });
                    } else {
                        self.send_packet(id, to, &bytes);
                    }
                }
                Effect::Returned { .. } => {}
                Effect::Land(_) => unreachable!("no node has a landing pool"),
                Effect::Complete { ticket, result } => {
                    if let Some(number) = self.desks[id.index()].waiting.remove(&ticket) {
                        self.end_of_ports_call(number, result)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn send_packet(&mut self, from: NodeId, to: NodeId, bytes: &[u8]) {
        self.send(from, to, hiroba_wire::Message::Ports { bytes }.encode());
    }

    /// Returns the number of the node's service thread, which has none in the program.
    fn service(&self, id: NodeId) -> Waiter {
        Waiter(self.nodes[id.index()].threads.len() as u32)
    }

    pub(super) fn is_service(&self, id: NodeId, waiter: Waiter) -> bool {
        waiter == self.service(id) && !self.desks.is_empty()
    }

    fn owing(&self) -> Option<NodeId> {
        let owes = |desk: &Desk| desk.informing.is_none() && !desk.outbox.is_empty();
        self.desks.iter().position(owes).map(|node| NodeId(node as u16))
    }

    /// Returns true if packets wait until the service thread has informed their receiver.
    pub(super) fn packets_owe(&self) -> bool {
        self.owing().is_some()
    }

    /// Lets the service thread of a node with such packets inform their receiver.
    pub(super) fn inform_for_packets(&mut self) -> Result<(), Failure> {
        let Some(id) = self.owing() else { return Ok(()) };
        let desk = &mut self.desks[id.index()];
        let Some((to, packets)) = desk.outbox.first_key_value() else { return Ok(()) };
        let to = *to;
        desk.informing = Some((to, packets.len()));
        self.acts_by_itself(id);
        let waiter = self.service(id);
        self.nodes[id.index()].engine.handle_sync(Synchronisation::Inform(to), waiter);
        self.pump(id)
    }

    /// Sends the packets whose receiver has been informed, and those behind them that need no more.
    pub(super) fn send_owing(&mut self, id: NodeId) -> Result<(), Failure> {
        let desk = &mut self.desks[id.index()];
        let Some((to, mut told)) = desk.informing.take() else {
            let sentence = "the service thread was woken, which does not wait".to_owned();
            return Err(Failure::Host { node: id, sentence });
        };
        let mut packets = desk.outbox.remove(&to).unwrap_or_default();
        while packets.front().is_some_and(|packet| told > 0 || !packet.owes)
            && let Some(packet) = packets.pop_front()
        {
            told = told.saturating_sub(1);
            self.send_packet(id, to, &packet.bytes);
        }
        if !packets.is_empty() {
            self.desks[id.index()].outbox.insert(to, packets);
        }
        Ok(())
    }

    /// Returns true if one of the node's threads has posted a receive right.
    pub(super) fn has_passed(&self, id: NodeId) -> bool {
        self.desks.get(id.index()).is_some_and(|desk| desk.has_passed)
    }

    fn end_of_ports_call(
        &mut self,
        number: usize,
        result: Result<Outcome, PortError>,
    ) -> Result<(), Failure> {
        let state = std::mem::replace(&mut self.threads[number].state, State::Running);
        match (state, result) {
            (State::Waiting(Wait::Post), Ok(Outcome::Done)) => {}
            (State::Waiting(Wait::Take { into }), Ok(Outcome::Received(received))) => {
                let word = |bytes: &[u8]| {
                    let word = bytes.first_chunk().expect("the simulated host sends a word");
                    u64::from_le_bytes(*word)
                };
                self.set(number, into, word(&received.inline));
                let event = Event::Taken { from: received.sender, number: word(&received.released) };
                self.note(number, event);
            }
            (state, result) => {
                let sentence = format!("thread {number} in {state:?} got {result:?} from the ports");
                return Err(Failure::Host { node: self.threads[number].node, sentence });
            }
        }
        self.note(number, Event::Leave);
        self.threads[number].next += 1;
        Ok(())
    }

    /// Handles a packet, or keeps it until the publications before it have taken effect.
    pub(super) fn hear_packet(&mut self, from: NodeId, to: NodeId, bytes: &[u8]) -> Result<(), Failure> {
        if self.nodes[to.index()].mailbox.ahead.contains(&from) {
            self.desks[to.index()].kept.push_back((from, bytes.to_vec()));
            return Ok(());
        }
        let now = self.ports_now();
        let taken = self.desks[to.index()].engine.handle_message(from, bytes, now);
        taken.map_err(|error| Failure::Protocol { node: to, from, sentence: error.to_string() })?;
        self.pump_ports(to)
    }

    /// Handles the packets that were kept.
    pub(super) fn hear_kept_packets(&mut self, id: NodeId) -> Result<(), Failure> {
        let Some(desk) = self.desks.get_mut(id.index()) else { return Ok(()) };
        for (from, bytes) in std::mem::take(&mut desk.kept) {
            self.hear_packet(from, id, &bytes)?;
        }
        Ok(())
    }

    /// Lets time pass when nothing else can happen. Returns false if no engine of ports waits for it.
    pub(super) fn time_passes(&mut self) -> Result<bool, Failure> {
        for id in NodeId::all(self.limits.nodes) {
            let due = self.desks.get(id.index()).and_then(|desk| desk.engine.next_timeout());
            if let Some(due) = due {
                self.acts_by_itself(id);
                self.desks[id.index()].engine.handle_time(due);
                self.pump_ports(id)?;
                return Ok(true);
            }
        }
        Ok(false)
    }
}
