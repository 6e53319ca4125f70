//! Random data-race-free programs under random conditions must behave as on one machine; failing cases
//! shrink.

use std::ops::Range;

use hiroba_check::mutant::Mutant;
use hiroba_check::shrink::{Listing, instructions, shrink};
use hiroba_check::swarm::{Case, examine, replay_command};
use hiroba_protocol::Protocol;

use crate::sample;

/// The number of seeds of each test, which takes a sample of them. Run more by `cargo run --release -p
/// hiroba-check --example swarm -- FIRST..END`.
const SEEDS: u64 = 3000;

fn explore(seeds: Range<u64>) {
    let count = seeds.end - seeds.start;
    let (mut loads, mut notices) = (0, 0);
    for seed in seeds {
        match examine(&Case::of(seed), None) {
            Ok(kept) => (loads, notices) = (loads + kept.loads as u64, notices + kept.notices as u64),
            Err(wrong) => {
                panic!("seed {seed}: {wrong}\nreplay it by: {}", replay_command(Protocol::Hlrc, seed, None))
            }
        }
    }
    assert!(loads > 20 * count && notices > 20 * count, "{loads} loads and {notices} notices judge little");
}

#[test]
fn random_programs_behave_as_on_one_machine() {
    explore(0..sample::of(SEEDS));
}

#[test]
fn more_random_programs_behave_as_on_one_machine() {
    explore(SEEDS..SEEDS + sample::of(SEEDS));
}

#[test]
fn yet_more_random_programs_behave_as_on_one_machine() {
    explore(2 * SEEDS..2 * SEEDS + sample::of(SEEDS));
}

#[test]
fn one_seed_is_one_case_and_one_run() {
    for seed in 0..20 {
        assert_eq!(Case::of(seed), Case::of(seed));
        let mutant = Some(Mutant::ZeroTwin);
        assert_eq!(examine(&Case::of(seed), mutant), examine(&Case::of(seed), mutant));
    }
}

#[test]
fn what_fails_shrinks_to_a_small_litmus_program() {
    for mutant in [Mutant::SkipApply, Mutant::JoinRuns, Mutant::DropNoticeOfGrant] {
        let shown = (0..500).map(Case::of).filter(|case| examine(case, Some(mutant)).is_err());
        // Shrinking ends when no single step makes a program smaller, so not every case becomes small.
        let shrunk = shown.take(3).map(|case| {
            let (small, wrong) = shrink(&case, Some(mutant)).expect("it fails");
            (instructions(&case.program), instructions(&small.program), small, wrong)
        });
        let (before, count, small, wrong) =
            shrunk.min_by_key(|(_, count, ..)| *count).unwrap_or_else(|| panic!("no seed shows {mutant:?}"));
        println!("{mutant:?}: {before} to {count} instructions\n{}\n{wrong}\n", Listing(&small));
        assert!(count <= 12, "{mutant:?} shrinks to {count} instructions only:\n{}", Listing(&small));
        assert!(examine(&small, Some(mutant)).is_err() && examine(&small, None).is_ok());
    }
}

#[test]
fn every_protocol_keeps_what_it_promises_under_random_conditions() {
    for protocol in Protocol::ALL {
        for seed in 0..150 {
            if let Err(wrong) = examine(&Case::under(protocol, seed), None) {
                panic!("seed {seed}: {wrong}\nreplay it by: {}", replay_command(protocol, seed, None));
            }
        }
    }
}
