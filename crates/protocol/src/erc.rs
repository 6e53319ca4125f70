//! Eager release consistency: several writers of a page, and releases that end when all copies are up to date
//! or gone.
//!
//! Read first: Carter, Bennett, Zwaenepoel, *Techniques for Reducing Consistency-Related Communication in
//! Distributed Shared-Memory Systems*, ACM TOCS 13(3), 1995 (Munin: twins, diffs, copysets, updates that time
//! out); Harada, Tezuka, Hori, Sumimoto, Takahashi, Ishikawa, *SCASH: Software DSM using High Performance
//! Network on Commodity Hardware and Software*, Workshop on Scalable Shared-memory Multiprocessors 1999
//! (homes and bases, invalidation or update as the program chooses; in short: Sakae, Matsuoka, Sato, Harada,
//! section 2.2). For the consistency model: Gharachorloo and others, *Memory Consistency and Event Ordering
//! in Scalable Shared-Memory Multiprocessors*, ISCA 1990.
//!
//! Tests: `check/tests/all/erc.rs`, and there `moves.rs`, `explore.rs` and `golden.rs`.
//!
//! The first store to a page makes a **twin**; at a **release** the page is compared with it and the **diff**
//! goes to the page's **home**, whose copy is always up to date. The home knows the nodes that have copies,
//! the **copyset**. It **invalidates** their copies or forwards the diff to them as an **update**, waits
//! until all have answered, and informs the writer that the diff is *performed*. The release ends when all
//! its diffs are performed. So an acquire needs no information: locks and barriers carry no notices, and no
//! intervals are counted.
//!
//! ```text
//!   writer ──EagerDiffs──▶ home ──InvalidateCopies or UpdateCopies──▶ copyset ──CopiesSettled──▶ home ──DiffsPerformed──▶ writer
//!   reader ──CopyRequest──▶ home ──PagesReply──▶ reader
//! ```
//!
//! The states of a page on one node:
//!
//! | state | `valid` | access | twin | load faults | store faults |
//! |---|---|---|---|---|---|
//! | absent | no | None | no | fetch → clean | fetch, twin → dirty |
//! | clean copy | yes | Read | no | – | twin → dirty |
//! | resting copy | yes | None | no | → clean | twin → dirty |
//! | dirty copy | yes | Write | yes | – | – |
//! | dirty, invalidated | no | None | yes | fetch, **merge** → dirty | the same |
//! | home, exclusive | yes | Write | no | – | – |
//! | home, shared, clean | yes | Read | no | – | (update: twin) → home, written |
//! | home, written | yes | Write | for updates, or since it was dirty elsewhere | – | – |
//!
//! A release takes *dirty* to *clean*; *home, written* becomes *home, exclusive* by invalidation, and *home,
//! shared, clean* by update. A page without copies on other nodes is exclusive and costs nothing; its first
//! reader makes it shared. An invalidation takes copies to *absent* or *dirty, invalidated*. An update
//! changes frame and twin: its bytes are not among this node's unsent writes, because a program without races
//! does not write one byte on two nodes at once.
//!
//! **Why copies and their changes do not cross.** The home is the single point through which all changes of a
//! page go, and links keep their order. It adds a reader to the copyset when it sends the page: a diff that
//! it applied before is in the page, and a diff that it applies later reaches the reader after the page. A
//! change that reaches a reader while it waits for a page may be later than that page only when the page
//! comes from a former home, over another link: such a page is not used but requested again (`overtaken`). A
//! page of which this node's own diff is on its way is requested after the diff is performed, since the home
//! might answer before the diff comes (`flushing`).
//!
//! **What a diff does not show.** A home that sends a page while its own program is writing it sends values
//! that the diff against the twin may not show: a byte may get its old value again. So such copies are
//! recalled when the interval ends (`midway`). For the same reason a transaction that changes a page waits
//! for those that invalidate copies of it, because a copy that is about to be invalidated may still be read.
//!
//! **Competitive update.** After some updates a copy *rests*: it takes its next update only if a thread has
//! touched it. If no thread has, the node leaves the copyset with its answer. So a copy that is not read any
//! more costs a bounded number of messages. Each time that a resting copy is touched, it may take twice as
//! many updates before it rests again.
//!
//! **Atomic words** are operated on at the home. Copies have been invalidated or updated before the
//! operation's result is reported, so plain loads that are ordered after it see the word. The requesting
//! node's own copy is updated in either mode.
//!
//! `moving.rs` moves homes; `directory.rs` contains the home's side.
//!
//! Deviations from the papers:
//! - Munin's annotations of single variables are one mode for all pages of a region, and its delayed update
//!   queue is the set of dirty pages.
//! - Copysets are kept at homes, as in SCASH, and never requested at releases, so a release takes two or four
//!   message delays, however many pages it has: diffs for one home go together, and so do a home's messages
//!   to one reader.

