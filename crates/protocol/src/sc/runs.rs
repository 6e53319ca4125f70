//! Runs: pages that follow a page on which a thread has faulted are requested with it.
//!
//! A program that sweeps over an array faults on page after page, and waits for another node each time. Such
//! faults are a **run**: of loads from pages that others own, of stores to them, or of stores to pages of
//! which others have copies. A fault that continues a run has the pages behind it requested, too: twice as
//! many each time, up to a bound. All of them are in the same messages (`sc/sending.rs`), and so is what
//! follows: the invalidations of a run, the confirmations, and the release where order is kept.
//!
//! **Why this is correct.** A page that is requested ahead is one on which a thread has faulted that nobody
//! knows of: it goes through the same states, with the same messages, in the same order, and threads here
//! touch it only when they could have touched it after a fault. An execution with runs is thus one without
//! them, of a program with more threads, whose loads and stores change nothing.
//!
//! **What must not happen** is that pages go back and forth that nobody uses here. The node cannot see
//! whether a thread touches a page that has come ahead. But it sees where the next fault is. So each page
//! remembers, for loads and for stores:
//!
//! | what is known | brought ahead | a thread faults on it soon after a neighbour, or its run goes on |
//! |---|---|---|
//! | nothing | if the run goes on there → on trial | → used |
//! | on trial | no | → used |
//! | used (`left` > 0) | with a first fault near it; one time less | → used, twice as often |
//! | used (`left` = 0) | as if nothing were known | → the same |
//!
//! A fault on a page whose neighbours no thread has reached lately changes nothing: pages that are used in no
//! order do not bring each other. So a repeated sweep brings at its first fault all that it has brought
//! before, and what was once brought in vain is not brought again before a thread has faulted on it. A page
//! that another node has requested before it arrives is on trial at once.
//!
//! **Where runs end.** A run that is not known yet goes on over pages of the kind on which its threads have
//! faulted: one of stores to pages that the node owns does not take pages of other owners. It ends at a page
//! that is about to leave or for which others wait, at the end of the region, among pages that were under
//! another protocol also at the next one that still is, and at a page whose stores are noted without faults.
//! There are none in regions of which parts are no shared memory ([`Engine::use_singly`](crate::Engine)),
//! such as those of threads' stacks.
//! Pages that are here already are passed over, if they are few.
//!
//! Pages that nobody else has are opened in the same way, in runs of their own, which cost no message.
//!
//! Bounds: [`RUNS_MAX`] runs; a fault brings at most [`RUN_PAGES_MAX`] pages and [`RUN_BYTES_MAX`] bytes.

use hiroba_base::{Access, PageId};

use super::{Page, Sc};
use crate::coherence::Site;
use crate::home::Located;

/// The maximum number of runs, of several arrays or threads, that are followed at once. A new one replaces
/// the one that was quiet for the longest time.
const RUNS_MAX: usize = 16;

/// The number of pages that the first fault which continues a run brings ahead.
const FIRST_PAGES: u64 = 2;

/// The maximum number of pages, and of bytes, that a fault brings ahead; at least one page.
const RUN_PAGES_MAX: u64 = 64;
const RUN_BYTES_MAX: u64 = 256 << 10;

/// The maximum number of consecutive pages that are here already and are passed over.
const PASSED_PAGES_MAX: u64 = 8;

/// The number of faults of this node, since one on a neighbour of a page, within which a fault on the page
/// shows that both are used together.
const NEAR_FAULTS_MAX: u64 = 8;

/// How many times a page is brought ahead after the first time that it was used, and the maximum.
const TRUST_MIN: u8 = 2;
const TRUST_MAX: u8 = 64;

/// The reason why an access faults, which decides who must be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A load from another owner's page.
    Load,
    /// A store to another owner's page.
    Store,
    /// A store to a page of which others have copies.
    Invalidation,
    /// No other node must be asked.
    Here,
}

impl Kind {
    /// Returns the reason why `wanted` accesses to a page fault, or `None` if they do not.
    pub(super) fn of(page: &Page, wanted: Access) -> Option<Kind> {
        match (page.owner, wanted) {
            _ if wanted <= page.access => None,
            (true, Access::Write) if page.has_copies() => Some(Kind::Invalidation),
            (true, _) => Some(Kind::Here),
            (false, Access::Write) => Some(Kind::Store),
            (false, _) => Some(Kind::Load),
        }
    }

    fn wanted(self) -> Access {
        if self == Kind::Load { Access::Read } else { Access::Write }
    }

    /// Returns the index of what a page knows of such accesses.
    fn habit(self) -> usize {
        usize::from(self != Kind::Load)
    }
}

