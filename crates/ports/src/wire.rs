//! Packets between engines: their form, and the checks on their fields.
//!
//! Every packet carries [`Word`]: reports which messages are in queues ([`Answered`]), and which were taken
//! off them ([`Acceptance`]). These are the paper's message-accepted lists (section 5.4). No thread waits for
//! them, so other messages carry them, as the paper proposes (section 7).

mod bounds;

use hiroba_base::NodeId;
use hiroba_wire::WireError;
use serde::{Deserialize, Serialize};

use crate::id::{Once, PortId};
use crate::message::DataType;

use self::bounds::{Bounds, within};

/// The maximum number of acceptances in one packet, and likewise of answers.
pub const WORDS_MAX: usize = 64;
/// The number of bytes that suffice for most packets without their data.
const SHORT_PACKET_BYTES: usize = 160;
/// The maximum number of types, of rights and of regions of a message.
pub const ITEMS_MAX: usize = 1024;
/// The maximum number of ports that a search for circles passes.
pub const JOURNEYS_MAX: usize = 4096;
/// The maximum number of runs of lost messages that are noted of a port.
pub const LOST_MAX: usize = 1024;
/// The maximum number of bytes of a sender's releases of shared memory.
pub const RELEASED_BYTES_MAX: usize = 1 << 20;

/// A report that the messages of a node to a port through `through` were taken off the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acceptance {
    /// The port.
    pub port: PortId,
    /// The number of the last of these messages.
    pub through: u64,
}

/// A report that the message of a request is in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    /// The flow of the request.
    pub flow: FlowKey,
    /// The number of the request.
    pub number: u64,
    /// The number of the port's moves by then.
    pub moves: u64,
}

/// Reports that packets carry, and that are handled before them. They may wait for a packet, since that does
/// no harm, but they arrive before any packet that is sent later.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Word {
    /// Requests whose messages are in queues.
    pub queued: Vec<Answered>,
    /// Messages that were taken off queues.
    pub accepted: Vec<Acceptance>,
}

/// A stream of messages from one node to one port, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FlowKey {
    /// Messages by send rights of the node.
    Own(PortId),
    /// Messages by send rights of that node that had come to the port before its receive right left the
    /// sender.
    Relay(PortId, NodeId),
    /// Messages by send-once rights that had come before.
    RelayOnce(PortId),
    /// The one message of a send-once right, by its number.
    Once(PortId, u64),
}

impl FlowKey {
    /// Returns its destination.
    pub fn port(self) -> PortId {
        match self {
            FlowKey::Own(port)
            | FlowKey::Relay(port, _)
            | FlowKey::RelayOnce(port)
            | FlowKey::Once(port, _) => port,
        }
    }

    /// Returns the node whose send rights a flow of node `sender` uses; its messages need room in the queue.
    pub fn origin(self, sender: NodeId) -> Option<NodeId> {
        match self {
            FlowKey::Own(_) => Some(sender),
            FlowKey::Relay(_, origin) => Some(origin),
            FlowKey::RelayOnce(_) | FlowKey::Once(..) => None,
        }
    }
}

/// A right on its way. `at` is the node that the sender takes for the one with the port's receive right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RightOnWire {
    /// The port is dead.
    Dead,
    /// A send right. `granted` means that the node of the receive right itself sent it, and already counts
    /// the receiver as a holder.
    Send {
        /// The port.
        port: PortId,
        /// The node of the port.
        at: NodeId,
        /// True if the receiver is registered.
        granted: bool,
    },
    /// A send-once right.
    SendOnce(OnceOnWire),
    /// A receive right with all state of the port.
    Receive(Box<BodyOnWire>),
}

/// A send-once right on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnceOnWire {
    /// The right, with the receiver's hop.
    pub once: Once,
    /// The node of the port.
    pub at: NodeId,
    /// True if the receiver is registered.
    pub granted: bool,
}

