//! The fabric of nodes on one machine, over shared memory.
//!
//! ```text
//!   mod.rs        ShmFabric: sends, polls, drains              one_sided.rs  words, announcements
//!   ring.rs       messages: one ring a sender and receiver     frames.rs     copies of other nodes' frames
//!   bell.rs       sleeping, and waking peers                   silence.rs    peers that take nothing
//!   board.rs      the layout of boards                         mapping.rs    memory that others change
//!   landing.rs    out-of-line data put into their places
//! ```
//!
//! The launcher makes three files per node, which all nodes inherit. *Frames* is the memory file with the
//! node's part of the shared region. On the *board* other nodes leave messages and announcements for it and
//! read its words; at its end they put out-of-line data into their places. The *doorbell* is an eventfd. None
//! has a name that another process could open; only a process that may trace the nodes (the same user, or
//! root) reaches them, through `/proc`. Messages therefore need neither authentication nor encryption:
//! nothing leaves the machine, and a process that could read a board could read the nodes' memory itself. For
//! the same reason nothing is lost, duplicated or reordered.
//!
//! `send` puts a message into its ring at the receiver when there is room, and queues it otherwise. Queues
//! move on in every poll, and when the receiver rings after taking something out of the ring.
//!
//! A faulty peer may write anything on the boards, which every node has mapped. Values read there are copied
//! once and checked against their bounds. A value out of bounds makes the next poll fail, and the node cannot
//! go on. A peer that has died is only silent; other code notices that.

mod bell;
mod board;
mod frames;
mod landing;
mod mapping;
mod one_sided;
mod ring;
mod silence;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant as Clock};

use hiroba_base::NodeId;
use hiroba_base::legs::{self, Leg};
use hiroba_wire::Payload;
use rustix::event::epoll;
use rustix::process::{Resource, getrlimit};

use self::bell::Bells;
use self::board::{Board, Layout};
use self::frames::{Frames, WindowCount};
use self::landing::Landing;
use self::one_sided::Logs;
use self::ring::{Consumer, Nonsense, Producer, Taken, fragment_bytes_max};
use self::silence::Silences;
use crate::link::LinkStatistics;
use crate::receiving::{self, Deliver, Receiving, Turn, Turns};
use crate::traits::{Capabilities, Fabric, FabricConfig, FabricError, OneSided, Receiver, assert_peer};
use crate::unsent::Unsent;
use crate::wake::WakeEvent;

/// Frames taken out of one ring before the next ring has its turn.
const FRAMES_A_TURN: usize = 64;

/// Number of looks at all rings in one poll; what arrives later waits for the next poll.
const LOOKS_A_POLL: usize = 4;

/// The fraction of a ring that may be filled with messages without waking the receiver.
const UNHURRIED_SHARE: usize = 4;

/// Interval at which a draining thread checks whether another, receiving thread has done its work.
const DRAIN_LOOK: Duration = Duration::from_millis(1);

/// The files that the nodes of a job share, by node; see the module's head.
#[derive(Debug, Default)]
pub struct ShmFiles {
    /// Each node's frames: memory files that may be sealed.
    pub frames: Vec<OwnedFd>,
    /// Each node's board: memory files that may be sealed, of length zero until a fabric is first opened on
    /// them.
    pub boards: Vec<OwnedFd>,
    /// Each node's doorbell: non-blocking eventfds.
    pub doorbells: Vec<OwnedFd>,
}

/// Messages and one-sided reads between processes of one machine; see [`Fabric`] for the rules on threads.
pub struct ShmFabric {
    nodes: u16,
    local: NodeId,
    layout: Layout,
    boards: Vec<Board>,
    frames: Vec<Frames>,
    windows_open: WindowCount,
    bells: Bells,
    logs: Logs,
    /// The descriptor that callers wait on: readable when the doorbell or the wake event is.
    descriptor: OwnedFd,
    /// True if the boards are mapped with their landing pools.
    lands: bool,
    outbound: Vec<Outbound>,
    receiving: Receiving<Inbound>,
    messages_received: AtomicU64,
    silences: Silences,
    failed: AtomicBool,
    /// The invalid value that a peer has left, in words.
    failure: Mutex<Option<String>>,
}

