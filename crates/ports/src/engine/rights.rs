//! Rights: which nodes have them, how they travel, and how they end.
//!
//! The node with the receive right lists the nodes that have send rights. A node enters the list by its
//! report, or by a *grant*: the port's node sent it a right itself and counted that. A node leaves the list
//! by a report that it has none. The report contains the number of grants that the node had seen, so a report
//! that crosses a grant changes nothing. A node that sends a right on to a third node *pins* it: it stays on
//! the list until the port's node has the third node's report. So the list is empty only if no node has, or
//! will get, a right: then there are no senders. For each send-once right the port's node stores the last
//! reported holder; hop counts order the reports.

use hiroba_base::NodeId;

use crate::body::{HeldRight, Parcel, Source};
use crate::error::PortError;
use crate::id::{Once, PortId};
use crate::known::{Known, Place, Way};
use crate::message::{Disposition, RightToSend, notification};
use crate::names::Entry;
use crate::wire::{OnceOnWire, Packet, RightOnWire};

use super::Engine;

impl Engine {
    /// Checks that the caller has these rights, all of them together.
    pub(super) fn check_rights(
        &self,
        rights: impl Iterator<Item = RightToSend> + Clone,
    ) -> Result<(), PortError> {
        for (at, right) in rights.clone().enumerate() {
            let count = |disposition| {
                let same = |other: &RightToSend| (other.name, other.disposition) == (right.name, disposition);
                rights.clone().take(at).filter(same).count() as u32
            };
            let has_left = |disposition| count(disposition) == 0;
            match (self.names.get(right.name)?, right.disposition) {
                (Entry::Port { receive, .. }, Disposition::MakeSend | Disposition::MakeSendOnce) => {
                    if !receive || !has_left(Disposition::MoveReceive) {
                        return Err(PortError::InvalidRight);
                    }
                }
                (Entry::Port { receive, .. }, Disposition::MoveReceive) => {
                    if !receive || !has_left(Disposition::MoveReceive) {
                        return Err(PortError::InvalidRight);
                    }
                }
                (Entry::Port { send, .. }, Disposition::CopySend | Disposition::MoveSend) => {
                    if *send <= count(Disposition::MoveSend) {
                        return Err(PortError::InvalidRight);
                    }
                }
                (Entry::Once { .. }, Disposition::MoveSendOnce) => {
                    if !has_left(Disposition::MoveSendOnce) {
                        return Err(PortError::InvalidRight);
                    }
                }
                (
                    Entry::Dead { references },
                    Disposition::CopySend | Disposition::MoveSend | Disposition::MoveSendOnce,
                ) => {
                    if *references <= count(Disposition::MoveSend) + count(Disposition::MoveSendOnce) {
                        return Err(PortError::InvalidRight);
                    }
                }
                _ => return Err(PortError::InvalidRight),
            }
        }
        Ok(())
    }

    /// Takes a right out of the caller's names; the engine holds it from now on.
    pub(super) fn take_right(&mut self, right: RightToSend) -> Result<HeldRight, PortError> {
        self.check_rights(core::iter::once(right))?;
        self.take_checked(right)
    }

    /// Takes a right that the caller has.
    pub(super) fn take_checked(&mut self, right: RightToSend) -> Result<HeldRight, PortError> {
        let entry = self.names.get_mut(right.name)?;
        match entry {
            Entry::Port { port, send, receive, .. } => {
                let port = *port;
                match right.disposition {
                    Disposition::MoveSend => *send -= 1,
                    Disposition::MoveReceive => *receive = false,
                    _ => {}
                }
                Ok(self.take_port_right(port, right.disposition))
            }
            Entry::Once { once, .. } => {
                let once = *once;
                let removed = self.names.remove(right.name);
                if let Some(Entry::Once { dead_name: Some(asked), .. }) = removed {
                    self.give_back(asked);
                }
                Ok(HeldRight::Once(once))
            }
            Entry::Dead { references } => {
                let moves = right.disposition != Disposition::CopySend;
                *references -= u32::from(moves);
                if *references == 0 {
                    self.names.remove(right.name);
                }
                Ok(HeldRight::Dead)
            }
            Entry::Set { .. } => Err(PortError::InvalidRight),
        }
    }

