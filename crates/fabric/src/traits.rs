//! What every fabric offers to the storeys above it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use hiroba_base::{MAX_NODES, NodeId};
use hiroba_wire::control::{InjectedFaults, JobKey};
use thiserror::Error;

use crate::link::LinkStatistics;
use crate::unsent::Unsent;

/// What a fabric can do. Callers decide by these, never by a fabric's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// A node may read another node's memory without that node's help.
    pub one_sided: bool,
    /// All nodes of the job share memory: each may map any other's frames ([`OneSided::frames`]).
    pub shared_frames: bool,
    /// A node may add to, or compare and exchange, another node's words without that node's help.
    pub remote_atomics: bool,
    /// Messages of one peer arrive in the order they were sent.
    pub ordered: bool,
    /// Messages arrive exactly once.
    pub reliable: bool,
    /// The longest message that travels as one unit, in bytes; longer ones are split.
    pub max_inline_bytes: usize,
}

/// What every fabric of a node is opened with.
#[derive(Clone, Debug)]
pub struct FabricConfig {
    /// This node.
    pub local: NodeId,
    /// Where each node's socket is bound, by node; the length is the number of nodes. Fabrics without sockets look at the length alone.
    pub addresses: Vec<SocketAddr>,
    /// The job's number, which keeps jobs apart; no secret.
    pub job: u64,
    /// The job's secret.
    pub key: JobKey,
    /// Faults to inflict on what this node sends, on fabrics whose network may have them.
    pub inject: Option<InjectedFaults>,
}

impl FabricConfig {
    /// How many nodes the job has.
    ///
    /// # Errors
    ///
    /// When this node is none of them, or there are too many.
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

/// What [`Fabric::send`] demands of its receiver.
pub(crate) fn assert_peer(to: NodeId, local: NodeId, nodes: u16) {
    assert!(
        to != local && to.0 < nodes,
        "expected a peer of node {local} among {nodes} nodes to send to, got node {to}"
    );
}

/// A fabric could not be set up.
#[derive(Debug, Error)]
pub enum FabricError {
    /// The node is none of the job's.
    #[error("expected a node of 0..{nodes} with at most {nodes_max} nodes, got node {local}")]
    NotANode {
        /// Who we were said to be.
        local: NodeId,
        /// How many addresses came.
        nodes: usize,
        /// How many there may be.
        nodes_max: u16,
    },
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

/// Reliable, ordered messages between the nodes of a job.
///
/// # Threads
///
/// Any number of threads may call any method at once. Receiving is a *role* that one thread has at a
/// time, from looking at the socket to the end of the last `deliver`, because messages of one peer must
/// be handed out in order; a thread that sleeps in a poll does not have it. A thread that polls while
/// another has the role waits for the role, for [`wake`](Fabric::wake) or for its timeout. `deliver` runs
/// without any lock that `send` takes, so it may send and wake; a poll from inside `deliver` returns at
/// once without doing anything, so `deliver` never waits for another message.
///
/// When several threads wait for answers, whichever polls gets them all. It tells the others by its own
/// means and [`wake`](Fabric::wake); a thread that may be told so reads [`wakes`](Fabric::wakes), checks
/// its condition, and calls [`poll_since`](Fabric::poll_since), so that no wake falls between.
///
/// `send` may be called with signals blocked, from a signal handler too, provided that every thread that
/// calls into the fabric has those signals blocked while it does: no lock is ever held across a
/// system call that blocks.
///
/// # Panics
///
/// A node does not send to itself, nor to a node outside the job, nor more than
/// [`MESSAGE_BYTES_MAX`](crate::MESSAGE_BYTES_MAX) bytes: these are mistakes of the caller and panic.
pub trait Fabric: Send + Sync {
    /// What this fabric can do.
    fn capabilities(&self) -> Capabilities;

    /// Who we are.
    fn local(&self) -> NodeId;

    /// How many nodes the job has.
    fn nodes(&self) -> u16;

    /// Sends the concatenation of `parts` as one message, as [`send_unsent`](Fabric::send_unsent) does.
    fn send(&self, to: NodeId, parts: &[&[u8]]) {
        self.send_unsent(to, Unsent::new(parts));
    }

