//! Claims: a node that is the only one to write a page becomes its home at the barrier behind that, without
//! sending what it has written.
//!
//! Read first: Amza, Cox, Dwarkadas, Zwaenepoel, *Software DSM Protocols that Adapt between Single Writer and
//! Multiple Writer*, HPCA 1997.
//!
//! ```text
//!   writer ──Arrive(notice, claim)──▶ root      its diff of the page is withheld
//!   root ──Depart(granted)──▶ all               nobody else has written it: the writer is its home
//!   root ──Depart──▶ all                        somebody has: the diff goes to the home
//! ```
//!
//! The root of the tree, which has all notices of the epoch, decides ([`barrier`](crate::barrier)). A page
//! whose claim is granted moves in the four steps of [`moves`](super::moves), so all that is argued there
//! holds. What is added is that the last home's frame lacks one interval, whose diff its next home has kept:
//!
//! - *Who needs that interval does not wait at the last home.* Before the departure only those need it who
//!   have heard of it, and a node passes nothing on while it withholds anything: ahead of a lock's grant, of
//!   a release, of an operation on a word, or of a fetch of such a page, it sends what it has withheld, as if
//!   it had never claimed. Behind the departure all others ask the next home.
//! - *The next home's frame holds the interval.* Where it gets content from the last home (a thread outside
//!   the team has written the page there meanwhile), it applies its own diff to that: both are of concurrent
//!   intervals, and so of different bytes. If one of its own threads has written the page again, the withheld
//!   diff goes ahead of the later one.
//! - *No word is published too early.* While diffs of an interval are withheld from a home, what else it gets
//!   of that interval does not say that it is all; another message says so behind the departure.
//!
//! After a claim nobody else has a good copy: all have been told of the interval, whose diff was nowhere
//! else. So the page is reclaimed at once, and is exclusive with its next store.
//!
//! Not claimed are pages that nobody had written before, as who initialises a page need not be who uses it;
//! pages with atomic words, which their homes keep and tell all nodes of; and, for twice as many periods each
//! time, pages that were claimed in vain or move again and again.

use std::collections::BTreeMap;

use hiroba_base::{IntervalSeq, NodeId, PageId, PageSet};
use hiroba_wire::{HomeMoves, MOVES_PER_HOME_MAX, MoveKind};
use rustc_hash::FxHashMap;

use super::{Flush, Hlrc, send_flush};
use crate::Effect;
use crate::coherence::{AfterRelease, PageMove, Site};

/// Bytes of diffs that are withheld at one collective, at most. Further diffs go to their homes.
const WITHHELD_BYTES_MAX: usize = 8 << 20;

/// A page is claimed after at most so many periods in which nobody else has written it.
const PERIODS_MAX: u32 = 64;

/// So many claims of a page are granted before each next one takes twice as many periods: who has initialised
/// the page, and who uses it.
const FREE_MOVES: u32 = 2;

/// What a node knows of claims.
#[derive(Debug, Default)]
pub(super) struct Claims {
    is_on: bool,
    withheld: BTreeMap<PageId, Withheld>,
    withheld_bytes: usize,
    /// Homes that got some of the interval whose other diffs are withheld, and a page of it.
    unfinished: BTreeMap<NodeId, (PageId, IntervalSeq)>,
    /// Pages that take more than one period to claim.
    held_back: FxHashMap<PageId, HeldBack>,
    /// How often pages have moved because they were claimed, by any node.
    granted: FxHashMap<PageId, u32>,
    /// Pages that their homes keep for good.
    kept: PageSet,
    /// Pages homed here of which that is still to be told.
    with_new_words: PageSet,
}

/// A diff that its writer has not sent.
#[derive(Debug)]
struct Withheld {
    home: NodeId,
    seq: IntervalSeq,
    runs: Vec<u8>,
    /// The writer is the page's next home.
    is_granted: bool,
}

/// How long a page that is not claimed at once has been written by this node alone.
#[derive(Clone, Copy, Debug, Default)]
struct HeldBack {
    periods: u32,
    /// So many are needed.
    needs: u32,
}

impl Claims {
    pub(super) fn are_on(&self) -> bool {
        self.is_on
    }

    /// A notice says that another node has written the page.
    pub(super) fn note_other_writer(&mut self, page: PageId) {
        if let Some(held_back) = self.held_back.get_mut(&page) {
            held_back.periods = 0;
        }
    }

    /// Threads have operated on a word of a page that is homed here.
    pub(super) fn note_words(&mut self, page: PageId) {
        if self.is_on && !self.kept.contains(page) {
            self.with_new_words.insert(page);
        }
    }

