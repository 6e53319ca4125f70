//! Ports: the engine that this node's threads call, and what it has the node do.
//!
//! The engine has a lock of its own. Who holds the core's may take it, never the other way round. What it
//! says goes to the fabric with that lock held, so that packets to a node keep their order.
//!
//! A message releases and acquires: before a packet goes that brings a message, the node that it goes to is
//! told of what was written before it was sent. The thread that sends does so; for what is sent on later,
//! because a port has moved, the service thread does. Word of that may be kept back by the other node's
//! engine until a departure has come, and packets behind it then wait, too.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hiroba_base::{Instant, NodeId};
use hiroba_ports::{
    Call, Config, Disposition, Effect, Engine, Message, Name, Outcome, Patience, PortError, Received,
    RightToSend, Ticket, service,
};
use hiroba_protocol::{Synchronisation, Waiter};
use rustc_hash::FxHashMap;
use rustix::event::{PollFd, PollFlags, poll};

use crate::call_site;
use crate::runtime::Runtime;
use crate::runtime::host::Core;
use crate::signals::SignalsHeld;
use crate::threads::{self, Answer, Purpose};
use crate::time_class::TimeClass;
use crate::timers::timespec;

/// A thread that waits for a message wakes up at least this often.
const NAP: Duration = Duration::from_millis(100);

/// A node's ports.
pub(crate) struct Ports {
    desk: Mutex<Desk>,
    began: std::time::Instant,
    /// When the engine has something to do, in nanoseconds since then.
    due_ns: AtomicU64,
    /// Packets wait for other nodes to be told of what was written.
    owes: AtomicBool,
    /// Packets of other nodes wait for what was told before them to be absorbed.
    keeps: AtomicBool,
}

/// The engine, and who waits for what it does.
struct Desk {
    engine: Engine,
    next_ticket: Ticket,
    /// Calls that have not ended.
    waiting: FxHashMap<Ticket, Waiter>,
    /// Calls that have ended, and whose threads have not seen it.
    results: FxHashMap<Ticket, Result<Outcome, PortError>>,
    /// Packets that wait. No more than a window of each flow.
    outbox: BTreeMap<NodeId, VecDeque<Packet>>,
    /// Packets of nodes behind whose publications they come.
    inbox: BTreeMap<NodeId, VecDeque<Vec<u8>>>,
}

struct Packet {
    bytes: Vec<u8>,
    owes: bool,
}

impl Ports {
    pub(crate) fn new(me: NodeId, nodes: u16) -> Ports {
        let desk = Desk {
            engine: Engine::new(me, nodes, Config::default()),
            next_ticket: 1,
            waiting: FxHashMap::default(),
            results: FxHashMap::default(),
            outbox: BTreeMap::new(),
            inbox: BTreeMap::new(),
        };
        Ports {
            desk: Mutex::new(desk),
            began: std::time::Instant::now(),
            due_ns: AtomicU64::new(u64::MAX),
            owes: AtomicBool::new(false),
            keeps: AtomicBool::new(false),
        }
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether packets wait for what was told before them.
    pub(crate) fn keeps(&self) -> bool {
        self.keeps.load(Ordering::Relaxed)
    }
}

/// Calls.
impl Runtime {
    /// How long a call waits that may wait so long; `None`: for ever.
    pub fn port_patience(&self, timeout: Option<Duration>) -> Patience {
        match timeout {
            None => Patience::Endless,
            Some(Duration::ZERO) => Patience::None,
            Some(timeout) => Patience::Until(self.ports.now() + timeout),
        }
    }

    /// Has the engine of ports carry out a call of this thread's, and waits for its end. `name` is what the
    /// program called.
    ///
    /// # Errors
    ///
    /// Those of the engine.
    pub fn port_call(&self, name: &'static str, mut call: Call) -> Result<Outcome, PortError> {
        self.tell_destination(name, &mut call);
        let patience = patience_of(&call);
        let signals = SignalsHeld::hold();
        let waiter = self.waiter(Purpose::Call);
        let _inside = (self.trace_other(), self.account.enter(&self.threads, TimeClass::Other));
        let quiet = self.begin_spinning();
        let begun = self.at_desk(|desk, now| {
            let ticket = desk.next_ticket;
            desk.next_ticket += 1;
            desk.engine.call(ticket, call, now);
            self.carry_out_ports(desk);
            match desk.results.remove(&ticket) {
                Some(result) => Ok(result),
                None => {
                    desk.waiting.insert(ticket, waiter);
                    Err(ticket)
                }
            }
        });
        let ticket = match begun {
            Ok(result) => {
                self.end_spinning();
                return result;
            }
            Err(ticket) => ticket,
        };
        let wait = || self.wait_for_port(waiter, signals, quiet, patience);
        if patience == Patience::Endless {
            // Only such a wait can be one without end.
            let call = threads::Call { name, arguments: [None, None], lock: None, site: call_site::noted() };
            self.threads.in_call(call, wait);
        } else {
            wait();
        }
        let _signals = SignalsHeld::hold();
        self.ports.desk().results.remove(&ticket).unwrap_or(Err(PortError::Interrupted))
    }

