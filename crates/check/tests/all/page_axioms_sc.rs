//! The judge of pages under sequential consistency: the faithful engine is never convicted, and mutants are by page facts alone.

use hiroba_check::cluster::{Cluster, NetworkChoice, Options};
use hiroba_check::engines::engine_of;
use hiroba_check::litmus::{catalogue, sequential as racy};
use hiroba_check::mutant::sc::Mutant;
use hiroba_check::page_axioms::{Axiom, Breach, Findings, Rules, judge};
use hiroba_check::program::Program;
use hiroba_check::random_program::{Shape, generate};
use hiroba_protocol::{Protocol, WriteTracking};

const SHAPES: [Shape; 3] = [
    Shape { team: 1, foreign: 0, publications: false, waits: false },
    Shape { team: 2, foreign: 1, publications: false, waits: false },
    Shape { team: 1, foreign: 1, publications: true, waits: false },
];

/// What the page facts of a run show; `None` when it did not end well, so that others notice it.
fn findings(program: &Program, options: Options) -> Option<Findings> {
    let engine = |me, limits, tracking| engine_of(Protocol::Sc, me, limits, tracking);
    let ended = Cluster::new(program, engine, options).run().ok()?;
    Some(judge(&ended.run, &Rules::of(Protocol::Sc)))
}

fn options(seed: u64) -> Options {
    Options::seeded(seed, WriteTracking::Fault)
}

#[test]
fn the_faithful_engine_keeps_every_axiom() {
    for litmus in catalogue().into_iter().chain(racy()) {
        for seed in 0..10 {
            let findings = findings(&litmus.program, options(seed)).expect("litmus programs end");
            assert_eq!(findings.breaches, [], "'{}', seed {seed}", litmus.name);
        }
    }
    for shape in SHAPES {
        let mut grants = 0;
        for seed in 0..100 {
            let findings = findings(&generate(seed, shape), options(seed)).expect("random programs end");
            assert_eq!(findings.breaches, [], "{shape:?}, seed {seed}");
            grants += findings.grants;
        }
        assert!(grants > 1000, "{grants} grants judge little");
    }
    for seed in 0..10 {
        let options = Options { network: NetworkChoice::Lossy, ..options(seed) };
        let findings = findings(&generate(seed, SHAPES[0]), options).expect("random programs end");
        assert_eq!(findings.breaches, [], "seed {seed}");
    }
}

/// The first breach that a mutant's page facts show.
fn convicted(mutant: Mutant) -> Option<Breach> {
    let run = |program: &Program, seed| {
        let options = Options { steps_max: 20_000, mutation: mutant.plant(), ..options(seed) };
        findings(program, options)?.breaches.into_iter().next()
    };
    (0..100)
        .find_map(|seed| run(&generate(seed, SHAPES[0]), seed))
        .or_else(|| racy().iter().find_map(|litmus| (0..20).find_map(|seed| run(&litmus.program, seed))))
}

/// The mutants that let two nodes touch what one of them may write. The others spoil bytes, or end in a deadlock.
#[test]
fn page_facts_alone_convict_mutants() {
    const CONVICTED: [Mutant; 11] = [
        Mutant::KeepCopy,
        Mutant::GiveUpLate,
        Mutant::KeepWritingWhenSharing,
        Mutant::KeepPageWhenHandingOver,
        Mutant::ShareBeforeProtecting,
        Mutant::HandOverBeforeProtecting,
        Mutant::ForgetCopyset,
        Mutant::ForgetOneReader,
        Mutant::SkipInvalidation,
        Mutant::WriteBeforeAnswers,
        Mutant::WritableCopy,
    ];
    for mutant in CONVICTED {
        let breach = convicted(mutant).unwrap_or_else(|| panic!("page facts do not convict {mutant:?}"));
        println!("{mutant:?}: {}: {}", breach.axiom, breach.explanation);
        assert_eq!(breach.axiom, Axiom::OneWriter, "{mutant:?}");
    }
}
