//! Chooses which of the pages homed here should move, and to which nodes.
//!
//! A protocol reports the nodes that touch, modify and fetch its home pages, and asks at collectives which
//! pages should move. The protocol itself moves them: `moves.rs` and `erc/moving.rs`.

use std::collections::BTreeMap;

use hiroba_base::{NodeId, PageId, PageSet};
use rustc_hash::FxHashMap;

use super::HomeMap;

/// The policy by which homes move.
///
/// Harada, Ishikawa, Hori, Tezuka, Sumimoto, Takahashi, *Dynamic Home Node Reallocation on Software
/// Distributed Shared Memory System*, HPC Asia 2000 (by modification); Sakae, Matsuoka, Sato, Harada,
/// *Implementation and Evaluation of Dynamic Load Balancing Using Loop Re-partitioning on Omni/SCASH*,
/// section 5 (by page faults).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HomePolicy {
    /// Pages stay where their region places them.
    #[default]
    Fixed,
    /// At barriers a page goes to the node that has modified most of it.
    Modification,
    /// A page goes to the node that faults on it most.
    Faults,
}

impl HomePolicy {
    /// All policies.
    pub const ALL: [HomePolicy; 3] = [HomePolicy::Fixed, HomePolicy::Modification, HomePolicy::Faults];

    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            HomePolicy::Fixed => "off",
            HomePolicy::Modification => "modification",
            HomePolicy::Faults => "faults",
        }
    }

    /// Returns the policy of that name.
    pub fn named(name: &str) -> Option<HomePolicy> {
        HomePolicy::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// The evidence that a page needs to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveThreshold {
    /// The number of periods (from barrier to barrier) in which one node has modified most of the page.
    pub periods: u32,
    /// The number of one node's faults beyond those of all others.
    pub faults: u64,
    /// The maximum number of moves of a page that double both other thresholds. Each move up to it does, so a
    /// page that two nodes want in turn stops moving.
    pub doublings_max: u32,
}

impl Default for MoveThreshold {
    fn default() -> MoveThreshold {
        MoveThreshold { periods: 2, faults: 8, doublings_max: 8 }
    }
}

/// The counts by which a page's home decides whether another node would be the better home.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HomeUse {
    /// By node, the number of bytes that it has modified, or of its faults.
    amounts: Vec<(NodeId, u64)>,
    /// The node that modified most in the latest periods, and their number in succession.
    favourite: Option<(NodeId, u32)>,
    /// The number of periods in succession in which no node modified it.
    idle: u32,
    /// The number of further periods in which it counts as contended.
    contended: u32,
}

/// The number of periods in which a page counts as contended after two nodes have written it in one period.
/// It is more than one because a program may write a page on one node only in some phases of each step.
pub(crate) const CONTENDED_PERIODS: u32 = 16;

/// The number of periods without a modification after which a page's counts are discarded. It is more than
/// one because programs have several barriers a step.
const IDLE_PERIODS_MAX: u32 = 16;

/// The maximum number of moves of a contended page that returns to where its region places it.
const MOVES_BEFORE_RETURN_MAX: u32 = 1;

impl HomeUse {
    /// Adds the bytes that a node has modified, or its faults.
    pub fn note(&mut self, node: NodeId, amount: u64) {
        match self.amounts.iter_mut().find(|(other, _)| *other == node) {
            Some((_, amounts)) => *amounts += amount,
            None => self.amounts.push((node, amount)),
        }
    }

    /// Returns true if any use has been noted lately.
    pub fn is_in_use(&self) -> bool {
        !self.amounts.is_empty() || self.favourite.is_some() || self.contended > 0
    }

    /// Returns the node that has more than half of the total.
    fn leader(&self) -> Option<(NodeId, u64)> {
        let sum: u64 = self.amounts.iter().map(|(_, amount)| amount).sum();
        self.amounts.iter().copied().find(|(_, amount)| 2 * amount > sum)
    }

