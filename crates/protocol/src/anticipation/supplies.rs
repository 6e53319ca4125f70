//! Supplies: homes send pages that a node reads after every barrier at which they have changed, without a
//! request.
//!
//! Read first: Monnerat, Bianchini, *Efficiently Adapting to Sharing Patterns in Software DSMs*, HPCA 1998;
//! for the treatment of updates that are not read Karlin, Manasse, Rudolph, Sleator, *Competitive Snoopy
//! Caching*, Algorithmica 1988.
//!
//! A producer writes a page in one phase, and its consumers read it in the next. With invalidation each
//! consumer requests the page after the barrier: a round trip that nothing overlaps with, and often a wake-up
//! of a node that computes. With update the page has arrived when the barrier is over, since its home sends
//! it before the home arrives. Which of both is better depends on whether the page is read, so each page's
//! readers choose:
//!
//! ```text
//!   reader ──StandingOrder──▶ home                 a thread has waited for the page, which a barrier had voided
//!   home ──PagesSupplied──▶ reader, home ──Arrive──▶ …, … ──Depart──▶ reader
//!   reader ──StandingOrder(ends)──▶ home           too many supplies were in vain
//! ```
//!
//! | at the reader | when a supply has come, and the barrier is over | when the program touches the page |
//! |---|---|---|
//! | trusted | it is installed and may be read | no fault |
//! | on trial | it is installed, without access | a fault without message: believed twice as often |
//! | on trial, untouched | as above; the order ends after the [`CREDIT`]th time in a row | as above |
//!
//! So a wait buys a few supplies, which together cost less than the wait, and each use of one buys as many
//! again. No program pays much more than with invalidation, and a page that is read in every fourth phase, in
//! whatever order, comes unrequested.
//!
//! A page that is trusted does not fault, so the node cannot see whether it is still read. An occasional
//! trial shows that, for a local fault.
//!
//! Why this is correct. A supply is a page as its home had it, with its version, like any reply. It waits
//! until its reader has left the barrier, and is taken only if it contains all intervals that the reader
//! knows, *including all that the reader has written itself*. Where a diff of the reader has crossed it, the
//! reader writes that into the supply first ([`own_changes`]). No thread waits for a supply: if it comes too
//! late, or is of no use, the page is fetched like any other. So home and reader need not agree on which
//! orders stand.
//!
//! Pages come with a lock in the same way ([`lock_pages`](super::lock_pages)): if a page's home hands the
//! lock over, it first sends the pages ordered with it, and they wait for the grant.
//!
//! While a page has orders, its home treats it as shared and watches it, so that each change has a notice,
//! and is supplied, at the very next barrier.

use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::Arc;

use hiroba_base::{IntervalSeq, LockId, NodeId, PageId, PageSet, VectorTimestamp, VersionVector};
use hiroba_wire::{Ahead, Message};
use rustc_hash::FxHashMap;

use super::habits::{BELIEVED_MAX, BELIEVED_MIN};
use super::own_changes::{self, OwnChanges};
use super::{Anticipation, Copies};
use crate::coherence::Site;
use crate::home::Located;
use crate::{Fact, NewContent};

/// The maximum number of bytes of pages for which a node has orders at one home: a barrier, or a lock's
/// grant, waits for no more than this. At most twice this much waits at a reader from each home, since a home
/// may arrive once more before the reader has left.
const ORDERED_BYTES_MAX: u64 = 4 << 20;

/// The number of orders of a page that end without a use before it is not ordered again.
pub(super) const ENDS_MAX: u8 = 3;

/// The number of supplies in vain that a use of the page pays for. A supply costs its reader about a tenth of
/// the fault that it saves.
const CREDIT: u8 = 4;

/// The state of a page's order at its reader.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Order {
    is_placed: bool,
    /// True if the last supply has come and has not been touched so far.
    is_on_trial: bool,
    /// The number of supplies that may be in vain before the order ends.
    credit: u8,
    /// The number of supplies that will still be opened without a trial, and its value when the last trial
    /// ended.
    believed: u8,
    trust: u8,
    /// The number of orders that ended with a supply that lacked intervals, since one was used.
    misfits: u8,
}

impl Order {
    /// Returns true if the page comes from its home whenever it has changed.
    pub(super) fn is_placed(&self) -> bool {
        self.is_placed
    }

