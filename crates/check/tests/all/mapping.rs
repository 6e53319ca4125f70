//! Automatic update if nodes share memory: runs of pages are mapped onto their homes' frames, the others are
//! updated in the background.

use hiroba_base::{NodeId, PageId, PageRange};
use hiroba_check::axioms::judge;
use hiroba_check::cluster::{Cluster, Ended, NetworkChoice, Options};
use hiroba_check::engines::mapping_aurc;
use hiroba_check::litmus::{Litmus, catalogue, early, mapped, sequential as racy};
use hiroba_check::mutant::mapping::Mutant;
use hiroba_check::page_axioms::{self, Rules};
use hiroba_check::program::{GRANULE_BYTES, Program};
use hiroba_check::random_program::{Shape, generate};
use hiroba_check::sequential::{self, Sequential};
use hiroba_protocol::home::HomePolicy;
use hiroba_protocol::{Engine, Protocol, WriteTracking};
use hiroba_trace::Event;
use hiroba_wire::Placement;

use crate::planted::{by_litmus, each_is_noticed, shown};
use crate::sample;

const SEEDS: u64 = 200;
const STEPS_MAX: u64 = 40_000;

/// The least number of granules in a mapped run. With one, all pages are mapped; with more, most programs
/// have both kinds.
const RUNS: [u64; 4] = [1, 2, 3, 16];

const SHAPES: [Shape; 4] = [
    Shape { team: 1, foreign: 0, publications: false, waits: false },
    Shape { team: 2, foreign: 0, publications: false, waits: false },
    Shape { team: 1, foreign: 2, publications: false, waits: false },
    Shape { team: 1, foreign: 2, publications: true, waits: false },
];

/// The conditions of a run.
#[derive(Clone, Copy, Debug)]
struct Way {
    run_granules: u64,
    tracking: WriteTracking,
    one_sided: bool,
    /// How the homes of unmapped pages move.
    homes: HomePolicy,
}

impl Way {
    /// Shared memory may be read by other nodes, but need not be.
    fn of(seed: u64, run_granules: u64) -> Way {
        let tracking = if seed.is_multiple_of(2) { WriteTracking::Fault } else { WriteTracking::Async };
        let homes = HomePolicy::ALL[seed as usize / 6 % 3];
        Way { run_granules, tracking, one_sided: !(seed / 2).is_multiple_of(3), homes }
    }
}

/// Runs a program, and returns what is wrong, if anything.
fn run(program: &Program, seed: u64, way: Way, mutant: Option<Mutant>) -> Result<Ended, String> {
    let Way { run_granules, tracking, one_sided, homes } = way;
    let mut options = Options { one_sided, steps_max: STEPS_MAX, ..Options::seeded(seed, tracking) };
    if let Some(mutant) = mutant {
        options.mutation = mutant.plant();
    }
    let engine = mapping_aurc(run_granules * u64::from(GRANULE_BYTES), one_sided, homes);
    let ended = Cluster::new(program, engine, options).run().map_err(|failure| failure.to_string())?;
    let verdict = judge(&ended.execution()).map_err(|error| error.to_string())?;
    if let Some(violation) = verdict.violations.first() {
        return Err(violation.explanation.clone());
    }
    let findings = page_axioms::judge(&ended.run, &Rules::aurc(one_sided));
    match findings.breaches.first() {
        Some(breach) => Err(format!("{}: {}", breach.axiom, breach.explanation)),
        None => Ok(ended),
    }
}

fn programs() -> Vec<Litmus> {
    early().into_iter().chain(catalogue()).collect()
}

/// `reaches`: some seed must show every outcome that the program may show.
fn explore(programs: Vec<Litmus>, run_granules: u64, reaches: bool) {
    for litmus in programs {
        let mut reached = vec![!reaches; litmus.reach.len()];
        for seed in 0..SEEDS {
            if sample::suffices(seed, SEEDS, &reached) {
                break;
            }
            let way = Way::of(seed, run_granules);
            let wrong = |wrong: &str| -> ! {
                panic!("{}, {way:?}, seed {seed} ({}): {wrong}", litmus.name, litmus.about)
            };
            let ended = run(&litmus.program, seed, way, None).unwrap_or_else(|error| wrong(&error));
            if (litmus.forbid)(&ended) {
                let registers: Vec<_> = ended.registers.iter().map(|registers| &registers[..10]).collect();
                wrong(&format!("a forbidden outcome: {registers:?}"));
            }
            reached.iter_mut().zip(&litmus.reach).for_each(|(reached, (_, seen))| *reached |= seen(&ended));
        }
        for ((what, _), reached) in litmus.reach.iter().zip(reached) {
            assert!(reached, "{}: no seed below {SEEDS} reaches '{what}'", litmus.name);
        }
    }
}

