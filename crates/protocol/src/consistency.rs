//! A node's engine: synchronisation, intervals, and the notices at their ends, for every protocol that keeps
//! pages coherent.
//!
//! Read first: Keleher, Cox, Zwaenepoel, *Lazy Release Consistency for Software Distributed Shared Memory*,
//! ISCA 1992, for intervals, vector timestamps and write notices. A protocol that needs no notices at
//! acquires (sequential consistency, or an eager one) reports no changed pages, and then locks and barriers
//! carry no notices.
//!
//! Under lazy protocols an unlock leaves the interval open until another node asks for the lock, so a lock
//! that stays on its node costs no release ([`crate::lock`]).
//!
//! Threads of a node share its pages, so the engine handles only what crosses nodes. A node arrives at a
//! collective when all threads of its team have come. Other threads may go on and synchronise meanwhile, so a
//! grant may reach a node before the departure that its sender has seen; the grant then waits for the
//! departure. Knowledge that is later than an arrival is passed on with the next arrival (`beyond`).

mod acquires;
mod collectives;
mod contributions;
mod converting;
mod keepers;
mod locks;
mod messages;
mod placing;
mod releases;

use std::collections::BTreeMap;
use std::sync::Arc;

use hiroba_base::{
    Access, IntervalSeq, LockId, NodeId, PageId, PageRange, PageSet, PageSize, VectorTimestamp,
};
use hiroba_wire::{AtomicOperation, Collective, HomeMoves, Knowledge, Limits, Message, Placement};
use rustc_hash::FxHashMap;

use self::contributions::Combining;
use self::converting::Conversions;
use self::keepers::{Keeper, Protocols};
use self::placing::Placing;
use crate::aurc::mapped::MappingRule;
use crate::barrier::{Meeting, Tree};
use crate::coherence::{AfterRelease, Coherence, ReleaseStep, Site, WordOperation};
use crate::cond::Conds;
use crate::hlrc::Hlrc;
use crate::home::Located;
use crate::interval::IntervalLog;
use crate::lease::Leases;
use crate::lock::Locks;
use crate::team::Team;
use crate::{
    Done, Effect, Engine, Expected, HomePolicy, Misfit, Misuse, Outcome, Protocol, ProtocolError,
    Synchronisation, Waiter, WriteTracking, unexpected,
};

/// The engine of one node.
#[derive(Debug)]
pub struct Consistency {
    site: Site,
    protocols: Protocols,
    locks: Locks,
    conds: Conds,
    team: Team,
    meeting: Meeting,
    /// Set when all nodes have come to the collective: this node leaves once its departure messages to the
    /// nodes below are on the way.
    leaving: Option<Leaving>,
    /// Notices of other nodes that are later than a node's arrival at the collective where this node has not
    /// arrived yet.
    beyond: IntervalLog,
    /// The number of publications that this node has sent to each other node.
    publications: FxHashMap<NodeId, u64>,
    /// The intervals that other nodes have at least seen once they have received the last publication that
    /// was sent to them.
    told: FxHashMap<NodeId, VectorTimestamp>,
    /// Notices of pages in regions that this node's own threads do not know yet, so that their protocol is
    /// unknown. At most those that are written before the node comes to the next collective.
    unplaced: Vec<(NodeId, IntervalSeq, PageId)>,
    conversions: Conversions,
    /// Pages of this node that are being placed: at most one run for each thread.
    placing: Vec<Placing>,
    /// Pages that threads of other nodes will read when they depart from the next collective.
    along: PageSet,
    /// Pages that a thread of node 0 will read when all other nodes have arrived there.
    up: PageSet,
    /// The threads of node 0 that wait for that.
    awaiting: Vec<Waiter>,
    combining: Combining,
}

/// The information with which this node leaves a collective.
#[derive(Debug)]
struct Leaving {
    from: NodeId,
    epoch: u64,
    collective: Collective,
    knowledge: Knowledge,
    moves: Vec<HomeMoves>,
}

