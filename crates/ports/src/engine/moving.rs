//! Receive rights that move to other nodes.
//!
//! The port travels with the head of the message that contains its right, without its queue. The old node
//! *relays* the messages that had come, and informs nodes that still send requests there of the port's place.
//! Each node numbers its messages to a port, and the port's node admits them in that order, so neither
//! relaying nor asking elsewhere changes it. The old node answers only after the new one has confirmed that
//! it has the port, so no answer leads to a node that does not know the port.

use std::collections::{BTreeMap, BTreeSet};

use hiroba_base::NodeId;

use crate::body::{Body, HeldRight, Holder, Parcel, Source};
use crate::id::{Once, PortId};
use crate::known::{Flow, Item, Known, Place, Stage};
use crate::wire::{BodyOnWire, FlowKey, HolderOnWire, OnceOnWire, Packet};

use super::Engine;

impl Engine {
    /// Returns true if the ports that are sent along have no grants under way, because grants are counted
    /// where the port is.
    pub(super) fn ports_can_leave(&self, parcel: &Parcel) -> bool {
        parcel.rights.iter().all(|right| match right {
            HeldRight::Receive(port, _) => {
                self.known.get(port).and_then(Known::body).is_none_or(|body| body.granting == 0)
            }
            HeldRight::Dead | HeldRight::Send(_) | HeldRight::Once(_) => true,
        })
    }

    /// Takes a port apart. Returns the part that travels, and relays the rest.
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
        known.moves = body.moves;
        let asking = body.parked.iter().map(|parked| parked.from);
        let asking: BTreeSet<_> = asking.chain(body.promised.iter().map(|(from, _)| *from)).collect();
        known.place = Place::Leaving { to, asking };
        let queue = core::mem::take(&mut body.queue);
        self.long.hungry.retain(|hungry| *hungry != port);
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
        let moves = body.moves + 1;
        Some(BodyOnWire {
            port,
            limit,
            make_send,
            next_once,
            journey,
            moves,
            holders,
            onces,
            former,
            no_senders,
            port_destroyed,
        })
    }

    /// Returns the list of holders with this node on it, which is an ordinary holder from now on. A holder's
    /// next message is the first that has not reached the new node.
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
        for ((_, flow, _), incoming) in &self.long.incoming {
            if let Source::Flow(origin, sequence) = incoming.source
                && flow.port() == port
            {
                note(origin, sequence);
            }
        }
        let own = self.flows.get(&FlowKey::Own(port));
        // A message in a queue elsewhere comes by a relay, and may not have come yet.
        let next_here = body.holder(me).next;
        let own_next = own.map_or(0, |flow| {
            let has_come = |item: &Item| item.sequence < next_here;
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

    /// Returns the number of moves of a port that is here, or that it had when it left.
    pub(super) fn moves_of(&self, port: PortId) -> u64 {
        self.known.get(&port).map_or(0, |known| known.body().map_or(known.moves, |body| body.moves))
    }

    /// Relays a message that had come to a port before it left, or was coming.
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
        flow.items.push_back(Item::new(number, origin, sequence, by_once, parcel));
        self.todo.flows.insert(key);
    }

    /// Takes a port that has come with a message.
    pub(super) fn port_arrives(&mut self, from: NodeId, wire: BodyOnWire) -> HeldRight {
        let (me, port) = (self.me, wire.port);
        if !self.known.contains_key(&port) {
            self.learn(port, from);
        }
        let known = self.known.get_mut(&port).expect("it is known");
        if known.body().is_some() {
            // There are two receive rights for one port, so the second is forged.
            return HeldRight::Dead;
        }
        let mut body = Body::new(wire.limit);
        (body.make_send, body.next_once, body.in_transit) = (wire.make_send, wire.next_once, true);
        (body.journey, body.moves) = (wire.journey, wire.moves);
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
        let former_is_gone = known
            .former
            .iter()
            .any(|node| self.deaths.dead.contains(node) || self.deaths.dying.contains_key(node));
        known.place = Place::Here(Box::new(body));
        let claims: Vec<_> = known.claims.keys().copied().collect();
        self.send(from, Packet::Taken { port });
        if former_is_gone {
            self.tell_all_nodes(Packet::Relocated { port, to: me, moves: wire.moves });
        }
        claims.into_iter().for_each(|once| self.send_claim(once));
        for node in self.deaths.dead.clone() {
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

    /// Sends the messages for a port whose place has become known.
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
                    Stage::Requested(node)
                        if Some(node) != place && !self.deaths.dying.contains_key(&node) =>
                    {
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
        // Messages about the port to a node may need no answer any more.
        self.todo.deaths = true;
    }

    /// Handles that the new node has the port: informs the nodes that have asked meanwhile.
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

    /// Handles an answer that a port is elsewhere, from the node that was asked.
    pub(super) fn port_moved(&mut self, from: NodeId, port: PortId, to: NodeId) {
        match self.known.get(&port).map(|known| &known.place) {
            Some(Place::At(at)) if *at == from && to != self.me => self.set_place(port, to),
            // The port has come here meanwhile, and that node does not know of the requests sent there.
            Some(Place::Here(_)) => self.resume(port),
            _ => {}
        }
    }

    /// Returns the reported node of a port, unless the report is from before this node had the port.
    pub(super) fn relocated_to(&self, port: PortId) -> Option<NodeId> {
        let (moves, to) = self.deaths.relocated.get(&port).copied()?;
        let had = self.known.get(&port).filter(|known| known.former.contains(&self.me));
        had.is_none_or(|known| moves > known.moves).then_some(to)
    }

    /// Handles a report of a port that has been on a dying node. It may arrive before the report of the
    /// death, and then counts when the death takes effect.
    pub(super) fn port_relocated(&mut self, port: PortId, to: NodeId, moves: u64) {
        if to == self.me {
            return;
        }
        let latest = self.deaths.relocated.entry(port).or_insert((moves, to));
        *latest = (*latest).max((moves, to));
        let Some(to) = self.relocated_to(port) else { return };
        if let Some(Known { place: Place::At(at), .. }) = self.known.get(&port)
            && (self.deaths.dead.contains(at) || self.deaths.dying.contains_key(at))
        {
            self.set_place(port, to);
        }
    }

    /// Notes that the port is at `to`. If that node is dead, the port is at the reported node, or lost.
    pub(super) fn set_place(&mut self, port: PortId, to: NodeId) {
        let to = if self.deaths.dead.contains(&to) { self.relocated_to(port) } else { Some(to) };
        let Some(to) = to.filter(|to| !self.deaths.dead.contains(to)) else {
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

    /// Repeats reports that were not received.
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
