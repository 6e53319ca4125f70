//! Pages that are given up to sequential consistency (`consistency/converting.rs`).
//!
//! Before that a copy is invalidated as by a notice, and a release sends its writes to the home. The home's
//! own threads lose their access in the same way. Afterwards this protocol keeps an entry of the page that
//! looks like a good copy in use: so it neither fetches the page, alone or with others, nor gives access to
//! it, nor takes access away.

use hiroba_base::{Access, PageId, PageSet};

use super::{Hlrc, Page};
use crate::coherence::{Coherence, GivesUp, Site};

impl GivesUp for Hlrc {
    fn is_moving(&self, page_id: PageId) -> bool {
        self.moves.is_moving(page_id)
    }

    /// A home waits for the diffs that notices name, and a copy for the answer to its request.
    fn is_at_rest(&self, site: &Site, page_id: PageId) -> bool {
        let is_home = site.is_home(page_id);
        let is_whole = |page: &Page| page.needed.is_empty() && page.pending.is_empty();
        let is_quiet = |page: &Page| page.fetch.is_none() && (!is_home || is_whole(page));
        !self.atomic_targets.are_in(page_id) && self.pages.get(&page_id).is_none_or(is_quiet)
    }

    fn let_go(&mut self, site: &mut Site, page_id: PageId) {
        if site.is_home(page_id) {
            // Stores without notices end here. The page is about to lose its access, so it is not watched.
            let _ = self.share(site, [page_id]);
        }
        let mut voided = PageSet::new();
        self.void(page_id, &mut voided);
        site.invalidate(&voided, |page| self.access(page));
        self.ask_for_unwritten(site);
    }

    fn forget(&mut self, page_id: PageId) {
        assert!(!self.written.contains(page_id), "{page_id}: the release has sent what was written");
        let page = self.pages.or_default(page_id);
        assert!(!page.twin && !page.watched, "{page_id}: what was written is in its home's frame");
        assert_eq!(page.access, Access::None, "{page_id}: no thread touches what is given up");
        *page = Page { valid: true, access: Access::Write, ..Page::default() };
        self.moves.gave_up(page_id);
    }
}
