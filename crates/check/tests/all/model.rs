//! Explorations as models for a model checker.

use std::sync::Arc;

use hiroba_check::cluster::Choice;
use hiroba_check::explore::{Exploration, Situation};
use stateright::{Checker, Model, Property};

/// All situations of an exploration.
#[derive(Clone)]
struct Interleavings(Arc<Exploration>);

impl Model for Interleavings {
    type State = Situation;
    type Action = Choice;

    fn init_states(&self) -> Vec<Situation> {
        vec![self.0.start()]
    }

    fn actions(&self, situation: &Situation, choices: &mut Vec<Choice>) {
        choices.extend_from_slice(&situation.choices);
    }

    fn next_state(&self, situation: &Situation, choice: Choice) -> Option<Situation> {
        Some(self.0.after(situation, choice))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("nothing is wrong", |_, situation: &Situation| situation.wrong.is_none())]
    }
}

/// The result of the model checker.
pub struct Explored {
    /// The number of different situations.
    pub situations: usize,
    /// The number of choices made from them.
    pub choices: usize,
    /// What is wrong, and the way to it.
    pub wrong: Option<(Situation, String)>,
}

/// Explores all situations, or until something is wrong. The way to it is a shortest one, since ways are
/// followed in the order of their length.
pub fn explore(exploration: &Arc<Exploration>) -> Explored {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let checker = Interleavings(exploration.clone()).checker().threads(workers).spawn_bfs().join();
    let wrong = checker.discovery("nothing is wrong").map(|path| {
        let situation = path.last_state().clone();
        let told = exploration.tell(&situation.path());
        (situation, told)
    });
    Explored { situations: checker.unique_state_count(), choices: checker.state_count(), wrong }
}
