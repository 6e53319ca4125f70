//! The paging thread: pages that leave and are saved before a fault must wait for that.
//!
//! A thread that brings a page in may find memory full. If it had to write others to the disk first, it would
//! wait, with the core's lock, and the node's other threads with it. So this thread saves the pages that
//! leave next, without that lock, and has them leave, a few at a time, when the budget is almost exceeded. It
//! is started when the budget is exceeded for the first time (`on_demand.rs`).
//!
//! It also brings in the pages ahead of streams ([`Streams`]), in small pieces, after each of which others
//! may leave.
//!
//! What a thread needs of the pages that are out, it brings in itself ([`Runtime::bring_back`]), before it
//! takes the core's lock. Between that and the use of the page it may leave again. Then it is brought in
//! under the lock.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use hiroba_base::{PageId, PageRange, PageSet};
use hiroba_paging::{Needs, Streams};
use hiroba_wire::Message;

use crate::runtime::Runtime;
use crate::time_class::TimeClass;

/// Pages that were brought ahead and are unused take at most this part of the budget.
const AHEAD_PART: u64 = 8;

/// Bytes that are brought ahead at a time; then others leave for them.
const PIECE_BYTES: u64 = 256 << 10;

/// The maximum number of ranges that wait for being brought ahead. Later ones are dropped.
const RANGES_MAX: usize = 16;

/// The paging thread's work.
#[derive(Debug)]
pub(crate) struct Pager {
    work: Mutex<Work>,
    called: Condvar,
    /// What the program needs next, in pages; `None` without prefetching.
    streams: Option<Mutex<Streams>>,
    /// The number of granules of a page.
    granules: u64,
    /// The number of pages that may be ahead and unused.
    room: u64,
}

#[derive(Debug, Default)]
struct Work {
    /// Pages that leave next. No more than the budget chooses ahead.
    to_save: PageSet,
    /// Pages ahead of streams, with the streams' numbers.
    to_bring: VecDeque<(u64, PageRange)>,
    is_memory_full: bool,
    /// True if pages could not be saved.
    has_failed: bool,
}

impl Pager {
    /// Makes a pager for pages of `page_bytes`, each of which has `granules` granules. At most a part of
    /// `limit_bytes` is brought ahead.
    pub(crate) fn new(limit_bytes: u64, page_bytes: u64, granules: u64, prefetches: bool) -> Pager {
        Pager {
            work: Mutex::default(),
            called: Condvar::new(),
            streams: prefetches.then(Mutex::default),
            granules,
            room: limit_bytes / AHEAD_PART / page_bytes,
        }
    }

