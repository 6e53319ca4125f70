//! Claims: a node that is the only writer of a page becomes its home at the next barrier, without sending
//! what it has written.
//!
//! Read first: Amza, Cox, Dwarkadas, Zwaenepoel, *Software DSM Protocols that Adapt between Single Writer and
//! Multiple Writer*, HPCA 1997.
//!
//! ```text
//!   writer ──Arrive(notice, claim)──▶ root      its diff of the page is withheld
//!   root ──Depart(granted)──▶ all               no other node has written it: the writer is its home
//!   root ──Depart──▶ all                        another node has: the diff goes to the home
//! ```
//!
//! The root of the tree, which has all notices of the epoch, decides ([`barrier`](crate::barrier)). A page
//! whose claim is granted moves in the four steps of [`moves`](super), and the arguments there apply. The
//! difference is that the last home's frame lacks one interval, whose diff the next home has kept:
//!
//! - *A node that needs that interval does not wait at the last home.* Before the departure only nodes that
//!   have its notice need it, and a node passes no notices on while it withholds diffs: before a lock's
//!   grant, a release, an operation on a word, or a fetch of such a page, it sends the withheld diffs as if
//!   it had never claimed. After the departure all other nodes ask the next home.
//! - *The next home's frame contains the interval.* If it gets content from the last home (because a thread
//!   outside the team has written the page there meanwhile), it applies its own diff to it: both are of
//!   concurrent intervals, and so change different bytes. If one of its own threads has written the page
//!   again, the withheld diff is sent before the later one.
//! - *No interval is published too early.* While diffs of an interval are withheld from a home, the other
//!   diffs of that interval are not marked as the last ones; a later message after the departure marks the
//!   end.
//!
//! After a claim no other node has a valid copy: all have received the notice of the interval, whose diff no
//! other node had. So the page is reclaimed at once, and becomes exclusive with its next store.
//!
//! Three kinds of pages are not claimed: pages that had not been written before, since the node that
//! initialises a page need not be the one that uses it; pages with atomic words, which always stay at their
//! homes, and of which the homes inform all nodes; and, for some periods, pages that another node has written
//! in the same period, that were claimed in vain, or that move again and again. The last two wait twice as
//! many periods each time. The root also refuses claims to pages that are on the way to their homes from
//! earlier moves: only a node that has a page can give it away.

use std::collections::BTreeMap;

use hiroba_base::{IntervalSeq, NodeId, PageId, PageSet};
use hiroba_wire::{HomeMoves, MOVES_PER_HOME_MAX, MoveKind};
use rustc_hash::FxHashMap;

use super::{Moves, Pages};
use crate::batches::Flush;
use crate::coherence::{AfterRelease, PageMove, Site};
use crate::home::CONTENDED_PERIODS;

/// The maximum number of bytes of diffs that are withheld at one collective. Further diffs go to their homes.
const WITHHELD_BYTES_MAX: usize = 8 << 20;

/// The maximum number of periods in which no other node has written a page before it is claimed.
const PERIODS_MAX: u32 = 64;

/// The number of granted claims of a page before each further one takes twice as many periods: one for the
/// node that initialises the page, and one for the node that uses it.
const FREE_MOVES: u32 = 2;

/// The state of claims on a node.
#[derive(Debug, Default)]
pub(super) struct Claims {
    is_on: bool,
    withheld: BTreeMap<PageId, Withheld>,
    withheld_bytes: usize,
    /// Homes that received a part of the interval whose other diffs are withheld, and a page of it.
    unfinished: BTreeMap<NodeId, (PageId, IntervalSeq)>,
    /// Pages that take more than one period to claim.
    backoff: FxHashMap<PageId, Backoff>,
    /// The number of times that pages have moved because they were claimed, by any node.
    granted: FxHashMap<PageId, u32>,
    /// Pages that their homes always keep.
    kept: PageSet,
    /// Pages homed here of which the other nodes must still be told that they are always kept.
    with_new_words: PageSet,
}

