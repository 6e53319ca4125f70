//! Dense blocks: pages near each other that the program touches in no order.
//!
//! A program that scatters keys into buckets, or gathers along indices, touches most pages of an array
//! without forming a stream. So faults are counted by **block** of 16 pages: from the third page of a block
//! that faults on, each fault also fetches a **window** of pages around it, twice as many as the one before.
//! When four pages of each of two blocks of an **area** of 16 blocks have faulted, each fault of the area
//! fetches its whole block. An area that is touched everywhere costs about 60 faults and not 256; in a block
//! that is touched in two places no page is fetched in vain; in between, the cost of pages fetched in vain is
//! bounded by the cost of the faults that they replace.
//!
//! Counting restarts when a barrier or a lock voids copies: the pages that a thread touched while it held one
//! lock do not predict those of the next.

use hiroba_base::{PageId, PageRange};
use rustc_hash::FxHashMap;

use crate::coherence::Site;
use crate::home::Located;

/// The number of pages of a block: one bit each of a word.
const BLOCK_PAGES: u64 = u16::BITS as u64;

/// The number of blocks of an area.
const AREA_BLOCKS: u64 = 16;

/// The number of pages of a block that fault alone before a fault fetches others, too.
const SINGLE_FAULTS: u32 = 2;

/// The number of pages that fault before a block is dense, and the number of dense blocks that make the whole
/// area dense.
const DENSE_FAULTS: u32 = 4;
const DENSE_BLOCKS: u32 = 2;

/// The maximum number of areas that are counted at once. Beyond it, counting restarts.
const AREAS_MAX: usize = 4096;

/// The maximum number of bytes of a window: a fault waits for all of it.
const WINDOW_BYTES_MAX: u64 = 256 << 10;

/// The pages of each block that have faulted.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    areas: FxHashMap<u64, Area>,
}

#[derive(Debug, Default)]
struct Area {
    /// The pages that have faulted, by block.
    faulted: [u16; AREA_BLOCKS as usize],
    /// The number of dense blocks.
    dense: u32,
}

impl Area {
    /// Notes a fault on a page. Returns the number of pages of its window, at most `most`.
    fn note(&mut self, block: usize, page: u64, most: u64) -> u64 {
        if self.dense >= DENSE_BLOCKS {
            return most;
        }
        let faulted = &mut self.faulted[block];
        let before = faulted.count_ones();
        *faulted |= 1 << page;
        let faults = faulted.count_ones();
        self.dense += u32::from(faults == DENSE_FAULTS && before < faults);
        most.min(1 << faults.saturating_sub(SINGLE_FAULTS))
    }
}

impl Blocks {
    /// Restarts counting.
    pub(crate) fn forget(&mut self) {
        self.areas.clear();
    }

    /// Notes a fault on a page. Returns the pages around it to fetch with it.
    pub(crate) fn around<'a>(
        &mut self,
        site: &'a Site,
        page: Located,
    ) -> impl Iterator<Item = Located> + use<'a> {
        let region = site.homes.region_around(page.page).expect("a page that faults is allocated");
        let (first, pages) = self.window(page, site.page_bytes(page.page));
        let end = PageId(first.0 + pages * page.granules).min(region.end());
        let first = first.max(region.first);
        let window = PageRange { first, count: end.0 - first.0 };
        site.homes.pages_in(window).filter(move |other| other.page != page.page)
    }

    /// Notes a fault on a page. Returns the first page and the number of pages of its window, which includes
    /// the page itself; one page if no others are fetched.
    fn window(&mut self, page: Located, page_bytes: u32) -> (PageId, u64) {
        let number = page.page.0 / page.granules;
        let (block, in_block) = (number / BLOCK_PAGES, number % BLOCK_PAGES);
        let (area, in_area) = (block / AREA_BLOCKS, block % AREA_BLOCKS);
        if self.areas.len() >= AREAS_MAX && !self.areas.contains_key(&area) {
            self.forget();
        }
        let most = (WINDOW_BYTES_MAX / u64::from(page_bytes)).clamp(1, BLOCK_PAGES);
        assert!(most.is_power_of_two(), "{}: a page is a power of two of bytes", page.page);
        let pages = self.areas.entry(area).or_default().note(in_area as usize, in_block, most);
        (PageId(number / pages * pages * page.granules), pages)
    }
}

#[cfg(test)]
mod tests {
    use hiroba_base::NodeId;

    use super::*;

    fn located(page: u64, granules: u64) -> Located {
        Located { page: PageId(page), granules, home: NodeId(0) }
    }

    #[test]
    fn an_area_touched_everywhere_costs_few_faults() {
        const PAGES: u64 = AREA_BLOCKS * BLOCK_PAGES;
        let mut blocks = Blocks::default();
        let mut here = [false; PAGES as usize];
        let mut faults = 0;
        // 101 is prime to 256: all pages, in an order without streams.
        for page in (0..PAGES).map(|count| count * 101 % PAGES) {
            if here[page as usize] {
                continue;
            }
            faults += 1;
            let (first, pages) = blocks.window(located(4 * PAGES + page, 1), 4096);
            let first = first.0 - 4 * PAGES;
            assert!(first <= page && page < first + pages);
            (first..first + pages).for_each(|page| here[page as usize] = true);
        }
        assert!(here.iter().all(|here| *here));
        assert!(faults <= 72, "{faults} faults");
    }

    #[test]
    fn a_block_touched_in_two_places_fetches_nothing_in_vain() {
        let mut blocks = Blocks::default();
        for page in [3, 12, 3, 12, 3] {
            assert_eq!(blocks.window(located(page, 1), 4096), (PageId(page), 1));
        }
        assert_eq!(blocks.window(located(9, 1), 4096), (PageId(8), 2));
        // Every eighth page of a large array.
        for page in (1024..4096).step_by(8) {
            assert_eq!(blocks.window(located(page, 1), 4096), (PageId(page), 1));
        }
        blocks.forget();
        assert_eq!(blocks.window(located(10, 1), 4096), (PageId(10), 1));
    }

    #[test]
    fn windows_of_long_pages_are_bounded_in_bytes() {
        let mut blocks = Blocks::default();
        for number in 0..20u64 {
            let (first, pages) = blocks.window(located(number * 16, 16), 64 << 10);
            assert!(first.0 % 16 == 0 && pages <= 4, "{pages} pages of 64 KiB");
        }
        for number in 0..20u64 {
            let page = PageId(number * 512);
            assert_eq!(blocks.window(located(page.0, 512), 2 << 20), (page, 1));
        }
    }
}
