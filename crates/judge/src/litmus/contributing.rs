//! Values that nodes contribute to a barrier, and that a thread of node 0 adds to a word before any node
//! departs (`consistency/contributions.rs` of `hiroba-protocol`).

use hiroba_base::NodeId;
use hiroba_wire::Placement;

use super::{Litmus, both};
use crate::execution::Ended;
use crate::program::script::*;
use crate::program::{Address, Instruction, Program, Region, Script};

/// Data under another protocol, if the job has two, homed on nodes 1 and 0.
const DATA: Address = Address::word(0, 0);
const NEAR_DATA: Address = Address::word(1, 0);
/// The sum, under sequential consistency, and a flag on its page.
const SUM: Address = Address::word(2, 0);
const FLAG: Address = Address::word(2, 1);
/// A value on another such page.
const VALUE: Address = Address::word(3, 0);

/// Makes the first region that of the data, and the second that of the sum, which is homed on that node.
fn divided(sum_on: u16, program: Program) -> Program {
    let regions = [
        Region::new(0, 1, 1, Placement::On(NodeId(1))),
        Region::new(1, 1, 1, Placement::On(NodeId(0))),
        Region::new(2, 2, 1, Placement::On(NodeId(sum_on))),
    ];
    program.with_regions(regions.to_vec())
}

/// Contributes some values, one after the other, each to a barrier behind which the sum is loaded: that of
/// the first barrier into register 0, and so on. For 0 nothing is contributed.
fn adds(values: &[u64]) -> Vec<Instruction> {
    let add = |(phase, value): (usize, &u64)| {
        let given = if *value > 0 { vec![contribute(*value)] } else { Vec::new() };
        [given, vec![combine(SUM), load(SUM, phase as u8)]].concat()
    };
    values.iter().enumerate().flat_map(add).collect()
}

/// Returns true if the thread has loaded these sums.
fn has(ended: &Ended, thread: usize, sums: &[u64]) -> bool {
    sums.iter().enumerate().all(|(phase, sum)| ended.register(thread, phase) == *sum)
}

/// A barrier for each phase, with the sum behind it.
fn sums_of(name: &'static str, about: &'static str, sum_on: u16, values: &[&[u64]]) -> Litmus {
    let phases = values[0].len();
    let of_phase = |phase: usize| values.iter().map(|values| values[phase]).sum::<u64>();
    let sums: Vec<u64> = (0..phases).map(|phase| (0..=phase).map(of_phase).sum()).collect();
    let program = Program::new(4, values.iter().map(|values| adds(values)));
    let threads = values.len();
    Litmus::new(name, about, divided(sum_on, program))
        .racy()
        .forbid(move |ended| (0..threads).any(|thread| !has(ended, thread, &sums)))
}

/// Returns the programs, with outcomes that no seed may show and outcomes that some seed must.
pub fn contributing() -> Vec<Litmus> {
    let mut all = vec![
        sums_of(
            "a sum of two",
            "both nodes see behind each barrier what both have contributed",
            0,
            &[&[1, 2, 3, 4, 5], &[10, 20, 30, 40, 50]],
        ),
        sums_of(
            "a sum of others",
            "node 0 contributes nothing, and the sum is at another node at first",
            1,
            &[&[0, 0, 0, 0], &[1, 2, 3, 4], &[10, 20, 30, 40]],
        ),
        sums_of(
            "some contribute",
            "other nodes in each phase, or none",
            1,
            &[&[1, 0, 0, 2], &[0, 0, 10, 0], &[100, 0, 200, 0], &[0, 0, 0, 1000]],
        ),
        sums_of(
            "a sum of a tree",
            "inner nodes pass on what comes from below",
            0,
            &[&[1, 2], &[1, 2], &[1, 0], &[1, 2], &[1, 2], &[1, 2], &[0, 2]],
        ),
    ];
    all.extend([
        with_data(),
        set_between(),
        watched(),
        written_beside(),
        told_by_another(),
        told_meanwhile(),
        awaited(),
    ]);
    all
}

