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
//! | owner, shared | yes | Read (None, if nobody here has touched it) | – | invalidate the copies → owner, writing |
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

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hiroba_base::{Access, LockId, NodeId, PageId, PageRange, PageSet, PageSize, VectorTimestamp};
use hiroba_wire::{AtomicOperation, Collective, Knowledge, Limits, Message, PageCopy, Placement};
use rustc_hash::FxHashMap;

use crate::barrier::{Arrival, Meeting, Tree};
use crate::cond::{CondAction, Conds};
use crate::engine::wanted_beyond;
use crate::home::{HomeMap, Located};
use crate::lock::{LockAction, Locks};
use crate::outbox::Outbox;
use crate::team::{Gathered, Team};
use crate::{
    Done, Effect, Engine, Fact, Misuse, NewContent, Outcome, PageToSend, ProtocolError, Sync, Waiter,
    WriteTracking,
};

/// Pages that one hint asks for, at most.
const HINTED_PAGES_MAX: usize = 256;

/// The engine of one node under sequential consistency.
#[derive(Debug)]
pub struct Sc {
    me: NodeId,
    limits: Limits,
    homes: HomeMap,
    pages: FxHashMap<PageId, Page>,
    locks: Locks,
    conds: Conds,
    /// Nobody's intervals are counted: it stays as it is, and is what messages about locks and meetings carry.
    timestamp: VectorTimestamp,
    collectives_done: u64,
    team: Team,
    meeting: Meeting,
    /// Held pages that somebody waits for.
    contended: PageSet,
    /// Atomic operations that the host is carrying out, in order: whose, and on which word (page and offset).
    operating: VecDeque<(Waiter, PageId, u32)>,
    /// Somebody keeps a record of the run.
    tells: bool,
    /// Grants from nodes that have left a collective whose departure has yet to come here. At most one for each lock asked for.
    early: Vec<(NodeId, Vec<u8>)>,
    /// Requests for regions that this node has yet to hear of: their senders have left the collective that allocated them.
    ahead: Vec<(NodeId, Vec<u8>)>,
    out: Outbox,
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
    /// The engine of node `me`, with nothing allocated. Stores must fault: asynchronous tracking would see them too late.
    pub fn new(me: NodeId, limits: Limits, tracking: WriteTracking) -> Sc {
        assert_eq!(tracking, WriteTracking::Fault, "a store to a copy must fault before it is done");
        let nodes = limits.nodes;
        Sc {
            me,
            limits,
            homes: HomeMap::new(nodes),
            pages: FxHashMap::default(),
            locks: Locks::new(me, nodes),
            conds: Conds::default(),
            timestamp: VectorTimestamp::new(nodes),
            collectives_done: 0,
            team: Team::of_one(),
            meeting: Meeting::new(me, Tree::of(nodes)),
            contended: PageSet::new(),
            operating: VecDeque::new(),
            tells: false,
            early: Vec::new(),
            ahead: Vec::new(),
            out: Outbox::new(me),
        }
    }

    /// Has the engine tell what takes effect: [`Effect::Tell`].
    pub fn telling(mut self) -> Sc {
        self.tells = true;
        self
    }

    fn tell(&mut self, fact: Fact) {
        if self.tells {
            self.out.push(Effect::Tell(fact));
        }
    }

    fn locate(&self, page_id: PageId) -> Located {
        self.homes.locate(page_id).expect("a page that the engine knows is allocated")
    }

    fn page(&mut self, page_id: PageId) -> &mut Page {
        let (me, manager) = (self.me, self.locate(page_id).home);
        self.pages.entry(page_id).or_insert_with(|| Page::new(me, manager))
    }

    fn page_bytes(&self, page_id: PageId) -> u32 {
        self.locate(page_id).granules as u32 * self.limits.granule_bytes
    }

    fn protect(&mut self, page_id: PageId, access: Access) {
        self.page(page_id).access = access;
        let pages = self.locate(page_id).span();
        self.out.push(Effect::Protect { pages, access });
    }

    fn deliver_loopback(&mut self) {
        while let Some((from, bytes)) = self.out.next_kept() {
            let message =
                Message::decode(&bytes, &self.limits).expect("it was encoded here or decoded before");
            if let Err(error) = self.dispatch(from, &message) {
                self.out.refuse(from, &error);
            }
        }
    }
}

