//! The interface of every replacement policy.

use hiroba_base::PageId;

/// Chooses the page that leaves.
///
/// A policy has no capacity of its own. Its user decides when a page must leave, and fractions of memory ("a
/// tenth for new pages") relate to the pages that are in memory at that moment. So a budget may change, and
/// pages may be freed, at any time.
///
/// References may be reported late and in batches, because a machine without a hook on each load finds them
/// by scans. A policy interprets a report as "used at least once since the last report".
///
/// Each call costs amortised constant time. Exceptions are [`evict`](Policy::evict) with pages that may not
/// leave, which also costs time for each of those, and `Opt`, which costs a logarithm.
pub trait Policy: Send {
    /// Returns the name for the command line and tables.
    fn name(&self) -> &'static str;

    /// Records that `page` has come into memory, because it was used. The page must not be in memory yet.
    fn admit(&mut self, page: PageId);

    /// Records that `page` was used. Uses of pages that are not in memory are ignored.
    fn reference(&mut self, page: PageId);

    /// Chooses the page that leaves, among those for which `may_leave` returns true, and counts it as gone.
    /// Returns `None` if there is no such page. Asks about a page that may not leave at most a few times.
    fn evict(&mut self, may_leave: &mut dyn FnMut(PageId) -> bool) -> Option<PageId>;

    /// Forgets `page`, which left for another reason, such as that it was freed.
    fn forget(&mut self, page: PageId);

    /// Returns the number of pages in memory.
    fn resident(&self) -> usize;

    /// Returns the number of pages that the policy knows, including pages that have left: at most twice the
    /// largest number of pages that were in memory at once.
    fn remembered(&self) -> usize {
        self.resident()
    }
}
