//! Queue locks with direct hand-over.
//!
//! Every lock has a **manager**, a fixed node that knows the lock's **tail**: the node that requested it
//! last. A request goes to the manager, which forwards it to the tail and makes the requester the new tail.
//! So each node has at most one successor, and the holder hands the lock directly to it, together with the
//! write notices that the successor lacks. A lock that no node wants stays at its last user: taking it again
//! costs no message.
//!
//! ```text
//!   requester ──LockRequest──▶ manager ──LockForward──▶ tail ──LockGrant──▶ requester
//! ```
//!
//! Under a lazy protocol an unlock that no other node waits for only frees the lock: the interval stays open,
//! and the lock is *unreleased*. When another node requests it, this node first closes the interval
//! ([`LockAction::Release`]), and the lock leaves with the notices of that. The writes of a critical section
//! are thus in a closed interval before its lock leaves the node, as lazy release consistency requires. A
//! release for another reason, such as a barrier, serves all locks that were unreleased when it began. A long
//! release belongs on the unlocker's time, not on the requester's: after one, the next unlocks of that lock
//! close the interval themselves.
//!
//! `trylock` must not enter the queue. The manager asks the tail (`LockTryForward`) and queues other requests
//! for that lock until the tail has reported whether it granted (`LockTryOutcome`), so the tail that the
//! manager knows is never outdated.
//!
//! A lock that is idle, or becomes unreleased, may also be *leased* to the threads of this node
//! ([`crate::lease`]). Whatever concerns it then ends the lease first, so the table below needs no row for
//! it.
//!
//! | here          | `token` | `holder` | `requested` | meaning |
//! |---------------|---------|----------|-------------|---------|
//! | absent        | no      | –        | no          | elsewhere |
//! | requested     | no      | –        | yes         | on its way; `successor` may be known already |
//! | idle          | yes     | –        | no          | granted at once to the node that asks |
//! | unreleased    | yes     | –        | no          | granted at once to threads here; another node becomes `successor` and waits for a release |
//! | held          | yes     | a thread | no          | `successor` gets it at release |

use std::collections::VecDeque;
use std::sync::Arc;

use hiroba_base::{LockId, NodeId, VectorTimestamp};
use hiroba_wire::Message;
use rustc_hash::FxHashMap;

use crate::lease::{Leased, Leases};
use crate::{Expected, Misuse, ProtocolError, Waiter, unexpected};

/// A deferred release that has changed more pages than this was long: the lock's next unlocks are not
/// deferred.
const DEFERRED_PAGES_MAX: u64 = 16;

/// The number of unlocks that are not deferred after a long release.
const UNLOCKS_NOT_DEFERRED: u8 = 15;

/// An action that the protocol must carry out for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockAction {
    /// Send a message (to this node itself too).
    Send {
        /// The receiver.
        to: NodeId,
        /// The message.
        message: Message<'static>,
    },
    /// Send a `LockGrant` with the notices that the receiver lacks.
    Grant {
        /// The next holder.
        to: NodeId,
        /// The lock.
        lock: LockId,
        /// The intervals that it has seen.
        timestamp: VectorTimestamp,
        /// The number of its hold.
        turn: u64,
    },
    /// End the interval, then call [`Locks::hand_over_released`].
    Release(LockId),
    /// A thread of this node holds the lock now.
    Acquired {
        /// The thread.
        waiter: Waiter,
        /// The lock.
        lock: LockId,
        /// The number of earlier holds of the lock, on all nodes.
        turn: u64,
    },
    /// `trylock` failed, because the lock is held.
    Refused(Waiter),
}

/// The state of locks on one node, and of those that it manages.
#[derive(Debug)]
pub struct Locks {
    me: NodeId,
    nodes: u16,
    local: FxHashMap<LockId, Local>,
    managed: FxHashMap<LockId, Managed>,
    /// Locks that threads take without the engine.
    leases: Option<Arc<Leases>>,
    /// The numbers of releases of this node that have begun, and that have ended. One takes place at a time.
    releases_begun: u64,
    releases_ended: u64,
}

#[derive(Debug, Default)]
struct Local {
    token: bool,
    /// With the token, which it travels with: the number of holds that have begun.
    turns: u64,
    holder: Option<Waiter>,
    requested: bool,
    trying: Option<Waiter>,
    /// Threads of this node that wait, at most one entry each.
    queue: VecDeque<Waiter>,
    successor: Option<(NodeId, VectorTimestamp)>,
    /// Set if the last unlock was deferred: the number of releases that had begun before it.
    unlocked_after: Option<u64>,
    /// The number of further unlocks that are not deferred.
    undeferred: u8,
}

