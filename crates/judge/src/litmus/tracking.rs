//! Possible errors of asynchronous write tracking: twins that are kept, stores between examination and
//! comparison, pages that are watched, released and watched again.

use super::{Litmus, X, X2, Z, both};
use crate::program::script::*;
use crate::program::{Address, Instruction, Program, Script};

/// Returns a word on the page of `Z`.
const fn z(word: u32) -> Address {
    Address::word(2, word)
}

fn section(body: impl IntoIterator<Item = Instruction>) -> Vec<Instruction> {
    let mut code = vec![lock(0)];
    code.extend(body);
    code.push(unlock(0));
    code
}

pub(super) fn twins() -> Vec<Litmus> {
    vec![
        Litmus::new(
            "a twin is kept over releases",
            "each release sends what was written since the last one, whatever else was written before",
            Program::new(
                3,
                [
                    [
                        section([store(Z, 1)]),
                        section([store(z(1), 2)]),
                        section([store(Z, 3)]),
                        vec![barrier(), load(z(2), 0)],
                    ]
                    .concat(),
                    [section([load(Z, 0), load(z(1), 1), store(z(2), 4)]), vec![barrier(), load(Z, 2), load(z(1), 3)]]
                        .concat(),
                    vec![barrier()],
                ],
            ),
        )
        .forbid(|ended| {
            let seen = (ended.register(1, 0), ended.register(1, 1));
            ![(0, 0), (1, 0), (1, 2), (3, 2)].contains(&seen)
                || !both(ended, (1, 2, 3), (1, 3, 2))
                || ended.register(0, 0) != 4
        })
        .reach("between the second and the third", |ended| both(ended, (1, 0, 1), (1, 1, 2)))
        .reach("after the third", |ended| both(ended, (1, 0, 3), (1, 1, 2))),
        Litmus::new(
            "written and taken back",
            "a page that is again as it was fetched has changed since the last release",
            Program::new(
                3,
                [
                    [section([store(Z, 1)]), section([store(Z, 0)]), vec![barrier(), load(Z, 0)]].concat(),
                    [section([load(Z, 0)]), vec![barrier(), load(Z, 1)]].concat(),
                    vec![barrier(), load(Z, 0)],
                ],
            ),
        )
        .forbid(|ended| ended.register(0, 0) != 0 || ended.register(1, 1) != 0 || ended.register(2, 0) != 0)
        .reach("caught in between", |ended| ended.register(1, 0) == 1),
        Litmus::new(
            "written after a release, before the next",
            "a store outside critical sections goes with the next release, even if that has written nothing itself",
            Program::new(
                3,
                [
                    [section([store(Z, 1)]), vec![store(z(1), 5)], section([]), vec![store(z(2), 6), barrier()]]
                        .concat(),
                    [section([load(Z, 0)]), vec![barrier(), load(z(1), 1), load(z(2), 2)]].concat(),
                    vec![barrier(), load(z(1), 1), load(z(2), 2)],
                ],
            ),
        )
        .forbid(|ended| (1..3).any(|node| !both(ended, (node, 1, 5), (node, 2, 6))))
        .reach("in the middle", |ended| ended.register(1, 0) == 1),
    ]
}

fn between_collect_and_diff() -> Program {
    // One thread writes word after word while its sibling releases and acquires on the same page.
    let writer = |first: u32| {
        let mut code: Vec<Instruction> =
            (first..first + 10).map(|word| store(z(word), u64::from(word))).collect();
        code.push(barrier());
        code
    };
    let releaser = || {
        let mut code = Vec::new();
        for _ in 0..4 {
            code.extend(section([load(Z, 0), add(0, 1), store_from(Z, 0)]));
        }
        code.push(barrier());
        code
    };
    let mut reader = vec![barrier(), load(Z, 31)];
    reader.extend((10..30).map(|word| load(z(word), word as u8)));
    Program::on(
        3,
        3,
        vec![
            Script::team(0, releaser()),
            Script::team(0, writer(10)),
            Script::team(1, releaser()),
            Script::team(1, writer(20)),
            Script::team(2, reader),
        ],
    )
}

/// A thread writes each of eight pages once while its sibling releases repeatedly.
fn page_after_page() -> Program {
    let at = |page: u32| Address::word(1 + 2 * u64::from(page), 0);
    let mut writer: Vec<Instruction> = (0..8).map(|page| load(at(page), 0)).collect();
    writer.extend((0..8).map(|page| store(at(page), u64::from(page) + 1)));
    writer.push(barrier());
    let mut releaser: Vec<Instruction> = (0..8).flat_map(|_| section([])).collect();
    releaser.push(barrier());
    let mut reader = vec![barrier()];
    reader.extend((0..8).map(|page| load(at(page), page as u8)));
    Program::on(2, 16, vec![Script::team(0, writer), Script::team(0, releaser), Script::team(1, reader)])
}

