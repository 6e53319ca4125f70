//! The host's part in keeping to the memory budget of shared pages.

use std::sync::atomic::Ordering::Relaxed;

use hiroba_base::{PageId, PageRange, PageSet};
use hiroba_memory::{MemoryError, SharedMemory};
use hiroba_protocol::Engine;
use hiroba_wire::control::ToLauncher;

use super::Core;
use crate::runtime::Runtime;

/// Iterates over the pages that begin within a range.
fn pages_in(engine: &dyn Engine, range: PageRange) -> impl Iterator<Item = PageId> {
    range.iter().filter(|granule| engine.page_of(*granule) == Some(*granule))
}

impl Core {
    /// Records that pages have arrived.
    pub(super) fn note_came(&mut self, range: PageRange) {
        let Core { engine, budget: Some(budget), .. } = self else { return };
        pages_in(&**engine, range).for_each(|page| budget.note_copy(page));
    }

    /// Records that the program may use these pages.
    pub(super) fn note_given(&mut self, range: PageRange) {
        let Core { engine, budget: Some(budget), .. } = self else { return };
        if budget.has_swap() {
            pages_in(&**engine, range).for_each(|page| budget.note_home(page));
        }
    }

    /// Records that a thread waits for a page, which must stay until the thread has returned from its fault.
    pub(crate) fn note_awaited(&mut self, granule: PageId) {
        let Core { engine, budget: Some(budget), .. } = self else { return };
        if budget.has_swap()
            && let Some(page) = engine.page_of(granule)
        {
            budget.note_latest(page);
        }
    }

    /// Records pages that got frames since the last call.
    fn note_frames(&mut self, memory: &SharedMemory) {
        let Core { engine, budget: Some(budget), .. } = self else { return };
        if budget.has_swap() {
            for range in memory.take_came() {
                // The range may begin within a page.
                let first = engine.page_of(range.first);
                first.into_iter().chain(pages_in(&**engine, range)).for_each(|page| budget.note_home(page));
            }
        }
    }

    /// Records that the program has stored to these granules.
    pub(super) fn note_stores(&mut self, granules: &PageSet) {
        let Core { engine, budget: Some(budget), .. } = self else { return };
        granules
            .iter()
            .filter_map(|granule| engine.page_of(granule))
            .for_each(|page| budget.note_store(page));
    }
}

impl Runtime {
    /// Carries out `Effect::GiveUp`.
    pub(super) fn give_up(&self, core: &mut Core, range: PageRange) {
        self.or_fatal(self.memory.give_up(range));
        let Core { engine, budget: Some(budget), .. } = core else { return };
        for page in pages_in(&**engine, range) {
            budget.note_left(page);
            self.account.tallies.evictions.fetch_add(1, Relaxed);
        }
    }

    /// Carries out `Effect::PageOut`. A page that cannot leave stays.
    pub(super) fn page_out(&self, core: &mut Core, range: PageRange) {
        let outcome = self.memory.page_out(range);
        let Core { engine, budget: Some(budget), is_swap_failure_told, .. } = core else { return };
        match outcome {
            Ok(()) => {
                for page in pages_in(&**engine, range) {
                    budget.note_left(page);
                    self.account.tallies.evictions.fetch_add(1, Relaxed);
                }
            }
            Err(error @ (MemoryError::SwapFull { .. } | MemoryError::SwapWrite { .. })) => {
                budget.note_swap_failure();
                if !std::mem::replace(is_swap_failure_told, true) {
                    self.remark(error.to_string());
                }
            }
            Err(error) => self.fatal(&error.to_string()),
        }
    }

    /// Evicts pages until the node keeps to its budget again, or none can leave.
    pub(super) fn keep_to_budget(&self, core: &mut Core) {
        core.note_frames(&self.memory);
        let exceeded = |budget: &crate::budget::Budget| budget.is_exceeded(self.memory.resident_bytes());
        if !core.budget.as_ref().is_some_and(exceeded) {
            return;
        }
        loop {
            let Core { engine, budget: Some(budget), .. } = core else { return };
            let leavers = budget.choose(self.memory.resident_bytes());
            if leavers.is_empty() {
                break;
            }
            engine.handle_shortage(&leavers);
            while let Some(effect) = core.engine.poll_effect() {
                self.carry_out(core, effect, &[]);
            }
            if !core.budget.as_mut().is_some_and(|budget| budget.end_round(leavers.len())) {
                break;
            }
        }
        let Core { budget: Some(budget), is_shortage_told, .. } = core else { return };
        let (limit_bytes, has_swap) = (budget.limit_bytes, budget.has_swap());
        if budget.end(self.memory.resident_bytes()) && !std::mem::replace(is_shortage_told, true) {
            let what_leaves = if has_swap {
                "no more of them can leave at the moment: use more nodes, or a higher limit"
            } else {
                "only copies of other nodes' pages can leave: use more nodes, a higher limit, or --swap DIR"
            };
            self.remark(format!(
                "this node's own pages, and what its threads use at the moment, take more than --memory-limit's {} KiB; \
                 {what_leaves}",
                limit_bytes >> 10
            ));
        }
    }

    fn remark(&self, sentence: String) {
        if let Some(control) = &self.control {
            control.send(&ToLauncher::Remark { sentence });
        }
    }
}