#[test]
fn litmus_programs_show_nothing_that_they_may_not_where_all_pages_are_mapped() {
    explore(programs(), 1, false);
}

#[test]
fn the_same_where_longer_runs_are_mapped() {
    explore(programs(), 2, false);
}

#[test]
fn what_mapped_pages_may_show_is_shown() {
    explore(mapped(), 1, true);
}

/// One memory, one order: the simulator's threads have no store buffers, so mapped pages must not show
/// anything weaker.
#[test]
fn programs_with_races_find_one_memory_where_all_pages_are_mapped() {
    explore(racy(), 1, true);
    for litmus in racy() {
        for seed in 0..SEEDS / 4 {
            let ended = run(&litmus.program, seed, Way::of(seed, 1), None).unwrap();
            if let Sequential::No { explanation } = sequential::judge(&ended.execution()) {
                panic!("{}, seed {seed}: {explanation}", litmus.name);
            }
        }
    }
}

/// Returns as many seeds as `HIROBA_CHECK_SEEDS` says, else `count`, beginning with `HIROBA_CHECK_FIRST`.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let asked = |name: &str| std::env::var(name).ok().map(|value| value.parse().expect("a number"));
    let first = asked("HIROBA_CHECK_FIRST").unwrap_or(0);
    first..first + asked("HIROBA_CHECK_SEEDS").unwrap_or(count)
}

fn placed_by_first_touch(mut program: Program) -> Program {
    program.regions.iter_mut().for_each(|region| region.placement = Placement::FirstTouch);
    program
}

#[test]
fn pages_go_where_they_are_touched_first_unless_they_are_mapped() {
    let moves = |run_granules| {
        let runs = (0..SEEDS).map(|seed| {
            let way = Way { homes: HomePolicy::Fixed, ..Way::of(seed, run_granules) };
            run(&placed_by_first_touch(generate(seed, SHAPES[0])), seed, way, None).unwrap()
        });
        let records = runs.flat_map(|ended| ended.run.nodes.into_iter().flat_map(|node| node.records));
        records.filter(|record| matches!(record.event, Event::Moved { .. })).count()
    };
    assert_eq!(moves(1), 0, "all are mapped");
    assert!(moves(3) > 0, "not all are mapped");
}

#[test]
fn random_programs_behave_as_on_one_machine() {
    for seed in seeds(sample::of(3000)) {
        let way = Way::of(seed, RUNS[seed as usize / 4 % RUNS.len()]);
        let program = generate(seed, SHAPES[seed as usize / 16 % SHAPES.len()]);
        let program = if (seed / 64).is_multiple_of(2) { placed_by_first_touch(program) } else { program };
        let ended = run(&program, seed, way, None);
        let ended = ended.unwrap_or_else(|wrong| panic!("seed {seed}, {way:?}: {wrong}"));
        if seed.is_multiple_of(8)
            && let Sequential::No { explanation } = sequential::judge_race_free(&ended.execution())
        {
            panic!("seed {seed}, {way:?}: {explanation}");
        }
    }
}

/// In a job of another protocol, a region may still request this one.
#[test]
fn regions_of_several_protocols_are_right_beside_mapped_ones() {
    for seed in 0..SEEDS * 2 {
        let tracking = WriteTracking::Fault;
        let others = Protocol::ALL.into_iter().cycle().skip(seed as usize % Protocol::ALL.len());
        let region_protocols =
            [None, Some(Protocol::Aurc)].into_iter().chain(others.take(2).map(Some)).collect();
        let network = NetworkChoice::Shuffled;
        let options = Options { network, region_protocols, ..Options::seeded(seed, tracking) };
        let engine = |me, limits, tracking| {
            let engine = hiroba_protocol::Consistency::under(Protocol::Lrc, me, limits, tracking, []);
            engine.telling().mapping_homes(hiroba_protocol::aurc::mapped::MappingRule { run_bytes_min: 4096 })
        };
        let program = generate(seed, SHAPES[seed as usize % 3]);
        let ended = Cluster::new(&program, engine, options).run();
        let ended = ended.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        let verdict = judge(&ended.execution()).unwrap();
        assert_eq!(verdict.violations.first().map(|violation| &violation.explanation), None, "seed {seed}");
    }
}

