//! A node's engine: synchronisation, intervals, and what their ends make known, whatever protocol keeps the pages coherent.
//!
//! Read first: Keleher, Cox, Zwaenepoel, *Lazy Release Consistency for Software Distributed Shared Memory*, ISCA 1992, for intervals, vector
//! timestamps and write notices. A protocol that has nothing to tell at acquires (sequential consistency, or an eager one) changes no pages
//! as far as notices are concerned, and then locks and barriers carry none.
//!
//! Several threads a node: they share the node's pages, so only what crosses nodes is the engine's business. A node arrives at a
//! collective when all threads of its team have come. Other threads may go on and synchronise meanwhile, so a grant may
//! reach a node before the departure that its sender has seen: it waits for that; and knowledge that is later than an arrival
//! is passed on with the next one (`beyond`).

use std::collections::BTreeMap;

use hiroba_base::{
    Access, IntervalSeq, LockId, NodeId, PageId, PageRange, PageSet, PageSize, VectorTimestamp,
};
use hiroba_wire::{AtomicOperation, Collective, HomeMoves, Knowledge, Limits, Message, Placement};
use rustc_hash::FxHashMap;

use crate::aurc::mapped::{self, Mapped, MappingRule, Part};
use crate::barrier::{Arrival, Departure, Meeting, Tree};
use crate::coherence::{AfterRelease, Coherence, OpenRelease, ReleaseStep, Site, WordOperation};
use crate::cond::{CondAction, Conds};
use crate::home::Located;
use crate::interval::IntervalLog;
use crate::lock::{LockAction, Locks};
use crate::team::{Gathered, Team};
use crate::{
    Done, Effect, Engine, Fact, HomePolicy, Misfit, Misuse, Outcome, Protocol, ProtocolError,
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
    /// All have come to the collective, and those below have been told: this node leaves when its word to them is on the way.
    leaving: Option<Leaving>,
    /// Notices of other nodes that are later than a node's arrival at the collective where this node has yet to arrive.
    beyond: IntervalLog,
    /// Grants and publications whose senders have left a collective from which the departure is still on its way
    /// here: its notices must be absorbed first. No more than a grant for each lock asked for and a publication of each node.
    early: Vec<(NodeId, Vec<u8>)>,
    /// How many publications this node has sent to each other one.
    publications: FxHashMap<NodeId, u64>,
    /// Notices of pages of regions that this node's own threads have yet to hear of: which protocol they are for is not known here.
    /// No more than are written before the node comes to the next collective.
    unplaced: Vec<(NodeId, IntervalSeq, PageId)>,
}

/// What this node is told when it leaves a collective.
#[derive(Debug)]
struct Leaving {
    from: NodeId,
    epoch: u64,
    collective: Collective,
    knowledge: Knowledge,
    moves: Vec<HomeMoves>,
}

/// The protocols of a job, and which pages are whose.
#[derive(Debug)]
struct Protocols {
    /// The job's first.
    all: Vec<Box<dyn Coherence>>,
    /// What the others are.
    others: Vec<Keeper>,
    /// Which runs of pages are mapped onto their homes' frames, where nodes share memory.
    mapping: Option<MappingRule>,
    /// How many of them there are.
    runs_mapped: usize,
    /// The other nodes whose frames this one can read itself.
    reached: Vec<NodeId>,
    /// How homes move.
    home_policy: HomePolicy,
    /// Regions, and parts of them, under others than the first, by ascending first granule.
    regions: Vec<(PageRange, usize)>,
}

/// What keeps pages coherent, if not the job's first protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeper {
    Protocol(Protocol),
    /// All nodes have mapped the pages onto their home's frames.
    Mapping,
}

impl Protocols {
    fn index_of(&self, page: PageId) -> usize {
        let next = self.regions.partition_point(|(region, _)| region.first <= page);
        let before = next.checked_sub(1).map(|index| self.regions[index]);
        before.filter(|(region, _)| region.contains(page)).map_or(0, |(_, index)| index)
    }

    fn of(&mut self, page: PageId) -> &mut dyn Coherence {
        let index = self.index_of(page);
        &mut *self.all[index]
    }

    fn access(&self, page: PageId) -> Access {
        self.all[self.index_of(page)].access(page)
    }

    /// The number of what is not the first.
    fn index_for(&mut self, keeper: Keeper) -> usize {
        let known = self.others.iter().position(|other| *other == keeper);
        1 + known.unwrap_or_else(|| {
            let mut coherence: Box<dyn Coherence> = match keeper {
                Keeper::Protocol(protocol) => protocol.coherence(self.reached.iter().copied()),
                Keeper::Mapping => Box::new(Mapped::default()),
            };
            coherence.move_homes(self.home_policy);
            self.others.push(keeper);
            self.all.push(coherence);
            self.others.len() - 1
        })
    }

    /// These pages are under the one of that number.
    fn give(&mut self, pages: PageRange, index: usize) {
        if index > 0 {
            let at = self.regions.partition_point(|(region, _)| region.first < pages.first);
            self.regions.insert(at, (pages, index));
        }
    }
}

