//! The layout of the shared region. The lower half is allocated collectively, from the bottom up; the upper
//! half is divided into one arena per node for the `malloc` family.

use hiroba_base::{NodeId, PageId, PageRange, PageSize};

/// The division of a region of `granules` granules among `nodes` nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    granules: u64,
    nodes: u16,
    arena_granules: u64,
    /// Arenas are multiples of this.
    unit: u64,
}

impl Layout {
    pub(crate) fn new(granules: u64, granule_bytes: u32, nodes: u16) -> Layout {
        // A whole number of pages of any size.
        let unit = (PageSize::MIB_2.bytes() as u64 / u64::from(granule_bytes)).max(1);
        let arena_granules = granules / 2 / u64::from(nodes) / unit * unit;
        Layout { granules, nodes, arena_granules, unit }
    }

    /// Returns the end of the collectively allocated half.
    pub(crate) fn collective_end(self) -> u64 {
        self.granules / 2
    }

    /// Returns the arena of a node.
    pub(crate) fn arena(self, node: NodeId) -> PageRange {
        let count = self.arena_granules;
        PageRange { first: PageId(self.collective_end() + u64::from(node.0) * count), count }
    }

    /// Returns the part of a node's arena for small blocks and the part for long ones, for jobs in which the
    /// two have different protocols.
    pub(crate) fn divided_arena(self, node: NodeId) -> [PageRange; 2] {
        let PageRange { first, count } = self.arena(node);
        let small = count / 2 / self.unit * self.unit;
        [
            PageRange { first, count: small },
            PageRange { first: PageId(first.0 + small), count: count - small },
        ]
    }

    /// Returns the range of all arenas.
    pub(crate) fn arenas(self) -> PageRange {
        PageRange { first: PageId(self.collective_end()), count: self.arena_granules * u64::from(self.nodes) }
    }

    /// Returns the node whose arena contains `page`.
    pub(crate) fn arena_owner(self, page: PageId) -> Option<NodeId> {
        let index = page.0.checked_sub(self.collective_end())? / self.arena_granules;
        (index < u64::from(self.nodes)).then_some(NodeId(index as u16))
    }
}

#[cfg(test)]
mod tests {
    use hiroba_base::MAX_NODES;

    use super::*;

    #[test]
    fn arenas_are_disjoint_and_know_their_owner() {
        for nodes in [1, 3, 8, MAX_NODES] {
            let layout = Layout::new(1 << 32, 4096, nodes);
            let mut free_from = layout.collective_end();
            for node in NodeId::all(nodes) {
                let arena = layout.arena(node);
                assert_eq!(arena.first.0, free_from);
                free_from = arena.end().0;
                assert_eq!(layout.arena_owner(arena.first), Some(node));
                assert_eq!(layout.arena_owner(PageId(arena.end().0 - 1)), Some(node));
                assert!(
                    arena.first.0.is_multiple_of(512) && arena.count.is_multiple_of(512),
                    "whole large pages"
                );
                assert!(arena.count >= 1 << 18, "1 GiB a node at least");
                let [small, long] = layout.divided_arena(node);
                assert_eq!((small.first, small.end(), long.end()), (arena.first, long.first, arena.end()));
                assert!(long.first.0.is_multiple_of(512) && small.count > 0, "whole large pages");
            }
            assert!(free_from <= 1 << 32);
            assert_eq!(layout.arena_owner(PageId(layout.collective_end() - 1)), None);
        }
    }
}
