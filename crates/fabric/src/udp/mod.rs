//! The fabric over UDP sockets.
//!
//! One socket per node, one [`LinkSet`] under one mutex, and one thread at a time in the receiving role.
//! `send` transmits in the caller's thread, so a request is on the wire before the call returns; timers are a
//! timerfd among the descriptors a poll waits for, so that a thread that sends never has to wake the one
//! that waits. A thread that waits does not have the role: one that spins with `poll_now` gets its answer
//! itself while a service thread sleeps in `poll`.
//!
//! Between links and socket stand the [`hooks`]. Seals are opened in the receiving role, before the lock is taken: only
//! what is genuine ever costs the other threads anything.

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
use crate::link::{LinkConfig, LinkSet, LinkStatistics};
use crate::receiving::{self, Deliver, Receiving, Turn, Turns, timespec};
use crate::traits::{Capabilities, Fabric, FabricConfig, FabricError, assert_peer};
use crate::unsent::Unsent;
use crate::wake::WakeEvent;

/// What we ask of the system for each socket, in bytes: every peer's full window for a dozen peers.
const SOCKET_BUFFER_BYTES: usize = 16 << 20;

/// A receive buffer of at least this many bytes (as the system counts them, with its overhead) takes long datagrams.
const LONG_DATAGRAMS_FROM_BYTES: usize = 2 << 20;

/// The longest datagram to a node on the same machine, in bytes, with an ample receive buffer: what the loopback interface carries in one
/// packet of 65,536 bytes, with the heads of IPv6 and UDP. Each datagram costs two system calls, and may wake its receiver.
const DATAGRAM_BYTES_LOCAL: usize = 65_536 - 40 - 8;

/// The same with the buffer an ordinary user gets.
const DATAGRAM_BYTES_LOCAL_SHORT: usize = 16 << 10;

/// The longest datagram across a network, in bytes: fits Ethernet's 1,500 with tunnels to spare.
const DATAGRAM_BYTES_REMOTE: usize = 1400;

/// Peers that are expected to fill this node's receive buffer at once; when more do, loss shrinks their
/// windows.
const SENDERS_AT_ONCE: usize = 4;

/// So much of a long message is put into datagrams before they leave: as much as goes to the system by one call.
const QUEUED_AT_ONCE_BYTES: usize = 58 << 10;

/// Bytes of posted messages that wait for a push, at most. Beyond that they leave at once, so that the
/// receiver can work on them while the rest is copied.
const POSTED_BYTES_MAX: usize = 16 << 10;

/// How long to wait when the system takes no more datagrams.
const STALL: Duration = Duration::from_micros(500);

/// A timer of the link may be seen to so much later than it is due. To set the timerfd costs as much as sending a message, and to be woken by it more, so it
/// runs out this often at most while messages come and go, and is seldom set for one of them. An acknowledgement that leaves so late still reaches
/// its receiver within the least timeout.
const TIMER_SLACK: Duration = Duration::from_millis(1);

/// Timers so far away belong to a peer that is silent: nothing is about to come.
const TIMERS_FAR: Duration = Duration::from_millis(20);

/// A thread that looks for messages again and again sees to the timers once in as many looks: some ten microseconds.
const LOOKS_A_TIMER: u32 = 16;

/// How often a thread that drains looks whether another, receiving, has done its work.
const DRAIN_LOOK: Duration = Duration::from_millis(1);

/// Reliable messages over UDP; see [`Fabric`] for what threads may do.
pub struct UdpFabric {
    nodes: u16,
    local: NodeId,
    inline_bytes_max: usize,
    origin: Clock,
    socket: OwnedFd,
    /// Readable when a timer of the link is due.
    timer: OwnedFd,
    /// Readable when the timer or the wake event is. Apart from the socket: each message would have to ring through it, and whoever looks
    /// away from messages for a while would have it searched.
    alarms: OwnedFd,
    /// Threads that call again and again until something comes.
    spinning: AtomicU32,
    /// How many turns in a row have found nothing since one of them began.
    looks_in_vain: AtomicU32,
    filter: StrangerFilter,
    outbound: Mutex<Outbound>,
    receiving: Receiving<Inbound>,
}

/// What sending needs; the only lock that `send` takes.
struct Outbound {
    links: LinkSet,
    hooks: OutgoingHooks,
    outbox: Outbox,
    /// Bytes of messages that were posted since the last transmission: a push sends if there are any.
    posted_bytes: usize,
    /// When the timerfd fires.
    armed: Option<Instant>,
    /// A failure to send that no retransmission mends, until a poll reports it.
    failure: Option<io::Error>,
}

/// What receiving needs; belongs to the thread in the receiving role.
pub(crate) struct Inbound {
    batch: Batch,
    /// Each peer, by its address: all others are strangers. Never changed, so strangers cannot make it grow.
    peers: HashMap<SocketAddr, NodeId>,
    hooks: IncomingHooks,
    /// Datagrams that came from none of them.
    strangers: u64,
    /// What of the batch has passed the hooks.
    passed: Vec<Passed>,
    /// Messages to be delivered.
    messages: VecDeque<(NodeId, Vec<u8>)>,
    /// Delivered ones, whose buffers go back to the link at the next turn.
    spent: Vec<Vec<u8>>,
}

/// A genuine datagram: whose it is, and where in the batch it lies.
struct Passed {
    from: NodeId,
    piece: usize,
    bytes: Range<usize>,
}

fn system(action: &'static str) -> impl Fn(rustix::io::Errno) -> FabricError {
    move |errno| FabricError::System { action, source: errno.into() }
}

