//! A node's own part of the shared address space, allocated by best fit. It holds large blocks, and the spans
//! from which small blocks are cut.
//!
//! The bookkeeping is private memory of the arena's node. An overrun in shared memory cannot damage it, and
//! neither allocating nor freeing touches a page.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use hiroba_base::NodeId;
use thiserror::Error;

/// Ranges are aligned to this and are multiples of it: the alignment that `malloc` guarantees for any object.
pub(crate) const GRAIN_BYTES: u64 = 16;

/// Number of freed large blocks that are remembered to detect a double free. The oldest is forgotten first.
const FREED_REMEMBERED: usize = 4096;

/// Number of free ranges tried that are long enough but may be misaligned. After that, a range is taken that
/// is long enough at any alignment.
const FITS_TRIED: usize = 16;

/// An address that cannot be freed or measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotABlock {
    /// No block is known at the address.
    #[error("expected the address of a live block from hiroba_malloc, got 0x{address:x}")]
    Unknown {
        /// The address.
        address: u64,
    },
    /// A double free.
    #[error("block of {} at 0x{address:x} was already freed on node {by}", Counted(*bytes))]
    Freed {
        /// The address.
        address: u64,
        /// The size that was requested.
        bytes: u64,
        /// The node that freed it.
        by: NodeId,
    },
    /// The address lies inside a block.
    #[error(
        "expected the start of a block, got 0x{address:x}, which is {} into the block of {} at 0x{start:x}",
        Counted(*offset),
        Counted(*bytes)
    )]
    Inside {
        /// The address.
        address: u64,
        /// Where the block starts.
        start: u64,
        /// The offset of the address in the block.
        offset: u64,
        /// The size that was requested.
        bytes: u64,
    },
}

/// Formats a number of bytes with its unit.
pub(crate) struct Counted(pub(crate) u64);

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} byte{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

/// An allocated block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) address: u64,
    /// True if the memory is known to be zero.
    pub(crate) zeroed: bool,
}

/// A block as the user knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) start: u64,
    /// The size that was requested.
    pub(crate) bytes: u64,
    /// The node that freed it, if it was freed.
    pub(crate) freed_by: Option<NodeId>,
}

#[derive(Clone, Copy, Debug)]
struct Lengths {
    /// The length that the block occupies.
    usable: u64,
    asked: u64,
}

#[derive(Clone, Copy, Debug)]
struct Freed {
    lengths: Lengths,
    by: NodeId,
}

/// A best-fit allocator. Adjacent free ranges are merged.
#[derive(Debug)]
pub(crate) struct Arena {
    /// Free ranges: start → end.
    free: BTreeMap<u64, u64>,
    /// The same ranges by length, for best fit.
    by_length: BTreeSet<(u64, u64)>,
    blocks: BTreeMap<u64, Lengths>,
    freed: BTreeMap<u64, Freed>,
    /// The keys of `freed`, oldest first. Some may have been removed from `freed`.
    freed_order: VecDeque<u64>,
    /// No range has ever reached this address: memory from here on is still zero.
    untouched_from: u64,
}

impl Arena {
    pub(crate) fn new(start: u64, end: u64) -> Arena {
        let mut arena = Arena {
            free: BTreeMap::new(),
            by_length: BTreeSet::new(),
            blocks: BTreeMap::new(),
            freed: BTreeMap::new(),
            freed_order: VecDeque::new(),
            untouched_from: start,
        };
        arena.insert_free(start, end);
        arena
    }

    /// Allocates a block for `asked` bytes that occupies `usable` bytes (at least `asked`, and a multiple of
    /// the grain), aligned to `align` (a power of two). Returns `None` when there is no room.
    pub(crate) fn allocate(&mut self, asked: u64, usable: u64, align: u64) -> Option<Block> {
        let block = self.take(usable, align)?;
        self.blocks.insert(block.address, Lengths { usable, asked });
        Some(block)
    }

    /// Takes a range without recording it as a block. `bytes` is a multiple of the grain.
    pub(crate) fn take(&mut self, bytes: u64, align: u64) -> Option<Block> {
        let align = align.max(GRAIN_BYTES);
        let (start, address) = self.find(bytes, align)?;
        let end = address + bytes;
        let free_end = self.remove_free(start);
        self.insert_free(start, address);
        self.insert_free(end, free_end);
        self.forget_freed(address, end);
        let zeroed = address >= self.untouched_from;
        self.untouched_from = self.untouched_from.max(end);
        Some(Block { address, zeroed })
    }

