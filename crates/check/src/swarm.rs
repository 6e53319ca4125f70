//! Random programs under random conditions: one seed chooses the program, the features (loss, slow links,
//! one-sided reads, resting pages, narrow trees, …) and the schedule, so that one seed reproduces a failure.
//!
//! Read first: Groce et al., *Swarm Testing*, ISSTA 2012: leaving features out of a test at random finds more
//! than always having all of them.

use hiroba_base::{NodeId, RngExt, seeded};
use hiroba_protocol::adaptive::adaptive;
use hiroba_protocol::aurc::Aurc;
use hiroba_protocol::barrier::BELOW_MAX;
use hiroba_protocol::coherence::Coherence;
use hiroba_protocol::erc::{Erc, Mode};
use hiroba_protocol::hlrc::{Hlrc, RESTING_AFTER_RELEASES};
use hiroba_protocol::home::HomePolicy;
use hiroba_protocol::{Consistency, Homes, Protocol, WriteTracking};
use hiroba_wire::{Limits, Placement};
use thiserror::Error;

use crate::cluster::{Cluster, Failure, NetworkChoice, Options};
use crate::engines::{SOON, trackings_of};
use crate::execution::Execution;
use crate::mutant::{Faithful, Mutant, Mutation};
use crate::page_axioms::Rules;
use crate::program::Program;
use crate::random_program::{Shape, generate};
use crate::sequential::Sequential;
use crate::{axioms, page_axioms, sequential};

/// The nodes whose frames a node reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// None: nodes only exchange messages.
    Nobody,
    /// All other nodes.
    Everybody,
    /// Every second node, as if several nodes ran on each of two machines.
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

/// The conditions of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// The protocol.
    pub protocol: Protocol,
    /// Chooses the schedule, and the faults of network and host within the other conditions.
    pub schedule: u64,
    /// The network.
    pub network: NetworkChoice,
    /// How nodes detect what their programs write.
    pub tracking: WriteTracking,
    /// The nodes whose frames a node reads.
    pub reach: Reach,
    /// The number of unwritten releases after which pages rest.
    pub rest_after: u32,
    /// The number of children of each node in the tree.
    pub below_max: u16,
    /// How homes move.
    pub homes: HomePolicy,
    /// Whether nodes are short of memory, so that pages leave them.
    pub shortages: bool,
    /// Whether pages that go with locks are fetched with them; under the adaptive protocol, whether it learns
    /// within a few barriers.
    pub follows_locks: bool,
}

impl Conditions {
    /// Returns the simplest conditions.
    pub fn plain(schedule: u64) -> Conditions {
        Conditions {
            protocol: Protocol::Hlrc,
            schedule,
            network: NetworkChoice::Shuffled,
            tracking: WriteTracking::Async,
            reach: Reach::Nobody,
            rest_after: RESTING_AFTER_RELEASES,
            below_max: BELOW_MAX,
            homes: HomePolicy::Fixed,
            shortages: false,
            follows_locks: false,
        }
    }
}

/// A program and its conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The program.
    pub program: Program,
    /// The conditions.
    pub conditions: Conditions,
}

impl Case {
    /// Returns the case of a seed under home-based lazy release consistency.
    pub fn of(seed: u64) -> Case {
        Case::under(Protocol::Hlrc, seed)
    }

    /// Returns the case of a seed under a protocol, with those features of the seed that the protocol
    /// supports.
    pub fn under(protocol: Protocol, seed: u64) -> Case {
        let mut random = seeded(seed ^ 0x0005_3a12);
        let mut shape = Shape {
            team: random.random_range(1..=2),
            foreign: random.random_range(0..=2),
            publications: random.random_bool(0.4),
            waits: false,
        };
        // The lossy network carries no messages of a node to itself, such as publications between its
        // threads.
        let is_lossy = random.random_range(0..16) == 0 && !shape.publications;
        let mut conditions = Conditions {
            protocol,
            schedule: seed,
            network: if is_lossy { NetworkChoice::Lossy } else { NetworkChoice::Shuffled },
            tracking: if random.random_bool(0.5) { WriteTracking::Async } else { WriteTracking::Fault },
            reach: [Reach::Nobody, Reach::Everybody, Reach::EveryOther][random.random_range(0..3)],
            // In a run of a few releases, pages rest only if they may do so early.
            rest_after: [2, 5, RESTING_AFTER_RELEASES][random.random_range(0..3)],
            // Few nodes form a deep tree only if each has few children.
            below_max: [1, 2, BELOW_MAX][random.random_range(0..3)],
            homes: HomePolicy::ALL[random.random_range(0..HomePolicy::ALL.len())],
            shortages: false,
            follows_locks: random.random_bool(0.5),
        };
        if let [only] = trackings_of(protocol) {
            conditions.tracking = *only;
        }
        if !matches!(protocol, Protocol::Hlrc | Protocol::Adaptive | Protocol::Aurc) {
            conditions.reach = Reach::Nobody;
        }
        if protocol.homes() != Homes::AsToldTo {
            conditions.homes = HomePolicy::Fixed;
        }
        let places_by_first_touch = random.random_range(0..3) == 0;
        shape.waits = random.random_bool(0.4);
        conditions.shortages = protocol.gives_up_pages() && random.random_range(0..3) == 0;
        let mut program = generate(seed, shape);
        if places_by_first_touch {
            program.regions.iter_mut().for_each(|region| region.placement = Placement::FirstTouch);
        }
        Case { program, conditions }
    }
}