/// The state of sending to one peer.
struct Outbound {
    sending: Mutex<Sending>,
    /// Bytes in the queue of `sending`.
    queued_bytes: AtomicUsize,
    /// The tail of `sending`'s ring.
    tail: AtomicU64,
    landing: Landing,
}

struct Sending {
    ring: Producer,
    /// Messages, or their rests, for which there was no room.
    queue: VecDeque<Queued>,
    queued_bytes: usize,
    messages: u64,
}

struct Queued {
    bytes: Vec<u8>,
    sent: usize,
    payload_bytes: usize,
}

/// Takes whole messages.
struct Whole<'a>(Deliver<'a>);

impl Receiver for Whole<'_> {
    fn take(&mut self, from: NodeId, message: &[u8]) {
        (self.0)(from, message);
    }

    fn take_with_payload(&mut self, from: NodeId, head: &[u8], payload: &mut dyn Payload) {
        (self.0)(from, &hiroba_wire::joined(head, payload));
    }
}

/// State needed for receiving; belongs to the thread in the receiving role.
pub(crate) struct Inbound {
    rings: Vec<Consumer>,
    /// The ring that has the first turn.
    first: usize,
    buffer: Box<[u8]>,
    /// Messages that arrived while a thread drained.
    kept: VecDeque<(NodeId, Vec<u8>)>,
}

fn system(action: &'static str) -> impl Fn(io::Error) -> FabricError {
    move |source| FabricError::System { action, source }
}

impl ShmFabric {
    /// Opens the fabric of a node on the files of its job.
    ///
    /// # Errors
    ///
    /// Fails if the node or the number of files is out of bounds, if the files cannot be mapped or sealed, or
    /// if the system has no descriptors left.
    pub fn open(files: ShmFiles, config: &FabricConfig) -> Result<ShmFabric, FabricError> {
        let nodes = config.nodes()?;
        let local = config.local;
        let ShmFiles { frames, boards, doorbells } = files;
        check_counts(nodes, [&frames, &boards, &doorbells])?;
        let layout = Layout::new(nodes);
        // Landing pools would use up the address space that a limit leaves to the program.
        let lands = getrlimit(Resource::As).current.is_none();
        let open = |file| Board::open(file, layout, lands);
        let boards = boards.into_iter().map(open).collect::<io::Result<Vec<_>>>();
        let frames = frames.into_iter().map(Frames::new).collect::<io::Result<Vec<_>>>();
        let wake = WakeEvent::new().map_err(|errno| system("make an eventfd")(errno.into()))?;
        let bells = Bells::new(local, doorbells);
        let fabric = ShmFabric {
            nodes,
            local,
            layout,
            boards: boards.map_err(system("map a node's board"))?,
            frames: frames.map_err(system("use a node's memory file"))?,
            windows_open: WindowCount::default(),
            logs: Logs::new(nodes),
            descriptor: descriptor(&bells, &wake)?,
            bells,
            lands,
            outbound: NodeId::all(nodes).map(|node| Outbound::new(local, node, &layout)).collect(),
            receiving: Receiving::new(Inbound::new(nodes, &layout), wake),
            messages_received: AtomicU64::new(0),
            silences: Silences::new(nodes),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
        };
        fabric.let_sleep();
        Ok(fabric)
    }

    fn own_board(&self) -> &Board {
        &self.boards[self.local.index()]
    }

    fn peers(&self) -> impl Iterator<Item = NodeId> + use<> {
        let local = self.local;
        NodeId::all(self.nodes).filter(move |node| *node != local)
    }