/// A diff that its writer has not sent.
#[derive(Debug)]
struct Withheld {
    home: NodeId,
    seq: IntervalSeq,
    runs: Vec<u8>,
    /// True if the writer is the page's next home.
    is_granted: bool,
}

/// The number of periods in which this node alone has written a page that is not claimed at once.
#[derive(Clone, Copy, Debug, Default)]
struct Backoff {
    periods: u32,
    /// The number of periods needed.
    needs: u32,
}

impl Claims {
    pub(super) fn are_on(&self) -> bool {
        self.is_on
    }

    /// Handles a notice that another node has written the page. `is_contended`: this node has written it
    /// since the last collective, too.
    pub(super) fn note_other_writer(&mut self, page: PageId, is_contended: bool) {
        if self.is_on && is_contended {
            let needs = self.backoff.get(&page).map_or(0, |backoff| backoff.needs);
            self.backoff.insert(page, Backoff { periods: 0, needs: needs.max(CONTENDED_PERIODS) });
        } else if let Some(backoff) = self.backoff.get_mut(&page) {
            backoff.periods = 0;
        }
    }

    /// Notes that threads have operated on a word of a page that is homed here.
    fn note_words(&mut self, page: PageId) {
        if self.is_on && !self.kept.contains(page) {
            self.with_new_words.insert(page);
        }
    }

    /// Counts a period in which this node alone has written the page, as far as it knows. Returns true if it
    /// should claim the page.
    fn is_due(&mut self, page: PageId) -> bool {
        let granted = self.granted.get(&page).copied().unwrap_or_default();
        let by_moves = 1 << granted.saturating_sub(FREE_MOVES - 1).min(PERIODS_MAX.ilog2());
        let backoff = match self.backoff.get_mut(&page) {
            Some(backoff) => backoff,
            None if by_moves > 1 => self.backoff.entry(page).or_default(),
            None => return true,
        };
        backoff.periods = backoff.periods.saturating_add(1);
        backoff.periods >= backoff.needs.max(by_moves)
    }

    /// Notes that other nodes have written the claimed page, too.
    fn note_refusal(&mut self, page: PageId) {
        let backoff = self.backoff.entry(page).or_default();
        *backoff = Backoff { periods: 0, needs: (2 * backoff.needs).clamp(2, PERIODS_MAX) };
    }

    fn withhold(&mut self, page: PageId, withheld: Withheld) {
        self.withheld_bytes += withheld.runs.len();
        let before = self.withheld.insert(page, withheld);
        assert!(before.is_none(), "{page}: one interval of a page is withheld at a time");
    }

    fn take(&mut self, page: PageId) -> Option<Withheld> {
        let withheld = self.withheld.remove(&page)?;
        self.withheld_bytes -= withheld.runs.len();
        Some(withheld)
    }

    fn not_granted(&self) -> impl Iterator<Item = PageId> + '_ {
        let is_refused = |(page, withheld): (&PageId, &Withheld)| (!withheld.is_granted).then_some(*page);
        self.withheld.iter().filter_map(is_refused)
    }

    /// Takes the withheld diffs whose claims were not granted.
    fn take_refused(&mut self) -> Vec<(PageId, Withheld)> {
        let refused: Vec<PageId> = self.not_granted().collect();
        let take = |page| Some((page, self.take(page)?));
        refused.into_iter().filter_map(take).collect()
    }

    /// Returns true if diffs of the interval that is being closed are withheld from a home.
    fn withholds_from(&self, home: NodeId, seq: IntervalSeq) -> bool {
        self.withheld.values().any(|withheld| withheld.home == home && withheld.seq == seq)
    }

    /// Takes the diff that this node has withheld of the page, whose home it has become.
    pub(super) fn take_own(&mut self, page: PageId) -> Option<Vec<u8>> {
        self.take(page).map(|withheld| withheld.runs)
    }

    /// Returns the pages that this node claims, those that it keeps, and those that are `coming` here. It
    /// arrives at a collective.
    pub(super) fn proposals(&mut self, site: &Site, is_busy: bool, coming: PageSet) -> Vec<HomeMoves> {
        let mut moves = Vec::new();
        if !self.is_on {
            return moves;
        }
        // A page whose claim was granted at an earlier collective may still be on its way.
        let pages: PageSet = self.not_granted().collect();
        let kept: PageSet = self.with_new_words.iter().take(MOVES_PER_HOME_MAX as usize / 4).collect();
        kept.iter().for_each(|page| _ = self.with_new_words.remove(page));
        let each = [(pages, MoveKind::Claimed), (kept, MoveKind::Kept), (coming, MoveKind::Coming)];
        for (pages, kind) in each {
            if !pages.is_empty() {
                moves.push(HomeMoves { to: site.me, pages, kind });
            }
        }
        if is_busy {
            moves.push(HomeMoves { to: site.me, pages: PageSet::new(), kind: MoveKind::Kept });
        }
        moves
    }
}