impl Consistency {
    /// Returns the engine of node `me`, with nothing allocated.
    pub fn new(
        me: NodeId,
        limits: Limits,
        tracking: WriteTracking,
        protocol: Box<dyn Coherence>,
    ) -> Consistency {
        let nodes = limits.nodes;
        let mut site = Site::new(me, limits, tracking);
        site.has_below = Tree::of(nodes).below(me).next().is_some();
        Consistency {
            site,
            protocols: Protocols::of_one(protocol),
            locks: Locks::new(me, nodes),
            conds: Conds::default(),
            team: Team::of_one(),
            meeting: Meeting::new(me, Tree::of(nodes)),
            leaving: None,
            beyond: IntervalLog::new(nodes),
            publications: FxHashMap::default(),
            told: FxHashMap::default(),
            unplaced: Vec::new(),
            conversions: Conversions::default(),
            placing: Vec::new(),
            along: PageSet::new(),
            up: PageSet::new(),
            awaiting: Vec::new(),
            combining: Combining::default(),
        }
    }

    /// Returns the engine of node `me` under a protocol. `reached` are the other nodes whose frames it can
    /// read itself.
    ///
    /// # Panics
    /// If writes are noted without faults and the protocol needs the first store to a page to fault.
    pub fn under(
        protocol: Protocol,
        me: NodeId,
        limits: Limits,
        tracking: WriteTracking,
        reached: impl IntoIterator<Item = NodeId>,
    ) -> Consistency {
        assert!(
            tracking == WriteTracking::Fault || !protocol.needs_write_faults(),
            "under {} the first store to a page must fault",
            protocol.name()
        );
        let reached: Vec<NodeId> = reached.into_iter().collect();
        let mut engine = Consistency::new(me, limits, tracking, protocol.coherence(reached.iter().copied()));
        engine.protocols.reached = reached;
        engine
    }

    /// Returns the engine of node `me` under home-based lazy release consistency that looks for data races
    /// ([`Hlrc::looking_for_races`]): acquires end intervals.
    pub fn looking_for_races(me: NodeId, limits: Limits) -> Consistency {
        // The first store of an interval must fault.
        Consistency::new(me, limits, WriteTracking::Fault, Box::new(Hlrc::looking_for_races()))
            .ending_intervals_at_acquires()
    }

    /// Lets homes move, under the protocols that support it. Call it before any region is added.
    pub fn moving_homes(mut self, policy: HomePolicy) -> Consistency {
        self.protocols.home_policy = policy;
        self.protocols.each(&mut self.site, |protocol, _| protocol.move_homes(policy));
        self
    }

    /// Has regions that are added from now on mapped onto their homes' frames by this rule, if their protocol
    /// does so. All nodes must share memory, and all must get the same rule.
    pub fn mapping_homes(mut self, rule: MappingRule) -> Consistency {
        self.protocols.mapping = Some(rule);
        self
    }

    /// Has the engine report all that takes effect ([`Effect::Tell`]).
    pub fn telling(mut self) -> Consistency {
        self.site.tells = true;
        self
    }

    /// Lets threads take locks that no other node wants without the engine ([`crate::lease`]). Those holds
    /// are not reported.
    pub fn leasing(mut self, leases: Arc<Leases>) -> Consistency {
        self.locks.lease_by(leases);
        self
    }

    /// Sets whether pages may be fetched, or be given out, before a thread has faulted on them.
    pub fn prefetching(mut self, does: bool) -> Consistency {
        self.site.prefetches = does;
        self
    }

    /// Has every acquire end the interval, each interval get a number, and its end reported
    /// ([`Effect::IntervalEnded`]): for a protocol that looks for data races.
    pub fn ending_intervals_at_acquires(mut self) -> Consistency {
        self.site.acquires_end_intervals = true;
        self
    }

    /// Arranges the nodes in a tree with at most `below_max` nodes below each, instead of
    /// [`BELOW_MAX`](crate::barrier::BELOW_MAX). For tests.
    pub fn meeting_below(mut self, below_max: u16) -> Consistency {
        let tree = self.meeting.tree().narrowed(below_max);
        self.meeting = Meeting::new(self.site.me, tree);
        self.site.has_below = tree.below(self.site.me).next().is_some();
        self
    }

    /// Has all pages that can be lent travel with each arrival and departure ([`Engine::carry_up`],
    /// [`Engine::carry_along`]). For tests.
    pub fn carrying_all(mut self) -> Consistency {
        self.site.carries_all = true;
        self
    }

    /// Returns the number of entries that the engine keeps for the past: the interval log's pairs of writer
    /// and page. For tests that show that history is collected.
    pub fn history_len(&self) -> usize {
        self.site.log.len()
    }

    /// Returns what this node may do with a page without a fault.
    pub fn access(&self, page: PageId) -> Access {
        self.protocols.access(page)
    }

