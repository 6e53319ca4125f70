//! Copies that are lent with an arrival to node 0, where a thread waits for the arrivals (`sc/lending.rs` of
//! `hiroba-protocol`). The engines lend all that they can.

use hiroba_base::NodeId;
use hiroba_wire::Placement;

use super::{Litmus, both};
use crate::program::script::*;
use crate::program::{Address, Program, Region, Script};

/// Data under another protocol, if the job has two, homed on node 1.
const DATA: Address = Address::word(0, 0);
/// Values under sequential consistency, on three pages.
const VALUE: Address = Address::word(1, 0);
const SECOND_VALUE: Address = Address::word(2, 0);
const SUM: Address = Address::word(3, 0);

/// Makes the first region that of the data, and the second that of the values.
fn divided(program: Program) -> Program {
    let regions =
        [Region::new(0, 1, 1, Placement::On(NodeId(1))), Region::new(1, 3, 1, Placement::On(NodeId(0)))];
    program.with_regions(regions.to_vec())
}

/// Returns the programs, with outcomes that no seed may show and outcomes that some seed must.
pub fn gathering() -> Vec<Litmus> {
    let reduces = |value| {
        vec![
            store(value, 1),
            barrier(),
            load(SUM, 0),
            store(value, 2),
            barrier(),
            load(SUM, 1),
            barrier(),
            load(SUM, 2),
        ]
    };
    let gathers = |registers: [u8; 2], sum| {
        vec![
            await_others(),
            load(VALUE, registers[0]),
            load(SECOND_VALUE, registers[1]),
            store(SUM, sum),
            barrier(),
        ]
    };
    vec![
        Litmus::new(
            "a reduction",
            "values of each phase are combined in it, and all see the result behind it",
            divided(Program::new(
                4,
                [
                    [gathers([0, 1], 3), gathers([2, 3], 5), vec![barrier(), load(SUM, 4)]].concat(),
                    reduces(VALUE),
                    reduces(SECOND_VALUE),
                ],
            )),
        )
        .racy()
        .forbid(|ended| {
            let sees = |thread| both(ended, (thread, 0, 3), (thread, 1, 5)) && ended.register(thread, 2) == 5;
            let is_first = both(ended, (0, 0, 1), (0, 1, 1));
            !(is_first && both(ended, (0, 2, 2), (0, 3, 2)) && sees(1) && sees(2))
        }),
        Litmus::new(
            "MP by copies that travel with an arrival",
            "where another thread of their lender stores to both, no old value is read after a new one",
            divided(Program::on(
                2,
                4,
                vec![
                    Script::team(0, vec![await_others(), load(SECOND_VALUE, 0), load(VALUE, 1), barrier()]),
                    Script::team(1, vec![store(VALUE, 1), store(SECOND_VALUE, 1), barrier()]),
                    Script::foreign(1, vec![store(VALUE, 7), store(SECOND_VALUE, 2), load(VALUE, 0)]),
                ],
            )),
        )
        .racy()
        .forbid(|ended| both(ended, (0, 0, 2), (0, 1, 0)))
        .reach("the stores are seen", |ended| both(ended, (0, 0, 2), (0, 1, 7)))
        .reach("neither is seen", |ended| both(ended, (0, 0, 1), (0, 1, 1))),
        Litmus::new(
            "MP by a copy that travels with an arrival",
            "who reads a value knows what its node has stored before",
            divided(Program::new(
                4,
                [
                    vec![
                        load(DATA, 15),
                        barrier(),
                        await_others(),
                        load(VALUE, 0),
                        load(DATA, 1),
                        barrier(),
                        load(DATA, 2),
                    ],
                    vec![load(VALUE, 14), barrier(), store(DATA, 1), store(VALUE, 1), barrier()],
                ],
            )),
        )
        .racy()
        .forbid(|ended| !both(ended, (0, 0, 1), (0, 1, 1)) || ended.register(0, 2) != 1),
        Litmus::new(
            "a loan that ends with the others' arrivals",
            "node 0 stores to a page that it had lent, of which the others have read the old content",
            divided(Program::new(
                4,
                [
                    vec![store(SUM, 1), barrier(), await_others(), store(SUM, 2), store(VALUE, 3), barrier()],
                    vec![barrier(), load(SUM, 0), load(VALUE, 2), barrier(), load(SUM, 1), load(VALUE, 3)],
                    vec![barrier(), load(SUM, 0), load(VALUE, 2), barrier(), load(SUM, 1), load(VALUE, 3)],
                ],
            )),
        )
        .racy()
        .forbid(|ended| {
            let is_right = |thread| {
                both(ended, (thread, 0, 1), (thread, 1, 2)) && both(ended, (thread, 2, 0), (thread, 3, 3))
            };
            !is_right(1) || !is_right(2)
        }),
        Litmus::new(
            "a copy that travels with an arrival ends with the departure",
            "node 0 does not wait for the arrivals, and reads no old value behind the barrier",
            divided(Program::new(
                4,
                [
                    vec![barrier(), load(VALUE, 0), barrier(), load(SECOND_VALUE, 1), load(VALUE, 2)],
                    vec![
                        store(VALUE, 1),
                        store(SECOND_VALUE, 1),
                        barrier(),
                        store(VALUE, 2),
                        store(SECOND_VALUE, 2),
                        barrier(),
                        store(VALUE, 3),
                        store(SECOND_VALUE, 3),
                    ],
                ],
            )),
        )
        .racy()
        .forbid(|ended| {
            let is_old = ended.register(0, 1) < 2 || ended.register(0, 2) < 2;
            ended.register(0, 0) == 0 || is_old || both(ended, (0, 1, 3), (0, 2, 2))
        })
        .reach("the stores of the phase before are seen", |ended| both(ended, (0, 0, 1), (0, 2, 2)))
        .reach("those behind the barrier are seen", |ended| both(ended, (0, 1, 3), (0, 2, 3))),
        Litmus::new(
            "node 0 keeps no copy that has travelled with an arrival",
            "who sees a store behind the barrier reads no value of the phase before",
            divided(Program::new(
                4,
                [
                    vec![
                        store(SECOND_VALUE, 1),
                        await_others(),
                        load(VALUE, 0),
                        barrier(),
                        load(SECOND_VALUE, 1),
                        load(VALUE, 2),
                    ],
                    vec![store(VALUE, 1), barrier(), store(VALUE, 7), store(SECOND_VALUE, 2)],
                ],
            )),
        )
        .racy()
        .forbid(|ended| ended.register(0, 0) != 1 || both(ended, (0, 1, 2), (0, 2, 1)))
        .reach("the stores are seen", |ended| both(ended, (0, 1, 2), (0, 2, 7)))
        .reach("neither is", |ended| both(ended, (0, 1, 1), (0, 2, 1))),
        Litmus::new(
            "a copy that is requested after one has travelled",
            "its invalidation, by the node that lent the page before, is not taken for that of the lent copy",
            divided(Program::new(
                4,
                [
                    vec![barrier(), load(VALUE, 0), load(SECOND_VALUE, 1), load(VALUE, 2)],
                    vec![
                        store(VALUE, 1),
                        barrier(),
                        load(SUM, 0),
                        load(SUM, 1),
                        store(VALUE, 3),
                        store(SECOND_VALUE, 1),
                    ],
                    vec![barrier(), store(VALUE, 2), store(SUM, 1)],
                ],
            )),
        )
        .racy()
        .forbid(|ended| both(ended, (0, 1, 1), (1, 1, 1)) && ended.register(0, 2) != 3)
        .reach("both stores are seen", |ended| both(ended, (0, 0, 2), (0, 2, 3))),
        Litmus::new(
            "node 0 stores to what has travelled",
            "the page goes there then",
            divided(Program::new(
                4,
                [
                    vec![await_others(), load(VALUE, 0), store(VALUE, 9), barrier(), load(VALUE, 1)],
                    vec![store(VALUE, 1), barrier(), load(VALUE, 0)],
                ],
            )),
        )
        .racy()
        .forbid(|ended| !both(ended, (0, 0, 1), (0, 1, 9)) || ended.register(1, 0) != 9),
    ]
}
