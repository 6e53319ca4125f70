//! A port on the node with its receive right: queue, holders, and requests that wait for room.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use hiroba_base::NodeId;

use crate::id::{Once, PortId};
use crate::message::DataType;
use crate::region::Region;
use crate::wire::FlowKey;

/// A right in a message that the engine holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldRight {
    Dead,
    Send(PortId),
    Once(Once),
    /// A receive right, and the number of its present journey.
    Receive(PortId, u64),
}

/// Inline data of a message that the engine holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Inline {
    Own(Vec<u8>),
    /// Shared with pieces on their way to the host, as regions are.
    Shared(Arc<Region>),
}

impl Inline {
    /// Returns the data of a message that is arriving.
    pub(crate) fn own(&mut self) -> &mut Vec<u8> {
        match self {
            Inline::Own(bytes) => bytes,
            Inline::Shared(_) => unreachable!("what is coming is nobody else's"),
        }
    }

    /// Shares the data. Small messages, which are sent whole, do without the allocation.
    pub(crate) fn share(&mut self) -> Arc<Region> {
        if let Inline::Own(bytes) = self {
            *self = Inline::Shared(Arc::new(core::mem::take(bytes).into()));
        }
        match self {
            Inline::Shared(bytes) => bytes.clone(),
            Inline::Own(_) => unreachable!("it was shared just now"),
        }
    }

    pub(crate) fn take(&mut self) -> Vec<u8> {
        match core::mem::replace(self, Inline::Own(Vec::new())) {
            Inline::Own(bytes) => bytes,
            Inline::Shared(bytes) => own(bytes).into_vec(),
        }
    }
}

impl core::ops::Deref for Inline {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Inline::Own(bytes) => bytes,
            Inline::Shared(bytes) => bytes.own().expect("inline data do not land"),
        }
    }
}

/// Returns data of a message that is given to the program: no piece of what has come, or was sent here, is on
/// its way out.
pub(crate) fn own(region: Arc<Region>) -> Region {
    Arc::try_unwrap(region).unwrap_or_else(|region| (*region).clone())
}

/// A message that the engine holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parcel {
    pub(crate) id: u32,
    pub(crate) types: Vec<DataType>,
    pub(crate) inline: Inline,
    /// Data that are shared with pieces on their way to the host.
    pub(crate) regions: Vec<Arc<Region>>,
    pub(crate) has_reply: bool,
    pub(crate) rights: Vec<HeldRight>,
    pub(crate) released: Vec<u8>,
    pub(crate) sender: NodeId,
    pub(crate) owed: Owed,
}

/// The nodes that must receive the sender's writes to shared memory before the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owed {
    /// None: an engine has sent it.
    ToNone,
    /// All except this one.
    ToAllBut(Option<NodeId>),
}

impl Parcel {
    pub(crate) fn data_bytes(&self) -> u64 {
        self.inline.len() as u64 + self.regions.iter().map(|region| region.len() as u64).sum::<u64>()
    }

    /// Returns true if the node must receive the writes first.
    pub(crate) fn owes(&self, to: NodeId) -> bool {
        match self.owed {
            Owed::ToNone => false,
            Owed::ToAllBut(told) => told != Some(to),
        }
    }

    /// Returns a message of the engine itself.
    pub(crate) fn notification(id: u32, inline: Vec<u8>, rights: Vec<HeldRight>, sender: NodeId) -> Parcel {
        let count = inline.len() as u32;
        let types = Vec::from_iter((count > 0).then_some(DataType { name: 0, element_bytes: 1, count }));
        let (regions, released) = (Vec::new(), Vec::new());
        let (owed, inline) = (Owed::ToNone, Inline::Own(inline));
        Parcel { id, types, inline, regions, has_reply: false, rights, released, sender, owed }
    }
}

/// The origin of a message in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A thread of this node, by a send right.
    Local,
    /// A send right of that node, with the message's number.
    Flow(NodeId, u64),
    /// A send-once right: it needs no room in the queue.
    Once,
}

#[derive(Clone, Debug)]
pub(crate) struct Queued {
    pub(crate) source: Source,
    pub(crate) parcel: Parcel,
    /// The number of bytes of the node's memory that are reserved for it.
    pub(crate) reserved_bytes: u64,
}

/// A node that has, or had, send rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) holds: bool,
    pub(crate) version: u64,
    pub(crate) seen: u64,
    pub(crate) grants: u64,
    /// The number of its next message.
    pub(crate) next: u64,
    /// The number before which all of its messages were taken.
    pub(crate) taken: u64,
}

impl Holder {
    /// Returns true if it may have send rights.
    pub(crate) fn is_holding(&self) -> bool {
        self.holds || self.grants > self.seen
    }
}

/// A request that waits for room in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parked {
    /// The requesting node; this node's own threads wait in its own flow.
    pub(crate) from: NodeId,
    pub(crate) flow: FlowKey,
    pub(crate) number: u64,
    /// The requested memory, or `None` if the message is small, so that room in the queue suffices.
    pub(crate) bytes: Option<u64>,
    /// The bytes of the landing pool that the message's regions would take; 0 if they come in pieces.
    pub(crate) landing_bytes: u64,
}

impl Parked {
    /// Returns the node whose send right the message uses, if it uses one.
    pub(crate) fn origin(&self) -> Option<NodeId> {
        self.flow.origin(self.from)
    }

