//! Bounds of the fields of messages.

use hiroba_base::{IntervalSeq, NodeId, PageId, PageSet, PageSize, VectorTimestamp, VersionVector};

use crate::WireError;
use crate::collective::{CONTRIBUTION_BYTES_MAX, Collective, Contribution, Placement};
use crate::intervals::Knowledge;

/// The maximum length of a piece of program data.
pub const PROGRAM_DATA_BYTES_MAX: usize = 256 << 10;

/// The bounds of every field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Nodes of the job.
    pub nodes: u16,
    /// Granules of the shared region.
    pub region_granules: u64,
    /// Bytes of a granule, the unit in which pages are counted.
    pub granule_bytes: u32,
}

impl Limits {
    pub(crate) fn within(
        field: &'static str,
        expected: &'static str,
        got: u64,
        good: bool,
    ) -> Result<(), WireError> {
        if good { Ok(()) } else { Err(WireError::OutOfBounds { field, expected, got }) }
    }

    pub(crate) fn node(&self, node: NodeId) -> Result<(), WireError> {
        Self::within("node", "a node of the job", u64::from(node.0), node.0 < self.nodes)
    }

    pub(crate) fn page(&self, page: PageId) -> Result<(), WireError> {
        Self::within("page", "a page of the shared region", page.0, page.0 < self.region_granules)
    }

    pub(crate) fn consecutive(&self, first: PageId, count: u64) -> Result<(), WireError> {
        self.page(first)?;
        let good = (1..=self.region_granules - first.0).contains(&count);
        Self::within("pages of a run", "1 or more, within the shared region", count, good)
    }

    pub(crate) fn pages(&self, field: &'static str, pages: &PageSet) -> Result<(), WireError> {
        let ranges = pages.ranges().len() as u64;
        let good = pages.is_well_formed(self.region_granules);
        Self::within(field, "ascending, within the region", ranges, good)
    }

    pub(crate) fn word(&self, offset: u32) -> Result<(), WireError> {
        let good = offset.is_multiple_of(8) && (offset as usize) < PageSize::MIB_2.bytes();
        Self::within("offset of an atomic word", "a multiple of 8 within the page", u64::from(offset), good)
    }

    pub(crate) fn program_data(&self, bytes: &[u8]) -> Result<(), WireError> {
        let good = (1..=PROGRAM_DATA_BYTES_MAX).contains(&bytes.len());
        Self::within("bytes of program data", "1 to 256 KiB", bytes.len() as u64, good)
    }

    pub(crate) fn seq(&self, seq: IntervalSeq) -> Result<(), WireError> {
        Self::within("interval", "1 or more", seq, seq > 0)
    }

    pub(crate) fn version(&self, version: &VersionVector) -> Result<(), WireError> {
        let entries = version.entries().len() as u64;
        Self::within(
            "version vector entries",
            "ascending nodes of the job",
            entries,
            version.is_well_formed(self.nodes),
        )
    }

    pub(crate) fn timestamp(&self, timestamp: &VectorTimestamp) -> Result<(), WireError> {
        let entries = timestamp.nodes();
        let good = entries == usize::from(self.nodes);
        Self::within("vector timestamp entries", "one per node", entries as u64, good)
    }

    pub(crate) fn collective(&self, collective: Collective, knowledge: &Knowledge) -> Result<(), WireError> {
        if let Collective::Allocate { placement: Placement::On(node), .. } = collective {
            self.node(node)?;
        }
        self.knowledge(knowledge)
    }

    pub(crate) fn contributions(&self, contributions: &[Contribution<'_>]) -> Result<(), WireError> {
        for Contribution { node, bytes } in contributions {
            self.node(*node)?;
            let good = (1..=CONTRIBUTION_BYTES_MAX).contains(&bytes.len());
            Self::within("bytes of a contribution", "1 to 16 KiB", bytes.len() as u64, good)?;
        }
        let ascends = contributions.is_sorted_by(|before, after| before.node < after.node);
        Self::within("contributions", "ascending nodes", contributions.len() as u64, ascends)
    }

    pub(crate) fn knowledge(&self, knowledge: &Knowledge) -> Result<(), WireError> {
        self.timestamp(&knowledge.timestamp)?;
        for notice in &knowledge.notices {
            self.node(notice.node)?;
            self.seq(notice.seq)?;
            self.pages("page ranges of a write notice", &notice.pages)?;
        }
        Ok(())
    }
}
