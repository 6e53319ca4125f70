//! Frames that others read: what nodes see of each other beside messages, and who goes on meanwhile.
//!
//! Between two effects of a node nothing else happens where nodes meet only in messages. When they read each other's
//! frames every effect shows, and others go on between any two, and in the middle of a read. The node itself takes in no
//! message meanwhile, because its engine is busy.

use std::collections::VecDeque;

use hiroba_base::{IntervalSeq, NodeId, PageId, PageRange, Prng, RngExt, VersionVector};
use hiroba_protocol::aurc::Aurc;
use hiroba_protocol::hlrc::Hlrc;
use hiroba_protocol::{Consistency, Engine, ReadOutcome, WriteTracking};
use hiroba_wire::Limits;
use rustc_hash::FxHashMap;

use super::{Cluster, Failure};
use crate::memory::Merge;
use crate::network::Parcel;
use crate::program::GRANULE_BYTES;

/// Makes HLRC engines for a cluster; with `one_sided` (see [`Options`](super::Options)) they read each other's frames.
pub fn hlrc(one_sided: bool) -> impl FnMut(NodeId, Limits, WriteTracking) -> Consistency {
    move |me, limits, tracking| {
        let others = NodeId::all(limits.nodes).filter(|node| one_sided && *node != me);
        let protocol = Hlrc::new().reading_from(others);
        Consistency::new(me, limits, tracking, Box::new(protocol)).telling()
    }
}

/// Makes AURC engines for a cluster; with `one_sided` they read each other's frames.
pub fn aurc(one_sided: bool) -> impl FnMut(NodeId, Limits, WriteTracking) -> Consistency {
    move |me, limits, tracking| {
        let others = NodeId::all(limits.nodes).filter(|node| one_sided && *node != me);
        let protocol = Aurc::new(Hlrc::new().reading_from(others));
        Consistency::new(me, limits, tracking, Box::new(protocol)).telling()
    }
}

/// What others see of a node, and leave there.
#[derive(Default)]
pub(super) struct Board {
    published: FxHashMap<NodeId, IntervalSeq>,
    announced: Vec<PageId>,
    /// The node's engine waits for the host, while others go on.
    pub(super) occupied: bool,
    /// What has arrived meanwhile.
    parcels: VecDeque<Parcel>,
}

impl Board {
    pub(super) fn publish(&mut self, writer: NodeId, seq: IntervalSeq) {
        self.published.insert(writer, seq);
    }

    pub(super) fn take_announced(&mut self) -> Vec<PageId> {
        std::mem::take(&mut self.announced)
    }

    fn covers(&self, needed: &VersionVector) -> bool {
        needed
            .entries()
            .iter()
            .all(|(writer, seq)| self.published.get(writer).is_some_and(|held| held >= seq))
    }
}

/// How much others do between the effects of a node.
#[derive(Clone, Copy)]
pub(super) struct Meddling {
    /// How often in 16 somebody else takes one more step.
    steps: u32,
    /// How often in 16 there is no room for an announcement.
    refusals: u32,
}

impl Meddling {
    /// Drawn, or none.
    pub(super) fn new(one_sided: bool, random: &mut Prng) -> Meddling {
        if !one_sided {
            return Meddling { steps: 0, refusals: 0 };
        }
        Meddling {
            steps: [1, 4, 10][random.random_range(0..3)],
            refusals: [0, 1, 4][random.random_range(0..3)],
        }
    }
}

/// The pages of a run, each of `page_bytes` bytes.
fn page_ids(pages: PageRange, page_bytes: usize) -> impl Iterator<Item = PageId> {
    pages.iter().step_by(page_bytes / GRANULE_BYTES as usize)
}

impl<E: Engine> Cluster<E> {
    /// Everybody but node `id` goes on, for a while.
    pub(super) fn others_go_on(&mut self, id: NodeId) -> Result<(), Failure> {
        while self.meddling.steps > 0 && self.random.random_range(0..16) < self.meddling.steps {
            self.nodes[id.index()].board.occupied = true;
            let gone_on = self.advance();
            self.nodes[id.index()].board.occupied = false;
            if !gone_on? {
                break;
            }
        }
        Ok(())
    }

    /// Keeps a parcel for a node that is occupied, or for which others are kept already: links are in order. Whether it did.
    pub(super) fn keep_parcel(&mut self, parcel: &Parcel) -> bool {
        let board = &mut self.nodes[parcel.to.index()].board;
        let keeps = board.occupied || !board.parcels.is_empty();
        if keeps {
            board.parcels.push_back(parcel.clone());
        }
        keeps
    }

    /// A parcel that was kept for a node that is free again.
    pub(super) fn kept_parcel(&mut self) -> Option<Parcel> {
        let mut free = self.nodes.iter_mut().map(|node| &mut node.board).filter(|board| !board.occupied);
        free.find_map(|board| board.parcels.pop_front())
    }

    /// Carries out `Effect::Read`.
    pub(super) fn read(
        &mut self,
        id: NodeId,
        pages: PageRange,
        page_bytes: usize,
        home: NodeId,
        needed: &VersionVector,
        merge: bool,
    ) -> Result<ReadOutcome, Failure> {
        let reading = self.mutation.on_read();
        if !self.nodes[home.index()].board.covers(needed) && !reading.looks_away {
            return Ok(ReadOutcome::Behind);
        }
        if self.exploring && self.random.random_range(0..16) < self.meddling.refusals {
            return Ok(ReadOutcome::Behind);
        }
        self.others_go_on(id)?;
        if !reading.announces_late && !reading.announces_never {
            self.announce(home, pages, page_bytes);
            self.others_go_on(id)?;
        }
        let content = self.copy_in_pieces(id, home, pages)?;
        if reading.announces_late {
            self.announce(home, pages, page_bytes);
        }
        let how = if merge { self.mutation.on_merge() } else { Merge::Replace };
        let installed = self.nodes[id.index()].memory.install(pages, Some(&content), how);
        let dirty = installed.map_err(|error| Failure::Memory { node: id, error })?;
        Ok(ReadOutcome::Installed { dirty: merge && self.mutation.on_merged(dirty) })
    }

    fn announce(&mut self, home: NodeId, pages: PageRange, page_bytes: usize) {
        self.nodes[home.index()].board.announced.extend(page_ids(pages, page_bytes));
    }

    /// The home's bytes, which it and others go on writing while they are copied.
    fn copy_in_pieces(&mut self, id: NodeId, home: NodeId, pages: PageRange) -> Result<Vec<u8>, Failure> {
        let granule_bytes = GRANULE_BYTES as usize;
        let bytes = pages.count as usize * granule_bytes;
        // Between words, and among the first of a granule, where programs are busy.
        let cut = self.random.random_range(0..pages.count) as usize * granule_bytes
            + self.random.random_range(0..24) * 8;
        let mut content = Vec::with_capacity(bytes);
        for piece in [0..cut, cut..bytes] {
            content.extend_from_slice(&self.nodes[home.index()].memory.page(pages.first, bytes)[piece]);
            self.others_go_on(id)?;
        }
        Ok(content)
    }
}