mod directory;
mod moving;
mod state;

use std::collections::{BTreeMap, VecDeque};

use hiroba_base::{Access, NodeId, PageId, PageRange, PageSet, VersionVector};
use hiroba_wire::{Message, PageCopy, PageDiff, PagesWanted, Ticket};
use rustc_hash::FxHashMap;

use self::directory::{Asked, Directory, Transaction};
use self::moving::Transfer;
pub use self::state::State;
use crate::anticipation::steps::Steps;
use crate::batches::batches;
use crate::coherence::{AfterRelease, Coherence, Site, WordOperation};
use crate::exclusive_runs::ExclusiveRuns;
use crate::home::{HomeChoice, HomePolicy, Located, MoveThreshold};
use crate::page_table::PageTable;
use crate::thread::wanted_beyond;
use crate::words::{Client, Operated};
use crate::{Done, Effect, Expected, NewContent, Outcome, ProtocolError, Waiter, diff, unexpected};

/// The number of updates that a copy takes before it rests for the first time, and the maximum.
const UPDATES_BEFORE_REST: u16 = 4;
const UPDATES_BEFORE_REST_MAX: u16 = 256;

/// The treatment of copies when their page has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Copies are given up.
    Invalidate,
    /// Copies take the changes.
    Update,
}

/// Eager release consistency on one node.
#[derive(Debug)]
pub struct Erc {
    mode: Mode,
    pages: PageTable<Page>,
    /// Pages written in the open interval: copies with a twin, and shared home pages.
    written: PageSet,
    /// Pages homed here of which copies were sent, while they were being written, in the interval that is
    /// being closed.
    sent_midway: Vec<PageId>,
    /// The changes of the interval that is being closed; no runs for a home page that is to be invalidated.
    changed: Vec<(PageId, Vec<u8>)>,
    /// Pages whose diffs are on their way.
    flushing: PageSet,
    /// The number of diffs that must still be performed before the open release ends.
    unperformed: u32,
    /// Atomic operations under way at homes, by waiting thread: the word (page and offset).
    operating_there: FxHashMap<Ticket, (PageId, u32)>,
    /// Atomic operations that the host is carrying out, in order: the client and the word's offset.
    operating_here: VecDeque<(Client, u32)>,
    /// Changes for which this node's homes await answers: at most one for a release, and one or two for an
    /// atomic operation, of any node.
    transactions: FxHashMap<u64, Transaction>,
    next_transaction: u64,
    /// Chooses other homes for pages that are homed here.
    home_choice: HomeChoice,
    steps: Steps,
    exclusive_runs: ExclusiveRuns,
}

#[derive(Debug)]
struct Page {
    access: Access,
    /// True if this node's copy is up to date.
    valid: bool,
    /// True if the host keeps a twin.
    twin: bool,
    fetch: Option<Fetch>,
    /// The number of updates since a thread is known to have touched the copy, and the number permitted.
    untouched_updates: u16,
    updates_before_rest: u16,
    /// The last known home. On the page's base: the current home, as soon as the new home has reported
    /// itself.
    known_home: NodeId,
    /// The number of moves of the home that are known here.
    moves: u32,
    /// The directory, on the page's home.
    directory: Option<Box<Directory>>,
    /// On the page's base: messages to a home that had given the page to one that has not reported itself. At
    /// most one request for each thread of other nodes.
    kept: Vec<Vec<u8>>,
}

impl Page {
    fn new(me: NodeId, base: NodeId) -> Page {
        Page {
            access: Access::None,
            valid: me == base,
            twin: false,
            fetch: None,
            untouched_updates: 0,
            updates_before_rest: UPDATES_BEFORE_REST,
            known_home: base,
            moves: 0,
            directory: (me == base).then(Box::default),
            kept: Vec::new(),
        }
    }
}

