//! Requests of program threads, and how they wait. Each call returns when it is done.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hiroba_base::legs::{self, Leg};
use hiroba_base::{CondId, LockId, PageRange};
use hiroba_memory::fault::{Fault, FaultOutcome};
use hiroba_protocol::lease::Taken;
use hiroba_protocol::{Engine, Misuse, Outcome, Synchronisation, Waiter};
use hiroba_trace::Activity;
use hiroba_wire::{AtomicOperation, AtomicOutcome};
use rustix::event::{PollFd, PollFlags, poll};

use super::Runtime;
use crate::call_site;
use crate::runtime::host::Core;
use crate::runtime::service::OUT_OF_THE_WAY;
use crate::runtime::tracing::activity_of;
use crate::signals::SignalsDeferred;
use crate::threads::{Answer, Call, Purpose};
use crate::time_class::{TimeClass, classify};

/// Maximum number of bytes that a program thread may leave queued for other nodes when it resumes computing.
/// The diffs of one release may exceed it.
const BACKLOG_BYTES_MAX: usize = 64 << 20;

/// Interval at which a sleeping thread that watches the fabric wakes to drive its timers, as does a thread
/// that no other thread wakes.
const NAP: Duration = Duration::from_millis(10);

/// The same interval for a thread that is woken when its answer has arrived.
const RUNG_FOR_NAP: Duration = Duration::from_millis(100);

/// After this time asleep a thread that others wake leaves the fabric to the service thread, and does not
/// count as waiting. If a thread that waits for long kept watching, each answer to another thread of its
/// node would wake both, one after the other.
const IDLE_AFTER: Duration = Duration::from_millis(1);

thread_local! {
    /// True if the calling thread watches the fabric on behalf of the node.
    static WATCHES: Cell<bool> = const { Cell::new(false) };
}

/// The events that end a thread's sleep.
enum LookOut {
    /// Its bell or a timeout. The watching thread sleeps like this for a moment while another thread receives
    /// what has come: the descriptor stays ready that long, and polling it again and again would take that
    /// thread's processor.
    ForBell(Duration),
    /// Its bell, incoming messages, or a timeout.
    ForBellAndFabric(Duration),
}

/// A wait's share in watching the fabric. Signals are deferred whenever it changes.
pub(crate) struct Watch<'a> {
    runtime: &'a Runtime,
    /// True if watching began in this wait, and ends with it.
    is_mine: bool,
}