impl Consistency {
    /// The engine of node `me`, with nothing allocated.
    pub fn new(
        me: NodeId,
        limits: Limits,
        tracking: WriteTracking,
        protocol: Box<dyn Coherence>,
    ) -> Consistency {
        let nodes = limits.nodes;
        Consistency {
            site: Site::new(me, limits, tracking),
            protocols: Protocols {
                all: vec![protocol],
                others: Vec::new(),
                mapping: None,
                runs_mapped: 0,
                reached: Vec::new(),
                home_policy: HomePolicy::Fixed,
                regions: Vec::new(),
            },
            locks: Locks::new(me, nodes),
            conds: Conds::default(),
            team: Team::of_one(),
            meeting: Meeting::new(me, Tree::of(nodes)),
            leaving: None,
            beyond: IntervalLog::new(nodes),
            early: Vec::new(),
            publications: FxHashMap::default(),
            unplaced: Vec::new(),
        }
    }

    /// The engine of node `me` under a protocol. `reached` are the other nodes whose frames it can read itself.
    pub fn under(
        protocol: Protocol,
        me: NodeId,
        limits: Limits,
        tracking: WriteTracking,
        reached: impl IntoIterator<Item = NodeId>,
    ) -> Consistency {
        let reached: Vec<NodeId> = reached.into_iter().collect();
        let mut engine = Consistency::new(me, limits, tracking, protocol.coherence(reached.iter().copied()));
        engine.protocols.reached = reached;
        engine
    }

    /// Lets homes move, under the protocols that can do that. No region has been added yet.
    pub fn moving_homes(mut self, policy: HomePolicy) -> Consistency {
        self.protocols.home_policy = policy;
        self.protocols.all.iter_mut().for_each(|protocol| protocol.move_homes(policy));
        self
    }

    /// Has regions that are added from now on mapped onto their homes' frames by this rule, as far as they are under a protocol that does
    /// so: where all nodes share memory. All nodes must be told alike.
    pub fn mapping_homes(mut self, rule: MappingRule) -> Consistency {
        self.protocols.mapping = Some(rule);
        self
    }

    /// Has the engine tell what takes effect: [`Effect::Tell`].
    pub fn telling(mut self) -> Consistency {
        self.site.tells = true;
        self
    }

    /// Whether pages may come, or be given out, before anybody has faulted on them.
    pub fn fetching_ahead(mut self, does: bool) -> Consistency {
        self.site.fetches_ahead = does;
        self
    }

    /// Has every acquire end the interval, each interval have a number, and its end made known ([`Effect::IntervalEnded`]): for a protocol
    /// that looks for data races.
    pub fn ending_intervals_at_acquires(mut self) -> Consistency {
        self.site.acquires_end_intervals = true;
        self
    }

    /// Arranges the nodes in a tree with up to `below_max` nodes below each, instead of [`BELOW_MAX`](crate::barrier::BELOW_MAX): for tests.
    pub fn meeting_below(mut self, below_max: u16) -> Consistency {
        self.meeting = Meeting::new(self.site.me, self.meeting.tree().narrowed(below_max));
        self
    }

    /// How many entries the engine keeps for the past: the interval log's pairs of writer and page. For tests that
    /// show that history is collected.
    pub fn history_len(&self) -> usize {
        self.site.log.len()
    }

    /// What this node may do with a page without a fault.
    pub fn access(&self, page: PageId) -> Access {
        self.protocols.access(page)
    }

    /// Takes releases as far as they go, one after the other.
    fn advance(&mut self) {
        loop {
            match &self.site.release {
                Some(release) if release.awaited > 0 => return,
                Some(release) => self.end_step(release.step),
                None => match self.site.releases.pop_front() {
                    Some(then) => self.open_release(then),
                    None => return,
                },
            }
        }
    }

    /// One message at a time: what it starts (a release, say) goes as far as it can before the next.
    fn deliver_loopback(&mut self) {
        while let Some((from, bytes)) = self.site.out.next_kept() {
            let message =
                Message::decode(&bytes, &self.site.limits).expect("it was encoded here or decoded before");
            if self.comes_behind_ahead(from, &message) {
                continue;
            }
            if let Err(error) = self.dispatch(from, &message) {
                self.site.out.refuse(from, &error);
            }
            self.advance();
        }
    }
}

/// Releases: closing an interval.
impl Consistency {
    fn open_release(&mut self, then: AfterRelease) {
        let seq = self.site.timestamp.get(self.site.me) + 1;
        let step = ReleaseStep::Announcing;
        let noticed = PageSet::new();
        let is_read_from = self.protocols.all.iter().any(|protocol| protocol.is_read_from());
        let awaited = usize::from(is_read_from);
        self.site.release = Some(OpenRelease { seq, step, awaited, noticed, then });
        if is_read_from {
            self.site.out.push(Effect::TakeAnnouncements);
        }
    }

