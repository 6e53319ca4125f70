//! Pages that are put under sequential consistency while nodes use them
//! (`protocol/src/consistency/converting.rs`).

use hiroba_base::{NodeId, PageId, RngExt, seeded};
use hiroba_check::axioms;
use hiroba_check::cluster::{Cluster, Ended, NetworkChoice, Options};
use hiroba_check::execution::{Execution, History};
use hiroba_check::litmus::{Litmus, converting};
use hiroba_check::mutant::Mutation;
use hiroba_check::mutant::converting::Mutant;
use hiroba_check::page_axioms::{self, Rules};
use hiroba_check::program::script::*;
use hiroba_check::program::{Address, Instruction, Program, Region, Script};
use hiroba_check::sequential::{self, Sequential, judge_causal};
use hiroba_protocol::{Consistency, Engine, Protocol, WriteTracking};
use hiroba_trace::Event;
use hiroba_wire::Placement;

use crate::planted::{by_litmus, each_is_noticed};
use crate::sample;

const SEEDS: u64 = 400;
const RANDOM_SEEDS: u64 = 1200;
/// The page that threads operate on atomically; others may be converted as well.
const CONVERTED: [PageId; 2] = [PageId(0), PageId(8)];

/// The word of each page on which threads operate at its home.
const HOME_WORD: u32 = 300;

/// How nodes detect stores, and whether their fetches are ordered.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    protocol: Protocol,
    tracking: WriteTracking,
    is_ordered: bool,
    one_sided: bool,
    shortages: bool,
}

const POSIX: Manner = Manner {
    protocol: Protocol::Hlrc,
    tracking: WriteTracking::Fault,
    is_ordered: true,
    one_sided: false,
    shortages: false,
};
const OPENMP: Manner = Manner { tracking: WriteTracking::Async, ..POSIX };
pub const MOVING: Manner = Manner { protocol: Protocol::Adaptive, ..POSIX };
const MANNERS: [Manner; 9] = [
    POSIX,
    OPENMP,
    MOVING,
    Manner { tracking: WriteTracking::Async, ..MOVING },
    Manner { is_ordered: false, tracking: WriteTracking::Async, ..MOVING },
    Manner { is_ordered: false, ..POSIX },
    Manner { is_ordered: false, ..OPENMP },
    Manner { is_ordered: false, one_sided: true, ..OPENMP },
    Manner { shortages: true, ..POSIX },
];

fn run(program: &Program, manner: Manner, seed: u64, mutant: Option<Mutant>) -> Result<Ended, String> {
    run_with(program, manner, seed, mutant.map(Mutant::plant))
}

/// Runs a program, perhaps with a planted bug.
pub fn run_with(
    program: &Program,
    manner: Manner,
    seed: u64,
    mutation: Option<Box<dyn Mutation>>,
) -> Result<Ended, String> {
    let Manner { protocol, tracking, is_ordered, one_sided, shortages } = manner;
    let network = if seed.is_multiple_of(20) { NetworkChoice::Lossy } else { NetworkChoice::Shuffled };
    let seeded = Options::seeded(seed, tracking);
    let mut options = Options { network, steps_max: 50_000, one_sided, shortages, ..seeded };
    if let Some(mutation) = mutation {
        options.mutation = mutation;
    }
    let engine = |me: NodeId, limits: hiroba_wire::Limits, tracking| {
        let reached = NodeId::all(limits.nodes).filter(|node| one_sided && *node != me);
        let mut engine = Consistency::under(protocol, me, limits, tracking, reached).telling();
        if is_ordered {
            engine.order_fetches();
        }
        engine
    };
    Cluster::new(program, engine, options).run().map_err(|failure| failure.to_string())
}

/// Returns the accesses to a page from its conversion on, and the stores before that, which are in it.
fn of_page(ended: &Ended, page: PageId) -> Execution {
    let mut threads: Vec<History> = Vec::new();
    for (node, records) in ended.run.ids().zip(&ended.run.nodes) {
        let mut is_converted = false;
        for record in &records.records {
            let (at, counts) = match &record.event {
                Event::Converted { page: of } if *of == page => {
                    is_converted = true;
                    continue;
                }
                Event::Load { page, .. } => (*page, is_converted),
                Event::Store { page, .. } | Event::Atomic { page, .. } => (*page, true),
                _ => continue,
            };
            let is_same = |history: &&mut History| history.node == node && history.thread == record.thread;
            if at == page && counts {
                match threads.iter_mut().find(is_same) {
                    Some(history) => history.events.push(record.event.clone()),
                    None => {
                        let events = vec![record.event.clone()];
                        threads.push(History { node, thread: record.thread, events });
                    }
                }
            }
        }
    }
    Execution { threads }
}