/// The state of a holder at the node of the receive right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderOnWire {
    /// The holder.
    pub node: NodeId,
    /// True if its last report said that it holds send rights.
    pub holds: bool,
    /// The number of that report.
    pub version: u64,
    /// The number of grants that it had seen then.
    pub seen: u64,
    /// The number of grants.
    pub grants: u64,
    /// The number of its next message.
    pub next: u64,
    /// The number before which all of its messages were taken off the queue.
    pub taken: u64,
}

/// A port whose receive right is in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journey {
    /// The port.
    pub port: PortId,
    /// The number of messages that its receive right was put into.
    pub number: u64,
}

/// A port without its messages, which follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BodyOnWire {
    /// The port.
    pub port: PortId,
    /// The maximum number of messages in its queue.
    pub limit: u32,
    /// The make-send count.
    pub make_send: u32,
    /// The number of the next send-once right.
    pub next_once: u64,
    /// The number of messages that the receive right was put into.
    pub journey: u64,
    /// The number of its moves between nodes.
    pub moves: u64,
    /// The nodes that have, or had, send rights, in ascending order.
    pub holders: Vec<HolderOnWire>,
    /// Messages that were lost with nodes, and are not waited for: origin, first and last number.
    pub lost: Vec<(NodeId, u64, u64)>,
    /// Send-once rights that are out: number, hop and node, ascending.
    pub onces: Vec<(u64, u32, NodeId)>,
    /// Nodes where the receive right has been, in ascending order.
    pub former: Vec<NodeId>,
    /// The requested no-senders notification: the least make-send count, and the right that it uses.
    pub no_senders: Option<(u32, OnceOnWire)>,
    /// The right by which the port is given back when it is destroyed.
    pub port_destroyed: Option<OnceOnWire>,
}

/// A message without its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The id that the program has given it.
    pub id: u32,
    /// Types of the inline data.
    pub types: Vec<DataType>,
    /// The number of bytes of inline data.
    pub inline_bytes: u32,
    /// The number of bytes of each region.
    pub region_bytes: Vec<u64>,
    /// True if the first right is the reply's.
    pub has_reply: bool,
    /// The rights that it takes along.
    pub rights: Vec<RightOnWire>,
    /// The node whose thread sent it.
    pub sender: NodeId,
}

impl Head {
    /// Returns the number of bytes of its data, or `None` if that overflows.
    pub fn data_bytes(&self) -> Option<u64> {
        self.region_bytes.iter().try_fold(u64::from(self.inline_bytes), |sum, bytes| sum.checked_add(*bytes))
    }
}

/// The content of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Load<'a> {
    /// A small message as a whole.
    Whole {
        /// The message without its data.
        head: Head,
        /// The sender's releases of shared memory.
        #[serde(borrow, with = "serde_bytes")]
        released: &'a [u8],
        /// Inline data and regions, one after the other.
        #[serde(borrow, with = "serde_bytes")]
        data: &'a [u8],
    },
    /// A request for memory.
    Bytes {
        /// The number of bytes of the message's data.
        bytes: u64,
        /// The bytes of the landing pool that the regions would take, if they shall go there; otherwise 0.
        landing_bytes: u64,
    },
}

