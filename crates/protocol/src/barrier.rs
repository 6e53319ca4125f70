//! Barriers and the other collectives: every node reports what it has written since the last one, and learns
//! what the others have written.
//!
//! The nodes form a tree with node 0 at its root. Each node waits for the nodes directly below it and for
//! itself, and then arrives, for all of them, at the node directly above. When all have arrived at the root,
//! it departs, and departures run down the tree. No node receives messages from more than [`BELOW_MAX`]
//! others, whatever their number; with at most [`BELOW_MAX`] + 1 nodes the tree is flat.
//!
//! A notice crosses each edge once upwards and once downwards. A node keeps the reports of the nodes below
//! until the departure, and then passes them on to those of them that lack them; no node above repeats them.
//!
//! A collective carries its kind (a barrier, an allocation, leaving the job). If two nodes meet in different
//! kinds, the program is wrong, and would wait for ever. The node where their paths join reports that
//! instead.
//!
//! Bytes that nodes contribute travel with the arrivals to the root, whose thread uses them before the
//! departure (`consistency/contributions.rs`).

mod claims;

use std::collections::BTreeMap;

use hiroba_base::{IntervalSeq, NodeId, PageSet, VectorTimestamp};
use hiroba_wire::{Collective, Contribution, HomeMoves, IntervalNotice, Knowledge, Message};

use crate::home::HomeMap;
use crate::outbox::Outbox;
use crate::{Expected, Protocol, ProtocolError};

/// The maximum number of nodes directly below another one in the tree.
pub const BELOW_MAX: u16 = 4;

/// The tree that the nodes of a job form. A node has at most `below_max` children; nodes fill the tree in the
/// order of their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    nodes: u16,
    below_max: u16,
}

impl Tree {
    /// Returns the tree of `nodes` nodes with at most [`BELOW_MAX`] below each.
    pub fn of(nodes: u16) -> Tree {
        assert!(nodes > 0, "a job has a node");
        Tree { nodes, below_max: BELOW_MAX }
    }

    /// Returns the tree with at most `below_max` nodes below each, 1 to `u16::MAX`. For tests of deep trees
    /// with few nodes.
    pub fn narrowed(self, below_max: u16) -> Tree {
        assert!(below_max > 0, "expected at least one node below another");
        Tree { below_max, ..self }
    }

    /// Returns the node directly above, or `None` for the root.
    pub fn above(self, node: NodeId) -> Option<NodeId> {
        node.0.checked_sub(1).map(|before| NodeId(before / self.below_max))
    }

    /// Returns true if the node is `top`, or below it.
    fn is_within(self, node: NodeId, top: NodeId) -> bool {
        let mut path = std::iter::successors(Some(node), |node| self.above(*node));
        path.any(|node| node == top)
    }

    /// Returns the nodes directly below.
    pub fn below(self, node: NodeId) -> impl Iterator<Item = NodeId> {
        let below_max = u32::from(self.below_max);
        let first = u32::from(node.0) * below_max + 1;
        let numbers = first..(first + below_max).min(u32::from(self.nodes));
        numbers.map(|number| NodeId(number as u16))
    }
}

/// The arrival of one node, or of one with all below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The collective that they have arrived at; that of a follower only if all of them follow.
    pub collective: Collective,
    /// The node among them that called it.
    pub caller: NodeId,
    /// The latest timestamp that every one of them has reached, if it is not the one of `knowledge`.
    pub least: Option<VectorTimestamp>,
    /// The latest interval of each node that any of them has seen, and their notices since the last
    /// collective.
    pub knowledge: Knowledge,
    /// Pages that they give to other homes, claim from them, or keep.
    pub moves: Vec<HomeMoves>,
    /// What they contribute to the collective.
    pub contributions: BTreeMap<NodeId, Vec<u8>>,
}

/// The departure of all nodes, which have arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The collective that they have arrived at.
    pub collective: Collective,
    /// The reports of the nodes elsewhere in the tree.
    pub news: Knowledge,
    /// Pages that have other homes from now on, or that no node may claim: the same for all nodes.
    pub moves: Vec<HomeMoves>,
}

impl Arrival {
    fn least(&self) -> &VectorTimestamp {
        self.least.as_ref().unwrap_or(&self.knowledge.timestamp)
    }
}

