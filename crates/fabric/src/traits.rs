//! The interface of every fabric to the layers above.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use hiroba_base::{MAX_NODES, NodeId};
use hiroba_wire::Payload;
use hiroba_wire::control::{InjectedFaults, JobKey};
use thiserror::Error;

use crate::link::LinkStatistics;
use crate::unsent::Unsent;

/// The abilities of a fabric. Callers decide by these, never by a fabric's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// A node may read another node's memory without that node's help.
    pub one_sided: bool,
    /// All nodes of the job share memory: each may map any other's frames ([`OneSided::frames`]).
    pub shared_frames: bool,
    /// A node may add to, or compare and exchange, another node's words without that node's help.
    pub remote_atomics: bool,
    /// Messages of one peer arrive in the order in which they were sent.
    pub ordered: bool,
    /// Messages arrive exactly once.
    pub reliable: bool,
    /// The maximum length of a message that is sent as one unit, in bytes; longer ones are split.
    pub max_inline_bytes: usize,
}

/// The parameters with which a node's fabric is opened.
#[derive(Clone, Debug)]
pub struct FabricConfig {
    /// This node.
    pub local: NodeId,
    /// The address of each node's socket, by node; the length is the number of nodes. Fabrics without sockets
    /// use only the length.
    pub addresses: Vec<SocketAddr>,
    /// The job's number, which distinguishes jobs; not secret.
    pub job: u64,
    /// The job's secret.
    pub key: JobKey,
    /// Faults to inject into what this node sends, on fabrics whose network may have them.
    pub inject: Option<InjectedFaults>,
}

impl FabricConfig {
    /// Returns the number of nodes in the job.
    ///
    /// # Errors
    ///
    /// Fails if this node is not one of them, or if there are too many.
    pub fn nodes(&self) -> Result<u16, FabricError> {
        let nodes = u16::try_from(self.addresses.len()).unwrap_or(u16::MAX);
        if self.local.0 >= nodes || nodes > MAX_NODES {
            return Err(FabricError::NotANode {
                local: self.local,
                nodes: self.addresses.len(),
                nodes_max: MAX_NODES,
            });
        }
        Ok(nodes)
    }
}

/// Panics unless `to` is a peer, as [`Fabric::send`] requires.
pub(crate) fn assert_peer(to: NodeId, local: NodeId, nodes: u16) {
    assert!(
        to != local && to.0 < nodes,
        "expected a peer of node {local} among {nodes} nodes to send to, got node {to}"
    );
}

