//! Pages that travel with departures from collectives: engines lend all that they can.

use hiroba_base::NodeId;
use hiroba_check::axioms::judge;
use hiroba_check::cluster::{Cluster, Ended, NetworkChoice, Options};
use hiroba_check::engines::engine_of;
use hiroba_check::litmus::{Litmus, catalogue, followed, lending, order, sequential as racy};
use hiroba_check::mutant::lending::Mutant;
use hiroba_check::page_axioms::{self, Rules};
use hiroba_check::program::script::{barrier, load, store};
use hiroba_check::program::{Address, Program, Region};
use hiroba_check::random_program::{Shape, generate};
use hiroba_check::sequential::{self, Sequential};
use hiroba_protocol::{Protocol, WriteTracking};
use hiroba_trace::Event;
use hiroba_wire::{Message, Placement};

use crate::planted::{by_litmus, each_is_noticed};
use crate::sample;

const SEEDS: u64 = 500;

/// The protocol of the first region; the second one is under sequential consistency.
pub(crate) fn protocols() -> [(Protocol, WriteTracking); 3] {
    use WriteTracking::{Async, Fault};
    [(Protocol::Sc, Fault), (Protocol::Hlrc, Fault), (Protocol::Hlrc, Async)]
}

pub(crate) fn run(
    program: &Program,
    first: (Protocol, WriteTracking),
    seed: u64,
    mutant: Option<Mutant>,
) -> Result<Ended, String> {
    run_carrying(true, program, first, seed, mutant)
}

/// Runs a program. If not `all`, engines lend what others have requested before.
fn run_carrying(
    all: bool,
    program: &Program,
    (first, tracking): (Protocol, WriteTracking),
    seed: u64,
    mutant: Option<Mutant>,
) -> Result<Ended, String> {
    // Over the link no node sends to itself, as a planted bug does.
    let is_lossy = seed.is_multiple_of(20) && mutant.is_none();
    let network = if is_lossy { NetworkChoice::Lossy } else { NetworkChoice::Shuffled };
    let region_protocols = vec![None, Some(Protocol::Sc)];
    let mut options =
        Options { network, region_protocols, steps_max: 50_000, ..Options::seeded(seed, tracking) };
    if let Some(mutant) = mutant {
        options.mutation = mutant.plant();
    }
    // Every third job is a deep tree.
    let below_max = if seed.is_multiple_of(3) { 1 } else { 4 };
    let engine = |me, limits, tracking| {
        let engine = engine_of(first, me, limits, tracking).meeting_below(below_max).telling();
        if all { engine.carrying_all() } else { engine }
    };
    Cluster::new(program, engine, options).run().map_err(|failure| failure.to_string())
}

/// Returns what the checkers find wrong, if anything.
pub(crate) fn convicted(ended: &Ended, first: Protocol) -> Option<String> {
    let execution = ended.execution();
    if first == Protocol::Sc
        && let Sequential::No { explanation } = sequential::judge(&execution)
    {
        return Some(explanation);
    }
    let violation = judge(&execution).unwrap().violations.into_iter().next();
    let breach = || page_axioms::judge(&ended.run, &Rules::of(first)).breaches.into_iter().next();
    violation.map(|violation| violation.explanation).or_else(|| breach().map(|breach| breach.explanation))
}

/// Runs a litmus program with many seeds, under a protocol of the first region.
pub(crate) fn explore(
    litmus: &Litmus,
    first: (Protocol, WriteTracking),
    run: impl Fn(u64) -> Result<Ended, String>,
) {
    let mut reached = vec![false; litmus.reach.len()];
    for seed in 0..4 * SEEDS {
        if sample::suffices(seed, 4 * SEEDS, &reached) {
            break;
        }
        let ended =
            run(seed).unwrap_or_else(|failure| panic!("{first:?}, {}, seed {seed}: {failure}", litmus.name));
        let outcome = (litmus.forbid)(&ended);
        assert!(!outcome, "{first:?}, {}, seed {seed}: a forbidden outcome", litmus.name);
        assert_eq!(convicted(&ended, first.0), None, "{first:?}, {}, seed {seed}", litmus.name);
        let registers = reached.iter_mut().zip(&litmus.reach);
        registers.for_each(|(reached, (_, seen))| *reached |= seen(&ended));
    }
    for ((what, _), reached) in litmus.reach.iter().zip(reached) {
        assert!(reached, "{first:?}, {}: no seed reaches '{what}'", litmus.name);
    }
}

