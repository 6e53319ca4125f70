//! The host's part in keeping to the memory budget of shared pages.

use std::sync::atomic::Ordering::Relaxed;

use hiroba_base::{NodeId, PageId, PageRange, PageSet};
use hiroba_memory::{MemoryError, SharedMemory};
use hiroba_protocol::Engine;
use hiroba_wire::control::ToLauncher;

use super::Core;
use crate::budget::{Budget, LEAVERS_AHEAD_MAX, LEAVERS_MAX};
use crate::local_space::LocalSpace;
use crate::runtime::Runtime;
use crate::runtime::paging::Pager;

/// All pages of a node: those that the engine knows, and the node's own data, in pages of one granule.
struct Pages<'a> {
    engine: &'a dyn Engine,
    local: &'a LocalSpace,
}

impl Pages<'_> {
    /// Returns the page that contains a granule, if there is one.
    fn page_of(&self, granule: PageId) -> Option<PageId> {
        if self.local.is_allocated(granule) { Some(granule) } else { self.engine.page_of(granule) }
    }

    /// Returns the granules of a page.
    fn granules_of(&self, page: PageId) -> PageRange {
        let others = (page.0 + 1..).take_while(|granule| self.page_of(PageId(*granule)) == Some(page));
        PageRange { first: page, count: 1 + others.count() as u64 }
    }

    /// Returns true if the page is homed on node `me`.
    fn is_home(&self, page: PageId, me: NodeId) -> bool {
        self.local.is_allocated(page) || self.engine.home_of(page) == Some(me)
    }

    /// Iterates over the pages that begin within a range.
    fn within(&self, range: PageRange) -> impl Iterator<Item = PageId> {
        range.iter().filter(|granule| self.page_of(*granule) == Some(*granule))
    }

    /// Iterates over the pages of which a part lies within a range.
    fn around(&self, range: PageRange) -> impl Iterator<Item = PageId> {
        let first = self.page_of(range.first).filter(|first| *first != range.first);
        first.into_iter().chain(self.within(range))
    }
}

impl Core {
    /// Returns all pages, and the budget if it records them.
    fn recording(&mut self) -> Option<(Pages<'_>, &mut Budget)> {
        let Core { engine, local, budget: Some(budget), .. } = self else { return None };
        budget.records().then_some((Pages { engine: &**engine, local }, budget))
    }

    /// Returns what counts against the budget; 0 without one.
    pub(super) fn held_bytes(&self, memory: &SharedMemory) -> u64 {
        let held = |budget: &Budget| budget.held_bytes(memory.resident_bytes(), self.twins.unused_bytes());
        self.budget.as_ref().map_or(0, held)
    }

    /// Records the pages that are resident, if it is time to record pages.
    fn begin_to_record(&mut self, memory: &SharedMemory, me: NodeId) {
        let held_bytes = self.held_bytes(memory);
        let Some(budget) = &mut self.budget else { return };
        if !budget.begins_to_record(held_bytes) {
            return;
        }
        self.twins.keep_spare(budget.spare_bytes_max());
        let Some((pages, budget)) = self.recording() else { return };
        for page in memory.ranges_with_frames().into_iter().flat_map(|range| pages.around(range)) {
            if pages.is_home(page, me) { budget.note_frame(page) } else { budget.note_copy(page) }
        }
    }

    /// Records that pages have arrived.
    pub(super) fn note_came(&mut self, range: PageRange) {
        let Some((pages, budget)) = self.recording() else { return };
        pages.within(range).for_each(|page| budget.note_copy(page));
    }

    /// Records that the program may use these pages.
    pub(crate) fn note_given(&mut self, range: PageRange) {
        let Some((pages, budget)) = self.recording() else { return };
        if budget.has_swap() {
            pages.within(range).for_each(|page| budget.note_given(page));
        }
    }

