//! Locks that threads take and give back without the engine (`protocol/src/lease.rs`).

use std::sync::Arc;

use hiroba_base::NodeId;
use hiroba_check::axioms::judge;
use hiroba_check::cluster::{Cluster, Ended, NetworkChoice, Options};
use hiroba_check::litmus::{catalogue, leases};
use hiroba_check::mutant::leases::Mutant;
use hiroba_check::program::Program;
use hiroba_check::random_program::{Shape, generate};
use hiroba_protocol::lease::Leases;
use hiroba_protocol::{Consistency, Protocol, WriteTracking};
use hiroba_wire::Limits;

use crate::planted::{by_litmus, each_is_noticed, shown};
use crate::sample;

const SEEDS: u64 = 500;
/// The protocols under which an unlock may leave the interval open. Under the others nothing is leased.
const LAZY: [Protocol; 3] = [Protocol::Hlrc, Protocol::Lrc, Protocol::Aurc];

/// Returns a run of the program, or what is wrong with it.
fn examine(
    program: &Program,
    protocol: Protocol,
    seed: u64,
    race_free: bool,
    mutant: Option<Mutant>,
) -> Result<Ended, String> {
    let network = if seed.is_multiple_of(20) { NetworkChoice::Lossy } else { NetworkChoice::Shuffled };
    let mut options = Options { network, ..Options::seeded(seed, WriteTracking::Fault) };
    if let Some(mutant) = mutant {
        (options.mutation, options.steps_max) = (mutant.plant(), 20_000);
    }
    let engine = |me: NodeId, limits: Limits, tracking| {
        Consistency::under(protocol, me, limits, tracking, []).telling().leasing(Arc::new(Leases::default()))
    };
    let ended = Cluster::new(program, engine, options).run().map_err(|failure| failure.to_string())?;
    let execution = ended.execution();
    let verdict = judge(&execution).unwrap();
    if let Some(violation) = verdict.violations.first() {
        return Err(violation.explanation.clone());
    }
    match verdict.races.first() {
        Some(race) if race_free => Err(race.describe(&execution)),
        _ => Ok(ended),
    }
}

#[test]
fn a_lock_leaves_with_what_its_holds_have_stored() {
    for protocol in LAZY {
        for litmus in leases() {
            let mut reached = vec![false; litmus.reach.len()];
            for seed in 0..SEEDS {
                if sample::suffices(seed, SEEDS, &reached) {
                    break;
                }
                let what = || format!("{protocol:?}, '{}', seed {seed}", litmus.name);
                let ended = examine(&litmus.program, protocol, seed, litmus.race_free, None);
                let ended = ended.unwrap_or_else(|wrong| panic!("{}: {wrong}", what()));
                assert!(!(litmus.forbid)(&ended), "{}: a forbidden outcome", what());
                reached
                    .iter_mut()
                    .zip(&litmus.reach)
                    .for_each(|(reached, (_, seen))| *reached |= seen(&ended));
            }
            for ((what, _), reached) in litmus.reach.iter().zip(reached) {
                assert!(reached, "{protocol:?}, '{}': no seed reaches '{what}'", litmus.name);
            }
        }
    }
}

#[test]
fn programs_with_leases_behave_as_those_without() {
    for protocol in LAZY {
        for litmus in catalogue() {
            for seed in 0..sample::of(40) {
                let ended = examine(&litmus.program, protocol, seed, litmus.race_free, None);
                let wrong = shown(&litmus, ended);
                assert_eq!(wrong, None, "{protocol:?}, '{}', seed {seed}", litmus.name);
            }
        }
        for (team, foreign, waits) in [(1, 0, false), (2, 1, true)] {
            let shape = Shape { team, foreign, publications: false, waits };
            for seed in 0..sample::of(400) {
                let ended = examine(&generate(seed, shape), protocol, seed, true, None);
                ended.unwrap_or_else(|wrong| panic!("{protocol:?}, {shape:?}, seed {seed}: {wrong}"));
            }
        }
    }
}

#[test]
fn each_planted_bug_is_noticed() {
    let noticed = |mutant| {
        by_litmus(leases(), 0..SEEDS, |litmus, seed| {
            shown(litmus, examine(&litmus.program, Protocol::Hlrc, seed, litmus.race_free, mutant))
        })
    };
    assert_eq!(noticed(None), None);
    each_is_noticed(Mutant::ALL, |mutant| noticed(Some(mutant)));
}
