//! The reference model for random programs: rights and queues in one place, without a protocol.
//!
//! It gets each call when it ends, in that order. It computes what a port's death destroys when nothing is
//! under way. What a node had when it died may be lost; the simulator notes that. All else must be as if no
//! node had died.

use std::collections::{BTreeMap, BTreeSet};

use hiroba_base::NodeId;
use hiroba_ports::{
    Disposition, Message, Name, PortId, Received, Region, RightKind, RightToSend, notification,
};

use crate::directory::Directory;
use crate::simulator::{Cluster, Losses, bytes_type};

/// The first id of the model's messages; those of notifications are below.
pub const FIRST_ID: u32 = 1_000_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub port: Option<PortId>,
    pub receive: bool,
    pub send: u32,
    pub once: bool,
    /// True for a dead name, with its references as those of a send right.
    pub dead: bool,
}

#[derive(Clone, Debug)]
struct Sent {
    to: PortId,
    from: NodeId,
    by_once: bool,
    rights: Vec<(RightKind, PortId)>,
    shape: Shape,
    received: bool,
}

/// The lengths of a message's data; the bytes follow from its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    pub inline: usize,
    pub regions: Vec<usize>,
}

/// Stands for the ports of dead names.
const NO_PORT: PortId = PortId { birth: NodeId(u16::MAX), serial: u64::MAX };

#[derive(Default)]
pub struct Model {
    pub tables: BTreeMap<(NodeId, Name), Held>,
    pub ports: BTreeSet<PortId>,
    dead: BTreeSet<PortId>,
    messages: BTreeMap<u32, Sent>,
    next_id: u32,
    /// Ports that must turn out to be dead, because a call failed or a right came as a dead name.
    assumed_dead: Vec<(PortId, String)>,
    last: BTreeMap<(NodeId, PortId), u32>,
    /// What the name service may answer.
    directory: Directory,
    /// The names of the name service, which programs only send to.
    services: BTreeSet<(NodeId, Name)>,
    /// The ports of all receive rights that have had names.
    received_from: BTreeMap<(NodeId, Name), PortId>,
    /// Names of which a dead-name notification was requested, and the port that gets it.
    watched: BTreeMap<(NodeId, Name), PortId>,
    /// Dead-name notifications that must come: sender, name, and the port that gets them.
    dead_names: Vec<(NodeId, Name, PortId)>,
    /// Dead-name notifications that have come.
    told_dead: BTreeMap<(NodeId, Name, PortId), u32>,
    /// Ports whose return was requested once, and the ports that they may have returned to: they need not die
    /// when their receive rights are destroyed.
    returnable: BTreeMap<PortId, BTreeSet<PortId>>,
    /// Ports that have been in circles, which returned ports may have opened.
    circled: BTreeSet<PortId>,
    /// The numbers of messages by send-once rights that have come.
    by_once: BTreeMap<PortId, u64>,
}

/// Returns the node that alone registers and withdraws a name of the name service.
pub fn owner_of(name: u8, cluster: &Cluster) -> NodeId {
    NodeId((usize::from(name) % cluster.engines.len()) as u16)
}

fn pattern(id: u32, part: usize, bytes: usize) -> Vec<u8> {
    let start = id.wrapping_mul(2_654_435_761).wrapping_add(part as u32 * 97);
    (0..bytes).map(|at| (start.wrapping_add(at as u32 * 31) >> 3) as u8).collect()
}

impl Model {
    /// Takes over the state of a cluster in which nothing is under way.
    pub fn of(cluster: &Cluster) -> Model {
        let mut model = Model { next_id: FIRST_ID, ..Model::default() };
        for (node, audit) in cluster.audits() {
            for (name, port, receive, send) in audit.rights {
                if port == PortId::NAME_SERVICE {
                    model.services.insert((node, name));
                    continue;
                }
                model
                    .tables
                    .insert((node, name), Held { port: Some(port), receive, send, ..Held::default() });
                if receive {
                    model.received_from.insert((node, name), port);
                }
                model.ports.insert(port);
            }
        }
        model
    }

    /// Returns the port that a name has, or had, the receive right of.
    pub fn port_of(&self, node: NodeId, name: Name) -> Option<PortId> {
        self.received_from.get(&(node, name)).copied()
    }

