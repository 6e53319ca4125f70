//! Several engines in one thread, with a simulated network that delays packets arbitrarily but keeps the
//! order of each pair of nodes. One seed reproduces a run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hiroba_base::{Instant, NodeId, Prng, RngExt, seeded};
use hiroba_ports::wire::{Envelope, FlowKey, Head, Load, Packet, RightOnWire};
use hiroba_ports::{
    Audit, Call, Config, Disposition, Effect, Engine, Landing, Message, Name, Outcome, Patience, PeerError,
    PortError, PortId, Received, Region, RightToSend, Ticket,
};

use crate::pools::Pools;

/// The points at which a planted bug may change the messages of engines. The default is no bug.
pub trait Mutation {
    /// Returns the packets to send in place of one.
    fn on_send(&mut self, _from: NodeId, _to: NodeId, bytes: Vec<u8>) -> Vec<Vec<u8>> {
        vec![bytes]
    }

    /// Returns true if a packet leaves its link's order.
    fn overtakes(&mut self, _bytes: &[u8]) -> bool {
        false
    }

    /// Returns how a region reaches the landing pool.
    fn on_land(&mut self) -> Lands {
        Lands::Now
    }

    /// Returns true if a node learns of another's death.
    fn hears_of_death(&mut self, _node: NodeId) -> bool {
        true
    }
}

/// When a region is put into its place in a landing pool.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Lands {
    Now,
    /// After the word that it is there has come.
    Late,
    Never,
}

/// What may have been lost with nodes that died. All else must survive.
#[derive(Default)]
pub struct Losses {
    /// Ids of messages that a dead node had, or may have had.
    pub messages: BTreeSet<u32>,
    /// Ports that were on a dead node, or on their way from or to one.
    pub ports: BTreeSet<PortId>,
    /// Ports of these that have certainly died.
    pub dead_ports: BTreeSet<PortId>,
    /// Ports of whose messages by send-once rights some may be lost.
    pub by_once: BTreeSet<PortId>,
}

impl Losses {
    /// Notes the ports of a message that may be lost.
    fn note_head(&mut self, flow: FlowKey, head: &Head) {
        self.ports.extend(ports_of(head));
        if matches!(flow, FlowKey::Once(..) | FlowKey::RelayOnce(_)) {
            self.by_once.insert(flow.port());
        }
    }
}

/// The number of packets that quick links deliver while a slow one delivers one, on average.
const SLOWNESS: u32 = 64;

/// No bug.
pub struct Faithful;

impl Mutation for Faithful {}

pub struct Cluster {
    pub engines: Vec<Engine>,
    pub random: Prng,
    pub now: Instant,
    pub dead: BTreeSet<NodeId>,
    links: BTreeMap<(NodeId, NodeId), VecDeque<Vec<u8>>>,
    /// Links that deliver one packet in the time in which others deliver many.
    pub slow: BTreeSet<(NodeId, NodeId)>,
    /// Calls that have ended, in that order.
    pub completed: VecDeque<(NodeId, Ticket, Result<Outcome, PortError>)>,
    pub results: BTreeMap<Ticket, Result<Outcome, PortError>>,
    /// Regions of messages that were not taken.
    pub returned: BTreeMap<Ticket, Vec<Region>>,
    next_ticket: Ticket,
    pub mutation: Box<dyn Mutation>,
    /// Packets between nodes, by the name of their kind.
    pub packets: BTreeMap<&'static str, usize>,
    /// Errors of engines about packets that they could not take.
    pub refused: Vec<String>,
    /// Errors that were found during the run.
    pub wrong: Vec<String>,
    /// True to check, after each step, that no no-senders notification is sent too early.
    pub watches: bool,
    awaiting: BTreeSet<(NodeId, PortId)>,
    /// What may have been lost with dead nodes.
    pub losses: Losses,
    /// With `HIROBA_PORTS_TRACE`: records the messages, for a failure's report.
    traces: bool,
    pub trace: Vec<String>,
    /// The number of pieces of long messages that have arrived.
    pieces: u64,
    pools: Pools,
}