    /// Ends a supply's trial: a thread touches the page. Returns true if there was a trial, which has proved
    /// right.
    pub(super) fn end_trial(&mut self) -> bool {
        let was_on_trial = std::mem::take(&mut self.is_on_trial);
        if was_on_trial {
            (self.credit, self.misfits) = (CREDIT, 0);
            self.trust = (self.trust * 2).clamp(BELIEVED_MIN, BELIEVED_MAX);
            self.believed = self.trust;
        }
        was_on_trial
    }

    /// Counts a supply in vain. Returns true if the next one may be in vain, too.
    fn spend(&mut self) -> bool {
        (self.trust, self.believed) = (0, 0);
        self.credit = self.credit.saturating_sub(1);
        self.credit > 0
    }

    /// Returns true if the supply that has come is opened without a trial.
    fn believe(&mut self) -> bool {
        let left = self.believed.checked_sub(1);
        self.believed = left.unwrap_or_default();
        left.is_some()
    }
}

/// The orders and supplies of a node, as reader and as home.
#[derive(Debug, Default)]
pub(super) struct Supplies {
    pub(super) is_on: bool,
    /// True if orders are placed as soon as a page's habit begins, for tests. Otherwise the habit must have
    /// proved right.
    pub(super) is_hasty: bool,
    /// Orders to place (or to end) when this node arrives at the next barrier, by home.
    news: BTreeMap<(NodeId, bool), PageSet>,
    /// The number of bytes of ordered pages, by home.
    ordered_bytes: FxHashMap<NodeId, u64>,
    /// Supplies that came ahead of barriers that are not over here, and of locks.
    came: Vec<Supply>,
    /// Supplies that came ahead of the barrier or grant that has just happened, until they are taken.
    expected: BTreeMap<PageId, Supply>,
    /// This node's changes to pages that it has ordered.
    own: OwnChanges,
    /// Home: the pages that readers have ordered ahead of barriers.
    orders: BTreeMap<NodeId, PageSet>,
    /// Home: the pages that readers have ordered with locks.
    lock_orders: FxHashMap<(LockId, NodeId), PageSet>,
}

/// A page that has come unrequested and waits.
#[derive(Debug)]
struct Supply {
    ahead_of: Ahead,
    page: PageId,
    version: VersionVector,
    content: NewContent,
}

/// A page in a message that was not requested.
#[derive(Debug)]
pub(crate) struct Unasked {
    pub(crate) page: PageId,
    pub(crate) version: VersionVector,
    /// The range of its bytes in the message, unless they are all zero.
    pub(crate) content: Option<Range<usize>>,
}

/// A supply that the protocol must install.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) page: Located,
    pub(crate) version: VersionVector,
    pub(crate) content: NewContent,
}

impl Supplies {
    /// Returns true if a supply of the page is to be taken.
    pub(super) fn expects(&self, page: PageId) -> bool {
        self.expected.contains_key(&page)
    }

    /// Counts an order at this home, unless there are too many. Returns true if it may be placed.
    pub(super) fn charge(&mut self, home: NodeId, page_bytes: u32) -> bool {
        let bytes = self.ordered_bytes.entry(home).or_default();
        let more = *bytes + u64::from(page_bytes);
        let fits = more <= ORDERED_BYTES_MAX;
        if fits {
            *bytes = more;
        }
        fits
    }

    /// Notes that an order has ended.
    pub(super) fn discharge(&mut self, home: NodeId, page_bytes: u32) {
        let ordered = self.ordered_bytes.entry(home).or_default();
        assert!(*ordered >= u64::from(page_bytes), "an order at node {home} that ends was counted");
        *ordered -= u64::from(page_bytes);
    }
}

/// The reader's side.
impl Anticipation {
    /// Orders a page from its home, if that is worth while: a thread has waited for the page, which a barrier
    /// had voided.
    pub(super) fn consider_order(&mut self, site: &Site, copies: &impl Copies, page: PageId) {
        let home = site.locate(page).home;
        // A node that reads the home's frame itself needs no message.
        if !self.supplies.is_on || !site.prefetches || copies.reads_itself(home) {
            return;
        }
        let order = &mut self.guesses.or_default(page).order;
        order.credit = CREDIT;
        let may_order = !order.is_placed && order.misfits < ENDS_MAX;
        if may_order && self.supplies.charge(home, site.page_bytes(page)) {
            assert_ne!(home, site.me, "{page}: a home orders nothing from itself");
            order.is_placed = true;
            self.supplies.news.entry((home, true)).or_default().insert(page);
        }
    }

