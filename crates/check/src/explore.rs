//! Explores every interleaving of a small program: all situations that a cluster can reach, one choice after
//! another.
//!
//! A [`Situation`] contains the choices that lead to it, not the cluster: engines need not be copied, and a
//! cluster is rebuilt from its choices, since nothing in it is drawn. Two situations are equal if their
//! digests are. The digest covers the state of every engine, memory and thread, the messages in flight, and
//! what each thread has seen of memory, since the end is judged by that. A model checker asks for
//! [`Exploration::start`] and for the situations [`after`](Exploration::after) it, and checks every
//! [`Situation::wrong`].

use core::cell::RefCell;
use core::fmt::Write as _;
use core::hash::{Hash, Hasher};
use std::collections::BTreeSet;
use std::hash::DefaultHasher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use hiroba_base::{Access, NodeId, PageId};
use hiroba_protocol::{Consistency, Protocol, WriteTracking};

use crate::cluster::{Choice, Cluster, Failure, FoundRace, NetworkChoice, Options, RaceBug};
use crate::engines::{Promise, engine_of, promise_of};
use crate::mutant::{Faithful, Mutation};
use crate::narration::Narration;
use crate::program::Program;

mod scenarios;

pub use self::scenarios::{Scenario, larger_scenarios, scenarios};

/// A program without loops takes fewer steps than this.
const STEPS_MAX: u64 = 10_000;

/// Plants a bug.
pub type Plant = Arc<dyn Fn() -> Box<dyn Mutation> + Send + Sync>;

/// A program under a protocol.
pub struct Exploration {
    /// The program and the observed registers. It must end under every schedule: it must not wait in loops.
    pub scenario: Scenario,
    /// The protocol.
    pub protocol: Protocol,
    /// How nodes detect what is written.
    pub tracking: WriteTracking,
    /// A planted bug. Its own memory is not part of a situation, so not every situation is found with it.
    pub plant: Plant,
    /// Set to look for data races.
    races: Option<LookedFor>,
    outcomes: Mutex<BTreeSet<Vec<u64>>>,
}

/// The expected result of looking for data races.
struct LookedFor {
    found: Vec<FoundRace>,
    bug: RaceBug,
}

/// The last of the choices that lead to a situation.
#[derive(Debug)]
struct Step {
    before: Option<Arc<Step>>,
    choice: Choice,
}

/// A situation that a cluster can reach.
#[derive(Clone, Debug)]
pub struct Situation {
    digest: u64,
    /// The digest of each node, between steps.
    nodes: Arc<[u64]>,
    last: Option<Arc<Step>>,
    /// The choices for what happens next.
    pub choices: Vec<Choice>,
    /// What is wrong; nothing follows such a situation.
    pub wrong: Option<Arc<str>>,
}

impl PartialEq for Situation {
    fn eq(&self, other: &Situation) -> bool {
        self.digest == other.digest
    }
}

impl Hash for Situation {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.digest.hash(hasher);
    }
}

impl Situation {
    /// Returns the choices that lead here, in order.
    pub fn path(&self) -> Vec<Choice> {
        let steps = std::iter::successors(self.last.as_ref(), |step| step.before.as_ref());
        let mut path: Vec<Choice> = steps.map(|step| step.choice).collect();
        path.reverse();
        path
    }
}

fn is_within(choice: &Choice) -> bool {
    matches!(choice, Choice::Onward | Choice::Meanwhile(_))
}

thread_local! {
    /// The cluster in the situation that was reached last, so that its successors need not be built from the
    /// beginning.
    static LATEST: RefCell<Option<(Arc<Step>, Cluster<Consistency>)>> = const { RefCell::new(None) };
}

/// The state in which a step has left the cluster.
enum Left {
    Between,
    Within(Vec<Choice>),
    Wrong(String),
}

impl Exploration {
    /// Returns the exploration of a scenario on engines without a bug.
    pub fn new(scenario: Scenario, protocol: Protocol, tracking: WriteTracking) -> Exploration {
        let plant: Plant = Arc::new(|| Box::new(Faithful));
        Exploration { scenario, protocol, tracking, plant, races: None, outcomes: Mutex::default() }
    }

    /// Does the same under home-based lazy release consistency that looks for data races, perhaps with a bug
    /// in its host. At each end the homes must have found exactly these races.
    pub fn looking_for_races(scenario: Scenario, found: Vec<FoundRace>, bug: RaceBug) -> Exploration {
        let exploration = Exploration::new(scenario, Protocol::Hlrc, WriteTracking::Fault);
        Exploration { races: Some(LookedFor { found, bug }), ..exploration }
    }

    /// Returns the same exploration with a planted bug.
    pub fn with_bug(self, plant: Plant) -> Exploration {
        Exploration { plant, ..self }
    }

