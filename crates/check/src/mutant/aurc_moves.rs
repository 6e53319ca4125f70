//! Planted bugs of automatic update while homes move: diffs that are sent before their interval ends, of
//! pages that move.

use hiroba_base::{NodeId, PageId, VersionVector};
use hiroba_protocol::{Effect, PageToSend};
use hiroba_wire::{Limits, Message, PageDiff, PageHandedOver};
use rustc_hash::{FxHashMap, FxHashSet};

use super::wrongs::WIDE_LIMITS;
use super::{Fate, Mutation};

/// The catalogue of planted bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// Early diffs of a page that is moving to its next home are lost.
    LoseWhileComing,
    /// Early diffs of a page that is moving to its next home are applied at once to its present content
    /// there.
    ApplyWhileComing,
    /// A page moves without its content to a home that has all of its version, whatever open intervals have
    /// changed.
    HandOverWithoutParts,
    /// Early diffs of a page that has moved go where the interval's other early diffs went.
    EarlyToLastHome,
    /// The rest of a page that has moved is sent at the release where its early diffs went.
    RestToLastHome,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 5] = [
        Mutant::LoseWhileComing,
        Mutant::ApplyWhileComing,
        Mutant::HandOverWithoutParts,
        Mutant::EarlyToLastHome,
        Mutant::RestToLastHome,
    ];

    /// Returns the bug, ready to be planted in a cluster.
    pub fn plant(self) -> Box<dyn Mutation> {
        Box::new(Planted {
            mutant: self,
            coming: FxHashMap::default(),
            hasty: Vec::new(),
            held: FxHashMap::default(),
            withheld: FxHashSet::default(),
            went: FxHashMap::default(),
        })
    }
}

struct Planted {
    mutant: Mutant,
    /// The destinations of moving pages, from the announcement to the content.
    coming: FxHashMap<PageId, NodeId>,
    /// Diffs to be applied at once, and where.
    hasty: Vec<(NodeId, PageId, Vec<u8>)>,
    /// What next homes have said that they have.
    held: FxHashMap<(NodeId, PageId), VersionVector>,
    /// Pages whose content is not sent.
    withheld: FxHashSet<(NodeId, PageId)>,
    /// Where each node's early diffs of a page went in the open interval.
    went: FxHashMap<(NodeId, PageId), NodeId>,
}

fn sent(to: NodeId, message: &Message<'_>) -> Effect {
    Effect::Send { to, message: message.encode() }
}

impl Planted {
    /// Follows what nodes tell each other about moves.
    fn note(&mut self, node: NodeId, message: &Message<'_>) {
        match message {
            Message::Depart { moves, .. } => {
                for moved in moves {
                    self.coming.extend(moved.pages.iter().map(|page| (page, moved.to)));
                }
            }
            Message::HomeMovesHeard { held, .. } => {
                for held in held {
                    let pages = held.pages.iter();
                    self.held.extend(pages.map(|page| ((node, page), held.version.clone())));
                }
            }
            _ => {}
        }
    }

    fn meddle_with_early(
        &mut self,
        node: NodeId,
        to: NodeId,
        seq: u64,
        diffs: Vec<PageDiff<'_>>,
    ) -> Vec<Effect> {
        if self.mutant == Mutant::EarlyToLastHome {
            let redirected = |diffs| Message::EarlyDiffs { seq, diffs };
            return self.redirect(node, to, diffs, redirected);
        }
        let is_coming = |diff: &PageDiff<'_>| self.coming.get(&diff.page) == Some(&to);
        let (coming, others): (Vec<_>, Vec<_>) = diffs.into_iter().partition(is_coming);
        let sent_on = match self.mutant {
            Mutant::LoseWhileComing => others,
            Mutant::ApplyWhileComing => {
                self.hasty.extend(coming.iter().map(|diff| (to, diff.page, diff.runs.to_vec())));
                others
            }
            _ => [coming, others].concat(),
        };
        for diff in &sent_on {
            self.went.insert((node, diff.page), to);
        }
        let is_empty = sent_on.is_empty();
        (!is_empty).then(|| sent(to, &Message::EarlyDiffs { seq, diffs: sent_on })).into_iter().collect()
    }

