//! Pages that a protocol gives up to sequential consistency, because threads operate on them with atomic
//! instructions ([`Synchronisation::Convert`](crate::Synchronisation::Convert)).
//!
//! Under release consistency several nodes may change copies of one word at the same time, and one change is
//! lost. An instruction that reads and writes a word atomically needs the only copy, and so do plain stores
//! to the same word meanwhile. A page on which such an instruction operates is therefore *converted*: from
//! then on [`sc`](crate::sc) keeps it coherent.
//! ```text
//!   any node ──ConversionRequest──▶ home ──Convert──▶ all others ──[Diffs, Publish,] Converted──▶ home
//! ```
//! 1. The home tells all other nodes. Further requests for the same page change nothing.
//! 2. A node that is told waits until the page is *at rest*: until no fetch of it, and no operation at the
//!    home, is under way. Meanwhile the home serves such requests as usual. Then the node takes its threads'
//!    access away, ends the interval, which sends their stores to the home, informs the home of all that it
//!    has seen, and reports that the page is given up. From then on the page is absent there, under
//!    sequential consistency.
//! 3. When all have reported, the home has all diffs, on links that are in order, and no copy is left. It
//!    takes its own threads' access away, ends the interval, and becomes the page's owner and manager.
//!
//! Messages name sets of pages. Where threads have asked for many pages of a block, the home has the pages
//! between and beside them converted as well, by the same messages: a *run*. A run is a part of the block of
//! [`RUN_PAGES_MAX`] pages, or a half or less of that, in which at least [`ASKED_MIN`] pages and one in
//! [`ASKED_ONE_IN`] have been asked for. So a few atomic variables in a large array of other data convert
//! nothing but their own pages. A node that is told of a run lets all its pages go at once, as far as they
//! are at rest, with one release, and reports them together.
//!
//! | node | before | told (others), or all have reported (home) | after its release |
//! |---|---|---|---|
//! | another | copy | *resting*: faults and operations wait | absent under `sc` |
//! | home | home; requests under `sc` wait | *resting*: the same | owner under `sc` |
//!
//! **Homes that move** (`protocol/src/moves.rs`). A page that is changing, or has changed, keeps its home.
//! All nodes take the same node for the home when it tells them: a page's last home gives it away only after
//! all nodes know of the move. So a node that is asked
//! - about a page that is coming here begins when it has come; one that does not know of the move yet keeps
//!   the request;
//! - about a page that has been given away passes the request on;
//! - while pages are changing, or have been since its last arrival, is *busy* at its next arrival: the root
//!   then agrees to no move of its pages. A writer that claims such a page gives its claim up when it is
//!   told, because the release sends what it has withheld;
//! - between its arrival and its departure asks the root that it be busy ([`Message::KeepHomes`]). If the
//!   nodes have agreed already, there is no answer, but the departure is on its way. The home does not simply
//!   wait for it, because a node that has not arrived may need the page first.
//!
//! Why this is correct. No node touches the page under `sc` before all have given it up under the other
//! protocol, because each touch needs an answer of the home. Every store before is in the home's frame, or
//! was the home's own. Whoever gets the page from its owner is informed first (`sc/order.rs`), also of what
//! the nodes had seen when they gave it up. Notices of earlier intervals may still name the page; they
//! demand nothing of it any more, because no copy from before is left.
//!
//! A page never returns. A thread that waits for a conversion goes on as soon as its own node has given the
//! page up: its access waits for the home.
//!
//! Bounds: an entry for each page that changes or is to change, with one waiter, access or operation for each
//! thread, and at the home one request of each other node. At the home also a word for each
//! [`RUN_PAGES_MAX`] pages of which one was asked for.

use std::collections::BTreeMap;

use hiroba_base::{Access, NodeId, PageId, PageRange, PageSet};
use hiroba_wire::Message;

use super::Consistency;
use crate::coherence::{AfterRelease, WordOperation};
use crate::home::Located;
use crate::{Effect, Expected, Fact, Misuse, Outcome, ProtocolError, Waiter, unexpected};

/// The maximum number of pages of a run: one bit of a word for each.
const RUN_PAGES_MAX: u64 = 64;
/// The minimum.
const RUN_PAGES_MIN: u64 = 8;
/// The minimum number of pages of a run that threads have asked for.
const ASKED_MIN: u64 = 4;
/// At least one in so many pages of a run has been asked for.
const ASKED_ONE_IN: u64 = 8;

