//! Deaths of nodes.
//!
//! Messages of a dead node may still be under way to other nodes, which may pass them on. So a death takes
//! effect in steps. A node that learns of it takes no more messages from the dead node; it reports what it
//! knows of ports that have been there, tells origins which of their messages it has, and then all nodes that
//! it has reported all (`Told`). When all living nodes have, it knows which ports are alive, and where. When
//! its reports to living nodes about rights from anywhere have been received, it *mourns*, and informs all
//! other nodes. When all living nodes have mourned, all that came from the dead node is known where it must
//! be, and everything listed under its name is lost.

use std::collections::{BTreeMap, BTreeSet};

use hiroba_base::NodeId;

use crate::body::Source;
use crate::error::PeerError;
use crate::id::{Once, PortId};
use crate::known::{Item, Known, Orphan, Place, Stage};
use crate::wire::{FlowKey, Packet};

use super::Engine;

/// The maximum number of messages of dead nodes that a node may report.
const SURVIVORS_MAX: usize = 1 << 16;

/// Deaths of other nodes.
#[derive(Debug, Default)]
pub(crate) struct Deaths {
    /// Deaths that have not taken effect.
    pub(crate) dying: BTreeMap<NodeId, Dying>,
    pub(super) dead: BTreeSet<NodeId>,
    /// The nodes of ports that have been on nodes that died, with the ports' numbers of moves when they came
    /// there.
    pub(super) relocated: BTreeMap<PortId, (u64, NodeId)>,
    /// Messages of dead nodes that a node has: port, origin and number, as it reported with the last death.
    survivors: BTreeMap<NodeId, BTreeSet<Survivor>>,
    /// The same, of reports that are not complete.
    surviving: BTreeMap<NodeId, BTreeSet<Survivor>>,
}

/// A message of a dead node: its port, origin and number.
type Survivor = (PortId, NodeId, u64);

/// A death that has not taken effect.
#[derive(Debug, Default)]
pub(crate) struct Dying {
    /// True if the host has reported it.
    pub(super) heard: bool,
    told_by: BTreeSet<NodeId>,
    /// True if all living nodes have reported where ports are that have been there.
    is_told: bool,
    has_mourned: bool,
    mourned_by: BTreeSet<NodeId>,
}

impl Engine {
    pub(super) fn hear_of_death(&mut self, node: NodeId) {
        if node == self.me || self.deaths.dead.contains(&node) {
            return;
        }
        let dying = self.deaths.dying.entry(node).or_default();
        if core::mem::replace(&mut dying.heard, true) {
            return;
        }
        for port in self.ports_in_order() {
            self.port_before_death(port, node);
        }
        // It does not write any more.
        self.long.given_up.retain(|(from, _, _), _| *from != node);
        let survivors = self.survivors();
        for (port, origin, number) in &survivors {
            self.tell_all_nodes(Packet::Survives { port: *port, origin: *origin, number: *number });
        }
        self.deaths.survivors.insert(self.me, survivors);
        self.tell_all_nodes(Packet::Told { node });
        self.todo.deaths = true;
    }

    /// Returns the messages of dead nodes that are in queues here, or that this node relays and that have not
    /// gone to a dead node.
    fn survivors(&self) -> BTreeSet<Survivor> {
        let mut survivors = BTreeSet::new();
        for (port, known) in &self.known {
            let queue = known.body().into_iter().flat_map(|body| &body.queue);
            survivors.extend(queue.filter_map(|queued| match queued.source {
                Source::Flow(origin, number) => Some((*port, origin, number)),
                Source::Local | Source::Once => None,
            }));
            for (origin, flow) in self.relays(*port) {
                let is_here = |item: &&Item| {
                    let at = at_of(item.stage);
                    self.is_only_requested(item) || at.is_none_or(|at| !self.is_gone(at))
                };
                survivors.extend(flow.items.iter().filter(is_here).map(|item| (*port, origin, item.number)));
            }
        }
        survivors.retain(|(_, origin, _)| self.is_gone(*origin));
        survivors
    }

