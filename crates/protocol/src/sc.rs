//! Sequential consistency: one writer or many readers of a page, and invalidation.
//!
//! Read first: Li, Hudak, *Memory Coherence in Shared Virtual Memory Systems*, ACM TOCS 7(4), 1989: its
//! sections on the fixed distributed manager and on the improved manager, which gives the copyset to the
//! owner. For retention: Fleisch, Popek, *Mirage: A Coherent Distributed Shared Memory Design*, SOSP 1989
//! (its time window Δ).
//!
//! Tests: `check/tests/all/sc.rs`, and there `explore.rs` and `golden.rs`.
//!
//! Every page has one **owner**, whose copy is the page. The owner gives **copies** to readers and keeps
//! their **copyset**. A node that wants to write becomes the owner and invalidates all copies before its
//! store, so that each change shows everywhere at once (Barli, Watanabe, Sakai, Tanaka, section 2.3, of SC).
//! So loads and stores of all nodes have one order that agrees with each thread's program order (Lamport
//! 1979), for any program, with or without data races. Synchronisation transfers no knowledge: locks and
//! barriers carry no notices.
//!
//! The page's home is its **manager**, a fixed node that knows only which node last requested ownership. It
//! forwards a request to that node, so that the nodes that want to write form a chain, in which each hands
//! the page to the next. A request that reaches a node before it has become the owner waits there.
//! ```text
//!   reader ──CopiesRequest──▶ manager (or hint) ──CopiesRequest──▶ owner
//!                                                             owner ──PagesReply──▶ reader
//!   writer ──OwnershipRequest──▶ manager ──OwnershipForward──▶ owner ──[PagesReply,] Ownership──▶ writer
//!                                       writer ──InvalidateCopy──▶ copyset ──CopyInvalidated──▶ writer
//! ```
//! Messages name sets of pages: those that one event of the sender is about (`sc/sending.rs`). The states of
//! a page on one node:
//!
//! | state | `owner` | access | load faults | store faults |
//! |---|---|---|---|---|
//! | absent | no | None | ask for a copy → copy | ask for the page → owner, writing |
//! | copy | no | Read | – | the same |
//! | owner, fresh | yes | None | → owner, writing | the same |
//! | owner, followed | yes | Read | – | → owner, writing |
//! | owner, shared | yes | Read (None, if no thread here has touched it) | – | → owner, invalidating |
//! | owner, invalidating | yes | Read or None | wait | wait for the copies to go → owner, writing |
//! | owner, writing | yes | Write | – | – |
//! | owner, giving | yes | Read or None | wait | wait: the page goes when a release is done (`sc/order.rs`) |
//!
//! A page that is brought ahead counts as one on which a thread has faulted. A copy that is invalidated
//! becomes *absent*; with pages of other protocols, the node confirms that only after a release
//! (`sc/order.rs`). A `CopiesRequest` takes *owner, writing* to *owner, shared*; an `OwnershipForward` takes
//! any owner to *absent*.
//!
//! **Why an invalidation that overtakes the copy is harmless.** The copyset of an owner names nodes to which
//! that owner itself has sent a copy, because becoming the owner empties it. So a node that must give up a
//! copy that it has not received yet knows that the copy is on its way. It confirms only when the copy has
//! come and its threads have used it.
//!
//! **Pages that were under another protocol** (`consistency/converting.rs`) begin at their homes. If the
//! host notes stores to such a page instead of having them fault, a copy could be written unnoticed. So none
//! is given: a load asks for the page itself.
//!
//! **Runs.** Where a thread faults on page after page, those that follow are requested with them
//! (`sc/runs.rs`), as if threads had faulted on them: `wanted` is set, and nobody waits. The table holds for
//! them, too.
//!
//! **Retention.** A page that goes back and forth between nodes might leave each before the thread that
//! faulted has touched it. A page that a thread waited for therefore stays, whatever others request, until
//! the host reports that a moment has passed ([`Effect::Retain`]). So do pages that have come with it, except
//! those that others want when they come.
//!
//! **Pages that migrate.** Where this node has often stored to a copy that a load had requested, loads
//! request the page itself (`sc/migrating.rs`).
//!
//! **Copies that are lent.** Pages that nodes are about to read may travel with the arrival at a collective,
//! or with the departure from it, until the next arrival (`sc/lending.rs`, which also tells what *followed*
//! means).
//!
//! Deviations from the paper:
//! - Requests for copies go to the last known place of the page: to the node that sent an invalidation, gave
//!   the copy or got the page. If that node is not the owner, and will not be, it forwards the request to the
//!   manager.
//! - An owner invalidates its copies without the manager, because no request can come between.
//! - The owner carries out atomic operations: a node first gets the page, as for a store.