impl Cluster {
    pub fn new(nodes: u16, config: Config, seed: u64) -> Cluster {
        Cluster::with_mutation(nodes, config, seed, Box::new(Faithful))
    }

    pub fn with_mutation(nodes: u16, config: Config, seed: u64, mutation: Box<dyn Mutation>) -> Cluster {
        Cluster {
            engines: NodeId::all(nodes).map(|node| Engine::new(node, nodes, config)).collect(),
            random: seeded(seed),
            now: Instant::ORIGIN,
            dead: BTreeSet::new(),
            links: BTreeMap::new(),
            slow: BTreeSet::new(),
            completed: VecDeque::new(),
            results: BTreeMap::new(),
            returned: BTreeMap::new(),
            next_ticket: 1,
            mutation,
            packets: BTreeMap::new(),
            refused: Vec::new(),
            wrong: Vec::new(),
            watches: false,
            awaiting: BTreeSet::new(),
            losses: Losses::default(),
            traces: std::env::var_os("HIROBA_PORTS_TRACE").is_some(),
            trace: Vec::new(),
            pieces: 0,
            pools: Pools::default(),
        }
    }

    /// Gives each node a landing pool of that many units.
    pub fn open_pools(&mut self, units: u64) {
        self.pools = Pools::open(&mut self.engines, units);
    }

    /// Begins a call of a thread of a node; the result may come later.
    pub fn call(&mut self, node: u16, call: Call) -> Ticket {
        let ticket = self.next_ticket;
        if self.traces {
            self.trace.push(format!("node {node} calls {call:?}"));
        }
        self.next_ticket += 1;
        if let Call::RequestNotification { .. } = call {
            self.awaiting.clear();
        }
        self.engines[usize::from(node)].call(ticket, call, self.now);
        self.carry_out(NodeId(node));
        ticket
    }

    /// Makes a call that ends at once.
    pub fn now(&mut self, node: u16, call: Call) -> Result<Outcome, PortError> {
        let ticket = self.call(node, call);
        self.results.remove(&ticket).expect("the call ends at once")
    }

    pub fn name(&mut self, node: u16, call: Call) -> Name {
        match self.now(node, call) {
            Ok(Outcome::Name(name)) => name,
            other => panic!("expected a name, got {other:?}"),
        }
    }

    pub fn kill(&mut self, node: u16) {
        let node = NodeId(node);
        self.note_losses(node);
        self.dead.insert(node);
        self.pools.note_death(node);
        // Its messages may still arrive, or not: the link is cut at a random place.
        for to in NodeId::all(self.engines.len() as u16) {
            if let Some(link) = self.links.get_mut(&(node, to)) {
                let kept = self.random.random_range(0..=link.len());
                link.truncate(kept);
            }
            self.links.remove(&(to, node));
        }
    }

    /// Notes what a node that dies takes along: what it has, what is on its links, and what others have asked
    /// of it without an answer. Messages that are in a living node's queue are safe.
    fn note_losses(&mut self, node: NodeId) {
        let audit = self.engines[node.index()].audit();
        let mut lost: BTreeSet<u32> = audit.queued.into_iter().chain(audit.carried).collect();
        self.losses.by_once.extend(audit.by_once.iter().map(|(_, port)| *port));
        let here = audit.ports.iter().filter(|(_, view)| view.is_here).map(|(port, _)| *port);
        self.losses.dead_ports.extend(here);
        let nodes = self.engines.len() as u16;
        for (_, link) in self.links.iter().filter(|((from, to), _)| *from == node || *to == node) {
            for (flow, head) in link.iter().filter_map(|bytes| head_of_bytes(bytes, nodes)) {
                lost.insert(head.id);
                self.losses.note_head(flow, &head);
            }
        }
        for (_, audit) in self.audits().into_iter().filter(|(other, _)| *other != node) {
            lost.extend(audit.entrusted.iter().filter(|(to, _)| *to == node).map(|(_, id)| *id));
            let by_once = audit.by_once.iter().filter(|(at, _)| *at == node);
            self.losses.by_once.extend(by_once.map(|(_, port)| *port));
        }
        for (_, audit) in self.audits().into_iter().filter(|(other, _)| *other != node) {
            audit.queued.iter().for_each(|id| _ = lost.remove(id));
        }
        self.losses.messages.extend(lost);
    }