/// Stores of all nodes before the barrier are seen behind it, too.
fn with_data() -> Litmus {
    Litmus::new(
        "a sum with data",
        "who sees the sum sees what nodes have stored before the barrier",
        divided(
            0,
            Program::new(
                4,
                [
                    vec![
                        load(DATA, 15),
                        store(NEAR_DATA, 5),
                        contribute(1),
                        combine(SUM),
                        load(SUM, 0),
                        load(DATA, 1),
                        barrier(),
                        combine(SUM),
                        load(SUM, 2),
                        load(DATA, 3),
                    ],
                    vec![
                        load(NEAR_DATA, 15),
                        contribute(2),
                        combine(SUM),
                        load(SUM, 0),
                        load(NEAR_DATA, 1),
                        barrier(),
                        store(DATA, 8),
                        contribute(4),
                        combine(SUM),
                        load(SUM, 2),
                    ],
                    vec![
                        load(NEAR_DATA, 14),
                        load(DATA, 15),
                        store(DATA, 7),
                        combine(SUM),
                        load(NEAR_DATA, 0),
                        barrier(),
                        contribute(8),
                        combine(SUM),
                        load(SUM, 2),
                        load(DATA, 3),
                    ],
                ],
            ),
        ),
    )
    .racy()
    .forbid(|ended| {
        let first = both(ended, (0, 0, 3), (1, 0, 3)) && both(ended, (0, 1, 7), (1, 1, 5));
        let second = both(ended, (0, 2, 15), (1, 2, 15)) && both(ended, (0, 3, 8), (2, 3, 8));
        !first || !second || !both(ended, (2, 0, 5), (2, 2, 15))
    })
}

/// Node 0 sets the word before each phase, as a program does with the result of its reduction.
fn set_between() -> Litmus {
    let phase = |mine: u64, sets: Option<u64>, into: u8| {
        let set = sets.map(|value| store(SUM, value)).into_iter().collect();
        [set, vec![barrier(), contribute(mine), combine(SUM), load(SUM, into), barrier()]].concat()
    };
    let node = |mine: u64, sets: bool| {
        let phases =
            (0..4).map(|number| phase(mine + number, sets.then_some(1000 * (number + 1)), number as u8));
        phases.collect::<Vec<_>>().concat()
    };
    Litmus::new(
        "a sum that is set before each phase",
        "nodes that have loaded the word before see what it becomes",
        divided(0, Program::new(4, [node(1, true), node(10, false), node(100, false)])),
    )
    .racy()
    .forbid(|ended| (0..3).any(|thread| !has(ended, thread, &[1111, 2114, 3117, 4120])))
}

/// Threads that are in no team watch the sum.
fn watched() -> Litmus {
    let watch = || vec![load(SUM, 0), load(SUM, 1), load(SUM, 2), load(SUM, 3)];
    Litmus::new(
        "a sum that is watched",
        "threads that come to no barrier see it grow, and nothing else",
        divided(
            0,
            Program::on(
                3,
                4,
                vec![
                    Script::team(0, adds(&[1, 1, 1])),
                    Script::team(1, adds(&[1, 1, 1])),
                    Script::team(2, adds(&[0, 1, 0])),
                    Script::foreign(0, watch()),
                    Script::foreign(1, watch()),
                    Script::foreign(2, watch()),
                ],
            ),
        ),
    )
    .racy()
    .forbid(|ended| {
        let shrinks = |thread| (0..3).any(|at| ended.register(thread, at) > ended.register(thread, at + 1));
        (3..6).any(shrinks) || (0..3).any(|thread| !has(ended, thread, &[2, 5, 7]))
    })
    .reach("the first sum is half there", |ended| (4..6).any(|thread| ended.register(thread, 1) == 1))
}

/// Threads that are in no team store beside the sum.
fn written_beside() -> Litmus {
    let beside = |word: u32| {
        let at = Address::word(2, word);
        vec![store(at, 1), load(SUM, 0), store(at, 2), load(SUM, 1), store(at, 3)]
    };
    let team = |values: &[u64]| {
        let rest = vec![load(Address::word(2, 5), 8), load(Address::word(2, 6), 9), barrier()];
        [adds(values), rest].concat()
    };
    Litmus::new(
        "a sum beside other words",
        "nothing that threads store to the page meanwhile is lost",
        divided(
            1,
            Program::on(
                2,
                4,
                vec![
                    Script::team(0, [team(&[1, 2, 3]), vec![load(SUM, 3)]].concat()),
                    Script::team(1, team(&[10, 20, 30])),
                    Script::foreign(0, [beside(5), vec![load(Address::word(2, 5), 2)]].concat()),
                    Script::foreign(1, [beside(6), vec![load(Address::word(2, 6), 2)]].concat()),
                ],
            ),
        ),
    )
    .racy()
    .forbid(|ended| {
        let sums = (0..2).all(|thread| has(ended, thread, &[11, 33, 66]));
        !sums || !both(ended, (2, 2, 3), (3, 2, 3))
    })
    .reach("a store is seen", |ended| ended.register(1, 8) > 0 && ended.register(1, 8) < 3)
}

