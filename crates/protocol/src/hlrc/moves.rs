//! Homes that move.
//!
//! Read first: Harada, Ishikawa, Hori, Tezuka, Sumimoto, Takahashi, *Dynamic Home Node Reallocation on Software Distributed Shared Memory*, HPC
//! Asia 2000. A page that one node writes in every phase and that is homed on another costs a twin, a diff and a message each time; on its
//! writer it costs nothing. So homes give pages away: a page's home sees who modifies it, or fetches it, and [`HomeChoice`] says to whom it should go.
//!
//! The home names such pages when it arrives at a collective, and all are told when they depart. The new home takes over in four steps, so that
//! nobody is ever asked about a page that it does not answer for, and nothing has to be passed on:
//!
//! 1. Whoever departs takes the page for homed on the **next home** from then on, and tells the **last home** that it has heard
//!    ([`Message::HomeMovesHeard`]). Behind that word, as links are in order, it sends nothing about the page to the last home any more.
//! 2. The next home lets the page rest first: a release sends what its threads have written, and takes their access away. With its word
//!    it tells which of the pages it holds, in which version. Requests and diffs that come from now on wait in a queue.
//! 3. The last home goes on as home until all others' words are there: all that was ever sent to it about the page has come. It lets
//!    the page rest likewise, by a release, hands it over ([`Message::HomeHandedOver`]), with content if the next home lacks some of it, and
//!    has an ordinary copy left.
//! 4. The next home applies the diffs that wait, in the order in which they came, and then answers what it is asked.
//!
//! | node | before its departure | then | from when | then |
//! |---|---|---|---|---|
//! | last home | home | home | all have heard | copy |
//! | next home | copy | *coming*: no access, requests and diffs queue | the page is handed over | home, shared |
//! | others | of the last home | of the next home | | |
//!
//! Why this is right. A diff goes to the last home if its writer had not departed, and comes there before the writer's word: the version
//! that is handed over holds it. Later diffs go to the next home, on one link, in order; they wait until the earlier ones are there.
//! Knowledge of an interval that ended after its node's departure is kept by who has not departed (`epoch` of [`Knowledge`](hiroba_wire::Knowledge)),
//! so nobody asks the last home for what went to the next one. Who is ahead and asks the next home before that has departed waits
//! there, like for a region that is not known yet.
//!
//! The word that a home publishes of a writer is about all diffs that the writer sent there, and says nothing of a page that is still
//! coming ([`one_sided`](super::one_sided)). So the first fetch after a move is a message, which waits for the content; by then the frame holds
//! all that was sent to the last home, and what comes later is published as ever. And the next home fetches nothing ahead that is coming: between its
//! departure and its word it still takes the page for homed there, where what it knows of by then need not come.
//!
//! A node's links with both homes are not ordered. So the last home's answers may come behind the next one's to what was asked later. What they lack
//! of intervals, versions tell. The result of an operation on an atomic word is in no version yet: if the last home's comes after the move,
//! the copy is dropped instead of taking it, and a page that the last home has sent is asked for again if the node has operated on it since
//! its last release.
//!
//! A node may also become the home of a page that it alone has written by asking for it:
//! [`claims`](super::claims).
//!
//! Under automatic update diffs may come that are parts of intervals still open: [`crate::aurc`] argues for them.
//!
//! **First touches.** Pages of regions that are placed so ([`Placement::FirstTouch`](hiroba_wire::Placement)) are homed in blocks at first, and each
//! goes once to the node that has touched it before all others, as soon as it arrives at a collective behind that: whose request that somebody waits
//! for, or whose diff, came first, or who faulted on it as its home. What is fetched ahead is not touched by that.
//!
//! What is bounded: each home has one round of moves under way, of [`MOVES_PER_HOME_MAX`] pages; a queue holds what would have been
//! applied at once. Pages with atomic words stay: a word's last operations may be in no version yet.

use std::collections::BTreeMap;

