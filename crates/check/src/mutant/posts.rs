//! Planted bugs of the order that messages to ports give to memory.

use hiroba_base::NodeId;
use hiroba_wire::{Limits, Message};

use super::{Fate, Mutation};

/// The catalogue of planted bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A send does not release: the port's node is not informed before it.
    SendWithoutRelease,
    /// A receive does not acquire: what the sender's node made known is not heard.
    ReceiveWithoutAcquire,
    /// The message may overtake what was made known before it.
    MessageOvertakesWord,
    /// A message is received although the publication before it is deferred.
    ReceiveAhead,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 4] = [
        Mutant::SendWithoutRelease,
        Mutant::ReceiveWithoutAcquire,
        Mutant::MessageOvertakesWord,
        Mutant::ReceiveAhead,
    ];

    /// Returns the bug, ready to be planted in a cluster.
    pub fn plant(self) -> Box<dyn Mutation> {
        Box::new(Planted(self))
    }
}

struct Planted(Mutant);

impl Mutation for Planted {
    fn releases_before_post(&mut self) -> bool {
        self.0 != Mutant::SendWithoutRelease
    }

    fn hears_publications(&mut self) -> bool {
        self.0 != Mutant::ReceiveWithoutAcquire
    }

    fn keeps_back(&mut self) -> bool {
        self.0 != Mutant::ReceiveAhead
    }

    fn on_message(&mut self, _from: NodeId, _to: NodeId, message: &Message<'_>, _limits: &Limits) -> Fate {
        match message {
            Message::Publish { .. } if self.0 == Mutant::MessageOvertakesWord => Fate::Astray,
            _ => Fate::Sent,
        }
    }
}
