//! The catalogue of litmus programs.
//!
//! Each program has a few instructions per thread and two lists: outcomes that must **never** be seen, and
//! outcomes that some seed must **reach**, since a simulator that shows only the strong outcomes proves
//! nothing.

use hiroba_base::NodeId;
use hiroba_wire::{AtomicOperation, Placement};

use crate::execution::Ended;
use crate::program::script::*;
use crate::program::{Address, Instruction, Program, Region, Register, Script};

mod aurc;
mod bulk;
mod contributing;
mod converting;
mod gathering;
mod homeless;
mod leases;
mod lending;
mod mapped;
mod one_sided;
mod order;
mod ordered;
mod pages;
mod posts;
mod runs;
mod sequential;
mod threads;
mod tracking;

pub use aurc::early;
pub use contributing::contributing;
pub use converting::converting;
pub use gathering::gathering;
pub use leases::leases;
pub use lending::{followed, lending};
pub use mapped::mapped;
pub use order::order;
pub use ordered::ordered;
pub use posts::posts;
pub use sequential::sequential;

/// A condition on an outcome.
pub type Predicate = Box<dyn Fn(&Ended) -> bool>;

/// A litmus program.
pub struct Litmus {
    /// Its name.
    pub name: &'static str,
    /// What it shows.
    pub about: &'static str,
    /// The program.
    pub program: Program,
    /// Whether all its conflicting plain accesses are ordered, so that the checker must find no race.
    pub race_free: bool,
    /// The condition that must never be true.
    pub forbid: Predicate,
    /// Conditions each of which must be true for some seed.
    pub reach: Vec<(&'static str, Predicate)>,
}

impl Litmus {
    fn new(name: &'static str, about: &'static str, program: Program) -> Litmus {
        Litmus { name, about, program, race_free: true, forbid: Box::new(|_| false), reach: Vec::new() }
    }

    fn racy(mut self) -> Litmus {
        self.race_free = false;
        self
    }

    fn forbid(mut self, predicate: impl Fn(&Ended) -> bool + 'static) -> Litmus {
        self.forbid = Box::new(predicate);
        self
    }

