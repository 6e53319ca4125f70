//! Condition variables with Mesa semantics (Lampson and Redell 1980): a signal is a hint; the waiter takes
//! the lock again and checks the condition.
//!
//! The manager keeps the queue of waiters. A waiter registers **before** it releases its lock and waits for
//! the manager's `CondNoted`: otherwise a signaller that takes the lock next could reach the manager first,
//! over another link, and its signal would be lost.
//!
//! ```text
//!   waiter ──CondWait──▶ manager            signaller ──CondSignal──▶ manager
//!   waiter ◀──CondNoted── manager           waiter ◀──CondWake── manager
//!   waiter releases the lock, waits         waiter takes the lock again
//! ```
//!
//! A release can take several steps (under eager release consistency it waits for its diffs to be performed),
//! and the wake can come meanwhile: the manager has queued the thread, and a signaller needs no lock. The
//! thread still holds its lock then, so it requests it again only after the release.
//!
//! | stage of a waiting thread | its lock  | `CondNoted`   | the lock is given up   | `CondWake`          |
//! |---------------------------|-----------|---------------|------------------------|---------------------|
//! | `Registering`             | held      | → `Releasing` | –                      | refused             |
//! | `Releasing`               | held      | refused       | → `Waiting`            | → `Woken`           |
//! | `Woken`                   | held      | refused       | takes the lock again   | refused             |
//! | `Waiting`                 | given up  | refused       | –                      | takes the lock again |

use std::collections::VecDeque;

use hiroba_base::{CondId, LockId, NodeId};
use hiroba_wire::{Message, Ticket};
use rustc_hash::FxHashMap;

use crate::outbox::Outbox;
use crate::{Expected, ProtocolError, Waiter};

/// The condition variables that a node manages, and its own waiting threads.
#[derive(Debug, Default)]
pub struct Conds {
    /// On the manager: waiters in order of arrival, at most one entry for each thread of the job.
    queues: FxHashMap<CondId, VecDeque<(NodeId, Ticket)>>,
    /// Waiting threads of this node, with the lock that each takes again.
    waiting: FxHashMap<Ticket, Waiting>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    lock: LockId,
    stage: Stage,
}

/// The stage of a thread's wait: the rows of the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Registering,
    Releasing,
    Woken,
    Waiting,
}

/// The action that follows from a message about condition variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CondAction {
    /// No action.
    Nothing,
    /// The thread that is about to wait gives up its lock now; call [`Conds::released`] afterwards.
    Release(LockId, Waiter),
    /// The thread that was signalled takes its lock again.
    Acquire(LockId, Waiter),
}

impl Conds {
    /// Handles a message about a condition variable. Returns `None` for other messages.
    pub fn handle_message(
        &mut self,
        from: NodeId,
        message: &Message<'_>,
        out: &mut Outbox,
    ) -> Result<Option<CondAction>, ProtocolError> {
        let action = match message {
            Message::CondWait { cond, ticket } => {
                self.enqueue(*cond, from, *ticket);
                out.send(from, &Message::CondNoted { ticket: *ticket });
                CondAction::Nothing
            }
            Message::CondNoted { ticket } => {
                CondAction::Release(self.handle_noted(*ticket)?, Waiter(*ticket))
            }
            Message::CondSignal { cond, all } => {
                for (node, ticket) in self.signal(*cond, *all) {
                    out.send(node, &Message::CondWake { ticket });
                }
                CondAction::Nothing
            }
            Message::CondWake { ticket } => match self.handle_wake(*ticket)? {
                Some(lock) => CondAction::Acquire(lock, Waiter(*ticket)),
                None => CondAction::Nothing,
            },
            _ => return Ok(None),
        };
        Ok(Some(action))
    }

    /// Notes that a thread of this node is about to wait.
    pub fn begin_wait(&mut self, waiter: Waiter, lock: LockId) {
        let before = self.waiting.insert(waiter.0, Waiting { lock, stage: Stage::Registering });
        assert!(before.is_none(), "a thread waits for one condition variable at a time");
    }

    /// Handles that the manager has queued the thread. Returns the lock that the thread must release now.
    pub fn handle_noted(&mut self, ticket: Ticket) -> Result<LockId, ProtocolError> {
        match self.waiting.get_mut(&ticket) {
            Some(Waiting { lock, stage: stage @ Stage::Registering }) => {
                *stage = Stage::Releasing;
                Ok(*lock)
            }
            _ => Err(unexpected(Expected::ThreadAboutToWait, ticket)),
        }
    }

