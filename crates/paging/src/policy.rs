//! What every replacement policy does.

use hiroba_base::PageId;

/// Chooses the page that leaves.
///
/// A policy has no capacity of its own: its user decides when a page must leave, and shares of memory ("a
/// tenth of it for new pages") are taken of the pages that are in memory at that moment. So a budget may
/// change, and pages may be freed, while it runs.
///
/// References may be told late and in batches, since a machine without a hook on each load learns of them by
/// scans. A policy takes each word of one as "at least once since the last word of it".
///
/// Each call costs amortised constant time, but for [`evict`](Policy::evict) with pages that may not leave,
/// which also costs time for each of those, and for `Opt`, which pays a logarithm.
pub trait Policy: Send {
    /// The name that the command line and the tables use.
    fn name(&self) -> &'static str;

    /// Hears that `page` has come into memory, because it was used. The page must not be in memory yet.
    fn admit(&mut self, page: PageId);

    /// Hears that `page` was used. Of pages that are not in memory nothing is noted.
    fn reference(&mut self, page: PageId);

    /// Names the page that leaves, of those for which `may_leave` holds, and counts it as gone. `None` if
    /// there is no such page: then nothing has left. A page that may not leave is asked about at most a few
    /// times.
    fn evict(&mut self, may_leave: &mut dyn FnMut(PageId) -> bool) -> Option<PageId>;

    /// Hears that `page` has gone for another reason, such as that it was freed: nothing of it is remembered.
    fn forget(&mut self, page: PageId);

    /// The number of pages in memory.
    fn resident(&self) -> usize;

    /// The number of pages of which something is known, those that have left included: at most twice the
    /// largest number of pages that were in memory at once.
    fn remembered(&self) -> usize {
        self.resident()
    }
}