    /// Lets one node learn of a death.
    pub fn hear(&mut self, of: NodeId, by: NodeId) {
        self.links.remove(&(of, by));
        if self.traces {
            self.trace.push(format!("node {by} hears of the death of {of}"));
        }
        if self.mutation.hears_of_death(of) {
            self.engines[by.index()].handle_death(of, self.now);
            self.carry_out(by);
        }
    }

    fn carry_out(&mut self, node: NodeId) {
        while let Some(effect) = self.engines[node.index()].poll_effect() {
            match effect {
                Effect::Send { to, mut bytes, tail, .. } => {
                    tail.iter().for_each(|tail| bytes.extend_from_slice(tail.bytes()));
                    assert_ne!(to, node, "a node does not send to itself");
                    self.transmit(node, to, bytes);
                }
                Effect::Land(landing) => self.land(node, &landing),
                Effect::Returned { ticket, regions } => {
                    assert!(self.returned.insert(ticket, regions).is_none(), "a message is returned once");
                }
                Effect::Complete { ticket, result } => {
                    if self.traces {
                        self.trace.push(format!("node {node} completes: {result:?}"));
                    }
                    self.completed.push_back((node, ticket, result.clone()));
                    assert!(self.results.insert(ticket, result).is_none(), "a call ends once");
                }
            }
        }
        if self.watches {
            self.watch(node);
        }
    }

    /// Puts a region into its place in the receiver's landing pool.
    fn land(&mut self, from: NodeId, Landing { to, offset, region }: &Landing) {
        assert_ne!(*to, from, "a node does not land on itself");
        *self.packets.entry("landed region").or_default() += 1;
        // What is written to a dead node's memory is lost with it.
        if self.dead.contains(to) {
            return;
        }
        match self.mutation.on_land() {
            Lands::Now => {
                let done = self.pools.land(from, *to, *offset, &region.to_vec());
                self.wrong.extend(done.err());
            }
            Lands::Late => self.pools.land_late(*to, *offset, region.to_vec()),
            Lands::Never => {}
        }
    }

    fn transmit(&mut self, from: NodeId, to: NodeId, bytes: Vec<u8>) {
        if self.traces {
            let line = format!("{from} to {to}: {:?}", Envelope::decode(&bytes, self.engines.len() as u16));
            self.trace.push(line);
        }
        *self.packets.entry(kind_of(&bytes, self.engines.len() as u16)).or_default() += 1;
        if self.dead.contains(&to) {
            if let Some((flow, head)) = head_of_bytes(&bytes, self.engines.len() as u16) {
                self.losses.messages.insert(head.id);
                self.losses.note_head(flow, &head);
            }
            return;
        }
        let noted = self.pools.note_sent(from, to, &bytes);
        self.wrong.extend(noted.err());
        for bytes in self.mutation.on_send(from, to, bytes) {
            let overtakes = self.mutation.overtakes(&bytes);
            let link = self.links.entry((from, to)).or_default();
            if overtakes {
                link.push_front(bytes);
            } else {
                link.push_back(bytes);
            }
        }
    }

