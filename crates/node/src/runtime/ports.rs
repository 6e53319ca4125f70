//! Ports: the engine that this node's threads call, and the node's part in its work.
//!
//! The engine has a lock of its own. A thread with the core's lock may take it, never the other way round.
//! The engine's packets go to the fabric under that lock, so that packets to one node keep their order.
//!
//! A message is a release and an acquire. Before a packet with a message is sent, its destination must
//! receive what was written before. The sending thread takes care of that. For messages that are forwarded
//! because a port has moved, the service thread does. The other node's engine may keep such a publication
//! back until a departure has arrived; packets that follow it then wait, too.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hiroba_base::legs::{self, Leg};
use hiroba_base::{Instant, NodeId};
use hiroba_fabric::{LandingPool, Unsent, populate};
use hiroba_ports::{
    Bytes, Call, Config, Disposition, Effect, Engine, Ground, Landing, Message, Name, Outcome, Patience,
    PeerError, PortError, Received, Region, RightToSend, Tail, Ticket, service,
};
use hiroba_protocol::{Synchronisation, Waiter};
use hiroba_trace::Event;
use hiroba_wire::{Payload, joined};
use rustc_hash::FxHashMap;
use rustix::event::{PollFd, PollFlags, poll};

use crate::call_site;
use crate::runtime::Runtime;
use crate::runtime::host::Core;
use crate::signals::SignalsDeferred;
use crate::threads::{self, Answer, PortAnswer, Purpose};
use crate::time_class::TimeClass;
use crate::timers::timespec;

/// A thread that waits for a message wakes at least this often.
const NAP: Duration = Duration::from_millis(100);

/// A polling thread checks the engine's timers once per this many polls, because reading the clock costs
/// about as much as a poll.
const POLLS_A_READING: u32 = 8;

/// A node's ports.
pub(crate) struct Ports {
    desk: Mutex<Desk>,
    began: std::time::Instant,
    /// When the engine has something to do, in nanoseconds since `began`.
    due_ns: AtomicU64,
    /// True if packets wait until other nodes have received what was written.
    owes: AtomicBool,
    /// True if packets from other nodes wait until earlier publications are absorbed.
    keeps: AtomicBool,
    /// The number of messages that threads have posted, if the run is traced.
    posted: AtomicU64,
}

/// The engine, and the threads that wait for it.
struct Desk {
    engine: Engine,
    next_ticket: Ticket,
    /// Calls that have not ended.
    waiting: FxHashMap<Ticket, Waiter>,
    /// Calls that have ended before their threads began to wait.
    results: FxHashMap<Ticket, Result<Outcome, PortError>>,
    /// Regions of messages that failing calls did not take. Their calls end next.
    returned: FxHashMap<Ticket, Vec<Region>>,
    /// Outgoing packets that wait, at most a window of each flow.
    outbox: BTreeMap<NodeId, VecDeque<Packet>>,
    /// Incoming packets that wait for their sender's publications.
    inbox: BTreeMap<NodeId, VecDeque<Vec<u8>>>,
}

/// The landing pool as the engine uses it.
#[derive(Debug)]
struct LandingGround(Arc<dyn LandingPool>);

impl Ground for LandingGround {
    fn bytes(&self) -> u64 {
        self.0.bytes() as u64
    }

    fn address(&self, offset: u64) -> *mut u8 {
        self.0.address(offset as usize)
    }

    fn append_to(&self, offset: u64, bytes: usize, into: &mut Vec<u8>) {
        self.0.append_to(offset as usize, bytes, into);
    }
}

struct Packet {
    bytes: Vec<u8>,
    tail: Option<Tail>,
    owes: bool,
}

impl Ports {
    /// Opens the ports of a node. Other nodes put long data into its landing pool, if it has one.
    pub(crate) fn new(me: NodeId, nodes: u16, landing: Option<Arc<dyn LandingPool>>) -> Ports {
        let mut engine = Engine::new(me, nodes, Config { make_ready: populate, ..Config::default() });
        if let Some(pool) = landing {
            engine.land_on(Arc::new(LandingGround(pool)));
        }
        let desk = Desk {
            engine,
            next_ticket: 1,
            waiting: FxHashMap::default(),
            results: FxHashMap::default(),
            returned: FxHashMap::default(),
            outbox: BTreeMap::new(),
            inbox: BTreeMap::new(),
        };
        Ports {
            desk: Mutex::new(desk),
            began: std::time::Instant::now(),
            due_ns: AtomicU64::new(u64::MAX),
            owes: AtomicBool::new(false),
            keeps: AtomicBool::new(false),
            posted: AtomicU64::new(0),
        }
    }

