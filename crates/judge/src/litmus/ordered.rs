//! Flags and data in pages under home-based release consistency whose fetches are ordered. No lock orders
//! them. A thread that sees the flag must see the data.
//!
//! A load returns what is in the node's copy, so each reader makes a copy of the data first, which may be
//! stale later, and loads the flag once. MP and WRC are named as in Alglave, Maranget, Tautschnig, *Herding
//! Cats*, ACM TOPLAS 2014.

use super::{Litmus, both};
use crate::execution::Ended;
use crate::program::script::*;
use crate::program::{Address, Instruction, Program, Script};

// Page 0 is homed on node 0, page 1 on node 1, and so on.
const DATA: Address = Address::word(0, 0);
const FAR_DATA: Address = Address::word(2, 0);
const FLAGS: [Address; 4] =
    [Address::word(0, 64), Address::word(1, 64), Address::word(2, 64), Address::word(3, 64)];

/// Stores data that are homed on nodes 0 and 2, and then the flag.
fn write(flag: Address) -> Vec<Instruction> {
    vec![store(DATA, 7), store(FAR_DATA, 8), store(flag, 1)]
}

/// Makes copies of the data; then loads the flag, and the data again.
fn read(flag: Address) -> Vec<Instruction> {
    vec![load(DATA, 14), load(FAR_DATA, 15), load(flag, 0), load(DATA, 1), load(FAR_DATA, 2)]
}

/// Returns true if the thread sees the flag, but not all data.
fn sees_too_little(ended: &Ended, thread: usize) -> bool {
    ended.register(thread, 0) == 1 && !both(ended, (thread, 1, 7), (thread, 2, 8))
}

/// Takes a lock and gives it back: the node that had it ends its interval.
fn pass_by() -> Vec<Instruction> {
    vec![lock(0), unlock(0)]
}

/// Returns the programs, with outcomes that no seed may show and outcomes that some seed must.
pub fn ordered() -> Vec<Litmus> {
    let mut all =
        vec![home_writes(), snapshot(), far_writer(), home_reads(), passed_on(), behind_a_barrier()];
    all.extend([diffs_into_a_snapshot(), page_after_page(), fetched_ahead(), merged(), siblings()]);
    all
}

/// The home closes its interval before it sends the page.
fn home_writes() -> Litmus {
    Litmus::new(
        "MP by the flag's home",
        "a page contains no store of an interval that its reader has no notices of",
        Program::new(
            4,
            [vec![], [vec![load(FAR_DATA, 9)], write(FLAGS[1])].concat(), vec![], read(FLAGS[1])],
        ),
    )
    .racy()
    .forbid(|ended| sees_too_little(ended, 3))
    .reach("the flag is not seen", |ended| ended.register(3, 0) == 0)
    .reach("the flag is seen", |ended| ended.register(3, 0) == 1)
}

/// Another node has a copy of the flag's page, so that its home sends what it was before the stores.
fn snapshot() -> Litmus {
    Litmus::new(
        "MP by the home of a shared flag",
        "a page contains no store of the open interval, although that is not closed",
        Program::new(
            4,
            [
                vec![load(FLAGS[1], 0), lock(0), unlock(0)],
                [vec![load(FAR_DATA, 9), lock(0)], write(FLAGS[1]), vec![unlock(0)]].concat(),
                vec![],
                read(FLAGS[1]),
            ],
        ),
    )
    .racy()
    .forbid(|ended| sees_too_little(ended, 3))
    .reach("the flag is not seen", |ended| ended.register(3, 0) == 0)
    .reach("the flag is seen", |ended| ended.register(3, 0) == 1)
}

/// A fault on the second page of a run of stores opens the third one, which is homed here.
fn page_after_page() -> Litmus {
    let word = |page| Address::word(page, 100);
    let stores = [1, 2, 3].map(|page| store(word(page), 7));
    let copies = [1, 2, 3].map(|page| load(word(page), 9));
    let writer = [&copies[..], &[lock(0)], &stores, &[unlock(0)]].concat();
    let reader = vec![load(word(3), 9), lock(0), load(word(1), 0), load(word(3), 1), unlock(0)];
    Litmus::new(
        "MP by a run of stores",
        "a page that was opened before a store to it has a notice of the store",
        Program::new(4, [reader, vec![], vec![], writer]),
    )
    .forbid(|ended| ended.register(0, 0) == 7 && ended.register(0, 1) != 7)
    .reach("the stores are seen", |ended| both(ended, (0, 0, 7), (0, 1, 7)))
}

/// The home of the data's page writes to it, too.
fn diffs_into_a_snapshot() -> Litmus {
    let (data, own) = (Address::word(1, 0), Address::word(1, 8));
    let publish = vec![lock(0), store(data, 7), store(DATA, 1), unlock(0)];
    let look = vec![load(data, 9), lock(0), load(DATA, 0), load(data, 1), unlock(0)];
    Litmus::new(
        "MP through a page that its home writes",
        "what a home sends of a page that it writes has the diffs of other nodes",
        Program::new(4, [publish, vec![load(own, 9), store(own, 5)], vec![], look]),
    )
    .forbid(|ended| ended.register(3, 0) == 1 && ended.register(3, 1) != 7)
    .reach("the data are seen", |ended| both(ended, (3, 0, 1), (3, 1, 7)))
}

