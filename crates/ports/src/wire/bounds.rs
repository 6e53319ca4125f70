//! The bounds of the fields of packets, which other nodes may have forged.

use hiroba_base::NodeId;
use hiroba_wire::WireError;

use crate::id::{Once, PortId};
use crate::landing::{PLACE_BYTES, UNIT_BYTES};

use super::{
    BodyOnWire, Envelope, FlowKey, Head, ITEMS_MAX, JOURNEYS_MAX, LOST_MAX, Load, OnceOnWire, Packet,
    RELEASED_BYTES_MAX, RightOnWire, WORDS_MAX, Word,
};

pub(super) fn within(
    field: &'static str,
    expected: &'static str,
    got: u64,
    good: bool,
) -> Result<(), WireError> {
    if good { Ok(()) } else { Err(WireError::OutOfBounds { field, expected, got }) }
}

/// The bounds of the fields.
pub(super) struct Bounds {
    pub(super) nodes: u16,
}

impl Bounds {
    pub(super) fn envelope(&self, envelope: &Envelope<'_>) -> Result<(), WireError> {
        let Word { queued, accepted } = &envelope.word;
        for (field, count) in [("answers", queued.len()), ("acceptances", accepted.len())] {
            within(field, "at most 64", count as u64, count <= WORDS_MAX)?;
        }
        queued.iter().try_for_each(|answered| {
            self.number(answered.moves)?;
            self.flow(answered.flow, answered.number)
        })?;
        accepted.iter().try_for_each(|accepted| {
            self.port(accepted.port)?;
            self.number(accepted.through)
        })?;
        self.packet(&envelope.packet)
    }

    fn packet(&self, packet: &Packet<'_>) -> Result<(), WireError> {
        match packet {
            Packet::WordAlone => Ok(()),
            Packet::Request { flow, number, load, .. } => {
                self.flow(*flow, *number)?;
                match load {
                    Load::Bytes { bytes, landing_bytes } => {
                        let most = bytes.saturating_add(ITEMS_MAX as u64 * PLACE_BYTES);
                        let good = *landing_bytes <= most;
                        within("bytes to land", "hardly more than the message's", *landing_bytes, good)
                    }
                    Load::Whole { head, released, data } => {
                        self.head(head, released)?;
                        let good = head.data_bytes() == Some(data.len() as u64);
                        within("bytes of a message", "as many as its head says", data.len() as u64, good)
                    }
                }
            }
            Packet::Wait { flow, number, moves } => {
                self.flow(*flow, *number)?;
                self.number(*moves)
            }
            Packet::Permit { flow, number, landing } => {
                let good = landing.is_none_or(|at| at.is_multiple_of(UNIT_BYTES));
                within("place to land", "the beginning of a unit", landing.unwrap_or(0), good)?;
                self.flow(*flow, *number)
            }
            Packet::GaveUp { flow, number }
            | Packet::Data { flow, number, .. }
            | Packet::More { flow, number, .. }
            | Packet::Denied { flow, number } => self.flow(*flow, *number),
            Packet::Begin { flow, number, head, released, .. } => {
                self.flow(*flow, *number)?;
                self.head(head, released)
            }
            Packet::Ready { flow } => self.port(flow.port()),
            Packet::Moved { port, to, moves } | Packet::Relocated { port, to, moves } => {
                self.port(*port)?;
                self.number(*moves)?;
                self.node(*to)
            }
            Packet::Report { port, version, seen, .. } => {
                self.port(*port)?;
                self.number(*seen)?;
                self.number(*version)
            }
            Packet::Dead { port } | Packet::Reported { port, .. } | Packet::Unpin { port } => {
                self.port(*port)
            }
            Packet::Taken { port, moves } => {
                self.port(*port)?;
                self.number(*moves)
            }
            Packet::Skip { port, first, last } => {
                self.port(*port)?;
                self.lost(*first, *last)
            }
            Packet::Relayed { port, number, at, moves } => {
                self.port(*port)?;
                self.number(*moves)?;
                self.number(*number)?;
                self.node(*at)
            }
            Packet::Survives { port, origin, number } => {
                self.port(*port)?;
                self.node(*origin)?;
                self.number(*number)
            }
            Packet::Claim { once, holder } => {
                self.node(*holder)?;
                self.once(*once)
            }
            Packet::Claimed { once } | Packet::UnpinOnce { once } => self.once(*once),
            Packet::Told { node } | Packet::Mourned { node } => self.node(*node),
            Packet::Circle { port, path, again } => {
                self.port(*port)?;
                within("ports passed", "at most 4096", path.len() as u64, path.len() <= JOURNEYS_MAX)?;
                path.iter().try_for_each(|passed| {
                    self.port(passed.port)?;
                    self.number(passed.number)
                })?;
                let good = (*again as usize) < path.len().max(1);
                within("ports passed again", "fewer than passed", u64::from(*again), good)
            }
        }
    }

