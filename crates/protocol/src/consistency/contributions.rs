//! Contributions: bytes that nodes send with their arrivals at a barrier, and that a thread of node 0 uses
//! before any node departs.
//!
//! ```text
//!   node ──Arrive(contributions)──▶ root    all have arrived: the departure is held
//!                                   root    its thread uses what came, and concludes
//!   node ◀──Depart───────────────── root
//! ```
//! So what all nodes want done to shared data at a barrier, as in a reduction, costs the barrier's messages.
//! The bytes mean nothing to the engine. A node contributes before its threads come to the barrier
//! ([`Engine::contribute`]); inner nodes of the tree pass on what comes from below. The root's thread that
//! waits there is woken when all have arrived ([`Outcome::Contributions`]), takes the bytes
//! ([`Engine::take_contributions`]), and waits again ([`Synchronisation::Conclude`]). Without contributions
//! nothing changes.
//!
//! **What the thread may touch.** The root's interval was closed when it arrived, and the departure does not
//! report what its threads store afterwards. So the thread stores to pages under sequential consistency
//! alone, as other threads of a node that has arrived may do. Copies of such pages that have been lent were
//! given back before it is woken, so these stores cost no message.
//!
//! **Copies that travel with this departure.** Pages that others read in each phase travel with the
//! departure (`sc/lending.rs`), and so must those that the thread stores to. They have lost their access only
//! now, so what is stored there may follow changes that the interval does not contain: those of a thread that
//! is in no team, for example. So the interval is closed once more if there are such pages. They travel
//! unless the root knows more than the departure tells.
//!
//! **The job's end.** If another thread of node 0 ends the program meanwhile, it has halted the thread that
//! uses the contributions. So the nodes depart at once.
//!
//! [`Engine::contribute`]: crate::Engine::contribute
//! [`Engine::take_contributions`]: crate::Engine::take_contributions
//! [`Synchronisation::Conclude`]: crate::Synchronisation::Conclude

use std::collections::BTreeMap;

use hiroba_base::NodeId;
use hiroba_wire::{CONTRIBUTION_BYTES_MAX, Collective};

use super::Consistency;
use crate::barrier::{self, Arrival};
use crate::coherence::AfterRelease;
use crate::{Outcome, ProtocolError, Waiter};

/// What nodes contribute, and the departure that waits for its use.
#[derive(Debug, Default)]
pub(super) struct Combining {
    /// What this node contributes to the next collective; empty if nothing.
    mine: Vec<u8>,
    /// At the root: what the nodes have contributed, until a thread takes it.
    all: BTreeMap<NodeId, Vec<u8>>,
    held: Option<Held>,
}

/// A departure that is held.
#[derive(Debug)]
struct Held {
    /// The combined arrival of all nodes.
    arrival: Arrival,
    /// The thread that uses the contributions, until it concludes.
    visitor: Option<Waiter>,
}

impl Combining {
    pub(super) fn contribute(&mut self, bytes: Vec<u8>) {
        let got = bytes.len();
        assert!(got <= CONTRIBUTION_BYTES_MAX, "expected at most {CONTRIBUTION_BYTES_MAX} bytes, got {got}");
        self.mine = bytes;
    }

    /// Returns what this node contributes to the collective that it comes to.
    pub(super) fn contributed(&mut self, me: NodeId) -> Option<(NodeId, Vec<u8>)> {
        let bytes = std::mem::take(&mut self.mine);
        (!bytes.is_empty()).then_some((me, bytes))
    }

    pub(super) fn take(&mut self) -> BTreeMap<NodeId, Vec<u8>> {
        std::mem::take(&mut self.all)
    }
}

impl Consistency {
    /// Handles, at the root, that all nodes have arrived: they depart, now or when a thread has used what
    /// they have contributed.
    pub(super) fn depart_or_hold(&mut self, mut arrival: Arrival) -> Result<(), ProtocolError> {
        let contributions = std::mem::take(&mut arrival.contributions);
        // The thread that would use them may have been halted.
        let is_over = arrival.collective.ends_the_job() || self.team.is_ending();
        if contributions.is_empty() || is_over {
            return self.depart(arrival);
        }
        let met = self.team.meets().unwrap_or(arrival.collective);
        if (met, arrival.collective) != (Collective::Barrier, Collective::Barrier) {
            let (node, call) = (contributions.keys().next().expect("there is one"), barrier::describe(met));
            let sentence = format!(
                "a fault of Hiroba's: node {node} contributes to a barrier, but node 0 waits in {call}"
            );
            self.site.out.end_job(sentence);
            return Ok(());
        }
        // What was lent has been given back, and the thread may store there.
        self.each(|protocol, site| protocol.handle_others_here(site));
        let visitor = self.team.first().expect("the root has arrived with a thread");
        self.combining.all = contributions;
        self.combining.held = Some(Held { arrival, visitor: Some(visitor) });
        self.site.out.wake(visitor, Outcome::Contributions);
        Ok(())
    }

    /// Handles that the thread has used the contributions and waits for the departure.
    pub(super) fn conclude(&mut self, waiter: Waiter) {
        let held = self.combining.held.as_mut().filter(|held| held.visitor == Some(waiter));
        let Some(held) = held else {
            // The program was halted before, and the thread is not waited for.
            return self.site.out.wake(waiter, Outcome::Collective(Collective::LeaveHalted));
        };
        held.visitor = None;
        let mut waits = false;
        self.each(|protocol, site| waits |= protocol.prepare_departure(site));
        if waits {
            self.site.release_for(AfterRelease::Conclude);
        } else {
            self.depart_held();
        }
    }

    /// Handles that a thread may have ended the program, and halted the one that uses the contributions.
    pub(super) fn conclude_without_halted(&mut self) {
        let held = self.combining.held.as_mut().filter(|_| self.team.is_ending());
        if let Some(visitor) = held.and_then(|held| held.visitor.take()) {
            self.team.lose(visitor);
            self.combining.all.clear();
            self.depart_held();
        }
    }

    /// Lets all nodes depart from the barrier whose departure was held.
    pub(super) fn depart_held(&mut self) {
        let Held { arrival, .. } = self.combining.held.take().expect("a departure is held until it goes");
        if !arrival.knowledge.timestamp.covers(&self.site.timestamp) {
            self.each(|protocol, site| protocol.withdraw_departure(site));
        }
        self.depart(arrival).expect("all nodes have arrived at the root");
    }

    fn depart(&mut self, all: Arrival) -> Result<(), ProtocolError> {
        let departure = self.meeting.agree(all, &self.site.homes);
        self.handle_departure(self.site.me, self.site.collectives_done, departure)
    }
}
