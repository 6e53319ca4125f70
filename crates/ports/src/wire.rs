//! Packets between engines: their form, and what their fields are held to.
//!
//! Every packet bears word of messages that were taken off queues ([`Acceptance`]): the paper's
//! message-accepted lists (section 5.4), which it wants to see ride on other messages (section 7).

use hiroba_base::NodeId;
use hiroba_wire::WireError;
use serde::{Deserialize, Serialize};

use crate::id::{Once, PortId};
use crate::message::DataType;

/// Acceptances that one packet bears at most.
pub const ACCEPTANCES_MAX: usize = 64;
/// Types, rights and regions of a message: the most of each.
pub const ITEMS_MAX: usize = 1024;
/// Ports that a search for circles passes at most.
pub const JOURNEYS_MAX: usize = 4096;
/// What a sender has released of shared memory: the most bytes.
pub const RELEASED_BYTES_MAX: usize = 1 << 20;

/// Of the messages that a node has sent to a port, those through `through` were taken off the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acceptance {
    /// The port.
    pub port: PortId,
    /// The number of the last of them.
    pub through: u64,
}

/// A stream of messages from one node to one port, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FlowKey {
    /// By send rights of the node's.
    Own(PortId),
    /// What had come to the port before its receive right left the node.
    Relay(PortId),
    /// The one message of a send-once right, by its number.
    Once(PortId, u64),
}

impl FlowKey {
    /// Where it goes.
    pub fn port(self) -> PortId {
        match self {
            FlowKey::Own(port) | FlowKey::Relay(port) | FlowKey::Once(port, _) => port,
        }
    }
}

/// A right on its way. `at` is where the sender believes the port's receive right to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RightOnWire {
    /// The port is dead.
    Dead,
    /// A send right. `granted`: by the node of the receive right itself, which counts the receiver as a
    /// holder already.
    Send {
        /// The port.
        port: PortId,
        /// Where it is.
        at: NodeId,
        /// Whether the receiver is registered.
        granted: bool,
    },
    /// A send-once right.
    SendOnce(OnceOnWire),
    /// A receive right, and all that is known of the port.
    Receive(Box<BodyOnWire>),
}

/// A send-once right on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnceOnWire {
    /// The right, its hop that of the receiver.
    pub once: Once,
    /// Where the port is.
    pub at: NodeId,
    /// Whether the receiver is registered.
    pub granted: bool,
}

/// What the node of a receive right knows of a holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderOnWire {
    /// Who.
    pub node: NodeId,
    /// Whether its last report said that it holds send rights.
    pub holds: bool,
    /// The number of that report.
    pub version: u64,
    /// How many grants it had seen then.
    pub seen: u64,
    /// How many grants there were.
    pub grants: u64,
    /// The number of its next message.
    pub next: u64,
    /// All of its messages before this one were taken off the queue.
    pub taken: u64,
}

/// A port whose receive right is in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journey {
    /// The port.
    pub port: PortId,
    /// How many messages its receive right was put into.
    pub number: u64,
}

/// A port without its messages, which follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BodyOnWire {
    /// The port.
    pub port: PortId,
    /// How many messages its queue takes.
    pub limit: u32,
    /// The make-send count.
    pub make_send: u32,
    /// The number of the next send-once right.
    pub next_once: u64,
    /// How many messages the receive right was put into.
    pub journey: u64,
    /// The nodes that have, or had, send rights, in ascending order.
    pub holders: Vec<HolderOnWire>,
    /// Send-once rights that are out: number, hop and node, ascending.
    pub onces: Vec<(u64, u32, NodeId)>,
    /// Nodes where the receive right has been, in ascending order.
    pub former: Vec<NodeId>,
    /// Who is to be told of no senders: the least make-send count, and by what.
    pub no_senders: Option<(u32, OnceOnWire)>,
    /// Who gets the right back when it is destroyed.
    pub port_destroyed: Option<OnceOnWire>,
}

/// A message without its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// As the program numbers it.
    pub id: u32,
    /// Types of the inline data.
    pub types: Vec<DataType>,
    /// Bytes of inline data.
    pub inline_bytes: u32,
    /// Bytes of each region.
    pub region_bytes: Vec<u64>,
    /// Whether the first right is the reply's.
    pub has_reply: bool,
    /// Rights that go along.
    pub rights: Vec<RightOnWire>,
    /// The node whose thread sent it.
    pub sender: NodeId,
}

impl Head {
    /// Bytes of its data; `None` when they are beyond counting.
    pub fn data_bytes(&self) -> Option<u64> {
        self.region_bytes.iter().try_fold(u64::from(self.inline_bytes), |sum, bytes| sum.checked_add(*bytes))
    }
}

