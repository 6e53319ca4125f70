//! Random programs on a few nodes, compared with the model. A failure shrinks to a short program; the seed is
//! part of it.

use hiroba_base::{NodeId, RngExt};
use hiroba_ports::{
    Bytes, Call, Config, Disposition, Message, Name, Notification, Outcome, Patience, PortError, PortId,
    Region, RightToSend, Ticket, service,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::{BTreeMap, VecDeque};

use crate::model::{Held, Model, Shape, owner_of};
use crate::simulator::{Cluster, Faithful, Mutation, bytes_type};

/// A step of a program. Numbers choose among the existing objects.
#[derive(Clone, Debug)]
pub enum Op {
    Allocate { node: u8 },
    Send { node: u8, to: u8, rights: Vec<(u8, u8)>, size: u8, waits: u8 },
    Receive { node: u8, from: u8, waits: bool },
    GiveUp { node: u8, name: u8, whole: bool },
    NoSenders { node: u8, port: u8 },
    DeadName { node: u8, name: u8, notify: u8 },
    PortDestroyed { node: u8, port: u8, notify: u8 },
    Limit { node: u8, port: u8, limit: u8 },
    Ask { node: u8, what: u8, name: u8, port: u8 },
    Slow { from: u8, to: u8 },
    Deliver { packets: u8 },
    Kill { node: u8 },
}

pub fn ops(deaths: bool) -> impl Strategy<Value = Vec<Op>> {
    let byte = any::<u8>;
    let send = (byte(), byte(), prop::collection::vec((byte(), byte()), 0..4), byte(), byte());
    let rare = prop_oneof![
        (byte(), byte(), byte()).prop_map(|(node, name, notify)| Op::DeadName { node, name, notify }),
        (byte(), byte(), byte()).prop_map(|(node, port, notify)| Op::PortDestroyed { node, port, notify }),
        (byte(), byte(), byte()).prop_map(|(node, port, limit)| Op::Limit { node, port, limit }),
        (byte(), byte()).prop_map(|(from, to)| Op::Slow { from, to }),
    ];
    let op = prop_oneof![
        2 => byte().prop_map(|node| Op::Allocate { node }),
        12 => send.prop_map(|(node, to, rights, size, waits)| Op::Send { node, to, rights, size, waits }),
        8 => (byte(), byte(), any::<bool>()).prop_map(|(node, from, waits)| Op::Receive { node, from, waits }),
        2 => (byte(), byte(), any::<bool>()).prop_map(|(node, name, whole)| Op::GiveUp { node, name, whole }),
        1 => (byte(), byte()).prop_map(|(node, port)| Op::NoSenders { node, port }),
        3 => rare,
        2 => (byte(), byte(), byte(), byte())
            .prop_map(|(node, what, name, port)| Op::Ask { node, what, name, port }),
        10 => byte().prop_map(|packets| Op::Deliver { packets }),
        u32::from(deaths) => byte().prop_map(|node| Op::Kill { node }),
    ];
    prop::collection::vec(op, 1..120)
}

/// Returns limits with little memory, short queues and small pieces, under which all that can happen does.
pub fn tight(requests_max: usize) -> Config {
    Config {
        ride_bytes: 64,
        piece_bytes: 50,
        window_pieces: 2,
        message_bytes_max: 700,
        memory_bytes: 900,
        queue_limit: 3,
        requests_max,
        landing_bytes_min: u64::MAX,
        ..Config::default()
    }
}

/// The number of units of each node's landing pool. A message takes one.
const POOL_UNITS: u64 = 4;

/// The maximum number of received messages whose regions a program keeps.
const KEPT_MAX: usize = 8;

/// Returns the same limits for nodes with landing pools. Some regions are too short for them, some too long.
pub fn landing(requests_max: usize) -> Config {
    Config { landing_bytes_min: 80, landing_bytes_max: 448, ..tight(requests_max) }
}

/// The notifications that programs request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    NoSenders,
    DeadName,
    PortDestroyed,
}

