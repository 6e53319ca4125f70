//! Eager release consistency, by invalidation and by update, with homes that stay and homes that move.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hiroba_base::NodeId;
use hiroba_check::axioms::judge;
use hiroba_check::cluster::{Cluster, Ended, NetworkChoice, Options};
use hiroba_check::engines::engine_under;
use hiroba_check::litmus::{Litmus, catalogue};
use hiroba_check::mutant::Mutation;
use hiroba_check::mutant::erc::Mutant;
use hiroba_check::program::script::*;
use hiroba_check::program::{Address, Program};
use hiroba_check::random_program::{Shape, generate};
use hiroba_check::sequential::{self, Sequential};
use hiroba_protocol::erc::{Erc, Mode};
use hiroba_protocol::home::{HomePolicy, MoveThreshold};
use hiroba_protocol::{Consistency, Effect, Protocol, WriteTracking};
use hiroba_wire::{Limits, Message};

use crate::planted::{by_litmus, each_is_noticed};
use crate::sample;

/// The number of seeds for litmus programs if homes stay; fewer if they move.
const SEEDS: u64 = 400;
const SEEDS_MOVING: u64 = 60;

/// A variant of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Variant {
    mode: Mode,
    policy: HomePolicy,
}

fn variants() -> impl Iterator<Item = Variant> {
    [Mode::Invalidate, Mode::Update]
        .into_iter()
        .flat_map(|mode| HomePolicy::ALL.map(|policy| Variant { mode, policy }))
}

impl Variant {
    fn engine(self) -> impl FnMut(NodeId, Limits, WriteTracking) -> Consistency {
        // Programs of a few barriers show moves only with a low threshold.
        let threshold = MoveThreshold { periods: 1, faults: 1, doublings_max: 2 };
        move |me, limits, tracking| {
            let protocol = Erc::new(self.mode).moving_homes(self.policy).moving_after(threshold);
            Consistency::new(me, limits, tracking, Box::new(protocol)).telling()
        }
    }
}

fn options(seed: u64, network: NetworkChoice) -> Options {
    Options { network, steps_max: 50_000, ..Options::seeded(seed, WriteTracking::Fault) }
}

/// Returns what is wrong with a run, if anything.
fn convicted(ended: &Ended, seed: u64) -> Option<String> {
    let execution = ended.execution();
    let verdict = judge(&execution).unwrap();
    if let Some(violation) = verdict.violations.first() {
        return Some(violation.explanation.clone());
    }
    if seed.is_multiple_of(8)
        && verdict.races.is_empty()
        && let Sequential::No { explanation } = sequential::judge_race_free(&execution)
    {
        return Some(explanation);
    }
    None
}

fn run(program: &Program, variant: Variant, seed: u64, network: NetworkChoice) -> Ended {
    let ended = Cluster::new(program, variant.engine(), options(seed, network)).run();
    ended.unwrap_or_else(|failure| panic!("{variant:?}, {network:?}, seed {seed}: {failure}"))
}

fn examine(litmus: &Litmus, variant: Variant, seed: u64, network: NetworkChoice) -> Vec<bool> {
    let ended = Cluster::new(&litmus.program, variant.engine(), options(seed, network)).run();
    let name = litmus.name;
    let ended = ended.unwrap_or_else(|failure| panic!("{name}, {variant:?}, seed {seed}: {failure}"));
    assert!(!(litmus.forbid)(&ended), "{name}, {variant:?}, seed {seed}: a forbidden outcome");
    assert_eq!(convicted(&ended, seed), None, "{name}, {variant:?}, seed {seed}");
    litmus.reach.iter().map(|(_, seen)| seen(&ended)).collect()
}

fn explore_litmus(mode: Mode) {
    for litmus in catalogue() {
        let mut reached = vec![false; litmus.reach.len()];
        let seeds = |variant: Variant| match variant.policy {
            HomePolicy::Fixed => SEEDS,
            _ => SEEDS_MOVING,
        };
        let kinds = variants().filter(|variant| variant.mode == mode);
        for (variant, seed) in kinds.flat_map(|variant| (0..seeds(variant)).map(move |seed| (variant, seed)))
        {
            if sample::suffices(seed, seeds(variant), &reached) {
                continue;
            }
            let network = if seed % 20 == 19 { NetworkChoice::Lossy } else { NetworkChoice::Shuffled };
            let seen = examine(&litmus, variant, seed, network);
            reached.iter_mut().zip(seen).for_each(|(reached, seen)| *reached |= seen);
        }
        for ((what, _), reached) in litmus.reach.iter().zip(reached) {
            assert!(reached, "{}, {mode:?}: no seed reaches '{what}'", litmus.name);
        }
    }
}

