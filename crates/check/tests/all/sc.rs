//! Sequential consistency: every program behaves as on one machine, including programs with races.

use hiroba_base::NodeId;
use hiroba_check::axioms::judge;
use hiroba_check::cluster::{Cluster, Ended, NetworkChoice, Options};
use hiroba_check::engines::{engine_of, engine_under};
use hiroba_check::litmus::{catalogue, sequential as racy};
use hiroba_check::mutant::sc::Mutant;
use hiroba_check::page_axioms::{self, Axiom, Breach, Findings, Rules};
use hiroba_check::program::script::*;
use hiroba_check::program::{Address, Instruction, Program, Region};
use hiroba_check::random_program::{Shape, generate};
use hiroba_check::sequential::{self, Sequential};
use hiroba_protocol::{Protocol, WriteTracking};
use hiroba_trace::Event;
use hiroba_wire::{Message, Placement};

use crate::planted::{at_random, by_litmus, each_is_noticed};
use crate::sample;

const SEEDS: u64 = 500;

/// Returns what is wrong with a run according to either checker, if anything.
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
        for seed in 0..sample::of(SEEDS) {
            let ended = Cluster::new(
                &litmus.program,
                engine_under(Protocol::Sc),
                options(seed, NetworkChoice::Shuffled),
            )
            .run();
            let ended = ended.unwrap_or_else(|failure| panic!("{}, seed {seed}: {failure}", litmus.name));
            assert!(!(litmus.forbid)(&ended), "{}, seed {seed}: a forbidden outcome", litmus.name);
            assert_eq!(convicted(&ended), None, "{}, seed {seed}", litmus.name);
        }
    }
}

/// Explores as many seeds as `HIROBA_CHECK_SEEDS` says, else a sample of `seeds`.
fn explore(shape: Shape, network: NetworkChoice, seeds: u64) {
    let asked = std::env::var("HIROBA_CHECK_SEEDS").ok().map(|seeds| seeds.parse().expect("a number"));
    for seed in 0..asked.unwrap_or(sample::of(seeds)) {
        let ended =
            Cluster::new(&generate(seed, shape), engine_under(Protocol::Sc), options(seed, network)).run();
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
            // Over the link no node sends to itself, as publications between threads of one node would here.
            explore(shape, NetworkChoice::Lossy, 50);
        }
    }
}

