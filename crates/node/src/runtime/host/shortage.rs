//! The host's part in keeping to the memory budget of shared pages.

use std::sync::atomic::Ordering::Relaxed;

use hiroba_base::{NodeId, PageId, PageRange, PageSet};
use hiroba_memory::{MemoryError, SharedMemory};
use hiroba_protocol::Engine;
use hiroba_wire::control::ToLauncher;

use super::Core;
use crate::budget::Budget;
use crate::runtime::Runtime;

/// Iterates over the pages that begin within a range.
fn pages_in(engine: &dyn Engine, range: PageRange) -> impl Iterator<Item = PageId> {
    range.iter().filter(|granule| engine.page_of(*granule) == Some(*granule))
}

impl Core {
    /// Returns the engine, and the budget if it records pages.
    fn recording(&mut self) -> Option<(&dyn Engine, &mut Budget)> {
        let budget = self.budget.as_mut().filter(|budget| budget.records())?;
        Some((&*self.engine, budget))
    }

    /// Records the pages that are resident, if it is time to record pages.
    fn begin_to_record(&mut self, memory: &SharedMemory, me: NodeId) {
        let Core { engine, budget: Some(budget), .. } = self else { return };
        if !budget.begins_to_record(memory.resident_bytes()) {
            return;
        }
        for range in memory.ranges_with_frames() {
            // The range may begin within a page.
            let first = engine.page_of(range.first).filter(|first| *first != range.first);
            for page in first.into_iter().chain(pages_in(&**engine, range)) {
                match engine.home_of(page) {
                    Some(home) if home == me => budget.note_home(page),
                    _ => budget.note_copy(page),
                }
            }
        }
    }

    /// Records that pages have arrived.
    pub(super) fn note_came(&mut self, range: PageRange) {
        let Some((engine, budget)) = self.recording() else { return };
        pages_in(engine, range).for_each(|page| budget.note_copy(page));
    }

    /// Records that the program may use these pages.
    pub(super) fn note_given(&mut self, range: PageRange) {
        let Some((engine, budget)) = self.recording() else { return };
        if budget.has_swap() {
            pages_in(engine, range).for_each(|page| budget.note_home(page));
        }
    }

    /// Records that a thread waits for a page, which must stay until the thread has returned from its fault.
    pub(crate) fn note_awaited(&mut self, granule: PageId) {
        let Some((engine, budget)) = self.recording() else { return };
        if budget.has_swap()
            && let Some(page) = engine.page_of(granule)
        {
            budget.note_latest(page);
        }
    }

    /// Records pages that got frames since the last call.
    fn note_frames(&mut self, memory: &SharedMemory) {
        let came = memory.take_came();
        let Some((engine, budget)) = self.recording() else { return };
        if budget.has_swap() {
            for range in came {
                // The range may begin within a page.
                let first = engine.page_of(range.first);
                first.into_iter().chain(pages_in(engine, range)).for_each(|page| budget.note_home(page));
            }
        }
    }

    /// Records that the program has stored to these granules.
    pub(super) fn note_stores(&mut self, granules: &PageSet) {
        let Some((engine, budget)) = self.recording() else { return };
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
        self.heed_growth(core);
        self.evict(core);
    }

    /// Evicts pages while there are too many.
    pub(super) fn evict(&self, core: &mut Core) {
        core.begin_to_record(&self.memory, self.me);
        let exceeded = |budget: &Budget| budget.is_exceeded(self.memory.resident_bytes());
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
        let (limit_kib, has_swap, is_default) =
            (budget.limit_bytes >> 10, budget.has_swap(), budget.is_default);
        if budget.end(self.memory.resident_bytes()) && !std::mem::replace(is_shortage_told, true) {
            let what_leaves = if has_swap {
                "no more of them can leave at the moment: use more nodes, or a higher limit"
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