/// What threads of this node want of a page (Li and Hudak's read and write fault handlers).
impl Sc {
    fn fault(&mut self, granule: PageId, wanted: Access, waiter: Option<Waiter>) {
        let Some(located) = self.homes.locate(granule) else {
            if let Some(waiter) = waiter {
                self.out.wake(waiter, Outcome::Misuse(Misuse::NotAllocated(granule)));
            }
            return;
        };
        let page = self.page(located.page);
        let wanted = wanted_beyond(page.access, wanted);
        page.wanted = page.wanted.max(wanted);
        page.waiters.extend(waiter.map(|waiter| (waiter, wanted)));
        self.settle(located.page);
    }

    fn operate(&mut self, granule: PageId, offset: u32, operation: AtomicOperation, waiter: Waiter) {
        let Some(Located { page: page_id, .. }) = self.homes.locate(granule) else {
            return self.out.wake(waiter, Outcome::Misuse(Misuse::NotAllocated(granule)));
        };
        let offset = offset + (granule.0 - page_id.0) as u32 * self.limits.granule_bytes;
        let page = self.page(page_id);
        page.operations.push_back((waiter, offset, operation));
        page.wanted = Access::Write;
        self.settle(page_id);
    }

    /// Does whatever can be done for the page now: first for threads here, then, when they have had time to use it, for others.
    fn settle(&mut self, page_id: PageId) {
        if self.page(page_id).invalidating > 0 {
            return;
        }
        self.satisfy(page_id);
        let page = self.page(page_id);
        if page.held {
            if !page.queue.is_empty() || page.give_up_for.is_some() {
                self.contended.insert(page_id);
            }
            return;
        }
        if page.invalidating > 0 {
            return;
        }
        self.give_copy_up(page_id);
        self.serve(page_id);
    }

    fn satisfy(&mut self, page_id: PageId) {
        let page = self.page(page_id);
        match (page.wanted, page.owner) {
            (Access::None, _) => {}
            (wanted, true) => {
                if page.copyset.is_empty() {
                    // Nobody else has it: a store after this load need not fault.
                    self.grant(page_id, Access::Write);
                } else if wanted == Access::Write {
                    self.invalidate_copies(page_id);
                } else {
                    self.grant(page_id, Access::Read);
                }
            }
            (wanted, false) => {
                let access = page.access;
                if access > Access::None && page.waiters.iter().any(|(_, wanted)| *wanted <= access)
                    || access >= wanted
                {
                    self.grant(page_id, access);
                }
                self.ask(page_id);
            }
        }
    }

    /// Lets threads here do as much, and those that waited for no more go on.
    fn grant(&mut self, page_id: PageId, access: Access) {
        self.protect(page_id, access);
        let page = self.page(page_id);
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
            self.operating.push_back((waiter, page_id, offset));
            self.out.push(Effect::Atomic { page: page_id, offset, operation });
        }
        if must_hold {
            self.out.push(Effect::Hold { page: page_id });
        }
        for (waiter, _) in served {
            self.out.wake(waiter, Outcome::Done);
        }
    }

    fn ask(&mut self, page_id: PageId) {
        let manager = self.locate(page_id).home;
        let me = self.me;
        let page = self.page(page_id);
        if page.asked > Access::None {
            return;
        }
        page.asked = page.wanted;
        match page.wanted {
            Access::None => {}
            Access::Read => {
                let to = if page.hint == me { manager } else { page.hint };
                self.out.send(to, &Message::CopyRequest { page: page_id, requester: me });
            }
            Access::Write => self.out.send(manager, &Message::OwnershipRequest { page: page_id }),
        }
    }

    /// The owner's: nobody may read what is about to change.
    fn invalidate_copies(&mut self, page_id: PageId) {
        let page = self.page(page_id);
        let copyset = std::mem::take(&mut page.copyset);
        page.invalidating = copyset.len();
        for reader in copyset {
            self.out.send(reader, &Message::InvalidateCopy { page: page_id });
        }
    }
}

