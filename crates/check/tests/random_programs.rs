//! Random data-race-free programs must behave as on one machine.

use hiroba_base::NodeId;
use hiroba_check::axioms::judge;
use hiroba_check::cluster::{Cluster, NetworkChoice, Options};
use hiroba_check::random_program::{Shape, generate};
use hiroba_protocol::WriteTracking;
use hiroba_protocol::barrier::BELOW_MAX;
use hiroba_protocol::hlrc::{Hlrc, RESTING_AFTER_RELEASES};
use hiroba_wire::Limits;

const ONE_THREAD: Shape = Shape { team: 1, foreign: 0, publications: false };
const TEAMS_OF_TWO: Shape = Shape { team: 2, ..ONE_THREAD };
const FOREIGN_THREADS: Shape = Shape { foreign: 2, ..ONE_THREAD };
const TEAMS_AND_FOREIGN_THREADS: Shape = Shape { team: 2, foreign: 1, ..ONE_THREAD };
const PUBLICATIONS: Shape = Shape { publications: true, ..ONE_THREAD };
const FOREIGN_THREADS_AND_PUBLICATIONS: Shape = Shape { foreign: 1, ..PUBLICATIONS };

/// Whose frames a node reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Nobody,
    Everybody,
    /// Of every other node, as where several nodes run on each of two machines.
    EveryOther,
}

impl Reach {
    fn includes(self, reader: NodeId, home: NodeId) -> bool {
        match self {
            Reach::Nobody => false,
            Reach::Everybody => true,
            Reach::EveryOther => reader.0 % 2 == home.0 % 2,
        }
    }
}

fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |text| text.parse().expect("a number"))
}

/// How many loads of the program were judged, or what is wrong.
fn examine(
    shape: Shape,
    network: NetworkChoice,
    tracking: WriteTracking,
    reach: Reach,
    seed: u64,
) -> Result<u64, String> {
    let options = Options { network, one_sided: reach != Reach::Nobody, ..Options::seeded(seed, tracking) };
    // Pages go to rest within a run of a few releases only if they may do so soon.
    let rest_after = [2, 5, RESTING_AFTER_RELEASES][(seed % 3) as usize];
    // So few nodes are a deep tree only if few may be below each.
    let below_max = [1, 2, BELOW_MAX][(seed / 3 % 3) as usize];
    let engine = |me, limits: Limits, tracking| {
        let engine = Hlrc::new(me, limits, tracking).resting_after(rest_after).meeting_below(below_max);
        engine.reading_from(NodeId::all(limits.nodes).filter(|node| reach.includes(me, *node)))
    };
    let ended = Cluster::new(&generate(seed, shape), engine, options).run();
    let ended = ended.map_err(|failure| failure.to_string())?;
    let verdict = judge(&ended.execution()).map_err(|error| error.to_string())?;
    assert!(verdict.races.is_empty(), "seed {seed}: the generator made a race: {:?}", verdict.races[0]);
    match verdict.violations.first() {
        Some(violation) => Err(violation.explanation.clone()),
        None => Ok(verdict.loads_judged as u64),
    }
}

/// Runs the programs of many seeds under both ways of tracking writes.
fn explore(shape: Shape, network: NetworkChoice, reach: Reach, seeds: u64) {
    let first = from_environment("HIROBA_CHECK_FIRST_SEED", 0);
    let seeds = from_environment("HIROBA_CHECK_SEEDS", seeds);
    for tracking in [WriteTracking::Fault, WriteTracking::Async] {
        let judged = (first..first + seeds).map(|seed| {
            examine(shape, network, tracking, reach, seed).unwrap_or_else(|wrong| {
                panic!("{shape:?}, {network:?}, {reach:?} within reach, {tracking:?} tracking, seed {seed}: {wrong}")
            })
        });
        let judged: u64 = judged.sum();
        assert!(judged >= seeds || seeds < 10, "programs must load something to be judged");
    }
}

#[test]
fn random_programs_behave_as_on_one_machine() {
    explore(ONE_THREAD, NetworkChoice::Shuffled, Reach::Nobody, 1000);
}

#[test]
fn random_programs_with_teams_of_two_behave_as_on_one_machine() {
    explore(TEAMS_OF_TWO, NetworkChoice::Shuffled, Reach::Nobody, 1000);
}

#[test]
fn random_programs_with_foreign_threads_behave_as_on_one_machine() {
    explore(FOREIGN_THREADS, NetworkChoice::Shuffled, Reach::Nobody, 1000);
}

#[test]
fn random_programs_with_teams_and_foreign_threads_behave_as_on_one_machine() {
    explore(TEAMS_AND_FOREIGN_THREADS, NetworkChoice::Shuffled, Reach::Nobody, 500);
}

#[test]
fn random_programs_over_a_lossy_network_behave_as_on_one_machine() {
    explore(TEAMS_AND_FOREIGN_THREADS, NetworkChoice::Lossy, Reach::Nobody, 100);
}

#[test]
fn random_programs_with_publications_behave_as_on_one_machine() {
    explore(PUBLICATIONS, NetworkChoice::Shuffled, Reach::Nobody, 1000);
}

#[test]
fn random_programs_with_publications_and_foreign_threads_behave_as_on_one_machine() {
    explore(FOREIGN_THREADS_AND_PUBLICATIONS, NetworkChoice::Shuffled, Reach::Nobody, 500);
}

#[test]
fn random_programs_behave_as_on_one_machine_where_nodes_read_each_others_frames() {
    explore(ONE_THREAD, NetworkChoice::Shuffled, Reach::Everybody, 1000);
}

#[test]
fn random_programs_with_teams_and_foreign_threads_behave_so_too() {
    explore(TEAMS_AND_FOREIGN_THREADS, NetworkChoice::Shuffled, Reach::Everybody, 500);
}

#[test]
fn random_programs_with_publications_and_foreign_threads_behave_so_too() {
    explore(FOREIGN_THREADS_AND_PUBLICATIONS, NetworkChoice::Shuffled, Reach::Everybody, 3000);
}

#[test]
fn random_programs_behave_so_where_some_frames_are_out_of_reach() {
    explore(TEAMS_AND_FOREIGN_THREADS, NetworkChoice::Shuffled, Reach::EveryOther, 500);
}

#[test]
fn random_programs_behave_so_over_a_lossy_network() {
    explore(TEAMS_AND_FOREIGN_THREADS, NetworkChoice::Lossy, Reach::Everybody, 100);
}
