//! Supplies: what a node reads after every barrier at which it has changed comes without its asking.
//!
//! Read first: Monnerat, Bianchini, *Efficiently Adapting to Sharing Patterns in Software DSMs*, HPCA 1998; for what to do about updates that nobody
//! reads Karlin, Manasse, Rudolph, Sleator, *Competitive Snoopy Caching*, Algorithmica 1988.
//!
//! A producer writes a page in one phase, and its consumers read it in the next. By invalidation each consumer asks for the page behind the barrier
//! ([`habits`](super::habits)): a round trip that nothing overlaps with. By update the page is there when the barrier is over, since its home sends
//! it before it arrives. Which of both is better depends on whether the page is read, so each page's readers choose:
//!
//! ```text
//!   reader ──StandingOrder──▶ home                 the page's habit has proved right
//!   home ──PagesSupplied──▶ reader, home ──Arrive──▶ …, … ──Depart──▶ reader
//!   reader ──StandingOrder(ends)──▶ home           a supply was not read, or was of no use
//! ```
//!
//! | at the reader | when a supply has come, and the barrier is over | when the program touches the page |
//! |---|---|---|
//! | believed | it is installed and may be read | no fault |
//! | on trial | it is installed, without access | a fault without message: believed twice as often |
//! | on trial, untouched | the order ends | – |
//!
//! A page that is believed does not fault, so that nobody sees whether it is still read; a trial now and then shows that, for a local fault.
//!
//! Why it is right: a supply is a page as its home had it, with its version, like any reply. It waits until its reader has left the barrier, and is
//! taken only if it has all that the reader has heard of *and all that the reader has written itself* (a diff may have crossed it). Nobody waits for
//! one: where it comes too late, or is of no use, the page is fetched like any other. So home and reader need not agree on which orders stand.
//!
//! Pages come with a lock in the same way ([`migrants`](super::migrants)): if a page's home hands the lock over, it sends what is ordered with it first, and
//! that waits for the grant.
//!
//! While a page has orders, its home takes it for shared and watches it, so that each change has a notice, and is supplied, at the very next barrier.

use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::Arc;

use hiroba_base::{LockId, NodeId, PageId, PageSet, VectorTimestamp, VersionVector};
use hiroba_wire::{Ahead, Message, PageCopy};
use rustc_hash::FxHashMap;

use super::copies::{Taken, check_all_found, find_content};
use super::{Fetch, Hlrc, Page};
use crate::coherence::Site;
use crate::{NewContent, ProtocolError};

/// Bytes of pages for which a node has orders at one home: a barrier, or a lock's grant, waits for no more than this. It has no more from each
/// home twice over, since a home may arrive once more before this node has left.
const ORDERED_BYTES_MAX: u64 = 4 << 20;

/// An order that has ended so often was a mistake: it is not placed again.
pub(super) const ENDS_MAX: u8 = 3;

/// What a reader knows of a page's order.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Standing {
    is_ordered: bool,
    /// The last supply is here, and nobody has touched it so far.
    is_on_trial: bool,
    ends: u8,
}

impl Standing {
    /// Whether the page comes from its home whenever it has changed.
    pub(super) fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    /// Somebody touches the page. Whether a supply was on trial.
    pub(super) fn end_trial(&mut self) -> bool {
        std::mem::take(&mut self.is_on_trial)
    }
}

/// Orders and supplies of a node, as reader and as home.
#[derive(Debug, Default)]
pub(super) struct Supplies {
    pub(super) is_on: bool,
    /// Orders are placed when a page's habit begins, for tests: else when it has proved right.
    pub(super) is_hasty: bool,
    /// Orders to be placed (or to end) when this node comes to the next barrier, by home.
    news: BTreeMap<(NodeId, bool), PageSet>,
    /// Bytes of pages for which there are orders, by home.
    ordered_bytes: FxHashMap<NodeId, u64>,
    /// What has come ahead of barriers that are not over here, and of locks.
    came: Vec<Supply>,
    /// What has come ahead of what has just happened, until it is taken.
    expected: BTreeMap<PageId, Supply>,
    /// Home: what readers have ordered ahead of barriers.
    orders: BTreeMap<NodeId, PageSet>,
    /// Home: what readers have ordered with locks.
    lock_orders: FxHashMap<(LockId, NodeId), PageSet>,
}