    /// Delivers the first packet of some link, or lets time pass. Returns false when nothing is left to
    /// happen.
    pub fn step(&mut self) -> bool {
        let busy: Vec<_> =
            self.links.iter().filter(|(_, link)| !link.is_empty()).map(|(pair, _)| *pair).collect();
        let tick = self.random.random_range(0..8) == 0;
        if busy.is_empty() || tick {
            let due = |engine: &Engine| engine.next_timeout();
            let living =
                self.engines.iter().enumerate().filter(|(at, _)| !self.dead.contains(&NodeId(*at as u16)));
            let next = living.filter_map(|(at, engine)| Some((due(engine)?, at))).min();
            if let Some((time, at)) = next {
                self.now = self.now.max(time);
                self.engines[at].handle_time(self.now);
                self.carry_out(NodeId(at as u16));
                return true;
            }
            if busy.is_empty() {
                return false;
            }
        }
        let mut pair = busy[self.random.random_range(0..busy.len())];
        if self.slow.contains(&pair) && self.random.random_range(0..SLOWNESS) > 0 {
            let quick: Vec<_> = busy.iter().filter(|pair| !self.slow.contains(pair)).collect();
            if !quick.is_empty() {
                pair = *quick[self.random.random_range(0..quick.len())];
            }
        }
        let bytes = self.links.get_mut(&pair).and_then(VecDeque::pop_front).expect("the link is busy");
        let (from, to) = pair;
        if let Err(error) = self.hand_over(from, to, &bytes) {
            self.refused.push(format!("node {to} from {from}: {error}"));
        }
        self.carry_out(to);
        if kind_of(&bytes, self.engines.len() as u16) == "begin" {
            self.pools.put_late();
        }
        true
    }

    /// Passes a packet to its receiver: some pieces of long messages apart from their heads, as fabrics may.
    fn hand_over(&mut self, from: NodeId, to: NodeId, bytes: &[u8]) -> Result<(), PeerError> {
        let nodes = self.engines.len() as u16;
        let piece_bytes = match Envelope::decode(bytes, nodes).map(|envelope| envelope.packet) {
            Ok(Packet::Data { bytes, .. }) => bytes.len(),
            _ => 0,
        };
        let engine = &mut self.engines[to.index()];
        self.pieces += u64::from(piece_bytes > 0);
        if piece_bytes == 0 || self.pieces.is_multiple_of(3) {
            return engine.handle_message(from, bytes, self.now);
        }
        let (head, mut piece) = bytes.split_at(bytes.len() - piece_bytes);
        let result = engine.handle_piece(from, head, &mut piece, self.now);
        // A port may have died meanwhile; then nothing is taken.
        if result.is_ok() && !piece.is_empty() && piece.len() < piece_bytes {
            self.wrong.push(format!("node {to} has left {} bytes of a piece", piece.len()));
        }
        result
    }

    /// Runs until nothing happens any more.
    pub fn settle(&mut self) {
        let mut steps = 0u32;
        while self.step() {
            steps += 1;
            if steps > 2_000_000 {
                self.wrong.push("the nodes never come to rest".to_owned());
                return;
            }
        }
    }

    /// Checks that no node was informed in this step that there are no senders although there are some.
    fn watch(&mut self, node: NodeId) {
        let audit = self.engines[node.index()].audit();
        let awaited: Vec<_> =
            self.awaiting.iter().filter(|(at, _)| *at == node).map(|(_, port)| *port).collect();
        for port in awaited {
            let Some(view) = audit.ports.get(&port) else { continue };
            if view.is_here && !view.awaits_no_senders && self.is_sendable(node, port) {
                self.wrong.push(format!("{port} was said to have no senders while there were some"));
            }
        }
        self.awaiting.retain(|(at, _)| *at != node);
        for (port, view) in &audit.ports {
            if view.is_here && view.awaits_no_senders {
                self.awaiting.insert((node, *port));
            }
        }
    }