    fn end_step(&mut self, step: ReleaseStep) {
        let (site, protocols) = (&mut self.site, &mut self.protocols.all);
        let release = site.release.as_mut().expect("a release is open");
        release.step = match step {
            ReleaseStep::Announcing => ReleaseStep::Collecting,
            ReleaseStep::Collecting => ReleaseStep::Comparing,
            ReleaseStep::Comparing => ReleaseStep::Flushing,
            ReleaseStep::Flushing => return self.finish_release(),
        };
        match release.step {
            ReleaseStep::Collecting if site.tracking == WriteTracking::Async => {
                site.await_answers(1);
                protocols.iter_mut().for_each(|protocol| protocol.prepare_release(site));
                site.out.push(Effect::CollectWritten);
            }
            ReleaseStep::Comparing => protocols.iter_mut().for_each(|protocol| protocol.close(site)),
            ReleaseStep::Flushing => protocols.iter_mut().for_each(|protocol| protocol.flush(site)),
            ReleaseStep::Announcing | ReleaseStep::Collecting => {}
        }
    }

    fn finish_release(&mut self) {
        let OpenRelease { seq, noticed, then, .. } = self.site.release.take().expect("a release is open");
        assert_eq!(
            seq,
            self.site.timestamp.get(self.site.me) + 1,
            "intervals are numbered one after the other"
        );
        let makes_known = self.site.acquires_end_intervals;
        if makes_known || !noticed.is_empty() {
            self.site.tell(|| Some(Fact::Closed { seq, pages: noticed.clone() }));
            self.site.timestamp.advance(self.site.me, seq);
            self.site.log.record(self.site.me, seq, &noticed);
        }
        if makes_known {
            // As it is now: with the effects that follow this node may leave a collective, and have seen what is concurrent.
            let (timestamp, epoch) = (self.site.timestamp.clone(), self.site.collectives_done);
            self.site.out.push(Effect::IntervalEnded { seq, timestamp, epoch });
        }
        self.after_release(then);
    }

    fn after_release(&mut self, then: AfterRelease) {
        match then {
            AfterRelease::Unlock(lock, waiter) => {
                self.give_up(lock, waiter);
                self.site.out.wake(waiter, Outcome::Done);
            }
            AfterRelease::Wait(lock, waiter) => {
                self.give_up(lock, waiter);
                if self.conds.released(waiter) {
                    self.synchronise(Synchronisation::Acquire(lock), waiter);
                }
            }
            AfterRelease::Acquire(sync, waiter) => self.begin_acquire(sync, waiter),
            AfterRelease::Arrive(collective) => self.arrive(collective),
            AfterRelease::Publish(to, waiter) => {
                // What `to` has seen is not known here: it gets all since the last barrier.
                let knowledge = self.knowledge_beyond(&VectorTimestamp::new(self.site.limits.nodes));
                let next = self.publications.entry(to).or_default();
                let count = *next;
                *next += 1;
                self.site.tell(|| Some(Fact::Published { waiter, to, count }));
                self.site.out.send(to, &Message::Publish { knowledge, count });
                self.site.out.wake(waiter, Outcome::Done);
            }
            AfterRelease::Move => {
                let Consistency { site, protocols, .. } = self;
                protocols.all.iter_mut().for_each(|protocol| protocol.move_after_release(site));
            }
            AfterRelease::Operate(operation) => {
                self.protocols.of(operation.page).operate_after_release(&mut self.site, operation);
            }
            AfterRelease::Continue(page) => self.protocols.of(page).go_on_after_release(&mut self.site, page),
        }
    }
}

/// Acquires: learning what changed from write notices (Keleher, Cox, Zwaenepoel).
impl Consistency {
    /// What someone who has seen `timestamp` must be told.
    fn knowledge_beyond(&self, timestamp: &VectorTimestamp) -> Knowledge {
        Knowledge {
            timestamp: self.site.timestamp.clone(),
            notices: self.site.log.beyond(timestamp),
            epoch: self.site.collectives_done,
            beyond_arrival: self.team.has_arrived() || !self.beyond.is_empty(),
        }
    }

    /// Declares a region that the protocol of this number keeps coherent, but for what is mapped.
    fn place_region(&mut self, index: usize, region: PageRange, page_size: PageSize, placement: Placement) {
        let placement = match placement {
            Placement::FirstTouch if !self.protocols.all[index].can_move_homes() => Placement::Block,
            other => other,
        };
        let granule_bytes = self.site.limits.granule_bytes;
        let granules_per_page = page_size.bytes() as u64 / u64::from(granule_bytes);
        let rule = self.protocols.mapping.filter(|_| self.protocols.all[index].maps_homes());
        let whole = || vec![Part { granules: region, mapped_onto: None }];
        let parts = rule.map_or_else(whole, |rule| {
            let left = mapped::RUNS_MAX - self.protocols.runs_mapped;
            rule.parts(&self.site.homes, region, granules_per_page, placement, granule_bytes, left)
        });
        for Part { granules, mapped_onto } in parts {
            let placement = match (placement, mapped_onto) {
                // Nobody is without a page that all have mapped, so nobody is the first to touch it.
                (Placement::FirstTouch, Some(_)) => Placement::Block,
                (other, _) => other,
            };
            self.site.homes.add_part(granules, region, granules_per_page, placement);
            let index = match mapped_onto {
                Some(home) => {
                    self.protocols.runs_mapped += 1;
                    self.site.out.push(Effect::MapHome { pages: granules, home });
                    self.protocols.index_for(Keeper::Mapping)
                }
                None => index,
            };
            self.protocols.give(granules, index);
            self.place_notices(granules);
        }
        self.site.out.keep(std::mem::take(&mut self.site.ahead));
    }

