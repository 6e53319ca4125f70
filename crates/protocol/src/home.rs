//! Homes: which node's copy of a page collects the diffs.

use hiroba_base::{NodeId, PageId, PageRange};
use hiroba_wire::Placement;

/// The homes of all allocated pages. A rule a region, not an entry a page, so it costs nothing to allocate much.
#[derive(Debug)]
pub struct HomeMap {
    nodes: u16,
    /// Disjoint, by ascending first page.
    regions: Vec<(PageRange, Placement)>,
}

impl HomeMap {
    /// No page is allocated yet.
    pub fn new(nodes: u16) -> HomeMap {
        HomeMap { nodes, regions: Vec::new() }
    }

    /// Declares a region, which must not overlap another one.
    pub fn add(&mut self, pages: PageRange, placement: Placement) {
        let at = self.regions.partition_point(|(region, _)| region.first < pages.first);
        let clear_left = at == 0 || self.regions[at - 1].0.end() <= pages.first;
        let clear_right = self.regions.get(at).is_none_or(|(region, _)| pages.end() <= region.first);
        assert!(clear_left && clear_right, "regions must not overlap");
        self.regions.insert(at, (pages, placement));
    }

    /// The page's home; `None` when it is not allocated (or not yet heard of here).
    pub fn home_of(&self, page: PageId) -> Option<NodeId> {
        let next = self.regions.partition_point(|(region, _)| region.first <= page);
        let (region, placement) = self.regions.get(next.checked_sub(1)?)?;
        if !region.contains(page) {
            return None;
        }
        let index = page.0 - region.first.0;
        let nodes = u64::from(self.nodes);
        let home = match placement {
            Placement::Block => index / region.count.div_ceil(nodes),
            Placement::Cyclic => index % nodes,
            Placement::On(node) => u64::from(node.0),
        };
        Some(NodeId(home as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn homes(map: &HomeMap, first: u64, count: u64) -> Vec<u16> {
        (first..first + count).map(|page| map.home_of(PageId(page)).unwrap().0).collect()
    }

    #[test]
    fn placements_follow_their_rule() {
        let mut map = HomeMap::new(3);
        map.add(PageRange { first: PageId(20), count: 4 }, Placement::On(NodeId(2)));
        map.add(PageRange { first: PageId(0), count: 7 }, Placement::Block);
        map.add(PageRange { first: PageId(7), count: 5 }, Placement::Cyclic);
        assert_eq!(homes(&map, 0, 7), [0, 0, 0, 1, 1, 1, 2]);
        assert_eq!(homes(&map, 7, 5), [0, 1, 2, 0, 1]);
        assert_eq!(homes(&map, 20, 4), [2; 4]);
        assert_eq!(map.home_of(PageId(12)), None);
        assert_eq!(map.home_of(PageId(24)), None);
    }

    #[test]
    fn fewer_pages_than_nodes_all_have_a_home() {
        let mut map = HomeMap::new(8);
        map.add(PageRange { first: PageId(0), count: 2 }, Placement::Block);
        assert_eq!(homes(&map, 0, 2), [0, 1]);
    }
}
