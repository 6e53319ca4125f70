//! A port where its receive right is: queue, holders, and who waits for room.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hiroba_base::NodeId;

use crate::id::{Once, PortId};
use crate::message::{DataType, data_bytes};
use crate::wire::FlowKey;

/// A right in a message that is in the keeping of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldRight {
    Dead,
    Send(PortId),
    Once(Once),
    /// A receive right, and the number of the journey on which it is.
    Receive(PortId, u64),
}

/// A message in the keeping of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parcel {
    pub(crate) id: u32,
    pub(crate) types: Vec<DataType>,
    pub(crate) inline: Vec<u8>,
    pub(crate) regions: Vec<Vec<u8>>,
    pub(crate) has_reply: bool,
    pub(crate) rights: Vec<HeldRight>,
    pub(crate) released: Vec<u8>,
    pub(crate) sender: NodeId,
    pub(crate) owed: Owed,
}

/// Which node must be told of what the sender has written to shared memory before the message goes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owed {
    /// None: an engine has sent it.
    ToNone,
    /// All but this one.
    ToAllBut(Option<NodeId>),
}

impl Parcel {
    pub(crate) fn data_bytes(&self) -> u64 {
        data_bytes(&self.inline, &self.regions)
    }

    /// Whether the node must be told first.
    pub(crate) fn owes(&self, to: NodeId) -> bool {
        match self.owed {
            Owed::ToNone => false,
            Owed::ToAllBut(told) => told != Some(to),
        }
    }

    /// A message of the engine's own.
    pub(crate) fn notification(id: u32, inline: Vec<u8>, rights: Vec<HeldRight>, sender: NodeId) -> Parcel {
        let count = inline.len() as u32;
        let types = Vec::from_iter((count > 0).then_some(DataType { name: 0, element_bytes: 1, count }));
        let (regions, released) = (Vec::new(), Vec::new());
        let owed = Owed::ToNone;
        Parcel { id, types, inline, regions, has_reply: false, rights, released, sender, owed }
    }
}

/// Where a message in a queue has come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A thread of this node that holds a send right.
    Local,
    /// A send right of that node: the message's number.
    Flow(NodeId, u64),
    /// A send-once right: it needs no room in the queue.
    Once,
}

#[derive(Clone, Debug)]
pub(crate) struct Queued {
    pub(crate) source: Source,
    pub(crate) parcel: Parcel,
    /// Bytes of the node's memory that were set aside for it.
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
    /// All of its messages before this one were taken.
    pub(crate) taken: u64,
}

impl Holder {
    /// Whether it may have send rights.
    pub(crate) fn is_holding(&self) -> bool {
        self.holds || self.grants > self.seen
    }
}

/// Who waits for room in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parked {
    /// Who asked; this node's own threads wait in its own flow.
    pub(crate) from: NodeId,
    pub(crate) flow: FlowKey,
    pub(crate) origin: NodeId,
    pub(crate) sequence: u64,
    pub(crate) number: u64,
    /// Memory that is asked for; none: the message is small, and room in the queue is enough.
    pub(crate) bytes: Option<u64>,
    /// By a send-once right: it needs no room in the queue.
    pub(crate) by_once: bool,
}

/// A port where its receive right is.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    pub(crate) limit: u32,
    pub(crate) make_send: u32,
    pub(crate) queue: VecDeque<Queued>,
    /// Long messages with a place in the queue, on their way.
    pub(crate) incoming: u32,
    pub(crate) holders: BTreeMap<NodeId, Holder>,
    /// Send-once rights: who has them, and by how many hops.
    pub(crate) onces: BTreeMap<u64, (NodeId, u32)>,
    pub(crate) next_once: u64,
    pub(crate) parked: VecDeque<Parked>,
    /// Who was told that there is room, and has not come yet.
    pub(crate) promised: BTreeSet<(NodeId, FlowKey)>,
    pub(crate) no_senders: Option<(u32, Once)>,
    pub(crate) port_destroyed: Option<Once>,
    /// Messages with rights to this port that were granted, and of which the receiver has not answered.
    pub(crate) granting: u32,
    /// The receive right is in a message.
    pub(crate) in_transit: bool,
    /// How many messages the receive right was put into.
    pub(crate) journey: u64,
    /// The port that the message is for.
    pub(crate) into: Option<PortId>,
    /// When a message was last taken, by the node's count.
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
            promised: BTreeSet::new(),
            no_senders: None,
            port_destroyed: None,
            granting: 0,
            in_transit: false,
            journey: 0,
            into: None,
            served: 0,
        }
    }

    /// Messages that take room, in the queue and on their way.
    pub(crate) fn filled(&self) -> usize {
        let queued = self.queue.iter().filter(|queued| queued.source != Source::Once).count();
        queued + self.incoming as usize
    }

    /// Whether there is room for one that was not promised any.
    pub(crate) fn has_room(&self) -> bool {
        self.filled() + self.promised.len() < self.limit as usize
    }

    pub(crate) fn holder(&mut self, node: NodeId) -> &mut Holder {
        self.holders.entry(node).or_default()
    }
}
