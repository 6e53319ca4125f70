//! Each planted bug must be noticed, however writes are tracked.

use hiroba_check::axioms::judge;
use hiroba_check::cluster::{Cluster, Ended, Options, hlrc};
use hiroba_check::litmus::catalogue;
use hiroba_check::mutant::Mutant;
use hiroba_check::program::Program;
use hiroba_check::random_program::{Shape, generate};
use hiroba_protocol::WriteTracking;

const LITMUS_SEEDS: u64 = 100;
const RANDOM_SEEDS: u64 = 300;
const STEPS_MAX: u64 = 20_000;

const SHAPES: [Shape; 4] = [
    Shape { team: 1, foreign: 0, publications: false, waits: false },
    Shape { team: 2, foreign: 0, publications: false, waits: false },
    Shape { team: 1, foreign: 2, publications: false, waits: false },
    Shape { team: 1, foreign: 2, publications: true, waits: false },
];

fn run(
    program: &Program,
    seed: u64,
    tracking: WriteTracking,
    one_sided: bool,
    mutant: Option<Mutant>,
) -> Result<Ended, String> {
    let mut options = Options { steps_max: STEPS_MAX, one_sided, ..Options::seeded(seed, tracking) };
    if let Some(mutant) = mutant {
        options.mutation = mutant.plant();
    }
    let ended = Cluster::new(program, hlrc(one_sided), options).run();
    let ended = ended.map_err(|failure| failure.to_string())?;
    let verdict = judge(&ended.execution()).map_err(|error| error.to_string())?;
    match verdict.violations.first() {
        Some(violation) => Err(violation.explanation.clone()),
        None => Ok(ended),
    }
}

/// Who notices first, and what: a litmus program for preference.
fn noticed(tracking: WriteTracking, one_sided: bool, mutant: Option<Mutant>) -> Option<String> {
    let by_litmus = catalogue().into_iter().find_map(|litmus| {
        (0..LITMUS_SEEDS).find_map(|seed| match run(&litmus.program, seed, tracking, one_sided, mutant) {
            Err(wrong) => Some(format!("'{}', seed {seed}: {wrong}", litmus.name)),
            Ok(ended) => {
                (litmus.forbid)(&ended).then(|| format!("'{}', seed {seed}: forbidden", litmus.name))
            }
        })
    });
    by_litmus.or_else(|| {
        SHAPES.into_iter().find_map(|shape| {
            (0..RANDOM_SEEDS).find_map(|seed| {
                let wrong = run(&generate(seed, shape), seed, tracking, one_sided, mutant).err()?;
                Some(format!("{shape:?}, seed {seed}: {wrong}"))
            })
        })
    })
}

fn every_mutant_is_noticed(tracking: WriteTracking, one_sided: bool) {
    let concerned = Mutant::ALL.into_iter().filter(|mutant| mutant.concerns(tracking));
    let concerned = concerned.filter(|mutant| mutant.is_one_sided() == one_sided);
    let survivors: Vec<Mutant> = concerned
        .filter(|mutant| {
            let witness = noticed(tracking, one_sided, Some(*mutant));
            println!("{mutant:?}: {}", witness.as_deref().unwrap_or("nobody"));
            witness.is_none()
        })
        .collect();
    assert!(survivors.is_empty(), "nothing notices {survivors:?}");
}

#[test]
fn every_mutant_is_noticed_where_writes_fault() {
    every_mutant_is_noticed(WriteTracking::Fault, false);
}

#[test]
fn every_mutant_is_noticed_where_writes_are_noted() {
    every_mutant_is_noticed(WriteTracking::Async, false);
}

#[test]
fn every_mutant_of_one_sided_reading_is_noticed_where_writes_fault() {
    every_mutant_is_noticed(WriteTracking::Fault, true);
}

#[test]
fn every_mutant_of_one_sided_reading_is_noticed_where_writes_are_noted() {
    every_mutant_is_noticed(WriteTracking::Async, true);
}

#[test]
fn the_faithful_engine_passes_the_same_seeds() {
    for tracking in [WriteTracking::Fault, WriteTracking::Async] {
        assert_eq!(noticed(tracking, false, None), None);
        assert_eq!(noticed(tracking, true, None), None);
    }
}