/// What is wrong with a run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Wrong {
    /// It did not end well.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// It breaks a promise.
    #[error("{0}")]
    Inconsistent(String),
    /// The program has a data race, so nothing is promised.
    #[error("expected a program without data races, got one: {0}")]
    Racy(String),
}

/// One run in this many is also checked for sequential consistency, which programs without races have. That
/// checker is the slowest.
const SEQUENTIAL_ONE_IN: u64 = 8;

/// The counts of a run that keeps every promise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Loads that were checked byte by byte.
    pub loads: usize,
    /// Write notices that were checked by page facts.
    pub notices: usize,
}

/// Returns the protocol of a node under the conditions.
fn coherence(conditions: &Conditions, me: NodeId, limits: Limits) -> Box<dyn Coherence> {
    let Conditions { protocol, reach, rest_after, homes, follows_locks, .. } = *conditions;
    let reached = NodeId::all(limits.nodes).filter(|node| *node != me && reach.includes(me, *node));
    let eager = |mode| Box::new(Erc::new(mode).moving_homes(homes).moving_after(SOON));
    match protocol {
        Protocol::Hlrc => {
            let hlrc = Hlrc::new().resting_after(rest_after).reading_from(reached);
            let hlrc = hlrc.moving_homes(homes).moving_after(SOON);
            Box::new(if follows_locks { hlrc.following_locks() } else { hlrc })
        }
        Protocol::ErcInvalidate => eager(Mode::Invalidate),
        Protocol::ErcUpdate => eager(Mode::Update),
        // The thresholds of moves for programs of a few barriers.
        Protocol::Adaptive if follows_locks => {
            Box::new(adaptive(reached).moving_after(SOON).resting_after(rest_after))
        }
        Protocol::Aurc => {
            let hlrc = Hlrc::new().resting_after(rest_after).reading_from(reached);
            Box::new(Aurc::new(hlrc.moving_homes(homes).moving_after(SOON)))
        }
        Protocol::Adaptive | Protocol::Lrc | Protocol::Sc => protocol.coherence(reached),
    }
}

/// Runs a case, with or without a planted bug, and checks everything that a program without races is
/// promised.
///
/// # Errors
/// What is wrong with the run.
pub fn examine(case: &Case, mutant: Option<Mutant>) -> Result<Kept, Wrong> {
    let Conditions { protocol, schedule, network, tracking, reach, below_max, shortages, .. } =
        case.conditions;
    let one_sided = reach != Reach::Nobody;
    let mutation: Box<dyn Mutation> = mutant.map_or_else(|| Box::new(Faithful) as _, Mutant::plant);
    let options = Options { network, one_sided, shortages, mutation, ..Options::seeded(schedule, tracking) };
    let engine = |me, limits: Limits, tracking| {
        let protocol = coherence(&case.conditions, me, limits);
        Consistency::new(me, limits, tracking, protocol).telling().meeting_below(below_max)
    };
    let ended = Cluster::new(&case.program, engine, options).run()?;
    let execution = ended.execution();
    let inconsistent = |explanation: &str| Wrong::Inconsistent(explanation.to_owned());
    let verdict = axioms::judge(&execution).map_err(|error| inconsistent(&error.to_string()))?;
    if let Some(race) = verdict.races.first() {
        return Err(Wrong::Racy(race.describe(&execution)));
    }
    if let Some(violation) = verdict.violations.first() {
        return Err(inconsistent(&violation.explanation));
    }
    let rules = Rules { one_sided, ..Rules::of(protocol) };
    let findings = page_axioms::judge(&ended.run, &rules);
    if let Some(breach) = findings.breaches.first() {
        return Err(Wrong::Inconsistent(format!("{}: {}", breach.axiom, breach.explanation)));
    }
    judge_sequentially(&execution, schedule)?;
    Ok(Kept { loads: verdict.loads_judged, notices: findings.counts.notices })
}

fn judge_sequentially(execution: &Execution, schedule: u64) -> Result<(), Wrong> {
    if schedule.is_multiple_of(SEQUENTIAL_ONE_IN)
        && let Sequential::No { explanation } = sequential::judge_race_free(execution)
    {
        return Err(Wrong::Inconsistent(explanation));
    }
    Ok(())
}

/// Returns the command that runs a seed again, shrinks it and explains it.
pub fn replay_command(protocol: Protocol, seed: u64, mutant: Option<Mutant>) -> String {
    let mutant = mutant.map_or(String::new(), |mutant| format!(" {mutant:?}"));
    let protocol = if protocol == Protocol::Hlrc { "" } else { &format!("--protocol {} ", protocol.name()) };
    format!("cargo run --release -p hiroba-check --example swarm -- {protocol}{seed}{mutant}")
}
