//! The home's side: keeps the copysets, and informs them of changes.

use std::collections::{BTreeMap, BTreeSet};

use hiroba_base::{Access, NodeId, PageId, PageSet, VersionVector};
use hiroba_wire::{AtomicOperation, AtomicOutcome, Message, PageDiff, PagesWanted};

use super::{Erc, Mode};
use crate::batches::{batches, replies};
use crate::coherence::Site;
use crate::words::{Client, Operated};
use crate::{Effect, Expected, PageToSend, ProtocolError, diff, unexpected};

/// The state of a page on its home.
#[derive(Debug, Default)]
pub(super) struct Directory {
    /// The nodes that have copies.
    pub(super) copyset: BTreeSet<NodeId>,
    /// Nodes that got their copy while the page was being written here, after a twin was made. Their copies
    /// may contain values that the diff will not show, since a byte may get its old value again.
    pub(super) midway: BTreeSet<NodeId>,
    /// Transactions that include the page.
    pub(super) unsettled: BTreeSet<u64>,
    /// The number of operations on each atomic word, by offset. Counted only when a record is kept.
    pub(super) turns: BTreeMap<u32, u64>,
}

impl Directory {
    /// Returns true if no other node has the page or will have it without a request.
    pub(super) fn is_exclusive(&self) -> bool {
        self.copyset.is_empty() && self.unsettled.is_empty()
    }
}

/// A change that the nodes that have copies are being informed of.
#[derive(Debug)]
pub(super) struct Transaction {
    /// The number of answers that must still come, and of transactions that must be settled first.
    missing: usize,
    pages: Vec<PageId>,
    /// True if copies are being invalidated: they get no later changes, but may still be read.
    invalidates: bool,
    /// Transactions that therefore wait for this one.
    followers: Vec<u64>,
    then: Then,
}

/// The action after all nodes have answered.
#[derive(Clone, Copy, Debug)]
enum Then {
    /// None: the answers only show that the change is nowhere under way.
    Nothing,
    /// This node's own release goes on.
    Release,
    /// A writer learns that its diffs are performed.
    Perform { writer: NodeId, page: PageId, count: u32 },
    /// The result of an atomic operation is reported.
    Tell(Client, Operated),
}

/// Sending copies.
impl Erc {
    /// Returns the directory of a page that is homed here, as every page in a transaction is.
    fn directory(&mut self, site: &Site, page_id: PageId) -> &mut Directory {
        self.page(site, page_id).directory.as_mut().expect("the page is homed here")
    }

    /// Handles a request for a copy. The home keeps the page's latest content and the directory of the nodes
    /// that have copies (Sakae and others, section 2.2). Home, exclusive → home, shared, clean.
    pub(super) fn handle_copy_request(
        &mut self,
        site: &mut Site,
        from: NodeId,
        page_id: PageId,
        requester: NodeId,
    ) -> Result<(), ProtocolError> {
        self.named(site, page_id)?;
        if self.page(site, page_id).directory.is_none() {
            self.pass_on(site, from, page_id, &Message::CopyRequest { page: page_id, requester });
            return Ok(());
        }
        self.send_copies(site, requester, &[page_id])?;
        self.home_choice.note_touch(&site.homes, site.me, requester, page_id);
        self.note_page_fault(site, requester, page_id);
        Ok(())
    }

    pub(super) fn handle_pages_request(
        &mut self,
        site: &mut Site,
        from: NodeId,
        wanted: &[PagesWanted],
    ) -> Result<(), ProtocolError> {
        let mut here = Vec::new();
        for page_id in wanted.iter().flat_map(|group| group.pages.iter()) {
            self.named(site, page_id)?;
            if self.page(site, page_id).directory.is_some() {
                here.push(page_id);
            } else {
                let request = Message::CopyRequest { page: page_id, requester: from };
                self.pass_on(site, from, page_id, &request);
            }
        }
        self.send_copies(site, from, &here)
    }

    fn send_copies(&mut self, site: &mut Site, to: NodeId, pages: &[PageId]) -> Result<(), ProtocolError> {
        let mut shared = PageSet::new();
        let mut sent = Vec::new();
        for page_id in pages {
            if to == site.me {
                return Err(unexpected(Expected::RequestWithoutCopy, format!("one for {page_id}")));
            }
            let is_written = self.written.contains(*page_id);
            let page = self.page(site, *page_id);
            assert!(page.valid, "{page_id}: a home page is always up to date");
            let directory = page.directory.as_mut().expect("the page is homed here");
            directory.copyset.insert(to);
            if page.twin {
                directory.midway.insert(to);
            }
            if page.access == Access::Write && !is_written {
                // It was exclusive. From now on stores must respect the copy.
                page.access = Access::Read;
                shared.insert(*page_id);
            }
            let page_bytes = site.page_bytes(*page_id);
            sent.push(PageToSend {
                page: *page_id,
                page_bytes,
                version: VersionVector::new(),
                from_twin: false,
            });
        }
        site.protect_all(&shared, Access::Read);
        let replies = replies(sent).into_iter();
        site.out.extend(replies.map(|pages| Effect::SendPages { to, pages }));
        Ok(())
    }
}

