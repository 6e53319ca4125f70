//! Threads that a node starts when they are needed first: the paging thread, the one for messages that wait
//! for pages, and the one that serves nodes with memory that this one lends. A job that never reaches a
//! memory limit runs without them.
//!
//! The service thread starts them, because a thread that reaches the limit may be in a signal handler, and
//! has the core's lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hiroba_base::NodeId;
use hiroba_wire::Message;

use crate::runtime::Runtime;
use crate::time_class::TimeClass;

/// How long a thread that needs memory waits until all nodes have met: then it goes on without.
const MEETING_WAIT: Duration = Duration::from_millis(100);

/// What the service thread is asked to start.
#[derive(Debug, Default)]
pub(crate) struct OnDemand {
    has_asked_for_paging: AtomicBool,
    has_asked_for_lending: AtomicBool,
    /// True while this node needs lent memory and the nodes have not met.
    awaits_lending: AtomicBool,
    starts_paging: AtomicBool,
    /// True if the meeting of nodes that lend may have come further.
    heeds_lending: AtomicBool,
}

impl Runtime {
    /// Has the threads started that pages need that are out, if there are such pages.
    pub(crate) fn want_paging(&self) {
        if self.pager.is_some() && !self.on_demand.has_asked_for_paging.swap(true, Ordering::Relaxed) {
            self.on_demand.starts_paging.store(true, Ordering::Release);
            self.ring_service();
        }
    }

    /// Has all nodes meet that lend each other memory, if they do.
    pub(crate) fn want_lending(&self) {
        if self.lending.is_some() && !self.on_demand.has_asked_for_lending.swap(true, Ordering::Relaxed) {
            self.on_demand.awaits_lending.store(true, Ordering::Relaxed);
            self.heed_lending();
        }
    }

    /// Waits until nodes that lend have met, if this node needs them. A thread that faults calls it before it
    /// takes any lock. Otherwise it could exceed the limit by all that it touches meanwhile.
    pub(crate) fn await_lending(&self, class: TimeClass) {
        // Relaxed: a thread that misses it takes a page more.
        if self.on_demand.awaits_lending.load(Ordering::Relaxed) {
            let _inside = self.account.enter(&self.threads, class);
            self.lending.iter().for_each(|lending| lending.await_meeting(MEETING_WAIT));
            self.on_demand.awaits_lending.store(false, Ordering::Relaxed);
        }
    }

    /// Does the same on the service thread, which handles faults that come as events, and receives meanwhile.
    pub(crate) fn await_lending_and_serve(&'static self) {
        let Some(lending) = &self.lending else { return };
        let began = Instant::now();
        while self.on_demand.awaits_lending.load(Ordering::Relaxed) {
            self.start_on_demand();
            if lending.have_met() || began.elapsed() >= MEETING_WAIT {
                self.on_demand.awaits_lending.store(false, Ordering::Relaxed);
            }
            let _ = self.receive();
        }
    }

    /// Handles another node's word that it needs lent memory, or has heard of one that does.
    pub(crate) fn hear_of_lending(&self, from: NodeId, port: u16) {
        if let Some(lending) = &self.lending {
            lending.hear(from, port);
            self.heed_lending();
        }
    }

    fn heed_lending(&self) {
        self.on_demand.heeds_lending.store(true, Ordering::Release);
        self.ring_service();
    }

    fn ring_service(&self) {
        self.service().look_up_after(Duration::ZERO);
    }

    /// Starts what was asked for. Called by the service thread, on which no handler of the program runs; the
    /// threads inherit that.
    pub(crate) fn start_on_demand(&'static self) {
        let is_asked =
            |flag: &AtomicBool| flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::Acquire);
        if is_asked(&self.on_demand.starts_paging)
            && let Some(pager) = &self.pager
        {
            self.start_thread("hiroba-paging", move || self.page(pager));
            self.start_thread("hiroba-requests", move || self.handle_deferred());
        }
        if is_asked(&self.on_demand.heeds_lending)
            && let Some(lending) = &self.lending
        {
            let announce = |port: u16| {
                let word = Message::LentMemory { port }.encode();
                let others = NodeId::all(self.job.nodes).filter(|node| *node != self.me);
                others.for_each(|node| self.send_to(node, &[&word]));
            };
            match lending.meet(announce) {
                Ok(false) => {}
                Ok(true) => {
                    let until = || self.life.closed.load(Ordering::Acquire);
                    let has_a_core = || !self.account.is_computing();
                    self.start_thread("hiroba-lending", move || lending.serve(until, has_a_core));
                }
                Err(error) => self.fatal(&format!("cannot reach other nodes about lent memory: {error}")),
            }
        }
    }

    fn start_thread(&'static self, name: &str, work: impl FnOnce() + Send + 'static) {
        if let Err(error) = std::thread::Builder::new().name(name.to_owned()).spawn(work) {
            self.fatal(&format!("cannot start the thread {name} of a node: {error}"));
        }
    }
}