    /// Records that a thread waits for a page, which must stay until the thread has returned from its fault.
    pub(crate) fn note_awaited(&mut self, granule: PageId) {
        let Some((pages, budget)) = self.recording() else { return };
        if budget.has_swap()
            && let Some(page) = pages.page_of(granule)
        {
            budget.note_latest(page);
        }
    }

    /// Records pages that got frames since the last call.
    fn note_frames(&mut self, memory: &SharedMemory, pager: Option<&Pager>) {
        let came = memory.take_came();
        let Some((pages, budget)) = self.recording() else { return };
        if !budget.has_swap() {
            return;
        }
        for range in came {
            let ahead = pager.map_or_else(PageSet::new, |pager| pager.ahead_of_use(range));
            for page in pages.around(range) {
                if ahead.contains(page) { budget.note_ahead(page) } else { budget.note_frame(page) }
            }
        }
    }

    /// Records that the program has stored to these granules.
    pub(super) fn note_stores(&mut self, granules: &PageSet) {
        let Some((pages, budget)) = self.recording() else { return };
        granules.iter().filter_map(|granule| pages.page_of(granule)).for_each(|page| budget.note_store(page));
    }

    /// Records that granules of this node's own data exist no more.
    pub(crate) fn note_gone(&mut self, range: PageRange) {
        let Some(budget) = self.budget.as_mut().filter(|budget| budget.records()) else { return };
        range.iter().for_each(|page| budget.note_left(page));
    }

    /// Records that pages have left. Returns their number.
    fn note_left(&mut self, range: PageRange) -> u64 {
        let Core { engine, local, budget: Some(budget), .. } = self else { return 0 };
        let pages = Pages { engine: &**engine, local };
        pages.within(range).inspect(|page| budget.note_left(*page)).count() as u64
    }
}

impl Runtime {
    /// Carries out `Effect::GiveUp`.
    pub(super) fn give_up(&self, core: &mut Core, range: PageRange) {
        self.or_fatal(self.memory.give_up(range));
        self.account.tallies.evictions.fetch_add(core.note_left(range), Relaxed);
    }

    /// Carries out `Effect::PageOut`. A page that cannot leave stays.
    pub(crate) fn page_out(&self, core: &mut Core, range: PageRange) {
        if !core.budget.as_ref().is_some_and(Budget::has_swap) {
            // These were copies and have moved here since. They are no longer among those that can leave.
            core.note_left(range);
            return;
        }
        match self.memory.page_out(range) {
            Ok(()) => {
                let tallies = &self.account.tallies;
                tallies.evictions.fetch_add(core.note_left(range), Relaxed);
                let in_vain = self.pager.as_ref().map_or(0, |pager| pager.note_left(range));
                tallies.pages_brought_in_vain.fetch_add(in_vain, Relaxed);
            }
            Err(
                error
                @ (MemoryError::SwapFull { .. } | MemoryError::SwapWrite { .. } | MemoryError::NoLender),
            ) => {
                core.budget.iter_mut().for_each(Budget::note_swap_failure);
                // That others have no memory to spare is told if the limit is exceeded by much.
                let is_told = error != MemoryError::NoLender;
                if is_told && !std::mem::replace(&mut core.is_swap_failure_told, true) {
                    self.remark(error.to_string());
                }
            }
            Err(error) => self.fatal(&error.to_string()),
        }
    }

    /// Evicts pages until the node keeps to its budget again, or none can leave.
    pub(super) fn keep_to_budget(&self, core: &mut Core) {
        core.note_frames(&self.memory, self.pager.as_ref());
        self.heed_growth(core);
        self.evict(core);
    }

    /// Has a round of pages leave, if the budget will soon be exceeded. Returns true if there are more.
    /// Called by the paging thread.
    pub(crate) fn evict_ahead(&self, core: &mut Core) -> bool {
        let held_bytes = core.held_bytes(&self.memory);
        if !core.budget.as_ref().is_some_and(|budget| budget.is_soon_exceeded(held_bytes)) {
            return false;
        }
        let is_more = self.evict_some(core, LEAVERS_AHEAD_MAX);
        self.save_ahead(core);
        is_more
    }