/// One node's part in the collectives: the arrivals at it, including its own.
#[derive(Debug)]
pub struct Meeting {
    me: NodeId,
    tree: Tree,
    epoch: u64,
    /// The arrivals of this node and of those directly below, in order.
    arrivals: Vec<(NodeId, Arrival)>,
    /// At the root: homes that asked after their arrival at this collective to keep all of their pages.
    keeping: Vec<NodeId>,
}

/// The error that nodes met in different collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The node that came first.
    pub first: (NodeId, Collective),
    /// The node that disagrees.
    pub second: (NodeId, Collective),
}

impl Mismatch {
    /// Returns the sentence for the user.
    pub fn sentence(&self) -> String {
        let ((first, first_call), (second, second_call)) = (self.first, self.second);
        format!(
            "node {second} {} while node {first} {}; every node must make the same collective calls in the same \
             order",
            what_it_did("called", second_call),
            what_it_did("waits in", first_call),
        )
    }
}

/// Returns a predicate: that a node makes a call (with the verb `makes`), or that its program has ended
/// without one.
fn what_it_did(makes: &str, collective: Collective) -> String {
    match collective {
        Collective::LeaveByExit | Collective::LeaveHalted => {
            "ended its program (by exit, or by returning from main)".to_owned()
        }
        other => format!("{makes} {}", describe(other)),
    }
}

/// Returns the name of the call.
pub(crate) fn name(collective: Collective) -> &'static str {
    match collective {
        Collective::Barrier => "hiroba_barrier",
        Collective::Leave => "hiroba_finalize",
        Collective::LeaveByExit | Collective::LeaveHalted => "exit",
        Collective::Allocate { .. } => "hiroba_alloc",
        Collective::BeginRun | Collective::EndRun => "hiroba_run",
        Collective::RunWorker { .. } => "tsm_create_procs",
        Collective::Follow => "tsm_startup",
    }
}

pub(crate) fn describe(collective: Collective) -> String {
    match collective {
        Collective::Allocate { bytes, placement, page_size, protocol } => {
            let page_bytes = page_size.bytes();
            let protocol = protocol.and_then(Protocol::numbered).map(Protocol::name);
            let under = protocol.map_or(String::new(), |name| format!(" under {name}"));
            format!("hiroba_alloc of {bytes} bytes placed {placement:?} in pages of {page_bytes}{under}")
                .to_lowercase()
        }
        Collective::EndRun => "the end of hiroba_run's function".to_owned(),
        Collective::LeaveByExit | Collective::LeaveHalted => {
            "the end of its program (by exit, or by returning from main)".to_owned()
        }
        other => name(other).to_owned(),
    }
}

/// Notices of several senders, each once.
#[derive(Debug, Default)]
struct Notices(BTreeMap<(NodeId, IntervalSeq), PageSet>);

impl Notices {
    /// Adds the notices that a node that has seen `seen` lacks.
    fn add(&mut self, notices: &[IntervalNotice], seen: Option<&VectorTimestamp>) {
        for IntervalNotice { node, seq, pages } in notices {
            if seen.is_none_or(|seen| *seq > seen.get(*node)) {
                self.0.entry((*node, *seq)).or_default().extend(pages);
            }
        }
    }

    fn into_vec(self) -> Vec<IntervalNotice> {
        let notices = self.0.into_iter();
        notices.map(|((node, seq), pages)| IntervalNotice { node, seq, pages }).collect()
    }
}

impl Meeting {
    /// Returns the state in which no node has arrived.
    pub fn new(me: NodeId, tree: Tree) -> Meeting {
        assert!(me.0 < tree.nodes, "node {me} is one of the tree's {}", tree.nodes);
        Meeting { me, tree, epoch: 0, arrivals: Vec::new(), keeping: Vec::new() }
    }

    /// Returns the tree that the nodes form.
    pub fn tree(&self) -> Tree {
        self.tree
    }

    fn is_complete(&self) -> bool {
        self.arrivals.len() == 1 + self.tree.below(self.me).count()
    }

