//! Atomic words: every operation is carried out at the word's home.

use hiroba_base::{PageId, PageSet, VersionVector};
use hiroba_wire::{AtomicOperation, AtomicOutcome, Message, Ticket};

use super::{AfterRelease, AtomicClient, AtomicTarget, Hlrc, HomeRequest, unexpected};
use crate::home::Located;
use crate::{Effect, Fact, Misuse, Outcome, ProtocolError, Waiter};

impl Hlrc {
    pub(super) fn begin_atomic(
        &mut self,
        granule: PageId,
        offset: u32,
        operation: AtomicOperation,
        waiter: Waiter,
    ) {
        let Some(Located { page: page_id, home, .. }) = self.homes.locate(granule) else {
            self.out.wake(waiter, Outcome::Misuse(Misuse::NotAllocated(granule)));
            return;
        };
        let offset = offset + (granule.0 - page_id.0) as u32 * self.limits.granule_bytes;
        if home == self.me {
            let needed = self.needed(page_id);
            let client = AtomicClient::Here(waiter);
            self.handle_home_request(page_id, &needed, HomeRequest::Atomic { client, offset, operation });
            return;
        }
        self.atomic_targets.insert(waiter.0, AtomicTarget { page: page_id, offset, overtaken: false });
        let then = AfterRelease::Atomic { home, page_id, offset, operation, waiter };
        let is_watched = self.pages.get(&page_id).is_some_and(|page| page.watched);
        let may_be_dirty = is_watched || self.written.contains(page_id);
        if may_be_dirty {
            // The operation must find this thread's own plain stores at the home: their diff goes first.
            self.begin_release(then);
        } else {
            self.after_release(then);
        }
    }

    pub(super) fn needed(&self, page_id: PageId) -> VersionVector {
        self.pages.get(&page_id).map_or_else(VersionVector::new, |page| page.needed.clone())
    }

    pub(super) fn finish_atomic_at_home(&mut self, outcome: AtomicOutcome) {
        let (client, page_id, offset) = self.atomics.pop_front().expect("every atomic answer has its effect");
        let turn = self.count_atomic(page_id, offset);
        match client {
            AtomicClient::Here(waiter) => {
                if self.pages.entry(page_id).or_default().shared {
                    self.written.insert(page_id);
                } else {
                    self.note_unnoticed(page_id);
                }
                self.tell(|_| Some(Fact::Atomic { waiter, page: page_id, offset, turn, outcome }));
                self.out.wake(waiter, Outcome::Atomic(outcome));
            }
            AtomicClient::There(node, ticket) => {
                self.out.send(node, &Message::AtomicReply { ticket, outcome, turn });
            }
        }
    }

    pub(super) fn handle_atomic_reply(
        &mut self,
        ticket: Ticket,
        outcome: AtomicOutcome,
        turn: u64,
    ) -> Result<(), ProtocolError> {
        let Some(AtomicTarget { page: page_id, offset, overtaken }) = self.atomic_targets.remove(&ticket)
        else {
            return Err(unexpected(
                "an atomic's result only after a request",
                format!("one for thread {ticket}"),
            ));
        };
        let is_valid = self.pages.get(&page_id).is_some_and(|page| page.valid);
        if is_valid && overtaken {
            // The copy may lack the word, or have a later one.
            let mut invalidated = PageSet::new();
            self.void(page_id, &mut invalidated);
            self.invalidate(&invalidated);
        } else if is_valid {
            // Our own copy would stay stale: notices of our own intervals do not invalidate it.
            self.out.push(Effect::Patch { page: page_id, offset, value: outcome.current });
        }
        self.operated_on.insert(page_id);
        let waiter = Waiter(ticket);
        self.tell(|_| Some(Fact::Atomic { waiter, page: page_id, offset, turn, outcome }));
        self.out.wake(waiter, Outcome::Atomic(outcome));
        Ok(())
    }
}
