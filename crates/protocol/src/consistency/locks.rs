//! Locks and condition variables.

use hiroba_base::LockId;
use hiroba_wire::Message;

use super::Consistency;
use crate::coherence::AfterRelease;
use crate::lock::LockAction;
use crate::{Fact, Misuse, Outcome, Synchronisation, Waiter};

impl Consistency {
    pub(super) fn carry_out(&mut self, actions: impl IntoIterator<Item = LockAction>) {
        for action in actions {
            match action {
                LockAction::Send { to, message } => self.site.out.send(to, &message),
                LockAction::Grant { to, lock, timestamp, turn } => {
                    self.keep_nothing_back();
                    let knowledge = self.knowledge_beyond(&timestamp);
                    self.site.out.send(to, &Message::LockGrant { lock, turn, knowledge });
                }
                LockAction::Release(lock) => self.site.release_for(AfterRelease::HandOver(lock)),
                LockAction::Acquired { waiter, lock, turn } => {
                    self.site.tell(|| Some(Fact::Acquired { waiter, lock, turn }));
                    self.site.go_on(waiter, Outcome::Done);
                }
                LockAction::Refused(waiter) => self.site.out.wake(waiter, Outcome::Refused),
            }
        }
    }

    /// Gives up the lock, after the interval of the hold is closed.
    pub(super) fn give_up(&mut self, lock: LockId, waiter: Waiter) {
        self.tell_released(lock, waiter);
        let actions = self.locks.release(lock, &self.site.timestamp);
        self.carry_out(actions);
    }

    fn tell_released(&mut self, lock: LockId, waiter: Waiter) {
        let hold = self.locks.hold_of(lock);
        assert_eq!(hold.map(|(holder, _)| holder), Some(waiter), "only its holder gives a lock up");
        if let Some((_, turn)) = hold {
            self.site.tell(|| Some(Fact::Released { waiter, lock, turn }));
        }
    }

    /// Unlocks for a thread. If no other node waits for its writes, and all protocols are lazy, the interval
    /// stays open.
    fn unlock(&mut self, lock: LockId, waiter: Waiter) {
        let is_eager = self.site.acquires_end_intervals
            || self.protocols.any(|protocol| !protocol.leaves_intervals_open());
        if is_eager || !self.locks.may_defer(lock) {
            return self.site.release_for(AfterRelease::Unlock(lock, waiter));
        }
        self.tell_released(lock, waiter);
        let next = self.locks.unlock_unreleased(lock);
        if next.is_none() {
            self.locks.lease(lock);
        }
        self.carry_out(next);
        self.site.out.wake(waiter, Outcome::Done);
    }

    /// Hands over the lock for which another node waits, after the interval is closed.
    pub(super) fn hand_over_released(&mut self, lock: LockId, pages: u64) {
        let actions = self.locks.hand_over_released(lock, pages, &self.site.timestamp);
        self.carry_out(actions);
    }

    fn acquire_lock(&mut self, lock: LockId, waiter: Waiter) {
        match self.locks.acquire(lock, waiter, &self.site.timestamp) {
            Ok(actions) => self.carry_out(actions),
            Err(misuse) => self.site.out.wake(waiter, Outcome::Misuse(misuse)),
        }
    }

    pub(super) fn begin_acquire(&mut self, sync: Synchronisation, waiter: Waiter) {
        match sync {
            Synchronisation::TryAcquire(lock) => {
                let action = self.locks.try_acquire(lock, waiter, &self.site.timestamp);
                self.carry_out([action]);
            }
            Synchronisation::Acquire(lock) => self.acquire_lock(lock, waiter),
            other => unreachable!("{other:?} acquires nothing"),
        }
    }

    pub(super) fn synchronise(&mut self, sync: Synchronisation, waiter: Waiter) {
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
            Synchronisation::Release(lock) => self.unlock(lock, waiter),
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
            Synchronisation::AwaitOthers => self.await_others(waiter),
            Synchronisation::Conclude => self.conclude(waiter),
            Synchronisation::Publish(to) => self.site.release_for(AfterRelease::Publish(to, waiter)),
            Synchronisation::Inform(to) => self.site.release_for(AfterRelease::Inform(to, waiter)),
            Synchronisation::Convert(granule) => self.convert(granule, waiter),
            Synchronisation::Place(pages) => self.place(pages, waiter),
        }
    }
}
