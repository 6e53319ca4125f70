//! Messages to ports order memory: a send releases, and a receive acquires.

use hiroba_wire::Placement;

use super::{Litmus, X, X2, Y, Z, both};
use crate::program::script::*;
use crate::program::{Address, Instruction, Program, Region, Script};

/// A word on the page of `Y`.
const Y2: Address = Address::word(1, 1);

/// Makes copies of the pages, which are stale afterwards.
fn copy() -> Vec<Instruction> {
    vec![load(X, 14), load(Y, 14), load(Z, 14), barrier()]
}

fn after_copying(instructions: &[Instruction]) -> Vec<Instruction> {
    [&copy()[..], instructions].concat()
}

/// Returns the programs, with outcomes that no seed may show and outcomes that some seed must.
pub fn posts() -> Vec<Litmus> {
    let mut all = between_nodes();
    all.extend(through_siblings());
    all.extend(behind_ports());
    all
}

fn between_nodes() -> Vec<Litmus> {
    let hand_over = |long| {
        Program::new(
            3,
            [
                after_copying(&[store(X, 7), store(Y, 8), store(Z, 9), send(0, 1, long)]),
                after_copying(&[take(0, 0), load(X, 1), load(Y, 2), load(Z, 3)]),
                copy(),
            ],
        )
        .with_ports(&[1])
    };
    let sees_all = |ended: &crate::execution::Ended| {
        both(ended, (1, 0, 1), (1, 1, 7)) && both(ended, (1, 2, 8), (1, 3, 9))
    };
    let rounds = 3u64;
    let there = (0..rounds).flat_map(|_| [load(Z, 1), add(1, 1), store_from(Z, 1), post(0, 1), take(1, 0)]);
    let back = (0..rounds).flat_map(|_| [take(0, 0), load(Z, 1), add(1, 1), store_from(Z, 1), post(1, 1)]);
    let (there, back): (Vec<_>, Vec<_>) = (there.collect(), back.collect());
    vec![
        Litmus::new(
            "message passing by a message",
            "who takes a message sees what was written before it",
            hand_over(false),
        )
        .forbid(move |ended| !sees_all(ended)),
        Litmus::new(
            "message passing by a long message",
            "the same if memory is reserved first and the data follow",
            hand_over(true),
        )
        .forbid(move |ended| !sees_all(ended)),
        Litmus::new(
            "messages there and back",
            "a word that is passed on and on is counted up by each in turn",
            Program::new(3, [after_copying(&there), after_copying(&back), copy()]).with_ports(&[1, 0]),
        )
        .forbid(move |ended| ended.register(1, 1) != 2 * rounds),
        Litmus::new(
            "a chain of messages",
            "who takes a message sees what its sender had seen",
            Program::new(
                3,
                [
                    after_copying(&[store(Z, 5), store(X, 6), post(0, 1)]),
                    after_copying(&[take(0, 0), post(1, 1)]),
                    after_copying(&[take(1, 0), load(X, 1), load(Z, 2)]),
                ],
            )
            .with_ports(&[1, 2]),
        )
        .forbid(|ended| !both(ended, (2, 1, 6), (2, 2, 5))),
        Litmus::new(
            "messages of two senders",
            "each message brings its own sender's writes",
            Program::new(
                3,
                [
                    after_copying(&[store(Y, 1), post(0, 1)]),
                    after_copying(&[store(Y2, 2), post(0, 2)]),
                    after_copying(&[take(0, 0), take(0, 1), load(Y, 2), load(Y2, 3)]),
                ],
            )
            .with_ports(&[2]),
        )
        .forbid(|ended| !both(ended, (2, 2, 1), (2, 3, 2)))
        .reach("the first comes first", |ended| ended.register(2, 0) == 1)
        .reach("the second comes first", |ended| ended.register(2, 0) == 2),
        Litmus::new(
            "a lock behind a message",
            "what came under a lock is passed on by a message",
            Program::new(
                3,
                [
                    after_copying(&[
                        lock(1),
                        load(X, 0),
                        unlock(1),
                        jump_unless(0, 1, 4),
                        store(Z, 3),
                        post(0, 1),
                    ]),
                    after_copying(&[lock(1), store(X, 1), unlock(1)]),
                    after_copying(&[take(0, 0), load(X, 1), load(Z, 2)]),
                ],
            )
            .with_ports(&[2]),
        )
        .forbid(|ended| !both(ended, (2, 1, 1), (2, 2, 3))),
    ]
}