/// Why a fabric could not be opened.
#[derive(Debug, Error)]
pub enum FabricError {
    /// The node is not one of the job's.
    #[error("expected a node of 0..{nodes} with at most {nodes_max} nodes, got node {local}")]
    NotANode {
        /// The node's number as given.
        local: NodeId,
        /// The number of addresses given.
        nodes: usize,
        /// The maximum number of nodes.
        nodes_max: u16,
    },
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    System {
        /// The attempted operation.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// Takes messages that have arrived, as `deliver` of [`Fabric`] does.
pub trait Receiver {
    /// Takes a message.
    fn take(&mut self, from: NodeId, message: &[u8]);

    /// Takes a message whose sender has marked a [payload](Unsent::ending_in_payload), if the fabric has not
    /// copied the payload yet: the message's beginning, and its payload. What is not taken of that is lost.
    fn take_with_payload(&mut self, from: NodeId, head: &[u8], payload: &mut dyn Payload);
}

/// Reliable, ordered messages between the nodes of a job.
///
/// # Threads
///
/// Any number of threads may call any method at once. Receiving is a *role* that one thread has at a time,
/// from reading the socket to the end of the last `deliver`, because messages of one peer must be delivered
/// in order. A thread that sleeps in a poll does not have the role. A thread that polls while another has the
/// role waits for the role, for [`wake`](Fabric::wake) or for its timeout. `deliver` runs without any lock
/// that `send` takes, so it may send and wake. A poll from inside `deliver` returns at once without effect,
/// so `deliver` never waits for another message.
///
/// When several threads wait for answers, the thread that polls gets them all. It notifies the others by its
/// own means and [`wake`](Fabric::wake). A thread that may be notified so reads [`wakes`](Fabric::wakes),
/// checks its condition, and calls [`poll_since`](Fabric::poll_since), so that no wake is missed in between.
///
/// `send` may be called with signals blocked, and from a signal handler, provided that every thread blocks
/// those signals while it is inside the fabric. No lock is ever held across a system call that blocks.
///
/// # Panics
///
/// Sending to the node itself, to a node outside the job, or more than
/// [`MESSAGE_BYTES_MAX`](crate::MESSAGE_BYTES_MAX) bytes is a mistake of the caller and panics.
pub trait Fabric: Send + Sync {
    /// Returns what this fabric can do.
    fn capabilities(&self) -> Capabilities;

    /// Returns this node's number.
    fn local(&self) -> NodeId;

    /// Returns the number of nodes in the job.
    fn nodes(&self) -> u16;

    /// Sends the concatenation of `parts` as one message, as [`send_unsent`](Fabric::send_unsent) does.
    fn send(&self, to: NodeId, parts: &[&[u8]]) {
        self.send_unsent(to, Unsent::new(parts));
    }

    /// Sends a message, which is copied before the call returns.
    ///
    /// Never waits for the peer: the message leaves at once when the window allows, otherwise it is queued.
    /// Only the callers bound the queue; a producer of unbounded data waits while
    /// [`backlog_bytes`](Fabric::backlog_bytes) is high.
    fn send_unsent(&self, to: NodeId, message: Unsent<'_>);

    /// Sends like [`send_unsent`](Fabric::send_unsent), but may leave sealing and the system call to
    /// [`push`](Fabric::push). Returns true if it did: the caller must then call `push(to)` soon, from any
    /// thread. A caller with a lock pushes after it has released the lock. Messages to one peer keep the
    /// order of their posts.
    fn post(&self, to: NodeId, message: Unsent<'_>) -> bool {
        self.send_unsent(to, message);
        false
    }

    /// Posts like [`post`](Fabric::post), for a message that its receiver need not handle before the next
    /// one, or before it polls. A fabric on which sending wakes the receiver does not wake it, unless a
    /// thread there sleeps until something arrives ([`begin_expecting`](Fabric::begin_expecting)).
    fn post_unhurried(&self, to: NodeId, message: Unsent<'_>) -> bool {
        self.post(to, message)
    }

    /// Sends what was posted to `to`.
    fn push(&self, _to: NodeId) {}

    /// Announces that a thread of this node is about to end spinning and to sleep until some message arrives,
    /// which may be an unhurried one. Such calls are counted.
    fn begin_expecting(&self) {}

    /// Ends what [`begin_expecting`](Fabric::begin_expecting) began. Call it before spinning begins again.
    fn end_expecting(&self) {}

    /// Delivers what has arrived. When nothing has, waits for a datagram, a [`wake`](Fabric::wake), a signal
    /// or the timeout (`None`: forever), whichever is first. Drives the link's timers meanwhile.
    ///
    /// May return without a delivery before the timeout: callers check their condition and poll again.
    ///
    /// # Errors
    ///
    /// Fails only with errors that no retransmission repairs, such as a closed descriptor. Returns
    /// [`io::ErrorKind::InvalidData`] when an authenticated peer has sent invalid bytes; the error names the
    /// peer and the cause.
    fn poll(&self, timeout: Option<Duration>, deliver: &mut dyn FnMut(NodeId, &[u8])) -> io::Result<()>;

    /// Returns the number of wakes so far, for [`poll_since`](Fabric::poll_since).
    fn wakes(&self) -> u64;

    /// Polls like [`poll`](Fabric::poll), but does not wait if the number of wakes differs from `wakes_seen`.
    ///
    /// # Errors
    ///
    /// As [`poll`](Fabric::poll).
    fn poll_since(
        &self,
        wakes_seen: u64,
        timeout: Option<Duration>,
        deliver: &mut dyn FnMut(NodeId, &[u8]),
    ) -> io::Result<()>;

    /// Polls like [`poll`](Fabric::poll) but never waits, not even for the role. For spinning, and for a
    /// thread that waits on [`descriptor`](Fabric::descriptor). Returns false when another thread has the
    /// role: that thread does the work, and the descriptor may stay readable meanwhile. A caller that polls
    /// again at once might keep that thread from the processor.
    ///
    /// # Errors
    ///
    /// As [`poll`](Fabric::poll).
    fn poll_now(&self, deliver: &mut dyn FnMut(NodeId, &[u8])) -> io::Result<bool>;

    /// Polls like [`poll_now`](Fabric::poll_now), for a receiver that copies payloads to their places.
    ///
    /// # Errors
    ///
    /// As [`poll`](Fabric::poll).
    fn receive_now(&self, receiver: &mut dyn Receiver) -> io::Result<bool> {
        self.poll_now(&mut |from, message| receiver.take(from, message))
    }

    /// Announces that the calling thread will call [`poll_now`](Fabric::poll_now) repeatedly until
    /// [`end_spinning`](Fabric::end_spinning). Such calls are counted, not tied to threads. Returns true if
    /// the descriptor stays unchanged meanwhile, so that a thread that waits on it is not woken in vain. On
    /// such a fabric spinning also saves peers a system call per message, and a message sent meanwhile may
    /// wake its receiver a moment later, if the receiver has not looked by then. So a thread that is about to
    /// ask and wait announces it before it asks. Spinning unannounced is correct, but slower.
    fn begin_spinning(&self) -> bool {
        false
    }

    /// Ends what [`begin_spinning`](Fabric::begin_spinning) began. The descriptor becomes readable if
    /// something has arrived that was not delivered.
    fn end_spinning(&self) {}

    /// Returns the descriptor that becomes readable when messages have arrived. If several threads wait, one
    /// that receives for all may make the others ignore it meanwhile.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Returns the descriptor that becomes readable when [`poll_now`](Fabric::poll_now) has other work: a
    /// timer of the link is due, or there was a wake. `None` where [`descriptor`](Fabric::descriptor) covers
    /// that, too.
    fn alarms(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns the time until a timer of the link is due. [`alarms`](Fabric::alarms) covers this already; the
    /// method serves callers that wait without it.
    fn next_timeout(&self) -> Option<Duration>;

    /// Ends the polls that wait now, or the next one if none does. Not for signal handlers.
    fn wake(&self);

    /// Returns the bytes queued for `to` that it has not acknowledged, framing included.
    fn backlog_bytes(&self, to: NodeId) -> usize;

    /// Returns the same for all nodes together; takes a lock.
    fn backlog_bytes_all(&self) -> usize;

    /// Waits until everything sent has been acknowledged, at most `deadline`. Answers peers meanwhile and
    /// keeps arriving messages for the next poll. Returns true when all is acknowledged.
    ///
    /// The last acknowledgement of a pair can itself be lost. So a node that has drained goes on polling
    /// until it knows that its peers have drained too; otherwise they wait until their deadlines.
    fn drain(&self, deadline: Duration) -> bool;

    /// Returns the link's counters.
    fn statistics(&self) -> LinkStatistics;

    /// Returns the peer that has been silent for the longest time, and for how long: it has not acknowledged
    /// what was sent, and nothing has arrived from it meanwhile. Returns `None` when no peer owes an answer,
    /// or where silence cannot be distinguished from having nothing to say.
    fn longest_silence(&self) -> Option<(NodeId, Duration)> {
        None
    }

    /// Returns why this node's attempts to connect to `peer` failed, if the fabric makes connections and has
    /// none to that peer yet.
    fn why_unconnected(&self, _peer: NodeId) -> Option<String> {
        None
    }

    /// Returns the interface for reading other nodes' memory; `None` where [`Capabilities::one_sided`] is
    /// false.
    fn one_sided(&self) -> Option<&dyn OneSided> {
        None
    }
}

/// Reads of other nodes' frames without their help, and the communication that they need.
///
/// Every node has a *board* that the others reach. It contains *words* that the node publishes for them to
/// read (one for each node, whose meaning the callers define), and *announcements* that they leave for it to
/// read later (pages that they are about to read).
///
/// # Order
///
/// - A node that has seen a word also sees what the publisher wrote to its frames before it published the
///   word ([`publish`](OneSided::publish) releases, [`published`](OneSided::published) acquires).
/// - [`announce`](OneSided::announce) and [`announcements`](OneSided::announcements) are ordered as if each
///   had a sequentially consistent fence. If a node takes its announcements and a page is not among them, a
///   reader that announces that page later sees all that the node (or a thread ordered before it) had written
///   to the page before it took them.
///
/// None of these calls blocks, allocates or takes a lock that another thread holds while it waits. If a node
/// dies in one of them, the others can go on.
pub trait OneSided: Send + Sync {
    /// Returns true if this node can read the frames of `node` (it runs on the same machine).
    fn reaches(&self, node: NodeId) -> bool;

    /// Announces to `home` that this node is about to read `page` (a number with the same meaning on both).
    /// One thread at a time may announce. Returns false when there is no room: then it must not read, and
    /// sends a message instead.
    fn announce(&self, home: NodeId, page: u64) -> bool;

    /// Passes `take` the announcements that others have left here since the last call, in no particular
    /// order. One thread at a time may take them.
    fn announcements(&self, take: &mut dyn FnMut(NodeId, u64));

    /// Copies the bytes at `offset` of the frames of `home` into `into`. Bytes that are written meanwhile may
    /// be torn. Bytes that were never written are zero, and reading does not allocate them.
    ///
    /// # Errors
    ///
    /// Fails with a system error that no retry repairs.
    fn read(&self, home: NodeId, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Returns the file in which `node` keeps its frames, for this node to map; `None` where
    /// [`Capabilities::shared_frames`] is false. A node that has received a message sees what its sender had
    /// stored there before sending it, as if by release and acquire.
    fn frames(&self, _node: NodeId) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns this node's landing pool, where other nodes put bytes by [`land`](OneSided::land). Some nodes
    /// have none.
    fn landing(&self) -> Option<Arc<dyn LandingPool>> {
        None
    }

    /// Puts bytes into the landing pool of `to` from `offset` on, where that node must have said that they
    /// may go. A node that has received a message sent after this sees them. Returns false, and does nothing,
    /// if they would not lie inside, or if this node cannot reach the pool.
    fn land(&self, _to: NodeId, _offset: u64, _bytes: &[u8]) -> bool {
        false
    }

    /// Puts bytes there that lie in this node's own landing pool, from `from` on.
    fn land_again(&self, _to: NodeId, _offset: u64, _from: u64, _bytes: usize) -> bool {
        false
    }

    /// Sets this node's word of number `slot`, a node's number, to `value`, for others to read.
    fn publish(&self, slot: NodeId, value: u64);

    /// Returns the word of number `slot` that `home` published last; 0 before the first time.
    fn published(&self, home: NodeId, slot: NodeId) -> u64;
}

/// Memory of this node into which other nodes put bytes. It exists as long as this value, also after its
/// fabric was closed. Other processes may store to it at any time.
pub trait LandingPool: fmt::Debug + Send + Sync {
    /// Returns its length in bytes: the same on all nodes.
    fn bytes(&self) -> usize;

    /// Returns the address of the byte at `offset`.
    ///
    /// # Panics
    ///
    /// If it is out of bounds.
    fn address(&self, offset: usize) -> *mut u8;

    /// Appends a copy of `bytes` bytes at `offset` to `into`.
    ///
    /// # Panics
    ///
    /// If they do not lie inside.
    fn append_to(&self, offset: usize, bytes: usize, into: &mut Vec<u8>);
}