/// Diffs are applied after their notices, which the home passes on.
fn far_writer() -> Litmus {
    Litmus::new(
        "MP through the flag's home",
        "a home passes on what it knows of the diffs in a page",
        Program::new(
            4,
            [[vec![lock(0)], write(FLAGS[1]), vec![unlock(0)]].concat(), pass_by(), vec![], read(FLAGS[1])],
        ),
    )
    .racy()
    .forbid(|ended| sees_too_little(ended, 3))
    .reach("the flag is not seen", |ended| ended.register(3, 0) == 0)
    .reach("the flag is seen", |ended| ended.register(3, 0) == 1)
}

/// Diffs are applied after their notices, because threads of the home see them, too.
fn home_reads() -> Litmus {
    Litmus::new(
        "MP to the flag's home",
        "diffs do not come before their notices",
        Program::new(
            4,
            [pass_by(), [vec![lock(0)], write(FLAGS[3]), vec![unlock(0)]].concat(), vec![], read(FLAGS[3])],
        ),
    )
    .racy()
    .forbid(|ended| sees_too_little(ended, 3))
    .reach("the flag is not seen", |ended| ended.register(3, 0) == 0)
    .reach("the flag is seen", |ended| ended.register(3, 0) == 1)
}

fn passed_on() -> Litmus {
    // A jump leads to the end, unless the flag was seen.
    let pass = vec![load(FLAGS[1], 0), jump_unless(0, 1, 3), store(FLAGS[2], 1)];
    Litmus::new(
        "WRC",
        "a thread that sees a flag passes on what its writer knew",
        Program::new(
            4,
            [
                vec![],
                vec![store(DATA, 7), store(FLAGS[1], 1)],
                pass,
                // No copy of the second flag's page was made before.
                vec![load(DATA, 14), load(FLAGS[2], 0), load(DATA, 1)],
            ],
        ),
    )
    .racy()
    .forbid(|ended| ended.register(3, 0) == 1 && ended.register(3, 1) != 7)
    .reach("the flag is seen", |ended| ended.register(3, 0) == 1)
}

/// The publication belongs to an epoch that the reader's node has yet to begin.
fn behind_a_barrier() -> Litmus {
    Litmus::new(
        "MP behind a barrier",
        "a page that comes before the departure waits for what was written before it",
        Program::on(
            3,
            4,
            vec![
                // The root, whose departure messages reach the others at different times.
                Script::team(0, vec![barrier()]),
                Script::team(1, [vec![load(DATA, 9), barrier()], write(FLAGS[1])].concat()),
                Script::team(2, vec![barrier()]),
                Script::foreign(2, read(FLAGS[1])),
            ],
        ),
    )
    .racy()
    .forbid(|ended| sees_too_little(ended, 3))
    .reach("the flag is not seen", |ended| ended.register(3, 0) == 0)
    .reach("the flag is seen", |ended| ended.register(3, 0) == 1)
}

/// Many pages come in one reply.
fn fetched_ahead() -> Litmus {
    let ahead = [prefetch(1), prefetch(0), load(DATA, 14), load(FAR_DATA, 15), load(FLAGS[1], 0)];
    Litmus::new(
        "MP by fetched pages",
        "pages that were fetched ahead are ordered, too",
        Program::on(
            3,
            4,
            vec![
                Script::team(0, vec![barrier()]),
                Script::team(1, [vec![barrier()], write(FLAGS[1])].concat()),
                Script::team(2, vec![load(FAR_DATA, 9), barrier()]),
                Script::foreign(2, [&ahead[..], &[load(DATA, 1), load(FAR_DATA, 2)]].concat()),
            ],
        ),
    )
    .racy()
    .forbid(|ended| sees_too_little(ended, 3))
    .reach("the flag is not seen", |ended| ended.register(3, 0) == 0)
    .reach("the flag is seen", |ended| ended.register(3, 0) == 1)
}

/// The reader has changes of its own in both pages.
fn merged() -> Litmus {
    let own = vec![store(Address::word(0, 1), 5), store(Address::word(1, 1), 6)];
    let check = vec![load(Address::word(0, 1), 3), load(Address::word(1, 1), 4)];
    Litmus::new(
        "MP into written copies",
        "a page is merged with what its reader has written, and neither is lost",
        Program::new(4, [vec![], write(FLAGS[1]), vec![], [own, pass_by(), read(FLAGS[1]), check].concat()]),
    )
    .racy()
    .forbid(|ended| sees_too_little(ended, 3) || !both(ended, (3, 3, 5), (3, 4, 6)))
}

/// The flag is stored by another thread than the data.
fn siblings() -> Litmus {
    let pass = vec![load(DATA, 0), jump_unless(0, 7, 4), load(FAR_DATA, 1), store(FLAGS[0], 1)];
    Litmus::new(
        "MP by two threads of a node",
        "what a thread has seen of its siblings goes before its own stores",
        Program::on(
            3,
            4,
            vec![
                Script::team(0, vec![store(FAR_DATA, 8), store(DATA, 7)]),
                Script::team(0, pass),
                Script::team(1, read(FLAGS[0])),
            ],
        ),
    )
    .racy()
    .forbid(|ended| sees_too_little(ended, 2))
    .reach("the flag is seen", |ended| ended.register(2, 0) == 1)
}
