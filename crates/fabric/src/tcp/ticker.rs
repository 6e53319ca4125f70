//! A slow clock that runs only while it is needed: for peers that owe an answer, callers without a proof, and
//! connections to be tried again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant as Clock};

use rustix::event::Timespec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// The interval between ticks.
pub const TICK: Duration = Duration::from_millis(200);

/// A descriptor that becomes readable one tick after the clock was started.
pub struct Ticker {
    timer: OwnedFd,
    origin: Clock,
    runs: AtomicBool,
    /// When the tick is due, in microseconds since the origin.
    due_us: AtomicU64,
}

impl Ticker {
    /// Makes a stopped clock.
    ///
    /// # Errors
    ///
    /// Fails if the system has no descriptor left.
    pub fn new() -> rustix::io::Result<Ticker> {
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let (runs, due_us) = (AtomicBool::new(false), AtomicU64::new(0));
        Ok(Ticker { timer, origin: Clock::now(), runs, due_us })
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Starts the clock unless it runs. Makes at most one system call per tick.
    ///
    /// # Errors
    ///
    /// Fails with a system error that no retry repairs.
    pub fn start(&self) -> io::Result<()> {
        // SYNC POINT: a thread that finds the clock running has recorded its work before; `stop` comes before
        // the look at the work.
        if self.runs.load(Ordering::SeqCst) || self.runs.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        self.due_us.store(self.now_us() + TICK.as_micros() as u64, Ordering::SeqCst);
        let setting = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() },
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting)?;
        Ok(())
    }

    /// Handles the tick: the clock stops until it is started again.
    pub fn stop(&self) {
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        self.runs.store(false, Ordering::SeqCst);
    }

    /// Returns the time until the tick, if the clock runs.
    pub fn due_in(&self) -> Option<Duration> {
        let runs = self.runs.load(Ordering::SeqCst);
        runs.then(|| Duration::from_micros(self.due_us.load(Ordering::SeqCst).saturating_sub(self.now_us())))
    }
}

impl AsFd for Ticker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    #[test]
    fn it_ticks_once_each_time_it_is_started() {
        let ticker = Ticker::new().unwrap();
        let is_readable = |timeout| poll(&mut [PollFd::new(&ticker, PollFlags::IN)], timeout).unwrap() == 1;
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        assert!(ticker.due_in().is_none());
        for _ in 0..2 {
            ticker.start().unwrap();
            ticker.start().unwrap();
            assert!(ticker.due_in().is_some_and(|due| due <= TICK));
            assert!(is_readable(None));
            ticker.stop();
            assert!(ticker.due_in().is_none() && !is_readable(Some(&none)));
        }
    }
}
