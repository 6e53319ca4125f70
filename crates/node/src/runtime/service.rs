//! The service thread. It answers other nodes while the program computes, reads faults that come as events,
//! and notices when the launcher is gone.
//!
//! A waiting program thread polls the fabric itself, and the service thread ignores it meanwhile
//! ([`Attention`]). Of several waiting threads one watches, and the others sleep until it has their answers.
//! If each message woke them all, it would cost as many wake-ups as threads wait, and the receiving thread
//! would get its processor last. When the watching thread has its own answer, the service thread watches
//! again.

use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hiroba_base::NodeId;
use hiroba_base::legs::{self, Leg};
use hiroba_fabric::{Fabric, Receiver};
use hiroba_memory::fault::Fault;
use hiroba_wire::control::{ToLauncher, ToNode};
use hiroba_wire::{Message, Payload, joined};
use rustix::event::epoll;
use rustix::thread::{CpuSet, Pid};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::NodeError;
use crate::control::ControlChannel;
use crate::runtime::Runtime;
use crate::runtime::attention::Attention;
use crate::runtime::follow::writable_bytes;
use crate::runtime::host::EventFault;
use crate::runtime::lulls::Lulls;
use crate::runtime::waits::REPORT_EVERY;
use crate::signals::SignalsDeferred;
use crate::time_class::TimeClass;
use crate::time_class::classify;
use crate::timers::timespec;

const FABRIC: u64 = 1;
const CONTROL: u64 = 2;
const FAULTS: u64 = 3;
const HOLDS: u64 = 4;
const LULL: u64 = 5;

/// The service thread wakes at least this often: a thread that sent something and computes on relies on it
/// for the fabric's timers.
const NAP: Duration = Duration::from_millis(5);

/// How long a thread sleeps at first when another thread is receiving: about as long as that takes.
pub(crate) const OUT_OF_THE_WAY: Duration = Duration::from_micros(20);

/// How long the answer to a fault event is polled for before sleeping, when cores suffice.
const SPIN: Duration = Duration::from_micros(60);

/// The service thread's priority.
const ABOVE_PAGING: c_int = 2;

/// The paging thread's priority where the service thread brings in what the program faults on. If it had
/// none, it would get the processor only while the program computes, and would come to pages ahead of a
/// stream when the service thread has long brought them in.
const ABOVE_PROGRAM: c_int = 1;

/// State that program threads and the service thread share.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) attention: Attention,
    /// Number of waiting program threads.
    waiting: AtomicU32,
    /// The service thread, once it runs, and the processor it is bound to (-1: none yet).
    thread: OnceLock<Pid>,
    processor: AtomicI64,
    /// True if the service thread should have priority over ordinary threads, if that is permitted.
    runs_first: bool,
    close_noticed: (Mutex<()>, Condvar),
    /// Becomes ready when a page that a request waits for has been held long enough.
    hold_timer: OwnedFd,
}

impl Service {
    pub(crate) fn new(
        fabric: Option<&dyn Fabric>,
        control: Option<&ControlChannel>,
        runs_first: bool,
        lulls: &Lulls,
    ) -> Result<Service, NodeError> {
        let system = |errno| NodeError::system("setting up the service thread's epoll")(errno);
        let attention = Attention::new(fabric, FABRIC).map_err(system)?;
        if let Some(control) = control {
            epoll::add(
                &attention,
                control.as_fd(),
                epoll::EventData::new_u64(CONTROL),
                epoll::EventFlags::IN,
            )
            .map_err(system)?;
        }
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let hold_timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(system)?;
        epoll::add(&attention, &hold_timer, epoll::EventData::new_u64(HOLDS), epoll::EventFlags::IN)
            .map_err(system)?;
        epoll::add(&attention, &lulls.timer, epoll::EventData::new_u64(LULL), epoll::EventFlags::IN)
            .map_err(system)?;
        Ok(Service {
            attention,
            hold_timer,
            waiting: AtomicU32::new(0),
            thread: OnceLock::new(),
            processor: AtomicI64::new(-1),
            runs_first,
            close_noticed: (Mutex::new(()), Condvar::new()),
        })
    }

