//! The layout of the shared region. The lower half is allocated collectively, from the bottom up. The next
//! three eighths are divided into one arena per node for the `malloc` family, the last eighth into one part
//! per node for its own data.

use hiroba_base::{NodeId, PageId, PageRange, PageSize};

/// The division of a region of `granules` granules among `nodes` nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    granules: u64,
    nodes: u16,
    arena_granules: u64,
    local_granules: u64,
    /// Arenas and parts are multiples of this.
    unit: u64,
}

impl Layout {
    pub(crate) fn new(granules: u64, granule_bytes: u32, nodes: u16) -> Layout {
        // A whole number of pages of any size.
        let unit = (PageSize::MIB_2.bytes() as u64 / u64::from(granule_bytes)).max(1);
        let each = |granules: u64| granules / u64::from(nodes) / unit * unit;
        let (arena_granules, local_granules) = (each(granules / 8 * 3), each(granules / 8));
        Layout { granules, nodes, arena_granules, local_granules, unit }
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

    fn locals_start(self) -> u64 {
        self.granules / 8 * 7
    }

    /// Returns the part of a node for its own data.
    pub(crate) fn local(self, node: NodeId) -> PageRange {
        let count = self.local_granules;
        PageRange { first: PageId(self.locals_start() + u64::from(node.0) * count), count }
    }

    /// Returns the node to whose own data `page` belongs.
    pub(crate) fn local_owner(self, page: PageId) -> Option<NodeId> {
        let index = page.0.checked_sub(self.locals_start())?.checked_div(self.local_granules)?;
        (index < u64::from(self.nodes)).then_some(NodeId(index as u16))
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
            for node in NodeId::all(nodes) {
                let local = layout.local(node);
                assert!(local.first.0 >= free_from && local.count >= 1 << 17, "512 MiB a node at least");
                free_from = local.end().0;
                let last = PageId(free_from - 1);
                assert_eq!([local.first, last].map(|page| layout.local_owner(page)), [Some(node); 2]);
                assert_eq!([local.first, last].map(|page| layout.arena_owner(page)), [None; 2]);
            }
            assert_eq!(layout.local_owner(PageId(layout.arenas().end().0 - 1)), None);
            assert!(free_from <= 1 << 32);
            assert_eq!(layout.arena_owner(PageId(layout.collective_end() - 1)), None);
        }
    }
}