    /// Ends a period in which modifications were noted. Returns the node that should be the home, if not
    /// this one, of a page that has moved `moves` times and that its region places on `placed`.
    ///
    /// A contended page costs its home nothing, and each other writer a fetch and a diff in each period. If
    /// it has come here because only this node wrote it at first, and `placed` writes it too, it goes back
    /// there once: regions spread their pages evenly.
    pub fn end_period(
        &mut self,
        me: NodeId,
        placed: NodeId,
        moves: u32,
        threshold: &MoveThreshold,
    ) -> Option<NodeId> {
        if self.amounts.is_empty() {
            self.idle = self.idle.saturating_add(1);
            if self.idle >= IDLE_PERIODS_MAX {
                (self.favourite, self.contended) = (None, 0);
            }
            return None;
        }
        self.idle = 0;
        let leader = self.leader().map(|(node, _)| node).filter(|node| *node != me);
        let writes = |writer| self.amounts.iter().any(|(node, _)| *node == writer);
        let is_written_here = self.amounts.len() > 1 && writes(me);
        let returns = is_written_here && placed != me && writes(placed) && moves <= MOVES_BEFORE_RETURN_MAX;
        self.contended = match leader {
            None if is_written_here => CONTENDED_PERIODS,
            _ => self.contended.saturating_sub(1),
        };
        self.amounts.clear();
        self.favourite = leader.map(|leader| match self.favourite {
            Some((node, periods)) if node == leader => (node, periods.saturating_add(1)),
            _ => (leader, 1),
        });
        if returns && self.contended > 0 {
            return Some(placed);
        }
        let (node, periods) = self.favourite?;
        let moves = moves.min(threshold.doublings_max);
        (self.contended == 0 && periods >= threshold.periods << moves).then_some(node)
    }

    /// Returns the node that should be the home, if not this one, of a page on which faults were noted and
    /// that has moved `moves` times.
    pub fn most_faulting(&self, moves: u32, threshold: &MoveThreshold) -> Option<NodeId> {
        let (node, faults) = self.leader()?;
        (faults >= threshold.faults << moves.min(threshold.doublings_max)).then_some(node)
    }
}

/// A node's counts of the use of pages that are homed there.
#[derive(Debug, Default)]
pub struct HomeChoice {
    policy: HomePolicy,
    threshold: MoveThreshold,
    /// The use of pages by the nodes that modify or fetch them.
    used: FxHashMap<PageId, HomeUse>,
    /// Pages placed by first touch that have been touched.
    touched: PageSet,
    /// Pages among them that should move to their first touchers.
    first_touched: BTreeMap<PageId, NodeId>,
}

/// Reports about a node's pages.
impl HomeChoice {
    /// Sets the policy by which homes move from now on.
    pub fn set_policy(&mut self, policy: HomePolicy) {
        self.policy = policy;
    }

    /// Sets the threshold above which a home moves.
    pub fn set_threshold(&mut self, threshold: MoveThreshold) {
        self.threshold = threshold;
    }

    /// Returns true if any page may move: by the policy, or to its first toucher.
    pub fn is_on(&self, homes: &HomeMap) -> bool {
        self.policy != HomePolicy::Fixed || homes.has_first_touches()
    }

    /// Notes that a node touches a page, or has written it.
    pub fn note_touch(&mut self, homes: &HomeMap, me: NodeId, node: NodeId, page: PageId) {
        if homes.sees_first_touch(me, page) && self.touched.insert(page) && node != me {
            self.first_touched.insert(page, node);
        }
    }

    /// Notes that another node has modified `bytes` bytes of a page.
    pub fn note_modified(&mut self, page: PageId, writer: NodeId, bytes: usize) {
        if self.policy == HomePolicy::Modification && bytes > 0 {
            self.used.entry(page).or_default().note(writer, bytes as u64);
        }
    }

    /// Notes that the home itself has written a page. The number of bytes is not known, so it counts as the
    /// whole page.
    pub fn note_written_here(&mut self, page: PageId, me: NodeId, page_bytes: u32) {
        if self.policy == HomePolicy::Modification
            && let Some(used) = self.used.get_mut(&page)
        {
            used.note(me, u64::from(page_bytes));
        }
    }

    /// Notes that a node has faulted on a page, or requested it.
    pub fn note_fetched(&mut self, page: PageId, by: NodeId) {
        if self.policy == HomePolicy::Faults {
            self.used.entry(page).or_default().note(by, 1);
        }
    }

