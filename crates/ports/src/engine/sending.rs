//! The sender's side: brings a message of the program into the port's queue (the paper's section 5.2).

use core::ops::Range;
use std::sync::Arc;

use crate::body::{HeldRight, Inline, Owed, Parcel, Source};
use crate::effect::{Effect, Landing, Outcome, Patience, Tail};
use crate::error::PortError;
use crate::id::{Name, Once, PortId, Ticket};
use crate::known::{Blocked, Flow, Item, Place, Stage, Then, Way};
use crate::landing::places;
use crate::message::{Disposition, Message, RightToSend};
use crate::names::Entry;
use crate::region::Region;
use crate::wire::{FlowKey, Head, ITEMS_MAX, Load, Packet, RELEASED_BYTES_MAX};

use super::Engine;
use super::admitting::Asked;
use hiroba_base::NodeId;

/// The destination of a message, as named by its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    Port(PortId),
    Once(Once),
}

impl Engine {
    pub(super) fn send_call(
        &mut self,
        ticket: Ticket,
        to: RightToSend,
        message: Message,
        patience: Patience,
        notify: Option<RightToSend>,
    ) -> Option<Result<Outcome, PortError>> {
        let good = self.check_message(to, &message, notify);
        let destination = match good {
            Ok(destination) => destination,
            Err(error) => {
                self.return_message(ticket, message);
                return Some(Err(error));
            }
        };
        if !self.must_wait(destination) {
            // First, because the next step may end calls of the message's receivers.
            self.complete(ticket, Ok(Outcome::Done));
            self.send_now(to, message);
            return None;
        }
        let Destination::Port(port) = destination else { unreachable!("send-once rights need no room") };
        let flow = self.flows.entry(FlowKey::Own(port)).or_default();
        if let Some(notify) = notify {
            if flow.notify.is_some() {
                self.return_message(ticket, message);
                return Some(Err(PortError::NotifyInProgress));
            }
            let Ok(HeldRight::Once(once)) = self.take_right(notify) else { unreachable!("it was checked") };
            self.flows.entry(FlowKey::Own(port)).or_default().notify = Some((to.name, once));
            self.todo.flows.insert(FlowKey::Own(port));
            self.complete(ticket, Ok(Outcome::WillNotify));
            self.send_now(to, message);
            return None;
        }
        self.block(ticket, port, Blocked { ticket, to, message, then: None }, patience)
    }

    /// Lets a thread wait for room, if its patience permits.
    pub(super) fn block(
        &mut self,
        ticket: Ticket,
        port: PortId,
        blocked: Blocked,
        patience: Patience,
    ) -> Option<Result<Outcome, PortError>> {
        match patience {
            Patience::None => {
                self.return_message(ticket, blocked.message);
                return Some(Err(PortError::SendTimedOut));
            }
            Patience::Until(deadline) => _ = self.deadlines.insert((deadline, ticket)),
            Patience::Endless => {}
        }
        self.flows.entry(FlowKey::Own(port)).or_default().blocked.push_back(blocked);
        self.park_own_threads(port);
        None
    }

    /// Sends a message that was checked.
    pub(super) fn send_now(&mut self, to: RightToSend, message: Message) {
        let has_reply = message.reply.is_some();
        let take = |engine: &mut Engine, right| engine.take_checked(right).expect("the message was checked");
        // In the order in which they were checked: the header's rights before those of the body.
        let destination = take(self, to);
        let wanted = message.reply.iter().chain(&message.rights);
        let rights: Vec<_> = wanted.map(|right| take(self, *right)).collect();
        if let HeldRight::Send(port) | HeldRight::Once(Once { port, .. }) = destination {
            self.ports_set_out(&rights, port);
        }
        let Message { id, types, inline, regions, released, told, .. } = message;
        let (sender, owed) = (self.me, Owed::ToAllBut(told));
        let (inline, regions) = (Inline::Own(inline), regions.into_iter().map(Arc::new).collect());
        let parcel = Parcel { id, types, inline, regions, has_reply, rights, released, sender, owed };
        match destination {
            HeldRight::Send(port) => self.send_parcel(port, parcel),
            HeldRight::Once(once) => self.send_by_once(once, parcel),
            HeldRight::Dead | HeldRight::Receive(..) => unreachable!("the message was checked"),
        }
    }