    fn streams(&self) -> Option<MutexGuard<'_, Streams>> {
        Some(self.streams.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the pages that contain these granules.
    fn pages(&self, granules: PageRange) -> PageRange {
        let first = granules.first.0 / self.granules;
        PageRange { first: PageId(first), count: granules.end().0.div_ceil(self.granules) - first }
    }

    /// Returns the granules of these pages.
    fn granules(&self, pages: PageRange) -> PageRange {
        PageRange { first: PageId(pages.first.0 * self.granules), count: pages.count * self.granules }
    }

    /// Returns the granules of the page around one.
    fn granules_around(&self, granule: PageId) -> PageRange {
        self.granules(PageRange::single(PageId(granule.0 / self.granules)))
    }

    /// Notes that the program touches a granule. Requests what it needs next, and returns the granules to
    /// bring in now.
    fn touch(&self, granule: PageId) -> PageRange {
        let page = PageId(granule.0 / self.granules);
        let needs = match self.streams() {
            Some(mut streams) => streams.touch(page, self.room),
            None => {
                let ahead = PageRange { first: page, count: 0 };
                Needs { now: PageRange::single(page), ahead, stream: 0 }
            }
        };
        if needs.ahead.count > 0 {
            let mut work = self.work();
            if work.to_bring.len() < RANGES_MAX {
                work.to_bring.push_back((needs.stream, needs.ahead));
                self.called.notify_one();
            }
        }
        self.granules(needs.now)
    }

    /// Returns the granules that are still ahead of a stream, of pages that were requested ahead of it.
    fn still_ahead(&self, (stream, pages): (u64, PageRange)) -> PageRange {
        let none = PageRange { first: pages.first, count: 0 };
        self.granules(self.streams().map_or(none, |streams| streams.still_ahead(stream, pages)))
    }

    /// Notes that the program may use granules.
    pub(crate) fn note_given(&self, granules: PageRange) {
        if let Some(mut streams) = self.streams() {
            streams.note_given(self.pages(granules));
        }
    }

    /// Returns those pages of a range of granules, each by its first granule, that were brought ahead and are
    /// unused.
    pub(crate) fn ahead_of_use(&self, granules: PageRange) -> PageSet {
        let Some(streams) = self.streams() else { return PageSet::new() };
        let pages = self.pages(granules).iter().filter(|page| streams.is_unused(*page));
        pages.map(|page| PageId(page.0 * self.granules)).collect()
    }

    /// Notes that granules have left. Returns how many of them had been brought ahead in vain.
    pub(crate) fn note_left(&self, granules: PageRange) -> u64 {
        self.streams().map_or(0, |mut streams| streams.note_left(self.pages(granules)) * self.granules)
    }

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
    fn take(&self) -> Work {
        let is_idle =
            |work: &mut Work| work.to_save.is_empty() && work.to_bring.is_empty() && !work.is_memory_full;
        let mut work = self.called.wait_while(self.work(), is_idle).unwrap_or_else(PoisonError::into_inner);
        let has_failed = work.has_failed;
        std::mem::replace(&mut *work, Work { has_failed, ..Work::default() })
    }
}

impl Runtime {
    /// Does the paging thread's work. Returns when the node has left the job.
    pub(super) fn page(&self, pager: &Pager) {
        if self.faults.as_ref().is_some_and(|faults| faults.events().is_some()) {
            self.service().run_before_program();
        }
        loop {
            let Work { to_save, to_bring, is_memory_full, .. } = pager.take();
            if self.has_left() {
                return;
            }
            let mut is_more = is_memory_full;
            while is_more {
                is_more = false;
                self.tell(|core| is_more = self.evict_ahead(core));
            }
            to_bring.into_iter().for_each(|requested| self.bring_ahead(pager, requested));
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

    /// Brings in pages ahead of a stream, except for those that it has passed meanwhile.
    fn bring_ahead(&self, pager: &Pager, requested: (u64, PageRange)) {
        let range = pager.still_ahead(requested);
        let piece = (PIECE_BYTES / u64::from(self.job.limits.granule_bytes)).max(pager.granules);
        for first in (range.first.0..range.end().0).step_by(piece as usize) {
            let rest = range.end().0 - first;
            let range = PageRange { first: PageId(first), count: piece.min(rest) };
            // The next piece is on its way while this one is opened and others leave for it.
            self.memory.request_ahead(PageRange { first: range.end(), count: rest - range.count });
            let mut all = Vec::new();
            let brought = self.memory.bring_in_apart(range, |came| {
                all.push(came);
                // Before their frames are there: the program may use and leave them at once.
                pager.streams().iter_mut().for_each(|streams| streams.note_brought(pager.pages(came)));
            });
            self.or_fatal(brought);
            if !all.is_empty() {
                let count = all.iter().map(|came| came.count).sum();
                self.account.tallies.pages_brought_ahead.fetch_add(count, Relaxed);
                // Others leave for them now.
                self.tell(|_| {});
            }
        }
    }

    /// Notes that the program may use granules, if pages are brought ahead.
    pub(crate) fn note_given_ahead(&self, granules: PageRange) {
        if let Some(pager) = self.pager.as_ref().filter(|_| self.memory.is_any_out()) {
            pager.note_given(granules);
        }
    }

    /// Brings in what is out of the page that a thread of the program has touched. The thread calls it
    /// itself, before it takes the core's lock, so that others do not wait for the disk.
    pub(crate) fn bring_back(&self, class: TimeClass, granule: PageId) {
        self.await_lending(class);
        if self.pager.is_some() && self.memory.is_any_out() {
            let _inside = self.account.enter(&self.threads, class);
            self.bring_in_touched(granule);
        }
    }

    /// Brings in what the program needs that has touched a granule.
    pub(crate) fn bring_in_touched(&self, granule: PageId) {
        if let Some(pager) = self.pager.as_ref().filter(|_| self.memory.is_any_out()) {
            self.or_fatal(self.memory.bring_in_apart(pager.touch(granule), |_| {}));
        }
    }

    /// Brings in what is out of the pages that another node's message is about. The caller does not have the
    /// core's lock.
    pub(crate) fn bring_in_for_message(&self, message: &Message<'_>) {
        let Some(pager) = self.pager.as_ref().filter(|_| self.memory.is_any_out()) else { return };
        for page in pages_of(message) {
            self.or_fatal(self.memory.bring_in_apart(pager.granules_around(page), |_| {}));
        }
    }

    /// Returns true if any page that another node's message is about is out.
    pub(crate) fn waits_for_pages(&self, message: &Message<'_>) -> bool {
        let is_out = |pager: &Pager, page| self.memory.is_any_out_of(pager.granules_around(page));
        self.pager.as_ref().is_some_and(|pager| pages_of(message).into_iter().any(|page| is_out(pager, page)))
    }
}

/// Returns the pages whose content a message is about, each by one of its granules.
fn pages_of(message: &Message<'_>) -> Vec<PageId> {
    match message {
        Message::PagesRequest { wanted, .. } => wanted.iter().flat_map(|group| group.pages.iter()).collect(),
        Message::Diffs { diffs, .. } | Message::EarlyDiffs { diffs, .. } => {
            diffs.iter().map(|diff| diff.page).collect()
        }
        Message::PageRequest { page, .. } | Message::AtomicRequest { page, .. } => vec![*page],
        _ => Vec::new(),
    }
}