/// What a request brings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Load<'a> {
    /// A small message, all of it.
    Whole {
        /// What the message is.
        head: Head,
        /// What the sender has released of shared memory.
        #[serde(borrow, with = "serde_bytes")]
        released: &'a [u8],
        /// Inline data and regions, one after the other.
        #[serde(borrow, with = "serde_bytes")]
        data: &'a [u8],
    },
    /// Memory for this many bytes is asked for.
    Bytes(u64),
}

/// What engines say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Packet<'a> {
    /// Nothing but acceptances.
    Acceptances,
    /// To the port's node: take a message. Answered by `Queued`, `Wait`, `Permit`, `Moved`, `Denied` or
    /// `Dead`.
    Request {
        /// By what right.
        flow: FlowKey,
        /// The message's number in its flow.
        number: u64,
        /// Whose message it is: the sender, unless it relays.
        origin: NodeId,
        /// Its number among those of its origin to the port.
        sequence: u64,
        /// Of a send-once right: how many nodes had it.
        hop: u32,
        /// The message, or its size.
        #[serde(borrow)]
        load: Load<'a>,
    },
    /// The message is in the queue.
    Queued {
        /// Of the request.
        flow: FlowKey,
        /// Of the request.
        number: u64,
    },
    /// Not now: the message was not kept. `Ready` or `Moved` follows.
    Wait {
        /// Of the request.
        flow: FlowKey,
        /// Of the request.
        number: u64,
    },
    /// There is room: ask again.
    Ready {
        /// Of the request.
        flow: FlowKey,
    },
    /// Memory for the message is set aside.
    Permit {
        /// Of the request.
        flow: FlowKey,
        /// Of the request.
        number: u64,
    },
    /// The head of a long message, before its data.
    Begin {
        /// Of the request.
        flow: FlowKey,
        /// Of the request.
        number: u64,
        /// What the message is.
        head: Head,
        /// What the sender has released of shared memory.
        #[serde(borrow, with = "serde_bytes")]
        released: &'a [u8],
    },
    /// The next piece of a long message's data.
    Data {
        /// Of the request.
        flow: FlowKey,
        /// Of the request.
        number: u64,
        /// Where the piece begins.
        offset: u64,
        /// The piece.
        #[serde(borrow, with = "serde_bytes")]
        bytes: &'a [u8],
    },
    /// The data before this have come: more may follow.
    More {
        /// Of the request.
        flow: FlowKey,
        /// Of the request.
        number: u64,
        /// How many bytes.
        through: u64,
    },
    /// The sender has no such right: the message was not taken.
    Denied {
        /// Of the request.
        flow: FlowKey,
        /// Of the request.
        number: u64,
    },
    /// To all nodes, while a node is dying that has had the port's receive right: it is at `to` now, or that
    /// node knows more.
    Relocated {
        /// The port.
        port: PortId,
        /// Where.
        to: NodeId,
    },
    /// The receive right is elsewhere: ask there.
    Moved {
        /// The port.
        port: PortId,
        /// Where.
        to: NodeId,
    },
    /// The port is dead.
    Dead {
        /// The port.
        port: PortId,
    },
    /// To the node that a receive right has left: it has come.
    Taken {
        /// The port.
        port: PortId,
    },
    /// To the port's node: whether the sender holds send rights.
    Report {
        /// The port.
        port: PortId,
        /// Whether it does.
        holds: bool,
        /// How many grants it has seen.
        seen: u64,
        /// Later reports have greater numbers.
        version: u64,
    },
    /// The report has been heard.
    Reported {
        /// The port.
        port: PortId,
        /// Its number.
        version: u64,
    },
    /// To who sent a send right on: the receiver is registered as a holder.
    Unpin {
        /// The port.
        port: PortId,
    },
    /// To the port's node: who has a send-once right that came from a third node, or had it when it died.
    Claim {
        /// The right.
        once: Once,
        /// Who has it.
        holder: NodeId,
    },
    /// The claim has been heard.
    Claimed {
        /// The right.
        once: Once,
    },
    /// To who sent a send-once right on: the receiver's claim has been heard.
    UnpinOnce {
        /// The right.
        once: Once,
    },
    /// To the port's node: of the sender's messages, those through this number that have not come were lost
    /// with a node.
    Skip {
        /// The port.
        port: PortId,
        /// The last of them.
        through: u64,
    },
    /// To the origin of a message: it was relayed to that node.
    Relayed {
        /// The port.
        port: PortId,
        /// The message's number among those of its origin.
        sequence: u64,
        /// Where it is.
        at: NodeId,
    },
    /// The sender has heard of a node's death, and nothing that comes from it hereafter is owed to that node.
    Mourned {
        /// The dead node.
        node: NodeId,
    },
    /// To the port's node, or who knows more: go on with a search for receive rights that are in each other's
    /// queues.
    Circle {
        /// Where the search is.
        port: PortId,
        /// The ports that it has passed.
        path: Vec<Journey>,
        /// How many of them it has passed again.
        again: u32,
    },
}

