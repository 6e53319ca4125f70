//! What pages that are mapped onto their homes' frames may show, and must.

use super::{Litmus, X, X2, Y, Z, both};
use crate::program::script::*;
use crate::program::{Address, Instruction, Program, Script};

/// Returns programs for engines that map all pages.
pub fn mapped() -> Vec<Litmus> {
    vec![at_once(), handed_over(), counted(), bytes_of_one_word(), word_and_neighbours()]
}

/// Without any synchronisation each of two nodes may see what the other stores to a third node's page.
fn at_once() -> Litmus {
    let writer = |own: Address, other: Address| {
        [vec![store(own, 1)], vec![load(other, 0); 40], vec![barrier(), load(other, 1)]].concat()
    };
    Litmus::new(
        "stores are at the home at once",
        "others see them without a release, but may rely on them only after one",
        Program::new(3, [vec![barrier()], writer(X, X2), writer(X2, X)]),
    )
    .racy()
    .forbid(|ended| !both(ended, (1, 1, 1), (2, 1, 1)))
    .reach("one sees the other's", |ended| ended.register(1, 0) == 1)
    .reach("the other sees the one's", |ended| ended.register(2, 0) == 1)
    .reach("both do", |ended| both(ended, (1, 0, 1), (2, 0, 1)))
}

/// The last stores before a lock is handed over are visible to its next holder.
fn handed_over() -> Litmus {
    let hold = |value: u64, first: u8| {
        vec![lock(0), load(X, first), load(Y, first + 1), store(X, value), store(Y, value), unlock(0)]
    };
    let node = |number: u64| {
        let holds = (0..3).flat_map(|round| hold(10 * number + round + 1, 2 * round as u8));
        holds.chain([barrier(), load(X, 8), load(Y, 9)]).collect::<Vec<Instruction>>()
    };
    Litmus::new(
        "a lock brings the last stores",
        "a release is ordered behind the stores before it",
        Program::new(3, [node(0), node(1), node(2)]),
    )
    .forbid(|ended| {
        (0..3).any(|thread| {
            (0..5).any(|pair| ended.register(thread, 2 * pair) != ended.register(thread, 2 * pair + 1))
        })
    })
    .reach("the lock comes from another node", |ended| {
        let first = ended.register(0, 0);
        first > 10
    })
}

/// All nodes count in one word under a lock.
fn counted() -> Litmus {
    let counter = || {
        let once = [lock(1), load(Z, 0), add(0, 1), store_from(Z, 0), unlock(1)];
        (0..4).flat_map(|_| once.clone()).chain([barrier(), load(Z, 1)]).collect::<Vec<Instruction>>()
    };
    Litmus::new(
        "nodes count in one frame",
        "no count is lost between nodes or siblings",
        Program::on(
            2,
            3,
            vec![
                Script::team(0, counter()),
                Script::team(0, counter()),
                Script::team(1, counter()),
                Script::team(1, counter()),
            ],
        ),
    )
    .forbid(|ended| (0..4).any(|thread| ended.register(thread, 1) != 16))
    .reach("one thread counts first", |ended| (0..4).any(|thread| ended.register(thread, 0) == 16))
}

/// Two nodes write the bytes of one word that is homed on a third.
fn bytes_of_one_word() -> Litmus {
    let writer = |node: u32| {
        let bytes = (0..4).map(|byte| store_byte(Address::byte(0, 2 * byte + node), 1 + node as u8));
        bytes.chain([barrier(), load(X, 0)]).collect::<Vec<Instruction>>()
    };
    Litmus::new(
        "bytes of one word",
        "neighbours in one word do not undo each other's stores",
        Program::new(3, [writer(0), writer(1), vec![barrier(), load(X, 0)]]),
    )
    .forbid(|ended| (0..3).any(|thread| ended.register(thread, 0) != 0x0201_0201_0201_0201))
}

/// Plain stores beside, and to, a word that is operated on.
fn word_and_neighbours() -> Litmus {
    let node = |number: u64| {
        let own = Address::word(0, 2 + number as u32);
        let mut code = if number == 1 { vec![store(X, 100)] } else { Vec::new() };
        code.push(barrier());
        for round in 0..3 {
            code.extend([fetch_add(X, 1, 0), store(own, round + 1), load(own, 1)]);
        }
        code.extend([barrier(), load(X, 2), load(Address::word(0, 2), 3), load(Address::word(0, 4), 4)]);
        code
    };
    Litmus::new(
        "an atomic word among plain ones",
        "the home operates on what all have stored",
        Program::new(3, [node(0), node(1), node(2)]),
    )
    .forbid(|ended| {
        (0..3).any(|thread| {
            ended.register(thread, 1) != 3
                || ended.register(thread, 2) != 109
                || ended.register(thread, 3) != 3
                || ended.register(thread, 4) != 3
        })
    })
    .reach("the last operation is another's", |ended| ended.register(0, 0) < 108)
}
