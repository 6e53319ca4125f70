//! Planted bugs of pages that are put under sequential consistency.

use hiroba_base::{NodeId, PageId};
use hiroba_protocol::Effect;
use hiroba_wire::{Limits, Message};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Fate, Mutation};

/// The catalogue of planted bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A node that gives a page up does not send what it has written there.
    GiveUpWithoutDiffs,
    /// It does not inform the home of what it has written elsewhere.
    GiveUpInSilence,
    /// Its report may overtake its diffs.
    ReportOvertakesDiffs,
    /// It reports before it has given the page up.
    ReportTooEarly,
    /// Its threads lose their access only when the report is sent.
    WriteWhileReleasing,
    /// Its threads keep their access.
    KeepCopy,
    /// The home's own threads keep their access.
    HomeKeepsAccess,
    /// A node that gives several pages up together leaves one of them out, and reports it.
    LeaveOutOne,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 8] = [
        Mutant::GiveUpWithoutDiffs,
        Mutant::GiveUpInSilence,
        Mutant::ReportOvertakesDiffs,
        Mutant::ReportTooEarly,
        Mutant::WriteWhileReleasing,
        Mutant::KeepCopy,
        Mutant::HomeKeepsAccess,
        Mutant::LeaveOutOne,
    ];

    /// Returns the bug, ready to be planted in a cluster.
    pub fn plant(self) -> Box<dyn Mutation> {
        Box::new(Planted {
            mutant: self,
            told: FxHashMap::default(),
            homes: FxHashSet::default(),
            reported: FxHashSet::default(),
            held: FxHashMap::default(),
            lost: FxHashMap::default(),
            left_out: FxHashMap::default(),
        })
    }
}

struct Planted {
    mutant: Mutant,
    /// The pages that nodes are told to give up, and their homes.
    told: FxHashMap<(NodeId, PageId), NodeId>,
    /// The pages that homes have converted.
    homes: FxHashSet<(NodeId, PageId)>,
    /// Reports that were sent too early.
    reported: FxHashSet<(NodeId, PageId)>,
    /// The last publication on each link, until the message behind it is known.
    held: FxHashMap<(NodeId, NodeId), Vec<u8>>,
    /// Losses of access that each node has yet to carry out.
    lost: FxHashMap<NodeId, Vec<Effect>>,
    /// The page that each node leaves out.
    left_out: FxHashMap<NodeId, PageId>,
}

impl Planted {
    /// Loses publications that a report follows.
    fn give_up_in_silence(&mut self, link: (NodeId, NodeId), message: &Message<'_>) -> Fate {
        let held = self.held.remove(&link);
        match message {
            Message::Publish { .. } => {
                self.held.insert(link, message.encode());
                Fate::Replaced(held.into_iter().collect())
            }
            Message::Converted { .. } => Fate::Sent,
            _ => Fate::Replaced(held.into_iter().chain([message.encode()]).collect()),
        }
    }

    /// Returns true if the node loses its access to a page of such a set of nodes and pages.
    fn is_lost<'a>(
        node: NodeId,
        effect: &Effect,
        mut pages: impl Iterator<Item = &'a (NodeId, PageId)>,
    ) -> bool {
        let Effect::Invalidate { span, .. } = effect else { return false };
        pages.any(|(owner, page)| *owner == node && span.contains(*page))
    }
}

impl Mutation for Planted {
    fn on_effect(&mut self, node: NodeId, effect: Effect) -> Vec<Effect> {
        let of_copy = Planted::is_lost(node, &effect, self.told.keys());
        let is_sent = matches!(&effect, Effect::Send { .. } | Effect::Protect { .. });
        match self.mutant {
            Mutant::KeepCopy if of_copy => Vec::new(),
            Mutant::HomeKeepsAccess if Planted::is_lost(node, &effect, self.homes.iter()) => Vec::new(),
            Mutant::WriteWhileReleasing if of_copy => {
                self.lost.entry(node).or_default().push(effect);
                Vec::new()
            }
            Mutant::WriteWhileReleasing if is_sent => {
                let mut effects = self.lost.remove(&node).unwrap_or_default();
                effects.push(effect);
                effects
            }
            _ => vec![effect],
        }
    }

    fn sends_before(&mut self, from: NodeId, _bytes: &[u8], _limits: &Limits) -> Vec<(NodeId, Vec<u8>)> {
        if self.mutant != Mutant::ReportTooEarly {
            return Vec::new();
        }
        let due = self.told.iter().find(|(key, _)| key.0 == from && !self.reported.contains(key));
        let Some((&(node, page), &home)) = due else { return Vec::new() };
        self.reported.insert((node, page));
        vec![(home, Message::Converted { pages: [page].into_iter().collect() }.encode())]
    }

    fn on_message(&mut self, from: NodeId, to: NodeId, message: &Message<'_>, _limits: &Limits) -> Fate {
        if let Message::Convert { pages } = message {
            self.told.extend(pages.iter().map(|page| ((to, page), from)));
            self.homes.extend(pages.iter().map(|page| (from, page)));
        }
        match (self.mutant, message.clone()) {
            (Mutant::GiveUpWithoutDiffs, Message::Diffs { seq, last, mut diffs }) => {
                diffs.retain(|diff| !self.told.contains_key(&(from, diff.page)));
                if diffs.is_empty() {
                    Fate::LOST
                } else {
                    Fate::altered(&Message::Diffs { seq, last, diffs })
                }
            }
            (Mutant::GiveUpInSilence, message) => self.give_up_in_silence((from, to), &message),
            (Mutant::ReportOvertakesDiffs, Message::Converted { .. }) => Fate::Astray,
            (Mutant::ReportTooEarly, Message::Converted { .. }) => Fate::LOST,
            (Mutant::LeaveOutOne, Message::Convert { pages }) if pages.len() > 1 => {
                let mut pages: Vec<PageId> = pages.iter().collect();
                self.left_out.extend(pages.pop().map(|page| (to, page)));
                Fate::altered(&Message::Convert { pages: pages.into_iter().collect() })
            }
            (Mutant::LeaveOutOne, Message::Converted { pages }) => {
                let left_out = self.left_out.get(&from).filter(|_| pages.len() > 1);
                Fate::altered(&Message::Converted { pages: pages.iter().chain(left_out.copied()).collect() })
            }
            _ => Fate::Sent,
        }
    }
}
