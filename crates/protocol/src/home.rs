//! Homes: the node whose copy of a page collects the diffs, and the node that should be the home
//! ([`HomeChoice`]).

mod choice;

use hiroba_base::{NodeId, PageId, PageRange, PageSet};
use hiroba_wire::Placement;
use rustc_hash::FxHashMap;

pub(crate) use self::choice::CONTENDED_PERIODS;
pub use self::choice::{HomeChoice, HomePolicy, HomeUse, MoveThreshold};

/// The homes of all allocated pages: a rule for each region, not an entry for each page, so that large
/// allocations cost nothing.
#[derive(Debug)]
pub struct HomeMap {
    nodes: u16,
    /// Regions, disjoint, by ascending first granule.
    regions: Vec<Region>,
    has_first_touches: bool,
    /// Pages whose home is not the one of their region's rule.
    moved: FxHashMap<PageId, NodeId>,
}

#[derive(Debug)]
struct Region {
    granules: PageRange,
    /// The range that its rule counts from: the region itself, or the whole that it is a part of.
    whole: PageRange,
    granules_per_page: u64,
    placement: Placement,
    /// The number of consecutive pages on one node, if it is placed in blocks.
    pages_per_block: u64,
}

/// The layout of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The whole region.
    pub granules: PageRange,
    /// The length of its pages.
    pub granules_per_page: u64,
    /// The rule for the pages' homes.
    pub placement: Placement,
}

/// The page and home of a granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// The page that contains it.
    pub page: PageId,
    /// The page's length.
    pub granules: u64,
    /// The page's home.
    pub home: NodeId,
}

impl Located {
    /// Returns the page's granules.
    pub fn span(&self) -> PageRange {
        PageRange { first: self.page, count: self.granules }
    }
}

impl HomeMap {
    /// Returns a map with no pages allocated.
    pub fn new(nodes: u16) -> HomeMap {
        assert!(nodes > 0, "some node is a page's home");
        HomeMap { nodes, regions: Vec::new(), has_first_touches: false, moved: FxHashMap::default() }
    }

    /// Declares a region of whole pages, which must not overlap another one.
    pub fn add(&mut self, granules: PageRange, granules_per_page: u64, placement: Placement) {
        self.add_part(granules, granules, granules_per_page, placement);
    }

    /// Declares the part `granules` of a region: whole pages, homed as in the whole region. To callers that
    /// ask which pages belong together, the other parts are other regions.
    pub fn add_part(
        &mut self,
        granules: PageRange,
        whole: PageRange,
        granules_per_page: u64,
        placement: Placement,
    ) {
        assert!(granules_per_page.is_power_of_two(), "a page is a power of two of granules");
        assert!(whole.count.is_multiple_of(granules_per_page), "a region consists of whole pages");
        assert!(granules.count.is_multiple_of(granules_per_page), "a part consists of whole pages");
        assert!(
            whole.first <= granules.first && granules.end() <= whole.end(),
            "a part lies within its region"
        );
        let at = self.regions.partition_point(|region| region.granules.first < granules.first);
        let clear_left = at == 0 || self.regions[at - 1].granules.end() <= granules.first;
        let clear_right = self.regions.get(at).is_none_or(|region| granules.end() <= region.granules.first);
        assert!(clear_left && clear_right, "regions must not overlap");
        self.has_first_touches |= placement == Placement::FirstTouch;
        let region = Region::new(granules, whole, granules_per_page, placement, self.nodes);
        self.regions.insert(at, region);
    }

    /// Returns the runs of pages of one home that a region will have, in order. The region need not have been
    /// added.
    pub fn runs(&self, layout: &Layout) -> impl Iterator<Item = (PageRange, NodeId)> + use<> {
        let Layout { granules, granules_per_page, placement } = *layout;
        let nodes = u64::from(self.nodes);
        let region = Region::new(granules, granules, granules_per_page, placement, self.nodes);
        let length = match placement {
            Placement::Block | Placement::FirstTouch => region.pages_per_block * granules_per_page,
            Placement::Cyclic if nodes > 1 => granules_per_page,
            Placement::Cyclic | Placement::On(_) => granules.count,
        };
        let mut next = granules.first;
        std::iter::from_fn(move || {
            let count = length.min(granules.end().0 - next.0);
            let run = PageRange { first: next, count };
            next = run.end();
            (count > 0).then(|| (run, region.locate(run.first, nodes).home))
        })
    }

    /// Returns the page of a granule and its home, or `None` if it is not allocated, as far as this node
    /// knows.
    pub fn locate(&self, granule: PageId) -> Option<Located> {
        let located = self.placed(granule)?;
        match self.moved.get(&located.page) {
            Some(home) => Some(Located { home: *home, ..located }),
            None => Some(located),
        }
    }

