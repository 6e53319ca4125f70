//! The receiving node's side: takes requests, gives them room in queues, reserves memory, and receives long
//! messages piece by piece (the paper's section 5.2).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use hiroba_base::NodeId;
use hiroba_wire::Payload;

use crate::body::{HeldRight, Inline, Owed, Parcel, Parked, Source};
use crate::error::PeerError;
use crate::id::PortId;
use crate::known::Place;
use crate::landing::{Extent, places};
use crate::region::Region;
use crate::wire::{FlowKey, Head, LOST_MAX, Load, Packet, RightOnWire};

use super::Engine;

/// A request, without its message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) from: NodeId,
    pub(super) flow: FlowKey,
    pub(super) number: u64,
    pub(super) hop: u32,
}

impl Asked {
    pub(super) fn source(&self) -> Source {
        self.flow.origin(self.from).map_or(Source::Once, |origin| Source::Flow(origin, self.number))
    }

    pub(super) fn parked(&self, bytes: Option<u64>, landing_bytes: u64) -> Parked {
        let Asked { from, flow, number, .. } = *self;
        Parked { from, flow, number, bytes, landing_bytes }
    }
}

/// A long message of another node: its sender, flow and number.
pub(super) type Key = (NodeId, FlowKey, u64);

/// Long messages of other nodes, for which memory is reserved.
#[derive(Debug, Default)]
pub(crate) struct LongMessages {
    /// Those that are arriving, by sender, flow and number.
    pub(crate) incoming: BTreeMap<Key, Incoming>,
    /// Places in the landing pool for messages that are not awaited any more. Their senders may still write
    /// there, until they say that they have, or will not, or are heard to have died.
    pub(super) given_up: BTreeMap<Key, Extent>,
    /// The number of bytes reserved for them and for others that are in queues.
    pub(super) memory_used: u64,
    /// Ports at which a message waits for memory, in the order in which they began to wait.
    pub(super) hungry: VecDeque<PortId>,
}

/// A long message for which memory is reserved.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) source: Source,
    /// The number of bytes of its data that come in pieces.
    pub(super) bytes: u64,
    /// The place for its regions in the landing pool, until its head has come.
    pub(super) landing: Option<Extent>,
    /// The number of bytes of memory that are reserved for it.
    pub(super) reserved_bytes: u64,
    pub(super) came: u64,
    pub(crate) parcel: Option<Parcel>,
    /// The lengths of its parts that come in pieces: inline data first, then regions.
    parts: Vec<u64>,
}

/// The data of a message whose head has come.
enum Data {
    /// None will come.
    None,
    /// They come in pieces.
    InPieces,
    /// Its regions are in the landing pool.
    Landed(Arc<Extent>),
}

/// Returns the memory of a region that is arriving, of which no piece is on its way out yet.
fn own(region: &mut Arc<Region>) -> &mut Vec<u8> {
    Arc::get_mut(region).and_then(Region::own_mut).expect("what is coming is nobody else's")
}

fn unexpected(from: NodeId, expected: &'static str) -> PeerError {
    PeerError::Unexpected { expected, from: from.0 }
}

impl Engine {
    /// Handles a request (section 5.2, (A) and (B)). It is answered at once, whatever the state of the port:
    /// of a request only an entry in the list of waiting flows is kept, one for each flow.
    pub(super) fn take_request(&mut self, asked: Asked, load: Load<'_>) -> Result<(), PeerError> {
        let (from, port) = (asked.from, asked.flow.port());
        if let Load::Whole { head, .. } = &load
            && head.rights.iter().any(|right| matches!(right, RightOnWire::Receive(_)))
        {
            return Err(unexpected(from, "receive rights in long messages alone"));
        }
        if matches!(&load, Load::Whole { data, .. } if data.len() > self.config.ride_bytes) {
            self.send(from, Packet::Denied { flow: asked.flow, number: asked.number });
            return Err(unexpected(from, "a long message to be asked memory for"));
        }
        if matches!(load, Load::Bytes { bytes, .. } if bytes > self.config.message_bytes_max) {
            self.send(from, Packet::Denied { flow: asked.flow, number: asked.number });
            return Err(unexpected(from, "a message no longer than the job's limit"));
        }
        match self.known.get_mut(&port).map(|known| &mut known.place) {
            None => {
                self.refuse(load);
                self.send(from, Packet::Dead { port });
                return Ok(());
            }
            Some(Place::At(_)) => {
                self.refuse(load);
                self.let_wait(from, asked.flow, asked.number);
                self.tell_place(port, from);
                return Ok(());
            }
            Some(Place::Leaving { asking, .. }) => {
                asking.insert(from);
                self.refuse(load);
                self.let_wait(from, asked.flow, asked.number);
                return Ok(());
            }
            Some(Place::Here(_)) => {}
        }
        if !self.may_send(&asked) {
            self.refuse(load);
            self.send(from, Packet::Denied { flow: asked.flow, number: asked.number });
            // A node that has died may have permitted the message, which used the right up.
            if matches!(asked.flow, FlowKey::Once(..)) && !self.deaths.dead.is_empty() {
                return Ok(());
            }
            return Err(unexpected(from, "a message by a right that its sender holds"));
        }
        match load {
            Load::Whole { head, released, data } => self.take_small(asked, head, released, data),
            Load::Bytes { bytes, landing_bytes } => return self.take_long(asked, bytes, landing_bytes),
        }
        Ok(())
    }

