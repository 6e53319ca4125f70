//! Calls, which the program makes to an engine, and effects, which the engine asks its host to carry out.

use core::ops::Range;
use std::sync::Arc;

use hiroba_base::{Instant, NodeId};

use crate::error::PortError;
use crate::id::{Name, Ticket};
use crate::message::{Disposition, Message, Received, RightToSend};
use crate::region::Region;

/// The time that a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Not at all.
    None,
    /// Until this time.
    Until(Instant),
    /// Without a limit.
    Endless,
}

/// A call of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Make a port (`mach_port_allocate`). Returns [`Outcome::Name`] of its receive right.
    AllocatePort,
    /// Make a set of ports. Returns [`Outcome::Name`].
    AllocateSet,
    /// Give up one user reference of a right of any kind. Destroys a receive right or set.
    /// (`mach_port_destroy` takes all at once.)
    Deallocate(Name),
    /// Give up all rights that the name denotes.
    Destroy(Name),
    /// Change the user references of a send right or dead name (`mach_port_mod_refs`).
    ModifyReferences {
        /// The name.
        name: Name,
        /// The number of references to add, or to remove if negative.
        delta: i32,
    },
    /// Put the right taken from `from` under `name` (`mach_port_insert_right`). `name` must denote the same
    /// port.
    InsertRight {
        /// The name that gets it.
        name: Name,
        /// The right to take.
        from: RightToSend,
    },
    /// Take a right out of a name and give it a new name (`mach_port_extract_right`). Returns
    /// [`Outcome::Name`].
    ExtractRight(RightToSend),
    /// Put a receive right into a set, out of its present one (`mach_port_move_member`).
    MoveMember {
        /// The receive right.
        member: Name,
        /// The set, or `None` to take it out.
        into: Option<Name>,
    },
    /// Set the maximum number of messages in the queue, 1 to 65,536 (`mach_port_set_qlimit`).
    SetQueueLimit {
        /// The receive right.
        name: Name,
        /// The limit.
        limit: u32,
    },
    /// Set the make-send count (`mach_port_set_mscount`).
    SetMakeSendCount {
        /// The receive right.
        name: Name,
        /// The count.
        count: u32,
    },
    /// Request a notification once (`mach_port_request_notification`). Returns [`Outcome::Previous`].
    RequestNotification {
        /// The name that it is about.
        name: Name,
        /// The event.
        of: Notification,
        /// The send-once right that it uses, or `None` to cancel the request.
        notify: Option<RightToSend>,
    },
    /// Queue a message (`mach_msg` with `MACH_SEND_MSG`).
    Send {
        /// The right that it uses, and the effect on that.
        to: RightToSend,
        /// The message.
        message: Message,
        /// The time to wait while the queue is full.
        patience: Patience,
        /// With a full queue: do not wait, accept this one message, and notify when the port accepts messages
        /// again (`MACH_SEND_NOTIFY`). Returns [`Outcome::WillNotify`].
        notify: Option<RightToSend>,
    },
    /// Take a message (`mach_msg` with `MACH_RCV_MSG`). Returns [`Outcome::Received`].
    Receive {
        /// A receive right, or a set.
        from: Name,
        /// The maximum number of bytes of data to take.
        bytes_max: Option<u64>,
        /// The time to wait while there is none.
        patience: Patience,
    },
    /// Send, then receive the answer, in one call.
    Rpc {
        /// The right that it uses, and the effect on that.
        to: RightToSend,
        /// The message; a send-once right to `reply_port` becomes its reply.
        message: Message,
        /// The receive right for the answer.
        reply_port: Name,
        /// The maximum number of bytes of data to take.
        bytes_max: Option<u64>,
        /// The time to wait in total.
        patience: Patience,
    },
    /// Query what a name denotes (`mach_port_type`, `mach_port_get_refs`, `mach_port_get_receive_status`).
    /// Returns [`Outcome::Status`].
    Status(Name),
    /// Query the name of a send right to the name service. Returns [`Outcome::Name`], with one more user
    /// reference.
    NameService,
}

/// An event of which a program can request a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification {
    /// The port of a send or send-once right has died.
    DeadName,
    /// No node has send rights any more, and the make-send count is at least this.
    NoSenders {
        /// The least make-send count.
        sync: u32,
    },
    /// The receive right would be destroyed: it is given back instead.
    PortDestroyed,
}

/// What a name denotes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// True for a receive right.
    pub receive: bool,
    /// The number of user references of a send right.
    pub send: u32,
    /// True for a send-once right.
    pub send_once: bool,
    /// The number of user references of a dead name.
    pub dead: u32,
    /// True for a set.
    pub set: bool,
    /// For a receive right: the number of messages in its queue.
    pub queued: u32,
    /// For a receive right: the maximum number of messages in its queue.
    pub limit: u32,
    /// For a receive right: its make-send count.
    pub make_send: u32,
}

/// The result of a successful call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The call has been carried out.
    Done,
    /// A name.
    Name(Name),
    /// The message is queued although the queue was full; the notification will come.
    WillNotify,
    /// An earlier request for a notification was cancelled; its send-once right, if there was one.
    Previous(Option<Name>),
    /// A message.
    Received(Box<Received>),
    /// What a name denotes.
    Status(Status),
}

/// A piece of a region, or of inline data, that the host sends without an earlier copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    pub(crate) region: Arc<Region>,
    pub(crate) range: Range<usize>,
}

impl Tail {
    /// Returns its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.region.own().expect("a piece is of memory that no other node writes to")[self.range.clone()]
    }
}

/// A region that goes directly to its place at the receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Landing {
    /// The receiver, never this node.
    pub to: NodeId,
    /// The offset in the receiver's landing pool. The whole region lies inside.
    pub offset: u64,
    /// The region.
    pub region: Arc<Region>,
}

/// A request that the host must carry out, in the order polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Hand these bytes to `to`, reliably and in order.
    Send {
        /// The receiver, never this node.
        to: NodeId,
        /// An encoded [`Envelope`](crate::wire::Envelope), without the tail.
        bytes: Vec<u8>,
        /// A piece of data to send directly after them.
        tail: Option<Tail>,
        /// True if a message is included: `to` must first receive the writes to shared memory that preceded
        /// it.
        owes: bool,
    },
    /// Put these bytes into the receiver's landing pool, before anything that is sent after this.
    Land(Landing),
    /// The message of a failing call was not taken, and the caller gets its regions back. Not sent for a
    /// message without regions. The call's end follows.
    Returned {
        /// The call.
        ticket: Ticket,
        /// The message's regions.
        regions: Vec<Region>,
    },
    /// A call has ended. Sent once for each call.
    Complete {
        /// The call.
        ticket: Ticket,
        /// The result.
        result: Result<Outcome, PortError>,
    },
}

/// Returns a right under the name that a message may use, for callers' convenience.
pub fn right(name: Name, disposition: Disposition) -> RightToSend {
    RightToSend { name, disposition }
}
