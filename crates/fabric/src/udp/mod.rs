//! The fabric over UDP sockets.
//!
//! Each node has one socket, one [`LinkSet`] under one mutex, and one thread at a time in the receiving role.
//! `send` transmits in the caller's thread, so a request is on the wire before the call returns. Timers are a
//! timerfd among the descriptors that a poll waits for, so that a sending thread never has to wake the
//! waiting one. A waiting thread does not have the role: a thread that spins with `poll_now` gets its answer
//! itself while a service thread sleeps in `poll`.
//!
//! The [`hooks`] stand between links and socket. Seals are opened in the receiving role, before the lock is
//! taken, so that only genuine datagrams cost the other threads anything.

mod address;
mod batch;
mod filter;
mod outbox;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant as Clock};

use hiroba_base::legs::{self, Leg};
use hiroba_base::{Instant, NodeId};
use rustix::event::epoll;
use rustix::net::sockopt;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use self::address::canonical;
use self::batch::{Batch, join_datagrams};
use self::filter::{STRANGERS_BEFORE_FILTER, StrangerFilter};
use self::outbox::Outbox;
use crate::hooks::{self, Hook, IncomingHooks, OutgoingHooks};
use crate::link::receiver::Arrived;
use crate::link::{LinkConfig, LinkSet, LinkStatistics};
use crate::receiving::{self, Deliver, Receiving, Turn, Turns, timespec};
use crate::traits::{Capabilities, Fabric, FabricConfig, FabricError, assert_peer};
use crate::unsent::Unsent;
use crate::wake::WakeEvent;

/// The requested buffer size of each socket, in bytes: a full window from each of a dozen peers.
const SOCKET_BUFFER_BYTES: usize = 16 << 20;

/// A receive buffer of at least this many bytes (as the system counts them, with its overhead) allows long
/// datagrams.
const LONG_DATAGRAMS_FROM_BYTES: usize = 2 << 20;

/// Maximum length of a datagram to a node on the same machine, in bytes, with a large receive buffer: the
/// payload of one 65,536-byte packet of the loopback interface, without the IPv6 and UDP headers. Each
/// datagram costs two system calls and may wake its receiver, so long ones are better.
const DATAGRAM_BYTES_LOCAL: usize = 65_536 - 40 - 8;

/// The same with the buffer that an ordinary user gets.
const DATAGRAM_BYTES_LOCAL_SHORT: usize = 16 << 10;

/// Maximum length of a datagram across a network, in bytes: fits Ethernet's 1,500 with room for tunnels.
const DATAGRAM_BYTES_REMOTE: usize = 1400;

/// Number of peers that are expected to fill this node's receive buffer at once. When more do, loss shrinks
/// their windows.
const SENDERS_AT_ONCE: usize = 4;

/// Number of bytes of a long message that are put into datagrams before these leave: as much as one system
/// call takes.
const QUEUED_AT_ONCE_BYTES: usize = 58 << 10;

/// Maximum number of bytes of posted messages that wait for a push. Beyond that they leave at once, so that
/// the receiver can handle them while the rest is copied.
const POSTED_BYTES_MAX: usize = 16 << 10;

/// How long to wait when the system takes no more datagrams.
const STALL: Duration = Duration::from_micros(500);

/// How late a timer of the link may be handled. Setting the timerfd costs as much as sending a message, and
/// being woken by it costs more. So it expires at most this often while messages are exchanged, and is seldom
/// set for one of them. An acknowledgement that leaves this late still reaches its receiver within the
/// minimum timeout.
const TIMER_SLACK: Duration = Duration::from_millis(1);

/// Timers further away than this belong to a silent peer: no message is about to arrive.
const TIMERS_FAR: Duration = Duration::from_millis(20);

/// A thread that polls repeatedly handles the timers once per this many polls, about every ten microseconds.
const LOOKS_A_TIMER: u32 = 16;

/// Interval at which a draining thread checks whether another, receiving thread has done its work.
const DRAIN_LOOK: Duration = Duration::from_millis(1);