    fn take_port_right(&mut self, port: PortId, disposition: Disposition) -> HeldRight {
        let me = self.me;
        let Some(known) = self.known.get_mut(&port) else { return HeldRight::Dead };
        let held = match disposition {
            Disposition::CopySend | Disposition::MoveSend => HeldRight::Send(port),
            Disposition::MakeSend => {
                known.body_mut().into_iter().for_each(|body| body.make_send = body.make_send.wrapping_add(1));
                HeldRight::Send(port)
            }
            Disposition::MakeSendOnce | Disposition::MoveSendOnce => {
                let Some(body) = known.body_mut() else { return HeldRight::Dead };
                let serial = body.next_once;
                body.next_once += 1;
                body.onces.insert(serial, (me, 0));
                HeldRight::Once(Once { port, serial, hop: 0 })
            }
            Disposition::MoveReceive => {
                let Some(body) = known.body_mut() else { return HeldRight::Dead };
                (body.in_transit, body.make_send) = (true, 0);
                body.journey += 1;
                HeldRight::Receive(port, body.journey)
            }
        };
        if held == HeldRight::Send(port) {
            known.carried += 1;
        }
        if matches!(held, HeldRight::Receive(..)) {
            self.leave_sets(port);
            self.fail_receivers(port);
        }
        self.tidy(port);
        self.todo.holdings.insert(port);
        held
    }

    /// Removes a name that denotes nothing any more.
    pub(super) fn tidy(&mut self, port: PortId) {
        if let Some(asked) = self.names.tidy(port) {
            self.give_back(asked);
        }
    }

    /// Releases a send right that the engine holds.
    pub(super) fn release_send(&mut self, port: PortId) {
        if let Some(known) = self.known.get_mut(&port) {
            known.carried = known.carried.checked_sub(1).expect("what is released was carried");
            self.todo.holdings.insert(port);
        } else if let Some(strays) = self.strays.get_mut(&port) {
            *strays -= 1;
            if *strays == 0 {
                self.strays.remove(&port);
            }
        }
    }

    /// Sends a right to another node. Adds the way of the right, and behind it those of the rights that
    /// travel with a port: all end when the message is answered.
    pub(super) fn send_right_off(
        &mut self,
        right: HeldRight,
        to: NodeId,
        ways: &mut Vec<Way>,
    ) -> RightOnWire {
        if let HeldRight::Receive(port, journey) = right {
            ways.push(Way::Receive);
            let body = self.port_leaves(port, journey, to, ways);
            return body.map_or(RightOnWire::Dead, |body| RightOnWire::Receive(Box::new(body)));
        }
        let (right, way) = self.send_only_right_off(right, to);
        ways.push(way);
        right
    }

    fn send_only_right_off(&mut self, right: HeldRight, to: NodeId) -> (RightOnWire, Way) {
        let me = self.me;
        match right {
            HeldRight::Dead | HeldRight::Receive(..) => (RightOnWire::Dead, Way::Dead),
            HeldRight::Send(port) => {
                let Some(at) = self.place_of(port) else { return (RightOnWire::Dead, Way::Dead) };
                let Some(known) = self.known.get_mut(&port) else { return (RightOnWire::Dead, Way::Dead) };
                match &mut known.place {
                    Place::Here(body) if !body.in_transit && to != me => {
                        body.holder(to).grants += 1;
                        body.granting += 1;
                        (RightOnWire::Send { port, at, granted: true }, Way::GrantedSend(port))
                    }
                    Place::Here(_) | Place::Leaving { .. } | Place::At(_) => {
                        *known.pins.entry(to).or_default() += 1;
                        (RightOnWire::Send { port, at, granted: false }, Way::PinnedSend(port))
                    }
                }
            }
            HeldRight::Once(once) => match self.send_once_off(once, to) {
                Some((right, way)) => (RightOnWire::SendOnce(right), way),
                None => (RightOnWire::Dead, Way::Dead),
            },
        }
    }