impl Moves {
    /// Has this node claim the pages that it alone writes.
    pub(crate) fn claim_pages(&mut self) {
        self.claims.is_on = true;
    }

    /// Returns true if nodes claim pages.
    pub(crate) fn claims_pages(&self) -> bool {
        self.claims.are_on()
    }

    /// Notes that threads operate on a word of a page that is homed here.
    pub(crate) fn operated_on(&mut self, page: PageId) {
        self.claims.note_words(page);
    }

    /// Keeps the page's diff at the end of the interval that is being closed, if this node is to claim the
    /// page; otherwise returns it.
    pub(crate) fn withhold(
        &mut self,
        site: &mut Site,
        pages: &impl Pages,
        page: PageId,
        runs: Vec<u8>,
    ) -> Option<Vec<u8>> {
        // A later interval has changed the page as well. The withheld diff of the earlier one is sent first.
        if let Some(Withheld { home, seq, runs, .. }) = self.claims.take(page) {
            let mut flush = Flush::default();
            flush.add(page, runs);
            flush.send(site, home, seq, false);
        }
        let home = site.locate(page).home;
        if !self.may_claim(site, pages, page, home, runs.len()) || !self.claims.is_due(page) {
            return Some(runs);
        }
        let seq = site.closing();
        self.claims.withhold(page, Withheld { home, seq, runs, is_granted: false });
        None
    }

    fn may_claim(&self, site: &Site, pages: &impl Pages, page: PageId, home: NodeId, bytes: usize) -> bool {
        let claims = &self.claims;
        // An operation on a word leaves an empty diff.
        if !claims.is_on || !site.goes_to_meet() || bytes == 0 {
            return false;
        }
        // A home may propose the other half at the same collective.
        let most = MOVES_PER_HOME_MAX / 2 / u64::from(site.limits.nodes);
        let has_room = (claims.withheld.len() as u64) < most
            && claims.withheld_bytes + bytes <= WITHHELD_BYTES_MAX
            && !claims.withheld.contains_key(&page);
        let stays = claims.kept.contains(page) || self.keeps_away(page);
        has_room && !stays && home != site.me && pages.may_be_claimed(page)
    }

    /// Prepares to send a home its diffs of the interval that is being closed, that of `page` among them.
    /// Returns true if they are all changes of the interval there.
    pub(crate) fn sends_all(&mut self, home: NodeId, page: PageId, seq: IntervalSeq) -> bool {
        let is_all = !self.claims.withholds_from(home, seq);
        if !is_all {
            self.claims.unfinished.insert(home, (page, seq));
        }
        is_all
    }