    /// Discards the counts of a page that is homed elsewhere from now on.
    pub fn forget(&mut self, page: PageId) {
        self.used.remove(&page);
    }
}

/// Pages that stay.
impl HomeChoice {
    /// Leaves a page out of all choices.
    pub fn leave_out(&mut self, page: PageId) {
        self.used.remove(&page);
        self.first_touched.remove(&page);
    }
}

/// Choices that follow from the reports.
impl HomeChoice {
    /// Takes at most `pages_max` pages that should move to their first touchers, and may leave. Those that
    /// may not leave stay permanently.
    pub fn take_first_touched(
        &mut self,
        pages_max: u64,
        may_leave: impl Fn(PageId) -> bool,
    ) -> BTreeMap<PageId, NodeId> {
        let mut next_homes = BTreeMap::new();
        while (next_homes.len() as u64) < pages_max
            && let Some((page, to)) = self.first_touched.pop_first()
        {
            if may_leave(page) {
                next_homes.insert(page, to);
            }
        }
        next_homes
    }

    /// Puts off the move of a page that cannot leave now to its first toucher.
    pub fn put_off(&mut self, page: PageId, first_toucher: NodeId) {
        assert!(self.touched.contains(page), "{page}: somebody was the first to touch it");
        self.first_touched.insert(page, first_toucher);
    }

    /// Ends a period for all pages. Returns the pages that should move, with their next homes. `times`
    /// returns the number of moves of a page, `placed_on` the node to which it may return. A page that
    /// `accept` refuses is proposed again; one that it accepts is forgotten.
    pub fn end_period(
        &mut self,
        me: NodeId,
        placed_on: impl Fn(PageId) -> NodeId,
        times: impl Fn(PageId) -> u32,
        mut accept: impl FnMut(PageId, NodeId) -> bool,
    ) {
        let HomeChoice { policy, threshold, used, .. } = self;
        used.retain(|page, used| {
            let next_home = match policy {
                HomePolicy::Modification => used.end_period(me, placed_on(*page), times(*page), threshold),
                HomePolicy::Faults => used.most_faulting(times(*page), threshold),
                HomePolicy::Fixed => None,
            };
            let leaves = next_home.is_some_and(|to| accept(*page, to));
            !leaves && (*policy == HomePolicy::Faults || used.is_in_use())
        });
    }

    /// Ends a period for the pages that have been modified in it. Returns those that should move, with their
    /// next homes.
    pub fn end_period_of_modified(
        &mut self,
        me: NodeId,
        times: impl Fn(PageId) -> u32,
    ) -> BTreeMap<PageId, NodeId> {
        if self.policy != HomePolicy::Modification {
            return BTreeMap::new();
        }
        let HomeChoice { threshold, used, .. } = self;
        let modified = used.iter_mut().filter(|(_, used)| !used.amounts.is_empty());
        // Under the eager protocols each writer sends its changes to all copies, wherever the home is.
        let next_homes =
            modified.map(|(page, used)| (*page, used.end_period(me, me, times(*page), threshold)));
        next_homes.filter_map(|(page, to)| Some((page, to?))).collect()
    }

