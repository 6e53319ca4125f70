//! Planted bugs of homes that are claimed.

use hiroba_base::{IntervalSeq, NodeId, PageId};
use hiroba_protocol::Effect;
use hiroba_wire::{Limits, Message, MoveKind};
use rustc_hash::FxHashMap;

use super::{Fate, Mutation};

/// The catalogue of planted bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// The next home does not apply the diffs that it has withheld to the content that the last home sends.
    SkipWithheld,
    /// Diffs of a refused claim are not sent.
    LoseLate,
    /// Diffs of a refused claim overtake what their writer has sent before, or are overtaken.
    LateAstray,
    /// A home considers what it has of an interval complete, though some is withheld from it.
    UnfinishedIsAll,
    /// A departure does not tell one node which claims are granted.
    ForgetGranted,
    /// A departure tells one node that another one has got what was claimed.
    GrantToAnother,
    /// A departure grants what was refused, to all nodes but the root.
    GrantRefused,
    /// A node that arrives does not say which pages are on their way to it.
    HideComing,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 8] = [
        Mutant::SkipWithheld,
        Mutant::LoseLate,
        Mutant::LateAstray,
        Mutant::UnfinishedIsAll,
        Mutant::ForgetGranted,
        Mutant::GrantToAnother,
        Mutant::GrantRefused,
        Mutant::HideComing,
    ];

    /// Returns the bug, ready to be planted in a cluster.
    pub fn plant(self) -> Box<dyn Mutation> {
        let (installed, arrived, claimed) = Default::default();
        Box::new(Planted { mutant: self, installed, arrived, claimed })
    }
}

struct Planted {
    mutant: Mutant,
    /// The page that a node has installed as its latest effect.
    installed: FxHashMap<NodeId, PageId>,
    /// The interval with which a node has arrived.
    arrived: FxHashMap<NodeId, IntervalSeq>,
    /// What nodes have claimed at the present collective.
    claimed: Vec<hiroba_wire::HomeMoves>,
}

impl Planted {
    fn depart(&mut self, to: NodeId, moves: &mut Vec<hiroba_wire::HomeMoves>, limits: &Limits) {
        let is_last = to.0 + 1 == limits.nodes;
        match self.mutant {
            Mutant::ForgetGranted if is_last => moves.retain(|moved| moved.kind != MoveKind::Claimed),
            Mutant::GrantToAnother if is_last => {
                let claimed = moves.iter_mut().filter(|moved| moved.kind == MoveKind::Claimed);
                claimed.for_each(|moved| moved.to = NodeId((moved.to.0 + 1) % limits.nodes));
            }
            Mutant::GrantRefused => {
                moves.retain(|moved| moved.kind != MoveKind::Claimed);
                moves.extend(self.claimed.iter().cloned());
            }
            _ => {}
        }
    }
}

impl Mutation for Planted {
    fn on_effect(&mut self, node: NodeId, effect: Effect) -> Vec<Effect> {
        if matches!(effect, Effect::Tell(_)) {
            return vec![effect];
        }
        let installed = match &effect {
            Effect::Install { pages, merge: false, .. } => self.installed.insert(node, pages.first),
            _ => self.installed.remove(&node),
        };
        match &effect {
            Effect::Apply { page, .. } if self.mutant == Mutant::SkipWithheld && installed == Some(*page) => {
                Vec::new()
            }
            _ => vec![effect],
        }
    }

    fn on_message(&mut self, from: NodeId, to: NodeId, message: &Message<'_>, limits: &Limits) -> Fate {
        match message.clone() {
            Message::Arrive { epoch, collective, caller, least, knowledge, mut moves, contributions } => {
                self.arrived.insert(from, knowledge.timestamp.get(from));
                self.claimed.extend(moves.iter().filter(|moved| moved.kind == MoveKind::Claimed).cloned());
                if self.mutant == Mutant::HideComing {
                    moves.retain(|moved| moved.kind != MoveKind::Coming);
                    let arrival =
                        Message::Arrive { epoch, collective, caller, least, knowledge, moves, contributions };
                    return Fate::altered(&arrival);
                }
            }
            Message::Depart { epoch, collective, knowledge, mut moves } => {
                self.depart(to, &mut moves, limits);
                if to.0 + 1 == limits.nodes {
                    self.claimed.clear();
                }
                return Fate::altered(&Message::Depart { epoch, collective, knowledge, moves });
            }
            Message::Diffs { seq, last, diffs } => {
                let is_late = self.arrived.get(&from).is_some_and(|arrived| seq <= *arrived);
                match self.mutant {
                    Mutant::LoseLate if is_late => return Fate::LOST,
                    Mutant::LateAstray if is_late => return Fate::Astray,
                    Mutant::UnfinishedIsAll if !last => {
                        return Fate::altered(&Message::Diffs { seq, last: true, diffs });
                    }
                    _ => {}
                }
            }
            _ => {}
        }
        Fate::Sent
    }
}