/// The messages between engines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Packet<'a> {
    /// Only reports, which would otherwise wait too long.
    WordAlone,
    /// To the port's node: take a message. Answered by `Wait`, `Permit`, `Denied` or `Dead`, or by
    /// [`Answered`] in the word of some packet.
    Request {
        /// The right that it uses.
        flow: FlowKey,
        /// The message's number in its flow.
        number: u64,
        /// For a send-once right: the number of nodes that had it.
        hop: u32,
        /// The message, or its size.
        #[serde(borrow)]
        load: Load<'a>,
    },
    /// The message was not kept for now. `Ready` or `Moved` follows.
    Wait {
        /// The flow of the request.
        flow: FlowKey,
        /// The number of the request.
        number: u64,
        /// The number of the port's moves when it was at the sender, now or before.
        moves: u64,
    },
    /// There is room: repeat the request.
    Ready {
        /// The flow of the request.
        flow: FlowKey,
    },
    /// Memory for the message is reserved.
    Permit {
        /// The flow of the request.
        flow: FlowKey,
        /// The number of the request.
        number: u64,
        /// The offset in the landing pool at which the regions' places begin. They are the sender's until it
        /// says that it has put the regions there (`Begin`), or that it will not (`GaveUp`).
        landing: Option<u64>,
    },
    /// The sender will not send a message that was permitted, and does not write to the landing pool for it.
    GaveUp {
        /// The flow of the request.
        flow: FlowKey,
        /// The number of the request.
        number: u64,
    },
    /// The head of a long message, before its data.
    Begin {
        /// The flow of the request.
        flow: FlowKey,
        /// The number of the request.
        number: u64,
        /// True if the regions are in the landing pool, so that only inline data follow.
        landed: bool,
        /// The message without its data.
        head: Head,
        /// The sender's releases of shared memory.
        #[serde(borrow, with = "serde_bytes")]
        released: &'a [u8],
    },
    /// The next piece of a long message's data.
    Data {
        /// The flow of the request.
        flow: FlowKey,
        /// The number of the request.
        number: u64,
        /// The offset of the piece.
        offset: u64,
        /// The piece.
        #[serde(borrow, with = "serde_bytes")]
        bytes: &'a [u8],
    },
    /// The data before `through` have come: more may follow.
    More {
        /// The flow of the request.
        flow: FlowKey,
        /// The number of the request.
        number: u64,
        /// The number of bytes that have come.
        through: u64,
    },
    /// The sender has no such right: the message was not taken.
    Denied {
        /// The flow of the request.
        flow: FlowKey,
        /// The number of the request.
        number: u64,
    },
    /// To all nodes, while a node is dying that has had the port's receive right: the right is at `to` now,
    /// or that node knows more.
    Relocated {
        /// The port.
        port: PortId,
        /// The node.
        to: NodeId,
        /// At least the number of its moves when it came there.
        moves: u64,
    },
    /// The receive right is elsewhere: send the request there.
    Moved {
        /// The port.
        port: PortId,
        /// The node.
        to: NodeId,
        /// The number of its moves when it came there, as far as the sender knows: an answer that tells of
        /// fewer is out of date.
        moves: u64,
    },
    /// The port is dead.
    Dead {
        /// The port.
        port: PortId,
    },
    /// To the node that a receive right has left: the right has arrived.
    Taken {
        /// The port.
        port: PortId,
        /// The number of its moves by then.
        moves: u64,
    },
    /// To the port's node: the report whether the sender holds send rights.
    Report {
        /// The port.
        port: PortId,
        /// True if the sender holds send rights.
        holds: bool,
        /// The number of grants that it has seen.
        seen: u64,
        /// The number of the report; later reports have greater numbers.
        version: u64,
    },
    /// The report has been received.
    Reported {
        /// The port.
        port: PortId,
        /// The number of the report.
        version: u64,
    },
    /// To the node that sent a send right on: the receiver is registered as a holder.
    Unpin {
        /// The port.
        port: PortId,
    },
    /// To the port's node: the holder of a send-once right that came from a third node, or that it had when
    /// it died.
    Claim {
        /// The right.
        once: Once,
        /// The node that has it.
        holder: NodeId,
    },
    /// The claim has been received.
    Claimed {
        /// The right.
        once: Once,
    },
    /// To the node that sent a send-once right on: the receiver's claim has been received.
    UnpinOnce {
        /// The right.
        once: Once,
    },
    /// To the port's node: these messages of the sender were lost with a node.
    Skip {
        /// The port.
        port: PortId,
        /// The number of the first of them.
        first: u64,
        /// The number of the last of them.
        last: u64,
    },
    /// To the origin of a message: the message was relayed to that node.
    Relayed {
        /// The port.
        port: PortId,
        /// The message's number in the flow of its origin.
        number: u64,
        /// The node that has it.
        at: NodeId,
        /// The number of the port's moves when it came there: later reports have greater numbers.
        moves: u64,
    },
    /// The sender has a message of a node that has died. Further ones follow, and then `Told`.
    Survives {
        /// The port that it is for.
        port: PortId,
        /// The dead node.
        origin: NodeId,
        /// The message's number.
        number: u64,
    },
    /// The sender knows of a node's death, and has reported where ports are that have been on it.
    Told {
        /// The dying node.
        node: NodeId,
    },
    /// The sender knows of a node's death, and its later messages no longer depend on that node's.
    Mourned {
        /// The dead node.
        node: NodeId,
    },
    /// To the port's node, or to one that knows more: continue a search for receive rights that are in each
    /// other's queues.
    Circle {
        /// The port that the search has reached.
        port: PortId,
        /// The ports that it has passed.
        path: Vec<Journey>,
        /// The number of them that it has passed again.
        again: u32,
    },
}

