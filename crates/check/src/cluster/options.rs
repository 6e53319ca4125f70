//! The options of a simulated run.

use hiroba_protocol::{Protocol, WriteTracking};

use super::races::RaceBug;
use crate::mutant::{Faithful, Mutation};

/// How a program is run.
pub struct Options {
    /// Reproduces the run.
    pub seed: u64,
    /// Whether to keep the events for the checkers.
    pub record: bool,
    /// The number of steps after which a run is considered endless.
    pub steps_max: u64,
    /// A planted bug.
    pub mutation: Box<dyn Mutation>,
    /// The network.
    pub network: NetworkChoice,
    /// How the nodes detect what their programs write.
    pub tracking: WriteTracking,
    /// The protocols that keep the program's regions coherent, in turn; if empty, all are under the engine's
    /// own.
    pub region_protocols: Vec<Option<Protocol>>,
    /// Whether nodes may read each other's frames, so that others continue between any two effects of a node.
    /// The engines must support it.
    pub one_sided: bool,
    /// Whether hosts are sometimes short of memory, and evict any pages.
    pub shortages: bool,
    /// Set to look for data races; the engines must support it.
    pub races: Option<RaceBug>,
}

/// The network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkChoice {
    /// [`ShuffledNetwork`](crate::network::ShuffledNetwork).
    Shuffled,
    /// [`LossyNetwork`](crate::network::LossyNetwork).
    Lossy,
    /// [`DirectNetwork`](crate::network::DirectNetwork); threads take turns instead of being drawn.
    Direct,
    /// Nothing is drawn, every step is chosen: [`Cluster::choose`](super::Cluster::choose).
    Chosen,
}

impl Options {
    /// Returns the options of an exploring run without bugs.
    pub fn seeded(seed: u64, tracking: WriteTracking) -> Options {
        let mutation = Box::new(Faithful);
        let network = NetworkChoice::Shuffled;
        let region_protocols = Vec::new();
        let (record, steps_max, one_sided) = (true, 200_000, false);
        Options {
            seed,
            record,
            steps_max,
            mutation,
            network,
            tracking,
            region_protocols,
            one_sided,
            shortages: false,
            races: None,
        }
    }
}

/// Returns the protocol of a region by its number, if it is not under the engine's own.
pub(super) fn protocol_of(protocols: &[Option<Protocol>], region: usize) -> Option<Protocol> {
    protocols.get(region % protocols.len().max(1)).copied().flatten()
}
