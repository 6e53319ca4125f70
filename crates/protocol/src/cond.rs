//! Condition variables with Mesa semantics (Lampson and Redell 1980): a signal is a hint, the waiter takes the
//! lock again and looks for itself.
//!
//! The manager keeps the queue of waiters. A waiter registers **before** it releases its lock and waits for the
//! manager's `CondNoted`: otherwise a signaller that takes the lock next could reach the manager first, over
//! another link, and its signal would be lost.
//!
//! ```text
//!   waiter ──CondWait──▶ manager            signaller ──CondSignal──▶ manager
//!   waiter ◀──CondNoted── manager           waiter ◀──CondWake── manager
//!   waiter releases the lock, waits         waiter takes the lock again
//! ```

use std::collections::VecDeque;

use hiroba_base::{CondId, LockId, NodeId};
use hiroba_wire::{Message, Ticket};
use rustc_hash::FxHashMap;

use crate::outbox::Outbox;
use crate::{ProtocolError, Waiter};

/// The condition variables that a node manages, and its own threads that wait on any.
#[derive(Debug, Default)]
pub struct Conds {
    /// Managed here: waiters in order of arrival, at most one entry a thread of the job.
    queues: FxHashMap<CondId, VecDeque<(NodeId, Ticket)>>,
    /// Threads of this node that wait, and the lock each takes again.
    waiting: FxHashMap<Ticket, Waiting>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    lock: LockId,
    noted: bool,
}

/// What follows from a message about condition variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CondAction {
    /// Nothing more than what has been said.
    Nothing,
    /// The thread that is about to wait gives its lock up now.
    Release(LockId),
    /// The thread that was signalled takes its lock again.
    Acquire(LockId, Waiter),
}

impl Conds {
    /// A message about a condition variable; `None` when it is none.
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
            Message::CondNoted { ticket } => CondAction::Release(self.handle_noted(*ticket)?),
            Message::CondSignal { cond, all } => {
                for (node, ticket) in self.signal(*cond, *all) {
                    out.send(node, &Message::CondWake { ticket });
                }
                CondAction::Nothing
            }
            Message::CondWake { ticket } => CondAction::Acquire(self.handle_wake(*ticket)?, Waiter(*ticket)),
            _ => return Ok(None),
        };
        Ok(Some(action))
    }

    /// A thread of this node is about to wait.
    pub fn begin_wait(&mut self, waiter: Waiter, lock: LockId) {
        self.waiting.insert(waiter.0, Waiting { lock, noted: false });
    }

    /// The manager has queued the thread: which lock it must release now.
    pub fn handle_noted(&mut self, ticket: Ticket) -> Result<LockId, ProtocolError> {
        match self.waiting.get_mut(&ticket) {
            Some(waiting) if !waiting.noted => {
                waiting.noted = true;
                Ok(waiting.lock)
            }
            _ => Err(unexpected("a note for a thread that is about to wait", ticket)),
        }
    }

    /// The thread was signalled: which lock it must take again.
    pub fn handle_wake(&mut self, ticket: Ticket) -> Result<LockId, ProtocolError> {
        match self.waiting.remove(&ticket) {
            Some(Waiting { lock, noted: true }) => Ok(lock),
            _ => Err(unexpected("a signal for a thread that waits", ticket)),
        }
    }

    /// Manager: a thread joins the queue.
    pub fn enqueue(&mut self, cond: CondId, from: NodeId, ticket: Ticket) {
        self.queues.entry(cond).or_default().push_back((from, ticket));
    }

    /// Manager: who is woken by a signal (`all`: a broadcast). A signal that finds nobody is forgotten.
    pub fn signal(&mut self, cond: CondId, all: bool) -> Vec<(NodeId, Ticket)> {
        let Some(queue) = self.queues.get_mut(&cond) else { return Vec::new() };
        let woken = if all { queue.len() } else { 1 };
        let woken = queue.drain(..woken.min(queue.len())).collect();
        if queue.is_empty() {
            self.queues.remove(&cond);
        }
        woken
    }
}

fn unexpected(expected: &'static str, ticket: Ticket) -> ProtocolError {
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
        assert!(conds.handle_wake(1).is_err());
        conds.begin_wait(Waiter(1), LockId(9));
        assert_eq!(conds.handle_noted(1), Ok(LockId(9)));
        assert!(conds.handle_noted(1).is_err());
        assert_eq!(conds.handle_wake(1), Ok(LockId(9)));
        assert!(conds.handle_wake(1).is_err());
    }
}