    pub(super) fn send_once_off(&mut self, once: Once, to: NodeId) -> Option<(OnceOnWire, Way)> {
        let me = self.me;
        let at = self.place_of(once.port)?;
        let known = self.known.get_mut(&once.port)?;
        let once = Once { hop: once.hop + 1, ..once };
        Some(match &mut known.place {
            Place::Here(body) if !body.in_transit && to != me => {
                body.onces.insert(once.serial, (to, once.hop));
                body.note_knower(to);
                body.granting += 1;
                (OnceOnWire { once, at, granted: true }, Way::GrantedOnce(once))
            }
            Place::Here(_) | Place::Leaving { .. } | Place::At(_) => {
                known.pinned_onces.insert((to, once));
                (OnceOnWire { once, at, granted: false }, Way::PinnedOnce(once))
            }
        })
    }

    /// Takes a right that has come with an accepted message.
    pub(super) fn right_arrives(&mut self, from: NodeId, right: RightOnWire) -> HeldRight {
        match right {
            RightOnWire::Dead => HeldRight::Dead,
            RightOnWire::Send { port, at, granted } => {
                let Some(known) = self.know(port, at) else { return HeldRight::Dead };
                known.carried += 1;
                if granted {
                    known.seen += 1;
                } else {
                    known.unpins.push(from);
                }
                self.todo.holdings.insert(port);
                HeldRight::Send(port)
            }
            RightOnWire::SendOnce(right) => {
                self.once_arrives(from, right).map_or(HeldRight::Dead, HeldRight::Once)
            }
            RightOnWire::Receive(body) => self.port_arrives(from, *body),
        }
    }

    pub(super) fn once_arrives(
        &mut self,
        from: NodeId,
        OnceOnWire { once, at, granted }: OnceOnWire,
    ) -> Option<Once> {
        let me = self.me;
        let known = self.know(once.port, at)?;
        if !granted {
            known.claims.insert(once, (me, Some(from)));
            self.send_claim(once);
        }
        Some(once)
    }

    /// Returns the state of a port of which a right has come, or `None` if the port is dead.
    fn know(&mut self, port: PortId, at: NodeId) -> Option<&mut Known> {
        if !self.known.contains_key(&port) {
            // The node where a port was made knows it as long as it lives.
            if port.birth == self.me {
                return None;
            }
            let at = if self.deaths.dead.contains(&at) { self.relocated_to(port)?.1 } else { at };
            if at == self.me || self.deaths.dead.contains(&at) {
                return None;
            }
            return Some(self.learn(port, at));
        }
        self.known.get_mut(&port)
    }

    /// Makes a port known, or known again: a right may be on its way while the port dies. Messages that are
    /// here may contain rights to it from before.
    pub(super) fn learn(&mut self, port: PortId, at: NodeId) -> &mut Known {
        let mut known = Known::new(Place::At(at));
        known.carried = self.strays.remove(&port).unwrap_or(0);
        self.todo.holdings.insert(port);
        self.known.entry(port).or_insert(known)
    }

    /// Handles a right that has come with a refused message: a grant counts as if it had been taken and given
    /// up.
    pub(super) fn refuse_right(&mut self, right: RightOnWire) {
        if let RightOnWire::Send { port, at, granted: true } = right
            && let Some(known) = self.know(port, at)
        {
            known.seen += 1;
            self.todo.holdings.insert(port);
        }
    }

    /// Takes back a right that `from` has refused. Returns, for a send-once right, its present hop.
    pub(super) fn right_came_back(&mut self, way: Way, from: NodeId) -> Option<u32> {
        let me = self.me;
        self.grant_answered(way);
        match way {
            Way::Dead | Way::GrantedSend(_) | Way::Receive => None,
            Way::GrantedOnce(once) => {
                let hop = once.hop + 1;
                if let Some(body) = self.body(once.port) {
                    body.onces.insert(once.serial, (me, hop));
                }
                Some(hop)
            }
            Way::PinnedSend(port) => {
                self.unpin(from, port);
                None
            }
            Way::PinnedOnce(once) => {
                self.unpin_once(from, once);
                None
            }
        }
    }

