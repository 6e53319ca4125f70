//! Streams of pages, and enough nodes for a tree.

use hiroba_base::NodeId;
use hiroba_wire::Placement;

use super::{Litmus, both};
use crate::program::script::*;
use crate::program::{Address, Instruction, Program, Region, Script};

/// The pages of a stream: enough for windows that double twice.
const PAGES: u64 = 20;

/// Returns regions that are all homed on node 0.
fn stream() -> Vec<Region> {
    vec![Region::new(0, PAGES, 1, Placement::On(NodeId(0)))]
}

/// Adds up word `index` of pages, in the order given, in register `sum`.
fn add_up(pages: impl IntoIterator<Item = u64>, index: u32, sum: u8) -> Vec<Instruction> {
    pages.into_iter().flat_map(|page| [load(Address::word(page, index), 31), add_register(sum, 31)]).collect()
}

/// Writes `value + page` to word `index` of pages.
fn write_all(pages: impl IntoIterator<Item = u64>, index: u32, value: u64) -> Vec<Instruction> {
    pages.into_iter().map(|page| store(Address::word(page, index), value + page)).collect()
}

/// Returns the result of [`add_up`] after [`write_all`].
fn sum(value: u64) -> u64 {
    (0..PAGES).map(|page| value + page).sum()
}

fn phase_after_phase() -> Program {
    let writer =
        [write_all(0..PAGES, 0, 1), vec![barrier(), barrier()], write_all(0..PAGES, 0, 100), vec![barrier()]];
    let reader = |pages: fn() -> Vec<u64>| {
        [vec![barrier()], add_up(pages(), 0, 0), vec![barrier(), barrier()], add_up(pages(), 0, 1)].concat()
    };
    let descending = || (0..PAGES).rev().collect();
    Program::new(
        0,
        [vec![barrier(); 3], writer.concat(), reader(|| (0..PAGES).collect()), reader(descending)],
    )
    .with_regions(stream())
}

/// Each of two nodes writes a word of its own in every page, and reads the other's in between, under a lock.
fn falsely_shared() -> Program {
    let script = |me: u32| {
        let other = 1 - me;
        [
            vec![lock(0)],
            write_all(0..PAGES, me, 1),
            vec![unlock(0)],
            write_all(0..PAGES, me + 2, 50),
            // These writes are unsent when the lock voids the pages.
            vec![lock(0)],
            add_up(0..PAGES, other, 0),
            vec![unlock(0), barrier()],
            add_up(0..PAGES, other, 1),
        ]
        .concat()
    };
    // A delay, so that either may come first if pages are available without waiting for messages.
    let delay = vec![load(Address::word(0, 9), 30); 60];
    let one = [script(0), add_up(0..PAGES, 3, 2)].concat();
    let other = [delay, script(1), add_up(0..PAGES, 2, 2)].concat();
    Program::new(0, [vec![barrier()], one, other]).with_regions(stream())
}

/// Two threads of a node read one stream while a third one acquires what invalidates it.
fn siblings() -> Program {
    let reader = || Script::team(1, [vec![barrier()], add_up(0..PAGES, 0, 0), vec![barrier()]].concat());
    let acquirer = [lock(0), load(Address::word(7, 1), 0), unlock(0)];
    let acquirer =
        Script::team(1, [vec![barrier()], acquirer.to_vec(), acquirer.to_vec(), vec![barrier()]].concat());
    let released = [vec![lock(0)], write_all(0..PAGES, 1, 5), vec![unlock(0)]].concat();
    let writer = [write_all(0..PAGES, 0, 1), vec![barrier()], released, vec![barrier()]].concat();
    let home = vec![barrier(), barrier()];
    let threads = vec![Script::team(0, home), reader(), reader(), acquirer, Script::team(2, writer)];
    Program::on(3, 0, threads).with_regions(stream())
}

pub(super) fn streams() -> Vec<Litmus> {
    vec![
        Litmus::new(
            "streams phase after phase",
            "what was fetched ahead is what was written before the barrier",
            phase_after_phase(),
        )
        .forbid(|ended| [2, 3].iter().any(|node| !both(ended, (*node, 0, sum(1)), (*node, 1, sum(100))))),
        Litmus::new(
            "streams of falsely shared pages",
            "pages with unsent writes come in together and are merged, each",
            falsely_shared(),
        )
        .forbid(|ended| [1, 2].iter().any(|node| !both(ended, (*node, 1, sum(1)), (*node, 2, sum(50)))))
        .reach("one sees the other's", |ended| ended.register(1, 0) == sum(1))
        .reach("one comes first", |ended| ended.register(1, 0) == 0),
        Litmus::new(
            "a stream that is invalidated while it is read",
            "a page that is fetched ahead is as recent as what its node has seen when it arrives",
            siblings(),
        )
        .forbid(|ended| {
            ended.register(1, 0) != sum(1)
                || ended.register(2, 0) != sum(1)
                || ![0, 12].contains(&ended.register(3, 0))
        }),
    ]
}

