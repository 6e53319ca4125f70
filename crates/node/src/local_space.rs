//! A node's own data (`hiroba_alloc_local`): which of its addresses are allocated, and how it is touched.

use std::collections::BTreeMap;

use hiroba_base::{PageId, PageRange};

/// The maximum number of granules to which one touch gives access.
const GIVEN_GRANULES_MAX: u64 = 64;

/// The allocated part of a node's addresses for its own data. Its pages are granules.
#[derive(Debug)]
pub(crate) struct LocalSpace {
    /// This node's addresses.
    granules: PageRange,
    blocks: BTreeMap<PageId, Block>,
}

#[derive(Debug)]
struct Block {
    granules: u64,
    bytes: u64,
    /// Where the next touch continues the latest ones.
    next: PageId,
    /// The number of granules that the latest touch gave access to.
    given: u64,
}

impl LocalSpace {
    pub(crate) fn new(granules: PageRange) -> LocalSpace {
        LocalSpace { granules, blocks: BTreeMap::new() }
    }

    /// Allocates whole granules for `bytes` bytes: behind all blocks, or in a gap where there is no room.
    pub(crate) fn take(&mut self, bytes: u64, granule_bytes: u64) -> Option<PageRange> {
        let count = bytes.div_ceil(granule_bytes);
        let fits = |first: PageId, end: PageId| end.0 - first.0 >= count;
        let end_of = |(first, block): (&PageId, &Block)| PageId(first.0 + block.granules);
        let behind = self.blocks.last_key_value().map_or(self.granules.first, end_of);
        let first = if fits(behind, self.granules.end()) {
            behind
        } else {
            let ends = std::iter::once(self.granules.first).chain(self.blocks.iter().map(end_of));
            ends.zip(self.blocks.keys()).find(|(end, next)| fits(*end, **next))?.0
        };
        self.blocks.insert(first, Block { granules: count, bytes, next: first, given: 0 });
        Some(PageRange { first, count })
    }

    /// Frees the block that begins at this granule. Returns its granules.
    pub(crate) fn free(&mut self, first: PageId) -> Option<PageRange> {
        self.blocks.remove(&first).map(|block| PageRange { first, count: block.granules })
    }

    /// Returns true if the granule is of a block.
    pub(crate) fn is_allocated(&self, granule: PageId) -> bool {
        self.at_or_before(granule).is_some_and(|(first, block)| granule.0 - first.0 < block.granules)
    }

    /// Notes that a granule of a block is touched. Returns the granules to give access to: more and more
    /// while touches continue each other upwards.
    pub(crate) fn touch(&mut self, granule: PageId) -> Option<PageRange> {
        let (first, block) = self.blocks.range_mut(..=granule).next_back()?;
        let end = first.0 + block.granules;
        if granule.0 >= end {
            return None;
        }
        let given = if granule == block.next { (2 * block.given).clamp(1, GIVEN_GRANULES_MAX) } else { 1 };
        let count = given.min(end - granule.0);
        (block.next, block.given) = (PageId(granule.0 + count), given);
        Some(PageRange { first: granule, count })
    }

    /// Returns the first granule, and the bytes, of the block at or before the granule.
    pub(crate) fn describe(&self, granule: PageId) -> Option<(PageId, u64)> {
        self.at_or_before(granule).map(|(first, block)| (*first, block.bytes))
    }

    fn at_or_before(&self, granule: PageId) -> Option<(&PageId, &Block)> {
        self.blocks.range(..=granule).next_back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, count: u64) -> PageRange {
        PageRange { first: PageId(first), count }
    }

    fn space() -> LocalSpace {
        LocalSpace::new(range(1000, 100))
    }

    #[test]
    fn blocks_are_whole_granules_and_gaps_are_used_when_room_ends() {
        let mut space = space();
        assert_eq!(space.take(1, 4096), Some(range(1000, 1)));
        assert_eq!(space.take(20 * 4096 + 1, 4096), Some(range(1001, 21)));
        assert_eq!(space.take(60 * 4096, 4096), Some(range(1022, 60)));
        assert_eq!(space.describe(PageId(1005)), Some((PageId(1001), 20 * 4096 + 1)));
        assert!(space.is_allocated(PageId(1021)) && !space.is_allocated(PageId(1082)));
        assert_eq!(space.free(PageId(1002)), None, "no block begins there");
        assert_eq!(space.free(PageId(1001)), Some(range(1001, 21)));
        assert!(!space.is_allocated(PageId(1001)) && space.is_allocated(PageId(1000)));
        assert_eq!(space.take(18 * 4096, 4096), Some(range(1082, 18)), "behind all");
        assert_eq!(space.take(22 * 4096, 4096), None);
        assert_eq!(space.take(5 * 4096, 4096), Some(range(1001, 5)), "in the gap");
        assert_eq!(space.take(16 * 4096, 4096), Some(range(1006, 16)));
        assert_eq!(space.take(1, 4096), None);
        assert_eq!(LocalSpace::new(range(7, 0)).take(1, 4096), None);
    }

    #[test]
    fn touches_in_order_get_more_and_more() {
        let mut space = LocalSpace::new(range(0, 1000));
        let block = space.take(400 * 4096, 4096).unwrap();
        assert_eq!(block, range(0, 400));
        let mut given = Vec::new();
        let mut next = PageId(0);
        while let Some(run) = space.touch(next) {
            assert_eq!(run.first, next);
            given.push(run.count);
            next = run.end();
        }
        assert_eq!(given, [1, 2, 4, 8, 16, 32, 64, 64, 64, 64, 64, 17]);
        assert_eq!(space.touch(PageId(7)), Some(range(7, 1)), "out of order");
        assert_eq!(space.touch(PageId(8)), Some(range(8, 2)));
        assert_eq!(space.touch(PageId(400)), None);
    }
}
