//! Pages that are put under sequential consistency while nodes use them under home-based release consistency.
//!
//! A thread that operates on a word by an atomic instruction has the word's page converted first. Plain
//! stores to the same word, and to others of its page, must not be lost, whenever they happen.

use super::Litmus;
use crate::execution::Ended;
use crate::program::script::*;
use crate::program::{Address, Instruction, Program, Region, Script};
use hiroba_wire::Placement;

// Page 0 is homed on node 0, page 1 on node 1, and so on.
const WORD: Address = Address::word(0, 0);
const OTHER_WORD: Address = Address::word(0, 1);
const DATA: Address = Address::word(1, 0);
const FAR_WORD: Address = Address::word(2, 0);

/// Returns a word that no thread operates on atomically, one for each node.
const fn own_word(node: u16) -> Address {
    Address::word(0, 8 + node as u32)
}

/// Returns the programs, with outcomes that no seed may show and outcomes that some seed must.
pub fn converting() -> Vec<Litmus> {
    let mut all = vec![counters(), spin_lock(), bytes_of_a_word(), noticed(), fetched(), two_flags()];
    all.extend((0..3).map(store_beside_additions));
    all.extend((0..3).map(stores_before));
    all.extend([message_passing(), passed_on(), run(0), run(1)]);
    all
}

/// Appends a meeting and loads of these words, into registers from 16 on.
fn then_look(code: Vec<Instruction>, words: &[Address]) -> Vec<Instruction> {
    let loads = words.iter().zip(16..).map(|(at, into)| load(*at, into));
    code.into_iter().chain([barrier()]).chain(loads).collect()
}

/// All threads ask at once, and each node has changed the page before.
fn counters() -> Litmus {
    let threads = (0..6).map(|thread| {
        let node = thread / 2;
        let code = vec![
            store(own_word(thread), 7),
            convert(0),
            add_atomically(WORD, 1, 0),
            add_atomically(WORD, 1, 1),
        ];
        Script::team(node, then_look(code, &[WORD, own_word(5 - thread)]))
    });
    Litmus::new(
        "counters in a page that all have changed",
        "neither additions nor earlier stores are lost",
        Program::on(3, 3, threads.collect()),
    )
    .racy()
    .forbid(|ended| (0..6).any(|thread| (ended.register(thread, 16), ended.register(thread, 17)) != (12, 7)))
}

/// The lock is taken by an atomic instruction and freed by a plain store. Data lie in another page, which
/// stays under release consistency.
fn spin_lock() -> Litmus {
    let threads = (0..3).map(|node| {
        let take = [compare_exchange(WORD, 0, u64::from(node) + 1, 0), jump_unless(0, 0, 1)];
        let work = [load(DATA, 1), add(1, 1), store_from(DATA, 1)];
        let code = [&[convert(0)][..], &take, &work, &[store(WORD, 0)]].concat();
        Script::team(node, then_look(code, &[DATA, WORD]))
    });
    Litmus::new(
        "a spin lock freed by a plain store",
        "the store frees the lock, and who takes it sees what was done under it",
        Program::on(3, 3, threads.collect()),
    )
    .racy()
    .forbid(|ended| (0..3).any(|node| (ended.register(node, 16), ended.register(node, 17)) != (3, 0)))
}

/// A plain store to a word to which others add.
fn store_beside_additions(writer: u16) -> Litmus {
    let threads = (0..3).map(|node| {
        let code = if node == writer {
            vec![store(own_word(node), 5), store(WORD, 100)]
        } else {
            vec![load(OTHER_WORD, 9), convert(0), add_atomically(WORD, 1, 0)]
        };
        Script::team(node, then_look(code, &[WORD, own_word(writer)]))
    });
    let left = |ended: &Ended| ended.register(0, 16);
    Litmus::new(
        [
            "a store at home beside additions",
            "a store on node 1 beside additions",
            "a store beside additions",
        ][usize::from(writer)],
        "an addition comes before the store, or after it",
        Program::on(3, 3, threads.collect()),
    )
    .racy()
    .forbid(move |ended| {
        let agree =
            (0..3).all(|node| ended.register(node, 16) == left(ended) && ended.register(node, 17) == 5);
        !agree || !(100..=102).contains(&left(ended))
    })
    .reach("the store comes last", move |ended| left(ended) == 100)
    .reach("the store comes first", move |ended| left(ended) == 102)
}

