//! Anticipation: fetches pages before the program faults on them.
//!
//! The papers' protocols fetch a page when a thread faults on it. Each fault then costs a round trip that
//! nothing overlaps with. This module watches what a home-based protocol does with its copies, and proposes
//! pages to fetch before they are touched. The protocol does the fetching, and is right without any of it: a
//! page that was fetched early is fetched like any other. `--prefetch off` leaves all of it out.
//!
//! | what the program does | what is fetched | where |
//! |---|---|---|
//! | says which pages it will read | those | `hinted` |
//! | reads on and on, in equal steps | windows of pages | `anticipation/streams.rs` |
//! | touches many pages that lie together, in no order | windows around them | `anticipation/blocks.rs` |
//! | reads a page soon after the barriers that invalidate it | the page, at the barrier before | `anticipation/habits.rs` |
//! | reads a page after a lock's grant has invalidated it | the page, when the lock comes | `anticipation/lock_pages.rs` |
//! | any of the last two, again and again | the home sends it, unasked | `anticipation/supplies.rs` |
//!
//! The protocol tells what happens to its copies:
//!
//! | event | method | answer |
//! |---|---|---|
//! | a thread has touched a copy, or a page that is absent | `touched` | pages to fetch |
//! | a page that was asked for has come | `has_come`, `opens` | whether the program may use it without a fault |
//! | a notice has voided a copy that nobody had touched | `lost_untouched` | – |
//! | a lock has come, and has voided pages | `granted` | pages to fetch |
//! | a barrier is over, and has voided pages | `met` | pages to fetch |
//! | a page gets another home | `forget_orders` | – |
//!
//! Eager release consistency has `anticipation/steps.rs` alone. What homes send unasked has methods of its
//! own, in `anticipation/supplies.rs`.
//!
//! Nobody sees whether the program reads a page that it may use without a fault. So a page that came unasked
//! is left without access now and then: its first touch faults, needs no message, and shows that the page was
//! wanted.

pub(crate) mod blocks;
pub(crate) mod habits;
pub(crate) mod lock_pages;
pub(crate) mod steps;
pub(crate) mod streams;
pub(crate) mod supplies;

use hiroba_base::{Access, LockId, NodeId, PageId, PageRange, PageSet, VersionVector};
use rustc_hash::{FxHashMap, FxHashSet};

use self::blocks::Blocks;
use self::habits::{Due, Habit};
use self::lock_pages::LockPage;
use self::streams::Streams;
use self::supplies::{Order, Supplies};
use crate::coherence::Site;
use crate::home::Located;

/// Bytes of pages that may be under way before anybody has touched them. Further pages are not proposed.
const UNDER_WAY_BYTES_MAX: u64 = 4 << 20;

/// What a protocol shows of its copies.
pub(crate) trait Copies {
    /// Whether this node has neither a good copy of the page nor a fetch under way.
    fn is_absent(&self, page: PageId) -> bool;

    /// Whether the page may be asked for now: it is absent, homed elsewhere, and not about to change its home
    /// to or from this node.
    fn may_ask_for(&self, site: &Site, page: Located) -> bool;

    /// Whether a fetch of the page is under way.
    fn is_under_way(&self, page: PageId) -> bool;

    /// Whether this node has a good copy.
    fn is_good(&self, page: PageId) -> bool;

    /// What the program may do with the page without a fault.
    fn access(&self, page: PageId) -> Access;

    /// Whether the host keeps a twin of the page.
    fn has_twin(&self, page: PageId) -> bool;

    /// Whether a copy of this version holds all that this node has heard of and has written.
    fn would_do(&self, page: PageId, version: &VersionVector) -> bool;

    /// Whether this node reads the home's frames itself, without a message.
    fn reads_itself(&self, home: NodeId) -> bool;

    /// Whether the page is homed here and may be sent as it is.
    fn may_send(&self, site: &Site, page: PageId) -> bool;
}

/// Pages to be fetched.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Fetches {
    /// The pages, in the order in which they will be read.
    pub(crate) pages: Vec<PageId>,
    /// The program reads downwards: homes send the last page first.
    pub(crate) is_descending: bool,
}

/// How a thread has touched a page of another home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// The page is absent, and nobody has asked for it.
    Missed,
    /// The page is absent, and on its way.
    UnderWay,
    /// The copy was good, and left without access.
    Opened,
    /// The copy was good and readable. The thread stores to it.
    Written,
}

/// What is known of the use of one page.
#[derive(Debug, Default)]
struct Guess {
    habit: Habit,
    lock_page: LockPage,
    order: Order,
}

/// Pages that were asked for before anybody touched them.
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

    /// Notes that the page is asked for. Returns false if it may not be, or need not be.
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
    guesses: FxHashMap<PageId, Guess>,
    streams: Streams,
    blocks: Blocks,
    due: Due,
    follows_locks: bool,
    supplies: Supplies,
}

impl Anticipation {
    /// Has pages that go with locks fetched as soon as the locks come.
    pub(crate) fn follow_locks(&mut self) {
        self.follows_locks = true;
    }

    /// Has readers order what they read after every barrier. Hasty readers order as soon as they read a page
    /// twice at the same distance from its loss; others when that has proved right. Tests with few barriers
    /// are hasty.
    pub(crate) fn place_orders(&mut self, is_hasty: bool) {
        (self.supplies.is_on, self.supplies.is_hasty) = (true, is_hasty);
    }

    /// The program says that it will read these pages: proposes what it lacks of them, together.
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

    /// A thread has touched a page of another home.
    pub(crate) fn touched(
        &mut self,
        site: &mut Site,
        copies: &impl Copies,
        page: Located,
        touch: Touch,
    ) -> Fetches {
        let guess = self.guesses.get_mut(&page.page);
        let was_on_trial = guess.is_some_and(|guess| guess.order.end_trial() | guess.habit.is_on_trial);
        let is_absent = matches!(touch, Touch::Missed | Touch::UnderWay);
        if is_absent || was_on_trial {
            self.note_use(site, copies, page.page, touch != Touch::Missed);
            self.note_lock_page(site, copies, page.page);
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

    /// Proposes the pages around a missed page, where many are missed.
    fn around(&mut self, site: &Site, copies: &impl Copies, page: Located) -> Fetches {
        let mut fetches = Fetches::default();
        for located in self.blocks.around(site, page) {
            if self.under_way.has_room() && self.under_way.begin(site, copies, located) {
                fetches.pages.push(located.page);
            }
        }
        fetches
    }

    /// The content of a page has come.
    pub(crate) fn has_come(&mut self, site: &Site, page: PageId) {
        self.under_way.end(site, page);
    }

    /// Whether the program may use a page that has come without a fault. If somebody waits for it, it must.
    pub(crate) fn opens(&mut self, page: PageId, must_open: bool) -> bool {
        let is_closed = self.under_way.closed.remove(&page);
        let opens = must_open || !is_closed;
        if opens && let Some(guess) = self.guesses.get_mut(&page) {
            guess.habit.is_on_trial = false;
        }
        opens
    }

    /// This node is the home of the page now: nothing is under way any more.
    pub(crate) fn is_homed_here(&mut self, site: &Site, page: PageId) {
        self.under_way.end(site, page);
        self.under_way.closed.remove(&page);
    }

    /// A notice has voided a good copy to which the program had no access.
    pub(crate) fn lost_untouched(&mut self, page: PageId) {
        if let Some(guess) = self.guesses.get_mut(&page) {
            guess.habit.note_loss_untouched();
        }
    }

    /// A grant of the lock has voided these pages.
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

    /// A barrier has voided these pages.
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
