//! Stalls: time that a thread of the program spends stopped in page faults that the kernel reports as events.
//!
//! The service thread sees only the middle of a stall, which begins before the event is read and ends after
//! the page has arrived; each end adds the time to wake a thread. But a waiting thread uses no processor
//! time, so the elapsed time of the program's own code beyond its processor time was a stall. Being
//! descheduled looks the same; therefore at most `WAKE_UPS` is added to what the service thread saw.

use std::time::{Duration, Instant};

use crate::time_class::TimeClass;

/// Measures one thread's stalls.
#[derive(Debug)]
pub(crate) struct StallClock {
    /// The thread's processor time.
    clock: libc::clockid_t,
    stretch: Stretch,
}

/// Two wake-ups, at worst after another thread's time slice.
const WAKE_UPS: Duration = Duration::from_millis(4);

#[derive(Debug)]
struct Stretch {
    began: Instant,
    processor_time: Duration,
    /// The thread's last fault.
    class: Option<TimeClass>,
    /// How long it waited while the service thread knew of it.
    served: Duration,
}

impl StallClock {
    pub(crate) fn of_this_thread() -> Option<StallClock> {
        let mut clock = 0;
        // SAFETY: pthread_self has no preconditions.
        let thread = unsafe { libc::pthread_self() };
        // SAFETY: the thread is alive, `clock` is writable.
        if unsafe { libc::pthread_getcpuclockid(thread, &mut clock) } != 0 {
            return None;
        }
        let stretch = Stretch {
            began: Instant::now(),
            processor_time: read(clock)?,
            class: None,
            served: Duration::ZERO,
        };
        Some(StallClock { clock, stretch })
    }

    /// Ends a stretch of the program's own code and begins the next. Returns the stall time, and the kind of
    /// fault.
    pub(crate) fn settle(&mut self, begun: Option<TimeClass>) -> Option<(TimeClass, Duration)> {
        let stretch = &mut self.stretch;
        let (now, processor_time) = (Instant::now(), read(self.clock)?);
        let elapsed = now.saturating_duration_since(stretch.began);
        let stalled = elapsed.saturating_sub(processor_time.saturating_sub(stretch.processor_time));
        let class = stretch.class.or(begun);
        let charged = stalled.min(stretch.served + WAKE_UPS);
        *stretch = Stretch { began: now, processor_time, class: begun, served: Duration::ZERO };
        Some((class?, charged))
    }

    /// Adds the time for which the service thread knew of the latest stall.
    pub(crate) fn note_served(&mut self, served: Duration) {
        self.stretch.served += served;
    }

    /// Begins a new stretch when the program's own code continues after a call.
    pub(crate) fn restart(&mut self) {
        if let Some(processor_time) = read(self.clock) {
            self.stretch =
                Stretch { began: Instant::now(), processor_time, class: None, served: Duration::ZERO };
        }
    }
}

fn read(clock: libc::clockid_t) -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable; a clock of a thread that is gone gives an error.
    let read = unsafe { libc::clock_gettime(clock, &mut time) } == 0;
    read.then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}