    fn is_sendable(&self, owner: NodeId, port: PortId) -> bool {
        let living = |node: NodeId| !self.dead.contains(&node);
        let held = NodeId::all(self.engines.len() as u16)
            .filter(|node| *node != owner && living(*node))
            .any(|node| self.engines[node.index()].audit().ports.get(&port).is_some_and(|view| view.holds));
        // A message for a port that has died meanwhile is refused: its rights are with the sender, or lost.
        let lives = |port: PortId| {
            NodeId::all(self.engines.len() as u16).any(|node| {
                self.engines[node.index()].audit().ports.get(&port).is_some_and(|view| view.is_here)
            })
        };
        held || self.links.iter().filter(|((_, to), _)| living(*to)).flat_map(|(_, link)| link).any(|bytes| {
            let envelope = Envelope::decode(bytes, self.engines.len() as u16);
            let sent = envelope.ok().and_then(|envelope| head_of(envelope.packet));
            sent.is_some_and(|(flow, head)| {
                let is_sent = |right: &RightOnWire| matches!(right, RightOnWire::Send { port: sent, .. } if *sent == port);
                head.rights.iter().any(is_sent) && lives(flow.port())
            })
        })
    }

    pub fn audits(&self) -> BTreeMap<NodeId, Audit> {
        let nodes = NodeId::all(self.engines.len() as u16).filter(|node| !self.dead.contains(node));
        nodes.map(|node| (node, self.engines[node.index()].audit())).collect()
    }

    /// Checks the conditions that hold whenever nothing is under way.
    pub fn check_at_rest(&self) -> Result<(), String> {
        if let Some(wrong) = self.wrong.first() {
            return Err(wrong.clone());
        }
        if let Some(refused) = self.refused.first() {
            return Err(format!("a packet was refused: {refused}"));
        }
        let audits = self.audits();
        for (node, audit) in &audits {
            if audit.deaths_pending > 0 {
                return Err(format!("node {node} mourns for ever"));
            }
            for (port, view) in &audit.ports {
                let owner = audits.get(&view.at).and_then(|audit| audit.ports.get(port));
                if !view.is_here && view.holds && owner.is_none() {
                    return Err(format!("node {node} holds a right to {port}, which is dead"));
                }
                let memory_is_free = self.engines[node.index()].memory_used_bytes() == 0;
                if view.is_here && view.parked > 0 && view.queued == 0 && memory_is_free {
                    return Err(format!("messages wait for room in the empty queue of {port}"));
                }
                if view.is_here {
                    check_port(*node, *port, &audits)?;
                }
            }
            if let Some((port, _)) = audit.ports.iter().find(|(_, view)| view.pinned > 0) {
                return Err(format!("node {node} waits for ever to hear of rights to {port}"));
            }
            if audit.blocked > 0
                && audits.values().all(|audit| audit.ports.values().all(|view| view.queued == 0))
            {
                return Err(format!(
                    "{} threads of node {node} wait for room in empty queues",
                    audit.blocked
                ));
            }
            if audit.unanswered > 0
                && audits.values().all(|audit| audit.ports.values().all(|view| view.parked == 0))
            {
                return Err(format!("node {node} has {} messages that are never taken", audit.unanswered));
            }
        }
        Ok(())
    }

    /// Checks the conditions that hold when, in addition, all messages that can be received were received:
    /// nothing waits, no memory is reserved, and nothing is left of what is dead.
    pub fn check_drained(&self) -> Result<(), String> {
        let audits = self.audits();
        let lives = |port: &PortId| {
            audits.values().any(|audit| audit.ports.get(port).is_some_and(|view| view.is_here))
        };
        for (node, audit) in &audits {
            let waiting = (audit.unanswered, audit.blocked, audit.reserved_bytes);
            if waiting != (0, 0, 0) {
                return Err(format!(
                    "node {node} has messages, threads and bytes of memory that wait: {waiting:?}"
                ));
            }
            let landing = self.engines[node.index()].landing_used_bytes();
            if landing > 0 {
                return Err(format!("{landing} bytes of the landing pool of node {node} are nobody's"));
            }
            if !audit.queued.is_empty() || !audit.carried.is_empty() {
                let left = (&audit.queued, &audit.carried);
                return Err(format!("node {node} has messages that nobody can receive: {left:?}"));
            }
            if let Some(port) = audit.remains.first() {
                return Err(format!("node {node} keeps state of {port}, which is dead"));
            }
            for (port, view) in &audit.ports {
                if view.is_here && view.parked > 0 {
                    return Err(format!("requests wait for room in the empty queue of {port}"));
                }
                if view.is_here && !view.is_named && *port != PortId::NAME_SERVICE {
                    return Err(format!("nobody has the receive right of {port} on node {node}"));
                }
                if !lives(port) {
                    return Err(format!("node {node} knows {port}, which is dead"));
                }
            }
        }
        Ok(())
    }