    fn node(&self, node: NodeId) -> Result<(), WireError> {
        within("node", "a node of the job", u64::from(node.0), node.0 < self.nodes)
    }

    fn port(&self, port: PortId) -> Result<(), WireError> {
        self.node(port.birth)?;
        self.number(port.serial)
    }

    /// Checks a number that counts events: one that could overflow within a run is forged.
    fn number(&self, number: u64) -> Result<(), WireError> {
        within("number", "less than 2 to the 62nd", number, number < 1 << 62)
    }

    fn flow(&self, flow: FlowKey, number: u64) -> Result<(), WireError> {
        self.port(flow.port())?;
        if let FlowKey::Relay(_, origin) = flow {
            self.node(origin)?;
        }
        self.number(number)
    }

    fn lost(&self, first: u64, last: u64) -> Result<(), WireError> {
        self.number(last)?;
        within("first lost message", "at most the last one", first, first <= last)
    }

    fn once(&self, once: Once) -> Result<(), WireError> {
        self.port(once.port)?;
        self.number(once.serial)?;
        within("hop", "less than 2 to the 31st", u64::from(once.hop), once.hop < 1 << 31)
    }

    fn once_on_wire(&self, right: &OnceOnWire) -> Result<(), WireError> {
        self.once(right.once)?;
        self.node(right.at)
    }

    fn head(&self, head: &Head, released: &[u8]) -> Result<(), WireError> {
        let released = released.len();
        within("bytes released", "at most 1 MiB", released as u64, released <= RELEASED_BYTES_MAX)?;
        for (field, count) in [
            ("types of a message", head.types.len()),
            ("regions of a message", head.region_bytes.len()),
            ("rights of a message", head.rights.len()),
        ] {
            within(field, "at most 1024", count as u64, count <= ITEMS_MAX)?;
        }
        let typed: u64 =
            head.types.iter().map(|typed| u64::from(typed.element_bytes) * u64::from(typed.count)).sum();
        within("bytes of types", "those of the inline data", typed, typed == u64::from(head.inline_bytes))?;
        let bytes = head.data_bytes();
        within("bytes of a message", "countable", bytes.unwrap_or(u64::MAX), bytes.is_some())?;
        within("reply", "the first right", 0, !head.has_reply || !head.rights.is_empty())?;
        self.node(head.sender)?;
        head.rights.iter().try_for_each(|right| self.right(right))
    }

    fn right(&self, right: &RightOnWire) -> Result<(), WireError> {
        match right {
            RightOnWire::Dead => Ok(()),
            RightOnWire::Send { port, at, .. } => {
                self.port(*port)?;
                self.node(*at)
            }
            RightOnWire::SendOnce(right) => self.once_on_wire(right),
            RightOnWire::Receive(body) => self.body(body),
        }
    }

    fn body(&self, body: &BodyOnWire) -> Result<(), WireError> {
        self.port(body.port)?;
        self.number(body.next_once)?;
        self.number(body.journey)?;
        self.number(body.moves)?;
        within("queue limit", "1 or more", u64::from(body.limit), body.limit > 0)?;
        for holder in &body.holders {
            self.node(holder.node)?;
            [holder.version, holder.seen, holder.grants, holder.next, holder.taken]
                .into_iter()
                .try_for_each(|number| self.number(number))?;
        }
        let ascending = body.holders.is_sorted_by(|one, other| one.node < other.node);
        within("holders", "in ascending order", body.holders.len() as u64, ascending)?;
        let lost = body.lost.len();
        within("lost messages", "at most 1024", lost as u64, lost <= LOST_MAX)?;
        for (origin, first, last) in &body.lost {
            self.node(*origin)?;
            self.lost(*first, *last)?;
        }
        body.former.iter().try_for_each(|node| self.node(*node))?;
        for (serial, hop, node) in &body.onces {
            self.once(Once { port: body.port, serial: *serial, hop: *hop })?;
            self.node(*node)?;
        }
        body.no_senders.iter().try_for_each(|(_, right)| self.once_on_wire(right))?;
        body.port_destroyed.iter().try_for_each(|right| self.once_on_wire(right))?;
        let ascending = body.onces.is_sorted_by(|one, other| one.0 < other.0);
        within("send-once rights", "in ascending order", body.onces.len() as u64, ascending)
    }
}
