//! How a simulated cluster runs a program.

use hiroba_protocol::{Protocol, WriteTracking};

use super::races::RaceBug;
use crate::mutant::{Faithful, Mutation};

/// How a program is run.
pub struct Options {
    /// Reproduces the run.
    pub seed: u64,
    /// Keep the events for the judge.
    pub record: bool,
    /// A run that takes more steps is endless.
    pub steps_max: u64,
    /// A planted bug.
    pub mutation: Box<dyn Mutation>,
    /// What carries the messages.
    pub network: NetworkChoice,
    /// How the nodes find out what their programs write.
    pub tracking: WriteTracking,
    /// Which protocols keep the program's regions coherent, in turn; all are under the engine's own when there are none here.
    pub region_protocols: Vec<Option<Protocol>>,
    /// Nodes may read each other's frames, so others go on between any two effects of a node. The engines must be made to.
    pub one_sided: bool,
    /// Hosts are short of memory now and then, and have any pages leave.
    pub shortages: bool,
    /// Hosts look for data races; the engines must be made to.
    pub races: Option<RaceBug>,
}

/// What carries the messages.
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
    /// An exploring run without bugs.
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

/// The protocol of a region by its number, where it is not under the engine's own.
pub(super) fn protocol_of(protocols: &[Option<Protocol>], region: usize) -> Option<Protocol> {
    protocols.get(region % protocols.len().max(1)).copied().flatten()
}