/// A copy that a thread waits for.
#[derive(Debug, Default)]
struct Fetch {
    waiters: Vec<Waiter>,
    wants_write: bool,
    /// True if a thread waits for it.
    demanded: bool,
    /// True if a request is under way.
    asked: bool,
    /// True if the page that comes may be older than changes that this node has received or sent.
    overtaken: bool,
}

impl Erc {
    /// Returns the protocol with no pages allocated and with homes that do not move.
    pub fn new(mode: Mode) -> Erc {
        Erc {
            mode,
            pages: PageTable::default(),
            written: PageSet::new(),
            sent_midway: Vec::new(),
            changed: Vec::new(),
            flushing: PageSet::new(),
            unperformed: 0,
            operating_there: FxHashMap::default(),
            operating_here: VecDeque::new(),
            transactions: FxHashMap::default(),
            next_transaction: 0,
            home_choice: HomeChoice::default(),
            steps: Steps::default(),
            exclusive_runs: ExclusiveRuns::default(),
        }
    }

    /// Lets homes move.
    pub fn moving_homes(mut self, policy: HomePolicy) -> Erc {
        self.home_choice.set_policy(policy);
        self
    }

    /// Has homes move above this threshold of evidence that another node would be the better home.
    pub fn moving_after(mut self, threshold: MoveThreshold) -> Erc {
        self.home_choice.set_threshold(threshold);
        self
    }

    fn page(&mut self, site: &Site, page_id: PageId) -> &mut Page {
        let (me, base) = (site.me, site.locate(page_id).home);
        self.pages.or_insert_with(page_id, || Page::new(me, base))
    }

    /// Notes that `home` sent a message as the page's home, so others should look for the page there. The
    /// base accepts only what new homes report of themselves.
    fn note_home(&mut self, site: &Site, page_id: PageId, home: NodeId) -> &mut Page {
        let is_base = site.is_home(page_id);
        let page = self.page(site, page_id);
        if !is_base {
            page.known_home = home;
        }
        page
    }

    /// Returns a page that a message names by its first granule.
    fn named(&self, site: &Site, page_id: PageId) -> Result<Located, ProtocolError> {
        let located = site.homes.locate(page_id).filter(|located| located.page == page_id);
        located.ok_or_else(|| unexpected(Expected::FirstGranule, format!("{page_id}")))
    }

    fn protect(&mut self, site: &mut Site, page_id: PageId, access: Access) {
        self.page(site, page_id).access = access;
        site.protect(page_id, access);
    }

    fn make_twin(&mut self, site: &mut Site, page_id: PageId) {
        let page_bytes = site.page_bytes(page_id);
        let page = self.page(site, page_id);
        if !std::mem::replace(&mut page.twin, true) {
            site.out.push(Effect::Twin { page: page_id, page_bytes });
        }
    }
}

/// Faults.
impl Erc {
    /// Handles a fault. Absent → clean or dirty by the home, which has the page's latest content (Sakae and
    /// others, section 2.2); clean, resting → dirty by a twin (Munin's copy of a page that goes onto the
    /// delayed update queue).
    fn handle_fault(&mut self, site: &mut Site, located: Located, wanted: Access, waiter: Option<Waiter>) {
        let page_id = located.page;
        if site.is_home(page_id) && !self.pages.contains_key(&page_id) {
            self.give_untouched(site, located);
            return waiter.into_iter().for_each(|waiter| site.out.wake(waiter, Outcome::Done));
        }
        let page = self.page(site, page_id);
        let wanted = wanted_beyond(page.access, wanted);
        if page.access >= wanted {
            // Two threads faulted on one page, or the host had to lower access for its own reasons.
            let access = page.access;
            self.protect(site, page_id, access);
        } else if page.directory.is_some() {
            self.home_choice.note_touch(&site.homes, site.me, site.me, page_id);
            self.give_home_page(site, page_id, wanted);
        } else if page.valid {
            if page.access == Access::None {
                let more = page.updates_before_rest * 2;
                page.updates_before_rest = more.min(UPDATES_BEFORE_REST_MAX);
            }
            self.give_copy(site, page_id, wanted);
        } else {
            let fetch = page.fetch.get_or_insert_default();
            fetch.waiters.extend(waiter);
            fetch.wants_write |= wanted == Access::Write;
            fetch.demanded = true;
            let is_new = !fetch.asked;
            self.request_copy(site, page_id);
            if is_new {
                let ahead = self.steps.follow(site, located);
                self.ask_ahead(site, ahead);
            }
            return;
        }
        waiter.into_iter().for_each(|waiter| site.out.wake(waiter, Outcome::Done));
    }

