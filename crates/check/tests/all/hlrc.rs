//! Home-based lazy release consistency under each way of tracking writes: litmus programs, and planted
//! bugs, each of which must be caught. Moving homes are in `moves.rs`, anticipation in `anticipation.rs`,
//! page facts in `page_axioms.rs`.

use hiroba_base::NodeId;
use hiroba_check::axioms::judge;
use hiroba_check::cluster::{Cluster, Ended, NetworkChoice, Options};
use hiroba_check::engines::{engine_under, hlrc};
use hiroba_check::litmus::{Litmus, catalogue};
use hiroba_check::mutant::Mutant;
use hiroba_check::program::script::*;
use hiroba_check::program::{Address, Program, Region, Script};
use hiroba_check::random_program::Shape;
use hiroba_protocol::hlrc::RESTING_AFTER_RELEASES;
use hiroba_protocol::{Protocol, WriteTracking};
use hiroba_trace::{Activity, Event};
use hiroba_wire::Placement;

use crate::planted::{at_random, by_litmus, each_is_noticed, shown};
use crate::sample;

const SEEDS: u64 = 500;
const TRACKINGS: [WriteTracking; 2] = [WriteTracking::Fault, WriteTracking::Async];
const STEPS_MAX: u64 = 20_000;

const SHAPES: [Shape; 4] = [
    Shape { team: 1, foreign: 0, publications: false, waits: false },
    Shape { team: 2, foreign: 0, publications: false, waits: false },
    Shape { team: 1, foreign: 2, publications: false, waits: false },
    Shape { team: 1, foreign: 2, publications: true, waits: false },
];

/// Returns what is wrong with one seed's run, and which of the outcomes to reach it shows.
fn examine(
    litmus: &Litmus,
    seed: u64,
    network: NetworkChoice,
    tracking: WriteTracking,
    one_sided: bool,
) -> Result<Vec<bool>, String> {
    let options = Options { network, one_sided, ..Options::seeded(seed, tracking) };
    let ended = Cluster::new(&litmus.program, hlrc(one_sided), options).run();
    let ended = ended.map_err(|failure| failure.to_string())?;
    if (litmus.forbid)(&ended) {
        let registers: Vec<_> = ended.registers.iter().map(|registers| &registers[..10]).collect();
        return Err(format!("a forbidden outcome: {registers:?}"));
    }
    let verdict = judge(&ended.execution()).map_err(|error| error.to_string())?;
    if let Some(violation) = verdict.violations.first() {
        return Err(violation.explanation.clone());
    }
    if litmus.race_free && !verdict.races.is_empty() {
        return Err(format!("a race in a program without races: {:?}", verdict.races[0]));
    }
    Ok(litmus.reach.iter().map(|(_, predicate)| predicate(&ended)).collect())
}

fn explore(tracking: WriteTracking, one_sided: bool) {
    for litmus in catalogue() {
        let mut reached = vec![false; litmus.reach.len()];
        for seed in 0..SEEDS {
            if sample::suffices(seed, SEEDS, &reached) {
                break;
            }
            match examine(&litmus, seed, NetworkChoice::Shuffled, tracking, one_sided) {
                Ok(seen) => reached.iter_mut().zip(seen).for_each(|(reached, seen)| *reached |= seen),
                Err(wrong) => {
                    panic!("{}, {tracking:?} tracking, seed {seed} ({}): {wrong}", litmus.name, litmus.about)
                }
            }
        }
        for ((what, _), reached) in litmus.reach.iter().zip(reached) {
            let name = litmus.name;
            assert!(reached, "{name}: no seed below {SEEDS} reaches '{what}' under {tracking:?} tracking");
        }
    }
}

#[test]
fn no_seed_shows_a_forbidden_outcome_and_some_seed_each_outcome_to_reach_where_writes_fault() {
    explore(WriteTracking::Fault, false);
}

#[test]
fn no_seed_shows_a_forbidden_outcome_and_some_seed_each_outcome_to_reach_where_writes_are_noted() {
    explore(WriteTracking::Async, false);
}

#[test]
fn the_same_holds_where_nodes_read_each_others_frames_and_writes_fault() {
    explore(WriteTracking::Fault, true);
}

#[test]
fn the_same_holds_where_nodes_read_each_others_frames_and_writes_are_noted() {
    explore(WriteTracking::Async, true);
}

#[test]
fn loss_duplication_and_reordering_beneath_the_link_change_nothing() {
    for (litmus, tracking) in
        catalogue().iter().flat_map(|litmus| TRACKINGS.map(|tracking| (litmus, tracking)))
    {
        for seed in 0..sample::of(SEEDS / 20) {
            let examined = examine(litmus, seed, NetworkChoice::Lossy, tracking, seed % 2 == 1);
            examined.unwrap_or_else(|wrong| {
                panic!("{}, {tracking:?} tracking, seed {seed}: {wrong}", litmus.name)
            });
        }
    }
}