/// A page that has come unasked.
#[derive(Debug)]
struct Supply {
    ahead_of: Ahead,
    page: PageId,
    version: VersionVector,
    content: Option<(Arc<[u8]>, Range<usize>)>,
}

impl Supplies {
    /// Whether the page is to be taken.
    pub(super) fn expects(&self, page: PageId) -> bool {
        self.expected.contains_key(&page)
    }

    /// An order at this home has been placed, unless there are too many: whether it has.
    pub(super) fn charge(&mut self, home: NodeId, page_bytes: u32) -> bool {
        let bytes = self.ordered_bytes.entry(home).or_default();
        let more = *bytes + u64::from(page_bytes);
        let fits = more <= ORDERED_BYTES_MAX;
        if fits {
            *bytes = more;
        }
        fits
    }

    /// It has ended.
    pub(super) fn discharge(&mut self, home: NodeId, page_bytes: u32) {
        *self.ordered_bytes.entry(home).or_default() -= u64::from(page_bytes);
    }

    /// Home: whether somebody wants the page whenever it has changed.
    pub(super) fn is_ordered(&self, page: PageId) -> bool {
        self.orders.values().any(|pages| pages.contains(page))
    }
}

/// The reader's side.
impl Hlrc {
    /// Has homes send what readers read after every barrier.
    pub fn supplying_readers(mut self) -> Hlrc {
        self.supplies.is_on = true;
        self
    }

    /// Has readers place orders as soon as a page has a habit: for tests with few barriers.
    pub fn ordering_hastily(mut self) -> Hlrc {
        self.supplies.is_hasty = true;
        self
    }

    /// The page has a habit, which has proved right or not.
    pub(super) fn consider_order(&mut self, site: &Site, page_id: PageId, has_proved_right: bool) {
        let home = site.locate(page_id).home;
        let is_due = self.supplies.is_on && (has_proved_right || self.supplies.is_hasty);
        // Who reads the home's frame itself needs no message anyway.
        if !is_due || !site.fetches_ahead || self.reach.includes(home) {
            return;
        }
        let standing = &mut self.pages.entry(page_id).or_default().standing;
        let may_order = !standing.is_ordered && standing.ends < ENDS_MAX;
        if may_order && self.supplies.charge(home, site.page_bytes(page_id)) {
            standing.is_ordered = true;
            self.supplies.news.entry((home, true)).or_default().insert(page_id);
        }
    }

    /// Supplies of the page are of no use.
    fn end_order(&mut self, site: &Site, page_id: PageId) {
        let standing = &mut self.pages.entry(page_id).or_default().standing;
        if standing.is_ordered {
            standing.ends += 1;
            self.forget_order(site, page_id);
            let home = site.locate(page_id).home;
            self.supplies.news.entry((home, false)).or_default().insert(page_id);
        }
    }

    /// The page's home, if there is an order with it, will not know it any more: it moves.
    pub(super) fn forget_order(&mut self, site: &Site, page_id: PageId) {
        let Some(page) = self.pages.get_mut(&page_id) else { return };
        let (home, page_bytes) = (site.locate(page_id).home, site.page_bytes(page_id));
        page.standing.is_on_trial = false;
        if std::mem::take(&mut page.standing.is_ordered) {
            self.supplies.discharge(home, page_bytes);
            if let Some(pages) = self.supplies.news.get_mut(&(home, true)) {
                pages.remove(page_id);
            }
        }
    }