    /// This node alone has written the page since the last collective, as far as it knows. Whether it should
    /// claim the page.
    fn is_due(&mut self, page: PageId) -> bool {
        let granted = self.granted.get(&page).copied().unwrap_or_default();
        let by_moves = 1 << granted.saturating_sub(FREE_MOVES - 1).min(PERIODS_MAX.ilog2());
        let held_back = match self.held_back.get_mut(&page) {
            Some(held_back) => held_back,
            None if by_moves > 1 => self.held_back.entry(page).or_default(),
            None => return true,
        };
        held_back.periods = held_back.periods.saturating_add(1);
        held_back.periods >= held_back.needs.max(by_moves)
    }

    /// Others have written the page, too.
    fn note_refusal(&mut self, page: PageId) {
        let held_back = self.held_back.entry(page).or_default();
        *held_back = HeldBack { periods: 0, needs: (2 * held_back.needs).clamp(2, PERIODS_MAX) };
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

    /// Takes what is withheld and not granted.
    fn take_refused(&mut self) -> Vec<(PageId, Withheld)> {
        let refused: Vec<PageId> = self.not_granted().collect();
        let take = |page| Some((page, self.take(page)?));
        refused.into_iter().filter_map(take).collect()
    }

    /// Whether diffs of the interval that is being closed are withheld from a home.
    pub(super) fn withholds_from(&self, home: NodeId, seq: IntervalSeq) -> bool {
        self.withheld.values().any(|withheld| withheld.home == home && withheld.seq == seq)
    }

    /// A home has got some of an interval, and may not take it for all.
    pub(super) fn leave_unfinished(&mut self, home: NodeId, page: PageId, seq: IntervalSeq) {
        self.unfinished.insert(home, (page, seq));
    }
}

impl Hlrc {
    /// Has a node claim the pages that it alone writes.
    ///
    /// # Panics
    /// When data races are looked for, which needs homes that stay.
    pub fn claiming_homes(mut self) -> Hlrc {
        assert!(!self.looks_for_races, "homes stay when data races are looked for");
        self.moves.claims.is_on = true;
        self
    }

    /// The page differs from its twin at the end of the interval that is being closed: keeps the diff, if
    /// this node is to claim the page; else gives it back.
    pub(super) fn withhold(&mut self, site: &mut Site, page_id: PageId, runs: Vec<u8>) -> Option<Vec<u8>> {
        let home = site.locate(page_id).home;
        if !self.may_claim(site, page_id, home, runs.len()) || !self.moves.claims.is_due(page_id) {
            return Some(runs);
        }
        let seq = site.closing();
        self.pages.entry(page_id).or_default().held.advance(site.me, seq);
        self.moves.claims.withhold(page_id, Withheld { home, seq, runs, is_granted: false });
        None
    }

    fn may_claim(&self, site: &Site, page_id: PageId, home: NodeId, bytes: usize) -> bool {
        let claims = &self.moves.claims;
        // An operation on a word leaves an empty diff.
        if !claims.is_on || !site.goes_to_meet() || bytes == 0 {
            return false;
        }
        // A home may give as many again at the same collective.
        let most = MOVES_PER_HOME_MAX / 2 / u64::from(site.limits.nodes);
        let has_room = (claims.withheld.len() as u64) < most
            && claims.withheld_bytes + bytes <= WITHHELD_BYTES_MAX
            && !claims.withheld.contains_key(&page_id);
        let stays = claims.kept.contains(page_id)
            || self.operated_on.contains(page_id)
            || self.moves.keeps_away(page_id);
        // What no notice has ever told of is being initialised.
        let is_good = |page: &super::Page| page.valid && page.fetch.is_none() && !page.held.is_empty();
        has_room && !stays && home != site.me && self.pages.get(&page_id).is_some_and(is_good)
    }

    /// This node arrives at a collective: what it claims, and what it keeps.
    pub(super) fn claim(&mut self, site: &Site, is_busy: bool) -> Vec<HomeMoves> {
        let claims = &mut self.moves.claims;
        let mut moves = Vec::new();
        if !claims.is_on {
            return moves;
        }
        // What was granted at an earlier collective may still be on its way.
        let pages: PageSet = claims.not_granted().collect();
        let kept: PageSet = claims.with_new_words.iter().take(MOVES_PER_HOME_MAX as usize / 4).collect();
        kept.iter().for_each(|page| _ = claims.with_new_words.remove(page));
        for (pages, kind) in [(pages, MoveKind::Claimed), (kept, MoveKind::Kept)] {
            if !pages.is_empty() {
                moves.push(HomeMoves { to: site.me, pages, kind });
            }
        }
        if is_busy {
            moves.push(HomeMoves { to: site.me, pages: PageSet::new(), kind: MoveKind::Kept });
        }
        moves
    }

