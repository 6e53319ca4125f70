//! Collectives: arrival and departure along the tree of nodes ([`crate::barrier`]), and what crosses them.

use std::collections::{BTreeMap, BTreeSet};

use hiroba_base::{NodeId, PageSet, VectorTimestamp};
use hiroba_wire::{Collective, HomeMoves, Knowledge, Message, MoveKind};

use super::{Consistency, Leaving};
use crate::barrier::{Arrival, Departure};
use crate::coherence::{AfterRelease, PageMove};
use crate::interval::IntervalLog;
use crate::team::Gathered;
use crate::{Expected, Fact, Outcome, ProtocolError, Waiter, unexpected};

/// The node that all others arrive at.
const ROOT: NodeId = NodeId(0);

impl Consistency {
    /// Notes that a thread has come to a collective; the node arrives with the last thread of its team.
    pub(super) fn gather(&mut self, collective: Collective, waiter: Waiter) {
        match self.team.gather(collective, waiter, self.locks.any_held()) {
            Gathered::Waiting => self.conclude_without_halted(),
            Gathered::All => {
                self.prepare_meeting(collective);
                self.site.release_for(AfterRelease::Arrive(collective));
            }
            Gathered::Over => self.site.out.wake(waiter, Outcome::Collective(Collective::LeaveHalted)),
            Gathered::Refused(misuse) => self.site.out.wake(waiter, Outcome::Misuse(misuse)),
            Gathered::Mismatch(sentence) => self.site.out.end_job(sentence),
        }
    }

    /// Lets each protocol prepare for a collective, and names the pages that travel with its departure, and
    /// with this node's arrival.
    fn prepare_meeting(&mut self, collective: Collective) {
        let Consistency { site, protocols, along, up, meeting, .. } = self;
        let (mut along, mut up) = (std::mem::take(along), std::mem::take(up));
        if collective.ends_the_job() {
            (along, up) = (PageSet::new(), PageSet::new());
        }
        // What a node below another one than the root has, the root requests.
        let is_below_root = meeting.tree().above(site.me) == Some(ROOT);
        for index in 0..protocols.all.len() {
            let known = if site.carries_all { protocols.all[index].known_pages() } else { Vec::new() };
            let own = |pages: &PageSet| -> PageSet {
                let pages = pages.iter().chain(known.iter().copied());
                pages
                    .filter(|page| site.homes.is_allocated(*page) && protocols.index_of(*page) == index)
                    .collect()
            };
            let (along, up) = (own(&along), if is_below_root { own(&up) } else { PageSet::new() });
            protocols.all[index].prepare_meeting(site, &along, &up);
        }
    }

    /// Handles that a thread waits for the arrivals of all other nodes.
    pub(super) fn await_others(&mut self, waiter: Waiter) {
        if self.site.me != ROOT || self.team.has_arrived() {
            return self.site.out.wake(waiter, Outcome::Others { have_news: true });
        }
        self.awaiting.push(waiter);
        self.end_awaiting();
    }

    /// Wakes the threads that wait for the arrivals of all other nodes, if these have come. If they report
    /// nothing that this node does not know, and no page gets another home, then pages of theirs are as they
    /// will be after the departure.
    fn end_awaiting(&mut self) {
        if self.awaiting.is_empty() || !self.meeting.has_all_others() {
            return;
        }
        let have_news = self.meeting.has_news(&self.site.timestamp);
        if !have_news {
            self.each(|protocol, site| protocol.begin_alone(site));
        }
        for waiter in std::mem::take(&mut self.awaiting) {
            self.site.out.wake(waiter, Outcome::Others { have_news });
        }
    }

    /// Arrives: this node has come.
    pub(super) fn arrive(&mut self, collective: Collective) {
        assert!(self.team.has_arrived(), "a node arrives with the last thread of its team");
        assert!(self.leaving.is_none(), "a node has left a collective before it arrives at the next");
        let site = &self.site;
        let mut notices = site.log.of(site.me);
        notices.extend(self.beyond.beyond(&VectorTimestamp::new(site.limits.nodes)));
        let epoch = site.collectives_done;
        let timestamp = site.timestamp.clone();
        let knowledge = Knowledge { timestamp, notices, epoch, beyond_arrival: false };
        let Consistency { site, protocols, conversions, .. } = self;
        // A node that leaves the job reads no more and hands nothing over.
        let goes_on = !collective.ends_the_job();
        let mut moves = Vec::new();
        for protocol in protocols.all.iter_mut().filter(|_| goes_on) {
            moves.extend(protocol.give_away(site));
        }
        if conversions.keep_homes(|page| site.is_home(page))
            && protocols.any(|protocol| protocol.moves_pages(site))
        {
            moves.push(HomeMoves { to: site.me, pages: PageSet::new(), kind: MoveKind::Kept });
        }
        if let Some(above) = self.meeting.tree().above(self.site.me).filter(|_| goes_on) {
            self.each(|protocol, site| protocol.lend_up(site, above));
        }
        let (caller, least) = (self.site.me, None);
        let contributions = self.combining.contributed(caller).filter(|_| goes_on).into_iter().collect();
        let arrival = Arrival { collective, caller, least, knowledge, moves, contributions };
        let arrived = self.handle_arrival(caller, epoch, arrival);
        arrived.expect("a node arrives once at the collective after those that it has completed");
    }

    pub(super) fn handle_arrival(
        &mut self,
        from: NodeId,
        epoch: u64,
        arrival: Arrival,
    ) -> Result<(), ProtocolError> {
        if let Some(all) = self.meeting.handle_arrival(from, epoch, arrival, &mut self.site.out)? {
            self.depart_or_hold(all)?;
        }
        if self.site.me == ROOT && self.meeting.has_all_others() {
            self.each(|protocol, site| protocol.handle_others_here(site));
        }
        self.end_awaiting();
        Ok(())
    }