/// Performing changes.
impl Erc {
    /// Handles diffs from their writer, or from a node that is not the pages' home any more.
    pub(super) fn handle_diffs(
        &mut self,
        site: &mut Site,
        from: NodeId,
        writer: NodeId,
        diffs: &[PageDiff<'_>],
    ) -> Result<(), ProtocolError> {
        let mut changed = Vec::new();
        for PageDiff { page: page_id, runs } in diffs {
            self.named(site, *page_id)?;
            diff::check(runs, site.page_bytes(*page_id) as usize)?;
            let page = self.page(site, *page_id);
            if page.directory.is_none() {
                let diffs = vec![PageDiff { page: *page_id, runs }];
                self.pass_on(site, from, *page_id, &Message::EagerDiffs { writer, diffs });
                continue;
            }
            // A node that became the home while its diff was on its way has had the changes in its frame
            // since then, perhaps with later ones.
            if writer != site.me {
                site.out.push(Effect::Apply { page: *page_id, runs: runs.to_vec() });
            }
            self.home_choice.note_modified(*page_id, writer, runs.len());
            // The page may have come to the writer with others before any thread touched it.
            self.home_choice.note_touch(&site.homes, site.me, writer, *page_id);
            changed.push((*page_id, runs.to_vec()));
        }
        let Some((page, _)) = changed.first() else { return Ok(()) };
        let then = Then::Perform { writer, page: *page, count: changed.len() as u32 };
        self.tell_copysets(site, &changed, Some(writer), self.mode, then);
        Ok(())
    }

    /// Performs this node's own changes of pages that are homed here.
    pub(super) fn perform_own(&mut self, site: &mut Site, changed: &[(PageId, Vec<u8>)]) {
        if changed.is_empty() {
            return;
        }
        for (page_id, runs) in changed {
            let bytes = if runs.is_empty() { site.page_bytes(*page_id) as usize } else { runs.len() };
            self.home_choice.note_modified(*page_id, site.me, bytes);
        }
        site.await_answers(1);
        self.tell_copysets(site, changed, None, self.mode, Then::Release);
    }

    /// Has copies given up that were sent while the page was being written here. The interval ends, and the
    /// diff may not show what they contain.
    pub(super) fn recall_midway(&mut self, site: &mut Site, page_id: PageId) {
        let directory = self.directory(site, page_id);
        let midway = std::mem::take(&mut directory.midway);
        let (recalled, others) =
            std::mem::take(&mut directory.copyset).into_iter().partition(|reader| midway.contains(reader));
        directory.copyset = recalled;
        assert!(site.is_closing(), "copies sent midway are recalled as the interval closes");
        site.await_answers(1);
        self.tell_copysets(site, &[(page_id, Vec::new())], None, Mode::Invalidate, Then::Release);
        self.directory(site, page_id).copyset = others;
    }

    /// Informs all nodes that have copies of the pages, except the writer, of the changes. `then` follows
    /// when they have answered.
    fn tell_copysets(
        &mut self,
        site: &mut Site,
        changed: &[(PageId, Vec<u8>)],
        writer: Option<NodeId>,
        mode: Mode,
        then: Then,
    ) {
        let mut told: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        for (index, (page_id, _)) in changed.iter().enumerate() {
            let directory = self.directory(site, *page_id);
            let readers = directory.copyset.iter().copied().filter(|reader| Some(*reader) != writer);
            readers.for_each(|reader| told.entry(reader).or_default().push(index));
            if mode == Mode::Invalidate {
                directory.copyset.retain(|reader| Some(*reader) == writer);
            }
        }
        let id = self.next_transaction;
        assert!(!self.transactions.contains_key(&id), "transaction {id}: each has a number of its own");
        let mut missing = 0;
        assert!(!told.contains_key(&site.me), "a home has no copy of its own page");
        for (reader, indices) in told {
            let changes: Vec<(PageId, Vec<u8>)> =
                indices.into_iter().map(|index| changed[index].clone()).collect();
            if mode == Mode::Invalidate {
                let pages = changes.iter().map(|(page, _)| *page).collect();
                site.out.send(reader, &Message::InvalidateCopies { transaction: id, pages });
                missing += 1;
                continue;
            }
            for diffs in batches(&changes) {
                site.out.send(reader, &Message::UpdateCopies { transaction: id, diffs });
                missing += 1;
            }
        }
        missing += self.follow(site, id, changed);
        if missing == 0 {
            return self.complete(site, then);
        }
        self.next_transaction += 1;
        let pages: Vec<PageId> = changed.iter().map(|(page, _)| *page).collect();
        for page_id in &pages {
            self.directory(site, *page_id).unsettled.insert(id);
        }
        let (invalidates, followers) = (mode == Mode::Invalidate, Vec::new());
        self.transactions.insert(id, Transaction { missing, pages, invalidates, followers, then });
    }

    /// Has a transaction wait for those that invalidate copies of its pages. Returns their number.
    fn follow(&mut self, site: &Site, id: u64, changed: &[(PageId, Vec<u8>)]) -> usize {
        let mut earlier = BTreeSet::new();
        changed.iter().for_each(|(page_id, _)| earlier.extend(&self.directory(site, *page_id).unsettled));
        let mut followed = 0;
        for other in &earlier {
            let transaction = self.transactions.get_mut(other).expect("it is not settled");
            assert!(*other < id, "a transaction waits for earlier ones, so that none wait in a circle");
            if transaction.invalidates {
                transaction.followers.push(id);
                followed += 1;
            }
        }
        followed
    }

    pub(super) fn handle_settled(
        &mut self,
        site: &mut Site,
        from: NodeId,
        id: u64,
        left: &PageSet,
    ) -> Result<(), ProtocolError> {
        let Some(transaction) = self.transactions.get(&id) else {
            return Err(unexpected(Expected::AnswerOfToldCopies, format!("one to transaction {id}")));
        };
        if let Some(page_id) = left.iter().find(|page_id| !transaction.pages.contains(page_id)) {
            return Err(unexpected(Expected::ChangedCopiesGivenUp, format!("one of {page_id}")));
        }
        for page_id in left.iter() {
            self.directory(site, page_id).copyset.remove(&from);
        }
        let mut answered = vec![id];
        while let Some(id) = answered.pop() {
            let transaction = self.transactions.get_mut(&id).expect("it is not settled");
            assert!(transaction.missing > 0, "transaction {id} ends with its last answer");
            transaction.missing -= 1;
            if transaction.missing > 0 {
                continue;
            }
            let Transaction { pages, followers, then, .. } =
                self.transactions.remove(&id).expect("it was there");
            for page_id in pages {
                self.directory(site, page_id).unsettled.remove(&id);
            }
            answered.extend(followers);
            self.complete(site, then);
        }
        Ok(())
    }

    fn complete(&mut self, site: &mut Site, then: Then) {
        match then {
            Then::Nothing => {}
            Then::Release => site.answered(),
            Then::Perform { writer, page, count } => {
                site.out.send(writer, &Message::DiffsPerformed { page, count });
            }
            Then::Tell(client, operated) => site.answer_operation(client, operated),
        }
    }
}

/// A requested operation on an atomic word of a page that is homed here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) client: Client,
    pub(super) page: PageId,
    /// The word's byte offset.
    pub(super) offset: u32,
    pub(super) operation: AtomicOperation,
}