use hiroba_base::{Access, IntervalSeq, NodeId, PageId, PageSet, VersionVector};
use hiroba_wire::{
    HomeMoves, MOVES_PER_HOME_MAX, Message, MoveKind, PageCopy, PageDiff, PageHandedOver, PagesHeld,
};
use rustc_hash::FxHashMap;

use super::claims::Claims;
use super::copies::{GROUPS_SEARCHED, REPLY_BYTES_MAX, check_ended};
use super::{AtomicTarget, Hlrc, HomeRequest};
use crate::coherence::{AfterRelease, PageMove, Site};
use crate::home::{HomeChoice, HomePolicy, MoveThreshold};
use crate::words::Client;
use crate::{Effect, Expected, Fact, NewContent, PageToSend, ProtocolError, unexpected};

/// Pages that one message hands over.
const HANDED_OVER_PER_MESSAGE: usize = 256;

/// What is known of homes that move.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// Which pages homed here should have other homes.
    pub(super) choice: HomeChoice,
    /// Which pages homed elsewhere should be homed here.
    pub(super) claims: Claims,
    /// Of pages that are homed here, intervals of which they hold a part, and of which their versions say nothing ([`crate::aurc`]).
    parts: FxHashMap<PageId, VersionVector>,
    /// How often pages that are homed here have moved.
    times: FxHashMap<PageId, u32>,
    leaving: Option<Leaving>,
    /// Pages that this node will be the home of.
    coming: FxHashMap<PageId, Coming>,
    /// Of them, by last home, those that have yet to rest.
    unrested: BTreeMap<NodeId, PageSet>,
    /// Of them, by last home, those that rest since the release that is being closed.
    rested: BTreeMap<NodeId, PageSet>,
    /// How far intervals have come, by writer, some of whose diffs wait.
    unpublished: BTreeMap<NodeId, IntervalSeq>,
    /// Pages that have moved and were not fetched from their new homes yet.
    unfetched: PageSet,
    /// Pages that have come, and that the program had access to until they rested.
    reopened: PageSet,
}

/// Pages that this node gives away.
#[derive(Debug, Default)]
struct Leaving {
    next_homes: BTreeMap<PageId, NodeId>,
    /// Those of them that go where they were touched first.
    placed: PageSet,
    /// What the next homes hold of them.
    held: FxHashMap<PageId, VersionVector>,
    /// How many other nodes have yet to hear of it.
    unheard: u16,
    /// This node has departed, too.
    is_agreed: bool,
    /// The pages rest.
    is_resting: bool,
}

/// A page on its next home.
#[derive(Debug, Default)]
struct Coming {
    /// Whether requests and diffs come here by now: since this node has told the last home.
    is_here: bool,
    /// The program had access to it before it rested.
    was_open: bool,
    /// It was handed over; its content is still to come.
    handed: Option<PageHandedOver>,
    diffs: Vec<DiffKept>,
}

/// A diff that waits for its page.
#[derive(Debug)]
struct DiffKept {
    writer: NodeId,
    seq: IntervalSeq,
    runs: Vec<u8>,
    /// It came before its interval's end.
    is_early: bool,
}

impl Moves {
    pub(super) fn are_on(&self, site: &Site) -> bool {
        self.choice.is_on(&site.homes)
    }

    /// Whether the page is about to get this node for its home.
    pub(super) fn is_coming(&self, page: PageId) -> bool {
        self.coming.contains_key(&page)
    }

    /// Whether nobody here may touch the page, which is coming or leaving.
    pub(super) fn keeps_away(&self, page: PageId) -> bool {
        let is_leaving = |leaving: &Leaving| leaving.is_resting && leaving.next_homes.contains_key(&page);
        self.is_coming(page) || self.leaving.as_ref().is_some_and(is_leaving)
    }

    /// Whether the page must be fetched by message.
    pub(super) fn is_unfetched(&self, page: PageId) -> bool {
        self.unfetched.contains(page)
    }