    /// Returns a node's name of the name service.
    pub fn service(&self, node: NodeId) -> Name {
        let from = (node, Name::NULL);
        let (_, name) = self.services.range(from..).next().expect("all nodes have a right to the service");
        *name
    }

    pub fn names(&self, node: NodeId) -> Vec<(Name, Held)> {
        let from = (node, Name::NULL);
        self.tables
            .range(from..)
            .take_while(|((at, _), _)| *at == node)
            .map(|((_, name), held)| (*name, held.clone()))
            .collect()
    }

    pub fn allocated(&mut self, node: NodeId, name: Name, port: PortId) -> Result<(), String> {
        if !self.ports.insert(port) {
            return Err(format!("{port} was allocated twice"));
        }
        self.received_from.insert((node, name), port);
        let held = Held { port: Some(port), receive: true, ..Held::default() };
        match self.tables.insert((node, name), held) {
            None => Ok(()),
            Some(_) => Err(format!("node {node} gave the name {name:?} twice")),
        }
    }

    /// Returns a message with the data that follow from its id.
    pub fn message(&mut self, shape: &Shape, rights: Vec<RightToSend>) -> Message {
        let id = self.next_id;
        self.next_id += 1;
        let inline = pattern(id, 0, shape.inline);
        let regions =
            shape.regions.iter().enumerate().map(|(at, bytes)| pattern(id, at + 1, *bytes).into()).collect();
        Message { id, types: bytes_type(&inline), inline, regions, rights, ..Message::default() }
    }

    /// Returns true if the node has this right now.
    pub fn has(&self, node: NodeId, right: RightToSend) -> bool {
        let Some(held) = self.tables.get(&(node, right.name)) else { return false };
        match right.disposition {
            Disposition::MakeSend | Disposition::MakeSendOnce | Disposition::MoveReceive => held.receive,
            Disposition::CopySend | Disposition::MoveSend => held.send > 0,
            Disposition::MoveSendOnce => held.once || held.dead,
        }
    }

    pub fn take(&mut self, node: NodeId, right: RightToSend) -> Result<(RightKind, PortId), String> {
        if !self.has(node, right) {
            return Err(format!("node {node} sent a right that it does not have: {right:?}"));
        }
        let held = self.tables.get_mut(&(node, right.name)).expect("the node has it");
        let port = held.port.unwrap_or(NO_PORT);
        let kind = match right.disposition {
            Disposition::MakeSend | Disposition::CopySend => RightKind::Send,
            Disposition::MoveSend => {
                held.send -= 1;
                RightKind::Send
            }
            Disposition::MakeSendOnce => RightKind::SendOnce,
            Disposition::MoveSendOnce if held.dead => {
                held.send -= 1;
                RightKind::SendOnce
            }
            Disposition::MoveSendOnce => {
                held.once = false;
                RightKind::SendOnce
            }
            Disposition::MoveReceive => {
                held.receive = false;
                RightKind::Receive
            }
        };
        self.tidy(node, right.name);
        Ok((kind, port))
    }

    fn tidy(&mut self, node: NodeId, name: Name) {
        let is_empty = |held: &Held| !held.receive && held.send == 0 && !held.once;
        if self.tables.get(&(node, name)).is_some_and(is_empty) {
            self.tables.remove(&(node, name));
            self.watched.remove(&(node, name));
        }
    }

    /// Takes over that a name has become a dead name. A dead-name notification adds a reference.
    pub fn became_dead(&mut self, node: NodeId, name: Name) {
        // A port whose receive right is here is sent away first, which the model is about to learn.
        let is_new = |held: &&mut Held| !held.dead && !held.receive;
        let Some(held) = self.tables.get_mut(&(node, name)).filter(is_new) else { return };
        let port = held.port.expect("a right is to a port");
        let watcher = self.watched.remove(&(node, name));
        let send = held.send + u32::from(held.once) + u32::from(watcher.is_some());
        *held = Held { port: Some(port), send, dead: true, ..Held::default() };
        self.assume_dead(port, format!("node {node} has a dead name for it"));
        self.dead_names.extend(watcher.map(|watcher| (node, name, watcher)));
    }