    /// Makes the service thread check held pages after this time.
    pub(crate) fn look_up_after(&self, wait: Duration) {
        // Zero would switch the timer off.
        let it_value = timespec(wait.max(Duration::from_nanos(1)));
        let once = Itimerspec { it_interval: timespec(Duration::ZERO), it_value };
        // It cannot fail for a timer and a valid time. If it did, the next message would end the hold.
        let _ = timerfd_settime(&self.hold_timer, TimerfdTimerFlags::empty(), &once);
    }

    fn quiet_hold_timer(&self) {
        let _ = rustix::io::read(&self.hold_timer, &mut [0; 8]);
    }

    /// Adds a waiting program thread. Returns their number.
    pub(crate) fn begin_waiting(&self) -> u32 {
        self.waiting.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the number of waiting program threads.
    pub(crate) fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Removes a waiting program thread.
    pub(crate) fn end_waiting(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Binds the service thread to the calling program thread's processor, if that has changed.
    ///
    /// A thread that stops in a fault, or waits, then hands its processor straight to the service thread, and
    /// a request from another node interrupts the program where it runs. Waking another, halted processor
    /// costs ten times as much.
    pub(crate) fn stay_near_caller(&self) {
        let processor = rustix::thread::sched_getcpu();
        if self.processor.swap(processor as i64, Ordering::Relaxed) == processor as i64 {
            return;
        }
        if let Some(thread) = self.thread.get() {
            let mut set = CpuSet::new();
            set.set(processor);
            // Where binding is forbidden, the scheduler places the thread: slower, not wrong.
            let _ = rustix::thread::sched_setaffinity(Some(*thread), &set);
        }
    }

    /// Sets the service thread up. Called by it as it begins.
    fn introduce(&self) {
        let _ = self.thread.set(rustix::thread::gettid());
        if !(self.runs_first && may_run_first()) {
            ask_for_short_slices();
        }
    }

    /// Gives the calling thread, which pages, priority over ordinary threads, if the service thread has it.
    pub(crate) fn run_before_program(&self) {
        let _ = self.runs_first && run_first(ABOVE_PROGRAM);
    }

    /// Sleeps until the launcher has closed the job.
    pub(crate) fn wait_until_closed(&self, closed: &AtomicBool) {
        let (mutex, condvar) = &self.close_noticed;
        let guard = mutex.lock().unwrap_or_else(PoisonError::into_inner);
        let _guard = condvar.wait_while(guard, |()| !closed.load(Ordering::Acquire));
    }

    fn notice_close(&self, closed: &AtomicBool) {
        let (mutex, condvar) = &self.close_noticed;
        let _guard = mutex.lock().unwrap_or_else(PoisonError::into_inner);
        closed.store(true, Ordering::Release);
        condvar.notify_all();
    }
}

/// Gives the calling thread priority over ordinary threads. The service thread runs for microseconds and
/// sleeps, and while it waits for a processor another node's thread stands still; so it should run before the
/// computing threads of its own node. Needs a permission (`CAP_SYS_NICE`, or `RLIMIT_RTPRIO`). Returns true
/// if it was given.
///
/// The change is permanent.
pub fn may_run_first() -> bool {
    // The permission may be for the lowest priority only. Then the paging thread has the same.
    run_first(ABOVE_PAGING) || run_first(ABOVE_PROGRAM)
}

fn run_first(sched_priority: c_int) -> bool {
    let parameters = libc::sched_param { sched_priority };
    // Threads that it starts are ordinary again.
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the parameters are valid for the call, which reads them; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) == 0 }
}

