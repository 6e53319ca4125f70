//! Pages, the unit of coherence; ranges and sets of them.

use core::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A page of the shared region, named by its first *granule*. Granules have the kernel's own page size, and
/// places in the region are counted in them from its start. A page (the coherence unit) is one granule or a
/// power of two of them, as its region was allocated. For example, a page of sixteen granules that begins at
/// granule 32 is `PageId(32)`, and no page is called 33.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PageId(pub u64);

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {}", self.0)
    }
}

/// What the program may do with a page without a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Every access faults.
    #[default]
    None,
    /// Loads do not fault, stores do.
    Read,
    /// Neither loads nor stores fault.
    Write,
}

/// The size of a page: a power of two from 4 KiB to 2 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct PageSize(u32);

/// The requested size is not a power of two from 4 KiB to 2 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSizeError {
    /// The requested size in bytes.
    pub got_bytes: u64,
}

impl fmt::Display for PageSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected a page size that is a power of two from 4K to 2M, got {} bytes", self.got_bytes)
    }
}

impl core::error::Error for PageSizeError {}

impl PageSize {
    /// The smallest size, and the default.
    pub const KIB_4: PageSize = PageSize(4096);
    /// The largest size.
    pub const MIB_2: PageSize = PageSize(2 << 20);

    /// Checks a size in bytes.
    pub fn new(bytes: u64) -> Result<PageSize, PageSizeError> {
        let fits = (u64::from(Self::KIB_4.0)..=u64::from(Self::MIB_2.0)).contains(&bytes);
        if fits && bytes.is_power_of_two() {
            Ok(PageSize(bytes as u32))
        } else {
            Err(PageSizeError { got_bytes: bytes })
        }
    }

    /// Returns the size in bytes.
    pub fn bytes(self) -> usize {
        self.0 as usize
    }

    /// Returns the number of pages that `bytes` bytes need.
    pub fn pages_for(self, bytes: u64) -> u64 {
        bytes.div_ceil(u64::from(self.0))
    }
}

impl TryFrom<u32> for PageSize {
    type Error = PageSizeError;
    fn try_from(bytes: u32) -> Result<Self, PageSizeError> {
        PageSize::new(u64::from(bytes))
    }
}

impl From<PageSize> for u32 {
    fn from(size: PageSize) -> u32 {
        size.0
    }
}

/// Consecutive granules `first .. first + count`: whole pages if a range is one of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PageRange {
    /// The first page.
    pub first: PageId,
    /// The number of pages.
    pub count: u64,
}

impl PageRange {
    /// Returns the range of one page.
    pub fn single(page: PageId) -> PageRange {
        PageRange { first: page, count: 1 }
    }

    /// Returns the first page after the range.
    pub fn end(self) -> PageId {
        PageId(self.first.0.saturating_add(self.count))
    }

    /// Returns true if the range holds `page`.
    pub fn contains(self, page: PageId) -> bool {
        self.first <= page && page < self.end()
    }

    /// Returns the pages in order.
    pub fn iter(self) -> impl Iterator<Item = PageId> {
        (self.first.0..self.end().0).map(PageId)
    }
}

/// A set of pages (by their first granules), kept as sorted, disjoint, non-adjacent ranges.
///
/// Programs touch pages in runs, so a set of a million pages is usually a few ranges, in memory and on the
/// wire. There a range is the distance from the end of the previous one, and its length: two bytes for most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageSet {
    ranges: Vec<PageRange>,
}

impl Serialize for PageSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut end = 0;
        serializer.collect_seq(self.ranges.iter().map(|range| {
            let gap = range.first.0 - end;
            end = range.end().0;
            (gap, range.count)
        }))
    }
}

impl<'de> Deserialize<'de> for PageSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PageSet, D::Error> {
        struct Ranges;

        impl<'de> Visitor<'de> for Ranges {
            type Value = PageSet;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("ranges of pages, each as its distance from the one before and its length")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<PageSet, A::Error> {
                // Grows with the bytes that arrive, whatever the claimed length.
                let mut ranges = Vec::new();
                let mut end = 0u64;
                while let Some((gap, count)) = sequence.next_element::<(u64, u64)>()? {
                    let first = end.checked_add(gap);
                    let behind = first.and_then(|first| first.checked_add(count));
                    let (Some(first), Some(behind)) = (first, behind) else {
                        return Err(A::Error::custom(
                            "expected a range of pages that ends, got one that wraps around",
                        ));
                    };
                    ranges.push(PageRange { first: PageId(first), count });
                    end = behind;
                }
                Ok(PageSet { ranges })
            }
        }

        deserializer.deserialize_seq(Ranges)
    }
}

impl PageSet {
    /// Returns the empty set.
    pub fn new() -> PageSet {
        PageSet::default()
    }

    /// Returns true if the set holds no page.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the number of pages in the set.
    pub fn len(&self) -> u64 {
        self.ranges.iter().map(|range| range.count).sum()
    }

    /// Returns the ranges in ascending order.
    pub fn ranges(&self) -> &[PageRange] {
        &self.ranges
    }

