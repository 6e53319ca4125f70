//! Homes that move, under home-based lazy release consistency.
//!
//! Read first: Harada, Ishikawa, Hori, Tezuka, Sumimoto, Takahashi, *Dynamic Home Node Reallocation on
//! Software Distributed Shared Memory*, HPC Asia 2000. A page that one node writes in every phase and whose
//! home is another node costs a twin, a diff and a message each time; on its writer it costs nothing. So
//! homes give pages away: a page's home counts which nodes modify or fetch it, and [`HomeChoice`] chooses the
//! next home.
//!
//! The home proposes such moves when it arrives at a collective, and all nodes learn of them when they
//! depart. The new home takes over in four steps. No node ever receives a request about a page for which it
//! is not responsible, and no message is forwarded:
//!
//! 1. A node that departs takes the **next home** for the page's home from then on, and informs the **last
//!    home** ([`Message::HomeMovesHeard`]). Links are in order, so nothing that it sends to the last home
//!    after that message concerns the page.
//! 2. The next home first lets the page rest: a release sends its threads' writes, and takes their access
//!    away. Its message to the last home says which of the pages it holds, in which version. Requests and
//!    diffs that arrive from now on wait in a queue.
//! 3. The last home remains home until it has the messages of all other nodes: then it has received
//!    everything that was ever sent to it about the page. It also lets the page rest by a release, hands it
//!    over ([`Message::HomeHandedOver`]), with the content if the next home lacks some of it, and keeps an
//!    ordinary copy.
//! 4. The next home applies the queued diffs in the order in which they came, and then answers the queued
//!    requests.
//!
//! | node | before its departure | then | from when | then |
//! |---|---|---|---|---|
//! | last home | home | home | all nodes know the move | copy |
//! | next home | copy | *coming*: no access, requests and diffs queue | the page is handed over | home, shared |
//! | others | of the last home | of the next home | | |
//!
//! The protocol that owns the pages reports what happens to them, shows their state ([`Pages`]), and does
//! what the answers say:
//!
//! | event | method | answer |
//! |---|---|---|
//! | a node touches, fetches or writes a page that is homed here | `touched`, `fetched`, `modified`, `written_here` | – |
//! | this node arrives at a collective | `arrives` | moves to propose |
//! | all nodes have agreed on moves | `agreed` | pages whose access goes, and pages to rest |
//! | another node reports that it knows the moves | `heard` | pages to rest |
//! | a release lets pages rest | `to_rest`, `begin_rest`, `rested` | pages that are copies from now on |
//! | a page is handed over, and its content comes | `handed_over`, `content_came` | pages that are homed here from now on |
//! | a message comes that is ahead of the moves | `defers`, `keeps_diff` | whether it waits |
//!
//! `moves/claims.rs` has further methods for pages that are claimed. In a protocol whose homes do not move,
//! all of this state is empty.
//!
//! Why this is correct. If the writer of a diff had not departed, the diff goes to the last home and arrives
//! there before the writer's `HomeMovesHeard`, so the version that is handed over contains it. Later diffs go
//! to the next home, on one link, in order, and wait there until the earlier ones have arrived. A node that
//! has not departed keeps back the notices of intervals that ended after their node's departure (`epoch` of
//! [`Knowledge`](hiroba_wire::Knowledge)), so no node asks the last home for diffs that went to the next one.
//! If a node has departed and asks the next home before that has departed, the request waits there, as for a
//! region that is not known yet.
//!
//! An interval that a home publishes for a writer covers all diffs that the writer sent there, but not a page
//! that is still coming (`hlrc/one_sided.rs`). So the first fetch after a move is a message, which waits for
//! the content. By then the frame contains all diffs that were sent to the last home, and later ones are
//! published as usual. The next home also fetches no coming page ahead: between its departure and its
//! `HomeMovesHeard` it still takes the last home for the page's home, and the last home may not receive the
//! diffs that the next home knows of by then.
//!
//! A node's links with the two homes are not ordered with each other. So the last home's answers may arrive
//! after the next home's answers to later requests. Versions show which intervals such an answer lacks. The
//! result of an operation on an atomic word is in no version yet: if the last home's result arrives after the
//! move, the copy is dropped instead of taking it; and a page that the last home has sent is requested again
//! if the node has operated on it since its last release.
//!
//! A node may also ask to become the home of a page that it alone has written: `moves/claims.rs`.
//!
//! Under automatic update, diffs may be parts of intervals that are still open: [`crate::aurc`] argues why
//! that is correct.
//!
//! **First touches.** Pages of regions with this placement
//! ([`Placement::FirstTouch`](hiroba_wire::Placement)) are homed in blocks at first. Each moves once, to the
//! node that touches it first, at the next collective at which its home arrives. The first toucher is the
//! node whose request came first with a thread waiting for it, or whose diff came first, or the home itself,
//! if it faulted first. Fetching ahead does not count as a touch.
//!
//! The root of the tree refuses all moves of pages whose homes are busy; these keep the pages that they have
//! proposed to give (`consistency/converting.rs`).
//!
//! Bounds: each home has one round of moves under way, of at most [`MOVES_PER_HOME_MAX`] pages; a queue
//! contains what would otherwise have been applied at once. Pages with atomic words do not move, because a
//! word's last operations may be in no version yet.
//!
//! [`MOVES_PER_HOME_MAX`]: hiroba_wire::MOVES_PER_HOME_MAX