/// Reliable messages over UDP; see [`Fabric`] for the rules on threads.
pub struct UdpFabric {
    nodes: u16,
    local: NodeId,
    inline_bytes_max: usize,
    origin: Clock,
    socket: OwnedFd,
    /// Becomes readable when a timer of the link is due.
    timer: OwnedFd,
    /// Becomes readable when the timer or the wake event is. Separate from the socket: otherwise each message
    /// would also signal this descriptor, and a thread that ignores messages for a while would have it
    /// searched.
    alarms: OwnedFd,
    /// Number of threads that poll repeatedly until something arrives.
    spinning: AtomicU32,
    /// Number of successive turns that have found nothing since one of them began.
    looks_in_vain: AtomicU32,
    filter: StrangerFilter,
    outbound: Mutex<Outbound>,
    receiving: Receiving<Inbound>,
}

/// State needed for sending, under the only lock that `send` takes.
struct Outbound {
    links: LinkSet,
    hooks: OutgoingHooks,
    outbox: Outbox,
    /// Bytes of messages posted since the last transmission: a push sends if there are any.
    posted_bytes: usize,
    /// When the timerfd fires.
    armed: Option<Instant>,
    /// An error of sending that no retransmission repairs, until a poll reports it.
    failure: Option<io::Error>,
}

/// State needed for receiving; belongs to the thread in the receiving role.
pub(crate) struct Inbound {
    batch: Batch,
    /// The peers by address; all others are strangers. It never changes, so strangers cannot make it grow.
    peers: HashMap<SocketAddr, NodeId>,
    hooks: IncomingHooks,
    /// Number of datagrams from strangers.
    strangers: u64,
    /// The datagrams of the batch that have passed the hooks.
    passed: Vec<Passed>,
    /// Messages to be delivered. They survive a `deliver` that panics.
    messages: VecDeque<Undelivered>,
    /// Delivered ones, whose buffers go back to the link in the next turn.
    spent: Vec<Vec<u8>>,
}

/// A genuine datagram: its sender, and its place in the batch.
struct Passed {
    from: NodeId,
    piece: usize,
    bytes: Range<usize>,
}

/// A message to be delivered.
struct Undelivered {
    from: NodeId,
    bytes: Delivery,
}

/// Where a message's bytes are.
enum Delivery {
    /// At a place in the batch, until the next one is received.
    InBatch(usize, Range<usize>),
    /// In a buffer of the links.
    Copied(Vec<u8>),
}

fn system(action: &'static str) -> impl Fn(rustix::io::Errno) -> FabricError {
    move |errno| FabricError::System { action, source: errno.into() }
}

impl UdpFabric {
    /// Opens the fabric of a node on `socket`, which is bound to the node's address.
    ///
    /// Enlarges the socket's buffers as far as the system permits, and sizes the links' windows accordingly;
    /// it assumes that peers got as much. Every datagram is sealed with the job's key.
    ///
    /// # Errors
    ///
    /// Fails if the node or the number of addresses is out of bounds, or if the system has no descriptors
    /// left.
    pub fn open(socket: OwnedFd, config: FabricConfig) -> Result<UdpFabric, FabricError> {
        config.nodes()?;
        let hooks = hooks::of_job(&config);
        UdpFabric::with_hooks(socket, config, hooks)
    }