    /// Handles that a node has a message of a dead one.
    pub(super) fn survives(&mut self, from: NodeId, survivor: Survivor) -> Result<(), PeerError> {
        let surviving = self.deaths.surviving.entry(from).or_default();
        if surviving.len() >= SURVIVORS_MAX {
            return Err(PeerError::Unexpected { expected: "fewer messages of dead nodes", from: from.0 });
        }
        surviving.insert(survivor);
        Ok(())
    }

    /// Passes over the messages of dead nodes that no node has. Their origins cannot say that they were lost.
    /// Each node has reported those that it had when it learned of the last death.
    pub(super) fn skip_lost_of_dead(&mut self, port: PortId) {
        if !self.deaths.dying.is_empty() {
            return;
        }
        for origin in self.deaths.dead.clone() {
            let reports = self.deaths.survivors.values().flatten();
            let of_origin = reports.filter(|(of, from, _)| (*of, *from) == (port, origin));
            let numbers: BTreeSet<u64> = of_origin.map(|(_, _, number)| *number).collect();
            let Some(body) = self.body(port) else { return };
            let mut next = body.holders.get(&origin).map_or(0, |holder| holder.next);
            for number in numbers.range(next..) {
                if *number > next {
                    body.lost.insert((origin, next, number - 1));
                }
                next = number + 1;
            }
            body.pass_lost(origin);
        }
    }

    fn port_before_death(&mut self, port: PortId, node: NodeId) {
        let me = self.me;
        let Some(known) = self.known.get_mut(&port) else { return };
        if let Place::Leaving { to, asking } = &mut known.place
            && *to == node
        {
            let asking = core::mem::take(asking);
            known.place = Place::At(node);
            for other in asking {
                if other != me {
                    self.tell_place(port, other);
                }
            }
        }
        let Some(known) = self.known.get(&port) else { return };
        if known.former.contains(&node) && !matches!(known.place, Place::At(at) if at == node) {
            let moves = self.moves_of(port);
            let (to, moves) = match known.place {
                Place::At(at) => (at, moves + 1),
                Place::Here(_) | Place::Leaving { .. } => (me, moves),
            };
            self.tell_all_nodes(Packet::Relocated { port, to, moves });
        }
        // The dead node may have relayed messages here, and not have told their origins. If it was to relay a
        // message further, and has, the report of the node that got it counts as later.
        let moves = self.moves_of(port);
        let of_flow = |source| match source {
            Source::Flow(origin, number) => Some((origin, number, me, moves)),
            Source::Local | Source::Once => None,
        };
        let queue = self.known.get(&port).and_then(|known| known.body()).map(|body| &body.queue);
        let queued = queue.into_iter().flatten().filter_map(|queued| of_flow(queued.source));
        let flows = self
            .relays(port)
            .into_iter()
            .flat_map(|(origin, flow)| flow.items.iter().map(move |item| (origin, item)));
        let relayed = flows.map(|(origin, item)| {
            let has_gone = is_at(item.stage, node) && !self.is_only_requested(item);
            let (at, moves) = if has_gone { (node, moves + 1) } else { (me, moves) };
            (origin, item.number, at, moves)
        });
        let reports: Vec<_> = queued.chain(relayed).collect();
        for (origin, number, at, moves) in reports {
            self.send(origin, Packet::Relayed { port, number, at, moves });
        }
    }

    pub(super) fn tell_all_nodes(&mut self, packet: Packet<'_>) {
        for node in NodeId::all(self.nodes) {
            if node != self.me {
                self.send(node, packet.clone());
            }
        }
    }

    pub(super) fn others_told(&mut self, from: NodeId, node: NodeId) {
        let survivors = self.deaths.surviving.remove(&from).unwrap_or_default();
        self.deaths.survivors.insert(from, survivors);
        if node == self.me || self.deaths.dead.contains(&node) {
            return;
        }
        self.deaths.dying.entry(node).or_default().told_by.insert(from);
        self.todo.deaths = true;
    }