    /// Gives the program access to a page homed here that it has touched and no other node knows, and to
    /// pages that follow.
    fn give_untouched(&mut self, site: &mut Site, touched: Located) {
        let given = self.exclusive_runs.give(site, touched, |page| self.pages.contains_key(&page));
        for page_id in given.iter() {
            self.page(site, page_id).access = Access::Write;
        }
        self.home_choice.note_touch(&site.homes, site.me, site.me, touched.page);
        site.protect_all(&given, Access::Write);
    }

    /// Gives the program access to a copy.
    fn give_copy(&mut self, site: &mut Site, page_id: PageId, wanted: Access) {
        if wanted == Access::Write {
            self.make_twin(site, page_id);
        }
        let page = self.page(site, page_id);
        assert!(page.valid && page.directory.is_none(), "{page_id}: what is given is a good copy");
        page.untouched_updates = 0;
        let access = if page.twin { Access::Write } else { Access::Read };
        if access == Access::Write {
            self.written.insert(page_id);
        }
        self.protect(site, page_id, access);
    }

    /// Gives the program access to a page that is homed here.
    fn give_home_page(&mut self, site: &mut Site, page_id: PageId, wanted: Access) {
        let page = self.page(site, page_id);
        assert!(page.directory.is_some(), "{page_id}: a home page has a directory");
        assert!(page.valid, "{page_id}: a home page is always up to date");
        let is_exclusive = page.directory.as_ref().is_some_and(|directory| directory.is_exclusive());
        if is_exclusive {
            return self.protect(site, page_id, Access::Write);
        }
        if wanted == Access::Write {
            self.written.insert(page_id);
            if self.mode == Mode::Update {
                self.make_twin(site, page_id);
            }
        }
        self.protect(site, page_id, wanted);
    }

    /// Requests a copy for which a fetch has been noted, unless a request is under way or must wait until
    /// this node's diff is performed.
    fn request_copy(&mut self, site: &mut Site, page_id: PageId) {
        if self.flushing.contains(page_id) {
            return;
        }
        let me = site.me;
        let page = self.page(site, page_id);
        let home = page.known_home;
        assert!(
            page.fetch.is_none() || !page.valid && page.directory.is_none(),
            "{page_id}: what is here is not fetched"
        );
        if let Some(fetch) = &mut page.fetch
            && !std::mem::replace(&mut fetch.asked, true)
        {
            site.out.send(home, &Message::CopyRequest { page: page_id, requester: me });
        }
    }

    /// Requests those of the pages that are absent and that no thread waits for.
    fn ask_ahead(&mut self, site: &mut Site, pages: Vec<PageId>) {
        let mut homes: BTreeMap<NodeId, PageSet> = BTreeMap::new();
        for page_id in pages {
            let is_flushing = self.flushing.contains(page_id);
            let page = self.page(site, page_id);
            if !page.valid && page.fetch.is_none() && !is_flushing {
                page.fetch = Some(Fetch { asked: true, ..Fetch::default() });
                homes.entry(page.known_home).or_default().insert(page_id);
            }
        }
        for (home, pages) in homes {
            let wanted = vec![PagesWanted { needed: VersionVector::new(), pages }];
            site.out.send(home, &Message::PagesRequest { wanted, descending: false });
        }
    }

    fn handle_pages_reply(
        &mut self,
        site: &mut Site,
        from: NodeId,
        copies: &[PageCopy],
        content: &[u8],
    ) -> Result<(), ProtocolError> {
        let mut offset = 0;
        for copy in copies {
            let page_id = &copy.page;
            let (located, found) = site.find_content(copy, &mut offset, content)?;
            let pages = located.span();
            let page = self.note_home(site, *page_id, from);
            let Some(mut fetch) = page.fetch.take() else {
                return Err(unexpected(Expected::RequestedPage, format!("{page_id}")));
            };
            let received = found.map_or(NewContent::Zero, NewContent::Received);
            if std::mem::take(&mut fetch.overtaken) {
                fetch.asked = false;
                page.fetch = Some(fetch);
                self.request_copy(site, *page_id);
                continue;
            }
            page.valid = true;
            let merge = page.twin;
            let fetched = u32::from(fetch.demanded);
            let prefetched = 1 - fetched;
            site.out.push(Effect::Install { pages, content: received, merge, fetched, prefetched });
            self.give_copy(site, *page_id, if fetch.wants_write { Access::Write } else { Access::Read });
            fetch.waiters.into_iter().for_each(|waiter| site.out.wake(waiter, Outcome::Done));
        }
        Ok(())
    }
}

