//! The state of a port to which a node has rights, and the messages that the node sends there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hiroba_base::NodeId;

use crate::body::{Body, Parcel};
use crate::effect::Patience;
use crate::id::{Name, Once, PortId, Ticket};
use crate::message::{Message, RightToSend};
use crate::wire::FlowKey;

/// The place of a port's receive right.
#[derive(Debug)]
pub(crate) enum Place {
    /// Here, in the table of names or in a message.
    Here(Box<Body>),
    /// On its way to that node, which has not confirmed it yet. Nodes that have asked meanwhile are informed
    /// then.
    Leaving { to: NodeId, asking: BTreeSet<NodeId> },
    /// At that node, or that node knows a later place.
    At(NodeId),
}

/// The last report of this node's send rights to the port's node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Report {
    pub(crate) holds: bool,
    pub(crate) seen: u64,
    pub(crate) version: u64,
    pub(crate) acknowledged: u64,
}

/// The state of a port on a node.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) place: Place,
    /// Nodes where the receive right has been, as known when it was last here.
    pub(crate) former: BTreeSet<NodeId>,
    /// The number of its moves when it was last here.
    pub(crate) moves: u64,
    /// The number of its moves when it came to its place, as far as this node knows.
    pub(crate) place_moves: u64,
    /// Nodes that have asked for the place and were told it. If the port turns out to be dead, they are told
    /// that, too: a right may bring a port to a node after the word of its death.
    pub(crate) told: BTreeSet<NodeId>,
    /// The number of send rights in messages that this node holds.
    pub(crate) carried: u32,
    /// The numbers of send rights that were sent on to receivers that are not registered yet.
    pub(crate) pins: BTreeMap<NodeId, u32>,
    /// The number of grants that have come.
    pub(crate) seen: u64,
    pub(crate) report: Report,
    /// The nodes to inform once this node is registered, once for each right.
    pub(crate) unpins: Vec<NodeId>,
    /// Claims of send-once rights that are not acknowledged: the node that has the right, and the node that
    /// it came from.
    pub(crate) claims: BTreeMap<Once, (NodeId, Option<NodeId>)>,
    /// Send-once rights that were sent on to receivers whose claims have not been received yet.
    pub(crate) pinned_onces: BTreeSet<(NodeId, Once)>,
}

impl Known {
    pub(crate) fn new(place: Place) -> Known {
        Known {
            place,
            former: BTreeSet::new(),
            moves: 0,
            place_moves: 0,
            told: BTreeSet::new(),
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

/// The stage of a message on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Room for it has not been requested.
    Unsent,
    /// A request is out to that node.
    Requested(NodeId),
    /// That node has reserved memory: for the regions in its landing pool, at that offset, if it has said so.
    /// Numbers of bytes that were sent in pieces, and that have come.
    Permitted { at: NodeId, landing: Option<u64>, begun: bool, sent: u64, came: u64 },
    /// It is in the queue on that node, or was lost with it.
    Queued(NodeId),
}

/// A message on its way out.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) number: u64,
    pub(crate) stage: Stage,
    /// The message, or `None` once it is in the queue.
    pub(crate) parcel: Option<Parcel>,
    /// The last reported node where it was queued, with the number of the port's moves by then: reports of
    /// that take several ways.
    pub(crate) at: Option<(u64, NodeId)>,
    /// The way of each of its rights: with the request that is out, or with the long message's head. Behind
    /// the way of a receive right are those of the rights that travel with the port.
    pub(crate) ways: Vec<Way>,
}

impl Item {
    /// Returns a message that has not been sent.
    pub(crate) fn new(number: u64, parcel: Parcel) -> Item {
        let (stage, parcel) = (Stage::Unsent, Some(parcel));
        Item { number, stage, parcel, at: None, ways: Vec::new() }
    }

    /// Returns an entry for a message of this node that was in the port's queue here, and travels by a relay.
    pub(crate) fn queued(number: u64, me: NodeId) -> Item {
        let (stage, parcel) = (Stage::Queued(me), None);
        Item { number, stage, parcel, at: None, ways: Vec::new() }
    }

    /// Notes a report where it is queued. Returns the node of the latest report.
    pub(crate) fn note_queued(&mut self, at: NodeId, moves: u64) -> NodeId {
        let latest = self.at.filter(|(known, _)| *known > moves).unwrap_or((moves, at));
        self.at = Some(latest);
        latest.1
    }
}

/// A small message of a port that has died, whose request has not been answered: the node that was asked may
/// have taken its rights, or not.
#[derive(Debug)]
pub(crate) struct Orphan {
    pub(crate) asked: NodeId,
    pub(crate) flow: FlowKey,
    pub(crate) number: u64,
    pub(crate) parcel: Option<Parcel>,
    pub(crate) ways: Vec<Way>,
}

/// The way in which a right was sent with a message that may come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// No state was recorded.
    Dead,
    /// The port is here, and its body counts the grant.
    GrantedSend(PortId),
    /// As for a send right; the right as it travels.
    GrantedOnce(Once),
    /// The right is pinned until the receiver is registered.
    PinnedSend(PortId),
    /// As for a send right; the right as it travels.
    PinnedOnce(Once),
    /// The whole port was sent.
    Receive,
}

/// A thread that waits for room. The message's rights stay with the names until there is room.
#[derive(Debug)]
pub(crate) struct Blocked {
    pub(crate) ticket: Ticket,
    pub(crate) to: RightToSend,
    pub(crate) message: Message,
    /// The receive part of the call, which follows.
    pub(crate) then: Option<Then>,
}

/// The receive part of an RPC.
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
    /// True if the port's node has answered that there is no room now.
    pub(crate) waiting: bool,
    /// For a send-once right: the number of nodes that had it.
    pub(crate) hop: u32,
    /// Threads of this node that wait for room.
    pub(crate) blocked: VecDeque<Blocked>,
    /// The notification when there is room again: the name that has room, and the right to use.
    pub(crate) notify: Option<(Name, Once)>,
}

impl Flow {
    /// Returns true if no thread waits for room or its notification.
    pub(crate) fn is_quiet(&self) -> bool {
        self.blocked.is_empty() && self.notify.is_none()
    }

    /// Returns true if nothing would be lost with it. Numbers continue while the port is elsewhere.
    pub(crate) fn is_unused(&self) -> bool {
        self.next_number == 0 && self.items.is_empty() && self.is_quiet()
    }
}