    /// Checks the right to send by the holder's table of the node that owns the port.
    fn may_send(&mut self, asked: &Asked) -> bool {
        let (me, from) = (self.me, asked.from);
        let Some(known) = self.known.get_mut(&asked.flow.port()) else { return false };
        let was_here = known.former.contains(&from);
        let Some(body) = known.body_mut() else { return false };
        match asked.flow {
            FlowKey::Own(_) => from == me || body.holder(from).is_holding(),
            FlowKey::Relay(..) | FlowKey::RelayOnce(_) => was_here,
            FlowKey::Once(_, serial) => body.onces.get(&serial).is_some_and(|(_, hop)| *hop <= asked.hop),
        }
    }

    /// Returns true if it is the message's turn: the earlier messages of its origin have come, and no other
    /// has waited longer.
    pub(super) fn is_in_turn(&mut self, asked: &Asked) -> bool {
        let key = (asked.from, asked.flow);
        let Some(body) = self.body(asked.flow.port()) else { return false };
        let Some(origin) = asked.flow.origin(asked.from) else { return true };
        // A relayed message may come after its origin has given it up for lost.
        if body.holder(origin).next < asked.number {
            body.promised.remove(&key);
            return false;
        }
        // Requests that are not due wait for messages that have not come, perhaps for this one.
        let others_wait =
            || body.parked.iter().any(|other| (other.from, other.flow) != key && body.is_due(other));
        let is_first = body.has_room() && !others_wait();
        body.promised.remove(&key) || is_first
    }

    fn take_small(&mut self, asked: Asked, head: Head, released: &[u8], data: &[u8]) {
        let (from, port) = (asked.from, asked.flow.port());
        let (flow, number) = (asked.flow, asked.number);
        if !self.is_in_turn(&asked) {
            head.rights.into_iter().for_each(|right| self.refuse_right(right));
            self.park(asked.parked(None, 0));
            self.let_wait(from, flow, number);
            return;
        }
        self.count_in(&asked);
        let lengths = head.region_bytes.clone();
        let (inline, mut rest) = data.split_at(head.inline_bytes as usize);
        let mut parcel = self.unpack(from, head, released, Data::InPieces);
        parcel.inline.own().extend_from_slice(inline);
        for (region, bytes) in parcel.regions.iter_mut().zip(lengths) {
            let (bytes, behind) = rest.split_at(bytes as usize);
            own(region).extend_from_slice(bytes);
            rest = behind;
        }
        self.answer_queued(from, flow, number);
        self.enqueue(port, asked.source(), parcel, 0);
        self.todo.rooms.insert(port);
    }

    fn take_long(&mut self, asked: Asked, bytes: u64, landing_bytes: u64) -> Result<(), PeerError> {
        let Asked { from, flow, number, .. } = asked;
        // Two permits would reserve memory twice, for one message.
        if self.long.incoming.contains_key(&(from, flow, number)) {
            return Err(unexpected(from, "a request that was not permitted yet"));
        }
        let parked = asked.parked(Some(bytes), landing_bytes);
        let Some(body) = self.body(flow.port()) else { return Ok(()) };
        body.promised.remove(&(from, flow));
        let is_ahead = |other: &Parked| (other.from, other.flow) == (from, flow) && other.number < number;
        if body.parked.iter().any(is_ahead) {
            // One entry for each flow, so this one must repeat its request after the waiting one.
            self.let_wait(from, flow, number);
        } else {
            self.park(parked);
        }
        self.todo.rooms.insert(flow.port());
        Ok(())
    }

