//! The fabric over TCP connections, one for each pair of nodes.
//!
//! A node connects to those of lower numbers (`doors.rs`). Both sides prove that they have the job's key
//! (`handshake.rs`) before either accepts a message, and every later record is sealed and counted
//! (`record.rs`). `send` passes records to the socket in the caller's thread. Records that the socket does
//! not take wait until a poll finds that it takes more. One thread at a time receives, as [`Fabric`] says;
//! messages are delivered from the buffer into which they were read.
//!
//! TCP repairs packet loss, so messages need no timers. A slow clock runs while a peer owes an answer: a peer
//! that was sent something is asked at intervals whether it has arrived, which distinguishes a stopped or
//! cut-off peer from one that has nothing to say. A connection that has ended is not made again, because
//! messages may be lost with it. Messages to such a peer are dropped, and the peer is reported as silent. If
//! the bytes received cannot be the peer's records, every later poll fails and names the cause. Otherwise the
//! peer would be reported as silent seconds later, which would hide the cause.

mod doors;
mod handshake;
mod key;
mod peer;
mod record;
mod ticker;
mod watch;

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant as Clock};

use hiroba_base::NodeId;
use hiroba_base::legs::{self, Leg};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use thiserror::Error;

use self::doors::{Doors, Established};
use self::handshake::Identity;
use self::peer::{Flushed, Outbound, Peer, RECORDS_AT_ONCE, State};
use self::record::{Frame, INLINE_BYTES_MAX, Incoming, RECORD_BYTES_MAX, Unsound};
use self::ticker::{TICK, Ticker};
use self::watch::{Source, Watch};
use crate::link::LinkStatistics;
use crate::receiving::{self, Deliver, Receiving, Turn, Turns};
use crate::traits::{Capabilities, Fabric, FabricConfig, FabricError, assert_peer};
use crate::unsent::Unsent;
use crate::wake::WakeEvent;

/// Maximum number of bytes read from one connection at once; one buffer serves all connections.
const BUFFER_BYTES: usize = 4 * RECORD_BYTES_MAX;

/// Interval at which a draining thread checks whether another, receiving thread has done its work.
const DRAIN_LOOK: Duration = Duration::from_millis(1);

/// Reliable messages over TCP; see [`Fabric`] for the rules on threads.
pub struct TcpFabric {
    identity: Identity,
    peers: Vec<Peer>,
    /// All watched descriptors: what callers wait on.
    watch: Watch,
    ticker: Ticker,
    /// The peer that was sent something last: the most likely source of an answer.
    expected: AtomicUsize,
    /// Bytes that wait for sockets, over all peers.
    backlog_bytes: AtomicUsize,
    connected: AtomicUsize,
    messages_received: AtomicU64,
    rejected: AtomicU64,
    receiving: Receiving<Inbound>,
}

/// State needed for receiving; belongs to the thread in the receiving role.
pub(crate) struct Inbound {
    doors: Doors,
    /// The receiving halves, by node.
    links: Vec<Option<Link>>,
    arrivals: Arrivals,
    events: Vec<(Source, EventFlags)>,
    /// True if the last turn found something from the expected peer; this turn then looks everywhere.
    look_everywhere: bool,
    /// Messages that arrived while draining.
    kept: VecDeque<(NodeId, Vec<u8>)>,
    /// The invalid bytes that a peer sent; nothing is received after them.
    garbage: Option<Garbage>,
}

/// The bytes received over an established connection are not what the peer has sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "node {from} sent an invalid message over tcp: {cause}; look for a program that writes to descriptors which it has not \
     opened, and for a device that changes packets between the two nodes"
)]
struct Garbage {
    from: NodeId,
    cause: Unsound,
}

impl From<Garbage> for io::Error {
    fn from(garbage: Garbage) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, garbage)
    }
}

/// The receiving half of a connection.
struct Link {
    incoming: Incoming,
    /// The number of records received until the last tick.
    count_at_tick: u64,
}

/// Bytes that were read and not delivered. They survive a `deliver` that panics.
struct Arrivals {
    buffer: Box<[u8]>,
    from: NodeId,
    /// The records not yet opened.
    records: Range<usize>,
    /// The frames of the record opened last that are not yet taken.
    frames: Range<usize>,
}

fn system(action: &'static str) -> impl Fn(Errno) -> FabricError {
    move |errno| FabricError::System { action, source: errno.into() }
}

