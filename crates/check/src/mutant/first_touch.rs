//! Planted bugs of first touches ([`Placement::FirstTouch`](hiroba_wire::Placement)): memory stays right, but
//! pages move to the wrong homes.

use hiroba_base::NodeId;
use hiroba_wire::{Limits, Message, PagesWanted};

use super::{Fate, Mutation};

/// The catalogue of planted bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A request for untouched pages claims that each has been touched.
    AheadIsTouch,
    /// A request that a thread waits for claims that the page has not been touched.
    TouchIsAhead,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 2] = [Mutant::AheadIsTouch, Mutant::TouchIsAhead];

    fn alter<'a>(self, from: NodeId, message: Message<'a>) -> Vec<Message<'a>> {
        match (self, message) {
            (Mutant::AheadIsTouch, Message::PagesRequest { wanted, .. }) => {
                let wanted = wanted.into_iter().flat_map(|PagesWanted { needed, pages }| {
                    let pages: Vec<_> = pages.iter().collect();
                    pages.into_iter().map(move |page| (page, needed.clone()))
                });
                wanted.map(|(page, needed)| Message::PageRequest { page, needed }).collect()
            }
            (Mutant::TouchIsAhead, Message::PageRequest { page, needed }) => {
                let wanted = vec![PagesWanted { needed, pages: [page].into_iter().collect() }];
                vec![Message::PagesRequest { wanted, descending: false }]
            }
            (Mutant::TouchIsAhead, Message::CopyRequest { page, requester }) if requester == from => {
                let wanted =
                    vec![PagesWanted { needed: Default::default(), pages: [page].into_iter().collect() }];
                vec![Message::PagesRequest { wanted, descending: false }]
            }
            (_, other) => vec![other],
        }
    }
}

impl Mutation for Mutant {
    fn on_message(&mut self, from: NodeId, _to: NodeId, message: &Message<'_>, _limits: &Limits) -> Fate {
        Fate::Replaced(self.alter(from, message.clone()).iter().map(Message::encode).collect())
    }
}