/// What others want of a page (Li and Hudak's read and write servers).
impl Sc {
    /// The copy goes, if somebody asked for that and it has come.
    fn give_copy_up(&mut self, page_id: PageId) {
        let page = self.page(page_id);
        let is_on_its_way = page.access == Access::None;
        if is_on_its_way {
            return;
        }
        if let Some(owner) = page.give_up_for.take() {
            self.page(page_id).access = Access::None;
            let span = self.locate(page_id).span();
            self.out.push(Effect::Invalidate { span, pages: 1 });
            self.out.send(owner, &Message::CopyInvalidated { page: page_id });
        }
    }

    /// The owner's: those who wait for the page here, in the order in which they came.
    fn serve(&mut self, page_id: PageId) {
        while self.page(page_id).owner
            && let Some((node, wanted)) = self.page(page_id).queue.pop_front()
        {
            if self.page(page_id).access == Access::Write || wanted == Access::Write {
                let left = if wanted == Access::Write { Access::None } else { Access::Read };
                self.protect(page_id, left);
            }
            if wanted == Access::Write {
                self.hand_over(page_id, node);
            } else {
                self.page(page_id).copyset.insert(node);
                self.send_content(page_id, node);
            }
        }
        if self.page(page_id).asked < Access::Write && !self.page(page_id).owner {
            // They came by a hint, behind the one that has got the page.
            let manager = self.locate(page_id).home;
            for (requester, _) in std::mem::take(&mut self.page(page_id).queue) {
                self.out.send(manager, &Message::CopyRequest { page: page_id, requester });
            }
        }
    }

    fn hand_over(&mut self, page_id: PageId, to: NodeId) {
        if !self.page(page_id).copyset.contains(&to) {
            self.send_content(page_id, to);
        }
        let page = self.page(page_id);
        (page.owner, page.hint) = (false, to);
        let mut copyset = std::mem::take(&mut page.copyset);
        copyset.remove(&to);
        let turns = std::mem::take(&mut page.turns).into_iter().collect();
        let copyset = copyset.into_iter().collect();
        self.out.send(to, &Message::Ownership { page: page_id, copyset, turns });
    }

    fn send_content(&mut self, page_id: PageId, to: NodeId) {
        let page_bytes = self.page_bytes(page_id);
        let pages = vec![PageToSend { page: page_id, page_bytes, version: Default::default() }];
        self.out.push(Effect::SendPages { to, pages });
    }

    /// The manager's, or that of a node that the requester takes for the owner.
    fn handle_copy_request(&mut self, page_id: PageId, requester: NodeId) -> Result<(), ProtocolError> {
        let manager = self.locate(page_id).home;
        let me = self.me;
        let page = self.page(page_id);
        if page.owner || page.asked == Access::Write {
            page.queue.push_back((requester, Access::Read));
            self.settle(page_id);
            return Ok(());
        }
        let to = if manager == me { page.tail } else { manager };
        if to == me {
            return Err(unexpected(
                "the owner where the manager is the last to have asked",
                "none".to_owned(),
            ));
        }
        self.out.send(to, &Message::CopyRequest { page: page_id, requester });
        Ok(())
    }

    fn handle_ownership_request(&mut self, page_id: PageId, from: NodeId) -> Result<(), ProtocolError> {
        if self.locate(page_id).home != self.me {
            return Err(unexpected("requests for the pages managed here", format!("one for {page_id}")));
        }
        let last = std::mem::replace(&mut self.page(page_id).tail, from);
        if last == from {
            return Err(unexpected("another node than the last", format!("node {from} for {page_id}")));
        }
        self.out.send(last, &Message::OwnershipForward { page: page_id, requester: from });
        Ok(())
    }

    fn handle_ownership_forward(&mut self, page_id: PageId, requester: NodeId) -> Result<(), ProtocolError> {
        let page = self.page(page_id);
        if !page.owner && page.asked != Access::Write {
            return Err(unexpected("requests for pages that are here", format!("one for {page_id}")));
        }
        page.queue.push_back((requester, Access::Write));
        self.settle(page_id);
        Ok(())
    }

