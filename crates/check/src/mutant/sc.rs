//! Planted bugs of the single-writer protocol.

use hiroba_base::{Access, NodeId, PageId, PageRange};
use hiroba_protocol::Effect;
use hiroba_wire::{Limits, Message};
use rustc_hash::FxHashMap;

use super::wrongs::{FirstContents, truncate_install};
use super::{Fate, Mutation};

/// The catalogue of planted bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A node says that it has given its copy up, but keeps it.
    KeepCopy,
    /// A node gives its copy up some time after it has said so.
    GiveUpLate,
    /// The owner continues to write after it has given a copy away.
    KeepWritingWhenSharing,
    /// The owner continues to use the page after it has handed it over.
    KeepPageWhenHandingOver,
    /// The owner stops writing only after it has sent the copy.
    ShareBeforeProtecting,
    /// The owner stops using the page only after it has sent it.
    HandOverBeforeProtecting,
    /// The new owner does not learn which nodes have copies.
    ForgetCopyset,
    /// The new owner does not learn of one of the nodes with copies.
    ForgetOneReader,
    /// A copy is not invalidated, but counted as invalidated.
    SkipInvalidation,
    /// The owner writes before the nodes with copies have answered.
    WriteBeforeAnswers,
    /// The page's content is that of its first sending.
    StaleContent,
    /// The page's content is sent as never written.
    ZeroContent,
    /// Of a page of several granules only the first is installed.
    TruncateInstall,
    /// A copy may be written.
    WritableCopy,
    /// The ownership of a page overtakes its content.
    OwnershipOvertakesContent,
    /// An answer to an invalidation is lost.
    LoseAnswer,
    /// Of the copies that are to be invalidated together, only the first one is, and all count as
    /// invalidated.
    InvalidateOnlyFirst,
    /// Of the pages of which copies are given together, the owner stops writing only the first one.
    ShareOnlyFirst,
    /// Of the pages that are sent together, two have each other's content.
    SwapContents,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 19] = [
        Mutant::KeepCopy,
        Mutant::GiveUpLate,
        Mutant::KeepWritingWhenSharing,
        Mutant::KeepPageWhenHandingOver,
        Mutant::ShareBeforeProtecting,
        Mutant::HandOverBeforeProtecting,
        Mutant::ForgetCopyset,
        Mutant::ForgetOneReader,
        Mutant::SkipInvalidation,
        Mutant::WriteBeforeAnswers,
        Mutant::StaleContent,
        Mutant::ZeroContent,
        Mutant::TruncateInstall,
        Mutant::WritableCopy,
        Mutant::OwnershipOvertakesContent,
        Mutant::LoseAnswer,
        Mutant::InvalidateOnlyFirst,
        Mutant::ShareOnlyFirst,
        Mutant::SwapContents,
    ];

    /// Those that need pages which go together.
    pub const OF_RUNS: [Mutant; 3] =
        [Mutant::InvalidateOnlyFirst, Mutant::ShareOnlyFirst, Mutant::SwapContents];

    /// Returns the bug, ready to be planted in a cluster.
    pub fn plant(self) -> Box<dyn Mutation> {
        Box::new(Planted {
            mutant: self,
            lowered: FxHashMap::default(),
            late: FxHashMap::default(),
            contents: FirstContents::default(),
        })
    }
}

struct Planted {
    mutant: Mutant,
    /// The losses of access that each node is about to carry out; the effect behind them shows the reason.
    lowered: FxHashMap<NodeId, Vec<Effect>>,
    /// Losses of access that are delayed.
    late: FxHashMap<NodeId, Vec<Effect>>,
    contents: FirstContents,
}

/// The reason why a page loses access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    GivesUp,
    Shares,
    HandsOver,
    Other,
}

fn reason(lowered: &Effect, next: &Effect) -> Reason {
    match lowered {
        Effect::Invalidate { .. } => Reason::GivesUp,
        Effect::Protect { access: Access::None, .. } => Reason::HandsOver,
        // Otherwise it is access to a copy that has come.
        _ if matches!(next, Effect::SendPages { .. }) => Reason::Shares,
        _ => Reason::Other,
    }
}

fn only_first(effect: Effect) -> Effect {
    match effect {
        Effect::Protect { pages, access } => {
            Effect::Protect { pages: PageRange { count: 1, ..pages }, access }
        }
        other => other,
    }
}

impl Planted {
    /// Returns true if the effect may be a loss of access that matters to this mutant.
    fn is_watched(&self, effect: &Effect) -> bool {
        match effect {
            Effect::Protect { access: Access::None, .. } | Effect::Invalidate { .. } => true,
            Effect::Protect { access: Access::Read, .. } => {
                use Mutant::{KeepWritingWhenSharing, ShareBeforeProtecting, ShareOnlyFirst};
                matches!(self.mutant, KeepWritingWhenSharing | ShareBeforeProtecting | ShareOnlyFirst)
            }
            _ => false,
        }
    }

