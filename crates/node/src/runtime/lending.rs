//! Memory that nodes lend each other (`--lend`): the machine of `crates/paging` over a fabric of its own.
//!
//! A thread that moves pages out or in waits for other nodes, and may have the core's lock. They answer
//! nevertheless, because what serves them here, the *lending thread*, takes only the machine's lock. A
//! waiting thread receives its answer itself, and the lending thread sleeps meanwhile ([`Attention`]). Of
//! several waiting threads one receives for all, and wakes the others.
//!
//! Nothing of this exists before a node needs it. That node listens and tells all others where, by an
//! ordinary message; each of them does the same. A node that knows where all listen opens the fabric. Until
//! then nothing can be lent.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant as Clock};

use hiroba_base::{Instant, NodeId, PageId};
use hiroba_fabric::{Fabric, FabricConfig, FabricError, TcpFabric, Unsent};
use hiroba_memory::{LenderLost, Lenders, SealedGranule, SharedMemory};
use hiroba_paging::lending::{Lending, Lent, Lost, Message, Tallies};
use hiroba_wire::control::JobDescription;
use rustix::event::epoll;
use smallvec::SmallVec;

use crate::own_memory;
use crate::patience::Patience;
use crate::runtime::Runtime;
use crate::runtime::attention::Attention;
use crate::runtime::service::{OUT_OF_THE_WAY, ask_for_short_slices};
use crate::timers::timespec;

/// A node lends only as long as this part of its own limit stays free.
const RESERVE_PART: u64 = 8;

/// What a lender takes back undercuts its limit by this part, like what it evicts itself.
const SLACK_PART: u64 = 64;

/// Interval at which the lending thread looks whether pages at home have found room.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long a wait sleeps before it looks at other causes.
const NAP: Duration = Duration::from_millis(20);

/// How long a thread waits for an answer to its first request for room, and how long none does after one was
/// in vain: the other node does not run, or cannot be reached.
const GRANT_WAIT: Duration = Duration::from_secs(1);

/// A thread that lends faster than the network carries waits at this many queued bytes.
const BACKLOG_BYTES_MAX: usize = 8 << 20;

/// The receiver of messages.
type Take<'a> = &'a mut dyn FnMut(NodeId, &[u8]);

/// Peers with posted messages.
type Posted = SmallVec<[NodeId; 4]>;

/// The machine, and what changes under the same lock.
#[derive(Debug)]
struct Machine {
    lending: Lending,
    /// The memory of pages kept here, as it was last counted.
    kept_bytes: u64,
    /// Until then no thread waits for a grant.
    grants_not_awaited_until: Option<Clock>,
    /// Number of events after which waiting threads look again: a message was handled, or a thread has
    /// stopped receiving for all.
    events: u64,
}

/// The fabric, and who watches it.
struct Open {
    fabric: TcpFabric,
    /// The lending thread's. A waiting thread takes it over.
    attention: Attention,
}

/// What nodes tell each other before they can lend.
struct Meeting {
    config: FabricConfig,
    has_listened: bool,
    listener: Option<OwnedFd>,
    /// By node; 0 for one that cannot take part.
    ports: Vec<Option<u16>>,
}

/// One node's part in lending.
pub(crate) struct LentMemory {
    /// Opened when all nodes have met.
    open: OnceLock<Open>,
    meeting: Mutex<Meeting>,
    /// Signalled when they have.
    met: Condvar,
    machine: Mutex<Machine>,
    memory: Arc<SharedMemory>,
    granule_bytes: usize,
    /// The node's memory limit for now.
    limit_bytes: AtomicU64,
    /// What it lends at most.
    lend_bytes_max: u64,
    /// How long a lender may be silent before its pages count as lost; `None` for any time.
    dead_after: Option<Duration>,
    began: Clock,
    /// Number of threads that wait for an answer.
    waiting: AtomicU32,
    /// Signalled on an event while more than one of them waits.
    progress: Condvar,
    patience: Arc<Patience>,
}

