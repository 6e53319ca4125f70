//! What a node does when its machine, or its control group, runs out of memory.
//!
//! Shared pages may leave, private memory may not. So when little is left, whichever process took it, pages
//! leave before their budget is used. When none can leave and the last memory is going, the node ends the job
//! with a sentence, because otherwise the kernel would kill a process without one.
//!
//! Looking costs system calls, so it is done only where memory may have run out since the last look: when the
//! node's shared pages have grown by a part of what was left, and, as long as they are a considerable part of
//! the machine's memory, after the time in which the program could have taken the rest.

use std::time::{Duration, Instant};

use super::Core;
use crate::headroom::{Headroom, Left, Whose};
use crate::runtime::Runtime;

/// How long another node on this machine has for giving memory back, before this one gives up.
const LAST_WAIT: Duration = Duration::from_millis(5);

impl Runtime {
    /// Looks how much memory is left if the node's shared pages have grown much since the last look.
    pub(super) fn heed_growth(&self, core: &mut Core) {
        let Some(headroom) = &self.headroom else { return };
        if headroom.is_look_due(self.memory.resident_bytes()) {
            self.heed(core, headroom);
        }
    }

    /// Looks how much memory is left if the program may have used it up since the last look. The service
    /// thread calls it often. `due` is when to look again.
    pub(crate) fn watch_headroom(&self, due: &mut Instant) {
        let Some(headroom) = &self.headroom else { return };
        if !headroom.is_watched(self.memory.resident_bytes()) || Instant::now() < *due {
            return;
        }
        let Some(left) = headroom.left() else { return };
        if left.lacking_bytes() > 0 || headroom.was_short() {
            self.tell(|core| self.heed(core, headroom));
        }
        *due = Instant::now() + left.next_look_in();
    }

    /// Looks how much memory is left. Pages leave if that is too little.
    fn heed(&self, core: &mut Core, headroom: &Headroom) {
        let left = headroom.left();
        let shared_bytes = self.memory.resident_bytes();
        headroom.note_look(shared_bytes, left.as_ref());
        let Some(left) = left else { return };
        if left.lacking_bytes() == 0 {
            let more_bytes = left.spare_bytes() / 2 / headroom.nodes_here();
            let may_hold_bytes = core.held_bytes(&self.memory) + more_bytes;
            core.budget.iter_mut().for_each(|budget| budget.raise(may_hold_bytes));
            return;
        }
        // Every node on this machine gives its part.
        let part_bytes = left.lacking_bytes().div_ceil(headroom.nodes_here());
        let may_hold_bytes = core.held_bytes(&self.memory).saturating_sub(part_bytes);
        if let Some(budget) = &mut core.budget {
            budget.lower(may_hold_bytes);
            self.evict(core);
        }
        let is_lost = || {
            let left = headroom.left().filter(Left::is_all_but_gone)?;
            (self.memory.resident_bytes() >= shared_bytes).then_some(left)
        };
        if is_lost().is_some() {
            std::thread::sleep(LAST_WAIT);
            if let Some(left) = is_lost() {
                self.fatal(&self.what_is_lacking(core, headroom, &left));
            }
        }
    }

    fn what_is_lacking(&self, core: &Core, headroom: &Headroom, left: &Left) -> String {
        let mib = |bytes: u64| bytes >> 20;
        let whose = match left.bound.whose {
            Whose::Machine => "this machine's memory",
            Whose::Group => "the memory of this node's control group",
        };
        let private = private_bytes()
            .map_or_else(String::new, |bytes| format!(", its private memory {} MiB", mib(bytes)));
        let nodes_here = headroom.nodes_here();
        let (budget, advice) = match &core.budget {
            None => (
                "without a budget".to_owned(),
                "use --protocol hlrc or adaptive, under which pages can leave, or more machines",
            ),
            Some(budget) => {
                let origin = if budget.is_default { "by default" } else { "by --memory-limit" };
                let advice = if self.memory.has_swap_file() {
                    "use more machines, or allow more memory"
                } else {
                    "let them leave for a disk (--swap DIR), have copies of other nodes' pages leave sooner (a lower \
                     --memory-limit), use more machines, or allow more memory"
                };
                (format!("of a budget of {} MiB {origin}", mib(budget.limit_bytes)), advice)
            }
        };
        format!(
            "{whose} is used up: {} MiB of {} are left for {nodes_here} nodes; this node's shared pages take {} MiB \
             {budget}{private}, and no more pages can leave; {advice}",
            mib(left.bytes),
            mib(left.bound.bytes),
            mib(self.memory.resident_bytes()),
        )
    }
}

/// Returns the memory of this process that no file backs; twins are among it.
fn private_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    crate::headroom::field_in_kib(&status, "RssAnon")
}
