//! Possible errors if nodes read each other's frames: a home that does not know its readers, and frames that
//! are older or newer than the notices. Every program means the same if pages are requested by message.

use hiroba_base::{NodeId, PageId, PageRange};
use hiroba_wire::Placement;

use super::{Litmus, X, X2, Y, Z, both};
use crate::program::script::*;
use crate::program::{Address, Instruction, Program, Region, Script};

fn section(body: impl IntoIterator<Item = Instruction>) -> Vec<Instruction> {
    let mut code = vec![lock(0)];
    code.extend(body);
    code.push(unlock(0));
    code
}

/// A word of the page of `X` that is never written.
const QUIET: Address = Address::word(0, 20);

/// Reads the page of `X` without a lock, where no thread writes, then repeatedly reads `X` under one.
fn watcher() -> Vec<Instruction> {
    let look = |register: u8| section([load(X, register)]);
    [vec![load(QUIET, 9)], look(0), look(1), look(2), vec![barrier(), load(X, 3)]].concat()
}

fn seen_in_order(ended: &crate::execution::Ended, thread: usize, last: u64) -> bool {
    let seen = [0, 1, 2, 3].map(|register| ended.register(thread, register));
    seen.is_sorted() && seen[3] == last
}

pub(super) fn readers() -> Vec<Litmus> {
    vec![
        Litmus::new(
            "a page is read while its home takes it to be exclusive",
            "a reader that copies it between two stores learns of the second",
            Program::new(
                1,
                [
                    [vec![store(X2, 1)], section([store(X, 1)]), section([store(X, 2)]), section([store(X, 3)]), vec![barrier()]]
                        .concat(),
                    watcher(),
                ],
            ),
        )
        .forbid(|ended| !seen_in_order(ended, 1, 3))
        .reach("one after the other", |ended| both(ended, (1, 0, 1), (1, 2, 3))),
        Litmus::new(
            "a page is read while a sibling of the storing thread closes an interval",
            "the notice of the page comes with that interval or with the next",
            Program::on(
                2,
                1,
                vec![
                    Script::team(0, [section([store(X, 1)]), section([store(X, 2)]), section([store(X, 3)]), vec![barrier()]].concat()),
                    Script::team(0, [vec![vec![lock(1), unlock(1), store(X2, 1)]; 4].concat(), vec![barrier()]].concat()),
                    Script::team(1, watcher()),
                ],
            ),
        )
        .forbid(|ended| !seen_in_order(ended, 2, 3)),
        Litmus::new(
            "atomic operations at the home of a page that its program never touches",
            "a reader learns of them as of stores",
            Program::new(
                1,
                [
                    [
                        section([fetch_add(X, 1, 0)]),
                        section([fetch_add(X, 1, 0)]),
                        section([fetch_add(X, 1, 0)]),
                        vec![barrier()],
                    ]
                    .concat(),
                    watcher(),
                ],
            ),
        )
        .forbid(|ended| !seen_in_order(ended, 1, 3)),
        Litmus::new(
            "a reader writes before the home has heard of it",
            "what the home wrote while it took the page to be exclusive is noticed, though a notice has invalidated the page since",
            Program::new(
                1,
                [
                    [vec![store(X, 5)], section([load(X2, 0)]), vec![barrier(), load(X2, 1)]].concat(),
                    [vec![load(QUIET, 9)], section([store(X2, 1)]), vec![barrier(), load(X, 0)]].concat(),
                ],
            ),
        )
        .forbid(|ended| !both(ended, (0, 1, 1), (1, 0, 5)))
        .reach("invalidated in between", |ended| ended.register(0, 0) == 1),
    ]
}

/// Every node writes its own word of each page, epoch after epoch; threads that arrive early read while
/// others have yet to leave the barrier.
fn epochs() -> Program {
    let mine = |page: u64, node: u32| Address::word(page, node);
    let script = |me: u32| {
        let mut code = Vec::new();
        for epoch in 1..4u64 {
            // The home stores in every epoch, the others in one each.
            let stores = (0..3).filter(|page| *page == u64::from(me) || epoch == u64::from(me) + 1);
            code.extend(stores.map(|page| store(mine(page, me), epoch)));
            code.push(barrier());
            code.extend((0..3).map(|page| load(mine(page, page as u32), (epoch * 3 + page) as u8)));
            code.push(barrier());
        }
        code
    };
    Program::new(3, (0..3).map(script))
}

fn hand_over_in_flight() -> Program {
    // Each reads what the last one wrote, beside words of its own whose diffs may still be in flight.
    let script = |me: u32| {
        let own = Address::word(2, 4 + me);
        let mut code = Vec::new();
        for round in 1..4u64 {
            code.push(store(own, round));
            code.extend(section([load(Z, 0), add(0, 1), store_from(Z, 0)]));
            code.extend([
                load(own, round as u8),
                lock(1),
                load(Y, 9),
                add(9, 1),
                store_from(Y, 9),
                unlock(1),
            ]);
        }
        code.extend([barrier(), load(Z, 10), load(Address::word(2, 4 + (me + 1) % 4), 11)]);
        code
    };
    Program::new(3, (0..4).map(script))
}

/// Eight pages of node 0, which another node fetches repeatedly with one hint.
fn runs_of_pages() -> Program {
    let at = |page: u64, word: u32| Address::word(page, word);
    let hint = Instruction::Prefetch(PageRange { first: PageId(0), count: 8 });
    let mut home = vec![];
    for round in 1..4u64 {
        home.extend((0..8).map(|page| store(at(page, 0), round * 10 + page)));
        home.push(barrier());
        home.extend((0..8).filter(|page| page % 3 == round % 3).map(|page| store(at(page, 1), round)));
        home.push(barrier());
    }
    let mut reader = vec![hint.clone()];
    for _ in 1..4 {
        reader.extend([store(at(3, 5), 9), barrier(), hint.clone(), load(at(4, 2), 9), hint.clone()]);
        reader.extend((0..8).map(|page| load(at(page, 0), page as u8)));
        reader.push(barrier());
    }
    reader.extend([hint, load(at(0, 1), 10), load(at(1, 1), 11), load(at(2, 1), 12)]);
    Program::new(0, [home, reader]).with_regions(vec![Region::new(0, 8, 1, Placement::On(NodeId(0)))])
}

pub(super) fn versions() -> Vec<Litmus> {
    vec![
        Litmus::new(
            "readers come and go with every barrier",
            "a page is exclusive again only when no node has a copy, including readers before its home has left the barrier",
            epochs(),
        )
        .forbid(|ended| {
            (0..3).any(|node| (3..12).any(|register| ended.register(node, register) != register as u64 / 3))
        }),
        Litmus::new(
            "hand-over with diffs in flight",
            "a frame that lacks a diff that the reader knows of, or has sent itself, is not read",
            hand_over_in_flight(),
        )
        .forbid(|ended| {
            (0..4).any(|node| {
                !both(ended, (node, 10, 12), (node, 11, 3))
                    || (1..4).any(|round| ended.register(node, round) != round as u64)
            })
        }),
        Litmus::new(
            "runs of pages come in by one hint",
            "each page of a run is announced, and none that is stale or dirty comes with the others",
            runs_of_pages(),
        )
        .forbid(|ended| {
            (0..8).any(|page| ended.register(1, page) != 30 + page as u64)
                || [(10, 3), (11, 1), (12, 2)].into_iter().any(|(at, last)| ended.register(1, at) != last)
        }),
    ]
}