    /// The page has come by message.
    pub(super) fn note_fetched(&mut self, page: PageId) {
        self.unfetched.remove(page);
    }

    /// Whether diffs of a writer wait.
    fn keeps_diffs_of(&self, writer: NodeId) -> bool {
        self.coming.values().any(|coming| coming.diffs.iter().any(|kept| kept.writer == writer))
    }

    /// Whether an interval of `writer` must not be published yet: then it is when the diffs that wait have been applied.
    pub(super) fn puts_off(&mut self, writer: NodeId, seq: IntervalSeq) -> bool {
        let puts_off = self.keeps_diffs_of(writer);
        if puts_off {
            self.unpublished.insert(writer, seq);
        }
        puts_off
    }

    /// The diff of a page that is coming waits; it is early if it came before its interval's end. Whether it does.
    pub(super) fn keep_diff(
        &mut self,
        diff: &PageDiff<'_>,
        writer: NodeId,
        seq: IntervalSeq,
        is_early: bool,
    ) -> bool {
        let Some(coming) = self.coming.get_mut(&diff.page) else { return false };
        coming.diffs.push(DiffKept { writer, seq, runs: diff.runs.to_vec(), is_early });
        true
    }

    /// A page homed here holds some of what an open interval has changed.
    pub(super) fn note_part(&mut self, page: PageId, writer: NodeId, seq: IntervalSeq) {
        self.parts.entry(page).or_default().advance(writer, seq);
    }

    /// A page homed here holds these intervals as a whole.
    pub(super) fn note_whole(&mut self, page: PageId, held: &VersionVector) {
        if let Some(parts) = self.parts.get_mut(&page) {
            parts.retain_beyond(held);
            if parts.is_empty() {
                self.parts.remove(&page);
            }
        }
    }

    fn is_to_hand_over(&self) -> bool {
        self.leaving.as_ref().is_some_and(|leaving| leaving.is_agreed && leaving.unheard == 0)
    }

    /// The pages that rest in the release that is being closed for them: those that come, and those that leave.
    fn to_rest(&self) -> PageSet {
        let coming = self.unrested.values().flat_map(|pages| pages.iter());
        let leaving = self.leaving.iter().filter(|_| self.is_to_hand_over());
        coming.chain(leaving.flat_map(|leaving| leaving.next_homes.keys().copied())).collect()
    }
}

impl Hlrc {
    /// Has homes move by this policy.
    ///
    /// # Panics
    /// When data races are looked for, which needs homes that stay.
    pub fn moving_homes(mut self, policy: HomePolicy) -> Hlrc {
        self.choose_policy(policy);
        self
    }

    pub(super) fn choose_policy(&mut self, policy: HomePolicy) {
        assert!(
            !self.looks_for_races || policy == HomePolicy::Fixed,
            "homes stay when data races are looked for"
        );
        self.moves.choice.set_policy(policy);
    }

    /// Has homes move when so much speaks for it.
    pub fn moving_after(mut self, threshold: MoveThreshold) -> Hlrc {
        self.moves.choice.set_threshold(threshold);
        self
    }