impl core::fmt::Debug for LentMemory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("LentMemory").field("machine", &self.machine).finish_non_exhaustive()
    }
}

impl LentMemory {
    /// Makes the part of a node that has a memory limit, and lends at most `lend_bytes_max`.
    pub(crate) fn new(
        job: &JobDescription,
        lend_bytes_max: u64,
        limit_bytes: u64,
        memory: Arc<SharedMemory>,
        patience: Arc<Patience>,
    ) -> LentMemory {
        let config = FabricConfig {
            local: job.node,
            addresses: job.addresses.clone(),
            job: job.job,
            key: job.key.clone(),
            inject: None,
        };
        let ports = vec![None; job.addresses.len()];
        let granule_bytes = memory.granule().bytes();
        let lending = Lending::new(job.node, job.addresses.len() as u16, granule_bytes as u64);
        LentMemory {
            open: OnceLock::new(),
            meeting: Mutex::new(Meeting { config, has_listened: false, listener: None, ports }),
            met: Condvar::new(),
            machine: Mutex::new(Machine {
                lending,
                kept_bytes: 0,
                grants_not_awaited_until: None,
                events: 0,
            }),
            granule_bytes,
            memory,
            limit_bytes: AtomicU64::new(limit_bytes),
            lend_bytes_max,
            dead_after: (job.dead_after_ms > 0).then(|| Duration::from_millis(job.dead_after_ms)),
            began: Clock::now(),
            waiting: AtomicU32::new(0),
            progress: Condvar::new(),
            patience,
        }
    }

