//! What each protocol promises its programs, and its engine for the simulator. Code that explores, counts or
//! prints runs is written for all of them.

use hiroba_base::NodeId;
use hiroba_protocol::aurc::Aurc;
use hiroba_protocol::aurc::mapped::MappingRule;
use hiroba_protocol::hlrc::Hlrc;
use hiroba_protocol::home::{HomePolicy, MoveThreshold};
use hiroba_protocol::{Consistency, Protocol, WriteTracking};
use hiroba_wire::Limits;

use crate::axioms;
use crate::execution::Execution;
use crate::sequential::{self, Sequential};

/// The promise of a protocol to its programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Every program behaves as on one machine, and a node that may write a page is the only one that may
    /// read it.
    Sequential,
    /// Programs without data races behave as on one machine.
    Release,
}

/// Returns the promise of the protocol.
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

/// Returns the ways of tracking writes that the protocol supports.
pub fn trackings_of(protocol: Protocol) -> &'static [WriteTracking] {
    const BOTH: [WriteTracking; 2] = [WriteTracking::Fault, WriteTracking::Async];
    if protocol.needs_write_faults() { &BOTH[..1] } else { &BOTH }
}

/// Returns the protocol's engine on one node, with nothing allocated, for nodes that only exchange messages.
pub fn engine_of(protocol: Protocol, me: NodeId, limits: Limits, tracking: WriteTracking) -> Consistency {
    Consistency::under(protocol, me, limits, tracking, [])
}

/// Returns the protocol's engines, in the form that [`Cluster::new`](crate::cluster::Cluster::new) takes.
pub fn engine_under(protocol: Protocol) -> impl Fn(NodeId, Limits, WriteTracking) -> Consistency + Copy {
    move |me, limits, tracking| engine_of(protocol, me, limits, tracking)
}

/// A threshold at which homes also move in programs of a few barriers.
pub const SOON: MoveThreshold = MoveThreshold { periods: 1, faults: 1, doublings_max: 2 };

/// Returns HLRC that reads the frames of all other nodes, or of none.
fn reading_hlrc(one_sided: bool, me: NodeId, limits: Limits) -> Hlrc {
    Hlrc::new().reading_from(NodeId::all(limits.nodes).filter(|node| one_sided && *node != me))
}

/// Returns HLRC's engines; with `one_sided` (see [`Options`](crate::cluster::Options)) they read each other's
/// frames.
pub fn hlrc(one_sided: bool) -> impl FnMut(NodeId, Limits, WriteTracking) -> Consistency {
    move |me, limits, tracking| {
        let protocol = reading_hlrc(one_sided, me, limits);
        Consistency::new(me, limits, tracking, Box::new(protocol)).telling()
    }
}

/// Returns AURC's engines; with `one_sided` they read each other's frames.
pub fn aurc(one_sided: bool) -> impl FnMut(NodeId, Limits, WriteTracking) -> Consistency {
    move |me, limits, tracking| {
        let protocol = Aurc::new(reading_hlrc(one_sided, me, limits));
        Consistency::new(me, limits, tracking, Box::new(protocol)).telling()
    }
}

/// Returns AURC's engines for nodes that share memory: they map runs of at least the given length, and with
/// `one_sided` they read each other's frames of other pages. If homes of these move by this policy, they move
/// soon.
pub fn mapping_aurc(
    run_bytes_min: u64,
    one_sided: bool,
    homes: HomePolicy,
) -> impl FnMut(NodeId, Limits, WriteTracking) -> Consistency {
    move |me, limits, tracking| {
        let protocol = Aurc::new(reading_hlrc(one_sided, me, limits).moving_homes(homes).moving_after(SOON));
        let engine = Consistency::new(me, limits, tracking, Box::new(protocol)).telling();
        engine.mapping_homes(MappingRule { run_bytes_min })
    }
}

/// Returns the protocol of that name.
///
/// # Errors
/// A sentence with the valid names.
pub fn by_name(name: &str) -> Result<Protocol, String> {
    let names = Protocol::names();
    Protocol::named(name).ok_or_else(|| format!("expected the name of a protocol, {names}, got '{name}'"))
}

impl Promise {
    /// Returns what is wrong with what threads saw, if anything. Racy programs are checked only for what they
    /// are promised.
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
