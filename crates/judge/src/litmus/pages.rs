//! Pages of several granules, and of several sizes side by side.

use hiroba_base::NodeId;
use hiroba_wire::Placement;

use super::{Litmus, both};
use crate::program::script::*;
use crate::program::{Address, GRANULE_BYTES, Instruction, Program, Region, Script};

/// The last word of a granule.
const LAST: u32 = GRANULE_BYTES / 8 - 1;

/// One page of sixteen granules at granule 0, homed on node 1.
fn long_page() -> Vec<Region> {
    vec![Region::new(0, 1, 16, Placement::On(NodeId(1)))]
}

/// Returns pages of sixteen, two and one granules without a gap between them.
fn three_sizes() -> Vec<Region> {
    vec![
        Region::new(0, 2, 16, Placement::Cyclic),
        Region::new(32, 3, 2, Placement::Cyclic),
        Region::new(38, 4, 1, Placement::Cyclic),
    ]
}

/// The first granule of each page of [`three_sizes`], and the last.
const PAGES: [(u64, u64); 9] =
    [(0, 15), (16, 31), (32, 33), (34, 35), (36, 37), (38, 38), (39, 39), (40, 40), (41, 41)];

fn side_by_side() -> Program {
    let script = |me: u64| {
        let mut code = Vec::new();
        for round in 0..2u64 {
            for (first, last) in PAGES {
                let value = round * 3 + me + 1;
                code.push(store(Address::word(first, me as u32), value));
                code.push(store(Address::word(last, LAST - me as u32), value));
            }
            code.push(barrier());
            // Adds up what the next thread wrote, page by page.
            let next = ((me + 1) % 3) as u32;
            for (first, last) in PAGES {
                for at in [Address::word(first, next), Address::word(last, LAST - next)] {
                    code.extend([load(at, 0), add_register(1 + round as u8, 0)]);
                }
            }
            code.push(barrier());
        }
        code
    };
    Program::new(0, (0..3).map(script)).with_regions(three_sizes())
}

fn sections() -> Program {
    // Each node's word is in a granule of its own, under a lock of its own.
    let at = |node: u32| Address::word(u64::from(node) * 5 + 4, 2);
    let script = |me: u32| {
        let next = (me + 1) % 3;
        let count = |id: u32| [lock(id), load(at(id), 0), add(0, 1), store_from(at(id), 0), unlock(id)];
        let mut code: Vec<Instruction> = Vec::new();
        for _ in 0..2 {
            code.extend(count(me));
            code.extend(count(next));
        }
        code.extend([barrier(), load(at(0), 1), load(at(1), 2), load(at(2), 3)]);
        code
    };
    Program::new(0, (0..3).map(script)).with_regions(long_page())
}

fn deep_words() -> Program {
    let counter = Address::word(9, LAST);
    let beside = |node: u32| Address::word(9, LAST - 1 - node);
    let script = |me: u32| {
        vec![
            store(beside(me), 1),
            fetch_add(counter, 1, 0),
            store(beside(me), 2),
            lock(0),
            unlock(0),
            fetch_add(counter, 1, 0),
            barrier(),
            load(counter, 1),
            load(beside((me + 1) % 3), 2),
            load(Address::word(10, 0), 3),
        ]
    };
    Program::new(0, (0..3).map(script)).with_regions(long_page())
}

fn merge_far_away() -> Program {
    // A thread writes at one end of a long page while its sibling fetches what changed at the other.
    let far = Address::word(15, LAST);
    let near = |word: u32| Address::word(0, word);
    let writer = (0..8).map(|word| store(near(word), 1)).chain([barrier()]).collect();
    let counter = || {
        let mut code = Vec::new();
        for _ in 0..3 {
            code.extend([lock(0), load(far, 0), add(0, 1), store_from(far, 0), unlock(0)]);
        }
        code.push(barrier());
        code
    };
    let mut reader = vec![barrier(), load(far, 10)];
    reader.extend((0..8).map(|word| load(near(word), word as u8)));
    Program::on(
        4,
        0,
        vec![
            Script::team(0, writer),
            Script::team(0, counter()),
            Script::team(1, vec![barrier()]),
            Script::team(2, counter()),
            Script::team(3, reader),
        ],
    )
    .with_regions(long_page())
}

pub(super) fn pages() -> Vec<Litmus> {
    vec![
        Litmus::new(
            "pages of three sizes side by side",
            "each page is fetched, compared and invalidated as a whole, and none with its neighbour",
            side_by_side(),
        )
        .forbid(|ended| {
            (0..3).any(|node| {
                let next = (node as u64 + 1) % 3;
                !both(ended, (node, 1, 18 * (next + 1)), (node, 2, 18 * (next + 4)))
            })
        }),
        Litmus::new("locks over one long page", "granules that are far apart are shared falsely", sections())
            .forbid(|ended| (0..3).any(|node| (1..4).any(|register| ended.register(node, register) != 4))),
        Litmus::new(
            "an atomic word deep in a long page",
            "offsets count from the page's first granule",
            deep_words(),
        )
        .forbid(|ended| {
            (0..3).any(|node| !both(ended, (node, 1, 6), (node, 2, 2)) || ended.register(node, 3) != 0)
        })
        .reach("one of them is last", |ended| ended.register(0, 0) == 5),
        Litmus::new(
            "a long page is merged while a sibling writes it",
            "unsent stores in one granule survive incoming changes of another",
            merge_far_away(),
        )
        .forbid(|ended| ended.register(4, 10) != 6 || (0..8).any(|word| ended.register(4, word) != 1))
        .reach("they alternate", |ended| ended.register(1, 0) == 6 && ended.register(3, 0) == 5),
    ]
}