/// What is known of a page's use by loads, or by stores.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Habit {
    /// The number of times that it will still be brought ahead.
    left: u8,
    /// That number when it was last known to be used; 0 before.
    trust: u8,
    /// True if it was brought ahead, and is not known to have been used.
    is_on_trial: bool,
}

impl Habit {
    fn note_used(&mut self) {
        self.trust = self.trust.saturating_mul(2).clamp(TRUST_MIN, TRUST_MAX);
        (self.left, self.is_on_trial) = (self.trust, false);
    }

    /// Notes that another node wanted the page before it was here.
    pub(super) fn note_contended(&mut self) {
        *self = Habit { is_on_trial: true, ..Habit::default() };
    }
}

/// The observed runs.
#[derive(Debug, Default)]
pub(super) struct Runs {
    runs: Vec<Run>,
    /// The number of faults so far.
    clock: u64,
}

#[derive(Debug)]
struct Run {
    kind: Kind,
    /// The lowest and the highest page that the run has reached.
    first: PageId,
    last: PageId,
    is_downwards: bool,
    /// The number of pages that the next fault brings ahead.
    pages: u64,
    /// The pages on trial that the last fault has brought.
    on_trial: Vec<PageId>,
    last_used: u64,
}

impl Runs {
    /// Finds the run that a fault continues, or begins one. Returns its index, and true if it continues it.
    fn touch(&mut self, page: Located, kind: Kind) -> (usize, bool) {
        self.clock += 1;
        let Located { page, granules, .. } = page;
        let continues = |run: &Run| {
            let upwards = page.0 == run.last.0 + granules;
            let downwards = page.0 + granules == run.first.0;
            let goes_on = if run.first == run.last {
                upwards || downwards
            } else if run.is_downwards {
                downwards
            } else {
                upwards
            };
            run.kind == kind && goes_on
        };
        let found = self.runs.iter().position(continues);
        if let Some(index) = found {
            let run = &mut self.runs[index];
            (run.is_downwards, run.last_used) = (page < run.first, self.clock);
            run.reach(page);
            return (index, true);
        }
        let run = Run {
            kind,
            first: page,
            last: page,
            is_downwards: false,
            pages: FIRST_PAGES,
            on_trial: Vec::new(),
            last_used: self.clock,
        };
        if self.runs.len() < RUNS_MAX {
            self.runs.push(run);
            return (self.runs.len() - 1, false);
        }
        let oldest = (0..RUNS_MAX).min_by_key(|index| self.runs[*index].last_used).expect("there are some");
        self.runs[oldest] = run;
        (oldest, false)
    }
}

impl Run {
    fn reach(&mut self, page: PageId) {
        (self.first, self.last) = (self.first.min(page), self.last.max(page));
    }
}

/// The place of a page in a run.
enum Place {
    /// The run ends before it.
    End,
    /// It is here, or on its way.
    Passed,
    /// No other node must be asked.
    Here,
    Used,
    Unknown,
}

impl Page {
    /// Notes that a thread has faulted on the page.
    pub(super) fn note_used(&mut self, kind: Kind) {
        if kind != Kind::Here {
            self.habits[kind.habit()].note_used();
        }
    }

    fn place(&self, kind: Kind) -> Place {
        let is_leaving = self.give_up_for.is_some() || !self.queue.is_empty() || self.invalidating > 0;
        if self.is_undivided || is_leaving && self.access < kind.wanted() {
            return Place::End;
        }
        if self.wanted.max(self.asked) >= kind.wanted() {
            return Place::Passed;
        }
        match Kind::of(self, kind.wanted()) {
            None => Place::Passed,
            Some(Kind::Here) => Place::Here,
            Some(_) if kind == Kind::Here => Place::End,
            Some(of) => match self.habits[kind.habit()] {
                Habit { left: 1.., .. } => Place::Used,
                Habit { is_on_trial: false, .. } if of == kind => Place::Unknown,
                _ => Place::End,
            },
        }
    }
}