    /// Answers that a request's message is not kept for now.
    pub(super) fn let_wait(&mut self, to: NodeId, flow: FlowKey, number: u64) {
        let moves = self.moves_of(flow.port());
        self.send(to, Packet::Wait { flow, number, moves });
    }

    /// Counts the message among those of its origin, or its right as used.
    pub(super) fn count_in(&mut self, asked: &Asked) {
        let Some(body) = self.body(asked.flow.port()) else { return };
        match asked.flow {
            FlowKey::Once(_, serial) => _ = body.onces.remove(&serial),
            FlowKey::RelayOnce(_) => {}
            FlowKey::Own(_) => body.count(asked.from, asked.number),
            FlowKey::Relay(_, origin) => body.count(origin, asked.number),
        }
    }

    pub(super) fn park(&mut self, parked: Parked) {
        let Some(body) = self.body(parked.flow.port()) else { return };
        let is_same = |other: &&mut Parked| (other.from, other.flow) == (parked.from, parked.flow);
        // One entry for each flow: that of its first message.
        match body.parked.iter_mut().find(is_same) {
            Some(waiting) if waiting.number < parked.number => {}
            Some(waiting) => {
                let former = core::mem::replace(waiting, parked);
                if former.bytes.is_some() && former.number > parked.number {
                    self.let_wait(former.from, former.flow, former.number);
                }
            }
            None => body.parked.push_back(parked),
        }
        self.todo.rooms.insert(parked.flow.port());
    }

    /// Admits the requests that have waited longest and whose turn it is, while there is room and memory.
    pub(super) fn let_in(&mut self, port: PortId) {
        let me = self.me;
        while let Some(parked) = self.take_due(port) {
            if let Some(bytes) = parked.bytes {
                self.permit(parked, bytes);
            } else if parked.from == me
                && matches!(parked.flow, FlowKey::Own(_))
                && self.has_own_threads(port)
            {
                self.admit_first_thread(port);
                self.todo.flows.insert(parked.flow);
            } else if parked.from != me
                || self.flows.get(&parked.flow).is_some_and(|flow| !flow.items.is_empty())
            {
                if let Some(body) = self.body(port) {
                    body.promised.insert((parked.from, parked.flow));
                }
                self.send(parked.from, Packet::Ready { flow: parked.flow });
            }
        }
        self.tell_accepting(port);
    }

    /// Takes the first request whose turn it is off the list, if there is room and memory for it. One that
    /// waits for memory does not hold up those that need none, because one of them may contain the port whose
    /// queue uses up the memory.
    fn take_due(&mut self, port: PortId) -> Option<Parked> {
        let me = self.me;
        if self.body(port)?.parked.is_empty() {
            return None;
        }
        let free = self.config.memory_bytes - self.long.memory_used;
        let has_threads = self.has_own_threads(port);
        let body = self.body(port)?;
        let has_room = body.has_room();
        let is_due = |parked: &Parked| {
            let is_own = has_threads && parked.from == me && matches!(parked.flow, FlowKey::Own(_));
            let is_promised = body.promised.contains(&(parked.from, parked.flow));
            let needs_room = parked.origin().is_some();
            !is_promised && (has_room || !needs_room) && (is_own || body.is_due(parked))
        };
        let mut lacks_memory = false;
        let at = body.parked.iter().position(|parked| {
            let bytes = parked.bytes_to_reserve(me);
            let due = is_due(parked);
            lacks_memory |= due && bytes > free;
            due && (bytes == 0 || !lacks_memory)
        });
        let due = at.and_then(|at| body.parked.remove(at));
        if lacks_memory && !self.long.hungry.contains(&port) {
            self.long.hungry.push_back(port);
        }
        due
    }

    fn has_own_threads(&self, port: PortId) -> bool {
        self.flows
            .get(&FlowKey::Own(port))
            .is_some_and(|flow| flow.items.is_empty() && !flow.blocked.is_empty())
    }

