//! Messages as the program sees them.

use hiroba_base::NodeId;
use serde::{Deserialize, Serialize};

use crate::id::Name;
use crate::region::Region;

/// The effect on the caller's right when a message takes it along (`MACH_MSG_TYPE_*`).
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

/// A right as named by a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RightToSend {
    /// The caller's name for it.
    pub name: Name,
    /// The effect on it.
    pub disposition: Disposition,
}

/// The type of a stretch of inline data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataType {
    /// The kind of the data, as numbered by the communicating programs.
    pub name: u16,
    /// The number of bytes of an element.
    pub element_bytes: u16,
    /// The number of elements.
    pub count: u32,
}

/// A message to be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The meaning of the message, as numbered by the communicating programs.
    pub id: u32,
    /// The types of the inline data, in order; their lengths add up to that of `inline`.
    pub types: Vec<DataType>,
    /// Inline data.
    pub inline: Vec<u8>,
    /// Out-of-line data. They move: if sender and receiver are on one node, the engine passes each region on
    /// without a copy.
    pub regions: Vec<Region>,
    /// The right that an answer must use, if any. It becomes a send or send-once right of the receiver.
    pub reply: Option<RightToSend>,
    /// The rights that the message takes along.
    pub rights: Vec<RightToSend>,
    /// The sender's releases of shared memory; opaque to this crate.
    pub released: Vec<u8>,
    /// The node that has already received the sender's writes to shared memory.
    pub told: Option<NodeId>,
}

impl Message {
    /// Returns the number of bytes of its data.
    pub fn data_bytes(&self) -> u64 {
        self.inline.len() as u64 + self.regions.iter().map(|region| region.len() as u64).sum::<u64>()
    }
}

/// The kind of a received right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RightKind {
    /// A receive right.
    Receive,
    /// A send right.
    Send,
    /// A send-once right.
    SendOnce,
    /// A right to a port that had died by the time the message was received.
    Dead,
}

/// A right that a message has brought, with the receiver's name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RightReceived {
    /// The name.
    pub name: Name,
    /// What it denotes.
    pub kind: RightKind,
}

/// A received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The receive right through which it came, which matters for a set.
    pub port: Name,
    /// The node that sent it.
    pub sender: NodeId,
    /// As in [`Message`]; that of a notification is in [`notification`].
    pub id: u32,
    /// As in [`Message`].
    pub types: Vec<DataType>,
    /// Inline data.
    pub inline: Vec<u8>,
    /// Out-of-line data.
    pub regions: Vec<Region>,
    /// The right that an answer must use.
    pub reply: Option<RightReceived>,
    /// Rights that came along.
    pub rights: Vec<RightReceived>,
    /// The sender's releases of shared memory.
    pub released: Vec<u8>,
}

/// The ids of notifications (`MACH_NOTIFY_*`), which engines send.
pub mod notification {
    /// The first of them. Programs may use the numbers too: only the send-once right through which it came
    /// identifies a notification.
    pub const FIRST: u32 = 0o100;
    /// A receive right was destroyed whose return had been requested. The message contains it.
    pub const PORT_DESTROYED: u32 = FIRST + 5;
    /// No node has a send right any more. Inline: the make-send count, 8 bytes, little-endian.
    pub const NO_SENDERS: u32 = FIRST + 6;
    /// A send-once right was destroyed without having been used.
    pub const SEND_ONCE: u32 = FIRST + 7;
    /// A right became a dead name. Inline: the name, 8 bytes, little-endian. It has one user reference more.
    pub const DEAD_NAME: u32 = FIRST + 8;
    /// The port accepts messages again. Inline: the name, 8 bytes, little-endian.
    pub const MESSAGE_ACCEPTED: u32 = FIRST + 1;
}