impl UdpFabric {
    /// The fabric of a node on `socket`, which is bound to the node's address.
    ///
    /// Enlarges the socket's buffers as far as the system lets it, and sizes the links' windows by the
    /// outcome; peers are taken to have got as much. Every datagram is sealed with the job's key.
    ///
    /// # Errors
    ///
    /// When the node or the number of addresses is out of bounds, or the system gives no descriptors.
    pub fn open(socket: OwnedFd, config: FabricConfig) -> Result<UdpFabric, FabricError> {
        config.nodes()?;
        let hooks = hooks::of_job(&config);
        UdpFabric::with_hooks(socket, config, hooks)
    }

    /// Like [`open`](Self::open), with nothing between links and socket, so that strangers are believed: to measure what the seal costs.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn without_seal(socket: OwnedFd, config: FabricConfig) -> Result<UdpFabric, FabricError> {
        UdpFabric::with_hooks(socket, config, Vec::new())
    }

    /// Like [`open`](Self::open), with `hooks` between links and socket instead of a job's usual ones: the first is the links'
    /// neighbour. Without [`Sealing`](crate::hooks::sealing::Sealing) among them, strangers are believed.
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

    /// The lock is held for one pass over the link and for system calls that do not block. A thread that
    /// panicked left the link whole: it has no step that a panic could cut in two.
    fn outbound(&self) -> MutexGuard<'_, Outbound> {
        self.outbound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts a message into datagrams. The beginning of a long one leaves while it is still in the caches, and
    /// before the end is copied.
    fn queue(&self, outbound: &mut Outbound, to: NodeId, mut message: Unsent<'_>) {
        assert_peer(to, self.local, self.nodes);
        while outbound.links.queue(to, &mut message, QUEUED_AT_ONCE_BYTES) {
            self.transmit(outbound, self.now());
        }
    }

    /// Puts on the wire whatever the windows allow, and sees that the timer fires in time.
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

    /// Sees that the timerfd fires when the next timer is due, or soon after. One that fires too early is left alone:
    /// every answer moves the deadlines back, and that must cost no system call.
    fn arm(&self, outbound: &mut Outbound, now: Instant) {
        let retry = outbound.outbox.is_stalled().then(|| now + STALL);
        // Where the next timer is near, not long after now: the one that is set next is likely to be due sooner still, and then finds the timerfd set.
        let (soon, far) = (now + 2 * TIMER_SLACK, now + TIMERS_FAR);
        let slack = |due: Instant| if due < far { soon.min(due + TIMER_SLACK) } else { due };
        let due = match (outbound.links.poll_timeout().map(slack), retry) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        let fired = outbound.armed.is_some_and(|armed| armed <= now);
        let wanted = match due {
            Some(due) => fired || outbound.armed.is_none_or(|armed| due < armed),
            // Setting it anew also ends its being readable.
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

    /// Takes in what has come, without waiting: one batch, the timers, and what follows from both.
    fn take_in(&self, inbound: &mut Inbound) -> io::Result<Turn> {
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
        for Passed { from, piece, bytes } in inbound.passed.drain(..) {
            // A rejection is counted, and of interest to nobody else.
            let _ = links.handle_datagram(from, inbound.batch.bytes(piece, bytes), now);
        }
        while let Some(message) = links.poll_message() {
            inbound.messages.push_back(message);
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
    /// Passes the first `count` pieces of the batch through the hooks; how many datagrams were dropped.
    fn pass_hooks(&mut self, count: usize) -> u64 {
        let Inbound { batch, peers, hooks, strangers, passed, .. } = self;
        let mut rejected = 0;
        for piece in 0..count {
            let Some((address, each_bytes, bytes)) = batch.piece_mut(piece) else {
                rejected += 1;
                continue;
            };
            let from = peers.get(&canonical(address)).copied();
            // A datagram without bytes is one, too.
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

    /// One turn in the receiving role: takes in, then delivers outside the lock.
    fn turn(&self, inbound: &mut Inbound, deliver: Deliver<'_>) -> io::Result<Turn> {
        let mut turn = self.take_in(inbound)?;
        while let Some((from, message)) = inbound.messages.pop_front() {
            turn = Turn::Something;
            deliver(from, &message);
            inbound.spent.push(message);
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
        // Its first look sees to the timers: it may have slept until one was due.
        self.looks_in_vain.store(0, Ordering::Relaxed);
        // The kernel wakes whoever waits for the socket, whether another thread looks at it or not.
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

/// Enlarges both buffers past the user's limit where allowed, else up to it; the size of the receive buffer.
fn enlarge_buffers(socket: &OwnedFd) -> Result<usize, FabricError> {
    // Refusals leave the sizes as they are, which is what is asked for next.
    if sockopt::set_socket_recv_buffer_size_force(socket, SOCKET_BUFFER_BYTES).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(socket, SOCKET_BUFFER_BYTES);
    }
    if sockopt::set_socket_send_buffer_size_force(socket, SOCKET_BUFFER_BYTES).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(socket, SOCKET_BUFFER_BYTES);
    }
    sockopt::socket_recv_buffer_size(socket).map_err(system("read the size of a socket's receive buffer"))
}

/// Links whose windows fit a receive buffer of `buffer_bytes` shared by the peers that send at once, and whose datagrams leave room
/// for `overhead_bytes`.
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
        // A quarter stays free for what the system counts besides the bytes.
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

/// The timer, and the descriptor that covers it and the wake event.
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