    fn permit(&mut self, parked: Parked, bytes: u64) {
        let Parked { from, flow, number, landing_bytes, .. } = parked;
        let asked = Asked { from, flow, number, hop: 0 };
        // Relayed messages come by another link than their origin's next ones, which wait until all relayed
        // ones have come.
        if !matches!(flow, FlowKey::Relay(..)) {
            self.count_in(&asked);
        }
        if let Some(body) = self.body(flow.port())
            && parked.origin().is_some()
        {
            body.incoming += 1;
        }
        let reserved_bytes = parked.bytes_to_reserve(self.me);
        self.long.memory_used += reserved_bytes;
        let (source, parts, extent) = (asked.source(), Vec::new(), self.place_to_land(landing_bytes));
        let landing = extent.as_ref().map(Extent::start);
        let incoming =
            Incoming { source, bytes, landing: extent, reserved_bytes, came: 0, parcel: None, parts };
        self.long.incoming.insert((from, flow, number), incoming);
        self.send(from, Packet::Permit { flow, number, landing });
    }

    /// Takes a place in the landing pool, if this node has one with that much room.
    fn place_to_land(&self, bytes: u64) -> Option<Extent> {
        let is_good = bytes > 0 && bytes <= self.config.landing_bytes_max;
        self.pool.as_ref().filter(|_| is_good)?.take(bytes)
    }

    /// Handles that a node does not write to a place that was permitted to it.
    pub(super) fn gave_up(&mut self, key: Key) {
        self.long.given_up.remove(&key);
        // The word of the port's death may not have come yet, which ends the message here.
        if let Some(incoming) = self.long.incoming.get_mut(&key) {
            incoming.landing = None;
        }
    }

    /// Frees memory. The port that has waited longest for it comes first, but only after the call that has
    /// freed it ends.
    pub(super) fn release_memory(&mut self, bytes: u64) {
        if bytes > 0 {
            self.long.memory_used -= bytes;
            self.todo.memory = true;
        }
    }

    pub(super) fn share_out_memory(&mut self) {
        for port in core::mem::take(&mut self.long.hungry) {
            self.let_in(port);
        }
    }

    pub(super) fn begin_long(
        &mut self,
        key: Key,
        landed: bool,
        head: Head,
        released: &[u8],
    ) -> Result<(), PeerError> {
        let from = key.0;
        // What the sender had to write to the landing pool is written.
        self.long.given_up.remove(&key);
        let Some(incoming) = self.long.incoming.get_mut(&key) else {
            // The port has died meanwhile; rights that come for it are given up.
            let parcel = self.unpack(from, head, released, Data::None);
            self.todo.parcels.push(parcel);
            return Ok(());
        };
        if incoming.parcel.is_some() || head.data_bytes() != Some(incoming.bytes) {
            return Err(unexpected(from, "the head of a message as long as was asked for"));
        }
        let (_, landing_bytes) = places(head.region_bytes.iter().copied());
        let room = incoming.landing.as_ref().map_or(0, Extent::bytes);
        if landed && landing_bytes > room {
            return Err(unexpected(from, "regions no longer than their place in the landing pool"));
        }
        let inline_bytes = u64::from(head.inline_bytes);
        let (data, parts) = match incoming.landing.take().filter(|_| landed) {
            Some(extent) => (Data::Landed(Arc::new(extent)), vec![inline_bytes]),
            None => {
                let parts = core::iter::once(inline_bytes).chain(head.region_bytes.iter().copied());
                (Data::InPieces, parts.collect())
            }
        };
        let parcel = self.unpack(from, head, released, data);
        self.ports_are_in(&parcel, key.1.port());
        if let Some(incoming) = self.long.incoming.get_mut(&key) {
            incoming.bytes = parts.iter().sum();
            (incoming.parcel, incoming.parts) = (Some(parcel), parts);
        }
        self.finish_if_complete(key);
        Ok(())
    }

