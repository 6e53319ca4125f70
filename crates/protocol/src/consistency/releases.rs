//! Releases: closing an interval, step by step ([`crate::coherence`]).

use std::collections::BTreeSet;

use hiroba_base::{NodeId, PageId, PageSet, VectorTimestamp};
use hiroba_wire::Message;

use super::Consistency;
use crate::coherence::{AfterRelease, OpenRelease, ReleaseStep};
use crate::{Effect, Fact, Outcome, Synchronisation, Waiter, WriteTracking};

impl Consistency {
    pub(super) fn open_release(&mut self, then: AfterRelease) {
        assert!(self.site.release.is_none(), "one interval is closed at a time");
        self.locks.note_release_begins();
        let seq = self.site.timestamp.get(self.site.me) + 1;
        let step = ReleaseStep::Announcing;
        let noticed = PageSet::new();
        let is_read_from = self.protocols.any(|protocol| protocol.is_read_from());
        let awaited = usize::from(is_read_from);
        self.site.release = Some(OpenRelease { seq, step, awaited, noticed, then });
        if is_read_from {
            self.site.out.push(Effect::TakeAnnouncements);
        }
    }

    pub(super) fn end_step(&mut self, step: ReleaseStep) {
        let release = self.site.release.as_mut().expect("a release is open");
        assert_eq!(release.awaited, 0, "a step ends when all answers are there");
        release.step = match step {
            ReleaseStep::Announcing => ReleaseStep::Collecting,
            ReleaseStep::Collecting => ReleaseStep::Comparing,
            ReleaseStep::Comparing => ReleaseStep::Flushing,
            ReleaseStep::Flushing => return self.finish_release(),
        };
        match release.step {
            ReleaseStep::Collecting if self.site.tracking == WriteTracking::Async => {
                self.site.await_answers(1);
                self.each(|protocol, site| protocol.prepare_release(site));
                self.site.out.push(Effect::CollectWritten);
            }
            ReleaseStep::Comparing => self.each(|protocol, site| protocol.close(site)),
            ReleaseStep::Flushing => self.each(|protocol, site| protocol.flush(site)),
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
        debug_assert!(
            noticed.iter().all(|page| self.site.log.latest(self.site.me, page).is_none_or(|last| last < seq)),
            "a page's notices are of later and later intervals"
        );
        let makes_known = self.site.acquires_end_intervals;
        if makes_known || !noticed.is_empty() {
            self.site.tell(|| Some(Fact::Closed { seq, pages: noticed.clone() }));
            self.site.timestamp.advance(self.site.me, seq);
            self.site.log.record(self.site.me, seq, &noticed);
        }
        if makes_known {
            // Taken now: by the effects that follow this node may leave a collective, and have seen
            // concurrent intervals.
            let (timestamp, epoch) = (self.site.timestamp.clone(), self.site.collectives_done);
            self.site.out.push(Effect::IntervalEnded { seq, timestamp, epoch });
        }
        self.locks.note_release_ended();
        self.inform_homes(then, noticed.is_empty());
        self.after_release(then, noticed.len());
    }

    /// Informs the homes that got diffs, directly behind these: they apply them only then. If this node has
    /// arrived at a collective and withholds diffs of the interval, nobody may learn of that interval yet,
    /// and the departure will inform them. Before a departure nobody learns of an interval without changes.
    fn inform_homes(&mut self, then: AfterRelease, is_empty: bool) {
        let is_departing = matches!(then, AfterRelease::Conclude);
        if !self.site.orders_fetches || is_departing && is_empty {
            return;
        }
        std::mem::take(&mut self.site.flushed_to).into_iter().for_each(|home| self.site.out.owe(home));
        let arrives = matches!(then, AfterRelease::Arrive(_));
        if !(arrives && self.protocols.any(|protocol| protocol.withholds())) {
            self.keep_nothing_back();
        }
    }

    /// Prepares to let another node know of all intervals that this node has ended: no diff of them is
    /// withheld, and the homes that got some are informed first.
    pub(super) fn keep_nothing_back(&mut self) {
        self.each(|protocol, site| protocol.hand_over(site));
        self.site.out.take_owed().into_iter().for_each(|home| self.inform(home, None));
    }

    /// Sends `to`, which has seen at least `seen`, all that this node has seen. Links keep the order, so it
    /// has seen this before it receives later messages.
    fn publish(&mut self, to: NodeId, seen: &VectorTimestamp, waiter: Option<Waiter>) {
        debug_assert!(!self.protocols.any(|protocol| protocol.withholds()), "no notice precedes its diff");
        let knowledge = self.knowledge_beyond(seen);
        self.told.insert(to, self.site.timestamp.clone());
        let next = self.publications.entry(to).or_default();
        let count = *next;
        *next += 1;
        self.site.tell(|| Some(Fact::Published { waiter, to, count }));
        self.site.out.send(to, &Message::Publish { knowledge, count });
    }

    /// Returns true if this node has seen intervals that it has not reported to `to`.
    pub(super) fn has_news_for(&self, to: NodeId) -> bool {
        self.told.get(&to) != Some(&self.site.timestamp)
    }

    /// Reports to a node what was not reported before. `waiter` is the thread that requested it, if one did.
    pub(super) fn inform(&mut self, to: NodeId, waiter: Option<Waiter>) {
        let told = self.told.get(&to).cloned();
        self.publish(to, &told.unwrap_or(VectorTimestamp::new(self.site.limits.nodes)), waiter);
    }

    /// Has a page sent to a node, behind all that this node knows.
    pub(super) fn send_in_order(&mut self, page: PageId, to: NodeId) {
        assert!(self.site.release.is_none(), "{page} holds no interval that is being closed");
        if self.has_news_for(to) {
            self.inform(to, None);
        }
        self.protocols.of(page).go_on_after_release(&mut self.site, page);
    }

    /// Hands pages over that leave. Where fetches are ordered, their next homes first learn of all that the
    /// pages contain.
    fn hand_pages_over(&mut self) {
        let next_homes = self.protocols.all.iter().flat_map(|protocol| protocol.hands_over_to());
        let next_homes: BTreeSet<NodeId> = next_homes.filter(|_| self.site.orders_fetches).collect();
        for home in next_homes {
            if self.has_news_for(home) {
                self.inform(home, None);
            }
        }
        self.each(|protocol, site| protocol.move_after_release(site));
    }

    /// Does what follows the release. The interval is closed, and changed this many pages.
    fn after_release(&mut self, then: AfterRelease, pages: u64) {
        match then {
            AfterRelease::HandOver(lock) => self.hand_over_released(lock, pages),
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
            AfterRelease::Conclude => self.depart_held(),
            AfterRelease::Publish(to, waiter) => {
                // The intervals that `to` has seen are not known here, so it gets all since the last barrier.
                self.publish(to, &VectorTimestamp::new(self.site.limits.nodes), Some(waiter));
                self.site.out.wake(waiter, Outcome::Done);
            }
            AfterRelease::Inform(to, waiter) => {
                // A record of the run needs every publication.
                if self.site.tells || self.has_news_for(to) {
                    self.inform(to, Some(waiter));
                }
                self.site.out.wake(waiter, Outcome::Done);
            }
            AfterRelease::Order { page, to, .. } => self.send_in_order(page, to),
            AfterRelease::Move => self.hand_pages_over(),
            AfterRelease::Tell => {}
            AfterRelease::GiveUp => self.each(|protocol, site| protocol.give_up_after_release(site)),
            AfterRelease::Operate(operation) => {
                self.protocols.of(operation.page).operate_after_release(&mut self.site, operation);
            }
            AfterRelease::Convert(release) => self.convert_after_release(release),
            AfterRelease::Continue(page) => self.protocols.of(page).go_on_after_release(&mut self.site, page),
        }
    }
}