    /// Notes that a node has arrived here. Returns the combined arrival of all if it was the last one.
    pub fn arrive(
        &mut self,
        from: NodeId,
        epoch: u64,
        arrival: Arrival,
    ) -> Result<Result<Option<Arrival>, Mismatch>, ProtocolError> {
        let belongs_here = from == self.me || self.tree.above(from) == Some(self.me);
        let has_come = self.arrivals.iter().any(|(node, _)| *node == from);
        if epoch != self.epoch || has_come || !belongs_here {
            return Err(ProtocolError::Unexpected {
                expected: Expected::OneArrivalOfEachBelow,
                got: format!("node {from} in collective {epoch} during {} at node {}", self.epoch, self.me),
            });
        }
        if let Some(other) = arrival.contributions.keys().find(|node| !self.tree.is_within(**node, from)) {
            let expected = Expected::ContributionsFromBelow;
            let got = format!("one of node {other} from node {from}");
            return Err(ProtocolError::Unexpected { expected, got });
        }
        if let Some(mismatch) = self.mismatch(&arrival) {
            return Ok(Err(mismatch));
        }
        assert!(!self.is_complete(), "nobody arrives when all have come");
        self.arrivals.push((from, arrival));
        Ok(Ok(self.is_complete().then(|| self.all())))
    }

    /// Notes that a node has arrived here, like [`arrive`](Self::arrive). If it was the last one, informs the
    /// node above; at the root, returns the combined arrival of all nodes, which may [depart](Self::agree).
    pub fn handle_arrival(
        &mut self,
        from: NodeId,
        epoch: u64,
        arrival: Arrival,
        out: &mut Outbox,
    ) -> Result<Option<Arrival>, ProtocolError> {
        match self.arrive(from, epoch, arrival)? {
            Ok(None) => {}
            Ok(Some(all)) => {
                let Some(above) = self.tree.above(self.me) else { return Ok(Some(all)) };
                let Arrival { collective, caller, least, knowledge, moves, contributions } = all;
                let contributions = contributions.iter();
                let contributions =
                    contributions.map(|(node, bytes)| Contribution { node: *node, bytes }).collect();
                let arrival =
                    Message::Arrive { epoch, collective, caller, least, knowledge, moves, contributions };
                out.send(above, &arrival);
            }
            Err(mismatch) => out.end_job(mismatch.sentence()),
        }
        Ok(None)
    }

    /// Decides, at the root, what all nodes agree on, and returns their departure. `all` is their combined
    /// arrival, and `homes` the map of pages' homes until then.
    pub fn agree(&mut self, all: Arrival, homes: &HomeMap) -> Departure {
        let Arrival { collective, knowledge, moves, .. } = all;
        let news = Knowledge { notices: Vec::new(), ..knowledge };
        let keeping = std::mem::take(&mut self.keeping);
        let moves = claims::settle(moves, keeping, &self.arrivals, homes);
        Departure { collective, news, moves }
    }

    /// Returns true if all nodes below have arrived, and this node has not.
    pub fn has_all_others(&self) -> bool {
        let has_come = self.arrivals.iter().any(|(node, _)| *node == self.me);
        !has_come && self.arrivals.len() == self.tree.below(self.me).count()
    }

    /// Returns true if nodes that have arrived report what a node does not know that has seen `seen`, or if
    /// they give pages to other homes.
    pub fn has_news(&self, seen: &VectorTimestamp) -> bool {
        self.arrivals.iter().any(|(_, arrival)| {
            let mut both = arrival.knowledge.timestamp.clone();
            both.merge(seen);
            both != *seen || !arrival.moves.is_empty()
        })
    }

    /// Handles, at the root, that a home asks to keep all of its pages at a collective that it has arrived
    /// at. Returns false if the nodes have agreed on the moves of that collective already.
    pub fn keep_homes(&mut self, home: NodeId, epoch: u64) -> Result<bool, ProtocolError> {
        if epoch > self.epoch || self.tree.above(self.me).is_some() {
            let got = format!("node {home}'s about collective {epoch} at node {}", self.me);
            return Err(ProtocolError::Unexpected { expected: Expected::RequestToRoot, got });
        }
        let is_open = epoch == self.epoch;
        if is_open {
            self.keeping.push(home);
        }
        Ok(is_open)
    }

    /// Returns true if this node departs by a departure from that node.
    pub fn departs(&self, from: NodeId, epoch: u64) -> bool {
        epoch == self.epoch && from == self.tree.above(self.me).unwrap_or(self.me) && self.is_complete()
    }