impl Local {
    /// Returns true if a thread here may have the lock at once.
    fn is_idle(&self) -> bool {
        self.token && self.holder.is_none() && self.successor.is_none()
    }

    /// Returns true if a write of an earlier hold may be in the open interval. The release that ends it
    /// begins after the unlock.
    fn is_unreleased(&self, releases_ended: u64) -> bool {
        self.unlocked_after.is_some_and(|begun| releases_ended <= begun)
    }

    /// Gives the lock to a thread of this node.
    fn begin_hold(&mut self, lock: LockId, waiter: Waiter) -> LockAction {
        assert!(self.token && self.holder.is_none(), "lock {}: a hold begins where the lock is free", lock.0);
        let turn = self.turns;
        self.turns = turn.wrapping_add(1);
        self.holder = Some(waiter);
        self.unlocked_after = None;
        LockAction::Acquired { waiter, lock, turn }
    }

    /// Gives the lock to another node.
    fn hand_over(&mut self, lock: LockId, to: NodeId, timestamp: VectorTimestamp) -> LockAction {
        assert!(self.token && self.holder.is_none(), "lock {}: only what is here and free leaves", lock.0);
        self.token = false;
        self.unlocked_after = None;
        LockAction::Grant { to, lock, timestamp, turn: self.turns }
    }
}

#[derive(Debug)]
struct Managed {
    tail: NodeId,
    /// True if a `LockTryForward` has not been answered.
    trying: bool,
    /// Requests that came meanwhile: at most one for each node.
    deferred: VecDeque<Deferred>,
}

#[derive(Debug)]
struct Deferred {
    from: NodeId,
    timestamp: VectorTimestamp,
    only_if_free: bool,
}

impl Locks {
    /// Returns the state in which no lock has been used yet.
    pub fn new(me: NodeId, nodes: u16) -> Locks {
        assert!(me.0 < nodes, "node {me} is one of the job's {nodes}");
        Locks {
            me,
            nodes,
            local: FxHashMap::default(),
            managed: FxHashMap::default(),
            leases: None,
            releases_begun: 0,
            releases_ended: 0,
        }
    }

    /// Leases idle locks to the threads of this node from now on.
    pub fn lease_by(&mut self, leases: Arc<Leases>) {
        self.leases = Some(leases);
    }

    /// Returns the leases, if idle locks are leased.
    pub fn leases(&self) -> Option<&Leases> {
        self.leases.as_deref()
    }

    /// Leases a lock if it is idle here, and its next unlock may be deferred.
    pub fn lease(&mut self, lock: LockId) {
        let Some(leases) = self.leases.clone() else { return };
        let local = self.local(lock);
        if !local.is_idle() || local.undeferred > 0 {
            return;
        }
        if let Some((other, leased)) = leases.begin(lock) {
            self.note_leased(other, leased);
        }
    }

    /// Ends all leases.
    pub fn end_leases(&mut self) {
        let Some(leases) = self.leases.clone() else { return };
        leases.leased().for_each(|(lock, _)| self.end_lease(lock));
    }

    fn end_lease(&mut self, lock: LockId) {
        if let Some(leased) = self.leases.as_ref().and_then(|leases| leases.end(lock)) {
            self.note_leased(lock, leased);
        }
    }

    /// Notes the holds of a lease as if they had been made here.
    fn note_leased(&mut self, lock: LockId, Leased { holds, holder }: Leased) {
        if holds == 0 {
            return;
        }
        let begun = self.releases_begun;
        let local = self.local.get_mut(&lock).expect("a leased lock has been used");
        assert!(local.is_idle(), "lock {}: a leased lock is idle to the engine", lock.0);
        local.turns = local.turns.wrapping_add(holds);
        local.holder = holder;
        local.unlocked_after = holder.is_none().then_some(begun);
    }

    /// Notes that the node begins to end an interval.
    pub fn note_release_begins(&mut self) {
        assert_eq!(self.releases_begun, self.releases_ended, "one release takes place at a time");
        self.releases_begun += 1;
    }

    /// Notes that the node has ended an interval.
    pub fn note_release_ended(&mut self) {
        self.releases_ended += 1;
        assert_eq!(self.releases_begun, self.releases_ended, "a release that ends has begun");
    }