#[test]
fn by_invalidation_no_seed_shows_a_forbidden_outcome_and_some_seed_each_outcome_to_reach() {
    explore_litmus(Mode::Invalidate);
}

#[test]
fn by_update_no_seed_shows_a_forbidden_outcome_and_some_seed_each_outcome_to_reach() {
    explore_litmus(Mode::Update);
}

/// Explores as many seeds as `HIROBA_CHECK_SEEDS` says, else a sample of `seeds` (over the lossy network,
/// which is slow, a tenth of them).
fn explore(variant: Variant, shape: Shape, network: NetworkChoice, seeds: u64) {
    let asked = std::env::var("HIROBA_CHECK_SEEDS").ok().map(|seeds| seeds.parse().expect("a number"));
    let share = if network == NetworkChoice::Lossy { 10 } else { 1 };
    for seed in 0..asked.map_or(sample::of(seeds), |asked: u64| asked.div_ceil(share)) {
        let ended = run(&generate(seed, shape), variant, seed, network);
        assert_eq!(convicted(&ended, seed), None, "{variant:?}, {shape:?}, {network:?}, seed {seed}");
    }
}

fn explore_random_programs(mode: Mode) {
    for variant in variants().filter(|variant| variant.mode == mode) {
        for shape in [
            Shape { team: 1, foreign: 0, publications: false, waits: false },
            Shape { team: 2, foreign: 1, publications: false, waits: false },
            Shape { team: 1, foreign: 2, publications: true, waits: false },
            Shape { team: 2, foreign: 1, publications: false, waits: true },
        ] {
            explore(variant, shape, NetworkChoice::Shuffled, 120);
            if !shape.publications {
                // Over the link no node sends to itself, as publications between threads of one node would
                // here.
                explore(variant, shape, NetworkChoice::Lossy, 10);
            }
        }
    }
}

#[test]
fn random_programs_without_races_behave_as_on_one_machine_by_invalidation() {
    explore_random_programs(Mode::Invalidate);
}

#[test]
fn random_programs_without_races_behave_as_on_one_machine_by_update() {
    explore_random_programs(Mode::Update);
}

/// Counts what happens to pages, and changes nothing.
#[derive(Clone, Default)]
struct Counts {
    moves: Arc<AtomicUsize>,
    updates: Arc<AtomicUsize>,
    messages: Arc<AtomicUsize>,
}

impl Mutation for Counts {
    fn on_effect(&mut self, _node: NodeId, effect: Effect) -> Vec<Effect> {
        if matches!(effect, Effect::CountMove { .. }) {
            self.moves.fetch_add(1, Ordering::Relaxed);
        }
        vec![effect]
    }

    fn on_send(&mut self, _: NodeId, _: NodeId, bytes: Vec<u8>, limits: &Limits) -> Vec<(Vec<u8>, bool)> {
        self.messages.fetch_add(1, Ordering::Relaxed);
        if matches!(Message::decode(&bytes, limits), Ok(Message::UpdateCopies { .. })) {
            self.updates.fetch_add(1, Ordering::Relaxed);
        }
        vec![(bytes, false)]
    }
}

fn count(
    program: &Program,
    engine: impl FnMut(NodeId, Limits, WriteTracking) -> Consistency,
    seed: u64,
) -> Counts {
    let counts = Counts::default();
    let mutation = Box::new(counts.clone());
    let options = Options { mutation, ..options(seed, NetworkChoice::Shuffled) };
    Cluster::new(program, engine, options).run().unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    counts
}

#[test]
fn homes_move_under_both_policies_and_under_no_other() {
    let shape = Shape { team: 1, foreign: 0, publications: false, waits: false };
    for variant in variants() {
        let moves: usize = (0..40)
            .map(|seed| count(&generate(seed, shape), variant.engine(), seed).moves.load(Ordering::Relaxed))
            .sum();
        assert_eq!(moves > 0, variant.policy != HomePolicy::Fixed, "{variant:?}: {moves} moves");
    }
}