    /// Opens the fabric like [`open`](Self::open), with nothing between links and socket, so that strangers
    /// are believed: to measure the cost of sealing.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn without_seal(socket: OwnedFd, config: FabricConfig) -> Result<UdpFabric, FabricError> {
        UdpFabric::with_hooks(socket, config, Vec::new())
    }

    /// Opens the fabric like [`open`](Self::open), with `hooks` between links and socket instead of a job's
    /// usual ones. The first hook is next to the links. Without [`Sealing`](crate::hooks::sealing::Sealing)
    /// among them, strangers are believed.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn with_hooks(
        socket: OwnedFd,
        config: FabricConfig,
        hooks: Vec<Hook>,
    ) -> Result<UdpFabric, FabricError> {
        let nodes = config.nodes()?;
        let FabricConfig { local, addresses, .. } = config;
        let received_bytes = enlarge_buffers(&socket)?;
        join_datagrams(socket.as_fd());
        let (outgoing, incoming, overhead_bytes) = hooks::stack(hooks);
        let links = links(local, &addresses, received_bytes, overhead_bytes);
        let wake = WakeEvent::new().map_err(system("make an eventfd"))?;
        let (timer, alarms) = alarms(&wake)?;
        let peers = addresses.iter().map(|address| canonical(*address)).zip(NodeId::all(nodes));
        Ok(UdpFabric {
            nodes,
            local,
            inline_bytes_max: NodeId::all(nodes).map(|node| links.inline_bytes_max(node)).min().unwrap_or(0),
            origin: Clock::now(),
            socket,
            timer,
            alarms,
            spinning: AtomicU32::new(0),
            looks_in_vain: AtomicU32::new(0),
            filter: StrangerFilter::new(&addresses),
            receiving: Receiving::new(
                Inbound {
                    batch: Batch::new(),
                    peers: peers.collect(),
                    hooks: incoming,
                    strangers: 0,
                    passed: Vec::new(),
                    messages: VecDeque::new(),
                    spent: Vec::new(),
                },
                wake,
            ),
            outbound: Mutex::new(Outbound {
                links,
                hooks: outgoing,
                outbox: Outbox::new(addresses),
                posted_bytes: 0,
                armed: None,
                failure: None,
            }),
        })
    }

    fn now(&self) -> Instant {
        Instant::ORIGIN + self.origin.elapsed()
    }

    /// Locks the state of sending. The lock is held for one pass over the link and for system calls that do
    /// not block. It may be taken after a panic, because the link has no step that a panic could interrupt.
    fn outbound(&self) -> MutexGuard<'_, Outbound> {
        self.outbound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts a message into datagrams. The beginning of a long message leaves while it is still in the caches,
    /// before the end is copied.
    fn queue(&self, outbound: &mut Outbound, to: NodeId, mut message: Unsent<'_>) {
        assert_peer(to, self.local, self.nodes);
        while outbound.links.queue(to, &mut message, QUEUED_AT_ONCE_BYTES) {
            self.transmit(outbound, self.now());
        }
    }

    /// Sends as many datagrams as the windows allow, and arms the timer.
    fn transmit(&self, outbound: &mut Outbound, now: Instant) {
        outbound.posted_bytes = 0;
        let Outbound { links, hooks, outbox, failure, .. } = outbound;
        let socket = self.socket.as_fd();
        let mut note = |result: io::Result<()>| {
            if let Err(error) = result {
                *failure = Some(error);
            }
        };
        if outbox.is_stalled() {
            note(outbox.flush(socket));
        }
        while !outbox.is_stalled() {
            let Some((to, datagram)) = links.transmit(now) else { break };
            legs::end(Leg::Queue);
            hooks.pass(to, datagram, &mut |to, datagram| {
                legs::end(Leg::Seal);
                note(outbox.add(socket, to, datagram));
            });
        }
        if !outbox.is_stalled() {
            note(outbox.flush(socket));
            legs::end(Leg::Send);
        }
        self.arm(outbound, now);
        legs::end(Leg::Timer);
    }

    /// Arms the timerfd for the next timer, or soon after it. A timerfd that is set too early is not changed:
    /// every answer moves the deadlines back, and that must cost no system call.
    fn arm(&self, outbound: &mut Outbound, now: Instant) {
        let retry = outbound.outbox.is_stalled().then(|| now + STALL);
        // Where the next timer is near, allow some delay: the timer set after it is likely to be due sooner
        // still, and then finds the timerfd already set.
        let (soon, far) = (now + 2 * TIMER_SLACK, now + TIMERS_FAR);
        let slack = |due: Instant| if due < far { soon.min(due + TIMER_SLACK) } else { due };
        let due = match (outbound.links.poll_timeout().map(slack), retry) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        let fired = outbound.armed.is_some_and(|armed| armed <= now);
        let wanted = match due {
            Some(due) => fired || outbound.armed.is_none_or(|armed| due < armed),
            // Setting it again also makes it unreadable again.
            None => fired,
        };
        if !wanted {
            return;
        }
        // Zero would disarm it.
        let wait = due.map(|due| due.saturating_since(now).max(Duration::from_nanos(1)));
        let setting = Itimerspec {
            it_interval: timespec(Duration::ZERO),
            it_value: timespec(wait.unwrap_or(Duration::ZERO)),
        };
        outbound.armed = due;
        if let Err(errno) = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting) {
            outbound.failure = Some(errno.into());
        }
    }

    /// Receives what has arrived, without waiting: one batch and the timers, and handles both.
    fn take_in(&self, inbound: &mut Inbound) -> io::Result<Turn> {
        inbound.keep_undelivered();
        let count = inbound.batch.receive(self.socket.as_fd())?;
        legs::end(if count > 0 { Leg::Receive } else { Leg::Wait });
        if count == 0 && self.spinning.load(Ordering::Relaxed) > 0 {
            let before = self.looks_in_vain.fetch_add(1, Ordering::Relaxed);
            if !before.is_multiple_of(LOOKS_A_TIMER) {
                return Ok(Turn::Nothing);
            }
        }
        let rejected = inbound.pass_hooks(count);
        legs::end(Leg::Open);
        if rejected > 0 && inbound.strangers >= STRANGERS_BEFORE_FILTER {
            self.filter.attach(self.socket.as_fd());
        }
        let now = self.now();
        let outbound = &mut *self.outbound();
        let links = &mut outbound.links;
        for message in inbound.spent.drain(..) {
            links.recycle(message);
        }
        links.count_rejected(rejected);
        let Inbound { batch, messages, passed, .. } = inbound;
        for Passed { from, piece, bytes } in passed.drain(..) {
            let start = bytes.start;
            let mut deliver = |arrived| {
                let bytes = match arrived {
                    Arrived::Within(at) => Delivery::InBatch(piece, start + at.start..start + at.end),
                    Arrived::Copied(bytes) => Delivery::Copied(bytes),
                };
                messages.push_back(Undelivered { from, bytes });
            };
            // Rejections are counted; they have no other use here.
            let _ = links.handle_datagram_in_place(from, batch.bytes(piece, bytes), now, &mut deliver);
        }
        legs::end(Leg::Link);
        let due = links.poll_timeout().is_some_and(|timeout| timeout <= now);
        if due {
            links.handle_timeout(now);
        }
        let fired = outbound.armed.is_some_and(|armed| armed <= now);
        if count > 0 || due || fired || outbound.outbox.is_stalled() {
            self.transmit(outbound, now);
        }
        match outbound.failure.take() {
            Some(failure) => Err(failure),
            None if count > 0 => Ok(Turn::Something),
            None => Ok(Turn::Nothing),
        }
    }

    fn is_drained(&self) -> bool {
        self.outbound().links.is_idle()
    }

    fn drain_until(&self, deadline: Clock) -> io::Result<bool> {
        while !self.is_drained() {
            let now = Clock::now();
            if now >= deadline {
                return Ok(false);
            }
            // Another thread that receives handles the acknowledgements as well as we would.
            let look = deadline.min(now + DRAIN_LOOK);
            let Some(mut role) = self.receiving.role.wait(Some(look), || false) else { continue };
            let turn = self.take_in(role.inner())?;
            drop(role);
            if turn == Turn::Nothing && !self.is_drained() {
                receiving::sleep(self, self.receiving.wake.count(), Some(look))?;
            }
        }
        Ok(true)
    }
}