    /// This node arrives at a collective: the pages that others should be the homes of.
    pub(super) fn choose_moves(&mut self, site: &Site) -> Vec<HomeMoves> {
        if !self.moves.are_on(site) {
            return Vec::new();
        }
        let is_free = self.moves.leaving.is_none();
        let claimed = self.claim(site, !is_free);
        // Others may claim as many.
        let most = if self.moves.claims.are_on() { MOVES_PER_HOME_MAX / 2 } else { MOVES_PER_HOME_MAX };
        let Hlrc { moves: Moves { choice, times, .. }, pages, .. } = self;
        let has_words = |page: PageId| pages.get(&page).map(|page| page.has_words);
        let room = if is_free { most } else { 0 };
        let is_here = |page| site.is_home(page) && has_words(page) != Some(true);
        let mut next_homes = choice.take_first_touched(room, is_here);
        let placed: PageSet = next_homes.keys().copied().collect();
        let times = |page| times.get(&page).copied().unwrap_or_default();
        choice.end_period(site.me, times, |page, to| {
            let may_leave = is_free && has_words(page) == Some(false) && !placed.contains(page);
            let leaves = may_leave && (next_homes.len() as u64) < most;
            if leaves {
                next_homes.insert(page, to);
            }
            leaves
        });
        let mut moves: BTreeMap<NodeId, PageSet> = BTreeMap::new();
        for (page_id, to) in &next_homes {
            moves.entry(*to).or_default().insert(*page_id);
        }
        if !next_homes.is_empty() {
            let unheard = site.limits.nodes - 1;
            self.moves.leaving = Some(Leaving { next_homes, placed, unheard, ..Leaving::default() });
        }
        let given = moves.into_iter().map(|(to, pages)| HomeMoves { to, pages, kind: MoveKind::Given });
        given.chain(claimed).collect()
    }

    /// All have agreed on these.
    pub(super) fn begin_moves(&mut self, site: &mut Site, moves: &[PageMove]) -> Result<(), ProtocolError> {
        let me = site.me;
        // What this node sends to pages' last homes comes there ahead of its word.
        self.end_claims(site, moves);
        let mut heard: BTreeMap<NodeId, PageId> = BTreeMap::new();
        let is_free = self.moves.leaving.as_ref().is_none_or(|leaving| !leaving.is_agreed);
        for PageMove { page: page_id, to, kind } in moves {
            let from = site.locate(*page_id).home;
            if *kind == MoveKind::Kept {
                continue;
            } else if from == me {
                self.agree(site, is_free, (*page_id, *to, *kind))?;
            } else if *to == me {
                self.moves.coming.insert(*page_id, Coming::default());
                self.moves.unrested.entry(from).or_default().insert(*page_id);
            } else {
                heard.entry(from).or_insert(*page_id);
                self.follow_move(site, *page_id, *to);
            }
        }
        for (from, page) in heard {
            if !self.moves.unrested.contains_key(&from) {
                site.out.send(from, &Message::HomeMovesHeard { page, held: Vec::new() });
            }
        }
        if is_free && self.moves.leaving.is_some() {
            // Others may have heard of claims before this node has.
            let ahead = std::mem::take(&mut site.deferred);
            site.out.keep(ahead);
        }
        self.close_what_comes(site, moves);
        if !self.moves.unrested.is_empty() {
            site.release_for(AfterRelease::Move);
        }
        self.hand_over_when_heard(site);
        Ok(())
    }

    /// All have agreed that a page homed here gets another home.
    fn agree(
        &mut self,
        site: &Site,
        is_free: bool,
        (page_id, to, kind): (PageId, NodeId, MoveKind),
    ) -> Result<(), ProtocolError> {
        let is_claimed = kind == MoveKind::Claimed && self.moves.claims.are_on();
        let leaving = match &mut self.moves.leaving {
            None if is_claimed => {
                let unheard = site.limits.nodes - 1;
                Some(self.moves.leaving.insert(Leaving { unheard, ..Leaving::default() }))
            }
            leaving => leaving.as_mut(),
        };
        let is_proposed = |leaving: &&mut Leaving| match leaving.next_homes.get(&page_id) {
            Some(next) => *next == to,
            None => is_claimed,
        };
        let Some(leaving) = leaving.filter(is_proposed).filter(|_| is_free) else {
            return Err(unexpected(Expected::ProposedMoves, format!("one of {page_id}")));
        };
        leaving.next_homes.insert(page_id, to);
        leaving.is_agreed = true;
        Ok(())
    }

    /// This node takes the page for homed elsewhere than before.
    fn follow_move(&mut self, site: &mut Site, page_id: PageId, to: NodeId) {
        self.anticipation.forget_orders(site, page_id);
        site.homes.move_page(page_id, to);
        // The last home may still answer when the next one has, which acts later.
        let under_way = self.atomic_targets.values_mut().filter(|target| target.page == page_id);
        under_way.for_each(|target| target.overtaken = true);
        if self.reach.includes(to) {
            self.moves.unfetched.insert(page_id);
        }
        site.tell(|| Some(Fact::Moved { pages: [page_id].into_iter().collect(), to }));
    }