    /// Records that a peer has left an invalid value: the next poll fails with it.
    fn fail(&self, nonsense: &Nonsense) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert_with(|| nonsense.to_string());
        self.failed.store(true, Ordering::Release);
        self.bells.ring_own(self.own_board());
    }

    fn check_failure(&self) -> io::Result<()> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        Err(io::Error::new(io::ErrorKind::InvalidData, failure.clone().unwrap_or_default()))
    }

    /// Lets the node sleep, or wakes it when something has arrived meanwhile.
    fn let_sleep(&self) {
        self.bells.fall_asleep(self.own_board());
        if self.has_work() {
            self.bells.ring_own(self.own_board());
        }
    }

    /// Returns true if a ring has something for us, or if a ring that we wait for has ample room now.
    fn has_work(&self) -> bool {
        let board = self.own_board();
        self.peers().any(|peer| {
            let arrived = board.ring_tail(peer).load(Ordering::Relaxed);
            arrived != board.ring_head(peer).load(Ordering::Relaxed)
                || self.outbound[peer.index()].queued_bytes.load(Ordering::Relaxed) > 0
                    && self.has_ample_room(peer)
        })
    }

    /// Returns the number of bytes in the ring at `peer`.
    fn untaken_bytes(&self, peer: NodeId) -> u64 {
        let head = self.boards[peer.index()].ring_head(self.local).load(Ordering::Relaxed);
        self.outbound[peer.index()].tail.load(Ordering::Relaxed).saturating_sub(head)
    }

    /// Returns true if at least half of the ring at `peer` is free, so that the longest fragment fits.
    fn has_ample_room(&self, peer: NodeId) -> bool {
        self.untaken_bytes(peer) <= self.layout.ring_bytes as u64 / 2
    }

    fn look(&self, inbound: &mut Inbound, receiver: &mut dyn Receiver) -> io::Result<Turn> {
        self.check_failure()?;
        let mut turn = self.move_queues_on();
        while let Some((from, message)) = inbound.kept.pop_front() {
            turn = Turn::Something;
            receiver.take(from, &message);
        }
        let nodes = inbound.rings.len();
        for index in (inbound.first..nodes).chain(0..inbound.first) {
            if index != self.local.index() && !inbound.rings[index].is_empty(self.own_board()) {
                inbound.first = index + 1;
                turn = Turn::Something;
                legs::end(Leg::Receive);
                self.empty_ring(inbound, NodeId(index as u16), receiver)?;
            }
        }
        Ok(turn)
    }

    fn empty_ring(&self, inbound: &mut Inbound, from: NodeId, receiver: &mut dyn Receiver) -> io::Result<()> {
        let board = self.own_board();
        for _ in 0..FRAMES_A_TURN {
            let ring = &mut inbound.rings[from.index()];
            let was_ample = ring.has_ample_room();
            // So that the sender continues while the rest is taken.
            let tell_if_ample = |ring: &Consumer| {
                if !was_ample && ring.has_ample_room() {
                    self.tell_of_room(from);
                }
            };
            let taken = ring.next(board, &mut inbound.buffer).inspect_err(|nonsense| self.fail(nonsense));
            tell_if_ample(ring);
            match taken.map_err(|nonsense| io::Error::new(io::ErrorKind::InvalidData, nonsense))? {
                Taken::Nothing => break,
                Taken::Piece => {}
                Taken::Message(length) => {
                    self.count_received();
                    legs::end(Leg::Link);
                    receiver.take(from, &inbound.buffer[..length]);
                }
                Taken::LongMessage => {
                    self.count_received();
                    let message = ring.long();
                    legs::end(Leg::Link);
                    receiver.take(from, &message);
                    ring.recycle(message);
                }
                Taken::WithPayload(head, payload) => {
                    self.count_received();
                    legs::end(Leg::Link);
                    let head = &inbound.buffer[..head];
                    receiver.take_with_payload(from, head, &mut payload.on(board));
                    ring.release(board);
                    tell_if_ample(ring);
                }
            }
        }
        if inbound.rings[from.index()].has_ample_room() {
            self.tell_of_room(from);
        }
        Ok(())
    }

    /// Counts a message; only the thread in the role does.
    fn count_received(&self) {
        let before = self.messages_received.load(Ordering::Relaxed);
        self.messages_received.store(before + 1, Ordering::Relaxed);
    }

    /// Wakes a sleeping sender that has messages queued.
    fn tell_of_room(&self, sender: NodeId) {
        // SYNC POINT: pairs with the fences in `push_queue` and `fall_asleep`, which stand between the
        // sender's wish or sleep and its next look at the head. Either it sees the head that was stored
        // before, or we see its wish and its sleep.
        fence(Ordering::SeqCst);
        if self.own_board().wants_room(sender).load(Ordering::Relaxed) != 0 {
            self.bells.ring(sender, &self.boards[sender.index()]);
        }
    }

    /// Moves queued messages to rings that have room. A caller may wait for just that.
    fn move_queues_on(&self) -> Turn {
        let mut turn = Turn::Nothing;
        for peer in self.peers() {
            let outbound = &self.outbound[peer.index()];
            if outbound.queued_bytes.load(Ordering::Relaxed) > 0 {
                let mut sending = outbound.sending();
                let before = sending.queued_bytes;
                self.push_queue(peer, outbound, &mut sending);
                if sending.queued_bytes < before {
                    turn = Turn::Something;
                }
            }
        }
        turn
    }

    fn push_queue(&self, peer: NodeId, outbound: &Outbound, sending: &mut Sending) {
        let board = &self.boards[peer.index()];
        let before = sending.ring.tail();
        loop {
            let pushed = sending.push_queue(board);
            outbound.tail.store(sending.ring.tail(), Ordering::Relaxed);
            outbound.queued_bytes.store(sending.queued_bytes, Ordering::Relaxed);
            board.wants_room(self.local).store(u64::from(sending.queued_bytes > 0), Ordering::Relaxed);
            if let Err(nonsense) = pushed {
                self.fail(&nonsense);
                break;
            }
            // SYNC POINT: pairs with the fence in `tell_of_room`: the receiver has seen the wish, or we see
            // the room.
            fence(Ordering::SeqCst);
            if sending.queue.is_empty() || !self.has_ample_room(peer) {
                break;
            }
        }
        if sending.ring.tail() != before {
            self.bells.ring(peer, board);
        }
    }

    /// Puts a message into the receiver's ring, or into the queue for it.
    fn put(&self, to: NodeId, mut message: Unsent<'_>) {
        assert_peer(to, self.local, self.nodes);
        let outbound = &self.outbound[to.index()];
        let mut sending = outbound.sending();
        sending.messages += 1;
        if sending.queue.is_empty() {
            let board = &self.boards[to.index()];
            let whole = sending.ring.push(board, &mut message).inspect_err(|nonsense| self.fail(nonsense));
            outbound.tail.store(sending.ring.tail(), Ordering::Relaxed);
            if whole.unwrap_or(false) {
                legs::end(Leg::Queue);
                return;
            }
        }
        sending.enqueue(message);
        self.push_queue(to, outbound, &mut sending);
    }

    /// Takes one turn in the receiving role: sends what was queued, delivers what has arrived.
    ///
    /// Meanwhile peers need not ring. At its end the node may sleep: everything put on its board before is
    /// received, or makes the descriptor readable.
    fn take_turn(&self, inbound: &mut Inbound, receiver: &mut dyn Receiver) -> io::Result<Turn> {
        if self.bells.is_spinning() {
            // An earlier ring would wake the threads that wait on the descriptor again and again.
            self.bells.silence_if_rung(self.own_board());
            return self.look(inbound, receiver);
        }
        self.bells.silence(self.own_board());
        let mut turn = Turn::Nothing;
        for _ in 0..LOOKS_A_POLL {
            self.bells.stay_awake(self.own_board());
            let look = self.look(inbound, receiver);
            if self.bells.is_spinning() {
                return look;
            }
            self.bells.fall_asleep(self.own_board());
            if look? == Turn::Something {
                turn = Turn::Something;
            }
            if !self.has_work() {
                return Ok(turn);
            }
        }
        self.bells.ring_own(self.own_board());
        Ok(turn)
    }

    fn drain_until(&self, deadline: Clock) -> io::Result<bool> {
        loop {
            if let Some(mut role) = self.receiving.role.try_take() {
                let inbound = role.inner();
                let mut kept = std::mem::take(&mut inbound.kept);
                let result = self.turn(inbound, &mut |from, bytes| kept.push_back((from, bytes.to_vec())));
                if !kept.is_empty() {
                    self.bells.ring_own(self.own_board());
                }
                inbound.kept = kept;
                result?;
            }
            if self.backlog_bytes_all() == 0 {
                return Ok(true);
            }
            let now = Clock::now();
            if now >= deadline {
                return Ok(false);
            }
            receiving::sleep(self, self.receiving.wake.count(), Some(deadline.min(now + DRAIN_LOOK)))?;
        }
    }
}