    /// Handles that all living nodes have reported the ports that have been on that node: those that none
    /// reported have died with it.
    fn look_for_ports_of(&mut self, node: NodeId) {
        let believed: Vec<_> = self
            .known
            .iter()
            .filter(|(_, known)| matches!(known.place, Place::At(at) if at == node))
            .map(|(port, known)| (*port, known.place_moves))
            .collect();
        for (port, before) in believed {
            // An earlier death may have left an older report.
            if let Some((moves, to)) = self.relocated_to(port).filter(|(moves, _)| *moves > before)
                && to != node
            {
                self.set_place(port, to, moves);
            }
        }
    }

    pub(super) fn others_mourn(&mut self, from: NodeId, node: NodeId) {
        if node == self.me || self.deaths.dead.contains(&node) {
            return;
        }
        self.deaths.dying.entry(node).or_default().mourned_by.insert(from);
        self.todo.deaths = true;
    }

    /// Mourns if possible, and lets deaths take effect that all nodes have mourned.
    pub(super) fn look_at_deaths(&mut self) {
        if self.deaths.dying.is_empty() {
            return;
        }
        let living: BTreeSet<_> =
            NodeId::all(self.nodes).filter(|node| *node != self.me && !self.is_gone(*node)).collect();
        let told = self
            .deaths
            .dying
            .iter_mut()
            .find(|(_, dying)| dying.heard && !dying.is_told && living.is_subset(&dying.told_by));
        if let Some((node, dying)) = told {
            let node = *node;
            dying.is_told = true;
            self.look_for_ports_of(node);
            self.todo.deaths = true;
            return;
        }
        let unheard = |known: &Known| {
            matches!(known.place, Place::At(at) if !self.is_gone(at))
                && (known.report.acknowledged < known.report.version || !known.claims.is_empty())
        };
        if !self.deaths.dying.is_empty() && !self.known.values().any(unheard) {
            let due: Vec<_> = self
                .deaths
                .dying
                .iter()
                .filter(|(_, dying)| dying.is_told && !dying.has_mourned)
                .map(|(node, _)| *node)
                .collect();
            for node in due {
                self.deaths.dying.entry(node).or_default().has_mourned = true;
                self.tell_all_nodes(Packet::Mourned { node });
            }
        }
        let done = self
            .deaths
            .dying
            .iter()
            .find(|(_, dying)| dying.heard && dying.has_mourned && living.is_subset(&dying.mourned_by));
        if let Some(node) = done.map(|(node, _)| *node) {
            self.deaths.dying.remove(&node);
            self.deaths.dead.insert(node);
            self.death_takes_effect(node);
            self.todo.deaths = true;
        }
    }

    fn death_takes_effect(&mut self, node: NodeId) {
        let late: Vec<_> = self.long.incoming.keys().copied().filter(|(from, _, _)| *from == node).collect();
        for key in late {
            let incoming = self.long.incoming.remove(&key).expect("it was found");
            if let Some(body) = self.body(key.1.port()) {
                body.incoming -= u32::from(incoming.source != Source::Once);
            }
            self.release_memory(incoming.reserved_bytes);
            self.todo.parcels.extend(incoming.parcel);
        }
        self.words.forget_node(node);
        self.deaths.survivors.remove(&node);
        self.deaths.surviving.remove(&node);
        self.search_circles_anew();
        for key in self.flows_in_order() {
            self.lose_items(key, node);
        }
        self.lose_orphans(node);
        for port in self.ports_in_order() {
            self.strike_off(port, node);
            self.todo.holdings.insert(port);
            self.todo.rooms.insert(port);
            let Some(known) = self.known.get(&port) else { continue };
            if matches!(known.place, Place::At(at) if at == node) {
                let moves = known.place_moves;
                self.set_place(port, node, moves);
            } else {
                self.skip_lost(port);
                self.skip_lost_of_dead(port);
                self.ask_whether_alive(port);
            }
        }
    }

