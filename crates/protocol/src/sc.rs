//! Sequential consistency: one writer or many readers of a page, and invalidation.
//!
//! Read first: Li, Hudak, *Memory Coherence in Shared Virtual Memory Systems*, ACM TOCS 7(4), 1989: its sections on the
//! fixed distributed manager and on the improved manager, which gives the copyset to the owner. For the hold: Fleisch, Popek,
//! *Mirage: A Coherent Distributed Shared Memory Design*, SOSP 1989 (its time window Δ).
//!
//! Every page has one **owner**, whose copy is the page. The owner gives **copies** to readers and keeps their **copyset**; who wants
//! to write becomes the owner, and invalidates all copies before its store. So loads and stores of all nodes have one order that
//! agrees with each thread's program order (Lamport 1979), for any program, with data races or without. Synchronisation
//! has nothing to tell: locks and barriers carry no notices.
//!
//! The page's home is its **manager**, a fixed node that knows only who asked last to be the owner. It passes a request to that
//! node, so that those who want to write are a chain, each handing the page to the next; a request that reaches a node whose turn has
//! yet to come waits there.
//!
//! ```text
//!   reader ──CopyRequest──▶ manager (or a hint) ──CopyRequest──▶ owner ──PagesReply──▶ reader
//!   writer ──OwnershipRequest──▶ manager ──OwnershipForward──▶ owner ──[PagesReply,] Ownership──▶ writer
//!                                       writer ──InvalidateCopy──▶ copyset ──CopyInvalidated──▶ writer
//! ```
//!
//! A page on one node:
//!
//! | state | `owner` | access | load faults | store faults |
//! |---|---|---|---|---|
//! | absent | no | None | ask for a copy → copy | ask for the page → owner, writing |
//! | copy | no | Read | – | the same |
//! | owner, fresh | yes | None | → owner, writing | the same |
//! | owner, shared | yes | Read (None, if nobody here has touched it) | – | → owner, invalidating |
//! | owner, invalidating | yes | Read or None | wait | wait for the copies to go → owner, writing |
//! | owner, writing | yes | Write | – | – |
//!
//! A copy that is invalidated becomes *absent*. A `CopyRequest` takes *owner, writing* to *owner, shared*; an `OwnershipForward` takes
//! any owner to *absent*.
//!
//! **Why an invalidation that overtakes the copy is harmless.** The copyset of an owner names nodes to which that owner itself has
//! sent a copy: becoming the owner empties it. So a node that is told to give up a copy that it has not got yet knows that
//! the copy is on its way. It says that it has given it up only when the copy has come and its threads have used it.
//!
//! **The hold.** A page that goes back and forth between nodes might leave each before the thread that faulted has touched it. A page
//! that somebody waited for stays, whatever others ask, until the host says that a moment has passed ([`Effect::Hold`]).
//!
//! Deviations from the paper:
//! - Requests for copies go where the page was last known to be: whoever asked for an invalidation, gave the copy or got the page.
//!   If that node is not the owner, and will not be, it passes the request to the manager.
//! - An owner whose copies must go does that without the manager: no request can come between.
//! - Atomic operations are the owner's: a node first gets the page, as for a store.

mod state;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hiroba_base::{Access, NodeId, PageId, PageRange, PageSet};
use hiroba_wire::{AtomicOperation, AtomicOutcome, Limits, Message, PageCopy};
use rustc_hash::FxHashMap;

pub use self::state::State;
use crate::coherence::{Coherence, Site, WordOperation};
use crate::engine::wanted_beyond;
use crate::home::Located;
use crate::{
    Consistency, Done, Effect, Fact, NewContent, Outcome, PageToSend, ProtocolError, Waiter, WriteTracking,
    unexpected,
};

/// Pages that one hint asks for, at most.
const HINTED_PAGES_MAX: usize = 256;

/// Sequential consistency on one node.
#[derive(Debug, Default)]
pub struct Sc {
    pages: FxHashMap<PageId, Page>,
    /// Held pages that somebody waits for.
    contended: PageSet,
    /// Atomic operations that the host is carrying out, in order: whose, and on which word's offset.
    operating: VecDeque<(Waiter, u32)>,
}

