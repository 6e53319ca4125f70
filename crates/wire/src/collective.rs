//! What the nodes of a job do together.

use hiroba_base::{NodeId, PageSize};
use serde::{Deserialize, Serialize};

/// How a collectively allocated region's pages are spread over homes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Placement {
    /// Consecutive blocks of pages, one a node.
    Block,
    /// Page by page in turn.
    Cyclic,
    /// All on one node.
    On(NodeId),
    /// Each page on the node that is the first to touch it, and until then in consecutive blocks.
    FirstTouch,
}

/// A coherence protocol, by the number that all nodes of one build know it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProtocolNumber(pub u8);

/// What the nodes of a job do together. All must name the same, but for followers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Collective {
    /// Wait for everybody.
    Barrier,
    /// Wait for everybody, then leave the job.
    Leave,
    /// Allocate the next region of the shared address space.
    Allocate {
        /// Its length.
        bytes: u64,
        /// Its homes.
        placement: Placement,
        /// Its coherence unit.
        page_size: PageSize,
        /// The protocol that keeps it coherent, where it is not the job's.
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
    /// Do what node 0 does: the nodes that wait inside `tsm_startup`.
    Follow,
    /// The same as `Leave`, by the end of the program.
    LeaveByExit,
}

impl Collective {
    /// Whether the nodes that meet in it are part of the job no more.
    pub fn ends_the_job(self) -> bool {
        matches!(self, Collective::Leave | Collective::LeaveByExit)
    }

    /// Whether nodes that call the one and the other do the same.
    pub fn meets(self, other: Collective) -> bool {
        self == other || (self.ends_the_job() && other.ends_the_job())
    }
}
