//! Planted bugs of the single-writer protocol.

use hiroba_base::{Access, NodeId, PageId};
use hiroba_protocol::Effect;
use hiroba_wire::{Limits, Message};
use rustc_hash::FxHashMap;

use super::wrongs::{FirstContents, WIDE_LIMITS, truncate_install};
use super::{Fate, Mutation};

/// The catalogue of planted bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A node says that it has given its copy up, and keeps it.
    KeepCopy,
    /// It gives the copy up some time after it has said so.
    GiveUpLate,
    /// The owner goes on writing after it has given a copy away.
    KeepWritingWhenSharing,
    /// The owner goes on using the page after it has handed it over.
    KeepPageWhenHandingOver,
    /// The owner stops writing only when it has sent the copy.
    ShareBeforeProtecting,
    /// The owner stops using the page only when it has sent it.
    HandOverBeforeProtecting,
    /// The new owner is not told who has copies.
    ForgetCopyset,
    /// The new owner is not told of one of those who have copies.
    ForgetOneReader,
    /// A copy is not invalidated, and counted as if.
    SkipInvalidation,
    /// The owner writes before those who have copies have answered.
    WriteBeforeAnswers,
    /// The page's content is what it was when it was sent first.
    StaleContent,
    /// The page's content is sent as never written.
    ZeroContent,
    /// Of a page of several granules only the first is taken in.
    TruncateInstall,
    /// A copy may be written.
    WritableCopy,
    /// A page that is owned overtakes its own content.
    OwnershipOvertakesContent,
    /// An answer to an invalidation is lost.
    LoseAnswer,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 16] = [
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
    ];

    /// The bug, ready to be planted in a cluster.
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
    /// A loss of access that each node is about to carry out: why shows with the node's next effect.
    lowered: FxHashMap<NodeId, Effect>,
    /// A loss of access that comes late.
    late: FxHashMap<NodeId, Effect>,
    contents: FirstContents,
}

/// Why a page loses access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    GivesUp,
    Shares,
    HandsOver,
    Other,
}

fn reason(lowered: &Effect, next: &Effect) -> Reason {
    let left = match lowered {
        Effect::Protect { access, .. } => *access,
        _ => Access::None,
    };
    match next {
        Effect::SendPages { .. } if left == Access::Read => Reason::Shares,
        Effect::SendPages { .. } => Reason::HandsOver,
        Effect::Send { message, .. } => match Message::decode(message, &WIDE_LIMITS) {
            Ok(Message::CopyInvalidated { .. }) => Reason::GivesUp,
            Ok(Message::Ownership { .. }) => Reason::HandsOver,
            _ => Reason::Other,
        },
        _ => Reason::Other,
    }
}

impl Planted {
    /// What becomes of a loss of access and the effect behind it.
    fn lower(&mut self, node: NodeId, lowered: Effect, next: Effect) -> Vec<Effect> {
        match (self.mutant, reason(&lowered, &next)) {
            (Mutant::KeepCopy, Reason::GivesUp)
            | (Mutant::KeepWritingWhenSharing, Reason::Shares)
            | (Mutant::KeepPageWhenHandingOver, Reason::HandsOver) => vec![next],
            (Mutant::GiveUpLate, Reason::GivesUp) => {
                self.late.insert(node, lowered);
                vec![next]
            }
            (Mutant::ShareBeforeProtecting, Reason::Shares)
            | (Mutant::HandOverBeforeProtecting, Reason::HandsOver) => vec![next, lowered],
            _ => vec![lowered, next],
        }
    }
}

impl Mutation for Planted {
    fn on_effect(&mut self, node: NodeId, effect: Effect) -> Vec<Effect> {
        let mut effects: Vec<Effect> = self.late.remove(&node).into_iter().collect();
        if let Some(lowered) = self.lowered.remove(&node) {
            effects.extend(self.lower(node, lowered, effect));
            return effects;
        }
        match (self.mutant, effect) {
            // A loss of access always has a message behind it.
            (_, effect @ (Effect::Protect { access: Access::None, .. } | Effect::Invalidate { .. })) => {
                self.lowered.insert(node, effect);
            }
            (
                Mutant::KeepWritingWhenSharing | Mutant::ShareBeforeProtecting,
                effect @ Effect::Protect { access: Access::Read, .. },
            ) => {
                self.lowered.insert(node, effect);
            }
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
            (Mutant::SkipInvalidation | Mutant::WriteBeforeAnswers, Ok(Message::InvalidateCopy { page })) => {
                vec![(from, Message::CopyInvalidated { page }.encode())]
            }
            _ => Vec::new(),
        }
    }

    fn on_message(&mut self, from: NodeId, to: NodeId, message: &Message<'_>, _limits: &Limits) -> Fate {
        match (self.mutant, message.clone()) {
            (Mutant::ForgetCopyset, Message::Ownership { page, turns, .. }) => {
                Fate::altered(&Message::Ownership { page, copyset: Vec::new(), turns })
            }
            (Mutant::ForgetOneReader, Message::Ownership { page, mut copyset, turns }) => {
                copyset.pop();
                Fate::altered(&Message::Ownership { page, copyset, turns })
            }
            (Mutant::SkipInvalidation, Message::InvalidateCopy { .. }) => Fate::LOST,
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