/// One node writes a page homed elsewhere, epoch after epoch.
#[test]
fn a_page_goes_to_its_writer_once_and_stays_there() {
    let word = Address::word(0, 1);
    let writer: Vec<_> = (0..12).flat_map(|round| [store(word, round + 1), barrier()]).collect();
    let program = Program::new(1, [vec![[load(word, 0), barrier()]; 12].concat(), writer]);
    for seed in 0..20 {
        let engine = |me, limits, tracking| {
            let moving = Erc::new(Mode::Update).moving_homes(HomePolicy::Modification);
            Consistency::new(me, limits, tracking, Box::new(moving))
        };
        assert_eq!(count(&program, engine, seed).moves.load(Ordering::Relaxed), 1, "seed {seed}");
    }
}

/// A copy is read once and never again.
#[test]
fn copies_that_nobody_reads_take_a_bounded_number_of_updates() {
    const ROUNDS: u64 = 60;
    let word = Address::word(0, 1);
    let mut writer = vec![barrier()];
    writer.extend((0..ROUNDS).flat_map(|round| [lock(0), store(word, round + 1), unlock(0)]));
    writer.push(barrier());
    let once = vec![load(word, 0), barrier(), barrier(), load(word, 1)];
    let program = Program::new(1, [vec![barrier(), barrier()], writer, once.clone(), once]);
    for seed in 0..20 {
        let engine = engine_under(Protocol::ErcUpdate);
        let updates = count(&program, engine, seed).updates.load(Ordering::Relaxed);
        assert!(updates > 0 && updates < 20, "seed {seed}: {updates} updates in {ROUNDS} releases");
    }
}

/// A program whose nodes touch only pages of their own sends only the messages of its barriers.
#[test]
fn pages_that_nobody_shares_cost_no_message() {
    let script = |node: u64, stores: u64| {
        let own = Address::word(node, 1);
        (0..4).flat_map(move |round| (0..stores).map(move |_| store(own, round)).chain([barrier()])).collect()
    };
    let messages = |stores: u64, mode: Mode| {
        let program = Program::new(3, (0..3).map(|node| -> Vec<_> { script(node, stores) }));
        let engine = |me, limits, tracking| Consistency::new(me, limits, tracking, Box::new(Erc::new(mode)));
        count(&program, engine, 7).messages.load(Ordering::Relaxed)
    };
    for mode in [Mode::Invalidate, Mode::Update] {
        assert_eq!(messages(3, mode), messages(0, mode));
    }
}

/// Returns what is wrong with a run, if anything.
fn wrong(
    program: &Program,
    variant: Variant,
    seed: u64,
    mutant: Option<Mutant>,
    forbid: impl Fn(&Ended) -> bool,
) -> Option<String> {
    let mut options = Options { steps_max: 20_000, ..options(seed, NetworkChoice::Shuffled) };
    if let Some(mutant) = mutant {
        options.mutation = mutant.plant();
    }
    let ended = match Cluster::new(program, variant.engine(), options).run() {
        Ok(ended) => ended,
        Err(failure) => return Some(failure.to_string()),
    };
    if forbid(&ended) {
        return Some("a forbidden outcome".to_owned());
    }
    convicted(&ended, seed)
}

/// Tries homes that stay first, since most bugs have nothing to do with moves.
fn noticed(mutant: Option<Mutant>) -> Option<String> {
    let in_litmus = |variant: Variant| {
        by_litmus(catalogue(), 0..10, |litmus, seed| {
            let wrong = wrong(&litmus.program, variant, seed, mutant, &litmus.forbid)?;
            Some(format!("{variant:?}: {wrong}"))
        })
    };
    let at_random = |variant: Variant| {
        (0..150).find_map(|seed| {
            let shape = Shape { team: 1 + (seed % 2) as u16, foreign: 0, publications: false, waits: false };
            let wrong = wrong(&generate(seed, shape), variant, seed, mutant, |_| false)?;
            Some(format!("{shape:?}, {variant:?}, seed {seed}: {wrong}"))
        })
    };
    let mut variants: Vec<Variant> = variants().collect();
    variants.sort_by_key(|variant| variant.policy != HomePolicy::Fixed);
    variants
        .iter()
        .find_map(|variant| in_litmus(*variant))
        .or_else(|| variants.into_iter().find_map(at_random))
}

#[test]
fn every_planted_bug_is_noticed() {
    assert_eq!(noticed(None), None);
    each_is_noticed(Mutant::ALL, |mutant| noticed(Some(mutant)));
}
