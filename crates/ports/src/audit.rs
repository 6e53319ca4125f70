//! The state of one engine for a checker: where the engine believes rights and messages to be.

use std::collections::BTreeMap;

use hiroba_base::NodeId;

use crate::body::{HeldRight, Parcel, Source};
use crate::engine::Engine;
use crate::id::{Name, Once, PortId};
use crate::known::{Known, Place, Stage};
use crate::names::Entry;
use crate::wire::FlowKey;

/// One engine's view of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAudit {
    /// True if the port is here.
    pub is_here: bool,
    /// The node where this engine believes it to be.
    pub at: NodeId,
    /// True if the receive right has a name; otherwise it is in a message.
    pub is_named: bool,
    /// True if this node has send rights, or is responsible for some.
    pub holds: bool,
    /// The number of rights that were sent on, to nodes that are not known to have them.
    pub pinned: usize,
    /// If the port is here: the nodes that are listed as holders.
    pub holders: Vec<NodeId>,
    /// If the port is here: the node of each send-once right.
    pub onces: BTreeMap<u64, NodeId>,
    /// If the port is here: the number of send-once rights that were made.
    pub onces_made: u64,
    /// If the port is here: true if a no-senders notification is requested.
    pub awaits_no_senders: bool,
    /// If the port is here: the number of messages in its queue.
    pub queued: usize,
    /// If the port is here: the number of requests that wait for room.
    pub parked: usize,
}

/// One engine's rights and messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Ports of which the engine has state.
    pub ports: BTreeMap<PortId, PortAudit>,
    /// Send-once rights in names, messages and requests for notifications.
    pub onces: Vec<Once>,
    /// Names: port, whether it receives, the number of user references of a send right.
    pub rights: Vec<(Name, PortId, bool, u32)>,
    /// Names of send-once rights.
    pub once_names: Vec<(Name, PortId)>,
    /// Names that denote dead rights, and their user references.
    pub dead_names: Vec<(Name, u32)>,
    /// The number of messages on their way that have not been answered.
    pub unanswered: usize,
    /// The number of threads that wait for room.
    pub blocked: usize,
    /// The number of deaths that have not taken effect.
    pub deaths_pending: usize,
    /// Ids of the messages in the queues of ports that are here.
    pub queued: Vec<u32>,
    /// Ids of the other messages that the engine has: on their way out, arriving, or to be destroyed.
    pub carried: Vec<u32>,
    /// Messages that another node may have, with their rights: that node, and the message's id. They have not
    /// been answered.
    pub entrusted: Vec<(NodeId, u32)>,
    /// Messages by send-once rights that are on their way out or arriving: the node that was asked to take
    /// it, or this one, and the port.
    pub by_once: Vec<(NodeId, PortId)>,
    /// The number of bytes of memory that are reserved for long messages.
    pub reserved_bytes: u64,
    /// Ports that are dead, but still have state here: messages on their way, or rights in messages.
    pub remains: Vec<PortId>,
}

