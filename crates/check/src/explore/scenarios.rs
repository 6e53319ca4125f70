//! The programs that are explored. They are as small as possible, since every interleaving counts.

use std::collections::BTreeSet;

use hiroba_base::NodeId;
use hiroba_wire::Placement;

use crate::engines::Promise;
use crate::program::script::*;
use crate::program::{Address, Instruction, Program, Region, Script};

/// A program, and what is observed at its ends.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What it shows.
    pub about: &'static str,
    /// The program.
    pub program: Program,
    /// Registers that are observed, by thread and number.
    pub observed: Vec<(usize, usize)>,
    /// The values that sequential consistency allows.
    pub sequential: Vec<Vec<u64>>,
    /// Further values that release consistency allows.
    pub weak: Vec<Vec<u64>>,
    /// Whether plain loads race, so that engines that promise less need not show all of these.
    pub is_racy: bool,
    /// The promises of the engines that it is for.
    pub promises: &'static [Promise],
}

impl Scenario {
    /// Checks the outcomes of all interleavings: none may be forbidden, and every allowed one must occur
    /// (otherwise the exploration proves nothing). Of those that only weaker engines show, one must occur.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn compare(&self, promise: Promise, outcomes: &BTreeSet<Vec<u64>>) -> Result<(), String> {
        let sequential: BTreeSet<Vec<u64>> = self.sequential.iter().cloned().collect();
        let weak: BTreeSet<Vec<u64>> = self.weak.iter().cloned().collect();
        let is_weak = promise == Promise::Release && self.is_racy;
        let allowed = if is_weak { &sequential | &weak } else { sequential };
        if let Some(other) = outcomes.difference(&allowed).next() {
            return Err(format!("expected only outcomes of {allowed:?}, got {other:?}"));
        }
        if is_weak && !weak.is_empty() && outcomes.is_disjoint(&weak) {
            return Err(format!("expected to see one of the outcomes {weak:?}, got none"));
        }
        match allowed.difference(outcomes).next() {
            Some(missing) if !is_weak => {
                Err(format!("expected to see the outcome {missing:?}, got {outcomes:?}"))
            }
            _ => Ok(()),
        }
    }
}

const BOTH: &[Promise] = &[Promise::Sequential, Promise::Release];

// Page 0 is homed on node 0, page 1 on node 1.
const X: Address = Address::word(0, 0);
const Y: Address = Address::word(1, 0);
/// A word on the page of `X`.
const X2: Address = Address::word(0, 1);
const X3: Address = Address::word(0, 2);
const X4: Address = Address::word(0, 3);
/// A word on the page of `Y`.
const Y2: Address = Address::word(1, 1);

fn scenario(name: &'static str, about: &'static str, program: Program) -> Scenario {
    let (observed, sequential, weak) = (Vec::new(), Vec::new(), Vec::new());
    Scenario { name, about, program, observed, sequential, weak, is_racy: false, promises: BOTH }
}

impl Scenario {
    fn observing(mut self, observed: &[(usize, usize)], sequential: &[&[u64]]) -> Scenario {
        self.observed = observed.to_vec();
        self.sequential = sequential.iter().map(|values| values.to_vec()).collect();
        self
    }

    fn or_weakly(mut self, weak: &[&[u64]]) -> Scenario {
        self.weak = weak.iter().map(|values| values.to_vec()).collect();
        self.racy()
    }

    fn racy(mut self) -> Scenario {
        self.is_racy = true;
        self
    }

    fn only(mut self, promises: &'static [Promise]) -> Scenario {
        self.promises = promises;
        self
    }
}

fn bump(at: Address) -> Vec<Instruction> {
    vec![lock(0), load(at, 0), add(0, 1), store_from(at, 0), unlock(0)]
}

/// Returns the scenarios that take little time.
pub fn scenarios() -> Vec<Scenario> {
    let mut all = without_synchronisation();
    all.extend(with_synchronisation());
    all.extend(of_three_nodes());
    all.extend(of_siblings());
    all
}

fn without_synchronisation() -> Vec<Scenario> {
    vec![
        scenario(
            "SB",
            "two stores, two loads, on two pages: one comes first",
            Program::new(2, [vec![store(X, 1), load(Y, 0)], vec![store(Y, 1), load(X, 0)]]),
        )
        .observing(&[(0, 0), (1, 0)], &[&[0, 1], &[1, 0], &[1, 1]]),
        scenario(
            "SB, with copies",
            "the same if both have copies of both pages",
            Program::new(
                2,
                [vec![load(Y, 1), store(X, 1), load(Y, 0)], vec![load(X, 1), store(Y, 1), load(X, 0)]],
            ),
        )
        .observing(&[(0, 0), (1, 0)], &[&[0, 1], &[1, 0], &[1, 1]])
        .or_weakly(&[&[0, 0]]),
        scenario(
            "MP",
            "a thread that sees the flag sees the data, without a lock",
            Program::new(2, [vec![store(Y, 7), store(X, 1)], vec![load(Y, 2), load(X, 0), load(Y, 1)]]),
        )
        .observing(&[(1, 0), (1, 1)], &[&[0, 0], &[0, 7], &[1, 7]])
        .only(&[Promise::Sequential]),
    ]
}

