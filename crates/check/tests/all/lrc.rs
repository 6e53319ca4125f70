//! Lazy release consistency without homes: every program without races behaves as on one machine.

use hiroba_base::NodeId;
use hiroba_check::axioms::judge;
use hiroba_check::cluster::{Cluster, Ended, NetworkChoice, Options};
use hiroba_check::litmus::catalogue;
use hiroba_check::mutant::lrc::Mutant;
use hiroba_check::page_axioms::{self, Axiom, Rules};
use hiroba_check::program::Program;
use hiroba_check::random_program::{Shape, generate};
use hiroba_check::sequential::{self, Sequential};
use hiroba_protocol::lrc::Lrc;
use hiroba_protocol::{Consistency, WriteTracking};
use hiroba_wire::Limits;

use crate::planted::{at_random, by_litmus, each_is_noticed, shown};
use crate::sample;

const SEEDS: u64 = 500;

/// Returns engines that collect when they keep more than `kept_bytes_max` bytes (0: whenever an interval
/// ends), and that meet along a tree in which a node has at most the given number of children.
fn engines(
    kept_bytes_max: Option<u64>,
    below_max: u16,
) -> impl Fn(NodeId, Limits, WriteTracking) -> Consistency {
    move |me, limits, tracking| {
        let lrc = kept_bytes_max.map_or_else(Lrc::new, |bytes| Lrc::new().collecting_beyond(bytes));
        Consistency::new(me, limits, tracking, Box::new(lrc)).telling().meeting_below(below_max)
    }
}

/// Returns what is wrong with a run according to any checker, if anything.
fn convicted(ended: &Ended, race_free: bool) -> Option<String> {
    let execution = ended.execution();
    let verdict = judge(&execution).unwrap();
    if let Some(violation) = verdict.violations.first() {
        return Some(violation.explanation.clone());
    }
    if race_free && let Some(race) = verdict.races.first() {
        return Some(race.describe(&execution));
    }
    let findings = page_axioms::judge(&ended.run, &Rules::lrc());
    findings.breaches.first().map(|breach| format!("{}: {}", breach.axiom, breach.explanation))
}

/// Chooses to collect as soon as possible, sometimes, or never.
fn kept_bytes_max(seed: u64) -> Option<u64> {
    [None, Some(0), Some(600), Some(6000)][(seed % 4) as usize]
}

/// Returns a run of the program under this seed, or what is wrong with it.
fn examine(
    program: &Program,
    seed: u64,
    network: NetworkChoice,
    race_free: bool,
    mutant: Option<Mutant>,
) -> Result<Ended, String> {
    let make = engines(kept_bytes_max(seed), [1, 2, 4][(seed % 3) as usize]);
    let mut options = Options { network, ..Options::seeded(seed, WriteTracking::Fault) };
    if let Some(mutant) = mutant {
        (options.mutation, options.steps_max) = (mutant.plant(), 20_000);
    }
    let ended = Cluster::new(program, make, options).run().map_err(|failure| failure.to_string())?;
    convicted(&ended, race_free).map_or(Ok(ended), Err)
}

#[test]
fn no_seed_shows_a_forbidden_outcome_and_some_seed_each_outcome_to_reach() {
    for litmus in catalogue() {
        let mut reached = vec![false; litmus.reach.len()];
        for seed in 0..SEEDS {
            if sample::suffices(seed, SEEDS, &reached) {
                break;
            }
            let network = if seed % 20 == 0 { NetworkChoice::Lossy } else { NetworkChoice::Shuffled };
            let ended = examine(&litmus.program, seed, network, litmus.race_free, None);
            let ended = ended.unwrap_or_else(|wrong| panic!("{}, seed {seed}: {wrong}", litmus.name));
            assert!(!(litmus.forbid)(&ended), "{}, seed {seed}: a forbidden outcome", litmus.name);
            reached.iter_mut().zip(&litmus.reach).for_each(|(reached, (_, seen))| *reached |= seen(&ended));
        }
        for ((what, _), reached) in litmus.reach.iter().zip(reached) {
            assert!(reached, "{}: no seed below {SEEDS} reaches '{what}'", litmus.name);
        }
    }
}

