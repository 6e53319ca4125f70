//! `hiroba_malloc`: a node's own part of the shared address space.
//!
//! Each node gives out blocks of its own arena without asking anybody, so blocks of different nodes never share a
//! page. The book-keeping is private memory of the arena's node: an overrun in shared memory cannot damage it, and
//! neither allocating nor freeing touches a page.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;
use thiserror::Error;

/// Blocks are multiples of this, and aligned to it: what `malloc` promises for any object.
pub(crate) const GRAIN_BYTES: u64 = 16;

/// An address that is not a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "expected the address of a block that hiroba_malloc gave out and nobody has freed, got 0x{address:x}"
)]
pub struct NotABlock {
    /// The address.
    pub address: u64,
}

/// Best fit over free ranges, joined with their neighbours when freed.
#[derive(Debug)]
pub(crate) struct Arena {
    /// Free ranges: start → end.
    free: BTreeMap<u64, u64>,
    /// The same by length, for best fit.
    by_length: BTreeSet<(u64, u64)>,
    blocks: FxHashMap<u64, u64>,
    /// No block ever reached this address: memory from here on is still zero.
    untouched_from: u64,
}

/// A block as given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) address: u64,
    /// The memory is known to be zero.
    pub(crate) zeroed: bool,
}

impl Arena {
    pub(crate) fn new(start: u64, end: u64) -> Arena {
        let mut arena = Arena {
            free: BTreeMap::new(),
            by_length: BTreeSet::new(),
            blocks: FxHashMap::default(),
            untouched_from: start,
        };
        arena.insert_free(start, end);
        arena
    }

    /// A block of at least `bytes` bytes at a multiple of `align` (a power of two); `None` when there is no room.
    pub(crate) fn allocate(&mut self, bytes: u64, align: u64) -> Option<Block> {
        let bytes = bytes.max(1).checked_next_multiple_of(GRAIN_BYTES)?;
        let align = align.max(GRAIN_BYTES);
        let fits = |&(_, start): &(u64, u64)| {
            let address = start.checked_next_multiple_of(align)?;
            let end = address.checked_add(bytes)?;
            (end <= self.free[&start]).then_some((start, address, end))
        };
        let (start, address, end) = self.by_length.range((bytes, 0)..).find_map(fits)?;
        let free_end = self.remove_free(start);
        self.insert_free(start, address);
        self.insert_free(end, free_end);
        self.blocks.insert(address, bytes);
        let zeroed = address >= self.untouched_from;
        self.untouched_from = self.untouched_from.max(end);
        Some(Block { address, zeroed })
    }

    /// The usable length of a block.
    pub(crate) fn length_of(&self, address: u64) -> Option<u64> {
        self.blocks.get(&address).copied()
    }

    /// Takes a block back.
    pub(crate) fn free(&mut self, address: u64) -> Result<(), NotABlock> {
        let bytes = self.blocks.remove(&address).ok_or(NotABlock { address })?;
        let (mut start, mut end) = (address, address + bytes);
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
        Ok(())
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

    #[test]
    fn freed_neighbours_join() {
        let mut arena = Arena::new(0, 64);
        let blocks: Vec<u64> = (0..4).map(|_| arena.allocate(16, 16).unwrap().address).collect();
        assert_eq!(arena.allocate(1, 16), None);
        for index in [1, 3, 0, 2] {
            arena.free(blocks[index]).unwrap();
        }
        assert_eq!(arena.allocate(64, 16), Some(Block { address: 0, zeroed: false }));
    }

    #[test]
    fn absurd_sizes_are_refused() {
        let mut arena = Arena::new(GRAIN_BYTES, 1 << 20);
        assert_eq!(arena.allocate(u64::MAX, 16), None);
        assert_eq!(arena.allocate(16, 1 << 63), None);
        assert_eq!(arena.free(48), Err(NotABlock { address: 48 }));
        let block = arena.allocate(0, 1).unwrap();
        arena.free(block.address).unwrap();
        assert!(arena.free(block.address).is_err(), "a double free is seen");
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
                    prop_assert!(arena.free(address).is_ok());
                } else if let Some(block) = arena.allocate(bytes, 1 << align) {
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
                arena.free(address).unwrap();
            }
            prop_assert_eq!(arena.free.into_iter().collect::<Vec<_>>(), vec![(start, end)]);
        }
    }
}