/// Returns what is wrong with a run, if anything.
pub fn wrong(ended: &Ended, manner: Manner) -> Option<String> {
    let findings = page_axioms::judge(&ended.run, &Rules::hlrc(manner.one_sided));
    if let Some(breach) = findings.breaches.first() {
        return Some(format!("{}: {}", breach.axiom, breach.explanation));
    }
    for page in CONVERTED {
        if let Sequential::No { explanation } = sequential::judge(&of_page(ended, page)) {
            return Some(format!("{page}: {explanation}"));
        }
    }
    // Other stores may slip into an interval while it is closed.
    let is_causal = manner.is_ordered && manner.tracking == WriteTracking::Fault;
    match is_causal.then(|| judge_causal(&without_home_operations(ended.execution()))) {
        Some(Sequential::No { explanation }) => Some(explanation),
        _ => None,
    }
}

/// Leaves out the operations on atomic words that are carried out at their homes, which order nothing else.
fn without_home_operations(mut execution: Execution) -> Execution {
    let is_such =
        |event: &mut Event| matches!(event, Event::Atomic { offset, .. } if *offset == HOME_WORD * 8);
    execution.threads.iter_mut().for_each(|history| _ = history.events.extract_if(.., is_such).count());
    execution
}

fn shown(litmus: &Litmus, manner: Manner, seed: u64, mutant: Option<Mutant>) -> Option<String> {
    match run(&litmus.program, manner, seed, mutant) {
        Ok(ended) if (litmus.forbid)(&ended) => Some("a forbidden outcome".to_owned()),
        Ok(ended) => wrong(&ended, manner),
        Err(failure) => Some(failure),
    }
}

/// Orders between pages need ordered fetches.
fn suits(litmus: &Litmus, manner: Manner) -> bool {
    manner.is_ordered || litmus.name != "MP by a flag that its reader converts"
}

#[test]
fn no_store_is_lost_when_a_page_is_converted() {
    for manner in MANNERS {
        for litmus in converting().iter().filter(|litmus| suits(litmus, manner)) {
            let mut reached = vec![false; litmus.reach.len()];
            for seed in 0..SEEDS {
                if sample::suffices(seed, SEEDS, &reached) {
                    break;
                }
                let what = || format!("{manner:?}, '{}', seed {seed}", litmus.name);
                let ended = run(&litmus.program, manner, seed, None);
                let ended = ended.unwrap_or_else(|failure| panic!("{}: {failure}", what()));
                let conditions = reached.iter_mut().zip(&litmus.reach);
                conditions.for_each(|(reached, (_, seen))| *reached |= seen(&ended));
                assert!(!(litmus.forbid)(&ended), "{}: a forbidden outcome", what());
                assert_eq!(wrong(&ended, manner), None, "{}", what());
            }
            for ((what, _), reached) in litmus.reach.iter().zip(reached) {
                assert!(reached, "{manner:?}, '{}': no seed reaches '{what}'", litmus.name);
            }
        }
    }
}

/// The programs show what they should: without conversions, each of them goes wrong.
#[test]
fn stores_are_lost_without_conversions() {
    let is_about_words = |litmus: &Litmus| {
        let names = ["counters", "a spin lock", "a store", "a byte", "SB by"];
        names.iter().any(|name| litmus.name.starts_with(name))
    };
    for litmus in converting().iter().filter(|litmus| is_about_words(litmus)) {
        let mut program = litmus.program.clone();
        let code = program.threads.iter_mut().flat_map(|script| &mut script.instructions);
        code.filter(|instruction| matches!(instruction, Instruction::Convert(_)))
            .for_each(|instruction| *instruction = add(31, 0));
        let goes_wrong = |seed| match run(&program, POSIX, seed, None) {
            Ok(ended) => (litmus.forbid)(&ended),
            // A lock that is never free.
            Err(failure) => failure.contains("runs on"),
        };
        assert!((0..SEEDS).any(goes_wrong), "'{}'", litmus.name);
    }
}