/// The page of the sum travels with the departure, with a flag that a thread of node 0 has set meanwhile.
fn told_by_another() -> Litmus {
    let others = |last: Vec<Instruction>| [vec![load(DATA, 15)], adds(&[1, 1, 1, 1]), last].concat();
    let sees = |into: u8| vec![load(FLAG, into), load(DATA, into + 1)];
    let tells = [vec![load(DATA, 15)], vec![load(SUM, 0); 12], vec![store(DATA, 7), store(FLAG, 1)]].concat();
    Litmus::new(
        "MP by the page of a sum",
        "who sees a flag beside the sum sees what its writer has stored before",
        divided(
            0,
            Program::on(
                3,
                4,
                vec![
                    Script::team(0, adds(&[1, 1, 1, 1])),
                    Script::team(1, others(sees(8))),
                    Script::team(2, others(sees(8))),
                    Script::foreign(0, tells),
                ],
            ),
        ),
    )
    .racy()
    .forbid(|ended| {
        let sums = (0..3).all(|thread| has(ended, thread, &[3, 6, 9, 12]));
        !sums || (1..3).any(|thread| both(ended, (thread, 8, 1), (thread, 9, 0)))
    })
    .reach("the flag is seen", |ended| both(ended, (1, 8, 1), (1, 9, 7)))
    .reach("the flag is not seen", |ended| ended.register(2, 8) == 0)
}

/// The same where that thread does so while the sum grows: after node 0's arrival, and before its departure.
fn told_meanwhile() -> Litmus {
    const TRIES: usize = 60;
    let others = |last: Vec<Instruction>| [vec![load(DATA, 15)], adds(&[1, 1, 1]), last].concat();
    let sees = |into: u8| vec![load(FLAG, into), load(DATA, into + 1)];
    // Between the last two sums are those that nobody sees behind a barrier.
    let tries = (0..TRIES).flat_map(|number| {
        let next = 1 + 5 * (number + 1);
        let is_behind = jump_unless(15, 1, 1 + 5 * TRIES);
        [load(SUM, 0), jump_unless(0, 7, next), store(DATA, 7), store(FLAG, 1), is_behind]
    });
    Litmus::new(
        "MP by the page of a sum that grows",
        "who sees a flag beside the sum sees what its writer has stored before",
        divided(
            0,
            Program::on(
                3,
                4,
                vec![
                    Script::team(0, adds(&[1, 1, 1])),
                    Script::team(1, others(sees(8))),
                    Script::team(2, others(sees(8))),
                    Script::foreign(0, std::iter::once(load(DATA, 14)).chain(tries).collect()),
                ],
            ),
        ),
    )
    .racy()
    .forbid(|ended| {
        let sums = (0..3).all(|thread| has(ended, thread, &[3, 6, 9]));
        !sums || (1..3).any(|thread| both(ended, (thread, 8, 1), (thread, 9, 0)))
    })
    .reach("the flag is seen", |ended| both(ended, (2, 8, 1), (2, 9, 7)))
}

/// Node 0 has waited for the others before it comes to the barrier.
fn awaited() -> Litmus {
    let gathers = |into| vec![await_others(), load(VALUE, into), contribute(1), combine(SUM)];
    let gives = |value| vec![store(VALUE, value), contribute(value), combine(SUM)];
    Litmus::new(
        "a sum behind values that have travelled",
        "node 0 sees the values of each phase, and all see the sum",
        divided(
            0,
            Program::new(
                4,
                [
                    [gathers(8), vec![load(SUM, 0), barrier()], gathers(9), vec![load(SUM, 1)]].concat(),
                    [gives(5), vec![load(SUM, 0), barrier()], gives(6), vec![load(SUM, 1)]].concat(),
                    [vec![combine(SUM), load(SUM, 0), barrier(), combine(SUM), load(SUM, 1)]].concat(),
                ],
            ),
        ),
    )
    .racy()
    .forbid(|ended| !both(ended, (0, 8, 5), (0, 9, 6)) || (0..3).any(|thread| !has(ended, thread, &[6, 13])))
}