impl Inbound {
    /// Copies undelivered messages out of the batch, whose buffers are needed: a draining thread does not
    /// deliver, and a `deliver` may have panicked.
    fn keep_undelivered(&mut self) {
        for Undelivered { bytes, .. } in &mut self.messages {
            if let Delivery::InBatch(piece, place) = bytes {
                *bytes = Delivery::Copied(self.batch.bytes(*piece, place.clone()).to_vec());
            }
        }
    }

    /// Passes the first `count` pieces of the batch through the hooks. Returns the number of dropped
    /// datagrams.
    fn pass_hooks(&mut self, count: usize) -> u64 {
        let Inbound { batch, peers, hooks, strangers, passed, .. } = self;
        let mut rejected = 0;
        for piece in 0..count {
            let Some((address, each_bytes, bytes)) = batch.piece_mut(piece) else {
                rejected += 1;
                continue;
            };
            let from = peers.get(&canonical(address)).copied();
            // An empty datagram counts as one, too.
            let starts = (0..bytes.len().max(1)).step_by(each_bytes);
            let Some(from) = from else {
                *strangers += starts.len() as u64;
                rejected += starts.len() as u64;
                continue;
            };
            for start in starts {
                let end = bytes.len().min(start + each_bytes);
                match hooks.pass(from, &mut bytes[start..end]) {
                    Some(rest) => {
                        passed.push(Passed { from, piece, bytes: start + rest.start..start + rest.end });
                    }
                    None => rejected += 1,
                }
            }
        }
        rejected
    }
}

