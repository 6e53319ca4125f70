//! Sequential consistency: every program behaves as on one machine, also one with races.

use hiroba_check::axioms::judge;
use hiroba_check::cluster::{Cluster, Ended, NetworkChoice, Options};
use hiroba_check::litmus::{catalogue, sequential as racy};
use hiroba_check::mutant::sc::Mutant;
use hiroba_check::program::Program;
use hiroba_check::random_program::{Shape, generate};
use hiroba_check::sequential::{self, Sequential};
use hiroba_protocol::WriteTracking;
use hiroba_protocol::sc::Sc;

const SEEDS: u64 = 500;

/// What is wrong with a run by either judge's word, if anything is.
fn convicted(ended: &Ended) -> Option<String> {
    let execution = ended.execution();
    if let Sequential::No { explanation } = sequential::judge(&execution) {
        return Some(explanation);
    }
    judge(&execution).unwrap().violations.first().map(|violation| violation.explanation.clone())
}

fn options(seed: u64, network: NetworkChoice) -> Options {
    Options { network, ..Options::seeded(seed, WriteTracking::Fault) }
}

#[test]
fn what_weaker_protocols_must_never_show_it_never_shows() {
    for litmus in catalogue() {
        for seed in 0..SEEDS {
            let ended =
                Cluster::new(&litmus.program, Sc::engine, options(seed, NetworkChoice::Shuffled)).run();
            let ended = ended.unwrap_or_else(|failure| panic!("{}, seed {seed}: {failure}", litmus.name));
            assert!(!(litmus.forbid)(&ended), "{}, seed {seed}: a forbidden outcome", litmus.name);
            assert_eq!(convicted(&ended), None, "{}, seed {seed}", litmus.name);
        }
    }
}

/// As many seeds as `HIROBA_CHECK_SEEDS` says, or so many.
fn explore(shape: Shape, network: NetworkChoice, seeds: u64) {
    let asked = std::env::var("HIROBA_CHECK_SEEDS").ok().map(|seeds| seeds.parse().expect("a number"));
    for seed in 0..asked.unwrap_or(seeds) {
        let ended = Cluster::new(&generate(seed, shape), Sc::engine, options(seed, network)).run();
        let ended = ended.unwrap_or_else(|failure| panic!("{shape:?}, {network:?}, seed {seed}: {failure}"));
        assert_eq!(convicted(&ended), None, "{shape:?}, {network:?}, seed {seed}");
    }
}

#[test]
fn random_programs_behave_as_on_one_machine() {
    for shape in [
        Shape { team: 1, foreign: 0, publications: false, waits: false },
        Shape { team: 2, foreign: 1, publications: false, waits: false },
        Shape { team: 1, foreign: 1, publications: true, waits: false },
        Shape { team: 2, foreign: 1, publications: false, waits: true },
    ] {
        explore(shape, NetworkChoice::Shuffled, 1000);
        if !shape.publications {
            // Over the link nobody sends to itself, as publications between threads of one node would here.
            explore(shape, NetworkChoice::Lossy, 50);
        }
    }
}

#[test]
fn programs_that_race_behave_as_on_one_machine_too() {
    for litmus in racy() {
        let mut reached = vec![false; litmus.reach.len()];
        for seed in 0..4 * SEEDS {
            let network = if seed % 20 == 0 { NetworkChoice::Lossy } else { NetworkChoice::Shuffled };
            let ended = Cluster::new(&litmus.program, Sc::engine, options(seed, network)).run();
            let ended = ended.unwrap_or_else(|failure| panic!("{}, seed {seed}: {failure}", litmus.name));
            let registers = || ended.registers.iter().map(|of| &of[..4]).collect::<Vec<_>>();
            assert!(!(litmus.forbid)(&ended), "{}, seed {seed}: {:?}", litmus.name, registers());
            assert_eq!(convicted(&ended), None, "{}, seed {seed}", litmus.name);
            reached.iter_mut().zip(&litmus.reach).for_each(|(reached, (_, seen))| *reached |= seen(&ended));
        }
        for ((what, _), reached) in litmus.reach.iter().zip(reached) {
            assert!(reached, "{}: no seed reaches '{what}'", litmus.name);
        }
    }
}

/// What is wrong with a run, if anything is.
fn wrong(
    program: &Program,
    seed: u64,
    mutant: Option<Mutant>,
    forbid: impl Fn(&Ended) -> bool,
) -> Option<String> {
    let mut options = Options { steps_max: 20_000, ..options(seed, NetworkChoice::Shuffled) };
    if let Some(mutant) = mutant {
        options.mutation = mutant.plant();
    }
    let ended = match Cluster::new(program, Sc::engine, options).run() {
        Ok(ended) => ended,
        Err(failure) => return Some(failure.to_string()),
    };
    if forbid(&ended) {
        return Some("a forbidden outcome".to_owned());
    }
    convicted(&ended)
}

fn noticed(mutant: Option<Mutant>) -> Option<String> {
    let by_litmus = racy().into_iter().chain(catalogue()).find_map(|litmus| {
        (0..200).find_map(|seed| {
            let wrong = wrong(&litmus.program, seed, mutant, &litmus.forbid)?;
            Some(format!("'{}', seed {seed}: {wrong}", litmus.name))
        })
    });
    by_litmus.or_else(|| {
        let shape = Shape { team: 1, foreign: 0, publications: false, waits: false };
        (0..300).find_map(|seed| {
            let wrong = wrong(&generate(seed, shape), seed, mutant, |_| false)?;
            Some(format!("{shape:?}, seed {seed}: {wrong}"))
        })
    })
}

#[test]
fn every_planted_bug_is_noticed() {
    assert_eq!(noticed(None), None);
    let survivors: Vec<Mutant> = Mutant::ALL
        .into_iter()
        .filter(|mutant| {
            let witness = noticed(Some(*mutant));
            println!("{mutant:?}: {}", witness.as_deref().unwrap_or("nobody"));
            witness.is_none()
        })
        .collect();
    assert!(survivors.is_empty(), "nothing notices {survivors:?}");
}