/// Explores as many seeds as `HIROBA_CHECK_SEEDS` says, else a sample of a thousand, and some over the
/// lossy link.
fn explore(shape: Shape) {
    let asked = std::env::var("HIROBA_CHECK_SEEDS").ok().map(|seeds| seeds.parse().expect("a number"));
    let seeds: u64 = asked.unwrap_or(sample::of(1000));
    // Over the link no node sends to itself, as publications between threads of one node would here.
    let lossy = if shape.publications { 0 } else { seeds / 20 };
    for (network, seeds) in [(NetworkChoice::Shuffled, seeds), (NetworkChoice::Lossy, lossy)] {
        for seed in 0..seeds {
            let ended = examine(&generate(seed, shape), seed, network, true, None);
            let ended = ended.unwrap_or_else(|wrong| panic!("{shape:?}, {network:?}, seed {seed}: {wrong}"));
            if seed % 8 == 0
                && let Sequential::No { explanation } = sequential::judge_race_free(&ended.execution())
            {
                panic!("{shape:?}, {network:?}, seed {seed}: {explanation}");
            }
        }
    }
}

#[test]
fn random_programs_behave_as_on_one_machine() {
    explore(Shape { team: 1, foreign: 0, publications: false, waits: false });
    explore(Shape { team: 2, foreign: 1, publications: false, waits: false });
    explore(Shape { team: 2, foreign: 1, publications: false, waits: true });
}

#[test]
fn random_programs_that_publish_behave_as_on_one_machine() {
    explore(Shape { team: 1, foreign: 1, publications: true, waits: false });
    explore(Shape { team: 2, foreign: 2, publications: true, waits: false });
}

fn noticed(mutant: Option<Mutant>) -> Option<String> {
    let run = |program: &Program, seed, race_free| {
        examine(program, seed, NetworkChoice::Shuffled, race_free, mutant)
    };
    let shape = Shape { team: 2, foreign: 1, publications: false, waits: false };
    by_litmus(catalogue(), 0..100, |litmus, seed| shown(litmus, run(&litmus.program, seed, litmus.race_free)))
        .or_else(|| at_random([shape], 0..400, |program, seed| run(program, seed, true).err()))
}

#[test]
fn every_planted_bug_is_noticed() {
    assert_eq!(noticed(None), None);
    each_is_noticed(Mutant::ALL, |mutant| noticed(Some(mutant)));
}

/// Covers bugs that corrupt no byte of the program in the runs in which page facts alone catch them, or do so
/// only later.
#[test]
fn page_facts_alone_convict_mutants() {
    let convicted = |mutant: Mutant| {
        (0..200).find_map(|seed| {
            let shape = Shape { team: 2, foreign: 1, publications: false, waits: false };
            let options = Options {
                mutation: mutant.plant(),
                steps_max: 20_000,
                ..Options::seeded(seed, WriteTracking::Fault)
            };
            let ended =
                Cluster::new(&generate(seed, shape), engines(kept_bytes_max(seed), 4), options).run().ok()?;
            page_axioms::judge(&ended.run, &Rules::lrc()).breaches.into_iter().next()
        })
    };
    for (mutant, axiom) in [
        (Mutant::DropNoticeOfGrant, Axiom::Visibility),
        (Mutant::DropNoticeOfBarrier, Axiom::Visibility),
        (Mutant::LoseInvalidation, Axiom::Visibility),
        (Mutant::ClaimTooMuch, Axiom::Claims),
    ] {
        assert_eq!(convicted(mutant).map(|breach| breach.axiom), Some(axiom), "{mutant:?}");
    }
}