impl Sc {
    /// Requests the pages that follow one on which a thread has faulted, as far as its run makes likely.
    pub(super) fn follow(&mut self, site: &mut Site, faulted: Located, kind: Kind) {
        if site.used_singly.iter().any(|region| region.contains(faulted.page)) {
            return;
        }
        let habit = kind.habit();
        let (index, continues) = self.runs.touch(faulted, kind);
        let page_bytes = u64::from(site.page_bytes(faulted.page));
        let pages_max = RUN_PAGES_MAX.min(RUN_BYTES_MAX / page_bytes).max(1);
        let run = &mut self.runs.runs[index];
        let used = std::mem::take(&mut run.on_trial);
        let mut unknown = 0;
        if continues {
            unknown = run.pages.min(pages_max);
            run.pages = (unknown * 2).min(pages_max);
        }
        for page in used.into_iter().filter(|_| continues) {
            self.page(site, page).habits[habit].note_used();
        }
        let is_near = self.is_near_others(faulted);
        let clock = self.runs.clock;
        let run = &mut self.runs.runs[index];
        let page = self.pages.get_mut(&faulted.page).expect("a thread has faulted on it");
        page.reached_at = clock;
        if is_near {
            page.note_used(kind);
        }
        if continues {
            page.is_downwards = run.is_downwards;
        } else {
            run.is_downwards = page.is_downwards;
        }
        let is_downwards = run.is_downwards;
        let ahead = self.ahead(site, faulted, kind, is_downwards, (unknown, pages_max));
        self.bring(site, kind, &ahead.pages);
        let run = &mut self.runs.runs[index];
        run.reach(ahead.end);
        run.on_trial = ahead.on_trial;
        if !continues {
            // A program that touches an array in no order may begin anywhere.
            let pages_max = pages_max.saturating_sub(ahead.pages.len() as u64);
            let behind = self.ahead(site, faulted, kind, !is_downwards, (0, pages_max));
            self.bring(site, kind, &behind.pages);
            self.runs.runs[index].reach(behind.end);
        }
    }

    /// Returns true if the last faults of threads here have reached a neighbour of the page.
    fn is_near_others(&self, faulted: Located) -> bool {
        let Located { page: PageId(page), granules, .. } = faulted;
        let neighbours = [page.checked_sub(granules), page.checked_add(granules)];
        neighbours
            .into_iter()
            .flatten()
            .filter_map(|page| self.pages.get(&PageId(page)))
            .any(|page| page.reached_at > 0 && self.runs.clock - page.reached_at <= NEAR_FAULTS_MAX)
    }

    /// Requests pages as if threads had faulted on them.
    fn bring(&mut self, site: &mut Site, kind: Kind, pages: &[PageId]) {
        let clock = self.runs.clock;
        for page_id in pages {
            let page = self.page(site, *page_id);
            page.reached_at = clock;
            page.is_ahead |= page.wanted == Access::None;
            page.wanted = page.wanted.max(kind.wanted());
            self.settle(site, *page_id);
        }
    }

    /// Returns the pages to be requested with the one that has faulted: at most `unknown` of them if little
    /// is known of a page, and at most `pages_max` otherwise.
    fn ahead(
        &mut self,
        site: &mut Site,
        faulted: Located,
        kind: Kind,
        is_downwards: bool,
        (unknown, pages_max): (u64, u64),
    ) -> Ahead {
        let habit = kind.habit();
        let region = site.homes.region_around(faulted.page).expect("a page that faults is allocated");
        let is_converted = self.pages.get(&faulted.page).is_some_and(|page| page.is_converted);
        let mut ahead = Ahead { pages: Vec::new(), on_trial: Vec::new(), end: faulted.page };
        let mut passed = 0;
        let mut next = faulted.page;
        while (ahead.pages.len() as u64) < pages_max && passed <= PASSED_PAGES_MAX {
            let step = faulted.granules;
            let after = if is_downwards { next.0.checked_sub(step) } else { next.0.checked_add(step) };
            let Some(after) = after.map(PageId).filter(|after| region.contains(*after)) else { break };
            next = after;
            if is_converted && !self.pages.contains_key(&next) || self.order.is_going(next) {
                break;
            }
            let brought = ahead.pages.len() as u64;
            let known = self.pages.get(&next).map(|page| page.place(kind));
            let place = known.unwrap_or_else(|| Page::new(site.me, site.locate(next).home).place(kind));
            match place {
                Place::End => break,
                Place::Here if brought < unknown => {}
                Place::Here if kind == Kind::Here => break,
                Place::Here | Place::Passed => {
                    passed += 1;
                    ahead.end = if brought + unknown > 0 { next } else { ahead.end };
                    continue;
                }
                Place::Used => self.page(site, next).habits[habit].left -= 1,
                Place::Unknown if brought >= unknown => break,
                Place::Unknown => {
                    self.page(site, next).habits[habit].is_on_trial = true;
                    ahead.on_trial.push(next);
                }
            }
            self.page(site, next).is_downwards = is_downwards;
            ahead.pages.push(next);
            (ahead.end, passed) = (next, 0);
        }
        ahead
    }
}

/// The pages that a fault brings ahead.
struct Ahead {
    pages: Vec<PageId>,
    /// Those of them that are on trial.
    on_trial: Vec<PageId>,
    /// The page that the run reaches.
    end: PageId,
}