    fn now(&self) -> Instant {
        self.at(std::time::Instant::now())
    }

    /// Converts a reading of the clock to the engine's terms.
    fn at(&self, now: std::time::Instant) -> Instant {
        let since = now.saturating_duration_since(self.began);
        Instant::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if packets wait for earlier publications.
    pub(crate) fn keeps(&self) -> bool {
        self.keeps.load(Ordering::Relaxed)
    }
}

/// Calls of the program.
impl Runtime {
    /// Converts a timeout to the engine's terms; `None` waits forever.
    pub fn port_patience(&self, timeout: Option<Duration>) -> Patience {
        match timeout {
            None => Patience::Endless,
            Some(Duration::ZERO) => Patience::None,
            Some(timeout) => Patience::Until(self.ports.now() + timeout),
        }
    }

    /// Makes a call to the engine of ports for this thread, and waits until it ends. `name` is the function
    /// that the program called.
    ///
    /// # Errors
    ///
    /// The engine's errors.
    pub fn port_call(&self, name: &'static str, call: Call) -> Result<Outcome, PortError> {
        self.port_call_returning(name, call, &mut Vec::new())
    }

    /// Makes a call like [`port_call`](Self::port_call). If the call fails before its message was taken,
    /// returns the message's regions.
    ///
    /// # Errors
    ///
    /// The engine's errors.
    pub fn port_call_returning(
        &self,
        name: &'static str,
        mut call: Call,
        regions: &mut Vec<Region>,
    ) -> Result<Outcome, PortError> {
        self.tell_destination(name, &mut call);
        self.trace_post(&mut call);
        let result = self.port_call_told(name, call, regions);
        if let Ok(Outcome::Received(received)) = &result {
            self.trace_taken(received);
        }
        result
    }

    /// Makes a call of whose message, if any, the port's node knows what was written before.
    fn port_call_told(
        &self,
        name: &'static str,
        call: Call,
        regions: &mut Vec<Region>,
    ) -> Result<Outcome, PortError> {
        legs::end(Leg::Publish);
        let patience = patience_of(&call);
        let signals = SignalsDeferred::defer();
        let waiter = self.waiter(Purpose::Call);
        let _traced = self.trace_other();
        let inside = self.account.enter(&self.threads, TimeClass::Other);
        // A message is mostly sent at once. A receiving thread begins to spin before its message may come.
        let looks_out = matches!(call, Call::Receive { .. } | Call::Rpc { .. }) && patience != Patience::None;
        let mut quiet = looks_out && self.begin_spinning();
        let begun = self.at_desk_since(inside.since(), |desk, now| {
            let ticket = desk.next_ticket;
            desk.next_ticket += 1;
            legs::end(Leg::Enter);
            desk.engine.call(ticket, call, now);
            legs::end(Leg::Engine);
            if self.carry_out_ports(desk) {
                self.patience.note_exchange();
            }
            let result = desk.results.remove(&ticket);
            match result {
                Some(_) => *regions = desk.returned.remove(&ticket).unwrap_or_default(),
                None => _ = desk.waiting.insert(ticket, waiter),
            }
            result
        });
        if let Some(result) = begun {
            if looks_out {
                self.end_spinning();
            }
            return result;
        }
        if !looks_out {
            quiet = self.begin_spinning();
        }
        let wait = || self.wait_for_port(waiter, signals, quiet, patience);
        let answer = if patience == Patience::Endless {
            // Only such a wait can be endless, so only it is reported.
            let call = threads::Call { name, arguments: [None, None], lock: None, site: call_site::noted() };
            self.threads.in_call(call, wait)
        } else {
            wait()
        };
        *regions = answer.regions;
        answer.result
    }