    /// The region is known now: passes on what has been noticed of it.
    fn place_notices(&mut self, region: PageRange) {
        let Consistency { site, protocols, unplaced, .. } = self;
        let mut voided = PageSet::new();
        for (writer, seq, page) in unplaced.extract_if(.., |(_, _, page)| region.contains(*page)) {
            protocols.of(page).handle_notice(site, writer, seq, page, &mut voided);
        }
        debug_assert!(voided.is_empty(), "nobody has touched a page of a region that is new");
    }

    /// The pages that lost their access by it.
    fn absorb(&mut self, knowledge: &Knowledge, keep_for_others: bool) -> PageSet {
        let Consistency { site, protocols, beyond, team, unplaced, .. } = self;
        let mut voided = PageSet::new();
        // The manager will count us as having seen what we tell with our arrival, so we must be able to tell it.
        let for_arrival =
            knowledge.beyond_arrival && knowledge.epoch == site.collectives_done && !team.has_arrived();
        for notice in &knowledge.notices {
            if notice.node == site.me || notice.seq <= site.timestamp.get(notice.node) {
                continue;
            }
            if keep_for_others {
                site.log.record(notice.node, notice.seq, &notice.pages);
            }
            if for_arrival {
                beyond.record(notice.node, notice.seq, &notice.pages);
            }
            for page in notice.pages.iter() {
                if site.homes.locate(page).is_some() {
                    protocols.of(page).handle_notice(site, notice.node, notice.seq, page, &mut voided);
                } else {
                    unplaced.push((notice.node, notice.seq, page));
                }
            }
        }
        let before = site.tells.then(|| site.timestamp.clone());
        site.timestamp.merge(&knowledge.timestamp);
        site.invalidate(&voided, |page| protocols.access(page));
        protocols.all.iter_mut().for_each(|protocol| protocol.end_invalidation(site));
        if let Some(before) = before {
            let seen = Fact::seen(site.me, &before, &site.timestamp);
            site.tell(|| seen);
        }
        voided
    }
}

/// Locks and condition variables.
impl Consistency {
    fn carry_out(&mut self, actions: impl IntoIterator<Item = LockAction>) {
        for action in actions {
            match action {
                LockAction::Send { to, message } => self.site.out.send(to, &message),
                LockAction::Grant { to, lock, timestamp, turn } => {
                    let Consistency { site, protocols, .. } = self;
                    let all = protocols.all.iter_mut();
                    all.for_each(|protocol| protocol.hand_over(site, lock, to, &timestamp));
                    let knowledge = self.knowledge_beyond(&timestamp);
                    self.site.out.send(to, &Message::LockGrant { lock, turn, knowledge });
                }
                LockAction::Acquired { waiter, lock, turn } => {
                    self.site.tell(|| Some(Fact::Acquired { waiter, lock, turn }));
                    self.site.out.wake(waiter, Outcome::Done);
                }
                LockAction::Refused(waiter) => self.site.out.wake(waiter, Outcome::Refused),
            }
        }
    }

    /// The interval that the hold belongs to is closed.
    fn give_up(&mut self, lock: LockId, waiter: Waiter) {
        let hold = self.locks.hold_of(lock);
        debug_assert_eq!(hold.map(|(holder, _)| holder), Some(waiter), "only its holder gives a lock up");
        if let Some((_, turn)) = hold {
            self.site.tell(|| Some(Fact::Released { waiter, lock, turn }));
        }
        let actions = self.locks.release(lock, &self.site.timestamp);
        self.carry_out(actions);
    }

    fn acquire_lock(&mut self, lock: LockId, waiter: Waiter) {
        match self.locks.acquire(lock, waiter, &self.site.timestamp) {
            Ok(actions) => self.carry_out(actions),
            Err(misuse) => self.site.out.wake(waiter, Outcome::Misuse(misuse)),
        }
    }

    fn begin_acquire(&mut self, sync: Synchronisation, waiter: Waiter) {
        match sync {
            Synchronisation::TryAcquire(lock) => {
                let action = self.locks.try_acquire(lock, waiter, &self.site.timestamp);
                self.carry_out([action]);
            }
            Synchronisation::Acquire(lock) => self.acquire_lock(lock, waiter),
            other => unreachable!("{other:?} acquires nothing"),
        }
    }