    /// Ends the order of the page, because its supplies are not used.
    fn end_order(&mut self, site: &Site, page: PageId) {
        let order = &mut self.guesses.or_default(page).order;
        if order.is_placed {
            self.forget_order(site, page);
            let home = site.locate(page).home;
            self.supplies.news.entry((home, false)).or_default().insert(page);
        }
    }

    /// Counts a supply in vain: the one before was not touched, or this one lacks intervals that its reader
    /// knows or has written. Returns true if the order stands; otherwise ends it.
    fn bear(&mut self, site: &mut Site, page: PageId, ahead_of: Ahead, fits: bool) -> bool {
        let order = &mut self.guesses.or_default(page).order;
        let Ahead::Collective(_) = ahead_of else {
            self.end_lock_order(site, page);
            return false;
        };
        let is_borne = order.spend() && fits;
        if !is_borne {
            order.misfits = order.misfits.saturating_add(u8::from(!fits));
            self.end_order(site, page);
        }
        is_borne
    }

    fn forget_order(&mut self, site: &Site, page: PageId) {
        let Some(guess) = self.guesses.get_mut(&page) else { return };
        guess.order.is_on_trial = false;
        if std::mem::take(&mut guess.order.is_placed) {
            let home = site.locate(page).home;
            self.supplies.own.forget(page);
            self.supplies.discharge(home, site.page_bytes(page));
            if let Some(pages) = self.supplies.news.get_mut(&(home, true)) {
                pages.remove(page);
            }
        }
    }

    /// Forgets the page's orders. Its home is about to change, and the next home will not know them.
    pub(crate) fn forget_orders(&mut self, site: &Site, page: PageId) {
        self.forget_order(site, page);
        self.forget_lock_order(site, page);
    }

    /// Informs the homes which orders begin and end. The node arrives at a barrier.
    pub(crate) fn tell_orders(&mut self, site: &mut Site) {
        for ((home, stands), pages) in std::mem::take(&mut self.supplies.news) {
            if !pages.is_empty() {
                site.out.send(home, &Message::StandingOrder { lock: None, pages, stands });
            }
        }
    }

    /// Keeps the diff that this node sends to the page's home, if a supply may cross it.
    pub(crate) fn keep_own(&mut self, page: PageId, before: IntervalSeq, seq: IntervalSeq, runs: &[u8]) {
        if self.guesses.get(&page).is_some_and(|guess| guess.order.is_placed) {
            self.supplies.own.keep(page, before, seq, runs);
        }
    }

    /// Notes that all nodes have seen this node's intervals through `seen_by_all`: they have met.
    pub(crate) fn meet(&mut self, seen_by_all: IntervalSeq) {
        self.supplies.own.meet(seen_by_all);
    }

    /// Keeps pages that have come unrequested, with these bytes.
    pub(crate) fn keep_unasked(
        &mut self,
        site: &mut Site,
        from: NodeId,
        ahead_of: Ahead,
        pages: Vec<Unasked>,
        content: &[u8],
    ) {
        let bytes: Arc<[u8]> = content.into();
        let (mut came, mut unwanted) = (Vec::new(), PageSet::new());
        for Unasked { page, version, content } in pages {
            let is_ordered = self.guesses.get(&page).is_some_and(|guess| match ahead_of {
                Ahead::Collective(_) => guess.order.is_placed,
                Ahead::Grant(lock) => guess.lock_page.is_ordered_with(lock),
            });
            if is_ordered {
                let kept = |range| NewContent::Kept(bytes.clone(), range);
                let content = content.map_or(NewContent::Zero, kept);
                came.push(Supply { ahead_of, page, version, content });
            } else {
                unwanted.insert(page);
            }
        }
        if !unwanted.is_empty() {
            // The home has missed the end of this order: the page went elsewhere meanwhile, and came back.
            let lock = if let Ahead::Grant(lock) = ahead_of { Some(lock) } else { None };
            site.out.send(from, &Message::StandingOrder { lock, pages: unwanted, stands: false });
        }
        match ahead_of {
            // The barrier is over, and the pages that are read have been requested.
            Ahead::Collective(epoch) if epoch < site.collectives_done => {
                came.iter().for_each(|supply| self.end_order(site, supply.page));
            }
            _ => self.supplies.came.extend(came),
        }
    }

