//! Lulls: idle moments of the service thread, offered to engines that can use them.
//!
//! The service thread offers a lull to the engine when a timer has expired and no message waits. No thread of
//! the program is woken for it, and the timer stops while the engine wants no lull. The interval to the next
//! lull depends on the use of the last: a lull that found little to do was not worth its interruption.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hiroba_protocol::Engine;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::NodeError;
use crate::runtime::Runtime;
use crate::runtime::host::{Core, Harvest};
use crate::time_class::TimeClass;
use crate::timers::timespec;

/// The shortest interval between two lulls: ten times the duration of one.
const APART_MIN: Duration = Duration::from_micros(200);

/// The longest interval. A lull that scans the program's writes costs the program a kernel fault for each
/// page that it writes again.
const APART_MAX: Duration = Duration::from_millis(4);

/// The longest interval while the program writes nothing. Then a lull costs little, and the program's next
/// writes should not wait for long.
const APART_IDLE_MAX: Duration = Duration::from_millis(1);

/// Sending a page early saves a release about as much time as noting this many granules in vain costs.
const NOTED_PER_SENT_MAX: u64 = 4;

/// When the next lull is due.
#[derive(Debug)]
pub(crate) struct Lulls {
    pub(crate) timer: OwnedFd,
    /// True if the timer runs, or the service thread is in a lull.
    is_under_way: AtomicBool,
    apart_ns: AtomicU64,
}

impl Lulls {
    pub(crate) fn new() -> Result<Lulls, NodeError> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|errno| NodeError::system("setting up the timer of the service thread")(errno))?;
        let apart_ns = AtomicU64::new(APART_MIN.as_nanos() as u64);
        Ok(Lulls { timer, is_under_way: AtomicBool::new(false), apart_ns })
    }

    /// Starts the timer if the engine wants a lull.
    pub(crate) fn follow(&self, engine: &dyn Engine) {
        if engine.wants_lull() && !self.is_under_way.swap(true, Relaxed) {
            self.begin();
        }
    }

    fn begin(&self) {
        let it_value = timespec(Duration::from_nanos(self.apart_ns.load(Relaxed)));
        let once = Itimerspec { it_interval: timespec(Duration::ZERO), it_value };
        // It cannot fail for a timer and a valid time. If it did, the release would send everything.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }

    fn learn(&self, harvest: &Harvest) {
        let apart = Duration::from_nanos(self.apart_ns.load(Relaxed));
        let was_worth_it =
            harvest.pages_sent > 0 && harvest.pages_sent * NOTED_PER_SENT_MAX >= harvest.granules_noted;
        let longest = if harvest.granules_noted > 0 { APART_MAX } else { APART_IDLE_MAX };
        let next = if was_worth_it { APART_MIN } else { apart * 2 };
        self.apart_ns.store(next.min(longest).as_nanos() as u64, Relaxed);
    }
}

impl Runtime {
    /// Handles the expired timer. If messages wait, this is not a lull, and the timer is started again.
    pub(crate) fn see_to_lull(&self, is_busy: bool) {
        let _ = rustix::io::read(&self.serving.lulls.timer, &mut [0; 8]);
        if !is_busy && !self.has_left() {
            let from_program = self.account.is_computing();
            let began = Instant::now();
            let mut harvest = Harvest::default();
            self.tell(|core: &mut Core| {
                core.harvest = Harvest::default();
                if core.engine.wants_lull() {
                    core.engine.handle_lull();
                }
                self.carry_out_all(core);
                harvest = std::mem::take(&mut core.harvest);
            });
            self.serving.lulls.learn(&harvest);
            if from_program {
                self.account.add(TimeClass::Serve, began.elapsed());
            }
        }
        self.serving.lulls.is_under_way.store(false, Relaxed);
        self.serving.lulls.follow(&*self.core().engine);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lulls_come_seldom_where_they_are_good_for_little() {
        let lulls = Lulls::new().unwrap();
        let apart = || Duration::from_nanos(lulls.apart_ns.load(Relaxed));
        let learn = |pages_sent, granules_noted| lulls.learn(&Harvest { pages_sent, granules_noted });
        assert_eq!(apart(), APART_MIN);
        learn(0, 0);
        assert_eq!(apart(), APART_MIN * 2);
        (0..10).for_each(|_| learn(1, 1000));
        assert_eq!(apart(), APART_MAX);
        learn(500, 1000);
        assert_eq!(apart(), APART_MIN);
        learn(0, 1);
        learn(1, 0);
        assert_eq!(apart(), APART_MIN);
        (0..10).for_each(|_| learn(0, 0));
        assert_eq!(apart(), APART_IDLE_MAX);
    }
}