/// A byte is stored, and another one of the same word is operated on atomically.
fn bytes_of_a_word() -> Litmus {
    let stores = [1, 2, 3].map(|value| store_byte(Address::byte(0, 7), value));
    let threads = [
        Script::team(0, then_look(adds(3), &[WORD])),
        Script::team(1, then_look(stores.to_vec(), &[WORD])),
        Script::team(2, then_look(adds(2), &[WORD])),
    ];
    Litmus::new(
        "a byte beside an atomic byte",
        "stores to one byte and operations on another one of the word do not lose each other",
        Program::on(3, 3, threads.to_vec()),
    )
    .racy()
    .forbid(|ended| (0..3).any(|node| ended.register(node, 16) != 3 << 56 | 5))
}

/// Converts the page and adds to the word so many times. The highest byte stays as it is.
fn adds(times: usize) -> Vec<Instruction> {
    [vec![convert(0)], vec![add_atomically(WORD, 1, 0); times]].concat()
}

/// A node has unsent stores when the page is converted.
fn stores_before(writer: u16) -> Litmus {
    let words = [own_word(0), own_word(1), own_word(2)];
    let threads = (0..3).map(|node| {
        let code = if node == writer {
            words.iter().map(|at| store(*at, 6)).collect()
        } else {
            vec![load(own_word(3), 9), convert(0)]
        };
        Script::team(node, then_look(code, &words))
    });
    Litmus::new(
        ["unsent stores at home", "unsent stores on node 1", "unsent stores on node 2"][usize::from(writer)],
        "what was stored before the page was converted is in it",
        Program::on(3, 3, threads.collect()),
    )
    .racy()
    .forbid(|ended| (0..3).any(|node| (16..19).any(|word| ended.register(node, word) != 6)))
}

/// A node knows of an interval that its copy lacks.
fn noticed() -> Litmus {
    let hold = |inner: Instruction| vec![lock(0), inner, unlock(0)];
    let first = [hold(store(WORD, 1)), hold(store(WORD, 2))].concat();
    let second = [vec![load(WORD, 9)], hold(load(OTHER_WORD, 9)), vec![store(own_word(2), 3)]].concat();
    let threads = [
        Script::team(0, then_look(vec![load(WORD, 9), convert(0)], &[WORD, own_word(2)])),
        Script::team(1, then_look(first, &[WORD, own_word(2)])),
        Script::team(2, then_look([second, hold(load(WORD, 10))].concat(), &[WORD, own_word(2)])),
    ];
    Litmus::new(
        "notices of a page that is converted",
        "no copy from before is used after that",
        Program::on(3, 3, threads.to_vec()),
    )
    .racy()
    .forbid(|ended| (0..3).any(|node| (ended.register(node, 16), ended.register(node, 17)) != (2, 3)))
}

/// Fetches, also those that no thread waits for, are under way.
fn fetched() -> Litmus {
    let fetch = |node: u16| vec![prefetch(0), load(WORD, 9), store(own_word(node), 4)];
    let threads = [
        Script::team(0, then_look(vec![store(WORD, 1), convert(0), store(OTHER_WORD, 1)], &[own_word(1)])),
        Script::team(1, then_look([fetch(1), adds(1)].concat(), &[own_word(2)])),
        Script::team(1, then_look(vec![prefetch(0), load(OTHER_WORD, 9)], &[own_word(2)])),
        Script::team(2, then_look(fetch(2), &[own_word(1)])),
    ];
    Litmus::new(
        "fetches of a page that is converted",
        "a copy that comes late is given up",
        Program::on(3, 3, threads.to_vec()),
    )
    .racy()
    .forbid(|ended| (0..4).any(|thread| ended.register(thread, 16) != 4))
}