/// Requests a short time slice for the calling thread. It lets the scheduler interrupt a computing thread at
/// once rather than after milliseconds (sched_setattr(2), Linux 6.12; older kernels ignore it).
pub(crate) fn ask_for_short_slices() {
    const SLICE: Duration = Duration::from_micros(100);
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: SLICE.as_nanos() as u64,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the attributes are valid for the call, which reads them; 0 is the calling thread.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

/// How long the service thread stands aside while another thread is receiving: longer each time.
///
/// That thread may have been interrupted, and may wait for this very processor. If the service threads of
/// several nodes, which may have priority over it, woke every 20 µs, it would not get the processor.
#[derive(Debug, Default)]
struct Aside {
    times: u32,
}

impl Aside {
    const DOUBLINGS_MAX: u32 = 6;

    /// Returns the time of the next sleep.
    fn longer(&mut self) -> Duration {
        let doublings = self.times.min(Self::DOUBLINGS_MAX);
        self.times = self.times.saturating_add(1);
        OUT_OF_THE_WAY * (1 << doublings)
    }
}

impl Runtime {
    /// Runs the service thread until the launcher closes the job.
    pub(crate) fn serve_others(&'static self) {
        self.service().introduce();
        let events = self.faults.as_ref().and_then(|faults| faults.events());
        if let Some(events) = events {
            for descriptor in events.descriptors() {
                let data = epoll::EventData::new_u64(FAULTS);
                if let Err(errno) =
                    epoll::add(&self.service().attention, descriptor, data, epoll::EventFlags::IN)
                {
                    self.fatal(&format!("cannot wait for fault events: {errno}"));
                }
            }
        }
        // No handler of the program runs on this thread: it was started with signals blocked.
        let _signals = SignalsDeferred::by_the_kernel();
        let mut ready = Vec::with_capacity(4);
        let mut faults = Vec::new();
        // After a fault this thread stays awake for a moment: for the answer from another node, or for the
        // next fault, which would otherwise have to wake a halted processor.
        let mut spin_until: Option<Instant> = None;
        let mut program_stopped = false;
        let mut waits_seen = Instant::now();
        let mut peers_seen = Instant::now();
        let mut headroom_due = Instant::now();
        let mut aside = Aside::default();
        loop {
            ready.clear();
            if waits_seen.elapsed() >= REPORT_EVERY {
                waits_seen = Instant::now();
                self.report_waits();
                self.keep_trace_safe();
            }
            if self.serving.peers.is_due(&mut peers_seen) {
                self.look_after_peers();
            }
            self.watch_headroom(&mut headroom_due);
            self.start_on_demand();
            self.send_owing_packets();
            let spins = spin_until.is_some_and(|until| Instant::now() < until);
            let nap = if spins { Duration::ZERO } else { self.nap() };
            let _ = epoll::wait(
                &self.service().attention,
                rustix::buffer::spare_capacity(&mut ready),
                Some(&timespec(nap)),
            );
            let is_ready = |source: u64| ready.iter().any(|event| event.data.u64() == source);
            if is_ready(CONTROL) && self.hear_launcher() {
                return;
            }
            if is_ready(HOLDS) {
                self.service().quiet_hold_timer();
                self.tell(|_| {}); // it ends holds first
            }
            if is_ready(FAULTS)
                && let Some(events) = events
            {
                faults.clear();
                if let Err(error) = events.read(&mut faults) {
                    self.fatal(&format!("cannot read fault events: {error}"));
                }
                if self.handle_events(&faults) && !program_stopped {
                    self.service().attention.share(self.fabric(), true);
                    self.fabric().begin_expecting();
                    program_stopped = true;
                }
                // Otherwise the program's thread continues and needs the processor.
                let stays_awake = program_stopped && self.patience.stays_awake();
                spin_until = stays_awake.then(|| Instant::now() + SPIN);
            }
            if is_ready(LULL) {
                self.see_to_lull(program_stopped || is_ready(FABRIC));
            }
            // Ended holds may have left timers that are due as well.
            let timers_due = (ready.is_empty() && !spins) || is_ready(HOLDS) || is_ready(LULL);
            if self.has_fabric() && (timers_due || program_stopped || is_ready(FABRIC)) {
                let from_program = self.account.is_computing() && !program_stopped;
                let began = Instant::now();
                let received = self.receive();
                if received.is_some_and(|count| count > 0) && from_program {
                    self.account.add(TimeClass::Serve, began.elapsed());
                }
                // Waking this thread when the role is free would cost the other a system call each time. If
                // only timers are due, the other sees to them, and a fault must not find this thread asleep.
                match received {
                    None if program_stopped || is_ready(FABRIC) => std::thread::sleep(aside.longer()),
                    None => {}
                    Some(_) => aside = Aside::default(),
                }
                self.see_to_port_timers();
                if program_stopped && !self.core().has_event_faults() {
                    program_stopped = false;
                    spin_until = None; // the program's thread needs the processor now
                    self.fabric().end_expecting();
                    self.service().attention.share(self.fabric(), false);
                }
            }
        }
    }

    fn nap(&self) -> Duration {
        if !self.has_fabric() {
            return REPORT_EVERY;
        }
        // The fabric's descriptor covers its timers.
        self.port_timers_due_in().map_or(NAP, |due| due.min(NAP))
    }

    /// Reads a message from the launcher. Returns true when the job is over. Exits if the launcher is gone.
    fn hear_launcher(&self) -> bool {
        let Some(control) = &self.control else { return false };
        match control.receive() {
            Ok(Some(ToNode::Close)) => {
                self.service().notice_close(&self.life.closed);
                true
            }
            Ok(Some(ToNode::Ping)) => {
                control.send(&ToLauncher::Pong);
                false
            }
            Ok(Some(ToNode::Sample)) => {
                let statistics_json = serde_json::to_string(&self.statistics()).unwrap_or_default();
                control.send(&ToLauncher::Sample { statistics_json });
                false
            }
            Ok(Some(_)) => false,
            // SAFETY: _exit has no memory operands and does not return.
            Ok(None) | Err(_) => unsafe { libc::_exit(125) },
        }
    }

    /// Passes faults to the engine. Returns true if threads are still stopped in any of them.
    fn handle_events(&'static self, faults: &[Fault]) -> bool {
        let mut stopped = false;
        self.await_lending_and_serve();
        faults.iter().for_each(|fault| self.bring_in_touched(fault.page));
        self.tell(|core| {
            for fault in faults {
                let (class, wanted) = classify(fault.kind);
                self.account.count_fault(class);
                let thread = fault.thread;
                self.account.fault_began(thread.and_then(|tid| self.threads.by_tid(tid)), class);
                let is_local = self.is_local(fault.page);
                let is_traced = !is_local && self.trace_event_fault(thread, fault.page, wanted);
                let (granule, since) = (fault.page, Instant::now());
                core.note_event_fault(EventFault { granule, thread, class, since, is_traced });
                if is_local {
                    self.give_local(core, fault.page);
                } else {
                    core.note_touch(&self.memory, fault);
                    core.note_awaited(fault.page);
                    core.engine.handle_fault(fault.page, wanted, None);
                }
                self.carry_out_all(core);
            }
            stopped = core.has_event_faults();
        });
        stopped
    }

    /// Receives what other nodes have sent, without waiting. Returns the number of messages, or `None` when
    /// another thread is receiving.
    pub(crate) fn receive(&self) -> Option<usize> {
        let mut handler = Handler { runtime: self, count: 0 };
        match self.fabric().receive_now(&mut handler) {
            Ok(received) => received.then_some(handler.count),
            // The error names the sender and the fault.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => self.fatal(&error.to_string()),
            Err(error) => self.fatal(&format!("cannot receive from other nodes: {error}")),
        }
    }

    /// Handles a message whose payload was not copied yet.
    fn dispatch_with_payload(&self, from: NodeId, head: &[u8], payload: &mut dyn Payload) {
        match Message::beginning_of_ports(head, payload.bytes()) {
            Ok(head) => {
                legs::end(Leg::Decode);
                self.take_port_piece(from, head, payload);
            }
            Err(error) => self.fatal(&format!("a message from node {from} is invalid: {error}")),
        }
    }

    pub(crate) fn dispatch(&self, from: NodeId, bytes: &[u8]) {
        let message = match Message::decode(bytes, &self.job.limits) {
            Ok(message) => message,
            Err(error) => self.fatal(&format!("a message from node {from} is invalid: {error}")),
        };
        legs::end(Leg::Decode);
        match message {
            Message::Free { address } => self.tell(|core| self.note_freed(core, from, address)),
            Message::SizeRequest { ticket, address } => self.tell_size(from, ticket, address),
            Message::SizeReply { ticket, bytes } => self.hear_size(ticket, bytes),
            Message::TouchedPages { seq, timestamp, epoch, interval_end, pages } => self.tell(|core| {
                self.hear_touched(core, (from, seq), (timestamp, epoch), interval_end, pages);
            }),
            Message::TouchedAll => self.send_to(from, &[&Message::TouchedHeard.encode()]),
            Message::TouchedHeard => self.tell(|core| Runtime::note_heard(core, from)),
            Message::ProgramData { identity, offset, bytes } => {
                let kept = self.image.keep((from, writable_bytes()), identity, offset, bytes);
                kept.unwrap_or_else(|why| {
                    self.fatal(&format!("a message from node {from} is invalid: {why}"))
                });
            }
            Message::Ports { bytes } => self.take_port_packet(from, bytes),
            Message::LentMemory { port } => self.hear_of_lending(from, port),
            Message::Alive => drop(self.serving.peers.signs_received.fetch_add(1, Ordering::Relaxed)),
            message => {
                self.bring_in_for_message(&message);
                if let Message::ConversionRequest { page } = &message {
                    self.note_converted_block(*page);
                }
                self.tell(|core| {
                    if let Err(error) = core.engine.handle_message(from, &message) {
                        self.fatal(&format!("a message from node {from} breaks the protocol: {error}"));
                    }
                    legs::end(Leg::Engine);
                    if matches!(message, Message::Publish { .. }) && core.engine.keeps_back(from) {
                        self.keep_port_packets(from);
                    }
                    self.carry_out_received(core, message.content());
                });
            }
        }
    }
}

/// Handles what has arrived.
struct Handler<'a> {
    runtime: &'a Runtime,
    count: usize,
}