    /// Sends a message to a port. The engine holds the destination's send right.
    pub(super) fn send_parcel(&mut self, port: PortId, parcel: Parcel) {
        let key = FlowKey::Own(port);
        let is_here = self.known.get(&port).is_some_and(|known| known.body().is_some());
        let leftovers = self.flows.get(&key).is_some_and(|flow| !flow.items.is_empty());
        if is_here && !leftovers {
            // While the message is in the queue, it counts as the right.
            self.release_send(port);
            self.enqueue(port, Source::Local, parcel, 0);
            return;
        }
        let flow = self.flows.entry(key).or_default();
        let number = flow.next_number;
        flow.next_number += 1;
        flow.items.push_back(Item::new(number, parcel));
        self.todo.flows.insert(key);
    }

    /// Sends by a send-once right that the engine holds.
    pub(super) fn send_by_once(&mut self, once: Once, parcel: Parcel) {
        let Some(known) = self.known.get_mut(&once.port) else {
            self.todo.parcels.push(parcel);
            return;
        };
        if let Some(body) = known.body_mut() {
            body.onces.remove(&once.serial);
            self.enqueue(once.port, Source::Once, parcel, 0);
            return;
        }
        let key = FlowKey::Once(once.port, once.serial);
        let item = Item::new(0, parcel);
        self.flows
            .insert(key, Flow { items: [item].into(), hop: once.hop, next_number: 1, ..Flow::default() });
        self.todo.flows.insert(key);
    }

    /// Checks that the destination exists, the message describes itself correctly, and its rights are the
    /// caller's.
    pub(super) fn check_message(
        &self,
        to: RightToSend,
        message: &Message,
        notify: Option<RightToSend>,
    ) -> Result<Destination, PortError> {
        let typed: u64 =
            message.types.iter().map(|typed| u64::from(typed.element_bytes) * u64::from(typed.count)).sum();
        let counts = [message.types.len(), message.regions.len(), message.rights.len() + 1];
        let good = typed == message.inline.len() as u64
            && u32::try_from(message.inline.len()).is_ok()
            && counts.into_iter().all(|count| count <= ITEMS_MAX)
            && message.released.len() <= RELEASED_BYTES_MAX;
        if !good {
            return Err(PortError::InvalidMessage);
        }
        let (limit_bytes, got_bytes) = (self.config.message_bytes_max, message.data_bytes());
        if got_bytes > limit_bytes {
            return Err(PortError::MessageTooLarge { limit_bytes, got_bytes });
        }
        let destination = match self.names.get(to.name)? {
            Entry::Dead { .. } => return Err(PortError::DeadDestination),
            Entry::Port { port, .. } => match to.disposition {
                Disposition::MakeSendOnce => None,
                Disposition::CopySend | Disposition::MoveSend | Disposition::MakeSend => {
                    Some(Destination::Port(*port))
                }
                Disposition::MoveReceive | Disposition::MoveSendOnce => return Err(PortError::InvalidRight),
            },
            Entry::Once { once, .. } => Some(Destination::Once(*once)),
            Entry::Set { .. } => return Err(PortError::InvalidRight),
        };
        self.check_rights([to].iter().chain(&message.reply).chain(&message.rights).chain(&notify).copied())?;
        if message.reply.is_some_and(|reply| reply.disposition == Disposition::MoveReceive) {
            return Err(PortError::InvalidRight);
        }
        let is_once = |right: &RightToSend| {
            matches!(right.disposition, Disposition::MakeSendOnce | Disposition::MoveSendOnce)
        };
        if notify.is_some_and(|notify| !is_once(&notify)) {
            return Err(PortError::InvalidRight);
        }
        // A right that is made for this message has no number yet; no thread waits for it.
        let fresh = Once { port: PortId::NAME_SERVICE, serial: u64::MAX, hop: 0 };
        Ok(destination.unwrap_or(Destination::Once(fresh)))
    }