    /// Has the supplies taken that came ahead of `ahead_of`, except those of pages whose copies are valid.
    /// The node has left the collective, or has got the lock, and has absorbed the notices.
    pub(crate) fn expect_supplies(&mut self, copies: &impl Copies, ahead_of: Ahead) {
        let Supplies { came, expected, .. } = &mut self.supplies;
        let is_due = |supply: &mut Supply| match (supply.ahead_of, ahead_of) {
            (Ahead::Collective(epoch), Ahead::Collective(over)) => epoch < over,
            (supplied, now) => supplied == now,
        };
        let due = came.extract_if(.., is_due).filter(|supply| copies.is_absent(supply.page));
        expected.extend(due.map(|supply| (supply.page, supply)));
    }

    /// Returns true if a supply of the page is to be taken.
    pub(crate) fn expects(&self, page: PageId) -> bool {
        self.supplies.expects(page)
    }

    /// Takes the useful supplies that were sent ahead of the barrier that has just ended, or of the lock that
    /// has come. The protocol installs them before the program's threads go on.
    pub(crate) fn take_expected(&mut self, site: &mut Site, copies: &impl Copies) -> Vec<Accepted> {
        let mut accepted = Vec::new();
        let mut completed = Completed::default();
        for (page, supply) in std::mem::take(&mut self.supplies.expected) {
            let Supply { ahead_of, mut version, mut content, .. } = supply;
            let located = site.locate(page);
            // Where some of its own changes are not kept, the supply is of no use.
            let own = copies.own_interval(site, page);
            let held = version.get(site.me);
            let lacks_kept = self.supplies.own.lacking(page, held, own).is_some();
            if lacks_kept {
                version.advance(site.me, own);
            }
            // A thread may have fetched the page meanwhile, or this node may know of more intervals.
            let is_of_use =
                located.home != site.me && copies.is_absent(page) && copies.would_do(page, &version);
            let is_untouched = self.guesses.get(&page).is_some_and(|guess| guess.order.is_on_trial);
            if (!is_of_use || is_untouched) && !self.bear(site, page, ahead_of, is_of_use) {
                continue;
            }
            let guess = self.guesses.or_default(page);
            let is_believed = match ahead_of {
                Ahead::Collective(_) => {
                    guess.habit.lost_in = site.collectives_done;
                    guess.order.believe()
                }
                Ahead::Grant(_) => guess.lock_page.believe(),
            };
            guess.order.is_on_trial = !is_believed && !copies.has_twin(page);
            if guess.order.is_on_trial {
                self.under_way.closed.insert(page);
            }
            assert_eq!(located.page, page, "a supply is of a whole page");
            if lacks_kept {
                let lacking = self.supplies.own.lacking(page, held, own);
                completed.write(site, page, accepted.len(), &content, lacking.into_iter().flatten());
                content = NewContent::Zero;
            }
            accepted.push(Accepted { page: located, version, content });
        }
        completed.give_to(&mut accepted);
        accepted
    }
}

/// Supplies into which their reader has written its own changes.
#[derive(Default)]
struct Completed {
    bytes: Vec<u8>,
    /// The indices of the accepted supplies, and the ranges of their bytes.
    ranges: Vec<(usize, Range<usize>)>,
}

impl Completed {
    /// Copies the content of a supply, and writes what it lacks.
    fn write<'a>(
        &mut self,
        site: &mut Site,
        page: PageId,
        index: usize,
        content: &NewContent,
        lacking: impl Iterator<Item = (IntervalSeq, &'a [u8])>,
    ) {
        let start = self.bytes.len();
        match content {
            NewContent::Kept(bytes, range) => self.bytes.extend_from_slice(&bytes[range.clone()]),
            NewContent::Zero => self.bytes.resize(start + site.page_bytes(page) as usize, 0),
            NewContent::Received(_) => unreachable!("supplies wait, so their bytes are kept"),
        }
        for (seq, runs) in lacking {
            own_changes::write(&mut self.bytes[start..], runs);
            let (writer, bytes) = (site.me, runs.len() as u32);
            site.tell(|| Some(Fact::Applied { page, writer, seq, bytes }));
        }
        self.ranges.push((index, start..self.bytes.len()));
    }

