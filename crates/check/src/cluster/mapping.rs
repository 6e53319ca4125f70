//! Pages that nodes have mapped onto their homes' frames, to which their loads and stores go.

use hiroba_base::{NodeId, PageId, PageRange};
use hiroba_protocol::Engine;

use super::{Cluster, Failure};
use crate::program::{Address, Width};

/// What a node has mapped, and the nodes of the frames.
#[derive(Debug, Default)]
pub(super) struct Mappings {
    runs: Vec<(PageRange, NodeId)>,
    /// A store that a planted bug delays.
    lingering: Option<(NodeId, Address, Width, u64)>,
}

impl Mappings {
    pub(super) fn add(&mut self, pages: PageRange, home: NodeId) {
        self.runs.push((pages, home));
    }

    fn home_of(&self, granule: PageId) -> Option<NodeId> {
        // As with mmap(2), the latest mapping counts.
        let run = self.runs.iter().rev().find(|(pages, _)| pages.contains(granule));
        run.map(|(_, home)| *home)
    }
}

impl<E: Engine> Cluster<E> {
    /// Carries out what engines request first for their regions, before any thread can know these.
    pub(super) fn map_homes(&mut self) -> Result<(), Failure> {
        for id in NodeId::all(self.limits.nodes) {
            while let Some(effect) = self.nodes[id.index()].engine.poll_effect() {
                for effect in self.mutation.on_effect(id, effect) {
                    self.carry_out(id, effect)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the node whose memory contains what the threads of node `id` find at a granule.
    fn holder(&self, id: NodeId, granule: PageId) -> NodeId {
        self.nodes[id.index()].mappings.home_of(granule).unwrap_or(id)
    }

    fn bring_lingering_store(&mut self, id: NodeId) {
        if let Some((holder, at, width, value)) = self.nodes[id.index()].mappings.lingering.take() {
            self.nodes[holder.index()].memory.store(at, width, value);
        }
    }

    pub(super) fn load_from_frame(&mut self, id: NodeId, at: Address, width: Width) -> u64 {
        self.bring_lingering_store(id);
        self.nodes[self.holder(id, at.granule).index()].memory.load(at, width)
    }

    pub(super) fn store_into_frame(&mut self, id: NodeId, at: Address, width: Width, value: u64) {
        self.bring_lingering_store(id);
        let holder = self.holder(id, at.granule);
        if holder != id && self.mutation.store_lingers() {
            self.nodes[id.index()].mappings.lingering = Some((holder, at, width, value));
        } else {
            self.nodes[holder.index()].memory.store(at, width, value);
        }
    }
}
