//! Collectives: arrival and departure along the tree of nodes ([`crate::barrier`]), and what crosses them.

use hiroba_base::{NodeId, PageId, VectorTimestamp};
use hiroba_wire::{Collective, Knowledge, Message};

use super::{AfterRelease, Hlrc};
use crate::barrier::{Arrival, Meeting};
use crate::interval::IntervalLog;
use crate::team::Gathered;
use crate::{Fact, Outcome, ProtocolError, Waiter};

impl Hlrc {
    /// Arranges the nodes in a tree with up to `below_max` nodes below each, instead of [`BELOW_MAX`](crate::barrier::BELOW_MAX): for tests.
    pub fn meeting_below(mut self, below_max: u16) -> Hlrc {
        self.meeting = Meeting::new(self.me, self.meeting.tree().narrowed(below_max));
        self
    }

    /// A thread has come to a collective; the node arrives with the last thread of its team.
    pub(super) fn gather(&mut self, collective: Collective, waiter: Waiter) {
        match self.team.gather(collective, waiter, self.locks.any_held()) {
            Gathered::Waiting => {}
            Gathered::All => self.begin_release(AfterRelease::Arrive(collective)),
            Gathered::Refused(misuse) => self.out.wake(waiter, Outcome::Misuse(misuse)),
            Gathered::Mismatch(sentence) => self.out.end_job(sentence),
        }
    }

    /// This node has come.
    pub(super) fn arrive(&mut self, collective: Collective) {
        let mut notices = self.log.of(self.me);
        notices.extend(self.beyond.beyond(&VectorTimestamp::new(self.limits.nodes)));
        let epoch = self.collectives_done;
        let timestamp = self.timestamp.clone();
        let knowledge = Knowledge { timestamp, notices, epoch, beyond_arrival: false };
        let arrival = Arrival { collective, caller: self.me, least: None, knowledge };
        let arrived = self.handle_arrival(self.me, epoch, arrival);
        arrived.expect("a node arrives once at the collective after those that it has completed");
    }

    pub(super) fn handle_arrival(
        &mut self,
        from: NodeId,
        epoch: u64,
        arrival: Arrival,
    ) -> Result<(), ProtocolError> {
        if let Some((collective, news)) = self.meeting.handle_arrival(from, epoch, arrival, &mut self.out)? {
            self.handle_departure(self.me, epoch, collective, &news)?;
        }
        Ok(())
    }

    /// All nodes have come: `news` is what those elsewhere in the tree tell.
    pub(super) fn handle_departure(
        &mut self,
        from: NodeId,
        epoch: u64,
        collective: Collective,
        news: &Knowledge,
    ) -> Result<(), ProtocolError> {
        let knowledge = &self.meeting.handle_departure(from, epoch, collective, news, &mut self.out)?;
        self.collectives_done += 1;
        let invalidated = self.absorb(knowledge, false);
        self.reclaim_exclusive_pages(&knowledge.timestamp);
        // Everybody has seen every interval up to here: nobody will ask for these notices again.
        self.log.forget_through(&knowledge.timestamp);
        self.beyond = IntervalLog::new(self.limits.nodes);
        for waiter in self.team.disperse() {
            self.tell(|_| Some(Fact::Met { waiter, epoch }));
            self.out.wake(waiter, Outcome::Collective(collective));
        }
        for (from, bytes) in std::mem::take(&mut self.early) {
            let message = Message::decode(&bytes, &self.limits).expect("it was decoded when it came");
            self.dispatch(from, &message)?;
        }
        // Last: what is read from a home's frame must hold all that is known by then. Who leaves reads nothing any more.
        if collective != Collective::Leave {
            self.follow_habits(&invalidated);
        }
        Ok(())
    }

    /// After a collective everybody has heard of this node's writes and dropped older copies: home pages that nobody has
    /// fetched since are exclusive again.
    ///
    /// A page that was written again since the node's arrival is not: the copies that hold what it was then are good.
    fn reclaim_exclusive_pages(&mut self, all_have_seen: &VectorTimestamp) {
        let seen = all_have_seen.get(self.me);
        for notice in self.log.of(self.me).into_iter().filter(|notice| notice.seq <= seen) {
            for page_id in notice.pages.iter() {
                if self.is_home(page_id)
                    && let Some(page) = self.pages.get_mut(&page_id)
                {
                    page.shared &= page.served || self.looks_for_races;
                }
            }
        }
    }

    /// Whether the message is about pages that are not allocated here yet.
    pub(super) fn comes_ahead(&self, message: &Message<'_>) -> bool {
        let is_unknown = |page: PageId| self.homes.locate(page).is_none();
        match message {
            Message::PageRequest { page, .. } | Message::AtomicRequest { page, .. } => is_unknown(*page),
            Message::PagesRequest { wanted, .. } => {
                wanted.iter().any(|group| group.pages.iter().any(is_unknown))
            }
            Message::Diffs { diffs, .. } => diffs.iter().any(|diff| is_unknown(diff.page)),
            _ => false,
        }
    }

    /// Keeps a request or diffs whose sender's earlier ones are kept, or not handled yet: a later diff must not be applied before an earlier one,
    /// nor a page be served without diffs that its reader has sent. Whether it did.
    pub(super) fn comes_behind_kept(&mut self, from: NodeId, message: &Message<'_>) -> bool {
        let is_of_home = matches!(
            message,
            Message::PageRequest { .. }
                | Message::AtomicRequest { .. }
                | Message::PagesRequest { .. }
                | Message::Diffs { .. }
        );
        let waits = |kept: &(NodeId, Vec<u8>)| is_of_home && kept.0 == from;
        if self.ahead.iter().any(waits) {
            self.ahead.push((from, message.encode()));
        } else if self.out.kept().any(waits) {
            self.out.keep([(from, message.encode())]);
        } else {
            return false;
        }
        true
    }

    /// Whether the sender has left a collective from which this node has not heard yet. If so, the message must wait.
    pub(super) fn comes_early(&self, knowledge: &Knowledge) -> bool {
        knowledge.epoch > self.collectives_done
    }

    /// Keeps a message for when its sender's last collective is over here too; a later publication tells all that an
    /// earlier one did.
    pub(super) fn keep_early(&mut self, from: NodeId, message: &Message<'_>) {
        let is_publication =
            |bytes: &[u8]| matches!(Message::decode(bytes, &self.limits), Ok(Message::Publish { .. }));
        if matches!(message, Message::Publish { .. }) {
            let older =
                self.early.iter().position(|(sender, bytes)| *sender == from && is_publication(bytes));
            older.map(|index| self.early.remove(index));
        }
        self.early.push((from, message.encode()));
    }
}
