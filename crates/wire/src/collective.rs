//! Actions that all nodes of a job take together.

use hiroba_base::{NodeId, PageSize};
use serde::{Deserialize, Serialize};

/// The maximum length of what a node contributes to a collective.
pub const CONTRIBUTION_BYTES_MAX: usize = 16 << 10;

/// How the pages of a collectively allocated region are spread over homes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Placement {
    /// Consecutive blocks of pages, one per node.
    Block,
    /// Page by page in turn.
    Cyclic,
    /// All on one node.
    On(NodeId),
    /// Each page on the node that touches it first, and in consecutive blocks until then.
    FirstTouch,
}

/// A coherence protocol, by a number that is the same on all nodes of one build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProtocolNumber(pub u8);

/// An action that all nodes of a job take together. All must name the same one, except followers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Collective {
    /// Wait for all.
    Barrier,
    /// Wait for all, then leave the job.
    Leave,
    /// Allocate the next region of the shared address space.
    Allocate {
        /// Its length.
        bytes: u64,
        /// Its homes.
        placement: Placement,
        /// Its coherence unit.
        page_size: PageSize,
        /// The protocol that keeps it coherent, if it is not the job's.
        protocol: Option<ProtocolNumber>,
    },
    /// Begin to run a function on all threads of all nodes (`hiroba_run`).
    BeginRun,
    /// All threads have returned from it.
    EndRun,
    /// Run the worker whose code lies at this distance from the program's load address (`tsm_create_procs`).
    RunWorker {
        /// The distance in bytes.
        offset: u64,
    },
    /// Do what node 0 does; used by nodes that wait inside `tsm_startup`.
    Follow,
    /// Leave because the program has ended.
    LeaveByExit,
    /// Leave because the program has ended and its threads were stopped anywhere, perhaps with locks held,
    /// perhaps in another collective call.
    LeaveHalted,
}

impl Collective {
    /// Returns true if the nodes that meet in it no longer belong to the job.
    pub fn ends_the_job(self) -> bool {
        matches!(self, Collective::Leave | Collective::LeaveByExit | Collective::LeaveHalted)
    }

    /// Returns true if nodes that call these two take the same action.
    pub fn meets(self, other: Collective) -> bool {
        let one_is_halted = [self, other].contains(&Collective::LeaveHalted);
        self == other || one_is_halted || (self.ends_the_job() && other.ends_the_job())
    }
}

/// What a node contributes to a collective: bytes for node 0, which only the program understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contribution<'a> {
    /// The node.
    pub node: NodeId,
    /// The bytes, at least one.
    #[serde(borrow, with = "serde_bytes")]
    pub bytes: &'a [u8],
}