    /// Notes that the receiver of a grant has answered.
    pub(super) fn grant_answered(&mut self, way: Way) {
        let (Way::GrantedSend(port) | Way::GrantedOnce(Once { port, .. })) = way else { return };
        if let Some(body) = self.body(port) {
            body.granting -= 1;
            if body.in_transit {
                // The message that contains the port may be waiting for this.
                let flows: Vec<_> = self.flows.keys().copied().collect();
                self.todo.flows.extend(flows);
            }
        }
    }

    pub(super) fn unpin(&mut self, from: NodeId, port: PortId) {
        let Some(known) = self.known.get_mut(&port) else { return };
        if let Some(pins) = known.pins.get_mut(&from) {
            *pins -= 1;
            if *pins == 0 {
                known.pins.remove(&from);
            }
        }
        self.todo.holdings.insert(port);
    }

    pub(super) fn unpin_once(&mut self, from: NodeId, once: Once) {
        if let Some(known) = self.known.get_mut(&once.port) {
            known.pinned_onces.remove(&(from, once));
        }
    }

    /// Reports the holder of a send-once right to the port's node. Not needed if the port is here.
    pub(super) fn send_claim(&mut self, once: Once) {
        let Some(known) = self.known.get_mut(&once.port) else { return };
        let Some((holder, _)) = known.claims.get(&once).copied() else { return };
        match &mut known.place {
            Place::Here(_) => {
                self.claimed_here(once, holder);
                self.claim_heard(once);
            }
            Place::Leaving { .. } => {}
            Place::At(node) => {
                let node = *node;
                self.send(node, Packet::Claim { once, holder });
            }
        }
    }

    fn claimed_here(&mut self, once: Once, holder: NodeId) {
        let Some(body) = self.body(once.port) else { return };
        body.note_knower(holder);
        if let Some(known) = body.onces.get_mut(&once.serial)
            && once.hop > known.1
        {
            *known = (holder, once.hop);
            if self.deaths.dead.contains(&holder) {
                self.notify_unused(once);
            }
        }
    }

    pub(super) fn take_claim(&mut self, from: NodeId, once: Once, holder: NodeId) {
        let port = once.port;
        match self.known.get_mut(&port).map(|known| &mut known.place) {
            None => self.send(from, Packet::Dead { port }),
            Some(Place::At(_)) => self.tell_place(port, from),
            Some(Place::Leaving { asking, .. }) => _ = asking.insert(from),
            Some(Place::Here(_)) => {
                self.claimed_here(once, holder);
                self.send(from, Packet::Claimed { once });
            }
        }
    }

    pub(super) fn claim_heard(&mut self, once: Once) {
        let claim = self.known.get_mut(&once.port).and_then(|known| known.claims.remove(&once));
        if let Some((_, Some(from))) = claim {
            self.send(from, Packet::UnpinOnce { once });
        }
        self.todo.deaths = true;
    }

    pub(super) fn take_report(&mut self, from: NodeId, port: PortId, holds: bool, seen: u64, version: u64) {
        match self.known.get_mut(&port).map(|known| &mut known.place) {
            None => self.send(from, Packet::Dead { port }),
            Some(Place::At(_)) => self.tell_place(port, from),
            Some(Place::Leaving { asking, .. }) => _ = asking.insert(from),
            Some(Place::Here(body)) => {
                let holder = body.holder(from);
                if version > holder.version {
                    (holder.holds, holder.seen, holder.version) = (holds, seen, version);
                }
                self.todo.holdings.insert(port);
                self.send(from, Packet::Reported { port, version });
            }
        }
    }

    pub(super) fn report_heard(&mut self, port: PortId, version: u64) {
        if let Some(known) = self.known.get_mut(&port) {
            known.report.acknowledged = known.report.acknowledged.max(version);
            self.todo.holdings.insert(port);
            self.todo.deaths = true;
        }
    }

