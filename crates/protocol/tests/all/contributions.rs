//! Contributions to a barrier: node 0 has all of them before any node departs, and they cost no message.

use std::collections::{BTreeMap, VecDeque};

use hiroba_base::{NodeId, PageId, PageRange, PageSize, VectorTimestamp};
use hiroba_protocol::{
    Consistency, Effect, Engine, Expected, Outcome, Protocol, ProtocolError, Synchronisation, Waiter,
    WriteTracking,
};
use hiroba_wire::{Collective, Contribution, Knowledge, Limits, Message, Placement};

const THREAD: Waiter = Waiter(0);
const OTHER_THREAD: Waiter = Waiter(1);
const ROOT: NodeId = NodeId(0);
const BARRIER: Synchronisation = Synchronisation::Collective(Collective::Barrier);
const HALTED: Synchronisation = Synchronisation::Collective(Collective::LeaveHalted);
const PAGES: PageRange = PageRange { first: PageId(0), count: 4 };

struct Job {
    limits: Limits,
    engines: Vec<Consistency>,
    network: VecDeque<(NodeId, NodeId, Vec<u8>)>,
    messages: usize,
    bytes: usize,
    wakes: Vec<(NodeId, Waiter, Outcome)>,
    fatal: Option<String>,
}

impl Job {
    fn new(nodes: u16) -> Job {
        let limits = Limits { nodes, region_granules: 16, granule_bytes: 4096 };
        let engine = |node| {
            let mut engine = Consistency::under(Protocol::Sc, node, limits, WriteTracking::Fault, []);
            engine.add_region(PAGES, PageSize::KIB_4, Placement::On(ROOT));
            engine
        };
        let engines = NodeId::all(nodes).map(engine).collect();
        let (network, wakes) = (VecDeque::new(), Vec::new());
        Job { limits, engines, network, messages: 0, bytes: 0, wakes, fatal: None }
    }

    fn synchronise(&mut self, node: NodeId, waiter: Waiter, sync: Synchronisation) {
        self.engines[node.index()].handle_sync(sync, waiter);
        self.carry_out(node);
        while let Some((from, to, bytes)) = self.network.pop_front() {
            let message = Message::decode(&bytes, &self.limits).unwrap();
            self.engines[to.index()].handle_message(from, &message).unwrap();
            self.carry_out(to);
        }
    }

    fn carry_out(&mut self, node: NodeId) {
        while let Some(effect) = self.engines[node.index()].poll_effect() {
            match effect {
                Effect::Send { to, message } => {
                    self.messages += 1;
                    self.bytes += message.len();
                    self.network.push_back((node, to, message));
                }
                Effect::Wake { waiter, outcome } => self.wakes.push((node, waiter, outcome)),
                Effect::Fatal { sentence } => self.fatal = Some(sentence),
                _ => {}
            }
        }
    }

    fn arrive(&mut self, nodes: impl IntoIterator<Item = NodeId>) {
        nodes.into_iter().for_each(|node| self.synchronise(node, THREAD, BARRIER));
    }

    fn contribute(&mut self, node: NodeId) {
        self.engines[node.index()].contribute(vec![node.0 as u8; 3]);
    }

    fn take(&mut self) -> BTreeMap<NodeId, Vec<u8>> {
        self.engines[ROOT.index()].take_contributions()
    }

    /// Returns the number of nodes that have departed from a barrier since the last call.
    fn departed(&mut self) -> usize {
        let departs = |wake: &(NodeId, Waiter, Outcome)| wake.2 == Outcome::Collective(Collective::Barrier);
        std::mem::take(&mut self.wakes).iter().filter(|wake| departs(wake)).count()
    }
}

fn nodes(count: u16) -> Vec<NodeId> {
    NodeId::all(count).collect()
}

#[test]
fn all_contributions_are_used_before_any_node_departs_and_cost_no_message() {
    for count in [1u16, 2, 3, 5, 6, 9, 30] {
        for (round, order) in [nodes(count), nodes(count).into_iter().rev().collect()].into_iter().enumerate()
        {
            let mut job = Job::new(count);
            job.arrive(order.clone());
            assert_eq!(job.departed(), usize::from(count));
            let plain = (std::mem::take(&mut job.messages), std::mem::take(&mut job.bytes));
            assert_eq!(plain.0, 2 * usize::from(count - 1));

            let contributes = |node: &NodeId| round == 0 || node.0 % 3 == 2 || count == 1;
            let expected: BTreeMap<NodeId, Vec<u8>> = nodes(count)
                .into_iter()
                .filter(contributes)
                .map(|node| (node, vec![node.0 as u8; 3]))
                .collect();
            expected.keys().for_each(|node| job.contribute(*node));
            job.arrive(order);
            if expected.is_empty() {
                assert_eq!(job.departed(), usize::from(count));
                continue;
            }
            assert_eq!(job.wakes, [(ROOT, THREAD, Outcome::Contributions)], "{count} nodes");
            assert_eq!(job.take(), expected);
            assert!(job.take().is_empty(), "they are taken once");
            job.synchronise(ROOT, THREAD, Synchronisation::Conclude);
            assert_eq!(job.departed(), usize::from(count));
            assert_eq!(job.messages, plain.0, "as many messages as without contributions");

            // They are of one barrier.
            job.arrive(nodes(count));
            assert_eq!(job.departed(), usize::from(count));
        }
    }
}

