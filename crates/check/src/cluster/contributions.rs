//! How a thread of node 0 uses what nodes have contributed to a barrier, step by step.

use std::collections::VecDeque;

use hiroba_base::Access;
use hiroba_protocol::{Engine, Synchronisation};
use hiroba_wire::{AtomicOperation, Collective};

use super::recording::activity_of;
use super::{Cluster, Failure, Wait};
use crate::program::Address;

/// What is left to be done with contributions.
#[derive(Clone, Debug, Hash)]
pub(super) struct Visit {
    /// The word to which they are added.
    at: Address,
    values: VecDeque<u64>,
    /// True if the thread has asked for the departure.
    has_concluded: bool,
}

impl<E: Engine> Cluster<E> {
    /// Handles that all nodes have arrived, and some have contributed.
    pub(super) fn begin_visit(&mut self, number: usize, at: Address) -> Result<(), Failure> {
        let node = self.threads[number].node;
        let contributions = self.nodes[node.index()].engine.take_contributions().into_iter().collect();
        let contributions = self.mutation.on_contributions(contributions);
        let value = |bytes: Vec<u8>| bytes.try_into().map(u64::from_le_bytes);
        let values = contributions.into_iter().map(|(_, bytes)| value(bytes)).collect::<Result<_, _>>();
        let values = values.map_err(|bytes| Failure::Host {
            node,
            sentence: format!("expected a value that was contributed, got {} bytes", bytes.len()),
        })?;
        self.threads[number].visit = Some(Visit { at, values, has_concluded: false });
        Ok(())
    }

    /// Uses the next contribution, or asks for the departure.
    pub(super) fn go_on_visiting(&mut self, number: usize) -> Result<(), Failure> {
        let goes_early = self.mutation.concludes_before_visit();
        let visit = self.threads[number].visit.as_mut().expect("the thread visits");
        let (at, next) = (visit.at, visit.values.front().copied());
        match next {
            Some(value) if visit.has_concluded || !goes_early => {
                if self.permitted(number, at, Access::Write)? {
                    self.swap_freely(number, at, AtomicOperation::FetchAdd(value));
                    self.threads[number].visit.as_mut().and_then(|visit| visit.values.pop_front());
                }
                Ok(())
            }
            None if visit.has_concluded => {
                self.threads[number].visit = None;
                self.threads[number].next += 1;
                Ok(())
            }
            _ => {
                visit.has_concluded = true;
                self.enter(number, activity_of(Synchronisation::Conclude));
                self.ask(number, Synchronisation::Conclude, Wait::Collective(Collective::Barrier))
            }
        }
    }

    /// Handles that the thread leaves the barrier. Returns true if it has yet to use contributions.
    pub(super) fn goes_on_visiting(&mut self, number: usize) -> bool {
        let visit = &mut self.threads[number].visit;
        if visit.as_ref().is_some_and(|visit| visit.has_concluded && visit.values.is_empty()) {
            *visit = None;
        }
        visit.is_some()
    }
}