    fn synchronise(&mut self, sync: Synchronisation, waiter: Waiter) {
        let nodes = self.site.limits.nodes;
        let out = &mut self.site.out;
        match sync {
            Synchronisation::Acquire(_) | Synchronisation::TryAcquire(_)
                if self.site.acquires_end_intervals =>
            {
                self.site.release_for(AfterRelease::Acquire(sync, waiter));
            }
            Synchronisation::Acquire(_) | Synchronisation::TryAcquire(_) => self.begin_acquire(sync, waiter),
            Synchronisation::Release(lock) | Synchronisation::Wait(_, lock)
                if !self.locks.is_held_by(lock, waiter) =>
            {
                out.wake(waiter, Outcome::Misuse(Misuse::NotHeld(lock)));
            }
            Synchronisation::Release(lock) => self.site.release_for(AfterRelease::Unlock(lock, waiter)),
            Synchronisation::Wait(cond, lock) => {
                self.conds.begin_wait(waiter, lock);
                out.send(cond.manager(nodes), &Message::CondWait { cond, ticket: waiter.0 });
            }
            Synchronisation::Signal(cond) | Synchronisation::Broadcast(cond) => {
                let all = matches!(sync, Synchronisation::Broadcast(_));
                out.send(cond.manager(nodes), &Message::CondSignal { cond, all });
                out.wake(waiter, Outcome::Done);
            }
            Synchronisation::Collective(collective) => self.gather(collective, waiter),
            Synchronisation::Publish(to) => self.site.release_for(AfterRelease::Publish(to, waiter)),
        }
    }
}

/// Collectives: arrival and departure along the tree of nodes ([`crate::barrier`]), and what crosses them.
impl Consistency {
    /// A thread has come to a collective; the node arrives with the last thread of its team.
    fn gather(&mut self, collective: Collective, waiter: Waiter) {
        match self.team.gather(collective, waiter, self.locks.any_held()) {
            Gathered::Waiting => {}
            Gathered::All => self.site.release_for(AfterRelease::Arrive(collective)),
            Gathered::Refused(misuse) => self.site.out.wake(waiter, Outcome::Misuse(misuse)),
            Gathered::Mismatch(sentence) => self.site.out.end_job(sentence),
        }
    }

    /// This node has come.
    fn arrive(&mut self, collective: Collective) {
        let site = &self.site;
        let mut notices = site.log.of(site.me);
        notices.extend(self.beyond.beyond(&VectorTimestamp::new(site.limits.nodes)));
        let epoch = site.collectives_done;
        let timestamp = site.timestamp.clone();
        let knowledge = Knowledge { timestamp, notices, epoch, beyond_arrival: false };
        let Consistency { site, protocols, .. } = self;
        // Who leaves reads and hands over nothing any more.
        let goes_on = !collective.ends_the_job();
        let mut moves = Vec::new();
        for protocol in protocols.all.iter_mut().filter(|_| goes_on) {
            protocol.supply(site);
            moves.extend(protocol.give_away(site));
        }
        let (caller, least) = (site.me, None);
        let arrival = Arrival { collective, caller, least, knowledge, moves };
        let arrived = self.handle_arrival(caller, epoch, arrival);
        arrived.expect("a node arrives once at the collective after those that it has completed");
    }

    fn handle_arrival(&mut self, from: NodeId, epoch: u64, arrival: Arrival) -> Result<(), ProtocolError> {
        let out = &mut self.site.out;
        if let Some(departure) = self.meeting.handle_arrival(from, epoch, arrival, out)? {
            self.handle_departure(self.site.me, epoch, departure)?;
        }
        Ok(())
    }

    /// All nodes have come: those below are told, and this node leaves as soon as that is done ([`leave`](Self::leave)), since they wait.
    fn handle_departure(
        &mut self,
        from: NodeId,
        epoch: u64,
        departure: Departure,
    ) -> Result<(), ProtocolError> {
        let out = &mut self.site.out;
        let knowledge = self.meeting.handle_departure(from, epoch, &departure, out)?;
        let Departure { collective, moves, .. } = departure;
        self.leaving = Some(Leaving { from, epoch, collective, knowledge, moves });
        Ok(())
    }

    /// This node is told what the others know.
    fn leave(&mut self, leaving: &Leaving) -> Result<(), ProtocolError> {
        let Leaving { epoch, collective, ref knowledge, ref moves, .. } = *leaving;
        self.site.collectives_done += 1;
        let voided = self.absorb(knowledge, false);
        let Consistency { site, protocols, .. } = self;
        let each = protocols.all.iter_mut();
        each.for_each(|protocol| protocol.handle_meeting(site, &knowledge.timestamp));
        self.handle_moves(moves)?;
        let Consistency { site, protocols, .. } = self;
        protocols.all.iter_mut().for_each(|protocol| protocol.take_supplies(site));
        // Everybody has seen every interval up to here: nobody will ask for these notices again.
        site.log.forget_through(&knowledge.timestamp);
        self.beyond = IntervalLog::new(site.limits.nodes);
        for waiter in self.team.disperse() {
            site.tell(|| Some(Fact::Met { waiter, epoch }));
            site.out.wake(waiter, Outcome::Collective(collective));
        }
        for (from, bytes) in std::mem::take(&mut self.early) {
            let message = Message::decode(&bytes, &self.site.limits).expect("it was decoded when it came");
            self.dispatch(from, &message)?;
        }
        // Last: what is read from a home's frame must hold all that is known by then. Who leaves reads nothing any more.
        if !collective.ends_the_job() {
            let Consistency { site, protocols, .. } = self;
            protocols.all.iter_mut().for_each(|protocol| protocol.begin_phase(site, &voided));
        }
        Ok(())
    }