#[test]
fn a_later_contribution_replaces_an_earlier_one() {
    let mut job = Job::new(2);
    job.engines[1].contribute(vec![1]);
    job.engines[1].contribute(vec![2, 3]);
    job.engines[0].contribute(vec![1]);
    job.engines[0].contribute(Vec::new());
    job.arrive(nodes(2));
    assert_eq!(job.take(), BTreeMap::from([(NodeId(1), vec![2, 3])]));
}

#[test]
fn a_program_that_is_halted_at_a_held_departure_departs_and_ends() {
    let mut job = Job::new(3);
    job.contribute(NodeId(2));
    job.arrive(nodes(3));
    assert_eq!(job.wakes, [(ROOT, THREAD, Outcome::Contributions)]);
    job.wakes.clear();
    job.synchronise(ROOT, OTHER_THREAD, HALTED);
    let met = Outcome::Collective(Collective::Barrier);
    assert_eq!(job.wakes[0], (ROOT, OTHER_THREAD, met), "the halted thread is not woken");
    assert_eq!(job.departed(), 3, "nodes 1 and 2, and the thread that ends the program");
    assert!(job.take().is_empty(), "what was not used is dropped");
    // It was inside the runtime when the others were halted.
    job.synchronise(ROOT, THREAD, Synchronisation::Conclude);
    let over = Outcome::Collective(Collective::LeaveHalted);
    assert_eq!(job.wakes, [(ROOT, THREAD, over)]);
    job.wakes.clear();
    job.synchronise(ROOT, OTHER_THREAD, HALTED);
    job.synchronise(NodeId(1), THREAD, BARRIER);
    job.synchronise(NodeId(2), THREAD, HALTED);
    assert_eq!(job.wakes.len(), 3, "{:?}", job.wakes);
    assert!(job.wakes.iter().all(|(.., outcome)| *outcome == over));
}

#[test]
fn a_program_that_was_halted_in_the_barrier_uses_nothing() {
    let mut job = Job::new(2);
    job.contribute(NodeId(1));
    job.synchronise(ROOT, THREAD, BARRIER);
    job.synchronise(ROOT, OTHER_THREAD, HALTED);
    job.synchronise(NodeId(1), THREAD, BARRIER);
    assert_eq!(job.departed(), 3, "two threads of node 0, and node 1's");
    assert_eq!(job.fatal, None);
}

#[test]
fn a_job_that_ends_drops_contributions() {
    let mut job = Job::new(2);
    job.contribute(NodeId(1));
    job.synchronise(NodeId(1), THREAD, BARRIER);
    job.synchronise(ROOT, THREAD, HALTED);
    let over = Outcome::Collective(Collective::LeaveHalted);
    assert_eq!(job.wakes.iter().filter(|(.., outcome)| *outcome == over).count(), 2);
    assert!(job.take().is_empty());
}

#[test]
fn contributions_to_another_collective_end_the_job() {
    let mut job = Job::new(2);
    job.contribute(NodeId(1));
    let run = Synchronisation::Collective(Collective::BeginRun);
    nodes(2).into_iter().for_each(|node| job.synchronise(node, THREAD, run));
    let sentence = job.fatal.expect("the job has ended");
    assert!(
        sentence.contains("node 1 contributes to a barrier, but node 0 waits in hiroba_run"),
        "{sentence}"
    );
    assert!(job.wakes.is_empty());
}

#[test]
fn contributions_of_nodes_elsewhere_are_refused() {
    let mut job = Job::new(8);
    let (from, elsewhere) = (NodeId(2), NodeId(7));
    let arrival = Message::Arrive {
        epoch: 0,
        collective: Collective::Barrier,
        caller: from,
        least: None,
        knowledge: Knowledge {
            timestamp: VectorTimestamp::new(8),
            notices: Vec::new(),
            epoch: 0,
            beyond_arrival: false,
        },
        moves: Vec::new(),
        contributions: vec![Contribution { node: elsewhere, bytes: &[1] }],
    };
    let refused = job.engines[ROOT.index()].handle_message(from, &arrival).unwrap_err();
    let expected = Expected::ContributionsFromBelow;
    assert!(
        matches!(refused, ProtocolError::Unexpected { expected: got, .. } if got == expected),
        "{refused}"
    );
}
