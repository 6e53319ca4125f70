//! Copies that leave because the host is short of memory
//! ([`Engine::handle_shortage`](crate::Engine::handle_shortage)).
//!
//! Read first: D. Hattori, J. Yamamoto, H. Amano, *An Implementation and Evaluation of Virtual Memory
//! System on a Shared Memory Multiprocessor with Local Memory*: a processor's own memory is a window on
//! shared memory. Here the window is a node's frames, and what is behind it are the pages' homes.
//!
//! | state | the host is short of memory |
//! |---|---|
//! | absent | its frame, which may hold an old copy, is given up |
//! | clean copy, closed copy | → absent, and its frame is given up |
//! | watched copy that was not written | → absent without its twin, and its frame is given up |
//! | dirty copy, watched copy that was written | → invalidated, with a twin; then the same as that |
//! | invalidated, with a twin | a release sends the diff; → absent, and its frame is given up |
//! | home, coming | – |
//!
//! It is as if a notice had voided the copy, but for the notice: the node may fetch the page again as soon
//! as it likes, and nothing newer is demanded than it has seen. So a thread that touches the page meanwhile
//! fetches it like any other, and then it does not leave, unless all of it had left already.
//!
//! Stores of the open interval must not be lost with the frame, so the interval ends first. That is no
//! release of any thread's, and nobody waits for it: others hear of the interval with this node's next
//! grant or arrival, as of any other.
//!
//! Pages that a fetch is under way for stay, as do those of whose words an operation at the home is under
//! way, or was in the open interval: its result is yet to be put into the copy, or is in no diff. So does
//! everything while races are looked for, and where diffs may be withheld (`claims.rs`).

use hiroba_base::{Access, PageId, PageSet};

use super::Hlrc;
use crate::Effect;
use crate::coherence::{AfterRelease, Site};

/// Copies that are about to leave.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    /// They have lost their access. Their frames are given up when they have no twins any more.
    pages: PageSet,
    /// A release that sends what was written in them has been asked for.
    awaits_release: bool,
}

impl Hlrc {
    /// Lets copies leave, as far as they may.
    pub(super) fn let_leave(&mut self, site: &mut Site, pages: &[PageId]) {
        let mut voided = PageSet::new();
        for page_id in pages {
            if self.may_leave(site, *page_id) {
                self.leaving.pages.insert(*page_id);
                self.void(*page_id, &mut voided);
            }
        }
        site.protect_all(&voided, Access::None);
        if self.watch.voided.is_empty() {
            self.give_up_frames(site);
        } else {
            // Goes on with the answer.
            self.ask_for_unwritten(site);
        }
    }

    fn may_leave(&self, site: &Site, page_id: PageId) -> bool {
        let is_operated_on = || {
            self.operated_on.contains(page_id)
                || self.atomic_targets.values().any(|target| target.page == page_id)
        };
        let may_move = self.moves.keeps_away(page_id) || self.moves.is_coming(page_id);
        !self.looks_for_races
            && !self.moves.claims.are_on()
            && site.homes.locate(page_id).is_some_and(|at| at.page == page_id && at.home != site.me)
            && self.pages.get(&page_id).is_some_and(|page| page.fetch.is_none())
            && !may_move
            && !self.sent_early.contains(page_id)
            && !is_operated_on()
    }

    /// Gives up the frames of what has lost access and twin. What has a twin has unsent writes: a release
    /// sends them first.
    pub(super) fn give_up_frames(&mut self, site: &mut Site) {
        if self.leaving.pages.is_empty() {
            return;
        }
        let mut gone = PageSet::new();
        for page_id in std::mem::take(&mut self.leaving.pages).iter() {
            let page = self.pages.entry(page_id).or_default();
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

    /// What was written has been sent.
    pub(super) fn end_leaving(&mut self, site: &mut Site) {
        assert!(self.leaving.awaits_release, "a release was asked for");
        self.give_up_frames(site);
        self.leaving = Leaving::default();
    }
}
