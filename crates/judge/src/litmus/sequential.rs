//! The classic programs that distinguish sequential consistency from weaker models. All have races, and none
//! synchronises. Programs with runs of pages (`litmus/runs.rs`) are added to them.
//!
//! The names are those of Alglave, Maranget, Tautschnig, *Herding Cats*, ACM TOPLAS 2014.

use super::runs::runs;
use super::{Litmus, X, X2, Y, Z, both, fetch_add};
use crate::program::script::*;
use crate::program::{Address, Instruction, Program};

/// Returns the programs, with outcomes that sequential consistency forbids and outcomes that some seed must
/// show.
pub fn sequential() -> Vec<Litmus> {
    let mut all = buffers_and_messages();
    all.extend(more_than_two());
    all.extend(one_page());
    all.extend(runs());
    all
}

/// Makes every thread touch both words first, so that stale copies can be read.
fn warmed(code: &[Instruction]) -> Vec<Instruction> {
    let mut warmed = vec![load(Y, 14), load(Z, 15)];
    warmed.extend_from_slice(code);
    warmed
}

fn buffers_and_messages() -> Vec<Litmus> {
    vec![
        Litmus::new(
            "SB",
            "two stores, two loads: one comes first",
            Program::new(3, [warmed(&[store(Y, 1), load(Z, 0)]), warmed(&[store(Z, 1), load(Y, 0)]), vec![]]),
        )
        .racy()
        .forbid(|ended| both(ended, (0, 0, 0), (1, 0, 0)))
        .reach("the first comes first", |ended| both(ended, (0, 0, 0), (1, 0, 1)))
        .reach("the second comes first", |ended| both(ended, (0, 0, 1), (1, 0, 0)))
        .reach("both stores come first", |ended| both(ended, (0, 0, 1), (1, 0, 1))),
        Litmus::new(
            "MP",
            "a thread that sees the flag sees the data, without a lock",
            Program::new(3, [warmed(&[store(Y, 7), store(Z, 1)]), warmed(&[load(Z, 0), load(Y, 1)]), vec![]]),
        )
        .racy()
        .forbid(|ended| both(ended, (1, 0, 1), (1, 1, 0)))
        .reach("neither is seen", |ended| both(ended, (1, 0, 0), (1, 1, 0)))
        .reach("the data is seen first", |ended| both(ended, (1, 0, 0), (1, 1, 7)))
        .reach("both are seen", |ended| both(ended, (1, 0, 1), (1, 1, 7))),
        Litmus::new(
            "LB",
            "loads do not see stores that come after them",
            Program::new(3, [warmed(&[load(Y, 0), store(Z, 1)]), warmed(&[load(Z, 0), store(Y, 1)]), vec![]]),
        )
        .racy()
        .forbid(|ended| both(ended, (0, 0, 1), (1, 0, 1)))
        .reach("one is seen", |ended| both(ended, (0, 0, 1), (1, 0, 0)))
        .reach("none is seen", |ended| both(ended, (0, 0, 0), (1, 0, 0))),
        Litmus::new(
            "a flag that is waited for",
            "a spinning thread sees the store in the end, and what came before it",
            Program::new(
                3,
                [vec![store(Y, 7), store(Z, 1)], vec![load(Z, 0), jump_unless(0, 1, 0), load(Y, 1)], vec![]],
            ),
        )
        .racy()
        .forbid(|ended| ended.register(1, 1) != 7),
    ]
}

