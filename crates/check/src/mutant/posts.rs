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
    /// A message is sent on after its port although the next node is not informed.
    ForwardWithoutRelease,
    /// A node that sends messages on after its port does not hear what was made known to it before.
    ForwardWithoutAcquire,
    /// Packets overtake a message that is sent on after its port.
    OvertakeForward,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 7] = [
        Mutant::SendWithoutRelease,
        Mutant::ReceiveWithoutAcquire,
        Mutant::MessageOvertakesWord,
        Mutant::ReceiveAhead,
        Mutant::ForwardWithoutRelease,
        Mutant::ForwardWithoutAcquire,
        Mutant::OvertakeForward,
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

    fn hears_publications(&mut self, has_passed: bool) -> bool {
        match self.0 {
            Mutant::ReceiveWithoutAcquire => false,
            Mutant::ForwardWithoutAcquire => !has_passed,
            _ => true,
        }
    }

    fn releases_before_forward(&mut self) -> bool {
        self.0 != Mutant::ForwardWithoutRelease
    }

    fn keeps_order_behind_forward(&mut self) -> bool {
        self.0 != Mutant::OvertakeForward
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
