//! The name service: a port of node 0, served by that node's engine. Every node starts with a send right to
//! it.
//!
//! It answers messages like any server: register, look up, look up and wait, withdraw.

use std::collections::BTreeMap;

use hiroba_base::NodeId;

use crate::body::{Body, HeldRight, Holder, Parcel};
use crate::id::PortId;
use crate::known::{Known, Place, Report};
use crate::names::Entry;
use crate::{NAME_BYTES_MAX, service};

use super::Engine;

/// The registered rights.
#[derive(Debug, Default)]
pub(crate) struct NameService {
    rights: BTreeMap<Vec<u8>, PortId>,
    /// Requests that wait for a name, with the right for the answer.
    waiting: Vec<(Vec<u8>, HeldRight)>,
}

impl NameService {
    /// Returns the rights for answers that are owed.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &HeldRight> {
        self.waiting.iter().map(|(_, reply)| reply)
    }
}

impl Engine {
    pub(super) fn join_name_service(&mut self) {
        let port = PortId::NAME_SERVICE;
        let mut known = Known::new(Place::At(NodeId::ZERO));
        if self.me == NodeId::ZERO {
            self.services = Some(NameService::default());
            self.next_serial = port.serial + 1;
            let mut body = Body::new(self.config.queue_limit);
            for node in NodeId::all(self.nodes).skip(1) {
                body.holders.insert(node, Holder { holds: true, version: 1, ..Holder::default() });
            }
            known.place = Place::Here(Box::new(body));
        } else {
            known.report = Report { holds: true, seen: 0, version: 1, acknowledged: 1 };
        }
        self.known.insert(port, known);
        self.names.add(Entry::Port { port, receive: false, send: 1, dead_name: None });
    }

    /// Answers all received requests.
    pub(super) fn serve_names(&mut self) {
        while let Some(queued) = self.body(PortId::NAME_SERVICE).and_then(|body| body.queue.pop_front()) {
            self.release_memory(queued.reserved_bytes);
            self.taken(PortId::NAME_SERVICE, queued.source);
            self.serve_name(queued.parcel);
        }
    }

    fn serve_name(&mut self, mut parcel: Parcel) {
        let reply = if parcel.has_reply { Some(parcel.rights.remove(0)) } else { None };
        let name = parcel.inline.take();
        let good = (1..=NAME_BYTES_MAX).contains(&name.len());
        let Some(mut services) = self.services.take() else { return };
        match parcel.id {
            service::REGISTER if good => {
                let right = parcel.rights.iter().position(|right| matches!(right, HeldRight::Send(_)));
                let status = match right.map(|at| parcel.rights.remove(at)) {
                    Some(HeldRight::Send(port)) if self.known.contains_key(&port) => {
                        if let Some(former) = services.rights.insert(name.clone(), port) {
                            self.release_send(former);
                        }
                        service::OK
                    }
                    _ => service::BAD_REQUEST,
                };
                self.answer(reply, parcel.id, status, None);
                let waiting = core::mem::take(&mut services.waiting);
                for (wanted, reply) in waiting {
                    if wanted == name && status == service::OK {
                        let found = self.look_up(&mut services, &wanted);
                        self.answer(Some(reply), service::LOOK_UP_WAITING, service::OK, found);
                    } else {
                        services.waiting.push((wanted, reply));
                    }
                }
            }
            service::LOOK_UP | service::LOOK_UP_WAITING if good => {
                let found = self.look_up(&mut services, &name);
                match (found, reply) {
                    (None, Some(reply @ (HeldRight::Once(_) | HeldRight::Send(_))))
                        if parcel.id == service::LOOK_UP_WAITING =>
                    {
                        services.waiting.push((name, reply));
                    }
                    (found, reply) => {
                        let status = if found.is_some() { service::OK } else { service::UNKNOWN };
                        self.answer(reply, parcel.id, status, found);
                    }
                }
            }
            service::WITHDRAW if good => {
                let removed = services.rights.remove(&name);
                let status = if removed.is_some() { service::OK } else { service::UNKNOWN };
                removed.into_iter().for_each(|port| self.release_send(port));
                self.answer(reply, parcel.id, status, None);
            }
            id => self.answer(reply, id, service::BAD_REQUEST, None),
        }
        self.services = Some(services);
        self.todo.parcels.push(parcel);
    }

    /// Returns a copy of the right, or `None` if none is registered.
    fn look_up(&mut self, services: &mut NameService, name: &[u8]) -> Option<HeldRight> {
        let port = *services.rights.get(name)?;
        self.known.get_mut(&port)?.carried += 1;
        Some(HeldRight::Send(port))
    }

    /// Removes the registrations of a port that dies, and the requests to be answered there.
    pub(super) fn withdraw_dead(&mut self, port: PortId) {
        let Some(services) = &mut self.services else { return };
        let before = services.rights.len();
        services.rights.retain(|_, registered| *registered != port);
        let mut released = before - services.rights.len();
        services.waiting.retain(|(_, reply)| match reply {
            HeldRight::Once(once) => once.port != port,
            HeldRight::Send(to) => {
                released += usize::from(*to == port);
                *to != port
            }
            HeldRight::Receive(..) | HeldRight::Dead => true,
        });
        (0..released).for_each(|_| self.release_send(port));
    }

    fn answer(&mut self, reply: Option<HeldRight>, id: u32, status: u32, right: Option<HeldRight>) {
        let inline = status.to_le_bytes().to_vec();
        let parcel = Parcel::notification(
            id.wrapping_add(service::ANSWER),
            inline,
            right.into_iter().collect(),
            self.me,
        );
        match reply {
            Some(HeldRight::Once(once)) => self.send_by_once(once, parcel),
            Some(HeldRight::Send(port)) if self.known.contains_key(&port) => self.send_parcel(port, parcel),
            Some(HeldRight::Send(_) | HeldRight::Receive(..) | HeldRight::Dead) | None => {
                self.todo.parcels.push(parcel);
            }
        }
    }
}
