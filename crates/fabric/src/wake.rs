//! Wakes threads that wait on descriptors: an event count whose waiting side is an eventfd.
//!
//! An eventfd alone does not suffice for several waiters: the first to read it would put the others back to
//! sleep. So it stays readable until every thread that slept at the wake has left.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

/// Counts wakes and shows them as a readable descriptor.
pub struct WakeEvent {
    event: OwnedFd,
    count: AtomicU64,
    readable: AtomicBool,
    sleeping: Mutex<usize>,
}

/// A thread that may be asleep on the descriptor, until dropped.
pub struct Sleeper<'a> {
    wake: &'a WakeEvent,
}

impl WakeEvent {
    /// Makes an event without a wake.
    ///
    /// # Errors
    ///
    /// Fails if the system has no descriptor left.
    pub fn new() -> rustix::io::Result<WakeEvent> {
        Ok(WakeEvent {
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            count: AtomicU64::new(0),
            readable: AtomicBool::new(false),
            sleeping: Mutex::new(0),
        })
    }

    /// Returns the number of wakes so far.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    fn sleeping(&self) -> MutexGuard<'_, usize> {
        self.sleeping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all sleeping threads, and prevents the next thread that has not seen this wake from sleeping.
    pub fn wake(&self) {
        let _sleeping = self.sleeping();
        self.count.fetch_add(1, Ordering::SeqCst);
        if !self.readable.swap(true, Ordering::SeqCst) {
            // It was zero, so it cannot be full; nothing else can fail.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Announces a thread that is about to sleep. Returns `None` if there was a wake that it has not seen.
    pub fn sleep(&self, seen: u64) -> Option<Sleeper<'_>> {
        let mut sleeping = self.sleeping();
        if self.count() != seen {
            return None;
        }
        self.clear_when_nobody_sleeps(*sleeping);
        *sleeping += 1;
        Some(Sleeper { wake: self })
    }

    /// Makes the descriptor unreadable on behalf of a thread that has seen all wakes.
    pub fn clear(&self) {
        if self.readable.load(Ordering::SeqCst) {
            self.clear_when_nobody_sleeps(*self.sleeping());
        }
    }

    /// Needs the lock on `sleeping`.
    fn clear_when_nobody_sleeps(&self, sleeping: usize) {
        if sleeping == 0 && self.readable.swap(false, Ordering::SeqCst) {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.event, &mut count);
        }
    }
}

impl AsFd for WakeEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        let mut sleeping = self.wake.sleeping();
        *sleeping -= 1;
        self.wake.clear_when_nobody_sleeps(*sleeping);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_readable(wake: &WakeEvent) -> bool {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(wake, PollFlags::IN)], Some(&none)).unwrap() == 1
    }

    #[test]
    fn stays_readable_until_the_last_sleeper_has_left() {
        let wake = WakeEvent::new().unwrap();
        let one = wake.sleep(0).unwrap();
        let other = wake.sleep(0).unwrap();
        wake.wake();
        drop(one);
        assert!(is_readable(&wake));
        drop(other);
        assert!(!is_readable(&wake));
    }

    #[test]
    fn a_wake_before_the_sleep_is_not_lost() {
        let wake = WakeEvent::new().unwrap();
        wake.wake();
        assert!(wake.sleep(0).is_none());
        assert!(is_readable(&wake));
        assert!(wake.sleep(wake.count()).is_some());
        assert!(!is_readable(&wake));
        wake.wake();
        wake.clear();
        assert!(!is_readable(&wake));
    }
}