    /// A receive right that was taken out of its message is a dead name there, although the port lives.
    fn assume_dead(&mut self, port: PortId, why: String) {
        if port != NO_PORT && !self.returnable.contains_key(&port) {
            self.assumed_dead.push((port, why));
        }
    }

    /// Notes that a dead-name notification was requested, for that port.
    pub fn watch_name(&mut self, node: NodeId, name: Name, watcher: PortId) {
        let Some(held) = self.tables.get_mut(&(node, name)) else { return };
        if held.dead {
            held.send += 1;
            self.dead_names.push((node, name, watcher));
        } else {
            self.watched.insert((node, name), watcher);
        }
    }

    /// Notes that a port-destroyed notification was requested.
    pub fn watch_port(&mut self, port: PortId, watcher: PortId) {
        self.returnable.entry(port).or_default().insert(watcher);
    }

    /// Notes a notification that has come to `to`. `returned` is the port of its receive right.
    pub fn notified(
        &mut self,
        node: NodeId,
        to: PortId,
        received: &Received,
        returned: Option<PortId>,
    ) -> Result<(), String> {
        *self.by_once.entry(to).or_default() += 1;
        match (received.id, received.rights.as_slice()) {
            (notification::DEAD_NAME, []) => {
                let bits = received.inline.as_slice().try_into().map_err(|_| "a name has eight bytes")?;
                let name = Name::from_bits(u64::from_le_bytes(bits));
                *self.told_dead.entry((received.sender, name, to)).or_default() += 1;
            }
            (notification::PORT_DESTROYED, [right]) => match returned {
                Some(port) if !self.returnable.contains_key(&port) => {
                    return Err(format!("{port} came back without a request"));
                }
                Some(port) => self.right_came(node, RightKind::Receive, port, right.name, right.kind)?,
                // It has died again in the same step.
                None => {
                    let held = Held { send: 1, dead: true, ..Held::default() };
                    self.tables.insert((node, right.name), held);
                }
            },
            (notification::SEND_ONCE, []) => self.directory.unused(to),
            (notification::NO_SENDERS, []) => {}
            (id, rights) => return Err(format!("notification {id} came with the rights {rights:?}")),
        }
        Ok(())
    }

    /// Notes that a request to the name service has been sent. Only one node, if `is_owners`, registers and
    /// withdraws that name.
    pub fn asked(
        &mut self,
        node: NodeId,
        reply: PortId,
        name: u8,
        is_owners: bool,
        message: &Message,
    ) -> Result<(), String> {
        let rights = message.rights.iter().map(|right| self.take(node, *right));
        let rights = rights.collect::<Result<Vec<_>, _>>()?;
        let registered = rights.first().map(|(_, port)| *port);
        self.directory.asked(reply, message.id, name, is_owners, registered);
        Ok(())
    }

    /// Notes that a request to the name service has failed because the service is dead.
    pub fn service_failed(&mut self) {
        self.assume_dead(PortId::NAME_SERVICE, "its name is dead".to_owned());
    }

    /// Notes an answer of the name service. `found` is the port of its right.
    pub fn answered(
        &mut self,
        node: NodeId,
        to: PortId,
        received: &Received,
        found: Option<PortId>,
    ) -> Result<(), String> {
        *self.by_once.entry(to).or_default() += 1;
        for port in self.directory.answered(to, received, found)? {
            self.assume_dead(port, format!("the name service answered {:?}", received.inline));
        }
        match (received.rights.first(), found) {
            (None, _) => Ok(()),
            (Some(right), Some(port)) => self.right_came(node, RightKind::Send, port, right.name, right.kind),
            (Some(right), None) => {
                let held = Held { send: 1, dead: true, ..Held::default() };
                self.tables.insert((node, right.name), held);
                Ok(())
            }
        }
    }

    /// Notes that a send has succeeded.
    pub fn sent(&mut self, node: NodeId, to: RightToSend, message: &Message) -> Result<(), String> {
        let (kind, port) = self.take(node, to)?;
        let rights =
            message.rights.iter().map(|right| self.take(node, *right)).collect::<Result<Vec<_>, _>>()?;
        let regions = message.regions.iter().map(Region::len).collect();
        let shape = Shape { inline: message.inline.len(), regions };
        let by_once = kind == RightKind::SendOnce;
        self.messages
            .insert(message.id, Sent { to: port, from: node, by_once, rights, shape, received: false });
        if !self.returnable.is_empty() {
            self.circled.extend(self.circles().into_keys());
        }
        Ok(())
    }

