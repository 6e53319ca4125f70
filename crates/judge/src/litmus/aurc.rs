//! What automatic update adds: stores that other nodes may see before the release, and errors that must not
//! follow.

use super::{Litmus, X, X2, Y, Z};
use crate::program::script::*;
use crate::program::{Address, Program, Script};

/// Loads `count` times, so that the network has time to deliver messages.
fn looks(at: Address, into: u8, count: usize) -> Vec<crate::program::Instruction> {
    vec![load(at, into); count]
}

/// Returns programs for engines that send what an interval has changed before it ends.
pub fn early() -> Vec<Litmus> {
    vec![seen_early(), taken_back(), fetched_again(), nothing_left(), handed_on()]
}

/// The home loads repeatedly, without any synchronisation, what a writer has stored to its copy.
fn seen_early() -> Litmus {
    let home = [vec![store(X, 1), barrier()], looks(X, 0, 60), vec![barrier(), load(X, 1)]].concat();
    let writer = [vec![barrier(), store(X, 2)], looks(Z, 0, 60), vec![barrier()]].concat();
    Litmus::new(
        "a store is at the home before its release",
        "updates leave while the interval is open",
        Program::new(3, [home, writer, vec![barrier(), barrier()]]),
    )
    .racy()
    .forbid(|ended| ended.register(0, 1) != 2)
    .reach("the store before the release", |ended| ended.register(0, 0) == 2)
}

/// A store that has been sent is undone before the release.
fn taken_back() -> Litmus {
    let home = [vec![barrier()], looks(X, 0, 60), vec![barrier(), load(X, 1)]].concat();
    let writer = [
        vec![barrier(), store(X, 7)],
        looks(Z, 0, 40),
        vec![store(X, 0), store(X2, 5), barrier(), load(X, 1)],
    ]
    .concat();
    Litmus::new(
        "a store that was sent is taken back",
        "the twin takes what was sent, so that the old value differs from it",
        Program::new(3, [home, writer, vec![barrier(), barrier()]]),
    )
    .racy()
    .forbid(|ended| ended.register(0, 1) != 0 || ended.register(1, 1) != 0)
    .reach("the store before it is taken back", |ended| ended.register(0, 0) == 7)
}

/// A page that was sent early is invalidated and fetched again before the release.
fn fetched_again() -> Litmus {
    let rounds = || 0..5u64;
    let mut home: Vec<_> = rounds().flat_map(|round| [lock(0), store(X2, round + 1), unlock(0)]).collect();
    home.extend([barrier(), load(X, 1)]);
    let mut writes: Vec<_> = rounds()
        .flat_map(|round| {
            let again = looks(X, round as u8, 10);
            [vec![store(X, round + 7)], again].concat()
        })
        .collect();
    writes.extend([barrier(), load(X, 5)]);
    let mut acquires: Vec<_> =
        rounds().flat_map(|round| [lock(0), load(X2, round as u8), unlock(0)]).collect();
    acquires.push(barrier());
    let threads = vec![Script::team(0, home), Script::team(1, writes), Script::team(1, acquires)];
    Litmus::new(
        "a page that was sent early is fetched again",
        "the incoming page must contain what its reader has sent, or the merge undoes it",
        Program::on(2, 2, threads),
    )
    .forbid(move |ended| {
        let kept = rounds().all(|round| ended.register(1, round as usize) == round + 7);
        !kept || ended.register(0, 1) != 11 || ended.register(1, 5) != 11
    })
    .reach("the acquire after the other's release", |ended| ended.register(2, 4) >= 1)
}

/// All of an interval may have been sent when it ends: its notice and its version are still due.
fn nothing_left() -> Litmus {
    let reader = |into: u8| {
        vec![
            load(X, 9),
            barrier(),
            lock(0),
            load(Y, into),
            load(X, into + 1),
            unlock(0),
            barrier(),
            load(X, 5),
        ]
    };
    let writer = [
        vec![load(X, 9), barrier(), lock(0), store(X, 3)],
        looks(Z, 8, 60),
        vec![store(Y, 1), unlock(0), barrier()],
    ]
    .concat();
    Litmus::new(
        "all was sent before the release",
        "a page of which nothing is left at the release changed all the same",
        Program::new(3, [vec![load(X, 9), barrier(), barrier(), load(X, 5)], writer, reader(0)]),
    )
    .forbid(|ended| {
        (ended.register(2, 0) == 1 && ended.register(2, 1) != 3)
            || ended.register(2, 5) != 3
            || ended.register(0, 5) != 3
    })
    .reach("the lock after the writer", |ended| ended.register(2, 0) == 1)
}

/// Three nodes count in one word that is homed on a fourth, and write words of their own beside it.
fn handed_on() -> Litmus {
    let counter = |node: u32| {
        let own = Address::word(0, 1 + node);
        let mut code = vec![store(own, 1)];
        for round in 0..3u64 {
            code.extend([lock(0), load(X, 0), add(0, 1), store_from(X, 0), store(own, 2 + round), unlock(0)]);
        }
        code.extend([barrier(), load(X, 1), load(Address::word(0, 1), 2), load(Address::word(0, 2), 3)]);
        code
    };
    let home = vec![barrier(), load(X, 1), load(Address::word(0, 1), 2), load(Address::word(0, 2), 3)];
    let total = |ended: &crate::execution::Ended| {
        (0..3).all(|thread| {
            (ended.register(thread, 1), ended.register(thread, 2), ended.register(thread, 3)) == (6, 4, 4)
        })
    };
    Litmus::new(
        "a counter that is handed on while it leaves early",
        "no early diff arrives after a later store",
        Program::new(3, [home, counter(0), counter(1)]),
    )
    .forbid(move |ended| !total(ended))
}