    /// Asks whether the port is alive. It may have died on the dead node before that had informed all. The
    /// port's node answers a report that contains nothing new.
    fn ask_whether_alive(&mut self, port: PortId) {
        let holds = self.holds(port);
        let Some(known) = self.known.get_mut(&port) else { return };
        let Place::At(at) = known.place else { return };
        let report = &mut known.report;
        (report.holds, report.seen, report.version) = (holds, known.seen, report.version + 1);
        let (seen, version) = (report.seen, report.version);
        self.send(at, Packet::Report { port, holds, seen, version });
    }

    /// Handles that messages on their way to a node, or in its queues, are lost with their rights. Of long
    /// messages that have not begun, the node had only the request: they are sent where the port is now.
    fn lose_items(&mut self, key: FlowKey, node: NodeId) {
        let mut at = 0;
        while let Some(item) = self.flows.get(&key).and_then(|flow| flow.items.get(at)) {
            let stage = item.stage;
            if !is_at(stage, node) {
                at += 1;
                continue;
            }
            if self.is_only_requested(item) {
                self.item_at(key, at).stage = Stage::Unsent;
                self.todo.flows.insert(key);
                at += 1;
                continue;
            }
            // The message may have been sent on before.
            let item = self.item_at(key, at);
            let last = item.at.map_or(node, |(_, at)| at);
            item.stage = Stage::Queued(last);
            self.lose_item(key, at, stage);
            if matches!(key, FlowKey::Own(_)) {
                at += 1;
                continue;
            }
            let hop = self.flows.get(&key).map_or(0, |flow| flow.hop);
            self.drop_item(key, at);
            if let FlowKey::Once(port, serial) = key
                && let Some(known) = self.known.get_mut(&port)
            {
                // If the port has moved elsewhere without the message, its node must learn that the right is
                // lost.
                let once = Once { port, serial, hop: hop + 1 };
                known.claims.insert(once, (node, None));
                self.send_claim(once);
            }
        }
    }

    /// Returns true if a message is long and nothing of it has been sent.
    fn is_only_requested(&self, item: &Item) -> bool {
        match item.stage {
            Stage::Requested(_) => item.parcel.as_ref().is_some_and(|parcel| self.is_long(parcel)),
            Stage::Permitted { begun, .. } => !begun,
            Stage::Unsent | Stage::Queued(_) => false,
        }
    }

    /// Handles a message that will not be taken: the port's node has the rights that were sent with it, and
    /// the others are given up here.
    fn lose_item(&mut self, key: FlowKey, at: usize, stage: Stage) {
        let parcel = self.flows.get(&key).and_then(|flow| flow.items.get(at)?.parcel.as_ref());
        let is_long = parcel.is_some_and(|parcel| self.is_long(parcel));
        match stage {
            Stage::Queued(_) => {}
            Stage::Requested(_) if !is_long => self.close_item(key, at),
            Stage::Permitted { begun: true, .. } => self.close_item(key, at),
            Stage::Requested(_) | Stage::Permitted { .. } | Stage::Unsent => self.destroy_item(key, at),
        }
    }

    /// Informs the port's node which of this node's messages can no longer come.
    pub(super) fn skip_lost(&mut self, port: PortId) {
        let Some(to) = self.place_of(port) else { return };
        let items = self.flows.get(&FlowKey::Own(port)).into_iter().flat_map(|flow| &flow.items);
        let is_lost = |stage: Stage| matches!(stage, Stage::Queued(at) if self.deaths.dead.contains(&at));
        let mut lost: Vec<(u64, u64)> = Vec::new();
        for item in items.filter(|item| is_lost(item.stage)) {
            match lost.last_mut() {
                Some((_, last)) if *last + 1 == item.number => *last = item.number,
                _ => lost.push((item.number, item.number)),
            }
        }
        for (first, last) in lost {
            self.send(to, Packet::Skip { port, first, last });
        }
    }