mod lending;
mod migrating;
mod order;
mod runs;
mod sending;
mod state;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hiroba_base::{Access, NodeId, PageId, PageRange, PageSet};
use hiroba_wire::{AtomicOperation, AtomicOutcome, Message, PageCopy, PageOwned};
use rustc_hash::FxHashMap;

use self::lending::{Followers, Lending, Vain};
use self::migrating::Migration;
use self::order::{Grant, Order};
use self::runs::{Habit, Kind, Runs};
use self::sending::{Sending, Word};
pub use self::state::State;
use crate::coherence::{Coherence, Site, WordOperation};
use crate::home::Located;
use crate::page_table::PageTable;
use crate::thread::wanted_beyond;
use crate::words::Operated;
use crate::{Done, Effect, Expected, NewContent, Outcome, ProtocolError, Waiter, unexpected};

/// Sequential consistency on one node.
#[derive(Debug, Default)]
pub struct Sc {
    pages: PageTable<Page>,
    /// Retained pages that another node waits for.
    contended: PageSet,
    /// The pages that are retained for the same moment as the page that the host knows of.
    retained_with: FxHashMap<PageId, Vec<PageId>>,
    /// Atomic operations that the host is carrying out, in order: the waiting thread and the word's offset.
    operating: VecDeque<(Waiter, u32)>,
    order: Order,
    lending: Lending,
    runs: Runs,
    sending: Sending,
}

#[derive(Debug)]
struct Page {
    access: Access,
    owner: bool,
    /// Owner: the nodes that have copies.
    copyset: BTreeSet<NodeId>,
    /// Owner: the nodes that have copies until they come to the next collective (`sc/lending.rs`).
    lent: BTreeSet<NodeId>,
    /// Owner: how often it must not be lent.
    vain: Vain,
    /// Owner: the nodes that had requested copies when it was stored to, and how often it is lent to them.
    followers: Followers,
    /// Manager: the node that last requested ownership.
    tail: NodeId,
    /// The node that may be the owner.
    hint: NodeId,
    /// The access that this node has requested and not got: `Read` for a copy, `Write` for the page.
    asked: Access,
    /// The highest access that threads here wait for, including those that faulted without a waiter.
    wanted: Access,
    waiters: Vec<(Waiter, Access)>,
    /// Atomic operations that wait for the page: at most one for each thread.
    operations: VecDeque<(Waiter, u32, AtomicOperation)>,
    /// Owner: the number of copies that must still be given up before a thread here may write.
    invalidating: usize,
    /// Other nodes that wait for the page here, at most one entry for each: for a copy (`Read`), or for the
    /// page.
    queue: VecDeque<(NodeId, Access)>,
    /// The node that wants this node's copy to be given up.
    give_up_for: Option<NodeId>,
    /// True if threads here have not had time to use the access that they waited for.
    retained: bool,
    /// Owner, when a record is kept: the number of operations on each atomic word, by offset.
    turns: BTreeMap<u32, u64>,
    /// True if stores to the page cannot be made to fault, so that no copies are given: the page was under a
    /// protocol whose stores are noted.
    is_undivided: bool,
    /// True if the page was under another protocol.
    is_converted: bool,
    /// True if no thread has faulted for what is wanted.
    is_ahead: bool,
    migration: Migration,
    /// What is known of the page's use by loads, and by stores.
    habits: [Habit; 2],
    /// True if the run that last reached the page went downwards.
    is_downwards: bool,
    /// The number of faults of this node when one on the page, or a run, last reached it; 0 before.
    reached_at: u64,
}

impl Page {
    fn new(me: NodeId, manager: NodeId) -> Page {
        Page {
            access: Access::None,
            owner: me == manager,
            copyset: BTreeSet::new(),
            lent: BTreeSet::new(),
            vain: Vain::default(),
            followers: Followers::default(),
            tail: manager,
            hint: manager,
            asked: Access::None,
            wanted: Access::None,
            waiters: Vec::new(),
            operations: VecDeque::new(),
            invalidating: 0,
            queue: VecDeque::new(),
            give_up_for: None,
            retained: false,
            turns: BTreeMap::new(),
            is_undivided: false,
            is_converted: false,
            is_ahead: false,
            migration: Migration::default(),
            habits: Default::default(),
            is_downwards: false,
            reached_at: 0,
        }
    }

