//! The borrower: what room it has with which lender, and where its pages are.

use core::time::Duration;
use std::collections::BTreeSet;

use hiroba_base::{Instant, NodeId, PageId};
use rustc_hash::FxHashMap;

use super::message::{Message, Page};
use super::{BATCH, Lent, Lost, Outbox};

/// When room for fewer pages than this is left, more is asked for.
const LOW: u64 = (BATCH / 4) as u64;

/// Room for more pages than this that is left with one lender is given back, except for one batch.
const SURPLUS: u64 = 3 * BATCH as u64;

/// How long a lender that had nothing to grant is not asked again.
const REFUSAL_LASTS: Duration = Duration::from_millis(100);

/// A lender that has not answered by then does not run, or cannot be reached: another one is asked.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// What this node has with one lender.
#[derive(Clone, Debug, Default)]
struct Credit {
    /// Room granted, in pages. It falls below what is used while pages are being taken back.
    granted: i64,
    /// Pages there.
    used: u64,
    /// The room that it had left when it last granted some; at first unknown.
    left: Option<u64>,
    /// When it was asked for room, if it has not answered.
    asked_at: Option<Instant>,
    refused_at: Option<Instant>,
    is_dead: bool,
}

impl Credit {
    fn free(&self) -> u64 {
        u64::try_from(self.granted).unwrap_or(0).saturating_sub(self.used)
    }

    fn may_be_asked(&self, now: Instant) -> bool {
        let is_refused = self.refused_at.is_some_and(|at| now < at + REFUSAL_LASTS);
        !self.is_dead && self.asked_at.is_none() && !is_refused
    }
}

/// Where a page is.
#[derive(Debug)]
enum At {
    Lender(NodeId),
    /// Returned, and without another place.
    Home(Vec<u8>),
    /// Its lender has died.
    Lost(NodeId),
}

#[derive(Debug)]
struct Loan {
    stamp: u64,
    at: At,
    /// True if the page is in its owner's memory.
    is_back: bool,
}

/// A request for a copy.
#[derive(Debug)]
struct Fetch {
    ticket: u64,
    /// The lender that has denied having it.
    missing: Option<NodeId>,
    bytes: Option<Vec<u8>>,
}

#[derive(Debug)]
pub(super) struct Borrower {
    me: NodeId,
    /// By node.
    credits: Vec<Credit>,
    loans: FxHashMap<PageId, Loan>,
    /// Pages that are in memory, and with a lender.
    back: BTreeSet<PageId>,
    /// Pages at home.
    home: BTreeSet<PageId>,
    /// Their length.
    home_bytes: u64,
    fetches: FxHashMap<PageId, Fetch>,
    next_ticket: u64,
    pub(super) borrowed: u64,
    pub(super) borrowed_bytes: u64,
    pub(super) fetched: u64,
}

impl Borrower {
    pub(super) fn new(me: NodeId, nodes: u16) -> Borrower {
        let mut credits = vec![Credit::default(); usize::from(nodes)];
        credits[me.index()].is_dead = true;
        Borrower {
            me,
            credits,
            loans: FxHashMap::default(),
            back: BTreeSet::new(),
            home: BTreeSet::new(),
            home_bytes: 0,
            fetches: FxHashMap::default(),
            next_ticket: 0,
            borrowed: 0,
            borrowed_bytes: 0,
            fetched: 0,
        }
    }

    pub(super) fn account_with(&self, node: NodeId) -> (i64, u64) {
        let credit = &self.credits[node.index()];
        (credit.granted, credit.used)
    }

    pub(super) fn bytes_at_home(&self) -> u64 {
        self.home_bytes
    }

    /// Takes a page that is at home out of the loans, for another version or place.
    fn leave_home(&mut self, granule: PageId) {
        if self.home.remove(&granule)
            && let Some(Loan { at: At::Home(bytes), .. }) = self.loans.get(&granule)
        {
            self.home_bytes -= bytes.len() as u64;
        }
    }

    fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        NodeId::all(self.credits.len() as u16)
    }

    pub(super) fn lend(
        &mut self,
        now: Instant,
        granule: PageId,
        stamp: u64,
        bytes: &[u8],
        outbox: &mut Outbox,
    ) -> Lent {
        let before = self.loans.get(&granule).map(|loan| match loan.at {
            // Its room serves the new version.
            At::Lender(lender) => Some(lender),
            At::Home(_) | At::Lost(_) => None,
        });
        let lender = before.flatten().or_else(|| self.room_at_someone(outbox));
        let Some(lender) = lender else {
            return if self.ask(now, outbox) { Lent::Asked } else { Lent::NoRoom };
        };
        if before.flatten().is_none() {
            self.credits[lender.index()].used += 1;
        }
        self.back.remove(&granule);
        self.leave_home(granule);
        self.loans.insert(granule, Loan { stamp, at: At::Lender(lender), is_back: false });
        self.borrowed += 1;
        self.borrowed_bytes += bytes.len() as u64;
        outbox.push_back((lender, Message::Store(Page { granule, stamp, bytes: bytes.to_vec() })));
        if self.free() < LOW {
            self.ask(now, outbox);
        }
        Lent::Sent
    }

    fn free(&self) -> u64 {
        self.credits.iter().filter(|credit| !credit.is_dead).map(Credit::free).sum()
    }

    pub(super) fn may_lend(&self, now: Instant) -> bool {
        let may_be_asked = |credit: &Credit| credit.asked_at.is_some() || credit.may_be_asked(now);
        self.free() > 0
            || !self.back.is_empty()
            || self.credits.iter().any(|credit| !credit.is_dead && may_be_asked(credit))
    }

    /// Returns the lender with the most room, at least for one page. Pages that are in memory make room.
    fn room_at_someone(&mut self, outbox: &mut Outbox) -> Option<NodeId> {
        let with_most = |credits: &[Credit]| {
            let free = |node: &NodeId| credits[node.index()].free();
            let alive = NodeId::all(credits.len() as u16).filter(|node| !credits[node.index()].is_dead);
            alive.max_by_key(free).filter(|node| free(node) > 0)
        };
        loop {
            let found = with_most(&self.credits);
            if found.is_some() {
                return found;
            }
            let granule = *self.back.last()?;
            self.forget(granule, outbox);
        }
    }

    /// Asks the lender with the most to spare for room, unless one was asked that may answer. Returns true if
    /// an answer is awaited.
    fn ask(&mut self, now: Instant, outbox: &mut Outbox) -> bool {
        let answers = |credit: &Credit| credit.asked_at.is_some_and(|at| now < at + ANSWER_WITHIN);
        if self.credits.iter().any(answers) {
            return true;
        }
        let nodes = self.credits.len();
        // Of several of whom nothing is known each node asks another first.
        let nearness = |node: &NodeId| nodes - (node.index() + nodes - self.me.index()) % nodes;
        let candidates = self.nodes().filter(|node| self.credits[node.index()].may_be_asked(now));
        let promise = |node: &NodeId| self.credits[node.index()].left.unwrap_or(u64::MAX);
        let Some(lender) = candidates.max_by_key(|node| (promise(node), nearness(node))) else {
            return false;
        };
        self.credits[lender.index()].asked_at = Some(now);
        outbox.push_back((lender, Message::Ask { count: BATCH }));
        true
    }

    pub(super) fn keep(&mut self, granule: PageId, stamp: u64) -> bool {
        match self.loans.get_mut(&granule) {
            Some(loan) if loan.stamp == stamp && !matches!(loan.at, At::Lost(_)) => {
                loan.is_back = false;
                self.back.remove(&granule);
                true
            }
            _ => false,
        }
    }

    pub(super) fn request(&mut self, granule: PageId, stamp: u64, outbox: &mut Outbox) {
        // A thread may request what another one has brought in meanwhile. The copy would be taken for that of
        // the next version.
        let Some(Loan { at: At::Lender(lender), stamp: lent, is_back: false }) = self.loans.get(&granule)
        else {
            return;
        };
        if *lent == stamp && !self.fetches.contains_key(&granule) {
            let ticket = self.next_ticket;
            self.next_ticket += 1;
            self.fetches.insert(granule, Fetch { ticket, missing: None, bytes: None });
            outbox.push_back((*lender, Message::Fetch { ticket, granule, stamp }));
        }
    }

    pub(super) fn take(&mut self, granule: PageId, stamp: u64) -> Result<Option<Vec<u8>>, Lost> {
        let Some(loan) = self.loans.get(&granule).filter(|loan| loan.stamp == stamp) else {
            self.fetches.remove(&granule);
            return Err(Lost::NotLent);
        };
        let outcome = match (&loan.at, self.fetches.get_mut(&granule)) {
            (At::Home(bytes), _) => Ok(bytes.clone()),
            (_, Some(Fetch { bytes, .. })) if bytes.is_some() => Ok(bytes.take().unwrap_or_default()),
            (At::Lost(lender), _) => Err(Lost::Died(*lender)),
            (At::Lender(_), Some(Fetch { missing: Some(lender), .. })) => Err(Lost::Missing(*lender)),
            (At::Lender(_), _) => return Ok(None),
        };
        self.fetches.remove(&granule);
        outcome.map(Some)
    }

    pub(super) fn note_back(&mut self, granule: PageId, outbox: &mut Outbox) {
        self.fetches.remove(&granule);
        let Some(loan) = self.loans.get_mut(&granule) else { return };
        if matches!(loan.at, At::Lender(_)) {
            loan.is_back = true;
            self.back.insert(granule);
        } else {
            self.forget(granule, outbox);
        }
    }

    pub(super) fn discard(&mut self, granule: PageId, outbox: &mut Outbox) {
        if let Some(lender) = self.forget(granule, outbox) {
            self.give_surplus_back(lender, outbox);
        }
    }

    /// Forgets a page. Returns the lender that had it.
    fn forget(&mut self, granule: PageId, outbox: &mut Outbox) -> Option<NodeId> {
        self.back.remove(&granule);
        self.leave_home(granule);
        self.fetches.remove(&granule);
        let Loan { stamp, at, .. } = self.loans.remove(&granule)?;
        let At::Lender(lender) = at else { return None };
        self.credits[lender.index()].used -= 1;
        outbox.push_back((lender, Message::Drop { granule, stamp }));
        Some(lender)
    }

    fn give_surplus_back(&mut self, lender: NodeId, outbox: &mut Outbox) {
        let credit = &mut self.credits[lender.index()];
        if credit.free() > SURPLUS {
            let count = (credit.free() - u64::from(BATCH)).min(u64::from(u32::MAX)) as u32;
            credit.granted -= i64::from(count);
            outbox.push_back((lender, Message::GiveBack { count }));
        }
    }

    pub(super) fn homeless(&self) -> Option<(PageId, u64, &[u8])> {
        let granule = self.home.iter().find(|granule| !self.fetches.contains_key(granule))?;
        match self.loans.get(granule) {
            Some(Loan { stamp, at: At::Home(bytes), .. }) => Some((*granule, *stamp, bytes)),
            _ => None,
        }
    }

    pub(super) fn handle_grant(
        &mut self,
        now: Instant,
        from: NodeId,
        count: u32,
        left: u64,
        is_answer: bool,
        outbox: &mut Outbox,
    ) {
        let credit = &mut self.credits[from.index()];
        credit.granted += i64::from(count);
        if is_answer {
            credit.asked_at = None;
            credit.left = Some(left);
            credit.refused_at = (count == 0).then_some(now);
        }
        self.handle_time(now, outbox);
    }

    pub(super) fn handle_time(&mut self, now: Instant, outbox: &mut Outbox) {
        self.house(outbox);
        if !self.home.is_empty() {
            self.ask(now, outbox);
        }
    }

    /// Lends pages that are at home to whoever has room.
    fn house(&mut self, outbox: &mut Outbox) {
        while let Some((granule, stamp, _)) = self.homeless() {
            let Some(lender) = self.room_at_someone(outbox) else { return };
            self.leave_home(granule);
            let housed = Loan { stamp, at: At::Lender(lender), is_back: false };
            let Some(Loan { at: At::Home(bytes), .. }) = self.loans.insert(granule, housed) else {
                continue;
            };
            self.credits[lender.index()].used += 1;
            self.borrowed += 1;
            self.borrowed_bytes += bytes.len() as u64;
            outbox.push_back((lender, Message::Store(Page { granule, stamp, bytes })));
        }
    }

    pub(super) fn handle_revoke(&mut self, from: NodeId, count: u32) {
        let credit = &mut self.credits[from.index()];
        credit.granted -= i64::from(count);
        credit.left = Some(0);
    }

    pub(super) fn handle_page(&mut self, ticket: u64, page: Page) {
        let Some(fetch) = self.fetches.get_mut(&page.granule).filter(|fetch| fetch.ticket == ticket) else {
            return;
        };
        let is_wanted = self.loans.get(&page.granule).is_some_and(|loan| loan.stamp == page.stamp);
        if is_wanted {
            fetch.bytes = Some(page.bytes);
            self.fetched += 1;
        }
    }

    pub(super) fn handle_missing(&mut self, from: NodeId, ticket: u64) {
        if let Some(fetch) = self.fetches.values_mut().find(|fetch| fetch.ticket == ticket) {
            fetch.missing = Some(from);
        }
    }

    pub(super) fn handle_return(&mut self, now: Instant, from: NodeId, page: Page, outbox: &mut Outbox) {
        let Page { granule, stamp, bytes } = page;
        let Some(loan) = self.loans.get_mut(&granule) else { return };
        let is_at = matches!(loan.at, At::Lender(lender) if lender == from);
        if !is_at || loan.stamp != stamp {
            return;
        }
        self.credits[from.index()].used -= 1;
        if loan.is_back {
            self.loans.remove(&granule);
            self.back.remove(&granule);
            return;
        }
        self.home_bytes += bytes.len() as u64;
        loan.at = At::Home(bytes);
        self.home.insert(granule);
        self.handle_time(now, outbox);
    }

    pub(super) fn handle_death(&mut self, node: NodeId) {
        self.credits[node.index()] = Credit { is_dead: true, ..Credit::default() };
        let back = &mut self.back;
        self.loans.retain(|granule, loan| {
            if matches!(loan.at, At::Lender(lender) if lender == node) {
                loan.at = At::Lost(node);
                back.remove(granule);
                return !loan.is_back;
            }
            true
        });
    }
}
