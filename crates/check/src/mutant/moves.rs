//! Planted bugs of homes that move.

use hiroba_base::{Access, NodeId, PageId};
use hiroba_protocol::Effect;
use hiroba_wire::{Limits, Message, PageHandedOver};

use super::wrongs::FirstContents;
use super::{Fate, Mutation};

/// The catalogue of planted bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A node's acknowledgement of a move overtakes diffs that it has sent before.
    HeardOvertakesDiffs,
    /// A node's acknowledgement of a move counts twice.
    HeardTwice,
    /// A node's acknowledgement of a move is lost.
    LoseHeard,
    /// The next home claims one interval of each writer more than it has.
    ClaimHeld,
    /// The last home does not send what the next one lacks.
    SkipContent,
    /// The last home sends the content that it had when it first sent the page.
    StaleContent,
    /// The last home claims one interval of each writer more than it has.
    HandOverTooMuch,
    /// The last home forgets one writer's intervals.
    HandOverTooLittle,
    /// Pages that are to rest keep their access.
    SkipRest,
    /// A departure does not list the pages that have other homes.
    ForgetMoves,
    /// One departure moves pages to other homes than the others do.
    MoveAstray,
    /// The pages are handed over before their contents are sent, and the contents go astray.
    ContentAstray,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 12] = [
        Mutant::HeardOvertakesDiffs,
        Mutant::HeardTwice,
        Mutant::LoseHeard,
        Mutant::ClaimHeld,
        Mutant::SkipContent,
        Mutant::StaleContent,
        Mutant::HandOverTooMuch,
        Mutant::HandOverTooLittle,
        Mutant::SkipRest,
        Mutant::ForgetMoves,
        Mutant::MoveAstray,
        Mutant::ContentAstray,
    ];

    /// Returns the bug, ready to be planted in a cluster.
    pub fn plant(self) -> Box<dyn Mutation> {
        Box::new(Planted { mutant: self, contents: Default::default(), hands_over: false })
    }
}

struct Planted {
    mutant: Mutant,
    contents: FirstContents,
    /// Whether the last message that was sent handed pages over.
    hands_over: bool,
}

impl Planted {
    fn alter_page(&self, page: &mut PageHandedOver) {
        match self.mutant {
            Mutant::SkipContent => page.is_sent = false,
            Mutant::HandOverTooMuch => {
                let claimed: Vec<_> = page.version.entries().to_vec();
                claimed.into_iter().for_each(|(writer, seq)| page.version.advance(writer, seq + 1));
            }
            Mutant::HandOverTooLittle => {
                let kept: Vec<_> = page.version.entries().iter().skip(1).copied().collect();
                page.version = Default::default();
                kept.into_iter().for_each(|(writer, seq)| page.version.advance(writer, seq));
                page.is_sent = false;
            }
            _ => {}
        }
    }

    fn alter<'a>(&self, to: NodeId, message: Message<'a>, limits: &Limits) -> Message<'a> {
        match message {
            Message::HomeHandedOver { mut pages } => {
                pages.iter_mut().for_each(|page| self.alter_page(page));
                Message::HomeHandedOver { pages }
            }
            Message::HomeMovesHeard { page, mut held } if self.mutant == Mutant::ClaimHeld => {
                for held in &mut held {
                    NodeId::all(limits.nodes)
                        .for_each(|writer| held.version.advance(writer, held.version.get(writer) + 1));
                }
                Message::HomeMovesHeard { page, held }
            }
            Message::Depart { epoch, collective, knowledge, mut moves } => {
                match self.mutant {
                    Mutant::ForgetMoves => moves.clear(),
                    Mutant::MoveAstray if to.0 + 1 == limits.nodes => {
                        moves.iter_mut().for_each(|moved| moved.to = NodeId((moved.to.0 + 1) % limits.nodes));
                    }
                    _ => {}
                }
                Message::Depart { epoch, collective, knowledge, moves }
            }
            other => other,
        }
    }
}

impl Mutation for Planted {
    fn on_effect(&mut self, _node: NodeId, effect: Effect) -> Vec<Effect> {
        match effect {
            Effect::Protect { access: Access::None, .. } if self.mutant == Mutant::SkipRest => Vec::new(),
            other => vec![other],
        }
    }

    fn on_content(&mut self, page: PageId, content: Option<&[u8]>) -> Option<Vec<u8>> {
        if self.mutant == Mutant::StaleContent {
            let first = self.contents.instead_of(page, content);
            if self.hands_over {
                return first;
            }
        }
        content.map(<[u8]>::to_vec)
    }

    fn on_message(&mut self, _from: NodeId, to: NodeId, message: &Message<'_>, limits: &Limits) -> Fate {
        let follows_handing_over = self.hands_over;
        self.hands_over = matches!(message, Message::HomeHandedOver { .. })
            || self.hands_over && matches!(message, Message::PagesReply { .. });
        match (self.mutant, message) {
            (Mutant::HeardOvertakesDiffs, Message::HomeMovesHeard { .. }) => Fate::Astray,
            (Mutant::HeardTwice, Message::HomeMovesHeard { .. }) => Fate::Twice { late: true },
            (Mutant::LoseHeard, Message::HomeMovesHeard { .. }) => Fate::LOST,
            (Mutant::SkipContent | Mutant::HandOverTooLittle, Message::PagesReply { .. })
                if follows_handing_over =>
            {
                Fate::LOST
            }
            (Mutant::ContentAstray, Message::PagesReply { .. }) if follows_handing_over => Fate::Astray,
            _ => Fate::altered(&self.alter(to, message.clone(), limits)),
        }
    }
}