    fn wait_for_port(&self, waiter: Waiter, signals: SignalsHeld, quiet: bool, patience: Patience) {
        let slot = self.threads.get(waiter);
        let left = || match patience {
            Patience::Until(deadline) => deadline.saturating_since(self.ports.now()),
            Patience::None | Patience::Endless => Duration::MAX,
        };
        let done = || {
            if slot.take().is_some() {
                return Some(());
            }
            if left() == Duration::ZERO {
                self.see_to_port_timers();
            }
            slot.take().map(drop)
        };
        if self.has_fabric() {
            return self.poll_until(waiter, signals, self.unwatched(), quiet, || left().min(NAP), done);
        }
        drop(signals);
        while done().is_none() {
            self.threads.falls_asleep(waiter);
            if slot.sleeps() {
                let bell = slot.bell().expect("the thread's slot has a bell");
                let _ = poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&timespec(left().min(NAP))));
            }
            slot.awake();
        }
        self.threads.wakes_up(waiter);
    }

    /// Asks the name service: `id` is one of [`service`]'s.
    ///
    /// # Errors
    ///
    /// Those of the engine.
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

    /// Where a port's receive right is, as far as is known here.
    pub fn port_place(&self, name: Name) -> Option<NodeId> {
        let _signals = SignalsHeld::hold();
        self.ports.desk().engine.destination(name)
    }

    /// Before a message goes: tells the port's node what has been written.
    fn tell_destination(&self, name: &'static str, call: &mut Call) {
        let (Call::Send { to, message, .. } | Call::Rpc { to, message, .. }) = call else { return };
        if self.has_fabric() {
            message.told = self.port_place(to.name);
            if let Some(node) = message.told.filter(|node| *node != self.me) {
                self.synchronise(name, TimeClass::Other, Synchronisation::Inform(node));
            }
        }
    }
}

/// What goes between nodes.
impl Runtime {
    fn at_desk<R>(&self, act: impl FnOnce(&mut Desk, Instant) -> R) -> R {
        let _signals = SignalsHeld::hold();
        let mut desk = self.ports.desk();
        let result = act(&mut desk, self.ports.now());
        self.carry_out_ports(&mut desk);
        let due = desk.engine.next_timeout().map_or(u64::MAX, Instant::as_nanos);
        self.ports.due_ns.store(due, Ordering::Relaxed);
        result
    }

    fn carry_out_ports(&self, desk: &mut Desk) {
        while let Some(effect) = desk.engine.poll_effect() {
            match effect {
                Effect::Send { to, bytes, owes } => {
                    if owes || desk.outbox.contains_key(&to) {
                        desk.outbox.entry(to).or_default().push_back(Packet { bytes, owes });
                        self.ports.owes.store(true, Ordering::Relaxed);
                    } else {
                        self.send_packet(to, &bytes);
                    }
                }
                Effect::Complete { ticket, result } => {
                    desk.results.insert(ticket, result);
                    if let Some(waiter) = desk.waiting.remove(&ticket) {
                        self.threads.get(waiter).answer(Answer::Port);
                    }
                }
            }
        }
    }

    fn send_packet(&self, to: NodeId, bytes: &[u8]) {
        self.send_to(to, &[&hiroba_wire::Message::ports_head(bytes.len()), bytes]);
    }

    /// A packet has come.
    pub(crate) fn take_port_packet(&self, from: NodeId, bytes: &[u8]) {
        self.at_desk(|desk, now| {
            // The flag spares the search.
            match desk.inbox.get_mut(&from).filter(|_| self.ports.keeps()) {
                Some(kept) => kept.push_back(bytes.to_vec()),
                None => self.hear_packet(desk, from, bytes, now),
            }
        });
    }

    fn hear_packet(&self, desk: &mut Desk, from: NodeId, bytes: &[u8], now: Instant) {
        if let Err(error) = desk.engine.handle_message(from, bytes, now) {
            self.fatal(&format!("a packet of ports from node {from} breaks the protocol: {error}"));
        }
    }

    /// The engine keeps a publication of this node back: packets that come behind it wait. The core's lock is
    /// held.
    pub(crate) fn keep_port_packets(&self, from: NodeId) {
        self.at_desk(|desk, _| {
            desk.inbox.entry(from).or_default();
            self.ports.keeps.store(true, Ordering::Relaxed);
        });
    }

    /// Hands on packets that waited for publications which the engine has absorbed. The core's lock is held.
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

    /// Tells the engine the time, if it waits for that.
    pub(crate) fn see_to_port_timers(&self) {
        if self.ports.due_ns.load(Ordering::Relaxed) <= self.ports.now().as_nanos() {
            self.at_desk(|desk, now| desk.engine.handle_time(now));
        }
    }

    /// Sends what waits for other nodes to be told first. On the service thread, amid nothing else.
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
                // What came meanwhile may owe more.
                while let Some(packet) = packets.pop_front() {
                    if told == 0 && packet.owes {
                        packets.push_front(packet);
                        break;
                    }
                    told = told.saturating_sub(1);
                    self.send_packet(to, &packet.bytes);
                }
                if !packets.is_empty() {
                    desk.outbox.insert(to, packets);
                }
            });
        }
    }

    fn inform(&self, to: NodeId) {
        let signals = SignalsHeld::hold();
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