    /// Carries releases out as far as possible, one after the other.
    fn advance(&mut self) {
        loop {
            match &self.site.release {
                Some(release) if release.awaited > 0 => return,
                Some(release) => self.end_step(release.step),
                None => match self.site.releases.pop_front() {
                    Some(AfterRelease::Order { page, to, closes: false }) if self.tells_all() => {
                        self.send_in_order(page, to);
                    }
                    Some(then) => self.open_release(then),
                    None => return,
                },
            }
        }
    }

    /// Returns true if other nodes may learn of all intervals that this node has ended.
    fn tells_all(&self) -> bool {
        !self.site.out.owes() && !self.protocols.any(|protocol| protocol.withholds())
    }

    /// Informs homes that have diffs without notices, if a message of this event waits behind them: the
    /// departure may depend on it.
    fn tell_owed(&mut self) {
        let is_told_soon = |then: &AfterRelease| matches!(then, AfterRelease::Tell);
        if self.site.out.owes_urgently() && !self.site.releases.iter().any(is_told_soon) {
            self.site.release_for(AfterRelease::Tell);
        }
    }

    /// Delivers the node's messages to itself, one at a time: what one starts (a release, for example) goes
    /// as far as it can before the next.
    fn deliver_loopback(&mut self) {
        while let Some((from, bytes)) = self.site.out.next_kept() {
            let message =
                Message::decode(&bytes, &self.site.limits).expect("it was encoded here or decoded before");
            if self.comes_behind_deferred(from, &message) {
                continue;
            }
            if let Err(error) = self.handle_dispatched(from, &message) {
                self.site.out.refuse(from, &error);
            }
        }
    }

    /// Handles a message that need not wait.
    fn handle_dispatched(&mut self, from: NodeId, message: &Message<'_>) -> Result<(), ProtocolError> {
        self.dispatch(from, message)?;
        self.end_message()
    }

    /// Completes an event from this node's threads or its host.
    fn end_event(&mut self) {
        self.tell_owed();
        self.advance();
        if let Err(misfit) = self.check_touched() {
            panic!("{misfit}");
        }
    }

    /// Completes a message of another node. If it has left a page in no row, the node is refused: messages of
    /// others never make an assertion fail.
    fn end_message(&mut self) -> Result<(), ProtocolError> {
        self.tell_owed();
        self.advance();
        self.check_touched().map_err(|Misfit { page, is }| {
            unexpected(Expected::RowOfStateTable, format!("what leaves {page} as {is}"))
        })
    }

    /// Checks, with debug assertions, that each page that this event has touched fits a row of its protocol's
    /// state table.
    fn check_touched(&mut self) -> Result<(), Misfit> {
        for pages in self.site.out.take_touched() {
            for located in self.site.homes.pages_in(pages) {
                let page = located.page;
                let protocol = &self.protocols.all[self.protocols.index_of(page)];
                if let Some(Err(is)) = protocol.state(&self.site, located) {
                    return Err(Misfit { page, is });
                }
            }
        }
        Ok(())
    }

    /// Begins an event from this node's threads, its host or another node.
    ///
    /// # Panics
    /// If the host has not carried out all effects of the event before. A protocol notes what a page will be
    /// when its effects are carried out: a reply that came in between, for example, would fill a frame that
    /// has yet to be compared.
    fn begin_event(&self) {
        assert!(
            self.site.out.is_polled() && self.leaving.is_none(),
            "the host carries out the effects of an event before the next event"
        );
    }

    /// Calls `act` for each protocol.
    fn each(&mut self, act: impl FnMut(&mut dyn Coherence, &mut Site)) {
        self.protocols.each(&mut self.site, act);
    }
}

impl Engine for Consistency {
    fn add_region(&mut self, pages: PageRange, page_size: PageSize, placement: Placement) {
        self.place_region(0, pages, page_size, placement);
    }

    fn add_region_under(
        &mut self,
        protocol: Protocol,
        pages: PageRange,
        page_size: PageSize,
        placement: Placement,
    ) {
        let index = self.protocols.index_for(Keeper::Protocol(protocol));
        // Under an eager protocol an unlock is a release.
        self.locks.end_leases();
        self.place_region(index, pages, page_size, placement);
    }

    fn order_fetches(&mut self) {
        self.site.orders_fetches = true;
        self.each(|protocol, _| protocol.order_fetches());
    }

    fn use_singly(&mut self, granules: PageRange) {
        self.site.used_singly.push(granules);
    }

    fn set_team(&mut self, threads: u32) {
        self.team.set_size(threads);
    }