    /// Handles that all nodes of the job have arrived, like [`depart`](Self::depart): informs those directly
    /// below, and returns what this node learns.
    pub fn handle_departure(
        &mut self,
        from: NodeId,
        epoch: u64,
        departure: &Departure,
        out: &mut Outbox,
    ) -> Result<Knowledge, ProtocolError> {
        if epoch != self.epoch || from != self.tree.above(self.me).unwrap_or(self.me) {
            return Err(ProtocolError::Unexpected {
                expected: Expected::DepartureFromAbove,
                got: format!("one from collective {epoch} and node {from}"),
            });
        }
        let Departure { collective, news, moves } = departure;
        let mut departures = self.depart(news)?;
        let own = departures.iter().position(|(node, _)| *node == self.me).expect("this node has arrived");
        let (_, knowledge) = departures.swap_remove(own);
        for (below, knowledge) in departures {
            let (collective, moves) = (*collective, moves.clone());
            out.send(below, &Message::Depart { epoch, collective, knowledge, moves });
        }
        Ok(knowledge)
    }

    fn mismatch(&self, arrival: &Arrival) -> Option<Mismatch> {
        let second = (arrival.caller, arrival.collective);
        let mut leads = self.leads().filter(|(_, other)| !other.meets(second.1));
        leads.next().filter(|_| second.1 != Collective::Follow).map(|first| Mismatch { first, second })
    }

    /// Returns the nodes that call a collective of their own.
    fn leads(&self) -> impl Iterator<Item = (NodeId, Collective)> {
        let calls = self.arrivals.iter().map(|(_, arrival)| (arrival.caller, arrival.collective));
        calls.filter(|(_, collective)| *collective != Collective::Follow)
    }

    /// Returns the combined arrival of all, with what they contribute.
    fn all(&mut self) -> Arrival {
        assert!(self.is_complete(), "all are heard before one speaks for them");
        let halted = self.leads().find(|(_, collective)| *collective == Collective::LeaveHalted);
        let (caller, collective) =
            halted.or_else(|| self.leads().next()).unwrap_or((self.me, Collective::Follow));
        let mut timestamp = self.arrivals[0].1.knowledge.timestamp.clone();
        let mut least = self.arrivals[0].1.least().clone();
        let mut notices = Notices::default();
        for (_, arrival) in &self.arrivals {
            timestamp.merge(&arrival.knowledge.timestamp);
            least.meet(arrival.least());
            // The root, which has no node above it, informs each node of what it lacks.
            if self.tree.above(self.me).is_some() {
                notices.add(&arrival.knowledge.notices, None);
            }
        }
        let least = Some(least).filter(|least| *least != timestamp);
        let notices = notices.into_vec();
        let knowledge = Knowledge { timestamp, notices, epoch: self.epoch, beyond_arrival: false };
        let moves = self.arrivals.iter().flat_map(|(_, arrival)| arrival.moves.iter().cloned()).collect();
        let contributions = self.arrivals.iter_mut();
        let contributions =
            contributions.flat_map(|(_, arrival)| std::mem::take(&mut arrival.contributions)).collect();
        Arrival { collective, caller, least, knowledge, moves, contributions }
    }

    /// Departs: all nodes of the job have arrived. Returns what this node and those directly below learn: the
    /// notices that they lack of each other, and of the `news` from elsewhere in the tree.
    pub fn depart(&mut self, news: &Knowledge) -> Result<Vec<(NodeId, Knowledge)>, ProtocolError> {
        if !self.is_complete() {
            return Err(ProtocolError::Unexpected {
                expected: Expected::DepartureAfterArrivals,
                got: format!("one after {} arrivals at node {}", self.arrivals.len(), self.me),
            });
        }
        let arrivals = std::mem::take(&mut self.arrivals);
        self.epoch += 1;
        let told = |(receiver, arrival): &(NodeId, Arrival)| {
            let mut notices = Notices::default();
            notices.add(&news.notices, Some(arrival.least()));
            for (_, other) in arrivals.iter().filter(|(sender, _)| sender != receiver) {
                notices.add(&other.knowledge.notices, Some(arrival.least()));
            }
            let (timestamp, notices) = (news.timestamp.clone(), notices.into_vec());
            (*receiver, Knowledge { timestamp, notices, epoch: self.epoch, beyond_arrival: false })
        };
        Ok(arrivals.iter().map(told).collect())
    }
}