    fn wait_for_port(
        &self,
        waiter: Waiter,
        signals: SignalsDeferred,
        quiet: bool,
        patience: Patience,
    ) -> PortAnswer {
        let slot = self.threads.get(waiter);
        let take = || match slot.take()? {
            Answer::Port(answer) => Some(answer),
            Answer::Engine(_) | Answer::Size(_) => {
                self.fatal("expected an answer from the ports, got one from the protocol or the allocator")
            }
        };
        let left = || match patience {
            Patience::Until(deadline) => deadline.saturating_since(self.ports.now()),
            Patience::None | Patience::Endless => Duration::MAX,
        };
        let polls = Cell::new(0u32);
        let done = || {
            if let Some(answer) = take() {
                legs::end(Leg::Wake);
                return Some(answer);
            }
            polls.set(polls.get().wrapping_add(1));
            if polls.get().is_multiple_of(POLLS_A_READING) || left() == Duration::ZERO {
                self.see_to_port_timers();
            }
            take()
        };
        if let Some(answer) = self.waits_briefly(&done) {
            if self.has_fabric() {
                self.end_spinning();
            }
            return answer;
        }
        if self.has_fabric() {
            return self.poll_until(waiter, signals, self.unwatched(), quiet, || left().min(NAP), done);
        }
        drop(signals);
        let answer = loop {
            if let Some(answer) = done() {
                break answer;
            }
            self.threads.falls_asleep(waiter);
            if slot.sleeps() {
                let bell = slot.bell().expect("the thread's slot has a bell");
                let _ = poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&timespec(left().min(NAP))));
            }
            slot.awake();
        };
        self.threads.wakes_up(waiter);
        answer
    }

    /// Polls for a moment in place of sleeping at once, because another thread of this node may be about to
    /// answer. Returns the answer if it came.
    fn waits_briefly<T>(&self, done: &impl Fn() -> Option<T>) -> Option<T> {
        if self.has_fabric() && self.patience.keeps_awake(self.serving.service.waiting() + 1) {
            return None;
        }
        let mut vigil = self.patience.begin_briefly()?;
        loop {
            match done() {
                None if vigil.goes_on() => {}
                answer => return answer,
            }
        }
    }

    /// Asks the name service. `id` is one of [`service`]'s.
    ///
    /// # Errors
    ///
    /// The engine's errors.
    pub fn ask_port_names(
        &self,
        call: &'static str,
        id: u32,
        name: &[u8],
        rights: Vec<RightToSend>,
        patience: Patience,
    ) -> Result<Box<Received>, PortError> {
        if !(1..=service::NAME_BYTES_MAX).contains(&name.len()) {
            return Err(PortError::InvalidValue);
        }
        let named = |outcome| match outcome {
            Outcome::Name(name) => name,
            other => self.fatal(&format!("{call}: expected a name from the engine of ports, got {other:?}")),
        };
        let reply_port = named(self.port_call(call, Call::AllocatePort)?);
        let answer = self.port_call(call, Call::NameService).map(named).and_then(|names| {
            let types = vec![hiroba_ports::DataType { name: 0, element_bytes: 1, count: name.len() as u32 }];
            let message = Message { id, types, inline: name.to_vec(), rights, ..Message::default() };
            let to = RightToSend { name: names, disposition: Disposition::CopySend };
            let answer =
                self.port_call(call, Call::Rpc { to, message, reply_port, bytes_max: None, patience });
            self.port_call(call, Call::Deallocate(names)).and(answer)
        });
        let destroyed = self.port_call(call, Call::Destroy(reply_port));
        match answer.and_then(|answer| destroyed.map(|_| answer))? {
            Outcome::Received(received) => Ok(received),
            other => self.fatal(&format!("{call}: expected an answer of the name service, got {other:?}")),
        }
    }

    /// Returns the node of a port's receive right, as far as it is known here.
    pub fn port_place(&self, name: Name) -> Option<NodeId> {
        let _signals = SignalsDeferred::defer();
        self.ports.desk().engine.destination(name)
    }

    /// Publishes what was written to the port's node before a message is sent.
    fn tell_destination(&self, name: &'static str, call: &mut Call) {
        let (Call::Send { to, message, .. } | Call::Rpc { to, message, .. }) = call else { return };
        if self.has_fabric() {
            message.told = self.port_place(to.name);
            if let Some(node) = message.told.filter(|node| *node != self.me) {
                if self.recorder.is_some() || self.regions.is_some() {
                    self.synchronise(name, TimeClass::Other, Synchronisation::Inform(node));
                } else {
                    self.inform_before_call(name, node);
                }
            }
        }
    }

    /// Numbers a message of a traced run. The number travels with the message.
    fn trace_post(&self, call: &mut Call) {
        let (Call::Send { message, .. } | Call::Rpc { message, .. }) = call else { return };
        if self.recorder.is_some() {
            let number = self.ports.posted.fetch_add(1, Ordering::Relaxed);
            message.released = number.to_le_bytes().to_vec();
            let _signals = SignalsDeferred::defer();
            let _ = self.waiter(Purpose::Call); // the thread's number in the trace
            self.trace_fact(|| Event::Posted { number });
        }
    }

    /// Records that the calling thread has taken a message that has a number.
    fn trace_taken(&self, received: &Received) {
        if let Ok(number) = received.released.as_slice().try_into() {
            let (from, number) = (received.sender, u64::from_le_bytes(number));
            let _signals = SignalsDeferred::defer();
            self.trace_fact(|| Event::Taken { from, number });
        }
    }

    /// Publishes like [`synchronise`](Runtime::synchronise), without the accounts. Mostly there is nothing to
    /// publish, and the thread does not wait.
    fn inform_before_call(&self, name: &'static str, to: NodeId) {
        let signals = SignalsDeferred::defer();
        let waiter = self.waiter(Purpose::Call);
        let mut has_posted = false;
        let inform = |core: &mut Core| core.engine.handle_sync(Synchronisation::Inform(to), waiter);
        self.tell_and(inform, || has_posted = true);
        let is_done = self.threads.get(waiter).take().is_some();
        drop(signals);
        if !is_done {
            let call = threads::Call { name, arguments: [None, None], lock: None, site: call_site::noted() };
            let _inside = self.account.enter(&self.threads, TimeClass::Other);
            self.threads.in_call(call, || self.wait(waiter));
        }
        if has_posted || !is_done {
            self.hold_back(TimeClass::Other);
        }
    }
}

