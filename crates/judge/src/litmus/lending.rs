//! Copies that are lent from one collective to the next (`sc/lending.rs` of `hiroba-protocol`). The engines
//! lend all that they can. Node 0, from which departures come, owns all pages of the flags.

use hiroba_base::NodeId;
use hiroba_wire::Placement;

use super::{Litmus, both};
use crate::program::script::*;
use crate::program::{Address, Program, Region, Script};

/// Data under another protocol, if the job has two, homed on node 1.
const DATA: Address = Address::word(0, 0);
/// Flags under sequential consistency, on three pages.
const FLAG: Address = Address::word(1, 0);
const SECOND_FLAG: Address = Address::word(2, 0);
const THIRD_FLAG: Address = Address::word(3, 0);

/// Makes the first region that of the data, and the second that of the flags.
fn divided(program: Program) -> Program {
    let regions =
        [Region::new(0, 1, 1, Placement::On(NodeId(1))), Region::new(1, 3, 1, Placement::On(NodeId(0)))];
    program.with_regions(regions.to_vec())
}

/// Returns the programs, with outcomes that no seed may show and outcomes that some seed must.
pub fn lending() -> Vec<Litmus> {
    let read = |registers: [u8; 2]| [load(FLAG, registers[0]), load(SECOND_FLAG, registers[1])];
    vec![
        Litmus::new(
            "a lent copy ends with its phase",
            "what was stored in a phase and after it is seen in the next one",
            divided(Program::new(
                4,
                [
                    vec![
                        store(FLAG, 1),
                        barrier(),
                        store(SECOND_FLAG, 1),
                        barrier(),
                        store(THIRD_FLAG, 1),
                        barrier(),
                    ],
                    [
                        &[barrier()][..],
                        &read([0, 1]),
                        &[barrier()],
                        &read([2, 3]),
                        &[barrier(), load(THIRD_FLAG, 4)],
                    ]
                    .concat(),
                    [
                        &[barrier(), barrier()][..],
                        &read([2, 3]),
                        &[load(THIRD_FLAG, 5), barrier(), load(THIRD_FLAG, 4)],
                    ]
                    .concat(),
                ],
            )),
        )
        .racy()
        .forbid(|ended| {
            let sees = |thread| both(ended, (thread, 2, 1), (thread, 3, 1)) && ended.register(thread, 4) == 1;
            ended.register(1, 0) != 1 || !sees(1) || !sees(2)
        })
        .reach("a store of the phase is not seen in it", |ended| ended.register(1, 1) == 0)
        .reach("it is", |ended| ended.register(1, 1) == 1),
        Litmus::new(
            "MP by lent copies",
            "of two pages that were lent, no old one is read after a new one",
            divided(Program::new(
                4,
                [
                    vec![
                        store(FLAG, 1),
                        store(SECOND_FLAG, 1),
                        barrier(),
                        store(FLAG, 7),
                        store(SECOND_FLAG, 2),
                    ],
                    vec![barrier(), load(SECOND_FLAG, 0), load(FLAG, 1)],
                    vec![barrier(), load(SECOND_FLAG, 0), load(FLAG, 1)],
                ],
            )),
        )
        .racy()
        .forbid(|ended| both(ended, (1, 0, 2), (1, 1, 1)) || both(ended, (2, 0, 2), (2, 1, 1)))
        .reach("neither is seen", |ended| both(ended, (1, 0, 1), (2, 0, 1)))
        .reach("one node sees the stores, the other does not", |ended| both(ended, (1, 0, 2), (2, 0, 1))),
        Litmus::new(
            "MP by a copy that is not lent again",
            "a page that a thread outside the team touches meanwhile is not lent, and no old copy is read",
            divided(Program::on(
                2,
                4,
                vec![
                    Script::team(
                        0,
                        vec![
                            store(FLAG, 1),
                            store(SECOND_FLAG, 1),
                            barrier(),
                            barrier(),
                            store(FLAG, 7),
                            store(SECOND_FLAG, 2),
                        ],
                    ),
                    Script::team(
                        1,
                        vec![barrier(), load(FLAG, 2), barrier(), load(SECOND_FLAG, 0), load(FLAG, 1)],
                    ),
                    Script::foreign(0, vec![load(FLAG, 0); 12]),
                ],
            )),
        )
        .racy()
        .forbid(|ended| both(ended, (1, 0, 2), (1, 1, 1)))
        .reach("the stores are seen", |ended| both(ended, (1, 0, 2), (1, 1, 7))),
        Litmus::new(
            "borrowers that write",
            "a page that was lent goes to each of two borrowers, with all that was stored",
            divided(Program::new(
                4,
                [
                    vec![
                        store(FLAG, 1),
                        load(SECOND_FLAG, 13),
                        barrier(),
                        load(FLAG, 0),
                        barrier(),
                        load(FLAG, 1),
                        load(SECOND_FLAG, 2),
                    ],
                    vec![
                        barrier(),
                        load(FLAG, 0),
                        lock(0),
                        load(SECOND_FLAG, 1),
                        add(1, 1),
                        store_from(SECOND_FLAG, 1),
                        unlock(0),
                        barrier(),
                    ],
                    vec![
                        barrier(),
                        load(SECOND_FLAG, 0),
                        lock(0),
                        load(SECOND_FLAG, 1),
                        add(1, 1),
                        store_from(SECOND_FLAG, 1),
                        unlock(0),
                        barrier(),
                    ],
                ],
            )),
        )
        .racy()
        .forbid(|ended| ended.register(0, 1) != 1 || ended.register(0, 2) != 2),
        Litmus::new(
            "SB with a lent copy",
            "a thread that has missed the store to the flag has made its own data known before",
            divided(Program::new(
                4,
                [
                    vec![load(FLAG, 14), load(DATA, 15), barrier(), store(FLAG, 1), load(DATA, 0)],
                    vec![load(DATA, 15), barrier(), store(DATA, 1), load(FLAG, 0)],
                ],
            )),
        )
        .racy()
        .forbid(|ended| both(ended, (0, 0, 0), (1, 0, 0)))
        .reach("the first one sees it", |ended| both(ended, (0, 0, 1), (1, 0, 0)))
        .reach("the second one sees it", |ended| both(ended, (0, 0, 0), (1, 0, 1))),
        Litmus::new(
            "SB with a lent copy that is changed",
            "the same where the borrower then stores to another word of the page",
            divided(Program::new(
                4,
                [
                    vec![load(FLAG, 14), load(DATA, 15), barrier(), store(FLAG, 1), load(DATA, 0)],
                    vec![
                        load(DATA, 15),
                        barrier(),
                        store(DATA, 1),
                        load(FLAG, 0),
                        store(Address::word(1, 1), 1),
                    ],
                ],
            )),
        )
        .racy()
        .forbid(|ended| both(ended, (0, 0, 0), (1, 0, 0))),
    ]
}

