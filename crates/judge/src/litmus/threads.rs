//! Several threads per node: teams, and threads outside them that continue while the team waits in a
//! collective.

use super::{Litmus, X, Y, both};
use crate::program::script::*;
use crate::program::{Address, Instruction, Program, Script};

// Lock 2 is managed by node 2, which therefore passes it on without a request.
const Z: Address = Address::word(2, 0);
/// Also on a page of node 2, but not on that of `Z`.
const Z2: Address = Address::word(5, 0);
/// On the page of `Y`.
const Y2: Address = Address::word(1, 1);

fn teams() -> Program {
    // Words of four threads on a page of node 2, and of the other node's threads on a page of one's own.
    let mine = |thread: u32| [Address::word(2, thread), Address::word(0, thread)];
    let script = |me: u32| {
        let mut code = Vec::new();
        for round in 0..3u64 {
            code.extend(mine(me).map(|at| store(at, round * 10 + u64::from(me))));
            code.push(barrier());
            for other in 0..4u32 {
                let [there, here] = mine(other);
                code.extend([load(there, other as u8), load(here, 4 + other as u8)]);
            }
            code.push(barrier());
        }
        code
    };
    let threads = (0..4u32).map(|me| Script::team(me as u16 / 2, script(me)));
    Program::on(3, 3, threads.chain([Script::team(2, vec![barrier(); 6])]).collect())
}

/// A flag under lock 1, and what must be known with it: the reader's part, `start` instructions into its
/// script.
fn read_if_flagged(data: Address, start: usize) -> Vec<Instruction> {
    vec![load(data, 9), lock(1), load(Y, 0), jump_unless(0, 1, start + 5), load(data, 1), unlock(1)]
}

pub(super) fn teams_meet() -> Vec<Litmus> {
    vec![
        Litmus::new(
            "a barrier for all threads of all nodes",
            "no thread leaves before the last thread of the last node has arrived",
            teams(),
        )
        .forbid(|ended| {
            (0..4).any(|thread| (0..8).any(|word| ended.register(thread, word) != 20 + word as u64 % 4))
        }),
        Litmus::new(
            "siblings hand over by a barrier",
            "a sibling's writes on the shared page are visible, and what it had fetched is not considered current",
            Program::on(
                3,
                3,
                vec![
                    Script::team(0, vec![load(Address::word(2, 0), 9), barrier(), load(Address::word(2, 0), 0), barrier()]),
                    Script::team(0, vec![barrier(), load(Address::word(2, 0), 0), store(Address::word(2, 1), 3), barrier()]),
                    Script::team(1, vec![store(Address::word(2, 0), 4), barrier(), barrier(), load(Address::word(2, 1), 0)]),
                    Script::team(2, vec![barrier(), barrier(), load(Address::word(2, 1), 0)]),
                ],
            ),
        )
        .racy()
        .forbid(|ended| !both(ended, (0, 0, 4), (1, 0, 4)) || !both(ended, (2, 0, 3), (3, 0, 3)))
        .reach("fetched before the barrier", |ended| ended.register(0, 9) == 0),
    ]
}

pub(super) fn crossings() -> Vec<Litmus> {
    vec![
        Litmus::new(
            "a grant overtakes a departure",
            "a thread that gets a lock from a node that has left a barrier must see what was written before it, \
             although its own node has not left yet",
            Program::on(
                3,
                6,
                vec![
                    Script::team(0, vec![barrier(), barrier()]),
                    // Its copy becomes stale.
                    Script::team(1, vec![load(Z, 9), barrier(), barrier(), load(Z, 1)]),
                    // It loops until it sees the flag.
                    Script::foreign(1, vec![lock(2), load(Z2, 0), unlock(2), jump_unless(0, 1, 0), load(Z, 1)]),
                    Script::team(
                        2,
                        vec![barrier(), store(Z, 7), barrier(), lock(2), store(Z2, 1), unlock(2)],
                    ),
                ],
            ),
        )
        .forbid(|ended| !both(ended, (1, 1, 7), (2, 1, 7))),
        Litmus::new(
            "a grant overtakes an arrival",
            "what a node has learned by a lock, from a thread whose node already waits in the barrier, all learn \
             that leave the barrier",
            Program::on(
                3,
                3,
                vec![
                    Script::team(0, vec![load(Y2, 9), barrier(), load(Y2, 1)]),
                    Script::team(1, vec![lock(1), load(Y, 0), unlock(1), barrier()]),
                    Script::team(2, vec![barrier()]),
                    Script::foreign(2, vec![lock(1), store(Y2, 7), store(Y, 1), unlock(1)]),
                ],
            ),
        )
        .racy()
        .forbid(|ended| both(ended, (1, 0, 1), (0, 1, 0)))
        .reach("heard of before the barrier", |ended| both(ended, (1, 0, 1), (0, 9, 0)))
        .reach("not heard of", |ended| ended.register(1, 0) == 0),
    ]
}