    /// Returns the page of a granule and its home by the region's rule.
    fn placed(&self, granule: PageId) -> Option<Located> {
        self.region_of(granule).map(|region| region.locate(granule, u64::from(self.nodes)))
    }

    /// Returns the node on which the region of an allocated page places it: its home, if that is its first
    /// toucher.
    pub(crate) fn placed_on(&self, page: PageId) -> NodeId {
        let is_placed_later = self.is_by_first_touch(page);
        let located = if is_placed_later { self.locate(page) } else { self.placed(page) };
        located.expect("a page in use is allocated").home
    }

    /// Returns true if the region of a page places it on its first toucher.
    pub fn is_by_first_touch(&self, page: PageId) -> bool {
        self.has_first_touches
            && self.region_of(page).is_some_and(|region| region.placement == Placement::FirstTouch)
    }

    /// Returns true if this node decides which node is the page's first toucher, to which the page moves.
    pub fn sees_first_touch(&self, me: NodeId, page: PageId) -> bool {
        self.is_by_first_touch(page) && self.placed(page).is_some_and(|placed| placed.home == me)
    }

    /// Returns true if pages of any region move to their first touchers.
    pub fn has_first_touches(&self) -> bool {
        self.has_first_touches
    }

    /// Gives an allocated page another home.
    pub fn move_page(&mut self, page: PageId, to: NodeId) {
        let placed = self.placed(page);
        assert!(
            placed.is_some_and(|placed| placed.page == page),
            "{page}: an allocated page moves as a whole"
        );
        if placed.is_some_and(|placed| placed.home == to) {
            self.moved.remove(&page);
        } else {
            self.moved.insert(page, to);
        }
    }

    /// Returns true if the granule belongs to a page.
    pub fn is_allocated(&self, granule: PageId) -> bool {
        self.region_of(granule).is_some()
    }

    /// Returns the page's home, or `None` if it is not allocated, as far as this node knows.
    pub fn home_of(&self, page: PageId) -> Option<NodeId> {
        self.locate(page).map(|located| located.home)
    }

    /// Returns the granules of the region that contains this one.
    pub fn region_around(&self, granule: PageId) -> Option<PageRange> {
        self.region_of(granule).map(|region| region.granules)
    }

    /// Returns the allocated parts of a range, one for each region, by ascending granule.
    pub fn regions_in(&self, range: PageRange) -> impl Iterator<Item = PageRange> + '_ {
        let first = self.regions.partition_point(|region| region.granules.end() <= range.first);
        let regions =
            self.regions[first..].iter().take_while(move |region| region.granules.first < range.end());
        regions.map(move |region| {
            let first = region.granules.first.max(range.first);
            PageRange { first, count: region.granules.end().min(range.end()).0 - first.0 }
        })
    }

    /// Returns the pages of a range that begins with one of them, up to its end or to a granule that is not
    /// allocated.
    pub fn pages_in(&self, range: PageRange) -> impl Iterator<Item = Located> + '_ {
        let mut next = range.first;
        std::iter::from_fn(move || {
            let located = self.locate(next).filter(|_| next < range.end())?;
            next = located.span().end();
            Some(located)
        })
    }

    /// Returns the granules of the pages, in as few ranges as possible.
    pub fn spans(&self, pages: &PageSet) -> Vec<PageRange> {
        let mut spans: Vec<PageRange> = Vec::new();
        let mut add = |span: PageRange| match spans.last_mut() {
            Some(last) if last.end() == span.first => last.count += span.count,
            _ => spans.push(span),
        };
        for range in pages.ranges() {
            let mut rest = *range;
            while rest.count > 0 {
                let region = self.region_of(rest.first).expect("a page in a set is allocated");
                let taken = if region.granules_per_page == 1 {
                    rest.count.min(region.granules.end().0 - rest.first.0)
                } else {
                    1
                };
                add(PageRange { first: rest.first, count: taken * region.granules_per_page });
                rest = PageRange { first: PageId(rest.first.0 + taken), count: rest.count - taken };
            }
        }
        spans
    }

    fn region_of(&self, granule: PageId) -> Option<&Region> {
        let next = self.regions.partition_point(|region| region.granules.first <= granule);
        self.regions.get(next.checked_sub(1)?).filter(|region| region.granules.contains(granule))
    }
}

impl Region {
    fn new(
        granules: PageRange,
        whole: PageRange,
        granules_per_page: u64,
        placement: Placement,
        nodes: u16,
    ) -> Region {
        let pages_per_block = (whole.count / granules_per_page).div_ceil(u64::from(nodes)).max(1);
        Region { granules, whole, granules_per_page, placement, pages_per_block }
    }