    /// Returns true if the queue, or this node's part of it, is full, or others have waited longer.
    pub(super) fn must_wait(&self, destination: Destination) -> bool {
        let Destination::Port(port) = destination else { return false };
        let flow = self.flows.get(&FlowKey::Own(port));
        if flow.is_some_and(|flow| !flow.blocked.is_empty()) {
            return true;
        }
        let items = flow.map_or(0, |flow| flow.items.len());
        let limit = self.config.queue_limit as usize;
        match self.known.get(&port).map(|known| &known.place) {
            Some(Place::Here(body)) if items == 0 => !body.has_room() || !body.parked.is_empty(),
            // The sender's copy of the queue (section 5.4).
            Some(_) => items >= limit,
            None => false,
        }
    }

    /// Sends all messages of a flow that may be sent now: requests of small messages one after another, a
    /// long one by itself.
    pub(super) fn pump(&mut self, key: FlowKey) {
        let Some(flow) = self.flows.get(&key) else { return };
        if flow.is_quiet() && flow.items.iter().all(|item| matches!(item.stage, Stage::Queued(_))) {
            if flow.is_unused() {
                self.flows.remove(&key);
            }
            return;
        }
        let Some(to) = self.place_of(key.port()) else { return };
        let is_leaving = matches!(self.known[&key.port()].place, Place::Leaving { .. });
        // Messages that a former node of the port has permitted go there in any case.
        let can_ask = !is_leaving && (to == self.me || !self.is_gone(to));
        if matches!(key, FlowKey::Once(..)) && to == self.me && can_ask && self.once_came_home(key) {
            return;
        }
        if to == self.me && can_ask {
            self.deliver_here(key);
        }
        let (mut at, mut may_ask) = (0, true);
        while let Some(flow) = self.flows.get(&key)
            && let Some(item) = flow.items.get(at)
        {
            let is_long = item.parcel.as_ref().is_some_and(|parcel| self.is_long(parcel));
            match item.stage {
                Stage::Queued(_) => {}
                // Messages after a long one wait until its last piece has been sent: the link keeps the
                // order.
                Stage::Requested(_) if is_long => break,
                Stage::Requested(_) => {}
                Stage::Permitted { .. } => {
                    if !self.send_pieces(key, at) {
                        break;
                    }
                }
                Stage::Unsent => {
                    let is_out = |item: &&Item| matches!(item.stage, Stage::Requested(_));
                    let out = flow.items.iter().filter(is_out).count();
                    // Permitted messages after one that must wait continue, because that one may wait for
                    // their memory.
                    may_ask &= can_ask && to != self.me && !flow.waiting && out < self.config.requests_max;
                    if may_ask {
                        self.request(key, at, to);
                        if is_long {
                            break;
                        }
                    }
                }
            }
            at += 1;
        }
        self.admit_own_threads(key);
    }

    /// Queues, in turn, the messages for a port that has come here.
    fn deliver_here(&mut self, key: FlowKey) {
        let (me, port) = (self.me, key.port());
        while let Some(flow) = self.flows.get(&key)
            && !flow.waiting
            && let Some(at) = flow.items.iter().position(|item| item.stage == Stage::Unsent)
        {
            let is_behind = flow.items.iter().take(at).any(|item| !matches!(item.stage, Stage::Queued(_)));
            let number = flow.items[at].number;
            let asked = Asked { from: me, flow: key, number, hop: 0 };
            if is_behind {
                return;
            }
            if !self.is_in_turn(&asked) {
                self.flows.get_mut(&key).expect("the flow is looked at").waiting = true;
                self.park(asked.parked(None, 0));
                return;
            }
            self.count_in(&asked);
            let item = self.item_at(key, at);
            item.stage = Stage::Queued(me);
            let parcel = item.parcel.take().expect("a message that was not sent is here");
            self.release_send(port);
            if !matches!(key, FlowKey::Own(_)) {
                self.drop_item(key, at);
            }
            if let FlowKey::Relay(_, origin) = key
                && origin != me
            {
                let moves = self.moves_of(port);
                self.send(origin, Packet::Relayed { port, number, at: me, moves });
            }
            self.enqueue(port, asked.source(), parcel, 0);
            self.todo.rooms.insert(port);
        }
    }

