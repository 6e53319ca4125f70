//! The last home's part: chooses the pages that it gives away, and hands them over.

use std::collections::BTreeMap;

use hiroba_base::{IntervalSeq, NodeId, PageId, PageSet, VersionVector};
use hiroba_wire::{HomeMoves, MOVES_PER_HOME_MAX, Message, MoveKind, PageHandedOver, PagesHeld};
use rustc_hash::FxHashMap;

use super::{Moves, Pages};
use crate::batches::replies;
use crate::coherence::{PageMove, Site};
use crate::{Effect, Expected, PageToSend, ProtocolError, unexpected};

/// The maximum number of pages that one message hands over.
const HANDED_OVER_PER_MESSAGE: usize = 256;

/// The state of pages that a home may give away.
#[derive(Debug, Default)]
pub(super) struct Giving {
    /// The pages that leave.
    pub(super) round: Option<Round>,
    /// Intervals of which pages homed here contain a part, and which are not in their versions
    /// ([`crate::aurc`]).
    parts: FxHashMap<PageId, VersionVector>,
    /// The number of times that pages homed here have moved.
    times: FxHashMap<PageId, u32>,
}

/// Pages that leave together.
#[derive(Debug, Default)]
pub(super) struct Round {
    next_homes: BTreeMap<PageId, NodeId>,
    /// Those that go to their first touchers.
    placed: PageSet,
    /// Those that the program could access until they rested.
    pub(super) open: PageSet,
    /// The versions of these pages that the next homes hold.
    held: FxHashMap<PageId, VersionVector>,
    /// The number of other nodes that do not know of the round yet.
    unheard: u16,
    /// True if this node has departed, too.
    pub(super) is_agreed: bool,
    /// True if the pages rest.
    is_resting: bool,
}

/// Pages that have been handed over, and are copies here once the protocol has called
/// [`Moves::became_copy`].
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct HandedOver {
    pub(crate) next_homes: BTreeMap<PageId, NodeId>,
    /// Those that the program could access until they rested.
    pub(crate) open: PageSet,
}

impl Round {
    pub(super) fn next_home(&self, page: PageId) -> Option<NodeId> {
        self.next_homes.get(&page).copied()
    }

    /// Returns true if the page rests because it leaves.
    pub(super) fn keeps_away(&self, page: PageId) -> bool {
        self.is_resting && self.next_homes.contains_key(&page)
    }

    pub(super) fn next_homes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.next_homes.values().copied()
    }

    pub(super) fn is_resting(&self) -> bool {
        self.is_resting
    }

    /// Returns true if all nodes know that the pages leave.
    fn is_to_hand_over(&self) -> bool {
        self.is_agreed && self.unheard == 0
    }
}

impl Giving {
    /// Returns the pages that leave, once all nodes know of it.
    pub(super) fn to_hand_over(&self) -> Vec<PageId> {
        let round = self.round.as_ref().filter(|round| round.is_to_hand_over());
        round.map_or_else(Vec::new, |round| round.next_homes.keys().copied().collect())
    }

    /// Keeps pages that this node has proposed to give away, and that are not among the agreed moves.
    pub(super) fn withdraw_refused(&mut self, agreed: &[PageMove]) {
        let Some(round) = self.round.as_mut() else { return };
        let given = agreed.iter().filter(|moved| moved.kind == MoveKind::Given);
        let given: PageSet = given.map(|moved| moved.page).collect();
        round.next_homes.retain(|page, _| given.contains(*page));
        round.placed = round.placed.iter().filter(|page| given.contains(*page)).collect();
        if round.next_homes.is_empty() {
            self.round = None;
        }
    }

    /// Begins the rest of these pages: the interval that is being closed is their last one here.
    pub(super) fn begin_rest(&mut self) {
        if let Some(round) = self.round.as_mut().filter(|round| round.is_to_hand_over()) {
            round.is_resting = true;
        }
    }

    /// Notes that a page has come here with its `moves`-th move.
    pub(super) fn note_moves(&mut self, page: PageId, moves: u32) {
        self.times.insert(page, moves);
    }
}

/// State that a page's version does not contain.
impl Moves {
    /// Notes that a page homed here contains a part of the changes of an open interval.
    pub(crate) fn applied_in_part(&mut self, site: &Site, page: PageId, writer: NodeId, seq: IntervalSeq) {
        if self.are_on(site) {
            self.giving.parts.entry(page).or_default().advance(writer, seq);
        }
    }

    /// Notes that a page homed here contains all changes of these intervals.
    pub(crate) fn applied(&mut self, page: PageId, version: &VersionVector) {
        if let Some(parts) = self.giving.parts.get_mut(&page) {
            parts.retain_beyond(version);
            if parts.is_empty() {
                self.giving.parts.remove(&page);
            }
        }
    }
}