    /// Returns the name of a port and of send rights to it on other nodes, shared through the name service.
    pub fn share(&mut self, owner: u16, others: &[u16]) -> (Name, Vec<Name>) {
        let port = self.name(owner, Call::AllocatePort);
        let names =
            others.iter().map(|other| self.pass(owner, port, Disposition::MakeSend, *other)).collect();
        (port, names)
    }

    /// Passes a right from one node to another through a port that is made for it.
    pub fn pass(&mut self, from: u16, name: Name, disposition: Disposition, to: u16) -> Name {
        let received = self.pass_message(
            from,
            Message { rights: vec![RightToSend { name, disposition }], ..Message::default() },
            to,
        );
        received.rights[0].name
    }

    /// Sends a message to a node through the name service's port registry: the receiver registers a port, the
    /// sender looks it up.
    pub fn pass_message(&mut self, from: u16, message: Message, to: u16) -> Received {
        let inbox = self.name(to, Call::AllocatePort);
        let key = format!("inbox {}", self.next_ticket).into_bytes();
        self.register(to, inbox, &key);
        let destination = self.look_up(from, &key);
        let sent = self.call(
            from,
            Call::Send {
                to: RightToSend { name: destination, disposition: Disposition::MoveSend },
                message,
                patience: Patience::Endless,
                notify: None,
            },
        );
        self.settle();
        assert_eq!(self.results.remove(&sent), Some(Ok(Outcome::Done)));
        let received = self.receive(to, inbox);
        self.withdraw(to, &key);
        self.now(to, Call::Destroy(inbox)).expect("the inbox is there");
        self.settle();
        received
    }

    pub fn receive(&mut self, node: u16, from: Name) -> Received {
        match self.now(node, Call::Receive { from, bytes_max: None, patience: Patience::None }) {
            Ok(Outcome::Received(received)) => *received,
            other => panic!("expected a message, got {other:?}"),
        }
    }

    fn ask_names(&mut self, node: u16, id: u32, name: &[u8], rights: Vec<RightToSend>) -> Received {
        let service = self.name(node, Call::NameService);
        let reply_port = self.name(node, Call::AllocatePort);
        let (to, patience) =
            (RightToSend { name: service, disposition: Disposition::MoveSend }, Patience::Endless);
        let message =
            Message { id, types: bytes_type(name), inline: name.to_vec(), rights, ..Message::default() };
        let ticket = self.call(node, Call::Rpc { to, message, reply_port, bytes_max: None, patience });
        self.settle();
        let result = self.results.remove(&ticket);
        self.now(node, Call::Destroy(reply_port)).expect("the reply port is there");
        match result {
            Some(Ok(Outcome::Received(received))) => *received,
            other => panic!("expected an answer of the name service, got {other:?}"),
        }
    }

    pub fn register(&mut self, node: u16, port: Name, name: &[u8]) {
        let rights = vec![RightToSend { name: port, disposition: Disposition::MakeSend }];
        let answer = self.ask_names(node, hiroba_ports::service::REGISTER, name, rights);
        assert_eq!(answer.inline, 0u32.to_le_bytes());
    }

    pub fn withdraw(&mut self, node: u16, name: &[u8]) {
        self.ask_names(node, hiroba_ports::service::WITHDRAW, name, Vec::new());
    }

    pub fn look_up(&mut self, node: u16, name: &[u8]) -> Name {
        self.ask_names(node, hiroba_ports::service::LOOK_UP, name, Vec::new()).rights[0].name
    }
}

