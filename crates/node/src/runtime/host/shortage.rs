//! The host keeps to the budget of memory for shared pages, if there is one.

use std::sync::atomic::Ordering::Relaxed;

use hiroba_base::{PageId, PageRange, PageSet};
use hiroba_protocol::Engine;
use hiroba_wire::control::ToLauncher;

use super::Core;
use crate::runtime::Runtime;

/// The pages that begin within a range.
fn pages_in(engine: &dyn Engine, range: PageRange) -> impl Iterator<Item = PageId> {
    range.iter().filter(|granule| engine.page_of(*granule) == Some(*granule))
}

impl Core {
    /// Pages have come.
    pub(super) fn note_came(&mut self, range: PageRange) {
        let Core { engine, budget: Some(budget), .. } = self else { return };
        pages_in(&**engine, range).for_each(|page| budget.note_copy(page));
    }

    /// The program has stored to these granules.
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

    /// Has copies leave until the node keeps to its budget again, or none can.
    pub(super) fn keep_to_budget(&self, core: &mut Core) {
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
        let limit_bytes = budget.limit_bytes;
        if budget.end(self.memory.resident_bytes()) && !std::mem::replace(is_shortage_told, true) {
            self.tell_of_shortage(limit_bytes);
        }
    }

    fn tell_of_shortage(&self, limit_bytes: u64) {
        let Some(control) = &self.control else { return };
        let sentence = format!(
            "this node's own pages, and what its threads use at the moment, take more than --memory-limit's {} KiB; \
             only copies of other nodes' pages can leave: use more nodes, or a higher limit",
            limit_bytes >> 10
        );
        control.send(&ToLauncher::Remark { sentence });
    }
}
