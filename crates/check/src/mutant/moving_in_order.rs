//! Planted bugs of homes that move while pages are put under sequential consistency and fetches are ordered.

use hiroba_base::NodeId;
use hiroba_wire::{Limits, Message, MoveKind};
use rustc_hash::FxHashMap;

use super::{Fate, Mutation};

/// The catalogue of planted bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A node hands pages over without informing their next home of what they contain.
    HandOverInSilence,
    /// A home whose pages are changing their protocol does not say so when it arrives.
    ArriveInSilence,
    /// A home that has arrived asks the root about another collective, which is over.
    AskAboutLastCollective,
    /// A node that has arrived grants a lock before it informs the homes that have its diffs.
    GrantBeforeHomesKnow,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 4] = [
        Mutant::HandOverInSilence,
        Mutant::ArriveInSilence,
        Mutant::AskAboutLastCollective,
        Mutant::GrantBeforeHomesKnow,
    ];

    /// Returns the bug, ready to be planted in a cluster.
    pub fn plant(self) -> Box<dyn Mutation> {
        Box::new(Planted { mutant: self, held: FxHashMap::default() })
    }
}

struct Planted {
    mutant: Mutant,
    /// The last publication of each node, and its receiver, until the node's next message is known.
    held: FxHashMap<NodeId, (NodeId, Vec<u8>)>,
}

impl Planted {
    /// Returns true if a publication before this message is lost.
    fn must_follow_nothing(&self, message: &Message<'_>) -> bool {
        match self.mutant {
            Mutant::HandOverInSilence => matches!(message, Message::HomeHandedOver { .. }),
            Mutant::GrantBeforeHomesKnow => matches!(message, Message::LockGrant { .. }),
            Mutant::ArriveInSilence | Mutant::AskAboutLastCollective => false,
        }
    }
}

impl Mutation for Planted {
    fn sends_before(&mut self, from: NodeId, bytes: &[u8], limits: &Limits) -> Vec<(NodeId, Vec<u8>)> {
        let Some(held) = self.held.remove(&from) else { return Vec::new() };
        let message = Message::decode(bytes, limits).expect("a node has sent it");
        if self.must_follow_nothing(&message) { Vec::new() } else { vec![held] }
    }

    fn on_message(&mut self, from: NodeId, to: NodeId, message: &Message<'_>, _limits: &Limits) -> Fate {
        match (self.mutant, message.clone()) {
            (Mutant::HandOverInSilence | Mutant::GrantBeforeHomesKnow, Message::Publish { .. }) => {
                self.held.insert(from, (to, message.encode()));
                Fate::LOST
            }
            (Mutant::ArriveInSilence, mut arrival @ Message::Arrive { .. }) => {
                if let Message::Arrive { moves, .. } = &mut arrival {
                    moves.retain(|moved| moved.kind != MoveKind::Kept || !moved.pages.is_empty());
                }
                Fate::altered(&arrival)
            }
            (Mutant::AskAboutLastCollective, Message::KeepHomes { epoch }) => {
                Fate::altered(&Message::KeepHomes { epoch: epoch.saturating_sub(1) })
            }
            _ => Fate::Sent,
        }
    }
}