    /// Notes a fault. Returns the access that is requested for it.
    fn wanted_of_migrating(&mut self, wanted: Access) -> Access {
        match (wanted, self.access) {
            _ if self.owner => {}
            (Access::Read, Access::None) if self.asked == Access::None && self.migration.note_load() => {
                return Access::Write;
            }
            (Access::Write, Access::Read) => self.migration.note_store(),
            _ => {}
        }
        wanted
    }

    /// Returns true if other nodes have copies.
    fn has_copies(&self) -> bool {
        !self.copyset.is_empty() || !self.lent.is_empty()
    }
}

impl Sc {
    /// Returns the protocol with no pages allocated.
    pub fn new() -> Sc {
        Sc::default()
    }

    fn page(&mut self, site: &mut Site, page_id: PageId) -> &mut Page {
        let (me, manager) = (site.me, site.locate(page_id).home);
        self.pages.or_insert_with(page_id, || Page::new(me, manager))
    }

    fn protect(&mut self, site: &mut Site, page_id: PageId, access: Access) {
        self.page(site, page_id).access = access;
        site.protect(page_id, access);
    }
}

/// Requests of this node's threads (Li and Hudak's read and write fault handlers).
impl Sc {
    /// Handles a fault: Li and Hudak's *read fault handler* and *write fault handler*. Absent → copy, any →
    /// owner, writing.
    fn handle_fault(&mut self, site: &mut Site, located: Located, wanted: Access, waiter: Option<Waiter>) {
        let (page_id, prefetches) = (located.page, site.prefetches);
        let page = self.page(site, page_id);
        let wanted = if page.is_undivided { Access::Write } else { wanted_beyond(page.access, wanted) };
        let wanted = page.wanted_of_migrating(wanted);
        let kind = Kind::of(page, wanted).filter(|_| prefetches && !page.is_undivided);
        let comes_ahead = std::mem::take(&mut page.is_ahead);
        page.wanted = page.wanted.max(wanted);
        debug_assert!(
            page.waiters.iter().all(|(other, _)| Some(*other) != waiter),
            "{page_id}: a thread waits for one fault at a time"
        );
        page.waiters.extend(waiter.map(|waiter| (waiter, wanted)));
        if let Some(kind) = kind.filter(|_| comes_ahead) {
            page.note_used(kind);
        }
        self.settle(site, page_id);
        if let Some(kind) = kind.filter(|_| !comes_ahead) {
            self.follow(site, located, kind);
        }
    }

    /// Begins an operation, which only the owner may carry out: like Li and Hudak's *write fault handler*.
    /// Any → owner, writing.
    fn begin_operation(&mut self, site: &mut Site, asked: WordOperation) {
        let WordOperation { page: page_id, offset, operation, waiter } = asked;
        let page = self.page(site, page_id);
        debug_assert!(
            page.operations.iter().all(|(other, ..)| *other != waiter),
            "{page_id}: a thread waits for one operation at a time"
        );
        page.operations.push_back((waiter, offset, operation));
        (page.wanted, page.is_ahead) = (Access::Write, false);
        self.settle(site, page_id);
    }