    /// The node arrives at a barrier: tells the homes.
    pub(super) fn place_orders(&mut self, site: &mut Site) {
        for ((home, stands), pages) in std::mem::take(&mut self.supplies.news) {
            if !pages.is_empty() {
                site.out.send(home, &Message::StandingOrder { lock: None, pages, stands });
            }
        }
    }

    /// Pages have come unasked.
    pub(super) fn keep_supply(
        &mut self,
        site: &mut Site,
        from: NodeId,
        ahead_of: Ahead,
        copies: &[PageCopy],
        content: &[u8],
    ) -> Result<(), ProtocolError> {
        let mut offset = 0;
        let bytes: Arc<[u8]> = content.into();
        let (mut came, mut unwanted) = (Vec::new(), PageSet::new());
        for copy in copies {
            let (located, found) = find_content(site, copy, &mut offset, content)?;
            let is_wanted = |page: &Page| match ahead_of {
                Ahead::Collective(_) => page.standing.is_ordered,
                Ahead::Grant(lock) => page.migrant.is_ordered_with(lock),
            };
            if self.pages.get(&located.page).is_some_and(is_wanted) {
                let (page, version) = (located.page, copy.version.clone());
                let content = found.map(|range| (bytes.clone(), range));
                came.push(Supply { ahead_of, page, version, content });
            } else {
                unwanted.insert(located.page);
            }
        }
        check_all_found(offset, content)?;
        if !unwanted.is_empty() {
            // An order that its home has forgotten to end: the page went elsewhere meanwhile, and came back.
            let lock = if let Ahead::Grant(lock) = ahead_of { Some(lock) } else { None };
            site.out.send(from, &Message::StandingOrder { lock, pages: unwanted, stands: false });
        }
        match ahead_of {
            // The barrier is over, and what is read has been asked for.
            Ahead::Collective(epoch) if epoch < site.collectives_done => {
                came.iter().for_each(|supply| self.end_order(site, supply.page));
            }
            _ => self.supplies.came.extend(came),
        }
        Ok(())
    }

    /// The node leaves a collective, or has got a lock, and has heard what it is told there: what came ahead of that is taken, but for pages that
    /// are good.
    pub(super) fn expect_supplies(&mut self, site: &mut Site, ahead_of: Ahead) {
        let Supplies { came, expected, .. } = &mut self.supplies;
        let is_due = |supply: &mut Supply| match (supply.ahead_of, ahead_of) {
            (Ahead::Collective(epoch), Ahead::Collective(over)) => epoch < over,
            (supplied, now) => supplied == now,
        };
        let is_absent = |page: &Page| !page.valid && page.fetch.is_none();
        let due = came.extract_if(.., is_due);
        let due = due.filter(|supply| self.pages.get(&supply.page).is_some_and(is_absent));
        expected.extend(due.map(|supply| (supply.page, supply)));
        // What was written of the pages that are void now, the host is about to say.
        if self.watch.voided.is_empty() {
            self.take_expected(site);
        }
    }

    /// Takes what was sent ahead of the barrier that has just ended, or of the lock that has come, before the program's threads go on.
    pub(super) fn take_expected(&mut self, site: &mut Site) {
        let expected = std::mem::take(&mut self.supplies.expected);
        if expected.is_empty() {
            return;
        }
        let mut taken = Taken::default();
        for (page_id, Supply { ahead_of, version, content, .. }) in expected {
            let located = site.locate(page_id);
            let page = self.pages.entry(page_id).or_default();
            // Somebody may have fetched it meanwhile, or this node have heard more.
            let is_absent = located.home != site.me && !page.valid && page.fetch.is_none();
            let has_all = version.covers(&page.needed) && version.covers(&page.held);
            if !is_absent || !has_all || page.standing.is_on_trial {
                match ahead_of {
                    Ahead::Collective(_) => self.end_order(site, page_id),
                    Ahead::Grant(_) => self.end_lock_order(site, page_id),
                }
                continue;
            }
            let is_believed = match ahead_of {
                Ahead::Collective(_) => {
                    page.habit.lost_in = site.collectives_done;
                    page.habit.believe()
                }
                Ahead::Grant(_) => page.migrant.believe(),
            };
            page.standing.is_on_trial = !is_believed && !page.twin;
            let fetch = Fetch { marks: page.standing.is_on_trial, ..Fetch::default() };
            let content = content.map_or(NewContent::Zero, |(bytes, range)| NewContent::Kept(bytes, range));
            self.take_in(site, &mut taken, located, &version, content, fetch);
        }
        let accepted = taken.finish(site);
        self.end_fetches(site, accepted);
    }
}