#[test]
fn lent_copies_show_what_is_allowed() {
    for first in protocols() {
        let all = lending().into_iter().map(|litmus| (true, litmus));
        for (all, litmus) in all.chain(followed().into_iter().map(|litmus| (false, litmus))) {
            explore(&litmus, first, |seed| run_carrying(all, &litmus.program, first, seed, None));
        }
    }
}

#[test]
fn programs_behave_as_without_lending() {
    for first in protocols() {
        let litmus =
            if first.0 == Protocol::Sc { catalogue().into_iter().chain(racy()).collect() } else { order() };
        for litmus in litmus {
            for seed in 0..sample::of(50) {
                let ended = run(&litmus.program, first, seed, None)
                    .unwrap_or_else(|failure| panic!("{first:?}, {}, seed {seed}: {failure}", litmus.name));
                assert!(!(litmus.forbid)(&ended), "{first:?}, {}, seed {seed}", litmus.name);
                assert_eq!(convicted(&ended, first.0), None, "{first:?}, {}, seed {seed}", litmus.name);
            }
        }
    }
}

#[test]
fn random_programs_behave_as_without_lending() {
    for first in protocols() {
        for shape in [
            Shape { team: 1, foreign: 0, publications: false, waits: false },
            Shape { team: 2, foreign: 1, publications: false, waits: false },
            Shape { team: 2, foreign: 1, publications: false, waits: true },
        ] {
            for seed in 0..sample::of(SEEDS) {
                let ended = run(&generate(seed, shape), first, seed, None)
                    .unwrap_or_else(|failure| panic!("{first:?}, {shape:?}, seed {seed}: {failure}"));
                assert_eq!(convicted(&ended, first.0), None, "{first:?}, {shape:?}, seed {seed}");
            }
        }
    }
}

/// Node 0 stores to a page in the first, third and fourth of five phases, and node 1 reads it in the others.
/// A copy for the fourth phase would be in vain, whose store comes after all the same.
#[test]
fn a_page_is_lent_for_the_phases_without_stores() {
    const STEPS: u64 = 60;
    let page = Address::word(1, 0);
    let stores = (0..STEPS).flat_map(|step| {
        let value = |number| store(page, 3 * step + number);
        [value(1), barrier(), barrier(), value(2), barrier(), value(3), barrier(), barrier()]
    });
    let loads = (0..STEPS)
        .flat_map(|_| [barrier(), load(page, 0), barrier(), barrier(), barrier(), load(page, 1), barrier()]);
    let regions =
        [Region::new(0, 1, 1, Placement::On(NodeId(1))), Region::new(1, 1, 1, Placement::On(NodeId(0)))];
    let program = Program::new(4, [stores.collect::<Vec<_>>(), loads.collect()]);
    let program = program.with_regions(regions.to_vec());
    for first in protocols() {
        let mut all = 0;
        for seed in 0..20 {
            let ended = run_carrying(false, &program, first, seed, None)
                .unwrap_or_else(|failure| panic!("{first:?}, seed {seed}: {failure}"));
            assert_eq!(convicted(&ended, first.0), None, "{first:?}, seed {seed}");
            let is_request = |event: &Event| match event {
                Event::Sent { kind, .. } => Message::KINDS[usize::from(kind.0)] == "CopiesRequest",
                _ => false,
            };
            let records = &ended.run.nodes[1].records;
            all += records.iter().filter(|record| is_request(&record.event)).count() as u64;
        }
        // Without that, nearly all loads.
        assert!(all < 20 * STEPS, "{first:?}: {all} requests for {} loads", 20 * 2 * STEPS);
    }
}

fn wrong(all: bool, litmus: &Litmus, seed: u64, mutant: Option<Mutant>) -> Option<String> {
    let first = (Protocol::Sc, WriteTracking::Fault);
    match run_carrying(all, &litmus.program, first, seed, mutant) {
        Ok(ended) if (litmus.forbid)(&ended) => Some("a forbidden outcome".to_owned()),
        Ok(ended) => convicted(&ended, first.0),
        Err(failure) => Some(failure),
    }
}

#[test]
fn each_planted_bug_is_noticed() {
    for (all, programs) in [(true, lending as fn() -> Vec<Litmus>), (false, followed)] {
        let noticed =
            |mutant| by_litmus(programs(), 0..SEEDS, |litmus, seed| wrong(all, litmus, seed, mutant));
        assert_eq!(noticed(None), None);
        each_is_noticed(Mutant::ALL, |mutant| noticed(Some(mutant)));
    }
}
