//! What the program asks of an engine, and what an engine has its host do.

use hiroba_base::{Instant, NodeId};

use crate::error::PortError;
use crate::id::{Name, Ticket};
use crate::message::{Disposition, Message, Received, RightToSend};

/// How long a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Not at all.
    None,
    /// Until then.
    Until(Instant),
    /// For ever.
    Endless,
}

/// What a program calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Make a port (`mach_port_allocate`): [`Outcome::Name`] of its receive right.
    AllocatePort,
    /// Make a set of ports: [`Outcome::Name`].
    AllocateSet,
    /// Give up one user reference of whatever kind of right; of a receive right or set: destroy it
    /// (`mach_port_destroy` takes all at once).
    Deallocate(Name),
    /// Give up all rights that the name denotes.
    Destroy(Name),
    /// Change the user references of a send right or dead name (`mach_port_mod_refs`).
    ModifyReferences {
        /// The name.
        name: Name,
        /// How many more, or fewer.
        delta: i32,
    },
    /// Put the right taken from `from` under `name` (`mach_port_insert_right`): `name` must denote the same
    /// port.
    InsertRight {
        /// The name that gets it.
        name: Name,
        /// What is taken.
        from: RightToSend,
    },
    /// Take a right out of a name and give it one of its own (`mach_port_extract_right`): [`Outcome::Name`].
    ExtractRight(RightToSend),
    /// Put a receive right into a set, out of the one where it is (`mach_port_move_member`).
    MoveMember {
        /// The receive right.
        member: Name,
        /// The set; none to take it out.
        into: Option<Name>,
    },
    /// How many messages the queue takes, 1 to 65,536 (`mach_port_set_qlimit`).
    SetQueueLimit {
        /// The receive right.
        name: Name,
        /// The limit.
        limit: u32,
    },
    /// The make-send count (`mach_port_set_mscount`).
    SetMakeSendCount {
        /// The receive right.
        name: Name,
        /// The count.
        count: u32,
    },
    /// Ask for a notification (`mach_port_request_notification`), once: [`Outcome::Previous`].
    RequestNotification {
        /// The name that it is about.
        name: Name,
        /// Of what.
        of: Notification,
        /// The send-once right that it comes by; none to call it off.
        notify: Option<RightToSend>,
    },
    /// Queue a message (`mach_msg` with `MACH_SEND_MSG`).
    Send {
        /// By what right, and what becomes of it.
        to: RightToSend,
        /// The message.
        message: Message,
        /// How long to wait while the queue is full.
        patience: Patience,
        /// With a full queue: do not wait, take this one message, and tell when the port takes messages again
        /// (`MACH_SEND_NOTIFY`): [`Outcome::WillNotify`].
        notify: Option<RightToSend>,
    },
    /// Take a message (`mach_msg` with `MACH_RCV_MSG`): [`Outcome::Received`].
    Receive {
        /// A receive right, or a set.
        from: Name,
        /// The most bytes of data to take.
        bytes_max: Option<u64>,
        /// How long to wait while there is none.
        patience: Patience,
    },
    /// Send, then receive the answer: both in one call.
    Rpc {
        /// By what right, and what becomes of it.
        to: RightToSend,
        /// The message; a send-once right to `reply_port` becomes its reply.
        message: Message,
        /// The receive right that the answer comes by.
        reply_port: Name,
        /// The most bytes of data to take.
        bytes_max: Option<u64>,
        /// How long to wait, in all.
        patience: Patience,
    },
    /// What a name denotes (`mach_port_type`, `mach_port_get_refs`, `mach_port_get_receive_status`):
    /// [`Outcome::Status`].
    Status(Name),
    /// The name of a send right to the name service: [`Outcome::Name`], with a user reference more.
    NameService,
}

/// Of what a program can ask to be told.
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
    /// The receive right.
    pub receive: bool,
    /// User references of a send right.
    pub send: u32,
    /// A send-once right.
    pub send_once: bool,
    /// User references of a dead name.
    pub dead: u32,
    /// A set.
    pub set: bool,
    /// Of a receive right: messages in its queue.
    pub queued: u32,
    /// Of a receive right: how many its queue takes.
    pub limit: u32,
    /// Of a receive right: its make-send count.
    pub make_send: u32,
}

/// How a call went well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// A name.
    Name(Name),
    /// The message is queued although the queue was full; the notification will come.
    WillNotify,
    /// A notification that was asked for before was called off; its send-once right, if there was one.
    Previous(Option<Name>),
    /// A message.
    Received(Box<Received>),
    /// What a name denotes.
    Status(Status),
}

/// What the host must do, in the order polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Hand these bytes to `to`, reliably and in order.
    Send {
        /// The receiver, never this node.
        to: NodeId,
        /// An encoded [`Envelope`](crate::wire::Envelope).
        bytes: Vec<u8>,
        /// A message goes along: `to` must first be told of what was written to shared memory before it was
        /// sent.
        owes: bool,
    },
    /// A call has ended. Each ends once.
    Complete {
        /// The call.
        ticket: Ticket,
        /// How.
        result: Result<Outcome, PortError>,
    },
}

/// A right under the name that a message may use: for callers' convenience.
pub fn right(name: Name, disposition: Disposition) -> RightToSend {
    RightToSend { name, disposition }
}
