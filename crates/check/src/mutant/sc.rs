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
    /// A loss of access that each node is about to carry out; the node's next effect shows the reason.
    lowered: FxHashMap<NodeId, Effect>,
    /// A loss of access that is delayed.
    late: FxHashMap<NodeId, Effect>,
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
    /// Decides what happens to a loss of access and the effect after it.
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
            // A loss of access is always followed by a message.
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