fn through_siblings() -> Vec<Litmus> {
    vec![
        Litmus::new(
            "a message behind a barrier",
            "a message that comes before the departure waits for what was written before it",
            Program::on(
                3,
                3,
                vec![
                    Script::team(0, after_copying(&[barrier()])),
                    Script::team(1, after_copying(&[post(1, 1), barrier()])),
                    Script::team(2, after_copying(&[barrier(), store(X, 1), store(Y, 2), post(0, 1)])),
                    Script::foreign(1, vec![take(1, 0), take(0, 0), load(X, 1), load(Y, 2)]),
                ],
            )
            .with_ports(&[1, 1]),
        )
        .forbid(|ended| !both(ended, (3, 1, 1), (3, 2, 2))),
        Litmus::new(
            "a message between siblings, and on",
            "a message within a node orders, too, and its sender's writes go on with the next one",
            Program::on(
                2,
                3,
                vec![
                    Script::team(0, after_copying(&[store(Y, 1), store(X2, 2), post(0, 1)])),
                    Script::team(1, after_copying(&[take(1, 0), load(Y, 1), load(X2, 2), load(Z, 3)])),
                    Script::foreign(0, vec![take(0, 0), load(Y, 1), store(Z, 3), post(1, 1)]),
                ],
            )
            .with_ports(&[0, 1])
            .with_regions(vec![Region::new(0, 3, 1, Placement::Cyclic)]),
        )
        .forbid(|ended| !both(ended, (1, 1, 1), (1, 2, 2)) || !both(ended, (1, 3, 3), (2, 1, 1))),
    ]
}

/// Messages that are sent to a port while it moves: former nodes of the port send them on.
fn behind_ports() -> Vec<Litmus> {
    let behind = |long| {
        Program::new(
            3,
            [
                after_copying(&[store(X, 7), store(Y, 8), send(0, 1, long)]),
                after_copying(&[store(Z, 9), pass(0, 1)]),
                after_copying(&[take(1, 0), take(0, 0), load(X, 1), load(Y, 2), load(Z, 3)]),
            ],
        )
        .with_ports(&[1, 2])
    };
    let sees_all = |ended: &crate::execution::Ended| {
        both(ended, (2, 1, 7), (2, 2, 8)) && both(ended, (2, 0, 1), (2, 3, 9))
    };
    vec![
        Litmus::new(
            "a message behind its port",
            "who takes a message that has followed its port sees what was written before it",
            behind(false),
        )
        .forbid(move |ended| !sees_all(ended)),
        Litmus::new("a long message behind its port", "the same for a long message", behind(true))
            .forbid(move |ended| !sees_all(ended)),
        Litmus::new(
            "a message behind two moves",
            "each node that a message passes through makes known what its sender had written",
            Program::new(
                3,
                [
                    after_copying(&[store(X, 7), post(0, 1)]),
                    after_copying(&[pass(0, 1)]),
                    after_copying(&[take(1, 0), pass(0, 2)]),
                    after_copying(&[take(2, 0), take(0, 0), load(X, 1)]),
                ],
            )
            .with_ports(&[1, 2, 3]),
        )
        .forbid(|ended| !both(ended, (3, 0, 1), (3, 1, 7))),
        Litmus::new(
            "a message behind a port that comes back",
            "a message that its port's node has sent on, and that comes back, brings its sender's writes",
            Program::new(
                3,
                [
                    after_copying(&[store(X, 7), post(0, 1)]),
                    after_copying(&[pass(0, 1), take(2, 0), take(0, 0), load(X, 1)]),
                    after_copying(&[take(1, 0), store(Z, 9), pass(0, 2)]),
                ],
            )
            .with_ports(&[1, 2, 1]),
        )
        .forbid(|ended| !both(ended, (1, 0, 1), (1, 1, 7))),
        Litmus::new(
            "a sibling's message behind its port",
            "a message to a port of its sender's node, which informs no node, follows the port",
            Program::on(
                3,
                3,
                vec![
                    Script::team(0, after_copying(&[store(Y, 8), post(0, 1)])),
                    Script::team(1, after_copying(&[post(2, 0), pass(0, 1)])),
                    Script::team(
                        2,
                        after_copying(&[take(1, 0), take(0, 0), take(0, 1), load(X, 2), load(Y, 3)]),
                    ),
                    Script::foreign(1, vec![take(2, 0), store(X, 7), post(0, 2)]),
                ],
            )
            .with_ports(&[1, 2, 1]),
        )
        .forbid(|ended| !both(ended, (2, 2, 7), (2, 3, 8)))
        .reach("the sibling's message comes first", |ended| ended.register(2, 0) == 2)
        .reach("the sibling's message comes last", |ended| ended.register(2, 0) == 1),
    ]
}