    pub(crate) fn is_long(&self, parcel: &Parcel) -> bool {
        let carries_port = parcel.rights.iter().any(|right| matches!(right, HeldRight::Receive(..)));
        carries_port || parcel.data_bytes() + parcel.released.len() as u64 > self.config.ride_bytes as u64
    }

    /// Requests room (section 5.2, (A)). A small message travels with the request.
    fn request(&mut self, key: FlowKey, at: usize, to: NodeId) {
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let (hop, item) = (flow.hop, &mut flow.items[at]);
        let number = item.number;
        item.stage = Stage::Requested(to);
        let mut parcel = item.parcel.take().expect("a message that was not sent is here");
        let mut granted = None;
        if self.is_long(&parcel) {
            let (bytes, landing_bytes) = (parcel.data_bytes(), self.bytes_to_land(&parcel));
            let load = Load::Bytes { bytes, landing_bytes };
            self.send(to, Packet::Request { flow: key, number, hop, load });
        } else {
            let (head, ways) = self.head_of(&mut parcel, to);
            let load = Load::Whole { head, released: &parcel.released, data: &[] };
            let request = Packet::Request { flow: key, number, hop, load };
            let bytes = parcel.data_bytes() as usize;
            let sent = self.send_encoded(to, request, None, parcel.owes(to), |envelope| {
                let mut encoded = envelope.encode_before_data(bytes, bytes);
                encoded.extend_from_slice(&parcel.inline);
                parcel.regions.iter().for_each(|region| region.append_to(&mut encoded));
                encoded
            });
            if let Packet::Request { load: Load::Whole { head, .. }, .. } = sent {
                parcel.types = head.types;
            }
            granted = Some(ways);
        }
        let item = self.item_at(key, at);
        item.parcel = Some(parcel);
        if let Some(ways) = granted {
            item.ways = ways;
        }
    }

    pub(super) fn item_at(&mut self, key: FlowKey, at: usize) -> &mut Item {
        &mut self.flows.get_mut(&key).expect("the flow is being sent").items[at]
    }

    /// Makes the head of a message that is sent now, out of the message's own list of types.
    fn head_of(&mut self, parcel: &mut Parcel, to: NodeId) -> (Head, Vec<Way>) {
        let mut ways = Vec::with_capacity(parcel.rights.len());
        let rights = parcel.rights.iter().map(|right| self.send_right_off(*right, to, &mut ways)).collect();
        let head = Head {
            id: parcel.id,
            types: core::mem::take(&mut parcel.types),
            inline_bytes: parcel.inline.len() as u32,
            region_bytes: parcel.regions.iter().map(|region| region.len() as u64).collect(),
            has_reply: parcel.has_reply,
            rights,
            sender: parcel.sender,
        };
        (head, ways)
    }

    /// Sends the head, then as many pieces as the window permits ((C) to (H)). Returns true when all have
    /// been sent.
    fn send_pieces(&mut self, key: FlowKey, at: usize) -> bool {
        let window = (self.config.piece_bytes * self.config.window_pieces) as u64;
        let item = self.item_at(key, at);
        let Stage::Permitted { at: to, landing, begun, mut sent, came } = item.stage else { return false };
        let number = item.number;
        if !begun {
            let mut parcel = item.parcel.take().expect("a message that is being sent is here");
            // A port must not be sent to a node that has died.
            let can_go = self.ports_can_leave(&parcel) && !self.is_gone(to);
            if can_go {
                if let Some(start) = landing {
                    self.land(&parcel, to, start);
                }
                let (head, ways) = self.head_of(&mut parcel, to);
                let landed = landing.is_some();
                let begin = Packet::Begin { flow: key, number, landed, head, released: &parcel.released };
                let sent = self.send_encoded(to, begin, None, parcel.owes(to), |envelope| envelope.encode());
                if let Packet::Begin { head, .. } = sent {
                    parcel.types = head.types;
                }
                self.item_at(key, at).ways = ways;
            }
            self.item_at(key, at).parcel = Some(parcel);
            if !can_go {
                return false;
            }
        }
        let item = self.item_at(key, at);
        let mut parcel = item.parcel.take().expect("a message that is being sent is here");
        let total = match landing {
            Some(_) => parcel.inline.len() as u64,
            None => parcel.data_bytes(),
        };
        while sent < total && sent < came + window {
            let (region, range) = piece(&parcel, sent, self.config.piece_bytes);
            let (offset, bytes) = (sent, range.len() as u64);
            let region = match region {
                None => parcel.inline.share(),
                Some(region) => {
                    let region = &mut parcel.regions[region];
                    if region.own().is_none() {
                        *region = Arc::new(Region::from(region.to_vec()));
                    }
                    region.clone()
                }
            };
            let data = Packet::Data { flow: key, number, offset, bytes: &[] };
            self.send_with_tail(to, data, Tail { region, range });
            sent += bytes;
        }
        let item = self.item_at(key, at);
        item.parcel = Some(parcel);
        item.stage = Stage::Permitted { at: to, landing, begun: true, sent, came };
        sent == total
    }