fn all_words_arrived(ended: &crate::execution::Ended) -> bool {
    ended.register(4, 31) == 8 && (10..30).all(|word| ended.register(4, word) == word as u64)
}

pub(super) fn siblings_write() -> Vec<Litmus> {
    let last = |ended: &crate::execution::Ended, thread: usize| ended.register(thread, 0);
    vec![
        Litmus::new(
            "a sibling writes while pages are looked through, compared and merged",
            "each of its stores is in this diff or in the next",
            between_collect_and_diff(),
        )
        .forbid(|ended| !all_words_arrived(ended))
        .reach("they alternate", move |ended| last(ended, 0) == 8 && last(ended, 2) == 7),
        Litmus::new(
            "a sibling writes page after page while all are looked through",
            "a page that is written just after its examination is found by the next one",
            page_after_page(),
        )
        .forbid(|ended| (0..8).any(|page| ended.register(2, page) != page as u64 + 1)),
        Litmus::new(
            "a sibling writes at the home while the page is looked through and sent",
            "a home page needs no diff, but each store a notice",
            home_writers(),
        )
        .forbid(|ended| (1..7).any(|word| ended.register(2, word) != word as u64)),
    ]
}

/// Node 0, the home, writes word after word with one thread and releases with the other; node 1 reads
/// repeatedly.
fn home_writers() -> Program {
    let writer =
        (1..7).map(|word| store(Address::word(0, word), u64::from(word))).chain([barrier()]).collect();
    let releaser = [section([]), section([]), section([store(X, 1)]), vec![barrier()]].concat();
    let mut reader = [section([load(X, 9)]), section([load(X, 9)]), vec![barrier()]].concat();
    reader.extend((1..7).map(|word| load(Address::word(0, word), word as u8)));
    Program::on(2, 1, vec![Script::team(0, writer), Script::team(0, releaser), Script::team(1, reader)])
}

fn comes_and_goes() -> Program {
    // The home writes in every epoch; the other node reads in some, so that the page is shared, exclusive,
    // shared again.
    let (mut home, mut other) = (Vec::new(), Vec::new());
    for epoch in 0..9u64 {
        home.extend([store(X, epoch + 1), barrier()]);
        other.push(barrier());
        if [1, 2, 6, 8].contains(&epoch) {
            other.push(load(X, epoch as u8));
        }
        home.push(barrier());
        other.push(barrier());
    }
    Program::new(1, [home, other])
}

pub(super) fn exclusive_pages() -> Vec<Litmus> {
    vec![
        Litmus::new(
            "a home page is written while it becomes shared",
            "a node that fetches it in the middle learns of every later store",
            Program::new(
                1,
                [
                    [
                        section([store(X, 1)]),
                        section([store(X, 2)]),
                        vec![store(X2, 7)],
                        section([store(X, 3)]),
                    ]
                    .concat(),
                    [
                        section([load(X, 0)]),
                        section([load(X, 1)]),
                        vec![lock(0), load(X, 2), jump_unless(2, 3, 10), load(X2, 3), unlock(0)],
                    ]
                    .concat(),
                ],
            ),
        )
        .forbid(|ended| {
            let seen = [0, 1, 2].map(|register| ended.register(1, register));
            !seen.is_sorted() || both(ended, (1, 2, 3), (1, 3, 0))
        })
        .reach("each value in turn", |ended| both(ended, (1, 0, 1), (1, 1, 2)) && ended.register(1, 2) == 3),
        Litmus::new(
            "a page is reclaimed, written untracked, shared again",
            "a page without other copies costs nothing, until a node fetches it",
            comes_and_goes(),
        )
        .forbid(|ended| [1, 2, 6, 8].into_iter().any(|epoch| ended.register(1, epoch) != epoch as u64 + 1)),
        Litmus::new(
            "fetched between a departure and its home's",
            "a page that is fetched before its home has left the barrier stays shared",
            Program::new(
                3,
                [
                    vec![barrier(), barrier(), barrier(), barrier()],
                    vec![barrier(), load(Z, 0), barrier(), barrier(), load(Z, 1), barrier(), load(z(1), 2)],
                    vec![
                        store(Z, 1),
                        barrier(),
                        barrier(),
                        store(Z, 2),
                        barrier(),
                        store(z(1), 9),
                        barrier(),
                    ],
                ],
            ),
        )
        .forbid(|ended| !both(ended, (1, 0, 1), (1, 1, 2)) || ended.register(1, 2) != 9),
    ]
}