    /// Everybody has agreed on these at the same collective.
    fn handle_moves(&mut self, moves: &[HomeMoves]) -> Result<(), ProtocolError> {
        let Consistency { site, protocols, .. } = self;
        let mut of_each: BTreeMap<usize, Vec<(PageId, NodeId)>> = BTreeMap::new();
        for HomeMoves { to, pages } in moves {
            for page in pages.iter() {
                if site.homes.locate(page).is_none_or(|located| located.page != page || located.home == *to) {
                    let got = format!("a move of {page} to node {to}");
                    return Err(unexpected("moves of allocated pages to another home", got));
                }
                of_each.entry(protocols.index_of(page)).or_default().push((page, *to));
            }
        }
        for (index, moves) in of_each {
            protocols.all[index].handle_moves(site, &moves)?;
        }
        Ok(())
    }

    /// Whether the sender has left a collective from which this node has not heard yet. If so, the message must wait.
    fn comes_early(&self, knowledge: &Knowledge) -> bool {
        knowledge.epoch > self.site.collectives_done
    }

    /// Keeps a message for when its sender's last collective is over here too; a later publication tells all that an
    /// earlier one did.
    fn keep_early(&mut self, from: NodeId, message: &Message<'_>) {
        let limits = self.site.limits;
        let is_publication =
            |bytes: &[u8]| matches!(Message::decode(bytes, &limits), Ok(Message::Publish { .. }));
        if matches!(message, Message::Publish { .. }) {
            let older =
                self.early.iter().position(|(sender, bytes)| *sender == from && is_publication(bytes));
            older.map(|index| self.early.remove(index));
        }
        self.early.push((from, message.encode()));
    }
}

/// The page that a message is about: the first one, if there are several; they are all of one protocol.
#[derive(Clone, Copy)]
struct Subject {
    page: PageId,
    /// All of them are allocated, as far as this node has heard.
    is_known: bool,
    /// The message asks or tells the page's home (or manager) something, which may be the first thing that this node hears of the region.
    is_for_home: bool,
}

fn subject(message: &Message<'_>, is_known: impl Fn(PageId) -> bool) -> Option<Subject> {
    let (page, is_known, is_for_home) = match message {
        Message::PageRequest { page, .. }
        | Message::AtomicRequest { page, .. }
        | Message::CopyRequest { page, .. }
        | Message::OwnershipRequest { page }
        | Message::OwnershipForward { page, .. }
        | Message::AtomicForward { page, .. }
        | Message::HomeMoved { page, .. }
        | Message::HomeMovesHeard { page, .. }
        | Message::DiffsRequest { page, .. }
        | Message::HoldRequest { page, .. } => (Some(*page), is_known(*page), true),
        Message::AtomicReply { page, .. }
        | Message::Ownership { page, .. }
        | Message::InvalidateCopy { page }
        | Message::CopyInvalidated { page }
        | Message::DiffsPerformed { page, .. }
        | Message::CopiesSettled { page, .. }
        | Message::HomeTransfer { page, .. }
        | Message::DiffsReply { page, .. }
        | Message::DiffsCollected { page }
        | Message::Held { page, .. }
        | Message::WordReply { page, .. } => (Some(*page), is_known(*page), false),
        Message::StandingOrder { pages, .. } => (pages.iter().next(), pages.iter().all(is_known), true),
        Message::InvalidateCopies { pages, .. } => (pages.iter().next(), pages.iter().all(is_known), false),
        Message::UpdateCopies { diffs, .. } => {
            let mut pages = diffs.iter().map(|diff| diff.page);
            let first = pages.next();
            (first, first.into_iter().chain(pages).all(is_known), false)
        }
        Message::PagesRequest { wanted, .. } => {
            let mut pages = wanted.iter().flat_map(|group| group.pages.iter());
            let first = pages.next();
            (first, first.into_iter().chain(pages).all(is_known), true)
        }
        Message::Diffs { diffs, .. }
        | Message::EagerDiffs { diffs, .. }
        | Message::EarlyDiffs { diffs, .. } => {
            let mut pages = diffs.iter().map(|diff| diff.page);
            let first = pages.next();
            (first, first.into_iter().chain(pages).all(is_known), true)
        }
        Message::HomeHandedOver { pages } => {
            let mut pages = pages.iter().map(|handed| handed.page);
            let first = pages.next();
            (first, first.into_iter().chain(pages).all(is_known), false)
        }
        Message::PagesReply { copies, .. } | Message::PagesSupplied { copies, .. } => {
            let mut pages = copies.iter().map(|copy| copy.page);
            let first = pages.next();
            (first, first.into_iter().chain(pages).all(is_known), false)
        }
        // About no page that a protocol keeps coherent.
        Message::LockRequest { .. }
        | Message::LockForward { .. }
        | Message::LockGrant { .. }
        | Message::LockTry { .. }
        | Message::LockTryForward { .. }
        | Message::LockTryOutcome { .. }
        | Message::LockTryRefused { .. }
        | Message::CondWait { .. }
        | Message::CondNoted { .. }
        | Message::CondSignal { .. }
        | Message::CondWake { .. }
        | Message::Arrive { .. }
        | Message::Depart { .. }
        | Message::Publish { .. }
        // Between hosts.
        | Message::TouchedPages { .. }
        | Message::TouchedAll
        | Message::TouchedHeard
        | Message::Free { .. }
        | Message::SizeRequest { .. }
        | Message::SizeReply { .. }
        | Message::ProgramData { .. }
        | Message::Alive => return None,
    };
    page.map(|page| Subject { page, is_known, is_for_home })
}

