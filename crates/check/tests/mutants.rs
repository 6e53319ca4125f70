//! Each planted bug must be noticed.

use hiroba_check::axioms::judge;
use hiroba_check::cluster::{Cluster, Options};
use hiroba_check::litmus::catalogue;
use hiroba_check::mutant::Mutant;
use hiroba_check::program::Program;
use hiroba_check::random_program::{Shape, generate};
use hiroba_protocol::hlrc::Hlrc;

const LITMUS_SEEDS: u64 = 100;
const RANDOM_SEEDS: u64 = 300;
const STEPS_MAX: u64 = 20_000;

fn run(program: &Program, seed: u64, mutant: Option<Mutant>) -> Result<hiroba_check::cluster::Ended, String> {
    let mut options = Options { steps_max: STEPS_MAX, ..Options::seeded(seed) };
    if let Some(mutant) = mutant {
        options.mutation = mutant.plant();
    }
    let ended = Cluster::new(program, Hlrc::new, options).run().map_err(|failure| failure.to_string())?;
    let verdict = judge(&ended.execution).map_err(|error| error.to_string())?;
    match verdict.violations.first() {
        Some(violation) => Err(violation.explanation.clone()),
        None => Ok(ended),
    }
}

/// Who noticed, and what.
fn noticed(mutant: Option<Mutant>) -> Vec<String> {
    let mut witnesses = Vec::new();
    for litmus in catalogue() {
        let seen = (0..LITMUS_SEEDS).find_map(|seed| match run(&litmus.program, seed, mutant) {
            Err(wrong) => Some(format!("'{}', seed {seed}: {wrong}", litmus.name)),
            Ok(ended) => {
                (litmus.forbid)(&ended).then(|| format!("'{}', seed {seed}: forbidden", litmus.name))
            }
        });
        witnesses.extend(seen);
    }
    for threads_per_node in [1, 2] {
        let shape = Shape { threads_per_node, publications: false };
        let random = (0..RANDOM_SEEDS).find_map(|seed| {
            let wrong = run(&generate(seed, shape), seed, mutant).err()?;
            Some(format!("random, {threads_per_node} threads a node, seed {seed}: {wrong}"))
        });
        witnesses.extend(random);
    }
    witnesses
}

#[test]
fn every_mutant_is_noticed() {
    let survivors: Vec<Mutant> = Mutant::ALL
        .into_iter()
        .filter(|mutant| {
            let witnesses = noticed(Some(*mutant));
            println!(
                "{mutant:?}: {} witnesses; {}",
                witnesses.len(),
                witnesses.first().map_or("", |first| first)
            );
            witnesses.is_empty()
        })
        .collect();
    assert!(survivors.is_empty(), "nothing notices {survivors:?}");
}

#[test]
fn the_faithful_engine_passes_the_same_seeds() {
    assert_eq!(noticed(None), Vec::<String>::new());
}