    fn handle_pages_reply(
        &mut self,
        from: NodeId,
        copies: &[PageCopy],
        content: &[u8],
    ) -> Result<(), ProtocolError> {
        let mut at = 0;
        for PageCopy { page: page_id, is_zero, .. } in copies {
            let located = self.homes.locate(*page_id).filter(|located| located.page == *page_id);
            let asked = located.map_or(Access::None, |_| self.page(*page_id).asked);
            let page_bytes =
                located.map_or(0, |located| located.granules as usize * self.limits.granule_bytes as usize);
            let end = if *is_zero { at } else { at + page_bytes };
            if asked == Access::None || end > content.len() {
                return Err(unexpected("whole pages that were asked for", format!("{page_id}")));
            }
            let new = if *is_zero { NewContent::Zero } else { NewContent::Received(at..end) };
            at = end;
            let pages = self.locate(*page_id).span();
            let hinted = u32::from(self.page(*page_id).wanted == Access::None);
            let (fetched, prefetched) = (1 - hinted, hinted);
            self.out.push(Effect::Install { pages, content: new, merge: false, fetched, prefetched });
            if asked == Access::Read {
                let page = self.page(*page_id);
                (page.asked, page.hint) = (Access::None, from);
                self.grant(*page_id, Access::Read);
                self.settle(*page_id);
            }
        }
        Ok(())
    }

    fn handle_ownership(
        &mut self,
        page_id: PageId,
        copyset: &[NodeId],
        turns: &[(u32, u64)],
    ) -> Result<(), ProtocolError> {
        let page = self.page(page_id);
        if page.asked != Access::Write || page.owner {
            return Err(unexpected("a page that was asked for", format!("{page_id}")));
        }
        (page.asked, page.owner) = (Access::None, true);
        page.copyset = copyset.iter().copied().collect();
        page.turns = turns.iter().copied().collect();
        self.settle(page_id);
        Ok(())
    }

    fn handle_invalidate(&mut self, from: NodeId, page_id: PageId) -> Result<(), ProtocolError> {
        let page = self.page(page_id);
        let has_copy = page.access == Access::Read || page.asked == Access::Read;
        if page.owner || !has_copy || page.give_up_for.is_some() {
            return Err(unexpected("an invalidation of a copy", format!("one of {page_id}")));
        }
        (page.give_up_for, page.hint) = (Some(from), from);
        self.settle(page_id);
        Ok(())
    }

    fn handle_invalidated(&mut self, page_id: PageId) -> Result<(), ProtocolError> {
        let page = self.page(page_id);
        page.invalidating = page
            .invalidating
            .checked_sub(1)
            .ok_or_else(|| unexpected("an answer only to an invalidation", format!("one for {page_id}")))?;
        self.settle(page_id);
        Ok(())
    }
}

/// Locks, condition variables and collectives, which make nothing known.
impl Sc {
    fn nothing_new(&self) -> Knowledge {
        let timestamp = self.timestamp.clone();
        Knowledge { timestamp, notices: Vec::new(), epoch: self.collectives_done, beyond_arrival: false }
    }

    fn carry_out(&mut self, actions: impl IntoIterator<Item = LockAction>) {
        for action in actions {
            match action {
                LockAction::Send { to, message } => self.out.send(to, &message),
                LockAction::Grant { to, lock, turn, .. } => {
                    let knowledge = self.nothing_new();
                    self.out.send(to, &Message::LockGrant { lock, turn, knowledge });
                }
                LockAction::Acquired { waiter, lock, turn } => {
                    self.tell(Fact::Acquired { waiter, lock, turn });
                    self.out.wake(waiter, Outcome::Done);
                }
                LockAction::Refused(waiter) => self.out.wake(waiter, Outcome::Refused),
            }
        }
    }

    fn acquire(&mut self, lock: LockId, waiter: Waiter) {
        match self.locks.acquire(lock, waiter, &self.timestamp) {
            Ok(actions) => self.carry_out(actions),
            Err(misuse) => self.out.wake(waiter, Outcome::Misuse(misuse)),
        }
    }

    fn release(&mut self, lock: LockId) {
        if let Some((waiter, turn)) = self.locks.hold_of(lock) {
            self.tell(Fact::Released { waiter, lock, turn });
        }
        let actions = self.locks.release(lock, &self.timestamp);
        self.carry_out(actions);
    }

