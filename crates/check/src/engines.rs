//! The engine of each protocol for the simulator. Code that explores, counts or prints runs is written for
//! all of them.

use hiroba_base::NodeId;
use hiroba_protocol::aurc::Aurc;
use hiroba_protocol::aurc::mapped::MappingRule;
use hiroba_protocol::hlrc::Hlrc;
use hiroba_protocol::home::{HomePolicy, MoveThreshold};
use hiroba_protocol::{Consistency, Protocol, WriteTracking};
use hiroba_wire::Limits;

pub use hiroba_judge::promise::{Promise, by_name, promise_of};

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