    /// Takes the program's access to pages that are coming away before its threads go on: what they store
    /// until the pages rest would be compared and sent.
    fn close_what_comes(&mut self, site: &mut Site, moves: &[PageMove]) {
        let mut closed = PageSet::new();
        for PageMove { page: page_id, .. } in moves {
            let Some(coming) = self.moves.coming.get_mut(page_id) else { continue };
            let page = self.pages.entry(*page_id).or_default();
            if std::mem::take(&mut page.access) != Access::None {
                coming.was_open = true;
                closed.insert(*page_id);
            }
            if std::mem::take(&mut page.watched) {
                self.watch.pages.remove(page_id);
            }
        }
        site.protect_all(&closed, Access::None);
    }

    /// Whether a node has heard of a claim to a page that is homed here, as this node has yet to hear.
    fn is_of_claims_ahead(&self, site: &Site, message: &Message<'_>) -> bool {
        let Message::HomeMovesHeard { page, .. } = message else { return false };
        let is_leaving = |leaving: &Leaving| leaving.next_homes.contains_key(page);
        self.moves.claims.are_on()
            && site.is_home(*page)
            && !self.moves.leaving.as_ref().is_some_and(is_leaving)
    }

    /// Keeps what is said to the home of pages of which this node has yet to hear that it will be their home. Whether it did.
    pub(super) fn defers(&self, site: &mut Site, from: NodeId, message: &Message<'_>) -> bool {
        let keeps = self.moves.are_on(site)
            && (is_for_next_home(site, message) || self.is_of_claims_ahead(site, message));
        if keeps {
            site.deferred.push((from, message.encode()));
        }
        keeps
    }

    pub(super) fn handle_moves_heard(
        &mut self,
        site: &mut Site,
        from: NodeId,
        page: PageId,
        held: &[PagesHeld],
    ) -> Result<(), ProtocolError> {
        let leaving = self.moves.leaving.as_mut();
        let Some(leaving) = leaving.filter(|leaving| {
            leaving.unheard > 0 && !leaving.is_resting && leaving.next_homes.contains_key(&page)
        }) else {
            return Err(unexpected(
                Expected::WordOfProposedMoves,
                format!("word of {page} from node {from}"),
            ));
        };
        leaving.unheard -= 1;
        for PagesHeld { version, pages } in held {
            let theirs = pages.iter().filter(|page| leaving.next_homes.get(page) == Some(&from));
            leaving.held.extend(theirs.map(|page| (page, version.clone())));
        }
        self.hand_over_when_heard(site);
        Ok(())
    }

    fn hand_over_when_heard(&mut self, site: &mut Site) {
        if self.moves.is_to_hand_over() {
            let leaving = self.moves.leaving.as_ref().expect("some pages are to be handed over");
            let pages: Vec<PageId> = leaving.next_homes.keys().copied().collect();
            // What was written without notice is in no version.
            let watched = self.share(site, pages);
            self.watch_set(site, &watched);
            site.release_for(AfterRelease::Move);
        }
    }

    /// With asynchronous tracking, before the host is asked what was written: a home page gets a twin for the moment, so that a store that is
    /// too late for the answer makes the page differ from it.
    pub(super) fn prepare_rest(&mut self, site: &mut Site) {
        for page_id in self.moves.to_rest().iter() {
            let page = self.pages.entry(page_id).or_default();
            if page.watched && !page.twin {
                self.make_twin(site, page_id);
            }
        }
    }