    fn give_to(self, accepted: &mut [Accepted]) {
        let bytes: Arc<[u8]> = self.bytes.into();
        for (index, range) in self.ranges {
            accepted[index].content = NewContent::Kept(bytes.clone(), range);
        }
    }
}

/// The home's side.
impl Anticipation {
    /// Notes the orders that a reader places or ends. Returns the pages for which a reader has begun to want
    /// every change.
    ///
    /// A page may be homed elsewhere without its reader, or this node, knowing it yet. An order counts while
    /// the page is homed here.
    pub(crate) fn note_orders(
        &mut self,
        from: NodeId,
        lock: Option<LockId>,
        pages: &PageSet,
        stands: bool,
    ) -> PageSet {
        let orders = match lock {
            Some(lock) => self.supplies.lock_orders.entry((lock, from)).or_default(),
            None => self.supplies.orders.entry(from).or_default(),
        };
        let mut begun = PageSet::new();
        for page in pages.iter() {
            if !stands {
                orders.remove(page);
            } else if orders.insert(page) && lock.is_none() {
                begun.insert(page);
            }
        }
        begun
    }

    /// Returns true if a node wants the page whenever it has changed.
    pub(crate) fn is_ordered(&self, page: PageId) -> bool {
        self.supplies.orders.values().any(|pages| pages.contains(page))
    }

    /// Drops the orders of the page, which has another home now.
    pub(crate) fn drop_orders(&mut self, page: PageId) {
        let Supplies { orders, lock_orders, .. } = &mut self.supplies;
        orders.values_mut().chain(lock_orders.values_mut()).for_each(|pages| _ = pages.remove(page));
    }

    /// Returns the pages to send ahead of a lock: those that the next node, which has seen the intervals of
    /// `seen`, has ordered with the lock and lacks. They contain all intervals that the grant names.
    ///
    /// Only a page's home may send it. A receiver that got it from another node could change it again, and
    /// its diff might overtake that node's diff on the way to the home.
    pub(crate) fn to_send_with_lock(
        &self,
        site: &Site,
        copies: &impl Copies,
        lock: LockId,
        to: NodeId,
        seen: &VectorTimestamp,
    ) -> Vec<PageId> {
        let Some(ordered) = self.supplies.lock_orders.get(&(lock, to)) else { return Vec::new() };
        let lacks = |page| {
            let mut others = NodeId::all(site.limits.nodes).filter(|node| *node != to);
            others.any(|node| site.log.latest(node, page).is_some_and(|seq| seq > seen.get(node)))
        };
        ordered.iter().filter(|page| lacks(*page) && copies.may_send(site, *page)).collect()
    }

    /// Returns, by reader, the ordered pages that this node has changed since the last barrier. The node
    /// arrives at a barrier. Diffs of other nodes may be on their way; a reader that has their notices
    /// requests the page.
    pub(crate) fn to_send_ahead(&self, site: &Site, copies: &impl Copies) -> Vec<(NodeId, Vec<PageId>)> {
        if self.supplies.orders.is_empty() {
            return Vec::new();
        }
        let mut changed = PageSet::new();
        site.log.of(site.me).iter().for_each(|notice| changed.extend(&notice.pages));
        let is_due = |page: &PageId| changed.contains(*page) && copies.may_send(site, *page);
        let of_each = self.supplies.orders.iter();
        of_each.map(|(to, ordered)| (*to, ordered.iter().filter(is_due).collect())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_at_one_home_are_bounded_and_end() {
        let mut supplies = Supplies::default();
        let page_bytes = 1 << 20;
        let placed = (0..10).filter(|_| supplies.charge(NodeId(1), page_bytes)).count();
        assert_eq!(placed as u64, ORDERED_BYTES_MAX / u64::from(page_bytes));
        assert!(supplies.charge(NodeId(2), page_bytes), "another home has a bound of its own");
        supplies.discharge(NodeId(1), page_bytes);
        assert!(supplies.charge(NodeId(1), page_bytes), "one has ended");
        assert!(!supplies.charge(NodeId(1), page_bytes));
    }
}
