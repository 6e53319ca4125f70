//! The calls of the program.

use std::collections::BTreeSet;

use crate::body::{Body, HeldRight};
use crate::effect::{Call, Outcome, Status};
use crate::error::PortError;
use crate::id::{Name, PortId, Ticket};
use crate::known::{Blocked, Known, Place, Then};
use crate::message::{Disposition, Message, RightToSend};
use crate::names::{Entry, REFERENCES_MAX};

use super::Engine;
use super::sending::Destination;

/// The maximum limit of a queue.
const QUEUE_LIMIT_MAX: u32 = 1 << 16;

impl Engine {
    /// Carries a call out. Returns `None` if it waits.
    pub(super) fn carry_out(&mut self, ticket: Ticket, call: Call) -> Option<Result<Outcome, PortError>> {
        let result = match call {
            Call::Send { to, message, patience, notify } => {
                return self.send_call(ticket, to, message, patience, notify);
            }
            Call::Receive { from, bytes_max, patience } => {
                return self.receive_call(ticket, from, bytes_max, patience);
            }
            Call::Rpc { to, message, reply_port, bytes_max, patience } => {
                let then = Then { from: reply_port, bytes_max, patience };
                return self.rpc_call(ticket, to, message, then);
            }
            Call::AllocatePort => self.allocate_port(),
            Call::AllocateSet => {
                let room = self.names.has_room(1);
                room.map(|()| Outcome::Name(self.names.add(Entry::Set { members: BTreeSet::new() })))
            }
            Call::Deallocate(name) => self.deallocate(name, false),
            Call::Destroy(name) => self.deallocate(name, true),
            Call::ModifyReferences { name, delta } => self.modify_references(name, delta),
            Call::InsertRight { name, from } => self.insert_right(name, from),
            Call::ExtractRight(from) => self.extract_right(from),
            Call::MoveMember { member, into } => self.move_member(member, into),
            Call::SetQueueLimit { name, limit } => self.set_queue_limit(name, limit),
            Call::SetMakeSendCount { name, count } => self.set_make_send_count(name, count),
            Call::RequestNotification { name, of, notify } => self.request_notification(name, of, notify),
            Call::Status(name) => self.status(name).map(Outcome::Status),
            Call::NameService => self.name_service(),
        };
        Some(result)
    }

    fn allocate_port(&mut self) -> Result<Outcome, PortError> {
        self.names.has_room(1)?;
        let port = PortId { birth: self.me, serial: self.next_serial };
        self.next_serial += 1;
        self.known.insert(port, Known::new(Place::Here(Box::new(Body::new(self.config.queue_limit)))));
        Ok(Outcome::Name(self.names.add(Entry::Port { port, receive: true, send: 0, dead_name: None })))
    }

    fn name_service(&mut self) -> Result<Outcome, PortError> {
        let port = PortId::NAME_SERVICE;
        if !self.known.contains_key(&port) {
            return Err(PortError::DeadDestination);
        }
        let (name, _, send) = self.names.port_entry(port);
        if *send >= REFERENCES_MAX {
            return Err(PortError::ReferencesOverflow);
        }
        *send += 1;
        self.todo.holdings.insert(port);
        Ok(Outcome::Name(name))
    }

    fn rpc_call(
        &mut self,
        ticket: Ticket,
        to: RightToSend,
        mut message: Message,
        then: Then,
    ) -> Option<Result<Outcome, PortError>> {
        message.reply = Some(RightToSend { name: then.from, disposition: Disposition::MakeSendOnce });
        match self.check_message(to, &message, None) {
            Err(error) => {
                self.return_message(ticket, message);
                Some(Err(error))
            }
            Ok(Destination::Port(port)) if self.must_wait(Destination::Port(port)) => {
                let patience = then.patience;
                self.block(ticket, port, Blocked { ticket, to, message, then: Some(then) }, patience)
            }
            Ok(_) => {
                self.send_now(to, message);
                self.receive_call(ticket, then.from, then.bytes_max, then.patience)
            }
        }
    }

    /// Gives up one user reference, or everything that the name denotes.
    fn deallocate(&mut self, name: Name, whole: bool) -> Result<Outcome, PortError> {
        match self.names.get_mut(name)? {
            Entry::Port { port, receive, send, .. } => {
                let port = *port;
                let loses_receive = *receive && (whole || *send == 0);
                *send = if whole { 0 } else { send.saturating_sub(1) };
                if loses_receive {
                    *receive = false;
                    self.leave_sets(port);
                    self.fail_receivers(port);
                    self.todo.receives.push(port);
                }
                self.tidy(port);
                self.todo.holdings.insert(port);
            }
            Entry::Once { .. } => {
                if let Some(Entry::Once { once, dead_name }) = self.names.remove(name) {
                    self.give_back(once);
                    dead_name.into_iter().for_each(|asked| self.give_back(asked));
                }
            }
            Entry::Dead { references } => {
                *references = if whole { 0 } else { *references - 1 };
                if *references == 0 {
                    self.names.remove(name);
                }
            }
            Entry::Set { .. } => {
                self.names.remove(name);
                self.fail_receivers_of(name);
            }
        }
        Ok(Outcome::Done)
    }