#[derive(Debug)]
struct Page {
    access: Access,
    owner: bool,
    /// Owner: who has copies.
    copyset: BTreeSet<NodeId>,
    /// Manager: who asked last to be the owner.
    tail: NodeId,
    /// Where the owner may be.
    hint: NodeId,
    /// What this node has asked for, and not got: `Read` a copy, `Write` the page.
    asked: Access,
    /// The most that threads here wait for, those that faulted without naming themselves among them.
    wanted: Access,
    waiters: Vec<(Waiter, Access)>,
    /// Atomic operations that wait for the page: at most one a thread.
    operations: VecDeque<(Waiter, u32, AtomicOperation)>,
    /// Owner: copies that have yet to be given up before somebody here may write.
    invalidating: usize,
    /// Others that wait for the page here, at most one entry a node: for a copy (`Read`), or for the page.
    queue: VecDeque<(NodeId, Access)>,
    /// Whoever wants this node's copy to be given up.
    give_up_for: Option<NodeId>,
    /// Threads here have yet to use what they waited for.
    held: bool,
    /// Owner, when somebody keeps a record: how many operations there were on each atomic word, by offset.
    turns: BTreeMap<u32, u64>,
}

impl Page {
    fn new(me: NodeId, manager: NodeId) -> Page {
        Page {
            access: Access::None,
            owner: me == manager,
            copyset: BTreeSet::new(),
            tail: manager,
            hint: manager,
            asked: Access::None,
            wanted: Access::None,
            waiters: Vec::new(),
            operations: VecDeque::new(),
            invalidating: 0,
            queue: VecDeque::new(),
            give_up_for: None,
            held: false,
            turns: BTreeMap::new(),
        }
    }
}

impl Sc {
    /// Nothing is allocated yet.
    pub fn new() -> Sc {
        Sc::default()
    }

    /// The engine of node `me`, with nothing allocated. Stores must fault: asynchronous tracking would see them too late.
    pub fn engine(me: NodeId, limits: Limits, tracking: WriteTracking) -> Consistency {
        assert_eq!(tracking, WriteTracking::Fault, "a store to a copy must fault before it is done");
        Consistency::new(me, limits, tracking, Box::new(Sc::new()))
    }

    fn page(&mut self, site: &mut Site, page_id: PageId) -> &mut Page {
        let (me, manager) = (site.me, site.locate(page_id).home);
        self.pages.entry(page_id).or_insert_with(|| Page::new(me, manager))
    }

    fn protect(&mut self, site: &mut Site, page_id: PageId, access: Access) {
        self.page(site, page_id).access = access;
        let pages = site.locate(page_id).span();
        site.out.push(Effect::Protect { pages, access });
    }
}

/// What threads of this node want of a page (Li and Hudak's read and write fault handlers).
impl Sc {
    fn handle_fault(&mut self, site: &mut Site, page_id: PageId, wanted: Access, waiter: Option<Waiter>) {
        let page = self.page(site, page_id);
        let wanted = wanted_beyond(page.access, wanted);
        page.wanted = page.wanted.max(wanted);
        page.waiters.extend(waiter.map(|waiter| (waiter, wanted)));
        self.settle(site, page_id);
    }

    fn begin_operation(&mut self, site: &mut Site, asked: WordOperation) {
        let WordOperation { page: page_id, offset, operation, waiter } = asked;
        let page = self.page(site, page_id);
        page.operations.push_back((waiter, offset, operation));
        page.wanted = Access::Write;
        self.settle(site, page_id);
    }

    /// Does whatever can be done for the page now: first for threads here, then, when they have had time to use it, for others.
    fn settle(&mut self, site: &mut Site, page_id: PageId) {
        if self.page(site, page_id).invalidating > 0 {
            return;
        }
        self.satisfy(site, page_id);
        let page = self.page(site, page_id);
        if page.held {
            if !page.queue.is_empty() || page.give_up_for.is_some() {
                self.contended.insert(page_id);
            }
            return;
        }
        if page.invalidating > 0 {
            return;
        }
        self.give_copy_up(site, page_id);
        self.serve(site, page_id);
    }

    fn satisfy(&mut self, site: &mut Site, page_id: PageId) {
        let page = self.page(site, page_id);
        match (page.wanted, page.owner) {
            (Access::None, _) => {}
            (wanted, true) => {
                if page.copyset.is_empty() {
                    // Nobody else has it: a store after this load need not fault.
                    self.grant(site, page_id, Access::Write);
                } else if wanted == Access::Write {
                    self.invalidate_copies(site, page_id);
                } else {
                    self.grant(site, page_id, Access::Read);
                }
            }
            (wanted, false) => {
                let access = page.access;
                if access > Access::None && page.waiters.iter().any(|(_, wanted)| *wanted <= access)
                    || access >= wanted
                {
                    self.grant(site, page_id, access);
                }
                self.ask(site, page_id);
            }
        }
    }

