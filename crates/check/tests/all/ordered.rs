//! Ordered fetches (`protocol/src/hlrc/ordered.rs`): whoever sees a store sees all that happened before it.

use hiroba_base::{NodeId, RngExt, seeded};
use hiroba_check::axioms::judge;
use hiroba_check::cluster::{Cluster, Ended, NetworkChoice, Options};
use hiroba_check::litmus::{Litmus, ordered};
use hiroba_check::mutant::ordered::Mutant;
use hiroba_check::program::script::*;
use hiroba_check::program::{Address, Instruction, Program, Region, Script};
use hiroba_check::random_program::Shape;
use hiroba_check::sequential::{Sequential, judge_causal};
use hiroba_protocol::{Consistency, Engine, Protocol, WriteTracking};
use hiroba_wire::Placement;

use crate::planted::{at_random, by_litmus, each_is_noticed};
use crate::sample;

const SEEDS: u64 = 500;
const RANDOM_SEEDS: u64 = 2000;
/// Random programs in which each planted bug shows at least once.
const NOTICED_SEEDS: u64 = 10_000;

const SHAPES: [Shape; 2] = [
    Shape { team: 2, foreign: 0, publications: false, waits: false },
    Shape { team: 1, foreign: 2, publications: false, waits: true },
];

fn run(program: &Program, seed: u64, mutant: Option<Mutant>) -> Result<Ended, String> {
    let network = if seed.is_multiple_of(20) { NetworkChoice::Lossy } else { NetworkChoice::Shuffled };
    let mut options = Options { network, steps_max: 50_000, ..Options::seeded(seed, WriteTracking::Fault) };
    if let Some(mutant) = mutant {
        options.mutation = mutant.plant();
    }
    let engine = |me: NodeId, limits, tracking| {
        let mut engine = Consistency::under(Protocol::Hlrc, me, limits, tracking, []).telling();
        if mutant.is_none_or(Mutant::orders) {
            engine.order_fetches();
        }
        engine
    };
    Cluster::new(program, engine, options).run().map_err(|failure| failure.to_string())
}

/// Returns what is wrong with a run, if anything.
fn wrong(ended: &Ended) -> Option<String> {
    let execution = ended.execution();
    let verdict = judge(&execution).expect("all threads have ended");
    if let Some(violation) = verdict.violations.first() {
        return Some(violation.explanation.clone());
    }
    match judge_causal(&execution) {
        Sequential::No { explanation } => Some(explanation),
        Sequential::Plausible { .. } => None,
    }
}

fn shown(litmus: &Litmus, seed: u64, mutant: Option<Mutant>) -> Option<String> {
    match run(&litmus.program, seed, mutant) {
        Ok(ended) if (litmus.forbid)(&ended) => Some("a forbidden outcome".to_owned()),
        Ok(ended) => wrong(&ended),
        Err(failure) => Some(failure),
    }
}

#[test]
fn who_sees_a_store_sees_all_that_happened_before_it() {
    for litmus in ordered() {
        let mut reached = vec![false; litmus.reach.len()];
        for seed in 0..SEEDS {
            let what = || format!("{}, seed {seed}", litmus.name);
            let ended =
                run(&litmus.program, seed, None).unwrap_or_else(|failure| panic!("{}: {failure}", what()));
            for (reached, (_, seen)) in reached.iter_mut().zip(&litmus.reach) {
                *reached |= seen(&ended);
            }
            assert!(!(litmus.forbid)(&ended), "{}: a forbidden outcome", what());
            assert_eq!(wrong(&ended), None, "{}", what());
        }
        for ((what, _), reached) in litmus.reach.iter().zip(reached) {
            assert!(reached, "{}: no seed reaches '{what}'", litmus.name);
        }
    }
}

