//! What a node knows of a port of which it holds something, and what it sends there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hiroba_base::NodeId;

use crate::body::{Body, Parcel};
use crate::effect::Patience;
use crate::id::{Name, Once, PortId, Ticket};
use crate::message::{Message, RightToSend};

/// Where a port's receive right is.
#[derive(Debug)]
pub(crate) enum Place {
    /// Here, in the table of names or in a message.
    Here(Box<Body>),
    /// On its way to that node, which has not said yet that it has it. Who has asked meanwhile is told then.
    Leaving { to: NodeId, asking: BTreeSet<NodeId> },
    /// At that node, or that node knows more.
    At(NodeId),
}

/// What this node has told the port's node of its send rights.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Report {
    pub(crate) holds: bool,
    pub(crate) seen: u64,
    pub(crate) version: u64,
    pub(crate) acknowledged: u64,
}

/// What a node knows of a port.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) place: Place,
    /// Nodes where the receive right has been, as far as it has been here.
    pub(crate) former: BTreeSet<NodeId>,
    /// Send rights in messages in the keeping of this node.
    pub(crate) carried: u32,
    /// Send rights that were sent on, by receivers that are not registered yet.
    pub(crate) pins: BTreeMap<NodeId, u32>,
    /// Grants that have come.
    pub(crate) seen: u64,
    pub(crate) report: Report,
    /// Who is to hear, once this node is registered, that it is: once for each right.
    pub(crate) unpins: Vec<NodeId>,
    /// Claims of send-once rights that are not acknowledged: who has the right, and from whom it came.
    pub(crate) claims: BTreeMap<Once, (NodeId, Option<NodeId>)>,
    /// Send-once rights that were sent on, by receivers whose claims have not been heard yet.
    pub(crate) pinned_onces: BTreeSet<(NodeId, Once)>,
}

impl Known {
    pub(crate) fn new(place: Place) -> Known {
        Known {
            place,
            former: BTreeSet::new(),
            carried: 0,
            pins: BTreeMap::new(),
            seen: 0,
            report: Report::default(),
            unpins: Vec::new(),
            claims: BTreeMap::new(),
            pinned_onces: BTreeSet::new(),
        }
    }

    pub(crate) fn body(&self) -> Option<&Body> {
        match &self.place {
            Place::Here(body) => Some(body),
            Place::Leaving { .. } | Place::At(_) => None,
        }
    }

    pub(crate) fn body_mut(&mut self) -> Option<&mut Body> {
        match &mut self.place {
            Place::Here(body) => Some(body),
            Place::Leaving { .. } | Place::At(_) => None,
        }
    }
}

/// Where a message on its way out stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It has not been asked for room for.
    Unsent,
    /// A request is out to that node.
    Requested(NodeId),
    /// That node has set memory aside; bytes that have gone, and bytes that have come.
    Permitted { at: NodeId, begun: bool, sent: u64, came: u64 },
    /// It is in the queue on that node, or was lost with it.
    Queued(NodeId),
}

/// A message on its way out.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) number: u64,
    pub(crate) origin: NodeId,
    pub(crate) sequence: u64,
    pub(crate) stage: Stage,
    /// Gone once it is in the queue.
    pub(crate) parcel: Option<Parcel>,
    /// How its rights went, one by one: with the request that is out, or with the long message's head.
    pub(crate) ways: Vec<Way>,
    /// Of a relay: the message had come by a send-once right.
    pub(crate) by_once: bool,
}

/// How a right has gone with a message that may come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Nothing was noted.
    Dead,
    /// The port is here, and its body counts the grant.
    GrantedSend(PortId),
    /// The same; the right as it travels.
    GrantedOnce(Once),
    /// The right is pinned until the receiver is registered.
    PinnedSend(PortId),
    /// The same; the right as it travels.
    PinnedOnce(Once),
    /// The whole port went.
    Receive,
}

/// A thread that waits for room. The message's rights stay with the names until there is some.
#[derive(Debug)]
pub(crate) struct Blocked {
    pub(crate) ticket: Ticket,
    pub(crate) to: RightToSend,
    pub(crate) message: Message,
    /// What the caller receives from next.
    pub(crate) then: Option<Then>,
}

/// What an RPC goes on with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Then {
    pub(crate) from: Name,
    pub(crate) bytes_max: Option<u64>,
    pub(crate) patience: Patience,
}

/// Messages on their way to a port by one kind of right, in order.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    pub(crate) items: VecDeque<Item>,
    pub(crate) next_number: u64,
    /// The port's node has said that there is no room now.
    pub(crate) waiting: bool,
    /// Of a send-once right: how many nodes had it.
    pub(crate) hop: u32,
    /// Threads of this node that wait for room.
    pub(crate) blocked: VecDeque<Blocked>,
    /// Who is told when there is room again, about which name.
    pub(crate) notify: Option<(Name, Once)>,
}