    /// Finds the free range to cut from, and the address in it.
    fn find(&self, bytes: u64, align: u64) -> Option<(u64, u64)> {
        let fits = |&(_, start): &(u64, u64)| {
            let address = start.checked_next_multiple_of(align)?;
            let end = address.checked_add(bytes)?;
            (end <= self.free[&start]).then_some((start, address))
        };
        let long_enough_anywhere = bytes.checked_add(align - GRAIN_BYTES)?;
        self.by_length
            .range((bytes, 0)..(long_enough_anywhere, 0))
            .take(FITS_TRIED)
            .find_map(fits)
            .or_else(|| self.by_length.range((long_enough_anywhere, 0)..).find_map(fits))
            // Memory is short: try every range that is long enough.
            .or_else(|| self.by_length.range((bytes, 0)..(long_enough_anywhere, 0)).find_map(fits))
    }

    /// Forgets the freed blocks that overlap a range.
    fn forget_freed(&mut self, start: u64, end: u64) {
        while let Some((&left, freed)) = self.freed.range(..end).next_back() {
            if left + freed.lengths.usable <= start {
                return;
            }
            self.freed.remove(&left);
        }
    }

    /// Returns the usable length of a block.
    pub(crate) fn length_of(&self, address: u64) -> Result<u64, NotABlock> {
        self.blocks.get(&address).map(|lengths| lengths.usable).ok_or_else(|| self.why_not(address))
    }

    /// Changes the requested size of a block. Returns false if the bytes do not fit, or if more than half of
    /// the block would be unused.
    pub(crate) fn resize(&mut self, address: u64, bytes: u64) -> Result<bool, NotABlock> {
        let Some(lengths) = self.blocks.get_mut(&address) else { return Err(self.why_not(address)) };
        let fits = (lengths.usable / 2..=lengths.usable).contains(&bytes);
        if fits {
            lengths.asked = bytes;
        }
        Ok(fits)
    }

    /// Frees a block on behalf of node `by`.
    pub(crate) fn free(&mut self, address: u64, by: NodeId) -> Result<(), NotABlock> {
        let Some(lengths) = self.blocks.remove(&address) else { return Err(self.why_not(address)) };
        if self.freed_order.len() == FREED_REMEMBERED
            && let Some(oldest) = self.freed_order.pop_front()
        {
            self.freed.remove(&oldest);
        }
        self.freed.insert(address, Freed { lengths, by });
        self.freed_order.push_back(address);
        self.give(address, address + lengths.usable);
        Ok(())
    }

    /// Returns a range to the free ranges.
    pub(crate) fn give(&mut self, mut start: u64, mut end: u64) {
        if let Some((&left, &left_end)) = self.free.range(..start).next_back()
            && left_end == start
        {
            self.remove_free(left);
            start = left;
        }
        if self.free.contains_key(&end) {
            end = self.remove_free(end);
        }
        self.insert_free(start, end);
    }

    fn why_not(&self, address: u64) -> NotABlock {
        if let Some(Freed { lengths, by }) = self.freed.get(&address) {
            return NotABlock::Freed { address, bytes: lengths.asked, by: *by };
        }
        match self.blocks.range(..address).next_back() {
            Some((&start, lengths)) if address < start + lengths.usable => {
                NotABlock::Inside { address, start, offset: address - start, bytes: lengths.asked }
            }
            _ => NotABlock::Unknown { address },
        }
    }

    /// Returns the blocks around an address: the one that contains it or ends before it, the next one after
    /// it, and a freed one that contained it.
    pub(crate) fn around(&self, address: u64) -> impl Iterator<Item = Known> {
        let live =
            |(&start, lengths): (&u64, &Lengths)| Known { start, bytes: lengths.asked, freed_by: None };
        let left = self.blocks.range(..=address).next_back().map(live);
        let right = self.blocks.range(address..).next().map(live);
        let freed = self.freed.range(..=address).next_back();
        let freed = freed.filter(|(start, freed)| address - *start < freed.lengths.usable);
        let freed = freed.map(|(&start, freed)| Known {
            start,
            bytes: freed.lengths.asked,
            freed_by: Some(freed.by),
        });
        [left, right, freed].into_iter().flatten()
    }

    /// The free ranges in order, for tests.
    #[cfg(test)]
    pub(crate) fn free_ranges(&self) -> Vec<(u64, u64)> {
        self.free.iter().map(|(&start, &end)| (start, end)).collect()
    }

    fn insert_free(&mut self, start: u64, end: u64) {
        if start < end {
            self.free.insert(start, end);
            self.by_length.insert((end - start, start));
        }
    }

