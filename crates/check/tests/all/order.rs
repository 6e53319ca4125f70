//! Pages under sequential consistency carry their writers' knowledge to pages of other protocols.

use hiroba_check::axioms::judge;
use hiroba_check::cluster::{Cluster, Ended, NetworkChoice, Options};
use hiroba_check::litmus::{Litmus, order};
use hiroba_check::mutant::order::Mutant;
use hiroba_protocol::{Consistency, Protocol, WriteTracking};

use crate::planted::{by_litmus, each_is_noticed};
use crate::sample;

const SEEDS: u64 = 500;

/// The protocol of the data, and whether it or that of the flags is the job's.
#[derive(Clone, Copy, Debug)]
struct Division {
    data: Protocol,
    data_first: bool,
    tracking: WriteTracking,
}

fn divisions() -> impl Iterator<Item = Division> {
    let others = Protocol::ALL.into_iter().filter(|data| *data != Protocol::Sc);
    others.flat_map(|data| {
        [(true, WriteTracking::Fault), (false, WriteTracking::Fault), (true, WriteTracking::Async)]
            .into_iter()
            .filter(move |(_, tracking)| *tracking == WriteTracking::Fault || !data.needs_write_faults())
            .map(move |(data_first, tracking)| Division { data, data_first, tracking })
    })
}

fn run(litmus: &Litmus, division: Division, seed: u64, mutant: Option<Mutant>) -> Result<Ended, String> {
    let Division { data, data_first, tracking } = division;
    let (first, region_protocols) = if data_first {
        (data, vec![None, Some(Protocol::Sc)])
    } else {
        (Protocol::Sc, vec![Some(data), None])
    };
    let network = if seed.is_multiple_of(20) { NetworkChoice::Lossy } else { NetworkChoice::Shuffled };
    let mut options =
        Options { network, region_protocols, steps_max: 20_000, ..Options::seeded(seed, tracking) };
    if let Some(mutant) = mutant {
        options.mutation = mutant.plant();
    }
    let engine = |me, limits, tracking| Consistency::under(first, me, limits, tracking, []).telling();
    Cluster::new(&litmus.program, engine, options).run().map_err(|failure| failure.to_string())
}

/// Returns what is wrong with a run, if anything.
fn wrong(litmus: &Litmus, division: Division, seed: u64, mutant: Option<Mutant>) -> Option<String> {
    let ended = match run(litmus, division, seed, mutant) {
        Ok(ended) => ended,
        Err(failure) => return Some(failure),
    };
    if (litmus.forbid)(&ended) {
        return Some("a forbidden outcome".to_owned());
    }
    judge(&ended.execution()).unwrap().violations.first().map(|violation| violation.explanation.clone())
}

#[test]
fn who_sees_the_flag_sees_the_data_whatever_keeps_the_data() {
    for division in divisions() {
        for litmus in order() {
            let mut reached = vec![false; litmus.reach.len()];
            for seed in 0..SEEDS {
                if sample::suffices(seed, SEEDS, &reached) {
                    break;
                }
                let ended = run(&litmus, division, seed, None).unwrap_or_else(|failure| {
                    panic!("{division:?}, {}, seed {seed}: {failure}", litmus.name)
                });
                reached
                    .iter_mut()
                    .zip(&litmus.reach)
                    .for_each(|(reached, (_, seen))| *reached |= seen(&ended));
                let outcome = (litmus.forbid)(&ended);
                assert!(!outcome, "{division:?}, {}, seed {seed}: a forbidden outcome", litmus.name);
                let verdict = judge(&ended.execution()).unwrap();
                let violation = verdict.violations.first().map(|violation| &violation.explanation);
                assert_eq!(violation, None, "{division:?}, {}, seed {seed}", litmus.name);
            }
            for ((what, _), reached) in litmus.reach.iter().zip(reached) {
                assert!(reached, "{division:?}, {}: no seed reaches '{what}'", litmus.name);
            }
        }
    }
}

#[test]
fn each_planted_bug_is_noticed() {
    let division = Division { data: Protocol::Hlrc, data_first: true, tracking: WriteTracking::Fault };
    let noticed = |mutant| by_litmus(order(), 0..SEEDS, |litmus, seed| wrong(litmus, division, seed, mutant));
    each_is_noticed(Mutant::ALL, |mutant| noticed(Some(mutant)));
}