/// Messages.
impl Consistency {
    fn subject(&self, message: &Message<'_>) -> Option<Subject> {
        subject(message, |page| self.site.homes.is_allocated(page))
    }

    /// Keeps what is said to a home whose sender's earlier words are kept, or not handled yet: a later diff must not be applied before an earlier
    /// one, nor a page be served without diffs that its reader has sent. Whether it did.
    fn comes_behind_kept(&mut self, from: NodeId, message: &Message<'_>) -> bool {
        if self.comes_behind_ahead(from, message) {
            return true;
        }
        let waits = |kept: &(NodeId, Vec<u8>)| kept.0 == from;
        let is_behind = self.site.out.kept().any(waits) && self.is_for_home(message);
        if is_behind {
            self.site.out.keep([(from, message.encode())]);
        }
        is_behind
    }

    fn is_for_home(&self, message: &Message<'_>) -> bool {
        self.subject(message).is_some_and(|subject| subject.is_for_home)
    }

    /// Keeps what is said to a home behind what its sender said too early. Whether it did.
    fn comes_behind_ahead(&mut self, from: NodeId, message: &Message<'_>) -> bool {
        let is_behind =
            self.site.ahead.iter().any(|(sender, _)| *sender == from) && self.is_for_home(message);
        if is_behind {
            self.site.ahead.push((from, message.encode()));
        }
        is_behind
    }

    fn dispatch(&mut self, from: NodeId, message: &Message<'_>) -> Result<(), ProtocolError> {
        if let Some(subject) = self.subject(message) {
            return self.dispatch_to_protocol(from, message, subject);
        }
        let out = &mut self.site.out;
        if let Some(actions) = self.locks.handle_message(from, message, &self.site.timestamp)? {
            self.carry_out(actions);
            return Ok(());
        }
        if let Some(action) = self.conds.handle_message(from, message, out)? {
            match action {
                CondAction::Nothing => {}
                CondAction::Release(lock, waiter) => self.site.release_for(AfterRelease::Wait(lock, waiter)),
                CondAction::Acquire(lock, waiter) => self.synchronise(Synchronisation::Acquire(lock), waiter),
            }
            return Ok(());
        }
        match message {
            Message::LockGrant { knowledge, .. } | Message::Publish { knowledge, .. }
                if self.comes_early(knowledge) =>
            {
                self.keep_early(from, message);
            }
            Message::LockGrant { lock, turn, knowledge } => {
                let voided = self.absorb(knowledge, true);
                let action = self.locks.handle_grant(*lock, *turn)?;
                let Consistency { site, protocols, .. } = self;
                let all = protocols.all.iter_mut();
                all.for_each(|protocol| protocol.begin_hold(site, *lock, &voided));
                self.carry_out([action]);
            }
            Message::Publish { knowledge, count } => {
                self.absorb(knowledge, true);
                self.site.tell(|| Some(Fact::PublicationSeen { from, count: *count }));
            }
            Message::Arrive { epoch, collective, caller, least, knowledge, moves } => {
                let (least, knowledge) = (least.clone(), knowledge.clone());
                let (collective, caller, moves) = (*collective, *caller, moves.clone());
                let arrival = Arrival { collective, caller, least, knowledge, moves };
                self.handle_arrival(from, *epoch, arrival)?;
            }
            Message::Depart { epoch, collective, knowledge, moves } => {
                let (news, moves) = (knowledge.clone(), moves.clone());
                let departure = Departure { collective: *collective, news, moves };
                self.handle_departure(from, *epoch, departure)?;
            }
            _ => {
                return Err(unexpected(
                    "a message of the protocol",
                    "one for the host, or without pages".to_owned(),
                ));
            }
        }
        Ok(())
    }