/// A packet with its reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope<'a> {
    /// The reports, to be handled first.
    pub word: Word,
    /// The packet.
    #[serde(borrow)]
    pub packet: Packet<'a>,
}

impl<'a> Envelope<'a> {
    /// Returns its bytes.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_into(Vec::with_capacity(SHORT_PACKET_BYTES))
    }

    fn encode_into(&self, room: Vec<u8>) -> Vec<u8> {
        encoded(self, room)
    }

    /// Returns its bytes without the data at its end, which it does not contain yet. Leaves room for the
    /// number of bytes that follow.
    ///
    /// # Panics
    ///
    /// If the packet does not end in data, or contains some.
    pub fn encode_before_data(&self, bytes: usize, room_bytes: usize) -> Vec<u8> {
        let ends_in_none = match &self.packet {
            Packet::Request { load: Load::Whole { data, .. }, .. } => data.is_empty(),
            Packet::Data { bytes, .. } => bytes.is_empty(),
            _ => false,
        };
        assert!(ends_in_none, "expected a packet that ends in no data");
        let mut encoded = self.encode_into(Vec::with_capacity(SHORT_PACKET_BYTES + room_bytes));
        // Data are encoded as their length, followed by their bytes.
        assert_eq!(encoded.pop(), Some(0), "the length of no data");
        self::encoded(&bytes, encoded)
    }

    /// Decodes and checks bytes from another node of a job of `nodes`. Refuses bytes after the packet.
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

/// Returns the bytes of a packet that was encoded [before its data](Envelope::encode_before_data), as if
/// there were none.
///
/// # Errors
///
/// A packet that does not say that `data_bytes` bytes of data follow.
pub(crate) fn head_before_data(head: &[u8], data_bytes: usize) -> Result<Vec<u8>, WireError> {
    let length = encoded(&data_bytes, Vec::new());
    let said = head.strip_suffix(length.as_slice());
    within("bytes behind a packet", "as many as it says", data_bytes as u64, said.is_some())?;
    let mut bytes = said.unwrap_or_default().to_vec();
    bytes.push(0);
    Ok(bytes)
}

/// Appends the bytes of a value.
fn encoded(value: &impl Serialize, room: Vec<u8>) -> Vec<u8> {
    let done = postcard::serialize_with_flavor(value, Appending(room));
    done.expect("packets hold nothing that cannot be encoded")
}

/// Appends bytes in one piece where postcard's own flavour for collections appends each by itself.
struct Appending(Vec<u8>);

impl postcard::ser_flavors::Flavor for Appending {
    type Output = Vec<u8>;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        // Most numbers have one byte.
        match bytes {
            [byte] => self.0.push(*byte),
            _ => self.0.extend_from_slice(bytes),
        }
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.0)
    }
}
