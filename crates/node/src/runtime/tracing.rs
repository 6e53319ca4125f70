//! Records the events on this node in a traced run (`docs/TRACE.md`).
//!
//! All records go through one lock into one bounded chunk. The thread that fills it writes it to the file, so
//! nothing is dropped and no other thread is woken. The file's order is thus the order of recording. The
//! node's operations on pages are recorded under the core's lock, as they happen; a thread's records are in
//! its program order.
//!
//! A signal handler of the program that touches shared memory would come back here, so signals are deferred
//! wherever the lock is taken. One record would need that on a thread's way out: the end of an activity. It
//! is left in the thread's place, and written before the thread's next record.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::runtime::space::RegionOptions;
use hiroba_base::{Access, NodeId, PageId, PageRange};
use hiroba_fabric::Unsent;
use hiroba_protocol::Protocol;
use hiroba_protocol::{Fact, Synchronisation, Waiter};
use hiroba_trace::{Activity, Event, Header, MessageKind, ThreadNumber, TraceWriter};
use hiroba_wire::control::{JobDescription, ToLauncher};
use hiroba_wire::{Collective, Message, Placement};
use rustc_hash::FxHashMap;

use crate::runtime::Runtime;
use crate::signals::SignalsDeferred;
use crate::threads::{Place, Threads};

/// Maximum time until recorded events are safe in the file.
const SAFE_AFTER: Duration = Duration::from_secs(1);

/// Number of threads with trace numbers of their own that fault without ever calling the runtime. Further
/// ones share the runtime's number.
const STRANGERS_MAX: usize = 4096;

