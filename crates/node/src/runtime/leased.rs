//! Locks that threads of this node take and give back without the engine ([`hiroba_protocol::lease`]).
//!
//! This needs no lock of the runtime, so signals are not deferred, and it may run on any stack.

use hiroba_base::LockId;
use hiroba_protocol::Waiter;
use hiroba_protocol::lease::Taken;

use super::Runtime;
use crate::threads::{Purpose, Threads};

impl Runtime {
    /// Takes a lock for the calling thread, if that needs no engine.
    pub fn take_leased(&self, lock: LockId) -> Taken {
        Threads::known(Purpose::Call).map_or(Taken::AskEngine, |waiter| self.leases.take(lock, waiter))
    }

    /// Gives back a lock of the calling thread, if that needs no engine. Returns false if it does.
    pub fn give_back_leased(&self, lock: LockId) -> bool {
        let give_back = |waiter: Waiter| self.leases.give_back(lock, waiter);
        Threads::known(Purpose::Call).is_some_and(give_back)
    }
}
