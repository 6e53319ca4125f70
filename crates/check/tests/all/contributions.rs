//! What nodes contribute to a barrier is used before any of them departs.

use hiroba_base::NodeId;
use hiroba_check::cluster::{Cluster, Ended, NetworkChoice, Options};
use hiroba_check::engines::engine_of;
use hiroba_check::litmus::{Litmus, contributing};
use hiroba_check::mutant::Mutation;
use hiroba_check::mutant::contributions::Mutant;
use hiroba_check::mutant::lending;
use hiroba_check::program::script::{barrier, combine, contribute, load};
use hiroba_check::program::{Address, Instruction, Program, Region};
use hiroba_check::random_program::{Shape, generate};
use hiroba_protocol::{Engine, Protocol, WriteTracking};
use hiroba_trace::Event;
use hiroba_wire::{Message, Placement};

use crate::lending::{convicted, explore};
use crate::planted::{by_litmus, each_is_noticed};
use crate::sample;

const SEEDS: u64 = 300;

/// The protocols of the first region; the second one is under sequential consistency.
fn protocols() -> [(Protocol, WriteTracking); 5] {
    use WriteTracking::{Async, Fault};
    let sc = (Protocol::Sc, Fault);
    let [hlrc, adaptive] = [Protocol::Hlrc, Protocol::Adaptive];
    [sc, (hlrc, Fault), (hlrc, Async), (adaptive, Fault), (adaptive, Async)]
}

type Planted = Option<Box<dyn Mutation>>;

fn run(
    program: &Program,
    (first, tracking): (Protocol, WriteTracking),
    region_protocols: Vec<Option<Protocol>>,
    seed: u64,
    mutation: Planted,
) -> Result<Ended, String> {
    let network = match seed % 20 {
        0 if mutation.is_none() => NetworkChoice::Lossy,
        _ => NetworkChoice::Shuffled,
    };
    let mut options =
        Options { network, region_protocols, steps_max: 50_000, ..Options::seeded(seed, tracking) };
    options.mutation = mutation.unwrap_or(options.mutation);
    // Every third job is a deep tree.
    let below_max = if seed.is_multiple_of(3) { 1 } else { 4 };
    let engine = |me, limits, tracking| {
        let engine = engine_of(first, me, limits, tracking).meeting_below(below_max).telling();
        let mut engine = if seed % 4 < 2 { engine.carrying_all() } else { engine };
        if seed.is_multiple_of(2) {
            engine.order_fetches();
        }
        engine
    };
    Cluster::new(program, engine, options).run().map_err(|failure| failure.to_string())
}

fn run_litmus(
    litmus: &Litmus,
    first: (Protocol, WriteTracking),
    seed: u64,
    mutation: Planted,
) -> Result<Ended, String> {
    run(&litmus.program, first, vec![None, None, Some(Protocol::Sc)], seed, mutation)
}

#[test]
fn all_see_what_was_contributed() {
    for first in protocols() {
        for litmus in contributing() {
            explore(&litmus, first, |seed| run_litmus(&litmus, first, seed, None));
        }
    }
}

/// Has nodes contribute to each barrier, and all load the sum behind it: node 0 adds what was contributed to
/// a word of a further region. Returns the sum that the last barrier leaves.
fn with_contributions(mut program: Program, seed: u64) -> (Program, u64) {
    let end = program.region_granules();
    let on = NodeId((seed % u64::from(program.nodes)) as u16);
    program.regions.push(Region::new(end, 1, 1, Placement::On(on)));
    let sum = Address::word(end, 3);
    let mut total = 0;
    let mut contributing = vec![true; usize::from(program.nodes)];
    for script in program.threads.iter_mut().filter(|script| script.in_team) {
        let node = u64::from(script.node.0);
        let contributes = std::mem::take(&mut contributing[script.node.index()]);
        let is_barrier = |at: &usize| script.instructions[*at] == barrier();
        let barriers: Vec<usize> = (0..script.instructions.len()).filter(is_barrier).collect();
        for (number, at) in barriers.into_iter().enumerate().rev() {
            let value = 1 + node + 10 * number as u64;
            let gives = contributes && !(seed + node + number as u64).is_multiple_of(3);
            total += if gives { value } else { 0 };
            let meets = if node == 0 { combine(sum) } else { barrier() };
            let given = gives.then_some(contribute(value));
            let behind = load(sum, SUM_REGISTER);
            let added = usize::from(gives) + 1;
            script.instructions.splice(at..=at, given.into_iter().chain([meets, behind]));
            for instruction in &mut script.instructions {
                if let Instruction::JumpUnless { to, .. } = instruction {
                    *to += if *to > at { added } else { 0 };
                }
            }
        }
    }
    (program, total)
}

/// A register that random programs do not use.
const SUM_REGISTER: u8 = 31;

/// Runs a random program with contributions. Returns what is wrong, if anything.
fn wrong_at_random(
    first: (Protocol, WriteTracking),
    shape: Shape,
    seed: u64,
    mutation: Planted,
) -> Option<String> {
    let program = generate(seed, shape);
    let mut region_protocols: Vec<Option<Protocol>> =
        (0..program.regions.len()).map(|number| (number % 2 == 1).then_some(Protocol::Sc)).collect();
    region_protocols.push(Some(Protocol::Sc));
    let (program, total) = with_contributions(program, seed);
    let met = program.threads[0]
        .instructions
        .iter()
        .any(|instruction| matches!(instruction, Instruction::Combine(_)));
    match run(&program, first, region_protocols, seed, mutation) {
        Ok(ended) if met && ended.register(0, usize::from(SUM_REGISTER)) != total => {
            Some("a sum that lacks a contribution".to_owned())
        }
        Ok(ended) => convicted(&ended, first.0),
        Err(failure) => Some(failure),
    }
}