enum Pending {
    Send(RightToSend, Message),
    /// A request to the name service: the port for the answer, the name, and whether the node owns that.
    Ask(PortId, u8, bool, Message),
    Receive,
}

pub struct Run {
    cluster: Cluster,
    model: Model,
    pending: BTreeMap<Ticket, (NodeId, Pending)>,
    deaths: bool,
    heard: Vec<(NodeId, NodeId)>,
    /// Regions that programs have received, with their bytes then.
    kept: VecDeque<(Vec<Region>, Vec<Vec<u8>>)>,
}

impl Run {
    pub fn new(nodes: u16, config: Config, seed: u64, deaths: bool, mutation: Box<dyn Mutation>) -> Run {
        let mut cluster = Cluster::with_mutation(nodes, config, seed, mutation);
        if config.landing_bytes_min < u64::MAX {
            cluster.open_pools(POOL_UNITS);
        }
        for owner in 0..nodes {
            let others: Vec<_> = (0..nodes).filter(|other| *other != owner).collect();
            let port = cluster.name(owner, Call::AllocatePort);
            cluster.register(owner, port, &owner.to_le_bytes());
            for other in others {
                cluster.look_up(other, &owner.to_le_bytes());
            }
            cluster.withdraw(owner, &owner.to_le_bytes());
        }
        cluster.settle();
        cluster.completed.clear();
        cluster.watches = true;
        let model = Model::of(&cluster);
        Run { cluster, model, pending: BTreeMap::new(), deaths, heard: Vec::new(), kept: VecDeque::new() }
    }

    pub fn go(&mut self, ops: &[Op]) -> Result<(), String> {
        for op in ops {
            self.step(op)?;
        }
        self.settle()?;
        self.drain()?;
        self.cluster.check_at_rest()?;
        self.model.compare(&self.cluster)?;
        self.give_back(0)?;
        self.cluster.check_drained()
    }

    /// Gives regions back that programs have kept, until they have those of `left` messages. Nobody may have
    /// changed them.
    fn give_back(&mut self, left: usize) -> Result<(), String> {
        while self.kept.len() > left
            && let Some((regions, bytes)) = self.kept.pop_front()
        {
            if regions != bytes {
                return Err("regions of a received message were changed".to_owned());
            }
        }
        Ok(())
    }

    fn node(&self, byte: u8) -> Option<NodeId> {
        let nodes = self.cluster.engines.len();
        let node = NodeId((usize::from(byte) % nodes) as u16);
        (!self.cluster.dead.contains(&node)).then_some(node)
    }

    fn pick(&mut self, node: NodeId, byte: u8, wanted: impl Fn(&Held) -> bool) -> Option<(Name, Held)> {
        self.learn_dead_names(node);
        let names: Vec<_> = self.model.names(node).into_iter().filter(|(_, held)| wanted(held)).collect();
        names.get(usize::from(byte) % names.len().max(1)).cloned()
    }

    fn call(&mut self, node: NodeId, call: Call, pending: Pending) -> Result<(), String> {
        let ticket = self.cluster.call(node.0, call);
        self.pending.insert(ticket, (node, pending));
        self.follow(Some(ticket))
    }