mod claims;
mod coming;
mod giving;

use std::collections::{BTreeMap, BTreeSet};

use hiroba_base::{IntervalSeq, NodeId, PageId, PageSet, VersionVector};
use hiroba_wire::{Message, MoveKind, PageDiff};
use rustc_hash::FxHashMap;

use self::claims::Claims;
pub(crate) use self::coming::{Arrival, QueuedDiff, Settled};
use self::coming::{Coming, ComingPages};
pub(crate) use self::giving::HandedOver;
use self::giving::{Giving, Round};
use crate::coherence::{PageMove, Site};
use crate::home::{HomeChoice, HomePolicy, MoveThreshold};
use crate::{Fact, ProtocolError};

/// The state of pages that a protocol shows to its moves, and the changes that it makes for them.
pub(crate) trait Pages {
    /// Returns whether threads have operated on atomic words of a page that is homed here, or `None` if this
    /// node has no state of the page.
    fn has_words(&self, page: PageId) -> Option<bool>;

    /// Returns the intervals that this node's frame of the page contains.
    fn version(&self, page: PageId) -> Option<&VersionVector>;

    /// Returns the version of the page if this node has a valid copy.
    fn good_version(&self, page: PageId) -> Option<&VersionVector>;

    /// Returns true if the page's diff may be withheld from its home: the page was written before, its copy
    /// is valid, no fetch is under way, and this node has not operated on its words since the last release.
    fn may_be_claimed(&self, page: PageId) -> bool;

    /// Returns true if this node reads the home's frames itself, without a message.
    fn reads_itself(&self, home: NodeId) -> bool;

    /// Removes and returns, for pages that leave, the numbers of operations on their atomic words: by page,
    /// the offset and number of each word.
    fn take_turns(&mut self, leaves: &dyn Fn(PageId) -> bool) -> FxHashMap<PageId, Vec<(u32, u64)>>;

    /// Notes that the page's home has changed, so that the last home's answers to operations on its words may
    /// be late.
    fn overtake(&mut self, page: PageId);
}

/// The state of home moves on one node.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// Chooses other homes for pages that are homed here.
    choice: HomeChoice,
    /// Pages homed elsewhere that should be homed here.
    claims: Claims,
    /// Pages that this node gives away.
    giving: Giving,
    /// Pages whose home this node will be.
    coming: ComingPages,
    /// Pages that have moved and have not been fetched from their new homes yet.
    unfetched: PageSet,
    /// This node's latest interval that all nodes had seen at the last collective.
    seen_by_all: IntervalSeq,
}