    /// Returns what was observed at the ends that were reached.
    pub fn outcomes(&self) -> BTreeSet<Vec<u64>> {
        self.outcomes.lock().expect("nobody panics with it").clone()
    }

    /// Returns the situation before the first step.
    pub fn start(&self) -> Situation {
        let cluster = self.cluster(Box::new(Faithful));
        let nodes: Arc<[u64]> =
            NodeId::all(self.program().nodes).map(|node| cluster.digest_of(node)).collect();
        let digest = digest(&nodes, cluster.digest_between());
        Situation { digest, nodes, last: None, choices: cluster.choices(), wrong: None }
    }

    /// Returns the situation after one more choice.
    pub fn after(&self, situation: &Situation, choice: Choice) -> Situation {
        let last = Some(Arc::new(Step { before: situation.last.clone(), choice }));
        let made = catch_unwind(AssertUnwindSafe(|| self.make(situation, choice)));
        match made {
            Ok((cluster, Left::Between)) => self.between(situation, cluster, last),
            // Within a step no state is stable; the choices since its beginning identify it.
            Ok((_, Left::Within(choices))) => unsettled(situation, choice, last, choices, None),
            Ok((_, Left::Wrong(wrong))) => unsettled(situation, choice, last, Vec::new(), Some(wrong)),
            Err(payload) => unsettled(situation, choice, last, Vec::new(), Some(panicked(payload.as_ref()))),
        }
    }

    /// Describes the way to a situation, step by step, with the messages and actions of the nodes.
    pub fn tell(&self, path: &[Choice]) -> String {
        let narration = Narration::default();
        let mut cluster = self.cluster((self.plant)());
        cluster.narrate(narration.clone());
        let mut told = String::new();
        for step in steps(path) {
            let _ = writeln!(told, "{}", cluster.describe(step[0]));
            let made = catch_unwind(AssertUnwindSafe(|| cluster.choose(step[0], &step[1..])));
            for line in narration.take() {
                let _ = writeln!(told, "    {line}");
            }
            for within in &step[1..] {
                let _ = writeln!(told, "    ({})", cluster.describe(*within));
            }
            if !matches!(made, Ok(Ok(_))) {
                break;
            }
        }
        told
    }

    fn program(&self) -> &Program {
        &self.scenario.program
    }

    fn cluster(&self, mutation: Box<dyn Mutation>) -> Cluster<Consistency> {
        let network = NetworkChoice::Chosen;
        let options =
            Options { network, mutation, steps_max: STEPS_MAX, ..Options::seeded(0, self.tracking) };
        let options = Options { races: self.races.as_ref().map(|looked_for| looked_for.bug), ..options };
        let engine = |me, limits, tracking| match &self.races {
            Some(_) => Consistency::looking_for_races(me, limits),
            None => {
                // What is remembered of faults would make nearly every history a situation of its own.
                let brings_ahead = self.protocol != Protocol::Sc;
                engine_of(self.protocol, me, limits, tracking).prefetching(brings_ahead)
            }
        };
        let mut cluster = Cluster::new(self.program(), engine, options);
        cluster.run_privately().expect("a scenario has no loops without end");
        cluster
    }

    /// Builds the cluster after one more choice, from the latest one or from the beginning.
    fn make(&self, situation: &Situation, choice: Choice) -> (Cluster<Consistency>, Left) {
        let latest = LATEST.with_borrow_mut(Option::take);
        if let (Some((step, cluster)), Some(last)) = (latest, &situation.last)
            && Arc::ptr_eq(&step, last)
        {
            return self.walk(cluster, &[choice]);
        }
        let mut path = situation.path();
        path.push(choice);
        self.walk(self.cluster((self.plant)()), &path)
    }

    fn walk(&self, mut cluster: Cluster<Consistency>, path: &[Choice]) -> (Cluster<Consistency>, Left) {
        for step in steps(path) {
            match cluster.choose(step[0], &step[1..]) {
                Ok(None) => {}
                // This occurs only at the end of the path, since the choices before it were made from this.
                Ok(Some(open)) => return (cluster, Left::Within(open)),
                Err(failure) => return (cluster, Left::Wrong(failure.to_string())),
            }
        }
        (cluster, Left::Between)
    }