/// Checks that there is exactly one receive right, a correct list of holders, and only existing send-once
/// rights.
fn check_port(owner: NodeId, port: PortId, audits: &BTreeMap<NodeId, Audit>) -> Result<(), String> {
    let here: Vec<_> =
        audits.iter().filter(|(_, audit)| audit.ports.get(&port).is_some_and(|view| view.is_here)).collect();
    if here.len() != 1 {
        return Err(format!("{port} is on {} nodes", here.len()));
    }
    let view = &audits[&owner].ports[&port];
    let holding = |(node, audit): (&NodeId, &Audit)| {
        let holds = *node != owner && audit.ports.get(&port).is_some_and(|view| view.holds);
        holds.then_some(*node)
    };
    let holders: Vec<_> = audits.iter().filter_map(holding).collect();
    if holders != view.holders {
        return Err(format!(
            "{port} on node {owner} lists the holders {:?}, they are {holders:?}",
            view.holders
        ));
    }
    if view.awaits_no_senders && holders.is_empty() && !view.holds && view.queued == 0 {
        return Err(format!("{port} has no senders, which was not told"));
    }
    let mut onces: Vec<(u64, NodeId)> = Vec::new();
    for (node, audit) in audits {
        onces.extend(audit.onces.iter().filter(|once| once.port == port).map(|once| (once.serial, *node)));
    }
    onces.sort_unstable();
    let listed: Vec<_> = view.onces.iter().map(|(serial, node)| (*serial, *node)).collect();
    if onces != listed {
        return Err(format!("{port} on node {owner} lists send-once rights {listed:?}, they are {onces:?}"));
    }
    Ok(())
}

pub fn bytes_type(inline: &[u8]) -> Vec<hiroba_ports::DataType> {
    let count = inline.len() as u32;
    Vec::from_iter((count > 0).then_some(hiroba_ports::DataType { name: 8, element_bytes: 1, count }))
}

pub fn bytes_message(inline: &[u8]) -> Message {
    Message { types: bytes_type(inline), inline: inline.to_vec(), ..Message::default() }
}

pub fn copy_send(name: Name) -> RightToSend {
    RightToSend { name, disposition: Disposition::CopySend }
}

pub fn send(to: Name, message: Message, patience: Patience) -> Call {
    Call::Send { to: copy_send(to), message, patience, notify: None }
}

/// Returns the head in a packet, and its flow.
pub fn head_of(packet: Packet<'_>) -> Option<(FlowKey, Head)> {
    match packet {
        Packet::Request { flow, load: Load::Whole { head, .. }, .. } | Packet::Begin { flow, head, .. } => {
            Some((flow, head))
        }
        _ => None,
    }
}

/// Returns the head in the bytes of a packet, and its flow.
fn head_of_bytes(bytes: &[u8], nodes: u16) -> Option<(FlowKey, Head)> {
    head_of(Envelope::decode(bytes, nodes).ok()?.packet)
}

/// Returns the ports whose receive rights a message contains.
fn ports_of(head: &Head) -> impl Iterator<Item = PortId> {
    head.rights.iter().filter_map(|right| match right {
        RightOnWire::Receive(body) => Some(body.port),
        RightOnWire::Dead | RightOnWire::Send { .. } | RightOnWire::SendOnce(_) => None,
    })
}

fn kind_of(bytes: &[u8], nodes: u16) -> &'static str {
    match Envelope::decode(bytes, nodes).map(|envelope| envelope.packet) {
        Ok(Packet::WordAlone) => "word alone",
        Ok(Packet::Request { .. }) => "request",
        Ok(Packet::Wait { .. }) => "wait",
        Ok(Packet::Ready { .. }) => "ready",
        Ok(Packet::Permit { .. }) => "permit",
        Ok(Packet::Begin { .. }) => "begin",
        Ok(Packet::GaveUp { .. }) => "gave up",
        Ok(Packet::Data { .. }) => "data",
        Ok(Packet::More { .. }) => "more",
        Ok(Packet::Mourned { .. }) => "mourned",
        Ok(_) => "rights",
        Err(_) => "not a packet",
    }
}