/// Traffic between nodes.
impl Runtime {
    fn at_desk<R>(&self, act: impl FnOnce(&mut Desk, Instant) -> R) -> R {
        self.at_desk_since(std::time::Instant::now(), act)
    }

    /// Acts on the engine. `now` was read just before.
    fn at_desk_since<R>(&self, now: std::time::Instant, act: impl FnOnce(&mut Desk, Instant) -> R) -> R {
        let _signals = SignalsDeferred::defer();
        let mut desk = self.ports.desk();
        let result = act(&mut desk, self.ports.at(now));
        self.carry_out_ports(&mut desk);
        let due = desk.engine.next_timeout().map_or(u64::MAX, Instant::as_nanos);
        self.ports.due_ns.store(due, Ordering::Relaxed);
        result
    }

    /// Carries out the engine's effects. Returns true if one has ended the wait of a thread.
    fn carry_out_ports(&self, desk: &mut Desk) -> bool {
        let mut has_answered = false;
        while let Some(effect) = desk.engine.poll_effect() {
            match effect {
                Effect::Send { to, bytes, tail, owes } => {
                    if owes || desk.outbox.contains_key(&to) {
                        desk.outbox.entry(to).or_default().push_back(Packet { bytes, tail, owes });
                        self.ports.owes.store(true, Ordering::Relaxed);
                    } else {
                        self.send_packet(to, &bytes, tail.as_ref());
                    }
                }
                Effect::Land(landing) => self.land(&landing),
                Effect::Returned { ticket, regions } => _ = desk.returned.insert(ticket, regions),
                Effect::Complete { ticket, result } => {
                    let Some(waiter) = desk.waiting.remove(&ticket) else {
                        desk.results.insert(ticket, result);
                        continue;
                    };
                    let regions = desk.returned.remove(&ticket).unwrap_or_default();
                    self.threads.get(waiter).answer(Answer::Port(PortAnswer { result, regions }));
                    has_answered = true;
                    legs::end(Leg::Host);
                }
            }
        }
        has_answered
    }

    /// Puts a region into the receiver's landing pool.
    fn land(&self, Landing { to, offset, region }: &Landing) {
        legs::end(Leg::Host);
        let done = self.fabric().one_sided().is_some_and(|one_sided| match region.bytes() {
            Bytes::Own(bytes) => one_sided.land(*to, *offset, bytes),
            Bytes::Landed { offset: from, bytes } => one_sided.land_again(*to, *offset, from, bytes),
        });
        if !done {
            self.fatal(&format!(
                "expected a place in the landing pool of node {to}, got the offset {offset}"
            ));
        }
        legs::end(Leg::Send);
    }

    fn send_packet(&self, to: NodeId, bytes: &[u8], tail: Option<&Tail>) {
        let tail = tail.map_or(&[][..], Tail::bytes);
        legs::end(Leg::Host);
        let (head, head_bytes) = hiroba_wire::Message::ports_head(bytes.len() + tail.len());
        let parts = [&head[..head_bytes], bytes, tail];
        self.send_unsent_to(to, head[0], Unsent::new(&parts).ending_in_payload(tail.len()));
    }

    /// Handles a packet that has arrived.
    pub(crate) fn take_port_packet(&self, from: NodeId, bytes: &[u8]) {
        self.at_desk(|desk, now| {
            // The flag avoids the search.
            match desk.inbox.get_mut(&from).filter(|_| self.ports.keeps()) {
                Some(kept) => kept.push_back(bytes.to_vec()),
                None => self.hear_packet(desk, from, bytes, now),
            }
        });
    }