/// The actions of the protocol after all nodes have agreed on moves, in this order.
#[derive(Debug)]
#[must_use]
pub(crate) struct Agreed {
    /// Pages to which the program loses access before its threads go on, because stores before the pages rest
    /// would be compared and sent. The protocol reports those that were accessible ([`Moves::were_open`]).
    pub(crate) closed: PageSet,
    /// True if a release must let coming pages rest.
    pub(crate) must_rest: bool,
    /// Leaving pages that must rest.
    pub(crate) leaving: Vec<PageId>,
}

impl Moves {
    /// Sets the policy by which homes move.
    pub(crate) fn set_policy(&mut self, policy: HomePolicy) {
        self.choice.set_policy(policy);
    }

    /// Sets the threshold above which a home moves.
    pub(crate) fn set_threshold(&mut self, threshold: MoveThreshold) {
        self.choice.set_threshold(threshold);
    }

    /// Returns true if pages may get other homes.
    pub(crate) fn are_on(&self, site: &Site) -> bool {
        self.choice.is_on(&site.homes)
    }

    /// Returns true if this node is about to become the page's home.
    pub(crate) fn is_coming(&self, page: PageId) -> bool {
        self.coming.pages.contains_key(&page)
    }

    /// Returns true if the page is coming, or all nodes have agreed that it leaves.
    pub(crate) fn is_moving(&self, page: PageId) -> bool {
        let leaves = |round: &Round| round.is_agreed && round.next_home(page).is_some();
        self.is_coming(page) || self.giving.round.as_ref().is_some_and(leaves)
    }

    /// Returns the next homes of the pages that rest because they leave.
    pub(crate) fn next_homes(&self) -> BTreeSet<NodeId> {
        let resting = self.giving.round.iter().filter(|round| round.is_resting());
        resting.flat_map(|round| round.next_homes()).collect()
    }

    /// Has the page stay here: it does not belong to the protocol any more.
    pub(crate) fn gave_up(&mut self, page: PageId) {
        self.choice.leave_out(page);
    }

    /// Returns true if no thread here may touch the page, because it is coming or leaving.
    pub(crate) fn keeps_away(&self, page: PageId) -> bool {
        self.is_coming(page) || self.giving.round.as_ref().is_some_and(|round| round.keeps_away(page))
    }

    /// Returns true if the page must be fetched by message, because it has moved and its content may still be
    /// on the way to its home.
    pub(crate) fn must_be_requested(&self, page: PageId) -> bool {
        self.unfetched.contains(page)
    }

    /// Notes that the page's home has sent it by message, so that its content is there. An answer of its last
    /// home, which may come after the move, does not show that.
    pub(crate) fn came(&mut self, page: PageId) {
        self.unfetched.remove(page);
    }
}

/// Reports of the protocol about the use of pages that are homed here.
impl Moves {
    /// Notes that a thread of `node` has touched the page.
    pub(crate) fn touched(&mut self, site: &Site, page: PageId, node: NodeId) {
        self.choice.note_touch(&site.homes, site.me, node, page);
    }

    /// Notes that `node` fetches the page.
    pub(crate) fn fetched(&mut self, page: PageId, node: NodeId) {
        self.choice.note_fetched(page, node);
    }

    /// Notes that `writer` has changed `bytes` bytes of the page, which this node has written last in
    /// interval `own`.
    pub(crate) fn modified(
        &mut self,
        site: &Site,
        page: PageId,
        writer: NodeId,
        bytes: usize,
        own: IntervalSeq,
    ) {
        self.choice.note_modified(page, writer, bytes);
        // The home's choice counts this node's own writes only of pages that it has an account of.
        if self.has_just_ended(own) {
            self.written_here(site, page);
        }
        // The page may have come to the writer with others before any thread touched it.
        self.touched(site, page, writer);
    }

