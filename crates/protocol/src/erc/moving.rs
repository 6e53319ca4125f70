//! Moves homes: at barriers to the node that modifies a page most, or at any time to the node that faults on
//! it most; and, if the region is placed so, once at a barrier to the node that first touched it.
//!
//! The page's **base**, the node where its region places it, is fixed, and always knows the current home
//! (SCASH; Sakae and others, section 2.2). The home hands a page over to a node that has a copy of it, so
//! only the directory travels, and the former home keeps its frame as a copy. The new home informs the base.
//!
//! Other nodes remember the sender of the last message from the page's home. A message to a *former home* is
//! forwarded to the base, and from there to the home. If the base receives it from the very node that it
//! takes for the home, that node has given the page away and the next home's report is still under way: the
//! base keeps the message until then. So a message takes at most three hops and never circles. Reports of new
//! homes may overtake each other, so they carry the number of the page's moves.
//!
//! **Why nothing is lost.** The home hands a page over only when all nodes have answered its messages about
//! the page and it has no unreleased writes to it. So all invalidations and updates of the former home have
//! arrived before the new home sends one, and only pages may be under way: they are requested again if
//! anything overtakes them. The new home's copy is valid, since it is in the copyset of a settled page,
//! unless it was overtaken. In that case the node gives the page back at once, to a node whose copy is valid,
//! because no node could change the page as its home meanwhile. A diff that a node sent before it became the
//! home comes back to it. The frame contains it already, and it is not applied, since it might undo later
//! stores, but the nodes that have copies are informed of it.

use std::collections::BTreeSet;

use hiroba_base::{Access, NodeId, PageId};
use hiroba_wire::Message;

use super::Erc;
use super::directory::Directory;
use crate::coherence::Site;
use crate::{Effect, Expected, ProtocolError, unexpected};

/// Finding the home.
impl Erc {
    /// Forwards a message for the page's home, which this node is not.
    pub(super) fn pass_on(&mut self, site: &mut Site, from: NodeId, page_id: PageId, message: &Message<'_>) {
        let base = site.locate(page_id).home;
        let is_base = base == site.me;
        let page = self.page(site, page_id);
        if !is_base {
            site.out.send(base, message);
        } else if page.known_home == from {
            page.kept.push(message.encode());
        } else {
            site.out.send(page.known_home, message);
        }
    }

    /// Handles, on the base, the report of a node that it has become the page's home.
    pub(super) fn handle_moved(
        &mut self,
        site: &mut Site,
        from: NodeId,
        page_id: PageId,
        moves: u32,
    ) -> Result<(), ProtocolError> {
        self.named(site, page_id)?;
        if !site.is_home(page_id) {
            return Err(unexpected(Expected::NewsToBase, format!("of {page_id}")));
        }
        let page = self.page(site, page_id);
        // The base knows of its own moves already, but not that they have been completed.
        if moves >= page.moves {
            (page.known_home, page.moves) = (from, moves);
            self.send_kept(site, page_id);
        }
        Ok(())
    }

    fn send_kept(&mut self, site: &mut Site, page_id: PageId) {
        let kept = std::mem::take(&mut self.page(site, page_id).kept);
        site.out.keep(kept.into_iter().map(|message| (site.me, message)));
    }
}

/// A page's directory, on its way to the new home.
pub(super) struct Transfer<'a> {
    pub(super) page: PageId,
    /// The number of the page's moves.
    pub(super) moves: u32,
    pub(super) copyset: &'a [NodeId],
    /// The number of operations on each atomic word, by offset.
    pub(super) turns: &'a [(u32, u64)],
}

/// Moving.
impl Erc {
    /// Moves pages, at a barrier, to the nodes that have modified most of them.
    pub(super) fn move_modified(&mut self, site: &mut Site) {
        let Erc { home_choice, pages, .. } = self;
        let times = |page: PageId| pages.get(&page).map_or(0, |page| page.moves);
        for (page_id, to) in home_choice.end_period_of_modified(site.me, times) {
            self.hand_over(site, page_id, to);
        }
    }