fn with_synchronisation() -> Vec<Scenario> {
    vec![
        scenario(
            "lock hand-over",
            "two nodes count in one word under a lock",
            Program::new(1, [[bump(X), vec![]].concat(), bump(X)]),
        )
        .observing(&[(0, 0), (1, 0)], &[&[1, 2], &[2, 1]]),
        scenario(
            "lock hand-over, two writers of one page",
            "each has a word of its own beside the counter, written without a lock",
            Program::new(
                1,
                [
                    [vec![store(X2, 5)], bump(X), vec![barrier(), load(X3, 1)]].concat(),
                    [vec![store(X3, 6)], bump(X), vec![barrier(), load(X2, 1)]].concat(),
                ],
            ),
        )
        .observing(&[(0, 0), (1, 0), (0, 1), (1, 1)], &[&[1, 2, 6, 5], &[2, 1, 6, 5]]),
        scenario(
            "barrier with false sharing",
            "both write their words of both pages, and read the other's after they have met",
            Program::new(
                2,
                [
                    vec![store(X, 1), store(Y, 2), barrier(), load(Y2, 0), load(X2, 1)],
                    vec![store(X2, 3), store(Y2, 4), barrier(), load(X, 0), load(Y, 1)],
                ],
            ),
        )
        .observing(&[(0, 0), (0, 1), (1, 0), (1, 1)], &[&[4, 3, 1, 2]]),
        scenario(
            "atomic increments",
            "two nodes add to one word, and read it when they have met",
            Program::new(
                1,
                [
                    vec![fetch_add(X, 1, 0), barrier(), load(X, 1)],
                    vec![fetch_add(X, 1, 0), fetch_add(X, 1, 2), barrier(), load(X, 1)],
                ],
            ),
        )
        .observing(
            &[(0, 0), (1, 0), (1, 2), (0, 1), (1, 1)],
            &[&[0, 1, 2, 3, 3], &[1, 0, 2, 3, 3], &[2, 0, 1, 3, 3]],
        ),
        scenario(
            "two rounds",
            "two barriers, and two writers that change places on both pages",
            Program::new(
                2,
                [
                    vec![
                        store(X, 1),
                        store(Y, 2),
                        barrier(),
                        load(Y2, 0),
                        store(X2, 5),
                        barrier(),
                        load(X, 1),
                    ],
                    vec![
                        store(X2, 3),
                        store(Y2, 4),
                        barrier(),
                        load(Y, 0),
                        store(X, 6),
                        barrier(),
                        load(X2, 1),
                    ],
                ],
            ),
        )
        .observing(&[(0, 0), (0, 1), (1, 0), (1, 1)], &[&[4, 6, 2, 5]]),
        scenario(
            "atomic and plain words of one page",
            "a node adds to a word of a page on which it has unsent writes, and finds what it left there",
            Program::new(
                1,
                [
                    vec![fetch_add(X, 1, 0), barrier(), load(X, 1), load(X2, 2)],
                    vec![store(X2, 7), fetch_add(X, 1, 0), load(X, 2), barrier(), load(X, 1)],
                ],
            ),
        )
        .observing(
            &[(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)],
            &[&[0, 1, 2, 2, 7, 2], &[1, 0, 2, 2, 7, 1], &[1, 0, 2, 2, 7, 2]],
        )
        .racy(),
        scenario(
            "a condition",
            "a thread that waits until a word is set sees what was written before",
            Program::new(
                1,
                [
                    vec![lock(0), load(X, 0), jump_unless(0, 0, 4), wait(0, 0), load(X2, 1), unlock(0)],
                    vec![store(X2, 7), lock(0), store(X, 1), signal(0), unlock(0)],
                ],
            ),
        )
        .observing(&[(0, 0), (0, 1)], &[&[0, 7], &[1, 7]]),
    ]
}

fn at_home_of(node: u16, program: Program) -> Program {
    let pages = program.region_granules();
    program.with_regions(vec![Region::new(0, pages, 1, Placement::On(NodeId(node)))])
}