/// A copy that rests may be written between the last examination and the loss of its access.
#[test]
fn copies_that_rest_lose_nothing() {
    let at = |index: u32| Address::word(1 + 2 * u64::from(index % 4), index);
    let mut writer = Vec::new();
    for index in 0..12 {
        writer.push(store(at(index), u64::from(index) + 1));
        writer.push(add(1, 1));
        let here = writer.len();
        // The loop is a delay.
        writer.extend([add(0, 1), jump_unless(0, 800 * (u64::from(index) + 1), here)]);
    }
    writer.push(barrier());
    let rounds = u64::from(RESTING_AFTER_RELEASES) * 2 + 100;
    let releaser = vec![lock(0), unlock(0), add(0, 1), jump_unless(0, rounds, 0), barrier()];
    let mut reader = vec![barrier()];
    reader.extend((0..12).map(|index| load(at(index), index as u8)));
    let program =
        Program::on(2, 8, vec![Script::team(0, writer), Script::team(0, releaser), Script::team(1, reader)]);
    for seed in 0..20 {
        let options = Options::seeded(seed, WriteTracking::Async);
        let ended = Cluster::new(&program, engine_under(Protocol::Hlrc), options).run();
        let ended = ended.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        for index in 0..12 {
            assert_eq!(ended.register(2, index), index as u64 + 1, "seed {seed}, word {index}");
        }
    }
}

/// Node 1 reads pages in each phase that node 0 writes before it.
#[test]
fn threads_that_leave_a_barrier_have_the_pages_of_a_habit() {
    const PHASES: u64 = 24;
    const PAGES: u64 = 3;
    let words = || (0..PAGES).map(|page| Address::word(page, 0));
    let phase = |me: u16, phase: u64| {
        let stores = words().filter(move |_| me == 0).map(move |word| store(word, phase + 1));
        let loads = words().filter(move |_| me == 1).flat_map(|word| [load(word, 0), add_register(1, 0)]);
        stores.chain([barrier()]).chain(loads).chain([barrier()]).collect::<Vec<_>>()
    };
    let script = |me| Script::team(me, (0..PHASES).flat_map(|number| phase(me, number)).collect());
    let region = Region::new(0, PAGES, 1, Placement::On(NodeId(0)));
    let program = Program::on(2, 0, vec![script(0), script(1)]).with_regions(vec![region]);
    let mut counts = Vec::new();
    for (tracking, seed) in
        TRACKINGS.into_iter().flat_map(|tracking| (0..40).map(move |seed| (tracking, seed)))
    {
        let ended = run(&program, seed, tracking, false, None);
        let ended = ended.unwrap_or_else(|wrong| panic!("{tracking:?}, seed {seed}: {wrong}"));
        assert_eq!(ended.register(1, 1), PAGES * PHASES * (PHASES + 1) / 2, "{tracking:?}, seed {seed}");
        let is_fault = |event: &Event| matches!(event, Event::Enter(Activity::Fault { .. }));
        let faults = ended.run.nodes[1].records.iter().filter(|record| is_fault(&record.event)).count();
        counts.push(faults as u64);
    }
    counts.sort_unstable();
    // Two until there is a habit, and three trials. A node that leaves late may lose a page before it reads
    // it.
    assert_eq!(counts[counts.len() / 2], PAGES * 5, "{counts:?}");
}

fn run(
    program: &Program,
    seed: u64,
    tracking: WriteTracking,
    one_sided: bool,
    mutant: Option<Mutant>,
) -> Result<Ended, String> {
    let mut options = Options { steps_max: STEPS_MAX, one_sided, ..Options::seeded(seed, tracking) };
    if let Some(mutant) = mutant {
        options.mutation = mutant.plant();
    }
    let ended = Cluster::new(program, hlrc(one_sided), options).run();
    let ended = ended.map_err(|failure| failure.to_string())?;
    let verdict = judge(&ended.execution()).map_err(|error| error.to_string())?;
    match verdict.violations.first() {
        Some(violation) => Err(violation.explanation.clone()),
        None => Ok(ended),
    }
}

/// Returns what catches the bug first, preferably a litmus program.
fn noticed(tracking: WriteTracking, one_sided: bool, mutant: Option<Mutant>) -> Option<String> {
    let run = |program: &Program, seed| run(program, seed, tracking, one_sided, mutant);
    by_litmus(catalogue(), 0..100, |litmus, seed| shown(litmus, run(&litmus.program, seed)))
        .or_else(|| at_random(SHAPES, 0..300, |program, seed| run(program, seed).err()))
}

fn every_mutant_is_noticed(tracking: WriteTracking, one_sided: bool) {
    let concerned = Mutant::ALL.into_iter().filter(|mutant| mutant.concerns(tracking));
    let concerned = concerned.filter(|mutant| mutant.is_one_sided() == one_sided);
    each_is_noticed(concerned, |mutant| noticed(tracking, one_sided, Some(mutant)));
}

#[test]
fn every_mutant_is_noticed_where_writes_fault() {
    every_mutant_is_noticed(WriteTracking::Fault, false);
}

#[test]
fn every_mutant_is_noticed_where_writes_are_noted() {
    every_mutant_is_noticed(WriteTracking::Async, false);
}

#[test]
fn every_mutant_of_one_sided_reading_is_noticed_where_writes_fault() {
    every_mutant_is_noticed(WriteTracking::Fault, true);
}

#[test]
fn every_mutant_of_one_sided_reading_is_noticed_where_writes_are_noted() {
    every_mutant_is_noticed(WriteTracking::Async, true);
}

#[test]
fn the_faithful_engine_passes_the_same_seeds() {
    for tracking in [WriteTracking::Fault, WriteTracking::Async] {
        assert_eq!(noticed(tracking, false, None), None);
        assert_eq!(noticed(tracking, true, None), None);
    }
}
