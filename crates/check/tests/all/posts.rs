//! Messages to ports order memory, under every protocol.

use hiroba_check::axioms::judge;
use hiroba_check::cluster::{Cluster, Ended, NetworkChoice, Options};
use hiroba_check::litmus::{Litmus, posts};
use hiroba_check::mutant::posts::Mutant;
use hiroba_check::page_axioms::{self, Axiom, Rules};
use hiroba_check::sequential;
use hiroba_protocol::{Consistency, Protocol, WriteTracking};

use crate::planted::{by_litmus, each_is_noticed};

const SEEDS: u64 = 200;

fn settings() -> impl Iterator<Item = (Protocol, WriteTracking)> {
    Protocol::ALL.into_iter().flat_map(|protocol| {
        let trackings = [WriteTracking::Fault, WriteTracking::Async].into_iter();
        let is_possible = move |tracking: &WriteTracking| {
            *tracking == WriteTracking::Fault || !protocol.needs_write_faults()
        };
        trackings.filter(is_possible).map(move |tracking| (protocol, tracking))
    })
}

fn run(
    litmus: &Litmus,
    (protocol, tracking): (Protocol, WriteTracking),
    seed: u64,
    mutant: Option<Mutant>,
) -> Result<Ended, String> {
    let network = if seed.is_multiple_of(20) { NetworkChoice::Lossy } else { NetworkChoice::Shuffled };
    let mut options = Options { network, steps_max: 50_000, ..Options::seeded(seed, tracking) };
    if let Some(mutant) = mutant {
        options.mutation = mutant.plant();
    }
    let engine = |me, limits, tracking| Consistency::under(protocol, me, limits, tracking, []).telling();
    Cluster::new(&litmus.program, engine, options).run().map_err(|failure| failure.to_string())
}

/// Returns what the judges of accesses have against a run of a program without races.
fn violation(litmus: &Litmus, ended: &Ended) -> Option<String> {
    if (litmus.forbid)(ended) {
        return Some("a forbidden outcome".to_owned());
    }
    let execution = ended.execution();
    let verdict = match judge(&execution) {
        Ok(verdict) => verdict,
        Err(incomplete) => return Some(incomplete.to_string()),
    };
    if let Some(race) = verdict.races.first() {
        return Some(format!("messages order everything, but: {}", race.describe(&execution)));
    }
    if let sequential::Sequential::No { explanation } = sequential::judge_race_free(&execution) {
        return Some(explanation);
    }
    verdict.violations.first().map(|violation| violation.explanation.clone())
}

/// Returns what page facts alone show.
fn breaches(protocol: Protocol, ended: &Ended) -> Vec<(Axiom, String)> {
    let findings = page_axioms::judge(&ended.run, &Rules::of(protocol));
    findings.breaches.into_iter().map(|breach| (breach.axiom, breach.explanation)).collect()
}

#[test]
fn who_takes_a_message_sees_what_was_written_before_it_under_each_protocol() {
    for setting in settings() {
        for litmus in posts() {
            let mut reached = vec![false; litmus.reach.len()];
            for seed in 0..SEEDS {
                let what = || format!("{setting:?}, '{}', seed {seed}", litmus.name);
                let ended = run(&litmus, setting, seed, None)
                    .unwrap_or_else(|failure| panic!("{}: {failure}", what()));
                for (reached, (_, seen)) in reached.iter_mut().zip(&litmus.reach) {
                    *reached |= seen(&ended);
                }
                assert_eq!(violation(&litmus, &ended), None, "{}", what());
                assert_eq!(breaches(setting.0, &ended), [], "{}", what());
            }
            for ((what, _), reached) in litmus.reach.iter().zip(reached) {
                assert!(reached, "{setting:?}, '{}': no seed reaches '{what}'", litmus.name);
            }
        }
    }
}

#[test]
fn each_planted_bug_is_noticed_by_what_threads_saw_and_by_page_facts_alone() {
    let protocol = Protocol::Hlrc;
    let setting = (protocol, WriteTracking::Fault);
    each_is_noticed(Mutant::ALL, |mutant| {
        by_litmus(posts(), 0..SEEDS, |litmus, seed| match run(litmus, setting, seed, Some(mutant)) {
            Ok(ended) => violation(litmus, &ended),
            Err(failure) => Some(failure),
        })
    });
    // The receiver has not seen what its sender had seen, whatever it reads. Page facts show a message that
    // overtakes another as one that is out of order; the engine of ports refuses packets that do.
    let overtakes =
        |mutant: &Mutant| matches!(mutant, Mutant::MessageOvertakesWord | Mutant::OvertakeForward);
    let told_too_little = Mutant::ALL.into_iter().filter(|mutant| !overtakes(mutant));
    each_is_noticed(told_too_little, |mutant| {
        by_litmus(posts(), 0..SEEDS, |litmus, seed| {
            let ended = run(litmus, setting, seed, Some(mutant)).ok()?;
            let mut breaches = breaches(protocol, &ended).into_iter();
            breaches.find(|(axiom, _)| *axiom == Axiom::PostsTell).map(|(_, explanation)| explanation)
        })
    });
}
