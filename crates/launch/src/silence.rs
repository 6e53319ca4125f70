//! Says on standard error what a command is doing when it has been silent for `LONGEST`, and again at
//! growing intervals.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::failure::say;

/// How long a command may be silent at first.
const LONGEST: Duration = Duration::from_secs(2);
/// The least time between two messages.
const PAUSE_MIN: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Decides when a silence is long enough for a message.
#[derive(Clone, Copy, Debug)]
pub struct Silence {
    began: Instant,
    next: Instant,
}

impl Silence {
    /// Begins a silence now.
    pub fn begin() -> Silence {
        Silence::begin_at(Instant::now())
    }

    fn begin_at(began: Instant) -> Silence {
        Silence { began, next: began + LONGEST }
    }

    /// Returns when the next message is due.
    pub fn due(&self) -> Instant {
        self.next
    }

    /// Returns true if a message is due now, and schedules the next one.
    pub fn is_too_long(&mut self) -> bool {
        self.is_too_long_at(Instant::now())
    }

    fn is_too_long_at(&mut self, now: Instant) -> bool {
        let due = now >= self.next;
        if due {
            // Waits as long again as the silence has lasted.
            self.next = now + (now - self.began).clamp(PAUSE_MIN, PAUSE_MAX);
        }
        due
    }
}

/// Says from a thread of its own what a busy command is doing, until it is dropped.
#[derive(Debug)]
pub struct Meanwhile {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    doing: Mutex<Option<Doing>>,
    changed: Condvar,
}

#[derive(Debug)]
struct Doing {
    what: String,
    silence: Silence,
    spoken: bool,
}

impl Meanwhile {
    /// Says `what` while the value lives. Says nothing if no thread can be started.
    pub fn doing(what: &str) -> Meanwhile {
        let doing = Doing { what: what.to_owned(), silence: Silence::begin(), spoken: false };
        let shared = Arc::new(Shared { doing: Mutex::new(Some(doing)), changed: Condvar::new() });
        let of_thread = shared.clone();
        let _ = std::thread::Builder::new().spawn(move || of_thread.speak());
        Meanwhile { shared }
    }

    /// Updates the text of the same activity, which tells its progress.
    pub fn is_still_doing(&self, what: &str) {
        if let Some(doing) = self.shared.lock().as_mut() {
            what.clone_into(&mut doing.what);
        }
    }

    /// Changes the activity. The new one is announced at once if any message has been printed.
    pub fn now_doing(&self, what: &str) {
        if let Some(doing) = self.shared.lock().as_mut() {
            what.clone_into(&mut doing.what);
            if doing.spoken {
                say(what);
            }
        }
    }
}

impl Drop for Meanwhile {
    fn drop(&mut self) {
        *self.shared.lock() = None;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<Doing>> {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn speak(&self) {
        let mut guard = self.lock();
        while let Some(doing) = guard.as_mut() {
            if doing.silence.is_too_long() {
                doing.spoken = true;
                say(&format!("{}, for {} s so far", doing.what, doing.silence.began.elapsed().as_secs()));
            }
            let left = doing.silence.due().saturating_duration_since(Instant::now());
            guard = self.changed.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_after_two_seconds_and_then_ever_more_seldom() {
        let began = Instant::now();
        let mut silence = Silence::begin_at(began);
        let spoken: Vec<u64> =
            (0..300).filter(|second| silence.is_too_long_at(began + Duration::from_secs(*second))).collect();
        assert_eq!(spoken, [2, 7, 14, 28, 56, 112, 172, 232, 292]);
    }
}