/// Atomic words: the home's side.
impl Erc {
    pub(super) fn handle_atomic_request(
        &mut self,
        site: &mut Site,
        from: NodeId,
        asked: Asked,
    ) -> Result<(), ProtocolError> {
        let Asked { client, page: page_id, offset, operation } = asked;
        self.named(site, page_id)?;
        if offset >= site.page_bytes(page_id) {
            return Err(unexpected(Expected::WordOfPage, format!("offset {offset} of {page_id}")));
        }
        if self.page(site, page_id).directory.is_some() {
            self.operate_at_home(site, asked);
        } else if let Client::There(requester, ticket) = client {
            let message = Message::AtomicForward { requester, ticket, page: page_id, offset, operation };
            self.pass_on(site, from, page_id, &message);
        }
        Ok(())
    }

    pub(super) fn operate_at_home(&mut self, site: &mut Site, asked: Asked) {
        let Asked { client, page, offset, operation } = asked;
        assert!(self.page(site, page).directory.is_some(), "{page}: its home operates on its words");
        self.operating_here.push_back((client, offset));
        site.out.push(Effect::Atomic { page, offset, operation });
    }

    pub(super) fn finish_operation(&mut self, site: &mut Site, page: PageId, outcome: AtomicOutcome) {
        let (client, offset) = self.operating_here.pop_front().expect("every atomic answer has its effect");
        let is_recorded = site.tells();
        let directory = self.directory(site, page);
        let turns = if is_recorded { directory.turns.entry(offset).or_default() } else { &mut 0 };
        let turn = std::mem::replace(turns, *turns + 1);
        let then = Then::Tell(client, Operated { page, offset, turn, outcome });
        if !outcome.written || directory.is_exclusive() {
            return self.complete(site, then);
        }
        let asker = match client {
            Client::Here(_) => None,
            Client::There(node, _) => Some(node).filter(|node| directory.copyset.contains(node)),
        };
        let changed = [(page, diff::of_bytes(offset as usize, &outcome.current.to_ne_bytes()))];
        if let Some(asker) = asker {
            // Update the requesting node's copy after all earlier changes and before the result. The mode's
            // rule applies to the other nodes.
            let directory = self.directory(site, page);
            let others = std::mem::take(&mut directory.copyset);
            directory.copyset.insert(asker);
            self.tell_copysets(site, &changed, None, Mode::Update, Then::Nothing);
            self.directory(site, page).copyset = others;
        }
        self.tell_copysets(site, &changed, asker, self.mode, then);
    }
}