    /// Sends a message, which is copied before the call returns.
    ///
    /// Never waits for the peer: the message leaves at once when the window allows, otherwise it is
    /// queued. The queue is bounded by what callers put in; a producer of unbounded data holds back
    /// while [`backlog_bytes`](Fabric::backlog_bytes) is high.
    fn send_unsent(&self, to: NodeId, message: Unsent<'_>);

    /// As [`send_unsent`](Fabric::send_unsent), but sealing and the system call may be left to
    /// [`push`](Fabric::push). Returns true if they were: the caller then owes `push(to)` soon, from any
    /// thread. A caller that holds a lock pushes after it has released the lock. Messages to one peer keep the
    /// order of their posts.
    fn post(&self, to: NodeId, message: Unsent<'_>) -> bool {
        self.send_unsent(to, message);
        false
    }

    /// As [`post`](Fabric::post), for a message that its receiver need not act on before the next one, or
    /// before it polls. A fabric on which sending wakes the receiver leaves it alone, unless a thread there
    /// sleeps until something comes ([`begin_expecting`](Fabric::begin_expecting)).
    fn post_unhurried(&self, to: NodeId, message: Unsent<'_>) -> bool {
        self.post(to, message)
    }

    /// Sends what was posted to `to`.
    fn push(&self, _to: NodeId) {}

    /// A thread of this node is about to end spinning and to sleep until some message has come, which may be
    /// one that was sent unhurried; such calls are counted.
    fn begin_expecting(&self) {}

    /// Ends what [`begin_expecting`](Fabric::begin_expecting) began. Call it before spinning begins again.
    fn end_expecting(&self) {}

    /// Delivers what has come; when nothing has, waits for a datagram, a [`wake`](Fabric::wake), a signal
    /// or the timeout (`None`: for ever), whichever is first. Drives the link's timers meanwhile.
    ///
    /// May return without a delivery before the timeout: callers check their condition and poll again.
    ///
    /// # Errors
    ///
    /// Only what no retransmission mends, such as a closed descriptor. [`io::ErrorKind::InvalidData`] when a
    /// peer that had proved who it is has sent what is no message; the error's sentence names the peer and
    /// the cause.
    fn poll(&self, timeout: Option<Duration>, deliver: &mut dyn FnMut(NodeId, &[u8])) -> io::Result<()>;

    /// How many wakes there have been; for [`poll_since`](Fabric::poll_since).
    fn wakes(&self) -> u64;

    /// Like [`poll`](Fabric::poll), but does not wait when there have been other than `wakes_seen` wakes.
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

    /// Like [`poll`](Fabric::poll) but never waits, not even for the role. For spinning, and for a thread
    /// that waits on [`descriptor`](Fabric::descriptor). False when another thread has the role: what there is to do is
    /// left to that one, and the descriptor may stay readable meanwhile. Who comes back at once might keep that very thread
    /// from the processor.
    ///
    /// # Errors
    ///
    /// As [`poll`](Fabric::poll).
    fn poll_now(&self, deliver: &mut dyn FnMut(NodeId, &[u8])) -> io::Result<bool>;

    /// The calling thread will call [`poll_now`](Fabric::poll_now) again and again until it says
    /// [`end_spinning`](Fabric::end_spinning); such calls are counted, not tied to threads. Whether the descriptor stays as it is
    /// meanwhile, so that a thread that waits on it is not woken for nothing; on such a fabric spinning also saves peers a system call a
    /// message, and a message sent meanwhile may wake its receiver a moment later, if it has not looked by itself by then. So a thread that is about
    /// to ask and wait says so before it asks. Spinning without saying so is only slower.
    fn begin_spinning(&self) -> bool {
        false
    }

    /// Ends what [`begin_spinning`](Fabric::begin_spinning) began. What has come meanwhile and was not delivered makes the descriptor
    /// readable.
    fn end_spinning(&self) {}

    /// Becomes readable when messages have come. Of several threads that wait, one that receives for all may have the others look
    /// away from it meanwhile.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Becomes readable when [`poll_now`](Fabric::poll_now) has something else to do: a timer of the link's is due, or there was a
    /// wake. `None` where [`descriptor`](Fabric::descriptor) says that, too.
    fn alarms(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// How long until a timer of the link is due. [`alarms`](Fabric::alarms) cover this already; it is for callers
    /// that wait without them.
    fn next_timeout(&self) -> Option<Duration>;

    /// Ends the polls that wait now, or the next one when none does. Not for signal handlers.
    fn wake(&self);

    /// Bytes queued for `to` that it has not acknowledged, framing included.
    fn backlog_bytes(&self, to: NodeId) -> usize;

    /// The same for all nodes together, at the price of a lock.
    fn backlog_bytes_all(&self) -> usize;

    /// Waits until everything sent has been acknowledged, at most `deadline`; answers peers meanwhile and
    /// keeps the messages that come for the next poll. True when all is acknowledged.
    ///
    /// The last acknowledgement of a pair can itself be lost: a node that has drained goes on polling
    /// until it knows that its peers have drained too, or they wait out their deadlines.
    fn drain(&self, deadline: Duration) -> bool;

    /// What the link has counted.
    fn statistics(&self) -> LinkStatistics;

    /// Who owes this node a sign of life and has given none for the longest time, and since when: a peer that has not acknowledged
    /// what was sent to it and from which nothing at all has come meanwhile. `None` when nobody owes any, or where silence cannot be
    /// told from having nothing to say.
    fn longest_silence(&self) -> Option<(NodeId, Duration)> {
        None
    }

    /// What has become of this node's attempts to connect to `peer`, where it makes connections and has none
    /// to that one yet.
    fn why_unconnected(&self, _peer: NodeId) -> Option<String> {
        None
    }

    /// Reading other nodes' memory without their help; `None` where [`Capabilities::one_sided`] is false.
    fn one_sided(&self) -> Option<&dyn OneSided> {
        None
    }
}

/// Reading other nodes' frames without their help, and what must be agreed upon for that.
///
/// Every node has a *board* that the others reach: on it stand *words* that it publishes for them to read (one for each node,
/// with whatever meaning the callers give them), and *announcements* that they leave for it to read later (pages that they
/// are about to read).
///
/// # Order
///
/// - What a node wrote to its frames before it published a word is seen by whoever has seen that word
///   ([`publish`](OneSided::publish) releases, [`published`](OneSided::published) acquires).
/// - [`announce`](OneSided::announce) and [`announcements`](OneSided::announcements) are ordered as if each had a sequentially consistent
///   fence: when a node takes its announcements and a page is not among them, whoever announces that page later also reads, afterwards, all
///   that the node (or a thread that is ordered before it) had written to the page before it took them.
///
/// None of these calls blocks, allocates or takes a lock that another thread holds while it waits. A node that dies in any of
/// them leaves the others able to go on.
pub trait OneSided: Send + Sync {
    /// Whether this node can read the frames of `node` (it runs on the same machine).
    fn reaches(&self, node: NodeId) -> bool;

    /// Tells `home` that this node is about to read `page` (a number that means the same to both). One thread at a time may announce.
    /// False when there is no room: then it must not read, and sends a message instead.
    fn announce(&self, home: NodeId, page: u64) -> bool;

    /// Hands out the announcements that others have left here since the last call, in no particular order between them. One thread
    /// at a time may take them.
    fn announcements(&self, take: &mut dyn FnMut(NodeId, u64));

    /// Copies the bytes at `offset` of the frames of `home` into `into`. Bytes that are written meanwhile may come torn; bytes where nothing was
    /// ever written are zero and are not allocated by being read.
    ///
    /// # Errors
    ///
    /// The system's, which no repetition mends.
    fn read(&self, home: NodeId, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// The file in which `node` keeps its frames, for this node to map; `None` where [`Capabilities::shared_frames`] is false. What a node has
    /// stored there before it sent a message is seen by whoever has received the message, as if by release and acquire.
    fn frames(&self, _node: NodeId) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Sets this node's word of number `slot`, a node's number, to `value`, for others to read.
    fn publish(&self, slot: NodeId, value: u64);

    /// The word of number `slot` that `home` published last; 0 before the first time.
    fn published(&self, home: NodeId, slot: NodeId) -> u64;
}
