//! Durations as the kernel's timers take them.

use std::time::Duration;

use rustix::time::Timespec;

/// A duration, for a timer or a bounded wait.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}
