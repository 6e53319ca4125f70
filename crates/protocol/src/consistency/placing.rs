//! Fresh pages that get homes on all nodes ([`Synchronisation::Place`](crate::Synchronisation::Place)).
//!
//! The pages that a node allocates from are homed there, wherever they will be used. A node that allocates a
//! long block for threads of all nodes has its pages *placed*: they are homed in blocks of consecutive pages,
//! one block on each node, as those of a collective allocation are.
//! ```text
//!   allocating node ──Place──▶ all others ──Placed──▶ allocating node
//! ```
//! Why this is correct. The pages are fresh: no node has any state of them, and nobody touches them before
//! the allocation returns. The host sees to it that no page near enough to be fetched or opened ahead has
//! been touched. So each node only changes its map of homes, and whoever learns of the block later, from the
//! allocating thread, does so after all nodes have answered.

use hiroba_base::{NodeId, PageId, PageRange};
use hiroba_wire::Message;

use super::Consistency;
use crate::{Expected, Outcome, ProtocolError, Waiter, unexpected};

/// Pages that are being placed.
#[derive(Debug)]
pub(super) struct Placing {
    pages: PageRange,
    waiter: Waiter,
    /// The other nodes that have not answered.
    unanswered: Vec<NodeId>,
}

impl Consistency {
    /// Has all nodes place fresh pages that are homed here. Refused if they are not fresh.
    pub(super) fn place(&mut self, pages: PageRange, waiter: Waiter) {
        if !self.are_fresh(pages, self.site.me) {
            return self.site.out.wake(waiter, Outcome::Refused);
        }
        let me = self.site.me;
        let others = NodeId::all(self.site.limits.nodes).filter(|node| *node != me);
        let unanswered: Vec<NodeId> = others.collect();
        for node in &unanswered {
            self.site.out.send(*node, &Message::Place { first: pages.first, count: pages.count });
        }
        self.placing.push(Placing { pages, waiter, unanswered });
        self.end_placing();
    }

    /// Handles that a node places pages that are homed there.
    pub(super) fn handle_place(&mut self, from: NodeId, pages: PageRange) -> Result<(), ProtocolError> {
        if from == self.site.me || !self.are_fresh(pages, from) {
            let got = format!("node {from}'s of {} pages from {}", pages.count, pages.first);
            return Err(unexpected(Expected::FreshPages, got));
        }
        self.move_fresh(pages);
        self.site.out.send(from, &Message::Placed { first: pages.first });
        Ok(())
    }

    /// Handles that a node has placed pages of this node.
    pub(super) fn handle_placed(&mut self, from: NodeId, first: PageId) -> Result<(), ProtocolError> {
        let placing = self.placing.iter_mut().find(|placing| placing.pages.first == first);
        let waiting = placing.map(|placing| &mut placing.unanswered);
        let Some(waiting) = waiting.filter(|waiting| waiting.contains(&from)) else {
            return Err(unexpected(Expected::AnswerToPlacing, format!("node {from}'s about {first}")));
        };
        waiting.retain(|node| *node != from);
        self.end_placing();
        Ok(())
    }

    fn end_placing(&mut self) {
        let placed = self.placing.extract_if(.., |placing| placing.unanswered.is_empty()).collect::<Vec<_>>();
        for Placing { pages, waiter, .. } in placed {
            self.move_fresh(pages);
            self.site.out.wake(waiter, Outcome::Done);
        }
    }

    /// Returns true if the pages have one granule each, are homed on that node, and no protocol has any state
    /// of them here.
    fn are_fresh(&self, pages: PageRange, home: NodeId) -> bool {
        let is_fresh = |page| {
            let located = self.site.homes.locate(page);
            let located = located.filter(|located| located.granules == 1 && located.home == home);
            located.is_some_and(|located| {
                let protocol = &self.protocols.all[self.protocols.index_of(page)];
                protocol.can_move_homes() && protocol.state(&self.site, located).is_none()
            })
        };
        pages.count > 0 && !self.is_being_placed(pages) && pages.iter().all(is_fresh)
    }

    fn is_being_placed(&self, pages: PageRange) -> bool {
        let overlaps =
            |placing: &Placing| placing.pages.first < pages.end() && pages.first < placing.pages.end();
        self.placing.iter().any(overlaps)
    }

    fn move_fresh(&mut self, pages: PageRange) {
        let nodes = u64::from(self.site.limits.nodes);
        for (number, page) in (0u64..).zip(pages.iter()) {
            let home = u128::from(number) * u128::from(nodes) / u128::from(pages.count);
            self.site.homes.move_page(page, NodeId(home as u16));
        }
    }
}