    /// Notes that this node has written the page in the interval that is being closed.
    pub(crate) fn written_here(&mut self, site: &Site, page: PageId) {
        if self.are_on(site) {
            self.choice.note_written_here(page, site.me, site.page_bytes(page));
        }
    }
}

/// Contended pages.
impl Moves {
    /// Notes that all nodes have seen this node's intervals through `seen_by_all`: they have met.
    pub(crate) fn meet(&mut self, seen_by_all: IntervalSeq) {
        self.seen_by_all = seen_by_all;
    }

    /// Handles a notice that another node has written the page, which this node has written last in interval
    /// `own`. If both have written it since the last collective, it is contended.
    pub(crate) fn noticed(&mut self, page: PageId, own: IntervalSeq) {
        self.claims.note_other_writer(page, self.has_just_ended(own));
    }

    /// Returns true if this node has ended interval `own` since the last collective.
    fn has_just_ended(&self, own: IntervalSeq) -> bool {
        own > self.seen_by_all
    }
}

/// Agreement of all nodes.
impl Moves {
    /// Handles that all nodes have agreed on these moves.
    pub(crate) fn agreed(
        &mut self,
        site: &mut Site,
        pages: &mut impl Pages,
        moves: &[PageMove],
    ) -> Result<Agreed, ProtocolError> {
        // Diffs for pages' last homes must be sent before the message that says that this node knows the
        // move.
        self.end_claims(site, moves);
        let mut heard: BTreeMap<NodeId, PageId> = BTreeMap::new();
        let is_free = self.giving.round.as_ref().is_none_or(|round| !round.is_agreed);
        if is_free {
            self.giving.withdraw_refused(moves);
        }
        for PageMove { page, to, kind } in moves {
            let from = site.locate(*page).home;
            if *kind == MoveKind::Kept {
                continue;
            } else if from == site.me {
                self.agree_to_give(site, is_free, PageMove { page: *page, to: *to, kind: *kind })?;
            } else if *to == site.me {
                self.coming.expect(*page, from);
            } else {
                heard.entry(from).or_insert(*page);
                self.follow(site, pages, *page, *to);
            }
        }
        for (from, page) in heard {
            if !self.coming.rests_before_word_to(from) {
                site.out.send(from, &Message::HomeMovesHeard { page, held: Vec::new() });
            }
        }
        if is_free && self.giving.round.is_some() {
            // Other nodes may know of claims before this node.
            let ahead = std::mem::take(&mut site.deferred);
            site.out.keep(ahead);
        }
        let closed = moves.iter().map(|moved| moved.page).filter(|page| self.is_coming(*page)).collect();
        let must_rest = self.coming.must_rest();
        Ok(Agreed { closed, must_rest, leaving: self.giving.to_hand_over() })
    }

    /// Takes `to` for the page's home from now on.
    fn follow(&mut self, site: &mut Site, pages: &mut impl Pages, page: PageId, to: NodeId) {
        site.homes.move_page(page, to);
        // The last home's answers may arrive after those of the next home, which acts later.
        pages.overtake(page);
        if pages.reads_itself(to) {
            self.unfetched.insert(page);
        }
        site.tell(|| Some(Fact::Moved { pages: [page].into_iter().collect(), to }));
    }
}

/// Releases that let coming and leaving pages rest.
impl Moves {
    /// Returns the pages to which a release for moves takes the program's access.
    pub(crate) fn to_rest(&self) -> PageSet {
        self.coming.unrested().chain(self.giving.to_hand_over()).collect()
    }

    /// Returns the same pages when the interval is being closed that is their last one in their present
    /// roles.
    pub(crate) fn begin_rest(&mut self) -> PageSet {
        let resting = self.to_rest();
        self.giving.begin_rest();
        self.coming.begin_rest();
        resting
    }

