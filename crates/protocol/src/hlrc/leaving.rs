//! Copies and home pages that leave because the host is short of memory
//! ([`Engine::handle_shortage`](crate::Engine::handle_shortage)).
//!
//! Read first: D. Hattori, J. Yamamoto, H. Amano, *An Implementation and Evaluation of Virtual Memory System
//! on a Shared Memory Multiprocessor with Local Memory*: a processor's own memory is a window on shared
//! memory. Here the window is a node's frames; behind it are the pages' homes, and behind these the homes'
//! disks.
//!
//! | state | the host is short of memory |
//! |---|---|
//! | absent | its frame, which may hold an old copy, is given up |
//! | clean copy, closed copy | → absent, and its frame is given up |
//! | watched copy that was not written | → absent without its twin, and its frame is given up |
//! | dirty copy, watched copy that was written | → invalidated, with a twin; then the same as that |
//! | invalidated, with a twin | a release sends the diff; → absent, and its frame is given up |
//! | home, reclaimed and home, shared, watched | → home, resting; written, unless the host knows better |
//! | home, exclusive; home, written; home, shared, clean; home, shared, unguarded | loses its access, and is written if it was |
//! | home, resting; home, diffs missing | – |
//! | coming | stays |
//!
//! A home page loses its access as by a notice, but lacks no interval, so that the next touch restores the
//! access. Its frame may then leave for the host's disk ([`Effect::PageOut`]), from where the host brings it
//! back at any use. The engine takes the access, because with it the host loses what it has noted of stores:
//! it must be known at the interval's end whether a watched page was written, though the page may never be
//! touched again.
//!
//! The copy becomes invalid as by a notice, but without a notice: the node may fetch the page again at any
//! time, and no interval is demanded beyond those that it has seen. So a thread that touches the page
//! meanwhile fetches it like any other, and then the page does not leave, unless all of it had left already.
//!
//! Stores of the open interval must not be lost with the frame, so the interval ends first. No thread
//! releases by that, and no thread waits for it: other nodes learn of the interval with this node's next
//! grant or arrival, as of any other.
//!
//! Some pages stay: those that are being fetched; those with an atomic word on which an operation at the home
//! is under way, or was in the open interval, since its result must still be put into the copy, or is in no
//! diff; all pages while races are looked for; and home pages whose frames other nodes read without this
//! node's help.
//!
//! A page may leave although this node has withheld its diff to claim it (`moves/claims.rs`): the diff is
//! kept apart from the frame. If a thread fetches the page before the claim is granted, the diff is sent
//! first; if the claim is granted, the last home sends the content, and the diff is applied to it.

use hiroba_base::{Access, PageId, PageSet};

use super::{Hlrc, Page};
use crate::Effect;
use crate::coherence::{AfterRelease, Site};

/// Copies that are about to leave.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    /// Copies that have lost their access. Their frames are given up once they have no twins.
    pages: PageSet,
    /// True if a release that sends their writes has been requested.
    awaits_release: bool,
    /// Home pages that have just lost their access.
    homes: PageSet,
}

impl Hlrc {
    /// Lets copies and home pages leave, as far as they may.
    pub(super) fn let_leave(&mut self, site: &mut Site, pages: &[PageId]) {
        self.anticipation.note_shortage();
        self.exclusive_runs.note_shortage();
        let mut voided = PageSet::new();
        for page_id in pages {
            if self.may_leave(site, *page_id) {
                self.leaving.pages.insert(*page_id);
                self.void(*page_id, &mut voided);
            } else if self.may_go_out(site, *page_id) {
                self.leaving.homes.insert(*page_id);
                self.drop_snapshot(site, *page_id);
                self.void(*page_id, &mut voided);
            }
        }
        site.protect_all(&voided, Access::None);
        if self.watch.voided.is_empty() {
            self.give_up_frames(site);
        } else {
            // Continues with the answer.
            self.ask_for_unwritten(site);
        }
    }

    fn may_leave(&self, site: &Site, page_id: PageId) -> bool {
        let is_operated_on = || self.operated_on.contains(page_id) || self.atomic_targets.are_in(page_id);
        !self.looks_for_races
            && site.homes.locate(page_id).is_some_and(|at| at.page == page_id && at.home != site.me)
            && self.pages.get(&page_id).is_some_and(|page| page.fetch.is_none())
            && !self.moves.keeps_away(page_id)
            && !self.sent_early.contains(page_id)
            && !is_operated_on()
    }

    /// Returns true if a page is homed here and its frame may leave memory.
    fn may_go_out(&self, site: &Site, page_id: PageId) -> bool {
        let has_snapshot = self.keeps_snapshot(site, page_id);
        let is_quiet = |page: &Page| page.fetch.is_none() && (!page.twin || has_snapshot);
        !self.looks_for_races
            && !self.reach.is_some()
            && !self.moves.keeps_away(page_id)
            && site.homes.locate(page_id).is_some_and(|at| at.page == page_id && at.home == site.me)
            && self.pages.get(&page_id).is_none_or(is_quiet)
    }

    /// Gives up the frames of pages that have neither access nor twin. Pages with a twin have unsent writes,
    /// which a release sends first.
    pub(super) fn give_up_frames(&mut self, site: &mut Site) {
        let out = std::mem::take(&mut self.leaving.homes);
        let spans = site.homes.spans(&out).into_iter();
        site.out.extend(spans.map(|pages| Effect::PageOut { pages }));
        if self.leaving.pages.is_empty() {
            return;
        }
        let mut gone = PageSet::new();
        for page_id in std::mem::take(&mut self.leaving.pages).iter() {
            let page = self.pages.or_default(page_id);
            if page.valid || page.fetch.is_some() || site.is_home(page_id) {
                // A thread has touched it meanwhile, or it has moved here.
                continue;
            }
            assert_eq!(page.access, Access::None, "{page_id}: what is not good is not touched");
            if page.twin {
                self.leaving.pages.insert(page_id);
            } else {
                gone.insert(page_id);
            }
        }
        let spans = site.homes.spans(&gone).into_iter();
        site.out.extend(spans.map(|pages| Effect::GiveUp { pages }));
        if !self.leaving.pages.is_empty() && !std::mem::replace(&mut self.leaving.awaits_release, true) {
            site.release_for(AfterRelease::GiveUp);
        }
    }

    /// Continues after a release has sent the writes.
    pub(super) fn end_leaving(&mut self, site: &mut Site) {
        assert!(self.leaving.awaits_release, "a release was asked for");
        self.give_up_frames(site);
        assert!(self.leaving.homes.is_empty(), "home pages wait for no release");
        self.leaving = Leaving::default();
    }
}
