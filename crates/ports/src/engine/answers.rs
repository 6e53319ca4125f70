//! The sender's side: handles the answers to its requests (the paper's sections 5.2 and 5.4).

use hiroba_base::NodeId;

use crate::body::{HeldRight, Parcel};
use crate::error::PeerError;
use crate::id::PortId;
use crate::known::{Item, Orphan, Place, Stage, Way};
use crate::wire::{Answered, FlowKey, Packet};

use super::Engine;

impl Engine {
    /// Returns the item of a flow that an answer is about. A message that comes back to a node that relayed
    /// it before may overtake the answer to the earlier request: the first of equal numbers is the older one.
    fn find(&mut self, from: NodeId, key: FlowKey, number: u64) -> Option<(usize, &mut Item)> {
        let asked = |stage| match stage {
            Stage::Requested(at) | Stage::Permitted { at, .. } => at == from,
            Stage::Unsent | Stage::Queued(_) => false,
        };
        let items = &mut self.flows.get_mut(&key)?.items;
        items.iter_mut().enumerate().find(|(_, item)| item.number == number && asked(item.stage))
    }

    /// Handles that the message is in the queue (I).
    pub(super) fn message_queued(&mut self, from: NodeId, answered: Answered) {
        let Answered { flow: key, number, moves } = answered;
        if let Some(orphan) = self.take_orphan(from, key, number) {
            self.close_parcel(key, orphan.parcel, orphan.ways);
            return;
        }
        let Some((at, item)) = self.find(from, key, number) else { return };
        let last = item.note_queued(from, moves);
        item.stage = Stage::Queued(last);
        self.close_item(key, at);
        if let FlowKey::Relay(port, origin) = key
            && origin != from
        {
            self.send(origin, Packet::Relayed { port, number, at: from, moves });
        }
        if !matches!(key, FlowKey::Own(_)) {
            self.drop_item(key, at);
        } else if self.deaths.dead.contains(&last) {
            self.skip_lost(key.port());
        }
        self.todo.flows.insert(key);
    }

    /// Removes a message that this node does not hold any more, with its rights and the right that it was
    /// sent by.
    pub(super) fn close_item(&mut self, key: FlowKey, at: usize) {
        let item = self.item_at(key, at);
        let (parcel, ways) = (item.parcel.take(), core::mem::take(&mut item.ways));
        self.close_parcel(key, parcel, ways);
    }

    fn close_parcel(&mut self, key: FlowKey, parcel: Option<Parcel>, ways: Vec<Way>) {
        for way in ways {
            self.grant_answered(way);
        }
        let Some(parcel) = parcel else { return };
        for right in parcel.rights {
            if let HeldRight::Send(port) = right {
                self.release_send(port);
            }
        }
        if !matches!(key, FlowKey::Once(..)) {
            self.release_send(key.port());
        }
    }

    pub(super) fn drop_item(&mut self, key: FlowKey, at: usize) {
        let Some(flow) = self.flows.get_mut(&key) else { return };
        flow.items.remove(at);
        if flow.items.is_empty() && !matches!(key, FlowKey::Own(_)) {
            self.flows.remove(&key);
        }
    }

    /// Handles that a request must wait. This node still holds the message, and gets its rights back.
    pub(super) fn told_to_wait(&mut self, from: NodeId, key: FlowKey, number: u64, moves: u64) {
        if let Some(orphan) = self.take_orphan(from, key, number) {
            self.destroy_orphan(orphan);
            return;
        }
        let is_still_there = self.is_still_there(key.port(), from, moves);
        if self.take_back(from, key, number).is_some()
            && let Some(flow) = self.flows.get_mut(&key)
        {
            // An answer of the port's former node does not lead to a `Ready`: the request goes to the present
            // one, even if that let a later message wait, perhaps for this one.
            flow.waiting = is_still_there;
            self.todo.flows.insert(key);
        }
    }

    /// Returns true if the port, as far as this node knows, has not moved since it was at that node after
    /// this number of moves.
    fn is_still_there(&mut self, port: PortId, node: NodeId, moves: u64) -> bool {
        let Some(known) = self.known.get_mut(&port) else { return false };
        if known.place_moves > moves {
            return false;
        }
        match known.place {
            Place::At(at) if at == node => {
                // A right does not tell how often its port has moved.
                known.place_moves = moves;
                true
            }
            Place::At(_) | Place::Leaving { .. } | Place::Here(_) => false,
        }
    }

    /// Takes back a refused request. Returns the message's place in its flow if the request was out.
    fn take_back(&mut self, from: NodeId, key: FlowKey, number: u64) -> Option<usize> {
        let (at, item) = self.find(from, key, number)?;
        if item.stage != Stage::Requested(from) {
            return None;
        }
        item.stage = Stage::Unsent;
        let (mut parcel, ways) = (item.parcel.take(), core::mem::take(&mut item.ways));
        self.take_rights_back(&mut parcel, ways, from);
        self.item_at(key, at).parcel = parcel;
        Some(at)
    }

