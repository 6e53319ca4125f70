//! Messages that carry several pages.

use hiroba_base::{NodeId, PageId, PageSet, PageSize, VersionVector};
use serde::{Deserialize, Serialize};

use crate::WireError;
use crate::limits::Limits;

/// The maximum number of pages that one message requests or carries.
pub const PAGES_PER_MESSAGE_MAX: u64 = 1024;

/// Pages of which the same version is required.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagesWanted {
    /// The version that write notices require of each.
    pub needed: VersionVector,
    /// The pages.
    pub pages: PageSet,
}

/// One of several pages in a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageCopy {
    /// The page.
    pub page: PageId,
    /// The intervals that it contains.
    pub version: VersionVector,
    /// Whether it has never been written: it is zero, and its content is not sent.
    pub is_zero: bool,
}

/// One of several pages that get another owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageOwned {
    /// The page.
    pub page: PageId,
    /// The nodes with copies of it, except the receiver.
    pub copyset: Vec<NodeId>,
    /// The number of operations on each atomic word, by its byte offset; only while the run is traced.
    pub turns: Vec<(u32, u64)>,
}

impl Limits {
    /// Checks the pages of a message of the single writer.
    pub(crate) fn run(&self, pages: &PageSet) -> Result<(), WireError> {
        self.pages("page ranges of a run", pages)?;
        Self::in_one_message("pages of a run", pages.len())
    }

    pub(crate) fn owned(&self, pages: &[PageOwned]) -> Result<(), WireError> {
        for owned in pages {
            self.page(owned.page)?;
            owned.copyset.iter().try_for_each(|node| self.node(*node))?;
        }
        Self::in_one_message("pages with a new owner", pages.len() as u64)
    }

    fn in_one_message(field: &'static str, pages: u64) -> Result<(), WireError> {
        Self::within(field, "1 to 1024", pages, (1..=PAGES_PER_MESSAGE_MAX).contains(&pages))
    }

    pub(crate) fn wanted(&self, wanted: &[PagesWanted]) -> Result<(), WireError> {
        let mut pages = 0u64;
        for group in wanted {
            self.version(&group.needed)?;
            let good = group.pages.is_well_formed(self.region_granules);
            let ranges = group.pages.ranges().len() as u64;
            Self::within("page ranges of a request", "ascending, within the region", ranges, good)?;
            pages = pages.saturating_add(group.pages.len());
        }
        Self::in_one_message("pages of a request", pages)
    }

    pub(crate) fn copies(&self, copies: &[PageCopy], content: &[u8]) -> Result<(), WireError> {
        for copy in copies {
            self.page(copy.page)?;
            self.version(&copy.version)?;
        }
        let pages = copies.len() as u64;
        Self::in_one_message("pages of a reply", pages)?;
        let sent = copies.iter().filter(|copy| !copy.is_zero).count();
        let bytes = content.len();
        let (least, most) = (sent * self.granule_bytes as usize, sent * PageSize::MIB_2.bytes());
        let good = (least..=most).contains(&bytes) && bytes.is_multiple_of(self.granule_bytes as usize);
        Self::within("page content", "whole granules, one to the largest page a page", bytes as u64, good)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;

    #[test]
    fn a_reply_in_two_parts_is_the_reply() {
        let mut version = VersionVector::new();
        version.advance(NodeId(3), 300);
        let copy = |page, is_zero| PageCopy { page: PageId(page), version: version.clone(), is_zero };
        for bytes in [0, 4096, 8192, 1 << 20] {
            let content = vec![7; bytes];
            let copies = vec![copy(5, false), copy(1 << 30, true)];
            let whole = Message::PagesReply { copies: copies.clone(), content: &content }.encode();
            let mut parts =
                Message::PagesReply { copies, content: &[] }.encode_before_content(bytes, Vec::new());
            parts.extend_from_slice(&content);
            assert!(parts == whole, "{bytes} bytes");
        }
    }

    #[test]
    fn many_scattered_pages_take_two_bytes_each() {
        let pages: PageSet = (0..1000).map(|index| PageId((1 << 31) + 3 * index)).collect();
        let wanted = vec![PagesWanted { needed: VersionVector::new(), pages }];
        let bytes = Message::PagesRequest { wanted, descending: false }.encode().len();
        assert!(bytes < 2 * 1000 + 20, "{bytes} bytes");
    }

    #[test]
    fn ranges_that_wrap_around_are_refused() {
        let limits = Limits { nodes: 1, region_granules: 100, granule_bytes: 4096 };
        let sets = [vec![(5u64, u64::MAX)], vec![(0, 1), (u64::MAX, 1)], vec![(0, 0)], vec![(99, 2)]];
        for gaps in sets {
            // A `PagesRequest` of one group, encoded by hand, since a set with such content cannot be made.
            let head = Message::PagesRequest { wanted: Vec::new(), descending: false }.encode()[0];
            let body = (head, 1u8, VersionVector::new(), &gaps, false);
            let bytes = postcard::to_extend(&body, Vec::new()).unwrap();
            assert!(Message::decode(&bytes, &limits).is_err(), "{gaps:?}");
        }
        let pages: PageSet = [1, 2, 7].into_iter().map(PageId).collect();
        let bytes = postcard::to_extend(&pages, Vec::new()).unwrap();
        assert_eq!(bytes, [2, 1, 2, 4, 1]);
        assert_eq!(postcard::from_bytes(&bytes), Ok(pages));
    }
}
