//! Receive rights that move to other nodes.
//!
//! The port goes with the head of the message that takes its right along, without its queue: what had come is
//! *relayed* by the old node, which tells nodes that still ask there where the port is. Messages of one node
//! have numbers, and the port's node lets them in by these, so that neither relaying nor asking elsewhere
//! changes their order. The old node answers only once the new one has said that it has the port, so no
//! answer leads to a node that knows nothing of it.

use std::collections::{BTreeMap, BTreeSet};

use hiroba_base::NodeId;

use crate::body::{Body, HeldRight, Holder, Parcel, Source};
use crate::id::{Once, PortId};
use crate::known::{Flow, Item, Known, Place, Stage};
use crate::wire::{BodyOnWire, FlowKey, HolderOnWire, OnceOnWire, Packet};

use super::Engine;

impl Engine {
    /// Whether nothing is under way that was granted by the ports that go along: what is granted is counted
    /// where the port is.
    pub(super) fn ports_can_leave(&self, parcel: &Parcel) -> bool {
        parcel.rights.iter().all(|right| match right {
            HeldRight::Receive(port, _) => {
                self.known.get(port).and_then(Known::body).is_none_or(|body| body.granting == 0)
            }
            HeldRight::Dead | HeldRight::Send(_) | HeldRight::Once(_) => true,
        })
    }

    /// Takes a port apart: what travels, and what is relayed.
    pub(super) fn port_leaves(&mut self, port: PortId, journey: u64, to: NodeId) -> Option<BodyOnWire> {
        let me = self.me;
        self.body_in_transit(port, journey)?;
        let known = self.known.get_mut(&port)?;
        let asking = BTreeSet::new();
        let Place::Here(body) = core::mem::replace(&mut known.place, Place::Leaving { to, asking }) else {
            return None;
        };
        known.former.insert(me);
        let mut body = *body;
        let asking = body.parked.iter().map(|parked| parked.from);
        let asking: BTreeSet<_> = asking.chain(body.promised.iter().map(|(from, _)| *from)).collect();
        known.place = Place::Leaving { to, asking };
        let queue = core::mem::take(&mut body.queue);
        self.hungry.retain(|hungry| *hungry != port);
        for queued in queue {
            self.release_memory(queued.reserved_bytes);
            self.relay(port, queued.source, queued.parcel);
        }
        let holders = self.holders_that_leave(port, &mut body);
        let onces = body.onces.iter().map(|(serial, (node, hop))| (*serial, *hop, *node)).collect();
        let mut leave = |once: Once| self.send_once_off(once, to).map(|(right, _)| right);
        let no_senders = body.no_senders.and_then(|(sync, once)| Some((sync, leave(once)?)));
        let port_destroyed = body.port_destroyed.and_then(leave);
        let former = self.known.get(&port).map(|known| known.former.iter().copied().collect());
        let Body { limit, make_send, next_once, .. } = body;
        let former = former.unwrap_or_default();
        Some(BodyOnWire {
            port,
            limit,
            make_send,
            next_once,
            journey,
            holders,
            onces,
            former,
            no_senders,
            port_destroyed,
        })
    }

