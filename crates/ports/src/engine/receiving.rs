//! The receiver's side: gives messages from queues to the program's threads.

use std::collections::VecDeque;

use crate::body::{HeldRight, Parcel, Queued, Source, own};
use crate::effect::{Outcome, Patience};
use crate::error::PortError;
use crate::id::{Name, PortId, Ticket};
use crate::message::{Received, RightKind, RightReceived};
use crate::names::Entry;

use super::Engine;

/// Threads that wait for messages.
#[derive(Debug, Default)]
pub(super) struct Receivers {
    /// In the order of their arrival.
    waiting: VecDeque<Receiver>,
    /// The number of messages taken.
    served: u64,
}

/// A thread that waits for a message.
#[derive(Clone, Copy, Debug)]
struct Receiver {
    ticket: Ticket,
    from: Name,
    bytes_max: Option<u64>,
}

impl Receivers {
    /// Removes the first thread of this kind. Few wait at a time.
    fn take(&mut self, is_meant: impl Fn(&Receiver) -> bool) -> Option<Receiver> {
        let at = self.waiting.iter().position(is_meant)?;
        self.waiting.remove(at)
    }
}

impl Engine {
    pub(super) fn receive_call(
        &mut self,
        ticket: Ticket,
        from: Name,
        bytes_max: Option<u64>,
        patience: Patience,
    ) -> Option<Result<Outcome, PortError>> {
        // Among the members of a set, the one served least recently comes first, so that none starves.
        let served = |port: &PortId| {
            let body = self.known.get(port).and_then(|known| known.body())?;
            (!body.queue.is_empty()).then_some((body.served, *port))
        };
        let ready = match self.names.get(from) {
            Err(error) => return Some(Err(error)),
            Ok(Entry::Port { port, receive: true, .. }) => {
                if self.names.set_of(*port).is_some() {
                    // Mach: a member of a set receives only through the set.
                    return Some(Err(PortError::InvalidRight));
                }
                served(port)
            }
            Ok(Entry::Set { members }) => members.iter().filter_map(served).min(),
            Ok(_) => return Some(Err(PortError::InvalidRight)),
        };
        if let Some((_, port)) = ready {
            return Some(self.take_first(port, bytes_max));
        }
        match patience {
            Patience::None => return Some(Err(PortError::ReceiveTimedOut)),
            Patience::Until(deadline) => _ = self.deadlines.insert((deadline, ticket)),
            Patience::Endless => {}
        }
        self.receivers.waiting.push_back(Receiver { ticket, from, bytes_max });
        None
    }

    /// Puts a message into the queue. It goes to the thread that has waited longest, if there is one.
    pub(super) fn enqueue(&mut self, port: PortId, source: Source, parcel: Parcel, reserved_bytes: u64) {
        let Some(body) = self.body(port) else {
            self.release_memory(reserved_bytes);
            self.todo.parcels.push(parcel);
            return;
        };
        body.queue.push_back(Queued { source, parcel, reserved_bytes });
        self.todo.services |= port == PortId::NAME_SERVICE;
        self.hand_out(port);
    }

    /// Gives messages to waiting threads.
    pub(super) fn hand_out(&mut self, port: PortId) {
        if !self.names.receives(port) {
            return;
        }
        let (own, set) = (self.names.of_port(port), self.names.set_of(port));
        let wanted = if set.is_some() { set } else { own };
        while self.known.get(&port).and_then(|known| known.body()).is_some_and(|body| !body.queue.is_empty())
            && let Some(receiver) = self.receivers.take(|receiver| Some(receiver.from) == wanted)
        {
            self.deadlines.retain(|(_, waiting)| *waiting != receiver.ticket);
            let result = self.take_first(port, receiver.bytes_max);
            self.complete(receiver.ticket, result);
        }
    }