/// Returns a program full of data races: threads load and store a few words on a few pages, each value once,
/// take locks for nothing, and meet. Some threads belong to no team.
fn racy(seed: u64) -> Program {
    let mut random = seeded(seed ^ 0x0c0f_fee5);
    let nodes = random.random_range(2..=4u16);
    let pages = random.random_range(2..=5u64);
    let phases = random.random_range(1..=3);
    let mut value = 0;
    let mut script = |meets: bool| {
        let mut code: Vec<Instruction> = Vec::new();
        for phase in 0..phases {
            if meets && phase > 0 {
                code.push(barrier());
            }
            for _ in 0..random.random_range(2..=7) {
                let at = Address::word(random.random_range(0..pages), random.random_range(0..3) * 40);
                match random.random_range(0..20) {
                    0 => code.extend([lock(0), unlock(0)]),
                    1 => code.push(prefetch(random.random_range(0..pages))),
                    2..10 => {
                        value += 1;
                        code.push(store(at, value));
                    }
                    _ => code.push(load(at, random.random_range(0..16))),
                }
            }
        }
        code
    };
    let mut threads: Vec<Script> = (0..nodes).map(|node| Script::team(node, script(true))).collect();
    threads.extend((0..nodes).map(|node| Script::foreign(node, script(false))));
    Program::on(nodes, pages, threads)
}

/// Runs as many seeds as `HIROBA_CHECK_SEEDS` says, else a sample.
#[test]
fn racy_programs_are_causally_consistent() {
    let asked = std::env::var("HIROBA_CHECK_SEEDS").ok().map(|seeds| seeds.parse().expect("a number"));
    for seed in 0..asked.unwrap_or(sample::of(RANDOM_SEEDS)) {
        let ended = run(&racy(seed), seed, None).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        assert_eq!(wrong(&ended), None, "seed {seed}");
    }
}

#[test]
fn programs_without_races_behave_as_on_one_machine() {
    let wrong = |program: &Program, seed| run(program, seed, None).map_or_else(Some, |ended| wrong(&ended));
    assert_eq!(at_random(SHAPES, 0..sample::of(400), wrong), None);
}

#[test]
fn each_planted_bug_is_noticed() {
    each_is_noticed(Mutant::ALL, |mutant| {
        by_litmus(ordered(), 0..SEEDS, |litmus, seed| shown(litmus, seed, Some(mutant)))
    });
}

/// Node 0 stores to one page of its own after the other, some of which are opened before it comes to them.
/// Node 1 reads them upwards and downwards. They have had readers, and have none any more.
fn opened_in_a_run() -> Program {
    const PAGES: u64 = 4;
    let word = |page| Address::word(page, 0);
    let mut scripts = [Vec::new(), Vec::new()];
    let mut value = 0;
    for phase in 0..3 {
        for page in 0..PAGES {
            value += 1;
            scripts[0].push(store(word(page), value));
        }
        let reads = (0..PAGES).chain((0..PAGES).rev()).map(|page| load(word(page), page as u8));
        scripts[1].extend(reads.filter(|_| phase != 1));
        scripts.iter_mut().for_each(|code| code.extend(vec![barrier(); 10]));
    }
    let region = Region::new(0, PAGES, 1, Placement::On(NodeId(0)));
    Program::new(0, scripts).with_regions(vec![region])
}

#[test]
fn pages_that_are_opened_in_runs_keep_the_order_of_stores() {
    let shown = |seed, mutant| match run(&opened_in_a_run(), seed, mutant) {
        Ok(ended) => wrong(&ended),
        Err(failure) => Some(failure),
    };
    for seed in 0..SEEDS {
        assert_eq!(shown(seed, None), None, "seed {seed}");
    }
    for mutant in [Mutant::WriteWhileReleasing, Mutant::HomeKeepsNoOrder] {
        let noticed = (0..NOTICED_SEEDS).any(|seed| shown(seed, Some(mutant)).is_some());
        assert!(noticed, "{mutant:?}");
    }
}

/// Without an order, homes send pages with stores that nobody was told of, and apply diffs too early.
#[test]
fn homes_without_order_are_noticed_by_each_of_their_programs() {
    for name in ["MP by the flag's home", "MP through the flag's home", "MP to the flag's home"] {
        let litmus = ordered().into_iter().filter(|litmus| litmus.name == name);
        let shown = |litmus: &Litmus, seed| shown(litmus, seed, Some(Mutant::HomeKeepsNoOrder));
        assert!(by_litmus(litmus, 0..SEEDS, shown).is_some(), "{name}");
    }
}

/// The oracle of random programs is awake.
#[test]
fn random_programs_notice_planted_bugs() {
    for mutant in Mutant::ALL {
        let noticed = (0..NOTICED_SEEDS).find(|seed| match run(&racy(*seed), *seed, Some(mutant)) {
            Ok(ended) => wrong(&ended).is_some(),
            Err(_) => true,
        });
        println!("{mutant:?}: {noticed:?}");
        assert!(noticed.is_some(), "{mutant:?}");
    }
}
