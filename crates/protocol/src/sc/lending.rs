//! Copies that are lent for one phase: pages that the nodes below are about to read travel with a departure
//! from a collective, and are given back by coming to the next one.
//!
//! A parallel region of an executable begins with a collective and ends with one, and its threads read data
//! on the stack of the thread that began it. Without lending each region costs a request for a copy, and an
//! invalidation before the next store there.
//!
//! A node's threads name the pages before they come to a collective ([`Engine::carry_along`]). When the node
//! arrives, it takes its own access away; so the pages are as they were when the interval was closed, unless
//! a thread touches one meanwhile, which then stays. When the node departs, it sends each node directly below
//! a copy, before the departure, and notes it as *lent*. The receiver's threads get access behind the
//! departure, whose notices they must know. At its next arrival the receiver takes the access away. When the
//! lender departs next, all nodes have arrived, so no node has a lent copy any more, and nothing is sent.
//!
//! A lent copy is a copy while it is lent: before a thread of the lender writes, or the page goes to another
//! node, it is invalidated. The borrower may have given it back by then, or may not have taken it, because a
//! thread had requested the page. So it remembers until the next departure which copies it has lacked
//! (`returned`), and confirms at once. The invalidation says that the copy was lent: the lender may also have
//! given the page away and got it back, and invalidate a copy that the borrower has requested of the owner
//! between. That copy may still be on its way.
//!
//! **With an arrival.** Pages that a thread of the root of the tree is about to read travel there with the
//! arrival of a node directly below, and are borrowed until the root arrives itself ([`Engine::carry_up`]).
//! The root's thread waits for all arrivals first ([`Synchronisation::AwaitOthers`]), and gets access to
//! these copies if the arrivals report nothing that it does not know. A copy that the lender invalidates
//! before is not used, nor is one for which no thread has waited when the root departs. When all others have
//! arrived, the root's own loans have ended, too: its threads write such pages without a message. So a
//! reduction costs the arrivals with the threads' values, and the departure.
//!
//! **After the arrival.** A thread of the root may use what nodes have contributed before they depart
//! (`consistency/contributions.rs`). The root's loans have ended then, too. Pages that the thread touches are
//! prepared once more before the departure.
//!
//! | borrower | lender | what happens |
//! |---|---|---|
//! | – | prepared | the lender comes to the collective; its threads lose their access |
//! | coming | lent | it arrives, or departs; content goes ahead |
//! | borrowed | lent | the borrower's departure, or at the root the arrival of all others |
//! | returned | lent | the borrower arrives at the next collective, or requests the page; or it has not taken the copy |
//! | returned | ended | the lender departs from that collective; or, at the root, all others have arrived |
//! | – | – | the borrower departs from the collective after that |
//! | – | invalidating | the lender stores to the page: any borrower confirms, at once if the copy is returned |
//!
//! A copy counts as returned until the second departure, because an invalidation from a lender that has not
//! departed yet may be on its way.
//!
//! **Followers.** Pages that others read in each phase, and that threads here store to in between, need not
//! be named. When a store invalidates copies that other nodes have requested, the page is lent to those
//! directly below with the next 16 departures before which it was stored to: they are likely to request it
//! again. To learn of that, the lender's threads may only read when a loan has ended.
//!
//! Copies that a node has requested are not lent, and stay. A page that is written while it is lent, as the
//! sum of a reduction may be, costs more messages than without lending. So it is then not lent the next 4
//! times, and if that happens again, not the next 8, 16, … up to 256 times. Where a page with followers is
//! written in some phases only, and these have a rhythm (`anticipation/rhythm.rs`), it is lent in the others.
//!
//! [`Engine::carry_along`]: crate::Engine::carry_along
//! [`Engine::carry_up`]: crate::Engine::carry_up
//! [`Synchronisation::AwaitOthers`]: crate::Synchronisation::AwaitOthers

use std::collections::{BTreeMap, BTreeSet};

use hiroba_base::{Access, NodeId, PageId, PageSet, VersionVector};

use super::sending::Word;
use super::{Page, Sc};
use crate::anticipation::rhythm::Rhythm;
use crate::coherence::{Coherence, Site};
use crate::{Effect, PageToSend};