    /// Returns true if this node has send rights to the port, or is responsible for some.
    pub(crate) fn holds(&self, port: PortId) -> bool {
        self.known.get(&port).is_some_and(|known| self.holds_known(port, known))
    }

    fn holds_known(&self, port: PortId, known: &Known) -> bool {
        // Messages that still come for a port that has left are relayed.
        let relays =
            || known.body().is_none() && self.long.incoming.keys().any(|(_, flow, _)| flow.port() == port);
        known.carried > 0 || !known.pins.is_empty() || self.names.send_references(port) > 0 || relays()
    }

    /// Reports changes to the port's node, and frees the pins of nodes that wait until this node is
    /// registered. On the port's node: checks for senders.
    pub(super) fn look_at_holdings(&mut self, port: PortId) {
        let Some(known) = self.known.get(&port) else { return };
        let Place::At(at) = known.place else {
            if let Some(body) = known.body() {
                let awaits_no_senders = body.no_senders.is_some();
                if !known.unpins.is_empty() {
                    self.free_pins(port);
                }
                if awaits_no_senders {
                    self.look_for_senders(port);
                }
            }
            return;
        };
        let holds = self.holds_known(port, known);
        let report = known.report;
        if known.unpins.is_empty() && holds == (report.holds || known.seen > report.seen) {
            return;
        }
        let known = self.known.get_mut(&port).expect("it was found");
        let is_listed = report.holds || known.seen > report.seen;
        let is_heard = report.acknowledged == report.version;
        // A node that has never reported does so even if its right is gone again: it must be told of the
        // port's death.
        let has_reported = report.version > 0 && is_heard && report.holds == holds;
        let is_sure = known.seen > report.seen || has_reported;
        if !known.unpins.is_empty() && is_sure {
            self.free_pins(port);
        } else if holds != is_listed || (!known.unpins.is_empty() && is_heard) {
            let report = &mut known.report;
            (report.holds, report.seen, report.version) = (holds, known.seen, report.version + 1);
            let (seen, version) = (report.seen, report.version);
            self.send(at, Packet::Report { port, holds, seen, version });
        }
        let Some(known) = self.known.get(&port) else { return };
        let is_listed = known.report.holds || known.seen > known.report.seen;
        if known.unpins.is_empty() && holds != is_listed {
            self.todo.holdings.insert(port);
        }
    }

    fn free_pins(&mut self, port: PortId) {
        let Some(known) = self.known.get_mut(&port) else { return };
        for to in core::mem::take(&mut known.unpins) {
            self.send(to, Packet::Unpin { port });
        }
    }

    /// Sends the requested no-senders notification once, if there are none. While a node is dying, the list
    /// may lack nodes whose reports are under way.
    fn look_for_senders(&mut self, port: PortId) {
        if self.holds(port) || !self.deaths.dying.is_empty() {
            return;
        }
        let Some(body) = self.body(port) else { return };
        let is_sent = |source: Source| source != Source::Once;
        let quiet = body.incoming == 0
            && body.holders.values().all(|holder| !holder.is_holding())
            && body.queue.iter().all(|queued| !is_sent(queued.source));
        if quiet
            && body.no_senders.is_some_and(|(sync, _)| body.make_send >= sync)
            && let Some((_, once)) = body.no_senders.take()
        {
            let count = u64::from(body.make_send).to_le_bytes().to_vec();
            let me = self.me;
            self.send_by_once(once, Parcel::notification(notification::NO_SENDERS, count, Vec::new(), me));
        }
    }

    /// Gives up an unused send-once right, and informs its port.
    pub(super) fn give_back(&mut self, once: Once) {
        let me = self.me;
        self.send_by_once(once, Parcel::notification(notification::SEND_ONCE, Vec::new(), Vec::new(), me));
    }

    /// Informs the port of a send-once right that was lost with its node.
    pub(super) fn notify_unused(&mut self, once: Once) {
        self.give_back(once);
    }