    /// Returns the bytes of the receiver's landing pool that a message's regions would take, or 0 if they are
    /// to go in pieces.
    pub(super) fn bytes_to_land(&self, parcel: &Parcel) -> u64 {
        let bytes: u64 = parcel.regions.iter().map(|region| region.len() as u64).sum();
        if self.pool.is_none() || bytes == 0 || bytes < self.config.landing_bytes_min {
            return 0;
        }
        let (_, bytes) = places(parcel.regions.iter().map(|region| region.len() as u64));
        if bytes <= self.config.landing_bytes_max { bytes } else { 0 }
    }

    /// Puts a message's regions into the receiver's landing pool, from `start` on.
    fn land(&mut self, parcel: &Parcel, to: NodeId, start: u64) {
        let (places, _) = places(parcel.regions.iter().map(|region| region.len() as u64));
        let regions = parcel.regions.iter().zip(places).filter(|(region, _)| !region.is_empty());
        let landings =
            regions.map(|(region, place)| Landing { to, offset: start + place, region: region.clone() });
        self.effects.extend(landings.map(Effect::Land));
    }

    /// Delivers the one message of a send-once right whose port has come to this node meanwhile.
    fn once_came_home(&mut self, key: FlowKey) -> bool {
        let FlowKey::Once(port, serial) = key else { return false };
        let unsent = self
            .flows
            .get(&key)
            .is_some_and(|flow| flow.items.iter().all(|item| item.stage == Stage::Unsent));
        let flow = if unsent { self.flows.remove(&key) } else { None };
        let Some(mut flow) = flow else { return false };
        if let Some(parcel) = flow.items.pop_front().and_then(|item| item.parcel) {
            self.send_by_once(Once { port, serial, hop: flow.hop }, parcel);
        }
        true
    }

    /// Admits waiting threads, in their order, while there is room in this node's copy of the queue.
    pub(super) fn admit_own_threads(&mut self, key: FlowKey) {
        let FlowKey::Own(port) = key else { return };
        let is_here = self.known.get(&port).is_some_and(|known| known.body().is_some());
        let limit = self.config.queue_limit as usize;
        loop {
            let Some(flow) = self.flows.get(&key) else { return };
            if !is_here && flow.is_quiet() && !flow.is_unused() {
                return;
            }
            if is_here && flow.items.is_empty() {
                self.park_own_threads(port);
                break;
            }
            if flow.items.len() >= limit {
                break;
            }
            if !self.admit_first_thread(port) {
                break;
            }
        }
        self.tell_accepting(port);
        if self.flows.get(&key).is_some_and(Flow::is_unused) {
            self.flows.remove(&key);
        }
    }

