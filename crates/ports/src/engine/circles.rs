//! Receive rights in each other's queues.
//!
//! A port whose receive right is in a message can receive only after that message was received. If the
//! message is for a port that is itself in a message, and so on until the first port comes again, none of
//! them can ever be received: Mach destroys such rights. Here the ports of a circle may be on several nodes,
//! and moving. A node that sends a receive right starts a search along the way that the right depends on. A
//! first walk notes each port with the number of its journey. If the walk returns to its start, a second one
//! follows the same ports. If no port was received meanwhile, all were in each other between the walks, and
//! will remain so: one of them is destroyed, which opens the circle. The search for the last right that
//! closes a circle finds it. Searches use the same links as the ports, after them.

use crate::known::Place;
use crate::wire::{JOURNEYS_MAX, Journey, Packet};

use super::Engine;
use crate::body::{Body, HeldRight, Parcel};
use crate::id::PortId;

impl Engine {
    /// Notes that a receive right is sent in a message for the port `into`.
    pub(super) fn sets_out(&mut self, port: PortId, into: PortId) {
        if let Some(body) = self.body(port) {
            body.into = Some(into);
            self.todo.circles.insert(port);
        }
    }

    /// Notes that all receive rights of a message are sent.
    pub(super) fn ports_set_out(&mut self, rights: &[HeldRight], into: PortId) {
        for right in rights {
            if let HeldRight::Receive(port, _) = right {
                self.sets_out(*port, into);
            }
        }
    }

    /// Notes that a long message for that port, with receive rights, has begun to arrive.
    pub(super) fn ports_are_in(&mut self, parcel: &Parcel, into: PortId) {
        for right in &parcel.rights {
            if let HeldRight::Receive(port, _) = right
                && let Some(body) = self.body(*port)
            {
                body.into = Some(into);
            }
        }
    }

    /// Returns the port of a receive right in a message, unless the port was taken out of that message. In
    /// that case the right is void.
    pub(super) fn body_in_transit(&mut self, port: PortId, journey: u64) -> Option<&mut Body> {
        self.body(port).filter(|body| body.in_transit && body.journey == journey)
    }

    /// Walks from the port to the one that it is in, and on. `path` is the way so far; its first `again`
    /// ports have been passed twice, 0 on the first walk.
    pub(super) fn search_circle(&mut self, from: PortId, mut path: Vec<Journey>, mut again: u32) {
        let mut port = from;
        loop {
            let Some(known) = self.known.get(&port) else { return };
            let body = match &known.place {
                Place::Here(body) => body,
                Place::Leaving { to: node, .. } | Place::At(node) => {
                    let node = *node;
                    self.send(node, Packet::Circle { port, path, again });
                    return;
                }
            };
            let (true, Some(into)) = (body.in_transit, body.into) else { return };
            let here = Journey { port, number: body.journey };
            let first = path.first().copied();
            if again > 0 || first == Some(here) {
                if path.get(again as usize) != Some(&here) {
                    return;
                }
                again += 1;
                if again as usize == path.len() {
                    self.destroy_receive(port);
                    return;
                }
            } else if path.iter().any(|passed| passed.port == port) || path.len() == JOURNEYS_MAX {
                // The search for the circle's own ports finds a circle to which the first port only leads.
                return;
            } else {
                path.push(here);
            }
            port = into;
        }
    }

    /// Repeats searches that may have been lost with a dead node.
    pub(super) fn search_circles_anew(&mut self) {
        let in_transit = |body: &Body| body.in_transit && body.into.is_some();
        let ports = self.known.iter().filter(|(_, known)| known.body().is_some_and(in_transit));
        let ports: Vec<_> = ports.map(|(port, _)| *port).collect();
        self.todo.circles.extend(ports);
    }
}