    /// Returns the locks that threads of this node hold, with the threads.
    pub fn held(&self) -> impl Iterator<Item = (LockId, Waiter)> + '_ {
        let known = self.local.iter().filter_map(|(lock, local)| Some((*lock, local.holder?)));
        let leased = self.leases.iter().flat_map(|leases| leases.leased());
        known.chain(leased.filter_map(|(lock, holder)| Some((lock, holder?))))
    }

    /// Returns the smallest lock that is held.
    pub fn any_held(&self) -> Option<LockId> {
        self.held().map(|(lock, _)| lock).min()
    }

    /// Returns true if `waiter` holds `lock`.
    pub fn is_held_by(&mut self, lock: LockId, waiter: Waiter) -> bool {
        self.end_lease(lock);
        self.local.get(&lock).is_some_and(|local| local.holder == Some(waiter))
    }

    /// Returns the thread that holds the lock, and the number of its hold.
    pub fn hold_of(&mut self, lock: LockId) -> Option<(Waiter, u64)> {
        self.end_lease(lock);
        let local = self.local.get(&lock)?;
        Some((local.holder?, local.turns.wrapping_sub(1)))
    }

    /// Handles a message about a lock, except its grant, which contains more than the lock. Returns `None`
    /// for other messages.
    pub fn handle_message(
        &mut self,
        from: NodeId,
        message: &Message<'_>,
        seen: &VectorTimestamp,
    ) -> Result<Option<Vec<LockAction>>, ProtocolError> {
        if let Message::LockRequest { lock, .. }
        | Message::LockTry { lock, .. }
        | Message::LockTryOutcome { lock, .. } = message
            && lock.manager(self.nodes) != self.me
        {
            return Err(unexpected(Expected::RequestToLockManager, format!("one for lock {}", lock.0)));
        }
        let actions = match message {
            Message::LockRequest { lock, timestamp } => {
                self.handle_request(*lock, from, timestamp.clone(), false).into_iter().collect()
            }
            Message::LockTry { lock, timestamp } => {
                self.handle_request(*lock, from, timestamp.clone(), true).into_iter().collect()
            }
            Message::LockForward { lock, requester, timestamp } => {
                self.handle_forward(*lock, *requester, timestamp.clone())?.into_iter().collect()
            }
            Message::LockTryForward { lock, requester, timestamp } => {
                self.handle_try_forward(*lock, *requester, timestamp.clone()).into()
            }
            Message::LockTryOutcome { lock, requester, granted } => {
                self.handle_try_outcome(*lock, *requester, *granted)
            }
            Message::LockTryRefused { lock } => self.handle_try_refused(*lock, seen)?,
            _ => return Ok(None),
        };
        Ok(Some(actions))
    }

    /// Acquires the lock for a thread, or queues it.
    pub fn acquire(
        &mut self,
        lock: LockId,
        waiter: Waiter,
        seen: &VectorTimestamp,
    ) -> Result<Vec<LockAction>, Misuse> {
        let manager = lock.manager(self.nodes);
        let local = self.local(lock);
        if local.holder == Some(waiter) {
            return Err(Misuse::AlreadyHeld(lock));
        }
        if local.is_idle() {
            return Ok(vec![local.begin_hold(lock, waiter)]);
        }
        debug_assert!(!local.queue.contains(&waiter), "lock {}: a thread waits for it once", lock.0);
        local.queue.push_back(waiter);
        Ok(local.request(lock, manager, seen).into_iter().collect())
    }

    /// Acquires the lock for a thread if it is free.
    pub fn try_acquire(&mut self, lock: LockId, waiter: Waiter, seen: &VectorTimestamp) -> LockAction {
        let manager = lock.manager(self.nodes);
        let local = self.local(lock);
        if local.is_idle() {
            return local.begin_hold(lock, waiter);
        }
        if local.token || local.requested || local.trying.is_some() {
            return LockAction::Refused(waiter);
        }
        assert!(local.queue.is_empty(), "lock {}: who waits for it has asked for it", lock.0);
        local.trying = Some(waiter);
        LockAction::Send { to: manager, message: Message::LockTry { lock, timestamp: seen.clone() } }
    }

    /// Returns true if the holder may give up the lock with its interval open ([`Locks::unlock_unreleased`]).
    pub fn may_defer(&mut self, lock: LockId) -> bool {
        self.end_lease(lock);
        self.local.get(&lock).is_some_and(|local| local.undeferred == 0 && local.successor.is_none())
    }

    /// Gives up the lock with the interval open. A thread of this node may get it.
    pub fn unlock_unreleased(&mut self, lock: LockId) -> Option<LockAction> {
        let begun = self.releases_begun;
        let local = self.local(lock);
        assert!(local.token && local.holder.is_some(), "lock {}: only what is held is released", lock.0);
        assert!(local.successor.is_none(), "lock {}: another node waits for the interval", lock.0);
        local.holder = None;
        local.unlocked_after = Some(begun);
        let next = local.queue.pop_front()?;
        Some(local.begin_hold(lock, next))
    }

    /// Hands the lock to the node that waits for it. The interval of this node's last holds is closed, and
    /// changed this many pages.
    pub fn hand_over_released(
        &mut self,
        lock: LockId,
        pages: u64,
        seen: &VectorTimestamp,
    ) -> Vec<LockAction> {
        let manager = lock.manager(self.nodes);
        let ended = self.releases_ended;
        let local = self.local(lock);
        assert!(!local.is_unreleased(ended), "lock {}: what leaves is released", lock.0);
        if pages > DEFERRED_PAGES_MAX {
            local.undeferred = UNLOCKS_NOT_DEFERRED;
        }
        let (to, timestamp) = local.successor.take().expect("a release was asked for by a successor");
        let mut actions = vec![local.hand_over(lock, to, timestamp)];
        if !local.queue.is_empty() {
            actions.extend(local.request(lock, manager, seen));
        }
        actions
    }

    /// Gives up the lock. The holder's writes are already on their way to their homes.
    pub fn release(&mut self, lock: LockId, seen: &VectorTimestamp) -> Vec<LockAction> {
        let manager = lock.manager(self.nodes);
        let local = self.local(lock);
        assert!(local.token && local.holder.is_some(), "lock {}: only what is held is released", lock.0);
        local.holder = None;
        local.undeferred = local.undeferred.saturating_sub(1);
        let mut actions = Vec::new();
        if let Some((to, timestamp)) = local.successor.take() {
            // The successor asked before any thread that queues here now: first come, first served.
            actions.push(local.hand_over(lock, to, timestamp));
            if !local.queue.is_empty() {
                actions.extend(local.request(lock, manager, seen));
            }
        } else if let Some(next) = local.queue.pop_front() {
            actions.push(local.begin_hold(lock, next));
        }
        actions
    }

    /// Handles that the lock has come to this node, for the hold of this number.
    pub fn handle_grant(&mut self, lock: LockId, turn: u64) -> Result<LockAction, ProtocolError> {
        let local = self.local(lock);
        if local.token || !(local.requested || local.trying.is_some()) {
            return Err(unexpected(Expected::RequestedGrant, format!("one for lock {}", lock.0)));
        }
        assert!(local.holder.is_none(), "lock {}: nobody holds what is elsewhere", lock.0);
        local.token = true;
        local.turns = turn;
        local.requested = false;
        let next = local.trying.take().or_else(|| local.queue.pop_front());
        let waiter =
            next.ok_or_else(|| unexpected(Expected::WaitingThread, format!("none for lock {}", lock.0)))?;
        Ok(local.begin_hold(lock, waiter))
    }

    /// Handles the manager's message which node comes next.
    pub fn handle_forward(
        &mut self,
        lock: LockId,
        requester: NodeId,
        timestamp: VectorTimestamp,
    ) -> Result<Option<LockAction>, ProtocolError> {
        let ended = self.releases_ended;
        let local = self.local(lock);
        if local.is_idle() && !local.is_unreleased(ended) {
            return Ok(Some(local.hand_over(lock, requester, timestamp)));
        }
        if local.is_idle() {
            local.successor = Some((requester, timestamp));
            return Ok(Some(LockAction::Release(lock)));
        }
        if local.successor.is_some() || !(local.token || local.requested || local.trying.is_some()) {
            return Err(unexpected(Expected::OneSuccessor, format!("another for lock {}", lock.0)));
        }
        local.successor = Some((requester, timestamp));
        Ok(None)
    }

    /// Handles the manager's question whether `requester` may have the lock at once.
    pub fn handle_try_forward(
        &mut self,
        lock: LockId,
        requester: NodeId,
        timestamp: VectorTimestamp,
    ) -> [LockAction; 2] {
        let manager = lock.manager(self.nodes);
        let ended = self.releases_ended;
        let local = self.local(lock);
        let granted = local.is_idle();
        let answer = if granted && local.is_unreleased(ended) {
            // The lock counts as granted: threads of this node queue behind the requester.
            local.successor = Some((requester, timestamp));
            LockAction::Release(lock)
        } else if granted {
            local.hand_over(lock, requester, timestamp)
        } else {
            LockAction::Send { to: requester, message: Message::LockTryRefused { lock } }
        };
        let message = Message::LockTryOutcome { lock, requester, granted };
        [answer, LockAction::Send { to: manager, message }]
    }

    /// Handles that the lock was held at the tail.
    pub fn handle_try_refused(
        &mut self,
        lock: LockId,
        seen: &VectorTimestamp,
    ) -> Result<Vec<LockAction>, ProtocolError> {
        let manager = lock.manager(self.nodes);
        let local = self.local(lock);
        let Some(waiter) = local.trying.take() else {
            return Err(unexpected(Expected::AnswerToTryLock, format!("one for lock {}", lock.0)));
        };
        let mut actions = vec![LockAction::Refused(waiter)];
        if !local.queue.is_empty() {
            actions.extend(local.request(lock, manager, seen));
        }
        Ok(actions)
    }

    /// Handles, on the manager, a node's request for the lock.
    pub fn handle_request(
        &mut self,
        lock: LockId,
        from: NodeId,
        timestamp: VectorTimestamp,
        only_if_free: bool,
    ) -> Option<LockAction> {
        let managed = self.managed(lock);
        let request = Deferred { from, timestamp, only_if_free };
        if managed.trying {
            managed.deferred.push_back(request);
            return None;
        }
        Some(managed.forward(lock, request))
    }

    /// Handles, on the manager, the tail's answer to a `LockTryForward`.
    pub fn handle_try_outcome(&mut self, lock: LockId, requester: NodeId, granted: bool) -> Vec<LockAction> {
        let managed = self.managed(lock);
        managed.trying = false;
        if granted {
            managed.tail = requester;
        }
        let mut actions = Vec::new();
        while !managed.trying
            && let Some(request) = managed.deferred.pop_front()
        {
            actions.push(managed.forward(lock, request));
        }
        actions
    }

    fn local(&mut self, lock: LockId) -> &mut Local {
        self.end_lease(lock);
        // A lock begins idle at its manager.
        let token = lock.manager(self.nodes) == self.me;
        self.local.entry(lock).or_insert_with(|| Local { token, ..Local::default() })
    }

    fn managed(&mut self, lock: LockId) -> &mut Managed {
        let me = self.me;
        assert_eq!(lock.manager(self.nodes), me, "lock {}: its manager alone knows its tail", lock.0);
        self.managed.entry(lock).or_insert_with(|| Managed {
            tail: me,
            trying: false,
            deferred: VecDeque::new(),
        })
    }
}