/// Returns programs in which an engine lends by itself what others have requested before.
pub fn followed() -> Vec<Litmus> {
    // Stores of three phases, whose values others load in phases between.
    let stores = || {
        [
            store(FLAG, 1),
            barrier(),
            barrier(),
            store(FLAG, 2),
            barrier(),
            barrier(),
            store(FLAG, 3),
            barrier(),
        ]
    };
    let loads = || [barrier(), load(FLAG, 0), barrier(), barrier(), load(FLAG, 1), barrier(), barrier()];
    vec![
        Litmus::new(
            "MP by a page that is followed",
            "a page that was requested before is lent, and no old value is read after a new one",
            divided(Program::new(
                4,
                [
                    [&stores()[..], &[store(FLAG, 4), store(SECOND_FLAG, 1)]].concat(),
                    [&loads()[..], &[load(SECOND_FLAG, 2), load(FLAG, 3)]].concat(),
                    [&loads()[..], &[load(SECOND_FLAG, 2), load(FLAG, 3)]].concat(),
                ],
            )),
        )
        .racy()
        .forbid(|ended| {
            let is_wrong = |thread| {
                let is_old = ended.register(thread, 3) < 3 || both(ended, (thread, 2, 1), (thread, 3, 3));
                !both(ended, (thread, 0, 1), (thread, 1, 2)) || is_old
            };
            is_wrong(1) || is_wrong(2)
        })
        .reach("the last store is seen", |ended| both(ended, (1, 2, 1), (1, 3, 4)))
        .reach("one node sees it, the other does not", |ended| both(ended, (1, 3, 4), (2, 3, 3))),
        Litmus::new(
            "a follower that writes",
            "a page that was lent goes to a borrower with all that was stored",
            divided(Program::new(
                4,
                [
                    [&stores()[..], &[barrier(), load(FLAG, 0), load(Address::word(1, 1), 1)]].concat(),
                    [&loads()[..], &[load(FLAG, 3), store(Address::word(1, 1), 5), barrier()]].concat(),
                    [&loads()[..], &[load(FLAG, 3), barrier(), load(Address::word(1, 1), 2)]].concat(),
                ],
            )),
        )
        .racy()
        .forbid(|ended| {
            let sees_all = both(ended, (0, 0, 3), (0, 1, 5)) && both(ended, (1, 3, 3), (2, 3, 3));
            !sees_all || ended.register(2, 2) != 5
        }),
        Litmus::new(
            "a page that is followed and stored to while it is lent",
            "the others read the new value once the flag is there",
            divided(Program::new(
                4,
                [
                    [&stores()[..], &[store(FLAG, 4), barrier(), store(FLAG, 5), barrier()]].concat(),
                    [&loads()[..], &[load(FLAG, 2), barrier(), load(FLAG, 3), barrier(), load(FLAG, 4)]]
                        .concat(),
                    [&loads()[..], &[barrier(), load(FLAG, 3), barrier(), load(FLAG, 4)]].concat(),
                ],
            )),
        )
        .racy()
        .forbid(|ended| {
            let is_old = |thread| ended.register(thread, 3) < 4 || ended.register(thread, 4) != 5;
            is_old(1) || is_old(2) || ended.register(1, 2) < 3
        }),
    ]
}
