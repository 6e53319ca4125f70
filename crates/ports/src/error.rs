//! Errors of calls, and of messages from peers.

use hiroba_wire::WireError;
use thiserror::Error;

/// The reason why a call of the program has failed. A failed call has no effect: no right was taken, no
/// message sent or lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PortError {
    /// The name denotes nothing here (`KERN_INVALID_NAME`).
    #[error(
        "expected a name of this node, got one that denotes nothing; names of other nodes mean nothing here"
    )]
    InvalidName,
    /// The name denotes something, but not the right that the call needs (`KERN_INVALID_RIGHT`).
    #[error("expected a name for another kind of right; ask for the type of the name")]
    InvalidRight,
    /// An argument is out of its bounds (`KERN_INVALID_VALUE`).
    #[error("expected a value within the bounds of the call")]
    InvalidValue,
    /// The name denotes something else already (`KERN_NAME_EXISTS`, `KERN_RIGHT_EXISTS`).
    #[error("expected a name that denotes the same port, got one in use")]
    NameExists,
    /// User references would overflow (`KERN_UREFS_OVERFLOW`).
    #[error("expected at most 65534 user references")]
    ReferencesOverflow,
    /// The port of the destination is dead (`MACH_SEND_INVALID_DEST`).
    #[error("expected a live port to send to, got a dead one; deallocate the name")]
    DeadDestination,
    /// The message does not describe itself correctly (`MACH_SEND_INVALID_DATA`).
    #[error("expected types whose sizes add up to the inline data, and sizes within the limits of messages")]
    InvalidMessage,
    /// The message is longer than this job's limit (`MACH_SEND_TOO_LARGE`).
    #[error("expected a message of at most {limit_bytes} bytes, got {got_bytes}; send it in parts")]
    MessageTooLarge {
        /// The limit.
        limit_bytes: u64,
        /// The message's length.
        got_bytes: u64,
    },
    /// The queue stayed full (`MACH_SEND_TIMED_OUT`).
    #[error("the port's queue was full for as long as the call was to wait")]
    SendTimedOut,
    /// A notification for this name is outstanding already (`MACH_SEND_NOTIFY_IN_PROGRESS`).
    #[error("a message-accepted notification for this name is outstanding; wait for it")]
    NotifyInProgress,
    /// No message came (`MACH_RCV_TIMED_OUT`).
    #[error("no message came for as long as the call was to wait")]
    ReceiveTimedOut,
    /// The first message is longer than the caller's limit (`MACH_RCV_TOO_LARGE`). It stays in the queue.
    #[error("expected room for {needed_bytes} bytes; the message waits, receive it with more room")]
    ReceiveTooLarge {
        /// The length of its data.
        needed_bytes: u64,
    },
    /// The receive right went away, by a message or by being destroyed, while the call waited
    /// (`MACH_RCV_PORT_DIED`).
    #[error("the receive right, or the set, went away while the call waited")]
    ReceiveRightGone,
    /// The table of names is full (`KERN_NO_SPACE`).
    #[error("expected fewer than {limit} names in use on this node; deallocate some")]
    NoSpace {
        /// The limit.
        limit: u32,
    },
    /// The host has ended the call.
    #[error("the call was interrupted")]
    Interrupted,
}

/// A message of a peer that is not permitted: an error in Hiroba or a forgery, never an error of the program.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PeerError {
    /// The bytes are no packet.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The packet does not fit the node's state.
    #[error("expected {expected} from node {from}")]
    Unexpected {
        /// The message that the state allows.
        expected: &'static str,
        /// The node that sent it.
        from: u16,
    },
}