    /// Lets threads here do as much, and those that waited for no more go on.
    fn grant(&mut self, site: &mut Site, page_id: PageId, access: Access) {
        self.protect(site, page_id, access);
        let page = self.page(site, page_id);
        let (served, waiting) =
            std::mem::take(&mut page.waiters).into_iter().partition(|(_, wanted)| *wanted <= access);
        page.waiters = waiting;
        let served: Vec<(Waiter, Access)> = served;
        if page.wanted <= access {
            page.wanted = Access::None;
        }
        let must_hold = !std::mem::replace(&mut page.held, true);
        let operations =
            if access == Access::Write { std::mem::take(&mut page.operations) } else { VecDeque::new() };
        for (waiter, offset, operation) in operations {
            self.operating.push_back((waiter, offset));
            site.out.push(Effect::Atomic { page: page_id, offset, operation });
        }
        if must_hold {
            site.out.push(Effect::Hold { page: page_id });
        }
        for (waiter, _) in served {
            site.out.wake(waiter, Outcome::Done);
        }
    }

    fn ask(&mut self, site: &mut Site, page_id: PageId) {
        let manager = site.locate(page_id).home;
        let me = site.me;
        let page = self.page(site, page_id);
        if page.asked > Access::None {
            return;
        }
        page.asked = page.wanted;
        match page.wanted {
            Access::None => {}
            Access::Read => {
                let to = if page.hint == me { manager } else { page.hint };
                site.out.send(to, &Message::CopyRequest { page: page_id, requester: me });
            }
            Access::Write => site.out.send(manager, &Message::OwnershipRequest { page: page_id }),
        }
    }

    /// The owner's: nobody may read what is about to change.
    fn invalidate_copies(&mut self, site: &mut Site, page_id: PageId) {
        let page = self.page(site, page_id);
        let copyset = std::mem::take(&mut page.copyset);
        page.invalidating = copyset.len();
        for reader in copyset {
            site.out.send(reader, &Message::InvalidateCopy { page: page_id });
        }
    }
}

/// What others want of a page (Li and Hudak's read and write servers).
impl Sc {
    /// The copy goes, if somebody asked for that and it has come.
    fn give_copy_up(&mut self, site: &mut Site, page_id: PageId) {
        let page = self.page(site, page_id);
        let is_on_its_way = page.access == Access::None;
        if is_on_its_way {
            return;
        }
        if let Some(owner) = page.give_up_for.take() {
            self.page(site, page_id).access = Access::None;
            let span = site.locate(page_id).span();
            site.out.push(Effect::Invalidate { span, pages: 1 });
            site.out.send(owner, &Message::CopyInvalidated { page: page_id });
        }
    }

    /// The owner's: those who wait for the page here, in the order in which they came.
    fn serve(&mut self, site: &mut Site, page_id: PageId) {
        while self.page(site, page_id).owner
            && let Some((node, wanted)) = self.page(site, page_id).queue.pop_front()
        {
            if self.page(site, page_id).access == Access::Write || wanted == Access::Write {
                let left = if wanted == Access::Write { Access::None } else { Access::Read };
                self.protect(site, page_id, left);
            }
            if wanted == Access::Write {
                self.hand_over(site, page_id, node);
            } else {
                self.page(site, page_id).copyset.insert(node);
                self.send_content(site, page_id, node);
            }
        }
        if self.page(site, page_id).asked < Access::Write && !self.page(site, page_id).owner {
            // They came by a hint, behind the one that has got the page.
            let manager = site.locate(page_id).home;
            for (requester, _) in std::mem::take(&mut self.page(site, page_id).queue) {
                site.out.send(manager, &Message::CopyRequest { page: page_id, requester });
            }
        }
    }

    fn hand_over(&mut self, site: &mut Site, page_id: PageId, to: NodeId) {
        if !self.page(site, page_id).copyset.contains(&to) {
            self.send_content(site, page_id, to);
        }
        let page = self.page(site, page_id);
        (page.owner, page.hint) = (false, to);
        let mut copyset = std::mem::take(&mut page.copyset);
        copyset.remove(&to);
        let turns = std::mem::take(&mut page.turns).into_iter().collect();
        let copyset = copyset.into_iter().collect();
        site.out.send(to, &Message::Ownership { page: page_id, copyset, turns });
    }