    /// Takes the first message off the queue, if it fits.
    fn take_first(&mut self, port: PortId, bytes_max: Option<u64>) -> Result<Outcome, PortError> {
        let name = self.names.of_port(port).ok_or(PortError::InvalidName)?;
        self.receivers.served += 1;
        let served = self.receivers.served;
        let body = self.body(port).ok_or(PortError::InvalidRight)?;
        let first = body.queue.front().ok_or(PortError::ReceiveTimedOut)?;
        let needed_bytes = first.parcel.data_bytes();
        if bytes_max.is_some_and(|limit| needed_bytes > limit) {
            return Err(PortError::ReceiveTooLarge { needed_bytes });
        }
        body.served = served;
        let Queued { source, parcel, reserved_bytes } =
            body.queue.pop_front().ok_or(PortError::ReceiveTimedOut)?;
        self.release_memory(reserved_bytes);
        self.taken(port, source);
        Ok(Outcome::Received(Box::new(self.unpack_rights(name, parcel))))
    }

    /// Reports to the sender that its message is off the queue (section 5.4), and uses the room.
    pub(super) fn taken(&mut self, port: PortId, source: Source) {
        if let Source::Flow(origin, sequence) = source {
            let through = self.body(port).map_or(sequence, |body| body.count_taken(origin, sequence));
            self.accept(origin, port, through, false);
        }
        self.todo.rooms.insert(port);
        self.todo.holdings.insert(port);
    }

    fn unpack_rights(&mut self, port: Name, parcel: Parcel) -> Received {
        let mut rights: Vec<_> = parcel.rights.into_iter().map(|right| self.name_right(right)).collect();
        let reply = parcel.has_reply.then(|| rights.remove(0));
        let Parcel { id, types, mut inline, regions, released, sender, .. } = parcel;
        let (inline, regions) = (inline.take(), regions.into_iter().map(own).collect());
        Received { port, sender, id, types, inline, regions, reply, rights, released }
    }

    /// Gives a received right a name: the one that already denotes rights to the port, but always a new one
    /// for a send-once right.
    pub(super) fn name_right(&mut self, right: HeldRight) -> RightReceived {
        let dead = |engine: &mut Engine| {
            let name = engine.names.add(Entry::Dead { references: 1 });
            RightReceived { name, kind: RightKind::Dead }
        };
        match right {
            HeldRight::Dead => dead(self),
            HeldRight::Send(port) => {
                let lives = self.known.contains_key(&port);
                self.release_send(port);
                if !lives {
                    return dead(self);
                }
                let (name, _, send) = self.names.port_entry(port);
                *send += 1;
                RightReceived { name, kind: RightKind::Send }
            }
            HeldRight::Once(once) => {
                if !self.known.contains_key(&once.port) {
                    return dead(self);
                }
                let name = self.names.add(Entry::Once { once, dead_name: None });
                RightReceived { name, kind: RightKind::SendOnce }
            }
            HeldRight::Receive(port, journey) => {
                let Some(body) = self.body_in_transit(port, journey) else { return dead(self) };
                (body.in_transit, body.into) = (false, None);
                let (name, receive, _) = self.names.port_entry(port);
                *receive = true;
                self.todo.holdings.insert(port);
                RightReceived { name, kind: RightKind::Receive }
            }
        }
    }

    /// Ends the calls of threads that wait for a port whose receive right goes away.
    pub(super) fn fail_receivers(&mut self, port: PortId) {
        if let Some(name) = self.names.of_port(port) {
            self.fail_receivers_of(name);
        }
    }

    pub(super) fn fail_receivers_of(&mut self, name: Name) {
        while let Some(receiver) = self.receivers.take(|receiver| receiver.from == name) {
            self.deadlines.retain(|(_, ticket)| *ticket != receiver.ticket);
            self.complete(receiver.ticket, Err(PortError::ReceiveRightGone));
        }
    }

    /// Removes a receive right from its set.
    pub(super) fn leave_sets(&mut self, port: PortId) {
        if let Some(set) = self.names.set_of(port)
            && let Ok(Entry::Set { members }) = self.names.get_mut(set)
        {
            members.remove(&port);
        }
    }

    /// Ends a call that waits, with this error, or with that of a time-out.
    pub(super) fn give_up(&mut self, ticket: Ticket, error: Option<PortError>) {
        self.deadlines.retain(|(_, waiting)| *waiting != ticket);
        if self.receivers.take(|receiver| receiver.ticket == ticket).is_some() {
            self.complete(ticket, Err(error.unwrap_or(PortError::ReceiveTimedOut)));
        } else if self.stop_waiting_for_room(ticket) {
            self.complete(ticket, Err(error.unwrap_or(PortError::SendTimedOut)));
        }
    }
}
