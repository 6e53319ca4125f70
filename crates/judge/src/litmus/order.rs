//! Flags and data under different protocols: the flag's page is under sequential consistency, the data's
//! under another one, and no lock orders them. A thread that sees the flag must see the data.
//!
//! MP, WRC and SB are named as in Alglave, Maranget, Tautschnig, *Herding Cats*, ACM TOPLAS 2014; the lock is
//! that of Peterson, *Myths About the Mutual Exclusion Problem*, Information Processing Letters 12(3), 1981.

use hiroba_wire::Placement;

use super::{Litmus, both, fetch_add};
use crate::program::script::*;
use crate::program::{Address, Instruction, Program, Region, Script};

/// Data, homed on nodes 0 and 1.
const DATA: Address = Address::word(0, 0);
const FAR_DATA: Address = Address::word(1, 0);
/// Flags under sequential consistency, managed by nodes 0 and 1.
const FLAG: Address = Address::word(2, 0);
const TURN: Address = Address::word(2, 1);
const FAR_FLAG: Address = Address::word(3, 0);

/// Makes the first region that of the data, and the second that of the flags.
fn divided(program: Program) -> Program {
    let regions = [0, 2].map(|first| Region::new(first, 2, 1, Placement::Cyclic));
    program.with_regions(regions.to_vec())
}

fn spin_on(flag: Address, then: &[Instruction]) -> Vec<Instruction> {
    // Makes stale copies of the data, which may then be read.
    let mut code = vec![load(DATA, 14), load(FAR_DATA, 15), load(flag, 0), jump_unless(0, 1, 2)];
    code.extend_from_slice(then);
    code
}

