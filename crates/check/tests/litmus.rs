//! Every litmus program, over many seeds.

use hiroba_check::axioms::judge;
use hiroba_check::cluster::{Cluster, Failure, NetworkChoice, Options};
use hiroba_check::litmus::{Litmus, catalogue};
use hiroba_check::program::script::*;
use hiroba_check::program::{Address, Program};
use hiroba_protocol::hlrc::Hlrc;

const SEEDS: u64 = 500;

/// What is wrong with one seed's run, and which of the outcomes to reach it shows.
fn examine(litmus: &Litmus, seed: u64, network: NetworkChoice) -> Result<Vec<bool>, String> {
    let options = Options { network, ..Options::seeded(seed) };
    let ended =
        Cluster::new(&litmus.program, Hlrc::new, options).run().map_err(|failure| failure.to_string())?;
    if (litmus.forbid)(&ended) {
        let registers: Vec<_> = ended.registers.iter().map(|registers| &registers[..10]).collect();
        return Err(format!("a forbidden outcome: {registers:?}"));
    }
    let verdict = judge(&ended.execution).map_err(|error| error.to_string())?;
    if let Some(violation) = verdict.violations.first() {
        return Err(violation.explanation.clone());
    }
    if litmus.race_free && !verdict.races.is_empty() {
        return Err(format!("a race in a program without races: {:?}", verdict.races[0]));
    }
    Ok(litmus.reach.iter().map(|(_, predicate)| predicate(&ended)).collect())
}

#[test]
fn no_seed_shows_a_forbidden_outcome_and_some_seed_each_outcome_to_reach() {
    for litmus in catalogue() {
        let mut reached = vec![false; litmus.reach.len()];
        for seed in 0..SEEDS {
            match examine(&litmus, seed, NetworkChoice::Shuffled) {
                Ok(seen) => reached.iter_mut().zip(seen).for_each(|(reached, seen)| *reached |= seen),
                Err(wrong) => panic!("{}, seed {seed} ({}): {wrong}", litmus.name, litmus.about),
            }
        }
        for ((what, _), reached) in litmus.reach.iter().zip(reached) {
            assert!(reached, "{}: no seed below {SEEDS} reaches '{what}'", litmus.name);
        }
    }
}

#[test]
fn loss_duplication_and_reordering_beneath_the_link_change_nothing() {
    for litmus in catalogue() {
        for seed in 0..SEEDS / 10 {
            let examined = examine(&litmus, seed, NetworkChoice::Lossy);
            examined.unwrap_or_else(|wrong| panic!("{}, seed {seed}: {wrong}", litmus.name));
        }
    }
}

#[test]
fn one_seed_reproduces_one_run() {
    for litmus in catalogue() {
        let run = || Cluster::new(&litmus.program, Hlrc::new, Options::seeded(11)).run().unwrap();
        assert_eq!(run(), run());
    }
}

fn fails(program: &Program) -> Failure {
    Cluster::new(program, Hlrc::new, Options::seeded(1)).run().unwrap_err()
}

#[test]
fn different_collectives_end_the_job_with_a_sentence() {
    let program = Program::new(1, [vec![barrier()], vec![leave()]]);
    for seed in 0..20 {
        let failure = Cluster::new(&program, Hlrc::new, Options::seeded(seed)).run().unwrap_err();
        let Failure::Fatal { sentence, .. } = failure else { panic!("{failure}") };
        assert!(sentence.contains("hiroba_barrier") && sentence.contains("hiroba_finalize"), "{sentence}");
    }
}

#[test]
fn deadlocks_name_who_waits_for_whom() {
    let program = Program::new(1, [vec![lock(0), barrier(), lock(1)], vec![lock(1), barrier(), lock(0)]]);
    let Failure::Deadlock(waits) = fails(&program) else { panic!("no deadlock") };
    assert!(waits.contains("held by thread 0") && waits.contains("held by thread 1"), "{waits}");
}

#[test]
fn mistakes_of_the_program_are_misuses() {
    for script in
        [vec![unlock(1)], vec![lock(1), lock(1)], vec![load(Address::word(9, 0), 0)], vec![wait(1, 1)]]
    {
        let failure = fails(&Program::new(1, [script, vec![]]));
        assert!(matches!(failure, Failure::Misuse { thread: 0, .. }), "{failure}");
    }
}