#[cfg(test)]
mod tests {
    use hiroba_base::{PageId, PageSize, VectorTimestamp};
    use hiroba_wire::Placement;

    use super::*;

    fn knowledge(nodes: u16, of: u16, seq: u64, pages: &[u64]) -> Knowledge {
        let mut timestamp = VectorTimestamp::new(nodes);
        timestamp.advance(NodeId(of), seq);
        let pages = pages.iter().copied().map(PageId).collect();
        Knowledge {
            timestamp,
            notices: vec![IntervalNotice { node: NodeId(of), seq, pages }],
            epoch: 0,
            beyond_arrival: false,
        }
    }

    fn arrival(nodes: u16, of: u16, seq: u64, collective: Collective, pages: &[u64]) -> Arrival {
        let knowledge = knowledge(nodes, of, seq, pages);
        let (caller, least, moves, contributions) = (NodeId(of), None, Vec::new(), BTreeMap::new());
        Arrival { collective, caller, least, knowledge, moves, contributions }
    }

    /// All nodes' meetings, with messages delivered at once.
    struct Job {
        tree: Tree,
        parts: Vec<Meeting>,
        /// The knowledge that each node received last.
        told: BTreeMap<NodeId, Knowledge>,
        /// The number of messages that each node has received.
        received: Vec<usize>,
        collective: Option<Collective>,
    }

    impl Job {
        fn new(nodes: u16) -> Job {
            let tree = Tree::of(nodes);
            let parts = NodeId::all(nodes).map(|node| Meeting::new(node, tree)).collect();
            let received = vec![0; usize::from(nodes)];
            Job { tree, parts, told: BTreeMap::new(), received, collective: None }
        }

        fn arrive(&mut self, at: NodeId, from: NodeId, epoch: u64, arrival: Arrival) -> Result<(), Mismatch> {
            self.received[at.index()] += usize::from(at != from);
            let all = self.parts[at.index()].arrive(from, epoch, arrival).unwrap()?;
            match (all, self.tree.above(at)) {
                (Some(all), Some(above)) => self.arrive(above, at, epoch, all),
                (Some(all), None) => {
                    self.collective = Some(all.collective);
                    let news = Knowledge { notices: Vec::new(), ..all.knowledge };
                    self.depart(at, &news);
                    Ok(())
                }
                (None, _) => Ok(()),
            }
        }

        fn depart(&mut self, at: NodeId, news: &Knowledge) {
            self.received[at.index()] += usize::from(self.tree.above(at).is_some());
            for (node, knowledge) in self.parts[at.index()].depart(news).unwrap() {
                if node == at {
                    self.told.insert(node, knowledge);
                } else {
                    self.depart(node, &knowledge);
                }
            }
        }
    }

    #[test]
    fn everybody_is_below_one_node_and_few_are_below_each() {
        for nodes in [1, 2, 5, 6, 64, 128, 4096] {
            for node in NodeId::all(nodes) {
                let children: Vec<NodeId> = Tree::of(nodes).below(node).collect();
                assert!(children.len() <= usize::from(BELOW_MAX));
                assert!(children.iter().all(|child| Tree::of(nodes).above(*child) == Some(node)));
            }
            let all: usize = NodeId::all(nodes).map(|node| Tree::of(nodes).below(node).count()).sum();
            assert_eq!(all, usize::from(nodes) - 1);
        }
    }