    /// Takes back the rights of a message that was refused.
    fn take_rights_back(&mut self, parcel: &mut Option<Parcel>, ways: Vec<Way>, from: NodeId) {
        for (index, way) in ways.into_iter().enumerate() {
            let hop = self.right_came_back(way, from);
            if let (Some(hop), Some(parcel)) = (hop, parcel.as_mut())
                && let HeldRight::Once(once) = &mut parcel.rights[index]
            {
                once.hop = hop;
            }
        }
    }

    fn take_orphan(&mut self, asked: NodeId, flow: FlowKey, number: u64) -> Option<Orphan> {
        let is_it = |orphan: &Orphan| (orphan.asked, orphan.flow, orphan.number) == (asked, flow, number);
        let at = self.orphans.iter().position(is_it)?;
        Some(self.orphans.swap_remove(at))
    }

    fn destroy_orphan(&mut self, orphan: Orphan) {
        let Orphan { asked, flow, mut parcel, ways, .. } = orphan;
        self.take_rights_back(&mut parcel, ways, asked);
        self.destroy_parcel_of(flow, parcel);
    }

    /// Handles that a node has no port of that identity, and so has refused, or will refuse, all requests for
    /// it that it has not answered.
    pub(super) fn destroy_orphans(&mut self, asked: NodeId, port: PortId) {
        let is_refused = |orphan: &mut Orphan| orphan.asked == asked && orphan.flow.port() == port;
        for orphan in self.orphans.extract_if(.., is_refused).collect::<Vec<_>>() {
            self.destroy_orphan(orphan);
        }
    }

    /// Handles that the messages of requests to a dead node are lost with it.
    pub(super) fn lose_orphans(&mut self, node: NodeId) {
        for orphan in self.orphans.extract_if(.., |orphan| orphan.asked == node).collect::<Vec<_>>() {
            self.close_parcel(orphan.flow, orphan.parcel, orphan.ways);
        }
    }

    pub(super) fn told_to_go_on(&mut self, key: FlowKey) {
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.waiting = false;
            self.todo.flows.insert(key);
        }
    }

    /// Handles that memory for a message is reserved. The port may have died meanwhile, and the message with
    /// it: then its place in the landing pool goes back.
    pub(super) fn permitted(
        &mut self,
        from: NodeId,
        key: FlowKey,
        number: u64,
        landing: Option<u64>,
    ) -> Result<(), PeerError> {
        let asked = self.find(from, key, number).filter(|(_, item)| item.stage == Stage::Requested(from));
        let Some((at, item)) = asked else {
            if landing.is_some() {
                self.send(from, Packet::GaveUp { flow: key, number });
            }
            return Ok(());
        };
        let parcel = item.parcel.take();
        let wanted = parcel.as_ref().map_or(0, |parcel| self.bytes_to_land(parcel));
        let item = self.item_at(key, at);
        item.parcel = parcel;
        if let Some(offset) = landing {
            let length = self.pool.as_ref().map_or(0, |pool| pool.bytes());
            let is_inside = offset <= length && wanted <= length - offset;
            if wanted == 0 || !is_inside {
                let expected = "a place inside its landing pool, for regions that shall go there";
                return Err(PeerError::Unexpected { expected, from: from.0 });
            }
        }
        let item = self.item_at(key, at);
        item.stage = Stage::Permitted { at: from, landing, begun: false, sent: 0, came: 0 };
        self.told_to_go_on(key);
        Ok(())
    }

    pub(super) fn more(&mut self, from: NodeId, key: FlowKey, number: u64, through: u64) {
        let Some((_, item)) = self.find(from, key, number) else { return };
        if let Stage::Permitted { sent, came, .. } = &mut item.stage {
            *came = through.clamp(*came, *sent);
            self.todo.flows.insert(key);
        }
    }

    /// Destroys the message: the port's node knows no such right.
    pub(super) fn denied(&mut self, from: NodeId, key: FlowKey, number: u64) {
        if let Some(at) = self.take_back(from, key, number) {
            self.destroy_item(key, at);
            self.drop_item(key, at);
            self.todo.flows.insert(key);
        }
    }

    /// Destroys a message that will not be sent.
    pub(super) fn destroy_item(&mut self, key: FlowKey, at: usize) {
        let parcel = self.item_at(key, at).parcel.take();
        self.destroy_parcel_of(key, parcel);
    }

    fn destroy_parcel_of(&mut self, key: FlowKey, parcel: Option<Parcel>) {
        if let Some(parcel) = parcel {
            self.todo.parcels.push(parcel);
            if !matches!(key, FlowKey::Once(..)) {
                self.release_send(key.port());
            }
        }
    }

    /// Handles that receivers have taken messages off the queue, so that there is room in the sender's copy
    /// of it.
    pub(super) fn messages_accepted(&mut self, port: PortId, through: u64) {
        let key = FlowKey::Own(port);
        while let Some(flow) = self.flows.get(&key)
            && flow.items.front().is_some_and(|item| item.number <= through && item.stage != Stage::Unsent)
        {
            self.close_item(key, 0);
            self.drop_item(key, 0);
            self.todo.flows.insert(key);
        }
    }
}