#[test]
fn programs_that_race_behave_as_on_one_machine_too() {
    for litmus in racy() {
        let mut reached = vec![false; litmus.reach.len()];
        for seed in 0..4 * SEEDS {
            if sample::suffices(seed, 4 * SEEDS, &reached) {
                break;
            }
            let network = if seed % 20 == 0 { NetworkChoice::Lossy } else { NetworkChoice::Shuffled };
            let ended =
                Cluster::new(&litmus.program, engine_under(Protocol::Sc), options(seed, network)).run();
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

/// Returns what is wrong with a run, if anything.
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
    let ended = match Cluster::new(program, engine_under(Protocol::Sc), options).run() {
        Ok(ended) => ended,
        Err(failure) => return Some(failure.to_string()),
    };
    if forbid(&ended) {
        return Some("a forbidden outcome".to_owned());
    }
    convicted(&ended)
}

fn noticed(mutant: Option<Mutant>) -> Option<String> {
    let shape = Shape { team: 1, foreign: 0, publications: false, waits: false };
    by_litmus(racy().into_iter().chain(catalogue()), 0..200, |litmus, seed| {
        wrong(&litmus.program, seed, mutant, &litmus.forbid)
    })
    .or_else(|| at_random([shape], 0..300, |program, seed| wrong(program, seed, mutant, |_| false)))
}

#[test]
fn every_planted_bug_is_noticed() {
    assert_eq!(noticed(None), None);
    each_is_noticed(Mutant::ALL, |mutant| noticed(Some(mutant)));
}

/// Programs whose runs are checked by page facts.
const SHAPES: [Shape; 3] = [
    Shape { team: 1, foreign: 0, publications: false, waits: false },
    Shape { team: 2, foreign: 1, publications: false, waits: false },
    Shape { team: 1, foreign: 1, publications: true, waits: false },
];

/// Returns what the page facts of a run show; `None` if it did not end well, which other checks catch.
fn findings(program: &Program, options: Options) -> Option<Findings> {
    let ended = Cluster::new(program, engine_under(Protocol::Sc), options).run().ok()?;
    Some(page_axioms::judge(&ended.run, &Rules::of(Protocol::Sc)))
}

#[test]
fn the_faithful_engine_keeps_every_axiom_of_pages() {
    for litmus in catalogue().into_iter().chain(racy()) {
        for seed in 0..10 {
            let findings = findings(&litmus.program, options(seed, NetworkChoice::Shuffled))
                .expect("litmus programs end");
            assert_eq!(findings.breaches, [], "'{}', seed {seed}", litmus.name);
        }
    }
    for shape in SHAPES {
        let mut grants = 0;
        for seed in 0..100 {
            let findings = findings(&generate(seed, shape), options(seed, NetworkChoice::Shuffled))
                .expect("random programs end");
            assert_eq!(findings.breaches, [], "{shape:?}, seed {seed}");
            grants += findings.counts.grants;
        }
        assert!(grants > 1000, "{grants} grants judge little");
    }
    for seed in 0..10 {
        let options = options(seed, NetworkChoice::Lossy);
        let findings = findings(&generate(seed, SHAPES[0]), options).expect("random programs end");
        assert_eq!(findings.breaches, [], "seed {seed}");
    }
}

/// Returns the first breach that a mutant's page facts show.
fn breach_of(mutant: Mutant) -> Option<Breach> {
    let run = |program: &Program, seed| {
        let options =
            Options { steps_max: 20_000, mutation: mutant.plant(), ..options(seed, NetworkChoice::Shuffled) };
        findings(program, options)?.breaches.into_iter().next()
    };
    (0..100)
        .find_map(|seed| run(&generate(seed, SHAPES[0]), seed))
        .or_else(|| racy().iter().find_map(|litmus| (0..20).find_map(|seed| run(&litmus.program, seed))))
}

/// Covers the mutants that let two nodes touch a page that one of them may write. The others corrupt bytes,
/// or end in a deadlock.
#[test]
fn page_facts_alone_convict_mutants() {
    const CONVICTED: [Mutant; 13] = [
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
        Mutant::InvalidateOnlyFirst,
        Mutant::ShareOnlyFirst,
    ];
    for mutant in CONVICTED {
        let breach = breach_of(mutant).unwrap_or_else(|| panic!("page facts do not convict {mutant:?}"));
        println!("{mutant:?}: {}: {}", breach.axiom, breach.explanation);
        assert_eq!(breach.axiom, Axiom::OneWriter, "{mutant:?}");
    }
}

/// Returns how many messages of a kind all nodes have sent.
fn sent(ended: &Ended, kind: &str) -> usize {
    let records = ended.run.nodes.iter().flat_map(|node| &node.records);
    let is_of_kind = |event: &Event| match event {
        Event::Sent { kind: of, .. } => Message::KINDS[usize::from(of.0)] == kind,
        _ => false,
    };
    records.filter(|record| is_of_kind(&record.event)).count()
}

/// Three nodes in turn do `visit` to a page of node 0, under a lock.
fn visits(times: usize, visit: impl Fn(u64) -> Vec<Instruction>) -> Program {
    let code = |node: u64| {
        let turn = [vec![lock(0)], visit(node), vec![unlock(0)]].concat();
        std::iter::repeat_n(turn, times).flatten().collect::<Vec<_>>()
    };
    let regions = vec![Region::new(0, 1, 1, Placement::On(NodeId(0)))];
    Program::new(0, (0..3).map(code)).with_regions(regions)
}

#[test]
fn pages_that_migrate_are_requested_once() {
    let word = Address::word(0, 5);
    let counts = |program: &Program, seed| {
        let engine = |me, limits, tracking| engine_of(Protocol::Sc, me, limits, tracking).telling();
        let ended = Cluster::new(program, engine, options(seed, NetworkChoice::Shuffled)).run();
        let ended = ended.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        assert_eq!(convicted(&ended), None, "seed {seed}");
        (sent(&ended, "CopiesRequest"), sent(&ended, "OwnershipRequest"))
    };
    for seed in 0..20 {
        let increments = visits(100, |_| vec![load(word, 0), add(0, 1), store_from(word, 0)]);
        let (copies, pages) = counts(&increments, seed);
        assert!(copies * 4 < pages, "seed {seed}: {copies} requests for copies, {pages} for the page");
        // Two nodes only load: for them the page does not migrate.
        let looks = visits(100, |node| {
            let load = vec![load(word, 0), add_register(1, 0)];
            if node == 0 { [load, vec![store_from(word, 1)]].concat() } else { load }
        });
        let (copies, pages) = counts(&looks, seed);
        assert!(pages <= copies, "seed {seed}: {copies} requests for copies, {pages} for the page");
    }
}