fn more_than_two() -> Vec<Litmus> {
    vec![
        Litmus::new(
            "IRIW",
            "two readers agree on the order of two writes",
            Program::new(
                3,
                [
                    warmed(&[store(Y, 1)]),
                    warmed(&[store(Z, 1)]),
                    warmed(&[load(Y, 0), load(Z, 1)]),
                    warmed(&[load(Z, 0), load(Y, 1)]),
                ],
            ),
        )
        .racy()
        .forbid(|ended| both(ended, (2, 0, 1), (2, 1, 0)) && both(ended, (3, 0, 1), (3, 1, 0)))
        .reach("the first write comes first", |ended| both(ended, (2, 0, 1), (2, 1, 0)))
        .reach("the second comes first", |ended| both(ended, (3, 0, 1), (3, 1, 0))),
        Litmus::new(
            "WRC",
            "a thread that sees another's store also sees what that one has seen",
            Program::new(
                3,
                [
                    warmed(&[store(Y, 1)]),
                    warmed(&[load(Y, 0), store(Z, 1)]),
                    warmed(&[load(Z, 0), load(Y, 1)]),
                ],
            ),
        )
        .racy()
        .forbid(|ended| ended.register(1, 0) == 1 && both(ended, (2, 0, 1), (2, 1, 0)))
        .reach("all is seen", |ended| ended.register(1, 0) == 1 && both(ended, (2, 0, 1), (2, 1, 1))),
        Litmus::new(
            "2+2W",
            "two words written by two threads end as one order has it",
            Program::new(
                3,
                [
                    warmed(&[store(Y, 1), store(Z, 2)]),
                    warmed(&[store(Z, 1), store(Y, 2)]),
                    [warmed(&[]), vec![add(0, 1), jump_unless(0, 400, 2), load(Y, 1), load(Z, 2)]].concat(),
                ],
            ),
        )
        .racy()
        .reach("the first comes first", |ended| both(ended, (2, 1, 2), (2, 2, 2)))
        .reach("the first comes last", |ended| both(ended, (2, 1, 1), (2, 2, 2))),
    ]
}

fn one_page() -> Vec<Litmus> {
    let bump = |at: Address| vec![load(at, 0), add(0, 1), store_from(at, 0)];
    let loops = |at: Address| [bump(at), vec![add(1, 1), jump_unless(1, 5, 0)]].concat();
    vec![
        Litmus::new(
            "CoRR",
            "two loads of one word see its values in their order",
            Program::new(
                2,
                [
                    vec![store(Y, 1), add(8, 1), jump_unless(8, 60, 1), store(Y, 2)],
                    vec![],
                    vec![
                        load(Y, 0),
                        add(8, 1),
                        jump_unless(8, 30, 1),
                        load(Y, 1),
                        add(9, 1),
                        jump_unless(9, 30, 4),
                        load(Y, 2),
                    ],
                ],
            ),
        )
        .racy()
        .forbid(|ended| ![0, 1, 2].map(|register| ended.register(2, register)).is_sorted())
        .reach("old, then new", |ended| both(ended, (2, 0, 0), (2, 2, 2)))
        .reach("all three", |ended| both(ended, (2, 0, 0), (2, 1, 1)) && ended.register(2, 2) == 2),
        Litmus::new(
            "writers of one page",
            "a page that goes back and forth loses no store, and every thread makes progress",
            Program::new(
                1,
                [
                    [loops(X), vec![barrier(), load(X, 2), load(X2, 3)]].concat(),
                    [loops(X2), vec![barrier(), load(X, 2), load(X2, 3)]].concat(),
                    [loops(Address::word(0, 7)), vec![barrier()]].concat(),
                ],
            ),
        )
        .forbid(|ended| !both(ended, (0, 2, 5), (0, 3, 5)) || !both(ended, (1, 2, 5), (1, 3, 5))),
        Litmus::new(
            "atomics and plain loads of one word",
            "operations are stores and loads of their own, in one order with all others",
            Program::new(
                2,
                [
                    vec![fetch_add(Y, 1, 0), load(Y, 1)],
                    vec![fetch_add(Y, 1, 0), load(Y, 1)],
                    vec![load(Y, 0), load(Y, 1)],
                ],
            ),
        )
        .racy()
        .forbid(|ended| {
            ended.register(0, 0) == ended.register(1, 0)
                || (0..2).any(|thread| ended.register(thread, 1) <= ended.register(thread, 0))
                || ended.register(2, 0) > ended.register(2, 1)
        })
        .reach("a load between two operations", |ended| ended.register(2, 0) == 1),
    ]
}