/// Store buffering by exchanges, each of which converts its own page.
fn two_flags() -> Litmus {
    let side = |mine: Address, theirs: Address| {
        vec![load(theirs, 9), convert(mine.granule.0), exchange(mine, 1, 8), load(theirs, 0)]
    };
    Litmus::new(
        "SB by exchanges",
        "one of two threads sees the other's exchange",
        Program::new(3, [vec![], side(WORD, FAR_WORD), side(FAR_WORD, WORD)]),
    )
    .racy()
    .forbid(|ended| (ended.register(1, 0), ended.register(2, 0)) == (0, 0))
    .reach("both see", |ended| (ended.register(1, 0), ended.register(2, 0)) == (1, 1))
}

/// Data in a page under release consistency, a flag in a converted one.
fn message_passing() -> Litmus {
    let write = vec![load(WORD, 9), store(DATA, 7), convert(0), exchange(WORD, 1, 8)];
    let read = vec![load(DATA, 9), load(WORD, 0), load(DATA, 1)];
    Litmus::new(
        "MP through a converted page",
        "whoever sees the flag sees what was stored before it",
        Program::new(3, [vec![], write, read]),
    )
    .racy()
    .forbid(|ended| (ended.register(2, 0), ended.register(2, 1)) == (1, 0))
    .reach("the flag is seen", |ended| ended.register(2, 0) == 1)
}

/// The flag is a plain store before the conversion, and the reader converts the page.
fn passed_on() -> Litmus {
    let write = vec![load(WORD, 9), store(DATA, 7), store(FAR_WORD, 8), store(WORD, 1)];
    let read = vec![
        load(DATA, 9),
        load(FAR_WORD, 9),
        convert(0),
        add_atomically(WORD, 0, 0),
        load(DATA, 1),
        load(FAR_WORD, 2),
    ];
    Litmus::new(
        "MP by a flag that its reader converts",
        "a node that gives a page up tells what it has written, and the home passes that on",
        Program::new(3, [vec![], write, read]),
    )
    .racy()
    .forbid(|ended| ended.register(2, 0) == 1 && (ended.register(2, 1), ended.register(2, 2)) != (7, 8))
    .reach("the flag is seen", |ended| ended.register(2, 0) == 1)
    .reach("the flag is not seen", |ended| ended.register(2, 0) == 0)
}

/// Four of eight pages are asked for, so that the others are converted with the last of these. A node has
/// unsent stores in all of them.
fn run(writer: u16) -> Litmus {
    const PAGES: u64 = 8;
    const ASKED: u64 = 4;
    let word = |page: u64, word: u32| Address::word(page, word);
    let ask: Vec<Instruction> =
        (0..ASKED).flat_map(|page| [convert(page), add_atomically(word(page, 0), 1, 0)]).collect();
    let write = |node: u16| -> Vec<Instruction> {
        (0..PAGES).map(|page| store(word(page, 8 + u32::from(node)), page + 1)).collect()
    };
    let seen: Vec<Address> = (0..PAGES).map(|page| word(page, 8 + u32::from(writer))).collect();
    let last = word(PAGES - 1, 0);
    let add_to_last = [convert(PAGES - 1), add_atomically(last, 1, 0)];
    let threads = (0..3).map(|node| {
        let code = match node {
            2 => [&ask[..], &add_to_last].concat(),
            node if node == writer => {
                [&write(node)[..], &add_to_last, &[store(word(PAGES - 2, 1), 9)]].concat()
            }
            _ => (0..PAGES).map(|page| load(word(page, 2), 9)).collect(),
        };
        Script::team(node, then_look(code, &[&seen[..], &[last, word(PAGES - 2, 1)]].concat()))
    });
    let wanted = |register: u64| match register {
        0..PAGES => register + 1,
        PAGES => 2,
        _ => 9,
    };
    let program = Program::on(3, PAGES, threads.collect());
    let region = Region::new(0, PAGES, 1, Placement::On(hiroba_base::NodeId(0)));
    Litmus::new(
        ["a run of pages with unsent stores at home", "a run of pages with unsent stores on node 1"]
            [usize::from(writer)],
        "what was stored in pages before they were converted together is in them",
        program.with_regions(vec![region]),
    )
    .racy()
    .forbid(move |ended| {
        (0..3).any(|node| (0..PAGES + 2).any(|at| ended.register(node, 16 + at as usize) != wanted(at)))
    })
}