impl TcpFabric {
    /// Opens the fabric of a node on `listener`, a TCP socket that is bound to the node's address and
    /// listens.
    ///
    /// Begins at once to connect to the nodes of lower numbers, which need not have opened theirs.
    ///
    /// # Errors
    ///
    /// Fails if the node or the number of addresses is out of bounds, if the socket does not listen, or if
    /// the system has no descriptors left.
    pub fn open(listener: OwnedFd, config: FabricConfig) -> Result<TcpFabric, FabricError> {
        TcpFabric::with_records(listener, config, true)
    }

    /// Opens the fabric like [`open`](Self::open), with records that bear empty tags once both sides have
    /// proved their identity: to measure the cost of sealing.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn without_seal(listener: OwnedFd, config: FabricConfig) -> Result<TcpFabric, FabricError> {
        TcpFabric::with_records(listener, config, false)
    }

    fn with_records(
        listener: OwnedFd,
        config: FabricConfig,
        seals_records: bool,
    ) -> Result<TcpFabric, FabricError> {
        let nodes = config.nodes()?;
        let FabricConfig { local, addresses, job, key, .. } = config;
        let identity = Identity { key, job, local, nodes, seals_records };
        let watch = Watch::new().map_err(system("make an epoll descriptor"))?;
        let wake = WakeEvent::new().map_err(system("make an eventfd"))?;
        let ticker = Ticker::new().map_err(system("make a timerfd"))?;
        let add = |descriptor, source| {
            watch.add(descriptor, source, EventFlags::IN).map_err(system("add to an epoll descriptor"))
        };
        add(wake.as_fd(), Source::Wake)?;
        add(ticker.as_fd(), Source::Ticker)?;
        let doors = Doors::open(identity.clone(), listener, &addresses, &watch)
            .map_err(|source| FabricError::System { action: "listen on a TCP socket", source })?;
        if doors.need_ticks() {
            ticker.start().map_err(|source| FabricError::System { action: "set a timerfd", source })?;
        }
        let arrivals = Arrivals {
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            from: local,
            records: 0..0,
            frames: 0..0,
        };
        let inbound = Inbound {
            doors,
            links: (0..nodes).map(|_| None).collect(),
            arrivals,
            events: Vec::new(),
            look_everywhere: false,
            kept: VecDeque::new(),
            garbage: None,
        };
        Ok(TcpFabric {
            expected: AtomicUsize::new(identity.local.index()),
            identity,
            peers: (0..nodes).map(|_| Peer::new()).collect(),
            watch,
            ticker,
            backlog_bytes: AtomicUsize::new(0),
            connected: AtomicUsize::new(0),
            messages_received: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            receiving: Receiving::new(inbound, wake),
        })
    }

    /// Returns the number of peers that have connected and proved their identity, including those whose
    /// connections have ended since.
    pub fn peers_connected(&self) -> usize {
        self.connected.load(Ordering::SeqCst)
    }

    /// Writes to a peer's socket as much as it takes, and watches for room for the rest.
    fn transmit(&self, to: NodeId, outbound: &mut Outbound) {
        if let Some(socket) = self.peers[to.index()].socket.get()
            && !outbound.is_blocked
            && outbound.flush(socket) == Flushed::Blocked
        {
            outbound.is_blocked = true;
            self.watch.change(socket, Source::Peer(to), EventFlags::IN | EventFlags::OUT);
        }
        let (bytes, counted) = (outbound.outgoing.bytes(), outbound.backlog_counted);
        if bytes != counted {
            outbound.backlog_counted = bytes;
            self.backlog_bytes.fetch_add(bytes.wrapping_sub(counted), Ordering::Relaxed);
        }
    }

    /// Adds a connection on which both sides have proved their identity.
    fn establish(&self, inbound: &mut Inbound, established: Established) {
        let Established { peer: node, socket, incoming, key } = established;
        let peer = &self.peers[node.index()];
        let mut outbound = peer.outbound();
        if let Err(socket) = peer.socket.set(socket) {
            // An established connection is never replaced.
            self.watch.remove(&socket);
            self.rejected.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if let Some(socket) = peer.socket.get() {
            self.watch.change(socket, Source::Peer(node), EventFlags::IN);
        }
        inbound.links[node.index()] = Some(Link { incoming, count_at_tick: 0 });
        *peer.unconnected() = None;
        outbound.state = State::Open(key);
        self.transmit(node, &mut outbound);
        self.connected.fetch_add(1, Ordering::SeqCst);
        if self.identity.awaits(node) {
            inbound.doors.count_arrival(&self.watch);
        }
    }

    /// Ends a connection that was closed, or over which invalid bytes came.
    fn break_off(&self, inbound: &mut Inbound, node: NodeId) -> io::Result<()> {
        inbound.links[node.index()] = None;
        let peer = &self.peers[node.index()];
        let mut outbound = peer.outbound();
        if let Some(socket) = peer.socket.get() {
            self.watch.remove(socket);
            let _ = shutdown(socket, Shutdown::Both);
        }
        outbound.break_off();
        self.transmit(node, &mut outbound);
        self.ticker.start()
    }

    /// Reads what has arrived from `node`, up to a buffer full, and delivers it.
    fn receive(
        &self,
        inbound: &mut Inbound,
        node: NodeId,
        deliver: &mut dyn FnMut(NodeId, &[u8]),
    ) -> io::Result<Turn> {
        let Inbound { links, arrivals, .. } = inbound;
        let (Some(link), Some(socket)) = (&mut links[node.index()], self.peers[node.index()].socket.get())
        else {
            return Ok(Turn::Nothing);
        };
        let kept_bytes = link.incoming.kept().len();
        match recv(socket, &mut arrivals.buffer[kept_bytes..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => self.break_off(inbound, node)?,
            Ok((_, got)) => {
                legs::end(Leg::Receive);
                arrivals.buffer[..kept_bytes].copy_from_slice(link.incoming.kept());
                link.incoming.keep(&[]);
                (arrivals.from, arrivals.records, arrivals.frames) = (node, 0..kept_bytes + got, 0..0);
                self.hand_out(inbound, deliver)?;
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::NOMEM | Errno::NOBUFS) => return Ok(Turn::Nothing),
            Err(_) => self.break_off(inbound, node)?,
        }
        Ok(Turn::Something)
    }

    /// Delivers what was read.
    fn hand_out(&self, inbound: &mut Inbound, deliver: &mut dyn FnMut(NodeId, &[u8])) -> io::Result<()> {
        let Inbound { links, arrivals, .. } = inbound;
        let from = arrivals.from;
        let Some(link) = &mut links[from.index()] else { return Ok(()) };
        if let Err(cause) = self.hand_out_sound(link, arrivals, deliver) {
            (arrivals.records, arrivals.frames) = (0..0, 0..0);
            self.rejected.fetch_add(1, Ordering::Relaxed);
            self.break_off(inbound, from)?;
            let garbage = *inbound.garbage.insert(Garbage { from, cause });
            return Err(garbage.into());
        }
        Ok(())
    }

    /// Delivers the valid part of it.
    fn hand_out_sound(
        &self,
        link: &mut Link,
        arrivals: &mut Arrivals,
        deliver: &mut dyn FnMut(NodeId, &[u8]),
    ) -> Result<(), Unsound> {
        let Arrivals { buffer, from, records, frames } = arrivals;
        let peer = &self.peers[from.index()];
        loop {
            while frames.start < frames.end {
                let (frame, length) = link.incoming.take(&buffer[frames.clone()])?;
                frames.start += length;
                match frame {
                    Frame::Message(bytes) => {
                        self.messages_received.fetch_add(1, Ordering::Relaxed);
                        legs::end(Leg::Link);
                        deliver(*from, bytes);
                    }
                    Frame::Part => {}
                    Frame::Ping => {
                        let mut outbound = peer.outbound();
                        outbound.answer(link.incoming.messages());
                        self.transmit(*from, &mut outbound);
                    }
                    Frame::Pong(messages) => peer.outbound().acknowledge(messages),
                }
            }
            let Some((opened, end)) = link.incoming.open(&mut buffer[records.clone()])? else {
                link.incoming.keep(&buffer[records.clone()]);
                *records = 0..0;
                return Ok(());
            };
            *frames = records.start + opened.start..records.start + opened.end;
            records.start += end;
            peer.is_heard();
            legs::end(Leg::Open);
        }
    }

    fn handle(
        &self,
        inbound: &mut Inbound,
        source: Source,
        flags: EventFlags,
        deliver: &mut dyn FnMut(NodeId, &[u8]),
    ) -> io::Result<Turn> {
        let established = match source {
            Source::Peer(node) => {
                if flags.contains(EventFlags::OUT) {
                    let mut outbound = self.peers[node.index()].outbound();
                    outbound.is_blocked = false;
                    self.transmit(node, &mut outbound);
                    if !outbound.is_blocked
                        && let Some(socket) = self.peers[node.index()].socket.get()
                    {
                        self.watch.change(socket, Source::Peer(node), EventFlags::IN);
                    }
                }
                if flags == EventFlags::OUT {
                    return Ok(Turn::Nothing);
                }
                return self.receive(inbound, node, deliver);
            }
            Source::Wake => return Ok(Turn::Nothing),
            Source::Ticker => return self.tick(inbound).map(|()| Turn::Nothing),
            Source::Listener => {
                inbound.doors.accept(&self.watch);
                None
            }
            Source::Caller(number) => inbound.doors.hear_caller(number, &self.watch),
            Source::Dial(node) => inbound.doors.hear_dialled(node, flags, &self.watch),
        };
        if let Some(established) = established {
            self.establish(inbound, established);
        }
        self.rejected.fetch_add(std::mem::take(&mut inbound.doors.refused), Ordering::Relaxed);
        if inbound.doors.need_ticks() {
            self.ticker.start()?;
        }
        Ok(Turn::Nothing)
    }

    /// Checks the peers that owe an answer and the connections that are not established.
    fn tick(&self, inbound: &mut Inbound) -> io::Result<()> {
        self.ticker.stop();
        inbound.doors.tick(&self.watch);
        self.rejected.fetch_add(std::mem::take(&mut inbound.doors.refused), Ordering::Relaxed);
        for (node, unconnected) in inbound.doors.unconnected() {
            *self.peers[node.index()].unconnected() = Some(unconnected);
        }
        let mut goes_on = inbound.doors.need_ticks();
        for node in NodeId::all(self.identity.nodes).filter(|node| *node != self.identity.local) {
            goes_on |= self.look_after(inbound.links[node.index()].as_mut(), node);
        }
        if goes_on { self.ticker.start() } else { Ok(()) }
    }

    /// Returns true if the peer owes an answer, and counts the ticks since it does.
    fn look_after(&self, link: Option<&mut Link>, node: NodeId) -> bool {
        let peer = &self.peers[node.index()];
        let mut outbound = peer.outbound();
        let is_silent = match (&outbound.state, link) {
            (State::Open(_), Some(link)) => {
                let count = link.incoming.count();
                let is_heard = std::mem::replace(&mut link.count_at_tick, count) != count;
                let was_asked = outbound.is_asked;
                if !outbound.is_owed() {
                    peer.silent_ticks.store(0, Ordering::Relaxed);
                    return false;
                }
                outbound.ask();
                self.transmit(node, &mut outbound);
                was_asked && !is_heard
            }
            (State::Waiting, _) if outbound.messages_sent == 0 => return false,
            _ => true,
        };
        if is_silent {
            peer.silent_ticks.fetch_add(1, Ordering::Relaxed);
        } else {
            peer.silent_ticks.store(0, Ordering::Relaxed);
        }
        true
    }

    /// Asks every peer that has not acknowledged everything. Returns true if all have.
    fn ask_all(&self) -> bool {
        let mut is_drained = true;
        for node in NodeId::all(self.identity.nodes) {
            let mut outbound = self.peers[node.index()].outbound();
            if outbound.is_owed() {
                is_drained = false;
                outbound.ask();
                self.transmit(node, &mut outbound);
            }
        }
        is_drained
    }

    fn drain_until(&self, deadline: Clock) -> io::Result<bool> {
        while !self.ask_all() {
            let now = Clock::now();
            if now >= deadline {
                return Ok(false);
            }
            // Another thread that receives handles the answers as well as we would.
            let look = deadline.min(now + DRAIN_LOOK);
            let Some(mut role) = self.receiving.role.wait(Some(look), || false) else { continue };
            let inbound = role.inner();
            let mut kept = std::mem::take(&mut inbound.kept);
            let turn = self.turn(inbound, &mut |from, bytes| kept.push_back((from, bytes.to_vec())));
            inbound.kept = kept;
            drop(role);
            if turn? == Turn::Nothing {
                receiving::sleep(self, self.receiving.wake.count(), Some(look))?;
            }
        }
        Ok(true)
    }
}

impl Turns for TcpFabric {
    type Inbound = Inbound;

    fn receiving(&self) -> &Receiving<Inbound> {
        &self.receiving
    }

    /// Takes one turn in the receiving role.
    fn turn(&self, inbound: &mut Inbound, deliver: Deliver<'_>) -> io::Result<Turn> {
        let mut turn = Turn::Nothing;
        while let Some((from, message)) = inbound.kept.pop_front() {
            turn = Turn::Something;
            deliver(from, &message);
        }
        if let Some(garbage) = inbound.garbage {
            return Err(garbage.into());
        }
        if !(inbound.arrivals.records.is_empty() && inbound.arrivals.frames.is_empty()) {
            self.hand_out(inbound, deliver)?;
        }
        // Mostly the answer comes from the peer that was asked; looking there first saves a system call.
        if !std::mem::take(&mut inbound.look_everywhere) {
            let expected = NodeId(self.expected.load(Ordering::Relaxed) as u16);
            if self.receive(inbound, expected, deliver)? == Turn::Something {
                inbound.look_everywhere = true;
                return Ok(Turn::Something);
            }
        }
        let mut events = std::mem::take(&mut inbound.events);
        self.watch.ready(&mut events)?;
        for &(source, flags) in &events {
            if self.handle(inbound, source, flags, deliver)? == Turn::Something {
                turn = Turn::Something;
            }
        }
        inbound.events = events;
        Ok(turn)
    }

    fn watched(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [Some(self.watch.as_fd()), None]
    }
}

impl Fabric for TcpFabric {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            one_sided: false,
            shared_frames: false,
            remote_atomics: false,
            ordered: true,
            reliable: true,
            max_inline_bytes: INLINE_BYTES_MAX,
        }
    }

    fn local(&self) -> NodeId {
        self.identity.local
    }

    fn nodes(&self) -> u16 {
        self.identity.nodes
    }

    fn send_unsent(&self, to: NodeId, message: Unsent<'_>) {
        self.post(to, message);
        self.push(to);
    }

    fn post(&self, to: NodeId, mut message: Unsent<'_>) -> bool {
        assert_peer(to, self.identity.local, self.identity.nodes);
        let mut outbound = self.peers[to.index()].outbound();
        outbound.messages_sent += 1;
        if matches!(outbound.state, State::Broken) {
            return false;
        }
        while outbound.outgoing.put(&mut message) {
            // The socket gets the beginning of a long message while the end is still to be copied.
            if outbound.outgoing.len() >= RECORDS_AT_ONCE {
                self.transmit(to, &mut outbound);
            }
        }
        legs::end(Leg::Queue);
        true
    }

    fn push(&self, to: NodeId) {
        let mut outbound = self.peers[to.index()].outbound();
        if !matches!(outbound.state, State::Broken) {
            self.transmit(to, &mut outbound);
        }
        drop(outbound);
        self.expected.store(to.index(), Ordering::Relaxed);
        // It cannot fail for a valid timerfd and time. If it did, the only effect would be unnoticed silence.
        let _ = self.ticker.start();
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

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    fn next_timeout(&self) -> Option<Duration> {
        self.ticker.due_in()
    }

    fn wake(&self) {
        self.receiving.wake();
    }

    /// Returns the bytes not yet taken by the socket. TCP's own window bounds the bytes beyond.
    fn backlog_bytes(&self, to: NodeId) -> usize {
        self.peers[to.index()].outbound().outgoing.bytes()
    }

    fn backlog_bytes_all(&self) -> usize {
        self.backlog_bytes.load(Ordering::Relaxed)
    }

    fn drain(&self, deadline: Duration) -> bool {
        Clock::now().checked_add(deadline).is_some_and(|deadline| self.drain_until(deadline).unwrap_or(false))
    }

    fn statistics(&self) -> LinkStatistics {
        let mut statistics = LinkStatistics {
            messages_received: self.messages_received.load(Ordering::Relaxed),
            datagrams_rejected: self.rejected.load(Ordering::Relaxed),
            ..LinkStatistics::default()
        };
        for peer in &self.peers {
            let outbound = peer.outbound();
            statistics.messages_sent += outbound.messages_sent;
            statistics.datagrams_sent += outbound.outgoing.count();
            statistics.bytes_sent += outbound.bytes_sent;
        }
        statistics
    }

    /// Counts in ticks of this node, so that a node that was itself stopped does not blame the others.
    fn longest_silence(&self) -> Option<(NodeId, Duration)> {
        let ticks = |node: NodeId| self.peers[node.index()].silent_ticks.load(Ordering::Relaxed);
        let (ticks, node) = NodeId::all(self.identity.nodes)
            .map(|node| (ticks(node), node))
            .max_by_key(|(ticks, _)| *ticks)?;
        (ticks > 0).then(|| (node, TICK * ticks))
    }

    fn why_unconnected(&self, peer: NodeId) -> Option<String> {
        self.peers[peer.index()].unconnected().map(|unconnected| unconnected.to_string())
    }
}
