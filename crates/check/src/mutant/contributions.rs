//! Planted bugs of what nodes contribute to a barrier.

use hiroba_base::NodeId;
use hiroba_wire::{Limits, Message};

use super::{Fate, Mutation};

/// The catalogue of planted bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// Nodes depart before what they have contributed is used.
    DepartBeforeVisit,
    /// A node passes on nothing of what the nodes below it contribute.
    DropFromBelow,
    /// What a node contributes is lost.
    DropOwn,
    /// What a node has contributed is used twice.
    UseTwice,
    /// What the last node has contributed is not used.
    UseAllButLast,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 5] = [
        Mutant::DepartBeforeVisit,
        Mutant::DropFromBelow,
        Mutant::DropOwn,
        Mutant::UseTwice,
        Mutant::UseAllButLast,
    ];

    /// Returns the bug, ready to be planted in a cluster.
    pub fn plant(self) -> Box<dyn Mutation> {
        Box::new(self)
    }
}

impl Mutation for Mutant {
    fn on_contributions(&mut self, mut contributions: Vec<(NodeId, Vec<u8>)>) -> Vec<(NodeId, Vec<u8>)> {
        match self {
            Mutant::UseTwice => contributions.extend(contributions.first().cloned()),
            Mutant::UseAllButLast => _ = contributions.pop(),
            _ => {}
        }
        contributions
    }

    fn concludes_before_visit(&mut self) -> bool {
        *self == Mutant::DepartBeforeVisit
    }

    fn on_message(&mut self, from: NodeId, _to: NodeId, message: &Message<'_>, _limits: &Limits) -> Fate {
        let mut altered = message.clone();
        let Message::Arrive { contributions, .. } = &mut altered else { return Fate::Sent };
        match self {
            Mutant::DropFromBelow => contributions.retain(|one| one.node == from),
            Mutant::DropOwn => contributions.retain(|one| one.node != from),
            _ => return Fate::Sent,
        }
        Fate::altered(&altered)
    }
}
