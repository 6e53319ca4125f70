//! Receive rights that move to other nodes.
//!
//! The port travels with the head of the message that contains its right, without its queue. The old node
//! *relays* the messages that had come, and informs nodes that still send requests there of the port's place.
//! Each node numbers its messages to a port, and the port's node admits them in that order, so neither
//! relaying nor asking elsewhere changes it. The old node answers only after the new one has confirmed that
//! it has the port, so no answer leads to a node that does not know the port. A request is repeated at the
//! new node only after the old one has refused it.

use std::collections::{BTreeMap, BTreeSet};

use hiroba_base::NodeId;

use crate::body::{Body, HeldRight, Holder, Parcel, Source};
use crate::id::{Once, PortId};
use crate::known::{Flow, Item, Known, Place, Way};
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

    /// Takes a port apart. Returns the part that travels, and relays the rest. Adds the ways of the rights
    /// that travel with it.
    pub(super) fn port_leaves(
        &mut self,
        port: PortId,
        journey: u64,
        to: NodeId,
        ways: &mut Vec<Way>,
    ) -> Option<BodyOnWire> {
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
        // Requests for small messages were answered when they were parked.
        for parked in body.parked.iter().filter(|parked| parked.bytes.is_some()) {
            self.let_wait(parked.from, parked.flow, parked.number);
        }
        let queue = core::mem::take(&mut body.queue);
        self.long.hungry.retain(|hungry| *hungry != port);
        let mut first = BTreeMap::new();
        for queued in queue {
            self.release_memory(queued.reserved_bytes);
            if let Source::Flow(origin, number) = queued.source {
                note_first(&mut first, origin, number);
            }
            self.relay(port, queued.source, queued.parcel);
        }
        let holders = self.holders_that_leave(port, &mut body, first);
        let lost = body.lost.iter().copied().collect();
        let onces = body.onces.iter().map(|(serial, (node, hop))| (*serial, *hop, *node)).collect();
        let mut leave = |once: Once| {
            let (right, way) = self.send_once_off(once, to)?;
            ways.push(way);
            Some(right)
        };
        let no_senders = body.no_senders.and_then(|(sync, once)| Some((sync, leave(once)?)));
        let port_destroyed = body.port_destroyed.and_then(leave);
        let former = self.known.get(&port).map(|known| known.former.iter().copied().collect());
        let Body { limit, make_send, next_once, .. } = body;
        let former = former.unwrap_or_default();
        let moves = body.moves + 1;
        self.known.get_mut(&port)?.place_moves = moves;
        Some(BodyOnWire {
            port,
            limit,
            make_send,
            next_once,
            journey,
            moves,
            holders,
            lost,
            onces,
            former,
            no_senders,
            port_destroyed,
        })
    }

    /// Returns the list of holders with this node on it, which is an ordinary holder from now on. `first` has
    /// each holder's first message in the queue, which this node relays: it is that holder's next message
    /// again. Messages that this node still relays since the port was here before are not in `first`, because
    /// the list already counts without them.
    fn holders_that_leave(
        &mut self,
        port: PortId,
        body: &mut Body,
        mut first: BTreeMap<NodeId, u64>,
    ) -> Vec<HolderOnWire> {
        for ((_, flow, _), incoming) in &self.long.incoming {
            if let Source::Flow(origin, number) = incoming.source
                && flow.port() == port
            {
                note_first(&mut first, origin, number);
            }
        }
        let known = self.known.get_mut(&port).expect("the port is leaving");
        let holder = body.holder(self.me);
        let version = holder.version.max(known.report.version) + 1;
        *holder = Holder { holds: true, version, seen: known.seen, grants: known.seen, ..*holder };
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
        let (key, number) = match source {
            Source::Flow(origin, number) => (FlowKey::Relay(port, origin), number),
            Source::Once => {
                self.next_relay += 1;
                (FlowKey::RelayOnce(port), self.next_relay)
            }
            Source::Local => {
                // The message gets a number in this node's flow, so that later messages of its threads wait
                // for it if the port comes back first.
                let flow = self.flows.entry(FlowKey::Own(port)).or_default();
                let number = flow.next_number;
                flow.next_number += 1;
                flow.items.push_back(Item::queued(number, me));
                (FlowKey::Relay(port, me), number)
            }
        };
        // A message may come back here, through other nodes, after later ones of its origin.
        let items = &mut self.flows.entry(key).or_default().items;
        let at = items.partition_point(|item| item.number <= number);
        items.insert(at, Item::new(number, parcel));
        self.todo.flows.insert(key);
    }

    /// Returns the flows of messages by send rights that this node relays to a port, and their origins, in
    /// ascending order.
    pub(super) fn relays(&self, port: PortId) -> Vec<(NodeId, &Flow)> {
        let relays = self.flows.iter().filter_map(|(key, flow)| match key {
            FlowKey::Relay(to, origin) if *to == port => Some((*origin, flow)),
            FlowKey::Own(_) | FlowKey::Relay(..) | FlowKey::RelayOnce(_) | FlowKey::Once(..) => None,
        });
        let mut relays: Vec<_> = relays.collect();
        relays.sort_unstable_by_key(|(origin, _)| *origin);
        relays
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
        // Long messages that began to come when the port was here before.
        let still_come = self
            .long
            .incoming
            .iter()
            .filter(|((_, flow, _), incoming)| flow.port() == port && incoming.source != Source::Once);
        body.incoming = still_come.count() as u32;
        for holder in wire.holders {
            let HolderOnWire { node, holds, version, seen, grants, next, taken } = holder;
            body.holders.insert(node, Holder { holds, version, seen, grants, next, taken });
        }
        body.lost = wire.lost.into_iter().collect();
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
        known.place_moves = wire.moves;
        let place = core::mem::replace(&mut known.place, Place::Here(Box::new(body)));
        let claims: Vec<_> = known.claims.keys().copied().collect();
        self.send(from, Packet::Taken { port, moves: wire.moves });
        // The port has come back before the node that it had left for confirmed it.
        if let Place::Leaving { asking, .. } = place {
            asking.into_iter().filter(|node| *node != me).for_each(|node| self.tell_place(port, node));
        }
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
        // The former node may have been informed when the port had left it.
        self.skip_lost(port);
        self.skip_lost_of_dead(port);
        self.resume(port);
        HeldRight::Receive(port, wire.journey)
    }

    /// Sends the messages for a port whose place has become known. Requests that are out are answered by the
    /// nodes that they went to: the port may have been there when they came.
    fn resume(&mut self, port: PortId) {
        for (key, flow) in self.flows.iter_mut().filter(|(key, _)| key.port() == port) {
            flow.waiting = false;
            self.todo.flows.insert(*key);
        }
        self.todo.holdings.insert(port);
        self.todo.rooms.insert(port);
        // Messages about the port to a node may need no answer any more.
        self.todo.deaths = true;
    }

    /// Handles that the new node has the port: informs the nodes that have asked meanwhile.
    pub(super) fn port_taken(&mut self, from: NodeId, port: PortId, moves: u64) {
        let Some(known) = self.known.get_mut(&port) else { return };
        let Place::Leaving { to, asking } = &mut known.place else { return };
        if *to != from || known.place_moves != moves {
            return;
        }
        let asking = core::mem::take(asking);
        known.place = Place::At(from);
        for node in asking {
            if node != self.me {
                self.tell_place(port, node);
            }
        }
        self.report_anew(port);
        // A death may have taken effect while the port was on its way.
        self.skip_lost(port);
        self.resume(port);
    }

    /// Informs a node that has asked for a port of the port's place.
    pub(super) fn tell_place(&mut self, port: PortId, asking: NodeId) {
        let Some(to) = self.place_of(port) else { return };
        let Some(known) = self.known.get_mut(&port) else { return };
        known.told.insert(asking);
        let moves = known.place_moves;
        self.send(asking, Packet::Moved { port, to, moves });
    }

    /// Handles an answer that a port is elsewhere. Two nodes that the port has left one after the other may
    /// each believe it to be at the other, so the answer counts only if it tells of a later move.
    pub(super) fn port_moved(&mut self, from: NodeId, port: PortId, to: NodeId, moves: u64) {
        let Some(known) = self.known.get(&port) else { return };
        match known.place {
            Place::At(_) if moves > known.place_moves && to != self.me => self.set_place(port, to, moves),
            // Requests went to a former node of the port.
            Place::At(at) if moves == known.place_moves && to == at => self.resume(port),
            // The port has come here meanwhile, and that node does not know of the requests sent there.
            Place::Here(_) => self.resume(port),
            // The node where the port was made would have answered that the port is dead.
            Place::At(_) if from != port.birth => self.ask_birth(port),
            Place::At(_) => {}
            Place::Leaving { .. } => {}
        }
    }

    /// Asks the node where a port was made, because another one knows less than this one. That is so if the
    /// port has died there and a late right has made it known again.
    fn ask_birth(&mut self, port: PortId) {
        let Some(known) = self.known.get(&port) else { return };
        let crate::known::Report { holds, seen, version, .. } = known.report;
        if port.birth != self.me {
            self.send(port.birth, Packet::Report { port, holds, seen, version });
        }
    }

    /// Returns the reported node of a port with its number of moves by then, unless the report is from before
    /// this node had the port.
    pub(super) fn relocated_to(&self, port: PortId) -> Option<(u64, NodeId)> {
        let (moves, to) = self.deaths.relocated.get(&port).copied()?;
        let had = self.known.get(&port).filter(|known| known.former.contains(&self.me));
        had.is_none_or(|known| moves > known.moves).then_some((moves, to))
    }

    /// Handles a report of a port that has been on a dying node. It may arrive before the report of the
    /// death, and then counts when the death takes effect.
    pub(super) fn port_relocated(&mut self, port: PortId, to: NodeId, moves: u64) {
        if to == self.me {
            return;
        }
        let latest = self.deaths.relocated.entry(port).or_insert((moves, to));
        *latest = (*latest).max((moves, to));
        let Some((moves, to)) = self.relocated_to(port) else { return };
        if let Some(Known { place: Place::At(at), .. }) = self.known.get(&port)
            && (self.deaths.dead.contains(at) || self.deaths.dying.contains_key(at))
        {
            self.set_place(port, to, moves);
        }
    }

    /// Notes that the port is at `to`, after that number of moves. If that node is dead, the port is at the
    /// node that was reported after another move, or lost.
    pub(super) fn set_place(&mut self, port: PortId, to: NodeId, moves: u64) {
        let place = if self.deaths.dead.contains(&to) {
            self.relocated_to(port).filter(|(latest, _)| *latest > moves)
        } else {
            Some((moves, to))
        };
        let Some((moves, to)) = place.filter(|(_, to)| !self.deaths.dead.contains(to)) else {
            self.lose_port(port);
            return;
        };
        let Some(known) = self.known.get_mut(&port) else { return };
        known.place = Place::At(to);
        known.place_moves = known.place_moves.max(moves);
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

fn note_first(first: &mut BTreeMap<NodeId, u64>, origin: NodeId, number: u64) {
    let first = first.entry(origin).or_insert(number);
    *first = (*first).min(number);
}