impl Engine {
    /// Returns all state that a checker may need.
    pub fn audit(&self) -> Audit {
        let (deaths_pending, reserved_bytes) = (self.deaths.dying.len(), self.memory_used_bytes());
        let flows = self.flows.keys().chain(self.long.incoming.keys().map(|(_, flow, _)| flow));
        let dead = flows.map(|flow| flow.port()).filter(|port| !self.known.contains_key(port));
        let remains = dead.chain(self.strays.keys().copied()).collect();
        let mut audit = Audit { deaths_pending, reserved_bytes, remains, ..Audit::default() };
        for port in self.ports_in_order() {
            let known = &self.known[&port];
            audit.ports.insert(port, self.audit_port(port, known));
            let Some(body) = known.body() else { continue };
            body.queue.iter().for_each(|queued| note(&mut audit.onces, &queued.parcel));
            audit.queued.extend(body.queue.iter().map(|queued| queued.parcel.id));
            audit.onces.extend(body.no_senders.map(|(_, once)| once));
            audit.onces.extend(body.port_destroyed);
        }
        for key in self.flows_in_order() {
            let flow = &self.flows[&key];
            audit.blocked += flow.blocked.len();
            audit.onces.extend(flow.notify.map(|(_, once)| once));
            for item in &flow.items {
                item.parcel.iter().for_each(|parcel| note(&mut audit.onces, parcel));
                audit.unanswered += usize::from(!matches!(item.stage, Stage::Queued(_)));
                if matches!(key, FlowKey::Once(..) | FlowKey::RelayOnce(_)) {
                    let at = match item.stage {
                        Stage::Unsent => self.me,
                        Stage::Requested(at) | Stage::Permitted { at, .. } | Stage::Queued(at) => at,
                    };
                    audit.by_once.extend([(self.me, key.port()), (at, key.port())]);
                }
                let Some(parcel) = &item.parcel else { continue };
                audit.carried.push(parcel.id);
                match item.stage {
                    // Together with the memory, the receiver has reserved the right.
                    Stage::Requested(at) | Stage::Permitted { at, .. }
                        if matches!(key, FlowKey::Once(..)) =>
                    {
                        audit.entrusted.push((at, parcel.id));
                    }
                    Stage::Requested(at) if !self.is_long(parcel) => audit.entrusted.push((at, parcel.id)),
                    Stage::Permitted { at, begun: true, .. } => audit.entrusted.push((at, parcel.id)),
                    Stage::Unsent | Stage::Requested(_) | Stage::Permitted { .. } | Stage::Queued(_) => {}
                }
            }
        }
        audit.unanswered += self.orphans.len();
        self.orphans
            .iter()
            .flat_map(|orphan| &orphan.parcel)
            .for_each(|parcel| note(&mut audit.onces, parcel));
        for (orphan, parcel) in
            self.orphans.iter().filter_map(|orphan| Some((orphan, orphan.parcel.as_ref()?)))
        {
            audit.carried.push(parcel.id);
            audit.entrusted.push((orphan.asked, parcel.id));
        }
        for ((_, flow, _), incoming) in &self.long.incoming {
            let by_once = incoming.source == Source::Once;
            audit.by_once.extend(by_once.then_some((self.me, flow.port())));
            incoming.parcel.iter().for_each(|parcel| note(&mut audit.onces, parcel));
            audit.carried.extend(incoming.parcel.as_ref().map(|parcel| parcel.id));
        }
        let waiting = self.services.iter().flat_map(super::engine::NameService::waiting);
        audit.onces.extend(waiting.filter_map(as_once));
        for (name, entry) in self.names.iter() {
            match entry {
                Entry::Port { port, receive, send, dead_name } => {
                    audit.rights.push((name, *port, *receive, *send));
                    audit.onces.extend(*dead_name);
                }
                Entry::Once { once, dead_name } => {
                    audit.once_names.push((name, once.port));
                    audit.onces.push(*once);
                    audit.onces.extend(*dead_name);
                }
                Entry::Dead { references } => audit.dead_names.push((name, *references)),
                Entry::Set { .. } => {}
            }
        }
        audit
    }

    fn audit_port(&self, port: PortId, known: &Known) -> PortAudit {
        let mut audit = PortAudit {
            is_here: known.body().is_some(),
            at: match known.place {
                Place::At(node) | Place::Leaving { to: node, .. } => node,
                Place::Here(_) => self.me,
            },
            is_named: self.names.receives(port),
            holds: self.holds(port),
            pinned: known.pins.len() + known.pinned_onces.len() + known.claims.len() + known.unpins.len(),
            holders: Vec::new(),
            onces: BTreeMap::new(),
            onces_made: 0,
            awaits_no_senders: false,
            queued: 0,
            parked: 0,
        };
        if let Some(body) = known.body() {
            let holding = body.holders.iter().filter(|(_, holder)| holder.is_holding());
            audit.holders = holding.map(|(node, _)| *node).collect();
            audit.onces = body.onces.iter().map(|(serial, (node, _))| (*serial, *node)).collect();
            audit.onces_made = body.next_once;
            audit.awaits_no_senders = body.no_senders.is_some();
            (audit.queued, audit.parked) = (body.queue.len(), body.parked.len());
        }
        audit
    }

    /// Returns the port that a name denotes rights to. For checkers, which must recognise equal ports of
    /// different nodes.
    pub fn port_behind(&self, name: Name) -> Option<PortId> {
        match self.names.get(name) {
            Ok(Entry::Port { port, .. }) => Some(*port),
            Ok(Entry::Once { once, .. }) => Some(once.port),
            Ok(Entry::Dead { .. } | Entry::Set { .. }) | Err(_) => None,
        }
    }
}

fn as_once(right: &HeldRight) -> Option<Once> {
    match right {
        HeldRight::Once(once) => Some(*once),
        HeldRight::Dead | HeldRight::Send(_) | HeldRight::Receive(..) => None,
    }
}

fn note(onces: &mut Vec<Once>, parcel: &Parcel) {
    onces.extend(parcel.rights.iter().filter_map(as_once));
}
