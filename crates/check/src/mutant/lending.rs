//! Planted bugs of copies that are lent from one collective to the next.

use hiroba_base::{Access, NodeId, PageId, PageRange, PageSet, VectorTimestamp};
use hiroba_protocol::Effect;
use hiroba_wire::{Limits, Message};
use rustc_hash::FxHashSet;

use super::{Fate, Mutation};

/// The catalogue of planted bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A node comes to the next collective, but keeps what it has borrowed.
    KeepBorrowed,
    /// The lender continues to write.
    LendWhileWriting,
    /// A lent copy is not invalidated, but counted as invalidated.
    SkipInvalidation,
    /// A lent copy may be written.
    WritableLoan,
    /// The answer of a node that has returned the copy, or has not taken it, is lost.
    LoseAnswer,
    /// Arrivals do not report what their nodes have written.
    HideNews,
    /// Invalidations do not tell copies that were requested from those that were lent.
    AllAreLent,
}

impl Mutant {
    /// All that concern departures.
    pub const ALL: [Mutant; 5] = [
        Mutant::KeepBorrowed,
        Mutant::LendWhileWriting,
        Mutant::SkipInvalidation,
        Mutant::WritableLoan,
        Mutant::LoseAnswer,
    ];

    /// Those that concern only who waits for arrivals.
    pub const OF_ARRIVALS: [Mutant; 2] = [Mutant::HideNews, Mutant::AllAreLent];

    /// Returns the bug, ready to be planted in a cluster.
    pub fn plant(self) -> Box<dyn Mutation> {
        Box::new(Planted { mutant: self, lent: FxHashSet::default(), recalled: FxHashSet::default() })
    }
}

struct Planted {
    mutant: Mutant,
    /// Copies that were lent and have not been invalidated, with their borrowers.
    lent: FxHashSet<(NodeId, PageId)>,
    /// Those that have been.
    recalled: FxHashSet<(NodeId, PageId)>,
}

impl Planted {
    fn has_borrowed(&self, node: NodeId, pages: PageRange) -> bool {
        self.lent.iter().any(|(borrower, page)| *borrower == node && pages.contains(*page))
    }

    fn is_lent(&self, page: PageId) -> bool {
        self.lent.iter().any(|(_, lent)| *lent == page)
    }
}

impl Mutation for Planted {
    fn on_effect(&mut self, node: NodeId, effect: Effect) -> Vec<Effect> {
        match &effect {
            Effect::SendPages { to, pages } => {
                let lent: Vec<PageId> =
                    pages.iter().filter(|sent| !sent.version.is_empty()).map(|sent| sent.page).collect();
                self.lent.extend(lent.iter().map(|page| (*to, *page)));
                let mut effects = vec![effect];
                if self.mutant == Mutant::LendWhileWriting {
                    let access = Access::Write;
                    effects.extend(
                        lent.into_iter()
                            .map(|page| Effect::Protect { pages: PageRange::single(page), access }),
                    );
                }
                effects
            }
            Effect::Invalidate { span, .. }
                if self.mutant == Mutant::KeepBorrowed && self.has_borrowed(node, *span) =>
            {
                self.lent.retain(|(borrower, page)| *borrower != node || !span.contains(*page));
                Vec::new()
            }
            Effect::Protect { pages, access: Access::Read }
                if self.mutant == Mutant::WritableLoan && self.has_borrowed(node, *pages) =>
            {
                vec![Effect::Protect { pages: *pages, access: Access::Write }]
            }
            _ => vec![effect],
        }
    }

    fn sends_before(&mut self, from: NodeId, bytes: &[u8], limits: &Limits) -> Vec<(NodeId, Vec<u8>)> {
        match (self.mutant, Message::decode(bytes, limits)) {
            (Mutant::SkipInvalidation, Ok(Message::InvalidateCopy { pages, .. })) => {
                let pages: PageSet = pages.iter().filter(|page| self.is_lent(*page)).collect();
                let answer = (from, Message::CopyInvalidated { pages: pages.clone() }.encode());
                if pages.is_empty() { Vec::new() } else { vec![answer] }
            }
            _ => Vec::new(),
        }
    }

    fn on_message(&mut self, from: NodeId, to: NodeId, message: &Message<'_>, limits: &Limits) -> Fate {
        let without = |pages: &PageSet, lost: &dyn Fn(PageId) -> bool| -> PageSet {
            pages.iter().filter(|page| !lost(*page)).collect()
        };
        match message {
            Message::InvalidateCopy { pages, are_lent } => {
                if self.mutant == Mutant::AllAreLent {
                    return Fate::altered(&Message::InvalidateCopy { pages: pages.clone(), are_lent: true });
                }
                let lent: PageSet = pages.iter().filter(|page| self.lent.remove(&(to, *page))).collect();
                self.recalled.extend(lent.iter().map(|page| (to, page)));
                if self.mutant != Mutant::SkipInvalidation || lent.is_empty() {
                    return Fate::Sent;
                }
                let pages = without(pages, &|page| lent.contains(page));
                if pages.is_empty() {
                    Fate::LOST
                } else {
                    Fate::altered(&Message::InvalidateCopy { pages, are_lent: *are_lent })
                }
            }
            Message::CopyInvalidated { pages } => {
                let answered: PageSet =
                    pages.iter().filter(|page| self.recalled.remove(&(from, *page))).collect();
                if self.mutant != Mutant::LoseAnswer || answered.is_empty() {
                    return Fate::Sent;
                }
                let pages = without(pages, &|page| answered.contains(page));
                if pages.is_empty() { Fate::LOST } else { Fate::altered(&Message::CopyInvalidated { pages }) }
            }
            Message::Arrive { .. } if self.mutant == Mutant::HideNews => {
                let mut silent = message.clone();
                if let Message::Arrive { knowledge, least, .. } = &mut silent {
                    *least = None;
                    knowledge.timestamp = VectorTimestamp::new(limits.nodes);
                    knowledge.notices.clear();
                }
                Fate::altered(&silent)
            }
            _ => Fate::Sent,
        }
    }
}