    /// Returns the pages in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = PageId> + '_ {
        self.ranges.iter().flat_map(|range| range.iter())
    }

    /// Returns true if the set holds `page`.
    pub fn contains(&self, page: PageId) -> bool {
        let next = self.ranges.partition_point(|range| range.first <= page);
        next > 0 && self.ranges[next - 1].contains(page)
    }

    /// Adds a page. Returns false if the set contained it already.
    pub fn insert(&mut self, page: PageId) -> bool {
        let next = self.ranges.partition_point(|range| range.first <= page);
        if next > 0 && self.ranges[next - 1].contains(page) {
            return false;
        }
        let joins_left = next > 0 && self.ranges[next - 1].end() == page;
        let joins_right = self.ranges.get(next).is_some_and(|range| range.first.0 == page.0 + 1);
        match (joins_left, joins_right) {
            (true, true) => {
                self.ranges[next - 1].count += 1 + self.ranges[next].count;
                self.ranges.remove(next);
            }
            (true, false) => self.ranges[next - 1].count += 1,
            (false, true) => {
                self.ranges[next].first = page;
                self.ranges[next].count += 1;
            }
            (false, false) => self.ranges.insert(next, PageRange::single(page)),
        }
        true
    }

    /// Adds pages after all others of the set.
    ///
    /// # Panics
    /// If they are not after all others.
    pub fn push(&mut self, pages: PageRange) {
        match self.ranges.last_mut() {
            _ if pages.count == 0 => {}
            Some(last) if last.end() == pages.first => last.count += pages.count,
            last => {
                let is_behind = last.is_none_or(|last| last.end() < pages.first);
                assert!(is_behind, "expected pages behind all others, got {}", pages.first);
                self.ranges.push(pages);
            }
        }
    }

    /// Adds the pages of another set.
    pub fn extend(&mut self, other: &PageSet) {
        if self.is_empty() {
            self.ranges.clone_from(&other.ranges);
        } else if self != other {
            other.iter().for_each(|page| {
                self.insert(page);
            });
        }
    }

    /// Removes a page. Returns false if the set did not contain it.
    pub fn remove(&mut self, page: PageId) -> bool {
        let next = self.ranges.partition_point(|range| range.first <= page);
        if next == 0 || !self.ranges[next - 1].contains(page) {
            return false;
        }
        let range = self.ranges[next - 1];
        let left = PageRange { first: range.first, count: page.0 - range.first.0 };
        let right = PageRange { first: PageId(page.0 + 1), count: range.end().0 - page.0 - 1 };
        let pieces = [left, right].into_iter().filter(|piece| piece.count > 0);
        self.ranges.splice(next - 1..next, pieces);
        true
    }

    /// Returns true if the ranges are ascending, disjoint, non-empty and below `limit_pages`. This must be
    /// checked for bytes from the network before any other method is called on the set.
    pub fn is_well_formed(&self, limit_pages: u64) -> bool {
        let mut free_from = 0u64;
        self.ranges.iter().all(|range| {
            let Some(end) = range.first.0.checked_add(range.count) else { return false };
            let ok = range.count > 0 && range.first.0 >= free_from && end <= limit_pages;
            free_from = end;
            ok
        })
    }
}

impl FromIterator<PageId> for PageSet {
    fn from_iter<I: IntoIterator<Item = PageId>>(pages: I) -> PageSet {
        let mut set = PageSet::new();
        for page in pages {
            set.insert(page);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn page_set_agrees_with_a_plain_set(operations in proptest::collection::vec((any::<bool>(), 0u64..40), 0..200)) {
            let mut set = PageSet::new();
            let mut model = BTreeSet::new();
            for (insert, number) in operations {
                let page = PageId(number);
                if insert {
                    prop_assert_eq!(set.insert(page), model.insert(page));
                } else {
                    prop_assert_eq!(set.remove(page), model.remove(&page));
                }
                prop_assert!(set.is_well_formed(40));
                prop_assert_eq!(set.iter().collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(set.len(), model.len() as u64);
                for number in 0..40 {
                    prop_assert_eq!(set.contains(PageId(number)), model.contains(&PageId(number)));
                }
                prop_assert!(set.ranges().windows(2).all(|pair| pair[0].end() < pair[1].first), "adjacent ranges must be joined");
            }
        }
    }

    proptest! {
        #[test]
        fn two_sets_join(one in proptest::collection::btree_set(0u64..40, 0..20), other in proptest::collection::btree_set(0u64..40, 0..20)) {
            let set = |pages: &BTreeSet<u64>| pages.iter().copied().map(PageId).collect::<PageSet>();
            let mut joined = set(&one);
            joined.extend(&set(&other));
            prop_assert_eq!(joined, set(&one.union(&other).copied().collect()));
        }
    }

    #[test]
    fn runs_are_put_behind_each_other_and_joined() {
        let range = |first, count| PageRange { first: PageId(first), count };
        let mut set = PageSet::new();
        for run in [range(3, 2), range(5, 0), range(5, 1), range(9, 1)] {
            set.push(run);
        }
        assert_eq!(set.ranges(), [range(3, 3), range(9, 1)]);
    }

    #[test]
    fn hostile_ranges_are_not_well_formed() {
        let range = |first, count| PageRange { first: PageId(first), count };
        for ranges in [
            vec![range(0, 0)],
            vec![range(5, 1), range(4, 1)],
            vec![range(0, 3), range(2, 2)],
            vec![range(u64::MAX, 2)],
            vec![range(99, 2)],
        ] {
            assert!(!PageSet { ranges: ranges.clone() }.is_well_formed(100), "{ranges:?}");
        }
    }

    #[test]
    fn page_sizes_are_powers_of_two_in_range() {
        assert_eq!(PageSize::new(4096), Ok(PageSize::KIB_4));
        assert_eq!(PageSize::new(2 << 20), Ok(PageSize::MIB_2));
        for bytes in [0, 1, 2048, 5000, 4 << 20, u64::MAX] {
            assert_eq!(PageSize::new(bytes), Err(PageSizeError { got_bytes: bytes }));
        }
    }
}