    /// Sends the withheld diffs that were not granted, as if they had never been claimed, because other nodes
    /// may get the notice of their interval now.
    pub(crate) fn send_withheld(&mut self, site: &mut Site) {
        let mut homes: BTreeMap<(NodeId, IntervalSeq), Flush> = BTreeMap::new();
        for (page, Withheld { home, seq, runs, .. }) in self.claims.take_refused() {
            homes.entry((home, seq)).or_default().add(page, runs);
        }
        // An interval is complete if all its other diffs were granted.
        let is_left = |home: &NodeId, seq: IntervalSeq| homes.contains_key(&(*home, seq));
        let unfinished = std::mem::take(&mut self.claims.unfinished);
        let finished = unfinished.into_iter().filter(|(home, (_, seq))| !is_left(home, *seq));
        for (home, (page, seq)) in finished.collect::<Vec<_>>() {
            homes.entry((home, seq)).or_default().add(page, Vec::new());
        }
        for ((home, seq), flush) in homes {
            flush.send(site, home, seq, true);
        }
    }

    /// Returns true if diffs are withheld whose claims were not granted.
    pub(crate) fn withholds(&self) -> bool {
        self.claims.not_granted().next().is_some()
    }

    /// Prepares to fetch pages, which must contain what this node has written itself.
    pub(crate) fn before_fetch(&mut self, site: &mut Site, pages: &[PageId]) {
        let withheld = &self.claims.withheld;
        if !withheld.is_empty() && pages.iter().any(|page| withheld.contains_key(page)) {
            self.send_withheld(site);
        }
    }

    /// Handles that all nodes have agreed on moves: diffs whose claims were refused go to their homes.
    pub(super) fn end_claims(&mut self, site: &mut Site, moves: &[PageMove]) {
        let claims = &mut self.claims;
        if !claims.is_on {
            return;
        }
        for PageMove { page, to, kind } in moves {
            match kind {
                MoveKind::Claimed => {
                    *claims.granted.entry(*page).or_default() += 1;
                    if *to == site.me
                        && let Some(withheld) = claims.withheld.get_mut(page)
                    {
                        withheld.is_granted = true;
                    }
                }
                MoveKind::Kept => _ = claims.kept.insert(*page),
                MoveKind::Given | MoveKind::Coming => {}
            }
        }
        let refused: Vec<PageId> = claims.not_granted().collect();
        refused.into_iter().for_each(|page| claims.note_refusal(page));
        self.send_withheld(site);
    }
}

impl Site {
    /// Returns true if the interval is being closed because the node arrives at a collective after which the
    /// job goes on.
    fn goes_to_meet(&self) -> bool {
        let goes_on =
            |then: &AfterRelease| matches!(then, AfterRelease::Arrive(with) if !with.ends_the_job());
        self.release.as_ref().is_some_and(|release| goes_on(&release.then))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_claimed_in_vain_or_contended_or_moves_often_takes_more_periods() {
        let page = PageId(3);
        let mut claims = Claims::default();
        assert!(claims.is_due(page), "the first period suffices");
        claims.note_refusal(page);
        assert!(!claims.is_due(page));
        claims.note_other_writer(page, false);
        assert!(!claims.is_due(page), "it begins anew");
        assert!(claims.is_due(page));
        claims.note_refusal(page);
        assert_eq!((0..4).map(|_| claims.is_due(page)).collect::<Vec<_>>(), [false, false, false, true]);
        (0..20).for_each(|_| claims.note_refusal(page));
        assert_eq!(claims.backoff[&page].needs, PERIODS_MAX, "but not for ever");

        let shared = PageId(5);
        claims.is_on = true;
        claims.note_other_writer(shared, false);
        assert!(claims.is_due(shared), "this node wrote it in another period");
        claims.note_other_writer(shared, true);
        let periods = (1..).find(|_| claims.is_due(shared));
        assert_eq!(periods, Some(CONTENDED_PERIODS), "both wrote it in one period");

        let other = PageId(4);
        for (granted, needs) in [(0, 1), (1, 1), (2, 2), (3, 4), (40, PERIODS_MAX)] {
            claims.backoff.remove(&other);
            claims.granted.insert(other, granted);
            let periods = (1..).find(|_| claims.is_due(other));
            assert_eq!(periods, Some(needs), "after {granted} moves");
        }
    }
}
