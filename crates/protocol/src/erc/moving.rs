//! Homes move: to who modifies a page most, at barriers, or to who faults on it most; and once, at a barrier, to who was the first to touch it
//! where its region is placed so.
//!
//! The page's **base**, the node where its region places it, is fixed, and always knows the current home (SCASH; Sakae and others, section
//! 2.2). The home hands a page over
//! to a node that has a copy of it, so only the directory travels, and the former home keeps its frame as a copy. The new home tells the base.
//!
//! Other nodes remember where the home was when it last spoke to them. What they say to a *former home* goes from there to the
//! base, and on to the home. If the base gets it from the very node that it takes for the home, that node has given the page away and
//! the next one's word is still under way: the base keeps it until then. So nothing takes more than three hops, and nothing goes in circles.
//! Words of new homes may overtake each other: they carry how often the page has moved.
//!
//! **Why nothing is lost.** The home hands a page over only when nobody has yet to answer what it has told of it and when it has no
//! unreleased writes to it. So all invalidations and updates of the former home have arrived before the new home sends one, and
//! only pages may be under way: they are asked for again if anything overtakes them. The new home's copy is good, since it is in the copyset of a
//! settled page, unless it was overtaken: then that node gives the page back at once, to a node whose copy is good, because
//! nobody was home meanwhile who could have changed it. A diff that a node sent before it became the home comes back to it. It is in
//! the frame already and is not applied, or it might undo later stores, but those who have copies are told.

use std::collections::BTreeSet;

use hiroba_base::{Access, NodeId, PageId};
use hiroba_wire::Message;

use super::Erc;
use super::directory::Directory;
use crate::coherence::Site;
use crate::{Effect, Expected, ProtocolError, unexpected};

/// Finding the home.
impl Erc {
    /// Sends what was said to this node as the page's home on its way to the home.
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

    /// The base's: a node says that it has become the page's home.
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
        // Of the base's own moves it knows already, but not that they have come about.
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
    /// How often the page has moved.
    pub(super) moves: u32,
    pub(super) copyset: &'a [NodeId],
    /// How many operations there were on each atomic word, by offset.
    pub(super) turns: &'a [(u32, u64)],
}

/// Moving.
impl Erc {
    /// A barrier: pages go to those who have modified most of them.
    pub(super) fn move_modified(&mut self, site: &mut Site) {
        let Erc { home_choice, pages, .. } = self;
        let times = |page: PageId| pages.get(&page).map_or(0, |page| page.moves);
        for (page_id, to) in home_choice.end_period_of_modified(site.me, times) {
            self.hand_over(site, page_id, to);
        }
    }

    /// A node has faulted on the page, and a copy is on its way there (Sakae and others, section 5).
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

    /// A barrier: pages go where they were touched first, unless a copy is not there any more. Where a change is still being told, at the
    /// next barrier.
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

    /// This node becomes the page's home.
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