impl Handler<'_> {
    fn count_one(&mut self) {
        self.count += 1;
        self.runtime.serving.messages_received.fetch_add(1, Ordering::Relaxed);
    }
}

impl Receiver for Handler<'_> {
    fn take(&mut self, from: NodeId, message: &[u8]) {
        self.count_one();
        let runtime = self.runtime;
        if !runtime.defer(from, message) {
            runtime.trace_received(from, message, 0);
            runtime.dispatch(from, message);
            runtime.trace_handled();
        }
    }

    fn take_with_payload(&mut self, from: NodeId, head: &[u8], payload: &mut dyn Payload) {
        let runtime = self.runtime;
        if runtime.may_defer() {
            return self.take(from, &joined(head, payload));
        }
        self.count_one();
        runtime.trace_received(from, head, payload.bytes());
        runtime.dispatch_with_payload(from, head, payload);
        runtime.trace_handled();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_keeps_the_role_is_left_alone() {
        let mut aside = Aside::default();
        assert_eq!(aside.longer(), OUT_OF_THE_WAY, "a thread that receives is done after that time");
        let wakes = (0..).scan(Duration::ZERO, |slept, _| {
            *slept += aside.longer();
            (*slept < Duration::from_secs(1)).then_some(())
        });
        assert!(wakes.count() < 1000);
    }
}
