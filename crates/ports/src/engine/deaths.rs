//! Nodes that die.
//!
//! What a dead node had sent may still be under way to others, and these may pass it on. So a death takes
//! effect in three steps. A node that hears of it takes nothing from the dead one any more; says what it
//! knows of ports that have been there; and, once what it has said to living nodes of rights that came from
//! anywhere is heard, *mourns*: it tells every other node so. When all living nodes have mourned, everything
//! that came from the dead one is known where it must be, and what is listed under its name is gone for good.

use std::collections::BTreeSet;

use hiroba_base::NodeId;

use crate::id::{Once, PortId};
use crate::known::{Known, Place, Stage};
use crate::wire::{FlowKey, Packet};

use super::Engine;

/// A death that has not taken effect.
#[derive(Debug, Default)]
pub(crate) struct Dying {
    /// The host has said so.
    pub(super) heard: bool,
    has_mourned: bool,
    mourned_by: BTreeSet<NodeId>,
}

impl Engine {
    pub(super) fn hear_of_death(&mut self, node: NodeId) {
        if node == self.me || self.dead.contains(&node) {
            return;
        }
        let dying = self.dying.entry(node).or_default();
        if core::mem::replace(&mut dying.heard, true) {
            return;
        }
        let ports: Vec<_> = self.known.keys().copied().collect();
        for port in ports {
            self.port_before_death(port, node);
        }
        self.todo.deaths = true;
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
                    self.send(other, Packet::Moved { port, to: node });
                }
            }
        }
        let Some(known) = self.known.get(&port) else { return };
        if known.former.contains(&node) && !matches!(known.place, Place::At(at) if at == node) {
            let to = match known.place {
                Place::At(at) => at,
                Place::Here(_) | Place::Leaving { .. } => me,
            };
            self.tell_all_nodes(Packet::Relocated { port, to });
        }
        let relayed = self.flows.get(&FlowKey::Relay(port)).into_iter().flat_map(|flow| &flow.items);
        let lost: Vec<_> = relayed
            .filter(|item| !item.by_once && is_at(item.stage, node))
            .map(|item| (item.origin, item.sequence))
            .collect();
        for (origin, sequence) in lost {
            self.send(origin, Packet::Relayed { port, sequence, at: node });
        }
    }

    pub(super) fn tell_all_nodes(&mut self, packet: Packet<'_>) {
        for node in NodeId::all(self.nodes) {
            if node != self.me {
                self.send(node, packet.clone());
            }
        }
    }

    pub(super) fn others_mourn(&mut self, from: NodeId, node: NodeId) {
        if node == self.me || self.dead.contains(&node) {
            return;
        }
        self.dying.entry(node).or_default().mourned_by.insert(from);
        self.todo.deaths = true;
    }

    /// Mourns, if nothing hinders, and lets deaths take effect that all have mourned.
    pub(super) fn look_at_deaths(&mut self) {
        let unheard = |known: &Known| {
            matches!(known.place, Place::At(at) if !self.is_gone(at))
                && (known.report.acknowledged < known.report.version || !known.claims.is_empty())
        };
        if !self.dying.is_empty() && !self.known.values().any(unheard) {
            let due: Vec<_> = self
                .dying
                .iter()
                .filter(|(_, dying)| dying.heard && !dying.has_mourned)
                .map(|(node, _)| *node)
                .collect();
            for node in due {
                self.dying.entry(node).or_default().has_mourned = true;
                self.tell_all_nodes(Packet::Mourned { node });
            }
        }
        let living: BTreeSet<_> =
            NodeId::all(self.nodes).filter(|node| *node != self.me && !self.is_gone(*node)).collect();
        let done = self
            .dying
            .iter()
            .find(|(_, dying)| dying.heard && dying.has_mourned && living.is_subset(&dying.mourned_by));
        if let Some(node) = done.map(|(node, _)| *node) {
            self.dying.remove(&node);
            self.dead.insert(node);
            self.death_takes_effect(node);
            self.todo.deaths = true;
        }
    }

    fn death_takes_effect(&mut self, node: NodeId) {
        let late: Vec<_> = self.incoming.keys().copied().filter(|(from, _, _)| *from == node).collect();
        for key in late {
            let incoming = self.incoming.remove(&key).expect("it was found");
            if let Some(body) = self.body(key.1.port()) {
                body.incoming -= u32::from(incoming.source != crate::body::Source::Once);
            }
            self.release_memory(incoming.bytes);
            self.todo.parcels.extend(incoming.parcel);
        }
        self.accepted.remove(&node);
        self.search_circles_anew();
        for key in self.flows.keys().copied().collect::<Vec<_>>() {
            self.lose_items(key, node);
        }
        for port in self.known.keys().copied().collect::<Vec<_>>() {
            self.strike_off(port, node);
            self.todo.holdings.insert(port);
            self.todo.rooms.insert(port);
            if self.known.get(&port).is_some_and(|known| matches!(known.place, Place::At(at) if at == node)) {
                self.set_place(port, node);
            } else {
                self.skip_lost(port);
                self.ask_whether_alive(port);
            }
        }
    }

    /// The port may have died where the dead node was, which had not told all of it yet: its node answers a
    /// report that says nothing new.
    fn ask_whether_alive(&mut self, port: PortId) {
        let holds = self.holds(port);
        let Some(known) = self.known.get_mut(&port) else { return };
        let Place::At(at) = known.place else { return };
        let report = &mut known.report;
        (report.holds, report.seen, report.version) = (holds, known.seen, report.version + 1);
        let (seen, version) = (report.seen, report.version);
        self.send(at, Packet::Report { port, holds, seen, version });
    }

    /// Messages that were on their way to a node, or in its queues, are gone with their rights.
    fn lose_items(&mut self, key: FlowKey, node: NodeId) {
        let mut at = 0;
        while let Some(item) = self.flows.get_mut(&key).and_then(|flow| flow.items.get_mut(at)) {
            let stage = item.stage;
            if !is_at(stage, node) {
                at += 1;
                continue;
            }
            item.stage = Stage::Queued(node);
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
                // If the port has gone elsewhere without the message, its node must hear that the right is
                // lost.
                let once = Once { port, serial, hop: hop + 1 };
                known.claims.insert(once, (node, None));
                self.send_claim(once);
            }
        }
    }

    /// A message that will not be taken: rights that have gone along are with the port's node, and the others
    /// are given up here.
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

    /// Tells the port's node which of this node's messages can no longer come.
    pub(super) fn skip_lost(&mut self, port: PortId) {
        let Some(to) = self.place_of(port) else { return };
        let items = self.flows.get(&FlowKey::Own(port)).into_iter().flat_map(|flow| &flow.items);
        let is_lost = |stage: Stage| matches!(stage, Stage::Queued(at) if self.dead.contains(&at));
        let through = items.filter(|item| is_lost(item.stage)).map(|item| item.sequence).max();
        if let Some(through) = through {
            self.send(to, Packet::Skip { port, through });
        }
    }

    /// A dead node's part in a port.
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
            // What it had sent still has an order: messages may be on their way from nodes where the port
            // was.
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

    /// The port has died with its node. A node that has had it tells all nodes: some may believe it to be
    /// here.
    pub(super) fn lose_port(&mut self, port: PortId) {
        if self.known.get(&port).is_some_and(|known| !known.former.is_empty()) {
            self.tell_all_nodes(Packet::Dead { port });
        }
        self.bury(port);
    }

    /// A message of this node's was relayed to that node.
    pub(super) fn relayed(&mut self, port: PortId, sequence: u64, at: NodeId) {
        let flow = self.flows.get_mut(&FlowKey::Own(port));
        let item = flow.and_then(|flow| flow.items.iter_mut().find(|item| item.sequence == sequence));
        if let Some(item) = item
            && matches!(item.stage, Stage::Queued(_))
        {
            item.stage = Stage::Queued(at);
            if self.dead.contains(&at) {
                self.skip_lost(port);
            }
        }
    }

    /// Everything of a flow whose port is dead.
    pub(super) fn abandon(&mut self, key: FlowKey) {
        let count = self.flows.get(&key).map_or(0, |flow| flow.items.len());
        for at in 0..count {
            let Some(item) = self.flows.get_mut(&key).and_then(|flow| flow.items.get_mut(at)) else { return };
            let stage = core::mem::replace(&mut item.stage, Stage::Unsent);
            match stage {
                Stage::Requested(node) if !self.is_gone(node) => {
                    self.take_rights_back(key, at, node);
                    self.destroy_item(key, at);
                }
                stage => self.lose_item(key, at, stage),
            }
        }
    }
}

fn is_at(stage: Stage, node: NodeId) -> bool {
    match stage {
        Stage::Unsent => false,
        Stage::Requested(at) | Stage::Permitted { at, .. } | Stage::Queued(at) => at == node,
    }
}
