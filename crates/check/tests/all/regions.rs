//! Regions under different protocols in one job: a program without races behaves as on one machine, whatever
//! protocols its regions have.

use hiroba_check::axioms::judge;
use hiroba_check::cluster::{Cluster, NetworkChoice, Options};
use hiroba_check::random_program::{Shape, generate};
use hiroba_protocol::{Consistency, Protocol, WriteTracking};

use crate::sample;

const SEEDS: u64 = 400;

#[test]
fn random_programs_are_right_under_any_mixture_of_protocols() {
    for tracking in [WriteTracking::Fault, WriteTracking::Async] {
        for first in Protocol::ALL
            .into_iter()
            .filter(|first| tracking == WriteTracking::Fault || !first.needs_write_faults())
        {
            for seed in 0..sample::of(SEEDS) {
                // The seed chooses the mixture and its order.
                let turned = Protocol::ALL.into_iter().cycle().skip(seed as usize % Protocol::ALL.len());
                let others = turned.take(Protocol::ALL.len()).map(|other| (other != first).then_some(other));
                let region_protocols = others.collect();
                let network = if seed % 2 == 0 { NetworkChoice::Shuffled } else { NetworkChoice::Lossy };
                let options = Options { network, region_protocols, ..Options::seeded(seed, tracking) };
                let shape = Shape {
                    team: 1 + (seed % 2) as u16,
                    foreign: (seed % 3 / 2) as u16,
                    publications: false,
                    waits: false,
                };
                let engine =
                    |me, limits, tracking| Consistency::under(first, me, limits, tracking, []).telling();
                let ended = Cluster::new(&generate(seed, shape), engine, options).run();
                let ended =
                    ended.unwrap_or_else(|failure| panic!("{first:?}, {tracking:?}, seed {seed}: {failure}"));
                let verdict = judge(&ended.execution()).unwrap();
                let violation = verdict.violations.first().map(|violation| &violation.explanation);
                assert_eq!(violation, None, "{first:?}, {tracking:?}, seed {seed}");
                assert!(verdict.races.is_empty(), "{first:?}, seed {seed}: the generator makes no races");
            }
        }
    }
}
