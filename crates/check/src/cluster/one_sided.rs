//! Frames that others read: what nodes see of each other beside messages, and which threads continue
//! meanwhile.
//!
//! If nodes only exchange messages, nothing else happens between two effects of a node. If they read each
//! other's frames every effect is visible, and others continue between any two effects, and in the middle of
//! a read. The node itself takes no message meanwhile, because its engine is busy.

use std::collections::VecDeque;

use hiroba_base::{IntervalSeq, NodeId, PageId, PageRange, RngExt, VersionVector};
use hiroba_protocol::{Engine, ReadOutcome};
use rustc_hash::FxHashMap;

use super::{Cluster, Failure};
use crate::memory::Merge;
use crate::network::Parcel;
use crate::program::GRANULE_BYTES;

/// What others see of a node, and leave there.
#[derive(Default)]
pub(super) struct Board {
    published: FxHashMap<NodeId, IntervalSeq>,
    announced: Vec<PageId>,
    /// Whether the node's engine waits for the host while others continue.
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

/// A read of pages from the frames of their home, as `Effect::Read` requests it.
pub(super) struct FrameRead {
    pub(super) pages: PageRange,
    pub(super) page_bytes: u32,
    pub(super) home: NodeId,
    /// What the home must have published before.
    pub(super) needed: VersionVector,
    /// Whether the reader has unsent writes, which stay.
    pub(super) merge: bool,
}

impl FrameRead {
    fn page_ids(&self) -> impl Iterator<Item = PageId> {
        self.pages.iter().step_by((self.page_bytes / GRANULE_BYTES) as usize)
    }
}

impl<E: Engine> Cluster<E> {
    /// Lets all nodes except `id` continue for a while.
    pub(super) fn others_go_on(&mut self, id: NodeId) -> Result<(), Failure> {
        while self.schedule.meddling.steps > 0 && self.schedule.chance(self.schedule.meddling.steps, 16) {
            self.nodes[id.index()].board.occupied = true;
            let gone_on = self.advance();
            self.nodes[id.index()].board.occupied = false;
            if !gone_on? {
                break;
            }
        }
        Ok(())
    }

    /// Keeps a parcel for a node that is occupied, or for which others are kept already, since links are in
    /// order. Returns true if it was kept.
    pub(super) fn keep_parcel(&mut self, parcel: &Parcel) -> bool {
        let board = &mut self.nodes[parcel.to.index()].board;
        let keeps = board.occupied || !board.parcels.is_empty();
        if keeps {
            board.parcels.push_back(parcel.clone());
        }
        keeps
    }

    /// Returns a parcel that was kept for a node that is free again.
    pub(super) fn kept_parcel(&mut self) -> Option<Parcel> {
        let mut free = self.nodes.iter_mut().map(|node| &mut node.board).filter(|board| !board.occupied);
        free.find_map(|board| board.parcels.pop_front())
    }

    /// Carries out a read of node `id`.
    pub(super) fn read(&mut self, id: NodeId, read: &FrameRead) -> Result<ReadOutcome, Failure> {
        let FrameRead { pages, home, merge, .. } = *read;
        let reading = self.mutation.on_read();
        if !self.nodes[home.index()].board.covers(&read.needed) && !reading.looks_away {
            return Ok(ReadOutcome::Behind);
        }
        if self.schedule.exploring && self.schedule.chance(self.schedule.meddling.refusals, 16) {
            return Ok(ReadOutcome::Behind);
        }
        self.others_go_on(id)?;
        if !reading.announces_late && !reading.announces_never {
            self.announce(read);
            self.others_go_on(id)?;
        }
        let content = self.copy_in_pieces(id, home, pages)?;
        if reading.announces_late {
            self.announce(read);
        }
        let how = if merge { self.mutation.on_merge() } else { Merge::Replace };
        let installed = self.nodes[id.index()].memory.install(pages, Some(&content), how);
        let dirty = installed.map_err(|error| Failure::Memory { node: id, error })?;
        Ok(ReadOutcome::Installed { dirty: merge && self.mutation.on_merged(dirty) })
    }

    fn announce(&mut self, read: &FrameRead) {
        self.nodes[read.home.index()].board.announced.extend(read.page_ids());
    }

    /// Returns the home's bytes, which it and others continue to write while they are copied.
    fn copy_in_pieces(&mut self, id: NodeId, home: NodeId, pages: PageRange) -> Result<Vec<u8>, Failure> {
        let granule_bytes = GRANULE_BYTES as usize;
        let bytes = pages.count as usize * granule_bytes;
        // Between words, mostly among the first of a granule, which programs use most.
        let cut = self.schedule.random.random_range(0..pages.count) as usize * granule_bytes
            + self.schedule.random.random_range(0..24) * 8;
        let mut content = Vec::with_capacity(bytes);
        for piece in [0..cut, cut..bytes] {
            content.extend_from_slice(&self.nodes[home.index()].memory.page(pages.first, bytes)[piece]);
            self.others_go_on(id)?;
        }
        Ok(content)
    }
}