    /// Returns the number of bytes of node `me`'s memory that the message needs before it may come. The
    /// node's own messages that come back by a relay need none, like all that its threads send to ports that
    /// are here: the messages behind them may contain the very port whose queue uses up the memory.
    pub(crate) fn bytes_to_reserve(&self, me: NodeId) -> u64 {
        let comes_back = matches!(self.flow, FlowKey::Relay(_, origin) if origin == me);
        if comes_back { 0 } else { self.bytes.unwrap_or(0) }
    }
}

/// A port on the node that has its receive right.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    pub(crate) limit: u32,
    pub(crate) make_send: u32,
    pub(crate) queue: VecDeque<Queued>,
    /// The number of long messages on their way that have a place in the queue.
    pub(crate) incoming: u32,
    pub(crate) holders: BTreeMap<NodeId, Holder>,
    /// Send-once rights: the node that has each, and its number of hops.
    pub(crate) onces: BTreeMap<u64, (NodeId, u32)>,
    pub(crate) next_once: u64,
    pub(crate) parked: VecDeque<Parked>,
    /// Messages that were lost with nodes: origin, first and last number. They count as if they had come. The
    /// port takes them along, because a node that it leaves relays the messages between them.
    pub(crate) lost: BTreeSet<(NodeId, u64, u64)>,
    /// Flows that were informed of room, and have not sent their request yet.
    pub(crate) promised: BTreeSet<(NodeId, FlowKey)>,
    pub(crate) no_senders: Option<(u32, Once)>,
    pub(crate) port_destroyed: Option<Once>,
    /// The number of granted messages with rights to this port that the receiver has not answered.
    pub(crate) granting: u32,
    /// True if the receive right is in a message.
    pub(crate) in_transit: bool,
    /// The number of messages that the receive right was put into.
    pub(crate) journey: u64,
    /// The number of moves of the receive right between nodes.
    pub(crate) moves: u64,
    /// The destination of the message that contains the receive right.
    pub(crate) into: Option<PortId>,
    /// The node's count of messages taken when one was last taken from this port.
    pub(crate) served: u64,
}

impl Body {
    pub(crate) fn new(limit: u32) -> Body {
        Body {
            limit,
            make_send: 0,
            queue: VecDeque::new(),
            incoming: 0,
            holders: BTreeMap::new(),
            onces: BTreeMap::new(),
            next_once: 0,
            parked: VecDeque::new(),
            lost: BTreeSet::new(),
            promised: BTreeSet::new(),
            no_senders: None,
            port_destroyed: None,
            granting: 0,
            in_transit: false,
            journey: 0,
            moves: 0,
            into: None,
            served: 0,
        }
    }

    /// Returns the number of messages that take room, in the queue and on their way.
    pub(crate) fn filled(&self) -> usize {
        let queued = self.queue.iter().filter(|queued| queued.source != Source::Once).count();
        queued + self.incoming as usize
    }

    /// Returns true if there is room for a message to which none was promised.
    pub(crate) fn has_room(&self) -> bool {
        self.filled() + self.promised.len() < self.limit as usize
    }

    pub(crate) fn holder(&mut self, node: NodeId) -> &mut Holder {
        self.holders.entry(node).or_default()
    }

    /// Notes a node that has had a right. It is told of the port's death, so that it forgets the port.
    pub(crate) fn note_knower(&mut self, node: NodeId) {
        self.holder(node);
    }

    /// Counts a message among those of its origin that have come.
    pub(crate) fn count(&mut self, origin: NodeId, number: u64) {
        let holder = self.holder(origin);
        holder.next = holder.next.max(number + 1);
        self.pass_lost(origin);
    }

    /// Counts a message among those of its origin that were taken off the queue. Returns the last message
    /// before which all were taken, or lost.
    pub(crate) fn count_taken(&mut self, origin: NodeId, number: u64) -> u64 {
        let holder = self.holder(origin);
        holder.taken = holder.taken.max(number + 1);
        self.pass_lost(origin);
        self.holder(origin).taken - 1
    }

    /// Passes over lost messages whose turn it is, or that would be taken next.
    pub(crate) fn pass_lost(&mut self, origin: NodeId) {
        if self.lost.is_empty() {
            return;
        }
        let Holder { next, taken, .. } = *self.holder(origin);
        let (next, taken) = (self.behind_lost(origin, next), self.behind_lost(origin, taken));
        let holder = self.holder(origin);
        (holder.next, holder.taken) = (next, taken);
        self.lost.retain(|(node, _, last)| *node != origin || *last >= taken);
    }

    /// Returns the number, or that of the first message behind it which was not lost.
    fn behind_lost(&self, origin: NodeId, number: u64) -> u64 {
        let covers =
            |(node, first, last): &&(NodeId, u64, u64)| *node == origin && (*first..=*last).contains(&number);
        self.lost.iter().find(covers).map_or(number, |(_, _, last)| self.behind_lost(origin, last + 1))
    }

    /// Returns true if the earlier messages of the request's origin have come.
    pub(crate) fn is_due(&self, parked: &Parked) -> bool {
        let next = |origin| self.holders.get(&origin).map_or(0, |holder| holder.next);
        parked.origin().is_none_or(|origin| next(origin) >= parked.number)
    }
}