/// The pages that are changing their protocol.
#[derive(Debug, Default)]
pub(super) struct Conversions {
    pages: BTreeMap<PageId, Conversion>,
    /// Not home: pages that this node was told of together, and how many of them it has yet to give up.
    told: Vec<(PageSet, u64)>,
    /// Home: the pages that threads have asked for. A bit for each page, by the first page of
    /// [`RUN_PAGES_MAX`].
    asked: BTreeMap<PageId, u64>,
    /// Home: the block of the program that the last request was about.
    block: Option<PageRange>,
    /// The number of releases that were requested for conversions.
    releases: u64,
    /// Home: pages that threads have asked for and whose conversion cannot begin yet.
    held: PageSet,
    /// Home: true if pages have been changing since the last arrival.
    keeps_homes: bool,
    /// What this node has asked the root in the collective that it waits in.
    plea: Plea,
}

/// A request to the root of the tree that no page homed here get another home.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Plea {
    #[default]
    None,
    /// It was made in the collective of this number.
    Made(u64),
    /// The root has agreed to it.
    Heard(u64),
}

/// A page that is changing its protocol.
#[derive(Debug)]
pub(super) struct Conversion {
    step: Step,
    /// Threads that wait for the change.
    waiters: Vec<Waiter>,
    /// Accesses and operations of threads that came while the page was resting.
    faults: Vec<(Access, Option<Waiter>)>,
    operations: Vec<WordOperation>,
    /// Home: requests of nodes that have given up the page.
    requests: Vec<(NodeId, Vec<u8>)>,
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// The home was asked.
    Asked,
    /// Home: these nodes have yet to give the page up.
    Telling(Vec<NodeId>),
    /// The page loses its access when it is at rest.
    Resting,
    /// The release of this number sends what was written.
    Releasing(u64),
}

impl Step {
    /// Returns true if threads must not touch the page any more under its former protocol.
    fn is_closed(&self) -> bool {
        matches!(self, Step::Resting | Step::Releasing(_))
    }
}

impl Conversions {
    /// Returns true if a page that is homed here is changing, or has been since the last arrival. This node
    /// arrives at a collective.
    pub(super) fn keep_homes(&mut self, is_home: impl Fn(PageId) -> bool) -> bool {
        let is_changing = |(page, of): (&PageId, &Conversion)| of.step != Step::Asked && is_home(*page);
        let still = self.pages.iter().any(is_changing);
        std::mem::replace(&mut self.keeps_homes, still)
    }
}

impl Conversion {
    fn new(step: Step) -> Conversion {
        let (waiters, faults, operations, requests) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Conversion { step, waiters, faults, operations, requests }
    }
}

/// Requests of this node's threads.
impl Consistency {
    /// Begins the conversion of the page that contains a granule, unless it is under sequential consistency.
    pub(super) fn convert(&mut self, granule: PageId, waiter: Waiter) {
        let Some(located) = self.site.homes.locate(granule) else {
            let refused = Outcome::Misuse(Misuse::NotAllocated(granule));
            return self.site.out.wake(waiter, refused);
        };
        let page = located.page;
        if self.protocols.is_converted(page) {
            return self.site.out.wake(waiter, Outcome::Done);
        }
        if !self.may_convert(page) {
            return self.site.out.wake(waiter, Outcome::Refused);
        }
        let conversion = self.conversions.pages.entry(page).or_insert_with(|| {
            self.site.out.send(located.home, &Message::ConversionRequest { page });
            Conversion::new(Step::Asked)
        });
        conversion.waiters.push(waiter);
    }

    /// Notes the block of the program that the next request is about. Runs do not go beyond it.
    pub(super) fn note_converted_block(&mut self, block: PageRange) {
        self.conversions.block = Some(block);
    }

    /// Returns true if the page's protocol can give it up.
    fn may_convert(&mut self, page: PageId) -> bool {
        self.protocols.of(page).as_giver().is_some()
    }

    /// Keeps a thread's access to a page that is resting. Returns true if it does.
    pub(super) fn waits_for_conversion(
        &mut self,
        page: PageId,
        wanted: Access,
        waiter: Option<Waiter>,
    ) -> bool {
        let closed = self.conversions.pages.get_mut(&page).filter(|conversion| conversion.step.is_closed());
        let waits = closed.is_some();
        closed.into_iter().for_each(|conversion| conversion.faults.push((wanted, waiter)));
        waits
    }

