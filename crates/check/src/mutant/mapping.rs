//! Planted bugs of pages that are mapped onto their homes' frames.

use hiroba_base::{Access, NodeId, PageId, PageRange, VersionVector};
use hiroba_protocol::Effect;
use hiroba_wire::{Knowledge, Limits, Message};

use super::{Fate, Mutation};
use crate::program::GRANULE_BYTES;

/// The catalogue of planted bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// Writers keep a copy beside the mapping.
    KeepCopy,
    /// One node maps the frames of a node other than the home.
    MapAnother,
    /// On one node runs lack their last page.
    CutShort,
    /// Runs begin a page too early: that page may have another home.
    BeginEarly,
    /// A node requests a copy of a mapped page.
    AskForCopy,
    /// A writer makes a notice for a mapped page when it has changed another.
    Notice,
    /// A twin is made of a mapped page.
    MakeTwin,
    /// Access to a mapped page is taken away.
    TakeAccess,
    /// The latest store to another node's frame may arrive there after the release that follows it.
    StoreLingers,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 9] = [
        Mutant::KeepCopy,
        Mutant::MapAnother,
        Mutant::CutShort,
        Mutant::BeginEarly,
        Mutant::AskForCopy,
        Mutant::Notice,
        Mutant::MakeTwin,
        Mutant::TakeAccess,
        Mutant::StoreLingers,
    ];

    /// Returns the bug, ready to be planted in a cluster.
    pub fn plant(self) -> Box<dyn Mutation> {
        Box::new(Planted { mutant: self, mapped: None })
    }
}

struct Planted {
    mutant: Mutant,
    /// The page that was mapped last.
    mapped: Option<PageId>,
}

/// The node with the erroneous host, if only one has it.
const GUILTY: NodeId = NodeId(1);

impl Planted {
    fn map(&self, node: NodeId, pages: PageRange, home: NodeId) -> Vec<Effect> {
        let all = Effect::MapHome { pages, home };
        match self.mutant {
            Mutant::KeepCopy if node != home => vec![Effect::Protect { pages, access: Access::Write }],
            Mutant::MapAnother if node == GUILTY => {
                // Of at least two nodes, each differs from one of these two.
                let another = if home == NodeId::ZERO { GUILTY } else { NodeId::ZERO };
                vec![Effect::MapHome { pages, home: another }]
            }
            Mutant::CutShort if node == GUILTY => {
                let count = pages.count - 1;
                let rest = (count > 0).then_some(PageRange { first: pages.first, count });
                rest.into_iter().map(|pages| Effect::MapHome { pages, home }).collect()
            }
            Mutant::BeginEarly if pages.first.0 > 0 => {
                let pages = PageRange { first: PageId(pages.first.0 - 1), count: pages.count + 1 };
                vec![Effect::MapHome { pages, home }]
            }
            Mutant::AskForCopy if node != home => {
                let message = Message::PageRequest { page: pages.first, needed: VersionVector::new() };
                vec![all, Effect::Send { to: home, message: message.encode() }]
            }
            _ => vec![all],
        }
    }

    /// Adds a page to what a node tells about its own intervals.
    fn with_notice(&self, from: NodeId, knowledge: &Knowledge) -> Knowledge {
        let mut knowledge = knowledge.clone();
        for notice in knowledge.notices.iter_mut().filter(|notice| notice.node == from) {
            self.mapped.into_iter().for_each(|page| _ = notice.pages.insert(page));
        }
        knowledge
    }
}

impl Mutation for Planted {
    fn on_effect(&mut self, node: NodeId, effect: Effect) -> Vec<Effect> {
        let wrong = match (self.mutant, &effect, self.mapped) {
            (_, Effect::MapHome { pages, home }, _) => {
                self.mapped = Some(pages.first);
                return self.map(node, *pages, *home);
            }
            (Mutant::MakeTwin, Effect::Wake { .. }, Some(page)) => {
                Some(Effect::Twin { page, page_bytes: GRANULE_BYTES })
            }
            (Mutant::TakeAccess, Effect::Wake { .. }, Some(page)) => {
                Some(Effect::Protect { pages: PageRange::single(page), access: Access::None })
            }
            _ => None,
        };
        wrong.into_iter().chain([effect]).collect()
    }

    fn on_message(&mut self, from: NodeId, _to: NodeId, message: &Message<'_>, _limits: &Limits) -> Fate {
        match message {
            Message::LockGrant { lock, turn, knowledge } if self.mutant == Mutant::Notice => {
                let knowledge = self.with_notice(from, knowledge);
                Fate::altered(&Message::LockGrant { lock: *lock, turn: *turn, knowledge })
            }
            _ => Fate::Sent,
        }
    }

    fn store_lingers(&mut self) -> bool {
        self.mutant == Mutant::StoreLingers
    }
}