    /// Notes that the thread has given up its lock. Returns true if it was woken meanwhile, so that it must
    /// take the lock again.
    pub fn released(&mut self, waiter: Waiter) -> bool {
        let waiting = self.waiting.get_mut(&waiter.0).expect("only a thread that waits releases for that");
        match waiting.stage {
            Stage::Woken => self.waiting.remove(&waiter.0).is_some(),
            stage => {
                assert_eq!(stage, Stage::Releasing, "a lock is given up once a wait");
                waiting.stage = Stage::Waiting;
                false
            }
        }
    }

    /// Handles that the thread was signalled. Returns the lock that it takes again, or `None` if it has not
    /// given up the lock yet.
    pub fn handle_wake(&mut self, ticket: Ticket) -> Result<Option<LockId>, ProtocolError> {
        match self.waiting.get_mut(&ticket) {
            Some(Waiting { lock, stage: Stage::Waiting }) => {
                let lock = *lock;
                self.waiting.remove(&ticket);
                Ok(Some(lock))
            }
            Some(Waiting { stage: stage @ Stage::Releasing, .. }) => {
                *stage = Stage::Woken;
                Ok(None)
            }
            _ => Err(unexpected(Expected::ThreadToSignal, ticket)),
        }
    }

    /// Adds a thread to the queue, on the manager.
    pub fn enqueue(&mut self, cond: CondId, from: NodeId, ticket: Ticket) {
        self.queues.entry(cond).or_default().push_back((from, ticket));
    }

    /// Returns the waiters that a signal (`all`: a broadcast) wakes, on the manager. A signal without a
    /// waiter is forgotten.
    pub fn signal(&mut self, cond: CondId, all: bool) -> Vec<(NodeId, Ticket)> {
        let Some(queue) = self.queues.get_mut(&cond) else { return Vec::new() };
        assert!(!queue.is_empty(), "condition {}: an empty queue is not kept", cond.0);
        let woken = if all { queue.len() } else { 1 };
        let woken = queue.drain(..woken.min(queue.len())).collect();
        if queue.is_empty() {
            self.queues.remove(&cond);
        }
        woken
    }
}

fn unexpected(expected: Expected, ticket: Ticket) -> ProtocolError {
    ProtocolError::Unexpected { expected, got: format!("thread {ticket}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_wake_in_order_of_arrival_and_are_not_stored() {
        let mut conds = Conds::default();
        let cond = CondId(3);
        assert!(conds.signal(cond, false).is_empty());
        for ticket in 0..3 {
            conds.enqueue(cond, NodeId(1), ticket);
        }
        assert_eq!(conds.signal(cond, false), [(NodeId(1), 0)]);
        assert_eq!(conds.signal(cond, true), [(NodeId(1), 1), (NodeId(1), 2)]);
        assert!(conds.signal(cond, true).is_empty());
        assert!(conds.queues.is_empty(), "an empty queue takes no memory");
    }

    #[test]
    fn a_wake_before_the_note_is_refused() {
        let mut conds = Conds::default();
        conds.begin_wait(Waiter(1), LockId(9));
        assert_eq!(conds.handle_wake(1), Err(unexpected(Expected::ThreadToSignal, 1)));
        assert_eq!(conds.handle_noted(1), Ok(LockId(9)));
        assert_eq!(conds.handle_noted(1), Err(unexpected(Expected::ThreadAboutToWait, 1)));
        assert!(!conds.released(Waiter(1)));
        assert_eq!(conds.handle_wake(1), Ok(Some(LockId(9))));
        assert_eq!(conds.handle_wake(1), Err(unexpected(Expected::ThreadToSignal, 1)));
        assert!(conds.waiting.is_empty(), "a wait that is over takes no memory");
    }

    #[test]
    fn a_wake_during_the_release_is_kept_until_the_lock_is_given_up() {
        let mut conds = Conds::default();
        conds.begin_wait(Waiter(1), LockId(9));
        assert_eq!(conds.handle_noted(1), Ok(LockId(9)));
        assert_eq!(conds.handle_wake(1), Ok(None), "the thread still holds the lock");
        assert_eq!(
            conds.handle_wake(1),
            Err(unexpected(Expected::ThreadToSignal, 1)),
            "the manager's queue held the thread once"
        );
        assert_eq!(conds.handle_noted(1), Err(unexpected(Expected::ThreadAboutToWait, 1)));
        assert!(conds.released(Waiter(1)));
        assert!(conds.waiting.is_empty(), "a wait that is over takes no memory");
    }
}
