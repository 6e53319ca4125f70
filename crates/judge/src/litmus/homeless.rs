//! Possible errors of a protocol whose diffs stay with their writers: the order of diffs, what they are
//! applied to, copies of a page that is being written, diffs that are made late or forgotten.

use super::{Litmus, both};
use crate::program::script::*;
use crate::program::{Address, Instruction, Program};

/// Returns a word of the only page, homed on node 0.
const fn word(number: u32) -> Address {
    Address::word(0, number)
}

fn section(id: u32, body: impl IntoIterator<Item = Instruction>) -> Vec<Instruction> {
    let mut code = vec![lock(id)];
    code.extend(body);
    code.push(unlock(id));
    code
}

fn on_one_page(threads: impl IntoIterator<Item = Vec<Instruction>>) -> Program {
    Program::new(1, threads)
}

/// Returns programs for engines that keep diffs at their writers.
pub(super) fn homeless() -> Vec<Litmus> {
    let mut all = orders();
    all.extend(copies());
    all.extend(late_diffs());
    all
}

fn orders() -> Vec<Litmus> {
    let count = |id: u32| section(id, [load(word(0), 0), add(0, 1), store_from(word(0), 0)]);
    let twice = || [count(0), count(0), vec![barrier()]].concat();
    vec![
        Litmus::new(
            "a word goes round while one node does not read",
            "many diffs of one word, by several writers, are applied in the order in which the lock went round",
            on_one_page([twice(), twice(), twice(), vec![barrier(), load(word(0), 1)]]),
        )
        .forbid(|ended| ended.register(3, 1) != 6)
        .reach("the home comes last", |ended| ended.register(0, 0) == 6)
        .reach("the home comes first", |ended| ended.register(0, 0) == 2),
        Litmus::new(
            "two words, two locks, one page",
            "concurrent diffs of one page do not undo each other, and each word has its own order",
            on_one_page([
                [count(0), vec![barrier(), load(word(1), 2)]].concat(),
                [count(0), section(1, [store(word(1), 5)]), vec![barrier(), load(word(0), 2)]].concat(),
                [section(1, [load(word(1), 1), store(word(2), 7)]), vec![barrier(), load(word(0), 2)]].concat(),
                vec![barrier(), load(word(0), 2), load(word(1), 3), load(word(2), 4)],
            ]),
        )
        .forbid(|ended| {
            ended.register(0, 2) != 5
                || [1, 2, 3].iter().any(|thread| ended.register(*thread, 2) != 2)
                || ended.register(3, 3) != 5
                || ended.register(3, 4) != 7
        })
        .reach("the lock brings the word", |ended| ended.register(2, 1) == 5)
        .reach("it does not", |ended| ended.register(2, 1) == 0),
    ]
}

fn copies() -> Vec<Litmus> {
    vec![
        Litmus::new(
            "a copy is taken while the page is being written",
            "what an interval writes and takes back is in no diff, so a first copy must be without it",
            on_one_page([
                [
                    section(0, [store(word(0), 1)]),
                    vec![barrier()],
                    // The page is shared by now and has a twin: 0 and 9 alternate until the interval ends
                    // with 1.
                    vec![store(word(0), 9), store(word(0), 1), store(word(0), 9), store(word(0), 1)],
                    section(0, []),
                    vec![barrier()],
                ]
                .concat(),
                vec![load(word(3), 0), barrier(), barrier(), load(word(0), 0)],
                vec![barrier(), load(word(1), 1), barrier(), load(word(0), 0)],
            ]),
        )
        .forbid(|ended| !both(ended, (1, 0, 1), (2, 0, 1))),
        Litmus::new(
            "an exclusive page is asked for while it is being written",
            "the home's writes before the first copy are in the copy, later ones are noticed",
            on_one_page([
                vec![store(word(0), 1), store(word(1), 2), store(word(0), 3), barrier(), load(word(2), 0)],
                vec![load(word(3), 0), store(word(2), 4), barrier(), load(word(0), 0), load(word(1), 1)],
            ]),
        )
        .forbid(|ended| ended.register(0, 0) != 4 || !both(ended, (1, 0, 3), (1, 1, 2))),
    ]
}

fn late_diffs() -> Vec<Litmus> {
    let add_to = |at: Address| fetch_add(at, 1, 5);
    vec![
        Litmus::new(
            "the same word in one interval after the other",
            "the diff of an interval that no node has requested does not contain the next one's writes",
            on_one_page([
                vec![barrier()],
                [section(0, [store(word(0), 1)]), section(1, [store(word(0), 2)]), vec![barrier()]].concat(),
                [section(0, [load(word(0), 0)]), vec![barrier(), load(word(0), 1)]].concat(),
            ]),
        )
        .racy()
        .forbid(|ended| ended.register(2, 1) != 2)
        .reach("the first interval's", |ended| ended.register(2, 0) == 1),
        Litmus::new(
            "an own diff is due when another's comes in",
            "diffs of others are applied only after the page's own pending diff is made",
            on_one_page([
                [section(0, [store(word(0), 1)]), vec![barrier(), barrier(), load(word(2), 0), barrier()]]
                    .concat(),
                [section(1, [store(word(1), 2)]), vec![barrier(), load(word(0), 0), barrier(), barrier()]]
                    .concat(),
                vec![barrier(), store(word(2), 3), barrier(), load(word(0), 0), load(word(1), 1), barrier()],
                vec![barrier(), barrier(), barrier(), load(word(0), 0), load(word(1), 1)],
            ]),
        )
        .forbid(|ended| {
            ended.register(0, 0) != 3
                || ended.register(1, 0) != 1
                || !both(ended, (2, 0, 1), (2, 1, 2))
                || !both(ended, (3, 0, 1), (3, 1, 2))
        }),
        Litmus::new(
            "an atomic word among plain ones",
            "an operation finds the stores before it, and no diff that comes later undoes it",
            on_one_page([
                vec![barrier(), store(word(1), 1), barrier(), load(word(0), 0), barrier()],
                [
                    vec![store(word(0), 10), barrier(), add_to(word(0)), barrier()],
                    vec![load(word(0), 0), barrier()],
                ]
                .concat(),
                [
                    vec![
                        barrier(),
                        add_to(word(0)),
                        store(word(2), 3),
                        barrier(),
                        load(word(0), 0),
                        barrier(),
                    ],
                    vec![load(word(1), 1)],
                ]
                .concat(),
            ]),
        )
        .forbid(|ended| {
            [0, 1, 2].iter().any(|thread| ended.register(*thread, 0) != 12) || ended.register(2, 1) != 1
        })
        .reach("the second comes first", |ended| ended.register(2, 5) == 10)
        .reach("the second comes last", |ended| ended.register(2, 5) == 11),
        Litmus::new(
            "a lock brings what an atomic operation left",
            "a node that acquires from one that operated sees the word, whichever node is its home",
            on_one_page([
                vec![load(word(7), 0)],
                section(0, [add_to(word(0)), store(word(1), 1)]),
                section(0, [load(word(1), 1), load(word(0), 0)]),
            ]),
        )
        .forbid(|ended| ended.register(2, 1) != ended.register(2, 0))
        .reach("it was left", |ended| ended.register(2, 1) == 1),
    ]
}