    fn send_content(&mut self, site: &mut Site, page_id: PageId, to: NodeId) {
        let page_bytes = site.page_bytes(page_id);
        let pages = vec![PageToSend { page: page_id, page_bytes, version: Default::default() }];
        site.out.push(Effect::SendPages { to, pages, ahead_of: None });
    }

    /// The manager's, or that of a node that the requester takes for the owner.
    fn handle_copy_request(
        &mut self,
        site: &mut Site,
        page_id: PageId,
        requester: NodeId,
    ) -> Result<(), ProtocolError> {
        let manager = site.locate(page_id).home;
        let me = site.me;
        let page = self.page(site, page_id);
        if page.owner || page.asked == Access::Write {
            page.queue.push_back((requester, Access::Read));
            self.settle(site, page_id);
            return Ok(());
        }
        let to = if manager == me { page.tail } else { manager };
        if to == me {
            return Err(unexpected(
                "the owner where the manager is the last to have asked",
                "none".to_owned(),
            ));
        }
        site.out.send(to, &Message::CopyRequest { page: page_id, requester });
        Ok(())
    }

    fn handle_ownership_request(
        &mut self,
        site: &mut Site,
        page_id: PageId,
        from: NodeId,
    ) -> Result<(), ProtocolError> {
        if site.locate(page_id).home != site.me {
            return Err(unexpected("requests for the pages managed here", format!("one for {page_id}")));
        }
        let last = std::mem::replace(&mut self.page(site, page_id).tail, from);
        if last == from {
            return Err(unexpected("another node than the last", format!("node {from} for {page_id}")));
        }
        site.out.send(last, &Message::OwnershipForward { page: page_id, requester: from });
        Ok(())
    }

    fn handle_ownership_forward(
        &mut self,
        site: &mut Site,
        page_id: PageId,
        requester: NodeId,
    ) -> Result<(), ProtocolError> {
        let page = self.page(site, page_id);
        if !page.owner && page.asked != Access::Write {
            return Err(unexpected("requests for pages that are here", format!("one for {page_id}")));
        }
        page.queue.push_back((requester, Access::Write));
        self.settle(site, page_id);
        Ok(())
    }

    fn handle_pages_reply(
        &mut self,
        site: &mut Site,
        from: NodeId,
        copies: &[PageCopy],
        content: &[u8],
    ) -> Result<(), ProtocolError> {
        let mut at = 0;
        for PageCopy { page: page_id, is_zero, .. } in copies {
            let located = site.homes.locate(*page_id).filter(|located| located.page == *page_id);
            let asked = located.map_or(Access::None, |_| self.page(site, *page_id).asked);
            let page_bytes =
                located.map_or(0, |located| located.granules as usize * site.limits.granule_bytes as usize);
            let end = if *is_zero { at } else { at + page_bytes };
            if asked == Access::None || end > content.len() {
                return Err(unexpected("whole pages that were asked for", format!("{page_id}")));
            }
            let new = if *is_zero { NewContent::Zero } else { NewContent::Received(at..end) };
            at = end;
            let pages = site.locate(*page_id).span();
            let hinted = u32::from(self.page(site, *page_id).wanted == Access::None);
            let (fetched, prefetched) = (1 - hinted, hinted);
            site.out.push(Effect::Install { pages, content: new, merge: false, fetched, prefetched });
            if asked == Access::Read {
                let page = self.page(site, *page_id);
                (page.asked, page.hint) = (Access::None, from);
                self.grant(site, *page_id, Access::Read);
                self.settle(site, *page_id);
            }
        }
        Ok(())
    }

    fn handle_ownership(
        &mut self,
        site: &mut Site,
        page_id: PageId,
        copyset: &[NodeId],
        turns: &[(u32, u64)],
    ) -> Result<(), ProtocolError> {
        let page = self.page(site, page_id);
        if page.asked != Access::Write || page.owner {
            return Err(unexpected("a page that was asked for", format!("{page_id}")));
        }
        (page.asked, page.owner) = (Access::None, true);
        page.copyset = copyset.iter().copied().collect();
        page.turns = turns.iter().copied().collect();
        self.settle(site, page_id);
        Ok(())
    }