/// Releases: diffs to the homes (Munin's flush of the delayed update queue).
impl Erc {
    /// Ends the interval: has the pages on the delayed update queue compared with their twins. Dirty → clean;
    /// home, written → home, shared, clean.
    fn close_interval(&mut self, site: &mut Site) {
        assert!(
            self.changed.is_empty() && self.sent_midway.is_empty(),
            "what the interval before has changed is sent"
        );
        let written = std::mem::take(&mut self.written);
        let (mut lowered, mut compared) = (PageSet::new(), Vec::new());
        for page_id in written.iter() {
            let page = self.page(site, page_id);
            let has_readers = page.directory.as_ref().is_none_or(|directory| !directory.is_exclusive());
            if page.access == Access::Write && page.twin && has_readers {
                page.access = Access::Read;
                lowered.insert(page_id);
            }
            let is_midway = page.directory.as_ref().is_some_and(|directory| !directory.midway.is_empty());
            if std::mem::take(&mut page.twin) {
                compared.push(page_id);
                self.sent_midway.extend(is_midway.then_some(page_id));
            } else if has_readers {
                // Its copies are about to be invalidated, so it becomes exclusive and stays writable.
                self.changed.push((page_id, Vec::new()));
            }
        }
        // Stores must fault again before the page is compared. Otherwise a sibling's store could be missing
        // in both diffs.
        site.protect_all(&lowered, Access::Read);
        site.await_answers(compared.len());
        site.out.extend(compared.into_iter().map(|page| Effect::Diff { page, keep_twin: false }));
    }

    /// Sends diffs to the homes. The release waits until all nodes that have copies have answered: that makes
    /// release consistency eager (Keleher, Cox, Zwaenepoel 1992, of Munin's write-shared protocol).
    fn flush_changes(&mut self, site: &mut Site) {
        assert_eq!(self.unperformed, 0, "the diffs of the interval before are performed");
        assert!(self.flushing.is_empty(), "no diff of the interval before is on its way");
        for page_id in std::mem::take(&mut self.sent_midway) {
            self.recall_midway(site, page_id);
        }
        let mut own = Vec::new();
        let mut homes: BTreeMap<NodeId, Vec<(PageId, Vec<u8>)>> = BTreeMap::new();
        for (page_id, runs) in std::mem::take(&mut self.changed) {
            let page = self.page(site, page_id);
            if page.directory.is_some() {
                own.push((page_id, runs));
                continue;
            }
            if let Some(fetch) = &mut page.fetch {
                // The reply on its way may have left the home before this diff reaches it.
                fetch.overtaken |= fetch.asked;
            }
            homes.entry(page.known_home).or_default().push((page_id, runs));
            self.flushing.insert(page_id);
            self.unperformed += 1;
        }
        if self.unperformed > 0 {
            site.await_answers(1);
        }
        for (home, diffs) in homes {
            for batch in batches(&diffs) {
                site.out.send(home, &Message::EagerDiffs { writer: site.me, diffs: batch });
            }
        }
        self.perform_own(site, &own);
    }

    fn handle_performed(&mut self, site: &mut Site, count: u32) -> Result<(), ProtocolError> {
        let unperformed = self.unperformed.checked_sub(count).filter(|_| count > 0);
        self.unperformed = unperformed
            .ok_or_else(|| unexpected(Expected::AnswerToOwnDiffs, format!("one to {count} diffs")))?;
        assert!(site.is_closing(), "the release that has sent diffs waits until they are performed");
        if self.unperformed == 0 {
            site.answered();
            for page_id in std::mem::take(&mut self.flushing).iter() {
                self.request_copy(site, page_id);
            }
        }
        Ok(())
    }
}