    /// Sends each diff where the interval's first early ones of its page went.
    fn redirect<'a>(
        &mut self,
        node: NodeId,
        to: NodeId,
        diffs: Vec<PageDiff<'a>>,
        message: impl Fn(Vec<PageDiff<'a>>) -> Message<'a>,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        let mut straight = Vec::new();
        for diff in diffs {
            match *self.went.entry((node, diff.page)).or_insert(to) {
                went if went == to => straight.push(diff),
                went => effects.push(sent(went, &message(vec![diff]))),
            }
        }
        effects.extend((!straight.is_empty()).then(|| sent(to, &message(straight))));
        effects
    }

    fn meddle_with_rest(
        &mut self,
        node: NodeId,
        to: NodeId,
        seq: u64,
        last: bool,
        diffs: Vec<PageDiff<'_>>,
    ) -> Vec<Effect> {
        let pages: Vec<PageId> = diffs.iter().map(|diff| diff.page).collect();
        let rest = |diffs| Message::Diffs { seq, last, diffs };
        let effects = match self.mutant {
            Mutant::RestToLastHome => self.redirect(node, to, diffs, rest),
            _ => vec![sent(to, &rest(diffs))],
        };
        pages.into_iter().for_each(|page| _ = self.went.remove(&(node, page)));
        effects
    }

    fn withhold(&mut self, to: NodeId, mut pages: Vec<PageHandedOver>) -> Effect {
        for page in &mut pages {
            let claimed = self.held.get(&(to, page.page));
            let lacks_parts_only = claimed.is_some_and(|held| held.covers(&page.version)) && !page.has_words;
            if page.is_sent && lacks_parts_only {
                page.is_sent = false;
                self.withheld.insert((to, page.page));
            }
        }
        sent(to, &Message::HomeHandedOver { pages })
    }
}

impl Mutation for Planted {
    fn on_effect(&mut self, node: NodeId, effect: Effect) -> Vec<Effect> {
        let (hasty, others) = std::mem::take(&mut self.hasty).into_iter().partition(|(to, ..)| *to == node);
        self.hasty = others;
        let hasty: Vec<(NodeId, PageId, Vec<u8>)> = hasty;
        let mut effects: Vec<Effect> =
            hasty.into_iter().map(|(_, page, runs)| Effect::Apply { page, runs }).collect();
        match effect {
            Effect::Send { to, message } => match Message::decode(&message, &WIDE_LIMITS) {
                Ok(Message::EarlyDiffs { seq, diffs }) => {
                    effects.extend(self.meddle_with_early(node, to, seq, diffs));
                }
                Ok(Message::Diffs { seq, last, diffs }) => {
                    effects.extend(self.meddle_with_rest(node, to, seq, last, diffs));
                }
                Ok(Message::HomeHandedOver { pages }) if self.mutant == Mutant::HandOverWithoutParts => {
                    effects.push(self.withhold(to, pages));
                }
                _ => effects.push(Effect::Send { to, message }),
            },
            Effect::SendPages { to, pages } => {
                let is_sent = |page: &PageToSend| !self.withheld.remove(&(to, page.page));
                let pages: Vec<PageToSend> = pages.into_iter().filter(is_sent).collect();
                effects.extend((!pages.is_empty()).then_some(Effect::SendPages { to, pages }));
            }
            Effect::CountMove { page } => {
                self.coming.remove(&page);
                effects.push(Effect::CountMove { page });
            }
            other => effects.push(other),
        }
        effects
    }

    fn on_message(&mut self, from: NodeId, _to: NodeId, message: &Message<'_>, _limits: &Limits) -> Fate {
        self.note(from, message);
        Fate::Sent
    }
}