impl Local {
    /// Sends one request to the manager, however many threads wait here.
    fn request(&mut self, lock: LockId, manager: NodeId, seen: &VectorTimestamp) -> Option<LockAction> {
        if self.token || self.requested || self.trying.is_some() {
            return None;
        }
        assert!(self.holder.is_none(), "lock {}: nobody holds what is elsewhere", lock.0);
        self.requested = true;
        Some(LockAction::Send {
            to: manager,
            message: Message::LockRequest { lock, timestamp: seen.clone() },
        })
    }
}

impl Managed {
    fn forward(&mut self, lock: LockId, request: Deferred) -> LockAction {
        assert!(!self.trying, "lock {}: its tail is known while nobody tries", lock.0);
        let Deferred { from: requester, timestamp, only_if_free } = request;
        let to = self.tail;
        let message = if only_if_free {
            self.trying = true;
            Message::LockTryForward { lock, requester, timestamp }
        } else {
            self.tail = requester;
            Message::LockForward { lock, requester, timestamp }
        };
        LockAction::Send { to, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Taken;

    const LOCK: LockId = LockId(0);
    const WAITER: Waiter = Waiter(0);
    const SIBLING: Waiter = Waiter(1);

    /// Returns the locks of node 0 of two, which manages `LOCK`, and the intervals that it has seen.
    fn manager() -> (Locks, VectorTimestamp) {
        (Locks::new(NodeId(0), 2), VectorTimestamp::new(2))
    }

    fn forward(locks: &mut Locks, seen: &VectorTimestamp) -> Option<LockAction> {
        locks.handle_forward(LOCK, NodeId(1), seen.clone()).unwrap()
    }

    fn release(locks: &mut Locks) {
        locks.note_release_begins();
        locks.note_release_ended();
    }

    fn grant(seen: &VectorTimestamp, turn: u64) -> LockAction {
        LockAction::Grant { to: NodeId(1), lock: LOCK, timestamp: seen.clone(), turn }
    }

    #[test]
    fn a_lock_leaves_behind_a_release_that_began_after_its_unlock() {
        let (mut locks, seen) = manager();
        locks.acquire(LOCK, WAITER, &seen).unwrap();
        // It may have collected the written pages before the last store of the hold.
        locks.note_release_begins();
        assert!(locks.may_defer(LOCK));
        assert_eq!(locks.unlock_unreleased(LOCK), None);
        locks.note_release_ended();
        assert_eq!(forward(&mut locks, &seen), Some(LockAction::Release(LOCK)));
        release(&mut locks);
        assert_eq!(locks.hand_over_released(LOCK, 1, &seen), [grant(&seen, 1)]);
    }

    #[test]
    fn a_release_for_something_else_serves_all_locks_that_were_unlocked_before() {
        let (mut locks, seen) = manager();
        locks.acquire(LOCK, WAITER, &seen).unwrap();
        locks.unlock_unreleased(LOCK);
        release(&mut locks);
        assert_eq!(forward(&mut locks, &seen), Some(grant(&seen, 1)));
    }

    #[test]
    fn a_lock_leaves_behind_a_release_for_the_holds_of_its_lease() {
        let (mut locks, seen) = manager();
        let leases = Arc::new(Leases::default());
        locks.lease_by(leases.clone());
        locks.acquire(LOCK, WAITER, &seen).unwrap();
        locks.unlock_unreleased(LOCK);
        locks.lease(LOCK);
        release(&mut locks);
        assert_eq!(leases.take(LOCK, SIBLING), Taken::Yes);
        assert_eq!(locks.held().collect::<Vec<_>>(), [(LOCK, SIBLING)]);
        assert!(leases.give_back(LOCK, SIBLING));
        assert_eq!(forward(&mut locks, &seen), Some(LockAction::Release(LOCK)));
        assert_eq!(leases.take(LOCK, SIBLING), Taken::AskEngine);
        release(&mut locks);
        assert_eq!(locks.hand_over_released(LOCK, 1, &seen), [grant(&seen, 2)]);
    }

    #[test]
    fn another_node_waits_for_the_holder_of_a_lease() {
        let (mut locks, seen) = manager();
        let leases = Arc::new(Leases::default());
        locks.lease_by(leases.clone());
        locks.acquire(LOCK, WAITER, &seen).unwrap();
        locks.unlock_unreleased(LOCK);
        locks.lease(LOCK);
        assert_eq!(leases.take(LOCK, SIBLING), Taken::Yes);
        assert_eq!(forward(&mut locks, &seen), None);
        assert!(!leases.give_back(LOCK, SIBLING), "the engine gives it back");
        assert_eq!(locks.hold_of(LOCK), Some((SIBLING, 1)));
        assert_eq!(locks.release(LOCK, &seen), [grant(&seen, 2)]);
    }

    #[test]
    fn threads_here_queue_behind_a_node_that_waits_for_a_release() {
        let (mut locks, seen) = manager();
        locks.acquire(LOCK, WAITER, &seen).unwrap();
        locks.unlock_unreleased(LOCK);
        assert_eq!(forward(&mut locks, &seen), Some(LockAction::Release(LOCK)));
        assert_eq!(locks.try_acquire(LOCK, SIBLING, &seen), LockAction::Refused(SIBLING));
        assert_eq!(locks.acquire(LOCK, SIBLING, &seen), Ok(vec![]));
        release(&mut locks);
        let request = Message::LockRequest { lock: LOCK, timestamp: seen.clone() };
        assert_eq!(
            locks.hand_over_released(LOCK, 1, &seen),
            [grant(&seen, 1), LockAction::Send { to: NodeId(0), message: request }]
        );
    }

    #[test]
    fn a_lock_whose_releases_are_long_closes_them_at_its_next_unlocks() {
        let (mut locks, seen) = manager();
        locks.acquire(LOCK, WAITER, &seen).unwrap();
        locks.unlock_unreleased(LOCK);
        forward(&mut locks, &seen);
        release(&mut locks);
        locks.hand_over_released(LOCK, DEFERRED_PAGES_MAX + 1, &seen);
        for _ in 0..UNLOCKS_NOT_DEFERRED {
            assert!(!locks.may_defer(LOCK));
            locks.acquire(LOCK, WAITER, &seen).unwrap();
            locks.handle_grant(LOCK, 2).unwrap();
            locks.release(LOCK, &seen);
            forward(&mut locks, &seen);
        }
        assert!(locks.may_defer(LOCK));
    }
}