    /// The list of holders with this node on it, which is one like the others from now on. A holder's next
    /// message is the first that has not come to the new node.
    fn holders_that_leave(&mut self, port: PortId, body: &mut Body) -> Vec<HolderOnWire> {
        let me = self.me;
        let mut first: BTreeMap<NodeId, u64> = BTreeMap::new();
        let mut note = |origin: NodeId, sequence: u64| {
            let first = first.entry(origin).or_insert(sequence);
            *first = (*first).min(sequence);
        };
        let relayed = self.flows.get(&FlowKey::Relay(port)).into_iter().flat_map(|flow| &flow.items);
        for item in relayed.filter(|item| !item.by_once && item.parcel.is_some()) {
            note(item.origin, item.sequence);
        }
        for ((_, flow, _), incoming) in &self.incoming {
            if let Source::Flow(origin, sequence) = incoming.source
                && flow.port() == port
            {
                note(origin, sequence);
            }
        }
        let own = self.flows.get(&FlowKey::Own(port));
        // What is in a queue elsewhere comes by a relay, and may not have come yet.
        let next_here = body.holder(me).next;
        let own_next = own.map_or(0, |flow| {
            let has_come = |item: &Item| matches!(item.stage, Stage::Queued(_)) && item.sequence < next_here;
            let waiting = flow.items.iter().find(|item| !has_come(item));
            waiting.map_or(flow.next_number, |item| item.sequence)
        });
        let known = self.known.get_mut(&port).expect("the port is leaving");
        let holder = body.holder(me);
        let version = holder.version.max(known.report.version) + 1;
        let next = own_next;
        *holder =
            Holder { holds: true, version, seen: known.seen, grants: known.seen, next, taken: holder.taken };
        let report = &mut known.report;
        (report.holds, report.seen) = (true, known.seen);
        (report.version, report.acknowledged) = (version, version);
        let on_wire = |(node, holder): (&NodeId, &Holder)| {
            let Holder { holds, version, seen, grants, taken, next } = *holder;
            let next = first.get(node).map_or(next, |first| next.min(*first));
            HolderOnWire { node: *node, holds, version, seen, grants, next, taken }
        };
        body.holders.iter().map(on_wire).collect()
    }

    /// A message that had come to a port before it left, or was coming.
    pub(super) fn relay(&mut self, port: PortId, source: Source, parcel: Parcel) {
        let me = self.me;
        let Some(known) = self.known.get_mut(&port) else {
            self.todo.parcels.push(parcel);
            return;
        };
        known.carried += 1;
        let (origin, sequence, by_once) = match source {
            Source::Flow(origin, sequence) => (origin, sequence, false),
            Source::Once => (me, 0, true),
            Source::Local => {
                let flow = self.flows.entry(FlowKey::Own(port)).or_default();
                flow.next_number += 1;
                (me, flow.next_number - 1, false)
            }
        };
        let key = FlowKey::Relay(port);
        let flow: &mut Flow = self.flows.entry(key).or_default();
        let number = self.next_relay;
        self.next_relay += 1;
        let (stage, parcel) = (Stage::Unsent, Some(parcel));
        flow.items.push_back(Item { number, origin, sequence, stage, parcel, ways: Vec::new(), by_once });
        self.todo.flows.insert(key);
    }

    /// A port has come with a message.
    pub(super) fn port_arrives(&mut self, from: NodeId, wire: BodyOnWire) -> HeldRight {
        let (me, port) = (self.me, wire.port);
        if !self.known.contains_key(&port) {
            self.learn(port, from);
        }
        let known = self.known.get_mut(&port).expect("it is known");
        if known.body().is_some() {
            // Two receive rights for one port: the second is a lie.
            return HeldRight::Dead;
        }
        let mut body = Body::new(wire.limit);
        (body.make_send, body.next_once, body.in_transit) = (wire.make_send, wire.next_once, true);
        body.journey = wire.journey;
        for holder in wire.holders {
            let HolderOnWire { node, holds, version, seen, grants, next, taken } = holder;
            body.holders.insert(node, Holder { holds, version, seen, grants, next, taken });
        }
        let own = body.holder(me);
        (own.holds, own.seen) = (false, own.grants);
        own.version = own.version.max(known.report.version);
        known.seen = own.grants;
        body.onces = wire.onces.into_iter().map(|(serial, hop, node)| (serial, (node, hop))).collect();
        known.former.extend(wire.former);
        let former_is_gone =
            known.former.iter().any(|node| self.dead.contains(node) || self.dying.contains_key(node));
        known.place = Place::Here(Box::new(body));
        let claims: Vec<_> = known.claims.keys().copied().collect();
        self.send(from, Packet::Taken { port });
        if former_is_gone {
            self.tell_all_nodes(Packet::Relocated { port, to: me });
        }
        claims.into_iter().for_each(|once| self.send_claim(once));
        for node in self.dead.clone() {
            self.strike_off(port, node);
        }
        let mut arrive = |right: OnceOnWire| self.once_arrives(from, right);
        let no_senders = wire.no_senders.and_then(|(sync, right)| Some((sync, arrive(right)?)));
        let port_destroyed = wire.port_destroyed.and_then(arrive);
        if let Some(body) = self.body(port) {
            (body.no_senders, body.port_destroyed) = (no_senders, port_destroyed);
        }
        self.resume(port);
        HeldRight::Receive(port, wire.journey)
    }

