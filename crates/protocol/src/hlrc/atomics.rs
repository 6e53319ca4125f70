//! Atomic words: every operation is carried out at the word's home.

use hiroba_base::{PageId, PageSet, VersionVector};
use hiroba_wire::{AtomicOutcome, Message, Ticket};

use super::{AtomicTarget, Hlrc, HomeRequest};
use crate::coherence::{AfterRelease, Coherence, Site, WordOperation};
use crate::words::{Client, Operated};
use crate::{Effect, Expected, ProtocolError, Waiter, unexpected};

impl Hlrc {
    pub(super) fn begin_atomic(&mut self, site: &mut Site, asked: WordOperation) {
        let WordOperation { page: page_id, offset, operation, waiter } = asked;
        if site.is_home(page_id) || self.moves.is_coming(page_id) {
            let needed = self.needed(page_id);
            let client = Client::Here(waiter);
            let request = HomeRequest::Atomic { client, offset, operation };
            return self.handle_home_request(site, page_id, &needed, request);
        }
        // The operation must find this thread's own plain stores at the home.
        self.send_withheld(site);
        let target = AtomicTarget { page: page_id, offset, overtaken: false };
        let before = self.atomic_targets.insert(waiter.0, target);
        assert!(before.is_none(), "thread {} waits for one operation at a time", waiter.0);
        let is_watched = self.pages.get(&page_id).is_some_and(|page| page.watched);
        let may_be_dirty = is_watched || self.written.contains(page_id);
        if may_be_dirty {
            // Those of the open interval, too: their diff goes first.
            site.release_for(AfterRelease::Operate(asked));
        } else {
            self.ask_to_operate(site, asked);
        }
    }

    pub(super) fn ask_to_operate(&mut self, site: &mut Site, asked: WordOperation) {
        let WordOperation { page, offset, operation, waiter } = asked;
        let (needed, home) = (self.needed(page), site.locate(page).home);
        let ticket = waiter.0;
        debug_assert!(self.atomic_targets.contains_key(&ticket), "thread {ticket}: its word is noted");
        site.out.send(home, &Message::AtomicRequest { ticket, page, offset, operation, needed });
    }

    pub(super) fn needed(&self, page_id: PageId) -> VersionVector {
        self.pages.get(&page_id).map_or_else(VersionVector::new, |page| page.needed.clone())
    }

    pub(super) fn finish_atomic_at_home(&mut self, site: &mut Site, outcome: AtomicOutcome) {
        let (client, page_id, offset) = self.atomics.pop_front().expect("every atomic answer has its effect");
        let turn = self.turns.count(site, page_id, offset);
        if matches!(client, Client::Here(_)) {
            if self.pages.entry(page_id).or_default().shared {
                self.written.insert(page_id);
            } else {
                self.note_unnoticed(page_id);
            }
        }
        site.answer_operation(client, Operated { page: page_id, offset, turn, outcome });
    }

    pub(super) fn handle_atomic_reply(
        &mut self,
        site: &mut Site,
        ticket: Ticket,
        outcome: AtomicOutcome,
        turn: u64,
    ) -> Result<(), ProtocolError> {
        let Some(AtomicTarget { page: page_id, offset, overtaken }) = self.atomic_targets.remove(&ticket)
        else {
            return Err(unexpected(Expected::RequestedAtomic, format!("one for thread {ticket}")));
        };
        let is_valid = self.pages.get(&page_id).is_some_and(|page| page.valid);
        if is_valid && overtaken {
            // The copy may lack the word, or have a later one.
            let mut voided = PageSet::new();
            self.void(page_id, &mut voided);
            site.invalidate(&voided, |page| self.access(page));
            self.ask_for_unwritten(site);
        } else if is_valid {
            // Our own copy would stay stale: notices of our own intervals do not invalidate it.
            site.out.push(Effect::Patch { page: page_id, offset, value: outcome.current });
        }
        self.operated_on.insert(page_id);
        site.end_operation(Waiter(ticket), Operated { page: page_id, offset, turn, outcome });
        Ok(())
    }
}