    fn dispatch_to_protocol(
        &mut self,
        from: NodeId,
        message: &Message<'_>,
        subject: Subject,
    ) -> Result<(), ProtocolError> {
        match subject {
            Subject { page, is_known: true, .. } => {
                self.protocols.of(page).handle_message(&mut self.site, from, message)
            }
            Subject { is_for_home: true, .. } => {
                self.site.ahead.push((from, message.encode()));
                Ok(())
            }
            Subject { page, .. } => {
                Err(unexpected("an answer about allocated pages", format!("one about {page}")))
            }
        }
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
        self.place_region(index, pages, page_size, placement);
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
        self.site.is_async(page)
    }

    fn seen(&self) -> (&VectorTimestamp, u64) {
        (&self.site.timestamp, self.site.collectives_done)
    }

    fn page_states(&self) -> Result<BTreeMap<PageId, &'static str>, Misfit> {
        let mut states = BTreeMap::new();
        for (index, protocol) in self.protocols.all.iter().enumerate() {
            // A notice may be the first thing that is heard of a page, before its region.
            let known = protocol.known_pages().into_iter();
            for located in known.filter_map(|page| self.site.homes.locate(page)) {
                let page = located.page;
                if self.protocols.index_of(page) == index {
                    let state = protocol.state(&self.site, located);
                    states.insert(page, state.map_err(|is| Misfit { page, is })?);
                }
            }
        }
        Ok(states)
    }

    fn keeps_back(&self, from: NodeId) -> bool {
        self.early.iter().any(|(sender, _)| *sender == from)
    }

    fn locks_held(&self) -> Vec<(LockId, Waiter)> {
        self.locks.held().collect()
    }

    fn handle_fault(&mut self, page: PageId, wanted: Access, waiter: Option<Waiter>) {
        match self.site.homes.locate(page) {
            Some(located) => {
                self.protocols.of(located.page).fault(&mut self.site, located, wanted, waiter);
                self.advance();
            }
            None => {
                let refused = Outcome::Misuse(Misuse::NotAllocated(page));
                waiter.into_iter().for_each(|waiter| self.site.out.wake(waiter, refused));
            }
        }
    }

    fn handle_sync(&mut self, sync: Synchronisation, waiter: Waiter) {
        self.synchronise(sync, waiter);
        self.advance();
    }

    fn handle_atomic(&mut self, granule: PageId, offset: u32, operation: AtomicOperation, waiter: Waiter) {
        let Some(Located { page, .. }) = self.site.homes.locate(granule) else {
            return self.site.out.wake(waiter, Outcome::Misuse(Misuse::NotAllocated(granule)));
        };
        let offset = offset + (granule.0 - page.0) as u32 * self.site.limits.granule_bytes;
        let operation = WordOperation { page, offset, operation, waiter };
        self.protocols.of(page).operate(&mut self.site, operation);
        self.advance();
    }

    fn handle_prefetch(&mut self, ranges: &[PageRange]) {
        if !self.site.fetches_ahead {
            return;
        }
        let mut by_protocol: BTreeMap<usize, Vec<PageRange>> = BTreeMap::new();
        for pages in ranges.iter().flat_map(|pages| self.site.homes.regions_in(*pages)) {
            by_protocol.entry(self.protocols.index_of(pages.first)).or_default().push(pages);
        }
        for (index, ranges) in by_protocol {
            self.protocols.all[index].prefetch(&mut self.site, &ranges);
        }
        self.advance();
    }

    fn handle_message(&mut self, from: NodeId, message: &Message<'_>) -> Result<(), ProtocolError> {
        if self.comes_behind_kept(from, message) {
            return Ok(());
        }
        self.dispatch(from, message)?;
        self.advance();
        Ok(())
    }

    fn handle_done(&mut self, done: Done) {
        let Consistency { site, protocols, .. } = self;
        let all = protocols.all.iter_mut();
        match &done {
            Done::Announced { pages } => {
                all.for_each(|protocol| protocol.handle_announced(site, pages));
                if let Some(release) = &mut site.release
                    && release.step == ReleaseStep::Announcing
                {
                    release.awaited = 0;
                }
            }
            Done::Written { granules } => {
                all.for_each(|protocol| protocol.note_written(site, granules));
                // Else a protocol has asked in a lull.
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
        self.advance();
    }

    fn waits_for_holds(&self) -> bool {
        self.protocols.all.iter().any(|protocol| protocol.waits_for_holds())
    }

    fn handle_held(&mut self, page: PageId) {
        self.protocols.of(page).handle_held(&mut self.site, page);
        self.advance();
    }

    fn wants_lull(&self) -> bool {
        self.protocols.all.iter().any(|protocol| protocol.wants_lull())
    }

    fn handle_lull(&mut self) {
        let Consistency { site, protocols, .. } = self;
        if site.release.is_none() {
            let wanting = protocols.all.iter_mut().filter(|protocol| protocol.wants_lull());
            wanting.for_each(|protocol| protocol.handle_lull(site));
        }
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        self.deliver_loopback();
        if let Some(effect) = self.site.out.poll() {
            return Some(effect);
        }
        let leaving = self.leaving.take()?;
        if let Err(error) = self.leave(&leaving) {
            self.site.out.refuse(leaving.from, &error);
        }
        self.advance();
        self.deliver_loopback();
        self.site.out.poll()
    }
}