#[test]
fn mapped_pages_make_no_faults_twins_diffs_nor_fetches() {
    let shape = Shape { team: 1, foreign: 0, publications: false, waits: false };
    let mut mapped_loads = 0;
    for seed in 0..SEEDS {
        let program = generate(seed, shape);
        let ended = run(&program, seed, Way::of(seed, 1), None).unwrap();
        for node in &ended.run.nodes {
            for record in &node.records {
                match &record.event {
                    Event::Enter(hiroba_trace::Activity::Fault { .. })
                    | Event::Twinned { .. }
                    | Event::Diffed { .. }
                    | Event::Holds { .. }
                    | Event::Applied { .. }
                    | Event::Closed { .. } => panic!("seed {seed}: {:?}", record.event),
                    Event::Load { .. } => mapped_loads += 1,
                    _ => {}
                }
            }
        }
    }
    assert!(mapped_loads > 1000, "{mapped_loads} loads are no proof");
}

/// Returns what catches the bug first, and how.
fn noticed(mutant: Option<Mutant>) -> Option<String> {
    let in_litmus = by_litmus(mapped().into_iter().chain(programs()), 0..SEEDS / 4, |litmus, seed| {
        let way = Way::of(seed, 1 + seed / 6 % 2);
        Some(format!("{way:?}: {}", shown(litmus, run(&litmus.program, seed, way, mutant))?))
    });
    in_litmus.or_else(|| {
        (0..SEEDS * 4).find_map(|seed| {
            let way = Way::of(seed, RUNS[seed as usize / 4 % 2]);
            let ended = run(&generate(seed, SHAPES[seed as usize / 16 % 3]), seed, way, mutant);
            Some(format!("random program, seed {seed}, {way:?}: {}", ended.err()?))
        })
    })
}

#[test]
fn every_planted_bug_is_noticed() {
    each_is_noticed(Mutant::ALL, |mutant| noticed(Some(mutant)));
}

/// Returns what is mapped of a region, by node and home.
#[test]
fn runs_are_cut_where_homes_change_and_short_ones_stay() {
    use hiroba_base::PageSize;
    use hiroba_protocol::Effect;
    use hiroba_wire::Limits;
    let limits = Limits { nodes: 3, region_granules: 64, granule_bytes: GRANULE_BYTES };
    let mapped_of = |placement, pages: u64, run_granules: u64| {
        let mut engine = mapping_aurc(run_granules * u64::from(GRANULE_BYTES), true, HomePolicy::Fixed)(
            NodeId(1),
            limits,
            WriteTracking::Fault,
        );
        engine.add_region(PageRange { first: PageId(4), count: pages }, PageSize::KIB_4, placement);
        let mut runs = Vec::new();
        while let Some(effect) = engine.poll_effect() {
            let Effect::MapHome { pages, home } = effect else { panic!("{effect:?}") };
            runs.push((pages.first.0, pages.count, home.0));
        }
        runs
    };
    assert_eq!(mapped_of(Placement::Block, 14, 5), [(4, 5, 0), (9, 5, 1)], "the last run is short");
    assert_eq!(mapped_of(Placement::Block, 14, 4), [(4, 5, 0), (9, 5, 1), (14, 4, 2)]);
    assert_eq!(mapped_of(Placement::Block, 14, 6), []);
    assert_eq!(mapped_of(Placement::FirstTouch, 14, 5), mapped_of(Placement::Block, 14, 5));
    assert_eq!(mapped_of(Placement::Cyclic, 14, 2), []);
    assert_eq!(mapped_of(Placement::Cyclic, 3, 1), [(4, 1, 0), (5, 1, 1), (6, 1, 2)]);
    assert_eq!(mapped_of(Placement::On(NodeId(2)), 14, 14), [(4, 14, 2)]);
    assert_eq!(mapped_of(Placement::On(NodeId(2)), 14, 15), []);
}