    /// What goes to a port whose place has become known goes there.
    fn resume(&mut self, port: PortId) {
        for key in self.flows.keys().copied().filter(|key| key.port() == port).collect::<Vec<_>>() {
            let place = self.place_of(port);
            let flow = self.flows.get_mut(&key).expect("it was found");
            flow.waiting = false;
            let asked: Vec<_> = flow
                .items
                .iter()
                .enumerate()
                .filter_map(|(at, item)| match item.stage {
                    Stage::Requested(node) if Some(node) != place && !self.dying.contains_key(&node) => {
                        Some((at, node))
                    }
                    _ => None,
                })
                .collect();
            for (at, node) in asked {
                self.flows.get_mut(&key).expect("it was found").items[at].stage = Stage::Unsent;
                self.take_rights_back(key, at, node);
            }
            self.todo.flows.insert(key);
        }
        self.todo.holdings.insert(port);
        self.todo.rooms.insert(port);
    }

    /// The new node has the port: who has asked meanwhile is told where it is.
    pub(super) fn port_taken(&mut self, from: NodeId, port: PortId) {
        let Some(known) = self.known.get_mut(&port) else { return };
        let Place::Leaving { to, asking } = &mut known.place else { return };
        if *to != from {
            return;
        }
        let asking = core::mem::take(asking);
        known.place = Place::At(from);
        for node in asking {
            if node != self.me {
                self.send(node, Packet::Moved { port, to: from });
            }
        }
        self.report_anew(port);
        self.resume(port);
    }

    /// Word has come where a port is, from who was asked.
    pub(super) fn port_moved(&mut self, from: NodeId, port: PortId, to: NodeId) {
        match self.known.get(&port).map(|known| &known.place) {
            Some(Place::At(at)) if *at == from && to != self.me => self.set_place(port, to),
            // It has come here meanwhile, and that node does not know of what was asked there.
            Some(Place::Here(_)) => self.resume(port),
            _ => {}
        }
    }

    /// Word of a port that has been on a node that is dying. It may come before word of the death, and then
    /// counts when that takes effect.
    pub(super) fn port_relocated(&mut self, port: PortId, to: NodeId) {
        if to == self.me {
            return;
        }
        self.relocated.insert(port, to);
        if let Some(Known { place: Place::At(at), .. }) = self.known.get(&port)
            && (self.dead.contains(at) || self.dying.contains_key(at))
        {
            self.set_place(port, to);
        }
    }

    /// The port is there, or, if that node is dead, where others have said, or nowhere.
    pub(super) fn set_place(&mut self, port: PortId, to: NodeId) {
        let to = if self.dead.contains(&to) { self.relocated.get(&port).copied() } else { Some(to) };
        let Some(to) = to.filter(|to| !self.dead.contains(to)) else {
            self.lose_port(port);
            return;
        };
        let Some(known) = self.known.get_mut(&port) else { return };
        known.place = Place::At(to);
        self.report_anew(port);
        self.skip_lost(port);
        self.resume(port);
        self.todo.deaths = true;
    }

    /// Says again what was said and not heard.
    fn report_anew(&mut self, port: PortId) {
        let Some(known) = self.known.get(&port) else { return };
        let Place::At(at) = known.place else { return };
        let report = known.report;
        let claims: Vec<_> = known.claims.keys().copied().collect();
        if report.acknowledged < report.version {
            let crate::known::Report { holds, seen, version, .. } = report;
            self.send(at, Packet::Report { port, holds, seen, version });
        }
        claims.into_iter().for_each(|once| self.send_claim(once));
    }
}
