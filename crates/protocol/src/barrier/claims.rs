//! Decides which claims to pages are granted. The root of the tree does this, because it knows all writes
//! since the last collective.
//!
//! A node that has written a page whose home is elsewhere may claim the page with its arrival. It gets the
//! page if no other node has written it, nor claims it, nor is given it, if its home does not keep it, and if
//! the page is not on its way to a home: until it has come there, its next home cannot give it away.
//! The departure names granted claims alone, so all nodes decide alike.
//!
//! A home that is *busy*, because pages of it are on their way or change their protocol
//! (`consistency/converting.rs`), keeps all of its pages. It gives none away either: what it proposed before
//! it became busy is refused.

use std::collections::BTreeSet;

use hiroba_base::{NodeId, PageId};
use hiroba_wire::{HomeMoves, MoveKind};
use rustc_hash::{FxHashMap, FxHashSet};

use super::Arrival;
use crate::home::HomeMap;

/// Returns what all nodes agree on of their proposals.
pub(super) fn settle(
    moves: Vec<HomeMoves>,
    keeping: Vec<NodeId>,
    arrivals: &[(NodeId, Arrival)],
    homes: &HomeMap,
) -> Vec<HomeMoves> {
    if keeping.is_empty() && moves.iter().all(|moved| moved.kind == MoveKind::Given) {
        return moves;
    }
    let is_marker = |moved: &&HomeMoves| moved.kind == MoveKind::Kept && moved.pages.is_empty();
    let busy: BTreeSet<NodeId> =
        moves.iter().filter(is_marker).map(|moved| moved.to).chain(keeping).collect();
    let may_leave = |page: &PageId| homes.home_of(*page).is_some_and(|home| !busy.contains(&home));
    let granted = granted(&moves, arrivals, may_leave);
    let proposed = moves.into_iter().filter(|moved| moved.kind != MoveKind::Coming);
    let agreed = proposed.map(|HomeMoves { to, pages, kind }| {
        let is_agreed = |page: &PageId| match kind {
            MoveKind::Claimed => granted.contains(page),
            MoveKind::Given => may_leave(page),
            MoveKind::Kept | MoveKind::Coming => true,
        };
        HomeMoves { to, pages: pages.iter().filter(is_agreed).collect(), kind }
    });
    agreed.filter(|moved| !moved.pages.is_empty()).collect()
}

fn granted(
    moves: &[HomeMoves],
    arrivals: &[(NodeId, Arrival)],
    may_leave: impl Fn(&PageId) -> bool,
) -> FxHashSet<PageId> {
    let mut claimants: FxHashMap<PageId, NodeId> = FxHashMap::default();
    let mut refused: FxHashSet<PageId> = FxHashSet::default();
    for HomeMoves { to, pages, kind } in moves {
        match kind {
            MoveKind::Claimed => {
                let twice = |page: &PageId| claimants.insert(*page, *to).is_some();
                refused.extend(pages.iter().filter(twice).collect::<Vec<_>>());
            }
            MoveKind::Given | MoveKind::Kept | MoveKind::Coming => refused.extend(pages.iter()),
        }
    }
    let notices = arrivals.iter().flat_map(|(_, arrival)| &arrival.knowledge.notices);
    for notice in notices {
        let is_by_another =
            |page: &PageId| claimants.get(page).is_some_and(|claimant| *claimant != notice.node);
        refused.extend(notice.pages.iter().filter(is_by_another));
    }
    claimants.into_keys().filter(|page| !refused.contains(page) && may_leave(page)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use hiroba_base::{PageRange, PageSet, VectorTimestamp};
    use hiroba_wire::{Collective, IntervalNotice, Knowledge, Placement};

    use super::*;

    fn pages(pages: &[u64]) -> PageSet {
        pages.iter().copied().map(PageId).collect()
    }

    fn moving(to: u16, moved: &[u64], kind: MoveKind) -> HomeMoves {
        HomeMoves { to: NodeId(to), pages: pages(moved), kind }
    }

    fn arrival(node: u16, written: &[u64]) -> (NodeId, Arrival) {
        let notices = vec![IntervalNotice { node: NodeId(node), seq: 1, pages: pages(written) }];
        let timestamp = VectorTimestamp::new(3);
        let knowledge = Knowledge { timestamp, notices, epoch: 0, beyond_arrival: false };
        let collective = Collective::Barrier;
        let (caller, least, moves, contributions) = (NodeId(node), None, Vec::new(), BTreeMap::new());
        let arrival = Arrival { collective, caller, least, knowledge, moves, contributions };
        (NodeId(node), arrival)
    }

    #[test]
    fn a_claim_is_granted_if_nobody_else_has_to_do_with_the_page() {
        let mut homes = HomeMap::new(3);
        homes.add(PageRange { first: PageId(0), count: 8 }, 1, Placement::On(NodeId(0)));
        homes.add(PageRange { first: PageId(8), count: 2 }, 1, Placement::On(NodeId(2)));
        let arrivals = [arrival(0, &[5]), arrival(1, &[0, 1, 2, 3, 4, 5, 7, 8]), arrival(2, &[1, 6])];
        let proposed = vec![
            moving(1, &[0, 1, 2, 3, 4, 5, 7, 8], MoveKind::Claimed),
            moving(2, &[2, 6], MoveKind::Claimed),
            moving(2, &[3], MoveKind::Given),
            moving(0, &[4], MoveKind::Kept),
            moving(2, &[], MoveKind::Kept),
            moving(0, &[7], MoveKind::Coming),
        ];
        let agreed = [
            moving(1, &[0], MoveKind::Claimed),
            moving(2, &[6], MoveKind::Claimed),
            moving(2, &[3], MoveKind::Given),
            moving(0, &[4], MoveKind::Kept),
        ];
        assert_eq!(settle(proposed, Vec::new(), &arrivals, &homes), agreed);
    }

    #[test]
    fn what_homes_give_is_agreed_on_as_it_is() {
        let given = vec![moving(1, &[0], MoveKind::Given), moving(2, &[1], MoveKind::Given)];
        assert_eq!(settle(given.clone(), Vec::new(), &[], &HomeMap::new(3)), given);
    }

    #[test]
    fn a_home_that_asks_to_keep_its_pages_gives_none_away() {
        let mut homes = HomeMap::new(3);
        homes.add(PageRange { first: PageId(0), count: 4 }, 1, Placement::On(NodeId(0)));
        homes.add(PageRange { first: PageId(4), count: 4 }, 1, Placement::On(NodeId(2)));
        let arrivals = [arrival(0, &[]), arrival(1, &[1]), arrival(2, &[])];
        let proposed = vec![
            moving(1, &[0], MoveKind::Given),
            moving(1, &[4], MoveKind::Given),
            moving(1, &[1], MoveKind::Claimed),
        ];
        let agreed = [moving(1, &[4], MoveKind::Given)];
        assert_eq!(settle(proposed, vec![NodeId(0)], &arrivals, &homes), agreed);
    }
}