    /// Checks a received message.
    pub fn received(&mut self, node: NodeId, port: PortId, received: &Received) -> Result<(), String> {
        let id = received.id;
        let Some(sent) = self.messages.get_mut(&id) else {
            return Err(format!("message {id} was never sent"));
        };
        if core::mem::replace(&mut sent.received, true) {
            return Err(format!("message {id} came twice"));
        }
        if sent.to != port {
            return Err(format!("message {id} came to {port}, it was sent to {}", sent.to));
        }
        if sent.from != received.sender {
            return Err(format!("message {id} claims another sender"));
        }
        let same_inline = received.inline == pattern(id, 0, sent.shape.inline);
        let regions = sent.shape.regions.iter().enumerate().map(|(at, bytes)| pattern(id, at + 1, *bytes));
        if !same_inline || received.regions != regions.collect::<Vec<_>>() {
            return Err(format!("message {id} came with other data"));
        }
        let (from, by_once, rights) = (sent.from, sent.by_once, sent.rights.clone());
        if by_once {
            *self.by_once.entry(port).or_default() += 1;
        }
        if !by_once && self.last.insert((from, port), id).is_some_and(|last| last > id) {
            return Err(format!("message {id} of node {from} came out of order"));
        }
        if rights.len() != received.rights.len() {
            return Err(format!(
                "message {id} came with {} rights of {}",
                received.rights.len(),
                rights.len()
            ));
        }
        for ((kind, port), came) in rights.into_iter().zip(&received.rights) {
            self.right_came(node, kind, port, came.name, came.kind)?;
        }
        Ok(())
    }

    fn right_came(
        &mut self,
        node: NodeId,
        kind: RightKind,
        port: PortId,
        name: Name,
        came: RightKind,
    ) -> Result<(), String> {
        if came == RightKind::Dead {
            self.assume_dead(port, format!("node {node} got a dead name for it"));
            let held = Held { port: Some(port), send: 1, dead: true, ..Held::default() };
            self.tables.insert((node, name), held);
            return Ok(());
        }
        if came != kind {
            return Err(format!("a {kind:?} right to {port} came as {came:?}"));
        }
        let known = self
            .names(node)
            .into_iter()
            .find(|(_, held)| held.port == Some(port) && !held.dead && (held.receive || held.send > 0));
        if kind != RightKind::SendOnce
            && let Some((other, _)) = known
            && other != name
            && !self.dead.contains(&port)
        {
            // The other is a dead name by now, and this one will become one.
            self.assume_dead(port, format!("node {node} calls it by two names"));
        }
        let held = self.tables.entry((node, name)).or_default();
        held.port = Some(port);
        match kind {
            RightKind::Receive if held.receive => return Err(format!("{port} has two receive rights")),
            RightKind::Receive => {
                held.receive = true;
                self.received_from.insert((node, name), port);
            }
            RightKind::Send => held.send += 1,
            RightKind::SendOnce if held.once => return Err(format!("node {node} gave a name twice")),
            RightKind::SendOnce => held.once = true,
            RightKind::Dead => {}
        }
        Ok(())
    }

