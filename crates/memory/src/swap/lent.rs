//! Memory of other nodes as a place for granules that are out.

use hiroba_base::{NodeId, PageId};

/// A sealed granule. It may be shorter than it was before.
#[derive(Clone, Copy, Debug)]
pub struct SealedGranule<'a> {
    /// The granule.
    pub granule: PageId,
    /// Names the version.
    pub stamp: u64,
    /// What is kept of it.
    pub bytes: &'a [u8],
}

/// Other nodes that lend memory. They get sealed bytes, which mean nothing to them.
///
/// A version of a granule is named by its stamp, which no other version has. Calls may wait for other nodes,
/// but never for a thread of this node that holds a lock of the caller's.
pub trait Lenders: Send + Sync {
    /// Returns false if no node has room, and none can be asked at the moment.
    fn may_lend(&self) -> bool;

    /// Lends one granule after the other, each in the place of its earlier version. Returns how many were
    /// lent, from the first on; for the others no node has room.
    fn lend(&self, granules: &[SealedGranule<'_>]) -> usize;

    /// Returns true if this version is lent still, and may be relied upon again.
    fn keep(&self, granule: PageId, stamp: u64) -> bool;

    /// Requests granules that the caller will soon [`fetch`](Self::fetch). If another thread notes first that
    /// they are in memory, the answers are dropped.
    fn request(&self, granules: &[(PageId, u64)]);

    /// Copies granules into `bytes`, each to the start of a part of a whole granule's length.
    ///
    /// # Errors
    /// Fails if one of them is lost.
    fn fetch(&self, granules: &[(PageId, u64)], bytes: &mut [u8]) -> Result<(), LenderLost>;

    /// Records that granules are in memory: what is lent may give way to others.
    fn note_back(&self, granules: &[PageId]);

    /// Forgets granules.
    fn discard(&self, granules: &[PageId]);

    /// Returns a granule that was returned and has no other lender, for the caller to find it a place and
    /// then discard it here.
    fn homeless(&self) -> Option<(PageId, u64, Vec<u8>)>;
}

/// A granule that a lender has lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LenderLost {
    /// The granule.
    pub granule: PageId,
    /// The node that had it.
    pub lender: NodeId,
}