impl Watch<'_> {
    /// Watches if no other thread does. Returns true if the calling thread watches now. A signal handler of
    /// the program may interrupt a watching thread and wait in turn: that wait goes on watching for the outer
    /// one.
    fn take(&mut self) -> bool {
        if !WATCHES.get() && self.runtime.serving.service.attention.take(self.runtime.fabric()) {
            WATCHES.set(true);
            self.is_mine = true;
        }
        WATCHES.get()
    }

    /// Ends what began in this wait.
    fn give_back(&mut self) {
        if std::mem::take(&mut self.is_mine) {
            WATCHES.set(false);
            self.runtime.serving.service.attention.give_back(self.runtime.fabric());
        }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Runtime {
    /// Makes a request to the engine for the calling thread, and waits for the answer.
    fn ask(
        &self,
        class: TimeClass,
        activity: Activity,
        request: impl FnOnce(&mut dyn Engine, Waiter),
    ) -> Outcome {
        self.ask_as(Purpose::Call, class, activity, |core, waiter| request(&mut *core.engine, waiter))
    }

    fn ask_as(
        &self,
        purpose: Purpose,
        class: TimeClass,
        activity: Activity,
        request: impl FnOnce(&mut Core, Waiter),
    ) -> Outcome {
        // Signals are deferred once for the whole call, because everything it locks requires that.
        let signals = SignalsDeferred::defer();
        let waiter = self.waiter(purpose);
        let inside = self.account.enter(&self.threads, class);
        let quiet = self.begin_spinning();
        let mut is_traced = false;
        let mut watch = self.unwatched();
        let act = |core: &mut Core| {
            is_traced = self.trace_begin(inside.since(), || activity);
            request(core, waiter);
        };
        // Watch before the request leaves: another node's request may arrive at the same moment, and this
        // thread is about to poll for it. Otherwise that request would wake the service thread, which would
        // take this thread's processor.
        self.tell_and(act, || {
            if !quiet && !self.threads.get(waiter).is_answered() {
                watch.take();
            }
        });
        if matches!(purpose, Purpose::Call) {
            self.explain(|regions| regions.note_release(inside.since().elapsed()));
        }
        let answer = self.wait_spinning(waiter, quiet, signals, watch);
        if is_traced {
            self.trace_end();
        }
        match answer {
            Answer::Engine(outcome) => outcome,
            Answer::Size(_) => self.fatal("expected an answer from the protocol, got one from the allocator"),
            Answer::Port(_) => self.fatal("expected an answer from the protocol, got one from the ports"),
        }
    }

    pub(crate) fn unwatched(&self) -> Watch<'_> {
        Watch { runtime: self, is_mine: false }
    }

    /// Runs an action on the core, with signals deferred.
    pub(crate) fn tell(&self, act: impl FnOnce(&mut Core)) {
        self.tell_and(act, || {});
    }

    /// Like [`tell`](Self::tell); if the core has posted messages, calls `before_push` before they are sent.
    pub(crate) fn tell_and(&self, act: impl FnOnce(&mut Core), before_push: impl FnOnce()) {
        let _signals = SignalsDeferred::defer();
        let mut core = self.core();
        self.end_holds(&mut core);
        legs::end(Leg::Enter);
        act(&mut core);
        legs::end(Leg::Engine);
        self.carry_out_all(&mut core);
        if core.next_hold_ends_in().is_some() {
            self.end_holds(&mut core); // what has come may want a page whose threads have run
        }
        let posted = core.release();
        if let (Some(fabric), false) = (self.fabric.as_deref(), posted.is_empty()) {
            before_push();
            posted.into_iter().for_each(|to| fabric.push(to));
        }
    }

    /// Calls [`Fabric::begin_spinning`](hiroba_fabric::Fabric::begin_spinning) and returns its result. A
    /// thread calls it before the request whose answer it will wait for.
    pub(crate) fn begin_spinning(&self) -> bool {
        self.has_fabric() && self.fabric().begin_spinning()
    }

    /// Ends what [`begin_spinning`](Self::begin_spinning) began.
    pub(crate) fn end_spinning(&self) {
        if self.has_fabric() {
            self.fabric().end_spinning();
        }
    }

    /// Waits for an answer, and serves whatever arrives meanwhile ("waiting means serving").
    pub(crate) fn wait(&self, waiter: Waiter) -> Answer {
        let signals = SignalsDeferred::defer();
        let quiet = self.begin_spinning();
        self.wait_spinning(waiter, quiet, signals, self.unwatched())
    }

    /// Waits like [`wait`](Self::wait) after [`begin_spinning`](Self::begin_spinning), and ends the spinning.
    fn wait_spinning(
        &self,
        waiter: Waiter,
        quiet: bool,
        signals: SignalsDeferred,
        watch: Watch<'_>,
    ) -> Answer {
        // Most answers are available at once.
        if let Some(answer) = self.threads.get(waiter).take() {
            self.end_spinning();
            return answer;
        }
        if !self.has_fabric() {
            drop(signals);
            return self.wait_alone(waiter);
        }
        self.poll_until(waiter, signals, watch, quiet, || RUNG_FOR_NAP, || self.threads.get(waiter).take())
    }

    /// Waits until `done` returns a value, first awake and then asleep. A sleeping thread checks when its
    /// bell rings and after every `nap`. Spinning has begun.
    pub(crate) fn poll_until<T>(
        &self,
        waiter: Waiter,
        mut signals: SignalsDeferred,
        mut watch: Watch<'_>,
        quiet: bool,
        nap: impl Fn() -> Duration,
        done: impl Fn() -> Option<T>,
    ) -> T {
        let waiting = self.serving.service.begin_waiting();
        // Where spinning wakes no other thread, the service thread needs to stand aside only while this
        // thread sleeps.
        if !quiet {
            watch.take();
        }
        let mut vigil = self.patience.begin(waiting);
        let mut asleep_since = None;
        let mut is_idle = false;
        let result = loop {
            signals.heed_handlers();
            let received = self.receive();
            if received.is_some_and(|count| count > 0) {
                vigil.hear();
            }
            if let Some(result) = done() {
                break result;
            }
            if vigil.goes_on() {
                continue;
            }
            // The program's signal handlers run only while the thread sleeps, when nothing is locked.
            let slept = asleep_since.get_or_insert_with(Instant::now).elapsed();
            self.threads.falls_asleep(waiter);
            let mut nap = nap();
            if !is_idle && nap > NAP {
                is_idle = slept >= IDLE_AFTER;
                if is_idle {
                    watch.give_back();
                    self.serving.service.end_waiting();
                } else {
                    nap = IDLE_AFTER - slept;
                }
            }
            let look_out = match (!is_idle && watch.take(), received) {
                (false, _) => LookOut::ForBell(nap),
                (true, Some(_)) => LookOut::ForBellAndFabric(nap),
                (true, None) => LookOut::ForBell(OUT_OF_THE_WAY),
            };
            self.fabric().begin_expecting();
            self.fabric().end_spinning();
            self.sleep(waiter, signals, look_out);
            signals = SignalsDeferred::defer();
            self.fabric().end_expecting();
            self.fabric().begin_spinning();
        };
        if asleep_since.is_some() {
            self.threads.wakes_up(waiter);
        }
        self.fabric().end_spinning();
        drop(watch);
        if !is_idle {
            self.serving.service.end_waiting();
        }
        if self.job.threads_per_node == 1 {
            self.serving.service.stay_near_caller();
        }
        result
    }

    /// Sleeps. The program's signal handlers may run meanwhile.
    fn sleep(&self, waiter: Waiter, signals: SignalsDeferred, look_out: LookOut) {
        let slot = self.threads.get(waiter);
        let (looked_at, nap) = match look_out {
            LookOut::ForBell(nap) => (1, nap),
            LookOut::ForBellAndFabric(nap) => {
                (2, self.fabric().next_timeout().unwrap_or(NAP).min(NAP).min(nap))
            }
        };
        drop(signals);
        if slot.sleeps() {
            let bell = slot.bell().expect("the thread's slot has a bell");
            let fabric = self.fabric().descriptor();
            let mut sources = [PollFd::new(&bell, PollFlags::IN), PollFd::new(&fabric, PollFlags::IN)];
            let ready = poll(&mut sources[..looked_at], Some(&crate::timers::timespec(nap)));
            if ready.is_ok_and(|ready| ready > 0) {
                self.account.tallies.wakeups.fetch_add(1, Ordering::Relaxed);
            }
        }
        slot.awake();
    }

    /// Waits while more than [`BACKLOG_BYTES_MAX`] is queued for other nodes. Calls that send much and wait
    /// for nothing end with it.
    pub(crate) fn hold_back(&self, class: TimeClass) {
        if !self.has_fabric() {
            return;
        }
        let signals = SignalsDeferred::defer();
        let room = || (self.fabric().backlog_bytes_all() <= BACKLOG_BYTES_MAX).then_some(());
        if room().is_none() {
            let waiter = self.waiter(Purpose::Call);
            let _inside = self.account.enter(&self.threads, class);
            let quiet = self.begin_spinning();
            self.poll_until(waiter, signals, self.unwatched(), quiet, || NAP, room);
        }
    }

    /// Waits until everything this node has reported has been compared with other nodes' reports, if data
    /// races are looked for.
    pub(crate) fn settle_races(&self) {
        if !self.looks_for_races() {
            return;
        }
        let waiter = self.waiter(Purpose::Call);
        let _inside = self.account.enter(&self.threads, TimeClass::Other);
        let quiet = self.begin_spinning();
        self.tell(|core| self.ask_who_has_heard(core));
        let signals = SignalsDeferred::defer();
        self.poll_until(
            waiter,
            signals,
            self.unwatched(),
            quiet,
            || NAP,
            || Runtime::all_touched_is_heard(&self.core()).then_some(()),
        );
    }

    /// Waits in a job of one node, where only another thread of this process can end the wait.
    fn wait_alone(&self, waiter: Waiter) -> Answer {
        let slot = self.threads.get(waiter);
        loop {
            self.threads.falls_asleep(waiter);
            if slot.sleeps() {
                let bell = slot.bell().expect("the thread's slot has a bell");
                let _ = poll(&mut [PollFd::new(&bell, PollFlags::IN)], None);
            }
            slot.awake();
            if let Some(answer) = slot.take() {
                self.threads.wakes_up(waiter);
                return answer;
            }
        }
    }

    /// Handles an access violation, in signal context on the faulting thread.
    pub(super) fn fault(&self, fault: Fault) -> FaultOutcome {
        if self.life.left.load(Ordering::Relaxed) || self.is_forked() {
            return FaultOutcome::NotOurs;
        }
        let _signals = SignalsDeferred::by_the_kernel();
        if self.is_local(fault.page) {
            return self.fault_locally(fault);
        }
        let (class, wanted) = classify(fault.kind);
        self.account.count_fault(class);
        let began = self.regions.is_some().then(Instant::now);
        self.bring_back(class, fault.page);
        let request = |core: &mut Core, waiter| {
            core.note_touch(&self.memory, &fault);
            core.note_awaited(fault.page);
            core.engine.handle_fault(fault.page, wanted, Some(waiter));
        };
        let activity = Activity::Fault { page: fault.page, wanted };
        let outcome = self.ask_as(Purpose::Fault, class, activity, request);
        if let (Some(regions), Some(began)) = (&self.regions, began) {
            regions.note_wait(fault.page, began.elapsed());
        }
        match outcome {
            Outcome::Misuse(Misuse::NotAllocated(_)) => FaultOutcome::NotOurs,
            _ => FaultOutcome::Resolved,
        }
    }

    /// Acquires a lock.
    pub fn lock(&self, lock: LockId) {
        if self.take_leased(lock) == Taken::Yes {
            return;
        }
        self.synchronise("hiroba_lock", TimeClass::Lock, Synchronisation::Acquire(lock));
        self.account.tallies.lock_acquires.fetch_add(1, Ordering::Relaxed);
    }

    /// Acquires a lock if it is free. Returns true if it was.
    pub fn try_lock(&self, lock: LockId) -> bool {
        match self.take_leased(lock) {
            Taken::Yes => return true,
            Taken::Held => return false,
            Taken::AskEngine => {}
        }
        let outcome = self.synchronise("hiroba_trylock", TimeClass::Lock, Synchronisation::TryAcquire(lock));
        let taken = outcome != Outcome::Refused;
        self.account.tallies.lock_acquires.fetch_add(u64::from(taken), Ordering::Relaxed);
        taken
    }

    /// Releases a lock.
    pub fn unlock(&self, lock: LockId) {
        if self.give_back_leased(lock) {
            return;
        }
        self.synchronise("hiroba_unlock", TimeClass::Lock, Synchronisation::Release(lock));
    }

    /// Releases the lock, waits for a signal, and acquires the lock again.
    pub fn cond_wait(&self, cond: CondId, lock: LockId) {
        self.synchronise("hiroba_cond_wait", TimeClass::Lock, Synchronisation::Wait(cond, lock));
        self.account.tallies.lock_acquires.fetch_add(1, Ordering::Relaxed);
    }

    /// Wakes one waiter.
    pub fn cond_signal(&self, cond: CondId) {
        self.synchronise("hiroba_cond_signal", TimeClass::Lock, Synchronisation::Signal(cond));
    }

    /// Wakes all waiters.
    pub fn cond_broadcast(&self, cond: CondId) {
        self.synchronise("hiroba_cond_broadcast", TimeClass::Lock, Synchronisation::Broadcast(cond));
    }

    /// Waits, on node 0, until all other nodes have come to the next barrier, where they wait for this one.
    /// Returns true if this node knows all that they have written; otherwise it will after the barrier.
    pub fn await_others(&self) -> bool {
        let outcome =
            self.synchronise("hiroba_await_others", TimeClass::Barrier, Synchronisation::AwaitOthers);
        outcome == Outcome::Others { have_news: false }
    }

    pub(crate) fn synchronise(&self, name: &'static str, class: TimeClass, sync: Synchronisation) -> Outcome {
        let call = describe(name, sync);
        self.explain(|regions| regions.note_call(class));
        let request = |engine: &mut dyn Engine, waiter| engine.handle_sync(sync, waiter);
        let outcome = self.threads.in_call(call, || self.ask(class, activity_of(sync), request));
        if matches!(
            sync,
            Synchronisation::Release(_) | Synchronisation::Publish(_) | Synchronisation::Inform(_)
        ) {
            self.hold_back(class);
        }
        if let Outcome::Misuse(misuse) = outcome {
            self.fatal(&format!("{name}: {misuse}"));
        }
        legs::end(Leg::Leave);
        outcome
    }

    /// Operates on an atomic word. `address` must be a multiple of 8 in allocated shared memory.
    pub fn atomic(&self, call: &str, address: usize, operation: AtomicOperation) -> AtomicOutcome {
        let page = self.memory.page_of(address).filter(|_| address.is_multiple_of(8));
        let outcome = page.map(|page| {
            let offset = (address % self.memory.granule().bytes()) as u32;
            if self.is_local(page) {
                let outcome = self.operate_locally(page, offset, operation);
                return outcome.map_or(Outcome::Misuse(Misuse::NotAllocated(page)), Outcome::Atomic);
            }
            self.ask(TimeClass::Other, Activity::Atomic { page, offset }, |engine, waiter| {
                engine.handle_atomic(page, offset, operation, waiter);
            })
        });
        match outcome {
            Some(Outcome::Atomic(outcome)) => outcome,
            _ => self.fatal(&format!(
                "{call}: expected the address of an 8-byte-aligned word in allocated shared memory, got 0x{address:x}"
            )),
        }
    }

    /// Hints that these ranges, each an address and a length in bytes, will be read soon.
    ///
    /// # Errors
    ///
    /// Returns the first range that is not in shared memory. In that case no range is hinted.
    pub fn prefetch(&self, ranges: &[(usize, usize)]) -> Result<(), (usize, usize)> {
        let pages_of = |&(address, bytes): &(usize, usize)| {
            let last =
                address.checked_add(bytes.saturating_sub(1)).and_then(|last| self.memory.page_of(last));
            let (first, last) = self.memory.page_of(address).zip(last).ok_or((address, bytes))?;
            Ok(PageRange { first, count: if bytes == 0 { 0 } else { last.0 - first.0 + 1 } })
        };
        let mut pages = ranges.iter().map(pages_of).collect::<Result<Vec<PageRange>, (usize, usize)>>()?;
        pages.retain(|pages| pages.count > 0);
        if !pages.is_empty() && self.has_fabric() {
            let _inside = (self.trace_other(), self.account.enter(&self.threads, TimeClass::Other));
            self.tell(|core| core.engine.handle_prefetch(&pages));
        }
        Ok(())
    }
}