    fn home_of(&self, page: PageId) -> Option<NodeId> {
        self.site.homes.home_of(page)
    }

    fn page_of(&self, granule: PageId) -> Option<PageId> {
        self.site.homes.locate(granule).map(|located| located.page)
    }

    fn notes_stores(&self, page: PageId) -> bool {
        self.site.is_async(page) && !self.protocols.is_converted(self.site.locate(page).page)
    }

    fn seen(&self) -> (&VectorTimestamp, u64) {
        (&self.site.timestamp, self.site.collectives_done)
    }

    fn page_states(&self) -> Result<BTreeMap<PageId, &'static str>, Misfit> {
        let mut states = BTreeMap::new();
        for (index, protocol) in self.protocols.all.iter().enumerate() {
            // A notice may be the first message about a page, before its region is known.
            let known = protocol.known_pages().into_iter();
            for located in known.filter_map(|page| self.site.homes.locate(page)) {
                let page = located.page;
                if self.protocols.index_of(page) == index
                    && let Some(state) = protocol.state(&self.site, located)
                {
                    states.insert(page, state.map_err(|is| Misfit { page, is })?);
                }
            }
        }
        Ok(states)
    }

    fn keeps_back(&self, from: NodeId) -> bool {
        self.site.keeps_back(from)
    }

    fn locks_held(&self) -> Vec<(LockId, Waiter)> {
        self.locks.held().collect()
    }

    fn note_converted_block(&mut self, block: PageRange) {
        Consistency::note_converted_block(self, block);
    }

    fn leases(&self) -> Option<&Leases> {
        self.locks.leases()
    }

    fn handle_fault(&mut self, page: PageId, wanted: Access, waiter: Option<Waiter>) {
        self.begin_event();
        match self.site.homes.locate(page) {
            Some(located) => {
                self.site.out.note_touched(located.span());
                if !self.waits_for_conversion(located.page, wanted, waiter) {
                    self.protocols.of(located.page).fault(&mut self.site, located, wanted, waiter);
                }
                self.end_event();
            }
            None => {
                let refused = Outcome::Misuse(Misuse::NotAllocated(page));
                waiter.into_iter().for_each(|waiter| self.site.out.wake(waiter, refused));
            }
        }
    }

    fn handle_sync(&mut self, sync: Synchronisation, waiter: Waiter) {
        self.begin_event();
        self.synchronise(sync, waiter);
        self.end_event();
    }

    fn handle_atomic(&mut self, granule: PageId, offset: u32, operation: AtomicOperation, waiter: Waiter) {
        self.begin_event();
        let Some(Located { page, .. }) = self.site.homes.locate(granule) else {
            return self.site.out.wake(waiter, Outcome::Misuse(Misuse::NotAllocated(granule)));
        };
        assert!(offset.is_multiple_of(8), "an atomic word lies at a multiple of 8 bytes, not at {offset}");
        assert!(offset < self.site.limits.granule_bytes, "an atomic word lies in its granule");
        let offset = offset + (granule.0 - page.0) as u32 * self.site.limits.granule_bytes;
        let operation = WordOperation { page, offset, operation, waiter };
        if !self.operates_after_conversion(operation) {
            self.protocols.of(page).operate(&mut self.site, operation);
        }
        self.end_event();
    }

    fn handle_prefetch(&mut self, ranges: &[PageRange]) {
        self.begin_event();
        if !self.site.prefetches {
            return;
        }
        let mut by_protocol: BTreeMap<usize, Vec<PageRange>> = BTreeMap::new();
        for pages in ranges.iter().flat_map(|pages| self.site.homes.regions_in(*pages)) {
            // Converted pages among them are left out by the protocol that has given them up.
            by_protocol.entry(self.protocols.index_of_region(pages.first)).or_default().push(pages);
        }
        for (index, ranges) in by_protocol {
            self.protocols.all[index].prefetch(&mut self.site, &ranges);
        }
        self.end_event();
    }

    fn carry_along(&mut self, ranges: &[PageRange]) {
        let pages = ranges.iter().flat_map(|pages| self.site.homes.pages_in(*pages));
        self.along.extend(&pages.map(|located| located.page).collect());
    }

    fn carry_up(&mut self, ranges: &[PageRange]) {
        let pages = ranges.iter().flat_map(|pages| self.site.homes.pages_in(*pages));
        self.up.extend(&pages.map(|located| located.page).collect());
    }

    fn contribute(&mut self, bytes: Vec<u8>) {
        self.combining.contribute(bytes);
    }

    fn take_contributions(&mut self) -> BTreeMap<NodeId, Vec<u8>> {
        self.combining.take()
    }

    fn handle_shortage(&mut self, pages: &[PageId]) {
        self.begin_event();
        if self.site.release.is_some() {
            // Pages that are being compared stay; the host will ask again.
            return;
        }
        let mut by_protocol: BTreeMap<usize, Vec<PageId>> = BTreeMap::new();
        let may_leave = |page: &&PageId| self.site.homes.is_allocated(**page) && !self.is_converting(**page);
        for page in pages.iter().filter(may_leave) {
            by_protocol.entry(self.protocols.index_of(*page)).or_default().push(*page);
        }
        for (index, pages) in by_protocol {
            self.protocols.all[index].give_up(&mut self.site, &pages);
        }
        self.end_event();
    }

    fn handle_message(&mut self, from: NodeId, message: &Message<'_>) -> Result<(), ProtocolError> {
        self.begin_event();
        if self.comes_behind_kept(from, message) {
            return Ok(());
        }
        self.handle_dispatched(from, message)
    }

    fn handle_done(&mut self, done: Done) {
        let Consistency { site, protocols, .. } = self;
        match &done {
            Done::Announced { pages } => {
                protocols.each(site, |protocol, site| protocol.handle_announced(site, pages));
                if let Some(release) = &mut site.release
                    && release.step == ReleaseStep::Announcing
                {
                    release.awaited = 0;
                }
            }
            Done::Written { granules } => {
                protocols.each(site, |protocol, site| protocol.note_written(site, granules));
                // Otherwise a protocol has asked in a lull.
                if site.release.is_some() {
                    site.answered();
                }
            }
            Done::Diff { page, .. } => {
                let protocol = protocols.of(*page);
                let is_awaited = protocol.compares_at_releases();
                protocol.handle_done(site, done);
                if is_awaited {
                    site.answered();
                }
            }
            Done::Merged { page, .. } | Done::Atomic { page, .. } | Done::DiffedEarly { page, .. } => {
                let page = *page;
                protocols.of(page).handle_done(site, done);
            }
            Done::Read { pages: PageRange { first, .. }, .. } | Done::Unwritten { first, .. } => {
                let page = *first;
                protocols.of(page).handle_done(site, done);
            }
        }
        self.end_event();
    }

    fn waits_for_retained(&self) -> bool {
        self.protocols.any(|protocol| protocol.waits_for_retained())
    }

    fn handle_retained(&mut self, page: PageId) {
        self.begin_event();
        self.protocols.of(page).handle_retained(&mut self.site, page);
        self.end_event();
    }

    fn wants_lull(&self) -> bool {
        self.protocols.any(|protocol| protocol.wants_lull())
    }

    fn handle_lull(&mut self) {
        self.begin_event();
        if self.site.release.is_none() {
            self.each(|protocol, site| {
                if protocol.wants_lull() {
                    protocol.handle_lull(site);
                }
            });
            self.end_event();
        }
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        self.deliver_loopback();
        self.advance_conversions();
        if let Some(effect) = self.site.out.poll() {
            return Some(effect);
        }
        let leaving = self.leaving.take()?;
        if let Err(error) = self.leave(&leaving).and_then(|()| self.end_message()) {
            self.site.out.refuse(leaving.from, &error);
        }
        self.deliver_loopback();
        self.site.out.poll()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host that ended the time of a page and then handled a reply, before it carried out the release that
    /// gave the page away, had the reply overwrite a frame that was yet to be compared.
    #[test]
    #[should_panic(expected = "carries out the effects of an event before the next event")]
    fn a_host_that_makes_two_calls_without_carrying_out_the_effects_of_the_first_is_stopped() {
        let limits = Limits { nodes: 2, region_granules: 8, granule_bytes: 4096 };
        let mut engine = Consistency::under(Protocol::Hlrc, NodeId(1), limits, WriteTracking::Fault, []);
        let pages = PageRange { first: PageId(0), count: 4 };
        engine.add_region(pages, PageSize::KIB_4, Placement::On(NodeId::ZERO));
        engine.handle_fault(PageId(0), Access::Read, None);
        assert!(matches!(engine.poll_effect(), Some(Effect::Send { .. })));
        assert_eq!(engine.poll_effect(), None);
        engine.handle_fault(PageId(1), Access::Read, None);
        engine.handle_fault(PageId(2), Access::Read, None);
    }
}
