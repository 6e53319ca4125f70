//! Locks that a node's threads take again and again, without the engine, until another node wants them.

use super::{Litmus, Y, Z};
use crate::program::script::*;
use crate::program::{Instruction, Program, Script};

/// The lock, whose manager is node 0.
const LOCK: u32 = 0;

/// Stores the same value to both words, in one hold.
fn hold(value: u64) -> [Instruction; 4] {
    [lock(LOCK), store(Z, value), store(Y, value), unlock(LOCK)]
}

/// Adds one to a word in a hold, and keeps what was there before.
fn count(into: u8) -> [Instruction; 5] {
    [
        lock(LOCK),
        load(Z, into),
        Instruction::Add(crate::program::Register(into), 1),
        store_from(Z, into),
        unlock(LOCK),
    ]
}

/// Returns the programs, with outcomes that no seed may show and outcomes that some seed must.
pub fn leases() -> Vec<Litmus> {
    let writer: Vec<Instruction> = (1..=4).flat_map(hold).collect();
    // Copies of both pages are made first, which may then be stale.
    let reader = vec![load(Z, 14), load(Y, 15), lock(LOCK), load(Z, 0), load(Y, 1), unlock(LOCK)];
    let tries =
        vec![load(Z, 14), load(Y, 15), try_lock(LOCK, 2), jump_unless(2, 1, 2), load(Z, 0), load(Y, 1)];
    let tries = [tries, vec![unlock(LOCK)]].concat();
    let counter = || [count(0), count(1), count(2)].concat();
    let counts = |ended: &crate::execution::Ended| {
        let mut seen: Vec<u64> = (0..3)
            .flat_map(|thread| (0..3).map(move |i| (thread, i)))
            .map(|(thread, i)| ended.register(thread, i))
            .collect();
        seen.sort_unstable();
        seen
    };
    vec![
        Litmus::new(
            "holds of a lease",
            "a thread that gets the lock sees what all holds before have stored",
            Program::new(3, [writer.clone(), reader]),
        )
        .racy()
        .forbid(|ended| ended.register(1, 0) != ended.register(1, 1))
        .reach("no hold was before", |ended| ended.register(1, 0) == 0)
        .reach("one hold was before", |ended| ended.register(1, 0) == 1)
        .reach("three holds were before", |ended| ended.register(1, 0) == 3)
        .reach("all holds were before", |ended| ended.register(1, 0) == 4),
        Litmus::new(
            "trying a lease",
            "a thread that tries to get the lock sees what all holds before have stored",
            Program::new(3, [writer, tries]),
        )
        .racy()
        .forbid(|ended| ended.register(1, 0) != ended.register(1, 1))
        .reach("two holds were before", |ended| ended.register(1, 0) == 2),
        Litmus::new(
            "threads of a lease",
            "threads of one node and another node take turns",
            Program::on(
                3,
                3,
                vec![Script::team(0, counter()), Script::team(0, counter()), Script::team(1, counter())],
            ),
        )
        .forbid(move |ended| counts(ended) != (1..=9).collect::<Vec<_>>())
        .reach("the other node comes between", move |ended| ended.register(2, 0) == 4),
    ]
}
