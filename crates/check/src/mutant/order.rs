//! Planted bugs of the order between pages under sequential consistency and pages under other protocols.

use hiroba_base::{Access, NodeId};
use hiroba_protocol::Effect;
use hiroba_wire::{Limits, Message};
use rustc_hash::FxHashMap;

use super::{Fate, Mutation};

/// The catalogue of planted bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A page is sent without telling what was written before.
    GiveInSilence,
    /// What is told contains no page.
    TellNothing,
    /// The page may overtake what is told.
    PageOvertakesWord,
    /// A copy is given up without telling what its node has written.
    ConfirmInSilence,
    /// Pages that go together overtake what is told.
    RunOvertakesWord,
    /// The owner stops writing only when the release is done and the page is sent.
    WriteWhileReleasing,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 6] = [
        Mutant::GiveInSilence,
        Mutant::TellNothing,
        Mutant::PageOvertakesWord,
        Mutant::ConfirmInSilence,
        Mutant::RunOvertakesWord,
        Mutant::WriteWhileReleasing,
    ];

    /// Returns the bug, ready to be planted in a cluster.
    pub fn plant(self) -> Box<dyn Mutation> {
        Box::new(Planted { mutant: self, lowered: FxHashMap::default(), held: FxHashMap::default() })
    }
}

struct Planted {
    mutant: Mutant,
    /// Losses of access that each node has yet to carry out.
    lowered: FxHashMap<NodeId, Vec<Effect>>,
    /// The last publication on each link, until the message behind it is known.
    held: FxHashMap<(NodeId, NodeId), Vec<u8>>,
}

impl Planted {
    /// Loses publications that a confirmation follows.
    fn confirm_in_silence(&mut self, link: (NodeId, NodeId), message: &Message<'_>) -> Fate {
        let held = self.held.remove(&link);
        match message {
            Message::Publish { .. } => {
                self.held.insert(link, message.encode());
                Fate::Replaced(held.into_iter().collect())
            }
            Message::CopyInvalidated { .. } => Fate::Sent,
            _ => Fate::Replaced(held.into_iter().chain([message.encode()]).collect()),
        }
    }
}

impl Planted {
    /// Sends a reply with several pages before the publication that it follows.
    fn run_overtakes_word(&mut self, link: (NodeId, NodeId), message: &Message<'_>) -> Fate {
        let held = self.held.remove(&link);
        match message {
            Message::Publish { .. } => {
                self.held.insert(link, message.encode());
                Fate::Replaced(held.into_iter().collect())
            }
            Message::PagesReply { copies, .. } if copies.len() > 1 => {
                Fate::Replaced([message.encode()].into_iter().chain(held).collect())
            }
            _ => Fate::Replaced(held.into_iter().chain([message.encode()]).collect()),
        }
    }
}

impl Mutation for Planted {
    fn on_effect(&mut self, node: NodeId, effect: Effect) -> Vec<Effect> {
        let lowered = self.lowered.entry(node).or_default();
        match (self.mutant, &effect) {
            (Mutant::WriteWhileReleasing, Effect::Protect { access: Access::None | Access::Read, .. }) => {
                lowered.push(effect);
                Vec::new()
            }
            (Mutant::WriteWhileReleasing, Effect::SendPages { .. } | Effect::Protect { .. }) => {
                let mut effects = std::mem::take(lowered);
                effects.push(effect);
                effects
            }
            _ => vec![effect],
        }
    }

    fn on_message(&mut self, from: NodeId, to: NodeId, message: &Message<'_>, _limits: &Limits) -> Fate {
        match (self.mutant, message.clone()) {
            (Mutant::GiveInSilence, Message::Publish { .. }) => Fate::LOST,
            (Mutant::TellNothing, Message::Publish { mut knowledge, count }) => {
                knowledge.notices.clear();
                Fate::altered(&Message::Publish { knowledge, count })
            }
            (Mutant::PageOvertakesWord, Message::Publish { .. }) => Fate::Astray,
            (Mutant::RunOvertakesWord, message) => self.run_overtakes_word((from, to), &message),
            (Mutant::ConfirmInSilence, message) => self.confirm_in_silence((from, to), &message),
            _ => Fate::Sent,
        }
    }
}