/// Returns a program full of data races. Threads load and store a few words, each value once; on some pages
/// they also operate by atomic instructions, after they have converted them. They take locks for nothing, and
/// meet. Some threads belong to no team.
fn racy(seed: u64) -> Program {
    let mut random = seeded(seed ^ 0x5eed_c0de);
    let nodes = random.random_range(2..=4u16);
    let granules_per_page = [1, 1, 1, 4, 8][random.random_range(0..5)];
    let phases = random.random_range(1..=3);
    let mut value = 0;
    let mut script = |meets: bool| {
        let mut code: Vec<Instruction> = Vec::new();
        for phase in 0..phases {
            if meets && phase > 0 {
                code.push(barrier());
            }
            for _ in 0..random.random_range(2..=7) {
                let page = random.random_range(0..4);
                let at = Address::word(page * 8, random.random_range(0..3) * 40);
                value += 1;
                match random.random_range(0..24) {
                    0 => code.extend([lock(0), unlock(0)]),
                    1 => code.push(prefetch(page * 8)),
                    2 => code.push(fetch_add(Address::word(page * 8, HOME_WORD), 1, 20)),
                    3 => code.push(convert(page * 8)),
                    4..9 if CONVERTED.contains(&at.granule) => {
                        code.extend([convert(at.granule.0), exchange(at, value, random.random_range(0..16))]);
                    }
                    4..14 => code.push(store(at, value)),
                    _ => code.push(load(at, random.random_range(0..16))),
                }
            }
        }
        code
    };
    let mut threads: Vec<Script> = (0..nodes).map(|node| Script::team(node, script(true))).collect();
    threads.extend((0..nodes).map(|node| Script::foreign(node, script(false))));
    let region = Region::new(0, 32 / granules_per_page, granules_per_page, Placement::Cyclic);
    Program::on(nodes, 32, threads).with_regions(vec![region])
}

/// Runs as many seeds as `HIROBA_CHECK_SEEDS` says, else a sample.
#[test]
fn converted_pages_are_sequentially_consistent_in_racy_programs() {
    let asked = std::env::var("HIROBA_CHECK_SEEDS").ok().map(|seeds| seeds.parse().expect("a number"));
    for manner in MANNERS {
        for seed in 0..asked.unwrap_or(sample::of(RANDOM_SEEDS)) {
            let what = || format!("{manner:?}, seed {seed}");
            let ended = run(&racy(seed), manner, seed, None);
            let ended = ended.unwrap_or_else(|failure| panic!("{}: {failure}", what()));
            assert_eq!(wrong(&ended, manner), None, "{}", what());
        }
    }
}

/// A page without races stays right in every other way, too.
#[test]
fn programs_without_races_behave_as_on_one_machine_when_their_pages_are_converted() {
    use hiroba_check::random_program::{Shape, generate};
    let shape = Shape { team: 1, foreign: 2, publications: false, waits: true };
    for seed in 0..sample::of(400) {
        let mut program = generate(seed, shape);
        let granules: Vec<PageId> =
            program.regions.iter().flat_map(|region| region.granules.iter()).collect();
        let converting = (0..3).map(|place| convert(granules[place * seed as usize % granules.len()].0));
        // A jump in a script leads to a place that moves.
        let has_no_jump = |script: &&mut Script| {
            !script.instructions.iter().any(|step| matches!(step, Instruction::JumpUnless { .. }))
        };
        let Some(script) = program.threads.iter_mut().find(has_no_jump) else { continue };
        let middle = script.instructions.len() / 2;
        script.instructions.splice(middle..middle, converting);
        for manner in MANNERS {
            let what = || format!("{manner:?}, seed {seed}");
            let ended = run(&program, manner, seed, None);
            let ended = ended.unwrap_or_else(|failure| panic!("{}: {failure}", what()));
            let verdict = axioms::judge(&ended.execution()).expect("all threads have ended");
            let violation = verdict.violations.first().map(|violation| &violation.explanation);
            assert_eq!(violation, None, "{}", what());
            let findings = page_axioms::judge(&ended.run, &Rules::hlrc(manner.one_sided));
            assert_eq!(findings.breaches, [], "{}", what());
        }
    }
}

#[test]
fn each_planted_bug_is_noticed() {
    each_is_noticed(Mutant::ALL, |mutant| {
        by_litmus(converting(), 0..SEEDS, |litmus, seed| shown(litmus, POSIX, seed, Some(mutant)))
    });
}

/// The oracle of random programs is awake.
#[test]
fn random_programs_notice_planted_bugs() {
    // Random programs rarely use two pages of one run.
    let mutants = Mutant::ALL.into_iter().filter(|mutant| *mutant != Mutant::LeaveOutOne);
    each_is_noticed(mutants, |mutant| {
        (0..RANDOM_SEEDS).find_map(|seed| match run(&racy(seed), POSIX, seed, Some(mutant)) {
            Ok(ended) => wrong(&ended, POSIX).map(|wrong| format!("seed {seed}: {wrong}")),
            Err(failure) => Some(format!("seed {seed}: {failure}")),
        })
    });
}
