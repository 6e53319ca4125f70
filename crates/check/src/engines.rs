//! What each protocol promises its programs, and its engine as the simulator wants it: what explores, counts or prints runs is written
//! for all of them.

use hiroba_base::NodeId;
use hiroba_protocol::{Consistency, Protocol, WriteTracking};
use hiroba_wire::Limits;

use crate::axioms;
use crate::execution::Execution;
use crate::sequential::{self, Sequential};

/// What a protocol promises its programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Any program behaves as on one machine, and whoever may write a page is the only one who may read it.
    Sequential,
    /// Programs without data races behave as on one machine.
    Release,
}

/// What the protocol promises.
pub fn promise_of(protocol: Protocol) -> Promise {
    match protocol {
        Protocol::Sc => Promise::Sequential,
        Protocol::ErcInvalidate
        | Protocol::ErcUpdate
        | Protocol::Lrc
        | Protocol::Hlrc
        | Protocol::Aurc
        | Protocol::Adaptive => Promise::Release,
    }
}

/// The ways of tracking writes that the protocol can do with.
pub fn trackings_of(protocol: Protocol) -> &'static [WriteTracking] {
    const BOTH: [WriteTracking; 2] = [WriteTracking::Fault, WriteTracking::Async];
    if protocol.needs_write_faults() { &BOTH[..1] } else { &BOTH }
}

/// The protocol's engine on one node, with nothing allocated, where nodes meet in messages only.
pub fn engine_of(protocol: Protocol, me: NodeId, limits: Limits, tracking: WriteTracking) -> Consistency {
    Consistency::new(me, limits, tracking, protocol.coherence([]))
}

/// The protocol of that name.
///
/// # Errors
/// A sentence that says which names there are.
pub fn by_name(name: &str) -> Result<Protocol, String> {
    let names = Protocol::names();
    Protocol::named(name).ok_or_else(|| format!("expected the name of a protocol, {names}, got '{name}'"))
}

impl Promise {
    /// What is wrong with what threads saw, if anything is. Of racy programs only what they are promised is judged.
    pub fn convicts(self, execution: &Execution) -> Option<String> {
        if self == Promise::Sequential
            && let Sequential::No { explanation } = sequential::judge(execution)
        {
            return Some(explanation);
        }
        match axioms::judge(execution) {
            Err(incomplete) => Some(incomplete.to_string()),
            Ok(verdict) => verdict.violations.first().map(|violation| violation.explanation.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_found_by_name_and_others_are_refused_with_a_sentence() {
        for protocol in Protocol::ALL {
            assert_eq!(by_name(protocol.name()), Ok(protocol));
        }
        let refused = by_name("munin").unwrap_err();
        assert!(refused.contains("'munin'") && refused.contains(&Protocol::names()), "{refused}");
    }
}
