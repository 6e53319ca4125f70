//! Planted bugs of ordered fetches.

use hiroba_base::NodeId;
use hiroba_protocol::Effect;
use hiroba_wire::{Limits, Message};
use rustc_hash::FxHashMap;

use super::{Fate, Mutation};

/// The catalogue of planted bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A home sends a page without closing the interval first, and applies diffs without their notices. Nodes
    /// with this bug do not order their fetches.
    HomeKeepsNoOrder,
    /// A page is sent without telling what was written before.
    SendInSilence,
    /// What is told contains no page.
    TellNothing,
    /// A reader installs a page before it knows the notices.
    PageOvertakesNotices,
    /// A page does not wait for a publication that is kept back.
    PageOvertakesKeptNotices,
    /// The home goes on writing until the page is sent.
    WriteWhileReleasing,
    /// A home sends what its threads have written since the snapshot.
    SendFrame,
    /// A snapshot lacks diffs that have come since.
    SnapshotLacksDiffs,
    /// A home page that was opened before a store to it counts as unwritten.
    OpenedIsUnwritten,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 9] = [
        Mutant::HomeKeepsNoOrder,
        Mutant::SendInSilence,
        Mutant::TellNothing,
        Mutant::PageOvertakesNotices,
        Mutant::PageOvertakesKeptNotices,
        Mutant::WriteWhileReleasing,
        Mutant::SendFrame,
        Mutant::SnapshotLacksDiffs,
        Mutant::OpenedIsUnwritten,
    ];

    /// Returns the bug, ready to be planted in a cluster.
    pub fn plant(self) -> Box<dyn Mutation> {
        Box::new(Planted { mutant: self, lost: FxHashMap::default(), compares_home: false })
    }

    /// Returns true if nodes order their fetches.
    pub fn orders(self) -> bool {
        self != Mutant::HomeKeepsNoOrder
    }
}

struct Planted {
    mutant: Mutant,
    /// Losses of access that each node has yet to carry out.
    lost: FxHashMap<NodeId, Vec<Effect>>,
    /// True while a node compares a page that is homed there, in a program whose page `n` is node `n`'s.
    compares_home: bool,
}

impl Planted {
    fn take_access_late(&mut self, node: NodeId, effect: Effect) -> Vec<Effect> {
        let lost = self.lost.entry(node).or_default();
        match effect {
            Effect::Invalidate { .. } => {
                lost.push(effect);
                Vec::new()
            }
            Effect::SendPages { .. } | Effect::Protect { .. } => {
                let mut effects = std::mem::take(lost);
                effects.push(effect);
                effects
            }
            _ => vec![effect],
        }
    }
}

impl Mutation for Planted {
    fn on_effect(&mut self, node: NodeId, effect: Effect) -> Vec<Effect> {
        match (self.mutant, effect) {
            (Mutant::WriteWhileReleasing, effect) => self.take_access_late(node, effect),
            (Mutant::SendFrame, Effect::SendPages { to, mut pages }) => {
                pages.iter_mut().for_each(|page| page.from_twin = false);
                vec![Effect::SendPages { to, pages }]
            }
            (_, effect) => {
                if let Effect::Diff { page, .. } = effect {
                    self.compares_home = page.0 == u64::from(node.0);
                }
                vec![effect]
            }
        }
    }

    fn on_diff(&mut self, _frame: &[u8], _twin: &[u8], runs: Vec<u8>) -> Vec<u8> {
        let is_lost = self.mutant == Mutant::OpenedIsUnwritten && self.compares_home;
        if is_lost { Vec::new() } else { runs }
    }

    fn on_apply(&mut self) -> bool {
        self.mutant != Mutant::SnapshotLacksDiffs
    }

    fn on_message(&mut self, _from: NodeId, _to: NodeId, message: &Message<'_>, _limits: &Limits) -> Fate {
        match (self.mutant, message.clone()) {
            (Mutant::SendInSilence, Message::Publish { .. }) => Fate::LOST,
            (Mutant::TellNothing, Message::Publish { mut knowledge, count }) => {
                knowledge.notices.clear();
                Fate::altered(&Message::Publish { knowledge, count })
            }
            (Mutant::PageOvertakesNotices, Message::Publish { .. }) => Fate::Astray,
            (Mutant::PageOvertakesKeptNotices, Message::Publish { knowledge, .. }) if knowledge.epoch > 0 => {
                Fate::Astray
            }
            _ => Fate::Sent,
        }
    }
}