    fn modify_references(&mut self, name: Name, delta: i32) -> Result<Outcome, PortError> {
        let (references, port) = match self.names.get_mut(name)? {
            Entry::Port { send, port, .. } if *send > 0 => (send, Some(*port)),
            Entry::Dead { references } => (references, None),
            _ => return Err(PortError::InvalidRight),
        };
        let changed = i64::from(*references) + i64::from(delta);
        if changed < 0 {
            return Err(PortError::InvalidValue);
        }
        if changed > i64::from(REFERENCES_MAX) {
            return Err(PortError::ReferencesOverflow);
        }
        *references = changed as u32;
        match port {
            Some(port) => {
                self.tidy(port);
                self.todo.holdings.insert(port);
            }
            None if changed == 0 => _ = self.names.remove(name),
            None => {}
        }
        Ok(Outcome::Done)
    }

    fn insert_right(&mut self, name: Name, from: RightToSend) -> Result<Outcome, PortError> {
        self.check_rights(core::iter::once(from))?;
        let makes_send =
            matches!(from.disposition, Disposition::MakeSend | Disposition::CopySend | Disposition::MoveSend);
        let Entry::Port { port, .. } = self.names.get(from.name)? else {
            return Err(PortError::InvalidRight);
        };
        if !makes_send {
            return Err(PortError::InvalidRight);
        }
        self.names.get(name)?;
        if !self.name_is(name, *port) {
            return Err(PortError::NameExists);
        }
        if self.names.send_references(*port) >= REFERENCES_MAX {
            return Err(PortError::ReferencesOverflow);
        }
        let held = self.take_right(from)?;
        self.name_right(held);
        Ok(Outcome::Done)
    }

    fn extract_right(&mut self, from: RightToSend) -> Result<Outcome, PortError> {
        self.check_rights(core::iter::once(from))?;
        self.names.has_room(1)?;
        let held = self.take_right(from)?;
        if let HeldRight::Receive(port, _) = held {
            // It is received under its own name; threads that waited have been informed.
            self.body(port).into_iter().for_each(|body| body.in_transit = false);
        }
        Ok(Outcome::Name(self.name_right(held).name))
    }

    fn move_member(&mut self, member: Name, into: Option<Name>) -> Result<Outcome, PortError> {
        let port = self.port_of(member)?;
        if let Some(set) = into
            && !matches!(self.names.get(set)?, Entry::Set { .. })
        {
            return Err(PortError::InvalidRight);
        }
        self.leave_sets(port);
        if let Some(set) = into
            && let Ok(Entry::Set { members }) = self.names.get_mut(set)
        {
            members.insert(port);
            self.fail_receivers(port);
            self.hand_out(port);
        }
        Ok(Outcome::Done)
    }

    fn set_queue_limit(&mut self, name: Name, limit: u32) -> Result<Outcome, PortError> {
        let port = self.port_of(name)?;
        if !(1..=QUEUE_LIMIT_MAX).contains(&limit) {
            return Err(PortError::InvalidValue);
        }
        self.body(port).ok_or(PortError::InvalidRight)?.limit = limit;
        self.todo.rooms.insert(port);
        Ok(Outcome::Done)
    }

    fn set_make_send_count(&mut self, name: Name, count: u32) -> Result<Outcome, PortError> {
        let port = self.port_of(name)?;
        self.body(port).ok_or(PortError::InvalidRight)?.make_send = count;
        self.todo.holdings.insert(port);
        Ok(Outcome::Done)
    }

    /// Returns what a name denotes.
    ///
    /// # Errors
    ///
    /// If it denotes nothing.
    pub fn status(&self, name: Name) -> Result<Status, PortError> {
        Ok(match self.names.get(name)? {
            Entry::Port { port, receive, send, .. } => {
                let body = if *receive { self.known.get(port).and_then(Known::body) } else { None };
                let (queued, limit, make_send) =
                    body.map_or((0, 0, 0), |body| (body.queue.len() as u32, body.limit, body.make_send));
                Status { receive: *receive, send: *send, queued, limit, make_send, ..Status::default() }
            }
            Entry::Once { .. } => Status { send_once: true, ..Status::default() },
            Entry::Dead { references } => Status { dead: *references, ..Status::default() },
            Entry::Set { .. } => Status { set: true, ..Status::default() },
        })
    }
}
