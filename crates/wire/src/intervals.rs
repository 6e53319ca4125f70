//! What nodes tell each other about intervals: which pages changed in them, and how.

use hiroba_base::{CodeSite, IntervalSeq, NodeId, PageId, PageSet, VectorTimestamp, VersionVector};
use serde::{Deserialize, Serialize};

/// Write notices of one interval: "these pages changed in interval `seq` of `node`".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntervalNotice {
    /// The node of the interval.
    pub node: NodeId,
    /// The interval's number.
    pub seq: IntervalSeq,
    /// The pages that changed.
    pub pages: PageSet,
}

/// What a release passes to the acquirer: the releaser's timestamp, and the notices that the acquirer lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Knowledge {
    /// The releaser's vector timestamp.
    pub timestamp: VectorTimestamp,
    /// Notices of intervals that the acquirer has not seen.
    pub notices: Vec<IntervalNotice>,
    /// How many collectives the releaser has completed.
    pub epoch: u64,
    /// Whether some of it is later than the arrival of a node (the releaser or another) at the present
    /// collective: threads may synchronise while another thread of their node waits there.
    pub beyond_arrival: bool,
}

/// The changes that an interval made to one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageDiff<'a> {
    /// The page.
    pub page: PageId,
    /// The diff (`hiroba_protocol::diff`); empty when only the version advances.
    #[serde(borrow, with = "serde_bytes")]
    pub runs: &'a [u8],
}

/// What an interval changed in a page, as its writer keeps it until a node asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntervalDiff<'a> {
    /// The interval.
    pub seq: IntervalSeq,
    /// The page's version at the interval's end: what the change builds on, and the interval itself.
    pub version: VersionVector,
    /// The diff (`hiroba_protocol::diff`); empty when only the version advances.
    #[serde(borrow, with = "serde_bytes")]
    pub runs: &'a [u8],
}

/// What an interval did to a page, as far as its node observed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TouchedPage {
    /// The page.
    pub page: PageId,
    /// The bytes that it changed, ascending and disjoint.
    pub written: Vec<core::ops::Range<u32>>,
    /// The interval's first store to the page.
    pub first_store: Option<CodeSite>,
    /// Loads from the page that faulted: a byte of each, and its place in the program.
    pub loads: Vec<(u32, Option<CodeSite>)>,
}