pub(super) fn departures() -> Vec<Litmus> {
    vec![
        Litmus::new(
            "what was written after an arrival is passed on after the departure",
            "a departure forgets only what all nodes have seen",
            Program::on(
                4,
                4,
                vec![
                    Script::team(0, vec![barrier(), barrier()]),
                    Script::team(1, vec![barrier(), lock(2), load(Y2, 0), unlock(2), lock(1), store_from(Y, 0), unlock(1), barrier()]),
                    Script::team(2, vec![barrier(), barrier()]),
                    Script::foreign(2, vec![lock(2), store(X, 7), store(Y2, 1), unlock(2)]),
                    Script::team(3, [vec![barrier()], read_if_flagged(X, 1), vec![barrier(), load(X, 2)]].concat()),
                ],
            ),
        )
        .racy()
        .forbid(|ended| both(ended, (4, 0, 1), (4, 1, 0)) || both(ended, (1, 0, 1), (4, 2, 0)))
        .reach("the chain reaches the last", |ended| both(ended, (4, 0, 1), (4, 9, 0))),
        Litmus::new(
            "a publication overtakes the departure of a node with other threads",
            "a block that has been freed may be given to a thread while another thread of its node waits in a barrier",
            Program::on(
                3,
                3,
                vec![
                    Script::team(0, vec![barrier(), store(X, 7), barrier()]),
                    Script::team(1, vec![load(X, 9), load(Z, 9), barrier(), barrier()]),
                    Script::foreign(1, vec![await_published(2), load(Z, 0), load(X, 1)]),
                    Script::team(2, vec![barrier(), barrier(), store(Z, 4), publish(1)]),
                ],
            ),
        )
        .forbid(|ended| !both(ended, (2, 0, 4), (2, 1, 7))),
        Litmus::new(
            "a home page is written while its node waits",
            "a departure must not make exclusive what a thread outside the teams has shared",
            Program::on(
                3,
                3,
                vec![
                    Script::team(0, vec![store(X, 1), barrier(), barrier(), barrier()]),
                    Script::foreign(
                        0,
                        vec![
                            lock(1),
                            store(Address::word(0, 1), 1),
                            unlock(1),
                            lock(1),
                            store(Address::word(0, 1), 2),
                            unlock(1),
                            lock(1),
                            store(Address::word(0, 1), 3),
                            unlock(1),
                        ],
                    ),
                    Script::team(1, vec![barrier(), load(X, 0), barrier(), barrier(), load(X, 1)]),
                    Script::foreign(
                        1,
                        (0..4).flat_map(|turn| [lock(1), load(Address::word(0, 1), turn), unlock(1)]).collect(),
                    ),
                    Script::team(2, vec![barrier(), barrier(), barrier()]),
                ],
            ),
        )
        .forbid(|ended| {
            let seen = [0, 1, 2, 3].map(|register| ended.register(3, register));
            !seen.is_sorted() || !both(ended, (2, 0, 1), (2, 1, 1))
        })
        .reach("one after the other", |ended| both(ended, (3, 1, 1), (3, 2, 2))),
    ]
}

fn conds_beside_a_barrier() -> Program {
    // Cond 1: filled, cond 2: emptied; the teams of all nodes meet meanwhile.
    let full = Address::word(1, 4);
    let slot = Address::word(1, 3);
    let mut producer = Vec::new();
    let mut consumer = Vec::new();
    for item in 1..=3u64 {
        producer.push(lock(0));
        let test = producer.len();
        producer.extend([load(full, 0), jump_unless(0, 1, test + 4), wait(2, 0), jump_unless(0, 9, test)]);
        producer.extend([store(slot, item * 11), store(full, 1), signal(1), unlock(0)]);
        consumer.push(lock(0));
        let test = consumer.len();
        consumer.extend([load(full, 0), jump_unless(0, 0, test + 4), wait(1, 0), jump_unless(0, 9, test)]);
        consumer.extend([load(slot, 1), add_register(2, 1), store(full, 0), signal(2), unlock(0)]);
    }
    let team = |node: u32| {
        let mut code = Vec::new();
        for round in 0..3u64 {
            code.extend([store(Address::word(1, 8 + node), round + 1), barrier()]);
            code.extend([load(Address::word(1, 8 + (node + 1) % 3), round as u8), barrier()]);
        }
        code
    };
    Program::on(
        3,
        3,
        vec![
            Script::team(0, team(0)),
            Script::team(1, team(1)),
            Script::team(2, team(2)),
            Script::foreign(0, producer),
            Script::foreign(2, consumer),
        ],
    )
}

fn atomics_and_diffs() -> Program {
    let counter = Address::word(2, 0);
    let beside = |thread: u32| Address::word(2, 1 + thread);
    let team = |me: u32| {
        let mut code = Vec::new();
        for round in 0..4u64 {
            code.extend([store(beside(me), round + 1), lock(me), unlock(me)]);
        }
        code.extend([barrier(), load(beside((me + 1) % 3), 0)]);
        code
    };
    let adder = || {
        let mut code = Vec::new();
        for _ in 0..4 {
            code.extend([fetch_add(counter, 1, 0), load(counter, 1)]);
        }
        code
    };
    Program::on(
        3,
        3,
        vec![
            Script::team(0, team(0)),
            Script::team(1, team(1)),
            Script::team(2, team(2)),
            Script::foreign(0, adder()),
            Script::foreign(1, adder()),
            Script::foreign(2, adder()),
        ],
    )
}

pub(super) fn foreign_threads() -> Vec<Litmus> {
    vec![
        Litmus::new(
            "condition variables beside a barrier",
            "threads outside the teams produce and consume while the teams meet",
            conds_beside_a_barrier(),
        )
        .forbid(|ended| {
            ended.register(4, 2) != 66
                || (0..3).any(|node| (0..3).any(|round| ended.register(node, round) != round as u64 + 1))
        }),
        Litmus::new(
            "atomic words while a sibling's diffs are in flight",
            "neither undoes the other",
            atomics_and_diffs(),
        )
        .forbid(|ended| {
            let highest = (3..6).map(|thread| ended.register(thread, 0)).max();
            let own_is_seen = (3..6).all(|thread| ended.register(thread, 1) > ended.register(thread, 0));
            (0..3).any(|node| ended.register(node, 0) != 4) || highest != Some(11) || !own_is_seen
        })
        .reach("they alternate", |ended| {
            (3..6).filter(|thread| ended.register(*thread, 0) >= 9).count() == 3
        }),
    ]
}