    /// Does the same with an operation on an atomic word.
    pub(super) fn operates_after_conversion(&mut self, operation: WordOperation) -> bool {
        let of_page = self.conversions.pages.get_mut(&operation.page);
        let closed = of_page.filter(|conversion| conversion.step.is_closed());
        let waits = closed.is_some();
        closed.into_iter().for_each(|conversion| conversion.operations.push(operation));
        waits
    }

    /// Returns true if the page is changing its protocol.
    pub(super) fn is_converting(&self, page: PageId) -> bool {
        self.conversions.pages.contains_key(&page)
    }
}

/// Messages.
impl Consistency {
    /// Handles a message about a page's conversion, or one that must wait for it. Returns false if it is
    /// neither.
    pub(super) fn handle_conversion(
        &mut self,
        from: NodeId,
        message: &Message<'_>,
    ) -> Result<bool, ProtocolError> {
        match message {
            Message::ConversionRequest { page } => self.hold_request(from, *page, message)?,
            Message::Convert { pages } => self.begin_conversions(from, pages)?,
            Message::Converted { pages } => {
                pages.iter().try_for_each(|page| self.note_given_up(from, page))?;
            }
            Message::CopiesRequest { pages, requester } => {
                let requester = *requester;
                let request = |pages| Message::CopiesRequest { pages, requester };
                return self.keep_requests(from, pages, request);
            }
            Message::OwnershipRequest { pages } => {
                return self.keep_requests(from, pages, |pages| Message::OwnershipRequest { pages });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The home has been asked.
    fn hold_request(
        &mut self,
        from: NodeId,
        page: PageId,
        message: &Message<'_>,
    ) -> Result<(), ProtocolError> {
        let located = self.site.locate(page);
        let may_be_asked = self.protocols.is_converted(page) || self.may_convert(page);
        if located.page != page || !may_be_asked {
            return Err(unexpected(Expected::RequestToHome, format!("a request to convert {page}")));
        }
        if located.home == self.site.me {
            self.conversions.held.insert(page);
        } else if self.protocols.of(page).moves_pages(&self.site) {
            // The sender knows of a move that this node does not know yet.
            self.site.deferred.push((from, message.encode()));
        } else {
            return Err(unexpected(Expected::RequestToHome, format!("a request to convert {page}")));
        }
        Ok(())
    }

    /// Begins conversions that threads have asked for, as far as the pages stay at their homes.
    fn begin_held(&mut self) {
        let me = self.site.me;
        for page in self.conversions.held.iter().collect::<Vec<_>>() {
            let home = self.site.locate(page).home;
            if self.protocols.is_converted(page) {
                self.conversions.held.remove(page);
            } else if home != me {
                // It has left meanwhile.
                self.conversions.held.remove(page);
                self.site.out.send(home, &Message::ConversionRequest { page });
            } else if !self.is_moving(page) && self.keeps_all_homes(page) {
                self.conversions.held.remove(page);
                self.tell_to_convert(page);
            }
        }
    }

    fn is_moving(&mut self, page: PageId) -> bool {
        self.protocols.of(page).as_giver().is_some_and(|giver| giver.is_moving(page))
    }

    /// Returns true if no page homed here gets another home by the collective that this node waits in. It
    /// asks the root, if necessary.
    fn keeps_all_homes(&mut self, page: PageId) -> bool {
        if !self.team.has_arrived() || !self.protocols.of(page).moves_pages(&self.site) {
            return true;
        }
        let epoch = self.site.collectives_done;
        if self.conversions.plea == Plea::Heard(epoch) {
            return true;
        }
        if self.conversions.plea != Plea::Made(epoch) {
            self.conversions.plea = Plea::Made(epoch);
            self.site.out.send(NodeId::ZERO, &Message::KeepHomes { epoch });
        }
        false
    }

    /// Handles, at the root of the tree, that a home asks to keep its pages.
    pub(super) fn handle_keep_homes(&mut self, from: NodeId, epoch: u64) -> Result<(), ProtocolError> {
        if self.meeting.keep_homes(from, epoch)? {
            self.site.out.send(from, &Message::HomesKept { epoch });
        }
        Ok(())
    }

    /// Handles the root's answer.
    pub(super) fn handle_homes_kept(&mut self, epoch: u64) -> Result<(), ProtocolError> {
        if self.conversions.plea != Plea::Made(epoch) {
            let got = format!("one about collective {epoch}");
            return Err(unexpected(Expected::AnswerOfRoot, got));
        }
        self.conversions.plea = Plea::Heard(epoch);
        Ok(())
    }

    /// The home tells all others, once.
    fn tell_to_convert(&mut self, page: PageId) {
        let me = self.site.me;
        let conversion = self.conversions.pages.get(&page);
        if conversion.is_some_and(|conversion| conversion.step != Step::Asked) {
            return;
        }
        self.conversions.keeps_homes = true;
        let run = self.run_of(page);
        let others: Vec<NodeId> = NodeId::all(self.site.limits.nodes).filter(|node| *node != me).collect();
        for node in &others {
            self.site.out.send(*node, &Message::Convert { pages: run.clone() });
        }
        for page in run.iter() {
            let step = if others.is_empty() { Step::Resting } else { Step::Telling(others.clone()) };
            self.conversions.pages.entry(page).or_insert_with(|| Conversion::new(Step::Asked)).step = step;
        }
    }

    /// Notes that a thread has asked the home, this node, for a page. Returns the pages that are converted
    /// now: this one, and the others of its run, if it has one.
    fn run_of(&mut self, page: PageId) -> PageSet {
        let Located { home, granules, .. } = self.site.locate(page);
        let number = page.0 / granules;
        let place = number % RUN_PAGES_MAX;
        let asked = self.conversions.asked.entry(PageId((number - place) * granules)).or_default();
        *asked |= 1 << place;
        let asked = *asked;
        let is_dense = |pages: &u64| {
            let first = place / pages * pages;
            let bits = asked >> first & (u64::MAX >> (RUN_PAGES_MAX - pages));
            u64::from(bits.count_ones()) >= ASKED_MIN.max(pages / ASKED_ONE_IN)
        };
        let lengths = std::iter::successors(Some(RUN_PAGES_MAX), |pages| Some(pages / 2));
        let length = lengths.take_while(|pages| *pages >= RUN_PAGES_MIN).find(is_dense).unwrap_or(1);
        let first = number / length * length;
        let block = self.conversions.block.filter(|block| block.contains(page));
        let is_in_block = |other: &Located| {
            block.is_some_and(|block| block.first <= other.page && other.span().end() <= block.end())
        };
        let others =
            (first..first + length).map(|number| Located { page: PageId(number * granules), granules, home });
        let mut run = PageSet::new();
        run.insert(page);
        for other in others.filter(is_in_block) {
            if self.is_convertible(other) {
                run.insert(other.page);
            }
        }
        run
    }

    /// Returns true if there is such a page, and it can be converted and is not yet.
    fn is_convertible(&mut self, expected: Located) -> bool {
        let page = expected.page;
        let is_free = self.conversions.pages.get(&page).is_none_or(|of| of.step == Step::Asked);
        is_free
            && !self.protocols.is_converted(page)
            && self.site.homes.locate(page) == Some(expected)
            && self.may_convert(page)
            && !self.is_moving(page)
    }

    /// The home wants this node to give pages up.
    fn begin_conversions(&mut self, from: NodeId, pages: &PageSet) -> Result<(), ProtocolError> {
        for page in pages.iter() {
            let Located { granules, .. } = self.site.locate(page);
            if from == self.site.me || !self.is_convertible(Located { page, granules, home: from }) {
                return Err(unexpected(
                    Expected::ConversionByHome,
                    format!("node {from}'s to convert {page}"),
                ));
            }
        }
        for page in pages.iter() {
            let conversion = self.conversions.pages.entry(page);
            conversion.or_insert_with(|| Conversion::new(Step::Asked)).step = Step::Resting;
        }
        self.conversions.told.push((pages.clone(), pages.len()));
        Ok(())
    }

    /// Another node has given the page up.
    fn note_given_up(&mut self, from: NodeId, page: PageId) -> Result<(), ProtocolError> {
        let conversion = self.conversions.pages.get_mut(&page);
        let Some(Conversion { step: Step::Telling(others), .. }) = conversion else {
            return Err(unexpected(Expected::ReportOfConversion, format!("node {from}'s of {page}")));
        };
        let Some(place) = others.iter().position(|node| *node == from) else {
            return Err(unexpected(
                Expected::ReportOfConversion,
                format!("another of node {from} of {page}"),
            ));
        };
        others.swap_remove(place);
        if others.is_empty() {
            self.conversions.pages.get_mut(&page).expect("it is under way").step = Step::Resting;
        }
        Ok(())
    }

    /// Keeps the part of a request of a node that has given pages up which concerns pages that this node, the
    /// home, has yet to give up. The rest is handled behind this message. Returns false if no page is kept.
    fn keep_requests(
        &mut self,
        from: NodeId,
        pages: &PageSet,
        request: impl Fn(PageSet) -> Message<'static>,
    ) -> Result<bool, ProtocolError> {
        let (kept, rest): (Vec<PageId>, Vec<PageId>) =
            pages.iter().partition(|page| self.conversions.pages.contains_key(page));
        for page in &kept {
            let conversion = self.conversions.pages.get_mut(page).expect("it is under way");
            if conversion.requests.iter().any(|(node, _)| *node == from) {
                let got = format!("two of node {from} for {page}");
                return Err(unexpected(Expected::OneRequestOfEachNode, got));
            }
            conversion.requests.push((from, request([*page].into_iter().collect()).encode()));
        }
        if !kept.is_empty() && !rest.is_empty() {
            self.site.out.keep([(from, request(rest.into_iter().collect()).encode())]);
        }
        Ok(!kept.is_empty())
    }
}

/// Steps that wait for the page to be at rest, and for a release.
impl Consistency {
    /// Takes the access to resting pages away that are at rest by now. Not before the effects of the last
    /// event are carried out: a page that has come may have yet to be merged.
    pub(super) fn advance_conversions(&mut self) {
        if !self.site.out.is_polled() {
            return;
        }
        if !self.conversions.held.is_empty() {
            self.begin_held();
            // The root's answer comes at once if this node is the root.
            self.deliver_loopback();
            self.begin_held();
        }
        if self.conversions.pages.is_empty() {
            return;
        }
        let Consistency { site, protocols, conversions, .. } = self;
        let release = conversions.releases;
        for (page, conversion) in conversions.pages.iter_mut().filter(|(_, of)| of.step == Step::Resting) {
            let giver = protocols.of(*page).as_giver().expect("only pages that can be given up are resting");
            if giver.is_at_rest(site, *page) {
                giver.let_go(site, *page);
                conversion.step = Step::Releasing(release);
                conversions.releases = release + 1;
            }
        }
        if conversions.releases > release {
            site.release_for(AfterRelease::Convert(release));
        }
        self.end_event();
        self.deliver_loopback();
    }

    /// Reports to the home, if this was the last page of those that the node was told of together.
    fn report(&mut self, home: NodeId, page: PageId) {
        let told = &mut self.conversions.told;
        let place = told.iter().position(|(pages, _)| pages.contains(page)).expect("the home has told of it");
        told[place].1 -= 1;
        if told[place].1 > 0 {
            return;
        }
        let (pages, _) = told.swap_remove(place);
        if self.has_news_for(home) {
            self.inform(home, None);
        }
        self.site.out.send(home, &Message::Converted { pages });
    }

    /// Changes the protocol of the pages for which this release was requested.
    pub(super) fn convert_after_release(&mut self, release: u64) {
        let of_release =
            |(page, of): (&PageId, &Conversion)| (of.step == Step::Releasing(release)).then_some(*page);
        let pages: Vec<PageId> = self.conversions.pages.iter().filter_map(of_release).collect();
        pages.into_iter().for_each(|page| self.convert_now(page));
    }

    /// Changes the page's protocol, unless something about it has begun meanwhile: pages may be fetched that
    /// no thread has touched.
    fn convert_now(&mut self, page: PageId) {
        let Consistency { site, protocols, conversions, .. } = self;
        let giver = protocols.of(page).as_giver().expect("only pages that can be given up are resting");
        if !giver.is_at_rest(site, page) {
            conversions.pages.get_mut(&page).expect("it is under way").step = Step::Resting;
            return;
        }
        protocols.convert(site, page);
        site.tell(|| Some(Fact::Converted { page }));
        let conversion = conversions.pages.remove(&page).expect("it is under way");
        let home = self.site.locate(page).home;
        if home == self.site.me {
            self.site.out.push(Effect::CountConversion { page });
        } else {
            self.report(home, page);
        }
        let Consistency { site, protocols, .. } = self;
        site.out.keep(conversion.requests);
        conversion.waiters.into_iter().for_each(|waiter| site.out.wake(waiter, Outcome::Done));
        let located = site.locate(page);
        for (wanted, waiter) in conversion.faults {
            protocols.of(page).fault(site, located, wanted, waiter);
        }
        for operation in conversion.operations {
            protocols.of(page).operate(site, operation);
        }
    }
}