/// Returns the programs, with outcomes that no seed may show and outcomes that some seed must.
pub fn order() -> Vec<Litmus> {
    let write = |flag| vec![load(FAR_DATA, 15), store(DATA, 7), store(FAR_DATA, 8), store(flag, 1)];
    let read = [load(DATA, 1), load(FAR_DATA, 2)];
    let sees_all =
        |thread| move |ended: &crate::execution::Ended| !both(ended, (thread, 1, 7), (thread, 2, 8));
    let flags = (4..8).map(|page| Address::word(page, 0));
    let flagged = |(flag, value)| [store(DATA, value), store(flag, value)];
    vec![
        Litmus::new(
            "MP by a run of flags",
            "whichever of the flags that come together a thread sees, it sees the data",
            Program::new(
                0,
                [
                    vec![],
                    flags.clone().zip(1..).flat_map(flagged).collect(),
                    flags
                        .zip(0..)
                        .flat_map(|(flag, into)| [load(flag, into), load(DATA, into + 8)])
                        .collect(),
                ],
            )
            .with_regions(vec![
                Region::new(0, 2, 1, Placement::Cyclic),
                Region::new(2, 6, 1, Placement::On(hiroba_base::NodeId(0))),
            ]),
        )
        .racy()
        .forbid(|ended| (0..4).any(|flag| ended.register(2, flag + 8) < ended.register(2, flag)))
        .reach("the last flag is seen", |ended| ended.register(2, 3) == 4),
        Litmus::new(
            "MP across protocols",
            "a thread that sees the flag sees the data",
            divided(Program::new(
                4,
                [
                    write(FLAG),
                    vec![load(DATA, 14), load(FAR_DATA, 15), load(FLAG, 0), load(DATA, 1), load(FAR_DATA, 2)],
                ],
            )),
        )
        .racy()
        .forbid(move |ended| ended.register(1, 0) == 1 && sees_all(1)(ended))
        .reach("the flag is not seen", |ended| ended.register(1, 0) == 0)
        .reach("the flag is seen", |ended| ended.register(1, 0) == 1),
        Litmus::new(
            "WRC across protocols",
            "a thread that sees a flag passes on what its writer knew",
            divided(Program::new(
                4,
                [write(FLAG), spin_on(FLAG, &[store(FAR_FLAG, 1)]), spin_on(FAR_FLAG, &read)],
            )),
        )
        .racy()
        .forbid(sees_all(2)),
        Litmus::new(
            "MP by an atomic operation",
            "an operation on a word of such a page is a flag, too",
            divided(Program::new(
                4,
                [
                    [&write(FAR_FLAG)[..3], &[fetch_add(FLAG, 1, 0)]].concat(),
                    [&[load(DATA, 14), load(FAR_DATA, 15), fetch_add(FLAG, 0, 0)], &read[..]].concat(),
                ],
            )),
        )
        .racy()
        .forbid(move |ended| ended.register(1, 0) == 1 && sees_all(1)(ended))
        .reach("the flag is seen", |ended| ended.register(1, 0) == 1),
        Litmus::new(
            "a lock of loads and stores",
            "what it guards is never changed by two at once",
            divided(Program::new(4, [peterson(FLAG, FAR_FLAG, 1, 0), peterson(FAR_FLAG, FLAG, 0, 1)])),
        )
        .racy()
        .forbid(|ended| both(ended, (0, 3, 1), (1, 3, 1)) || ended.register(0, 3) != 2),
        Litmus::new(
            "SB across protocols",
            "of two threads that store and then load, one here and one there, one sees the other's store",
            divided(Program::new(
                4,
                [
                    vec![load(FLAG, 14), store(DATA, 1), load(FLAG, 0)],
                    vec![load(DATA, 14), store(FLAG, 1), load(DATA, 0)],
                ],
            )),
        )
        .racy()
        .forbid(|ended| both(ended, (0, 0, 0), (1, 0, 0)))
        .reach("the first one sees it", |ended| both(ended, (0, 0, 1), (1, 0, 0)))
        .reach("the second one sees it", |ended| both(ended, (0, 0, 0), (1, 0, 1))),
        Litmus::new(
            "SB across protocols among three",
            "the same of threads whose words are homed elsewhere, and one that has a copy of both",
            divided(Program::new(
                4,
                [
                    vec![load(FLAG, 14), load(FAR_DATA, 15)],
                    vec![load(FLAG, 14), store(DATA, 1), load(FLAG, 0)],
                    vec![load(DATA, 14), store(FLAG, 1), load(DATA, 0)],
                ],
            )),
        )
        .racy()
        .forbid(|ended| both(ended, (1, 0, 0), (2, 0, 0))),
        Litmus::new(
            "SB behind a barrier",
            "who gives a copy up may have left a collective that the writer has yet to leave",
            divided(Program::on(
                3,
                4,
                vec![
                    Script::team(0, vec![barrier()]),
                    Script::team(1, vec![load(FLAG, 14), barrier(), store(DATA, 1), load(FLAG, 0)]),
                    Script::team(2, vec![barrier()]),
                    Script::foreign(2, vec![load(DATA, 14), store(FLAG, 1), load(DATA, 0)]),
                ],
            )),
        )
        .racy()
        .forbid(|ended| both(ended, (1, 0, 0), (3, 0, 0))),
        Litmus::new(
            "a flag behind a barrier",
            "a page that comes before the departure waits for what was written before it",
            divided(Program::on(
                2,
                4,
                vec![
                    Script::team(0, [&[load(FAR_DATA, 15), barrier()], &write(FLAG)[1..]].concat()),
                    Script::team(1, vec![barrier()]),
                    Script::foreign(1, spin_on(FLAG, &read)),
                ],
            )),
        )
        .racy()
        .forbid(sees_all(2)),
    ]
}

/// Adds one to the data under the lock; in the end both meet and read it.
fn peterson(mine: Address, other: Address, give_way: u64, my_turn: u64) -> Vec<Instruction> {
    vec![
        store(mine, 1),
        store(TURN, give_way),
        load(other, 0),
        jump_unless(0, 1, 6),
        load(TURN, 1),
        jump_unless(1, my_turn, 2),
        load(DATA, 2),
        add(2, 1),
        store_from(DATA, 2),
        store(mine, 0),
        barrier(),
        load(DATA, 3),
    ]
}