/// Choosing pages.
impl Moves {
    /// Returns the moves to propose and the pages to claim. This node arrives at a collective.
    pub(crate) fn arrives(&mut self, site: &Site, pages: &impl Pages) -> Vec<HomeMoves> {
        if !self.are_on(site) {
            return Vec::new();
        }
        let is_free = self.giving.round.is_none();
        let coming = self.coming.pages.keys().copied().collect();
        let claimed = self.claims.proposals(site, !is_free, coming);
        // Other nodes may claim the other half.
        let most = if self.claims.are_on() { MOVES_PER_HOME_MAX / 2 } else { MOVES_PER_HOME_MAX };
        let room = if is_free { most } else { 0 };
        let is_here = |page| site.is_home(page) && pages.has_words(page) != Some(true);
        let mut next_homes = self.choice.take_first_touched(room, is_here);
        let placed: PageSet = next_homes.keys().copied().collect();
        let times = |page| self.giving.times.get(&page).copied().unwrap_or_default();
        // Without claims only a node that modifies a page again and again gets it.
        let returns = self.claims.are_on();
        let placed_on = |page| if returns { site.homes.placed_on(page) } else { site.me };
        self.choice.end_period(site.me, placed_on, times, |page, to| {
            let may_leave = is_free && pages.has_words(page) == Some(false) && !placed.contains(page);
            let leaves = may_leave && (next_homes.len() as u64) < most;
            if leaves {
                next_homes.insert(page, to);
            }
            leaves
        });
        let mut moves: BTreeMap<NodeId, PageSet> = BTreeMap::new();
        for (page, to) in &next_homes {
            moves.entry(*to).or_default().insert(*page);
        }
        if !next_homes.is_empty() {
            let unheard = site.limits.nodes - 1;
            self.giving.round = Some(Round { next_homes, placed, unheard, ..Round::default() });
        }
        let given = moves.into_iter().map(|(to, pages)| HomeMoves { to, pages, kind: MoveKind::Given });
        given.chain(claimed).collect()
    }

    /// Agrees that a page homed here gets another home.
    pub(super) fn agree_to_give(
        &mut self,
        site: &Site,
        is_free: bool,
        PageMove { page, to, kind }: PageMove,
    ) -> Result<(), ProtocolError> {
        let is_claimed = kind == MoveKind::Claimed && self.claims.are_on();
        let round = match &mut self.giving.round {
            None if is_claimed => {
                let unheard = site.limits.nodes - 1;
                Some(self.giving.round.insert(Round { unheard, ..Round::default() }))
            }
            round => round.as_mut(),
        };
        let is_proposed = |round: &&mut Round| match round.next_home(page) {
            Some(next) => next == to,
            None => is_claimed,
        };
        let Some(round) = round.filter(is_proposed).filter(|_| is_free) else {
            return Err(unexpected(Expected::ProposedMoves, format!("one of {page}")));
        };
        round.next_homes.insert(page, to);
        round.is_agreed = true;
        Ok(())
    }

    /// Handles the report of a node that it knows which pages leave, with the versions of the pages that go
    /// there. Returns the pages to rest if this node was the last one.
    pub(crate) fn heard(
        &mut self,
        from: NodeId,
        page: PageId,
        held: &[PagesHeld],
    ) -> Result<Vec<PageId>, ProtocolError> {
        let is_awaited =
            |round: &&mut Round| round.unheard > 0 && !round.is_resting && round.next_home(page).is_some();
        let Some(round) = self.giving.round.as_mut().filter(is_awaited) else {
            return Err(unexpected(
                Expected::WordOfProposedMoves,
                format!("word of {page} from node {from}"),
            ));
        };
        round.unheard -= 1;
        for PagesHeld { version, pages } in held {
            let theirs = pages.iter().filter(|page| round.next_homes.get(page) == Some(&from));
            round.held.extend(theirs.map(|page| (page, version.clone())));
        }
        Ok(self.giving.to_hand_over())
    }
}

/// Handing over.
impl Moves {
    /// Hands over the pages that rest because they leave. Returns them.
    pub(super) fn hand_over(&mut self, site: &mut Site, pages: &mut impl Pages) -> HandedOver {
        let Some(round) = self.giving.round.take_if(|round| round.is_resting) else {
            return HandedOver::default();
        };
        assert!(round.is_agreed, "all have agreed on pages that leave");
        assert_eq!(round.unheard, 0, "all others have said that they have heard");
        let Round { next_homes, placed, open, held, .. } = round;
        let mut of_each: BTreeMap<NodeId, Vec<PageHandedOver>> = BTreeMap::new();
        let mut turns = pages.take_turns(&|page| next_homes.contains_key(&page));
        for (page, to) in &next_homes {
            assert_ne!(*to, site.me, "{page}: it goes to another node");
            let times = self.giving.times.remove(page).unwrap_or_default();
            // The changes of an open interval are in no version.
            let has_part = self.giving.parts.remove(page).is_some();
            let version = pages.version(*page).cloned().unwrap_or_default();
            let has_all = !has_part && held.get(page).is_some_and(|held| held.covers(&version));
            let has_words = pages.has_words(*page) == Some(true);
            let handed = PageHandedOver {
                page: *page,
                version,
                // The move to the first toucher is no sign that the page goes to and fro.
                moves: times.saturating_add(u32::from(!placed.contains(*page))),
                // The results of operations on a word may be in no version yet.
                is_sent: !has_all || has_words,
                has_words,
                turns: turns.remove(page).unwrap_or_default(),
            };
            of_each.entry(*to).or_default().push(handed);
        }
        of_each.into_iter().for_each(|(to, handed)| send_handed_over(site, to, handed));
        HandedOver { next_homes, open }
    }
}

fn send_handed_over(site: &mut Site, to: NodeId, mut handed: Vec<PageHandedOver>) {
    while !handed.is_empty() {
        let rest = handed.split_off(handed.len().min(HANDED_OVER_PER_MESSAGE));
        let pages = std::mem::replace(&mut handed, rest);
        let sent = pages.iter().filter(|page| page.is_sent);
        let contents: Vec<PageToSend> = sent
            .map(|PageHandedOver { page, version, .. }| PageToSend {
                from_twin: false,
                page: *page,
                page_bytes: site.page_bytes(*page),
                version: version.clone(),
            })
            .collect();
        site.out.send(to, &Message::HomeHandedOver { pages });
        let replies = replies(contents).into_iter();
        site.out.extend(replies.map(|pages| Effect::SendPages { to, pages }));
    }
}