/// What travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope<'a> {
    /// Messages that were taken off queues.
    pub accepted: Vec<Acceptance>,
    /// What is said besides.
    #[serde(borrow)]
    pub packet: Packet<'a>,
}

impl<'a> Envelope<'a> {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("packets hold nothing that cannot be encoded")
    }

    /// Decodes and checks what came from another node of a job of `nodes`. Bytes after the packet are
    /// refused.
    ///
    /// # Errors
    ///
    /// Bytes that do not decode, or fields out of their bounds.
    pub fn decode(bytes: &'a [u8], nodes: u16) -> Result<Envelope<'a>, WireError> {
        let malformed =
            |reason| WireError::Malformed { expected: "packet of ports", got_bytes: bytes.len(), reason };
        let (envelope, rest) = postcard::take_from_bytes::<Envelope<'a>>(bytes).map_err(malformed)?;
        within("bytes behind a packet", "none", rest.len() as u64, rest.is_empty())?;
        let limits = Bounds { nodes };
        limits.envelope(&envelope)?;
        Ok(envelope)
    }
}

fn within(field: &'static str, expected: &'static str, got: u64, good: bool) -> Result<(), WireError> {
    if good { Ok(()) } else { Err(WireError::OutOfBounds { field, expected, got }) }
}

/// What bounds the fields.
struct Bounds {
    nodes: u16,
}

impl Bounds {
    fn envelope(&self, envelope: &Envelope<'_>) -> Result<(), WireError> {
        let count = envelope.accepted.len();
        within("acceptances", "at most 64", count as u64, count <= ACCEPTANCES_MAX)?;
        envelope.accepted.iter().try_for_each(|accepted| {
            self.port(accepted.port)?;
            self.number(accepted.through)
        })?;
        self.packet(&envelope.packet)
    }

    fn packet(&self, packet: &Packet<'_>) -> Result<(), WireError> {
        match packet {
            Packet::Acceptances => Ok(()),
            Packet::Request { flow, number, origin, sequence, load, .. } => {
                self.flow(*flow, *number)?;
                self.node(*origin)?;
                self.number(*sequence)?;
                match load {
                    Load::Bytes(_) => Ok(()),
                    Load::Whole { head, released, data } => {
                        self.head(head, released)?;
                        let good = head.data_bytes() == Some(data.len() as u64);
                        within("bytes of a message", "as many as its head says", data.len() as u64, good)
                    }
                }
            }
            Packet::Queued { flow, number }
            | Packet::Wait { flow, number }
            | Packet::Permit { flow, number }
            | Packet::Data { flow, number, .. }
            | Packet::More { flow, number, .. }
            | Packet::Denied { flow, number } => self.flow(*flow, *number),
            Packet::Begin { flow, number, head, released } => {
                self.flow(*flow, *number)?;
                self.head(head, released)
            }
            Packet::Ready { flow } => self.port(flow.port()),
            Packet::Moved { port, to } | Packet::Relocated { port, to } => {
                self.port(*port)?;
                self.node(*to)
            }
            Packet::Report { port, version, seen, .. } => {
                self.port(*port)?;
                self.number(*seen)?;
                self.number(*version)
            }
            Packet::Dead { port }
            | Packet::Taken { port }
            | Packet::Reported { port, .. }
            | Packet::Unpin { port } => self.port(*port),
            Packet::Skip { port, through } => {
                self.port(*port)?;
                self.number(*through)
            }
            Packet::Relayed { port, sequence, at } => {
                self.port(*port)?;
                self.number(*sequence)?;
                self.node(*at)
            }
            Packet::Claim { once, holder } => {
                self.node(*holder)?;
                self.once(*once)
            }
            Packet::Claimed { once } | Packet::UnpinOnce { once } => self.once(*once),
            Packet::Mourned { node } => self.node(*node),
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

    /// Numbers that count events: one that could overflow within a run is a lie.
    fn number(&self, number: u64) -> Result<(), WireError> {
        within("number", "less than 2 to the 62nd", number, number < 1 << 62)
    }

    fn flow(&self, flow: FlowKey, number: u64) -> Result<(), WireError> {
        self.port(flow.port())?;
        self.number(number)
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
        within("queue limit", "1 or more", u64::from(body.limit), body.limit > 0)?;
        for holder in &body.holders {
            self.node(holder.node)?;
            [holder.version, holder.seen, holder.grants, holder.next, holder.taken]
                .into_iter()
                .try_for_each(|number| self.number(number))?;
        }
        let ascending = body.holders.is_sorted_by(|one, other| one.node < other.node);
        within("holders", "in ascending order", body.holders.len() as u64, ascending)?;
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