const SHAPES: [Shape; 3] = [
    Shape { team: 1, foreign: 0, publications: false, waits: false },
    Shape { team: 2, foreign: 1, publications: false, waits: false },
    Shape { team: 1, foreign: 2, publications: false, waits: true },
];

#[test]
fn random_programs_see_what_was_contributed() {
    for first in protocols() {
        for shape in SHAPES {
            for seed in 0..sample::of(SEEDS) {
                let wrong = wrong_at_random(first, shape, seed, None);
                if let Some(w) = wrong {
                    println!("WRONG {first:?}, {shape:?}, seed {seed} {w}");
                }
            }
        }
    }
}

fn wrong(litmus: &Litmus, seed: u64, mutation: Planted) -> Option<String> {
    let first = (Protocol::Hlrc, WriteTracking::Fault);
    match run_litmus(litmus, first, seed, mutation) {
        Ok(ended) if (litmus.forbid)(&ended) => Some("a forbidden outcome".to_owned()),
        Ok(ended) => convicted(&ended, first.0),
        Err(failure) => Some(failure),
    }
}

#[test]
fn each_planted_bug_is_noticed() {
    let noticed = |plant: &dyn Fn() -> Planted| {
        by_litmus(contributing(), 0..SEEDS, |litmus, seed| wrong(litmus, seed, plant()))
    };
    assert_eq!(noticed(&|| None), None);
    each_is_noticed(Mutant::ALL, |mutant| noticed(&|| Some(mutant.plant())));
    each_is_noticed(lending::Mutant::ALL, |mutant| noticed(&|| Some(mutant.plant())));
}

/// Returns how many messages all nodes have sent.
fn messages(ended: &Ended) -> usize {
    let records = ended.run.nodes.iter().flat_map(|node| &node.records);
    records.filter(|record| matches!(record.event, Event::Sent { .. })).count()
}

/// Returns how many of them were of a kind.
fn messages_of(ended: &Ended, kind: &str) -> usize {
    let records = ended.run.nodes.iter().flat_map(|node| &node.records);
    let is_of_kind = |event: &Event| match event {
        Event::Sent { kind: of, .. } => Message::KINDS[usize::from(of.0)] == kind,
        _ => false,
    };
    records.filter(|record| is_of_kind(&record.event)).count()
}

/// Nodes meet some times, and do something before and behind each barrier.
fn meetings(nodes: u16, times: u64, meet: impl Fn(u16, u64) -> Vec<Instruction>) -> Program {
    let script = |node| (0..times).flat_map(|time| meet(node, time)).collect::<Vec<_>>();
    let regions =
        vec![Region::new(0, 1, 1, Placement::On(NodeId(0))), Region::new(1, 1, 1, Placement::On(NodeId(0)))];
    Program::new(0, (0..nodes).map(script)).with_regions(regions)
}

/// Runs a program whose second region is under sequential consistency, where engines lend what others have
/// requested before, and no message is lost.
fn counted(program: &Program, first: (Protocol, WriteTracking), seed: u64) -> Ended {
    let region_protocols = vec![None, Some(Protocol::Sc)];
    let options = Options { region_protocols, ..Options::seeded(seed, first.1) };
    let engine = |me, limits, tracking| engine_of(first.0, me, limits, tracking).telling();
    Cluster::new(program, engine, options).run().unwrap_or_else(|failure| panic!("seed {seed}: {failure}"))
}

#[test]
fn contributions_cost_no_message() {
    let sum = Address::word(1, 0);
    for first in protocols() {
        for nodes in [2, 3, 7] {
            for seed in 0..5 {
                let plain = meetings(nodes, 10, |_, _| vec![barrier()]);
                let added = meetings(nodes, 10, |node, time| {
                    vec![contribute(time + 1), if node == 0 { combine(sum) } else { barrier() }]
                });
                let count = |program| messages(&counted(program, first, seed));
                assert_eq!(count(&plain), 20 * usize::from(nodes - 1), "{first:?}, {nodes} nodes");
                assert_eq!(count(&added), count(&plain), "{first:?}, {nodes} nodes, seed {seed}");
            }
        }
    }
}

#[test]
fn a_sum_that_all_read_travels_with_the_departure() {
    const TIMES: u64 = 40;
    let sum = Address::word(1, 0);
    for first in protocols() {
        for nodes in [2, 3, 5] {
            for seed in 0..5 {
                let program = meetings(nodes, TIMES, |node, time| {
                    vec![contribute(time + 1), if node == 0 { combine(sum) } else { barrier() }, load(sum, 0)]
                });
                let ended = counted(&program, first, seed);
                let total = u64::from(nodes) * (1..=TIMES).sum::<u64>();
                assert!((0..usize::from(nodes)).all(|node| ended.register(node, 0) == total));
                let readers = usize::from(nodes - 1);
                // Each node requests a copy once, and again when its page has travelled some times.
                let requests = messages_of(&ended, "CopiesRequest");
                assert!(requests <= 4 * readers, "{first:?}, {nodes} nodes: {requests} requests");
                let travelled = messages_of(&ended, "PagesReply") - requests;
                assert!(travelled >= (TIMES as usize - 8) * readers, "{first:?}, {nodes} nodes: {travelled}");
            }
        }
    }
}
