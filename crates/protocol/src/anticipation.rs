//! Anticipation: fetches pages before the program faults on them.
//!
//! The papers' protocols fetch a page when a thread faults on it. Each fault then costs a round trip that
//! nothing overlaps with. This module watches what a home-based protocol does with its copies, and proposes
//! pages to fetch before they are touched. The protocol fetches them, and is correct without any proposals: a
//! page that was fetched early is fetched like any other. `--prefetch off` disables all of this.
//!
//! | what the program does | what is fetched | where |
//! |---|---|---|
//! | names the pages that it will read | those pages | `hinted` |
//! | reads pages in equal steps | windows of pages | `anticipation/streams.rs` |
//! | touches many pages that lie together, in no order | windows around them | `anticipation/blocks.rs` |
//! | reads a page some barriers after the one that invalidates it | the page, at the barrier before | `anticipation/habits.rs` |
//! | reads a page after a lock's grant has invalidated it | the page, when the lock comes | `anticipation/lock_pages.rs` |
//!
//! The protocol reports what happens to its copies:
//!
//! | event | method | answer |
//! |---|---|---|
//! | a thread has touched a copy, or a page that is absent | `touched` | pages to fetch |
//! | a requested page has come | `has_come`, `opens` | whether the program may use it without a fault |
//! | a notice has voided a copy that had not been touched | `lost_untouched` | – |
//! | a lock has come, and has voided pages | `granted` | pages to fetch |
//! | a barrier is over, and has voided pages | `met` | pages to fetch |
//!
//! Eager release consistency uses only `anticipation/steps.rs`.
//!
//! The node cannot see whether the program reads a page that it may use without a fault. So a page that came
//! unrequested is sometimes left without access: its first touch faults, needs no message, and shows that the
//! page was wanted.

pub(crate) mod blocks;
pub(crate) mod habits;
pub(crate) mod lock_pages;
pub(crate) mod rhythm;
pub(crate) mod steps;
pub(crate) mod streams;

use hiroba_base::{Access, LockId, NodeId, PageId, PageRange, PageSet};
use rustc_hash::FxHashSet;

use self::blocks::Blocks;
use self::habits::{Due, Habit};
use self::lock_pages::LockPage;
use self::streams::Streams;
use crate::coherence::Site;
use crate::home::Located;
use crate::page_table::PageTable;

/// The maximum number of bytes of pages that may be under way before a thread has touched them. Further pages
/// are not proposed.
const UNDER_WAY_BYTES_MAX: u64 = 4 << 20;

/// The state of copies that a protocol shows to its anticipation.
pub(crate) trait Copies {
    /// Returns true if this node has neither a valid copy of the page nor a fetch under way.
    fn is_absent(&self, page: PageId) -> bool;

    /// Returns true if the page may be requested now: it is absent, homed elsewhere, and not about to change
    /// its home to or from this node.
    fn may_ask_for(&self, site: &Site, page: Located) -> bool;

    /// Returns true if a fetch of the page is under way.
    fn is_under_way(&self, page: PageId) -> bool;

    /// Returns true if this node has a valid copy.
    fn is_good(&self, page: PageId) -> bool;

    /// Returns what the program may do with the page without a fault.
    fn access(&self, page: PageId) -> Access;

    /// Returns true if this node reads the home's frames itself, without a message.
    fn reads_itself(&self, home: NodeId) -> bool;
}

/// Pages to fetch.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Fetches {
    /// The pages in the order in which they will be read.
    pub(crate) pages: Vec<PageId>,
    /// True if the program reads downwards: homes send the last page first.
    pub(crate) is_descending: bool,
}

/// The state of a page of another home that a thread has touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// The page is absent and has not been requested.
    Missed,
    /// The page is absent, and on its way.
    UnderWay,
    /// The copy was valid and had been left without access.
    Opened,
    /// The copy was valid and readable. The thread stores to it.
    Written,
}

/// The observed use of one page.
#[derive(Debug, Default)]
struct Guess {
    habit: Habit,
    lock_page: LockPage,
}

/// Pages that were requested before a thread touched them.
#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    pages: FxHashSet<PageId>,
    bytes: u64,
    /// Pages to be left without access when they come, so that their first touch shows.
    closed: FxHashSet<PageId>,
}

impl UnderWay {
    fn has_room(&self) -> bool {
        self.bytes < UNDER_WAY_BYTES_MAX
    }

    /// Notes that the page is requested. Returns false if it may not be, or need not be.
    fn begin(&mut self, site: &Site, copies: &impl Copies, page: Located) -> bool {
        let begins = copies.may_ask_for(site, page) && self.pages.insert(page.page);
        if begins {
            self.bytes += page.granules * u64::from(site.limits.granule_bytes);
        }
        begins
    }

    fn end(&mut self, site: &Site, page: PageId) {
        if self.pages.remove(&page) {
            let bytes = u64::from(site.page_bytes(page));
            assert!(self.bytes >= bytes, "{page}: what comes was counted when it was asked for");
            self.bytes -= bytes;
            assert!(self.bytes == 0 || !self.pages.is_empty(), "what is counted is under way");
        }
    }
}