/// The maximum number of pages that go along with a departure.
const PAGES_MAX: usize = 16;
/// How many of them go because other nodes have requested them before.
const FOLLOWED_PAGES_MAX: usize = 8;
/// The maximum length of such a page.
const PAGE_BYTES_MAX: u32 = 16 << 10;

/// When a page must not be lent, because threads of its lender store to it meanwhile.
#[derive(Debug, Default)]
pub(super) struct Vain {
    /// How often it must not be, the next time that it was written while it was lent.
    interval: u32,
    left: u32,
    /// The last phase in which threads here have stored to it, by the number of the collective before, and
    /// the distances between such phases.
    stored_in: Option<u64>,
    stores: Rhythm,
}

const INTERVAL_MIN: u32 = 4;
const INTERVAL_MAX: u32 = 256;

impl Vain {
    /// Notes that the page is about to be written, and whether it is lent.
    pub(super) fn note(&mut self, is_lent: bool) {
        if is_lent {
            self.left = self.interval.max(INTERVAL_MIN);
            self.interval = (self.left * 2).min(INTERVAL_MAX);
        }
    }

    /// Notes a store in this phase.
    fn note_store(&mut self, phase: u64) {
        if let Some(before) = self.stored_in.replace(phase).filter(|before| *before < phase) {
            self.stores.note(phase - before);
        }
    }

    /// Returns when a store is expected in this phase or a later one, if stores have a rhythm in which some
    /// phases have none.
    fn next_store(&self, phase: u64) -> Option<u64> {
        let is_in_each = self.stores.is_steady() && self.stores.latest() == Some(1);
        let next = self.stored_in?.checked_add(self.stores.next()?)?;
        (!is_in_each && next >= phase).then_some(next)
    }

    /// Returns true if the page may be lent for this phase.
    fn permits(&mut self, phase: u64) -> bool {
        let may = self.left == 0;
        self.left = self.left.saturating_sub(1);
        self.next_store(phase).map_or(may, |next| next > phase)
    }

    /// Notes that the page has not been written while it was lent.
    fn note_kept(&mut self) {
        (self.interval, self.left) = (0, 0);
    }
}

/// The nodes that a page is lent to because they have requested copies before it was stored to.
#[derive(Debug, Default)]
pub(super) struct Followers {
    nodes: BTreeSet<NodeId>,
    left: u32,
}

/// How often a page is lent to nodes that have once requested copies.
const FOLLOWED: u32 = 16;

impl Followers {
    pub(super) fn of(nodes: BTreeSet<NodeId>) -> Followers {
        Followers { nodes, left: FOLLOWED }
    }

    pub(super) fn are_there(&self) -> bool {
        self.left > 0
    }
}

/// What is lent and borrowed.
#[derive(Debug, Default)]
pub(super) struct Lending {
    /// Lender: the pages that are to go along with the next departure.
    prepared: PageSet,
    /// Lender: those that are to go along with this node's arrival, and those that go to their followers.
    prepared_up: PageSet,
    prepared_followed: PageSet,
    /// Lender: those among both that threads here had touched when the node was about to depart.
    prepared_again: PageSet,
    /// Lender: pages that have followers, and that threads here have stored to since they were last lent.
    rewritten: PageSet,
    /// True while all other nodes wait at the collective of which this node is the root.
    are_others_here: bool,
    /// Lender: pages of which copies are lent, or were until the last departure.
    lent: PageSet,
    ended: PageSet,
    /// Borrower: the pages whose copies have come before the departure, or before an arrival from below, with
    /// their lender, and whether they are in their frames.
    coming: BTreeMap<PageId, (NodeId, bool)>,
    /// Borrower: the copies that it has, with their lender.
    borrowed: BTreeMap<PageId, NodeId>,
    /// Borrower: the copies that it lacks although their lender may not know, since the last departure and
    /// before it.
    returned: [BTreeMap<PageId, NodeId>; 2],
}

impl Lending {
    /// Returns true if this invalidation is of a lent copy that is not here.
    pub(super) fn was_returned(&mut self, page: PageId, lender: NodeId) -> bool {
        if self.coming.get(&page).is_some_and(|(from, _)| *from == lender) {
            self.coming.remove(&page);
            return true;
        }
        let is_returned = |returned: &&mut BTreeMap<PageId, NodeId>| returned.get(&page) == Some(&lender);
        let returned = self.returned.iter_mut().find(is_returned);
        returned.is_some_and(|returned| returned.remove(&page).is_some())
    }