    /// Handles the departure of all nodes: informs the nodes below, and lets this node leave as soon as that
    /// is done ([`leave`](Self::leave)), since they wait.
    pub(super) fn handle_departure(
        &mut self,
        from: NodeId,
        epoch: u64,
        departure: Departure,
    ) -> Result<(), ProtocolError> {
        if self.meeting.departs(from, epoch) {
            let below: Vec<NodeId> = self.meeting.tree().below(self.site.me).collect();
            self.each(|protocol, site| protocol.lend(site, &below));
        }
        let out = &mut self.site.out;
        let knowledge = self.meeting.handle_departure(from, epoch, &departure, out)?;
        let Departure { collective, moves, .. } = departure;
        // A departure is accepted only if this node has arrived, and so has left the previous collective.
        assert!(self.leaving.is_none(), "a node leaves one collective at a time");
        self.leaving = Some(Leaving { from, epoch, collective, knowledge, moves });
        Ok(())
    }

    /// Leaves the collective with the knowledge of the other nodes.
    pub(super) fn leave(&mut self, leaving: &Leaving) -> Result<(), ProtocolError> {
        let Leaving { epoch, collective, ref knowledge, ref moves, .. } = *leaving;
        assert!(self.team.has_arrived(), "a node leaves a collective that it has arrived at");
        assert_eq!(epoch, self.site.collectives_done, "collectives are left one after the other");
        self.site.collectives_done += 1;
        let voided = self.absorb(knowledge, false);
        self.each(|protocol, site| protocol.handle_meeting(site, &knowledge.timestamp));
        self.handle_moves(moves)?;
        // The departure informs them, also of the diffs that follow a refused claim.
        let _ = self.site.out.take_owed();
        let site = &mut self.site;
        // All nodes have seen every interval up to here, so no node will need these notices again.
        site.log.forget_through(&knowledge.timestamp);
        self.beyond = IntervalLog::new(site.limits.nodes);
        // Threads of a program that was halted while others of its node waited.
        for waiter in std::mem::take(&mut self.awaiting) {
            site.leavers.push((waiter, Outcome::Others { have_news: true }));
        }
        for waiter in self.team.disperse(collective) {
            site.tell(|| Some(Fact::Met { waiter, epoch }));
            site.leavers.push((waiter, Outcome::Collective(collective)));
        }
        for (from, bytes) in std::mem::take(&mut self.site.of_later_epochs) {
            let message = Message::decode(&bytes, &self.site.limits).expect("it was decoded when it came");
            self.dispatch(from, &message)?;
        }
        for protocol in &mut self.protocols.all {
            protocol.handle_caught_up(&mut self.site)?;
        }
        // Last, because a page that is read from a home's frame must contain all that is known by then. A
        // node that leaves the job reads nothing any more.
        if !collective.ends_the_job() {
            self.each(|protocol, site| protocol.begin_phase(site, &voided));
        }
        self.site.let_leave();
        Ok(())
    }

    /// Handles moves on which all nodes have agreed at the same collective.
    fn handle_moves(&mut self, moves: &[HomeMoves]) -> Result<(), ProtocolError> {
        let Consistency { site, protocols, .. } = self;
        let mut of_each: BTreeMap<usize, Vec<PageMove>> = BTreeMap::new();
        for HomeMoves { to, pages, kind } in moves {
            for page in pages.iter() {
                let located = site.homes.locate(page).filter(|located| located.page == page);
                if located.is_none_or(|located| *kind != MoveKind::Kept && located.home == *to) {
                    let got = format!("a move of {page} to node {to}");
                    return Err(unexpected(Expected::MovesToOtherHomes, got));
                }
                let moved = PageMove { page, to: *to, kind: *kind };
                // A page that is kept may be under another protocol by now.
                of_each.entry(protocols.index_of_region(page)).or_default().push(moved);
            }
        }
        for (index, protocol) in protocols.all.iter_mut().enumerate() {
            protocol.handle_moves(site, &of_each.remove(&index).unwrap_or_default())?;
        }
        Ok(())
    }

    /// Returns true if the sender has left a collective whose departure this node has not received. If so,
    /// the message must wait.
    pub(super) fn is_of_later_epoch(&self, knowledge: &Knowledge) -> bool {
        knowledge.epoch > self.site.collectives_done
    }

    /// Keeps a message until its sender's last collective is over here too. A later publication of a node may
    /// omit what an earlier one contained, so the two are merged.
    pub(super) fn keep_for_its_epoch(&mut self, from: NodeId, message: &Message<'_>) {
        let Message::Publish { knowledge, count } = message else {
            return self.site.of_later_epochs.push((from, message.encode()));
        };
        let limits = self.site.limits;
        let older = |(sender, bytes): &(NodeId, Vec<u8>)| match Message::decode(bytes, &limits) {
            Ok(Message::Publish { knowledge, .. }) if *sender == from => Some(knowledge),
            _ => None,
        };
        let older =
            self.site.of_later_epochs.iter().enumerate().find_map(|(at, kept)| Some((at, older(kept)?)));
        let mut knowledge = knowledge.clone();
        if let Some((at, older)) = older {
            self.site.of_later_epochs.remove(at);
            knowledge.beyond_arrival |= older.beyond_arrival;
            let news = std::mem::replace(&mut knowledge.notices, older.notices);
            let told: BTreeSet<_> = knowledge.notices.iter().map(|told| (told.node, told.seq)).collect();
            knowledge
                .notices
                .extend(news.into_iter().filter(|notice| !told.contains(&(notice.node, notice.seq))));
        }
        self.site.of_later_epochs.push((from, Message::Publish { knowledge, count: *count }.encode()));
    }
}
