//! The receiving role: one thread has it at a time, and no lock is held meanwhile.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant as Clock;

/// State shared by the threads that ask for the role.
struct State<T> {
    /// The thread that has the role.
    holder: Option<usize>,
    /// The role's data; moved to the holder while there is one.
    inner: Option<Box<T>>,
    waiting: usize,
}

/// A role that one thread has at a time, and its data.
pub struct Role<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

/// The role, until dropped.
pub struct RoleGuard<'a, T> {
    role: &'a Role<T>,
    inner: Option<Box<T>>,
}

/// Returns a number that no other living thread has. Makes no system call.
fn this_thread() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

impl<T> Role<T> {
    /// Makes a free role.
    pub fn new(inner: T) -> Role<T> {
        Role {
            state: Mutex::new(State { holder: None, inner: Some(Box::new(inner)), waiting: 0 }),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take<'a>(&'a self, state: &mut State<T>) -> Option<RoleGuard<'a, T>> {
        let inner = state.inner.take()?;
        state.holder = Some(this_thread());
        Some(RoleGuard { role: self, inner: Some(inner) })
    }

    /// Takes the role if it is free.
    pub fn try_take(&self) -> Option<RoleGuard<'_, T>> {
        self.take(&mut self.state())
    }

    /// Takes the role, if need be after waiting until `deadline`, or until `ended` returns true after a
    /// [`Role::wake`]. Returns `None` at once when this thread already has the role.
    pub fn wait(&self, deadline: Option<Clock>, ended: impl Fn() -> bool) -> Option<RoleGuard<'_, T>> {
        let mut state = self.state();
        loop {
            if let Some(guard) = self.take(&mut state) {
                return Some(guard);
            }
            if state.holder == Some(this_thread()) || ended() {
                return None;
            }
            let rest = match deadline {
                None => None,
                Some(deadline) => match deadline.checked_duration_since(Clock::now()) {
                    Some(rest) if !rest.is_zero() => Some(rest),
                    _ => return None,
                },
            };
            state.waiting += 1;
            state = match rest {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(rest) => {
                    let woken = self.changed.wait_timeout(state, rest);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            state.waiting -= 1;
        }
    }

    /// Makes all waiting threads check whether to stop waiting.
    pub fn wake(&self) {
        if self.state().waiting > 0 {
            self.changed.notify_all();
        }
    }
}

impl<T> RoleGuard<'_, T> {
    /// Returns the role's data.
    pub fn inner(&mut self) -> &mut T {
        self.inner.as_mut().expect("the guard has it until it is dropped")
    }
}

impl<T> Drop for RoleGuard<'_, T> {
    fn drop(&mut self) {
        let mut state = self.role.state();
        state.holder = None;
        state.inner = self.inner.take();
        if state.waiting > 0 {
            self.role.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn one_has_it_and_asking_twice_does_not_hang() {
        let role = Role::new(1);
        let mut guard = role.wait(None, || false).unwrap();
        *guard.inner() += 1;
        assert!(role.try_take().is_none());
        assert!(role.wait(None, || false).is_none(), "this thread has it");
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(role.wait(Some(Clock::now()), || false).is_none(), "another has it"));
        });
        drop(guard);
        assert_eq!(*role.try_take().unwrap().inner(), 2);
    }

    #[test]
    fn one_that_waits_gets_it_or_is_ended() {
        let role = Role::new(());
        let ended = AtomicBool::new(false);
        let guard = role.try_take().unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| role.wait(None, || false).is_some());
            drop(guard);
            assert!(waiter.join().unwrap());
            let guard = role.try_take().unwrap();
            let waiter = scope.spawn(|| role.wait(None, || ended.load(Ordering::SeqCst)).is_some());
            while role.state().waiting == 0 {
                std::thread::yield_now();
            }
            ended.store(true, Ordering::SeqCst);
            role.wake();
            assert!(!waiter.join().unwrap());
            drop(guard);
        });
    }
}