    fn note_returned(&mut self, page: PageId, lender: NodeId) {
        self.returned[0].insert(page, lender);
    }

    /// Notes that a copy was requested, or the page: what was lent is not used. Returns true if this node had
    /// a lent copy.
    pub(super) fn note_asked(&mut self, page: PageId) -> bool {
        if let Some((_, is_in_frame)) = self.coming.get_mut(&page) {
            *is_in_frame = false;
        }
        let lender = self.borrowed.remove(&page);
        self.returned[0].extend(lender.map(|lender| (page, lender)));
        lender.is_some()
    }

    /// Notes that a requested copy has come, or the page.
    pub(super) fn note_come(&mut self, page: PageId) {
        self.coming.remove(&page);
        self.returned.iter_mut().for_each(|returned| _ = returned.remove(&page));
    }

    /// Notes that the lender has invalidated the copy.
    pub(super) fn note_invalidated(&mut self, page: PageId) {
        self.borrowed.remove(&page);
    }

    /// Notes that a thread here stores to a page that has followers. Returns true if others are in a phase.
    pub(super) fn note_rewritten(&mut self, page: PageId) -> bool {
        self.rewritten.insert(page);
        !self.are_others_here
    }

    /// Notes a lent copy that has come.
    pub(super) fn note_coming(&mut self, page: PageId, lender: NodeId, is_in_frame: bool) {
        self.coming.insert(page, (lender, is_in_frame));
    }
}

impl Sc {
    /// Gives back what was borrowed, and takes this node's access to pages away that are to be lent. The node
    /// is about to arrive at a collective.
    pub(super) fn prepare_to_arrive(&mut self, site: &mut Site, along: &PageSet, up: &PageSet) {
        let mut given_back = PageSet::new();
        for (page_id, lender) in std::mem::take(&mut self.lending.borrowed) {
            let page = self.page(site, page_id);
            // A copy that is being invalidated is given up in that way.
            if page.give_up_for.is_none() {
                assert!(!page.owner && page.access == Access::Read, "{page_id}: what is borrowed is a copy");
                page.access = Access::None;
                given_back.insert(page_id);
                self.lending.note_returned(page_id, lender);
            }
        }
        site.invalidate(&given_back, |page| self.access(page));
        self.lending.prepared_up = self.prepare(site, up);
        self.lending.prepared = self.prepare(site, along);
        let rewritten = std::mem::take(&mut self.lending.rewritten);
        if site.has_below {
            let followed = rewritten.iter().filter(|page| !along.contains(*page)).take(FOLLOWED_PAGES_MAX);
            let followed: PageSet = followed.collect();
            self.lending.prepared_followed = self.prepare(site, &followed);
        }
    }

    /// Takes this node's access away to pages that are to go along with the departure, and that a thread has
    /// touched since the arrival. Returns true if they may go only behind a release.
    pub(super) fn prepare_to_depart(&mut self, site: &mut Site) -> bool {
        let mut again = PageSet::new();
        let both = self.lending.prepared.iter().chain(self.lending.prepared_followed.iter());
        for page_id in both.collect::<PageSet>().iter() {
            if self.page(site, page_id).access > Access::None && self.may_lend(site, page_id) {
                self.protect(site, page_id, Access::None);
                again.insert(page_id);
            }
        }
        let rewritten = std::mem::take(&mut self.lending.rewritten);
        if site.has_below {
            let Lending { prepared, prepared_followed, .. } = &self.lending;
            let is_new = |page: &PageId| !prepared.contains(*page) && !prepared_followed.contains(*page);
            let room = FOLLOWED_PAGES_MAX.saturating_sub(prepared_followed.len() as usize);
            let followed: PageSet = rewritten.iter().filter(is_new).take(room).collect();
            let followed = self.prepare(site, &followed);
            self.lending.prepared_followed.extend(&followed);
            again.extend(&followed);
        }
        let waits = !again.is_empty() && self.order.is_kept();
        self.lending.prepared_again = again;
        waits
    }

