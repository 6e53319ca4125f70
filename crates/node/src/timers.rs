//! Conversion of durations for the kernel's timers.

use std::time::Duration;

use rustix::time::Timespec;

/// Converts a duration for a timer or a bounded wait.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}