    /// Destroys a message that cannot be received any more, and gives up its rights.
    pub(super) fn destroy_parcel(&mut self, parcel: Parcel) {
        for right in parcel.rights {
            match right {
                HeldRight::Dead => {}
                HeldRight::Send(port) => self.release_send(port),
                HeldRight::Once(once) => self.give_back(once),
                HeldRight::Receive(port, journey) => {
                    if self.body_in_transit(port, journey).is_some() {
                        self.todo.receives.push(port);
                    }
                }
            }
        }
    }

    /// Gives up a receive right that is not in any table any more: it goes back to the node that requested
    /// its return, or the port dies.
    pub(super) fn destroy_receive(&mut self, port: PortId) {
        let me = self.me;
        let Some(body) = self.body(port) else { return };
        (body.in_transit, body.make_send) = (true, 0);
        body.journey += 1;
        if let Some(once) = body.port_destroyed.take() {
            let rights = vec![HeldRight::Receive(port, body.journey)];
            self.sets_out(port, once.port);
            let parcel = Parcel::notification(notification::PORT_DESTROYED, Vec::new(), rights, me);
            self.send_by_once(once, parcel);
            return;
        }
        self.kill(port);
    }

    /// Lets the port die: destroys its messages, and informs every node that may have a right.
    fn kill(&mut self, port: PortId) {
        let Some(known) = self.known.get_mut(&port) else { return };
        let former = core::mem::take(&mut known.former);
        let Some(body) = known.body_mut() else { return };
        let mut told = former;
        told.extend(body.holders.keys().copied());
        told.extend(body.onces.values().map(|(node, _)| *node));
        told.extend(body.parked.iter().map(|parked| parked.from));
        // Rights that long messages use are not listed any more, while their pieces come.
        told.extend(self.long.incoming.keys().filter(|(_, flow, _)| flow.port() == port).map(|key| key.0));
        told.remove(&self.me);
        let queue = core::mem::take(&mut body.queue);
        let asked = body.no_senders.take().map(|(_, once)| once);
        for queued in queue {
            self.release_memory(queued.reserved_bytes);
            self.todo.parcels.push(queued.parcel);
        }
        for node in told {
            self.send(node, Packet::Dead { port });
        }
        asked.into_iter().for_each(|once| self.give_back(once));
        self.bury(port);
    }

    /// Handles a report that a port is dead.
    pub(super) fn port_died(&mut self, from: NodeId, port: PortId) {
        if self.known.get(&port).is_some_and(|known| known.body().is_none()) {
            self.bury(port);
        }
        self.destroy_orphans(from, port);
    }

    /// Ends all sending to the port: its names become dead names, messages under way are destroyed, and
    /// waiting threads are informed.
    pub(super) fn bury(&mut self, port: PortId) {
        let mut late: Vec<_> =
            self.long.incoming.keys().copied().filter(|(_, flow, _)| flow.port() == port).collect();
        for key in late.drain(..) {
            let incoming = self.long.incoming.remove(&key).expect("it was found");
            self.release_memory(incoming.reserved_bytes);
            // Its sender may be writing there, if it lives.
            let landing = incoming.landing.filter(|_| !self.is_gone(key.0));
            self.long.given_up.extend(landing.map(|extent| (key, extent)));
            self.todo.parcels.extend(incoming.parcel);
        }
        self.fail_blocked(port, PortError::DeadDestination);
        for key in self.flows_in_order().into_iter().filter(|key| key.port() == port) {
            self.abandon(key);
            if let Some(flow) = self.flows.remove(&key)
                && let Some((_, once)) = flow.notify
            {
                self.give_back(once);
            }
        }
        self.fail_receivers(port);
        self.leave_sets(port);
        self.withdraw_dead(port);
        self.long.hungry.retain(|hungry| *hungry != port);
        if let Some(Known { carried, told, .. }) = self.known.remove(&port) {
            if carried > 0 {
                self.strays.insert(port, carried);
            }
            for node in told {
                self.send(node, Packet::Dead { port });
            }
        }
        self.words.forget_port(port);
        for (name, once) in self.names.bury(port) {
            self.notify_dead_name(name, once);
        }
        self.todo.deaths = true;
    }
}
