//! Messages as the program sees them.

use hiroba_base::NodeId;
use serde::{Deserialize, Serialize};

use crate::id::Name;

/// What becomes of the caller's right when a message takes one along (`MACH_MSG_TYPE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Disposition {
    /// The receive right moves.
    MoveReceive,
    /// One user reference of a send right moves.
    MoveSend,
    /// A send right is copied.
    CopySend,
    /// A send right is made from a receive right.
    MakeSend,
    /// A send-once right moves.
    MoveSendOnce,
    /// A send-once right is made from a receive right.
    MakeSendOnce,
}

/// A right as a sender names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RightToSend {
    /// The caller's name for it.
    pub name: Name,
    /// What becomes of it.
    pub disposition: Disposition,
}

/// The type of a stretch of inline data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataType {
    /// What the data are, as the communicating programs number it.
    pub name: u16,
    /// Bytes of an element.
    pub element_bytes: u16,
    /// How many elements.
    pub count: u32,
}

/// A message to be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// What the message means, as the communicating programs number it.
    pub id: u32,
    /// What the inline data are, in order; their lengths add up to that of `inline`.
    pub types: Vec<DataType>,
    /// Inline data.
    pub inline: Vec<u8>,
    /// Out-of-line data. They move: the engine hands each to the receiver without a copy where both are on
    /// one node.
    pub regions: Vec<Vec<u8>>,
    /// Where an answer is to go, if anywhere: a right that becomes a send or send-once right of the
    /// receiver's.
    pub reply: Option<RightToSend>,
    /// Rights that go along.
    pub rights: Vec<RightToSend>,
    /// What the sender has released of shared memory; opaque to this room.
    pub released: Vec<u8>,
    /// The node that has been told already of what the sender has written to shared memory.
    pub told: Option<NodeId>,
}

impl Message {
    /// Bytes of its data.
    pub fn data_bytes(&self) -> u64 {
        data_bytes(&self.inline, &self.regions)
    }
}

/// Bytes of inline and out-of-line data.
pub(crate) fn data_bytes(inline: &[u8], regions: &[Vec<u8>]) -> u64 {
    inline.len() as u64 + regions.iter().map(|region| region.len() as u64).sum::<u64>()
}

/// What kind of right came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RightKind {
    /// A receive right.
    Receive,
    /// A send right.
    Send,
    /// A send-once right.
    SendOnce,
    /// The port had died by the time the message was received.
    Dead,
}

/// A right that a message has brought: the receiver's name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RightReceived {
    /// The name.
    pub name: Name,
    /// What it denotes.
    pub kind: RightKind,
}

/// A message that has been received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Which receive right it came by: of interest when a set was asked.
    pub port: Name,
    /// The node that sent it.
    pub sender: NodeId,
    /// As in [`Message`]; that of a notification is one of [`notification`].
    pub id: u32,
    /// As in [`Message`].
    pub types: Vec<DataType>,
    /// Inline data.
    pub inline: Vec<u8>,
    /// Out-of-line data.
    pub regions: Vec<Vec<u8>>,
    /// Where an answer is to go.
    pub reply: Option<RightReceived>,
    /// Rights that came along.
    pub rights: Vec<RightReceived>,
    /// What the sender has released of shared memory.
    pub released: Vec<u8>,
}

/// The ids of notifications (`MACH_NOTIFY_*`), which engines send.
pub mod notification {
    /// The first of them. Programs may use the numbers too: only the send-once right that it came by tells a
    /// notification.
    pub const FIRST: u32 = 0o100;
    /// A receive right was destroyed that was to be given back: it is the message's right.
    pub const PORT_DESTROYED: u32 = FIRST + 5;
    /// No node has a send right any more. Inline: the make-send count, 8 bytes, little-endian.
    pub const NO_SENDERS: u32 = FIRST + 6;
    /// A send-once right was destroyed without having been used.
    pub const SEND_ONCE: u32 = FIRST + 7;
    /// A right became a dead name. Inline: the name, 8 bytes, little-endian. It has one user reference more.
    pub const DEAD_NAME: u32 = FIRST + 8;
    /// The port takes messages again. Inline: the name, 8 bytes, little-endian.
    pub const MESSAGE_ACCEPTED: u32 = FIRST + 1;
}
