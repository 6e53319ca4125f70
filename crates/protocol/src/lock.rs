//! Queue locks with direct hand-over.
//!
//! Every lock has a **manager**, a fixed node that knows the lock's **tail**: the node that asked last. A request
//! goes to the manager, which forwards it to the tail and makes the requester the new tail; so each node has at
//! most one successor, and the holder hands the lock straight to it, together with the write notices that the
//! successor lacks. A lock that nobody wants stays where it was used last: taking it again costs no message.
//!
//! ```text
//!   requester ──LockRequest──▶ manager ──LockForward──▶ tail ──LockGrant──▶ requester
//! ```
//!
//! `trylock` must not enter the queue. The manager asks the tail (`LockTryForward`) and holds back other requests
//! for that lock until the tail has said whether it granted (`LockTryOutcome`), so the tail it knows is never stale.
//!
//! | here          | `token` | `holder` | `requested` | meaning |
//! |---------------|---------|----------|-------------|---------|
//! | absent        | no      | –        | no          | elsewhere |
//! | asked for     | no      | –        | yes         | on its way; `successor` may be known already |
//! | idle          | yes     | –        | no          | granted at once to whoever asks |
//! | held          | yes     | a thread | no          | `successor` gets it at release |

use std::collections::VecDeque;

use hiroba_base::{LockId, NodeId, VectorTimestamp};
use hiroba_wire::Message;
use rustc_hash::FxHashMap;

use crate::{Misuse, ProtocolError, Waiter};

/// What the protocol must do for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockAction {
    /// Send a message (to this node itself too).
    Send {
        /// The receiver.
        to: NodeId,
        /// The message.
        message: Message<'static>,
    },
    /// Send a `LockGrant` with what the receiver lacks.
    Grant {
        /// The next holder.
        to: NodeId,
        /// The lock.
        lock: LockId,
        /// What it has seen.
        timestamp: VectorTimestamp,
        /// The number of its hold.
        turn: u64,
    },
    /// A thread of this node holds the lock now.
    Acquired {
        /// The thread.
        waiter: Waiter,
        /// The lock.
        lock: LockId,
        /// How many holds there were before, by whomever.
        turn: u64,
    },
    /// `trylock` found it taken.
    Refused(Waiter),
}

/// The locks as one node sees them, and those that it manages.
#[derive(Debug)]
pub struct Locks {
    me: NodeId,
    nodes: u16,
    local: FxHashMap<LockId, Local>,
    managed: FxHashMap<LockId, Managed>,
}

#[derive(Debug, Default)]
struct Local {
    token: bool,
    /// With the token: how many holds have begun. It travels with the token.
    turns: u64,
    holder: Option<Waiter>,
    requested: bool,
    trying: Option<Waiter>,
    /// Threads of this node, at most one entry each.
    queue: VecDeque<Waiter>,
    successor: Option<(NodeId, VectorTimestamp)>,
}

impl Local {
    fn is_idle(&self) -> bool {
        self.token && self.holder.is_none()
    }

    /// Gives the lock to a thread of this node.
    fn begin_hold(&mut self, lock: LockId, waiter: Waiter) -> LockAction {
        let turn = self.turns;
        self.turns = turn.wrapping_add(1);
        self.holder = Some(waiter);
        LockAction::Acquired { waiter, lock, turn }
    }

    /// Gives the lock to another node.
    fn hand_over(&mut self, lock: LockId, to: NodeId, timestamp: VectorTimestamp) -> LockAction {
        self.token = false;
        LockAction::Grant { to, lock, timestamp, turn: self.turns }
    }
}

#[derive(Debug)]
struct Managed {
    tail: NodeId,
    /// A `LockTryForward` is out.
    trying: bool,
    /// Requests that came meanwhile: at most one a node.
    deferred: VecDeque<Deferred>,
}

#[derive(Debug)]
struct Deferred {
    from: NodeId,
    timestamp: VectorTimestamp,
    only_if_free: bool,
}

impl Locks {
    /// No lock has been used yet.
    pub fn new(me: NodeId, nodes: u16) -> Locks {
        Locks { me, nodes, local: FxHashMap::default(), managed: FxHashMap::default() }
    }