    /// Keeps those pages here: their content may follow changes that the receivers do not know.
    pub(super) fn keep_prepared_again(&mut self) {
        let again = std::mem::take(&mut self.lending.prepared_again);
        let Lending { prepared, prepared_followed, .. } = &mut self.lending;
        for prepared in [prepared, prepared_followed] {
            *prepared = prepared.iter().filter(|page| !again.contains(*page)).collect();
        }
    }

    /// Takes this node's access to those of these pages away that can be lent, and returns them.
    fn prepare(&mut self, site: &mut Site, pages: &PageSet) -> PageSet {
        let mut prepared = PageSet::new();
        for page_id in pages.iter() {
            let is_short = site.page_bytes(page_id) <= PAGE_BYTES_MAX;
            if is_short && self.pages.contains_key(&page_id) && self.may_lend(site, page_id) {
                let phase = site.collectives_done + 1;
                let page = self.page(site, page_id);
                if !page.vain.permits(phase) && !site.carries_all {
                    // To learn whether a store that is expected comes.
                    let page = self.page(site, page_id);
                    if page.vain.next_store(phase) == Some(phase)
                        && page.followers.are_there()
                        && page.access == Access::Write
                    {
                        self.protect(site, page_id, Access::Read);
                    }
                    continue;
                }
                if self.page(site, page_id).access > Access::None {
                    self.protect(site, page_id, Access::None);
                }
                prepared.insert(page_id);
            }
        }
        prepared
    }

    /// Lends copies to the node above, to which the arrival is sent next.
    pub(super) fn arrive_with(&mut self, site: &mut Site, above: NodeId) {
        let prepared = std::mem::take(&mut self.lending.prepared_up);
        let mut sent = BTreeMap::new();
        self.send_lent(site, &prepared, |_| vec![above], &mut sent);
        site.out.extend(sent.into_iter().map(|(to, pages)| Effect::SendPages { to, pages }));
    }

    /// Returns true if nothing concerns the page, which this node owns.
    fn may_lend(&mut self, site: &mut Site, page_id: PageId) -> bool {
        let is_going = self.order.is_going(page_id);
        let page = self.page(site, page_id);
        let is_wanted = page.wanted > Access::None || !page.queue.is_empty() || !page.operations.is_empty();
        page.owner && page.invalidating == 0 && !page.is_undivided && !is_wanted && !is_going
    }

    /// Lends copies of the prepared pages to these nodes, to which the departure is sent next. What was lent
    /// before has been given back.
    pub(super) fn depart_with(&mut self, site: &mut Site, to: &[NodeId]) {
        self.end_loans(site);
        self.lending.prepared_again = PageSet::new();
        let prepared = std::mem::take(&mut self.lending.prepared);
        let mut sent = BTreeMap::new();
        self.send_lent(site, &prepared, |_| to.to_vec(), &mut sent);
        let followed = std::mem::take(&mut self.lending.prepared_followed);
        let followers = |page: &mut Page| {
            page.followers.left = page.followers.left.saturating_sub(1);
            to.iter().copied().filter(|node| page.followers.nodes.contains(node)).collect()
        };
        self.send_lent(site, &followed, followers, &mut sent);
        site.out.extend(sent.into_iter().map(|(to, pages)| Effect::SendPages { to, pages }));
    }

    /// Notes that a thread here stores to a page that other nodes have requested copies of.
    pub(super) fn note_store(&mut self, site: &mut Site, page_id: PageId) {
        if self.lending.note_rewritten(page_id) {
            let phase = site.collectives_done;
            self.page(site, page_id).vain.note_store(phase);
        }
    }

    /// Notes that all other nodes have given back what this node has lent, and lets threads store there.
    pub(super) fn regain_lent(&mut self, site: &mut Site) {
        self.lending.are_others_here = true;
        self.end_loans(site);
        self.regain_ended(site);
    }

    /// Notes that all other nodes have given back what this node has lent.
    fn end_loans(&mut self, site: &mut Site) {
        let ended = std::mem::take(&mut self.lending.lent);
        for page_id in ended.iter() {
            let page = self.page(site, page_id);
            if !std::mem::take(&mut page.lent).is_empty() {
                page.vain.note_kept();
            }
        }
        self.lending.ended.extend(&ended);
    }

