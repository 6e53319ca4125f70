//! Planted bugs of hosts that are short of memory and evict copies.

use hiroba_base::{Access, NodeId, PageId, PageRange};
use hiroba_protocol::{Effect, WriteTracking};

use super::Mutation;

/// The catalogue of planted bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// The program keeps its access to evicted pages.
    KeepAccess,
    /// The program keeps its access to a page that others write until the page's diff has been made.
    AccessUntilDiff,
    /// A frame is given up only after the page has come again.
    GiveUpLate,
    /// Granules recorded as written count as unwritten when they are evicted.
    UnwrittenUnseen,
    /// Of pages that are evicted together the neighbour's frame is given up, too.
    GiveUpNeighbour,
    /// The frame of a home page is given up without saving its content.
    GiveUpHome,
    /// A home page keeps the program's access when it is evicted.
    KeepAccessToHome,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 7] = [
        Mutant::KeepAccess,
        Mutant::AccessUntilDiff,
        Mutant::GiveUpLate,
        Mutant::UnwrittenUnseen,
        Mutant::GiveUpNeighbour,
        Mutant::GiveUpHome,
        Mutant::KeepAccessToHome,
    ];

    /// Returns true if the bug can be planted under this way of tracking writes.
    pub fn concerns(self, tracking: WriteTracking) -> bool {
        match self {
            Mutant::UnwrittenUnseen => tracking == WriteTracking::Async,
            Mutant::AccessUntilDiff => tracking == WriteTracking::Fault,
            _ => true,
        }
    }

    /// Returns the bug, ready to be planted.
    pub fn plant(self) -> Box<dyn Mutation> {
        Box::new(Planted { mutant: self, kept_back: Vec::new() })
    }
}

struct Planted {
    mutant: Mutant,
    /// What has yet to be done, and where.
    kept_back: Vec<(NodeId, PageRange)>,
}

impl Planted {
    /// Takes what was deferred for these pages.
    fn take(&mut self, node: NodeId, holds: impl Fn(PageId) -> bool) -> Vec<PageRange> {
        let is_due = |kept: &mut (NodeId, PageRange)| kept.0 == node && kept.1.iter().any(&holds);
        self.kept_back.extract_if(.., is_due).map(|(_, pages)| pages).collect()
    }
}

fn close(pages: PageRange) -> Effect {
    Effect::Protect { pages, access: Access::None }
}

impl Mutation for Planted {
    fn on_effect(&mut self, node: NodeId, effect: Effect) -> Vec<Effect> {
        match (self.mutant, effect) {
            (Mutant::KeepAccess, Effect::Protect { access: Access::None, .. }) => Vec::new(),
            (Mutant::AccessUntilDiff, Effect::Protect { pages, access: Access::None }) => {
                self.kept_back.push((node, pages));
                Vec::new()
            }
            (Mutant::AccessUntilDiff, Effect::Diff { page, keep_twin }) => {
                let due = self.take(node, |granule| granule == page).into_iter().map(close);
                [Effect::Diff { page, keep_twin }].into_iter().chain(due).collect()
            }
            (Mutant::AccessUntilDiff, effect @ (Effect::GiveUp { .. } | Effect::Install { .. })) => {
                let (Effect::GiveUp { pages } | Effect::Install { pages, .. }) = effect else {
                    unreachable!("it is one of both")
                };
                let due = self.take(node, |granule| pages.contains(granule)).into_iter().map(close);
                due.chain([effect]).collect()
            }
            (Mutant::GiveUpLate, Effect::GiveUp { pages }) => {
                self.kept_back.push((node, pages));
                Vec::new()
            }
            (Mutant::GiveUpLate, Effect::Install { pages, content, merge: false, fetched, prefetched }) => {
                let due = self.take(node, |granule| pages.contains(granule));
                let install = Effect::Install { pages, content, merge: false, fetched, prefetched };
                let due = due.into_iter().filter(|due| due.iter().all(|granule| pages.contains(granule)));
                [install].into_iter().chain(due.map(|pages| Effect::GiveUp { pages })).collect()
            }
            (Mutant::GiveUpNeighbour, Effect::GiveUp { pages }) if pages.first.0 > 0 => {
                let first = PageId(pages.first.0 - 1);
                vec![Effect::GiveUp { pages: PageRange { first, count: pages.count + 1 } }]
            }
            (Mutant::GiveUpHome, Effect::PageOut { pages }) => vec![Effect::GiveUp { pages }],
            (Mutant::KeepAccessToHome, Effect::PageOut { pages }) => {
                vec![Effect::Protect { pages, access: Access::Write }, Effect::PageOut { pages }]
            }
            (_, effect) => vec![effect],
        }
    }

    fn on_unwritten(&mut self, was_unwritten: bool) -> bool {
        was_unwritten || self.mutant == Mutant::UnwrittenUnseen
    }
}
