//! The name service in the reference model: what it may answer.
//!
//! One node alone registers and withdraws each name, so what its own requests find is known. Other nodes'
//! requests come among them in an unknown order: they find one of the ports that were registered, or none.
//! Each request has a port of its own for the answer.

use std::collections::{BTreeMap, BTreeSet};

use hiroba_ports::{PortId, Received, RightKind, service};

/// A request that was sent.
struct Request {
    id: u32,
    name: u8,
    /// True if its node is the one that registers the name.
    is_owners: bool,
    /// The number of registrations and withdrawals of the name before it.
    before: usize,
    /// True if its answer may have been lost with a node.
    may_be_lost: bool,
}

#[derive(Default)]
pub struct Directory {
    /// Requests without an answer, by the ports that get the answers.
    requests: BTreeMap<PortId, Request>,
    /// What was registered by each name, in that order; `None` for a withdrawal.
    history: BTreeMap<u8, Vec<Option<PortId>>>,
}

impl Directory {
    /// Notes that a request was sent.
    pub fn asked(&mut self, reply: PortId, id: u32, name: u8, is_owners: bool, registered: Option<PortId>) {
        let history = self.history.entry(name).or_default();
        let before = history.len();
        if matches!(id, service::REGISTER | service::WITHDRAW) {
            history.push(registered);
        }
        self.requests.insert(reply, Request { id, name, is_owners, before, may_be_lost: false });
    }

    /// Notes that a send-once right for the port was not used.
    pub fn unused(&mut self, to: PortId) {
        self.requests.get_mut(&to).into_iter().for_each(|request| request.may_be_lost = true);
    }

    /// Checks an answer. `found` is the port of its right. Returns the ports that must be dead for it.
    pub fn answered(
        &mut self,
        to: PortId,
        received: &Received,
        found: Option<PortId>,
    ) -> Result<Vec<PortId>, String> {
        let request = self.requests.remove(&to).ok_or("the name service answers without a request")?;
        let Request { id, name, is_owners, before, .. } = request;
        let status = received.inline.as_slice().try_into().map(u32::from_le_bytes);
        let wrong = || Err(format!("request {id} for name {name} was answered by {received:?}"));
        let (Ok(status), true) = (status, received.id == id + service::ANSWER) else { return wrong() };
        let history = self.history[&name].as_slice();
        let (past, later) = history.split_at(before);
        // Since the last withdrawal. A registration of a dead port fails, and leaves the one before it.
        let since = past.iter().rposition(Option::is_none).map_or(0, |at| at + 1);
        let registered: Vec<PortId> = past[since..].iter().copied().flatten().collect();
        let latest: Vec<PortId> = registered.last().copied().into_iter().collect();
        match (id, status, received.rights.as_slice()) {
            (service::REGISTER, service::OK, []) => Ok(Vec::new()),
            (service::REGISTER, service::BAD_REQUEST, []) => Ok(later[0].into_iter().collect()),
            (service::WITHDRAW, service::OK, []) if !registered.is_empty() => Ok(Vec::new()),
            (service::WITHDRAW, service::UNKNOWN, []) => Ok(latest),
            (service::LOOK_UP, service::UNKNOWN, []) if is_owners => Ok(latest),
            (service::LOOK_UP, service::UNKNOWN, []) => Ok(Vec::new()),
            (service::LOOK_UP | service::LOOK_UP_WAITING, service::OK, [right]) => {
                let Some(found) = found.filter(|_| right.kind == RightKind::Send) else {
                    return if right.kind == RightKind::Dead && is_owners {
                        Ok(latest)
                    } else {
                        Ok(Vec::new())
                    };
                };
                if !is_owners {
                    return if history.contains(&Some(found)) { Ok(Vec::new()) } else { wrong() };
                }
                match registered.iter().rposition(|port| *port == found) {
                    Some(at) => Ok(registered[at + 1..].to_vec()),
                    None if id == service::LOOK_UP_WAITING && later.contains(&Some(found)) => Ok(latest),
                    None => wrong(),
                }
            }
            _ => wrong(),
        }
    }

    /// Checks, if the name service lives, that nobody waits for a name that is registered. A registration may
    /// be lost with its node.
    pub fn compare(&self, dead: &BTreeSet<PortId>, owner_lives: impl Fn(u8) -> bool) -> Result<(), String> {
        let registered = |name: &u8| {
            let last = self.history[name].last().copied().flatten();
            owner_lives(*name) && last.is_some_and(|port| !dead.contains(&port))
        };
        let waits = |(reply, request): &(&PortId, &Request)| {
            request.id == service::LOOK_UP_WAITING
                && !request.may_be_lost
                && !dead.contains(reply)
                && registered(&request.name)
        };
        match self.requests.iter().find(waits) {
            Some((reply, request)) if !dead.contains(&PortId::NAME_SERVICE) => {
                Err(format!("the look-up of name {} with {reply} still waits", request.name))
            }
            _ => Ok(()),
        }
    }
}