/// Proposes pages to fetch, on one node.
#[derive(Debug, Default)]
pub(crate) struct Anticipation {
    under_way: UnderWay,
    guesses: PageTable<Guess>,
    streams: Streams,
    blocks: Blocks,
    due: Due,
    /// Pages that publications have voided since the last barrier, and that were not used since.
    lost: FxHashSet<PageId>,
    follows_locks: bool,
}

impl Anticipation {
    /// Has pages that go with locks fetched as soon as the locks come.
    pub(crate) fn follow_locks(&mut self) {
        self.follows_locks = true;
    }

    /// Proposes, as one fetch, the absent ones of the pages that the program says it will read.
    pub(crate) fn hinted(&mut self, site: &Site, copies: &impl Copies, ranges: &[PageRange]) -> Fetches {
        let mut fetches = Fetches::default();
        for pages in ranges {
            let mut next = pages.first;
            while next < pages.end() && self.under_way.has_room() {
                let Some(located) = site.homes.locate(next) else {
                    next.0 += 1;
                    continue;
                };
                next = located.span().end();
                if self.under_way.begin(site, copies, located) {
                    fetches.pages.push(located.page);
                }
            }
        }
        fetches
    }

    /// Handles that a thread has touched a page of another home. Returns pages to fetch.
    pub(crate) fn touched(
        &mut self,
        site: &mut Site,
        copies: &impl Copies,
        page: Located,
        touch: Touch,
    ) -> Fetches {
        let guess = self.guesses.get_mut(&page.page);
        let was_on_trial = guess.is_some_and(|guess| guess.habit.is_on_trial);
        let is_absent = matches!(touch, Touch::Missed | Touch::UnderWay);
        if is_absent || was_on_trial {
            self.note_use(site, page.page, touch != Touch::Missed);
            self.note_lock_page(page.page);
        }
        let shows_stream = is_absent || touch == Touch::Opened && !was_on_trial;
        if !shows_stream || !site.prefetches {
            return Fetches::default();
        }
        let ahead = self.streams.follow(site, copies, &mut self.under_way, page, touch == Touch::Missed);
        if ahead.pages.is_empty() && touch == Touch::Missed {
            return self.around(site, copies, page);
        }
        ahead
    }

    /// Proposes the pages around a missed page in an area where many are missed.
    fn around(&mut self, site: &Site, copies: &impl Copies, page: Located) -> Fetches {
        let mut fetches = Fetches::default();
        for located in self.blocks.around(site, page) {
            if self.under_way.has_room() && self.under_way.begin(site, copies, located) {
                fetches.pages.push(located.page);
            }
        }
        fetches
    }

    /// Notes that the content of a page has come.
    pub(crate) fn has_come(&mut self, site: &mut Site, page: PageId) {
        site.awaited.remove(page);
        self.under_way.end(site, page);
    }

    /// Returns true if the program may use a page that has come without a fault. `must_open`: a thread waits
    /// for it.
    pub(crate) fn opens(&mut self, page: PageId, must_open: bool) -> bool {
        let is_closed = self.under_way.closed.remove(&page);
        let opens = must_open || !is_closed;
        if opens && let Some(guess) = self.guesses.get_mut(&page) {
            guess.habit.is_on_trial = false;
        }
        opens
    }

    /// Notes that this node is the home of the page now, so that it is not under way any more.
    pub(crate) fn is_homed_here(&mut self, site: &mut Site, page: PageId) {
        site.awaited.remove(page);
        self.under_way.end(site, page);
        self.under_way.closed.remove(&page);
    }

    /// Notes that a notice has voided a valid copy to which the program had no access.
    pub(crate) fn lost_untouched(&mut self, page: PageId) {
        if let Some(guess) = self.guesses.get_mut(&page) {
            guess.habit.note_loss_untouched();
        }
    }

    /// Notes that a publication has taken the program's access to these pages, between two barriers.
    pub(crate) fn note_lost(&mut self, voided: &PageSet) {
        self.lost.extend(voided.iter());
    }

    /// Notes that pages leave because memory is short. Where touches come in no order, the pages around them
    /// would only push others out.
    pub(crate) fn note_shortage(&mut self) {
        self.blocks.forget();
    }

    /// Handles that a grant of the lock has voided these pages. Returns pages to fetch.
    pub(crate) fn granted(
        &mut self,
        site: &mut Site,
        copies: &impl Copies,
        lock: LockId,
        voided: &PageSet,
    ) -> Fetches {
        if !voided.is_empty() {
            self.blocks.forget();
        }
        if !self.follows_locks || !site.prefetches {
            return Fetches::default();
        }
        self.follow_lock(site, copies, lock, voided)
    }

    /// Handles that a barrier has voided these pages. Returns pages to fetch.
    pub(crate) fn met(&mut self, site: &mut Site, copies: &impl Copies, voided: &PageSet) -> Fetches {
        if !voided.is_empty() {
            self.blocks.forget();
        }
        if self.follows_locks {
            self.forget_lock(voided);
        }
        if !site.prefetches {
            return Fetches::default();
        }
        self.follow_habits(site, copies, voided)
    }
}
