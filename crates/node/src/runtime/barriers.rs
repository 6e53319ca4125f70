//! Barriers, and what nodes contribute to them.

use std::sync::atomic::Ordering;

use hiroba_base::NodeId;
use hiroba_protocol::{Outcome, Synchronisation};
use hiroba_wire::{CONTRIBUTION_BYTES_MAX, Collective};

use super::Runtime;
use crate::signals::SignalsDeferred;
use crate::time_class::TimeClass;

/// The call's name in reports.
const NAME: &str = "hiroba_barrier";

impl Runtime {
    /// Waits for all nodes.
    pub fn barrier(&self) {
        let outcome = self.arrive_at_barrier();
        if outcome == Outcome::Contributions {
            self.fatal(
                "a fault of Hiroba's: nodes contribute to a barrier at which node 0 makes no use of that",
            );
        }
        self.end_barrier(outcome);
    }

    /// Has these bytes travel with this node's arrival at the next barrier, which the calling thread is about
    /// to come to. They replace those of an earlier call.
    pub fn contribute(&self, bytes: &[u8]) {
        let got = bytes.len();
        if got > CONTRIBUTION_BYTES_MAX {
            self.fatal(&format!(
                "a fault of Hiroba's: expected at most {CONTRIBUTION_BYTES_MAX} bytes for a barrier, got {got}"
            ));
        }
        self.tell(|core| core.engine.contribute(bytes.to_vec()));
    }

    /// Waits for all nodes like [`barrier`](Self::barrier). On node 0, before any node goes on, calls `visit`
    /// for each node that has contributed, in the order of the nodes.
    pub fn barrier_combining(&self, mut visit: impl FnMut(NodeId, &[u8])) {
        let mut outcome = self.arrive_at_barrier();
        if outcome == Outcome::Contributions {
            let mut contributions = Default::default();
            self.tell(|core| contributions = core.engine.take_contributions());
            contributions.iter().for_each(|(node, bytes)| visit(*node, bytes));
            let signals = SignalsDeferred::defer();
            drop(contributions);
            drop(signals);
            outcome = self.synchronise(NAME, TimeClass::Barrier, Synchronisation::Conclude);
        }
        self.end_barrier(outcome);
    }

    fn arrive_at_barrier(&self) -> Outcome {
        self.synchronise(NAME, TimeClass::Barrier, Synchronisation::Collective(Collective::Barrier))
    }

    fn end_barrier(&self, outcome: Outcome) {
        if matches!(outcome, Outcome::Collective(met) if met.ends_the_job()) {
            // The job has ended under this thread, which must touch nothing any more.
            loop {
                std::thread::park();
            }
        }
        self.account.tallies.barriers.fetch_add(1, Ordering::Relaxed);
    }
}
