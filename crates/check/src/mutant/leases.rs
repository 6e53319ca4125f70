//! Planted bugs of the host that takes locks by their leases.

use hiroba_base::{LockId, NodeId};
use hiroba_protocol::Waiter;
use hiroba_protocol::lease::{Leases, Taken};
use rustc_hash::FxHashSet;

use super::Mutation;

/// The catalogue of planted bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// The engine does not learn of the holds.
    ForgetHolds,
    /// A thread takes a lock by a lease that has ended.
    TakeByEndedLease,
    /// A thread takes a leased lock that another one holds.
    TakeHeld,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 3] = [Mutant::ForgetHolds, Mutant::TakeByEndedLease, Mutant::TakeHeld];

    /// Returns the bug, ready to be planted in a cluster.
    pub fn plant(self) -> Box<dyn Mutation> {
        Box::new(Planted { mutant: self, leased: FxHashSet::default() })
    }
}

struct Planted {
    mutant: Mutant,
    /// The locks that were leased at least once.
    leased: FxHashSet<(NodeId, LockId)>,
}

impl Mutation for Planted {
    fn on_take(&mut self, node: NodeId, lock: LockId, taken: Taken) -> Taken {
        let was_leased = self.leased.contains(&(node, lock));
        if taken == Taken::Yes {
            self.leased.insert((node, lock));
        }
        match (self.mutant, taken) {
            (Mutant::TakeByEndedLease, Taken::AskEngine) if was_leased => Taken::Yes,
            (Mutant::TakeHeld, Taken::Held) => Taken::Yes,
            _ => taken,
        }
    }

    fn give_back(&mut self, leases: &Leases, lock: LockId, waiter: Waiter) -> bool {
        let is_back = leases.give_back(lock, waiter);
        if is_back && self.mutant == Mutant::ForgetHolds {
            leases.end(lock);
            leases.begin(lock);
        }
        is_back
    }
}