    /// Returns the situation of a cluster between two steps.
    fn between(
        &self,
        before: &Situation,
        cluster: Cluster<Consistency>,
        last: Option<Arc<Step>>,
    ) -> Situation {
        let step = last.as_ref().expect("a step has been made");
        let acted = std::iter::successors(Some(step), |step| step.before.as_ref());
        let mut acted = acted.map(|step| step.choice).filter(|choice| !is_within(choice));
        let node = cluster.node_of(acted.next().expect("a step begins with a choice between steps"));
        let mut nodes = before.nodes.to_vec();
        nodes[node.index()] = cluster.digest_of(node);
        let digest = digest(&nodes, cluster.digest_between());
        let choices = cluster.choices();
        let wrong = self.wrong(&cluster, choices.is_empty()).map(Arc::from);
        let choices = if wrong.is_some() { Vec::new() } else { choices };
        LATEST.with_borrow_mut(|latest| *latest = Some((step.clone(), cluster)));
        Situation { digest, nodes: nodes.into(), last, choices, wrong }
    }

    fn wrong(&self, cluster: &Cluster<Consistency>, is_end: bool) -> Option<String> {
        if promise_of(self.protocol) == Promise::Sequential
            && let Some(wrong) = self.two_masters(cluster)
        {
            return Some(wrong);
        }
        if !is_end {
            return None;
        }
        if let Err(failure) = cluster.conclude() {
            return Some(failure.to_string());
        }
        let observed: Vec<u64> = self
            .scenario
            .observed
            .iter()
            .map(|(thread, register)| cluster.register(*thread, *register))
            .collect();
        self.outcomes.lock().expect("nobody panics with it").insert(observed);
        if let Some(LookedFor { found, .. }) = &self.races
            && cluster.races() != *found
        {
            return Some(format!("expected to find the races {found:?}, got {:?}", cluster.races()));
        }
        promise_of(self.protocol).convicts(&cluster.execution())
    }

    /// Reports a violation of sequential consistency: a node that may write a page must be the only one that
    /// may read it.
    fn two_masters(&self, cluster: &Cluster<Consistency>) -> Option<String> {
        let nodes = || NodeId::all(self.program().nodes);
        for granule in (0..self.program().region_granules()).map(PageId) {
            let writer = nodes().find(|node| cluster.access(*node, granule) == Access::Write);
            let Some(writer) = writer else { continue };
            let other = nodes().find(|node| *node != writer && cluster.access(*node, granule) > Access::None);
            if let Some(other) = other {
                let failure = Failure::Host {
                    node: writer,
                    sentence: format!(
                        "expected no other node to have access to {granule}, which may be written here, got node {other}"
                    ),
                };
                return Some(failure.to_string());
            }
        }
        None
    }
}

/// Cuts a path into steps: each choice between steps with those within the step.
fn steps(path: &[Choice]) -> impl Iterator<Item = &[Choice]> {
    path.chunk_by(|_, next| is_within(next))
}

fn digest(nodes: &[u64], between: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (nodes, between).hash(&mut hasher);
    hasher.finish()
}

/// Returns a situation within a step, or after one that went wrong.
fn unsettled(
    before: &Situation,
    choice: Choice,
    last: Option<Arc<Step>>,
    choices: Vec<Choice>,
    wrong: Option<String>,
) -> Situation {
    let mut hasher = DefaultHasher::new();
    (before.digest, choice).hash(&mut hasher);
    let nodes = before.nodes.clone();
    Situation { digest: hasher.finish(), nodes, last, choices, wrong: wrong.map(Arc::from) }
}

fn panicked(payload: &(dyn core::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    format!("expected no engine to panic, got: {}", text.unwrap_or("a panic without a text"))
}

#[cfg(test)]
mod tests {
    use hiroba_base::{RngExt, seeded};

    use super::*;
    use crate::engines::trackings_of;

    /// Walks at random, and builds every situation twice: from the one before it, and from the beginning.
    #[test]
    fn a_situation_is_the_same_however_it_is_made() {
        let random = &mut seeded(7);
        for protocol in Protocol::ALL {
            for scenario in
                scenarios().into_iter().filter(|scenario| scenario.promises.contains(&promise_of(protocol)))
            {
                let exploration = Exploration::new(scenario, protocol, trackings_of(protocol)[0]);
                let mut situation = exploration.start();
                while !situation.choices.is_empty() {
                    let choice = situation.choices[random.random_range(0..situation.choices.len())];
                    let next = exploration.after(&situation, choice);
                    LATEST.set(None);
                    let again = exploration.after(&situation, choice);
                    assert_eq!(
                        (&next, &next.choices),
                        (&again, &again.choices),
                        "{}",
                        exploration.scenario.name
                    );
                    let (cluster, left) =
                        exploration.walk(exploration.cluster((exploration.plant)()), &next.path());
                    if matches!(left, Left::Between) {
                        let all =
                            NodeId::all(exploration.program().nodes).map(|node| cluster.digest_of(node));
                        assert_eq!(
                            next.nodes[..],
                            all.collect::<Vec<u64>>(),
                            "a step is one node's business"
                        );
                    }
                    situation = next;
                }
                assert_eq!(situation.wrong, None, "{}", exploration.scenario.name);
            }
        }
    }
}