    /// Sends what is withheld and not granted, as if it had never been claimed: others may hear of its
    /// interval now.
    pub(super) fn send_withheld(&mut self, site: &mut Site) {
        let mut homes: BTreeMap<(NodeId, IntervalSeq), Flush> = BTreeMap::new();
        for (page_id, Withheld { home, seq, runs, .. }) in self.moves.claims.take_refused() {
            let flush = homes.entry((home, seq)).or_default();
            flush.bytes += runs.len();
            flush.diffs.push((page_id, runs));
        }
        // Of an interval all of whose other diffs were granted nothing is missing any more.
        let is_left = |home: &NodeId, seq: IntervalSeq| homes.contains_key(&(*home, seq));
        let unfinished = std::mem::take(&mut self.moves.claims.unfinished);
        let finished = unfinished.into_iter().filter(|(home, (_, seq))| !is_left(home, *seq));
        for (home, (page_id, seq)) in finished.collect::<Vec<_>>() {
            homes.entry((home, seq)).or_default().diffs.push((page_id, Vec::new()));
        }
        for ((home, seq), flush) in homes {
            send_flush(site, home, seq, true, &flush);
        }
    }

    /// This node fetches pages, which must hold what it has written itself.
    pub(super) fn send_withheld_before_fetch(&mut self, site: &mut Site, pages: &[PageId]) {
        let claims = &self.moves.claims;
        if !claims.withheld.is_empty() && pages.iter().any(|page| claims.withheld.contains_key(page)) {
            self.send_withheld(site);
        }
    }

    /// All nodes have agreed on moves: what this node has claimed in vain goes to its home.
    pub(super) fn end_claims(&mut self, site: &mut Site, moves: &[PageMove]) {
        let claims = &mut self.moves.claims;
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
                MoveKind::Given => {}
            }
        }
        let refused: Vec<PageId> = claims.not_granted().collect();
        refused.into_iter().for_each(|page| claims.note_refusal(page));
        self.send_withheld(site);
    }

    /// A later interval has changed the page as well: what is withheld of an earlier one goes ahead.
    pub(super) fn send_withheld_of(&mut self, site: &mut Site, page_id: PageId) {
        if let Some(Withheld { home, seq, runs, .. }) = self.moves.claims.take(page_id) {
            let flush = Flush { bytes: runs.len(), diffs: vec![(page_id, runs)] };
            send_flush(site, home, seq, false, &flush);
        }
    }

    /// This node is the home of the page, with content from the last home or without. Whether nobody has seen
    /// what it had withheld.
    pub(super) fn keep_withheld(&mut self, site: &mut Site, page_id: PageId, was_sent: bool) -> bool {
        let Some(Withheld { runs, .. }) = self.moves.claims.take(page_id) else { return false };
        if was_sent {
            site.out.push(Effect::Apply { page: page_id, runs });
        }
        true
    }
}

impl Site {
    /// Whether the interval is being closed because the node arrives at a collective after which the job goes
    /// on.
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
    fn a_page_that_is_claimed_in_vain_or_moves_again_and_again_takes_twice_as_many_periods_each_time() {
        let page = PageId(3);
        let mut claims = Claims::default();
        assert!(claims.is_due(page), "the first period suffices");
        claims.note_refusal(page);
        assert!(!claims.is_due(page));
        claims.note_other_writer(page);
        assert!(!claims.is_due(page), "it begins anew");
        assert!(claims.is_due(page));
        claims.note_refusal(page);
        assert_eq!((0..4).map(|_| claims.is_due(page)).collect::<Vec<_>>(), [false, false, false, true]);
        (0..20).for_each(|_| claims.note_refusal(page));
        assert_eq!(claims.held_back[&page].needs, PERIODS_MAX, "but not for ever");

        let other = PageId(4);
        for (granted, needs) in [(0, 1), (1, 1), (2, 2), (3, 4), (40, PERIODS_MAX)] {
            claims.held_back.remove(&other);
            claims.granted.insert(other, granted);
            let periods = (1..).find(|_| claims.is_due(other));
            assert_eq!(periods, Some(needs), "after {granted} moves");
        }
    }
}