    #[test]
    fn everybody_learns_what_the_others_wrote_once_and_nothing_else() {
        for nodes in [1u16, 2, 3, 5, 6, 9, 30, 128] {
            let mut job = Job::new(nodes);
            for epoch in 0..2 {
                let seq = epoch + 1;
                for node in NodeId::all(nodes).rev() {
                    let page = 2 * u64::from(node.0);
                    let mut arrival = arrival(nodes, node.0, seq, Collective::Barrier, &[7777, page]);
                    if node.0 == 4 {
                        // The node has acquired a lock from node 2 meanwhile, and passes on what it learned.
                        arrival.knowledge.timestamp.advance(NodeId(2), seq);
                        let others = knowledge(nodes, 2, seq, &[7777, 4]).notices;
                        arrival.knowledge.notices.extend(others);
                    }
                    job.arrive(node, node, epoch, arrival).unwrap();
                }
                for (node, knowledge) in &job.told {
                    let writers: Vec<NodeId> = knowledge.notices.iter().map(|notice| notice.node).collect();
                    let knows = |writer: NodeId| writer == *node || node.0 == 4 && writer.0 == 2;
                    let others: Vec<NodeId> = NodeId::all(nodes).filter(|writer| !knows(*writer)).collect();
                    assert_eq!(writers, others, "node {node} of {nodes}");
                    let whole = |notice: &IntervalNotice| {
                        let pages: PageSet =
                            [2 * u64::from(notice.node.0), 7777].into_iter().map(PageId).collect();
                        notice.pages == pages && notice.seq == seq
                    };
                    assert!(knowledge.notices.iter().all(whole), "{knowledge:?}");
                    assert!(NodeId::all(nodes).all(|writer| knowledge.timestamp.get(writer) == seq));
                    assert_eq!(knowledge.epoch, epoch + 1);
                }
                assert_eq!(job.told.len(), usize::from(nodes));
                job.told.clear();
            }
            let most = job.received.iter().max().copied().unwrap_or_default();
            assert!(most <= 2 * (usize::from(BELOW_MAX) + 1), "{most} messages for one of {nodes} nodes");
        }
    }

    fn is(error: &ProtocolError, what: Expected) -> bool {
        matches!(error, ProtocolError::Unexpected { expected, .. } if *expected == what)
    }

    #[test]
    fn different_collectives_are_a_mismatch_but_followers_follow() {
        let allocate = Collective::Allocate {
            bytes: 8,
            placement: Placement::Block,
            page_size: PageSize::KIB_4,
            protocol: None,
        };
        let mut manager = Meeting::new(NodeId(0), Tree::of(3));
        let of = |node, collective| arrival(3, node, 1, collective, &[]);
        assert_eq!(manager.arrive(NodeId(1), 0, of(1, Collective::Follow)), Ok(Ok(None)));
        assert_eq!(manager.arrive(NodeId(0), 0, of(0, allocate)), Ok(Ok(None)));
        let mismatch = manager.arrive(NodeId(2), 0, of(2, Collective::Barrier)).unwrap();
        let sentence = mismatch.unwrap_err().sentence();
        assert!(
            sentence.contains("node 2 called hiroba_barrier while node 0 waits in hiroba_alloc"),
            "{sentence}"
        );
        let early = manager.depart(&knowledge(3, 0, 1, &[])).unwrap_err();
        assert!(is(&early, Expected::DepartureAfterArrivals), "node 2 has yet to come: {early}");
        let all = manager.arrive(NodeId(2), 0, of(2, Collective::Follow)).unwrap().unwrap().unwrap();
        assert_eq!((all.collective, all.caller), (allocate, NodeId(0)));
        for (from, epoch) in [(2, 0), (2, 1), (9, 0)] {
            let refused = manager.arrive(NodeId(from), epoch, of(2, Collective::Barrier)).unwrap_err();
            assert!(is(&refused, Expected::OneArrivalOfEachBelow), "{refused}");
        }
    }

    #[test]
    fn a_program_whose_threads_were_halted_ends_whatever_others_wait_in() {
        for halted in [0, 3, 6] {
            let mut job = Job::new(7);
            for node in NodeId::all(7) {
                let collective = if node.0 == halted { Collective::LeaveHalted } else { Collective::Barrier };
                job.arrive(node, node, 0, arrival(7, node.0, 1, collective, &[])).unwrap();
            }
            assert_eq!(job.collective, Some(Collective::LeaveHalted), "node {halted}");
        }
    }

    #[test]
    fn a_mismatch_deep_in_the_tree_names_the_two_who_called() {
        let nodes = 30;
        let mut job = Job::new(nodes);
        let call = |node: NodeId| match node.0 {
            // Below node 1 and node 2.
            22 => Collective::Leave,
            10 => Collective::Barrier,
            _ => Collective::Follow,
        };
        let mut arrivals = NodeId::all(nodes)
            .map(|node| job.arrive(node, node, 0, arrival(nodes, node.0, 1, call(node), &[])));
        let mismatch = arrivals.find_map(Result::err).expect("they differ");
        let mut callers = [mismatch.first.0, mismatch.second.0];
        callers.sort();
        assert_eq!(callers, [NodeId(10), NodeId(22)], "{}", mismatch.sentence());
    }
}