    /// Notes that the program has lost its access to these pages. It regains access to coming ones when they
    /// have come, and to leaving ones when they are copies.
    pub(crate) fn were_open(&mut self, pages: &PageSet) {
        let mut round = self.giving.round.as_mut();
        for page in pages.iter() {
            if let Some(coming) = self.coming.pages.get_mut(&page) {
                coming.was_open = true;
            } else if let Some(round) = round.as_mut().filter(|round| round.keeps_away(page)) {
                round.open.insert(page);
            }
        }
    }

    /// Continues after the release: informs last homes, and hands pages over to their next homes. Returns the
    /// pages handed over.
    pub(crate) fn rested(&mut self, site: &mut Site, pages: &mut impl Pages) -> HandedOver {
        for (from, rested) in self.coming.take_rested() {
            self.tell_what_is_here(site, pages, from, &rested);
        }
        self.hand_over(site, pages)
    }

    /// Notes that the page was handed over to its next home, and is a copy here.
    pub(crate) fn became_copy(&mut self, site: &mut Site, pages: &mut impl Pages, page: PageId, to: NodeId) {
        self.follow(site, pages, page, to);
        self.choice.forget(page);
    }
}

/// Messages that arrive before the moves that they follow from.
impl Moves {
    /// Defers a message to the home of pages if this node does not know yet that it will be their home.
    /// Returns true if deferred.
    pub(crate) fn defers(&self, site: &mut Site, from: NodeId, message: &Message<'_>) -> bool {
        let defers =
            self.are_on(site) && (is_for_next_home(site, message) || self.is_of_claims_ahead(site, message));
        if defers {
            site.deferred.push((from, message.encode()));
        }
        defers
    }

    /// Returns true if the sender knows of a claim to a page homed here that this node does not know yet.
    fn is_of_claims_ahead(&self, site: &Site, message: &Message<'_>) -> bool {
        let Message::HomeMovesHeard { page, .. } = message else { return false };
        let is_leaving = |round: &Round| round.next_home(*page).is_some();
        self.claims.are_on() && site.is_home(*page) && !self.giving.round.as_ref().is_some_and(is_leaving)
    }

    /// Queues the diff of a page that is coming. Returns true if queued. `is_early` means that the diff came
    /// before its interval's end.
    pub(crate) fn keeps_diff(
        &mut self,
        diff: &PageDiff<'_>,
        writer: NodeId,
        seq: IntervalSeq,
        is_early: bool,
    ) -> bool {
        let Some(coming) = self.coming.pages.get_mut(&diff.page) else { return false };
        coming.diffs.push(QueuedDiff { writer, seq, runs: diff.runs.to_vec(), is_early });
        true
    }

    /// Returns true if an interval of `writer` must not be published yet because diffs of that node wait. It
    /// is published after they have been applied ([`take_settled`](Self::take_settled)).
    pub(crate) fn puts_off(&mut self, writer: NodeId, seq: IntervalSeq) -> bool {
        let is_of_writer = |coming: &Coming| coming.diffs.iter().any(|diff| diff.writer == writer);
        let puts_off = self.coming.pages.values().any(is_of_writer);
        if puts_off {
            self.coming.unpublished.insert(writer, seq);
        }
        puts_off
    }
}

/// Returns true if the message is for the home of pages that are homed elsewhere, as far as this node knows:
/// its sender knows of a later move.
fn is_for_next_home(site: &Site, message: &Message<'_>) -> bool {
    let is_elsewhere = |page: PageId| {
        site.homes.locate(page).is_some_and(|located| located.page == page && located.home != site.me)
    };
    match message {
        Message::PageRequest { page, .. } | Message::AtomicRequest { page, .. } => is_elsewhere(*page),
        Message::PagesRequest { wanted, .. } => {
            wanted.iter().flat_map(|group| group.pages.iter()).any(is_elsewhere)
        }
        Message::Diffs { diffs, .. } | Message::EarlyDiffs { diffs, .. } => {
            diffs.iter().any(|diff| is_elsewhere(diff.page))
        }
        _ => false,
    }
}