    fn step(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::Allocate { node } => {
                let Some(node) = self.node(*node) else { return Ok(()) };
                self.allocate(node).map(drop)
            }
            Op::Send { node, to, rights, size, waits } => self.send(*node, *to, rights, *size, *waits),
            Op::Receive { node, from, waits } => {
                let Some(node) = self.node(*node) else { return Ok(()) };
                let Some((from, _)) = self.pick(node, *from, |held| held.receive) else { return Ok(()) };
                let patience = if *waits {
                    Patience::Until(self.cluster.now + core::time::Duration::from_millis(1))
                } else {
                    Patience::None
                };
                self.call(node, Call::Receive { from, bytes_max: None, patience }, Pending::Receive)
            }
            Op::GiveUp { node, name, whole } => {
                let Some(node) = self.node(*node) else { return Ok(()) };
                let Some((name, _)) = self.pick(node, *name, |_| true) else { return Ok(()) };
                let call = if *whole { Call::Destroy(name) } else { Call::Deallocate(name) };
                let result = self.cluster.now(node.0, call);
                self.forget_last_completion();
                match result {
                    Ok(_) => self.model.given_up(node, name, *whole)?,
                    Err(_) => self.model.failed(node, &[], "a name was refused").or(Ok::<(), String>(()))?,
                }
                self.follow(None)
            }
            Op::Ask { node, what, name, port } => self.ask(*node, *what, *name, *port),
            Op::NoSenders { node, port } => self.request(*node, *port, *port, Of::NoSenders),
            Op::DeadName { node, name, notify } => self.request(*node, *name, *notify, Of::DeadName),
            Op::PortDestroyed { node, port, notify } => {
                self.request(*node, *port, *notify, Of::PortDestroyed)
            }
            Op::Limit { node, port, limit } => {
                let Some(node) = self.node(*node) else { return Ok(()) };
                let Some((name, _)) = self.pick(node, *port, |held| held.receive) else { return Ok(()) };
                let limit = 1 + u32::from(limit % 4);
                let set = self.cluster.now(node.0, Call::SetQueueLimit { name, limit });
                self.forget_last_completion();
                set.map_err(|error| format!("a limit was refused: {error}"))?;
                self.follow(None)
            }
            Op::Slow { from, to } => {
                let nodes = self.cluster.engines.len();
                let [from, to] = [*from, *to].map(|byte| NodeId((usize::from(byte) % nodes) as u16));
                self.cluster.slow.insert((from, to));
                Ok(())
            }
            Op::Deliver { packets } => {
                for _ in 0..*packets % 24 {
                    if !self.cluster.step() {
                        break;
                    }
                    self.follow(None)?;
                }
                self.hear_some()
            }
            Op::Kill { node } => {
                let Some(node) = self.node(*node) else { return Ok(()) };
                if !self.deaths || self.cluster.dead.len() + 2 > self.cluster.engines.len() {
                    return Ok(());
                }
                self.cluster.kill(node.0);
                let nodes = self.cluster.engines.len() as u16;
                self.heard.extend(NodeId::all(nodes).filter(|by| *by != node).map(|by| (node, by)));
                self.pending.retain(|_, (at, _)| *at != node);
                Ok(())
            }
        }
    }

    fn allocate(&mut self, node: NodeId) -> Result<(Name, PortId), String> {
        let name = self.cluster.name(node.0, Call::AllocatePort);
        self.cluster.completed.pop_back();
        let port = self.cluster.engines[node.index()].port_behind(name).ok_or("a port has no identity")?;
        self.model.allocated(node, name, port)?;
        Ok((name, port))
    }

    /// Sends a request to the name service. The answer comes to a new port like any message. Only one node
    /// registers and withdraws each name.
    fn ask(&mut self, node: u8, what: u8, name: u8, port: u8) -> Result<(), String> {
        let Some(node) = self.node(node) else { return Ok(()) };
        let name = name % 8;
        let is_owner = owner_of(name, &self.cluster) == node;
        let right = self.pick(node, port, |held| held.receive || held.send > 0 && !held.dead);
        let right = right.map(|(name, held)| {
            let disposition = if held.receive { Disposition::MakeSend } else { Disposition::MoveSend };
            RightToSend { name, disposition }
        });
        let (id, rights) = match (what % 8, right) {
            (0..=3, Some(right)) if is_owner => (service::REGISTER, vec![right]),
            (4, _) if is_owner => (service::WITHDRAW, Vec::new()),
            (5 | 6, _) => (service::LOOK_UP_WAITING, Vec::new()),
            _ => (service::LOOK_UP, Vec::new()),
        };
        let (reply, reply_port) = self.allocate(node)?;
        let reply = Some(RightToSend { name: reply, disposition: Disposition::MakeSendOnce });
        let inline = format!("name {name}").into_bytes();
        let message = Message { id, types: bytes_type(&inline), inline, rights, reply, ..Message::default() };
        let to = RightToSend { name: self.model.service(node), disposition: Disposition::CopySend };
        let patience = if what < 128 { Patience::None } else { Patience::Endless };
        let call = Call::Send { to, message: message.clone(), patience, notify: None };
        self.call(node, call, Pending::Ask(reply_port, name, is_owner, message))
    }

    /// Requests a notification about a name, for a port of the node.
    fn request(&mut self, node: u8, name: u8, notify: u8, of: Of) -> Result<(), String> {
        let Some(node) = self.node(node) else { return Ok(()) };
        let is_meant = |held: &Held| of == Of::DeadName || held.receive;
        let Some((name, held)) = self.pick(node, name, is_meant) else { return Ok(()) };
        let Some((notify, watcher)) = self.pick(node, notify, |held| held.receive) else { return Ok(()) };
        let watcher = watcher.port.expect("a receive right is to a port");
        let notify = Some(RightToSend { name: notify, disposition: Disposition::MakeSendOnce });
        let wanted = match of {
            Of::NoSenders => Notification::NoSenders { sync: 0 },
            Of::DeadName => Notification::DeadName,
            Of::PortDestroyed => Notification::PortDestroyed,
        };
        let result = self.cluster.now(node.0, Call::RequestNotification { name, of: wanted, notify });
        self.forget_last_completion();
        let previous = match result {
            Ok(Outcome::Previous(previous)) => previous,
            other => return Err(format!("a notification was refused: {other:?}")),
        };
        match of {
            Of::NoSenders => {}
            Of::DeadName => self.model.watch_name(node, name, watcher),
            Of::PortDestroyed => {
                self.model.watch_port(held.port.expect("a receive right is to a port"), watcher);
            }
        }
        if let Some(previous) = previous {
            self.cluster.now(node.0, Call::Destroy(previous)).map_err(|error| error.to_string())?;
            self.forget_last_completion();
        }
        self.follow(None)
    }

    /// Informs the model of a node's names that have become dead names.
    fn learn_dead_names(&mut self, node: NodeId) {
        for (name, held) in self.model.names(node) {
            let status = self.cluster.engines[node.index()].status(name);
            if !held.dead && status.is_ok_and(|status| status.dead > 0) {
                self.model.became_dead(node, name);
            }
        }
    }

    /// Removes the call's own completion, which is known, but not others that came with it.
    fn forget_last_completion(&mut self) {
        let results = &self.cluster.results;
        let pending = &self.pending;
        self.cluster
            .completed
            .retain(|(_, ticket, _)| pending.contains_key(ticket) || results.contains_key(ticket));
    }

    fn send(&mut self, node: u8, to: u8, rights: &[(u8, u8)], size: u8, waits: u8) -> Result<(), String> {
        let Some(node) = self.node(node) else { return Ok(()) };
        let Some((to, held)) = self.pick(node, to, |held| held.send > 0 || held.once) else { return Ok(()) };
        let disposition = match (held.once, waits & 4 == 0) {
            (true, _) => Disposition::MoveSendOnce,
            (false, true) => Disposition::CopySend,
            (false, false) => Disposition::MoveSend,
        };
        let mut sent = Vec::new();
        for (name, how) in rights {
            let Some((name, held)) = self.pick(node, *name, |_| true) else { continue };
            let choices: Vec<_> = [
                (held.receive, Disposition::MakeSend),
                (held.receive, Disposition::MakeSendOnce),
                (held.receive && *how > 127, Disposition::MoveReceive),
                (held.send > 0, Disposition::CopySend),
                (held.send > 0, Disposition::MoveSend),
                (held.once, Disposition::MoveSendOnce),
            ]
            .into_iter()
            .filter(|(good, _)| *good)
            .map(|(_, disposition)| disposition)
            .collect();
            if let Some(disposition) = choices.get(usize::from(*how) % choices.len().max(1)) {
                sent.push(RightToSend { name, disposition: *disposition });
            }
        }
        let shape = match size % 4 {
            0 | 1 => Shape { inline: usize::from(size % 60), regions: Vec::new() },
            2 => Shape { inline: usize::from(size), regions: vec![usize::from(size) / 2, 0, 3] },
            _ => Shape { inline: 0, regions: vec![1 + usize::from(size) * 2] },
        };
        let message = self.model.message(&shape, sent);
        let patience = match waits % 4 {
            0 => Patience::None,
            1 => Patience::Until(self.cluster.now + core::time::Duration::from_micros(500)),
            _ => Patience::Endless,
        };
        let to = RightToSend { name: to, disposition };
        let call = Call::Send { to, message: message.clone(), patience, notify: None };
        self.call(node, call, Pending::Send(to, message))
    }

    /// Informs the model of the calls that have ended.
    fn follow(&mut self, now: Option<Ticket>) -> Result<(), String> {
        while let Some((node, ticket, result)) = self.cluster.completed.pop_front() {
            let Some((_, pending)) = self.pending.remove(&ticket) else { continue };
            let original = self.cluster.results.remove(&ticket);
            let returned = self.cluster.returned.remove(&ticket);
            if let Pending::Send(_, message) = &pending {
                let regions = Some(message.regions.clone()).filter(|regions| !regions.is_empty());
                if returned != regions.filter(|_| result.is_err()) {
                    return Err(format!("a call that ended with {result:?} gave back {returned:?}"));
                }
            }
            self.learn_dead_names(node);
            match (pending, result) {
                (Pending::Send(to, message), Ok(_)) => self.model.sent(node, to, &message)?,
                (Pending::Send(to, message), Err(error)) => {
                    let is_about_names = matches!(
                        error,
                        PortError::InvalidName | PortError::InvalidRight | PortError::DeadDestination
                    );
                    if is_about_names && now == Some(ticket) {
                        let rights: Vec<_> = message.rights.iter().copied().chain([to]).collect();
                        self.model.failed(node, &rights, &error.to_string())?;
                    }
                }
                (Pending::Ask(reply, name, is_owners, message), Ok(_)) => {
                    self.model.asked(node, reply, name, is_owners, &message)?;
                }
                (Pending::Ask(..), Err(PortError::DeadDestination)) => self.model.service_failed(),
                (Pending::Ask(..), Err(_)) => {}
                (Pending::Receive, Ok(Outcome::Received(received))) => {
                    // The name may be gone: the message came while a send that moved the right was going on.
                    let port = self.model.port_of(node, received.port);
                    match port {
                        Some(port) if received.id < crate::model::FIRST_ID => {
                            let right = received.rights.first();
                            let engine = &self.cluster.engines[node.index()];
                            let behind = right.and_then(|right| engine.port_behind(right.name));
                            if received.id > service::ANSWER {
                                self.model.answered(node, port, &received, behind)?;
                            } else {
                                self.model.notified(node, port, &received, behind)?;
                            }
                        }
                        Some(port) => {
                            self.model.received(node, port, &received)?;
                            let is_landed = |region: &Region| matches!(region.bytes(), Bytes::Landed { .. });
                            if let Some(Ok(Outcome::Received(original))) = original
                                && original.regions.iter().any(is_landed)
                            {
                                let bytes = original.regions.iter().map(Region::to_vec).collect();
                                self.kept.push_back((original.regions, bytes));
                                let left = self.cluster.random.random_range(0..KEPT_MAX);
                                self.give_back(left)?;
                            }
                        }
                        None => return Err("a message came by a name that denotes nothing".to_owned()),
                    }
                }
                (Pending::Receive, _) => {}
            }
        }
        match self.cluster.wrong.first() {
            Some(wrong) => Err(wrong.clone()),
            None => Ok(()),
        }
    }

    fn hear_some(&mut self) -> Result<(), String> {
        if !self.heard.is_empty() {
            let at = self.cluster.random.random_range(0..self.heard.len());
            let (of, by) = self.heard.swap_remove(at);
            if !self.cluster.dead.contains(&by) {
                self.cluster.hear(of, by);
            }
        }
        self.follow(None)
    }

    fn settle(&mut self) -> Result<(), String> {
        loop {
            while !self.heard.is_empty() {
                self.hear_some()?;
                for _ in 0..self.cluster.random.random_range(0..5) {
                    self.cluster.step();
                    self.follow(None)?;
                }
            }
            let mut steps = 0;
            while self.cluster.step() {
                self.follow(None)?;
                steps += 1;
                if steps > 20_000 {
                    return Err("the nodes never come to rest".to_owned());
                }
            }
            if self.heard.is_empty() {
                return Ok(());
            }
        }
    }

    /// Receives all messages that can be received.
    fn drain(&mut self) -> Result<(), String> {
        loop {
            let before = self.count_received();
            for node in NodeId::all(self.cluster.engines.len() as u16) {
                if self.cluster.dead.contains(&node) {
                    continue;
                }
                for (from, _) in self.model.names(node).into_iter().filter(|(_, held)| held.receive) {
                    let call = Call::Receive { from, bytes_max: None, patience: Patience::None };
                    self.call(node, call, Pending::Receive)?;
                }
            }
            self.settle()?;
            if self.count_received() == before && self.queues_are_empty() {
                return Ok(());
            }
        }
    }

    fn count_received(&self) -> usize {
        self.cluster.audits().values().flat_map(|audit| audit.ports.values()).map(|view| view.queued).sum()
    }

    /// Returns true if the queues of the ports that can receive are empty.
    fn queues_are_empty(&self) -> bool {
        let audits = self.cluster.audits();
        audits.values().flat_map(|audit| audit.ports.values()).all(|view| !view.is_named || view.queued == 0)
    }
}