/// Messages of homes to nodes that have copies.
impl Erc {
    /// Handles an invalidation, one of the two modes that a program can choose (Sakae and others, section
    /// 2.2). Clean, resting → absent; dirty → dirty, invalidated.
    fn handle_invalidation(
        &mut self,
        site: &mut Site,
        from: NodeId,
        transaction: u64,
        pages: &PageSet,
    ) -> Result<(), ProtocolError> {
        let mut voided = PageSet::new();
        for page_id in pages.iter() {
            self.named(site, page_id)?;
            let page = self.note_home(site, page_id, from);
            if page.directory.is_some() {
                return Err(unexpected(
                    Expected::InvalidationOfCopies,
                    format!("one of {page_id}, homed here"),
                ));
            }
            page.valid = false;
            if let Some(fetch) = &mut page.fetch {
                fetch.overtaken |= fetch.asked;
            }
            if std::mem::replace(&mut page.access, Access::None) > Access::None {
                voided.insert(page_id);
            }
        }
        site.invalidate(&voided, |page| self.access(page));
        settle_copies(site, from, transaction, pages.iter().next(), PageSet::new());
        Ok(())
    }

    /// Handles an update, the other mode: copies take the changes. A copy that is not touched rests, and then
    /// leaves, like one of Munin's whose updates time out (Carter, Bennett, Zwaenepoel 1995). Clean → resting
    /// → absent.
    fn handle_update(
        &mut self,
        site: &mut Site,
        from: NodeId,
        transaction: u64,
        diffs: &[PageDiff<'_>],
    ) -> Result<(), ProtocolError> {
        let competes = self.mode == Mode::Update;
        let (mut left, mut resting) = (PageSet::new(), PageSet::new());
        for PageDiff { page: page_id, runs } in diffs {
            self.named(site, *page_id)?;
            diff::check(runs, site.page_bytes(*page_id) as usize)?;
            let page = self.note_home(site, *page_id, from);
            if page.directory.is_some() {
                return Err(unexpected(Expected::UpdateOfCopies, format!("one of {page_id}, homed here")));
            }
            if let Some(fetch) = &mut page.fetch {
                fetch.overtaken |= fetch.asked;
                continue;
            }
            if competes && page.access == Access::None && !page.twin {
                page.valid = false;
            }
            if !page.valid {
                left.insert(*page_id);
                continue;
            }
            page.untouched_updates = page.untouched_updates.saturating_add(1);
            let may_rest = competes && !page.twin && page.access > Access::None;
            if may_rest && page.untouched_updates >= page.updates_before_rest {
                page.access = Access::None;
                resting.insert(*page_id);
            }
            site.out.push(Effect::Apply { page: *page_id, runs: runs.to_vec() });
        }
        site.invalidate(&resting, |page| self.access(page));
        settle_copies(site, from, transaction, diffs.first().map(|diff| diff.page), left);
        Ok(())
    }
}

/// Answers a home that all copies are as it wants them, except those of pages whose copysets this node has
/// `left`.
fn settle_copies(site: &mut Site, home: NodeId, transaction: u64, first: Option<PageId>, left: PageSet) {
    let page = first.expect("a message without a page has no protocol");
    site.out.send(home, &Message::CopiesSettled { page, transaction, left });
}

/// Atomic words: the requesting side.
impl Erc {
    /// Begins an operation, which the home carries out. This node's plain stores are performed before, as at
    /// a release.
    fn begin_operation(&mut self, site: &mut Site, asked: WordOperation) {
        let is_homed_here = self.page(site, asked.page).directory.is_some();
        let may_be_ahead = self.written.contains(asked.page) || self.flushing.contains(asked.page);
        if !is_homed_here && may_be_ahead {
            // The operation must find this node's own plain stores at the home: their diff goes first.
            site.release_for(AfterRelease::Operate(asked));
        } else {
            self.carry_operation(site, asked);
        }
    }

    fn carry_operation(&mut self, site: &mut Site, asked: WordOperation) {
        let WordOperation { page: page_id, offset, operation, waiter } = asked;
        let page = self.page(site, page_id);
        if page.directory.is_some() {
            return self.operate_at_home(
                site,
                Asked { client: Client::Here(waiter), page: page_id, offset, operation },
            );
        }
        let (home, ticket, needed) = (page.known_home, waiter.0, VersionVector::new());
        let before = self.operating_there.insert(ticket, (page_id, offset));
        assert!(before.is_none(), "thread {ticket} waits for one operation at a time");
        site.out.send(home, &Message::AtomicRequest { ticket, page: page_id, offset, operation, needed });
    }
}

impl Coherence for Erc {
    fn move_homes(&mut self, policy: HomePolicy) {
        self.home_choice.set_policy(policy);
    }