    /// Decides what happens to losses of access and the effect behind them.
    fn lower(&mut self, node: NodeId, lowered: Vec<Effect>, next: Effect) -> Vec<Effect> {
        let (mut before, mut behind) = (Vec::new(), Vec::new());
        for effect in lowered {
            match (self.mutant, reason(&effect, &next)) {
                (Mutant::KeepCopy, Reason::GivesUp)
                | (Mutant::KeepWritingWhenSharing, Reason::Shares)
                | (Mutant::KeepPageWhenHandingOver, Reason::HandsOver) => {}
                (Mutant::ShareOnlyFirst, Reason::Shares) => before.push(only_first(effect)),
                (Mutant::GiveUpLate, Reason::GivesUp) => self.late.entry(node).or_default().push(effect),
                (Mutant::ShareBeforeProtecting, Reason::Shares)
                | (Mutant::HandOverBeforeProtecting, Reason::HandsOver) => behind.push(effect),
                _ => before.push(effect),
            }
        }
        before.push(next);
        before.append(&mut behind);
        before
    }
}

impl Mutation for Planted {
    fn on_effect(&mut self, node: NodeId, effect: Effect) -> Vec<Effect> {
        if self.is_watched(&effect) {
            self.lowered.entry(node).or_default().push(effect);
            return Vec::new();
        }
        let mut effects = self.late.remove(&node).unwrap_or_default();
        if let Some(lowered) = self.lowered.remove(&node) {
            effects.extend(self.lower(node, lowered, effect));
            return effects;
        }
        match (self.mutant, effect) {
            (Mutant::WritableCopy, Effect::Protect { pages, access: Access::Read }) => {
                effects.push(Effect::Protect { pages, access: Access::Write });
            }
            (Mutant::TruncateInstall, effect) => effects.push(truncate_install(effect)),
            (_, effect) => effects.push(effect),
        }
        effects
    }

    fn on_content(&mut self, page: PageId, content: Option<&[u8]>) -> Option<Vec<u8>> {
        match self.mutant {
            Mutant::StaleContent => self.contents.instead_of(page, content),
            Mutant::ZeroContent => None,
            _ => content.map(<[u8]>::to_vec),
        }
    }

    fn sends_before(&mut self, from: NodeId, bytes: &[u8], limits: &Limits) -> Vec<(NodeId, Vec<u8>)> {
        match (self.mutant, Message::decode(bytes, limits)) {
            (
                Mutant::SkipInvalidation | Mutant::WriteBeforeAnswers,
                Ok(Message::InvalidateCopy { pages, .. }),
            ) => {
                vec![(from, Message::CopyInvalidated { pages }.encode())]
            }
            (Mutant::InvalidateOnlyFirst, Ok(Message::InvalidateCopy { pages, .. })) if pages.len() > 1 => {
                vec![(from, Message::CopyInvalidated { pages: pages.iter().skip(1).collect() }.encode())]
            }
            _ => Vec::new(),
        }
    }

    fn on_message(&mut self, from: NodeId, to: NodeId, message: &Message<'_>, _limits: &Limits) -> Fate {
        match (self.mutant, message.clone()) {
            (Mutant::ForgetCopyset, Message::Ownership { mut pages }) => {
                pages.iter_mut().for_each(|owned| owned.copyset.clear());
                Fate::altered(&Message::Ownership { pages })
            }
            (Mutant::ForgetOneReader, Message::Ownership { mut pages }) => {
                pages.iter_mut().for_each(|owned| _ = owned.copyset.pop());
                Fate::altered(&Message::Ownership { pages })
            }
            (Mutant::SkipInvalidation, Message::InvalidateCopy { .. }) => Fate::LOST,
            (Mutant::InvalidateOnlyFirst, Message::InvalidateCopy { pages, are_lent }) => {
                let pages = pages.iter().take(1).collect();
                Fate::altered(&Message::InvalidateCopy { pages, are_lent })
            }
            (Mutant::SwapContents, Message::PagesReply { mut copies, content }) if copies.len() > 1 => {
                let (first, second) = (copies[0].page, copies[1].page);
                (copies[0].page, copies[1].page) = (second, first);
                Fate::altered(&Message::PagesReply { copies, content })
            }
            (Mutant::WriteBeforeAnswers | Mutant::LoseAnswer, Message::CopyInvalidated { .. })
                if from != to =>
            {
                Fate::LOST
            }
            (Mutant::OwnershipOvertakesContent, Message::PagesReply { .. }) => Fate::Astray,
            _ => Fate::Sent,
        }
    }
}