    /// The interval that is being closed is the last one for some pages in their present roles: nobody may touch them. Those that must be
    /// compared with their twins, which they lose.
    pub(super) fn rest_for_move(&mut self, site: &mut Site) -> PageSet {
        let resting = self.moves.to_rest();
        if let Some(leaving) =
            self.moves.leaving.as_mut().filter(|leaving| leaving.is_agreed && leaving.unheard == 0)
        {
            leaving.is_resting = true;
        }
        assert!(self.moves.rested.is_empty(), "the last homes of what rested before have been told");
        self.moves.rested = std::mem::take(&mut self.moves.unrested);
        let mut compared = PageSet::new();
        let mut voided = PageSet::new();
        for page_id in resting.iter() {
            self.watch.pages.remove(&page_id);
            self.watch.candidates.remove(page_id);
            self.watch.unguarded.remove(page_id);
            let page = self.pages.entry(page_id).or_default();
            (page.watched, page.unguarded) = (false, false);
            if std::mem::take(&mut page.access) != Access::None {
                voided.insert(page_id);
                if let Some(coming) = self.moves.coming.get_mut(&page_id) {
                    coming.was_open = true;
                }
            }
            if page.twin {
                compared.insert(page_id);
            }
        }
        site.protect_all(&voided, Access::None);
        compared
    }

    /// Pages rest: tells their last homes, or hands them over to their next ones.
    pub(super) fn end_rest(&mut self, site: &mut Site) {
        for (from, pages) in std::mem::take(&mut self.moves.rested) {
            self.tell_what_is_held(site, from, &pages);
        }
        if self.moves.leaving.as_ref().is_some_and(|leaving| leaving.is_resting) {
            let leaving = self.moves.leaving.take().expect("there are some");
            self.hand_over(site, leaving);
        }
    }

    fn tell_what_is_held(&mut self, site: &mut Site, from: NodeId, pages: &PageSet) {
        let mut held: Vec<PagesHeld> = Vec::new();
        for page_id in pages.iter() {
            self.anticipation.forget_orders(site, page_id);
            site.homes.move_page(page_id, site.me);
            self.moves.coming.entry(page_id).or_default().is_here = true;
            let Some(page) = self.pages.get(&page_id).filter(|page| page.valid) else { continue };
            let mut latest = held.iter_mut().rev().take(GROUPS_SEARCHED);
            match latest.find(|held| held.version == page.held) {
                Some(held) => _ = held.pages.insert(page_id),
                None => held
                    .push(PagesHeld { version: page.held.clone(), pages: [page_id].into_iter().collect() }),
            }
        }
        let to = site.me;
        site.tell(|| Some(Fact::Moved { pages: pages.clone(), to }));
        let page = pages.iter().next().expect("a last home has given some");
        site.out.send(from, &Message::HomeMovesHeard { page, held });
        // What others have said too early is not too early any more.
        let ahead = std::mem::take(&mut site.deferred);
        site.out.keep(ahead);
    }

    /// The last home's part.
    fn hand_over(&mut self, site: &mut Site, leaving: Leaving) {
        assert!(
            leaving.is_agreed && leaving.is_resting,
            "all have agreed on pages that leave, and they rest"
        );
        assert_eq!(leaving.unheard, 0, "all others have said that they have heard");
        let Leaving { next_homes, placed, held, .. } = leaving;
        let mut of_each: BTreeMap<NodeId, Vec<PageHandedOver>> = BTreeMap::new();
        let mut turns = self.turns.take_of(|page| next_homes.contains_key(&page));
        for (page_id, to) in &next_homes {
            let page = self.pages.entry(*page_id).or_default();
            assert_eq!(page.access, Access::None, "{page_id}: nobody here touches what leaves");
            assert!(!page.twin && !page.watched, "{page_id}: what was written here is in its version");
            assert_ne!(*to, site.me, "{page_id}: it goes to another node");
            let times = self.moves.times.remove(page_id).unwrap_or_default();
            // What an open interval has changed so far is in no version.
            let has_part = self.moves.parts.remove(page_id).is_some();
            let has_all = !has_part && held.get(page_id).is_some_and(|held| held.covers(&page.held));
            let handed = PageHandedOver {
                page: *page_id,
                version: page.held.clone(),
                // Where it goes first says nothing of whether it goes to and fro.
                moves: times.saturating_add(u32::from(!placed.contains(*page_id))),
                // What operations have left in a word may be in no version yet.
                is_sent: !has_all || page.has_words,
                has_words: std::mem::take(&mut page.has_words),
                turns: turns.remove(page_id).unwrap_or_default(),
            };
            of_each.entry(*to).or_default().push(handed);
        }
        for (to, handed) in of_each {
            self.send_handed_over(site, to, handed);
        }
        next_homes.iter().for_each(|(page_id, to)| self.become_copy(site, *page_id, *to));
    }