    fn remove_free(&mut self, start: u64) -> u64 {
        let end = self.free.remove(&start).expect("the range is free");
        self.by_length.remove(&(end - start, start));
        end
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ME: NodeId = NodeId(1);

    #[test]
    fn freed_neighbours_join() {
        let mut arena = Arena::new(0, 64);
        let blocks: Vec<u64> = (0..4).map(|_| arena.allocate(16, 16, 16).unwrap().address).collect();
        assert_eq!(arena.allocate(1, 16, 16), None);
        for index in [1, 3, 0, 2] {
            arena.free(blocks[index], ME).unwrap();
        }
        assert_eq!(arena.allocate(64, 64, 16), Some(Block { address: 0, zeroed: false }));
    }

    #[test]
    fn absurd_sizes_are_refused() {
        let mut arena = Arena::new(GRAIN_BYTES, 1 << 20);
        assert_eq!(arena.allocate(u64::MAX - 15, u64::MAX - 15, 16), None);
        assert_eq!(arena.allocate(16, 16, 1 << 63), None);
        assert_eq!(arena.allocate(1 << 63, 1 << 63, 1 << 63), None);
        assert_eq!(arena.free(48, ME), Err(NotABlock::Unknown { address: 48 }));
    }

    #[test]
    fn a_freed_block_is_remembered_until_its_memory_is_given_out_again() {
        let mut arena = Arena::new(0, 4096);
        let block = arena.allocate(100, 112, 16).unwrap();
        arena.free(block.address, NodeId(3)).unwrap();
        let again = arena.free(block.address, ME).unwrap_err();
        assert_eq!(again, NotABlock::Freed { address: 0, bytes: 100, by: NodeId(3) });
        assert_eq!(again.to_string(), "block of 100 bytes at 0x0 was already freed on node 3");
        arena.take(4096, 16).unwrap();
        assert_eq!(arena.free(block.address, ME), Err(NotABlock::Unknown { address: 0 }));
    }

    #[test]
    fn memory_of_frees_is_bounded() {
        let blocks = 2 * FREED_REMEMBERED as u64;
        let mut arena = Arena::new(0, blocks * 16);
        let addresses: Vec<u64> = (0..blocks).map(|_| arena.allocate(16, 16, 16).unwrap().address).collect();
        for address in &addresses {
            arena.free(*address, ME).unwrap();
        }
        assert!(arena.freed.len() <= FREED_REMEMBERED && arena.freed_order.len() <= FREED_REMEMBERED);
        assert_eq!(arena.free(addresses[0], ME), Err(NotABlock::Unknown { address: addresses[0] }));
        assert!(matches!(arena.free(*addresses.last().unwrap(), ME), Err(NotABlock::Freed { .. })));
    }

    #[test]
    fn an_aligned_range_is_found_among_many_that_lie_wrongly() {
        let mut arena = Arena::new(16, 16 + 64 * 4096);
        let pieces: Vec<u64> = (0..64).map(|_| arena.allocate(2048, 2048, 16).unwrap().address).collect();
        for piece in pieces.iter().step_by(2) {
            arena.free(*piece, ME).unwrap();
        }
        let block = arena.allocate(2048, 2048, 2048).unwrap();
        assert!(block.address.is_multiple_of(2048));
    }

    proptest! {
        #[test]
        fn blocks_never_overlap_and_zeroed_means_never_used(
            operations in proptest::collection::vec((1u64..200, 0u32..8, any::<prop::sample::Index>(), any::<bool>()), 1..200),
        ) {
            let (start, end) = (4096, 4096 + 8192);
            let mut arena = Arena::new(start, end);
            let mut live: Vec<(u64, u64)> = Vec::new();
            let mut used = vec![false; end as usize];
            for (bytes, align, pick, free) in operations {
                if free && !live.is_empty() {
                    let (address, _) = live.swap_remove(pick.index(live.len()));
                    prop_assert!(arena.free(address, ME).is_ok());
                    prop_assert!(arena.free(address, ME).is_err());
                } else if let Some(block) = arena.allocate(bytes, bytes.next_multiple_of(GRAIN_BYTES), 1 << align) {
                    let length = arena.length_of(block.address).unwrap();
                    prop_assert!(length >= bytes && block.address.is_multiple_of((1u64 << align).max(GRAIN_BYTES)));
                    prop_assert!(block.address >= start && block.address + length <= end);
                    prop_assert!(live.iter().all(|(other, size)| block.address + length <= *other || other + size <= block.address));
                    let span = block.address as usize..(block.address + length) as usize;
                    if block.zeroed {
                        prop_assert!(used[span.clone()].iter().all(|byte| !byte));
                    }
                    used[span].fill(true);
                    live.push((block.address, length));
                }
            }
            for (address, _) in live {
                arena.free(address, ME).unwrap();
            }
            prop_assert_eq!(arena.free_ranges(), vec![(start, end)]);
        }
    }
}
