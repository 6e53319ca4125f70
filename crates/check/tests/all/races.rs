//! Looking for data races (`hiroba run --races`): the homes find the same races in every order of events.

use std::ops::Range;
use std::sync::Arc;

use hiroba_base::{NodeId, PageId};
use hiroba_check::cluster::{FoundRace, RaceBug};
use hiroba_check::explore::{Exploration, Scenario};
use hiroba_check::program::script::*;
use hiroba_check::program::{Address, Instruction, Program, Region};
use hiroba_protocol::races::Touch;
use hiroba_wire::Placement;

use crate::model::{self, Explored};

const X: Address = Address::word(0, 0);
/// On the same page.
const X2: Address = Address::word(0, 1);

fn scenario(name: &'static str, program: Program) -> Scenario {
    let (observed, sequential, weak) = (Vec::new(), Vec::new(), Vec::new());
    let about = "what is found of its data races";
    Scenario { name, about, program, observed, sequential, weak, is_racy: true, promises: &[] }
}

fn race(bytes: Range<u32>, sides: [(u16, Touch); 2]) -> FoundRace {
    (PageId(0), bytes, sides.map(|(node, touch)| (NodeId(node), touch)))
}

fn explored(name: &'static str, program: &Program, found: &[FoundRace], bug: RaceBug) -> Explored {
    let exploration = Exploration::looking_for_races(scenario(name, program.clone()), found.to_vec(), bug);
    let explored = model::explore(&Arc::new(exploration));
    println!("{name}, {bug:?}: {} situations, {} choices", explored.situations, explored.choices);
    explored
}

#[track_caller]
fn is_always_found(name: &'static str, program: &Program, found: &[FoundRace]) {
    if let Some((situation, told)) = explored(name, program, found, RaceBug::None).wrong {
        panic!("{name}:\n{told}{}", situation.wrong.as_deref().unwrap_or_default());
    }
}

/// One page, and a thread per node; after everything it does, each meets the others.
fn program(home: u16, threads: Vec<Vec<Instruction>>) -> Program {
    let threads = threads.into_iter().map(|mut instructions| {
        instructions.push(barrier());
        instructions
    });
    Program::new(1, threads).with_regions(vec![Region::new(0, 1, 1, Placement::On(NodeId(home)))])
}

/// Both write the same word between the same two meetings.
fn two_writers(home: u16) -> Program {
    let mut threads = vec![vec![store(X, 1)], vec![store(X, 2)]];
    threads.resize(2.max(usize::from(home) + 1), vec![]);
    program(home, threads)
}

const BOTH_WROTE: [(u16, Touch); 2] = [(0, Touch::Wrote), (1, Touch::Wrote)];

#[test]
fn two_writers_of_one_word_are_found_in_every_order_of_events() {
    let found = [race(0..1, BOTH_WROTE)];
    is_always_found("two writers, at one's home", &two_writers(0), &found);
    is_always_found("two writers, at the other's home", &two_writers(1), &found);
    is_always_found("two writers, at a third node's", &two_writers(2), &found);
    let behind = |lock_id, value| vec![lock(lock_id), store(X, value), unlock(lock_id)];
    let two_locks = program(0, vec![behind(0, 1), behind(1, 2)]);
    is_always_found("behind different locks", &two_locks, &found);
}

#[test]
fn a_load_of_what_another_node_writes_is_found_in_every_order_of_events() {
    for home in 0..2 {
        let reader = program(home, vec![vec![store(X, 1)], vec![load(X, 0)]]);
        let found = [race(0..1, [(0, Touch::Wrote), (1, Touch::Read)])];
        is_always_found("a writer and a reader", &reader, &found);
    }
}

#[test]
fn what_synchronisation_orders_or_only_a_page_has_in_common_is_not_found() {
    let bump = || vec![lock(0), load(X, 0), add(0, 1), store_from(X, 0), unlock(0)];
    is_always_found("a counter behind a lock", &program(0, vec![bump(), bump()]), &[]);
    let beside = program(0, vec![vec![store(X, 1), load(X, 0)], vec![load(X2, 0), store(X2, 1)]]);
    is_always_found("two words of one page", &beside, &[]);
    let in_turn = program(1, vec![vec![store(X, 1), barrier()], vec![barrier(), load(X, 0), store(X, 2)]]);
    is_always_found("one after the other", &in_turn, &[]);
}

/// With each of these bugs the host missed races, in an order of its own.
#[test]
fn a_host_that_looks_too_late_misses_races_and_the_exploration_shows_how() {
    let found = [race(0..1, BOTH_WROTE)];
    let shown = |bug| {
        let (situation, told) =
            explored("two writers", &two_writers(0), &found, bug).wrong.expect("a race that is missed");
        assert!(situation.wrong.as_deref().unwrap_or_default().ends_with("got []"), "{situation:?}");
        println!("{told}");
        told
    };
    // The other's diff arrives between the store and the end of its interval, so the twin has the other's
    // bytes.
    let told = shown(RaceBug::ForgetsOverwritten);
    let [stored, applied] =
        ["node 0 thread 0: page 0 byte 0 := 1", "diff applied to page 0"].map(|what| told.rfind(what));
    assert!(stored.is_some() && stored < applied, "{told}");
    // The other has arrived already: at the end of its interval the node leaves the collective, and has seen
    // the other's interval.
    let told = shown(RaceBug::TellsLate);
    let [arrived, ended] = ["Arrive", "interval 1 has ended"].map(|what| told.rfind(what));
    assert!(arrived.is_some() && ended.is_some(), "{told}");
}