    /// Sends the message of the first thread that waits. Returns false if there is none.
    pub(super) fn admit_first_thread(&mut self, port: PortId) -> bool {
        let Some(flow) = self.flows.get_mut(&FlowKey::Own(port)) else { return false };
        let Some(Blocked { ticket, to, message, then }) = flow.blocked.pop_front() else { return false };
        self.deadlines.retain(|(_, waiting)| *waiting != ticket);
        // The names may denote other rights by now.
        let checked = self.check_message(to, &message, None);
        match checked {
            Ok(Destination::Port(found)) if found == port => {
                if then.is_none() {
                    self.complete(ticket, Ok(Outcome::Done));
                }
                self.send_now(to, message);
            }
            wrong => {
                self.return_message(ticket, message);
                self.complete(ticket, Err(wrong.err().unwrap_or(PortError::InvalidRight)));
                return true;
            }
        }
        if let Some(Then { from, bytes_max, patience }) = then
            && let Some(result) = self.receive_call(ticket, from, bytes_max, patience)
        {
            self.complete(ticket, result);
        }
        true
    }

    /// Queues the waiting threads of the port's own node among the requests of other nodes.
    fn park_own_threads(&mut self, port: PortId) {
        let (me, key) = (self.me, FlowKey::Own(port));
        let waits =
            self.flows.get(&key).is_some_and(|flow| !flow.blocked.is_empty() && flow.items.is_empty());
        let Some(body) = self.body(port) else { return };
        if waits
            && !body
                .parked
                .iter()
                .any(|parked| parked.from == me && parked.flow == key && parked.bytes.is_none())
        {
            let (number, bytes, landing_bytes) = (0, None, 0);
            body.parked.push_back(crate::body::Parked { from: me, flow: key, number, bytes, landing_bytes });
        }
        self.todo.rooms.insert(port);
    }

    /// Informs the program that requested it that the port accepts messages again.
    pub(super) fn tell_accepting(&mut self, port: PortId) {
        let is_asked = |flow: &Flow| flow.notify.is_some();
        if !self.flows.get(&FlowKey::Own(port)).is_some_and(is_asked)
            || self.must_wait(Destination::Port(port))
        {
            return;
        }
        let flow = self.flows.get_mut(&FlowKey::Own(port));
        if let Some((name, once)) = flow.and_then(|flow| flow.notify.take()) {
            self.notify_accepted(name, once);
        }
    }

    /// Ends a wait for room.
    pub(super) fn stop_waiting_for_room(&mut self, ticket: Ticket) -> bool {
        let holding =
            self.flows.iter().find(|(_, flow)| flow.blocked.iter().any(|blocked| blocked.ticket == ticket));
        let Some((&key, _)) = holding else { return false };
        let Some(flow) = self.flows.get_mut(&key) else { return false };
        let at = flow.blocked.iter().position(|blocked| blocked.ticket == ticket);
        let message = at.and_then(|at| flow.blocked.remove(at)).map(|blocked| blocked.message);
        message.into_iter().for_each(|message| self.return_message(ticket, message));
        self.todo.rooms.insert(key.port());
        self.todo.flows.insert(key);
        true
    }

    /// Ends the waits for room at a port. The names of their rights do not matter here, because names are
    /// checked again.
    pub(super) fn fail_blocked(&mut self, port: PortId, error: PortError) {
        let Some(flow) = self.flows.get_mut(&FlowKey::Own(port)) else { return };
        for blocked in core::mem::take(&mut flow.blocked) {
            self.deadlines.retain(|(_, waiting)| *waiting != blocked.ticket);
            self.return_message(blocked.ticket, blocked.message);
            self.complete(blocked.ticket, Err(error));
        }
    }

    pub(super) fn name_is(&self, name: Name, port: PortId) -> bool {
        matches!(self.names.get(name), Ok(Entry::Port { port: found, .. }) if *found == port)
    }
}

/// Returns the piece that begins at `offset` of the data, which is before their end: the region, or `None`
/// for inline data, and the range in it, at most `bytes_max` long.
fn piece(parcel: &Parcel, offset: u64, bytes_max: usize) -> (Option<usize>, Range<usize>) {
    let regions = parcel.regions.iter().enumerate().map(|(at, region)| (Some(at), region.len()));
    let mut start = 0;
    for (region, bytes) in core::iter::once((None, parcel.inline.len())).chain(regions) {
        let end = start + bytes as u64;
        if offset < end {
            let from = (offset - start) as usize;
            return (region, from..bytes.min(from + bytes_max));
        }
        start = end;
    }
    unreachable!("a piece begins before the end of the data")
}
