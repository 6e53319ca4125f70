//! Home pages that become exclusive again.

use hiroba_base::VectorTimestamp;

use super::Hlrc;
use crate::coherence::Site;

/// A page that was fetched at most so many collectives ago counts as fetched lately.
const LATELY: u64 = 8;

impl Hlrc {
    /// Makes home pages exclusive again that no node has fetched since this node's last write. After a
    /// collective all nodes have the notices of this node's writes and have dropped older copies.
    ///
    /// Where fetches are ordered, a fetch of an exclusive page ends the interval, which closes all pages that
    /// the program writes. So a page that was fetched lately stays shared, and has a snapshot when it is
    /// written.
    ///
    /// A page that was written again since the node's arrival stays shared, because copies of its content at
    /// the arrival are valid.
    pub(super) fn reclaim_exclusive_pages(&mut self, site: &mut Site, all_have_seen: &VectorTimestamp) {
        let seen = all_have_seen.get(site.me);
        let is_ordered = self.ordered.is_on();
        for notice in site.log.of(site.me).into_iter().filter(|notice| notice.seq <= seen) {
            for page_id in notice.pages.iter() {
                if site.is_home(page_id)
                    && let Some(page) = self.pages.get_mut(&page_id)
                {
                    let is_fetched_lately = site.collectives_done - page.served_at <= LATELY;
                    let stays = page.twin || self.looks_for_races || is_ordered && is_fetched_lately;
                    page.shared &= page.served || stays;
                    if !page.shared && std::mem::take(&mut page.unguarded) {
                        page.unnoticed = true;
                        self.watch.unguarded.remove(page_id);
                    }
                }
            }
        }
    }
}
