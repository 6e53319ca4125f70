//! Messages of other nodes that are about pages that are out.
//!
//! The thread that received such a message would wait for the disk, or for a lender, and nobody would receive
//! meanwhile. So a thread of its own handles it, once it has brought the pages in. Later messages of the same
//! node wait behind it, because engines rely on their order; those of others are handled as ever.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use hiroba_base::NodeId;
use hiroba_wire::Message;

use crate::runtime::Runtime;

/// The maximum number of messages that wait. Whoever receives another one waits, too.
const MESSAGES_MAX: usize = 256;

/// Messages that wait for pages, and those behind them.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    /// The first one stays here until it has been handled.
    messages: Mutex<VecDeque<(NodeId, Vec<u8>)>>,
    /// Changes under the lock. A thread that receives, which alone adds messages, reads it without.
    count: AtomicUsize,
    changed: Condvar,
}

impl Deferred {
    fn messages(&self) -> MutexGuard<'_, VecDeque<(NodeId, Vec<u8>)>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if a message of this node waits, or is being handled.
    fn has_any_of(&self, from: NodeId) -> bool {
        // SYNC POINT: pairs with the release in `handle_next`, so that what was handled last is seen.
        self.count.load(Ordering::Acquire) > 0 && self.messages().iter().any(|(node, _)| *node == from)
    }

    /// Adds a message. Waits while there are too many.
    fn add(&self, from: NodeId, bytes: &[u8]) {
        let is_full = |messages: &mut VecDeque<_>| messages.len() >= MESSAGES_MAX;
        let messages = self.changed.wait_while(self.messages(), is_full);
        let mut messages = messages.unwrap_or_else(PoisonError::into_inner);
        messages.push_back((from, bytes.to_vec()));
        self.count.store(messages.len(), Ordering::Release);
        self.changed.notify_all();
    }

    /// Waits for a message and handles it.
    fn handle_next(&self, handle: impl FnOnce(NodeId, &[u8])) {
        let messages = self.changed.wait_while(self.messages(), |messages| messages.is_empty());
        let mut messages = messages.unwrap_or_else(PoisonError::into_inner);
        let Some((from, bytes)) = messages.front_mut() else { return };
        let (from, bytes) = (*from, std::mem::take(bytes));
        drop(messages);
        handle(from, &bytes);
        let mut messages = self.messages();
        messages.pop_front();
        self.count.store(messages.len(), Ordering::Release);
        self.changed.notify_all();
    }
}

impl Runtime {
    /// Has a message handled later, if it must wait for pages that are out, or for an earlier message of its
    /// sender. Returns true then. Called by a thread that receives.
    pub(crate) fn defer(&self, from: NodeId, bytes: &[u8]) -> bool {
        if !self.may_defer() {
            return false;
        }
        let is_deferred = self.serving.deferred.has_any_of(from)
            || (self.memory.is_any_out()
                && Message::decode(bytes, &self.job.limits)
                    .is_ok_and(|message| self.waits_for_pages(&message)));
        if is_deferred {
            self.serving.deferred.add(from, bytes);
        }
        is_deferred
    }

    /// Returns true if messages may have to wait for pages.
    pub(crate) fn may_defer(&self) -> bool {
        // Records of a traced run are those of the thread that receives.
        self.pager.is_some() && self.recorder.is_none()
    }

    /// Handles messages that wait. The work of a thread of its own.
    pub(crate) fn handle_deferred(&self) {
        while !self.has_left() {
            self.serving.deferred.handle_next(|from, bytes| self.dispatch(from, bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    const NODES: [NodeId; 2] = [NodeId(1), NodeId(2)];

    #[test]
    fn a_message_waits_behind_those_of_its_sender_until_they_are_handled() {
        let deferred = Deferred::default();
        let [one, other] = NODES;
        deferred.add(one, b"first");
        assert!(deferred.has_any_of(one) && !deferred.has_any_of(other));
        deferred.handle_next(|from, bytes| {
            assert_eq!((from, bytes), (one, &b"first"[..]));
            assert!(deferred.has_any_of(one), "it is not handled yet");
            deferred.add(one, b"second");
            deferred.add(other, b"third");
        });
        let mut handled = Vec::new();
        while deferred.has_any_of(one) || deferred.has_any_of(other) {
            deferred.handle_next(|from, bytes| handled.push((from, bytes.to_vec())));
        }
        assert_eq!(handled, [(one, b"second".to_vec()), (other, b"third".to_vec())]);
    }

    #[test]
    fn no_more_messages_wait_than_may() {
        let deferred = Deferred::default();
        let (said, heard) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..MESSAGES_MAX + 5 {
                    deferred.add(NODES[0], &number.to_be_bytes());
                    said.send(number).unwrap();
                }
            });
            (0..MESSAGES_MAX).for_each(|number| assert_eq!(heard.recv(), Ok(number)));
            for number in 0..MESSAGES_MAX + 5 {
                deferred.handle_next(|_, bytes| assert_eq!(bytes, number.to_be_bytes()));
                assert!(deferred.messages().len() <= MESSAGES_MAX);
            }
        });
        assert!(!deferred.has_any_of(NODES[0]));
    }
}