    fn handle_invalidate(
        &mut self,
        site: &mut Site,
        from: NodeId,
        page_id: PageId,
    ) -> Result<(), ProtocolError> {
        let page = self.page(site, page_id);
        let has_copy = page.access == Access::Read || page.asked == Access::Read;
        if page.owner || !has_copy || page.give_up_for.is_some() {
            return Err(unexpected("an invalidation of a copy", format!("one of {page_id}")));
        }
        (page.give_up_for, page.hint) = (Some(from), from);
        self.settle(site, page_id);
        Ok(())
    }

    fn handle_invalidated(&mut self, site: &mut Site, page_id: PageId) -> Result<(), ProtocolError> {
        let page = self.page(site, page_id);
        page.invalidating = page
            .invalidating
            .checked_sub(1)
            .ok_or_else(|| unexpected("an answer only to an invalidation", format!("one for {page_id}")))?;
        self.settle(site, page_id);
        Ok(())
    }
}

/// Atomic operations.
impl Sc {
    fn finish_operation(&mut self, site: &mut Site, page_id: PageId, outcome: AtomicOutcome) {
        let (waiter, offset) = self.operating.pop_front().expect("every atomic answer has its effect");
        if site.tells() {
            let turns = self.page(site, page_id).turns.entry(offset).or_default();
            let turn = std::mem::replace(turns, *turns + 1);
            site.tell(|| Some(Fact::Atomic { waiter, page: page_id, offset, turn, outcome }));
        }
        site.out.wake(waiter, Outcome::Atomic(outcome));
    }
}

/// Hints.
impl Sc {
    fn handle_hint(&mut self, site: &mut Site, ranges: &[PageRange]) {
        let located = ranges.iter().flat_map(|pages| site.homes.pages_in(*pages));
        let located: Vec<PageId> = located.take(HINTED_PAGES_MAX).map(|located| located.page).collect();
        let me = site.me;
        for page_id in located {
            let page = self.page(site, page_id);
            if page.owner || page.access > Access::None || page.asked > Access::None {
                continue;
            }
            page.asked = Access::Read;
            let to = if page.hint == me { site.locate(page_id).home } else { page.hint };
            site.out.send(to, &Message::CopyRequest { page: page_id, requester: me });
        }
    }
}

impl Coherence for Sc {
    fn access(&self, page: PageId) -> Access {
        self.pages.get(&page).map_or(Access::None, |page| page.access)
    }

    fn known_pages(&self) -> Vec<PageId> {
        self.pages.keys().copied().collect()
    }

    fn state(&self, site: &Site, page: Located) -> Result<&'static str, String> {
        let page = &self.pages[&page.page];
        State::of(page, site.me).map(State::name).ok_or_else(|| format!("{page:?}"))
    }

    fn fault(&mut self, site: &mut Site, page: Located, wanted: Access, waiter: Option<Waiter>) {
        self.handle_fault(site, page.page, wanted, waiter);
    }

    fn operate(&mut self, site: &mut Site, operation: WordOperation) {
        self.begin_operation(site, operation);
    }

    fn prefetch(&mut self, site: &mut Site, ranges: &[PageRange]) {
        self.handle_hint(site, ranges);
    }

    fn handle_message(
        &mut self,
        site: &mut Site,
        from: NodeId,
        message: &Message<'_>,
    ) -> Result<(), ProtocolError> {
        match message {
            Message::CopyRequest { page, requester } => self.handle_copy_request(site, *page, *requester),
            Message::OwnershipRequest { page } => self.handle_ownership_request(site, *page, from),
            Message::OwnershipForward { page, requester } => {
                self.handle_ownership_forward(site, *page, *requester)
            }
            Message::PagesReply { copies, content } => self.handle_pages_reply(site, from, copies, content),
            Message::Ownership { page, copyset, turns } => self.handle_ownership(site, *page, copyset, turns),
            Message::InvalidateCopy { page } => self.handle_invalidate(site, from, *page),
            Message::CopyInvalidated { page } => self.handle_invalidated(site, *page),
            _ => Err(unexpected("a message of sequential consistency", "another".to_owned())),
        }
    }

    fn handle_done(&mut self, site: &mut Site, done: Done) {
        match done {
            Done::Atomic { page, outcome } => self.finish_operation(site, page, outcome),
            other => unreachable!("nobody asked for {other:?}"),
        }
    }

    fn handle_held(&mut self, site: &mut Site, page: PageId) {
        self.page(site, page).held = false;
        self.contended.remove(page);
        self.settle(site, page);
    }

    fn waits_for_holds(&self) -> bool {
        !self.contended.is_empty()
    }
}
