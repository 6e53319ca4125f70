//! Atomic words: every operation is carried out at the page's home, which is a writer of the page like any
//! other.
//!
//! The home first brings its copy up to all intervals of the page that the operating node knows, so an
//! operation finds every plain store that precedes it. Then it closes an interval in which only this page has
//! changed, with a diff of its own: the word. So later values depend only on the order in which the home
//! operated, and no diff undoes the word: earlier stores to it are in a version that this one covers.
//!
//! The answer names the home's version. The operating node's copy must contain it before it is read again.
//! Its next interval carries a notice of the page with an empty diff, whose version names the operation's
//! interval. A node that acquires from it requests that diff, and then the home's. This also holds for
//! operations that only load: a thread that has seen a change passes it to later acquirers. An operation
//! transfers no knowledge of other pages: plain loads see earlier plain stores after the next acquire.

use hiroba_base::{NodeId, PageId, VersionVector};
use hiroba_wire::{AtomicOperation, AtomicOutcome, Message, Ticket};

use super::keeping::KeptDiff;
use super::{Lrc, raise};
use crate::coherence::{AfterRelease, Site, WordOperation};
use crate::words::{Client, Operated};
use crate::{Effect, Expected, ProtocolError, Waiter, diff, unexpected};

/// An operation at the word's home.
#[derive(Debug)]
pub(super) struct Operation {
    client: Client,
    offset: u32,
    operation: AtomicOperation,
    /// The intervals that the copy must contain before it.
    pub(super) needed: VersionVector,
}

impl Operation {
    /// Returns the operation that another node requests.
    pub(super) fn from(
        node: NodeId,
        ticket: Ticket,
        offset: u32,
        operation: AtomicOperation,
        needed: VersionVector,
    ) -> Operation {
        Operation { client: Client::There(node, ticket), offset, operation, needed }
    }
}

/// An operation that was carried out and has not been announced.
#[derive(Debug)]
pub(super) struct Performed {
    page: PageId,
    client: Client,
    offset: u32,
    outcome: AtomicOutcome,
    turn: u64,
}

/// The answer of a page's home to an operation.
pub(super) struct HomeWord<'a> {
    pub(super) outcome: AtomicOutcome,
    /// The number of operations on the word before.
    pub(super) turn: u64,
    /// The page's version after the operation.
    pub(super) version: &'a VersionVector,
}

/// The operating node's side.
impl Lrc {
    pub(super) fn begin_operation(&mut self, site: &mut Site, asked: WordOperation) {
        if self.written.contains(asked.page) {
            // The operation must find this thread's own plain stores, so their interval ends first.
            site.release_for(AfterRelease::Operate(asked));
        } else {
            self.request_operation(site, asked);
        }
    }

    pub(super) fn request_operation(&mut self, site: &mut Site, asked: WordOperation) {
        let WordOperation { page: page_id, offset, operation, waiter } = asked;
        let needed = self.page(site, page_id).known();
        let home = site.locate(page_id).home;
        if home == site.me {
            let client = Client::Here(waiter);
            return self.admit(site, page_id, Operation { client, offset, operation, needed });
        }
        let ticket = waiter.0;
        let before = self.operations_elsewhere.insert(ticket, (page_id, offset));
        assert!(before.is_none(), "thread {ticket} waits for one operation at a time");
        let request = Message::AtomicRequest { ticket, page: page_id, offset, operation, needed };
        site.out.send(home, &request);
    }

    pub(super) fn handle_word_reply(
        &mut self,
        site: &mut Site,
        ticket: Ticket,
        page_id: PageId,
        HomeWord { outcome, turn, version }: HomeWord<'_>,
    ) -> Result<(), ProtocolError> {
        let asked = self.operations_elsewhere.remove(&ticket);
        let Some((_, offset)) = asked.filter(|(asked, _)| *asked == page_id) else {
            return Err(unexpected(Expected::RequestedWord, format!("one for thread {ticket}")));
        };
        let page = self.page(site, page_id);
        raise(&mut page.needed, version);
        page.needed.retain_beyond(&page.version);
        self.void(site, page_id);
        if !version.is_empty() {
            self.operated_on.insert(page_id);
        }
        site.end_operation(Waiter(ticket), Operated { page: page_id, offset, turn, outcome });
        Ok(())
    }
}

/// The home's side.
impl Lrc {
    pub(super) fn handle_operation_request(
        &mut self,
        site: &mut Site,
        page_id: PageId,
        operation: Operation,
    ) -> Result<(), ProtocolError> {
        self.share(site, page_id)?;
        self.admit(site, page_id, operation);
        Ok(())
    }

    fn admit(&mut self, site: &mut Site, page_id: PageId, operation: Operation) {
        let page = self.page(site, page_id);
        if page.version.covers(&operation.needed) {
            return self.perform(site, page_id, operation);
        }
        raise(&mut page.owed, &operation.needed);
        page.owed.retain_beyond(&page.version);
        page.operations.push(operation);
        self.go_on_fetching(site, page_id);
    }

    pub(super) fn perform(&mut self, site: &mut Site, page_id: PageId, operation: Operation) {
        let page = self.page(site, page_id);
        assert!(page.version.covers(&operation.needed), "{page_id}: its copy holds what comes before");
        // The word goes into the twin too, so an earlier interval's diff would lack earlier stores there.
        self.compare_closed(site, page_id, None);
        let (offset, asked) = (operation.offset, operation.operation);
        self.operating.push_back((page_id, operation));
        site.out.push(Effect::Atomic { page: page_id, offset, operation: asked });
    }

    pub(super) fn handle_operated(&mut self, site: &mut Site, outcome: AtomicOutcome) {
        let (page, Operation { client, offset, .. }) =
            self.operating.pop_front().expect("every atomic answer has its effect");
        let turn = self.turns.count(site, page, offset);
        self.performed.push_back(Performed { page, client, offset, outcome, turn });
        if site.is_closing() {
            site.release_for(AfterRelease::Continue(page));
        } else {
            self.finish_performed(site);
        }
    }

    /// Closes the intervals of performed operations and answers the nodes and threads that requested them. No
    /// release is open.
    pub(super) fn finish_performed(&mut self, site: &mut Site) {
        assert!(!site.is_closing(), "operations have intervals of their own");
        while let Some(Performed { page: page_id, client, offset, outcome, turn }) =
            self.performed.pop_front()
        {
            let me = site.me;
            let mut version = self.page(site, page_id).version.clone();
            // A page that no other node has requested needs no notice.
            if outcome.written && self.page(site, page_id).shared {
                let seq = site.close_apart(page_id);
                version = self.page(site, page_id).count_own(me, seq);
                let runs = diff::of_bytes(offset as usize, &outcome.current.to_ne_bytes());
                self.keep(page_id, KeptDiff { seq, version: version.clone(), runs });
            }
            match client {
                Client::Here(waiter) => {
                    site.end_operation(waiter, Operated { page: page_id, offset, turn, outcome });
                }
                Client::There(node, ticket) => {
                    let reply = Message::WordReply { ticket, page: page_id, outcome, turn, version };
                    site.out.send(node, &reply);
                }
            }
        }
    }
}