    /// Evicts at most `count` pages, if there are too many. Returns true if another round may help.
    fn evict_some(&self, core: &mut Core, count: u64) -> bool {
        let held_bytes = core.held_bytes(&self.memory);
        let Some(budget) = &mut core.budget else { return false };
        if budget.has_swap() && !self.memory.may_page_out() {
            // The program would lose access to pages that cannot leave.
            budget.note_swap_failure();
        }
        let leavers = budget.choose(held_bytes, count);
        if leavers.is_empty() {
            return false;
        }
        let chosen = leavers.len();
        let (mut own, shared): (Vec<PageId>, Vec<PageId>) =
            leavers.into_iter().partition(|page| self.is_local(*page));
        self.evict_local(core, &mut own);
        if !shared.is_empty() {
            core.engine.handle_shortage(&shared);
        }
        while let Some(effect) = core.engine.poll_effect() {
            self.carry_out(core, effect, &[]);
        }
        core.budget.as_mut().is_some_and(|budget| budget.end_round(chosen))
    }

    /// Hands pages that leave next to the paging thread, which saves them.
    fn save_ahead(&self, core: &mut Core) {
        let (Some(pager), Some(budget)) = (&self.pager, &mut core.budget) else { return };
        if pager.take_save_failure() {
            budget.note_save_failure();
        }
        let mut chosen = budget.choose_to_save();
        if chosen.is_empty() {
            return;
        }
        chosen.sort_unstable();
        let Core { engine, local, .. } = core;
        let pages = Pages { engine: &**engine, local };
        let mut granules = PageSet::new();
        chosen.into_iter().for_each(|page| granules.push(pages.granules_of(page)));
        pager.save(granules);
    }

    /// Evicts pages while there are too many.
    pub(super) fn evict(&self, core: &mut Core) {
        core.begin_to_record(&self.memory, self.me);
        let held_bytes = core.held_bytes(&self.memory);
        let Some(budget) = &core.budget else { return };
        let is_exceeded = budget.is_exceeded(held_bytes);
        if budget.needs_lenders(held_bytes) {
            self.want_lending();
        }
        if let Some(lending) = &self.lending {
            let beside = held_bytes.saturating_sub(self.memory.resident_bytes());
            lending.note_limit(budget.present_bytes().saturating_sub(beside));
            if is_exceeded {
                lending.take_back();
            }
        }
        if !is_exceeded {
            if let Some(pager) = self.pager.as_ref().filter(|_| budget.is_soon_exceeded(held_bytes)) {
                pager.have_pages_leave();
            }
            return;
        }
        self.want_paging();
        while self.evict_some(core, LEAVERS_MAX) {}
        self.save_ahead(core);
        let held_bytes = core.held_bytes(&self.memory);
        let Core { budget: Some(budget), is_shortage_told, .. } = core else { return };
        let (limit_kib, has_swap, is_default) =
            (budget.limit_bytes >> 10, self.memory.has_swap_file(), budget.is_default);
        if budget.end(held_bytes) && !std::mem::replace(is_shortage_told, true) {
            let what_leaves = if has_swap {
                "no more of them can leave at the moment: use more nodes, or a higher limit"
            } else if self.lending.is_some() {
                "no other node has memory to spare: use more nodes, a higher limit, or --swap DIR"
            } else {
                "only copies of other nodes' pages can leave: use more nodes, a higher limit, or --swap DIR"
            };
            let limit = if is_default {
                format!("their share of this machine's memory, {limit_kib} KiB")
            } else {
                format!("--memory-limit's {limit_kib} KiB")
            };
            self.remark(format!(
                "this node's own pages, and what its threads use at the moment, take more than {limit}; {what_leaves}"
            ));
        }
    }

    fn remark(&self, sentence: String) {
        if let Some(control) = &self.control {
            control.send(&ToLauncher::Remark { sentence });
        }
    }
}
