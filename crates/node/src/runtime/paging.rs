//! The paging thread: pages that leave and are saved before a fault must wait for that.
//!
//! A thread that brings a page in may find memory full. If it had to write others to the disk first, it would
//! wait, with the core's lock, and the node's other threads with it. So this thread saves the pages that
//! leave next, without that lock, and has them leave, a few at a time, when the budget is almost exceeded. It
//! sleeps as long as the budget was never exceeded.
//!
//! What a thread needs of the pages that are out, it brings in itself ([`Runtime::bring_back`]), before it
//! takes the core's lock. Between that and the use of the page it may leave again. Then it is brought in
//! under the lock.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use hiroba_base::{PageId, PageRange, PageSet};
use hiroba_wire::Message;

use crate::runtime::Runtime;
use crate::time_class::TimeClass;

/// The paging thread's work.
#[derive(Debug, Default)]
pub(crate) struct Pager {
    work: Mutex<Work>,
    called: Condvar,
}

#[derive(Debug, Default)]
struct Work {
    /// Pages that leave next. No more than the budget chooses ahead.
    to_save: PageSet,
    is_memory_full: bool,
    /// True if pages could not be saved.
    has_failed: bool,
}

impl Pager {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests that pages be saved.
    pub(crate) fn save(&self, granules: PageSet) {
        self.work().to_save.extend(&granules);
        self.called.notify_one();
    }

    /// Requests that pages leave until the budget is kept with some room.
    pub(crate) fn have_pages_leave(&self) {
        if !std::mem::replace(&mut self.work().is_memory_full, true) {
            self.called.notify_one();
        }
    }

    /// Returns true if pages could not be saved since the last call.
    pub(crate) fn take_save_failure(&self) -> bool {
        std::mem::take(&mut self.work().has_failed)
    }

    /// Waits for work, and takes it.
    fn take(&self) -> (PageSet, bool) {
        let is_idle = |work: &mut Work| work.to_save.is_empty() && !work.is_memory_full;
        let mut work = self.called.wait_while(self.work(), is_idle).unwrap_or_else(PoisonError::into_inner);
        (std::mem::take(&mut work.to_save), std::mem::take(&mut work.is_memory_full))
    }
}

impl Runtime {
    /// Does the paging thread's work. Returns when the node has left the job.
    pub(super) fn page(&self, pager: &Pager) {
        loop {
            let (to_save, is_memory_full) = pager.take();
            if self.has_left() {
                return;
            }
            let mut is_more = is_memory_full;
            while is_more {
                is_more = false;
                self.tell(|core| is_more = self.evict_ahead(core));
            }
            for range in to_save.ranges() {
                match self.memory.save_ahead(*range) {
                    Ok(saved) => _ = self.account.tallies.pages_saved_ahead.fetch_add(saved, Relaxed),
                    Err(_) => {
                        // If they must leave all the same, their thread reports what is the matter.
                        pager.work().has_failed = true;
                        break;
                    }
                }
            }
        }
    }

    /// Brings in what is out of the page that a thread of the program has touched. The thread calls it
    /// itself, before it takes the core's lock, so that others do not wait for the disk.
    pub(crate) fn bring_back(&self, class: TimeClass, granule: PageId) {
        if self.pager.is_some() && self.memory.is_any_out() {
            let _inside = self.account.enter(&self.threads, class);
            self.bring_in_for(granule);
        }
    }

    /// Brings in what is out of the page around a granule.
    pub(crate) fn bring_in_for(&self, granule: PageId) {
        if self.pager.is_none() {
            return;
        }
        let count = self.job.page_size.bytes() as u64 / u64::from(self.job.limits.granule_bytes);
        let first = PageId(granule.0 - granule.0 % count);
        self.or_fatal(self.memory.bring_in_apart(PageRange { first, count }, |_| {}));
    }

    /// Brings in what is out of the pages that another node's message is about. The caller does not have the
    /// core's lock.
    pub(crate) fn bring_in_for_message(&self, message: &Message<'_>) {
        if self.pager.is_none() || !self.memory.is_any_out() {
            return;
        }
        match message {
            Message::PagesRequest { wanted, .. } => {
                wanted.iter().flat_map(|group| group.pages.iter()).for_each(|page| self.bring_in_for(page));
            }
            Message::Diffs { diffs, .. } | Message::EarlyDiffs { diffs, .. } => {
                diffs.iter().for_each(|diff| self.bring_in_for(diff.page));
            }
            Message::PageRequest { page, .. } | Message::AtomicRequest { page, .. } => {
                self.bring_in_for(*page)
            }
            _ => {}
        }
    }
}
