//! Automatic update keeps the promises of home-based release consistency, with diffs that are sent at any
//! time.

use hiroba_check::axioms::judge;
use hiroba_check::cluster::{Cluster, Ended, NetworkChoice, Options};
use hiroba_check::engines::aurc;
use hiroba_check::litmus::{Litmus, catalogue, early};
use hiroba_check::mutant::aurc::Mutant;
use hiroba_check::page_axioms::{self, Rules};
use hiroba_check::program::Program;
use hiroba_check::random_program::{Shape, generate};
use hiroba_check::sequential::{self, Sequential};
use hiroba_protocol::WriteTracking;

use crate::planted::{at_random, by_litmus, each_is_noticed, shown};
use crate::sample;

const SEEDS: u64 = 200;
const STEPS_MAX: u64 = 40_000;

/// How writes are tracked, and whether nodes read each other's frames.
const WAYS: [(WriteTracking, bool); 4] = [
    (WriteTracking::Fault, false),
    (WriteTracking::Async, false),
    (WriteTracking::Fault, true),
    (WriteTracking::Async, true),
];

const SHAPES: [Shape; 4] = [
    Shape { team: 1, foreign: 0, publications: false, waits: false },
    Shape { team: 2, foreign: 0, publications: false, waits: false },
    Shape { team: 1, foreign: 2, publications: false, waits: false },
    Shape { team: 1, foreign: 2, publications: true, waits: false },
];

/// Runs a program, and returns what its loads show to be wrong.
fn run(
    program: &Program,
    seed: u64,
    (tracking, one_sided): (WriteTracking, bool),
    network: NetworkChoice,
    mutant: Option<Mutant>,
) -> Result<Ended, String> {
    let mut options = Options { network, one_sided, steps_max: STEPS_MAX, ..Options::seeded(seed, tracking) };
    if let Some(mutant) = mutant {
        options.mutation = mutant.plant();
    }
    let ended =
        Cluster::new(program, aurc(one_sided), options).run().map_err(|failure| failure.to_string())?;
    let verdict = judge(&ended.execution()).map_err(|error| error.to_string())?;
    if let Some(violation) = verdict.violations.first() {
        return Err(violation.explanation.clone());
    }
    Ok(ended)
}

/// Returns what page facts show to be wrong with a run.
fn breach(ended: &Ended, one_sided: bool) -> Option<String> {
    let findings = page_axioms::judge(&ended.run, &Rules::aurc(one_sided));
    findings.breaches.first().map(|breach| format!("{}: {}", breach.axiom, breach.explanation))
}

fn programs() -> Vec<Litmus> {
    early().into_iter().chain(catalogue()).collect()
}

fn explore(way: (WriteTracking, bool), programs: Vec<Litmus>, seeds: u64) {
    for litmus in programs {
        let mut reached = vec![false; litmus.reach.len()];
        for seed in 0..seeds {
            if sample::suffices(seed, seeds, &reached) {
                break;
            }
            let network = if seed % 20 == 19 { NetworkChoice::Lossy } else { NetworkChoice::Shuffled };
            let wrong = |wrong: &str| -> ! {
                panic!("{}, {way:?}, seed {seed} ({}): {wrong}", litmus.name, litmus.about)
            };
            let ended = run(&litmus.program, seed, way, network, None).unwrap_or_else(|error| wrong(&error));
            if (litmus.forbid)(&ended) {
                let registers: Vec<_> = ended.registers.iter().map(|registers| &registers[..10]).collect();
                wrong(&format!("a forbidden outcome: {registers:?}"));
            }
            if let Some(breach) = breach(&ended, way.1) {
                wrong(&breach);
            }
            reached.iter_mut().zip(&litmus.reach).for_each(|(reached, (_, seen))| *reached |= seen(&ended));
        }
        for ((what, _), reached) in litmus.reach.iter().zip(reached) {
            assert!(reached, "{}, {way:?}: no seed below {seeds} reaches '{what}'", litmus.name);
        }
    }
}

#[test]
fn litmus_programs_show_what_they_may_and_nothing_else_where_writes_fault() {
    explore(WAYS[0], programs(), 2 * SEEDS);
}

#[test]
fn litmus_programs_show_what_they_may_and_nothing_else_where_writes_are_noted() {
    explore(WAYS[1], programs(), 2 * SEEDS);
}

#[test]
fn the_same_where_nodes_read_each_others_frames_and_writes_fault() {
    explore(WAYS[2], programs(), 2 * SEEDS);
}

#[test]
fn the_same_where_nodes_read_each_others_frames_and_writes_are_noted() {
    explore(WAYS[3], programs(), 2 * SEEDS);
}

/// Returns as many seeds as `HIROBA_CHECK_SEEDS` says, else `count`, beginning with `HIROBA_CHECK_FIRST`.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let asked = |name: &str| std::env::var(name).ok().map(|value| value.parse().expect("a number"));
    let first = asked("HIROBA_CHECK_FIRST").unwrap_or(0);
    first..first + asked("HIROBA_CHECK_SEEDS").unwrap_or(count)
}

fn examine(seed: u64) -> Result<(), String> {
    let (way, shape) = (WAYS[seed as usize % 4], SHAPES[seed as usize / 4 % 4]);
    // The lossy network carries no messages of a node to itself, such as publications between its threads.
    let is_lossy = seed.is_multiple_of(16) && !shape.publications;
    let network = if is_lossy { NetworkChoice::Lossy } else { NetworkChoice::Shuffled };
    let ended = run(&generate(seed, shape), seed, way, network, None)?;
    breach(&ended, way.1).map_or(Ok(()), Err)?;
    if seed.is_multiple_of(8)
        && let Sequential::No { explanation } = sequential::judge_race_free(&ended.execution())
    {
        return Err(explanation);
    }
    Ok(())
}

#[test]
fn random_programs_behave_as_on_one_machine() {
    for seed in seeds(sample::of(4000)) {
        examine(seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// Returns what catches the bug first, preferably a litmus program.
fn noticed(way: (WriteTracking, bool), mutant: Option<Mutant>) -> Option<String> {
    let run = |program: &Program, seed| run(program, seed, way, NetworkChoice::Shuffled, mutant);
    by_litmus(programs(), 0..SEEDS / 2, |litmus, seed| shown(litmus, run(&litmus.program, seed)))
        .or_else(|| at_random(SHAPES, 0..SEEDS, |program, seed| run(program, seed).err()))
}

fn every_planted_bug_is_noticed(way: (WriteTracking, bool)) {
    let concerned = Mutant::ALL.into_iter().filter(|mutant| mutant.concerns(way.0, way.1));
    each_is_noticed(concerned, |mutant| noticed(way, Some(mutant)));
}

#[test]
fn every_planted_bug_is_noticed_where_writes_fault() {
    every_planted_bug_is_noticed(WAYS[0]);
}

#[test]
fn every_planted_bug_is_noticed_where_writes_are_noted() {
    every_planted_bug_is_noticed(WAYS[1]);
}

#[test]
fn every_planted_bug_is_noticed_where_nodes_read_each_others_frames_and_writes_fault() {
    every_planted_bug_is_noticed(WAYS[2]);
}

#[test]
fn every_planted_bug_is_noticed_where_nodes_read_each_others_frames_and_writes_are_noted() {
    every_planted_bug_is_noticed(WAYS[3]);
}