/// Nodes 5 and 6 are children of node 1; nodes 2, 3 and 4 are its siblings.
const NODES: u16 = 7;

fn everybody_writes(nodes: u16) -> Program {
    // Page p is homed on node p; each node writes a word there and in pages that belong to nodes above, below
    // and beside it.
    let places = move |node: u16| [node, (node + 1) % nodes, (node + 4) % nodes, 0].map(u64::from);
    let script = |me: u16| {
        let word = |page: u64, writer: u16| Address::word(page, u32::from(writer));
        let mut code: Vec<Instruction> = Vec::new();
        for round in 0..2u64 {
            for page in places(me) {
                code.push(store(word(page, me), 1 + round));
            }
            code.push(barrier());
            let others = (0..nodes).filter(|other| [1, 3, 4].contains(&((other + nodes - me) % nodes)));
            for other in others {
                for page in places(other) {
                    code.extend([load(word(page, other), 31), add_register(round as u8, 31)]);
                }
            }
            code.push(barrier());
        }
        code.push(leave());
        code
    };
    Program::new(u64::from(nodes), (0..nodes).map(script))
}

/// Node 5 learns of node 2's write by a lock; node 6, beside it, only by the barrier.
fn heard_by_one() -> Program {
    let written = Address::word(3, 0);
    let scripts = (0..NODES).map(|node| match node {
        2 => vec![load(written, 9), barrier(), lock(0), store(written, 7), unlock(0), barrier()],
        5 => vec![load(written, 9), barrier(), lock(0), load(written, 0), unlock(0), barrier()],
        6 => vec![load(written, 9), barrier(), barrier(), load(written, 1)],
        _ => vec![barrier(), barrier()],
    });
    Program::new(u64::from(NODES), scripts)
}

/// A thread of node 6 continues while another one waits in the barrier; what it releases crosses the
/// departure.
fn beyond_an_arrival() -> Program {
    let word = |index: u32| Address::word(3, index);
    let round =
        |count: u8| [lock(0), load(word(0), count), add(count, 1), store_from(word(0), count), unlock(0)];
    let mut threads: Vec<Script> = (0..NODES)
        .map(|node| {
            let mine = store(word(u32::from(node) + 1), 1);
            let next = word(u32::from((node + 1) % NODES) + 1);
            Script::team(
                node,
                vec![mine, barrier(), load(next, 0), barrier(), lock(0), load(word(0), 1), unlock(0)],
            )
        })
        .collect();
    for node in [6, 5, 2] {
        threads.push(Script::foreign(node, (0..3).flat_map(|_| round(0)).collect()));
    }
    Program::on(NODES, u64::from(NODES), threads)
}

pub(super) fn trees() -> Vec<Litmus> {
    let rounds_are_whole = |nodes: usize| {
        move |ended: &crate::execution::Ended| {
            // Four words of each of three others; some places coincide.
            (0..nodes).any(|node| {
                let (first, second) = (ended.register(node, 0), ended.register(node, 1));
                first != 12 || second != 24
            })
        }
    };
    vec![
        Litmus::new(
            "a barrier of six",
            "what each wrote reaches those above, below and beside it",
            everybody_writes(6),
        )
        .forbid(rounds_are_whole(6)),
        Litmus::new(
            "a barrier of nine",
            "what each wrote reaches those above, below and beside it",
            everybody_writes(9),
        )
        .forbid(rounds_are_whole(9)),
        Litmus::new(
            "a barrier tells a node what its neighbour already knows",
            "what one node below has seen is not what all below have seen",
            heard_by_one(),
        )
        .forbid(|ended| ended.register(6, 1) != 7)
        .reach("the neighbour knows it", |ended| ended.register(5, 0) == 7),
        Litmus::new(
            "releases that cross a departure in a tree",
            "what is released after an arrival is sent with the next one, along the whole tree",
            beyond_an_arrival(),
        )
        .forbid(|ended| (0..usize::from(NODES)).any(|node| ended.register(node, 0) != 1))
        .reach("the last one has seen all", |ended| ended.register(0, 1) == 9),
    ]
}