pub fn run(
    nodes: u16,
    config: Config,
    seed: u64,
    ops: &[Op],
    mutation: Box<dyn Mutation>,
) -> Result<(), String> {
    let deaths = ops.iter().any(|op| matches!(op, Op::Kill { .. }));
    let mut run = Run::new(nodes, config, seed, deaths, mutation);
    run.cluster.trace.clear();
    let done = run.go(ops);
    done.map_err(|wrong| [wrong, run.cluster.trace.join("\n")].join("\n"))
}

/// Returns the configuration of a run: the same programs each time, or, with `HIROBA_PORTS_CASES=N`, N times
/// as many, other ones each time.
fn cases(count: u32) -> ProptestConfig {
    let factor: Option<u32> = std::env::var("HIROBA_PORTS_CASES").ok().and_then(|text| text.parse().ok());
    let rng_seed = if factor.is_some() { RngSeed::Random } else { RngSeed::Fixed(1) };
    let cases = count * factor.unwrap_or(1);
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn nodes_do_as_the_model_says(ops in ops(false), nodes in 2u16..5, out in 1..4usize, seed in any::<u64>()) {
        let done = run(nodes, tight(2 * out), seed, &ops, Box::new(Faithful));
        prop_assert!(done.is_ok(), "{}", done.unwrap_err());
    }

    #[test]
    fn nodes_with_landing_pools_do_as_the_model_says(
        ops in ops(false), nodes in 2u16..5, out in 1..4usize, seed in any::<u64>()
    ) {
        let done = run(nodes, landing(2 * out), seed, &ops, Box::new(Faithful));
        prop_assert!(done.is_ok(), "{}", done.unwrap_err());
    }

    #[test]
    fn deaths_leave_landing_pools_in_order(
        ops in ops(true), nodes in 3u16..6, out in 1..4usize, seed in any::<u64>()
    ) {
        let done = run(nodes, landing(2 * out), seed, &ops, Box::new(Faithful));
        prop_assert!(done.is_ok(), "{}", done.unwrap_err());
    }

    #[test]
    fn deaths_leave_the_living_in_order(ops in ops(true), nodes in 3u16..6, out in 1..4usize, seed in any::<u64>()) {
        let done = run(nodes, tight(2 * out), seed, &ops, Box::new(Faithful));
        prop_assert!(done.is_ok(), "{}", done.unwrap_err());
    }
}