impl Runtime {
    /// Has the pages at these addresses travel with the departure from the next collective: threads of other
    /// nodes will read them. Addresses that are not shared are left out.
    pub fn carry_along(&self, addresses: &[usize]) {
        let pages = addresses.iter().filter_map(|address| self.memory.page_of(*address));
        let pages: Vec<PageRange> = pages.map(PageRange::single).collect();
        if !pages.is_empty() && self.has_fabric() {
            self.tell(|core| core.engine.carry_along(&pages));
        }
    }

    /// Has the pages at these addresses travel with this node's arrival at the next collective: a thread of
    /// node 0 will read them before it comes there. Addresses that are not shared are left out.
    pub fn carry_up(&self, addresses: &[usize]) {
        let pages = addresses.iter().filter_map(|address| self.memory.page_of(*address));
        let pages: Vec<PageRange> = pages.map(PageRange::single).collect();
        if !pages.is_empty() && self.has_fabric() {
            self.tell(|core| core.engine.carry_up(&pages));
        }
    }
}

/// Describes the call in which the calling thread is about to wait, for reports.
fn describe(name: &'static str, sync: Synchronisation) -> Call {
    let (arguments, lock) = match sync {
        Synchronisation::Acquire(lock)
        | Synchronisation::TryAcquire(lock)
        | Synchronisation::Release(lock) => ([Some(lock.0), None], Some(lock.0)),
        Synchronisation::Wait(cond, lock) => ([Some(cond.0), Some(lock.0)], None),
        Synchronisation::Signal(cond) | Synchronisation::Broadcast(cond) => ([Some(cond.0), None], None),
        Synchronisation::Collective(_)
        | Synchronisation::AwaitOthers
        | Synchronisation::Conclude
        | Synchronisation::Publish(_)
        | Synchronisation::Inform(_)
        | Synchronisation::Convert(_)
        | Synchronisation::Place(_) => ([None, None], None),
    };
    Call { name, arguments, lock, site: call_site::noted() }
}