    fn synchronise(&mut self, sync: Sync, waiter: Waiter) {
        let nodes = self.limits.nodes;
        match sync {
            Sync::Acquire(lock) => self.acquire(lock, waiter),
            Sync::TryAcquire(lock) => {
                let action = self.locks.try_acquire(lock, waiter, &self.timestamp);
                self.carry_out([action]);
            }
            Sync::Release(lock) | Sync::Wait(_, lock) if !self.locks.is_held_by(lock, waiter) => {
                self.out.wake(waiter, Outcome::Misuse(Misuse::NotHeld(lock)));
            }
            Sync::Release(lock) => {
                self.release(lock);
                self.out.wake(waiter, Outcome::Done);
            }
            Sync::Wait(cond, lock) => {
                self.conds.begin_wait(waiter, lock);
                self.out.send(cond.manager(nodes), &Message::CondWait { cond, ticket: waiter.0 });
            }
            Sync::Signal(cond) | Sync::Broadcast(cond) => {
                let all = matches!(sync, Sync::Broadcast(_));
                self.out.send(cond.manager(nodes), &Message::CondSignal { cond, all });
                self.out.wake(waiter, Outcome::Done);
            }
            Sync::Collective(collective) => self.gather(collective, waiter),
            Sync::Publish(_) => self.out.wake(waiter, Outcome::Done),
        }
    }

    fn gather(&mut self, collective: Collective, waiter: Waiter) {
        match self.team.gather(collective, waiter, self.locks.any_held()) {
            Gathered::Waiting => {}
            Gathered::All => {
                let (epoch, knowledge) = (self.collectives_done, self.nothing_new());
                let arrival = Arrival { collective, caller: self.me, least: None, knowledge };
                let arrived = self.handle_arrival(self.me, epoch, arrival);
                arrived.expect("a node arrives once at the collective after those that it has completed");
            }
            Gathered::Refused(misuse) => self.out.wake(waiter, Outcome::Misuse(misuse)),
            Gathered::Mismatch(sentence) => self.out.end_job(sentence),
        }
    }

    fn handle_arrival(&mut self, from: NodeId, epoch: u64, arrival: Arrival) -> Result<(), ProtocolError> {
        if let Some((collective, news)) = self.meeting.handle_arrival(from, epoch, arrival, &mut self.out)? {
            self.handle_departure(self.me, epoch, collective, &news)?;
        }
        Ok(())
    }

    fn handle_departure(
        &mut self,
        from: NodeId,
        epoch: u64,
        collective: Collective,
        news: &Knowledge,
    ) -> Result<(), ProtocolError> {
        self.meeting.handle_departure(from, epoch, collective, news, &mut self.out)?;
        self.collectives_done += 1;
        for waiter in self.team.disperse() {
            self.tell(Fact::Met { waiter, epoch });
            self.out.wake(waiter, Outcome::Collective(collective));
        }
        self.out.keep(std::mem::take(&mut self.early));
        Ok(())
    }

    /// Whether the message is about a page that is not allocated here yet.
    fn comes_ahead(&self, message: &Message<'_>) -> bool {
        match message {
            Message::CopyRequest { page, .. }
            | Message::OwnershipRequest { page }
            | Message::OwnershipForward { page, .. }
            | Message::Ownership { page, .. }
            | Message::InvalidateCopy { page }
            | Message::CopyInvalidated { page } => self.homes.locate(*page).is_none(),
            _ => false,
        }
    }

