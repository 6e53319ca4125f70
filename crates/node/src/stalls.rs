//! Stalls: time that a thread of the program spends stopped in page faults which the kernel reports as events.
//!
//! The service thread sees only the middle of a stall: it begins before the event is read and ends after the page is
//! there, by the time it takes to wake a thread each. But a thread that waits uses no processor time, so what a stretch
//! of the program's own code took beyond its processor time was a stall. Being descheduled looks the same; therefore
//! no more than `WAKE_UPS` is added to what the service thread saw.

use std::time::{Duration, Instant};

use crate::time_class::TimeClass;

/// One thread's clock, which tells its stalls.
#[derive(Debug)]
pub(crate) struct StallClock {
    /// The thread's processor time.
    clock: libc::clockid_t,
    stretch: Stretch,
}

/// Two wake-ups, at worst behind another thread's time slice.
const WAKE_UPS: Duration = Duration::from_millis(4);

#[derive(Debug)]
struct Stretch {
    began: Instant,
    processor_time: Duration,
    /// The fault that the thread was stopped in last.
    class: Option<TimeClass>,
    /// For how long it waited while the service thread knew of it.
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

    /// Ends a stretch of the program's own code and begins the next: how long it was stalled, and in which kind of fault.
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

    /// The service thread knew of the latest stall for so long.
    pub(crate) fn note_served(&mut self, served: Duration) {
        self.stretch.served += served;
    }

    /// The program's own code goes on after a call.
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