/// The size that the queue counts per message in addition to its bytes, so that a queue of empty messages
/// does not count as empty.
const QUEUED_OVERHEAD_BYTES: usize = size_of::<Queued>();

impl Outbound {
    fn new(local: NodeId, peer: NodeId, layout: &Layout) -> Outbound {
        let ring = Producer::new(local, peer, layout.ring_bytes);
        Outbound {
            sending: Mutex::new(Sending { ring, queue: VecDeque::new(), queued_bytes: 0, messages: 0 }),
            queued_bytes: AtomicUsize::new(0),
            tail: AtomicU64::new(0),
            landing: Landing::default(),
        }
    }

    /// Locks the state of sending. The lock is held for copies and for a system call that does not block.
    fn sending(&self) -> MutexGuard<'_, Sending> {
        self.sending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sending {
    fn enqueue(&mut self, mut message: Unsent) {
        let payload_bytes = if message.is_whole() { message.payload_bytes() } else { 0 };
        let rest = message.rest();
        let mut bytes = Vec::with_capacity(rest);
        message.move_into(&mut bytes, rest);
        self.queued_bytes += bytes.len() + QUEUED_OVERHEAD_BYTES;
        self.queue.push_back(Queued { bytes, sent: 0, payload_bytes });
    }

    /// Puts as much into the ring as there is room for.
    fn push_queue(&mut self, board: &Board) -> Result<(), Nonsense> {
        while let Some(first) = self.queue.front_mut() {
            let parts = [&first.bytes[first.sent..]];
            let payload_bytes = if first.sent == 0 { first.payload_bytes } else { 0 };
            let mut message = Unsent::new(&parts).ending_in_payload(payload_bytes);
            let before = message.rest();
            let whole = self.ring.push(board, &mut message)?;
            let sent = before - message.rest();
            first.sent += sent;
            self.queued_bytes -= sent;
            if !whole {
                break;
            }
            self.queued_bytes -= QUEUED_OVERHEAD_BYTES;
            self.queue.pop_front();
        }
        Ok(())
    }
}

impl Inbound {
    fn new(nodes: u16, layout: &Layout) -> Inbound {
        Inbound {
            rings: NodeId::all(nodes).map(|sender| Consumer::new(sender, layout.ring_bytes)).collect(),
            first: 0,
            buffer: vec![0; fragment_bytes_max(layout.ring_bytes)].into_boxed_slice(),
            kept: VecDeque::new(),
        }
    }
}

impl Turns for ShmFabric {
    type Inbound = Inbound;