fn of_three_nodes() -> Vec<Scenario> {
    vec![
        scenario(
            "three nodes fight for one page",
            "each writes its word; one of them reads another's",
            Program::on(
                3,
                1,
                vec![
                    Script::team(0, vec![store(X, 1)]),
                    Script::team(1, vec![store(X2, 2)]),
                    Script::team(2, vec![store(X3, 3), load(X, 0)]),
                ],
            ),
        )
        .observing(&[(2, 0)], &[&[0], &[1]]),
        scenario(
            "SB at a third node's",
            "both pages are homed on a node that does not take part",
            at_home_of(
                2,
                Program::new(
                    2,
                    [
                        vec![load(Y, 1), store(X, 1), load(Y, 0)],
                        vec![load(X, 1), store(Y, 1), load(X, 0)],
                        vec![],
                    ],
                ),
            ),
        )
        .observing(&[(0, 0), (1, 0)], &[&[0, 1], &[1, 0], &[1, 1]])
        .or_weakly(&[&[0, 0]]),
        scenario(
            "three nodes count",
            "three nodes count in one word under a lock",
            Program::new(1, (0..3).map(|_| bump(X))),
        )
        .observing(&[(0, 0), (1, 0), (2, 0)], &ORDERS_OF_THREE),
        scenario(
            "three nodes meet",
            "each writes its word of one page and reads the next one's after they have met",
            Program::new(
                1,
                [
                    vec![store(X, 1), barrier(), load(X2, 0)],
                    vec![store(X2, 2), barrier(), load(X3, 0)],
                    vec![store(X3, 3), barrier(), load(X, 0)],
                ],
            ),
        )
        .observing(&[(0, 0), (1, 0), (2, 0)], &[&[2, 3, 1]]),
        scenario(
            "WRC",
            "a thread that sees another's store also sees what that one has seen",
            Program::new(
                2,
                [
                    vec![load(X, 8), store(X, 1)],
                    vec![load(X, 0), store(Y, 1)],
                    vec![load(X, 8), load(Y, 0), load(X, 1)],
                ],
            ),
        )
        .observing(
            &[(1, 0), (2, 0), (2, 1)],
            &[&[0, 0, 0], &[0, 0, 1], &[0, 1, 0], &[0, 1, 1], &[1, 0, 0], &[1, 0, 1], &[1, 1, 1]],
        )
        .only(&[Promise::Sequential]),
        scenario(
            "three nodes add",
            "atomic additions to one word by three nodes, and one more by the first",
            Program::new(
                1,
                [
                    vec![fetch_add(X, 1, 0), barrier(), load(X, 1)],
                    vec![fetch_add(X, 1, 0), barrier(), load(X, 1)],
                    vec![fetch_add(X, 1, 0), barrier(), load(X, 1)],
                ],
            ),
        )
        .observing(
            &[(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)],
            &ORDERS_OF_THREE
                .map(|order| order.iter().map(|turn| turn - 1).chain([3, 3, 3]).collect::<Vec<u64>>())
                .each_ref()
                .map(Vec::as_slice),
        ),
    ]
}

fn of_siblings() -> Vec<Scenario> {
    let look = vec![barrier(), load(X, 1), load(X2, 2)];
    vec![
        scenario(
            "siblings",
            "a thread writes while the other thread of its node releases and acquires",
            Program::on(
                2,
                1,
                vec![
                    Script::team(0, vec![lock(0), store(X, 1), unlock(0)]),
                    Script::team(1, vec![lock(0), load(X, 0), unlock(0)]),
                    Script::foreign(1, vec![store(X2, 5), store(X3, 6), lock(1), unlock(1)]),
                ],
            ),
        )
        .observing(&[(1, 0)], &[&[0], &[1]]),
        scenario(
            "siblings meet",
            "two threads on each of two nodes write one page and meet",
            Program::on(
                2,
                1,
                vec![
                    Script::team(0, vec![store(X, 1), barrier(), load(X3, 0)]),
                    Script::team(0, vec![store(X2, 2), barrier(), load(X4, 0)]),
                    Script::team(1, vec![store(X3, 3), barrier(), load(X, 0)]),
                    Script::team(1, vec![store(X4, 4), barrier(), load(X2, 0)]),
                ],
            ),
        )
        .observing(&[(0, 0), (1, 0), (2, 0), (3, 0)], &[&[3, 4, 1, 2]]),
        scenario(
            "siblings write on",
            "a thread writes while the other thread of its node takes what others wrote to the page, and write again",
            Program::on(
                2,
                1,
                vec![
                    Script::team(
                        0,
                        [vec![lock(0), store(X, 1), unlock(0), lock(0), store(X, 2), unlock(0)], look.clone()].concat(),
                    ),
                    Script::team(1, [vec![lock(0), load(X, 0), unlock(0)], look.clone()].concat()),
                    Script::team(1, [vec![store(X2, 5)], look].concat()),
                ],
            ),
        )
        .observing(
            &[(1, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2)],
            &[&[0, 2, 5, 2, 5, 2, 5], &[1, 2, 5, 2, 5, 2, 5], &[2, 2, 5, 2, 5, 2, 5]],
        ),
    ]
}

const ORDERS_OF_THREE: [&[u64]; 6] = [&[1, 2, 3], &[1, 3, 2], &[2, 1, 3], &[2, 3, 1], &[3, 1, 2], &[3, 2, 1]];

/// Returns the scenarios that take longer.
pub fn larger_scenarios() -> Vec<Scenario> {
    let bump_and_meet = |mine: Address, next: Address, value: u64| {
        [vec![store(mine, value)], bump(Y), vec![barrier(), load(next, 1)]].concat()
    };
    vec![
        scenario(
            "three nodes count and meet",
            "beside the counter's page, one with a word of each, written without a lock",
            Program::new(2, [bump_and_meet(X, X2, 5), bump_and_meet(X2, X3, 6), bump_and_meet(X3, X, 7)]),
        )
        .observing(
            &[(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)],
            &ORDERS_OF_THREE.map(|order| [order, &[6, 7, 5]].concat()).each_ref().map(Vec::as_slice),
        ),
    ]
}