    /// Checks that a call failed correctly with an error about names.
    pub fn failed(&mut self, node: NodeId, rights: &[RightToSend], why: &str) -> Result<(), String> {
        let ports: Vec<_> =
            rights.iter().filter_map(|right| self.tables.get(&(node, right.name))?.port).collect();
        let has_all = rights.iter().all(|right| self.has(node, *right));
        let distinct: BTreeSet<_> = rights.iter().map(|right| right.name).collect();
        let names_dead =
            |right: &RightToSend| self.tables.get(&(node, right.name)).is_some_and(|held| held.dead);
        if has_all && distinct.len() == rights.len() && !rights.iter().any(names_dead) {
            // Only a port's death explains it; one of them must be dead.
            match ports.as_slice() {
                [] => return Err(format!("node {node}: {why}, with no right to blame")),
                [port] => self.assume_dead(*port, why.to_owned()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Notes that all that a name denotes is given up, or one user reference.
    pub fn given_up(&mut self, node: NodeId, name: Name, whole: bool) -> Result<(), String> {
        let Some(held) = self.tables.get_mut(&(node, name)) else {
            return Err(format!("node {node} gave up a name that it does not have"));
        };
        let port = held.port;
        let loses_receive = held.receive && (whole || held.send == 0);
        held.send = if whole { 0 } else { held.send.saturating_sub(1) };
        held.once = false;
        if loses_receive {
            held.receive = false;
            self.dead.extend(port.filter(|port| !self.returnable.contains_key(port)));
        }
        self.tidy(node, name);
        Ok(())
    }

    /// Returns the ports whose receive rights are in each other's queues, with the way of each: the ports
    /// that it is in, or, once its return was requested, may be in.
    fn circles(&self) -> BTreeMap<PortId, BTreeSet<PortId>> {
        let mut into = self.returnable.clone();
        for sent in self.messages.values().filter(|sent| !sent.received) {
            for (_, port) in sent.rights.iter().filter(|(kind, _)| *kind == RightKind::Receive) {
                into.entry(*port).or_default().insert(sent.to);
            }
        }
        let way = |port: &PortId| {
            let mut way = BTreeSet::new();
            let mut next = vec![*port];
            while let Some(port) = next.pop() {
                next.extend(into.get(&port).into_iter().flatten().filter(|port| way.insert(**port)));
            }
            way
        };
        let ways = into.keys().map(|port| (*port, way(port)));
        ways.filter(|(port, way)| way.contains(port)).collect()
    }

    /// Adds the ports whose receive rights were in messages that were not received: messages to dead ports,
    /// and those that `is_lost` names.
    fn with_contents(
        &self,
        dead: &BTreeSet<PortId>,
        dies: impl Fn(&PortId) -> bool,
        is_lost: impl Fn(u32) -> bool,
    ) -> BTreeSet<PortId> {
        let mut dead = dead.clone();
        loop {
            let before = dead.len();
            for (id, sent) in self.messages.iter().filter(|(_, sent)| !sent.received) {
                if dead.contains(&sent.to) || is_lost(*id) {
                    let lost = sent.rights.iter().filter(|(kind, _)| *kind == RightKind::Receive);
                    dead.extend(lost.map(|(_, port)| *port).filter(&dies));
                }
            }
            if dead.len() == before {
                return dead;
            }
        }
    }

    /// Checks which ports are dead. What nodes' deaths may have destroyed may be dead or not.
    fn compare_ports(&self, dead: &BTreeSet<PortId>, losses: &Losses) -> Result<(), String> {
        let dies = |port: &PortId| !self.returnable.contains_key(port) || losses.dead_ports.contains(port);
        // A port of the circle that is returned opens it.
        let circles =
            self.circles().into_iter().filter(|(_, way)| way.iter().all(dies)).map(|(port, _)| port);
        let certain = self.dead.iter().chain(&losses.dead_ports).copied().chain(circles);
        let certain: BTreeSet<_> = certain.filter(dies).collect();
        let certain = self.with_contents(&certain, dies, |_| false);
        let possible: BTreeSet<_> = certain.union(&losses.ports).copied().collect();
        let possible: BTreeSet<_> = possible.union(&self.circled).copied().collect();
        let possible: BTreeSet<_> = self.returnable.keys().copied().chain(possible).collect();
        let possible = self.with_contents(&possible, |_| true, |id| losses.messages.contains(&id));
        if let Some(port) = certain.difference(dead).next() {
            return Err(format!("{port} lives, the model says that it is dead"));
        }
        if let Some(port) = dead.difference(&possible).next() {
            return Err(format!("{port} is dead, the model says that it lives"));
        }
        Ok(())
    }

    /// Checks that each send-once right was used for one message, and each death of a name was told once.
    fn compare_onces(&self, cluster: &Cluster, dead: &BTreeSet<PortId>) -> Result<(), String> {
        let audits = cluster.audits();
        for (port, view) in audits.values().flat_map(|audit| &audit.ports).filter(|(_, view)| view.is_here) {
            let used = self.by_once.get(port).copied().unwrap_or(0);
            let accounted = used + view.onces.len() as u64;
            let is_lossy = cluster.losses.by_once.contains(port);
            if *port != PortId::NAME_SERVICE
                && (accounted > view.onces_made || accounted < view.onces_made && !is_lossy)
            {
                let (made, left) = (view.onces_made, view.onces.len());
                return Err(format!("{port} made {made} send-once rights: {used} messages, {left} left"));
            }
        }
        let unseen = self.watched.iter().filter(|((node, name), _)| {
            let held = &self.tables[&(*node, *name)];
            held.port.is_some_and(|port| dead.contains(&port))
        });
        let unseen = unseen.map(|((node, name), watcher)| (*node, *name, *watcher));
        let mut expected: BTreeMap<_, u32> = BTreeMap::new();
        for asked in self.dead_names.iter().copied().chain(unseen) {
            *expected.entry(asked).or_default() += 1;
        }
        for (told, count) in &self.told_dead {
            if expected.get(told).is_none_or(|expected| count > expected) {
                return Err(format!("the dead name {told:?} was told of {count} times"));
            }
        }
        for (asked @ (node, _, watcher), count) in &expected {
            let is_lossy = dead.contains(watcher)
                || cluster.losses.by_once.contains(watcher)
                || cluster.dead.contains(node);
            if !is_lossy && self.told_dead.get(asked) != Some(count) {
                return Err(format!("the dead name {asked:?} was not told of {count} times"));
            }
        }
        Ok(())
    }

    /// Checks that the living nodes are as in the model. Nothing may be under way, and every port that can
    /// receive must be empty.
    pub fn compare(&self, cluster: &Cluster) -> Result<(), String> {
        let audits = cluster.audits();
        let alive = |audit: &hiroba_ports::Audit| {
            audit.ports.iter().filter(|(_, view)| view.is_here).map(|(port, _)| *port).collect::<Vec<_>>()
        };
        let living: BTreeSet<_> = audits.values().flat_map(alive).collect();
        if let Some(port) = living.iter().find(|port| !self.ports.contains(port))
            && *port != PortId::NAME_SERVICE
        {
            return Err(format!("{port} lives and was never made"));
        }
        let mut dead: BTreeSet<_> = self.ports.difference(&living).copied().collect();
        dead.extend([PortId::NAME_SERVICE].into_iter().filter(|port| !living.contains(port)));
        self.compare_ports(&dead, &cluster.losses)?;
        for (port, why) in &self.assumed_dead {
            if !dead.contains(port) {
                return Err(format!("{port} lives, but: {why}"));
            }
        }
        for (id, sent) in self.messages.iter().filter(|(_, sent)| !sent.received) {
            if !dead.contains(&sent.to) && !cluster.losses.messages.contains(id) {
                return Err(format!("message {id} from node {} to {} was lost", sent.from, sent.to));
            }
        }
        self.compare_onces(cluster, &dead)?;
        self.directory.compare(&dead, |name| !cluster.dead.contains(&owner_of(name, cluster)))?;
        for (node, audit) in audits {
            let mut actual: Vec<(Name, Held)> = Vec::new();
            for (name, port, receive, send) in audit.rights {
                actual.push((name, Held { port: Some(port), receive, send, ..Held::default() }));
            }
            for (name, port) in audit.once_names {
                actual.push((name, Held { port: Some(port), once: true, ..Held::default() }));
            }
            actual.extend(
                audit
                    .dead_names
                    .into_iter()
                    .map(|(name, send)| (name, Held { send, dead: true, ..Held::default() })),
            );
            actual.retain(|(name, _)| !self.services.contains(&(node, *name)));
            actual.sort_by_key(|(name, _)| *name);
            let expected: Vec<_> = self
                .names(node)
                .into_iter()
                .map(|(name, held)| self.seen_now(&dead, node, name, held))
                .collect();
            if actual != expected {
                return Err(format!("node {node} has the rights {actual:?}, the model says {expected:?}"));
            }
        }
        Ok(())
    }

    /// Returns what a name denotes when these ports are dead.
    fn seen_now(&self, dead: &BTreeSet<PortId>, node: NodeId, name: Name, held: Held) -> (Name, Held) {
        let dies = held.dead || held.port.is_some_and(|port| dead.contains(&port));
        let told = self.watched.contains_key(&(node, name));
        let send = held.send + u32::from(held.once) + u32::from(told);
        (name, if dies { Held { send, dead: true, ..Held::default() } } else { held })
    }
}