    fn locate(&self, granule: PageId, nodes: u64) -> Located {
        // Powers of two, because this is computed for every page of every release.
        debug_assert!(self.granules.contains(granule), "{granule}: it is of this region");
        let index = (granule.0 - self.whole.first.0) >> self.granules_per_page.trailing_zeros();
        let home = match self.placement {
            Placement::Block | Placement::FirstTouch => index / self.pages_per_block,
            Placement::Cyclic => index % nodes,
            Placement::On(node) => u64::from(node.0),
        };
        let page = PageId(self.whole.first.0 + (index << self.granules_per_page.trailing_zeros()));
        Located { page, granules: self.granules_per_page, home: NodeId(home as u16) }
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
        map.add(PageRange { first: PageId(20), count: 4 }, 1, Placement::On(NodeId(2)));
        map.add(PageRange { first: PageId(0), count: 7 }, 1, Placement::Block);
        map.add(PageRange { first: PageId(7), count: 5 }, 1, Placement::Cyclic);
        assert_eq!(homes(&map, 0, 7), [0, 0, 0, 1, 1, 1, 2]);
        assert_eq!(homes(&map, 7, 5), [0, 1, 2, 0, 1]);
        assert_eq!(homes(&map, 20, 4), [2; 4]);
        assert_eq!(map.home_of(PageId(12)), None);
        assert_eq!(map.home_of(PageId(24)), None);
    }

    #[test]
    fn fewer_pages_than_nodes_all_have_a_home() {
        let mut map = HomeMap::new(8);
        map.add(PageRange { first: PageId(0), count: 2 }, 1, Placement::Block);
        assert_eq!(homes(&map, 0, 2), [0, 1]);
    }

    #[test]
    fn parts_of_a_region_are_homed_as_the_whole_is() {
        let whole = PageRange { first: PageId(4), count: 14 };
        let part = |first, count| PageRange { first: PageId(first), count };
        for placement in [Placement::Block, Placement::Cyclic, Placement::On(NodeId(2))] {
            let mut in_one = HomeMap::new(3);
            in_one.add(whole, 2, placement);
            let mut in_parts = HomeMap::new(3);
            for part in [part(4, 4), part(14, 4), part(8, 6)] {
                in_parts.add_part(part, whole, 2, placement);
            }
            assert_eq!(homes(&in_parts, 4, 14), homes(&in_one, 4, 14));
            assert_eq!(in_parts.region_around(PageId(9)), Some(part(8, 6)));
            let runs: Vec<_> =
                in_one.runs(&Layout { granules: whole, granules_per_page: 2, placement }).collect();
            let granules: Vec<u16> =
                runs.iter().flat_map(|(run, home)| vec![home.0; run.count as usize]).collect();
            assert_eq!(granules, homes(&in_one, 4, 14), "{runs:?}");
            let expected = match placement {
                Placement::Block | Placement::FirstTouch => 3,
                Placement::Cyclic => 7,
                Placement::On(_) => 1,
            };
            assert_eq!(runs.len(), expected);
        }
    }

    #[test]
    fn a_page_that_has_moved_is_not_where_its_region_places_it() {
        let mut map = HomeMap::new(3);
        map.add(PageRange { first: PageId(0), count: 6 }, 2, Placement::Cyclic);
        map.move_page(PageId(2), NodeId(0));
        assert_eq!(homes(&map, 0, 6), [0, 0, 0, 0, 2, 2]);
        map.move_page(PageId(2), NodeId(1));
        assert_eq!(homes(&map, 0, 6), [0, 0, 1, 1, 2, 2]);
        assert!(map.moved.is_empty(), "it is where it was");
    }

    #[test]
    fn a_page_of_several_granules_has_one_home_and_one_name() {
        let mut map = HomeMap::new(2);
        map.add(PageRange { first: PageId(8), count: 12 }, 4, Placement::Cyclic);
        map.add(PageRange { first: PageId(20), count: 3 }, 1, Placement::On(NodeId(1)));
        assert_eq!(homes(&map, 8, 12), [0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0]);
        assert_eq!(map.locate(PageId(15)), Some(Located { page: PageId(12), granules: 4, home: NodeId(1) }));
        let pages: PageSet = [8, 16, 20, 22].into_iter().map(PageId).collect();
        let spans =
            [(8, 4), (16, 5), (22, 1)].map(|(first, count)| PageRange { first: PageId(first), count });
        assert_eq!(map.spans(&pages), spans);
        let parts = |first, count| {
            let range = PageRange { first: PageId(first), count };
            map.regions_in(range).map(|part| (part.first.0, part.count)).collect::<Vec<_>>()
        };
        assert_eq!(
            (parts(0, 30), parts(10, 11), parts(0, 8)),
            (vec![(8, 12), (20, 3)], vec![(10, 10), (20, 1)], vec![])
        );
        let walked = |first, count| {
            let range = PageRange { first: PageId(first), count };
            map.pages_in(range).map(|located| located.page.0).collect::<Vec<u64>>()
        };
        assert_eq!(
            (walked(12, 10), walked(21, 9), walked(8, 0)),
            (vec![12, 16, 20, 21], vec![21, 22], vec![])
        );
    }
}