    /// Removes a dead node from a port.
    pub(super) fn strike_off(&mut self, port: PortId, node: NodeId) {
        let Some(known) = self.known.get_mut(&port) else { return };
        known.pins.remove(&node);
        let (lost, kept) =
            core::mem::take(&mut known.pinned_onces).into_iter().partition(|(to, _)| *to == node);
        known.pinned_onces = kept;
        let lost: BTreeSet<(NodeId, Once)> = lost;
        for (_, once) in &lost {
            known.claims.insert(*once, (node, None));
        }
        if let Some(body) = known.body_mut() {
            // Its messages still have an order: they may be on their way from nodes where the port was.
            if let Some(holder) = body.holders.get_mut(&node) {
                (holder.holds, holder.grants) = (false, holder.seen);
            }
            body.parked.retain(|parked| parked.from != node);
            body.promised.retain(|(from, _)| *from != node);
            let unused: Vec<_> = body
                .onces
                .iter()
                .filter(|(_, (at, _))| *at == node)
                .map(|(serial, (_, hop))| (*serial, *hop))
                .collect();
            for (serial, hop) in unused {
                self.notify_unused(Once { port, serial, hop });
            }
        }
        lost.into_iter().for_each(|(_, once)| self.send_claim(once));
    }

    /// Handles that the port has died with its node. A node that has had it informs all nodes, because some
    /// may believe it to be here.
    pub(super) fn lose_port(&mut self, port: PortId) {
        if self.known.get(&port).is_some_and(|known| !known.former.is_empty()) {
            self.tell_all_nodes(Packet::Dead { port });
        }
        self.bury(port);
    }

    /// Notes that a message of this node was relayed to that node. The report that it was queued at the
    /// earlier node may not have arrived.
    pub(super) fn relayed(&mut self, port: PortId, number: u64, at: NodeId, moves: u64) {
        let flow = self.flows.get_mut(&FlowKey::Own(port));
        let item = flow.and_then(|flow| flow.items.iter_mut().find(|item| item.number == number));
        if let Some(item) = item {
            let last = item.note_queued(at, moves);
            if !matches!(item.stage, Stage::Queued(_)) {
                return;
            }
            item.stage = Stage::Queued(last);
            if self.deaths.dead.contains(&last) {
                self.skip_lost(port);
            }
        }
    }

    /// Abandons all messages of a flow whose port is dead.
    pub(super) fn abandon(&mut self, key: FlowKey) {
        let count = self.flows.get(&key).map_or(0, |flow| flow.items.len());
        for at in 0..count {
            let Some(item) = self.flows.get_mut(&key).and_then(|flow| flow.items.get_mut(at)) else { return };
            let (number, stage) = (item.number, core::mem::replace(&mut item.stage, Stage::Unsent));
            match stage {
                Stage::Requested(asked) if !item.ways.is_empty() => {
                    let (parcel, ways) = (item.parcel.take(), core::mem::take(&mut item.ways));
                    self.orphans.push(Orphan { asked, flow: key, number, parcel, ways });
                }
                Stage::Permitted { at: permitted_by, landing: Some(_), begun: false, .. } => {
                    self.send(permitted_by, Packet::GaveUp { flow: key, number });
                    self.lose_item(key, at, stage);
                }
                stage => self.lose_item(key, at, stage),
            }
        }
    }
}

fn is_at(stage: Stage, node: NodeId) -> bool {
    at_of(stage) == Some(node)
}

/// Returns the node that a message, or the request for it, has gone to.
fn at_of(stage: Stage) -> Option<NodeId> {
    match stage {
        Stage::Unsent => None,
        Stage::Requested(at) | Stage::Permitted { at, .. } | Stage::Queued(at) => Some(at),
    }
}