    fn can_move_homes(&self) -> bool {
        true
    }

    fn access(&self, page: PageId) -> Access {
        self.pages.get(&page).map_or(Access::None, |page| page.access)
    }

    fn known_pages(&self) -> Vec<PageId> {
        self.pages.pages().collect()
    }

    fn state(&self, _site: &Site, page: Located) -> Option<Result<&'static str, String>> {
        let page = self.pages.get(&page.page)?;
        Some(State::of(page, self.mode).map(State::name).ok_or_else(|| format!("{page:?}")))
    }

    fn fault(&mut self, site: &mut Site, page: Located, wanted: Access, waiter: Option<Waiter>) {
        self.handle_fault(site, page, wanted, waiter);
    }

    fn operate(&mut self, site: &mut Site, operation: WordOperation) {
        self.begin_operation(site, operation);
    }

    fn operate_after_release(&mut self, site: &mut Site, operation: WordOperation) {
        self.carry_operation(site, operation);
    }

    fn prefetch(&mut self, site: &mut Site, ranges: &[PageRange]) {
        let hinted = site.hinted(ranges);
        self.ask_ahead(site, hinted);
    }

    fn handle_message(
        &mut self,
        site: &mut Site,
        from: NodeId,
        message: &Message<'_>,
    ) -> Result<(), ProtocolError> {
        match message {
            Message::CopyRequest { page, requester } => {
                self.handle_copy_request(site, from, *page, *requester)
            }
            Message::PagesRequest { wanted, .. } => self.handle_pages_request(site, from, wanted),
            Message::PagesReply { copies, content } => self.handle_pages_reply(site, from, copies, content),
            Message::EagerDiffs { writer, diffs } => self.handle_diffs(site, from, *writer, diffs),
            Message::DiffsPerformed { count, .. } => self.handle_performed(site, *count),
            Message::InvalidateCopies { transaction, pages } => {
                self.handle_invalidation(site, from, *transaction, pages)
            }
            Message::UpdateCopies { transaction, diffs } => {
                self.handle_update(site, from, *transaction, diffs)
            }
            Message::CopiesSettled { transaction, left, .. } => {
                self.handle_settled(site, from, *transaction, left)
            }
            Message::AtomicRequest { ticket, page, offset, operation, .. } => {
                let client = Client::There(from, *ticket);
                let asked = Asked { client, page: *page, offset: *offset, operation: *operation };
                self.handle_atomic_request(site, from, asked)
            }
            Message::AtomicForward { requester, ticket, page, offset, operation } => {
                let client = Client::There(*requester, *ticket);
                let asked = Asked { client, page: *page, offset: *offset, operation: *operation };
                self.handle_atomic_request(site, from, asked)
            }
            Message::AtomicReply { ticket, page, outcome, turn } => {
                let Some((asked, offset)) = self.operating_there.remove(ticket) else {
                    let got = format!("one for thread {ticket}, {page}");
                    return Err(unexpected(Expected::RequestedAtomic, got));
                };
                let operated = Operated { page: asked, offset, turn: *turn, outcome: *outcome };
                site.end_operation(Waiter(*ticket), operated);
                Ok(())
            }
            Message::HomeTransfer { page, moves, copyset, turns } => {
                self.handle_transfer(site, from, Transfer { page: *page, moves: *moves, copyset, turns })
            }
            Message::HomeMoved { page, moves } => self.handle_moved(site, from, *page, *moves),
            _ => Err(unexpected(Expected::EagerMessage, "another".to_owned())),
        }
    }

    fn handle_done(&mut self, site: &mut Site, done: Done) {
        match done {
            Done::Diff { page, runs } if !runs.is_empty() => self.changed.push((page, runs)),
            Done::Diff { .. } | Done::Merged { .. } => {}
            Done::Atomic { page, outcome } => self.finish_operation(site, page, outcome),
            other => unreachable!("nobody asked for {other:?}"),
        }
    }

    fn close(&mut self, site: &mut Site) {
        self.close_interval(site);
    }

    fn flush(&mut self, site: &mut Site) {
        self.flush_changes(site);
    }

    fn handle_meeting(&mut self, site: &mut Site, _: &hiroba_base::VectorTimestamp) {
        self.place_touched(site);
        self.move_modified(site);
    }
}