    /// Handles a packet that ends in a piece of a long message, which is copied to its place.
    pub(crate) fn take_port_piece(&self, from: NodeId, head: &[u8], piece: &mut dyn Payload) {
        self.at_desk(|desk, now| match desk.inbox.get_mut(&from).filter(|_| self.ports.keeps()) {
            Some(kept) => kept.push_back(joined(head, piece)),
            None => self.heard(from, || desk.engine.handle_piece(from, head, piece, now)),
        });
    }

    fn hear_packet(&self, desk: &mut Desk, from: NodeId, bytes: &[u8], now: Instant) {
        self.heard(from, || desk.engine.handle_message(from, bytes, now));
    }

    fn heard(&self, from: NodeId, handle: impl FnOnce() -> Result<(), PeerError>) {
        legs::end(Leg::Enter);
        if let Err(error) = handle() {
            self.fatal(&format!("a packet of ports from node {from} breaks the protocol: {error}"));
        }
        legs::end(Leg::Engine);
    }

    /// Makes packets from this node wait, because the engine keeps a publication of it back. The core's lock
    /// is held.
    pub(crate) fn keep_port_packets(&self, from: NodeId) {
        self.at_desk(|desk, _| {
            desk.inbox.entry(from).or_default();
            self.ports.keeps.store(true, Ordering::Relaxed);
        });
    }

    /// Delivers packets whose preceding publications the engine has absorbed. The core's lock is held.
    pub(crate) fn hand_on_port_packets(&self, core: &Core) {
        self.at_desk(|desk, now| {
            let is_free = |from: &NodeId| !core.engine.keeps_back(*from);
            let free: Vec<NodeId> = desk.inbox.keys().copied().filter(is_free).collect();
            for from in free {
                for bytes in desk.inbox.remove(&from).into_iter().flatten() {
                    self.hear_packet(desk, from, &bytes, now);
                }
            }
            self.ports.keeps.store(!desk.inbox.is_empty(), Ordering::Relaxed);
        });
    }

    /// Returns the time until the engine's next timer, if it has one.
    pub(crate) fn port_timers_due_in(&self) -> Option<Duration> {
        let due_ns = self.ports.due_ns.load(Ordering::Relaxed);
        // The common case needs no clock reading.
        (due_ns != u64::MAX).then(|| Instant::from_nanos(due_ns).saturating_since(self.ports.now()))
    }

    /// Tells the engine the time, if a timer is due.
    pub(crate) fn see_to_port_timers(&self) {
        if self.port_timers_due_in() == Some(Duration::ZERO) {
            self.at_desk(|desk, now| desk.engine.handle_time(now));
        }
    }

    /// Publishes to other nodes and sends the packets that waited for it. Runs on the service thread, outside
    /// any other work.
    pub(crate) fn send_owing_packets(&self) {
        if !self.ports.owes.swap(false, Ordering::Relaxed) {
            return;
        }
        loop {
            let owed =
                self.at_desk(|desk, _| desk.outbox.iter().next().map(|(to, packets)| (*to, packets.len())));
            let Some((to, count)) = owed else { return };
            self.inform(to);
            self.at_desk(|desk, _| {
                let Some(mut packets) = desk.outbox.remove(&to) else { return };
                let mut told = count;
                // Packets that came meanwhile may need another publication.
                while let Some(packet) = packets.pop_front() {
                    if told == 0 && packet.owes {
                        packets.push_front(packet);
                        break;
                    }
                    told = told.saturating_sub(1);
                    self.send_packet(to, &packet.bytes, packet.tail.as_ref());
                }
                if !packets.is_empty() {
                    desk.outbox.insert(to, packets);
                }
            });
        }
    }

    fn inform(&self, to: NodeId) {
        let signals = SignalsDeferred::defer();
        let Some(waiter) = self.threads.mine(Purpose::Call) else {
            self.fatal("expected a place to wait for the service thread, got none: too many threads use shared memory");
        };
        self.tell(|core| core.engine.handle_sync(Synchronisation::Inform(to), waiter));
        drop(signals);
        self.wait(waiter);
    }
}

fn patience_of(call: &Call) -> Patience {
    match call {
        Call::Send { patience, .. } | Call::Receive { patience, .. } | Call::Rpc { patience, .. } => {
            *patience
        }
        _ => Patience::None,
    }
}
