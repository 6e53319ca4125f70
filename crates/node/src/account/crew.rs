//! Time of the threads of an executable, whose number changes, and may exceed that of the job (`-t`).
//!
//! In a second the account has as many seconds as the node has threads (`-t`): its *places*. At each moment
//! threads that compute take places first, and those that wait share what is left. So a thread that waits for
//! another one, which computes in its place, takes no time from it. A place that no thread takes is idle, and
//! counts as other time.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::CLASSES;
use crate::signals::SignalsDeferred;
use crate::time_class::TimeClass;

/// The threads of the program on this node, and what they do.
#[derive(Debug)]
pub(super) struct Crew {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The time until then is in the account.
    settled: Instant,
    threads: u32,
    /// The number of threads that wait, by class.
    waiting: [u32; CLASSES],
}

/// A change of what a thread does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Begins,
    Ends,
    Waits(TimeClass),
    GoesOn(TimeClass),
}

impl Crew {
    /// Returns a crew without threads.
    pub(super) fn new() -> Crew {
        Crew { state: Mutex::new(State::at(Instant::now())) }
    }

    /// Passes the time until now to `add`, for a node of `places` places, and then notes a change, if there
    /// is one.
    pub(super) fn note(&self, change: Option<Change>, places: u32, add: impl FnMut(TimeClass, Duration)) {
        // A handler of the program that interrupted the thread here would note a change, too.
        let _signals = SignalsDeferred::defer();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.settle(Instant::now(), places, add);
        if let Some(change) = change {
            state.make(change);
        }
    }
}

impl State {
    fn at(settled: Instant) -> State {
        State { settled, threads: 0, waiting: [0; CLASSES] }
    }

    fn make(&mut self, change: Change) {
        match change {
            Change::Begins => self.threads += 1,
            Change::Ends => self.threads = self.threads.saturating_sub(1),
            Change::Waits(class) => self.waiting[class as usize] += 1,
            Change::GoesOn(class) => {
                self.waiting[class as usize] = self.waiting[class as usize].saturating_sub(1);
            }
        }
    }

    fn settle(&mut self, now: Instant, places: u32, mut add: impl FnMut(TimeClass, Duration)) {
        let passed = now.saturating_duration_since(self.settled);
        self.settled = now;
        let waiting: u32 = self.waiting.iter().sum();
        let left = places.saturating_sub(self.threads.saturating_sub(waiting));
        for class in TimeClass::ALL {
            match self.waiting[class as usize] {
                0 => {}
                count if waiting <= left => add(class, passed * count),
                count => add(class, passed * left * count / waiting),
            }
        }
        add(TimeClass::Other, passed * left.saturating_sub(waiting));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the seconds of locks, barriers and other time that a second has on a node with `places`
    /// places, after these changes.
    fn of_a_second(places: u32, changes: &[Change]) -> [f64; 3] {
        let began = Instant::now();
        let mut state = State::at(began);
        changes.iter().for_each(|change| state.make(*change));
        let mut seconds = [0.0; CLASSES];
        state.settle(began + Duration::from_secs(1), places, |class, time| {
            seconds[class as usize] += time.as_secs_f64();
        });
        [TimeClass::Lock, TimeClass::Barrier, TimeClass::Other].map(|class| seconds[class as usize])
    }

    #[test]
    fn threads_that_compute_take_their_time_first() {
        use Change::{Begins, Ends, GoesOn, Waits};
        use TimeClass::{Barrier, Lock};
        assert_eq!(of_a_second(1, &[]), [0.0, 0.0, 1.0], "no thread: idle");
        assert_eq!(of_a_second(1, &[Begins]), [0.0, 0.0, 0.0], "one computes");
        assert_eq!(of_a_second(2, &[Begins]), [0.0, 0.0, 1.0], "one of two places is idle");
        assert_eq!(of_a_second(1, &[Begins, Waits(Lock)]), [1.0, 0.0, 0.0]);
        assert_eq!(of_a_second(1, &[Begins, Waits(Lock), GoesOn(Lock)]), [0.0, 0.0, 0.0]);
        assert_eq!(
            of_a_second(1, &[Begins, Begins, Waits(Lock)]),
            [0.0, 0.0, 0.0],
            "one waits for the other"
        );
        assert_eq!(of_a_second(2, &[Begins, Begins, Waits(Lock)]), [1.0, 0.0, 0.0]);
        let three = [Begins, Begins, Begins, Waits(Lock), Waits(Barrier)];
        assert_eq!(of_a_second(2, &three), [0.5, 0.5, 0.0], "two share a place");
        assert_eq!(of_a_second(4, &three), [1.0, 1.0, 1.0]);
        assert_eq!(of_a_second(1, &[Begins, Ends, Ends]), [0.0, 0.0, 1.0]);
    }
}