/// The home's side.
impl Hlrc {
    /// A reader places orders, or ends them. A page may be homed elsewhere, as its reader does not know yet, or this node does not: an order
    /// counts while the page is homed here.
    pub(super) fn handle_order(
        &mut self,
        site: &mut Site,
        from: NodeId,
        lock: Option<LockId>,
        pages: &PageSet,
        stands: bool,
    ) {
        for page_id in pages.iter() {
            let orders = match lock {
                Some(lock) => self.supplies.lock_orders.entry((lock, from)).or_default(),
                None => self.supplies.orders.entry(from).or_default(),
            };
            if !stands {
                orders.remove(page_id);
            } else if orders.insert(page_id) && lock.is_none() {
                self.guard_page(site, page_id);
            }
        }
    }

    /// The page has another home now.
    pub(super) fn drop_orders(&mut self, page_id: PageId) {
        let Supplies { orders, lock_orders, .. } = &mut self.supplies;
        orders.values_mut().chain(lock_orders.values_mut()).for_each(|pages| _ = pages.remove(page_id));
    }

    /// The lock goes to another node, which has seen the intervals of `seen`: sends the pages ahead that this node has ordered with it and that it
    /// lacks. They hold all that the grant tells of.
    ///
    /// Only a page's home may do that: a receiver that had it from another node could change it again, and its diff overtake that node's on the
    /// way to the home.
    pub(super) fn send_with_lock(
        &mut self,
        site: &mut Site,
        lock: LockId,
        to: NodeId,
        seen: &VectorTimestamp,
    ) {
        let Some(ordered) = self.supplies.lock_orders.get(&(lock, to)) else { return };
        let lacks = |page_id| {
            let mut others = NodeId::all(site.limits.nodes).filter(|node| *node != to);
            others.any(|node| site.log.latest(node, page_id).is_some_and(|seq| seq > seen.get(node)))
        };
        let is_good = |page_id: &PageId| lacks(*page_id) && self.is_to_supply(site, *page_id);
        let pages: Vec<PageId> = ordered.iter().filter(is_good).collect();
        self.send_all(site, to, &pages, Some(Ahead::Grant(lock)));
    }

    /// Whether the page may be sent as it is here.
    fn is_to_supply(&self, site: &Site, page_id: PageId) -> bool {
        let is_whole = |page: &Page| page.needed.is_empty() && !page.has_words;
        site.is_home(page_id)
            && self.pages.get(&page_id).is_some_and(is_whole)
            && !self.moves.keeps_away(page_id)
    }

    /// The node arrives at a barrier: sends what it has changed since the last one to those who read it. Others' diffs may be
    /// on their way; a reader who has heard of them asks.
    pub(super) fn send_supplies(&mut self, site: &mut Site) {
        if self.supplies.orders.is_empty() {
            return;
        }
        let mut changed = PageSet::new();
        site.log.of(site.me).iter().for_each(|notice| changed.extend(&notice.pages));
        for (to, ordered) in std::mem::take(&mut self.supplies.orders) {
            let is_good = |page_id: &PageId| changed.contains(*page_id) && self.is_to_supply(site, *page_id);
            let pages: Vec<PageId> = ordered.iter().filter(is_good).collect();
            self.send_all(site, to, &pages, Some(Ahead::Collective(site.collectives_done)));
            self.supplies.orders.insert(to, ordered);
        }
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