    /// Returns the next home of a page that has moved `times` times, by the faults on it. Callable at any
    /// time.
    pub fn most_faulting(&self, page: PageId, times: u32) -> Option<NodeId> {
        if self.policy != HomePolicy::Faults {
            return None;
        }
        self.used.get(&page)?.most_faulting(times, &self.threshold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_moves_to_who_modifies_most_of_it_period_after_period() {
        let (home, other, third) = (NodeId(0), NodeId(1), NodeId(2));
        let mut used = HomeUse::default();
        let mut period = |amounts: &[(NodeId, u64)], moves| {
            amounts.iter().for_each(|(node, amount)| used.note(*node, *amount));
            used.end_period(home, home, moves, &MoveThreshold::default())
        };
        assert_eq!(period(&[(other, 30), (third, 10)], 0), None);
        assert_eq!(period(&[(other, 30), (third, 30)], 0), None, "nobody modified most");
        assert_eq!(period(&[(other, 30)], 0), None, "it begins anew");
        assert_eq!(period(&[], 0), None, "nobody modified it, which says nothing");
        assert_eq!(period(&[(other, 30)], 0), Some(other));
        (0..IDLE_PERIODS_MAX).for_each(|_| assert_eq!(period(&[], 0), None));
        assert_eq!(period(&[(other, 30)], 0), None, "it begins anew");
        assert_eq!(period(&[(other, 30), (home, 10)], 0), Some(other));
        assert_eq!(period(&[(other, 30)], 1), None, "each move doubles what the next one takes");
        assert_eq!(period(&[(other, 30)], 1), Some(other));
        assert_eq!(period(&[(home, 30)], 0), None);
        assert_eq!(period(&[], 0), None);
    }

    #[test]
    fn a_page_that_its_home_writes_too_stays_for_some_periods() {
        let (home, other) = (NodeId(0), NodeId(1));
        let mut used = HomeUse::default();
        let mut period = |amounts: &[(NodeId, u64)]| {
            amounts.iter().for_each(|(node, amount)| used.note(*node, *amount));
            used.end_period(home, home, 0, &MoveThreshold::default())
        };
        for _ in 0..3 {
            assert_eq!(period(&[(other, 30), (home, 4096)]), None);
            (1..CONTENDED_PERIODS).for_each(|_| assert_eq!(period(&[(other, 30)]), None, "it is contended"));
        }
        assert_eq!(period(&[(other, 30)]), Some(other), "its home has not written it for long enough");
        assert_eq!(period(&[(other, 30), (home, 4096)]), None);
        (0..IDLE_PERIODS_MAX).for_each(|_| assert_eq!(period(&[]), None));
        assert_eq!((period(&[(other, 30)]), period(&[(other, 30)])), (None, Some(other)), "it begins anew");
    }

    #[test]
    fn a_contended_page_returns_once_to_where_it_was_placed() {
        let (home, placed, third) = (NodeId(0), NodeId(1), NodeId(2));
        let period = |used: &mut HomeUse, writers: &[NodeId], moves| {
            writers.iter().for_each(|node| used.note(*node, 4096));
            used.end_period(home, placed, moves, &MoveThreshold::default())
        };
        let fresh = HomeUse::default;
        assert_eq!(period(&mut fresh(), &[home, placed], 1), Some(placed));
        assert_eq!(period(&mut fresh(), &[home, placed, third], 1), Some(placed));
        assert_eq!(
            period(&mut fresh(), &[home, third], 1),
            None,
            "who has it by placement does not write it"
        );
        assert_eq!(period(&mut fresh(), &[placed], 1), None, "it is not contended");
        assert_eq!(period(&mut fresh(), &[home, placed], 2), None, "it has been there again");
    }

    #[test]
    fn a_page_moves_to_who_faults_on_it_most() {
        let mut used = HomeUse::default();
        let threshold = MoveThreshold::default();
        used.note(NodeId(2), 4);
        (0..threshold.faults - 1).for_each(|_| used.note(NodeId(1), 1));
        assert_eq!(used.most_faulting(0, &threshold), None);
        used.note(NodeId(1), 1);
        assert_eq!(
            (used.most_faulting(0, &threshold), used.most_faulting(1, &threshold)),
            (Some(NodeId(1)), None)
        );
        used.note(NodeId(2), 4);
        assert_eq!(used.most_faulting(0, &threshold), None, "another one faults as often");
    }

    #[test]
    fn a_policy_looks_only_at_what_it_counts() {
        let (me, other, page) = (NodeId(0), NodeId(1), PageId(7));
        let mut choice = HomeChoice::default();
        choice.set_policy(HomePolicy::Modification);
        choice.note_modified(page, other, 4096);
        assert_eq!(choice.most_faulting(page, 0), None, "bytes are no faults");
        choice.set_policy(HomePolicy::Faults);
        (0..MoveThreshold::default().faults).for_each(|_| choice.note_fetched(page, other));
        assert!(choice.end_period_of_modified(me, |_| 0).is_empty(), "faults are no modifications");
        assert_eq!(choice.most_faulting(page, 0), Some(other), "and a barrier does not clear them");
    }

    #[test]
    fn policies_have_the_names_of_the_command_line() {
        for policy in HomePolicy::ALL {
            assert_eq!(HomePolicy::named(policy.name()), Some(policy));
        }
        assert_eq!(HomePolicy::named("on"), None);
    }
}