    /// The locks that threads of this node hold, and which.
    pub fn held(&self) -> impl Iterator<Item = (LockId, Waiter)> + '_ {
        self.local.iter().filter_map(|(lock, local)| Some((*lock, local.holder?)))
    }

    /// The smallest of them.
    pub fn any_held(&self) -> Option<LockId> {
        self.held().map(|(lock, _)| lock).min()
    }

    /// Whether `waiter` holds `lock`.
    pub fn is_held_by(&self, lock: LockId, waiter: Waiter) -> bool {
        self.local.get(&lock).is_some_and(|local| local.holder == Some(waiter))
    }

    /// The thread that holds the lock, and the number of its hold.
    pub fn hold_of(&self, lock: LockId) -> Option<(Waiter, u64)> {
        let local = self.local.get(&lock)?;
        Some((local.holder?, local.turns.wrapping_sub(1)))
    }

    /// A thread wants the lock.
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
        local.queue.push_back(waiter);
        Ok(local.request(lock, manager, seen).into_iter().collect())
    }

    /// A thread wants the lock if it is free.
    pub fn try_acquire(&mut self, lock: LockId, waiter: Waiter, seen: &VectorTimestamp) -> LockAction {
        let manager = lock.manager(self.nodes);
        let local = self.local(lock);
        if local.is_idle() {
            return local.begin_hold(lock, waiter);
        }
        if local.token || local.requested || local.trying.is_some() {
            return LockAction::Refused(waiter);
        }
        local.trying = Some(waiter);
        LockAction::Send { to: manager, message: Message::LockTry { lock, timestamp: seen.clone() } }
    }

    /// The holder gives the lock up. Its writes are already on their way to their homes.
    pub fn release(&mut self, lock: LockId, seen: &VectorTimestamp) -> Vec<LockAction> {
        let manager = lock.manager(self.nodes);
        let local = self.local(lock);
        local.holder = None;
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

    /// The lock has come to this node, for the hold of this number.
    pub fn handle_grant(&mut self, lock: LockId, turn: u64) -> Result<LockAction, ProtocolError> {
        let local = self.local(lock);
        if local.token || !(local.requested || local.trying.is_some()) {
            return Err(unexpected("a lock grant only after a request", format!("one for lock {}", lock.0)));
        }
        local.token = true;
        local.turns = turn;
        local.requested = false;
        let next = local.trying.take().or_else(|| local.queue.pop_front());
        let waiter =
            next.ok_or_else(|| unexpected("a waiting thread", format!("none for lock {}", lock.0)))?;
        Ok(local.begin_hold(lock, waiter))
    }

    /// The manager says who comes next.
    pub fn handle_forward(
        &mut self,
        lock: LockId,
        requester: NodeId,
        timestamp: VectorTimestamp,
    ) -> Result<Option<LockAction>, ProtocolError> {
        let local = self.local(lock);
        if local.is_idle() {
            return Ok(Some(local.hand_over(lock, requester, timestamp)));
        }
        if local.successor.is_some() || !(local.token || local.requested || local.trying.is_some()) {
            return Err(unexpected(
                "one successor for the lock's tail",
                format!("another for lock {}", lock.0),
            ));
        }
        local.successor = Some((requester, timestamp));
        Ok(None)
    }

    /// The manager asks whether `requester` may have the lock at once.
    pub fn handle_try_forward(
        &mut self,
        lock: LockId,
        requester: NodeId,
        timestamp: VectorTimestamp,
    ) -> [LockAction; 2] {
        let manager = lock.manager(self.nodes);
        let local = self.local(lock);
        let granted = local.is_idle();
        let answer = if granted {
            local.hand_over(lock, requester, timestamp)
        } else {
            LockAction::Send { to: requester, message: Message::LockTryRefused { lock } }
        };
        let message = Message::LockTryOutcome { lock, requester, granted };
        [answer, LockAction::Send { to: manager, message }]
    }

    /// The tail had the lock taken.
    pub fn handle_try_refused(
        &mut self,
        lock: LockId,
        seen: &VectorTimestamp,
    ) -> Result<Vec<LockAction>, ProtocolError> {
        let manager = lock.manager(self.nodes);
        let local = self.local(lock);
        let Some(waiter) = local.trying.take() else {
            return Err(unexpected("an answer only to a trylock", format!("one for lock {}", lock.0)));
        };
        let mut actions = vec![LockAction::Refused(waiter)];
        if !local.queue.is_empty() {
            actions.extend(local.request(lock, manager, seen));
        }
        Ok(actions)
    }

    /// Manager: a node wants the lock.
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

    /// Manager: the tail has answered a `LockTryForward`.
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
        // A lock begins idle at its manager.
        let token = lock.manager(self.nodes) == self.me;
        self.local.entry(lock).or_insert_with(|| Local { token, ..Local::default() })
    }

    fn managed(&mut self, lock: LockId) -> &mut Managed {
        let me = self.me;
        self.managed.entry(lock).or_insert_with(|| Managed {
            tail: me,
            trying: false,
            deferred: VecDeque::new(),
        })
    }
}

impl Local {
    /// Asks the manager once, however many threads wait here.
    fn request(&mut self, lock: LockId, manager: NodeId, seen: &VectorTimestamp) -> Option<LockAction> {
        if self.token || self.requested || self.trying.is_some() {
            return None;
        }
        self.requested = true;
        Some(LockAction::Send {
            to: manager,
            message: Message::LockRequest { lock, timestamp: seen.clone() },
        })
    }
}

impl Managed {
    fn forward(&mut self, lock: LockId, request: Deferred) -> LockAction {
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

fn unexpected(expected: &'static str, got: String) -> ProtocolError {
    ProtocolError::Unexpected { expected, got }
}