    fn dispatch(&mut self, from: NodeId, message: &Message<'_>) -> Result<(), ProtocolError> {
        if self.comes_ahead(message) {
            self.ahead.push((from, message.encode()));
            return Ok(());
        }
        if let Some(actions) = self.locks.handle_message(from, message, &self.timestamp)? {
            self.carry_out(actions);
            return Ok(());
        }
        if let Some(action) = self.conds.handle_message(from, message, &mut self.out)? {
            match action {
                CondAction::Nothing => {}
                CondAction::Release(lock) => self.release(lock),
                CondAction::Acquire(lock, waiter) => self.acquire(lock, waiter),
            }
            return Ok(());
        }
        match message {
            Message::CopyRequest { page, requester } => self.handle_copy_request(*page, *requester),
            Message::OwnershipRequest { page } => self.handle_ownership_request(*page, from),
            Message::OwnershipForward { page, requester } => self.handle_ownership_forward(*page, *requester),
            Message::PagesReply { copies, content } => self.handle_pages_reply(from, copies, content),
            Message::Ownership { page, copyset, turns } => self.handle_ownership(*page, copyset, turns),
            Message::InvalidateCopy { page } => self.handle_invalidate(from, *page),
            Message::CopyInvalidated { page } => self.handle_invalidated(*page),
            Message::LockGrant { knowledge, .. } if knowledge.epoch > self.collectives_done => {
                self.early.push((from, message.encode()));
                Ok(())
            }
            Message::LockGrant { lock, turn, .. } => {
                let action = self.locks.handle_grant(*lock, *turn)?;
                self.carry_out([action]);
                Ok(())
            }
            Message::Arrive { epoch, collective, caller, least, knowledge } => {
                let (least, knowledge) = (least.clone(), knowledge.clone());
                let arrival = Arrival { collective: *collective, caller: *caller, least, knowledge };
                self.handle_arrival(from, *epoch, arrival)
            }
            Message::Depart { epoch, collective, knowledge } => {
                self.handle_departure(from, *epoch, *collective, knowledge)
            }
            _ => Err(unexpected("a message of sequential consistency", "another".to_owned())),
        }
    }
}

impl Engine for Sc {
    fn add_region(&mut self, pages: PageRange, page_size: PageSize, placement: Placement) {
        let granules_per_page = page_size.bytes() as u64 / u64::from(self.limits.granule_bytes);
        self.homes.add(pages, granules_per_page, placement);
        self.out.keep(std::mem::take(&mut self.ahead));
    }

    fn set_team(&mut self, threads: u32) {
        self.team.set_size(threads);
    }

    fn home_of(&self, page: PageId) -> Option<NodeId> {
        self.homes.home_of(page)
    }

    fn seen(&self) -> (&VectorTimestamp, u64) {
        (&self.timestamp, self.collectives_done)
    }

    fn keeps_back(&self, _: NodeId) -> bool {
        false
    }

    fn locks_held(&self) -> Vec<(LockId, Waiter)> {
        self.locks.held().collect()
    }

    fn handle_fault(&mut self, page: PageId, wanted: Access, waiter: Option<Waiter>) {
        self.fault(page, wanted, waiter);
    }

    fn handle_sync(&mut self, sync: Sync, waiter: Waiter) {
        self.synchronise(sync, waiter);
    }

    fn handle_atomic(&mut self, page: PageId, offset: u32, operation: AtomicOperation, waiter: Waiter) {
        self.operate(page, offset, operation, waiter);
    }

    fn handle_prefetch(&mut self, pages: PageRange) {
        let located: Vec<PageId> =
            self.homes.pages_in(pages).take(HINTED_PAGES_MAX).map(|located| located.page).collect();
        let me = self.me;
        for page_id in located {
            let page = self.page(page_id);
            if page.owner || page.access > Access::None || page.asked > Access::None {
                continue;
            }
            page.asked = Access::Read;
            let to = if page.hint == me { self.locate(page_id).home } else { page.hint };
            self.out.send(to, &Message::CopyRequest { page: page_id, requester: me });
        }
    }

    fn handle_message(&mut self, from: NodeId, message: &Message<'_>) -> Result<(), ProtocolError> {
        self.dispatch(from, message)
    }

    fn handle_done(&mut self, done: Done) {
        match done {
            Done::Atomic { outcome } => {
                let (waiter, page, offset) =
                    self.operating.pop_front().expect("every atomic answer has its effect");
                if self.tells {
                    let turns = self.page(page).turns.entry(offset).or_default();
                    let turn = std::mem::replace(turns, *turns + 1);
                    self.tell(Fact::Atomic { waiter, page, offset, turn, outcome });
                }
                self.out.wake(waiter, Outcome::Atomic(outcome));
            }
            other => unreachable!("nobody asked for {other:?}"),
        }
    }

    fn handle_held(&mut self, page: PageId) {
        self.page(page).held = false;
        self.contended.remove(page);
        self.settle(page);
    }

    fn waits_for_holds(&self) -> bool {
        !self.contended.is_empty()
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        self.deliver_loopback();
        self.out.poll()
    }
}

fn unexpected(expected: &'static str, got: String) -> ProtocolError {
    ProtocolError::Unexpected { expected, got }
}