impl Turns for UdpFabric {
    type Inbound = Inbound;

    fn receiving(&self) -> &Receiving<Inbound> {
        &self.receiving
    }

    /// Takes one turn in the receiving role: receives, then delivers outside the lock.
    fn turn(&self, inbound: &mut Inbound, deliver: Deliver<'_>) -> io::Result<Turn> {
        let mut turn = self.take_in(inbound)?;
        while let Some(Undelivered { from, bytes }) = inbound.messages.pop_front() {
            turn = Turn::Something;
            match bytes {
                Delivery::InBatch(piece, place) => deliver(from, inbound.batch.bytes(piece, place)),
                Delivery::Copied(message) => {
                    deliver(from, &message);
                    inbound.spent.push(message);
                }
            }
        }
        Ok(turn)
    }

    fn watched(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [Some(self.socket.as_fd()), Some(self.timer.as_fd())]
    }
}

impl Fabric for UdpFabric {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            one_sided: false,
            shared_frames: false,
            remote_atomics: false,
            ordered: true,
            reliable: true,
            max_inline_bytes: self.inline_bytes_max,
        }
    }

    fn local(&self) -> NodeId {
        self.local
    }

    fn nodes(&self) -> u16 {
        self.nodes
    }

    fn send_unsent(&self, to: NodeId, message: Unsent<'_>) {
        let mut outbound = self.outbound();
        self.queue(&mut outbound, to, message);
        self.transmit(&mut outbound, self.now());
    }

    fn post(&self, to: NodeId, message: Unsent<'_>) -> bool {
        let bytes = message.rest();
        let mut outbound = self.outbound();
        self.queue(&mut outbound, to, message);
        outbound.posted_bytes += bytes;
        let waits = outbound.posted_bytes <= POSTED_BYTES_MAX;
        if !waits {
            self.transmit(&mut outbound, self.now());
        }
        waits
    }

    /// Sends what was posted to any peer.
    fn push(&self, _to: NodeId) {
        let mut outbound = self.outbound();
        if outbound.posted_bytes > 0 {
            self.transmit(&mut outbound, self.now());
        }
    }

    fn poll(&self, timeout: Option<Duration>, deliver: Deliver<'_>) -> io::Result<()> {
        receiving::poll_counting(self, timeout, deliver)
    }

    fn wakes(&self) -> u64 {
        self.receiving.wake.count()
    }

    fn poll_since(&self, wakes_seen: u64, timeout: Option<Duration>, deliver: Deliver<'_>) -> io::Result<()> {
        receiving::poll_since(self, wakes_seen, timeout, deliver)
    }

    fn poll_now(&self, deliver: Deliver<'_>) -> io::Result<bool> {
        receiving::poll_now(self, deliver)
    }

    fn begin_spinning(&self) -> bool {
        self.spinning.fetch_add(1, Ordering::Relaxed);
        // The first poll handles the timers: the thread may have slept until one was due.
        self.looks_in_vain.store(0, Ordering::Relaxed);
        // The kernel wakes threads that wait for the socket even if another thread polls it.
        false
    }

    fn end_spinning(&self) {
        self.spinning.fetch_sub(1, Ordering::Relaxed);
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn alarms(&self) -> Option<BorrowedFd<'_>> {
        Some(self.alarms.as_fd())
    }

    fn next_timeout(&self) -> Option<Duration> {
        let due = self.outbound().links.poll_timeout()?;
        Some(due.saturating_since(self.now()))
    }

    fn wake(&self) {
        self.receiving.wake();
    }

    fn backlog_bytes(&self, to: NodeId) -> usize {
        self.outbound().links.backlog_bytes(to)
    }

    fn backlog_bytes_all(&self) -> usize {
        self.outbound().links.backlog_bytes_all()
    }

    fn drain(&self, deadline: Duration) -> bool {
        let drained = Clock::now()
            .checked_add(deadline)
            .is_some_and(|deadline| self.drain_until(deadline).unwrap_or(false));
        let mut outbound = self.outbound();
        outbound.links.hasten_acknowledgements();
        self.transmit(&mut outbound, self.now());
        drained
    }

    fn statistics(&self) -> LinkStatistics {
        let mut statistics = self.outbound().links.statistics();
        statistics.datagrams_rejected += self.filter.dropped(self.socket.as_fd());
        statistics
    }

    fn longest_silence(&self) -> Option<(NodeId, Duration)> {
        self.outbound().links.longest_silence(self.now())
    }
}