    /// Serves all that can be served of the page now: first threads here, then, when they have had time to
    /// use it, other nodes.
    fn settle(&mut self, site: &mut Site, page_id: PageId) {
        if self.page(site, page_id).invalidating > 0 || self.order.is_going(page_id) {
            return;
        }
        self.satisfy(site, page_id);
        let page = self.page(site, page_id);
        if page.retained {
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

    /// Continues Li and Hudak's *fault handlers* as far as possible: grants the access that this node has,
    /// and requests the rest. An owner first invalidates the copies that it has given. The row that follows
    /// is that of the table.
    fn satisfy(&mut self, site: &mut Site, page_id: PageId) {
        let page = self.page(site, page_id);
        match (page.wanted, page.owner) {
            (Access::None, _) => {}
            (wanted, true) => {
                if !page.has_copies() && wanted.max(page.access) < Access::Write && page.followers.are_there()
                {
                    // A store shall fault.
                    self.grant(site, page_id, Access::Read);
                } else if !page.has_copies() {
                    if page.followers.are_there() {
                        self.note_store(site, page_id);
                    }
                    // No other node has a copy, so a store after this load need not fault.
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

    /// Completes Li and Hudak's *fault handlers*: grants the access to threads here, and wakes those that
    /// waited for no more. The page then stays for a moment (the time window Δ of Fleisch and Popek).
    fn grant(&mut self, site: &mut Site, page_id: PageId, access: Access) {
        assert!(access > Access::None, "{page_id}: a grant lets threads do something");
        let page = self.page(site, page_id);
        let may_write = page.owner && !page.has_copies() && page.invalidating == 0;
        assert!(access < Access::Write || may_write, "{page_id}: who writes has the only copy");
        self.protect(site, page_id, access);
        let page = self.page(site, page_id);
        let (served, waiting) =
            std::mem::take(&mut page.waiters).into_iter().partition(|(_, wanted)| *wanted <= access);
        page.waiters = waiting;
        let served: Vec<(Waiter, Access)> = served;
        if page.wanted <= access {
            page.wanted = Access::None;
        }
        let is_ahead = std::mem::take(&mut page.is_ahead);
        let is_contended = is_ahead && (page.give_up_for.is_some() || !page.queue.is_empty());
        if is_contended {
            page.habits[usize::from(access == Access::Write)].note_contended();
        }
        // Nobody here waits for what others want.
        let must_retain = !is_contended && !std::mem::replace(&mut page.retained, true);
        let operations =
            if access == Access::Write { std::mem::take(&mut page.operations) } else { VecDeque::new() };
        for (waiter, offset, operation) in operations {
            self.operating.push_back((waiter, offset));
            site.out.push(Effect::Atomic { page: page_id, offset, operation });
        }
        if must_retain {
            self.sending.retain(page_id);
        }
        for (waiter, _) in served {
            site.out.wake(waiter, Outcome::Done);
        }
    }

    /// Sends a request, as Li and Hudak's *fault handlers* do: for ownership to the page's manager, a fixed
    /// node (their *fixed distributed manager algorithm*); for a copy to the presumed owner.
    fn ask(&mut self, site: &mut Site, page_id: PageId) {
        let manager = site.locate(page_id).home;
        let me = site.me;
        let page = self.page(site, page_id);
        if page.asked > Access::None {
            return;
        }
        assert!(!page.owner, "{page_id}: its owner has nothing to ask for");
        assert!(
            page.wanted == Access::None || page.wanted > page.access,
            "{page_id}: what threads may do already is not asked for"
        );
        page.asked = page.wanted;
        if self.lending.note_asked(page_id) {
            // The page comes with its content.
            self.protect(site, page_id, Access::None);
        }
        let page = self.page(site, page_id);
        match page.wanted {
            Access::None => {}
            Access::Read => {
                let to = if page.hint == me { manager } else { page.hint };
                self.sending.word(page_id, to, Word::CopiesRequest { requester: me });
            }
            Access::Write => self.sending.word(page_id, manager, Word::OwnershipRequest),
        }
    }

    /// Invalidates the copies before the owner's store (Li and Hudak's *invalidate*). Owner, shared → owner,
    /// invalidating.
    fn invalidate_copies(&mut self, site: &mut Site, page_id: PageId) {
        let page = self.page(site, page_id);
        assert!(page.owner, "{page_id}: only its owner invalidates copies");
        assert_eq!(page.invalidating, 0, "{page_id}: one invalidation at a time");
        assert!(page.access < Access::Write, "{page_id}: nobody writes while others have copies");
        let copyset = std::mem::take(&mut page.copyset);
        page.vain.note(!page.lent.is_empty());
        if !copyset.is_empty() {
            page.followers = Followers::of(copyset.clone());
            self.note_store(site, page_id);
        }
        let page = self.page(site, page_id);
        let lent = std::mem::take(&mut page.lent);
        page.invalidating = copyset.len() + lent.len();
        assert!(page.invalidating > 0, "{page_id}: there are copies to be invalidated");
        assert!(copyset.is_disjoint(&lent), "{page_id}: what was lent has not been requested");
        for (readers, is_lent) in [(copyset, false), (lent, true)] {
            assert!(!readers.contains(&site.me), "{page_id}: an owner has given itself no copy");
            for reader in readers {
                self.sending.word(page_id, reader, Word::InvalidateCopy { is_lent });
            }
        }
    }
}

/// Requests of other nodes (Li and Hudak's read and write servers).
impl Sc {
    /// Gives up the copy and confirms that, as Li and Hudak's *invalidate server* does, if its owner
    /// requested that and the copy has come. Copy → absent.
    fn give_copy_up(&mut self, site: &mut Site, page_id: PageId) {
        let page = self.page(site, page_id);
        let is_on_its_way = page.access == Access::None;
        if is_on_its_way {
            return;
        }
        if let Some(owner) = page.give_up_for {
            assert!(!page.owner, "{page_id}: an owner has no copy to give up");
            page.migration.note_gone();
            page.access = Access::None;
            self.sending.give_copy_up(page_id);
            if self.order.is_kept() {
                self.sending.release_for(page_id, owner);
            } else {
                self.confirm(site, page_id);
            }
        }
    }

    /// Confirms that the copy was given up.
    fn confirm(&mut self, site: &mut Site, page_id: PageId) {
        let owner = self.page(site, page_id).give_up_for.take().expect("an owner has requested that");
        self.sending.word(page_id, owner, Word::CopyInvalidated);
    }

    /// Serves the nodes that wait for the page here in the order of their requests: the owner's part of Li
    /// and Hudak's *read server* and *write server*. Owner, writing → owner, shared by a copy; any owner →
    /// absent by the page itself.
    fn serve(&mut self, site: &mut Site, page_id: PageId) {
        let page = self.page(site, page_id);
        assert_eq!(page.invalidating, 0, "{page_id}: threads here come first");
        assert!(!page.retained, "{page_id}: a page that is retained goes nowhere");
        while self.page(site, page_id).owner
            && let Some((node, wanted)) = self.page(site, page_id).queue.front().copied()
        {
            if wanted == Access::Write && self.recall(site, page_id, node) {
                return;
            }
            self.page(site, page_id).queue.pop_front();
            if self.order.is_kept() {
                return self.give_behind_release(site, page_id, node, wanted);
            }
            self.lower_access(site, page_id, wanted);
            self.give(site, page_id, node, wanted);
        }
        if self.page(site, page_id).asked < Access::Write && !self.page(site, page_id).owner {
            // They came by a hint, after the node that has got the page.
            let manager = site.locate(page_id).home;
            for (requester, _) in std::mem::take(&mut self.page(site, page_id).queue) {
                self.sending.word(page_id, manager, Word::CopiesRequest { requester });
            }
        }
    }

    /// Lowers the access of threads here to what a node's request permits.
    fn lower_access(&mut self, site: &mut Site, page_id: PageId, wanted: Access) {
        let left = if wanted == Access::Write { Access::None } else { Access::Read };
        if self.page(site, page_id).access > left {
            self.page(site, page_id).access = left;
            self.sending.lower(page_id, left);
        }
    }

    /// Gives a node the page, or a copy.
    fn give(&mut self, site: &mut Site, page_id: PageId, to: NodeId, wanted: Access) {
        if wanted == Access::Write {
            self.hand_over(site, page_id, to);
        } else {
            let page = self.page(site, page_id);
            page.lent.remove(&to);
            page.copyset.insert(to);
            self.send_content(site, page_id, to);
        }
    }

    /// Hands the page and its copyset over (Li and Hudak's *improved centralized manager algorithm* leaves
    /// the copyset to the owner). Any owner → absent.
    fn hand_over(&mut self, site: &mut Site, page_id: PageId, to: NodeId) {
        let page = self.page(site, page_id);
        assert!(page.owner, "{page_id}: only its owner hands it over");
        assert_eq!(page.invalidating, 0, "{page_id}: copies that are to go go first");
        assert_eq!(page.access, Access::None, "{page_id}: nobody here may touch what goes");
        let may_wait = self.order.is_kept();
        let page = self.page(site, page_id);
        assert!(may_wait || page.operations.is_empty(), "{page_id}: operations come before it goes");
        assert_ne!(to, site.me, "{page_id}: it goes to another node");
        if !self.page(site, page_id).copyset.contains(&to) {
            self.send_content(site, page_id, to);
        }
        let page = self.page(site, page_id);
        let was_lent = page.lent.remove(&to);
        page.vain.note(was_lent);
        assert!(page.lent.is_empty(), "{page_id}: lent copies are given up before it goes");
        (page.owner, page.hint, page.followers) = (false, to, Followers::default());
        let mut copyset = std::mem::take(&mut page.copyset);
        copyset.remove(&to);
        let turns = std::mem::take(&mut page.turns).into_iter().collect();
        let copyset = copyset.into_iter().collect();
        self.sending.ownership(to, PageOwned { page: page_id, copyset, turns });
    }

    fn send_content(&mut self, site: &mut Site, page_id: PageId, to: NodeId) {
        let page = self.page(site, page_id);
        assert!(page.owner, "{page_id}: only its owner's copy is the page");
        assert!(page.access < Access::Write, "{page_id}: what is being written is not sent");
        self.sending.content(page_id, to);
    }

    /// Handles a request for a copy: Li and Hudak's *read server*, the manager's part or that of the presumed
    /// owner. Owner, writing → owner, shared.
    fn handle_copy_request(
        &mut self,
        site: &mut Site,
        page_id: PageId,
        requester: NodeId,
    ) -> Result<(), ProtocolError> {
        let manager = site.locate(page_id).home;
        let me = site.me;
        let page = self.page(site, page_id);
        if page.is_undivided {
            return Err(unexpected(Expected::RequestForOwnership, format!("one for a copy of {page_id}")));
        }
        if page.owner || page.asked == Access::Write {
            if requester == me {
                return Err(unexpected(Expected::RequestWithoutCopy, format!("this one's for {page_id}")));
            }
            page.queue.push_back((requester, Access::Read));
            self.settle(site, page_id);
            return Ok(());
        }
        let to = if manager == me { page.tail } else { manager };
        if to == me {
            return Err(unexpected(Expected::OwnerOfLastRequest, "none".to_owned()));
        }
        self.sending.word(page_id, to, Word::CopiesRequest { requester });
        Ok(())
    }

    /// Handles a request for ownership: the manager's part of Li and Hudak's *write server*. It names the
    /// next owner and forwards the request to the last one named.
    fn handle_ownership_request(
        &mut self,
        site: &mut Site,
        page_id: PageId,
        from: NodeId,
    ) -> Result<(), ProtocolError> {
        if site.locate(page_id).home != site.me {
            return Err(unexpected(Expected::RequestToManager, format!("one for {page_id}")));
        }
        let last = std::mem::replace(&mut self.page(site, page_id).tail, from);
        if last == from {
            return Err(unexpected(Expected::AnotherNode, format!("node {from} for {page_id}")));
        }
        self.sending.word(page_id, last, Word::OwnershipForward { requester: from });
        Ok(())
    }

    /// Handles a forwarded request: the owner's part of Li and Hudak's *write server*. Owner → absent.
    fn handle_ownership_forward(
        &mut self,
        site: &mut Site,
        page_id: PageId,
        requester: NodeId,
    ) -> Result<(), ProtocolError> {
        if requester == site.me {
            return Err(unexpected(Expected::AnotherNode, format!("this one for {page_id}")));
        }
        let page = self.page(site, page_id);
        if !page.owner && page.asked != Access::Write {
            return Err(unexpected(Expected::RequestToHolder, format!("one for {page_id}")));
        }
        page.queue.push_back((requester, Access::Write));
        self.settle(site, page_id);
        Ok(())
    }

    /// Handles the copy that has come, at the end of a *read fault handler*. Absent → copy.
    fn handle_pages_reply(
        &mut self,
        site: &mut Site,
        from: NodeId,
        copies: &[PageCopy],
        content: &[u8],
    ) -> Result<(), ProtocolError> {
        let mut offset = 0;
        for copy in copies {
            let page_id = &copy.page;
            let (located, found) = site.find_content(copy, &mut offset, content)?;
            let pages = located.span();
            let page = self.page(site, *page_id);
            let asked = page.asked;
            let new = found.map_or(NewContent::Zero, NewContent::Received);
            // Versions of this protocol's pages are empty, except for copies that are lent.
            if !copy.version.is_empty() {
                let is_of_next = copy.version.get(from) == site.collectives_done + 1;
                let is_absent = !page.owner && page.access == Access::None && asked == Access::None;
                let is_free = is_absent && is_of_next && !page.is_undivided && page.give_up_for.is_none();
                if is_free {
                    let (fetched, prefetched) = (0, 1);
                    site.out.push(Effect::Install { pages, content: new, merge: false, fetched, prefetched });
                }
                self.lending.note_coming(*page_id, from, is_free);
                continue;
            }
            if asked == Access::None {
                return Err(unexpected(Expected::RequestedPage, format!("{page_id}")));
            }
            let page = self.page(site, *page_id);
            let hinted = u32::from(page.wanted == Access::None || page.is_ahead);
            let (fetched, prefetched) = (1 - hinted, hinted);
            site.out.push(Effect::Install { pages, content: new, merge: false, fetched, prefetched });
            if asked == Access::Read {
                self.take(site, *page_id, from, Grant::Copy)?;
            }
        }
        Ok(())
    }

    /// Gives threads the copy that has come. Absent → copy.
    fn take_copy(&mut self, site: &mut Site, from: NodeId, page_id: PageId) {
        let page = self.page(site, page_id);
        (page.asked, page.hint) = (Access::None, from);
        self.lending.note_come(page_id);
        self.grant(site, page_id, Access::Read);
        self.settle(site, page_id);
    }

    /// Makes this node the owner with the received copyset, at the end of a *write fault handler*. Any →
    /// owner, fresh or invalidating.
    fn handle_ownership(
        &mut self,
        site: &mut Site,
        page_id: PageId,
        copyset: &[NodeId],
        turns: &[(u32, u64)],
    ) -> Result<(), ProtocolError> {
        if copyset.contains(&site.me) {
            return Err(unexpected(Expected::CopysetOfOthers, format!("one with this node of {page_id}")));
        }
        let page = self.page(site, page_id);
        // A node that must still give up a copy cannot get the page: its owner waits for the answer.
        if page.asked != Access::Write || page.owner || page.give_up_for.is_some() {
            return Err(unexpected(Expected::PageAskedFor, format!("{page_id}")));
        }
        assert!(page.copyset.is_empty(), "{page_id}: who is not the owner has given no copies");
        assert_eq!(page.invalidating, 0, "{page_id}: who is not the owner invalidates no copies");
        (page.asked, page.owner) = (Access::None, true);
        page.copyset = copyset.iter().copied().collect();
        page.turns = turns.iter().copied().collect();
        self.lending.note_come(page_id);
        self.settle(site, page_id);
        Ok(())
    }

    /// Handles an invalidation: Li and Hudak's *invalidate server*. Copy → absent.
    fn handle_invalidate(
        &mut self,
        site: &mut Site,
        from: NodeId,
        page_id: PageId,
        is_lent: bool,
    ) -> Result<(), ProtocolError> {
        let is_free = self.page(site, page_id).give_up_for.is_none();
        if is_lent && is_free && self.lending.was_returned(page_id, from) {
            self.confirm_returned(site, page_id, from);
            return Ok(());
        }
        self.lending.note_invalidated(page_id);
        let page = self.page(site, page_id);
        let has_copy = page.access == Access::Read || page.asked == Access::Read;
        if page.owner || !has_copy || page.give_up_for.is_some() {
            return Err(unexpected(Expected::InvalidationOfCopy, format!("one of {page_id}")));
        }
        (page.give_up_for, page.hint) = (Some(from), from);
        self.settle(site, page_id);
        Ok(())
    }

    /// Counts a copy that was given up; the last one takes owner, invalidating → owner, writing.
    fn handle_invalidated(&mut self, site: &mut Site, page_id: PageId) -> Result<(), ProtocolError> {
        let page = self.page(site, page_id);
        page.invalidating = page
            .invalidating
            .checked_sub(1)
            .ok_or_else(|| unexpected(Expected::AnswerToInvalidation, format!("one for {page_id}")))?;
        self.settle(site, page_id);
        Ok(())
    }
}

/// Atomic operations.
impl Sc {
    fn finish_operation(&mut self, site: &mut Site, page_id: PageId, outcome: AtomicOutcome) {
        let (waiter, offset) = self.operating.pop_front().expect("every atomic answer has its effect");
        assert!(self.page(site, page_id).owner, "{page_id}: the host answers before the page can go");
        let mut turn = 0;
        if site.tells() {
            let turns = self.page(site, page_id).turns.entry(offset).or_default();
            turn = std::mem::replace(turns, *turns + 1);
        }
        site.end_operation(waiter, Operated { page: page_id, offset, turn, outcome });
    }
}

/// Hints.
impl Sc {
    fn handle_hint(&mut self, site: &mut Site, ranges: &[PageRange]) {
        let me = site.me;
        for page_id in site.hinted(ranges) {
            let page = self.page(site, page_id);
            let is_of_use = !page.owner && page.access == Access::None && page.asked == Access::None;
            if !is_of_use || page.is_undivided {
                continue;
            }
            page.asked = Access::Read;
            self.lending.note_asked(page_id);
            let page = self.page(site, page_id);
            let to = if page.hint == me { site.locate(page_id).home } else { page.hint };
            self.sending.word(page_id, to, Word::CopiesRequest { requester: me });
        }
    }
}

impl Coherence for Sc {
    fn access(&self, page: PageId) -> Access {
        self.pages.get(&page).map_or(Access::None, |page| page.access)
    }

    fn known_pages(&self) -> Vec<PageId> {
        self.pages.pages().collect()
    }

    fn state(&self, site: &Site, page: Located) -> Option<Result<&'static str, String>> {
        let page_id = page.page;
        let page = self.pages.get(&page_id)?;
        let is_going = self.order.is_going(page_id);
        Some(State::of(page, site.me, is_going).map(State::name).ok_or_else(|| format!("{page:?}")))
    }

    fn fault(&mut self, site: &mut Site, page: Located, wanted: Access, waiter: Option<Waiter>) {
        self.handle_fault(site, page, wanted, waiter);
        self.end_event(site);
    }

    fn operate(&mut self, site: &mut Site, operation: WordOperation) {
        self.begin_operation(site, operation);
        self.end_event(site);
    }

    fn prefetch(&mut self, site: &mut Site, ranges: &[PageRange]) {
        self.handle_hint(site, ranges);
        self.end_event(site);
    }

    fn handle_message(
        &mut self,
        site: &mut Site,
        from: NodeId,
        message: &Message<'_>,
    ) -> Result<(), ProtocolError> {
        let handled = match message {
            Message::CopiesRequest { pages, requester } => {
                pages.iter().try_for_each(|page| self.handle_copy_request(site, page, *requester))
            }
            Message::OwnershipRequest { pages } => {
                pages.iter().try_for_each(|page| self.handle_ownership_request(site, page, from))
            }
            Message::OwnershipForward { pages, requester } => {
                pages.iter().try_for_each(|page| self.handle_ownership_forward(site, page, *requester))
            }
            Message::PagesReply { copies, content } => self.handle_pages_reply(site, from, copies, content),
            Message::Ownership { pages } => {
                pages.iter().try_for_each(|PageOwned { page, copyset, turns }| {
                    let (copyset, turns) = (copyset.clone(), turns.clone());
                    self.take(site, *page, from, Grant::Ownership { copyset, turns })
                })
            }
            Message::InvalidateCopy { pages, are_lent } => {
                pages.iter().try_for_each(|page| self.handle_invalidate(site, from, page, *are_lent))
            }
            Message::CopyInvalidated { pages } => {
                pages.iter().try_for_each(|page| self.take(site, page, from, Grant::Permission))
            }
            _ => Err(unexpected(Expected::SequentialMessage, "another".to_owned())),
        };
        self.end_event(site);
        handled
    }

    fn handle_done(&mut self, site: &mut Site, done: Done) {
        match done {
            Done::Atomic { page, outcome } => self.finish_operation(site, page, outcome),
            other => unreachable!("nobody asked for {other:?}"),
        }
    }

    fn handle_retained(&mut self, site: &mut Site, page: PageId) {
        let others = self.retained_with.remove(&page).unwrap_or_default();
        for page in std::iter::once(page).chain(others) {
            let was_retained = std::mem::take(&mut self.page(site, page).retained);
            assert!(was_retained, "{page}: the host tells of what it was asked to hold");
            self.contended.remove(page);
            self.settle(site, page);
        }
        self.end_event(site);
    }

    /// Returns true if order is kept. An acquirer then needs no information except when a page is given, and
    /// giving requests a release itself.
    fn leaves_intervals_open(&self) -> bool {
        self.order.is_kept()
    }

    fn keep_order_with_others(&mut self) {
        self.keep_order();
    }

    /// The home becomes the owner, fresh; the page is absent on other nodes.
    fn take_over(&mut self, site: &mut Site, page: PageId) {
        assert!(!self.pages.contains_key(&page), "{page}: nobody has asked for what is not here yet");
        let is_undivided = site.is_async(page);
        let page = self.page(site, page);
        (page.is_converted, page.is_undivided) = (true, is_undivided);
    }

    fn go_on_after_release(&mut self, site: &mut Site, page: PageId) {
        self.go_on(site, page);
        self.end_event(site);
    }

    fn handle_caught_up(&mut self, site: &mut Site) -> Result<(), ProtocolError> {
        let taken = self.take_waiting(site);
        self.end_event(site);
        taken
    }

    fn prepare_meeting(&mut self, site: &mut Site, along: &PageSet, up: &PageSet) {
        self.prepare_to_arrive(site, along, up);
        self.end_event(site);
    }

    fn lend_up(&mut self, site: &mut Site, above: NodeId) {
        self.arrive_with(site, above);
        self.end_event(site);
    }

    fn handle_others_here(&mut self, site: &mut Site) {
        self.regain_lent(site);
        self.end_event(site);
    }

    fn prepare_departure(&mut self, site: &mut Site) -> bool {
        let waits = self.prepare_to_depart(site);
        self.end_event(site);
        waits
    }

    fn withdraw_departure(&mut self, _site: &mut Site) {
        self.keep_prepared_again();
    }

    fn begin_alone(&mut self, site: &mut Site) {
        self.begin_alone_with(site);
        self.end_event(site);
    }

    fn lend(&mut self, site: &mut Site, to: &[NodeId]) {
        self.depart_with(site, to);
        self.end_event(site);
    }

    fn begin_phase(&mut self, site: &mut Site, _voided: &PageSet) {
        self.begin_with(site);
        self.end_event(site);
    }

    fn waits_for_retained(&self) -> bool {
        !self.contended.is_empty()
    }
}