    fn send_handed_over(&mut self, site: &mut Site, to: NodeId, mut handed: Vec<PageHandedOver>) {
        while !handed.is_empty() {
            let rest = handed.split_off(handed.len().min(HANDED_OVER_PER_MESSAGE));
            let pages = std::mem::replace(&mut handed, rest);
            let contents: Vec<(PageId, VersionVector)> = pages
                .iter()
                .filter(|page| page.is_sent)
                .map(|page| (page.page, page.version.clone()))
                .collect();
            site.out.send(to, &Message::HomeHandedOver { pages });
            let mut reply = Vec::new();
            let mut bytes = 0;
            for (page, version) in contents {
                let page_bytes = site.page_bytes(page);
                if bytes + u64::from(page_bytes) > REPLY_BYTES_MAX && !reply.is_empty() {
                    site.out.push(Effect::SendPages {
                        to,
                        pages: std::mem::take(&mut reply),
                        ahead_of: None,
                    });
                    bytes = 0;
                }
                bytes += u64::from(page_bytes);
                reply.push(PageToSend { page, page_bytes, version });
            }
            if !reply.is_empty() {
                site.out.push(Effect::SendPages { to, pages: reply, ahead_of: None });
            }
        }
    }

    /// What is left here of a page that was handed over.
    fn become_copy(&mut self, site: &mut Site, page_id: PageId, to: NodeId) {
        self.follow_move(site, page_id, to);
        self.moves.choice.forget(page_id);
        self.anticipation.drop_orders(page_id);
        let page = self.pages.entry(page_id).or_default();
        page.valid = page.needed.is_empty();
        (page.shared, page.served, page.unnoticed) = (false, false, false);
        let pending = std::mem::take(&mut page.pending);
        let waits = page.fetch.is_some();
        if waits {
            self.request_page(site, to, page_id);
        }
        for pending in pending {
            match pending.request {
                // It answers itself.
                HomeRequest::Page(from) if from == to => {}
                HomeRequest::Atomic { client: Client::Here(waiter), offset, operation } => {
                    let ticket = waiter.0;
                    let target = AtomicTarget { page: page_id, offset, overtaken: false };
                    let before = self.atomic_targets.insert(ticket, target);
                    assert!(before.is_none(), "thread {ticket} waits for one operation at a time");
                    let needed = pending.needed;
                    site.out.send(
                        to,
                        &Message::AtomicRequest { ticket, page: page_id, offset, operation, needed },
                    );
                }
                HomeRequest::Page(from) | HomeRequest::Atomic { client: Client::There(from, _), .. } => {
                    let got = format!("one for {page_id}");
                    site.out.refuse(from, &unexpected(Expected::RequestForWritten, got));
                }
            }
        }
    }
}