    fn receiving(&self) -> &Receiving<Inbound> {
        &self.receiving
    }

    fn turn(&self, inbound: &mut Inbound, deliver: Deliver<'_>) -> io::Result<Turn> {
        self.take_turn(inbound, &mut Whole(deliver))
    }

    fn watched(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [Some(self.bells.own()), None]
    }
}

impl Fabric for ShmFabric {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            one_sided: true,
            shared_frames: true,
            remote_atomics: false,
            ordered: true,
            reliable: true,
            max_inline_bytes: fragment_bytes_max(self.layout.ring_bytes),
        }
    }

    fn local(&self) -> NodeId {
        self.local
    }

    fn nodes(&self) -> u16 {
        self.nodes
    }

    fn send_unsent(&self, to: NodeId, message: Unsent<'_>) {
        self.post(to, message);
        self.push(to);
    }

    /// Puts the message where a receiver that looks finds it; the push rings for one that sleeps.
    fn post(&self, to: NodeId, message: Unsent<'_>) -> bool {
        self.put(to, message);
        true
    }

    fn post_unhurried(&self, to: NodeId, message: Unsent<'_>) -> bool {
        self.put(to, message);
        let is_urgent = self.backlog_bytes(to) > self.layout.ring_bytes / UNHURRIED_SHARE;
        if !is_urgent {
            self.bells.ring_if_expecting(to, &self.boards[to.index()]);
        }
        is_urgent
    }

    fn push(&self, to: NodeId) {
        self.bells.ring_soon(to, &self.boards[to.index()]);
        legs::end(Leg::Send);
    }

    fn begin_expecting(&self) {
        self.bells.begin_expecting();
    }

    fn end_expecting(&self) {
        self.bells.end_expecting();
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
        self.bells.pay(&self.boards, false);
        receiving::poll_now(self, deliver)
    }

    fn receive_now(&self, receiver: &mut dyn Receiver) -> io::Result<bool> {
        self.bells.pay(&self.boards, false);
        receiving::turn_now(self, |inbound| self.take_turn(inbound, receiver))
    }

    fn begin_spinning(&self) -> bool {
        self.bells.begin_spinning(self.own_board());
        true
    }

    fn end_spinning(&self) {
        if !self.bells.end_spinning(self.own_board()) {
            return;
        }
        self.bells.pay(&self.boards, true);
        if self.has_work() {
            self.bells.ring_own(self.own_board());
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    fn next_timeout(&self) -> Option<Duration> {
        None
    }

    fn wake(&self) {
        self.receiving.wake();
    }

    fn backlog_bytes(&self, to: NodeId) -> usize {
        let queued = self.outbound[to.index()].queued_bytes.load(Ordering::Relaxed);
        // An invalid head is detected at the next look at it.
        queued + self.untaken_bytes(to) as usize
    }

    fn backlog_bytes_all(&self) -> usize {
        self.peers().map(|peer| self.backlog_bytes(peer)).sum()
    }

    fn drain(&self, deadline: Duration) -> bool {
        let end = Clock::now().checked_add(deadline);
        end.is_some_and(|end| self.drain_until(end).unwrap_or(false))
    }

    fn statistics(&self) -> LinkStatistics {
        let mut statistics = LinkStatistics {
            messages_received: self.messages_received.load(Ordering::Relaxed),
            ..LinkStatistics::default()
        };
        for outbound in &self.outbound {
            let sending = outbound.sending();
            statistics.messages_sent += sending.messages;
            statistics.datagrams_sent += sending.ring.frames;
            statistics.bytes_sent += sending.ring.frame_bytes + outbound.landing.bytes();
        }
        statistics
    }

    fn longest_silence(&self) -> Option<(NodeId, Duration)> {
        self.silences.longest(self)
    }

    fn one_sided(&self) -> Option<&dyn OneSided> {
        Some(self)
    }
}

fn check_counts(nodes: u16, files: [&Vec<OwnedFd>; 3]) -> Result<(), FabricError> {
    match files.iter().find(|files| files.len() != usize::from(nodes)) {
        None => Ok(()),
        Some(files) => Err(system("take over the job's shared files")(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("expected one of each kind for each of {nodes} nodes, got {}", files.len()),
        ))),
    }
}

/// Makes the descriptor that covers doorbell and wake event.
fn descriptor(bells: &Bells, wake: &WakeEvent) -> Result<OwnedFd, FabricError> {
    let failed = |errno: rustix::io::Errno| system("make an epoll descriptor")(errno.into());
    let descriptor = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
    for source in [bells.own(), wake.as_fd()] {
        epoll::add(&descriptor, source, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(failed)?;
    }
    Ok(descriptor)
}