    fn reach(mut self, what: &'static str, predicate: impl Fn(&Ended) -> bool + 'static) -> Litmus {
        self.reach.push((what, Box::new(predicate)));
        self
    }
}

// Page 0 is homed on node 0, page 1 on node 1, and so on.
const X: Address = Address::word(0, 0);
const Y: Address = Address::word(1, 0);
const Z: Address = Address::word(2, 0);
/// A word on the page of `X`.
const X2: Address = Address::word(0, 1);

/// Returns every litmus program that the engine must pass.
pub fn catalogue() -> Vec<Litmus> {
    let mut all = ordering();
    all.extend(agreement());
    all.extend(sharing());
    all.extend(merging());
    all.extend(homes());
    all.extend(placement());
    all.extend(locks());
    all.extend(atomics());
    all.extend(siblings());
    all.extend(tracking::twins());
    all.extend(tracking::siblings_write());
    all.extend(tracking::exclusive_pages());
    all.extend(pages::pages());
    all.extend(homeless::homeless());
    all.extend(bulk::streams());
    all.extend(bulk::trees());
    all.extend(one_sided::readers());
    all.extend(one_sided::versions());
    all.extend(threads::teams_meet());
    all.extend(threads::crossings());
    all.extend(threads::departures());
    all.extend(threads::foreign_threads());
    all.extend(mended());
    all
}

fn both(ended: &Ended, first: (usize, usize, u64), second: (usize, usize, u64)) -> bool {
    ended.register(first.0, first.1) == first.2 && ended.register(second.0, second.1) == second.2
}

fn store_buffering(locked: bool) -> Program {
    let guard = |body: Instruction, id: u32| {
        if locked { vec![lock(id), body, unlock(id)] } else { vec![body] }
    };
    let side = |mine: (Address, u32), theirs: (Address, u32), own_first: Address| {
        // Both words are touched first, so that later loads may read a stale copy.
        let mut code = vec![barrier(), load(own_first, 9), barrier()];
        code.extend(guard(store(mine.0, 1), mine.1));
        code.extend(guard(load(theirs.0, 0), theirs.1));
        code
    };
    // The homes are on a third node: both sides work on copies.
    Program::new(3, [side((Z, 0), (Y, 1), Y), side((Y, 1), (Z, 0), Z), vec![barrier(), barrier()]])
}

fn ordering() -> Vec<Litmus> {
    vec![
        Litmus::new(
            "message passing under a lock",
            "a thread that sees the flag sees the data",
            Program::new(
                3,
                [
                    vec![load(Y, 9), lock(2), store(Z, 7), store(Y, 1), unlock(2)],
                    vec![load(Z, 9), lock(2), load(Y, 0), load(Z, 1), unlock(2)],
                    vec![],
                ],
            ),
        )
        .racy()
        .forbid(|ended| ended.register(1, 0) != ended.register(1, 1) / 7)
        .reach("the reader comes first", |ended| both(ended, (1, 0, 0), (1, 1, 0)))
        .reach("the reader sees both", |ended| both(ended, (1, 0, 1), (1, 1, 7))),
        Litmus::new(
            "message passing by barrier",
            "a barrier shows all threads' writes to all threads",
            Program::new(
                3,
                [
                    vec![store(Y, 1), store(Z, 2), barrier(), load(X, 0)],
                    vec![store(X, 3), barrier(), load(Y, 0), load(Z, 1)],
                    vec![barrier(), load(Z, 0), load(X, 1)],
                ],
            ),
        )
        .forbid(|ended| {
            ended.register(0, 0) != 3
                || !both(ended, (1, 0, 1), (1, 1, 2))
                || !both(ended, (2, 0, 2), (2, 1, 3))
        }),
        Litmus::new(
            "store buffering",
            "without synchronisation both may miss the other's store",
            store_buffering(false),
        )
        .racy()
        .reach("both read the old value", |ended| both(ended, (0, 0, 0), (1, 0, 0))),
        Litmus::new(
            "store buffering under locks",
            "locks restore the order of one machine",
            store_buffering(true),
        )
        .racy()
        .forbid(|ended| both(ended, (0, 0, 0), (1, 0, 0)))
        .reach("one comes first", |ended| both(ended, (0, 0, 0), (1, 0, 1)))
        .reach("both see each other", |ended| both(ended, (0, 0, 1), (1, 0, 1))),
    ]
}

fn agreement() -> Vec<Litmus> {
    let reader = |first: Address, second: Address| vec![load(first, 0), load(second, 1)];
    vec![
        Litmus::new(
            "coherence of one location",
            "two loads of one thread never see a word's values in the wrong order",
            Program::new(
                2,
                [
                    vec![lock(0), store(Y, 1), unlock(0), lock(0), store(Y, 2), unlock(0)],
                    vec![],
                    [reader(Y, Y), vec![lock(0), load(Y, 2), unlock(0), load(Y, 3)]].concat(),
                ],
            ),
        )
        .racy()
        .forbid(|ended| {
            let seen = [0, 1, 2, 3].map(|register| ended.register(2, register));
            !seen.is_sorted()
        })
        .reach("the lock brings the last value", |ended| both(ended, (2, 0, 0), (2, 2, 2)))
        .reach("the lock brings the first value", |ended| both(ended, (2, 0, 0), (2, 2, 1))),
        Litmus::new(
            "independent reads of independent writes under locks",
            "two readers agree on the order of two writes",
            Program::new(
                4,
                [
                    vec![lock(0), store(Y, 1), unlock(0)],
                    vec![lock(1), store(Z, 1), unlock(1)],
                    vec![lock(0), load(Y, 0), unlock(0), lock(1), load(Z, 1), unlock(1)],
                    vec![lock(1), load(Z, 0), unlock(1), lock(0), load(Y, 1), unlock(0)],
                ],
            ),
        )
        .forbid(|ended| both(ended, (2, 0, 1), (2, 1, 0)) && both(ended, (3, 0, 1), (3, 1, 0)))
        .reach("one reader sees one write", |ended| both(ended, (2, 0, 1), (2, 1, 0)))
        .reach("both see both", |ended| both(ended, (2, 1, 1), (3, 1, 1))),
        Litmus::new(
            "lock chain",
            "knowledge is transitive: a thread that gets B's lock sees what A wrote under another one",
            Program::new(
                3,
                [
                    vec![lock(1), store(Z, 5), store(X, 1), unlock(1)],
                    vec![lock(1), load(X, 0), unlock(1), lock(2), store_from(Y, 0), unlock(2)],
                    vec![load(Z, 9), lock(2), load(Y, 0), jump_unless(0, 1, 5), load(Z, 1), unlock(2)],
                ],
            ),
        )
        .racy()
        .forbid(|ended| both(ended, (2, 0, 1), (2, 1, 0)))
        .reach("the chain reaches the third", |ended| both(ended, (2, 0, 1), (2, 1, 5))),
    ]
}

fn disjoint_bytes(nodes: u16) -> Program {
    let script = |me: u16| {
        let mut code = Vec::new();
        for round in 0..3u16 {
            let mine = (0..8).map(|index| u32::from(me + index * nodes));
            code.extend(mine.map(|offset| store_byte(Address::byte(1, offset), (round * 60 + me + 1) as u8)));
            code.push(barrier());
            let all =
                (0..nodes).map(|other| load_byte(Address::byte(1, u32::from(other + nodes)), other as u8));
            code.extend(all);
            code.push(barrier());
        }
        code
    };
    Program::new(2, (0..nodes).map(script))
}

fn bytes_under_locks() -> Program {
    let script = |me: u32| {
        let mine = Address::byte(3, me);
        let next = (me + 1) % 4;
        vec![
            lock(me),
            store_byte(mine, me as u8 + 1),
            unlock(me),
            lock(next),
            load_byte(Address::byte(3, next), 0),
            unlock(next),
            lock(me),
            load_byte(mine, 1),
            unlock(me),
            barrier(),
            load_byte(Address::byte(3, 0), 2),
            load_byte(Address::byte(3, 1), 3),
            load_byte(Address::byte(3, 2), 4),
        ]
    };
    Program::new(4, (0..4).map(script))
}

fn ping_pong() -> Program {
    let script = |me: u64| {
        let mut code = vec![];
        for epoch in 0..6u64 {
            if epoch % 2 == me {
                code.extend([load(Z, epoch as u8), store(Z, 10 + epoch)]);
            }
            code.push(barrier());
        }
        code
    };
    Program::new(3, [script(0), script(1), vec![barrier(); 6]])
}

fn sharing() -> Vec<Litmus> {
    vec![
        Litmus::new(
            "disjoint bytes of one page between barriers",
            "no thread's bytes are lost, however falsely the page is shared",
            disjoint_bytes(4),
        )
        .forbid(|ended| {
            (0..4).any(|node| (0..4).any(|other| ended.register(node, other) != 121 + other as u64))
        }),
        Litmus::new(
            "disjoint bytes under different locks",
            "each lock carries its own byte",
            bytes_under_locks(),
        )
        .forbid(|ended| {
            (0..4).any(|node| {
                ended.register(node, 1) != node as u64 + 1
                    || (0..3).any(|byte| ended.register(node, 2 + byte) != byte as u64 + 1)
            })
        })
        .reach("a neighbour is seen", |ended| ended.register(0, 0) == 2)
        .reach("a neighbour comes later", |ended| ended.register(0, 0) == 0),
        Litmus::new(
            "barrier ping-pong",
            "a page written by two nodes in turn, epoch after epoch",
            ping_pong(),
        )
        .forbid(|ended| (1..6).any(|epoch| ended.register(epoch % 2, epoch) != 9 + epoch as u64)),
        Litmus::new(
            "an acquire invalidates a dirty page",
            "the page comes back merged: own unsent writes stay, the others' come in",
            Program::new(
                3,
                [
                    vec![lock(0), store(Z, 1), unlock(0)],
                    vec![
                        store(Address::word(2, 1), 5),
                        lock(0),
                        load(Z, 0),
                        unlock(0),
                        load(Address::word(2, 1), 1),
                    ],
                    vec![lock(0), load(Z, 0), unlock(0)],
                ],
            ),
        )
        .forbid(|ended| ended.register(1, 1) != 5)
        .reach("merged", |ended| both(ended, (1, 0, 1), (1, 1, 5))),
    ]
}

fn merging() -> Vec<Litmus> {
    vec![
        Litmus::new(
            "an own write survives an invalidation and two releases",
            "a diff sent before a fetch is in the fetched page",
            Program::new(
                3,
                [
                    vec![lock(0), store(Z, 1), unlock(0), lock(0), store(Z, 2), unlock(0)],
                    vec![
                        store(Address::word(2, 1), 5),
                        lock(0),
                        unlock(0),
                        load(Address::word(2, 1), 1),
                        store(Address::word(2, 2), 6),
                        lock(0),
                        load(Z, 0),
                        unlock(0),
                        load(Address::word(2, 1), 2),
                        load(Address::word(2, 2), 3),
                    ],
                    vec![],
                ],
            ),
        )
        .forbid(|ended| (1..4).any(|register| ended.register(1, register) != [5, 5, 6][register - 1]))
        .reach("in the middle", |ended| ended.register(1, 0) == 1),
        Litmus::new(
            "what came with a page is not sent back",
            "a diff holds own writes only: a merged page's other bytes may have changed at the home meanwhile",
            Program::new(
                3,
                [
                    vec![
                        lock(1),
                        store(Z, 1),
                        unlock(1),
                        lock(0),
                        store(Address::word(2, 2), 9),
                        unlock(0),
                        lock(1),
                        store(Z, 2),
                        unlock(1),
                        barrier(),
                        load(Z, 0),
                    ],
                    vec![
                        store(Address::word(2, 1), 5),
                        lock(0),
                        load(Address::word(2, 2), 1),
                        unlock(0),
                        barrier(),
                        load(Z, 0),
                        load(Address::word(2, 1), 2),
                    ],
                    vec![barrier(), load(Z, 0)],
                ],
            ),
        )
        .forbid(|ended| (0..3).any(|node| ended.register(node, 0) != 2) || ended.register(1, 2) != 5)
        .reach("merged", |ended| ended.register(1, 1) == 9),
        Litmus::new(
            "prefetch racing with an invalidation",
            "a page asked for before the acquire and arriving after it must not be considered current",
            Program::new(
                3,
                [
                    vec![lock(0), store(Z, 1), unlock(0)],
                    vec![prefetch(2), lock(0), load(Z, 0), unlock(0)],
                    vec![prefetch(0), lock(0), load(Z, 0), store(X, 1), unlock(0)],
                ],
            ),
        )
        .reach("after the writer", |ended| ended.register(1, 0) == 1)
        .reach("before the writer", |ended| ended.register(1, 0) == 0),
    ]
}

fn homes() -> Vec<Litmus> {
    vec![
        Litmus::new(
            "the home waits for a diff in flight",
            "a home that acquires before the diff has come must not read its own stale frame",
            Program::new(
                2,
                [
                    vec![],
                    vec![load(Y, 9), lock(0), load(Y, 0), unlock(0)],
                    vec![lock(0), store(Y, 1), unlock(0)],
                ],
            ),
        )
        .racy()
        .reach("after the writer", |ended| ended.register(1, 0) == 1)
        .reach("before the writer", |ended| ended.register(1, 0) == 0),
        Litmus::new(
            "an exclusive home page becomes shared",
            "the first fetch races with the home's writes: the reader sees the rest after its next acquire",
            Program::new(
                1,
                [
                    vec![
                        store(X, 1),
                        lock(0),
                        store(X2, 1),
                        unlock(0),
                        store(X, 2),
                        lock(0),
                        store(X2, 2),
                        unlock(0),
                    ],
                    vec![load(X, 9), lock(0), load(X2, 0), jump_unless(0, 2, 5), load(X, 1), unlock(0)],
                ],
            ),
        )
        .racy()
        .forbid(|ended| both(ended, (1, 0, 2), (1, 1, 0)) || both(ended, (1, 0, 2), (1, 1, 1)))
        .reach("caught in the middle", |ended| both(ended, (1, 9, 1), (1, 1, 2)))
        .reach("early", |ended| ended.register(1, 0) == 0),
    ]
}

fn placement() -> Vec<Litmus> {
    vec![
        Litmus::new(
            "a page that was never written",
            "it reads zero everywhere, and its zero content merges with a write",
            Program::new(
                3,
                [
                    vec![load(Y, 0), store(Z, 3), load(Z, 1), load(Address::word(2, 1), 2), leave()],
                    vec![load(Y, 0), load(Y, 1), leave()],
                    vec![load(Y, 0), leave()],
                ],
            ),
        )
        .forbid(|ended| {
            (0..3).any(|node| ended.register(node, 0) != 0) || !both(ended, (0, 1, 3), (0, 2, 0))
        }),
        Litmus::new(
            "a placement on one node, and leaving",
            "everything written before leaving is at its home after it",
            Program {
                ports: Vec::new(),
                nodes: 3,
                regions: vec![Region::new(0, 1, 1, Placement::On(NodeId(2)))],
                threads: (0..3u16)
                    .map(|node| {
                        let instructions = vec![
                            store(Address::word(0, u32::from(node)), 1 + u64::from(node)),
                            leave(),
                            load(Address::word(0, 0), 0),
                            load(Address::word(0, 1), 1),
                            load(Address::word(0, 2), 2),
                        ];
                        Script::team(node, instructions)
                    })
                    .collect(),
            },
        )
        .forbid(|ended| (0..3).any(|node| (0..3).any(|word| ended.register(node, word) != 1 + word as u64))),
    ]
}

fn producer_consumer() -> Program {
    // Slot and flag are on one page; cond 1: filled, cond 2: emptied.
    let slot = Address::word(1, 3);
    let full = Address::word(1, 4);
    let mut producer = Vec::new();
    for item in 1..=4 {
        producer.push(lock(0));
        let test = producer.len();
        producer.extend([load(full, 0), jump_unless(0, 1, test + 4), wait(2, 0), jump_unless(0, 9, test)]);
        producer.extend([store(slot, item * 11), store(full, 1), signal(1), unlock(0)]);
    }
    let consumer = |items: u64| {
        let mut code = Vec::new();
        for _ in 0..items {
            code.push(lock(0));
            let test = code.len();
            code.extend([load(full, 0), jump_unless(0, 0, test + 4), wait(1, 0), jump_unless(0, 9, test)]);
            code.extend([load(slot, 1), add_register(2, 1), store(full, 0), signal(2), unlock(0)]);
        }
        code
    };
    Program::new(2, [producer, consumer(2), consumer(2)])
}

/// The waiter has written a page that another node reads, so its release takes time; signals come without the
/// lock, some of them without need.
fn woken_early() -> Program {
    let (open, data, written) = (Address::word(1, 0), Address::word(1, 1), Address::word(2, 3));
    let waiter = vec![
        lock(1),
        store(written, 1),
        load(open, 0),
        jump_unless(0, 0, 7),
        add(2, 1),
        wait(2, 1),
        jump_unless(9, 1, 2),
        load(data, 1),
        unlock(1),
        barrier(),
    ];
    let opener = vec![
        lock(1),
        unlock(1),
        signal(2),
        broadcast(2),
        signal(2),
        lock(1),
        store(data, 5),
        store(open, 1),
        unlock(1),
        signal(2),
        barrier(),
    ];
    let reader = vec![lock(1), load(written, 0), unlock(1), signal(2), barrier(), load(written, 3)];
    Program::new(3, [opener, waiter, reader])
}

fn gate() -> Program {
    let open = Address::word(1, 0);
    let waiter = || {
        vec![
            lock(1),
            load(open, 0),
            jump_unless(0, 0, 5),
            wait(2, 1),
            jump_unless(0, 9, 1),
            load(Address::word(1, 1), 1),
            unlock(1),
        ]
    };
    Program::new(
        2,
        [
            vec![lock(1), store(Address::word(1, 1), 5), store(open, 1), broadcast(2), unlock(1)],
            waiter(),
            waiter(),
        ],
    )
}

fn try_locks() -> Program {
    let counter = Address::word(1, 0);
    let trier = || {
        let mut code = Vec::new();
        for _ in 0..3 {
            let end = code.len() + 7;
            code.extend([try_lock(3, 0), jump_unless(0, 1, end), load(counter, 1), add(1, 1)]);
            code.extend([store_from(counter, 1), unlock(3), add(2, 1)]);
        }
        code.push(barrier());
        code.push(load(counter, 3));
        code
    };
    let locker = || {
        let mut code = Vec::new();
        for _ in 0..2 {
            code.extend([lock(3), load(counter, 1), add(1, 1), store_from(counter, 1), unlock(3), add(2, 1)]);
        }
        code.extend([barrier(), load(counter, 3)]);
        code
    };
    Program::new(2, [trier(), locker(), trier(), locker()])
}

/// Node 0 uses two locks that it manages, in turn; then the others request both, also by trylock.
fn unlocked_long_ago() -> Program {
    let (first, second) = (Address::word(1, 0), Address::word(2, 0));
    let user = || {
        let mut code = Vec::new();
        for _ in 0..3 {
            for (id, word) in [(3, first), (6, second)] {
                code.extend([lock(id), load(word, 1), add(1, 1), store_from(word, 1), unlock(id)]);
            }
        }
        code
    };
    let asker = || vec![lock(3), load(first, 1), add(1, 1), store_from(first, 1), unlock(3)];
    let trier = || {
        vec![
            try_lock(6, 0),
            jump_unless(0, 1, 7),
            load(second, 1),
            add(1, 1),
            store_from(second, 1),
            unlock(6),
            add(2, 1),
        ]
    };
    let ends = [barrier(), load(first, 3), load(second, 4)];
    let with_end = |code: Vec<Instruction>| [code, ends.to_vec()].concat();
    Program::new(3, [with_end(user()), with_end(asker()), with_end(trier())])
}

fn locks() -> Vec<Litmus> {
    let taken = |ended: &Ended| (0..4).map(|node| ended.register(node, 2)).sum::<u64>();
    vec![
        Litmus::new(
            "producer and consumers over condition variables",
            "every item is consumed once; no wake-up is lost",
            producer_consumer(),
        )
        .forbid(|ended| ended.register(1, 2) + ended.register(2, 2) != 110)
        .reach("the first consumer gets the first", |ended| ended.register(1, 2) == 33)
        .reach("they take turns", |ended| ended.register(1, 2) == 44),
        Litmus::new(
            "a gate opened by broadcast",
            "all waiters pass, and see what was written before",
            gate(),
        )
        .forbid(|ended| (1..3).any(|node| ended.register(node, 1) != 5)),
        Litmus::new(
            "signal during a pending release",
            "a thread that is woken while it gives its lock up takes it again when that is done",
            woken_early(),
        )
        .forbid(|ended| ended.register(1, 1) != 5 || ended.register(2, 3) != 1)
        .reach("the waiter is woken for nothing", |ended| ended.register(1, 2) >= 2)
        .reach("the waiter never waits", |ended| ended.register(1, 2) == 0),
        Litmus::new(
            "trylock among contenders",
            "only one thread has the lock at a time; requests that were deferred meanwhile are served",
            try_locks(),
        )
        .forbid(move |ended| ended.register(0, 3) != taken(ended))
        .reach("a trylock fails", move |ended| taken(ended) < 10)
        .reach("trylocks succeed", |ended| ended.register(0, 2) + ended.register(2, 2) >= 4),
        Litmus::new(
            "unlocks without waiters",
            "a thread that requests a lock sees everything written under it, although other locks were used since",
            unlocked_long_ago(),
        )
        .forbid(|ended| {
            (0..3).any(|node| {
                ended.register(node, 3) != 4 || ended.register(node, 4) != 3 + ended.register(2, 2)
            })
        })
        .reach("the trylock succeeds", |ended| ended.register(2, 2) == 1)
        .reach("the trylock fails", |ended| ended.register(2, 2) == 0),
        Litmus::new(
            "publication",
            "a thread that gets a freed block sees what was written before it was freed",
            Program::new(
                3,
                [
                    vec![load(Z, 9), store(Z, 4), publish(1)],
                    vec![load(Z, 9), await_published(0), load(Z, 0), store(Z, 5), publish(2)],
                    vec![await_published(1), load(Z, 0)],
                ],
            ),
        )
        .racy()
        .forbid(|ended| !both(ended, (1, 0, 4), (2, 0, 5)))
        .reach("not before it", |ended| ended.register(1, 9) == 0),
    ]
}

fn atomics() -> Vec<Litmus> {
    let counter = Address::word(2, 0);
    let plain = |node: u32| Address::word(2, node + 1);
    let adder = move |me: u32| {
        vec![
            store(plain(me), 1),
            fetch_add(counter, 1, 0),
            store(plain(me), 2),
            lock(0),
            unlock(0),
            fetch_add(counter, 1, 1),
            store(plain(me), 3),
            barrier(),
            load(counter, 2),
            load(plain((me + 1) % 3), 3),
        ]
    };
    let compare = |into| Instruction::Atomic {
        at: counter,
        operation: AtomicOperation::CompareExchange { expected: 0, desired: 7 },
        into: Register(into),
    };
    vec![
        Litmus::new(
            "an atomic counter beside plain data",
            "diffs of the page never undo an atomic operation",
            Program::new(3, (0..3).map(adder)),
        )
        .forbid(|ended| (0..3).any(|node| !both(ended, (node, 2, 6), (node, 3, 3))))
        .reach("one of them is last", |ended| ended.register(0, 1) == 5),
        Litmus::new(
            "an atomic operation, a lock, a plain load",
            "the operation is seen by plain loads after the next acquire, and by its own thread at once",
            Program::new(
                3,
                [
                    vec![
                        load(counter, 9),
                        fetch_add(counter, 5, 0),
                        load(counter, 1),
                        lock(0),
                        store(X, 1),
                        unlock(0),
                    ],
                    vec![load(counter, 9), lock(0), load(X, 0), load(counter, 1), unlock(0)],
                    vec![],
                ],
            ),
        )
        .forbid(|ended| ended.register(0, 1) != 5 || both(ended, (1, 0, 1), (1, 1, 0)))
        .reach("the lock brings it", |ended| both(ended, (1, 0, 1), (1, 1, 5)))
        .reach("a stale copy before", |ended| both(ended, (1, 9, 0), (1, 1, 5))),
        Litmus::new(
            "compare and exchange",
            "one of many wins",
            Program::new(3, (0..3).map(|_| vec![compare(0), barrier(), load(counter, 1)])),
        )
        .forbid(|ended| {
            let winners = (0..3).filter(|node| ended.register(*node, 0) == 0).count();
            winners != 1 || (0..3).any(|node| ended.register(node, 1) != 7)
        })
        .reach("the first wins", |ended| ended.register(0, 0) == 0)
        .reach("the home wins", |ended| ended.register(2, 0) == 0),
    ]
}

fn siblings() -> Vec<Litmus> {
    let on = Script::team;
    let add_one =
        |at: Address, id: u32| vec![lock(id), load(at, 0), add(0, 1), store_from(at, 0), unlock(id)];
    let (left, right) = (Address::word(2, 0), Address::word(2, 1));
    let busy = |at: Address, id: u32| [add_one(at, id), add_one(at, id), add_one(at, id)].concat();
    let last = |at: Address, id: u32| {
        let mut code = busy(at, id);
        code.extend([lock(id), load(at, 1), unlock(id)]);
        code
    };
    vec![
        Litmus::new(
            "two threads per node under two locks on one page",
            "one thread's acquire brings in a page that its sibling is writing: it is merged",
            Program::on(
                3,
                3,
                vec![
                    on(0, last(left, 0)),
                    on(0, last(right, 1)),
                    on(1, last(left, 0)),
                    on(1, last(right, 1)),
                ],
            ),
        )
        .forbid(|ended| {
            let last = |pair: [usize; 2]| pair.iter().map(|thread| ended.register(*thread, 1)).max();
            last([0, 2]) != Some(6) || last([1, 3]) != Some(6)
        })
        .reach("they alternate", |ended| ended.register(0, 1) == 5),
    ]
}

/// Programs that an engine of ours once failed.
fn mended() -> Vec<Litmus> {
    vec![
        Litmus::new(
            "a publication overtakes a departure",
            "a node that receives a publication while its departure from the barrier is still in flight must not \
             consider the departure's notices known",
            Program::new(
                3,
                [
                    vec![barrier()],
                    vec![load(Address::word(2, 0), 9), barrier(), load(Address::word(2, 0), 0)],
                    vec![store(Address::word(2, 0), 7), barrier(), publish(1)],
                ],
            ),
        )
        .racy()
        .forbid(|ended| ended.register(1, 0) != 7),
        Litmus::new(
            "a departure forgets a publication",
            "what a publication has brought before a departure arrived must still be passed on with locks",
            Program::new(
                4,
                [
                    vec![barrier()],
                    vec![barrier(), await_published(2), lock(1), store(Y, 1), unlock(1)],
                    vec![barrier(), store(X, 7), publish(1)],
                    vec![
                        load(X, 9),
                        barrier(),
                        lock(1),
                        load(Y, 0),
                        jump_unless(0, 1, 6),
                        load(X, 1),
                        unlock(1),
                    ],
                ],
            ),
        )
        .forbid(|ended| both(ended, (3, 0, 1), (3, 1, 0))),
        Litmus::new(
            "a plain store and the own atomic operation after it",
            "a thread's atomic operation must see its own earlier plain store",
            Program::new(2, [vec![store(Y, 10), fetch_add(Y, 1, 0), load(Y, 1)], vec![]]),
        )
        .forbid(|ended| !both(ended, (0, 0, 10), (0, 1, 11))),
    ]
}