    /// Records where another node listens.
    pub(crate) fn hear(&self, from: NodeId, port: u16) {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner).ports[from.index()] = Some(port);
    }

    /// Listens, and calls `announce` with the port, if that has not been done. Opens the fabric if it is
    /// known where all nodes listen, and returns true then. Called by the service thread alone.
    ///
    /// # Errors
    /// Fails if the fabric cannot be opened.
    pub(crate) fn meet(&self, announce: impl FnOnce(u16)) -> Result<bool, FabricError> {
        let mut meeting = self.meeting.lock().unwrap_or_else(PoisonError::into_inner);
        let me = meeting.config.local.index();
        if !std::mem::replace(&mut meeting.has_listened, true) {
            let listener = TcpListener::bind((meeting.config.addresses[me].ip(), 0));
            let bound = listener.and_then(|listener| Ok((listener.local_addr()?.port(), listener)));
            // A node without a descriptor to spare takes no part, and neither do the others then.
            let (port, listener) = bound.map_or((0, None), |(port, listener)| (port, Some(listener.into())));
            meeting.ports[me] = Some(port);
            meeting.listener = listener;
            announce(port);
        }
        let ports: Option<Vec<u16>> = meeting.ports.iter().copied().collect();
        let Some(ports) = ports.filter(|ports| !ports.contains(&0)) else { return Ok(false) };
        let Some(listener) = meeting.listener.take() else { return Ok(false) };
        let addresses = meeting.config.addresses.iter().zip(ports);
        let addresses = addresses.map(|(address, port)| SocketAddr::new(address.ip(), port)).collect();
        let fabric = TcpFabric::open(listener, FabricConfig { addresses, ..meeting.config.clone() })?;
        let attention = Attention::new(Some(&fabric), 0)
            .map_err(|errno| FabricError::System { action: "wait for lent memory", source: errno.into() })?;
        let is_first = self.open.set(Open { fabric, attention }).is_ok();
        self.met.notify_all();
        Ok(is_first)
    }

    /// Returns true if all nodes have met.
    pub(crate) fn have_met(&self) -> bool {
        self.open.get().is_some()
    }

    /// Waits until all nodes have met, but no longer than `time`.
    pub(crate) fn await_meeting(&self, time: Duration) {
        let meeting = self.meeting.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.met.wait_timeout_while(meeting, time, |_| !self.have_met()));
    }

    /// Returns the fabric, which is open when there is anything to send, and who watches it.
    fn open(&self) -> &Open {
        self.open.get().expect("nothing is lent before all nodes have met")
    }

    fn fabric(&self) -> &TcpFabric {
        &self.open().fabric
    }

    pub(crate) fn tallies(&self) -> Tallies {
        self.lock().lending.tallies()
    }

    fn lock(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.began.elapsed().as_nanos() as u64)
    }

    /// Returns the memory that this node can promise to others, if it keeps `free_part` of its limit.
    fn room(&self, machine: &Machine, free_part: u64) -> u64 {
        let own = self.memory.resident_bytes().saturating_sub(machine.kept_bytes);
        let limit = self.limit_bytes.load(Ordering::Relaxed);
        let spare = (limit - limit / free_part).saturating_sub(own);
        spare.min(self.lend_bytes_max)
    }

    /// Records the node's limit, which is lower while its machine is short of memory.
    pub(crate) fn note_limit(&self, bytes: u64) {
        // Relaxed: a threshold, which orders nothing.
        self.limit_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Takes room and pages back from other nodes, because this one has exceeded its limit.
    pub(crate) fn take_back(&self) {
        let mut machine = self.lock();
        let promised_bytes = machine.lending.promised_bytes();
        if promised_bytes == 0 {
            return;
        }
        let room = self.room(&machine, SLACK_PART).min(promised_bytes);
        machine.lending.set_room(room);
        self.release(machine);
    }

    /// Posts what the machine has to send, counts the memory of pages kept here, unlocks, and sends.
    fn release(&self, machine: MutexGuard<'_, Machine>) {
        let mut posted = Posted::new();
        self.post(machine, &mut posted);
        self.push(posted);
    }

    /// Does the same, but leaves the sending to [`push`](Self::push).
    fn post(&self, mut machine: MutexGuard<'_, Machine>, posted: &mut Posted) {
        while let Some((to, message)) = machine.lending.poll_send() {
            let (head, content) = message.encode();
            if self.fabric().post(to, Unsent::new(&[&head, content])) && !posted.contains(&to) {
                posted.push(to);
            }
        }
        let kept_bytes = machine.lending.bytes_here();
        let before = std::mem::replace(&mut machine.kept_bytes, kept_bytes);
        self.memory.note_kept_bytes(before, kept_bytes);
        own_memory::note_elsewhere(before, kept_bytes);
    }

    fn push(&self, posted: Posted) {
        posted.into_iter().for_each(|to| self.fabric().push(to));
    }

    fn handle(&self, from: NodeId, bytes: &[u8], posted: &mut Posted) {
        let message = Message::decode(bytes, self.granule_bytes).unwrap_or_else(|bad| {
            Runtime::end_for(&format!("a message from node {from} is invalid: {bad}"));
        });
        let mut machine = self.lock();
        machine.events += 1;
        if matches!(message, Message::Ask { .. }) {
            // What was promised stays promised; only a shortage takes it back.
            let room = self.room(&machine, RESERVE_PART).max(machine.lending.promised_bytes());
            machine.lending.set_room(room);
        }
        machine.lending.handle_message(self.now(), from, message);
        self.post(machine, posted);
    }

    /// Receives, and waits for at most `time` if there is nothing and no wake came after `wakes`.
    fn receive(&self, wakes: u64, time: Duration, watches: bool) -> bool {
        let receives = |take: Take<'_>| self.fabric().poll_since(wakes, Some(time), take).map(|()| true);
        self.receive_by(receives, watches) == Some(true)
    }

    /// Receives without waiting. Returns `None` if another thread is receiving.
    fn receive_now(&self, watches: bool) -> Option<bool> {
        self.receive_by(|take| self.fabric().poll_now(take), watches)
    }

    /// Returns true if anything came. Other threads that wait look again then: `watches` says that the one
    /// that watches the fabric is this one.
    fn receive_by(&self, poll: impl FnOnce(Take<'_>) -> io::Result<bool>, watches: bool) -> Option<bool> {
        let mut count = 0;
        // Answers to messages that came together leave together.
        let mut posted = Posted::new();
        let has_received = poll(&mut |from, bytes| {
            count += 1;
            self.handle(from, bytes, &mut posted);
        });
        self.push(posted);
        let has_received = has_received.unwrap_or_else(|error| {
            Runtime::end_for(&format!("cannot receive from other nodes about lent memory: {error}"));
        });
        let others = self.waiting.load(Ordering::SeqCst) - u32::from(watches);
        if count > 0 && others > 0 {
            self.progress.notify_all();
            if !watches {
                self.fabric().wake();
            }
        }
        has_received.then_some(count > 0)
    }

    /// Receives without sleeping for a while after the last message, because a sleeping thread answers later.
    /// Returns when another thread watches the fabric.
    fn stay_awake(&self) {
        let mut vigil = self.patience.begin(1);
        while self.waiting.load(Ordering::Relaxed) == 0 && vigil.goes_on() {
            if self.receive_now(false) == Some(true) {
                vigil.hear();
            }
        }
    }

    /// Serves other nodes until `is_over`. Called by the lending thread. It stays awake for a moment after it
    /// has served, if `has_a_core` says that no thread of the program wants its processor.
    pub(crate) fn serve(&self, is_over: impl Fn() -> bool, has_a_core: impl Fn() -> bool) {
        // It runs for microseconds, and while it waits for a processor another node stands still.
        ask_for_short_slices();
        let mut ready = Vec::with_capacity(1);
        while !is_over() {
            ready.clear();
            let room = rustix::buffer::spare_capacity(&mut ready);
            // If it fails, this thread serves at intervals.
            let _ = epoll::wait(&self.open().attention, room, Some(&timespec(LOOK_EVERY)));
            if !ready.is_empty() {
                if self.receive_now(false).is_none() {
                    // Another thread is receiving. This one waits for its turn.
                    self.receive(self.fabric().wakes(), OUT_OF_THE_WAY, false);
                } else if has_a_core() {
                    self.stay_awake();
                }
            }
            let mut machine = self.lock();
            machine.lending.handle_time(self.now());
            self.release(machine);
        }
    }

    /// Receives until `look` has an outcome.
    fn wait<T>(&self, mut look: impl FnMut(&mut Machine) -> Option<T>) -> T {
        let Open { fabric, attention } = self.open();
        let waiting = self.waiting.fetch_add(1, Ordering::SeqCst) + 1;
        let mut vigil = self.patience.begin(waiting);
        let mut watches = false;
        let outcome = loop {
            watches = watches || attention.take(fabric);
            let wakes = fabric.wakes();
            let mut machine = self.lock();
            let events = machine.events;
            let outcome = look(&mut machine);
            self.release(machine);
            if let Some(outcome) = outcome {
                break outcome;
            }
            if !watches {
                let is_quiet = |machine: &mut Machine| machine.events == events;
                drop(self.progress.wait_timeout_while(self.lock(), NAP, is_quiet));
            } else if vigil.goes_on() {
                if self.receive_now(true) == Some(true) {
                    vigil.hear();
                }
            } else {
                self.receive(wakes, NAP, true);
            }
        };
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        if watches {
            attention.give_back(fabric);
            if self.waiting.load(Ordering::SeqCst) > 0 {
                self.lock().events += 1;
                self.progress.notify_all();
            }
        }
        outcome
    }

    /// Lends one page, and waits for room if a lender was asked. Returns false if there is none.
    fn lend_one(&self, granule: PageId, stamp: u64, bytes: &[u8]) -> bool {
        let began = Clock::now();
        self.wait(|machine| match machine.lending.lend(self.now(), granule, stamp, bytes) {
            Lent::Sent => Some(true),
            Lent::NoRoom => Some(false),
            Lent::Asked => {
                let now = Clock::now();
                let is_vain = machine.grants_not_awaited_until.is_some_and(|until| now < until);
                if !is_vain && began.elapsed() >= GRANT_WAIT {
                    machine.grants_not_awaited_until = Some(now + GRANT_WAIT);
                }
                (is_vain || began.elapsed() >= GRANT_WAIT).then_some(false)
            }
        })
    }

    /// Returns the lender that has been silent for too long, if there is one.
    fn silent_lender(&self) -> Option<NodeId> {
        let (node, silence) = self.fabric().longest_silence()?;
        self.dead_after.is_some_and(|dead_after| silence >= dead_after).then_some(node)
    }
}

impl Lenders for LentMemory {
    fn may_lend(&self) -> bool {
        self.have_met() && self.lock().lending.may_lend(self.now())
    }

    fn lend(&self, granules: &[SealedGranule<'_>]) -> usize {
        let mut lent = 0;
        if !self.have_met() {
            return lent;
        }
        let mut machine = self.lock();
        for &SealedGranule { granule, stamp, bytes } in granules {
            if machine.lending.lend(self.now(), granule, stamp, bytes) != Lent::Sent {
                self.release(machine);
                if !self.lend_one(granule, stamp, bytes) {
                    return lent;
                }
                machine = self.lock();
            }
            lent += 1;
        }
        self.release(machine);
        while self.fabric().backlog_bytes_all() > BACKLOG_BYTES_MAX && self.silent_lender().is_none() {
            self.receive(self.fabric().wakes(), NAP, false);
        }
        lent
    }

    fn keep(&self, granule: PageId, stamp: u64) -> bool {
        self.lock().lending.keep(granule, stamp)
    }

    fn request(&self, granules: &[(PageId, u64)]) {
        let mut machine = self.lock();
        granules.iter().for_each(|(granule, stamp)| machine.lending.request(*granule, *stamp));
        self.release(machine);
    }

    fn fetch(&self, granules: &[(PageId, u64)], bytes: &mut [u8]) -> Result<(), LenderLost> {
        let mut awaited = granules.iter().zip(bytes.chunks_mut(self.granule_bytes));
        let mut next = awaited.next();
        let mut to_request = granules;
        self.wait(|machine| {
            // Only now, when this thread watches: otherwise the answer might wake the lending thread.
            for (granule, stamp) in std::mem::take(&mut to_request) {
                machine.lending.request(*granule, *stamp);
            }
            while let Some((name, room)) = &mut next {
                let (granule, stamp) = **name;
                match machine.lending.take(granule, stamp) {
                    Ok(Some(bytes)) => room[..bytes.len()].copy_from_slice(&bytes),
                    Ok(None) => {
                        let lender = self.silent_lender()?;
                        return Some(Err(LenderLost { granule, lender }));
                    }
                    Err(Lost::Died(lender) | Lost::Missing(lender)) => {
                        return Some(Err(LenderLost { granule, lender }));
                    }
                    Err(Lost::NotLent) => unreachable!("{granule} is fetched from where it was lent"),
                }
                next = awaited.next();
            }
            Some(Ok(()))
        })
    }

    fn note_back(&self, granules: &[PageId]) {
        let mut machine = self.lock();
        granules.iter().for_each(|granule| machine.lending.note_back(*granule));
        self.release(machine);
    }

    fn discard(&self, granules: &[PageId]) {
        let mut machine = self.lock();
        granules.iter().for_each(|granule| machine.lending.discard(*granule));
        self.release(machine);
    }

    fn homeless(&self) -> Option<(PageId, u64, Vec<u8>)> {
        let machine = self.lock();
        let (granule, stamp, bytes) = machine.lending.homeless()?;
        Some((granule, stamp, bytes.to_vec()))
    }
}