    pub(super) fn take_piece(
        &mut self,
        from: NodeId,
        flow: FlowKey,
        number: u64,
        offset: u64,
        piece: &mut dyn Payload,
    ) -> Result<(), PeerError> {
        let key = (from, flow, number);
        let window = self.config.piece_bytes * self.config.window_pieces;
        let Some(incoming) = self.long.incoming.get_mut(&key) else { return Ok(()) };
        let Incoming { bytes: whole, came, parcel: Some(parcel), parts, .. } = incoming else {
            return Err(unexpected(from, "the head of a message before its data"));
        };
        let bytes = piece.bytes() as u64;
        if offset != *came || bytes == 0 || bytes > *whole - *came {
            return Err(unexpected(from, "the next piece of a message"));
        }
        *came += bytes;
        let through = *came;
        let places = core::iter::once(parcel.inline.own()).chain(parcel.regions.iter_mut().map(own));
        // Regions in the landing pool are no parts, and are not looked at.
        for (length, part) in parts.iter().zip(places) {
            let whole = *length as usize - part.len();
            let missing = whole.min(piece.bytes());
            if missing > 0 && part.len().is_multiple_of(window) {
                (self.config.make_ready)(&mut part.spare_capacity_mut()[..whole.min(window)]);
            }
            piece.append_to(missing, part);
        }
        let is_done = through == incoming.bytes;
        if !is_done {
            self.send(from, Packet::More { flow, number, through });
        }
        self.finish_if_complete(key);
        Ok(())
    }

    fn finish_if_complete(&mut self, key: (NodeId, FlowKey, u64)) {
        if self.long.incoming.get(&key).is_none_or(|incoming| incoming.came < incoming.bytes) {
            return;
        }
        let Some(Incoming { source, reserved_bytes, parcel: Some(parcel), .. }) =
            self.long.incoming.remove(&key)
        else {
            return;
        };
        let (from, flow, number) = key;
        self.answer_queued(from, flow, number);
        let port = flow.port();
        let mut is_in_turn = true;
        let body = self.body(port);
        let is_here = body.is_some();
        if let Some(body) = body
            && let Source::Flow(origin, number) = source
        {
            body.incoming -= 1;
            // The port may have been elsewhere meanwhile, and this node may still relay earlier messages.
            is_in_turn = body.holder(origin).next >= number;
            if is_in_turn {
                body.count(origin, number);
            }
        }
        if is_here && is_in_turn {
            self.enqueue(port, source, parcel, reserved_bytes);
            self.todo.rooms.insert(port);
        } else {
            self.release_memory(reserved_bytes);
            self.relay(port, source, parcel);
        }
    }

    /// Makes a message without its data, with room for those that come in pieces.
    fn unpack(&mut self, from: NodeId, head: Head, released: &[u8], data: Data) -> Parcel {
        let has_data = !matches!(data, Data::None);
        let room = |bytes: u64| Vec::with_capacity(if has_data { bytes as usize } else { 0 });
        let (places, _) = places(head.region_bytes.iter().copied());
        let region = |(bytes, place): (u64, u64)| match &data {
            Data::Landed(extent) if bytes > 0 => Region::landed(extent.clone(), place, bytes as usize),
            _ => Region::from(room(bytes)),
        };
        let regions = head.region_bytes.into_iter().zip(places).map(|part| Arc::new(region(part))).collect();
        let rights: Vec<HeldRight> =
            head.rights.into_iter().map(|right| self.right_arrives(from, right)).collect();
        Parcel {
            id: head.id,
            types: head.types,
            inline: Inline::Own(room(u64::from(head.inline_bytes))),
            regions,
            has_reply: head.has_reply,
            rights,
            released: released.to_vec(),
            sender: head.sender,
            owed: Owed::ToAllBut(None),
        }
    }

    fn refuse(&mut self, load: Load<'_>) {
        if let Load::Whole { head, .. } = load {
            head.rights.into_iter().for_each(|right| self.refuse_right(right));
        }
    }

    /// Handles that messages of a node were lost with another one. They are not waited for.
    pub(super) fn skip(
        &mut self,
        from: NodeId,
        port: PortId,
        first: u64,
        last: u64,
    ) -> Result<(), PeerError> {
        let Some(known) = self.known.get_mut(&port) else {
            self.send(from, Packet::Dead { port });
            return Ok(());
        };
        match &mut known.place {
            Place::Here(body) => {
                if body.lost.len() >= LOST_MAX {
                    return Err(unexpected(from, "fewer messages that were lost"));
                }
                body.lost.insert((from, first, last));
                body.pass_lost(from);
                let taken = body.holder(from).taken;
                if taken > 0 {
                    self.accept(from, port, taken - 1, true);
                }
                self.todo.rooms.insert(port);
            }
            Place::Leaving { asking, .. } => _ = asking.insert(from),
            Place::At(_) => self.tell_place(port, from),
        }
        Ok(())
    }
}
