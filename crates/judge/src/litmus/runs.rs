//! Runs of pages under sequential consistency: threads sweep over the same pages, so that pages are requested
//! before a thread touches them, and are given, invalidated and released together.

use hiroba_base::NodeId;
use hiroba_wire::Placement;

use super::Litmus;
use crate::program::script::*;
use crate::program::{Address, Instruction, Program, Region};

/// The pages of a run: enough for one that doubles once.
const PAGES: u64 = 8;

/// Returns pages that are all homed on node 0.
fn array() -> Vec<Region> {
    vec![Region::new(0, PAGES, 1, Placement::On(NodeId(0)))]
}

/// Writes a value to word `index` of each page, upwards.
fn write(index: u32, value: u64) -> Vec<Instruction> {
    (0..PAGES).map(|page| store(Address::word(page, index), value + page)).collect()
}

/// Reads word `index` of each page into registers from `first` on, in the order of `pages`.
fn read(pages: impl Iterator<Item = u64>, index: u32, first: u8) -> Vec<Instruction> {
    pages.zip(first..).map(|(page, into)| load(Address::word(page, index), into)).collect()
}

/// The values of [`write()`], which follow each other by so much.
const ROUND: u64 = 100;

/// Returns the rounds that the registers from `first` on show, in their order.
fn rounds(ended: &crate::execution::Ended, thread: usize, first: usize) -> Vec<u64> {
    (0..PAGES as usize).map(|number| ended.register(thread, first + number) / ROUND).collect()
}

/// Returns the programs, with outcomes that sequential consistency forbids and outcomes that some seed must
/// show.
pub(super) fn runs() -> Vec<Litmus> {
    let up = || 0..PAGES;
    let down = || (0..PAGES).rev();
    let sweeps = |index| [write(index, ROUND), write(index, 2 * ROUND), write(index, 3 * ROUND)].concat();
    let phases = |code: &[Instruction]| [vec![barrier()], code.to_vec(), vec![barrier()]].concat();
    let rewritten = |number: u64| [write(0, number * ROUND), vec![barrier(), barrier()]].concat();
    let reread = |first| phases(&read(up(), 0, first));
    vec![
        Litmus::new(
            "a run that is read against the run that writes it",
            "who has read a store downwards sees all stores before it",
            Program::new(0, [vec![], sweeps(0), [read(up(), 0, 20), read(down(), 0, 0)].concat()])
                .with_regions(array()),
        )
        .racy()
        .forbid(|ended| !rounds(ended, 2, 0).is_sorted())
        .reach("a sweep that is half done", |ended| {
            rounds(ended, 2, 0).first() < rounds(ended, 2, 0).last() && rounds(ended, 2, 0)[0] > 0
        }),
        Litmus::new(
            "two runs of stores over the same pages",
            "of two threads that store and then load everywhere, one sees all of the other's stores",
            Program::new(
                0,
                [
                    vec![],
                    [write(0, ROUND), read(up(), 1, 0)].concat(),
                    [write(1, ROUND), read(down(), 0, 0)].concat(),
                ],
            )
            .with_regions(array()),
        )
        .racy()
        .forbid(|ended| [1, 2].iter().all(|thread| rounds(ended, *thread, 0).contains(&0)))
        .reach("the first one sees all", |ended| !rounds(ended, 1, 0).contains(&0))
        .reach("the second one sees all", |ended| !rounds(ended, 2, 0).contains(&0)),
        Litmus::new(
            "sweeps again and again",
            "a run whose copies are invalidated together is read as it was written last",
            Program::new(
                0,
                [
                    [rewritten(1), rewritten(2), rewritten(3)].concat(),
                    [reread(0), reread(8), reread(16)].concat(),
                    [reread(0), reread(8), reread(16)].concat(),
                ],
            )
            .with_regions(array()),
        )
        .forbid(|ended| {
            let reads = [(0, 1), (8, 2), (16, 3)];
            reads.iter().any(|(first, round)| {
                (1..3).any(|thread| rounds(ended, thread, *first).iter().any(|seen| seen != round))
            })
        }),
        Litmus::new(
            "runs of neighbours",
            "a run that goes on into another thread's pages takes no store from it",
            Program::new(
                0,
                [
                    vec![barrier(), barrier()],
                    [&write(0, ROUND)[..4], &[barrier()], &write(0, 2 * ROUND)[..4], &[barrier()]].concat(),
                    [
                        &write(0, ROUND)[4..],
                        &[barrier()],
                        &write(0, 2 * ROUND)[4..],
                        &[barrier()],
                        &read(up(), 0, 0)[..],
                    ]
                    .concat(),
                ],
            )
            .with_regions(array()),
        )
        .forbid(|ended| rounds(ended, 2, 0).iter().any(|round| *round != 2)),
    ]
}