/// Enlarges both buffers, past the user's limit where allowed. Returns the size of the receive buffer.
fn enlarge_buffers(socket: &OwnedFd) -> Result<usize, FabricError> {
    // A refusal leaves the sizes unchanged; they are read afterwards.
    if sockopt::set_socket_recv_buffer_size_force(socket, SOCKET_BUFFER_BYTES).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(socket, SOCKET_BUFFER_BYTES);
    }
    if sockopt::set_socket_send_buffer_size_force(socket, SOCKET_BUFFER_BYTES).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(socket, SOCKET_BUFFER_BYTES);
    }
    sockopt::socket_recv_buffer_size(socket).map_err(system("read the size of a socket's receive buffer"))
}

/// Makes links whose windows fit a receive buffer of `buffer_bytes` shared by the peers that send at once,
/// and whose datagrams leave room for `overhead_bytes`.
fn links(local: NodeId, addresses: &[SocketAddr], buffer_bytes: usize, overhead_bytes: usize) -> LinkSet {
    let here = addresses[local.index()].ip().to_canonical();
    let peers = addresses.len().saturating_sub(1);
    let local_bytes = if buffer_bytes >= LONG_DATAGRAMS_FROM_BYTES {
        DATAGRAM_BYTES_LOCAL
    } else {
        DATAGRAM_BYTES_LOCAL_SHORT
    };
    let config = LinkConfig {
        datagram_bytes_max: local_bytes.saturating_sub(overhead_bytes),
        // A quarter stays free for the system's overhead.
        window_bytes: buffer_bytes / 4 * 3 / peers.clamp(1, SENDERS_AT_ONCE),
        ..LinkConfig::default()
    };
    let mut links = LinkSet::new(local, addresses.len() as u16, config);
    for (node, address) in NodeId::all(links.nodes()).zip(addresses) {
        let ip = address.ip().to_canonical();
        if !ip.is_loopback() && ip != here {
            links.limit_datagram_bytes(node, DATAGRAM_BYTES_REMOTE.saturating_sub(overhead_bytes));
        }
    }
    links
}

/// Makes the timer, and the descriptor that covers it and the wake event.
fn alarms(wake: &WakeEvent) -> Result<(OwnedFd, OwnedFd), FabricError> {
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
        .map_err(system("make a timerfd"))?;
    let alarms = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("make an epoll descriptor"))?;
    for source in [wake.as_fd(), timer.as_fd()] {
        epoll::add(&alarms, source, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(system("add to an epoll descriptor"))?;
    }
    Ok((timer, alarms))
}
