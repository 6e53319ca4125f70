//! Atomic words: every operation is carried out at the word's home.

use hiroba_base::{PageId, PageSet, VersionVector};
use hiroba_wire::{AtomicOutcome, Message, Ticket};

use rustc_hash::FxHashMap;

use super::{Hlrc, HomeRequest};
use crate::coherence::{AfterRelease, Coherence, Site, WordOperation};
use crate::words::{Client, Operated};
use crate::{Effect, Expected, ProtocolError, Waiter, unexpected};

/// Atomic operations under way at other homes, by waiting thread.
#[derive(Debug, Default)]
pub(super) struct AtomicTargets(FxHashMap<Ticket, AtomicTarget>);

/// The word of an atomic operation that is under way at another home.
#[derive(Debug)]
struct AtomicTarget {
    page: PageId,
    offset: u32,
    /// True if the page has been read from the home's frame meanwhile, or has moved: the node does not know
    /// whether its copy is from before or after the operation, or after later ones.
    overtaken: bool,
}

impl AtomicTargets {
    /// Notes that a thread requests an operation at another home.
    pub(super) fn begin(&mut self, ticket: Ticket, page: PageId, offset: u32) {
        let before = self.0.insert(ticket, AtomicTarget { page, offset, overtaken: false });
        assert!(before.is_none(), "thread {ticket} waits for one operation at a time");
    }

    /// Notes that the copy of the page may be newer or older than the results of operations under way.
    pub(super) fn overtake(&mut self, page: PageId) {
        let under_way = self.0.values_mut().filter(|target| target.page == page);
        under_way.for_each(|target| target.overtaken = true);
    }

    /// Returns true if operations on words of the page are under way.
    pub(super) fn are_in(&self, page: PageId) -> bool {
        self.0.values().any(|target| target.page == page)
    }
}

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
        self.moves.send_withheld(site);
        self.atomic_targets.begin(waiter.0, page_id, offset);
        let is_watched = self.pages.get(&page_id).is_some_and(|page| page.watched);
        let may_be_dirty = is_watched || self.written.contains(page_id);
        if may_be_dirty {
            // The diffs of the open interval must be there, too: they go first.
            site.release_for(AfterRelease::Operate(asked));
        } else {
            self.ask_to_operate(site, asked);
        }
    }

    pub(super) fn ask_to_operate(&mut self, site: &mut Site, asked: WordOperation) {
        let WordOperation { page, offset, operation, waiter } = asked;
        let (needed, home) = (self.needed(page), site.locate(page).home);
        let ticket = waiter.0;
        debug_assert!(self.atomic_targets.0.contains_key(&ticket), "thread {ticket}: its word is noted");
        site.out.send(home, &Message::AtomicRequest { ticket, page, offset, operation, needed });
    }

    pub(super) fn needed(&self, page_id: PageId) -> VersionVector {
        self.pages.get(&page_id).map_or_else(VersionVector::new, |page| page.needed.clone())
    }

    pub(super) fn finish_atomic_at_home(&mut self, site: &mut Site, outcome: AtomicOutcome) {
        let (client, page_id, offset) = self.atomics.pop_front().expect("every atomic answer has its effect");
        let turn = self.turns.count(site, page_id, offset);
        if matches!(client, Client::Here(_)) {
            if self.pages.or_default(page_id).shared {
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
        let Some(AtomicTarget { page: page_id, offset, overtaken }) = self.atomic_targets.0.remove(&ticket)
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
            // The node's own copy would stay outdated, because notices of its own intervals do not invalidate
            // it.
            site.out.push(Effect::Patch { page: page_id, offset, value: outcome.current });
        }
        self.operated_on.insert(page_id);
        site.end_operation(Waiter(ticket), Operated { page: page_id, offset, turn, outcome });
        Ok(())
    }
}