/// The next home's part.
impl Hlrc {
    pub(super) fn handle_handed_over(
        &mut self,
        site: &mut Site,
        from: NodeId,
        pages: &[PageHandedOver],
    ) -> Result<(), ProtocolError> {
        for handed in pages {
            let page_id = handed.page;
            check_ended(site, &handed.version)?;
            let coming = self.moves.coming.get_mut(&page_id);
            let Some(coming) = coming.filter(|coming| coming.is_here && coming.handed.is_none()) else {
                let got = format!("{page_id} from node {from}");
                return Err(unexpected(Expected::MovesToHere, got));
            };
            if handed.is_sent {
                coming.handed = Some(handed.clone());
            } else if self.pages.get(&page_id).is_some_and(|page| page.held.covers(&handed.version)) {
                self.become_home(site, handed.clone(), false);
            } else {
                let got = format!("{page_id} without it");
                return Err(unexpected(Expected::LastHomesContent, got));
            }
        }
        self.publish_put_off(site);
        Ok(())
    }

    /// A page that is coming has been sent: as its last home's last word, or before, in answer to a request that does not matter any more.
    pub(super) fn take_in_coming(&mut self, site: &mut Site, copy: &PageCopy, content: NewContent) {
        let coming = self.moves.coming.get_mut(&copy.page).expect("the page is coming");
        let Some(handed) = coming.handed.take_if(|handed| handed.version == copy.version) else { return };
        let pages = site.locate(copy.page).span();
        site.out.push(Effect::Install { pages, content, merge: false, fetched: 0, prefetched: 1 });
        self.become_home(site, handed, true);
        self.publish_put_off(site);
    }

    fn become_home(&mut self, site: &mut Site, handed: PageHandedOver, was_sent: bool) {
        let PageHandedOver { page: page_id, version, moves, is_sent: _, has_words, turns } = handed;
        let coming = self.moves.coming.remove(&page_id).expect("the page is coming");
        assert!(site.is_home(page_id), "{page_id}: this node takes itself for its home");
        let page = self.pages.entry(page_id).or_default();
        assert_eq!(page.access, Access::None, "{page_id}: nobody touches what is coming");
        assert!(!page.twin && !page.watched, "{page_id}: what was written here was sent before it came");
        version.entries().iter().for_each(|(writer, seq)| page.held.advance(*writer, *seq));
        page.needed.retain_beyond(&page.held);
        (page.valid, page.has_words) = (false, has_words);
        (page.shared, page.served, page.unnoticed) = (true, true, false);
        let version = page.held.clone();
        let is_unseen = self.keep_withheld(site, page_id, was_sent) && !has_words;
        if is_unseen {
            let page = self.pages.entry(page_id).or_default();
            (page.shared, page.served) = (false, false);
        }
        if coming.was_open {
            self.moves.reopened.insert(page_id);
        }
        self.anticipation.is_homed_here(site, page_id);
        self.moves.times.insert(page_id, moves);
        self.turns.go_on(page_id, turns);
        site.tell(|| Some(Fact::Holds { page: page_id, version }));
        site.out.push(Effect::CountMove { page: page_id });
        for DiffKept { writer, seq, runs, is_early } in coming.diffs {
            if is_early {
                self.apply_early(site, page_id, writer, seq, &runs);
            } else {
                self.apply_diff(site, page_id, writer, seq, &runs);
            }
        }
        self.serve_pending(site, page_id);
    }

    /// Gives the program the access to pages back that it had before they rested, in as few effects as they
    /// have runs.
    fn reopen(&mut self, site: &mut Site) {
        let (mut watched, mut readable) = (PageSet::new(), PageSet::new());
        for page_id in std::mem::take(&mut self.moves.reopened).iter() {
            let is_open = |page: &super::Page| page.access != Access::None || !page.needed.is_empty();
            if !self.pages.get(&page_id).is_some_and(is_open) {
                let pages = if site.is_async(page_id) { &mut watched } else { &mut readable };
                pages.insert(page_id);
            }
        }
        self.watch_set(site, &watched);
        self.protect_set(site, &readable, Access::Read);
    }

    fn publish_put_off(&mut self, site: &mut Site) {
        self.reopen(site);
        for (writer, seq) in std::mem::take(&mut self.moves.unpublished) {
            self.publish(site, writer, seq);
        }
    }
}

/// Whether something is said to the home of pages that are homed elsewhere, as far as this node has heard: its sender has heard more.
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