/// Keeps the record of a traced run.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// The trace's start.
    origin: Instant,
    /// True once the node has joined: from then on the program's activities are recorded.
    follows_program: AtomicBool,
    /// Held while a message is recorded and sent, so that both have the same order.
    sending: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` once the trace has ended or cannot be written.
    writer: Option<TraceWriter<File>>,
    /// The latest recorded time.
    latest_ns: u64,
    flushed: Instant,
    /// Threads that fault and have no place, by the kernel's number.
    strangers: FxHashMap<u32, ThreadNumber>,
}

/// The subject of a record.
#[derive(Clone, Copy)]
enum Who<'a> {
    Thread(&'a Place),
    Number(ThreadNumber),
}

impl Recorder {
    /// Begins a node's trace in the file that the launcher opened for it.
    pub(crate) fn of_job(job: &JobDescription, file: OwnedFd, granule_bytes: u32) -> io::Result<Recorder> {
        let origin = Instant::now();
        let clock = |id| {
            let time = rustix::time::clock_gettime(id);
            time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
        };
        let header = Header {
            node: job.node,
            nodes: job.addresses.len() as u16,
            granule_bytes,
            page_size: job.coherence.page_size,
            host: job.hosts.get(job.node.index()).copied().unwrap_or(0),
            monotonic_ns: clock(rustix::time::ClockId::Monotonic),
            realtime_ns: clock(rustix::time::ClockId::Realtime),
            message_kinds: Message::KINDS.map(str::to_owned).to_vec(),
        };
        let writer = Some(TraceWriter::new(File::from(file), &header)?);
        Ok(Recorder {
            origin,
            follows_program: AtomicBool::new(false),
            sending: Mutex::new(()),
            state: Mutex::new(State {
                writer,
                latest_ns: 0,
                flushed: origin,
                strangers: FxHashMap::default(),
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn since_start(&self, instant: Instant) -> u64 {
        instant.saturating_duration_since(self.origin).as_nanos() as u64
    }

    fn now(&self) -> u64 {
        self.since_start(Instant::now())
    }

    /// Writes records; without a time, they get the latest recorded one.
    fn record(&self, who: Who<'_>, at_ns: Option<u64>, events: &[Event]) -> io::Result<()> {
        let mut state = self.state();
        let State { writer: Some(writer), latest_ns, .. } = &mut *state else { return Ok(()) };
        let at_ns = at_ns.unwrap_or(*latest_ns);
        *latest_ns = at_ns.max(*latest_ns);
        let ended = match who {
            Who::Thread(place) => place.pending_end().replace(None),
            Who::Number(_) => None,
        };
        let thread = who.number();
        let mut written = Ok(());
        if let Some(ended) = ended {
            written = writer.record(thread, ended, &Event::Leave);
        }
        for event in events {
            written = written.and_then(|()| writer.record(thread, at_ns, event));
        }
        if written.is_err() {
            state.writer = None; // a trace with a gap would be judged wrongly
        }
        written
    }

    /// Returns the number of a thread that the runtime knows only by its faults.
    fn stranger(&self, tid: u32, threads: &Threads) -> ThreadNumber {
        let mut state = self.state();
        if state.strangers.len() >= STRANGERS_MAX && !state.strangers.contains_key(&tid) {
            return ThreadNumber::RUNTIME;
        }
        *state.strangers.entry(tid).or_insert_with(|| ThreadNumber(threads.next_trace_number()))
    }

    fn flush(&self) -> io::Result<()> {
        flush(&mut self.state())
    }
}

fn flush(state: &mut State) -> io::Result<()> {
    state.flushed = Instant::now();
    state.writer.as_mut().map_or(Ok(()), TraceWriter::flush)
}

impl Who<'_> {
    fn number(self) -> ThreadNumber {
        match self {
            Who::Thread(place) => ThreadNumber(place.trace_number()),
            Who::Number(number) => number,
        }
    }
}

/// Calls of the rest of the node. They do nothing in a run that is not traced.
impl Runtime {
    /// Begins recording the program's activities, once the node has joined.
    pub(crate) fn trace_program(&self) {
        if let Some(recorder) = &self.recorder {
            recorder.follows_program.store(true, Ordering::Relaxed);
        }
    }

    fn me(&self) -> Who<'_> {
        self.threads.my_place().map_or(Who::Number(ThreadNumber::RUNTIME), Who::Thread)
    }

    fn record(&self, who: Who<'_>, at_ns: Option<u64>, event: Event) {
        self.record_all(who, at_ns, &[event]);
    }

    fn record_all(&self, who: Who<'_>, at_ns: Option<u64>, events: &[Event]) {
        if let Some(recorder) = &self.recorder {
            self.or_cut_off(recorder.record(who, at_ns, events));
        }
    }

    fn or_cut_off(&self, written: io::Result<()>) {
        if let (Err(error), Some(control)) = (written, &self.control) {
            let node = self.node();
            let sentence = format!("cannot write the trace of node {node}, which is cut off here: {error}");
            control.send(&ToLauncher::Remark { sentence });
        }
    }

    /// Records what the calling thread has done to pages. Signals are deferred.
    #[inline]
    pub(crate) fn trace_fact(&self, event: impl FnOnce() -> Event) {
        if self.recorder.is_some() {
            self.record(self.me(), None, event());
        }
    }

    /// Records that the calling thread began an activity at `since`. Signals are deferred. Returns true if
    /// its end must be recorded.
    #[inline]
    pub(crate) fn trace_begin(&self, since: Instant, activity: impl FnOnce() -> Activity) -> bool {
        let Some(recorder) = &self.recorder else { return false };
        if !recorder.follows_program.load(Ordering::Relaxed) {
            return false;
        }
        self.record(self.me(), Some(recorder.since_start(since)), Event::Enter(activity()));
        true
    }

    /// Records that the calling thread's latest activity has ended.
    pub(crate) fn trace_end(&self) {
        let (Some(recorder), Some(place)) = (&self.recorder, self.threads.my_place()) else { return };
        if let Some(earlier) = place.pending_end().replace(Some(recorder.now())) {
            // A handler of the program that ran while the thread slept has left its own.
            let _signals = SignalsDeferred::defer();
            self.record(Who::Number(Who::Thread(place).number()), Some(earlier), Event::Leave);
        }
    }

    /// Writes the end of a thread's latest activity into the file.
    pub(crate) fn trace_pending_end(&self, place: &Place) {
        if self.recorder.is_some()
            && let Some(ended) = place.pending_end().replace(None)
        {
            self.record(Who::Number(Who::Thread(place).number()), Some(ended), Event::Leave);
        }
    }

    /// Records that thread `tid` has stopped in a fault reported as an event.
    pub(crate) fn trace_event_fault(&self, tid: Option<u32>, page: PageId, wanted: Access) -> bool {
        let Some(recorder) = &self.recorder else { return false };
        if !recorder.follows_program.load(Ordering::Relaxed) {
            return false;
        }
        let fault = Event::Enter(Activity::Fault { page, wanted });
        self.record(self.stopped(recorder, tid), Some(recorder.now()), fault);
        true
    }

    /// Records that this fault is over.
    pub(crate) fn trace_event_fault_served(&self, tid: Option<u32>) {
        if let Some(recorder) = &self.recorder {
            self.record(self.stopped(recorder, tid), Some(recorder.now()), Event::Leave);
        }
    }

    fn stopped(&self, recorder: &Recorder, tid: Option<u32>) -> Who<'_> {
        match tid.and_then(|tid| self.threads.by_tid(tid)) {
            Some(place) => Who::Thread(place),
            None => {
                Who::Number(tid.map_or(ThreadNumber::RUNTIME, |tid| recorder.stranger(tid, &self.threads)))
            }
        }
    }

    /// Sends a message, whose first byte is its kind.
    pub(crate) fn send_to(&self, to: NodeId, parts: &[&[u8]]) {
        self.send_unsent_to(to, parts[0][0], Unsent::new(parts));
    }

    /// Sends a message of this kind.
    pub(crate) fn send_unsent_to(&self, to: NodeId, kind: u8, message: Unsent<'_>) {
        if self.post(to, kind, message) {
            self.fabric().push(to);
        }
    }

    /// Posts a message of this kind. Returns true if it waits for a [push](hiroba_fabric::Fabric::push).
    pub(crate) fn post(&self, to: NodeId, kind: u8, message: Unsent<'_>) -> bool {
        let Some(recorder) = &self.recorder else { return self.post_by_kind(to, kind, message) };
        let _in_order = recorder.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let (named, bytes) = (MessageKind(kind), message.rest() as u32);
        self.record(self.me(), Some(recorder.now()), Event::Sent { to, kind: named, bytes });
        self.post_by_kind(to, kind, message)
    }

    fn post_by_kind(&self, to: NodeId, kind: u8, message: Unsent<'_>) -> bool {
        if Message::is_unhurried(kind) {
            self.fabric().post_unhurried(to, message)
        } else {
            self.fabric().post(to, message)
        }
    }

    /// Records that a message arrived, and that handling it begins. Signals are deferred.
    pub(crate) fn trace_received(&self, from: NodeId, head: &[u8], payload_bytes: usize) {
        let Some(recorder) = &self.recorder else { return };
        let kind = MessageKind(head.first().copied().unwrap_or(u8::MAX));
        let bytes = (head.len() + payload_bytes) as u32;
        let events = [Event::Received { from, kind, bytes }, Event::Enter(Activity::Serve { from, kind })];
        self.record_all(self.me(), Some(recorder.now()), &events);
    }

    /// Records that the message was handled.
    pub(crate) fn trace_handled(&self) {
        if let Some(recorder) = &self.recorder {
            self.record(self.me(), Some(recorder.now()), Event::Leave);
        }
    }

    /// Records that pages exist from now on.
    pub(crate) fn trace_region(&self, granules: PageRange, options: RegionOptions) {
        let RegionOptions { placement, page_size, protocol } = options;
        let pages =
            granules.count / (page_size.bytes() as u64 / u64::from(self.job.limits.granule_bytes)).max(1);
        let nodes = || NodeId::all(self.nodes());
        self.trace_fact(|| {
            let homes = match placement {
                Placement::On(node) => vec![(node, pages.max(1))],
                Placement::Cyclic => nodes().map(|node| (node, 1)).collect(),
                Placement::Block | Placement::FirstTouch => {
                    let each = pages.div_ceil(u64::from(self.nodes())).max(1);
                    nodes().map(|node| (node, each)).collect()
                }
            };
            let protocol = protocol.map_or("", Protocol::name).to_owned();
            Event::Region { granules, page_size, homes, protocol }
        });
    }

    /// Records a fact that the engine reports. The core's lock is held.
    pub(crate) fn trace_told(&self, fact: Fact) {
        let thread = |waiter: Waiter| Who::Thread(self.threads.place_of(waiter));
        let (who, event) = match fact {
            Fact::Acquired { waiter, lock, turn } => (thread(waiter), Event::Acquired { lock, turn }),
            Fact::Released { waiter, lock, turn } => (thread(waiter), Event::Released { lock, turn }),
            Fact::Met { waiter, epoch } => (thread(waiter), Event::Met { epoch }),
            Fact::Published { waiter, to, count } => {
                let who = waiter.map_or(Who::Number(ThreadNumber::RUNTIME), thread);
                (who, Event::Published { to, count })
            }
            Fact::PublicationSeen { from, count } => {
                (Who::Number(ThreadNumber::RUNTIME), Event::PublicationSeen { from, count })
            }
            Fact::Atomic { waiter, page, offset, turn, outcome } => {
                let granule_bytes = self.job.limits.granule_bytes;
                let page = PageId(page.0 + u64::from(offset / granule_bytes));
                let (previous, current) = (outcome.previous, outcome.current);
                let offset = offset % granule_bytes;
                (thread(waiter), Event::Atomic { page, offset, turn, previous, current })
            }
            Fact::Holds { page, version } => (self.me(), Event::Holds { page, version }),
            Fact::Applied { page, writer, seq, bytes } => {
                (self.me(), Event::Applied { page, writer, seq, bytes })
            }
            Fact::Moved { pages, to } => (self.me(), Event::Moved { pages, to }),
            Fact::Converted { page } => (self.me(), Event::Converted { page }),
            Fact::Closed { seq, pages } => (self.me(), Event::Closed { seq, pages }),
            Fact::Seen { grown } => (self.me(), Event::Seen { grown }),
        };
        self.record(who, None, event);
    }

    /// Records a load of the calling thread: `bytes` bytes, 1 to 8, at a shared address within a granule.
    pub fn record_load(&self, address: usize, bytes: u8, value: u64) {
        self.record_access(address, |page, offset| Event::Load { page, offset, bytes, value });
    }

    /// Records a store in the same way.
    pub fn record_store(&self, address: usize, bytes: u8, value: u64) {
        self.record_access(address, |page, offset| Event::Store { page, offset, bytes, value });
    }

    fn record_access(&self, address: usize, event: impl FnOnce(PageId, u32) -> Event) {
        let (Some(recorder), Some(page)) = (&self.recorder, self.memory.page_of(address)) else { return };
        let offset = (address % self.job.limits.granule_bytes as usize) as u32;
        let _signals = SignalsDeferred::defer();
        if self.threads.my_place().is_none() {
            self.introduce_thread();
        }
        self.record(self.me(), Some(recorder.now()), event(page, offset));
    }

    /// Flushes recorded events to the file from time to time. Called by the service thread.
    pub(crate) fn keep_trace_safe(&self) {
        if let Some(recorder) = &self.recorder
            && recorder.state().flushed.elapsed() >= SAFE_AFTER
        {
            self.or_cut_off(recorder.flush());
        }
    }

    /// Flushes recorded events before the process ends without leaving its job.
    pub fn flush_trace(&self) {
        let _signals = SignalsDeferred::defer();
        if let Some(recorder) = &self.recorder {
            let _ = recorder.flush();
        }
    }

    /// Does the same, unless the calling thread or another one is writing to the trace.
    pub(crate) fn flush_trace_if_free(&self) {
        let _signals = SignalsDeferred::defer();
        if let Some(mut state) = self.recorder.as_ref().and_then(|recorder| recorder.state.try_lock().ok()) {
            let _ = flush(&mut state);
        }
    }

    /// Ends the trace properly.
    pub(crate) fn end_trace(&self) {
        let Some(recorder) = &self.recorder else { return };
        let _signals = SignalsDeferred::defer();
        self.threads.all().for_each(|place| self.trace_pending_end(place));
        let writer = recorder.state().writer.take();
        let ended = writer.map_or(Ok(()), |writer| writer.finish().map(drop));
        self.or_cut_off(ended);
    }
}

/// Returns the trace's activity for a synchronising call.
pub(crate) fn activity_of(sync: Synchronisation) -> Activity {
    match sync {
        Synchronisation::Acquire(lock) | Synchronisation::TryAcquire(lock) => Activity::Acquire(lock),
        Synchronisation::Release(lock) => Activity::Release(lock),
        Synchronisation::Wait(cond, lock) => Activity::Wait(cond, lock),
        Synchronisation::Signal(cond) | Synchronisation::Broadcast(cond) => Activity::Signal(cond),
        Synchronisation::Collective(Collective::Barrier) => Activity::Barrier,
        Synchronisation::Collective(_) => Activity::Collective,
        Synchronisation::Publish(node) | Synchronisation::Inform(node) => Activity::Publish(node),
        Synchronisation::Convert(_)
        | Synchronisation::Place(_)
        | Synchronisation::AwaitOthers
        | Synchronisation::Conclude => Activity::Other,
    }
}

/// Marks the calling thread as being in the allocator or giving a hint, until it is dropped.
pub(crate) struct OtherActivity<'a>(Option<&'a Runtime>);

impl Runtime {
    /// Records that the calling thread is in the allocator or gives a hint.
    pub(crate) fn trace_other(&self) -> OtherActivity<'_> {
        if self.recorder.is_none() {
            return OtherActivity(None);
        }
        let _signals = SignalsDeferred::defer();
        if self.threads.my_place().is_none() {
            self.introduce_thread();
        }
        let begun = self.trace_begin(Instant::now(), || Activity::Other);
        OtherActivity(begun.then_some(self))
    }
}

impl Drop for OtherActivity<'_> {
    fn drop(&mut self) {
        if let Some(runtime) = self.0 {
            runtime.trace_end();
        }
    }
}