    /// Notes that a node has faulted on the page, and that a copy is on its way there (Sakae and others,
    /// section 5).
    pub(super) fn note_page_fault(&mut self, site: &mut Site, node: NodeId, page_id: PageId) {
        let page = self.page(site, page_id);
        let moves = page.moves;
        if page.directory.is_some() {
            self.home_choice.note_fetched(page_id, node);
            if self.home_choice.most_faulting(page_id, moves) == Some(node) {
                self.hand_over(site, page_id, node);
            }
        }
    }

    /// Moves pages, at a barrier, to their first touchers, unless the copy there is gone. If a change is
    /// still under way, the page moves at the next barrier.
    pub(super) fn place_touched(&mut self, site: &mut Site) {
        for (page_id, to) in self.home_choice.take_first_touched(u64::MAX, |_| true) {
            let is_written = self.written.contains(page_id);
            match &self.page(site, page_id).directory {
                Some(directory) if is_written || !directory.unsettled.is_empty() => {
                    self.home_choice.put_off(page_id, to);
                }
                _ => self.hand_over(site, page_id, to),
            }
        }
    }

    fn hand_over(&mut self, site: &mut Site, page_id: PageId, to: NodeId) {
        let is_written = self.written.contains(page_id);
        let me = site.me;
        let page = self.page(site, page_id);
        let is_settled = |directory: &mut Box<Directory>| {
            directory.unsettled.is_empty() && directory.copyset.contains(&to) && !is_written
        };
        let Some(mut directory) = page.directory.take_if(|directory| is_settled(directory)) else { return };
        assert!(page.access < Access::Write, "a shared page that is not written is not writable");
        assert!(page.valid && !page.twin, "{page_id}: what is left here is a good copy without changes");
        assert!(directory.midway.is_empty(), "{page_id}: copies that were sent midway are recalled before");
        assert_ne!(to, me, "{page_id}: it goes to another node");
        directory.copyset.remove(&to);
        directory.copyset.insert(me);
        page.moves += 1;
        self.home_choice.forget(page_id);
        self.send_directory(site, page_id, to, *directory);
    }

    fn send_directory(&mut self, site: &mut Site, page_id: PageId, to: NodeId, directory: Directory) {
        let page = self.page(site, page_id);
        assert!(page.directory.is_none(), "{page_id}: a page has one directory");
        page.known_home = to;
        let moves = page.moves;
        let copyset = directory.copyset.into_iter().collect();
        let turns = directory.turns.into_iter().collect();
        site.out.send(to, &Message::HomeTransfer { page: page_id, moves, copyset, turns });
    }

    /// Makes this node the page's home.
    pub(super) fn handle_transfer(
        &mut self,
        site: &mut Site,
        from: NodeId,
        Transfer { page: page_id, moves, copyset, turns }: Transfer<'_>,
    ) -> Result<(), ProtocolError> {
        self.named(site, page_id)?;
        let (me, base) = (site.me, site.locate(page_id).home);
        let page = self.page(site, page_id);
        if page.directory.is_some() || moves <= page.moves {
            return Err(unexpected(Expected::LaterMoves, format!("{page_id}, moved {moves} times")));
        }
        let mut directory = Directory {
            copyset: copyset.iter().copied().collect(),
            midway: BTreeSet::new(),
            unsettled: BTreeSet::new(),
            turns: turns.iter().copied().collect(),
        };
        directory.copyset.remove(&me);
        page.moves = moves;
        if !page.valid {
            page.moves += 1;
            directory.copyset.remove(&from);
            self.send_directory(site, page_id, from, directory);
            return Ok(());
        }
        assert!(page.fetch.is_none(), "{page_id}: nobody fetches a good copy");
        page.directory = Some(Box::new(directory));
        page.known_home = me;
        site.out.push(Effect::CountMove { page: page_id });
        if base == me {
            self.send_kept(site, page_id);
        } else {
            site.out.send(base, &Message::HomeMoved { page: page_id, moves });
        }
        Ok(())
    }
}