    /// Lends these nodes copies of pages, of which threads here have touched none since they were prepared.
    fn send_lent(
        &mut self,
        site: &mut Site,
        prepared: &PageSet,
        to: impl Fn(&mut Page) -> Vec<NodeId>,
        sent: &mut BTreeMap<NodeId, Vec<PageToSend>>,
    ) {
        for (number, page_id) in prepared.iter().enumerate() {
            if self.page(site, page_id).access > Access::None || !self.may_lend(site, page_id) {
                continue;
            }
            let page = self.page(site, page_id);
            let mut readers = if number < PAGES_MAX { to(page) } else { Vec::new() };
            readers.retain(|node| !page.copyset.contains(node) && page.lent.insert(*node));
            let access = if page.has_copies() { Access::Read } else { Access::Write };
            self.protect(site, page_id, access);
            if !readers.is_empty() {
                self.lending.lent.insert(page_id);
            }
            let mut version = VersionVector::new();
            version.advance(site.me, site.collectives_done + 1);
            let page_bytes = site.page_bytes(page_id);
            for reader in readers {
                let version = version.clone();
                let page = PageToSend { page: page_id, page_bytes, version, from_twin: false };
                sent.entry(reader).or_default().push(page);
            }
        }
    }

    /// Gives threads access to the copies that have come with the departure, whose notices this node knows
    /// now. A page whose lent copies have been given back is only here.
    pub(super) fn begin_with(&mut self, site: &mut Site) {
        self.lending.are_others_here = false;
        self.regain_ended(site);
        self.lending.returned.swap(0, 1);
        self.lending.returned[0].clear();
        let me = site.me;
        // Numbers grow downwards in the tree. What has come with an arrival has ended.
        self.take_coming(site, |lender| lender < me);
    }

    /// Gives threads access to the copies that have come with arrivals: all other nodes have arrived, and
    /// report nothing that this node does not know.
    pub(super) fn begin_alone_with(&mut self, site: &mut Site) {
        self.take_coming(site, |_| true);
    }

    /// Lets threads store to the pages whose lent copies have been given back.
    fn regain_ended(&mut self, site: &mut Site) {
        for page_id in std::mem::take(&mut self.lending.ended).iter() {
            let is_going = self.order.is_going(page_id);
            let page = self.page(site, page_id);
            let is_alone = page.owner && !page.has_copies() && page.invalidating == 0 && !is_going;
            if is_alone && page.access == Access::Read {
                // With followers, the next store shall fault.
                if !page.followers.are_there() {
                    self.protect(site, page_id, Access::Write);
                }
            }
        }
    }

    /// Gives threads access to the copies that have come from such lenders, unless a thread has requested the
    /// page. The others are returned.
    fn take_coming(&mut self, site: &mut Site, is_lender: impl Fn(NodeId) -> bool) {
        for (page_id, (lender, is_in_frame)) in std::mem::take(&mut self.lending.coming) {
            let page = self.page(site, page_id);
            let is_untouched = !page.owner && page.access == Access::None && page.asked == Access::None;
            if is_in_frame && is_untouched && page.give_up_for.is_none() && is_lender(lender) {
                page.hint = lender;
                self.protect(site, page_id, Access::Read);
                self.lending.note_come(page_id);
                self.lending.borrowed.insert(page_id, lender);
            } else {
                self.lending.note_returned(page_id, lender);
            }
        }
    }

    /// Has the copies given up that are lent to other nodes than `to`, which is to get the page. Returns
    /// false if there are none. Owner, shared → owner, invalidating.
    pub(super) fn recall(&mut self, site: &mut Site, page_id: PageId, to: NodeId) -> bool {
        let page = self.page(site, page_id);
        let recalled: Vec<NodeId> = page.lent.iter().copied().filter(|node| *node != to).collect();
        page.lent.retain(|node| *node == to);
        page.vain.note(!recalled.is_empty());
        page.invalidating = recalled.len();
        for reader in &recalled {
            self.sending.word(page_id, *reader, Word::InvalidateCopy { is_lent: true });
        }
        !recalled.is_empty()
    }

    /// Confirms, behind a release, that a lent copy is not here.
    pub(super) fn confirm_returned(&mut self, site: &mut Site, page_id: PageId, lender: NodeId) {
        self.page(site, page_id).give_up_for = Some(lender);
        if self.order.is_kept() {
            self.sending.release_for(page_id, lender);
        } else {
            self.confirm(site, page_id);
        }
    }
}
